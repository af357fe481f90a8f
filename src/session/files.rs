//! Opening what lies in a session's folder, which an untrusted hand may have prepared: regular files and real folders
//! alone. A link is not followed, a pipe is not waited for.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Why a file is not touched. The caller names it.
fn not(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("it is {what}; hint: remove it"))
}

/// Opens `path` as `options` say.
///
/// # Errors
/// It is a link, no regular file, or has other names too: what is written here must not be somebody else's as well.
pub fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let opened = options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path);
    let file = opened.map_err(|e| match e.raw_os_error() {
        Some(libc::ELOOP) => not("a link"),
        // A pipe that nobody reads.
        Some(libc::ENXIO) => not("no regular file"),
        _ => e,
    })?;
    let meta = file.metadata()?;
    match (meta.is_file(), meta.nlink()) {
        (false, _) => Err(not("no regular file")),
        (true, 2..) => Err(not("a file with other names")),
        (true, _) => Ok(file),
    }
}

/// The bytes of the file at `path`.
///
/// # Errors
/// As [`open`], and what reading reports.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path, File::options().read(true))?.read_to_end(&mut bytes)?;
    Ok(bytes)
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

/// Makes the folder at `path` unless it is there.
///
/// # Errors
/// There is something else, such as a link to another folder.
pub fn make_dir(path: &Path) -> io::Result<()> {
    std::fs::create_dir_all(path)?;
    match std::fs::symlink_metadata(path)? {
        meta if meta.is_dir() => Ok(()),
        meta if meta.is_symlink() => Err(not("a link")),
        _ => Err(not("no folder")),
    }
}
