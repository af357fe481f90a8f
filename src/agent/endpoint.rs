//! Where the language model is: base URL, key and model name, from settings or the environment.

use crate::mask;
use std::fmt;

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
}

impl Endpoint {
    /// OpenAI's own address, used when there is a key but no base URL.
    pub const OPENAI: &'static str = "https://api.openai.com/v1";

    pub fn new(base_url: &str, api_key: &str, model: Option<&str>) -> Endpoint {
        let base = base_url.trim().trim_end_matches('/');
        let base = base.strip_suffix("/chat/completions").unwrap_or(base);
        let base = if base.contains("://") { base.to_owned() } else { format!("http://{base}") };
        let model = model.map(str::trim).filter(|m| !m.is_empty()).map(str::to_owned);
        Endpoint { base_url: base, api_key: api_key.trim().to_owned(), model }
    }

    /// From `OPENAI_BASE_URL` and `OPENAI_API_KEY`; `None` when neither is set. `base_url` and `model` (flags, settings)
    /// win over the environment.
    pub fn from_env(base_url: Option<&str>, model: Option<&str>) -> Option<Endpoint> {
        let get = |name: &str| std::env::var(name).ok().filter(|v| !v.trim().is_empty());
        Endpoint::choose(base_url, model, get("OPENAI_BASE_URL"), get("OPENAI_API_KEY"))
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

    /// Whether the key can travel in a header at all.
    pub(super) fn key_is_sendable(&self) -> bool {
        self.api_key.chars().all(|c| c.is_ascii_graphic())
    }
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
