//! How large the values of lowered steps are and where they lie in an arena, for one length of what the graph leaves free.
//!
//! Not here: what the steps are (`lower`). A graph that leaves nothing free has one [`Sizes`], made when it is compiled;
//! for others a session makes one for each number of tokens that comes along.

use super::arena::{self, Life};
use super::lower::Lowered;
use crate::graph::{Binding, Graph, GraphError, NodeId, shapes_at};
use std::collections::VecDeque;
use std::sync::Arc;

/// A value's size and place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// Elements for one image.
    pub numel: usize,
    /// Its first element in an arena for one image; an arena for `n` images is the same `n` times as large.
    pub at: usize,
}

/// Everything that follows from a binding.
#[derive(Debug)]
pub(crate) struct Sizes {
    /// Per node, without the batch axis.
    pub shapes: Vec<Vec<usize>>,
    /// Per value of the lowered steps.
    pub places: Vec<Place>,
    /// Elements of the arena for one image.
    pub arena: usize,
    /// Elements of the largest set of values alive at once, for one image.
    pub live: usize,
}

impl Sizes {
    /// # Errors
    /// Those of [`shapes_at`]: an op that does not take this number of tokens.
    pub fn of(graph: &Graph, low: &Lowered, binding: Binding) -> Result<Sizes, GraphError> {
        let shapes = shapes_at(graph, binding)?;
        let numels: Vec<usize> = low.values.iter().map(|v| shapes[v.node.index()].iter().product()).collect();
        let lives = lives(low, &numels, graph.output);
        let (at, arena) = arena::place(&lives);
        let places = numels.into_iter().zip(at).map(|(numel, at)| Place { numel, at }).collect();
        Ok(Sizes { shapes, places, arena, live: arena::largest_live(&lives) })
    }
}

/// When each value is alive: from the step that writes it to the last that reads it, the output to the end.
fn lives(low: &Lowered, numels: &[usize], output: NodeId) -> Vec<Life> {
    let mut lives: Vec<Life> = (low.values.iter().zip(numels))
        .map(|(v, &numel)| {
            let first = v.step.unwrap_or(0);
            Life { numel, first, last: first }
        })
        .collect();
    for (i, s) in low.steps.iter().enumerate() {
        s.inputs.iter().chain(&s.residual).for_each(|&v| lives[v].last = i);
    }
    if let Some(v) = low.value_of[output.index()] {
        lives[v].last = low.steps.len();
    }
    lives
}

/// Lengths whose sizes are kept: real texts have many, and those of a large network take some kilobytes each.
const KEPT: usize = 64;

/// The sizes of one graph's steps by binding, the latest last.
#[derive(Debug, Default)]
pub(crate) struct Known(VecDeque<(Binding, Arc<Sizes>)>);

impl Known {
    /// The sizes under `binding`; `graph` and `low` are the same in every call.
    ///
    /// # Errors
    /// Those of [`Sizes::of`].
    pub fn at(&mut self, graph: &Graph, low: &Lowered, binding: Binding) -> Result<Arc<Sizes>, GraphError> {
        if let Some((_, sizes)) = self.0.iter().find(|(b, _)| *b == binding) {
            return Ok(sizes.clone());
        }
        let sizes = Arc::new(Sizes::of(graph, low, binding)?);
        if self.0.len() >= KEPT {
            self.0.pop_front();
        }
        self.0.push_back((binding, sizes.clone()));
        Ok(sizes)
    }
}
