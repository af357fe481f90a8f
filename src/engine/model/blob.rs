//! Immutable bytes that tensors view: a file, copied into memory or mapped; bytes compiled into the program; an owned
//! buffer.
//!
//! Invariant: bytes that were read once stay what they were, or it is noticed. A file up to [`COPIED`] bytes is copied, and
//! what becomes of it later cannot matter. A larger one is mapped, since copying gigabytes costs more than watching them:
//! its length and times are compared around every use ([`Blob::state`]), and a page that is gone is no end of the process
//! ([`super::torn`]).

use super::torn::Watch;
use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::ops::Deref;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Files up to this many bytes are copied into memory: ImageNet's usual networks in f32 (a ViT-B/16 has 330 MiB), whose
/// packed weights take as much again in every plan that runs.
const COPIED: u64 = 512 << 20;

/// Cheap to clone. Files are opened for reading only.
#[derive(Clone)]
pub enum Blob {
    Mapped(Arc<Mapped>),
    Copied(Arc<Copied>),
    Static(&'static [u8]),
    Owned(Arc<[u8]>),
}

/// What tells one content of a file from another without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    device: u64,
    inode: u64,
    len: u64,
    /// Of content and of inode, seconds and nanoseconds: the second moves even when the first is put back.
    changed: [(i64, i64); 2],
}

impl Stamp {
    fn of(meta: &Metadata) -> Stamp {
        Stamp {
            device: meta.dev(),
            inode: meta.ino(),
            len: meta.len(),
            changed: [(meta.mtime(), meta.mtime_nsec()), (meta.ctime(), meta.ctime_nsec())],
        }
    }
}

/// A file mapped into memory, read-only.
pub struct Mapped {
    // Before the map, so that it stops watching before the addresses are somebody else's.
    watch: Watch,
    map: memmap2::Mmap,
    file: File,
    path: PathBuf,
    stamp: Mutex<Stamp>,
}

/// A file's bytes in memory of our own.
pub struct Copied {
    map: memmap2::Mmap,
    path: PathBuf,
    stamp: Stamp,
}

/// What became of the file behind a [`Blob`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FileState {
    /// There is none, it is a copy, or nothing happened to it.
    Same,
    /// Written to, renamed or touched: only its bytes can tell whether they are the same.
    Touched,
    /// Not what it was, in words.
    Other(String),
}

impl Blob {
    /// Opens the file at `path`.
    ///
    /// # Errors
    /// It cannot be read, is no regular file, or changed while it was read.
    pub fn open(path: &Path) -> io::Result<Blob> {
        Blob::open_copying(path, if MAP_ALL.get() { 0 } else { COPIED })
    }

    /// Opens the file at `path` for a look at some of it: mapped, whatever its size.
    ///
    /// # Errors
    /// As [`Blob::open`].
    pub(super) fn look(path: &Path) -> io::Result<Blob> {
        Blob::open_copying(path, 0)
    }

    /// As [`Blob::open`], one of the files of a model that has `all` bytes together: shards are as large as their sum.
    ///
    /// # Errors
    /// As [`Blob::open`].
    pub fn open_shard(path: &Path, all: u64) -> io::Result<Blob> {
        if all > COPIED { Blob::open_copying(path, 0) } else { Blob::open(path) }
    }

    /// As [`Blob::open`]; files of more than `most` bytes are mapped.
    fn open_copying(path: &Path, most: u64) -> io::Result<Blob> {
        let file = crate::files::open(path)?;
        let stamp = Stamp::of(&file.metadata()?);
        if stamp.len == 0 {
            return Ok(Blob::Static(&[]));
        }
        if stamp.len > most {
            // SAFETY: the map is read-only. That another process may write to the file or cut it is what `state` and
            // `Watch` are for.
            let map = unsafe { memmap2::Mmap::map(&file)? };
            if let Some(watch) = Watch::over(&map) {
                let (path, stamp) = (path.to_owned(), Mutex::new(stamp));
                return Ok(Blob::Mapped(Arc::new(Mapped { watch, map, file, path, stamp })));
            }
        }
        copy(file, path, stamp)
    }

    /// What became of the file since it was opened, or since [`Blob::renew`].
    pub(super) fn state(&self) -> FileState {
        let Blob::Mapped(m) = self else { return FileState::Same };
        if m.watch.is_torn() {
            return FileState::Other("a part of it could not be read any more".to_owned());
        }
        let old = *m.stamp.lock().unwrap_or_else(PoisonError::into_inner);
        match m.file.metadata().map(|meta| Stamp::of(&meta)) {
            Err(e) => FileState::Other(format!("it cannot be asked for its size: {e}")),
            Ok(now) if now == old => FileState::Same,
            Ok(now) if now.len != old.len => {
                FileState::Other(format!("it has {} bytes, and had {} when it was opened", now.len, old.len))
            }
            Ok(_) => FileState::Touched,
        }
    }

    /// The mapped file's stamp now.
    pub(super) fn stamp(&self) -> Option<Stamp> {
        let Blob::Mapped(m) = self else { return None };
        m.file.metadata().ok().map(|meta| Stamp::of(&meta))
    }

    /// Takes a later `stamp` for the one that it was opened with: its bytes are known to be the same.
    pub(super) fn renew(&self, stamp: Option<Stamp>) {
        if let (Blob::Mapped(m), Some(stamp)) = (self, stamp) {
            *m.stamp.lock().unwrap_or_else(PoisonError::into_inner) = stamp;
        }
    }

    pub(super) fn is_mapped(&self) -> bool {
        matches!(self, Blob::Mapped(_))
    }

    /// The file that these bytes came from.
    pub(super) fn path(&self) -> Option<&Path> {
        match self {
            Blob::Mapped(m) => Some(&m.path),
            Blob::Copied(c) => Some(&c.path),
            Blob::Static(_) | Blob::Owned(_) => None,
        }
    }

    /// At the path of a copy there is no longer the file that was copied. The copy is what it was.
    pub(super) fn is_outdated(&self) -> bool {
        let Blob::Copied(c) = self else { return false };
        std::fs::metadata(&c.path).map_or(true, |meta| {
            let now = Stamp::of(&meta);
            // A file that is only renamed or linked has the same content.
            Stamp { changed: [now.changed[0], c.stamp.changed[1]], ..now } != c.stamp
        })
    }

    /// Tells the system that these bytes are not needed for now: pages of a mapped file leave memory, and come back from
    /// the file when they are read again. A hint; nothing else changes.
    pub fn release(&self, offset: usize, len: usize) {
        if let Blob::Mapped(m) = self {
            // SAFETY: the map is shared and read-only, so that dropped pages come back with the file's own bytes.
            let _ = unsafe { m.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, offset, len) };
        }
    }
}

fn copy(mut file: File, path: &Path, stamp: Stamp) -> io::Result<Blob> {
    let len = usize::try_from(stamp.len).map_err(io::Error::other)?;
    // Pages of their own rather than the heap: aligned for every element type, and given back as soon as they are free.
    let mut map = memmap2::MmapMut::map_anon(len)?;
    let read = file.read_exact(&mut map);
    if Stamp::of(&file.metadata()?) != stamp || read.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::UnexpectedEof) {
        return Err(io::Error::other("it changed while it was read"));
    }
    read?;
    Ok(Blob::Copied(Arc::new(Copied { map: map.make_read_only()?, path: path.to_owned(), stamp })))
}

impl Deref for Blob {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Blob::Mapped(m) => &m.map,
            Blob::Copied(c) => &c.map,
            Blob::Static(s) => s,
            Blob::Owned(o) => o,
        }
    }
}

/// For [`bytes::Bytes`] to hold on to a blob.
impl AsRef<[u8]> for Blob {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Blob::Mapped(_) => "mapped",
            Blob::Copied(_) => "copied",
            Blob::Static(_) => "static",
            Blob::Owned(_) => "owned",
        };
        write!(f, "Blob({kind}, {} bytes)", self.len())
    }
}

thread_local! {
    static MAP_ALL: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Whether files that this thread opens are mapped however small they are, so that tests need no large ones.
#[doc(hidden)]
pub fn map_all(on: bool) {
    MAP_ALL.set(on);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    fn written(bytes: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), bytes).expect("written");
        file
    }

    #[test]
    fn a_copy_is_what_it_was_whatever_becomes_of_the_file() {
        let file = written(&[7; 10_000]);
        let blob = Blob::open(file.path()).expect("opens");
        assert!(!blob.is_mapped() && !blob.is_outdated());
        file.as_file().set_len(10).expect("cut");
        assert!(blob.iter().all(|b| *b == 7) && blob.len() == 10_000);
        assert!(blob.is_outdated());
        assert_eq!(blob.state(), FileState::Same);
    }

    #[test]
    fn a_mapped_file_that_is_written_to_is_noticed() {
        let file = written(&[7; 10_000]);
        let blob = Blob::open_copying(file.path(), 0).expect("opens");
        assert!(blob.is_mapped() && blob.state() == FileState::Same);
        // Later than the clock's grain, which file times have.
        std::thread::sleep(std::time::Duration::from_millis(20));
        file.as_file().write_all_at(&[8], 5000).expect("written");
        assert_eq!(blob.state(), FileState::Touched);
        blob.renew(blob.stamp());
        assert_eq!(blob.state(), FileState::Same);
    }

    #[test]
    fn a_mapped_file_that_is_cut_ends_nothing() {
        let file = written(&[7; 100_000]);
        let blob = Blob::open_copying(file.path(), 0).expect("opens");
        file.as_file().set_len(5000).expect("cut");
        // Without a handler, this is where a process ends.
        assert_eq!((blob[0], blob[99_999], blob[50_000]), (7, 0, 0));
        assert!(matches!(blob.state(), FileState::Other(_)));
        // Other files are not torn by it, and the place is free again.
        drop(blob);
        let other = written(&[1; 100]);
        assert_eq!(Blob::open_copying(other.path(), 0).expect("opens").state(), FileState::Same);
    }

    #[test]
    fn what_is_no_regular_file_is_refused_at_once() {
        let dir = tempfile::tempdir().expect("temp dir");
        let pipe = dir.path().join("pipe");
        let name = std::ffi::CString::new(pipe.to_str().expect("utf-8")).expect("plain");
        // SAFETY: a plain system call with a terminated string.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        for path in [pipe.as_path(), dir.path(), Path::new("/dev/zero")] {
            let error = Blob::open(path).expect_err("refused").to_string();
            assert!(error.contains("not a regular file"), "{}: {error}", path.display());
        }
    }
}
