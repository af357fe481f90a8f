//! Finds the JSON proposal in what a model wrote. Pure; knows nothing of layers.
//!
//! The wire form is streamed text with one fenced `json` block; real models also leave the fence out, write it into the
//! reasoning channel, or put a comma before a closing bracket. What is ambiguous is an error, never a guess.

use super::clean;
use serde_json::{Map, Value};

/// Longest JSON text that is parsed.
const MAX_JSON: usize = 262_144;

/// Why no proposal was found, in words that go back to the model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProposalError {
    #[error("the reply holds no JSON object with `decisions`")]
    Missing,
    #[error("the JSON block does not parse: {reason}")]
    Syntax { reason: String },
    #[error("the JSON block is {size} characters long; at most {MAX_JSON} are read")]
    TooLong { size: usize },
    #[error("`decisions` is not a list")]
    NotAList,
}

/// The last proposal in `text`, or else in `reasoning`: an object that holds a list `decisions`.
pub fn find(text: &str, reasoning: &str) -> Result<Map<String, Value>, ProposalError> {
    match find_in(text) {
        Err(ProposalError::Missing) => find_in(reasoning),
        found => found,
    }
}

/// The last proposal before the one that `text` breaks off in: of a model that says the same again and again, a whole one.
pub fn find_whole(text: &str) -> Option<Map<String, Value>> {
    let bare = text.rfind("\"decisions\"").and_then(|at| text[..at].rfind('{'));
    let broken = text.rfind("```").max(bare)?;
    find_in(&text[..broken]).ok()
}

fn find_in(text: &str) -> Result<Map<String, Value>, ProposalError> {
    let candidate = last_fenced(text).or_else(|| last_bare(text)).ok_or(ProposalError::Missing)?;
    if candidate.len() > MAX_JSON {
        return Err(ProposalError::TooLong { size: candidate.len() });
    }
    let value = parse(candidate).map_err(|e| ProposalError::Syntax { reason: clean::line(&e, 160) })?;
    let object = match value {
        Value::Object(o) => o,
        list @ Value::Array(_) => Map::from_iter([("decisions".to_owned(), list)]),
        _ => return Err(ProposalError::Missing),
    };
    match object.get("decisions") {
        Some(Value::Array(_)) => Ok(object),
        Some(_) => Err(ProposalError::NotAList),
        None => Err(ProposalError::Missing),
    }
}

/// The last fenced block that is meant as JSON. A fence that is never closed reaches to the end.
fn last_fenced(text: &str) -> Option<&str> {
    let mut found = None;
    let mut open: Option<(&str, usize, &str)> = None;
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let (start, end) = (at, at + line.len());
        at = end;
        let trimmed = line.trim();
        match open {
            None => {
                let mark = ["```", "~~~"].into_iter().find(|m| trimmed.starts_with(m));
                if let Some(mark) = mark {
                    let info = trimmed.trim_start_matches(['`', '~']);
                    open = Some((mark, end, info));
                    // Opened and closed on one line: ```json {...}```
                    if let Some(body) = info.strip_suffix(mark) {
                        let body = body.trim().trim_start_matches("json").trim();
                        if body.starts_with('{') {
                            found =
                                text.get(start..end).and_then(|l| l.find(body).and_then(|i| l.get(i..i + body.len())));
                        }
                        open = None;
                    }
                }
            }
            Some((mark, from, info)) => {
                if trimmed.starts_with(mark) && trimmed.trim_start_matches(['`', '~']).is_empty() {
                    found = better(found, json_block(text, from, start, info));
                    open = None;
                }
            }
        }
    }
    if let Some((_, from, info)) = open {
        found = better(found, json_block(text, from, text.len(), info));
    }
    found
}

/// The later of two blocks, unless the earlier one alone speaks of decisions.
fn better<'a>(earlier: Option<&'a str>, later: Option<&'a str>) -> Option<&'a str> {
    let speaks = |block: &str| ["\"decisions\"", "\"target\""].iter().any(|word| block.contains(word));
    match (earlier, later) {
        (Some(e), Some(l)) if speaks(e) && !speaks(l) => Some(e),
        (earlier, later) => later.or(earlier),
    }
}

fn json_block<'a>(text: &'a str, from: usize, to: usize, info: &str) -> Option<&'a str> {
    let body = text.get(from..to)?.trim();
    let named = info.trim().to_ascii_lowercase();
    let looks = body.starts_with('{') || body.starts_with('[');
    (named.starts_with("json") || (named.is_empty() && looks)).then_some(body)
}

/// The last balanced `{…}` at top level that mentions `"decisions"`; an unclosed one reaches to the end.
fn last_bare(text: &str) -> Option<&str> {
    let (mut depth, mut start, mut found) = (0usize, 0usize, None);
    let (mut in_string, mut escaped) = (false, false);
    for (i, b) in text.bytes().enumerate() {
        if in_string {
            match b {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match b {
            // Quotation marks in prose open nothing.
            b'"' if depth > 0 => in_string = true,
            b'{' => {
                if depth == 0 {
                    start = i;
                }
                depth += 1;
            }
            b'}' if depth > 0 => {
                depth -= 1;
                if depth == 0 {
                    found = text.get(start..=i).filter(|s| s.contains("\"decisions\"")).or(found);
                }
            }
            _ => {}
        }
    }
    if depth > 0 {
        found = text.get(start..).filter(|s| s.contains("\"decisions\"")).or(found);
    }
    found
}

/// Parses JSON; when that fails, once more with what is safe to mend: commas before a closing bracket, and bare `NaN`
/// or `Infinity`, which become `null` (never accepted as a ratio).
fn parse(s: &str) -> Result<Value, String> {
    let first = match serde_json::from_str::<Value>(s) {
        Ok(v) => return Ok(v),
        Err(e) => e.to_string(),
    };
    serde_json::from_str::<Value>(&mend(s)).map_err(|_| first)
}

fn mend(s: &str) -> String {
    let mut out = String::with_capacity(s.len());
    let (mut in_string, mut escaped) = (false, false);
    let mut rest = s;
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        if in_string {
            out.push(c);
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                '"' => in_string = false,
                _ => {}
            }
            rest = after;
            continue;
        }
        let word = ["-Infinity", "Infinity", "NaN", "-inf", "inf", "nan"].into_iter().find(|w| {
            let follows = rest.strip_prefix(w).map(|r| r.chars().next());
            follows.is_some_and(|n| n.is_none_or(|n| !n.is_alphanumeric()))
        });
        if let Some(word) = word {
            out.push_str("null");
            rest = &rest[word.len()..];
            continue;
        }
        match c {
            '"' => {
                in_string = true;
                out.push(c);
            }
            ',' if after.trim_start().starts_with(['}', ']']) => {}
            c => out.push(c),
        }
        rest = after;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(text: &str, reasoning: &str) -> Result<Vec<String>, ProposalError> {
        let o = find(text, reasoning)?;
        let list = o["decisions"].as_array().cloned().unwrap_or_default();
        Ok(list.iter().map(|d| d["target"].as_str().unwrap_or("?").to_owned()).collect())
    }

    #[test]
    fn finds_the_proposal_where_models_put_it() {
        let d = |t: &str| format!(r#"{{"decisions":[{{"target":"{t}"}}]}}"#);
        let fenced = |t: &str| format!("```json\n{}\n```\n", d(t));
        let ok = |s: &str| Ok(vec![s.to_owned()]);
        for (what, text, reasoning, want) in [
            ("fenced", format!("so\n{}done", fenced("a")), String::new(), ok("a")),
            ("last wins", format!("{}or better\n{}", fenced("a"), fenced("b")), String::new(), ok("b")),
            ("text before reasoning", fenced("a"), fenced("b"), ok("a")),
            ("reasoning only", String::new(), format!("hm {}", fenced("r")), ok("r")),
            ("prose but JSON in reasoning", "see above".into(), d("r"), ok("r")),
            ("bare", format!("use {{braces}} \" here: {} ok?", d("b")), String::new(), ok("b")),
            ("no info string", format!("```\n{}\n```", d("n")), String::new(), ok("n")),
            ("other fences are not read", format!("{}```text\n{{}}\n```", fenced("a")), String::new(), ok("a")),
            ("tildes", format!("~~~json\n{}\n~~~", d("t")), String::new(), ok("t")),
            ("never closed", format!("```json\n{}", d("u")), String::new(), ok("u")),
            ("one line", format!("```json {}```", d("o")), String::new(), ok("o")),
            ("a list alone", "```json\n[{\"target\":\"l\"}]\n```".into(), String::new(), ok("l")),
            ("comma", "```json\n{\"decisions\":[{\"target\":\"c, }\",},],}\n```".into(), String::new(), ok("c, }")),
            ("NaN", "{\"decisions\":[{\"target\":\"NaN\",\"ratio\":NaN},]}".into(), String::new(), ok("NaN")),
            (
                "another block after it",
                format!("{}```json\n{{\"macs\": 0.9}}\n```", fenced("a")),
                String::new(),
                ok("a"),
            ),
            ("nothing", "I would prune".into(), String::new(), Err(ProposalError::Missing)),
            ("no decisions", "```json\n{\"x\":1}\n```".into(), String::new(), Err(ProposalError::Missing)),
            ("not a list", "```json\n{\"decisions\":{}}\n```".into(), String::new(), Err(ProposalError::NotAList)),
        ] {
            assert_eq!(targets(&text, &reasoning), want, "{what}");
        }
    }

    #[test]
    fn broken_json_says_where() {
        let e = find("```json\n{\"decisions\": [{\"target\" \"x\"}]}\n```", "").unwrap_err();
        assert!(e.to_string().contains("line 1 column"), "{e}");
        let cut = find("{\"decisions\": [{\"target\": \"x", "").unwrap_err();
        assert!(matches!(cut, ProposalError::Syntax { .. }), "{cut}");
        let deep = format!("```json\n{}\n```", "[".repeat(100_000));
        assert!(matches!(find(&deep, ""), Err(ProposalError::Syntax { .. })));
        let huge = format!("```json\n{{\"decisions\":[{}]}}\n```", "1,".repeat(MAX_JSON));
        assert!(matches!(find(&huge, ""), Err(ProposalError::TooLong { .. })));
    }
}
