//! Content-addressed files beside the journal: compressed models and other heavy results.
//!
//! Invariants: a file under its final name is complete and never changes (written under a temporary name, synced, renamed,
//! folder synced); its name is the BLAKE3 hash of its bytes, so equal content is stored once.

use super::files;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// The artifacts of one session.
#[derive(Debug, Clone)]
pub struct Artifacts {
    dir: PathBuf,
}

impl Artifacts {
    /// Artifacts in `dir`, which is made; left-overs of writes that did not end are removed.
    ///
    /// # Errors
    /// It cannot be made, or is a link: what lies behind one is not ours to remove.
    pub fn open(dir: &Path) -> io::Result<Artifacts> {
        files::make_dir(dir)?;
        for entry in std::fs::read_dir(dir)?.flatten() {
            let ours = entry.file_name().to_string_lossy().starts_with(".tmp-");
            if ours && entry.file_type().is_ok_and(|t| t.is_file()) {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok(Artifacts { dir: dir.to_owned() })
    }

    /// Stores what `write` puts at the path it is given; returns the name to find it by.
    pub fn put<E: From<io::Error>>(
        &self,
        extension: &str,
        write: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<String, E> {
        static COUNT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let n = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let tmp = Temporary(self.dir.join(format!(".tmp-{}-{n}.{extension}", std::process::id())));
        write(&tmp.0)?;
        let file = File::open(&tmp.0)?;
        file.sync_all()?;
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(&file)?;
        let name = format!("{}.{extension}", hasher.finalize().to_hex());
        std::fs::rename(&tmp.0, self.dir.join(&name))?;
        File::open(&self.dir)?.sync_all()?;
        Ok(name)
    }

    /// Where the artifact of that name lies; `None` when it is not there or is no artifact's name.
    pub fn path(&self, name: &str) -> Option<PathBuf> {
        let plain = !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\0']);
        let path = self.dir.join(name);
        (plain && path.is_file()).then_some(path)
    }
}

/// A file that goes away unless it was renamed.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0));
    }
}

/// Replaces `path` by `bytes`, whole or not at all.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let tmp = Temporary(path.with_file_name(format!(".tmp-{}-{name}", std::process::id())));
    let mut file = File::create(&tmp.0)?;
    io::Write::write_all(&mut file, bytes)?;
    file.sync_all()?;
    std::fs::rename(&tmp.0, path)?;
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => File::open(dir)?.sync_all(),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_content_is_stored_once_and_failures_leave_nothing() {
        let dir = tempfile::tempdir().expect("temp dir");
        let a = Artifacts::open(dir.path()).expect("opens");
        let put = |text: &str| a.put("bin", |p| std::fs::write(p, text)).expect("stored");
        let (one, two) = (put("one"), put("two"));
        assert_eq!(one, put("one"));
        assert_ne!(one, two);
        let path = a.path(&one).expect("there");
        assert_eq!(std::fs::read_to_string(path).expect("readable"), "one");
        let failed: io::Result<String> = a.put("bin", |p| {
            std::fs::write(p, "half")?;
            Err(io::Error::other("no"))
        });
        assert!(failed.is_err());
        assert_eq!(std::fs::read_dir(dir.path()).expect("listed").count(), 2);
        assert_eq!(a.path("../secret"), None);
        std::fs::write(dir.path().join(".tmp-1-1.bin"), "left over").expect("written");
        Artifacts::open(dir.path()).expect("opens");
        assert_eq!(std::fs::read_dir(dir.path()).expect("listed").count(), 2);
    }

    #[test]
    fn what_lies_behind_a_link_is_left_alone() {
        let dir = tempfile::tempdir().expect("temp dir");
        let (other, link) = (dir.path().join("other"), dir.path().join("artifacts"));
        std::fs::create_dir(&other).expect("made");
        std::fs::write(other.join(".tmp-mine"), "mine").expect("written");
        std::os::unix::fs::symlink(&other, &link).expect("linked");
        let error = Artifacts::open(&link).expect_err("a link").to_string();
        assert!(error.contains("a link") && error.contains("hint:"), "{error}");
        assert!(other.join(".tmp-mine").is_file());
        // Nor does a folder of that name stop a session.
        std::fs::create_dir(other.join(".tmp-folder")).expect("made");
        Artifacts::open(&other).expect("opens");
    }

    #[test]
    fn atomic_writes_replace() {
        let dir = tempfile::tempdir().expect("temp dir");
        let path = dir.path().join("report.json");
        write_atomically(&path, b"1").expect("written");
        write_atomically(&path, b"2").expect("written");
        assert_eq!(std::fs::read(&path).expect("readable"), b"2");
        assert_eq!(std::fs::read_dir(dir.path()).expect("listed").count(), 1);
    }
}
