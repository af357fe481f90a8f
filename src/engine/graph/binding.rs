//! Sizes for what a graph leaves free.
//!
//! Not here: which dimensions are free (`op::Input`), what follows from their sizes (`shapes`, `cost`).

/// How long the free dimensions of one batch are; the default binds nothing, which is enough for a graph that leaves
/// nothing free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Binding {
    /// Tokens of every sequence in the batch.
    pub tokens: Option<usize>,
}

impl Binding {
    /// Sequences of `n` tokens.
    pub fn tokens(n: usize) -> Binding {
        Binding { tokens: Some(n) }
    }
}
