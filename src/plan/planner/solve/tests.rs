//! The search against all plans there are, where these are few.

use super::*;
use crate::plan::planner::{Goal, PlannerInput, candidates};
use crate::plan::testing::{chain, curves, ladders, profile_of, tried};
use crate::plan::{Budget, QualityInput};
use crate::profile::{SensCurve, SensPoint, SensTarget};
use crate::quant::Precision;

/// The least divergence of all plans that meet everything, by trying all of them; and how many there are.
fn best_of_all(problem: &Problem<'_>) -> (Option<f64>, usize) {
    let mut level = vec![0; problem.candidates.len()];
    let (mut best, mut plans): (Option<f64>, usize) = (None, 0);
    loop {
        plans += 1;
        let at = problem.at(level.clone()).expect("a plan of known actions");
        if met(&at) && best.is_none_or(|b| at.divergence < b) {
            best = Some(at.divergence);
        }
        let Some(i) = (0..level.len()).find(|i| level[*i] + 1 < problem.candidates[*i].levels.len()) else {
            return (best, plans);
        };
        level[i] += 1;
        level[..i].fill(0);
    }
}

/// Numbers from 0 to 1 that look like chance.
fn draws(seed: u64) -> impl FnMut() -> f64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[test]
fn few_plans_are_searched_as_well_as_one_by_one() {
    let (mut met_ones, mut worst) = (0, 0.0f64);
    for seed in 4..=8u64 {
        let mut draw = draws(seed);
        let widths: Vec<usize> = (0..3).map(|_| 4 + (5.0 * draw()) as usize).collect();
        let (graph, groups) = chain(&widths, 8);
        let profile = profile_of(&graph, 1.0);
        let layers = ["conv1", "conv2", "conv3", "fc"];
        let weights: Vec<f64> = (0..3).map(|_| 0.02 + draw() * draw()).collect();
        let mut sensitivity = curves(&groups, &weights, &layers, 0.0);
        // What few bits do differs from layer to layer.
        sensitivity.curves.retain(|c| matches!(c.target, SensTarget::Group(_)));
        for layer in layers {
            let kl = 0.002 * draw();
            for (precision, times) in [(Precision::Int8, 1.0), (Precision::W4g32, 6.0), (Precision::W4, 9.0)] {
                let points = vec![SensPoint { ratio: 0.0, d_loss: 0.0, kl: kl * times, d_quality: 0.0 }];
                sensitivity.curves.push(SensCurve {
                    target: SensTarget::Layer(layer.into(), precision),
                    points,
                    images: 64,
                });
            }
        }
        let ladders = ladders(&graph, &profile, 0.4);
        let forecaster = Forecaster::new(&graph, &groups, &profile, &ladders, &sensitivity);
        let quality = tried(&forecaster, &groups, &layers);
        for budget in ["macs=0.7", "macs=0.4", "memory=0.4", "memory=0.15", "macs=0.6,memory=0.3"] {
            let budget: Budget = budget.parse().unwrap();
            let input = PlannerInput {
                graph: &graph,
                groups: &groups,
                profile: &profile,
                ladders: &ladders,
                sensitivity: &sensitivity,
                budget: &budget,
                constraints: &[],
                round: 1,
                first_id: 0,
                in_force: &[],
                quality: &quality,
            };
            let goal = Goal::of(&budget, &QualityInput::default().metric);
            let candidates = candidates(&input, &forecaster, &goal, &[]);
            let needs = goal.needs(&forecaster);
            let problem =
                Problem { forecaster: &forecaster, fixed: Vec::new(), candidates, needs, harm_limit: f64::INFINITY };
            let (best, plans) = best_of_all(&problem);
            let found = problem.solve();
            assert_eq!(found.stop == Stop::Met, best.is_some(), "{budget:?}, seed {seed}");
            let Some(best) = best else { continue };
            let (all, found) = (plans, forecaster.divergence(&found.actions));
            worst = worst.max(found / best.max(1e-9) - 1.0);
            met_ones += 1;
            assert!(found <= 1.01 * best + 1e-7, "{budget:?}, seed {seed}: {found} of {all} plans, the best {best}");
        }
    }
    assert!(met_ones > 15, "{met_ones}");
    eprintln!("{met_ones} budgets, at worst {:.2} % off the best", 100.0 * worst);
}
