//! A session for other programs: through the Model Context Protocol's own SDKs they look, are refused, forecast, rehearse and propose; the
//! terminal shows it, and nothing is decided before the engineer has done it there. *The official Rust SDK, and the Python one where it is
//! installed (`PARING_MCP_PYTHON` names its interpreter).*

#[path = "common/pty.rs"]
mod pty;

use pty::{Home, LONG, Term, review};
use rmcp::ServiceExt;
use rmcp::model::{CallToolRequestParams, CallToolResult, ReadResourceRequestParams};
use rmcp::service::{RoleClient, RunningService};
use rmcp::transport::TokioChildProcess;
use serde_json::{Value, json};

const OPEN: [&str; 13] = [
    "open",
    "demo:cnn",
    "--name",
    "mcp",
    "--limit",
    "100",
    "--calib-limit",
    "300",
    "--threads",
    "2",
    "--budget",
    "macs=0.8,drop=40",
    "--seed=1",
];

type Client = RunningService<RoleClient, rmcp::model::ClientConfig>;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

async fn connect(home: &Home, more: &[&str]) -> Client {
    let mut command = tokio::process::Command::from(home.command(&[&["mcp", "mcp"], more].concat()));
    command.kill_on_drop(true);
    let mut info = rmcp::model::ClientConfig::default();
    info.client_info.name = "planning-friend".to_owned();
    info.client_info.version = "7".to_owned();
    info.serve(TokioChildProcess::new(command).expect("the program starts")).await.expect("it greets")
}

/// A tool's answer, or the words it was refused with.
async fn call(client: &Client, tool: &str, asked: Value) -> Result<Value, String> {
    let Value::Object(asked) = asked else { panic!("arguments are an object") };
    let params = CallToolRequestParams::new(tool.to_owned()).with_arguments(asked);
    let CallToolResult { content, structured_content, is_error, .. } =
        client.call_tool(params).await.expect("it answers");
    match is_error {
        Some(true) => Err(serde_json::to_string(&content).expect("words")),
        _ => Ok(structured_content.expect("an answer")),
    }
}

/// The proposals are on the screen and no job runs any more.
fn proposed(s: &str) -> bool {
    !s.contains("interrupts") && review(s).is_some_and(|(_, all)| all > 0)
}

fn decided(home: &Home, kind: &str) -> usize {
    home.events_of("mcp", kind).len()
}

#[test]
fn a_program_outside_looks_rehearses_and_proposes_and_the_engineer_approves() {
    // With less, a slow machine has time for no more than the full width of a ladder.
    let home = Home::new(&[("PARING_PATIENCE", "0.4")]);
    let mut t = Term::start(&home, &OPEN, 120, 40);
    t.wait_for("proposals and silence", LONG, proposed);
    let runtime = runtime();
    let (layer, group) = runtime.block_on(async {
        let client = connect(&home, &[]).await;
        let tools = client.list_all_tools().await.expect("tools");
        let names: Vec<&str> = tools.iter().map(|t| t.name.as_ref()).collect();
        for name in ["plan", "layers", "group", "forecast", "compare", "rehearse", "propose", "ask_human"] {
            assert!(names.contains(&name), "{names:?}");
        }

        // It looks.
        let plan = call(&client, "plan", json!({})).await.expect("the plan");
        assert!(plan["decisions"].as_array().is_some_and(|d| !d.is_empty()), "{plan}");
        assert_eq!(plan["budget"], "macs=0.8,drop=40", "{plan}");
        let layers =
            call(&client, "layers", json!({ "filter": "conv", "sort": "macs", "limit": 2 })).await.expect("layers");
        let rows = layers["layers"].as_array().expect("rows");
        assert!(rows.len() == 2 && rows[0]["macs"].as_u64() >= rows[1]["macs"].as_u64(), "{layers}");
        assert!(layers["left_out"].as_u64().expect("a number") > 0, "{layers}");
        let layer = rows[0]["name"].as_str().expect("a name").to_owned();
        let one = call(&client, "profile", json!({ "name": layer })).await.expect("a row");
        assert!(one["latency"]["p50"].as_f64().expect("measured") > 0.0, "{one}");
        let ladder = call(&client, "ladder", json!({ "layer": layer })).await.expect("a ladder");
        assert!(ladder["points"].as_array().is_some_and(|p| p.len() > 2), "{ladder}");
        let group = call(&client, "group", json!({ "name": layer })).await.expect("a group");
        assert!(group["units"].as_u64().expect("units") > 1, "{group}");
        let group = group["id"].as_str().expect("an id").to_owned();
        let scanned = call(&client, "sensitivity", json!({ "target": group })).await.expect("curves");
        assert!(scanned["curves"][0]["points"].as_array().is_some_and(|p| !p.is_empty()), "{scanned}");

        // What is wrong is refused, in words.
        let refused = call(&client, "layers", json!({ "srot": "ms" })).await.expect_err("no such argument");
        assert!(refused.contains("srot") && refused.contains("hint"), "{refused}");
        let refused = call(&client, "profile", json!({ "name": "conv99" })).await.expect_err("no such layer");
        assert!(refused.contains("the nearest is"), "{refused}");
        let empties =
            json!([{ "target": group, "action": "prune", "ratio": 1.0 }, { "target": "nobody", "action": "keep" }]);
        let refused = call(&client, "propose", json!({ "decisions": empties })).await.expect_err("nothing can stand");
        assert!(refused.contains("out of range"), "{refused}");

        // Forecasts and a rehearsal, which is one from then on.
        let plan = json!([{ "target": layer, "action": "precision", "precision": "int8", "why": "the largest" }]);
        let asked = json!({ "decisions": plan, "on": "nothing" });
        let foretold = call(&client, "forecast", asked.clone()).await.expect("a forecast");
        assert!(foretold["forecast"]["memory"].as_f64().expect("bytes") < 1.0, "{foretold}");
        assert_ne!(foretold["forecast"]["quality"]["rests_on"], "rehearsed", "{foretold}");
        let tried = call(&client, "rehearse", asked.clone()).await.expect("a rehearsal");
        assert_eq!(tried["quality"]["rests_on"], "rehearsed", "{tried}");
        let foretold = call(&client, "forecast", asked).await.expect("a forecast");
        assert_eq!(foretold["forecast"]["quality"]["change"], tried["quality"]["change"], "{foretold} {tried}");
        assert_eq!(foretold["forecast"]["quality"]["rests_on"], "rehearsed", "{foretold}");
        let pair =
            call(&client, "compare", json!({ "a": "original", "b": plan, "on": "nothing" })).await.expect("two plans");
        assert_eq!(pair["differ"].as_array().map(Vec::len), Some(1), "{pair}");

        // A proposal waits; an escape sequence in it is none any more.
        let summary = "int8 for the largest \u{1b}]0;owned\u{7}layer";
        let told = call(&client, "propose", json!({ "decisions": plan, "summary": summary })).await.expect("it waits");
        assert_eq!(told["waiting_for_the_engineer"].as_array().map(Vec::len), Some(1), "{told}");
        let report =
            client.read_resource(ReadResourceRequestParams::new("paring://session/report")).await.expect("a report");
        assert!(serde_json::to_string(&report).expect("text").contains("original"));
        client.cancel().await.expect("it leaves");
        (layer, group)
    });
    assert_eq!((decided(&home, "approved"), decided(&home, "vetoed"), decided(&home, "run_started")), (0, 0, 0));
    // A question shows wherever the engineer is, and a note answers it.
    t.press("2");
    let asked = std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            runtime.block_on(async {
                let client = connect(&home, &[]).await;
                let question = json!({ "question": "May the head stay as it is?", "wait_s": 300 });
                let answer = call(&client, "ask_human", question).await.expect("an answer");
                client.cancel().await.expect("it leaves");
                answer
            })
        });
        t.wait("asks: May the head stay");
        t.press("m");
        t.press("it may\r");
        waits.join().expect("it was asked")
    });
    assert_eq!(asked["answer"], "it may", "{asked}");
    t.press("1");
    let screen = t.wait("planning-friend 7");
    assert!(screen.contains("int8 for the largest"), "{screen}");
    assert!(!screen.contains('\u{1b}'), "{screen}");

    // The engineer approves it, at the terminal.
    t.press(&format!(":filter {layer}\r"));
    t.press("n");
    t.wait_for("the card of the layer", LONG, |s| s.contains("planning-friend"));
    t.press("a");
    t.wait_for("approved", LONG, |_| decided(&home, "approved") == 1);

    // What was approved stays, whatever is proposed from outside.
    runtime.block_on(async {
        let client = connect(&home, &["--rehearsals", "0", "--calls", "3"]).await;
        let other = json!([{ "target": layer, "action": "precision", "precision": "f32" }]);
        let told = call(&client, "propose", json!({ "decisions": other })).await.expect("an answer");
        assert_eq!(told["waiting_for_the_engineer"], json!([]), "{told}");
        assert!(told["passed_over"].to_string().contains("as the engineer has it"), "{told}");
        let cut = json!([{ "target": group, "action": "prune", "ratio": 0.4 }]);
        let refused = call(&client, "rehearse", json!({ "decisions": cut })).await.expect_err("none may be made");
        assert!(refused.contains("--rehearsals"), "{refused}");
        call(&client, "constraints", json!({})).await.expect("the third call");
        let refused = call(&client, "constraints", json!({})).await.expect_err("a fourth");
        assert!(refused.contains("--calls"), "{refused}");
        client.cancel().await.expect("it leaves");
    });
    // A host that the engineer stopped stays stopped, whoever asks.
    t.stop();
    runtime.block_on(async {
        let client = connect(&home, &[]).await;
        call(&client, "plan", json!({})).await.expect("its first look may start a host");
        assert!(home.run(&["stop", "mcp"]).status.success());
        let refused = call(&client, "plan", json!({})).await.expect_err("stopped");
        assert!(refused.contains("paring attach"), "{refused}");
        client.cancel().await.expect("it leaves");
    });
    let all = home.events_of("mcp", "proposed");
    let ids: Vec<u64> =
        home.events_of("mcp", "approved")[0]["ids"].as_array().expect("ids").iter().filter_map(Value::as_u64).collect();
    let of = |id: u64| {
        all.iter().flat_map(|e| e["decisions"].as_array().into_iter().flatten()).find(|d| d["id"] == id).cloned()
    };
    let approved = of(ids[0]).expect("the decision");
    assert_eq!(approved["author"]["role"], "outside", "{approved}");
    assert_eq!(approved["target"]["name"], layer.as_str(), "{approved}");
}

/// The same with somebody else's client in another language.
#[test]
fn the_python_sdk_lists_calls_and_proposes() {
    let python = std::env::var("PARING_MCP_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let has = std::process::Command::new(&python).args(["-c", "import mcp"]).output();
    if !has.is_ok_and(|o| o.status.success()) {
        println!("skipped: no Python with the package `mcp`; PARING_MCP_PYTHON names one");
        return;
    }
    let home = Home::new(&[]);
    let mut t = Term::start(&home, &OPEN, 120, 40);
    t.wait_for("proposals and silence", LONG, proposed);
    let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mcp/client.py");
    let mut command = std::process::Command::new(&python);
    command.arg(script).args([env!("CARGO_BIN_EXE_paring"), "mcp"]);
    let out = command.envs(home.variables()).output().expect("the script runs");
    let (text, words) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{text}\n{words}");
    let told: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}\n{words}"));
    assert!(told["tools"].as_array().is_some_and(|t| t.len() >= 14), "{told}");
    assert!(told["wrong"]["error"] == true && told["wrong"]["text"].to_string().contains("is not one of"), "{told}");
    for fine in ["layers", "forecast", "proposed"] {
        assert_eq!(told[fine]["error"], false, "{told}");
    }
    assert_eq!(told["resources"].as_array().map(Vec::len), Some(2), "{told}");
    assert!(told["report"].as_str().is_some_and(|r| r.contains("original")), "{told}");
    let layer = told["layer"].as_str().expect("a name");
    t.wait("a look from outside");
    let mine = |d: &Value| d["author"]["role"] == "outside" && d["target"]["name"] == layer;
    let proposed = home.events_of("mcp", "proposed");
    assert!(proposed.iter().flat_map(|e| e["decisions"].as_array().into_iter().flatten()).any(mine));
    assert_eq!(decided(&home, "approved"), 0);
    t.stop();
}
