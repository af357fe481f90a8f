//! Comparisons that stop when their verdict is clear: what was drawn is what the whole evaluation says of those items, in the order of the lot,
//! for images and for texts, which run by length; the command, its words, and what it refuses.

mod common;

use common::program::{Rig, fixture};
use paring::data::synthetic::{self, Split};
use paring::data::{ClassedOptions, Dataset, classed};
use paring::eval::{Early, EvalError, Scored, Until, drawn_until_clear, evaluate, until_clear};
use paring::exec::{Cancel, CompileOptions, Plan};
use paring::headless::setup::sparse;
use paring::host::compute::load_model;
use paring::model::{LoadOptions, Model, Tokenizer, load};
use paring::task::{ALPHA, Clear, Sequential};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use std::path::Path;

fn demo() -> Model {
    load_model("demo:cnn", &LoadOptions::default(), None, None).unwrap()
}

fn plan(model: &Model) -> Plan {
    Plan::of(model, &CompileOptions::default()).unwrap()
}

/// A comparison by `batch` items at a time, held against an evaluation of each model on the whole set.
fn held(original: &Model, model: &Model, data: &Dataset, batch: usize, allowed: f64) -> Early {
    let (of_base, of_new, prep) = (plan(original), plan(model), &original.info.preprocess);
    let until = Until { allowed, alpha: ALPHA, seed: 3 };
    let mut last = (0, 0);
    let mut progress = |done: usize, total: usize| {
        assert!(done >= last.0, "{done} after {last:?}");
        last = (done, total);
    };
    let cancel = Cancel::default();
    let early = until_clear((&of_base, &of_new), data, prep, batch, &until, &cancel, &mut progress).unwrap();
    assert_eq!(last, (early.test.seen(), data.len()));
    let whole = |plan: &Plan| evaluate(plan, data, prep, batch, &cancel, &mut |_, _| ()).unwrap();
    let (base, new) = (whole(&of_base), whole(&of_new));
    let mut lot: Vec<usize> = (0..data.len()).collect();
    lot.shuffle(&mut ChaCha8Rng::seed_from_u64(until.seed));
    let mut drawn = lot[..early.test.seen()].to_vec();
    let (right, kept) = (base.correct(), new.correct());
    let mut test = Sequential::new(data.len(), allowed, ALPHA);
    for &item in &drawn {
        test.push(right[item], kept[item]);
    }
    assert_eq!((&test, test.clear()), (&early.test, Some(early.verdict)));
    drawn.sort_unstable();
    for (found, whole) in [(&early.against.original, &base), (&early.against.model, &new)] {
        let of =
            |all: &Scored| -> Vec<(f32, u16)> { drawn.iter().map(|&i| (all.scores[i], all.predictions[i])).collect() };
        let got: Vec<(f32, u16)> = found.scores.iter().copied().zip(found.predictions.iter().copied()).collect();
        assert_eq!(got, of(whole));
        assert_eq!(found.metrics.n, drawn.len());
    }
    assert_eq!(early.against.divergence.items, drawn.len());
    early
}

#[test]
fn images_are_drawn_until_it_is_clear() {
    let data = synthetic::dataset(Split::Eval, 1200);
    let model = demo();
    // Nothing is lost: the less may be, the more has to be seen.
    let early = held(&model, &model, &data, 64, 5.0);
    assert_eq!((early.verdict, early.test.seen(), early.test.counted()), (Clear::Held, 256, false));
    let later = held(&model, &model, &data, 64, 1.0);
    assert!(later.verdict == Clear::Held && later.test.seen() > 256 && later.test.seen() < 1200, "{:?}", later.verdict);
    let ruined = held(&model, &sparse(model.clone(), "90%").unwrap(), &data, 64, 5.0);
    assert!(ruined.verdict == Clear::Missed && ruined.test.seen() < 1200);
    let (low, high) = ruined.test.range();
    assert!(low <= high && high < -5.0, "{low} {high}");
    // Of few images all are needed, and counted.
    let all = held(&model, &model, &synthetic::dataset(Split::Eval, 40), 64, 0.0);
    assert_eq!((all.verdict, all.test.seen(), all.test.counted()), (Clear::Held, 40, true));
    assert_eq!(all.test.range(), (0.0, 0.0));
}

#[test]
fn of_one_model_the_drawn_items_score_as_in_a_whole_pass() {
    let data = synthetic::dataset(Split::Eval, 1200);
    let model = demo();
    let prep = &model.info.preprocess;
    let cancel = Cancel::default();
    let whole = |plan: &Plan, data: &Dataset| evaluate(plan, data, prep, 64, &cancel, &mut |_, _| ()).unwrap();
    let right = whole(&plan(&model), &data).correct();
    for (percent, allowed, verdict) in [("90%", 5.0, Clear::Missed), ("1%", 8.0, Clear::Held)] {
        let cut = plan(&sparse(model.clone(), percent).unwrap());
        let until = Until { allowed, alpha: ALPHA, seed: 3 };
        let drawn = drawn_until_clear((&cut, &right), &data, prep, 64, &until, &cancel, &mut |_, _| ()).unwrap();
        assert_eq!(drawn.test.clear(), Some(verdict));
        let n = drawn.items.len();
        assert!((256..1200).contains(&n) && drawn.items.is_sorted(), "{n} items");
        let all = whole(&cut, &data);
        let of: Vec<(f32, u16)> = drawn.items.iter().map(|&i| (all.scores[i], all.predictions[i])).collect();
        let scored = &drawn.scored;
        assert_eq!(scored.scores.iter().copied().zip(scored.predictions.iter().copied()).collect::<Vec<_>>(), of);
        // In the order of the lot, whatever the batches.
        let mut lot: Vec<usize> = (0..data.len()).collect();
        lot.shuffle(&mut ChaCha8Rng::seed_from_u64(3));
        let mut test = Sequential::of_many(allowed, ALPHA);
        lot[..n].iter().for_each(|&i| {
            test.push(right[i], all.scores[i] > 0.5);
        });
        assert_eq!(test, drawn.test);
    }
    // Of few items nothing becomes clear about all such items, and all are run.
    let few = data.take(40);
    let right = whole(&plan(&model), &few).correct();
    let until = Until { allowed: 1.0, alpha: ALPHA, seed: 3 };
    let same = plan(&model);
    let drawn = drawn_until_clear((&same, &right), &few, prep, 64, &until, &cancel, &mut |_, _| ()).unwrap();
    assert_eq!((drawn.items.len(), drawn.test.clear()), (40, None));
}

#[test]
fn a_round_ends_when_it_is_clear_whether_it_keeps_its_floor() {
    let rig = Rig::new();
    let out = rig.path("out");
    let on = ["run", "demo:cnn", "--data", "synthetic:eval", "--calib", "synthetic:calib", "--device", "cpu"];
    let run = [&on[..], &["--limit", "1500", "--calib-limit", "200", "--batch", "2", "--out", &out]].concat();
    let early = ["--budget", "macs=0.95,drop=20", "--until-clear", "--json"];
    let told: serde_json::Value = serde_json::from_str(&rig.run(&[&run[..], &early].concat()).1).expect("a report");
    let (last, round) = (&told["final"], &told["rounds"][0]["verdict"]);
    let n = last["n"].as_u64().expect("a number");
    assert!((256..1500).contains(&n), "{last}");
    assert_eq!((last["part"]["of"].as_u64(), last["part"]["level"].as_f64()), (Some(1500), Some(0.995)));
    let drop = round["lines"].as_array().expect("lines").iter().find(|l| l["name"] == "drop").expect("a line");
    assert!(drop["outcome"] == "accept" && drop["range"][1].as_f64().expect("a range") <= 20.0, "{drop}");
    // As it is told to people.
    let (_, said, _) = rig.paring(&["log", &format!("{out}/session")]);
    assert!(said.contains(&format!("clear after {n} of 1500 at 99.5 %")), "{said}");
}

#[test]
fn texts_are_drawn_whatever_their_lengths() {
    let rig = Rig::new();
    let words = ["the", "film", "was", "good", "bad", "not", "at", "all", "unlikely", "bestest", "quick", "zoo", "?"];
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let lines: Vec<String> = (0..600)
        .map(|i| {
            let mut all = words;
            all.shuffle(&mut rng);
            let text = all[..1 + i * 7 % 11].join(" ");
            serde_json::json!({ "text": text, "label": i % 3 }).to_string()
        })
        .collect();
    let path = rig.path("texts.jsonl");
    std::fs::write(&path, lines.join("\n")).unwrap();
    let folder = fixture("encoders/bert");
    let tokenizer = Tokenizer::of(Path::new(&folder)).unwrap();
    let options = ClassedOptions { most: 24, limit: 0, names: &[] };
    let (data, _) = classed(&path, tokenizer.as_ref(), &options).unwrap();
    let open = |name: &str| load(Path::new(&fixture(name)), &LoadOptions::default()).unwrap();
    let early = held(&open("encoders/bert"), &open("encoders/distilbert"), &data, 8, 1.0);
    assert!(early.test.seen() > 256, "clear after {} of networks that know nothing", early.test.seen());
}

#[test]
fn what_is_cancelled_or_empty_has_no_verdict() {
    let (model, data) = (demo(), synthetic::dataset(Split::Eval, 10));
    let plan = plan(&model);
    let until = Until { allowed: 1.0, alpha: ALPHA, seed: 0 };
    let found = |data: &Dataset, cancel: &Cancel| {
        until_clear((&plan, &plan), data, &model.info.preprocess, 4, &until, cancel, &mut |_, _| ())
    };
    assert!(matches!(found(&data.take(0), &Cancel::default()), Err(EvalError::Empty { .. })));
    let cancel = Cancel::default();
    cancel.cancel();
    assert!(matches!(found(&data, &cancel), Err(EvalError::Cancelled(_))));
}

#[test]
fn the_command_says_what_is_clear_and_of_how_many() {
    let rig = Rig::new();
    let eval = ["eval", "demo:cnn", "--against", "demo:cnn", "--device", "cpu"];
    let told = rig.json(&[&eval[..], &["--limit", "1200", "--until-clear", "5"]].concat());
    let clear = &told["against"]["until_clear"];
    assert_eq!((clear["verdict"].as_str(), clear["level"].as_f64()), (Some("held"), Some(0.995)));
    assert_eq!((clear["stopped_after"].as_u64(), clear["of"].as_u64()), (Some(256), Some(1200)));
    assert_eq!((told["n"].as_u64(), told["against"]["n"].as_u64()), (Some(256), Some(256)));
    let of_all = &clear["top1_change_points_of_all"];
    assert!(of_all["low"].as_f64().unwrap() >= -5.0 && of_all["high"].as_f64().unwrap() > 0.0, "{clear}");
    // The same again.
    assert_eq!(rig.json(&[&eval[..], &["--limit", "1200", "--until-clear", "5"]].concat()), told);
    let few = [&eval[..], &["--limit", "40", "--precision", "w4"]].concat();
    let (whole, counted) = (rig.json(&few), rig.json(&[&few[..], &["--until-clear", "0"]].concat()));
    let clear = &counted["against"]["until_clear"];
    assert!(clear["stopped_after"] == 40 && clear["of"] == 40 && clear["level"].is_null(), "{clear}");
    for name in ["top1_change_points", "gained", "lost", "mcnemar_p", "prediction_agreement"] {
        assert_eq!(counted["against"][name], whole["against"][name], "{name}");
    }
    assert_eq!((&counted["correct"], &counted["per_class"]), (&whole["correct"], &whole["per_class"]));
    let (done, said) = rig.run(&[&eval[..], &["--limit", "1200", "--sparsity", "90%", "--until-clear", "5"]].concat());
    assert!(done && said.contains(" of 1200 images: it loses more than 5 points (99.5 %)"), "{said}");
    assert!(said.contains("of all    between -") && said.contains("part      the other figures are of "), "{said}");
}

#[test]
fn what_has_no_verdict_is_refused_in_words() {
    let rig = Rig::new();
    for (args, words, refused) in [
        (vec!["demo:lm", "--against", "demo:lm", "--until-clear", "1"], "--until-clear is for classifiers", 1),
        (vec!["demo:cnn", "--until-clear", "1"], "--against", 2),
        (vec!["demo:cnn", "--against", "demo:cnn", "--until-clear", "100"], "from 0 to below 100", 2),
    ] {
        let (code, out, err) = rig.paring(&[&["eval"][..], &args[..]].concat());
        assert_eq!((code, out.as_str()), (Some(refused), ""), "{args:?}: {err}");
        assert!(err.contains(words), "{args:?}: {err}");
    }
}
