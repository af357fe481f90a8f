//! Runs cases and demo models on a device and compares them with the truth.

use super::cases::{Case, TARGET};
use super::truth::{Run, SIGMAS};
use crate::data::{self, Counted, TextOptions, synthetic};
use crate::exec::candle::{self, Capture, Mode};
use crate::exec::device::{self, Opened};
use crate::exec::{Capabilities, CompileOptions, ExecError, Kernels, Plan, Session, StepInfo};
use crate::graph::op::InputType;
use crate::graph::{Precision, Precisions};
use crate::model::random_params;
use crate::train::demo;
use anyhow::{Context, Result, bail};
use candle_core::{Device, Tensor};
use rand::{Rng, SeedableRng};
use serde::Serialize;

/// One image is shared by all threads, more than one are spread over them: different paths through the same kernel.
const BATCHES: [usize; 2] = [1, 3];
/// Of parameters and inputs.
const SEED: u64 = 11;
/// Images, or windows of so many tokens, that demo models are shown.
const IMAGES: usize = 16;
const TOKENS: usize = 64;
/// Of a demo model's logits, in parts of the largest one. f32 in another order stays ten times below, TF32 does not.
const LOGITS: f64 = 2e-5;
/// Of one whose layers are f16, whose factors have eleven bits: at most so far off, and not less than a hundredth of it.
const HALF_LOGITS: f64 = 1e-2;
/// The root mean square of int8 or half-precision errors, in parts of what the codes or bits imply. Less means that they are
/// not what ran; more is a kernel that loses bits which it should have.
const SPREAD: std::ops::RangeInclusive<f64> = 0.5..=1.5;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    #[default]
    Passed,
    Failed,
    /// The device refuses the precision, which is an answer, but not a checked one.
    Skipped,
}

/// What one check found.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Check {
    pub name: String,
    pub precision: &'static str,
    /// What ran, as the plan says.
    pub kernel: String,
    /// Largest absolute error.
    pub error: f64,
    /// Largest error that any element is allowed.
    pub tolerance: f64,
    /// Error over tolerance at the element where that is largest.
    pub worst: f64,
    /// Of other precisions than f32: root mean square of the errors over what the codes or bits imply.
    pub spread: Option<f64>,
    pub outcome: Outcome,
    /// Why it failed or was skipped; on a GPU, why it was not replayed.
    pub note: Option<String>,
}

impl Check {
    fn new(name: &str, precision: Precision) -> Check {
        Check { name: name.to_owned(), precision: precision.label(), ..Check::default() }
    }

    fn fail(&mut self, why: String) {
        self.outcome = Outcome::Failed;
        self.note.get_or_insert(why);
    }

    /// Counts the result `got` where `y` within `tolerance` is right.
    fn compare(&mut self, got: &[f32], y: &[f64], tolerance: &[f64], errors: &mut Errors) {
        if got.len() != y.len() {
            return self.fail(format!("{} values came back, expected {}", got.len(), y.len()));
        }
        for (i, ((got, y), t)) in got.iter().zip(y).zip(tolerance).enumerate() {
            let error = (f64::from(*got) - y).abs();
            let part = if error == 0.0 { 0.0 } else { error / t };
            self.tolerance = self.tolerance.max(*t);
            // Not `max`, which drops NaN.
            if error.is_nan() || error > self.error {
                self.error = error;
            }
            if part.is_nan() || part > self.worst {
                self.worst = part;
            }
            if part.is_nan() || part > 1.0 {
                self.fail(format!("element {i} is {got:e}, expected {y:e} within {t:.1e}"));
            }
            if *t > 0.0 {
                errors.squares += (error / t * SIGMAS).powi(2);
                errors.n += 1;
            }
        }
    }
}

/// Sums over all elements of a check.
#[derive(Default)]
struct Errors {
    squares: f64,
    n: usize,
}

/// Seeded values within `±range`.
pub(super) fn uniform(n: usize, range: f32, seed: u64) -> Vec<f32> {
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    (0..n).map(|_| rng.random_range(-range..range)).collect()
}

/// A seeded input for `case`, as numbers and as the plan takes it: values within the case's range, or token ids from
/// all over the vocabulary.
fn input(case: &Case, images: usize, seed: u64) -> Result<(Vec<f32>, Tensor)> {
    let mut dims = vec![images];
    dims.extend(case.graph.input_shape()?);
    let n = dims.iter().product();
    match case.graph.input().map(|(_, input)| input.dtype) {
        Some(InputType::Ids { vocab }) => {
            let ids: Vec<u32> = (seed as usize..seed as usize + n).map(|i| (i * 7 % vocab) as u32).collect();
            Ok((ids.iter().map(|id| *id as f32).collect(), Tensor::from_vec(ids, dims, &Device::Cpu)?))
        }
        Some(InputType::F32) | None => {
            let x = uniform(n, case.range, seed);
            Ok((x.clone(), Tensor::from_vec(x, dims, &Device::Cpu)?))
        }
    }
}

/// The step that runs the node which is meant.
pub(super) fn step_of(plan: &Plan) -> Result<(usize, &StepInfo)> {
    let runs = |s: &StepInfo| s.name == TARGET || s.fused.iter().any(|f| f == TARGET);
    plan.steps().iter().enumerate().find(|(_, s)| runs(s)).with_context(|| format!("no step runs `{TARGET}`"))
}

/// A plan of one precision for the node which is meant.
pub(super) fn precision_at(precision: Precision) -> Precisions {
    let mut plan = Precisions::default();
    if precision != Precision::F32 {
        plan.set(TARGET, precision);
    }
    plan
}

/// Checks one case; what goes wrong on the way is a failed check.
pub(super) fn case(case: &Case, opened: &Opened) -> Check {
    let mut check = Check::new(case.name, case.precision);
    if let Err(e) = run_case(case, opened, &mut check) {
        match e.downcast_ref::<ExecError>() {
            Some(ExecError::Unsupported { what, .. })
                if !opened.device.is_cpu() && case.precision != Precision::F32 =>
            {
                check.outcome = Outcome::Skipped;
                check.note = Some(what.clone());
            }
            _ => check.fail(format!("{e:#}")),
        }
    }
    check
}

fn run_case(case: &Case, opened: &Opened, check: &mut Check) -> Result<()> {
    let params = random_params(&case.graph, SEED);
    let precision = precision_at(case.precision);
    let plan = Plan::compile(&case.graph, &params, &precision, &CompileOptions::on(opened))?;
    let (_, step) = step_of(&plan)?;
    check.kernel.clone_from(&step.kernel);
    if step.precision != case.precision {
        bail!("asked for {}, and the plan runs {}", case.precision.label(), step.precision.label());
    }
    let mut errors = Errors::default();
    let mut session = plan.session();
    for images in BATCHES {
        let (x, tensor) = input(case, images, SEED + images as u64)?;
        let run =
            Run { graph: &case.graph, params: &params, precision: &precision, images, top_code: top_code(opened) };
        let want = run.output(&x)?;
        let got = values(&session.run(&tensor)?)?;
        check.compare(&got, &want.y, &want.tolerance, &mut errors);
        replay(&mut session, &tensor, &got, check)?;
    }
    if case.precision != Precision::F32 && errors.n > 0 {
        let spread = (errors.squares / errors.n as f64).sqrt();
        check.spread = Some(spread);
        if !SPREAD.contains(&spread) {
            let why = if spread < 1.0 { "did f32 run instead?" } else { "bits are lost" };
            check.fail(format!("errors are {spread:.2} of what {} implies; {why}", case.precision.label()));
        }
    }
    Ok(())
}

/// The largest activation code: kernels without dot-product instructions leave a bit free against overflow. Where this
/// guesses too low the allowed error is wider than need be, never too narrow.
fn top_code(opened: &Opened) -> u8 {
    let own = opened.device.is_cpu() && opened.kernels == Kernels::Device;
    if !own || device::isa() == "avx512-vnni" { 255 } else { 127 }
}

/// What has kernels of its own on `opened`: what there is to check.
pub(super) fn precisions(opened: &Opened) -> Vec<Precision> {
    Capabilities::of(&opened.device, opened.kernels).timed()
}

/// Checks a bundled model's logits on the device against the interpreter on the CPU.
pub(super) fn demo_model((kind, precision): Demo, opened: &Opened) -> Check {
    let mut check = Check::new(&format!("model demo:{}", kind.word()), precision);
    if let Err(e) = run_demo((kind, precision), opened, &mut check) {
        check.fail(format!("{e:#}"));
    }
    check
}

/// A bundled model, and what its convolutions and linears are in.
pub(super) type Demo = (demo::DemoModel, Precision);

/// Those that are checked: in f32, and where half precision flows from layer to layer, attention and all, in that too.
pub(super) fn demos(opened: &Opened) -> Vec<Demo> {
    let halves = (!opened.device.is_cpu()).then_some(Precision::F16);
    let precisions = [Precision::F32].into_iter().chain(halves);
    precisions.flat_map(|p| demo::DemoModel::ALL.map(|kind| (kind, p))).collect()
}

fn run_demo((kind, precision): Demo, opened: &Opened, check: &mut Check) -> Result<()> {
    let model = demo::load(kind)?;
    let layers = model.graph.live().filter(|(_, n)| n.op.is_conv_or_linear()).map(|(_, n)| (n.name.clone(), precision));
    let precisions = Precisions::from_iter(layers.filter(|_| precision != Precision::F32));
    let plan = Plan::compile(&model.graph, &model.params, &precisions, &CompileOptions::on(opened))?;
    let mut kernels: Vec<&str> = plan.steps().iter().map(|s| s.kernel.as_str()).collect();
    kernels.sort_unstable();
    kernels.dedup();
    check.kernel = format!("{} kinds in {} steps", kernels.len(), plan.steps().len());
    let data = match model.graph.is_language_model() {
        true => {
            let options = TextOptions { window: TOKENS, counted: Counted::Next, limit: IMAGES };
            data::text("synthetic:eval", model.origin.tokenizer(&model.info.source)?.as_ref(), &options)?
        }
        false => synthetic::dataset(synthetic::Split::Eval, IMAGES),
    };
    let (x, _) = data.batch(0..IMAGES, &model.info.preprocess)?;
    let params = candle::tensors(&model.params, &Device::Cpu)?;
    let want = values(&candle::forward(&model.graph, &params, &x, Mode::Eval, &mut Capture::none())?)?;
    let want: Vec<f64> = want.into_iter().map(f64::from).collect();
    let top = want.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    let mut session = plan.session();
    let got = values(&session.run(&x)?)?;
    let allowed = if precision == Precision::F32 { LOGITS } else { HALF_LOGITS };
    check.compare(&got, &want, &vec![allowed * top; want.len()], &mut Errors::default());
    if precision != Precision::F32 && check.error < HALF_LOGITS / 100.0 * top {
        check.fail(format!("it is no further off than {:.1e}; did f32 run instead?", check.error));
    }
    replay(&mut session, &x, &got, check)
}

/// On a GPU: has the pass captured and holds its replay against `got`, bit for bit. One that cannot be captured computes no worse
/// for it: that is noted, and no failure.
fn replay(session: &mut Session, x: &Tensor, got: &[f32], check: &mut Check) -> Result<()> {
    let launch = session.prepare_timed(x)?;
    if let Some(why) = launch.complaint() {
        check.note.get_or_insert(why);
    }
    if launch.is_replayed() {
        let again = values(&session.run_timed(x)?.0)?;
        let differs = got.iter().zip(&again).position(|(a, b)| a.to_bits() != b.to_bits());
        if let Some(i) = differs {
            check.fail(format!("element {i} is {:e} launched kernel by kernel, {:e} replayed", got[i], again[i]));
        }
    }
    Ok(())
}

fn values(t: &Tensor) -> Result<Vec<f32>> {
    Ok(t.to_device(&Device::Cpu)?.flatten_all()?.to_vec1()?)
}

#[cfg(test)]
mod tests {
    use super::super::cases;
    use super::*;

    fn cpu() -> Opened {
        device::open("cpu").expect("the CPU opens")
    }

    /// A check must notice a kernel that computes something else; here the plan gets other parameters than the truth.
    #[test]
    fn a_changed_parameter_fails_every_case_that_has_one() {
        let mut seen = 0;
        for case in cases::all(&precisions(&cpu())).expect("builds") {
            let good = random_params(&case.graph, SEED);
            let mut bad = good.clone();
            let Some((name, p)) = good.iter().next() else { continue };
            let mut values = p.values().into_owned();
            values[0] += 0.5;
            bad.insert(name, crate::model::Param::owned(p.shape().to_vec(), values).expect("fits"));
            let precision = precision_at(case.precision);
            let plan = Plan::compile(&case.graph, &bad, &precision, &CompileOptions::on(&cpu())).expect("compiles");
            let (x, tensor) = input(&case, 2, 5).expect("fits");
            let run =
                Run { graph: &case.graph, params: &good, precision: &precision, images: 2, top_code: top_code(&cpu()) };
            let want = run.output(&x).expect("truth");
            let got = super::values(&plan.run(&tensor).expect("runs"));
            let mut check = Check::new(case.name, case.precision);
            check.compare(&got.expect("values"), &want.y, &want.tolerance, &mut Errors::default());
            assert_eq!(check.outcome, Outcome::Failed, "{}: {check:?}", case.name);
            seen += 1;
        }
        assert!(seen > 20, "{seen}");
    }

    /// What a GPU plan computes, kernel by kernel.
    #[test]
    fn tensor_kernels_are_right_in_every_precision() {
        let opened = Opened { kernels: Kernels::Tensors, ..cpu() };
        let cases = cases::all(&precisions(&opened)).expect("builds");
        for precision in Precision::ALL.into_iter().filter(|p| *p != Precision::Int8Static) {
            assert!(cases.iter().any(|c| c.precision == precision), "{precision:?}");
        }
        for case in cases {
            let check = super::case(&case, &opened);
            assert_eq!(check.outcome, Outcome::Passed, "{check:#?}");
            let named = if case.precision == Precision::Int8 { "i8" } else { case.precision.label() };
            assert!(case.precision == Precision::F32 || check.kernel.contains(&format!("-{named}/")), "{check:#?}");
        }
        for kind in demo::DemoModel::ALL {
            for precision in [Precision::F32, Precision::F16] {
                let check = demo_model((kind, precision), &opened);
                assert_eq!(check.outcome, Outcome::Passed, "{check:#?}");
            }
        }
    }

    #[test]
    fn f32_where_int8_was_asked_for_is_noticed() {
        for case in
            cases::all(&precisions(&cpu())).expect("builds").into_iter().filter(|c| c.precision == Precision::Int8)
        {
            let check = super::case(&case, &cpu());
            assert_eq!(check.outcome, Outcome::Passed, "{check:?}");
            assert!(check.spread.is_some_and(|s| s >= *SPREAD.start()), "{check:?}");
            // The same errors as an f32 kernel makes, against int8's tolerance.
            let floats = super::case(&Case { precision: Precision::F32, ..case }, &cpu());
            assert!(floats.error / check.tolerance * SIGMAS < *SPREAD.start() / 10.0, "{floats:?}");
        }
    }

    #[test]
    fn not_a_number_fails() {
        let mut check = Check::new("x", Precision::F32);
        check.compare(&[1.0, f32::NAN], &[1.0, 1.0], &[1.0, 1.0], &mut Errors::default());
        assert_eq!(check.outcome, Outcome::Failed);
        let mut exact = Check::new("x", Precision::F32);
        exact.compare(&[1.0], &[1.0 + 1e-12], &[0.0], &mut Errors::default());
        assert_eq!(exact.outcome, Outcome::Failed, "a copy is exact or wrong");
    }
}
