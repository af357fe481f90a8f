//! What every level says of every token of a text, whole windows at a time: what learners are taught with.
//!
//! Each level runs a window alone, so that what earlier tokens left in its cache is of that level too; decoding mixes them. How much that matters a trial
//! on other text tells (`trial`), through the decoder that will run. Not here: learning (`learn`).

use super::error::Result;
use super::signals::{Known, Signals, Table};
use crate::exec::{Cancel, Plan, Spread};
use crate::task::row_divergence;
use candle_core::{Device, Tensor};
use rayon::prelude::*;

/// One token of a window.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub id: u32,
    /// Per level: how sure it is of what follows.
    pub spread: Vec<Spread>,
    /// Per level: the logit of the token that does follow, 0 after the last.
    pub logit: Vec<f32>,
    /// Per level: divergence of what it says from the whole network's, in nats.
    pub divergence: Vec<f32>,
}

/// Windows of rows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Trace {
    pub levels: usize,
    pub windows: Vec<Vec<Row>>,
}

/// What the levels `plans` say of `windows`.
///
/// # Errors
/// What running reports; logits that are no numbers; cancellation.
pub fn trace(plans: &[&Plan], windows: &[Vec<u32>], cancel: &Cancel, told: &mut dyn FnMut(usize)) -> Result<Trace> {
    let mut sessions: Vec<_> = plans.iter().map(|plan| plan.session()).collect();
    let mut out = Trace { levels: plans.len(), windows: Vec::new() };
    for (n, ids) in windows.iter().enumerate() {
        let x = Tensor::new(ids.as_slice(), &Device::Cpu)?.unsqueeze(0)?;
        let row = |id: &u32| Row { id: *id, spread: Vec::new(), logit: Vec::new(), divergence: Vec::new() };
        let mut rows: Vec<Row> = ids.iter().map(row).collect();
        let mut whole: Vec<f32> = Vec::new();
        for (level, session) in sessions.iter_mut().enumerate() {
            cancel.check()?;
            let logits = session.run(&x)?.to_device(&Device::Cpu)?.flatten_all()?.to_vec1::<f32>()?;
            let values = logits.len() / ids.len().max(1);
            let reference = if level == 0 { &logits } else { &whole };
            rows.par_iter_mut().enumerate().for_each(|(t, row)| {
                let own = &logits[t * values..(t + 1) * values];
                let next = ids.get(t + 1).and_then(|id| own.get(*id as usize));
                row.spread.push(Spread::of(own));
                row.logit.push(next.copied().unwrap_or(0.0));
                let apart = match level {
                    0 => Some((0.0, true)),
                    _ => row_divergence(&reference[t * values..(t + 1) * values], own),
                };
                row.divergence.push(apart.map_or(f32::NAN, |(kl, _)| kl as f32));
            });
            if let Some(at) = rows.iter().position(|r| r.divergence.last().is_some_and(|d| d.is_nan())) {
                return Err(crate::eval::EvalError::NotFinite { at }.into());
            }
            if level == 0 {
                whole = logits;
            }
        }
        out.windows.push(rows);
        told(n + 1);
    }
    Ok(out)
}

impl Trace {
    /// What followed each token: the whole network's entropy and the last level's divergence.
    pub fn table(&self) -> Table {
        let rows = self.windows.iter().flatten();
        Table::of(rows.map(|r| {
            let [entropy, divergence] = [r.spread.first().map(|s| s.entropy), r.divergence.last().copied()];
            (r.id, f64::from(entropy.unwrap_or_default()), f64::from(divergence.unwrap_or_default()))
        }))
    }

    /// Tokens in all windows.
    pub fn tokens(&self) -> usize {
        self.windows.iter().map(Vec::len).sum()
    }

    /// Mean divergence of each level after the first `prompt` tokens of each window.
    pub fn means(&self, prompt: usize) -> Vec<f64> {
        let mut sums = vec![0.0; self.levels];
        let mut n = 0usize;
        for row in self.windows.iter().flat_map(|w| w.iter().skip(prompt)) {
            sums.iter_mut().zip(&row.divergence).for_each(|(s, d)| *s += f64::from(*d));
            n += 1;
        }
        sums.iter().map(|s| s / n.max(1) as f64).collect()
    }

    /// Goes through window `at` token by token after its first `prompt` tokens, which the whole network reads: `choose` is given the
    /// signals of each and the divergences that the levels would have, of which it says the level.
    pub fn walk(&self, at: usize, (prompt, table): (usize, &Table), mut choose: impl FnMut(&Signals, &[f32]) -> usize) {
        let Some(rows) = self.windows.get(at) else { return };
        let (mut known, mut level, prompt) = (Known::default(), 0, prompt.max(1));
        for (t, row) in rows.iter().enumerate() {
            if t >= prompt {
                let before = &rows[t - 1];
                let signals = known.signals(row.id, before.logit[level], table);
                level = choose(&signals, &row.divergence).min(self.levels - 1);
            }
            // A pilot sees the last logits of a prompt alone.
            if t + 1 == prompt {
                known.prompted(t);
            }
            if t + 1 >= prompt {
                known.after(row.spread[level], level, self.levels);
            }
        }
    }
}
