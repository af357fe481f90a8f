//! Writing whole or not at all: into a temporary folder beside the place, synced, then renamed.
//!
//! A process that is killed leaves its folder behind; the next one that writes there removes it. It knows the dead from
//! the living by a lock on the folder, which the system takes off with the process: a number in the name would be
//! another process's by then, or one of another machine that shares the disk. Where a file system has no locks, nothing
//! is removed.

use super::refused;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const PREFIX: &str = ".paring-";
const SUFFIX: &str = ".tmp";
/// Hexadecimal digits between the two.
const DIGITS: usize = 16;
/// Links that are followed to where something is to be written; the system itself follows no more.
const MAX_LINKS: usize = 40;

/// A temporary folder, gone with its content when it is dropped. What is to stay is renamed out of it.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    /// Locked as long as the folder is in use.
    _lock: File,
}

impl Scratch {
    /// A new one in `dir`; those of processes that died there are removed.
    ///
    /// # Errors
    /// As the system says when it cannot be made.
    pub fn within(dir: &Path) -> io::Result<Scratch> {
        sweep(dir);
        loop {
            let path = dir.join(format!("{PREFIX}{:0DIGITS$x}{SUFFIX}", rand::random::<u64>()));
            std::fs::DirBuilder::new().mode(0o700).create(&path)?;
            // Somebody may sweep between the lines here: it is without its lock, and looks as one whose process died.
            let lock = match File::open(&path) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                opened => opened?,
            };
            match lock.try_lock() {
                Err(std::fs::TryLockError::WouldBlock) => continue,
                _ if !same(&lock, &path) => continue,
                Ok(()) | Err(std::fs::TryLockError::Error(_)) => return Ok(Scratch { path, _lock: lock }),
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.path));
    }
}

/// Is `path` still what was opened?
fn same(open: &File, path: &Path) -> bool {
    let id = |m: io::Result<std::fs::Metadata>| m.ok().map(|m| (m.dev(), m.ino()));
    id(std::fs::symlink_metadata(path)) == id(open.metadata())
}

fn is_scratch(name: &str) -> bool {
    let digits = name.strip_prefix(PREFIX).and_then(|n| n.strip_suffix(SUFFIX));
    digits.is_some_and(|d| d.len() == DIGITS && d.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Removes what dead processes left in `dir`. It is no harm when that fails.
fn sweep(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let folder = entry.file_type().is_ok_and(|t| t.is_dir());
        if !folder || !entry.file_name().to_str().is_some_and(is_scratch) {
            continue;
        }
        let path = entry.path();
        let Ok(lock) = File::open(&path) else { continue };
        if lock.try_lock().is_ok() && same(&lock, &path) {
            drop(std::fs::remove_dir_all(&path));
        }
    }
}

/// The folder that `path` lies in.
fn folder_of(path: &Path) -> &Path {
    path.parent().map_or(Path::new("."), named)
}

/// `folder`, which no path has to name where it is the one that one is in.
fn named(folder: &Path) -> &Path {
    if folder.as_os_str().is_empty() { Path::new(".") } else { folder }
}

/// Where something is written that is to be at `path`: there, or where a link there leads. Nothing has to be there yet.
///
/// # Errors
/// For a device, a pipe, a socket, a process's own open file (`/dev/stdout`) or a link that leads nowhere: replacing it
/// would take away something that is no file of the user's.
pub fn target(path: &Path) -> io::Result<PathBuf> {
    let invalid = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    let mut at = path.to_owned();
    for links in 0..MAX_LINKS {
        let found = match std::fs::symlink_metadata(&at) {
            Ok(meta) => meta.file_type(),
            Err(e) if e.kind() == io::ErrorKind::NotFound && links == 0 => return Ok(at),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return invalid("it is a link that leads nowhere"),
            Err(e) => return Err(e),
        };
        let dir = std::fs::canonicalize(folder_of(&at))?;
        if dir.starts_with("/proc") {
            return invalid("it is an open file of a process, not a regular file");
        }
        if !found.is_symlink() {
            return if found.is_file() || found.is_dir() { Ok(at) } else { Err(refused(found)) };
        }
        at = dir.join(std::fs::read_link(&at)?);
    }
    invalid("it is a link that leads in a circle")
}

/// Whether writing at `path` would replace `source` or something in it, whatever links lead there.
pub fn overwrites(path: &Path, source: &Path) -> bool {
    let (Ok(path), Ok(source)) = (std::fs::canonicalize(path), std::fs::canonicalize(source)) else { return false };
    path.starts_with(&source) || source.starts_with(&path)
}

/// Makes the rename of something in `dir` durable. Not every file system can, which is no reason to fail.
fn sync_folder(dir: &Path) {
    if let Ok(d) = File::open(dir) {
        drop(d.sync_all());
    }
}

/// Whether a file can be written at `path`, or a folder that may take the place of one that `old` knows, as far as that can be known before there is what
/// is written: to be asked before hours of work.
///
/// # Errors
/// As [`replace`], and as [`replace_folder`].
pub fn ready(path: &Path, old: Option<&dyn Fn(&Path) -> bool>) -> io::Result<()> {
    let path = target(path)?;
    let dir = match old {
        // Folders around it are made with it.
        Some(old) => {
            vacant(&path, old)?;
            path.ancestors().skip(1).map(named).find(|dir| dir.exists()).unwrap_or(Path::new("."))
        }
        None if path.as_os_str().as_encoded_bytes().ends_with(b"/") => {
            return Err(io::Error::new(io::ErrorKind::IsADirectory, "what ends in `/` is a folder"));
        }
        None => {
            replaceable(&path)?;
            folder_of(&path)
        }
    };
    if !dir.is_dir() {
        let why = format!("there is no folder `{}`", dir.display());
        return Err(io::Error::new(io::ErrorKind::NotFound, why));
    }
    Scratch::within(dir).map(drop)
}

/// Whether a file may take the place of what is at `path`.
fn replaceable(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a folder"));
    }
    if path.metadata().is_ok_and(|m| m.permissions().readonly()) {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is write-protected"));
    }
    Ok(())
}

/// Replaces the file `path` by what `write` puts at the path that it is given, whole or not at all.
///
/// # Errors
/// As [`target`], as `write`, and as the system says; for a file that nobody may write, which a rename would pass over.
pub fn replace<T, E: From<io::Error>>(path: &Path, write: impl FnOnce(&Path) -> Result<T, E>) -> Result<T, E> {
    let path = target(path)?;
    replaceable(&path)?;
    let name = path.file_name().ok_or_else(|| io::Error::other("the path names no file"))?;
    let dir = folder_of(&path);
    let scratch = Scratch::within(dir)?;
    let new = scratch.path().join(name);
    let done = write(&new)?;
    super::open(&new)?.sync_all()?;
    std::fs::rename(&new, &path)?;
    sync_folder(dir);
    Ok(done)
}

/// As [`replace`], by `bytes`.
///
/// # Errors
/// As [`replace`].
pub fn write(path: &Path, bytes: impl AsRef<[u8]>) -> io::Result<()> {
    replace(path, |new| std::fs::write(new, bytes))
}

/// As [`write`], a file that nobody but its owner may read.
///
/// # Errors
/// As [`replace`].
pub fn write_privately(path: &Path, bytes: impl AsRef<[u8]>) -> io::Result<()> {
    let private = |new: &Path| std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(new);
    replace(path, |new| private(new)?.write_all(bytes.as_ref()))
}

/// Replaces the folder `path` by the one that `write` fills, as a whole. A folder that is there already must be empty, or
/// `old` must know it as one that may be replaced. What `write` puts there is for it to sync.
///
/// # Errors
/// As [`replace`], and for a folder that holds something else.
pub fn replace_folder<T, E: From<io::Error>>(
    path: &Path,
    old: impl Fn(&Path) -> bool,
    write: impl FnOnce(&Path) -> Result<T, E>,
) -> Result<T, E> {
    let path = target(path)?;
    // `.` and `..` have a name only so.
    let path = if path.exists() { std::fs::canonicalize(path)? } else { path };
    let there = vacant(&path, &old)?;
    let name = path.file_name().ok_or_else(|| io::Error::other("the path names no folder"))?;
    let dir = folder_of(&path);
    std::fs::create_dir_all(dir)?;
    let scratch = Scratch::within(dir)?;
    let new = scratch.path().join(name);
    std::fs::create_dir(&new)?;
    let done = write(&new)?;
    sync_folder(&new);
    if there {
        exchange(&new, &path)?;
    } else {
        std::fs::rename(&new, &path)?;
    }
    sync_folder(dir);
    Ok(done)
}

/// Whether there is something at `path` that a folder takes the place of, which `old` knows.
fn vacant(path: &Path, old: &dyn Fn(&Path) -> bool) -> io::Result<bool> {
    match std::fs::read_dir(path) {
        Ok(mut entries) => {
            let empty = entries.next().is_none();
            if !empty && !old(path) {
                return Err(io::Error::new(io::ErrorKind::DirectoryNotEmpty, "the folder holds other files"));
            }
            Ok(!empty)
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) if e.kind() == io::ErrorKind::NotADirectory => {
            Err(io::Error::new(io::ErrorKind::NotADirectory, "it is a file, where a folder is to be"))
        }
        Err(e) => Err(e),
    }
}

/// Each takes the other's place: at no moment is neither there.
#[cfg(target_os = "linux")]
fn exchange(new: &Path, old: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    Ok(renameat_with(CWD, new, CWD, old, RenameFlags::EXCHANGE)?)
}

/// Where the system cannot exchange: the old one steps aside first, and back if the new one cannot take its place.
#[cfg(not(target_os = "linux"))]
fn exchange(new: &Path, old: &Path) -> io::Result<()> {
    let aside = new.with_extension("old");
    std::fs::rename(old, &aside)?;
    std::fs::rename(new, old).or_else(|e| std::fs::rename(&aside, old).and(Err(e)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut all: Vec<String> = std::fs::read_dir(dir)
            .expect("listed")
            .flatten()
            .map(|e| e.file_name().to_string_lossy().into_owned())
            .collect();
        all.sort();
        all
    }

    #[test]
    fn files_are_replaced_whole_or_stay() {
        let dir = tempfile::tempdir().expect("temp dir");
        let path = dir.path().join("a.json");
        for text in ["1", "2"] {
            replace(&path, |p| std::fs::write(p, text)).expect("written");
            assert_eq!(std::fs::read_to_string(&path).expect("read"), text);
        }
        let failed: io::Result<()> = replace(&path, |p| {
            std::fs::write(p, "half")?;
            Err(io::Error::other("no"))
        });
        assert!(failed.is_err());
        assert_eq!(std::fs::read_to_string(&path).expect("read"), "2");
        assert_eq!(names(dir.path()), ["a.json"]);
    }

    #[test]
    fn folders_are_replaced_whole_and_never_others() {
        let dir = tempfile::tempdir().expect("temp dir");
        let path = dir.path().join("out");
        let put = |text: &str, old: bool| replace_folder(&path, |_| old, |p| std::fs::write(p.join("x"), text));
        put("1", false).expect("new");
        assert!(put("2", false).unwrap_err().to_string().contains("other files"));
        assert_eq!(std::fs::read_to_string(path.join("x")).expect("read"), "1");
        put("2", true).expect("replaced");
        assert_eq!(std::fs::read_to_string(path.join("x")).expect("read"), "2");
        let half: io::Result<()> = replace_folder(
            &path,
            |_| true,
            |p| {
                std::fs::write(p.join("y"), "half")?;
                Err(io::Error::other("no"))
            },
        );
        assert!(half.is_err());
        assert_eq!((names(&path), names(dir.path())), (vec!["x".to_owned()], vec!["out".to_owned()]));
    }

    #[test]
    fn those_who_write_at_once_do_not_sweep_each_other() {
        let dir = tempfile::tempdir().expect("temp dir");
        std::thread::scope(|s| {
            for thread in 0..8 {
                let path = dir.path().join(format!("{}.json", thread % 2));
                s.spawn(move || {
                    for _ in 0..300 {
                        write(&path, "whole").expect("written");
                    }
                });
            }
        });
        assert_eq!(names(dir.path()), ["0.json", "1.json"]);
    }

    #[test]
    fn what_the_dead_left_goes_and_what_the_living_use_stays() {
        let dir = tempfile::tempdir().expect("temp dir");
        let living = Scratch::within(dir.path()).expect("made");
        std::fs::write(living.path().join("model"), "half").expect("written");
        // A process that was killed has no lock any more.
        let dead = dir.path().join(".paring-0123456789abcdef.tmp");
        std::fs::create_dir(&dead).expect("made");
        std::fs::write(dead.join("model"), "half").expect("written");
        let not_ours = [".paring-notes.tmp", ".paring-0123456789abcdeg.tmp"];
        not_ours.iter().for_each(|n| std::fs::create_dir(dir.path().join(n)).expect("made"));
        let file = ".paring-0000000000000000.tmp";
        std::fs::write(dir.path().join(file), "a file of the user's").expect("written");
        replace(&dir.path().join("new"), |p| std::fs::write(p, "1")).expect("written");
        assert!(!dead.exists() && living.path().join("model").exists());
        assert!(not_ours.iter().chain([&file]).all(|n| dir.path().join(n).exists()));
        let path = living.path().to_owned();
        drop(living);
        assert!(!path.exists());
    }

    #[test]
    fn what_cannot_be_written_is_known_before_it_is_there() {
        let dir = tempfile::tempdir().expect("temp dir");
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("file"), "old").expect("written");
        let why = |name: &str, old: Option<&dyn Fn(&Path) -> bool>| ready(&at(name), old).map_err(|e| e.to_string());
        let (file, none, any) =
            (None, Some(&(|_: &Path| false) as &dyn Fn(&Path) -> bool), Some(&(|_: &Path| true) as _));
        assert_eq!((why("new", file), why("file", file), why("new/in/it", none)), (Ok(()), Ok(()), Ok(())));
        assert!(why("none/new", file).unwrap_err().contains("there is no folder `"));
        assert!(why("new/", file).unwrap_err().contains("is a folder"));
        assert!(why("file/new", none).is_err() && why("file/new", file).is_err());
        assert!(why("file", none).unwrap_err().contains("it is a file"));
        assert!(why("", file).unwrap_err().contains("is a folder"));
        assert!(why("", none).unwrap_err().contains("holds other files") && why("", any).is_ok());
        assert!(ready(Path::new("new-and-not-written"), file).is_ok());
        // Nothing is left behind.
        assert_eq!(
            (names(dir.path()), std::fs::read_to_string(at("file")).expect("read")),
            (vec!["file".into()], "old".into())
        );
    }

    #[test]
    fn what_is_protected_or_was_read_from_is_not_replaced() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let dir = tempfile::tempdir().expect("temp dir");
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("model"), "old").expect("written");
        std::fs::create_dir(at("folder")).expect("made");
        std::fs::write(at("folder/config"), "old").expect("written");
        symlink(at("model"), at("link")).expect("linked");
        for (path, source, clash) in [
            ("model", "model", true),
            ("link", "model", true),
            ("model", "link", true),
            ("folder/config", "folder", true),
            ("folder", "folder/config", true),
            ("folder/new", "folder", false),
            ("new", "model", false),
            ("model", "folder", false),
        ] {
            assert_eq!(overwrites(&at(path), &at(source)), clash, "{path} {source}");
        }
        std::fs::set_permissions(at("model"), std::fs::Permissions::from_mode(0o444)).expect("set");
        assert_eq!(ready(&at("model"), None).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        for path in ["model", "link"] {
            let error = replace(&at(path), |p| std::fs::write(p, "new")).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{path}");
        }
        assert_eq!(std::fs::read_to_string(at("model")).expect("read"), "old");
    }

    #[test]
    fn nothing_but_files_and_folders_is_written_to() {
        let dir = tempfile::tempdir().expect("temp dir");
        let at = |name: &str| dir.path().join(name);
        let link = |to: &Path, name: &str| std::os::unix::fs::symlink(to, at(name)).expect("linked");
        let made = std::process::Command::new("mkfifo").arg(at("fifo")).status().expect("mkfifo");
        assert!(made.success());
        link(Path::new("/dev/null"), "null");
        link(Path::new("/proc/self/fd/1"), "stdout");
        link(Path::new("nowhere"), "dangling");
        link(Path::new("circle"), "circle");
        for (path, what) in [
            (PathBuf::from("/dev/null"), "a device"),
            (PathBuf::from("/dev/stdout"), "of a process"),
            (at("null"), "a device"),
            (at("stdout"), "of a process"),
            (at("fifo"), "a pipe"),
            (at("dangling"), "leads nowhere"),
            (at("circle"), "in a circle"),
        ] {
            let error = replace(&path, |p| std::fs::write(p, "x")).unwrap_err().to_string();
            assert!(error.contains(what), "{}: {error}", path.display());
            assert!(std::fs::symlink_metadata(&path).is_ok_and(|m| !m.is_file()), "{}", path.display());
        }
        // A link to a file stays one, and the file is replaced.
        std::fs::write(at("file"), "old").expect("written");
        link(Path::new("file"), "link");
        replace(&at("link"), |p| std::fs::write(p, "new")).expect("written");
        assert_eq!(std::fs::read_to_string(at("file")).expect("read"), "new");
        assert!(std::fs::symlink_metadata(at("link")).is_ok_and(|m| m.is_symlink()));
    }
}
