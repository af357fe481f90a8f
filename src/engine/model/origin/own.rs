//! What a language model that was trained here says of itself: a Llama by its dimensions, with a vocabulary that was learnt.

use super::{Origin, Said, vocabulary};
use crate::model::families::LlamaDims;
use crate::model::gguf::Fields;
use crate::model::{ModelError, Result, printable};
use serde_json::Value;
use std::path::Path;

impl Origin {
    /// That of a Llama called `name` for texts of `context` tokens, whose vocabulary is the `tokenizer.json` in `learnt`; texts begin, and end,
    /// with the token `end`.
    ///
    /// # Errors
    /// A vocabulary that is no byte pairs, or not the network's.
    pub fn own(name: &str, dims: &LlamaDims, context: usize, learnt: &Value, end: &str) -> Result<Origin> {
        let path = Path::new(name);
        let unfit = |why: String| ModelError::Config { path: path.to_owned(), why: printable(&why) };
        let mut f = Fields::default();
        f.string("general.architecture", "llama");
        f.string("general.type", "model");
        f.string("general.name", name);
        f.string("general.license", "mit");
        for (key, n) in [
            ("vocab_size", dims.vocab),
            ("context_length", context),
            ("embedding_length", dims.dim),
            ("block_count", dims.layers),
            ("feed_forward_length", dims.hidden),
            ("attention.head_count", dims.heads),
            ("attention.head_count_kv", dims.kv_heads),
            ("attention.key_length", dims.head_dim),
            ("attention.value_length", dims.head_dim),
            ("rope.dimension_count", dims.head_dim),
        ] {
            f.u32(&format!("llama.{key}"), n);
        }
        f.f32("llama.attention.layer_norm_rms_epsilon", LlamaDims::EPS);
        f.f32("llama.rope.freq_base", LlamaDims::THETA);
        vocabulary::byte_pairs(&mut f, learnt, dims.vocab).map_err(unfit)?;
        let id = learnt["model"]["vocab"][end].as_u64().and_then(|id| usize::try_from(id).ok());
        let id = id.ok_or_else(|| unfit(format!("its vocabulary has no `{end}`")))?;
        ["bos", "eos"].iter().for_each(|which| f.u32(&format!("tokenizer.ggml.{which}_token_id"), id));
        f.bool("tokenizer.ggml.add_bos_token", true);
        Ok(Said::of(&f, Vec::new(), path)?.map_or(Origin::None, Origin::Said))
    }
}
