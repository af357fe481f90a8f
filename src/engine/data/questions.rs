//! Questions with choices from JSONL files, for language models: HellaSwag, ARC and MMLU, told apart by their fields.
//!
//! Prompts are those of EleutherAI's lm-evaluation-harness (`tasks/hellaswag`, `tasks/arc`, `tasks/mmlu/default`) without examples
//! before them. Not here: what a model makes of them (`eval::choices`).

use super::documents::{bad, fields, for_lines, is_lines, listed};
use super::{DataError, clean_name};
use crate::words::counted;
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::path::Path;

/// No question is longer, in bytes of its line.
const MAX_LINE: u64 = 1 << 20;
/// A first line that may be a document's: no text is longer.
const MAX_FIRST: u64 = 32 << 20;
/// No set has more.
const MAX_QUESTIONS: usize = 1 << 20;
/// What each line is to be, for those who gave another.
const HINT: &str = "lines of HellaSwag (`ctx`, `endings`, `label`), ARC (`question`, `choices` with `text` and `label`, `answerKey`) or MMLU \
                    (`question`, `choices`, `answer`)";

/// Whose questions these are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    HellaSwag,
    Arc,
    Mmlu,
}

impl Form {
    pub fn label(self) -> &'static str {
        match self {
            Form::HellaSwag => "hellaswag",
            Form::Arc => "arc",
            Form::Mmlu => "mmlu",
        }
    }

    /// How a question is put to a model, in words.
    pub fn convention(self) -> &'static str {
        match self {
            Form::HellaSwag => "`activity_label: ctx_a Ctx_b` without WikiHow's brackets, then a space and an ending",
            Form::Arc => "`Question: …`, a line `Answer:`, then a space and a choice",
            Form::Mmlu => {
                "a line on the `subject` where one is named, the question, its choices after `A.`, `B.` and so on, a line `Answer:`, then a \
                 space and a letter"
            }
        }
    }
}

/// One question, as text that a choice follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    pub prompt: String,
    /// Each without the space before it.
    pub choices: Vec<String>,
    /// Which choice is right.
    pub right: usize,
}

/// Questions of one form, in the file's order.
#[derive(Debug, Clone)]
pub struct Questions {
    pub form: Form,
    pub all: Vec<Question>,
}

/// The fields of all forms.
#[derive(Deserialize)]
struct Line {
    ctx: Option<Field>,
    ctx_a: Option<Field>,
    ctx_b: Option<Field>,
    activity_label: Option<Field>,
    endings: Option<Field>,
    label: Option<Field>,
    question: Option<Field>,
    choices: Option<Field>,
    #[serde(rename = "answerKey")]
    answer_key: Option<Field>,
    answer: Option<Field>,
    subject: Option<Field>,
}

/// A value of any kind, of which a few are used.
#[derive(Deserialize)]
#[serde(untagged)]
enum Field {
    Number(u64),
    Text(String),
    Texts(Vec<String>),
    Labelled { text: Vec<String>, label: Vec<String> },
    Other(IgnoredAny),
}

impl Field {
    fn text(&self) -> Option<&str> {
        match self {
            Field::Text(t) => Some(t),
            _ => None,
        }
    }

    fn texts(&self) -> Option<&[String]> {
        match self {
            Field::Texts(all) => Some(all),
            _ => None,
        }
    }

    /// A number, or text that is one.
    fn number(&self) -> Option<usize> {
        match self {
            Field::Number(n) => usize::try_from(*n).ok(),
            Field::Text(t) => t.trim().parse().ok(),
            _ => None,
        }
    }
}

fn text(field: &Option<Field>) -> Option<&str> {
    field.as_ref().and_then(Field::text)
}

impl Questions {
    /// Whether the file at `path` holds questions, by the fields of its first line.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn are_in(path: &Path) -> Result<bool, DataError> {
        let mut found = false;
        if is_lines(path) && path.is_file() {
            for_lines(path, MAX_FIRST, &mut |_, line| {
                let has = |all: &[String], name: &str| all.iter().any(|f| f == name);
                found = fields(line).is_some_and(|all| {
                    !has(&all, "text") && (has(&all, "endings") || (has(&all, "question") && has(&all, "choices")))
                });
                Ok(false)
            })?;
        }
        Ok(found)
    }

    /// The first `limit` questions of the file (0: all).
    ///
    /// # Errors
    /// Lines of another form, without an answer, with one choice; by number.
    pub fn open(path: &Path, limit: usize) -> Result<Questions, DataError> {
        let (mut form, mut all) = (None, Vec::new());
        let most = if limit == 0 { MAX_QUESTIONS } else { limit.min(MAX_QUESTIONS) };
        for_lines(path, MAX_LINE, &mut |number, line| {
            let unfit = |reason: String| bad(path, format!("line {number} {reason}"), HINT);
            let parsed: Line = serde_json::from_str(line).map_err(|_| unfit("is no JSON object".into()))?;
            let (of, question) = parsed.question().map_err(|why| match fields(line) {
                Some(all) => unfit(format!("{why}{}", listed(&all))),
                None => unfit(why),
            })?;
            if *form.get_or_insert(of) != of {
                return Err(unfit("is of another form than those before it".into()));
            }
            all.push(question);
            Ok(all.len() < most)
        })?;
        if limit == 0 && all.len() == MAX_QUESTIONS {
            return Err(bad(
                path,
                format!("it has {MAX_QUESTIONS} questions or more"),
                "`--limit` with how many are asked",
            ));
        }
        let form = form.ok_or_else(|| bad(path, "it holds no questions".into(), HINT))?;
        Ok(Questions { form, all })
    }

    /// What a blind guess gets right, on the mean.
    pub fn chance(&self) -> f64 {
        self.all.iter().map(|q| 1.0 / q.choices.len() as f64).sum::<f64>() / self.all.len().max(1) as f64
    }
}

impl Line {
    fn question(&self) -> Result<(Form, Question), String> {
        let (form, prompt, choices, right) = match (&self.endings, &self.choices) {
            (Some(endings), _) => {
                let endings = endings.texts().ok_or("has `endings` that are no list of strings")?;
                let choices = endings.iter().map(|e| tidied(e)).collect();
                let label = self.label.as_ref().and_then(Field::number);
                (Form::HellaSwag, tidied(&self.scene()?), choices, label.ok_or_else(|| withheld("label"))?)
            }
            (None, Some(Field::Labelled { text: choices, label })) => {
                let key = match self.answer_key.as_ref().ok_or_else(|| withheld("answerKey"))? {
                    Field::Text(key) => key.trim().to_owned(),
                    Field::Number(n) => n.to_string(),
                    _ => return Err(withheld("answerKey")),
                };
                if label.len() != choices.len() {
                    return Err(format!(
                        "has {} for {}",
                        counted(label.len(), "label"),
                        counted(choices.len(), "choice")
                    ));
                }
                if let Some(twice) = label.iter().enumerate().find(|(i, l)| label[..*i].contains(l)) {
                    return Err(format!("has two choices labelled `{}`", clean_name(twice.1)));
                }
                let right = label.iter().position(|l| *l == key);
                let right =
                    right.ok_or_else(|| format!("has the answer `{}`, which no choice has", clean_name(&key)))?;
                let asked = text(&self.question).ok_or("has no text in `question`")?;
                (Form::Arc, format!("Question: {asked}\nAnswer:"), choices.clone(), right)
            }
            (None, Some(Field::Texts(choices))) => {
                let answer = self.answer.as_ref().ok_or_else(|| withheld("answer"))?;
                let letter = |a: &Field| letters().position(|l| a.text().is_some_and(|t| t.trim() == l));
                let right = answer.number().or_else(|| letter(answer)).ok_or_else(|| withheld("answer"))?;
                if choices.len() > letters().count() {
                    return Err(format!("has {} choices, more than letters", choices.len()));
                }
                let asked = text(&self.question).ok_or("has no text in `question`")?;
                let subject = text(&self.subject).map_or(String::new(), |s| {
                    let about = s.replace('_', " ");
                    format!("The following are multiple choice questions (with answers) about {about}.\n\n")
                });
                let listed: String = letters().zip(choices).map(|(l, c)| format!("\n{l}. {c}")).collect();
                let prompt = format!("{subject}{}{listed}\nAnswer:", asked.trim());
                (Form::Mmlu, prompt, letters().take(choices.len()).collect(), right)
            }
            _ => return Err("is no question that is known".into()),
        };
        match choices.len() {
            0 | 1 => Err("has no choices to choose among".into()),
            n if right >= n => Err(format!("has choice {right} as its answer (from 0), of {n}")),
            _ if choices.iter().any(String::is_empty) => Err("has an empty choice".into()),
            _ => Ok((form, Question { prompt, choices, right })),
        }
    }

    /// HellaSwag's scene: its two halves, the second with a capital letter as Python writes it, else `ctx` as it stands.
    fn scene(&self) -> Result<String, String> {
        let scene = match (text(&self.ctx_a), text(&self.ctx_b)) {
            (Some(a), Some(b)) => {
                let mut letters = b.chars();
                let first: String = letters.next().map(|c| c.to_uppercase().collect()).unwrap_or_default();
                format!("{a} {first}{}", letters.as_str().to_lowercase())
            }
            _ => text(&self.ctx).ok_or("has no text in `ctx`, nor in `ctx_a` and `ctx_b`")?.to_owned(),
        };
        Ok(match text(&self.activity_label) {
            Some(label) => format!("{label}: {scene}"),
            None => scene,
        })
    }
}

fn letters() -> impl Iterator<Item = String> {
    ('A'..='Z').map(String::from)
}

fn withheld(field: &str) -> String {
    format!("has no answer in `{field}` (those of test parts are often withheld)")
}

/// HellaSwag's text without what WikiHow left in it: `[title]` becomes a full stop, other brackets and second spaces go.
fn tidied(text: &str) -> String {
    let text = text.trim().replace(" [title]", ". ");
    let (mut out, mut rest) = (String::with_capacity(text.len()), text.as_str());
    while let Some(from) = rest.find('[') {
        // A bracket that does not end on its line stays.
        let inside = &rest[from..];
        let line = inside.find('\n').unwrap_or(inside.len());
        match inside[..line].find(']') {
            Some(to) => {
                out.push_str(&rest[..from]);
                rest = &inside[to + 1..];
            }
            None => {
                out.push_str(&rest[..=from]);
                rest = &inside[1..];
            }
        }
    }
    out.push_str(rest);
    out.replace("  ", " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(text: &str, limit: usize) -> Result<Questions, DataError> {
        let file = tempfile::Builder::new().suffix(".jsonl").tempfile().unwrap();
        std::fs::write(file.path(), text).unwrap();
        Questions::open(file.path(), limit)
    }

    #[test]
    fn hellaswag_is_put_as_the_harness_puts_it() {
        let line = r#"{"ind": 4, "activity_label": "Removing ice", "ctx_a": "A man [header] sits", "ctx_b": "he Wipes", "ctx": "unused",
            "endings": ["slowly [title] And  more", "[step] fast", "a [b", "c"], "label": "1", "source_id": {"a": [1, null]}}"#
            .replace('\n', " ");
        let found = opened(&line, 0).unwrap();
        assert_eq!((found.form, found.chance()), (Form::HellaSwag, 0.25));
        let q = &found.all[0];
        // By Python: `preprocess` of the harness on the same strings.
        assert_eq!(q.prompt, "Removing ice: A man sits He wipes");
        assert_eq!(
            (q.choices.clone(), q.right),
            (["slowly. And more", " fast", "a [b", "c"].map(String::from).to_vec(), 1)
        );
        let plain = opened(r#"{"ctx": "It is ", "endings": ["a", "b"], "label": 0}"#, 0).unwrap();
        assert_eq!(plain.all[0].prompt, "It is");
    }

    #[test]
    fn arc_and_mmlu_are_put_as_the_harness_puts_them() {
        let arc = r#"{"id": "x", "question": "Why?", "choices": {"text": ["p", "q", "r"], "label": ["A", "B", "C"]}, "answerKey": "C"}
{"question": "How?", "choices": {"label": ["1", "2"], "text": ["s", "t"]}, "answerKey": 1}"#;
        let found = opened(arc, 0).unwrap();
        assert_eq!((found.form, found.all.len(), found.all[0].right, found.all[1].right), (Form::Arc, 2, 2, 0));
        assert_eq!(found.all[0].prompt, "Question: Why?\nAnswer:");
        assert_eq!(opened(arc, 1).unwrap().all.len(), 1);
        assert!((found.chance() - (1.0 / 3.0 + 0.5) / 2.0).abs() < 1e-12);
        let mmlu = r#"{"question": " 1 + 1? ", "subject": "abstract_algebra", "choices": ["2", "3"], "answer": 0}"#;
        let found = opened(mmlu, 0).unwrap();
        let want = "The following are multiple choice questions (with answers) about abstract algebra.\n\n1 + 1?\nA. 2\nB. 3\nAnswer:";
        assert_eq!((found.form, found.all[0].prompt.as_str()), (Form::Mmlu, want));
        assert_eq!(found.all[0].choices, ["A", "B"]);
        let letter = opened(r#"{"question": "?", "choices": ["2", "3"], "answer": "B"}"#, 0).unwrap();
        assert_eq!((letter.all[0].right, letter.all[0].prompt.as_str()), (1, "?\nA. 2\nB. 3\nAnswer:"));
    }

    #[test]
    fn what_is_no_question_is_told_with_its_line() {
        let refused = |text: &str, words: &str| {
            let said = opened(text, 0).unwrap_err().to_string();
            assert!(said.contains(words) && said.contains("hint: "), "{said}");
        };
        let good = r#"{"ctx": "a", "endings": ["b", "c"], "label": 0}"#;
        refused(&format!("{good}\n{{\"prompt\": 1}}"), "line 2 is no question that is known: its fields are `prompt`");
        refused(&format!("{good}\n[]"), "line 2 is no JSON object");
        refused(r#"{"ctx": "a", "endings": ["b", "c"], "label": ""}"#, "withheld");
        refused(r#"{"ctx": "a", "endings": ["b", "c"]}"#, "withheld");
        refused(r#"{"ctx": "a", "endings": ["b", "c"], "label": 2}"#, "choice 2 as its answer (from 0), of 2");
        refused(r#"{"ctx": "a", "endings": ["b"], "label": 0}"#, "no choices");
        refused(r#"{"ctx": "a", "endings": ["b", " "], "label": 0}"#, "an empty choice");
        refused(r#"{"ctx": 3, "endings": ["b", "c"], "label": 0}"#, "no text in `ctx`");
        refused(
            r#"{"question": "a", "choices": {"text": ["b", "c"], "label": ["A"]}, "answerKey": "A"}"#,
            "1 label for 2 choices",
        );
        refused(r#"{"question": "a", "choices": {"text": ["b", "c"], "label": ["A", "B"]}, "answerKey": "E"}"#, "`E`");
        refused(
            r#"{"question": "a", "choices": {"text": ["b", "c"], "label": ["A", "A"]}, "answerKey": "A"}"#,
            "two choices labelled `A`",
        );
        refused(&format!("{good}\n{}", r#"{"question": "a", "choices": ["b", "c"], "answer": 0}"#), "another form");
        refused("", "no questions");
        let file = tempfile::Builder::new().suffix(".jsonl").tempfile().unwrap();
        for (line, asks) in [(good, true), (r#"{"text": "a", "choices": [], "question": 1}"#, false), ("[1]", false)] {
            std::fs::write(file.path(), line).unwrap();
            assert_eq!(Questions::are_in(file.path()).unwrap(), asks, "{line}");
        }
        for nowhere in ["/nowhere.txt", "/nowhere.jsonl", "/"] {
            assert!(!Questions::are_in(Path::new(nowhere)).unwrap());
        }
    }
}
