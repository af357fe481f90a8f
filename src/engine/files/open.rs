//! Opening a file that was named by somebody: a pipe would wait for a writer for ever, a device may do something when it
//! is opened, and neither is a model or a data set.

use super::refused;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens a regular file for reading, at once.
///
/// # Errors
/// As the system says; [`io::ErrorKind::InvalidInput`] for what is no regular file.
pub fn open(path: &Path) -> io::Result<File> {
    // Before it is opened, because opening can already wait or do something.
    let found = std::fs::metadata(path)?.file_type();
    if !found.is_file() {
        return Err(refused(found));
    }
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    // And after, because the name may lead elsewhere by now.
    let found = file.metadata()?.file_type();
    if found.is_file() { Ok(file) } else { Err(refused(found)) }
}

/// The bytes of a regular file that has no more than `most`.
///
/// # Errors
/// As [`open`]; [`io::ErrorKind::FileTooLarge`] for a longer file.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // What grows while it is read is noticed too.
    open(path)?.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        let why = format!("it is larger than the {most} bytes that such a file may have");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    Ok(bytes)
}

/// The text of a regular file that has no more than `most` bytes.
///
/// # Errors
/// As [`read`]; [`io::ErrorKind::InvalidData`] for what is not UTF-8.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    String::from_utf8(read(path, most)?).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_opened_and_nothing_waits() {
        let dir = tempfile::tempdir().expect("temp dir");
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("file"), "abc").expect("written");
        assert_eq!(read(&at("file"), 3).expect("read"), b"abc");
        assert_eq!(read(&at("file"), 2).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(open(&at("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(open(dir.path()).unwrap_err().to_string().contains("a folder"));
        let made = std::process::Command::new("mkfifo").arg(at("fifo")).status().expect("mkfifo");
        assert!(made.success());
        std::os::unix::fs::symlink(at("fifo"), at("link")).expect("linked");
        std::os::unix::fs::symlink(at("file"), at("good")).expect("linked");
        assert_eq!(read(&at("good"), 3).expect("read"), b"abc");
        for (path, what) in [(at("fifo"), "a pipe"), (at("link"), "a pipe"), ("/dev/zero".into(), "a device")] {
            let error = read(&path, 10).unwrap_err();
            assert!(error.to_string().contains(what), "{error}");
        }
    }
}
