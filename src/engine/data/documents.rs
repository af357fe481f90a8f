//! Texts that come as documents: a `text` field in every line of a JSONL file, or a column `text` of a Parquet file.
//!
//! Here: reading them one after the other, within bounds. Not here: how they become tokens (`text`), questions (`questions`), pages of
//! Parquet files (`parquet`).

use super::error::TEXTS;
use super::{DataError, clean_name, parquet};
use crate::files;
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// What a file of documents is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A JSON object in every line.
    Lines,
    Parquet,
}

/// The one field that is read.
#[derive(Deserialize)]
struct Line {
    text: Option<String>,
}

impl Kind {
    /// What the file is, by its name and for Parquet by its first bytes; `None` for a text of one piece.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn of(path: &Path) -> std::io::Result<Option<Kind>> {
        if is_lines(path) {
            return Ok(Some(Kind::Lines));
        }
        let mut head = Vec::new();
        files::open(path)?.take(4).read_to_end(&mut head)?;
        let ends = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("parquet"));
        Ok((ends || parquet::looks_like(&head)).then_some(Kind::Parquet))
    }

    /// The documents from the first on, until they have `enough` bytes; with `false` where some are left. Rows without a value are
    /// none.
    ///
    /// # Errors
    /// A damaged file, a line without text, more than `most` bytes of text.
    pub(super) fn read(self, path: &Path, enough: u64, most: u64) -> Result<(Vec<String>, bool), DataError> {
        let (mut all, mut bytes, mut whole) = (Vec::new(), 0u64, true);
        let mut take = |text: &str| -> Result<bool, DataError> {
            bytes += text.len() as u64;
            if bytes > most {
                let reason = format!("its documents have more than {} MiB of text", most >> 20);
                return Err(bad(path, reason, "a smaller file, or `--limit` with fewer windows"));
            }
            all.push(text.to_owned());
            whole = bytes < enough;
            Ok(whole)
        };
        match self {
            Kind::Lines => {
                for_lines(path, most, &mut |number, line| match serde_json::from_str(line) {
                    Ok(Line { text: Some(text) }) => take(&text),
                    _ => Err(no_text(path, number, line)),
                })?;
            }
            Kind::Parquet => parquet::texts(path, "text", &mut take)?,
        }
        Ok((all, whole))
    }
}

/// Does the file's name say that each of its lines is a JSON object?
pub(super) fn is_lines(path: &Path) -> bool {
    path.extension().is_some_and(|e| ["jsonl", "ndjson"].iter().any(|l| e.eq_ignore_ascii_case(l)))
}

/// Hands each line that is not empty to `f` with its number, from 1, until it says `false`.
///
/// # Errors
/// Lines of more than `most` bytes, bytes that are no UTF-8, what `f` says.
pub(super) fn for_lines(
    path: &Path,
    most: u64,
    f: &mut dyn FnMut(usize, &str) -> Result<bool, DataError>,
) -> Result<(), DataError> {
    let mut file = BufReader::new(files::open(path).map_err(DataError::opening(path, TEXTS))?);
    let mut bytes = Vec::new();
    for number in 1.. {
        bytes.clear();
        // One more than may be: a longer line is told from one that just fits.
        let read = file.by_ref().take(most.saturating_add(1)).read_until(b'\n', &mut bytes);
        if read.map_err(DataError::io(path))? == 0 {
            return Ok(());
        }
        if bytes.len() as u64 > most {
            return Err(bad(path, format!("line {number} is far too long"), "one JSON object a line"));
        }
        let line = std::str::from_utf8(&bytes)
            .map_err(|_| bad(path, format!("line {number} is not UTF-8"), "JSON in UTF-8, one object a line"))?;
        let line = line.strip_prefix('\u{feff}').unwrap_or(line).trim();
        if !line.is_empty() && !f(number, line)? {
            return Ok(());
        }
    }
    Ok(())
}

pub(super) fn bad(path: &Path, reason: String, hint: &str) -> DataError {
    DataError::Text { path: path.to_owned(), reason, hint: hint.to_owned() }
}

/// The names of a line's fields; `None` where it is no JSON object.
pub(super) fn fields(line: &str) -> Option<Vec<String>> {
    let all: BTreeMap<String, IgnoredAny> = serde_json::from_str(line).ok()?;
    Some(all.into_keys().collect())
}

/// Why a line gives no text.
fn no_text(path: &Path, number: usize, line: &str) -> DataError {
    let hint =
        "each line is an object with its text in `text`; questions with choices are scored by `paring eval` alone";
    match fields(line) {
        None => bad(path, format!("line {number} is no JSON object"), hint),
        Some(all) if all.iter().any(|f| f == "text") => {
            bad(path, format!("the field `text` of line {number} is no string"), hint)
        }
        Some(all) => bad(path, format!("line {number} has no field `text`{}", listed(&all)), hint),
    }
}

/// `: its fields are …`, the first few.
pub(super) fn listed(all: &[String]) -> String {
    let names: Vec<String> = all.iter().take(12).map(|f| format!("`{}`", clean_name(f))).collect();
    if names.is_empty() { String::new() } else { format!(": its fields are {}", names.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::Builder::new().suffix(".jsonl").tempfile().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    fn read(file: &tempfile::NamedTempFile, enough: u64, most: u64) -> Result<(Vec<String>, bool), DataError> {
        let kind = Kind::of(file.path()).unwrap().expect("a file of documents");
        kind.read(file.path(), enough, most)
    }

    #[test]
    fn every_line_is_a_document() {
        let file = lines("\u{feff}{\"text\": \"a\\nb\", \"n\": [1, {}]}\n\n{\"text\": \"\"}\r\n{\"text\": \"ü\"}");
        assert_eq!(read(&file, u64::MAX, 100).unwrap(), (vec!["a\nb".into(), String::new(), "ü".into()], true));
        // What is enough ends the reading, and what comes later may be anything.
        let file = lines("{\"text\": \"abc\"}\n{\"text\": \"def\"}\nnonsense");
        assert_eq!(read(&file, 4, 100).unwrap(), (vec!["abc".into(), "def".into()], false));
        let plain = tempfile::Builder::new().suffix(".txt").tempfile().unwrap();
        std::fs::write(plain.path(), "{\"text\": 1}").unwrap();
        assert_eq!(Kind::of(plain.path()).unwrap(), None);
    }

    #[test]
    fn what_is_no_document_is_told_with_its_line() {
        let refused = |text: &str, words: &str| {
            let said = read(&lines(text), u64::MAX, 64).unwrap_err().to_string();
            assert!(said.contains(words) && said.contains("hint: "), "{said}");
        };
        refused(
            "{\"text\": \"a\"}\n{\"ctx\": 1, \"endings\": []}",
            "line 2 has no field `text`: its fields are `ctx`, `endings`",
        );
        refused("{\"text\": 3}", "`text` of line 1 is no string");
        refused("[1]", "line 1 is no JSON object");
        refused("{\"text\": \"a\"", "line 1 is no JSON object");
        refused(&format!("{{\"text\": \"{}\"}}", "a".repeat(80)), "line 1 is far too long");
        refused(&format!("{{\"text\": \"{0}\"}}\n{{\"text\": \"{0}\"}}", "a".repeat(40)), "more than 0 MiB");
        let deep = format!("{{\"a\": {}", "[".repeat(40));
        refused(&deep, "line 1 is no JSON object");
        let file = lines("");
        std::fs::write(file.path(), [b'{', 0xff, b'}']).unwrap();
        assert!(read(&file, 9, 9).unwrap_err().to_string().contains("not UTF-8"));
    }

    /// Hostile nesting ends in words, not in a stack that overflows.
    #[test]
    fn deep_lines_are_refused() {
        let file = lines(&format!("{{\"a\": {}", "[".repeat(100_000)));
        assert!(read(&file, u64::MAX, 1 << 20).unwrap_err().to_string().contains("no JSON object"));
    }
}
