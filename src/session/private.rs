//! Folders and files of a session: prompts, notes and paths are in them, so only their owner enters and reads.
//!
//! Invariants: a folder or file is made with its final mode, before anything is in it; what an earlier version or another
//! tool left open is closed on opening, where it is ours; nothing here follows a link at the end of a path, waits for a
//! pipe, or takes another user's lock for a host of ours.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

const DIR: u32 = 0o700;
const FILE: u32 = 0o600;
/// What others may do, by a mode's bits.
const OTHERS: u32 = 0o077;

fn me() -> u32 {
    // SAFETY: geteuid cannot fail.
    unsafe { libc::geteuid() }
}

/// Why something is not touched; the caller names it.
fn not(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("it is {what}; hint: remove it"))
}

/// Makes `dir` and what is missing above it; closes `dir` to others when it was there before.
///
/// # Errors
/// There is something else, such as a link: what lies behind one is not ours to fill or to remove.
pub fn make_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(DIR).create(dir)?;
    let meta = std::fs::symlink_metadata(dir)?;
    if !meta.is_dir() {
        return Err(not(if meta.is_symlink() { "a link" } else { "no folder" }));
    }
    if meta.uid() == me() && meta.mode() & OTHERS != 0 {
        std::fs::set_permissions(dir, Permissions::from_mode(DIR))?;
    }
    Ok(())
}

/// Closes the plain files in `dir` to others. Files of other owners are left alone, and so are links.
pub fn mend(dir: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)?.flatten() {
        // Of the entry itself: a link is nobody's file.
        let Ok(meta) = entry.metadata() else { continue };
        if meta.is_file() && meta.uid() == me() && meta.mode() & OTHERS != 0 {
            std::fs::set_permissions(entry.path(), Permissions::from_mode(FILE))?;
        }
    }
    Ok(())
}

/// Opens the file at `path` for writing, made when it is missing; what is in it stays.
///
/// # Errors
/// As [`open_as`].
pub fn create(path: &Path) -> io::Result<File> {
    open_as(OpenOptions::new().create(true).truncate(false).read(true).write(true), path)
}

/// As [`create`], to write at its end.
///
/// # Errors
/// As [`open_as`].
pub fn append(path: &Path) -> io::Result<File> {
    open_as(OpenOptions::new().create(true).append(true).read(true), path)
}

/// Opens a file to be written as `options` say.
///
/// # Errors
/// It is a link, no regular file, or has other names too: what is written here must not be somebody else's as well.
fn open_as(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let file = regular(options.mode(FILE), path)?;
    if file.metadata()?.nlink() > 1 { Err(not("a file with other names")) } else { Ok(file) }
}

/// Opens the file at `path` for reading.
///
/// # Errors
/// It is a link or no regular file.
pub fn open(path: &Path) -> io::Result<File> {
    regular(OpenOptions::new().read(true), path)
}

/// The bytes of the file at `path`, of at most `most`.
///
/// # Errors
/// As [`open`]; [`io::ErrorKind::FileTooLarge`] for a longer file.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(bytes) }
}

fn regular(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let opened = options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY).open(path);
    let file = opened.map_err(|e| match e.raw_os_error() {
        Some(libc::ELOOP) => not("a link"),
        // A pipe that nobody reads.
        Some(libc::ENXIO) => not("no regular file"),
        _ => e,
    })?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(not("no regular file")) }
}

/// Nothing, or a regular file, lies at `path`: for those who open it by its name.
///
/// # Errors
/// It is a link or no regular file.
pub fn check(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(meta) if meta.is_file() => Ok(()),
        Ok(meta) if meta.is_symlink() => Err(not("a link")),
        Ok(_) => Err(not("no regular file")),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
    }
}

/// Takes the lock of an open file, for one (`LOCK_EX`) or to look (`LOCK_SH`), without waiting.
pub fn try_lock(file: &File, how: i32) -> bool {
    // SAFETY: flock on a descriptor that lives as long as the call.
    unsafe { libc::flock(file.as_raw_fd(), how | libc::LOCK_NB) == 0 }
}

/// Whether `path` still names this open file.
pub fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), std::fs::symlink_metadata(path)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

/// Whether the lock of this file is held by other users' processes alone. They can have opened it only while a mode let
/// them; a host of ours runs as the file's owner, as us, or as root. In doubt (no `/proc`, a file system that shows other
/// numbers there, a process that is gone) it is not.
pub fn held_by_strangers(file: &File) -> bool {
    let Ok(meta) = file.metadata() else { return false };
    let Ok(locks) = std::fs::read_to_string("/proc/locks") else { return false };
    let (major, minor) = (libc::major(meta.dev()), libc::minor(meta.dev()));
    let id = format!("{major:02x}:{minor:02x}:{}", meta.ino());
    // `1: FLOCK  ADVISORY  WRITE 18418 fe:00:5660763 0 EOF`; those that wait have `->` in second place.
    let holders: Vec<u32> = locks
        .lines()
        .map(|l| l.split_whitespace().collect::<Vec<_>>())
        .filter(|f| f.get(1) == Some(&"FLOCK") && f.get(5) == Some(&id.as_str()))
        .map(|f| f.get(4).and_then(|pid| uid_of(pid)).unwrap_or(me()))
        .collect();
    let ours = [0, me(), meta.uid()];
    !holders.is_empty() && holders.iter().all(|uid| !ours.contains(uid))
}

/// The effective user of a process. Not the owner of its folder in `/proc`, which is root's for some.
fn uid_of(pid: &str) -> Option<u32> {
    let mut status = String::new();
    File::open(format!("/proc/{pid}/status")).ok()?.take(4096).read_to_string(&mut status).ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("Uid:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}
