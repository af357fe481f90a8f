//! Test, validation and training parts of one directory, told by file and folder names.

use super::{DataError, file_name};
use std::path::{Path, PathBuf};

/// Which part of a directory that holds several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Test,
    Validation,
    Train,
}

impl Part {
    const ALL: [Part; 3] = [Part::Test, Part::Validation, Part::Train];

    /// The part that one word names.
    pub fn parse(word: &str) -> Option<Part> {
        match word.to_ascii_lowercase().as_str() {
            "test" | "testing" | "t10k" | "eval" => Some(Part::Test),
            "validation" | "val" | "valid" | "dev" => Some(Part::Validation),
            "train" | "training" => Some(Part::Train),
            _ => None,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Part::Test => "test",
            Part::Validation => "validation",
            Part::Train => "train",
        }
    }
}

/// The part that a path below `dir` names: the file's own words count more than its folders'.
fn part_of(path: &Path, dir: &Path) -> Option<Part> {
    let below = path.strip_prefix(dir).unwrap_or(path);
    below.iter().rev().find_map(|piece| {
        let piece = piece.to_string_lossy();
        piece.split(|c: char| !c.is_ascii_alphanumeric()).find_map(Part::parse)
    })
}

/// The files of one part, in order. Without a wish it is the one that models are evaluated on: test, else validation, else
/// the files that name no part, else training.
///
/// # Errors
/// The wished part is not there.
pub(super) fn choose(files: &[PathBuf], wish: Option<Part>, dir: &Path) -> Result<Vec<PathBuf>, DataError> {
    let of =
        |part: Option<Part>| -> Vec<PathBuf> { files.iter().filter(|f| part_of(f, dir) == part).cloned().collect() };
    let order = match wish {
        Some(part) => vec![Some(part)],
        None => vec![Some(Part::Test), Some(Part::Validation), None, Some(Part::Train)],
    };
    let found = order.into_iter().map(of).find(|f| !f.is_empty());
    found.ok_or_else(|| missing(dir, wish, Part::ALL.map(|p| !of(Some(p)).is_empty())))
}

/// The error for a part that `dir` does not have; `there` says which it has.
pub(super) fn missing(dir: &Path, wish: Option<Part>, there: [bool; 3]) -> DataError {
    let names: Vec<&str> = Part::ALL.into_iter().zip(there).filter(|(_, t)| *t).map(|(p, _)| p.name()).collect();
    let hint = match names.as_slice() {
        [] => "its files name no part: leave the part out".to_owned(),
        names => format!("it has `{}`", names.join("`, `")),
    };
    DataError::Split { spec: format!("{}:{}", dir.display(), wish.map_or("", Part::name)), hint }
}

/// Splits `DIR:PART`.
pub(super) fn suffix(spec: &str) -> Option<(&str, Part)> {
    let (dir, part) = spec.rsplit_once(':')?;
    Some((dir, Part::parse(part)?))
}

/// A directory's sub-folder for a part, where the sub-folders are parts (`train/`, `val/`) and nothing else.
pub(super) fn folder(dir: &Path, subs: &[PathBuf], wish: Option<Part>) -> Result<Option<PathBuf>, DataError> {
    let whole = |p: &PathBuf| Part::parse(&file_name(p)).is_some();
    if subs.is_empty() || !subs.iter().all(whole) {
        return Ok(None);
    }
    Ok(choose(subs, wish, dir)?.into_iter().next())
}

/// `a{003..005}b` → `a003b`, `a004b`, `a005b`; `None` when there is no such range, or far too many names come of it.
pub(super) fn expand(pattern: &str) -> Option<Vec<String>> {
    const MOST: u64 = 100_000;
    let (before, rest) = pattern.split_once('{')?;
    let (range, after) = rest.split_once('}')?;
    let (low, high) = range.split_once("..")?;
    let number = |s: &str| s.bytes().all(|b| b.is_ascii_digit()).then(|| s.parse::<u64>().ok()).flatten();
    let (from, to) = (number(low)?, number(high)?);
    if to < from || to - from >= MOST {
        return None;
    }
    let width = low.len();
    let tails = if after.contains('{') { expand(after)? } else { vec![after.to_owned()] };
    if (to - from + 1).saturating_mul(tails.len() as u64) > MOST {
        return None;
    }
    let heads = (from..=to).map(|n| format!("{before}{n:0width$}"));
    Some(heads.flat_map(|head| tails.iter().map(move |t| format!("{head}{t}")).collect::<Vec<_>>()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_told_by_words_of_names() {
        let dir = Path::new("/x/train-set");
        let of = |p: &str| part_of(&dir.join(p), dir);
        assert_eq!(of("data/test-00000-of-00001.parquet"), Some(Part::Test));
        assert_eq!(of("default/validation/0000.parquet"), Some(Part::Validation));
        assert_eq!(of("imagenet1k-train-0003.tar"), Some(Part::Train));
        assert_eq!((of("contest.parquet"), of("shard-01.tar")), (None, None));
    }

    #[test]
    fn the_usual_part_is_for_evaluation() {
        let dir = Path::new("d");
        let files: Vec<PathBuf> = ["d/train-0.tar", "d/val-0.tar", "d/val-1.tar"].map(PathBuf::from).to_vec();
        assert_eq!(choose(&files, None, dir).unwrap().len(), 2);
        assert_eq!(choose(&files, Some(Part::Train), dir).unwrap(), [PathBuf::from("d/train-0.tar")]);
        let text = choose(&files, Some(Part::Test), dir).unwrap_err().to_string();
        assert!(text.contains("`d:test`") && text.contains("hint: it has `validation`, `train`"), "{text}");
    }

    #[test]
    fn braces_expand() {
        assert_eq!(expand("a{08..10}.tar").unwrap(), ["a08.tar", "a09.tar", "a10.tar"]);
        assert_eq!(expand("{0..1}-{2..3}").unwrap(), ["0-2", "0-3", "1-2", "1-3"]);
        assert_eq!(expand("a{5..4}"), None);
        assert_eq!(expand("a{0..99999999999}"), None);
        assert_eq!(expand("{0..999}{0..999}{0..999}"), None);
        assert_eq!(expand("plain"), None);
    }
}
