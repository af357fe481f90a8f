//! Another user of the machine who opened a session's lock while the folder was open to all, and holds it for ever. A file
//! of its own: a child that another test starts would hold this process' locks until it runs its program.

use paring::session::{Journal, JournalError, is_locked};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;

/// A user without rights.
const NOBODY: u32 = 65534;

#[test]
fn another_users_lock_blocks_nobody() {
    // SAFETY: geteuid cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: only root can be another user as well");
        return;
    }
    let dir = tempfile::tempdir().expect("temp dir");
    drop(Journal::open(dir.path()).expect("opens"));
    let lock = dir.path().join("lock");
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).expect("set");
    std::fs::set_permissions(&lock, std::fs::Permissions::from_mode(0o644)).expect("set");
    let path = std::ffi::CString::new(lock.as_os_str().as_bytes()).expect("a path");
    let mut stranger = std::process::Command::new("sleep");
    stranger.arg("600").uid(NOBODY).gid(NOBODY);
    // SAFETY: open and flock are async-signal-safe; the descriptor stays open in `sleep`.
    unsafe {
        stranger.pre_exec(move || {
            let fd = libc::open(path.as_ptr(), libc::O_RDONLY);
            if fd < 0 || libc::flock(fd, libc::LOCK_EX | libc::LOCK_NB) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        });
    }
    let mut stranger = stranger.spawn().expect("held");
    assert!(!is_locked(dir.path()), "no host of ours runs");
    let first = Journal::open(dir.path());
    let second = Journal::open(dir.path());
    let seen = is_locked(dir.path());
    stranger.kill().and_then(|()| stranger.wait()).expect("ended");
    assert!(first.is_ok(), "{first:?}");
    assert!(matches!(second, Err(JournalError::Locked { .. })), "ours counts");
    assert!(seen);
}
