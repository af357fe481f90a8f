//! The search behind the built-in planner: which level of every target meets all budget items at least harm.
//!
//! A multiple-choice knapsack with several weights, solved greedily on the hull of cost against harm (the next move is
//! the jump, to any stronger level, that closes most of what is missing for the harm it does), then improved by giving
//! back and by exchanging; of few targets, where one step is a large part of the budget, by branch and bound. Every cost is an exact recount through [`Forecaster::cost`], because groups that share a
//! layer multiply. Pure and deterministic.

use crate::plan::{Action, Cost, Forecaster, Target};

/// A target and its possible actions, weakest first. Level 0 is "leave it alone", or the least that shall be done.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    pub target: Target,
    pub levels: Vec<Action>,
    /// Divergence of each level, nats.
    pub divergence: Vec<f64>,
    /// What that counts, by the engineer's wishes.
    pub weighed: Vec<f64>,
    /// Level 0 is an action, too.
    pub must: bool,
    /// The block it lies in: gone with it.
    pub block: Option<String>,
}

impl Candidate {
    /// Whether it goes with one of the blocks that are `gone`.
    fn inside(&self, gone: &[&str]) -> bool {
        !matches!(self.target, Target::Block(_)) && self.block.as_deref().is_some_and(|b| gone.contains(&b))
    }
}

/// One budget item in absolute units.
#[derive(Debug, Clone, Copy)]
pub(super) struct Need {
    pub kind: LimitKind,
    pub limit: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LimitKind {
    Latency,
    Macs,
    Memory,
    Params,
}

/// Why the search stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    Met,
    /// The next move would have gone below the accuracy floor.
    Floor,
    /// Nothing left to take.
    Exhausted,
}

#[derive(Debug, Clone)]
pub(super) struct Solution {
    pub actions: Vec<(Target, Action)>,
    pub stop: Stop,
    /// What met everything as well, from other starts, the least divergence first.
    pub others: Vec<Vec<(Target, Action)>>,
}

pub(super) struct Problem<'a> {
    pub forecaster: &'a Forecaster,
    /// Already decided by the human: part of every cost.
    pub fixed: Vec<(Target, Action)>,
    pub candidates: Vec<Candidate>,
    pub needs: Vec<Need>,
    /// Total harm allowed; infinite without a floor.
    pub harm_limit: f64,
}

/// Divergence below which two moves count as equally harmless, nats.
const HARMLESS: f64 = 2e-5;
/// Recounts allowed in the improving passes.
const IMPROVE: usize = 1500;
/// So few targets are searched by branch and bound, within so many recounts.
const FEW: usize = 12;
const BRANCH: usize = 20_000;

#[derive(Clone)]
struct At {
    level: Vec<usize>,
    missing: Vec<f64>,
    /// What moves are chosen by: sums of divergences choose plans that measure better than sums of harms do.
    divergence: f64,
}

struct Move {
    level: usize,
    score: f64,
    fresh: bool,
}

impl Problem<'_> {
    /// Solves; never fails: what cannot be met is told by [`Solution::stop`].
    ///
    /// Searched from the original and from every precision that all layers can have: what one simple decision everywhere does is
    /// never beaten by more that is worse.
    pub fn solve(&self) -> Solution {
        let mut found: Vec<(At, Stop)> = self.starts().into_iter().map(|start| self.solve_from(start)).collect();
        // What meets everything first, by its divergence; else the nearest. Of equals the first found stays first.
        let rank = |(at, stop): &(At, Stop)| match stop {
            Stop::Met => (false, at.divergence),
            Stop::Floor | Stop::Exhausted => (true, self.short(at)),
        };
        found.sort_by(|a, b| {
            let ((a_missed, a), (b_missed, b)) = (rank(a), rank(b));
            a_missed.cmp(&b_missed).then(a.total_cmp(&b))
        });
        if let Some((at, Stop::Met)) = found.first_mut()
            && self.candidates.len() <= FEW
        {
            self.branch(at);
        }
        let mut met: Vec<Vec<(Target, Action)>> = Vec::new();
        for (at, _) in found.iter().filter(|(_, stop)| *stop == Stop::Met) {
            let actions = self.actions(&at.level);
            if !met.contains(&actions) {
                met.push(actions);
            }
        }
        let Some((at, stop)) = found.first() else {
            return Solution { actions: self.fixed.clone(), stop: Stop::Exhausted, others: Vec::new() };
        };
        Solution { actions: self.actions(&at.level), stop: *stop, others: met.into_iter().skip(1).collect() }
    }

    /// Nothing; and each precision for every layer that may have it, within the floor.
    fn starts(&self) -> Vec<Vec<usize>> {
        let none = vec![0; self.candidates.len()];
        let mut precisions: Vec<&Action> = Vec::new();
        for action in self.candidates.iter().flat_map(|c| &c.levels) {
            if matches!(action, Action::Precision { .. }) && !precisions.contains(&action) {
                precisions.push(action);
            }
        }
        let everywhere = precisions.into_iter().map(|p| -> Vec<usize> {
            self.candidates.iter().map(|c| c.levels.iter().position(|a| a == p).unwrap_or(0)).collect()
        });
        let first = self.at(none.clone());
        let within = |level: &Vec<usize>| {
            let (Some(first), Some(next)) = (&first, self.at(level.clone())) else { return false };
            !self.breaks_floor(&next, first)
        };
        std::iter::once(none.clone()).chain(everywhere.filter(within)).collect()
    }

    /// How far the items are missed together, each in parts of its limit.
    fn short(&self, at: &At) -> f64 {
        at.missing.iter().zip(&self.needs).map(|(m, n)| m.max(0.0) / n.limit.abs().max(1e-12)).sum()
    }

    fn solve_from(&self, start: Vec<usize>) -> (At, Stop) {
        let lost = || At { level: start.clone(), missing: vec![f64::INFINITY; self.needs.len()], divergence: 0.0 };
        let mut at = self.at(start.clone()).unwrap_or_else(lost);
        let scale: Vec<f64> = at.missing.iter().map(|&m| 1.0 / m.max(1e-12)).collect();
        let mut moves: Vec<Option<Move>> =
            (0..self.candidates.len()).map(|_| Some(Move { level: 0, score: f64::INFINITY, fresh: false })).collect();
        let mut floor_hit = false;
        while !met(&at) {
            let best = moves
                .iter()
                .enumerate()
                .filter_map(|(i, m)| m.as_ref().map(|m| (m.score, m.fresh, i)))
                .max_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)).then(b.2.cmp(&a.2)));
            let Some((_, fresh, i)) = best else { break };
            if !fresh {
                moves[i] = self.best_move(i, &at, &scale, &mut floor_hit);
                continue;
            }
            let Some(level) = moves[i].as_ref().map(|m| m.level) else { continue };
            let mut next = at.level.clone();
            next[i] = level;
            match self.at(next) {
                Some(n) => at = n,
                None => moves[i] = None,
            }
            for m in moves.iter_mut().flatten() {
                m.fresh = false;
            }
        }
        match (met(&at), floor_hit) {
            (true, _) => (self.improve(at), Stop::Met),
            (false, true) => (at, Stop::Floor),
            (false, false) => (at, Stop::Exhausted),
        }
    }

    /// The actions of `level`, fixed ones first; what lies in a removed block is left out.
    fn actions(&self, level: &[usize]) -> Vec<(Target, Action)> {
        let mut out = self.fixed.clone();
        let gone = self.gone(level);
        for (c, &l) in self.candidates.iter().zip(level) {
            if let Some(action) = c.levels.get(l).filter(|_| (l > 0 || c.must) && !c.inside(&gone)) {
                out.push((c.target.clone(), action.clone()));
            }
        }
        out
    }

    fn at(&self, level: Vec<usize>) -> Option<At> {
        let actions = self.actions(&level);
        let cost = self.forecaster.costs.cost(&actions).ok()?;
        let missing = self.needs.iter().map(|n| self.value(n.kind, &cost) - n.limit).collect();
        // Wishes move what plans are chosen by, not what they are said to do.
        let wishes: f64 = (self.candidates.iter().zip(&level))
            .filter_map(|(c, &l)| Some(c.weighed.get(l)? - c.divergence.get(l)?))
            .sum();
        Some(At { divergence: self.forecaster.divergence(&actions) + wishes, level, missing })
    }

    /// Whether `next` breaks the floor, and more than `at` does.
    fn breaks_floor(&self, next: &At, at: &At) -> bool {
        let harm = |at: &At| self.forecaster.harm(&self.actions(&at.level)).0;
        self.harm_limit.is_finite() && harm(next) > self.harm_limit.max(harm(at))
    }

    /// The item's forecast in absolute units, on the careful side for latency.
    fn value(&self, kind: LimitKind, cost: &Cost) -> f64 {
        match kind {
            LimitKind::Latency => cost.latency_ms + 0.5 * cost.latency_spread,
            LimitKind::Macs => cost.macs as f64,
            LimitKind::Memory => cost.bytes as f64,
            LimitKind::Params => cost.params as f64,
        }
    }

    fn best_move(&self, i: usize, at: &At, scale: &[f64], floor_hit: &mut bool) -> Option<Move> {
        let c = &self.candidates[i];
        let now = at.level[i];
        let left = c.levels.len().checked_sub(now + 1).filter(|&n| n > 0)?;
        if c.inside(&self.gone(&at.level)) {
            return None;
        }
        let mut best: Option<Move> = None;
        for jump in [1, 2, 3, 5, 8, 12, 18].into_iter().filter(|&j| j <= left) {
            let mut level = at.level.clone();
            level[i] = now + jump;
            let Some(next) = self.at(level) else { continue };
            if self.breaks_floor(&next, at) {
                *floor_hit = true;
                break;
            }
            let gain: f64 = at
                .missing
                .iter()
                .zip(&next.missing)
                .zip(scale)
                .map(|((a, b), k)| {
                    // Only what is still missing counts; making an item worse counts in full.
                    let saved = a - b;
                    k * if saved > 0.0 { saved.min(a.max(0.0)) } else { saved }
                })
                .sum();
            let score = gain / ((next.divergence - at.divergence).max(0.0) + HARMLESS);
            if gain > 1e-9 && best.as_ref().is_none_or(|m| score > m.score) {
                best = Some(Move { level: now + jump, score, fresh: true });
            }
        }
        best
    }

    /// The blocks that are removed.
    fn gone(&self, level: &[usize]) -> Vec<&str> {
        let removed = |(c, l): &(&Candidate, &usize)| **l > 0 && matches!(c.target, Target::Block(_));
        self.candidates.iter().zip(level).filter(removed).map(|(c, _)| c.target.name()).collect()
    }

    /// Gives back what overshoots, then exchanges a step here for a step there while that diverges less.
    fn improve(&self, mut at: At) -> At {
        let mut left = IMPROVE;
        self.give_back(&mut at, &mut left);
        loop {
            let before = at.divergence;
            // Steps that would cost least, cheapest first.
            let mut up: Vec<(f64, usize)> = self
                .candidates
                .iter()
                .enumerate()
                .filter_map(|(i, c)| {
                    let (now, next) = (c.weighed.get(at.level[i])?, c.weighed.get(at.level[i] + 1)?);
                    Some((next - now, i))
                })
                .collect();
            up.sort_by(|a, b| a.0.total_cmp(&b.0));
            for (_, i) in up {
                if left == 0 {
                    break;
                }
                let mut level = at.level.clone();
                level[i] += 1;
                left -= 1;
                let Some(mut trial) = self.at(level) else { continue };
                self.give_back(&mut trial, &mut left);
                if met(&trial) && trial.divergence < at.divergence - 1e-9 {
                    at = trial;
                }
            }
            if left == 0 || at.divergence > before - 1e-6 {
                return at;
            }
        }
    }

    /// Looks for what diverges less than `best` and meets everything as well, among all plans.
    fn branch(&self, best: &mut At) {
        let strongest = |i: usize| self.candidates[i].levels.len() - 1;
        let most = |i: &usize| self.candidates[*i].weighed.last().copied().unwrap_or(0.0);
        // What can do most harm is settled first: it leaves the fewest plans to look at.
        let mut order: Vec<usize> = (0..self.candidates.len()).collect();
        order.sort_by(|a, b| most(b).total_cmp(&most(a)).then(a.cmp(b)));
        let mut level: Vec<usize> = (0..self.candidates.len()).map(strongest).collect();
        let mut left = BRANCH;
        self.settle(&order, 0.0, &mut level, best, &mut left);
    }

    /// Every level of the first of `targets`, and what follows from it; those behind it are at their strongest until it is their turn. What
    /// was settled so far diverges by `spent`.
    fn settle(&self, targets: &[usize], spent: f64, level: &mut Vec<usize>, best: &mut At, left: &mut usize) {
        let Some((&i, rest)) = targets.split_first() else { return };
        let strongest = level[i];
        for l in 0..=strongest {
            let here = spent + self.candidates[i].weighed[l];
            if here >= best.divergence - 1e-9 || *left == 0 {
                break;
            }
            *left -= 1;
            level[i] = l;
            // What misses something with all the others at their strongest misses it with less of them.
            let Some(at) = self.at(level.clone()).filter(met) else { continue };
            if at.divergence < best.divergence - 1e-9 && !self.breaks_floor(&at, best) {
                *best = at;
            }
            self.settle(rest, here, level, best, left);
        }
        level[i] = strongest;
    }

    /// Lowers levels, most harmful step first, as long as the budget stays met.
    fn give_back(&self, at: &mut At, left: &mut usize) {
        let mut stuck = vec![false; self.candidates.len()];
        while *left > 0 {
            let best = self
                .candidates
                .iter()
                .enumerate()
                .filter(|(i, _)| !stuck[*i] && at.level[*i] > 0)
                .filter_map(|(i, c)| Some((c.weighed.get(at.level[i])? - c.weighed.get(at.level[i] - 1)?, i)))
                .max_by(|a, b| a.0.total_cmp(&b.0));
            let Some((relief, i)) = best else { return };
            if relief <= 0.0 {
                return;
            }
            let mut level = at.level.clone();
            level[i] -= 1;
            *left -= 1;
            match self.at(level) {
                Some(n) if met(&n) && n.divergence < at.divergence => *at = n,
                Some(_) | None => stuck[i] = true,
            }
        }
    }
}

fn met(at: &At) -> bool {
    at.missing.iter().all(|&m| m <= 1e-9)
}

#[cfg(test)]
mod tests;
