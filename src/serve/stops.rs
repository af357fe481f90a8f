//! [`Stops`]: the words at which an answer ends, and which never get out, not even in part.

/// Holds back what may be the beginning of a stop word.
#[derive(Debug, Clone, Default)]
pub struct Stops {
    words: Vec<String>,
    held: String,
}

impl Stops {
    /// Words that are not empty.
    pub fn new(words: Vec<String>) -> Stops {
        Stops { words, held: String::new() }
    }

    /// What can be said once `text` has come, and whether a stop word ends it there.
    pub fn push(&mut self, text: &str) -> (String, bool) {
        self.held.push_str(text);
        let found = self.words.iter().filter_map(|w| self.held.find(w.as_str())).min();
        if let Some(at) = found {
            self.held.truncate(at);
            return (std::mem::take(&mut self.held), true);
        }
        // The longest end that begins one of them.
        let begins = |at: &usize| self.words.iter().any(|w| w.starts_with(&self.held[*at..]));
        let longest = self.words.iter().map(String::len).max().unwrap_or(0);
        let from = self.held.len().saturating_sub(longest);
        let mut ends = self.held.char_indices().map(|(at, _)| at).filter(|at| *at >= from);
        let rest = ends.find(begins).map_or_else(String::new, |at| self.held.split_off(at));
        (std::mem::replace(&mut self.held, rest), false)
    }

    /// What was held back, when nothing more comes.
    pub fn rest(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `text` piece by piece, of every size: what was said, and whether it was stopped.
    fn said(words: &[&str], text: &str) -> (String, bool) {
        let mut all = Vec::new();
        for size in 1..=text.chars().count().max(1) {
            let mut stops = Stops::new(words.iter().map(|w| (*w).to_owned()).collect());
            let (mut out, mut stopped) = (String::new(), false);
            for piece in text.chars().collect::<Vec<_>>().chunks(size) {
                let (new, end) = stops.push(&piece.iter().collect::<String>());
                out.push_str(&new);
                for w in words {
                    assert!(!out.contains(w), "`{out}` of `{text}`");
                }
                if end {
                    stopped = true;
                    break;
                }
            }
            if !stopped {
                out.push_str(&stops.rest());
            }
            all.push((out, stopped));
        }
        assert!(all.iter().all(|a| *a == all[0]), "{all:?}");
        all.swap_remove(0)
    }

    #[test]
    fn nothing_of_a_stop_word_gets_out() {
        for (words, text, out, stopped) in [
            (&["\n\n"][..], "a\nb\n\nc", "a\nb", true),
            (&["END"], "the E and EN", "the E and EN", false),
            (&["END"], "EENDx", "E", true),
            (&["aab"], "aaab", "a", true),
            (&["é東", "x"], "aéb東é東", "aéb東", true),
            (&["b", "c"], "abc", "a", true),
            (&[], "abc", "abc", false),
            (&["abc"], "", "", false),
            (&["a"], "a", "", true),
        ] {
            assert_eq!(said(words, text), (out.to_owned(), stopped), "{words:?} {text}");
        }
    }

    #[test]
    fn what_begins_a_stop_word_waits_and_the_rest_does_not() {
        let mut stops = Stops::new(vec!["<end>".into()]);
        assert_eq!(stops.push("hello <e"), ("hello ".into(), false));
        assert_eq!(stops.push("x"), ("<ex".into(), false));
        assert_eq!(stops.push("<en"), (String::new(), false));
        assert_eq!(stops.rest(), "<en");
    }
}
