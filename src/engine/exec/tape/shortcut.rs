//! Every so-manieth row and column with other channels: the shortcut of He et al.'s option A, slices and shuffles of channels.

/// Sizes of one such step, and where its output channels come from.
#[derive(Debug, Clone)]
pub(super) struct Shortcut {
    /// Rows, columns and channels of the input.
    image: [usize; 3],
    stride: usize,
    map: Vec<Option<u32>>,
}

impl Shortcut {
    /// `shape` is the input's, channels first for an image.
    pub fn of(shape: &[usize], stride: usize, map: &[Option<u32>]) -> Option<Shortcut> {
        let image = match *shape {
            [c, h, w] => [h, w, c],
            [t, d] => [t, 1, d],
            [d] => [1, 1, d],
            _ => return None,
        };
        Some(Shortcut { image, stride: stride.max(1), map: map.to_vec() })
    }

    /// Calls `f` with where every output pixel and its input pixel begin.
    fn pixels(&self, images: usize, mut f: impl FnMut(usize, usize)) {
        let ([h, w, c], o) = (self.image, self.map.len());
        let mut out = 0;
        for n in 0..images {
            for y in (0..h).step_by(self.stride) {
                for x in (0..w).step_by(self.stride) {
                    f(out, ((n * h + y) * w + x) * c);
                    out += o;
                }
            }
        }
    }

    fn images(&self, x: &[f32]) -> usize {
        x.len() / self.image.iter().product::<usize>().max(1)
    }

    pub fn forward(&self, x: &[f32], out: &mut [f32]) {
        self.pixels(self.images(x), |to, from| {
            out[to..][..self.map.len()]
                .iter_mut()
                .zip(&self.map)
                .for_each(|(o, m)| *o = m.map_or(0.0, |i| x[from + i as usize]));
        });
    }

    /// The gradient of the input; what no output looked at has none.
    pub fn backward(&self, g: &[f32], dx: &mut [f32]) {
        dx.fill(0.0);
        self.pixels(self.images(dx), |from, to| {
            for (g, m) in g[from..][..self.map.len()].iter().zip(&self.map) {
                if let Some(i) = m {
                    dx[to + *i as usize] += g;
                }
            }
        });
    }
}
