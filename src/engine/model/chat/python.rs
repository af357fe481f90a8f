//! What templates take from Python and the template engine has otherwise: methods of texts and lists, and `tojson` as transformers defines it
//! (`json.dumps` with characters as they are, and nothing escaped for HTML).

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

/// Lists in lists.
const DEPTH: usize = 64;

/// Blanks of one step to the right at most.
const MAX_INDENT: usize = 16;

struct Writer<'a> {
    state: &'a State<'a, 'a>,
    out: String,
    indent: Option<usize>,
    /// Between items, and between a key and its value.
    separators: (String, String),
    sorted: bool,
    ascii: bool,
}

fn bad(why: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, why)
}

/// A method that a value has in Python.
pub(super) fn method(state: &mut State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    match (value.as_str(), name, args) {
        (Some(text), "title", []) => Ok(title(text).into()),
        _ => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    }
}

/// Each letter after what is none is large, all others are small.
fn title(text: &str) -> String {
    let (mut out, mut inside) = (String::with_capacity(text.len()), false);
    for c in text.chars() {
        match inside {
            true => out.extend(c.to_lowercase()),
            false => out.extend(c.to_uppercase()),
        }
        inside = c.is_alphabetic();
    }
    out
}

/// `json.dumps(value, ensure_ascii=False, indent=…, separators=…, sort_keys=…)`.
pub(super) fn tojson(
    state: &State<'_, '_>,
    value: Value,
    indent: Option<Value>,
    more: Kwargs,
) -> Result<String, Error> {
    let indent = match indent {
        Some(given) => Some(given),
        None => more.get::<Option<Value>>("indent")?,
    };
    let indent = match indent.filter(|v| !v.is_none()) {
        Some(n) => Some(usize::try_from(n).map_err(|_| bad("tojson: `indent` is no number"))?),
        None => None,
    };
    if indent.is_some_and(|n| n > MAX_INDENT) {
        return Err(bad("tojson: `indent` is too large"));
    }
    let separators = match more.get::<Option<Vec<String>>>("separators")?.as_deref() {
        Some([items, keys]) => (items.clone(), keys.clone()),
        Some(_) => return Err(bad("tojson: `separators` are not two texts")),
        // As Python: no blank at the end of a line.
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
    };
    let sorted = more.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let ascii = more.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    more.assert_all_used()?;
    let mut writer = Writer { state, out: String::new(), indent, separators, sorted, ascii };
    writer.value(&value, 0)?;
    Ok(writer.out)
}

impl Writer<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        // Every value costs an instruction, so that what refers to itself many times over ends.
        self.state.consume_fuel(1 + self.separators.0.len() as u64 / 64 + self.separators.1.len() as u64 / 64)?;
        if depth > DEPTH {
            return Err(bad("tojson: lists are nested too deeply"));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&value.to_string()),
            ValueKind::String => self.text(value.as_str().unwrap_or_default())?,
            ValueKind::Map => {
                let mut keys: Vec<Value> = Vec::new();
                for key in value.try_iter()? {
                    self.state.consume_fuel(1)?;
                    keys.push(key);
                }
                if self.sorted {
                    keys.sort();
                }
                self.items(("{", "}"), keys, depth, |w, key, depth| {
                    let Some(name) = key.as_str() else { return Err(bad("tojson: a key is no text")) };
                    w.text(name)?;
                    w.out.push_str(&w.separators.1.clone());
                    w.value(&value.get_item(&key)?, depth)
                })?;
            }
            ValueKind::Seq | ValueKind::Iterable => {
                self.items(("[", "]"), value.try_iter()?, depth, |w, item, depth| w.value(&item, depth))?;
            }
            _ => return Err(bad("tojson: a value has no form in JSON")),
        }
        Ok(())
    }

    fn items(
        &mut self,
        (open, close): (&str, &str),
        items: impl IntoIterator<Item = Value>,
        depth: usize,
        mut each: impl FnMut(&mut Self, Value, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push_str(open);
        let mut any = false;
        for item in items {
            if any {
                self.out.push_str(&self.separators.0.clone());
            }
            any = true;
            self.line(depth + 1)?;
            each(self, item, depth + 1)?;
        }
        if any {
            self.line(depth)?;
        }
        self.out.push_str(close);
        Ok(())
    }

    fn line(&mut self, depth: usize) -> Result<(), Error> {
        let Some(indent) = self.indent else { return Ok(()) };
        self.state.consume_fuel((indent * depth) as u64 / 64)?;
        self.out.push('\n');
        self.out.extend(std::iter::repeat_n(' ', indent * depth));
        Ok(())
    }

    fn text(&mut self, text: &str) -> Result<(), Error> {
        self.state.consume_fuel(text.len() as u64 / 64)?;
        let quoted = serde_json::to_string(text).map_err(|_| bad("tojson: a text has no form in JSON"))?;
        if !self.ascii {
            self.out.push_str(&quoted);
            return Ok(());
        }
        for c in quoted.chars() {
            match c.is_ascii() {
                true => self.out.push(c),
                false => c.encode_utf16(&mut [0; 2]).iter().for_each(|u| self.out.push_str(&format!("\\u{u:04x}"))),
            }
        }
        Ok(())
    }
}
