//! `paring eval`: accuracy of a checkpoint, or of what `run` and `export` wrote; how well a language model foretells text or answers
//! questions (`choices`).

use super::against::{Beside, Original};
use super::early::{self, Stopped};
use super::out::{self, say};
use super::{Exit, UsageError, answers, choices, print_json, progress_line, setup};
use crate::args::Eval;
use crate::config::text::{clean, left};
use crate::data::{Answered, Dataset, Questions, TextOptions};
use crate::eval;
use crate::exec::{Cancel, CompileOptions, Plan};
use crate::host::compute::{classifies_text, takes_text};
use crate::model::{ImatrixMark, Model};
use crate::quant::Calibration;
use crate::session::Opening;
use crate::task::{NEXT_TOKEN, PERPLEXITY, Scored};
use crate::words::counted;
use anyhow::{Result, bail};
use serde_json::json;
use std::path::Path;

/// Images a batch unless told otherwise.
const BATCH: usize = 128;
/// Texts of one length a batch.
const TEXTS: usize = 16;

/// Runs the command; `how` static int8 layers find their ranges.
pub fn run(args: &Eval, how: Calibration) -> Result<Exit> {
    let mut model = setup::model(&args.model, &args.on, args.precision.as_deref())?;
    if args.like.is_some() && !takes_text(&model) {
        bail!("--as is for language models; hint: leave it out for a classifier");
    }
    setup::cache(&mut model, args.kv.as_deref().or(args.like.as_deref().map(|_| "f16")))?;
    if let Some(pattern) = &args.sparsity {
        model = setup::sparse(model, pattern)?;
    }
    if let Some(rank) = &args.factors {
        model = setup::factored(model, rank)?;
    }
    if args.until_clear.is_some() && takes_text(&model) {
        bail!(
            "--until-clear is for classifiers, whose answers are right or wrong; hint: leave it out for a language model"
        );
    }
    let (rounded, imatrix) = setup::rounded(&mut model, args.imatrix.as_deref())?;
    let open = |spec: &str| Original::open(spec, (&args.model, &args.on), &model);
    let original = args.against.as_deref().map(open).transpose()?;
    if let Some(data) = args.data.as_deref().filter(|_| takes_text(&model))
        && Questions::are_in(Path::new(data))?
    {
        if args.answer_tokens.is_some() || args.lines {
            bail!("--answer-tokens and --lines are for questions with free answers; hint: these have choices");
        }
        return choices::run(args, data, model, original.as_ref(), how);
    }
    if let Some(data) = args.data.as_deref().filter(|_| takes_text(&model))
        && Answered::are_in(Path::new(data))?
    {
        return answers::run(args, data, model, original.as_ref(), how);
    }
    if args.answer_tokens.is_some() || args.lines {
        bail!("--answer-tokens and --lines are for questions with free answers; hint: leave them out for other data");
    }
    if args.items {
        bail!("--items is for questions; hint: leave it out for other data");
    }
    let text = takes_text(&model).then(|| text_options(args, model.info.context)).transpose()?;
    let (spec, tokenizer) = (args.data.as_deref(), args.text.tokenizer.as_ref().unwrap_or(&args.model));
    let texts = classifies_text(&model);
    let data = match &text {
        Some(options) => setup::text(spec, tokenizer, original.as_ref().map(Original::spec), options)?,
        None if texts => setup::classed(spec, tokenizer, &model, args.text.window, args.limit)?,
        None => setup::data(spec, &args.model, &model, args.limit)?,
    };
    let opened = setup::device(&args.on)?;
    let ranges = setup::calibrate(&mut model, (&args.model, tokenizer), args.calib.as_deref(), how)?;
    let compile = CompileOptions {
        as_stored: text.is_some(),
        as_llama_cpp: setup::as_other(args.like.as_deref(), &opened)?,
        ..CompileOptions::on(&opened)
    };
    let plan = Plan::of(&model, &compile)?;
    let base = original.as_ref().map(|o| Plan::of(&o.model, &compile)).transpose()?.zip(original.as_ref());
    out::notes(model.info.notes.iter().chain(&rounded));
    // The outputs of one window of a large vocabulary have a hundred megabytes.
    let usual = match () {
        () if text.is_some() => 1,
        () if texts => TEXTS,
        () => BATCH,
    };
    let batch = args.on.batch.unwrap_or(usual).max(1);
    let mut line = progress_line("evaluate");
    let mut progress = |done, total| line.show(done as u64, total as u64);
    let cancel = super::cancel_on_signals()?;
    let prep = &model.info.preprocess;
    let run = match (&base, args.until_clear) {
        (Some((plan_of, original)), Some(allowed)) => {
            let until = early::until(allowed);
            eval::until_clear((plan_of, &plan), &data, prep, batch, &until, &cancel, &mut progress).map(|early| {
                let eval::Early { against: found, test, verdict } = early;
                let stopped = Some(Stopped { test, verdict });
                (found.model.clone(), Some(Beside { found, original, plan: plan_of, stopped }))
            })
        }
        (Some((plan_of, original)), None) => eval::against(plan_of, &plan, &data, prep, batch, &cancel, &mut progress)
            .map(|found| (found.model.clone(), Some(Beside { found, original, plan: plan_of, stopped: None }))),
        (None, _) => eval::evaluate(&plan, &data, prep, batch, &cancel, &mut progress).map(|run| (run, None)),
    };
    line.clear();
    let (run, beside) = match run {
        Err(eval::EvalError::Cancelled(_)) => return Err(super::Cancelled.into()),
        other => other?,
    };
    model.params.unchanged()?;
    if let Some(original) = &original {
        original.model.params.unchanged()?;
    }
    let told = Told {
        args,
        model: &model,
        plan: &plan,
        data: &data,
        device: &opened.words,
        run: &run,
        imatrix: imatrix.as_ref(),
        beside: beside.as_ref(),
    };
    match &text {
        Some(options) => told.language(options),
        None => told.classes(ranges.as_deref(), (batch, &cancel)),
    }
}

/// How text becomes windows, as the flags say.
fn text_options(args: &Eval, context: Option<usize>) -> Result<TextOptions> {
    if args.logits > 0 {
        bail!("--logits is for classifiers; hint: leave it out for a language model");
    }
    let targets = setup::targets(&args.text.targets).map_err(UsageError)?;
    let how = Opening { window: args.text.window, targets, ..Opening::default() };
    Ok(TextOptions { limit: args.limit, ..how.windows(context) })
}

/// What a pass found, to be told.
struct Told<'a> {
    args: &'a Eval,
    model: &'a Model,
    plan: &'a Plan,
    data: &'a Dataset,
    device: &'a str,
    run: &'a Scored,
    imatrix: Option<&'a ImatrixMark>,
    beside: Option<&'a Beside<'a>>,
}

impl Told<'_> {
    /// What a classifier scores one by one.
    fn item(&self) -> &'static str {
        if classifies_text(self.model) { "text" } else { "image" }
    }

    /// Tells what a classifier scores; `ranges` is how static int8 layers found theirs.
    fn classes(&self, ranges: Option<&str>, (batch, cancel): (usize, &Cancel)) -> Result<Exit> {
        let Told { model, plan, data, .. } = *self;
        let (m, metric) = (&self.run.metrics, data.task().metric(&model.info));
        out::notes(self.run.notes.iter().chain(&m.guess_warning()));
        if self.args.json {
            let mut out = json!({
                "model": model.info.name,
                "family": model.info.family.label(),
                "data": data.card().name,
                "device": self.device,
                "n": m.n,
                "metric": metric.name,
                "score": m.score,
                "correct": m.correct(),
                "top1": m.correct().map(|_| m.score),
                "top5": m.other("top-5"),
                "loss": m.loss,
                "weight_bytes": plan.weight_bytes(),
                "ranges": ranges,
                "imatrix": self.imatrix,
                "per_class": m.per_class(),
            });
            if let Some(beside) = self.beside {
                out["against"] = beside.classes(self.item());
            }
            if self.args.logits > 0 {
                let few = data.pick(&(0..self.args.logits.min(data.len())).collect::<Vec<_>>());
                let logits = eval::logits(plan, &few, &model.info.preprocess, batch, cancel)?;
                out["logits"] = json!(logits.to_vec2::<f32>()?);
            }
            print_json(&out)?;
            return Ok(Exit::Done);
        }
        say!("model     {}  ({})", model.info.name, model.info.family.label())?;
        let part = self.beside.and_then(|b| b.stopped.as_ref()).filter(|s| s.is_part());
        let items = part.map_or_else(|| counted(m.n, self.item()), |s| s.items(self.item()));
        say!("data      {}  {items}", data.card().name)?;
        say!("device    {}", self.device)?;
        let counts = m.correct().map_or(String::new(), |correct| format!("  ({correct} of {})", m.n));
        say!("{}  {}{counts}", left(&metric.name, 8), metric.value_words(m.score))?;
        for r in &m.others {
            say!("{}  {:.2} {}", left(&r.name, 8), r.score * r.scale, r.unit)?;
        }
        say!("loss      {:.5}", m.loss)?;
        say!("weights   {:.3} MB stored", plan.weight_bytes() as f64 / 1e6)?;
        if let Some(beside) = self.beside {
            beside.tell_classes(self.item())?;
        }
        if m.per_class().is_empty() {
            return Ok(Exit::Done);
        }
        say!()?;
        say!("class                 correct     of")?;
        for (c, (right, total)) in m.per_class().iter().enumerate() {
            let name = data.class_names().get(c).cloned().unwrap_or_else(|| c.to_string());
            say!("{}  {right:>7}  {total:>5}", left(&clean(&name), 20))?;
        }
        Ok(Exit::Done)
    }

    /// Tells what a language model scores.
    fn language(&self, options: &TextOptions) -> Result<Exit> {
        let Told { model, plan, data, device, .. } = *self;
        let beyond = model.info.context.filter(|most| options.targets() > *most).map(|most| {
            format!("windows of {} tokens are longer than the {most} that the model was made for", options.window)
        });
        out::notes(self.run.notes.iter().chain(&beyond));
        let like = self.args.like.as_ref().map_or(String::new(), |who| format!(", as {who} computes on a CPU"));
        let (m, convention) = (&self.run.metrics, options.convention(data.joined()) + &like);
        let tokens = m.n * options.targets();
        if self.args.json {
            let mut out = json!({
                "model": model.info.name,
                "family": model.info.family.label(),
                "data": data.card().name,
                "device": device,
                "windows": m.n,
                "tokens": tokens,
                "nats_per_token": m.loss,
                "standard_error": m.standard_error,
                "perplexity": m.other(PERPLEXITY),
                "next_token_accuracy": m.other(NEXT_TOKEN),
                "convention": convention,
                "imatrix": self.imatrix,
                "weight_bytes": plan.weight_bytes(),
            });
            if let Some(beside) = self.beside {
                out["against"] = beside.language();
            }
            print_json(&out)?;
            return Ok(Exit::Done);
        }
        say!("model       {}  ({})", model.info.name, model.info.family.label())?;
        say!("data        {}  {}, {tokens} tokens", data.card().name, counted(m.n, "window"))?;
        say!("convention  {convention}")?;
        say!("device      {device}")?;
        let error = m.standard_error.map_or("–".to_owned(), |e| format!("{e:.5}"));
        say!("nats/token  {:.5}  (standard error over windows {error})", m.loss)?;
        say!("perplexity  {}", m.other(PERPLEXITY).map_or("–".to_owned(), |p| format!("{p:.4}")))?;
        say!("next token  {:.2} % right", 100.0 * m.other(NEXT_TOKEN).unwrap_or_default())?;
        say!("weights     {:.3} MB in the plan", plan.weight_bytes() as f64 / 1e6)?;
        if let Some(beside) = self.beside {
            beside.tell_language()?;
        }
        Ok(Exit::Done)
    }
}
