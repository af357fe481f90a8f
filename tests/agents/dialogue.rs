//! Whole runs of the pipeline through the scripted server.

use crate::fake_llm::{Answer, FakeLlm, Step, delta};
use crate::session;
use crate::wire::quick;
use paring::agent::tools::{self, Tool};
use paring::agent::{AgentInput, Endpoint, Listener, Outcome, Timeouts, run};
use paring::plan::{Author, Decision, DecisionId};
use paring::prune::{Action, Target};
use paring::quant::Precision;
use paring::session::{Ask, Channel, Event, Feed, Spent, Utterance};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

const PRUNE: &str = "Cut the early blocks.\n```json\n{\"decisions\":[{\"target\":\"layer1.0.conv1\",\"action\":\"prune\",\"ratio\":0.25,\"why\":\"flat\"}],\"summary\":\"s\"}\n```\n";
const QUANT: &str = "```json\n{\"decisions\":[{\"target\":\"*\",\"action\":\"precision\",\"precision\":\"int8\",\"why\":\"free\"}]}\n```";
const BROKEN: &str = "```json\n{\"decisions\":[{\"target\":\"layer1.0.conv7\",\"action\":\"prune\",\"ratio\":2}]}\n```";

#[derive(Debug, Default)]
pub struct Ran {
    pub feeds: Vec<Feed>,
    pub events: Vec<Event>,
    outcome: Outcome,
}

impl Listener for Ran {
    async fn feed(&mut self, feed: Feed) {
        self.feeds.push(feed);
    }

    async fn event(&mut self, event: Event) {
        self.events.push(event);
    }

    async fn call(&mut self, tool: &'static Tool, asked: Map<String, Value>) -> Result<Value, String> {
        tools::answer(tool, &asked, &session::state())
    }
}

impl Ran {
    /// Who proposed, and what.
    fn proposed(&self) -> Vec<(&str, &[Decision])> {
        let of = |e: &'_ Event| matches!(e, Event::Proposed { .. });
        self.events
            .iter()
            .filter(|e| of(e))
            .map(|e| match e {
                Event::Proposed { decisions } => match &decisions[0].author {
                    Author::Agent { role, .. } => (role.as_str(), decisions.as_slice()),
                    _ => ("planner", decisions.as_slice()),
                },
                _ => unreachable!(),
            })
            .collect()
    }

    fn said(&self) -> Vec<&Utterance> {
        self.events
            .iter()
            .filter_map(|e| if let Event::Said { utterance: u } = e { Some(u.as_ref()) } else { None })
            .collect()
    }

    fn notices(&self) -> String {
        let of = |f: &Feed| if let Feed::Log { text, .. } = f { Some(format!("{text}\n")) } else { None };
        self.feeds.iter().filter_map(of).collect()
    }

    fn tokens(&self, want: Channel) -> String {
        let of = |f: &Feed| match f {
            Feed::Token { channel, text, .. } if *channel == want => Some(text.clone()),
            _ => None,
        };
        self.feeds.iter().filter_map(of).collect()
    }
}

fn planner() -> Vec<Decision> {
    let mut kept =
        session::decision(7, Target::Group("layer3.0.conv1".into()), Action::Prune { ratio: 0.5, kept: vec![] });
    kept.rationale = "planned".into();
    let int8 = Action::Precision { precision: Precision::Int8 };
    vec![kept, session::decision(8, Target::Layer("linear".into()), int8)]
}

async fn run_task(task: Ask, endpoint: Option<Endpoint>, timeouts: Timeouts, cancel: &CancellationToken) -> Ran {
    let stand_in = Arc::new(|| Ok((planner(), "I solved the budget.".to_owned())));
    let input = AgentInput::new(task, Arc::new(session::state()), stand_in);
    let mut ran = Ran::default();
    ran.outcome = run(input, endpoint, timeouts, &mut ran, cancel).await;
    ran
}

async fn propose(fake: &FakeLlm) -> Ran {
    let endpoint = Endpoint::new(&fake.url, "k", None);
    run_task(Ask::Propose, Some(endpoint), quick(), &CancellationToken::new()).await
}

/// Without what it took, which is another each time.
fn counts(outcome: Outcome) -> Outcome {
    Outcome { spent: Spent::default(), ..outcome }
}

#[tokio::test]
async fn a_good_run_ends_in_two_validated_proposals() {
    let fake = FakeLlm::start(
        &["qwen3"],
        vec![
            Answer::says("where is the cost", "Early blocks dominate."),
            Answer::says("ratios…", PRUNE),
            Answer::says("", QUANT),
        ],
    );
    let ran = propose(&fake).await;
    assert_eq!(counts(ran.outcome), Outcome { by_agents: 21, ..Outcome::default() }, "{}", ran.notices());
    let proposed = ran.proposed();
    assert_eq!(proposed.iter().map(|(r, d)| (*r, d.len())).collect::<Vec<_>>(), [("pruning", 1), ("quantization", 20)]);
    let first = &proposed[0].1[0];
    assert_eq!(first.author, Author::Agent { role: "pruning".into(), model: "qwen3".into() });
    assert_eq!((first.id, first.round, first.rationale.as_str()), (DecisionId(0), 1, "flat"));
    assert!(ran.notices().contains("using `qwen3`"));
    let said = ran.said();
    assert_eq!(said.iter().map(|u| u.role.as_str()).collect::<Vec<_>>(), ["analysis", "pruning", "quantization"]);
    assert_eq!(said[0].reasoning, "where is the cost");
    assert_eq!(said[0].tokens, 42);
    assert!(said[1].prompt.contains("[system]") && said[1].prompt.contains("Early blocks dominate."));
    assert!(fake.question(2).contains("layer1.0.conv1 | prune 0.25"), "{}", fake.question(2));
    assert!(ran.tokens(Channel::Reasoning).starts_with("where is the cost"));
    assert!(ran.tokens(Channel::Text).contains("\"decisions\""));
    // A turn's events are bracketed.
    let opened = ran.feeds.iter().filter(|f| matches!(f, Feed::Turn { .. })).count();
    let closed = ran.feeds.iter().filter(|f| matches!(f, Feed::TurnEnd { .. })).count();
    assert_eq!((opened, closed), (3, 3));
}

#[tokio::test]
async fn a_broken_proposal_is_repaired_once_with_the_errors() {
    let fake = FakeLlm::start(
        &["m"],
        vec![Answer::says("", "a"), Answer::says("", BROKEN), Answer::says("", PRUNE), Answer::says("", QUANT)],
    );
    let ran = propose(&fake).await;
    assert_eq!(counts(ran.outcome), Outcome { by_agents: 21, ..Outcome::default() });
    let question = fake.question(2);
    assert!(question.contains("decision 1:") && question.contains("2 is out of range"), "{question}");
    assert!(ran.notices().contains("1 error, asking once for a correction"), "{}", ran.notices());
    let sent = fake.requests.lock().unwrap()[2].clone();
    assert_eq!(sent["messages"][2]["role"], json!("assistant"));
    assert_eq!(ran.said().len(), 4);
}

#[tokio::test]
async fn broken_twice_the_planner_stands_in_for_that_role_only_and_says_so() {
    let fake = FakeLlm::start(
        &["m"],
        vec![Answer::says("", "a"), Answer::says("", BROKEN), Answer::says("", "I cannot."), Answer::says("", QUANT)],
    );
    let ran = propose(&fake).await;
    assert_eq!(
        counts(ran.outcome),
        Outcome { by_agents: 20, by_planner: 1, stood_in: 1, cancelled: false, ..Outcome::default() }
    );
    assert!(ran.notices().contains("planner: the built-in planner stands in for pruning"), "{}", ran.notices());
    let proposed = ran.proposed();
    assert_eq!(proposed[0].0, "planner");
    assert_eq!((proposed[0].1.len(), &proposed[0].1[0].author), (1, &Author::Planner));
    assert_eq!(proposed[0].1[0].id, DecisionId(0));
    assert_eq!(proposed[1].0, "quantization");
    assert!(ran.said().iter().any(|u| u.role == "planner"
        && u.text.starts_with("I solved the budget.\n\nI stand in for pruning: the proposal was still broken")));
}

#[tokio::test]
async fn of_a_half_good_proposal_the_good_half_stands() {
    let half =
        PRUNE.replace("],\"summary\"", ",{\"target\":\"nowhere\",\"action\":\"prune\",\"ratio\":0.5}],\"summary\"");
    let fake = FakeLlm::start(
        &["m"],
        vec![
            Answer::says("", "a"),
            Answer::says("", &half),
            Answer::says("", "no json at all"),
            Answer::says("", QUANT),
        ],
    );
    let ran = propose(&fake).await;
    assert_eq!(counts(ran.outcome), Outcome { by_agents: 21, ..Outcome::default() });
    assert!(fake.question(2).contains("1 decision was accepted as it stands"), "{}", fake.question(2));
    assert!(ran.notices().contains("1 entry left out"), "{}", ran.notices());
}

#[tokio::test]
async fn reasoning_only_and_empty_answers() {
    let fake =
        FakeLlm::start(&["m"], vec![Answer::says("only thoughts", ""), Answer::says(PRUNE, ""), Answer::says("", "")]);
    let ran = propose(&fake).await;
    assert_eq!(ran.proposed()[0].0, "pruning");
    assert_eq!(ran.outcome.by_agents, 1);
    assert_eq!(ran.outcome.stood_in, 1, "{}", ran.notices());
    assert!(ran.notices().contains("no JSON object"), "{}", ran.notices());
}

#[tokio::test]
async fn a_stream_that_breaks_after_the_whole_proposal_counts_and_before_it_does_not() {
    let broken_off = |text: &str| Answer::stream(vec![delta(json!({ "content": text })), Step::Drop]);
    let fake = FakeLlm::start(&["m"], vec![Answer::says("", "a"), broken_off(PRUNE), broken_off(&QUANT[..60])]);
    let ran = propose(&fake).await;
    assert_eq!(
        counts(ran.outcome),
        Outcome { by_agents: 1, by_planner: 1, stood_in: 1, cancelled: false, ..Outcome::default() }
    );
    assert!(ran.notices().contains("broke off"), "{}", ran.notices());
    assert!(ran.said().iter().filter(|u| u.interrupted).count() == 2);
}

#[tokio::test]
async fn a_dead_endpoint_is_asked_once_and_the_planner_answers_for_all() {
    for (endpoint, says) in [
        (Some(Endpoint::new("http://127.0.0.1:1/v1", "", Some("m"))), "no connection to `http://127.0.0.1:1/v1`"),
        (Some(Endpoint::new("http://127.0.0.1:1/v1", "", None)), "no connection"),
        (None, "no endpoint is set"),
    ] {
        let ran = run_task(Ask::Propose, endpoint, quick(), &CancellationToken::new()).await;
        assert_eq!(
            counts(ran.outcome),
            Outcome { by_planner: 2, stood_in: 2, ..Outcome::default() },
            "{}",
            ran.notices()
        );
        assert!(ran.notices().contains(says), "{}", ran.notices());
        assert!(ran.notices().contains("stands in for pruning and quantization"));
        assert_eq!(ran.proposed().len(), 1);
    }
    let quota = r#"{"error":{"message":"no credit","code":"insufficient_quota"}}"#;
    let fake = FakeLlm::start(&["m"], vec![Answer::status(429, quota)]);
    let ran = propose(&fake).await;
    assert_eq!((fake.asked(), ran.outcome.by_planner), (1, 2), "{}", ran.notices());
}

#[tokio::test]
async fn a_prompt_that_is_too_long_is_halved() {
    let long = r#"{"error":{"code":400,"message":"the request exceeds the available context size","type":"exceed_context_size_error"}}"#;
    let fake = FakeLlm::start(
        &["m"],
        vec![
            Answer::status(400, long),
            Answer::status(400, long),
            Answer::says("", "short now"),
            Answer::says("", PRUNE),
            Answer::says("", QUANT),
        ],
    );
    let ran = propose(&fake).await;
    assert_eq!(ran.outcome.by_agents, 21, "{}", ran.notices());
    let size = |i: usize| fake.question(i).chars().count();
    assert!(size(2) < size(1) && size(1) < size(0), "{} {} {}", size(0), size(1), size(2));
    assert!(ran.notices().contains("too long for this model: asking with "), "{}", ran.notices());
}

#[tokio::test]
async fn a_server_that_closes_without_a_word_is_asked_more_briefly_and_streams_on() {
    let silent = || Answer::stream(vec![]);
    let fake = FakeLlm::start(
        &["m"],
        vec![silent(), silent(), Answer::says("", "short now"), Answer::says("", PRUNE), Answer::says("", QUANT)],
    );
    let ran = propose(&fake).await;
    assert_eq!(ran.outcome.by_agents, 21, "{}", ran.notices());
    let size = |i: usize| fake.question(i).chars().count();
    assert!(size(2) < size(0), "{} {}", size(0), size(2));
    let notices = ran.notices();
    assert!(notices.contains("perhaps since the prompt is too long: asking with "), "{notices}");
    let streamed: Vec<bool> = fake.requests.lock().unwrap().iter().map(|r| r["stream"] == json!(true)).collect();
    assert_eq!(streamed, [true, false, true, true, true]);
}

#[tokio::test]
async fn cancelling_keeps_what_was_said_and_proposes_nothing() {
    let fake =
        FakeLlm::start(&["m"], vec![Answer::stream(vec![delta(json!({"content": "half a thought"})), Step::Hang])]);
    let cancel = CancellationToken::new();
    let after = cancel.clone();
    let stop = async move {
        tokio::time::sleep(Duration::from_millis(400)).await;
        after.cancel();
    };
    let timeouts = Timeouts { idle: Duration::from_secs(60), ..quick() };
    let run = run_task(Ask::Propose, Some(Endpoint::new(&fake.url, "", None)), timeouts, &cancel);
    let (ran, ()) = tokio::join!(run, stop);
    assert_eq!(counts(ran.outcome), Outcome { cancelled: true, ..Outcome::default() });
    assert!(ran.proposed().is_empty());
    let said = ran.said();
    assert_eq!((said.len(), said[0].text.as_str(), said[0].interrupted), (1, "half a thought", true));
    assert!(matches!(ran.feeds.last(), Some(Feed::TurnEnd { .. })));
}

#[tokio::test]
async fn evaluation_is_text_only_and_its_failure_costs_nothing() {
    let fake = FakeLlm::start(&["m"], vec![Answer::says("", "Accept it.")]);
    let endpoint = || Some(Endpoint::new(&fake.url, "", None));
    let ran = run_task(Ask::Evaluate, endpoint(), quick(), &CancellationToken::new()).await;
    assert_eq!(counts(ran.outcome), Outcome::default());
    assert_eq!(ran.said()[0].text, "Accept it.");
    let down = run_task(Ask::Evaluate, None, quick(), &CancellationToken::new()).await;
    assert_eq!(counts(down.outcome), Outcome::default());
    assert!(down.proposed().is_empty());
}
