//! Rules that a model reads in the engineer's notes: they become constraints when the engineer confirms them, and bind nothing before.
//!
//! Not here: what a rule makes of a model (`config::rules`). Invariants: nothing is suggested where there is no note; what is suggested is
//! bounded in number and in words.

use super::clean;
use crate::config::{Policy, Rule};
use crate::plan::{Author, Constraint};
use crate::session::{State, Suggestion};
use serde_json::Value;

/// Rules at once, and constraints that they may come to.
const MOST_RULES: usize = 8;
const MOST: usize = 256;
const MAX_PATTERN: usize = 120;
const MAX_REASON: usize = 280;

/// How a proposal may carry them, for a role that is told notes.
pub const HINT: &str = "A note that sets a rule for later rounds as well may be offered as one, beside `decisions`: `\"constraints\": \
    [{\"match\": \"layer1.*\", \"do\": \"limit\", \"ratio\": 0.25, \"reason\": \"…\"}]` (`do`: veto, limit, at_least, keep_f32, together, or prefer \
    with `wish` cut, spare or a precision). It binds once the engineer confirms it. Offer none that no note asks for.\n";

/// What `rules` come to in the session's model, if anything, and what is wrong with those that are left out.
pub fn read(rules: &[Value], by: Author, state: &State) -> (Option<Suggestion>, Vec<String>) {
    let Some(card) = &state.card else { return (None, vec!["no session is open".to_owned()]) };
    if state.notes.is_empty() {
        return (None, vec!["no note of the engineer's asks for a rule; hint: propose decisions".to_owned()]);
    }
    let mut wrong = Vec::new();
    if rules.len() > MOST_RULES {
        wrong.push(format!("{} rules are too many; the first {MOST_RULES} are read", rules.len()));
    }
    let (mut constraints, mut words): (Vec<Constraint>, Vec<String>) = (Vec::new(), Vec::new());
    for value in rules.iter().take(MOST_RULES) {
        let bound = one(value).and_then(|rule| {
            let of = rule.words();
            let bound = Policy { rules: vec![rule], ..Policy::default() }.bind(card)?;
            match bound.is_empty() {
                true => Err(format!("nothing can be bound so: {of}")),
                false => Ok((bound, of)),
            }
        });
        match bound {
            Ok((bound, _)) if constraints.len() + bound.len() > MOST => {
                wrong.push(format!("more than {MOST} targets would be bound; hint: a narrower pattern"));
            }
            Ok((bound, of)) => {
                constraints.extend(bound);
                words.push(of);
            }
            Err(why) => wrong.push(why),
        }
    }
    let words = words.join("; ");
    ((!constraints.is_empty()).then_some(Suggestion { by, constraints, words }), wrong)
}

fn one(value: &Value) -> Result<Rule, String> {
    let rule: Rule = serde_json::from_value(value.clone()).map_err(|e| {
        let why = clean::line(&e.to_string(), 160);
        format!("a rule does not read: {why}; hint: `match`, `do`, and `ratio` or `wish` where it needs one")
    })?;
    let rule = Rule {
        pattern: clean::line(&rule.pattern, MAX_PATTERN),
        reason: clean::line(&rule.reason, MAX_REASON),
        wish: rule.wish.map(|w| clean::line(&w, 40)),
        ..rule
    };
    rule.check().map(|()| rule)
}
