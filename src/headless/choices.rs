//! `paring eval` on questions with choices: how many a language model gets right by the likelihood of its choices.
//!
//! Not here: how questions are read and put (`data::questions`), how choices are weighed (`eval::choices`).

use super::against::Original;
use super::out::say;
use super::questions::{Asking, begun, change, change_words, file_name, share, share_words};
use super::{Exit, print_json, progress_line};
use crate::args::Eval;
use crate::data::Questions;
use crate::eval::{self, EvalError, Weighed};
use crate::exec::{Cancel, CompileOptions, Plan};
use crate::model::{Model, Tokenizer};
use crate::quant::Calibration;
use crate::words::counted;
use anyhow::Result;
use serde_json::json;
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
    let questions = Questions::open(Path::new(data), args.limit)?;
    let asking = Asking::of(args, data, &mut model, original, how)?;
    let Asking { opened, compile, cancel, .. } = &asking;
    let [tokenizer, theirs] = asking.tokenizers()?;
    let answer = |model: &Model, tokenizer: &Tokenizer, what: &str| {
        Answers::of(&questions, model, tokenizer, compile, cancel, what)
    };
    let found = answer(&model, tokenizer, "evaluate")?;
    let base = original.map(|o| anyhow::Ok((o, answer(&o.model, theirs, "the original")?))).transpose()?;
    let cut = found.weighed.iter().filter(|w| w.cut).count();
    let begun = begun(&model, tokenizer, cut);
    let convention = format!(
        "{}; no examples, {begun}; by the sum of log-probabilities of a choice's tokens (acc of lm-evaluation-harness), and by that a \
         character (acc_norm)",
        questions.form.convention()
    );
    let name = file_name(data);
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
    say!("accuracy    {}", share_words(&found.right))?;
    say!("normalised  {}", share_words(&found.by_length))?;
    say!("chance      {:.2} %", 100.0 * questions.chance())?;
    say!("weights     {:.3} MB in the plan", found.bytes as f64 / 1e6)?;
    if let Some((original, base)) = &base {
        say!()?;
        say!("against     {}  ({})", original.model.info.name, original.model.info.family.label())?;
        say!("accuracy    {}", share_words(&base.right))?;
        say!("change      {}", change_words(&base.right, &found.right))?;
        say!("normalised  {}", share_words(&base.by_length))?;
        say!("change      {}", change_words(&base.by_length, &found.by_length))?;
        say!("same        {} of the answers", share_words(&same(base, &found)))?;
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
