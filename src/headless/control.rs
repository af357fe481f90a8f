//! `paring control`: levels of a language model, a controller that chooses one for every token, and what both do on text that neither was
//! made with.
//!
//! Not here: what levels and controllers are (`control`), what is said of them (`control/told`).

mod told;

use super::out;
use super::{Cancelled, Exit, ProgressLine, UsageError, cancel_on_signals, convert, progress_line, setup};
use crate::args;
use crate::control::learn::{Learner, Lesson, learn};
use crate::control::{self, Arm, Control, ControlError, Ladder, Made, Making, Origin, Stage, make, trial};
use crate::data::{Counted, Dataset, TextOptions};
use crate::exec::{Cancel, CompileOptions, DecodeOptions, Decoder, KvFormat, Plan};
use crate::files;
use crate::model::export::Manifest;
use crate::model::{Model, Preprocess};
use crate::prune::{self, Group};
use crate::words::counted;
use anyhow::{Result, bail};
use std::path::Path;
use std::time::Duration;

/// Runs the command.
pub fn run(args: &args::Control) -> Result<Exit> {
    let (kv, learner) = checked(args)?;
    // Before anything is computed.
    if args.out.extension().is_some_and(|e| e != "safetensors") {
        let shown = args.out.display();
        bail!("--out: levels and their controller are a safetensors file; hint: a name that ends so, not `{shown}`");
    }
    convert::ready(&args.out, "safetensors")?;
    setup::keep_source(&args.model, &args.out)?;
    for (what, path) in [("calibration data is", &args.calib), ("data is", &args.data)] {
        setup::keep(what, Path::new(path), &args.out)?;
    }
    let (mut model, _, _) = setup::language(&args.model, args.tokenizer.as_deref(), &args.on, None)?;
    // What is not said is left to whoever runs the file.
    if kv != KvFormat::default() {
        setup::cache(&mut model, Some(&args.kv))?;
    }
    if let Some(most) = model.info.context.filter(|most| args.window > *most) {
        bail!("--window: {} tokens, and the model was made for {most} at most", args.window);
    }
    let (calib, text) = texts(args)?;
    let opened = setup::device(&args.on)?;
    out::notes(&model.info.notes);
    let cancel = cancel_on_signals()?;
    let work = Work { args, model: &model, options: CompileOptions::on(&opened).as_stored(), kv, cancel: &cancel };
    let made = work.made(learner, &calib, &text, &opened.words);
    match made {
        Err(e) if e.downcast_ref().is_some_and(ControlError::is_cancelled) => Err(Cancelled.into()),
        other => other,
    }
}

fn checked(args: &args::Control) -> Result<(KvFormat, Learner)> {
    let kv: KvFormat = args.kv.parse().map_err(|e: String| UsageError::of("--kv", e))?;
    let learner: Learner = args.learner.parse().map_err(|e: String| UsageError::of("--learner", e))?;
    if learner == Learner::Whole {
        bail!("--learner: `whole` is what both begin with; hint: bandit or gradient");
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
    if args.prompt == 0 {
        bail!("--prompt: a controller goes by what was said before; hint: at least 1 token");
    }
    if args.window < args.prompt + 8 {
        bail!(
            "--window: {} tokens are too few after a prompt of {}; hint: {} or more, or a shorter --prompt",
            args.window,
            args.prompt,
            args.prompt + 8
        );
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
        setup::text(Some(spec), from, None, &options)
    };
    let (calib, data) = (of(&args.calib, args.calib_limit)?, of(&args.data, args.limit)?);
    let shared = calib.overlaps(&data);
    if shared > 0 {
        bail!(
            "{shared} of {} of --calib are also in --data: a controller is not judged on what it was made with; hint: other text",
            counted(calib.len(), "window")
        );
    }
    Ok((windows(&calib)?, windows(&data)?))
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
    made: &'a Made,
    /// Bytes a token of each level.
    bytes: Vec<u64>,
    /// What fixed levels cost on the calibration text.
    means: Vec<f64>,
    arms: Vec<told::Named>,
}

impl Work<'_> {
    fn made(&self, learner: Learner, calib: &[Vec<u32>], text: &[Vec<u32>], device: &str) -> Result<Exit> {
        let Work { args, model, cancel, .. } = self;
        let ladder = args.ladder.as_ref().map(|file| self.taken(file, &prune::groups(&model.graph))).transpose()?;
        let (levels, target, least) = (args.levels, args.target, args.least);
        let how = Making { levels, target, least, kv: self.kv, time_limit: Duration::from_secs(30) };
        let mut line = Shown::default();
        let found = make(model, calib, ladder, (&how, &self.options), cancel, &mut |stage| line.show(stage));
        line.clear();
        let made = &found?;
        let fastest = made.shares.iter().copied().fold(1.0, f32::min);
        if f64::from(fastest) > args.target {
            out::complain(&format!(
                "note: no level takes as little as {} of the whole network's time, the fastest takes {fastest:.3}; hint: another --target, or a \
                 lower --least",
                args.target
            ));
        }
        let lesson = made.lesson(args.prompt, args.target);
        let arms = self.arms(&lesson);
        let decoder = DecodeOptions { sequences: 1, context: args.window, kv: self.kv };
        let mut decoder = Decoder::over(&made.plans, &decoder)?;
        let outcomes = self.tried(&mut decoder, text, &arms)?;
        model.params.unchanged()?;
        let mut arms = arms;
        arms.iter_mut().zip(outcomes).for_each(|(arm, o)| arm.outcome = o);
        let chosen = arms.iter().find(|a| a.learner == Some(learner));
        let Some((policy, (_, takes))) = chosen.and_then(|a| a.policy.clone().zip(a.promised)) else {
            bail!("no controller was learnt")
        };
        if takes > args.target && f64::from(fastest) <= args.target {
            out::complain(&format!(
                "note: with what a change of level takes, no choice takes as little as {} of the whole network's time on calibration text; this one \
                 takes {takes:.3}",
                args.target
            ));
        }
        let (fitted, narrowed) = made.fits.levels(&made.ladder);
        if fitted == 0 && narrowed > 0 {
            out::complain(
                "note: no level is re-fitted: too little calibration text, or it gained nothing; hint: more of --calib",
            );
        }
        let origin = Origin {
            learner,
            seed: 1,
            target: args.target,
            text: Path::new(&args.calib).file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default(),
            device: device.to_owned(),
        };
        let control = Control::new(model, (made.ladder.clone(), made.fits.clone()), policy, origin);
        let hash = control::write(&args.out, model, &Manifest::default(), &control)?;
        let bytes = made.plans.iter().map(Plan::bytes_per_token).collect();
        let found = Found { made, bytes, means: made.lessons.means(args.prompt), arms };
        told::tell(args, &found, (learner, device, &hash))
    }

    /// The levels of a file that was written before.
    fn taken(&self, file: &Path, groups: &[Group]) -> Result<Ladder> {
        let shown = file.display();
        let other = crate::model::load(file, &crate::model::LoadOptions::default())?;
        let Some(control) = control::read(&other)? else {
            bail!("--ladder: `{shown}` has no controller; hint: a file that `paring control` wrote for this model")
        };
        match control.ladder.check(self.model, groups) {
            Ok(()) => Ok(control.ladder),
            Err(why) => bail!("--ladder: `{shown}` is of another model: {why}"),
        }
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

/// The line of what is under way.
#[derive(Default)]
struct Shown(Option<(String, ProgressLine)>);

impl Shown {
    fn show(&mut self, stage: Stage) {
        let (words, done, of) = match stage {
            Stage::Branches(t) => (format!("rung {} of {}: branches", t.rung, t.rungs), t.done, t.of),
            Stage::Fits(done, of) => ("levels re-fitted".to_owned(), done, of),
            Stage::Times => return self.clear(),
            Stage::Tokens(done, of) => ("tokens".to_owned(), done, of),
            Stage::Levels(done, of) => ("levels".to_owned(), done, of),
        };
        if self.0.as_ref().is_none_or(|(shown, _)| *shown != words) {
            self.clear();
            self.0 = Some((words.clone(), progress_line(&words)));
        }
        if let Some((_, line)) = &mut self.0 {
            line.show(done as u64, of as u64);
        }
    }

    fn clear(&mut self) {
        if let Some((_, mut line)) = self.0.take() {
            line.clear();
        }
    }
}
