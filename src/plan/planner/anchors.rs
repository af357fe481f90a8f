//! Whole plans to learn from before anything is proposed: built and tried, they tell what measured harms add up to in this
//! model (see `quality`).
//!
//! Invariants: the same tables give the same anchors; each can be applied to the original. Nobody is asked to approve one.

use super::{PlannerInput, plan};
use crate::plan::{Action, Budget, Constraint, QualityInput, Target};
use crate::quant::Precision;

/// Parts of the MACs that cuts are planned for: mild, usual, harsh.
const KEPT: [f64; 3] = [0.8, 0.62, 0.45];

/// The anchors for a model, mildest first; kept units are still to be resolved.
pub fn anchors(input: &PlannerInput) -> Vec<Vec<(Target, Action)>> {
    let nothing = QualityInput::default();
    let none: &[Constraint] = &[];
    let mut out: Vec<Vec<(Target, Action)>> = Vec::new();
    for kept in KEPT {
        let budget = Budget { macs: Some(kept), ..Budget::default() };
        let free = PlannerInput {
            budget: &budget,
            constraints: none,
            in_force: &[],
            past: &[],
            quality: &nothing,
            round: 1,
            first_id: 0,
            ..*input
        };
        let Ok(found) = plan(&free, &mut |_| {}) else { continue };
        let actions: Vec<(Target, Action)> = found.decisions.into_iter().map(|d| (d.target, d.action)).collect();
        if !actions.is_empty() && !out.contains(&actions) {
            out.push(actions);
        }
    }
    for precision in [Precision::Int8, Precision::W4] {
        let layers = input.graph.nodes.iter().filter(|n| n.op.is_conv_or_linear());
        let actions: Vec<(Target, Action)> =
            layers.map(|n| (Target::Layer(n.name.clone()), Action::Precision { precision })).collect();
        if !actions.is_empty() {
            out.push(actions);
        }
    }
    out
}
