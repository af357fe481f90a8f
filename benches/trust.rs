//! Forecasts of accuracy against measurement: how often their ranges hold, and how far they lie off on the whole.
//!
//! `cargo bench --bench trust [-- FILTER] [--real DIR] [--net NAME=MODEL,CALIB,NEW]... [--cache DIR]`
//!
//! For every network, as a session's host does it: calibration images are split, harms scanned, anchors built and tried on
//! held-back images. Then plans (the planner's at several budgets, random cuts, precisions, masks, mixtures; seeded) are
//! forecast without rehearsal, rehearsed, built, and measured on images that nothing before has seen. Ranges are to hold
//! nine of ten measured changes. `--cache` keeps what was built and measured between runs, by plan.

use paring::data::{self, Dataset};
use paring::eval::{self, TrialOptions, TrialOutcome, Trials};
use paring::exec::{Cancel, CompileOptions, Plan};
use paring::host::compute::load_model;
use paring::model::{LoadOptions, Model};
use paring::plan::planner::{self, PlannerInput};
use paring::plan::{Action, Budget, Forecaster, Quality, QualityInput, Target, Trial, plan_key};
use paring::profile::{self, ProfileOptions, SensOptions};
use paring::prune::{self, Group, Method, Sparsity};
use paring::quant::Precision;
use paring::recover::{self, RepairOptions};
use paring::task::{Metric, TaskError};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Instant;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;
type Actions = Vec<(Target, Action)>;

struct Net {
    name: String,
    model: String,
    /// Mean and deviation of a file that does not say them.
    prep: Option<([f32; 3], [f32; 3])>,
    calib: Dataset,
    new: Dataset,
}

struct Args {
    filter: String,
    real: Option<PathBuf>,
    nets: Vec<String>,
    cache: Option<PathBuf>,
}

fn args() -> Args {
    let mut a = Args { filter: String::new(), real: data::real_dir(), nets: Vec::new(), cache: None };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--real" => a.real = words.next().map(PathBuf::from),
            "--net" => a.nets.extend(words.next()),
            "--cache" => a.cache = words.next().map(PathBuf::from),
            // Cargo's own flag for benches.
            "--bench" => {}
            other => a.filter = other.to_owned(),
        }
    }
    a
}

/// The networks of `real/`, both demos, and what `--net` names.
fn nets(a: &Args) -> Outcome<Vec<Net>> {
    let open = |spec: &str| data::open(spec, 0);
    let mut out = Vec::new();
    for spec in &a.nets {
        let bad = || format!("`{spec}` is not NAME=MODEL,CALIB,NEW");
        let (name, rest) = spec.split_once('=').ok_or_else(bad)?;
        let [model, calib, new] = rest.split(',').collect::<Vec<_>>()[..] else { return Err(bad().into()) };
        out.push(Net { name: name.into(), model: model.into(), prep: None, calib: open(calib)?, new: open(new)? });
    }
    if !a.nets.is_empty() {
        return Ok(out);
    }
    if let Some(real) = &a.real {
        let at = |p: &str| real.join(p).display().to_string();
        let (calib, test) = (open(&at("cifar10/calib_5000.bin"))?, open(&at("cifar10/test_batch.bin"))?);
        for (name, file) in [
            ("resnet20", "resnet20/resnet20.safetensors"),
            ("resnet56", "resnet56/resnet56.safetensors"),
            ("vit_cifar10", "vit_cifar10/vit_cifar10.safetensors"),
        ] {
            out.push(Net { name: name.into(), model: at(file), prep: None, calib: calib.clone(), new: test.clone() });
        }
        let part = |d: &Dataset, every: usize| -> (Dataset, Dataset) {
            let (a, b): (Vec<usize>, Vec<usize>) = (0..d.len()).partition(|i| i % every == 0);
            (d.pick(&a), d.pick(&b))
        };
        let (calib, new) = part(&open(&at("mnist"))?, 5);
        out.push(Net {
            name: "mnist".into(),
            model: at("mnist/rten_mnist.onnx"),
            prep: Some(([0.1307; 3], [0.3081; 3])),
            calib,
            new,
        });
        let (calib, new) = part(&open(&at("imagenet_sample"))?, 2);
        out.push(Net {
            name: "mobilenet".into(),
            model: at("mobilenet_v1_075_224/mobilenet_v1_075_224.onnx"),
            prep: Some(([0.5; 3], [0.5; 3])),
            calib,
            new,
        });
    }
    for demo in ["vit", "cnn"] {
        let (calib, new) = (open("synthetic:calib")?, open("synthetic:eval")?);
        out.push(Net { name: format!("demo-{demo}"), model: format!("demo:{demo}"), prep: None, calib, new });
    }
    Ok(out)
}

/// What building and measuring a plan gave.
#[derive(Serialize, Deserialize, Clone)]
struct Built {
    tried: TrialOutcome,
    d_quality: f64,
    seconds: f64,
}

struct Row {
    net: String,
    plan: String,
    scanned: Quality,
    rehearsed: Quality,
    tried: TrialOutcome,
    measured: f64,
}

struct Bench<'a> {
    net: &'a Net,
    model: Model,
    groups: Vec<Group>,
    work: Dataset,
    trials: Trials,
    right: Vec<bool>,
    cache: Option<&'a Path>,
}

fn plan_of(model: &Model) -> Outcome<Plan> {
    Ok(Plan::of(model, &CompileOptions::default())?)
}

fn batch_for(model: &Model) -> usize {
    if model.info.preprocess.size[0] <= 64 { 128 } else { 16 }
}

impl Bench<'_> {
    fn resolved(&self, actions: Actions) -> Outcome<Actions> {
        let mut out = Vec::new();
        for (t, a) in actions {
            let a = match (&t, a) {
                (Target::Group(id), Action::Prune { ratio, kept }) if kept.is_empty() => {
                    let g = self.groups.iter().find(|g| &g.id == id).ok_or("no such group")?;
                    let scores = prune::importance(&self.model, g, Method::L2, None)?;
                    let kept = prune::resolve(g, &scores, ratio);
                    Action::Prune { ratio: g.ratio_of(kept.len()), kept }
                }
                (_, a) => a,
            };
            out.push((t, a));
        }
        Ok(out)
    }

    fn build(&self, actions: &Actions, measure: bool) -> Outcome<Built> {
        let file = self.cache.map(|c| {
            let kind = if measure { "new" } else { "anchor" };
            c.join(format!("{}-{kind}-{}.json", self.net.name, plan_key(actions)))
        });
        if let Some(known) = file.as_ref().and_then(|f| std::fs::read(f).ok()) {
            return Ok(serde_json::from_slice(&known)?);
        }
        let start = Instant::now();
        let cancel = Cancel::default();
        let options = RepairOptions::default();
        let small = recover::compress(&self.model, &self.groups, actions, &self.work, &options, &cancel, &mut |_| {})?;
        let plan = plan_of(&small)?;
        let seconds = start.elapsed().as_secs_f64();
        let mut session = plan.session();
        let tried = self.trials.run(&mut |x| Ok(session.run(x)?), &cancel, &mut |_, _| {})?;
        let mut d_quality = 0.0;
        if measure {
            let prep = &self.model.info.preprocess;
            let run = eval::evaluate(&plan, &self.net.new, prep, batch_for(&small), &cancel, &mut |_, _| {});
            d_quality = match run {
                Ok(run) => eval::paired(&self.right, &run.correct()).diff,
                Err(eval::EvalError::Task(TaskError::NonFinite { .. })) => f64::NAN,
                Err(e) => return Err(e.into()),
            };
        }
        let built = Built { tried, d_quality, seconds };
        if let Some(file) = file {
            std::fs::write(file, serde_json::to_vec(&built)?)?;
        }
        Ok(built)
    }
}

fn precisions(model: &Model, of: impl Fn(usize) -> Option<Precision>) -> Actions {
    let layers = model.graph.nodes.iter().filter(|n| n.op.is_conv_or_linear()).enumerate();
    layers.filter_map(|(i, n)| Some((Target::Layer(n.name.clone()), Action::Precision { precision: of(i)? }))).collect()
}

fn masks(model: &Model, of: impl Fn(usize) -> Option<Sparsity>) -> Actions {
    let layers = model.graph.nodes.iter().filter(|n| n.op.is_conv_or_linear()).enumerate();
    layers.filter_map(|(i, n)| Some((Target::Weights(n.name.clone()), Action::Sparsify { sparsity: of(i)? }))).collect()
}

/// Cuts of a random part of the groups by random ratios up to `most`.
fn random_cuts(groups: &[Group], most: f64, rng: &mut ChaCha8Rng) -> Actions {
    let mut out = Vec::new();
    for g in groups.iter().filter(|g| g.protected.is_none()) {
        let ratio = g.ratio_of(g.kept_at(rng.random_range(0.0..most)));
        if rng.random_bool(0.6) && ratio > 0.0 && ratio < 1.0 {
            out.push((Target::Group(g.id.clone()), Action::Prune { ratio, kept: Vec::new() }));
        }
    }
    out
}

fn run(net: &Net, a: &Args, rows: &mut Vec<Row>) -> Outcome<()> {
    let cancel = Cancel::default();
    let model = load_model(&net.model, &LoadOptions::default(), net.prep.map(|p| p.0), net.prep.map(|p| p.1))?;
    let groups = prune::groups(&model.graph);
    let parts = net.calib.split(0, net.calib.usually_held());
    let prep = &model.info.preprocess;
    let original = plan_of(&model)?;
    let start = Instant::now();
    let base = eval::evaluate(&original, &net.new, prep, batch_for(&model), &cancel, &mut |_, _| {})?;
    let evaluated = start.elapsed().as_secs_f64();
    let error = 1.0 - base.metrics.score;
    let start = Instant::now();
    let mut session = original.session();
    let trials = Trials::prepare(
        &mut |x| Ok(session.run(x)?),
        &parts.held,
        prep,
        &TrialOptions { new: Some(&eval::Margins::of(&base.margins)), known: None, batch: batch_for(&model), seed: 0 },
        &cancel,
        &mut |_, _| {},
    )?;
    println!(
        "\n{}: {} calibration images, {} held back, {} new ones; errs on {:.1} % of the new, {:.1} % of the held-back",
        net.name,
        net.calib.len(),
        parts.held.len(),
        net.new.len(),
        100.0 * error,
        100.0 * trials.correction().held_error.unwrap_or_default()
    );
    for v in &trials.correction().views {
        let kind = v.kind.map_or("as they are", eval::Disturbance::label);
        println!("  views: {kind:<12} strength {:.3}, error {:.1} %", v.strength, 100.0 * v.error);
    }
    let prepared = start.elapsed().as_secs_f64();
    let start = Instant::now();
    let options = SensOptions { batch: batch_for(&model).min(64), ..SensOptions::default() };
    let mut images = 0;
    let scan = profile::sensitivity(&model, &groups, &parts.work, &options, a.cache.as_deref(), &cancel, &mut |u| {
        if let profile::SensUpdate::Base { images: n, .. } = u {
            images = n;
        }
    })?;
    let scanned = start.elapsed().as_secs_f64();
    let options = ProfileOptions { batch: 1, runs: 3, ..ProfileOptions::default() };
    let table = profile::profile(&model, &options, &cancel, &mut |_| {})?;
    let mut quality = QualityInput {
        base: Some(base.metrics.score),
        metric: Metric::top1(model.info.classes),
        images: net.new.len(),
        ..QualityInput::default()
    };
    let bench = Bench {
        net,
        groups: groups.clone(),
        work: parts.work.clone(),
        trials,
        right: base.correct(),
        cache: a.cache.as_deref(),
        model,
    };
    let model = &bench.model;
    let planned = |budget: &str, quality: &QualityInput| -> Outcome<Actions> {
        let budget: Budget = budget.parse()?;
        let input = PlannerInput {
            graph: &model.graph,
            groups: &groups,
            profile: &table,
            ladders: &[],
            sensitivity: &scan,
            budget: &budget,
            constraints: &[],
            round: 1,
            first_id: 1,
            in_force: &[],
            quality,
        };
        let found = planner::plan(&input, &mut |_| {})?;
        Ok(found.decisions.into_iter().map(|d| (d.target, d.action)).collect())
    };
    let start = Instant::now();
    for actions in planner::anchors(&model.graph, &groups, &table, &scan) {
        let actions = bench.resolved(actions)?;
        let built = bench.build(&actions, false)?;
        println!(
            "  anchor of {} actions: {:+.2} ± {:.2} ± {:.2}, built in {:.1} s",
            actions.len(),
            built.tried.d_quality,
            built.tried.sample_sd,
            built.tried.kind_sd,
            built.seconds
        );
        quality.trials.add(Trial { key: plan_key(&actions), actions, outcome: built.tried, anchor: true });
    }
    println!(
        "  evaluated in {evaluated:.1} s, views in {prepared:.1} s, scanned on {images} images in {scanned:.1} s, \
         anchors in {:.1} s",
        start.elapsed().as_secs_f64()
    );

    let mut rng = ChaCha8Rng::seed_from_u64(11);
    let four = [Precision::W4, Precision::W4g128, Precision::W4g64, Precision::W4g32];
    let any = [Precision::Int8, Precision::W8, Precision::W4, Precision::W4g64, Precision::F16];
    let half = Sparsity::Unstructured { ratio: 0.5 };
    let two = Sparsity::NofM { n: 2, m: 4 };
    let mut plans: Vec<(String, Actions)> = Vec::new();
    for b in ["macs=0.87", "macs=0.75", "macs=0.68", "macs=0.55", "memory=0.6"] {
        plans.push((format!("planner {b}"), planned(b, &quality)?));
    }
    for most in [0.2, 0.4, 0.65] {
        plans.push((format!("random cuts to {most}"), random_cuts(&groups, most, &mut rng)));
    }
    plans.push(("w4g64".into(), precisions(model, |_| Some(Precision::W4g64))));
    plans.push(("random precisions".into(), {
        let drawn: Vec<Precision> = (0..4096).map(|_| *any.choose(&mut rng).unwrap_or(&any[0])).collect();
        precisions(model, |i| drawn.get(i).copied())
    }));
    plans.push(("some of w4".into(), {
        let drawn: Vec<Option<Precision>> =
            (0..4096).map(|_| if rng.random_bool(0.5) { four.choose(&mut rng).copied() } else { None }).collect();
        precisions(model, |i| drawn.get(i).copied().flatten())
    }));
    plans.push(("masks 2:4 on a third".into(), masks(model, |i| (i % 3 == 1).then_some(two))));
    plans.push(("masks 50 % on a half".into(), masks(model, |i| (i % 2 == 1).then_some(half))));
    let mut both = random_cuts(&groups, 0.3, &mut rng);
    both.extend(precisions(model, |i| (i % 2 == 0).then_some(Precision::Int8)));
    plans.push(("cuts and int8".into(), both));
    let mut both = planned("macs=0.8", &quality)?;
    both.extend(precisions(model, |i| (i % 3 == 0).then_some(Precision::W4g32)));
    plans.push(("planner macs=0.8, some w4g32".into(), both));

    for (name, actions) in plans {
        let actions = bench.resolved(actions)?;
        if actions.is_empty() {
            continue;
        }
        let forecaster = |q: &QualityInput| {
            Forecaster::new(&model.graph, &groups, &table, &[], &scan).with_quality(q.clone()).quality(&actions)
        };
        let before = forecaster(&quality);
        let built = bench.build(&actions, true)?;
        let mut with = quality.clone();
        let (key, outcome) = (plan_key(&actions), built.tried.clone());
        with.trials.add(Trial { key, actions: actions.clone(), outcome, anchor: false });
        let row = Row {
            net: net.name.clone(),
            plan: name,
            scanned: before,
            rehearsed: forecaster(&with),
            tried: built.tried,
            measured: built.d_quality,
        };
        print_row(&row);
        rows.push(row);
    }
    Ok(())
}

fn held(q: &Quality, measured: f64) -> bool {
    (q.low - 1e-9..=q.high + 1e-9).contains(&measured)
}

fn print_row(r: &Row) {
    let range = |q: &Quality| {
        let mark = if held(q, r.measured) { ' ' } else { '!' };
        format!("{:+6.2} [{:+6.2}, {:+6.2}]{mark}", q.value, q.low, q.high)
    };
    let kinds: Vec<String> = r.tried.by_kind.iter().map(|k| format!("{k:+.1}")).collect();
    println!(
        "  {:<32} scanned {} rehearsed {} measured {:+6.2}   {}",
        r.plan,
        range(&r.scanned),
        range(&r.rehearsed),
        r.measured,
        kinds.join(" ")
    );
}

fn summary(name: &str, rows: &[&Row]) {
    let part = |of: fn(&Row) -> &Quality| {
        let known: Vec<&&Row> = rows.iter().filter(|r| of(r).basis != paring::plan::Basis::Unmeasured).collect();
        let n = known.len().max(1) as f64;
        let hold = known.iter().filter(|r| held(of(r), r.measured)).count();
        let mild: Vec<f64> = known.iter().filter(|r| r.measured > -6.0).map(|r| r.measured - of(r).value).collect();
        let mean = mild.iter().sum::<f64>() / mild.len().max(1) as f64;
        format!(
            "{hold} of {} ranges hold ({:.0} %), measured − forecast {mean:+.2} on average over {} that lose less than 6",
            known.len(),
            100.0 * hold as f64 / n,
            mild.len()
        )
    };
    println!("{name}: rehearsed {}", part(|r| &r.rehearsed));
    println!("{name}: scanned   {}", part(|r| &r.scanned));
}

fn main() -> Outcome<()> {
    let a = args();
    if let Some(c) = &a.cache {
        std::fs::create_dir_all(c)?;
    }
    let mut rows = Vec::new();
    for net in nets(&a)?.iter().filter(|n| n.name.contains(&a.filter)) {
        run(net, &a, &mut rows)?;
    }
    println!();
    let mut names: Vec<&str> = rows.iter().map(|r| r.net.as_str()).collect();
    names.dedup();
    for name in names {
        summary(name, &rows.iter().filter(|r| r.net == name).collect::<Vec<_>>());
    }
    summary("all", &rows.iter().collect::<Vec<_>>());
    Ok(())
}
