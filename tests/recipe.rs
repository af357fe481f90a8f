//! The recipe is in the journal: without the file beside it a session rebuilds the same model byte for byte, notices data that
//! became other data, and says in its exports what was really done.

#[path = "common/manifest.rs"]
mod manifest;
#[path = "common/small.rs"]
mod small;

use paring::graph::Calibration;
use paring::host::client::{Client, Messages};
use paring::host::{Host, HostError, OpenSpec, lifecycle};
use paring::plan::{Action, DecisionId, Status, Target};
use paring::prune::Method;
use paring::quant::Precision;
use paring::session::{Command, Event, Feed, HostMsg, Journal, Opening, Phase, Place, Recipe, Record, State};
use paring::train::{Heal, Length, Objective};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A small random network: what matters here is which bytes come out.
fn model(dir: &Path) -> PathBuf {
    let path = dir.join("model.safetensors");
    small::model(&path, 3);
    path
}

/// `n` images of noise in CIFAR's binary format.
fn noise(path: &Path, n: usize, seed: u8) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1du64 ^ u64::from(seed);
    let mut bytes = Vec::with_capacity(n * 3073);
    for i in 0..n {
        bytes.push((i % 10) as u8);
        for _ in 0..3072 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            bytes.push((state >> 40) as u8);
        }
    }
    std::fs::write(path, &bytes).expect("written");
    bytes
}

struct Rig {
    _home: tempfile::TempDir,
    place: Place,
}

impl Rig {
    /// A session's folder, with nothing in it but how to open it.
    fn new(change: impl FnOnce(&Path, OpenSpec) -> OpenSpec) -> Rig {
        let home = tempfile::tempdir().expect("temp dir");
        let place = Place::at(&home.path().join("session"));
        std::fs::create_dir_all(&place.dir).expect("made");
        let spec = OpenSpec { limit: 48, calib_limit: 64, ..small::spec(&model(home.path())) };
        change(home.path(), spec).save(&place).expect("saved");
        Rig { _home: home, place }
    }

    fn start(&self) -> Result<Host, HostError> {
        lifecycle::start(&self.place, OpenSpec::load(&self.place))
    }

    fn refused(&self) -> String {
        let words = self.start().expect_err("refused").to_string();
        assert!(words.contains("hint:"), "{words}");
        words
    }

    fn records(&self) -> Vec<Record> {
        Journal::read(&self.place.dir).expect("readable")
    }

    fn state(&self) -> State {
        State::fold(&self.records())
    }

    fn recipe(&self) -> Recipe {
        *self.state().card.expect("opened").recipe.expect("in the journal")
    }
}

/// A client that folds what it hears.
struct Driver {
    host: Host,
    client: Client,
    messages: Messages,
    state: State,
    /// Steps of a healing whose layers were told, and of how many layers.
    pulses: Vec<(u32, usize)>,
}

impl Driver {
    async fn on(rig: &Rig) -> Driver {
        let host = rig.start().expect("starts");
        let (client, messages) = host.connect("test", false).await.expect("connects");
        let mut driver = Driver { host, client, messages, state: State::default(), pulses: Vec::new() };
        driver.until("open", |s| s.card.is_some()).await;
        driver
    }

    async fn until(&mut self, what: &str, wanted: impl Fn(&State) -> bool) {
        while !wanted(&self.state) {
            let message = tokio::time::timeout(Duration::from_secs(300), self.messages.recv()).await.expect(what);
            match message.expect("the host lives") {
                HostMsg::Welcome { state, .. } => self.state = *state,
                HostMsg::Event { record } => {
                    self.state.apply(&record);
                    if let Event::Failed { what, message } = record.event {
                        panic!("{what}: {message}");
                    }
                }
                HostMsg::Feed { feed: Feed::Pulse { step, layers } } => self.pulses.push((step, layers.len())),
                _ => {}
            }
        }
    }

    async fn ask(&mut self, command: Command) {
        // Comments on a verdict may still be coming.
        for _ in 0..600 {
            match self.client.command(command.clone()).await {
                Err(e) if e.to_string().contains("is running") => tokio::time::sleep(Duration::from_millis(50)).await,
                other => return other.unwrap_or_else(|e| panic!("{command:?}: {e}")),
            }
        }
        panic!("{command:?}: never free");
    }

    async fn decide(&mut self, target: Target, action: Action) {
        let n = self.state.decisions.len();
        self.ask(Command::Decide { target, action }).await;
        self.until("decided", |s| s.decisions.len() > n).await;
    }

    /// Runs what is decided; the artifact and the hash of its weights.
    async fn run(&mut self) -> (String, String) {
        let ids: Vec<DecisionId> = self.state.open().iter().map(|d| d.id).collect();
        self.ask(Command::Approve { ids }).await;
        self.ask(Command::Run).await;
        self.until("verdict", |s| s.phase == Phase::Verdict).await;
        let round = self.state.round_at(self.state.round).expect("ran");
        (round.artifact.clone().expect("made"), round.model_hash.clone().expect("made"))
    }

    /// Takes the round back and opens its decisions again.
    async fn take_back(&mut self) {
        self.ask(Command::RollBack { reason: "again".to_owned() }).await;
        self.until("rolled back", |s| s.phase == Phase::Review).await;
        // What was rolled back stays history; it comes back as proposals of its own.
        let back: Vec<DecisionId> =
            self.state.decisions.iter().filter(|d| d.status == Status::RolledBack).map(|d| d.id).collect();
        let n = back.len();
        self.ask(Command::Reopen { ids: back }).await;
        self.until("reopened", |s| s.open().len() == n).await;
    }

    async fn stop(self) {
        self.host.stop("enough").await;
        self.host.ended().await;
    }
}

fn ranked(importance: Method, spec: OpenSpec) -> OpenSpec {
    OpenSpec { how: Opening { importance, ..spec.how }, ..spec }
}

fn prune(ratio: f64) -> Action {
    Action::Prune { ratio, kept: Vec::new() }
}

/// Two cuts and a static int8 layer: everything that the recipe's choices bear on.
async fn decide(d: &mut Driver) {
    d.decide(Target::Group("layer1.0.conv1".to_owned()), prune(0.25)).await;
    d.decide(Target::Group("layer2.0.conv1".to_owned()), prune(0.5)).await;
    let precision = Action::Precision { precision: Precision::Int8Static };
    d.decide(Target::Layer("layer3.0.conv2".to_owned()), precision).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_file_beside_it_the_journal_rebuilds_the_same_bytes() {
    let unusual = |_: &Path, spec: OpenSpec| OpenSpec {
        how: Opening { importance: Method::Taylor, ..spec.how },
        seed: 11,
        mean: Some([0.31, 0.42, 0.53]),
        std: Some([0.21, 0.22, 0.23]),
        calibration: Calibration::Percentile(99.0),
        calib: Some("synthetic:train".to_owned()),
        ..spec
    };
    let usual = |_: &Path, spec: OpenSpec| spec;
    let mut artifacts = Vec::new();
    for rig in [Rig::new(unusual), Rig::new(usual)] {
        let mut d = Driver::on(&rig).await;
        decide(&mut d).await;
        let first = d.run().await;
        d.stop().await;

        std::fs::remove_file(rig.place.spec_file()).expect("was there");
        let mut d = Driver::on(&rig).await;
        d.take_back().await;
        assert_eq!(d.run().await, first, "run again");
        d.stop().await;

        // What was decided in the same way anew gets the same units: with the journal's recipe alone.
        let recipe = rig.recipe();
        let again = Rig::new(|_, _| OpenSpec { auto: false, ..OpenSpec::of_recipe(&recipe, None) });
        let mut d = Driver::on(&again).await;
        decide(&mut d).await;
        assert_eq!(d.run().await.1, first.1, "decided again");
        d.stop().await;
        artifacts.push(first.1);
    }
    assert_ne!(artifacts[0], artifacts[1], "importance, seed, preprocessing and calibration are not idle");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_is_accepted_before_importance_is_known_and_its_units_are_picked_before_it_is_applied() {
    let rig = Rig::new(|_, spec| ranked(Method::Hessian, spec));
    let mut d = Driver::on(&rig).await;
    let target = Target::Group("layer2.0.conv1".to_owned());
    d.decide(target.clone(), prune(0.3)).await;
    let Action::Prune { ratio, kept } = &d.state.current(&target).expect("decided").action else { panic!("a cut") };
    assert!(
        kept.is_empty() && (*ratio - 0.3125).abs() < 1e-9,
        "rounded to the group's step at once: {ratio}, {kept:?}"
    );
    d.run().await;
    let Action::Prune { kept, .. } = &d.state.current(&target).expect("decided").action else { panic!("a cut") };
    assert_eq!(kept.len(), 11, "of 16");
    // From now on it is known, and picked with the edit.
    let kept = kept.clone();
    d.take_back().await;
    let id = d.state.current(&target).expect("decided").id;
    d.ask(Command::Edit { id, action: prune(0.5) }).await;
    d.until(
        "edited",
        |s| matches!(&s.decision(id).expect("there").action, Action::Prune { ratio, .. } if *ratio == 0.5),
    )
    .await;
    let Action::Prune { kept: fewer, .. } = &d.state.decision(id).expect("there").action else { panic!("a cut") };
    assert!(fewer.len() == 8 && fewer.iter().all(|u| kept.contains(u)), "{fewer:?} of {kept:?}");
    d.stop().await;
    let records = rig.records();
    let at = |wanted: fn(&Event) -> bool| records.iter().position(|r| wanted(&r.event)).expect("in the journal");
    assert!(at(|e| matches!(e, Event::Resolved { .. })) < at(|e| matches!(e, Event::Applied { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_data_under_the_same_name_is_noticed_and_named() {
    let rig = Rig::new(|home, spec| {
        noise(&home.join("eval.bin"), 60, 1);
        noise(&home.join("calib.bin"), 64, 2);
        let path = |name: &str| home.join(name).display().to_string();
        OpenSpec { data: path("eval.bin"), calib: Some(path("calib.bin")), ..spec }
    });
    let home = rig.place.dir.parent().expect("home").to_owned();
    Driver::on(&rig).await.stop().await;
    let spoil = |name: &str, how: &dyn Fn(&mut Vec<u8>)| {
        let path = home.join(name);
        let whole = std::fs::read(&path).expect("there");
        let mut other = whole.clone();
        how(&mut other);
        std::fs::write(&path, &other).expect("written");
        let words = rig.refused();
        std::fs::write(&path, &whole).expect("put back");
        words
    };
    for (name, what) in [("eval.bin", "evaluation"), ("calib.bin", "calibration")] {
        // Labels shifted by one, which decodes and evaluates without a word.
        let words = spoil(name, &|b| b.chunks_exact_mut(3073).for_each(|r| r[0] = (r[0] + 1) % 10));
        assert!(words.contains(what) && words.contains(name) && words.contains("labels"), "{words}");
        let words = spoil(name, &|b| b[3073 * 5 + 100] ^= 1);
        assert!(words.contains(what) && words.contains(name) && words.contains("content"), "{words}");
        if name == "calib.bin" {
            let words = spoil(name, &|b| b.truncate(3073 * 63));
            assert!(words.contains("63 images, it had 64"), "{words}");
        }
    }
    // Images past the limit are not part of the session.
    let path = home.join("eval.bin");
    let mut longer = std::fs::read(&path).expect("there");
    longer[3073 * 59 + 7] ^= 1;
    std::fs::write(&path, &longer).expect("written");
    Driver::on(&rig).await.stop().await;
    // What is gone is named, with the file beside the journal and without it.
    std::fs::remove_file(home.join("calib.bin")).expect("was there");
    assert!(rig.refused().contains("calib.bin"));
    std::fs::remove_file(rig.place.spec_file()).expect("was there");
    assert!(rig.refused().contains("calib.bin"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_manifest_says_what_was_done() {
    let rig = Rig::new(|_, spec| OpenSpec { seed: 5, calibration: Calibration::MinMax, ..spec });
    let mut d = Driver::on(&rig).await;
    decide(&mut d).await;
    let (artifact, _) = d.run().await;
    let out = rig.place.dir.join("out.safetensors");
    d.ask(Command::Export { path: out.display().to_string(), format: String::new() }).await;
    d.until("exported", |s| !s.exports.is_empty()).await;
    let round = d.state.round_at(1).expect("ran").clone();
    d.stop().await;
    // Of the 64 calibration images a third is held back; a fifth of the others checks, the rest is fitted, all give ranges.
    let used = &round.used;
    let all = used.fitted + used.checked;
    assert!(all == 64 - 21 && used.checked == all / 5 && used.ranged == all && !used.checked_on_fitted, "{used:?}");
    assert!(used.hash.is_some());
    for path in [out, rig.place.artifacts().join(artifact)] {
        let recipe = manifest::manifest(&path).expect("a manifest").recipe;
        let repair = &recipe["repair"];
        assert_eq!(
            (repair["images"].as_u64(), repair["check_images"].as_u64()),
            (Some(used.fitted), Some(used.checked))
        );
        assert_eq!(
            (recipe["ranges"]["method"].as_str(), recipe["ranges"]["images"].as_u64()),
            (Some("minmax"), Some(all))
        );
        assert_eq!((recipe["seed"].as_u64(), recipe["importance"].as_str()), (Some(5), Some("l2")));
        let steps = repair["steps"].as_array().expect("steps");
        assert_eq!(steps.len(), round.repairs.len());
        for (told, done) in steps.iter().zip(&round.repairs) {
            assert_eq!((told["name"].as_str(), told["kept"].as_bool()), (Some(done.name.as_str()), Some(done.kept)));
            assert!(told["samples"].as_u64() == Some(done.samples) && done.samples >= used.fitted, "{told}");
        }
        let calib = &recipe["calibration"];
        assert_eq!(calib["used"].as_str(), used.hash.as_deref());
        assert!(calib["data"]["mark"]["content"].is_string(), "{calib}");
    }
}

fn heal(steps: u32) -> Option<Heal> {
    Some(Heal { length: Length::Steps(steps), objective: Objective::Distill })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_heals_what_it_made_and_one_that_was_left_makes_the_same() {
    let (usual, steps) = (|_: &Path, spec: OpenSpec| spec, 30);
    let rig = Rig::new(usual);
    let mut d = Driver::on(&rig).await;
    decide(&mut d).await;
    d.ask(Command::Heal { heal: heal(steps) }).await;
    let healed = d.run().await;
    let round = d.state.round_at(1).expect("ran").clone();
    let course = round.course.expect("healed");
    assert_eq!((course.healing.steps, course.healing.stopped, d.state.healing.is_none()), (steps, None, true));
    assert!(course.images + course.held_back == 64 && course.looks.len() > 10, "{course:?}");
    assert!(round.forecast.is_none(), "what training brings is not forecast");
    // What layers did came while it went on, and is kept as it was at the end, beside what their weights became.
    let weights = d.state.profile_of(1).map_or(0, |p| p.parameters.len());
    assert!(weights > 0 && d.pulses.iter().all(|(_, layers)| *layers == weights), "{weights} {:?}", d.pulses);
    assert!(d.pulses.first().is_some_and(|(step, _)| *step < steps), "{:?}", d.pulses);
    assert!(round.pulse.len() == weights && round.pulse.iter().all(|p| p.gradient > 0.0 && p.moved > 0.0));
    let told = manifest::manifest(&rig.place.artifacts().join(&healed.0)).expect("a manifest").recipe;
    assert_eq!(told["healing"]["healing"]["steps"], steps);
    // Without it the same plan is another model.
    d.take_back().await;
    d.ask(Command::Heal { heal: None }).await;
    let plain = d.run().await;
    assert_ne!(plain.1, healed.1);
    d.stop().await;

    // Ended early it keeps what it has, and goes on to the verdict.
    let rig = Rig::new(usual);
    let mut d = Driver::on(&rig).await;
    decide(&mut d).await;
    d.ask(Command::Heal { heal: heal(1_000_000) }).await;
    let ids: Vec<DecisionId> = d.state.open().iter().map(|d| d.id).collect();
    d.ask(Command::Approve { ids }).await;
    d.ask(Command::Run).await;
    d.until("healing", |s| s.healing.is_some()).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    d.ask(Command::Cancel).await;
    d.until("verdict", |s| s.phase == Phase::Verdict).await;
    let round = d.state.round_at(d.state.round).expect("ran");
    let stopped = round.course.as_ref().and_then(|c| c.healing.stopped);
    assert!(stopped.is_some_and(|n| n < 1_000_000), "{stopped:?}");
    d.stop().await;

    // Left in the middle, and started again by another host.
    let rig = Rig::new(usual);
    let mut d = Driver::on(&rig).await;
    decide(&mut d).await;
    d.ask(Command::Heal { heal: heal(steps) }).await;
    let ids: Vec<DecisionId> = d.state.open().iter().map(|d| d.id).collect();
    d.ask(Command::Approve { ids }).await;
    d.ask(Command::Run).await;
    d.until("healing", |s| s.healing.is_some()).await;
    d.stop().await;
    let mut d = Driver::on(&rig).await;
    d.until("back", |s| s.phase == Phase::Review || s.phase == Phase::Verdict).await;
    if d.state.phase == Phase::Review {
        d.ask(Command::Run).await;
        d.until("verdict", |s| s.phase == Phase::Verdict).await;
    }
    assert_eq!(d.state.round_at(1).and_then(|r| r.model_hash.clone()), Some(healed.1));
    d.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_journal_from_before_recipes_opens_and_gets_one() {
    let rig = Rig::new(|_, spec| OpenSpec { seed: 9, ..ranked(Method::L1, spec) });
    Driver::on(&rig).await.stop().await;
    let mut card = rig.state().card.expect("opened");
    card.recipe = None;
    let old = Place::at(&rig.place.dir.with_file_name("old"));
    let mut journal = Journal::open(&old.dir).expect("opens").journal;
    let opened = Event::Opened { card: Box::new(card), budget: Default::default() };
    journal.append(vec![opened], 0).expect("written");
    drop(journal);
    let rig = Rig { place: old, ..rig };
    OpenSpec::load(&Place::at(&rig.place.dir.with_file_name("session")))
        .expect("kept")
        .save(&rig.place)
        .expect("saved");
    Driver::on(&rig).await.stop().await;
    let recipe = rig.recipe();
    assert_eq!((recipe.seed(), recipe.how.importance), (9, Method::L1));
    let set = |r: &&Record| matches!(r.event, Event::RecipeSet { .. });
    assert_eq!(rig.records().iter().filter(set).count(), 1);
    Driver::on(&rig).await.stop().await;
    assert_eq!(rig.records().iter().filter(set).count(), 1, "written down once");
}
