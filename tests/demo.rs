//! The bundled demo models are worth demonstrating on: good, but not so good that careless compression goes unseen.

use paring::data::{self, Dataset};
use paring::eval::{self, Scored};
use paring::exec::{Cancel, CompileOptions, Plan};
use paring::graph::MacConvention;
use paring::model::{LoadOptions, Model};
use paring::prune::{self, Action, Method, Target};
use paring::task::TaskError;
use paring::train::demo::{self, DemoModel};
use std::path::Path;

fn evaluate(model: &Model, data: &Dataset) -> Scored {
    let plan = Plan::of(model, &CompileOptions::default()).unwrap();
    let mut last = (0, 0);
    let mut progress = |done, total| last = (done, total);
    let prep = &model.info.preprocess;
    let run = eval::evaluate(&plan, data, prep, 100, &Cancel::default(), &mut progress).unwrap();
    assert_eq!(last, (data.len(), data.len()));
    run
}

/// Cuts every prunable group by half, smallest L2 first, and repairs nothing.
fn halved(model: &Model) -> Model {
    let groups = prune::groups(&model.graph);
    let mut actions = Vec::new();
    for g in groups.iter().filter(|g| g.protected.is_none()) {
        let scores = prune::importance(model, g, Method::L2, None).unwrap();
        let kept = prune::resolve(g, &scores, 0.5);
        actions.push((Target::Group(g.id.clone()), Action::Prune { ratio: 0.5, kept }));
    }
    assert!(actions.len() >= 4, "{}", actions.len());
    prune::apply(model, &groups, &actions).unwrap()
}

#[test]
fn baselines_are_in_range_and_careless_pruning_hurts() {
    let data = data::open("synthetic", 0).unwrap();
    for kind in [DemoModel::Vit, DemoModel::Cnn] {
        let model = demo::load(kind).unwrap();
        data.check_classes(&model.info.name, model.info.classes).unwrap();
        let base = evaluate(&model, &data);
        let top1 = base.metrics.score;
        println!("{}: {} of {}", kind.name(), base.metrics.correct().unwrap(), base.metrics.n);
        assert!((0.88..=0.97).contains(&top1), "{}: {top1}", kind.name());
        let m = &base.metrics;
        assert_eq!(m.per_class().iter().map(|c| c.1).collect::<Vec<_>>(), [400; 10]);
        assert_eq!(m.per_class().iter().map(|c| c.0).sum::<usize>(), m.correct().unwrap());
        assert_eq!(base.correct().iter().filter(|c| **c).count(), m.correct().unwrap());

        let small = halved(&model);
        let macs = |m: &Model| {
            let all = paring::graph::macs(&m.graph).unwrap();
            all.iter().map(|x| x.get(MacConvention::ConvLinear)).sum::<u64>() as f64
        };
        assert!(macs(&small) < 0.8 * macs(&model));
        let after = evaluate(&small, &data.take(1000));
        let paired = eval::paired(&base.correct(), &after.correct());
        println!("halved: {paired:?}");
        assert!(paired.n == 1000 && paired.high < -5.0, "{}: {paired:?}", kind.name());
    }
}

#[test]
fn the_bundled_file_is_a_model_like_any_other() {
    for kind in DemoModel::ALL {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("assets/{}.{}", kind.name(), kind.format()));
        assert!(std::fs::metadata(&path).unwrap().len() < 1_600_000);
        let (bundled, loaded) =
            (demo::load(kind).unwrap(), paring::model::load(&path, &LoadOptions::default()).unwrap());
        assert_eq!(bundled.info.hash, loaded.info.hash);
        // Not `assert_eq`: a graph fills screens.
        assert!(*bundled.graph == kind.spec().build().unwrap() && bundled.graph == loaded.graph, "{}", kind.name());
        if kind == DemoModel::Lm {
            assert_eq!((loaded.info.context, bundled.info.context), (Some(demo::CONTEXT), Some(demo::CONTEXT)));
            continue;
        }
        assert_eq!(loaded.info.preprocess, demo::preprocess());
        assert_eq!(loaded.info.class_names.as_deref().map(<[String]>::len), Some(10));
    }
}

#[test]
fn plans_and_cancellation_and_other_class_counts() {
    let model = demo::load(DemoModel::Cnn).unwrap();
    let plan = Plan::of(&model, &CompileOptions::default()).unwrap();
    let data = data::open("synthetic:calib", 30).unwrap();
    let prep = &model.info.preprocess;
    // Batches of any size give the same answers, and `logits` the same numbers.
    let whole = eval::evaluate(&plan, &data, prep, 30, &Cancel::default(), &mut |_, _| {}).unwrap();
    let parts = eval::evaluate(&plan, &data, prep, 7, &Cancel::default(), &mut |_, _| {}).unwrap();
    assert_eq!(whole.predictions, parts.predictions);
    let all = eval::logits(&plan, &data, prep, 11, &Cancel::default()).unwrap();
    assert_eq!(all.dims(), &[30, 10]);
    let labels: Vec<u32> = (0..30).map(|i| data.label(i).unwrap()).collect();
    assert!((eval::cross_entropy(&all, &labels).unwrap() - whole.metrics.loss).abs() < 1e-5);

    let cancel = Cancel::default();
    let stop = cancel.clone();
    let mut calls = 0;
    let run = eval::evaluate(&plan, &data, prep, 5, &cancel, &mut |_, _| {
        calls += 1;
        if calls == 2 {
            stop.cancel();
        }
    });
    assert!(matches!(run, Err(eval::EvalError::Cancelled(_))) && calls == 2, "{calls}");

    // Logits of fewer classes than the data has are refused.
    let narrow = |x: &candle_core::Tensor| -> Result<_, eval::EvalError> { Ok(x.flatten_from(1)?.narrow(1, 0, 4)?) };
    let run = eval::score_with(&data, prep, 5, &Cancel::default(), narrow, &mut |_, _| {});
    assert!(matches!(run, Err(eval::EvalError::Task(TaskError::Shape { .. }))));
}
