//! Lowering: graph, parameters and precision plan → an ordered list of CPU steps with prepacked weights.
//!
//! Fusion: batch norm folds into the convolution before it, then one residual add and one activation join its epilogue.
//! A node in `keep` ends its step, so that its output exists. Steps are ordered by their last node's id; everything a
//! step reads is produced by an earlier one.

mod layer;

use super::arena::{self, Life};
use super::error::ExecError;
use super::kernel::attention::Attention;
use super::kernel::dense::{Dense, Source};
use super::kernel::geometry::{Codes, Epilogue, Geometry};
use super::kernel::simple::Pool;
use super::kernel::window::Around;
use super::unfold::Window;
use crate::graph::op;
use crate::graph::{self, Activation, Graph, NodeId, Op, ParamRole, Precision, PrecisionPlan, Runs, channel_axis};
use crate::model::ParamStore;
pub(super) use layer::{Builder, Folded};
use std::collections::HashSet;

/// What a step is and what it holds; see the plan's documentation.
#[derive(Debug, Clone, PartialEq)]
pub struct StepInfo {
    /// The leading node's name.
    pub name: String,
    /// The leading node.
    pub node: NodeId,
    /// Short kind for people: `conv 3x3/2`, `linear`.
    pub kind: String,
    /// Names of the nodes that run inside this step besides the leading one, in order; the last one's value is the
    /// step's output.
    pub fused: Vec<String>,
    /// The kernel that runs, e.g. `conv-f32/avx512`, `gemm-u8i8/vnni`; `gemm-f32/avx512 (w4 unpacked)` where weights are
    /// stored in fewer bits than are multiplied.
    pub kernel: String,
    pub precision: Precision,
    /// Bytes of this step's parameters as stored: weights, scales, biases (batch norms folded).
    pub weight_bytes: u64,
    /// Bytes of this step's parameters in memory when it runs: more than `weight_bytes` where they were unpacked.
    pub held_bytes: u64,
    /// Output shape without batch, as the last node's op documents it.
    pub out_shape: Vec<usize>,
}

/// A value that lives between steps, channels-last.
#[derive(Debug, Clone)]
pub(crate) struct Value {
    /// Elements for one image.
    pub numel: usize,
    /// Its first element in an arena for one image; an arena for `n` images is the same `n` times as large.
    pub at: usize,
    /// Step that writes it; `None` for the input.
    pub step: Option<usize>,
}

// A plan has one of these a step, made once: boxing the largest would save nothing.
#[allow(clippy::large_enum_variant)]
pub(crate) enum Kernel {
    Dense(Dense),
    Affine {
        scale: Vec<f32>,
        shift: Vec<f32>,
        act: Option<Activation>,
    },
    LayerNorm {
        w: Vec<f32>,
        b: Vec<f32>,
        eps: f32,
    },
    Activation(Activation),
    Add {
        act: Option<Activation>,
    },
    MaxPool(Pool),
    /// Mean over `rows` from `skip` on.
    Mean {
        rows: usize,
        skip: usize,
        channels: usize,
    },
    ChannelPad {
        pool: Pool,
        map: Vec<Option<u32>>,
    },
    RmsNorm {
        w: Vec<f32>,
        eps: f32,
    },
    Softmax {
        width: usize,
    },
    Mul,
    /// The second input has one row of factors an image.
    MulRows {
        rows: usize,
        channels: usize,
    },
    Scalar {
        mul: f32,
        add: f32,
    },
    AvgPool {
        pool: Pool,
        count_padding: bool,
    },
    AdaptivePool(Pool),
    Concat {
        widths: Vec<usize>,
    },
    Flatten {
        channels: usize,
        positions: usize,
    },
    PatchMerge {
        grid: [usize; 2],
        width: usize,
    },
    /// Puts learned tokens before value `at` of an image.
    Insert {
        tokens: Vec<f32>,
        at: usize,
    },
    Positions(Vec<f32>),
    Attention {
        core: Attention,
        fused: bool,
        around: Option<Around>,
    },
    Select {
        rows: usize,
        index: usize,
        channels: usize,
    },
}

pub(crate) struct Step {
    pub info: StepInfo,
    pub kernel: Kernel,
    pub inputs: Vec<usize>,
    pub residual: Option<usize>,
    pub out: usize,
    /// The last node fused in; steps ascend in it.
    pub last: NodeId,
}

pub(crate) struct Lowered {
    pub steps: Vec<Step>,
    pub values: Vec<Value>,
    /// Per node: its value, when its output exists between steps.
    pub value_of: Vec<Option<usize>>,
    pub shapes: Vec<Vec<usize>>,
    /// Elements of the arena for one image.
    pub arena: usize,
    /// Elements of the largest set of values alive at once, for one image.
    pub live: usize,
}

/// Nodes that run as one step.
pub(super) struct Chain {
    pub lead: NodeId,
    /// A batch norm or layer scale, folded.
    pub bn: Option<NodeId>,
    /// A residual addition and its other input.
    pub add: Option<(NodeId, NodeId)>,
    pub act: Option<(NodeId, Activation)>,
    pub last: NodeId,
}

/// Lowers the reachable part of `graph`.
pub(crate) fn lower(
    graph: &Graph,
    params: &ParamStore,
    precision: &PrecisionPlan,
    keep: &[String],
) -> Result<Lowered, ExecError> {
    check_names(graph, precision, keep)?;
    let shapes = graph::shapes(graph)?;
    let keep: HashSet<&str> = keep.iter().map(String::as_str).collect();
    let mut chains = chains(graph, &keep);
    chains.sort_by_key(|c| c.last);
    let mut low =
        Lowered { steps: vec![], values: vec![], value_of: vec![None; graph.nodes.len()], shapes, arena: 0, live: 0 };
    let mut packed = 0;
    for chain in chains {
        let node = graph.node(chain.lead);
        let value = |low: &Lowered, id: NodeId| {
            low.value_of.get(id.index()).copied().flatten().ok_or_else(|| {
                ExecError::unsupported(node, format!("its input `{}` is not computed before it", graph.node(id).name))
            })
        };
        let numel = low.shapes[chain.last.index()].iter().product();
        match &node.op {
            Op::Input(_) => {
                low.value_of[chain.lead.index()] = Some(low.values.len());
                low.values.push(Value { numel, at: 0, step: None });
                continue;
            }
            // Channels-last images are token sequences already.
            Op::ToTokens | Op::ToImage(_) => {
                let v = value(&low, node.inputs[0])?;
                low.value_of[chain.lead.index()] = Some(v);
                if let Some(s) = low.values[v].step {
                    low.steps[s].info.fused.push(node.name.clone());
                }
                continue;
            }
            _ => {}
        }
        let skip = chain.add.map(|(_, other)| other);
        let inputs = node.inputs.iter().map(|&i| value(&low, i)).collect::<Result<Vec<_>, _>>()?;
        let residual = skip.map(|id| value(&low, id)).transpose()?;
        let range = precision.inputs.get(&node.name).copied();
        let b = Builder { graph, params, node, shapes: &low.shapes, chain: &chain, range };
        let (kernel, name, [weight_bytes, held_bytes]) = b.kernel(precision.get(&node.name))?;
        // Kernels keep their own copies, so the file's pages need not stay in memory beside them.
        for id in [Some(chain.lead), chain.bn].into_iter().flatten() {
            graph.node(id).params.iter().filter_map(|p| params.get(&p.name).ok()).for_each(|p| p.release());
        }
        packed += held_bytes;
        if packed > TRIM_EVERY {
            trim();
            packed = 0;
        }
        let fused = [chain.bn, chain.add.map(|a| a.0), chain.act.map(|a| a.0)];
        let info = StepInfo {
            name: node.name.clone(),
            node: chain.lead,
            kind: graph::describe(&node.op),
            fused: fused.into_iter().flatten().map(|id| graph.node(id).name.clone()).collect(),
            kernel: name,
            precision: if matches!(kernel, Kernel::Dense(_)) { precision.get(&node.name) } else { Precision::F32 },
            weight_bytes,
            held_bytes,
            out_shape: low.shapes[chain.last.index()].clone(),
        };
        let out = low.values.len();
        low.values.push(Value { numel, at: 0, step: Some(low.steps.len()) });
        low.value_of[chain.last.index()] = Some(out);
        low.steps.push(Step { info, kernel, inputs, residual, out, last: chain.last });
    }
    if low.value_of.get(graph.output.index()).copied().flatten().is_none() {
        let hint = "the graph's output is not computed".into();
        return Err(ExecError::UnknownNode { name: "output".into(), hint });
    }
    place_values(&mut low, graph.output);
    Ok(low)
}

/// Packing copies a layer's weights once or twice more for a moment; what the allocator keeps of that between the packed
/// layers would add up to a third of a network's weights.
const TRIM_EVERY: u64 = 16 << 20;

/// Gives free pages back to the system.
fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it only unmaps pages that the allocator holds free.
    unsafe {
        libc::malloc_trim(0);
    }
}

pub(super) fn check_names(graph: &Graph, precision: &PrecisionPlan, keep: &[String]) -> Result<(), ExecError> {
    let unknown = |name: &str, hint: &str| ExecError::UnknownNode { name: name.to_owned(), hint: hint.into() };
    for name in keep {
        graph.by_name(name).ok_or_else(|| unknown(name, "`keep` takes node names of this graph"))?;
    }
    for (name, p) in &precision.nodes {
        let id = graph.by_name(name).ok_or_else(|| unknown(name, "precisions are set by node name"))?;
        match (p, &graph.node(id).op) {
            (Precision::F32, _) | (_, Op::Conv2d(_) | Op::Linear(_)) => {}
            _ => {
                let what = format!("{} is for convolutions and linears only", p.label());
                return Err(ExecError::unsupported(graph.node(id), what));
            }
        }
    }
    Ok(())
}

/// What runs in the step that a layer leads, besides a batch norm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fusion {
    pub lead: NodeId,
    /// A residual is added.
    pub residual: bool,
    pub act: Option<Activation>,
}

/// What fuses into which layer when `graph` is compiled with nothing kept.
pub fn fusions(graph: &Graph) -> Vec<Fusion> {
    let one = |c: Chain| Fusion { lead: c.lead, residual: c.add.is_some(), act: c.act.map(|a| a.1) };
    chains(graph, &HashSet::new()).into_iter().map(one).collect()
}

/// Groups reachable nodes into steps.
pub(super) fn chains(graph: &Graph, keep: &HashSet<&str>) -> Vec<Chain> {
    let (reachable, consumers) = (graph.reachable(), graph.consumers());
    let mut taken = vec![false; graph.nodes.len()];
    let mut chains = Vec::new();
    for (id, node) in graph.iter() {
        if !reachable[id.index()] || taken[id.index()] {
            continue;
        }
        let mut c = Chain { lead: id, bn: None, add: None, act: None, last: id };
        let dense = node.op.is_conv_or_linear();
        let joins = matches!(node.op, Op::BatchNorm2d(_) | Op::Add);
        if !(dense || joins) {
            chains.push(c);
            continue;
        }
        loop {
            let last = graph.node(c.last);
            let [next] = consumers[c.last.index()][..] else { break };
            if keep.contains(last.name.as_str()) || c.last == graph.output || taken[next.index()] || c.act.is_some() {
                break;
            }
            match &graph.node(next).op {
                Op::BatchNorm2d(_) | Op::Scale(_) if c.last == id && dense => c.bn = Some(next),
                Op::Add if dense && c.add.is_none() => match graph.node(next).inputs[..] {
                    [a, b] => c.add = Some((next, if a == c.last { b } else { a })),
                    _ => break,
                },
                Op::Activation { act } => c.act = Some((next, *act)),
                _ => break,
            }
            taken[next.index()] = true;
            c.last = next;
        }
        chains.push(c);
    }
    chains
}

/// Gives every value its place in the arena.
fn place_values(low: &mut Lowered, output: NodeId) {
    let lives = low.lives(output);
    let (at, end) = arena::place(&lives);
    low.values.iter_mut().zip(at).for_each(|(v, at)| v.at = at);
    low.arena = end;
    low.live = arena::largest_live(&lives);
}

impl Lowered {
    /// When each value is alive: from the step that writes it to the last that reads it, the output to the end.
    fn lives(&self, output: NodeId) -> Vec<Life> {
        let of = |v: &Value| {
            let first = v.step.unwrap_or(0);
            Life { numel: v.numel, first, last: first }
        };
        let mut lives: Vec<Life> = self.values.iter().map(of).collect();
        for (i, s) in self.steps.iter().enumerate() {
            s.inputs.iter().chain(&s.residual).for_each(|&v| lives[v].last = i);
        }
        if let Some(v) = self.value_of[output.index()] {
            lives[v].last = self.steps.len();
        }
        lives
    }
}

/// A kernel, its name and its parameter bytes, stored and in memory.
type Made = (Kernel, String, [u64; 2]);

impl Builder<'_> {
    fn pool(&self, window: Window) -> Result<Pool, ExecError> {
        let (channels, image) = self.image()?;
        match self.shapes[self.chain.lead.index()][..] {
            [_, h, w] => Ok(Pool { image, out_image: [h, w], channels, window }),
            ref other => Err(ExecError::shape(self.node, other, "[channels, height, width]")),
        }
    }

    fn kernel(&self, precision: Precision) -> Result<Made, ExecError> {
        let plain = |k: Kernel, name: &str| Ok((k, name.to_owned(), [0; 2]));
        let held = |k: Kernel, name: &str, n: usize| Ok((k, name.to_owned(), [4 * n as u64; 2]));
        match &self.node.op {
            Op::Conv2d(conv) => self.conv(conv, precision),
            Op::Linear(op::Linear { in_features, out_features, bias }) => {
                if self.input(0)?.len() > 2 {
                    return Err(ExecError::shape(self.node, self.input(0)?, "[tokens, features] or [features]"));
                }
                let (rows, _) = self.rows()?;
                let geo = Geometry::linear(rows, *in_features, *out_features);
                self.dense(geo, &[*out_features, *in_features], *bias, precision)
            }
            Op::BatchNorm2d(op::BatchNorm2d { channels, eps }) => {
                let (scale, shift) = self.batch_norm(self.node, *channels, *eps)?;
                held(Kernel::Affine { scale, shift, act: self.act() }, "affine-f32", 2 * channels)
            }
            Op::LayerNorm(op::LayerNorm { dim, eps }) => {
                self.rows()?;
                let w = self.values(self.node, ParamRole::Weight, &[*dim])?;
                let b = self.values(self.node, ParamRole::Bias, &[*dim])?;
                held(Kernel::LayerNorm { w, b, eps: *eps as f32 }, "layernorm-f32", 2 * dim)
            }
            Op::RmsNorm(op::RmsNorm { dim, eps }) => {
                let w = self.values(self.node, ParamRole::Weight, &[*dim])?;
                held(Kernel::RmsNorm { w, eps: *eps as f32 }, "rmsnorm-f32", *dim)
            }
            Op::Activation { act } => plain(Kernel::Activation(*act), "activation-f32"),
            Op::Softmax => plain(Kernel::Softmax { width: self.rows()?.1 }, "softmax-f32"),
            Op::Mul => {
                let (rows, channels) = self.rows()?;
                let kernel = match self.input(0)? == self.input(1)? {
                    true => Kernel::Mul,
                    false => Kernel::MulRows { rows, channels },
                };
                plain(kernel, "multiply-f32")
            }
            Op::Scale(op::Scale { channels }) => {
                let scale = self.values(self.node, ParamRole::Weight, &[*channels])?;
                let shift = vec![0.0; *channels];
                held(Kernel::Affine { scale, shift, act: self.act() }, "affine-f32", *channels)
            }
            Op::Scalar(op::Scalar { mul, add }) => {
                plain(Kernel::Scalar { mul: *mul as f32, add: *add as f32 }, "scalar-f32")
            }
            Op::Add => plain(Kernel::Add { act: self.act() }, "add-f32"),
            Op::MaxPool2d(op::MaxPool2d { kernel, stride, padding }) => {
                let window = Window { kernel: *kernel, stride: *stride, padding: *padding };
                plain(Kernel::MaxPool(self.pool(window)?), "maxpool-f32")
            }
            Op::AvgPool2d(op::AvgPool2d { kernel, stride, padding, count_padding }) => {
                let pool = self.pool(Window { kernel: *kernel, stride: *stride, padding: *padding })?;
                plain(Kernel::AvgPool { pool, count_padding: *count_padding }, "avgpool-f32")
            }
            Op::AdaptiveAvgPool2d(_) => {
                let window = Window { kernel: [1; 2], stride: [1; 2], padding: [0; 4] };
                plain(Kernel::AdaptivePool(self.pool(window)?), "avgpool-f32")
            }
            Op::Concat(op::Concat { inputs }) => {
                let width = |i| Ok(self.input(i)?[channel_axis(self.input(i)?)]);
                let widths = (0..*inputs).map(width).collect::<Result<_, ExecError>>()?;
                plain(Kernel::Concat { widths }, "copy-f32")
            }
            Op::Flatten => {
                let (channels, [h, w]) = self.image()?;
                plain(Kernel::Flatten { channels, positions: h * w }, "copy-f32")
            }
            Op::PatchMerge(op::PatchMerge { grid }) => {
                let (_, width) = self.rows()?;
                plain(Kernel::PatchMerge { grid: *grid, width }, "copy-f32")
            }
            Op::GlobalAvgPool => {
                let (channels, [h, w]) = self.image()?;
                plain(Kernel::Mean { rows: h * w, skip: 0, channels }, "mean-f32")
            }
            Op::ChannelPad(pad) => {
                let pool = self.padded(pad)?;
                plain(Kernel::ChannelPad { pool, map: pad.map.clone() }, "pad-f32")
            }
            Op::PrependTokens(op::PrependTokens { count, dim, at }) => {
                let tokens = self.values(self.node, ParamRole::Embedding, &[1, *count, *dim])?;
                held(Kernel::Insert { tokens, at: at * dim }, "copy-f32", count * dim)
            }
            Op::AddPositions(op::AddPositions { tokens, dim }) => {
                let p = self.values(self.node, ParamRole::Embedding, &[1, *tokens, *dim])?;
                held(Kernel::Positions(p), "add-f32", tokens * dim)
            }
            Op::Attention(attention) => self.attention(attention),
            Op::SelectToken(op::SelectToken { index }) => {
                let (rows, channels) = self.rows()?;
                plain(Kernel::Select { rows, index: *index, channels }, "copy-f32")
            }
            Op::MeanTokens(op::MeanTokens { skip }) => {
                let (rows, channels) = self.rows()?;
                plain(Kernel::Mean { rows, skip: *skip, channels }, "mean-f32")
            }
            Op::Input(_) | Op::ToTokens | Op::ToImage(_) => Err(ExecError::unsupported(self.node, "is not a step")),
        }
    }

    fn conv(&self, conv: &op::Conv2d, precision: Precision) -> Result<Made, ExecError> {
        let op::Conv2d { in_ch, out_ch, kernel, stride, padding, groups, bias } = *conv;
        let (_, image) = self.image()?;
        let window = Window { kernel, stride, padding };
        let (Some(oh), Some(ow)) = (window.out(0, image[0]), window.out(1, image[1])) else {
            return Err(ExecError::shape(self.node, image, "an image that the kernel fits"));
        };
        let geo = Geometry {
            image,
            channels: in_ch,
            out_image: [oh, ow],
            out_channels: out_ch,
            window,
            groups,
            codes: Codes::Image,
        };
        self.dense(geo, &[out_ch, in_ch / groups, kernel[0], kernel[1]], bias, precision)
    }

    /// The positions that a channel padding keeps; every row of tokens.
    fn padded(&self, pad: &op::ChannelPad) -> Result<Pool, ExecError> {
        let window = Window { kernel: [1, 1], stride: [pad.stride; 2], padding: [0; 4] };
        if self.input(0)?.len() == 3 {
            return self.pool(window);
        }
        let (rows, channels) = self.rows()?;
        Ok(Pool { image: [rows, 1], out_image: [rows, 1], channels, window })
    }

    fn attention(&self, attention: &op::Attention) -> Result<Made, ExecError> {
        let op::Attention { heads, qk_dim, v_dim, fused, scale, cosine, windows, bias } = *attention;
        let (tokens, _) = self.rows()?;
        let tokens = windows.map_or(tokens, |w| w.tokens());
        let core = Attention { tokens, heads, qk: qk_dim, v: v_dim, scale: scale as f32 };
        let (factors, bias, held) = self.position(cosine, windows, bias)?;
        let plain = factors.is_none() && windows.is_none() && bias.is_none();
        let around = (!plain).then(|| Around::new(&core, windows, factors, bias));
        let name = core.kernel();
        Ok((Kernel::Attention { core, fused, around }, name, [held; 2]))
    }

    fn dense(&self, geo: Geometry, shape: &[usize], has_bias: bool, precision: Precision) -> Result<Made, ExecError> {
        let n = geo.out_channels;
        let geo = match precision {
            Precision::Int8Static => Geometry { codes: Codes::Fixed(self.calibrated()?), ..geo },
            _ => geo,
        };
        let weight = self.weight(shape, precision)?;
        let Folded { bias, factors, stored: bias_bytes } = self.folded(n, has_bias)?;
        let epilogue = Epilogue { bias, act: self.act() };
        let dense = match (precision.int8_products(), weight.as_int8()) {
            (true, Some((q, scales))) => {
                let scales = scales.to_vec();
                let factors = match &factors {
                    Some(f) => scales.iter().zip(f).map(|(s, f)| s * f).collect(),
                    None => scales,
                };
                Dense::new(geo, Source::Int8 { q, factors: &factors }, epilogue)
            }
            _ => Dense::new(geo, Source::F32 { w: &weight.values(), factors: factors.as_deref() }, epilogue),
        };
        let (mut name, stored) = (dense.kernel(), weight.stored_bytes());
        let held = match precision.runs() {
            Runs::Real if precision == Precision::Int8Static => {
                name += " (static)";
                stored
            }
            Runs::Real => stored,
            Runs::Simulated => {
                name = format!("{name} ({} unpacked)", precision.label());
                4 * weight.numel() as u64
            }
        };
        Ok((Kernel::Dense(dense), name, [stored + bias_bytes, held + bias_bytes]))
    }
}
