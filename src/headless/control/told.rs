//! What `paring control` says: levels, what each arm did on the held-out text, and controllers beside the best that fixed levels do in as much
//! time.

use super::Found;
use crate::args;
use crate::control::learn::{Learner, Learnt, Lesson, replay};
use crate::control::{Arm, Clock, Outcome, Point, Policy, Versus, against_fixed};
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
    pub promised: Option<(f64, f64)>,
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

impl Named {
    /// What it takes, of the whole network's time.
    fn time(&self, clock: &Clock) -> f64 {
        clock.time(&self.outcome, self.policy.is_some())
    }

    fn wall(&self, whole: &Named) -> f64 {
        Clock::wall(&self.outcome, &whole.outcome)
    }

    fn choice(&self) -> f64 {
        self.policy.as_ref().map_or(0.0, |_| Clock::choice(&self.outcome))
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
    let fixed: Vec<Point> = others().map(|a| Clock::point(&a.outcome, a.time(clock))).collect();
    let walled: Vec<Point> = others().map(|a| Clock::point(&a.outcome, a.wall(whole))).collect();
    let of = |learner: Learner| {
        let own = || arms.iter().filter(move |a| a.learner == Some(learner));
        let points: Vec<Point> = own().map(|a| Clock::point(&a.outcome, a.time(clock))).collect();
        let by_wall: Vec<Point> = own().map(|a| Clock::point(&a.outcome, a.wall(whole))).collect();
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
    let levels = &found.made.ladder.levels;
    let fixed: Vec<&Outcome> = found.arms[..levels.len()].iter().map(|a| &a.outcome).collect();
    let mixing: Vec<&Outcome> = found.arms[levels.len()..].iter().map(|a| &a.outcome).collect();
    let clock = Clock::of(&fixed, &mixing);
    let verdicts = verdicts(&found.arms, &clock);
    if args.json {
        print_json(&whole_json(args, found, of, (&clock, &verdicts)))?;
        return Ok(Exit::Done);
    }
    let (learner, device, hash) = of;
    let (fitted, narrowed) = found.made.fits.levels(&found.made.ladder);
    say!("device   {device}")?;
    say!(
        "taught   {} tokens, a table of {}; {fitted} of {narrowed} narrowed levels re-fitted; levels share the weights, {:.1} MB are their own",
        found.made.lessons.tokens(),
        found.made.table.len(),
        found.made.beside as f64 / 1e6
    )?;
    say!()?;
    say!("level      MB/token   time/dense              a change to it  KL of calibration  MLPs whole/narrow/gone")?;
    for (i, level) in found.made.ladder.levels.iter().enumerate() {
        let [whole, narrow, gone] = found.made.ladder.mlps(level);
        let ratio = &found.made.times[i].ratio;
        say!(
            "{i:>5}  {:>12.2}   {:.3} [{:.3}, {:.3}]  {:>+15.3}  {:>17.4}  {whole:>4}/{narrow}/{gone}",
            found.bytes[i] as f64 / 1e6,
            ratio.value,
            ratio.low,
            ratio.high,
            found.made.times[i].entry,
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
        let row = Row::of(arm, &clock, &found.arms[0], found.made.ladder.levels.len());
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
            Learner::Whole => "regressions alone".to_owned(),
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
            time: arm.time(clock),
            wall: arm.wall(whole),
            divergence: arm.outcome.mean(|r| &r.divergence),
            perplexity: arm.outcome.mean(|r| &r.surprise).exp(),
            p50: quantile(&ms, 0.5),
            p95: quantile(&ms, 0.95),
            rate: 1e3 * ms.len() as f64 / ms.iter().sum::<f64>().max(1e-9),
            shares: arm.outcome.shares(levels),
            choice: arm.choice(),
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
    let levels: Vec<Value> = (found.made.ladder.levels.iter().enumerate())
        .map(|(i, level)| {
            let [whole, narrow, gone] = found.made.ladder.mlps(level);
            let t = &found.made.times[i];
            json!({
                "level": i,
                "bytes_per_token": found.bytes[i],
                "time_ratio": { "value": t.ratio.value, "low": t.ratio.low, "high": t.ratio.high, "pairs": t.ratio.n },
                "change_ratio": t.entry,
                "calibration_kl": found.means[i],
                "mlps": { "whole": whole, "narrow": narrow, "gone": gone },
            })
        })
        .collect();
    let arms: Vec<Value> = (found.arms.iter())
        .map(|arm| {
            let row = Row::of(arm, clock, &found.arms[0], found.made.ladder.levels.len());
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
                "begins_both": v.learner == Learner::Whole,
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
        "taught_tokens": found.made.lessons.tokens(),
        "table_tokens": found.made.table.len(),
        "levels_own_bytes": found.made.beside,
        "levels_refitted": found.made.fits.levels(&found.made.ladder).0,
        "levels": levels,
        "arms": arms,
        "verdicts": told,
        "written": { "path": args.out, "hash": hash, "learner": learner.label(), "seed": 1 },
    })
}
