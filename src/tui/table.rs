//! The layer list's content: rows folded by block, with figures, groups and sensitivities, from session state.
//!
//! Pure: rebuilt when a durable event arrives, patched by live samples. Sorting and scrolling are in `list.rs`.

use super::weights::{Weights, both};
use crate::config::text::clean;
use crate::graph::{self, Macs, Node};
use crate::plan::Target;
use crate::profile::{BROKEN, Doubt, LayerParameters, LayerRow, Profile, SensCurve, SensTarget, Workload};
use crate::prune::{Group, MemberRole};
use crate::quant::Precision;
use crate::session::{LiveRow, SessionCard, State};
use crate::train::LayerPulse;
use std::collections::{HashMap, HashSet};

/// What a row took in an earlier round.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Past {
    pub ms: f64,
    /// Not known well.
    pub doubtful: bool,
}

impl Past {
    fn plus(self, other: Past) -> Past {
        Past { ms: self.ms + other.ms, doubtful: self.doubtful || other.doubtful }
    }
}

/// Figures of a layer or, summed, of a block.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Figures {
    /// Part of the whole model's latency, milliseconds a batch. `None`: not measured yet.
    pub p50: Option<f64>,
    /// Not to be decided on.
    pub doubtful: bool,
    /// Part of the observed total, 0 to 1.
    pub share: Option<f64>,
    pub bytes: u64,
    /// Bytes of the output for the whole batch; `None`: not measured yet.
    pub activations: Option<f64>,
    pub macs: Macs,
    pub params: u64,
    /// Sensitivity at half width (KL in nats, see `profile::sensitivity`), for sorting; `None`: not measured.
    pub sens: Option<f64>,
    pub weights: Weights,
}

/// A layer as a row.
#[derive(Debug, Clone, Default)]
pub struct Layer {
    /// As in the session; for commands.
    pub name: String,
    /// Safe, without the block's prefix.
    pub label: String,
    pub kind: String,
    pub block: Option<usize>,
    pub fig: Figures,
    /// Samples behind a live figure.
    pub live: Option<u64>,
    /// p50 per measured round, see [`Table::rounds`].
    pub history: Vec<Option<Past>>,
    /// As it was measured.
    pub row: Option<LayerRow>,
    pub p95: f64,
    /// `None` where there are too few samples for one.
    pub p99: Option<f64>,
    /// Half-width of the range around the figure, as a part of it.
    pub spread: f64,
    /// Why the figure is not to be decided on.
    pub doubt: Option<Doubt>,
    /// The group this row's ratio keys move: the one it produces, else the first prunable one it takes part in.
    pub group: Option<usize>,
    /// This row carries the group's id, so it leads it on screen.
    pub leads: bool,
    /// KL in nats per sensitivity point of `group`; [`BROKEN`] where the output was not finite.
    pub spark: Vec<f64>,
    /// Its weight, that of the original, and those of norms that ran fused into it.
    pub parameters: Option<LayerParameters>,
    pub original: Option<LayerParameters>,
    pub norms: Vec<LayerParameters>,
    /// What its gradient does, or did when a healing ended.
    pub pulse: Option<LayerPulse>,
    /// Precision can be chosen (conv and linear).
    pub weighty: bool,
    /// It keeps keys and values, in a precision that can be chosen.
    pub caches: bool,
    /// The profile in force has no such row: its block was removed.
    pub gone: bool,
}

/// A foldable block.
#[derive(Debug, Clone, Default)]
pub struct Block {
    pub name: String,
    pub label: String,
    pub layers: Vec<usize>,
    pub fig: Figures,
    pub spark: Vec<f64>,
    pub history: Vec<Option<Past>>,
    pub removable: bool,
}

/// All rows, in model order.
#[derive(Debug, Clone, Default)]
pub struct Table {
    pub layers: Vec<Layer>,
    pub blocks: Vec<Block>,
    /// Largest KL of any curve that stays finite: the sparklines' scale.
    pub sens_scale: f64,
    /// Latency of the whole model that the figures are parts of, milliseconds a batch of so many, whether it is in doubt,
    /// and whether it is of replays.
    pub whole: Option<(f64, usize, bool, bool)>,
    /// Round whose profile the figures come from, and whether a newer model is in force.
    pub of_round: Option<u32>,
    /// What a run of the figures is.
    pub workload: Workload,
    pub stale: bool,
    pub live_runs: u64,
    /// Numbers of the rounds that were measured, oldest first (0 is the baseline).
    pub rounds: Vec<u32>,
    by_name: HashMap<String, usize>,
    /// How many convolutions and linear layers each group couples, by index into the card's groups; it does not depend on
    /// which steps a profile made rows of.
    pub coupled: Vec<usize>,
}

/// The newest round whose model exists and was not rolled back.
pub fn shown_round(state: &State) -> u32 {
    let made = |r: &&crate::session::Round| r.number > 0 && r.artifact.is_some() && r.rolled_back.is_none();
    state.rounds.iter().rev().find(made).map_or(0, |r| r.number)
}

impl Table {
    /// With the figures of passes, or of one token after a context.
    pub fn build(state: &State, tokens: bool) -> Table {
        let figures = |r: u32| if tokens { state.decoding_of(r) } else { state.profile_of(r) };
        let Some(card) = &state.card else { return Table::default() };
        let mut t = Table::default();
        let newest = shown_round(state);
        let of = (0..=newest).rev().find(|&r| figures(r).is_some());
        t.of_round = of;
        t.stale = of.is_some_and(|r| r != newest);
        t.skeleton(state, card);
        if let Some(profile) = of.and_then(figures) {
            for layer in &mut t.layers {
                layer.gone = true;
            }
            t.workload = profile.workload;
            t.whole = Some((profile.whole.p50, profile.batch, profile.doubt.is_some(), profile.whole.replayed));
            for row in &profile.rows {
                t.measure(profile, row);
            }
        }
        if let Some(profile) = of.and_then(|r| state.profile_of(r)) {
            t.parameters(&profile.parameters);
        }
        if let Some(first) = of.filter(|r| *r > 0).and_then(|_| state.profile_of(0)) {
            for p in &first.parameters {
                t.own(&p.name).into_iter().for_each(|l| l.original = Some(p.clone()));
            }
        }
        // Of the model that is shown, or of the one that is being made after it.
        let healed = |r: &&crate::session::Round| r.number >= newest && r.rolled_back.is_none() && !r.pulse.is_empty();
        if let Some(round) = state.rounds.iter().rev().find(healed) {
            t.beat(&round.pulse, false);
        }
        t.groups(card);
        t.sensitivities(state, card);
        t.histories(state, figures);
        t.sum();
        t
    }

    /// Rows in model order: those of the first profile, or else the graph's layers.
    fn skeleton(&mut self, state: &State, card: &SessionCard) {
        let graph = &card.graph;
        let mut block_of: HashMap<&str, usize> = HashMap::new();
        for (i, b) in graph.blocks.iter().enumerate() {
            for node in b.nodes.iter().filter_map(|n| graph.nodes.get(n.index())) {
                block_of.insert(&node.name, i);
            }
            self.blocks.push(Block {
                name: b.name.clone(),
                label: clean(&b.name).into_owned(),
                removable: !b.residual.is_empty(),
                ..Block::default()
            });
        }
        let macs = graph::macs(graph).unwrap_or_default();
        let index: HashMap<&str, usize> = graph.nodes.iter().enumerate().map(|(i, n)| (n.name.as_str(), i)).collect();
        let of_node = |i: usize, fused: &[String]| {
            let all = std::iter::once(i).chain(fused.iter().filter_map(|f| index.get(f.as_str()).copied()));
            let (mut m, mut p) = (Macs::default(), 0u64);
            for j in all {
                m = m + macs.get(j).copied().unwrap_or_default();
                p += graph.nodes.get(j).map_or(0, |n| graph.params_of(n));
            }
            (m, p)
        };
        match state.profile_of(0) {
            Some(profile) => {
                for row in &profile.rows {
                    let node = index.get(row.name.as_str()).copied();
                    let (m, p) = node.map(|i| of_node(i, &row.fused)).unwrap_or((row.macs, row.params));
                    let weighty = node.and_then(|i| graph.nodes.get(i)).is_some_and(|n| n.op.is_conv_or_linear());
                    let block = block_of.get(row.name.as_str()).copied();
                    self.push(&row.name, row.kind.clone(), block, m, p, weighty);
                    self.caches(node.and_then(|i| graph.nodes.get(i)));
                    for f in &row.fused {
                        self.by_name.insert(f.clone(), self.layers.len() - 1);
                    }
                }
            }
            None => {
                for (i, node) in graph.nodes.iter().enumerate().filter(|(_, n)| n.op.traits().layer) {
                    let (m, p) = of_node(i, &[]);
                    let block = block_of.get(node.name.as_str()).copied();
                    self.push(&node.name, graph::describe(&node.op), block, m, p, node.op.is_conv_or_linear());
                    self.caches(Some(node));
                }
            }
        }
    }

    /// Says of the row that was pushed last what its node is.
    fn caches(&mut self, node: Option<&Node>) {
        if let Some(l) = self.layers.last_mut() {
            l.caches = node.is_some_and(|n| n.op.caches());
        }
    }

    fn push(&mut self, name: &str, kind: String, block: Option<usize>, macs: Macs, params: u64, weighty: bool) {
        let i = self.layers.len();
        let prefix = block.and_then(|b| self.blocks.get(b)).map(|b| b.name.as_str()).unwrap_or_default();
        let short = name.strip_prefix(prefix).map(|s| s.trim_start_matches(['.', '/'])).filter(|s| !s.is_empty());
        self.by_name.insert(name.to_owned(), i);
        if let Some(b) = block.and_then(|b| self.blocks.get_mut(b)) {
            b.layers.push(i);
        }
        self.layers.push(Layer {
            name: name.to_owned(),
            label: clean(short.unwrap_or(name)).into_owned(),
            kind: clean(&kind).into_owned(),
            block,
            fig: Figures { macs, params, bytes: params.saturating_mul(4), ..Figures::default() },
            weighty,
            ..Layer::default()
        });
    }

    fn measure(&mut self, profile: &Profile, row: &LayerRow) {
        let Some(l) = self.by_name.get(&row.name).and_then(|&i| self.layers.get_mut(i)) else { return };
        l.gone = false;
        l.fig = Figures {
            p50: Some(profile.ms(row)),
            doubtful: row.doubt.is_some(),
            share: Some(row.share),
            bytes: row.weight_bytes,
            activations: Some(row.activation_bytes as f64),
            macs: row.macs,
            params: row.params,
            sens: l.fig.sens,
            weights: l.fig.weights,
        };
        let scale = profile.scale();
        l.p95 = row.latency.p95 * scale;
        l.p99 = row.latency.p99().map(|p| p * scale);
        l.spread = row.latency.spread();
        l.doubt = profile.doubt_of(row);
        l.row = Some(row.clone());
    }

    /// The row whose leading node this is.
    fn own(&mut self, name: &str) -> Option<&mut Layer> {
        self.by_name.get(name).and_then(|&i| self.layers.get_mut(i)).filter(|l| l.name == name)
    }

    fn parameters(&mut self, all: &[LayerParameters]) {
        for p in all {
            let Some(l) = self.by_name.get(&p.name).and_then(|&i| self.layers.get_mut(i)) else { continue };
            if l.name == p.name {
                l.fig.weights.measured(p);
                l.parameters = Some(p.clone());
            } else if p.scales.is_some() {
                l.norms.push(p.clone());
            }
        }
    }

    fn beat(&mut self, layers: &[LayerPulse], live: bool) {
        for p in layers {
            let Some(l) = self.own(&p.name) else { continue };
            l.fig.weights.pulse(p, live);
            l.pulse = Some(p.clone());
        }
    }

    /// Takes what layers do at a healing's newest step: figures change in place, rows do not move.
    pub fn pulse(&mut self, layers: &[LayerPulse]) {
        self.beat(layers, true);
        self.sum();
    }

    fn groups(&mut self, card: &SessionCard) {
        let weighty = |m: &str| card.graph.nodes.iter().any(|n| n.name == m && n.op.is_conv_or_linear());
        let count =
            |g: &Group| g.members.iter().map(|m| m.node.as_str()).filter(|m| weighty(m)).collect::<HashSet<_>>().len();
        self.coupled = card.groups.iter().map(count).collect();
        // Producers first, so that a row's own group wins over one it only reads from.
        for pass in [MemberRole::Producer, MemberRole::Follower, MemberRole::Consumer] {
            for (gi, g) in card.groups.iter().enumerate().filter(|(_, g)| g.protected.is_none()) {
                for m in g.members.iter().filter(|m| m.role == pass) {
                    let Some(&li) = self.by_name.get(&m.node) else { continue };
                    let Some(layer) = self.layers.get_mut(li).filter(|l| l.group.is_none()) else { continue };
                    layer.group = Some(gi);
                    layer.leads = pass == MemberRole::Producer && g.id == layer.name;
                }
            }
        }
    }

    fn sensitivities(&mut self, state: &State, card: &SessionCard) {
        let curves = &state.sensitivity.curves;
        let by_target: HashMap<&SensTarget, &SensCurve> = curves.iter().map(|c| (&c.target, c)).collect();
        let finite = curves.iter().flat_map(|c| &c.points).map(|p| p.kl).filter(|kl| *kl < BROKEN);
        self.sens_scale = finite.fold(0.02, f64::max);
        for l in &mut self.layers {
            let group = l.group.and_then(|g| card.groups.get(g));
            let curve = group.and_then(|g| by_target.get(&SensTarget::Group(g.id.clone()))).or_else(|| {
                if l.weighty { by_target.get(&SensTarget::Layer(l.name.clone(), Precision::Int8)) } else { None }
            });
            let Some(curve) = curve else { continue };
            l.spark = curve.points.iter().map(|p| p.kl.max(0.0)).collect();
            let mid = curve.points.iter().min_by(|a, b| (a.ratio - 0.5).abs().total_cmp(&(b.ratio - 0.5).abs()));
            l.fig.sens = mid.map(|p| p.kl);
        }
    }

    fn histories<'a>(&mut self, state: &State, figures: impl Fn(u32) -> Option<&'a Profile>) {
        for r in &state.rounds {
            let Some(p) = figures(r.number) else { continue };
            self.rounds.push(r.number);
            let known = |x: &LayerRow| Past { ms: p.ms(x), doubtful: x.doubt.is_some() };
            let by: HashMap<&str, Past> = p.rows.iter().map(|x| (x.name.as_str(), known(x))).collect();
            for l in &mut self.layers {
                l.history.push(by.get(l.name.as_str()).copied());
            }
        }
    }

    /// Sums the layers' figures into their blocks.
    fn sum(&mut self) {
        for b in &mut self.blocks {
            let rows = b.layers.iter().filter_map(|&i| self.layers.get(i));
            let mut f = Figures::default();
            let mut spark: Vec<f64> = Vec::new();
            let mut history: Vec<Option<Past>> = Vec::new();
            for l in rows {
                f.p50 = both(f.p50, l.fig.p50, plus);
                f.doubtful |= l.fig.doubtful;
                f.share = both(f.share, l.fig.share, plus);
                f.bytes = f.bytes.saturating_add(l.fig.bytes);
                f.activations = both(f.activations, l.fig.activations, plus);
                f.macs = f.macs + l.fig.macs;
                f.params = f.params.saturating_add(l.fig.params);
                f.sens = both(f.sens, l.fig.sens, f64::max);
                f.weights = f.weights.with(&l.fig.weights);
                each(&mut spark, &l.spark, f64::max);
                each(&mut history, &l.history, |a, b| both(a, b, Past::plus));
            }
            (b.fig, b.spark, b.history) = (f, spark, history);
        }
    }

    /// Takes live samples: figures change in place, rows do not move.
    pub fn live(&mut self, runs: u64, rows: &[LiveRow]) {
        self.live_runs = runs;
        for r in rows {
            let Some(l) = self.by_name.get(&r.name).and_then(|&i| self.layers.get_mut(i)) else { continue };
            l.fig.p50 = Some(r.p50_ms);
            // Nobody knows yet.
            (l.fig.doubtful, l.doubt, l.spread) = (false, None, 0.0);
            l.p95 = r.p95_ms;
            l.live = Some(r.n);
        }
        let total: f64 = self.layers.iter().filter_map(|l| l.fig.p50).sum();
        for l in &mut self.layers {
            l.fig.share = l.fig.p50.filter(|_| total > 0.0).map(|p| p / total);
        }
        self.sum();
    }

    /// The measuring stopped: forgets live figures; whether there were any.
    pub fn settle_live(&mut self) -> bool {
        let any = std::mem::take(&mut self.live_runs) > 0;
        self.layers.iter_mut().for_each(|l| l.live = None);
        any
    }

    pub fn layer(&self, name: &str) -> Option<&Layer> {
        self.by_name.get(name).and_then(|&i| self.layers.get(i))
    }

    /// Where the layer of exactly that name is.
    pub fn index_of(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied().filter(|&i| self.layers.get(i).is_some_and(|l| l.name == name))
    }

    /// Everything a decision could be made about on this row.
    pub fn targets(&self, layer: &Layer, groups: &[Group]) -> Vec<Target> {
        let group = layer.group.and_then(|g| groups.get(g)).map(|g| Target::Group(g.id.clone()));
        group.into_iter().chain((layer.weighty || layer.caches).then(|| Target::Layer(layer.name.clone()))).collect()
    }
}

fn plus(a: f64, b: f64) -> f64 {
    a + b
}

/// Puts `more` into `all`, element by element.
fn each<T: Copy>(all: &mut Vec<T>, more: &[T], f: impl Fn(T, T) -> T) {
    let known = all.len().min(more.len());
    all.iter_mut().zip(more).for_each(|(a, b)| *a = f(*a, *b));
    all.extend_from_slice(&more[known..]);
}
