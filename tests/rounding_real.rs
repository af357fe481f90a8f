//! Learnt rounding to 4 bits a channel everywhere, on the published networks: right answers on CIFAR-10's test set, which it never saw.

mod common;

use paring::data;
use paring::eval::score_with;
use paring::exec::{Cancel, CompileOptions, Plan};
use paring::graph::Precision;
use paring::model::{LoadOptions, Model, load};
use paring::prune::{self, Action, Target};
use paring::quant;
use paring::recover::{RepairOptions, RepairUpdate, Stage, Stages, compress};

#[test]
fn learnt_rounding_answers_more_images_than_the_nearest() {
    let Some(real) = common::real() else { return };
    let full = common::full();
    let set = data::open(real.join("cifar10/test_batch.bin").to_str().unwrap(), if full { 0 } else { 2000 }).unwrap();
    let calib = data::open(real.join("cifar10/calib_5000.bin").to_str().unwrap(), 0).unwrap();
    // Least number of right answers more than rounded to the nearest, of the first 2,000 and of all.
    let bars = [("resnet20", [12, 110]), ("resnet56", [8, 80]), ("vit_cifar10", [8, 60])];
    // One network is enough for every day.
    for (name, more) in bars.into_iter().take(if full { 3 } else { 1 }) {
        let model = load(&real.join(format!("{name}/{name}.safetensors")), &LoadOptions::default()).unwrap();
        let groups = prune::groups(&model.graph);
        let w4 = Action::Precision { precision: Precision::W4 };
        let actions: Vec<_> =
            quant::choosable(&model.graph).iter().map(|n| (Target::Layer(n.name.clone()), w4.clone())).collect();
        let right = |model: &Model| {
            let plan = Plan::of(model, &CompileOptions::default()).unwrap();
            let run = |x: &candle_core::Tensor| plan.run(x);
            let scored = score_with(&set, &model.info.preprocess, 128, &Cancel::default(), run, &mut |_, _| {});
            scored.unwrap().correct().iter().filter(|c| **c).count()
        };
        let made = |stages: &[Stage]| {
            let stages = Stages::new(stages.to_vec()).unwrap();
            let usual = RepairOptions { stages, ..RepairOptions::default() };
            let options = if full { usual } else { RepairOptions { images: 1000, check_images: 250, ..usual } };
            let (mut tried, mut kept) = (0, 0);
            let mut say = |update| {
                if let RepairUpdate::Step(step) = update {
                    (tried, kept) = (tried + 1, kept + usize::from(step.kept));
                }
            };
            let model = compress(&model, &groups, &actions, &calib, &options, &Cancel::default(), &mut say).unwrap();
            (right(&model), tried, kept)
        };
        let (float, (nearest, ..)) = (right(&model), made(&[Stage::Apply]));
        let (learnt, tried, kept) = made(&[Stage::Apply, Stage::Round]);
        println!(
            "{name}: of {} right: f32 {float}, w4 to the nearest {nearest}, learnt {learnt} ({kept} of {tried} layers kept)",
            set.len()
        );
        assert_eq!(tried, quant::choosable(&model.graph).len());
        assert!(learnt >= nearest + more[usize::from(full)], "{name}: {nearest} {learnt}");
    }
}
