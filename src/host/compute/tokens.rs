//! What the original and a round's model make of each token of one text, measured when somebody looks at it: both run on that text alone.
//!
//! Not here: what a text scores in an evaluation (`judge`). Invariant: the mean over a text's tokens is what an evaluation scores it by.

use super::{Compute, JobError, takes_text, tokenizer_of};
use crate::model::{Model, Speaks, Tokenizer, Voice};
use crate::session::{Guess, State, Token, Tokens, WhatTokens};
use crate::task::{Targets, surprise};
use candle_core::{DType, Device, Tensor};

/// A token's loss (nats), and the likeliest one in its place with how likely that is.
type Seen = (f64, u32, f64);

impl Compute {
    /// # Errors
    /// No such round or item, items that are no text foretold token by token, no vocabulary, a model that cannot run.
    pub(super) fn tokens_of(&self, state: &State, asked: WhatTokens) -> Result<Tokens, JobError> {
        let refused = |why: String| JobError::Failed(why);
        if !takes_text(&self.model) {
            return Err(refused("the model foretells no tokens; hint: language models do".to_owned()));
        }
        if asked.round == 0 || asked.item >= self.data.len() {
            let (round, item, n) = (asked.round, asked.item, self.data.len());
            return Err(refused(format!("round {round} has no item {item} of {n}; hint: choose one in view 2")));
        }
        let (ids, targets) = self.data.batch([asked.item], &self.model.info.preprocess).map_err(JobError::of)?;
        let Targets::Values(next) = targets else {
            return Err(refused("the items have one class each, and no next tokens".to_owned()));
        };
        let list = |t: &Tensor| t.flatten_all()?.to_dtype(DType::U32)?.to_vec1::<u32>();
        let next = list(&next).map_err(JobError::of)?;
        let first = list(&ids).map_err(JobError::of)?.first().copied();
        // One after the other: there need not be memory for both.
        let before = self.foretold(&self.model, &ids, &next)?;
        let after = self.foretold(&self.model_of(state, asked.round)?, &ids, &next)?;
        let how = &self.shelf.recipe.how;
        let words = tokenizer_of(how.tokenizer.as_ref().unwrap_or(&how.model)).map_err(JobError::Failed)?;
        Ok(told(asked, (first, &next), &before, &after, words.as_ref()))
    }

    /// What `model` makes of each of `next` after the `ids` before it.
    fn foretold(&self, model: &Model, ids: &Tensor, next: &[u32]) -> Result<Vec<Seen>, JobError> {
        let logits = self.compile(model)?.run(ids).map_err(JobError::of)?;
        let on_host = || logits.to_dtype(DType::F32)?.to_device(&Device::Cpu)?.flatten_all()?.to_vec1::<f32>();
        seen(&on_host().map_err(JobError::of)?, next)
    }
}

/// Of logits `[tokens, vocabulary]`, row by row.
fn seen(logits: &[f32], next: &[u32]) -> Result<Vec<Seen>, JobError> {
    let vocab = logits.len().checked_div(next.len()).unwrap_or(0).max(1);
    let one = |(row, &id): (&[f32], &u32)| {
        let top = (0..row.len()).fold(0, |m, i| if row[i] > row[m] { i } else { m }) as u32;
        let nats = surprise(row, id)?.0;
        // As much likelier than the token as its logit is larger.
        let beyond = f64::from(row[top as usize]) - f64::from(row[id as usize]);
        Some((nats, top, (beyond - nats).exp()))
    };
    let all: Option<Vec<Seen>> = logits.chunks(vocab).zip(next).map(one).collect();
    all.ok_or_else(|| {
        let why =
            "the model answers the text with what is no number; hint: a precision overflows, or weights are damaged";
        JobError::Failed(why.to_owned())
    })
}

/// With words where a vocabulary has them, else with ids.
fn told(
    asked: WhatTokens,
    (first, next): (Option<u32>, &[u32]),
    before: &[Seen],
    after: &[Seen],
    words: Option<&Tokenizer>,
) -> Tokens {
    let mut voice = Voice::default();
    let first = first.map_or_else(String::new, |id| said(&mut voice, words, id));
    let mut tokens: Vec<Token> = Vec::with_capacity(next.len());
    for ((&id, b), a) in next.iter().zip(before).zip(after) {
        let guess = |&(nats, top, chance): &Seen| {
            // In its place: as it would go on with the text that is there.
            Guess { nats, top, chance, text: said(&mut voice.clone(), words, top) }
        };
        let (before, after) = (guess(b), guess(a));
        tokens.push(Token { id, before, after, text: said(&mut voice, words, id) });
    }
    // What never became a character.
    if let (Some(last), Some(Ok(rest))) = (tokens.last_mut(), words.map(|w| voice.rest(w))) {
        last.text.push_str(&rest);
    }
    Tokens { asked, why: None, first, tokens }
}

fn said(voice: &mut Voice, words: Option<&impl Speaks>, id: u32) -> String {
    match words {
        Some(words) => voice.say(words, id).unwrap_or_default(),
        None => format!("{id} "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_and_the_likeliest_are_those_worked_out_by_hand() {
        // Two tokens over three words.
        let all = seen(&[2.0, 0.0, 0.0, 0.0, 1.0, 1.0], &[1, 2]).expect("numbers");
        let sums = (2f64.exp() + 2.0, 1.0 + 2.0 * 1f64.exp());
        assert!((all[0].0 - sums.0.ln()).abs() < 1e-6 && (all[1].0 - (sums.1.ln() - 1.0)).abs() < 1e-6, "{all:?}");
        // Of equals the first.
        assert_eq!((all[0].1, all[1].1), (0, 1));
        assert!((all[0].2 - 2f64.exp() / sums.0).abs() < 1e-6 && (all[1].2 - 1f64.exp() / sums.1).abs() < 1e-6);
        assert!(seen(&[f32::NAN, 0.0], &[1]).is_err_and(|e| e.to_string().contains("hint:")));
        assert_eq!(seen(&[], &[]).expect("none"), []);
    }

    #[test]
    fn without_a_vocabulary_tokens_are_told_by_their_ids() {
        let seen = [(1.0, 7, 0.5), (2.0, 3, 0.25)];
        let told = told(WhatTokens { round: 1, item: 0 }, (Some(9), &[7, 4]), &seen, &seen, None);
        assert_eq!((told.first.as_str(), told.tokens[1].text.as_str()), ("9 ", "4 "));
        assert_eq!((told.tokens[1].after.top, told.tokens[1].after.text.as_str()), (3, "3 "));
        assert_eq!(told.means(), Some((1.5, 1.5)));
    }
}
