//! What the engineer binds, in a session: rules from a file, what shall go at least, what is kept together, wishes, rules that agents read in a note;
//! and what bounds the agents themselves: one role asked alone, limits. A scripted server, a small random network, the real host.

#[path = "common/fake_llm.rs"]
mod fake_llm;
#[path = "common/live.rs"]
mod live;
#[path = "common/small.rs"]
mod small;

use fake_llm::{Answer, FakeLlm, role};
use live::Session;
use paring::config::Policy;
use paring::host::OpenSpec;
use paring::plan::{Action, Budget, Constraint, DecisionId, Limit, Target};
use paring::session::{Command, Limits, Phase, Proposer};
use serde_json::{Value, json};

fn group(name: &str) -> Target {
    Target::Group(name.to_owned())
}

/// Opened under these rules, with this part of the MACs as its budget.
fn ruled(rules: &'static str, macs: f64) -> impl Fn(OpenSpec) -> OpenSpec {
    let rules = Policy::parse(rules, "rules.toml").expect("rules");
    move |spec| OpenSpec { rules: rules.clone(), budget: Budget { macs: Some(macs), ..Budget::default() }, ..spec }
}

fn block(decisions: Value) -> Answer {
    Answer::says("", &format!("So.\n```json\n{}\n```\n", json!({ "decisions": decisions })))
}

fn cut(target: &str, ratio: f64) -> Value {
    json!({"target": target, "action": "prune", "ratio": ratio, "why": "a try"})
}

/// The part of a group that goes in the plan that is shown.
fn shown(s: &Session, name: &str) -> f64 {
    let plan = s.state.shown_actions();
    let found = plan.iter().find(|(t, _)| *t == group(name));
    match found {
        Some((_, Action::Prune { ratio, .. })) => *ratio,
        _ => 0.0,
    }
}

fn ids(s: &Session) -> Vec<DecisionId> {
    s.state.open().iter().map(|d| d.id).collect()
}

const RULES: &str = r#"
[[rule]]
match = "layer3.0.conv1"
kind = "group"
do = "at_least"
ratio = 0.25
reason = "it has slack"
[[rule]]
match = "layer3.*"
do = "approve"
[[rule]]
match = "layer?.0.conv1"
kind = "group"
do = "veto"
reason = "no"
"#;

const ALIKE: &str = r#"
[[rule]]
match = "layer3.0.conv1"
kind = "group"
do = "at_least"
ratio = 0.5
[[rule]]
match = "layer?.0.conv1"
kind = "group"
do = "together"
"#;

const TOGETHER: &str = r#"
[[rule]]
match = "layer3.0.conv1"
kind = "group"
do = "at_least"
ratio = 0.25
reason = "it has slack"
[[rule]]
match = "layer1.*"
do = "together"
"#;

#[tokio::test(flavor = "multi_thread")]
async fn what_shall_go_and_what_is_kept_together_binds_planner_agents_and_the_engineer() {
    // The agent gives one a quarter and the other a half, and leaves the third alone; told of it, it says the same again.
    let mind = |request: &Value| match role(request).as_str() {
        "pruning" => block(json!([
            cut("layer1.0.conv1", 0.25),
            cut("layer2.0.conv1", 0.5),
            {"target": "layer3.0.conv1", "action": "keep"}
        ])),
        _ => block(json!([])),
    };
    let fake = FakeLlm::thinking(&["usual"], mind);
    let least = Limit::MinRatio { ratio: 0.25 };
    let mut s = Session::open(&fake, ruled("", 0.8)).await;
    let bind = |target: &str, limit: Limit| Constraint { target: group(target), limit, reason: "mine".into() };
    let together = Limit::Together { set: "early".into() };
    s.ask(Command::Bind {
        constraints: vec![
            bind("layer3.0.conv1", least.clone()),
            bind("layer1.0.conv1", together.clone()),
            bind("layer2.0.conv1", together),
        ],
    })
    .await;
    s.until("bound", |s| s.state.constraints.len() == 3).await;
    // The planner holds to it and says so.
    s.ask(Command::Propose { by: Proposer::Planner }).await;
    s.until("asked", |s| s.state.phase == Phase::Reason).await;
    s.proposed().await;
    let apart = (shown(&s, "layer1.0.conv1") - shown(&s, "layer2.0.conv1")).abs();
    assert!(apart < 0.13 && shown(&s, "layer3.0.conv1") >= 0.25, "{:?}", s.state.shown_actions());
    let why = |s: &Session, name: &str| {
        let d = s.state.open().into_iter().find(|d| d.target == group(name)).expect("proposed");
        d.rationale.clone()
    };
    assert!(why(&s, "layer3.0.conv1").contains("At least 25 % of it shall go, as you asked (mine)"));
    // So do agents, told once.
    s.propose().await;
    s.proposed().await;
    assert_eq!((shown(&s, "layer1.0.conv1"), shown(&s, "layer2.0.conv1")), (0.25, 0.25), "{:?}", s.said);
    assert_eq!(shown(&s, "layer3.0.conv1"), 0.25);
    let told = s.said.iter().filter(|t| t.contains("are kept together (early)")).count();
    assert!(told >= 1, "{:?}", s.said);
    // The engineer's own decision of one is one of both, in one step.
    s.ask(Command::Decide { target: group("layer1.0.conv1"), action: Action::Prune { ratio: 0.5, kept: vec![] } })
        .await;
    s.until("decided", |s| shown(s, "layer1.0.conv1") == 0.5).await;
    assert_eq!(shown(&s, "layer2.0.conv1"), 0.5);
    s.ask(Command::Undo).await;
    s.until("undone", |s| shown(s, "layer1.0.conv1") == 0.25).await;
    assert_eq!(shown(&s, "layer2.0.conv1"), 0.25);
    // A plan that leaves something of it undone does not run.
    let all = ids(&s);
    let third = s.state.open().iter().find(|d| d.target == group("layer3.0.conv1")).expect("open").id;
    s.ask(Command::Approve { ids: all.iter().copied().filter(|id| *id != third).collect() }).await;
    let why = s.client.command(Command::Run).await.expect_err("it lacks what shall go").to_string();
    assert!(why.contains("layer3.0.conv1") && why.contains("at least 25 %") && why.contains("hint:"), "{why}");
    let against = bind("layer3.0.conv1", Limit::MaxRatio { ratio: 0.1 });
    let why =
        s.client.command(Command::Constrain { constraint: against }).await.expect_err("both cannot be").to_string();
    assert!(why.contains("at least 25 %") && why.contains(":lift"), "{why}");
    s.ask(Command::Unconstrain { target: group("layer3.0.conv1") }).await;
    s.ask(Command::Run).await;
    s.until("run", |s| s.state.phase == Phase::Verdict).await;
    s.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_must_go_of_one_goes_of_all_that_are_kept_together_and_contradictions_are_refused() {
    let fake = FakeLlm::thinking(&["usual"], |_| block(json!([])));
    let mut s = Session::open(&fake, ruled(ALIKE, 0.9)).await;
    let names = ["layer1.0.conv1", "layer2.0.conv1", "layer3.0.conv1"];
    s.until("bound", |s| s.state.constraints.len() >= 4).await;
    s.ask(Command::Propose { by: Proposer::Planner }).await;
    s.until("asked", |s| s.state.phase == Phase::Reason).await;
    s.proposed().await;
    let all: Vec<f64> = names.iter().map(|n| shown(&s, n)).collect();
    assert!(all.iter().all(|r| *r >= 0.5 && (r - all[0]).abs() < 0.13), "{all:?}");
    // A row that is taken from another plan takes the others with it, in one step.
    let actions = vec![(group(names[0]), Action::Prune { ratio: 0.75, kept: vec![] })];
    s.ask(Command::Take { actions, from: "another".into() }).await;
    s.until("taken", |s| shown(s, names[0]) == 0.75).await;
    assert!(names.iter().all(|n| shown(&s, n) == 0.75), "{:?}", s.state.shown_actions());
    s.ask(Command::Undo).await;
    s.until("undone", |s| shown(s, names[0]) == all[0]).await;
    // Neither a freeze, nor a veto, nor a limit below it can be where something shall go.
    let bind = |limit: Limit| Constraint { target: group(names[2]), limit, reason: "no".into() };
    let refused = |e: Result<(), paring::host::client::CommandError>| e.expect_err("it contradicts").to_string();
    let open = s.state.open().iter().find(|d| d.target == group(names[2])).expect("open").id;
    for words in [
        refused(s.client.command(Command::Constrain { constraint: bind(Limit::Freeze) }).await),
        refused(s.client.command(Command::Bind { constraints: vec![bind(Limit::MaxRatio { ratio: 0.25 })] }).await),
        refused(s.client.command(Command::Veto { ids: vec![open], reason: "no".into() }).await),
    ] {
        assert!(words.contains("at least 50 % of") && words.contains(":lift"), "{words}");
    }
    let nothing = Command::Constrain { constraint: bind(Limit::MinRatio { ratio: 0.0 }) };
    assert!(refused(s.client.command(nothing).await).contains("binds nothing"));
    let other = |limit: Limit| Constraint { target: group(names[1]), limit, reason: "no".into() };
    let both = vec![other(Limit::MinRatio { ratio: 0.5 }), other(Limit::MaxRatio { ratio: 0.25 })];
    let words = refused(s.client.command(Command::Bind { constraints: both }).await);
    assert!(words.contains("at least 50 %"), "held against each other: {words}");
    // Everything that is frozen at once is one step, what waits there included.
    s.ask(Command::Lift { targets: names.iter().map(|n| group(n)).collect() }).await;
    s.until("lifted", |s| {
        s.state.constraints.iter().all(|c| !names.contains(&c.target.name()) || matches!(c.target, Target::Layer(_)))
    })
    .await;
    let before = s.state.undo.len();
    let freeze = |n: &str| Constraint { target: group(n), limit: Limit::Freeze, reason: "whole".into() };
    s.ask(Command::Bind { constraints: names.iter().map(|n| freeze(n)).collect() }).await;
    s.until("frozen", |s| names.iter().all(|n| s.state.frozen(&group(n)).is_some())).await;
    assert_eq!(s.state.undo.len(), before + 1);
    assert!(names.iter().all(|n| shown(&s, n) == 0.0), "{:?}", s.state.shown_actions());
    s.ask(Command::Undo).await;
    s.until("undone", |s| shown(s, names[0]) == all[0]).await;
    s.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_of_a_file_bind_a_session_from_its_beginning_and_a_wish_moves_the_planner() {
    let fake = FakeLlm::thinking(&["usual"], |_| block(json!([])));
    let mut s = Session::open(&fake, ruled(RULES, 0.9)).await;
    s.until("bound", |s| !s.state.constraints.is_empty()).await;
    let on = |s: &Session, name: &str| -> Vec<Limit> {
        s.state.constraints_on(&group(name)).map(|c| c.limit.clone()).collect()
    };
    assert_eq!(on(&s, "layer1.0.conv1"), [Limit::Freeze]);
    assert_eq!(
        on(&s, "layer3.0.conv1"),
        [Limit::MinRatio { ratio: 0.25 }],
        "an approval excepts it from the veto behind"
    );
    s.ask(Command::Propose { by: Proposer::Planner }).await;
    s.until("asked", |s| s.state.phase == Phase::Reason).await;
    s.proposed().await;
    assert_eq!((shown(&s, "layer1.0.conv1"), shown(&s, "layer2.0.conv1")), (0.0, 0.0));
    assert!(shown(&s, "layer3.0.conv1") >= 0.25);
    s.stop().await;
    let card = card_of(&fake).await;
    let typo = Policy::parse("[[rule]]\nmatch = \"lyer1.*\"\ndo = \"veto\"", "r").expect("rules");
    let why = typo.bind(&card).expect_err("nothing is called so");
    assert!(why.contains("`lyer1.*`") && why.contains("hint:"), "{why}");
    assert!(Policy::parse(TOGETHER, "r").is_ok());
}

async fn card_of(fake: &FakeLlm) -> paring::session::SessionCard {
    let s = Session::open(fake, ruled("", 0.9)).await;
    let card = s.state.card.clone().expect("open");
    s.stop().await;
    card
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_that_agents_read_in_a_note_binds_once_it_is_confirmed() {
    let rule = json!([{"match": "layer1.*", "kind": "group", "do": "limit", "ratio": 0.125, "reason": "thin"}]);
    let mind = move |request: &Value| match role(request).as_str() {
        "pruning" => {
            let answer = json!({ "decisions": [cut("layer2.0.conv1", 0.25)], "constraints": rule });
            Answer::says("", &format!("So.\n```json\n{answer}\n```\n"))
        }
        _ => block(json!([])),
    };
    let fake = FakeLlm::thinking(&["usual"], mind);
    let mut s = Session::open(&fake, ruled("", 0.9)).await;
    assert!(s.client.command(Command::Confirm { take: true }).await.is_err(), "nothing waits");
    // One role alone, with a note to all of them.
    s.ask(Command::AskRole { role: "pruning".into(), note: "never more than an eighth of the first stage".into() })
        .await;
    s.until("asked", |s| s.state.phase == Phase::Reason).await;
    s.proposed().await;
    let asked: Vec<String> = fake.requests.lock().expect("requests").iter().map(role).collect();
    assert_eq!(asked, ["pruning"]);
    let words: Vec<&str> = s.state.suggested.iter().map(|s| s.words.as_str()).collect();
    assert_eq!(words, ["at most 12 % of layer1.* goes"]);
    assert!(s.state.constraints.is_empty(), "it binds nothing yet");
    s.ask(Command::Confirm { take: true }).await;
    s.until("bound", |s| s.state.constraints.len() == 1 && s.state.suggested.is_empty()).await;
    assert_eq!(s.state.constraints[0].limit, Limit::MaxRatio { ratio: 0.125 });
    s.ask(Command::Undo).await;
    s.until("undone", |s| s.state.constraints.is_empty()).await;
    // And goes where the engineer lets it go.
    s.ask(Command::AskRole { role: "pruning".into(), note: String::new() }).await;
    s.until("asked", |s| s.state.phase == Phase::Reason).await;
    s.proposed().await;
    s.ask(Command::Confirm { take: false }).await;
    s.until("gone", |s| s.state.suggested.is_empty()).await;
    assert!(s.state.constraints.is_empty());
    assert!(s.client.command(Command::AskRole { role: "poet".into(), note: String::new() }).await.is_err());
    s.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_profiling_role_has_measured_what_it_asks_for_and_limits_end_a_proposal() {
    let mind = |request: &Value| {
        let answers = request["messages"].as_array().expect("messages").iter().filter(|m| m["role"] == "tool").count();
        match (role(request).as_str(), answers) {
            ("profiling", 0) => Answer::calls(&[("measure", json!({"what": "layer", "name": "conv1"}))]),
            ("profiling", 1) => Answer::calls(&[("measure", json!({"what": "layer", "name": "no.such"}))]),
            ("profiling", _) => Answer::says("", "Known well enough."),
            _ => block(json!([cut("layer1.0.conv1", 0.25)])),
        }
    };
    let fake = FakeLlm::thinking(&["usual"], mind);
    let mut s = Session::open(&fake, ruled("", 0.8)).await;
    s.ask(Command::AskRole { role: "profiling".into(), note: String::new() }).await;
    s.until("asked", |s| s.state.phase == Phase::Reason).await;
    s.proposed().await;
    let said = s.state.utterances.iter().find(|u| u.role == "profiling").expect("it spoke");
    assert!(
        said.reasoning.contains("→ measure") && said.reasoning.contains("is no row of the model"),
        "{}",
        said.reasoning
    );
    let measured = |t: &&paring::session::TimelineEntry| t.text.contains("conv1") && t.text.contains("measured");
    assert_eq!(s.state.timeline.iter().filter(measured).count(), 1, "{:?}", s.state.timeline);
    // It is not asked by itself unless measurements are allowed.
    let roles = |fake: &FakeLlm| fake.requests.lock().expect("requests").iter().map(role).collect::<Vec<_>>();
    let before = roles(&fake).len();
    s.propose().await;
    s.proposed().await;
    assert!(!roles(&fake)[before..].contains(&"profiling".to_owned()));
    assert!(s.state.open().iter().any(|d| !d.by_person()));
    // So few tokens that nothing is asked at all.
    let why = s.client.command(Command::SetLimits { limits: Limits { cost: 1.0, ..Limits::default() } }).await;
    assert!(why.expect_err("no prices").to_string().contains("prices"));
    s.ask(Command::SetLimits { limits: "tokens=50".parse().expect("limits") }).await;
    let before = roles(&fake).len();
    s.propose().await;
    s.proposed().await;
    assert_eq!(roles(&fake).len(), before);
    assert!(s.said.iter().any(|t| t.contains("the limit is reached: 50 tokens a proposal")), "{:?}", s.said);
    assert!(s.state.utterances.iter().any(|u| u.role == "planner"), "the planner stands in");
    s.stop().await;
}
