//! SIGKILL of every way to write a model in every format, at random moments, onto nothing and over an older file: what is
//! under its name afterwards is nothing, the old one or the new one, to the last byte.

use crate::rig::{Rig, rng, runtime, setting};
use crate::small::model;
use paring::model::{LoadOptions, load};
use paring::plan::{Action, DecisionId, Target};
use paring::session::{Command, Phase};
use rand::Rng;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

const FORMATS: [(&str, &str); 3] = [("safetensors", "m.safetensors"), ("onnx", "m.onnx"), ("pytorch", "m")];

/// Every file under `path`, by its place in it; `None`: nothing is there.
fn content(path: &Path) -> Option<BTreeMap<PathBuf, Vec<u8>>> {
    let mut out = BTreeMap::new();
    let mut left = vec![path.to_owned()];
    while let Some(at) = left.pop() {
        if at.is_dir() {
            left.extend(std::fs::read_dir(&at).expect("listed").flatten().map(|e| e.path()));
        } else if let Ok(bytes) = std::fs::read(&at) {
            out.insert(at.strip_prefix(path).expect("within").to_owned(), bytes);
        }
    }
    path.exists().then_some(out)
}

fn remove(path: &Path) {
    if path.is_dir() {
        std::fs::remove_dir_all(path).expect("removed");
    } else if path.exists() {
        std::fs::remove_file(path).expect("removed");
    }
}

fn scratch(dir: &Path) -> usize {
    let names = std::fs::read_dir(dir).expect("listed").flatten().map(|e| e.file_name());
    names.filter(|n| n.to_string_lossy().starts_with(".paring-")).count()
}

/// A session with an accepted round, closed.
fn accepted() -> Rig {
    let mut rig = Rig::new(&[], |_, spec| spec);
    rig.start();
    runtime().block_on(async {
        let mut line = rig.connect().await.expect("connected");
        let groups = &line.state.card.as_ref().expect("open").groups;
        let free = groups.iter().find(|g| g.protected.is_none()).expect("a free group").id.to_string();
        let action = Action::Prune { ratio: 0.5, kept: Vec::new() };
        let ids = vec![DecisionId(line.state.next_decision)];
        rig.send(&mut line, Command::Decide { target: Target::Group(free), action }).await.expect("decided");
        rig.send(&mut line, Command::Approve { ids }).await.expect("approved");
        rig.send(&mut line, Command::Run).await.expect("runs");
        let most = Duration::from_secs(240);
        assert!(rig.until(&mut line, most, |s| s.phase == Phase::Verdict).await, "{:?}", line.state.failure);
        while rig.send(&mut line, Command::Accept).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        rig.send(&mut line, Command::Stop).await.expect("stops");
    });
    rig.ended(Duration::from_secs(60));
    rig
}

#[test]
#[ignore = "by hand: minutes, see the head of `main.rs`"]
fn exports() {
    let (mut rng, seed) = (rng(4), setting("SOAK_SEED", 1));
    let rig = accepted();
    // What is converted is larger, so that writing it takes a while.
    let large = rig.home.path("large.safetensors");
    let classes = paring::data::synthetic::CLASSES.len();
    let spec = paring::model::families::CifarResnetSpec { blocks: 3, widths: [64, 128, 256], classes, image: 32 };
    let spec = paring::model::FamilySpec::CifarResnet(spec);
    let made = paring::model::random(&spec, 5);
    paring::model::export::safetensors(&large, &made, &Default::default()).expect("written");
    let other = rig.home.path("other.safetensors");
    model(&other, 9);
    let (dir, old) = (rig.home.path("out"), rig.home.path("old"));
    [&dir, &old].iter().for_each(|d| std::fs::create_dir(d).expect("made"));

    let each = setting("SOAK_KILLS", 120) as usize / 6;
    let (mut killed, mut in_writing, mut new, mut kept, mut none) = (0, 0, 0, 0, 0);
    for (way, source) in [("export", "soak"), ("convert", large.to_str().expect("utf-8"))] {
        for (format, name) in FORMATS {
            let path = dir.join(name);
            let to = path.to_str().expect("utf-8").to_owned();
            let start = |source: &str, to: &str, way: &str| {
                let mut c = rig.home.command(&[way, source, "--out", to, "--format", format]);
                c.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
                c
            };
            // What comes out when nobody interferes, twice; and an older file of the same kind.
            let began = Instant::now();
            let out = start(source, &to, way).output().expect("runs");
            let whole = began.elapsed();
            assert!(out.status.success(), "{way} {format}: {}", String::from_utf8_lossy(&out.stderr));
            load(&path, &LoadOptions::default()).unwrap_or_else(|e| panic!("{way} {format}: {e}"));
            let expected = content(&path).expect("there");
            let older = old.join(name);
            remove(&older);
            let out = start(other.to_str().expect("utf-8"), older.to_str().expect("utf-8"), "convert").output();
            assert!(out.expect("runs").status.success(), "an older {format}");
            let before = content(&older).expect("there");
            assert_ne!(before, expected);
            for n in 0..each {
                let over = rng.random_bool(0.5);
                remove(&path);
                if over {
                    let copied = std::process::Command::new("cp").arg("-r").args([&older, &path]).status();
                    assert!(copied.expect("copies").success());
                }
                let left = scratch(&dir);
                let mut child = start(source, &to, way).spawn().expect("runs");
                if rng.random_bool(0.5) {
                    std::thread::sleep(whole.mul_f64(rng.random_range(0.0..1.2)));
                } else {
                    // As soon as it writes, and a little later: what was left by those before goes first.
                    let began = Instant::now();
                    while scratch(&dir) == left
                        && began.elapsed() < whole * 2
                        && child.try_wait().expect("a child").is_none()
                    {
                        std::thread::sleep(Duration::from_micros(200));
                    }
                    std::thread::sleep(Duration::from_micros(rng.random_range(0..20_000)));
                }
                let ended = child.try_wait().expect("a child").is_some();
                child.kill().expect("killed");
                child.wait().expect("reaped");
                killed += usize::from(!ended);
                in_writing += usize::from(scratch(&dir) > 0);
                match content(&path) {
                    None if !over => none += 1,
                    Some(found) if found == expected => new += 1,
                    Some(found) if over && found == before => kept += 1,
                    found => {
                        let files: Vec<_> = found.iter().flatten().map(|(p, b)| (p.clone(), b.len())).collect();
                        panic!("seed {seed}, {way} {format}, kill {n} (over an older one: {over}) leaves {files:?}");
                    }
                }
            }
            remove(&path);
            let out = start(source, &to, way).output().expect("runs");
            assert!(out.status.success(), "{way} {format} at last: {}", String::from_utf8_lossy(&out.stderr));
            assert_eq!(content(&path).as_ref(), Some(&expected), "{way} {format}: the same bytes again");
            assert_eq!(scratch(&dir), 0, "{way} {format}: what the dead left is gone");
        }
    }
    rig.no_secret().unwrap_or_else(|words| panic!("{words}"));
    println!(
        "exports: {killed} killed of {} in {} formats by export and convert, {in_writing} while they wrote; {none} left nothing, {kept} \
         the older, {new} the new one whole, 0 anything else; 0 violations",
        each * 2 * FORMATS.len(),
        FORMATS.len(),
    );
}
