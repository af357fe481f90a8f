//! What the plan that is shown makes of each block: the part of its weights' stored bytes that goes.
//!
//! Not here: how far a block's decisions are (`draw/layers`). Invariant: it is a count by shapes and formats, not an estimate; a block whose rows
//! were not profiled, or hold no weights, has none.

use super::app::App;
use crate::plan::{Decision, RowForecast};
use std::collections::HashMap;
use std::rc::Rc;

impl App {
    /// Works out the sums of all blocks under `plan`; they are in the order of the table's blocks.
    pub(super) fn sum_blocks(&mut self, plan: &[Decision]) {
        let rows = if plan.is_empty() { None } else { self.forecasts.rows(&self.state, plan) };
        // The cursor alone changes no sum.
        if let (Some(new), Some(old)) = (&rows, &self.block_rows)
            && Rc::ptr_eq(new, old)
        {
            return;
        }
        let by_name: HashMap<&str, &RowForecast> =
            rows.iter().flat_map(|rows| rows.iter()).map(|row| (row.name.as_str(), row)).collect();
        let sum = |layers: &[usize]| {
            let names = layers.iter().filter_map(|i| self.table.layers.get(*i)).map(|l| l.name.as_str());
            part(names.filter_map(|name| by_name.get(name).copied()))
        };
        self.block_sums = self.table.blocks.iter().map(|b| sum(&b.layers)).collect();
        self.block_rows = rows;
    }
}

/// The part of the rows' bytes that goes, negative where they grow; none where there are no bytes, or nothing changes.
fn part<'a>(rows: impl Iterator<Item = &'a RowForecast>) -> Option<f64> {
    let (before, after) = rows.fold((0u64, 0u64), |(b, a), row| (b + row.base_bytes, a + row.bytes));
    (before > 0 && before != after).then(|| 1.0 - after as f64 / before as f64)
}

/// In the plan's column: `−62%`; what is more than nothing and less than one in a hundred, or nearly all, is no round figure.
pub fn words(part: f64, ascii: bool) -> String {
    let sign = match (part < 0.0, ascii) {
        (true, _) => "+",
        (false, true) => "-",
        (false, false) => "−",
    };
    match part.abs() * 100.0 {
        p if p < 1.0 => format!("{sign}<1%"),
        p if p < 100.0 => format!("{sign}{:.0}%", p.min(99.0)),
        p => format!("{sign}{p:.0}%"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(base_bytes: u64, bytes: u64) -> RowForecast {
        RowForecast { name: String::new(), base_ms: 1.0, ms: 1.0, base_bytes, bytes }
    }

    #[test]
    fn a_blocks_part_is_of_its_bytes_and_says_what_it_is() {
        assert_eq!(part([row(300, 100), row(100, 52)].iter()), Some(0.62));
        assert_eq!(part([row(100, 150)].iter()), Some(-0.5));
        assert_eq!(part([row(100, 100)].iter()), None);
        assert_eq!(part([row(0, 0)].iter()), None);
        for (part, want) in [(0.62, "−62%"), (1.0, "−100%"), (0.9999, "−99%"), (0.001, "−<1%"), (-0.5, "+50%")]
        {
            assert_eq!(words(part, false), want);
        }
        assert_eq!(words(0.62, true), "-62%");
    }
}
