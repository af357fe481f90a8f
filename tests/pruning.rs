//! The property that structured pruning stands on, over every group of every family: a model whose pruned units are
//! zeroed equals the pruned model. Also block removal, and the groups that known networks must have.

mod common;

use common::zeroed::{check, close, logits, prunable, some_units, zero};
use paring::graph::{Graph, ParamRole};
use paring::model;
use paring::model::families::{CifarResnetSpec, FamilySpec, ResnetBlock, ResnetSpec, ResnetStage, VitDims, VitSpec};
use paring::prune::{self, Action, Group, GroupKind, PruneError, Target};
use proptest::prelude::*;

fn specs() -> Vec<(&'static str, FamilySpec)> {
    let dims = VitDims { image: 16, patch: 4, dim: 24, depth: 2, heads: 4, mlp: 32, classes: 5 };
    let resnet = |block, inner: [usize; 4], outer: [usize; 4], depths: [usize; 4]| {
        FamilySpec::Resnet(ResnetSpec {
            block,
            stages: ResnetStage::usual(&depths, &inner, &outer),
            stem: 8,
            groups: 1,
            classes: 5,
            image: 32,
            ..ResnetSpec::depth(18, 5).unwrap()
        })
    };
    vec![
        ("cifar", FamilySpec::CifarResnet(CifarResnetSpec { blocks: 2, widths: [16, 32, 64], classes: 5, image: 16 })),
        ("basic", resnet(ResnetBlock::Basic, [8, 16, 24, 32], [8, 16, 24, 32], [2, 1, 1, 2])),
        ("bottleneck", resnet(ResnetBlock::Bottleneck, [8, 8, 16, 16], [16, 32, 32, 64], [2, 2, 1, 1])),
        ("torch", FamilySpec::TorchVit(VitSpec::torch(dims.clone()))),
        ("hf", FamilySpec::Vit(VitSpec::hugging_face(dims.clone()))),
        ("deit", FamilySpec::Vit(VitSpec { qkv_bias: false, ..VitSpec::hugging_face_deit(dims.clone()) })),
        ("timm", FamilySpec::Vit(VitSpec::timm(dims.clone()))),
        ("timm mean", FamilySpec::Vit(VitSpec { qkv_bias: false, ..VitSpec::timm_mean(dims) })),
    ]
}

#[test]
fn zeroed_equals_pruned_for_every_group_of_every_family() {
    for (name, spec) in specs() {
        let m = model::random(&spec, 11);
        let groups = prune::groups(&m.graph);
        let open = prunable(&groups);
        assert!(open.len() >= 2, "{name}: {groups:?}");
        for g in open {
            for (i, part) in [0.2, 0.5, 0.85].into_iter().enumerate() {
                let n = (groups[g].size as f64 * (1.0 - part)).round() as usize;
                let kept = some_units(groups[g].size, n, g as u64 * 31 + i as u64);
                check(&m, &groups, &[(g, kept)], &format!("{name}, group {}, {part}", groups[g].id));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn zeroed_equals_pruned_for_several_groups_at_once(
        family in 0usize..8, seed in 0u64..1000, ratios in prop::collection::vec(0.0f64..0.95, 40), skip in 0u64..4,
    ) {
        let (name, spec) = specs().swap_remove(family);
        let m = model::random(&spec, seed);
        let groups = prune::groups(&m.graph);
        let cuts: Vec<(usize, Vec<u32>)> = prunable(&groups)
            .into_iter()
            .filter(|g| !(*g as u64 + seed).is_multiple_of(skip + 2))
            .map(|g| {
                let n = (groups[g].size as f64 * (1.0 - ratios[g % ratios.len()])).round() as usize;
                (g, some_units(groups[g].size, n, seed ^ g as u64))
            })
            .collect();
        check(&m, &groups, &cuts, &format!("{name}, seed {seed}, {cuts:?}"));
    }
}

#[test]
fn removing_a_block_equals_zeroing_its_branches() {
    for (name, spec) in specs() {
        let m = model::random(&spec, 5);
        let blocks: Vec<_> = m.graph.blocks.iter().filter(|b| !b.residual.is_empty()).cloned().collect();
        assert!(!blocks.is_empty(), "{name}");
        let all: Vec<usize> = (0..blocks.len()).collect();
        for set in all.iter().map(|&b| vec![b]).chain([all.clone()]) {
            let mut z = m.clone();
            for r in set.iter().flat_map(|&b| &blocks[b].residual) {
                let branch = m.graph.node(r.add).inputs.iter().find(|i| **i != r.skip).unwrap();
                let last = m.graph.node(*branch).clone();
                for role in [ParamRole::Weight, ParamRole::Bias] {
                    let tensor = last.param(role).unwrap_or_else(|| panic!("{name}: {last:?}"));
                    let rows = m.params.get(tensor).unwrap().shape()[0];
                    zero(&mut z, tensor, 0, &(0..rows).collect::<Vec<_>>());
                }
            }
            let actions: Vec<_> =
                set.iter().map(|&b| (Target::Block(blocks[b].name.clone()), Action::RemoveBlock)).collect();
            let cut = prune::apply(&m, &[], &actions).unwrap();
            close(&logits(&cut, 3), &logits(&z, 3), &format!("{name} without {set:?}"));
            assert!(cut.params.len() < m.params.len(), "{name}: the removed block's tensors are still there");
        }
    }
}

fn of(groups: &[Group], kind: GroupKind) -> Vec<&Group> {
    groups.iter().filter(|g| g.kind == kind && g.protected.is_none()).collect()
}

#[test]
fn resnet56_has_the_groups_that_its_drawing_shows() {
    let graph: Graph = FamilySpec::CifarResnet(CifarResnetSpec::depth(56, 10)).build().unwrap();
    let groups = prune::groups(&graph);
    let inner = of(&groups, GroupKind::Channels);
    assert_eq!(inner.len(), 27);
    assert!(inner.iter().all(|g| g.block.is_some()));
    let streams = of(&groups, GroupKind::Residual);
    assert_eq!(streams.iter().map(|g| (g.size, g.granule)).collect::<Vec<_>>(), [(16, 1), (32, 2), (64, 4)]);
    // An option-A shortcut gathers through its map, so it does not tie two streams together.
    assert_eq!(streams[0].id, "conv1");
    let why: Vec<&Group> = groups.iter().filter(|g| g.protected.is_some()).collect();
    assert_eq!(why.len(), 2, "the image and the classes: {why:?}");
}

#[test]
fn transformers_have_heads_neurons_and_a_protected_width() {
    for (name, spec) in specs().into_iter().skip(3) {
        let groups = prune::groups(&spec.build().unwrap());
        let heads = of(&groups, GroupKind::Heads);
        let neurons = of(&groups, GroupKind::Neurons);
        assert_eq!((heads.len(), neurons.len()), (2, 2), "{name}: {groups:?}");
        assert!(heads.iter().all(|g| g.size == 4 && g.granule == 1), "{name}");
        assert!(neurons.iter().all(|g| g.size == 32 && g.granule == 2), "{name}");
        assert!(of(&groups, GroupKind::Width).is_empty(), "{name}");
        let width = groups.iter().find(|g| g.kind == GroupKind::Width).unwrap_or_else(|| panic!("{name}"));
        assert!(width.protected.as_ref().unwrap().contains("layer norm"), "{name}");
    }
}

#[test]
fn ids_are_unique_and_members_name_real_axes() {
    for (name, spec) in specs() {
        let graph = spec.build().unwrap();
        let groups = prune::groups(&graph);
        let mut ids: Vec<&str> = groups.iter().map(|g| g.id.as_str()).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), groups.len(), "{name}");
        for m in groups.iter().flat_map(|g| &g.members) {
            assert!(graph.by_name(&m.node).is_some(), "{name}: {}", m.node);
        }
    }
}

#[test]
fn senseless_actions_are_refused_by_name() {
    let m = model::random(&specs()[0].1, 1);
    let groups = prune::groups(&m.graph);
    let g = of(&groups, GroupKind::Channels)[0];
    let one = |t: Target, a: Action| prune::apply(&m, &groups, &[(t, a)]).err();
    let prune = |ratio: f64, kept: &[u32]| Action::Prune { ratio, kept: kept.to_vec() };
    let group = || Target::Group(g.id.clone());
    assert!(matches!(one(group(), prune(1.0, &[])), Some(PruneError::Empty { .. })));
    assert!(matches!(one(group(), prune(f64::NAN, &[0])), Some(PruneError::Ratio { .. })));
    assert!(matches!(one(group(), prune(0.5, &[])), Some(PruneError::Unresolved { .. })));
    assert!(matches!(one(group(), prune(0.5, &[0, 99])), Some(PruneError::KeptRange { unit: 99, .. })));
    assert!(matches!(one(group(), prune(0.5, &[1, 1])), Some(PruneError::KeptOrder { unit: 1, .. })));
    assert!(matches!(one(group(), prune(0.5, &[2, 1])), Some(PruneError::KeptOrder { unit: 1, .. })));
    let classes = groups.iter().rfind(|g| g.protected.is_some() && g.size == 5).unwrap();
    let e = one(Target::Group(classes.id.clone()), prune(0.5, &[0])).unwrap();
    assert!(e.to_string().contains("hint:") && e.to_string().contains(&classes.id), "{e}");
    let e = one(Target::Group("layer1.0.conv".into()), prune(0.5, &[0])).unwrap();
    assert!(e.to_string().contains("did you mean `layer1.0.conv1`"), "{e}");
    let precision = || Action::Precision { precision: paring::quant::Precision::Int8 };
    assert!(matches!(one(Target::Layer("layer1.0.bn1".into()), precision()), Some(PruneError::NotQuantizable { .. })));
    assert!(matches!(one(Target::Layer("nowhere".into()), precision()), Some(PruneError::Unknown { .. })));
    assert!(matches!(one(group(), Action::RemoveBlock), Some(PruneError::Mismatch { .. })));
    let stuck = m.graph.blocks.iter().find(|b| b.residual.is_empty()).map(|b| b.name.clone()).unwrap();
    assert!(matches!(one(Target::Block(stuck), Action::RemoveBlock), Some(PruneError::NotRemovable { .. })));
    // Precisions land in the plan, and a later `Keep` withdraws an earlier decision.
    let conv = Target::Layer("layer1.0.conv1".into());
    let set = prune::apply(&m, &groups, &[(conv.clone(), precision())]).unwrap();
    assert_eq!(set.precision.get("layer1.0.conv1"), paring::quant::Precision::Int8);
    let back = prune::apply(&m, &groups, &[(group(), prune(0.5, &[0, 1])), (group(), Action::Keep)]).unwrap();
    assert_eq!(back.graph, m.graph);
}
