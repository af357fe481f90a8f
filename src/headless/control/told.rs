//! What `paring control` says: levels, what each arm did on the held-out text, and controllers beside the best that fixed levels do in as much
//! time.

use super::Found;
use crate::args;
use crate::control::learn::{Learner, Learnt, Lesson, replay};
use crate::control::{Arm, Outcome, Point, Policy, Versus, against_fixed};
use crate::headless::out::say;
use crate::headless::{Exit, print_json};
use crate::task::{Estimate, quantile};
use anyhow::Result;
use serde_json::{Value, json};

/// One arm and what it did.
pub(super) struct Named {
    kind: Kind,
    pub learner: Option<Learner>,
    pub policy: Option<Policy>,
    /// While learning, and what the trace promised: divergence and time.
    regret: Vec<(usize, f64)>,
    promised: Option<(f64, f64)>,
    pub outcome: Outcome,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Fixed(usize),
    Lot([usize; 2], f64),
    Seed(u64),
}

impl Named {
    pub fn fixed(level: usize) -> Named {
        Named::of(Kind::Fixed(level))
    }

    pub fn lot(levels: [usize; 2], share: f64) -> Named {
        Named::of(Kind::Lot(levels, share))
    }

    pub fn learnt(learner: Learner, seed: u64, learnt: Learnt, lesson: &Lesson) -> Named {
        Named {
            learner: Some(learner),
            promised: Some(replay(&learnt.policy, lesson)),
            policy: Some(learnt.policy),
            regret: learnt.regret,
            ..Named::of(Kind::Seed(seed))
        }
    }

    fn of(kind: Kind) -> Named {
        Named { kind, learner: None, policy: None, regret: Vec::new(), promised: None, outcome: Outcome::default() }
    }

    pub fn arm(&self) -> Arm<'_> {
        match (self.kind, &self.policy) {
            (Kind::Fixed(level), _) => Arm::Fixed(level),
            (Kind::Lot(levels, share), _) => Arm::Lot { levels, share, seed: 1 },
            (Kind::Seed(_), Some(policy)) => Arm::Policy(policy),
            (Kind::Seed(_), None) => Arm::Fixed(0),
        }
    }

    fn name(&self) -> String {
        match self.kind {
            Kind::Fixed(0) => "dense".into(),
            Kind::Fixed(level) => format!("level {level}"),
            Kind::Lot([a, b], share) => format!("lot {a}/{b} {:.0} %", 100.0 * share),
            Kind::Seed(seed) => format!("{} {seed}", self.learner.map_or("", Learner::label)),
        }
    }
}

/// What all figures are made of: levels' times, which are told by the levels' own medians in the trial.
struct Clock {
    /// Per level: the median, over windows, of its median token beside the whole network's.
    shares: Vec<f64>,
    /// Milliseconds of the whole network's token at the median.
    whole: f64,
}

fn median(values: &[f64]) -> f64 {
    let mut v = values.to_vec();
    v.sort_by(f64::total_cmp);
    quantile(&v, 0.5)
}

impl Clock {
    fn of(arms: &[Named], levels: usize) -> Clock {
        let medians = |a: &Named| -> Vec<f64> { a.outcome.runs.iter().map(|r| median(&r.ms)).collect() };
        let whole = medians(&arms[0]);
        let share = |level: usize| {
            let own = medians(&arms[level]);
            median(&own.iter().zip(&whole).map(|(a, b)| a / b).collect::<Vec<_>>())
        };
        Clock { shares: (0..levels).map(share).collect(), whole: median(&whole) }
    }

    /// An arm's mean time by its levels' medians, with what choosing took, as a share of the whole network's.
    fn time(&self, arm: &Named) -> f64 {
        let by_level: f64 = arm.outcome.shares(self.shares.len()).iter().zip(&self.shares).map(|(n, t)| n * t).sum();
        by_level + self.choice(arm) / self.whole
    }

    fn choice(&self, arm: &Named) -> f64 {
        if arm.policy.is_none() {
            return 0.0;
        }
        median(&arm.outcome.runs.iter().map(|r| median(&r.choice_ms)).collect::<Vec<_>>())
    }

    /// The same by the wall: all of its tokens beside all of the whole network's in the same windows.
    fn wall(arm: &Named, whole: &Named) -> f64 {
        let sum = |a: &Named| a.outcome.runs.iter().flat_map(|r| &r.ms).sum::<f64>();
        sum(arm) / sum(whole).max(1e-9)
    }

    fn point(&self, arm: &Named, time: f64) -> Point {
        Point { time, divergence: arm.outcome.means(|r| &r.divergence), surprise: arm.outcome.means(|r| &r.surprise) }
    }
}

/// A learner's controllers, seed by seed and together.
struct Verdict {
    learner: Learner,
    seeds: Vec<Option<Versus>>,
    all: Option<Versus>,
    /// The same with times by the wall.
    wall: Option<Versus>,
}

fn verdicts(arms: &[Named], clock: &Clock) -> Vec<Verdict> {
    let others = || arms.iter().filter(|a| a.learner.is_none());
    let whole = &arms[0];
    let fixed: Vec<Point> = others().map(|a| clock.point(a, clock.time(a))).collect();
    let walled: Vec<Point> = others().map(|a| clock.point(a, Clock::wall(a, whole))).collect();
    let of = |learner: Learner| {
        let own = || arms.iter().filter(move |a| a.learner == Some(learner));
        let points: Vec<Point> = own().map(|a| clock.point(a, clock.time(a))).collect();
        let by_wall: Vec<Point> = own().map(|a| clock.point(a, Clock::wall(a, whole))).collect();
        Verdict {
            learner,
            seeds: points.iter().map(|p| against_fixed(std::slice::from_ref(p), &fixed)).collect(),
            all: against_fixed(&points, &fixed),
            wall: against_fixed(&by_wall, &walled),
        }
    };
    [Learner::Bandit, Learner::Gradient, Learner::Whole].map(of).into()
}

/// Tells everything.
pub(super) fn tell(args: &args::Control, found: &Found, of: (Learner, &str, &str)) -> Result<Exit> {
    let clock = Clock::of(&found.arms, found.ladder.levels.len());
    let verdicts = verdicts(&found.arms, &clock);
    if args.json {
        print_json(&whole_json(args, found, of, (&clock, &verdicts)))?;
        return Ok(Exit::Done);
    }
    let (learner, device, hash) = of;
    say!("device   {device}")?;
    say!(
        "taught   {} tokens, a table of {}; levels share the weights, {:.1} MB are their own",
        found.taught,
        found.tokens,
        found.beside as f64 / 1e6
    )?;
    say!()?;
    say!("level      MB/token   time/dense  of calibration KL  MLPs whole/narrow/gone")?;
    for (i, level) in found.ladder.levels.iter().enumerate() {
        let [whole, narrow, gone] = kept(found, &level.kept);
        let ratio = &found.times[i].ratio;
        say!(
            "{i:>5}  {:>12.2}   {:.3} [{:.3}, {:.3}]  {:>9.4}  {whole:>4}/{narrow}/{gone}",
            found.bytes[i] as f64 / 1e6,
            ratio.value,
            ratio.low,
            ratio.high,
            found.means[i]
        )?;
    }
    say!()?;
    say!(
        "on held-out text: {} windows, each after {} tokens of prompt",
        found.arms[0].outcome.runs.len(),
        args.prompt
    )?;
    say!("arm             time/dense   wall      KL   perplexity  ms p50/p95      tok/s  tokens per level, %")?;
    for arm in &found.arms {
        let row = Row::of(arm, &clock, &found.arms[0], found.ladder.levels.len());
        let levels: Vec<String> = row.shares.iter().map(|s| format!("{:.0}", 100.0 * s)).collect();
        say!(
            "{:<15}  {:>9.3}  {:>6.3}  {:.4}  {:>10.3}  {:>5.2}/{:<5.2}  {:>9.1}  {}",
            arm.name(),
            row.time,
            row.wall,
            row.divergence,
            row.perplexity,
            row.p50,
            row.p95,
            row.rate,
            levels.join(" ")
        )?;
    }
    say!()?;
    for v in &verdicts {
        let label = match v.learner {
            Learner::Whole => "whole (upper bound)".to_owned(),
            other => other.label().to_owned(),
        };
        let Some(all) = &v.all else {
            say!("{label}: faster than any fixed level")?;
            continue;
        };
        let better = v.seeds.iter().flatten().filter(|s| s.divergence_by.value < 0.0).count();
        say!(
            "{label}: beside the best fixed in as much time ({}): KL {:.4}, perplexity {:.3}",
            mix_words(found, all),
            all.divergence,
            all.surprise.exp()
        )?;
        say!(
            "  KL {}, nats/token {}; {better} of {} seeds better",
            estimate(&all.divergence_by),
            estimate(&all.surprise_by),
            v.seeds.len()
        )?;
        if let Some(wall) = &v.wall {
            say!("  by the wall: KL {}", estimate(&wall.divergence_by))?;
        }
    }
    say!()?;
    say!("{}  {} (seed 1), {}", args.out.display(), learner.label(), &hash[..16.min(hash.len())])?;
    Ok(Exit::Done)
}

/// MLPs that are whole, narrowed and gone at a level.
fn kept(found: &Found, kept: &[u32]) -> [usize; 3] {
    let mut out = [0; 3];
    for (branch, k) in found.ladder.branches.iter().zip(kept) {
        out[if *k as usize == branch.order.len() {
            0
        } else if *k > 0 {
            1
        } else {
            2
        }] += 1;
    }
    out
}

fn mix_words(found: &Found, versus: &Versus) -> String {
    let others: Vec<String> = found.arms.iter().filter(|a| a.learner.is_none()).map(Named::name).collect();
    let ([a, b], share) = versus.mix;
    if share >= 1.0 { others[a].clone() } else { format!("{:.0} % {}, else {}", 100.0 * share, others[a], others[b]) }
}

fn estimate(e: &Estimate) -> String {
    let range = e.range.map_or(String::new(), |(low, high)| format!(" [{low:+.4}, {high:+.4}]"));
    format!("{:+.4}{range}", e.value)
}

/// One arm's figures.
struct Row {
    time: f64,
    wall: f64,
    divergence: f64,
    perplexity: f64,
    p50: f64,
    p95: f64,
    rate: f64,
    shares: Vec<f64>,
    choice: f64,
}

impl Row {
    fn of(arm: &Named, clock: &Clock, whole: &Named, levels: usize) -> Row {
        let ms = arm.outcome.ms();
        Row {
            time: clock.time(arm),
            wall: Clock::wall(arm, whole),
            divergence: arm.outcome.mean(|r| &r.divergence),
            perplexity: arm.outcome.mean(|r| &r.surprise).exp(),
            p50: quantile(&ms, 0.5),
            p95: quantile(&ms, 0.95),
            rate: 1e3 * ms.len() as f64 / ms.iter().sum::<f64>().max(1e-9),
            shares: arm.outcome.shares(levels),
            choice: clock.choice(arm),
        }
    }
}

fn range(e: &Estimate) -> Value {
    json!({ "value": e.value, "low": e.range.map(|r| r.0), "high": e.range.map(|r| r.1) })
}

fn versus(found: &Found, v: &Versus) -> Value {
    json!({
        "best_fixed": mix_words(found, v),
        "kl_divergence": v.divergence,
        "perplexity": v.surprise.exp(),
        "kl_difference": range(&v.divergence_by),
        "nats_difference": range(&v.surprise_by),
    })
}

fn whole_json(
    args: &args::Control,
    found: &Found,
    (learner, device, hash): (Learner, &str, &str),
    (clock, verdicts): (&Clock, &[Verdict]),
) -> Value {
    let levels: Vec<Value> = (found.ladder.levels.iter().enumerate())
        .map(|(i, level)| {
            let [whole, narrow, gone] = kept(found, &level.kept);
            let t = &found.times[i];
            json!({
                "level": i,
                "bytes_per_token": found.bytes[i],
                "time_ratio": { "value": t.ratio.value, "low": t.ratio.low, "high": t.ratio.high, "pairs": t.ratio.n },
                "calibration_kl": found.means[i],
                "mlps": { "whole": whole, "narrow": narrow, "gone": gone },
            })
        })
        .collect();
    let arms: Vec<Value> = (found.arms.iter())
        .map(|arm| {
            let row = Row::of(arm, clock, &found.arms[0], found.ladder.levels.len());
            json!({
                "arm": arm.name(),
                "time_ratio": row.time,
                "wall_ratio": row.wall,
                "kl_divergence": row.divergence,
                "perplexity": row.perplexity,
                "token_ms": { "p50": row.p50, "p95": row.p95, "choice": row.choice },
                "tokens_per_s": row.rate,
                "shares": row.shares,
                "regret": arm.regret,
                "promised": arm.promised.map(|(kl, time)| json!({ "kl_divergence": kl, "time_ratio": time })),
            })
        })
        .collect();
    let told: Vec<Value> = (verdicts.iter())
        .map(|v| {
            json!({
                "learner": v.learner.label(),
                "upper_bound": v.learner == Learner::Whole,
                "all_seeds": v.all.as_ref().map(|a| versus(found, a)),
                "by_the_wall": v.wall.as_ref().map(|a| versus(found, a)),
                "seeds": v.seeds.iter().map(|s| s.as_ref().map(|s| versus(found, s))).collect::<Vec<_>>(),
            })
        })
        .collect();
    json!({
        "device": device,
        "target": args.target,
        "windows": found.arms[0].outcome.runs.len(),
        "tokens": found.arms[0].outcome.runs.iter().map(|r| r.level.len()).sum::<usize>(),
        "taught_tokens": found.taught,
        "table_tokens": found.tokens,
        "levels_own_bytes": found.beside,
        "levels": levels,
        "arms": arms,
        "verdicts": told,
        "written": { "path": args.out, "hash": hash, "learner": learner.label(), "seed": 1 },
    })
}
