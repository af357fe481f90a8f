//! `paring eval` on questions with choices: how many a language model gets right by the likelihood of its choices.
//!
//! Not here: how questions are read and put (`data::questions`), how choices are weighed (`eval::choices`).

use super::against::Original;
use super::out::{self, say};
use super::{Exit, print_json, progress_line, setup};
use crate::args::Eval;
use crate::data::Questions;
use crate::eval::{self, EvalError, Weighed, paired, wilson};
use crate::exec::{Cancel, CompileOptions, Plan};
use crate::host::compute::vocabulary;
use crate::model::{Model, Tokenizer};
use crate::quant::Calibration;
use crate::words::counted;
use anyhow::{Context, Error, Result, bail};
use serde_json::{Value, json};
use std::path::Path;

/// Answers of a model to all questions.
struct Answers {
    weighed: Vec<Weighed>,
    /// Which are right, by the sum and by the character.
    right: Vec<bool>,
    by_length: Vec<bool>,
    bytes: u64,
}

/// Runs the command on the questions in the file at `data`.
///
/// # Errors
/// Flags that are for other data, a model without a vocabulary, what cannot be read or run.
pub fn run(args: &Eval, data: &str, mut model: Model, original: Option<&Original>, how: Calibration) -> Result<Exit> {
    if args.text.window.is_some() || args.logits > 0 {
        bail!("questions have no windows and no images; hint: leave --window and --logits out");
    }
    let questions = Questions::open(Path::new(data), args.limit)?;
    let spec = args.text.tokenizer.as_ref().unwrap_or(&args.model);
    let of = |spec: &str| vocabulary(spec, std::iter::once(data)).map_err(Error::msg);
    let (own, theirs) = (of(spec)?, original.map(|o| of(o.spec())).transpose()?.flatten());
    let tokenizer = own.as_ref().or(theirs.as_ref());
    let tokenizer = tokenizer
        .with_context(|| format!("`{spec}` comes without a vocabulary; hint: --tokenizer with the original model"))?;
    let opened = setup::device(&args.on)?;
    setup::calibrate(&mut model, (&args.model, spec), args.calib.as_deref(), how)?;
    let compile = CompileOptions { as_stored: true, ..CompileOptions::on(&opened) };
    out::notes(&model.info.notes);
    let cancel = super::cancel_on_signals()?;
    let answer = |model: &Model, tokenizer: &Tokenizer, what: &str| {
        Answers::of(&questions, model, tokenizer, &compile, &cancel, what)
    };
    let found = answer(&model, tokenizer, "evaluate")?;
    let base = original
        .map(|o| anyhow::Ok((o, answer(&o.model, theirs.as_ref().unwrap_or(tokenizer), "the original")?)))
        .transpose()?;
    let cut = found.weighed.iter().filter(|w| w.cut).count();
    if let (Some(most), 1..) = (model.info.context, cut) {
        let of = counted(cut, "question");
        out::complain(&format!("note: the beginning of {of} was left out: the model was made for {most} tokens"));
    }
    let begun = tokenizer.first().map_or("no token added".to_owned(), |id| format!("prompts begin with token {id}"));
    let convention = format!(
        "{}; no examples, {begun}; by the sum of log-probabilities of a choice's tokens (acc of lm-evaluation-harness), and by that a \
         character (acc_norm)",
        questions.form.convention()
    );
    let name = Path::new(data).file_name().map_or_else(|| data.to_owned(), |n| n.to_string_lossy().into_owned());
    if args.json {
        let mut told = json!({
            "model": model.info.name,
            "family": model.info.family.label(),
            "data": name,
            "device": opened.words,
            "form": questions.form.label(),
            "questions": questions.all.len(),
            "accuracy": share(&found.right),
            "accuracy_norm": share(&found.by_length),
            "chance": questions.chance(),
            "cut": cut,
            "convention": convention,
            "weight_bytes": found.bytes,
        });
        if let Some((original, base)) = &base {
            told["against"] = json!({
                "original": original.model.info.name,
                "family": original.model.info.family.label(),
                "weight_bytes": base.bytes,
                "accuracy": share(&base.right),
                "accuracy_norm": share(&base.by_length),
                "accuracy_change_points": change(&base.right, &found.right),
                "accuracy_norm_change_points": change(&base.by_length, &found.by_length),
                "same_answers": share(&same(base, &found)),
            });
        }
        if args.items {
            let each = questions.all.iter().zip(&found.weighed);
            told["items"] = each
                .map(|(q, w)| {
                    json!({
                        "right": q.right, "answer": w.likeliest(), "answer_norm": w.likeliest_by_length(),
                        "log_probabilities": w.nats, "characters": w.lengths,
                    })
                })
                .collect();
        }
        print_json(&told)?;
        return Ok(Exit::Done);
    }
    say!("model       {}  ({})", model.info.name, model.info.family.label())?;
    say!("data        {name}  {}  ({})", counted(questions.all.len(), "question"), questions.form.label())?;
    say!("convention  {convention}")?;
    say!("device      {}", opened.words)?;
    say!("accuracy    {}", words(&found.right))?;
    say!("normalised  {}", words(&found.by_length))?;
    say!("chance      {:.2} %", 100.0 * questions.chance())?;
    say!("weights     {:.3} MB in the plan", found.bytes as f64 / 1e6)?;
    if let Some((original, base)) = &base {
        say!()?;
        say!("against     {}  ({})", original.model.info.name, original.model.info.family.label())?;
        say!("accuracy    {}", words(&base.right))?;
        say!("change      {}", change_words(&base.right, &found.right))?;
        say!("normalised  {}", words(&base.by_length))?;
        say!("change      {}", change_words(&base.by_length, &found.by_length))?;
        say!("same        {} of the answers", words(&same(base, &found)))?;
    }
    Ok(Exit::Done)
}

impl Answers {
    fn of(
        questions: &Questions,
        model: &Model,
        tokenizer: &Tokenizer,
        compile: &CompileOptions,
        cancel: &Cancel,
        what: &str,
    ) -> Result<Answers> {
        let plan = Plan::of(model, compile)?;
        let mut line = progress_line(what);
        let mut progress = |done, total| line.show(done as u64, total as u64);
        let found = eval::choices(&plan, tokenizer, &questions.all, model.info.context, cancel, &mut progress);
        line.clear();
        let weighed = match found {
            Err(EvalError::Cancelled(_)) => return Err(super::Cancelled.into()),
            other => other?,
        };
        model.params.unchanged()?;
        let right =
            |f: fn(&Weighed) -> usize| questions.all.iter().zip(&weighed).map(|(q, w)| f(w) == q.right).collect();
        let (sum, by_length) = (right(Weighed::likeliest), right(Weighed::likeliest_by_length));
        Ok(Answers { right: sum, by_length, bytes: plan.weight_bytes(), weighed })
    }
}

/// Questions that both answer alike.
fn same(a: &Answers, b: &Answers) -> Vec<bool> {
    a.weighed.iter().zip(&b.weighed).map(|(a, b)| a.likeliest() == b.likeliest()).collect()
}

fn count(right: &[bool]) -> usize {
    right.iter().filter(|r| **r).count()
}

/// A share of questions with Wilson's interval.
fn share(of: &[bool]) -> Value {
    let (k, n) = (count(of), of.len());
    let (low, high) = wilson(k as f64, n as f64);
    json!({ "value": k as f64 / n as f64, "low": low, "high": high, "questions": k })
}

fn words(right: &[bool]) -> String {
    let (k, n) = (count(right), right.len());
    let (low, high) = wilson(k as f64, n as f64);
    format!("{:.2} %  [{:.2}, {:.2}]  ({k} of {n})", 100.0 * k as f64 / n as f64, 100.0 * low, 100.0 * high)
}

/// A change over the same questions, with Newcombe's interval and McNemar's test.
fn change(base: &[bool], new: &[bool]) -> Value {
    let p = paired(base, new);
    json!({ "value": p.diff, "low": p.low, "high": p.high, "gained": p.gained, "lost": p.lost, "mcnemar_p": p.p })
}

fn change_words(base: &[bool], new: &[bool]) -> String {
    let p = paired(base, new);
    let range = format!("[{:+.2}, {:+.2}]", p.low, p.high);
    format!("{:+.2} points  {range}  ({} gained, {} lost, McNemar p {:.3})", p.diff, p.gained, p.lost, p.p)
}
