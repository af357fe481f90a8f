//! Pooling, token and layout steps over channels-last activations: memory-bound, one pass each.

use super::{Par, split, vector};
use crate::exec::unfold::Window;
use std::ops::Range;

/// Sizes of an image and of what becomes of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PoolGeometry {
    pub image: [usize; 2],
    pub out_image: [usize; 2],
    pub channels: usize,
    pub window: Window,
}

/// Maximum over windows; padding never wins.
pub(crate) fn max_pool(p: &PoolGeometry, x: &[f32], out: &mut [f32], par: Par<'_>) {
    let ([h, w], [oh, ow], c) = (p.image, p.out_image, p.channels);
    split(par, out, ow * c, |line, out| {
        let x = &x[line / oh * h * w * c..][..h * w * c];
        for (ox, out) in out.chunks_exact_mut(c).enumerate() {
            out.fill(f32::NEG_INFINITY);
            for ky in 0..p.window.kernel[0] {
                let iy = (line % oh * p.window.stride[0] + ky).checked_sub(p.window.padding[0]);
                for kx in 0..p.window.kernel[1] {
                    let ix = (ox * p.window.stride[1] + kx).checked_sub(p.window.padding[1]);
                    if let (Some(iy), Some(ix)) = (iy.filter(|&v| v < h), ix.filter(|&v| v < w)) {
                        vector::maximum(out, &x[(iy * w + ix) * c..][..c]);
                    }
                }
            }
        }
    });
}

/// Mean over rows `skip..` of `[images, rows, c]`.
pub(crate) fn mean_rows(rows: usize, skip: usize, c: usize, x: &[f32], out: &mut [f32], par: Par<'_>) {
    let scale = 1.0 / (rows - skip).max(1) as f32;
    split(par, out, c, |img, out| {
        out.fill(0.0);
        x[(img * rows + skip) * c..(img + 1) * rows * c].chunks_exact(c).for_each(|r| vector::accumulate(out, r));
        out.iter_mut().for_each(|v| *v *= scale);
    });
}

/// Every `stride`-th pixel, output channel `j` from input channel `map[j]` or zero.
pub(crate) fn channel_pad(p: &PoolGeometry, map: &[Option<u32>], x: &[f32], out: &mut [f32], par: Par<'_>) {
    let ([h, w], [oh, ow], c) = (p.image, p.out_image, p.channels);
    // The usual map is one run of channels; then a pixel is one copy.
    let lead = map.iter().take_while(|m| m.is_none()).count();
    let run = map[lead..].iter().enumerate().take_while(|(i, m)| **m == Some(*i as u32)).count();
    let one_run = map[lead + run..].iter().all(Option::is_none);
    split(par, out, ow * map.len(), |line, out| {
        let iy = line / oh * h + line % oh * p.window.stride[0];
        for (ox, out) in out.chunks_exact_mut(map.len().max(1)).enumerate() {
            let x = &x[(iy * w + ox * p.window.stride[1]) * c..][..c];
            if one_run {
                out[..lead].fill(0.0);
                out[lead..lead + run].copy_from_slice(&x[..run]);
                out[lead + run..].fill(0.0);
            } else {
                out.iter_mut().zip(map).for_each(|(o, m)| *o = m.map_or(0.0, |i| x[i as usize]));
            }
        }
    });
}

/// `[images, t, d]` → `[images, count + t, d]` with `tokens` before value `at` of an image.
pub(crate) fn insert(tokens: &[f32], at: usize, per_image: usize, x: &[f32], out: &mut [f32], par: Par<'_>) {
    split(par, out, tokens.len() + per_image, |img, out| {
        let (before, after) = x[img * per_image..][..per_image].split_at(at);
        out[..at].copy_from_slice(before);
        out[at..at + tokens.len()].copy_from_slice(tokens);
        out[at + tokens.len()..].copy_from_slice(after);
    });
}

/// Mean over windows; padding counts as zeros with `count_padding`, else not at all.
pub(crate) fn avg_pool(p: &PoolGeometry, count_padding: bool, x: &[f32], out: &mut [f32], par: Par<'_>) {
    let ([h, w], [oh, ow], c) = (p.image, p.out_image, p.channels);
    let Window { kernel: [kh, kw], stride: [sy, sx], padding: [top, left, ..] } = p.window;
    split(par, out, ow * c, |line, out| {
        let x = &x[line / oh * h * w * c..][..h * w * c];
        let inside =
            |o: usize, pad: usize, k: usize, len: usize| o.max(pad) - pad..(o + k).min(pad + len).max(pad) - pad;
        for (ox, out) in out.chunks_exact_mut(c).enumerate() {
            let (ys, xs) = (inside(line % oh * sy, top, kh, h), inside(ox * sx, left, kw, w));
            let seen = if count_padding { kh * kw } else { ys.len() * xs.len() };
            cell(w, ys, xs, seen, x, out);
        }
    });
}

/// Mean over `oh x ow` nearly equal cells.
pub(crate) fn adaptive_avg_pool(p: &PoolGeometry, x: &[f32], out: &mut [f32], par: Par<'_>) {
    let ([h, w], [oh, ow], c) = (p.image, p.out_image, p.channels);
    split(par, out, ow * c, |line, out| {
        let x = &x[line / oh * h * w * c..][..h * w * c];
        let range = |o: usize, len: usize, n: usize| o * len / n..((o + 1) * len).div_ceil(n);
        for (ox, out) in out.chunks_exact_mut(c).enumerate() {
            let (ys, xs) = (range(line % oh, h, oh), range(ox, w, ow));
            let seen = ys.len() * xs.len();
            cell(w, ys, xs, seen, x, out);
        }
    });
}

/// Sum over the pixels of `ys` and `xs`, divided by `seen`.
fn cell(w: usize, ys: Range<usize>, xs: Range<usize>, seen: usize, x: &[f32], out: &mut [f32]) {
    out.fill(0.0);
    for y in ys {
        for px in xs.clone() {
            vector::accumulate(out, &x[(y * w + px) * out.len()..][..out.len()]);
        }
    }
    let scale = 1.0 / seen.max(1) as f32;
    out.iter_mut().for_each(|v| *v *= scale);
}

/// Rows of `parts` beside each other; each part with its width.
pub(crate) fn concat(parts: &[(&[f32], usize)], out: &mut [f32], par: Par<'_>) {
    let width: usize = parts.iter().map(|p| p.1).sum();
    let rows = out.len() / width.max(1);
    let band = rows.div_ceil(par.threads()).max(1);
    split(par, out, band * width, |b, out| {
        for (r, out) in out.chunks_exact_mut(width).enumerate() {
            let mut at = 0;
            for (x, n) in parts {
                out[at..at + n].copy_from_slice(&x[(b * band + r) * n..][..*n]);
                at += n;
            }
        }
    });
}

/// `x · factors`, where an image has `rows` rows and one row of factors.
pub(crate) fn scale_rows(rows: usize, c: usize, x: &[f32], factors: &[f32], out: &mut [f32], par: Par<'_>) {
    let band = rows.div_ceil(par.threads()).max(1);
    for (img, out) in out.chunks_exact_mut((rows * c).max(1)).enumerate() {
        let (x, f) = (&x[img * rows * c..][..rows * c], &factors[img * c..][..c]);
        split(par, out, band * c, |b, out| {
            let x = x[b * band * c..].chunks_exact(c);
            out.chunks_exact_mut(c).zip(x).for_each(|(o, x)| vector::multiply(x, f, o));
        });
    }
}

/// Swin's patch merging: the 2x2 cells of `[h, w]` tokens of `d` values beside each other, columns slowest.
pub(crate) fn patch_merge([h, w]: [usize; 2], d: usize, x: &[f32], out: &mut [f32], par: Par<'_>) {
    split(par, out, w / 2 * 4 * d, |line, out| {
        let (img, y) = (line / (h / 2), line % (h / 2));
        for (cx, out) in out.chunks_exact_mut(4 * d).enumerate() {
            for (i, out) in out.chunks_exact_mut(d).enumerate() {
                let token = (img * h + 2 * y + i % 2) * w + 2 * cx + i / 2;
                out.copy_from_slice(&x[token * d..][..d]);
            }
        }
    });
}

/// Row `id` of `table`, `[.., dim]`, for each of `ids`: whole numbers below the table's rows, as many as `out` has rows.
pub(crate) fn gather(table: &[f32], dim: usize, ids: &[f32], out: &mut [f32]) {
    for (out, id) in out.chunks_exact_mut(dim.max(1)).zip(ids) {
        out.copy_from_slice(&table[*id as usize * dim..][..dim]);
    }
}

/// Row `index` of each `[rows, c]` image.
pub(crate) fn select(rows: usize, index: usize, c: usize, x: &[f32], out: &mut [f32]) {
    for (img, out) in out.chunks_exact_mut(c.max(1)).enumerate() {
        out.copy_from_slice(&x[(img * rows + index) * c..][..c]);
    }
}

/// `[n, c, p]` → `[n, p, c]`.
pub(crate) fn to_channels_last(c: usize, p: usize, x: &[f32], out: &mut [f32]) {
    for (x, out) in x.chunks_exact((c * p).max(1)).zip(out.chunks_exact_mut((c * p).max(1))) {
        for (ch, x) in x.chunks_exact(p).enumerate() {
            out[ch..].iter_mut().step_by(c).zip(x).for_each(|(o, &v)| *o = v);
        }
    }
}

/// `[n, p, c]` → `[n, c, p]`.
pub(crate) fn to_channels_first(c: usize, p: usize, x: &[f32], out: &mut [f32]) {
    for (x, out) in x.chunks_exact((c * p).max(1)).zip(out.chunks_exact_mut((c * p).max(1))) {
        for (ch, out) in out.chunks_exact_mut(p).enumerate() {
            out.iter_mut().zip(x[ch..].iter().step_by(c)).for_each(|(o, &v)| *o = v);
        }
    }
}
