//! Where the language model is: base URL, key and model name, from settings or the environment; and what may be sent
//! there.
//!
//! Invariants: an [`Endpoint`] is made of what the user said alone (the caller has asked `config`); the key and the
//! prompts go to its [`Origin`] and nowhere else, whatever that answers.

use super::LlmError;
use crate::config::{self, Origin, Sources};
use crate::mask;
use reqwest::redirect::Policy;
use std::fmt;

/// Redirects that are followed on one origin: a missing slash, an old path; more is a loop.
const MOST_REDIRECTS: usize = 4;

/// An OpenAI-compatible endpoint. `Debug` and `Display` never show the key, nor what stands for one in the
/// address.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Up to and including `/v1`, without a trailing slash.
    pub base_url: String,
    /// Empty: none is sent (local servers).
    pub api_key: String,
    /// `None`: the server is asked for its models and the first is used.
    pub model: Option<String>,
    /// The user trusts the network between here and there: plain http may leave this machine.
    pub in_the_clear: bool,
}

impl Endpoint {
    /// OpenAI's own address, used when there is a key but no base URL.
    pub const OPENAI: &'static str = "https://api.openai.com/v1";

    pub fn new(base_url: &str, api_key: &str, model: Option<&str>) -> Endpoint {
        let base = base_url.trim().trim_end_matches('/');
        let base = base.strip_suffix("/chat/completions").unwrap_or(base);
        let model = model.map(str::trim).filter(|m| !m.is_empty()).map(str::to_owned);
        Endpoint { base_url: whole(base), api_key: api_key.trim().to_owned(), model, in_the_clear: false }
    }

    /// From `OPENAI_BASE_URL` and `OPENAI_API_KEY`; `None` when neither is set. `base_url` and `model` (flags, settings)
    /// win over the environment. Whom the user trusts is read from the own configuration each time, so that an answer to
    /// [`LlmError::Clear`] counts for a host that runs already.
    pub fn from_env(base_url: Option<&str>, model: Option<&str>) -> Option<Endpoint> {
        let get = |name: &str| std::env::var(name).ok().filter(|v| !v.trim().is_empty());
        let endpoint = Endpoint::choose(base_url, model, get("OPENAI_BASE_URL"), get("OPENAI_API_KEY"))?;
        let user = config::load(&Sources { project: None, ..Sources::of_process(Vec::new()) }).settings;
        Some(endpoint.trusting(&user.llm_trusted))
    }

    /// Beside the usual one, whose key it has only where it is at the same origin: what was given for one server is nobody else's.
    pub fn beside(self, usual: Option<&Endpoint>) -> Endpoint {
        let same = usual.is_some_and(|u| Origin::of(&u.base_url) == Origin::of(&self.base_url));
        if same { self } else { Endpoint { api_key: String::new(), ..self } }
    }

    /// The endpoint, for a user who trusts these origins.
    pub fn trusting(self, trusted: &[Origin]) -> Endpoint {
        let in_the_clear = Origin::of(&self.base_url).is_some_and(|o| trusted.contains(&o));
        Endpoint { in_the_clear, ..self }
    }

    fn choose(
        base_url: Option<&str>,
        model: Option<&str>,
        env_url: Option<String>,
        env_key: Option<String>,
    ) -> Option<Endpoint> {
        let url = base_url.map(str::to_owned).filter(|u| !u.trim().is_empty()).or(env_url);
        let url = match (url, &env_key) {
            (Some(u), _) => u,
            (None, Some(_)) => Endpoint::OPENAI.to_owned(),
            (None, None) => return None,
        };
        Some(Endpoint::new(&url, env_key.as_deref().unwrap_or(""), model))
    }

    /// Whether anything may be sent there.
    ///
    /// # Errors
    /// The key cannot travel in a header; the address is none; or everybody between here and there could read along.
    pub fn check(&self) -> Result<(), LlmError> {
        if !self.api_key.chars().all(|c| c.is_ascii_graphic()) {
            return Err(LlmError::Key);
        }
        match Origin::of(&self.base_url) {
            None => Err(LlmError::Address),
            Some(origin) if origin.is_private() || self.in_the_clear => Ok(()),
            Some(origin) => Err(LlmError::Clear { origin: origin.to_string() }),
        }
    }
}

/// An address without a scheme with the one that fits: plain http is for this machine alone.
fn whole(base: &str) -> String {
    if base.contains("://") {
        return base.to_owned();
    }
    let plain = format!("http://{base}");
    if Origin::of(&plain).is_some_and(|o| o.is_local()) { plain } else { format!("https://{base}") }
}

/// A redirect is followed on the same origin only. Elsewhere neither the key nor the question nor the organisation's name
/// has any business, whoever answers from here; the refusal is then the answer ([`super::error::ApiKind::Elsewhere`]).
pub(super) fn redirects() -> Policy {
    Policy::custom(|attempt| {
        let asked = attempt.previous().first().map(reqwest::Url::origin);
        if asked != Some(attempt.url().origin()) || attempt.previous().len() > MOST_REDIRECTS {
            return attempt.stop();
        }
        attempt.follow()
    })
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("base_url", &mask::address(&self.base_url))
            .field("api_key", &if self.api_key.is_empty() { "none" } else { "set" })
            .field("model", &self.model)
            .finish()
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.model {
            Some(m) => write!(f, "{m} at {}", mask::address(&self.base_url)),
            None => f.write_str(&mask::address(&self.base_url)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_normalised() {
        let url = |u| Endpoint::new(u, "", None).base_url;
        assert_eq!(url("http://localhost:11434/v1/"), "http://localhost:11434/v1");
        assert_eq!(url("localhost:8000/v1"), "http://localhost:8000/v1");
        assert_eq!(url("https://a.b/v1/chat/completions"), "https://a.b/v1");
        assert_eq!(url("gpu-box:8000/v1"), "https://gpu-box:8000/v1", "nothing goes over plain http unasked");
    }

    #[test]
    fn plain_http_stays_on_this_machine_unless_asked() {
        let of = |url: &str| Endpoint::new(url, "sk-1", None);
        for fine in ["http://127.0.0.1:8000/v1", "localhost:1/v1", "http://[::1]/v1", "https://api.example/v1"] {
            assert_eq!(of(fine).check(), Ok(()), "{fine}");
        }
        for open in
            ["http://gpu-box:8000/v1", "http://127.0.0.1.evil.example/v1", "http://user:pw@10.0.0.2/v1?api-key=k"]
        {
            let refused = of(open).check().unwrap_err();
            assert!(matches!(refused, LlmError::Clear { .. }), "{open}: {refused}");
            let text = refused.to_string();
            assert!(text.contains("PARING_LLM_TRUSTED") && !text.contains("pw") && !text.contains("=k"), "{text}");
        }
        let trusted = [Origin::of("http://gpu-box:8000").unwrap()];
        assert_eq!(of("http://gpu-box:8000/v1").trusting(&trusted).check(), Ok(()));
        assert!(of("http://gpu-box:8001/v1").trusting(&trusted).check().is_err());
        assert!(matches!(of("ftp://h/v1").check(), Err(LlmError::Address)));
    }

    #[test]
    fn flags_win_and_a_key_alone_means_openai() {
        assert_eq!(Endpoint::choose(None, None, None, None), None);
        let e = Endpoint::choose(None, Some(" "), None, Some("k".into())).unwrap();
        assert_eq!((e.base_url.as_str(), e.model), (Endpoint::OPENAI, None));
        let e = Endpoint::choose(Some("http://x/v1"), Some("m"), Some("http://y/v1".into()), None).unwrap();
        assert_eq!((e.base_url.as_str(), e.model.as_deref()), ("http://x/v1", Some("m")));
    }

    #[test]
    fn the_key_is_never_shown() {
        let e = Endpoint::new("http://me:secret@x/v1?api-key=secret", "sk-secret", None);
        assert!(!format!("{e:?} {e}").contains("secret"));
    }
}
