//! Secrets that are never shown: what stands for a key or a password, in addresses and in whatever a server echoes.
//!
//! Not here: control characters (`agent::clean`), and who may be sent a key at all (`agent::Endpoint`). Invariants: what
//! leaves here holds none of the secrets, also where a stream cuts one in two; text without one is not changed.

use reqwest::Url;
use serde_json::Value;
use std::borrow::Cow;

/// What stands in a secret's place.
const SHOWN: &str = "…";

/// Shorter ones are hidden where an address holds them but not in running text: what local servers take for a key is
/// often a plain word (`ollama`, `EMPTY`), and a name with holes helps nobody.
const LEAST: usize = 8;

/// Ends of the names of parameters whose values are secrets: `api-key`, `key`, `access_token`, `sig`.
const SECRET_NAMES: [&str; 10] =
    ["key", "token", "secret", "password", "passphrase", "passwd", "pwd", "sig", "signature", "authorization"];

/// An address as it may be shown: no user, no password, no values of parameters that are keys.
///
/// All of `url` is taken for one, also what no address may hold: it may be one that was mistyped.
pub fn address(url: &str) -> String {
    // Also as it is typed, `user:pw@host/v1`, and without its scheme.
    let (scheme, rest) = url.split_at(url.find("://").map_or(0, |at| at + "://".len()));
    let slashes = rest.len() - rest.trim_start_matches('/').len();
    let mut out = format!("{scheme}{}", &rest[..slashes]);
    one(&rest[slashes..], &mut out);
    out
}

/// How keys of well-known services begin.
const BEGINS: [&str; 9] = ["sk-", "hf_", "ghp_", "github_pat_", "xoxb-", "gsk_", "AKIA", "ASIA", "AIza"];

/// Whether a line that somebody typed holds what looks like a key or a password: in an address, behind a name such as `api_key=`, behind
/// `Bearer`, or by how it begins.
pub fn holds_secret(line: &str) -> bool {
    let bearer = line.split_whitespace().any(|w| w.eq_ignore_ascii_case("bearer"));
    let telling = |w: &str| {
        let named = w.split(['?', '&', ',', ';']).filter_map(|p| p.split_once(['=', ':']));
        BEGINS.iter().any(|b| w.starts_with(b) && w.len() >= b.len() + LEAST)
            || named.into_iter().any(|(name, value)| is_secret(name) && !value.is_empty())
    };
    // A name, then a value of its own.
    let words: Vec<&str> = line.split_whitespace().collect();
    let apart = words.windows(2).any(|w| w[0].strip_suffix([':', '=']).is_some_and(is_secret));
    bearer || apart || addresses(line) != line || line.split(ends).any(telling)
}

/// A secret as it is, and as those write it who pack text up: percent signs, base64 of it within something longer (RFC
/// 4648, both alphabets), hexadecimal digits, a string of JSON within one.
fn forms(secret: &str) -> Vec<String> {
    use base64::Engine;
    use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
    use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
    const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
    let all = |begin: &str, digits: &dyn Fn(u8) -> String| -> String {
        secret.bytes().map(|b| format!("{begin}{}", digits(b))).collect()
    };
    let (upper, lower) = (|b: u8| format!("{b:02X}"), |b: u8| format!("{b:02x}"));
    let percent: Vec<String> =
        [UNRESERVED, NON_ALPHANUMERIC].iter().map(|set| utf8_percent_encode(secret, set).to_string()).collect();
    let mut forms = vec![secret.to_owned(), secret.replace('/', "\\/"), all("", &upper), all("", &lower)];
    forms.extend([all("%", &upper), all("%", &lower)]);
    forms.extend(percent.iter().map(|p| lower_escapes(p)));
    forms.extend(percent);
    let json = serde_json::Value::String(secret.to_owned()).to_string();
    forms.extend(json.get(1..json.len() - 1).map(str::to_owned));
    for before in 0..3 {
        // Only whole letters are the secret's alone: what stands before and after has a part in those at the ends.
        let bytes = [&b"\0\0"[..before], secret.as_bytes()].concat();
        let own = (before * 8).div_ceil(6)..bytes.len() * 8 / 6;
        for letters in [STANDARD_NO_PAD.encode(&bytes), URL_SAFE_NO_PAD.encode(&bytes)] {
            forms.extend(letters.get(own.clone()).map(str::to_owned));
        }
    }
    forms
}

/// `%2B` as `%2b`.
fn lower_escapes(percent: &str) -> String {
    let mut digits = 0;
    let lower = |c: char| {
        digits = if c == '%' { 3 } else { usize::saturating_sub(digits, 1) };
        if digits > 0 { c.to_ascii_lowercase() } else { c }
    };
    percent.chars().map(lower).collect()
}

/// The secrets of one endpoint.
#[derive(Clone, Default)]
pub struct Mask {
    /// Longest first: one may be the beginning of another.
    secrets: Vec<String>,
}

impl Mask {
    /// The key, and the user's password and the key-like parameters in the address, in every form in which a server can
    /// have seen them.
    pub fn of(base_url: &str, api_key: &str) -> Mask {
        use base64::Engine;
        let mut secrets = vec![api_key.to_owned()];
        if let Ok(url) = Url::parse(base_url) {
            if let Some(password) = url.password() {
                let plain = |s: &str| percent_encoding::percent_decode_str(s).decode_utf8_lossy().into_owned();
                let pair = format!("{}:{}", plain(url.username()), plain(password));
                secrets.extend([password.to_owned(), plain(password)]);
                secrets.push(base64::engine::general_purpose::STANDARD.encode(pair));
            }
            let raw = url.query().unwrap_or("").split('&').filter_map(|p| p.split_once('='));
            secrets.extend(raw.filter(|(n, _)| is_secret(n)).map(|(_, v)| v.to_owned()));
            secrets.extend(url.query_pairs().filter(|(n, _)| is_secret(n)).map(|(_, v)| v.into_owned()));
        }
        secrets.retain(|s| s.len() >= LEAST);
        secrets = secrets.iter().flat_map(|s| forms(s)).collect();
        secrets.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        secrets.dedup();
        Mask { secrets }
    }

    /// Text that came over the wire. Where it was cut off, the greater part of a secret at its end is one too.
    pub fn text(&self, s: &str) -> String {
        let mut stream = self.stream();
        let hidden = stream.push(s) + &stream.finish();
        addresses(&hidden).into_owned()
    }

    /// A value that came over the wire: every string in it, names of fields too.
    pub fn value(&self, v: Value) -> Value {
        match v {
            Value::String(s) => Value::String(self.text(&s)),
            Value::Array(a) => a.into_iter().map(|v| self.value(v)).collect(),
            Value::Object(o) => o.into_iter().map(|(k, v)| (self.text(&k), self.value(v))).collect(),
            plain @ (Value::Null | Value::Bool(_) | Value::Number(_)) => plain,
        }
    }

    /// For text that comes in pieces.
    pub fn stream(&self) -> Masked {
        Masked { mask: self.clone(), held: String::new() }
    }

    fn hide<'a>(&self, s: &'a str) -> Cow<'a, str> {
        let found = self.secrets.iter().filter(|k| s.contains(k.as_str()));
        found.fold(Cow::Borrowed(s), |s, k| Cow::Owned(s.replace(k, SHOWN)))
    }

    /// Bytes at the end of `s` that may be the beginning of a secret.
    fn doubtful(&self, s: &str) -> usize {
        let begins = |k: &String| (1..k.len()).rev().find(|n| k.is_char_boundary(*n) && s.ends_with(&k[..*n]));
        self.secrets.iter().filter_map(begins).max().unwrap_or(0)
    }
}

/// Masks a stream of text, holding back what may be the beginning of a secret until it is known.
pub struct Masked {
    mask: Mask,
    held: String,
}

impl Masked {
    /// What is certain by now.
    pub fn push(&mut self, text: &str) -> String {
        self.held.push_str(text);
        let mut known = self.mask.hide(&self.held).into_owned();
        self.held = known.split_off(known.len() - self.mask.doubtful(&known));
        known
    }

    /// What was held back, at the end.
    pub fn finish(&mut self) -> String {
        let rest = std::mem::take(&mut self.held);
        if rest.len() >= LEAST { SHOWN.to_owned() } else { rest }
    }
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET_NAMES.iter().any(|s| name.ends_with(s))
}

/// What ends an address in running text.
fn ends(c: char) -> bool {
    c.is_whitespace() || matches!(c, '"' | '\'' | '`' | '<' | '>' | '\\' | '|' | '(' | ')' | '{' | '}')
}

/// Hides user, password and keys in every address in `text`.
fn addresses(text: &str) -> Cow<'_, str> {
    if !text.contains("://") {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, from) = rest.split_at(at + "://".len());
        out.push_str(before);
        let end = from.find(ends).unwrap_or(from.len());
        // Not past the next address where two are joined by a comma or the like.
        let end = from[..end].find("://").unwrap_or(end);
        one(&from[..end], &mut out);
        rest = &from[end..];
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// One address, after its scheme.
fn one(url: &str, out: &mut String) {
    let authority = url.find(['/', '?', '#']).unwrap_or(url.len());
    // A password with one of these in it is none of an address's, and somebody's all the same.
    let authority = if is_host(&url[..authority]) { authority } else { url.len() };
    let host = url[..authority].rfind('@').map_or(0, |at| {
        out.push_str(SHOWN);
        at
    });
    let mut rest = &url[host..];
    while let Some(at) = rest.find(['?', '&', ';', '#']) {
        out.push_str(&rest[..=at]);
        rest = &rest[at + 1..];
        let end = rest.find(['&', ';', '#']).unwrap_or(rest.len());
        if let Some((name, _)) = rest[..end].split_once('=').filter(|(n, v)| is_secret(n) && !v.is_empty()) {
            out.push_str(name);
            out.push('=');
            out.push_str(SHOWN);
            rest = &rest[end..];
        }
    }
    out.push_str(rest);
}

/// What stands before an address's path can be that: there is a user in it, or what follows the host is a port.
fn is_host(authority: &str) -> bool {
    let host = authority.rsplit('@').next().unwrap_or_default();
    let port = host.rsplit_once(':').filter(|_| !host.ends_with(']')).map(|(_, port)| port);
    authority.contains('@') || port.is_none_or(|p| p.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lines_with_secrets_are_told_from_others() {
        for line in [
            "note the passphrase: correct-horse",
            "note use AKIAIOSFODNN7EXAMPLE",
            "llm https://x/v1?api_key=abc m",
            "note password=hunter2",
            "note Bearer abc",
        ] {
            assert!(holds_secret(line), "{line}");
        }
        for line in [
            "budget macs=0.5,drop=0.5",
            "select *.mlp.*",
            "note keep the keys of attention: they matter",
            "limits tokens=20000",
        ] {
            assert!(!holds_secret(line), "{line}");
        }
    }

    #[test]
    fn addresses_lose_their_secrets_and_nothing_else() {
        for (url, shown) in [
            ("http://user:pw@host:8000/v1", "http://…@host:8000/v1"),
            ("https://token@host/v1", "https://…@host/v1"),
            ("http://u:p@ss@host", "http://…@host"),
            ("user:pw@host/v1", "…@host/v1"),
            ("https://h/v1?api-key=abc&version=2", "https://h/v1?api-key=…&version=2"),
            ("https://h/v1?a=b&KEY=abc#access_token=xyz", "https://h/v1?a=b&KEY=…#access_token=…"),
            ("h/v1?api_key=abc", "h/v1?api_key=…"),
            ("http://localhost:11434/v1", "http://localhost:11434/v1"),
            ("https://h/@user/v1?max_tokens=5", "https://h/@user/v1?max_tokens=5"),
            ("http://[::1]:8000/a@b", "http://[::1]:8000/a@b"),
            ("http://[::1]/a@b", "http://[::1]/a@b"),
            // What is no address: a password that ends the authority, a space, no scheme.
            ("http://u:SEK/RET@h/v1", "http://…@h/v1"),
            ("http://u:SEK#RET@h/v1?key=a", "http://…@h/v1?key=…"),
            ("//u:SEKRET@h/v1?key=SEKRET", "//…@h/v1?key=…"),
            ("http://us:PW@ev il:99999/v1?api-key=SEKRET1", "http://…@ev il:99999/v1?api-key=…"),
            ("", ""),
        ] {
            assert_eq!(address(url), shown, "{url}");
        }
        let said = "no route to `http://u:p@a/x?key=1`, see (https://b?sig=2) or a@b.c, 1://";
        let none = Mask::default();
        assert_eq!(none.text(said), "no route to `http://…@a/x?key=…`, see (https://b?sig=…) or a@b.c, 1://");
    }

    #[test]
    fn what_a_server_was_sent_is_hidden_where_it_echoes_it() {
        let mask = Mask::of("http://me:s%40rm%3Along@h/v1?api-key=query%2Bsecret", "sk-secret-key");
        for echo in
            ["sk-secret-key", "s%40rm%3Along", "s@rm:long", "bWU6c0BybTpsb25n", "query+secret", "query%2Bsecret"]
        {
            assert_eq!(mask.text(&format!("bad {echo}!")), "bad …!", "{echo}");
        }
        let value = json!({"error": {"sk-secret-key": ["a sk-secret-key", 1, null, true]}});
        assert_eq!(mask.value(value), json!({"error": {"…": ["a …", 1, null, true]}}));
        assert_eq!(mask.text("cut off: sk-secret-k"), "cut off: …");
        // A word that stands for a key is a word.
        assert_eq!(Mask::of("http://h/v1", "ollama").text("ollama serve"), "ollama serve");
    }

    #[test]
    fn a_key_is_hidden_however_it_is_packed_up() {
        use base64::Engine;
        use base64::engine::general_purpose::{STANDARD, URL_SAFE};
        let key = "sk-Fe+K/ey~\"\u{fc}\u{3ff}9x";
        let mask = Mask::of("http://h", key);
        let hex = |before: &str, f: &dyn Fn(u8) -> String| key.bytes().map(|b| format!("{before}{}", f(b))).collect();
        let packed: [String; 8] = [
            hex("", &|b| format!("{b:02x}")),
            hex("", &|b| format!("{b:02X}")),
            hex("%", &|b| format!("{b:02X}")),
            "sk-Fe%2BK%2Fey~%22%C3%BC%CF%BF9x".into(),
            "sk%2dFe%2bK%2fey%7e%22%c3%bc%cf%bf9x".into(),
            key.replace('/', "\\/"),
            key.replace('"', "\\\""),
            key.to_owned(),
        ];
        for p in packed {
            assert_eq!(mask.text(&format!("a {p} b")), "a … b");
        }
        for before in ["", "B", "Be", "Bearer ", "user:"] {
            for after in ["", "!", "!!", "!!!"] {
                let whole = format!("{before}{key}{after}");
                for packed in [STANDARD.encode(&whole), URL_SAFE.encode(&whole)] {
                    let told = mask.text(&format!("a {packed} b"));
                    // What is left are the letters at its ends, which hold no whole byte of the key.
                    let rest: usize = told.len() - "a … b".len();
                    assert!(
                        told.contains('…') && rest <= (before.len() + after.len() + 4) * 4 / 3 + 2,
                        "{whole}: {told}"
                    );
                }
            }
        }
        let words = "https://h/a%2Fb?q=c2stRm9v+dead/beef~";
        assert_eq!(mask.text(words), words);
    }

    #[test]
    fn a_secret_is_hidden_wherever_the_stream_cuts_it() {
        let mask = Mask::of("http://h", "sk-sk-secret-é");
        let whole = "a sk-sk-sk-secret-é b sk-s c sk-sk-secret-é sk-sk-secret";
        let want = "a sk-… b sk-s c … …";
        for size in 1..whole.chars().count() {
            let chars: Vec<char> = whole.chars().collect();
            let mut stream = mask.stream();
            let mut out: String = chars.chunks(size).map(|c| stream.push(&c.iter().collect::<String>())).collect();
            out.push_str(&stream.finish());
            assert_eq!(out, want, "in pieces of {size}");
        }
    }
}
