//! Low-rank factors of one layer's weights: a layer of `rows × columns` becomes two, `columns → rank` and `rank → rows`, with
//! `rank · (rows + columns)` weights. Of a convolution the first has its window and `rank` filters, and the second is 1x1.
//!
//! Without what the layer reads they are the truncated singular value decomposition (Eckart and Young 1936). With the Gram matrix of its
//! inputs they keep what its outputs vary in most: the least squared error of the outputs that this rank can have (Zhang et al. 2015, arXiv
//! 1505.06798; the optimum that SVD-LLM finds by whitening, arXiv 2403.07378).
//!
//! Not here: where Gram matrices come from (`recover::factors`).

use super::action::{Action, Target};
use super::error::{PruneError, Result};
use crate::graph::{Graph, Node, NodeId, Op, ParamRef, ParamRole, inner_name, op};
use crate::model::{Model, Param};
use faer::linalg::matmul::matmul;
use faer::{Accum, Mat, MatRef, Par, Side};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Shares of eight times this rank and more are rounded to multiples of it: kernels take values in such runs.
const RUN: usize = 8;

/// A rank as it is asked for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rank {
    Units(u32),
    /// A part of the most that the layer's weights could have.
    Share(f64),
}

impl Rank {
    /// As a number for the weights of `op`; of a share to the nearest multiple of eight, where that is not below it.
    ///
    /// # Errors
    /// As [`fits`].
    pub fn of(self, op: &Op) -> Result<u32, String> {
        let (rows, columns) = matrix(op).ok_or(NO_FACTORS)?;
        let full = rows.min(columns);
        let rank = match self {
            Rank::Units(rank) => rank,
            Rank::Share(share) => {
                let wanted = (share * full as f64).max(1.0);
                let runs = (wanted / RUN as f64).round() as usize * RUN;
                (if full >= 8 * RUN { runs.max(RUN) } else { wanted.round() as usize }) as u32
            }
        };
        fits(op, rank)?;
        Ok(rank)
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rank::Units(rank) => write!(f, "{rank}"),
            Rank::Share(share) => write!(f, "{:.0}%", share * 100.0),
        }
    }
}

/// `64` or `25%`.
impl FromStr for Rank {
    type Err = String;

    fn from_str(s: &str) -> Result<Rank, String> {
        let s = s.trim();
        let bad = || format!("`{s}` is no rank; hint: 64, or 25% of the most that a layer's weights could have");
        match s.strip_suffix('%') {
            Some(text) => {
                let share = text.trim().parse::<f64>().map_err(|_| bad())? / 100.0;
                (share > 0.0 && share < 1.0).then_some(Rank::Share(share)).ok_or_else(bad)
            }
            None => s.parse().ok().filter(|rank| *rank > 0).map(Rank::Units).ok_or_else(bad),
        }
    }
}

const NO_FACTORS: &str = "only linear layers and ungrouped convolutions have factors";

/// Rows and columns of the weight of a linear layer or an ungrouped convolution.
fn matrix(op: &Op) -> Option<(usize, usize)> {
    match op {
        Op::Linear(l) => Some((l.out_features, l.in_features)),
        Op::Conv2d(c) if c.groups == 1 => Some((c.out_ch, c.in_ch * c.kernel[0] * c.kernel[1])),
        _ => None,
    }
}

/// Whether the weights of `op` can have factors of `rank` that are fewer weights than the layer.
///
/// # Errors
/// Why not, in words.
pub fn fits(op: &Op, rank: u32) -> Result<(), String> {
    let (rows, columns) = matrix(op).ok_or(NO_FACTORS)?;
    let most = (rows * columns).saturating_sub(1) / (rows + columns).max(1);
    match rank as usize {
        0 => Err("a rank of 0 leaves nothing".to_owned()),
        _ if most == 0 => Err(format!("{rows} x {columns} weights have no factors that are fewer")),
        rank if rank > most => {
            Err(format!("factors of rank {rank} are no fewer weights than {rows} x {columns}; hint: {most} at most"))
        }
        _ => Ok(()),
    }
}

/// The two layers that stand for one of `rank`; `None` where they would be no smaller.
pub fn factored(op: &Op, rank: u32) -> Option<[Op; 2]> {
    fits(op, rank).ok()?;
    let rank = rank as usize;
    match op {
        Op::Linear(l) => Some([
            Op::Linear(op::Linear { out_features: rank, bias: false, ..l.clone() }),
            Op::Linear(op::Linear { in_features: rank, ..l.clone() }),
        ]),
        Op::Conv2d(c) => {
            let last = op::Conv2d { in_ch: rank, kernel: [1, 1], stride: [1, 1], padding: [0; 4], ..c.clone() };
            Some([Op::Conv2d(op::Conv2d { out_ch: rank, bias: false, ..c.clone() }), Op::Conv2d(last)])
        }
        _ => None,
    }
}

/// Whether `node` of `graph` can have factors of `rank`.
///
/// # Errors
/// Why not, in words.
pub fn factorable(graph: &Graph, node: &Node, rank: u32) -> Result<(), String> {
    fits(&node.op, rank)?;
    if let Some(other) = graph.sharing(node) {
        return Err(format!("its weight is `{}`'s, too; hint: choose a layer with weights of its own", other.name));
    }
    let inner = inner_name(&node.name);
    if graph.by_name(&inner).is_some() {
        return Err(format!(
            "it has factors already, with `{inner}`; hint: what lies between the two can be pruned, or begin with the original"
        ));
    }
    Ok(())
}

/// Ranks by layer that `actions` leave in `graph`, which they were otherwise applied to. A layer that was cut until its factors would be no
/// smaller stays whole, and so does one that shares its weight or is the second of two already.
pub fn ranks(graph: &Graph, actions: &[(Target, Action)]) -> BTreeMap<String, u32> {
    let mut out = BTreeMap::new();
    for (target, action) in actions {
        match (target, action) {
            (Target::Weights(name), Action::Factorise { rank }) => _ = out.insert(name.clone(), *rank),
            (Target::Weights(name), _) => _ = out.remove(name),
            _ => {}
        }
    }
    let reachable = graph.reachable();
    out.retain(|name, rank| {
        let node = graph.by_name(name).filter(|id| reachable[id.index()]).map(|id| graph.node(id));
        node.is_some_and(|n| factorable(graph, n, *rank).is_ok())
    });
    out
}

/// Two factors of a weight, row-major: it is nearly `outer · inner`.
#[derive(Debug, Clone, PartialEq)]
pub struct Factors {
    /// `[rows, rank]`.
    pub outer: Vec<f32>,
    /// `[rank, columns]`.
    pub inner: Vec<f32>,
}

impl Factors {
    /// Of `weight` `[rows, columns]`, for inputs with this Gram matrix `[columns, columns]` or, without one, for inputs of which nothing is known.
    /// `None` where no eigenvalues are found.
    pub fn of(weight: &[f32], columns: usize, rank: usize, gram: Option<&[f64]>) -> Option<Factors> {
        let rows = weight.len() / columns.max(1);
        let wide: Vec<f64> = weight.iter().map(|v| f64::from(*v)).collect();
        let w = MatRef::from_row_major_slice(&wide, rows, columns);
        let (outer, inner) = if rows <= columns {
            // What the outputs vary in.
            let varied = match gram {
                Some(gram) => product(product(w, floored(gram, columns)?.as_ref()).as_ref(), w.transpose()),
                None => product(w, w.transpose()),
            };
            let main = main(varied, rank)?;
            let inner = product(main.transpose(), w);
            (main, inner)
        } else {
            // The same, where outputs are more than inputs: of the weight as it acts on inputs that vary alike in all directions.
            let root = gram.map(|g| Root::of(floored(g, columns)?)).map_or(Some(None), |r| r.map(Some))?;
            let seen = root.as_ref().map_or_else(|| w.to_owned(), |r| product(w, r.root.as_ref()));
            let main = main(product(seen.transpose(), seen.as_ref()), rank)?;
            let inner = match &root {
                Some(r) => product(main.transpose(), r.inverse.as_ref()),
                None => main.transpose().to_owned(),
            };
            (product(seen.as_ref(), main.as_ref()), inner)
        };
        let flat = |m: MatRef<'_, f64>| -> Vec<f32> {
            (0..m.nrows()).flat_map(|r| (0..m.ncols()).map(move |c| (r, c))).map(|(r, c)| m[(r, c)] as f32).collect()
        };
        let found = Factors { outer: flat(outer.as_ref()), inner: flat(inner.as_ref()) };
        found.outer.iter().chain(&found.inner).all(|v| v.is_finite()).then_some(found)
    }

    /// What they stand for, `[rows, columns]`.
    pub fn whole(&self, columns: usize) -> Vec<f32> {
        let rank = self.inner.len() / columns.max(1);
        let rows = self.outer.len() / rank.max(1);
        let [outer, inner] = [&self.outer, &self.inner].map(|v| v.iter().map(|v| f64::from(*v)).collect::<Vec<_>>());
        let whole = product(
            MatRef::from_row_major_slice(&outer, rows, rank),
            MatRef::from_row_major_slice(&inner, rank, columns),
        );
        (0..rows * columns).map(|i| whole[(i / columns, i % columns)] as f32).collect()
    }
}

/// The symmetric square root of a Gram matrix, and its inverse.
struct Root {
    root: Mat<f64>,
    inverse: Mat<f64>,
}

/// What no input showed counts as this part of what they showed on the mean: of few inputs, directions are missing.
const FLOOR: f64 = 1e-4;

/// A Gram matrix of `n` columns with the floor on its diagonal; `None` where it is of no inputs.
fn floored(gram: &[f64], n: usize) -> Option<Mat<f64>> {
    let mean = (0..n).map(|i| gram[i * n + i]).sum::<f64>() / n.max(1) as f64;
    let sound = mean.is_finite() && mean > 0.0;
    sound.then(|| Mat::from_fn(n, n, |i, j| gram[i * n + j] + if i == j { FLOOR * mean } else { 0.0 }))
}

impl Root {
    fn of(gram: Mat<f64>) -> Option<Root> {
        let found = gram.self_adjoint_eigen(Side::Lower).ok()?;
        let (n, values, vectors) = (gram.nrows(), found.S().column_vector(), found.U());
        let least = FLOOR * (0..n).map(|i| values[i].max(0.0)).sum::<f64>() / n.max(1) as f64 / 2.0;
        let scaled = |power: f64| {
            let part = |i: usize, j: usize| vectors[(i, j)] * values[j].max(least).powf(power);
            product(Mat::from_fn(n, n, part).as_ref(), vectors.transpose())
        };
        Some(Root { root: scaled(0.5), inverse: scaled(-0.5) })
    }
}

fn product(a: MatRef<'_, f64>, b: MatRef<'_, f64>) -> Mat<f64> {
    let mut out = Mat::zeros(a.nrows(), b.ncols());
    matmul(out.as_mut(), Accum::Replace, a, b, 1.0, Par::Seq);
    out
}

/// Eigenvectors of the `rank` largest eigenvalues, as columns.
fn main(square: Mat<f64>, rank: usize) -> Option<Mat<f64>> {
    let found = square.self_adjoint_eigen(Side::Lower).ok()?;
    let (values, vectors) = (found.S().column_vector(), found.U());
    let mut order: Vec<usize> = (0..square.nrows()).collect();
    order.sort_by(|a, b| values[*b].total_cmp(&values[*a]));
    Some(Mat::from_fn(square.nrows(), rank, |i, j| vectors[(i, order[j])]))
}

/// Gives layers of `model` the weights that their ranks leave by themselves, whatever they read; shapes stay.
///
/// # Errors
/// Missing parameters.
pub fn flatten(model: &mut Model, ranks: &BTreeMap<String, u32>) -> Result<()> {
    for (name, rank) in ranks {
        let Some(node) = model.graph.by_name(name).map(|id| model.graph.node(id)) else { continue };
        let (Some(weight), Some((_, columns))) = (node.param(ParamRole::Weight), matrix(&node.op)) else { continue };
        let found = Factors::of(&model.params.get(weight)?.values(), columns, *rank as usize, None);
        let found = found.ok_or_else(|| PruneError::NoFactors { node: name.clone() })?;
        model.params.set(weight, found.whole(columns))?;
    }
    Ok(())
}

/// `model` with every layer that has a rank as two: `NAME.0` reads what it read, and `NAME` reads that. Of weights of that rank they are exact.
/// Names of parameters are those that a sequence of the two would have in PyTorch.
///
/// # Errors
/// Missing parameters; names that are taken.
pub fn split(model: &Model, ranks: &BTreeMap<String, u32>) -> Result<Model> {
    let graph = &model.graph;
    let mut out = model.clone();
    let (mut nodes, mut to, mut halves) =
        (Vec::with_capacity(graph.nodes.len()), Vec::<NodeId>::new(), BTreeMap::new());
    for (id, node) in graph.iter() {
        let mut node = node.clone();
        node.inputs.iter_mut().for_each(|input| *input = to[input.index()]);
        let pair = ranks.get(&node.name).and_then(|rank| Some((*rank, factored(&node.op, *rank)?)));
        if let Some((rank, [first, second])) = pair {
            let before = NodeId(nodes.len() as u32);
            let half = factors(&mut out, &mut node, rank, first)?;
            let precision = out.precision.get(&node.name);
            if out.precision.nodes.contains_key(&node.name) {
                out.precision.set(half.name.clone(), precision.instead(&half.op));
                out.precision.set(node.name.clone(), precision.instead(&second));
            }
            node.inputs = vec![before];
            node.op = second;
            nodes.push(half);
            halves.insert(id, before);
        }
        to.push(NodeId(nodes.len() as u32));
        nodes.push(node);
    }
    let mut blocks = graph.blocks.clone();
    for block in &mut blocks {
        let moved = |id: &NodeId| halves.get(id).copied().into_iter().chain([to[id.index()]]);
        block.nodes = block.nodes.iter().flat_map(moved).collect();
        for r in &mut block.residual {
            (r.add, r.skip) = (to[r.add.index()], to[r.skip.index()]);
        }
    }
    let graph = Graph { nodes, output: to[graph.output.index()], blocks };
    graph.check()?;
    out.graph = Arc::new(graph);
    out.info.hash = out.params.hash();
    Ok(out)
}

/// Puts the factors of `node`'s weight in the place of it, and returns the node of the first.
fn factors(model: &mut Model, node: &mut Node, rank: u32, first: Op) -> Result<Node> {
    let taken = |name: &str| PruneError::NoFactors { node: name.to_owned() };
    let (Some(weight), Some((rows, columns))) = (node.param(ParamRole::Weight), matrix(&node.op)) else {
        return Err(taken(&node.name));
    };
    let (weight, rank) = (weight.to_owned(), rank as usize);
    let old = model.params.get(&weight)?.clone();
    let found = Factors::of(&old.values(), columns, rank, None).ok_or_else(|| taken(&node.name))?;
    let beyond = old.shape().get(2..).unwrap_or_default().to_vec();
    let shapes = [
        [vec![rank], old.shape().get(1..).unwrap_or_default().to_vec()].concat(),
        [vec![rows, rank], vec![1; beyond.len()]].concat(),
    ];
    model.params.remove(&weight);
    // `a.weight` and `a.bias` become `a.0.weight`, `a.1.weight` and `a.1.bias`.
    let base = weight.strip_suffix(".weight").unwrap_or(&weight).to_owned();
    let [inner, outer] = [0, 1].map(|i| format!("{base}.{i}.weight"));
    for ((name, shape), values) in [&inner, &outer].into_iter().zip(shapes).zip([found.inner, found.outer]) {
        if model.params.get(name).is_ok() {
            return Err(taken(&node.name));
        }
        let param = Param::owned(shape, values).ok_or_else(|| taken(&node.name))?;
        // As wide as the weight was stored: what is computed with is what is written.
        model.params.insert(name.clone(), param.in_floats_of(&old));
    }
    for p in &mut node.params {
        match p.role {
            ParamRole::Weight => p.name.clone_from(&outer),
            ParamRole::Bias if p.name.strip_suffix(".bias") == Some(&base) => {
                let (bias, moved) = (model.params.get(&p.name)?.clone(), format!("{base}.1.bias"));
                model.params.remove(&p.name);
                model.params.insert(moved.clone(), bias);
                p.name = moved;
            }
            _ => {}
        }
    }
    let params = vec![ParamRef { role: ParamRole::Weight, name: inner }];
    Ok(Node { name: inner_name(&node.name), op: first, inputs: node.inputs.clone(), params })
}

#[cfg(test)]
#[path = "lowrank_tests.rs"]
mod tests;
