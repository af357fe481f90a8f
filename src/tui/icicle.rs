//! The rows of a profile as nested parts of one line: what a name's words have in common is a part that holds the others.
//!
//! Pure; drawing is `draw/icicle`'s. Invariants: the parts of a level lie side by side in the order in which they first run and none overlaps; each is as
//! wide as what its rows take; every row is a part.

use crate::profile::Profile;

/// Words of a name that are told apart: longer ones keep the rest in their last.
const WORDS: usize = 12;

/// A part of the whole.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    /// Its own words, without those of what holds it.
    pub label: String,
    pub depth: usize,
    /// Where it begins and ends, 0 to 1.
    pub from: f64,
    pub to: f64,
    /// The row of the profile that it is, or how many rows it holds.
    pub row: Option<usize>,
    pub rows: usize,
    /// Which part of the level above holds it: parts with the same one are siblings.
    pub parent: usize,
}

#[derive(Default)]
struct Node {
    word: String,
    row: Option<usize>,
    under: Vec<Node>,
}

impl Node {
    fn put(&mut self, words: &[&str], row: usize) {
        let Some((first, rest)) = words.split_first() else {
            // A name that others begin with is a part of its own beside them.
            self.under.push(Node { word: self.word.clone(), row: Some(row), under: Vec::new() });
            return;
        };
        let at = match self.under.iter().position(|n| n.word == *first && n.row.is_none()) {
            Some(at) => at,
            None => {
                self.under.push(Node { word: (*first).to_owned(), ..Node::default() });
                self.under.len() - 1
            }
        };
        self.under[at].put(rest, row);
    }

    /// A part that holds one part alone is one with it.
    fn join(&mut self) {
        self.under.iter_mut().for_each(Node::join);
        while self.row.is_none() && self.under.len() == 1 {
            let Some(one) = self.under.pop() else { return };
            if one.row.is_none() || one.word != self.word {
                self.word = if self.word.is_empty() { one.word } else { format!("{}.{}", self.word, one.word) };
            }
            (self.row, self.under) = (one.row, one.under);
        }
    }

    fn weigh(&self, times: &[f64]) -> (f64, usize) {
        let own = self.row.map_or((0.0, 0), |r| (times[r], 1));
        self.under.iter().map(|n| n.weigh(times)).fold(own, |a, b| (a.0 + b.0, a.1 + b.1))
    }

    fn lay(&self, times: &[f64], depth: usize, from: f64, parent: usize, out: &mut Vec<Part>) {
        let (width, rows) = self.weigh(times);
        let me = out.len();
        out.push(Part { label: self.word.clone(), depth, from, to: from + width, row: self.row, rows, parent });
        let mut at = from;
        for n in &self.under {
            n.lay(times, depth + 1, at, me, out);
            at += n.weigh(times).0;
        }
    }
}

/// All parts, each before what it holds; the first is the whole. Empty where nothing takes any time.
pub fn parts(profile: &Profile) -> Vec<Part> {
    let ms: Vec<f64> =
        profile.rows.iter().map(|r| Some(r.latency.p50).filter(|v| v.is_finite()).unwrap_or(0.0)).collect();
    let sum: f64 = ms.iter().sum();
    if sum <= 0.0 {
        return Vec::new();
    }
    let mut root = Node::default();
    for (i, row) in profile.rows.iter().enumerate() {
        let words: Vec<&str> = row.name.splitn(WORDS, ['.', '/']).filter(|w| !w.is_empty()).collect();
        root.put(&words, i);
    }
    root.under.iter_mut().for_each(Node::join);
    let times: Vec<f64> = ms.iter().map(|v| v / sum).collect();
    let mut out = Vec::new();
    root.lay(&times, 0, 0.0, 0, &mut out);
    out
}

/// Names of the rows from left to right.
pub fn order(profile: &Profile) -> Vec<String> {
    parts(profile).iter().filter_map(|p| Some(profile.rows.get(p.row?)?.name.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{LatencyStats, LayerRow};

    fn profile(rows: &[(&str, f64)]) -> Profile {
        let row = |(name, ms): &(&str, f64)| LayerRow {
            name: (*name).to_owned(),
            latency: LatencyStats::of(&[*ms]),
            ..LayerRow::default()
        };
        Profile { rows: rows.iter().map(row).collect(), ..Profile::default() }
    }

    #[test]
    fn names_nest_and_widths_are_times() {
        let p = profile(&[("stem", 1.0), ("a.0.conv1", 2.0), ("a.0.conv2", 3.0), ("a.1.conv1", 4.0), ("head.fc", 0.0)]);
        let told: Vec<(String, usize, f64, f64, usize)> =
            parts(&p).into_iter().map(|p| (p.label, p.depth, 10.0 * p.from, 10.0 * p.to, p.rows)).collect();
        let want = [
            ("", 0, 0.0, 10.0, 5),
            ("stem", 1, 0.0, 1.0, 1),
            ("a", 1, 1.0, 10.0, 3),
            ("0", 2, 1.0, 6.0, 2),
            ("conv1", 3, 1.0, 3.0, 1),
            ("conv2", 3, 3.0, 6.0, 1),
            ("1.conv1", 2, 6.0, 10.0, 1),
            ("head.fc", 1, 10.0, 10.0, 1),
        ];
        for (told, want) in told.iter().zip(want) {
            assert_eq!((told.0.as_str(), told.1, told.4), (want.0, want.1, want.4));
            assert!((told.2 - want.2).abs() < 1e-9 && (told.3 - want.3).abs() < 1e-9, "{told:?}");
        }
        assert_eq!(told.len(), want.len());
        assert_eq!(order(&p), ["stem", "a.0.conv1", "a.0.conv2", "a.1.conv1", "head.fc"]);
        assert!(parts(&profile(&[("x", 0.0)])).is_empty());
    }

    #[test]
    fn every_row_is_a_part_whatever_names_are_like() {
        let deep = "a.".repeat(50_000);
        let p = profile(&[("fc", 1.0), ("fc.act", 1.0), ("", 1.0), ("...", 1.0), (&deep, 1.0), ("fc", 1.0)]);
        let all = parts(&p);
        let mut rows: Vec<usize> = all.iter().filter_map(|p| p.row).collect();
        rows.sort_unstable();
        assert_eq!(rows, [0, 1, 2, 3, 4, 5]);
        for depth in 0..=all.iter().map(|p| p.depth).max().unwrap() {
            let level: Vec<&Part> = all.iter().filter(|p| p.depth == depth).collect();
            assert!(level.windows(2).all(|w| w[0].to <= w[1].from + 1e-9), "{level:?}");
        }
    }
}
