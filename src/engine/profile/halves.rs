//! Rows of two layers that stand for one, as one row under its name: who decided on that layer is shown what it became.

use super::{LatencyStats, Profile};
use crate::graph::{Graph, inner_name};

impl Profile {
    /// Makes one row of every two whose layers stand for one of `original`'s. Times, counts and bytes are sums; medians of two are only nearly the
    /// median of both, as everywhere where rows are added.
    pub fn fold_halves(&mut self, original: &Graph) {
        let named = |name: &str| self.rows.iter().position(|r| r.name == name);
        let known = |name: &str| original.nodes.iter().any(|n| n.name == name);
        let pairs = self.rows.iter().filter(|r| known(&r.name)).filter_map(|r| {
            let inner = inner_name(&r.name);
            Some((named(&inner).filter(|_| !known(&inner))?, named(&r.name)?))
        });
        let mut pairs: Vec<(usize, usize)> = pairs.collect();
        for &(inner, outer) in &pairs {
            let half = self.rows[inner].clone();
            let row = &mut self.rows[outer];
            row.kind = format!("{}, {}", half.kind, row.kind);
            row.kernel = format!("{}, {}", half.kernel, row.kernel);
            row.fused.splice(0..0, std::iter::once(half.name).chain(half.fused));
            row.latency = both(&half.latency, &row.latency);
            row.doubt = row.doubt.or(half.doubt);
            // The part of the two that took longer is what binds them.
            if half.share > row.share {
                (row.bound, row.efficiency) = (half.bound, half.efficiency);
            }
            let moved = |macs: u64, intensity: f64| if intensity > 0.0 { 2.0 * macs as f64 / intensity } else { 0.0 };
            let bytes = moved(half.macs.conv_linear, half.intensity) + moved(row.macs.conv_linear, row.intensity);
            row.share += half.share;
            row.weight_bytes += half.weight_bytes;
            row.params += half.params;
            row.macs = row.macs + half.macs;
            row.intensity = if bytes > 0.0 { 2.0 * row.macs.conv_linear as f64 / bytes } else { 0.0 };
        }
        pairs.sort_unstable();
        for (inner, _) in pairs.into_iter().rev() {
            self.rows.remove(inner);
        }
    }
}

fn both(a: &LatencyStats, b: &LatencyStats) -> LatencyStats {
    LatencyStats {
        n: a.n.min(b.n),
        p50: a.p50 + b.p50,
        p95: a.p95 + b.p95,
        p99: a.p99.zip(b.p99).map(|(a, b)| a + b),
        mean: a.mean + b.mean,
        min: a.min + b.min,
        spread: a.spread.zip(b.spread).map(|(a, b)| a.max(b)),
        middle: a.middle.max(b.middle),
        replayed: a.replayed && b.replayed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::Cancel;
    use crate::model::families::{CifarResnetSpec, FamilySpec};
    use crate::model::random;
    use crate::profile::{ProfileOptions, profile};
    use crate::prune::split;
    use std::collections::BTreeMap;

    #[test]
    fn two_rows_become_one_and_nothing_is_lost() {
        let spec = CifarResnetSpec { blocks: 1, widths: [8, 16, 16], classes: 10, image: 16 };
        let model = random(&FamilySpec::CifarResnet(spec), 3);
        let ranks = BTreeMap::from([("layer2.0.conv2".to_owned(), 4), ("linear".to_owned(), 3)]);
        let two = split(&model, &ranks).unwrap();
        let options = ProfileOptions { batch: 2, ..ProfileOptions::default() };
        let plain = profile(&two, &options, &Cancel::default(), &mut |_| {}).unwrap();
        let mut folded = plain.clone();
        folded.fold_halves(&model.graph);
        assert_eq!(folded.rows.len(), plain.rows.len() - 2);
        let all = |p: &Profile| {
            let sum = |of: &dyn Fn(&super::super::LayerRow) -> f64| p.rows.iter().map(of).sum::<f64>();
            [
                sum(&|r| r.latency.p50),
                sum(&|r| r.share),
                sum(&|r| r.weight_bytes as f64),
                sum(&|r| r.macs.conv_linear as f64),
            ]
        };
        for (a, b) in all(&plain).into_iter().zip(all(&folded)) {
            assert!((a - b).abs() <= 1e-9 * a.abs(), "{a} {b}");
        }
        let row = folded.rows.iter().find(|r| r.name == "layer2.0.conv2").unwrap();
        assert!(row.fused.contains(&"layer2.0.conv2.0".to_owned()) && row.kernel.contains(", "), "{row:?}");
        // Opened as an original of its own it keeps both.
        let mut own = plain.clone();
        own.fold_halves(&two.graph);
        assert_eq!(own, plain);
    }
}
