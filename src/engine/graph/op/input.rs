//! What comes in from outside.

use super::facts::{Facts, Traits, output};
use crate::graph::axes::NodeLinks;
use serde::{Deserialize, Serialize};

/// The image, `[c, h, w]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    pub shape: Vec<usize>,
}

impl Facts for Input {
    fn traits(&self) -> Traits {
        Traits::of("input", "input")
    }

    fn arity(&self) -> usize {
        0
    }

    fn shape(&self, _ins: &[&[usize]]) -> Result<Vec<usize>, String> {
        Ok(self.shape.clone())
    }

    fn links(&self, _ins: &[&[usize]], _out: &[usize]) -> NodeLinks {
        let mut l = NodeLinks::default();
        l.protect(output(0), "it is the image");
        l
    }

    fn axis_len(&self, axis: usize) -> Option<usize> {
        self.shape.first().copied().filter(|_| axis == 0)
    }

    fn narrow(&mut self, _axis: usize, mask: &[bool]) {
        if let Some(c) = self.shape.first_mut() {
            *c = super::facts::kept(mask);
        }
    }
}
