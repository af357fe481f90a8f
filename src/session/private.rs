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

/// Makes `dir` and what is missing above it; closes `dir` to others when it was there before.
pub fn make_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(DIR).create(dir)?;
    let meta = std::fs::metadata(dir)?;
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

/// Opens the regular file at `path` for writing, made when it is missing; what is in it stays.
pub fn create(path: &Path) -> io::Result<File> {
    regular(OpenOptions::new().create(true).truncate(false).read(true).write(true).mode(FILE), path)
}

/// Opens the regular file at `path` for reading.
pub fn open(path: &Path) -> io::Result<File> {
    regular(OpenOptions::new().read(true), path)
}

fn regular(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let file = options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is no regular file")),
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
