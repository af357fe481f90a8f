//! Arithmetic on the figures of a row, as users write it for columns of their own: `p50 * 1e6 / macs`.
//!
//! Here: what may be written, within bounds, and what it comes to. Not here: which figures there are (`columns`), what a row has of them (the screen).
//! Invariants: all numbers are floating point, so that `1 / 2` is a half; what is not a finite number, or needs a figure that is not known, is
//! nothing; no expression takes more than a moment or a few kilobytes, whoever wrote it.

use super::diag::suggestion;
use evalexpr::{Context, EvalexprError, EvalexprResult, Node, Operator, Value, build_operator_tree};
use std::fmt;

/// Longest expression, bytes, and the most parentheses and operators within each other.
pub const LONGEST: usize = 200;
const DEEPEST: usize = 48;

/// Functions that there are, each with how many arguments it takes; `0`: two or more.
const FUNCTIONS: [(&str, usize); 12] = [
    ("min", 0),
    ("max", 0),
    ("if", 3),
    ("abs", 1),
    ("sqrt", 1),
    ("exp", 1),
    ("ln", 1),
    ("log2", 1),
    ("log10", 1),
    ("floor", 1),
    ("ceil", 1),
    ("round", 1),
];

/// An expression that was understood.
#[derive(Debug, Clone, PartialEq)]
pub struct Expression {
    text: String,
    tree: Node,
    /// Figures that it needs, each once.
    needs: Vec<String>,
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Expression {
    /// Understands `text` over variables of these names.
    ///
    /// # Errors
    /// In words with a hint: too long or too deep, no arithmetic, a name that is none of `known`, or an answer that is no number.
    pub fn parse<'a>(text: &str, known: impl IntoIterator<Item = &'a str> + Clone) -> Result<Expression, String> {
        let text = text.trim();
        if text.is_empty() {
            return Err("an expression is missing; hint: for example `p50 * 1e6 / macs`".to_owned());
        }
        if text.len() > LONGEST {
            let len = text.len();
            return Err(format!("an expression of {len} bytes; hint: at most {LONGEST}"));
        }
        // The parser's own recursion is over parentheses and signs.
        let open = text.bytes().filter(|b| *b == b'(').count();
        if open > DEEPEST {
            return Err(format!("{open} parentheses are too deep; hint: at most {DEEPEST}"));
        }
        if text.contains(|c: char| c.is_control() || c == '"') {
            return Err(format!("`{text}` is no arithmetic; hint: numbers, figures, {}", functions()));
        }
        let mut tree = build_operator_tree(text).map_err(|e| {
            let why = e.to_string();
            format!("`{text}` is not understood: {}; hint: + - * / ^ % and {}", why.trim_end_matches('.'), functions())
        })?;
        sound(&mut tree, DEEPEST)?;
        let mut needs: Vec<String> = Vec::new();
        for name in tree.iter_variable_identifiers() {
            if !known.clone().into_iter().any(|k| k == name) {
                let all: Vec<&str> = known.clone().into_iter().collect();
                let near = super::diag::nearest(name, known.clone()).map(|n| format!("did you mean `{n}`? "));
                let near = near.unwrap_or_default();
                return Err(format!("no figure `{name}`; hint: {near}there are {}", all.join(", ")));
            }
            if !needs.iter().any(|n| n == name) {
                needs.push(name.to_owned());
            }
        }
        let expression = Expression { text: text.to_owned(), tree, needs };
        // Kinds do not depend on the figures.
        match expression.value(&|_| Some(1.0)) {
            Ok(Value::Float(_)) => Ok(expression),
            Ok(_) => Err(format!("`{text}` is no number; hint: `if(p50 > 1, 1, 0)` makes one of a comparison")),
            Err(e) => Err(format!("`{text}` cannot be computed: {e}; hint: numbers, figures, {}", functions())),
        }
    }

    /// The figures that it needs.
    pub fn needs(&self) -> &[String] {
        &self.needs
    }

    /// What it comes to where `figure` tells what is known of each name.
    pub fn of(&self, figure: &dyn Fn(&str) -> Option<f64>) -> Option<f64> {
        match self.value(figure) {
            Ok(Value::Float(v)) if v.is_finite() => Some(v),
            _ => None,
        }
    }

    fn value(&self, figure: &dyn Fn(&str) -> Option<f64>) -> EvalexprResult<Value> {
        let known = self.needs.iter().filter_map(|name| Some((name.as_str(), Value::Float(figure(name)?))));
        let row = Row(known.collect());
        self.tree.eval_with_context(&row)
    }
}

fn functions() -> String {
    FUNCTIONS.map(|(name, _)| name).join(", ")
}

/// Makes every number floating point; refuses what is no arithmetic, or more than `deep` operators within each other.
fn sound(node: &mut Node, deep: usize) -> Result<(), String> {
    let Some(deep) = deep.checked_sub(1) else {
        return Err(format!("more than {DEEPEST} operators within each other; hint: a shorter expression"));
    };
    match node.operator_mut() {
        Operator::Const { value } => match value {
            Value::Int(i) => *value = Value::Float(*i as f64),
            Value::Float(_) | Value::Boolean(_) => {}
            Value::String(_) | Value::Tuple(_) | Value::Empty => {
                return Err("a text where a number belongs; hint: numbers and names of figures".to_owned());
            }
        },
        Operator::FunctionIdentifier { identifier } => {
            let name = identifier.as_str();
            if !FUNCTIONS.iter().any(|(f, _)| *f == name) {
                let hint = suggestion(name, FUNCTIONS.map(|(f, _)| f));
                return Err(format!("no function `{name}`; hint: {hint}"));
            }
        }
        Operator::RootNode
        | Operator::Add
        | Operator::Sub
        | Operator::Neg
        | Operator::Mul
        | Operator::Div
        | Operator::Mod
        | Operator::Exp
        | Operator::Eq
        | Operator::Neq
        | Operator::Gt
        | Operator::Lt
        | Operator::Geq
        | Operator::Leq
        | Operator::And
        | Operator::Or
        | Operator::Not
        | Operator::Tuple
        | Operator::VariableIdentifierRead { .. } => {}
        Operator::Assign
        | Operator::AddAssign
        | Operator::SubAssign
        | Operator::MulAssign
        | Operator::DivAssign
        | Operator::ModAssign
        | Operator::ExpAssign
        | Operator::AndAssign
        | Operator::OrAssign
        | Operator::Chain
        | Operator::VariableIdentifierWrite { .. } => {
            return Err("an expression sets nothing; hint: `==` compares, and one column is one expression".to_owned());
        }
    }
    node.children_mut().iter_mut().try_for_each(|child| sound(child, deep))
}

/// What is known of a row.
struct Row<'a>(Vec<(&'a str, Value)>);

impl Context for Row<'_> {
    fn get_value(&self, identifier: &str) -> Option<&Value> {
        self.0.iter().find(|(name, _)| *name == identifier).map(|(_, value)| value)
    }

    fn call_function(&self, identifier: &str, argument: &Value) -> EvalexprResult<Value> {
        let all = match argument {
            Value::Tuple(all) => all.as_slice(),
            one => std::slice::from_ref(one),
        };
        let wanted = FUNCTIONS.iter().find(|(name, _)| *name == identifier).map(|(_, n)| *n);
        let fits = wanted.is_some_and(|n| if n == 0 { all.len() >= 2 } else { all.len() == n });
        if !fits {
            let n = all.len();
            return Err(EvalexprError::CustomMessage(format!("`{identifier}` does not take {n} arguments")));
        }
        if identifier == "if" {
            return Ok(if all[0].as_boolean()? { all[1].clone() } else { all[2].clone() });
        }
        let numbers = all.iter().map(Value::as_float).collect::<EvalexprResult<Vec<f64>>>()?;
        let x = numbers[0];
        Ok(Value::Float(match identifier {
            "min" => numbers.into_iter().fold(f64::INFINITY, f64::min),
            "max" => numbers.into_iter().fold(f64::NEG_INFINITY, f64::max),
            "abs" => x.abs(),
            "sqrt" => x.sqrt(),
            "exp" => x.exp(),
            "ln" => x.ln(),
            "log2" => x.log2(),
            "log10" => x.log10(),
            "floor" => x.floor(),
            "ceil" => x.ceil(),
            _ => x.round(),
        }))
    }

    fn are_builtin_functions_disabled(&self) -> bool {
        true
    }

    fn set_builtin_functions_disabled(&mut self, _disabled: bool) -> EvalexprResult<()> {
        Err(EvalexprError::BuiltinFunctionsCannotBeEnabled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [&str; 3] = ["p50", "macs", "share"];

    fn of(text: &str) -> Option<f64> {
        let figure = |name: &str| match name {
            "p50" => Some(2.0),
            "macs" => Some(4e6),
            _ => None,
        };
        Expression::parse(text, KNOWN).unwrap_or_else(|e| panic!("{text}: {e}")).of(&figure)
    }

    #[test]
    fn arithmetic_is_of_floating_point_numbers() {
        for (text, wanted) in [
            ("p50 * 1e6 / macs", 0.5),
            ("1 / 2", 0.5),
            ("2 ^ 3 + 7 % 4", 11.0),
            ("-p50 * (1 + 2)", -6.0),
            ("if(p50 > 1 && macs < 1e9, 3, 4)", 3.0),
            ("max(p50, 7, 1) - min(p50, 1)", 6.0),
            ("sqrt(p50 * 8) + log2(8) + abs(-1)", 8.0),
            ("9223372036854775807 + 1", 9_223_372_036_854_775_807.0),
        ] {
            assert_eq!(of(text), Some(wanted), "{text}");
        }
    }

    #[test]
    fn what_is_not_known_or_not_finite_is_nothing() {
        for text in ["p50 / 0", "p50 * share", "0 / 0", "sqrt(-p50)", "ln(0)", "10 ^ 999", "if(p50 > 1, share, 1)"] {
            assert_eq!(of(text), None, "{text}");
        }
    }

    #[test]
    fn mistakes_name_what_is_wrong_and_what_there_is() {
        let deep = format!("{}p50{}", "(".repeat(60), ")".repeat(60));
        for (text, wanted) in [
            ("p05 * 2", "no figure `p05`; hint: did you mean `p50`? there are p50, macs, share"),
            ("zzzz", "no figure `zzzz`; hint: there are p50"),
            ("sine(p50)", "no function `sine`"),
            ("min(p50)", "`min` does not take 1 arguments"),
            ("p50 > 1", "is no number"),
            ("p50 + (1 > 2)", "cannot be computed"),
            ("p50 = 3", "sets nothing"),
            ("p50; 3", "sets nothing"),
            ("\"a\"", "no arithmetic"),
            ("p50 *", "hint: "),
            ("(p50", "not understood"),
            ("p50 macs", "hint: "),
            ("1, 2", "no number"),
            ("", "missing"),
            (&deep, "too deep"),
            (&"1+".repeat(200), "at most 200"),
        ] {
            let e = Expression::parse(text, KNOWN).expect_err(text);
            assert!(e.contains(wanted) && e.contains("hint: "), "{text}: {e}");
        }
    }

    #[test]
    fn no_expression_within_the_bounds_breaks_anything() {
        let parts =
            ["-", "!", "1^", "1+", "(", "min(1,", "p50*", "if(", ",", ";", ")", "=", "\u{1f600}", "%", "0x", "&&"];
        for part in parts {
            for n in [1, 47, 48, 49, 99, 199] {
                for end in ["", "1", "p50", &")".repeat(n)] {
                    let text = format!("{}{end}", part.repeat(n));
                    if let Ok(e) = Expression::parse(&text, KNOWN) {
                        assert!(e.of(&|_| Some(0.0)).is_none_or(f64::is_finite), "{text}");
                    }
                }
            }
        }
    }
}
