//! Events in words, for the timeline, `paring log` and the log file.

use super::{Evaluation, Event, OUTSIDE, Part, PassedOver, Phase, QUESTION, State};
use crate::plan::{Action, Author, DecisionId, Limit, Status, same_plan};
use crate::profile::{Profile, Workload};
use crate::task::Estimate;
use crate::words::{self, counted};

/// The beginning of what was said.
fn brief(text: &str) -> String {
    const MOST: usize = 100;
    let line = text.lines().next().unwrap_or_default();
    match line.char_indices().nth(MOST) {
        None => line.to_owned(),
        Some((at, _)) => format!("{}…", &line[..at]),
    }
}

/// One line about `event`, read against the state before it; `None` for events that a timeline need not show.
pub fn describe(before: &State, event: &Event) -> Option<String> {
    Some(match event {
        Event::Opened { card, budget } => {
            let goal = budget.to_string();
            let goal = if goal.is_empty() { "none".to_owned() } else { goal };
            let images = card.metric().items(card.data.images);
            format!("opened {} on {} ({images}), budget {goal}", card.model.name, card.data.name)
        }
        Event::RecipeSet { recipe } => match before.card.as_ref().and_then(|c| c.recipe.as_ref()) {
            Some(old) => format!("recipe changed: {}", old.differences(recipe).join(", ")),
            None => "recipe written down; this journal had none".to_owned(),
        },
        Event::Resolved { .. } => return None,
        Event::PhaseEntered { round, phase } => match phase {
            Phase::Profile | Phase::Reason => format!("round {round}: {}", phase.label()),
            Phase::Review | Phase::Compress | Phase::Evaluate | Phase::Verdict => return None,
        },
        Event::Profiled { round, profile } => {
            let of = if *round == 0 { "the original".to_owned() } else { format!("round {round}'s model") };
            let whole = &profile.whole;
            if let Workload::Decode { context, kv } = profile.workload {
                let rate = 1e3 / whole.p50.max(1e-9);
                let how = format!("a token after {context}, keys and values in {}", kv.label());
                return Some(format!("profiled {of}: {:.2} ms {how}: {rate:.1} tokens/s", whole.p50));
            }
            let doubt = profile.doubt.map_or_else(String::new, |d| format!(", in doubt: {d}"));
            format!("profiled {of}: {:.2} ms a batch of {}{}{doubt}", whole.p50, profile.batch, whole.origin())
        }
        Event::Remeasured { round, layer, profile } => {
            let ms = profile.rows.iter().find(|r| &r.name == layer).map_or(0.0, |r| profile.ms(r));
            let doubt = profile.rows.iter().find(|r| &r.name == layer).and_then(|r| r.doubt);
            let doubt = doubt.map_or_else(String::new, |d| format!(", in doubt: {d}"));
            let whole = profile.whole.p50;
            format!(
                "round {round}: measured {layer} again: {ms:.3} ms of the {whole:.2} ms that the whole took then{doubt}"
            )
        }
        Event::Paired { round, latency } => {
            let r = latency.ratio;
            format!(
                "round {round}: {:.2} ms beside the original's {:.2}, {:.2}x [{:.2}, {:.2}]{}",
                latency.new.p50,
                latency.base.p50,
                r.value,
                r.low,
                r.high,
                latency.new.origin()
            )
        }
        Event::LaddersMeasured { ladders } => {
            format!("measured latency ladders of {}", counted(ladders.len(), "layer"))
        }
        // Curves come in dozens of small parts while a scan goes on; its first sign of life is enough.
        Event::Sensed { .. } if !before.sensitivity.curves.is_empty() => return None,
        Event::Sensed { curves, .. } if curves.len() < 10 => "sensitivity scan: first results".to_owned(),
        Event::Sensed { curves, .. } => format!("sensitivity of {}", counted(curves.len(), "target")),
        Event::Proposed { decisions } => match decisions.as_slice() {
            [] => "no proposals".to_owned(),
            [d] => format!("{} {} {}", proposes(&d.author), d.target, action(&d.action)),
            [d, ..] => format!("{} {} decisions", proposes(&d.author), decisions.len()),
        },
        Event::Claimed { claim } => match claim.expects {
            Some(change) => {
                let metric = before.metric();
                format!("{} expects {} {} of the plan", claim.author, metric.name, metric.change_words(change))
            }
            None => return None,
        },
        Event::Rivalled { rival } => {
            format!("planner, beside what agents proposed: {}", rival.words)
        }
        Event::PlanKept { plan } => {
            format!("kept the plan as {}: {}", plan.name, counted(plan.actions.len(), "decision"))
        }
        Event::Restored { to, decisions, .. } => {
            let approved = decisions.iter().filter(|d| d.status == Status::Approved).count();
            let parts = [(approved, "approved"), (decisions.len() - approved, "open")];
            let parts: Vec<String> =
                parts.into_iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
            let what = match parts.is_empty() {
                true => "what came since is taken away".to_owned(),
                false => format!("{} again", parts.join(", ")),
            };
            format!("back to the decisions after event {to}: {what}")
        }
        Event::Recalled { .. } => return None,
        Event::PassedOver { proposals } => match proposals.as_slice() {
            [] => return None,
            [one] => passed_over(one),
            [one, rest @ ..] => format!("{}; {} more gave way", passed_over(one), rest.len()),
        },
        Event::Edited { id, action: a, author } => {
            format!("{author} edited {}: {}", names(before, &[*id]), action(a))
        }
        Event::Approved { ids } => format!("approved {}", names(before, ids)),
        Event::Vetoed { ids, reason } => format!("vetoed {}{}", names(before, ids), because(reason)),
        Event::Reopened { ids } => format!("reopened {}", names(before, ids)),
        Event::ConstraintSet { constraint } => {
            format!("{} shall be {}{}", constraint.target, limit(&constraint.limit), because(&constraint.reason))
        }
        Event::ConstraintsSet { constraints, vetoed } => {
            let refused = match vetoed.len() {
                0 => String::new(),
                n => format!(", {} there refused", counted(n, "decision")),
            };
            let targets = counted(constraints.len(), "target");
            let done = match constraints.first().map(|c| &c.limit) {
                Some(Limit::Freeze) if constraints.iter().all(|c| c.limit == Limit::Freeze) => {
                    format!("vetoed {targets}{refused}")
                }
                Some(first) if constraints.iter().all(|c| c.limit == *first) => {
                    format!("{targets} shall be {}{refused}", limit(first))
                }
                _ => format!("bound {targets}{refused}"),
            };
            done + &constraints.first().map_or(String::new(), |c| because(&c.reason))
        }
        Event::ConstraintsLifted { targets } => {
            format!("lifted the constraints on {}", counted(targets.len(), "target"))
        }
        Event::ConstraintLifted { target } => format!("lifted the constraints on {target}"),
        Event::Suggested { suggestion } => format!("{} reads in your note: {}", suggestion.by, suggestion.words),
        Event::SuggestionsDropped => "no rule of the agents' waits any more".to_owned(),
        Event::BudgetSet { budget } => format!("budget {budget}"),
        Event::HealingSet { heal: Some(heal) } => format!("runs heal what they made: {heal}"),
        Event::HealingSet { heal: None } => "runs heal nothing".to_owned(),
        Event::PatienceSet { until_clear: true } => {
            "rounds are evaluated until it is clear whether the budget's `drop` is kept".to_owned()
        }
        Event::PatienceSet { until_clear: false } => "rounds are evaluated on all of the data".to_owned(),
        Event::HealingBegun { round, healing, .. } => format!("round {round}: healing for {} steps", healing.steps),
        Event::Healed { round, course, .. } => {
            let (first, best) = (course.looks.first().map_or(0.0, |l| l.loss), course.best);
            let images = counted(course.held_back as usize, "held-back image");
            match best.step {
                0 => {
                    format!("round {round}: healing made nothing better on {images}; the model is as it was compressed")
                }
                n => {
                    let what = course.healing.objective.loss();
                    format!("round {round}: healed, {what} {first:.4} → {:.4} on {images} (step {n})", best.loss)
                }
            }
        }
        Event::Undone => format!("undo: {}", before.undo.last().map_or("nothing", |p| p.text.as_str())),
        Event::Redone => format!("redo: {}", before.redo.last().map_or("nothing", |p| p.text.as_str())),
        Event::Noted { text, .. } => format!("note: {text}"),
        Event::Said { utterance } => {
            let tokens = (utterance.tokens > 0).then(|| counted(utterance.tokens, "token"));
            let about: Vec<String> =
                tokens.into_iter().chain(utterance.interrupted.then(|| "interrupted".into())).collect();
            let about = if about.is_empty() { String::new() } else { format!(" ({})", about.join(", ")) };
            if utterance.role == QUESTION {
                return Some(format!("the agents ask: {}", utterance.text));
            }
            match utterance.role == OUTSIDE.name {
                // Nobody knows it by its role.
                true => format!("{}: {}", utterance.model, brief(&utterance.text)),
                false => format!("{} spoke{about}", utterance.role),
            }
        }
        Event::RunStarted { round, ids, .. } => {
            format!("round {round}: compressing with {}", counted(ids.len(), "new decision"))
        }
        Event::Built { .. } => return None,
        Event::Tried { trial, correction } => {
            let shown =
                || [before.shown_actions(), before.recipe_actions()].iter().any(|a| same_plan(a, &trial.actions));
            let what = match trial.anchor {
                true => "tried a plan to learn from",
                false if shown() => "rehearsed the plan",
                false => "tried another plan",
            };
            let o = &trial.outcome;
            let (metric, views) = (before.metric(), counted(o.by_kind.len(), "view"));
            let said = metric.change_words(o.d_quality);
            let said = format!("{what}: {said} seen on {views} of {}", metric.held_back(o.images));
            match correction.as_ref().filter(|_| before.trials.correction.is_none()) {
                Some(c) => format!("{said}; {c}"),
                None => said,
            }
        }
        Event::Repaired { step, .. } => {
            let kept = if step.kept { "kept" } else { "reverted" };
            format!("{}: loss {:.4} → {:.4}, {kept}", step.name, step.loss_before, step.loss_after)
        }
        Event::Applied { round, ids, .. } => format!("round {round}: applied {}", counted(ids.len(), "decision")),
        Event::Evaluated { evaluation: e } => {
            let metric = before.metric();
            let of = match e.metrics.correct() {
                Some(correct) => format!("{correct} of {}", e.metrics.n),
                None => format!("over {}", e.metrics.n),
            };
            let of = of + &part(e).map_or(String::new(), |words| format!(", {words}"));
            format!(
                "{}: {} {} ({of}), {}",
                if e.round == 0 { "baseline".to_owned() } else { format!("round {} evaluated", e.round) },
                metric.name,
                metric.value_words(e.metrics.score),
                e.ms().map_or("latency not measured".to_owned(), |ms| {
                    format!("{ms:.2}{} ms", if e.doubt.is_some() { "?" } else { "" })
                })
            ) + &e.metrics.guess_warning().filter(|_| e.round == 0).map_or(String::new(), |w| format!("; {w}"))
        }
        Event::VerdictGiven { round, verdict } => {
            let metric = before.metric();
            let change = metric.change_words(verdict.d_quality);
            format!("round {round}: {}, {} {change}", verdict.label(), metric.name)
        }
        Event::RoundAccepted { round } => format!("accepted round {round}"),
        Event::RolledBack { round, reason } => format!("rolled back round {round}{}", because(reason)),
        Event::Controlled { control: c } => {
            let (kl, time) = c.promised;
            format!(
                "controller of {}: {} for {:.2}x of the time a token; where it learnt KL {kl:.4} at {time:.2}x",
                c.whose(),
                counted(c.levels.len(), "level"),
                c.target
            )
        }
        Event::Exported { path, format, bytes, notes, .. } => {
            let size = if *bytes > 0 { format!(", {}", words::bytes(*bytes)) } else { String::new() };
            let notes: String = notes.iter().map(|n| format!("; {n}")).collect();
            format!("exported {format} to {path}{size}{notes}")
        }
        Event::Failed { what, message } => format!("{what} failed: {message}"),
        Event::Cancelled { what } => format!("{what} cancelled"),
    })
}

/// What shall be, in a few words.
fn limit(limit: &Limit) -> String {
    match limit {
        Limit::Freeze => "left alone".to_owned(),
        Limit::MaxRatio { ratio } => format!("pruned by at most {:.0} %", ratio * 100.0),
        Limit::MinRatio { ratio } => format!("pruned by at least {:.0} %", ratio * 100.0),
        Limit::KeepF32 => "kept in f32".to_owned(),
        Limit::Together { set } => format!("decided alike with {set}"),
        Limit::Prefer { wish } => wish.to_string(),
    }
}

/// A proposal that gave way, in a sentence: `pruning/qwen3 proposed prune 25.0 % for group fc1, your edit stands`.
pub fn passed_over(p: &PassedOver) -> String {
    format!("{} proposed {} for {}, {} stands", p.author, action(&p.action), p.target, p.stands)
}

/// An action in a few words: `prune 37.5 %`, `int8`, `remove`.
pub fn action(action: &Action) -> String {
    match action {
        Action::Keep => "keep".to_owned(),
        Action::Prune { ratio, .. } => format!("prune {:.1} %", ratio * 100.0),
        Action::Precision { precision } => precision.label().to_owned(),
        Action::RemoveBlock => "remove".to_owned(),
        Action::Sparsify { sparsity } => sparsity.to_string(),
        Action::Factorise { rank } => format!("rank {rank}"),
    }
}

/// The author with a verb that fits.
fn proposes(author: &Author) -> String {
    let verb = if *author == Author::Human { "propose" } else { "proposes" };
    format!("{author} {verb}")
}

fn because(reason: &str) -> String {
    if reason.is_empty() { String::new() } else { format!(": {reason}") }
}

fn names(state: &State, ids: &[DecisionId]) -> String {
    let known: Vec<String> = ids
        .iter()
        .filter_map(|&id| state.decision(id))
        .map(|d| format!("{} ({})", d.target, action(&d.action)))
        .collect();
    match known.as_slice() {
        [] => "nothing".to_owned(),
        [a] => a.clone(),
        [a, b] => format!("{a} and {b}"),
        [a, b, rest @ ..] => format!("{a}, {b} and {} more", rest.len()),
    }
}

impl Phase {
    pub fn label(self) -> &'static str {
        match self {
            Phase::Profile => "profile",
            Phase::Reason => "reason",
            Phase::Review => "review",
            Phase::Compress => "compress",
            Phase::Evaluate => "evaluate",
            Phase::Verdict => "verdict",
        }
    }
}

/// What of the data an evaluation is of, where that is not all of it.
pub fn part(e: &Evaluation) -> Option<String> {
    let Part { of, level } = e.part?;
    Some(format!("clear after {} of {of} at {:.1} %", e.metrics.n, 100.0 * level))
}

/// How far a round's outputs are from the original's, where that was measured.
pub fn apart(e: &Evaluation) -> Option<String> {
    let d = e.divergence?;
    let range = |e: Estimate, scale: f64, digits: usize| {
        e.range.map_or(String::new(), |(low, high)| format!(" [{:.digits$}, {:.digits$}]", scale * low, scale * high))
    };
    // What is small is not nothing.
    let digits = if d.kl.value < 0.001 { 6 } else { 4 };
    Some(format!(
        "round {}: KL {:.digits$}{} nats/token from the original's, p99 {:.3}; same top {:.1} %{}",
        e.round,
        d.kl.value,
        range(d.kl, 1.0, digits),
        d.p99,
        100.0 * d.same_top.value,
        range(d.same_top, 100.0, 1)
    ))
}

/// Why layers are marked with `?`: those of one reason together.
pub fn doubts(p: &Profile) -> Vec<String> {
    let mut reasons: Vec<(String, Vec<&str>)> = Vec::new();
    for (row, doubt) in p.rows.iter().filter_map(|r| Some((r, p.doubt_of(r)?.to_string()))) {
        match reasons.iter_mut().find(|(why, _)| *why == doubt) {
            Some((_, names)) => names.push(&row.name),
            None => reasons.push((doubt, vec![&row.name])),
        }
    }
    let told = |(why, names): &(String, Vec<&str>)| match names.as_slice() {
        few if few.len() <= 3 => format!("{}: {why}", few.join(", ")),
        [first, .., last] => format!("{} from {first} to {last}: {why}", counted(names.len(), "layer")),
        _ => why.clone(),
    };
    reasons.iter().map(told).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Constraint, Target};
    use crate::profile::{Doubt, LayerRow};
    use crate::task::Divergence;

    #[test]
    fn a_divergence_is_told_with_its_intervals_where_it_was_measured() {
        let kl = Estimate { value: 0.0795, range: Some((0.0758, 0.083)) };
        let divergence =
            Divergence { kl, p99: 0.292, same_top: Estimate { value: 0.824, range: None }, ..Divergence::default() };
        let told = apart(&Evaluation { round: 2, divergence: Some(divergence), ..Evaluation::default() });
        let want = "round 2: KL 0.0795 [0.0758, 0.0830] nats/token from the original's, p99 0.292; same top 82.4 %";
        assert_eq!((told.as_deref(), apart(&Evaluation::default())), (Some(want), None));
    }

    #[test]
    fn what_is_bound_at_once_is_told_by_what_was_done() {
        let of = |limits: &[Limit], vetoed: u64| {
            let bound = |(i, limit): (usize, &Limit)| Constraint {
                target: Target::Group(format!("g{i}")),
                limit: limit.clone(),
                reason: "thin".into(),
            };
            let constraints = limits.iter().enumerate().map(bound).collect();
            let vetoed = (0..vetoed).map(DecisionId).collect();
            describe(&State::default(), &Event::ConstraintsSet { constraints, vetoed }).expect("told")
        };
        let half = Limit::MaxRatio { ratio: 0.5 };
        assert_eq!(of(&[Limit::Freeze, Limit::Freeze], 1), "vetoed 2 targets, 1 decision there refused: thin");
        assert_eq!(of(&[half.clone(), half.clone()], 0), "2 targets shall be pruned by at most 50 %: thin");
        assert_eq!(of(&[half, Limit::Freeze], 0), "bound 2 targets: thin");
    }

    #[test]
    fn layers_of_one_reason_are_told_together() {
        let row =
            |name: &str, by| LayerRow { name: name.into(), doubt: Some(Doubt::Clock { by }), ..LayerRow::default() };
        let rows = ["a", "b", "c", "d", "e"].map(|n| row(n, if n == "b" { 0.9 } else { 0.5 }));
        let told = doubts(&Profile { rows: rows.into(), ..Profile::default() });
        assert!(told.len() == 2 && told[0].starts_with("4 layers from a to e: "), "{told:?}");
        assert!(told[1].starts_with("b: "), "{told:?}");
    }
}
