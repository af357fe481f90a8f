//! [`Voice`]: words as soon as they are whole, while a model is still at it.

use super::Speaks;
use crate::model::Result;

/// Turns token after token into text; a character may take several tokens.
#[derive(Debug, Clone, Default)]
pub struct Voice {
    ids: Vec<u32>,
    /// The first id of what is decoded anew each time, and bytes of that which were said.
    from: usize,
    said: usize,
}

impl Voice {
    /// Ids that are decoded together at most, for a word's blanks and a character's bytes.
    const AT_ONCE: usize = 16;

    /// Ids after which what is no character by now will be none.
    const PATIENCE: usize = 64;

    /// What can be said after one token more; never part of a character.
    ///
    /// # Errors
    /// What the vocabulary's decoder says.
    pub fn say(&mut self, by: &impl Speaks, id: u32) -> Result<String> {
        self.ids.push(id);
        let text = by.decode(&self.ids[self.from..])?;
        let waits = text.ends_with('\u{fffd}') && self.ids.len() - self.from <= Voice::PATIENCE;
        if text.len() <= self.said || waits {
            return Ok(String::new());
        }
        let new = text.get(self.said..).unwrap_or_default().to_owned();
        self.said = text.len();
        if self.ids.len() - self.from > Voice::AT_ONCE {
            // The last one stays, so that what follows is decoded as a continuation.
            self.from = self.ids.len() - 1;
            self.said = by.decode(&self.ids[self.from..])?.len();
        }
        Ok(new)
    }

    /// What was held back.
    ///
    /// # Errors
    /// As [`Voice::say`].
    pub fn rest(&self, by: &impl Speaks) -> Result<String> {
        let text = by.decode(&self.ids[self.from..])?;
        Ok(text.get(self.said..).unwrap_or_default().to_owned())
    }
}
