//! View 8's data: everything that is known of the row under the cursor: what its group holds, what it costs at other widths and in other
//! precisions, where it lies in the graph, what was decided on it.
//!
//! Not here: drawing (`draw/inspect`), deciding (`decide`). Invariants: what was measured of a change alone and what is forecast of it are fields of
//! their own; nothing is interpolated here: a width without a rung has none.

use super::app::{App, Effect};
use super::decide::unit;
use super::table::Layer;
use crate::plan::{Action, Decision, Forecast, Target};
use crate::profile::{Ladder, SensTarget};
use crate::prune::{Group, MemberRole};
use crate::quant::{Precision, Runs};
use crate::session::{Activations, Command};
use std::collections::BTreeMap;

/// Widths that are told, the whole one included.
const MOST_WIDTHS: usize = 9;

/// What is known of a row.
#[derive(Debug, Clone, Default)]
pub struct Inspected {
    pub name: String,
    /// `conv 3x3`, and where it lies.
    pub kind: String,
    pub block: Option<String>,
    pub group: Option<OfGroup>,
    pub precisions: Vec<Format>,
    /// Rows before and after it in the graph.
    pub from: Vec<String>,
    pub to: Vec<String>,
    /// The plan that is shown removes the block that it lies in.
    pub removed: bool,
    /// Decisions on it, newest first.
    pub decisions: Vec<Decision>,
    /// Constraints on it, in words.
    pub constraints: Vec<String>,
}

/// Units that are cut together.
#[derive(Debug, Clone)]
pub struct OfGroup {
    pub id: String,
    pub unit: &'static str,
    pub size: usize,
    pub granule: usize,
    pub protected: Option<String>,
    /// Its members by what they do with the units.
    pub makes: Vec<String>,
    pub carries: Vec<String>,
    pub reads: Vec<String>,
    /// Units that stay by the plan that is shown.
    pub kept: usize,
    pub widths: Vec<Width>,
    /// How much units matter, in parts of the first; empty where that is not known.
    pub scores: Vec<f32>,
    /// The unit, counted by importance from 1, where the curve of those bends most.
    pub knee: Option<usize>,
}

/// A group at one width.
#[derive(Debug, Clone)]
pub struct Width {
    pub kept: usize,
    /// Milliseconds of this row at that width as its ladder has them, and whether they are in doubt.
    pub rung: Option<(f64, bool)>,
    /// Measured of this cut alone on calibration data: nats.
    pub kl: Option<f64>,
    /// Of this cut alone in the original; `None` at the whole width.
    pub forecast: Option<Forecast>,
    /// What it changes of the metric by scans alone.
    pub quality: Option<f64>,
}

/// A layer in one precision, or several layers together.
#[derive(Debug, Clone)]
pub struct Format {
    pub precision: Precision,
    pub shown: bool,
    /// Milliseconds as ladders have them, and whether they are in doubt; of several layers where all have one.
    pub rung: Option<(f64, bool)>,
    /// Measured of one layer alone on calibration data: nats.
    pub kl: Option<f64>,
    pub forecast: Option<Forecast>,
    /// What it changes of the metric by scans alone.
    pub quality: Option<f64>,
    /// A kernel multiplies what is stored; `None` where the session's device does not tell.
    pub kernel: Option<bool>,
    /// How far one layer's weights are off, rounded to nearest: a part of their norm.
    pub error: Option<f32>,
    /// How far its outputs are off on calibration items where it alone is in this precision: a part of their norm.
    pub output: Option<f32>,
    /// How many of the layers take it, and why the first of the others does not.
    pub takes: usize,
    pub why: Option<String>,
}

/// What was asked of layers' activations.
#[derive(Debug, Clone, Default)]
pub struct Flows {
    pub known: BTreeMap<String, Activations>,
    /// The layer that was asked for last.
    pub asked: Option<String>,
}

impl App {
    /// Works out what view 8 shows.
    pub(super) fn inspect(&mut self) {
        self.inspected = self.row_layer().cloned().map(|layer| self.inspected_layer(&layer));
        let group = self.inspected.as_ref().and_then(|i| i.group.as_ref()).filter(|g| g.protected.is_none());
        if let Some(name) = self.inspected.as_ref().filter(|i| !i.precisions.is_empty()).map(|i| i.name.clone())
            && self.connected
            && self.asked_rounding.as_ref() != Some(&name)
            && !self.rounding.contains_key(&name)
        {
            self.asked_rounding = Some(name.clone());
            self.effects.push(Effect::Send(Command::Rounding { layer: name }));
        }
        // It runs the model: not while a job measures. Attention has a precision for what it keeps, and no weights to multiply by.
        if let Some(name) = self.row_layer().filter(|l| l.weighty).map(|l| l.name.clone())
            && self.connected
            && !self.busy()
            && self.flows.asked.as_ref() != Some(&name)
            && !self.flows.known.contains_key(&name)
        {
            self.flows.asked = Some(name.clone());
            self.effects.push(Effect::Send(Command::Activations { layer: name }));
        }
        // Asked for once, and again when it was not known yet.
        if let Some(id) = group.map(|g| g.id.clone())
            && self.connected
            && self.asked_units.as_ref() != Some(&id)
            && self.units.get(&id).is_none_or(Vec::is_empty)
        {
            self.asked_units = Some(id.clone());
            self.effects.push(Effect::Send(Command::Units { group: id }));
        }
    }

    fn inspected_layer(&self, layer: &Layer) -> Inspected {
        let graph = self.state.card.as_ref().map(|c| &c.graph);
        let id = graph.and_then(|g| g.by_name(&layer.name));
        let names = |ids: Vec<crate::graph::NodeId>| -> Vec<String> {
            graph.map(|g| ids.into_iter().map(|id| g.node(id).name.clone()).collect()).unwrap_or_default()
        };
        let from = graph.zip(id).map(|(g, id)| g.node(id).inputs.clone()).unwrap_or_default();
        let to = graph.zip(id).map(|(g, id)| {
            g.live().filter(|(_, n)| n.inputs.contains(&id)).map(|(other, _)| other).collect::<Vec<_>>()
        });
        let group = layer.group.and_then(|g| self.groups().get(g)).cloned();
        let mut targets = vec![Target::Layer(layer.name.clone()), Target::Weights(layer.name.clone())];
        targets.extend(group.as_ref().map(|g| Target::Group(g.id.clone())));
        let block = layer.block.and_then(|b| self.table.blocks.get(b)).map(|b| b.name.clone());
        targets.extend(block.clone().map(Target::Block));
        let decisions = self.state.decisions.iter().rev().filter(|d| targets.contains(&d.target)).cloned();
        let constraints = targets.iter().flat_map(|t| self.state.constraints_on(t));
        Inspected {
            name: layer.name.clone(),
            kind: layer.kind.clone(),
            removed: block.clone().is_some_and(|b| self.shown(&Target::Block(b)).action == Action::RemoveBlock),
            block,
            precisions: if layer.weighty || layer.caches { self.formats(layer) } else { Vec::new() },
            group: group.map(|g| self.of_group(layer, &g)),
            from: names(from),
            to: names(to.unwrap_or_default()),
            decisions: decisions.collect(),
            constraints: constraints
                .map(|c| {
                    format!(
                        "{}{}",
                        super::standing::bound(c),
                        if c.reason.is_empty() { String::new() } else { format!(": {}", c.reason) }
                    )
                })
                .collect(),
        }
    }

    fn of_group(&self, layer: &Layer, group: &Group) -> OfGroup {
        let target = Target::Group(group.id.clone());
        let of = |role| -> Vec<String> {
            let mut all: Vec<String> =
                group.members.iter().filter(|m| m.role == role).map(|m| m.node.clone()).collect();
            all.dedup();
            all
        };
        let curve = self.state.sensitivity.get(&SensTarget::Group(group.id.clone()));
        let ratios: Vec<f64> = match curve {
            Some(c) => c.points.iter().map(|p| p.ratio).collect(),
            None => (1..8).map(|k| f64::from(k) / 8.0).collect(),
        };
        let mut kept: Vec<usize> = ratios.iter().map(|r| group.kept_at(*r)).chain([group.size]).collect();
        kept.push(self.kept_of(&target));
        kept.sort_unstable();
        kept.dedup();
        kept.reverse();
        // The whole width and the plan's stay; of the others every second goes while there are too many.
        let here = self.kept_of(&target);
        while kept.len() > MOST_WIDTHS {
            let last = kept.len() - 1;
            let mut at = 0;
            kept.retain(|k| {
                at += 1;
                at == 1 || at - 1 == last || at % 2 == 1 || *k == here
            });
        }
        let produces = group.members.iter().any(|m| m.node == layer.name && m.role == MemberRole::Producer);
        let ladder = self.state.ladders.iter().find(|l| l.layer == layer.name);
        let widths = kept.into_iter().map(|kept| {
            let ratio = group.ratio_of(kept);
            let whole = kept == group.size;
            let action = Action::Prune { ratio, kept: Vec::new() };
            let own = self.fresh(&target, action);
            let point = curve.and_then(|c| c.points.iter().find(|p| group.kept_at(p.ratio) == kept));
            Width {
                kept,
                rung: ladder.and_then(|l| rung(l, Precision::F32, (produces, kept, group.size))),
                kl: if whole { Some(0.0) } else { point.map(|p| p.kl) },
                quality: self.forecasts.scanned(&self.state, std::slice::from_ref(&own)).filter(|_| !whole),
                forecast: (!whole).then(|| self.forecasts.alone(&self.state, std::slice::from_ref(&own))).flatten(),
            }
        });
        let scores = self.units.get(&group.id).cloned().unwrap_or_default();
        OfGroup {
            unit: unit(group),
            size: group.size,
            granule: group.granule,
            protected: group.protected.clone(),
            makes: of(MemberRole::Producer),
            carries: of(MemberRole::Follower),
            reads: of(MemberRole::Consumer),
            kept: here,
            widths: if group.protected.is_some() { Vec::new() } else { widths.collect() },
            knee: knee(&scores).map(|i| 1 + i * (group.size.max(1) - 1) / (scores.len() - 1)),
            scores,
            id: group.id.clone(),
        }
    }

    fn formats(&self, layer: &Layer) -> Vec<Format> {
        let names = [layer.name.clone()];
        self.precisions(&layer.name).into_iter().map(|p| self.format(&names, p)).collect()
    }

    /// What is known of `layers` in `precision`: of those that take it.
    pub(super) fn format(&self, layers: &[String], precision: Precision) -> Format {
        let action = Action::Precision { precision };
        let target = |name: &String| Target::Layer(name.clone());
        let refusals: Vec<Option<String>> = layers.iter().map(|l| self.refuses(&target(l), &action)).collect();
        let fit: Vec<&String> = layers.iter().zip(&refusals).filter(|(_, no)| no.is_none()).map(|(l, _)| l).collect();
        let own: Vec<Decision> = fit.iter().map(|l| self.fresh(&target(l), action.clone())).collect();
        let ladder = |name: &String| self.state.ladders.iter().find(|l| l.layer == *name);
        let rungs: Option<Vec<(f64, bool)>> = fit.iter().map(|l| rung(ladder(l)?, precision, (true, 1, 1))).collect();
        let summed = |all: Vec<(f64, bool)>| (all.iter().map(|(ms, _)| ms).sum(), all.iter().any(|(_, noisy)| *noisy));
        let row = |name: &String| self.state.profile_of(0).and_then(|p| p.rows.iter().find(|r| r.name == *name));
        let filed = |name: &&String| row(name).map_or(Precision::F32, |r| r.precision) == precision;
        let curve = |name: &String| self.state.sensitivity.get(&SensTarget::Layer(name.clone(), precision));
        let alone = if let [one] = fit.as_slice() { curve(one) } else { None };
        let timed =
            || layers.iter().any(|l| ladder(l).is_some_and(|l| l.points.iter().any(|p| p.precision == precision)));
        let on_a_cpu = self.state.card.as_ref().is_some_and(|c| c.device.starts_with("cpu"));
        Format {
            precision,
            shown: layers.iter().all(|l| self.precision_of(&self.shown(&target(l)), l) == precision),
            rung: rungs.filter(|all| !all.is_empty()).map(summed),
            kl: alone.and_then(|c| c.points.first()).map(|p| p.kl),
            quality: match fit.iter().all(filed) {
                _ if fit.is_empty() => None,
                true => Some(0.0),
                false => self.forecasts.scanned(&self.state, &own),
            },
            forecast: if own.is_empty() { None } else { self.forecasts.alone(&self.state, &own) },
            // Ladders time what has a kernel of its own, on any device.
            kernel: if on_a_cpu { Some(precision.runs() == Runs::Real) } else { timed().then_some(true) },
            error: match fit.as_slice() {
                [one] => {
                    self.rounding.get(*one).and_then(|all| all.iter().find(|(p, _)| *p == precision)).map(|(_, e)| *e)
                }
                _ => None,
            },
            output: match fit.as_slice() {
                [one] => {
                    let found = self.flows.known.get(*one).map_or(&[][..], |f| &f.off);
                    found.iter().find(|(p, _)| *p == precision).map(|(_, off)| *off)
                }
                _ => None,
            },
            takes: fit.len(),
            why: refusals.into_iter().flatten().next(),
        }
    }
}

/// How far a curve lies from its chord at least, in parts of its own height, to have a knee.
const BENT: f32 = 0.05;

/// Where falling `scores` bend most: the point that lies farthest from the chord between the first and the last (Kneedle, Satopää et al.
/// 2011, on both axes in parts of their length). None where all are alike, or lie on a line.
fn knee(scores: &[f32]) -> Option<usize> {
    let (first, last) = (*scores.first()?, *scores.last()?);
    let (height, length) = (first - last, scores.len().checked_sub(1)? as f32);
    if height <= f32::EPSILON * first.abs() || scores.len() < 3 {
        return None;
    }
    let off = |(i, s): (usize, &f32)| (i, (1.0 - i as f32 / length - (s - last) / height).abs());
    let (at, most) = scores.iter().enumerate().map(off).max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)))?;
    (most >= BENT).then_some(at)
}

/// The rung of a ladder at a precision and a part of its widths: of what the layer makes, or of what it reads.
fn rung(ladder: &Ladder, precision: Precision, (makes, kept, size): (bool, usize, usize)) -> Option<(f64, bool)> {
    let whole_in = ladder.points.iter().map(|p| p.in_width).max()?;
    let whole_out = ladder.points.iter().map(|p| p.out_width).max()?;
    let part = |whole: usize| whole * kept / size.max(1);
    let (want_in, want_out) = if makes { (whole_in, part(whole_out)) } else { (part(whole_in), whole_out) };
    let at =
        |p: &&crate::profile::LadderPoint| p.precision == precision && (p.in_width, p.out_width) == (want_in, want_out);
    ladder.points.iter().find(at).map(|p| (p.ms, p.noisy))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::LadderPoint;

    #[test]
    fn a_knee_is_where_a_curve_is_farthest_from_its_chord() {
        assert_eq!(knee(&[1.0, 0.9, 0.2, 0.15, 0.1, 0.05, 0.0]), Some(2));
        // One that falls late bends there.
        assert_eq!(knee(&[1.0, 0.98, 0.96, 0.94, 0.9, 0.2]), Some(4));
        for none in [&[][..], &[1.0], &[1.0, 0.0], &[1.0; 9], &[0.0; 9], &[1.0, 0.75, 0.5, 0.25, 0.0]] {
            assert_eq!(knee(none), None, "{none:?}");
        }
    }

    #[test]
    fn a_rung_is_of_exactly_that_width_or_there_is_none() {
        let point = |in_width, out_width, precision, ms, noisy| LadderPoint {
            in_width,
            out_width,
            precision,
            ms,
            spread: 0.0,
            noisy,
        };
        let points = vec![
            point(64, 128, Precision::F32, 2.0, false),
            point(64, 64, Precision::F32, 1.1, true),
            point(32, 128, Precision::F32, 1.3, false),
            point(64, 128, Precision::Int8, 0.9, false),
        ];
        let ladder = Ladder { layer: "l".into(), points, own: vec![] };
        assert_eq!(rung(&ladder, Precision::F32, (true, 16, 16)), Some((2.0, false)));
        assert_eq!(rung(&ladder, Precision::F32, (true, 8, 16)), Some((1.1, true)));
        assert_eq!(rung(&ladder, Precision::F32, (false, 8, 16)), Some((1.3, false)));
        assert_eq!(rung(&ladder, Precision::F32, (true, 12, 16)), None);
        assert_eq!(rung(&ladder, Precision::Int8, (true, 1, 1)), Some((0.9, false)));
        assert_eq!(rung(&ladder, Precision::W4, (true, 1, 1)), None);
    }
}
