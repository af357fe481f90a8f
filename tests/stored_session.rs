//! A session that an earlier release stored (`fixtures/stored_session.sh`): it opens, goes on, and exports the same bytes.
//!
//! The bytes of an export are those of the stored model and what the journal says of it: they depend on no processor. What
//! the continued round computes does, and is not compared with anything.

#[path = "common/manifest.rs"]
mod manifest;
#[path = "common/pty.rs"]
mod pty;

use paring::host::OpenSpec;
use paring::host::client::{Client, Messages};
use paring::model::LoadOptions;
use paring::plan::{Action, DecisionId, Target};
use paring::session::{Command, Event, HostMsg, Journal, Phase, Place, State, is_locked};
use pty::Home;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// The session's name in a home of its own.
const NAME: &str = "stored";

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/stored-session").join(name)
}

/// A line that the script wrote beside the session.
fn note(name: &str) -> String {
    std::fs::read_to_string(fixture(name)).expect("there").trim().to_owned()
}

/// A copy of the stored session among a home's own.
fn restored(home: &Home) -> Place {
    let place = Place::at(&home.path("home").join("sessions").join(NAME));
    copy(&fixture("session"), &place.dir);
    place
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("made");
    for entry in std::fs::read_dir(from).expect("readable").flatten() {
        let to = to.join(entry.file_name());
        if entry.path().is_dir() { copy(&entry.path(), &to) } else { drop(std::fs::copy(entry.path(), to)) }
    }
}

fn run(home: &Home, args: &[&str]) -> String {
    let out = home.run(args);
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("utf-8")
}

/// A safetensors file as the release that stored the session would write it: a file names the version that wrote it.
fn as_written_then(bytes: &[u8]) -> Vec<u8> {
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight"));
    let (text, tensors) = bytes[8..].split_at(usize::try_from(length).expect("short"));
    let (now, then) = (concat!("paring ", env!("CARGO_PKG_VERSION")), note("VERSION"));
    let mut text = std::str::from_utf8(text).expect("JSON").trim_end().replace(now, &then).into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    [&(text.len() as u64).to_le_bytes()[..], &text, tensors].concat()
}

/// The hash of the model that an exported file says it holds; the file opens.
fn model_of(path: &Path) -> String {
    let opened = paring::model::load(path, &LoadOptions::default()).expect("opens");
    assert!(!opened.precision.nodes.is_empty(), "int8 comes back as such");
    let figures = manifest::manifest(path).expect("ours").figures;
    figures["model_hash"].as_str().expect("named").to_owned()
}

#[test]
fn its_journal_is_one_file_of_the_schema_that_it_was_stored_in() {
    let bytes = std::fs::read(fixture("session/journal-1.db")).expect("there");
    assert_eq!(&bytes[..16], b"SQLite format 3\0");
    assert_eq!(bytes[60..64], note("SCHEMA").parse::<u32>().expect("a number").to_be_bytes(), "`user_version`");
    let files = std::fs::read_dir(fixture("session")).expect("readable").count();
    assert_eq!(files, 4, "journal, artifacts, spec and the baseline's answers: nothing that a host left open");
}

#[test]
fn it_is_read_and_exports_the_same_bytes() {
    let home = Home::new(&[]);
    let place = restored(&home);
    let log = run(&home, &["log", NAME]);
    for line in ["opened demo_cnn", "the first block is thin", "refit", "round 1 evaluated", "accepted round 1"] {
        assert!(log.contains(line), "`{line}`: {log}");
    }
    let listed: Value = serde_json::from_str(&run(&home, &["ls", "--json"])).expect("JSON");
    assert_eq!((&listed[0]["name"], &listed[0]["error"]), (&NAME.into(), &Value::Null));
    let picture = home.path("report.svg");
    run(&home, &["screenshot", NAME, "--keys", "5", "--out", picture.to_str().expect("utf-8")]);
    assert!(std::fs::read_to_string(&picture).expect("written").contains("demo_cnn"));

    let out = home.path("out.safetensors");
    let said = run(&home, &["export", NAME, "--out", out.to_str().expect("utf-8"), "--json"]);
    let bytes = std::fs::read(&out).expect("written");
    let said: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(said["hash"], blake3::hash(&bytes).to_hex().as_str());
    assert_eq!((&said["bytes"], &said["notes"]), (&bytes.len().into(), &Value::Array(Vec::new())));
    assert_eq!(blake3::hash(&as_written_then(&bytes)).to_hex().as_str(), note("BLAKE3"), "exported then");
    let state = State::fold(&Journal::read(&place.dir).expect("readable"));
    assert_eq!(Some(model_of(&out)), state.rounds[1].model_hash, "the round that was accepted");
}

async fn connect(home: &Home, place: &Place, host: &mut std::process::Child) -> (Client, Messages) {
    let name = place.socket().expect("socket");
    let socket = home.path("run").join("paring").join(name.file_name().expect("named"));
    let began = Instant::now();
    loop {
        match Client::connect(&socket, "test", false).await {
            Ok(connected) => return connected,
            Err(e) => {
                let log = || std::fs::read_to_string(place.log_file()).unwrap_or_default();
                assert!(host.try_wait().expect("alive").is_none(), "the host ended: {}", log());
                assert!(began.elapsed() < pty::LONG, "{e}: {}", log());
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

async fn until(messages: &mut Messages, state: &mut State, what: &str, wanted: impl Fn(&State) -> bool) {
    while !wanted(state) {
        let message = tokio::time::timeout(pty::LONG, messages.recv()).await.expect(what);
        match message.expect("the host lives") {
            HostMsg::Welcome { state: s, .. } => *state = *s,
            HostMsg::Event { record } => {
                state.apply(&record);
                if let Event::Failed { what, message } = record.event {
                    panic!("{what}: {message}");
                }
            }
            _ => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_goes_on_with_another_round() {
    let home = Home::new(&[]);
    let place = restored(&home);
    let before = Journal::read(&place.dir).expect("readable");
    let spec = OpenSpec::load(&place).expect("beside the journal");
    // How long latency is measured decides no result.
    OpenSpec { patience: 0.05, ..spec }.save(&place).expect("saved");
    let log = std::fs::File::create(place.log_file()).expect("a log");
    let mut host = home
        .command(&["host", place.dir.to_str().expect("utf-8")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("starts");
    let (client, mut messages) = connect(&home, &place, &mut host).await;
    let mut state = State::default();
    until(&mut messages, &mut state, "open", |s| s.card.is_some()).await;
    assert_eq!(state.rounds.len(), State::fold(&before).rounds.len(), "nothing of it is lost");
    if state.phase == Phase::Verdict {
        client.command(Command::Accept).await.expect("accepted");
        until(&mut messages, &mut state, "accepted", |s| s.phase != Phase::Verdict).await;
    }
    let target = Target::Group("layer3.1.conv1".to_owned());
    let ratio = match state.current(&target).map(|d| &d.action) {
        Some(Action::Prune { ratio, .. }) => (ratio + 0.25).min(0.75),
        _ => 0.25,
    };
    let id = DecisionId(state.next_decision);
    client
        .command(Command::Decide { target, action: Action::Prune { ratio, kept: Vec::new() } })
        .await
        .expect("decided");
    client.command(Command::Approve { ids: vec![id] }).await.expect("approved");
    client.command(Command::Run).await.expect("runs");
    let round = state.round;
    until(&mut messages, &mut state, "verdict", |s| s.round == round && s.phase == Phase::Verdict).await;
    client.command(Command::Accept).await.expect("accepted");
    until(&mut messages, &mut state, "accepted", |s| s.base_round() == round).await;
    client.command(Command::Stop).await.expect("stops");
    assert!(host.wait().expect("ends").success() && !is_locked(&place.dir));

    let after = Journal::read(&place.dir).expect("readable");
    assert!(after.len() > before.len() && after[..before.len()] == before[..], "what was there stays as it was");
    let state = State::fold(&after);
    let hash = |round: usize| state.rounds[round].model_hash.clone().expect("made");
    assert_ne!(hash(round as usize), hash(1), "more is cut");
    let out = home.path("out.safetensors");
    run(&home, &["export", NAME, "--out", out.to_str().expect("utf-8")]);
    assert_eq!(model_of(&out), hash(round as usize));
}
