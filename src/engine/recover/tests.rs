//! Stages: lists of them are what they say, and each is left out where a list does not have it.

use super::*;
use crate::data::{self, Dataset};
use crate::exec::Cancel;
use crate::graph::Precision;
use crate::model::families::{CifarResnetSpec, FamilySpec, VitDims, VitSpec};
use crate::model::{self, Model};
use crate::prune::{self, Action, Group, Target};

/// A small network, every free group of it cut in half, and one layer in static int8.
struct Rig {
    model: Model,
    groups: Vec<Group>,
    actions: Vec<(Target, Action)>,
    calib: Dataset,
}

impl Rig {
    fn new() -> Rig {
        let spec = CifarResnetSpec { blocks: 1, widths: [4, 8, 8], classes: 10, image: 32 };
        let model = model::random(&FamilySpec::CifarResnet(spec), 4);
        let groups = prune::groups(&model.graph);
        let half = |g: &Group| {
            let kept: Vec<u32> = (0..g.size as u32).step_by(2).collect();
            (Target::Group(g.id.clone()), Action::Prune { ratio: g.ratio_of(kept.len()), kept })
        };
        let mut actions: Vec<_> = groups.iter().filter(|g| g.protected.is_none()).map(half).collect();
        let precision = Action::Precision { precision: Precision::Int8Static };
        actions.push((Target::Layer("layer2.0.conv2".to_owned()), precision));
        Rig { model, groups, actions, calib: data::open("synthetic:calib", 60).expect("drawn") }
    }

    /// What these stages make, with their judged steps without the time that they took, and what was looked at.
    fn made(&self, stages: &[Stage]) -> (Model, Vec<RepairStep>, RepairUse) {
        let stages = Stages::new(stages.to_vec()).expect("a list");
        self.with(&RepairOptions { stages, ..options() }, &Cancel::default(), &mut |_| {}).expect("made")
    }

    fn with(
        &self,
        options: &RepairOptions,
        cancel: &Cancel,
        say: &mut dyn FnMut(&RepairUpdate),
    ) -> Result<(Model, Vec<RepairStep>, RepairUse), RepairError> {
        let (mut steps, mut used) = (Vec::new(), RepairUse::default());
        let mut hear = |update| {
            say(&update);
            match update {
                RepairUpdate::Progress { .. } => {}
                RepairUpdate::Step(step) => steps.push(RepairStep { seconds: 0.0, ..step }),
                RepairUpdate::Used(u) => used = u,
            }
        };
        let Rig { model, groups, actions, calib } = self;
        let model = compress(model, groups, actions, calib, options, cancel, &mut hear)?;
        Ok((model, steps, used))
    }
}

fn options() -> RepairOptions {
    RepairOptions { images: 40, check_images: 12, range_images: 16, ..RepairOptions::default() }
}

#[test]
fn a_list_without_a_stage_skips_it_and_the_usual_list_has_them_all() {
    use Stage::{Apply, BatchNorm, Ranges, Refit, Round};
    let rig = Rig::new();
    let refits = |steps: &[RepairStep]| steps.iter().filter(|s| s.name.starts_with("refit ")).count();

    let (plain, steps, used) = rig.made(&[Apply]);
    let cut = prune::apply(&rig.model, &rig.groups, &rig.actions).expect("applied");
    assert_eq!((plain.params.hash(), plain.info.hash), (cut.params.hash(), cut.info.hash));
    assert!(steps.is_empty() && used == RepairUse::default() && plain.precision.inputs.is_empty());

    let (ranged, steps, used) = rig.made(&[Apply, Ranges]);
    assert_eq!(ranged.params.hash(), cut.params.hash());
    assert!(steps.is_empty() && (used.fitted, used.ranged) == (0, 16) && ranged.precision.inputs.len() == 1);

    let (normed, steps, used) = rig.made(&[Apply, BatchNorm]);
    assert_eq!((refits(&steps), steps.len()), (0, 1), "{steps:?}");
    assert!((used.fitted, used.checked, used.ranged) == (40, 12, 0) && normed.precision.inputs.is_empty());

    let (refitted, fits, _) = rig.made(&[Apply, Refit]);
    assert!(refits(&fits) == fits.len() && fits.iter().any(|s| s.kept), "{fits:?}");
    assert_ne!(refitted.params.hash(), cut.params.hash());

    let usual = rig.with(&options(), &Cancel::default(), &mut |_| {}).expect("made");
    let (whole, steps, used) = &usual;
    let (named, again, looked) = rig.made(&[Apply, Refit, BatchNorm, Round, Ranges]);
    assert_eq!(
        (whole.params.hash(), &whole.precision, steps, used),
        (named.params.hash(), &named.precision, &again, &looked)
    );
    assert_eq!(steps[..fits.len()], fits[..], "the same re-fits, then");
    let then = steps[fits.len()..].iter().map(|s| s.name.as_str()).collect::<Vec<_>>();
    assert_eq!(then, ["re-estimate batch norm", "round layer2.0.conv2"]);
    assert!((used.fitted, used.checked, used.ranged) == (40, 12, 16) && used.hash.is_some());
    assert_eq!(whole.info.hash, whole.params.hash());
}

#[test]
fn a_stage_can_be_interrupted_and_none_begins_after_that() {
    let rig = Rig::new();
    for at in ["refit ", "re-estimate", "round ", "int8 ranges"] {
        let cancel = Cancel::default();
        let mut after = Vec::new();
        let mut say = |update: &RepairUpdate| {
            if let RepairUpdate::Progress { what, .. } = update {
                if cancel.is_cancelled() {
                    after.push(what.clone());
                }
                if what.starts_with(at) {
                    cancel.cancel();
                }
            }
        };
        let stopped = rig.with(&options(), &cancel, &mut say);
        assert!(matches!(stopped, Err(RepairError::Cancelled(_))), "{at}");
        assert!(after.is_empty(), "{at}: {after:?}");
    }
}

#[test]
fn progress_counts_the_repairs_that_are_tried() {
    let mut seen = Vec::new();
    let mut say = |update: &RepairUpdate| match update {
        RepairUpdate::Progress { done, total, what } if !what.starts_with("int8") => seen.push((*done, *total)),
        _ => {}
    };
    Rig::new().with(&options(), &Cancel::default(), &mut say).expect("made");
    let total = seen.len();
    assert_eq!(seen, (0..total).map(|done| (done, total)).collect::<Vec<_>>());
}

#[test]
fn lists_are_plain_data_and_recipes_without_them_mean_what_they_meant() {
    let usual = RepairOptions::default();
    let text = serde_json::to_string(&usual).expect("JSON");
    assert!(text.contains(r#""stages":["apply","refit","batch_norm","round","ranges"]"#), "{text}");
    assert_eq!(serde_json::from_str::<RepairOptions>(&text).expect("read"), usual);

    // As recipes were written before.
    let old = |refit: bool, batch_norm: bool| {
        let text = format!(
            r#"{{"seed":0,"images":4000,"check_images":500,"positions":48,"lambda":0.001,"refit":{refit},"producers":false,
            "classifier":true,"batch_norm":{batch_norm},"memory":1073741824,"ranges":"mse","range_images":512}}"#
        );
        serde_json::from_str::<RepairOptions>(&text).expect("read")
    };
    // They rounded to the nearest, and masks went by magnitude.
    let masks = prune::Masks::Magnitude;
    let without = |stages| RepairOptions { stages, masks, ..RepairOptions::default() };
    let nearest = || Stages::default().without(Stage::Round);
    assert_eq!(old(true, true), without(nearest()));
    assert_eq!(old(false, true), without(nearest().without(Stage::Refit)));
    assert_eq!(old(true, false), without(nearest().without(Stage::BatchNorm)));

    assert_eq!(Stages::default().without(Stage::Apply), Stages::default());
    let late = r#"["apply","round","refit"]"#;
    for bad in
        ["[]", r#"["refit"]"#, r#"["refit","apply"]"#, r#"["apply","refit","refit"]"#, r#"["apply","fly"]"#, late]
    {
        let text = text.replace(r#"["apply","refit","batch_norm","round","ranges"]"#, bad);
        assert!(serde_json::from_str::<RepairOptions>(&text).is_err(), "{bad}");
    }
}

/// Every layer in `precision` and nothing cut; masks of half of each row's inputs where `masked`.
fn rounds(spec: &FamilySpec, precision: Precision, masked: bool) -> Rig {
    let model = model::random(spec, 4);
    let layers: Vec<String> = crate::quant::choosable(&model.graph).iter().map(|n| n.name.clone()).collect();
    let mut actions: Vec<_> =
        layers.iter().map(|n| (Target::Layer(n.clone()), Action::Precision { precision })).collect();
    if masked {
        let sparsity = prune::Sparsity::NofM { n: 2, m: 4 };
        actions.extend(layers.into_iter().map(|n| (Target::Weights(n), Action::Sparsify { sparsity })));
    }
    let groups = prune::groups(&model.graph);
    Rig { model, groups, actions, calib: data::open("synthetic:calib", 120).expect("drawn") }
}

fn resnet() -> FamilySpec {
    FamilySpec::CifarResnet(CifarResnetSpec { blocks: 1, widths: [4, 8, 8], classes: 10, image: 32 })
}

fn vit() -> FamilySpec {
    let dims = VitDims { image: 32, patch: 8, dim: 32, depth: 1, heads: 2, mlp: 64, classes: 10 };
    FamilySpec::TorchVit(VitSpec::torch(dims))
}

#[test]
fn rounding_is_learnt_layer_by_layer_and_stays_where_the_loss_falls() {
    use Stage::{Apply, Round};
    let rig = rounds(&resnet(), Precision::W4, false);
    let (nearest, none, _) = rig.made(&[Apply]);
    let (learnt, steps, used) = rig.made(&[Apply, Round]);
    assert!(none.is_empty() && used.fitted > 0 && used.checked > 0 && !used.checked_on_fitted);
    let names: Vec<&str> = steps.iter().map(|s| s.name.as_str()).collect();
    let layers: Vec<String> =
        crate::quant::choosable(&rig.model.graph).iter().map(|n| format!("round {}", n.name)).collect();
    assert_eq!(names, layers);
    assert!(steps.iter().all(|s| s.kept == (s.loss_after < s.loss_before) && s.samples > 0));
    assert!(steps.iter().filter(|s| s.kept).count() > layers.len() / 2, "{steps:?}");
    // What is kept is stored as it was learnt, also when it is written and read again; what is not is as the checkpoint has it.
    for (step, name) in steps.iter().zip(&layers) {
        let weight = format!("{}.weight", name.trim_start_matches("round "));
        let (old, new) = (rig.model.params.get(&weight).unwrap(), learnt.params.get(&weight).unwrap());
        assert_eq!(new.as_int4().is_some(), step.kept, "{name}");
        let plain = old.stored_in(Precision::W4.weights());
        assert_eq!(new.as_int4().is_some_and(|q| Some(q) != plain.as_int4()), step.kept, "{name}");
    }
    assert_eq!(
        (learnt.info.hash, &learnt.graph, &learnt.precision),
        (learnt.params.hash(), &nearest.graph, &nearest.precision)
    );
    // The same again, to the bit.
    let (again, same, _) = rig.made(&[Apply, Round]);
    assert_eq!((again.params.hash(), same), (learnt.params.hash(), steps));
}

/// Weights that share values, too.
#[test]
fn shared_values_are_learnt_where_the_loss_falls() {
    let rig = rounds(&resnet(), Precision::Lut3, false);
    let (learnt, steps, _) = rig.made(&[Stage::Apply, Stage::Round]);
    assert!(steps.iter().filter(|s| s.kept).count() * 2 > rig.actions.len(), "{steps:?}");
    for step in steps {
        let weight = format!("{}.weight", step.name.trim_start_matches("round "));
        assert_eq!(learnt.params.get(&weight).unwrap().as_codebook().is_some(), step.kept, "{weight}");
    }
}

/// Its walk stops at layers that are rounded themselves.
#[test]
fn rounding_is_learnt_where_no_norm_follows_a_layer() {
    let rig = rounds(&vit(), Precision::W4, false);
    let (_, steps, _) = rig.made(&[Stage::Apply, Stage::Round]);
    assert_eq!(steps.len(), rig.actions.len());
    assert!(steps.iter().filter(|s| s.kept).count() > 1, "{steps:?}");
}

#[test]
fn masks_stay_zero_when_rounding_is_learnt() {
    let rig = rounds(&resnet(), Precision::W4g32, true);
    let (learnt, steps, _) = rig.made(&[Stage::Apply, Stage::Round]);
    let (masked, _, _) = rig.made(&[Stage::Apply]);
    assert!(steps.iter().any(|s| s.kept));
    for (_, node) in learnt.graph.live().filter(|(_, n)| n.op.is_conv_or_linear()) {
        let weight = node.param(crate::graph::ParamRole::Weight).unwrap();
        let (was, is) = (masked.params.get(weight).unwrap().values(), learnt.params.get(weight).unwrap().values());
        assert!(was.iter().zip(is.iter()).all(|(was, is)| *was != 0.0 || *is == 0.0), "{weight}");
    }
}

#[test]
fn formats_of_ggml_are_rounded_all_at_once_by_importance_and_with_gptq() {
    let block = crate::graph::ggml::Block::Q4_0;
    let mut rig = rounds(&vit(), Precision::Block(block), false);
    let fits = |name: &str| {
        let node = rig.model.graph.node(rig.model.graph.by_name(name).unwrap());
        Precision::Block(block).unfit(&node.op).is_none()
    };
    rig.actions.retain(|(t, _)| fits(t.name()));
    let (learnt, steps, _) = rig.made(&[Stage::Apply, Stage::Round]);
    let n = rig.actions.len();
    let names = ["by importance", "with GPTQ"].map(|how| format!("round {n} weights {how}"));
    assert_eq!(steps.iter().map(|s| s.name.clone()).collect::<Vec<_>>(), names);
    // Each is beside the best so far.
    let best = if steps[0].kept { steps[0].loss_after } else { steps[0].loss_before };
    assert_eq!(steps[1].loss_before, best);
    assert!(steps[1].kept && steps[1].loss_after < best, "{steps:?}");
    for (target, _) in &rig.actions {
        let node = learnt.graph.node(learnt.graph.by_name(target.name()).unwrap());
        let weight = learnt.params.get(node.param(crate::graph::ParamRole::Weight).unwrap()).unwrap();
        assert!(weight.as_blocks().is_some_and(|(b, _)| b == block), "{}", target.name());
    }
    // The same again, to the bit.
    let (again, _, _) = rig.made(&[Stage::Apply, Stage::Round]);
    assert_eq!(again.params.hash(), learnt.params.hash());
}

/// Factors that know what layers read are nearer to the original than those of the weights alone, and two layers come out, each with its
/// own range where the layer was in static int8.
#[test]
fn factors_know_what_layers_read() {
    use Stage::{Apply, Ranges, Refit};
    let mut rig = Rig::new();
    rig.actions.retain(|(target, _)| matches!(target, Target::Layer(_)));
    for name in ["layer1.0.conv2", "layer2.0.conv2", "layer3.0.conv1", "linear"] {
        rig.actions.push((Target::Weights(name.to_owned()), Action::Factorise { rank: 3 }));
    }
    let (plain, steps, _) = rig.made(&[Apply]);
    assert!(steps.is_empty());
    let (made, steps, used) = rig.made(&[Apply, Refit, Ranges]);
    let names: Vec<&str> = steps.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(
        names,
        ["layer1.0.conv2", "layer2.0.conv2", "layer3.0.conv1", "linear"].map(|n| format!("factors of {n}"))
    );
    assert!(steps.iter().all(|s| s.samples > 0 && (!s.kept || s.loss_after < s.loss_before)), "{steps:?}");
    assert!(steps.iter().filter(|s| s.kept).count() >= 3, "{steps:?}");
    assert!(used.fitted > 0 && used.ranged == 16);
    for model in [&plain, &made] {
        assert_eq!(model.graph.factored().len(), 4);
    }
    let ranged: Vec<&String> = made.precision.inputs.keys().collect();
    assert_eq!(ranged, ["layer2.0.conv2", "layer2.0.conv2.0"]);
    assert_ne!(plain.params.hash(), made.params.hash());
    let (again, ..) = rig.made(&[Apply, Refit, Ranges]);
    assert_eq!(again.info.hash, made.info.hash, "a function of what it is made of");
    // With cuts and few bits besides, rounding leaves alone what becomes two.
    let mut rig = Rig::new();
    rig.actions.push((Target::Weights("layer3.0.conv2".to_owned()), Action::Factorise { rank: 2 }));
    for name in ["layer3.0.conv2", "layer1.0.conv1"] {
        rig.actions.push((Target::Layer(name.to_owned()), Action::Precision { precision: Precision::W4 }));
    }
    // Cut to half its inputs, 4 x 18 weights are no more than factors of rank 3 have; uncut they are.
    rig.actions.push((Target::Weights("layer1.0.conv2".to_owned()), Action::Factorise { rank: 3 }));
    let (made, steps, _) = rig.made(&[Apply, Refit, Stage::BatchNorm, Stage::Round]);
    assert_eq!(made.graph.factored().len(), 1);
    assert!(steps.iter().any(|s| s.name == "round layer1.0.conv1"), "{steps:?}");
    assert!(!steps.iter().any(|s| s.name == "round layer3.0.conv2"), "{steps:?}");
    let of = |name: &str| made.precision.get(name);
    assert_eq!((of("layer3.0.conv2"), of("layer3.0.conv2.0")), (Precision::W4, Precision::W4));
}
