//! What the forecast of quality on the screen rests on, in a line: nobody should act on a figure without knowing that.

use crate::plan::{Basis, COVERAGE, Quality};
use crate::session::State;
use crate::task::Metric;
use crate::tui::num::{range, signed};
use crate::words::counted;

/// The range and where it comes from, in a few words; `None` where nothing would change.
pub fn short(q: &Quality, metric: &Metric) -> Option<String> {
    match q.basis {
        Basis::Unchanged => None,
        Basis::Unmeasured => Some(format!("{} was never measured for this plan", metric.name)),
        Basis::Measured | Basis::Rehearsed | Basis::Neighbour | Basis::Scanned => {
            Some(format!("{} {} {}", metric.name, range(metric, (q.low, q.high), ", "), q.basis.label()))
        }
    }
}

/// What [`short`] leaves out: how it was found, over what, and how often such a range holds.
pub fn words(state: &State, q: &Quality) -> Option<String> {
    let held = || match state.trials.correction.as_ref() {
        Some(c) if c.views.iter().any(|v| v.kind.is_some()) => {
            format!("{} in {}", state.metric().held_back(c.images), counted(c.views.len(), "disturbed view"))
        }
        Some(c) => state.metric().held_back(c.images),
        None => format!("held-back {}s", state.metric().item),
    };
    let often = format!("meant to hold {:.0} of 10", 10.0 * COVERAGE);
    Some(match q.basis {
        Basis::Unchanged => return None,
        Basis::Rehearsed => format!("rehearsed: built and tried on {}; {often}", held()),
        Basis::Measured => format!("a round of this plan was measured; {:.0} % interval", 100.0 * q.coverage),
        Basis::Neighbour => format!("the difference from a plan that was tried or measured is scanned; {often}"),
        Basis::Scanned => {
            let tried = counted(state.trials.list.len(), "tried plan");
            format!("scanned one by one, added up as in {tried}; {often}")
        }
        Basis::Unmeasured if state.trials.list.is_empty() => "no plan of this model was tried yet".to_owned(),
        Basis::Unmeasured => {
            let metric = state.metric();
            let beyond = signed(metric.shown(q.value), metric.digits);
            format!("beyond {beyond} something in the plan was never measured; a rehearsal will tell")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::Correction;

    #[test]
    fn every_basis_says_what_it_is() {
        let (mut state, top1) = (State::default(), Metric::default());
        let q = |basis| Quality { value: -0.5, low: -1.0, high: -0.1, coverage: COVERAGE, basis };
        assert_eq!((words(&state, &q(Basis::Unchanged)), short(&q(Basis::Unchanged), &top1)), (None, None));
        let said = |s: &State, b| words(s, &q(b)).unwrap_or_default();
        assert!(said(&state, Basis::Unmeasured).contains("no plan of this model"));
        state.trials.correction = Some(Correction { images: 200, ..Correction::default() });
        let (actions, outcome) = Default::default();
        state.trials.add(crate::plan::Trial { key: "k".into(), actions, outcome, anchor: true });
        assert!(said(&state, Basis::Unmeasured).contains("never measured"));
        assert!(said(&state, Basis::Rehearsed).contains("tried on 200 held-back images; meant to hold 9 of 10"));
        assert!(said(&state, Basis::Scanned).contains("as in 1 tried plan;"));
        assert!(short(&q(Basis::Rehearsed), &top1).is_some_and(|s| s.ends_with("] rehearsed")));
        assert!(short(&q(Basis::Unmeasured), &top1).is_some_and(|s| !s.contains('[')), "no figure where there is none");
    }
}
