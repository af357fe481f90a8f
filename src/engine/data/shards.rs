//! WebDataset: tar files in which consecutive members of one name belong together, `0001.jpg` with `0001.cls` (a number)
//! or `0001.json` (with a `label`).
//!
//! Opening reads the members' headers and labels and seeks past the images; images are read when a batch asks for them.

use super::decode::{self, MAX_ENCODED};
use super::{DataCard, DataError, Dataset, Encoded, Source, clean_name, file_name, names};
use bytes::Bytes;
use std::collections::HashSet;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Bytes of a tar's block: members fill whole ones, and one of zeros at least ends the archive (POSIX.1-1988, ustar).
const BLOCK: u64 = 512;
/// The largest label file.
const MAX_LABEL_BYTES: u64 = 1 << 20;

/// Where one image lies.
#[derive(Debug)]
struct Member {
    shard: u32,
    at: u64,
    size: u64,
    label: u32,
}

#[derive(Debug)]
struct Shards {
    paths: Vec<PathBuf>,
    members: Vec<Member>,
}

impl Shards {
    /// Shard and member of image `k`.
    fn place(&self, k: usize) -> Option<(&Path, &Member)> {
        let member = self.members.get(k)?;
        Some((self.paths.get(member.shard as usize)?, member))
    }
}

impl Encoded for Shards {
    fn label(&self, k: usize) -> Option<u32> {
        self.members.get(k).map(|m| m.label)
    }

    fn name(&self, k: usize) -> String {
        self.place(k).map_or_else(String::new, |(path, m)| format!("{} at byte {}", path.display(), m.at))
    }

    fn size(&self, k: usize) -> Option<u64> {
        self.members.get(k).map(|m| m.size)
    }

    fn stored(&self, picks: &[usize]) -> Vec<(String, u64)> {
        let places = picks.iter().filter_map(|&k| self.place(k));
        places.map(|(path, m)| (format!("{}@{}", file_name(path), m.at), m.size)).collect()
    }

    fn read(&self, k: usize) -> Result<Bytes, DataError> {
        let (path, member) = self.place(k).ok_or(DataError::Index { index: k, len: self.members.len() })?;
        let bytes = || {
            let mut file = crate::files::open(path)?;
            file.seek(SeekFrom::Start(member.at))?;
            let mut bytes = Vec::new();
            file.take(member.size).read_to_end(&mut bytes)?;
            Ok(bytes.into())
        };
        bytes().map_err(DataError::io(path))
    }
}

/// Members of one name, as they are gathered.
#[derive(Default)]
struct Sample {
    key: String,
    image: Option<(u64, u64)>,
    label: Option<u32>,
}

/// Opens tar files as one set, in the given order; `dir` may hold a list of class names.
pub(super) fn open(paths: &[PathBuf], dir: &Path, spec: &str) -> Result<Dataset, DataError> {
    let mut members = Vec::new();
    for (shard, path) in paths.iter().enumerate() {
        scan(path, shard as u32, &mut members)?;
    }
    let Some(most) = members.iter().map(|m| m.label).max() else {
        let hint = "no member ends in .jpg, .png or .webp: a WebDataset has `KEY.jpg` beside `KEY.cls`";
        return Err(DataError::empty(spec, hint));
    };
    let known = names::list(dir)?.filter(|n| n.len() > most as usize);
    let classes_known = known.is_some();
    let class_names = known.map_or_else(|| names::numbers(most as usize + 1), names::lines);
    let first = paths.first().map(|p| file_name(p)).unwrap_or_default();
    let card = DataCard::of(clean_name(first.trim_end_matches(".tar")), spec, members.len(), class_names);
    let shards = Shards { paths: paths.to_vec(), members };
    Ok(Dataset::new(card, Source::Encoded(Box::new(shards)), classes_known))
}

fn scan(path: &Path, shard: u32, members: &mut Vec<Member>) -> Result<(), DataError> {
    let io = DataError::io(path);
    let bad = |reason: String| DataError::Tar { path: path.to_owned(), reason };
    let damaged = |e: std::io::Error| bad(format!("it is damaged ({})", clean_name(&e.to_string())));
    let file = crate::files::open(path).map_err(io)?;
    let length = file.metadata().map_err(io)?.len();
    let mut archive = tar::Archive::new(file);
    let mut sample = Sample::default();
    let mut keys = HashSet::new();
    let mut flush = |s: Sample| match (s.image, s.label) {
        (None, _) => Ok(()),
        (Some(_), None) => Err(bad(format!("`{}` has an image and no `.cls` or `.json` label", clean_name(&s.key)))),
        (Some((at, size)), Some(label)) => {
            members.push(Member { shard, at, size, label });
            match keys.replace(s.key) {
                Some(key) => Err(bad(format!("`{}` is in it twice", clean_name(&key)))),
                None => Ok(()),
            }
        }
    };
    let mut end = 0;
    for entry in archive.entries_with_seek().map_err(damaged)? {
        let mut entry = entry.map_err(damaged)?;
        if !matches!(entry.header().entry_type(), tar::EntryType::Regular | tar::EntryType::Continuous) {
            continue;
        }
        let (at, size) = (entry.raw_file_position(), entry.size());
        end = at.saturating_add(size);
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let (key, kind) = split(&name);
        if at.checked_add(size).is_none_or(|end| end > length) {
            return Err(bad(format!("`{}` reaches past its end: it is cut off", clean_name(&name))));
        }
        if key != sample.key {
            flush(std::mem::take(&mut sample))?;
            sample.key = key.to_owned();
        }
        let last = kind.rsplit('.').next().unwrap_or_default();
        if decode::is_image(Path::new(&format!("x.{last}"))) {
            if size > MAX_ENCODED {
                return Err(bad(format!("`{}` has {size} bytes, too many for an image", clean_name(&name))));
            }
            // `jpg` rather than `mask.png`.
            if sample.image.is_none() || !kind.contains('.') {
                sample.image = Some((at, size));
            }
        } else if last == "cls" || (last == "json" && sample.label.is_none()) {
            let mut bytes = Vec::new();
            entry.by_ref().take(MAX_LABEL_BYTES).read_to_end(&mut bytes).map_err(damaged)?;
            let label = if last == "cls" { number(&bytes) } else { field(&bytes) };
            match label {
                Some(label) if (label as usize) < names::MAX_CLASSES => sample.label = Some(label),
                None if last == "json" => {}
                _ => return Err(bad(format!("`{}` holds no class number", clean_name(&name)))),
            }
        }
    }
    flush(sample)?;
    // The reader takes a file that ends between two members for whole.
    if length < end.next_multiple_of(BLOCK).saturating_add(BLOCK) {
        return Err(bad("it is cut off: the mark of its end is missing".to_owned()));
    }
    Ok(())
}

/// Key and kind: what stands before and after the first dot of the last path piece.
fn split(name: &str) -> (&str, String) {
    let start = name.rfind('/').map_or(0, |i| i + 1);
    match name[start..].find('.') {
        Some(dot) => (&name[..start + dot], name[start + dot + 1..].to_ascii_lowercase()),
        None => (name, String::new()),
    }
}

fn number(bytes: &[u8]) -> Option<u32> {
    std::str::from_utf8(bytes).ok()?.trim().parse().ok()
}

fn field(bytes: &[u8]) -> Option<u32> {
    let json: serde_json::Value = serde_json::from_slice(bytes).ok()?;
    let value = ["label", "cls", "class_id", "class", "target"].iter().find_map(|k| json.get(k)?.as_u64())?;
    u32::try_from(value).ok()
}

/// Whether a file begins like a tar.
pub(super) fn looks_like(head: &[u8]) -> bool {
    head.get(257..262).is_some_and(|m| m == b"ustar")
}
