//! A wall around a foreign reader that asserts where it ought to report: its panic becomes an error, and nothing is printed.
//!
//! Only for code that is handed values and gives values back, so that nothing half-changed is seen afterwards.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// `f()`, or `None` if it panicked.
pub(super) fn guarded<T>(f: impl FnOnce() -> T) -> Option<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        // Others' panics are reported as before.
        let before = take_hook();
        set_hook(Box::new(move |info| {
            if !INSIDE.with(Cell::get) {
                before(info);
            }
        }));
    });
    let outer = INSIDE.with(|i| i.replace(true));
    let result = catch_unwind(AssertUnwindSafe(f));
    INSIDE.with(|i| i.set(outer));
    result.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_nothing_more_than_none() {
        assert_eq!(guarded(|| 3), Some(3));
        assert_eq!(guarded(|| -> u8 { panic!("not to be seen") }), None);
        assert_eq!(guarded(|| guarded(|| -> u8 { panic!("not to be seen") })), Some(None));
        assert!(!INSIDE.with(Cell::get));
    }
}
