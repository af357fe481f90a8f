//! A node's attributes by name.

use super::proto::{NodeProto, TensorProto};

/// Reads attributes of one node; an attribute of another type than asked for counts as absent.
pub(super) struct Attrs<'a>(pub &'a NodeProto);

impl<'a> Attrs<'a> {
    fn get(&self, name: &str) -> Option<&'a super::proto::AttributeProto> {
        self.0.attribute.iter().find(|a| a.name.as_deref() == Some(name))
    }

    pub fn int(&self, name: &str) -> Option<i64> {
        self.get(name).and_then(|a| a.i)
    }

    /// A number that stands for yes or no.
    pub fn flag(&self, name: &str, otherwise: bool) -> bool {
        self.int(name).map_or(otherwise, |v| v != 0)
    }

    pub fn float(&self, name: &str) -> Option<f32> {
        self.get(name).and_then(|a| a.f)
    }

    /// A list of integers; an empty list counts as absent, as exporters leave it out or empty alike.
    pub fn ints(&self, name: &str) -> Option<Vec<i64>> {
        self.get(name).map(|a| a.ints.clone()).filter(|v| !v.is_empty())
    }

    pub fn floats(&self, name: &str) -> Option<Vec<f32>> {
        self.get(name).map(|a| a.floats.clone()).filter(|v| !v.is_empty())
    }

    pub fn text(&self, name: &str) -> Option<&'a str> {
        self.get(name).and_then(|a| a.s.as_deref()).and_then(|s| std::str::from_utf8(s).ok())
    }

    pub fn tensor(&self, name: &str) -> Option<&'a TensorProto> {
        self.get(name).and_then(|a| a.t.as_ref())
    }
}
