//! `paring heal`: a compressed model is trained towards its original's answers.

use super::out::{self, say};
use super::{Cancelled, Exit, ProgressLine, UsageError, cancel_on_signals, convert, print_json, progress_line, setup};
use crate::args::Heal;
use crate::exec::Cancel;
use crate::model::Model;
use crate::model::export::Manifest;
use crate::model::formats;
use crate::prune::spread;
use crate::train::{self, HealUpdate, Healed, Healing, Keep, Length, Look, Objective, Optimiser, Patient, TrainError};
use anyhow::{Error, Result, bail};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Images that judge, as a part of all, and at most.
const HELD_BACK: (usize, usize) = (10, 1000);

/// Runs the command.
pub fn run(args: &Heal) -> Result<Exit> {
    let length: Length = args.length.parse().map_err(|e: String| UsageError::of("--for", e))?;
    let format = formats::format("", &args.out.to_string_lossy()).map_err(Error::msg)?;
    // Before anything is trained.
    convert::ready(&args.out, format)?;
    for (what, source) in
        [("the model is", &args.model), ("the original is", &args.from), ("calibration data is", &args.calib)]
    {
        setup::keep(what, Path::new(source), &args.out)?;
    }
    let student = setup::model(&args.model, &args.on, None)?;
    let teacher = setup::model(&args.from, &args.on, None)?;
    if teacher.info.classes != student.info.classes {
        let (own, from) = (student.info.classes, teacher.info.classes);
        bail!(
            "--from: `{}` tells {from} classes and `{}` {own}; hint: the network that was compressed",
            args.from,
            args.model
        );
    }
    train::can_heal(&student).map_err(Error::msg)?;
    if let Some(threads) = args.on.threads {
        crate::exec::set_threads(threads);
    }
    let images = setup::data(Some(&args.calib), &args.model, &student, args.calib_limit)?;
    let judges = match &args.judge {
        Some(judge) => setup::data(Some(judge), &args.model, &student, 0)?.take(HELD_BACK.1),
        None => images.clone(),
    };
    let (fit, held_back): (Vec<usize>, Vec<usize>) = match &args.judge {
        Some(_) => ((0..images.len()).collect(), (0..judges.len()).collect()),
        None => {
            let back = spread(images.len(), (images.len() / HELD_BACK.0).clamp(1, HELD_BACK.1), args.seed);
            ((0..images.len()).filter(|i| back.binary_search(i).is_err()).collect(), back)
        }
    };
    let masked = train::masked(&student);
    let patient = Patient {
        student: &student,
        teacher: &teacher,
        masked: &masked,
        images: &images,
        fit: &fit,
        judges: &judges,
        held_back: &held_back,
    };
    let cancel = cancel_on_signals()?;
    let began = Instant::now();
    let asked = recipe(args, &student);
    let steps = lost(train::steps(patient, &asked, length, &cancel))?;
    let how = asked.lasting(steps);
    let place = args.checkpoint.clone().unwrap_or_else(|| beside(&args.out));
    let mut shown = Shown { line: progress_line("heal"), objective: how.objective, first: None };
    // A signal leaves the checkpoint, with which the same command goes on.
    let keep = Keep { path: &place, every: args.checkpoint_every.into() };
    let healed = train::heal(patient, &how, Some(keep), &Cancel::default(), &cancel, &mut |u| shown.update(u));
    shown.line.clear();
    let healed = match lost(healed) {
        Err(e) if e.is::<Cancelled>() && place.is_file() => {
            out::complain(&format!(
                "note: it can go on from `{}` with the same command and --for '{} steps'",
                place.display(),
                how.steps
            ));
            return Err(e);
        }
        other => other?,
    };
    for model in [&student, &teacher] {
        model.params.unchanged()?;
    }
    let manifest = manifest(args, &student, &teacher, &healed);
    let written = formats::write(&args.out, &healed.model, &manifest, format)?;
    drop(std::fs::remove_file(&place));
    let hash = written.hash.clone();
    let notes: Vec<String> = student.info.notes.iter().cloned().chain(written.words()).collect();
    out::notes(&notes);
    let (first, best) = (healed.course.looks[0], healed.course.best);
    if args.json {
        print_json(
            &json!({ "path": args.out, "hash": hash, "steps": how.steps, "healing": healed.course.healing, "before": first, "after": best,
            "looks": healed.course.looks, "held_back": held_back.len(), "seconds": began.elapsed().as_secs_f64(), "notes": notes }),
        )?;
    } else {
        say!("{}", args.out.display())?;
        say!(
            "held back  {} images, on which {}",
            held_back.len(),
            if best.step == 0 { "nothing got better: the model is as it was" } else { "was judged" }
        )?;
        say!("           {:<13}  the original's class", how.objective.loss())?;
        say!("before     {}", row(&first))?;
        say!("after      {}  step {} of {}", row(&best), best.step, how.steps)?;
    }
    Ok(Exit::Done)
}

fn row(look: &Look) -> String {
    format!("{:>13.4}  {:>18.2} %", look.loss, 100.0 * look.agreement)
}

fn lost<T>(made: Result<T, TrainError>) -> Result<T> {
    made.map_err(|e| match e {
        TrainError::Cancelled(_) => Cancelled.into(),
        e => e.into(),
    })
}

/// Where a healing stands, beside what it will write.
fn beside(out: &Path) -> PathBuf {
    let mut name = out.file_name().unwrap_or_default().to_owned();
    name.push(".healing");
    out.with_file_name(name)
}

/// The recipe that was asked for, but for its steps.
fn recipe(args: &Heal, student: &Model) -> Healing {
    let mut how = train::usual(student, 1, args.seed);
    how.objective = match args.objective.as_str() {
        "labels" => Objective::Labels,
        "both" => Objective::Both,
        _ => Objective::Distill,
    };
    match args.optimiser.as_deref() {
        Some("sgd") => how = how.with(Optimiser::Sgd),
        Some("adamw") => how = how.with(Optimiser::AdamW),
        _ => {}
    }
    how.rate = args.rate.unwrap_or(how.rate);
    how.batch = args.on.batch.unwrap_or(how.batch);
    how.features = args.features.unwrap_or(how.features);
    how.repeats = args.repeats.unwrap_or(how.repeats).max(1);
    how.stored_norms = !args.batch_norms;
    how.augment = !args.plain;
    how.mixup = !args.plain && !args.no_mixup;
    how
}

fn manifest(args: &Heal, student: &Model, teacher: &Model, healed: &Healed) -> Manifest {
    let name = |path: &str| Path::new(path).file_name().map(|n| n.to_string_lossy().into_owned());
    let recipe = json!({ "healing": healed.course.healing, "model": student.info.hash, "images": name(&args.calib) });
    let figures = json!({ "healing": { "before": healed.course.looks[0], "after": healed.course.best } });
    Manifest { recipe, figures, original: Some(teacher.info.hash.clone()), ..Manifest::default() }
}

/// What is told while it goes on.
struct Shown {
    line: ProgressLine,
    objective: Objective,
    /// The held-back loss before any step.
    first: Option<f64>,
}

impl Shown {
    fn update(&mut self, update: HealUpdate) {
        match update {
            HealUpdate::Step { step, steps, .. } => self.line.show(step.into(), steps.into()),
            // What layers do is looked at in a session.
            HealUpdate::Layers { .. } => {}
            HealUpdate::Warned(words) => self.line.say(&format!("note: {words}")),
            HealUpdate::Resumed { step, .. } => self.line.say(&format!("going on after step {step}")),
            HealUpdate::Judged(look) => {
                let first = *self.first.get_or_insert(look.loss);
                let words = format!(
                    "step {:>6}  held back: {} {:.4} of {first:.4} at first, {:.2} % of the original's classes",
                    look.step,
                    self.objective.loss(),
                    look.loss,
                    100.0 * look.agreement
                );
                self.line.say(&words);
            }
        }
    }
}
