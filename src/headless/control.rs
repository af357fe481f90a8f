//! `paring control`: levels of a language model, a controller that chooses one for every token, and what both do on text that neither was
//! made with.
//!
//! Not here: what levels and controllers are (`control`), what is said of them (`control/told`).

mod told;

use super::out;
use super::{Cancelled, Exit, ProgressLine, cancel_on_signals, convert, progress_line, setup};
use crate::args;
use crate::control::learn::{Learner, Lesson, learn};
use crate::control::{
    self, Arm, Control, ControlError, Ladder, Origin, SearchOptions, Trace, level_models, search, trace, trial,
};
use crate::data::{Counted, Dataset, TextOptions};
use crate::exec::{Cancel, CompileOptions, DecodeOptions, Decoder, KvFormat, Plan};
use crate::files;
use crate::graph::ParamRole;
use crate::model::export::Manifest;
use crate::model::{Model, Preprocess};
use crate::profile::{LevelTime, PairedOptions};
use crate::prune::{self, Group};
use anyhow::{Error, Result, bail};
use candle_core::{Device, Tensor};
use std::path::Path;
use std::time::Duration;

/// Windows that the search looks at, and tokens of each.
const LOOKED: (usize, usize) = (3, 64);
/// Of the windows that are left, so many of five make the table of tokens.
const TABLE: usize = 2;
/// Cuts that an MLP goes in, and rungs measured anew between two levels.
const STEPS: usize = 4;
const RUNGS: usize = 1;
/// Tokens before those that levels are timed on.
const CONTEXT: usize = 128;

/// Runs the command.
pub fn run(args: &args::Control) -> Result<Exit> {
    let (kv, learner) = checked(args)?;
    // Before anything is computed.
    files::target(&args.out).map_err(|e| convert::unwritable(&args.out, &e))?;
    setup::keep_source(&args.model, &args.out)?;
    for (what, path) in [("calibration data is", &args.calib), ("data is", &args.data)] {
        setup::keep(what, Path::new(path), &args.out)?;
    }
    let (model, _, _) = setup::language(&args.model, args.tokenizer.as_deref(), &args.on, None)?;
    let (calib, text) = texts(args)?;
    let opened = setup::device(&args.on)?;
    out::notes(&model.info.notes);
    let cancel = cancel_on_signals()?;
    let work = Work { args, model: &model, options: CompileOptions::on(&opened).as_stored(), kv, cancel: &cancel };
    let made = work.made(learner, &calib, &text, &opened.words);
    match made {
        Err(e) if matches!(e.downcast_ref(), Some(ControlError::Cancelled(_))) => Err(Cancelled.into()),
        other => other,
    }
}

fn checked(args: &args::Control) -> Result<(KvFormat, Learner)> {
    let kv: KvFormat = args.kv.parse().map_err(|e: String| Error::msg(format!("--kv: {e}")))?;
    let learner: Learner = args.learner.parse().map_err(|e: String| Error::msg(format!("--learner: {e}")))?;
    if learner == Learner::Whole {
        bail!("--learner: `whole` sees what no learner may; hint: bandit or gradient");
    }
    if !(2..=8).contains(&args.levels) {
        bail!("--levels: {} levels; hint: 2 to 8", args.levels);
    }
    if !(args.target > 0.0 && args.target < 1.0) {
        bail!("--target: {} is no share of the whole network's time; hint: above 0 and below 1", args.target);
    }
    if args.least.is_some_and(|l| !(l > 0.0 && l < 1.0)) {
        bail!("--least: it is a share above 0 and below 1");
    }
    if !(1..=100).contains(&args.seeds) {
        bail!("--seeds: {} seeds; hint: 1 to 100", args.seeds);
    }
    if args.prompt == 0 || args.window < args.prompt + 8 {
        bail!("--window: {} tokens are too few after a prompt of {}", args.window, args.prompt);
    }
    if files::overwrites(Path::new(&args.calib), Path::new(&args.data)) {
        bail!(
            "--calib and --data are one file: a controller is not judged on what it was made with; hint: take it apart"
        );
    }
    Ok((kv, learner))
}

/// Windows of token ids.
type Windows = Vec<Vec<u32>>;

/// Both texts, as windows.
fn texts(args: &args::Control) -> Result<(Windows, Windows)> {
    let of = |spec: &str, limit| {
        let options = TextOptions { window: args.window, counted: Counted::Next, limit };
        let from = args.tokenizer.as_ref().unwrap_or(&args.model);
        windows(&setup::text(Some(spec), from, None, &options)?)
    };
    Ok((of(&args.calib, args.calib_limit)?, of(&args.data, args.limit)?))
}

fn windows(data: &Dataset) -> Result<Windows> {
    let one = |i: usize| Ok(data.batch([i], &Preprocess::none())?.0.flatten_all()?.to_vec1::<u32>()?);
    (0..data.len()).map(one).collect()
}

/// What it is done with.
struct Work<'a> {
    args: &'a args::Control,
    model: &'a Model,
    options: CompileOptions,
    kv: KvFormat,
    cancel: &'a Cancel,
}

/// What came out, for whoever tells it.
struct Found<'a> {
    ladder: &'a Ladder,
    times: &'a [LevelTime],
    /// Bytes a token of each level, and bytes of weights that levels hold beside the whole network's.
    bytes: Vec<u64>,
    beside: u64,
    /// What fixed levels cost on the calibration text.
    means: Vec<f64>,
    taught: usize,
    tokens: usize,
    arms: Vec<told::Named>,
}

impl Work<'_> {
    fn made(&self, learner: Learner, calib: &[Vec<u32>], text: &[Vec<u32>], device: &str) -> Result<Exit> {
        let Work { args, model, cancel, .. } = self;
        let least = LOOKED.0 + 10;
        if calib.len() < least {
            return Err(ControlError::Short { what: "windows", found: calib.len(), least }.into());
        }
        let (looked, rest) = calib.split_at(LOOKED.0);
        let (tabled, taught) = rest.split_at(rest.len() * TABLE / 5);
        let groups = prune::groups(&model.graph);
        let ladder = match &args.ladder {
            Some(file) => self.taken(file, &groups)?,
            None => self.searched(&groups, looked)?,
        };
        let levels: Vec<Model> = level_models(model, &groups, &ladder).collect::<control::Result<_>>()?;
        let plans: Vec<Plan> = levels.iter().map(|level| Ok(Plan::of(level, &self.options)?)).collect::<Result<_>>()?;
        let paired = PairedOptions { time_limit: Duration::from_secs(30), ..PairedOptions::default() };
        let times = crate::profile::levels(&plans, (CONTEXT, self.kv), &paired, cancel).map_err(ControlError::from)?;
        let table = self.traced(&plans, tabled, "tokens")?.table();
        let lessons = self.traced(&plans, taught, "levels")?;
        let shares: Vec<f32> = times.iter().map(|t| t.ratio.value as f32).collect();
        let lesson =
            Lesson { trace: &lessons, table: &table, prompt: args.prompt, times: &shares, target: args.target };
        let arms = self.arms(&lesson);
        let decoder = DecodeOptions { sequences: 1, context: args.window, kv: self.kv };
        let mut decoder = Decoder::over(&plans, &decoder)?;
        let outcomes = self.tried(&mut decoder, text, &arms)?;
        model.params.unchanged()?;
        let mut arms = arms;
        arms.iter_mut().zip(outcomes).for_each(|(arm, o)| arm.outcome = o);
        let chosen = arms.iter().find(|a| a.learner == Some(learner)).and_then(|a| a.policy.clone());
        let Some(policy) = chosen else { bail!("no controller was learnt") };
        let origin = Origin {
            learner,
            seed: 1,
            target: args.target,
            text: Path::new(&args.calib).file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default(),
            device: device.to_owned(),
        };
        let control = Control::new(model, ladder.clone(), policy, origin);
        let hash = control::write(&args.out, model, &Manifest::default(), &control)?;
        let found = Found {
            ladder: &ladder,
            times: &times,
            bytes: plans.iter().map(Plan::bytes_per_token).collect(),
            beside: beside(&plans, &levels, model),
            means: lessons.means(args.prompt),
            taught: lessons.tokens(),
            tokens: table.len(),
            arms,
        };
        told::tell(args, &found, (learner, device, &hash))
    }

    /// The levels of a file that was written before.
    fn taken(&self, file: &Path, groups: &[Group]) -> Result<Ladder> {
        let shown = file.display();
        let other = crate::model::load(file, &crate::model::LoadOptions::default())?;
        let Some(control) = control::read(&other)? else { bail!("--ladder: `{shown}` has no controller") };
        match control.ladder.check(self.model, groups) {
            Ok(()) => Ok(control.ladder),
            Err(why) => bail!("--ladder: `{shown}` is of another model: {why}"),
        }
    }

    fn searched(&self, groups: &[Group], looked: &[Vec<u32>]) -> Result<Ladder> {
        let tokens = LOOKED.1.min(self.args.window);
        let ids: Vec<u32> = looked.iter().flat_map(|w| &w[..tokens]).copied().collect();
        let x = Tensor::from_vec(ids, (looked.len(), tokens), &Device::Cpu)?;
        let least = self.args.least.unwrap_or((1.0 - 1.5 * (1.0 - self.args.target)).max(0.4));
        let how = SearchOptions { levels: self.args.levels, least, steps: STEPS, rungs: RUNGS };
        let mut line: Option<(usize, ProgressLine)> = None;
        let found = search(self.model, groups, &x, (&how, &self.options), self.cancel, &mut |t| {
            if line.as_ref().is_none_or(|(rung, _)| *rung != t.rung) {
                let words = format!("rung {} of {}: branches", t.rung, t.rungs);
                line = Some((t.rung, progress_line(&words)));
            }
            if let Some((_, line)) = &mut line {
                line.show(t.done as u64, t.of as u64);
            }
        });
        if let Some((_, mut line)) = line {
            line.clear();
        }
        Ok(found?)
    }

    fn traced(&self, plans: &[Plan], windows: &[Vec<u32>], what: &str) -> Result<Trace> {
        let mut line = progress_line(what);
        let found = trace(plans, windows, self.cancel, &mut |n| line.show(n as u64, windows.len() as u64));
        line.clear();
        Ok(found?)
    }

    /// Everything that is tried: each level, a draw among two by lot, and a controller of each learner and seed.
    fn arms(&self, lesson: &Lesson) -> Vec<told::Named> {
        let mut arms: Vec<told::Named> = (0..lesson.times.len()).map(told::Named::fixed).collect();
        arms.extend(lot(lesson).map(|(levels, share)| told::Named::lot(levels, share)));
        for learner in [Learner::Bandit, Learner::Gradient, Learner::Whole] {
            let seeds = if learner == Learner::Whole { 1 } else { self.args.seeds };
            for seed in 1..=seeds {
                let learnt = learn(learner, lesson, seed);
                arms.push(told::Named::learnt(learner, seed, learnt, lesson));
            }
        }
        arms
    }

    fn tried(&self, decoder: &mut Decoder, text: &[Vec<u32>], arms: &[told::Named]) -> Result<Vec<control::Outcome>> {
        let mut line = progress_line("held-out text");
        let total = text.len() * arms.len();
        let these: Vec<Arm> = arms.iter().map(told::Named::arm).collect();
        let seed = 1;
        let outcomes = trial(decoder, text, (self.args.prompt, seed), &these, self.cancel, &mut |window, done, _| {
            line.show((window * arms.len() + done) as u64, total as u64);
        });
        line.clear();
        Ok(outcomes?)
    }
}

/// The two neighbouring levels that a draw by lot takes the target with, and the share of the slower one.
fn lot(lesson: &Lesson) -> Option<([usize; 2], f64)> {
    let times: Vec<f64> = lesson.times.iter().map(|t| f64::from(*t)).collect();
    let at = times.windows(2).position(|w| w[0] > lesson.target && lesson.target >= w[1])?;
    Some(([at, at + 1], (lesson.target - times[at + 1]) / (times[at] - times[at + 1])))
}

/// Bytes of weights that levels hold for themselves: what is narrowed is copied, everything else is the whole network's.
fn beside(plans: &[Plan], levels: &[Model], model: &Model) -> u64 {
    let narrowed = |cut: &Model, node| {
        let shape = |of: &Model, name: &str| of.params.get(name).ok().map(|p| p.shape().to_vec());
        cut.graph.node(node).param(ParamRole::Weight).is_some_and(|name| shape(cut, name) != shape(model, name))
    };
    let of = |(plan, cut): (&Plan, &Model)| -> u64 {
        plan.steps().iter().filter(|step| narrowed(cut, step.node)).map(|step| step.held_bytes).sum()
    };
    plans.iter().zip(levels).skip(1).map(of).sum()
}
