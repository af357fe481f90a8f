//! A language model as the GGUF file that llama.cpp loads: its names and metadata for the layers that are left (`layers`), each
//! tensor in the type that was decided (`tensors`); and what llama.cpp's own tool would be told (`command`).
//!
//! What llama.cpp has no words for is refused before anything is written. Source: llama.cpp's `convert_hf_to_gguf.py`, `llama-model-loader.cpp`
//! and gguf.md. Not here: the container (`gguf`), what the original says (`origin`).

mod command;
mod layers;
mod tensors;

use super::export::{Manifest, format_of};
use super::families::{Source, called, stack_of};
use super::ggml::{Block, Coded};
use super::gguf::{self, Fields};
use super::origin::{CONFIG, Said, VOCABULARY_NOTE};
use super::{Dtype, ImatrixMark, Model, ModelError, Result, printable, written};
use crate::graph::op::{Beyond, Longer};
use crate::graph::rotary::Pairs;
use crate::graph::{Graph, Op};
use crate::words::{self, counted};
use indexmap::IndexMap;
use layers::layer_of;
pub(super) use layers::{Layer, Shape};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
pub(super) use tensors::neighbours;
use tensors::{Change, Joined, Kind, Tensor};

/// Why a model cannot be written as others read it, and what would do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unfit {
    pub why: String,
    pub hint: String,
}

impl Unfit {
    pub fn new(why: impl Into<String>, hint: &str) -> Unfit {
        Unfit { why: why.into(), hint: hint.to_owned() }
    }
}

/// What was written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Written {
    /// BLAKE3 (hex) of the file.
    pub hash: String,
    /// What is otherwise than was decided, in words.
    pub notes: Vec<String>,
    /// What makes the same of the original with llama.cpp's own tool, where that can be said.
    pub command: Option<String>,
}

impl Written {
    /// The notes, and after them how the same is made with llama.cpp's own tool.
    pub fn words(self) -> Vec<String> {
        let same = self.command.map(|c| format!("llama.cpp's own tool makes the same by: {c}"));
        self.notes.into_iter().chain(same).collect()
    }

    /// Bytes of what was written at `path`: of a folder those of its files.
    pub fn bytes(&self, path: &Path) -> u64 {
        let size = |path: &Path| std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file).map(|m| m.len());
        size(path).unwrap_or_else(|| {
            let inside = std::fs::read_dir(path).into_iter().flatten().flatten();
            inside.filter_map(|e| size(&e.path())).sum()
        })
    }
}

fn refusal(model: &Model, u: Unfit) -> ModelError {
    ModelError::unsupported(&model.info.source, format!("as GGUF, {}", u.why), &u.hint)
}

/// The layers that are left, and their shapes.
///
/// # Errors
/// What is no language model of a known family.
pub(super) fn shape(model: &Model) -> Result<Shape> {
    let unnamed = || Unfit::new("its layers are of no family that is known", "export as safetensors or pytorch");
    let unfit = |u: Unfit| ModelError::unsupported(&model.info.source, u.why, &u.hint);
    let names = called(&model.graph, Source::Gguf).ok_or_else(|| unfit(unnamed()))?;
    layers::read(&model.graph, &names).map_err(unfit)
}

/// What the original says, what layers are called there, and their shapes.
fn begun(model: &Model) -> Result<(Arc<Said>, HashMap<String, String>, Shape)> {
    let unfit = |u: Unfit| refusal(model, u);
    let nothing = || {
        Unfit::new(
            "nothing is known of its metadata",
            "only language models are written, from GGUF files and from directories",
        )
    };
    let said = model.origin.said(&model.graph, &model.info)?.ok_or_else(|| unfit(nothing()))?;
    if let Some(why) = said.lacks() {
        let hint = "convert the original with llama.cpp's convert_hf_to_gguf.py, and open that file";
        return Err(unfit(Unfit::new(why, hint)));
    }
    if let Some((_, layer)) = model.graph.factored().first() {
        return Err(unfit(two(&layer.name)));
    }
    let names = called(&model.graph, Source::Gguf).ok_or_else(|| {
        unfit(Unfit::new("its layers have no names there", "language models of known families are written"))
    })?;
    let shape = layers::read(&model.graph, &names).map_err(unfit)?;
    if let Some(router) = &shape.loose {
        let why =
            format!("the weights of experts (`{}`) do not sum up to 1, as llama.cpp has them do", printable(router));
        return Err(unfit(Unfit::new(why, "export as safetensors")));
    }
    let arch = said.metadata.string("general.architecture").unwrap_or_default();
    let told = said.metadata.count(&format!("{arch}.attention.sliding_window")).filter(|n| *n > 0);
    shape.windows(arch, told).map_err(unfit)?;
    Ok((said, names, shape))
}

fn two(layer: &str) -> Unfit {
    let why = format!("`{}` is two low-rank factors, and it has words for one weight alone", printable(layer));
    Unfit::new(why, "export as safetensors or pytorch, or leave the factors out")
}

/// What [`gguf`] would refuse of `model` whatever its weights become: for those who are about to work long on these. `factored`: a layer that is
/// to be two by then.
///
/// # Errors
/// As [`gguf`].
pub fn check(model: &Model, factored: Option<&str>) -> Result<()> {
    if let Some(layer) = factored {
        return Err(refusal(model, two(layer)));
    }
    let (said, _, shape) = begun(model)?;
    let was = said.metadata.string("general.architecture").unwrap_or_default();
    shape.architecture(was).map(drop).map_err(|u| refusal(model, u))
}

/// Whether layers of `model` may be cut each in its own way and still go to llama.cpp; what cannot go there at all, may.
pub fn takes_uneven(model: &Model) -> bool {
    let Ok((said, _, mut shape)) = begun(model) else { return true };
    let was = said.metadata.string("general.architecture").unwrap_or_default();
    let [_, second, ..] = &mut shape.layers[..] else { return true };
    second.hidden = second.hidden.saturating_sub(1);
    shape.architecture(was).is_ok()
}

/// Writes `model` as a GGUF file that llama.cpp loads.
///
/// # Errors
/// [`ModelError::Unsupported`] for what llama.cpp has no words for, before anything is written; [`ModelError::Write`];
/// [`ModelError::Param`] for a missing parameter.
pub fn gguf(path: &Path, model: &Model, manifest: &Manifest) -> Result<Written> {
    let unfit = |u: Unfit| refusal(model, u);
    let (said, names, shape) = begun(model)?;
    let was = said.metadata.string("general.architecture").unwrap_or_default().to_owned();
    let arch = shape.architecture(&was).map_err(unfit)?;
    let tensors = tensors(model, &said, &names, &shape, arch, &unfit)?;
    let mut fields = fields(&said, &shape, &was, arch, &tensors);
    let notes = notes((model, &said), &shape, &was, arch, &tensors);
    if let Some(mark) = manifest.imatrix() {
        importances(&mut fields, &mark);
    }
    fields.string("paring.version", env!("CARGO_PKG_VERSION"));
    fields.string("paring.manifest", &serde_json::to_string(manifest).map_err(|e| ModelError::write(path)(e.into()))?);
    if !notes.is_empty() {
        fields.strings("paring.notes", &notes);
    }
    let changed = !model.precision.nodes.is_empty() || shape.layers.len() < shape.were;
    let command = command::quantize(&said.metadata, manifest, &shape, &was, &tensors).filter(|_| changed);
    if let Some(command) = &command {
        fields.string("paring.llama_quantize", command);
    }
    let infos: Vec<_> = tensors.iter().map(Tensor::info).collect();
    let mut failed = None;
    let hash = written::replace(path, |out| {
        gguf::write(out, &fields, &infos, |i| {
            tensors[i].bytes().map_err(|u| {
                failed = Some(u);
                std::io::Error::other("it cannot be stored so")
            })
        })
    });
    match failed {
        Some(u) => Err(unfit(u)),
        None => Ok(Written { hash: hash.map_err(ModelError::write(path))?, notes, command }),
    }
}

/// The tensors that are left, in the order of the layers, as they will be called.
fn tensors<'a>(
    model: &'a Model,
    said: &'a Said,
    names: &HashMap<String, String>,
    shape: &Shape,
    arch: &str,
    unfit: &dyn Fn(Unfit) -> ModelError,
) -> Result<Vec<Tensor<'a>>> {
    let place: HashMap<usize, usize> = shape.layers.iter().enumerate().map(|(i, l)| (l.was, i)).collect();
    let pairs = pairs(&model.graph);
    let turn = pairs == Some(Pairs::Halves) && gguf::interleaved(arch);
    let head = shape.head.map_or(0, |[keys, _]| keys);
    if pairs == Some(Pairs::Neighbours) && !gguf::interleaved(arch) || turn && shape.turned != Some(head) {
        let why = format!("its rotary positions turn other pairs than those of llama.cpp's `{arch}`");
        return Err(unfit(Unfit::new(why, "export as safetensors")));
    }
    let renumbered = |name: &str| match layer_of(name) {
        Some((i, part)) => place.get(&i).map(|i| format!("blk.{i}.{part}")),
        None => Some(name.to_owned()),
    };
    // By name; experts of a layer go by one, and parts that `arch` has in one tensor.
    let (mut out, mut seen) = (IndexMap::<(String, Option<Joined>), Vec<Tensor<'_>>>::new(), HashSet::new());
    for (_, node) in model.graph.live() {
        let roles = crate::graph::param_shapes(&node.op);
        for (p, (role, expected)) in node.params.iter().zip(roles) {
            if !seen.insert(p.name.as_str()) {
                continue;
            }
            model.params.get(&p.name)?.check(&p.name, &expected)?;
            let ending = p.name.rsplit_once('.').map_or("", |(_, ending)| ending);
            let name = names.get(&node.name).and_then(|n| renumbered(&format!("{n}.{ending}")));
            let name = name.ok_or_else(|| {
                let why = format!("`{}` has no name there", printable(&node.name));
                unfit(Unfit::new(why, "export as safetensors"))
            })?;
            let turned = turn && (name.contains(".attn_q.") || name.contains(".attn_k."));
            let order = turned.then(|| tensors::neighbours(expected.first().copied().unwrap_or(0), head));
            let format = format_of(&model.graph, node, role, &model.precision);
            let stack = stack_of(&name).map(|(stack, _)| (stack, Some(Joined::Experts)));
            let fused = || fused(arch, &name).map(|whole| (whole, Some(Joined::Rows)));
            let place = stack.or_else(fused).unwrap_or_else(|| (name.clone(), None));
            let tensor = Tensor::new(name, (&model.params, &p.name), format, order)?;
            out.entry(place).or_default().push(tensor);
        }
    }
    // Its loader asks for one where others take the embedding.
    let embedding = out.get(&("token_embd.weight".to_owned(), None)).and_then(|all| all.first());
    if let Some(tensor) =
        embedding.filter(|_| arch == "olmo2" && !out.contains_key(&("output.weight".to_owned(), None)))
    {
        let tensor = tensor.named("output.weight");
        out.insert((tensor.name.clone(), None), vec![tensor]);
    }
    let whole = |((name, how), mut all): ((String, Option<Joined>), Vec<Tensor<'a>>)| match (how, all.pop()) {
        (None, Some(one)) => Ok(one),
        (how, last) => {
            let mut all: Vec<_> = all.into_iter().chain(last).collect();
            if how == Some(Joined::Rows) {
                all.sort_by_key(|t| ROWS.iter().position(|part| t.name.contains(part)));
            }
            Tensor::joined(name, how.unwrap_or(Joined::Rows), all)
        }
    };
    let mut out = out.into_iter().map(whole).collect::<Result<Vec<_>, _>>().map_err(unfit)?;
    for (name, param) in &said.others {
        if let Some(name) = renumbered(name) {
            out.push(Tensor::other(name, param));
        }
    }
    Ok(out)
}

/// Parts that are rows of one tensor in some architectures, in the order of these.
const ROWS: [&str; 5] = [".attn_q.", ".attn_k.", ".attn_v.", ".ffn_gate.", ".ffn_up."];

/// The tensor of which llama.cpp's `arch` has `name` as rows.
fn fused(arch: &str, name: &str) -> Option<String> {
    let part = ROWS.iter().position(|part| name.contains(part))?;
    let whole = match (arch, part) {
        ("gpt2" | "phi3", 0..3) => ".attn_qkv.",
        // Under the name of the second.
        ("phi3", _) => ".ffn_up.",
        _ => return None,
    };
    Some(name.replacen(ROWS[part], whole, 1))
}

/// Which values of a head turn together.
fn pairs(graph: &Graph) -> Option<Pairs> {
    graph.live().find_map(|(_, n)| match &n.op {
        Op::Rope(rope) => Some(rope.pairs),
        _ => None,
    })
}

/// The original's metadata with what changed written anew.
fn fields(said: &Said, shape: &Shape, was: &str, arch: &str, tensors: &[Tensor<'_>]) -> Fields {
    let m = &said.metadata;
    let mut f = said.fields();
    let old = |name: &str| format!("{was}.{name}");
    let kept: Vec<usize> = shape.layers.iter().map(|l| l.was).collect();
    if kept.len() < shape.were {
        // Other lists with a number for each layer.
        let lists: Vec<&str> = m.lists(shape.were).filter(|k| k.starts_with(&old(""))).collect();
        lists.iter().for_each(|key| f.pick(key, &kept));
    }
    f.u32(&old("block_count"), kept.len());
    f.u32(&old("embedding_length"), shape.dim);
    let mut each = |name: &str, of: fn(&layers::Layer) -> usize| {
        let all: Vec<usize> = shape.layers.iter().map(of).collect();
        match all.iter().all(|n| *n == all[0]) {
            true => f.u32(&old(name), all[0]),
            false => f.u32s(&old(name), &all),
        }
    };
    // Where experts have a width of their own it is told beside that of layers without them.
    each(if was == "qwen3moe" { "expert_feed_forward_length" } else { "feed_forward_length" }, |l| l.hidden);
    if shape.layers.iter().any(layers::Layer::sparse) {
        each("expert_count", |l| l.experts[0]);
        each("expert_used_count", |l| l.experts[1]);
    }
    each("attention.head_count", |l| l.heads);
    each("attention.head_count_kv", |l| l.kv_heads);
    if let Some([keys, values]) = shape.head {
        // Without these, a head is the width divided by their number, in the first layer.
        let usual = [keys, values] == [shape.dim / shape.layers[0].heads.max(1); 2];
        for (name, n) in [("attention.key_length", keys), ("attention.value_length", values)] {
            if !usual || m.has(&old(name)) {
                f.u32(&old(name), n);
            }
        }
    }
    if let Some(turned) = shape.turned.filter(|_| !m.has(&old("rope.dimension_count"))) {
        f.u32(&old("rope.dimension_count"), turned);
    }
    let params: usize = tensors.iter().map(Tensor::numel).sum();
    if m.has("general.parameter_count") {
        f.u32("general.parameter_count", params);
    }
    f.string("general.size_label", &size_label(params));
    f.u32("general.file_type", file_type(tensors));
    f.u32("general.quantization_version", 2);
    f.remove(CONFIG);
    f.remove(VOCABULARY_NOTE);
    ["general.alignment", "split.no", "split.count", "split.tensors.count"].iter().for_each(|key| f.remove(key));
    f.rename(&old(""), &format!("{arch}."));
    f.string("general.architecture", arch);
    f
}

/// What `llama-quantize` says of the importances that it rounded by.
fn importances(f: &mut Fields, mark: &ImatrixMark) {
    f.string("quantize.imatrix.file", &mark.file);
    if let Some(dataset) = mark.datasets.first() {
        f.string("quantize.imatrix.dataset", dataset);
    }
    f.u32("quantize.imatrix.entries_count", mark.entries);
    f.u32("quantize.imatrix.chunks_count", mark.chunks);
}

/// So many weights in a word: `135M`, as the `gguf` package's `size_label` has it.
fn size_label(params: usize) -> String {
    let n = params as f64;
    let (scaled, word) = match params {
        1_000_000_000_000.. => (n * 1e-12, "T"),
        1_000_000_000.. => (n * 1e-9, "B"),
        1_000_000.. => (n * 1e-6, "M"),
        _ => (n * 1e-3, "K"),
    };
    // Two digits at least.
    let whole = scaled.round().to_string();
    let digits = 2usize.saturating_sub(whole.trim_start_matches('0').len());
    format!("{scaled:.digits$}{word}")
}

/// `llama_ftype`'s number of what most matrices are stored as.
fn file_type(tensors: &[Tensor<'_>]) -> usize {
    let most = command::most(tensors).unwrap_or(Kind::Float(Dtype::F32));
    match most {
        Kind::Float(Dtype::F32 | Dtype::F64) => 0,
        Kind::Float(Dtype::F16) => 1,
        Kind::Float(Dtype::Bf16) => 32,
        Kind::Coded(code) => match code {
            Coded::IQ2_XXS => 19,
            Coded::IQ2_XS => 20,
            Coded::IQ3_XXS => 23,
            Coded::IQ1_S => 24,
            Coded::IQ3_S => 26,
            Coded::IQ2_S => 28,
            Coded::IQ1_M => 31,
            Coded::TQ1_0 => 36,
            Coded::TQ2_0 => 37,
            Coded::MXFP4 => 38,
        },
        Kind::Block(block) => match block {
            Block::Q4_0 => 2,
            Block::Q4_1 => 3,
            Block::Q8_0 => 7,
            Block::Q5_0 => 8,
            Block::Q5_1 => 9,
            Block::Q2_K => 10,
            Block::Q3_K => 12,
            Block::Q4_K => 15,
            Block::Q5_K => 17,
            Block::Q6_K => 18,
            Block::IQ4_NL => 25,
            Block::IQ4_XS => 30,
        },
    }
}

/// How many tokens back layers look, where llama.cpp's `arch` has them look at all.
fn blind_window(graph: &Graph, arch: &str) -> Option<usize> {
    // `llama_model::load_hparams`: who heeds `attention.sliding_window` (Phi-3's is read and turned off).
    if ["gemma2", "gemma3"].contains(&arch) {
        return None;
    }
    graph.live().filter_map(|(_, n)| if let Op::Attention(a) = &n.op { a.most } else { None }).min()
}

/// The longest text whose positions have LongRoPE's first divisors.
fn longer(graph: &Graph) -> Option<usize> {
    graph.live().find_map(|(_, n)| match &n.op {
        Op::Rope(rope) => match rope.scaling.as_deref()?.beyond.as_ref()? {
            Beyond { tokens, how: Longer::Divided(_) } => Some(*tokens),
            Beyond { .. } => None,
        },
        _ => None,
    })
}

/// YaRN's bounds as the file tells them, where they are others than llama.cpp's own.
fn betas(said: &Said, arch: &str) -> Option<[f64; 2]> {
    let m = &said.metadata;
    let key = |name: &str| format!("{arch}.rope.scaling.{name}");
    m.string(&key("type")).filter(|kind| *kind == "yarn")?;
    let told = |name: &str, usual: f64| m.number(&key(name)).map_or(usual, gguf::decimal);
    let both = [told("yarn_beta_fast", 32.0), told("yarn_beta_slow", 1.0)];
    (both != [32.0, 1.0]).then_some(both)
}

/// What is otherwise in the file than was decided, and how it is loaded.
fn notes((model, said): (&Model, &Said), shape: &Shape, was: &str, arch: &str, tensors: &[Tensor<'_>]) -> Vec<String> {
    let mut out = Vec::new();
    if was != arch {
        out.push(format!(
            "layers are of unlike shapes, which llama.cpp's `{was}` cannot be told: the file's architecture is `{arch}`, which computes the same"
        ));
    }
    out.extend(said.metadata.string(VOCABULARY_NOTE).map(str::to_owned));
    if let Some(window) = blind_window(&model.graph, arch) {
        out.push(format!(
            "its sliding window of {window} tokens has no place in llama.cpp's `{arch}`, whose layers look at all tokens before: on longer texts the file is \
             another network than this one"
        ));
    }
    if let Some([fast, slow]) = betas(said, was) {
        out.push(format!(
            "its positions are scaled by YaRN with a beta_fast of {fast} and a beta_slow of {slow}: llama.cpp (its release v0.5.0) takes 32 and 1 unless it is called \
             with --yarn-beta-fast {fast} --yarn-beta-slow {slow}"
        ));
    }
    if let Some(tokens) = longer(&model.graph) {
        out.push(format!(
            "its positions are scaled by LongRoPE, otherwise in texts of more than {tokens} tokens: llama.cpp goes by the size of its context (-c) instead, so that \
             shorter texts need one of {tokens} at most"
        ));
    }
    let gone: Vec<usize> = (0..shape.were).filter(|i| shape.layers.iter().all(|l| l.was != *i)).collect();
    if !gone.is_empty() {
        let list: Vec<String> = gone.iter().map(usize::to_string).collect();
        out.push(format!("layers {} are gone, and those after them are numbered anew", list.join(", ")));
    }
    let mut changes: BTreeMap<Change, (usize, [u64; 2])> = BTreeMap::new();
    for (change, tensor) in tensors.iter().filter_map(|t| Some((t.change?, t))) {
        let (n, bytes) = changes.entry(change).or_default();
        *n += 1;
        bytes.iter_mut().zip(tensor.sizes()).for_each(|(all, more)| *all += more);
    }
    for (change, (n, [decided, written])) in changes {
        let n = counted(n, "tensor");
        let [decided, written] = [decided, written].map(words::bytes);
        out.push(match change {
            Change::Scales(block) => {
                format!("{n}: the same codes as {block}, whose scales have 16 bits (values differ by 0.05 % at most, by 2 % where scales are below 6e-5)")
            }
            Change::Halves(word) => format!(
                "{n} in {word}: GGUF has no such format for them, or none for rows that are no whole blocks; F16 is written, \
                 {written} instead of the {decided} that were decided"
            ),
        });
    }
    let wide: u64 =
        (tensors.iter()).filter(|t| t.is_matrix() && t.kind == Kind::Float(Dtype::F32)).map(|t| t.numel() as u64).sum();
    if wide > 0 && tensors.iter().any(|t| matches!(t.kind, Kind::Block(_) | Kind::Coded(_))) {
        let all = words::bytes(4 * wide);
        out.push(format!("{wide} weights for which no precision was decided are exact in F32: {all}"));
    }
    let static_ranges = model.precision.inputs.len();
    if static_ranges > 0 {
        out.push(
            "calibrated ranges of inputs have no place in GGUF: llama.cpp rounds activations in its own way".to_owned(),
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_told_as_the_package_tells_them() {
        for (n, label) in
            [(134_515_008, "135M"), (1_540_000_000, "1.5B"), (7_000_000_000, "7.0B"), (259_000, "259K"), (999, "1.0K")]
        {
            assert_eq!(size_label(n), label);
        }
    }
}
