//! Shape inference: every node's output shape from its op and its inputs' shapes, without the batch axis.
//!
//! Invariant: a graph whose shapes were inferred without error can be executed; all arithmetic is checked, because
//! graphs also come from files.

use super::{Graph, GraphError, Node, Op, PositionBias, channel_axis, describe};

/// Largest number of elements one node's output may have for one image: 1 GiB of `f32`, far beyond any network here. A
/// damaged file must fail here and not in an allocator.
const MAX_ELEMENTS: usize = 1 << 28;

/// Output shape per node, without the batch axis; empty for unreachable nodes.
pub fn shapes(graph: &Graph) -> Result<Vec<Vec<usize>>, GraphError> {
    let reachable = graph.reachable();
    let mut out: Vec<Vec<usize>> = Vec::with_capacity(graph.nodes.len());
    for (id, node) in graph.iter() {
        if !reachable[id.index()] {
            out.push(Vec::new());
            continue;
        }
        let mut ins = Vec::with_capacity(node.inputs.len());
        for input in &node.inputs {
            match out.get(input.index()) {
                Some(s) => ins.push(s.as_slice()),
                None => return Err(GraphError::Order { node: node.name.clone(), input: input.0 }),
            }
        }
        let shape = node_shape(node, &ins)?;
        out.push(shape);
    }
    Ok(out)
}

/// How many inputs `op` takes.
pub(super) fn arity(op: &Op) -> usize {
    match op {
        Op::Input { .. } => 0,
        Op::Add | Op::Mul => 2,
        Op::Concat { inputs } => *inputs,
        Op::Attention { fused, .. } => {
            if *fused {
                1
            } else {
                3
            }
        }
        Op::Conv2d { .. }
        | Op::Linear { .. }
        | Op::BatchNorm2d { .. }
        | Op::LayerNorm { .. }
        | Op::RmsNorm { .. }
        | Op::Activation { .. }
        | Op::Softmax
        | Op::Scale { .. }
        | Op::Scalar { .. }
        | Op::MaxPool2d { .. }
        | Op::AvgPool2d { .. }
        | Op::AdaptiveAvgPool2d { .. }
        | Op::GlobalAvgPool
        | Op::ChannelPad { .. }
        | Op::Flatten
        | Op::ToTokens
        | Op::ToImage { .. }
        | Op::PatchMerge { .. }
        | Op::PrependTokens { .. }
        | Op::AddPositions { .. }
        | Op::SelectToken { .. }
        | Op::MeanTokens { .. } => 1,
    }
}

/// Output shape of one node given its inputs' shapes.
pub fn node_shape(node: &Node, ins: &[&[usize]]) -> Result<Vec<usize>, GraphError> {
    let expected = arity(&node.op);
    if ins.len() != expected {
        let (node, op) = (node.name.clone(), describe(&node.op));
        return Err(GraphError::Arity { node, op, found: ins.len(), expected });
    }
    let shape = infer(&node.op, ins).and_then(|shape| {
        let elements = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        match elements {
            Some(n) if n > 0 && n <= MAX_ELEMENTS => Ok(shape),
            Some(0) => Err("its output would be empty".to_owned()),
            _ => Err("its output would be too large".to_owned()),
        }
    });
    shape.map_err(|why| GraphError::Shape {
        node: node.name.clone(),
        op: describe(&node.op),
        shapes: ins.iter().map(|s| s.to_vec()).collect(),
        why,
    })
}

fn image(ins: &[&[usize]]) -> Result<[usize; 3], String> {
    match ins {
        &[&[c, h, w]] => Ok([c, h, w]),
        _ => Err("it needs `[channels, height, width]`".into()),
    }
}

fn tokens(ins: &[&[usize]]) -> Result<[usize; 2], String> {
    match ins {
        &[&[t, d]] => Ok([t, d]),
        _ => Err("it needs `[tokens, width]`".into()),
    }
}

fn want(what: &str, found: usize, expected: usize) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{what} is {found}, expected {expected}")) }
}

/// Output rows and columns of a window that slides over `[h, w]`.
fn window(
    [h, w]: [usize; 2],
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 4],
) -> Result<[usize; 2], String> {
    let side = |size: usize, i: usize| {
        if kernel[i] == 0 || stride[i] == 0 {
            return Err("kernel and stride must be at least 1".to_owned());
        }
        let padded = padding[i].checked_add(padding[i + 2]).and_then(|p| p.checked_add(size));
        let padded = padded.ok_or("padding is too large")?;
        let span = padded.checked_sub(kernel[i]).ok_or("the kernel is larger than the image")?;
        Ok(span / stride[i] + 1)
    };
    Ok([side(h, 0)?, side(w, 1)?])
}

/// As [`window`], where every window must see at least one pixel.
fn pooled(
    image: [usize; 2],
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 4],
) -> Result<[usize; 2], String> {
    if (0..4).any(|i| padding[i] >= kernel[i % 2].max(1)) {
        return Err("padding is as large as the kernel".into());
    }
    window(image, kernel, stride, padding)
}

/// The channels of `shape`.
fn channels(shape: &[usize]) -> usize {
    shape.get(channel_axis(shape)).copied().unwrap_or(0)
}

fn infer(op: &Op, ins: &[&[usize]]) -> Result<Vec<usize>, String> {
    match op {
        Op::Input { shape } => Ok(shape.clone()),
        Op::Conv2d { in_ch, out_ch, kernel, stride, padding, groups, .. } => {
            let [c, h, w] = image(ins)?;
            want("channel count", c, *in_ch)?;
            if *groups == 0 || in_ch % groups != 0 || out_ch % groups != 0 {
                return Err(format!("{groups} groups do not divide {in_ch} and {out_ch} channels"));
            }
            let [h, w] = window([h, w], *kernel, *stride, *padding)?;
            Ok(vec![*out_ch, h, w])
        }
        Op::Linear { in_features, out_features, .. } => {
            let (last, rest) = ins[0].split_last().ok_or("it needs at least one axis")?;
            want("last axis", *last, *in_features)?;
            Ok(rest.iter().copied().chain([*out_features]).collect())
        }
        Op::BatchNorm2d { channels: n, .. }
        | Op::LayerNorm { dim: n, .. }
        | Op::RmsNorm { dim: n, .. }
        | Op::Scale { channels: n } => {
            want("channel count", channels(ins[0]), *n)?;
            Ok(ins[0].to_vec())
        }
        Op::Activation { .. } | Op::Scalar { .. } => Ok(ins[0].to_vec()),
        Op::Softmax => {
            want("number of axes", ins[0].len().min(2), ins[0].len())?;
            Ok(ins[0].to_vec())
        }
        Op::Add => {
            if ins[0] == ins[1] {
                Ok(ins[0].to_vec())
            } else {
                Err("both sides must have one shape".into())
            }
        }
        Op::Mul => {
            if ins[0] == ins[1] || *ins[1] == [channels(ins[0])] {
                Ok(ins[0].to_vec())
            } else {
                Err("both sides must have one shape, or the second be a factor per channel".into())
            }
        }
        Op::MaxPool2d { kernel, stride, padding } | Op::AvgPool2d { kernel, stride, padding, .. } => {
            let [c, h, w] = image(ins)?;
            let [h, w] = pooled([h, w], *kernel, *stride, *padding)?;
            Ok(vec![c, h, w])
        }
        Op::AdaptiveAvgPool2d { out: [h, w] } => Ok(vec![image(ins)?[0], *h, *w]),
        Op::GlobalAvgPool => Ok(vec![image(ins)?[0]]),
        Op::Concat { inputs } => {
            let first = *ins.first().ok_or("it needs at least one input")?;
            want("input count", ins.len(), *inputs)?;
            let axis = channel_axis(first);
            let mut shape = first.to_vec();
            for other in &ins[1..] {
                let same = other.len() == first.len() && (0..first.len()).all(|i| i == axis || other[i] == first[i]);
                if !same {
                    return Err("everything but the channels must be equal".into());
                }
                shape[axis] = shape[axis].checked_add(other[axis]).ok_or("too many channels")?;
            }
            Ok(shape)
        }
        Op::Flatten => {
            let all = image(ins)?.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
            Ok(vec![all.ok_or("too many values")?])
        }
        Op::ToImage { h, w } => {
            let [t, d] = tokens(ins)?;
            want("token count", t, h.checked_mul(*w).ok_or("too many tokens")?)?;
            Ok(vec![d, *h, *w])
        }
        Op::PatchMerge { grid: [h, w] } => {
            let [t, d] = tokens(ins)?;
            want("token count", t, h.checked_mul(*w).ok_or("too many tokens")?)?;
            if !h.is_multiple_of(2) || !w.is_multiple_of(2) {
                return Err("its grid must have even sides".into());
            }
            Ok(vec![t / 4, d.checked_mul(4).ok_or("too wide")?])
        }
        Op::ChannelPad { stride, in_ch, map } => {
            want("channel count", channels(ins[0]), *in_ch)?;
            if *stride == 0 {
                return Err("stride must be at least 1".into());
            }
            if *stride > 1 {
                image(ins)?;
            }
            if let Some(bad) = map.iter().flatten().find(|&&i| i as usize >= *in_ch) {
                return Err(format!("it reads channel {bad} of {in_ch}"));
            }
            let axis = channel_axis(ins[0]);
            let side = |(i, &n): (usize, &usize)| if i == axis { map.len() } else { n.div_ceil(*stride) };
            Ok(ins[0].iter().enumerate().map(side).collect())
        }
        Op::ToTokens => {
            let [c, h, w] = image(ins)?;
            Ok(vec![h.checked_mul(w).ok_or("too many tokens")?, c])
        }
        Op::PrependTokens { count, dim, at } => {
            let [t, d] = tokens(ins)?;
            want("width", d, *dim)?;
            if *at > t {
                return Err(format!("there is no place {at} among {t} tokens"));
            }
            Ok(vec![t.checked_add(*count).ok_or("too many tokens")?, d])
        }
        Op::AddPositions { tokens: n, dim } => {
            let [t, d] = tokens(ins)?;
            want("token count", t, *n)?;
            want("width", d, *dim)?;
            Ok(vec![t, d])
        }
        Op::Attention { heads, qk_dim, v_dim, fused, windows, bias, .. } => {
            if *heads == 0 || *qk_dim == 0 || *v_dim == 0 {
                return Err("it needs at least one head with a width".into());
            }
            let times = |d: usize| heads.checked_mul(d).ok_or("heads are too wide");
            let (qk, v) = (times(*qk_dim)?, times(*v_dim)?);
            let all = qk.checked_mul(2).and_then(|n| n.checked_add(v)).ok_or("heads are too wide")?;
            let widths: &[usize] = if *fused { &[all] } else { &[qk, qk, v] };
            let t = ins[0].first().copied().unwrap_or(0);
            for (s, &width) in ins.iter().zip(widths) {
                let [st, sd] = tokens(&[s])?;
                want("token count", st, t)?;
                want("width", sd, width)?;
            }
            let size = match windows {
                Some(w) => w.check(t).map(|()| Some(w.size))?,
                None => None,
            };
            let relative = matches!(bias, PositionBias::Table | PositionBias::Continuous { .. });
            if relative && size.is_none() {
                return Err("a relative position bias needs windows".into());
            }
            let pairs = size.map_or(t, |[h, w]| h * w).checked_pow(2).and_then(|n| n.checked_mul(*heads));
            if let PositionBias::Full { tokens } = bias {
                want("tokens of its bias", *tokens, size.map_or(t, |[h, w]| h * w))?;
            }
            if *bias != PositionBias::None && pairs.is_none_or(|n| n > MAX_ELEMENTS) {
                return Err("its position bias would be too large".into());
            }
            Ok(vec![t, v])
        }
        Op::SelectToken { index } => {
            let [t, d] = tokens(ins)?;
            if *index < t { Ok(vec![d]) } else { Err(format!("there is no token {index}")) }
        }
        Op::MeanTokens { skip } => {
            let [t, d] = tokens(ins)?;
            if *skip < t { Ok(vec![d]) } else { Err(format!("nothing is left after skipping {skip} tokens")) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Activation;

    fn shape(op: Op, ins: &[&[usize]]) -> Result<Vec<usize>, String> {
        let node = Node { name: "n".into(), op, inputs: Vec::new(), params: Vec::new() };
        node_shape(&node, ins).map_err(|e| e.to_string())
    }

    fn conv(stride: usize, padding: usize, groups: usize) -> Op {
        Op::Conv2d {
            in_ch: 4,
            out_ch: 6,
            kernel: [3; 2],
            stride: [stride; 2],
            padding: [padding; 4],
            groups,
            bias: true,
        }
    }

    /// A strided convolution padded as TensorFlow does.
    fn same_conv(padding: [usize; 4]) -> Op {
        match conv(2, 0, 1) {
            Op::Conv2d { in_ch, out_ch, kernel, stride, groups, bias, .. } => {
                Op::Conv2d { in_ch, out_ch, kernel, stride, padding, groups, bias }
            }
            other => other,
        }
    }

    fn swin(grid: [usize; 2], size: [usize; 2]) -> Op {
        let windows = Some(crate::graph::Windows { grid, size, shift: [1, 1] });
        let (cosine, bias) = (false, PositionBias::Table);
        Op::Attention { heads: 2, qk_dim: 3, v_dim: 5, fused: true, scale: 1.0, cosine, windows, bias }
    }

    #[test]
    fn shapes_follow_pytorch() {
        let pool = Op::MaxPool2d { kernel: [3; 2], stride: [2; 2], padding: [1; 4] };
        let pad = Op::ChannelPad { stride: 2, in_ch: 4, map: vec![None, Some(0), Some(3)] };
        let fused = Op::attention(2, 3, 5, true, 1.0);
        let split = Op::attention(2, 3, 5, false, 1.0);
        for (op, ins, want) in [
            (conv(1, 1, 1), &[&[4, 9, 8][..]][..], &[6, 9, 8][..]),
            (conv(2, 1, 1), &[&[4, 9, 8]], &[6, 5, 4]),
            (conv(1, 0, 2), &[&[4, 9, 8]], &[6, 7, 6]),
            (pool, &[&[4, 112, 112]], &[4, 56, 56]),
            (pad, &[&[4, 9, 8]], &[3, 5, 4]),
            (Op::Linear { in_features: 8, out_features: 3, bias: false }, &[&[5, 8]], &[5, 3]),
            (Op::ToTokens, &[&[4, 3, 2]], &[6, 4]),
            (fused, &[&[7, 22]], &[7, 10]),
            (split, &[&[7, 6], &[7, 6], &[7, 10]], &[7, 10]),
            (Op::MeanTokens { skip: 1 }, &[&[7, 10]], &[10]),
            (Op::Activation { act: Activation::Relu }, &[&[7]], &[7]),
            (same_conv([0, 0, 1, 1]), &[&[4, 8, 8]], &[6, 4, 4]),
            (Op::Mul, &[&[4, 8, 8], &[4]], &[4, 8, 8]),
            (Op::Mul, &[&[5, 4], &[5, 4]], &[5, 4]),
            (Op::Concat { inputs: 3 }, &[&[4, 2, 2], &[1, 2, 2], &[2, 2, 2]], &[7, 2, 2]),
            (Op::Concat { inputs: 2 }, &[&[5, 4], &[5, 3]], &[5, 7]),
            (Op::Flatten, &[&[4, 3, 2]], &[24]),
            (Op::ToImage { h: 3, w: 2 }, &[&[6, 4]], &[4, 3, 2]),
            (Op::PatchMerge { grid: [4, 2] }, &[&[8, 5]], &[2, 20]),
            (Op::AdaptiveAvgPool2d { out: [7, 7] }, &[&[4, 9, 3]], &[4, 7, 7]),
            (Op::ChannelPad { stride: 1, in_ch: 4, map: vec![Some(2), Some(3)] }, &[&[5, 4]], &[5, 2]),
            (Op::PrependTokens { count: 2, dim: 4, at: 1 }, &[&[5, 4]], &[7, 4]),
            (swin([4, 4], [2, 2]), &[&[16, 22]], &[16, 10]),
        ] {
            assert_eq!(shape(op.clone(), ins).as_deref(), Ok(want), "{op:?}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_node() {
        for (op, ins, words) in [
            (conv(1, 1, 1), &[&[5, 9, 8][..]][..], "channel count is 5, expected 4"),
            (conv(1, 1, 3), &[&[4, 9, 8]], "3 groups do not divide"),
            (conv(1, 0, 1), &[&[4, 2, 8]], "larger than the image"),
            (conv(0, 0, 1), &[&[4, 9, 8]], "at least 1"),
            (conv(1, usize::MAX / 2, 1), &[&[4, 9, 8]], "padding is too large"),
            (conv(1, 1 << 30, 1), &[&[4, 9, 8]], "too large"),
            (Op::Add, &[&[4, 2], &[4, 3]], "one shape"),
            (Op::Add, &[&[4, 2]], "1 inputs, expected 2"),
            (Op::SelectToken { index: 4 }, &[&[4, 2]], "no token 4"),
            (Op::MeanTokens { skip: 4 }, &[&[4, 2]], "nothing is left"),
            (Op::ChannelPad { stride: 1, in_ch: 2, map: vec![Some(2)] }, &[&[2, 4, 4]], "channel 2 of 2"),
            (Op::ChannelPad { stride: 1, in_ch: 2, map: vec![] }, &[&[2, 4, 4]], "would be empty"),
            (Op::GlobalAvgPool, &[&[2, 4]], "[channels, height, width]"),
            (Op::Mul, &[&[2, 4], &[2]], "factor per channel"),
            (Op::Concat { inputs: 2 }, &[&[2, 4], &[3, 4]], "everything but the channels"),
            (Op::Concat { inputs: 0 }, &[], "at least one input"),
            (Op::PatchMerge { grid: [3, 2] }, &[&[6, 4]], "even sides"),
            (swin([4, 4], [3, 2]), &[&[16, 22]], "do not divide"),
        ] {
            let error = shape(op, ins).expect_err("must be refused");
            assert!(error.contains(words) && error.contains("`n`") && error.contains("hint: "), "{error}");
        }
    }
}
