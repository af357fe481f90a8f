//! What a round's model answers otherwise than the original, from what was kept of both: for people who look into an evaluation.
//!
//! Not here: how answers are kept (`answers`). Invariant: nothing here reaches planning.

use super::answers::Answers;
use super::{Compute, JobError, takes_text, tokenizer_of};
use crate::data::Dataset;
use crate::model::{Preprocess, Tokenizer};
use crate::session::{
    Answer, Calibration, Changed, Item, Leads, PAGE, Picture, Reliability, State, Taken, Way, WhatChanged,
};
use crate::task::Targets;
use image::imageops::{FilterType, resize};
use image::{ImageBuffer, Rgb};
use std::collections::{BTreeMap, HashMap};

/// Pixels of a picture's longer side at most.
const SIDE: u32 = 96;
/// Bins of a histogram of leads.
const BINS: usize = 24;
/// Characters that are told of a text.
const TEXT: usize = 600;

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
        calibration: classes.then(|| calibration(&pairs)),
        by_token: false,
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

/// Of both on the same items.
fn calibration(pairs: &[Pair]) -> Calibration {
    let of = |answer: fn(&Pair) -> Answer| {
        let sure = |a: Answer| Some((a.confidence?, a.score > 0.5));
        pairs.iter().map(|p| sure(answer(p))).collect::<Option<Vec<_>>>().map(|all| Reliability::of(all.into_iter()))
    };
    Calibration { before: of(|p| p.before), now: of(|p| p.after) }
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
        let mut changed = compare(asked, &kept(0)?, &kept(asked.round)?, |i| self.label(i));
        changed.by_token = takes_text(&self.model);
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

    /// The class of item `i`, where items have one.
    fn label(&self, i: usize) -> Option<u32> {
        if self.data.holds_images() {
            return self.data.label(i);
        }
        match self.data.batch([i], &self.model.info.preprocess).ok()?.1 {
            Targets::Classes(labels) => labels.first().copied(),
            Targets::Values(_) => None,
        }
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
    use super::super::answers::answers;
    use super::*;
    use crate::eval::robust;
    use candle_core::{Device, Tensor};

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
    fn how_sure_both_are_is_of_the_items_that_both_answered() {
        let sure = |items: &[(u32, f32, f64)]| Answers {
            confidence: items.iter().map(|i| i.2).collect(),
            ..answers(&items.iter().map(|i| (i.0, i.1, 0.0, 0)).collect::<Vec<_>>())
        };
        let before = sure(&[(0, 1.0, 0.9), (1, 0.0, 0.8), (2, 1.0, 0.7)]);
        let after = sure(&[(2, 1.0, 0.6), (0, 0.0, 0.99)]);
        let told = |b: &Answers, a: &Answers| compare(WhatChanged::default(), b, a, |_| Some(0)).calibration;
        let both = told(&before, &after).expect("of a classifier");
        let (before_, now) = (both.before.expect("kept"), both.now.expect("kept"));
        assert_eq!((before_.items(), now.items()), (2, 2));
        assert!((before_.error().expect("some") - (0.1 + 0.3) / 2.0).abs() < 1e-12);
        assert!((now.error().expect("some") - (0.99 + 0.4) / 2.0).abs() < 1e-12);
        // Of older versions nothing is guessed.
        let old = Answers { confidence: Vec::new(), ..before };
        let half = told(&old, &after).expect("of a classifier");
        assert!(half.before.is_none() && half.now.is_some());
    }

    #[test]
    fn the_calibration_error_is_the_one_that_robustness_is_told_by() {
        let rows: Vec<f32> = (0..200 * 4).map(|i| ((i * 2_654_435_761u64 % 1009) as f32 / 200.0) - 2.5).collect();
        let logits = Tensor::from_vec(rows, (200, 4), &Device::Cpu).expect("fits");
        let labels: Vec<u32> = (0..200).map(|i| i * 7 % 4).collect();
        let mut all = robust::Answers::new(4);
        all.add(&logits, &labels).expect("sound");
        let said = robust::Said::all(&logits, 0).expect("sound");
        let of = Reliability::of(said.iter().zip(&labels).map(|(s, l)| (s.confidence, s.class == *l)));
        let (mine, theirs) = (of.error().expect("some"), all.figure(robust::Figure::CalibrationError));
        assert!(mine > 0.05 && (mine - theirs).abs() < 1e-12, "{mine} {theirs}");
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
