//! SIGKILL at random moments of a real session on a real host process: no approved decision is lost, nothing unapplied is
//! shown as applied, and a restart is idle. Also what signals do that are less rude.

#[path = "common/small.rs"]
mod small;

use paring::host::client::{Client, CommandError, Messages};
use paring::plan::{Action, DecisionId, Status, Target};
use paring::session::{Command, HostMsg, Journal, Phase, Place, State, is_locked};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

struct Rig {
    home: tempfile::TempDir,
    place: Place,
}

impl Rig {
    fn new() -> Rig {
        let home = tempfile::tempdir().expect("temp dir");
        let place = Place::at(&home.path().join("session"));
        std::fs::create_dir_all(&place.dir).expect("made");
        let checkpoint = home.path().join("model.safetensors");
        small::model(&checkpoint, 3);
        small::spec(&checkpoint).save(&place).expect("saved");
        Rig { home, place }
    }

    fn spawn(&self) -> Child {
        std::process::Command::new(env!("CARGO_BIN_EXE_paring"))
            .arg("host")
            .arg(&self.place.dir)
            .env("PARING_HOME", self.home.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::options().create(true).append(true).open(self.place.log_file()).expect("log"))
            .spawn()
            .expect("host starts")
    }

    async fn connect(&self, child: &mut Child) -> (Client, Messages) {
        let socket = self.place.socket().expect("socket");
        let began = Instant::now();
        loop {
            match Client::connect(&socket, "test", false).await {
                Ok(connected) => return connected,
                Err(e) => {
                    let log = || std::fs::read_to_string(self.place.log_file()).unwrap_or_default();
                    assert!(child.try_wait().expect("alive").is_none(), "the host ended: {}", log());
                    assert!(began.elapsed() < Duration::from_secs(120), "{e}: {}", log());
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        }
    }

    fn journal(&self) -> State {
        State::fold(&Journal::read(&self.place.dir).expect("readable"))
    }
}

/// What the engineer was told, to be held against what comes back.
#[derive(Default)]
struct Promises {
    approved: BTreeSet<DecisionId>,
    /// A roll-back was sent and not yet acknowledged.
    rolling_back: bool,
    runs: usize,
}

impl Promises {
    fn check(&mut self, state: &State, artifacts: &Path) {
        for id in self.approved.clone() {
            let known = || {
                let lines: Vec<&str> = state.timeline.iter().map(|e| e.text.as_str()).collect();
                format!("{id:?} is gone at {}: {lines:#?}", state.seq)
            };
            let status = state.decision(id).unwrap_or_else(|| panic!("{}", known())).status;
            if self.rolling_back && status == Status::RolledBack {
                self.approved.remove(&id);
                continue;
            }
            assert!(matches!(status, Status::Approved | Status::Applied), "{id:?} is {status:?}");
        }
        self.rolling_back = false;
        for d in state.decisions.iter().filter(|d| d.status == Status::Applied) {
            let round = state.rounds.iter().find(|r| r.ids.contains(&d.id)).expect("applied by a round");
            let artifact = round.artifact.as_deref().expect("what is applied exists");
            assert!(artifacts.join(artifact).is_file(), "and is on disk");
        }
    }

    /// There was something to lose.
    fn enough(&self) -> bool {
        self.approved.len() >= 3 && self.runs >= 2
    }

    /// A restart shows nothing as under way, and as applied only what was also evaluated.
    fn check_idle(&mut self, state: &State, artifacts: &Path) {
        self.check(state, artifacts);
        assert!(matches!(state.phase, Phase::Review | Phase::Verdict), "{:?}", state.phase);
        for d in state.decisions.iter().filter(|d| d.status == Status::Applied) {
            assert!(state.rounds.iter().any(|r| r.ids.contains(&d.id) && r.verdict.is_some()), "half-done: {d:?}");
        }
    }
}

/// Folds what has come so far.
fn catch_up(messages: &mut Messages, state: &mut State) {
    while let Some(m) = messages.try_recv() {
        match m {
            HostMsg::Welcome { state: s, .. } => *state = *s,
            HostMsg::Event { record } => state.apply(&record),
            _ => {}
        }
    }
}

/// Works on the session like an engineer in a hurry, until `events` have come or the connection ends.
async fn work(client: &Client, messages: &mut Messages, events: u64, promises: &mut Promises, rng: &mut ChaCha8Rng) {
    let mut state = State::default();
    let mut first = None;
    loop {
        catch_up(messages, &mut state);
        if state.card.is_some() && state.seq >= *first.get_or_insert(state.seq) + events {
            return;
        }
        let open = state.open().first().map(|d| d.id);
        let command = match state.phase {
            Phase::Verdict if rng.random_bool(0.5) => Command::Accept,
            Phase::Verdict => Command::RollBack { reason: "test".to_owned() },
            Phase::Review => match (open, state.pending().len()) {
                (Some(id), _) => Command::Approve { ids: vec![id] },
                (None, n) if n >= 2 || (n >= 1 && rng.random_bool(0.4)) => Command::Run,
                (None, _) => {
                    let groups = &state.card.as_ref().expect("open").groups;
                    let free: Vec<&str> = groups
                        .iter()
                        .filter(|g| g.protected.is_none())
                        .map(|g| g.id.as_str())
                        .filter(|g| {
                            let current = state.current(&Target::Group((*g).to_owned()));
                            current.is_none_or(|d| d.status != Status::Approved)
                        })
                        .collect();
                    let ratio = [0.25, 0.5][rng.random_range(0..2)];
                    let target = Target::Group(free[rng.random_range(0..free.len())].to_owned());
                    Command::Decide { target, action: Action::Prune { ratio, kept: Vec::new() } }
                }
            },
            Phase::Profile | Phase::Reason | Phase::Compress | Phase::Evaluate => {
                match messages.recv().await {
                    Some(HostMsg::Event { record }) => state.apply(&record),
                    Some(HostMsg::Welcome { state: s, .. }) => state = *s,
                    Some(_) => {}
                    None => return,
                }
                continue;
            }
        };
        promises.rolling_back = matches!(command, Command::RollBack { .. });
        match client.command(command.clone()).await {
            Ok(()) => match command {
                Command::Approve { ids } => promises.approved.extend(ids),
                Command::RollBack { .. } => {
                    catch_up(messages, &mut state);
                    promises.approved.retain(|&id| state.decision(id).is_some_and(|d| d.status != Status::RolledBack));
                    promises.rolling_back = false;
                }
                Command::Run => promises.runs += 1,
                _ => {}
            },
            // A reply may be late by one event, such as the end of a job.
            Err(CommandError::Refused(words)) => {
                assert!(words.contains("hint:"), "{words}");
                promises.rolling_back = false;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Err(CommandError::Gone) => return,
        }
    }
}

#[test]
fn twenty_kills_lose_nothing() {
    let rig = Rig::new();
    let artifacts = rig.place.artifacts();
    let mut rng = ChaCha8Rng::seed_from_u64(20);
    let mut promises = Promises::default();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("runtime");
    // Twenty, and more where a busy machine got nowhere in some of its lives.
    for kill in 0..40 {
        if kill >= 20 && promises.enough() {
            break;
        }
        let mut child = rig.spawn();
        let (client, mut messages) = runtime.block_on(rig.connect(&mut child));
        let mut state = State::default();
        runtime.block_on(async {
            if let Some(HostMsg::Welcome { state: s, .. }) = messages.recv().await {
                state = *s;
            }
        });
        if kill > 0 {
            promises.check_idle(&state, &artifacts);
        } else {
            runtime
                .block_on(async { client.command(Command::Propose { by: paring::session::Proposer::Planner }).await })
                .expect("measures first");
        }
        // A fresh connection, so that the work starts from a welcome of its own; the first one dies silently, as a
        // killed client does.
        drop((client, messages));
        let (client, mut messages) = runtime.block_on(rig.connect(&mut child));
        // Counted in events rather than milliseconds, so that a slow machine gets as far as a fast one; then a moment
        // more, so that the kill falls between events too.
        let (events, moment) = (rng.random_range(1..12), Duration::from_millis(rng.random_range(0..40)));
        runtime.block_on(async {
            let patience = Duration::from_secs(60);
            drop(tokio::time::timeout(patience, work(&client, &mut messages, events, &mut promises, &mut rng)).await);
            tokio::time::sleep(moment).await;
        });
        child.kill().expect("killed");
        child.wait().expect("reaped");
        promises.check(&rig.journal(), &artifacts);
    }
    assert!(
        promises.approved.len() >= 3,
        "{} approved: the test must have had something to lose",
        promises.approved.len()
    );
    assert!(promises.runs >= 2, "{} runs", promises.runs);
}

#[test]
fn a_host_outlives_hang_ups_and_ends_cleanly_on_sigterm() {
    let rig = Rig::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    let mut child = rig.spawn();
    let pid = child.id() as i32;
    runtime.block_on(async {
        let (client, mut messages) = rig.connect(&mut child).await;
        // SAFETY: plain system calls on our own child.
        unsafe { libc::kill(pid, libc::SIGHUP) };
        client.command(Command::Note { text: "still here".to_owned() }).await.expect("alive");
        // SAFETY: as above.
        unsafe { libc::kill(pid, libc::SIGTERM) };
        let bye = async {
            loop {
                match messages.recv().await {
                    Some(HostMsg::Bye { .. }) => return true,
                    Some(_) => {}
                    None => return false,
                }
            }
        };
        assert!(tokio::time::timeout(Duration::from_secs(60), bye).await.expect("in time"), "says goodbye");
    });
    assert!(child.wait().expect("ends").success());
    assert!(!is_locked(&rig.place.dir));
    assert!(!rig.place.socket().expect("socket").exists());
    assert_eq!(rig.journal().notes, [(1, "still here".to_owned())]);
}

#[test]
fn a_second_host_on_a_session_says_who_has_it() {
    let rig = Rig::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    let mut child = rig.spawn();
    drop(runtime.block_on(rig.connect(&mut child)));
    let second = std::process::Command::new(env!("CARGO_BIN_EXE_paring"))
        .arg("host")
        .arg(&rig.place.dir)
        .env("PARING_HOME", rig.home.path())
        .output()
        .expect("runs");
    assert_eq!(second.status.code(), Some(5));
    let words = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(words.contains("in use by another host") && words.contains("hint:"), "{words}");
    child.kill().expect("killed");
    child.wait().expect("reaped");
}
