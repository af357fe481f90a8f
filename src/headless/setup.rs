//! From flags to an opened model, data set and device, shared by every command that computes.

use super::UsageError;
use super::out;
use crate::args::On;
use crate::control::{self, Asked, Control};
use crate::data::{self, ClassedOptions, Counted, Dataset, TextOptions};
use crate::exec::device::{self, Opened};
use crate::exec::{CompileOptions, DecodeOptions, Decoder, Kernels, KvFormat, Plan};
use crate::files;
use crate::graph::Precision;
use crate::host::compute::{classifies_text, load_model, longest, takes_text, tokenizer_of, vocabulary};
use crate::model::{ChatTemplate, Family, Imatrix, ImatrixMark, LoadOptions, Model, Tokenizer, printable};
use crate::prune::{self, Action, Rank, Sparsity, Target};
use crate::quant::{self, Calibration};
use crate::recover;
use crate::words::{counted, counted_as};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::path::Path;
use sysinfo::{MemoryRefreshKind, System};

/// Opens `spec`: a bundled model (`demo:vit` and others) or a path; then lets flags correct the preprocessing, and has every convolution
/// and linear layer run in `precision` where one is given.
pub fn model(spec: &str, on: &On, precision: Option<&str>) -> Result<Model> {
    let arch = on.arch.as_deref().map(str::parse::<Family>).transpose().map_err(UsageError)?;
    let options = LoadOptions { arch, image: on.image_size, heads: on.heads };
    let mean = on.mean.as_deref().map(triple).transpose()?;
    let std = on.std.as_deref().map(triple).transpose()?;
    let mut model = load_model(spec, &options, mean, std).map_err(anyhow::Error::msg)?;
    if let Some(name) = precision {
        let wanted = self::precision(name)?;
        model.precision = quant::everywhere(&model.graph, wanted);
        prune::widen(&mut model);
        let mut others: BTreeMap<&str, usize> = BTreeMap::new();
        model
            .precision
            .nodes
            .values()
            .filter(|p| **p != wanted)
            .for_each(|p| *others.entry(p.label()).or_default() += 1);
        for (other, n) in others {
            let n = counted_as(n, "layer has", "layers have");
            let why = format!("{n} rows that are no whole blocks of {}: {other} there", wanted.label());
            model.info.notes.push(why);
        }
    }
    Ok(model)
}

/// Opens a language model with its vocabulary, which `tokenizer` names where it lies elsewhere; also where that is.
///
/// # Errors
/// What is no language model, or comes without a vocabulary.
pub fn language<'a>(
    spec: &'a str,
    tokenizer: Option<&'a str>,
    on: &On,
    precision: Option<&str>,
) -> Result<(Model, Tokenizer, &'a str)> {
    let from = tokenizer.unwrap_or(spec);
    keep_little();
    // Before the weights: a vocabulary is read in more memory than it is kept in.
    let found = tokenizer_of(from);
    give_back();
    let mut model = self::model(spec, on, precision)?;
    if !takes_text(&model) {
        bail!("`{spec}` is no language model; hint: `paring eval` classifies images");
    }
    let found = found
        .map_err(anyhow::Error::msg)?
        .with_context(|| format!("`{from}` comes without a vocabulary; hint: --tokenizer with the original model"))?;
    // Some checkpoints add tokens that they never use; a stranger's vocabulary looks the same.
    let rows = model.graph.vocabulary().unwrap_or(0);
    if found.size() > rows {
        let why =
            format!("`{from}` has {} tokens and the network {rows}: a text with any other is refused", found.size());
        model.info.notes.push(why);
    }
    Ok((model, found, from))
}

/// What `--kv` says.
pub fn kv_format(kv: Option<&str>) -> Result<Option<KvFormat>> {
    Ok(kv.map(|kv| kv.parse().map_err(|e: String| UsageError::of("--kv", e))).transpose()?)
}

/// Decides what keys and values of a language model are kept in, where `--kv` says it.
///
/// # Errors
/// An unknown format; a model that keeps none.
pub fn cache(model: &mut Model, kv: Option<&str>) -> Result<()> {
    let Some(format) = kv_format(kv)? else { return Ok(()) };
    if !model.graph.live().any(|(_, n)| n.op.caches()) {
        bail!("--kv is for models that say one token after the other, and this one keeps no keys and values");
    }
    format.decide(model);
    Ok(())
}

/// Is the model to answer as another program (`like`) does?
///
/// # Errors
/// A device that is no CPU.
pub fn as_other(like: Option<&str>, opened: &Opened) -> Result<bool> {
    if like.is_some() && !(opened.device.is_cpu() && opened.kernels == Kernels::Device) {
        bail!("--as is what a CPU does; hint: --device cpu");
    }
    Ok(like.is_some())
}

/// From here on what is let go of goes back to the system soon: an allocator keeps the more the larger the pieces were, which weights that are read
/// once are.
fn keep_little() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    for what in [libc::M_MMAP_THRESHOLD, libc::M_TRIM_THRESHOLD] {
        // SAFETY: it changes nothing that is in use; where it is refused, more is kept.
        unsafe { libc::mallopt(what, 1 << 20) };
    }
}

/// Memory that is held for nobody goes back to the system, which an allocator does not do by itself; and so do the pages of the program's own files,
/// most of which were needed for opening a model only: those that are needed again are found in the system's cache.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: what is in use stays; pages of a file that nobody may write to are read anew as they were.
    unsafe {
        libc::malloc_trim(0);
        libc::dl_iterate_phdr(Some(forget_pages), std::ptr::null_mut());
    };
}

/// Lets go of the pages of a file that is told of: the program, and the libraries that it is linked with.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
unsafe extern "C" fn forget_pages(
    info: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    _data: *mut libc::c_void,
) -> libc::c_int {
    // SAFETY: the loader's description of a file that is mapped, and its headers with it.
    let (base, headers) = unsafe {
        let info = &*info;
        (info.dlpi_addr, std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()))
    };
    let page = 1 << 16;
    for h in headers.iter().filter(|h| h.p_type == libc::PT_LOAD && h.p_flags & libc::PF_W == 0) {
        // Whole pages of any size that there is.
        let (from, to) = ((base + h.p_vaddr).next_multiple_of(page), (base + h.p_vaddr + h.p_memsz) / page * page);
        if to > from {
            // SAFETY: private, and never written: what is read next is the file's.
            unsafe { libc::madvise(from as *mut libc::c_void, (to - from) as usize, libc::MADV_DONTNEED) };
        }
    }
    0
}

/// The chat template that comes with the model at `spec`; bundled ones have none.
///
/// # Errors
/// As [`ChatTemplate::of`].
pub fn chat(spec: &str) -> Result<Option<ChatTemplate>> {
    Ok(if is_demo(spec) { None } else { ChatTemplate::of(Path::new(spec))? })
}

/// A language model at the levels that its file has.
#[derive(Debug)]
pub struct Levelled {
    /// The whole network first; no other where there is no controller, or none is asked for.
    pub plans: Vec<Plan>,
    pub control: Option<(Control, Asked)>,
}

/// `model`, opened from `spec`, compiled at its file's levels, as `level` asks for them: the controller's choice unless told otherwise.
///
/// # Errors
/// A level of a file that has none, or not that one; a controller that is refused; a `precision` beside one.
pub fn levelled(
    (model, spec): (&Model, &str),
    level: Option<&str>,
    precision: Option<&str>,
    options: &CompileOptions,
) -> Result<Levelled> {
    let asked: Asked = level.unwrap_or("auto").parse().map_err(|e: String| UsageError::of("--level", e))?;
    let Some(control) = carried(model, spec)? else {
        if level.is_some() {
            bail!("--level: the file has no levels; hint: `paring control` makes some");
        }
        return Ok(Levelled { plans: vec![Plan::of(model, options)?], control: None });
    };
    if precision.is_some() {
        bail!(
            "--precision: the file's levels are of its own weights; hint: leave it out, or make levels anew with `paring control`"
        );
    }
    let levels = control.ladder.levels.len();
    match asked {
        Asked::Pinned(0) => Ok(Levelled { plans: vec![Plan::of(model, options)?], control: None }),
        Asked::Pinned(n) if n >= levels => {
            bail!(UsageError::of("--level", format!("there is no level {n}; hint: 0 to {}", levels - 1)))
        }
        _ => Ok(Levelled { plans: control.plans(model, options)?, control: Some((control, asked)) }),
    }
}

/// The levels and their controller that the file has which `model` was opened from; what is bundled comes from no file.
///
/// # Errors
/// A controller that is refused.
pub fn carried(model: &Model, spec: &str) -> Result<Option<Control>> {
    Ok(if is_demo(spec) || !model.graph.is_language_model() { None } else { control::read(model)? })
}

/// Bytes of memory that are free, and of all: of the container, where one is bounded.
pub fn memory() -> (u64, u64) {
    let mut system = System::new();
    system.refresh_memory_specifics(MemoryRefreshKind::everything());
    let (free, all) = system.cgroup_limits().map_or((u64::MAX, u64::MAX), |c| (c.free_memory, c.total_memory));
    (free.min(system.available_memory()), all.min(system.total_memory()))
}

/// What writes `sequences` texts of up to `context` tokens at the levels `plans`.
///
/// # Errors
/// What the plans report; a cache that the memory that is free cannot hold.
pub fn decoder(plans: &[Plan], options: &DecodeOptions) -> Result<Decoder> {
    give_back();
    let least = DecodeOptions { sequences: 1, context: 1, ..*options };
    let each = Decoder::over(plans, &least)?.token_bytes();
    let on_cpu = plans.iter().all(|p| p.device().is_cpu());
    let asked = each.saturating_mul(options.context as u64).saturating_mul(options.sequences as u64);
    let (free, _) = memory();
    if on_cpu && asked > free {
        let gb = |bytes: u64| bytes as f64 / 1e9;
        let of = counted(options.sequences, "text");
        bail!(
            "keys and values of {of} of {} tokens take {:.1} GB, and {:.1} GB of memory are free; hint: fewer tokens",
            options.context,
            gb(asked),
            gb(free)
        );
    }
    Ok(Decoder::over(plans, options)?)
}

/// What is to be known where a text becomes longer than the model was made for.
pub fn beyond(model: &Model, context: usize) -> Option<String> {
    let most = model.info.context.filter(|most| context > *most)?;
    Some(format!("{context} tokens are more than the {most} that the model was made for"))
}

/// The model that is read stays: `out` must not be it.
pub fn keep_source(model: &str, out: &Path) -> Result<()> {
    keep("the model is", Path::new(model), out)
}

/// What is read from `source` stays: `out` must not be it.
pub fn keep(what: &str, source: &Path, out: &Path) -> Result<()> {
    if files::overwrites(out, source) {
        bail!("`{}` is not replaced: {what} read from `{}`; hint: another --out", out.display(), source.display());
    }
    Ok(())
}

/// Rounds the weights of `model` that are to be in GGML's formats by the importances in `file`; the words and the mark for it.
pub fn rounded(model: &mut Model, file: Option<&Path>) -> Result<(Vec<String>, Option<ImatrixMark>)> {
    let Some(file) = file else { return Ok((Vec::new(), None)) };
    if !model.precision.nodes.values().any(|p| matches!(p, Precision::Block(_))) {
        bail!("--imatrix is for GGML's formats; hint: --precision q4_k or another of llama.cpp's");
    }
    let matrix = Imatrix::open(file)?;
    let done = matrix.round(model, file)?;
    let of = file.display();
    if done.used == 0 {
        match done.unknown.first() {
            Some(first) => bail!(
                "`{of}` knows none of the weights, such as `{}`; hint: take the matrix of this very model",
                printable(first)
            ),
            None => {
                return Ok((
                    vec![format!("no weight is rounded to a format that takes importances: `{of}` is unused")],
                    None,
                ));
            }
        }
    }
    let mark = matrix.mark(file, done.used);
    let on = if mark.datasets.is_empty() { "text that it does not name".to_owned() } else { mark.datasets.join(", ") };
    let mut notes =
        vec![format!("{} rounded by the importances of {of}, collected on {on}", counted(done.used, "weight"))];
    if let Some(first) = done.unknown.first() {
        let n = counted(done.unknown.len(), "weight");
        notes.push(format!("{n} of which it knows nothing, such as `{}`: rounded as without", printable(first)));
    }
    Ok((notes, Some(mark)))
}

/// Three numbers, one per channel, or one for all of them.
pub fn triple(text: &str) -> Result<[f32; 3]> {
    let numbers: Vec<f32> = text.split(',').filter_map(|t| t.trim().parse().ok()).collect();
    match numbers[..] {
        [one] if one.is_finite() => Ok([one; 3]),
        [r, g, b] if numbers.iter().all(|v| v.is_finite()) => Ok([r, g, b]),
        _ => {
            bail!(UsageError(format!("`{text}` is neither one number nor three; hint: for example 0.485,0.456,0.406")))
        }
    }
}

/// Evaluation data was left out.
pub const NO_DATA: &str =
    "no data given; hint: --data with a folder of class folders, CIFAR, IDX, Parquet or tar files, or synthetic:eval";

/// What a bundled model is evaluated on where nothing is said: images, or stories.
const DEMO_DATA: &str = "synthetic:eval";

/// Is this the name of a bundled model?
pub fn is_demo(spec: &str) -> bool {
    spec.starts_with("demo:")
}

/// Opens evaluation data; for a bundled model the synthetic set is the default.
pub fn data(spec: Option<&str>, model_spec: &str, model: &Model, limit: usize) -> Result<Dataset> {
    let spec = match spec {
        Some(s) => s,
        None if is_demo(model_spec) => DEMO_DATA,
        None => bail!(NO_DATA),
    };
    let data = data::open(spec, limit)?;
    data.check_fits(&model.info)?;
    Ok(data)
}

/// Which tokens of a window count, by its word.
///
/// # Errors
/// Another word, in words.
pub fn targets(word: &str) -> std::result::Result<Counted, String> {
    let hint = "inside counts all of a window but its first token, next the token after each of it";
    word.parse().map_err(|e: String| format!("--targets: {e}; hint: {hint}"))
}

/// Opens a language model's text, for a bundled one the synthetic stories by default, with the tokenizer that comes with the model; `original` is one that the same text is given to, whose
/// tokenizer serves where the model has none.
///
/// # Errors
/// What cannot be opened; text that the two cut into other tokens.
pub fn text(spec: Option<&str>, model_spec: &str, original: Option<&str>, options: &TextOptions) -> Result<Dataset> {
    let spec = match spec {
        Some(spec) => spec,
        None if is_demo(model_spec) => DEMO_DATA,
        None => bail!(
            "no text given; hint: --data with a file of plain text, of documents (JSONL, Parquet), or of token ids (`.u16`), or \
             synthetic:eval"
        ),
    };
    let of = |model: &str| vocabulary(model, std::iter::once(spec)).map_err(anyhow::Error::msg);
    let own = of(model_spec)?;
    let other = original.filter(|o| *o != model_spec).map(of).transpose()?.flatten();
    let data = data::text(spec, own.as_ref().or(other.as_ref()), options)?;
    if let (Some(_), Some(other), Some(original)) = (&own, &other, original) {
        let there = data::text(spec, Some(other), options)?;
        if there.len() != data.len() || there.seen(0..there.len()) != data.seen(0..data.len()) {
            bail!(
                "`{model_spec}` and `{original}` cut `{spec}` into other tokens, so that their logits are of unlike tokens; hint: \
                 an original with the same vocabulary"
            );
        }
    }
    Ok(data)
}

/// Opens texts with classes for a model that classifies such, with the tokenizer at `tokenizer`; texts are no longer than `window` tokens.
pub fn classed(
    spec: Option<&str>,
    tokenizer: &str,
    model: &Model,
    window: Option<usize>,
    limit: usize,
) -> Result<Dataset> {
    let Some(spec) = spec else {
        bail!(
            "no texts given; hint: --data with JSON lines of `text` and a whole-number `label`, or a CSV file of these"
        );
    };
    let most = longest(window, model.info.context).map_err(anyhow::Error::msg)?;
    let names = model.info.class_names.as_deref().unwrap_or_default();
    let tokenizer = tokenizer_of(tokenizer).map_err(anyhow::Error::msg)?;
    let (data, cut) = data::classed(spec, tokenizer.as_ref(), &ClassedOptions { most, limit, names })?;
    out::notes(cut.as_slice());
    data.check_fits(&model.info)?;
    Ok(data)
}

/// Opens the device and sets the thread count. Says on standard error why a GPU was not taken.
pub fn device(on: &On) -> Result<Opened> {
    if let Some(threads) = on.threads {
        crate::exec::set_threads(threads);
    }
    let mut opened = device::open(on.device.as_deref().unwrap_or("auto"))?;
    if on.tf32 {
        device::allow_tf32(&mut opened);
    }
    if let Some(note) = &opened.note {
        out::complain(note);
    }
    Ok(opened)
}

/// A precision by its label.
pub fn precision(name: &str) -> Result<Precision> {
    let known = || Precision::menu(true).iter().map(|p| p.label()).collect::<Vec<_>>().join(", ");
    let found = Precision::parse(name);
    Ok(found.ok_or_else(|| UsageError(format!("unknown precision `{name}`; hint: one of {}", known())))?)
}

/// `model` with zeros among the weights of every convolution and linear layer.
pub fn sparse(model: Model, pattern: &str) -> Result<Model> {
    let sparsity: Sparsity = pattern.parse().map_err(UsageError)?;
    let of = |n: &crate::graph::Node| (Target::Weights(n.name.clone()), Action::Sparsify { sparsity });
    let actions: Vec<_> = quant::choosable(&model.graph).into_iter().map(of).collect();
    Ok(prune::apply(&model, &[], &actions)?)
}

/// `model` with low-rank factors for every layer where they are fewer weights.
pub fn factored(model: Model, rank: &str) -> Result<Model> {
    let rank: Rank = rank.parse().map_err(UsageError)?;
    let of = |n: &crate::graph::Node| {
        Some((Target::Weights(n.name.clone()), Action::Factorise { rank: rank.of(&n.op).ok()? }))
    };
    let actions: Vec<_> = quant::choosable(&model.graph).into_iter().filter_map(of).collect();
    let ranks = prune::ranks(&model.graph, &actions);
    if ranks.is_empty() {
        bail!("factors of rank {rank} are no smaller than any layer, or it has them already; hint: a lower --factors");
    }
    Ok(prune::split(&model, &ranks)?)
}

/// Images that give static int8 layers their ranges, and how many at a time.
const RANGE_IMAGES: usize = 512;
const RANGE_BATCH: usize = 32;

/// Refuses static int8 for a language model, which has no ranges: what is written could not be run.
///
/// # Errors
/// A layer that is to be so and has none.
pub fn no_ranges_on_text(model: &Model) -> Result<()> {
    let layers = quant::static_layers(&model.graph, &model.precision);
    if takes_text(model) && layers.iter().any(|l| !model.precision.inputs.contains_key(l)) {
        bail!("int8-static finds no ranges on text yet; hint: another --precision");
    }
    Ok(())
}

/// Finds the input ranges of static int8 layers that have none, from `calib` (for a bundled model the synthetic
/// calibration set), texts by the tokenizer at `tokenizer`. Returns in words how, where there was something to find.
pub fn calibrate(
    model: &mut Model,
    (spec, tokenizer): (&str, &str),
    calib: Option<&str>,
    how: Calibration,
) -> Result<Option<String>> {
    let layers = quant::static_layers(&model.graph, &model.precision);
    if layers.iter().all(|l| model.precision.inputs.contains_key(l)) {
        return Ok(None);
    }
    no_ranges_on_text(model)?;
    let calib = match calib {
        Some(c) => c,
        None if is_demo(spec) => "synthetic:calib",
        None => bail!("int8-static needs data to find its ranges with; hint: --calib with training images, or texts"),
    };
    let (set, what) = match classifies_text(model) {
        true => (classed(Some(calib), tokenizer, model, None, RANGE_IMAGES)?, "text"),
        false => (data::open(calib, 0)?.take(RANGE_IMAGES), "image"),
    };
    let parts = set.parts(&(0..set.len()).collect::<Vec<_>>(), RANGE_BATCH);
    let prep = model.info.preprocess.clone();
    recover::calibrate(model, how, &mut |i| -> Result<_> {
        Ok(match parts.get(i) {
            Some(picks) => Some(set.batch(picks, &prep)?.0),
            None => None,
        })
    })?;
    Ok(Some(format!("{} on {} of {}", how.label(), counted(set.len(), what), set.card().name)))
}

/// As [`calibrate`] for timings alone, which do not depend on the ranges: seeded noise takes the place of what is calibrated on.
pub fn calibrate_on_noise(model: &mut Model) -> Result<()> {
    let graph = model.graph.clone();
    // Made only where a layer has ranges: a graph that takes any number of tokens has no noise of its own.
    let noise = |i| (i == 0).then(|| Ok(crate::profile::noise(&graph, 1, &candle_core::Device::Cpu)?)).transpose();
    recover::calibrate(model, Calibration::MinMax, &mut |i| -> Result<_> { noise(i) })
}
