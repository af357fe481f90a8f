//! Whole runs without observers: of one model, and of two in pairs, which is what a factor of latency is made of.

use super::load::{Load, Watch};
use super::stats::ms;
use super::turns::{Clock, LEAST, Turns};
use super::{Doubt, Gauges, LatencyStats, Paired, Ratio, Result};
use crate::exec::{Cancel, Launch, Plan, Session};
use candle_core::{Device, Tensor};
use std::time::Duration;

/// How far two measurements of the same model lie off even on a quiet machine, as a part of it: memory lies elsewhere, the clock
/// is another, and a virtual machine has neighbours. Intervals within one measurement cannot tell; of profiles in a row of one
/// model on a quiet virtual machine, each in a process of its own, two lay 11 % apart.
pub(super) const REPEAT_WHOLE: f64 = 0.06;
/// And at least so many milliseconds: what reading the clock and waking threads takes.
pub(super) const REPEAT_MS: f64 = 0.003;

/// How to measure whole models.
#[derive(Debug, Clone)]
pub struct PairedOptions {
    /// Runs that count, of each model.
    pub runs: usize,
    pub time_limit: Duration,
    /// Threads that a run keeps busy.
    pub threads: usize,
    /// Of the order within pairs.
    pub seed: u64,
    pub watch: Watch,
}

impl Default for PairedOptions {
    fn default() -> PairedOptions {
        PairedOptions {
            runs: 60,
            time_limit: Duration::from_secs(8),
            threads: crate::exec::device::threads(),
            seed: ORDER_SEED,
            watch: Watch::System,
        }
    }
}

pub(super) const ORDER_SEED: u64 = 0x0a11;

/// Which of two comes first, by chance, so that what one leaves behind does not always meet the other.
pub(super) struct Order(rand_chacha::ChaCha8Rng);

impl Order {
    pub fn new(seed: u64) -> Order {
        use rand::SeedableRng;
        Order(rand_chacha::ChaCha8Rng::seed_from_u64(seed))
    }

    pub fn pair(&mut self) -> [bool; 2] {
        use rand::Rng;
        let first = self.0.random_range(0..2u32) == 1;
        [first, !first]
    }
}

/// Milliseconds of one whole run, by the device's clock.
pub(super) fn timed(session: &mut Session, x: &Tensor) -> Result<f64> {
    Ok(ms(session.run_timed(x)?.1))
}

pub(super) fn pick<T: Copy>(all: &[T], rounds: &[usize]) -> Vec<T> {
    rounds.iter().filter_map(|&r| all.get(r).copied()).collect()
}

/// Latency of one model: whole runs without observers, after two to warm up; why it is not to be decided on, if so; and how
/// the runs were launched.
///
/// # Errors
/// What running reports, and cancellation.
pub fn whole_latency(
    plan: &Plan,
    x: &Tensor,
    options: &PairedOptions,
    cancel: &Cancel,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<(LatencyStats, Option<Doubt>, Launch)> {
    let mut session = plan.session();
    for _ in 0..2 {
        cancel.check()?;
        session.run(x)?;
    }
    let launch = session.prepare_timed(x)?;
    let mut samples = Vec::with_capacity(options.runs);
    let began = Gauges::moment();
    let mut counted = options.turns(plan.device(), cancel).take(|round| {
        samples.push(timed(&mut session, x)?);
        progress((round + 1).min(options.runs), options.runs);
        Ok(())
    })?;
    counted.load.gpu_others = Gauges::others_on(plan.device(), &options.watch, began);
    let stats = LatencyStats { replayed: launch.is_replayed(), ..LatencyStats::of(&pick(&samples, &counted.rounds)) };
    Ok((stats.at_least(REPEAT_WHOLE, REPEAT_MS), stats.doubt(&counted.load), launch))
}

/// Latency of `base` and `new` on the same input: runs in pairs, either first by chance, so that what weighs on the machine
/// weighs on both alike. The factor is the median of the pairs' ratios, with its interval by order statistics. In doubt,
/// it says so and the interval becomes that of single pairs. Both are launched in the same way, which comes with it: where one
/// cannot be replayed, neither is.
///
/// # Errors
/// What running reports, and cancellation.
pub fn paired_latency(
    base: &Plan,
    new: &Plan,
    x: &Tensor,
    options: &PairedOptions,
    cancel: &Cancel,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<(Paired, Launch)> {
    let device = base.device();
    let (mut base, mut new) = (base.session(), new.session());
    for is_new in [false, true, false, true] {
        cancel.check()?;
        if is_new { &mut new } else { &mut base }.run(x)?;
    }
    let launch = alike(&mut base, &mut new, x)?;
    let (mut pairs, mut order) = (Vec::new(), Order::new(options.seed));
    let began = Gauges::moment();
    let mut counted = options.turns(device, cancel).take(|round| {
        let mut pair = (0.0, 0.0);
        for is_new in order.pair() {
            *if is_new { &mut pair.1 } else { &mut pair.0 } = timed(if is_new { &mut new } else { &mut base }, x)?;
        }
        pairs.push(pair);
        progress((round + 1).min(options.runs), options.runs);
        Ok(())
    })?;
    counted.load.gpu_others = Gauges::others_on(device, &options.watch, began);
    Ok((of_pairs(&pick(&pairs, &counted.rounds), counted.load, launch.is_replayed()), launch))
}

/// Has both launched in the same way, and says which.
fn alike(base: &mut Session, new: &mut Session, x: &Tensor) -> Result<Launch> {
    let (of_base, of_new) = (base.prepare_timed(x)?, new.prepare_timed(x)?);
    let (other, why, whose) = match (&of_base, &of_new) {
        (Launch::Eager(why), Launch::Replayed) => (new, why, "the original's"),
        (Launch::Replayed, Launch::Eager(why)) => (base, why, "the new model's"),
        _ => return Ok(of_base),
    };
    let why = format!("{whose} cannot: {why}");
    other.launch_eagerly(&why);
    Ok(Launch::Eager(why.into()))
}

fn of_pairs(pairs: &[(f64, f64)], load: Load, replayed: bool) -> Paired {
    let of = |side: fn(&(f64, f64)) -> f64| LatencyStats {
        replayed,
        ..LatencyStats::of(&pairs.iter().map(side).collect::<Vec<_>>())
    };
    let mut ratio = Ratio::of(pairs);
    let doubt = ratio.doubt(&load, replayed);
    if doubt.is_some() {
        let (low, high) = Ratio::of_single(pairs);
        (ratio.low, ratio.high) = (ratio.low.min(low), ratio.high.max(high));
    }
    let [base, new] = [of(|p| p.0), of(|p| p.1)].map(|s| s.at_least(REPEAT_WHOLE, REPEAT_MS));
    Paired { base, new, ratio, doubt, load }
}

impl PairedOptions {
    pub(super) fn turns<'a>(&'a self, device: &Device, cancel: &'a Cancel) -> Turns<'a> {
        let &PairedOptions { runs: wanted, time_limit, threads, ref watch, .. } = self;
        Turns { wanted, least: LEAST, time_limit, threads, watch, cancel, clock: Clock::of(device) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_comes_first_by_chance_and_by_the_seed() {
        let draw = |seed| {
            let mut o = Order::new(seed);
            (0..200).map(|_| o.pair()).collect::<Vec<_>>()
        };
        let a = draw(1);
        assert!(a.iter().all(|[x, y]| x != y));
        let first = a.iter().filter(|[x, _]| *x).count();
        assert!((70..=130).contains(&first), "{first} of 200");
        assert!(a == draw(1) && a != draw(2));
    }

    #[test]
    fn in_doubt_the_range_is_that_of_single_pairs() {
        let pairs: Vec<(f64, f64)> = (0..60).map(|i| (10.0, 6.0 + f64::from(i % 7) * 0.05)).collect();
        let quiet = of_pairs(&pairs, Load { clock: 1.0, ..Load::default() }, false);
        assert_eq!(quiet.doubt, None);
        let busy = of_pairs(&pairs, Load { waited: 0.3, clock: 1.0, ..Load::default() }, false);
        assert!(busy.doubt.is_some() && busy.ratio.value == quiet.ratio.value);
        assert!(busy.ratio.low <= 0.6 && busy.ratio.high >= 0.63 && busy.ratio.low < quiet.ratio.low);
        // The two medians are stated no better than they repeat.
        assert!(quiet.base.spread() >= REPEAT_WHOLE && (quiet.base.p50, quiet.base.n) == (10.0, 60));
    }
}
