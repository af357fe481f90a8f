//! What `paring eval` on questions of either kind has in common: vocabulary, device, shares of questions with their intervals.
//!
//! Not here: questions with choices (`choices`), with free answers (`answers`).

use super::against::Original;
use super::{out, setup};
use crate::args::Eval;
use crate::eval::{paired, wilson};
use crate::exec::device::Opened;
use crate::exec::{Cancel, CompileOptions};
use crate::host::compute::vocabulary;
use crate::model::{Model, Tokenizer};
use crate::quant::Calibration;
use crate::words::counted;
use anyhow::{Context, Error, Result, bail};
use serde_json::{Value, json};
use std::path::Path;

/// What questions are asked with.
pub(super) struct Asking {
    /// The model's vocabulary, and the original's; one at least.
    own: Option<Tokenizer>,
    theirs: Option<Tokenizer>,
    pub opened: Opened,
    pub compile: CompileOptions,
    pub cancel: Cancel,
}

impl Asking {
    /// # Errors
    /// Flags that are for other data, a model without a vocabulary, a device that is not there.
    pub fn of(
        args: &Eval,
        data: &str,
        model: &mut Model,
        original: Option<&Original>,
        how: Calibration,
    ) -> Result<Asking> {
        if args.text.window.is_some() || args.logits > 0 {
            bail!("questions have no windows and no images; hint: leave --window and --logits out");
        }
        let spec = args.text.tokenizer.as_ref().unwrap_or(&args.model);
        let of = |spec: &str| vocabulary(spec, std::iter::once(data)).map_err(Error::msg);
        let (own, theirs) = (of(spec)?, original.map(|o| of(o.spec())).transpose()?.flatten());
        if own.is_none() && theirs.is_none() {
            bail!("`{spec}` comes without a vocabulary; hint: --tokenizer with the original model");
        }
        let opened = setup::device(&args.on)?;
        setup::calibrate(model, (&args.model, spec), args.calib.as_deref(), how)?;
        let as_llama_cpp = setup::as_other(args.like.as_deref(), &opened)?;
        let compile = CompileOptions { as_llama_cpp, ..CompileOptions::on(&opened).as_stored() };
        out::notes(&model.info.notes);
        Ok(Asking { own, theirs, opened, compile, cancel: super::cancel_on_signals()? })
    }

    /// The vocabularies that the model and the original are asked with: each its own, where it has one.
    ///
    /// # Errors
    /// Neither has one, which [`Asking::of`] refuses.
    pub fn tokenizers(&self) -> Result<[&Tokenizer; 2]> {
        let [own, theirs] = [self.own.as_ref(), self.theirs.as_ref()];
        own.or(theirs).zip(theirs.or(own)).map(|(a, b)| [a, b]).context("no vocabulary")
    }
}

/// What prompts begin with, in words; says how many were cut.
pub(super) fn begun(model: &Model, tokenizer: &Tokenizer, cut: usize) -> String {
    if let (Some(most), 1..) = (model.info.context, cut) {
        let of = counted(cut, "question");
        out::complain(&format!("note: the beginning of {of} was left out: the model was made for {most} tokens"));
    }
    tokenizer.first().map_or("no token added".to_owned(), |id| format!("prompts begin with token {id}"))
}

pub(super) fn file_name(data: &str) -> String {
    Path::new(data).file_name().map_or_else(|| data.to_owned(), |n| n.to_string_lossy().into_owned())
}

fn count(right: &[bool]) -> usize {
    right.iter().filter(|r| **r).count()
}

/// A share of questions with Wilson's interval.
pub(super) fn share(of: &[bool]) -> Value {
    let (k, n) = (count(of), of.len());
    let (low, high) = wilson(k as f64, n as f64);
    json!({ "value": k as f64 / n as f64, "low": low, "high": high, "questions": k })
}

pub(super) fn share_words(right: &[bool]) -> String {
    let (k, n) = (count(right), right.len());
    let (low, high) = wilson(k as f64, n as f64);
    format!("{:.2} %  [{:.2}, {:.2}]  ({k} of {n})", 100.0 * k as f64 / n as f64, 100.0 * low, 100.0 * high)
}

/// A change over the same questions, with Newcombe's interval and McNemar's test.
pub(super) fn change(base: &[bool], new: &[bool]) -> Value {
    let p = paired(base, new);
    json!({ "value": p.diff, "low": p.low, "high": p.high, "gained": p.gained, "lost": p.lost, "mcnemar_p": p.p })
}

pub(super) fn change_words(base: &[bool], new: &[bool]) -> String {
    let p = paired(base, new);
    let range = format!("[{:+.2}, {:+.2}]", p.low, p.high);
    format!("{:+.2} points  {range}  ({} gained, {} lost, McNemar p {:.3})", p.diff, p.gained, p.lost, p.p)
}
