//! What comes in from outside: floats or token ids, of a shape that may leave the number of tokens free.

use super::facts::{Facts, kept, output, traits};
use crate::graph::axes::NodeLinks;
use crate::graph::binding::Binding;
use serde::{Deserialize, Serialize};

/// What the elements of an input are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InputType {
    #[default]
    F32,
    /// Whole numbers below `vocab`.
    Ids { vocab: usize },
}

/// One axis of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dim {
    Fixed(usize),
    /// As many as the batch at hand has.
    Tokens,
    /// As many as the batch at hand has, too; where none is at hand, sizes are told of this many.
    Usual(usize),
}

/// Without the batch axis: the image `[c, h, w]`, tokens `[t, d]`, a vector `[d]`, or token ids `[t]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct Input {
    pub dtype: InputType,
    pub dims: Vec<Dim>,
}

/// Ids are kept as `f32` between steps, which has all whole numbers up to here.
pub const MAX_VOCAB: usize = 1 << 24;

/// An input in JSON. Floats of a fixed shape are written as they were before there was anything else, so that older
/// versions read them and files stay what they were: `{"shape":[3,32,32]}`.
#[derive(Serialize, Deserialize)]
struct Written {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shape: Option<Vec<usize>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dtype: Option<InputType>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dims: Option<Vec<Dim>>,
}

impl From<Input> for Written {
    fn from(input: Input) -> Written {
        match (input.dtype, input.bound(Binding::default())) {
            (InputType::F32, Some(shape)) if !input.is_open() => {
                Written { shape: Some(shape), dtype: None, dims: None }
            }
            (dtype, _) => Written { shape: None, dtype: Some(dtype), dims: Some(input.dims) },
        }
    }
}

impl TryFrom<Written> for Input {
    type Error = &'static str;

    fn try_from(w: Written) -> Result<Input, &'static str> {
        match w {
            Written { shape: Some(shape), dtype: None, dims: None } => Ok(Input::fixed(shape)),
            Written { shape: None, dtype: Some(dtype), dims: Some(dims) } => Ok(Input { dtype, dims }),
            _ => Err("an input has either a `shape`, or a `dtype` and `dims`"),
        }
    }
}

impl Input {
    /// Floats of this shape.
    pub fn fixed(shape: impl Into<Vec<usize>>) -> Input {
        Input { dtype: InputType::F32, dims: shape.into().into_iter().map(Dim::Fixed).collect() }
    }

    /// Any number of tokens of `width` floats, `[t, width]`.
    pub fn tokens(width: usize) -> Input {
        Input { dtype: InputType::F32, dims: vec![Dim::Tokens, Dim::Fixed(width)] }
    }

    /// Any number of token ids below `vocab`, `[t]`.
    pub fn ids(vocab: usize) -> Input {
        Input { dtype: InputType::Ids { vocab }, dims: vec![Dim::Tokens] }
    }

    /// Gives its free axes `tokens` places.
    pub fn bind(&mut self, tokens: usize) {
        self.dims.iter_mut().filter(|d| **d == Dim::Tokens).for_each(|d| *d = Dim::Fixed(tokens));
    }

    /// Lets its free axes be told of `tokens` places, and be as long as they are.
    pub fn tell(&mut self, tokens: usize) {
        self.dims.iter_mut().filter(|d| **d == Dim::Tokens).for_each(|d| *d = Dim::Usual(tokens));
    }

    /// Leaves the number of token ids open.
    pub fn free(&mut self) {
        if let InputType::Ids { .. } = self.dtype {
            self.dims = vec![Dim::Tokens];
        }
    }

    /// Some of its axes have no size of their own.
    pub fn is_free(&self) -> bool {
        self.dims.contains(&Dim::Tokens)
    }

    /// Some of its axes are as long as a batch has them, whether a usual size is told or none.
    pub fn is_open(&self) -> bool {
        self.dims.iter().any(Dim::is_open)
    }

    /// Its shape under `binding`; `None` when that leaves an axis without a size.
    pub fn bound(&self, binding: Binding) -> Option<Vec<usize>> {
        let size = |d: &Dim| match d {
            Dim::Fixed(n) => Some(*n),
            Dim::Tokens => binding.tokens,
            Dim::Usual(n) => Some(binding.tokens.unwrap_or(*n)),
        };
        self.dims.iter().map(size).collect()
    }

    /// The binding under which its shape is `shape`; `None` when there is none.
    pub fn binding(&self, shape: &[usize]) -> Option<Binding> {
        let at = self.dims.iter().position(Dim::is_open);
        let binding = Binding { tokens: at.and_then(|i| shape.get(i).copied()) };
        (self.bound(binding).as_deref() == Some(shape)).then_some(binding)
    }

    /// Why such an input cannot be, if so.
    fn check(&self) -> Result<(), String> {
        if self.is_open() && (self.dims.len() > 2 || self.dims.iter().skip(1).any(Dim::is_open)) {
            return Err("only the first axis of `[tokens]` or `[tokens, width]` may be free".into());
        }
        match self.dtype {
            InputType::F32 if self.is_open() && self.dims.len() != 2 => Err("free tokens need a width".into()),
            InputType::F32 => Ok(()),
            InputType::Ids { .. } if self.dims.len() != 1 => Err("token ids have one axis, `[tokens]`".into()),
            InputType::Ids { vocab } if vocab == 0 || vocab > MAX_VOCAB => {
                Err(format!("a vocabulary of {vocab} is not between 1 and {MAX_VOCAB}"))
            }
            InputType::Ids { .. } => Ok(()),
        }
    }

    /// As [`Facts::shape`], under `binding`.
    pub fn shape_at(&self, binding: Binding) -> Result<Vec<usize>, String> {
        self.check()?;
        self.bound(binding).ok_or_else(|| "its number of tokens is free".to_owned())
    }
}

impl Dim {
    fn is_open(&self) -> bool {
        matches!(self, Dim::Tokens | Dim::Usual(_))
    }
}

impl std::fmt::Display for Dim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Dim::Fixed(n) => write!(f, "{n}"),
            Dim::Tokens | Dim::Usual(_) => write!(f, "tokens"),
        }
    }
}

impl Facts for Input {
    traits!("input", "input");

    fn arity(&self) -> usize {
        0
    }

    /// Of what leaves nothing free; see [`Input::shape_at`].
    fn shape(&self, _ins: &[&[usize]]) -> Result<Vec<usize>, String> {
        self.shape_at(Binding::default())
    }

    fn links(&self, _ins: &[&[usize]], out: &[usize]) -> NodeLinks {
        let mut l = NodeLinks::default();
        if self.is_open() || self.dtype != InputType::F32 {
            (0..out.len()).for_each(|axis| l.protect(output(axis), "it is the network's input"));
        } else {
            l.protect(output(0), "it is the image");
        }
        l
    }

    fn axis_len(&self, axis: usize) -> Option<usize> {
        match self.dims.first() {
            Some(Dim::Fixed(n)) if axis == 0 => Some(*n),
            _ => None,
        }
    }

    fn narrow(&mut self, _axis: usize, mask: &[bool]) {
        if let Some(Dim::Fixed(c)) = self.dims.first_mut() {
            *c = kept(mask);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Op;

    #[test]
    fn floats_of_a_fixed_shape_are_written_as_they_always_were() {
        let old = r#"{"kind":"input","shape":[3,32,32]}"#;
        let image = Op::Input(Input::fixed([3, 32, 32]));
        assert_eq!(serde_json::from_str::<Op>(old).unwrap(), image);
        assert_eq!(serde_json::to_string(&image).unwrap(), old);
        let old = r#"{"name":"input","op":{"kind":"input","shape":[1,28,28]},"inputs":[],"params":[]}"#;
        let node: crate::graph::Node = serde_json::from_str(old).unwrap();
        assert_eq!(node.op, Op::Input(Input::fixed([1, 28, 28])));
        assert_eq!(serde_json::to_string(&node).unwrap(), old);
    }

    #[test]
    fn free_inputs_and_ids_survive_json() {
        for (input, json) in [
            (Input::tokens(64), r#"{"kind":"input","dtype":"f32","dims":["tokens",{"fixed":64}]}"#),
            (Input::ids(50257), r#"{"kind":"input","dtype":{"ids":{"vocab":50257}},"dims":["tokens"]}"#),
            (
                Input { dims: vec![Dim::Fixed(9)], ..Input::ids(5) },
                r#"{"kind":"input","dtype":{"ids":{"vocab":5}},"dims":[{"fixed":9}]}"#,
            ),
            (
                Input { dims: vec![Dim::Usual(9), Dim::Fixed(2)], ..Input::tokens(2) },
                r#"{"kind":"input","dtype":"f32","dims":[{"usual":9},{"fixed":2}]}"#,
            ),
        ] {
            let op = Op::Input(input);
            assert_eq!(serde_json::to_string(&op).unwrap(), json);
            assert_eq!(serde_json::from_str::<Op>(json).unwrap(), op);
        }
        for bad in [r#"{"kind":"input"}"#, r#"{"kind":"input","shape":[3],"dims":["tokens"],"dtype":"f32"}"#] {
            assert!(serde_json::from_str::<Op>(bad).unwrap_err().to_string().contains("either a `shape`"));
        }
    }

    #[test]
    fn bindings_and_shapes_tell_each_other() {
        let seven = Binding::tokens(7);
        assert_eq!(Input::tokens(4).bound(seven), Some(vec![7, 4]));
        assert_eq!(Input::tokens(4).bound(Binding::default()), None);
        assert_eq!(Input::tokens(4).binding(&[7, 4]), Some(seven));
        assert_eq!(Input::ids(4).binding(&[7]), Some(seven));
        assert_eq!(Input::fixed([3, 8, 8]).binding(&[3, 8, 8]), Some(Binding::default()));
        for (input, shape) in [(Input::tokens(4), &[7, 5][..]), (Input::tokens(4), &[7]), (Input::ids(4), &[7, 1])] {
            assert_eq!(input.binding(shape), None);
        }
        assert_eq!(Input::fixed([3, 8, 8]).binding(&[3, 8, 9]), None);
        let mut told = Input::ids(4);
        told.tell(9);
        assert_eq!((told.bound(Binding::default()), told.bound(seven)), (Some(vec![9]), Some(vec![7])));
        assert_eq!((told.binding(&[7]), told.is_free(), told.is_open()), (Some(seven), false, true));
        told.free();
        assert_eq!(told, Input::ids(4));
    }

    #[test]
    fn what_cannot_be_an_input_says_why() {
        let dims = |dims: &[Dim]| Input { dtype: InputType::F32, dims: dims.to_vec() };
        let (t, n) = (Dim::Tokens, Dim::Fixed(3));
        for (input, words) in [
            (dims(&[n, t]), "only the first axis"),
            (dims(&[t, t]), "only the first axis"),
            (dims(&[t, n, n]), "only the first axis"),
            (dims(&[t]), "need a width"),
            (Input { dims: vec![t, n], ..Input::ids(5) }, "one axis"),
            (Input::ids(0), "a vocabulary of 0"),
            (Input::ids(MAX_VOCAB + 1), "is not between"),
        ] {
            assert!(input.shape_at(Binding::tokens(5)).unwrap_err().contains(words), "{input:?}");
        }
    }
}
