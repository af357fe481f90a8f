//! Every op in double precision by plain loops, together with how far a correct kernel may be from it.
//!
//! Shares no code with `exec`: neither its kernels nor the tensor library that its reference runs on. The bounds follow
//! the computation. A sum of `k` rounded products is off by about `√k · u · Σ|products|` (Higham & Mary 2019; `u` is
//! half an ulp of f32), several times what is seen and far below what an approximate format such as TF32 leaves. An
//! int8 product is off by what its codes cut away: a step `s_x = (max - min) / top` for activations, `s_w = max|w| / 127`
//! for weights, each value uniformly up to half a step. That error has the variance
//! `Σ (x² s_w² + w² s_x² + s_x² s_w² / 12) / 12`, and six standard deviations are allowed. A product in f16 or bf16 rounds both
//! factors, each by up to `u` (half an ulp of one) of itself, and then the sum: `(2 Σ (x w)² + y²) u² / 3`.

mod attention;

use crate::graph::op;
use crate::graph::{Activation, Graph, Node, Op, ParamRole, Precision, PrecisionPlan, shapes};
use crate::model::ParamStore;
use anyhow::{Context, Result, bail};
use attention::{Around, Part, attend};

/// Half an ulp of one in f32.
const U: f64 = 1.0 / (1u64 << 24) as f64;

/// Standard deviations of quantization error that are allowed.
pub(super) const SIGMAS: f64 = 6.0;

/// A value in its op's documented layout, images one after another.
#[derive(Debug, Clone, Default)]
pub(super) struct Value {
    pub y: Vec<f64>,
    /// How far each element of a correct kernel's result may be from `y`.
    pub tolerance: Vec<f64>,
}

impl Value {
    fn push(&mut self, y: f64, tolerance: f64) {
        self.y.push(y);
        self.tolerance.push(tolerance);
    }
}

/// What is computed and how.
pub(super) struct Run<'a> {
    pub graph: &'a Graph,
    pub params: &'a ParamStore,
    pub precision: &'a PrecisionPlan,
    pub images: usize,
    /// The largest activation code of int8 kernels.
    pub top_code: u8,
}

impl Run<'_> {
    /// The graph's output for `x` `[images, c, h, w]`.
    pub fn output(&self, x: &[f32]) -> Result<Value> {
        let shapes = shapes(self.graph)?;
        let mut values: Vec<Value> = Vec::with_capacity(shapes.len());
        for (id, node) in self.graph.iter() {
            let inputs: Vec<(&Value, &[usize])> =
                node.inputs.iter().map(|i| (&values[i.index()], shapes[i.index()].as_slice())).collect();
            let value = match (&node.op, &inputs[..]) {
                (Op::Input(_), _) => {
                    Value { y: x.iter().map(|v| f64::from(*v)).collect(), tolerance: vec![0.0; x.len()] }
                }
                (_, [first, rest @ ..]) => self.node(node, *first, rest, &shapes[id.index()])?,
                (_, []) => bail!("node `{}` has no input", node.name),
            };
            let expected = self.images * shapes[id.index()].iter().product::<usize>();
            if value.y.len() != expected {
                bail!("node `{}`: {} values, expected {expected}", node.name, value.y.len());
            }
            values.push(value);
        }
        Ok(values.swap_remove(self.graph.output.index()))
    }

    fn param(&self, node: &Node, role: ParamRole) -> Result<Vec<f64>> {
        let name = node.param(role).with_context(|| format!("node `{}` has no {role:?}", node.name))?;
        Ok(self.params.get(name)?.values().iter().map(|v| f64::from(*v)).collect())
    }

    fn node(
        &self,
        node: &Node,
        first: (&Value, &[usize]),
        rest: &[(&Value, &[usize])],
        out: &[usize],
    ) -> Result<Value> {
        let (x, shape) = first;
        let last = shape.last().copied().unwrap_or(1).max(1);
        let mut v = Value::default();
        match &node.op {
            Op::Input(_) => bail!("node `{}` is an input with inputs", node.name),
            Op::Conv2d(_) => return self.conv(node, x, shape, out),
            Op::Linear(op::Linear { out_features, .. }) => {
                let sums = self.dense(node, *out_features)?;
                let steps = |row: usize| self.step(&x.y[row * last..][..last]);
                for row in 0..x.y.len() / last {
                    for o in 0..*out_features {
                        let mut sum = sums.start(o, steps(row));
                        (0..last).for_each(|i| sum.add(x.y[row * last + i], x.tolerance[row * last + i], i));
                        sum.finish(&mut v);
                    }
                }
            }
            Op::BatchNorm2d(_) | Op::LayerNorm(_) | Op::RmsNorm(_) | Op::Softmax | Op::Scale(_) if shape.len() == 3 => {
                // Pixel by pixel, as tokens.
                let [c, h, w] = image(node, shape)?;
                let rows = self.node(node, (&self.turned(x, c, h * w), &[h * w, c]), rest, &[h * w, c])?;
                return Ok(self.turned(&rows, h * w, c));
            }
            Op::BatchNorm2d(op::BatchNorm2d { channels, eps }) => {
                let (w, b) = (self.param(node, ParamRole::Weight)?, self.param(node, ParamRole::Bias)?);
                let (mean, var) = (self.param(node, ParamRole::Mean)?, self.param(node, ParamRole::Var)?);
                for (i, (&x, &t)) in x.y.iter().zip(&x.tolerance).enumerate() {
                    let c = i % channels;
                    let scale = w[c] / (var[c] + eps).sqrt();
                    let size = (scale * x).abs() + b[c].abs() + (mean[c] * scale).abs();
                    v.push((x - mean[c]) * scale + b[c], scale.abs() * t + 8.0 * U * size);
                }
            }
            Op::LayerNorm(op::LayerNorm { eps, .. }) => {
                let (w, b) = (self.param(node, ParamRole::Weight)?, self.param(node, ParamRole::Bias)?);
                let n = last as f64;
                for (row, tolerance) in x.y.chunks(last).zip(x.tolerance.chunks(last)) {
                    let mean = row.iter().sum::<f64>() / n;
                    let inverse = 1.0 / (row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n + eps).sqrt();
                    let size = row.iter().map(|v| v.abs()).sum::<f64>() / n;
                    let off = tolerance.iter().fold(0.0, |m: f64, t| m.max(*t));
                    for (i, x) in row.iter().enumerate() {
                        let y = (x - mean) * inverse;
                        let rounding = (n.sqrt() + 8.0) * U * ((size + x.abs()) * inverse + y.abs());
                        let spread = off * inverse * (2.0 + y.abs());
                        v.push(y * w[i] + b[i], w[i].abs() * (rounding + spread) + U * b[i].abs());
                    }
                }
            }
            Op::RmsNorm(op::RmsNorm { eps, .. }) => {
                let w = self.param(node, ParamRole::Weight)?;
                let n = last as f64;
                for (row, tolerance) in x.y.chunks(last).zip(x.tolerance.chunks(last)) {
                    let inverse = 1.0 / (row.iter().map(|v| v * v).sum::<f64>() / n + eps).sqrt();
                    let off = tolerance.iter().fold(0.0, |m: f64, t| m.max(*t));
                    for (i, x) in row.iter().enumerate() {
                        let y = x * inverse;
                        let spread = off * inverse * (1.0 + y.abs());
                        v.push(y * w[i], w[i].abs() * ((n.sqrt() + 8.0) * U * y.abs() + spread));
                    }
                }
            }
            Op::Softmax => {
                for (row, tolerance) in x.y.chunks(last).zip(x.tolerance.chunks(last)) {
                    let top = row.iter().fold(f64::NEG_INFINITY, |m, s| m.max(*s));
                    let low = row.iter().fold(f64::INFINITY, |m, s| m.min(*s));
                    let total: f64 = row.iter().map(|s| (s - top).exp()).sum();
                    let off = tolerance.iter().fold(0.0, |m: f64, t| m.max(*t));
                    let relative = 2.0 * (off + 2.0 * U * (top - low)) + ((last as f64).sqrt() + 40.0) * U;
                    row.iter().map(|s| (s - top).exp() / total).for_each(|p| v.push(p, relative * p));
                }
            }
            Op::Mul => {
                let [(other, factor)] = rest else { bail!("node `{}` needs two inputs", node.name) };
                let each = shape.iter().product::<usize>();
                for (i, (a, s)) in x.y.iter().zip(&x.tolerance).enumerate() {
                    let j = match *factor == shape {
                        true => i,
                        // A factor per channel of an image, or per column of tokens.
                        false if shape.len() == 3 => i / each * shape[0] + i % each / (shape[1] * shape[2]),
                        false => i / each * last + i % last,
                    };
                    let (b, t) = (other.y[j], other.tolerance[j]);
                    v.push(a * b, s * b.abs() + t * a.abs() + s * t + 2.0 * U * (a * b).abs());
                }
            }
            Op::Scale(op::Scale { channels }) => {
                let w = self.param(node, ParamRole::Weight)?;
                for (i, (x, t)) in x.y.iter().zip(&x.tolerance).enumerate() {
                    let w = w[i % channels];
                    v.push(x * w, w.abs() * t + 2.0 * U * (x * w).abs());
                }
            }
            Op::Scalar(op::Scalar { mul, add }) => {
                for (x, t) in x.y.iter().zip(&x.tolerance) {
                    v.push(x * mul + add, mul.abs() * t + 4.0 * U * ((x * mul).abs() + add.abs()));
                }
            }
            Op::AvgPool2d(op::AvgPool2d { kernel, stride, padding, count_padding }) => {
                let ([c, h, w], [_, oh, ow]) = (image(node, shape)?, image(node, out)?);
                for (plane, at) in (0..self.images * c).flat_map(|p| (0..oh * ow).map(move |at| (p, at))) {
                    let mut seen: Vec<usize> = Vec::new();
                    taps(at / ow, at % ow, *kernel, *stride, *padding, [h, w], |_, pixel| seen.push(pixel));
                    let n = if *count_padding { kernel[0] * kernel[1] } else { seen.len() };
                    let at = |p: &usize| plane * h * w + p;
                    mean(seen.iter().map(|p| (&x.y[at(p)], &x.tolerance[at(p)])), n, &mut v);
                }
            }
            Op::AdaptiveAvgPool2d(_) => {
                let ([c, h, w], [_, oh, ow]) = (image(node, shape)?, image(node, out)?);
                let range = |o: usize, len: usize, n: usize| o * len / n..((o + 1) * len).div_ceil(n);
                for (plane, at) in (0..self.images * c).flat_map(|p| (0..oh * ow).map(move |at| (p, at))) {
                    let (ys, xs) = (range(at / ow, h, oh), range(at % ow, w, ow));
                    let n = ys.len() * xs.len();
                    let pixels = ys.flat_map(|y| xs.clone().map(move |px| (plane * h + y) * w + px));
                    mean(pixels.map(|i| (&x.y[i], &x.tolerance[i])), n, &mut v);
                }
            }
            Op::Concat(_) => {
                let all: Vec<(&Value, &[usize])> = std::iter::once((x, shape)).chain(rest.iter().copied()).collect();
                // Runs of values that go one after the other: planes of an image, the columns of a row.
                let run = |s: &[usize]| if s.len() == 3 { s.iter().product() } else { s.last().copied().unwrap_or(1) };
                let rounds = x.y.len() / run(shape).max(1);
                for i in 0..rounds {
                    for (value, s) in &all {
                        let n: usize = run(s);
                        (i * n..(i + 1) * n).for_each(|j| v.push(value.y[j], value.tolerance[j]));
                    }
                }
            }
            Op::Flatten => x.y.iter().zip(&x.tolerance).for_each(|(y, t)| v.push(*y, *t)),
            Op::ToImage(op::ToImage { h, w }) => v = self.turned(x, h * w, last),
            Op::PatchMerge(op::PatchMerge { grid: [h, w] }) => {
                for i in 0..self.images * h * w * last {
                    let (at, cell, d) = (i / (4 * last), i % (4 * last) / last, i % last);
                    let (image, y, column) = (at / (h * w / 4), at / (w / 2) % (h / 2), at % (w / 2));
                    let from = ((image * h + 2 * y + cell % 2) * w + 2 * column + cell / 2) * last + d;
                    v.push(x.y[from], x.tolerance[from]);
                }
            }
            Op::Activation { act } => {
                for (&x, &t) in x.y.iter().zip(&x.tolerance) {
                    // Slopes stay below 1.13; kernels may approximate the smooth ones to 32 units.
                    match act {
                        Activation::Relu => v.push(x.max(0.0), t),
                        // Its slope reaches 1.5.
                        Activation::HardSwish => v.push(smooth(*act, x), 1.5 * t + 32.0 * U * (1.0 + x.abs())),
                        _ => v.push(smooth(*act, x), 1.13 * t + 32.0 * U * (1.0 + x.abs())),
                    }
                }
            }
            Op::Add => {
                let [(other, _)] = rest else { bail!("node `{}` needs two inputs", node.name) };
                let both = x.y.iter().zip(&x.tolerance).zip(other.y.iter().zip(&other.tolerance));
                both.for_each(|((a, s), (b, t))| v.push(a + b, s + t + 2.0 * U * (a + b).abs()));
            }
            Op::MaxPool2d(op::MaxPool2d { kernel, stride, padding }) => {
                let [c, h, w] = image(node, shape)?;
                let [_, oh, ow] = image(node, out)?;
                for plane in 0..self.images * c {
                    for at in 0..oh * ow {
                        let (mut most, mut off) = (f64::NEG_INFINITY, 0.0f64);
                        taps(at / ow, at % ow, *kernel, *stride, *padding, [h, w], |_, pixel| {
                            most = most.max(x.y[plane * h * w + pixel]);
                            off = off.max(x.tolerance[plane * h * w + pixel]);
                        });
                        v.push(most, off);
                    }
                }
            }
            Op::GlobalAvgPool => {
                let [_, h, w] = image(node, shape)?;
                for (y, t) in x.y.chunks(h * w).zip(x.tolerance.chunks(h * w)) {
                    mean(y.iter().zip(t), h * w, &mut v);
                }
            }
            Op::MeanTokens(op::MeanTokens { skip }) => {
                let rows = shape.first().copied().unwrap_or(0);
                for image in 0..self.images {
                    for c in 0..last {
                        let at = |r: usize| (image * rows + r) * last + c;
                        mean((*skip..rows).map(|r| (&x.y[at(r)], &x.tolerance[at(r)])), rows - skip, &mut v);
                    }
                }
            }
            Op::ChannelPad(op::ChannelPad { map, .. }) if shape.len() < 3 => {
                for row in 0..x.y.len() / last {
                    for from in map.iter().map(|m| m.map(|c| row * last + c as usize)) {
                        v.push(from.map_or(0.0, |i| x.y[i]), from.map_or(0.0, |i| x.tolerance[i]));
                    }
                }
            }
            Op::ChannelPad(op::ChannelPad { stride, map, .. }) => {
                let [c, h, w] = image(node, shape)?;
                let [_, oh, ow] = image(node, out)?;
                for image in 0..self.images {
                    for (from, at) in map.iter().flat_map(|m| (0..oh * ow).map(move |at| (m, at))) {
                        let pixel = at / ow * stride * w + at % ow * stride;
                        let i = from.map(|ch| (image * c + ch as usize) * h * w + pixel);
                        v.push(i.map_or(0.0, |i| x.y[i]), i.map_or(0.0, |i| x.tolerance[i]));
                    }
                }
            }
            Op::ToTokens => {
                let [c, h, w] = image(node, shape)?;
                v = self.turned(x, c, h * w);
            }
            Op::PrependTokens(op::PrependTokens { at, .. }) => {
                let tokens = self.param(node, ParamRole::Embedding)?;
                let each = x.y.len() / self.images.max(1);
                for image in 0..self.images {
                    let split = image * each + at * last;
                    (image * each..split).for_each(|i| v.push(x.y[i], x.tolerance[i]));
                    tokens.iter().for_each(|t| v.push(*t, 0.0));
                    (split..(image + 1) * each).for_each(|i| v.push(x.y[i], x.tolerance[i]));
                }
            }
            Op::AddPositions(_) => {
                let positions = self.param(node, ParamRole::Embedding)?;
                for (i, (x, t)) in x.y.iter().zip(&x.tolerance).enumerate() {
                    let y = x + positions[i % positions.len()];
                    v.push(y, t + 2.0 * U * y.abs());
                }
            }
            Op::Attention(op::Attention { heads, qk_dim, v_dim, fused, scale, cosine, windows, bias }) => {
                let (h, qk, vd) = (*heads, *qk_dim, *v_dim);
                let parts = match (fused, rest) {
                    (true, []) => [(x, last, 0), (x, last, h * qk), (x, last, 2 * h * qk)],
                    (false, [(k, _), (vs, _)]) => [(x, h * qk, 0), (*k, h * qk, 0), (*vs, h * vd, 0)],
                    _ => bail!("node `{}` needs one fused input or three", node.name),
                };
                let [q, k, vs] = parts.map(|(value, width, at)| Part { value, width, at });
                let tokens = shape.first().copied().unwrap_or(0);
                let around = Around::of(self, node, tokens, (*cosine, *windows, *bias), h)?;
                for row in 0..self.images * tokens {
                    let first = row / tokens * tokens;
                    for head in 0..h {
                        let keys = around.keys(row - first, head, first);
                        attend([q, k, vs], row, &keys, [head, qk, vd], (*scale, around.factor(head)), &mut v);
                    }
                }
            }
            Op::SelectToken(op::SelectToken { index }) => {
                let rows = shape.first().copied().unwrap_or(0);
                for image in 0..self.images {
                    let from = (image * rows + index) * last;
                    (from..from + last).for_each(|i| v.push(x.y[i], x.tolerance[i]));
                }
            }
        }
        Ok(v)
    }

    /// `[images, a, b]` → `[images, b, a]`.
    fn turned(&self, x: &Value, a: usize, b: usize) -> Value {
        let mut v = Value::default();
        for i in 0..self.images * a * b {
            let (image, row, column) = (i / (a * b), i / a % b, i % a);
            let from = (image * a + column) * b + row;
            v.push(x.y[from], x.tolerance[from]);
        }
        v
    }

    fn conv(&self, node: &Node, x: &Value, shape: &[usize], out: &[usize]) -> Result<Value> {
        let Op::Conv2d(op::Conv2d { in_ch, out_ch, kernel, stride, padding, groups, .. }) = &node.op else {
            bail!("node `{}` is not a convolution", node.name)
        };
        let ([_, h, w], [_, oh, ow]) = (image(node, shape)?, image(node, out)?);
        let sums = self.dense(node, *out_ch)?;
        let (ci, co) = (in_ch / groups, out_ch / groups);
        let mut v = Value::default();
        for image in 0..self.images {
            let step = self.step(&x.y[image * in_ch * h * w..][..in_ch * h * w]);
            for (o, at) in (0..*out_ch).flat_map(|o| (0..oh * ow).map(move |at| (o, at))) {
                let mut sum = sums.start(o, step);
                taps(at / ow, at % ow, *kernel, *stride, *padding, [h, w], |tap, pixel| {
                    for c in 0..ci {
                        let i = (image * in_ch + o / co * ci + c) * h * w + pixel;
                        sum.add(x.y[i], x.tolerance[i], c * kernel[0] * kernel[1] + tap);
                    }
                });
                sum.finish(&mut v);
            }
        }
        Ok(v)
    }

    /// The step of the activation codes that cover `x` and zero.
    fn step(&self, x: &[f64]) -> f64 {
        let (low, high) = x.iter().fold((0.0f64, 0.0f64), |(a, b), &v| (a.min(v), b.max(v)));
        (high - low) / f64::from(self.top_code)
    }

    fn dense(&self, node: &Node, rows: usize) -> Result<Dense> {
        let weights = self.param(node, ParamRole::Weight)?;
        let bias = match node.param(ParamRole::Bias) {
            Some(_) => self.param(node, ParamRole::Bias)?,
            None => vec![0.0; rows],
        };
        let precision = self.precision.get(&node.name);
        let half = match precision {
            Precision::F16 => Some(1.0 / f64::from(1u32 << 11)),
            Precision::Bf16 => Some(1.0 / f64::from(1u32 << 8)),
            _ => None,
        };
        Ok(Dense { k: weights.len() / rows.max(1), weights, bias, int8: precision == Precision::Int8, half })
    }
}

/// Rows of weights that products are summed with.
struct Dense {
    weights: Vec<f64>,
    bias: Vec<f64>,
    k: usize,
    int8: bool,
    /// Half an ulp of one in the half precision that is multiplied.
    half: Option<f64>,
}

impl Dense {
    /// A sum with row `o`, over activations whose int8 codes have this step.
    fn start(&self, o: usize, step: f64) -> Sum<'_> {
        let row = &self.weights[o * self.k..][..self.k];
        let weight_step = row.iter().fold(0.0f64, |m, w| m.max(w.abs())) / 127.0;
        let steps = self.int8.then_some([step, weight_step]);
        Sum { row, bias: self.bias[o], steps, half: self.half, y: 0.0, size: 0.0, off: 0.0, variance: 0.0 }
    }
}

struct Sum<'a> {
    row: &'a [f64],
    bias: f64,
    /// Of activations and weights, with int8.
    steps: Option<[f64; 2]>,
    half: Option<f64>,
    y: f64,
    size: f64,
    off: f64,
    variance: f64,
}

impl Sum<'_> {
    fn add(&mut self, x: f64, tolerance: f64, i: usize) {
        let w = self.row[i];
        self.y += x * w;
        self.size += (x * w).abs();
        self.off += tolerance * w.abs();
        if let Some([sx, sw]) = self.steps {
            self.variance += ((x * sw).powi(2) + (w * sx).powi(2) + (sx * sw).powi(2) / 12.0) / 12.0;
        }
        if let Some(u) = self.half {
            self.variance += 2.0 * (x * w * u).powi(2) / 3.0;
        }
    }

    fn finish(mut self, v: &mut Value) {
        if let Some(u) = self.half {
            self.variance += (self.y * u).powi(2) / 3.0;
        }
        let rounding = ((self.row.len() as f64).sqrt() + 4.0) * U * (self.size + self.bias.abs());
        v.push(self.y + self.bias, self.off + rounding + SIGMAS * self.variance.sqrt());
    }
}

/// Calls `f(tap, pixel)` for the pixels of an `h x w` image under a window; padding is left out.
fn taps(
    oy: usize,
    ox: usize,
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 4],
    [h, w]: [usize; 2],
    mut f: impl FnMut(usize, usize),
) {
    for ky in 0..kernel[0] {
        for kx in 0..kernel[1] {
            let (y, x) = ((oy * stride[0] + ky).checked_sub(padding[0]), (ox * stride[1] + kx).checked_sub(padding[1]));
            if let (Some(y), Some(x)) = (y.filter(|y| *y < h), x.filter(|x| *x < w)) {
                f(ky * kernel[1] + kx, y * w + x);
            }
        }
    }
}

/// Pushes the sum of `values` over `n`.
fn mean<'a>(values: impl Iterator<Item = (&'a f64, &'a f64)>, n: usize, v: &mut Value) {
    let (n, mut sum, mut size, mut off) = (n as f64, 0.0, 0.0, 0.0);
    for (y, t) in values {
        sum += y;
        size += y.abs();
        off += t;
    }
    v.push(sum / n, off / n + (f64::sqrt(n) + 4.0) * U * size / n);
}

fn smooth(act: Activation, x: f64) -> f64 {
    match act {
        Activation::Relu => x.max(0.0),
        Activation::GeluErf => 0.5 * x * (1.0 + candle_core::cpu::erf::erf_f64(x / std::f64::consts::SQRT_2)),
        Activation::GeluTanh => {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
        }
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Relu6 => x.clamp(0.0, 6.0),
        Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Activation::HardSigmoid => (x + 3.0).clamp(0.0, 6.0) / 6.0,
        Activation::HardSwish => x * (x + 3.0).clamp(0.0, 6.0) / 6.0,
        Activation::Tanh => x.tanh(),
    }
}

fn image(node: &Node, shape: &[usize]) -> Result<[usize; 3]> {
    <[usize; 3]>::try_from(shape).ok().with_context(|| format!("node `{}` needs an image, not {shape:?}", node.name))
}
