//! Token by token over a cache of keys and values, on a CPU's kernels and through the tensor library.

use crate::{apart, compile, decoders, expected, fewer_ids, flat, folder, ids, open};
use candle_core::Tensor;
use paring::exec::{CompileOptions, DecodeOptions, Kernels, KvFormat, Plan};
use std::path::Path;

/// Prompts in one run or cut anywhere, token by token, side by side at different lengths, and taken back: the logits are those of
/// one pass over everything.
#[test]
fn token_by_token_is_a_whole_pass() {
    for file in expected()["files"].as_object().unwrap().keys() {
        in_turn(&folder().join(file), &ids());
    }
    // Capped scores and windows, of which pages are left out, positions that are learnt, others for each layer.
    let others =
        ["gemma2.gguf", "gemma3", "gpt2", "mistral_sliding", "qwen2_sliding", "olmo2", "phi3_short", "rope_yarn"];
    let with_experts = ["mixtral", "mixtral.gguf", "qwen3_moe", "qwen3_moe_step"];
    for file in others.into_iter().chain(with_experts) {
        in_turn(&decoders().join(file), &fewer_ids());
    }
    // In longer sequences every token is turned otherwise.
    let at_most = |file: &str, context| {
        compile(&open(&decoders().join(file))).decoder(&DecodeOptions { sequences: 1, context, kv: KvFormat::F32 })
    };
    for (file, most) in [("phi3", 8), ("rope_dynamic", 8), ("gpt2", 16)] {
        assert!(at_most(file, most).is_ok(), "{file}");
        let error = at_most(file, most + 1).map(drop).unwrap_err().to_string();
        assert!(error.contains(&format!("for {most} tokens at most, not {}", most + 1)), "{error}");
    }
}

fn in_turn(path: &Path, all: &Tensor) {
    let options = |kv| DecodeOptions { sequences: 2, context: 13, kv };
    let of = |i: usize| all.narrow(0, i, 1).unwrap().flatten_all().unwrap().to_vec1::<u32>().unwrap();
    let (file, first, second) = (path.display(), of(0), of(1));
    let model = open(path);
    let whole = compile(&model).run(all).unwrap();
    let row = |i: usize, t: usize| flat(&whole.narrow(0, i, 1).unwrap().narrow(1, t, 1).unwrap());
    let formats = [(KvFormat::F32, 1e-4), (KvFormat::F16, 2e-2), (KvFormat::Int8, 0.6)];
    for (kernels, (kv, slack)) in [Kernels::Device, Kernels::Tensors].into_iter().flat_map(|k| formats.map(|f| (k, f)))
    {
        let plan = Plan::of(&model, &CompileOptions { kernels, ..CompileOptions::default() }).unwrap();
        let decoder = plan.decoder(&options(kv));
        if (kernels, kv) == (Kernels::Tensors, KvFormat::Int8) {
            let error = decoder.map(drop).unwrap_err().to_string();
            assert!(error.contains("int8 on a CPU's own kernels only; hint: f16 or f32"), "{error}");
            continue;
        }
        let mut decoder = decoder.unwrap();
        let near = |got: &[f32], i: usize, t: usize| {
            let off = apart(got, &row(i, t));
            assert!(off < slack, "{file}, {kernels:?}, {}: token {t} of sequence {i} is off by {off}", kv.label());
        };
        near(&decoder.feed(0, &first[..5]).unwrap(), 0, 4);
        near(&decoder.feed(1, &second[..1]).unwrap(), 1, 0);
        for t in 5..8 {
            // One is four tokens ahead of the other.
            let logits = decoder.step(&[1, 0], &[second[t - 4], first[t]]).unwrap();
            near(&flat(&logits.narrow(0, 0, 1).unwrap()), 1, t - 4);
            near(&flat(&logits.narrow(0, 1, 1).unwrap()), 0, t);
        }
        let rest = decoder.feed_all(0, &first[8..]).unwrap();
        (8..13).for_each(|t| near(&flat(&rest.narrow(0, t - 8, 1).unwrap()), 0, t));
        assert_eq!((decoder.tokens(0), decoder.tokens(1)), (13, 4));
        // Another text after the same beginning.
        decoder.rewind(0, 6);
        near(&decoder.feed(0, &first[6..9]).unwrap(), 0, 8);
    }
}

#[test]
fn what_a_cache_has_no_room_for_is_refused_and_changes_nothing() {
    let plan = compile(&open(&folder().join("llama")));
    let mut decoder = plan.decoder(&DecodeOptions { sequences: 2, context: 4, kv: KvFormat::F32 }).unwrap();
    decoder.feed(0, &[1, 2]).unwrap();
    for (error, words) in [
        (decoder.feed(0, &[1, 2, 3]).map(drop), "3 tokens more than 2 do not fit a context of 4"),
        (decoder.feed(2, &[1]).map(drop), "no sequence 2"),
        (decoder.feed(0, &[]).map(drop), "no tokens"),
        (decoder.feed(0, &[96]).map(drop), "vocabulary has 96"),
        (decoder.step(&[1, 1], &[1, 1]).map(drop), "named twice"),
        (decoder.step(&[0, 1], &[1]).map(drop), "not for 2 sequences"),
    ] {
        let error = error.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let after = decoder.feed(0, &[3, 4]).unwrap();
    let mut fresh = plan.decoder(&DecodeOptions { sequences: 1, context: 4, kv: KvFormat::F32 }).unwrap();
    assert!(apart(&after, &fresh.feed(0, &[1, 2, 3, 4]).unwrap()) < 1e-4);
    // Keys and values of two heads of eight, in two layers.
    assert_eq!(decoder.token_bytes(), 2 * 2 * 2 * 8 * 4);
}
