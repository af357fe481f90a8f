//! The real binary without a screen: eval, profile, run, log, and the words and exit codes of what goes wrong.

#[path = "common/fake_llm.rs"]
mod fake_llm;
#[path = "common/small.rs"]
mod small;

use fake_llm::{Answer, FakeLlm};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

struct Rig {
    dir: tempfile::TempDir,
    model: PathBuf,
}

impl Rig {
    fn new() -> Rig {
        let dir = tempfile::tempdir().expect("temp dir");
        let model = dir.path().join("small.safetensors");
        small::model(&model, 3);
        Rig { dir, model }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_paring"));
        command
            .args(args)
            .current_dir(self.dir.path())
            .env("PARING_HOME", self.path("home"))
            .env("XDG_CONFIG_HOME", self.path("config"))
            // What is tested here is not how well latency is known.
            .env("PARING_PATIENCE", "0.1")
            .env_remove("OPENAI_BASE_URL")
            .env_remove("OPENAI_API_KEY");
        command
    }

    fn paring(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("runs")
    }

    fn json(&self, args: &[&str], code: i32) -> Value {
        let out = self.paring(args);
        let stderr = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(code), "{args:?}: {stderr}");
        serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{args:?}: {e}: {stderr}"))
    }

    /// The message of a command that must fail.
    fn fails(&self, args: &[&str], code: i32) -> String {
        let out = self.paring(args);
        let stderr = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(code), "{args:?}: {stderr}");
        assert!(out.stdout.is_empty(), "data only on success");
        assert!(code == 2 || stderr.contains("hint:"), "{stderr}");
        stderr
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("utf-8")
}

#[test]
fn a_run_meets_its_budget_and_its_model_evaluates_as_reported() {
    let rig = Rig::new();
    let (model, out) = (text(&rig.model), rig.path("out"));
    let policy = rig.path("rules.toml");
    std::fs::write(&policy, "[[rule]]\nmatch = \"layer1.*\"\nkind = \"group\"\ndo = \"veto\"\nreason = \"mine\"\n")
        .expect("written");
    let args = [
        "run",
        model,
        "--data",
        "synthetic:eval",
        "--limit",
        "64",
        "--calib",
        "synthetic:calib",
        "--calib-limit",
        "240",
        "--budget",
        "macs=0.8",
        "--policy",
        text(&policy),
        "--precision",
        "int8",
        "--rounds",
        "2",
        "--batch",
        "2",
        "--out",
        text(&out),
        "--json",
    ];
    let report = rig.json(&args, 0);
    assert_eq!(report["met"], true);
    assert!(report["final"]["factors"]["macs"].as_f64().expect("a number") <= 0.8);
    let memory = report["final"]["factors"]["memory"].as_f64().expect("a number");
    assert!(memory < 0.4, "int8 weights are stored as such: {memory}");
    let decisions = report["rounds"][0]["decisions"].as_array().expect("decisions");
    let named = |d: &Value| d["target"]["name"].as_str().unwrap_or_default().to_owned();
    let pruned: Vec<String> = decisions.iter().filter(|d| d["target"]["kind"] == "group").map(named).collect();
    assert!(!pruned.is_empty() && pruned.iter().all(|n| !n.starts_with("layer1.")), "{pruned:?}");

    let written = out.join("model.safetensors");
    let again = rig.json(&["eval", text(&written), "--data", "synthetic:eval", "--limit", "64", "--json"], 0);
    for key in ["n", "correct", "top1", "top5", "loss"] {
        assert_eq!(again[key], report["final"][key], "{key}");
    }
    let on_disk: Value = serde_json::from_slice(&std::fs::read(out.join("report.json")).expect("there")).expect("JSON");
    assert_eq!(on_disk, report);

    let session = out.join("session");
    let log = rig.paring(&["log", text(&session)]);
    let log = String::from_utf8_lossy(&log.stdout).into_owned();
    assert!(log.contains("opened random") && log.contains("round 1 evaluated"), "{log}");
    let lines = rig.paring(&["log", text(&session), "--json"]);
    for line in String::from_utf8_lossy(&lines.stdout).lines() {
        serde_json::from_str::<Value>(line).expect("one object a line");
    }

    // The report: as words on standard output, and both forms as files, of the figures that the run told.
    let words = rig.paring(&["report", text(&session)]);
    let words = String::from_utf8_lossy(&words.stdout).into_owned();
    let score = format!("| {:.2} |", 100.0 * report["final"]["top1"].as_f64().expect("a number"));
    assert!(
        words.starts_with("# random") && words.contains("## Rounds") && words.contains(&score),
        "{score} in {words}"
    );
    let (page, file) = (rig.path("report.html"), rig.path("report.md"));
    let written = rig.paring(&["report", text(&session), "--html", text(&page), "--markdown", text(&file)]);
    assert_eq!(String::from_utf8_lossy(&written.stdout), format!("{}\n{}\n", page.display(), file.display()));
    assert_eq!(std::fs::read_to_string(&file).expect("written"), words);
    assert!(std::fs::read_to_string(&page).expect("written").starts_with("<!DOCTYPE html>"));
    // `-` is standard output, alone; both cannot go there.
    let dashed = rig.paring(&["report", text(&session), "--markdown", "-", "--html", text(&page)]);
    assert_eq!(String::from_utf8_lossy(&dashed.stdout), words);
    let dashed = rig.paring(&["report", text(&session), "--html", "-"]);
    assert!(dashed.stdout.starts_with(b"<!DOCTYPE html>") && !rig.path("-").exists());
    assert!(rig.fails(&["report", text(&session), "--html", "-", "--markdown", "-"], 1).contains("hint:"));

    // A picture has the colours that were asked for; without a word, all of them.
    let colours = |flags: &[&str]| {
        let svg = rig.path("screen.svg");
        let args = [&["screenshot", text(&session), "--size", "120x40", "--out", text(&svg)], flags].concat();
        let out = rig.command(&args).env("NO_COLOR", "1").output().expect("runs");
        assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
        let svg = std::fs::read_to_string(&svg).expect("written");
        svg.split("fill=\"").skip(1).map(|s| s[..7].to_owned()).collect::<std::collections::BTreeSet<_>>().len()
    };
    let (all, some, two) = (colours(&[]), colours(&["--colors", "16"]), colours(&["--colors", "none"]));
    assert!(all > some && some > two && (1..=2).contains(&two), "{all} {some} {two}");
    assert!(some <= 18, "sixteen, and the ground: {some}");
}

#[test]
fn a_budget_out_of_reach_says_how_near_it_got() {
    let rig = Rig::new();
    let (model, out, policy) = (text(&rig.model), rig.path("out"), rig.path("rules.toml"));
    std::fs::write(&policy, "[[rule]]\nmatch = \"*\"\nkind = \"group\"\ndo = \"limit\"\nratio = 0.25\n")
        .expect("written");
    let args = [
        "run",
        model,
        "--data",
        "synthetic:eval",
        "--limit",
        "32",
        "--calib",
        "synthetic:calib",
        "--calib-limit",
        "240",
        "--budget",
        "macs=0.1",
        "--policy",
        text(&policy),
        "--batch",
        "2",
        "--out",
        text(&out),
    ];
    let run = rig.paring(&args);
    let stderr = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(3), "{stderr}");
    assert!(stderr.contains("macs reached") && stderr.contains("of 0.1"), "{stderr}");
    assert!(out.join("model.safetensors").is_file() && out.join("report.json").is_file());
}

#[test]
fn mistakes_are_told_in_words() {
    let rig = Rig::new();
    let model = text(&rig.model);
    let out = rig.path("out");
    let run = |extra: &[&'static str]| -> Vec<String> {
        let mut args = vec!["run", model, "--out", text(&out)];
        args.extend(extra);
        args.iter().map(|s| (*s).to_owned()).collect()
    };
    let cases: [(Vec<String>, i32, &str); 6] = [
        (run(&["--data", "synthetic:eval", "--calib", "synthetic:eval"]), 1, "--calib-is-eval"),
        (run(&["--data", "nowhere", "--calib", "synthetic:calib"]), 1, "nowhere"),
        (run(&["--data", "synthetic:eval", "--budget", "macs=7"]), 2, "macs"),
        (run(&["--data", "synthetic:eval", "--policy", "none.toml"]), 2, "none.toml"),
        (run(&["--data", "synthetic:eval", "--device", "cuda:7"]), 1, "cuda:7"),
        (run(&["--what"]), 2, "--what"),
    ];
    for (args, code, names) in cases {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let words = rig.fails(&args, code);
        assert!(words.contains(names), "{args:?}: {words}");
    }
    assert!(rig.fails(&["attach", "nobody"], 1).contains("`nobody`"));
    assert!(rig.fails(&["eval", "no-such-file", "--data", "synthetic"], 1).contains("no-such-file"));
    assert!(rig.fails(&["open", "no-such-file", "--data", "synthetic", "--detach"], 1).contains("no-such-file"));
    // What could not be opened is no session, and without a terminal nothing is begun.
    let model = text(&rig.model);
    assert!(rig.fails(&["open", model, "--data", "synthetic:eval"], 1).contains("not a terminal"));
    assert_eq!(rig.json(&["ls", "--json"], 0), serde_json::json!([]));
}

#[test]
fn profile_is_a_table_or_json() {
    let rig = Rig::new();
    let model = text(&rig.model);
    let profile = rig.json(&["profile", model, "--batch", "1", "--runs", "5", "--json"], 0);
    assert!(profile["rows"].as_array().is_some_and(|r| !r.is_empty()) && profile.get("parameters").is_none());
    let table = rig.paring(&["profile", model, "--batch", "1", "--runs", "5", "--parameters"]);
    let table = String::from_utf8_lossy(&table.stdout);
    assert!(table.contains("whole model") && table.contains("effective rank"), "{table}");
    let profile = rig.json(&["profile", model, "--batch", "1", "--runs", "5", "--parameters", "--json"], 0);
    let weights = profile["parameters"].as_array().expect("a line a weight");
    let sound = |w: &serde_json::Value| {
        let rank = w["rank"]["effective"].as_f64().is_none_or(|r| r >= 1.0 && Some(r) <= w["rank"]["full"].as_f64());
        w["l2"].as_f64().is_some_and(|l2| l2 > 0.0) && rank && table.contains(w["name"].as_str().unwrap_or("?"))
    };
    assert!(weights.len() > 5 && weights.iter().all(sound), "{weights:?}");
    assert!(weights.iter().any(|w| w["rank"].is_object()) && weights.iter().any(|w| w["scales"].is_object()));
}

#[test]
fn a_detached_session_can_be_listed_exported_and_stopped() {
    let rig = Rig::new();
    let model = text(&rig.model);
    let open = [
        "open",
        model,
        "--data",
        "synthetic:eval",
        "--limit",
        "16",
        "--calib",
        "synthetic:calib",
        "--calib-limit",
        "240",
        "--name",
        "s",
        "--detach",
    ];
    let out = rig.paring(&open);
    assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
    let ls = rig.json(&["ls", "--json"], 0);
    assert_eq!((&ls[0]["name"], &ls[0]["running"]), (&Value::from("s"), &Value::from(true)));
    assert!(rig.fails(&["export", "s"], 1).contains("hint:"), "busy, or nothing to export yet");
    let again = rig.paring(&open);
    assert_eq!(again.status.code(), Some(0), "opening again finds the running one");
    assert_eq!(rig.paring(&["stop", "s"]).status.code(), Some(0));
    let ls = rig.json(&["ls", "--json"], 0);
    assert_eq!(ls[0]["running"], false);
    let other = ["open", model, "--data", "synthetic:calib", "--calib", "synthetic:train", "--name", "s", "--detach"];
    assert!(rig.fails(&other, 1).contains("`s`"), "another data set is another session");
}

/// Standard output that nobody reads any more, as behind `| head`.
fn nobody() -> std::process::Stdio {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    writer.into()
}

#[test]
fn closed_and_full_streams_are_no_crash() {
    use std::process::Stdio;
    let rig = Rig::new();
    let (model, out) = (text(&rig.model), rig.path("out"));
    let run = ["run", model, "--data", "synthetic:eval", "--calib", "synthetic:calib", "--limit", "8", "--precision"];
    let run: Vec<&str> = run.into_iter().chain(["int8", "--batch", "2", "--out", text(&out), "--json"]).collect();
    let full = || Stdio::from(std::fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full"));
    let ends = |args: &[&str], stdout: Stdio, stderr: Stdio| {
        let out = rig.command(args).stdout(stdout).stderr(stderr).output().expect("runs");
        let words = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!words.contains("panicked") && !words.contains("roken pipe"), "{args:?}: {words}");
        (out.status.code(), words)
    };
    // The result of a run does not depend on who reads it.
    let (code, words) = ends(&run, nobody(), Stdio::piped());
    assert_eq!(code, Some(0), "{words}");
    let session = out.join("session");
    let eval = ["eval", model, "--data", "synthetic:eval", "--limit", "8"];
    let profile = ["profile", model, "--runs", "1", "--batch", "2"];
    let with = |args: &[&'static str]| args.to_vec();
    let commands: Vec<Vec<&str>> = vec![
        with(&["ls", "--json"]),
        with(&["--help"]),
        vec!["log", text(&session)],
        vec!["log", text(&session), "--json"],
        eval.to_vec(),
        eval.into_iter().chain(["--json"]).collect(),
        profile.to_vec(),
        profile.into_iter().chain(["--json"]).collect(),
    ];
    for args in &commands {
        let (code, words) = ends(args, nobody(), Stdio::piped());
        assert_eq!(code, Some(0), "{args:?}: {words}");
        let (code, words) = ends(args, full(), Stdio::piped());
        assert_eq!(code, Some(1), "{args:?}: {words}");
        assert!(words.contains("standard output cannot be written"), "{args:?}: {words}");
        let (code, _) = ends(args, Stdio::piped(), full());
        assert_eq!(code, Some(0), "{args:?} with standard error full");
    }
    let (code, _) = ends(&["eval", "nowhere.safetensors"], Stdio::piped(), full());
    assert_eq!(code, Some(1), "an error that cannot be told is still one");
}

#[test]
fn agents_of_a_run_are_told_nothing_of_the_evaluation_data() {
    let rig = Rig::new();
    let (model, out) = (text(&rig.model), rig.path("out"));
    let prune = r#"A quarter of all.
```json
{"decisions":[{"target":"*","action":"prune","ratio":0.25,"why":"flat"}],"summary":"s"}
```"#;
    let none = "```json\n{\"decisions\":[],\"summary\":\"nothing\"}\n```";
    let says = |text: &str| Answer::says("", text);
    let round = [says("The first stage is cheap."), says(prune), says(none)];
    let fake = FakeLlm::start(&["fake-9b"], round.iter().cycle().take(6).cloned().collect());
    // Out of reach, so that a second round asks again, with a first one measured.
    let args =
        ["run", model, "--data", "synthetic:eval", "--calib", "synthetic:calib", "--limit", "77", "--calib-limit"];
    let args =
        args.into_iter().chain(["240", "--budget", "macs=0.2", "--rounds", "2", "--batch", "2", "--out", text(&out)]);
    let args: Vec<&str> = args.chain(["--llm-url", &fake.url, "--llm-model", "fake-9b", "--json"]).collect();
    let report = rig.json(&args, 3);
    assert_eq!(report["rounds"].as_array().map(Vec::len), Some(2), "two rounds were measured");
    let requests = fake.requests.lock().expect("requests").clone();
    assert_eq!(requests.len(), 6, "three roles a round, and nobody is asked to judge what must not be known");
    let base = &report["baseline"];
    let top1 = |v: &Value| format!("{:.2} %", 100.0 * v["top1"].as_f64().expect("a number"));
    let mut secrets = vec![top1(base), "synthetic-eval".to_owned(), "of 77 images".to_owned()];
    for r in report["rounds"].as_array().expect("rounds") {
        secrets.extend([top1(&r["measured"]), format!("{:+.2} [", r["verdict"]["d_top1"].as_f64().expect("a number"))]);
    }
    secrets.extend(
        ["original top-1", "Rounds measured", "against measurement", "verdict", "per-class"].map(str::to_owned),
    );
    for (i, request) in requests.iter().enumerate() {
        let all: String =
            request["messages"].as_array().expect("messages").iter().filter_map(|m| m["content"].as_str()).collect();
        assert!(all.contains("macs=0.2"), "a prompt: {all}");
        for secret in &secrets {
            assert!(!all.contains(secret.as_str()), "request {i} tells `{secret}`:\n{all}");
        }
    }
}

/// What a flag cannot mean is wrong usage, whichever command it is of.
#[test]
fn values_that_cannot_be_are_wrong_usage() {
    let rig = Rig::new();
    let eval = ["eval", "demo:cnn", "--data", "synthetic:eval"];
    for (flag, value) in [
        ("--precision", "w3"),
        ("--sparsity", "90x"),
        ("--mean", "1,2"),
        ("--std", "x"),
        ("--arch", "alexnet"),
        ("--device", "tpu"),
    ] {
        let said = rig.fails(&[&eval[..], &[flag, value]].concat(), 2);
        assert!(said.contains(value), "{flag}: {said}");
    }
    for args in [
        &["eval", "demo:lm", "--data", "synthetic:eval", "--targets", "some"][..],
        &["profile", "demo:lm", "--decode", "4", "--kv", "f8"],
        &["generate", "demo:lm", "-p", "x", "--kv", "f8"],
        &["generate", "demo:lm", "-p", "x", "--level", "most"],
        &["robust", "demo:cnn", "--data", "synthetic:eval", "--epsilon", "300"],
        &["robust", "demo:cnn", "--data", "synthetic:eval", "--attacks", "cw"],
        &["robust", "demo:cnn", "--data", "synthetic:eval", "--corruptions", "fog"],
        &[
            "heal",
            "demo:cnn",
            "--from",
            "demo:cnn",
            "--calib",
            "synthetic:calib",
            "--for",
            "soon",
            "--out",
            "h.safetensors",
        ],
    ] {
        let said = rig.fails(args, 2);
        assert!(args.iter().any(|a| said.contains(&format!("`{a}`"))), "{args:?}: {said}");
    }
    // What is not there is no wrong usage.
    rig.fails(&["eval", "none.safetensors", "--data", "synthetic:eval"], 1);
}

#[test]
fn what_a_terminal_and_a_machine_can_do_is_told_and_a_profile_becomes_a_trace() {
    let rig = Rig::new();
    let found = rig.json(&["doctor", "--json"], 0);
    let health = |found: &Value, what: &str| {
        let all = found.as_array().expect("findings").iter();
        all.filter(|f| f["what"] == what).map(|f| f["health"].as_str().unwrap_or_default().to_owned()).next()
    };
    for what in ["terminal", "colours", "text", "configuration", "sessions", "sockets", "device", "memory", "agents"] {
        assert!(health(&found, what).is_some(), "{what}: {found}");
    }
    assert_eq!(health(&found, "sessions").as_deref(), Some("ok"));
    // A configuration that is wrong, and a key that is never shown.
    std::fs::create_dir_all(rig.path("config/paring")).expect("made");
    std::fs::write(rig.path("config/paring/config.toml"), "[screen]\nthemes = 3\n").expect("written");
    let mut doctor = rig.command(&["doctor", "--json"]);
    doctor.env("OPENAI_BASE_URL", "http://127.0.0.1:9/v1").env("OPENAI_API_KEY", "sk-secret");
    let out = doctor.output().expect("runs");
    let words = String::from_utf8_lossy(&out.stdout).into_owned();
    assert_eq!(out.status.code(), Some(1), "{words}");
    let found: Value = serde_json::from_str(&words).expect("json");
    assert_eq!(health(&found, "configuration").as_deref(), Some("bad"), "{words}");
    assert_eq!(health(&found, "agents").as_deref(), Some("weak"), "{words}");
    assert!(!words.contains("sk-secret"));
    std::fs::remove_file(rig.path("config/paring/config.toml")).expect("removed");

    let (model, trace) = (rig.model.display().to_string(), rig.path("trace.json"));
    let run = rig.path("board/first").display().to_string();
    let args = ["profile", &model, "--json", "--trace", &trace.display().to_string(), "--tensorboard", &run];
    let profile = rig.json(&args, 0);
    // One run a folder, and what is in it is TensorBoard's: a record of 24 bytes first, the version's.
    let files: Vec<_> = std::fs::read_dir(&run).expect("a folder").flatten().map(|e| e.path()).collect();
    assert_eq!(files.len(), 1);
    let events = std::fs::read(&files[0]).expect("written");
    assert!(
        events.starts_with(&24u64.to_le_bytes()) && events[..36].ends_with(b"brain.Event:2"),
        "{:?}",
        &events[..44]
    );
    assert!(rig.fails(&["profile", &model, "--tensorboard", &run], 1).contains("holds a run already"));
    let trace: Value = serde_json::from_slice(&std::fs::read(trace).expect("a trace")).expect("json");
    let rows: Vec<&Value> =
        trace["traceEvents"].as_array().expect("events").iter().filter(|e| e["cat"] == "row").collect();
    assert_eq!(rows.len(), profile["rows"].as_array().expect("rows").len());
    let long: f64 = rows.iter().filter_map(|e| e["dur"].as_f64()).sum();
    let whole = 1e3 * profile["whole"]["p50"].as_f64().expect("ms");
    assert!((long - whole).abs() <= 0.01 * whole, "{long} of {whole} us");
    // What was observed and what is its part of the whole go by names of their own.
    let args = &rows[0]["args"];
    let (own, part) = (args["observed_p50_ms"].as_f64().expect("ms"), args["ms_of_whole"].as_f64().expect("ms"));
    assert!(own > 0.0 && part > 0.0 && args["p50_ms"].is_null(), "{args}");
    let shell = rig.paring(&["completions", "bash"]);
    assert!(String::from_utf8_lossy(&shell.stdout).contains("bench-agents"));
    assert!(rig.paring(&["man", "man"]).status.success() && rig.path("man/paring.1").is_file());
}
