//! ONNX: reading models of PyTorch's and TensorFlow's exporters into our layers, and writing ours for other runtimes.
//!
//! | file | what belongs there |
//! | --- | --- |
//! | `proto` | the protobuf messages |
//! | `attrs`, `constant`, `fold` | a node's attributes, tensors, computing on them |
//! | `view` | how a value lies in a node's output |
//! | `expr` | elementwise formulas and what they are known as |
//! | `lift` | from operators to layers |
//! | `blocks` | residual blocks of the result |
//! | `import` | from bytes to a [`Model`](super::Model) |
//! | `write`, `export` | our layers as operators, a model as a file |

mod attrs;
mod blocks;
mod constant;
mod export;
mod expr;
mod fold;
mod import;
mod lift;
mod proto;
mod view;
mod write;

pub use export::{check, onnx};
pub(super) use import::{import, is_onnx};

#[cfg(test)]
mod tests;
