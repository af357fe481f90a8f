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

/// Characters of an error at most: a terminal's worth. Its way out stands at the end, so the middle is what goes.
const COMPLAINT: (usize, usize) = (3000, 900);

/// An error or a note on standard error. A name in it with line breaks begins no line of ours.
pub fn complain(text: &str) {
    words(format_args!("{}\n", complaint(text)));
}

/// What is to be known of what came out.
pub fn notes<'a>(notes: impl IntoIterator<Item = &'a String>) {
    notes.into_iter().for_each(|note| complain(&format!("note: {note}")));
}

fn complaint(text: &str) -> String {
    let (head, tail) = COMPLAINT;
    let length = text.chars().count();
    let text = match length > head + tail {
        true => {
            let cut = |n: usize| text.char_indices().nth(n).map_or(text.len(), |(at, _)| at);
            let (begin, end) = (&text[..cut(head)], &text[cut(length - tail)..]);
            format!("{begin} … ({} characters are left out) … {end}", length - head - tail)
        }
        false => text.to_owned(),
    };
    format!("paring: {}", text.replace('\n', "\n  "))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complaint_is_one_whatever_it_quotes() {
        assert_eq!(complaint("no `a\nparing: b`; hint: c"), "paring: no `a\n  paring: b`; hint: c");
        let long = complaint(&format!("no `{}`; hint: c", "é".repeat(100_000)));
        assert!(long.chars().count() < 4000 && long.ends_with("; hint: c"), "{long}");
        assert!(long.contains("(96114 characters are left out)"), "{long}");
    }
}
