//! Questions with free answers from JSONL files, for language models: what is asked, and the answers that count as right.
//!
//! Not here: what a model writes (`eval::answers`), what that is worth (`task::answers`).

use super::DataError;
use super::documents::{bad, fields, for_lines, is_lines, listed};
use serde_json::{Map, Value};
use std::path::Path;

/// No question is longer, in bytes of its line.
const MAX_LINE: u64 = 1 << 20;
/// A first line that may be a document's: no text is longer.
const MAX_FIRST: u64 = 32 << 20;
/// No set has more.
const MAX_QUESTIONS: usize = 1 << 20;
/// Fields with what is asked, the first that is there; and those with what is right.
const ASKED: [&str; 3] = ["prompt", "input", "question"];
const RIGHT: [&str; 7] = ["answers", "answer", "references", "reference", "target", "output", "completion"];
/// What says that a line is of another kind.
const OTHERS: [&str; 4] = ["text", "messages", "choices", "endings"];
const HINT: &str =
    "lines with `prompt`, `input` or `question`, and `answers` (a list), `answer`, `reference` or `target`";

/// One question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    pub prompt: String,
    /// Any of them is right; one at least.
    pub answers: Vec<String>,
}

/// The questions of a file, in its order.
#[derive(Debug, Clone)]
pub struct Answered {
    pub all: Vec<Asked>,
}

impl Answered {
    /// How a question is put, in words.
    pub const CONVENTION: &'static str = "`prompt` and `input` as they stand; of a `question`: its `context`, where it has one, and an empty line, `Question: …`, a line `Answer:`";

    /// Whether the file at `path` holds such questions, by the fields of its first line.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn are_in(path: &Path) -> Result<bool, DataError> {
        let mut found = false;
        if is_lines(path) && path.is_file() {
            for_lines(path, MAX_FIRST, &mut |_, line| {
                let has = |all: &[String], name: &&str| all.iter().any(|f| f == name);
                let of = |all: &[String], names: &[&str]| names.iter().any(|name| has(all, name));
                found = fields(line).is_some_and(|all| of(&all, &ASKED) && of(&all, &RIGHT) && !of(&all, &OTHERS));
                Ok(false)
            })?;
        }
        Ok(found)
    }

    /// The first `limit` questions of the file (0: all).
    ///
    /// # Errors
    /// Lines without a question or an answer; by number.
    pub fn open(path: &Path, limit: usize) -> Result<Answered, DataError> {
        let mut all = Vec::new();
        let most = if limit == 0 { MAX_QUESTIONS } else { limit.min(MAX_QUESTIONS) };
        for_lines(path, MAX_LINE, &mut |number, line| {
            let unfit = |why: String| bad(path, format!("line {number} {why}"), HINT);
            let parsed: Map<String, Value> =
                serde_json::from_str(line).map_err(|_| unfit("is no JSON object".into()))?;
            let asked = asked(&parsed).map_err(|why| match fields(line) {
                Some(all) => unfit(format!("{why}{}", listed(&all))),
                None => unfit(why),
            })?;
            all.push(asked);
            Ok(all.len() < most)
        })?;
        if limit == 0 && all.len() == MAX_QUESTIONS {
            let why = format!("it has {MAX_QUESTIONS} questions or more");
            return Err(bad(path, why, "`--limit` with how many are asked"));
        }
        if all.is_empty() {
            return Err(bad(path, "it holds no questions".into(), HINT));
        }
        Ok(Answered { all })
    }
}

fn asked(line: &Map<String, Value>) -> Result<Asked, String> {
    let text = |name: &str| line.get(name).and_then(Value::as_str);
    let name = ASKED.into_iter().find(|n| line.contains_key(*n)).ok_or("has no question")?;
    let asked = text(name).ok_or_else(|| format!("has no text in `{name}`"))?;
    let prompt = match (name, text("context")) {
        ("question", None) => format!("Question: {asked}\nAnswer:"),
        ("question", Some(context)) => format!("{context}\n\nQuestion: {asked}\nAnswer:"),
        _ => asked.to_owned(),
    };
    let name = RIGHT.into_iter().find(|n| line.contains_key(*n)).ok_or("has no answer; is it withheld?")?;
    let answers = texts(&line[name]).ok_or_else(|| format!("has no text in `{name}`"))?;
    if answers.is_empty() || prompt.is_empty() {
        return Err(format!("has nothing in `{}`", if prompt.is_empty() { "prompt" } else { name }));
    }
    Ok(Asked { prompt, answers })
}

/// Text, numbers, lists of those, and SQuAD's object with a list in `text`.
fn texts(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::String(s) => Some(vec![s.clone()]),
        Value::Number(n) => Some(vec![n.to_string()]),
        Value::Bool(b) => Some(vec![b.to_string()]),
        Value::Array(all) => all.iter().map(|v| texts(v).filter(|t| t.len() == 1)?.pop()).collect(),
        Value::Object(o) => texts(o.get("text")?),
        Value::Null => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(lines: &str) -> Result<Answered, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("q.jsonl");
        std::fs::write(&path, lines).unwrap();
        assert!(Answered::are_in(&path).unwrap());
        Answered::open(&path, 0).map_err(|e| e.to_string())
    }

    #[test]
    fn usual_shapes_are_read() {
        let found = open(
            "{\"prompt\": \"2+2=\", \"answer\": 4}\n\
             {\"question\": \"Who?\", \"answers\": [\"A\", \"B\"]}\n\
             {\"question\": \"Who?\", \"context\": \"C.\", \"answers\": {\"text\": [\"A\", \"A\"], \"answer_start\": [1, 2]}}\n\
             {\"input\": \"Say\", \"target\": \"it\"}\n",
        )
        .unwrap();
        let of = |i: usize| {
            (found.all[i].prompt.as_str(), found.all[i].answers.iter().map(String::as_str).collect::<Vec<_>>())
        };
        assert_eq!(of(0), ("2+2=", vec!["4"]));
        assert_eq!(of(1), ("Question: Who?\nAnswer:", vec!["A", "B"]));
        assert_eq!(of(2), ("C.\n\nQuestion: Who?\nAnswer:", vec!["A", "A"]));
        assert_eq!(of(3), ("Say", vec!["it"]));
    }

    #[test]
    fn others_are_not_and_lines_without_answers_are_named() {
        let dir = tempfile::tempdir().unwrap();
        for (line, is) in [
            ("{\"text\": \"a\", \"prompt\": \"b\", \"answer\": \"c\"}", false),
            ("{\"question\": \"a\", \"choices\": [\"b\", \"c\"], \"answer\": 0}", false),
            ("{\"question\": \"a\"}", false),
            ("{\"question\": \"a\", \"answer\": \"b\"}", true),
        ] {
            let path = dir.path().join("q.jsonl");
            std::fs::write(&path, line).unwrap();
            assert_eq!(Answered::are_in(&path).unwrap(), is, "{line}");
        }
        let first = "{\"prompt\": \"a\", \"answer\": \"b\"}\n";
        for (line, why) in [
            ("{\"prompt\": \"a\"}", "line 2 has no answer"),
            ("{\"prompt\": 3, \"answer\": \"b\"}", "line 2 has no text in `prompt`"),
            ("{\"prompt\": \"a\", \"answers\": []}", "line 2 has nothing in `answers`"),
            ("{\"prompt\": \"a\", \"answers\": [[\"b\", \"c\"]]}", "line 2 has no text in `answers`"),
            ("[1]", "line 2 is no JSON object"),
        ] {
            let error = open(&format!("{first}{line}\n")).unwrap_err();
            assert!(error.contains(why) && error.contains("hint"), "{error}");
        }
    }
}
