//! The attention core: softmax(scale · q·kᵀ)·v per image and head, two-pass softmax in rows.

use super::{Scratch, room, split, vector, with_scratch};

/// Sizes of one attention core; rows of `q`, `k`, `v` may be wider than the heads (fused projections).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attention {
    pub tokens: usize,
    pub heads: usize,
    pub qk: usize,
    pub v: usize,
    pub scale: f32,
}

/// Where q, k and v lie: slice and row width each, `[images·tokens, width]`, heads from column 0 on.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    pub data: &'a [f32],
    pub width: usize,
    /// First column.
    pub at: usize,
}

impl Part<'_> {
    fn row(&self, r: usize, col: usize, len: usize) -> &[f32] {
        &self.data[r * self.width + self.at + col..][..len]
    }
}

impl Attention {
    /// What will run, for people.
    pub fn kernel(&self) -> String {
        "attention-f32".to_owned()
    }

    /// `out` is `[images, tokens, heads·v]`.
    pub fn run(&self, q: Part<'_>, k: Part<'_>, v: Part<'_>, out: &mut [f32], par: bool) {
        let (t, width) = (self.tokens, self.heads * self.v);
        // Bands of one image's query rows: enough of them that a single image keeps all threads busy.
        let rows = if par { t.div_ceil(rayon::current_num_threads() * 2).max(1) } else { t };
        split(par, out, t * width, |img, out| {
            split(par, out, rows * width, |b, out| {
                for head in 0..self.heads {
                    with_scratch(|s| self.head(q, k, v, img * t, b * rows, head, out, s));
                }
            });
        });
    }

    #[expect(clippy::too_many_arguments, reason = "position of one head's work")]
    fn head(
        &self,
        q: Part<'_>,
        k: Part<'_>,
        v: Part<'_>,
        first: usize,
        from: usize,
        head: usize,
        out: &mut [f32],
        s: &mut Scratch,
    ) {
        let (t, width) = (self.tokens, self.heads * self.v);
        let buf = room(&mut s.f32, self.qk * t + t);
        let (kt, scores) = buf.split_at_mut(self.qk * t);
        for j in 0..t {
            for (d, &v) in k.row(first + j, head * self.qk, self.qk).iter().enumerate() {
                kt[d * t + j] = v;
            }
        }
        for (r, out) in out.chunks_exact_mut(width).enumerate() {
            let q = q.row(first + from + r, head * self.qk, self.qk);
            scores.fill(0.0);
            for (&q, kt) in q.iter().zip(kt.chunks_exact(t)) {
                vector::axpy(scores, q * self.scale, kt);
            }
            vector::softmax(scores);
            let o = &mut out[head * self.v..][..self.v];
            o.fill(0.0);
            for (j, &p) in scores.iter().enumerate() {
                vector::axpy(o, p, v.row(first + j, head * self.v, self.v));
            }
        }
    }
}
