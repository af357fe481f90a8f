//! How surprised two models are by each token of one text: plain data, as the host tells it to whoever looks.
//!
//! Not here: how it is measured (`host/compute/tokens`). Never part of the state: it is of the evaluation data, which planning must not see.

use serde::{Deserialize, Serialize};

/// What is asked: one item of the evaluation data, by the original and by a round's model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct WhatTokens {
    pub round: u32,
    pub item: usize,
}

/// What came of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Tokens {
    pub asked: WhatTokens,
    /// Why nothing can be told, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The token that the text begins with: nothing foretells it.
    pub first: String,
    /// Those after it, in order.
    pub tokens: Vec<Token>,
}

impl Tokens {
    /// Nothing but why nothing can be told.
    pub fn untold(asked: WhatTokens, why: String) -> Tokens {
        Tokens { asked, why: Some(why), ..Tokens::default() }
    }

    /// Mean losses of the original and of the round, nats a token: what an evaluation scores the text by, without its sign. `None` of no tokens.
    pub fn means(&self) -> Option<(f64, f64)> {
        let n = self.tokens.len() as f64;
        let mean = |of: fn(&Token) -> f64| self.tokens.iter().map(of).sum::<f64>() / n;
        (n > 0.0).then(|| (mean(|t| t.before.nats), mean(|t| t.after.nats)))
    }
}

/// A token with what both models made of it, seeing those before.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Token {
    pub id: u32,
    /// What the text says once it is there; empty while a character is not whole.
    pub text: String,
    pub before: Guess,
    pub after: Guess,
}

impl Token {
    /// Loss of the round less that of the original, nats: positive for worse.
    pub fn change(&self) -> f64 {
        self.after.nats - self.before.nats
    }
}

/// What a model makes of a token.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Guess {
    /// `-ln p` of the token.
    pub nats: f64,
    /// The likeliest token in its place, and how likely that is, 0 to 1.
    pub top: u32,
    pub text: String,
    pub chance: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_over_tokens_is_the_loss_of_the_text() {
        let token = |before: f64, after: f64| Token {
            before: Guess { nats: before, ..Guess::default() },
            after: Guess { nats: after, ..Guess::default() },
            ..Token::default()
        };
        let of = |tokens| Tokens { tokens, ..Tokens::default() };
        assert_eq!(of(vec![token(1.0, 1.5), token(3.0, 2.0)]).means(), Some((2.0, 1.75)));
        assert_eq!(of(Vec::new()).means(), None);
        assert_eq!(token(1.0, 0.25).change(), -0.75);
    }
}
