//! Text as windows of tokens for language models.
//!
//! A file of plain text (UTF-8), tokenized as one piece without a token before it; or token ids as they are (`.u16`, little-endian).
//! Where lines of `<|endoftext|>` part documents and the vocabulary has another token for that, each begins with that token instead.
//! Documents of a JSONL or Parquet file (`documents`) begin with the token that begins a text, where the vocabulary has one; else they
//! are joined by two newlines and tokenized as one piece.
//! Windows follow one another from the start and do not overlap; what is left at the end is not used. Which tokens of a window count
//! is a [`Counted`], since published figures differ in it. Not here: vocabularies (`model::tokenizer`), scores (`task`).

use super::documents::{Kind, bad};
use super::error::TEXTS;
use super::synthetic::Split;
use super::{DataCard, DataError, Dataset, Items, Joined, file_name, stories};
use crate::files;
use crate::model::Tokenizer;
use crate::task::{NextToken, Targets};
use candle_core::{Device, Tensor};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;

/// Largest text: tokenizing keeps some hundred bytes for each of it.
const MAX_TEXT: u64 = 32 << 20;
/// Largest file of ids.
const MAX_IDS: u64 = 1 << 30;

/// Stands on a line of its own between documents.
const DOCUMENT: &str = "<|endoftext|>";

/// Which tokens of a window of `n` are predicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Counted {
    /// The `n - 1` after its first, each from those before it in the window: a window stands for itself.
    #[default]
    Inside,
    /// The `n` that follow each of its tokens: the last one is the next window's first.
    Next,
}

impl Counted {
    /// The word that commands take.
    pub fn label(self) -> &'static str {
        match self {
            Counted::Inside => "inside",
            Counted::Next => "next",
        }
    }
}

impl std::str::FromStr for Counted {
    type Err = String;

    fn from_str(s: &str) -> Result<Counted, String> {
        let all = [Counted::Inside, Counted::Next];
        all.into_iter().find(|c| c.label() == s).ok_or_else(|| format!("`{s}` is not `inside` or `next`"))
    }
}

/// How text becomes items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextOptions {
    /// Tokens a window.
    pub window: usize,
    pub counted: Counted,
    /// At most so many windows from the start (0: all).
    pub limit: usize,
}

impl TextOptions {
    /// What a score is of, in words; `joined` as [`Dataset::joined`] tells it.
    pub fn convention(&self, joined: Joined) -> String {
        let (n, counted) = (self.window, self.counted.label());
        let which = match self.counted {
            Counted::Inside => format!("the {} tokens after the first of each count", n.saturating_sub(1)),
            Counted::Next => format!("the {n} tokens that follow those of each count"),
        };
        let added = match joined {
            Joined::BegunWith(id) => format!("documents begin with token {id}"),
            Joined::AsWritten => "no token added".to_owned(),
            Joined::ByLines => "documents joined by two newlines, no token added".to_owned(),
        };
        format!("{counted}: windows of {n} from the start, not overlapping, {added}; {which}")
    }

    /// Tokens that count in a window.
    pub fn targets(&self) -> usize {
        match self.counted {
            Counted::Inside => self.window.saturating_sub(1),
            Counted::Next => self.window,
        }
    }
}

/// Windows of one list of ids.
#[derive(Debug)]
struct Windows {
    ids: Vec<u32>,
    /// Tokens from one window's first to the next one's.
    step: usize,
    /// Inputs of a window, and as many targets.
    inputs: usize,
    count: usize,
    joined: Joined,
}

/// Are these token ids rather than text, by the name of the file?
pub fn holds_ids(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "u16")
}

/// Opens the text or the ids in the file at `spec` as a set of windows; `synthetic:eval`, `synthetic:calib` and `synthetic:train` are
/// the program's own stories, one a document.
///
/// # Errors
/// What cannot be read, text without a tokenizer, less than one window; by name.
pub fn text(spec: &str, tokenizer: Option<&Tokenizer>, options: &TextOptions) -> Result<Dataset, DataError> {
    let path = Path::new(spec);
    let bad = |reason: String, hint: &str| bad(path, reason, hint);
    if options.targets() == 0 {
        return Err(bad(format!("windows of {} tokens have nothing to predict", options.window), "a larger window"));
    }
    let silent = || {
        let hint = "put the model's `tokenizer.json` beside its weights, name one (or the original) by `--tokenizer`, or give \
                    token ids as a `.u16` file";
        bad("the model comes without a tokenizer".into(), hint)
    };
    if let Some(split) = Split::parse(spec)? {
        let tokenizer = tokenizer.ok_or_else(silent)?;
        let told: Vec<String> = stories::first(split, split.stories()).map(|s| s.text).collect();
        let ids = ids_of_all(&told, tokenizer).map_err(|e| unfit(path, &e))?;
        let name = format!("synthetic-{}-stories", split.name());
        return windows(
            ids,
            options,
            DataCard { name, source: format!("synthetic:{}", split.name()), ..DataCard::default() },
        );
    }
    let meta = std::fs::metadata(path).map_err(DataError::opening(path, TEXTS))?;
    if meta.is_dir() {
        return Err(bad("it is a folder".into(), "name a file of plain text, or of token ids (`.u16`)"));
    }
    let io = DataError::io(path);
    let ids = if holds_ids(path) {
        let bytes = files::read(path, MAX_IDS).map_err(io)?;
        if bytes.len() % 2 == 1 {
            return Err(bad("it has an odd number of bytes".into(), "ids of two bytes each, little-endian"));
        }
        let ids = bytes.chunks_exact(2).map(|b| u32::from(u16::from_le_bytes([b[0], b[1]]))).collect();
        (ids, Joined::AsWritten)
    } else {
        let kind = Kind::of(path).map_err(io)?;
        let plain = match kind {
            None => Some(files::read_text(path, MAX_TEXT).map_err(io)?),
            Some(_) => None,
        };
        let tokenizer = tokenizer.ok_or_else(silent)?;
        match (kind, plain) {
            (Some(kind), _) => of_documents(kind, path, options, tokenizer)?,
            (None, text) => ids_of(&text.unwrap_or_default(), tokenizer).map_err(|e| unfit(path, &e))?,
        }
    };
    windows(ids, options, DataCard { name: file_name(path), source: spec.to_owned(), ..DataCard::default() })
}

/// As many windows of these ids as there are, or were asked for.
fn windows((ids, joined): Ids, options: &TextOptions, card: DataCard) -> Result<Dataset, DataError> {
    let (step, inputs) = (options.window, options.targets());
    // The last input's target must be there as well.
    let all = inputs.checked_add(1).and_then(|n| ids.len().checked_sub(n)).map_or(0, |rest| rest / step + 1);
    if all == 0 {
        let found = format!("it has {} tokens, less than one window of {step}", ids.len());
        return Err(bad(Path::new(&card.source), found, "a longer text, or a smaller `--window`"));
    }
    let count = if options.limit == 0 { all } else { all.min(options.limit) };
    let card = DataCard { limit: options.limit, ..card };
    Ok(Dataset::of_items(card, Arc::new(Windows { ids, step, inputs, count, joined }), Arc::new(NextToken)))
}

/// Windows of ids as a set that nothing is judged on by name: each as long as the shortest.
///
/// # Errors
/// None, or of less than two tokens.
pub fn windows_of(all: &[Vec<u32>]) -> Result<Dataset, DataError> {
    let tokens = all.iter().map(Vec::len).min().unwrap_or(0);
    let ids = all.iter().flat_map(|w| &w[..tokens]).copied().collect();
    let options = TextOptions { window: tokens.max(2), counted: Counted::Inside, limit: 0 };
    let name = "calibration windows".to_owned();
    windows((ids, Joined::AsWritten), &options, DataCard { source: name.clone(), name, ..DataCard::default() })
}

/// Ids, and how the documents that they are of follow one another.
type Ids = (Vec<u32>, Joined);

/// Text that a vocabulary cannot cut.
pub(crate) fn unfit(path: &Path, why: &crate::model::ModelError) -> DataError {
    bad(path, why.to_string(), "check the tokenizer beside the weights")
}

/// The ids of a text. One whose documents are parted by lines of `<|endoftext|>`, for a vocabulary that has another token for that:
/// each document begins with it, and it is told beside the ids.
fn ids_of(text: &str, tokenizer: &Tokenizer) -> crate::model::Result<Ids> {
    let documents = documents(text);
    let parted = documents.len() > 1 && tokenizer.id(DOCUMENT).is_none();
    let (true, Some(begin)) = (parted, tokenizer.begin()) else {
        return Ok((tokenizer.encode(text)?, Joined::AsWritten));
    };
    begun(documents.into_iter().map(str::trim), begin, tokenizer)
}

/// The ids of documents that are not empty, each after `begin`.
fn begun<'a>(documents: impl Iterator<Item = &'a str>, begin: u32, tokenizer: &Tokenizer) -> crate::model::Result<Ids> {
    let mut ids = Vec::new();
    for document in documents.filter(|d| !d.is_empty()) {
        ids.push(begin);
        ids.extend(tokenizer.encode(document)?);
    }
    Ok((ids, Joined::BegunWith(begin)))
}

/// The ids of documents of a file that holds nothing else.
fn ids_of_all(documents: &[String], tokenizer: &Tokenizer) -> crate::model::Result<Ids> {
    match tokenizer.begin() {
        Some(begin) => begun(documents.iter().map(String::as_str), begin, tokenizer),
        None => Ok((tokenizer.encode(&documents.join("\n\n"))?, Joined::ByLines)),
    }
}

/// Tokens hardly ever have more bytes on the mean.
const BYTES_A_TOKEN: u64 = 64;

/// The ids of as many documents as the windows that were asked for need; files are often far larger.
fn of_documents(kind: Kind, path: &Path, options: &TextOptions, tokenizer: &Tokenizer) -> Result<Ids, DataError> {
    let needed = (options.limit as u64).saturating_mul(options.window as u64).saturating_add(1);
    let enough = if options.limit == 0 { u64::MAX } else { needed.saturating_mul(BYTES_A_TOKEN) };
    let (documents, whole) = kind.read(path, enough, MAX_TEXT)?;
    let found = ids_of_all(&documents, tokenizer).map_err(|e| unfit(path, &e))?;
    if whole || found.0.len() as u64 >= needed {
        return Ok(found);
    }
    ids_of_all(&kind.read(path, u64::MAX, MAX_TEXT)?.0, tokenizer).map_err(|e| unfit(path, &e))
}

/// What stands before, between and after lines of `<|endoftext|>`, whichever way lines end.
fn documents(text: &str) -> Vec<&str> {
    let (mut all, mut from, mut at) = (Vec::new(), 0, 0);
    for line in text.split_inclusive('\n') {
        if line.lines().next() == Some(DOCUMENT) {
            all.push(&text[from..at]);
            from = at + line.len();
        }
        at += line.len();
    }
    all.push(&text[from..]);
    all
}

impl Windows {
    /// The inputs and targets of window `i`.
    fn window(&self, i: usize) -> Option<(&[u32], &[u32])> {
        let from = self.step.checked_mul(i).filter(|_| i < self.count)?;
        let all = self.ids.get(from..from + self.inputs + 1)?;
        Some((&all[..self.inputs], &all[1..]))
    }
}

impl Items for Windows {
    fn len(&self) -> usize {
        self.count
    }

    fn batch(&self, picks: &[usize]) -> Result<(Tensor, Targets), DataError> {
        let (mut x, mut y) = (Vec::new(), Vec::new());
        for &i in picks {
            let (inputs, targets) = self.window(i).ok_or(DataError::Index { index: i, len: self.count })?;
            x.extend_from_slice(inputs);
            y.extend_from_slice(targets);
        }
        let tensor = |v: Vec<u32>| Tensor::from_vec(v, (picks.len(), self.inputs), &Device::Cpu);
        Ok((tensor(x)?, Targets::Values(tensor(y)?)))
    }

    fn joined(&self) -> Joined {
        self.joined
    }

    fn content(&self, i: usize) -> Option<Vec<u8>> {
        let (inputs, targets) = self.window(i)?;
        Some(inputs.iter().chain(&targets[self.inputs - 1..]).flat_map(|id| id.to_le_bytes()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Preprocess;

    fn ids(n: u16) -> tempfile::NamedTempFile {
        let file = tempfile::Builder::new().suffix(".u16").tempfile().unwrap();
        std::fs::write(file.path(), (0..n).flat_map(u16::to_le_bytes).collect::<Vec<u8>>()).unwrap();
        file
    }

    fn open(
        file: &tempfile::NamedTempFile,
        window: usize,
        counted: Counted,
        limit: usize,
    ) -> Result<Dataset, DataError> {
        text(file.path().to_str().unwrap(), None, &TextOptions { window, counted, limit })
    }

    fn pairs(data: &Dataset, i: usize) -> (Vec<u32>, Vec<u32>) {
        let (x, y) = data.batch([i], &Preprocess::none()).unwrap();
        let Targets::Values(y) = y else { panic!("values") };
        (x.flatten_all().unwrap().to_vec1().unwrap(), y.flatten_all().unwrap().to_vec1().unwrap())
    }

    #[test]
    fn windows_do_not_overlap_and_count_what_they_say() {
        let file = ids(12);
        let inside = open(&file, 4, Counted::Inside, 0).unwrap();
        assert_eq!(inside.len(), 3);
        assert_eq!(pairs(&inside, 1), (vec![4, 5, 6], vec![5, 6, 7]));
        assert_eq!(pairs(&inside, 2), (vec![8, 9, 10], vec![9, 10, 11]));
        // The third window's last target would be a thirteenth id.
        let next = open(&file, 4, Counted::Next, 0).unwrap();
        assert_eq!((next.len(), pairs(&next, 1)), (2, (vec![4, 5, 6, 7], vec![5, 6, 7, 8])));
        assert_eq!(open(&file, 4, Counted::Inside, 2).unwrap().len(), 2);
        assert!(inside.batch([3], &Preprocess::none()).is_err());
        let options = TextOptions { window: 4, counted: Counted::Inside, limit: 0 };
        assert!(
            options.convention(Joined::AsWritten).starts_with("inside: windows of 4")
                && options.convention(Joined::AsWritten).contains("the 3 tokens")
        );
        assert_eq!(inside.joined(), Joined::AsWritten);
    }

    /// A vocabulary of llama2.c's: the three tokens that all have, a space and two letters.
    fn letters() -> (tempfile::TempDir, Tokenizer) {
        let dir = tempfile::tempdir().unwrap();
        let mut bytes = 5i32.to_le_bytes().to_vec();
        for token in ["<unk>", "\n<s>\n", "\n</s>\n", " ", "a", "b"] {
            bytes.extend(0f32.to_le_bytes());
            bytes.extend((token.len() as i32).to_le_bytes());
            bytes.extend(token.as_bytes());
        }
        std::fs::write(dir.path().join("tok6.bin"), bytes).unwrap();
        std::fs::write(dir.path().join("model.safetensors"), [0; 8]).unwrap();
        let tokenizer = Tokenizer::of(&dir.path().join("model.safetensors")).unwrap().unwrap();
        (dir, tokenizer)
    }

    #[test]
    fn a_token_before_each_document_is_told() {
        let (dir, tokenizer) = letters();
        let options = TextOptions { window: 8, counted: Counted::Inside, limit: 0 };
        let opened = |text: &str| {
            let path = dir.path().join("text.txt");
            std::fs::write(&path, text).unwrap();
            super::text(path.to_str().unwrap(), Some(&tokenizer), &options).unwrap()
        };
        for end in ["\n", "\r\n"] {
            let data = opened(&["ab", DOCUMENT, "ba", DOCUMENT, "aa", ""].join(end));
            assert_eq!(pairs(&data, 0), (vec![1, 3, 4, 5, 1, 3, 5], vec![3, 4, 5, 1, 3, 5, 4]), "{end:?}");
            assert_eq!(data.joined(), Joined::BegunWith(1));
            let told = options.convention(data.joined());
            assert!(told.contains("documents begin with token 1") && !told.contains("no token"), "{told}");
        }
        let whole = opened("aaaabbbb");
        assert!(options.convention(whole.joined()).contains("no token added"));
        // Within a line it parts nothing.
        assert_eq!(documents("a<|endoftext|>\nb"), ["a<|endoftext|>\nb"]);
        assert_eq!(documents("<|endoftext|>\na\n<|endoftext|>"), ["", "a\n", ""]);
    }

    #[test]
    fn documents_begin_with_their_token_and_no_more_are_read_than_needed() {
        let (dir, tokenizer) = letters();
        let path = dir.path().join("text.jsonl");
        let lines = ["ab", "", "b a", "aaaabbbb"].map(|t| format!("{{\"text\": \"{t}\"}}\n")).concat();
        std::fs::write(&path, &lines).unwrap();
        let opened = |window, limit| {
            let options = TextOptions { window, counted: Counted::Inside, limit };
            super::text(path.to_str().unwrap(), Some(&tokenizer), &options)
        };
        let data = opened(8, 0).unwrap();
        // An empty document is none.
        assert_eq!((data.len(), data.joined()), (2, Joined::BegunWith(1)));
        assert_eq!(pairs(&data, 0), (vec![1, 3, 4, 5, 1, 3, 5], vec![3, 4, 5, 1, 3, 5, 3]));
        // A line that is not needed is not looked at.
        let padded = format!("{{\"text\": \"{}\"}}\nnonsense", "ab".repeat(1000));
        std::fs::write(&path, padded).unwrap();
        assert_eq!(opened(8, 3).unwrap().len(), 3);
        let said = opened(8, 0).unwrap_err().to_string();
        assert!(said.contains("line 2 is no JSON object"), "{said}");
        std::fs::write(&path, "").unwrap();
        assert!(opened(8, 3).unwrap_err().to_string().contains("less than one window"));
    }

    #[test]
    fn what_is_no_text_says_why() {
        let refused = |r: Result<Dataset, DataError>, words: &str| {
            let error = r.unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("hint: "), "{error}");
        };
        refused(open(&ids(4), 5, Counted::Inside, 0), "less than one window");
        refused(open(&ids(4), 1, Counted::Inside, 0), "nothing to predict");
        refused(open(&ids(4), 4, Counted::Next, 0), "less than one window");
        refused(open(&ids(4), usize::MAX, Counted::Inside, 0), "less than one window");
        refused(open(&ids(4), usize::MAX, Counted::Next, 0), "less than one window");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "some words").unwrap();
        refused(open(&file, 4, Counted::Inside, 0), "without a tokenizer");
        std::fs::write(file.path(), [0xff, 0xfe]).unwrap();
        refused(open(&file, 4, Counted::Inside, 0), "not UTF-8");
        let odd = tempfile::Builder::new().suffix(".u16").tempfile().unwrap();
        std::fs::write(odd.path(), [1, 2, 3]).unwrap();
        refused(open(&odd, 1, Counted::Next, 0), "odd number of bytes");
        let options = TextOptions { window: 4, counted: Counted::Inside, limit: 0 };
        refused(text("/", None, &options), "a folder");
        refused(text("/nowhere.txt", None, &options), "no data");
    }
}
