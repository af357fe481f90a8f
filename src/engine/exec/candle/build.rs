//! Lowering to a [`Program`]: chains become steps, parameters become tensors on the device.
//!
//! Steps, their names and what fuses into them are those of the CPU's lowering (`lower::chains`): batch norm and layer scale
//! go into the layer before them, a residual add and an activation into its epilogue.

use super::attention::{Core, Sizes};
use super::dense::{Dense, Product, library};
use super::dtypes::{Flow, Role, decide};
use super::int8::{Codes, Int8, ProductLayout};
use super::kernels::{Grouped, Unfold, label};
use super::program::Program;
use super::site::{Pass, Site, TensorMap};
use super::special::Special;
use super::walk::Step;
use crate::exec::capability::Capabilities;
use crate::exec::device::Kernels;
use crate::exec::error::ExecError;
use crate::exec::kernel::geometry::Code;
use crate::exec::lower::{Builder, Folded, StepInfo, chains, check_names};
use crate::exec::unfold::Window;
use crate::graph::op;
use crate::graph::{self, Graph, NodeId, Op, ParamRole, Precision, PrecisionPlan};
use crate::model::ParamStore;
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
        precision: &PrecisionPlan,
        keep: &[String],
        device: &Device,
    ) -> Result<Program, ExecError> {
        check_names(&graph, precision, keep)?;
        let shapes = graph::shapes_at(&graph, graph::least(&graph)?)?;
        let free = graph.is_free();
        let keep: HashSet<&str> = keep.iter().map(String::as_str).collect();
        let mut chains = chains(&graph, &keep);
        chains.sort_by_key(|c| c.last);
        let input = chains.iter().find(|c| matches!(graph.node(c.lead).op, Op::Input(_))).map(|c| c.lead);
        let missing = |name: &str, hint: &str| ExecError::UnknownNode { name: name.into(), hint: hint.into() };
        let input = input.ok_or_else(|| missing("input", "the graph has no input"))?;
        chains.retain(|c| !matches!(graph.node(c.lead).op, Op::Input(_)));
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
            let range = precision.inputs.get(&node.name).copied();
            let b = Builder { graph: &graph, params, node, shapes: &shapes, free, chain, range };
            let wanted = precision.get(&node.name);
            let chosen = Lowering { b, device, compute }.choose(wanted, &mut tensors)?;
            for id in [Some(chain.lead), chain.bn].into_iter().flatten() {
                graph.node(id).params.iter().filter_map(|p| params.get(&p.name).ok()).for_each(|p| p.release());
            }
            let dense = matches!(chosen.special, Some(Special::Dense(_)));
            let reads_f32 = |id: &NodeId| steps.iter().find(|s| s.out == *id).is_none_or(|s| s.store != compute);
            let casts = match (flow.inputs.iter().any(reads_f32), store == compute) {
                _ if compute == DType::F32 => "",
                (false, true) => "",
                (true, true) => " (f32 in)",
                (false, false) => " (f32 out)",
                (true, false) => " (f32 in, out)",
            };
            let fused = [chain.bn, chain.add.map(|a| a.0), chain.act.map(|a| a.0)];
            infos.push(StepInfo {
                name: node.name.clone(),
                node: chain.lead,
                kind: graph::describe(&node.op),
                fused: fused.into_iter().flatten().map(|id| graph.node(id).name.clone()).collect(),
                kernel: format!("{}{casts}", chosen.name),
                precision: if dense { wanted } else { Precision::F32 },
                weight_bytes: chosen.stored,
                held_bytes: chosen.held,
                out_shape: shapes[chain.last.index()].clone(),
            });
            steps.push(Step {
                lead: chain.lead,
                special: chosen.special,
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

/// What a step runs, its name, and its parameters' bytes as stored and as held.
struct Chosen {
    /// `None`: the op's definition.
    special: Option<Special>,
    name: String,
    stored: u64,
    held: u64,
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

    fn tensor(&self, values: Vec<f32>) -> Result<Tensor, ExecError> {
        let n = values.len();
        Ok(Tensor::from_vec(values, n, self.device)?)
    }

    fn choose(&self, precision: Precision, params: &mut TensorMap) -> Result<Chosen, ExecError> {
        let (b, node) = (&self.b, self.b.node);
        let own = |special, what: &str, n: usize| {
            let name = format!("{what}-{}/{}", label(self.compute), self.own());
            Ok(Chosen { special: Some(special), name, stored: 4 * n as u64, held: 4 * n as u64 })
        };
        match &node.op {
            Op::Conv2d(op::Conv2d { in_ch, out_ch, kernel, stride, padding, groups, bias }) => {
                let (_, [h, w]) = b.image()?;
                let window = Window { kernel: *kernel, stride: *stride, padding: *padding };
                if window.out(0, h).is_none() || window.out(1, w).is_none() {
                    return Err(ExecError::shape(node, [h, w], "an image that the kernel fits"));
                }
                let shape = [*out_ch, in_ch / groups, kernel[0], kernel[1]];
                let layout =
                    if *groups > 1 { ProductLayout::Groups(window, *groups) } else { ProductLayout::Windows(window) };
                self.dense(layout, &shape, *bias, precision)
            }
            Op::Linear(op::Linear { in_features, out_features, bias }) => {
                if b.input(0)?.len() > 2 {
                    return Err(ExecError::shape(node, b.input(0)?, "[tokens, features] or [features]"));
                }
                self.dense(ProductLayout::Rows, &[*out_features, *in_features], *bias, precision)
            }
            Op::BatchNorm2d(op::BatchNorm2d { channels, eps }) => {
                let (scale, shift) = b.batch_norm(node, *channels, *eps)?;
                let (scale, shift) = (self.tensor(scale)?, Some(self.tensor(shift)?));
                own(Special::Affine { scale, shift, act: b.act() }, "affine", 2 * channels)
            }
            Op::Scale(op::Scale { channels }) => {
                let scale = self.tensor(b.values(node, ParamRole::Weight, &[*channels])?)?;
                own(Special::Affine { scale, shift: None, act: b.act() }, "affine", *channels)
            }
            Op::Add => own(Special::Add { act: b.act() }, "add", 0),
            Op::Attention(op::Attention { heads, qk_dim, v_dim, fused, scale, cosine, windows, bias }) => {
                let (tokens, _) = b.rows()?;
                if let Some(w) = windows {
                    w.check(tokens).map_err(|why| ExecError::unsupported(node, why))?;
                }
                let tokens = windows.map_or(tokens, |w| w.tokens());
                let (factors, bias, held) = b.position(*cosine, *windows, *bias)?;
                let sizes = Sizes { heads: *heads, qk: *qk_dim, v: *v_dim, scale: *scale as f32, fused: *fused };
                let core = Core::new(sizes, tokens, *windows, factors, bias, self.device)?;
                let name = format!("attention-{}/{}", self.factors(), self.products());
                Ok(Chosen { special: Some(Special::Attention(core)), name, stored: held, held })
            }
            Op::Input(_) => Err(ExecError::unsupported(node, "is not a step")),
            // Every op has a definition, so a new one runs here before it has a kernel.
            _ => self.alone(params),
        }
    }

    /// A node that nothing fuses with: by a kernel of ours where there is one, else by its definition.
    fn alone(&self, params: &mut TensorMap) -> Result<Chosen, ExecError> {
        let (b, node) = (&self.b, self.b.node);
        let mut bytes = 0;
        for (role, shape) in graph::param_shapes(&node.op) {
            let values = b.values(node, role, &shape)?;
            let name = node.param(role).ok_or_else(|| ExecError::no_param(node, role))?;
            bytes += 4 * values.len() as u64;
            params.insert(name.to_owned(), Tensor::from_vec(values, shape, self.device)?);
        }
        let site = Site { node, params, pass: Pass::default() };
        let (special, what, place) = match site.special(self.compute)? {
            Some((special, what)) => (Some(special), what.to_owned(), self.own()),
            None => {
                let place = if self.device.is_cpu() { "candle-cpu" } else { "candle-cuda" };
                (None, node.op.traits().name.replace(' ', ""), place)
            }
        };
        let name = format!("{what}-{}/{place}", label(self.compute));
        Ok(Chosen { special, name, stored: bytes, held: bytes })
    }

    fn dense(
        &self,
        layout: ProductLayout,
        shape: &[usize],
        has_bias: bool,
        precision: Precision,
    ) -> Result<Chosen, ExecError> {
        let (b, node) = (&self.b, self.b.node);
        if let Some(why) = Capabilities::of(self.device, Kernels::Tensors).refuses(precision) {
            return Err(ExecError::unsupported(node, why));
        }
        let weight = b.weight(shape, precision)?;
        let n = shape[0];
        let Folded { bias, factors, stored } = b.folded(n, has_bias)?;
        let act = b.act();
        if let (true, Some((q, scales))) = (precision.int8_products(), weight.as_int8()) {
            let factors = match factors {
                Some(f) => scales.iter().zip(&f).map(|(s, f)| s * f).collect(),
                None => scales.to_vec(),
            };
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
            let layer = Int8::new(layout, codes, q, factors, bias, act, self.device)?;
            let (held, stored) = (layer.weight_bytes() + stored, weight.stored_bytes() + stored);
            let name = format!("{what}-i8/{by}{suffix}");
            return Ok(Chosen { special: Some(Special::Dense(Dense::Int8(layer))), name, stored, held });
        }
        let mut values = weight.values().into_owned();
        let mut scale = factors;
        if let (DType::F32, Some(f)) = (self.compute, &scale) {
            // As the CPU folds it. Half-precision weights stay as they are stored, bit for bit, and are scaled afterwards.
            let k = values.len() / n.max(1);
            values.chunks_exact_mut(k.max(1)).zip(f).for_each(|(row, f)| row.iter_mut().for_each(|v| *v *= f));
            scale = None;
        }
        let k = values.len() / n.max(1);
        let w = Tensor::from_vec(values, shape, self.device)?.to_dtype(self.compute)?;
        let held = (w.elem_count() * self.compute.size_in_bytes()) as u64;
        let one = Window { kernel: [1, 1], stride: [1, 1], padding: [0; 4] };
        let dtype = self.compute;
        let (product, what, by) = match layout {
            ProductLayout::Rows => (Product::Linear(w), "gemm", self.products()),
            ProductLayout::Windows(window) if library(self.device, &window, dtype) => {
                let (padding, stride) = (window.padding[0], window.stride[0]);
                (Product::Library { w, padding, stride }, "conv", "cudnn")
            }
            ProductLayout::Windows(window) if window == one => {
                (Product::Pointwise(w.reshape((1, n, k))?), "gemm", self.products())
            }
            ProductLayout::Windows(window) => {
                let unfold = Unfold { window, dtype };
                (Product::Unfolded(w.reshape((1, n, k))?, unfold), "unfold+gemm", self.products())
            }
            ProductLayout::Groups(window, groups) => {
                (Product::Grouped(Grouped { w, window, groups }), self.grouped(shape), self.own())
            }
        };
        let bias = if stored > 0 { Some(self.tensor(bias)?) } else { None };
        let scale = scale.map(|s| self.tensor(s)).transpose()?;
        let products = matches!(product, Product::Linear(_) | Product::Pointwise(_) | Product::Unfolded(..));
        let name = format!("{what}-{}/{by}", if products { self.factors() } else { label(dtype) });
        let (stored, held) = (weight.stored_bytes() + stored, held + stored);
        let special = Some(Special::Dense(Dense::Float { product, scale, bias, act }));
        Ok(Chosen { special, name, stored, held })
    }

    fn grouped(&self, shape: &[usize]) -> &'static str {
        if shape.get(1) == Some(&1) { "depthwise" } else { "grouped" }
    }
}
