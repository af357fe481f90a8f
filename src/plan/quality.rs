//! What a plan is expected to cost in quality (the task's metric), with its range, and what that rests on.
//!
//! Every action has a *harm*: the divergence (KL) that it alone was measured to cause, to the power of [`CONCAVE`]. What
//! harms add up to in points is not known beforehand: it is fitted to whole plans of this model that were built and tried on
//! held-back images ([`Trials`]) and to earlier rounds. With `h_k` the sum of harms of one kind of action (cuts, removed
//! blocks, precisions, masks), `u = Σ w_k h_k` and `D` the points that the original has above chance:
//!
//! `drop = D · (1 − exp(−u / D))`
//!
//! The weights `w_k` maximise the posterior under log-normal priors; how far the fit is off on plans that it was not
//! fitted to widens the range. A plan that was itself tried is *rehearsed*: its own outcome counts, weighed against what the
//! others make expect of it, and of its near neighbours the difference alone is fitted. Ranges hold the change *measured* on
//! so many evaluation images: chance there is a part of them.
//!
//! Invariants: nothing changed is exactly nothing; `low ≤ value ≤ high` within what can happen; no constant here was fitted
//! to any network. Pure.

mod fit;

use super::{Action, Estimate, Target, Trial, Trials, same_plan};
use crate::eval::TrialOutcome;
use crate::quant::Precision;
use crate::task::Metric;
pub(super) use fit::KINDS;
use fit::{DOUBT, Fit, Point};
use serde::{Deserialize, Serialize};

/// Part of the ranges that are to hold what is measured.
pub const COVERAGE: f64 = 0.9;
/// Of the interval of what was measured, by which verdicts are given.
const MEASURED: f64 = 0.95;
/// Standard errors to each side that make such an interval: the 97.5 % point of the standard normal distribution.
pub const MEASURED_Z: f64 = 1.96;
/// 95 % point of the standard normal distribution: two such tails leave [`COVERAGE`].
const Z: f64 = 1.644_853_626_951_472_7;

/// What a forecast of quality rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// Nothing changes.
    Unchanged,
    /// A round of this very plan was measured: no forecast, the measurement.
    Measured,
    /// This very plan was built and tried.
    Rehearsed,
    /// A plan much like it was tried or measured; the difference is scanned.
    Neighbour,
    /// Its actions were measured one by one, and whole plans told what they add up to.
    Scanned,
    /// Some action, or what actions add up to, was never measured: there is no figure.
    #[default]
    Unmeasured,
}

impl Basis {
    pub fn label(self) -> &'static str {
        match self {
            Basis::Unchanged => "unchanged",
            Basis::Measured => "measured",
            Basis::Rehearsed => "rehearsed",
            Basis::Neighbour => "near a tried plan",
            Basis::Scanned => "scanned",
            Basis::Unmeasured => "unmeasured",
        }
    }
}

/// A forecast of quality, in the unit of the task's metric.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Quality {
    /// Change against the original, negative for worse.
    pub value: f64,
    pub low: f64,
    pub high: f64,
    /// How often such a range is to hold what is measured, 0 to 1.
    pub coverage: f64,
    pub basis: Basis,
}

impl Quality {
    pub fn estimate(&self) -> Estimate {
        Estimate { value: self.value, low: self.low, high: self.high }
    }
}

/// Divergences to this power are added. With the size of a disturbance they grow as its square and the answers that turn in
/// proportion, so that an action of a large divergence costs less than many of small ones that add up to as much (1/2 were
/// all turned answers lost, 1 were none balanced by others). Between the two, as four networks trained for
/// development say (residual ones of 8, 8 and 44 layers, a transformer; 52 plans): what was seen lies about the fit by a factor
/// of 1.6 at 1, of 1.3 from 0.8 to 0.7, of 1.5 at 1/2.
pub(super) const CONCAVE: f64 = 0.75;

/// The harm of a measured divergence in nats.
pub(super) fn harm(divergence: f64) -> f64 {
    divergence.max(0.0).powf(CONCAVE)
}

/// Harms of a plan by kind of action.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Harms {
    pub kinds: [f64; KINDS],
    /// Actions that nobody measured.
    pub unknown: usize,
    /// Which those are, and those in blocks that go, as a sum of their hashes: two plans with the same ones differ by what is known.
    pub which: u64,
}

impl Harms {
    /// Takes in what an action harms; `None`: nobody measured it.
    pub fn add(&mut self, harm: Option<f64>, (target, action): (&Target, &Action)) {
        match (harm, kind(target, action)) {
            (Some(h), Some(k)) => self.kinds[k] += h,
            (None, _) => {
                self.unknown += 1;
                self.told((target, action));
            }
            (Some(_), None) => {}
        }
    }

    /// Notes an action that nobody measured, whether it still does anything or not.
    pub fn told(&mut self, one: (&Target, &Action)) {
        let one = serde_json::to_vec(&one).unwrap_or_default();
        let hash = blake3::hash(&one).as_bytes().iter().take(8).fold(0, |n, b| n << 8 | u64::from(*b));
        self.which = self.which.wrapping_add(hash);
    }

    /// As much of every kind less, where none is more.
    fn less(&self, other: &Harms) -> Option<[f64; KINDS]> {
        let left: [f64; KINDS] = std::array::from_fn(|k| self.kinds[k] - other.kinds[k]);
        left.iter().all(|h| *h >= 0.0).then_some(left)
    }
}

/// The kind of an action; `None` for those that change nothing.
pub(super) fn kind(target: &Target, action: &Action) -> Option<usize> {
    match (target, action) {
        (_, Action::Keep) => None,
        (_, Action::Prune { .. }) => Some(0),
        (_, Action::RemoveBlock) => Some(1),
        // What is rounded to few bits is rounded by what is learnt of its inputs, which the scan does not know.
        (_, Action::Precision { precision }) if few_bits(*precision) => Some(4),
        (_, Action::Precision { .. }) => Some(2),
        // Both are errors of weights that nobody scanned.
        (_, Action::Sparsify { .. } | Action::Factorise { .. }) => Some(3),
    }
}

/// Fewer than 6 bits a weight.
fn few_bits(precision: Precision) -> bool {
    let weights = 256;
    8 * precision.weights().bytes(1, weights) < 6 * weights as u64
}

/// What an earlier round was made of, and what was measured of it.
#[derive(Debug, Clone, PartialEq)]
pub struct PastRound {
    pub round: u32,
    pub actions: Vec<(Target, Action)>,
    /// Latency as a factor of the original's; no number where it is in doubt.
    pub latency: f64,
    /// Change of the task's metric in its unit, negative for worse.
    pub d_quality: f64,
    /// Its standard error.
    pub sd: f64,
    /// Its 95 % interval, as the verdict has it: not quite even about the change.
    pub interval: (f64, f64),
}

/// What forecasts of one session rest on besides the scan.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct QualityInput {
    pub trials: Trials,
    /// Earlier rounds, oldest first; empty where what was measured on the evaluation data must not plan.
    pub observed: Vec<PastRound>,
    pub metric: Metric,
    /// The original's mean score on the evaluation data; of classifiers top-1, 0 to 1.
    pub base: Option<f64>,
    /// Evaluation images.
    pub images: usize,
}

/// Rehearsals that the fit looks at, newest first.
const RECENT: usize = 16;
/// By what part of the answers that turn their balance lies off what is expected of it: a change that does no harm on the
/// whole still favours some answers over others, to the good or the bad of any one set of images.
const ONE_SIDED: f64 = 0.15;
/// Points that no metric without bounds loses or gains.
const UNBOUNDED: f64 = 1e6;
/// How far measured rounds lie from trials beyond both errors, as a logarithm, before any round was measured.
const SHIFT: f64 = 0.2;

/// The fit, ready to be asked.
#[derive(Debug, Clone, Default)]
pub(super) struct QualityModel {
    /// Changes are in points here: see [`Metric::whole`].
    input: QualityInput,
    /// What an answer that turns changes, in points.
    size: Size,
    /// Harms of the trials, in their order.
    harms: Vec<Harms>,
    /// Harms of the measured rounds, in their order.
    measured: Vec<Harms>,
    /// Points a harm of one by kind; `None`: nothing was tried.
    fit: Option<Fit>,
    /// As the anchors alone have it: what kinds of actions are exchanged by, so that another rehearsal does not make another plan of the
    /// same harm.
    steady: Option<Fit>,
    /// Relative error of the fit.
    doubt: f64,
    /// The most that harms of any plan that was tried or measured add up to, in points before they saturate.
    reach: f64,
    /// Measured drops over tried ones: factor, and the error of its logarithm.
    shift: (f64, f64),
    /// Share of answers that turn, for a root of what the fit adds up to: answers turn with the size of a disturbance, and
    /// a divergence goes with its square.
    turned: f64,
}

/// What an answer changes, in points.
#[derive(Debug, Clone, Copy)]
enum Size {
    /// Right or wrong: all of them as much.
    One(f64),
    /// Scores of any size, which move with the mean: what they change for a point of it, and the least and the most of the trials.
    Any { of_drop: f64, least: f64, most: f64 },
}

impl Default for Size {
    fn default() -> Size {
        Size::One(100.0)
    }
}

impl Size {
    fn of(trials: &[Trial]) -> Size {
        let turned: Vec<_> = trials.iter().map(|t| &t.outcome).filter(|o| o.turned > 0.0).collect();
        let fold = |f: fn(f64, f64) -> f64| turned.iter().map(|o| o.size).reduce(f);
        let (Some(least), Some(most)) = (fold(f64::min), fold(f64::max)) else { return Size::default() };
        if most - least <= 1e-9 * most {
            return Size::One(most);
        }
        let shares: Vec<f64> = turned.iter().map(|o| o.size / o.d_quality.abs().max(1e-12)).collect();
        // As the median has it: of what cancels out the share is any number.
        let mut sorted = shares.clone();
        sorted.sort_by(f64::total_cmp);
        Size::Any { of_drop: sorted[sorted.len() / 2], least, most }
    }

    /// Of an answer in a plan that loses `drop` points.
    fn at(self, drop: f64) -> f64 {
        match self {
            Size::One(size) => size,
            Size::Any { of_drop, least, most } => (of_drop * drop.abs()).clamp(least, most),
        }
    }
}

impl QualityModel {
    /// Fits; `harm` gives a plan's harms.
    pub fn fit(mut input: QualityInput, harm: impl Fn(&[(Target, Action)]) -> Harms) -> QualityModel {
        let points = 100.0 / input.metric.whole;
        for t in &mut input.trials.list {
            let o = &mut t.outcome;
            let changes = [&mut o.d_quality, &mut o.sample_sd, &mut o.kind_sd, &mut o.size];
            changes.into_iter().chain(&mut o.by_kind).for_each(|v| *v *= points);
        }
        for o in &mut input.observed {
            o.d_quality *= points;
            o.sd *= points;
        }
        let size = Size::of(&input.trials.list);
        let harms: Vec<Harms> = input.trials.list.iter().map(|t| harm(&t.actions)).collect();
        let measured = input.observed.iter().map(|o| harm(&o.actions)).collect();
        let (doubt, shift) = (DOUBT.0, (1.0, SHIFT));
        let mut model = QualityModel { doubt, shift, harms, measured, input, size, ..QualityModel::default() };
        let points = model.points(None);
        if !points.is_empty() {
            let fit = Fit::of(&points, model.most(), None);
            model.doubt = model.doubt_of(&points, &fit);
            let fit = fit.sure(&points);
            model.fit = Some(fit);
            let list = model.input.trials.list.iter().zip(&model.harms);
            let anchors = list.filter(|(t, h)| t.anchor && h.unknown == 0 && h.kinds.iter().sum::<f64>() > 0.0);
            let anchors: Vec<Point> =
                anchors.map(|(t, h)| Point { h: h.kinds, drop: -t.outcome.d_quality, sd: spread(t) }).collect();
            model.steady = Some(if anchors.is_empty() { fit } else { Fit::of(&anchors, model.most(), None) });
            let went = model.harms.iter().chain(&model.measured).map(|h| fit.sum(&h.kinds));
            model.reach = went.fold(0.0, f64::max);
            let rates: Vec<f64> = (model.input.trials.list.iter().zip(&model.harms))
                .map(|(t, h)| (t.outcome.turned, fit.sum(&h.kinds)))
                .filter(|(_, u)| *u > 0.0)
                .map(|(turned, u)| turned / u.sqrt())
                .collect();
            model.turned = rates.iter().sum::<f64>() / rates.len().max(1) as f64;
        }
        model.shift = model.shift_by();
        model
    }

    /// What the fit looks at: all anchors and the newest rehearsals, without the plan `but`.
    fn points(&self, but: Option<&str>) -> Vec<Point> {
        let (mut points, mut recent): (Vec<Point>, usize) = (Vec::new(), 0);
        for (t, h) in self.input.trials.list.iter().zip(&self.harms).rev() {
            recent += usize::from(!t.anchor);
            if !(t.anchor || recent <= RECENT) || but == Some(&t.key) {
                continue;
            }
            let (mut point, mut known) = (Point { h: h.kinds, drop: -t.outcome.d_quality, sd: spread(t) }, true);
            // Of what nobody measured a plan without all the rest tells.
            if h.unknown > 0 {
                let base = self.base_of(h).filter(|(t, _)| but != Some(&t.key));
                match base.and_then(|(t, theirs)| Some((t, h.less(theirs)?))) {
                    Some((t, left)) => {
                        point = Point { h: left, drop: point.drop + t.outcome.d_quality, sd: point.sd.hypot(spread(t)) }
                    }
                    None => known = false,
                }
            }
            if known && point.h.iter().sum::<f64>() > 0.0 {
                points.push(point);
            }
        }
        points
    }

    /// The tried plan of least known harm with the same actions that nobody measured.
    fn base_of(&self, h: &Harms) -> Option<(&Trial, &Harms)> {
        let alike = self.alike(h).filter(|(t, _)| !t.anchor);
        alike.min_by(|a, b| a.1.kinds.iter().sum::<f64>().total_cmp(&b.1.kinds.iter().sum()))
    }

    /// The tried plans with the same actions that nobody measured.
    fn alike(&self, h: &Harms) -> impl Iterator<Item = (&Trial, &Harms)> {
        let which = h.which;
        self.input.trials.list.iter().zip(&self.harms).filter(move |(_, o)| o.which == which)
    }

    /// Points that the original has above chance.
    fn most(&self) -> f64 {
        let m = &self.input.metric;
        let score = m.scale.abs() * 100.0 / m.whole;
        match m.chance.or(m.worst) {
            Some(chance) => score * (self.base() - chance).max(0.01 * 100.0 / score),
            // Nothing to saturate at.
            None => UNBOUNDED,
        }
    }

    /// The original's mean score; the best there is where nobody knows.
    fn base(&self) -> f64 {
        self.input.base.or(self.input.metric.best).unwrap_or_default()
    }

    /// Relative error on points that the fit did not see (leave one out), with a prior.
    fn doubt_of(&self, points: &[Point], all: &Fit) -> f64 {
        let (mut sum, mut n) = (DOUBT.1 * DOUBT.0 * DOUBT.0, DOUBT.1);
        for i in 0..points.len() {
            let rest: Vec<Point> = points.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, p)| *p).collect();
            let p = &points[i];
            // Of what is lost in noise nothing can be told, nor from it.
            let tells = |p: &Point| p.drop > 2.0 * p.sd;
            let alike = |q: &Point| q.h.iter().zip(&p.h).any(|(a, b)| *a > 0.0 && *b > 0.0);
            if !tells(p) || !rest.iter().any(|q| tells(q) && alike(q)) {
                continue;
            }
            let fit = Fit::of(&rest, self.most(), Some(all)).drop(&p.h).max(0.01);
            let chance = (p.sd / p.drop).powi(2);
            sum += ((p.drop / fit).ln().powi(2) - chance).max(0.0);
            n += 1.0;
        }
        (sum / n).sqrt()
    }

    /// How measured rounds compare with what was forecast of them without them.
    fn shift_by(&self) -> (f64, f64) {
        let (mut sum, mut mass) = (0.0, 1.0 / (SHIFT * SHIFT));
        for (o, h) in self.input.observed.iter().zip(&self.measured) {
            let Some((drop, sd)) = self.raw(&o.actions, h) else { continue };
            let seen = -o.d_quality;
            if drop < 0.05 || seen < 0.05 {
                continue;
            }
            // Tried and measured share nothing but the plan.
            let weight = 1.0 / ((o.sd / seen).powi(2) + (sd / drop).powi(2));
            sum += weight * (seen / drop).ln();
            mass += weight;
        }
        ((sum / mass).exp(), (1.0 / mass).sqrt())
    }

    /// What a trial and the fit to the other trials say together, each by its error: a few hundred images alone leave
    /// drops below a point to chance. Where the two contradict each other, the trial is believed.
    fn rehearsed(&self, t: &Trial, h: &Harms) -> (f64, f64) {
        let (seen, sd) = (-t.outcome.d_quality, spread(t));
        let others = self.points(Some(&t.key));
        let Some(all) = self.fit.filter(|_| h.unknown == 0 && !others.is_empty()) else { return (seen, sd) };
        let fit = Fit::of(&others, self.most(), Some(&all)).sure(&others);
        let expected = fit.drop(&h.kinds);
        // Two errors apart is chance still.
        let apart = 0.25 * (seen - expected).powi(2) - sd * sd;
        let model = (self.doubt * expected).hypot(t.outcome.size * ONE_SIDED * t.outcome.turned);
        // Anchors were tried on the same images: this error is the trial's own.
        let shared = fit.sd(&h.kinds, None).max(least(&t.outcome));
        let prior = model.hypot(shared).max(apart.max(0.0).sqrt());
        let weight = prior * prior / (sd * sd + prior * prior);
        let rest = 1.0 - weight;
        let var = (weight * sd).powi(2) + (rest * prior).powi(2) + 2.0 * weight * rest * sd * shared;
        (weight * seen + rest * expected, var.sqrt())
    }

    /// What nothing that was tried can tell from nothing, in points.
    fn least(&self) -> f64 {
        let told = self.input.trials.list.iter().filter(|t| t.outcome.turned > 0.0).map(|t| least(&t.outcome));
        let all = self.input.trials.list.iter().map(|t| least(&t.outcome));
        told.reduce(f64::min).or_else(|| all.reduce(f64::max)).unwrap_or_default()
    }

    /// Drop on held-back images and its error, of a plan that was tried or from the fit.
    fn raw(&self, actions: &[(Target, Action)], h: &Harms) -> Option<(f64, f64)> {
        if let Some(t) = self.input.trials.of(actions) {
            return Some(self.rehearsed(t, h));
        }
        let fit = self.fit.filter(|_| h.unknown == 0)?;
        let drop = fit.drop(&h.kinds);
        Some((drop, (self.doubt_at(&fit, h) * drop).hypot(fit.sd(&h.kinds, None)).max(self.least())))
    }

    /// Relative error of the fit for a plan with these harms. What harms add up to was seen as far as plans were tried; beyond, where
    /// networks fall apart sooner than any sum says, it is as much in doubt as the plan is farther.
    fn doubt_at(&self, fit: &Fit, h: &Harms) -> f64 {
        let beyond = (fit.sum(&h.kinds) / self.reach.max(1e-12)).ln().max(0.0);
        self.doubt.hypot(beyond)
    }

    /// Points that harms of this kind add over those of as much harm by cuts: 1 where nothing was tried.
    pub fn exchange(&self, kind: usize) -> f64 {
        self.steady.map(|f| f.weights()).map_or(1.0, |w| w[kind] / w[0].max(1e-12))
    }

    /// The divergence by cuts that harms as much as one nat of this kind.
    pub fn exchange_of_divergence(&self, kind: usize) -> f64 {
        self.exchange(kind).powf(1.0 / CONCAVE)
    }

    /// The harm (of cuts) whose expected drop is `drop`, in the metric's unit, beside `fixed`; `None` where nothing was tried.
    pub fn harm_for(&self, drop: f64, fixed: &Harms) -> Option<f64> {
        let w = self.fit?.weights();
        let mut points = drop * (100.0 / self.input.metric.whole) / self.shift.0;
        // What nobody measured counts as it was tried.
        let base = self.base_of(fixed).filter(|_| fixed.unknown > 0);
        points = base.map_or(points, |(t, _)| (points + t.outcome.d_quality.min(0.0)).max(0.0));
        let most = self.most();
        if points >= 0.999 * most {
            return Some(f64::INFINITY);
        }
        Some(-most * (1.0 - points / most).ln() / w[0].max(1e-12))
    }

    /// How harsh, in harm of cuts, a plan may be that costs `drop` beside `fixed`, as far as plans that were tried show: between the harshest
    /// that costs less and the mildest beyond it that costs more, as if drops grew evenly there (they grow ever faster, so that this stays on
    /// the near side). And the harm of the harshest that was tried at all. `None` where nothing was.
    pub fn tried(&self, drop: f64, fixed: &Harms) -> Option<(f64, f64)> {
        let points = drop * (100.0 / self.input.metric.whole) / self.shift.0;
        let sum = |h: &Harms| h.kinds.iter().enumerate().map(|(k, h)| h * self.exchange(k)).sum::<f64>();
        let seen: Vec<(f64, f64)> = self.alike(fixed).map(|(t, h)| (sum(h), -t.outcome.d_quality)).collect();
        let near =
            seen.iter().filter(|(_, d)| *d <= points).max_by(|a, b| a.0.total_cmp(&b.0)).copied().unwrap_or_default();
        let far = seen.iter().filter(|(h, d)| *d > points && *h > near.0).min_by(|a, b| a.0.total_cmp(&b.0));
        let between = far.map_or(f64::INFINITY, |far| {
            let part = (points - near.1.max(0.0)) / (far.1 - near.1.max(0.0)).max(1e-12);
            near.0 + (far.0 - near.0) * part.clamp(0.0, 1.0)
        });
        self.fit.map(|_| (between, self.harms.iter().chain(&self.measured).map(sum).fold(0.0, f64::max)))
    }

    /// The forecast of a plan with these harms; `between` gives the harms of what differs from another plan, in points per
    /// nat irrelevant: both sides of every target that differs, added.
    pub fn forecast(
        &self,
        actions: &[(Target, Action)],
        h: &Harms,
        between: impl Fn(&[(Target, Action)]) -> Harms,
    ) -> Quality {
        if actions.iter().all(|(_, a)| *a == Action::Keep) {
            return Quality { coverage: COVERAGE, basis: Basis::Unchanged, ..Quality::default() };
        }
        if let Some(o) = self.input.observed.iter().rev().find(|o| same_plan(&o.actions, actions)) {
            let measured = self.clamped(o.d_quality, o.interval.0, o.interval.1, Basis::Measured);
            return Quality { coverage: MEASURED, ..measured };
        }
        let beside = self.beside_measured(h, &between);
        if let Some(t) = self.input.trials.of(actions) {
            let (drop, sd) = self.rehearsed(t, h);
            let Some((near, error)) = beside else {
                return self.ranged(drop, sd, 0.0, Turn::of(&t.outcome), Basis::Rehearsed);
            };
            // Held-back and evaluation images are others: each counts by its error.
            let (own, own_error) = (drop * self.shift.0, sd.hypot(self.shift.1 * drop));
            let weight = error * error / (error * error + own_error * own_error).max(1e-12);
            let both = own_error * error / own_error.hypot(error).max(1e-12);
            return self.spread_about(
                weight * own + (1.0 - weight) * near,
                both,
                Turn::of(&t.outcome),
                Basis::Rehearsed,
            );
        }
        let Some(fit) = self.fit else { return self.unmeasured(h) };
        let drop = fit.drop(&h.kinds);
        let turned = self.turned_at(h, drop);
        let unsure = fit.sd(&h.kinds, None).max(self.least()).hypot(turned.size * ONE_SIDED * turned.share);
        let doubt = self.doubt_at(&fit, h);
        let alone = if h.unknown == 0 { (doubt * drop).hypot(unsure) } else { f64::INFINITY };
        // The rehearsed plan from which the difference is least in doubt; what nobody measured is no difference to one that has it too.
        let near = (self.input.trials.list.iter().zip(&self.harms))
            .filter(|(t, _)| !t.anchor)
            .filter_map(|(t, theirs)| {
                let apart = between(&t.actions);
                let (moved, doubt) = self.between(&fit, h, theirs, &apart);
                (apart.unknown == 0).then(|| (-t.outcome.d_quality + moved, spread(t).hypot(doubt)))
            })
            .min_by(|a, b| a.1.total_cmp(&b.1))
            .filter(|(_, sd)| *sd < alone);
        let (value, sd) = near.unwrap_or((drop, alone));
        match (beside, near) {
            (Some((value, error)), _) if error < (self.shift.0 * sd).hypot(self.shift.1 * drop) => {
                self.spread_about(value, error, turned, Basis::Neighbour)
            }
            (_, Some(_)) => self.ranged(value, sd, 0.0, self.turned_at(h, value), Basis::Neighbour),
            (_, None) if h.unknown > 0 => self.unmeasured(h),
            (_, None) => self.ranged(drop, unsure, doubt, turned, Basis::Scanned),
        }
    }

    /// What a plan loses more than another, and the error of that; `apart`: the harms of what differs.
    fn between(&self, fit: &Fit, h: &Harms, theirs: &Harms, apart: &Harms) -> (f64, f64) {
        let moved = fit.drop(&h.kinds) - fit.drop(&theirs.kinds);
        let doubt = self.doubt * fit.sum(&apart.kinds).abs().max(moved.abs());
        (moved, doubt.hypot(fit.sd(&h.kinds, Some(&theirs.kinds))))
    }

    /// What measured rounds say of a plan: theirs, and what it loses more; the one with the least error.
    fn beside_measured(&self, h: &Harms, between: &impl Fn(&[(Target, Action)]) -> Harms) -> Option<(f64, f64)> {
        let fit = self.fit.filter(|_| h.unknown == 0)?;
        let of = |(o, theirs): (&PastRound, &Harms)| {
            let (moved, doubt) = self.between(&fit, h, theirs, &between(&o.actions));
            (-o.d_quality + self.shift.0 * moved, o.sd.hypot(self.shift.0 * doubt).hypot(self.shift.1 * moved))
        };
        let rounds = self.input.observed.iter().zip(&self.measured).filter(|(_, theirs)| theirs.unknown == 0);
        rounds.map(of).min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// A drop as it would be measured, with its error in points.
    fn spread_about(&self, value: f64, sd: f64, turned: Turn, basis: Basis) -> Quality {
        let width = Z * (sd * sd + self.chance(turned, value)).sqrt();
        self.clamped(-value, -(value + width), -(value - width), basis)
    }

    /// Variance of a measured drop through chance on the evaluation images: so many answers turn, either way.
    fn chance(&self, turned: Turn, value: f64) -> f64 {
        let Turn { share, size } = turned;
        let share = share.max((self.least() / size).min(1.0));
        size * size * (share - (value / size).powi(2)).max(0.0) / self.input.images.max(1) as f64
    }

    /// `drop` on held-back images with an error in points and one as a logarithm, as it would be measured.
    fn ranged(&self, drop: f64, sd: f64, log_sd: f64, turned: Turn, basis: Basis) -> Quality {
        let (shift, shift_sd) = self.shift;
        let value = if drop > 0.0 { drop * shift } else { drop };
        let log_sd = (log_sd.powi(2) + shift_sd.powi(2)).sqrt();
        let (worse, better) = (value.max(0.0) * (Z * log_sd).exp(), value.max(0.0) * (-Z * log_sd).exp());
        let points = Z * (sd * sd + self.chance(turned, value)).sqrt();
        let up = ((worse - value.max(0.0)).powi(2) + points * points).sqrt();
        let down = ((value.max(0.0) - better).powi(2) + points * points).sqrt();
        self.clamped(-value, -(value + up), -(value - down), basis)
    }

    /// These points within what can happen, in the metric's unit.
    fn clamped(&self, value: f64, low: f64, high: f64, basis: Basis) -> Quality {
        let (m, base) = (&self.input.metric, self.base());
        let score = m.scale.abs() * 100.0 / m.whole;
        let (worst, best) = (
            m.worst.map_or(-UNBOUNDED, |worst| -score * (base - worst)),
            m.best.map_or(UNBOUNDED, |best| score * (best - base)),
        );
        let unit = |points: f64| m.of_points(points.clamp(worst, best.max(worst)));
        let value = unit(value);
        Quality { value, low: unit(low).min(value), high: unit(high).max(value), coverage: COVERAGE, basis }
    }

    /// What scans alone say of these harms, as they add up in the plans that were tried: the metric's change in its unit. Differences of it are of
    /// one kind, where forecasts of two plans may rest on unlike trials. `None` where something was never measured, or nothing was tried.
    pub fn scanned(&self, h: &Harms) -> Option<f64> {
        let fit = self.fit.filter(|_| h.unknown == 0)?;
        let value = -fit.drop(&h.kinds) * self.shift.0;
        Some(self.clamped(value, value, value, Basis::Scanned).value)
    }

    /// No figure: what is known is lost at least, what is not may be anything.
    fn unmeasured(&self, h: &Harms) -> Quality {
        let known = self.fit.map_or(0.0, |f| f.drop(&h.kinds) * self.shift.0);
        let q = self.clamped(0.0 - known, -100.0, 0.0, Basis::Unmeasured);
        Quality { high: q.high.max(q.value), ..q }
    }

    /// The answers that turn in a plan with these harms; one answer a lost point at least.
    fn turned_at(&self, h: &Harms, drop: f64) -> Turn {
        let (u, size) = (self.fit.map_or(0.0, |f| f.sum(&h.kinds)), self.size.at(drop));
        Turn { share: (self.turned * u.sqrt()).clamp((drop / size).clamp(0.0, 1.0), 1.0), size }
    }
}

/// Answers that turn: what share of them, and what each changes, in points.
#[derive(Debug, Clone, Copy)]
struct Turn {
    share: f64,
    size: f64,
}

impl Turn {
    fn of(o: &TrialOutcome) -> Turn {
        Turn { share: o.turned, size: o.size }
    }
}

/// Error of a trial's drop: images, and kinds of views, of which new images are another one.
fn spread(t: &Trial) -> f64 {
    let kinds = t.outcome.by_kind.len().max(1) as f64;
    let o = &t.outcome;
    (o.sample_sd.max(least(o)).powi(2) + o.kind_sd.powi(2) * (1.0 + 1.0 / kinds)).sqrt()
}

/// Half an image, in points: zero turned answers of n are no proof of none.
fn least(o: &TrialOutcome) -> f64 {
    if o.images > 0 { 0.5 * o.size / o.images as f64 } else { 0.0 }
}

#[cfg(test)]
mod tests;
