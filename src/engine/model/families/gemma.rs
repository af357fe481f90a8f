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
