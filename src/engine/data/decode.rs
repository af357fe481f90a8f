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

/// The first bytes of a file.
pub(super) fn head(path: &Path) -> std::io::Result<Vec<u8>> {
    begin(path, 512)
}

/// The encoded bytes of one file, no more of them than an image may have and one.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, DataError> {
    begin(path, MAX_ENCODED + 1).map_err(DataError::io(path))
}

/// A file's bytes, `most` of them.
fn begin(path: &Path, most: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    crate::files::open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Decodes the bytes of an image, whose format they tell; `name` says where they come from.
pub(super) fn decode(bytes: &[u8], name: &dyn Fn() -> String) -> Result<RgbImage, DataError> {
    let bad =
        |reason: String| DataError::Image { name: super::clean_long(&name()), reason: super::clean_long(&reason) };
    if bytes.len() as u64 > MAX_ENCODED {
        return Err(bad("the file is far too large".into()));
    }
    // The decoder paints what is missing of a JPEG grey; Pillow and torchvision refuse it.
    if bytes.starts_with(&JPEG) && !jpeg_is_whole(bytes) {
        return Err(bad("it is cut off: the end of the picture is missing".into()));
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

/// How a JPEG file begins: start of image and the next marker's first byte.
const JPEG: [u8; 3] = [0xff, 0xd8, 0xff];

/// Whether a JPEG's scans are followed by its end-of-image marker (ITU-T T.81, annex B). What follows that does not count.
fn jpeg_is_whole(bytes: &[u8]) -> bool {
    let mut at = 2;
    loop {
        // To the next marker: past entropy-coded data, in which 0xff is followed by a stuffed zero or a restart marker.
        let Some(next) = bytes.get(at..).and_then(|rest| rest.iter().position(|b| *b == 0xff)) else { return false };
        at += next + 1;
        match bytes.get(at) {
            None => return false,
            Some(0xd9) => return true,
            // A fill byte is the marker's next first byte.
            Some(0xff) => {}
            Some(0x00 | 0x01 | 0xd0..=0xd8) => at += 1,
            Some(_) => {
                let Some(&[high, low]) = bytes.get(at + 1..at + 3) else { return false };
                at += 1 + usize::from(u16::from_be_bytes([high, low])).max(2);
            }
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// 24 by 24 pixels as Pillow writes lossy WebP.
    const WEBP: &str = "524946466c0000005745425056503820600000001004009d012a180018003ec956a24bafa52322b7f55801f019096a009d32847030b\
        17694078b7b235400e43990a84bff8568de3f61ffc61723ad96fc2f9f7688b329e1ec31b3f6dd351ca33e220e9379cdb3b6ddef478cb9c44c26aa38a0\
        0000";

    #[test]
    fn a_picture_that_is_cut_off_is_no_picture() {
        let side = 24;
        let pixel = |x: u32, y: u32| image::Rgb([(x * y % 251) as u8, (x * 7) as u8, (y * 9) as u8]);
        let picture = RgbImage::from_fn(side, side, pixel);
        let encoded = |format| {
            let mut bytes = Cursor::new(Vec::new());
            picture.write_to(&mut bytes, format).expect("encodes");
            bytes.into_inner()
        };
        let digits: Vec<u8> = WEBP.bytes().filter(u8::is_ascii_hexdigit).collect();
        let digit = |d: u8| (d as char).to_digit(16).expect("a digit") as u8;
        let lossy: Vec<u8> = digits.chunks_exact(2).map(|d| digit(d[0]) << 4 | digit(d[1])).collect();
        use image::ImageFormat::{Jpeg, Png, WebP};
        for (kind, bytes) in
            [("png", encoded(Png)), ("webp", encoded(WebP)), ("lossy webp", lossy), ("jpeg", encoded(Jpeg))]
        {
            let name = || kind.to_owned();
            let whole = decode(&bytes, &name).expect("whole");
            for cut in 0..bytes.len() {
                // What is missing may be a checksum or the mark of the end, but nothing of the picture.
                if let Ok(image) = decode(&bytes[..cut], &name) {
                    assert_eq!(image, whole, "{kind} cut at {cut} of {}", bytes.len());
                }
            }
        }
    }
}
