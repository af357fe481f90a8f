//! The original's file under the engine: cut, rewritten, replaced and gone. A small network that is mapped as a large one
//! would be, and as it is: copied.

use super::*;
use crate::data;
use crate::host::engine::Stop;
use crate::model::families::CifarResnetSpec;
use crate::model::{self, LoadOptions};
use crate::model::{FamilySpec, ParamStore, export, random};
use crate::plan::testing::int8;
use crate::plan::{Author, Decision, DecisionId};
use crate::session::{Event, Record, Way, WhatChanged, WhatTokens};
use std::os::unix::fs::FileExt;
use std::path::Path;

struct Rig {
    dir: tempfile::TempDir,
    engine: Arc<dyn Engine>,
    state: State,
    job: Job,
}

fn weights(seed: u64) -> Model {
    let classes = data::synthetic::CLASSES.len();
    let spec = CifarResnetSpec { blocks: 1, widths: [8, 8, 8], classes, image: 32 };
    random(&FamilySpec::CifarResnet(spec), seed)
}

impl Rig {
    /// A session with one approved decision and its run asked for.
    fn new(mapped: bool) -> Rig {
        let dir = tempfile::tempdir().expect("temp dir");
        let path = dir.path().join("model.safetensors");
        export::safetensors(&path, &weights(1), &export::Manifest::default()).expect("written");
        let usual = OpenSpec { limit: 16, calib_limit: 16, ..OpenSpec::demo("cnn") };
        let how = Opening { model: path.display().to_string(), batch: 8, threads: 1, ..usual.how };
        let spec = OpenSpec { how, ..usual };
        crate::model::map_all(mapped);
        let engine = open(&Place::at(&dir.path().join("session")), Some(spec), None);
        crate::model::map_all(false);
        let engine = engine.expect("opens");
        let (target, action) = int8("layer1.0.conv1");
        let ids = vec![DecisionId(0)];
        let events = [
            Event::Opened { card: Box::new(engine.card()), budget: Default::default() },
            Event::Proposed { decisions: vec![Decision::new(target, action, Author::Human)] },
            Event::Approved { ids: ids.clone() },
            Event::RunStarted { round: 1, ids: ids.clone(), recipe: Some(ids), forecast: None },
        ];
        let state = State::fold(&records(1, events));
        Rig { dir, engine, state, job: unheard() }
    }

    fn work(&self) -> &dyn Work {
        self.engine.work().expect("opened whole")
    }

    fn model(&self) -> std::path::PathBuf {
        self.dir.path().join("model.safetensors")
    }

    fn file(&self) -> std::fs::File {
        std::fs::File::options().write(true).open(self.model()).expect("opens")
    }

    /// Another network's weights into the same file, which stays as long as it was.
    fn rewrite(&self) {
        let other = self.dir.path().join("other.safetensors");
        export::safetensors(&other, &weights(2), &export::Manifest::default()).expect("written");
        let bytes = std::fs::read(&other).expect("read");
        assert_eq!(bytes.len() as u64, std::fs::metadata(self.model()).expect("there").len());
        std::thread::sleep(std::time::Duration::from_millis(20));
        self.file().write_all_at(&bytes, 0).expect("rewritten in place");
    }

    fn refused<T: std::fmt::Debug>(&self, result: Result<T, JobError>) {
        let words = result.expect_err("other weights").to_string();
        assert!(words.contains("model.safetensors") && words.contains("hint:"), "{words}");
    }

    /// The run's model is in the journal now.
    fn applied(&mut self, made: &Built) {
        let event = Event::Applied {
            round: 1,
            ids: vec![DecisionId(0)],
            artifact: made.artifact.clone(),
            model_hash: made.model_hash.clone(),
            used: made.used.clone(),
        };
        records(self.state.seq + 1, [event]).iter().for_each(|r| self.state.apply(r));
    }
}

/// Nobody listens: what a job says goes nowhere, what it makes durable is answered here.
fn unheard() -> Job {
    let (inputs, mut heard) = tokio::sync::mpsc::channel(64);
    std::thread::spawn(move || {
        while let Some(input) = heard.blocking_recv() {
            if let crate::host::input::Input::Commit { reply, .. } = input {
                drop(reply.send(Ok(())));
            }
        }
    });
    Job::new(Stop::default(), Arc::default(), inputs)
}

fn records(from: u64, events: impl IntoIterator<Item = Event>) -> Vec<Record> {
    events.into_iter().zip(from..).map(|(event, seq)| Record { seq, at_ms: 0, event }).collect()
}

#[test]
fn a_profile_tells_the_weights_of_the_original_and_looks_at_them_once() {
    let mut r = Rig::new(false);
    let first = r.work().profile(&r.state, 0, &r.job).expect("profiled");
    let weights = r
        .state
        .card
        .as_ref()
        .expect("opened")
        .graph
        .live()
        .filter(|(_, n)| n.param(crate::graph::ParamRole::Weight).is_some());
    assert_eq!(first.parameters.len(), weights.count());
    assert!(first.parameters.iter().all(|p| p.l2 > 0.0), "{:?}", first.parameters);
    // What is known of a round's model is taken over: it never changes.
    let mut known = first.clone();
    known.parameters[0].l2 = 77.0;
    let event = Event::Profiled { round: 0, profile: Box::new(known) };
    records(r.state.seq + 1, [event]).iter().for_each(|e| r.state.apply(e));
    let second = r.work().profile(&r.state, 0, &r.job).expect("profiled");
    assert_eq!(second.parameters[0].l2, 77.0);
}

#[test]
fn other_weights_in_a_mapped_file_are_not_compressed_and_what_was_made_is_still_exported() {
    let mut r = Rig::new(true);
    let made = r.work().compress(&r.state, 1, &r.job).expect("compressed");
    r.applied(&made);
    // To touch it, or to write what it holds already, changes nothing.
    let bytes = std::fs::read(r.model()).expect("read");
    std::thread::sleep(std::time::Duration::from_millis(20));
    r.file().write_all_at(&bytes, 0).expect("the same bytes");
    r.work().compress(&r.state, 1, &r.job).expect("the same weights");

    r.rewrite();
    r.refused(r.work().compress(&r.state, 1, &r.job));
    r.refused(r.work().baseline(&r.state, &r.job));
    r.refused(r.work().sense(&r.state, &r.job));
    r.refused(r.work().profile(&r.state, 0, &r.job));
    let out = r.dir.path().join("out.safetensors");
    let export = |engine: &dyn Engine, out: &Path| {
        std::fs::remove_file(out).ok();
        let done = engine.export(&r.state, 1, &out.display().to_string(), "safetensors", &r.job).expect("exported");
        let model = model::load(out, &LoadOptions::default()).expect("opens");
        let kept = r.dir.path().join("session/artifacts").join(&made.artifact);
        assert_eq!(model.info.hash, model::load(&kept, &LoadOptions::default()).expect("opens").info.hash);
        done.hash
    };
    let hash = export(&*r.engine, &out);

    // With the file gone altogether, from the session's folder alone; and it is the very same file.
    std::fs::remove_file(r.model()).expect("removed");
    let place = Place::at(&r.dir.path().join("session"));
    assert!(open(&place, None, r.state.card.as_ref()).is_err_and(|e| e.contains("model.safetensors")));
    let alone = archive(&place, r.state.card.as_ref()).expect("needs no original");
    assert_eq!(export(&*alone, &out), hash);
    assert!(alone.work().is_err_and(|e| e.to_string().contains("hint:")));
}

#[test]
fn a_mapped_file_that_is_cut_under_the_work_is_an_error_and_no_signal() {
    let r = Rig::new(true);
    r.file().set_len(600).expect("cut");
    r.refused(r.work().compress(&r.state, 1, &r.job));
    r.refused(r.work().baseline(&r.state, &r.job));
    // Where it is cut between the look before and the use.
    let whole = Rig::new(true);
    let file = whole.file();
    crate::model::map_all(true);
    let model = model::load(&whole.model(), &LoadOptions::default()).expect("opens");
    crate::model::map_all(false);
    model.params.confirm(&model.info.hash).expect("as it was");
    file.set_len(600).expect("cut");
    let read: f32 = model.params.iter().map(|(_, p)| p.values().iter().sum::<f32>()).sum();
    assert!(read.is_finite());
    let words = model.params.unchanged().expect_err("cut").to_string();
    assert!(words.contains("model.safetensors"), "{words}");
}

#[test]
fn a_small_file_is_copied_and_the_session_goes_on_with_what_was_measured() {
    let r = Rig::new(false);
    let before = r.work().compress(&r.state, 1, &r.job).expect("compressed");
    r.rewrite();
    let after = r.work().compress(&r.state, 1, &r.job).expect("from the copy");
    assert_eq!((before.artifact, before.model_hash), (after.artifact, after.model_hash));
    // Only a new start needs the file, and says so.
    let place = Place::at(&r.dir.path().join("session"));
    let words = open(&place, None, r.state.card.as_ref()).err().expect("another model");
    assert!(words.contains("changed since the session opened") && words.contains("hint:"), "{words}");
}

#[test]
fn copies_know_that_their_file_is_another() {
    let r = Rig::new(false);
    let model = model::load(&r.model(), &LoadOptions::default()).expect("opens");
    assert_eq!(model.params.outdated(), None);
    r.rewrite();
    assert_eq!(model.params.outdated(), Some(r.model().as_path()));
    assert!(model.params.confirm(&model.info.hash).is_ok());
    assert_eq!(ParamStore::default().outdated(), None);
}

/// What was asked for holds for all work, also when the session is opened again; what was chosen by model holds for latencies.
#[test]
fn a_batch_that_was_given_is_told_from_one_that_was_chosen() {
    for (asked, batch) in [(8, 8), (0, 64)] {
        let dir = tempfile::tempdir().expect("temp dir");
        let usual = OpenSpec { limit: 16, calib_limit: 16, ..OpenSpec::demo("cnn") };
        let how = Opening { batch: asked, threads: 1, ..usual.how };
        let place = Place::at(&dir.path().join("session"));
        let card = open(&place, Some(OpenSpec { how, ..usual }), None).expect("opens").card();
        let again = open(&place, None, Some(&card)).expect("opens again").card();
        for card in [&card, &again] {
            let recipe = card.recipe.as_ref().expect("kept");
            assert_eq!((recipe.how.batch, recipe.most_at_once), (batch, asked));
        }
    }
}

#[test]
fn what_a_round_answers_otherwise_is_told_item_by_item() {
    let mut r = Rig::new(false);
    let push = |r: &mut Rig, event: Event| {
        records(r.state.seq + 1, [event]).iter().for_each(|record| r.state.apply(record));
    };
    let ask = |r: &Rig, what: WhatChanged| r.work().changed(&r.state, what);
    let baseline = r.work().baseline(&r.state, &r.job).expect("evaluated");
    push(&mut r, Event::Evaluated { evaluation: Box::new(baseline.clone()) });
    let too_early = ask(&r, WhatChanged { round: 1, ..WhatChanged::default() }).expect_err("nothing made").to_string();
    assert!(too_early.contains("round 1") && too_early.contains("hint:"), "{too_early}");
    let made = r.work().compress(&r.state, 1, &r.job).expect("compressed");
    r.applied(&made);
    let (evaluation, verdict) = r.work().evaluate(&r.state, 1, &made.artifact, false, &r.job).expect("evaluated");
    push(&mut r, Event::Evaluated { evaluation: Box::new(evaluation.clone()) });

    let lost = ask(&r, WhatChanged { round: 1, ..WhatChanged::default() }).expect("told");
    let gained = ask(&r, WhatChanged { round: 1, way: Way::Gained, from: 0 }).expect("told");
    assert_eq!((lost.seen, lost.items.len(), gained.items.len()), (16, lost.lost, lost.gained));
    // The same arithmetic as the verdict's, by another way.
    let change = 100.0 * (lost.gained as f64 - lost.lost as f64) / 16.0;
    assert!((change - verdict.d_quality).abs() < 1e-9, "{change} {verdict:?}");
    let by_class: u32 =
        lost.classes.iter().map(|[_, lost, gained]| gained.wrapping_sub(*lost)).fold(0, u32::wrapping_add);
    assert_eq!(by_class as i32, lost.gained as i32 - lost.lost as i32);
    for (class, [n, ..]) in lost.classes.iter().enumerate() {
        assert_eq!(*n as usize, baseline.metrics.per_class()[class].1);
    }
    let wrong: u32 = lost.taken.iter().map(|t| t.now).sum();
    assert_eq!(wrong as usize, 16 - evaluation.metrics.classes.as_ref().expect("classes").correct);
    let leads = lost.leads.expect("of a classifier");
    // How sure they are is of all items, and of the same answers as accuracy.
    let sure = lost.calibration.expect("of a classifier");
    for (of, e) in [(sure.before, &baseline), (sure.now, &evaluation)] {
        let whole = of.expect("kept").whole();
        let right = e.metrics.classes.as_ref().expect("classes").correct;
        assert_eq!((whole.items, whole.right as usize), (16, right));
        assert!(whole.sure().is_some_and(|c| c > 0.1 && c <= 1.0), "{whole:?}");
    }
    assert_eq!((leads.before.iter().sum::<u32>(), leads.now.iter().sum::<u32>()), (16, 16));
    for item in lost.items.iter().chain(&gained.items) {
        assert!((item.before.score > 0.5) != (item.after.score > 0.5), "{item:?}");
        let picture = item.picture.as_ref().expect("an image");
        assert_eq!(picture.rgb.len(), usize::from(picture.width) * usize::from(picture.height) * 3);
    }
    // Of another model under the same number, of a damaged file, and of one that is gone nothing is told.
    let file = r.dir.path().join("session/answers/round-1.safetensors");
    let kept = std::fs::read(&file).expect("kept");
    std::fs::write(&file, &kept[..kept.len() - 3]).expect("cut");
    assert!(ask(&r, lost.asked).is_err());
    std::fs::write(&file, &kept).expect("put back");
    assert!(ask(&r, lost.asked).is_ok());
    push(
        &mut r,
        Event::Applied {
            round: 1,
            ids: vec![DecisionId(0)],
            artifact: "another".into(),
            model_hash: made.model_hash.clone(),
            used: made.used.clone(),
        },
    );
    let other = ask(&r, lost.asked).expect_err("of another model").to_string();
    assert!(other.contains("round 1") && other.contains("of another model"), "{other}");
}

#[test]
fn what_flows_into_a_layer_and_what_precisions_make_of_its_output_is_run() {
    let rig = Rig::new(false);
    let found = rig.work().activations("layer1.0.conv1").expect("a convolution");
    // What flows in came out of a ReLU.
    assert!(found.items > 0 && found.items <= 16, "{found:?}");
    assert_eq!(found.values, found.items * 8 * 32 * 32);
    assert!(found.lo == 0.0 && found.hi > 0.0 && found.zeros > 0.05 && found.zeros < 0.95, "{found:?}");
    assert_eq!(found.bars.iter().sum::<u64>(), found.values);
    let off = |p: Precision| found.off.iter().find(|(q, _)| *q == p).map(|(_, off)| *off).expect("fits");
    assert_eq!(off(Precision::F32), 0.0);
    assert!(off(Precision::F16) > 0.0 && off(Precision::F16) < off(Precision::Int8));
    assert!(off(Precision::Int8) < 0.05 && off(Precision::Int8) < off(Precision::W4), "{found:?}");
    // Rounded inputs add to what rounded weights do; by root of squares they are about as large.
    assert!(off(Precision::W8) < off(Precision::Int8), "{found:?}");
    assert!(off(Precision::Int8Static) >= off(Precision::W8), "{found:?}");
    // The image itself flows into the first layer.
    let first = rig.work().activations("conv1").expect("the first convolution");
    assert_eq!(first.values, first.items * 3 * 32 * 32);
    let e = rig.work().activations("bn1").unwrap_err().to_string();
    assert!(e.contains("takes no precision"), "{e}");
    let e = rig.work().activations("nothing").unwrap_err().to_string();
    assert!(e.contains("`nothing` is no layer"), "{e}");
}

#[test]
fn what_two_language_models_make_of_a_token_adds_up_to_what_they_score() {
    let dir = tempfile::tempdir().expect("temp dir");
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/language/llama.gguf");
    let ids = |name: &str, count: u32, seed: u32| {
        let id = |i: u32| ((i + seed).wrapping_mul(2_654_435_761) >> 9) % 96;
        let bytes: Vec<u8> = (0..count).flat_map(|i| (id(i) as u16).to_le_bytes()).collect();
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).expect("written");
        path.display().to_string()
    };
    let (data, calib) = (ids("eval.u16", 100, 1), Some(ids("calib.u16", 200, 7777)));
    let usual = OpenSpec::demo("cnn");
    let how = Opening { model: fixture.display().to_string(), batch: 1, threads: 1, window: Some(14), ..usual.how };
    let spec = OpenSpec { how, data, calib, budget: Default::default(), ..usual };
    let engine = open(&Place::at(&dir.path().join("session")), Some(spec), None).expect("opens");
    let (target, action) = int8("blk.0.ffn_down");
    let ids = vec![DecisionId(0)];
    let events = [
        Event::Opened { card: Box::new(engine.card()), budget: Default::default() },
        Event::Proposed { decisions: vec![Decision::new(target, action, Author::Human)] },
        Event::Approved { ids: ids.clone() },
        Event::RunStarted { round: 1, ids: ids.clone(), recipe: Some(ids.clone()), forecast: None },
    ];
    let mut state = State::fold(&records(1, events));
    let job = unheard();
    let work = engine.work().expect("opened whole");
    let push = |state: &mut State, event: Event| records(state.seq + 1, [event]).iter().for_each(|r| state.apply(r));
    let baseline = work.baseline(&state, &job).expect("evaluated");
    push(&mut state, Event::Evaluated { evaluation: Box::new(baseline) });
    let asked = |item| WhatTokens { round: 1, item };
    assert!(work.tokens(&state, asked(0)).expect_err("nothing made").to_string().contains("round 1"));
    let made = work.compress(&state, 1, &job).expect("compressed");
    let (artifact, model_hash, used) = (made.artifact.clone(), made.model_hash.clone(), made.used.clone());
    push(&mut state, Event::Applied { round: 1, ids, artifact, model_hash, used });
    let (evaluation, _) = work.evaluate(&state, 1, &made.artifact, false, &job).expect("evaluated");
    push(&mut state, Event::Evaluated { evaluation: Box::new(evaluation) });

    let (lost, gained) = (Way::Lost, Way::Gained);
    let page = |way| work.changed(&state, WhatChanged { round: 1, way, from: 0 }).expect("told");
    let pages = [page(lost), page(gained)];
    assert!(pages[0].by_token && pages[0].calibration.is_none());
    let mut seen = 0;
    for item in pages.iter().flat_map(|p| &p.items) {
        let told = work.tokens(&state, asked(item.index)).expect("told");
        let (before, after) = told.means().expect("some");
        // A score is one f32; the evaluation ran several windows at once.
        for (mean, score) in [(before, item.before.score), (after, item.after.score)] {
            assert!((mean + f64::from(score)).abs() < 1e-5, "{mean} {score}");
        }
        assert_eq!(told.tokens.len(), 13);
        for t in &told.tokens {
            for g in [&t.before, &t.after] {
                // Nothing is likelier than the likeliest.
                assert!((-g.nats).exp() <= g.chance + 1e-9 && g.chance <= 1.0, "{g:?}");
                assert!((g.top == t.id) == ((-g.nats).exp() > g.chance - 1e-9), "{t:?}");
            }
        }
        seen += 1;
    }
    assert!(seen > 3, "{seen}");
    let past = work.tokens(&state, asked(1000)).expect_err("no such item").to_string();
    assert!(past.contains("item 1000") && past.contains("hint:"), "{past}");
}
