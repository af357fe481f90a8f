//! Blocks that several families are made of. Names given here are the builder's own (see `names`).

use crate::graph::{Activation, Builder, Conv, NodeId, Op, ResidualAdd, op};

/// conv → batch norm.
pub(super) fn conv_bn(b: &mut Builder, conv: String, bn: String, x: NodeId, c: Conv, eps: f64) -> NodeId {
    let x = b.conv(conv, x, c);
    b.node(bn, Op::BatchNorm2d(op::BatchNorm2d { channels: c.out_ch, eps }), &[x])
}

/// Squeeze and excitation (Hu et al. 2018) called `at`: `x` times, per channel, a gate that two layers compute from the
/// channels' means. Checkpoints keep the layers as 1x1 convolutions of a single pixel, which are linears.
pub(super) fn squeeze_excite(
    b: &mut Builder,
    at: &str,
    x: NodeId,
    [channels, squeezed]: [usize; 2],
    [act, gate]: [Activation; 2],
) -> NodeId {
    let mut s = b.node(format!("{at}.pool"), Op::GlobalAvgPool, &[x]);
    s = b.linear(format!("{at}.reduce"), s, channels, squeezed, true);
    s = b.act(format!("{at}.act"), s, act);
    s = b.linear(format!("{at}.expand"), s, squeezed, channels, true);
    s = b.act(format!("{at}.gate"), s, gate);
    b.node(format!("{at}.mul"), Op::Mul, &[x, s])
}

/// The image in square patches as tokens `dim` wide.
pub(super) fn patch_tokens(b: &mut Builder, image: usize, patch: usize, dim: usize, bias: bool) -> NodeId {
    let x = b.input([3, image, image]);
    let conv = Conv { padding: [0; 4], stride: patch, bias, ..Conv::same(3, dim, patch, 1) };
    let x = b.conv("patch_embed.proj", x, conv);
    b.node("tokens", Op::ToTokens, &[x])
}

/// Queries, keys and values of a layer called `at`, by one linear (`fused`) or by three; `bias` tells by its name whether
/// one has a bias.
pub(super) fn qkv(
    b: &mut Builder,
    at: &str,
    x: NodeId,
    dim: usize,
    fused: bool,
    bias: impl Fn(&str) -> bool,
) -> Vec<NodeId> {
    let (names, width): (&[&str], usize) = if fused { (&["qkv"], 3 * dim) } else { (&["q", "k", "v"], dim) };
    names.iter().map(|n| b.linear(format!("{at}.attn.{n}"), x, dim, width, bias(n))).collect()
}

/// The MLP of a layer called `at`: linear, activation, linear.
pub(super) fn mlp(b: &mut Builder, at: &str, x: NodeId, [dim, hidden]: [usize; 2], act: Activation) -> NodeId {
    let y = b.linear(format!("{at}.mlp.fc1"), x, dim, hidden, true);
    let y = b.act(format!("{at}.act"), y, act);
    b.linear(format!("{at}.mlp.fc2"), y, hidden, dim, true)
}

/// Where a transformer's layer has its two norms.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Norms {
    BeforeBranches,
    AfterBranches,
    AfterAdditions,
}

/// One layer of a transformer, called `at`: twice a branch (attention, then MLP), a norm of `width` and `eps`, and the
/// addition of what went in. It is one removable block with two residual additions; norms after additions lie on the
/// residual stream, and stay when it is removed.
pub(super) fn encoder_layer(
    b: &mut Builder,
    at: &str,
    mut x: NodeId,
    norms: Norms,
    (width, eps): (usize, f64),
    branch: impl Fn(&mut Builder, usize, NodeId) -> NodeId,
) -> NodeId {
    b.begin_block(at);
    let mut residual = Vec::new();
    for i in 1..=2 {
        let norm = |b: &mut Builder, place, x| match norms == place {
            true => b.layer_norm(format!("{at}.norm{i}"), x, width, eps),
            false => x,
        };
        let skip = x;
        let y = norm(b, Norms::BeforeBranches, x);
        let y = branch(b, i, y);
        let y = norm(b, Norms::AfterBranches, y);
        let add = b.add(format!("{at}.add{i}"), y, skip);
        residual.push(ResidualAdd { add, skip });
        x = norm(b, Norms::AfterAdditions, add);
    }
    b.end_block(residual);
    x
}

/// Padding `[top, left, bottom, right]` by which TensorFlow's "same" convolution of a `side`x`side` image gives
/// `⌈side/stride⌉` pixels: the odd one goes below and to the right.
pub(super) fn same_padding(side: usize, kernel: usize, stride: usize) -> [usize; 4] {
    let stride = stride.max(1);
    let needed = (side.div_ceil(stride).saturating_sub(1) * stride + kernel).saturating_sub(side);
    let before = needed / 2;
    [before, before, needed - before, needed - before]
}

/// The ImageNet evaluation resize of the original papers: shorter side 256 for a crop of 224.
pub(super) fn usual_resize(side: usize) -> usize {
    side * 256 / 224
}
