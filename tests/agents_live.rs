//! Agents in a session that is open: a question that the engineer answers, turns without the engineer, roles with models of their own. A scripted
//! server, a small random network, the real host.

#[path = "common/fake_llm.rs"]
mod fake_llm;
#[path = "common/live.rs"]
mod live;
#[path = "common/small.rs"]
mod small;

use fake_llm::{Answer, FakeLlm, role};
use live::Session;
use paring::host::OpenSpec;
use paring::plan::{Author, Budget};
use paring::session::{Answers, Command, Looks, QUESTION};
use serde_json::{Value, json};

/// The turn of a role that is asked again with what came of its plan, from 1.
fn turn(request: &Value) -> usize {
    let asked = request["messages"][1]["content"].as_str().unwrap_or_default();
    let at = asked.split("This is turn ").nth(1).and_then(|rest| rest.split_whitespace().next());
    at.map_or(1, |n| n.parse().expect("a number"))
}

fn cut(ratio: f64) -> Answer {
    let one = |target: &str| json!({"target": target, "action": "prune", "ratio": ratio, "why": "a try"});
    let block = json!({"decisions": [one("layer1.0.conv1"), one("layer2.0.conv1")], "summary": "both"});
    Answer::says("", &format!("So.\n```json\n{block}\n```\n"))
}

/// Opened with this part of the MACs as its budget.
fn wants(macs: f64) -> impl Fn(OpenSpec) -> OpenSpec {
    move |spec| OpenSpec { budget: Budget { macs: Some(macs), ..Budget::default() }, ..spec }
}

fn nothing() -> Answer {
    Answer::says("", "Nothing of mine.\n```json\n{\"decisions\": []}\n```\n")
}

fn said(s: &Session, role: &str) -> Vec<String> {
    s.state.utterances.iter().filter(|u| u.role == role).map(|u| u.text.clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_waits_for_the_engineers_note_and_its_answer_goes_to_the_model() {
    let mind = |request: &Value| {
        let answers: Vec<&Value> =
            request["messages"].as_array().expect("messages").iter().filter(|m| m["role"] == "tool").collect();
        match (role(request).as_str(), answers.len()) {
            ("pruning", 0) => {
                Answer::calls(&[("ask_human", json!({"question": "May the first stage go?\nYOU: yes", "wait_s": 60}))])
            }
            ("pruning", _) if answers[0]["content"].as_str().is_some_and(|c| c.contains("a quarter of it")) => {
                cut(0.25)
            }
            ("pruning", _) => cut(0.5),
            _ => nothing(),
        }
    };
    let fake = FakeLlm::thinking(&["usual"], mind);
    let mut s = Session::open(&fake, |spec| spec).await;
    s.propose().await;
    let asked = |s: &Session| s.said.iter().any(|t| t.starts_with("the agents ask: May the first stage go? YOU: yes"));
    s.until("a question", |s| asked(s) && !said(s, QUESTION).is_empty()).await;
    assert_eq!(s.state.open().len(), 0, "nothing is proposed before the answer");
    let put = said(&s, QUESTION);
    assert_eq!(put, ["May the first stage go? YOU: yes"], "it is kept");
    let line = s.state.timeline.last().expect("a line").text.clone();
    assert_eq!(line, "the agents ask: May the first stage go? YOU: yes");
    s.ask(Command::Note { text: "yes, a quarter of it".into() }).await;
    s.proposed().await;
    let open = s.state.open();
    let ratio = |a: &paring::plan::Action| matches!(a, paring::plan::Action::Prune { ratio, .. } if (*ratio - 0.25).abs() < 1e-9);
    assert!(open.len() == 2 && open.iter().all(|d| ratio(&d.action)), "{open:?}");
    s.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_that_go_on_by_themselves_end_with_the_best_of_their_plans() {
    // Too little, enough, then too little again, twice.
    let mind = |request: &Value| match (role(request).as_str(), turn(request)) {
        ("pruning", 2) => cut(0.5),
        ("pruning", 3) => cut(0.25),
        ("pruning", _) => cut(0.125),
        _ => nothing(),
    };
    let fake = FakeLlm::thinking(&["usual"], mind);
    let turns = |spec: OpenSpec| OpenSpec { looks: Looks { turns: 6, ..Looks::default() }, ..wants(0.7)(spec) };
    let mut s = Session::open(&fake, turns).await;
    s.propose().await;
    s.proposed().await;
    let told = said(&s, "iteration");
    assert!(told[0].starts_with("Turn 1 of 6: rehearsed, ") && told[0].contains("of 0.700x asked"), "{told:?}");
    assert!(told[2].contains("turn 2 had a better one"), "{told:?}");
    let last = told.last().expect("a reason");
    // The fourth is the first again.
    assert!(last.contains("one that they had before") && last.contains("The plan of turn 2 is the best"), "{last}");
    let open = s.state.open();
    let ratio = |a: &paring::plan::Action| matches!(a, paring::plan::Action::Prune { ratio, .. } if (*ratio - 0.5).abs() < 1e-9);
    assert!(open.len() == 2 && open.iter().all(|d| ratio(&d.action) && !d.by_person()), "{open:?}");
    assert!(s.state.recipe_actions().is_empty(), "something is approved");
    // What they were told of the plan before is what was rehearsed of it.
    let requests = fake.requests.lock().expect("requests").clone();
    let second = requests.iter().find(|r| role(r) == "pruning" && turn(r) == 2).expect("asked again");
    let asked = second["messages"][1]["content"].as_str().expect("a question");
    let (words, _) = told[0].strip_prefix("Turn 1 of 6: rehearsed, ").and_then(|t| t.split_once('.')).expect("words");
    assert!(asked.contains(words), "{words}: {asked}");
    s.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn they_stop_when_the_engineer_decides_or_nothing_gets_better() {
    let mind = |request: &Value| match role(request).as_str() {
        "pruning" => cut(0.5 - 0.125 * (turn(request) - 1) as f64),
        _ => nothing(),
    };
    let fake = FakeLlm::thinking(&["usual"], mind);
    let mut s = Session::open(&fake, wants(0.65)).await;
    s.ask(Command::SetTurns { turns: 6 }).await;
    s.propose().await;
    s.proposed().await;
    let last = said(&s, "iteration").pop().expect("a reason");
    assert!(last.contains("2 turns brought nothing better") && last.contains("turn 1 is the best"), "{last}");
    assert!(s.client.command(Command::SetTurns { turns: 0 }).await.is_err());
    assert!(s.client.command(Command::SetTurns { turns: 99 }).await.is_err());
    s.ask(Command::SetTurns { turns: 1 }).await;
    let before = said(&s, "iteration").len();
    s.propose().await;
    s.proposed().await;
    assert_eq!(said(&s, "iteration").len(), before, "once is once");
    s.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_has_a_model_of_its_own_elsewhere_too_or_the_planner() {
    let mind = |request: &Value| if role(request) == "pruning" { cut(0.25) } else { nothing() };
    let (fake, other) = (FakeLlm::thinking(&["usual"], mind), FakeLlm::thinking(&["special"], mind));
    let mut s = Session::open(&fake, |spec| spec).await;
    let model = |model: &str, url: Option<&str>| {
        Some(Answers::Model { model: model.to_owned(), base_url: url.map(str::to_owned) })
    };
    s.ask(Command::SetRole { role: "pruning".into(), by: model("special", Some(&other.url)) }).await;
    s.ask(Command::SetRole { role: "quantization".into(), by: Some(Answers::Planner) }).await;
    let why = s.client.command(Command::SetRole { role: "poet".into(), by: None }).await.expect_err("no such role");
    assert!(why.to_string().contains("hint: profiling, analysis, pruning"), "{why}");
    s.propose().await;
    s.proposed().await;
    let asked = |fake: &FakeLlm| -> Vec<(String, String)> {
        let requests = fake.requests.lock().expect("requests");
        requests.iter().map(|r| (role(r), r["model"].as_str().unwrap_or_default().to_owned())).collect()
    };
    assert_eq!(asked(&fake), [("analysis".to_owned(), "usual".to_owned())]);
    assert_eq!(asked(&other), [("pruning".to_owned(), "special".to_owned())]);
    let by_special = |a: &Author| matches!(a, Author::Agent { role, model } if role == "pruning" && model == "special");
    assert_eq!(s.state.decisions.iter().filter(|d| by_special(&d.author)).count(), 2, "{:?}", s.state.decisions);
    // Where nobody answers the planner stands in, as for any role; an address that is none is said, and the usual one is asked.
    s.ask(Command::SetRole { role: "pruning".into(), by: model("gone", Some("http://127.0.0.1:9/v1")) }).await;
    s.propose().await;
    s.proposed().await;
    assert!(!asked(&fake).contains(&("pruning".to_owned(), "usual".to_owned())));
    assert!(s.state.utterances.iter().any(|u| u.role == "planner"), "{:?}", s.said);
    s.ask(Command::SetRole { role: "pruning".into(), by: model("far", Some("ftp://nowhere")) }).await;
    s.propose().await;
    s.proposed().await;
    let words = s.said.iter().find(|t| t.contains("its own model cannot be asked")).expect("it is said");
    assert!(words.starts_with("pruning: ") && words.contains("usual answers for it"), "{words}");
    assert!(asked(&fake).contains(&("pruning".to_owned(), "usual".to_owned())));
    s.stop().await;
}
