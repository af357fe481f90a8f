//! The pipeline's state machine: `handle(input) -> effects`, all I/O as data.
//!
//! Not here: sockets, clocks, threads (`run`). Invariants: a role's failure never ends the run, it ends in the planner
//! standing in, and the events say so; one repair round a role at most; decisions leave only validated; a cancelled
//! run proposes nothing more.

mod asking;
mod looks;

use super::tools::Tool;
use super::validate::{Draft, SearchSpace, Validated, validate};
use super::{
    AGENTS, AgentInput, Call, Cut, LlmError, Message, Outcome, Reply, clean, context, critic, delta, notice, proposal,
    suggest,
};
use crate::plan::{Action, Author, Decision, DecisionId, Status, Target};
use crate::session::{Channel, Claim, Event, Feed, ROLES, Role, Spent, State, Utterance, ledger};
use crate::words::{counted, counted_as};
pub use asking::Within;
use asking::said_before;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// What happens to a dialogue.
#[derive(Debug)]
pub enum DialogueInput {
    Start,
    /// The endpoint is reachable as far as known, and this model will be asked.
    Connected {
        model: String,
        /// Models of roles that have their own.
        others: BTreeMap<&'static str, String>,
    },
    /// No endpoint is set.
    NoEndpoint,
    /// The answer ended.
    Replied {
        reply: Reply,
        seconds: f64,
    },
    /// What a tool answers.
    Called {
        answer: Result<Value, String>,
        seconds: f64,
    },
    Failed {
        error: LlmError,
        seconds: f64,
    },
    /// The planner's proposal with its explanation, or why there is none.
    StoodIn(Result<(Vec<Decision>, String), String>),
    Cancelled {
        seconds: f64,
    },
}

/// What a dialogue wants done.
#[derive(Debug, PartialEq)]
pub enum Effect {
    Feed(Feed),
    Event(Event),
    /// Find out which model will be asked.
    Connect,
    /// Ask the model, which may call these tools.
    Ask {
        role: &'static str,
        messages: Vec<Message>,
        tools: Vec<&'static str>,
        /// The schema that the server is to hold the answer to.
        form: Option<Value>,
        within: Within,
    },
    /// Have a tool answer.
    Call {
        tool: &'static str,
        asked: Map<String, Value>,
    },
    /// Ask the planner.
    StandIn,
    Done(Outcome),
}

#[derive(Debug)]
enum Stage {
    Idle,
    Connecting,
    Asking(Turn),
    /// The first of these calls is being answered.
    Looking(Turn, VecDeque<Call>),
    /// The planner is asked on behalf of these roles.
    StandingIn(Vec<&'static Role>),
    Done,
}

/// One answer in the making, in as many replies as it takes to look things up.
#[derive(Debug)]
struct Turn {
    role: &'static Role,
    messages: Vec<Message>,
    /// Of the newest reply.
    reasoning: String,
    text: String,
    /// Of the replies before it, with what was looked up.
    said: Said,
    /// In the repair round: what stood after the first answer.
    repairing: Option<Validated>,
    /// Calls that were answered.
    looked: usize,
    /// It was told that no calls are left.
    told_off: bool,
    /// Calls of the newest reply that have no answer yet: the one that proposed, and those after it.
    unanswered: Vec<String>,
}

/// What is kept of a turn's earlier replies.
#[derive(Debug, Default)]
struct Said {
    reasoning: String,
    text: String,
    spent: Spent,
}

/// What an answer took, by the server's count.
fn counted_in(reply: &Reply, seconds: f64) -> Spent {
    Spent { tokens: reply.tokens, asked: reply.asked, seconds }
}

impl Turn {
    fn new(role: &'static Role, messages: Vec<Message>, repairing: Option<Validated>) -> Turn {
        let (reasoning, text) = (String::new(), String::new());
        Turn {
            role,
            messages,
            reasoning,
            text,
            said: Said::default(),
            repairing,
            looked: 0,
            told_off: false,
            unanswered: Vec::new(),
        }
    }
}

/// Characters of an earlier role's words that go into a later prompt.
const CARRIED: usize = 3_000;
/// Characters of a broken proposal that go back with its errors.
const QUOTED: usize = 12_000;
/// How often a prompt is halved for a server that finds it too long.
const HALVINGS: u32 = 3;

pub struct Dialogue {
    input: AgentInput,
    model: String,
    /// Of roles that have their own.
    models: BTreeMap<&'static str, String>,
    room: usize,
    /// Characters of context in the newest prompt, which may be far fewer than there was room for.
    used: usize,
    halvings: u32,
    step: Stage,
    /// Last comes first.
    queue: Vec<&'static Role>,
    /// What roles said or proposed, for the prompts of later ones.
    told: BTreeMap<&'static str, String>,
    /// The planner's answer, once asked.
    planner: Option<Result<(Vec<Decision>, String), String>>,
    planner_spoke: bool,
    /// Why the planner has to stand in, for the transcript.
    because: String,
    /// Models whose server refused tools.
    no_tools: Vec<String>,
    /// Plans that were tried for the roles.
    rehearsed: usize,
    /// Questions that were put to the engineer.
    questions: usize,
    /// What the roles had measured.
    measured: usize,
    /// Tokens of the newest question, about, and how many the server counted for one of those.
    estimated: u64,
    per_estimate: f64,
    /// What the model has proposed.
    proposed: Vec<(Target, Action)>,
    outcome: Outcome,
    /// What is wanted done, until it is handed over.
    out: Vec<Effect>,
}

impl Dialogue {
    pub fn new(input: AgentInput) -> Dialogue {
        let outcome = Outcome { spent: input.spent, ..Outcome::default() };
        let told = input.only.map(|role| said_before(&input.state, role)).unwrap_or_default();
        Dialogue {
            queue: match input.only {
                Some(role) => vec![role],
                None => {
                    let measures = input.looks.measurements > 0;
                    let asked = |r: &&Role| r.task == input.task && (measures || !r.measures());
                    ROLES.iter().rev().filter(asked).collect()
                }
            },
            room: input.room,
            input,
            model: String::new(),
            models: BTreeMap::new(),
            used: 0,
            halvings: 0,
            step: Stage::Idle,
            told,
            planner: None,
            planner_spoke: false,
            because: String::new(),
            no_tools: Vec::new(),
            rehearsed: 0,
            questions: 0,
            proposed: Vec::new(),
            measured: 0,
            estimated: 0,
            per_estimate: 1.0,
            outcome,
            out: Vec::new(),
        }
    }

    /// What was measured meanwhile, for the roles to come.
    pub fn learn(&mut self, state: Arc<State>) {
        self.input.state = state;
    }

    /// What happens comes in here. Inputs that do not fit the step (a reply after a cancel) change nothing.
    pub fn handle(&mut self, input: DialogueInput) -> Vec<Effect> {
        let step = std::mem::replace(&mut self.step, Stage::Idle);
        match (step, input) {
            (Stage::Idle, DialogueInput::Start) => {
                self.step = Stage::Connecting;
                self.out.push(Effect::Connect);
            }
            (Stage::Connecting, DialogueInput::Connected { model, others }) => {
                self.model = clean::line(&model, 120);
                self.models = others.into_iter().map(|(role, model)| (role, clean::line(&model, 120))).collect();
                self.next();
            }
            (Stage::Connecting, DialogueInput::NoEndpoint) => {
                self.because = "no endpoint is set".into();
                self.say(AGENTS, "no endpoint is set (OPENAI_BASE_URL, or :llm); the built-in planner answers");
                self.give_up(None);
            }
            (Stage::Connecting, DialogueInput::Failed { error, .. }) => {
                self.because = error.to_string();
                self.say(AGENTS, &error.to_string());
                self.give_up(None);
            }
            (Stage::Asking(turn), DialogueInput::Replied { reply, seconds }) => self.replied(turn, reply, seconds),
            (Stage::Looking(turn, left), DialogueInput::Called { answer, seconds }) => {
                self.called(turn, left, answer, seconds);
            }
            (Stage::Asking(turn), DialogueInput::Failed { error, seconds }) => self.failed(turn, error, seconds),
            (Stage::StandingIn(roles), DialogueInput::StoodIn(answer)) => {
                self.planner = Some(answer);
                self.stand_in(roles);
            }
            (Stage::Done, _) => self.step = Stage::Done,
            (step, DialogueInput::Cancelled { seconds }) => {
                if let Stage::Asking(turn) | Stage::Looking(turn, _) = step {
                    self.spoken(&turn, Spent::only(seconds), true, 0);
                }
                self.outcome.cancelled = true;
                self.done();
            }
            (
                step @ (Stage::Idle | Stage::Connecting | Stage::Asking(_) | Stage::Looking(..) | Stage::StandingIn(_)),
                DialogueInput::Start
                | DialogueInput::Connected { .. }
                | DialogueInput::NoEndpoint
                | DialogueInput::Replied { .. }
                | DialogueInput::Called { .. }
                | DialogueInput::Failed { .. }
                | DialogueInput::StoodIn(_),
            ) => self.step = step,
        }
        std::mem::take(&mut self.out)
    }

    /// What a model says while it is asked, as it arrives. Whoever listens hears it at once; here it is kept until the turn is
    /// over.
    pub fn hear(&mut self, said: &Feed) {
        if let (Stage::Asking(turn), Feed::Token { channel, text, .. }) = (&mut self.step, said) {
            match channel {
                Channel::Reasoning => turn.reasoning.push_str(text),
                Channel::Text => turn.text.push_str(text),
            }
        }
    }

    fn done(&mut self) {
        self.step = Stage::Done;
        self.out.push(Effect::Done(self.outcome));
    }

    /// Asks the next role, or ends.
    fn next(&mut self) {
        match self.queue.pop() {
            Some(role) => self.ask(role),
            None => self.done(),
        }
    }

    /// The model that answers for a role.
    fn model_of(&self, role: &Role) -> &str {
        self.models.get(role.name).unwrap_or(&self.model)
    }

    fn ask(&mut self, role: &'static Role) {
        if self.input.planned.contains(&role.name) {
            self.because = "you have the planner answer for it".into();
            return if role.proposes() { self.ask_planner(vec![role]) } else { self.next() };
        }
        let state = &self.input.state;
        let mut facts = context::context(state, role, self.room);
        facts.push_str(&context::standing(state, role, self.model_of(role)));
        facts.push_str(&self.input.news);
        self.used = facts.chars().count();
        let critique = critic::compare(state, state.round).map(|c| c.to_string()).unwrap_or_default();
        let told = |r: &Role| (r.name, self.told.get(r.name).map_or("", String::as_str));
        let values: Vec<(&str, &str)> = (ROLES.iter().map(told).chain([("critique", critique.as_str())]))
            .map(|(name, text)| (name, if text.is_empty() { "(none)" } else { text }))
            .chain([("context", facts.as_str())])
            .collect();
        let messages = vec![
            Message::of("system", self.input.prompts.system(role) + &self.about_tools(role)),
            Message::of("user", self.input.prompts.question(role, &values)),
        ];
        self.begin(Turn::new(role, messages, None));
    }

    fn begin(&mut self, turn: Turn) {
        let model = self.model_of(turn.role).to_owned();
        self.out.push(Effect::Feed(Feed::Turn { role: turn.role.name.into(), model }));
        self.put(turn);
    }

    /// The turn is over: what was said becomes durable. Says nothing when nothing was said.
    fn spoken(&mut self, turn: &Turn, spent: Spent, interrupted: bool, refused: usize) {
        let spent = turn.said.spent.and(spent);
        let role = turn.role.name.to_owned();
        let (reasoning, text) = looks::apart(turn);
        let mut reasoning = format!("{}{reasoning}", turn.said.reasoning);
        let text = format!("{}{text}", turn.said.text);
        reasoning.truncate(reasoning.trim_end().len());
        if !reasoning.is_empty() || !text.is_empty() {
            let prompt = turn.messages.iter().map(looks::written).collect::<String>();
            self.out.push(Effect::Event(Event::Said {
                utterance: Box::new(Utterance {
                    round: self.input.state.round,
                    role: role.clone(),
                    model: self.model_of(turn.role).to_owned(),
                    reasoning,
                    text,
                    prompt: prompt.trim_end().to_owned(),
                    tokens: spent.tokens,
                    asked: spent.asked,
                    refused: refused as u64,
                    seconds: spent.seconds,
                    interrupted,
                }),
            }));
        }
        self.out.push(Effect::Feed(Feed::TurnEnd { role }));
    }

    fn replied(&mut self, turn: Turn, reply: Reply, seconds: f64) {
        let spent = counted_in(&reply, seconds);
        self.take(turn.reasoning.len() + turn.text.len(), reply.counted, spent);
        let calls = self.calls_of(&turn, &reply);
        match calls.is_empty() {
            true => self.answered(turn, spent, reply.cut),
            false => self.look(turn, calls, spent),
        }
    }

    /// The role has answered, without wanting to know more.
    fn answered(&mut self, turn: Turn, spent: Spent, cut: Option<Cut>) {
        let checked = turn.role.proposes().then(|| self.check(&turn, cut));
        self.spoken(&turn, spent, false, checked.as_ref().map_or(0, |c| c.errors.len()));
        if let Some(cut) = cut {
            self.say(turn.role.name, &format!("the answer {}", cut.words()));
        }
        let Some(checked) = checked else {
            let text = format!("{}{}", turn.said.text, turn.text);
            self.told.insert(turn.role.name, clean::cut(text.trim(), CARRIED));
            if text.trim().is_empty() && turn.reasoning.trim().is_empty() {
                self.say(turn.role.name, "the model said nothing");
            }
            return self.next();
        };
        let role = turn.role;
        match turn.repairing {
            None if checked.errors.is_empty() => self.propose(role, checked),
            None => self.repair(turn, checked),
            Some(first) => self.settle(role, first, checked),
        }
    }

    fn check(&self, turn: &Turn, cut: Option<Cut>) -> Validated {
        let Some(card) = &self.input.state.card else { return broken("no session is open".into()) };
        let AgentInput { state, refused, .. } = &self.input;
        let space = SearchSpace { graph: &card.graph, groups: &card.groups, constraints: &state.constraints, refused };
        let again = || proposal::find_whole(&turn.text).filter(|_| cut == Some(Cut::Circles));
        match proposal::find(&turn.text, &turn.reasoning).or_else(|e| again().ok_or(e)) {
            Ok(object) => validate(&object, turn.role, space),
            Err(e) => broken(match cut {
                Some(Cut::Filter) => format!("{e} (the reply {})", Cut::Filter.words()),
                Some(cut) => format!("{e} (the reply {}: be briefer)", cut.words()),
                None => e.to_string(),
            }),
        }
    }

    /// Sends the errors back, once.
    fn repair(&mut self, turn: Turn, first: Validated) {
        let (role, n) = (turn.role, first.errors.len());
        let what = counted(n, "error");
        self.say(role.name, &format!("proposal has {what}, asking once for a correction: {}", list(&first.errors)));
        let accepted = match first.drafts.len() {
            0 => "Nothing in it was accepted.".to_owned(),
            1 => "1 decision was accepted as it stands; do not repeat it.".to_owned(),
            n => format!("{n} decisions were accepted as they stand; do not repeat them."),
        };
        let errors = first.errors.iter().map(|e| format!("- {e}\n")).collect::<String>();
        let request = self.input.prompts.repair(&[("accepted", &accepted), ("errors", errors.trim_end())]);
        let said = if turn.text.trim().is_empty() { &turn.reasoning } else { &turn.text };
        let said = clean::cut(said, QUOTED);
        let mut messages = turn.messages;
        looks::send_back(&mut messages, turn.unanswered, said, request);
        let (looked, told_off) = (turn.looked, turn.told_off);
        self.begin(Turn { looked, told_off, ..Turn::new(role, messages, Some(first)) });
    }

    /// After the repair round: what stands of both answers, or the planner.
    fn settle(&mut self, role: &'static Role, first: Validated, second: Validated) {
        let mut both = first;
        for draft in second.drafts {
            match both.drafts.iter_mut().find(|d| d.target == draft.target) {
                Some(slot) => *slot = draft,
                None => both.drafts.push(draft),
            }
        }
        if !second.summary.is_empty() {
            both.summary = second.summary;
        }
        both.expects = second.expects.or(both.expects);
        if !second.rules.is_empty() {
            both.rules = second.rules;
        }
        both.remarks.extend(second.remarks);
        both.errors = second.errors;
        if both.drafts.is_empty() {
            // Nothing of the first answer could stand, and an empty list is what a form leaves to a model that has no proposal.
            let words = match both.errors.is_empty() {
                true => "the correction of a broken proposal holds no decision".to_owned(),
                false => format!("still broken after one correction: {}", list(&both.errors)),
            };
            self.say(role.name, &words);
            let errors = !both.errors.is_empty();
            self.because = if errors { format!("the proposal was {words}") } else { words };
            return self.ask_planner(vec![role]);
        }
        if !both.errors.is_empty() {
            let n = both.errors.len();
            let n = counted_as(n, "entry", "entries");
            self.say(role.name, &format!("{n} left out: {}", list(&both.errors)));
        }
        self.propose(role, both);
    }

    fn propose(&mut self, role: &'static Role, checked: Validated) {
        if !checked.rules.is_empty() {
            let by = Author::Agent { role: role.name.into(), model: self.model_of(role).to_owned() };
            let (suggestion, wrong) = suggest::read(&checked.rules, by, &self.input.state);
            self.out.extend(suggestion.map(|suggestion| Effect::Event(Event::Suggested { suggestion })));
            if !wrong.is_empty() {
                self.say(role.name, &format!("rules that it offers are left out: {}", list(&wrong)));
            }
        }
        let checked = self.together(role, checked);
        if !checked.remarks.is_empty() {
            self.say(role.name, &list(&checked.remarks));
        }
        if checked.drafts.is_empty() {
            self.say(role.name, "proposes no change");
        } else {
            let author = Author::Agent { role: role.name.into(), model: self.model_of(role).to_owned() };
            let round = self.input.state.round;
            for d in &checked.drafts {
                self.proposed.retain(|(target, _)| *target != d.target);
                self.proposed.push((d.target.clone(), d.action.clone()));
            }
            self.claim(role, &author, checked.expects);
            let decision = |draft: Draft| {
                let bare = Decision::new(draft.target, draft.action, author.clone());
                Decision { round, rationale: draft.why, ..bare }
            };
            let decisions: Vec<Decision> = checked.drafts.into_iter().map(decision).collect();
            self.remember(role, &decisions);
            self.outcome.by_agents += decisions.len();
            self.out.push(Effect::Event(Event::Proposed { decisions }));
        }
        self.next();
    }

    /// What it expects of the plan is kept beside what it proposes, and what came of such words before is said with it.
    fn claim(&mut self, role: &'static Role, author: &Author, expects: Option<f64>) {
        let state = &self.input.state;
        let metric = state.metric();
        let told = expects.map(|e| ledger::expected(&metric, e).ok_or(e));
        let said = told.map(|told| match told {
            Ok(e) => format!("expects {} {}", metric.name, metric.change_words(e)),
            Err(_) => "expects a change that cannot come, which is not kept".to_owned(),
        });
        let expects = told.and_then(Result::ok);
        let before = state.standing_words(author).map(|w| format!("so far: {w}"));
        let words: Vec<String> = said.into_iter().chain(before).collect();
        let (round, prompts) = (state.round, self.input.prompts.version());
        let claim = Claim { round, author: author.clone(), expects, plan: self.proposed.clone(), prompts };
        self.out.push(Effect::Event(Event::Claimed { claim }));
        if !words.is_empty() {
            self.say(role.name, &words.join("; "));
        }
    }

    fn remember(&mut self, role: &'static Role, decisions: &[Decision]) {
        let lines = decisions.iter().map(|d| context::action_line(&d.target, &d.action) + "\n");
        self.told.insert(role.name, clean::cut(lines.collect::<String>().trim_end(), CARRIED));
    }

    fn failed(&mut self, turn: Turn, error: LlmError, seconds: f64) {
        let role = turn.role;
        // What came of an answer that broke off was paid for; what was never sent was not.
        let answer = turn.reasoning.len() + turn.text.len();
        if answer > 0 {
            self.take(answer, false, Spent::only(seconds));
        } else {
            self.outcome.spent.seconds += seconds;
        }
        if matches!(error, LlmError::NoTools { .. }) && !self.toolless(role) {
            self.no_tools.push(self.model_of(role).to_owned());
            self.out.push(Effect::Feed(Feed::TurnEnd { role: role.name.into() }));
            return match turn.repairing {
                // What stood after the first answer stands: the question of the correction has calls in it.
                Some(first) => self.settle(role, first, broken(error.to_string())),
                None => {
                    self.say(
                        role.name,
                        &format!("{error}; asking without, what the prompt tells is all that is known"),
                    );
                    self.ask(role)
                }
            };
        }
        if error.perhaps_too_long() && self.halvings < HALVINGS && self.room > context::LEAST_ROOM {
            self.halvings += 1;
            self.room = (self.room.min(self.used) / 2).max(context::LEAST_ROOM);
            self.out.push(Effect::Feed(Feed::TurnEnd { role: role.name.into() }));
            let why = match error.context_too_long() {
                true => "the prompt is too long for this model",
                false => "no answer came, perhaps since the prompt is too long",
            };
            self.say(role.name, &format!("{why}: asking with {} characters", self.room));
            return match turn.repairing {
                // The second question would be longer still: what stood after the first answer stands.
                Some(first) => self.settle(role, first, broken(error.to_string())),
                None => self.ask(role),
            };
        }
        self.because = error.to_string();
        self.spoken(&turn, Spent::only(seconds), true, 0);
        self.say(role.name, &error.to_string());
        if !role.proposes() {
            return if error.hopeless() { self.give_up(None) } else { self.next() };
        }
        // A stream that broke off after the whole proposal had arrived is as good as one that ended.
        let checked = self.check(&turn, None);
        match turn.repairing {
            None if checked.errors.is_empty() && !checked.drafts.is_empty() => self.propose(role, checked),
            Some(first) if !first.drafts.is_empty() => self.settle(role, first, checked),
            _ if error.hopeless() => self.give_up(Some(role)),
            _ => self.ask_planner(vec![role]),
        }
    }

    /// No further role is asked; the planner stands in for all that would have proposed.
    fn give_up(&mut self, current: Option<&'static Role>) {
        let rest = std::mem::take(&mut self.queue);
        let roles: Vec<_> = current.into_iter().chain(rest.into_iter().rev()).filter(|r| r.proposes()).collect();
        if roles.is_empty() { self.done() } else { self.ask_planner(roles) }
    }

    fn ask_planner(&mut self, roles: Vec<&'static Role>) {
        self.say("planner", &format!("the built-in planner stands in for {}", names(&roles)));
        self.outcome.stood_in += roles.len();
        if self.planner.is_some() {
            self.stand_in(roles);
        } else {
            self.step = Stage::StandingIn(roles);
            self.out.push(Effect::StandIn);
        }
    }

    fn stand_in(&mut self, roles: Vec<&'static Role>) {
        match self.planner.clone() {
            Some(Ok((decisions, explanation))) => {
                // The transcript must tell whose proposal this is, also when the planner spoke before.
                let explanation = if self.planner_spoke { String::new() } else { explanation };
                let because = clean::line(&self.because, 400);
                // Last, where a pane that follows the stream still shows it.
                let text = format!("{}\n\nI stand in for {}: {because}", clean::text(&explanation), names(&roles));
                self.planner_spoke = true;
                self.out.push(Effect::Event(Event::Said {
                    utterance: Box::new(Utterance {
                        round: self.input.state.round,
                        role: "planner".into(),
                        model: "built-in".into(),
                        text: text.trim().to_owned(),
                        ..Utterance::default()
                    }),
                }));
                let round = self.input.state.round;
                let blank = |d: Decision| Decision { id: DecisionId(0), round, status: Status::Proposed, ..d };
                let own: Vec<Decision> =
                    decisions.into_iter().filter(|d| roles.iter().any(|r| r.may(d.target.kind()))).map(blank).collect();
                for role in &roles {
                    self.remember(role, &own);
                }
                if own.is_empty() {
                    self.say("planner", "has nothing to propose there");
                } else {
                    self.outcome.by_planner += own.len();
                    self.out.push(Effect::Event(Event::Proposed { decisions: own }));
                }
            }
            Some(Err(why)) => self.say("planner", &format!("has no proposal either: {why}")),
            None => {}
        }
        self.next();
    }

    fn say(&mut self, role: &str, text: &str) {
        self.out.push(Effect::Feed(notice(role, text)));
    }
}

/// Nothing of it stands, for this reason.
fn broken(error: String) -> Validated {
    Validated { errors: vec![error], ..Validated::default() }
}

/// `pruning and quantization`.
fn names(roles: &[&Role]) -> String {
    roles.iter().map(|r| r.name).collect::<Vec<_>>().join(" and ")
}

/// The first few of a list, in one line.
fn list(items: &[String]) -> String {
    let shown = items.iter().take(4).map(String::as_str).collect::<Vec<_>>().join("; ");
    if items.len() > 4 { format!("{shown}; and {} more", items.len() - 4) } else { shown }
}
