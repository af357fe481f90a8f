//! A profile of one block of each kind, for models that are too large to run whole: alike blocks are taken to take alike long.
//!
//! Not here: measuring (`measure`). Invariants: every row of the whole model is there, and its bytes, weights and MACs are its own; what
//! was not measured is said, in the profile and in a note.

use super::workload::Counts;
use super::{LayerRow, Profile, ProfileOptions, ProfileUpdate, Result, Sampled, Workload, profile};
use crate::exec::{Cancel, KvFormat};
use crate::graph::{Block, NodeId};
use crate::model::Model;
use crate::prune::{self, Action, Target};
use crate::quant::stored_bytes;
use std::collections::HashMap;

/// Weights that are measured at least, bytes as stored: a few blocks again and again would be read from caches, which a whole model's never
/// are, and look twice as fast as they are. No processor's last level is larger by much.
const COLD: u64 = 512 << 20;

/// As [`profile`], of `model` without the blocks that are like an earlier one; these get its figures, and the whole model's latency is
/// the sum. Where no two blocks are alike, or all of them fit a cache, it is [`profile`].
///
/// # Errors
/// As [`profile`].
pub fn sampled(
    model: &Model,
    options: &ProfileOptions,
    cancel: &Cancel,
    update: &mut dyn FnMut(ProfileUpdate),
) -> Result<Profile> {
    of_at_least(COLD, model, options, cancel, update)
}

/// As [`sampled`], with blocks of so many bytes measured.
fn of_at_least(
    least: u64,
    model: &Model,
    options: &ProfileOptions,
    cancel: &Cancel,
    update: &mut dyn FnMut(ProfileUpdate),
) -> Result<Profile> {
    let twins = twins(model, options.workload, least)?;
    if twins.is_empty() {
        return profile(model, options, cancel, update);
    }
    let gone = |b: usize| (Target::Block(model.graph.blocks[b].name.clone()), Action::RemoveBlock);
    let actions: Vec<_> = twins.iter().map(|(b, _)| gone(*b)).collect();
    let some = prune::apply(model, &[], &actions)?;
    let measured = profile(&some, options, cancel, update)?;
    whole(measured, model, &twins)
}

/// Blocks that can be left out where the others have `least` bytes of weights, each with the first one that is like it.
fn twins(model: &Model, workload: Workload, least: u64) -> Result<Vec<(usize, usize)>> {
    let graph = &model.graph;
    let counts = Counts::of(graph, &KvFormat::decided(graph, &model.precision), workload)?;
    let mut first: HashMap<Vec<String>, usize> = HashMap::new();
    let (mut twins, mut kept) = (Vec::new(), 0);
    for (b, block) in graph.blocks.iter().enumerate() {
        // The same operations over the same sizes in the same precisions.
        let one = |id: &NodeId| {
            let node = graph.node(*id);
            let shape = counts.shapes.get(id.index());
            format!("{:?} {shape:?} {:?}", node.op, model.precision.get(&node.name))
        };
        let kind: Vec<String> = block.nodes.iter().map(one).collect();
        let twin = *first.entry(kind).or_insert(b);
        if twin != b && !block.residual.is_empty() && kept >= least {
            twins.push((b, twin));
        } else {
            let bytes = |id: &NodeId| stored_bytes(&graph.node(*id).op, model.precision.get(&graph.node(*id).name));
            kept += block.nodes.iter().map(bytes).sum::<u64>();
        }
    }
    Ok(twins)
}

/// What was `measured` of some blocks, for all of `graph`'s.
fn whole(mut measured: Profile, model: &Model, twins: &[(usize, usize)]) -> Result<Profile> {
    let graph = &*model.graph;
    let place: HashMap<&str, usize> = graph.iter().map(|(id, n)| (n.name.as_str(), id.index())).collect();
    let within = |name: &str| graph.block_of(NodeId(*place.get(name)? as u32));
    let seen: f64 = measured.rows.iter().map(|r| r.latency.p50).sum();
    // What stays of a block that is left out, such as the activation behind its sum, is the twin's besides.
    let left_out: Vec<&str> = twins.iter().map(|(b, _)| graph.blocks[*b].name.as_str()).collect();
    measured.rows.retain(|r| within(&r.name).is_none_or(|b| !left_out.contains(&b.name.as_str())));
    let mut rows: Vec<(usize, LayerRow)> = Vec::new();
    for row in measured.rows {
        // A block's rows follow one another in the order in which they run.
        let first = |block: &Block| block.nodes.iter().map(|n| n.index()).min();
        let own = place.get(row.name.as_str()).copied().unwrap_or(usize::MAX);
        let block = within(&row.name);
        for (b, twin) in twins.iter().filter(|(_, t)| block.is_some_and(|block| graph.blocks[*t].name == block.name)) {
            let (block, like) = (&graph.blocks[*b], &graph.blocks[*twin]);
            let named = |name: &str| -> Option<String> {
                let at = like.nodes.iter().position(|n| graph.node(*n).name == name)?;
                Some(graph.node(*block.nodes.get(at)?).name.clone())
            };
            let Some(name) = named(&row.name) else { continue };
            let fused = row.fused.iter().filter_map(|f| named(f)).collect();
            let copy = LayerRow { name, fused, block: Some(block.name.clone()), ..row.clone() };
            rows.push((first(block).unwrap_or(own), copy));
        }
        rows.push((block.and_then(first).unwrap_or(own), row));
    }
    rows.sort_by_key(|(at, _)| *at);
    measured.rows = rows.into_iter().map(|(_, row)| row).collect();
    measured.share();
    let all: f64 = measured.rows.iter().map(|r| r.latency.p50).sum();
    let times = if seen > 0.0 { all / seen } else { 1.0 };
    let w = &mut measured.whole;
    for ms in [&mut w.p50, &mut w.p95, &mut w.mean, &mut w.min].into_iter().chain(w.p99.as_mut()) {
        *ms *= times;
    }
    let counts = Counts::of(graph, &KvFormat::decided(graph, &model.precision), measured.workload)?;
    measured.weight_bytes = measured.rows.iter().map(|r| r.weight_bytes).sum();
    measured.params = graph.live().map(|(_, n)| graph.params_of(n)).sum();
    measured.macs = counts.macs.iter().copied().sum();
    measured.cache_bytes = counts.cached.iter().sum();
    let (blocks, left_out) = (graph.blocks.len(), twins.len());
    measured.sampled = Some(Sampled { blocks, measured: blocks - left_out });
    measured.notes.push(format!(
        "{} of {blocks} blocks were measured, those of each kind that come first; the others are taken to be as fast, and the whole model's \
         latency is the sum",
        blocks - left_out
    ));
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::families::{CifarResnetSpec, FamilySpec};
    use crate::model::random;
    use crate::profile::{Ceilings, Watch};

    fn options() -> ProfileOptions {
        let ceilings = Some(Ceilings { f32_gflops: 100.0, int8_gops: 300.0, bandwidth_gbs: 10.0 });
        ProfileOptions { runs: 6, threads: Some(1), ceilings, watch: Watch::Quiet, ..ProfileOptions::default() }
    }

    #[test]
    fn every_row_is_there_with_its_own_counts() {
        let spec = CifarResnetSpec { blocks: 4, widths: [4, 8, 8], classes: 10, image: 16 };
        let model = random(&FamilySpec::CifarResnet(spec), 1);
        let cancel = Cancel::default();
        let all = profile(&model, &options(), &cancel, &mut |_| {}).unwrap();
        let some = of_at_least(0, &model, &options(), &cancel, &mut |_| {}).unwrap();
        // Of four blocks, the first of a stage may change its width, and the others are alike.
        assert_eq!(some.sampled, Some(Sampled { blocks: 12, measured: 5 }));
        // All that is not measured.
        let told = |p: &Profile| -> Vec<LayerRow> {
            let one = |r: &LayerRow| {
                let LayerRow { name, fused, block, weight_bytes, params, macs, out_shape, .. } = r.clone();
                LayerRow { name, fused, block, weight_bytes, params, macs, out_shape, ..LayerRow::default() }
            };
            p.rows.iter().map(one).collect()
        };
        assert_eq!(told(&some), told(&all));
        assert_eq!(
            (some.weight_bytes, some.params, some.macs, some.peak_activation_bytes),
            (all.weight_bytes, all.params, all.macs, all.peak_activation_bytes)
        );
        let ms = |name: &str| some.ms(some.rows.iter().find(|r| r.name == name).unwrap());
        assert_eq!(ms("layer1.1.conv1"), ms("layer1.3.conv1"));
        let sum: f64 = some.rows.iter().map(|r| some.ms(r)).sum();
        assert!((sum - some.whole.p50).abs() < 1e-9 * sum);
        assert!((some.rows.iter().map(|r| r.share).sum::<f64>() - 1.0).abs() < 1e-9);
        assert!(some.notes.iter().any(|n| n.starts_with("5 of 12 blocks were measured")), "{:?}", some.notes);
    }

    #[test]
    fn what_has_no_twins_is_measured_whole() {
        let spec = CifarResnetSpec { blocks: 1, widths: [4, 8, 8], classes: 10, image: 16 };
        let model = random(&FamilySpec::CifarResnet(spec), 1);
        let p = of_at_least(0, &model, &options(), &Cancel::default(), &mut |_| {}).unwrap();
        assert_eq!(
            (p.sampled, p.rows.len()),
            (None, profile(&model, &options(), &Cancel::default(), &mut |_| {}).unwrap().rows.len())
        );
    }

    #[test]
    fn what_a_cache_would_hold_is_measured_whole() {
        let spec = CifarResnetSpec { blocks: 4, widths: [4, 8, 8], classes: 10, image: 16 };
        let model = random(&FamilySpec::CifarResnet(spec), 1);
        let left = |least| twins(&model, Workload::Pass, least).unwrap().len();
        assert_eq!((left(0), left(COLD)), (7, 0));
        // A block of the first stage has two convolutions of 4 to 4 channels, and a scale and a shift of each channel.
        assert_eq!(left(3 * 2 * 4 * (4 * 4 * 9)), 5);
    }
}
