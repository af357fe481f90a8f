//! Columns of the layer list by their names: figures, sets of them, and those that users write as expressions.
//!
//! Here: the words that settings, the command line and expressions share. Not here: what a row has of a figure, how it is drawn (the screen).

use super::diag::suggestion;
use super::expression::Expression;

/// A figure by its name, with its unit as a variable of expressions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Named {
    pub name: &'static str,
    pub unit: &'static str,
}

const fn named(name: &'static str, unit: &'static str) -> Named {
    Named { name, unit }
}

/// Every figure that there is a column of.
pub const FIGURES: [Named; 19] = [
    named("p50", "ms a batch"),
    named("p95", "ms a batch"),
    named("share", "part of all rows' time, 0 to 1"),
    named("memory", "bytes of weights as stored"),
    named("macs", "MACs of one item"),
    named("params", "numbers among the weights"),
    named("sensitivity", "KL at half width, nats"),
    named("activations", "bytes of the output, whole batch"),
    named("intensity", "FLOP for each byte moved"),
    named("change", "of p50 against what is pinned, 0.1 is 10 % slower"),
    named("error", "of weights in the planned precision, part of their norm"),
    named("int8", "error of weights in int8, part of their norm"),
    named("w4", "error of weights in w4, part of their norm"),
    named("weight", "Frobenius norm of the weights"),
    named("zeros", "part of the weights, 0 to 1"),
    named("rank", "effective rank, part of the most, 0 to 1"),
    named("gradient", "norm of the gradient"),
    named("importance", "sum of |gradient x weight|"),
    named("noise", "simple noise scale, images"),
];

/// How many items go through the network at once: known to expressions, no column.
pub const BATCH: Named = named("batch", "items of a batch");

/// The order of the model, for sorting.
pub const ORDER: &str = "order";

/// Columns that belong together.
pub const SETS: [&str; 3] = ["costs", "parameters", "speed"];

/// Columns that every list has: headings beside which another of that name would be taken for them.
const FIXED: [&str; 2] = ["layer", "plan"];

/// Columns that a user may write at most, and the longest name of one.
pub const MOST_OWN: usize = 32;
const LONGEST_NAME: usize = 16;

/// A column that a user wrote.
#[derive(Debug, Clone, PartialEq)]
pub struct OwnColumn {
    pub name: String,
    pub expression: Expression,
}

/// What expressions may name.
pub fn variables() -> impl Iterator<Item = Named> + Clone {
    FIGURES.into_iter().chain([BATCH])
}

impl OwnColumn {
    /// Understands a column of that name.
    ///
    /// # Errors
    /// In words with a hint: a name that cannot be one or is taken, or what [`Expression::parse`] says.
    pub fn parse(name: &str, expression: &str) -> Result<OwnColumn, String> {
        let name = name.trim();
        let plain = name.starts_with(|c: char| c.is_ascii_alphabetic())
            && name.len() <= LONGEST_NAME
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !plain {
            return Err(format!(
                "`{name}` cannot be a column's name; hint: letters, digits and `_`, {LONGEST_NAME} at most, such as `ns_per_mac`"
            ));
        }
        let word = SETS.contains(&name) || FIXED.contains(&name) || name == ORDER;
        if word || variables().any(|v| v.name == name) {
            return Err(format!("`{name}` is there already; hint: another name, such as `my_{name}`"));
        }
        let expression = Expression::parse(expression, variables().map(|v| v.name))?;
        Ok(OwnColumn { name: name.to_owned(), expression })
    }
}

/// Puts `column` among `own`, in the place of one of that name; `None` where there are as many as there may be.
pub fn define(own: &mut Vec<OwnColumn>, column: OwnColumn) -> Option<usize> {
    match own.iter().position(|o| o.name == column.name) {
        Some(at) => {
            own[at] = column;
            Some(at)
        }
        None if own.len() >= MOST_OWN => None,
        None => {
            own.push(column);
            Some(own.len() - 1)
        }
    }
}

/// Whether `word` is what rows can be sorted by.
///
/// # Errors
/// A hint.
pub(super) fn check_sort(word: &str, own: &[OwnColumn]) -> Result<(), String> {
    let known = [ORDER].into_iter().chain(names(own));
    if known.clone().any(|k| k == word) { Ok(()) } else { Err(suggestion(word, known)) }
}

/// Whether `words` are columns, or one set of them.
///
/// # Errors
/// A hint about the first that is none.
pub(super) fn check(words: &[String], own: &[OwnColumn]) -> Result<(), String> {
    if let [set] = words
        && SETS.contains(&set.as_str())
    {
        return Ok(());
    }
    match words.iter().find(|w| !names(own).any(|n| n == w.as_str())) {
        None if words.is_empty() => Err("at least one column, such as [\"p50\", \"p95\"]".to_owned()),
        None => Ok(()),
        Some(odd) if SETS.contains(&odd.as_str()) => Err(format!("`{odd}` stands alone, the others are columns")),
        Some(odd) => Err(suggestion(odd, names(own))),
    }
}

/// Every column's name.
pub fn names(own: &[OwnColumn]) -> impl Iterator<Item = &str> + Clone {
    FIGURES.iter().map(|f| f.name).chain(own.iter().map(|o| o.name.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain_and_taken_once() {
        let column = |name: &str| OwnColumn::parse(name, "p50 * 1e6 / (macs * batch)");
        assert_eq!(column(" ns_per_mac ").map(|c| c.name), Ok("ns_per_mac".to_owned()));
        for odd in
            ["", "2p", "p 50", "p-50", "p50", "batch", "order", "costs", "plan", "layer", "x\u{202e}", &"x".repeat(17)]
        {
            let e = column(odd).expect_err(odd);
            assert!(e.contains("hint: "), "{odd}: {e}");
        }
        let mut own = Vec::new();
        for i in 0..MOST_OWN {
            assert_eq!(define(&mut own, column(&format!("c{i}")).expect("fits")), Some(i));
        }
        assert_eq!(define(&mut own, column("c3").expect("fits")), Some(3));
        assert_eq!(define(&mut own, column("one_more").expect("fits")), None);
    }

    #[test]
    fn every_figure_is_a_variable_with_a_unit() {
        let all: Vec<&str> = variables().map(|v| v.name).collect();
        assert!(variables().all(|v| !v.unit.is_empty() && !SETS.contains(&v.name)));
        for name in &all {
            assert!(OwnColumn::parse("c", name).is_ok(), "{name}");
            assert_eq!(all.iter().filter(|n| n == &name).count(), 1, "{name}");
        }
    }
}
