//! Gemma 2 (Gemma Team 2024) and the text part of Gemma 3 (2025): norms on both sides of attention and MLP whose weights are stored
//! without their 1, scaled embeddings, GELU in the MLP, layers with a sliding window between others; capped scores and logits in the
//! second, normalised heads and two bases of rotary positions in the third.

use super::decoder::{DecoderSpec, Norms, Stored};
use super::decoder_read::{count, everywhere, kind, positive, spec, windows};
use super::{FamilySpec, Reader, Result, Source, decoder_rope};
use crate::graph::Activation;
use crate::model::printable;

const KINDS: [&str; 3] = ["gemma2", "gemma3_text", "gemma3"];

pub(super) fn read(r: &Reader) -> Result<FamilySpec> {
    let c = &r.sidecar.config;
    let (kind, gguf) = (kind(r, &KINDS)?, r.names.source == Source::Gguf);
    if kind == "gemma3" && !gguf {
        return Err(r.not("it sees images, too (`gemma3_text` is supported)"));
    }
    if let Some(act) = c.string("hidden_activation")?.filter(|a| *a != "gelu_pytorch_tanh") {
        return Err(r.not(format!("its MLP has another activation (`{}`) than GELU by its tangent", printable(act))));
    }
    if c.bool("use_bidirectional_attention")? == Some(true) {
        return Err(r.not("its tokens see those after them"));
    }
    let third = kind != "gemma2";
    let s = match third {
        false => spec(r, kind, Activation::GeluTanh, false, everywhere(r))?,
        true => third_generation(r, kind)?,
    };
    let period = if third { c.count("sliding_window_pattern")?.unwrap_or(6) } else { 2 };
    let most = match third && gguf {
        // llama.cpp's converter leaves it out where all layers see everything.
        true => c.count("sliding_window")?,
        false => count(r, "sliding_window", 4096)?,
    };
    let sliding = windows(r, s.layers, most, |i| (i + 1) % period != 0)?;
    let [score_cap, logit_cap] = [("attn_logit_softcapping", 50.0), ("final_logit_softcapping", 30.0)]
        .map(|(key, second)| positive(r, key, (!third).then_some(second)));
    let scalar = positive(r, "query_pre_attn_scalar", Some(256.0))?;
    let scalar = scalar.ok_or_else(|| c.bad("`query_pre_attn_scalar` is missing"))?;
    Ok(FamilySpec::Gemma(DecoderSpec {
        norms: Norms::Around,
        sliding,
        scale: 1.0 / scalar.sqrt(),
        score_cap: score_cap?,
        logit_cap: logit_cap?,
        // As transformers rounds it in f32.
        embed_scale: Some(f64::from((s.dim as f64).sqrt() as f32)),
        // llama.cpp's converter adds the 1.
        stored: Stored { less_one: !gguf, ..s.stored },
        ..s
    }))
}

/// Layers with a window have a base of their own and no scaling.
fn third_generation(r: &Reader, kind: &str) -> Result<DecoderSpec> {
    let written = decoder_rope::written(r)?;
    let whole = written.as_ref().map(|(key, object)| (*key, object));
    let nested = whole.filter(|(_, object)| object.holds_objects());
    let inside = |name: &str| nested.and_then(|(key, object)| Some((key, object.inside(name)?)));
    let (full, local) = (inside("full_attention"), inside("sliding_attention"));
    let full = full.as_ref().map(|(key, object)| (*key, object)).or(if nested.is_some() { None } else { whole });
    let local = local.as_ref().map(|(key, object)| (*key, object));
    let mut other = None;
    let s = spec(r, kind, Activation::GeluTanh, false, |heads| {
        other = Some(decoder_rope::one(r, heads, local, "rope_local_base_freq", 10_000.0)?);
        decoder_rope::one(r, heads, full, "rope_theta", 1_000_000.0)
    })?;
    Ok(DecoderSpec { local: other, ..s })
}

#[cfg(test)]
mod tests {
    use crate::graph::{Op, op};
    use crate::model::{LoadOptions, Model, Result, load};
    use serde_json::{Map, Value, json};
    use std::path::Path;

    /// The fixture `name` with something else in its configuration.
    fn with(name: &str, change: impl FnOnce(&mut Map<String, Value>)) -> Result<Model> {
        let dir = tempfile::tempdir().unwrap();
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance/decoders").join(name);
        std::fs::copy(from.join("model.safetensors"), dir.path().join("model.safetensors")).unwrap();
        let text = std::fs::read_to_string(from.join("config.json")).unwrap();
        let mut config: Map<String, Value> = serde_json::from_str(&text).unwrap();
        change(&mut config);
        std::fs::write(dir.path().join("config.json"), serde_json::to_string(&config).unwrap()).unwrap();
        load(dir.path(), &LoadOptions::default())
    }

    fn cores(model: &Model) -> Vec<&op::Attention> {
        model.graph.nodes.iter().filter_map(|n| if let Op::Attention(a) = &n.op { Some(a) } else { None }).collect()
    }

    /// As they were published, before layers and positions had lists and objects of their own.
    #[test]
    fn older_configurations_are_the_same_networks() {
        let third = with("gemma3", |_| ()).unwrap();
        let older = with("gemma3", |c| {
            ["layer_types", "rope_parameters", "_sliding_window_pattern"].iter().for_each(|k| _ = c.remove(*k));
            c.insert("rope_theta".into(), json!(10000.0));
            c.insert("rope_local_base_freq".into(), json!(100.0));
            c.insert("rope_scaling".into(), json!({"rope_type": "linear", "factor": 8.0}));
        });
        assert_eq!(older.unwrap().graph, third.graph);
        let windows: Vec<_> = cores(&third).iter().map(|a| a.most).collect();
        assert_eq!(windows, [Some(4), Some(4), Some(4), Some(4), Some(4), None]);

        let second = with("gemma2", |_| ()).unwrap();
        let older = with("gemma2", |c| {
            ["layer_types", "rope_parameters"].iter().for_each(|k| _ = c.remove(*k));
            c.insert("rope_theta".into(), json!(10000.0));
        });
        assert_eq!(older.unwrap().graph, second.graph);
        // What its class has where nothing is said.
        let silent = with("gemma2", |c| {
            for key in ["attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar", "sliding_window"]
            {
                c.remove(key);
            }
        });
        let silent = silent.unwrap();
        let found: Vec<_> = cores(&silent).iter().map(|a| (a.most, a.cap, a.scale)).collect();
        assert_eq!(found, [(Some(4096), Some(50.0), 1.0 / 16.0), (None, Some(50.0), 1.0 / 16.0)]);
    }

    #[test]
    fn what_computes_otherwise_is_refused() {
        let refused = |key: &str, value: Value, words: &str| {
            let error = with("gemma3_types", |c| _ = c.insert(key.into(), value)).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        };
        refused("model_type", json!("gemma3"), "it sees images");
        refused("model_type", json!("gemma3n"), "`gemma3n` is a relative");
        refused("hidden_activation", json!("gelu"), "another activation (`gelu`)");
        refused("use_bidirectional_attention", json!(true), "see those after them");
        refused("attn_logit_softcapping", json!(0.0), "`attn_logit_softcapping` is not positive");
        refused("layer_types", json!(["full_attention"]), "tells of 1 layers, and there are 2");
    }
}
