//! What decisions cost and save: exact counts of MACs, parameters and bytes, and estimated latency. Pure tables and the
//! graph, fast enough to be asked while a ratio is dragged.
//!
//! Invariants: an empty plan changes nothing; counts come from `prune::shrink`, so that they equal what applying yields.
//! Not here: accuracy (`forecast`), choosing (`planner`) and measuring (`profile`).

mod halves;
mod recent;

use self::halves::Halves;
use self::recent::Recent;
use super::curve::{REPEAT, Steps};
use super::{Action, Estimate, Target};
use crate::graph::{Graph, Macs, Op, ParamRole, param_shapes};
use crate::profile::{Ladder, LayerRow, Profile};
use crate::prune::{self, Group};
use crate::quant::{Precision, Precisions};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Costs for one model from its tables.
#[derive(Debug, Clone)]
pub struct Costs {
    pub(super) graph: Graph,
    pub(super) groups: Vec<Group>,
    rows: Vec<RowTable>,
    pub(super) index: HashMap<String, usize>,
    base: Totals,
    base_bytes: u64,
    /// Of the original, which the rows add up to.
    whole_ms: f64,
    /// Measured latency saving over the forecast's, in earlier rounds: how far forecasts of latency are believed.
    pub(super) trust: f64,
    recent: Recent,
}

/// The model after a plan.
#[derive(Debug)]
struct After {
    cost: Cost,
    /// What becomes of each of the tables' rows; a row without a node has none.
    parts: Vec<Option<RowPart>>,
}

#[derive(Debug, Clone)]
struct RowTable {
    node: usize,
    /// Its part of the whole model's latency.
    ms: f64,
    /// How far another measurement of it is expected to lie, as a part of it.
    repeat: f64,
    bytes: u64,
    precision: Precision,
    steps: Option<Steps>,
}

/// One row after a plan.
#[derive(Debug, Clone, Copy)]
struct RowPart {
    ms: f64,
    /// Half-width of the range around it.
    spread: f64,
    bytes: u64,
    /// It takes another time than before.
    changed: bool,
}

/// And at most, for a forecast to make sense at all.
const REPEAT_MOST: f64 = 0.5;
/// As [`REPEAT`] for whole models, measured in turns.
const REPEAT_WHOLE: f64 = 0.015;

/// How far off the time of a kernel that nobody timed may be, as a part of what its row takes.
const UNTIMED: f64 = 0.5;

/// A cut that makes the model slower; see [`Costs::slower`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slower {
    /// Milliseconds a batch that it is expected to add.
    pub ms: f64,
    /// The nearest number of kept units that is expected to be faster than the original, if any.
    pub pays_at: Option<usize>,
}

impl Slower {
    /// In a sentence.
    pub fn words(&self) -> String {
        let ms = self.ms;
        match self.pays_at {
            Some(kept) => format!("Slower at this width (~{ms:+.2} ms); the nearest that pays keeps {kept}."),
            None => format!("Slower at this width (~{ms:+.2} ms), and no width of it pays."),
        }
    }
}

#[derive(Debug, Clone, Default)]
struct Totals {
    macs: Vec<Macs>,
    elements: Vec<u64>,
    reachable: Vec<bool>,
    params: u64,
    total: Macs,
    /// Layers that two stand for.
    halves: Halves,
}

/// Cost of a plan in plain numbers: what the planner's inner loop asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cost {
    pub macs: u64,
    pub params: u64,
    pub bytes: u64,
    pub latency_ms: f64,
    /// Uncertainty of `latency_ms`, half-width.
    pub latency_spread: f64,
    /// What the rows that change or go take in the original: as much could be saved at most.
    pub touched_ms: f64,
}

/// What one row of the profile is expected to take after a plan, as a part of the whole model's latency; and what its weights then are, exactly.
#[derive(Debug, Clone, PartialEq)]
pub struct RowForecast {
    /// The row's leading node.
    pub name: String,
    pub base_ms: f64,
    pub ms: f64,
    /// Stored bytes of its weights in the original and after the plan.
    pub base_bytes: u64,
    pub bytes: u64,
}

impl Costs {
    pub(super) fn new(graph: &Graph, groups: &[Group], profile: &Profile, ladders: &[Ladder]) -> Costs {
        let index: HashMap<String, usize> = graph.nodes.iter().enumerate().map(|(i, n)| (n.name.clone(), i)).collect();
        let base = totals(graph).unwrap_or_default();
        let row = |r: &LayerRow| -> Option<RowTable> {
            let node = *index.get(&r.name)?;
            let steps = graph
                .nodes
                .get(node)?
                .op
                .facts()
                .widths()
                .and_then(|(i, o)| Steps::of(ladders.iter().find(|l| l.layer == r.name)?, i, o));
            let repeat = r.latency.spread().clamp(REPEAT, REPEAT_MOST);
            let (ms, bytes) = (profile.counted_ms(r), r.weight_bytes);
            Some(RowTable { node, ms, repeat, bytes, precision: r.precision, steps })
        };
        let rows: Vec<RowTable> = profile.rows.iter().filter_map(row).collect();
        let whole_ms = rows.iter().map(|r| r.ms).sum();
        Costs {
            graph: graph.clone(),
            groups: groups.to_vec(),
            base_bytes: if profile.weight_bytes > 0 { profile.weight_bytes } else { base.params * 4 },
            rows,
            index,
            base,
            whole_ms,
            trust: 1.0,
            recent: Recent::default(),
        }
    }

    /// How far forecasts of latency are believed: see [`Costs::trust`].
    pub(super) fn believe(&mut self, trust: f64) {
        self.trust = trust;
        self.recent = Recent::default();
    }

    /// The cost of as many of `actions` as combine, taken in order, with those; and in words why the others do not.
    pub fn combined(&self, actions: Vec<(Target, Action)>) -> (Option<Cost>, Vec<(Target, Action)>, Vec<String>) {
        if let Ok(after) = self.after(&actions) {
            return (Some(after.cost), actions, Vec::new());
        }
        let (mut good, mut skipped) = (Vec::new(), Vec::new());
        for a in actions {
            good.push(a);
            if let Err(e) = self.cost(&good) {
                skipped.push(e);
                good.pop();
            }
        }
        (self.cost(&good).ok(), good, skipped)
    }

    /// The change of latency that `cost` stands for, in milliseconds a batch; and the whole as a factor of the original's.
    /// `changed`: something was decided at all. No end of the range saves more than the rows that it touches take.
    pub fn latency(&self, cost: &Cost, changed: bool) -> (Estimate, Estimate) {
        let d_ms = cost.latency_ms - self.whole_ms;
        let mut own = around(d_ms, cost.latency_spread);
        own.low = own.low.max(-cost.touched_ms).min(own.value);
        // Two measurements of whole models differ by more than the changed rows tell.
        let repeat = if changed { REPEAT_WHOLE * cost.latency_ms } else { 0.0 };
        let whole = around(d_ms, cost.latency_spread + repeat);
        let part = |ms: f64| if self.whole_ms > 0.0 { (1.0 + ms / self.whole_ms).max(0.0) } else { 1.0 };
        (own, Estimate { value: part(whole.value), low: part(whole.low), high: part(whole.high) })
    }

    /// Whether cutting a group's units makes the model slower by the ladders (odd widths can), and which nearest width
    /// pays. `None` for what is not a cut, is no slower, or cannot be applied.
    pub fn slower(&self, target: &Target, action: &Action) -> Option<Slower> {
        let (Target::Group(id), Action::Prune { ratio, kept }) = (target, action) else { return None };
        let group = self.groups.iter().find(|g| &g.id == id)?;
        let keep = if kept.is_empty() { group.kept_at(*ratio) } else { kept.len() };
        let beyond = |cost: Cost| (cost.latency_ms - self.whole_ms, cost.latency_spread);
        let ms_at = |keep: usize| {
            let cut = Action::Prune { ratio: group.ratio_of(keep), kept: (0..keep as u32).collect() };
            self.cost(&[(target.clone(), cut)]).ok().map(beyond)
        };
        let own = self.after(&[(target.clone(), action.clone())]).ok().map(|after| beyond(after.cost));
        // Nothing is said of what two measurements may differ by.
        let (ms, _) = own.filter(|(ms, spread)| ms - spread > 1e-6 * self.whole_ms)?;
        let step = group.granule.max(1);
        let (mut down, mut up) = (keep, keep);
        let mut pays_at = None;
        while pays_at.is_none() && (down > step || up + step < group.size) {
            // The milder cut first: it costs less accuracy.
            up += step;
            down = down.saturating_sub(step);
            let tried = [(up < group.size).then_some(up), (down > 0).then_some(down)];
            pays_at = tried.into_iter().flatten().find(|&k| ms_at(k).is_some_and(|(ms, spread)| ms + spread < 0.0));
        }
        Some(Slower { ms, pays_at })
    }

    /// What the original costs.
    pub fn base(&self) -> Cost {
        Cost {
            macs: self.base.total.conv_linear,
            params: self.base.params,
            bytes: self.base_bytes,
            latency_ms: self.whole_ms,
            ..Cost::default()
        }
    }

    /// Cost of the model after `actions`; an error in words when they cannot be applied together.
    pub fn cost(&self, actions: &[(Target, Action)]) -> Result<Cost, String> {
        Ok(self.work_out(actions)?.cost)
    }

    /// What every row is expected to take and holds, nothing where it goes; an error in words when the actions cannot be applied together.
    pub fn rows(&self, actions: &[(Target, Action)]) -> Result<Vec<RowForecast>, String> {
        let after = self.after(actions)?;
        let one = |(row, part): (&RowTable, &Option<RowPart>)| {
            let (part, name) = (part.as_ref()?, self.graph.nodes.get(row.node)?.name.clone());
            Some(RowForecast { name, base_ms: row.ms, ms: part.ms, base_bytes: row.bytes, bytes: part.bytes })
        };
        Ok(self.rows.iter().zip(&after.parts).filter_map(one).collect())
    }

    /// What changes when a model made by `from` is made by `to` instead, in milliseconds of the latency that `shown`, its
    /// profile, measured; and what the rows that change or go take there. Each row changes by the same factor as in the
    /// original's tables, so that none saves more than is shown of it. `None` when actions cannot be applied together.
    pub fn latency_over(
        &self,
        from: &[(Target, Action)],
        to: &[(Target, Action)],
        shown: &Profile,
    ) -> Option<(Estimate, f64)> {
        let (from, to) = (self.after(from).ok()?, self.after(to).ok()?);
        let measured: HashMap<&str, f64> = shown.rows.iter().map(|r| (r.name.as_str(), shown.counted_ms(r))).collect();
        let (mut change, mut spread, mut touched) = (0.0, 0.0, 0.0);
        for ((row, a), b) in self.rows.iter().zip(&from.parts).zip(&to.parts) {
            let (Some(a), Some(b)) = (a, b) else { continue };
            let name = self.graph.nodes.get(row.node).map_or("", |n| n.name.as_str());
            if a.ms == b.ms {
                continue;
            }
            // A row that comes back is not shown now; the original's figure has to do.
            let now = measured.get(name).copied().filter(|_| a.ms > 0.0);
            let scale = now.map_or(1.0, |now| now / a.ms);
            change += (b.ms - a.ms) * scale;
            spread += (b.spread - a.spread).abs().max(row.repeat * (b.ms - a.ms).abs()) * scale;
            touched += now.unwrap_or(0.0);
        }
        let mut change = around(change, spread);
        change.low = change.low.max(-touched).min(change.value);
        Some((change, touched))
    }

    /// The model after `actions`; an error in words when they cannot be applied together.
    fn after(&self, actions: &[(Target, Action)]) -> Result<Arc<After>, String> {
        match self.recent.of(actions) {
            Some(known) => Ok(known),
            None => Ok(self.recent.keep(actions, self.work_out(actions)?)),
        }
    }

    fn work_out(&self, actions: &[(Target, Action)]) -> Result<After, String> {
        let graph = prune::shrink(&self.graph, &self.groups, actions).map_err(|e| e.to_string())?;
        let mut new = totals(&graph).ok_or("the changed graph has no shapes")?;
        new.split(&graph, halves::halves(&graph, actions));
        let parts = self.parts(actions, &graph, &new);
        let mut cost = Cost { macs: new.total.conv_linear, params: new.params, ..Cost::default() };
        for (row, part) in self.rows.iter().zip(&parts).filter_map(|(row, part)| Some((row, part.as_ref()?))) {
            cost.latency_ms += part.ms;
            cost.latency_spread += part.spread;
            cost.touched_ms += if part.changed { row.ms } else { 0.0 };
            cost.bytes += part.bytes;
        }
        if self.rows.is_empty() {
            cost.bytes = new.params * 4;
        }
        Ok(After { cost, parts })
    }

    /// What becomes of every row.
    fn parts(&self, actions: &[(Target, Action)], graph: &Graph, new: &Totals) -> Vec<Option<RowPart>> {
        let mut precision = Precisions::default();
        let mut zeros = HashSet::new();
        for (t, a) in actions {
            match (t, a) {
                (Target::Layer(l), Action::Precision { precision: p }) => precision.set(l.clone(), *p),
                (Target::Weights(l), Action::Sparsify { .. }) => _ = zeros.insert(l.as_str()),
                _ => {}
            }
        }
        let one = |row: &RowTable| {
            let (old_node, new_node) = (self.graph.nodes.get(row.node)?, graph.nodes.get(row.node)?);
            if !new.reachable.get(row.node).copied().unwrap_or(true) {
                return Some(self.part(row, 0.0, 0.0, true, 0));
            }
            let p = precision.nodes.get(&old_node.name).copied().unwrap_or(row.precision).instead(&new_node.op);
            let p = if zeros.contains(old_node.name.as_str()) { p.with_zero() } else { p };
            // What a cache is in changes no weight, and nothing that was timed.
            let p = if new_node.op.caches() { row.precision } else { p };
            let halves = new.halves.get(&row.node);
            let same = p == row.precision && old_node.op == new_node.op && halves.is_none();
            let (factor, doubt) = match halves {
                Some(halves) => self.factor_of_halves(row, halves, p, new),
                None if same => self.elements(row.node, new),
                None => self.factor(row, &new_node.op, p, new),
            };
            // A kernel of its own that nobody has a time of: about what it takes now is as good a guess as any.
            let lost = |q: Precision| row.steps.as_ref().is_some_and(|s| s.has_own(q) && !s.times(q));
            let untimed = p != row.precision && (lost(p) || lost(row.precision));
            let bytes = match halves {
                Some(halves) => halves::stored(row.bytes, &old_node.op, row.precision, halves, p),
                None if same => row.bytes,
                None => stored(row.bytes, &old_node.op, row.precision, &new_node.op, p),
            };
            let mut part = self.part(row, factor, doubt, !same, bytes);
            part.spread += if untimed { UNTIMED * row.ms } else { 0.0 };
            Some(part)
        };
        self.rows.iter().map(one).collect()
    }

    /// A row that takes `factor` of what it takes, corrected by what earlier rounds saved; it cannot save more than it takes.
    /// `doubt` is a part of the change.
    fn part(&self, row: &RowTable, factor: f64, doubt: f64, again: bool, bytes: u64) -> RowPart {
        let change = row.ms * (factor - 1.0);
        let change = if change < 0.0 { change * self.trust } else { change };
        let ms = (row.ms + change).max(0.0);
        // What stays as it is needs no forecast; what is measured anew differs even where it should not.
        let repeat = if again { row.repeat * ms } else { 0.0 };
        RowPart { ms, spread: (ms - row.ms).abs() * doubt + repeat, bytes, changed: again || factor != 1.0 }
    }

    fn factor(&self, row: &RowTable, new: &Op, precision: Precision, totals: &Totals) -> (f64, f64) {
        if let (Some(steps), Some((i, o))) = (&row.steps, new.facts().widths())
            && let (Some(now), Some(base)) = (steps.factor(i, o, precision), self.own_factor(row))
        {
            return (now / base.max(1e-9), 0.08);
        }
        self.factor_by_work(row, precision, totals)
    }

    /// Where nothing was timed.
    fn factor_by_work(&self, row: &RowTable, precision: Precision, totals: &Totals) -> (f64, f64) {
        let (old, now) = (self.base.macs.get(row.node), totals.macs.get(row.node));
        let work = |m: Option<&Macs>| m.map_or(0, |m| m.conv_linear.max(m.attention));
        let (factor, mut doubt) = match (work(old), work(now)) {
            (0, _) => self.elements(row.node, totals),
            // Fewer MACs never save all of their share: packing and memory stay.
            (a, b) => (0.1 + 0.9 * b as f64 / a as f64, 0.3),
        };
        let int8 = match (row.precision.int8_products(), precision.int8_products()) {
            (false, true) => 0.6,
            (true, false) => 1.0 / 0.6,
            (false, false) | (true, true) => 1.0,
        };
        if int8 != 1.0 {
            doubt = 0.6;
        }
        (factor * int8, doubt)
    }

    fn own_factor(&self, row: &RowTable) -> Option<f64> {
        let (i, o) = self.graph.nodes.get(row.node)?.op.facts().widths()?;
        row.steps.as_ref()?.factor(i, o, row.precision)
    }

    /// An elementwise row takes time with its elements.
    fn elements(&self, node: usize, new: &Totals) -> (f64, f64) {
        match (self.base.elements.get(node), new.elements.get(node)) {
            (Some(&a), Some(&b)) if a > 0 && a != b => (b as f64 / a as f64, 0.3),
            _ => (1.0, 0.0),
        }
    }
}

fn around(value: f64, half: f64) -> Estimate {
    Estimate { value, low: value - half, high: value + half }
}

fn totals(graph: &Graph) -> Option<Totals> {
    let shapes = crate::graph::shapes(graph).ok()?;
    let reachable = graph.reachable();
    let macs = crate::graph::macs_of(graph, &shapes);
    let live = |i: &usize| reachable.get(*i).copied().unwrap_or(false);
    let ids: Vec<usize> = (0..graph.nodes.len()).filter(live).collect();
    Some(Totals {
        params: ids.iter().filter_map(|&i| graph.nodes.get(i)).map(|n| graph.params_of(n)).sum(),
        total: ids.iter().filter_map(|&i| macs.get(i)).copied().sum(),
        elements: shapes.iter().map(|s| s.iter().product::<usize>() as u64).collect(),
        macs,
        reachable,
        halves: Halves::new(),
    })
}

/// Rows of the weight of a convolution or linear layer, and weights in a row (an output's inputs).
pub(super) fn weight_shape(op: &Op) -> Option<(usize, usize)> {
    let shapes = op.is_conv_or_linear().then(|| param_shapes(op))?;
    let (_, shape) = shapes.into_iter().find(|(role, _)| *role == ParamRole::Weight)?;
    let (rows, row) = shape.split_first()?;
    Some((*rows, row.iter().product()))
}

/// Stored bytes after a change: weights in their format, and what the row holds beside them (a bias, what was folded into it) by its rows.
/// A row that holds less than its weights shares them with another, and changes in proportion.
fn stored(held: u64, old: &Op, old_p: Precision, new: &Op, new_p: Precision) -> u64 {
    let part = |held: u64, new: f64, old: f64| if old > 0.0 { (held as f64 * new / old).round() as u64 } else { held };
    let (Some((old_rows, old_cols)), Some((new_rows, new_cols))) = (weight_shape(old), weight_shape(new)) else {
        let [new, old] = [new, old].map(|op| crate::graph::node_params(op) as f64);
        return part(held, new, old);
    };
    let (before, after) = (old_p.weights().bytes(old_rows, old_cols), new_p.weights().bytes(new_rows, new_cols));
    match held.checked_sub(before) {
        Some(beside) => after + part(beside, new_rows as f64, old_rows as f64),
        None => part(held, after as f64, before as f64),
    }
}

#[cfg(test)]
mod tests;
