//! IDX files, the format of MNIST and its relatives (LeCun, Cortes, Burges): `*-images-idx3-ubyte` beside
//! `*-labels-idx1-ubyte`, each perhaps gzipped.
//!
//! Layout: two zero bytes, type 8 (unsigned byte), number of axes, the axes as big-endian u32, then the bytes.

use super::part::{self, Part};
use super::raw::{self, Raw, Shape};
use super::{DataCard, DataError, Dataset, Source, clean_name, file_name, in_folder, names};
use std::path::{Path, PathBuf};

const IMAGES: [u8; 4] = [0, 0, 8, 3];
const LABELS: [u8; 4] = [0, 0, 8, 1];
/// Larger images than any IDX file holds.
const MAX_SIDE: usize = 4096;

/// Whether a file's first bytes are those of IDX images or labels.
pub(super) fn looks_like(head: &[u8]) -> bool {
    head.starts_with(&IMAGES) || head.starts_with(&LABELS)
}

/// The image file of a directory's part; `None` without IDX images.
///
/// # Errors
/// It has IDX images, and none of the wished part.
pub(super) fn find(files: &[PathBuf], part: Option<Part>, dir: &Path) -> Result<Option<PathBuf>, DataError> {
    let images = |name: String| name.contains("images") && name.contains("idx3");
    let all: Vec<PathBuf> = files.iter().filter(|f| images(file_name(f))).cloned().collect();
    if all.is_empty() {
        return Ok(None);
    }
    Ok(part::choose(&all, part, dir)?.into_iter().next())
}

/// Opens an image file; its labels lie beside it.
pub(super) fn open(path: &Path, spec: &str) -> Result<Dataset, DataError> {
    let images = raw::read(path)?;
    if images.starts_with(&LABELS) {
        return Err(bad(path, "it holds labels, the images are wanted"));
    }
    let (axes, pixels) = parse(&images).ok_or_else(|| bad(path, "its header is not that of bytes"))?;
    let [count, height, width] = axes[..] else {
        return Err(bad(path, format!("it has {} axes, images have 3", axes.len())));
    };
    if !(1..=MAX_SIDE).contains(&height) || !(1..=MAX_SIDE).contains(&width) {
        return Err(bad(path, format!("its images are {height}x{width}")));
    }
    if count.checked_mul(height * width) != Some(pixels.len()) {
        let have = pixels.len();
        let reason =
            format!("{count} images of {height}x{width} do not fit its {have} bytes: it is cut off or damaged");
        return Err(bad(path, reason));
    }
    if count == 0 {
        return Err(DataError::empty(spec, "the file lists no images"));
    }
    let beside = labels_beside(path)?;
    let bytes = raw::read(&beside)?;
    let labels = match parse(&bytes) {
        Some((axes, labels)) if axes == [labels.len()] => labels,
        _ => return Err(bad(&beside, "its header is not that of one label byte for each image, or it is cut off")),
    };
    if labels.len() != count {
        return Err(bad(&beside, format!("it has {} labels for {count} images", labels.len())));
    }
    let labels: Vec<u32> = labels.iter().map(|&l| u32::from(l)).collect();
    // MNIST's relatives differ in their classes, and nothing in the files says how many there are.
    let classes = labels.iter().max().map_or(0, |&l| l as usize + 1);
    let raw = Raw::new(Shape { width, height, channels: 1 }, 0, vec![pixels.to_vec()], labels)
        .ok_or_else(|| bad(path, "its images and labels do not fit"))?;
    let card = DataCard::of(name_of(path), spec, count, names::numbers(classes));
    Ok(Dataset::new(card, Source::Raw(raw), false))
}

fn bad(path: &Path, reason: impl Into<String>) -> DataError {
    DataError::Idx { path: path.to_owned(), reason: reason.into() }
}

fn name_of(path: &Path) -> String {
    let stem = file_name(path);
    let stem = clean_name(stem.split("images").next().unwrap_or(&stem).trim_end_matches(['-', '.', '_']));
    in_folder(path, stem)
}

/// Axes and content.
fn parse(bytes: &[u8]) -> Option<(Vec<usize>, &[u8])> {
    let (magic, mut rest) = bytes.split_first_chunk::<4>()?;
    if magic[..3] != [0, 0, 8] {
        return None;
    }
    let mut axes = Vec::new();
    for _ in 0..magic[3] {
        let (axis, after) = rest.split_first_chunk::<4>()?;
        axes.push(u32::from_be_bytes(*axis) as usize);
        rest = after;
    }
    Some((axes, rest))
}

fn labels_beside(path: &Path) -> Result<PathBuf, DataError> {
    let name = file_name(path);
    let bare = name.strip_suffix(".gz").unwrap_or(&name);
    let other = bare.replace("images", "labels").replace("idx3", "idx1");
    let candidates = [other.clone(), format!("{other}.gz")];
    let found = candidates.iter().filter(|n| **n != name).map(|n| path.with_file_name(n)).find(|p| p.is_file());
    found.ok_or_else(|| {
        bad(path, format!("its labels are missing: `{}` or `{0}.gz` is wanted beside it", clean_name(&other)))
    })
}
