//! What a panic prints: words like every other error's, where they can be read and reported.
//!
//! Not here: what becomes of the panic. A host's job ends in an event (`host::core`), a foreign reader's in an error
//! (`data::guard`), and any other ends the process with 101.

use crate::headless::out;
use crate::mask::Mask;
use std::backtrace::{Backtrace, BacktraceStatus};

/// Has panics told in our words instead of the standard library's.
pub(super) fn install() {
    std::panic::set_hook(Box::new(|info| {
        if crate::words::hushed() {
            return;
        }
        let place = info.location().map(|l| format!("{}:{}", l.file(), l.line())).unwrap_or_default();
        let said = crate::words::of_panic(info.payload()).unwrap_or("of an unknown kind");
        out::words(format_args!("{}\n", words(said, &place)));
        // Asked for by RUST_BACKTRACE only.
        let trace = Backtrace::capture();
        if trace.status() == BacktraceStatus::Captured {
            out::words(format_args!("{trace}\n"));
        }
    }));
}

/// A message may hold names from a file or an address, which are not told here either.
fn words(message: &str, place: &str) -> String {
    format!(
        "paring: internal error: {} ({place}); hint: please report it with what was opened; RUST_BACKTRACE=1 tells more",
        Mask::default().text(message)
    )
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_panic_shows_no_password_and_where_it_was() {
        let told = super::words("no such host: https://me:hunter2hunter2@example.org/v1", "src/a.rs:7");
        assert!(told.contains("src/a.rs:7") && told.contains("example.org"), "{told}");
        assert!(!told.contains("hunter2"), "{told}");
    }
}
