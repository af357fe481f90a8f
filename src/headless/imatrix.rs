//! `paring imatrix`: how much each input column of a layer counts, collected on calibration data and written for rounding, here or by
//! llama.cpp.

use super::out::{self, say};
use super::{Cancelled, Exit, convert, print_json, progress_line, setup};
use crate::args::Imatrix;
use crate::data::{Counted, Dataset, TextOptions};
use crate::exec::Cancel;
use crate::host::compute::{takes_text, working_batch};
use crate::model::{self, Model, formats};
use crate::recover::{self, RepairError};
use crate::session::Opening;
use crate::words::counted;
use anyhow::{Result, bail};
use serde_json::json;
use std::path::Path;

/// Runs the command.
pub fn run(args: &Imatrix) -> Result<Exit> {
    if args.on.device.as_deref().is_some_and(|d| d.starts_with("cuda")) {
        bail!("importances are collected on the CPU; hint: leave --device out");
    }
    // Before anything is computed.
    formats::format("gguf", &args.out.to_string_lossy()).map_err(anyhow::Error::msg)?;
    convert::ready(&args.out, "gguf")?;
    setup::keep_source(&args.model, &args.out)?;
    setup::keep("calibration data is", Path::new(&args.calib), &args.out)?;
    let model = setup::model(&args.model, &args.on, None)?;
    let (data, tokens) = calibration(args, &model)?;
    if let Some(threads) = args.on.threads {
        crate::exec::set_threads(threads);
    }
    out::notes(&model.info.notes);
    let usual = if tokens.is_some() { 1 } else { working_batch(&model) };
    let batch = args.on.batch.unwrap_or(usual).max(1);
    let cancel = super::cancel_on_signals()?;
    let mut found = collect(&model, &data, batch, &cancel)?;
    model.params.unchanged()?;
    let each = tokens.unwrap_or(1);
    (found.datasets, found.chunks, found.chunk_size) = (vec![data.card().name], data.len(), each);
    let hash = found.write(&args.out)?;
    let (tensors, seen) = (found.tensors.len(), data.len() * each);
    if args.json {
        print_json(&json!({
            "path": args.out,
            "hash": hash,
            "tensors": tensors,
            "data": data.card().name,
            "windows": tokens.map(|_| data.len()),
            "tokens": tokens.map(|_| seen),
            "images": if tokens.is_some() { None } else { Some(seen) },
        }))?;
    } else {
        let looked = match tokens {
            Some(_) => format!("{seen} tokens in {}", counted(data.len(), "window")),
            None => counted(seen, "image"),
        };
        say!("{}  {} over {looked}", args.out.display(), counted(tensors, "weight"))?;
    }
    Ok(Exit::Done)
}

/// Importances of the model's columns over all of `data`, `batch` items at a time.
///
/// # Errors
/// What cannot be read or run; cancellation.
pub fn collect(model: &Model, data: &Dataset, batch: usize, cancel: &Cancel) -> Result<model::Imatrix> {
    let mut line = progress_line("collect");
    let found = recover::importance(model, &mut |i| -> Result<_, RepairError> {
        cancel.check()?;
        let (from, to) = (data.len().min(i * batch), data.len().min((i + 1) * batch));
        line.show(from as u64, data.len() as u64);
        Ok(if from < to { Some(data.batch(from..to, &model.info.preprocess)?.0) } else { None })
    });
    line.clear();
    match found {
        Err(RepairError::Cancelled(_)) => Err(Cancelled.into()),
        other => Ok(other?),
    }
}

/// What is looked at, and of text how many tokens a window has.
fn calibration(args: &Imatrix, model: &Model) -> Result<(Dataset, Option<usize>)> {
    if !takes_text(model) {
        return Ok((setup::data(Some(&args.calib), &args.model, model, args.limit)?, None));
    }
    // All tokens of a window are seen.
    let how = Opening { window: args.window, targets: Counted::Next, ..Opening::default() };
    let options = TextOptions { limit: args.limit, ..how.windows(model.info.context) };
    let data = setup::text(Some(&args.calib), args.tokenizer.as_ref().unwrap_or(&args.model), None, &options)?;
    Ok((data, Some(options.targets())))
}
