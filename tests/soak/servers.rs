//! Every server behaviour of the table against one session of the real binary, which a screen watches; then all of them
//! again, torn into pieces and cut off at random places, until the time is over.

use crate::audit::steers;
use crate::pty::Home;
use crate::rig::{KEY, Line, MEMORY, PROMPT, Rig, deadline, rng, runtime, setting};
use crate::server::{Behaviour, Server, Tear};
use crate::{answers, http};
use paring::host::OpenSpec;
use paring::host::client::CommandError;
use paring::plan::{Action, Constraint, DecisionId, Limit, Status, Target, check};
use paring::session::{Command, Phase, Proposer, Record, State};
use portable_pty::{CommandBuilder, PtySize, native_pty_system};
use rand::Rng;
use std::io::{Read, Write};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Within this a behaviour that ends is over and done with: three roles, their repairs and their retries.
const OVER: Duration = Duration::from_secs(60);
/// For so long one that does not end is borne before it is cancelled.
const BORNE: Duration = Duration::from_millis(1_500);

/// What was settled before any server spoke; it stays so.
#[derive(Debug, PartialEq)]
struct Settled {
    approved: Vec<DecisionId>,
    vetoed: Vec<DecisionId>,
    constraints: usize,
    runs: usize,
}

fn settled(state: &State) -> Settled {
    let of = |status| state.decisions.iter().filter(|d| d.status == status).map(|d| d.id).collect();
    Settled {
        approved: of(Status::Approved),
        vetoed: of(Status::Vetoed),
        constraints: state.constraints.len(),
        runs: state.rounds.iter().filter(|r| !r.recipe.is_empty() || r.artifact.is_some()).count(),
    }
}

/// The screen on this session, and every byte that it wrote.
fn watch(home: &Home) -> (Box<dyn portable_pty::Child + Send + Sync>, Arc<Mutex<Vec<u8>>>) {
    let size = PtySize { rows: 40, cols: 120, pixel_width: 0, pixel_height: 0 };
    let pair = native_pty_system().openpty(size).expect("a pseudo-terminal");
    let mut c = CommandBuilder::new(env!("CARGO_BIN_EXE_paring"));
    c.args(["attach", "soak", "--watch"]);
    c.cwd(home.dir.path());
    home.variables().for_each(|(k, v)| c.env(k, v));
    let screen = pair.slave.spawn_command(c).expect("the screen starts");
    let (mut out, mut keys) =
        (pair.master.try_clone_reader().expect("reader"), pair.master.take_writer().expect("writer"));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = seen.clone();
    std::thread::spawn(move || {
        let (_pty, mut buf) = (pair.master, [0; 65_536]);
        drop(pair.slave);
        while let Ok(n @ 1..) = out.read(&mut buf) {
            sink.lock().expect("bytes").extend_from_slice(&buf[..n]);
            // As every terminal does when it is asked for the cursor.
            if buf[..n].windows(4).any(|w| w == b"\x1b[6n") {
                let _ = keys.write_all(b"\x1b[1;1R").and_then(|()| keys.flush());
            }
        }
    });
    (screen, seen)
}

/// One round of questions to this behaviour, in words what was wrong.
async fn face(
    rig: &mut Rig,
    line: &mut Line,
    behaviour: &Behaviour,
    before: &Settled,
    step: usize,
) -> Result<(), String> {
    let first = line.state.seq;
    let began = Instant::now();
    while let Err(CommandError::Refused(words)) = rig.send(line, Command::Propose { by: Proposer::Agents }).await {
        if began.elapsed() > PROMPT {
            return Err(format!("is not asked: {words}"));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let note = |when: &str| Command::Note { text: format!("{when} {step}") };
    rig.send(line, note("during")).await.map_err(|e| format!("during: {e}"))?;
    let most = if behaviour.endless { BORNE } else { OVER };
    let done = |s: &State| s.phase == Phase::Review;
    if !rig.until(line, most, done).await {
        if !behaviour.endless {
            return Err(format!("is not over after {OVER:?}"));
        }
        // It may have come to its end at this moment.
        let _ = rig.send(line, Command::Cancel).await;
        if !rig.until(line, PROMPT, done).await {
            return Err("is not cancelled".to_owned());
        }
    }
    rig.send(line, note("after")).await.map_err(|e| format!("after: {e}"))?;
    rig.weigh();
    if let Some(text) = rig.heard.hostile.first() {
        return Err(format!("gets through: {text}"));
    }
    let now = settled(&line.state);
    if now != *before {
        return Err(format!("settles things: {before:?} became {now:?}"));
    }
    let card = line.state.card.as_ref().expect("open");
    for d in line.state.decisions.iter().filter(|d| matches!(d.status, Status::Proposed | Status::Edited)) {
        let again = check(&d.action, &d.target, &card.groups, &card.graph, &line.state.constraints);
        if again.as_ref() != Ok(&d.action) {
            return Err(format!("leaves {d:?}: {again:?}"));
        }
    }
    if line.state.seq <= first {
        return Err("left no trace".to_owned());
    }
    Ok(())
}

/// What the engineer has settled before: one cut approved, one group vetoed, one held to a quarter.
async fn settle(rig: &mut Rig, line: &mut Line) -> [String; 3] {
    let groups = &line.state.card.as_ref().expect("open").groups;
    let free: Vec<String> = groups.iter().filter(|g| g.protected.is_none()).map(|g| g.id.to_string()).collect();
    let [a, b, .., c] = &free[..] else { panic!("three groups of {free:?}") };
    let group = |name: &str| Target::Group(name.to_owned());
    for name in [a, b] {
        let action = Action::Prune { ratio: 0.5, kept: Vec::new() };
        rig.send(line, Command::Decide { target: group(name), action }).await.expect("decided");
    }
    assert!(rig.until(line, PROMPT, |s| s.decisions.len() == 2).await);
    let ids: Vec<DecisionId> = line.state.decisions.iter().map(|d| d.id).collect();
    rig.send(line, Command::Approve { ids: vec![ids[0]] }).await.expect("approved");
    rig.send(line, Command::Veto { ids: vec![ids[1]], reason: "not this one".to_owned() }).await.expect("vetoed");
    let constraint =
        Constraint { target: group(c), limit: Limit::MaxRatio { ratio: 0.25 }, reason: "at most".to_owned() };
    rig.send(line, Command::Constrain { constraint }).await.expect("constrained");
    assert!(rig.until(line, PROMPT, |s| settled(s).vetoed.len() == 1 && s.constraints.len() == 2).await);
    [c.clone(), b.clone(), a.clone()]
}

#[test]
#[ignore = "by hand: minutes, see the head of `main.rs`"]
fn servers() {
    let (server, elsewhere) = (Server::start(), Server::start());
    let url = server.url.clone();
    let mut rig = Rig::new(&[], |_, spec| OpenSpec { llm_url: Some(url), llm_model: Some("m".to_owned()), ..spec });
    let (mut rng, ends) = (rng(1), deadline());
    rig.start();
    let runtime = runtime();
    let (kinds, faced, mut screen, seen) = runtime.block_on(async {
        let mut line = rig.connect().await.expect("connected");
        let (screen, seen) = watch(&rig.home);
        // Measured first: a proposal of the planner's brings it along.
        rig.send(&mut line, Command::Propose { by: Proposer::Planner }).await.expect("asked");
        assert!(rig.until(&mut line, Duration::from_secs(240), |s| s.phase == Phase::Review && s.seq > 5).await);
        let [group, vetoed, approved] = settle(&mut rig, &mut line).await;
        let before = settled(&line.state);
        let mut table = http::behaviours(&elsewhere.url);
        table.extend(answers::behaviours(&group, &vetoed, &approved));
        let only = std::env::var("SOAK_ONLY").unwrap_or_default();
        table.retain(|b| b.name.contains(&only));
        let mut step = 0;
        for pass in 0.. {
            for i in 0..table.len() {
                let behaviour = if pass == 0 { &table[i] } else { &table[rng.random_range(0..table.len())] };
                let cut = (pass > 0 && rng.random_bool(0.3)).then(|| rng.random_range(0..4_000));
                let tear = Tear { seed: if pass > 0 { rng.random_range(1..u64::MAX) } else { 0 }, cut };
                server.play(behaviour.clone(), tear);
                // Names of models are asked for where none is given.
                let model = behaviour.models.is_none().then(|| "m".to_owned());
                let llm = Command::SetLlm { base_url: Some(server.url.clone()), model };
                rig.send(&mut line, llm).await.expect("set");
                let began = Instant::now();
                let faced = face(&mut rig, &mut line, behaviour, &before, step).await;
                let seed = setting("SOAK_SEED", 1);
                if let Err(words) = faced {
                    panic!("seed {seed}, step {step}, server `{}` ({tear:?}) {words}", behaviour.name);
                }
                let met = elsewhere.met.load(Ordering::Relaxed);
                assert_eq!(met, 0, "seed {seed}, step {step}, server `{}`: somebody called elsewhere", behaviour.name);
                if began.elapsed() > Duration::from_secs(8) {
                    println!("slow: `{}` took {:.1} s", behaviour.name, began.elapsed().as_secs_f64());
                }
                step += 1;
                if pass > 0 && Instant::now() > ends {
                    break;
                }
            }
            if Instant::now() > ends {
                break;
            }
        }
        rig.send(&mut line, Command::Stop).await.expect("stops");
        (table.len(), step, screen, seen)
    });
    rig.ended(PROMPT);
    screen.wait().expect("the screen ends with its host");
    let state = rig.check().unwrap_or_else(|words| panic!("{words}"));
    rig.no_secret().unwrap_or_else(|words| panic!("{words}"));
    let log = String::from_utf8_lossy(&std::fs::read(rig.place.log_file()).expect("a log")).into_owned();
    let found: Vec<char> = log.chars().filter(|c| steers(*c)).take(10).collect();
    assert!(found.is_empty(), "the log lets {found:?} through");
    let drawn = String::from_utf8_lossy(&seen.lock().expect("bytes")).into_owned();
    // (Backgrounds and foregrounds of the screen's own are sequences too, of other numbers.)
    for foreign in [
        "\u{1b}]0;soak",
        "\u{1b}]52;c;cm0",
        "\u{1b}[31337",
        "\u{9b}",
        "\u{90}",
        "\u{202e}",
        "\u{200b}",
        "\u{e0041}",
        KEY,
    ] {
        assert!(!drawn.contains(foreign), "the screen drew {:?}", foreign.escape_debug().to_string());
    }
    assert!(drawn.len() > 10_000, "the screen was there: {drawn:?}");
    let said: Vec<Record> = rig.records();
    println!(
        "servers: {kinds} behaviours, {faced} times, {} proposals open, {} events, {} of them heard; longest answer {} ms; \
         peak {} MB beyond the model of {} allowed; 0 violations",
        state.open().len(),
        said.len(),
        rig.heard.len(),
        rig.slowest.as_millis(),
        rig.beyond / 1_000_000,
        MEMORY / 1_000_000,
    );
}
