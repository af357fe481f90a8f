//! Measuring for the host: profiles, ladders, sensitivities, latencies. Not here: what a model is worth (`judge`).

use super::{Compute, JobError, lock, takes_text, working_batch};
use crate::eval::EvalError;
use crate::exec::{KvFormat, OutOfMemory, Plan, halving};
use crate::graph::Graph;
use crate::graph::ggml::Block;
use crate::host::engine::Job;
use crate::model::Model;
use crate::profile::{
    self, Doubt, Ladder, LadderOptions, LadderProgress, LatencyStats, LayerParameters, Paired, PairedOptions, Profile,
    ProfileError, ProfileOptions, ProfileUpdate, SensCurve, SensOptions, SensUpdate, Workload,
};
use crate::prune::PruneError;
use crate::recover::RepairError;
use crate::session::{Event, Feed, LiveRow, State};
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
pub(super) fn tell(job: &Job, notes: &[String]) {
    for text in notes {
        job.say(Feed::warn(text));
    }
}

impl Compute {
    pub(super) fn threads(&self) -> Option<usize> {
        (self.shelf.recipe.how.threads > 0).then_some(self.shelf.recipe.how.threads)
    }

    /// A measurement's usual time, as the engineer would wait for it.
    pub(super) fn patient(&self, usual: Duration) -> Duration {
        usual.mul_f64(self.patience)
    }

    /// Items at once for work whose latency does not count: no more than somebody asked for.
    pub(super) fn working_batch(&self) -> usize {
        at_most(working_batch(&self.model), self.shelf.recipe.most_at_once)
    }

    /// Items a batch of every latency: as the original's profile has them, which are fewer than was asked for where memory ran out.
    pub(super) fn latency_batch(&self, state: &State) -> usize {
        state.profile_of(0).map_or(self.shelf.recipe.how.batch, |p| p.batch)
    }

    /// Profiles the model that `round` made. Its weights, which never change, are looked at once.
    pub(super) fn profile_round(&self, state: &State, round: u32, job: &Job) -> Result<Profile, JobError> {
        let model = self.model_of(state, round)?;
        let profile = self.profile_in(self.latency_batch(state), &model, job)?;
        let parameters = match state.profile_of(round).map(|p| &p.parameters).filter(|known| !known.is_empty()) {
            Some(known) => known.clone(),
            None => parameters_of(&model, job)?,
        };
        Ok(Profile { parameters, ..profile })
    }

    pub(super) fn profile_in(&self, batch: usize, model: &Model, job: &Job) -> Result<Profile, ProfileError> {
        let options = ProfileOptions {
            batch,
            threads: self.threads(),
            device: self.device.device.clone(),
            device_words: self.device.words.clone(),
            ceilings: *lock(&self.ceilings),
            time_limit: self.patient(ProfileOptions::default().time_limit),
            tail: self.patient(ProfileOptions::TAIL),
            as_stored: self.as_stored(),
            ..ProfileOptions::default()
        };
        let mut profile = profile::profile(model, &options, job.cancel(), &mut |update| match update {
            // One that found no memory may find some next time.
            ProfileUpdate::Ceilings(c) => *lock(&self.ceilings) = c.complete().then_some(c),
            ProfileUpdate::Rows { runs, rows } => job.live(
                runs as u64,
                rows.into_iter().map(|(name, s)| LiveRow { name, p50_ms: s.p50, p95_ms: s.p95, n: s.n as u64 }),
            ),
            ProfileUpdate::Progress { label, done, total } => job.progress("profile", label, done, total),
        })?;
        profile.fold_halves(&self.model.graph);
        tell(job, &profile.notes);
        Ok(profile)
    }

    /// One token after as many as a window has; `None` where nothing goes token by token, or there is no memory for it.
    pub(super) fn profile_decoding(&self, model: &Model, job: &Job) -> Result<Option<Profile>, JobError> {
        if !takes_text(model) {
            return Ok(None);
        }
        let context = model.graph.input_shape().ok().and_then(|s| s.first().copied()).unwrap_or(512);
        let model = Model { graph: Arc::new(Graph::clone(&model.graph).freed()), ..model.clone() };
        let options = ProfileOptions {
            threads: self.threads(),
            device: self.device.device.clone(),
            device_words: self.device.words.clone(),
            ceilings: *lock(&self.ceilings),
            // Beside passes, which forecasts rest on.
            time_limit: self.patient(ProfileOptions::default().time_limit / 3),
            workload: Workload::Decode { context, kv: KvFormat::default() },
            ..ProfileOptions::default()
        };
        let profiled = profile::profile(&model, &options, job.cancel(), &mut |update| match update {
            ProfileUpdate::Progress { label, done, total } => job.progress("tokens", label, done, total),
            // The rows that are shown live are those of passes.
            ProfileUpdate::Ceilings(_) | ProfileUpdate::Rows { .. } => {}
        });
        let mut profile = match profiled {
            Err(e) if e.is_out_of_memory() => {
                tell(job, &["what a token takes was not measured: the device ran out of memory".to_owned()]);
                return Ok(None);
            }
            other => other?,
        };
        profile.fold_halves(&self.model.graph);
        tell(job, &profile.notes);
        Ok(Some(profile))
    }

    pub(super) fn measure_ladders(&self, state: &State, job: &Job) -> Result<Vec<Ladder>, JobError> {
        let options = LadderOptions {
            batch: self.latency_batch(state),
            threads: self.threads(),
            device: self.device.device.clone(),
            device_words: self.device.words.clone(),
            stored: self.as_stored().then(|| self.model.precision.clone()),
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
            batch: self.working_batch().min(64),
            formats: if self.model.graph.is_language_model() { Block::ALL.to_vec() } else { Vec::new() },
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

    fn paired_options(&self) -> PairedOptions {
        let threads = if self.device.device.is_cpu() { self.threads().unwrap_or_else(crate::exec::threads) } else { 1 };
        let usual = PairedOptions::default();
        PairedOptions { threads, seed: self.shelf.recipe.seed(), time_limit: self.patient(usual.time_limit), ..usual }
    }

    /// `None` where the device has no memory for `batch` items.
    pub(super) fn whole_latency(
        &self,
        plan: &Plan,
        batch: usize,
        job: &Job,
    ) -> Result<Option<(LatencyStats, Option<Doubt>)>, JobError> {
        let timed = in_memory(batch, |batch| {
            let x = profile::noise(&self.model.graph, batch, &self.device.device)?;
            let meter = &mut job.meter("evaluate", "latency");
            profile::whole_latency(plan, &x, &self.paired_options(), job.cancel(), meter)
        })?;
        let Some(((stats, doubt, launch), ran)) = timed else {
            tell(job, &[unmeasured(batch, None)]);
            return Ok(None);
        };
        tell(job, &launch.complaint().into_iter().collect::<Vec<_>>());
        if ran < batch {
            tell(job, &[unmeasured(batch, Some((ran, format!("{:.3} ms a batch", stats.p50))))]);
            return Ok(None);
        }
        Ok(Some((stats, doubt)))
    }

    /// Latency of `model` beside the original's, with batches as the original's profile has them. `None` where the device has no memory
    /// for both at once with such batches: with smaller ones the factor is told, and is no figure of the session, whose others
    /// are of larger batches.
    pub(super) fn time_beside(&self, state: &State, model: &Model, job: &Job) -> Result<Option<Paired>, JobError> {
        let batch = self.latency_batch(state);
        let options = self.compiles();
        let timed = in_memory(batch, |batch| {
            let (original, plan) = (Plan::of(&self.model, &options)?, Plan::of(model, &options)?);
            let x = profile::noise(&self.model.graph, batch, &self.device.device)?;
            let meter = &mut job.meter("evaluate", "latency against the original");
            profile::paired_latency(&original, &plan, &x, &self.paired_options(), job.cancel(), meter)
        })?;
        let Some(((paired, launch), ran)) = timed else {
            tell(job, &[unmeasured(batch, None)]);
            return Ok(None);
        };
        tell(job, &paired.load.words().into_iter().chain(launch.complaint()).collect::<Vec<_>>());
        let ratio = paired.ratio;
        let factor = format!("{:.2}x [{:.2}, {:.2}]", ratio.value, ratio.low, ratio.high);
        if let Some(why) = paired.doubt {
            tell(job, &[format!("the latency factor {factor} is in doubt: {why}")]);
        }
        if ran < batch {
            tell(job, &[unmeasured(batch, Some((ran, format!("{factor} of the original's"))))]);
            return Ok(None);
        }
        Ok(Some(paired))
    }
}

/// What there is to tell of the weights of `model`'s layers.
pub(super) fn parameters_of(model: &Model, job: &Job) -> Result<Vec<LayerParameters>, ProfileError> {
    profile::parameters(model, job.cancel(), &mut |layer, done, all| {
        job.progress("parameters", layer, done, all);
    })
}

/// The usual number of items, or fewer where somebody asked for fewer (0: nobody did).
fn at_most(usual: usize, asked: usize) -> usize {
    if asked == 0 { usual } else { usual.min(asked) }
}

/// As [`halving`], and `None` where one item is too many.
fn in_memory<T>(
    batch: usize,
    time: impl FnMut(usize) -> Result<T, ProfileError>,
) -> Result<Option<(T, usize)>, ProfileError> {
    match halving(batch, time) {
        Err(e) if e.is_out_of_memory() => Ok(None),
        timed => timed.map(Some),
    }
}

/// That there is no latency of `batch` items, and what there is to say of fewer.
fn unmeasured(batch: usize, fewer: Option<(usize, String)>) -> String {
    let fewer = fewer.map_or_else(String::new, |(ran, found)| format!("; with {ran} a batch it is {found}"));
    format!(
        "the latency was not measured: the device ran out of memory with {batch} images a batch{fewer}; hint: open the \
         session with a smaller --batch"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_runs_more_at_once_than_was_asked_for() {
        assert_eq!([at_most(128, 0), at_most(128, 8), at_most(16, 64)], [128, 8, 16]);
    }

    #[test]
    fn a_comparison_that_does_not_fit_is_halved_or_left_out() {
        let full = || ProfileError::from(candle_core::Error::Cuda("CUDA_ERROR_OUT_OF_MEMORY".into()));
        let most = |most: usize| in_memory(64, |n| if n > most { Err(full()) } else { Ok(n) });
        assert_eq!(most(64).expect("fits"), Some((64, 64)));
        assert_eq!(most(20).expect("halved"), Some((16, 16)));
        assert_eq!(most(0).expect("left out"), None);
        assert!(in_memory(64, |_| Err::<(), _>(ProfileError::NoImages)).is_err());
    }
}
