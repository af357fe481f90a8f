//! What checkpoints of different origin call the same thing.
//!
//! A builder uses one set of names, its own; a [`Names`] table turns them into a checkpoint's, for nodes, blocks and
//! tensors alike. Reading dimensions goes through the same table, so that one reader and one builder serve every origin.

use crate::graph::{Graph, GraphError};
use std::collections::HashMap;

/// Where weights with these names are published; decides defaults that weights do not tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    Torchvision,
    Timm,
    /// `transformers`, with `config.json` beside the weights.
    HuggingFace,
    /// GGUF files.
    Gguf,
    /// A paper's own code.
    Paper,
}

/// Patterns of a builder's names, each with a checkpoint's name.
pub(super) type Rules = &'static [(&'static str, &'static str)];

/// A table from a builder's names to a checkpoint's.
#[derive(Debug)]
pub struct Names {
    pub source: Source,
    /// Replaces `{p}` in the rules.
    pub prefix: &'static str,
    /// Lists of rules, one after the other. The first that matches a name's first parts rewrites them; what follows stays. In a pattern, `#` stands
    /// for a number and `a|b` for either word; in a replacement, `{0}` is the first such number, and `{0+1}`, `{0-1}`,
    /// `{0*2+1}` compute with it.
    pub rules: &'static [Rules],
    /// Parts of tensor names that no classifier's output depends on.
    pub unused: &'static [&'static str],
}

impl PartialEq for Names {
    fn eq(&self, other: &Names) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Names {
    /// A table of a family whose outputs depend on every tensor.
    pub(super) const fn new(source: Source, prefix: &'static str, rules: &'static [Rules]) -> Names {
        Names { source, prefix, rules, unused: &[] }
    }

    /// The checkpoint's name for `own`.
    pub fn of(&self, own: &str) -> String {
        let found = self.rules.iter().copied().flatten().find_map(|(pattern, to)| {
            let (numbers, rest) = matches(pattern, own)?;
            Some(fill(to, self.prefix, &numbers) + rest)
        });
        found.unwrap_or_else(|| own.to_owned())
    }

    /// `graph` with every node, tensor and block called as the checkpoint calls it.
    pub fn apply(&self, mut graph: Graph) -> Result<Graph, GraphError> {
        for node in &mut graph.nodes {
            node.name = self.of(&node.name);
            node.params.iter_mut().for_each(|p| p.name = self.of(&p.name));
        }
        graph.blocks.iter_mut().for_each(|b| b.name = self.of(&b.name));
        graph.check()?;
        Ok(graph)
    }
}

impl Names {
    /// Every name of `self` with that of `other`, for rules with two numbers at most, which run up to `counts`.
    pub fn each(&self, other: &Names, counts: [usize; 2]) -> HashMap<String, String> {
        // What a kind calls otherwise comes first among its lists, and goes before what all others call so.
        let lists = other.rules.iter().rev().chain(self.rules.iter().rev()).copied();
        let mut owns: Vec<String> = lists.flatten().map(|(pattern, _)| (*pattern).to_owned()).collect();
        for count in counts {
            let filled = |own: String| match own.contains('#') {
                true => (0..count).map(|i| own.replacen('#', &i.to_string(), 1)).collect(),
                false => vec![own],
            };
            owns = owns.into_iter().flat_map(filled).collect();
        }
        owns.into_iter().map(|own| (self.of(&own), other.of(&own))).collect()
    }
}

/// The numbers in `name` where `pattern` has `#`, and the rest of `name`; `None` when it does not begin with `pattern`.
fn matches<'a>(pattern: &str, name: &'a str) -> Option<(Vec<usize>, &'a str)> {
    let mut numbers = Vec::new();
    let mut rest = name;
    for (i, want) in pattern.split('.').enumerate() {
        if i > 0 {
            rest = rest.strip_prefix('.')?;
        }
        let end = rest.find('.').unwrap_or(rest.len());
        let part = &rest[..end];
        match want.strip_suffix('#') {
            Some(word) => numbers.push(part.strip_prefix(word)?.parse().ok()?),
            None => want.split('|').any(|w| w == part).then_some(())?,
        }
        rest = &rest[end..];
    }
    Some((numbers, rest))
}

fn fill(to: &str, prefix: &str, numbers: &[usize]) -> String {
    let mut out = String::with_capacity(to.len() + 16);
    let mut rest = to;
    while let Some((before, after)) = rest.split_once('{') {
        let (expression, after) = after.split_once('}').unwrap_or((after, ""));
        out += before;
        match expression {
            "p" => out += prefix,
            e => out += &compute(e, numbers).to_string(),
        }
        rest = after;
    }
    out + rest
}

/// `i`, `i+k`, `i-k`, `i*k`, `i*k+l` over the numbers of a name. Rules are written here, so one that does not parse
/// shows in the first test; it gives 0.
fn compute(expression: &str, numbers: &[usize]) -> usize {
    let (product, sign, offset) = match expression.find(['+', '-']) {
        Some(at) => (&expression[..at], &expression[at..=at], expression[at + 1..].parse().unwrap_or(0)),
        None => (expression, "+", 0),
    };
    let (index, factor) = product.split_once('*').unwrap_or((product, "1"));
    let number: usize = index.parse().ok().and_then(|i: usize| numbers.get(i)).copied().unwrap_or(0);
    let value = number.saturating_mul(factor.parse().unwrap_or(1));
    if sign == "-" { value.saturating_sub(offset) } else { value.saturating_add(offset) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules = &[
        ("layer#.#.conv#", "{p}.stages.{0-1}.layers.{1}.layer.{2-1}.convolution"),
        ("ds|mb.#.dw", "features.{0*2+1}.conv"),
        ("layer#.#", "{p}.stages.{0-1}.layers.{1}"),
        ("fc", "classifier"),
    ];
    const TABLE: Names = Names::new(Source::HuggingFace, "net", &[RULES]);

    #[test]
    fn the_first_rule_rewrites_the_beginning_and_the_rest_stays() {
        for (own, theirs) in [
            ("layer1.10.conv2.weight", "net.stages.0.layers.10.layer.1.convolution.weight"),
            ("layer2.0.add", "net.stages.1.layers.0.add"),
            ("layer2.0", "net.stages.1.layers.0"),
            ("mb.3.dw.weight", "features.7.conv.weight"),
            ("fc.bias", "classifier.bias"),
            ("fcx.bias", "fcx.bias"),
            ("layers.0", "layers.0"),
            ("layer1", "layer1"),
        ] {
            assert_eq!(TABLE.of(own), theirs);
        }
    }
}
