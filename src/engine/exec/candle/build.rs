//! Lowering to a [`Program`]: chains become steps, parameters become tensors on the device.
//!
//! Steps, their names and what fuses into them are those of the CPU's lowering (`lower::chains`): batch norm and layer scale
//! go into the layer before them, a residual add and an activation into its epilogue.

use super::attention::{Core, Limits, Sizes};
use super::dense::{library, linear, pointwise, unfolded};
use super::dtypes::{Flow, Role, decide};
use super::fp8::{self, Fp8};
use super::heads::KeptAngles;
use super::int8::{Codes, Int8, ProductLayout, Run};
use super::kernels::{Epilogue, Grouped, Norm, Pool, Pooled, Unfold, label};
use super::own::apply;
use super::packed::Packed;
use super::program::Program;
use super::site::TensorMap;
use super::walk::{Special, Step};
use crate::exec::capability::Capabilities;
use crate::exec::device::Kernels;
use crate::exec::error::{ExecError, Result};
use crate::exec::kernel::geometry::Code;
use crate::exec::lower::{Builder, Chain, chains, check_names};
use crate::exec::unfold::Window;
use crate::graph::{self, Graph, NodeId, Op, ParamRole, Precision, Precisions, op};
use crate::model::{Param, ParamStore};
use candle_core::{DType, Device, Tensor};
use std::collections::HashSet;
use std::sync::Arc;

impl Program {
    /// Lowers the reachable part of `graph` to `device`; `precision` and `keep` as for the CPU's lowering.
    ///
    /// # Errors
    /// Those of the CPU's lowering, a precision that a GPU has no kernel for, and what the tensor library reports.
    pub fn build(
        graph: Arc<Graph>,
        params: &ParamStore,
        precision: &Precisions,
        keep: &[String],
        device: &Device,
    ) -> Result<Program> {
        check_names(&graph, precision, keep)?;
        let shapes = graph::shapes_at(&graph, graph::least(&graph)?)?;
        let mut chains = chains(&graph, keep);
        let is_input = |c: &Chain| matches!(graph.node(c.lead).op, Op::Input(_));
        let missing = |name: &str, hint: &str| ExecError::UnknownNode { name: name.into(), hint: hint.into() };
        let input = chains.iter().find(|c| is_input(c)).map(|c| c.lead);
        let input = input.ok_or_else(|| missing("input", "the graph has no input"))?;
        chains.retain(|c| !is_input(c));
        let mut made = HashSet::from([input]);
        let mut flows = Vec::with_capacity(chains.len());
        for c in &chains {
            let node = graph.node(c.lead);
            let residual = c.add.map(|(_, other)| other);
            if let Some(early) = node.inputs.iter().chain(&residual).find(|i| !made.contains(i)) {
                let why = format!("its input `{}` is not computed before it", graph.node(*early).name);
                return Err(ExecError::unsupported(node, why));
            }
            made.insert(c.last);
            let role = match (node.op.is_conv_or_linear(), precision.get(&node.name)) {
                (true, Precision::F16) => Role::Fixed(DType::F16),
                (true, Precision::Bf16) => Role::Fixed(DType::BF16),
                (false, _) if node.op.traits().half => Role::Passes,
                // bf16 has too few digits for scores. Cosines are of sums of squares, which are f32.
                (false, _) if matches!(&node.op, Op::Attention(a) if !a.cosine) => Role::Takes(DType::F16),
                _ => Role::Fixed(DType::F32),
            };
            flows.push(Flow { out: c.last, inputs: node.inputs.clone(), residual, role });
        }
        if !made.contains(&graph.output) {
            return Err(missing("output", "the graph's output is not computed"));
        }
        let types = decide(&flows, graph.output);
        let (mut steps, mut infos, mut tensors) = (Vec::<Step>::new(), Vec::new(), TensorMap::new());
        for ((chain, flow), (compute, store)) in chains.iter().zip(flows).zip(types) {
            let node = graph.node(chain.lead);
            let (graph, shapes) = (&graph, &shapes);
            let b = Builder {
                graph,
                params,
                precision,
                shapes,
                chain,
                node,
                as_stored: false,
                as_llama_cpp: false,
                one_row: false,
            };
            let lowering = Lowering { b, device, compute };
            let (special, name, bytes) = lowering.choose(&mut tensors)?;
            lowering.b.release();
            let reads_f32 = |id: &NodeId| steps.iter().find(|s| s.out == *id).is_none_or(|s| s.store != compute);
            let casts = match (flow.inputs.iter().any(reads_f32), store == compute) {
                _ if compute == DType::F32 => "",
                (false, true) => "",
                (true, true) => " (f32 in)",
                (false, false) => " (f32 out)",
                (true, false) => " (f32 in, out)",
            };
            infos.push(lowering.b.info(format!("{name}{casts}"), bytes));
            steps.push(Step {
                lead: chain.lead,
                special,
                inputs: flow.inputs,
                residual: flow.residual,
                out: chain.last,
                compute,
                store,
            });
        }
        Ok(Program { graph, steps, infos, device: device.clone(), params: tensors, input })
    }
}

/// What a step runs (`None`: its op's definition), its name, and its parameters' bytes as stored and as held.
type NamedKernel = (Option<Special>, String, [u64; 2]);

/// Whether a step that `op` leads runs a kernel, alone or with what fuses into it; if not, its definition.
pub(in crate::exec) fn has_kernel(op: &Op) -> bool {
    let fuses = matches!(op, Op::Attention(_) | Op::Rope(_) | Op::BatchNorm2d(_) | Op::Scale(_) | Op::Add);
    let norms = matches!(op, Op::LayerNorm(_) | Op::RmsNorm(_) | Op::Activation { .. });
    op.is_conv_or_linear() || fuses || norms || matches!(op, Op::MaxPool2d(_) | Op::AvgPool2d(_))
}

/// What a layer's input is multiplied with.
type Product = Box<dyn Fn(&Tensor) -> candle_core::Result<Tensor> + Send + Sync>;

/// A kernel of one input.
fn special(
    f: impl Fn(&Tensor, Option<&Tensor>, DType) -> candle_core::Result<Tensor> + Send + Sync + 'static,
) -> Special {
    Box::new(move |inputs, residual, store| match inputs.first() {
        Some(x) => f(x, residual, store),
        None => candle_core::bail!("a step without an input"),
    })
}

struct Lowering<'a> {
    b: Builder<'a>,
    device: &'a Device,
    compute: DType,
}

impl Lowering<'_> {
    /// Who runs our own kernels.
    fn own(&self) -> &'static str {
        if self.device.is_cpu() { "plain" } else { "cuda" }
    }

    /// What products multiply.
    fn factors(&self) -> &'static str {
        let rounded = self.compute == DType::F32 && self.device.is_cuda();
        if rounded && candle_core::cuda::gemm_reduced_precision_f32() { "tf32" } else { label(self.compute) }
    }

    /// Who runs matrix products.
    fn products(&self) -> &'static str {
        if self.device.is_cpu() { "candle-cpu" } else { "cublas" }
    }

    fn tensor(&self, values: Vec<f32>) -> Result<Tensor> {
        let n = values.len();
        Ok(Tensor::from_vec(values, n, self.device)?)
    }

    /// The leading node's parameter in `role`, `[n]`.
    fn param(&self, role: ParamRole, n: usize) -> Result<Tensor> {
        self.tensor(self.b.values(self.b.node, role, &[n])?)
    }

    fn choose(&self, params: &mut TensorMap) -> Result<NamedKernel> {
        let (b, node, dtype) = (&self.b, self.b.node, self.compute);
        let own = |special: Special, what: &str, n: usize| {
            Ok((Some(special), format!("{what}-{}/{}", label(dtype), self.own()), [4 * n as u64; 2]))
        };
        let pool = |window, pooled, what| {
            let pool = Pool { window, pooled, dtype };
            own(special(move |x, _, _| apply(x, &pool)), what, 0)
        };
        let affine = |scale, shift: Option<Tensor>, n| {
            let act = b.act();
            let run = move |x: &Tensor, _: Option<&Tensor>, store| {
                Epilogue { scale: Some(&scale), bias: shift.as_ref(), act, ..Epilogue::none(store) }.on(x)
            };
            own(special(run), "affine", n)
        };
        let norm = |w, b, eps: f64, what, n| {
            let norm = Norm { w, b, eps: eps as f32 };
            own(special(move |x, _, _| apply(x, &norm)), what, n)
        };
        match &node.op {
            Op::Conv2d(conv) => {
                let (window, ..) = b.window(conv)?;
                let shape = [conv.out_ch, conv.in_ch / conv.groups, conv.kernel[0], conv.kernel[1]];
                let layout = match conv.groups {
                    1 => ProductLayout::Windows(window),
                    n => ProductLayout::Groups(window, n),
                };
                self.dense(layout, &shape, conv.bias)
            }
            Op::Linear(op::Linear { in_features, out_features, bias }) => {
                if b.input(0)?.len() > 2 {
                    return Err(ExecError::shape(node, b.input(0)?, "[tokens, features] or [features]"));
                }
                self.dense(ProductLayout::Rows, &[*out_features, *in_features], *bias)
            }
            Op::BatchNorm2d(op::BatchNorm2d { channels, eps }) => {
                let (scale, shift) = b.batch_norm(node, *channels, *eps)?;
                affine(self.tensor(scale)?, Some(self.tensor(shift)?), 2 * channels)
            }
            Op::Scale(op::Scale { channels }) => affine(self.param(ParamRole::Weight, *channels)?, None, *channels),
            Op::Add => {
                let act = b.act();
                let add = move |inputs: &[Tensor], _: Option<&Tensor>, store| match inputs {
                    [x, y] => Epilogue { residual: Some(y), act, ..Epilogue::none(store) }.on(x),
                    _ => candle_core::bail!("a sum of {} inputs", inputs.len()),
                };
                own(Box::new(add), "add", 0)
            }
            Op::LayerNorm(op::LayerNorm { dim, eps }) => {
                let (w, b) = (self.param(ParamRole::Weight, *dim)?, self.param(ParamRole::Bias, *dim)?);
                norm(w, Some(b), *eps, "layernorm", 2 * dim)
            }
            Op::RmsNorm(op::RmsNorm { dim, eps }) => {
                norm(self.param(ParamRole::Weight, *dim)?, None, *eps, "rmsnorm", *dim)
            }
            Op::Activation { act } => {
                let act = Some(*act);
                own(special(move |x, _, store| Epilogue { act, ..Epilogue::none(store) }.on(x)), "activation", 0)
            }
            Op::MaxPool2d(p) => pool(p.into(), Pooled::Max, "maxpool"),
            Op::AvgPool2d(p) => {
                let pooled = if p.count_padding { Pooled::MeanOfAll } else { Pooled::MeanOfSeen };
                pool(p.into(), pooled, "avgpool")
            }
            Op::Rope(rope) => {
                let rope = rope.clone();
                let kept = KeptAngles::default();
                let turn = move |x: &Tensor, _: Option<&Tensor>, _| kept.rotated(x, &rope);
                own(special(turn), "rope", 0)
            }
            Op::Attention(attention) => {
                let op::Attention { heads, group, qk_dim, v_dim, fused, scale, cosine, windows, bias, .. } = attention;
                let (tokens, _) = b.rows()?;
                if let Some(w) = windows {
                    w.check(tokens).map_err(|why| ExecError::unsupported(node, why))?;
                }
                let tokens = windows.map_or(tokens, |w| w.tokens());
                let (factors, bias, held) = b.position(*cosine, *windows, *bias)?;
                let (heads, group, qk, v) = (*heads, *group, *qk_dim, *v_dim);
                let sizes = Sizes { heads, group, qk, v, scale: *scale as f32, fused: *fused };
                let of = (sizes, Limits::of(attention));
                let core = Core::new(of, tokens, *windows, factors, bias, self.device)?;
                let name = format!("attention-{}/{}", self.factors(), self.products());
                Ok((Some(Box::new(move |inputs, _, _| core.run(inputs))), name, [held; 2]))
            }
            Op::Input(_) => Err(ExecError::unsupported(node, "is not a step")),
            // Every op has a definition, so a new one runs here before it has a kernel.
            _ => {
                let (mut bytes, mut stored) = (0, 0);
                let table = matches!(node.op, Op::Embedding(_));
                for (role, shape) in graph::param_shapes(&node.op) {
                    let values = b.values(node, role, &shape)?;
                    let name = node.param(role).ok_or_else(|| ExecError::no_param(node, role))?;
                    let held = 4 * values.len() as u64;
                    bytes += held;
                    // No precision is decided for a table: it stays as its file has it.
                    stored += if table { b.params.get(name).map_or(held, Param::stored_bytes) } else { held };
                    params.insert(name.to_owned(), Tensor::from_vec(values, shape, self.device)?);
                }
                let place = if self.device.is_cpu() { "candle-cpu" } else { "candle-cuda" };
                let name = format!("{}-{}/{place}", node.op.traits().name.replace(' ', ""), label(dtype));
                // The bytes of a layer's weight are that layer's.
                let own = !table || b.graph.sharing(node).is_none();
                Ok((None, name, [if own { stored } else { 0 }, bytes]))
            }
        }
    }

    fn dense(&self, layout: ProductLayout, shape: &[usize], has_bias: bool) -> Result<NamedKernel> {
        let (b, node, precision) = (&self.b, self.b.node, self.b.wanted());
        if let Some(why) = Capabilities::of(self.device, Kernels::Tensors).refuses(precision) {
            return Err(ExecError::unsupported(node, why));
        }
        let weight = b.weight(shape, precision)?;
        let n = shape[0];
        let folded = b.folded(n, has_bias)?;
        let (act, stored) = (b.act(), weight.stored_bytes() + folded.stored);
        if let (true, Some((q, scales))) = (precision.int8_products(), weight.as_int8()) {
            let (codes, suffix) = match precision {
                Precision::Int8Static => {
                    let range = b.calibrated()?;
                    (Codes::Fixed(Code::covering(range.lo, range.hi, 255)), " (static)")
                }
                _ => (Codes::Dynamic, ""),
            };
            let (what, by) = match layout {
                ProductLayout::Rows => ("gemm", "cublaslt"),
                ProductLayout::Windows(_) => ("unfold+gemm", "cublaslt"),
                ProductLayout::Groups(..) => (self.grouped(shape), "cuda"),
            };
            let by = if self.device.is_cpu() { "plain" } else { by };
            let layer = Int8::new(layout, codes, q, folded.times(scales), folded.bias, act, self.device)?;
            let held = layer.weight_bytes() + folded.stored;
            let run = special(move |x, residual, _| {
                let residual = residual.map(|r| r.to_dtype(DType::F32)?.contiguous()).transpose()?;
                apply(x, &Run { layer: &layer, residual: residual.as_ref() })
            });
            return Ok((Some(run), format!("{what}-i8/{by}{suffix}"), [stored, held]));
        }
        if let Some((codes, scales)) = weight.as_fp8() {
            let (what, by) = match layout {
                ProductLayout::Rows => ("gemm", "cublaslt"),
                ProductLayout::Windows(_) => ("unfold+gemm", "cublaslt"),
                ProductLayout::Groups(..) => (self.grouped(shape), "cuda"),
            };
            let by = if self.device.is_cpu() { "plain" } else { by };
            let layer = Fp8::new(layout, codes, folded.times(scales), folded.bias, act, self.device)?;
            let held = layer.weight_bytes() + folded.stored;
            let run = special(move |x, residual, _| {
                let residual = residual.map(|r| r.to_dtype(DType::F32)?.contiguous()).transpose()?;
                apply(x, &fp8::Run { layer: &layer, residual: residual.as_ref() })
            });
            return Ok((Some(run), format!("{what}-fp8/{by}"), [stored, held]));
        }
        if precision.weight_only() {
            let what = match layout {
                ProductLayout::Rows => "gemm",
                ProductLayout::Windows(window) if window == Window::ONE => "gemm",
                ProductLayout::Windows(_) => "unfold+gemm",
                ProductLayout::Groups(..) => self.grouped(shape),
            };
            let bias = (folded.stored > 0).then_some(folded.bias);
            let layer = Packed::new(layout, &weight, folded.factors, bias, act, self.device)?;
            let held = layer.weight_bytes() + folded.stored;
            let run = special(move |x, residual, _| {
                let residual = residual.map(|r| r.to_dtype(DType::F32)?.contiguous()).transpose()?;
                layer.run(x, residual.as_ref())
            });
            // Which of the two it is goes by the rows.
            let by = match layout {
                ProductLayout::Groups(..) => self.own().to_owned(),
                _ => format!("{}+{}", self.own(), self.products()),
            };
            return Ok((Some(run), format!("{what}-{}/{by}", precision.label()), [stored, held]));
        }
        let mut values = weight.values().into_owned();
        let k = values.len() / n.max(1);
        let mut scale = folded.factors;
        if let (DType::F32, Some(f)) = (self.compute, &scale) {
            // As the CPU folds it. Half-precision weights stay as they are stored, bit for bit, and are scaled afterwards.
            values.chunks_exact_mut(k.max(1)).zip(f).for_each(|(row, f)| row.iter_mut().for_each(|v| *v *= f));
            scale = None;
        }
        let w = Tensor::from_vec(values, shape, self.device)?.to_dtype(self.compute)?;
        let held = (w.elem_count() * self.compute.size_in_bytes()) as u64;
        let dtype = self.compute;
        let (product, what, factors, by): (Product, _, _, _) = match layout {
            ProductLayout::Rows => (Box::new(move |x| linear(x, &w)), "gemm", self.factors(), self.products()),
            // The library's own convolution.
            ProductLayout::Windows(window) if library(self.device, &window, dtype) => {
                let (padding, stride) = (window.padding[0], window.stride[0]);
                (Box::new(move |x| x.conv2d(&w, padding, stride, 1, 1)), "conv", self.factors(), "cudnn")
            }
            ProductLayout::Windows(window) if window == Window::ONE => {
                let w = w.reshape((1, n, k))?;
                (Box::new(move |x| pointwise(x, &w)), "gemm", self.factors(), self.products())
            }
            ProductLayout::Windows(window) => {
                let (w, unfold) = (w.reshape((1, n, k))?, Unfold { window, dtype });
                (Box::new(move |x| unfolded(x, &w, &unfold)), "unfold+gemm", self.factors(), self.products())
            }
            ProductLayout::Groups(window, groups) => {
                let grouped = Grouped { w, window, groups };
                (Box::new(move |x| apply(x, &grouped)), self.grouped(shape), label(dtype), self.own())
            }
        };
        let bias = if folded.stored > 0 { Some(self.tensor(folded.bias)?) } else { None };
        let scale = scale.map(|s| self.tensor(s)).transpose()?;
        let run = special(move |x, residual, dtype| {
            Epilogue { scale: scale.as_ref(), bias: bias.as_ref(), residual, act, dtype }.on(&product(x)?)
        });
        Ok((Some(run), format!("{what}-{factors}/{by}"), [stored, held + folded.stored]))
    }

    fn grouped(&self, shape: &[usize]) -> &'static str {
        if shape.get(1) == Some(&1) { "depthwise" } else { "grouped" }
    }
}
