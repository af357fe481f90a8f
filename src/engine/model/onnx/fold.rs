//! Computing constant subgraphs: shape arithmetic, masks, position and bias tables.
//!
//! Not here: anything that touches an image. Work is bounded: a result may hold [`MAX_ELEMENTS`] values.

use super::attrs::Attrs;
use super::constant::{Constant, Data};
use crate::model::params::{numel_of, row_major, strided};

/// Values that one folded tensor may have.
const MAX_ELEMENTS: usize = 1 << 23;

/// What folding a node gives: `None` for an operator that is not folded.
pub(super) type Folded = Option<Result<Vec<Constant>, String>>;

/// A tensor under computation.
#[derive(Debug, Clone)]
enum Values {
    I(Vec<i64>),
    F(Vec<f32>),
}

fn values(c: &Constant) -> Values {
    match &c.data {
        Data::Ints(v) => Values::I(v.to_vec()),
        Data::Floats(p) => Values::F(p.values().into_owned()),
    }
}

fn constant(shape: Vec<usize>, v: Values) -> Result<Constant, String> {
    let made = match v {
        Values::I(v) => Constant::ints(shape, v),
        Values::F(v) => Constant::floats(shape, v),
    };
    made.ok_or_else(|| "a constant's values do not fit its shape".into())
}

fn sized(shape: &[usize]) -> Result<usize, String> {
    numel_of(shape).filter(|&n| n <= MAX_ELEMENTS).ok_or_else(|| format!("a constant of shape {shape:?} is too large"))
}

/// An axis of an `rank`-dimensional tensor, counted from the end when negative.
pub(super) fn axis(a: i64, rank: usize) -> Result<usize, String> {
    let r = rank as i64;
    let at = if a < 0 { a.checked_add(r) } else { Some(a) };
    at.filter(|a| (0..r.max(1)).contains(a)).map(|a| a as usize).ok_or_else(|| format!("axis {a} of {rank}"))
}

/// Axes of a `rank`-dimensional tensor.
pub(super) fn axes(list: &[i64], rank: usize) -> Result<Vec<usize>, String> {
    list.iter().map(|&a| axis(a, rank)).collect()
}

/// How a `Transpose` permutes `rank` axes: without an attribute it turns them round.
pub(super) fn permutation(a: &Attrs, rank: usize) -> Result<Vec<usize>, String> {
    axes(&a.ints("perm").unwrap_or_else(|| (0..rank as i64).rev().collect()), rank)
}

/// Input `i`, if it is there and constant.
pub(super) fn at<'a>(ins: &[Option<&'a Constant>], i: usize) -> Option<&'a Constant> {
    ins.get(i).copied().flatten()
}

/// The integers of input `i`.
pub(super) fn ints_at<'a>(ins: &[Option<&'a Constant>], i: usize) -> Option<&'a [i64]> {
    at(ins, i)?.as_ints()
}

/// Integers from an attribute (old opsets) or a constant input (new ones).
pub(super) fn list(a: &Attrs, name: &str, ins: &[Option<&Constant>], i: usize) -> Option<Vec<i64>> {
    a.ints(name).or_else(|| ints_at(ins, i).map(<[i64]>::to_vec))
}

/// Source index of every element of `shape`, in row-major order.
fn walk(shape: &[usize], strides: &[isize], offset: isize) -> Result<Vec<usize>, String> {
    let mut out = Vec::with_capacity(sized(shape)?);
    for at in strided(shape, strides, offset) {
        out.push(usize::try_from(at).map_err(|_| "a negative index".to_owned())?);
    }
    Ok(out)
}

fn take(v: &Values, at: &[usize]) -> Result<Values, String> {
    let gone = || "an index outside a constant".to_owned();
    Ok(match v {
        Values::I(v) => Values::I(at.iter().map(|&i| v.get(i).copied().ok_or_else(gone)).collect::<Result<_, _>>()?),
        Values::F(v) => Values::F(at.iter().map(|&i| v.get(i).copied().ok_or_else(gone)).collect::<Result<_, _>>()?),
    })
}

/// A strided read of `c`.
fn pick(c: &Constant, shape: Vec<usize>, strides: &[isize], offset: isize) -> Result<Constant, String> {
    let at = walk(&shape, strides, offset)?;
    constant(shape, take(&values(c), &at)?)
}

/// The shape that two broadcast to.
pub(super) fn broadcast(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    let n = a.len().max(b.len());
    let get = |s: &[usize], i: usize| (i + s.len()).checked_sub(n).map_or(1, |i| s[i]);
    (0..n)
        .map(|i| match (get(a, i), get(b, i)) {
            (x, y) if x == y => Some(x),
            (1, y) => Some(y),
            (x, 1) => Some(x),
            _ => None,
        })
        .collect()
}

pub(super) fn expand_to(c: &Constant, shape: &[usize]) -> Result<Constant, String> {
    let own = row_major(&c.shape);
    let skip = shape.len().checked_sub(c.shape.len()).ok_or("a constant cannot be expanded to fewer axes")?;
    let mut s = vec![0isize; shape.len()];
    for (i, (&d, &st)) in c.shape.iter().zip(&own).enumerate() {
        if d != 1 && d != shape[skip + i] {
            return Err(format!("{:?} does not expand to {shape:?}", c.shape));
        }
        s[skip + i] = if d == 1 { 0 } else { st };
    }
    pick(c, shape.to_vec(), &s, 0)
}

/// `axes` transposed by `perm`.
pub(super) fn transpose(c: &Constant, perm: &[usize]) -> Result<Constant, String> {
    // A matrix of weights is turned lazily: most of them are only named, not computed with.
    if let (Data::Floats(p), [1, 0], &[rows, cols]) = (&c.data, perm, c.shape.as_slice()) {
        let data = Data::Floats(p.transposed().ok_or("not a matrix")?);
        return Ok(Constant { shape: vec![cols, rows], data, name: None, batched: false });
    }
    let own = row_major(&c.shape);
    if perm.iter().any(|&p| p >= own.len()) || perm.len() != own.len() {
        return Err(format!("a transposition {perm:?} of {:?}", c.shape));
    }
    let shape = perm.iter().map(|&p| c.shape[p]).collect();
    pick(c, shape, &perm.iter().map(|&p| own[p]).collect::<Vec<_>>(), 0)
}

/// Start, step and length of an ONNX slice along an axis of `dim` elements.
pub(super) fn slice_range(dim: usize, start: i64, end: i64, step: i64) -> Result<(usize, i64, usize), String> {
    let d = dim as i64;
    let wrap = |v: i64| if v < 0 { v.saturating_add(d) } else { v };
    if step == 0 {
        return Err("a slice with step 0".into());
    }
    let (start, end) = match step > 0 {
        true => (wrap(start).clamp(0, d), wrap(end).clamp(0, d)),
        false => (wrap(start).clamp(0, d - 1), wrap(end).clamp(-1, d - 1)),
    };
    let span = if step > 0 { end - start } else { start - end };
    let len = if span <= 0 { 0 } else { (span - 1) / step.saturating_abs() + 1 };
    Ok((start.max(0) as usize, step, len as usize))
}

/// Starts, ends, axes and steps of a `Slice` in any opset, for a tensor of `rank` axes.
pub(super) fn slice_args(
    a: &Attrs,
    ins: &[Option<&Constant>],
    rank: usize,
) -> Result<Vec<(usize, i64, i64, i64)>, String> {
    let (Some(starts), Some(ends)) = (list(a, "starts", ins, 1), list(a, "ends", ins, 2)) else {
        return Err("a slice whose bounds are not constant".into());
    };
    let axes = list(a, "axes", ins, 3).unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = list(a, "steps", ins, 4).unwrap_or_else(|| vec![1; starts.len()]);
    if [ends.len(), axes.len(), steps.len()] != [starts.len(); 3] {
        return Err("a slice with lists of different lengths".into());
    }
    (0..starts.len()).map(|i| Ok((axis(axes[i], rank)?, starts[i], ends[i], steps[i]))).collect()
}

/// The target of a `Reshape`: 0 copies (unless `allowzero`), -1 is what is left. `numel` counts the input's elements.
pub(super) fn reshape_target(target: &[i64], from: &[usize], allow_zero: bool) -> Result<Vec<usize>, String> {
    let bad = || format!("{from:?} cannot be reshaped to {target:?}");
    let total = numel_of(from).ok_or_else(bad)?;
    let mut out = Vec::with_capacity(target.len());
    let mut free = None;
    for (i, &t) in target.iter().enumerate() {
        out.push(match t {
            -1 if free.is_none() => {
                free = Some(i);
                1
            }
            0 if !allow_zero => *from.get(i).ok_or_else(bad)?,
            t => usize::try_from(t).map_err(|_| bad())?,
        });
    }
    let known = numel_of(&out).ok_or_else(bad)?;
    if let Some(i) = free {
        out[i] = total.checked_div(known).filter(|n| n * known == total).ok_or_else(bad)?;
    } else if known != total {
        return Err(bad());
    }
    Ok(out)
}

/// The shape after `Unsqueeze` (`axes` of the result).
pub(super) fn unsqueezed(shape: &[usize], axes: &[i64]) -> Result<Vec<usize>, String> {
    let rank = shape.len() + axes.len();
    let mut new = vec![false; rank];
    for &a in axes {
        new[axis(a, rank)?] = true;
    }
    let mut old = shape.iter().copied();
    new.iter().map(|&n| if n { Ok(1) } else { old.next().ok_or_else(|| "an axis listed twice".to_owned()) }).collect()
}

/// The shape after `Squeeze`; without `axes` every axis of length 1 goes.
pub(super) fn squeezed(shape: &[usize], axes: Option<&[i64]>) -> Result<Vec<usize>, String> {
    let mut gone = vec![false; shape.len()];
    match axes {
        None => gone.iter_mut().zip(shape).for_each(|(g, &d)| *g = d == 1),
        Some(axes) => {
            for &a in axes {
                let a = axis(a, shape.len())?;
                if shape.get(a) != Some(&1) {
                    return Err(format!("axis {a} of {shape:?} is not 1"));
                }
                gone[a] = true;
            }
        }
    }
    Ok(shape.iter().zip(gone).filter(|(_, g)| !g).map(|(&d, _)| d).collect())
}

/// Computes node `op` on constants. `None` when this operator is not folded.
pub(super) fn fold(op: &str, a: &Attrs, ins: &[Option<&Constant>]) -> Folded {
    let x = at(ins, 0)?;
    if ins.iter().flatten().any(|c| c.batched) {
        return batched(op, ins);
    }
    let one = |r: Result<Constant, String>| Some(r.map(|c| vec![c]));
    let axes_of = || list(a, "axes", ins, 1);
    let named = |c: Option<Constant>| c.ok_or_else(|| "a constant's shape does not fit".to_owned());
    match op {
        "Identity" | "Dropout" => one(Ok(x.clone())),
        "Cast" => one(cast(x, a.int("to").unwrap_or(1))),
        "Reshape" => {
            let target = reshape_target(ints_at(ins, 1)?, &x.shape, a.flag("allowzero", false));
            one(target.and_then(|s| named(x.reshaped(s))))
        }
        "Unsqueeze" => one(unsqueezed(&x.shape, &axes_of()?).and_then(|s| named(x.reshaped(s)))),
        "Squeeze" => one(squeezed(&x.shape, axes_of().as_deref()).and_then(|s| named(x.reshaped(s)))),
        "Flatten" => {
            let at = axis(a.int("axis").unwrap_or(1), x.shape.len() + 1).ok()?;
            let (l, r) = x.shape.split_at(at);
            one(named(x.reshaped(vec![l.iter().product(), r.iter().product()])))
        }
        "Shape" => one(named(Constant::ints(vec![x.shape.len()], x.shape.iter().map(|&d| d as i64).collect()))),
        "Size" => one(named(Constant::ints(vec![], vec![x.numel() as i64]))),
        "Transpose" => one(permutation(a, x.shape.len()).and_then(|p| transpose(x, &p))),
        "Expand" => {
            let to: Option<Vec<usize>> = ints_at(ins, 1)?.iter().map(|&d| usize::try_from(d).ok()).collect();
            let shape = broadcast(&x.shape, &to?)?;
            if shape == x.shape {
                return one(Ok(x.clone()));
            }
            one(expand_to(x, &shape))
        }
        "Slice" => one(slice(x, a, ins)),
        "Gather" => one(gather(x, at(ins, 1)?, a.int("axis").unwrap_or(0))),
        "Concat" => one(concat(ins, a.int("axis").unwrap_or(0))),
        "Split" => Some(split(x, a, ins)),
        "Range" => one(range(ins)),
        "GatherND" if a.int("batch_dims").unwrap_or(0) == 0 => one(gather_nd(x, at(ins, 1)?)),
        // Positions resized to the size that they have.
        "Resize" => {
            let sizes = |i: usize| at(ins, i).filter(|c| c.numel() == x.shape.len());
            let scaled = sizes(2).is_some_and(|c| c.to_f32().iter().all(|&s| s == 1.0));
            let sized = sizes(3)
                .and_then(Constant::as_ints)
                .is_some_and(|s| s.iter().zip(&x.shape).all(|(&s, &d)| s == d as i64));
            (scaled || sized).then(|| Ok(vec![x.clone()]))
        }
        "ScatterND" => one(scatter(x, at(ins, 1)?, at(ins, 2)?)),
        "MatMul" => one(matmul(x, at(ins, 1)?)),
        "Where" => one(choose(x, at(ins, 1)?, at(ins, 2)?)),
        "Clip" => one(clip(x, a, ins)),
        "ReduceProd" | "ReduceSum" | "ReduceMax" | "ReduceMin" | "ReduceMean" | "ReduceL2" => {
            one(reduce(op, x, a, ins))
        }
        _ => match (unary(op), binary(op)) {
            (Some(f), _) => one(map(x, f)),
            (_, Some(f)) => {
                let mut rest = ins[1..].iter().copied().flatten();
                one(rest.try_fold(x.clone(), |acc, c| zip(&acc, c, op, f)))
            }
            _ => None,
        },
    }
}

/// A constant that every image of the batch has: it may be computed with elementwise and nothing else.
fn batched(op: &str, ins: &[Option<&Constant>]) -> Folded {
    let x = at(ins, 0)?;
    let f = match op {
        "Identity" | "Cast" | "Expand" => return Some(Ok(vec![x.clone()])),
        // A mask: all of one rank, so that the first axis stays the batch.
        "Where" => {
            let (a, b) = (at(ins, 1)?, at(ins, 2)?);
            let rank = [x, a, b].iter().filter(|c| c.batched).map(|c| c.shape.len()).max()?;
            let fits = [x, a, b].iter().all(|c| c.shape.len() <= rank);
            return fits.then(|| choose(x, a, b).map(|c| vec![Constant { batched: true, ..c }]));
        }
        _ => binary(op)?,
    };
    let y = at(ins, 1)?;
    // Where the first axis is more than the batch, the other must not have one of that length that is less.
    let lead = |c: &Constant| if c.batched { c.shape.first().copied().unwrap_or(1) } else { 1 };
    let (wide, rank) = (lead(x).max(lead(y)), x.shape.len().max(y.shape.len()));
    let apart = |c: &Constant| c.batched || c.shape.len() < rank || c.shape.first() == Some(&1);
    if wide > 1 && !(apart(x) && apart(y)) {
        return Some(Err("mixes the batch with other axes".into()));
    }
    // Adding nothing keeps the name: exporters expand learned tokens this way.
    let zero = |c: &Constant| c.to_f32().iter().all(|&v| v == 0.0);
    let kept = match (op, zero(x), zero(y)) {
        ("Add", true, _) => y.name.clone(),
        ("Add", _, true) => x.name.clone(),
        _ => None,
    };
    Some(zip(x, y, op, f).map(|c| vec![Constant { name: kept, batched: true, ..c }]))
}

fn cast(x: &Constant, to: i64) -> Result<Constant, String> {
    match (to, &x.data) {
        (1 | 10 | 11 | 16, Data::Floats(_)) | (2..=7 | 12 | 13, Data::Ints(_)) => Ok(x.clone()),
        (1 | 10 | 11 | 16, Data::Ints(v)) => {
            constant(x.shape.clone(), Values::F(v.iter().map(|&v| v as f32).collect()))
        }
        (9, _) => constant(x.shape.clone(), Values::I(x.to_f32().iter().map(|&v| i64::from(v != 0.0)).collect())),
        (2..=7 | 12 | 13, Data::Floats(p)) => {
            constant(x.shape.clone(), Values::I(p.values().iter().map(|&v| v as i64).collect()))
        }
        _ => Err(format!("a cast to type {to}")),
    }
}

fn slice(x: &Constant, a: &Attrs, ins: &[Option<&Constant>]) -> Result<Constant, String> {
    let mut shape = x.shape.clone();
    let mut step = row_major(&shape);
    let mut offset = 0isize;
    for (axis, start, end, by) in slice_args(a, ins, shape.len())? {
        let (start, by, len) = slice_range(shape[axis], start, end, by)?;
        offset += start as isize * step[axis];
        step[axis] = step[axis].saturating_mul(by as isize);
        shape[axis] = len;
    }
    pick(x, shape, &step, offset)
}

fn gather(x: &Constant, at: &Constant, along: i64) -> Result<Constant, String> {
    let along = axis(along, x.shape.len())?;
    let index = at.as_ints().ok_or("indices that are no integers")?;
    let dim = *x.shape.get(along).ok_or("a gather from a scalar")?;
    let outer: usize = x.shape[..along].iter().product();
    let inner: usize = x.shape[along + 1..].iter().product();
    let mut shape = x.shape[..along].to_vec();
    shape.extend(&at.shape);
    shape.extend(&x.shape[along + 1..]);
    let mut from = Vec::with_capacity(sized(&shape)?);
    for o in 0..outer {
        for &i in index {
            let i = if i < 0 { i + dim as i64 } else { i };
            let i = usize::try_from(i).ok().filter(|&i| i < dim).ok_or_else(|| format!("index {i} of {dim}"))?;
            let base = (o * dim + i) * inner;
            from.extend(base..base + inner);
        }
    }
    constant(shape, take(&values(x), &from)?)
}

fn concat(ins: &[Option<&Constant>], along: i64) -> Result<Constant, String> {
    let parts: Option<Vec<&Constant>> = ins.iter().copied().collect();
    let parts = parts.ok_or("a concatenation of nothing")?;
    let first = parts.first().ok_or("a concatenation of nothing")?;
    let along = axis(along, first.shape.len())?;
    let fits = |c: &&Constant| {
        c.shape.len() == first.shape.len() && (0..c.shape.len()).all(|i| i == along || c.shape[i] == first.shape[i])
    };
    if first.shape.is_empty() || !parts.iter().all(fits) {
        return Err("a concatenation of shapes that do not fit".into());
    }
    let outer: usize = first.shape[..along].iter().product();
    let mut shape = first.shape.clone();
    shape[along] = parts.iter().map(|p| p.shape[along]).sum();
    sized(&shape)?;
    let ints: Option<Vec<&[i64]>> = parts.iter().map(|p| p.as_ints()).collect();
    if let Some(ints) = ints {
        return constant(shape, Values::I(interleaved(&ints, outer)));
    }
    let floats: Vec<Vec<f32>> = parts.iter().map(|p| p.to_f32()).collect();
    constant(shape, Values::F(interleaved(&floats, outer)))
}

/// The first of `outer` equal pieces of every part, then the second of every one, and so on.
fn interleaved<T: Copy>(parts: &[impl AsRef<[T]>], outer: usize) -> Vec<T> {
    let mut out = Vec::new();
    for o in 0..outer {
        for part in parts.iter().map(AsRef::as_ref) {
            let n = part.len() / outer;
            out.extend_from_slice(&part[o * n..(o + 1) * n]);
        }
    }
    out
}

/// The lengths that a `Split` makes of `dim`.
pub(super) fn split_sizes(a: &Attrs, ins: &[Option<&Constant>], dim: usize) -> Result<Vec<usize>, String> {
    let sizes = match list(a, "split", ins, 1) {
        Some(s) => s.iter().map(|&v| usize::try_from(v).map_err(|_| "a negative length".to_owned())).collect(),
        None => {
            let parts = a.int("num_outputs").map_or(a.0.output.len(), |n| n as usize).clamp(1, 1024);
            let each = dim.div_ceil(parts);
            Ok((0..parts).map(|i| each.min(dim.saturating_sub(i * each))).collect::<Vec<_>>())
        }
    }?;
    let total = sizes.iter().try_fold(0usize, |n, &s| n.checked_add(s));
    if total != Some(dim) { Err(format!("a split of {dim} into {sizes:?}")) } else { Ok(sizes) }
}

fn split(x: &Constant, a: &Attrs, ins: &[Option<&Constant>]) -> Result<Vec<Constant>, String> {
    let along = axis(a.int("axis").unwrap_or(0), x.shape.len())?;
    let dim = *x.shape.get(along).ok_or("a split of a scalar")?;
    let own = row_major(&x.shape);
    let mut at = 0;
    let mut out = Vec::new();
    for len in split_sizes(a, ins, dim)? {
        let mut shape = x.shape.clone();
        shape[along] = len;
        out.push(pick(x, shape, &own, at as isize * own[along])?);
        at += len;
    }
    Ok(out)
}

fn numbers(ints: bool, all: impl Iterator<Item = f64>) -> Values {
    if ints { Values::I(all.map(|v| v as i64).collect()) } else { Values::F(all.map(|v| v as f32).collect()) }
}

fn range(ins: &[Option<&Constant>]) -> Result<Constant, String> {
    let get = |i: usize| at(ins, i).and_then(Constant::scalar).ok_or("a range without bounds");
    let (start, limit, delta) = (get(0)?, get(1)?, get(2)?);
    let n = ((limit - start) / delta).ceil().max(0.0);
    if !n.is_finite() || n > MAX_ELEMENTS as f64 {
        return Err(format!("a range of {n} values"));
    }
    let all = (0..n as usize).map(|i| start + i as f64 * delta);
    let ints = at(ins, 0).is_some_and(|c| c.as_ints().is_some());
    constant(vec![n as usize], numbers(ints, all))
}

/// Where the slice begins whose indices along the first axes are `row`; those below zero count from the end.
fn place(row: &[i64], shape: &[usize], strides: &[isize]) -> Option<usize> {
    row.iter().zip(shape).zip(strides).try_fold(0, |sum, ((&i, &dim), &stride)| {
        let i = usize::try_from(if i < 0 { i + dim as i64 } else { i }).ok().filter(|&i| i < dim)?;
        Some(sum + i * stride as usize)
    })
}

/// The slices of `x` that the rows of `at` name.
fn gather_nd(x: &Constant, at: &Constant) -> Result<Constant, String> {
    let bad = || "a gather whose indices do not fit".to_owned();
    let (depth, rows) = at.shape.split_last().ok_or_else(bad)?;
    let tail = x.shape.get(*depth..).ok_or_else(bad)?;
    let inner: usize = tail.iter().product();
    let index = at.as_ints().filter(|_| *depth > 0).ok_or_else(bad)?;
    let own = row_major(&x.shape);
    let shape = [rows, tail].concat();
    let mut from = Vec::with_capacity(sized(&shape)?);
    for row in index.chunks_exact(*depth) {
        let base = place(row, &x.shape, &own).ok_or_else(bad)?;
        from.extend(base..base + inner);
    }
    constant(shape, take(&values(x), &from)?)
}

/// `x` with the slices that `at` names replaced by those of `by`.
fn scatter(x: &Constant, at: &Constant, by: &Constant) -> Result<Constant, String> {
    let bad = || "a scatter whose indices do not fit".to_owned();
    let depth = *at.shape.last().ok_or_else(bad)?;
    let inner: usize = x.shape.get(depth..).ok_or_else(bad)?.iter().product();
    let index = at.as_ints().ok_or_else(bad)?;
    let own = row_major(&x.shape);
    let mut out = x.to_f32();
    let by_values = by.to_f32();
    if depth == 0 || (index.len() / depth).checked_mul(inner) != Some(by_values.len()) {
        return Err(bad());
    }
    for (k, row) in index.chunks_exact(depth).enumerate() {
        let to = place(row, &x.shape, &own).ok_or_else(bad)?;
        let (to, from) = (out.get_mut(to..to + inner), by_values.get(k * inner..(k + 1) * inner));
        to.ok_or_else(bad)?.copy_from_slice(from.ok_or_else(bad)?);
    }
    constant(x.shape.clone(), numbers(x.as_ints().is_some(), out.into_iter().map(f64::from)))
}

fn matmul(a: &Constant, b: &Constant) -> Result<Constant, String> {
    let (ra, rb) = (a.shape.len(), b.shape.len());
    if rb != 2 || ra < 2 || a.shape[ra - 1] != b.shape[0] {
        return Err(format!("a product of constants {:?} and {:?}", a.shape, b.shape));
    }
    let (k, n) = (b.shape[0], b.shape[1]);
    let m: usize = a.shape[..ra - 1].iter().product();
    let mut shape = a.shape.clone();
    shape[ra - 1] = n;
    if sized(&shape)?.saturating_mul(k) > MAX_ELEMENTS * 4 {
        return Err("a product of constants that is too large".into());
    }
    let (x, y) = (a.to_f32(), b.to_f32());
    let mut out = vec![0f64; m * n];
    for i in 0..m {
        for (j, &v) in x[i * k..(i + 1) * k].iter().enumerate() {
            let row = &y[j * n..(j + 1) * n];
            out[i * n..(i + 1) * n].iter_mut().zip(row).for_each(|(o, &w)| *o += f64::from(v) * f64::from(w));
        }
    }
    constant(shape, Values::F(out.into_iter().map(|v| v as f32).collect()))
}

fn choose(c: &Constant, a: &Constant, b: &Constant) -> Result<Constant, String> {
    let shape = broadcast(&a.shape, &b.shape).and_then(|s| broadcast(&s, &c.shape)).ok_or("shapes that do not fit")?;
    let (c, a, b) = (expand_to(c, &shape)?, expand_to(a, &shape)?, expand_to(b, &shape)?);
    let cond = c.as_ints().ok_or("a condition that is no boolean")?;
    fn either<T: Copy>(cond: &[i64], a: &[T], b: &[T]) -> Vec<T> {
        cond.iter().zip(a.iter().zip(b)).map(|(&c, (&a, &b))| if c != 0 { a } else { b }).collect()
    }
    let values = match (values(&a), values(&b)) {
        (Values::I(a), Values::I(b)) => Values::I(either(cond, &a, &b)),
        (Values::F(a), Values::F(b)) => Values::F(either(cond, &a, &b)),
        _ => return Err("a choice between integers and floats".into()),
    };
    constant(shape, values)
}

fn clip(x: &Constant, a: &Attrs, ins: &[Option<&Constant>]) -> Result<Constant, String> {
    let bound = |i: usize, name: &str, none: f64| {
        at(ins, i).and_then(Constant::scalar).or(a.float(name).map(f64::from)).unwrap_or(none)
    };
    let (lo, hi) = (bound(1, "min", f64::MIN), bound(2, "max", f64::MAX));
    map(x, |v| v.max(lo).min(hi))
}

fn reduce(op: &str, x: &Constant, a: &Attrs, ins: &[Option<&Constant>]) -> Result<Constant, String> {
    let rank = x.shape.len();
    let mut gone = vec![false; rank];
    match list(a, "axes", ins, 1).filter(|l| !l.is_empty()) {
        Some(axes) => {
            for v in axes {
                *gone.get_mut(axis(v, rank)?).ok_or("an axis of a scalar")? = true;
            }
        }
        None => gone.fill(true),
    }
    let kept: Vec<usize> = (0..rank).map(|i| if gone[i] { 1 } else { x.shape[i] }).collect();
    let own = row_major(&kept);
    let to: Vec<isize> = (0..rank).map(|i| if gone[i] { 0 } else { own[i] }).collect();
    let (start, step): (f64, fn(f64, f64) -> f64) = match op {
        "ReduceProd" => (1.0, |o, v| o * v),
        "ReduceMax" => (f64::NEG_INFINITY, f64::max),
        "ReduceMin" => (f64::INFINITY, f64::min),
        "ReduceL2" => (0.0, |o, v| o + v * v),
        _ => (0.0, |o, v| o + v),
    };
    let mut out = vec![start; sized(&kept)?];
    let all = x.to_f32();
    let ints = x.as_ints();
    for (i, to) in walk(&x.shape, &to, 0)?.into_iter().enumerate() {
        let v = ints.map_or(f64::from(all[i]), |v| v[i] as f64);
        out[to] = step(out[to], v);
    }
    let count = x.numel().checked_div(out.len()).unwrap_or(1).max(1) as f64;
    out.iter_mut().for_each(|v| match op {
        "ReduceMean" => *v /= count,
        "ReduceL2" => *v = v.sqrt(),
        _ => {}
    });
    let shape =
        if a.flag("keepdims", true) { kept } else { (0..rank).filter(|&i| !gone[i]).map(|i| x.shape[i]).collect() };
    constant(shape, numbers(ints.is_some(), out.into_iter()))
}

fn map(x: &Constant, f: impl Fn(f64) -> f64) -> Result<Constant, String> {
    let values = match values(x) {
        Values::I(v) => Values::I(v.into_iter().map(|v| f(v as f64) as i64).collect()),
        Values::F(v) => Values::F(v.into_iter().map(|v| f(f64::from(v)) as f32).collect()),
    };
    constant(x.shape.clone(), values)
}

/// Elementwise functions of one number; those of booleans are here too.
pub(super) fn unary(op: &str) -> Option<fn(f64) -> f64> {
    Some(match op {
        "Neg" => |v| -v,
        "Abs" => f64::abs,
        "Sqrt" => f64::sqrt,
        "Exp" => f64::exp,
        "Log" => f64::ln,
        "Floor" => f64::floor,
        "Ceil" => f64::ceil,
        "Round" => f64::round_ties_even,
        "Sign" => |v| if v == 0.0 { 0.0 } else { v.signum() },
        "Reciprocal" => |v| 1.0 / v,
        "Sigmoid" => |v| 1.0 / (1.0 + (-v).exp()),
        "Tanh" => f64::tanh,
        "Relu" => |v| v.max(0.0),
        "Erf" => candle_core::cpu::erf::erf_f64,
        "Not" => |v| f64::from(v == 0.0),
        "IsNaN" => |v| f64::from(v.is_nan()),
        _ => return None,
    })
}

/// Elementwise functions of two numbers.
pub(super) fn binary(op: &str) -> Option<fn(f64, f64) -> f64> {
    Some(match op {
        "Add" | "Sum" => |a, b| a + b,
        "Sub" => |a, b| a - b,
        "Mul" => |a, b| a * b,
        "Div" => |a, b| a / b,
        "Pow" => f64::powf,
        "Mod" => |a, b| a - b * (a / b).floor(),
        "Min" => f64::min,
        "Max" => f64::max,
        "Equal" => |a, b| f64::from(a == b),
        "Less" => |a, b| f64::from(a < b),
        "LessOrEqual" => |a, b| f64::from(a <= b),
        "Greater" => |a, b| f64::from(a > b),
        "GreaterOrEqual" => |a, b| f64::from(a >= b),
        "And" => |a, b| f64::from(a != 0.0 && b != 0.0),
        "Or" => |a, b| f64::from(a != 0.0 || b != 0.0),
        "Xor" => |a, b| f64::from((a != 0.0) != (b != 0.0)),
        _ => return None,
    })
}

fn zip(a: &Constant, b: &Constant, op: &str, f: fn(f64, f64) -> f64) -> Result<Constant, String> {
    let shape = broadcast(&a.shape, &b.shape).ok_or_else(|| format!("shapes {:?} and {:?}", a.shape, b.shape))?;
    let (a, b) = (expand_to(a, &shape)?, expand_to(b, &shape)?);
    let truth = matches!(op, "Equal" | "Less" | "LessOrEqual" | "Greater" | "GreaterOrEqual" | "And" | "Or" | "Xor");
    let out = match (values(&a), values(&b)) {
        (Values::I(a), Values::I(b)) => Values::I(ints(op, &a, &b, f)?),
        _ => numbers(truth, a.to_f32().into_iter().zip(b.to_f32()).map(|(a, b)| f(f64::from(a), f64::from(b)))),
    };
    constant(shape, out)
}

/// Integer arithmetic is exact, and divides as C does.
fn ints(op: &str, a: &[i64], b: &[i64], f: fn(f64, f64) -> f64) -> Result<Vec<i64>, String> {
    let one = |(&a, &b): (&i64, &i64)| match op {
        "Add" | "Sum" => a.checked_add(b),
        "Sub" => a.checked_sub(b),
        "Mul" => a.checked_mul(b),
        "Div" => a.checked_div(b),
        "Mod" => a.checked_rem_euclid(b),
        _ => Some(f(a as f64, b as f64) as i64),
    };
    a.iter().zip(b).map(|p| one(p).ok_or_else(|| format!("an integer {op} that overflows"))).collect()
}
