//! What OpenAI-compatible servers really answer, as files: each `cases/NAME.json` is played through a whole run.
//!
//! A case holds what the server answers, request by request, and what must come of it. An answer is one of `events`
//! (data of server-sent events, or steps in between), `body` (in one piece), `raw` (bytes as they came: what
//! `record.py` writes), `says` (streamed text) and `calls` (streamed in the standard way). Not here: what cannot be said
//! in a file (cancelling, memory, redirects).
//!
//! Invariants of every case, whatever it expects: the key is shown nowhere, nothing that could steer a terminal gets
//! through, every turn that opens is closed, decisions wait for the engineer, and exactly the answers of the script are
//! fetched.

use crate::fake_llm::{Answer, FakeLlm, Step, delta, finish, pieces};
use crate::session;
use crate::wire::quick;
use futures::StreamExt;
use paring::agent::tools::{self, Tool};
use paring::agent::{AgentInput, Endpoint, Listener, Outcome, run};
use paring::plan::{Author, Decision, DecisionId, Status};
use paring::prune::{Action, Target};
use paring::quant::Precision;
use paring::session::{Ask, Channel, Event, Feed, Looks, Role, State};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// What is sent as the key, and must be shown nowhere.
const KEY: &str = "sk-secret-key";
/// Files at least, so that a folder that is not found is no success.
const LEAST: usize = 80;
/// Cases at a time: more would only wait for each other, and silence would be measured wrong.
const AT_ONCE: usize = 6;
/// Requests after which a run asks without end.
const MOST_ASKED: usize = 120;
/// A run that takes longer never ends.
const LONGEST: Duration = Duration::from_secs(60);
/// Characters of one line of what failed.
const SHOWN: usize = 300;
/// Stands in a repeated step for how often it was repeated before.
const NUMBER: char = '§';

/// One file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    /// Which server does this, and what must come of it.
    about: String,
    #[serde(default)]
    task: Task,
    looks: Option<Looks>,
    /// What it may take, as `:limits` reads it.
    limits: Option<String>,
    /// The engineer's notes.
    #[serde(default)]
    notes: Vec<String>,
    /// The one role that is asked.
    only: Option<String>,
    /// What `/models` lists; `m` where there is none (a recording that named its model).
    #[serde(default)]
    models: Vec<String>,
    /// Another answer to `/models`.
    list: Option<Scripted>,
    answers: Vec<Scripted>,
    /// The last answer is given for ever.
    #[serde(default)]
    last_repeats: bool,
    expect: Expect,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Task {
    #[default]
    Propose,
    Evaluate,
}

/// The answer to one request.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scripted {
    #[serde(default = "ok")]
    status: u16,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    events: Option<Vec<Value>>,
    body: Option<Value>,
    raw: Option<String>,
    says: Option<String>,
    calls: Option<Vec<Called>>,
    /// Reasoning before `says` or `calls`.
    #[serde(default)]
    thinks: String,
    /// The finish reason of `says` or `calls`.
    finish: Option<String>,
    /// Whether a stream ends with `[DONE]`.
    #[serde(default = "yes")]
    done: bool,
}

/// A call as OpenAI streams it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Called {
    id: Option<String>,
    name: String,
    /// Text is sent as it is, anything else as its JSON.
    arguments: Value,
}

fn ok() -> u16 {
    200
}

fn yes() -> bool {
    true
}

/// What must come of a case; what is absent is not looked at.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Expect {
    by_agents: Option<Decided>,
    by_planner: Option<usize>,
    stood_in: Option<StoodIn>,
    asked: Option<usize>,
    /// Each in some line for people.
    notices: Vec<String>,
    no_notice: Vec<String>,
    said: Vec<String>,
    reasoning: Vec<String>,
    /// Calls that reached the session: those that were refused before are none.
    looked: Option<usize>,
    requests: Vec<Sent>,
    /// Rules that wait for the engineer, in words.
    suggested: Option<Vec<String>>,
    /// Nowhere in what is handed on.
    never: Vec<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum Decided {
    Count(usize),
    /// `target action`, in order, such as `layer1.0.conv1 prune 0.25` or `linear precision int8`.
    List(Vec<String>),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum StoodIn {
    AtAll(bool),
    For(Vec<String>),
}

/// What one request must hold: in its JSON, or in the words of its messages as they read without escapes.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sent {
    index: usize,
    #[serde(default)]
    has: Vec<String>,
    #[serde(default)]
    lacks: Vec<String>,
}

impl Case {
    /// Why the file is no case: it looks at too little to fail.
    fn idle(&self) -> Option<&'static str> {
        let e = &self.expect;
        let decisions = e.by_agents.is_some() || e.by_planner.is_some();
        let lists = [&e.notices, &e.no_notice, &e.said, &e.reasoning, &e.never];
        let requests = e.requests.iter().any(|r| !r.has.is_empty() || !r.lacks.is_empty());
        let more = e.suggested.is_some() || e.stood_in.is_some() || e.asked.is_some() || e.looked.is_some() || requests;
        if self.about.trim().is_empty() {
            Some("`about` says nothing")
        } else if !decisions {
            Some("`expect` says nothing of decisions")
        } else if !more && lists.iter().all(|l| l.is_empty()) {
            Some("`expect` says nothing but decisions")
        } else {
            None
        }
    }

    fn script(&self) -> Result<Vec<Answer>, String> {
        let mut script: Vec<Answer> = self.answers.iter().map(Scripted::answer).collect::<Result<_, _>>()?;
        if !self.last_repeats {
            // What is asked beyond the script is a fault, and must not be asked again.
            script.push(Answer::status(418, "the case has no further answer"));
        }
        Ok(script)
    }
}

impl Scripted {
    fn answer(&self) -> Result<Answer, String> {
        let forms = [&self.says, &self.raw].iter().filter(|f| f.is_some()).count()
            + usize::from(self.events.is_some())
            + usize::from(self.body.is_some())
            + usize::from(self.calls.is_some());
        if forms != 1 {
            return Err(format!("an answer is one of events, body, raw, says and calls, not {forms} of them"));
        }
        let mut steps = Vec::new();
        if let Some(raw) = &self.raw {
            steps.push(Step::Raw(raw.clone().into_bytes()));
        }
        if let Some(body) = &self.body {
            steps.push(Step::Raw(body.as_str().map_or_else(|| body.to_string(), str::to_owned).into_bytes()));
        }
        for event in self.events.iter().flatten() {
            steps.extend(steps_of(event)?);
        }
        if self.says.is_some() || self.calls.is_some() {
            steps.push(delta(json!({ "role": "assistant", "content": "" })));
            steps.extend(pieces(&self.thinks).into_iter().map(|p| delta(json!({ "reasoning_content": p }))));
            let text = self.says.as_deref().unwrap_or_default();
            steps.extend(pieces(text).into_iter().map(|p| delta(json!({ "content": p }))));
            for (i, call) in self.calls.iter().flatten().enumerate() {
                steps.extend(call.steps(i));
            }
            let usual = if self.calls.is_some() { "tool_calls" } else { "stop" };
            steps.push(finish(self.finish.as_deref().unwrap_or(usual)));
            steps.push(Step::Event(json!({ "choices": [], "usage": { "completion_tokens": 42 } }).to_string()));
        }
        let streams = self.body.is_none() && self.raw.is_none();
        if streams && self.done {
            steps.push(Step::Event("[DONE]".to_owned()));
        }
        let usual = if self.body.is_some() { "application/json" } else { "text/event-stream" };
        let mut headers = vec![("content-type", usual.to_owned())];
        for (name, value) in &self.headers {
            // The server wants names that last; those of a case are few.
            let name: &'static str = name.to_ascii_lowercase().leak();
            headers.retain(|(n, _)| *n != name);
            headers.push((name, value.clone()));
        }
        Ok(Answer { status: self.status, headers, steps })
    }
}

impl Called {
    fn steps(&self, index: usize) -> Vec<Step> {
        let arguments = self.arguments.as_str().map_or_else(|| self.arguments.to_string(), str::to_owned);
        let id = self.id.clone().unwrap_or_else(|| format!("call_{index}"));
        let call = |fields: Value| delta(json!({ "tool_calls": [fields] }));
        let function = json!({ "name": self.name, "arguments": "" });
        let first = call(json!({ "index": index, "id": id, "type": "function", "function": function }));
        let more = |p: String| call(json!({ "index": index, "function": { "arguments": p } }));
        [first].into_iter().chain(pieces(&arguments).into_iter().map(more)).collect()
    }
}

/// Data of an event, or what is done instead.
fn steps_of(value: &Value) -> Result<Vec<Step>, String> {
    let Value::Object(object) = value else {
        return Ok(vec![Step::Event(value.as_str().map_or_else(|| value.to_string(), str::to_owned))]);
    };
    let alone = |key: &str| object.get(key).filter(|_| object.len() == 1);
    let bad = |what: &str| format!("{what} in {}", cut(&value.to_string(), 80));
    if let (Some(times), Some(Value::Array(of))) = (object.get("times"), object.get("of")) {
        return repeated(times.as_u64().ok_or_else(|| bad("no number"))?, of);
    }
    let step = if let Some(ms) = alone("sleep_ms") {
        Step::Sleep(Duration::from_millis(ms.as_u64().ok_or_else(|| bad("no number"))?))
    } else if let Some(raw) = alone("raw") {
        Step::Raw(raw.as_str().ok_or_else(|| bad("no text"))?.as_bytes().to_vec())
    } else if let Some(bytes) = alone("bytes") {
        // What a text cannot hold: half a character.
        Step::Raw(serde_json::from_value(bytes.clone()).map_err(|e| bad(&e.to_string()))?)
    } else if alone("drop").is_some() {
        Step::Drop
    } else if alone("hang").is_some() {
        Step::Hang
    } else {
        Step::Event(value.to_string())
    };
    Ok(vec![step])
}

/// `of` so many times, the number in place of [`NUMBER`]: as a number where it stands alone.
fn repeated(times: u64, of: &[Value]) -> Result<Vec<Step>, String> {
    let text = Value::Array(of.to_vec()).to_string();
    let mut steps = Vec::new();
    for n in 0..times {
        let n = n.to_string();
        let text = text.replace(&format!("\"{NUMBER}\""), &n).replace(NUMBER, &n);
        let events: Vec<Value> = serde_json::from_str(&text).map_err(|e| e.to_string())?;
        for event in &events {
            steps.extend(steps_of(event)?);
        }
    }
    Ok(steps)
}

/// What a run hands on.
struct Heard {
    state: Arc<State>,
    feeds: Vec<Feed>,
    events: Vec<Event>,
    looked: usize,
}

impl Listener for Heard {
    async fn feed(&mut self, feed: Feed) {
        self.feeds.push(feed);
    }

    async fn event(&mut self, event: Event) {
        self.events.push(event);
    }

    async fn call(&mut self, tool: &'static Tool, asked: Map<String, Value>) -> Result<Value, String> {
        self.looked += 1;
        tools::answer(tool, &asked, &self.state)
    }
}

/// A run that has ended.
struct Ran {
    heard: Heard,
    outcome: Outcome,
    requests: Vec<Value>,
}

/// The planner's: one decision for each role that proposes.
fn planner() -> Vec<Decision> {
    let cut = Action::Prune { ratio: 0.5, kept: vec![] };
    let int8 = Action::Precision { precision: Precision::Int8 };
    vec![
        session::decision(7, Target::Group("layer3.0.conv1".into()), cut),
        session::decision(8, Target::Layer("linear".into()), int8),
    ]
}

async fn played(case: &Case, state: Arc<State>) -> Result<Ran, String> {
    let script = case.script()?;
    let fake = match &case.list {
        Some(list) => FakeLlm::with_list(list.answer()?, script),
        None if case.models.is_empty() => FakeLlm::start(&["m"], script),
        None => FakeLlm::start(&case.models.iter().map(String::as_str).collect::<Vec<_>>(), script),
    };
    let task = match case.task {
        Task::Propose => Ask::Propose,
        Task::Evaluate => Ask::Evaluate,
    };
    let stand_in = Arc::new(|| Ok((planner(), "I solved the budget.".to_owned())));
    let input = AgentInput::new(task, state.clone(), stand_in);
    let limits = case.limits.as_deref().unwrap_or("off").parse()?;
    let only = case.only.as_deref().map(Role::called).transpose()?;
    let state = match case.notes.is_empty() {
        true => state,
        false => Arc::new(State { notes: case.notes.iter().map(|n| (1, n.clone())).collect(), ..(*state).clone() }),
    };
    let input = AgentInput { looks: case.looks.unwrap_or(input.looks), limits, only, state: state.clone(), ..input };
    let mut heard = Heard { state, feeds: Vec::new(), events: Vec::new(), looked: 0 };
    let cancel = CancellationToken::new();
    let endpoint = Some(Endpoint::new(&fake.url, KEY, None));
    let endless = async {
        while fake.asked() <= MOST_ASKED {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let outcome = tokio::select! {
        outcome = run(input, endpoint, quick(), &mut heard, &cancel) => outcome,
        () = endless => return Err(format!("asks without end: more than {MOST_ASKED} requests")),
        () = tokio::time::sleep(LONGEST) => return Err(format!("still runs after {} s", LONGEST.as_secs())),
    };
    let requests = fake.requests.lock().expect("requests").clone();
    Ok(Ran { heard, outcome, requests })
}

/// What of the case did not come true.
async fn play(name: String, case: Case, state: Arc<State>) -> Vec<String> {
    let faults = match played(&case, state).await {
        Ok(ran) => ran.faults(&case),
        Err(why) => vec![why],
    };
    let line = |f: String| cut(&format!("{name}: {}", f.split_whitespace().collect::<Vec<_>>().join(" ")), SHOWN);
    faults.into_iter().map(line).collect()
}

impl Ran {
    fn decisions(&self) -> impl Iterator<Item = &Decision> {
        self.heard.events.iter().flat_map(|e| match e {
            Event::Proposed { decisions } => decisions.as_slice(),
            _ => &[],
        })
    }

    fn notices(&self) -> Vec<String> {
        let of = |f: &Feed| if let Feed::Log { text, .. } = f { Some(text.clone()) } else { None };
        self.heard.feeds.iter().filter_map(of).collect()
    }

    fn tokens(&self, want: Channel) -> String {
        let of = |f: &Feed| match f {
            Feed::Token { channel, text, .. } if *channel == want => Some(text.clone()),
            _ => None,
        };
        self.heard.feeds.iter().filter_map(of).collect()
    }

    /// For whom the planner stood in, as people are told.
    fn stood_in(&self) -> Vec<String> {
        let begins = "planner: the built-in planner stands in for ";
        let names =
            |n: &String| n.strip_prefix(begins).map(|r| r.split(" and ").map(str::to_owned).collect::<Vec<_>>());
        self.notices().iter().filter_map(names).flatten().collect()
    }

    /// All words that were handed on, as they are.
    fn words(&self) -> Vec<String> {
        let fed = self.heard.feeds.iter().map(|f| match f {
            Feed::Turn { role, model } => format!("{role} {model}"),
            Feed::Token { text, .. } | Feed::Log { text, .. } => text.clone(),
            other => format!("{other:?}"),
        });
        let told = self.heard.events.iter().map(|e| match e {
            Event::Said { utterance: u } => [&*u.role, &*u.model, &*u.reasoning, &*u.text, &*u.prompt].join("\n"),
            Event::Proposed { decisions } => {
                let said = |d: &Decision| format!("{} {} {}\n", d.author, d.target.name(), d.rationale);
                decisions.iter().map(said).collect()
            }
            other => format!("{other:?}"),
        });
        fed.chain(told).collect()
    }

    fn faults(&self, case: &Case) -> Vec<String> {
        let mut out = self.broken(case);
        let e = &case.expect;
        let by_agents = |d: &&Decision| matches!(d.author, Author::Agent { .. });
        let made: Vec<String> = self.decisions().filter(by_agents).map(decision).collect();
        match &e.by_agents {
            Some(Decided::Count(n)) if *n != made.len() => {
                out.push(format!("by_agents: {n} wanted, {} there: {}", made.len(), made.join(", ")));
            }
            Some(Decided::List(list)) if *list != made => {
                out.push(format!("by_agents: wanted {}; there: {}", list.join(", "), made.join(", ")));
            }
            Some(Decided::Count(_) | Decided::List(_)) | None => {}
        }
        let mut count = |what: &str, want: Option<usize>, is: usize| {
            if want.is_some_and(|w| w != is) {
                out.push(format!("{what}: {} wanted, {is} there", want.unwrap_or_default()));
            }
        };
        count("by_planner", e.by_planner, self.outcome.by_planner);
        count("asked", e.asked, self.requests.len());
        count("looked", e.looked, self.heard.looked);
        let stood_in = self.stood_in();
        match &e.stood_in {
            Some(StoodIn::AtAll(want)) if *want == stood_in.is_empty() => {
                out.push(format!("stood_in: {want} wanted, for {} there", stood_in.join(", ")));
            }
            Some(StoodIn::For(roles)) if *roles != stood_in => {
                out.push(format!("stood_in: for {} wanted, for {} there", roles.join(", "), stood_in.join(", ")));
            }
            Some(StoodIn::AtAll(_) | StoodIn::For(_)) | None => {}
        }
        let offered = self.heard.events.iter().filter_map(|e| match e {
            Event::Suggested { suggestion } => Some(suggestion.words.clone()),
            _ => None,
        });
        let offered: Vec<String> = offered.collect();
        if let Some(wanted) = e.suggested.as_ref().filter(|w| **w != offered) {
            out.push(format!("suggested: wanted {}; there: {}", wanted.join(", "), offered.join(", ")));
        }
        let notices = self.notices();
        out.extend(lacking("notices", &e.notices, &notices));
        out.extend(holding("no_notice", &e.no_notice, &notices));
        out.extend(lacking("said", &e.said, &[self.tokens(Channel::Text)]));
        out.extend(lacking("reasoning", &e.reasoning, &[self.tokens(Channel::Reasoning)]));
        for sent in &e.requests {
            let what = format!("requests {}", sent.index);
            match self.requests.get(sent.index) {
                None => out.push(format!("{what}: there are {}", self.requests.len())),
                Some(body) => {
                    let there = [body.to_string(), contents(body)];
                    out.extend(lacking(&what, &sent.has, &there[..]));
                    out.extend(holding(&what, &sent.lacks, &there[..]));
                }
            }
        }
        out.extend(holding("never", &e.never, &self.everything()));
        out
    }

    /// What may not be, whatever a case expects.
    fn broken(&self, case: &Case) -> Vec<String> {
        let mut out = holding("the key is shown", &[KEY.to_owned()], &self.everything());
        let steers =
            |c: char| c != '\n' && (c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'));
        out.extend(self.words().iter().filter_map(|w| {
            let at = w.find(steers)?;
            let before: String = w[..at].chars().rev().take(40).collect::<Vec<_>>().into_iter().rev().collect();
            let it = w[at..].chars().next().unwrap_or_default();
            Some(format!("what steers a terminal gets through: {it:?} after `{before}`"))
        }));
        let turns = |opens: bool| {
            let is = |f: &&Feed| match f {
                Feed::Turn { .. } => opens,
                Feed::TurnEnd { .. } => !opens,
                _ => false,
            };
            self.heard.feeds.iter().filter(is).count()
        };
        if turns(true) != turns(false) {
            out.push(format!("{} turns open, {} end", turns(true), turns(false)));
        }
        for d in self.decisions() {
            if d.status != Status::Proposed || d.id != DecisionId(0) || d.round != 1 {
                out.push(format!("does not wait for the engineer: {d:?}"));
            }
        }
        let told = self.outcome.by_agents + self.outcome.by_planner;
        if self.outcome.cancelled || told != self.decisions().count() {
            out.push(format!("the outcome is not what was proposed: {:?}", self.outcome));
        }
        let (asked, script) = (self.requests.len(), case.answers.len());
        if asked < script || (asked > script && !case.last_repeats) {
            out.push(format!(
                "asked: the script has {script} answers, {asked} were fetched; notices: {}",
                self.notices().join(" | ")
            ));
        }
        out
    }

    /// Words as they are, and everything else that is in what was handed on.
    fn everything(&self) -> Vec<String> {
        let mut all = self.words();
        all.push(format!("{:?} {:?}", self.heard.feeds, self.heard.events));
        all
    }
}

/// `layer1.0.conv1 prune 0.25`.
fn decision(d: &Decision) -> String {
    let name = d.target.name();
    match &d.action {
        Action::Prune { ratio, .. } => format!("{name} prune {ratio}"),
        Action::Precision { precision } => format!("{name} precision {}", precision.label()),
        Action::Keep => format!("{name} keep"),
        Action::RemoveBlock => format!("{name} remove_block"),
        other => format!("{name} {other:?}"),
    }
}

/// What a request's messages say.
fn contents(body: &Value) -> String {
    let messages = body["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
    messages.iter().filter_map(|m| m["content"].as_str()).collect::<Vec<_>>().join("\n")
}

fn lacking(what: &str, wanted: &[String], there: &[String]) -> Vec<String> {
    let absent = |w: &&String| !there.iter().any(|t| t.contains(w.as_str()));
    // The end says most: a question's beginning is always the same.
    let end = |t: &String| t.chars().skip(t.chars().count().saturating_sub(SHOWN)).collect::<String>();
    let shown = there.iter().map(end).collect::<Vec<_>>().join(" | ");
    wanted.iter().filter(absent).map(|w| format!("{what}: `{w}` is not there but {shown}")).collect()
}

fn holding(what: &str, unwanted: &[String], there: &[String]) -> Vec<String> {
    let found = |w: &String| {
        let (text, at) = there.iter().find_map(|t| Some((t, t.find(w.as_str())?)))?;
        let around: String = text[at..].chars().take(120).collect();
        Some(format!("{what}: `{w}` is there: {around}"))
    };
    unwanted.iter().filter_map(found).collect()
}

fn cut(s: &str, most: usize) -> String {
    if s.chars().count() <= most { s.to_owned() } else { s.chars().take(most - 1).chain(['…']).collect() }
}

#[tokio::test]
async fn every_case_comes_to_what_it_says() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/agents/cases");
    let files = std::fs::read_dir(&dir).expect("a folder of cases").flatten().map(|f| f.path());
    let mut files: Vec<_> = files.filter(|f| f.extension().is_some_and(|e| e == "json")).collect();
    files.sort();
    assert!(files.len() >= LEAST, "only {} cases in {}", files.len(), dir.display());
    let (mut faults, mut cases) = (Vec::new(), Vec::new());
    for file in &files {
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(file).expect("a case in UTF-8");
        match serde_json::from_str::<Case>(&text) {
            Ok(case) => {
                faults.extend(case.idle().map(|why| format!("{name}: {why}")));
                cases.push((name, case));
            }
            Err(e) => faults.push(cut(&format!("{name}: is no case: {e}"), SHOWN)),
        }
    }
    let state = Arc::new(session::state());
    let playing = cases.into_iter().map(|(name, case)| play(name, case, state.clone()));
    let found: Vec<Vec<String>> = futures::stream::iter(playing).buffer_unordered(AT_ONCE).collect().await;
    faults.extend(found.into_iter().flatten());
    faults.sort();
    assert!(faults.is_empty(), "{} faults in {} cases:\n{}", faults.len(), files.len(), faults.join("\n"));
}

/// Three sound answers and one call, with these expectations.
fn sound(expect: &Value) -> Value {
    let prune = json!({ "decisions": [{ "target": "layer1.0.conv1", "action": "prune", "ratio": 0.25 }] });
    let int8 = json!({ "decisions": [{ "target": "linear", "action": "precision", "precision": "int8" }] });
    json!({
        "about": "a server without fault",
        "answers": [
            { "calls": [{ "name": "layers", "arguments": { "limit": 3 } }], "thinks": "I look first." },
            { "says": "Early blocks dominate." },
            { "says": prune.to_string() },
            { "says": int8.to_string() },
        ],
        "expect": expect,
    })
}

async fn faults_of(case: Value) -> Vec<String> {
    let case: Case = serde_json::from_value(case).expect("a case");
    play("it".to_owned(), case, Arc::new(session::state())).await
}

#[tokio::test]
async fn an_expectation_that_holds_is_no_fault_and_one_that_does_not_is_named() {
    let both = json!(["layer1.0.conv1 prune 0.25", "linear precision int8"]);
    let right = json!({
        "by_agents": both, "by_planner": 0, "stood_in": false, "asked": 4, "looked": 1,
        "notices": ["using `m`"], "no_notice": ["trying again"],
        "said": ["Early blocks dominate."], "reasoning": ["I look first.", "→ layers"],
        "requests": [
            { "index": 1, "has": ["\"tool_call_id\":\"call_0\"", "\"sorted_by\":\"ms\""], "lacks": ["nowhere"] },
        ],
        "never": ["nowhere"],
    });
    assert_eq!(faults_of(sound(&right)).await, Vec::<String>::new());
    for (wrong, says) in [
        (json!({ "by_agents": 3 }), "by_agents: 3 wanted, 2 there"),
        (json!({ "by_agents": ["linear precision int8"] }), "by_agents: wanted linear"),
        (json!({ "by_planner": 1 }), "by_planner: 1 wanted, 0 there"),
        (json!({ "stood_in": true }), "stood_in: true wanted"),
        (json!({ "stood_in": ["pruning"] }), "stood_in: for pruning wanted"),
        (json!({ "asked": 3 }), "asked: 3 wanted, 4 there"),
        (json!({ "notices": ["trying again"] }), "notices: `trying again` is not there"),
        (json!({ "no_notice": ["using `m`"] }), "no_notice: `using `m`` is there"),
        (json!({ "said": ["Late blocks"] }), "said: `Late blocks` is not there"),
        (json!({ "reasoning": ["Early blocks"] }), "reasoning: `Early blocks` is not there"),
        (json!({ "looked": 2 }), "looked: 2 wanted, 1 there"),
        (json!({ "requests": [{ "index": 0, "has": ["tool_call_id"] }] }), "requests 0: `tool_call_id` is not there"),
        (
            json!({ "requests": [{ "index": 0, "lacks": ["\"stream\":true"] }] }),
            "requests 0: `\"stream\":true` is there",
        ),
        (json!({ "requests": [{ "index": 9 }] }), "requests 9: there are 4"),
        (json!({ "never": ["dominate"] }), "never: `dominate` is there"),
    ] {
        let faults = faults_of(sound(&wrong)).await;
        assert!(faults.len() == 1 && faults[0].contains(says), "{wrong}: {faults:?}");
        assert!(faults[0].chars().count() <= SHOWN);
    }
}

#[tokio::test]
async fn a_script_that_does_not_fit_is_a_fault_and_a_file_that_is_no_case_is_refused() {
    let mut short = sound(&json!({}));
    short["answers"].as_array_mut().expect("answers").pop();
    let faults = faults_of(short).await;
    assert!(faults.iter().any(|f| f.contains("the script has 3 answers, 4 were fetched")), "{faults:?}");
    let mut long = sound(&json!({}));
    long["answers"].as_array_mut().expect("answers").push(json!({ "says": "more" }));
    let faults = faults_of(long).await;
    assert!(faults.iter().any(|f| f.contains("the script has 5 answers, 4 were fetched")), "{faults:?}");
    let mut none = sound(&json!({}));
    none["answers"][0] = json!({ "says": "a", "body": "b" });
    assert!(faults_of(none).await[0].contains("not 2 of them"));
    for (expect, idle) in [
        (json!({}), true),
        (json!({ "by_agents": 2 }), true),
        (json!({ "asked": 4 }), true),
        (json!({ "by_agents": 2, "asked": 4 }), false),
    ] {
        let case: Case = serde_json::from_value(sound(&expect)).expect("a case");
        assert_eq!(case.idle().is_some(), idle, "{expect}");
    }
    let mut other = sound(&json!({}));
    other["exspect"] = json!({});
    assert!(serde_json::from_value::<Case>(other).is_err());
    assert!(serde_json::from_value::<Case>(sound(&json!({ "by_agent": 2 }))).is_err());
}
