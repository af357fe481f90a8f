//! `paring eval` on questions with free answers: how near what a language model writes comes to what is right.
//!
//! Not here: how questions are read and put (`data::answered`), what is counted (`task::answers`), how answers are written (`eval::answers`).

use super::against::Original;
use super::out::say;
use super::questions::{Asking, begun, change, change_words, file_name, share, share_words};
use super::{Exit, print_json, progress_line};
use crate::args::Eval;
use crate::data::Answered;
use crate::eval::{self, Bounds, Estimate, EvalError, Said};
use crate::exec::{Cancel, CompileOptions, Plan};
use crate::model::{Model, Tokenizer};
use crate::quant::Calibration;
use crate::task::{Counts, Worth};
use crate::words::counted;
use anyhow::Result;
use serde_json::{Value, json};
use std::path::Path;

/// Tokens of an answer unless told otherwise.
const TOKENS: u32 = 64;

/// What a model answered.
struct Answers {
    said: Vec<Said>,
    worth: Vec<Worth>,
    counts: Vec<Counts>,
    bytes: u64,
}

/// Runs the command on the questions in the file at `data`.
///
/// # Errors
/// Flags that are for other data, a model without a vocabulary, what cannot be read or run.
pub fn run(args: &Eval, data: &str, mut model: Model, original: Option<&Original>, how: Calibration) -> Result<Exit> {
    let bounds = Bounds { tokens: args.answer_tokens.unwrap_or(TOKENS) as usize, lines: args.lines };
    let questions = Answered::open(Path::new(data), args.limit)?;
    let asking = Asking::of(args, data, &mut model, original, how)?;
    let Asking { opened, compile, cancel, .. } = &asking;
    let [tokenizer, theirs] = asking.tokenizers()?;
    let answer = |model: &Model, tokenizer: &Tokenizer, what: &str| {
        Answers::of(&questions, model, tokenizer, bounds, compile, cancel, what)
    };
    let found = answer(&model, tokenizer, "evaluate")?;
    let base = original.map(|o| anyhow::Ok((o, answer(&o.model, theirs, "the original")?))).transpose()?;
    let cut = found.said.iter().filter(|s| s.cut).count();
    let begun = begun(&model, tokenizer, cut);
    let ends = if bounds.lines { "" } else { ", a line at most" };
    let convention = format!(
        "{}; no examples, {begun}; the likeliest tokens, {} at most{ends}; exact match and F1 of words as SQuAD's script counts them, ROUGE as \
         rouge_score without stemming, all of the best of the right answers; BLEU of all answers together as sacreBLEU's default",
        Answered::CONVENTION,
        bounds.tokens
    );
    let name = file_name(data);
    if args.json {
        let mut told = json!({
            "model": model.info.name,
            "family": model.info.family.label(),
            "data": name,
            "device": opened.words,
            "form": "answers",
            "questions": questions.all.len(),
            "cut": cut,
            "convention": convention,
            "weight_bytes": found.bytes,
        });
        found.told(&mut told);
        if let Some((original, base)) = &base {
            let mut beside = json!({
                "original": original.model.info.name,
                "family": original.model.info.family.label(),
                "weight_bytes": base.bytes,
                "f1_change": estimate(&base.change(&found, |w| w.f1)),
                "rougeL_change": estimate(&base.change(&found, |w| w.rouge_l)),
                "exact_match_change_points": change(&base.exact(), &found.exact()),
                "same_answers": share(&base.same(&found)),
            });
            base.told(&mut beside);
            told["against"] = beside;
        }
        if args.items {
            let each = questions.all.iter().zip(found.said.iter().zip(&found.worth));
            told["items"] = each
                .map(|(q, (s, w))| {
                    json!({ "said": s.text, "tokens": s.tokens, "answers": q.answers, "exact_match": w.exact, "f1": w.f1, "rouge1": w.rouge1,
                        "rouge2": w.rouge2, "rougeL": w.rouge_l })
                })
                .collect();
        }
        print_json(&told)?;
        return Ok(Exit::Done);
    }
    say!("model       {}  ({})", model.info.name, model.info.family.label())?;
    say!("data        {name}  {}  (free answers)", counted(questions.all.len(), "question"))?;
    say!("convention  {convention}")?;
    say!("device      {}", opened.words)?;
    found.say()?;
    say!("weights     {:.3} MB in the plan", found.bytes as f64 / 1e6)?;
    if let Some((original, base)) = &base {
        say!()?;
        say!("against     {}  ({})", original.model.info.name, original.model.info.family.label())?;
        base.say()?;
        say!("change      exact match {}", change_words(&base.exact(), &found.exact()))?;
        say!("            F1 {}", points(&base.change(&found, |w| w.f1), true))?;
        say!("same        {} of the answers, word for word", share_words(&base.same(&found)))?;
    }
    Ok(Exit::Done)
}

impl Answers {
    fn of(
        questions: &Answered,
        model: &Model,
        tokenizer: &Tokenizer,
        bounds: Bounds,
        compile: &CompileOptions,
        cancel: &Cancel,
        what: &str,
    ) -> Result<Answers> {
        let plan = Plan::of(model, compile)?;
        let mut line = progress_line(what);
        let mut progress = |done, total| line.show(done as u64, total as u64);
        let how = (bounds, model.info.context);
        let said = eval::answers(&plan, tokenizer, &questions.all, how, cancel, &mut progress);
        line.clear();
        let said = match said {
            Err(EvalError::Cancelled(_)) => return Err(super::Cancelled.into()),
            other => other?,
        };
        model.params.unchanged()?;
        let beside = || questions.all.iter().zip(&said);
        let worth = beside().map(|(q, s)| Worth::of(&s.text, &q.answers)).collect();
        let counts = beside().map(|(q, s)| Counts::of(&s.text, &q.answers)).collect();
        Ok(Answers { worth, counts, bytes: plan.weight_bytes(), said })
    }

    fn exact(&self) -> Vec<bool> {
        self.worth.iter().map(|w| w.exact == 1.0).collect()
    }

    fn mean(&self, of: fn(&Worth) -> f64) -> Estimate {
        Estimate::of(&self.worth.iter().map(of).collect::<Vec<_>>())
    }

    /// By how much `other` is better, question by question.
    fn change(&self, other: &Answers, of: fn(&Worth) -> f64) -> Estimate {
        Estimate::of(&self.worth.iter().zip(&other.worth).map(|(a, b)| of(b) - of(a)).collect::<Vec<_>>())
    }

    fn same(&self, other: &Answers) -> Vec<bool> {
        self.said.iter().zip(&other.said).map(|(a, b)| a.text == b.text).collect()
    }

    /// BLEU, 0 to 100; its interval by resampling questions.
    fn bleu(&self) -> Estimate {
        Estimate::resampled(&[self.counts.len()], |drawn| {
            let all = self
                .counts
                .iter()
                .zip(&drawn[0])
                .fold(Counts::default(), |sum, (c, n)| (0..*n).fold(sum, |sum, _| sum.plus(c)));
            all.bleu()
        })
    }

    fn told(&self, to: &mut Value) {
        to["exact_match"] = share(&self.exact());
        to["f1"] = estimate(&self.mean(|w| w.f1));
        to["rouge1"] = estimate(&self.mean(|w| w.rouge1));
        to["rouge2"] = estimate(&self.mean(|w| w.rouge2));
        to["rougeL"] = estimate(&self.mean(|w| w.rouge_l));
        to["bleu"] = estimate(&self.bleu());
        to["tokens"] = self.said.iter().map(|s| s.tokens).sum::<usize>().into();
    }

    fn say(&self) -> Result<()> {
        say!("exact       {}", share_words(&self.exact()))?;
        say!("F1          {}", points(&self.mean(|w| w.f1), false))?;
        say!("ROUGE-1     {}", points(&self.mean(|w| w.rouge1), false))?;
        say!("ROUGE-2     {}", points(&self.mean(|w| w.rouge2), false))?;
        say!("ROUGE-L     {}", points(&self.mean(|w| w.rouge_l), false))?;
        let bleu = self.bleu();
        let range = bleu.range.map_or(String::new(), |(low, high)| format!("  [{low:.2}, {high:.2}]"));
        say!("BLEU        {:.2}{range}", bleu.value)?;
        Ok(())
    }
}

fn estimate(e: &Estimate) -> Value {
    json!({ "value": e.value, "low": e.range.map(|r| r.0), "high": e.range.map(|r| r.1) })
}

/// In hundredths; a change with its sign.
fn points(e: &Estimate, change: bool) -> String {
    let one = |v: f64| if change { format!("{:+.2}", 100.0 * v) } else { format!("{:.2}", 100.0 * v) };
    let range = e.range.map_or(String::new(), |(low, high)| format!("  [{}, {}]", one(low), one(high)));
    format!("{}{range}", one(e.value))
}
