//! Where an op is worked out: the values it reads, its parameters, its shapes.
//!
//! Not here: what ops compute (a file per family beside this). Invariant: a value has a tolerance for each of its elements.

use crate::graph::{Graph, Node, ParamRole, Precisions};
use crate::model::ParamStore;
use anyhow::{Context, Result, bail};

/// Half an ulp of one in f32.
pub(super) const U: f64 = 1.0 / (1u64 << 24) as f64;

/// Standard deviations of quantization error that are allowed.
pub(crate) const SIGMAS: f64 = 6.0;

/// A value in its op's documented layout, images one after another.
#[derive(Debug, Clone, Default)]
pub(crate) struct Expected {
    pub y: Vec<f64>,
    /// How far each element of a correct kernel's result may be from `y`.
    pub tolerance: Vec<f64>,
}

impl Expected {
    pub fn get(&self, i: usize) -> (f64, f64) {
        (self.y[i], self.tolerance[i])
    }

    /// Every element with its tolerance.
    pub fn pairs(&self) -> impl Iterator<Item = (f64, f64)> {
        self.y.iter().copied().zip(self.tolerance.iter().copied())
    }
}

impl FromIterator<(f64, f64)> for Expected {
    fn from_iter<I: IntoIterator<Item = (f64, f64)>>(pairs: I) -> Expected {
        let (y, tolerance) = pairs.into_iter().unzip();
        Expected { y, tolerance }
    }
}

/// What is computed and how.
pub(crate) struct Run<'a> {
    pub graph: &'a Graph,
    pub params: &'a ParamStore,
    pub precision: &'a Precisions,
    pub images: usize,
    /// The largest activation code of int8 kernels.
    pub top_code: u8,
}

/// A node and what it reads.
#[derive(Clone, Copy)]
pub(super) struct Site<'a> {
    pub run: &'a Run<'a>,
    pub node: &'a Node,
    /// Its first input.
    pub x: &'a Expected,
    pub shape: &'a [usize],
    /// Its other inputs.
    pub rest: &'a [(&'a Expected, &'a [usize])],
    /// Its output's shape.
    pub out: &'a [usize],
}

impl<'a> Site<'a> {
    pub fn param(&self, role: ParamRole) -> Result<Vec<f64>> {
        let name = self.node.param(role).with_context(|| format!("node `{}` has no {role:?}", self.node.name))?;
        Ok(self.run.params.get(name)?.values().iter().map(|v| f64::from(*v)).collect())
    }

    /// Length of the first input's last axis.
    pub fn last(&self) -> usize {
        self.shape.last().copied().unwrap_or(1).max(1)
    }

    /// Tokens of an image.
    pub fn tokens(&self) -> usize {
        self.shape.first().copied().unwrap_or(0)
    }

    /// The first input along its last axis, with its tolerances.
    pub fn rows(&self) -> impl Iterator<Item = (&'a [f64], &'a [f64])> {
        self.x.y.chunks(self.last()).zip(self.x.tolerance.chunks(self.last()))
    }

    /// `f` of every element of the first input, by its place, with its tolerance.
    pub fn each(&self, f: impl Fn(usize, f64, f64) -> (f64, f64)) -> Expected {
        self.x.pairs().enumerate().map(|(i, (x, t))| f(i, x, t)).collect()
    }

    /// The second of two inputs.
    pub fn other(&self) -> Result<(&'a Expected, &'a [usize])> {
        let [other] = self.rest else { bail!("node `{}` needs two inputs", self.node.name) };
        Ok(*other)
    }

    /// The shapes of the first input and of the output as images.
    pub fn images(&self) -> Result<[[usize; 3]; 2]> {
        Ok([image(self.node, self.shape)?, image(self.node, self.out)?])
    }

    /// The first input as an image.
    pub fn image(&self) -> Result<[usize; 3]> {
        image(self.node, self.shape)
    }

    /// `x` from `[images, a, b]` to `[images, b, a]`.
    pub fn turned(&self, x: &Expected, a: usize, b: usize) -> Expected {
        let from = |i: usize| (i / (a * b) * a + i % a) * b + i / a % b;
        (0..self.run.images * a * b).map(|i| x.get(from(i))).collect()
    }
}

fn image(node: &Node, shape: &[usize]) -> Result<[usize; 3]> {
    <[usize; 3]>::try_from(shape).ok().with_context(|| format!("node `{}` needs an image, not {shape:?}", node.name))
}

/// Calls `f(tap, pixel)` for the pixels of an `h x w` image under a window; padding is left out.
pub(super) fn taps(
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
