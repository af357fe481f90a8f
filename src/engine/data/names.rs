//! Class lists that lie beside images (`classes.txt`, `synset_words.txt`, `imagenet_class_index.json`), and ImageNet's own.

use super::{DataError, clean_name};
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// The 1000 WordNet ids of ILSVRC 2012, one a line in class order, which is also their sorted order.
const IMAGENET: &str = include_str!("../../../assets/imagenet_wnids.txt");
const MAX_BYTES: u64 = 16 << 20;
/// More classes than any data set has.
pub(super) const MAX_CLASSES: usize = 65_536;

/// One class of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Named {
    /// What a folder of it is called: the line's first word.
    pub word: String,
    /// The whole line, for the screen.
    pub line: String,
}

impl Named {
    pub fn new(line: &str) -> Named {
        let line = clean_name(line);
        Named { word: line.split([' ', '\t', ',']).next().unwrap_or_default().to_owned(), line }
    }
}

/// The class list in `dir`, in index order; `None` without one.
pub(super) fn list(dir: &Path) -> Result<Option<Vec<Named>>, DataError> {
    let files = ["classes.txt", "classnames.txt", "class_names.txt", "synset_words.txt", "LOC_synset_mapping.txt"];
    let path = files.iter().chain(["imagenet_class_index.json"].iter()).map(|f| dir.join(f)).find(|p| p.is_file());
    let Some(path) = path else { return Ok(None) };
    let bad = |reason: &str| DataError::Names { path: path.clone(), reason: reason.to_owned() };
    let bytes = crate::files::read(&path, MAX_BYTES).map_err(|e| match e.kind() {
        std::io::ErrorKind::FileTooLarge => bad("it is far too large"),
        _ => DataError::io(&path)(e),
    })?;
    let named: Vec<Named> = if path.extension().is_some_and(|e| e == "json") {
        // {"0": ["n01440764", "tench"], ..}
        let json: HashMap<usize, (String, String)> =
            serde_json::from_slice(&bytes).map_err(|_| bad("it is not `{\"0\": [\"n01440764\", \"tench\"], ..}`"))?;
        let one = |i: usize| json.get(&i).map(|(id, name)| Named::new(&format!("{id} {name}")));
        (0..json.len()).map(one).collect::<Option<_>>().ok_or_else(|| bad("a class index is missing"))?
    } else {
        String::from_utf8_lossy(&bytes).lines().map(Named::new).filter(|n| !n.line.is_empty()).collect()
    };
    match named.len() {
        0 => Err(bad("it lists no classes")),
        n if n > MAX_CLASSES => Err(bad("it lists far too many classes")),
        _ => Ok(Some(named)),
    }
}

/// The whole lines.
pub(super) fn lines(list: Vec<Named>) -> Vec<String> {
    list.into_iter().map(|n| n.line).collect()
}

/// Names of classes that nothing names.
pub(super) fn numbers(classes: usize) -> Vec<String> {
    (0..classes).map(|c| c.to_string()).collect()
}

/// ImageNet-1k's classes.
pub(super) fn imagenet() -> Vec<Named> {
    IMAGENET.lines().map(Named::new).collect()
}

/// Whether all of some folder names are ImageNet-1k classes.
pub(super) fn all_imagenet<'a>(mut folders: impl Iterator<Item = &'a str>) -> bool {
    let known: HashSet<&str> = IMAGENET.lines().collect();
    folders.all(|f| known.contains(f))
}

/// The index of each folder of `path` in `list`, which `words` describe, by whole line or first word.
///
/// # Errors
/// [`DataError::Folder`] for the first folder that is not in it.
pub(super) fn index<'a>(
    list: &[Named],
    folders: impl Iterator<Item = &'a str>,
    path: &Path,
    words: &str,
) -> Result<Vec<u32>, DataError> {
    let mut by: HashMap<&str, u32> = HashMap::new();
    for (i, n) in list.iter().enumerate() {
        by.entry(&n.word).or_insert(i as u32);
    }
    // A whole line tells more than a first word.
    by.extend(list.iter().enumerate().map(|(i, n)| (n.line.as_str(), i as u32)));
    let missing = |f: &str| DataError::Folder { path: path.to_owned(), folder: clean_name(f), list: words.to_owned() };
    folders.map(|f| by.get(clean_name(f).as_str()).copied().ok_or_else(|| missing(f))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(list: &[Named], folders: &[&str]) -> Result<Vec<u32>, DataError> {
        index(list, folders.iter().copied(), Path::new("data"), "the list")
    }

    #[test]
    fn imagenet_is_whole_and_sorted() {
        let all = imagenet();
        assert_eq!((all.len(), all[0].word.as_str(), all[999].word.as_str()), (1000, "n01440764", "n15075141"));
        assert!(all.windows(2).all(|w| w[0].word < w[1].word));
        // Imagenette's church and parachute.
        assert_eq!(at(&all, &["n03028079", "n03888257"]).unwrap(), [497, 701]);
        assert!(all_imagenet(["n03028079"].into_iter()) && !all_imagenet(["n03028079", "cat"].into_iter()));
    }

    #[test]
    fn lists_name_classes_by_word_or_line() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(list(dir.path()).unwrap(), None);
        std::fs::write(dir.path().join("classes.txt"), "polar bear\ncat\n\npolar fox\n").unwrap();
        let all = list(dir.path()).unwrap().unwrap();
        assert_eq!(at(&all, &["polar fox", "cat", "polar"]).unwrap(), [2, 1, 0]);
        assert!(matches!(at(&all, &["dog"]), Err(DataError::Folder { folder, .. }) if folder == "dog"));
        std::fs::remove_file(dir.path().join("classes.txt")).unwrap();
        std::fs::write(dir.path().join("imagenet_class_index.json"), r#"{"1":["b","x"],"0":["a","y"]}"#).unwrap();
        let all = list(dir.path()).unwrap().unwrap();
        assert_eq!((all[1].word.as_str(), all[0].line.as_str()), ("b", "a y"));
    }
}
