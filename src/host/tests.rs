//! The host with a fake engine, through the in-memory transport: the same path that sockets take.

use super::client::{Client, CommandError, Messages};
use super::fake::{Fake, Gate};
use super::*;
use crate::plan::testing::{cut as prune, group, ids};
use crate::plan::{Action, Constraint, DecisionId, Limit, Status, Target};
use crate::session::{Command, Event, Feed, HostMsg, Phase, Proposer};
use std::time::Duration;
use tokio::io::{DuplexStream, ReadHalf, WriteHalf};

struct Rig {
    dir: tempfile::TempDir,
    fake: Arc<Fake>,
    host: Host,
    client: Client,
    messages: Messages,
    state: State,
    feed: Vec<Feed>,
}

fn settings(on_open: bool) -> Settings {
    Settings {
        auto: Auto { on_open, on_accept: true, rehearse: true },
        llm: Llm::default(),
        budget: Budget::default(),
        rules: crate::config::Policy::default(),
        ledger: None,
    }
}

fn start(dir: &std::path::Path, fake: &Arc<Fake>, on_open: bool) -> Result<Host, HostError> {
    let fake = fake.clone();
    Host::start(&Place::at(dir), settings(on_open), move |_| Ok(fake))
}

impl Rig {
    async fn new(on_open: bool, gate: Option<Gate>) -> Rig {
        let dir = tempfile::tempdir().expect("temp dir");
        let fake = Arc::new(Fake::default());
        *fake.gate.lock().expect("gate") = gate;
        let host = start(dir.path(), &fake, on_open).expect("starts");
        Rig::attach(dir, fake, host).await
    }

    /// A session whose first look is over: three proposals wait for the engineer.
    async fn proposed() -> Rig {
        let mut r = Rig::new(true, None).await;
        r.until("proposals", |s| s.phase == Phase::Review && s.decisions.len() == 3).await;
        r.idle().await;
        r
    }

    async fn attach(dir: tempfile::TempDir, fake: Arc<Fake>, host: Host) -> Rig {
        let (client, messages) = host.connect("test", false).await.expect("connects");
        let mut rig = Rig { dir, fake, host, client, messages, state: State::default(), feed: Vec::new() };
        assert!(matches!(rig.next().await, HostMsg::Welcome { .. }));
        rig
    }

    async fn next(&mut self) -> HostMsg {
        let message = tokio::time::timeout(Duration::from_secs(20), self.messages.recv()).await;
        let message = message.expect("a message in time").expect("the host lives");
        match &message {
            HostMsg::Welcome { state, .. } => self.state = (**state).clone(),
            HostMsg::Event { record } => {
                assert_eq!(record.seq, self.state.seq + 1, "no gaps");
                self.state.apply(record);
            }
            HostMsg::Feed { feed } => self.feed.push(feed.clone()),
            _ => {}
        }
        message
    }

    /// Reads messages until the state is as wanted.
    async fn until(&mut self, what: &str, wanted: impl Fn(&State) -> bool) {
        while !wanted(&self.state) {
            assert!(self.state.seq < 500, "never {what}");
            self.next().await;
        }
    }

    async fn idle(&mut self) {
        loop {
            if matches!(self.next().await, HostMsg::Feed { feed: Feed::JobEnd { .. } }) {
                return;
            }
        }
    }

    /// Runs what is approved, to the end of the comments on the verdict.
    async fn run(&mut self) {
        self.ok(Command::Run).await;
        self.until("verdict", |s| s.phase == Phase::Verdict).await;
        self.idle().await;
    }

    async fn ok(&self, command: Command) {
        self.client.command(command.clone()).await.unwrap_or_else(|e| panic!("{command:?}: {e}"));
    }

    async fn refused(&self, command: Command) -> String {
        match self.client.command(command).await {
            Err(CommandError::Refused(words)) => {
                assert!(words.contains("hint:"), "{words}");
                words
            }
            other => panic!("not refused: {other:?}"),
        }
    }

    fn gate(&self, gate: Option<Gate>) {
        *self.fake.gate.lock().expect("gate") = gate;
    }

    /// A connection that has said nothing yet.
    fn line(&self) -> (ReadHalf<DuplexStream>, WriteHalf<DuplexStream>) {
        let (near, far) = tokio::io::duplex(1 << 20);
        tokio::spawn(server::connection(far, self.host.inputs.clone()));
        tokio::io::split(near)
    }

    /// Ends the host, starts another on the same folder, and attaches to it.
    async fn restart(self) -> Rig {
        self.host.stop("restart").await;
        self.host.ended().await;
        let host = start(self.dir.path(), &self.fake, true).expect("starts again");
        Rig::attach(self.dir, self.fake, host).await
    }

    fn status(&self, name: &str) -> Status {
        self.state.current(&group(name)).expect("decided").status
    }
}

fn limit(name: &str, ratio: f64) -> Constraint {
    Constraint { target: group(name), limit: Limit::MaxRatio { ratio }, reason: String::new() }
}

fn freeze(name: &str, reason: &str) -> Constraint {
    Constraint { target: group(name), limit: Limit::Freeze, reason: reason.to_owned() }
}

#[tokio::test]
async fn a_whole_session() {
    let mut r = Rig::new(true, None).await;
    r.until("proposals", |s| s.decisions.len() == 3 && s.phase == Phase::Review).await;
    assert_eq!(r.state.decisions.iter().map(|d| d.id.0).collect::<Vec<_>>(), [0, 1, 2], "the host numbers");
    assert!(r.state.decisions.iter().all(|d| d.status == Status::Proposed), "nobody approves but the engineer");
    assert!(r.state.baseline().is_some() && r.state.profile().is_some());
    assert_eq!(r.state.sensitivity.curves.len(), 3);
    let tokens: String = r
        .feed
        .iter()
        .filter_map(|f| if let Feed::Token { text, .. } = f { Some(text.as_str()) } else { None })
        .collect();
    assert_eq!(tokens, "one two three");

    r.refused(Command::Run).await;
    r.ok(Command::Edit { id: DecisionId(0), action: prune(0.3) }).await;
    r.ok(Command::Veto { ids: ids(&[1]), reason: "first layer".to_owned() }).await;
    assert!(r.refused(Command::Edit { id: DecisionId(1), action: prune(0.1) }).await.contains("vetoed"));
    assert!(r.refused(Command::Approve { ids: ids(&[1]) }).await.contains("vetoed"));
    r.refused(Command::Approve { ids: ids(&[77]) }).await;
    r.ok(Command::Approve { ids: ids(&[0, 1, 2]) }).await;
    r.ok(Command::Undo).await;
    r.ok(Command::Redo).await;
    r.refused(Command::Redo).await;
    r.ok(Command::Note { text: "mind the head".to_owned() }).await;
    r.refused(Command::Note { text: "  ".to_owned() }).await;
    r.run().await;
    assert_eq!((r.status("a"), r.status("b"), r.status("c")), (Status::Applied, Status::Vetoed, Status::Applied));
    assert_eq!(
        r.state.decision(DecisionId(0)).expect("there").action,
        Action::Prune { ratio: 0.25, kept: (0..6).collect() },
        "rounded and resolved"
    );
    assert_eq!(r.state.rounds[1].artifact.as_deref(), Some("2.x"));
    r.refused(Command::Approve { ids: ids(&[0]) }).await;
    r.ok(Command::Export { path: "out".to_owned(), format: String::new() }).await;
    r.until("export", |s| s.exports == ["out1"]).await;
    r.idle().await;
    r.ok(Command::Accept).await;
    r.until("next proposals", |s| s.round == 2 && s.phase == Phase::Review && s.decisions.len() > 3).await;
    assert!(r.state.decisions.iter().filter(|d| d.target == group("b")).all(|d| d.status == Status::Vetoed), "bound");
    let next: Vec<DecisionId> = r.state.open().iter().map(|d| d.id).collect();
    assert_eq!(next.len(), 2);
    r.idle().await;
    r.ok(Command::Approve { ids: next }).await;
    r.run().await;
    r.ok(Command::RollBack { reason: "too much".to_owned() }).await;
    r.until("rolled back", |s| s.round == 3).await;
    assert_eq!(r.state.base_round(), 1);
    assert_eq!(r.state.in_force().iter().map(|d| d.id.0).collect::<Vec<_>>(), [0, 2]);

    let before = r.state.clone();
    let r = r.restart().await;
    assert_eq!(r.state, before, "a restart shows the same session");
}

/// A figure that cannot be believed is measured again: a row alone, or all of them with what factors refer to.
#[tokio::test]
async fn rows_and_the_baseline_are_measured_again() {
    let mut r = Rig::proposed().await;
    let ms = |s: &State, round: u32| -> Vec<f64> {
        s.profile_of(round).expect("profiled").rows.iter().map(|r| r.latency.p50).collect()
    };
    assert_eq!(ms(&r.state, 0), [1.0, 1.0]);
    assert!(r.refused(Command::Measure { layer: "no such".to_owned() }).await.contains("`no such`"));
    r.ok(Command::Measure { layer: "b".to_owned() }).await;
    r.idle().await;
    // The row alone: the rest was not in doubt.
    assert_eq!((ms(&r.state, 0), r.state.phase), (vec![1.0, 2.0], Phase::Review));
    assert!(r.state.timeline.iter().any(|e| e.text.contains("measured b again")), "{:?}", r.state.timeline);
    r.ok(Command::Profile).await;
    r.idle().await;
    assert_eq!(ms(&r.state, 0), [3.0, 3.0]);
    assert_eq!(r.state.baseline().expect("evaluated").whole.p50, 6.0, "what factors refer to follows");

    let all: Vec<DecisionId> = r.state.open().iter().map(|d| d.id).collect();
    r.ok(Command::Approve { ids: all }).await;
    r.run().await;
    assert!(r.refused(Command::Measure { layer: "b".to_owned() }).await.contains("verdict"));
    r.ok(Command::Accept).await;
    r.until("next round", |s| s.round == 2 && s.phase == Phase::Review && s.decisions.len() > 3).await;
    r.idle().await;
    r.ok(Command::Profile).await;
    r.idle().await;
    // The original, the model in force, and the two in pairs; the pair's original takes the place of the other.
    let e = r.state.round_at(1).and_then(|r| r.evaluation.as_ref()).expect("evaluated");
    assert_eq!((e.latency().map(|l| l.value), e.whole.p50, e.baseline_ms), (Some(0.5), 2.0, 4.0));
    assert_eq!((ms(&r.state, 0), ms(&r.state, 1)), (vec![4.0; 2], vec![5.0; 2]));
    assert_eq!(r.state.baseline().map(|b| (b.whole.p50, b.baseline_ms)), Some((4.0, 4.0)));
    let before = r.state.clone();
    let r = r.restart().await;
    assert_eq!(r.state, before, "all of it is in the journal");
}

#[tokio::test]
async fn one_client_has_the_pen() {
    let mut a = Rig::new(false, None).await;
    let (watcher, mut seen) = a.host.connect("watcher", true).await.expect("connects");
    let (b, _b_messages) = a.host.connect("second", false).await.expect("connects");
    a.ok(Command::Note { text: "mine".to_owned() }).await;
    for other in [&b, &watcher] {
        let Err(CommandError::Refused(words)) = other.command(Command::Note { text: "no".to_owned() }).await else {
            panic!("wrote without the pen");
        };
        assert!(words.contains("`test`") && words.contains("hint:"), "{words}");
    }
    b.command(Command::TakePen).await.expect("anyone may take it");
    a.refused(Command::Note { text: "gone".to_owned() }).await;
    b.command(Command::Note { text: "second".to_owned() }).await.expect("has the pen");
    a.until("both notes", |s| s.notes.len() == 2).await;
    drop((b, _b_messages));
    loop {
        if let HostMsg::Pen { holder: Some(_), holder_name } = a.next().await
            && holder_name == "test"
        {
            break;
        }
    }
    a.ok(Command::Note { text: "again".to_owned() }).await;
    let mut state = State::default();
    while state.notes.len() < 3 {
        match seen.recv().await.expect("the host lives") {
            HostMsg::Welcome { state: s, .. } => state = *s,
            HostMsg::Event { record } => state.apply(&record),
            _ => {}
        }
    }
}

#[tokio::test]
async fn the_engineer_acts_while_agents_think_and_wins() {
    let mut r = Rig::new(true, Some(Gate::Propose)).await;
    r.until("reasoning", |s| s.phase == Phase::Reason && !s.utterances.is_empty()).await;
    r.ok(Command::Decide { target: group("a"), action: prune(0.25) }).await;
    r.ok(Command::Approve { ids: ids(&[0]) }).await;
    r.ok(Command::Constrain { constraint: freeze("b", "mine") }).await;
    r.ok(Command::Constrain { constraint: limit("c", 0.25) }).await;
    assert!(r.refused(Command::Run).await.contains("running"));
    r.gate(None);
    r.until("proposals", |s| s.phase == Phase::Review).await;
    let shown: Vec<(&str, Status, f64)> = r
        .state
        .decisions
        .iter()
        .map(|d| (d.target.name(), d.status, if let Action::Prune { ratio, .. } = d.action { ratio } else { -1.0 }))
        .collect();
    assert_eq!(shown, [("a", Status::Approved, 0.25), ("c", Status::Proposed, 0.25)]);
    r.refused(Command::Decide { target: group("z"), action: prune(0.25) }).await;
    r.refused(Command::Unconstrain { target: group("a") }).await;
    r.ok(Command::Unconstrain { target: group("b") }).await;
    r.ok(Command::Decide { target: group("b"), action: Action::Keep }).await;
}

#[tokio::test]
async fn cuts_decided_before_units_are_ranked_wait_for_nothing_and_get_theirs_from_the_run() {
    let mut r = Rig::new(false, None).await;
    r.ok(Command::Decide { target: group("a"), action: prune(0.3) }).await;
    r.ok(Command::Decide { target: group("b"), action: prune(0.5) }).await;
    // A limit that allows what was decided does not stand in the way of cuts without units.
    r.ok(Command::Constrain { constraint: limit("b", 0.5) }).await;
    r.ok(Command::Approve { ids: ids(&[0, 1]) }).await;
    r.until("approved", |s| s.pending().len() == 2).await;
    let units = |s: &State, name: &str| match &s.current(&group(name)).expect("decided").action {
        Action::Prune { ratio, kept } => (*ratio, kept.clone()),
        other => panic!("{other:?}"),
    };
    assert_eq!(units(&r.state, "a"), (0.25, vec![]), "rounded, not resolved");
    r.gate(Some(Gate::Compress));
    r.ok(Command::Run).await;
    r.until("the gate", |s| !s.rounds[1].repairs.is_empty()).await;
    assert_eq!((units(&r.state, "a"), units(&r.state, "b")), ((0.25, (0..6).collect()), (0.5, (0..4).collect())));
    r.gate(None);
    r.until("verdict", |s| s.phase == Phase::Verdict).await;
}

#[tokio::test]
async fn cancel_and_failure_leave_approved_decisions_approved() {
    for gate in [Gate::Compress, Gate::Evaluate] {
        let mut r = Rig::proposed().await;
        r.ok(Command::Approve { ids: ids(&[0, 1]) }).await;
        r.refused(Command::Cancel).await;
        r.gate(Some(gate));
        r.ok(Command::Run).await;
        assert!(r.refused(Command::Edit { id: DecisionId(2), action: prune(0.1) }).await.contains("compressed"));
        let reached = if gate == Gate::Compress { Phase::Compress } else { Phase::Evaluate };
        r.until("the gate", |s| s.phase == reached).await;
        r.ok(Command::Cancel).await;
        r.until("cancelled", |s| s.phase == Phase::Review).await;
        assert_eq!((r.status("a"), r.status("b")), (Status::Approved, Status::Approved));
        r.idle().await;
        for failure in ["out of memory; hint: smaller batch", "panic"] {
            r.gate(None);
            *r.fake.fail.lock().expect("fail") = Some(failure);
            r.ok(Command::Run).await;
            r.until("failed", |s| s.failure.is_some()).await;
            assert_eq!((r.state.phase, r.status("a")), (Phase::Review, Status::Approved));
            r.idle().await;
        }
        *r.fake.fail.lock().expect("fail") = None;
        r.ok(Command::Run).await;
        r.until("verdict", |s| s.phase == Phase::Verdict).await;
        assert_eq!(r.state.failure, None);
    }
}

#[tokio::test]
async fn who_attaches_meanwhile_is_told_what_runs() {
    let mut r = Rig::new(true, Some(Gate::Profile)).await;
    // Its own greeting may have been that something runs; this is the job speaking.
    while !r.feed.iter().any(|f| matches!(f, Feed::Progress(p) if p.job == "gate")) {
        r.next().await;
    }
    // Whatever the job tells later: the first messages already say that it runs.
    let greeting = async |host: &Host| {
        let (_client, mut messages) = host.connect("late", true).await.expect("connects");
        let mut seen = Vec::new();
        while seen.len() < 2 {
            seen.push(messages.recv().await.expect("the host lives"));
        }
        seen
    };
    let seen = greeting(&r.host).await;
    assert!(matches!(seen[0], HostMsg::Welcome { .. }), "{seen:?}");
    assert!(matches!(&seen[1], HostMsg::Feed { feed: Feed::Progress(p) } if p.job == "gate"), "{seen:?}");
    // Agents that speak are told of by name.
    r.gate(Some(Gate::Propose));
    r.until("reasoning", |s| s.phase == Phase::Reason && !s.utterances.is_empty()).await;
    while !r.feed.iter().any(|f| matches!(f, Feed::Token { text, .. } if text.contains("three"))) {
        r.next().await;
    }
    let seen = greeting(&r.host).await;
    let told = |f: &HostMsg| match f {
        HostMsg::Feed { feed: Feed::Turn { role, .. } } => role == "planner",
        HostMsg::Feed { feed: Feed::Progress(p) } => p.job == "gate",
        _ => false,
    };
    assert!(told(&seen[1]), "{seen:?}");
    r.gate(None);
    r.until("proposals", |s| s.phase == Phase::Review).await;
    r.idle().await;
    let (_client, mut messages) = r.host.connect("idle", true).await.expect("connects");
    assert!(matches!(messages.recv().await, Some(HostMsg::Welcome { .. })));
    assert!(matches!(messages.recv().await, Some(HostMsg::Pen { .. })), "an idle host tells of no work");
}

#[tokio::test]
async fn everybody_is_told_whom_the_session_asks_and_no_secret_of_it() {
    let mut r = Rig::new(false, None).await;
    let url = "http://u:secret@h:1/v1?key=secret";
    r.ok(Command::SetLlm { base_url: Some(url.to_owned()), model: Some("qwen".to_owned()) }).await;
    let told =
        Feed::Agents { at: Some("qwen at http://…@h:1/v1?key=…".to_owned()), turns: 1, limits: String::new() };
    while r.feed.last() != Some(&told) {
        r.next().await;
    }
    let (_client, mut messages) = r.host.connect("late", true).await.expect("connects");
    assert!(matches!(messages.recv().await, Some(HostMsg::Welcome { .. })));
    assert_eq!(messages.recv().await, Some(HostMsg::Feed { feed: told }));
    assert!(!format!("{:?}", r.feed).contains("secret"), "{:?}", r.feed);
    r.ok(Command::SetLlm { base_url: None, model: None }).await;
    while r.feed.last() != Some(&Feed::Agents { at: None, turns: 1, limits: String::new() }) {
        r.next().await;
    }
}

#[tokio::test]
async fn cutting_a_comment_short_does_not_touch_the_verdict() {
    let mut r = Rig::proposed().await;
    r.ok(Command::Approve { ids: ids(&[0]) }).await;
    r.gate(Some(Gate::Reflect));
    r.ok(Command::Run).await;
    r.until("verdict", |s| s.phase == Phase::Verdict).await;
    r.ok(Command::Cancel).await;
    r.idle().await;
    assert_eq!(r.state.phase, Phase::Verdict);
    assert!(r.state.rounds[1].verdict.is_some() && r.status("a") == Status::Applied);
    let last = &r.state.timeline.last().expect("told").text;
    assert_eq!(last, "comment on round 1 cancelled", "not the run");
}

#[tokio::test]
async fn a_restart_lands_idle_and_resurrects_nothing() {
    for (gate, phase) in
        [(Gate::Profile, Phase::Profile), (Gate::Propose, Phase::Reason), (Gate::Compress, Phase::Compress)]
    {
        let r = Rig::new(gate != Gate::Compress, Some(gate)).await;
        let mut r = r;
        if gate == Gate::Compress {
            r.ok(Command::Propose { by: Proposer::Planner }).await;
            r.until("proposals", |s| s.phase == Phase::Review && !s.decisions.is_empty()).await;
            r.idle().await;
            r.ok(Command::Approve { ids: ids(&[1]) }).await;
            r.ok(Command::Run).await;
        }
        r.until("the gate", |s| s.phase == phase).await;
        let r = r.restart().await;
        assert_eq!(r.state.phase, Phase::Review, "{gate:?}");
        if gate == Gate::Compress {
            assert_eq!(r.status("b"), Status::Approved);
        }
        let cancelled = Journal::read(r.dir.path())
            .expect("readable")
            .iter()
            .filter(|r| matches!(r.event, Event::Cancelled { .. }))
            .count();
        assert_eq!(cancelled, 1);
    }
}

#[tokio::test]
async fn a_client_that_sleeps_gets_the_state_anew() {
    let mut r = Rig::new(false, None).await;
    let (sleeper, _messages) = r.host.connect("sleeper", true).await.expect("connects");
    for i in 0..3000 {
        r.ok(Command::Note { text: format!("{i} {}", "x".repeat(600)) }).await;
    }
    r.next().await;
    let mut messages = _messages;
    let mut state = State::default();
    let mut welcomes = 0;
    while state.notes.last().is_none_or(|(_, t)| !t.starts_with("2999 ")) {
        let message = tokio::time::timeout(Duration::from_secs(20), messages.recv()).await.expect("in time");
        match message.expect("the host lives") {
            HostMsg::Welcome { state: s, .. } => {
                welcomes += 1;
                state = *s;
            }
            HostMsg::Event { record } => {
                assert_eq!(record.seq, state.seq + 1);
                state.apply(&record);
            }
            _ => {}
        }
    }
    assert!(welcomes >= 1);
    drop(sleeper);
}

#[tokio::test]
async fn other_versions_and_second_hosts_are_refused_in_words() {
    use crate::session::ClientMsg;
    let r = Rig::new(false, None).await;
    let second = start(r.dir.path(), &r.fake, false).expect_err("two hosts");
    assert!(matches!(second, HostError::Journal(JournalError::Locked { .. })), "{second}");
    let (reader, writer) = r.line();
    let hello = ClientMsg::Hello { protocol: 99, client: "old".to_owned(), watch: false };
    wire::Sender::new(writer).send(&hello).await.expect("sent");
    let answer: Option<HostMsg> = wire::Receiver::new(reader).receive().await.expect("received");
    assert!(matches!(answer, Some(HostMsg::Refused { message }) if message.contains("99")));
}

#[tokio::test]
async fn stop_says_goodbye_and_frees_the_session() {
    let mut r = Rig::new(true, Some(Gate::Profile)).await;
    r.until("profiling", |s| s.phase == Phase::Profile).await;
    r.ok(Command::Stop).await;
    loop {
        if let HostMsg::Bye { .. } = r.next().await {
            break;
        }
    }
    assert_eq!(r.messages.recv().await, None);
    r.host.ended().await;
    assert!(!crate::session::is_locked(r.dir.path()));
    assert_eq!(r.client.command(Command::Undo).await, Err(CommandError::Gone));
}

#[tokio::test]
async fn the_socket_is_private_and_goes_with_the_host() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("temp dir");
    let place = Place::at(dir.path());
    let host = start(dir.path(), &Arc::new(Fake::default()), false).expect("starts");
    let socket = place.socket().expect("socket");
    std::fs::write(&socket, "stale").expect("written");
    let host = Arc::new(host);
    let serving = tokio::spawn({
        let (host, place) = (host.clone(), place.clone());
        async move { host.serve(&place).await }
    });
    let mut tries = 0;
    let (client, _messages) = loop {
        match Client::connect(&socket, "test", false).await {
            Ok(c) => break c,
            Err(e) if tries > 500 => panic!("{e}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
        tries += 1;
    };
    assert_eq!(std::fs::metadata(&socket).expect("there").permissions().mode() & 0o777, 0o600);
    client.command(Command::Note { text: "hello".to_owned() }).await.expect("same path");
    client.command(Command::Stop).await.expect("stops");
    serving.await.expect("joined").expect("served");
    assert!(!socket.exists());
}

mod bounds;
mod control;
#[path = "plan_tests.rs"]
mod plan;
mod rehearsal;
mod restore;
