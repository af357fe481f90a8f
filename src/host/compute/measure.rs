//! Measuring for the host: profiles, ladders, sensitivities, the baseline, and a compressed model against it.

use super::{Compute, JobError, counts, lock, working_batch};
use crate::eval::{self, EvalError, Margins, Metrics, Scored};
use crate::exec::Plan;
use crate::host::engine::Job;
use crate::model::Model;
use crate::plan::{self, Measured, Verdict};
use crate::profile::{
    self, Doubt, Ladder, LadderOptions, LadderProgress, LatencyStats, Paired, PairedOptions, Profile, ProfileError,
    ProfileOptions, ProfileUpdate, SensCurve, SensOptions, SensUpdate,
};
use crate::prune::PruneError;
use crate::recover::RepairError;
use crate::session::{Evaluation, Event, Feed, LiveRow, State, private};
use candle_core::Tensor;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Sensitivity curves become durable this often, so that a dead host has not measured in vain.
const KEEP_EVERY: Duration = Duration::from_secs(1);

/// Errors of which one is that the work was cancelled.
macro_rules! or_cancelled {
    ($($error:ident),*) => {$(
        impl From<$error> for JobError {
            fn from(e: $error) -> JobError {
                match e {
                    $error::Cancelled(_) => JobError::Cancelled,
                    other => JobError::of(other),
                }
            }
        }
    )*};
}
or_cancelled!(EvalError, ProfileError, PruneError, RepairError);

/// What did not go as asked, in the log pane.
fn tell(job: &Job, notes: &[String]) {
    for text in notes {
        job.say(Feed::warn(text));
    }
}

impl Compute {
    pub(super) fn threads(&self) -> Option<usize> {
        (self.shelf.recipe.how.threads > 0).then_some(self.shelf.recipe.how.threads)
    }

    /// A measurement's usual time, as the engineer would wait for it.
    fn patient(&self, usual: Duration) -> Duration {
        usual.mul_f64(self.patience)
    }

    pub(super) fn profile_model(&self, model: &Model, job: &Job) -> Result<Profile, JobError> {
        let options = ProfileOptions {
            batch: self.shelf.recipe.how.batch,
            threads: self.threads(),
            device: self.device.device.clone(),
            device_words: self.device.words.clone(),
            ceilings: *lock(&self.ceilings),
            time_limit: self.patient(ProfileOptions::default().time_limit),
            ..ProfileOptions::default()
        };
        let profile = profile::profile(model, &options, job.cancel(), &mut |update| match update {
            ProfileUpdate::Ceilings(c) => *lock(&self.ceilings) = Some(c),
            ProfileUpdate::Rows { runs, rows } => job.live(
                runs as u64,
                rows.into_iter().map(|(name, s)| LiveRow { name, p50_ms: s.p50, p95_ms: s.p95, n: s.n as u64 }),
            ),
            ProfileUpdate::Progress { label, done, total } => job.progress("profile", label, done, total),
        })?;
        tell(job, &profile.notes);
        Ok(profile)
    }

    pub(super) fn measure_ladders(&self, state: &State, job: &Job) -> Result<Vec<Ladder>, JobError> {
        let options = LadderOptions {
            // The batch that the profile has: where memory ran out it is a smaller one than was asked for.
            batch: state.profile_of(0).map_or(self.shelf.recipe.how.batch, |p| p.batch),
            threads: self.threads(),
            device: self.device.device.clone(),
            device_words: self.device.words.clone(),
            time_limit: self.patient(LadderOptions::default().time_limit),
            ..LadderOptions::default()
        };
        let cache = self.cache.as_deref();
        let mut said = |p: LadderProgress| {
            tell(job, p.note.as_slice());
            job.progress("ladders", &p.layer, p.done, p.total);
        };
        Ok(profile::ladders(&self.model.graph, &self.desk.groups, &options, cache, job.cancel(), &mut said)?)
    }

    pub(super) fn measure_sensitivity(&self, job: &Job) -> Result<(), JobError> {
        let evidence = self.evidence(job)?;
        let options = SensOptions {
            method: self.shelf.recipe.how.importance,
            evidence,
            batch: working_batch(&self.model).min(64),
            threads: self.threads(),
            device: self.device.device.clone(),
            ..SensOptions::default()
        };
        let mut base = (0.0, 0.0);
        let mut waiting: Vec<SensCurve> = Vec::new();
        let mut kept = Instant::now();
        let mut failed = None;
        let keep = |base: (f64, f64), curves: &mut Vec<SensCurve>| {
            self.unchanged()?;
            job.event(Event::Sensed { base_loss: base.0, base_score: base.1, curves: std::mem::take(curves) })
        };
        let cache = self.cache.as_deref();
        profile::sensitivity(&self.model, &self.desk.groups, &self.calib, &options, cache, job.cancel(), &mut |u| {
            match u {
                SensUpdate::Base { loss, score, .. } => base = (loss, score),
                SensUpdate::Note(text) => tell(job, &[text]),
                SensUpdate::Curve(curve) => {
                    waiting.push(curve);
                    if kept.elapsed() >= KEEP_EVERY && failed.is_none() {
                        kept = Instant::now();
                        if let Err(e) = keep(base, &mut waiting) {
                            failed = Some(e);
                            job.cancel().cancel();
                        }
                    }
                }
                SensUpdate::Progress { label, done, total } => job.progress("sensitivity", &label, done, total),
            }
        })
        .map(|_| ())
        .map_err(|e| failed.take().unwrap_or_else(|| e.into()))?;
        keep(base, &mut waiting)
    }

    fn evaluate_model(&self, model: &Model, plan: &Plan, label: &str, job: &Job) -> Result<Scored, JobError> {
        let (prep, batch) = (&model.info.preprocess, working_batch(model));
        let meter = &mut job.meter("evaluate", label);
        let run = eval::evaluate(plan, &self.data, prep, batch, job.cancel(), meter)?;
        tell(job, &run.notes);
        Ok(run)
    }

    pub(super) fn evaluate_original(&self, state: &State, job: &Job) -> Result<Evaluation, JobError> {
        let plan = self.compile(&self.model)?;
        let run = self.evaluate_model(&self.model, &plan, "the original", job)?;
        let margins = (!run.margins.is_empty()).then(|| Margins::of(&run.margins));
        self.unchanged()?;
        self.remember_baseline(run.scores);
        let (whole, doubt) = match state.profile_of(0) {
            Some(profile) => (profile.whole, profile.doubt),
            None => self.whole_latency(&plan, job)?,
        };
        let evaluation = self.evaluation(0, run.metrics, &self.model, &plan)?;
        Ok(Evaluation { whole, baseline_ms: whole.p50, margins, doubt, ..evaluation })
    }

    /// What is known of an evaluated model but for how long it takes.
    fn evaluation(&self, round: u32, metrics: Metrics, model: &Model, plan: &Plan) -> Result<Evaluation, JobError> {
        let (macs, params) = counts(model).map_err(JobError::Failed)?;
        let (weight_bytes, data_hash) = (plan.weight_bytes(), self.data.seen(0..self.data.len()));
        Ok(Evaluation { round, metrics, weight_bytes, params, macs, data_hash, ..Evaluation::default() })
    }

    fn paired_options(&self) -> PairedOptions {
        let threads = if self.device.device.is_cpu() { self.threads().unwrap_or_else(crate::exec::threads) } else { 1 };
        let usual = PairedOptions::default();
        PairedOptions { threads, seed: self.shelf.recipe.seed(), time_limit: self.patient(usual.time_limit), ..usual }
    }

    /// A batch of noise as the session measures latency on.
    fn noise(&self) -> Result<Tensor, JobError> {
        Ok(profile::noise(&self.model.graph, self.shelf.recipe.how.batch, &self.device.device)?)
    }

    fn whole_latency(&self, plan: &Plan, job: &Job) -> Result<(LatencyStats, Option<Doubt>), JobError> {
        let x = self.noise()?;
        let meter = &mut job.meter("evaluate", "latency");
        let (stats, doubt, launch) = profile::whole_latency(plan, &x, &self.paired_options(), job.cancel(), meter)?;
        tell(job, &launch.complaint().into_iter().collect::<Vec<_>>());
        Ok((stats, doubt))
    }

    /// Latency of `plan` beside the original's, on the session's batch.
    pub(super) fn time_beside(&self, original: &Plan, plan: &Plan, job: &Job) -> Result<Paired, JobError> {
        let x = self.noise()?;
        let meter = &mut job.meter("evaluate", "latency against the original");
        let (paired, launch) =
            profile::paired_latency(original, plan, &x, &self.paired_options(), job.cancel(), meter)?;
        tell(job, &paired.load.words().into_iter().chain(launch.complaint()).collect::<Vec<_>>());
        if let Some(why) = paired.doubt {
            let ratio = paired.ratio;
            let note = format!(
                "the latency factor {:.2}x [{:.2}, {:.2}] is in doubt: {why}",
                ratio.value, ratio.low, ratio.high
            );
            tell(job, &[note]);
        }
        Ok(paired)
    }

    /// Evaluates what a round made, in the same minute as the original's latency.
    pub(super) fn judge_model(
        &self,
        state: &State,
        round: u32,
        artifact: &str,
        job: &Job,
    ) -> Result<(Evaluation, Verdict), JobError> {
        let missing = || JobError::Failed("the baseline was never evaluated; hint: run again".to_owned());
        let baseline = state.baseline().ok_or_else(missing)?;
        let model = self.shelf.artifact(artifact)?;
        let (plan, original) = (self.compile(&model)?, self.compile(&self.model)?);
        let scores = self.baseline_scores(&original, job)?;
        let run = self.evaluate_model(&model, &plan, "the compressed model", job)?;
        let evaluation = self.evaluation(round, run.metrics, &model, &plan)?;
        if let (Some(then), Some(now)) = (&baseline.data_hash, &evaluation.data_hash)
            && then != now
        {
            return Err(JobError::Failed(format!(
                "the images of evaluation data `{}` changed since the baseline was measured on them; hint: put the old data \
                 back, or open a new session with `--name`",
                self.shelf.recipe.data.spec
            )));
        }
        let change = self.data.task().compare(&scores, &run.scores);
        let latency = self.time_beside(&original, &plan, job)?;
        let layers = self.profile_model(&model, job)?;
        let counted = |e: &Evaluation| Measured {
            macs: e.macs.get(crate::graph::MacConvention::default()),
            weight_bytes: e.weight_bytes,
            params: e.params,
        };
        let verdict = plan::verdict(&state.budget, &counted(baseline), &counted(&evaluation), latency.ratio, change);
        let mut evaluation = Evaluation { profile: Some(layers), ..evaluation };
        evaluation.measured_again(&latency);
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

    /// What the original scores on each item: from memory, from the session's folder, or evaluated again.
    fn baseline_scores(&self, original: &Plan, job: &Job) -> Result<Arc<Vec<f32>>, JobError> {
        if let Some(known) = lock(&self.baseline).clone() {
            return Ok(known);
        }
        if let Ok(bytes) = private::read(&self.shelf.place.baseline_file(), 4 * self.data.len() as u64)
            && let Some(scores) = stored_scores(&bytes, self.data.len())
        {
            return Ok(lock(&self.baseline).insert(Arc::new(scores)).clone());
        }
        let run = self.evaluate_model(&self.model, original, "the original", job)?;
        self.unchanged()?;
        Ok(lock(&self.baseline).insert(Arc::new(run.scores)).clone())
    }
}

/// Scores of `n` items as they were stored: an f32 each, or in sessions of older versions a byte, 1 for right.
fn stored_scores(bytes: &[u8], n: usize) -> Option<Vec<f32>> {
    if bytes.len() == n {
        return Some(bytes.iter().map(|&b| f32::from(u8::from(b == 1))).collect());
    }
    let (each, rest) = bytes.as_chunks::<4>();
    (each.len() == n && rest.is_empty()).then(|| each.iter().map(|b| f32::from_le_bytes(*b)).collect())
}
