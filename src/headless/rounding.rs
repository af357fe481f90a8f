//! What `convert` decides for a language model's weights: a format of GGML's for each of them, so that all together have so many bits a weight
//! (`--bits`). And the calibration text that it is made by.

use super::{Cancelled, imatrix, progress_line, setup};
use crate::args::Convert;
use crate::data::{Counted, Dataset, TextOptions};
use crate::exec::Cancel;
use crate::graph::ggml::Block;
use crate::graph::{Graph, Node, ParamRole};
use crate::host::compute::{bind, takes_text};
use crate::model::{Imatrix, Model};
use crate::plan::{Chosen, Weight, allocate};
use crate::profile::{self, ProfileError, SensOptions, SensTarget, SensUpdate};
use crate::prune::{Action, Target};
use crate::quant::Precision;
use crate::session::{Opening, place};
use crate::words::{self, counted, counted_as};
use anyhow::{Result, bail};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The format that tells what an error of a weight costs: any rows of whole blocks can be in it, and it is coarse enough to be heard.
const PROBE: Block = Block::Q4_0;

/// Calibration text of a language model.
pub struct Text {
    pub data: Dataset,
    options: TextOptions,
}

impl Text {
    /// What to think of a divergence on windows that judge, where only the first windows of a text were taken: nobody knows where documents end.
    pub fn first_alone(&self) -> Option<String> {
        let n = self.options.limit;
        (n > 0 && self.data.len() == n).then(|| {
            format!(
                "the first {} of {} alone: those that judge follow right on those that were fitted on, and often are of the same document, so that other \
                 text may show more; hint: --limit 0 takes all",
                counted(n, "window"),
                self.data.card().name
            )
        })
    }
}

/// Opens the text that `--calib` names, where the model takes text.
///
/// # Errors
/// What cannot be opened; a model of another kind, where `--bits` is given.
pub fn text(args: &Convert, model: &Model) -> Result<Option<Text>> {
    if !takes_text(model) {
        let asked = [
            ("--bits", args.bits.is_some()),
            ("--prune", args.prune.is_some()),
            ("--sparsity", args.sparsity.is_some()),
            ("--factors", args.factors.is_some()),
        ];
        if let Some((flag, _)) = asked.into_iter().find(|(_, given)| *given) {
            bail!(
                "{flag} is for language models; hint: --precision int8 or w4, or a session with a budget (`paring run`)"
            );
        }
        return Ok(None);
    }
    let Some(calib) = &args.calib else { return Ok(None) };
    // All tokens of a window are seen.
    let how = Opening { window: args.window, targets: Counted::Next, ..Opening::default() };
    let options = TextOptions { limit: args.limit, ..how.windows(model.info.context) };
    let data = setup::text(Some(calib), args.tokenizer.as_ref().unwrap_or(&args.model), None, &options)?;
    Ok(Some(Text { data, options }))
}

/// Work on `model` with its graph bound to the text's windows; it is of any length again afterwards.
pub fn bound<T>(model: &mut Model, text: &Text, work: impl FnOnce(&mut Model) -> Result<T>) -> Result<T> {
    bind(model, &text.options);
    let done = work(model);
    model.graph = Arc::new(Graph::clone(&model.graph).freed());
    done
}

/// What errors of weights cost, by the layer's name: the divergence that rounding it to [`PROBE`] alone makes of the whole network, and the
/// windows that say so.
struct Costs {
    kl: HashMap<String, f64>,
    windows: usize,
}

fn costs(model: &mut Model, text: &Text, cancel: &Cancel) -> Result<Costs> {
    let cache = place::cache().ok();
    let mut line = progress_line("sensitivity");
    let mut windows = 0;
    let found = bound(model, text, |model| {
        let options = SensOptions {
            precisions: vec![Precision::Block(PROBE)],
            blocks: false,
            batch: 1,
            ..SensOptions::default()
        };
        let found =
            profile::sensitivity(model, &[], &text.data, &options, cache.as_deref(), cancel, &mut |u| match u {
                SensUpdate::Base { images, .. } => windows = images,
                SensUpdate::Progress { done, total, .. } => line.show(done as u64, total as u64),
                SensUpdate::Note(text) => line.say(&format!("note: {text}")),
                SensUpdate::Curve(_) => {}
            });
        match found {
            Err(ProfileError::Cancelled(_)) => Err(Cancelled.into()),
            other => Ok(other?),
        }
    });
    line.clear();
    let kl = found?.curves.into_iter().filter_map(|c| match c.target {
        SensTarget::Layer(name, _) => Some((name, c.points.first()?.kl)),
        _ => None,
    });
    Ok(Costs { kl: kl.collect(), windows })
}

/// What `--bits` came to.
pub struct Bits {
    pub notes: Vec<String>,
    pub said: Value,
}

/// Chooses a format for each weight of `model`, which is cut and masked by `actions` already, so that all it stores has at most `bits` bits
/// a weight. What has zeros gets a format that has one.
///
/// # Errors
/// What cannot be measured; fewer bits than the smallest formats take.
pub fn choose(
    (model, actions): (&mut Model, &[(Target, Action)]),
    bits: f64,
    by: Option<&Imatrix>,
    text: Option<&Text>,
    cancel: &Cancel,
) -> Result<Bits> {
    let values: u64 = model.params.iter().map(|(_, p)| p.numel() as u64).sum();
    let stored: u64 = model.params.iter().map(|(_, p)| p.stored_bytes()).sum();
    let sizes = profile::sizes(model, &Block::ALL)?;
    let others = stored - sizes.iter().map(|r| r.formats[0].bytes).sum::<u64>();
    let room = ((bits * values as f64 / 8.0) as u64).saturating_sub(others);
    let masked = |r: &profile::Roundings| {
        actions.iter().any(|(t, a)| t.name() == r.layer && matches!(a, Action::Sparsify { .. }))
    };
    let offered = |mut r: profile::Roundings| {
        if masked(&r) {
            r.formats.retain(|f| f.format.is_none_or(Block::has_zero));
        }
        if unfit(&r) {
            r.formats[0].bytes = 2 * r.values;
        }
        r
    };
    // Shapes alone tell what fits, before anything is measured.
    let least = |r: profile::Roundings| offered(r).formats.iter().map(|f| f.bytes).min().unwrap_or(0);
    let least = sizes.into_iter().map(least).sum::<u64>();
    let too_few = || {
        anyhow::anyhow!(
            "{bits} bits a weight are fewer than the smallest formats take; hint: --bits {:.2} or more",
            (800.0 * (others + least) as f64 / values as f64).ceil() / 100.0
        )
    };
    if least > room {
        return Err(too_few());
    }
    let costs = text.map(|text| costs(model, text, cancel)).transpose()?;
    let own;
    let by = match (by, text) {
        (None, Some(text)) => {
            own = imatrix::collect(model, &text.data, 1, cancel)?;
            Some(&own)
        }
        (by, _) => by,
    };
    let mut line = progress_line("rounding errors");
    let found = profile::roundings(model, &Block::ALL, by, cancel, &mut |done, all| line.show(done as u64, all as u64));
    line.clear();
    let found = match found {
        Err(ProfileError::Cancelled(_)) => return Err(Cancelled.into()),
        other => other?,
    };
    let weigh = |r: profile::Roundings| {
        let error = r.formats.iter().find(|f| f.format == Some(PROBE)).map_or(0.0, |f| f.error);
        let measured = costs.as_ref().and_then(|c| c.kl.get(&r.layer)).filter(|_| error > 0.0);
        Weight { cost: measured.map_or(1.0, |kl| kl / error), roundings: r }
    };
    let mut halved = 0;
    for r in found.iter().filter(|r| unfit(r)) {
        set(model, &r.layer, Precision::F16);
        halved += 1;
    }
    let mut weights: Vec<Weight> = found.into_iter().map(offered).map(weigh).collect();
    if costs.is_some() {
        // What is stored in the probe's format already, or takes no blocks, was not asked: as the others on the whole.
        let probed = |w: &Weight| w.roundings.formats.iter().any(|f| f.format == Some(PROBE) && f.error > 0.0);
        let known: Vec<f64> = weights.iter().filter(|w| probed(w)).map(|w| w.cost).collect();
        let mean = known.iter().sum::<f64>() / known.len().max(1) as f64;
        weights.iter_mut().filter(|w| !probed(w)).for_each(|w| w.cost = mean);
    }
    let Some(chosen) = allocate(&weights, room) else { return Err(too_few()) };
    for (w, &i) in weights.iter().zip(&chosen.formats) {
        if let Some(block) = w.roundings.formats[i].format {
            set(model, &w.roundings.layer, Precision::Block(block));
        }
    }
    let mut said = told(&weights, &chosen, (others, values), costs.as_ref().map(|c| c.windows), by.is_some());
    if halved > 0 {
        let n = counted_as(halved, "weight has", "weights have");
        said.notes.push(format!("{n} rows that are whole blocks of no format: f16 there"));
    }
    Ok(said)
}

/// Whether its rows are whole blocks of no format: they are halved, as `--precision` does with them.
fn unfit(r: &profile::Roundings) -> bool {
    r.formats.len() == 1 && r.formats[0].bytes > 2 * r.values
}

/// Whoever shares the layer's weight has it in `precision` too.
fn set(model: &mut Model, layer: &str, precision: Precision) {
    let layers = model.graph.clone();
    let weight = layers.by_name(layer).and_then(|id| layers.node(id).param(ParamRole::Weight));
    let shared = |n: &&Node| n.op.is_conv_or_linear() && n.param(ParamRole::Weight) == weight;
    for node in layers.live().map(|(_, n)| n).filter(shared) {
        model.precision.set(node.name.clone(), precision);
    }
}

/// What was chosen, in words and for programs.
fn told(
    weights: &[Weight],
    chosen: &Chosen,
    (others, values): (u64, u64),
    windows: Option<usize>,
    by_importance: bool,
) -> Bits {
    let label = |f: Option<Block>| f.map_or_else(|| "as it is".to_owned(), |b| Precision::Block(b).label().to_owned());
    let mut kinds: BTreeMap<String, (usize, u64)> = BTreeMap::new();
    for (w, &i) in weights.iter().zip(&chosen.formats) {
        let f = w.roundings.formats[i];
        let kind = kinds.entry(label(f.format)).or_default();
        (kind.0, kind.1) = (kind.0 + 1, kind.1 + f.bytes);
    }
    let kinds: Vec<String> =
        kinds.into_iter().map(|(label, (n, bytes))| format!("{n} {label} ({})", words::bytes(bytes))).collect();
    let bits = 8.0 * (chosen.bytes + others) as f64 / values.max(1) as f64;
    let rounded: f64 = weights.iter().zip(&chosen.formats).map(|(w, &i)| w.roundings.formats[i].error).sum::<f64>();
    let mut notes = vec![format!("{bits:.3} bits a weight: {}", kinds.join(", "))];
    notes.push(match windows {
        Some(n) => format!(
            "chosen by the divergence that each weight's rounding to {} makes on {} of calibration text; adding up, {:.4} nats a token (no \
             choice of these formats adds up to less than {:.4}), before rounding is learnt",
            Precision::Block(PROBE).label(),
            counted(n, "window"),
            chosen.harm,
            chosen.least
        ),
        None => format!(
            "chosen by the squared errors of weights{}, relative to each weight's own and all layers counting alike: {:.4} on average; what \
             that costs in nats is not known (--calib measures it)",
            if by_importance { ", columns by importance" } else { "" },
            rounded / weights.len().max(1) as f64
        ),
    });
    let n = weights.iter().filter(|w| w.roundings.looked_at < 1.0).count();
    if n > 0 {
        notes.push(format!(
            "{} {} looked at by {:.1} million values of evenly spread rows",
            counted(n, "weight"),
            if n == 1 { "was" } else { "were" },
            profile::LOOKED_AT as f64 / 1e6
        ));
    }
    let each = weights.iter().zip(&chosen.formats).map(|(w, &i)| {
        let f = w.roundings.formats[i];
        json!({ "layer": w.roundings.layer, "format": f.format.map(|b| Precision::Block(b).label()), "bytes": f.bytes, "error": f.error,
            "cost": windows.map(|_| w.cost) })
    });
    let said = json!({ "bits": bits, "harm": windows.map(|_| chosen.harm), "least": windows.map(|_| chosen.least), "layers": each.collect::<Vec<_>>() });
    Bits { notes, said }
}
