//! Texts with a class each, for classifiers of text.
//!
//! JSON lines with `text` (or `sentence`) and a whole-number `label`, or CSV (`.csv`, `.tsv`) with columns of these names. Every text stands
//! between the tokens that the vocabulary puts around one, cut where it is longer than the model takes. Texts keep their own lengths:
//! nothing is padded, and what is run together has one length ([`Dataset::parts`]). Not here: vocabularies (`model::tokenizer`), scores (`task`).

use super::error::CLASSED;
use super::names::MAX_CLASSES;
use super::{DataCard, DataError, Dataset, Items, clean_name, file_name};
use crate::files;
use crate::model::Tokenizer;
use crate::task::{Classify, Targets};
use candle_core::{Device, Tensor};
use rayon::prelude::*;
use serde_json::{Map, Value};
use std::path::Path;
use std::sync::Arc;

/// Largest file, and largest text in it: tokenizing keeps some hundred bytes for each byte of one.
const MAX_BYTES: u64 = 256 << 20;
const MAX_TEXT: usize = 1 << 20;

/// What a text and its class are called.
const TEXT: [&str; 2] = ["text", "sentence"];
const LABEL: &str = "label";

/// How texts become items.
#[derive(Debug, Clone, Copy)]
pub struct ClassedOptions<'a> {
    /// Tokens a text at most, those around it included.
    pub most: usize,
    /// Texts at most, spread over the file (0: all).
    pub limit: usize,
    /// Of the model's classes.
    pub names: &'a [String],
}

/// Texts as token ids, each with its class.
#[derive(Debug)]
struct Texts(Vec<(Vec<u32>, u32)>);

/// Opens the texts in the file at `spec`; and says in words how many of them were cut, if any.
///
/// # Errors
/// What cannot be read or used, by line; no tokenizer; no texts.
pub fn classed(
    spec: &str,
    tokenizer: Option<&Tokenizer>,
    options: &ClassedOptions<'_>,
) -> Result<(Dataset, Option<String>), DataError> {
    let path = Path::new(spec);
    let bad = |reason: String, hint: &str| DataError::Text { path: path.to_owned(), reason, hint: hint.to_owned() };
    let Some(tokenizer) = tokenizer else {
        let hint =
            "put the model's `tokenizer.json` beside its weights, or name one (or the original) by `--tokenizer`";
        return Err(bad("the model comes without a tokenizer".into(), hint));
    };
    let meta = std::fs::metadata(path).map_err(DataError::opening(path, CLASSED))?;
    let hint = "JSON lines with `text` and a whole-number `label`, or `.csv` with these columns";
    if meta.is_dir() {
        return Err(bad("it is a folder".into(), hint));
    }
    let content = files::read_text(path, MAX_BYTES).map_err(DataError::io(path))?;
    let content = content.strip_prefix('\u{feff}').unwrap_or(&content);
    let ending = path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
    let rows = match ending.as_str() {
        "csv" => table(content, b','),
        "tsv" => table(content, b'\t'),
        _ => lines(content),
    };
    let mut rows = rows.map_err(|why| bad(why, hint))?;
    let all = rows.len();
    if options.limit > 0 && options.limit < all {
        // As of folders of images: a file may be sorted by class.
        let picks: Vec<usize> = (0..options.limit).map(|j| j * all / options.limit).collect();
        let mut at = 0..;
        rows.retain(|_| at.next().is_some_and(|i| picks.binary_search(&i).is_ok()));
    }
    if rows.is_empty() {
        return Err(bad("it holds no texts".into(), hint));
    }
    let encoded = rows.into_par_iter().map(|(text, label)| {
        let (ids, over) = tokenizer.enclosed(&text, options.most)?;
        Ok(((ids, label), over > 0))
    });
    let encoded = encoded.collect::<crate::model::Result<Vec<_>>>();
    let encoded = encoded.map_err(|e| bad(e.to_string(), "check the tokenizer beside the weights"))?;
    let cut = encoded.iter().filter(|(_, cut)| *cut).count();
    let texts = Texts(encoded.into_iter().map(|(text, _)| text).collect());
    let classes = texts.0.iter().map(|(_, label)| *label as usize + 1).max().unwrap_or(0);
    let class_names = options.names.iter().take(classes).cloned().collect();
    let card = DataCard {
        name: file_name(path),
        source: spec.to_owned(),
        limit: options.limit,
        classes,
        class_names,
        ..DataCard::default()
    };
    let said = (cut > 0).then(|| {
        let (n, name) = (texts.0.len(), clean_name(&card.name));
        format!("{cut} of {n} texts of `{name}` are longer than {} tokens and cut there", options.most)
    });
    Ok((Dataset::of_items(card, Arc::new(texts), Arc::new(Classify)), said))
}

/// Text and class of every row, or which is none and why.
type Rows = Result<Vec<(String, u32)>, String>;

/// A text of the file.
fn text_of(text: &str, line: usize) -> Result<String, String> {
    match text.len() {
        0..=MAX_TEXT => Ok(text.to_owned()),
        n => Err(format!("line {line} has a text of {n} bytes, and one may have {MAX_TEXT}")),
    }
}

/// A class as a file has it: a whole number.
fn class(label: Option<u64>, said: &str, line: usize) -> Result<u32, String> {
    match label.filter(|l| *l < MAX_CLASSES as u64) {
        Some(label) => Ok(label as u32),
        None => Err(format!("line {line} has the label `{}`, which is no whole number of a class", clean_name(said))),
    }
}

/// JSON lines.
fn lines(content: &str) -> Rows {
    let mut rows = Vec::new();
    for (i, text) in content.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        let line = i + 1;
        let object: Map<String, Value> = serde_json::from_str(text)
            .map_err(|e| format!("line {line} is no JSON object: {}", clean_name(&e.to_string())))?;
        let found = TEXT.iter().find_map(|key| object.get(*key));
        let Some(Value::String(words)) = found else {
            let keys: Vec<String> = object.keys().take(6).map(|k| format!("`{}`", clean_name(k))).collect();
            return Err(format!("line {line} has no `text` (it has {})", keys.join(", ")));
        };
        let label = object.get(LABEL).ok_or_else(|| format!("line {line} has no `{LABEL}`"))?;
        rows.push((text_of(words, line)?, class(label.as_u64(), &label.to_string(), line)?));
    }
    Ok(rows)
}

/// Columns with a line of names over them. Fields of `.csv` may be quoted (RFC 4180), those between tabs are as they stand.
fn table(content: &str, delimiter: u8) -> Rows {
    let quoting = delimiter == b',';
    let mut reader = csv::ReaderBuilder::new().delimiter(delimiter).quoting(quoting).from_reader(content.as_bytes());
    let failed = |e: csv::Error| clean_name(&e.to_string());
    let names = reader.headers().map_err(failed)?.clone();
    let named = |name: &'static str| {
        names.iter().enumerate().filter(move |(_, n)| n.trim().eq_ignore_ascii_case(name)).map(|(i, _)| i)
    };
    if let Some(twice) = TEXT.into_iter().chain([LABEL]).find(|name| named(name).count() > 1) {
        return Err(format!("it has more than one column `{twice}`"));
    }
    let column = |name: &'static str| named(name).next();
    let text = TEXT.iter().find_map(|name| column(name)).ok_or("it has no column `text`")?;
    let label = column(LABEL).ok_or_else(|| format!("it has no column `{LABEL}`"))?;
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.map_err(failed)?;
        let line = record.position().map_or(0, |p| p.line() as usize);
        let (words, said) = (record.get(text).unwrap_or_default(), record.get(label).unwrap_or_default().trim());
        rows.push((text_of(words, line)?, class(said.parse().ok(), said, line)?));
    }
    Ok(rows)
}

impl Items for Texts {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn batch(&self, picks: &[usize]) -> Result<(Tensor, Targets), DataError> {
        let (mut ids, mut labels) = (Vec::new(), Vec::new());
        for &i in picks {
            let (text, label) = self.0.get(i).ok_or(DataError::Index { index: i, len: self.0.len() })?;
            ids.extend_from_slice(text);
            labels.push(*label);
        }
        let tokens = ids.len() / picks.len().max(1);
        if picks.iter().any(|&i| self.length(i) != Some(tokens)) {
            return Err(DataError::Lengths { count: picks.len() });
        }
        Ok((Tensor::from_vec(ids, (picks.len(), tokens), &Device::Cpu)?, Targets::Classes(labels)))
    }

    fn length(&self, i: usize) -> Option<usize> {
        self.0.get(i).map(|(ids, _)| ids.len())
    }

    fn label(&self, i: usize) -> Option<u32> {
        self.0.get(i).map(|(_, label)| *label)
    }

    fn content(&self, i: usize) -> Option<Vec<u8>> {
        let (ids, label) = self.0.get(i)?;
        Some(ids.iter().chain([label]).flat_map(|v| v.to_le_bytes()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(rows: Rows) -> String {
        rows.unwrap_err()
    }

    #[test]
    fn rows_are_read_alike_whatever_they_are_written_in() {
        let want = vec![("a, \"b\"".to_owned(), 1), ("c".to_owned(), 0)];
        let json = "{\"text\": \"a, \\\"b\\\"\", \"label\": 1, \"idx\": 7}\n\n{\"label\": 0, \"sentence\": \"c\"}\n";
        assert_eq!(lines(json).unwrap(), want);
        assert_eq!(table("idx,Label,sentence\n7,1,\"a, \"\"b\"\"\"\n8, 0 ,c\n", b',').unwrap(), want);
        assert_eq!(table("sentence\tlabel\na, \"b\"\t1\nc\t0\n", b'\t').unwrap(), want);
    }

    #[test]
    fn what_is_no_text_with_a_class_is_refused_by_its_line() {
        assert!(words(lines("{\"text\": \"a\", \"label\": 0}\n[1]")).contains("line 2 is no JSON object"));
        assert!(
            words(lines("{\"sentence1\": \"a\", \"label\": 0}")).contains("no `text` (it has `sentence1`, `label`)")
        );
        assert!(words(lines("{\"text\": \"a\"}")).contains("line 1 has no `label`"));
        for label in ["-1", "1.5", "\"good\"", "70000", "null"] {
            let line = format!("{{\"text\": \"a\", \"label\": {label}}}");
            assert!(words(lines(&line)).contains("no whole number"), "{label}");
        }
        assert!(words(table("a,b\n1,2\n", b',')).contains("no column `text`"));
        assert!(words(table("text,b\n1,2\n", b',')).contains("no column `label`"));
        assert!(words(table("text,label,Label\na,1,0\n", b',')).contains("more than one column `label`"));
        assert!(words(table("text,label\na,b\n", b',')).contains("line 2"));
        assert!(table("text,label\na\n", b',').is_err());
        let long = |n: usize| format!("text,label\n{},1\n", "a".repeat(n));
        assert!(table(&long(MAX_TEXT), b',').is_ok());
        assert!(words(table(&long(MAX_TEXT + 1), b',')).contains("1048577 bytes"));
    }
}
