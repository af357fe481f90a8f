//! A model's file replaced whole or not at all, with the hash of what was written. Not here: what is written.

use super::files;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// Hashes what passes through.
struct Hashing<W> {
    inner: W,
    hash: blake3::Hasher,
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        let n = self.inner.write(buf)?;
        self.hash.update(&buf[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.inner.flush()
    }
}

/// Replaces the file `path` by what `body` writes, whole or not at all. Returns the BLAKE3 (hex) of what was written.
///
/// # Errors
/// As `body` and [`files::replace`]; an older file of that name then stays as it was.
pub(super) fn replace(
    path: &Path,
    body: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
) -> std::io::Result<String> {
    files::replace(path, |new| {
        let mut out = Hashing { inner: BufWriter::new(File::create_new(new)?), hash: blake3::Hasher::new() };
        body(&mut out)?;
        out.flush()?;
        Ok(out.hash.finalize().to_hex().to_string())
    })
}
