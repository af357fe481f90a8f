//! Convolutions and linears: packed for the forward pass, and turned round for the gradient of their input.
//!
//! The gradient of a convolution's input is a convolution of the output's gradient with every kernel turned by half a turn and inputs and
//! outputs exchanged; a stride puts zeros between the gradients first (Dumoulin and Visin 2016).

use crate::exec::kernel::dense::{Dense, Source};
use crate::exec::kernel::depthwise::{self, Depthwise};
use crate::exec::kernel::geometry::{Epilogue, Geometry};
use crate::exec::kernel::{Par, gradient};
use crate::exec::unfold::Window;

/// Weights in the layouts of both passes.
pub(super) struct Packed {
    forward: Dense,
    /// Only where the gradient of the input is needed.
    backward: Option<Dense>,
}

/// Places of the output's gradient, zeros between them included.
fn spread(geo: &Geometry) -> [usize; 2] {
    std::array::from_fn(|i| (geo.out_image[i].max(1) - 1) * geo.window.stride[i] + 1)
}

/// The step that computes the gradient of the input; `None` where padding is wider than a kernel reaches.
fn reversed(geo: &Geometry) -> Option<Geometry> {
    let (w, image) = (geo.window, spread(geo));
    let mut padding = [0; 4];
    for i in 0..2 {
        padding[i] = (w.kernel[i] - 1).checked_sub(w.padding[i])?;
        padding[i + 2] = (geo.image[i] + w.kernel[i] - 1).checked_sub(image[i] + padding[i])?;
    }
    let window = Window { kernel: w.kernel, stride: [1, 1], padding };
    let (channels, out_channels) = (geo.out_channels, geo.channels);
    Some(Geometry { image, channels, out_image: geo.image, out_channels, window, ..*geo })
}

/// `[out, in, kh, kw]` → `[in, out, kh, kw]` within every group, kernels turned.
fn turned(geo: &Geometry, w: &[f32]) -> Vec<f32> {
    let (o, c) = (geo.out_channels / geo.groups, geo.channels / geo.groups);
    let taps = geo.window.kernel[0] * geo.window.kernel[1];
    let mut out = vec![0f32; w.len()];
    for (w, out) in w.chunks_exact((o * c * taps).max(1)).zip(out.chunks_exact_mut((o * c * taps).max(1))) {
        for (k, row) in w.chunks_exact((c * taps).max(1)).enumerate() {
            for (ch, kernel) in row.chunks_exact(taps.max(1)).enumerate() {
                let to = &mut out[(ch * o + k) * taps..][..taps];
                to.iter_mut().zip(kernel.iter().rev()).for_each(|(to, w)| *to = *w);
            }
        }
    }
    out
}

/// Whether steps of this shape have both passes here.
pub(super) fn fits(geo: &Geometry) -> bool {
    reversed(geo).is_some()
}

impl Packed {
    /// `weight` `[out, in, kh, kw]`; with `back` for both passes.
    pub fn of(geo: Geometry, weight: &[f32], bias: Option<&[f32]>, back: bool) -> Packed {
        let plain = |n: usize| Epilogue { bias: vec![0.0; n], act: None };
        let mut epilogue = plain(geo.out_channels);
        if let Some(bias) = bias {
            epilogue.bias.copy_from_slice(bias);
        }
        let backward = reversed(&geo).filter(|_| back).map(|r| {
            let w = turned(&geo, weight);
            Dense::new(r, Source::F32 { w: &w, factors: None }, plain(r.out_channels))
        });
        Packed { forward: Dense::new(geo, Source::F32 { w: weight, factors: None }, epilogue), backward }
    }

    pub fn forward(&self, x: &[f32], out: &mut [f32]) {
        self.forward.run(x, None, out, Par::ALONE);
    }

    /// The gradient of the input, and `before` added to it.
    pub fn backward(&self, geo: &Geometry, weight: &[f32], g: &[f32], before: Option<&[f32]>, out: &mut [f32]) {
        let made;
        let dense = match &self.backward {
            Some(dense) => dense,
            // Wanted after all, for the input's sake.
            None => {
                made = Packed::of(*geo, weight, None, true).backward;
                let Some(made) = &made else { return };
                made
            }
        };
        if geo.window.stride == [1, 1] {
            return dense.run(g, before, out, Par::ALONE);
        }
        let ([h, w], [sy, sx], c) = (spread(geo), geo.window.stride, geo.out_channels);
        let one = geo.rows() * c;
        let mut wide = vec![0f32; g.len() / one.max(1) * h * w * c];
        for (g, wide) in g.chunks_exact(one).zip(wide.chunks_exact_mut(h * w * c)) {
            for (y, line) in g.chunks_exact(geo.out_image[1] * c).enumerate() {
                for (x, values) in line.chunks_exact(c).enumerate() {
                    wide[((y * sy) * w + x * sx) * c..][..c].copy_from_slice(values);
                }
            }
        }
        dense.run(&wide, before, out, Par::ALONE);
    }
}

/// The gradient of the weight, `[out, in / groups, kh, kw]`.
pub(super) fn weight_gradient(geo: &Geometry, x: &[f32], g: &[f32]) -> Vec<f32> {
    if geo.groups == 1 {
        return ungrouped(geo, x, g);
    }
    if Depthwise::fits(geo) {
        return depthwise::weight_gradient(geo, x, g);
    }
    let (o, c) = (geo.out_channels / geo.groups, geo.channels / geo.groups);
    let one = Geometry { channels: c, out_channels: o, groups: 1, ..*geo };
    let of = |v: &[f32], all: usize, from: usize, n: usize| -> Vec<f32> {
        v.chunks_exact(all).flat_map(|row| &row[from..from + n]).copied().collect()
    };
    let group = |i: usize| ungrouped(&one, &of(x, geo.channels, i * c, c), &of(g, geo.out_channels, i * o, o));
    (0..geo.groups).flat_map(group).collect()
}

/// The same of a step without groups.
fn ungrouped(geo: &Geometry, x: &[f32], g: &[f32]) -> Vec<f32> {
    let (c, taps) = (geo.channels, geo.window.kernel[0] * geo.window.kernel[1]);
    let mut last = vec![0f32; geo.out_channels * geo.k()];
    gradient::weights(geo, x, g, &mut last);
    if taps == 1 {
        return last;
    }
    let mut out = Vec::with_capacity(last.len());
    for row in last.chunks_exact((c * taps).max(1)) {
        (0..c).for_each(|ch| out.extend((0..taps).map(|t| row[t * c + ch])));
    }
    out
}
