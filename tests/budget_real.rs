//! The whole planning chain on the real ResNet-56: profile, sensitivity, planner, compress with repair, evaluate.
//! Quick by default (one budget, 2,000 test images, little calibration); `PARING_FULL=1` tries both and uses all of them. Skips
//! without real data.

mod common;

use paring::data::{self, Dataset};
use paring::eval::score_with;
use paring::exec::{Cancel, CompileOptions, Plan};
use paring::model::{self, Model};
use paring::plan::planner::{PlannerInput, plan};
use paring::plan::{Action, Budget, Forecaster, Target};
use paring::profile::{ProfileOptions, SensOptions, SensUpdate, profile, sensitivity};
use paring::prune::{self, Group, Method};
use paring::recover::{RepairOptions, compress};
use std::time::{Duration, Instant};

fn resolved(model: &Model, groups: &[Group], decisions: &[paring::plan::Decision]) -> Vec<(Target, Action)> {
    let one = |d: &paring::plan::Decision| match (&d.target, &d.action) {
        (Target::Group(id), Action::Prune { ratio, .. }) => {
            let g = groups.iter().find(|g| &g.id == id).expect("known group");
            let scores = prune::importance(model, g, Method::L2, None).expect("importance");
            (d.target.clone(), Action::Prune { ratio: *ratio, kept: prune::resolve(g, &scores, *ratio) })
        }
        _ => (d.target.clone(), d.action.clone()),
    };
    decisions.iter().map(one).collect()
}

fn correct(model: &Model, test: &Dataset) -> Vec<bool> {
    let plan = Plan::of(model, &CompileOptions::default()).expect("compiles");
    let run = score_with(test, &model.info.preprocess, 250, &Cancel::default(), |x| plan.run(x), &mut |_, _| {});
    run.expect("evaluates").correct()
}

#[test]
fn planned_and_repaired_resnet56_keeps_its_accuracy() {
    let Some(real) = common::real() else { return };
    let full = common::full();
    let model = model::load(&real.join("resnet56/resnet56.safetensors"), &Default::default()).expect("loads");
    let groups = prune::groups(&model.graph);
    let open = |name: &str, n| data::open(&real.join("cifar10").join(name).to_string_lossy(), n).expect("opens");
    let (calib, test) = (open("calib_5000.bin", 0), open("test_batch.bin", if full { 0 } else { 2000 }));
    let cancel = Cancel::default();

    let options = ProfileOptions { batch: 8, runs: 5, time_limit: Duration::from_secs(3), ..Default::default() };
    let profile = profile(&model, &options, &cancel, &mut |_| {}).expect("profiles");
    let sens = if full {
        SensOptions { precisions: vec![], ..Default::default() }
    } else {
        let ratios = vec![0.25, 0.5, 0.75];
        SensOptions { images: 64, precisions: vec![], ratios, ..Default::default() }
    };
    let cache = std::env::var_os("PARING_TEST_CACHE").map(std::path::PathBuf::from);
    let start = Instant::now();
    let mut images = 0;
    let sensitivity = sensitivity(&model, &groups, &calib, &sens, cache.as_deref(), &cancel, &mut |u| {
        if let SensUpdate::Base { images: n, .. } = u {
            images = n;
        }
    })
    .expect("senses");
    println!("sensitivity: {:.1} s, {images} images", start.elapsed().as_secs_f64());

    let base = correct(&model, &test);
    let points = |c: &[bool]| 100.0 * c.iter().filter(|c| **c).count() as f64 / c.len() as f64;
    let forecaster = Forecaster::new(&model.graph, &groups, &profile, &[], &sensitivity);
    // The most that may be lost of the original's 93.39 %; a part of the test set and of the fit costs some certainty.
    let budgets = [("macs=0.6", 93.39 - 91.8), ("macs=0.5", 93.39 - 88.8)];
    for (budget, most) in budgets.into_iter().take(if full { 2 } else { 1 }) {
        let goal: Budget = budget.parse().expect("budget");
        let input = PlannerInput {
            graph: &model.graph,
            groups: &groups,
            profile: &profile,
            ladders: &[],
            sensitivity: &sensitivity,
            budget: &goal,
            constraints: &[],
            round: 1,
            first_id: 1,
            in_force: &[],
            quality: &Default::default(),
        };
        let start = Instant::now();
        let proposal = plan(&input, &mut |s| println!("{s}")).expect("plans");
        println!("planned in {:.2} s", start.elapsed().as_secs_f64());
        assert!(proposal.met && proposal.forecast.macs.value <= goal.macs.expect("macs"));
        let actions = resolved(&model, &groups, &proposal.decisions);
        let repair = if full {
            RepairOptions::default()
        } else {
            RepairOptions { images: 1000, check_images: 200, positions: 16, ..Default::default() }
        };
        let start = Instant::now();
        let small = compress(&model, &groups, &actions, &calib, &repair, &cancel, &mut |_| {}).expect("compresses");
        let seconds = start.elapsed().as_secs_f64();
        let new = correct(&small, &test);
        let paired = paring::eval::paired(&base, &new);
        println!(
            "{budget}: {:.2} % of {:.2} %, {:+.2} [{:+.2}, {:+.2}], forecast {:+.2} at KL {:.3}, repaired in {seconds:.0} s",
            points(&new),
            points(&base),
            paired.diff,
            paired.low,
            paired.high,
            proposal.forecast.quality.value,
            forecaster.harm(&actions).0,
        );
        let kept: u64 = paring::graph::macs(&small.graph).expect("macs").iter().map(|m| m.conv_linear).sum();
        let all: u64 = paring::graph::macs(&model.graph).expect("macs").iter().map(|m| m.conv_linear).sum();
        assert_eq!(kept as f64 / all as f64, proposal.forecast.macs.value, "the count that was forecast is what came");
        let margin = if full { 0.0 } else { 1.0 };
        assert!(-paired.diff <= most + margin, "{budget} loses {:.2} points", -paired.diff);
    }
}
