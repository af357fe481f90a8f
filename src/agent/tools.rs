//! What a program may ask of a session: the questions with what they take, and their answers, all of them read off [`State`].
//!
//! Not here: who asks and how that travels (`crate::mcp`), what changes a session (`session::Command`). Invariants: an answer
//! changes nothing, and its size is bounded; what is asked for in a wrong way is refused in words that name it; where the
//! evaluation data must not choose, nothing that was measured on it is told.

mod asked;
mod facts;
mod plans;

pub use asked::Asked;
pub use plans::{Wanted, change, tried, wanted, worse};

use super::blinded;
use crate::session::State;
use serde_json::{Map, Value, json};

/// Says of a rehearsal's answer that the plan had been tried before.
pub const KNOWN: &str = "tried_before";

/// What becomes of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Does {
    /// It is answered from the state.
    Looks,
    /// A plan is built and tried on held-back calibration data; nothing is applied.
    Rehearses,
    /// Decisions wait for the engineer.
    Proposes,
    /// The engineer is asked.
    Asks,
    /// Something is measured again; nothing is applied.
    Measures,
}

/// One question that may be asked.
#[derive(Debug)]
pub struct Tool {
    pub name: &'static str,
    /// What it is for, to whom decides on calling it.
    pub what: &'static str,
    pub does: Does,
    /// Names of arguments, each with its JSON schema; those with `true` must be there.
    takes: &'static [(&'static str, Kind, bool, &'static str)],
}

/// What an argument is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Number,
    /// A list of decisions.
    Plan,
    /// A list of decisions, or the word of a plan that the session has.
    PlanOrWord,
    OneOf(&'static [&'static str]),
}

const ON: Kind = Kind::OneOf(&["approved", "shown", "nothing"]);
const ON_WHAT: &str = "what the decisions are laid over: `approved` (what the next run builds, the default), `shown` (all that is proposed, too) or `nothing` (the original)";
const DECISIONS: &str = "decisions, each with `target` (a name as `layers`, `group` or `plan` give it, or a pattern with `*`), `action` \
     (`prune`, `precision`, `remove_block` or `keep`), `ratio` for prune (the part of the units to remove, 0 to 1), `precision` for precision, and `why`";
const PLAN_WORDS: &[&str] = &["original", "in_force", "approved", "shown"];

/// All of them, in the order in which they help.
pub static TOOLS: [Tool; 13] = [
    Tool {
        name: "plan",
        what: "The session as it stands: model, data, budget, phase, every decision with its author, status and forecast, and what the whole is forecast to be",
        does: Does::Looks,
        takes: &[],
    },
    Tool {
        name: "layers",
        what: "Layers of the model in force as they were measured: milliseconds, share, MACs, bytes, what they are bound by",
        does: Does::Looks,
        takes: &[
            ("filter", Kind::Text, false, "a pattern with `*` for names, or a kind such as `conv`"),
            ("sort", Kind::OneOf(facts::SORTS), false, "by what, largest first; `ms` unless told"),
            ("limit", Kind::Number, false, "rows at most, 40 unless told"),
        ],
    },
    Tool {
        name: "profile",
        what: "Everything that was measured of one layer: latency with its percentiles, kernel, what is fused into it, intensity and ceiling",
        does: Does::Looks,
        takes: &[("name", Kind::Text, true, "a layer's name")],
    },
    Tool {
        name: "sensitivity",
        what: "What pruning, a precision or removal costs one target alone, measured on calibration data: KL divergence, loss, quality",
        does: Does::Looks,
        takes: &[("target", Kind::Text, true, "a group's, layer's or block's name")],
    },
    Tool {
        name: "ladder",
        what: "Measured milliseconds of one layer at other widths and precisions",
        does: Does::Looks,
        takes: &[("layer", Kind::Text, true, "a layer's name")],
    },
    Tool {
        name: "group",
        what: "A group of units that must be pruned together: its members, step, the most that the constraints let go, what parts of it save",
        does: Does::Looks,
        takes: &[("name", Kind::Text, true, "a group's name; without a match, the nearest is told")],
    },
    Tool {
        name: "forecast",
        what: "What decisions are expected to do, with ranges and what these rest on, before anything is built; costs nothing",
        does: Does::Looks,
        takes: &[("decisions", Kind::Plan, true, DECISIONS), ("on", ON, false, ON_WHAT)],
    },
    Tool {
        name: "compare",
        what: "Two plans side by side: where they differ, and the forecast of each",
        does: Does::Looks,
        takes: &[
            ("a", Kind::PlanOrWord, true, "decisions over `on`, or `original`, `in_force`, `approved` or `shown`"),
            ("b", Kind::PlanOrWord, true, "as `a`"),
            ("on", ON, false, ON_WHAT),
        ],
    },
    Tool {
        name: "frontier",
        what: "Every plan of which quality is known: measured rounds and rehearsals, with what they cost and save",
        does: Does::Looks,
        takes: &[],
    },
    Tool {
        name: "history",
        what: "Rounds with forecast against measurement, the engineer's notes, vetoes and what was said",
        does: Does::Looks,
        takes: &[],
    },
    Tool {
        name: "constraints",
        what: "The budget and what the engineer forbade, with reasons; both bind every proposal, in code",
        does: Does::Looks,
        takes: &[],
    },
    Tool {
        name: "rehearse",
        what: "Builds a plan as a run would and tries it on held-back calibration data: seconds to minutes of the engineer's machine, nothing is applied",
        does: Does::Rehearses,
        takes: &[("decisions", Kind::Plan, true, DECISIONS), ("on", ON, false, ON_WHAT)],
    },
    Tool {
        name: "propose",
        what: "Lays decisions before the engineer, who edits, approves or vetoes each; nothing runs before that",
        does: Does::Proposes,
        takes: &[
            ("decisions", Kind::Plan, true, DECISIONS),
            ("summary", Kind::Text, false, "why, in a sentence or two, for the engineer"),
            (
                "expect",
                Kind::Number,
                false,
                "the change of the metric that you expect of the whole plan once it is built, as it is shown (points lost are negative); kept beside what is measured",
            ),
        ],
    },
];

/// The question to the engineer: apart, since whoever has no way of waiting for people leaves it out.
pub static ASK: Tool = Tool {
    name: "ask_human",
    what: "Asks the engineer at the terminal, and waits a while for a note in answer",
    does: Does::Asks,
    takes: &[
        ("question", Kind::Text, true, "the question, in a sentence or two"),
        ("wait_s", Kind::Number, false, "seconds to wait, 120 unless told, 600 at most"),
    ],
};

/// A measurement: apart, since one role alone asks for those.
pub static MEASURE: Tool = Tool {
    name: "measure",
    what: "Measures again, on the engineer's machine, what a decision hangs on: one layer's row, every row with the original beside it, or the sensitivities",
    does: Does::Measures,
    takes: &[
        ("what", Kind::OneOf(&["layer", "layers", "sensitivity"]), true, "what is measured; `layer` needs `name`"),
        ("name", Kind::Text, false, "a layer's name, as `layers` gives it"),
    ],
};

/// The tool called `name`.
pub fn find(name: &str) -> Option<&'static Tool> {
    TOOLS.iter().chain([&ASK, &MEASURE]).find(|t| t.name == name)
}

/// What a proposal looks like, as JSON schema: as a server holds an answer to it. `targets` are the names that may be given, where those
/// are few enough to be listed.
pub fn form(targets: &[&str]) -> Value {
    let mut one = entry();
    if !targets.is_empty() {
        one["properties"]["target"]["enum"] = json!(targets);
    }
    one["properties"]["ratio"] = json!({ "type": "number", "minimum": 0, "maximum": 1 });
    json!({
        "type": "object",
        "properties": {
            "summary": { "type": "string" },
            "decisions": { "type": "array", "items": one },
            "expect": { "type": "number" },
        },
        "required": ["summary", "decisions"],
        "additionalProperties": false,
    })
}

impl Tool {
    /// What it takes, as JSON schema.
    pub fn schema(&self) -> Map<String, Value> {
        let properties: Map<String, Value> =
            self.takes.iter().map(|(name, kind, _, what)| ((*name).to_owned(), kind.schema(what))).collect();
        let required: Vec<&str> = self.takes.iter().filter(|(_, _, must, _)| *must).map(|(name, ..)| *name).collect();
        Map::from_iter([
            ("type".to_owned(), json!("object")),
            ("properties".to_owned(), Value::Object(properties)),
            ("required".to_owned(), json!(required)),
            ("additionalProperties".to_owned(), json!(false)),
        ])
    }
}

impl Kind {
    fn schema(self, what: &str) -> Value {
        match self {
            Kind::Text => json!({ "type": "string", "description": what }),
            Kind::Number => json!({ "type": "number", "description": what }),
            Kind::OneOf(words) => json!({ "type": "string", "enum": words, "description": what }),
            Kind::Plan => json!({ "type": "array", "items": entry(), "description": what }),
            Kind::PlanOrWord => json!({
                "anyOf": [{ "type": "array", "items": entry() }, { "type": "string", "enum": PLAN_WORDS }],
                "description": what,
            }),
        }
    }
}

/// One decision, as JSON schema.
fn entry() -> Value {
    json!({
        "type": "object",
        "properties": {
            "target": { "type": "string" },
            "action": { "type": "string", "enum": ["prune", "precision", "remove_block", "keep"] },
            "ratio": { "type": "number" },
            "precision": { "type": "string" },
            "why": { "type": "string" },
        },
        "required": ["target", "action"],
    })
}

/// The answer to a question that only looks.
///
/// # Errors
/// In words, with a hint: arguments that are none, names that are not there, a session that has not measured it yet.
pub fn answer(tool: &Tool, asked: &Map<String, Value>, state: &State) -> Result<Value, String> {
    let asked = Asked::of(tool, asked)?;
    let told;
    let state = match state.is_blind() {
        true => {
            told = blinded(state);
            &told
        }
        false => state,
    };
    match tool.name {
        "plan" => plans::plan(state),
        "layers" => facts::layers(state, &asked),
        "profile" => facts::profile(state, &asked),
        "sensitivity" => facts::sensitivity(state, &asked),
        "ladder" => facts::ladder(state, &asked),
        "group" => facts::group(state, &asked),
        "forecast" => plans::forecast(state, &asked),
        "compare" => plans::compare(state, &asked),
        "frontier" => plans::frontier(state),
        "history" => plans::history(state),
        "constraints" => plans::constraints(state),
        other => Err(format!("`{other}` is not answered from what is known; hint: it is a request of its own")),
    }
}

#[cfg(test)]
#[path = "tools_tests.rs"]
mod tests;
