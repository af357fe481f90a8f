//! Writing the container: version 3, tensors at multiples of 32 bytes, one in memory at a time.
//!
//! Not here: what a model's metadata and tensors are (`llamacpp`), and replacing files (`written`).

use super::Fields;
use std::borrow::Cow;
use std::io::{self, Write};

/// Where tensors begin.
const ALIGNMENT: usize = 32;

/// A tensor that is to be written.
#[derive(Debug, Clone)]
pub(in crate::model) struct Info {
    pub name: String,
    /// Outermost first.
    pub shape: Vec<usize>,
    /// `ggml_type`'s number.
    pub kind: u32,
    pub bytes: usize,
}

/// Writes `fields` and the tensors `infos`, whose bytes `body` is asked for one after the other.
///
/// # Errors
/// As `out` and `body`; for a body of another length than its info tells.
pub(in crate::model) fn write<'a>(
    out: &mut dyn Write,
    fields: &Fields,
    infos: &[Info],
    mut body: impl FnMut(usize) -> io::Result<Cow<'a, [u8]>>,
) -> io::Result<()> {
    let head = header(fields, infos);
    out.write_all(&head)?;
    let mut at = head.len();
    for (i, info) in infos.iter().enumerate() {
        at = pad(out, at)?;
        let bytes = body(i)?;
        if bytes.len() != info.bytes {
            return Err(io::Error::other(format!("`{}` has {} bytes, not {}", info.name, bytes.len(), info.bytes)));
        }
        out.write_all(&bytes)?;
        at += bytes.len();
    }
    // Readers count the padding after the last tensor as well.
    pad(out, at).map(drop)
}

fn pad(out: &mut dyn Write, at: usize) -> io::Result<usize> {
    let next = at.next_multiple_of(ALIGNMENT);
    out.write_all(&[0; ALIGNMENT][..next - at])?;
    Ok(next)
}

fn header(fields: &Fields, infos: &[Info]) -> Vec<u8> {
    let text = |out: &mut Vec<u8>, text: &str| {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text.as_bytes());
    };
    let mut out = super::MAGIC.to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend((infos.len() as u64).to_le_bytes());
    out.extend((fields.iter().len() as u64).to_le_bytes());
    for (key, value) in fields.iter() {
        text(&mut out, key);
        out.extend(value);
    }
    let mut offset = 0usize;
    for info in infos {
        text(&mut out, &info.name);
        out.extend((info.shape.len() as u32).to_le_bytes());
        info.shape.iter().rev().for_each(|d| out.extend((*d as u64).to_le_bytes()));
        out.extend(info.kind.to_le_bytes());
        out.extend((offset as u64).to_le_bytes());
        offset = (offset + info.bytes).next_multiple_of(ALIGNMENT);
    }
    out
}
