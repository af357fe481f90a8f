//! Softmax attention without its projections.

use super::facts::{Facts, Length, MAX_ELEMENTS, input, kept, output, param, product, tokens, traits, want};
use super::numbers::{exact, exact_or_none};
use crate::graph::axes::{Link, NodeLinks, Span};
use crate::graph::macs::Macs;
use crate::graph::role::ParamRole;
use crate::graph::window::{PositionBias, Windows, relative_positions};
use serde::{Deserialize, Serialize};

/// With `fused`, one input laid out q, k, v (each head-major); otherwise three inputs `[t, heads·qk_dim]`,
/// `[t, heads/group·qk_dim]`, `[t, heads/group·v_dim]`. Output `[t, heads·v_dim]`. `scale` multiplies q·kᵀ. With
/// `cosine`, q and k are brought to length 1 per head first and `exp(min(logit scale, ln 100))` multiplies as well
/// (Swin v2, Liu et al. 2022). With `causal`, a token sees itself and those before it, else all tokens, or with `reach` those near it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Attention {
    pub heads: usize,
    pub qk_dim: usize,
    pub v_dim: usize,
    pub fused: bool,
    #[serde(with = "exact")]
    pub scale: f64,
    #[serde(default)]
    pub cosine: bool,
    pub windows: Option<Windows>,
    #[serde(default)]
    pub bias: PositionBias,
    /// Consecutive query heads that share a head of keys and values (Ainslie et al. 2023).
    #[serde(default = "alone", skip_serializing_if = "is_alone")]
    pub group: usize,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub causal: bool,
    /// A token sees at most so many: itself and those right before it (a sliding window; Beltagy et al. 2020). Goes with `causal`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most: Option<usize>,
    /// A token sees those that are at most so many places away, before it and after it (local attention; Beltagy et al. 2020). Goes
    /// without `causal`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reach: Option<usize>,
    /// A score `s` becomes `cap · tanh(s / cap)` (Gemma 2).
    #[serde(default, with = "exact_or_none", skip_serializing_if = "Option::is_none")]
    pub cap: Option<f64>,
}

/// Every query head with keys and values of its own.
fn alone() -> usize {
    1
}

fn is_alone(group: &usize) -> bool {
    *group == 1
}

impl Attention {
    /// Over all tokens, without a position bias.
    pub fn plain(heads: usize, qk_dim: usize, v_dim: usize, fused: bool, scale: f64) -> Attention {
        let (cosine, windows, bias, causal) = (false, None, PositionBias::None, false);
        let (group, most, reach, cap) = (1, None, None, None);
        Attention { heads, qk_dim, v_dim, fused, scale, cosine, windows, bias, group, causal, most, reach, cap }
    }

    /// A language model's: `heads` of `dim` over the tokens so far, keys and values of `group` heads shared; `1/√dim`.
    pub fn decoder(heads: usize, group: usize, dim: usize) -> Attention {
        Attention { group, causal: true, ..Attention::plain(heads, dim, dim, false, 1.0 / (dim as f64).sqrt()) }
    }

    /// Heads of keys and values.
    pub fn kv_heads(&self) -> usize {
        self.heads / self.group.max(1)
    }

    /// Columns of queries, keys and values.
    pub fn widths(&self) -> [usize; 3] {
        let kv = self.kv_heads();
        [self.heads * self.qk_dim, kv * self.qk_dim, kv * self.v_dim]
    }

    /// Neither shared keys nor a mask, nor capped scores.
    pub fn is_plain(&self) -> bool {
        self.group == 1 && !self.causal && self.most.is_none() && self.reach.is_none() && self.cap.is_none()
    }

    /// Which parameters have a place per head, and on which axis.
    fn per_head(&self) -> impl Iterator<Item = (ParamRole, usize)> {
        let bias = match self.bias {
            PositionBias::None => None,
            PositionBias::Table => Some((ParamRole::PositionBias, 1)),
            PositionBias::Full { .. } => Some((ParamRole::PositionBias, 0)),
            PositionBias::Continuous { .. } => Some((ParamRole::PositionMlp2, 0)),
        };
        self.cosine.then_some((ParamRole::LogitScale, 0)).into_iter().chain(bias)
    }
}

impl Facts for Attention {
    traits!("attention", "attention_core", layer);

    fn describe(&self) -> Option<String> {
        let heads = self.heads;
        Some(match self.windows {
            None => {
                let shared = if self.group > 1 { format!("/{}", self.kv_heads()) } else { String::new() };
                let sliding = self.most.map_or_else(String::new, |most| format!(" of {most}"));
                let local = self.reach.map_or_else(String::new, |reach| format!(" ±{reach}"));
                format!("attention {heads}h{shared}{sliding}{local}")
            }
            Some(w) => {
                let shifted = if w.shift == [0, 0] { "" } else { " shifted" };
                format!("attention {heads}h {}x{}{shifted}", w.size[0], w.size[1])
            }
        })
    }

    fn arity(&self) -> usize {
        if self.fused { 1 } else { 3 }
    }

    fn shape(&self, ins: &[&[usize]]) -> Result<Vec<usize>, String> {
        let Attention { heads, qk_dim, v_dim, group, .. } = *self;
        if group == 0 || !heads.is_multiple_of(group) {
            return Err(format!("{heads} heads are no whole number of groups of {group}"));
        }
        if !self.is_plain() && (self.cosine || self.windows.is_some() || self.bias != PositionBias::None) {
            return Err("shared keys, masks and capped scores go without windows, cosines and position biases".into());
        }
        if self.most == Some(0) || (self.most.is_some() && !self.causal) {
            return Err("a sliding window needs a causal mask and at least one token".into());
        }
        if self.reach.is_some() && self.causal {
            return Err("what a token sees on both sides goes without a causal mask".into());
        }
        if self.cap.is_some_and(|cap| !(cap.is_finite() && cap > 0.0)) {
            return Err("scores are capped at a positive number".into());
        }
        if heads == 0 || qk_dim == 0 || v_dim == 0 {
            return Err("it needs at least one head with a width".into());
        }
        let times = |d: usize| heads.checked_mul(d).ok_or("heads are too wide");
        let (qk, v) = (times(qk_dim)?, times(v_dim)?);
        let (k, kv) = (qk / group, v / group);
        let all = qk.checked_add(k).and_then(|n| n.checked_add(kv)).ok_or("heads are too wide")?;
        let widths: &[usize] = if self.fused { &[all] } else { &[qk, k, kv] };
        let t = ins[0].first().copied().unwrap_or(0);
        for (s, &width) in ins.iter().zip(widths) {
            let [st, sd] = tokens(&[s])?;
            want("token count", st, t)?;
            want("width", sd, width)?;
        }
        let size = match self.windows {
            Some(w) => w.check(t).map(|()| Some(w.size))?,
            None => None,
        };
        let relative = matches!(self.bias, PositionBias::Table | PositionBias::Continuous { .. });
        if relative && size.is_none() {
            return Err("a relative position bias needs windows".into());
        }
        let pairs = size.map_or(t, |[h, w]| h * w).checked_pow(2).and_then(|n| n.checked_mul(heads));
        if let PositionBias::Full { tokens } = self.bias {
            want("tokens of its bias", tokens, size.map_or(t, |[h, w]| h * w))?;
        }
        if self.bias != PositionBias::None && pairs.is_none_or(|n| n > MAX_ELEMENTS) {
            return Err("its position bias would be too large".into());
        }
        Ok(vec![t, v])
    }

    fn length(&self) -> Length {
        match (self.windows, self.bias) {
            (Some(w), _) => Length::Exactly(w.grid[0].saturating_mul(w.grid[1])),
            (None, PositionBias::Full { tokens }) => Length::Exactly(tokens),
            (None, PositionBias::None | PositionBias::Table | PositionBias::Continuous { .. }) => Length::Any,
        }
    }

    fn causal(&self) -> bool {
        self.causal
    }

    /// A unit is a head, or one of keys and values with all its queries: its rows of q, k and v go with its columns of the
    /// output.
    fn links(&self, _ins: &[&[usize]], _out: &[usize]) -> NodeLinks {
        let Attention { qk_dim, v_dim, group, .. } = *self;
        let (block, [q, k, _]) = (Span::run, self.widths());
        let parts = if self.fused {
            [(0, block(0, group * qk_dim)), (0, block(q, qk_dim)), (0, block(q + k, v_dim))]
        } else {
            [(0, block(0, group * qk_dim)), (1, block(0, qk_dim)), (2, block(0, v_dim))]
        };
        let (units, b_span) = (self.kv_heads(), block(0, group * v_dim));
        let link = |a, a_span| Link { a, b: output(1), units, a_span, b_span };
        let inputs = parts.into_iter().map(|(i, a_span)| link(input(i, 1), a_span));
        let params = self.per_head().map(|(role, axis)| link(param(role, axis), Span::EACH));
        NodeLinks { links: inputs.chain(params).collect(), ..NodeLinks::default() }
    }

    fn params(&self) -> Vec<(ParamRole, Vec<usize>)> {
        let heads = self.heads;
        let mut p = Vec::new();
        if self.cosine {
            p.push((ParamRole::LogitScale, vec![heads, 1, 1]));
        }
        match (self.bias, self.windows) {
            (PositionBias::None, _) => {}
            (PositionBias::Table, w) => {
                p.push((ParamRole::PositionBias, vec![relative_positions(w.map_or([1, 1], |w| w.size)), heads]));
            }
            (PositionBias::Full { tokens }, _) => p.push((ParamRole::PositionBias, vec![heads, tokens, tokens])),
            (PositionBias::Continuous { hidden, .. }, _) => p.extend([
                (ParamRole::PositionMlp1, vec![hidden, 2]),
                (ParamRole::PositionMlp1Bias, vec![hidden]),
                (ParamRole::PositionMlp2, vec![heads, hidden]),
            ]),
        }
        p
    }

    /// QKᵀ and AV, for all pairs of tokens also where a mask leaves most of them out, as fvcore
    /// counts them.
    fn macs(&self, ins: &[&[usize]], _out: &[usize]) -> Macs {
        let tokens = ins.first().and_then(|s| s.first()).copied().unwrap_or(0);
        let seen = self.windows.map_or(tokens, |w| w.tokens());
        Macs { attention: product(&[self.heads, tokens, seen, self.qk_dim + self.v_dim]), ..Macs::default() }
    }

    /// Its parameters carry heads on either axis; shared keys go with all their queries.
    fn axis_len(&self, axis: usize) -> Option<usize> {
        (axis < 2).then_some(self.kv_heads())
    }

    fn narrow(&mut self, _axis: usize, mask: &[bool]) {
        self.heads = kept(mask) * self.group;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_sees_both_sides_or_what_came_before() {
        let local = Attention { reach: Some(2), ..Attention::plain(2, 4, 4, false, 0.5) };
        let shape = |a: &Attention| a.shape(&[&[9, 8][..]; 3]);
        assert_eq!(shape(&local), Ok(vec![9, 8]));
        assert_eq!((local.describe(), local.is_plain()), (Some("attention 2h ±2".into()), false));
        for bad in [
            Attention { causal: true, ..local.clone() },
            Attention { most: Some(3), ..local.clone() },
            Attention { bias: PositionBias::Full { tokens: 9 }, ..local.clone() },
        ] {
            assert!(shape(&bad).is_err(), "{bad:?}");
        }
        let text = serde_json::to_string(&local).unwrap();
        assert_eq!(serde_json::from_str::<Attention>(&text).unwrap(), local);
        assert!(!serde_json::to_string(&Attention::plain(2, 4, 4, false, 0.5)).unwrap().contains("reach"));
    }
}
