//! Words for every room that speaks to people: what follows a number, what a panic said.

use std::any::Any;
use std::fmt::Display;

/// `1 turn`, `2 turns`: the number and its noun.
pub fn counted<N: Display + PartialEq + From<u8>>(n: N, one: &str) -> String {
    if n == N::from(1) { format!("1 {one}") } else { format!("{n} {one}s") }
}

/// As [`counted`], for nouns and phrases whose plural is not an `s` more: `1 entry is`, `2 entries are`.
pub fn counted_as<N: Display + PartialEq + From<u8>>(n: N, one: &str, many: &str) -> String {
    if n == N::from(1) { format!("1 {one}") } else { format!("{n} {many}") }
}

/// What a panic said, where it said it in words.
pub fn of_panic(payload: &(dyn Any + Send)) -> Option<&str> {
    payload.downcast_ref::<String>().map(String::as_str).or_else(|| payload.downcast_ref::<&str>().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular_and_nothing_else() {
        assert_eq!((counted(0usize, "turn"), counted(1u64, "turn"), counted(2u32, "turn")), {
            ("0 turns".to_owned(), "1 turn".to_owned(), "2 turns".to_owned())
        });
        assert_eq!(counted_as(1usize, "entry is", "entries are"), "1 entry is");
        assert_eq!(counted_as(3usize, "entry is", "entries are"), "3 entries are");
    }
}
