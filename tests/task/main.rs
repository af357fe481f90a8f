//! A task that the program does not know: rows of numbers, regressed on two others, through a session from its opening to a
//! verdict, a restart and an export. What it brings is all here; no room of the program was told of it.

mod regress;

use paring::config::Policy;
use paring::host::client::{Client, Messages};
use paring::host::compute::open_subject;
use paring::host::engine::Llm;
use paring::host::{Auto, Host, OpenSpec, Settings};
use paring::plan::{Basis, Budget, Outcome};
use paring::session::{Command, Event, HostMsg, Phase, Place, Proposer, State, describe};
use paring::tui::{App, draw_on};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use std::path::Path;
use std::time::{Duration, Instant};

/// A client that folds what it hears.
struct Session {
    host: Host,
    client: Client,
    messages: Messages,
    state: State,
    said: Vec<String>,
}

const PATIENCE: Duration = Duration::from_secs(240);

impl Session {
    async fn open(dir: &Path) -> Session {
        let place = Place::at(dir);
        let spec = OpenSpec { patience: 0.05, ..regress::spec() };
        let settings = Settings {
            auto: Auto { on_open: true, on_accept: false, rehearse: false },
            llm: Llm::default(),
            budget: Budget { macs: Some(0.7), drop: Some(0.02), ..Budget::default() },
            rules: Policy::default(),
            ledger: None,
        };
        let host =
            Host::start(&place, settings, |card| open_subject(&place, Some(spec), card, |_| Ok(regress::subject())));
        let host = host.expect("opens");
        let (client, messages) = host.connect("test", false).await.expect("connects");
        let mut s = Session { host, client, messages, state: State::default(), said: Vec::new() };
        s.until(|s| s.card.is_some()).await;
        s
    }

    async fn until(&mut self, wanted: impl Fn(&State) -> bool) {
        let began = Instant::now();
        while !wanted(&self.state) {
            assert!(began.elapsed() < PATIENCE, "waited in vain; said: {:#?}", self.said);
            let Ok(Some(message)) = tokio::time::timeout(PATIENCE, self.messages.recv()).await else {
                panic!("the host is silent; said: {:#?}", self.said)
            };
            self.take(message);
        }
    }

    fn take(&mut self, message: HostMsg) {
        match message {
            HostMsg::Welcome { state, .. } => self.state = *state,
            HostMsg::Event { record } => {
                self.said.extend(describe(&self.state, &record.event));
                self.state.apply(&record);
                if let Event::Failed { what, message } = &record.event {
                    panic!("{what}: {message}");
                }
            }
            _ => {}
        }
    }

    /// Sends a command, again while the end of a job that is done stands in its way.
    async fn act(&mut self, command: Command) {
        let began = Instant::now();
        while let Err(e) = self.client.command(command.clone()).await {
            assert!(e.to_string().contains("is running") && began.elapsed() < PATIENCE, "{command:?}: {e}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        while let Some(message) = self.messages.try_recv() {
            self.take(message);
        }
    }

    async fn close(self) -> State {
        self.host.stop("the test").await;
        self.host.ended().await;
        self.state
    }
}

/// Every view of the session as text.
fn screens(state: &State) -> String {
    let area = Rect::new(0, 0, 120, 40);
    let mut app = App::new(paring::config::Settings::default(), (area.width, area.height));
    app.host(HostMsg::Welcome {
        protocol: paring::session::PROTOCOL,
        state: Box::new(state.clone()),
        you: 1,
        pen: Some(1),
    });
    let mut out = String::new();
    for view in ["1", "2", "4", "5"] {
        let key = crossterm::event::KeyCode::Char(view.chars().next().expect("a digit"));
        app.input(paring::tui::UserInput::Key(crossterm::event::KeyEvent::from(key)));
        app.settle();
        let mut buf = Buffer::empty(area);
        draw_on(&app, area, &mut buf);
        for y in 0..area.height {
            out.extend((0..area.width).map(|x| buf[(x, y)].symbol()));
            out.push('\n');
        }
    }
    out
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_task_of_another_kind_goes_from_opening_to_verdict() {
    let dir = tempfile::tempdir().expect("temp dir");
    let mut s = Session::open(dir.path()).await;
    let metric = s.state.metric();
    assert_eq!((metric.name.as_str(), metric.value(-0.25)), ("mse", 0.25));

    // Profiled, evaluated, scanned, plans tried, proposed: the original errs by its noise alone.
    s.until(|s| s.phase == Phase::Review && !s.open().is_empty()).await;
    let base = s.state.baseline().expect("evaluated").clone();
    assert_eq!((base.metrics.n, base.metrics.correct(), base.metrics.per_class().len()), (600, None, 0));
    let mse = metric.value(base.metrics.score);
    assert!((0.008..0.012).contains(&mse), "the noise has a variance of 0.01: {mse}");
    assert!((base.metrics.loss - mse).abs() < 1e-6);
    assert!(s.state.profile_of(0).is_some_and(|p| p.rows.iter().any(|r| r.name == "fc2")));
    let trials = &s.state.trials;
    assert!(trials.list.iter().filter(|t| t.anchor).count() > 2, "plans to learn from were tried");
    assert!(trials.correction.as_ref().is_some_and(|c| c.held_error.is_none()), "{:?}", trials.correction);

    // What idle units cost is forecast small, what all others cost is not.
    let forecaster = s.state.forecaster().expect("profiled");
    let shown = forecaster.actions(&s.state.shown_actions()).quality;
    assert!(shown.basis != Basis::Unmeasured && shown.value <= 0.0 && shown.value > -0.05, "{shown:?}");

    // Approved, rehearsed, run, judged.
    let ids = s.state.open().iter().map(|d| d.id).collect();
    s.act(Command::Approve { ids }).await;
    let actions = s.state.recipe_actions();
    s.act(Command::Rehearse).await;
    s.until(|s| s.trials.of(&actions).is_some()).await;
    let forecast = s.state.run_forecast().expect("forecast");
    assert_eq!(forecast.basis, Basis::Rehearsed);
    s.act(Command::Run).await;
    s.until(|s| s.phase == Phase::Verdict).await;
    let round = s.state.round_at(1).expect("ran");
    let (verdict, after) = (round.verdict.clone().expect("judged"), round.evaluation.clone().expect("measured"));
    let change = metric.change(base.metrics.score, after.metrics.score);
    assert!((verdict.d_quality - change).abs() < 1e-6, "{verdict:?}, {change}");
    assert!(verdict.d_quality_low <= verdict.d_quality && verdict.d_quality <= verdict.d_quality_high);
    assert!(verdict.lines.iter().any(|l| l.name == "drop" && l.measured == -verdict.d_quality), "{verdict:?}");
    assert_eq!(verdict.outcome, Outcome::Accept, "{verdict:?}");
    let off = (verdict.d_quality - forecast.value).abs();
    assert!(off < 0.01, "forecast {forecast:?}, measured {}", verdict.d_quality);
    s.act(Command::Accept).await;

    // Words and screens speak of the task's metric, with its sign: more is worse.
    let words = s.said.join("\n");
    assert!(words.contains("baseline: mse 0.0") && words.contains("within budget, mse "), "{words}");
    let screen = screens(&s.state);
    assert!(screen.contains("mse"), "{screen}");
    for text in [&words, &screen] {
        assert!(!text.contains("top-1") && !text.contains("top-5"), "{text}");
    }

    // The same after a restart, whose journal says what the task was, and a second round goes on from there.
    let before = s.close().await;
    let mut s = Session::open(dir.path()).await;
    assert_eq!((s.state.metric(), s.state.baseline()), (metric, before.baseline()));
    s.act(Command::SetBudget { budget: Budget { macs: Some(0.5), drop: Some(0.05), ..Budget::default() } }).await;
    s.act(Command::Propose { by: Proposer::Planner }).await;
    s.until(|s| !s.open().is_empty()).await;
    let ids = s.state.open().iter().map(|d| d.id).collect();
    s.act(Command::Approve { ids }).await;
    s.act(Command::Run).await;
    s.until(|s| s.phase == Phase::Verdict && s.round == 2).await;
    let second = s.state.round_at(2).and_then(|r| r.evaluation.clone()).expect("measured");
    assert!(second.macs.conv_linear < after.macs.conv_linear);
    let path = dir.path().join("small.safetensors");
    s.act(Command::Accept).await;
    s.act(Command::Export { path: path.display().to_string(), format: String::new() }).await;
    let began = Instant::now();
    while !path.is_file() {
        assert!(began.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    s.close().await;
    let small = paring::model::load(&path, &Default::default()).expect("what was exported opens");
    assert!(regress::error(&small) < 0.07, "{}", regress::error(&small));
}
