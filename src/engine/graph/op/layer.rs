//! Layers with a weight matrix: convolutions and linear layers.

use super::facts::{Facts, image, input, kept, output, param, product, traits, want, window};
use super::numbers::sides;
use crate::graph::axes::{Link, NodeLinks, Span};
use crate::graph::macs::Macs;
use crate::graph::role::ParamRole::{self, Bias, Weight};
use serde::{Deserialize, Serialize};

/// `[in_ch, h, w]` → `[out_ch, h', w']`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conv2d {
    pub in_ch: usize,
    pub out_ch: usize,
    pub kernel: [usize; 2],
    pub stride: [usize; 2],
    /// `[top, left, bottom, right]`.
    #[serde(deserialize_with = "sides")]
    pub padding: [usize; 4],
    pub groups: usize,
    pub bias: bool,
}

/// Over the last axis: `[.., in]` → `[.., out]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Linear {
    pub in_features: usize,
    pub out_features: usize,
    pub bias: bool,
}

impl Facts for Conv2d {
    traits!("conv2d", "conv", layer);

    fn describe(&self) -> Option<String> {
        let kind = match self.groups {
            1 => "conv".to_owned(),
            g if g == self.in_ch && g == self.out_ch => "depthwise conv".to_owned(),
            g => format!("conv g{g}"),
        };
        let step = match self.stride {
            [1, 1] => String::new(),
            [a, b] if a == b => format!("/{a}"),
            [a, b] => format!("/{a}x{b}"),
        };
        Some(format!("{kind} {}x{}{step}", self.kernel[0], self.kernel[1]))
    }

    fn shape(&self, ins: &[&[usize]]) -> Result<Vec<usize>, String> {
        let Conv2d { in_ch, out_ch, groups, .. } = *self;
        let [c, h, w] = image(ins)?;
        want("channel count", c, in_ch)?;
        if groups == 0 || in_ch % groups != 0 || out_ch % groups != 0 {
            return Err(format!("{groups} groups do not divide {in_ch} and {out_ch} channels"));
        }
        let [h, w] = window([h, w], self.kernel, self.stride, self.padding)?;
        Ok(vec![out_ch, h, w])
    }

    fn links(&self, _ins: &[&[usize]], _out: &[usize]) -> NodeLinks {
        let Conv2d { in_ch, out_ch, groups, .. } = *self;
        let mut l = NodeLinks::default();
        if groups == 1 {
            l.each(input(0, 0), param(Weight, 1), in_ch);
        } else {
            // A group goes as a whole: its inputs with its outputs. Depthwise: one channel.
            let [a_span, b_span] = [in_ch, out_ch].map(|n| Span::run(0, n / groups.max(1)));
            l.links.push(Link { a: input(0, 0), b: param(Weight, 0), units: groups, a_span, b_span });
        }
        l.each(param(Weight, 0), output(0), out_ch);
        if self.bias {
            l.each(param(Weight, 0), param(Bias, 0), out_ch);
        }
        l
    }

    fn params(&self) -> Vec<(ParamRole, Vec<usize>)> {
        let weight = vec![self.out_ch, self.in_ch / self.groups.max(1), self.kernel[0], self.kernel[1]];
        weight_and_bias(weight, self.bias.then_some(self.out_ch))
    }

    fn macs(&self, _ins: &[&[usize]], out: &[usize]) -> Macs {
        let each = product(&[self.in_ch / self.groups.max(1), self.kernel[0], self.kernel[1]]);
        Macs { conv_linear: product(out).saturating_mul(each), ..Macs::default() }
    }

    fn widths(&self) -> Option<(usize, usize)> {
        Some((self.in_ch, self.out_ch))
    }

    fn axis_len(&self, axis: usize) -> Option<usize> {
        match axis {
            0 => Some(self.out_ch),
            1 if self.groups == 1 => Some(self.in_ch),
            _ => None,
        }
    }

    fn narrow(&mut self, axis: usize, mask: &[bool]) {
        let n = kept(mask);
        if self.groups > 1 {
            // Whole groups go, inputs with outputs.
            let left = n * self.groups / self.out_ch.max(1);
            (self.in_ch, self.out_ch, self.groups) = (self.in_ch / self.groups * left, n, left);
        } else {
            *(if axis == 0 { &mut self.out_ch } else { &mut self.in_ch }) = n;
        }
    }
}

impl Facts for Linear {
    traits!("linear", "linear", layer, per_token);

    fn shape(&self, ins: &[&[usize]]) -> Result<Vec<usize>, String> {
        let (last, rest) = ins[0].split_last().ok_or("it needs at least one axis")?;
        want("last axis", *last, self.in_features)?;
        Ok(rest.iter().copied().chain([self.out_features]).collect())
    }

    fn links(&self, ins: &[&[usize]], out: &[usize]) -> NodeLinks {
        let last = |s: &[usize]| s.len().saturating_sub(1);
        let mut l = NodeLinks::default();
        l.each(input(0, ins.first().map_or(0, |s| last(s))), param(Weight, 1), self.in_features);
        l.each(param(Weight, 0), output(last(out)), self.out_features);
        if self.bias {
            l.each(param(Weight, 0), param(Bias, 0), self.out_features);
        }
        l
    }

    fn params(&self) -> Vec<(ParamRole, Vec<usize>)> {
        weight_and_bias(vec![self.out_features, self.in_features], self.bias.then_some(self.out_features))
    }

    fn macs(&self, _ins: &[&[usize]], out: &[usize]) -> Macs {
        Macs { conv_linear: product(out).saturating_mul(self.in_features as u64), ..Macs::default() }
    }

    fn widths(&self) -> Option<(usize, usize)> {
        Some((self.in_features, self.out_features))
    }

    fn axis_len(&self, axis: usize) -> Option<usize> {
        [self.out_features, self.in_features].get(axis).copied()
    }

    fn narrow(&mut self, axis: usize, mask: &[bool]) {
        *(if axis == 0 { &mut self.out_features } else { &mut self.in_features }) = kept(mask);
    }
}

fn weight_and_bias(weight: Vec<usize>, bias: Option<usize>) -> Vec<(ParamRole, Vec<usize>)> {
    [(Weight, weight)].into_iter().chain(bias.map(|n| (Bias, vec![n]))).collect()
}
