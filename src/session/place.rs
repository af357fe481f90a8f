//! Where sessions live: `$PARING_HOME` or the XDG state folder, one folder a session, and the socket's runtime folder.
//!
//! Invariants: names are plain (no separators, not hidden); the runtime folder belongs to this user and to nobody else; a
//! session's folder is private from the moment it is there.

use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// What a session leaves in its folder besides its journal.
pub(super) const ARTIFACTS: &str = "artifacts";
pub(super) const BASELINE: &str = "baseline.bits";

/// Why a place cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    #[error("`{0}` is no session name; hint: letters, digits, `-`, `_` and `.`, at most 64, not starting with a dot")]
    Name(String),
    #[error("no home folder is known; hint: set PARING_HOME to a folder for sessions")]
    NoHome,
    #[error("runtime folder `{path}`: {message}; hint: set XDG_RUNTIME_DIR to a folder of your own")]
    Runtime { path: String, message: String },
}

/// The folder and socket of one session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub name: String,
    pub dir: PathBuf,
}

fn var(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from)
}

/// `$PARING_HOME`, or `$XDG_STATE_HOME/paring`, or `~/.local/state/paring`.
pub fn home() -> Result<PathBuf, PlaceError> {
    var("PARING_HOME")
        .or_else(|| var("XDG_STATE_HOME").map(|d| d.join("paring")))
        .or_else(|| var("HOME").map(|d| d.join(".local/state/paring")))
        .ok_or(PlaceError::NoHome)
}

/// Measurements that several sessions can share, by content.
pub fn cache() -> Result<PathBuf, PlaceError> {
    Ok(home()?.join("cache"))
}

/// The folder for sockets: `$XDG_RUNTIME_DIR/paring`, or `/tmp/paring-UID`; made, and checked to be ours alone.
pub fn runtime() -> Result<PathBuf, PlaceError> {
    // SAFETY: getuid cannot fail.
    let uid = unsafe { libc::getuid() };
    let dir = match var("XDG_RUNTIME_DIR").filter(|d| d.is_dir()) {
        Some(d) => d.join("paring"),
        None => PathBuf::from(format!("/tmp/paring-{uid}")),
    };
    let fail = |message: String| PlaceError::Runtime { path: dir.display().to_string(), message };
    match std::fs::DirBuilder::new().mode(0o700).create(&dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(fail(e.to_string())),
        _ => {}
    }
    let meta = std::fs::symlink_metadata(&dir).map_err(|e| fail(e.to_string()))?;
    if !meta.is_dir() || meta.uid() != uid || meta.mode() & 0o077 != 0 {
        return Err(fail("it is not a folder that only you can enter".to_owned()));
    }
    Ok(dir)
}

impl Place {
    /// The session of that name under [`home`].
    pub fn named(name: &str) -> Result<Place, PlaceError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty() || name.len() > 64 || name.starts_with('.') || !name.chars().all(plain) {
            return Err(PlaceError::Name(name.to_owned()));
        }
        Ok(Place { name: name.to_owned(), dir: home()?.join("sessions").join(name) })
    }

    /// Makes the session's folder, for its owner alone.
    pub fn make(&self) -> io::Result<()> {
        super::private::make_dir(&self.dir)
    }

    /// Whether this session lies among the user's own, rather than in a folder that anybody may have filled.
    pub fn is_own(&self) -> bool {
        Place::named(&self.name).is_ok_and(|own| own.dir == self.dir)
    }

    /// A session in a folder of its own, wherever that is.
    pub fn at(dir: &Path) -> Place {
        let name = dir.file_name().map_or_else(|| "session".to_owned(), |n| n.to_string_lossy().into_owned());
        Place { name, dir: dir.to_owned() }
    }

    /// Every session under [`home`], by name.
    pub fn all() -> Result<Vec<Place>, PlaceError> {
        let dir = home()?.join("sessions");
        let mut names: Vec<String> = std::fs::read_dir(dir)
            .into_iter()
            .flatten()
            .flatten()
            .filter(|e| e.path().is_dir())
            .filter_map(|e| e.file_name().into_string().ok())
            .collect();
        names.sort();
        Ok(names.iter().filter_map(|n| Place::named(n).ok()).collect())
    }

    /// The host's socket. Short, since the system limits socket paths to about a hundred bytes, and different for equal
    /// names under different homes.
    pub fn socket(&self) -> Result<PathBuf, PlaceError> {
        let dir = std::path::absolute(&self.dir).unwrap_or_else(|_| self.dir.clone());
        let hash = blake3::hash(dir.as_os_str().as_encoded_bytes()).to_hex();
        let name: String = self.name.chars().take(24).collect();
        Ok(runtime()?.join(format!("{name}-{}.sock", &hash[..12])))
    }

    pub fn log_file(&self) -> PathBuf {
        self.dir.join("host.log")
    }

    pub fn artifacts(&self) -> PathBuf {
        self.dir.join(ARTIFACTS)
    }

    /// Which images the original gets right.
    pub fn baseline_file(&self) -> PathBuf {
        self.dir.join(BASELINE)
    }

    /// What a round's model (0: the original) answered to each item of the evaluation data.
    pub fn answers_file(&self, round: u32) -> PathBuf {
        self.dir.join("answers").join(format!("round-{round}.safetensors"))
    }

    /// How the session was asked to open, for its host's first start.
    pub fn spec_file(&self) -> PathBuf {
        self.dir.join("open.json")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        for bad in ["", ".", "..", "a/b", "a b", "é", &"x".repeat(65)] {
            assert!(Place::named(bad).is_err(), "{bad:?}");
        }
        assert!(Place::named("resnet56-a_1.2").is_ok());
    }

    #[test]
    fn sockets_differ_by_folder_and_are_short() {
        let (a, b) =
            (Place::at(Path::new("/x/long-name-of-a-session-that-goes-on-and-on")), Place::at(Path::new("/y/s")));
        let (a, b) = (a.socket().expect("socket"), b.socket().expect("socket"));
        assert_ne!(a, b);
        assert!(a.file_name().expect("name").len() < 50);
    }
}
