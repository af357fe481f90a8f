//! What a model is worth: the original's evaluation, a compressed model's against it, and its verdict.
//!
//! Not here: times and profiles (`measure`). Invariant: a change is of pairs, both models on the same items.

use super::answers::{Answers, Confidences};
use super::measure::{parameters_of, tell};
use super::{Compute, JobError, counts, lock};
use crate::eval::{self, Against, Divergence, EvalError, Margins, Metrics, Scored, Until};
use crate::exec::{ExecError, OutOfMemory, Plan};
use crate::host::engine::Job;
use crate::model::Model;
use crate::plan::{self, Measured, Verdict};
use crate::profile::{Profile, Ratio};
use crate::session::{Evaluation, Part, State, private};
use crate::task::{ALPHA, Change, WorstClass, worst_class};
use candle_core::Tensor;
use std::sync::Arc;

/// What a model scores, and how likely it holds the classes that it answers ([`Answers::confidence`]).
struct Ran {
    run: Scored,
    confidence: Vec<f64>,
}

/// What a round's model is worth.
struct Judged {
    run: Scored,
    confidence: Vec<f64>,
    /// Against the original, on the same items.
    change: Change,
    worst: Option<WorstClass>,
    divergence: Option<Divergence>,
    /// Where not all of the data was looked at.
    part: Option<Part>,
    /// What was looked at, in the order of the run's lists; `None`: all.
    drawn: Option<Vec<usize>>,
}

impl Compute {
    fn evaluate_model(&self, model: &Model, plan: &Plan, label: &str, job: &Job) -> Result<Ran, JobError> {
        let (prep, batch) = (&model.info.preprocess, self.working_batch());
        let meter = &mut job.meter("evaluate", label);
        let (mut session, mut sure) = (plan.session(), Confidences::over(&self.data, batch));
        let outputs = |x: &Tensor| -> Result<Tensor, ExecError> {
            let outputs = session.run(x)?;
            sure.add(&outputs);
            Ok(outputs)
        };
        let run = eval::score_with(&self.data, prep, batch, job.cancel(), outputs, meter)?;
        tell(job, &run.notes);
        Ok(Ran { run, confidence: sure.placed() })
    }

    /// Evaluates what a round made; with how far its outputs are from the original's, where the task tells that and the device has memory
    /// for both.
    fn evaluate_beside(&self, model: &Model, plan: &Plan, job: &Job) -> Result<(Ran, Option<Divergence>), JobError> {
        let label = "the compressed model";
        if !self.data.task().beside() {
            return Ok((self.evaluate_model(model, plan, label, job)?, None));
        }
        let beside = || -> Result<Against, EvalError> {
            let original = Plan::of(&self.model, &self.compiles())?;
            let (prep, batch) = (&model.info.preprocess, self.working_batch());
            let meter = &mut job.meter("evaluate", label);
            eval::against(&original, plan, &self.data, prep, batch, job.cancel(), meter)
        };
        match beside() {
            Err(e) if e.is_out_of_memory() => {
                tell(
                    job,
                    &["how far the outputs are from the original's was not measured: no memory for both".to_owned()],
                );
                Ok((self.evaluate_model(model, plan, label, job)?, None))
            }
            found => {
                let found = found?;
                tell(job, &found.model.notes);
                Ok((Ran { run: found.model, confidence: Vec::new() }, Some(found.divergence)))
            }
        }
    }

    /// Evaluates what a round made: on all of the data, or where that is asked for and can be told of such a task, no longer than until it is
    /// clear whether the budget's `drop` is kept; with the change against `base`, what the original scores on each item.
    fn score(
        &self,
        state: &State,
        (model, plan): (&Model, &Plan),
        base: &[f32],
        until_clear: bool,
        job: &Job,
    ) -> Result<Judged, JobError> {
        let classes = state.baseline().is_some_and(|b| b.metrics.classes.is_some());
        let task = self.data.task();
        // The interval of a class's loss is one for a number of images that was fixed before.
        let may_stop = until_clear && classes && !task.beside() && state.budget.class.is_none();
        let Some(allowed) = state.budget.drop.filter(|_| may_stop) else {
            let (Ran { run, confidence }, divergence) = self.evaluate_beside(model, plan, job)?;
            let change = task.compare(base, &run.scores);
            let worst = classes.then(|| self.worst_class(base, &run)).flatten();
            return Ok(Judged { run, confidence, change, worst, divergence, part: None, drawn: None });
        };
        let right = correct(base);
        let until = Until { allowed, alpha: ALPHA, seed: self.shelf.recipe.seed() };
        let (prep, batch) = (&model.info.preprocess, self.working_batch());
        let meter = &mut job.meter("evaluate", "the compressed model, until it is clear");
        let drawn = eval::drawn_until_clear((plan, &right), &self.data, prep, batch, &until, job.cancel(), meter)?;
        tell(job, &drawn.scored.notes);
        let of: Vec<f32> = drawn.items.iter().map(|&i| base[i]).collect();
        let change = task.compare(&of, &drawn.scored.scores);
        let (run, items) = (drawn.scored, Some(drawn.items));
        // What stops when it is clear hands no outputs out.
        let (confidence, worst, divergence) = (Vec::new(), None, None);
        if run.scores.len() == self.data.len() {
            return Ok(Judged { run, confidence, change, worst, divergence, part: None, drawn: items });
        }
        // The interval that holds wherever one stops: the usual one of so many items would be too narrow.
        let (low, high) = drawn.test.range();
        let change = Change { low: low.min(change.value), high: high.max(change.value), ..change };
        let part = Some(Part { of: self.data.len(), level: drawn.test.level() });
        Ok(Judged { run, confidence, change, worst, divergence, part, drawn: items })
    }

    /// What the class loses that loses most, where all items have a class.
    fn worst_class(&self, base: &[f32], run: &Scored) -> Option<WorstClass> {
        let labels: Vec<u32> = (0..self.data.len()).map(|i| self.data.label(i)).collect::<Option<_>>()?;
        worst_class(&correct(base), &run.correct(), &labels)
    }

    pub(super) fn evaluate_original(&self, state: &State, job: &Job) -> Result<Evaluation, JobError> {
        let plan = self.compile(&self.model)?;
        let Ran { mut run, confidence } = self.evaluate_model(&self.model, &plan, "the original", job)?;
        let metrics = std::mem::take(&mut run.metrics);
        let margins = (!run.margins.is_empty()).then(|| Margins::of(&run.margins));
        self.unchanged()?;
        let answers = Answers::of(run, confidence, None);
        self.keep_answers(&self.answers_of(state, 0), 0, &answers);
        self.remember_baseline(answers.scores);
        let (whole, doubt) = match state.profile_of(0) {
            Some(profile) => (profile.whole, profile.doubt),
            None => self.whole_latency(&plan, self.latency_batch(state), job)?.unwrap_or_default(),
        };
        let evaluation = self.evaluation(0, metrics, &self.model, &plan)?;
        Ok(Evaluation { whole, baseline_ms: whole.p50, margins, doubt, ..evaluation })
    }

    /// What is known of an evaluated model but for how long it takes.
    fn evaluation(&self, round: u32, metrics: Metrics, model: &Model, plan: &Plan) -> Result<Evaluation, JobError> {
        let (macs, params) = counts(model).map_err(JobError::Failed)?;
        let (weight_bytes, data_hash) = (plan.weight_bytes(), self.data.seen(0..self.data.len()));
        Ok(Evaluation { round, metrics, weight_bytes, params, macs, data_hash, ..Evaluation::default() })
    }

    /// Evaluates what a round made, in the same minute as the original's latency. What only a latency or a layer's time found no memory
    /// for is left out: the model and what it scores stay.
    pub(super) fn judge_model(
        &self,
        state: &State,
        (round, artifact): (u32, &str),
        until_clear: bool,
        job: &Job,
    ) -> Result<(Evaluation, Verdict), JobError> {
        let missing = || JobError::Failed("the baseline was never evaluated; hint: run again".to_owned());
        let baseline = state.baseline().ok_or_else(missing)?;
        let model = self.shelf.artifact(artifact)?;
        let scores = self.baseline_scores(job)?;
        let (change, worst, evaluation) = {
            let plan = self.compile(&model)?;
            let Judged { mut run, confidence, change, worst, divergence, part, drawn } =
                self.score(state, (&model, &plan), &scores, until_clear, job)?;
            let metrics = std::mem::take(&mut run.metrics);
            self.keep_answers(&self.answers_by(artifact), round, &Answers::of(run, confidence, drawn.as_deref()));
            let whole = self.evaluation(round, metrics, &model, &plan)?;
            // What was not looked at was not read.
            let data_hash = whole.data_hash.filter(|_| part.is_none());
            (change, worst, Evaluation { divergence, part, data_hash, ..whole })
        };
        if let (Some(then), Some(now)) = (&baseline.data_hash, &evaluation.data_hash)
            && then != now
        {
            return Err(JobError::Failed(format!(
                "the images of evaluation data `{}` changed since the baseline was measured on them; hint: put the old data \
                 back, or open a new session with `--name`",
                self.shelf.recipe.data.spec
            )));
        }
        let latency = self.time_beside(state, &model, job)?;
        let batch = self.latency_batch(state);
        let layers = match self.profile_in(batch, &model, job) {
            Err(e) if !e.is_out_of_memory() => return Err(e.into()),
            timed => timed.ok().filter(|p| p.batch == batch),
        };
        let layers = match layers {
            Some(timed) => Some(Profile { parameters: parameters_of(&model, job)?, ..timed }),
            None => None,
        };
        if layers.is_none() {
            let text =
                format!("the device has no memory to time the compressed model's layers with {batch} images a batch");
            tell(job, &[text]);
        }
        let counted = |e: &Evaluation| Measured {
            macs: e.macs.get(crate::graph::MacConvention::default()),
            weight_bytes: e.weight_bytes,
            params: e.params,
        };
        let factor = latency.map_or(Ratio::UNKNOWN, |l| l.ratio);
        let kl = evaluation.divergence.map(|d| d.kl);
        let verdict =
            plan::verdict(&state.budget, &counted(baseline), &counted(&evaluation), factor, change, worst, kl);
        let mut evaluation = Evaluation { profile: layers, ..evaluation };
        if let Some(latency) = &latency {
            evaluation.measured_again(latency);
        }
        Ok((evaluation, verdict))
    }

    fn remember_baseline(&self, scores: Vec<f32>) {
        let bytes: Vec<u8> = scores.iter().flat_map(|s| s.to_le_bytes()).collect();
        if let Err(e) = crate::files::write_privately(&self.shelf.place.baseline_file(), &bytes) {
            // Worked out again when it is needed.
            tracing::warn!(error = %e, "could not keep the baseline's scores");
        }
        *lock(&self.baseline) = Some(Arc::new(scores));
    }

    /// What the original scores on each item, as the session's folder has it.
    pub(super) fn kept_scores(&self) -> Option<Vec<f32>> {
        let bytes = private::read(&self.shelf.place.baseline_file(), 4 * self.data.len() as u64).ok()?;
        stored_scores(&bytes, self.data.len())
    }

    /// What the original scores on each item: from memory, from the session's folder, or evaluated again.
    fn baseline_scores(&self, job: &Job) -> Result<Arc<Vec<f32>>, JobError> {
        if let Some(known) = lock(&self.baseline).clone() {
            return Ok(known);
        }
        if let Some(scores) = self.kept_scores() {
            return Ok(lock(&self.baseline).insert(Arc::new(scores)).clone());
        }
        let Ran { run, .. } = self.evaluate_model(&self.model, &self.compile(&self.model)?, "the original", job)?;
        self.unchanged()?;
        Ok(lock(&self.baseline).insert(Arc::new(run.scores)).clone())
    }
}

/// Which items a classifier with these scores gets right, as [`Scored::correct`] has it.
fn correct(scores: &[f32]) -> Vec<bool> {
    Scored { scores: scores.to_vec(), ..Scored::default() }.correct()
}

/// Scores of `n` items as they were stored: an f32 each, or in sessions of older versions a byte, 1 for right.
fn stored_scores(bytes: &[u8], n: usize) -> Option<Vec<f32>> {
    if bytes.len() == n {
        return Some(bytes.iter().map(|&b| f32::from(u8::from(b == 1))).collect());
    }
    let (each, rest) = bytes.as_chunks::<4>();
    (each.len() == n && rest.is_empty()).then(|| each.iter().map(|b| f32::from_le_bytes(*b)).collect())
}
