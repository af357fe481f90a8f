//! A whole session's controller: made on calibration text, durable, at work on what is held back, switched, taken up again after a restart,
//! and written with its model for `serve`.

use paring::config::Policy;
use paring::control::{self, Asked, Figures};
use paring::host::client::{Client, Messages};
use paring::host::compute;
use paring::host::engine::Llm;
use paring::host::{Auto, Host, OpenSpec, Settings};
use paring::plan::Budget;
use paring::session::{Command, Event, Feed, HostMsg, Opening, Place, State};
use std::path::Path;
use std::time::Duration;

struct Session {
    host: Host,
    client: Client,
    messages: Messages,
    state: State,
}

/// A small model on text of ids; another seed, other ids.
fn spec(dir: &Path, calibration: u32) -> OpenSpec {
    let ids = |name: &str, count: u32, seed: u32| {
        let id = |i: u32| ((i + seed).wrapping_mul(2_654_435_761) >> 9) % 96;
        let bytes: Vec<u8> = (0..count).flat_map(|i| (id(i) as u16).to_le_bytes()).collect();
        let path = dir.join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let usual = OpenSpec::demo("vit");
    let model = crate::folder().join("llama.gguf").to_str().unwrap().to_owned();
    let how = Opening { model, window: Some(14), device: "cpu".into(), threads: 1, ..usual.how };
    let [data, calib] = [ids("eval.u16", 140, 1), ids("calib.u16", calibration, 7777)];
    let budget = Budget::default();
    OpenSpec { how, data, calib: Some(calib), limit: 0, calib_limit: 0, patience: 0.02, budget, ..usual }
}

impl Session {
    async fn open(dir: &Path, spec: OpenSpec) -> Session {
        let place = Place::at(&dir.join("session"));
        let auto = Auto { on_open: false, on_accept: false, rehearse: false };
        let settings =
            Settings { auto, llm: Llm::default(), budget: Budget::default(), rules: Policy::default(), ledger: None };
        let host = Host::start(&place, settings, |card| compute::open(&place, Some(spec), card)).expect("opens");
        let (client, messages) = host.connect("test", false).await.expect("connects");
        let mut s = Session { host, client, messages, state: State::default() };
        while s.state.card.is_none() {
            s.next().await;
        }
        s
    }

    async fn next(&mut self) -> Option<Feed> {
        let waited = tokio::time::timeout(Duration::from_secs(120), self.messages.recv()).await;
        match waited.expect("in time").expect("a living host") {
            HostMsg::Welcome { state, .. } => self.state = *state,
            HostMsg::Event { record } => {
                self.state.apply(&record);
                if let Event::Failed { what, message } = &record.event {
                    panic!("{what}: {message}");
                }
            }
            HostMsg::Feed { feed } => return Some(feed),
            _ => {}
        }
        None
    }

    async fn figures(&mut self, wanted: impl Fn(&Figures) -> bool) -> Figures {
        loop {
            if let Some(Feed::Levels(f)) = self.next().await
                && wanted(&f)
            {
                return *f;
            }
        }
    }

    async fn ok(&mut self, command: Command) {
        self.client.command(command).await.unwrap();
    }

    async fn idle(&mut self) {
        while !matches!(self.next().await, Some(Feed::JobEnd { .. })) {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_session_makes_shows_switches_and_writes_a_controller() {
    let dir = tempfile::tempdir().unwrap();
    let mut s = Session::open(dir.path(), spec(dir.path(), 700)).await;
    let on = || Command::Control { target: Some(0.9) };
    s.ok(on()).await;
    let f = s.figures(|f| f.windows >= 3).await;
    let made = s.state.control_of(0).cloned().expect("durable before it runs");
    let levels = made.levels.len();
    assert!((2..=4).contains(&levels) && made.levels[0].share == 1.0, "{made:?}");
    assert!(made.levels.windows(2).all(|l| l[1].bytes < l[0].bytes), "{made:?}");
    let file = dir.path().join("session/artifacts").join(&made.artifact);
    let hash = blake3::hash(&std::fs::read(&file).unwrap()).to_hex();
    assert_eq!(made.artifact, format!("{hash}.json"));

    // Every level beside it on the same tokens; the whole network is itself.
    assert_eq!((f.asked, f.levels.len(), f.shares.len()), (Asked::Auto, levels, levels));
    assert!((f.shares.iter().sum::<f64>() - 1.0).abs() < 1e-9 && f.is_sound(), "{f:?}");
    assert!(f.levels[0].divergence == 0.0 && f.levels[levels - 1].divergence > 0.0, "{f:?}");
    assert!((f.levels[0].time - 1.0).abs() < 1e-9 && f.own.p95 >= f.own.p50 && f.own.rate > 0.0, "{f:?}");
    assert!(!f.recent.is_empty() && f.recent.iter().all(|l| usize::from(*l) < levels));

    // Pinned it does what that level does; figures begin anew.
    let last = levels - 1;
    s.ok(Command::Level { asked: Asked::Pinned(last) }).await;
    let pinned = s.figures(|f| f.asked == Asked::Pinned(last) && f.windows >= 2).await;
    assert_eq!(pinned.shares[last], 1.0);
    // On tokens after a switch alone; what went before was of other levels.
    s.ok(Command::Level { asked: Asked::Auto }).await;
    s.figures(|f| f.asked == Asked::Auto).await;
    s.ok(Command::Control { target: None }).await;
    s.idle().await;

    // The original with its levels is one file.
    let out = dir.path().join("levels.safetensors");
    s.ok(Command::Export { path: out.to_str().unwrap().into(), format: String::new() }).await;
    s.idle().await;
    assert_eq!(s.state.exports.len(), 1);
    let model = crate::load(&out, &crate::LoadOptions::default()).unwrap();
    let written = control::read(&model).unwrap().expect("it has a controller");
    assert_eq!((written.ladder.levels.len(), written.origin.target), (levels, 0.9));

    // After a restart it is known, and taken up as it was.
    s.host.stop("the test").await;
    s.host.ended().await;
    let mut s = Session::open(dir.path(), spec(dir.path(), 700)).await;
    assert_eq!(s.state.control_of(0), Some(&made));
    let seq = s.state.seq;
    s.ok(on()).await;
    s.figures(|f| f.tokens > 0).await;
    assert!(!s.state.timeline.iter().any(|t| t.seq > seq && t.text.contains("controller")));
    s.host.stop("the test").await;
    s.host.ended().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn it_is_refused_where_there_is_nothing_to_learn_from() {
    let dir = tempfile::tempdir().unwrap();
    let s = Session::open(dir.path(), spec(dir.path(), 140)).await;
    let words = s.client.command(Command::Control { target: Some(0.8) }).await.unwrap_err().to_string();
    assert!(words.contains("calibration windows and") && words.contains("13 and 1 are needed; hint: "), "{words}");
    s.host.stop("the test").await;
    s.host.ended().await;
}
