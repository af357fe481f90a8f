//! What commands may ask while the session's thread waits: answers from plain data that is ready.
//!
//! Invariant: nothing here can reach a model, a data set or a device, so that no command ever waits for compute. What
//! needs work (how units of a group rank) a job works out and leaves in [`Ranks`]; until then a cut is accepted by its ratio
//! alone, and a job picks its units before it is applied.

use crate::graph::Graph;
use crate::plan::{self, Action, Target};
use crate::prune::{self, Group};
use crate::quant::Precision;
use crate::session::State;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// Quick answers about actions.
pub trait Desk: Send + Sync {
    /// Checks an action against the model's groups and the constraints, rounds its ratio, and picks the kept units where
    /// it is known how they rank; else `kept` comes back empty.
    fn resolve(&self, state: &State, target: &Target, action: &Action) -> Result<Action, String>;

    /// The units of group `id` that stay when `ratio` of it goes; `None` while it is not known how they rank.
    fn kept(&self, id: &str, ratio: f64) -> Option<Vec<u32>>;

    /// How much the units of group `id` matter, as cuts rank them; `None` while that is not known.
    fn importance(&self, _id: &str) -> Option<Arc<Vec<f32>>> {
        None
    }

    /// Why the session's device cannot carry an action out: one that was decided on another device.
    fn refuses(&self, action: &Action) -> Option<String>;

    /// Whether there are held-back images to rehearse plans on.
    fn rehearses(&self) -> bool;

    /// Whether levels and a controller can be made of the session's model.
    ///
    /// # Errors
    /// Why not, in words.
    fn controls(&self) -> Result<(), String>;

    /// Whether what is made of the session's model can be healed.
    ///
    /// # Errors
    /// Why not, in words.
    fn heals(&self) -> Result<(), String>;
}

/// How the units of each group rank, as far as it is worked out.
#[derive(Debug, Default)]
pub struct Ranks(RwLock<HashMap<String, Arc<Vec<f32>>>>);

impl Ranks {
    pub fn of(&self, group: &str) -> Option<Arc<Vec<f32>>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(group).cloned()
    }

    pub fn set(&self, group: &str, scores: Vec<f32>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(group.to_owned(), Arc::new(scores));
    }
}

/// The desk of a session on real compute.
#[derive(Debug)]
pub struct Table {
    pub graph: Arc<Graph>,
    pub groups: Vec<Group>,
    pub ranks: Ranks,
    /// Precisions that the session's device has no kernel for, each with why and what to do.
    pub refused: Vec<(Precision, String)>,
    pub rehearses: bool,
    pub controls: Result<(), String>,
    pub heals: Result<(), String>,
}

impl Desk for Table {
    fn resolve(&self, state: &State, target: &Target, action: &Action) -> Result<Action, String> {
        let checked =
            plan::check(action, target, &self.groups, &self.graph, &state.constraints).map_err(|e| e.to_string())?;
        if let Some(why) = self.refuses(&checked) {
            return Err(format!("`{}`: {why}", target.name()));
        }
        Ok(match checked {
            Action::Prune { ratio, kept } if kept.is_empty() => {
                Action::Prune { ratio, kept: self.kept(target.name(), ratio).unwrap_or_default() }
            }
            other => other,
        })
    }

    fn kept(&self, id: &str, ratio: f64) -> Option<Vec<u32>> {
        let group = self.groups.iter().find(|g| g.id == id)?;
        Some(prune::resolve(group, &self.ranks.of(id)?, ratio))
    }

    fn importance(&self, id: &str) -> Option<Arc<Vec<f32>>> {
        self.ranks.of(id)
    }

    fn refuses(&self, action: &Action) -> Option<String> {
        plan::refusal(&self.refused, action).map(str::to_owned)
    }

    fn rehearses(&self) -> bool {
        self.rehearses
    }

    fn controls(&self) -> Result<(), String> {
        self.controls.clone()
    }

    fn heals(&self) -> Result<(), String> {
        self.heals.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::families::{CifarResnetSpec, FamilySpec};

    #[test]
    fn a_precision_that_the_device_refuses_cannot_be_decided() {
        let graph = FamilySpec::CifarResnet(CifarResnetSpec::depth(20, 10)).build().unwrap();
        let refused = vec![(Precision::W4, "w4 has no GPU kernel; hint: int8 has".to_owned())];
        let (graph, ranks, controls) = (Arc::new(graph), Ranks::default(), Ok(()));
        let table = Table { graph, groups: vec![], ranks, refused, rehearses: false, controls, heals: Ok(()) };
        let decide = |precision| {
            table.resolve(&State::default(), &Target::Layer("conv1".into()), &Action::Precision { precision })
        };
        assert!(decide(Precision::Int8).is_ok());
        let why = decide(Precision::W4).unwrap_err();
        assert!(why.contains("`conv1`") && why.contains("hint:"), "{why}");
    }
}
