//! `labels.csv` beside images: lines `file,class[,class name]`, with or without a header that names the columns.
//!
//! A class is an index, or, below a header, a name; names are indexed by the class list beside the images, else in sorted
//! order. Fields may be quoted (RFC 4180).

use super::folder::{self, Entry};
use super::names::{self, Named};
use super::{DataError, Dataset, clean_name};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Component, Path, PathBuf};

const MAX_CSV_BYTES: u64 = 256 << 20;

/// Which column holds what.
#[derive(Debug, Clone, Copy)]
struct Columns {
    file: usize,
    class: usize,
    name: Option<usize>,
    /// How many there are.
    count: usize,
}

pub(super) fn open(csv: &Path, spec: &str) -> Result<Dataset, DataError> {
    let dir = csv.parent().unwrap_or(Path::new("."));
    let bad = |line: usize, reason: String| DataError::Labels { path: csv.to_owned(), line, reason };
    let bytes = crate::files::read(csv, MAX_CSV_BYTES).map_err(|e| match e.kind() {
        std::io::ErrorKind::FileTooLarge => bad(0, "the file is far too large".into()),
        _ => DataError::io(csv)(e),
    })?;
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .trim(csv::Trim::All)
        .from_reader(bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes));
    let mut record = csv::ByteRecord::new();
    let mut columns = Columns { file: 0, class: 1, name: Some(2), count: 3 };
    let mut header = false;
    // Class names stand for indices until all are known.
    let mut rows: Vec<(PathBuf, Result<u32, String>)> = Vec::new();
    let mut listed: HashMap<PathBuf, usize> = HashMap::new();
    let mut class_names: BTreeMap<u32, String> = BTreeMap::new();
    let mut first = true;
    loop {
        let line = reader.position().line() as usize;
        if !reader.read_byte_record(&mut record).map_err(|e| bad(line, clean_name(&e.to_string())))? {
            break;
        }
        let line = record.position().map_or(line, |p| p.line() as usize);
        let field = |i: usize| record.get(i).map(|f| String::from_utf8_lossy(f).into_owned());
        if record.len() == 1 && field(0).is_some_and(|f| f.is_empty()) {
            continue;
        }
        if std::mem::take(&mut first) {
            let cells: Vec<String> = (0..record.len()).filter_map(field).collect();
            if let Some(found) = headed(&cells, dir) {
                (columns, header) = (found, true);
                continue;
            }
        }
        let (Some(file), Some(class)) = (field(columns.file), field(columns.class)) else {
            return Err(bad(line, "it has no comma".into()));
        };
        let label = match class.parse::<u32>() {
            Ok(label) if label as usize >= names::MAX_CLASSES => {
                return Err(bad(line, format!("class index `{label}` is far too large")));
            }
            Ok(label) => Ok(label),
            Err(_) if header && class.parse::<f64>().is_err() && !class.is_empty() => Err(clean_name(&class)),
            Err(_) => return Err(bad(line, format!("`{}` is no class index", clean_name(&class)))),
        };
        if rows.first().is_some_and(|(_, l)| l.is_ok() != label.is_ok()) {
            return Err(bad(line, format!("`{}` is no class index, or others are no names", clean_name(&class))));
        }
        // A list of labels must not reach outside its folder.
        let inside = !file.is_empty() && Path::new(&file).components().all(|c| matches!(c, Component::Normal(_)));
        if !inside {
            return Err(bad(line, format!("`{}` is no file name in this folder", clean_name(&file))));
        }
        let path = dir.join(&file);
        if !path.is_file() {
            return Err(bad(line, format!("there is no file `{}`", clean_name(&file))));
        }
        // An image that counts twice weighs twice in every figure.
        if let Some(before) = listed.insert(path.clone(), line) {
            return Err(bad(line, format!("`{}` is listed in line {before} already", clean_name(&file))));
        }
        if let (Ok(label), Some(at)) = (&label, columns.name.filter(|n| *n < record.len())) {
            // A last column of names may hold commas without quotes.
            let end = if at + 1 >= columns.count { record.len() } else { at + 1 };
            let name: Vec<String> = (at..end).filter_map(field).collect();
            class_names.insert(*label, clean_name(&name.join(", ")));
        }
        rows.push((path, label));
    }
    if rows.is_empty() {
        return Err(DataError::empty(spec, "`labels.csv` lists no files"));
    }
    let words: BTreeSet<&str> = rows.iter().filter_map(|(_, l)| l.as_ref().err().map(String::as_str)).collect();
    // Without a list, in sorted order.
    let list = match names::list(dir)? {
        None if !words.is_empty() => Some(words.iter().map(|w| Named::new(w)).collect()),
        list => list,
    };
    let named = list.as_deref().unwrap_or_default();
    let index = names::index(named, words.iter().copied(), csv, "the class list beside it")?;
    let by_word: HashMap<String, u32> = words.iter().map(|w| (*w).to_owned()).zip(index).collect();
    let label = |l: Result<u32, String>| l.unwrap_or_else(|word| by_word.get(&word).copied().unwrap_or(0));
    let entries: Vec<Entry> = rows.into_iter().map(|(path, l)| Entry { path, label: label(l) }).collect();
    let classes = entries.iter().map(|e| e.label as usize + 1).max().unwrap_or(0);
    let class_list = list.map(names::lines).filter(|l| l.len() >= classes);
    let known = class_list.is_some();
    let class_names = class_list.unwrap_or_else(|| {
        (0..classes as u32).map(|c| class_names.remove(&c).unwrap_or_else(|| c.to_string())).collect()
    });
    Ok(folder::dataset(dir, spec, entries, class_names, known))
}

/// The columns of a header line; `None` when the line is data already (its first field is a file in the folder, or its
/// second is a number).
fn headed(cells: &[String], dir: &Path) -> Option<Columns> {
    let data = cells.get(1).is_some_and(|c| c.parse::<f64>().is_ok());
    let file = cells.first().is_some_and(|c| !c.is_empty() && dir.join(c).is_file());
    if data || file || cells.len() < 2 {
        return None;
    }
    let find = |names: &[&str]| cells.iter().position(|c| names.contains(&c.to_ascii_lowercase().as_str()));
    let file = find(&["file", "filename", "file_name", "image", "path", "image_path", "id"]);
    let index = find(&["class_index", "class_id", "label_id", "label_index", "index", "target", "class_idx"]);
    let class = index.or_else(|| find(&["label", "class", "category"]));
    let name = find(&["class_name", "label_name", "name", "class name"]).or_else(|| match (index, class) {
        (Some(_), _) => find(&["label", "class", "category"]),
        _ => None,
    });
    // Columns of other names are taken in their usual order.
    let file = file.unwrap_or(0);
    let class = class.unwrap_or(1);
    let name = name.or((cells.len() > 2 && file < 2 && class < 2).then_some(2)).filter(|n| *n != file && *n != class);
    (file != class).then_some(Columns { file, class, name, count: cells.len().max(3) })
}
