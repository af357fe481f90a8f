//! The pipeline's state machine: `handle(input) -> effects`, all I/O as data.
//!
//! Not here: sockets, clocks, threads (`run`). Invariants: a role's failure never ends the run, it ends in the planner
//! standing in, and the events say so; one repair round a role at most; decisions leave only validated; a cancelled
//! run proposes nothing more.

use super::validate::{Draft, SearchSpace, Validated, validate};
use super::{AGENTS, AgentInput, Cut, LlmError, Message, Outcome, clean, context, critic, delta, notice, proposal};
use crate::plan::{Author, Decision, DecisionId, Status};
use crate::session::{Channel, Event, Feed, ROLES, Role, Utterance};
use crate::words::{counted, counted_as};
use std::collections::BTreeMap;

/// What happens to a dialogue.
#[derive(Debug)]
pub enum DialogueInput {
    Start,
    /// The endpoint is reachable as far as known, and this model will be asked.
    Connected {
        model: String,
    },
    /// No endpoint is set.
    NoEndpoint,
    /// The answer ended; `tokens` by the server's count or ours.
    Replied {
        tokens: u64,
        cut: Option<Cut>,
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
    Ask {
        role: &'static str,
        messages: Vec<Message>,
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
    /// The planner is asked on behalf of these roles.
    StandingIn(Vec<&'static Role>),
    Done,
}

/// One answer in the making.
#[derive(Debug)]
struct Turn {
    role: &'static Role,
    messages: Vec<Message>,
    reasoning: String,
    text: String,
    /// In the repair round: what stood after the first answer.
    repairing: Option<Validated>,
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
    outcome: Outcome,
    /// What is wanted done, until it is handed over.
    out: Vec<Effect>,
}

impl Dialogue {
    pub fn new(input: AgentInput) -> Dialogue {
        Dialogue {
            queue: ROLES.iter().rev().filter(|r| r.task == input.task).collect(),
            room: input.room,
            input,
            model: String::new(),
            used: 0,
            halvings: 0,
            step: Stage::Idle,
            told: BTreeMap::new(),
            planner: None,
            planner_spoke: false,
            because: String::new(),
            outcome: Outcome::default(),
            out: Vec::new(),
        }
    }

    /// What happens comes in here. Inputs that do not fit the step (a reply after a cancel) change nothing.
    pub fn handle(&mut self, input: DialogueInput) -> Vec<Effect> {
        let step = std::mem::replace(&mut self.step, Stage::Idle);
        match (step, input) {
            (Stage::Idle, DialogueInput::Start) => {
                self.step = Stage::Connecting;
                self.out.push(Effect::Connect);
            }
            (Stage::Connecting, DialogueInput::Connected { model }) => {
                self.model = clean::line(&model, 120);
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
            (Stage::Asking(turn), DialogueInput::Replied { tokens, cut, seconds }) => {
                self.replied(turn, tokens, cut, seconds);
            }
            (Stage::Asking(turn), DialogueInput::Failed { error, seconds }) => self.failed(turn, error, seconds),
            (Stage::StandingIn(roles), DialogueInput::StoodIn(answer)) => {
                self.planner = Some(answer);
                self.stand_in(roles);
            }
            (Stage::Done, _) => self.step = Stage::Done,
            (step, DialogueInput::Cancelled { seconds }) => {
                if let Stage::Asking(turn) = step {
                    self.spoken(&turn, 0, seconds, true);
                }
                self.outcome.cancelled = true;
                self.done();
            }
            (
                step @ (Stage::Idle | Stage::Connecting | Stage::Asking(_) | Stage::StandingIn(_)),
                DialogueInput::Start
                | DialogueInput::Connected { .. }
                | DialogueInput::NoEndpoint
                | DialogueInput::Replied { .. }
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

    fn ask(&mut self, role: &'static Role) {
        let state = &self.input.state;
        let facts = context::context(state, role, self.room);
        self.used = facts.chars().count();
        let critique = critic::compare(state, state.round).map(|c| c.to_string()).unwrap_or_default();
        let told = |r: &Role| (r.name, self.told.get(r.name).map_or("", String::as_str));
        let values: Vec<(&str, &str)> = (ROLES.iter().map(told).chain([("critique", critique.as_str())]))
            .map(|(name, text)| (name, if text.is_empty() { "(none)" } else { text }))
            .chain([("context", facts.as_str())])
            .collect();
        let messages = vec![
            Message { role: "system", content: self.input.prompts.system(role) },
            Message { role: "user", content: self.input.prompts.question(role, &values) },
        ];
        self.begin(Turn { role, messages, reasoning: String::new(), text: String::new(), repairing: None });
    }

    fn begin(&mut self, turn: Turn) {
        self.out.push(Effect::Feed(Feed::Turn { role: turn.role.name.into(), model: self.model.clone() }));
        self.out.push(Effect::Ask { role: turn.role.name, messages: turn.messages.clone() });
        self.step = Stage::Asking(turn);
    }

    /// The turn is over: what was said becomes durable. Says nothing when nothing was said.
    fn spoken(&mut self, turn: &Turn, tokens: u64, seconds: f64, interrupted: bool) {
        let role = turn.role.name.to_owned();
        let (mut reasoning, mut text) = (turn.reasoning.clone(), turn.text.clone());
        if let Some((before, after)) = delta::split_orphan_close(&turn.text) {
            reasoning.push_str(before);
            text = after.trim_start().to_owned();
        }
        if !reasoning.is_empty() || !text.is_empty() {
            let prompt = turn.messages.iter().map(|m| format!("[{}]\n{}\n\n", m.role, m.content)).collect::<String>();
            self.out.push(Effect::Event(Event::Said {
                utterance: Box::new(Utterance {
                    round: self.input.state.round,
                    role: role.clone(),
                    model: self.model.clone(),
                    reasoning,
                    text,
                    prompt: prompt.trim_end().to_owned(),
                    tokens,
                    seconds,
                    interrupted,
                }),
            }));
        }
        self.out.push(Effect::Feed(Feed::TurnEnd { role }));
    }

    fn replied(&mut self, turn: Turn, tokens: u64, cut: Option<Cut>, seconds: f64) {
        self.spoken(&turn, tokens, seconds, false);
        if let Some(cut) = cut {
            self.say(turn.role.name, &format!("the answer {}", cut.words()));
        }
        if !turn.role.proposes() {
            self.told.insert(turn.role.name, clean::cut(turn.text.trim(), CARRIED));
            if turn.text.trim().is_empty() && turn.reasoning.trim().is_empty() {
                self.say(turn.role.name, "the model said nothing");
            }
            return self.next();
        }
        let checked = self.check(&turn, cut);
        let role = turn.role;
        match turn.repairing {
            None if checked.errors.is_empty() => self.propose(role, checked),
            None => self.repair(turn, checked),
            Some(first) => self.settle(role, first, checked),
        }
    }

    fn check(&self, turn: &Turn, cut: Option<Cut>) -> Validated {
        let broken = |e: String| Validated { errors: vec![e], ..Validated::default() };
        let Some(card) = &self.input.state.card else { return broken("no session is open".into()) };
        let AgentInput { state, refused, .. } = &self.input;
        let space = SearchSpace { graph: &card.graph, groups: &card.groups, constraints: &state.constraints, refused };
        let again = || proposal::find_whole(&turn.text).filter(|_| cut == Some(Cut::Circles));
        match proposal::find(&turn.text, &turn.reasoning).or_else(|e| again().ok_or(e)) {
            Ok(object) => validate(&object, turn.role, space),
            Err(e) => broken(match cut {
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
        let mut messages = turn.messages;
        messages.push(Message { role: "assistant", content: clean::cut(said, QUOTED) });
        messages.push(Message { role: "user", content: request });
        let text = String::new();
        self.begin(Turn { role, messages, reasoning: String::new(), text, repairing: Some(first) });
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
        both.remarks.extend(second.remarks);
        both.errors = second.errors;
        if both.drafts.is_empty() && !both.errors.is_empty() {
            self.because = format!("the proposal was still broken after one correction: {}", list(&both.errors));
            self.say(role.name, &format!("still broken after one correction: {}", list(&both.errors)));
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
        if !checked.remarks.is_empty() {
            self.say(role.name, &list(&checked.remarks));
        }
        if checked.drafts.is_empty() {
            self.say(role.name, "proposes no change");
        } else {
            let author = Author::Agent { role: role.name.into(), model: self.model.clone() };
            let round = self.input.state.round;
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

    fn remember(&mut self, role: &'static Role, decisions: &[Decision]) {
        let lines = decisions.iter().map(|d| context::action_line(&d.target, &d.action) + "\n");
        self.told.insert(role.name, clean::cut(lines.collect::<String>().trim_end(), CARRIED));
    }

    fn failed(&mut self, turn: Turn, error: LlmError, seconds: f64) {
        let role = turn.role;
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
                Some(first) => {
                    self.settle(role, first, Validated { errors: vec![error.to_string()], ..Validated::default() })
                }
                None => self.ask(role),
            };
        }
        self.because = error.to_string();
        self.spoken(&turn, 0, seconds, true);
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

/// `pruning and quantization`.
fn names(roles: &[&Role]) -> String {
    roles.iter().map(|r| r.name).collect::<Vec<_>>().join(" and ")
}

/// The first few of a list, in one line.
fn list(items: &[String]) -> String {
    let shown = items.iter().take(4).map(String::as_str).collect::<Vec<_>>().join("; ");
    if items.len() > 4 { format!("{shown}; and {} more", items.len() - 4) } else { shown }
}
