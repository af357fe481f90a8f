//! Measuring for the host: profiles, ladders, sensitivities, the baseline, and a compressed model against it.

use super::{Compute, JobError, counts, lock, working_batch};
use crate::eval::{self, EvalError, EvalRun, Margins};
use crate::exec::{Cancel, Plan};
use crate::host::engine::Job;
use crate::model::Model;
use crate::plan::{self, Measured, Verdict};
use crate::profile::{
    self, Doubt, Ladder, LadderOptions, LatencyStats, Paired, PairedOptions, Profile, ProfileError, ProfileOptions,
    ProfileUpdate, SensCurve, SensOptions, SensUpdate,
};
use crate::prune::PruneError;
use crate::session::{Evaluation, Event, Feed, LiveRow, State, private};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Sensitivity curves become durable this often, so that a dead host has not measured in vain.
const KEEP_EVERY: Duration = Duration::from_secs(1);

impl From<ProfileError> for JobError {
    fn from(e: ProfileError) -> JobError {
        if e.is_cancelled() { JobError::Cancelled } else { JobError::of(e) }
    }
}

impl From<EvalError> for JobError {
    fn from(e: EvalError) -> JobError {
        match e {
            EvalError::Cancelled(_) => JobError::Cancelled,
            other => JobError::of(other),
        }
    }
}

impl From<PruneError> for JobError {
    fn from(e: PruneError) -> JobError {
        match e {
            PruneError::Cancelled(_) => JobError::Cancelled,
            other => JobError::of(other),
        }
    }
}

/// One pass of `plan` over the session's data.
pub fn run_eval(
    plan: &Plan,
    data: &crate::data::Dataset,
    model: &Model,
    cancel: &Cancel,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<EvalRun, EvalError> {
    let mut session = plan.session();
    let forward = |x: &_| session.run(x);
    eval::score_with(data, &model.info.preprocess, working_batch(model), cancel, forward, progress)
}

/// What did not go as asked, in the log pane.
fn tell(job: &Job, notes: &[String]) {
    for text in notes {
        job.say(Feed::Log { level: "warn".to_owned(), text: text.clone() });
    }
}

impl Compute {
    fn threads(&self) -> Option<usize> {
        (self.spec.threads > 0).then_some(self.spec.threads)
    }

    /// A measurement's usual time, as the engineer would wait for it.
    fn patient(&self, usual: Duration) -> Duration {
        usual.mul_f64(self.spec.patience)
    }

    pub(super) fn profile_model(&self, model: &Model, job: &Job) -> Result<Profile, JobError> {
        let options = ProfileOptions {
            batch: self.batch,
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
            ProfileUpdate::Progress { label, done, total } => {
                job.progress("profile", label, done as u64, total as u64);
            }
        })?;
        tell(job, &profile.notes);
        Ok(profile)
    }

    pub(super) fn measure_ladders(&self, job: &Job) -> Result<Vec<Ladder>, JobError> {
        let options = LadderOptions {
            batch: self.batch,
            threads: self.threads(),
            device: self.device.device.clone(),
            device_words: self.device.words.clone(),
            time_limit: self.patient(LadderOptions::default().time_limit),
            ..LadderOptions::default()
        };
        let cache = self.cache.as_deref();
        let ladders = profile::ladders(&self.model.graph, &self.groups, &options, cache, job.cancel(), &mut |p| {
            job.progress("ladders", &p.layer, p.done as u64, p.total as u64);
        })?;
        Ok(ladders)
    }

    pub(super) fn measure_sensitivity(&self, job: &Job) -> Result<(), JobError> {
        let evidence = self.evidence(job)?;
        let options = SensOptions {
            method: self.spec.importance,
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
        profile::sensitivity(&self.model, &self.groups, &self.calib, &options, cache, job.cancel(), &mut |u| match u {
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
            SensUpdate::Progress { label, done, total } => {
                job.progress("sensitivity", &label, done as u64, total as u64);
            }
        })
        .map(|_| ())
        .map_err(|e| failed.take().unwrap_or_else(|| e.into()))?;
        keep(base, &mut waiting)
    }

    fn evaluate_model(&self, model: &Model, plan: &Plan, label: &str, job: &Job) -> Result<EvalRun, JobError> {
        let run = run_eval(plan, &self.data, model, job.cancel(), &mut |done, total| {
            job.progress("evaluate", label, done as u64, total as u64);
        })?;
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
        let (macs, params) = counts(&self.model).map_err(JobError::Failed)?;
        Ok(Evaluation {
            round: 0,
            metrics: run.metrics,
            whole,
            weight_bytes: plan.weight_bytes(),
            params,
            macs,
            profile: None,
            baseline_ms: whole.p50,
            margins,
            data_hash: self.data.seen(0..self.data.len()),
            paired: None,
            doubt,
        })
    }

    fn paired_options(&self) -> PairedOptions {
        let threads = if self.device.device.is_cpu() { self.threads().unwrap_or_else(crate::exec::threads) } else { 1 };
        let usual = PairedOptions::default();
        PairedOptions { threads, seed: self.spec.seed, time_limit: self.patient(usual.time_limit), ..usual }
    }

    fn whole_latency(&self, plan: &Plan, job: &Job) -> Result<(LatencyStats, Option<Doubt>), JobError> {
        let shape = self.model.graph.input_shape().map_err(JobError::of)?;
        let x = profile::noise(&shape, self.batch, &self.device.device)?;
        let mut progress = |done: usize, total: usize| job.progress("evaluate", "latency", done as u64, total as u64);
        Ok(profile::whole_latency(plan, &x, &self.paired_options(), job.cancel(), &mut progress)?)
    }

    /// Latency of `plan` beside the original's, on the session's batch.
    pub(super) fn time_beside(&self, original: &Plan, plan: &Plan, job: &Job) -> Result<Paired, JobError> {
        let shape = self.model.graph.input_shape().map_err(JobError::of)?;
        let x = profile::noise(&shape, self.batch, &self.device.device)?;
        let mut progress = |done: usize, total: usize| {
            job.progress("evaluate", "latency against the original", done as u64, total as u64);
        };
        let paired = profile::paired_latency(original, plan, &x, &self.paired_options(), job.cancel(), &mut progress)?;
        tell(job, &paired.load.words().into_iter().collect::<Vec<_>>());
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
        let model = self.artifact(artifact)?;
        let (plan, original) = (self.compile(&model)?, self.compile(&self.model)?);
        let scores = self.baseline_scores(&original, job)?;
        let run = self.evaluate_model(&model, &plan, "the compressed model", job)?;
        let data_hash = self.data.seen(0..self.data.len());
        if let (Some(then), Some(now)) = (&baseline.data_hash, &data_hash)
            && then != now
        {
            return Err(JobError::Failed(format!(
                "the images of evaluation data `{}` changed since the baseline was measured on them; hint: put the old data \
                 back, or open a new session with `--name`",
                self.recipe.data.spec
            )));
        }
        let change = self.data.task().compare(&scores, &run.scores);
        let latency = self.time_beside(&original, &plan, job)?;
        let layers = self.profile_model(&model, job)?;
        let (macs, params) = counts(&model).map_err(JobError::Failed)?;
        let convention = crate::graph::MacConvention::default();
        let base = Measured {
            macs: baseline.macs.get(convention),
            weight_bytes: baseline.weight_bytes,
            params: baseline.params,
        };
        let new = Measured { macs: macs.get(convention), weight_bytes: plan.weight_bytes(), params };
        let verdict = plan::verdict(&state.budget, &base, &new, latency.ratio, change);
        let evaluation = Evaluation {
            round,
            metrics: run.metrics,
            whole: latency.new,
            weight_bytes: plan.weight_bytes(),
            params,
            macs,
            profile: Some(layers),
            margins: None,
            data_hash,
            baseline_ms: latency.base.p50,
            doubt: latency.doubt,
            paired: Some(latency),
        };
        Ok((evaluation, verdict))
    }

    fn remember_baseline(&self, scores: Vec<f32>) {
        let bytes: Vec<u8> = scores.iter().flat_map(|s| s.to_le_bytes()).collect();
        if let Err(e) = crate::files::write_privately(&self.place.baseline_file(), &bytes) {
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
        if let Ok(bytes) = private::read(&self.place.baseline_file(), 4 * self.data.len() as u64)
            && let Some(scores) = stored_scores(&bytes, self.data.len())
        {
            let scores = Arc::new(scores);
            *lock(&self.baseline) = Some(scores.clone());
            return Ok(scores);
        }
        let run = self.evaluate_model(&self.model, original, "the original", job)?;
        self.unchanged()?;
        let scores = Arc::new(run.scores);
        *lock(&self.baseline) = Some(scores.clone());
        Ok(scores)
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
