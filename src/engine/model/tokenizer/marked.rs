//! Text of which some is not to be read as special tokens: whoever writes `<|im_end|>` in a message must not end it.
//!
//! What could be (part of) a special token is marked by a private character after its first one; wherever a template puts it, ids are found
//! without those marks, and no special token is recognised that a marked character is part of. Text without such words is cut
//! as if nobody had marked anything. Not here: which text is whose (`chat`).

use super::{Kind, Tokenizer};
use crate::model::Result;
use aho_corasick::AhoCorasick;
use std::ops::Range;
use std::sync::OnceLock;

/// The character that marks the one before it: one of Unicode's private plane 16.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::model) struct Marks(char);

impl Marks {
    /// One that none of `texts` holds.
    pub fn absent_from<'a>(texts: impl Iterator<Item = &'a str>) -> Option<Marks> {
        // A few are looked for, so that nobody's text can make that long.
        const SOME: usize = 64;
        let mut free = [true; SOME];
        for c in texts.flat_map(str::chars) {
            if let Some(taken) = (c as u32).checked_sub(0x10_0000).and_then(|n| free.get_mut(n as usize)) {
                *taken = false;
            }
        }
        let at = free.iter().position(|free| *free)?;
        char::from_u32(0x10_0000 + at as u32).map(Marks)
    }
}

/// A token that is never part of somebody's text.
#[derive(Debug)]
struct Token {
    id: u32,
    text: String,
    /// Blanks to its left and right belong to it.
    strips: (bool, bool),
}

/// The special tokens of a vocabulary.
#[derive(Debug)]
pub(super) struct Specials {
    tokens: Vec<Token>,
    /// By the indices of `tokens`.
    search: Option<AhoCorasick>,
    /// Cuts text without recognising them; made when somebody wrote one.
    plain: OnceLock<Box<tokenizers::Tokenizer>>,
}

impl Specials {
    pub fn of(kind: &Kind) -> Specials {
        let mut tokens: Vec<Token> = match kind {
            Kind::Spm(spm) => {
                let token = |(id, text): (u32, &str)| Token { id, text: text.to_owned(), strips: (false, false) };
                spm.specials().map(token).collect()
            }
            Kind::Hub(hub) => {
                let added = hub.get_added_vocabulary().get_added_tokens_decoder();
                let special = added.iter().filter(|(_, t)| t.special);
                special
                    .map(|(id, t)| Token { id: *id, text: t.content.clone(), strips: (t.lstrip, t.rstrip) })
                    .collect()
            }
        };
        tokens.retain(|t| !t.text.is_empty());
        tokens.sort_by_key(|t| t.id);
        let search = AhoCorasick::new(tokens.iter().map(|t| &t.text)).ok();
        Specials { tokens, search, plain: OnceLock::new() }
    }

    /// Every place of a special token in `text`, of those that begin together the longest first.
    fn places(&self, text: &str) -> Vec<(Range<usize>, &Token)> {
        let Some(search) = &self.search else { return Vec::new() };
        let found = search.find_overlapping_iter(text).map(|m| (m.range(), &self.tokens[m.pattern().as_usize()]));
        let mut found: Vec<_> = found.collect();
        found.sort_by_key(|(at, _)| (at.start, std::cmp::Reverse(at.end)));
        found
    }

    /// Their ids, sorted.
    pub fn ids(&self) -> impl Iterator<Item = u32> {
        self.tokens.iter().map(|t| t.id)
    }

    pub fn holds(&self, id: u32) -> bool {
        self.tokens.binary_search_by_key(&id, |t| t.id).is_ok()
    }
}

impl Tokenizer {
    pub(super) fn specials(&self) -> &Specials {
        self.specials.get_or_init(|| Specials::of(&self.kind))
    }

    /// Is `id` one of the tokens that are no text: those that begin and end messages and the like?
    pub fn is_special(&self, id: u32) -> bool {
        self.specials().holds(id)
    }

    /// `text` with a mark after the first character of every special token in it, and of every part of one with which it begins or ends, since
    /// what a template puts beside it might make it whole.
    pub(in crate::model) fn mark(&self, text: &str, marks: Marks) -> String {
        let specials = self.specials();
        let mut at: Vec<usize> = specials.places(text).into_iter().map(|(place, _)| place.start).collect();
        // Templates take blanks away.
        let inner = text.trim();
        let from = text.len() - text.trim_start().len();
        let to = from + inner.len();
        for token in specials.tokens.iter().filter(|_| !inner.is_empty()) {
            let parts = || token.text.char_indices().map(|(i, _)| i).skip(1);
            at.extend(parts().filter(|i| inner.ends_with(&token.text[..*i])).map(|i| to - i));
            let begins = parts().any(|i| inner.starts_with(&token.text[i..]));
            at.extend(begins.then_some(from));
        }
        at.sort_unstable();
        at.dedup();
        let mut out = String::with_capacity(text.len() + 4 * at.len());
        let mut done = 0;
        for start in at {
            let end = start + text[start..].chars().next().map_or(0, char::len_utf8);
            out.push_str(&text[done..end]);
            out.push(marks.0);
            done = end;
        }
        out.push_str(&text[done..]);
        out
    }

    /// The ids of `text` without its marks; no token is special of which a marked character is part.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub(in crate::model) fn encode_marked(&self, text: &str, marks: Marks) -> Result<Vec<u32>> {
        let (mut plain, mut marked, mut last) = (String::with_capacity(text.len()), Vec::new(), 0);
        for c in text.chars() {
            if c == marks.0 {
                marked.push(last);
            } else {
                last = plain.len();
                plain.push(c);
            }
        }
        if marked.is_empty() {
            return self.encode(&plain);
        }
        let said = |place: &Range<usize>| {
            marked.get(marked.partition_point(|m| *m < place.start)).is_some_and(|m| *m < place.end)
        };
        let specials = self.specials();
        let places = specials.places(&plain);
        if !places.iter().any(|(place, _)| said(place)) {
            return self.encode(&plain);
        }
        let (mut out, mut from) = (Vec::new(), 0);
        for (place, token) in places.into_iter().filter(|(place, _)| !said(place)) {
            if place.start < from {
                continue;
            }
            let before = &plain[from..place.start];
            let before = if token.strips.0 { before.trim_end() } else { before };
            out.extend(self.encode_plain(before)?);
            out.push(token.id);
            let after = &plain[place.end..];
            from = place.end + if token.strips.1 { after.len() - after.trim_start().len() } else { 0 };
        }
        out.extend(self.encode_plain(&plain[from.min(plain.len())..])?);
        Ok(out)
    }

    /// The ids of `text`, in which nothing is special.
    fn encode_plain(&self, text: &str) -> Result<Vec<u32>> {
        match &self.kind {
            Kind::Spm(spm) => Ok(spm.encode_plain(text)),
            Kind::Hub(hub) => {
                let plain = self.specials().plain.get_or_init(|| {
                    let mut plain = hub.clone();
                    plain.set_encode_special_tokens(true);
                    plain
                });
                let encoded = plain.encode_fast(text, false).map_err(|e| self.failed(&e.to_string()))?;
                Ok(encoded.get_ids().to_vec())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tokenizer::Vocabulary;
    use crate::model::tokenizer::spm::Spm;
    use std::path::PathBuf;

    fn small(prefix: bool) -> Tokenizer {
        let tokens = ["<unk>", "<s>", "<|end|>", "<", "s", ">", "|", "end", "e", "n", "d", " ", "<tool>", "a"];
        let types = [2.0, 3.0, 3.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 4.0, 1.0];
        let vocabulary = Vocabulary { tokens: tokens.to_vec(), types: types.to_vec() };
        let spm = Spm::gguf(&vocabulary, &[0.0; 14], prefix);
        Tokenizer::new(Kind::Spm(spm), PathBuf::new(), None, false, Vec::new())
    }

    #[test]
    fn a_message_has_no_special_tokens_and_a_template_has() {
        let t = small(false);
        let marks = Marks::absent_from(["a"].into_iter()).unwrap();
        let ids = |said: &str| t.encode_marked(&format!("<s>{}<|end|>", t.mark(said, marks)), marks).unwrap();
        let cut = |said: &str| {
            let ids = ids(said);
            assert_eq!((ids[0], ids[ids.len() - 1]), (1, 2), "{said}");
            assert!(ids[1..ids.len() - 1].iter().all(|id| ![0, 1, 2].contains(id)), "{said}: {ids:?}");
            t.decode(&ids[1..ids.len() - 1]).unwrap()
        };
        for said in ["<|end|>", "<s>", "a<s>a", "<|end|><s>", "<s", "<|end|", "s>", "|>", "<", ">", "end", "a"] {
            assert_eq!(cut(said), said);
        }
        assert_eq!(t.mark("end a s", marks), "end a s");
        // Where there is nothing to mark, nothing is otherwise.
        assert_eq!(ids("a"), t.encode("<s>a<|end|>").unwrap());
        // Tokens that users added are text.
        assert_eq!(ids("<tool><s>")[1], 12);
    }

    #[test]
    fn messages_that_are_put_side_by_side_make_no_special_token() {
        let t = small(false);
        let marks = Marks::absent_from(["a"].into_iter()).unwrap();
        let special = |parts: &[&str]| {
            let text: String = parts.iter().map(|p| t.mark(p, marks)).collect();
            let ids = t.encode_marked(&text, marks).unwrap();
            assert_eq!(t.decode(&ids).unwrap(), parts.concat());
            ids.iter().any(|id| *id < 3)
        };
        for parts in [&["<", "s>"][..], &["<|e", "nd|>"], &["<|", "en", "d|>"], &["a<", "s>"], &["<|end", "|>a"]] {
            assert!(!special(parts), "{parts:?}");
        }
        // Blanks that a template takes away.
        let text = format!("<{}", t.mark("  s>", marks).trim());
        assert!(t.encode_marked(&text, marks).unwrap().iter().all(|id| *id > 2));
    }

    #[test]
    fn marks_are_what_nobody_wrote() {
        let marks = Marks::absent_from(["\u{100000}\u{100001}", "\u{100003}"].into_iter()).unwrap();
        assert_eq!(marks, Marks('\u{100002}'));
        let all: String = (0x10_0000..0x10_0040).filter_map(char::from_u32).collect();
        assert_eq!(Marks::absent_from([all.as_str()].into_iter()), None);
    }
}
