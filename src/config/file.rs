//! Reading settings, themes and prompts: whatever lies under the name, this neither waits nor fills memory.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Bytes of such a file at most. The longest settings of use, every key bound and every colour set, have 10 kB; a prompt
/// of more than this leaves a model no room for anything else.
pub const MOST_BYTES: u64 = 1 << 16;

/// The text of the regular file at `path`, of at most [`MOST_BYTES`]; `None` when there is none.
///
/// # Errors
/// It cannot be opened, is a device, pipe or folder, is longer, or is not UTF-8.
pub fn read(path: &Path) -> io::Result<Option<String>> {
    read_up_to(path, MOST_BYTES)
}

/// As [`read`], of at most `most` bytes.
///
/// # Errors
/// As [`read`].
pub fn read_up_to(path: &Path, most: u64) -> io::Result<Option<String>> {
    // Opening a pipe that nobody writes would wait; `paring.toml` may be anything.
    let file = match OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path) {
        Ok(f) => f,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    bounded(file, most).map(Some)
}

fn bounded(file: File, most: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::other(format!("it is longer than {} kB", most >> 10)));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::other("it is not UTF-8 text"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn only_regular_files_of_sane_size_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        assert_eq!(read(&path("none")).unwrap(), None);
        std::fs::write(path("a"), "x = 1\n").unwrap();
        std::os::unix::fs::symlink(path("a"), path("link")).unwrap();
        assert_eq!(read(&path("link")).unwrap().as_deref(), Some("x = 1\n"));

        let pipe = CString::new(path("pipe").as_os_str().as_bytes()).unwrap();
        // SAFETY: a path that ends in a zero byte.
        assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
        std::os::unix::fs::symlink("/dev/zero", path("zero")).unwrap();
        for odd in ["pipe", "zero", "."] {
            assert!(read(&path(odd)).unwrap_err().to_string().contains("no regular file"), "{odd}");
        }
        // A hole of a terabyte costs its owner nothing.
        File::create(path("big")).unwrap().set_len(1 << 40).unwrap();
        assert!(read(&path("big")).unwrap_err().to_string().contains("longer than 64 kB"));
        std::fs::write(path("bytes"), [0xff]).unwrap();
        assert!(read(&path("bytes")).unwrap_err().to_string().contains("UTF-8"));
    }
}
