//! From a model and calibration text to all that a policy is learnt from: levels, how long they take, what each of them says of text.
//!
//! The text is taken apart once, in the order that it comes in: the first windows say which MLPs go, half of the rest is what levels are re-fitted on
//! and makes the table of tokens, and from the others, which levels were not fitted on, is learnt. Not here: learning (`learn`), judging on other text (`trial`, `live`). Invariant: no window counts twice.

use super::error::{ControlError, Result};
use super::fits::Fits;
use super::ladder::{Ladder, level_models};
use super::learn::Lesson;
use super::search::{SearchOptions, Tried, search};
use super::signals::Table;
use super::trace::{Trace, trace};
use crate::exec::{Cancel, CompileOptions, KvFormat, Plan};
use crate::graph::ParamRole;
use crate::model::Model;
use crate::profile::{LevelTime, PairedOptions};
use crate::prune;
use candle_core::{Device, Tensor};
use std::collections::HashMap;
use std::time::Duration;

/// Windows that the search looks at, and tokens of each.
const LOOKED: (usize, usize) = (3, 64);
/// Cuts that an MLP goes in, and rungs measured anew between two levels.
const STEPS: usize = 4;
const RUNGS: usize = 1;
/// Tokens before those that levels are timed on.
const CONTEXT: usize = 128;
/// Windows of calibration text at least.
pub const FEWEST_WINDOWS: usize = LOOKED.0 + 10;

/// How it is done.
#[derive(Debug, Clone)]
pub struct Making {
    /// Levels, the whole network among them.
    pub levels: usize,
    /// The mean time of a token, as a share of the whole network's.
    pub target: f64,
    /// What the last level reads of the whole network's bytes a token; `None`: half as far again below the whole as the target.
    pub least: Option<f64>,
    pub kv: KvFormat,
    /// For timing the levels.
    pub time_limit: Duration,
}

/// What is under way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Stage {
    Branches(Tried),
    /// Levels that were re-fitted, and of how many.
    Fits(usize, usize),
    Times,
    /// Windows that make the table, done and of how many.
    Tokens(usize, usize),
    /// Windows that are learnt from.
    Levels(usize, usize),
}

/// What came of it.
#[derive(Debug)]
pub struct Made {
    pub ladder: Ladder,
    pub fits: Fits,
    pub plans: Vec<Plan>,
    pub times: Vec<LevelTime>,
    /// The same as shares of the whole network's, and what a change to each takes more.
    pub shares: Vec<f32>,
    pub entries: Vec<f32>,
    pub table: Table,
    pub lessons: Trace,
    /// Bytes of weights that levels hold beside the whole network's.
    pub beside: u64,
}

/// Makes levels of `model` with `windows` of token ids, or takes those of `ladder`, which fits it.
///
/// # Errors
/// Too few windows; no MLPs to leave out; what searching, compiling, timing and running report; cancellation.
pub fn make(
    model: &Model,
    windows: &[Vec<u32>],
    ladder: Option<Ladder>,
    (how, options): (&Making, &CompileOptions),
    cancel: &Cancel,
    told: &mut dyn FnMut(Stage),
) -> Result<Made> {
    if windows.len() < FEWEST_WINDOWS {
        return Err(ControlError::Short { what: "windows", found: windows.len(), least: FEWEST_WINDOWS });
    }
    let (looked, rest) = windows.split_at(LOOKED.0);
    let (tabled, taught) = rest.split_at(rest.len() / 2);
    let groups = prune::groups(&model.graph);
    let ladder = match ladder {
        Some(ladder) => ladder,
        None => {
            let tokens = looked.iter().map(Vec::len).min().unwrap_or(0).min(LOOKED.1);
            let ids: Vec<u32> = looked.iter().flat_map(|w| &w[..tokens]).copied().collect();
            let x = Tensor::from_vec(ids, (looked.len(), tokens), &Device::Cpu)?;
            let least = how.least.unwrap_or((1.0 - 1.5 * (1.0 - how.target)).max(0.4));
            let search_how = SearchOptions { levels: how.levels, least, steps: STEPS, rungs: RUNGS };
            search(model, &groups, &x, (&search_how, options), cancel, &mut |t| told(Stage::Branches(t)))?
        }
    };
    let mut fitted = |done, of| told(Stage::Fits(done, of));
    let fits = Fits::made(model, &groups, &ladder, tabled, cancel, &mut fitted)?;
    let levels: Vec<Model> = level_models(model, &groups, &ladder, &fits).collect::<Result<_>>()?;
    let plans: Vec<Plan> = levels.iter().map(|level| Ok(Plan::of(level, options)?)).collect::<Result<_>>()?;
    told(Stage::Times);
    let paired = PairedOptions { time_limit: how.time_limit, ..PairedOptions::default() };
    let times = crate::profile::levels(&plans, (CONTEXT, how.kv), &paired, cancel)?;
    let all: Vec<&Plan> = plans.iter().collect();
    // A table is of the whole network and the last level.
    let ends = [all[0], all[all.len() - 1]];
    let table = trace(&ends, tabled, cancel, &mut |n| told(Stage::Tokens(n, tabled.len())))?.table();
    let lessons = trace(&all, taught, cancel, &mut |n| told(Stage::Levels(n, taught.len())))?;
    let shares = times.iter().map(|t| t.ratio.value as f32).collect();
    let entries = times.iter().map(|t| t.entry as f32).collect();
    let beside = beside(&plans, &levels, model);
    Ok(Made { ladder, fits, plans, times, shares, entries, table, lessons, beside })
}

impl Made {
    /// What is learnt from, where the whole network reads the first `prompt` tokens of each window.
    pub fn lesson(&self, prompt: usize, target: f64) -> Lesson<'_> {
        let (times, entries) = (&self.shares[..], &self.entries[..]);
        Lesson { trace: &self.lessons, table: &self.table, prompt, times, entries, target }
    }
}

/// Bytes of weights that levels hold for themselves: what is narrowed is copied, once for all levels that keep as much of it, and everything else
/// is the whole network's.
fn beside(plans: &[Plan], levels: &[Model], model: &Model) -> u64 {
    let shape = |of: &Model, name: &str| of.params.get(name).ok().map(|p| p.shape().to_vec());
    let mut held: HashMap<(String, Vec<usize>), u64> = HashMap::new();
    for (plan, cut) in plans.iter().zip(levels).skip(1) {
        for step in plan.steps() {
            let Some(name) = cut.graph.node(step.node).param(ParamRole::Weight) else { continue };
            if let Some(own) = shape(cut, name).filter(|own| shape(model, name).as_ref() != Some(own)) {
                held.insert((name.to_owned(), own), step.held_bytes);
            }
        }
    }
    held.into_values().sum()
}
