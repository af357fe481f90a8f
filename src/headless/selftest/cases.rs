//! The graphs that are checked: one kernel each, or a few where kernels fuse; sizes are ragged on purpose, so that
//! vector tails and partial tiles run too.

use crate::graph::op::{self, Dim, Input};
use crate::graph::rotary::Pairs;
use crate::graph::{Activation, Builder, Conv, Graph, GraphError, NodeId, Op, PositionBias, Precision, Windows};

/// One kernel to check or to time.
#[derive(Debug, Clone)]
pub(super) struct Case {
    pub name: &'static str,
    pub graph: Graph,
    pub precision: Precision,
    /// Inputs are uniform within `±range`.
    pub range: f32,
}

/// What a graph reads.
#[derive(Debug, Clone, Copy)]
enum Reads {
    Image([usize; 3]),
    /// So many features of so many tokens, from an image of that many channels and rows.
    Tokens(usize, usize),
}
use Reads::{Image, Tokens};

/// What is built on the input; the builder's last node is the output.
type Build = fn(&mut Builder, NodeId) -> NodeId;

/// Name, precisions, input, range, graph.
type Row = (&'static str, &'static [Precision], Reads, f32, Build);

const F32: &[Precision] = &[Precision::F32];
const BOTH: &[Precision] = &[Precision::F32, Precision::Int8];

const EIGHT: &[Precision] = &[Precision::F32, Precision::Int8, Precision::Fp8];
const WEIGHTS: &[Precision] = &[Precision::F32, Precision::W8, Precision::W4, Precision::W4g32];

/// What the node whose kernel is meant is called in every graph; the graph's output is at or after it.
pub(super) const TARGET: &str = "target";

const ROWS: &[Row] = &[
    ("conv 1x1", BOTH, Image([48, 9, 9]), 2.0, |b, x| b.conv(TARGET, x, Conv::same(48, 40, 1, 1))),
    ("conv 1x1, ragged", BOTH, Image([13, 7, 5]), 2.0, |b, x| b.conv(TARGET, x, Conv::same(13, 27, 1, 1))),
    ("conv 1x1/2", BOTH, Image([32, 9, 9]), 2.0, |b, x| b.conv(TARGET, x, Conv::same(32, 24, 1, 2))),
    ("conv 3x3", BOTH, Image([32, 14, 14]), 2.0, |b, x| b.conv(TARGET, x, Conv::same(32, 48, 3, 1))),
    ("conv 3x3, ragged", BOTH, Image([5, 11, 13]), 2.0, |b, x| b.conv(TARGET, x, Conv::same(5, 17, 3, 1))),
    ("conv 3x3/2", BOTH, Image([16, 15, 15]), 2.0, |b, x| b.conv(TARGET, x, Conv::same(16, 32, 3, 2))),
    ("conv 4x4/4", BOTH, Image([3, 16, 16]), 2.0, |b, x| {
        b.conv(TARGET, x, Conv { padding: [0; 4], bias: true, ..Conv::same(3, 64, 4, 4) })
    }),
    ("conv 7x7/2", BOTH, Image([3, 30, 30]), 2.0, |b, x| b.conv(TARGET, x, Conv::same(3, 24, 7, 2))),
    ("grouped conv 3x3", BOTH, Image([32, 10, 10]), 2.0, |b, x| grouped(b, x, 32, 4)),
    ("depthwise conv 3x3", BOTH, Image([24, 12, 12]), 2.0, |b, x| grouped(b, x, 24, 24)),
    ("conv 3x3 + batch norm + add", BOTH, Image([16, 12, 12]), 2.0, |b, x| {
        let y = b.conv(TARGET, x, Conv::same(16, 16, 3, 1));
        let y = b.batch_norm("bn", y, 16);
        b.add("add", y, x)
    }),
    ("conv 3x3 + batch norm + add + relu", F32, Image([16, 12, 12]), 2.0, |b, x| {
        let y = b.conv(TARGET, x, Conv::same(16, 16, 3, 1));
        let y = b.batch_norm("bn", y, 16);
        let y = b.add("add", y, x);
        b.relu("relu", y)
    }),
    ("linear", BOTH, Tokens(96, 17), 2.0, |b, x| b.linear(TARGET, x, 96, 80, true)),
    ("linear, ragged", BOTH, Tokens(45, 11), 2.0, |b, x| b.linear(TARGET, x, 45, 37, false)),
    ("linear, one row", BOTH, Image([64, 3, 3]), 2.0, |b, x| {
        let x = b.node("tokens", Op::ToTokens, &[x]);
        let x = b.node("select", Op::SelectToken(op::SelectToken { index: 4 }), &[x]);
        b.linear(TARGET, x, 64, 100, true)
    }),
    ("linear + gelu", F32, Tokens(64, 19), 2.0, |b, x| {
        let x = b.linear(TARGET, x, 64, 72, true);
        b.act("act", x, Activation::GeluErf)
    }),
    ("batch norm", F32, Image([24, 9, 7]), 2.0, |b, x| b.batch_norm(TARGET, x, 24)),
    ("layer norm", F32, Tokens(96, 17), 2.0, |b, x| b.layer_norm(TARGET, x, 96, 1e-6)),
    ("layer norm, ragged", F32, Tokens(45, 9), 2.0, |b, x| b.layer_norm(TARGET, x, 45, 1e-5)),
    ("attention, fused", F32, Tokens(3 * 3 * 16, 19), 2.0, |b, x| attention(b, x, [3, 16, 16], 0.25)),
    ("attention, three inputs", F32, Tokens(40, 33), 2.0, |b, x| {
        let q = b.linear("q", x, 40, 24, true);
        let k = b.linear("k", x, 40, 24, true);
        let v = b.linear("v", x, 40, 40, true);
        let op = Op::attention(2, 12, 20, false, 0.29);
        b.node(TARGET, op, &[q, k, v])
    }),
    ("attention, windows", F32, Tokens(3 * 2 * 8, 4 * 6), 2.0, |b, x| swin(b, x, [0, 0], false, PositionBias::Table)),
    ("attention, shifted windows", F32, Tokens(3 * 2 * 8, 4 * 6), 2.0, |b, x| {
        swin(b, x, [1, 1], false, PositionBias::Table)
    }),
    ("attention, cosine", F32, Tokens(3 * 2 * 8, 4 * 6), 2.0, |b, x| {
        swin(b, x, [0, 2], true, PositionBias::Continuous { hidden: 16, trained: [0, 0] })
    }),
    ("attention, biased", F32, Tokens(3 * 2 * 8, 19), 2.0, |b, x| {
        biased(b, x, None, false, PositionBias::Full { tokens: 19 })
    }),
    ("attention, causal with shared keys", F32, Tokens(40, 37), 2.0, |b, x| {
        let q = b.linear("q", x, 40, 6 * 12, true);
        let k = b.linear("k", x, 40, 2 * 12, true);
        let v = b.linear("v", x, 40, 2 * 12, true);
        b.node(TARGET, Op::Attention(op::Attention::decoder(6, 3, 12)), &[q, k, v])
    }),
    ("attention, capped in a sliding window", F32, Tokens(40, 37), 2.0, |b, x| {
        let [q, k, v] = [("q", 48), ("k", 24), ("v", 24)].map(|(name, width)| b.linear(name, x, 40, width, true));
        let core = op::Attention { most: Some(9), cap: Some(1.5), ..op::Attention::decoder(4, 2, 12) };
        b.node(TARGET, Op::Attention(core), &[q, k, v])
    }),
    ("attention, local on both sides", F32, Tokens(40, 37), 2.0, |b, x| {
        let [q, k, v] = ["q", "k", "v"].map(|name| b.linear(name, x, 40, 48, true));
        let core = op::Attention { reach: Some(5), ..op::Attention::plain(4, 12, 12, false, 0.29) };
        b.node(TARGET, Op::Attention(core), &[q, k, v])
    }),
    ("rope, halves", F32, Tokens(3 * 10, 19), 2.0, |b, x| rope(b, x, 10, Pairs::Halves)),
    ("rope, neighbours of a part", F32, Tokens(3 * 10, 19), 2.0, |b, x| rope(b, x, 6, Pairs::Neighbours)),
    ("rope, scaled", F32, Tokens(3 * 10, 19), 2.0, |b, x| {
        let beyond = Some(op::Beyond { tokens: 12, how: op::Longer::Divided(vec![1.0, 1.5, 2.5, 4.0]) });
        let scaling = op::Scaling { divisors: vec![1.0; 4], factor: 1.25, beyond };
        let rope = op::Rope { scaling: Some(Box::new(scaling)), ..op::Rope::plain(10, 8, 100.0, Pairs::Halves) };
        b.node(TARGET, Op::Rope(rope), &[x])
    }),
    ("head norm", F32, Tokens(3 * 10, 19), 2.0, |b, x| {
        b.node(TARGET, Op::HeadNorm(op::HeadNorm { head_dim: 10, eps: 1e-6 }), &[x])
    }),
    ("route", F32, Tokens(13, 19), 4.0, |b, x| b.node(TARGET, route(13, 4, false), &[x])),
    ("route, normalised", F32, Tokens(8, 19), 4.0, |b, x| b.node(TARGET, route(8, 2, true), &[x])),
    ("dispatch", F32, Tokens(24, 19), 2.0, |b, x| {
        let logits = b.linear("router", x, 24, 5, false);
        let weights = b.node("route", route(5, 2, true), &[logits]);
        b.node(TARGET, Op::Dispatch(op::Dispatch { experts: 5, expert: 3 }), &[x, weights])
    }),
    ("experts", F32, Tokens(24, 19), 2.0, experts),
    // Scores over about ±80: the row maximum must be taken out before the exponential.
    ("softmax, wide scores", F32, Tokens(3 * 2 * 8, 37), 2.0, |b, x| attention(b, x, [2, 8, 8], 8.0)),
    ("relu", F32, Image([19, 9, 7]), 8.0, |b, x| b.relu(TARGET, x)),
    ("gelu-erf", F32, Image([19, 9, 7]), 8.0, |b, x| b.act(TARGET, x, Activation::GeluErf)),
    ("gelu-tanh", F32, Image([19, 9, 7]), 8.0, |b, x| b.act(TARGET, x, Activation::GeluTanh)),
    ("silu", F32, Image([19, 9, 7]), 8.0, |b, x| b.act(TARGET, x, Activation::Silu)),
    ("relu6", F32, Image([19, 9, 7]), 8.0, |b, x| b.act(TARGET, x, Activation::Relu6)),
    ("sigmoid", F32, Image([19, 9, 7]), 8.0, |b, x| b.act(TARGET, x, Activation::Sigmoid)),
    ("hard sigmoid", F32, Image([19, 9, 7]), 8.0, |b, x| b.act(TARGET, x, Activation::HardSigmoid)),
    ("hard swish", F32, Image([19, 9, 7]), 8.0, |b, x| b.act(TARGET, x, Activation::HardSwish)),
    ("tanh", F32, Image([19, 9, 7]), 8.0, |b, x| b.act(TARGET, x, Activation::Tanh)),
    ("softmax", F32, Tokens(45, 9), 8.0, |b, x| b.softmax(TARGET, x)),
    ("rms norm", F32, Tokens(45, 9), 2.0, |b, x| b.node(TARGET, Op::RmsNorm(op::RmsNorm { dim: 45, eps: 1e-6 }), &[x])),
    ("layer norm, image", F32, Image([24, 9, 7]), 2.0, |b, x| b.layer_norm(TARGET, x, 24, 1e-6)),
    ("batch norm, tokens", F32, Tokens(24, 9), 2.0, |b, x| b.batch_norm(TARGET, x, 24)),
    ("conv 3x3/2, padded after", BOTH, Image([16, 14, 14]), 2.0, |b, x| {
        b.conv(TARGET, x, Conv { padding: [0, 0, 1, 1], bias: true, ..Conv::same(16, 24, 3, 2) })
    }),
    ("linear + layer scale + add", F32, Tokens(48, 17), 2.0, |b, x| {
        let y = b.linear(TARGET, x, 48, 48, true);
        let y = b.node("scale", Op::Scale(op::Scale { channels: 48 }), &[y]);
        b.add("add", y, x)
    }),
    ("layer scale", F32, Image([24, 9, 7]), 2.0, |b, x| b.node(TARGET, Op::Scale(op::Scale { channels: 24 }), &[x])),
    ("scalar", F32, Image([24, 9, 7]), 2.0, |b, x| {
        b.node(TARGET, Op::Scalar(op::Scalar { mul: 0.5, add: -1.0 }), &[x])
    }),
    ("multiply", F32, Image([24, 9, 7]), 2.0, |b, x| {
        let y = b.act("act", x, Activation::Silu);
        b.node(TARGET, Op::Mul, &[x, y])
    }),
    ("squeeze and excite", F32, Image([24, 9, 7]), 2.0, |b, x| {
        let y = b.node("pool", Op::GlobalAvgPool, &[x]);
        let y = b.act("act", y, Activation::Sigmoid);
        b.node(TARGET, Op::Mul, &[x, y])
    }),
    ("avg pool 3x3/2", F32, Image([21, 13, 11]), 2.0, |b, x| {
        let op = Op::AvgPool2d(op::AvgPool2d { kernel: [3; 2], stride: [2; 2], padding: [1; 4], count_padding: false });
        b.node(TARGET, op, &[x])
    }),
    ("avg pool 2x2, zeros counted", F32, Image([21, 13, 11]), 2.0, |b, x| {
        let op =
            Op::AvgPool2d(op::AvgPool2d { kernel: [2; 2], stride: [2; 2], padding: [1, 0, 0, 1], count_padding: true });
        b.node(TARGET, op, &[x])
    }),
    ("adaptive avg pool", F32, Image([21, 13, 5]), 2.0, |b, x| {
        b.node(TARGET, Op::AdaptiveAvgPool2d(op::AdaptiveAvgPool2d { out: [7, 7] }), &[x])
    }),
    ("concat", F32, Image([21, 9, 7]), 2.0, |b, x| {
        let y = b.relu("relu", x);
        b.node(TARGET, Op::Concat(op::Concat { inputs: 3 }), &[x, y, x])
    }),
    ("flatten", F32, Image([21, 9, 7]), 2.0, |b, x| b.node(TARGET, Op::Flatten, &[x])),
    ("to image", F32, Tokens(24, 20), 2.0, |b, x| {
        let x = b.node("image", Op::ToImage(op::ToImage { h: 4, w: 5 }), &[x]);
        b.conv(TARGET, x, Conv::same(24, 16, 3, 1))
    }),
    ("patch merge", F32, Tokens(27, 24), 2.0, |b, x| {
        b.node(TARGET, Op::PatchMerge(op::PatchMerge { grid: [4, 6] }), &[x])
    }),
    ("channel map, tokens", F32, Tokens(27, 8), 2.0, |b, x| {
        let map = vec![Some(3), None, Some(26), Some(0)];
        b.node(TARGET, Op::ChannelPad(op::ChannelPad { stride: 1, in_ch: 27, map }), &[x])
    }),
    ("tokens after the first", F32, Tokens(27, 8), 2.0, |b, x| {
        b.node(TARGET, Op::PrependTokens(op::PrependTokens { count: 2, dim: 27, at: 1 }), &[x])
    }),
    ("max pool 3x3/2", F32, Image([21, 13, 11]), 2.0, |b, x| {
        b.node(TARGET, Op::MaxPool2d(op::MaxPool2d { kernel: [3; 2], stride: [2; 2], padding: [1; 4] }), &[x])
    }),
    ("global mean", F32, Image([37, 7, 9]), 2.0, |b, x| b.node(TARGET, Op::GlobalAvgPool, &[x])),
    ("mean tokens", F32, Tokens(37, 17), 2.0, |b, x| b.node(TARGET, Op::MeanTokens(op::MeanTokens { skip: 1 }), &[x])),
    ("add", F32, Image([21, 9, 7]), 2.0, |b, x| {
        let y = b.batch_norm("bn", x, 21);
        let z = b.act("act", x, Activation::Silu);
        b.add(TARGET, y, z)
    }),
    ("channel pad", F32, Image([8, 9, 9]), 2.0, |b, x| {
        let map = (0..16u32).map(|j| (4..12).contains(&j).then(|| j - 4)).collect();
        b.node(TARGET, Op::ChannelPad(op::ChannelPad { stride: 2, in_ch: 8, map }), &[x])
    }),
    ("channel pad, pruned", F32, Image([8, 8, 8]), 2.0, |b, x| {
        let map = vec![None, Some(6), Some(1), None, Some(3), Some(7)];
        b.node(TARGET, Op::ChannelPad(op::ChannelPad { stride: 2, in_ch: 8, map }), &[x])
    }),
    ("prepend tokens", F32, Tokens(27, 8), 2.0, |b, x| {
        b.node(TARGET, Op::PrependTokens(op::PrependTokens { count: 2, dim: 27, at: 0 }), &[x])
    }),
    ("positions", F32, Tokens(27, 8), 2.0, |b, x| b.node(TARGET, Op::AddPositions(op::AddPositions::of(8, 27)), &[x])),
    ("positions of a shorter sequence", F32, Tokens(27, 8), 2.0, |b, x| {
        let positions = op::AddPositions { shorter: true, ..op::AddPositions::of(11, 27) };
        b.node(TARGET, Op::AddPositions(positions), &[x])
    }),
    ("select token", F32, Tokens(27, 8), 2.0, |b, x| {
        b.node(TARGET, Op::SelectToken(op::SelectToken { index: 5 }), &[x])
    }),
];

fn grouped(b: &mut Builder, x: NodeId, channels: usize, groups: usize) -> NodeId {
    b.conv(TARGET, x, Conv { groups, ..Conv::same(channels, channels, 3, 1) })
}

/// Heads of ten values of which `turned` are.
fn rope(b: &mut Builder, x: NodeId, turned: usize, pairs: Pairs) -> NodeId {
    b.node(TARGET, Op::Rope(op::Rope::plain(10, turned, 100.0, pairs)), &[x])
}

fn route(experts: usize, top: usize, normalised: bool) -> Op {
    Op::Route(op::Route { experts, top, normalised })
}

/// A mixture of five experts, whose layers compute the tokens that are sent to them.
fn experts(b: &mut Builder, x: NodeId) -> NodeId {
    let logits = b.linear("router", x, 24, 5, false);
    let mut made = vec![b.node("route", route(5, 2, true), &[logits])];
    for expert in 0..5 {
        let h = b.node(format!("{expert}.dispatch"), Op::Dispatch(op::Dispatch { experts: 5, expert }), &[x, made[0]]);
        let h = b.linear(format!("{expert}.up"), h, 24, 32, false);
        let h = b.act(format!("{expert}.act"), h, Activation::Silu);
        made.push(b.linear(format!("{expert}.down"), h, 32, 24, false));
    }
    b.node(TARGET, Op::Combine(op::Combine { experts: 5 }), &made)
}

/// Attention within 2x3 windows of a 4x6 grid.
fn swin(b: &mut Builder, x: NodeId, shift: [usize; 2], cosine: bool, bias: PositionBias) -> NodeId {
    biased(b, x, Some(Windows { grid: [4, 6], size: [2, 3], shift }), cosine, bias)
}

fn biased(b: &mut Builder, x: NodeId, windows: Option<Windows>, cosine: bool, bias: PositionBias) -> NodeId {
    let (heads, qk_dim, v_dim, fused, scale) = (2, 8, 8, true, if cosine { 1.0 } else { 0.35 });
    let core = op::Attention { cosine, windows, bias, ..op::Attention::plain(heads, qk_dim, v_dim, fused, scale) };
    b.node(TARGET, Op::Attention(core), &[x])
}

impl Reads {
    fn build(self, b: &mut Builder) -> NodeId {
        match self {
            Image(shape) => b.input(shape),
            Tokens(features, tokens) => {
                let x = b.input([features, tokens, 1]);
                b.node("tokens", Op::ToTokens, &[x])
            }
        }
    }
}

fn attention(b: &mut Builder, x: NodeId, [heads, qk_dim, v_dim]: [usize; 3], scale: f64) -> NodeId {
    b.node(TARGET, Op::attention(heads, qk_dim, v_dim, true, scale), &[x])
}

/// Every case in `precisions`: what has int8 has every other one than f32 too.
pub(super) fn all(precisions: &[Precision]) -> Result<Vec<Case>, GraphError> {
    let mut cases = Vec::new();
    for &precision in precisions {
        let listed = if precision == Precision::F32 { Precision::F32 } else { Precision::Int8 };
        for row in ROWS.iter().filter(|r| r.1.contains(&listed)) {
            cases.push(case(row, precision)?);
        }
        if listed == Precision::F32 {
            cases.push(Case { name: "embedding", graph: ids()?, precision, range: 0.0 });
        }
    }
    Ok(cases)
}

/// Rows of a table, by token ids.
fn ids() -> Result<Graph, GraphError> {
    let mut b = Builder::default();
    let x = b.input_of(Input { dims: vec![Dim::Fixed(9)], ..Input::ids(11) });
    let x = b.embedding(TARGET, x, 11, 27);
    b.finish(x)
}

fn case((name, _, reads, range, build): &Row, precision: Precision) -> Result<Case, GraphError> {
    let mut b = Builder::default();
    let x = reads.build(&mut b);
    let out = build(&mut b, x);
    Ok(Case { name, graph: b.finish(out)?, precision, range: *range })
}

const LAYERS: &[Row] = &[
    ("conv 3x3 64, 56x56", BOTH, Image([64, 56, 56]), 2.0, |b, x| b.conv(TARGET, x, Conv::same(64, 64, 3, 1))),
    ("conv 1x1 256 to 64, 56x56", BOTH, Image([256, 56, 56]), 2.0, |b, x| b.conv(TARGET, x, Conv::same(256, 64, 1, 1))),
    ("linear 768 to 3072, 197 tokens", EIGHT, Tokens(768, 197), 2.0, |b, x| b.linear(TARGET, x, 768, 3072, true)),
    // Where few bits pay: every weight is read for one product.
    ("linear 768 to 3072, one token", WEIGHTS, Tokens(768, 1), 2.0, |b, x| b.linear(TARGET, x, 768, 3072, true)),
    ("attention 12 heads of 64, 197 tokens", F32, Tokens(3 * 768, 197), 2.0, |b, x| {
        attention(b, x, [12, 64, 64], 0.125)
    }),
    ("layer norm 768, 197 tokens", F32, Tokens(768, 197), 2.0, |b, x| b.layer_norm(TARGET, x, 768, 1e-6)),
    ("depthwise conv 3x3 144, 56x56", F32, Image([144, 56, 56]), 2.0, |b, x| grouped(b, x, 144, 144)),
    ("grouped conv 3x3 128 by 4, 56x56", F32, Image([128, 56, 56]), 2.0, |b, x| grouped(b, x, 128, 32)),
    ("rms norm 768, 197 tokens", F32, Tokens(768, 197), 2.0, |b, x| {
        b.node(TARGET, Op::RmsNorm(op::RmsNorm { dim: 768, eps: 1e-6 }), &[x])
    }),
    ("softmax 768, 197 rows", F32, Tokens(768, 197), 2.0, |b, x| b.softmax(TARGET, x)),
    ("gelu 3072, 197 tokens", F32, Image([3072, 197, 1]), 2.0, |b, x| b.act(TARGET, x, Activation::GeluErf)),
    ("silu 256, 56x56", F32, Image([256, 56, 56]), 2.0, |b, x| b.act(TARGET, x, Activation::Silu)),
    // Far beyond the caches.
    ("hard swish 256, 256x256", F32, Image([256, 256, 256]), 2.0, |b, x| b.act(TARGET, x, Activation::HardSwish)),
    ("add 256, 56x56", F32, Image([256, 56, 56]), 2.0, |b, x| {
        let y = b.act("act", x, Activation::Silu);
        b.add(TARGET, x, y)
    }),
];

/// Layers whose timings are representative of the families, in those of `precisions` that tell something there.
pub(super) fn layers(precisions: &[Precision]) -> Result<Vec<Case>, GraphError> {
    let of = |row: &'static Row| row.1.iter().filter(|p| precisions.contains(p)).map(move |p| case(row, *p));
    LAYERS.iter().flat_map(of).collect()
}

/// The sum of `depth` linears of the same `tokens`: next to nothing but matrix products, since sums fuse.
pub(super) fn linears(inp: usize, out: usize, tokens: usize, depth: usize) -> Result<Graph, GraphError> {
    sum(Tokens(inp, tokens), depth, |b, x, i| b.linear(format!("linear{i}"), x, inp, out, true))
}

/// The sum of `depth` 3x3 convolutions of 64 channels, 56x56, each with 64 channels of output.
pub(super) fn convolutions(depth: usize) -> Result<Graph, GraphError> {
    sum(Image([64, 56, 56]), depth, |b, x, i| b.conv(format!("conv{i}"), x, Conv::same(64, 64, 3, 1)))
}

fn sum(reads: Reads, depth: usize, layer: impl Fn(&mut Builder, NodeId, usize) -> NodeId) -> Result<Graph, GraphError> {
    let mut b = Builder::default();
    let x = reads.build(&mut b);
    let mut sum = layer(&mut b, x, 0);
    for i in 1..depth {
        let y = layer(&mut b, x, i);
        sum = b.add(format!("add{i}"), y, sum);
    }
    b.finish(sum)
}
