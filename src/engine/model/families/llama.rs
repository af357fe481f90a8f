//! Llama and its relatives: SmolLM2, Mistral, Qwen2 (biases on queries, keys and values) and Qwen3 (norms of single heads), with norms
//! before attention and MLP; Mixtral and Qwen3-MoE, which have experts; Phi-3, whose projections are stored as one tensor; OLMo 2, whose norms stand after them.
//!
//! From transformers' directories, GGUF files (there also `deci`: Llama's layers in shapes of their own) and Meta's own names. What shares these names but computes otherwise is refused by its
//! `model_type`. How they are built: `decoder`.

use super::decoder::{DecoderSpec, Norms, QkNorms};
use super::decoder_read::{count, everywhere, kind, spec, windows};
use super::{FamilySpec, Reader, Result, Source};
use crate::graph::Activation;

pub(super) fn read(r: &Reader) -> Result<FamilySpec> {
    const OWN: [&str; 8] = ["llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "qwen3moe", "deci"];
    // What transformers calls so tells its shapes in words of its own.
    let own = if r.names.source == Source::Gguf { &OWN[..] } else { &OWN[..7] };
    let kind = kind(r, own)?;
    let s = common(r, kind, false)?;
    let sliding = sliding(r, kind, s.layers)?;
    Ok(FamilySpec::Llama(DecoderSpec { sliding, ..s }))
}

pub(super) fn read_fused(r: &Reader) -> Result<FamilySpec> {
    let kind = kind(r, &["phi3"])?;
    let s = common(r, kind, true)?;
    let sliding = sliding(r, kind, s.layers)?;
    Ok(FamilySpec::Llama(DecoderSpec { sliding, ..s }))
}

pub(super) fn read_after(r: &Reader) -> Result<FamilySpec> {
    let s = common(r, kind(r, &["olmo2"])?, false)?;
    // The third generation calls itself so in GGUF files.
    if r.has("layers.0.attn_norm.weight") || r.sidecar.config.field("sliding_window").is_some() {
        return Err(r.not("its layers are not those of OLMo 2"));
    }
    Ok(FamilySpec::Llama(DecoderSpec { norms: Norms::After, qk_norms: QkNorms::Whole, ..s }))
}

fn common(r: &Reader, kind: &str, fused: bool) -> Result<DecoderSpec> {
    if r.sidecar.activation()?.is_some_and(|a| a != Activation::Silu) {
        return Err(r.not("its MLP has another activation than SiLU"));
    }
    spec(r, kind, Activation::Silu, fused, everywhere(r))
}

/// Sliding windows as transformers gives them to layers of a kind.
fn sliding(r: &Reader, kind: &str, layers: usize) -> Result<Vec<Option<usize>>> {
    let c = &r.sidecar.config;
    let told = c.count("sliding_window")?;
    match kind {
        "qwen2" | "qwen3" => {
            let most = told.filter(|_| c.bool("use_sliding_window").is_ok_and(|b| b == Some(true)));
            // Zero is as good as any.
            let from = c.field("max_window_layers").and_then(|v| v.as_u64()).unwrap_or(28);
            windows(r, layers, most, |i| i as u64 >= from)
        }
        // All layers or none.
        "qwen3_moe" => Ok(vec![told.filter(|_| c.bool("use_sliding_window").is_ok_and(|b| b == Some(true))); layers]),
        // Null turns it off; its class has one where nothing is said.
        "mistral" => Ok(vec![count(r, "sliding_window", 4096)?; layers]),
        // The class takes none; llama.cpp reads none of these architectures' files, Mistral's among them.
        "llama" | "deci" => Ok(Vec::new()),
        _ => Ok(vec![told; layers]),
    }
}

#[cfg(test)]
mod tests {
    use super::super::decoder::{LayerShape, LlamaDims, build};
    use super::super::decoder_names;
    use super::*;
    use crate::graph::rotary::Pairs;
    use crate::graph::{Binding, Op, ParamRole, macs_at, node_params, op};
    use crate::model::{LoadOptions, load};
    use crate::prune::{GroupKind, groups};
    use std::path::Path;

    pub(in super::super) fn small(kv_heads: usize) -> DecoderSpec {
        let dims = LlamaDims { vocab: 50, dim: 24, layers: 2, heads: 4, kv_heads, head_dim: 6, hidden: 40 };
        DecoderSpec {
            names: &decoder_names::LLAMA[0],
            rope: op::Rope::plain(6, 6, 1e4, Pairs::Halves),
            scale: 0.4,
            qkv_bias: true,
            qk_norms: QkNorms::Heads,
            ..DecoderSpec::llama(dims)
        }
    }

    #[test]
    fn layers_have_shapes_of_their_own() {
        let shape = |heads, kv_heads, hidden| LayerShape { heads, kv_heads, hidden };
        let shapes = vec![shape(4, 2, 40), shape(0, 0, 16), shape(2, 1, 0)];
        let graph = build(&DecoderSpec { layers: 3, shapes, ..small(2) }).unwrap();
        let params: u64 = graph.nodes.iter().map(|n| node_params(&n.op)).sum();
        let qkv = |q: u64, kv: u64| 24 * (q + 2 * kv) + q + 2 * kv + 24 * q + 24 + 2 * 6;
        let mlp = |hidden: u64| 3 * 24 * hidden + 24;
        assert_eq!(params, 2 * 50 * 24 + qkv(24, 12) + mlp(40) + mlp(16) + qkv(12, 6) + 24);
        let found: Vec<_> =
            groups(&graph).into_iter().filter(|g| g.protected.is_none()).map(|g| (g.kind, g.size)).collect();
        assert_eq!(found, [(GroupKind::Heads, 2), (GroupKind::Neurons, 40), (GroupKind::Neurons, 16)]);
        assert_eq!(graph.blocks.len(), 3);
    }

    #[test]
    fn names_are_the_checkpoints_and_the_embedding_is_shared() {
        let graph = build(&small(2)).unwrap();
        for name in ["model.embed_tokens", "model.layers.1.self_attn.q_proj", "model.layers.0.mlp.down_proj", "lm_head"]
        {
            assert!(graph.by_name(name).is_some(), "{name}");
        }
        let head = graph.node(graph.by_name("lm_head").unwrap());
        assert_eq!(head.param(ParamRole::Weight), Some("model.embed_tokens.weight"));
        let params: u64 = graph.nodes.iter().map(|n| node_params(&n.op)).sum();
        let layer = 24 * (24 + 12 + 12) + 48 + 24 * 24 + 3 * 24 * 40 + 2 * 24 + 2 * 6;
        assert_eq!(params, 2 * 50 * 24 + 2 * layer + 24);
        let all: u64 = macs_at(&graph, Binding::tokens(7)).unwrap().into_iter().sum::<crate::graph::Macs>().conv_linear;
        assert_eq!(all, 7 * (2 * (24 * 48 + 24 * 24 + 3 * 24 * 40) + 24 * 50));
    }

    #[test]
    fn heads_of_keys_go_with_their_queries_and_neurons_with_their_gates() {
        let groups = groups(&build(&small(2)).unwrap());
        let heads = groups.iter().find(|g| g.id.ends_with("layers.0.self_attn.q_proj")).unwrap();
        assert_eq!((heads.kind, heads.size, &heads.protected), (GroupKind::Heads, 2, &None));
        let rows = |node: &str, axis: usize| -> Vec<usize> {
            let of =
                |m: &&crate::prune::Member| m.node.ends_with(node) && m.axis == axis && m.node.contains("layers.0.");
            heads.members.iter().find(of).unwrap().indices(1).collect()
        };
        assert_eq!((rows("q_proj", 0), rows("o_proj", 1)), ((12..24).collect(), (12..24).collect()));
        assert_eq!((rows("k_proj", 0), rows("v_proj", 0)), ((6..12).collect::<Vec<_>>(), (6..12).collect::<Vec<_>>()));
        let neurons = groups.iter().find(|g| g.id.ends_with("layers.1.mlp.gate_proj")).unwrap();
        assert_eq!((neurons.kind, neurons.size, &neurons.protected), (GroupKind::Neurons, 40, &None));
        for node in ["gate_proj", "up_proj", "down_proj"] {
            assert!(neurons.members.iter().any(|m| m.node.ends_with(&format!("layers.1.mlp.{node}"))), "{node}");
        }
        let protected = |id: &str| groups.iter().find(|g| g.id.ends_with(id)).and_then(|g| g.protected.clone());
        assert!(protected("lm_head").is_some_and(|why| why.contains("output")));
    }

    /// A small Llama with a line of its `config.json` written anew.
    fn with(old: &str, new: &str) -> crate::model::Result<crate::model::Model> {
        let dir = tempfile::tempdir().unwrap();
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance/language/llama");
        std::fs::copy(from.join("model.safetensors"), dir.path().join("model.safetensors")).unwrap();
        let config = std::fs::read_to_string(from.join("config.json")).unwrap();
        assert!(config.contains(old), "{old}");
        std::fs::write(dir.path().join("config.json"), config.replace(old, new)).unwrap();
        load(dir.path(), &LoadOptions::default())
    }

    fn refused(old: &str, new: &str, words: &str) {
        let error = with(old, new).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }

    #[test]
    fn a_layer_too_many_or_too_few_is_not_passed_over() {
        for n in [1, 3] {
            let words = format!("{n} layers, and there are weights for 2");
            refused("\"num_hidden_layers\": 2", &format!("\"num_hidden_layers\": {n}"), &words);
        }
    }

    /// The rotary positions of the fixture with something else in its configuration.
    fn rope(new: &str) -> op::Rope {
        let model = with("\"rope_type\": \"default\"", new).unwrap();
        let rope = |op: &Op| if let Op::Rope(rope) = op { Some(rope.clone()) } else { None };
        model.graph.nodes.iter().find_map(|n| rope(&n.op)).unwrap()
    }

    #[test]
    fn scaled_positions_that_are_not_known_are_refused() {
        let last = "\"rope_type\": \"default\"";
        refused(last, "\"factor\": 2.0", "without a type (`rope_parameters` has a factor)");
        refused(last, "\"rope_type\": \"proportional\"", "(`proportional`): linear, dynamic, llama3");
        refused(last, "\"rope_type\": \"linear\"", "`rope_parameters` tells no `factor`");
        refused(last, "\"rope_type\": \"linear\", \"factor\": 0.5", "less than 1");
        refused(last, "\"rope_type\": \"llama3\", \"factor\": 8.0", "tells no `low_freq_factor`");
        refused(last, "\"rope_type\": \"longrope\"", "a list `short_factor`");
        let lists = "\"short_factor\": [1.0], \"long_factor\": [2.0]";
        refused(last, &format!("\"rope_type\": \"longrope\", {lists}"), "one positive divisor for each pair");
        refused(last, "\"full_attention\": {\"rope_theta\": 1e6}", "differ between layers");
        let beside = |text: &str| format!("\"rope_scaling\": {text}, \"rope_parameters\"");
        refused("\"rope_parameters\"", &beside("{\"factor\": 2.0}"), "`rope_scaling` has a factor");
        refused("\"rope_parameters\"", &beside("4.0"), "`rope_scaling` is no JSON object");
        assert!(with("\"rope_parameters\"", &beside("null")).is_ok());
    }

    /// Of transformers' own functions for heads of 8 values, a base of 1000 and 64 positions.
    #[test]
    fn scalings_are_reduced_to_divisors() {
        let close = |rope: &op::Rope, tokens: usize, want: [f64; 4]| {
            let got = rope.frequencies(tokens);
            assert!(got.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-6 * b), "{got:?}, not {want:?}");
        };
        let plain = [1.0, 0.177_827_94, 0.031_622_777, 0.005_623_413_3];
        close(&rope("\"type\": \"linear\", \"factor\": 4.0"), 99, plain.map(|f| f / 4.0));
        let dynamic = rope("\"rope_type\": \"dynamic\", \"factor\": 2.0");
        close(&dynamic, 64, plain);
        // Twice 128 over 64 less 1: three times the base to the power of 8/6.
        let base = 1000.0 * 3f64.powf(8.0 / 6.0);
        close(&dynamic, 128, [0.0, 1.0, 2.0, 3.0].map(|i: f64| base.powf(-i / 4.0)));
        let yarn = rope("\"rope_type\": \"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": 16");
        assert!((yarn.factor() - (0.1 * 4f64.ln() + 1.0)).abs() < 1e-12);
        let told = "\"rope_type\": \"yarn\", \"factor\": 4.0, \"mscale\": 0.7, \"mscale_all_dim\": 0.5";
        assert!((rope(told).factor() - (0.07 * 4f64.ln() + 1.0) / (0.05 * 4f64.ln() + 1.0)).abs() < 1e-12);
    }

    #[test]
    fn turned_values_are_read_where_the_base_stands() {
        let model = with("\"rope_type\": \"default\"", "\"partial_rotary_factor\": 0.5").unwrap();
        let turned = model.graph.nodes.iter().find_map(|n| match &n.op {
            Op::Rope(rope) => Some((rope.turned, rope.head_dim)),
            _ => None,
        });
        assert!(turned.is_some_and(|(turned, width)| 2 * turned == width), "{turned:?}");
    }

    /// Of each kind as its class in transformers has them.
    #[test]
    fn sliding_windows_are_those_of_the_kind() {
        let windows = |new: &str| -> Vec<Option<usize>> {
            let most = |op: &Op| if let Op::Attention(core) = op { Some(core.most) } else { None };
            with("\"model_type\": \"llama\"", new).unwrap().graph.nodes.iter().filter_map(|n| most(&n.op)).collect()
        };
        for (kind, more, want) in [
            ("llama", ", \"sliding_window\": 5", [None; 2]),
            ("mistral", ", \"sliding_window\": 5", [Some(5); 2]),
            ("mistral", ", \"sliding_window\": null", [None; 2]),
            ("mistral", "", [Some(4096); 2]),
            ("qwen2", ", \"sliding_window\": 5", [None; 2]),
            ("qwen2", ", \"sliding_window\": 5, \"use_sliding_window\": true", [None; 2]),
            (
                "qwen3",
                ", \"sliding_window\": 5, \"use_sliding_window\": true, \"max_window_layers\": 1",
                [None, Some(5)],
            ),
            ("qwen3", ", \"sliding_window\": 5, \"use_sliding_window\": true, \"max_window_layers\": 0", [Some(5); 2]),
        ] {
            assert_eq!(windows(&format!("\"model_type\": \"{kind}\"{more}")), want, "{kind}{more}");
        }
        let types = "\"model_type\": \"qwen3\", \"layer_types\": [\"full_attention\", \"chunked_attention\"]";
        refused("\"model_type\": \"llama\"", types, "`chunked_attention` is not supported");
    }

    #[test]
    fn norms_over_all_heads_keep_them_together() {
        let spec = DecoderSpec { norms: Norms::After, qk_norms: QkNorms::Whole, ..small(2) };
        let open: Vec<_> = groups(&build(&spec).unwrap()).into_iter().filter(|g| g.protected.is_none()).collect();
        let found: Vec<_> = open.iter().map(|g| (g.kind, g.size)).collect();
        assert_eq!(found, [(GroupKind::Neurons, 40); 2], "{open:?}");
    }
}
