//! Both kernel families against loops in f64, over odd sizes, strides, paddings and groups.

use super::*;
use crate::exec::kernel::geometry::Codes;
use crate::exec::kernel::{noise, shared};
use crate::exec::unfold::Window;
use crate::graph::{Activation, Range};
use crate::model::int8::quantize_rows;

const LEVELS: [Level; 3] = [Level::Portable, Level::Vector, Level::Matrix];

fn geometries() -> Vec<Geometry> {
    let mut all = vec![];
    for (image, c, oc, k, s, p, groups) in [
        ([5, 7], 3, 5, [3, 3], [1, 1], [1, 1], 1),
        ([8, 33], 16, 16, [3, 3], [1, 1], [1, 1], 1),
        ([9, 9], 13, 40, [3, 3], [2, 2], [1, 1], 1),
        ([6, 6], 8, 33, [1, 1], [2, 2], [0, 0], 1),
        ([6, 5], 7, 80, [1, 1], [1, 1], [0, 0], 1),
        ([12, 8], 3, 20, [4, 4], [4, 4], [0, 0], 1),
        ([11, 14], 3, 17, [7, 5], [2, 3], [3, 0], 1),
        ([6, 7], 12, 20, [3, 3], [1, 1], [1, 1], 4),
        ([5, 5], 6, 6, [3, 3], [1, 1], [1, 1], 6),
        // Groups that share vectors, whole numbers of them and not, tiles of seven and of eight.
        ([9, 16], 32, 32, [3, 3], [1, 1], [1, 1], 8),
        ([7, 14], 24, 24, [3, 3], [2, 2], [1, 1], 3),
        ([6, 9], 18, 18, [3, 3], [1, 1], [1, 1], 6),
        ([4, 5], 10, 35, [3, 3], [1, 1], [1, 1], 5),
        ([9, 31], 40, 20, [3, 3], [2, 2], [1, 1], 20),
        ([5, 3], 24, 16, [1, 1], [1, 1], [0, 0], 4),
        ([1, 7], 24, 12, [1, 1], [1, 1], [0, 0], 12),
        // Depthwise: all tiles, lines shorter and longer than one, channels beyond whole vectors, and what has no tile.
        ([9, 10], 16, 16, [3, 3], [1, 1], [1, 1], 16),
        ([9, 11], 40, 40, [3, 3], [2, 2], [1, 1], 40),
        ([3, 2], 17, 17, [3, 3], [1, 1], [1, 1], 17),
        ([3, 1], 33, 33, [5, 5], [1, 1], [2, 2], 33),
        ([12, 13], 24, 24, [5, 5], [1, 1], [2, 2], 24),
        ([12, 13], 24, 24, [5, 5], [2, 2], [2, 2], 24),
        ([9, 21], 20, 20, [7, 7], [1, 1], [3, 3], 20),
        ([9, 12], 20, 20, [3, 7], [3, 1], [1, 0], 20),
        ([9, 12], 32, 32, [9, 3], [1, 1], [4, 1], 32),
        ([9, 12], 18, 18, [2, 4], [2, 3], [1, 2], 18),
        ([7, 7], 12, 130, [3, 3], [1, 1], [1, 1], 1),
        ([6, 2], 12, 230, [3, 3], [1, 1], [1, 1], 1),
        ([4, 28], 5, 33, [3, 3], [1, 1], [1, 1], 1),
        ([3, 3], 256, 100, [3, 3], [1, 1], [1, 1], 1),
        ([4, 4], 512, 20, [1, 1], [2, 2], [0, 0], 1),
        ([3, 3], 1024, 130, [1, 1], [1, 1], [0, 0], 1),
        ([1, 2], 2048, 40, [3, 3], [1, 1], [1, 1], 1),
    ] {
        // Unpadded at the bottom every other time.
        let bottom = if c % 2 == 0 { p[0] } else { 0 };
        let window = Window { kernel: k, stride: s, padding: [p[0], p[1], bottom, p[1]] };
        let out_image = [window.out(0, image[0]).unwrap(), window.out(1, image[1]).unwrap()];
        all.push(Geometry { image, channels: c, out_image, out_channels: oc, window, groups, codes: Codes::Image });
    }
    all.extend([
        Geometry::linear(1, 37, 10),
        Geometry::linear(17, 64, 96),
        Geometry::linear(5, 130, 51),
        Geometry::linear(3, 40, 300),
    ]);
    all
}

/// `Σ x·w` in f64 per output, with PyTorch's weight order; `x` reads as `pad` outside the image.
fn product(g: &Geometry, x: &[f64], w: &[f64], pad: f64) -> Vec<f64> {
    let ([kh, kw], [h, wd], cg) = (g.window.kernel, g.image, g.channels / g.groups);
    let images = x.len() / (h * wd * g.channels);
    let mut out = vec![];
    for img in 0..images {
        for row in 0..g.rows() {
            for oc in 0..g.out_channels {
                let group = oc / (g.out_channels / g.groups);
                let mut sum = 0.0;
                for (i, w) in w[oc * g.k()..][..g.k()].iter().enumerate() {
                    let (c, ky, kx) = (i / (kh * kw), i / kw % kh, i % kw);
                    let y = (row / g.out_image[1] * g.window.stride[0] + ky).wrapping_sub(g.window.padding[0]);
                    let xx = (row % g.out_image[1] * g.window.stride[1] + kx).wrapping_sub(g.window.padding[1]);
                    let inside = y < h && xx < wd;
                    let at = ((img * h + y.min(h - 1)) * wd + xx.min(wd - 1)) * g.channels + group * cg + c;
                    sum += w * if inside { x[at] } else { pad };
                }
                out.push(sum);
            }
        }
    }
    out
}

fn wide(v: &[f32]) -> Vec<f64> {
    v.iter().map(|&v| v as f64).collect()
}

fn close(got: &[f32], want: &[f64], what: &str) {
    assert_eq!(got.len(), want.len());
    let top = want.iter().fold(1.0f64, |m, v| m.max(v.abs()));
    for (i, (a, b)) in got.iter().zip(want).enumerate() {
        assert!((*a as f64 - b).abs() < 3e-6 * top, "{what}, element {i}: {a} against {b}");
    }
}

/// Holds what `d` makes of `x` alone and in a team against `want`.
fn agrees(d: &Dense, x: &[f32], residual: Option<&[f32]>, want: &[f64]) {
    for threads in [1, 3] {
        let mut out = vec![f32::NAN; want.len()];
        shared(threads, |par| d.run(x, residual, &mut out, par));
        close(&out, want, &format!("{} {:?}", d.kernel(), d.geo));
    }
}

const IMAGES: usize = 3;

#[test]
fn f32_products_match_f64_with_residual_and_relu() {
    for g in geometries() {
        let x = noise(IMAGES * g.image[0] * g.image[1] * g.channels, 1);
        let (w, bias) = (noise(g.out_channels * g.k(), 2), noise(g.out_channels, 3));
        let factors = noise(g.out_channels, 4);
        let n = IMAGES * g.rows() * g.out_channels;
        let residual = noise(n, 5);
        let folded: Vec<f64> = w.iter().enumerate().map(|(i, &v)| (v * factors[i / g.k()]) as f64).collect();
        let mut want = product(&g, &wide(&x), &folded, 0.0);
        for (i, v) in want.iter_mut().enumerate() {
            *v = (*v + bias[i % g.out_channels] as f64 + residual[i] as f64).max(0.0);
        }
        for level in LEVELS {
            let epilogue = Epilogue { bias: bias.clone(), act: Some(Activation::Relu) };
            let d = Dense::with(g, Source::F32 { w: &w, factors: Some(&factors) }, epilogue, level);
            agrees(&d, &x, Some(&residual), &want);
        }
    }
}

#[test]
fn int8_products_are_exact_in_their_codes() {
    // A static range that cuts values off as well.
    let fixed = |g: Geometry| Geometry { codes: Codes::Fixed(Range { lo: -0.75, hi: 1.25 }), ..g };
    for g in geometries().into_iter().flat_map(|g| [g, fixed(g)]) {
        let x = noise(IMAGES * g.image[0] * g.image[1] * g.channels, 6);
        let (w, bias) = (noise(g.out_channels * g.k(), 7), noise(g.out_channels, 8));
        let (q, factors) = quantize_rows(&w, g.out_channels);
        for level in LEVELS {
            let epilogue = Epilogue { bias: bias.clone(), act: None };
            let d = Dense::with(g, Source::Int8 { q: &q, factors: &factors }, epilogue, level);
            let top = if d.kernel().contains("rten") { gemm::top_code() } else { 255 };
            // Every scope's activations as their codes say, centred on the zero point: padding is zero.
            let scope = if g.codes == Codes::Row { g.channels } else { x.len() / IMAGES };
            let mut centred = vec![];
            let mut scales = vec![];
            for x in x.chunks_exact(scope) {
                let code = match g.codes {
                    Codes::Fixed(r) => Code::covering(r.lo, r.hi, top),
                    Codes::Row | Codes::Image => Code::of(x, top),
                };
                let mut codes = vec![0u8; x.len()];
                vector::quantize(x, code.inverse, code.zero, top as f32, &mut codes);
                for (&v, &c) in x.iter().zip(&codes) {
                    let back = (c as i32 - code.zero) as f32 * code.scale;
                    let want = if let Codes::Fixed(r) = g.codes { v.clamp(r.lo, r.hi) } else { v };
                    assert!((back - want).abs() <= code.scale * 0.51, "{v} became {back}");
                    centred.push((c as i32 - code.zero) as f64);
                }
                scales.push(code.scale);
            }
            let q64: Vec<f64> = q.iter().map(|&v| v as f64).collect();
            let mut want = product(&g, &centred, &q64, 0.0);
            for (i, v) in want.iter_mut().enumerate() {
                let oc = i % g.out_channels;
                let row = i / g.out_channels;
                let scale = scales[if g.codes == Codes::Row { row } else { row / g.rows() }];
                *v = *v * scale as f64 * factors[oc] as f64 + bias[oc] as f64;
            }
            agrees(&d, &x, None, &want);
        }
    }
}

#[test]
fn extreme_activations_do_not_saturate() {
    // All codes at the top against all weights at ±127: the largest sums there are.
    let g = Geometry::linear(2, 200, 20);
    let mut x = vec![2.0f32; 400];
    x[0] = 0.0;
    let w: Vec<f32> = (0..4000).map(|i| if i / 200 % 2 == 0 { 1.0 } else { -1.0 }).collect();
    let (q, factors) = quantize_rows(&w, 20);
    let want: Vec<f64> =
        (0..40).map(|i| if i < 20 { 398.0 } else { 400.0 } * if i % 2 == 0 { 1.0 } else { -1.0 }).collect();
    for level in LEVELS {
        let epilogue = Epilogue { bias: vec![0.0; 20], act: None };
        let d = Dense::with(g, Source::Int8 { q: &q, factors: &factors }, epilogue, level);
        let mut out = vec![0.0; 40];
        d.run(&x, None, &mut out, Par::ALONE);
        close(&out, &want, &d.kernel());
    }
}

#[test]
fn constant_and_zero_inputs_are_fine() {
    let g = Geometry::linear(1, 8, 3);
    let (q, factors) = quantize_rows(&noise(24, 1), 3);
    for value in [0.0f32, 3.0, -3.0, 1e-38] {
        for level in LEVELS {
            let epilogue = Epilogue { bias: vec![1.0; 3], act: None };
            let d = Dense::with(g, Source::Int8 { q: &q, factors: &factors }, epilogue, level);
            let mut out = vec![0.0; 3];
            d.run(&[value; 8], None, &mut out, Par::ALONE);
            assert!(out.iter().all(|v| v.is_finite()));
            if value.abs() < 1.0 {
                assert_eq!(out, [1.0; 3]);
            }
        }
    }
}
