//! What of a network's shape llama.cpp can be told: how many layers there are, and heads and neurons in each.
//!
//! Source: llama.cpp's `llama-hparams`, `src/models/llama.cpp` and `src/models/deci.cpp`. `feed_forward_length` and the head counts may be lists
//! with a number for each layer; most architectures read the first one alone. DeciLM's (`deci`) is Llama's with a shape of its own for
//! each layer, and with layers that have no attention.

use super::Unfit;
use crate::graph::{Graph, Node, Op};
use std::collections::{BTreeMap, HashMap};

/// Architectures whose queries are as wide as the embedding (`load_tensors` gives them its width, not that of the heads).
const FILLED: [&str; 4] = ["gpt2", "olmo2", "phi3", "qwen2"];

/// A layer that is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::model) struct Layer {
    /// Its number in the original.
    pub was: usize,
    /// Query heads, heads of keys and values; 0 without attention.
    pub heads: usize,
    pub kv_heads: usize,
    /// Neurons of the MLP, or of each expert.
    pub hidden: usize,
    /// Its experts, and how many of them a token is sent to; 0 without any.
    pub experts: [usize; 2],
    /// How many tokens back it looks, where not at all.
    pub window: Option<usize>,
}

impl Layer {
    /// It has experts.
    pub fn sparse(&self) -> bool {
        self.experts[0] > 0
    }
}

/// A network in llama.cpp's words.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::model) struct Shape {
    pub layers: Vec<Layer>,
    /// Layers of the original.
    pub were: usize,
    pub vocab: usize,
    pub dim: usize,
    /// Values of a head's keys, and of its values.
    pub head: Option<[usize; 2]>,
    /// Values of a head that turn.
    pub turned: Option<usize>,
    /// A router whose weights do not sum up to 1.
    pub loose: Option<String>,
}

/// A name such as `blk.3.ffn_up` in two parts.
pub(super) fn layer_of(name: &str) -> Option<(usize, &str)> {
    let (number, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    Some((number.parse().ok()?, rest))
}

/// Reads the live nodes of `graph`; `names` are llama.cpp's for them.
pub(super) fn read(graph: &Graph, names: &HashMap<String, String>) -> Result<Shape, Unfit> {
    let mut parts: BTreeMap<usize, BTreeMap<&str, &Node>> = BTreeMap::new();
    let mut routed: HashMap<&str, [usize; 2]> = HashMap::new();
    let mut shape = Shape { layers: Vec::new(), were: 0, vocab: 0, dim: 0, head: None, turned: None, loose: None };
    for (_, node) in graph.live() {
        let name = names.get(&node.name);
        if let Some((i, part)) = name.and_then(|n| layer_of(n)) {
            parts.entry(i).or_default().insert(part, node);
        }
        match &node.op {
            Op::Embedding(e) => (shape.vocab, shape.dim) = (e.vocab, e.dim),
            Op::Attention(a) if shape.head.is_none() => shape.head = Some([a.qk_dim, a.v_dim]),
            Op::Rope(rope) => shape.turned = Some(rope.turned),
            Op::Route(route) => {
                if let Some(id) = node.inputs.first() {
                    routed.insert(&graph.node(*id).name, [route.experts, route.top]);
                }
                if !route.normalised {
                    shape.loose.get_or_insert_with(|| node.name.clone());
                }
            }
            _ => {}
        }
    }
    let all = graph.nodes.iter().filter_map(|n| layer_of(names.get(&n.name)?)).map(|(i, _)| i + 1);
    shape.were = all.max().unwrap_or(0);
    for (was, parts) in parts {
        let (mut heads, mut kv_heads, mut window) = (0, 0, None);
        if let Some(Op::Attention(a)) = parts.get("core").map(|n| &n.op) {
            (heads, kv_heads, window) = (a.heads, a.kv_heads(), a.most);
        }
        let sparse = parts.contains_key("ffn_gate_inp");
        // Any expert is as good as the first, which may be gone.
        let down = match sparse {
            true => parts.iter().find(|(part, _)| part.starts_with("ffn_down.")).map(|(_, n)| *n),
            false => parts.get("ffn_down").copied(),
        };
        let hidden = match down.map(|n| &n.op) {
            Some(Op::Linear(l)) => l.in_features,
            _ => 0,
        };
        let experts = parts.get("ffn_gate_inp").and_then(|router| routed.get(router.name.as_str()));
        let experts = experts.copied().unwrap_or_default();
        if hidden == 0 {
            return Err(Unfit::new(
                format!("layer {was} has no MLP, which llama.cpp has no words for"),
                "remove its attention as well, so that the layer goes; or export as safetensors",
            ));
        }
        shape.layers.push(Layer { was, heads, kv_heads, hidden, experts, window });
    }
    if shape.layers.is_empty() {
        return Err(Unfit::new("it has no layer left", "export as safetensors"));
    }
    Ok(shape)
}

impl Shape {
    /// Is every layer's window where llama.cpp's `arch` has one, which goes by the layer's number (`llama_model::load_hparams`)?
    /// `told`: the window in the file's metadata.
    pub(super) fn windows(&self, arch: &str, told: Option<usize>) -> Result<(), Unfit> {
        let period = match arch {
            "gemma2" => 2,
            "gemma3" => 6,
            _ => return Ok(()),
        };
        let Some(usual) = self.layers.iter().find_map(|l| l.window).or(told) else { return Ok(()) };
        let other = |(i, l): &(usize, &Layer)| l.heads > 0 && l.window != ((i + 1) % period != 0).then_some(usual);
        match self.layers.iter().enumerate().find(other) {
            None => Ok(()),
            Some((i, l)) => {
                let sees = l.window.map_or("all tokens before".to_owned(), |w| format!("{w} tokens back"));
                let why = format!(
                    "layer {} would be number {i} and looks at {sees}, and llama.cpp's `{arch}` has one layer in {period} look at all, others {usual} back",
                    l.was
                );
                Err(Unfit::new(why, "remove whole periods of layers, or export as safetensors"))
            }
        }
    }

    /// The architecture that can be told all of this, where the original's is `arch`.
    pub(super) fn architecture<'a>(&self, arch: &'a str) -> Result<&'a str, Unfit> {
        let first = &self.layers[0];
        let like = |l: &&Layer| (l.heads, l.kv_heads, l.hidden) == (first.heads, first.kv_heads, first.hidden);
        let other = self.layers.iter().find(|l| !like(l));
        if let Some(l) = self.layers.iter().find(|l| l.sparse() != first.sparse()) {
            let [with, without] = if l.sparse() { [l, first] } else { [first, l] }.map(|l| l.was);
            return Err(Unfit::new(
                format!(
                    "layer {with} has experts and layer {without} has none, which llama.cpp's `{arch}` cannot be told"
                ),
                "export as safetensors",
            ));
        }
        let hint = "cut every layer alike, or export as safetensors";
        if let Some(l) = self.layers.iter().find(|l| l.experts != first.experts) {
            let [a, b] = [first, l].map(|l| format!("{} of {} experts", l.experts[1], l.experts[0]));
            let why = format!(
                "layer {} sends a token to {b} and layer {} to {a}, and llama.cpp's `{arch}` has one number for all",
                l.was, first.was
            );
            return Err(Unfit::new(why, hint));
        }
        let width = self.head.map_or(self.dim, |[keys, _]| keys * first.heads);
        if FILLED.contains(&arch) && width != self.dim {
            let why = format!(
                "its heads ({}) do not fill its width of {}, and llama.cpp's `{arch}` has as many as do",
                first.heads, self.dim
            );
            return Err(Unfit::new(why, "keep its heads and cut neurons or layers, or export as safetensors"));
        }
        match (other, arch) {
            // Others take the first layer's counts for the width of a head.
            _ if first.heads == 0 => Err(Unfit::new(
                format!("layer {} is the first and has no attention", first.was),
                "keep its attention, or export as safetensors",
            )),
            (None, _) => Ok(arch),
            (Some(_), "llama" | "deci") if !first.sparse() => Ok("deci"),
            (Some(l), _) => {
                let [a, b] =
                    [first, l].map(|l| format!("{} heads, {} of keys, {} neurons", l.heads, l.kv_heads, l.hidden));
                let why = format!(
                    "layer {} has {b} and layer {} has {a}, and llama.cpp's `{arch}` has one shape for all",
                    l.was, first.was
                );
                Err(Unfit::new(why, hint))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(layers: &[(usize, usize, usize)]) -> Shape {
        let layers = layers.iter().enumerate();
        let layers = layers.map(|(was, &(heads, kv_heads, hidden))| Layer {
            was,
            heads,
            kv_heads,
            hidden,
            experts: [0, 0],
            window: None,
        });
        Shape {
            layers: layers.collect(),
            were: 9,
            vocab: 96,
            dim: 32,
            head: Some([8, 8]),
            turned: Some(8),
            loose: None,
        }
    }

    #[test]
    fn uneven_layers_are_refused_by_name_or_get_an_architecture_that_has_them() {
        let even = shape(&[(4, 2, 64), (4, 2, 64)]);
        assert_eq!((even.architecture("llama"), even.architecture("qwen2")), (Ok("llama"), Ok("qwen2")));
        for uneven in
            [shape(&[(4, 2, 64), (4, 2, 60)]), shape(&[(4, 2, 64), (2, 1, 64)]), shape(&[(4, 2, 64), (0, 0, 64)])]
        {
            assert_eq!(uneven.architecture("llama"), Ok("deci"));
            let Unfit { why, hint } = uneven.architecture("qwen2").unwrap_err();
            assert!(why.contains("layer 1") && why.contains("`qwen2`") && hint.contains("alike"), "{why}");
        }
        let mut experts = shape(&[(4, 2, 64), (4, 2, 60)]);
        experts.layers.iter_mut().for_each(|l| l.experts = [4, 2]);
        assert!(experts.architecture("llama").unwrap_err().why.contains("60 neurons"));
        experts.layers[0].experts = [3, 2];
        assert!(experts.architecture("llama").unwrap_err().why.contains("2 of 3 experts"));
        experts.layers[0].experts = [0, 0];
        assert!(experts.architecture("llama").unwrap_err().why.contains("layer 1 has experts and layer 0 has none"));
        let mut windows = shape(&[(4, 2, 64); 4]);
        (0..4).for_each(|i| windows.layers[i].window = (i % 2 == 0).then_some(8));
        assert!(windows.windows("gemma2", None).is_ok() && windows.windows("llama", None).is_ok());
        windows.layers.remove(1);
        let why = windows.windows("gemma2", None).unwrap_err().why;
        assert!(why.contains("layer 2 would be number 1") && why.contains("8 tokens back"), "{why}");
        windows.layers.retain(|l| l.window.is_none());
        assert!(windows.windows("gemma2", None).is_ok() && windows.windows("gemma2", Some(8)).is_err());
        let headless = shape(&[(0, 0, 64), (4, 2, 64)]).architecture("llama").unwrap_err();
        assert!(headless.why.contains("layer 0"), "{headless:?}");
    }
}
