//! Tokens put in, marked with their positions, picked, averaged.

use super::facts::{Facts, Length, input, output, param, tokens, traits, want, width};
use crate::graph::axes::NodeLinks;
use crate::graph::role::ParamRole::{self, Embedding};
use serde::{Deserialize, Serialize};

/// Learned tokens put before token `at`: `[t, d]` → `[count + t, d]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrependTokens {
    pub count: usize,
    pub dim: usize,
    #[serde(default)]
    pub at: usize,
}

/// Adds learned positions `[tokens, dim]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddPositions {
    pub tokens: usize,
    pub dim: usize,
    /// Shorter sequences take the first ones.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shorter: bool,
}

impl AddPositions {
    /// Of sequences of `tokens` and no others.
    pub fn of(tokens: usize, dim: usize) -> AddPositions {
        AddPositions { tokens, dim, shorter: false }
    }
}

/// `[t, d]` → `[d]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SelectToken {
    pub index: usize,
}

/// Mean over tokens from `skip` on: `[t, d]` → `[d]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeanTokens {
    pub skip: usize,
}

/// A learned `[1, tokens, dim]` that meets the input on its width.
fn embedded(dim: usize) -> NodeLinks {
    let mut l = NodeLinks::default();
    l.each(input(0, 1), output(1), dim);
    l.each(output(1), param(Embedding, 2), dim);
    l
}

impl Facts for PrependTokens {
    traits!("prepend tokens", "extra_tokens");

    fn describe(&self) -> Option<String> {
        Some(format!("tokens +{}", self.count))
    }

    fn shape(&self, ins: &[&[usize]]) -> Result<Vec<usize>, String> {
        let [t, d] = tokens(ins)?;
        want("width", d, self.dim)?;
        if self.at > t {
            return Err(format!("there is no place {} among {t} tokens", self.at));
        }
        Ok(vec![t.checked_add(self.count).ok_or("too many tokens")?, d])
    }

    fn length(&self) -> Length {
        Length::AtLeast(self.at)
    }

    fn links(&self, _ins: &[&[usize]], _out: &[usize]) -> NodeLinks {
        embedded(self.dim)
    }

    fn params(&self) -> Vec<(ParamRole, Vec<usize>)> {
        vec![(Embedding, vec![1, self.count, self.dim])]
    }

    width!(2: dim);
}

impl Facts for AddPositions {
    traits!("add positions", "positions", kind: "positions");

    fn shape(&self, ins: &[&[usize]]) -> Result<Vec<usize>, String> {
        let [t, d] = tokens(ins)?;
        if self.shorter && t > self.tokens {
            return Err(format!("{t} tokens are more than its {} positions", self.tokens));
        }
        want("token count", t, if self.shorter { t } else { self.tokens })?;
        want("width", d, self.dim)?;
        Ok(vec![t, d])
    }

    fn length(&self) -> Length {
        if self.shorter { Length::Any } else { Length::Exactly(self.tokens) }
    }

    fn causal(&self) -> bool {
        self.shorter
    }

    fn most_in_turn(&self) -> Option<usize> {
        Some(self.tokens)
    }

    fn links(&self, _ins: &[&[usize]], _out: &[usize]) -> NodeLinks {
        embedded(self.dim)
    }

    fn params(&self) -> Vec<(ParamRole, Vec<usize>)> {
        vec![(Embedding, vec![1, self.tokens, self.dim])]
    }

    width!(2: dim);
}

impl Facts for SelectToken {
    traits!("select token", "token", moves);

    fn describe(&self) -> Option<String> {
        Some(format!("token {}", self.index))
    }

    fn shape(&self, ins: &[&[usize]]) -> Result<Vec<usize>, String> {
        let [t, d] = tokens(ins)?;
        if self.index < t { Ok(vec![d]) } else { Err(format!("there is no token {}", self.index)) }
    }

    fn length(&self) -> Length {
        Length::AtLeast(self.index.saturating_add(1))
    }
}

impl Facts for MeanTokens {
    traits!("mean tokens", "mean_tokens");

    fn shape(&self, ins: &[&[usize]]) -> Result<Vec<usize>, String> {
        let [t, d] = tokens(ins)?;
        if self.skip < t { Ok(vec![d]) } else { Err(format!("nothing is left after skipping {} tokens", self.skip)) }
    }

    fn length(&self) -> Length {
        Length::AtLeast(self.skip.saturating_add(1))
    }
}
