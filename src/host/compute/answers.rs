//! What each round's model answers to every item of the evaluation data, kept beside the journal, and what of it is otherwise than the
//! original's: for people who look into an evaluation.
//!
//! A round's answers are `answers/round-N.safetensors` in the session's folder (the original's `round-0`): `items` (indices), `scores`,
//! `margins` and `predictions`, one value an item. Invariants: nothing here reaches planning; a file that is missing, damaged or of other
//! data is said to be so, and costs no result.

use super::{Compute, JobError, tokenizer_of};
use crate::data::Dataset;
use crate::model::{Preprocess, Tokenizer};
use crate::session::{Answer, Changed, Item, Leads, PAGE, Picture, State, Taken, Way, WhatChanged, private};
use crate::task::Scored;
use image::imageops::{FilterType, resize};
use image::{ImageBuffer, Rgb};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use std::collections::{BTreeMap, HashMap};

/// Pixels of a picture's longer side at most.
const SIDE: u32 = 96;
/// Bins of a histogram of leads.
const BINS: usize = 24;
/// Characters that are told of a text.
const TEXT: usize = 600;

/// Answers of one model in the order that they were given in; lists are empty where the task has none.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Answers {
    /// Which items of the data.
    pub items: Vec<u32>,
    pub scores: Vec<f32>,
    pub margins: Vec<f32>,
    pub predictions: Vec<u16>,
}

impl Answers {
    /// Of a run over all of `n` items, or over those of `drawn` in that order.
    pub fn of(run: &Scored, drawn: Option<&[usize]>) -> Answers {
        let items = match drawn {
            Some(drawn) => drawn.iter().map(|&i| i as u32).collect(),
            None => (0..run.scores.len() as u32).collect(),
        };
        let Scored { scores, margins, predictions, .. } = run.clone();
        Answers { items, scores, margins, predictions }
    }

    fn to_bytes(&self, of: &str) -> Result<Vec<u8>, safetensors::SafeTensorError> {
        fn le<const N: usize, T: Copy>(list: &[T], bytes: impl Fn(T) -> [u8; N]) -> Vec<u8> {
            list.iter().flat_map(|v| bytes(*v)).collect()
        }
        let lists = [
            ("items", Dtype::U32, le(&self.items, u32::to_le_bytes)),
            ("margins", Dtype::F32, le(&self.margins, f32::to_le_bytes)),
            ("predictions", Dtype::U16, le(&self.predictions, u16::to_le_bytes)),
            ("scores", Dtype::F32, le(&self.scores, f32::to_le_bytes)),
        ];
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
        };
        let n = read.items.len();
        let fits = |len: usize, may_lack: bool| len == n || (may_lack && len == 0);
        let sound =
            fits(read.scores.len(), false) && fits(read.margins.len(), true) && fits(read.predictions.len(), true);
        sound.then_some(read)
    }

    fn at(&self, k: usize) -> Answer {
        Answer {
            score: self.scores[k],
            class: self.predictions.get(k).copied(),
            lead: self.margins.get(k).copied().filter(|m| m.is_finite()),
        }
    }
}

/// What a file says it is of.
const OF: &str = "of";

/// Two models' answers to one item.
struct Pair {
    item: usize,
    label: Option<u32>,
    before: Answer,
    after: Answer,
}

impl Pair {
    /// Which way it changed, if any.
    fn way(&self, classes: bool) -> Option<Way> {
        let (b, a) = (self.before.score, self.after.score);
        match classes {
            true if (b > 0.5) == (a > 0.5) => None,
            true => Some(if b > 0.5 { Way::Lost } else { Way::Gained }),
            false if b == a || b.is_nan() || a.is_nan() => None,
            false => Some(if a < b { Way::Lost } else { Way::Gained }),
        }
    }

    /// By how much it rose: of what leads, else of the score.
    fn rise(&self) -> f32 {
        match (self.before.lead, self.after.lead) {
            (Some(b), Some(a)) => a - b,
            _ => self.after.score - self.before.score,
        }
    }
}

/// What changed between answers of the same data; `label` is the class of an item. The page has no pictures and words yet.
fn compare(asked: WhatChanged, before: &Answers, after: &Answers, label: impl Fn(usize) -> Option<u32>) -> Changed {
    let place: HashMap<u32, usize> = before.items.iter().enumerate().map(|(k, &item)| (item, k)).collect();
    let pairs: Vec<Pair> = (after.items.iter().enumerate())
        .filter_map(|(k, item)| {
            let item_at = *item as usize;
            Some(Pair {
                item: item_at,
                label: label(item_at),
                before: before.at(*place.get(item)?),
                after: after.at(k),
            })
        })
        .collect();
    let classes = !before.predictions.is_empty() && !after.predictions.is_empty();
    let of = |way: Way| pairs.iter().filter(|p| p.way(classes) == Some(way)).count();
    let mut chosen: Vec<&Pair> = pairs.iter().filter(|p| p.way(classes) == Some(asked.way)).collect();
    chosen.sort_by(|a, b| {
        let order = a.rise().total_cmp(&b.rise());
        let order = if asked.way == Way::Lost { order } else { order.reverse() };
        order.then(a.item.cmp(&b.item))
    });
    let items = chosen.iter().skip(asked.from).take(PAGE);
    Changed {
        asked,
        why: None,
        seen: pairs.len(),
        lost: of(Way::Lost),
        gained: of(Way::Gained),
        items: items
            .map(|p| Item { index: p.item, label: p.label, before: p.before, after: p.after, ..Item::default() })
            .collect(),
        classes: if classes { by_class(&pairs) } else { Vec::new() },
        taken: if classes { taken(&pairs) } else { Vec::new() },
        leads: leads(&pairs),
    }
}

/// Of each class how many items there are, and how many of them were lost and gained.
fn by_class(pairs: &[Pair]) -> Vec<[u32; 3]> {
    let mut out = vec![[0u32; 3]; pairs.iter().filter_map(|p| p.label).max().map_or(0, |l| l as usize + 1)];
    for p in pairs {
        let Some(counts) = p.label.and_then(|l| out.get_mut(l as usize)) else { continue };
        counts[0] += 1;
        match p.way(true) {
            Some(Way::Lost) => counts[1] += 1,
            Some(Way::Gained) => counts[2] += 1,
            None => {}
        }
    }
    out
}

fn taken(pairs: &[Pair]) -> Vec<Taken> {
    let mut cells: BTreeMap<(u32, u16), [u32; 2]> = BTreeMap::new();
    for p in pairs {
        for (which, answer) in [p.before, p.after].iter().enumerate() {
            if let (Some(label), Some(class)) = (p.label, answer.class)
                && answer.score <= 0.5
            {
                cells.entry((label, class)).or_default()[which] += 1;
            }
        }
    }
    let mut all: Vec<Taken> =
        cells.into_iter().map(|((label, class), [before, now])| Taken { label, class, before, now }).collect();
    // What got better tells as much as what got worse.
    all.sort_by_key(|t| (std::cmp::Reverse(t.before.abs_diff(t.now)), std::cmp::Reverse(t.now), t.label, t.class));
    all.truncate(PAGE);
    all
}

fn leads(pairs: &[Pair]) -> Option<Leads> {
    let both: Vec<(f32, f32)> = pairs.iter().filter_map(|p| Some((p.before.lead?, p.after.lead?))).collect();
    let mut all: Vec<f32> = both.iter().flat_map(|(b, a)| [*b, *a]).collect();
    all.sort_by(f32::total_cmp);
    // A few of a broken network may lie anywhere: bins are where most are.
    let part = |q: f64| all.get(((all.len() - 1) as f64 * q).round() as usize).copied();
    let (low, high) =
        (!all.is_empty()).then(|| (part(0.005), part(0.995))).and_then(|(l, h)| Some((l?.min(0.0), h?.max(0.0))))?;
    if high <= low {
        return None;
    }
    let bin = |v: f32| (((v - low) / (high - low) * BINS as f32).max(0.0) as usize).min(BINS - 1);
    let mut out = Leads { low, high, before: vec![0; BINS], now: vec![0; BINS] };
    for (b, a) in both {
        out.before[bin(b)] += 1;
        out.now[bin(a)] += 1;
    }
    Some(out)
}

/// Image `i` as the network sees it, its scaling of values undone.
fn picture(data: &Dataset, prep: &Preprocess, i: usize) -> Option<Picture> {
    let (values, _) = data.batch([i], prep).ok()?;
    let (_, channels, h, w) = values.dims4().ok()?;
    let values = values.flatten_all().ok()?.to_vec1::<f32>().ok()?;
    let pixel = |x: u32, y: u32| {
        let of = |c: usize| {
            // Grey is the first of each.
            let c = c.min(channels - 1);
            let v = values[(c * h + y as usize) * w + x as usize] * prep.std[c] + prep.mean[c];
            (v * 255.0).round().clamp(0.0, 255.0) as u8
        };
        Rgb([of(0), of(1), of(2)])
    };
    let whole = ImageBuffer::from_fn(u32::try_from(w).ok()?, u32::try_from(h).ok()?, pixel);
    let longer = whole.width().max(whole.height());
    let small = match longer > SIDE {
        true => {
            let side = |s: u32| (s * SIDE / longer).max(1);
            resize(&whole, side(whole.width()), side(whole.height()), FilterType::Triangle)
        }
        false => whole,
    };
    Some(Picture { width: small.width() as u16, height: small.height() as u16, rgb: small.into_raw() })
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

    fn kept_answers(&self, state: &State, round: u32) -> Option<Answers> {
        // Ten bytes and four of an index an item, and the header.
        let most = 64 * 1024 + 16 * self.data.len() as u64;
        let bytes = private::read(&self.shelf.place.answers_file(round), most).ok();
        let kept = bytes.and_then(|bytes| Answers::from_bytes(&bytes, &self.answers_of(state, round)));
        // Of the original, sessions of older versions kept scores alone.
        let scores = || self.kept_scores().map(|scores| Answers::of(&Scored { scores, ..Scored::default() }, None));
        kept.or_else(|| (round == 0).then(scores).flatten())
    }

    /// What a round's model answers otherwise than the original, from what was kept when both were evaluated.
    ///
    /// # Errors
    /// No such round, or nothing was kept of it.
    pub(super) fn what_changed(&self, state: &State, asked: WhatChanged) -> Result<Changed, JobError> {
        let evaluated = state.round_at(asked.round).is_some_and(|r| r.evaluation.is_some());
        if asked.round == 0 || !evaluated {
            return Err(JobError::Failed(format!("round {} was not evaluated; hint: run first", asked.round)));
        }
        let kept = |round: u32| {
            self.kept_answers(state, round).ok_or_else(|| {
                let whose = if round == 0 { "the original".to_owned() } else { format!("round {round}") };
                let file = self.shelf.place.answers_file(round);
                let text = format!(
                    "what {whose} answered to each item is not known: `{}` is missing, damaged, or of another model or data; hint: sessions of older versions did not keep it, and running again does",
                    file.display()
                );
                JobError::Failed(text)
            })
        };
        let mut changed = compare(asked, &kept(0)?, &kept(asked.round)?, |i| self.data.label(i));
        let how = &self.shelf.recipe.how;
        // Once a page: a large vocabulary takes a second to read.
        let texts = !self.data.holds_images() && !changed.items.is_empty();
        let words = texts.then(|| tokenizer_of(how.tokenizer.as_ref().unwrap_or(&how.model)).ok().flatten()).flatten();
        for item in &mut changed.items {
            item.name = self.data.name(item.index);
            if self.data.holds_images() {
                item.picture = picture(&self.data, &self.model.info.preprocess, item.index);
            } else {
                item.text = words.as_ref().and_then(|words| self.text_of(item.index, words));
            }
        }
        Ok(changed)
    }

    /// The first words of item `i`, where it is text of that vocabulary.
    fn text_of(&self, i: usize, words: &Tokenizer) -> Option<String> {
        let (tokens, _) = self.data.batch([i], &self.model.info.preprocess).ok()?;
        let ids = tokens.flatten_all().ok()?.to_dtype(candle_core::DType::U32).ok()?.to_vec1::<u32>().ok()?;
        let text = words.decode(&ids[..ids.len().min(TEXT)]).ok()?;
        Some(text.chars().take(TEXT).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(given: &[(u32, f32, f32, u16)]) -> Answers {
        Answers {
            items: given.iter().map(|g| g.0).collect(),
            scores: given.iter().map(|g| g.1).collect(),
            margins: given.iter().map(|g| g.2).collect(),
            predictions: given.iter().map(|g| g.3).collect(),
        }
    }

    #[test]
    fn files_come_back_as_they_were_and_others_are_refused() {
        let kept = answers(&[(3, 1.0, 0.5, 2), (0, 0.0, f32::NAN, 65535)]);
        let bytes = kept.to_bytes("a on 4 items of b").unwrap();
        let read = Answers::from_bytes(&bytes, "a on 4 items of b").expect("sound");
        assert_eq!((read.items, read.predictions), (kept.items, kept.predictions));
        assert!(read.margins[1].is_nan() && read.scores == [1.0, 0.0]);
        assert!(Answers::from_bytes(&bytes, "a on 5 items of b").is_none());
        for cut in 0..bytes.len() {
            assert!(Answers::from_bytes(&bytes[..cut], "a on 4 items of b").is_none(), "{cut}");
        }
        let mut unlike = answers(&[(0, 1.0, 0.5, 2)]);
        unlike.scores.push(1.0);
        assert!(Answers::from_bytes(&unlike.to_bytes("x").unwrap(), "x").is_none());
    }

    #[test]
    fn the_worst_fall_comes_first_and_confusions_are_of_wrong_answers_alone() {
        // Item: label is its number modulo 2.
        let before =
            answers(&[(0, 1.0, 2.0, 0), (1, 1.0, 5.0, 1), (2, 0.0, -1.0, 1), (3, 1.0, 1.0, 1), (4, 0.0, -3.0, 1)]);
        // In another order, and without item 4.
        let after = answers(&[(3, 1.0, 0.1, 1), (1, 0.0, -4.0, 0), (2, 1.0, 0.5, 0), (0, 0.0, -0.5, 1)]);
        let label = |i: usize| Some(i as u32 % 2);
        let told = |way, from| compare(WhatChanged { round: 1, way, from }, &before, &after, label);
        let lost = told(Way::Lost, 0);
        assert_eq!((lost.seen, lost.lost, lost.gained), (4, 2, 1));
        assert_eq!(lost.items.iter().map(|i| i.index).collect::<Vec<_>>(), [1, 0]);
        assert_eq!((lost.items[0].before.lead, lost.items[0].after.lead), (Some(5.0), Some(-4.0)));
        assert_eq!(told(Way::Lost, 1).items.len(), 1);
        assert_eq!(told(Way::Gained, 0).items[0].index, 2);
        assert_eq!(lost.classes, [[2, 1, 1], [2, 1, 0]]);
        let cell = |label, class, before, now| Taken { label, class, before, now };
        assert_eq!(lost.taken, [cell(1, 0, 0, 1), cell(0, 1, 1, 1)]);
        let leads = lost.leads.expect("of a classifier");
        assert!(leads.low <= 0.0 && leads.high >= 0.0 && leads.now.iter().sum::<u32>() == 4, "{leads:?}");
    }

    #[test]
    fn scores_without_right_and_wrong_rise_and_fall() {
        let plain = |scores: &[f32]| Answers {
            items: (0..scores.len() as u32).collect(),
            scores: scores.to_vec(),
            ..Answers::default()
        };
        let told = compare(
            WhatChanged::default(),
            &plain(&[-3.0, -2.0, -2.5, f32::NAN]),
            &plain(&[-3.5, -2.0, -1.0, -1.0]),
            |_| None,
        );
        assert_eq!((told.lost, told.gained, told.items.len()), (1, 1, 1));
        assert!(told.classes.is_empty() && told.taken.is_empty() && told.leads.is_none());
    }
}
