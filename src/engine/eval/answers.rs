//! What a language model answers to questions, freely: the likeliest token after the other, to the end of a text, of a line or of what is allowed.
//!
//! Not here: how questions are put (`data::answered`), what an answer is worth (`task::answers`).

use super::error::{EvalError, Result};
use super::{Sampler, Sampling};
use crate::data::Asked;
use crate::exec::{Cancel, DecodeOptions, Decoder, KvFormat, Plan};
use crate::model::Tokenizer;

/// One answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// Without the spaces around it.
    pub text: String,
    /// Tokens, the last of which may end the text.
    pub tokens: usize,
    /// Some of the question's beginning was left out, being more than the model was made for.
    pub cut: bool,
}

/// How long answers may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    pub tokens: usize,
    /// An answer goes on after a line break.
    pub lines: bool,
}

/// The answers of `plan` to all `asked`; prompts begin with the token that the model's texts begin with, where they do, and keep their end where
/// they leave no room for an answer within `context` tokens. Keys and values are kept in 16 bits. `progress` gets questions done and in total.
///
/// # Errors
/// Text that comes to no token; a failing model; logits that are no numbers; cancellation (looked for before each token).
pub fn answers(
    plan: &Plan,
    tokenizer: &Tokenizer,
    asked: &[Asked],
    (bounds, context): (Bounds, Option<usize>),
    cancel: &Cancel,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Vec<Said>> {
    let unfit = |n: usize, why: &dyn std::fmt::Display| EvalError::Question { n: n + 1, reason: why.to_string() };
    let prompts = asked.iter().enumerate().map(|(n, a)| {
        let ids = tokenizer.encode(a.prompt.trim_end_matches(' ')).map_err(|e| unfit(n, &e))?;
        if ids.is_empty() && tokenizer.first().is_none() {
            return Err(unfit(n, &"its text comes to no token"));
        }
        Ok(tokenizer.first().into_iter().chain(ids).collect::<Vec<u32>>())
    });
    let prompts = prompts.collect::<Result<Vec<_>>>()?;
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0) + bounds.tokens;
    let room = context.map_or(longest, |most| longest.min(most)).max(2);
    let options = DecodeOptions { sequences: 1, context: room, kv: KvFormat::F16 };
    let mut decoder = plan.decoder(&options)?;
    let mut out = Vec::with_capacity(asked.len());
    progress(0, asked.len());
    for (n, prompt) in prompts.iter().enumerate() {
        decoder.rewind(0, 0);
        // Where the context is short, an answer has half of it at most.
        let cut = prompt.len() + bounds.tokens > room;
        let most = if cut { bounds.tokens.min(room / 2).max(1) } else { bounds.tokens };
        let prompt = if cut { &prompt[prompt.len().saturating_sub(room - most)..] } else { &prompt[..] };
        let mut logits = Vec::new();
        for part in prompt.chunks(Decoder::AT_ONCE) {
            cancel.check()?;
            logits = decoder.feed(0, part)?;
        }
        let (mut sampler, mut ids, mut text) = (Sampler::new(Sampling::default()), Vec::new(), String::new());
        let mut tokens = 0;
        while tokens < most {
            cancel.check()?;
            let id = sampler.next(&logits)?;
            tokens += 1;
            if tokenizer.ends().contains(&id) {
                break;
            }
            ids.push(id);
            text = tokenizer.decode(&ids).map_err(|e| unfit(n, &e))?;
            // A line that was empty so far has not begun.
            if !bounds.lines && text.trim_start().contains('\n') || tokens == most {
                break;
            }
            logits = decoder.feed(0, &[id])?;
        }
        let text = text.trim_start();
        let text = if bounds.lines { text } else { text.lines().next().unwrap_or("") };
        out.push(Said { text: text.trim_end().to_owned(), tokens, cut });
        progress(out.len(), asked.len());
    }
    Ok(out)
}
