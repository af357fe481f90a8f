//! Healing small networks on the synthetic images.

use super::*;
use crate::data;
use crate::graph::{Precision, Precisions};
use crate::model::families::{CifarResnetSpec, FamilySpec, VitDims, VitSpec};
use crate::model::{Param, random};
use crate::train::Optimiser;
use rand::{Rng, SeedableRng};

/// A network and the same with weights that were shaken, and images.
struct Rig {
    teacher: Model,
    student: Model,
    images: Dataset,
    fit: Vec<usize>,
    held_back: Vec<usize>,
    masked: BTreeSet<String>,
}

impl Rig {
    fn of(spec: &FamilySpec) -> Rig {
        let mut teacher = random(spec, 5);
        // Random weights answer nearly alike whatever they see.
        let head = teacher.graph.node(teacher.graph.output).param(ParamRole::Weight).expect("a classifier").to_owned();
        let sure = teacher.params.get(&head).expect("it").values().iter().map(|v| v * 40.0).collect();
        teacher.params.set(&head, sure).expect("it");
        let mut student = teacher.clone();
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(1);
        for (_, node) in teacher.graph.live().filter(|(_, n)| n.op.is_conv_or_linear()) {
            let name = node.param(ParamRole::Weight).expect("a weight");
            let param = teacher.params.get(name).expect("it");
            let shaken = param.values().iter().map(|v| v * (1.0 + rng.random_range(-0.4..0.4))).collect();
            student.params.insert(name, Param::owned(param.shape().to_vec(), shaken).expect("it"));
        }
        student.info.hash = student.params.hash();
        let images = data::open("synthetic:calib", 150).expect("drawn");
        let (fit, held_back) = ((0..100).collect(), (100..150).collect());
        Rig { teacher, student, images, fit, held_back, masked: BTreeSet::new() }
    }

    fn patient(&self) -> Patient<'_> {
        let Rig { teacher, student, images, fit, held_back, masked } = self;
        Patient { student, teacher, masked, images, fit, judges: images, held_back }
    }

    fn healed(&self, how: &Healing) -> Healed {
        heal(self.patient(), how, None, &Cancel::default(), &Cancel::default(), &mut |_| ()).expect("healed")
    }
}

fn resnet() -> FamilySpec {
    FamilySpec::CifarResnet(CifarResnetSpec { blocks: 1, widths: [4, 8, 8], classes: 10, image: 32 })
}

fn vit() -> FamilySpec {
    FamilySpec::TorchVit(VitSpec::torch(VitDims {
        image: 32,
        patch: 8,
        dim: 24,
        depth: 1,
        heads: 2,
        mlp: 48,
        classes: 10,
    }))
}

fn how(steps: u32, convolutional: bool) -> Healing {
    Healing { batch: 50, rate: 0.01, average: 0.9, warmup: 1, ..Healing::usual(steps, convolutional, 3) }
}

#[test]
fn a_network_comes_nearer_to_its_original_and_every_time_the_same() {
    for (spec, convolutional) in [(resnet(), true), (vit(), false)] {
        let rig = Rig::of(&spec);
        let how = Healing { rate: if convolutional { 0.01 } else { 2e-3 }, ..how(60, convolutional) };
        let made = rig.healed(&how);
        let (first, best) = (made.course.looks[0], made.course.best);
        assert!(best.step > 0 && best.loss < 0.8 * first.loss, "{first:?} {best:?}");
        assert_eq!((made.course.images, made.course.held_back), (100, 50));
        assert_eq!(made.model.info.hash, rig.healed(&how).model.info.hash);
        assert_ne!(made.model.info.hash, rig.healed(&Healing { seed: 4, ..how.clone() }).model.info.hash);
        if convolutional {
            let other = rig.healed(&Healing { stored_norms: false, ..how.clone() });
            let var = |m: &Model| m.params.get("bn1.running_var").expect("it").values().into_owned();
            assert_eq!(var(&made.model), var(&rig.student));
            assert!(other.course.best.step == 0 || var(&other.model) != var(&rig.student));
        }
        let labels = rig.healed(&Healing { objective: Objective::Labels, ..how });
        assert_ne!(made.model.info.hash, labels.model.info.hash);
        // Judged by what it makes small: answers to images laid over one another move away from the original's.
        let (first, best) = (labels.course.looks[0], labels.course.best);
        assert!(best.step > 0 && best.loss < 0.9 * first.loss, "{first:?} {best:?}");
    }
}

#[test]
fn what_was_stopped_at_any_step_ends_as_if_it_had_not_been() {
    let rig = Rig::of(&resnet());
    for optimiser in [Optimiser::Sgd, Optimiser::AdamW] {
        let how = Healing { rate: 2e-3, optimiser, ..how(12, true) };
        let whole = rig.healed(&how);
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("state");
        let keep = Some(Keep { path: &path, every: Duration::ZERO });
        // Left again and again, after one or two steps.
        let mut from = Vec::new();
        let made = loop {
            let cancel = Cancel::default();
            let mut left = 1 + from.len() % 2;
            let made = heal(rig.patient(), &how, keep, &Cancel::default(), &cancel, &mut |u| match u {
                HealUpdate::Resumed { step, .. } => from.push(step),
                HealUpdate::Step { .. } => {
                    left -= 1;
                    if left == 0 {
                        cancel.cancel();
                    }
                }
                _ => {}
            });
            match made {
                Err(TrainError::Cancelled(_)) => {}
                made => break made.expect("healed"),
            }
        };
        assert!(from.len() > 5 && from.is_sorted(), "{from:?}");
        assert_eq!(made.model.info.hash, whole.model.info.hash);
        assert_eq!(made.course, whole.course);
        // Another recipe does not go on with it.
        let other = Healing { seed: 9, ..how };
        heal(rig.patient(), &other, keep, &Cancel::default(), &Cancel::default(), &mut |u| {
            assert!(!matches!(u, HealUpdate::Resumed { .. }));
        })
        .expect("healed");
    }
}

#[test]
fn layers_tell_what_their_gradients_do_up_to_the_last_step() {
    let rig = Rig::of(&resnet());
    let how = how(9, true);
    let (mut told, mut steps) = (Vec::new(), 0);
    let (none, began) = (Cancel::default(), Instant::now());
    heal(rig.patient(), &how, None, &none, &none, &mut |u| match u {
        HealUpdate::Layers { step, layers } => {
            assert_eq!(step, steps, "of the step that was just taken");
            told.push((step, layers));
        }
        HealUpdate::Step { step, .. } => steps = step,
        _ => {}
    })
    .expect("healed");
    let (Some((first, _)), Some((last, layers))) = (told.first(), told.last()) else { panic!("nothing was told") };
    assert!(*first == 1 && *last == 9, "{first} {last}");
    let weights = rig.student.graph.live().filter(|(_, n)| n.param(ParamRole::Weight).is_some()).count();
    assert_eq!(layers.len(), weights);
    for l in layers.iter() {
        assert!(l.gradient > 0.0 && l.importance > 0.0 && l.weight > 0.0 && l.moved > 0.0, "{l:?}");
        // Parts of 32 and 18 images.
        assert!(l.spread.is_some_and(|s| s.variance > 0.0) && l.fisher().is_some_and(|f| f > 0.0), "{l:?}");
    }
    // A few times a second: the first, the last, and four in each second between.
    assert!(told.len() as u128 <= 2 + began.elapsed().as_millis() / 250, "{}", told.len());
}

#[test]
fn enough_keeps_the_best_so_far_and_a_recipe_that_says_so_makes_it_again() {
    let rig = Rig::of(&resnet());
    let how = how(40, true);
    let enough = Cancel::default();
    let made = heal(rig.patient(), &how, None, &enough, &Cancel::default(), &mut |u| {
        if matches!(u, HealUpdate::Step { step: 7, .. }) {
            enough.cancel();
        }
    })
    .expect("healed");
    assert_eq!(made.course.healing.stopped, Some(7));
    assert!(made.course.looks.last().is_some_and(|l| l.step == 7));
    assert_eq!(rig.healed(&made.course.healing).model.info.hash, made.model.info.hash);
}

#[test]
fn losses_that_are_no_numbers_and_disks_without_room_end_in_words() {
    let rig = Rig::of(&resnet());
    let wild = Healing { rate: 1e30, clip: 1e30, warmup: 0, ..how(10, true) };
    let made = heal(rig.patient(), &wild, None, &Cancel::default(), &Cancel::default(), &mut |_| ());
    match made {
        Err(e @ TrainError::Diverged { .. }) => assert!(e.to_string().contains("lower the learning rate"), "{e}"),
        Ok(made) => assert_eq!(made.model.info.hash, rig.student.info.hash),
        Err(e) => panic!("{e}"),
    }
    let keep = Some(Keep { path: Path::new("/proc/nothing/here"), every: Duration::ZERO });
    let mut said = Vec::new();
    let made = heal(rig.patient(), &how(6, true), keep, &Cancel::default(), &Cancel::default(), &mut |u| {
        if let HealUpdate::Warned(words) = u {
            said.push(words);
        }
    });
    assert!(made.is_ok() && said.len() == 1 && said[0].contains("space"), "{said:?}");
}

#[test]
fn masks_stay_and_weights_are_seen_as_they_are_stored() {
    let mut rig = Rig::of(&resnet());
    let layer = "layer1.0.conv1";
    let name = format!("{layer}.weight");
    let param = rig.student.params.get(&name).expect("it").clone();
    let zeros: Vec<f32> = param.values().iter().enumerate().map(|(i, v)| if i % 2 == 0 { 0.0 } else { *v }).collect();
    rig.student.params.insert(name.clone(), Param::owned(param.shape().to_vec(), zeros).expect("it"));
    assert_eq!(masked(&rig.student).into_iter().collect::<Vec<_>>(), [layer]);
    rig.masked = masked(&rig.student);
    let made = rig.healed(&how(12, true));
    let after = made.model.params.get(&name).expect("it").values().into_owned();
    assert!(after.iter().enumerate().all(|(i, v)| (i % 2 == 0) == (*v == 0.0)));
    // Four bits: what is judged is what is stored.
    let mut precision = Precisions::default();
    for (_, node) in rig.student.graph.live().filter(|(_, n)| n.op.is_conv_or_linear()) {
        precision.set(&node.name, Precision::W4);
    }
    rig.student.precision = precision;
    rig.masked = BTreeSet::new();
    let made = rig.healed(&how(60, true));
    assert!(made.course.best.loss < made.course.looks[0].loss);
    let stored = made.model.params.get(&name).expect("it").stored_in(Precision::W4.weights());
    assert!(stored.as_int4().is_some());
}

/// Han et al. 2016: which weights share a value stays, the values are what is learnt.
#[test]
fn shared_values_are_learnt_and_stay_shared() {
    let mut rig = Rig::of(&resnet());
    let layers: Vec<String> =
        rig.student.graph.live().filter(|(_, n)| n.op.is_conv_or_linear()).map(|(_, n)| n.name.clone()).collect();
    rig.student.precision = layers.iter().map(|name| (name.as_str(), Precision::Lut3)).collect();
    let made = rig.healed(&how(60, true));
    assert!(made.course.best.loss < made.course.looks[0].loss);
    for layer in layers {
        let of = |model: &Model| {
            let param = model.params.get(&format!("{layer}.weight")).expect("it").clone();
            let stored = param.stored_in(Precision::Lut3.weights());
            let same = param.values() == stored.values();
            (stored.as_codebook().expect("shared").clone(), same)
        };
        let ((before, _), (after, same)) = (of(&rig.student), of(&made.model));
        assert!(same, "{layer}: what came out is what is stored");
        assert_ne!(before.values, after.values);
        // Weights that were one are one.
        let (from, to) = (before.dequantize(), after.dequantize());
        let mut became = std::collections::BTreeMap::new();
        for (a, b) in from.iter().zip(&to) {
            assert_eq!(became.entry(a.to_bits()).or_insert(*b), b, "{layer}");
        }
    }
}

#[test]
fn what_cannot_be_healed_is_refused_in_words() {
    let rig = Rig::of(&resnet());
    let none = Patient { held_back: &[], ..rig.patient() };
    let said = heal(none, &how(3, true), None, &Cancel::default(), &Cancel::default(), &mut |_| ());
    assert!(said.is_err_and(|e| e.to_string().contains("too few")));
    let length =
        |l: &str| steps(rig.patient(), &how(1, true), l.parse().expect("a length"), &Cancel::default()).expect("steps");
    assert_eq!((length("7 steps"), length("3 epochs")), (7, 6));
    assert!(length("20s") > 1);
}

/// Mean squared difference of what the last layer reads, between the original and `model`, on held-back images as they are.
fn features_apart(rig: &Rig, model: &Model, node: &str) -> f64 {
    let (x, _) = rig.images.batch(&rig.held_back, &model.info.preprocess).expect("images");
    let of = |m: &Model| {
        let plan = Plan::of(m, &CompileOptions::default().keeping([node])).expect("compiles");
        said(&mut plan.session(), &x, Some(node)).expect("runs").features
    };
    let (own, theirs) = (of(model), of(&rig.teacher));
    own.iter().zip(&theirs).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>() / own.len() as f64
}

#[test]
fn features_come_nearer_too_where_they_count() {
    let rig = Rig::of(&resnet());
    let found = Features::of(&rig.student.graph, &rig.teacher.graph).expect("the same network");
    // Before the average over places: 8 channels of 8 by 8.
    assert_eq!(found.size, 8 * 8 * 8);
    let answers = rig.healed(&Healing { features: 0.0, ..how(60, true) });
    let both = rig.healed(&Healing { features: 30.0, ..how(60, true) });
    let apart = |m: &Model| features_apart(&rig, m, &found.theirs);
    let [before, alone, with] = [&rig.student, &answers.model, &both.model].map(apart);
    assert!(with < 0.9 * alone && with < before, "{before} {alone} {with}");
    // Of a network of other widths there are answers alone.
    let wider =
        random(&FamilySpec::CifarResnet(CifarResnetSpec { blocks: 1, widths: [4, 8, 12], classes: 10, image: 32 }), 5);
    assert_eq!(Features::of(&rig.student.graph, &wider.graph), None);
    // A transformer's: what the head reads.
    let vit = Rig::of(&vit());
    assert_eq!(Features::of(&vit.student.graph, &vit.teacher.graph).map(|f| f.size), Some(24));
}
