//! SentencePiece's byte pairs (Kudo and Richardson 2018) as Llama's vocabularies have them: the pair whose union has the best score
//! is joined first, and what has no token becomes bytes.
//!
//! As in SentencePiece's `bpe_model.cc`, llama.cpp and llama2.c; equal scores join from the left.

use super::Vocabulary;
use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

/// What stands for a space in most vocabularies.
pub(super) const SPACE: &str = "\u{2581}";

/// A vocabulary.
#[derive(Debug, Clone)]
pub(super) struct Spm {
    tokens: Vec<String>,
    scores: Vec<f32>,
    ids: HashMap<String, u32>,
    /// The id of every byte, where there is one.
    bytes: Vec<Option<u32>>,
    unknown: u32,
    /// Spaces are written so.
    space: &'static str,
    /// Text begins with a space whether it does or not.
    prefix: bool,
    /// Tokens that are searched for as they stand, by their first byte and the longest first: a text is long, and there may be
    /// thousands of them.
    whole: HashMap<u8, Vec<Whole>>,
}

/// A token that is searched for as it stands.
#[derive(Debug, Clone)]
struct Whole {
    text: String,
    id: u32,
    /// It is no text, as those that users added are.
    special: bool,
}

/// A run of text between its neighbours; empty ones were joined to those before them.
struct Symbol {
    start: usize,
    end: usize,
    before: Option<usize>,
    after: Option<usize>,
}

/// Two neighbours that make a token.
#[derive(PartialEq)]
struct Pair {
    score: f32,
    left: usize,
    right: usize,
    /// Bytes of both when they were put forward: other lengths later mean other symbols.
    len: usize,
}

impl Eq for Pair {}

impl Ord for Pair {
    fn cmp(&self, other: &Pair) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Pair) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Spm {
    /// That of a GGUF file; as many scores as tokens.
    pub fn gguf(v: &Vocabulary<'_>, scores: &[f64], prefix: bool) -> Spm {
        let tokens: Vec<String> = v.tokens.iter().map(|t| (*t).to_owned()).collect();
        let whole = v.whole().map(|(id, token, special)| Whole { text: token.to_owned(), id, special }).collect();
        let unknown = (0u32..).zip(&v.types).find(|(_, kind)| **kind == 2.0).map_or(0, |(id, _)| id);
        Spm::new(tokens, scores.iter().map(|s| *s as f32).collect(), whole, unknown, SPACE, prefix)
    }

    /// A `tok*.bin` of llama2.c: the longest token's length, then score, length and bytes of each. Ids 0, 1 and 2 are the unknown
    /// token, beginning and end; the bytes follow.
    ///
    /// # Errors
    /// What is damaged, in words.
    pub fn llama2(bytes: &[u8]) -> Result<Spm, String> {
        let short = || "it ends inside a token".to_owned();
        let (_, mut rest) = bytes.split_first_chunk::<4>().ok_or_else(short)?;
        let (mut tokens, mut scores) = (Vec::new(), Vec::new());
        while !rest.is_empty() {
            let (score, after) = rest.split_first_chunk::<4>().ok_or_else(short)?;
            let (len, after) = after.split_first_chunk::<4>().ok_or_else(short)?;
            let len =
                usize::try_from(i32::from_le_bytes(*len)).map_err(|_| "a token has a negative length".to_owned())?;
            let (token, after) = after.split_at_checked(len).ok_or_else(short)?;
            let token = std::str::from_utf8(token).map_err(|_| format!("token {} is not UTF-8", tokens.len()))?;
            tokens.push(token.to_owned());
            scores.push(f32::from_le_bytes(*score));
            rest = after;
        }
        Ok(Spm::new(tokens, scores, Vec::new(), 0, " ", true))
    }

    fn new(
        tokens: Vec<String>,
        scores: Vec<f32>,
        mut all_whole: Vec<Whole>,
        unknown: u32,
        space: &'static str,
        prefix: bool,
    ) -> Spm {
        // Of equal tokens the first counts.
        let mut ids = HashMap::with_capacity(tokens.len());
        (0u32..).zip(&tokens).for_each(|(id, token)| {
            ids.entry(token.clone()).or_insert(id);
        });
        let bytes = (0..=255u8).map(|b| ids.get(&format!("<0x{b:02X}>")).copied()).collect();
        all_whole.sort_by_key(|w| std::cmp::Reverse(w.text.len()));
        let mut whole: HashMap<u8, Vec<Whole>> = HashMap::new();
        for token in all_whole {
            if let Some(&first) = token.text.as_bytes().first() {
                whole.entry(first).or_default().push(token);
            }
        }
        Spm { tokens, scores, ids, bytes, unknown, space, prefix, whole }
    }

    /// Tokens and their scores, by id.
    pub fn pieces(&self) -> (&[String], &[f32]) {
        (&self.tokens, &self.scores)
    }

    pub fn id(&self, token: &str) -> Option<u32> {
        self.ids.get(token).copied()
    }

    /// Tokens that are no text.
    pub fn specials(&self) -> impl Iterator<Item = (u32, &str)> {
        self.whole.values().flatten().filter(|w| w.special).map(|w| (w.id, w.text.as_str()))
    }

    pub fn encode(&self, text: &str) -> Vec<u32> {
        self.encoded(text, true)
    }

    /// As [`Spm::encode`], without recognising what is no text.
    pub fn encode_plain(&self, text: &str) -> Vec<u32> {
        self.encoded(text, false)
    }

    fn encoded(&self, text: &str, special: bool) -> Vec<u32> {
        let mut out = Vec::new();
        let (mut rest, mut from) = (text, 0);
        while from < rest.len() {
            let here = &rest[from..];
            let with_first = here.as_bytes().first().and_then(|first| self.whole.get(first));
            let stands = |w: &&Whole| (special || !w.special) && here.starts_with(w.text.as_str());
            match with_first.and_then(|all| all.iter().find(stands)) {
                Some(token) => {
                    self.piece(&rest[..from], &mut out);
                    out.push(token.id);
                    rest = &here[token.text.len()..];
                    from = 0;
                }
                None if self.whole.is_empty() => break,
                None => from += here.chars().next().map_or(1, char::len_utf8),
            }
        }
        self.piece(rest, &mut out);
        out
    }

    /// Text without tokens that stand as they are.
    fn piece(&self, text: &str, out: &mut Vec<u32>) {
        if text.is_empty() {
            return;
        }
        let text = format!("{}{text}", if self.prefix { " " } else { "" }).replace(' ', self.space);
        let mut symbols: Vec<Symbol> = Vec::with_capacity(text.len());
        for (start, c) in text.char_indices() {
            let i = symbols.len();
            let (before, end) = (i.checked_sub(1), start + c.len_utf8());
            symbols.push(Symbol { start, end, before, after: (end < text.len()).then_some(i + 1) });
        }
        let mut queue = BinaryHeap::new();
        (1..symbols.len()).for_each(|right| self.put(&text, &symbols, right - 1, right, &mut queue));
        while let Some(Pair { left, right, len, .. }) = queue.pop() {
            let (start, end) = (symbols[left].start, symbols[right].end);
            let empty = symbols[left].start == symbols[left].end || symbols[right].start == symbols[right].end;
            // One of them was joined to another since.
            if empty || end - start != len || symbols[left].after != Some(right) {
                continue;
            }
            let after = symbols[right].after;
            symbols[left].end = end;
            symbols[left].after = after;
            symbols[right].start = end;
            if let Some(next) = after {
                symbols[next].before = Some(left);
                self.put(&text, &symbols, left, next, &mut queue);
            }
            if let Some(before) = symbols[left].before {
                self.put(&text, &symbols, before, left, &mut queue);
            }
        }
        let mut at = Some(0);
        while let Some(i) = at {
            let symbol = &symbols[i];
            self.ids_of(&text[symbol.start..symbol.end], out);
            at = symbol.after;
        }
    }

    /// Puts a pair forward, if it makes a token.
    fn put(&self, text: &str, symbols: &[Symbol], left: usize, right: usize, queue: &mut BinaryHeap<Pair>) {
        let (start, end) = (symbols[left].start, symbols[right].end);
        if let Some(&id) = self.ids.get(&text[start..end]) {
            queue.push(Pair { score: self.scores[id as usize], left, right, len: end - start });
        }
    }

    /// A token, or the bytes of what is none.
    fn ids_of(&self, text: &str, out: &mut Vec<u32>) {
        match self.ids.get(text) {
            Some(id) => out.push(*id),
            None => out.extend(text.bytes().map(|b| self.bytes[usize::from(b)].unwrap_or(self.unknown))),
        }
    }

    pub fn decode(&self, ids: &[u32]) -> String {
        let mut bytes = Vec::new();
        for token in ids.iter().filter_map(|id| self.tokens.get(*id as usize)) {
            let byte = token.strip_prefix("<0x").and_then(|t| t.strip_suffix('>'));
            match byte.and_then(|b| u8::from_str_radix(b, 16).ok()) {
                Some(b) => bytes.push(b),
                None => bytes.extend(token.replace(self.space, " ").bytes()),
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Spm {
        // The worse a score, the later it joins.
        let tokens = ["<unk>", "<s>", "</s>", "<0xC3>", "<0xA9>", "▁", "a", "b", "ab", "▁a", "ba", "aba"];
        let scores = [0.0, 0.0, 0.0, 0.0, 0.0, -9.0, -9.0, -9.0, -1.0, -2.0, -3.0, -4.0];
        let types = [2.0, 3.0, 3.0, 6.0, 6.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
        Spm::gguf(&Vocabulary { tokens: tokens.to_vec(), types: types.to_vec() }, &scores, true)
    }

    #[test]
    fn the_best_pair_joins_first_and_ties_from_the_left() {
        let spm = small();
        let words = |text: &str| -> Vec<String> {
            spm.encode(text).iter().map(|id| spm.tokens[*id as usize].clone()).collect()
        };
        // `ab` beats `▁a`.
        assert_eq!(words("ab"), ["▁", "ab"]);
        assert_eq!(words("aba"), ["▁", "aba"]);
        assert_eq!(words("a b"), ["▁a", "▁", "b"]);
        assert_eq!(words("bab"), ["▁", "b", "ab"]);
        assert_eq!(words("é"), ["▁", "<0xC3>", "<0xA9>"]);
        assert_eq!(words("x"), ["▁", "<unk>"]);
        assert_eq!(words("a<s>a"), ["▁a", "<s>", "▁a"]);
        // A text that is parted by unknown tokens has them as one each.
        assert_eq!(words("a<unk>a"), ["▁a", "<unk>", "▁a"]);
        assert!(spm.encode("").is_empty());
        assert_eq!(spm.decode(&spm.encode("ab é")), " ab é");
    }

    #[test]
    fn of_tokens_that_begin_alike_the_longest_stands() {
        let tokens = ["<unk>", "<a>", "<a><b>", "é", "éa", ""];
        let whole = Vocabulary { tokens: tokens.to_vec(), types: vec![2.0, 4.0, 4.0, 4.0, 4.0, 3.0] };
        let spm = Spm::gguf(&whole, &[0.0; 6], false);
        assert_eq!(spm.encode("<a><a><b>éaé"), [1, 2, 4, 3]);
        // Another letter with the same first byte.
        assert_eq!(spm.encode("è"), [0, 0]);
    }

    #[test]
    fn a_file_of_llama2_cut_anywhere_is_refused_or_read() {
        let mut bytes = 3i32.to_le_bytes().to_vec();
        for (i, token) in ["<unk>", "a", "b"].iter().enumerate() {
            bytes.extend((-(i as f32)).to_le_bytes());
            bytes.extend((token.len() as i32).to_le_bytes());
            bytes.extend(token.as_bytes());
        }
        let whole = Spm::llama2(&bytes).unwrap();
        assert_eq!(whole.tokens, ["<unk>", "a", "b"]);
        let ends = [4, 17, 26, 35];
        for n in 0..=bytes.len() {
            assert_eq!(Spm::llama2(&bytes[..n]).is_ok(), ends.contains(&n), "{n}");
        }
        let mut negative = bytes.clone();
        negative[8..12].copy_from_slice(&(-1i32).to_le_bytes());
        assert!(Spm::llama2(&negative).unwrap_err().contains("negative"));
    }
}
