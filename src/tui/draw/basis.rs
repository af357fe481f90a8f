//! What the forecast of quality on the screen rests on, in a line: nobody should act on a figure without knowing that.

use crate::plan::{Basis, COVERAGE, Quality};
use crate::session::State;
use crate::tui::num::signed;

/// One line about `q`, the forecast of a whole plan; `None` where nothing would change.
pub(super) fn words(state: &State, q: &Quality) -> Option<String> {
    let correction = state.trials.correction.as_ref();
    let held = || match correction {
        Some(c) if c.views.iter().any(|v| v.kind.is_some()) => {
            format!("{} held-back images in {} disturbed views", c.images, c.views.len())
        }
        Some(c) => format!("{} held-back images", c.images),
        None => "held-back images".to_owned(),
    };
    let often = format!("range holds {:.0} of 10", 10.0 * COVERAGE);
    let range = format!("[{}, {}]", signed(q.low, 2), signed(q.high, 2));
    Some(match q.basis {
        Basis::Unchanged => return None,
        Basis::Rehearsed => format!("top-1 {range} rehearsed: built and tried on {}; {often}", held()),
        Basis::Neighbour => format!("top-1 {range} by the difference from a rehearsed plan; {often}"),
        Basis::Scanned => {
            let tried = state.trials.list.len();
            let s = if tried == 1 { "" } else { "s" };
            format!("top-1 {range} scanned layer by layer, added up as in {tried} tried plan{s}; {often}")
        }
        Basis::Unmeasured if state.trials.list.is_empty() => {
            "top-1 unmeasured: no plan of this model was tried yet".to_owned()
        }
        Basis::Unmeasured => {
            format!("top-1 unmeasured beyond {}: something in the plan was never measured", signed(q.value, 2))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::Correction;

    #[test]
    fn every_basis_says_what_it_is() {
        let mut state = State::default();
        let q = |basis| Quality { value: -0.5, low: -1.0, high: -0.1, coverage: COVERAGE, basis };
        assert_eq!(words(&state, &q(Basis::Unchanged)), None);
        let said = |s: &State, b| words(s, &q(b)).unwrap_or_default();
        assert!(said(&state, Basis::Unmeasured).contains("no plan of this model"));
        state.trials.correction = Some(Correction { images: 200, ..Correction::default() });
        state.trials.add(crate::plan::Trial {
            key: "k".into(),
            actions: vec![],
            outcome: Default::default(),
            anchor: true,
        });
        assert!(
            said(&state, Basis::Unmeasured).contains("beyond −0.50")
                || said(&state, Basis::Unmeasured).contains("beyond -0.50")
        );
        assert!(said(&state, Basis::Rehearsed).contains("tried on 200 held-back images; range holds 9 of 10"));
        assert!(said(&state, Basis::Scanned).contains("as in 1 tried plan;"));
    }
}
