//! Rules that a model reads in the engineer's notes: they become constraints when the engineer confirms them, and bind nothing before.
//!
//! Not here: what a rule makes of a model (`config::rules`). Invariants: nothing is suggested where there is no note; what is suggested is
//! bounded in number and in words.

use super::clean;
use crate::config::{Policy, Rule};
use crate::plan::Author;
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

/// What `rules` come to in the session's model.
///
/// # Errors
/// In words, with a hint: no note asks for any, a rule that is none, a pattern that matches nothing.
pub fn read(rules: &[Value], by: Author, state: &State) -> Result<Suggestion, String> {
    let card = state.card.as_ref().ok_or("no session is open")?;
    if state.notes.is_empty() {
        return Err("no note of the engineer's asks for a rule; hint: propose decisions".to_owned());
    }
    if rules.is_empty() || rules.len() > MOST_RULES {
        return Err(format!("{} rules are none that can be offered; hint: 1 to {MOST_RULES}", rules.len()));
    }
    let one = |value: &Value| -> Result<Rule, String> {
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
    };
    let rules = rules.iter().map(one).collect::<Result<Vec<Rule>, String>>()?;
    let words: Vec<String> = rules.iter().map(Rule::words).collect();
    let constraints = Policy { rules, ..Policy::default() }.bind(card)?;
    if constraints.is_empty() || constraints.len() > MOST {
        return Err(format!("they would bind {} targets; hint: 1 to {MOST}", constraints.len()));
    }
    Ok(Suggestion { by, constraints, words: words.join("; ") })
}
