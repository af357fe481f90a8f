//! Image folders: one sub-folder of png/jpeg files per class, or one folder of files with a `labels.csv`.
//!
//! Only names are read at opening; images are decoded when a batch asks for them, with limits on their size.

use super::{DataCard, DataError, Dataset, Source, clean_name};
use image::{ImageReader, RgbImage};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Limits for decoding one foreign image.
const MAX_SIDE: u32 = 20_000;
const MAX_ALLOC: u64 = 512 << 20;
const MAX_CSV_BYTES: u64 = 64 << 20;
/// More classes than any data set of this kind has.
const MAX_CLASSES: usize = 65_536;

/// An image file and its class.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) path: PathBuf,
    pub(super) label: u32,
}

#[derive(Debug)]
pub(super) struct Files {
    entries: Vec<Entry>,
}

impl Files {
    pub(super) fn get(&self, k: usize) -> Option<&Entry> {
        self.entries.get(k)
    }
}

pub(super) fn open(dir: &Path, spec: &str) -> Result<Dataset, DataError> {
    let csv = dir.join("labels.csv");
    if csv.is_file() { open_labelled(dir, &csv, spec) } else { open_classes(dir, spec) }
}

fn open_classes(dir: &Path, spec: &str) -> Result<Dataset, DataError> {
    let mut classes: Vec<(String, PathBuf)> = Vec::new();
    let mut others = 0usize;
    for entry in list(dir)? {
        let name = file_name(&entry);
        if entry.is_dir() && !name.starts_with('.') {
            classes.push((name, entry));
        } else {
            others += 1;
        }
    }
    if classes.is_empty() {
        let seen = match others {
            0 => "the directory is empty".to_owned(),
            n => format!("{n} files, no sub-folder and no `labels.csv`"),
        };
        return Err(DataError::Unknown { path: dir.to_owned(), seen });
    }
    classes.sort();
    if classes.len() > MAX_CLASSES {
        return Err(DataError::Unknown { path: dir.to_owned(), seen: format!("{} sub-folders", classes.len()) });
    }
    let mut entries = Vec::new();
    let mut ignored = BTreeSet::new();
    for (label, (_, folder)) in classes.iter().enumerate() {
        let mut files = Vec::new();
        for path in list(folder)? {
            if is_image(&path) && path.is_file() {
                files.push(path);
            } else if let Some(ext) = path.extension() {
                ignored.insert(clean_name(&ext.to_string_lossy()));
            }
        }
        files.sort();
        entries.extend(files.into_iter().map(|path| Entry { path, label: label as u32 }));
    }
    if entries.is_empty() {
        let kinds: Vec<String> = ignored.into_iter().take(5).collect();
        let hint = if kinds.is_empty() {
            "the sub-folders are empty".to_owned()
        } else {
            format!("only png and jpeg are read, seen: `{}`", kinds.join("`, `"))
        };
        return Err(DataError::Empty { what: spec.to_owned(), hint });
    }
    let class_names: Vec<String> = classes.iter().map(|(n, _)| clean_name(n)).collect();
    let card = card(dir, spec, entries.len(), class_names);
    Ok(Dataset::new(card, Source::Files(Files { entries }), true))
}

/// `labels.csv`: lines `file,class_index[,class name]`, an optional header line. The class count is the largest index
/// plus one.
fn open_labelled(dir: &Path, csv: &Path, spec: &str) -> Result<Dataset, DataError> {
    let io = |source| DataError::Io { path: csv.to_owned(), source };
    if std::fs::metadata(csv).map_err(io)?.len() > MAX_CSV_BYTES {
        return Err(DataError::Labels { path: csv.to_owned(), line: 0, reason: "the file is far too large".into() });
    }
    let bytes = std::fs::read(csv).map_err(io)?;
    let text = String::from_utf8_lossy(&bytes);
    let mut entries = Vec::new();
    let mut names: BTreeMap<u32, String> = BTreeMap::new();
    for (i, line) in text.lines().enumerate() {
        let bad = |reason: String| DataError::Labels { path: csv.to_owned(), line: i + 1, reason };
        if line.trim().is_empty() {
            continue;
        }
        let mut fields = line.splitn(3, ',').map(|f| f.trim().trim_matches('"'));
        let (Some(file), Some(label)) = (fields.next(), fields.next()) else {
            return Err(bad("it has no comma".into()));
        };
        let Ok(label) = label.parse::<u32>() else {
            if i == 0 {
                continue;
            }
            return Err(bad(format!("`{}` is no class index", clean_name(label))));
        };
        if label as usize >= MAX_CLASSES {
            return Err(bad(format!("class index `{label}` is far too large")));
        }
        // Only plain file names: a list of labels must not reach outside its folder.
        if Path::new(file).file_name().is_none_or(|n| n != file) {
            return Err(bad(format!("`{}` is no file name in this folder", clean_name(file))));
        }
        let path = dir.join(file);
        if !path.is_file() {
            return Err(bad(format!("there is no file `{}`", clean_name(file))));
        }
        if let Some(name) = fields.next() {
            names.insert(label, clean_name(name));
        }
        entries.push(Entry { path, label });
    }
    let Some(classes) = entries.iter().map(|e| e.label as usize + 1).max() else {
        return Err(DataError::Empty { what: spec.to_owned(), hint: "`labels.csv` lists no files".into() });
    };
    let class_names = (0..classes as u32).map(|c| names.remove(&c).unwrap_or_else(|| c.to_string())).collect();
    let card = card(dir, spec, entries.len(), class_names);
    Ok(Dataset::new(card, Source::Files(Files { entries }), false))
}

fn card(dir: &Path, spec: &str, images: usize, class_names: Vec<String>) -> DataCard {
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

fn file_name(path: &Path) -> String {
    path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}

fn list(dir: &Path) -> Result<Vec<PathBuf>, DataError> {
    let io = |source| DataError::Io { path: dir.to_owned(), source };
    std::fs::read_dir(dir).map_err(io)?.map(|e| Ok(e.map_err(io)?.path())).collect()
}

fn is_image(path: &Path) -> bool {
    path.extension().is_some_and(|e| ["png", "jpg", "jpeg"].iter().any(|k| e.eq_ignore_ascii_case(k)))
}

/// Decodes one file as RGB; the format is guessed from its bytes, an alpha channel is dropped.
pub(super) fn decode(path: &Path) -> Result<RgbImage, DataError> {
    let bad = |reason: String| DataError::Image { path: path.to_owned(), reason };
    let reader = ImageReader::open(path).and_then(ImageReader::with_guessed_format);
    let mut reader = reader.map_err(|source| DataError::Io { path: path.to_owned(), source })?;
    let mut limits = image::Limits::default();
    limits.max_image_width = Some(MAX_SIDE);
    limits.max_image_height = Some(MAX_SIDE);
    limits.max_alloc = Some(MAX_ALLOC);
    reader.limits(limits);
    let image = reader.decode().map_err(|e| bad(e.to_string()))?.into_rgb8();
    if image.width() == 0 || image.height() == 0 {
        return Err(bad("it has no pixels".into()));
    }
    Ok(image)
}
