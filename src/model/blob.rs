//! Immutable bytes that tensors view: a memory-mapped file, bytes compiled into the program, or an owned buffer.

use std::fmt;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

/// Cheap to clone. A map is read-only; the file under it is never written by this program.
#[derive(Clone)]
pub enum Blob {
    Mapped(Arc<memmap2::Mmap>),
    Static(&'static [u8]),
    Owned(Arc<[u8]>),
}

impl Blob {
    /// Maps `path`, a regular file, read-only.
    pub fn map(path: &Path) -> std::io::Result<Blob> {
        let file = crate::files::open(path)?;
        if file.metadata()?.len() == 0 {
            return Ok(Blob::Static(&[]));
        }
        // SAFETY: the map is read-only and private. Another process that truncates the file under us could still
        // raise SIGBUS; checkpoints are not edited in place, and copying gigabytes to rule it out costs more.
        let map = unsafe { memmap2::Mmap::map(&file)? };
        Ok(Blob::Mapped(Arc::new(map)))
    }

    /// Tells the system that these bytes are not needed for now: pages of a mapped file leave memory, and come back from
    /// the file when they are read again. A hint; nothing else changes.
    pub fn release(&self, offset: usize, len: usize) {
        #[cfg(unix)]
        if let Blob::Mapped(map) = self {
            // SAFETY: the map is shared and read-only, so that dropped pages come back with the file's own bytes.
            let _ = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, offset, len) };
        }
        #[cfg(not(unix))]
        let _ = (offset, len);
    }
}

impl Deref for Blob {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Blob::Mapped(m) => m,
            Blob::Static(s) => s,
            Blob::Owned(o) => o,
        }
    }
}

impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Blob::Mapped(_) => "mapped",
            Blob::Static(_) => "static",
            Blob::Owned(_) => "owned",
        };
        write!(f, "Blob({kind}, {} bytes)", self.len())
    }
}
