//! Diagnostics of configuration: every finding, with where it was and the nearest known name.

use std::fmt;

/// One finding. Loading goes on with the lower layer's value; the caller decides whether to stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// A path, `environment`, `flags` or `built-in`.
    pub origin: String,
    /// Dotted key, such as `screen.theme`; empty for a file as a whole.
    pub key: String,
    pub message: String,
    /// What to do.
    pub hint: String,
}

impl Diagnostic {
    pub fn new(
        origin: &str,
        key: impl Into<String>,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> Diagnostic {
        Diagnostic { origin: origin.to_owned(), key: key.into(), message: message.into(), hint: hint.into() }
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.origin)?;
        if !self.key.is_empty() {
            write!(f, "`{}`: ", self.key)?;
        }
        write!(f, "{}; hint: {}", self.message, self.hint)
    }
}

/// The known name nearest to `name`, if any is near.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|k| (strsim::damerau_levenshtein(name, k), k))
        .filter(|(d, k)| *d <= (k.len().max(name.len()) / 3).max(1))
        .min_by_key(|(d, _)| *d)
        .map(|(_, k)| k)
}

/// "did you mean `x`?" or, when nothing is near, the list.
pub fn suggestion<'a>(name: &str, known: impl IntoIterator<Item = &'a str> + Clone) -> String {
    match nearest(name, known.clone()) {
        Some(k) => format!("did you mean `{k}`?"),
        None => {
            let all: Vec<&str> = known.into_iter().collect();
            format!("one of {}", all.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_near_name_only() {
        let known = ["screen.theme", "screen.colors", "llm.model"];
        assert_eq!(nearest("screen.teme", known), Some("screen.theme"));
        assert_eq!(nearest("zzz", known), None);
        assert_eq!(suggestion("llm.modle", known), "did you mean `llm.model`?");
        assert!(suggestion("zzz", known).starts_with("one of screen.theme"));
    }
}
