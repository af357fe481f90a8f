//! Image folders: one sub-folder of images per class, or images with a `labels.csv` (in `labels`).
//!
//! Only names are read at opening; images are decoded when a batch asks for them.

use super::names::{self, Named};
use super::{DataCard, DataError, Dataset, Encoded, Source, clean_name, decode, file_name, list};
use bytes::Bytes;
use rayon::prelude::*;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// An image file and its class.
#[derive(Debug)]
pub(super) struct Entry {
    pub path: PathBuf,
    pub label: u32,
}

#[derive(Debug)]
struct Files {
    entries: Vec<Entry>,
}

impl Encoded for Files {
    fn label(&self, k: usize) -> Option<u32> {
        self.entries.get(k).map(|e| e.label)
    }

    fn name(&self, k: usize) -> String {
        self.entries.get(k).map_or_else(String::new, |e| e.path.display().to_string())
    }

    fn size(&self, k: usize) -> Option<u64> {
        std::fs::metadata(&self.entries.get(k)?.path).ok().map(|m| m.len())
    }

    fn stored(&self, picks: &[usize]) -> Vec<(String, u64)> {
        let one = |&k: &usize| {
            let path = &self.entries.get(k)?.path;
            // Folder and file: a data set may move as a whole.
            let folder = path.parent().map(file_name).unwrap_or_default();
            Some((format!("{folder}/{}", file_name(path)), self.size(k).unwrap_or(0)))
        };
        picks.par_iter().filter_map(one).collect()
    }

    fn read(&self, k: usize) -> Result<Bytes, DataError> {
        let entry = self.entries.get(k).ok_or(DataError::Index { index: k, len: self.entries.len() })?;
        decode::read(&entry.path).map(Bytes::from)
    }
}

/// Opens class folders. Their class is their place in sorted order; with `imagenet` their place among ImageNet's 1000; or
/// their place in a class list that lies beside them.
pub(super) fn open(dir: &Path, imagenet: bool, spec: &str) -> Result<Dataset, DataError> {
    let mut classes: Vec<(String, PathBuf)> = Vec::new();
    let mut others = BTreeSet::new();
    for entry in list(dir)? {
        let name = file_name(&entry);
        if entry.is_dir() && !name.starts_with('.') {
            classes.push((name, entry));
        } else {
            others.insert(clean_name(&name));
        }
    }
    if classes.is_empty() {
        let seen: Vec<String> = others.iter().take(5).cloned().collect();
        let seen = match others.len() {
            0 => "the directory is empty".to_owned(),
            n => format!("{n} files (`{}`), no sub-folder and no `labels.csv`", seen.join("`, `")),
        };
        return Err(DataError::unknown(dir, seen));
    }
    classes.sort();
    if classes.len() > names::MAX_CLASSES {
        return Err(DataError::unknown(dir, format!("{} sub-folders", classes.len())));
    }
    let folders = || classes.iter().map(|(n, _)| n.as_str());
    let known = match imagenet {
        true => Some(("ImageNet-1k's classes", names::imagenet())),
        false => class_list(dir)?.map(|list| ("the class list beside it", list)),
    };
    let indexed = known.as_ref().map(|(words, list)| names::index(list, folders(), dir, words)).transpose()?;
    let mut entries = Vec::new();
    let mut ignored = BTreeSet::new();
    for (i, (_, folder)) in classes.iter().enumerate() {
        let label = indexed.as_ref().and_then(|l| l.get(i).copied()).unwrap_or(i as u32);
        let mut files = Vec::new();
        for path in list(folder)? {
            if decode::is_image(&path) && path.is_file() {
                files.push(path);
            } else if let Some(ext) = path.extension() {
                ignored.insert(clean_name(&ext.to_string_lossy()));
            }
        }
        files.sort();
        entries.extend(files.into_iter().map(|path| Entry { path, label }));
    }
    if entries.is_empty() {
        let kinds: Vec<String> = ignored.into_iter().take(5).collect();
        let hint = if kinds.is_empty() {
            "the sub-folders are empty".to_owned()
        } else {
            format!("only png, jpeg and webp are read, seen: `{}`", kinds.join("`, `"))
        };
        return Err(DataError::empty(spec, hint));
    }
    let class_names = match known {
        Some((_, list)) => names::lines(list),
        None => folders().map(clean_name).collect(),
    };
    Ok(dataset(dir, spec, entries, class_names, true))
}

/// The class list of a folder of class folders: inside it, or beside it where it is one part of a set.
pub(super) fn class_list(dir: &Path) -> Result<Option<Vec<Named>>, DataError> {
    if let Some(inside) = names::list(dir)? {
        return Ok(Some(inside));
    }
    let part = super::part::Part::parse(&file_name(dir)).is_some();
    match dir.parent() {
        Some(parent) if part => names::list(parent),
        _ => Ok(None),
    }
}

/// Image files in `dir` and below as one set.
pub(super) fn dataset(dir: &Path, spec: &str, entries: Vec<Entry>, names: Vec<String>, known: bool) -> Dataset {
    let name = dir.canonicalize().map_or_else(|_| file_name(dir), |d| file_name(&d));
    let card = DataCard::of(clean_name(&name), spec, entries.len(), names);
    Dataset::new(card, Source::Encoded(Box::new(Files { entries })), known)
}
