//! Whole sessions in a pseudo-terminal, driven by keys and read from the screen: the real binary, its detached host and
//! the bundled demo.

#[path = "common/fake_llm.rs"]
mod fake_llm;
#[path = "common/pty.rs"]
mod pty;

use fake_llm::{Answer, FakeLlm, Step, delta};
use pty::{Home, LONG, Term, review};
use serde_json::{Value, json};
use std::time::Duration;

/// Small enough for a busy machine; loose enough to be accepted.
const OPEN: [&str; 13] = [
    "open",
    "demo:cnn",
    "--name",
    "e2e",
    "--limit",
    "200",
    "--calib-limit",
    "600",
    "--threads",
    "2",
    "--budget",
    "macs=0.8,drop=40",
    "--seed=1",
];

/// A group that was proposed to be pruned: its id, its units, and how many are kept.
#[derive(Debug)]
struct Proposal {
    id: u64,
    group: String,
    size: u64,
    kept: u64,
}

/// The pruning proposals in the journal whose rows can be found by name.
fn proposals(home: &Home) -> Vec<Proposal> {
    let opened = home.events_of("e2e", "opened");
    let groups = opened[0]["card"]["groups"].as_array().expect("groups").clone();
    let names: Vec<String> = opened[0]["card"]["graph"]["nodes"]
        .as_array()
        .expect("nodes")
        .iter()
        .map(|n| n["name"].as_str().unwrap_or("").to_owned())
        .collect();
    let mut out = Vec::new();
    for d in
        home.events_of("e2e", "proposed").iter().flat_map(|e| e["decisions"].as_array().cloned().unwrap_or_default())
    {
        let name = d["target"]["name"].as_str().unwrap_or("").to_owned();
        let alone = names.iter().filter(|n| n.contains(&name)).count() == 1;
        if d["action"]["action"] != "prune" || !alone {
            continue;
        }
        let group = groups.iter().find(|g| g["id"] == name.as_str()).expect("a group of that name");
        let kept = d["action"]["kept"].as_array().map_or(0, Vec::len) as u64;
        out.push(Proposal {
            id: d["id"].as_u64().expect("id"),
            group: name,
            size: group["size"].as_u64().unwrap_or(0),
            kept,
        });
    }
    out
}

/// Puts the cursor on the row of a group and waits until its card shows.
fn go_to(t: &mut Term, p: &Proposal) -> String {
    t.press(&format!(":filter {}\r", p.group));
    t.wait_for("the filtered list", LONG, |s| s.contains("1/2 ─") || s.contains("2/2 ─"));
    t.press("n");
    let shows = format!("{} → ", p.size);
    let tail = p.group.rsplit('.').next().unwrap_or(&p.group).to_owned();
    t.wait_for(&format!("the card of {}", p.group), LONG, |s| s.contains(&shows) && s.contains(&tail))
}

/// The proposals are on the screen and no job runs any more.
fn wait_for_review(t: &Term) -> String {
    let done = |s: &str| !s.contains("interrupts") && review(s).is_some_and(|(_, all)| all > 0);
    t.wait_for("proposals and silence", LONG, done)
}

#[test]
fn a_whole_session_by_keys() {
    let home = Home::new(&[]);
    let mut t = Term::start(&home, &OPEN, 120, 40);
    let first = t.wait("paring");
    assert!(!first.contains("panicked"), "{first}");
    let screen = wait_for_review(&t);
    assert!(screen.contains("planner"), "the stream shows who speaks:\n{screen}");
    assert!(screen.contains("goal") && screen.contains("MACs ≤ 0.80x"), "{screen}");
    let all = proposals(&home);
    assert!(all.len() >= 3, "{all:?}");
    let (edited, vetoed) = (&all[0], &all[1]);

    // What one looks for before approving is within three keys on a session of one's own, too; `screen` has every size.
    go_to(&mut t, edited);
    for (key, words) in [
        ("8", &["peak memory", "p50", "images/s", "made by", "read by", "KL alone", "int8", "inputs"][..]),
        ("7", &["beside"]),
        ("9", &["FLOP/B", "GFLOP/s"]),
        ("\t", &["peak"]),
        ("K", &["median"]),
    ] {
        t.press(key);
        t.wait_for(key, LONG, |s| words.iter().all(|w| s.contains(w)));
    }
    t.press("\x1b");
    t.wait_for("the words to go", LONG, |s| !s.contains("median"));
    t.press("1");
    t.wait("layers");

    // Edit one: one step more of it, kept with enter.
    go_to(&mut t, edited);
    t.press("]");
    t.wait("editing");
    t.press("\r");
    t.wait("edited");

    // Veto one, with a reason.
    go_to(&mut t, vetoed);
    t.press("v");
    t.wait("why?");
    t.press("the skip needs it\r");
    t.wait("vetoed");

    // Approve the rest.
    t.press(":filter\r");
    t.wait_for("the whole list", LONG, |s| !s.contains("/2 ─"));
    t.press("Y");
    t.wait_for("all settled", LONG, |s| review(s).is_some_and(|(a, b)| a == b && b > 0));

    // Run, look at the evaluation, accept.
    t.press("R");
    t.wait_for("the verdict", LONG, |s| s.contains("verdict") && s.contains("accepts"));
    t.press("2");
    let screen = t.wait("baseline");
    assert!(screen.contains("round 1"), "{screen}");
    t.press("C");
    t.wait("round 2");
    t.press("1");
    // A round that missed the budget plans the next one by itself; an export waits for that.
    std::thread::sleep(Duration::from_secs(2));
    t.wait_for("silence", LONG, |s| s.contains("review") && !s.contains("interrupts"));

    // Export, and leave for good.
    let file = home.path("small.safetensors");
    t.press("E");
    t.press(&format!("{}\r", file.display()));
    t.wait("exported safetensors");
    t.stop();

    // What the screen showed is what the journal holds.
    let edits = home.events_of("e2e", "edited");
    assert_eq!(edits.len(), 1, "{edits:?}");
    assert_eq!(edits[0]["id"].as_u64(), Some(edited.id));
    assert!((edits[0]["action"]["kept"].as_array().expect("kept").len() as u64) < edited.kept);
    let vetoes = home.events_of("e2e", "vetoed");
    assert_eq!(vetoes[0]["ids"], json!([vetoed.id]));
    assert_eq!(vetoes[0]["reason"], "the skip needs it");
    let applied = &home.events_of("e2e", "applied")[0]["ids"];
    let applied: Vec<u64> = applied.as_array().expect("ids").iter().filter_map(Value::as_u64).collect();
    assert!(applied.contains(&edited.id) && !applied.contains(&vetoed.id), "{applied:?}");
    assert_eq!(home.events_of("e2e", "round_accepted").len(), 1);

    // The exported file is the model that was measured.
    let measured = home.events_of("e2e", "evaluated");
    let measured = &measured.iter().find(|e| e["evaluation"]["round"] == 1).expect("round 1")["evaluation"];
    let again =
        home.json(&["eval", &file.display().to_string(), "--data", "synthetic:eval", "--limit", "200", "--json"]);
    assert_eq!(again["n"], json!(200));
    assert_eq!(again["correct"], measured["metrics"]["classes"]["correct"]);
    let (base, small) = (home.events_of("e2e", "evaluated"), measured["params"].as_u64());
    assert!(small < base[0]["evaluation"]["params"].as_u64(), "{small:?}");
}

/// An answer whose deltas come one by one, slowly enough to be seen.
fn slowly(reasoning: &str, text: &str) -> Answer {
    let mut steps = Vec::new();
    for (field, all) in [("reasoning_content", reasoning), ("content", text)] {
        for piece in fake_llm::pieces(all) {
            steps.push(delta(json!({ field: piece })));
            steps.push(Step::Sleep(Duration::from_millis(25)));
        }
    }
    steps.push(fake_llm::finish("stop"));
    steps.push(Step::Event("[DONE]".into()));
    Answer::stream(steps)
}

#[test]
fn a_session_with_agents_and_a_broken_proposal() {
    let good = "Everything is cheap to cut a little.\n```json\n{\"decisions\":[{\"target\":\"*\",\"action\":\"prune\",\
                \"ratio\":0.25,\"why\":\"flat everywhere\"}],\"summary\":\"a quarter of all\"}\n```";
    let broken = "```json\n{\"decisions\":[{\"target\":\"no.such.layer\",\"action\":\"precision\",\"precision\":\"int8\"}]}\n```";
    let fake = FakeLlm::start(
        &["fake-9b"],
        vec![
            slowly("Pondering the \u{1b}[31mheatmap of costs.", "The early stages dominate."),
            slowly("Weighing ratios.", good),
            slowly("", broken),
            slowly("", "I still cannot name one."),
            Answer::says("", "As forecast; accept it."),
        ],
    );
    let home = Home::new(&[("OPENAI_BASE_URL", &fake.url), ("OPENAI_API_KEY", "sk-not-to-be-shown")]);
    let mut t = Term::start(&home, &OPEN, 120, 40);
    // Reasoning arrives on the screen while it streams, its escape sequence harmless.
    let live = t.wait("heatmap of costs");
    assert!(live.contains("fake-9b") && live.contains("analysis"), "{live}");
    t.wait("Weighing ratios");
    // The broken proposal and its broken correction: the planner stands in, and the screen says so and why.
    let screen = t.wait("I stand in for quantization");
    assert!(screen.contains("planner"), "{screen}");
    t.wait_for("proposals", LONG, |s| review(s).is_some_and(|(_, all)| all > 0));
    let proposed = home.events_of("e2e", "proposed");
    assert_eq!(proposed[0]["decisions"][0]["author"], json!({"by": "agent", "role": "pruning", "model": "fake-9b"}));
    assert_eq!(proposed[0]["decisions"][0]["rationale"], "flat everywhere");
    let said: Vec<String> = home
        .events_of("e2e", "said")
        .iter()
        .map(|e| e["utterance"]["role"].as_str().unwrap_or("").to_owned())
        .collect();
    assert_eq!(said, ["analysis", "pruning", "quantization", "quantization", "planner"]);
    // Four questions: three roles and one correction, which named the error.
    assert_eq!(fake.asked(), 4);
    assert!(fake.question(3).contains("no layer is named `no.such.layer`"), "{}", fake.question(3));

    // Approve what the agent proposed, run; the evaluation role speaks afterwards.
    wait_for_review(&t);
    t.press("Y");
    t.wait_for("all settled", LONG, |s| review(s).is_some_and(|(a, b)| a == b && b > 0));
    t.press("R");
    t.wait_for("the verdict", LONG, |s| s.contains("verdict") && s.contains("accepts"));
    t.press("3");
    t.wait("As forecast; accept it.");
    t.stop();
    // The key is nowhere in the session.
    for entry in walk(&home.path("home")) {
        let bytes = std::fs::read(&entry).unwrap_or_default();
        let leaked = bytes.windows(18).any(|w| w == b"sk-not-to-be-shown");
        assert!(!leaked, "the key is in {}", entry.display());
    }
}

fn walk(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut out = Vec::new();
    for e in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if e.path().is_dir() { out.extend(walk(&e.path())) } else { out.push(e.path()) }
    }
    out
}
