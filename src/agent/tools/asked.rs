//! The arguments of a question: checked for their names and kinds before anything looks at them.

use super::{Kind, Tool};
use crate::agent::clean;
use serde_json::{Map, Value};

/// Longest text of an argument, characters.
const MAX_TEXT: usize = 2_000;

/// Arguments that are of their tool.
#[derive(Debug)]
pub struct Asked<'a>(&'a Map<String, Value>);

impl<'a> Asked<'a> {
    /// # Errors
    /// In words: a name that the tool does not take, one that is missing, a value of another kind.
    pub fn of(tool: &Tool, asked: &'a Map<String, Value>) -> Result<Asked<'a>, String> {
        let names = || match tool.takes {
            [] => "it takes none".to_owned(),
            takes => format!("it takes {}", takes.iter().map(|(n, ..)| *n).collect::<Vec<_>>().join(", ")),
        };
        if let Some(other) = asked.keys().find(|k| !tool.takes.iter().any(|(n, ..)| n == k)) {
            return Err(format!("`{}` has no argument `{}`; hint: {}", tool.name, clean::line(other, 40), names()));
        }
        for (name, kind, must, what) in tool.takes {
            match asked.get(*name) {
                None | Some(Value::Null) if *must => {
                    return Err(format!("`{}` needs `{name}`: {what}", tool.name));
                }
                None | Some(Value::Null) => {}
                Some(value) => kind.check(value).map_err(|why| format!("`{}`: `{name}` {why}", tool.name))?,
            }
        }
        Ok(Asked(asked))
    }

    pub fn value(&self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|v| !v.is_null())
    }

    pub fn text(&self, name: &str) -> Option<&'a str> {
        self.value(name)?.as_str().map(str::trim).filter(|t| !t.is_empty())
    }

    /// A list, empty where there is none.
    pub fn list(&self, name: &str) -> &'a [Value] {
        self.value(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
    }

    pub fn number(&self, name: &str) -> Option<f64> {
        self.value(name)?.as_f64()
    }

    /// A whole number of at least 1 and at most `most`; `usual` where nothing is said.
    pub fn count(&self, name: &str, usual: usize, most: usize) -> usize {
        self.number(name).map_or(usual, |n| (n.max(1.0) as usize).min(most))
    }
}

impl Kind {
    fn check(self, value: &Value) -> Result<(), String> {
        let fits = match (self, value) {
            (Kind::Text, Value::String(s)) if s.chars().count() > MAX_TEXT => {
                return Err(format!("is longer than {MAX_TEXT} characters; hint: shorten it"));
            }
            (Kind::Text, v) => v.is_string(),
            (Kind::Number, v) => v.as_f64().is_some_and(f64::is_finite),
            (Kind::Plan, v) => v.is_array(),
            (Kind::PlanOrWord, Value::String(s)) => super::PLAN_WORDS.contains(&s.as_str()),
            (Kind::PlanOrWord, v) => v.is_array(),
            (Kind::OneOf(words), v) => v.as_str().is_some_and(|s| words.contains(&s)),
        };
        if fits { Ok(()) } else { Err(format!("is not {}", self.words())) }
    }

    fn words(self) -> String {
        match self {
            Kind::Text => "a text".to_owned(),
            Kind::Number => "a number".to_owned(),
            Kind::Plan => "a list of decisions".to_owned(),
            Kind::PlanOrWord => format!("a list of decisions or one of {}", super::PLAN_WORDS.join(", ")),
            Kind::OneOf(words) => format!("one of {}", words.join(", ")),
        }
    }
}
