//! What a model calls: put together from the pieces that servers stream, or read out of its words where a server does not
//! know them for calls. Pure.
//!
//! Not here: which tools there are and what they answer (`tools`). Invariants: how many calls one answer has and how long
//! their arguments are is bounded; nothing is rejected here, a call that makes no sense gets its answer later.

use serde_json::{Map, Value};

/// Calls of one answer that are taken.
pub const MOST_CALLS: usize = 16;
/// Bytes of one call's arguments.
const MOST_ARGUMENTS: usize = 64 << 10;
/// Bytes of a name or an id.
const MOST_NAME: usize = 200;

/// One call as the model made it: nothing of it is checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Call {
    /// What its answer is sent back under.
    pub id: String,
    pub name: String,
    /// JSON, if the model kept to it.
    pub arguments: String,
}

impl Call {
    /// The arguments by name; none are an empty object.
    ///
    /// # Errors
    /// In words that go back to the model.
    pub fn asked(&self) -> Result<Map<String, Value>, String> {
        let text = self.arguments.trim();
        if text.len() >= MOST_ARGUMENTS {
            return Err(format!("the arguments are longer than {} KiB; hint: shorten them", MOST_ARGUMENTS >> 10));
        }
        if text.is_empty() || text == "null" {
            return Ok(Map::new());
        }
        match serde_json::from_str(text) {
            Ok(Value::Object(o)) => Ok(o),
            // Encoded twice, as some templates do.
            Ok(Value::String(inner)) => match serde_json::from_str(&inner) {
                Ok(Value::Object(o)) => Ok(o),
                _ => Err("the arguments are no JSON object; hint: {\"name\": value}".to_owned()),
            },
            Ok(_) => Err("the arguments are no JSON object; hint: {\"name\": value}".to_owned()),
            Err(e) => Err(format!("the arguments are no JSON: {e}")),
        }
    }
}

/// What one chunk says of a call.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Piece {
    pub index: Option<u64>,
    pub id: String,
    pub name: String,
    /// More of the arguments; whole where the server sent them as an object.
    pub arguments: String,
    pub whole: bool,
}

impl Piece {
    /// An entry of `tool_calls`, or an old `function_call`, whose fields lie bare.
    pub fn of(v: &Value) -> Option<Piece> {
        let function = v.get("function").filter(|f| f.is_object()).unwrap_or(v);
        let text = |v: &Value, key: &str| v.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (arguments, whole) = match function.get("arguments").or_else(|| function.get("parameters")) {
            Some(Value::String(s)) => (s.clone(), false),
            Some(o @ Value::Object(_)) => (o.to_string(), true),
            _ => (String::new(), false),
        };
        let index = v.get("index").and_then(Value::as_u64);
        let piece = Piece { index, id: text(v, "id"), name: text(function, "name"), arguments, whole };
        let empty = piece.id.is_empty() && piece.name.is_empty() && piece.arguments.is_empty();
        (!empty).then_some(piece)
    }
}

/// The calls of one answer so far.
#[derive(Debug, Default)]
pub struct Calls {
    list: Vec<(Option<u64>, Call)>,
}

impl Calls {
    pub fn push(&mut self, piece: Piece) {
        let at = self.belongs(&piece);
        let at = match at {
            Some(at) => at,
            // More of what is left out anyway has no name, and goes nowhere.
            None if self.list.len() == MOST_CALLS || piece.name.is_empty() => return,
            None => {
                self.list.push((piece.index, Call::default()));
                self.list.len() - 1
            }
        };
        let call = &mut self.list[at].1;
        if call.id.is_empty() {
            call.id = bounded(piece.id, MOST_NAME);
        }
        if call.name.is_empty() {
            call.name = bounded(piece.name, MOST_NAME);
        }
        if piece.whole {
            call.arguments.clear();
        }
        let room = MOST_ARGUMENTS - call.arguments.len();
        call.arguments.push_str(&bounded(piece.arguments, room));
    }

    /// Which of them the piece goes on with.
    fn belongs(&self, piece: &Piece) -> Option<usize> {
        let other = |call: &Call| !piece.id.is_empty() && !call.id.is_empty() && piece.id != call.id;
        match piece.index {
            // Some servers number every call 0 and tell them apart by their ids, or not even by those: then a name after a whole
            // call begins another.
            Some(_) => {
                let by_id = |call: &Call| !piece.id.is_empty() && piece.id == call.id;
                let whole = |call: &Call| serde_json::from_str::<Value>(&call.arguments).is_ok();
                let another = |call: &Call| other(call) || (!piece.name.is_empty() && whole(call) && !by_id(call));
                self.list.iter().rposition(|(i, call)| *i == piece.index && !another(call))
            }
            None if piece.name.is_empty() => self.list.len().checked_sub(1),
            // A name again begins another, unless it is the same call's by its id or in the middle of its arguments.
            None => {
                let (_, last) = self.list.last()?;
                let same = last.name == piece.name && !other(last);
                let open = !last.arguments.is_empty() && serde_json::from_str::<Value>(&last.arguments).is_err();
                let by_id = !piece.id.is_empty() && piece.id == last.id;
                (same && (open || by_id)).then(|| self.list.len() - 1)
            }
        }
    }

    /// All of them, `mask` over their words, each with an id.
    pub fn finish(self, mask: impl Fn(&str) -> String) -> Vec<Call> {
        let named = |(i, (_, call)): (usize, (Option<u64>, Call))| Call {
            id: if call.id.is_empty() { format!("call_{i}") } else { mask(&call.id) },
            name: mask(&call.name),
            arguments: mask(&call.arguments),
        };
        self.list.into_iter().enumerate().map(named).collect()
    }
}

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// Calls that a model wrote as text, as its template has them where the server does not read them out: `<tool_call>{"name": …,
/// "arguments": {…}}</tool_call>`.
pub fn in_words(text: &str) -> Vec<Call> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((_, after)) = rest.split_once(OPEN) {
        let (inner, tail) = after.split_once(CLOSE).unwrap_or((after, ""));
        rest = tail;
        let value = serde_json::from_str::<Value>(inner.trim()).ok();
        if let Some(piece) = value.as_ref().and_then(Piece::of).filter(|p| !p.name.is_empty())
            && found.len() < MOST_CALLS
        {
            let mut calls = Calls::default();
            calls.push(piece);
            let id = format!("call_{}", found.len());
            found.extend(calls.finish(str::to_owned).into_iter().map(|call| Call { id: id.clone(), ..call }));
        }
    }
    found
}

/// At most `most` bytes of `s`, whole characters.
fn bounded(mut s: String, most: usize) -> String {
    let mut end = most.min(s.len());
    while !s.is_char_boundary(end) {
        end -= 1;
    }
    s.truncate(end);
    s
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(pieces: &[Value]) -> Vec<(String, String, String)> {
        let mut calls = Calls::default();
        pieces.iter().filter_map(Piece::of).for_each(|p| calls.push(p));
        calls.finish(str::to_owned).into_iter().map(|c| (c.id, c.name, c.arguments)).collect()
    }

    fn call(id: &str, name: &str, arguments: &str) -> (String, String, String) {
        (id.to_owned(), name.to_owned(), arguments.to_owned())
    }

    #[test]
    fn pieces_come_together_however_they_are_numbered() {
        let f = |name: &str, arguments: Value| json!({ "name": name, "arguments": arguments });
        for (what, pieces, want) in [
            (
                "interleaved by index",
                vec![
                    json!({"index": 0, "id": "a", "function": f("x", json!("{\"n"))}),
                    json!({"index": 1, "id": "b", "type": "", "function": f("y", json!(""))}),
                    json!({"index": 0, "function": {"arguments": "\":1}"}}),
                    json!({"index": 1, "function": {"arguments": "{}"}}),
                ],
                vec![call("a", "x", "{\"n\":1}"), call("b", "y", "{}")],
            ),
            (
                "whole calls without an index, arguments as objects",
                vec![json!({"function": f("x", json!({"n": 1}))}), json!({"function": f("x", json!({"n": 2}))})],
                vec![call("call_0", "x", "{\"n\":1}"), call("call_1", "x", "{\"n\":2}")],
            ),
            (
                "all numbered 0, told apart by their ids",
                vec![
                    json!({"index": 0, "id": "a", "function": f("x", json!("{}"))}),
                    json!({"index": 0, "id": "b", "function": f("x", json!("{}"))}),
                ],
                vec![call("a", "x", "{}"), call("b", "x", "{}")],
            ),
            (
                "all numbered 0 and without ids",
                vec![
                    json!({"index": 0, "id": "", "function": f("x", json!("{\"n\":1}"))}),
                    json!({"index": 0, "id": "", "function": f("x", json!("{"))}),
                    json!({"index": 0, "id": "", "function": f("x", json!("}"))}),
                ],
                vec![call("call_0", "x", "{\"n\":1}"), call("call_1", "x", "{}")],
            ),
            (
                "id and name in every piece",
                vec![
                    json!({"index": 0, "id": "a", "function": f("x", json!("{\"n"))}),
                    json!({"index": 0, "id": "a", "function": f("x", json!("\":1}"))}),
                ],
                vec![call("a", "x", "{\"n\":1}")],
            ),
            (
                "the same without an index",
                vec![
                    json!({"id": "a", "function": f("x", json!("{\"n"))}),
                    json!({"id": "a", "function": f("x", json!("\":1}"))}),
                ],
                vec![call("a", "x", "{\"n\":1}")],
            ),
            (
                "the same without an id either",
                vec![json!({"function": f("x", json!("{\"n"))}), json!({"function": f("x", json!("\":1}"))})],
                vec![call("call_0", "x", "{\"n\":1}")],
            ),
            (
                "an old function_call",
                vec![f("x", json!("{")), json!({"arguments": "}"})],
                vec![call("call_0", "x", "{}")],
            ),
            ("nothing in it", vec![json!({"type": "", "function": {"arguments": {}}}), json!(7), json!({})], vec![]),
        ] {
            assert_eq!(read(&pieces), want, "{what}");
        }
    }

    #[test]
    fn calls_are_bounded() {
        let many: Vec<Value> =
            (0..500).map(|i| json!({"index": i, "function": {"name": "x", "arguments": "{}"}})).collect();
        assert_eq!(read(&many).len(), MOST_CALLS);
        let mut long = vec![json!({"index": 0, "function": {"name": "é".repeat(500), "arguments": "é"}})];
        long.extend((0..100).map(|_| json!({"index": 0, "function": {"arguments": "é".repeat(4096)}})));
        let got = &read(&long)[0];
        assert!(got.1.len() <= MOST_NAME && got.2.len() <= MOST_ARGUMENTS && got.2.len() > MOST_ARGUMENTS - 2);
        let call = Call { arguments: "x".repeat(MOST_ARGUMENTS), ..Call::default() };
        assert!(call.asked().unwrap_err().contains("longer than 64 KiB"));
    }

    #[test]
    fn arguments_of_every_kind_are_read_or_refused_in_words() {
        let asked = |arguments: &str| Call { arguments: arguments.to_owned(), ..Call::default() }.asked();
        assert_eq!(asked("").unwrap(), Map::new());
        assert_eq!(asked(" null ").unwrap(), Map::new());
        assert_eq!(Value::Object(asked("\"{\\\"n\\\": 1}\"").unwrap()), json!({"n": 1}));
        for bad in ["[1]", "{\"n\":", "7", "\"x\""] {
            assert!(asked(bad).unwrap_err().starts_with("the arguments are no JSON"), "{bad}");
        }
    }

    #[test]
    fn calls_in_words_are_found() {
        let text = "Let me look.\n<tool_call>\n{\"name\": \"layers\", \"arguments\": {\"limit\": 3}}\n</tool_call> and <tool_call>{\"name\":\"plan\"}";
        let got: Vec<_> = in_words(text).into_iter().map(|c| (c.id, c.name, c.arguments)).collect();
        assert_eq!(got, [call("call_0", "layers", "{\"limit\":3}"), call("call_1", "plan", "")]);
        assert_eq!(in_words("<tool_call>nonsense</tool_call> <tool_call>{}</tool_call>"), []);
    }
}
