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
const SECRET_NAMES: [&str; 9] =
    ["key", "token", "secret", "password", "passwd", "pwd", "sig", "signature", "authorization"];

/// An address as it may be shown: no user, no password, no values of parameters that are keys.
pub fn address(url: &str) -> String {
    match url.contains("://") {
        true => addresses(url).into_owned(),
        // As it is typed: `user:pw@host/v1`.
        false => addresses(&format!("://{url}"))["://".len()..].to_owned(),
    }
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
        secrets.sort_by_key(|s| std::cmp::Reverse(s.len()));
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
