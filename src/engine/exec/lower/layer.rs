//! One layer as both lowerings read it: its parameters checked, a batch norm or layer scale behind it folded, its position
//! bias worked out, its weight rounded to what it is stored in.

use super::chain::Chain;
use super::step::StepInfo;
use crate::exec::error::{ExecError, Result};
use crate::exec::unfold::Window;
use crate::graph::op;
use crate::graph::window::{log_coordinates, relative_index, relative_positions};
use crate::graph::{
    self, Activation, Graph, Node, Op, ParamRole, PositionBias, Precision, Precisions, Range, WeightFormat, Windows,
};
use crate::model::{Param, ParamStore};

/// A chain, and where its parameters and shapes are found.
pub(in crate::exec) struct Builder<'a> {
    pub graph: &'a Graph,
    pub params: &'a ParamStore,
    pub precision: &'a Precisions,
    /// Where the number of tokens is free, that of these is one of many.
    pub shapes: &'a [Vec<usize>],
    pub chain: &'a Chain,
    /// Its leading node.
    pub node: &'a Node,
    /// Weights are multiplied as they are stored, where a kernel can.
    pub as_stored: bool,
    /// What these are multiplied with is rounded as llama.cpp rounds it.
    pub as_llama_cpp: bool,
    /// Its kernel is called with any number of rows.
    pub one_row: bool,
}

/// What joins a dense layer's product, per output channel: `y · factor + bias`.
pub(in crate::exec) struct Folded {
    pub bias: Vec<f32>,
    /// Of a batch norm or layer scale.
    pub factors: Option<Vec<f32>>,
    /// Bytes of it as stored.
    pub stored: u64,
}

impl Folded {
    /// What an int8 product is scaled by, per output channel: the weight's own scales, and what is folded.
    pub fn times(&self, scales: &[f32]) -> Vec<f32> {
        match &self.factors {
            Some(f) => scales.iter().zip(f).map(|(s, f)| s * f).collect(),
            None => scales.to_vec(),
        }
    }
}

impl Builder<'_> {
    /// The leading node's precision.
    pub fn wanted(&self) -> Precision {
        self.precision.get(&self.node.name)
    }

    /// The leading node's weight as it is stored, if that is asked for; finite.
    pub fn stored(&self, shape: &[usize]) -> Result<Option<Param>> {
        if self.as_stored { self.packed(shape) } else { Ok(None) }
    }

    /// The leading node's weight as it is stored, where that is in fewer than 32 bits; finite.
    pub fn packed(&self, shape: &[usize]) -> Result<Option<Param>> {
        let name = self.node.param(ParamRole::Weight).unwrap_or_default();
        let Ok(param) = self.params.get(name) else { return Ok(None) };
        if param.shape() != shape {
            return Ok(None);
        }
        let param = match self.wanted().weights() {
            WeightFormat::F32 => param.clone(),
            format @ (WeightFormat::F16 | WeightFormat::Bf16 | WeightFormat::Block(_)) => param.stored_in(format),
            WeightFormat::Int8 | WeightFormat::Fp8 | WeightFormat::Int4 { .. } => return Ok(None),
            WeightFormat::Codebook { .. } => return Ok(None),
        };
        if param.packed().is_none() {
            return Ok(None);
        }
        match param.is_finite() {
            true => Ok(Some(param)),
            false => Err(self.beyond(name, self.wanted())),
        }
    }

    /// What the step is that `kernel` runs, with the bytes of its parameters as stored and as held.
    pub fn info(&self, kernel: String, [weight_bytes, held_bytes]: [u64; 2]) -> StepInfo {
        let chain = self.chain;
        let fused = [chain.bn, chain.add.map(|a| a.0), chain.act.map(|a| a.0)];
        StepInfo {
            name: self.node.name.clone(),
            node: chain.lead,
            kind: graph::describe(&self.node.op),
            fused: fused.into_iter().flatten().map(|id| self.graph.node(id).name.clone()).collect(),
            kernel,
            precision: if self.node.op.is_conv_or_linear() { self.wanted() } else { Precision::F32 },
            weight_bytes,
            held_bytes,
            out_shape: self.shapes[chain.last.index()].clone(),
        }
    }

    /// Kernels keep their own copies, so the file's pages need not stay in memory beside them.
    pub fn release(&self) {
        for id in [Some(self.chain.lead), self.chain.bn].into_iter().flatten() {
            let held = self.graph.node(id).params.iter().filter_map(|p| self.params.get(&p.name).ok());
            held.for_each(|p| p.release());
        }
    }

    /// A convolution's window with the rows and columns that it goes over and that come out.
    pub fn window(&self, conv: &op::Conv2d) -> Result<(Window, [usize; 2], [usize; 2])> {
        let (window, (_, [h, w])) = (Window::from(conv), self.image()?);
        match (window.out(0, h), window.out(1, w)) {
            (Some(oh), Some(ow)) => Ok((window, [h, w], [oh, ow])),
            _ => Err(ExecError::shape(self.node, [h, w], "an image that the kernel fits")),
        }
    }

    /// Values of `node`'s parameter in `role`; finite.
    pub fn values(&self, node: &Node, role: ParamRole, shape: &[usize]) -> Result<Vec<f32>> {
        let name = node.param(role).ok_or_else(|| ExecError::no_param(node, role))?;
        let v = self.params.expect(name, shape).map_err(|e| ExecError::param(node, e))?;
        if v.iter().any(|v| !v.is_finite()) {
            return Err(ExecError::NonFinite { node: node.name.clone(), param: name.to_owned() });
        }
        Ok(v.into_owned())
    }

    /// A batch norm as `x · scale + shift`.
    pub fn batch_norm(&self, node: &Node, c: usize, eps: f64) -> Result<(Vec<f32>, Vec<f32>)> {
        let w = self.values(node, ParamRole::Weight, &[c])?;
        let b = self.values(node, ParamRole::Bias, &[c])?;
        let mean = self.values(node, ParamRole::Mean, &[c])?;
        let var = self.values(node, ParamRole::Var, &[c])?;
        let scale: Vec<f64> = w.iter().zip(&var).map(|(&w, &v)| w as f64 / (v as f64 + eps).sqrt()).collect();
        if scale.iter().any(|s| !s.is_finite()) {
            let param = node.param(ParamRole::Var).unwrap_or_default().to_owned();
            return Err(ExecError::NonFinite { node: node.name.clone(), param });
        }
        let shift = b.iter().zip(&mean).zip(&scale).map(|((&b, &m), s)| (b as f64 - m as f64 * s) as f32).collect();
        Ok((scale.into_iter().map(|s| s as f32).collect(), shift))
    }

    /// Bias and factor of every output channel of a layer with `n`, with what follows it folded in.
    pub fn folded(&self, n: usize, has_bias: bool) -> Result<Folded> {
        let mut bias = match has_bias {
            true => self.values(self.node, ParamRole::Bias, &[n])?,
            false => vec![0.0; n],
        };
        let mut factors = None;
        if let Some(id) = self.chain.bn {
            let bn = self.graph.node(id);
            let (scale, shift) = match bn.op {
                Op::BatchNorm2d(op::BatchNorm2d { channels, eps }) if channels == n => self.batch_norm(bn, n, eps)?,
                Op::Scale(op::Scale { channels }) if channels == n => {
                    (self.values(bn, ParamRole::Weight, &[n])?, vec![0.0; n])
                }
                _ => return Err(ExecError::unsupported(bn, format!("does not fold into {n} channels"))),
            };
            for ((b, s), t) in bias.iter_mut().zip(&scale).zip(&shift) {
                *b = *b * s + t;
            }
            factors = Some(scale);
        }
        let stored = if has_bias || factors.is_some() { 4 * n as u64 } else { 0 };
        Ok(Folded { bias, factors, stored })
    }

    pub fn input(&self, i: usize) -> Result<&[usize]> {
        let id = self.node.inputs.get(i).ok_or_else(|| ExecError::unsupported(self.node, "has too few inputs"))?;
        Ok(&self.shapes[id.index()])
    }

    /// The first input as `[c, h, w]`.
    pub fn image(&self) -> Result<(usize, [usize; 2])> {
        match *self.input(0)? {
            [c, h, w] => Ok((c, [h, w])),
            ref other => Err(ExecError::shape(self.node, other, "[channels, height, width]")),
        }
    }

    /// The first input as `[rows, features]`: tokens, the pixels of an image, or one row for a plain vector.
    pub fn rows(&self) -> Result<(usize, usize)> {
        match *self.input(0)? {
            [c, h, w] => Ok((h * w, c)),
            [t, d] => Ok((t, d)),
            [d] => Ok((1, d)),
            ref other => Err(ExecError::shape(self.node, other, "[tokens, features] or [features]")),
        }
    }

    pub fn act(&self) -> Option<Activation> {
        self.chain.act.map(|a| a.1)
    }

    /// What an attention core has beside its products: factors per head, a bias `[heads, n, n]`, and the bytes of both.
    #[expect(clippy::type_complexity, reason = "two options and a count")]
    pub fn position(
        &self,
        cosine: bool,
        windows: Option<Windows>,
        bias: PositionBias,
    ) -> Result<(Option<Vec<f32>>, Option<Vec<f32>>, u64)> {
        let shapes = graph::param_shapes(&self.node.op);
        let get = |role: ParamRole| match shapes.iter().find(|(r, _)| *r == role) {
            Some((_, shape)) => self.values(self.node, role, shape),
            None => Err(ExecError::unsupported(self.node, "lacks a parameter of its position bias")),
        };
        let held: u64 = shapes.iter().map(|(_, s)| 4 * s.iter().product::<usize>() as u64).sum();
        let factors = match cosine {
            true => Some(get(ParamRole::LogitScale)?.iter().map(|f| f.min(100f32.ln()).exp()).collect()),
            false => None,
        };
        let spread = |table: &[f32], size: [usize; 2]| {
            let (index, heads) = (relative_index(size), table.len() / relative_positions(size).max(1));
            (0..heads).flat_map(|h| index.iter().map(move |&i| table[i as usize * heads + h])).collect()
        };
        let bias = match (bias, windows.map(|w| w.size)) {
            (PositionBias::None, _) => None,
            (PositionBias::Full { .. }, _) => Some(get(ParamRole::PositionBias)?),
            (PositionBias::Table, Some(size)) => Some(spread(&get(ParamRole::PositionBias)?, size)),
            (PositionBias::Continuous { hidden, trained }, Some(size)) => {
                let (w1, b1) = (get(ParamRole::PositionMlp1)?, get(ParamRole::PositionMlp1Bias)?);
                let w2 = get(ParamRole::PositionMlp2)?;
                let mut table = Vec::new();
                for [y, x] in log_coordinates(size, trained) {
                    let unit = |i: usize| (y * w1[2 * i] + x * w1[2 * i + 1] + b1[i]).max(0.0);
                    let units: Vec<f32> = (0..hidden).map(unit).collect();
                    table.extend(w2.chunks_exact(hidden.max(1)).map(|w| {
                        let sum: f32 = w.iter().zip(&units).map(|(w, u)| w * u).sum();
                        16.0 / (1.0 + (-sum).exp())
                    }));
                }
                Some(spread(&table, size))
            }
            (_, None) => return Err(ExecError::unsupported(self.node, "has a relative bias without windows")),
        };
        Ok((factors, bias, held))
    }

    /// The range that a static layer's input was calibrated to.
    pub fn calibrated(&self) -> Result<Range> {
        let why = "int8-static has no range for its input yet; hint: calibrate it with images (`--calib`)";
        let range = self.precision.inputs.get(&self.node.name).copied();
        range.filter(|r| r.is_sound()).ok_or_else(|| ExecError::unsupported(self.node, why))
    }

    /// The layer's weight in its precision's format: as stored where it is stored so, else rounded now.
    pub fn weight(&self, shape: &[usize], precision: Precision) -> Result<Param> {
        self.values(self.node, ParamRole::Weight, shape)?;
        if let Some(why) = precision.unfit(&self.node.op) {
            return Err(ExecError::unsupported(self.node, why));
        }
        let name = self.node.param(ParamRole::Weight).unwrap_or_default();
        let stored = self.params.get(name).map_err(|e| ExecError::param(self.node, e))?;
        let weight = stored.stored_in(precision.weights());
        // What f16 cannot hold, or scales of 16 bits.
        let halves = weight.is_in(WeightFormat::F16) || weight.as_blocks().is_some();
        if !halves || weight.is_finite() {
            return Ok(weight);
        }
        Err(self.beyond(name, precision))
    }

    /// Why the weight `name` is no number in `precision`: that cannot hold it, or it was none.
    fn beyond(&self, name: &str, precision: Precision) -> ExecError {
        let (node, param) = (self.node.name.clone(), name.to_owned());
        let largest = self.params.get(name).map(|p| p.values().iter().fold(0f32, |m, v| m.max(v.abs())));
        let sound = self.params.get(name).is_ok_and(|p| p.is_finite());
        match largest {
            Ok(largest) if sound => ExecError::Overflow { node, param, precision: precision.label(), largest },
            _ => ExecError::NonFinite { node, param },
        }
    }
}
