//! One encoded image → RGB bytes, as Pillow's `open(..).convert("RGB")` gives them: an alpha channel is dropped, grey is
//! repeated, no rotation by EXIF.
//!
//! PNG is exact. JPEG decoders differ in the last grey level or two (inverse transform, chroma upsampling); see
//! `tests/conformance/`.

use super::DataError;
use image::{ImageReader, RgbImage};
use std::io::{Cursor, Read};
use std::path::Path;

/// Limits for decoding one foreign image: sides, and the bytes of its decoded form (some 89 million pixels, the size from
/// which Pillow warns of a decompression bomb).
const MAX_SIDE: u32 = 20_000;
const MAX_ALLOC: u64 = 268 << 20;
/// The largest encoded image.
pub(super) const MAX_ENCODED: u64 = 128 << 20;

/// Decodes one file; the format is told by its bytes.
pub(super) fn file(path: &Path) -> Result<RgbImage, DataError> {
    let name = || path.display().to_string();
    let io = |source| DataError::Io { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    std::fs::File::open(path).map_err(io)?.take(MAX_ENCODED + 1).read_to_end(&mut bytes).map_err(io)?;
    decode(&bytes, &name)
}

/// Decodes the bytes of an image; `name` says where they come from.
pub(super) fn decode(bytes: &[u8], name: &dyn Fn() -> String) -> Result<RgbImage, DataError> {
    let bad =
        |reason: String| DataError::Image { name: super::clean_long(&name()), reason: super::clean_long(&reason) };
    if bytes.len() as u64 > MAX_ENCODED {
        return Err(bad("the file is far too large".into()));
    }
    let reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format();
    let mut reader = reader.map_err(|e| bad(e.to_string()))?;
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

/// Side lengths (width, height) of an encoded image, from its header.
pub(super) fn dimensions(bytes: &[u8]) -> Option<(u32, u32)> {
    ImageReader::new(Cursor::new(bytes)).with_guessed_format().ok()?.into_dimensions().ok()
}

/// Whether a name ends like an image that is read.
pub(super) fn is_image(path: &Path) -> bool {
    let known = ["png", "jpg", "jpeg", "webp"];
    path.extension().is_some_and(|e| known.iter().any(|k| e.eq_ignore_ascii_case(k)))
}
