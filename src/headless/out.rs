//! What commands write: data on standard output, words on standard error.
//!
//! Invariants: nothing here panics, whatever the two streams are connected to. A reader that has seen enough (`| head`)
//! is no error: what follows goes nowhere, and the exit code says what the command came to. Standard output that is full
//! or broken is an error in words; standard error that cannot be written is nobody's to tell. Only plain text gets out,
//! whatever names it holds; the one escape sequence that is written is [`status`]'s own.

use crate::plain::{self, Plain};
use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// Standard output does not take what is written.
#[derive(Debug, thiserror::Error)]
#[error("standard output cannot be written: {0}; hint: is there space left where it goes?")]
pub struct Unwritten(io::Error);

/// The reader of standard output went away.
static CLOSED: AtomicBool = AtomicBool::new(false);

/// Nobody reads standard output any more: what would be long to write may be left out.
pub fn closed() -> bool {
    CLOSED.load(Ordering::Relaxed)
}

/// The terminal that standard output was is gone: whatever is still held back goes nowhere, and that is no error.
pub fn give_up() {
    CLOSED.store(true, Ordering::Relaxed);
}

/// Writes on standard output.
///
/// # Errors
/// It is full or broken; a reader that went away is no error.
pub fn data(args: Arguments<'_>) -> Result<(), Unwritten> {
    if closed() {
        return Ok(());
    }
    settle(Plain(io::stdout().lock()).write_fmt(args))
}

/// Hands on what is still held back, before the process ends.
///
/// # Errors
/// As [`data`].
pub fn flush() -> Result<(), Unwritten> {
    if closed() { Ok(()) } else { settle(io::stdout().lock().flush()) }
}

fn settle(written: io::Result<()>) -> Result<(), Unwritten> {
    match written {
        Err(e) if e.kind() == ErrorKind::BrokenPipe => {
            CLOSED.store(true, Ordering::Relaxed);
            Ok(())
        }
        other => other.map_err(Unwritten),
    }
}

/// Writes on standard error; lost when that cannot be.
pub fn words(args: Arguments<'_>) {
    let mut to = Plain(io::stderr().lock());
    drop(to.write_fmt(args).and_then(|()| to.flush()));
}

/// Puts `text` in the place of the terminal's current line on standard error; an empty one clears it.
pub fn status(text: &str) {
    let mut to = io::stderr().lock();
    drop(to.write_all(format!("\r\x1b[K{}", plain::line(text)).as_bytes()).and_then(|()| to.flush()));
}

/// A line of data on standard output, as `println!`, with a result instead of a panic.
macro_rules! say {
    () => { $crate::headless::out::data(format_args!("\n")) };
    ($($arg:tt)+) => { $crate::headless::out::data(format_args!("{}\n", format_args!($($arg)+))) };
}

/// A line of words on standard error, as `eprintln!`, without a panic.
macro_rules! tell {
    ($($arg:tt)+) => { $crate::headless::out::words(format_args!("{}\n", format_args!($($arg)+))) };
}

pub(crate) use {say, tell};
