//! What each round's model answers to every item of the evaluation data, kept beside the journal.
//!
//! A round's answers are `answers/round-N.safetensors` in the session's folder (the original's `round-0`): `items` (indices), `scores`,
//! `margins`, `predictions` and `confidence`, one value an item; the last is not in files of older versions. Not here: what of it is otherwise
//! than the original's (`changed`). Invariant: a file that is missing, damaged or of other data is said to be so, and costs no result.

use super::Compute;
use crate::data::Dataset;
use crate::eval::robust::Said;
use crate::session::{Answer, State, private};
use crate::task::Scored;
use candle_core::Tensor;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use std::collections::HashMap;

/// Answers of one model in the order that they were given in; lists are empty where the task has none.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Answers {
    /// Which items of the data.
    pub items: Vec<u32>,
    pub scores: Vec<f32>,
    pub margins: Vec<f32>,
    pub predictions: Vec<u16>,
    /// Softmax of the class that is answered, 0 to 1; empty too where a run did not gather it.
    pub confidence: Vec<f64>,
}

impl Answers {
    /// Of a run over all items, or over those of `drawn` in that order.
    pub fn of(run: Scored, confidence: Vec<f64>, drawn: Option<&[usize]>) -> Answers {
        let Scored { scores, margins, predictions, .. } = run;
        let items = match drawn {
            Some(drawn) => drawn.iter().map(|&i| i as u32).collect(),
            None => (0..scores.len() as u32).collect(),
        };
        // Outputs of other tasks are no logits of classes.
        let confidence = if predictions.len() == confidence.len() { confidence } else { Vec::new() };
        Answers { items, scores, margins, predictions, confidence }
    }

    fn to_bytes(&self, of: &str) -> Result<Vec<u8>, safetensors::SafeTensorError> {
        fn le<const N: usize, T: Copy>(list: &[T], bytes: impl Fn(T) -> [u8; N]) -> Vec<u8> {
            list.iter().flat_map(|v| bytes(*v)).collect()
        }
        let mut lists = vec![
            ("items", Dtype::U32, le(&self.items, u32::to_le_bytes)),
            ("margins", Dtype::F32, le(&self.margins, f32::to_le_bytes)),
            ("predictions", Dtype::U16, le(&self.predictions, u16::to_le_bytes)),
            ("scores", Dtype::F32, le(&self.scores, f32::to_le_bytes)),
        ];
        if !self.confidence.is_empty() {
            lists.push(("confidence", Dtype::F64, le(&self.confidence, f64::to_le_bytes)));
        }
        let views = lists.iter().map(|(name, dtype, data)| {
            Ok((*name, TensorView::new(*dtype, vec![data.len() * 8 / dtype.bitsize()], data)?))
        });
        let views: Vec<_> = views.collect::<Result<_, safetensors::SafeTensorError>>()?;
        safetensors::serialize(views, Some(HashMap::from([(OF.to_owned(), of.to_owned())])))
    }

    /// `None` for what is no such file, or is of another model or data than `of` says.
    fn from_bytes(bytes: &[u8], of: &str) -> Option<Answers> {
        let (_, header) = SafeTensors::read_metadata(bytes).ok()?;
        if header.metadata().as_ref()?.get(OF)? != of {
            return None;
        }
        let file = SafeTensors::deserialize(bytes).ok()?;
        let list = |name: &str, dtype: Dtype| file.tensor(name).ok().filter(|t| t.dtype() == dtype);
        fn le<const N: usize, T>(view: &TensorView<'_>, value: impl Fn([u8; N]) -> T) -> Vec<T> {
            view.data().as_chunks::<N>().0.iter().map(|b| value(*b)).collect()
        }
        let read = Answers {
            items: le(&list("items", Dtype::U32)?, u32::from_le_bytes),
            scores: le(&list("scores", Dtype::F32)?, f32::from_le_bytes),
            margins: le(&list("margins", Dtype::F32)?, f32::from_le_bytes),
            predictions: le(&list("predictions", Dtype::U16)?, u16::from_le_bytes),
            confidence: list("confidence", Dtype::F64).map_or_else(Vec::new, |t| le(&t, f64::from_le_bytes)),
        };
        let n = read.items.len();
        let fits = |len: usize, may_lack: bool| len == n || (may_lack && len == 0);
        let lists = [read.margins.len(), read.predictions.len(), read.confidence.len()];
        let sound = fits(read.scores.len(), false) && lists.into_iter().all(|len| fits(len, true));
        sound.then_some(read)
    }

    /// What was answered to the `k`th of its items.
    pub fn at(&self, k: usize) -> Answer {
        Answer {
            score: self.scores[k],
            class: self.predictions.get(k).copied(),
            lead: self.margins.get(k).copied().filter(|m| m.is_finite()),
            confidence: self.confidence.get(k).copied().filter(|c| (0.0..=1.0).contains(c)),
        }
    }
}

/// What a file says it is of.
const OF: &str = "of";

/// How likely a model holds the classes that it answers, gathered while `eval::score_with` runs it over a set.
pub(super) struct Confidences {
    /// Items in the order in which they are run.
    order: Vec<usize>,
    seen: Vec<f64>,
}

impl Confidences {
    pub fn over(data: &Dataset, batch: usize) -> Confidences {
        let all: Vec<usize> = (0..data.len()).collect();
        Confidences { order: data.parts(&all, batch.clamp(1, all.len().max(1))).concat(), seen: Vec::new() }
    }

    /// Takes the outputs of a batch; those that are no logits of classes, or no numbers, are told by who scores them.
    pub fn add(&mut self, outputs: &Tensor) {
        if outputs.rank() == 2
            && let Ok(said) = Said::all(outputs, self.seen.len())
        {
            self.seen.extend(said.iter().map(|s| s.confidence));
        }
    }

    /// Of each item in the set's order; none where not all were seen.
    pub fn placed(self) -> Vec<f64> {
        let mut placed = vec![0.0; self.order.len()];
        self.order.iter().zip(&self.seen).for_each(|(&at, v)| placed[at] = *v);
        if self.seen.len() == self.order.len() { placed } else { Vec::new() }
    }
}

impl Compute {
    /// What a file of `round`'s answers says it is of.
    pub(super) fn answers_of(&self, state: &State, round: u32) -> String {
        match round {
            0 => self.answers_by("the original"),
            _ => self.answers_by(state.round_at(round).and_then(|r| r.artifact.as_deref()).unwrap_or_default()),
        }
    }

    /// The same by the model's artifact.
    pub(super) fn answers_by(&self, artifact: &str) -> String {
        format!("{artifact} on {} items of {}", self.data.len(), self.shelf.recipe.data.spec)
    }

    /// Keeps what `round`'s model answered. That it could not costs nobody a result.
    pub(super) fn keep_answers(&self, of: &str, round: u32, answers: &Answers) {
        let file = self.shelf.place.answers_file(round);
        let write = || -> Result<(), String> {
            if let Some(dir) = file.parent() {
                std::fs::create_dir_all(dir).map_err(|e| e.to_string())?;
            }
            let bytes = answers.to_bytes(of).map_err(|e| e.to_string())?;
            crate::files::write_privately(&file, &bytes).map_err(|e| e.to_string())
        };
        if let Err(e) = write() {
            tracing::warn!(round, error = e, "could not keep what the model answered");
        }
    }

    pub(super) fn kept_answers(&self, state: &State, round: u32) -> Option<Answers> {
        // Eighteen bytes and four of an index an item, and the header.
        let most = 64 * 1024 + 24 * self.data.len() as u64;
        let bytes = private::read(&self.shelf.place.answers_file(round), most).ok();
        let kept = bytes.and_then(|bytes| Answers::from_bytes(&bytes, &self.answers_of(state, round)));
        // Of the original, sessions of older versions kept scores alone.
        let scores =
            || self.kept_scores().map(|scores| Answers::of(Scored { scores, ..Scored::default() }, Vec::new(), None));
        kept.or_else(|| (round == 0).then(scores).flatten())
    }
}

/// Answers to items, with their scores, leads and classes.
#[cfg(test)]
pub(super) fn answers(given: &[(u32, f32, f32, u16)]) -> Answers {
    Answers {
        items: given.iter().map(|g| g.0).collect(),
        scores: given.iter().map(|g| g.1).collect(),
        margins: given.iter().map(|g| g.2).collect(),
        predictions: given.iter().map(|g| g.3).collect(),
        confidence: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_come_back_as_they_were_and_others_are_refused() {
        let kept = answers(&[(3, 1.0, 0.5, 2), (0, 0.0, f32::NAN, 65535)]);
        let bytes = kept.to_bytes("a on 4 items of b").unwrap();
        let read = Answers::from_bytes(&bytes, "a on 4 items of b").expect("sound");
        assert_eq!((read.items, read.predictions), (kept.items, kept.predictions));
        assert!(read.margins[1].is_nan() && read.scores == [1.0, 0.0]);
        assert!(Answers::from_bytes(&bytes, "a on 5 items of b").is_none());
        // As older versions kept them, and with how sure the model was.
        assert!(read.confidence.is_empty());
        let sure = Answers { confidence: vec![0.1 + 0.2, 1.0], ..answers(&[(3, 1.0, 0.5, 2), (0, 0.0, 1.0, 1)]) };
        assert_eq!(Answers::from_bytes(&sure.to_bytes("x").unwrap(), "x").expect("sound"), sure);
        let short = Answers { confidence: vec![0.5], ..sure };
        assert!(Answers::from_bytes(&short.to_bytes("x").unwrap(), "x").is_none());
        for cut in 0..bytes.len() {
            assert!(Answers::from_bytes(&bytes[..cut], "a on 4 items of b").is_none(), "{cut}");
        }
        let mut unlike = answers(&[(0, 1.0, 0.5, 2)]);
        unlike.scores.push(1.0);
        assert!(Answers::from_bytes(&unlike.to_bytes("x").unwrap(), "x").is_none());
    }
}
