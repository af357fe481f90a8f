//! Layers with weights, norms and pools.

use super::{Attrs, Constant, Lift, Lifter, Op, Value, View, Weight, fold, op};

/// Kernel sizes, strides and pads beyond this belong to no network.
const MAX_SIDE: usize = 1 << 12;

fn pair(list: Option<Vec<i64>>, what: &str) -> Lift<[usize; 2]> {
    let list = list.unwrap_or_else(|| vec![1, 1]);
    let side = |v: i64| usize::try_from(v).ok().filter(|v| *v <= MAX_SIDE);
    match list[..] {
        [a, b] => side(a).zip(side(b)).map(|(a, b)| [a, b]).ok_or_else(|| format!("has {what} {list:?}")),
        _ => Err(format!("has {what} {list:?}, which is not two-dimensional")),
    }
}

/// Padding `[top, left, bottom, right]` for a window over `size`.
fn padding(a: &Attrs, size: [usize; 2], kernel: [usize; 2], stride: [usize; 2]) -> Lift<[usize; 4]> {
    let same = |upper: bool| {
        let mut out = [0; 4];
        for i in 0..2 {
            let steps = size[i].div_ceil(stride[i].max(1));
            let total = (steps.saturating_sub(1) * stride[i] + kernel[i]).saturating_sub(size[i]);
            let small = total / 2;
            (out[i], out[i + 2]) = if upper { (small, total - small) } else { (total - small, small) };
        }
        out
    };
    match a.text("auto_pad").unwrap_or("NOTSET") {
        "" | "NOTSET" => {
            let pads = a.ints("pads").unwrap_or_else(|| vec![0; 4]);
            let pads: Option<Vec<usize>> =
                pads.iter().map(|&p| usize::try_from(p).ok().filter(|p| *p <= MAX_SIDE)).collect();
            pads.and_then(|p| p.try_into().ok()).ok_or_else(|| "has pads that are not four small numbers".into())
        }
        "VALID" => Ok([0; 4]),
        "SAME_UPPER" => Ok(same(true)),
        "SAME_LOWER" => Ok(same(false)),
        other => Err(format!("has the padding mode {other}")),
    }
}

impl Lifter<'_> {
    fn weight(&self, i: usize) -> Lift<Constant> {
        self.constant_input(i)?.cloned().ok_or_else(|| "lacks its weights".to_owned())
    }

    pub(super) fn conv(&mut self, a: &Attrs) -> Lift<Value> {
        let w = self.weight(1)?;
        let bias = self.constant_input(2)?.cloned();
        let groups = usize::try_from(a.int("group").unwrap_or(1)).map_err(|_| "has a negative number of groups")?;
        let &[out_ch, per_group, kh, kw] = w.shape.as_slice() else {
            return Err(format!("has weights of shape {:?}: only two-dimensional convolutions are known", w.shape));
        };
        let stride = pair(a.ints("strides"), "strides")?;
        let dilation = pair(a.ints("dilations"), "dilations")?;
        let kernel = [kh, kw];
        if (0..2).any(|i| dilation[i] != 1 && kernel[i] != 1) {
            return Err("is dilated".into());
        }
        let (v, around) = match self.input(0)?.clone() {
            Value::Padded(v, p) => (v, p),
            _ => (self.settled_input(0)?, [0; 4]),
        };
        let mut params = vec![Weight::of(&w)?];
        params.extend(bias.as_ref().map(Weight::of).transpose()?);
        let bias = bias.is_some();
        // On one pixel a 1x1 convolution is a linear layer (squeeze-and-excitation, fully convolutional heads).
        if v.dims.len() == 2 && v.shape()[2..].iter().all(|&d| d == 1) && v.shape().len() == 4 {
            if kernel != [1, 1] || groups != 1 || around != [0; 4] || padding(a, [1, 1], kernel, stride)? != [0; 4] {
                return Err("convolves a single pixel".into());
            }
            let op = Op::Linear(op::Linear { in_features: per_group, out_features: out_ch, bias });
            let base = self.emit(op, &[v.base], params)?;
            let mut axes = v.axes.clone();
            axes[1] = self.whole(base).axes[1].clone();
            return Ok(Value::View(View { base, dims: self.dims(base), axes, ..v }));
        }
        let x = self.as_image(&v)?;
        let dims = self.dims(x);
        let mut pad = padding(a, [dims[2] + around[0] + around[2], dims[3] + around[1] + around[3]], kernel, stride)?;
        pad.iter_mut().zip(around).for_each(|(p, q)| *p += q);
        let in_ch = per_group.checked_mul(groups).ok_or("has too many channels")?;
        let op = Op::Conv2d(op::Conv2d { in_ch, out_ch, kernel, stride, padding: pad, groups, bias });
        let id = self.emit(op, &[x], params)?;
        Ok(Value::View(self.whole(id)))
    }

    /// A linear layer on the last axis of input 0; `w` is `[out, in]`.
    fn linear(&mut self, w: &Constant, bias: Option<Weight>) -> Lift<Value> {
        let &[out_features, in_features] = w.shape.as_slice() else {
            return Err(format!("multiplies by a constant of shape {:?}", w.shape));
        };
        let v = self.settled_input(0)?;
        let v = self.rows(&v, false)?;
        let mut params = vec![Weight::of(w)?];
        let op = Op::Linear(op::Linear { in_features, out_features, bias: bias.is_some() });
        params.extend(bias);
        let base = self.emit(op, &[v.base], params)?;
        Ok(Value::View(v.onto(base, self.dims(base))))
    }

    /// `x · w` with `w` `[in, out]`.
    pub(super) fn matmul_linear(&mut self, w: &Constant) -> Lift<Value> {
        self.linear(&matrix(w, true)?, None)
    }

    pub(super) fn gemm(&mut self, a: &Attrs) -> Lift<Value> {
        let factor = |name: &str| a.float(name).unwrap_or(1.0) == 1.0;
        if a.flag("transA", false) || !factor("alpha") || !factor("beta") {
            return Err("transposes its input or scales its terms".into());
        }
        let w = matrix(&self.weight(1)?, !a.flag("transB", false))?;
        let bias = match self.constant_input(2)? {
            Some(b) if b.numel() == w.shape[0] => {
                Some(Weight::of(&b.reshaped(vec![w.shape[0]]).ok_or("has a bias that does not fit")?)?)
            }
            Some(b) => return Err(format!("adds a constant of shape {:?}", b.shape)),
            None => None,
        };
        self.linear(&w, bias)
    }

    pub(super) fn batch_norm(&mut self, a: &Attrs) -> Lift<Value> {
        if a.flag("training_mode", false) {
            return Err("normalises by the batch's own statistics".into());
        }
        let params = (1..5).map(|i| Weight::of(&self.weight(i)?)).collect::<Lift<Vec<_>>>()?;
        let v = self.settled_input(0)?;
        let v = self.selected(&v)?;
        let channels = v.dims[v.channel_axis()];
        if v.axes.get(1) != Some(&v.full(v.channel_axis())) {
            return Err(format!("normalises axis 1 of {:?}, which is not all channels", v.shape()));
        }
        let eps = f64::from(a.float("epsilon").unwrap_or(1e-5));
        self.over(Op::BatchNorm2d(op::BatchNorm2d { channels, eps: tidy(eps) }), v, params).map(Value::View)
    }

    pub(super) fn layer_norm(&mut self, a: &Attrs) -> Lift<Value> {
        let v = self.settled_input(0)?;
        let rank = v.axes.len();
        if fold::axis(a.int("axis").unwrap_or(-1), rank)? + 1 != rank {
            return Err("normalises over more than the last axis".into());
        }
        let v = self.rows(&v, true)?;
        let dim = v.dims[v.channel_axis()];
        let flat = |c: &Constant| c.reshaped(vec![dim]).ok_or_else(|| format!("has weights of shape {:?}", c.shape));
        let weight = Weight::of(&flat(&self.weight(1)?)?)?;
        let bias = match self.constant_input(2)? {
            Some(b) => Weight::of(&flat(b)?)?,
            None => Weight::filled(vec![dim], 0.0)?,
        };
        let eps = tidy(f64::from(a.float("epsilon").unwrap_or(1e-5)));
        self.over(Op::LayerNorm(op::LayerNorm { dim, eps }), v, vec![weight, bias]).map(Value::View)
    }

    pub(super) fn pool(&mut self, op: &str, a: &Attrs) -> Lift<Value> {
        let v = match self.input(0)?.clone() {
            // The zeros would take part in the pooling.
            Value::Padded(..) => return Err("pools a padded image".into()),
            _ => self.settled_input(0)?,
        };
        let x = self.as_image(&v)?;
        let dims = self.dims(x);
        let size = [dims[2], dims[3]];
        let kernel = pair(a.ints("kernel_shape"), "kernel")?;
        let stride = pair(a.ints("strides"), "strides")?;
        if pair(a.ints("dilations"), "dilations")? != [1, 1] || stride.contains(&0) {
            return Err("is dilated".into());
        }
        let mut padding = padding(a, size, kernel, stride)?;
        let mut grown = false;
        if a.flag("ceil_mode", false) {
            for i in 0..2 {
                let span = (size[i] + padding[i] + padding[i + 2]).saturating_sub(kernel[i]);
                let mut steps = span.div_ceil(stride[i]);
                // A window must begin inside the image or its leading padding.
                if steps * stride[i] >= size[i] + padding[i] {
                    steps -= 1;
                }
                let more = (steps * stride[i]).saturating_sub(span);
                padding[i + 2] += more;
                grown |= more > 0;
            }
        }
        let op = if op == "MaxPool" {
            Op::MaxPool2d(op::MaxPool2d { kernel, stride, padding })
        } else if kernel == size && padding == [0; 4] {
            let id = self.moved(Op::GlobalAvgPool, x)?;
            let v = self.whole(id);
            let shape = v.shape();
            return Ok(Value::View(v.reshape(&[shape[0], shape[1], 1, 1]).ok_or("pools an odd image")?));
        } else {
            let count_padding = padding != [0; 4] && a.flag("count_include_pad", false);
            if grown && count_padding {
                return Err("rounds sizes up and counts padding".into());
            }
            Op::AvgPool2d(op::AvgPool2d { kernel, stride, padding, count_padding })
        };
        let id = self.moved(op, x)?;
        Ok(Value::View(self.whole(id)))
    }
}

/// A matrix of weights, turned if asked, under its own name.
fn matrix(w: &Constant, turn: bool) -> Lift<Constant> {
    if w.shape.len() != 2 {
        return Err(format!("multiplies by a constant of shape {:?}", w.shape));
    }
    let turned = if turn { fold::transpose(w, &[1, 0])? } else { w.clone() };
    Ok(Constant { name: w.name.clone(), ..turned })
}

/// An epsilon that was rounded to `f32` on its way, such as 9.999999747378752e-06, as it was written.
pub(super) fn tidy(eps: f64) -> f64 {
    format!("{:e}", eps as f32).parse().unwrap_or(eps)
}
