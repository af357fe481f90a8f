//! Models after the plans that were asked for last: at every key a screen asks for rows, sum and change of one plan, which is worked out once.

use super::After;
use crate::plan::{Action, Target};
use std::sync::{Arc, Mutex, PoisonError};

/// What is shown, without the row under the cursor and that alone, of a few steps to and fro; and the original.
const KEPT: usize = 16;

type Known = (Vec<(Target, Action)>, Arc<After>);

/// The newest last.
#[derive(Debug, Default)]
pub(super) struct Recent(Mutex<Vec<Known>>);

/// A copy works out its own: its tables may be about to change.
impl Clone for Recent {
    fn clone(&self) -> Recent {
        Recent::default()
    }
}

impl Recent {
    pub(super) fn of(&self, actions: &[(Target, Action)]) -> Option<Arc<After>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().rposition(|(of, _)| of == actions)?;
        let known = kept.remove(at);
        let after = known.1.clone();
        kept.push(known);
        Some(after)
    }

    pub(super) fn keep(&self, actions: &[(Target, Action)], after: After) -> Arc<After> {
        let after = Arc::new(after);
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == KEPT {
            kept.remove(0);
        }
        kept.push((actions.to_vec(), after.clone()));
        after
    }
}
