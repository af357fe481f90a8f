//! Mixtures of experts by their definition, with a backward pass: every expert computes all tokens, and zeros of those that are not
//! sent to it.
//!
//! Not here: kernels that leave tokens out (`lower::routed`).

use super::ops::{Candle, softmax};
use candle_core::{D, Tensor};

/// A softmax over the last axis of which the `top` largest stay, the earlier of equals; divided by their sum if `normalised`.
pub(super) fn route(logits: &Tensor, top: usize, normalised: bool) -> Candle<Tensor> {
    let p = softmax(logits, 1.0)?;
    let (n, experts) = (p.elem_count() / p.dim(D::Minus1)?, p.dim(D::Minus1)?);
    // How many are larger, or equal and before: the choice itself carries no gradient.
    let rows = p.detach().reshape((n, experts))?;
    let (one, other) = (rows.unsqueeze(2)?, rows.unsqueeze(1)?);
    let before: Vec<f32> = (0..experts * experts).map(|i| f32::from(i % experts < i / experts)).collect();
    let before = Tensor::from_vec(before, (1, experts, experts), p.device())?.to_dtype(p.dtype())?;
    let larger = other.broadcast_gt(&one)?.to_dtype(p.dtype())?;
    let equal = other.broadcast_eq(&one)?.to_dtype(p.dtype())?.broadcast_mul(&before)?;
    let rank = (larger + equal)?.sum(2)?;
    let chosen = rank.lt(top as f64)?.to_dtype(p.dtype())?.reshape(p.dims())?;
    let p = (p * chosen)?;
    if normalised { p.broadcast_div(&p.sum_keepdim(D::Minus1)?) } else { Ok(p) }
}

/// 1 for tokens whose weight for `expert` is not 0, `[.., 1]`.
pub(super) fn sent(weights: &Tensor, expert: usize) -> Candle<Tensor> {
    weights.detach().narrow(D::Minus1, expert, 1)?.ne(0f64)?.to_dtype(weights.dtype())
}

/// A router's weights and what each expert made: the weighted sum.
pub(super) fn combine(inputs: &[Tensor]) -> Candle<Tensor> {
    let [weights, made @ ..] = inputs else { candle_core::bail!("a mixture without weights") };
    let each = |(i, made): (usize, &Tensor)| made.broadcast_mul(&weights.narrow(D::Minus1, i, 1)?);
    let mut all = made.iter().enumerate().map(each);
    let Some(first) = all.next() else { candle_core::bail!("a mixture of no experts") };
    all.try_fold(first?, |sum, more| sum + more?)
}
