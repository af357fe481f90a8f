//! Regression: a network of three layers that predicts two numbers from eight, its data, and how it is scored.

use candle_core::{DType, Device, Tensor};
use paring::data::{DataCard, DataError, Dataset, Items};
use paring::exec::{CompileOptions, Plan};
use paring::graph::{Builder, Graph, Op, ParamRole, op};
use paring::host::OpenSpec;
use paring::host::compute::Subject;
use paring::model::families::{CifarResnetSpec, FamilySpec};
use paring::model::{Family, Model, ModelInfo, Param, ParamStore, random};
use paring::session::Opening;
use paring::task::{Metric, Metrics, Scored, Scorer, Targets, Task, TaskError};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;

const INPUTS: usize = 8;
const HIDDEN: usize = 32;
/// Units of each hidden layer that matter; the others hardly do.
const BUSY: usize = 16;
const OUTPUTS: usize = 2;

/// Ten lines.
fn graph() -> Graph {
    let mut b = Builder::default();
    let x = b.node("input", Op::Input(op::Input::fixed([INPUTS])), &[]);
    let first = b.linear("fc1", x, INPUTS, HIDDEN, true);
    let first = b.relu("relu1", first);
    let second = b.linear("fc2", first, HIDDEN, HIDDEN, true);
    let second = b.relu("relu2", second);
    let out = b.linear("head", second, HIDDEN, OUTPUTS, true);
    b.finish(out).expect("a graph")
}

fn model() -> Model {
    let graph = graph();
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let mut params = ParamStore::default();
    for node in &graph.nodes {
        let Op::Linear(op::Linear { in_features, out_features, .. }) = node.op else { continue };
        for (role, shape) in
            [(ParamRole::Weight, vec![out_features, in_features]), (ParamRole::Bias, vec![out_features])]
        {
            let width = shape.get(1).copied().unwrap_or(1);
            let mut value = |i: usize| {
                // An idle unit is idle on both its sides.
                let row = i / width;
                let idle = (out_features == HIDDEN && row >= BUSY)
                    || (in_features == HIDDEN && i % width >= BUSY && width > 1);
                let scale = (2.0 / in_features as f32).sqrt() * if idle { 0.02 } else { 1.4 };
                scale * rng.random_range(-1.0f32..1.0)
            };
            let values = (0..shape.iter().product()).map(&mut value).collect();
            let name = node.param(role).expect("has one").to_owned();
            params.insert(name, Param::owned(shape, values).expect("as many as its shape says"));
        }
    }
    let hash = params.hash();
    // What a card of images says besides is nobody's business here.
    let images =
        random(&FamilySpec::CifarResnet(CifarResnetSpec { blocks: 1, widths: [4; 3], classes: 2, image: 8 }), 1);
    let info =
        ModelInfo { name: "regressor".into(), family: Family::Onnx, classes: OUTPUTS, hash, ..images.info.clone() };
    Model { graph: Arc::new(graph), params, info, ..images }
}

/// Rows with what the network says of them, and noise of a variance of 0.01.
#[derive(Debug)]
struct Rows {
    x: Tensor,
    y: Tensor,
}

impl Rows {
    fn new(seed: u64, n: usize, model: &Model) -> Rows {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut even =
            |count: usize, width: f32| -> Vec<f32> { (0..count).map(|_| rng.random_range(-width..width)).collect() };
        let x = Tensor::from_vec(even(n * INPUTS, 1.7), (n, INPUTS), &Device::Cpu).expect("rows");
        let noise = Tensor::from_vec(even(n * OUTPUTS, 0.03f32.sqrt()), (n, OUTPUTS), &Device::Cpu).expect("noise");
        let plan = Plan::of(model, &CompileOptions::default()).expect("compiles");
        let y = (plan.run(&x).expect("runs") + noise).expect("sum");
        Rows { x, y }
    }
}

impl Items for Rows {
    fn len(&self) -> usize {
        self.x.dims()[0]
    }

    fn batch(&self, picks: &[usize]) -> Result<(Tensor, Targets), DataError> {
        let picks = Tensor::from_iter(picks.iter().map(|p| *p as u32), &Device::Cpu)?;
        Ok((self.x.index_select(&picks, 0)?, Targets::Values(self.y.index_select(&picks, 0)?)))
    }

    fn content(&self, i: usize) -> Option<Vec<u8>> {
        let row = |t: &Tensor| t.get(i)?.to_vec1::<f32>();
        let values = [row(&self.x).ok()?, row(&self.y).ok()?].concat();
        Some(values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }
}

/// An item's score is its negative squared error, the mean over its outputs.
#[derive(Debug)]
struct Regress;

#[derive(Default)]
struct Errors(Vec<f32>);

/// Squared errors `[N]`, the mean over outputs.
fn squares(outputs: &Tensor, targets: &Tensor) -> candle_core::Result<Tensor> {
    (outputs - targets)?.sqr()?.mean(1)
}

impl Scorer for Errors {
    fn add(&mut self, outputs: &Tensor, targets: &Targets) -> Result<(), TaskError> {
        let Targets::Values(y) = targets else { return Err(TaskError::Targets) };
        let errors = squares(&outputs.to_dtype(DType::F32)?, y)?.to_vec1::<f32>()?;
        let bad: Vec<usize> = (0..errors.len()).filter(|&i| !errors[i].is_finite()).collect();
        if let Some(&first) = bad.first() {
            return Err(TaskError::NonFinite { images: bad.len(), batch: errors.len(), first: self.0.len() + first });
        }
        self.0.extend(errors);
        Ok(())
    }

    fn scored(&self) -> Scored {
        let n = self.0.len() as f64;
        let mean = self.0.iter().map(|e| f64::from(*e)).sum::<f64>() / n.max(1.0);
        let var = self.0.iter().map(|e| (f64::from(*e) - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
        let standard_error = Some((var / n.max(1.0)).sqrt());
        let metrics = Metrics { n: self.0.len(), score: -mean, loss: mean, standard_error, ..Metrics::default() };
        Scored { metrics, scores: self.0.iter().map(|e| -e).collect(), ..Scored::default() }
    }
}

impl Task for Regress {
    fn metric(&self, _: &ModelInfo) -> Metric {
        Metric {
            name: "mse".into(),
            item: "row".to_owned(),
            unit: String::new(),
            change_unit: String::new(),
            scale: -1.0,
            whole: 1.0,
            digits: 4,
            chance: Some(-1.0),
            worst: None,
            best: Some(0.0),
        }
    }

    fn scale(&self) -> f64 {
        1.0
    }

    fn scorer(&self, _: usize) -> Box<dyn Scorer> {
        Box::new(Errors::default())
    }

    fn broken(&self) -> f32 {
        -100.0
    }

    fn loss(&self, outputs: &Tensor, targets: &Targets, _: f64) -> candle_core::Result<Tensor> {
        match targets {
            Targets::Values(y) => squares(outputs, y)?.mean_all(),
            Targets::Classes(_) => candle_core::bail!("classes are no numbers"),
        }
    }

    fn divergence(&self, base: &Tensor, new: &Tensor, _: f64) -> Result<f64, TaskError> {
        let far = f64::from(squares(new, base)?.mean_all()?.to_scalar::<f32>()?);
        if far.is_finite() { Ok(far) } else { Err(TaskError::NonFinite { images: 1, batch: 1, first: 0 }) }
    }
}

fn set(name: &str, seed: u64, n: usize, model: &Model) -> Dataset {
    let card = DataCard { name: name.into(), source: name.into(), ..DataCard::default() };
    Dataset::of_items(card, Arc::new(Rows::new(seed, n, model)), Arc::new(Regress))
}

pub fn subject() -> Subject {
    let model = model();
    let (data, calib) = (set("rows", 1, 600, &model), set("other rows", 2, 400, &model));
    Subject { model, data, calib, calib_is_eval: false }
}

/// Its names are those of the demo; [`subject`] is what is opened.
pub fn spec() -> OpenSpec {
    let usual = OpenSpec::demo("cnn");
    let how = Opening { device: "cpu".into(), ..usual.how };
    OpenSpec { how, data: "rows".into(), calib: Some("other rows".into()), ..usual }
}

/// Mean squared error on the evaluation rows.
pub fn error(small: &Model) -> f64 {
    let rows = Rows::new(1, 600, &model());
    let plan = Plan::of(small, &CompileOptions::default()).expect("compiles");
    let all = squares(&plan.run(&rows.x).expect("runs"), &rows.y).and_then(|e| e.mean_all()?.to_scalar::<f32>());
    f64::from(all.expect("scalars"))
}
