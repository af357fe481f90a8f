//! SIGKILL of the host, of the screen and of headless runs at random moments of their lives: opening, measuring, reviewing,
//! compressing, evaluating, exporting. The same session is opened again and again, and what was promised must be there.

use crate::audit::audit;
use crate::pty::{Home, Term};
use crate::rig::{Line, MEMORY, OPENS, PROMPT, Rig, kill, peak, rng, runtime, setting};
use crate::small::model;
use paring::host::client::CommandError;
use paring::model::{LoadOptions, load};
use paring::plan::{Action, DecisionId, Status, Target};
use paring::session::{Command, Event, Journal, Phase, Proposer, State, is_locked};
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// What an engineer in a hurry does next; `None` while work is under way that is worth waiting for, as all work is to the `calm`.
fn next(state: &State, step: usize, out: &str, calm: bool, rng: &mut ChaCha8Rng) -> Option<Command> {
    let ids = |of: &[Status]| -> Vec<DecisionId> {
        state.decisions.iter().filter(|d| of.contains(&d.status)).map(|d| d.id).collect()
    };
    let one = |ids: Vec<DecisionId>, rng: &mut ChaCha8Rng| match ids.len() {
        0 => Vec::new(),
        n => vec![ids[rng.random_range(0..n)]],
    };
    let (open, any) = (ids(&[Status::Proposed, Status::Edited]), ids(&[Status::Approved, Status::Applied]));
    let export = |rng: &mut ChaCha8Rng| {
        let format = ["safetensors", "onnx", "pytorch"][rng.random_range(0..3)];
        let path = if format == "pytorch" { format!("{out}/folder") } else { format!("{out}/model.{format}") };
        Command::Export { path, format: format.to_owned() }
    };
    let reason = || "the soak".to_owned();
    let note = || Command::Note { text: format!("note {step}") };
    Some(match state.phase {
        Phase::Verdict => match rng.random_range(0..4) {
            0 => Command::RollBack { reason: reason() },
            1 => export(rng),
            2 => note(),
            _ => Command::Accept,
        },
        Phase::Review => match rng.random_range(0..29) {
            0..6 => {
                let groups = &state.card.as_ref()?.groups;
                let free: Vec<&str> = groups.iter().filter(|g| g.protected.is_none()).map(|g| g.id.as_str()).collect();
                let target = Target::Group(free[rng.random_range(0..free.len())].to_owned());
                let ratio = [0.25, 0.5][rng.random_range(0..2)];
                Command::Decide { target, action: Action::Prune { ratio, kept: Vec::new() } }
            }
            6..13 => Command::Approve { ids: one(open, rng) },
            13 => Command::Veto { ids: one(if rng.random_bool(0.5) { open } else { any }, rng), reason: reason() },
            14 => Command::Reopen { ids: one(ids(&[Status::Approved, Status::Vetoed, Status::RolledBack]), rng) },
            15 => Command::Undo,
            16 => Command::Redo,
            17 => note(),
            18 => export(rng),
            19 if rng.random_bool(0.5) => Command::Rehearse,
            19 => Command::Propose { by: Proposer::Planner },
            _ => Command::Run,
        },
        Phase::Profile | Phase::Reason | Phase::Compress | Phase::Evaluate if calm => return None,
        Phase::Profile | Phase::Reason | Phase::Compress | Phase::Evaluate => match rng.random_range(0..40) {
            0 => note(),
            1 => Command::Cancel,
            _ => return None,
        },
    })
}

/// How somebody works.
pub struct How<'a> {
    pub rng: &'a mut ChaCha8Rng,
    /// Counts what is sent, so that no two notes are alike.
    pub step: &'a mut usize,
    pub calm: bool,
}

/// Works until `enough`, or until the host is gone.
pub async fn work(rig: &mut Rig, line: &mut Line, how: How<'_>, enough: impl Fn(&State, u64) -> bool) {
    let How { rng, step, calm } = how;
    let first = line.state.seq;
    let out = rig.home.path("out").display().to_string();
    while !enough(&line.state, line.state.seq - first) {
        *step += 1;
        match next(&line.state, *step, &out, calm, rng) {
            Some(command) => match rig.send(line, command).await {
                Ok(()) => {}
                Err(CommandError::Refused(_)) => tokio::time::sleep(Duration::from_millis(3)).await,
                Err(CommandError::Gone) => return,
            },
            // Gone is noticed at the next command.
            None => drop(rig.until(line, Duration::from_millis(50), |_| false).await),
        }
    }
}

/// What is there under the names that exports are given opens.
fn exports_are_whole(rig: &Rig) -> Result<usize, String> {
    let mut found = 0;
    for name in ["model.safetensors", "model.onnx", "folder"] {
        let path = rig.home.path("out").join(name);
        if path.exists() {
            load(&path, &LoadOptions::default()).map_err(|e| format!("a torn export: {e}"))?;
            found += 1;
        }
    }
    Ok(found)
}

/// As a start finds it: nothing under way, and applied only what was judged.
fn idle(state: &State) -> Result<(), String> {
    let judged = |id: &DecisionId| state.rounds.iter().any(|r| r.recipe.contains(id) && r.verdict.is_some());
    match state.decisions.iter().find(|d| d.status == Status::Applied && !judged(&d.id)) {
        Some(d) => Err(format!("half done and shown as applied: {d:?}")),
        None if matches!(state.phase, Phase::Compress | Phase::Evaluate) => Err(format!("starts in {:?}", state.phase)),
        None => Ok(()),
    }
}

#[test]
#[ignore = "by hand: minutes, see the head of `main.rs`"]
fn kills() {
    let (mut rng, seed) = (rng(2), setting("SOAK_SEED", 1));
    let mut rig = Rig::new(&[], |_, spec| spec);
    std::fs::create_dir(rig.home.path("out")).expect("made");
    let runtime = runtime();
    let (mut hosts, mut screens, mut young, mut step) = (0, 0, 0, 0);
    // Measured and accepted once, or no kill would ever come after that.
    rig.start();
    runtime.block_on(async {
        let mut line = rig.connect().await.expect("connected");
        rig.send(&mut line, Command::Propose { by: Proposer::Planner }).await.expect("asked");
        let ends = Instant::now() + Duration::from_secs(300);
        let how = How { rng: &mut rng, step: &mut step, calm: true };
        work(&mut rig, &mut line, how, |s, _| s.base_round() > 0 || Instant::now() > ends).await;
        assert!(line.state.base_round() > 0, "a round is accepted");
    });
    let all = setting("SOAK_KILLS", 120) as usize;
    for n in 0..all {
        let fail = |words: String| -> String { format!("seed {seed}, kill {n}: {words}") };
        if rig.host.is_none() {
            rig.start();
        }
        if rng.random_bool(0.15) {
            // While it opens, or has hardly opened.
            std::thread::sleep(Duration::from_millis(rng.random_range(0..400)));
            (young, hosts) = (young + 1, hosts + 1);
            rig.kill();
        } else if rng.random_bool(0.25) {
            let mut line = runtime.block_on(rig.connect()).unwrap_or_else(|e| panic!("{}", fail(e)));
            let mut term = Term::start(&rig.home, &["attach", "soak"], 120, 40);
            std::thread::sleep(Duration::from_millis(rng.random_range(0..600)));
            for _ in 0..rng.random_range(0..12) {
                term.press(
                    ["a", "j", "A", "]\r", "R", "C", "Y", "k", "?", "\x1b", "\t", ":note x\r"][rng.random_range(0..12)],
                );
                std::thread::sleep(Duration::from_millis(rng.random_range(0..60)));
            }
            term.kill();
            screens += 1;
            let note = Command::Note { text: format!("after screen {n}") };
            let sent = runtime.block_on(rig.send(&mut line, note));
            assert_eq!(sent, Ok(()), "{}", fail("the host goes with its screen".to_owned()));
        } else {
            let mut line = runtime.block_on(rig.connect()).unwrap_or_else(|e| panic!("{}", fail(e)));
            idle(&line.state).unwrap_or_else(|words| panic!("{}", fail(words)));
            let patience = Instant::now() + Duration::from_secs(30);
            let how = How { rng: &mut rng, step: &mut step, calm: n % 3 == 0 };
            if n % 3 == 0 {
                // Until there is more to lose.
                let judged = |s: &State| s.rounds.iter().filter(|r| r.verdict.is_some()).count();
                let before = judged(&line.state);
                let enough = |s: &State, _| judged(s) > before || Instant::now() > patience;
                runtime.block_on(work(&mut rig, &mut line, how, enough));
                let most = Instant::now() + Duration::from_millis(rng.random_range(0..1_500));
                let how = How { rng: &mut rng, step: &mut step, calm: false };
                runtime.block_on(work(&mut rig, &mut line, how, |_, _| Instant::now() > most));
            } else if n % 3 == 1 {
                // Counted in events, so that a slow machine gets as far as a fast one.
                let (events, moment) = (how.rng.random_range(1..16), how.rng.random_range(0..40));
                let enough = |_: &State, n| n >= events || Instant::now() > patience;
                runtime.block_on(work(&mut rig, &mut line, how, enough));
                std::thread::sleep(Duration::from_millis(moment));
            } else {
                let (pid, moment) = (rig.pid() as i32, Duration::from_millis(how.rng.random_range(0..5_000)));
                rig.weigh();
                let killer = std::thread::spawn(move || {
                    std::thread::sleep(moment);
                    kill(pid);
                });
                runtime.block_on(work(&mut rig, &mut line, how, |_, _| Instant::now() > patience));
                killer.join().expect("killed");
            }
            hosts += 1;
            rig.kill();
            // What was under way when the host died may still be on its way here.
            runtime.block_on(async { while rig.wait(&mut line, Duration::from_millis(20)).await {} });
        }
        if rig.host.is_none() {
            assert!(!is_locked(&rig.place.dir), "{}", fail("the dead hold the lock".to_owned()));
        }
        rig.check().unwrap_or_else(|words| panic!("{}", fail(words)));
        exports_are_whole(&rig).unwrap_or_else(|words| panic!("{}", fail(words)));
    }
    if rig.host.is_none() {
        rig.start();
    }
    let began = Instant::now();
    let exported = runtime.block_on(async {
        let mut line = rig.connect().await.unwrap_or_else(|e| panic!("{e}"));
        rig.send(&mut line, Command::Stop).await.expect("stops");
        line.state.exports.len()
    });
    rig.ended(PROMPT);
    let state = rig.check().unwrap_or_else(|words| panic!("{words}"));
    rig.no_secret().unwrap_or_else(|words| panic!("{words}"));
    let left = |dir: &std::path::Path| {
        let names = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.file_name());
        names.filter(|n| n.to_string_lossy().contains(".tmp")).count()
    };
    assert_eq!(left(&rig.place.artifacts()), 0, "a start removes what the dead left");
    let runs = state.rounds.iter().filter(|r| r.verdict.is_some()).count();
    let began_runs = rig.records().iter().filter(|r| matches!(r.event, Event::RunStarted { .. })).count();
    let all_applied = rig.heard.loaded.len();
    assert!(all < 60 || (runs > 0 && exported > 0), "{runs} runs, {exported} exports: there was nothing to lose");
    println!(
        "kills: {hosts} of hosts ({young} that had hardly opened), {screens} of screens; {} events heard, {} in all, {began_runs} runs begun, {runs} rounds \
         judged, {all_applied} models applied, {exported} exports; last start {:.1} s of {} allowed; peak {} MB beyond the \
         model of {} allowed; 0 violations",
        rig.heard.len(),
        state.seq,
        began.elapsed().as_secs_f64(),
        OPENS.as_secs(),
        rig.beyond / 1_000_000,
        MEMORY / 1_000_000,
    );
}

#[test]
#[ignore = "by hand: minutes, see the head of `main.rs`"]
fn runs() {
    let (mut rng, seed) = (rng(3), setting("SOAK_SEED", 1));
    let home = Home::new(&[]);
    let (checkpoint, out) = (home.path("model.safetensors"), home.path("out"));
    model(&checkpoint, 3);
    let run = || {
        let data = ["--data", "synthetic:eval", "--calib", "synthetic:calib", "--limit", "32", "--calib-limit", "32"];
        let how = ["--threads", "1", "--batch", "1", "--budget", "macs=0.9", "--out", out.to_str().expect("utf-8")];
        let mut c = home.command(&[&["run", checkpoint.to_str().expect("utf-8")][..], &data, &how].concat());
        c.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        c
    };
    // Once through, for how long it takes (and for what others may keep of it).
    let began = Instant::now();
    let first = run().output().expect("runs");
    let whole = began.elapsed();
    assert!(matches!(first.status.code(), Some(0 | 3 | 4)), "{}", String::from_utf8_lossy(&first.stderr));
    let (mut beyond, mut written, mut journals) = (0, 0, 0);
    let all = setting("SOAK_KILLS", 120) as usize / 4;
    for n in 0..all {
        let fail = |words: String| -> String { format!("seed {seed}, run {n}: {words}") };
        // From nothing, or over what an earlier one left.
        if rng.random_bool(0.5) {
            std::fs::remove_dir_all(&out).unwrap_or_default();
        }
        let mut child = run().spawn().expect("runs");
        std::thread::sleep(whole.mul_f64(rng.random_range(0.0..1.1)));
        beyond = beyond.max(peak(child.id()).unwrap_or(0));
        child.kill().expect("killed");
        child.wait().expect("reaped");
        for name in ["model.safetensors", "model.onnx"] {
            let path = out.join(name);
            if path.exists() {
                written += 1;
                load(&path, &LoadOptions::default()).unwrap_or_else(|e| panic!("{}", fail(e.to_string())));
            }
        }
        let report = out.join("report.json");
        if let Ok(text) = std::fs::read(&report) {
            let parsed: Result<serde_json::Value, _> = serde_json::from_slice(&text);
            parsed.unwrap_or_else(|e| panic!("{}", fail(format!("a torn report: {e}"))));
        }
        let session = out.join("session");
        if session.exists() {
            let records = Journal::read(&session).unwrap_or_else(|e| panic!("{}", fail(e.to_string())));
            journals += usize::from(!records.is_empty());
            audit(&records, &session.join("artifacts"), &mut BTreeSet::new()).unwrap_or_else(|e| panic!("{}", fail(e)));
        }
    }
    let last = run().output().expect("runs");
    let words = String::from_utf8_lossy(&last.stderr).into_owned();
    assert!(matches!(last.status.code(), Some(0 | 3 | 4)), "after all of them: {words}");
    let beyond = beyond.saturating_sub(std::fs::metadata(&checkpoint).expect("there").len());
    assert!(beyond < MEMORY, "a run has had {} MB beyond its model", beyond / 1_000_000);
    println!(
        "runs: {all} killed within {:.1} s, {journals} times a journal and {written} times a model were there and whole; peak {} \
         MB beyond the model of {} allowed; 0 violations",
        whole.as_secs_f64(),
        beyond / 1_000_000,
        MEMORY / 1_000_000,
    );
}
