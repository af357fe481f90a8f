//! Normalisations and softmax as single differentiable CPU operations, for training and gradient paths.
//!
//! Composed of elementwise operations they took most of a small network's training step. Not for inference (`kernel`).
//! Statistics are summed in f64 and in one fixed order. Each backward pass is checked against the composed operations.

use candle_core::{CpuStorage, CustomOp1, CustomOp3, Layout, Result, Shape, Tensor, bail};
use rayon::prelude::*;

/// Gradients of a norm's input, weight and bias.
type Gradients = (Option<Tensor>, Option<Tensor>, Option<Tensor>);

/// `(x [N, C, H, W], weight [C], bias [C])` → `weight (x - mean) / sqrt(var + eps) + bias`, biased variance.
pub(crate) struct BatchNorm {
    pub eps: f64,
}

/// Mean and biased variance of every channel of `[n, c, area]`.
pub(crate) fn moments(x: &[f32], c: usize, area: usize) -> Vec<(f64, f64)> {
    let n = (x.len() / (c * area).max(1) * area).max(1) as f64;
    let planes = |ch: usize| x.chunks_exact(area.max(1)).skip(ch).step_by(c.max(1));
    (0..c)
        .into_par_iter()
        .map(|ch| {
            let mean = planes(ch).map(|p| p.iter().map(|&v| f64::from(v)).sum::<f64>()).sum::<f64>() / n;
            let square = |p: &[f32]| p.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>();
            (mean, planes(ch).map(square).sum::<f64>() / n)
        })
        .collect()
}

fn slice<'a>(s: &'a CpuStorage, l: &Layout) -> Result<&'a [f32]> {
    match l.contiguous_offsets() {
        Some((a, b)) => Ok(&s.as_slice::<f32>()?[a..b]),
        None => bail!("batch norm needs contiguous tensors"),
    }
}

fn flat(t: &Tensor) -> Result<Vec<f32>> {
    t.flatten_all()?.to_vec1::<f32>()
}

impl CustomOp3 for BatchNorm {
    fn name(&self) -> &'static str {
        "batch-norm"
    }

    fn cpu_fwd(
        &self,
        sx: &CpuStorage,
        lx: &Layout,
        sw: &CpuStorage,
        lw: &Layout,
        sb: &CpuStorage,
        lb: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (_, c, h, w) = lx.shape().dims4()?;
        let (x, weight, bias) = (slice(sx, lx)?, slice(sw, lw)?, slice(sb, lb)?);
        if weight.len() != c || bias.len() != c {
            bail!("batch norm over {c} channels got {} weights and {} biases", weight.len(), bias.len());
        }
        let stats = moments(x, c, h * w);
        let mut out = vec![0f32; x.len()];
        let planes = out.par_chunks_mut((h * w).max(1)).zip(x.par_chunks((h * w).max(1)));
        planes.enumerate().for_each(|(i, (out, x))| {
            let (ch, (mean, var)) = (i % c, stats[i % c]);
            let scale = f64::from(weight[ch]) / (var + self.eps).sqrt();
            let (mean, scale, shift) = (mean as f32, scale as f32, bias[ch]);
            out.iter_mut().zip(x).for_each(|(o, &v)| *o = (v - mean) * scale + shift);
        });
        Ok((CpuStorage::F32(out), lx.shape().clone()))
    }

    /// With `x̂` the normalised input and `n` values a channel: `gb = Σg`, `gw = Σ g·x̂`,
    /// `gx = weight / sqrt(var + eps) · (g - gb/n - x̂·gw/n)` (Ioffe and Szegedy 2015).
    fn bwd(&self, x: &Tensor, weight: &Tensor, _bias: &Tensor, _res: &Tensor, grad: &Tensor) -> Result<Gradients> {
        let (_, c, h, w) = x.dims4()?;
        let area = (h * w).max(1);
        let (xs, g, ws) = (flat(x)?, flat(grad)?, flat(weight)?);
        let stats: Vec<(f32, f32)> =
            moments(&xs, c, area).iter().map(|&(m, v)| (m as f32, (1.0 / (v + self.eps).sqrt()) as f32)).collect();
        let n = (xs.len() / c.max(1)).max(1) as f64;
        let sums: Vec<(f64, f64)> = (0..c)
            .into_par_iter()
            .map(|ch| {
                let (mean, inv) = stats[ch];
                let pairs = xs.chunks_exact(area).zip(g.chunks_exact(area)).skip(ch).step_by(c);
                pairs.fold((0.0, 0.0), |(gb, gw), (x, g)| {
                    let b: f64 = g.iter().map(|&g| f64::from(g)).sum();
                    let w: f64 = x.iter().zip(g).map(|(&x, &g)| f64::from((x - mean) * inv) * f64::from(g)).sum();
                    (gb + b, gw + w)
                })
            })
            .collect();
        let mut gx = vec![0f32; xs.len()];
        gx.par_chunks_mut(area).enumerate().for_each(|(i, out)| {
            let ch = i % c;
            let ((mean, inv), (gb, gw)) = (stats[ch], sums[ch]);
            let (scale, gb, gw) = (ws[ch] * inv, (gb / n) as f32, (gw / n) as f32);
            let from = i * area;
            for ((o, &x), &g) in out.iter_mut().zip(&xs[from..]).zip(&g[from..]) {
                *o = scale * (g - gb - (x - mean) * inv * gw);
            }
        });
        let device = x.device();
        let per_channel = |pick: fn(&(f64, f64)) -> f64| {
            Tensor::from_vec(sums.iter().map(|s| pick(s) as f32).collect::<Vec<f32>>(), c, device)
        };
        let gx = Tensor::from_vec(gx, x.dims(), device)?;
        Ok((Some(gx), Some(per_channel(|s| s.1)?), Some(per_channel(|s| s.0)?)))
    }
}

/// `softmax(scale · x)` over the last axis.
pub(crate) struct Softmax {
    pub scale: f64,
}

impl CustomOp1 for Softmax {
    fn name(&self) -> &'static str {
        "softmax"
    }

    fn cpu_fwd(&self, s: &CpuStorage, l: &Layout) -> Result<(CpuStorage, Shape)> {
        let (x, dim) = (slice(s, l)?, l.dims().last().copied().unwrap_or(1).max(1));
        let scale = self.scale as f32;
        let mut out = vec![0f32; x.len()];
        out.par_chunks_mut(dim).zip(x.par_chunks(dim)).with_min_len(64).for_each(|(out, x)| {
            out.iter_mut().zip(x).for_each(|(o, &v)| *o = v * scale);
            let max = out.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            out.iter_mut().for_each(|o| *o = (*o - max).exp());
            let norm = 1.0 / out.iter().sum::<f32>();
            out.iter_mut().for_each(|o| *o *= norm);
        });
        Ok((CpuStorage::F32(out), l.shape().clone()))
    }

    /// `gx = scale · p · (g - Σ g·p)`.
    fn bwd(&self, _arg: &Tensor, res: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let dim = res.dims().last().copied().unwrap_or(1).max(1);
        let (p, mut g) = (flat(res)?, flat(grad)?);
        let scale = self.scale as f32;
        g.par_chunks_mut(dim).zip(p.par_chunks(dim)).with_min_len(64).for_each(|(g, p)| {
            let dot: f32 = g.iter().zip(p).map(|(g, p)| g * p).sum();
            g.iter_mut().zip(p).for_each(|(g, p)| *g = scale * p * (*g - dot));
        });
        Ok(Some(Tensor::from_vec(g, res.dims(), res.device())?))
    }
}

/// `(x [.., D], weight [D], bias [D])` → layer norm over the last axis (Ba et al. 2016).
pub(crate) struct LayerNorm {
    pub eps: f64,
}

impl LayerNorm {
    /// Mean and inverse deviation of a row.
    fn row(&self, x: &[f32]) -> (f32, f32) {
        let n = x.len().max(1) as f64;
        let mean = x.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
        let var = x.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / n;
        (mean as f32, (1.0 / (var + self.eps).sqrt()) as f32)
    }
}

impl CustomOp3 for LayerNorm {
    fn name(&self) -> &'static str {
        "layer-norm"
    }

    fn cpu_fwd(
        &self,
        sx: &CpuStorage,
        lx: &Layout,
        sw: &CpuStorage,
        lw: &Layout,
        sb: &CpuStorage,
        lb: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (x, weight, bias) = (slice(sx, lx)?, slice(sw, lw)?, slice(sb, lb)?);
        let dim = lx.dims().last().copied().unwrap_or(0);
        if weight.len() != dim || bias.len() != dim || dim == 0 {
            bail!("layer norm over {dim} values got {} weights and {} biases", weight.len(), bias.len());
        }
        let mut out = vec![0f32; x.len()];
        out.par_chunks_mut(dim).zip(x.par_chunks(dim)).with_min_len(64).for_each(|(out, x)| {
            let (mean, inv) = self.row(x);
            for ((o, &v), (w, b)) in out.iter_mut().zip(x).zip(weight.iter().zip(bias)) {
                *o = (v - mean) * inv * w + b;
            }
        });
        Ok((CpuStorage::F32(out), lx.shape().clone()))
    }

    /// With `h = g·weight` and `x̂` the normalised row: `gx = (h - mean(h) - x̂·mean(h·x̂)) / deviation`.
    fn bwd(&self, x: &Tensor, weight: &Tensor, _bias: &Tensor, _res: &Tensor, grad: &Tensor) -> Result<Gradients> {
        let (xs, mut g, ws) = (flat(x)?, flat(grad)?, flat(weight)?);
        let dim = ws.len();
        let (mut gw, mut gb) = (vec![0f64; dim], vec![0f64; dim]);
        for (x, g) in xs.chunks_exact(dim).zip(g.chunks_exact_mut(dim)) {
            let (mean, inv) = self.row(x);
            let (mut sum, mut dot) = (0f64, 0f64);
            for (k, (&x, g)) in x.iter().zip(g.iter_mut()).enumerate() {
                let unit = (x - mean) * inv;
                gb[k] += f64::from(*g);
                gw[k] += f64::from(*g * unit);
                *g *= ws[k];
                sum += f64::from(*g);
                dot += f64::from(*g * unit);
            }
            let (sum, dot) = ((sum / dim as f64) as f32, (dot / dim as f64) as f32);
            x.iter().zip(g).for_each(|(&x, g)| *g = inv * (*g - sum - (x - mean) * inv * dot));
        }
        let device = x.device();
        let narrow = |v: Vec<f64>| Tensor::from_iter(v.into_iter().map(|v| v as f32), device);
        Ok((Some(Tensor::from_vec(g, x.dims(), device)?), Some(narrow(gw)?), Some(narrow(gb)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{Device, Var};

    fn values(n: usize, k: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * k + 3) % 17) as f32 / 5.0 - 1.3).collect()
    }

    fn var(k: usize, shape: &[usize]) -> Var {
        let n = shape.iter().product();
        Var::from_tensor(&Tensor::from_vec(values(n, k), shape, &Device::Cpu).unwrap()).unwrap()
    }

    /// Value and gradients of `vars`, for a fixed random-looking gradient of the result.
    fn all(y: &Tensor, vars: &[&Var]) -> Vec<f32> {
        let probe = Tensor::from_vec(values(y.elem_count(), 13), y.dims(), &Device::Cpu).unwrap();
        let grads = (y * &probe).unwrap().sum_all().unwrap().backward().unwrap();
        let grads = vars.iter().flat_map(|v| flat(grads.get(v).unwrap()).unwrap());
        flat(y).unwrap().into_iter().chain(grads).collect()
    }

    fn same(a: &[f32], b: &[f32]) {
        assert_eq!(a.len(), b.len());
        a.iter().zip(b).for_each(|(a, b)| assert!((a - b).abs() < 2e-5, "{a} {b}"));
    }

    #[test]
    fn batch_norm_equals_the_composed_operations() {
        let (x, w, b) = (var(7, &[4, 3, 5, 2]), var(5, &[3]), var(11, &[3]));
        let composed = || -> Result<Tensor> {
            let centred = x.broadcast_sub(&x.mean_keepdim((0, 2, 3))?)?;
            let var = centred.sqr()?.mean_keepdim((0, 2, 3))?;
            let y = centred.broadcast_div(&(var + 1e-3)?.sqrt()?)?;
            y.broadcast_mul(&w.reshape((1, 3, 1, 1))?)?.broadcast_add(&b.reshape((1, 3, 1, 1))?)
        };
        let fused = x.apply_op3(&w, &b, BatchNorm { eps: 1e-3 }).unwrap();
        same(&all(&fused, &[&x, &w, &b]), &all(&composed().unwrap(), &[&x, &w, &b]));
    }

    #[test]
    fn layer_norm_equals_the_composed_operations() {
        let (x, w, b) = (var(7, &[3, 4, 6]), var(5, &[6]), var(11, &[6]));
        let composed = || -> Result<Tensor> {
            let centred = x.broadcast_sub(&x.mean_keepdim(2)?)?;
            let var = centred.sqr()?.mean_keepdim(2)?;
            centred.broadcast_div(&(var + 1e-3)?.sqrt()?)?.broadcast_mul(&w)?.broadcast_add(&b)
        };
        let fused = x.apply_op3(&w, &b, LayerNorm { eps: 1e-3 }).unwrap();
        same(&all(&fused, &[&x, &w, &b]), &all(&composed().unwrap(), &[&x, &w, &b]));
    }

    #[test]
    fn softmax_equals_the_composed_operations() {
        let x = var(7, &[2, 3, 5]);
        let composed = || -> Result<Tensor> {
            let e = (x.as_tensor() * 0.7)?.exp()?;
            e.broadcast_div(&e.sum_keepdim(2)?)
        };
        let fused = x.apply_op1(Softmax { scale: 0.7 }).unwrap();
        same(&all(&fused, &[&x]), &all(&composed().unwrap(), &[&x]));
        // Large scores stay finite.
        let big = Tensor::from_vec(vec![3e38f32, -3e38], (1, 2), &Device::Cpu).unwrap();
        assert_eq!(flat(&big.apply_op1(Softmax { scale: 1.0 }).unwrap()).unwrap(), [1.0, 0.0]);
    }
}
