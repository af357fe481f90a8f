//! How much each input column of a layer counts: the sum of its squared activations while a model runs. (llama.cpp's
//! `tools/imatrix`; of convolutions the columns of their unfolded windows.)
//!
//! Not here: the files (`model::imatrix`), and where batches come from (`headless`).

use super::sample;
use crate::exec::{CompileOptions, ExecError, Plan};
use crate::graph::{Binding, Graph, Node, NodeId, Op, ParamRole, experts, op, shapes_at};
use crate::model::imatrix::{self, Squares};
use crate::model::{Imatrix, Model};
use crate::quant::choosable;
use candle_core::Tensor;
use rayon::prelude::*;
use std::collections::BTreeMap;

/// Bytes of activations that are kept while a batch runs; for more there is another pass over all batches.
const KEPT: usize = 1 << 30;

/// Sums of squares of a layer's columns, and the rows that went into them.
#[derive(Clone, Default)]
struct Sums {
    squares: Vec<f64>,
    rows: u64,
}

impl Sums {
    /// Adds rows of `columns` values; with `sent` only those that are not all zeros, which an expert is not sent.
    fn add(&mut self, values: &[f32], columns: usize, sent: bool) {
        self.squares.resize(columns, 0.0);
        for row in values.chunks_exact(columns.max(1)).filter(|row| !sent || row.iter().any(|v| *v != 0.0)) {
            self.squares.iter_mut().zip(row).for_each(|(s, v)| *s += f64::from(*v) * f64::from(*v));
            self.rows += 1;
        }
    }
}

/// Runs `model` as it is on the batches that `batch` returns for 0, 1, … until `None` (more than once where the activations of all layers
/// are too many to keep), and sums up squared inputs of every linear layer and ungrouped convolution. Weights that several layers share
/// get the sums of all of them. What was looked at, in words and numbers, is the caller's to fill in.
///
/// # Errors
/// What `batch` and running the model report.
pub fn importance<E: From<ExecError>>(
    model: &Model,
    batch: &mut dyn FnMut(usize) -> Result<Option<Tensor>, E>,
) -> Result<Imatrix, E> {
    let graph = &*model.graph;
    let layers: Vec<&Node> = choosable(graph).into_iter().filter(|n| looked_at(&n.op)).collect();
    let mut sums: BTreeMap<&str, Sums> = layers.iter().map(|n| (n.name.as_str(), Sums::default())).collect();
    let Some(first) = batch(0)? else { return Ok(Imatrix::default()) };
    let (shapes, places) = (shapes_of(graph, &first)?, experts::places(graph));
    let items = first.dims().first().copied().unwrap_or(1);
    for part in parts(&layers, |id| 4 * items * shapes[id.index()].iter().product::<usize>()) {
        let mut names: Vec<&str> = part.iter().filter_map(|n| source(graph, n)).collect();
        names.sort_unstable();
        names.dedup();
        let options = CompileOptions::default().as_stored().keeping(names.iter().copied());
        let mut session = Plan::of(model, &options)?.session();
        let mut of_part: Vec<(&Node, Sums)> = part.iter().map(|n| (*n, Sums::default())).collect();
        let mut i = 0;
        let mut next = Some(first.clone());
        while let Some(x) = next {
            let (_, values) = session.capture(&x, &names)?;
            of_part.par_iter_mut().try_for_each(|(node, sums)| -> Result<(), ExecError> {
                let value = source(graph, node).and_then(|name| values.get(name));
                let (Some(value), Some(id)) = (value, graph.by_name(&node.name)) else { return Ok(()) };
                Ok(rows(sums, (node, places[id.index()].is_some()), value, &shapes[id.index()])?)
            })?;
            i += 1;
            next = batch(i)?;
        }
        of_part.into_iter().for_each(|(node, found)| {
            sums.insert(&node.name, found);
        });
    }
    let names = imatrix::names(graph);
    let mut by_weight: BTreeMap<&str, (&Node, Sums)> = BTreeMap::new();
    for node in layers.iter().copied() {
        let (Some(own), Some(found)) = (node.param(ParamRole::Weight), sums.get(node.name.as_str())) else { continue };
        let name = names.get(own).map_or(own, String::as_str);
        let all = &mut by_weight.entry(name).or_insert((node, Sums::default())).1;
        all.squares.resize(found.squares.len().max(all.squares.len()), 0.0);
        all.squares.iter_mut().zip(&found.squares).for_each(|(s, v)| *s += v);
        all.rows += found.rows;
    }
    let mut out = Imatrix::default();
    for (name, (node, Sums { squares, rows })) in by_weight {
        let squares = squares.iter().map(|v| *v as f32).collect();
        let why = || {
            ExecError::unsupported(
                node,
                "its squared inputs are no numbers that f32 holds; hint: is the checkpoint damaged?",
            )
        };
        let squares = Squares::new(squares, vec![rows as f32]).ok_or_else(why)?;
        out.tensors.insert(name.to_owned(), squares);
    }
    out.stack_experts();
    Ok(out)
}

/// Adds the rows of a layer's weight's columns that its input `value` has.
fn rows(sums: &mut Sums, (node, sent): (&Node, bool), value: &Tensor, out_shape: &[usize]) -> candle_core::Result<()> {
    let Op::Conv2d(_) = node.op else {
        let columns = value.dims().last().copied().unwrap_or(1);
        sums.add(&value.flatten_all()?.to_vec1::<f32>()?, columns, sent);
        return Ok(());
    };
    let (places, width) = sample::places_of(out_shape);
    // An image at a time: unfolded windows are many times their image.
    for n in 0..value.dim(0)? {
        let all = vec![(0..places).collect()];
        let unfolded = sample::inputs(&node.op, &value.narrow(0, n, 1)?, width, &all)?;
        let columns = unfolded.dim(1)?;
        sums.add(&unfolded.flatten_all()?.to_vec1::<f32>()?, columns, sent);
    }
    Ok(())
}

fn looked_at(op: &Op) -> bool {
    matches!(op, Op::Linear(_) | Op::Conv2d(op::Conv2d { groups: 1, .. }))
}

/// The name of what a layer reads.
fn source<'g>(graph: &'g Graph, node: &Node) -> Option<&'g str> {
    node.inputs.first().map(|id| graph.node(*id).name.as_str())
}

/// Layers in runs whose inputs take no more than [`KEPT`] bytes together, or of one layer.
fn parts<'a, 'g>(layers: &'a [&'g Node], bytes: impl Fn(NodeId) -> usize) -> Vec<&'a [&'g Node]> {
    let (mut out, mut from, mut kept, mut seen) = (Vec::new(), 0, 0, Vec::new());
    for (i, node) in layers.iter().enumerate() {
        let id = node.inputs.first().copied();
        let more = id.filter(|id| !seen.contains(id)).map_or(0, &bytes);
        if i > from && kept + more > KEPT {
            out.push(&layers[from..i]);
            (from, kept) = (i, 0);
            seen.clear();
        }
        kept += if seen.is_empty() { id.map_or(0, &bytes) } else { more };
        seen.extend(id);
    }
    out.push(&layers[from..]);
    out
}

/// Shapes of all values for batches like `x`.
fn shapes_of(graph: &Graph, x: &Tensor) -> Result<Vec<Vec<usize>>, ExecError> {
    let binding = match graph.vocabulary() {
        Some(_) => Binding::tokens(x.dims().last().copied().unwrap_or(1)),
        None => Binding::default(),
    };
    Ok(shapes_at(graph, binding)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::candle::{Capture, Mode, forward, tensors};
    use crate::model::families::{CifarResnetSpec, FamilySpec};
    use crate::model::{LoadOptions, load, random};
    use candle_core::Device;
    use std::path::Path;

    /// Sums over two batches, by the definition.
    fn collected(model: &Model, x: &[Tensor]) -> Imatrix {
        let mut batch = |i: usize| -> Result<_, ExecError> { Ok(x.get(i).cloned()) };
        importance(model, &mut batch).expect("collected")
    }

    #[test]
    fn a_layers_columns_are_summed_and_a_shared_weight_goes_by_the_embeddings_name() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance/language/llama");
        let model = load(&path, &LoadOptions::default()).unwrap();
        let ids = |from: u32| Tensor::from_iter((from..from + 14).map(|i| i * 5 % 96), &Device::Cpu).unwrap();
        let x = [ids(0).reshape((2, 7)).unwrap(), ids(31).reshape((2, 7)).unwrap()];
        let found = collected(&model, &x);
        let linears = model.graph.live().filter(|(_, n)| matches!(n.op, Op::Linear(_))).count();
        assert_eq!(found.tensors.len(), linears);
        // The norm before the head, and the product before the last projection down.
        for (layer, name) in [("lm_head", "token_embd.weight"), ("layers.1.mlp.down_proj", "blk.1.ffn_down.weight")] {
            let node = model.graph.node(model.graph.by_name(layer).unwrap());
            let read = source(&model.graph, node).unwrap();
            let plan = Plan::of(&model, &CompileOptions::default().keeping([read])).unwrap();
            let mut want = Sums::default();
            for x in &x {
                let value = plan.session().capture(x, &[read]).unwrap().1.remove(read).unwrap();
                want.add(&value.flatten_all().unwrap().to_vec1::<f32>().unwrap(), value.dims()[2], false);
            }
            assert_eq!(want.rows, 28);
            let means = found.tensors[name].means();
            assert_eq!(means.len(), want.squares.len());
            for (m, s) in means.iter().zip(&want.squares) {
                let mean = (s / 28.0) as f32;
                assert!(mean > 0.0 && (m - mean).abs() <= 1e-5 * mean, "{name}: {m}, not {mean}");
            }
        }
    }

    #[test]
    fn a_convolutions_columns_are_those_of_its_windows() {
        let spec = CifarResnetSpec { blocks: 1, widths: [4, 8, 8], classes: 5, image: 8 };
        let model = random(&FamilySpec::CifarResnet(spec), 4);
        let x = Tensor::randn(0f32, 1.0, (3, 3, 8, 8), &Device::Cpu).unwrap();
        let found = collected(&model, std::slice::from_ref(&x));
        // The mean square of what a convolution with a single one in its window gives.
        let params = tensors(&model.params, &Device::Cpu).unwrap();
        let conv = model.graph.node(model.graph.by_name("layer2.0.conv1").unwrap());
        let own = conv.param(ParamRole::Weight).unwrap();
        let means = found.tensors[own].means();
        let columns = params[own].elem_count() / params[own].dims()[0];
        assert_eq!(means.len(), columns);
        let mut graph = Graph::clone(&model.graph);
        graph.output = graph.by_name("layer2.0.conv1").unwrap();
        for at in [0, 4, 17, columns - 1] {
            let mut one = model.params.clone();
            let mut weight = vec![0f32; params[own].elem_count()];
            weight[at] = 1.0;
            one.set(own, weight).unwrap();
            let one = tensors(&one, &Device::Cpu).unwrap();
            let y = forward(&graph, &one, &x, Mode::Eval, &mut Capture::none()).unwrap().narrow(1, 0, 1).unwrap();
            let want = y.sqr().unwrap().mean_all().unwrap().to_scalar::<f32>().unwrap();
            assert!((means[at] - want).abs() <= 1e-4 * want.max(1e-3), "{at}: {} {want}", means[at]);
        }
    }

    #[test]
    fn layers_are_parted_by_what_is_kept_of_them() {
        let model =
            random(&FamilySpec::CifarResnet(CifarResnetSpec { blocks: 1, widths: [4, 8, 8], classes: 5, image: 8 }), 4);
        let layers = choosable(&model.graph);
        assert_eq!(parts(&layers, |_| 1).len(), 1);
        let each = parts(&layers, |_| KEPT);
        assert_eq!(each.iter().map(|p| p.len()).sum::<usize>(), layers.len());
        assert!(each.len() > 1 && each.iter().all(|p| !p.is_empty()));
    }
}
