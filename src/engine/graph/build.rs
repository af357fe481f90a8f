//! Building graphs: a builder whose methods name nodes and parameters as checkpoints do.
//!
//! Families in `model::families` are written with it; a graph leaves it only through [`Builder::finish`], checked.

use super::op;
use super::{Activation, Block, Graph, GraphError, Node, NodeId, Op, ParamRef, ParamRole, ResidualAdd, param_shapes};

/// The geometry of a square convolution.
#[derive(Debug, Clone, Copy)]
pub struct Conv {
    pub in_ch: usize,
    pub out_ch: usize,
    pub kernel: usize,
    pub stride: usize,
    /// `[top, left, bottom, right]`.
    pub padding: [usize; 4],
    pub groups: usize,
    pub bias: bool,
}

impl Conv {
    /// A `kernel`x`kernel` convolution without bias that keeps the image's size at stride 1 (odd kernels).
    pub fn same(in_ch: usize, out_ch: usize, kernel: usize, stride: usize) -> Conv {
        Conv { in_ch, out_ch, kernel, stride, padding: [kernel / 2; 4], groups: 1, bias: false }
    }
}

impl From<Conv> for Op {
    fn from(c: Conv) -> Op {
        let Conv { in_ch, out_ch, padding, groups, bias, .. } = c;
        let (kernel, stride) = ([c.kernel; 2], [c.stride; 2]);
        Op::Conv2d(op::Conv2d { in_ch, out_ch, kernel, stride, padding, groups, bias })
    }
}

/// Collects nodes in topological order; see the module's page.
#[derive(Debug, Clone, Default)]
pub struct Builder {
    nodes: Vec<Node>,
    blocks: Vec<Block>,
    block_start: Option<(String, usize)>,
}

impl Builder {
    /// Appends a node. Parameter tensors are `{name}.{weight, bias, running_mean, running_var}`; learned tokens and
    /// positions are called like their node. [`Builder::rename_param`] is for checkpoints that differ.
    pub fn node(&mut self, name: impl Into<String>, op: Op, inputs: &[NodeId]) -> NodeId {
        let name = name.into();
        let params = param_shapes(&op)
            .into_iter()
            .map(|(role, _)| {
                let name = match role {
                    ParamRole::Weight => format!("{name}.weight"),
                    ParamRole::Bias => format!("{name}.bias"),
                    ParamRole::Mean => format!("{name}.running_mean"),
                    ParamRole::Var => format!("{name}.running_var"),
                    ParamRole::Embedding => name.clone(),
                    ParamRole::PositionBias => format!("{name}.relative_position_bias_table"),
                    ParamRole::LogitScale => format!("{name}.logit_scale"),
                    ParamRole::PositionMlp1 => format!("{name}.cpb_mlp.0.weight"),
                    ParamRole::PositionMlp1Bias => format!("{name}.cpb_mlp.0.bias"),
                    ParamRole::PositionMlp2 => format!("{name}.cpb_mlp.2.weight"),
                };
                ParamRef { role, name }
            })
            .collect();
        self.nodes.push(Node { name, op, inputs: inputs.to_vec(), params });
        NodeId((self.nodes.len() - 1) as u32)
    }

    /// Gives the `role` parameter of `id` another tensor name.
    pub fn rename_param(&mut self, id: NodeId, role: ParamRole, to: impl Into<String>) {
        let node = self.nodes.get_mut(id.index());
        if let Some(p) = node.and_then(|n| n.params.iter_mut().find(|p| p.role == role)) {
            p.name = to.into();
        }
    }

    /// An image `[c, h, w]`.
    pub fn input(&mut self, shape: [usize; 3]) -> NodeId {
        self.input_of(op::Input::fixed(shape))
    }

    pub fn input_of(&mut self, input: op::Input) -> NodeId {
        self.node("input", Op::Input(input), &[])
    }

    pub fn embedding(&mut self, name: impl Into<String>, ids: NodeId, vocab: usize, dim: usize) -> NodeId {
        self.node(name, Op::Embedding(op::Embedding { vocab, dim }), &[ids])
    }

    pub fn conv(&mut self, name: impl Into<String>, x: NodeId, c: Conv) -> NodeId {
        self.node(name, c.into(), &[x])
    }

    pub fn linear(
        &mut self,
        name: impl Into<String>,
        x: NodeId,
        in_features: usize,
        out_features: usize,
        bias: bool,
    ) -> NodeId {
        self.node(name, Op::Linear(op::Linear { in_features, out_features, bias }), &[x])
    }

    /// PyTorch's default epsilon, 1e-5.
    pub fn batch_norm(&mut self, name: impl Into<String>, x: NodeId, channels: usize) -> NodeId {
        self.node(name, Op::BatchNorm2d(op::BatchNorm2d { channels, eps: 1e-5 }), &[x])
    }

    pub fn layer_norm(&mut self, name: impl Into<String>, x: NodeId, dim: usize, eps: f64) -> NodeId {
        self.node(name, Op::LayerNorm(op::LayerNorm { dim, eps }), &[x])
    }

    pub fn act(&mut self, name: impl Into<String>, x: NodeId, act: Activation) -> NodeId {
        self.node(name, Op::Activation { act }, &[x])
    }

    pub fn relu(&mut self, name: impl Into<String>, x: NodeId) -> NodeId {
        self.act(name, x, Activation::Relu)
    }

    pub fn softmax(&mut self, name: impl Into<String>, x: NodeId) -> NodeId {
        self.node(name, Op::Softmax, &[x])
    }

    pub fn add(&mut self, name: impl Into<String>, a: NodeId, b: NodeId) -> NodeId {
        self.node(name, Op::Add, &[a, b])
    }

    /// Nodes from here to [`Builder::end_block`] form the block `name`.
    pub fn begin_block(&mut self, name: impl Into<String>) {
        self.block_start = Some((name.into(), self.nodes.len()));
    }

    /// Closes the block. `residual` lists its additions if the block maps a shape to itself, else it is empty.
    pub fn end_block(&mut self, residual: Vec<ResidualAdd>) {
        if let Some((name, start)) = self.block_start.take() {
            let nodes = (start..self.nodes.len()).map(|i| NodeId(i as u32)).collect();
            self.blocks.push(Block { name, nodes, residual });
        }
    }

    /// The checked graph.
    pub fn finish(self, output: NodeId) -> Result<Graph, GraphError> {
        let graph = Graph { nodes: self.nodes, output, blocks: self.blocks };
        graph.check()?;
        Ok(graph)
    }
}
