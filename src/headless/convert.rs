//! `paring convert`: a model in another format, without a session.

use super::out::{self, say};
use super::{Exit, learnt, print_json, rounding, setup};
use crate::args::Convert;
use crate::model::Imatrix;
use crate::model::export::Manifest;
use crate::model::formats::{self, Written};
use crate::prune::{self, Action, Target};
use crate::quant::Calibration;
use crate::words;
use anyhow::Result;
use serde_json::json;
use std::path::Path;

/// Asks before anything is computed whether a model in `format` can be written at `path`.
pub fn ready(path: &Path, format: &str) -> Result<()> {
    let shown = path.display();
    if path.as_os_str() == "-" {
        anyhow::bail!("models are not written to standard output; hint: name a file, `./-` for one that is called so");
    }
    formats::ready(path, format).map_err(|e| {
        use std::io::ErrorKind as Kind;
        let hint = match e.kind() {
            Kind::NotFound => "make it first, or name another",
            Kind::PermissionDenied => "name a place that may be written",
            Kind::DirectoryNotEmpty => "an empty folder, one that such an export was written to, or another name",
            Kind::IsADirectory => "name a file in it; folders are what pytorch and hf are written to",
            _ if formats::FOLDERS.contains(&format) => "name a folder",
            _ => "name a regular file",
        };
        anyhow::anyhow!("cannot write `{shown}`: {e}; hint: {hint}")
    })
}

/// Runs the command; `how` static int8 layers find their ranges.
pub fn run(args: &Convert, how: Calibration) -> Result<Exit> {
    let format = args.format.as_deref().unwrap_or("");
    let format = formats::format(format, &args.out.to_string_lossy()).map_err(anyhow::Error::msg)?;
    // Before anything is calibrated.
    ready(&args.out, format)?;
    setup::keep_source(&args.model, &args.out)?;
    if let Some(imatrix) = &args.imatrix {
        setup::keep("importances are", imatrix, &args.out)?;
    }
    let mut model = setup::model(&args.model, &args.on, args.precision.as_deref())?;
    setup::cache(&mut model, args.kv.as_deref())?;
    let file = std::fs::metadata(&args.model).ok().filter(std::fs::Metadata::is_file).map(|m| m.len());
    let was = file.unwrap_or_else(|| model.params.iter().map(|(_, p)| p.stored_bytes()).sum());
    if let Some(threads) = args.on.threads {
        crate::exec::set_threads(threads);
    }
    let levels = setup::carried(&model, &args.model)?.is_some();
    setup::no_ranges_on_text(&model)?;
    let text = rounding::text(args, &model)?;
    if args.bits.is_some() || text.is_some() {
        formats::check(&model, format, None)?;
    }
    if args.prune.is_some() && !formats::takes_uneven(&model, format) {
        super::out::complain(&format!(
            "note: {format} has one shape for all layers of such a model: a cut that takes unlike parts of them will be refused; hint: safetensors takes any"
        ));
    }
    let cancel = super::cancel_on_signals()?;
    let mut read = model.info.notes.clone();
    if levels {
        read.push("its levels and their controller are left out: they are of these weights; hint: `paring control` makes them anew".into());
    }
    let mut recipe = serde_json::Map::new();
    let decided =
        text.as_ref().map(|text| learnt::decide(args, &mut model, text, &cancel)).transpose()?.unwrap_or_default();
    let mut cut = None;
    if !decided.actions.is_empty() {
        // What is cut may be what the format has no words for.
        let groups = prune::groups(&model.graph);
        let factors = |(_, action): &&(Target, Action)| matches!(action, Action::Factorise { .. });
        let others: Vec<_> = decided.actions.iter().filter(|a| !factors(a)).cloned().collect();
        let made = prune::apply(&model, &groups, &others)?;
        let ranks = prune::ranks(&made.graph, &decided.actions);
        formats::check(&made, format, ranks.keys().next().map(String::as_str))?;
        cut = Some(made);
        recipe.insert("actions".to_owned(), json!(decided.actions));
        recipe.insert("masks".to_owned(), json!(decided.masks));
    }
    read.extend(decided.notes.iter().cloned());
    read.extend(text.as_ref().and_then(|text| text.first_alone()));
    let mut chosen = None;
    if let Some(bits) = args.bits {
        let by = args.imatrix.as_deref().map(Imatrix::open).transpose()?;
        // Bits are those of what is written.
        let on = cut.as_mut().unwrap_or(&mut model);
        let found = rounding::choose((on, &decided.actions), bits, by.as_ref(), text.as_ref(), &cancel)?;
        for (name, precision) in cut.take().map(|m| m.precision.nodes).unwrap_or_default() {
            model.precision.set(name, precision);
        }
        read.extend(found.notes);
        chosen = Some(found.said);
    }
    let (rounded, imatrix) = setup::rounded(&mut model, args.imatrix.as_deref())?;
    read.extend(rounded);
    recipe.extend(imatrix.as_ref().map(|mark| ("imatrix".to_owned(), json!(mark))));
    let mut repaired = None;
    match &text {
        Some(text) => {
            let (notes, said) = learnt::learn(&mut model, &decided, text, &cancel)?;
            read.extend(notes);
            recipe.insert("rounding".to_owned(), said.clone());
            repaired = Some(said);
        }
        None => read.extend(setup::calibrate(&mut model, (&args.model, &args.model), args.calib.as_deref(), how)?),
    }
    out::notes(&read);
    let weights: usize = model.params.iter().map(|(_, p)| p.numel()).sum();
    let recipe = if recipe.is_empty() { serde_json::Value::Null } else { recipe.into() };
    let manifest = Manifest { recipe, original: Some(model.info.hash.clone()), ..Manifest::default() };
    let written = formats::write(&args.out, &model, &manifest, format)?;
    model.params.unchanged()?;
    let bytes = written.bytes(&args.out);
    let mut all = written;
    // Who converts to make a file smaller is told where it is not.
    all.notes.extend((bytes > was + was / 50).then(|| {
        let grown = 100.0 * (bytes as f64 / was.max(1) as f64 - 1.0);
        let [now, was] = [bytes, was].map(words::bytes);
        format!("{now} were written, {grown:.0} % more than the original's {was}")
    }));
    let Written { hash, notes, command } = all.clone();
    out::notes(&all.words());
    let notes: Vec<String> = read.into_iter().chain(notes).collect();
    if args.json {
        let said = json!({ "path": args.out, "format": format, "hash": hash, "bytes": bytes, "weights": weights, "notes": notes, "llama_quantize": command, "imatrix": imatrix,
            "bits": chosen, "rounding": repaired, "cuts": decided.said });
        print_json(&said)?;
    } else {
        say!("{}", args.out.display())?;
    }
    Ok(Exit::Done)
}
