//! Image folders: one sub-folder of images per class, or images with a `labels.csv` (in `labels`).
//!
//! Only names are read at opening; images are decoded when a batch asks for them.

use super::names::{self, Named};
use super::{DataCard, DataError, Dataset, Source, clean_name, decode, file_name, list};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// More classes than any data set of this kind has.
pub(super) const MAX_CLASSES: usize = 65_536;

/// An image file and its class.
#[derive(Debug)]
pub(super) struct Entry {
    pub path: PathBuf,
    pub label: u32,
}

#[derive(Debug)]
pub(super) struct Files {
    pub entries: Vec<Entry>,
}

impl Files {
    pub fn get(&self, k: usize) -> Option<&Entry> {
        self.entries.get(k)
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
        return Err(DataError::Unknown { path: dir.to_owned(), seen });
    }
    classes.sort();
    if classes.len() > MAX_CLASSES {
        return Err(DataError::Unknown { path: dir.to_owned(), seen: format!("{} sub-folders", classes.len()) });
    }
    let folders = || classes.iter().map(|(n, _)| n.as_str());
    let known = match imagenet {
        true => Some(("ImageNet-1k's classes", names::imagenet())),
        false => class_list(dir)?.map(|list| ("the class list beside it", list)),
    };
    let indexed = match &known {
        Some((words, list)) => Some(names::index(list, folders()).map_err(|folder| DataError::Folder {
            path: dir.to_owned(),
            folder: clean_name(&folder),
            list: (*words).to_owned(),
        })?),
        None => None,
    };
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
        return Err(DataError::Empty { what: spec.to_owned(), hint });
    }
    let class_names = match known {
        Some((_, list)) => list.into_iter().map(|n| n.line).collect(),
        None => folders().map(clean_name).collect(),
    };
    let card = card(dir, spec, entries.len(), class_names);
    Ok(Dataset::new(card, Source::Files(Files { entries }), true))
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

pub(super) fn card(dir: &Path, spec: &str, images: usize, class_names: Vec<String>) -> DataCard {
    let name = dir.canonicalize().map_or_else(|_| file_name(dir), |d| file_name(&d));
    DataCard {
        name: clean_name(&name),
        images,
        classes: class_names.len(),
        class_names,
        source: spec.to_owned(),
        limit: 0,
    }
}
