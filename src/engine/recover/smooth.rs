//! Scales of channels that are moved between layers so that rounding costs less: what a norm, or the rows of a layer, give is divided by them,
//! and the columns of all that reads it are multiplied. In exact arithmetic nothing changes.
//!
//! Of weights that are rounded, columns that meet large inputs then have finer codes (Lin et al. 2023, AWQ, arXiv 2306.00978: `s = a^α`, `a` a
//! channel's mean magnitude); where inputs are rounded too, channels of outliers are brought down to where weights can carry them (Xiao et al. 2022,
//! SmoothQuant, arXiv 2211.10438: `s = max|x|^α / max|w|^(1−α)`). For each seam the exponents with the least error of what its readers give stay.
//!
//! Not here: rounding, and whether all of it stays (`blocks`).

use super::RepairError;
use super::language::rows;
use super::segment::part;
use super::walk::{Stretch, Walk};
use crate::graph::{Graph, NodeId, Op, ParamRole, Precision, shapes};
use crate::model::{Model, Param, ParamStore};
use candle_core::Tensor;

/// Tokens that exponents are chosen on.
const TOKENS: usize = 256;

/// Exponents that are tried, of both rules.
const EXPONENTS: [f64; 4] = [0.25, 0.5, 0.75, 1.0];

/// Where scales can be moved: everything that reads `value` is a linear layer.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seam {
    value: NodeId,
    readers: Vec<NodeId>,
    gives: Gives,
}

/// What is divided by the scales.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gives {
    /// A norm's weight, and its bias where it has one.
    Norm(NodeId),
    /// Rows of a linear layer, and its bias. `shared`: channel `c` of the value is made of row `c / (width · group) · width + c mod width`.
    Rows { layer: NodeId, width: usize, group: usize },
}

impl Seam {
    /// The row that channel `c` of the value is made of.
    fn row(&self, c: usize) -> usize {
        match self.gives {
            Gives::Norm(_) => c,
            Gives::Rows { width, group, .. } => c / (width * group) * width + c % width,
        }
    }
}

/// All seams of `graph` whose readers have weights of their own.
fn seams(graph: &Graph) -> Vec<Seam> {
    let consumers = graph.consumers();
    let own = |id: NodeId| graph.sharing(graph.node(id)).is_none();
    let linear = |id: NodeId| matches!(graph.node(id).op, Op::Linear(_)) && own(id) && id != graph.output;
    // A layer whose rows nobody but the value reads.
    let rows = |id: NodeId, value: NodeId| linear(id) && consumers[id.index()] == [value];
    let of = |(value, node): (NodeId, &crate::graph::Node)| {
        let readers = consumers[value.index()].clone();
        if readers.is_empty() || value == graph.output || !readers.iter().all(|r| linear(*r)) {
            return None;
        }
        let gives = match &node.op {
            Op::RmsNorm(_) | Op::LayerNorm(_) if own(value) => {
                node.param(ParamRole::Weight)?;
                Gives::Norm(value)
            }
            Op::Mul => {
                let layer = node.inputs.iter().copied().rev().find(|i| rows(*i, value))?;
                Gives::Rows { layer, width: 1, group: 1 }
            }
            Op::Attention(a) if !a.fused => {
                let layer = *node.inputs.get(2).filter(|i| rows(**i, value))?;
                Gives::Rows { layer, width: a.v_dim, group: a.group.max(1) }
            }
            _ => return None,
        };
        Some(Seam { value, readers, gives })
    };
    graph.live().filter_map(of).collect()
}

/// Moves scales at all seams of a stretch, by what its activations are on the windows that are fitted on. `rounded`: will the layer be?
///
/// # Errors
/// Execution failures, cancellation (looked for before every batch).
pub(super) fn pass(
    walk: &mut Walk,
    graph: &Graph,
    stretch: &Stretch,
    rounded: &dyn Fn(&Model, NodeId) -> bool,
) -> Result<(), RepairError> {
    let inside = |s: &Seam| s.readers.iter().all(|r| *r > stretch.from && *r <= stretch.to);
    let held = |s: &Seam| match s.gives {
        Gives::Norm(id) | Gives::Rows { layer: id, .. } => id > stretch.from,
    };
    let model = &walk.state.model;
    let wanted = |s: &Seam| s.readers.iter().any(|r| rounded(model, *r));
    let found: Vec<Seam> = seams(graph).into_iter().filter(|s| inside(s) && held(s) && wanted(s)).collect();
    for seam in found {
        let Some(seen) = Seen::gather(walk, graph, stretch, &seam)? else { continue };
        if let Some(scales) = best(&walk.state.model, graph, &seam, &seen)? {
            fold(&mut walk.state.model.params, graph, &seam, &scales)?;
        }
    }
    Ok(())
}

/// What a seam's value is on the windows that are fitted on.
struct Seen {
    /// Some tokens' values, `[tokens, channels]`.
    x: Tensor,
    /// The mean and the largest magnitude of each row that gives it, over all tokens.
    mean: Vec<f64>,
    most: Vec<f64>,
}

impl Seen {
    fn gather(walk: &Walk, graph: &Graph, stretch: &Stretch, seam: &Seam) -> Result<Option<Seen>, RepairError> {
        let state = &*walk.state;
        let before = part(graph, stretch.from, &shapes(graph)?[stretch.from.index()], seam.value);
        // In floats: what is rounded here is what scales are chosen for.
        let float = crate::graph::Precisions::default();
        let mut runner = state.runner(&before, (&state.model.params, &float), &[])?;
        let (mut kept, mut mean, mut most, mut tokens) = (Vec::new(), Vec::new(), Vec::<f64>::new(), 0usize);
        let fitted = walk.chunks.iter().filter(|c| c.answer.is_none()).count();
        for chunk in walk.chunks.iter().filter(|c| c.answer.is_none()) {
            state.cancel.check()?;
            let x = rows(&runner.run(&chunk.compressed)?.0)?;
            let (n, _) = x.dims2()?;
            let size = x.abs()?;
            let sums = size.sum(0)?.to_vec1::<f32>()?;
            mean.resize(sums.len(), 0.0);
            most.resize(sums.len(), 0.0);
            mean.iter_mut().zip(sums).for_each(|(m, s)| *m += f64::from(s));
            let peaks = size.max(0)?.to_vec1::<f32>()?;
            most.iter_mut().zip(peaks).for_each(|(m, p)| *m = m.max(f64::from(p)));
            tokens += n;
            // As many of each window, evenly.
            let each = TOKENS.div_ceil(fitted.max(1)).min(n);
            let at: Vec<u32> = (0..each).map(|i| (i * n / each) as u32).collect();
            kept.push(x.index_select(&Tensor::new(at, x.device())?, 0)?);
        }
        if kept.is_empty() {
            return Ok(None);
        }
        // By the row that gives a channel: heads that share values share scales.
        let count = mean.len();
        let rows = (0..count).map(|c| seam.row(c) + 1).max().unwrap_or(0);
        let (mut by_row, mut peaks, mut readers) = (vec![0.0; rows], vec![0f64; rows], vec![0.0; rows]);
        for c in 0..count {
            let r = seam.row(c);
            by_row[r] += mean[c] / tokens.max(1) as f64;
            peaks[r] = peaks[r].max(most[c]);
            readers[r] += 1.0;
        }
        by_row.iter_mut().zip(&readers).for_each(|(m, n)| *m /= f64::max(*n, 1.0));
        Ok(Some(Seen { x: Tensor::cat(&kept, 0)?, mean: by_row, most: peaks }))
    }
}

/// The scales of each row with the least error of what the readers give; `None` where no scales are best.
fn best(model: &Model, graph: &Graph, seam: &Seam, seen: &Seen) -> Result<Option<Vec<f32>>, RepairError> {
    let (_, channels) = seen.x.dims2()?;
    let mut weights = Vec::new();
    for id in &seam.readers {
        let node = graph.node(*id);
        let Some(name) = node.param(ParamRole::Weight) else { return Ok(None) };
        let weight = model.params.get(name)?;
        weights.push((
            Tensor::from_vec(weight.values().into_owned(), weight.shape(), seen.x.device())?,
            model.precision.get(&node.name),
        ));
    }
    let wants: Vec<Tensor> = weights.iter().map(|(w, _)| seen.x.matmul(&w.t()?)).collect::<Result<_, _>>()?;
    let mut columns = vec![0f64; seen.mean.len()];
    for (w, _) in &weights {
        for (c, v) in w.abs()?.max(0)?.to_vec1::<f32>()?.into_iter().enumerate() {
            let r = seam.row(c);
            columns[r] = columns[r].max(f64::from(v));
        }
    }
    let error = |scales: &[f32]| -> Result<f64, RepairError> {
        let wide: Vec<f32> = (0..channels).map(|c| scales[seam.row(c)]).collect();
        let wide = Tensor::from_vec(wide, (1, channels), seen.x.device())?;
        let x = seen.x.broadcast_div(&wide)?;
        let mut sum = 0.0;
        for ((w, precision), want) in weights.iter().zip(&wants) {
            let scaled = w.broadcast_mul(&wide)?;
            let shape = scaled.dims().to_vec();
            let stored = Param::owned(shape.clone(), scaled.flatten_all()?.to_vec1::<f32>()?);
            let Some(stored) = stored.map(|p| p.stored_in(precision.weights())) else { return Ok(f64::INFINITY) };
            let rounded = Tensor::from_vec(stored.values().into_owned(), shape, x.device())?;
            let given = match precision {
                Precision::Int8 => by_token(&x)?.matmul(&rounded.t()?)?,
                _ => x.matmul(&rounded.t()?)?,
            };
            sum += f64::from((given - want)?.sqr()?.sum_all()?.to_scalar::<f32>()?);
        }
        Ok(sum)
    };
    let none = vec![1f32; seen.mean.len()];
    let mut found = (error(&none)?, None);
    for alpha in EXPONENTS {
        let by_mean = || seen.mean.iter().map(|a| a.max(1e-8).powf(alpha)).collect::<Vec<f64>>();
        let by_both = || {
            seen.most
                .iter()
                .zip(&columns)
                .map(|(x, w)| x.max(1e-8).powf(alpha) / w.max(1e-8).powf(1.0 - alpha))
                .collect()
        };
        for scales in [by_mean(), by_both()] {
            let scales = centred(&scales);
            let error = error(&scales)?;
            if error < found.0 {
                found = (error, Some(scales));
            }
        }
    }
    Ok(found.1)
}

/// About 1 on the whole, and within what floats of 16 bits carry.
fn centred(scales: &[f64]) -> Vec<f32> {
    let log = scales.iter().map(|s| s.ln()).sum::<f64>() / scales.len().max(1) as f64;
    scales.iter().map(|s| (s / log.exp()).clamp(1e-3, 1e3) as f32).collect()
}

/// Rows as int8 with a scale of their own have them.
fn by_token(x: &Tensor) -> candle_core::Result<Tensor> {
    let scale = (x.abs()?.max_keepdim(1)?.maximum(1e-12)? / 127.0)?;
    x.broadcast_div(&scale)?.round()?.broadcast_mul(&scale)
}

/// Moves `scales`, one for each row that gives, through the seam.
fn fold(params: &mut ParamStore, graph: &Graph, seam: &Seam, scales: &[f32]) -> Result<(), RepairError> {
    for id in &seam.readers {
        let Some(name) = graph.node(*id).param(ParamRole::Weight) else { continue };
        let mut values = params.get(name)?.values().into_owned();
        let columns = params.get(name)?.shape().last().copied().unwrap_or(1).max(1);
        values.iter_mut().enumerate().for_each(|(i, w)| *w *= scales[seam.row(i % columns)]);
        params.set(name, values)?;
    }
    let (Gives::Norm(id) | Gives::Rows { layer: id, .. }) = seam.gives;
    for role in [ParamRole::Weight, ParamRole::Bias] {
        let Some(name) = graph.node(id).param(role) else { continue };
        let mut values = params.get(name)?.values().into_owned();
        let each = (values.len() / scales.len().max(1)).max(1);
        values.iter_mut().enumerate().for_each(|(i, w)| *w /= scales[i / each]);
        params.set(name, values)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::{CompileOptions, Plan};
    use crate::graph::{Activation, Builder, op};
    use crate::model::{ModelInfo, Origin, random_params};
    use rand::{Rng, SeedableRng};

    /// One layer of a decoder: heads that share keys and values, a gated MLP.
    fn decoder() -> Model {
        let b = &mut Builder::default();
        let ids = b.input_of(op::Input::ids(50));
        let x = b.embedding("embed", ids, 50, 16);
        let norm = |b: &mut Builder, name: &str, x| b.node(name, Op::RmsNorm(op::RmsNorm { dim: 16, eps: 1e-6 }), &[x]);
        let h = norm(b, "norm1", x);
        let (q, k, v) =
            (b.linear("q", h, 16, 24, false), b.linear("k", h, 16, 12, false), b.linear("v", h, 16, 12, true));
        let core = b.node("core", Op::Attention(op::Attention::decoder(4, 2, 6)), &[q, k, v]);
        let o = b.linear("o", core, 24, 16, false);
        let x = b.add("add1", x, o);
        let h = norm(b, "norm2", x);
        let gate = b.linear("gate", h, 16, 20, false);
        let act = b.act("act", gate, Activation::Silu);
        let up = b.linear("up", h, 16, 20, false);
        let both = b.node("both", Op::Mul, &[act, up]);
        let down = b.linear("down", both, 20, 16, false);
        let x = b.add("add2", x, down);
        let h = b.layer_norm("last", x, 16, 1e-5);
        let y = b.linear("head", h, 16, 50, false);
        let graph = std::mem::take(b).finish(y).unwrap();
        let params = random_params(&graph, 3);
        Model {
            graph: graph.into(),
            params,
            precision: Default::default(),
            origin: Origin::default(),
            info: ModelInfo { classes: 50, ..crate::model::random(&small(), 1).info },
        }
    }

    fn small() -> crate::model::families::FamilySpec {
        let spec = crate::model::families::CifarResnetSpec { blocks: 1, widths: [4, 4, 4], classes: 10, image: 8 };
        crate::model::families::FamilySpec::CifarResnet(spec)
    }

    fn run(model: &Model) -> Vec<f32> {
        let ids: Vec<u32> = (0..22).map(|i| (i * 7) % 50).collect();
        let x = Tensor::from_vec(ids, (2, 11), &candle_core::Device::Cpu).unwrap();
        let y = Plan::of(model, &CompileOptions::default()).unwrap().run(&x).unwrap();
        y.flatten_all().unwrap().to_vec1().unwrap()
    }

    /// The head's norm is no seam: the head is the output, and others may share its weight.
    #[test]
    fn scales_that_are_moved_change_nothing() {
        let model = decoder();
        let found = seams(&model.graph);
        let name = |id: &NodeId| model.graph.node(*id).name.as_str();
        let named: Vec<(&str, Vec<&str>)> =
            found.iter().map(|s| (name(&s.value), s.readers.iter().map(name).collect())).collect();
        assert_eq!(
            named,
            [
                ("norm1", vec!["q", "k", "v"]),
                ("core", vec!["o"]),
                ("norm2", vec!["gate", "up"]),
                ("both", vec!["down"])
            ]
        );
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(5);
        for seam in &found {
            let rows = if name(&seam.value) == "core" {
                12
            } else if name(&seam.value) == "both" {
                20
            } else {
                16
            };
            let scales: Vec<f32> = (0..rows).map(|_| rng.random_range(0.2..5.0)).collect();
            let mut moved = model.clone();
            fold(&mut moved.params, &model.graph, seam, &scales).unwrap();
            let (a, b) = (run(&model), run(&moved));
            let off = a.iter().zip(&b).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
            assert!(off < 1e-4, "{}: {off}", name(&seam.value));
            assert_ne!(moved.params.hash(), model.params.hash());
        }
    }

    /// A channel a hundred times as large as others costs int8 inputs the others' digits, unless weights carry it.
    #[test]
    fn outliers_are_brought_down_where_inputs_are_rounded() {
        let mut model = decoder();
        let graph = model.graph.clone();
        let seam = seams(&graph).into_iter().find(|s| graph.node(s.value).name == "norm2").unwrap();
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(6);
        let x: Vec<f32> =
            (0..64 * 16).map(|i| rng.random_range(-1.0..1.0) * if i % 16 == 3 { 100.0 } else { 1.0 }).collect();
        let x = Tensor::from_vec(x, (64, 16), &candle_core::Device::Cpu).unwrap();
        let at = |f: fn(&Tensor) -> Tensor| {
            f(&x.abs().unwrap()).to_vec1::<f32>().unwrap().into_iter().map(f64::from).collect()
        };
        let seen = Seen { x: x.clone(), mean: at(|x| x.mean(0).unwrap()), most: at(|x| x.max(0).unwrap()) };
        assert_eq!(best(&model, &graph, &seam, &seen).unwrap(), None, "nothing is rounded");
        for layer in ["gate", "up"] {
            model.precision.set(layer, Precision::Int8);
        }
        let scales = best(&model, &graph, &seam, &seen).unwrap().expect("scales that help");
        let others = scales.iter().enumerate().filter(|(c, _)| *c != 3).map(|(_, s)| *s).fold(0f32, f32::max);
        assert!(scales[3] > 5.0 * others, "{scales:?}");
    }
}
