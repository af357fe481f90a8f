//! Content-addressed files beside the journal: compressed models and other heavy results.
//!
//! Invariants: a file under its final name is complete and never changes (written under a temporary name, synced, renamed,
//! folder synced); its name is the BLAKE3 hash of its bytes, so equal content is stored once.

use super::private;
use crate::files::{self, Scratch};
use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
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
        private::make_dir(dir)?;
        private::mend(dir)?;
        // Earlier versions wrote to files of these names in this folder, which is nobody else's.
        for entry in std::fs::read_dir(dir)?.flatten() {
            let name = entry.file_name();
            let old = |n: &str| n.starts_with(".tmp-") || n.starts_with("..tmp-");
            if old(&name.to_string_lossy()) && entry.file_type().is_ok_and(|t| t.is_file()) {
                std::fs::remove_file(entry.path())?;
            }
        }
        // Making one removes what the dead left.
        drop(Scratch::within(dir)?);
        Ok(Artifacts { dir: dir.to_owned() })
    }

    /// Stores what `write` puts at the path it is given; returns the name to find it by.
    pub fn put<E: From<io::Error>>(
        &self,
        extension: &str,
        write: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<String, E> {
        let scratch = Scratch::within(&self.dir)?;
        let new = scratch.path().join(format!("new.{extension}"));
        write(&new)?;
        let file = files::open(&new)?;
        file.set_permissions(Permissions::from_mode(0o600))?;
        file.sync_all()?;
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(&file)?;
        let name = format!("{}.{extension}", hasher.finalize().to_hex());
        std::fs::rename(&new, self.dir.join(&name))?;
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
        for old in [".tmp-1-1.bin", "..tmp-1-1.bin.1-0.tmp"] {
            std::fs::write(dir.path().join(old), "left over").expect("written");
        }
        // What a writer was at when it was killed.
        let dead = dir.path().join(".paring-0123456789abcdef.tmp");
        std::fs::create_dir(&dead).expect("made");
        std::fs::write(dead.join("new.bin"), "left over").expect("written");
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
        files::write(&path, b"1").expect("written");
        files::write(&path, b"2").expect("written");
        assert_eq!(std::fs::read(&path).expect("readable"), b"2");
        assert_eq!(std::fs::read_dir(dir.path()).expect("listed").count(), 1);
    }
}
