//! Token ids looked up in a learned table.

use super::facts::{Facts, output, param, traits, width};
use crate::graph::axes::NodeLinks;
use crate::graph::role::ParamRole::{self, Weight};
use serde::{Deserialize, Serialize};

/// Row `id` of a table `[vocab, dim]` for every token id: `[t]` → `[t, dim]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Embedding {
    pub vocab: usize,
    pub dim: usize,
}

impl Facts for Embedding {
    traits!("embedding", "embedding", layer, per_token);

    fn describe(&self) -> Option<String> {
        Some(format!("embedding {}", self.vocab))
    }

    fn shape(&self, ins: &[&[usize]]) -> Result<Vec<usize>, String> {
        match ins {
            &[&[t]] => Ok(vec![t, self.dim]),
            _ => Err("it needs token ids, `[tokens]`".into()),
        }
    }

    fn links(&self, _ins: &[&[usize]], _out: &[usize]) -> NodeLinks {
        let mut l = NodeLinks::default();
        l.each(param(Weight, 1), output(1), self.dim);
        l.protect(param(Weight, 0), "it is the vocabulary");
        l
    }

    fn params(&self) -> Vec<(ParamRole, Vec<usize>)> {
        vec![(Weight, vec![self.vocab, self.dim])]
    }

    width!(1: dim);
}
