//! Files of the user's: opening none that is no file, and writing so that whatever dies leaves what was there, or all of
//! what is new. Every room may use it.
//!
//! Not here: what is in the files, and the journal's own files, which SQLite writes.

mod cache;
mod open;
mod scratch;

pub(crate) use cache::{Cache, rounded};
pub use open::{open, read, read_text};
pub use scratch::{Scratch, overwrites, ready, replace, replace_folder, target, write, write_privately};

use std::fs::FileType;
use std::io;
use std::os::unix::fs::FileTypeExt;

/// What is there is none of the files that were meant.
fn refused(found: FileType) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("it is {}, not a regular file", kind(found)))
}

fn kind(found: FileType) -> &'static str {
    if found.is_fifo() {
        "a pipe"
    } else if found.is_socket() {
        "a socket"
    } else if found.is_char_device() || found.is_block_device() {
        "a device"
    } else if found.is_dir() {
        "a folder"
    } else {
        "something else"
    }
}
