//! The pipeline: role after role is asked, what it proposes is checked, and the planner stands in where that comes to
//! nothing.
//!
//! Not here: what goes over the wire (`transport`), what a role is told (`context`), what can stand (`validate`).
//! Invariants: a role's failure never ends the run, it ends in the planner standing in, and the events say so; one repair
//! round a role at most; decisions leave only validated; a cancelled run proposes nothing more.

use super::validate::{SearchSpace, Validated, validate};
use super::{AGENTS, AgentInput, Chat, Endpoint, Listener, LlmError, Message, Outcome, Reply, Timeouts};
use super::{clean, context, critic, delta, notice, proposal};
use crate::plan::{Author, Decision, DecisionId, Status};
use crate::session::{Channel, Event, Feed, ROLES, Role, Utterance};
use crate::words::{counted, counted_as};
use std::collections::BTreeMap;
use std::time::Instant;
use tokio_util::sync::CancellationToken;

/// One answer in the making.
struct Turn {
    role: &'static Role,
    messages: Vec<Message>,
    /// When it was asked for.
    began: Instant,
    reasoning: String,
    text: String,
    /// In the repair round: what stood after the first answer.
    repairing: Option<Validated>,
}

impl Turn {
    fn new(role: &'static Role, messages: Vec<Message>, repairing: Option<Validated>) -> Turn {
        Turn { role, messages, began: Instant::now(), reasoning: String::new(), text: String::new(), repairing }
    }
}

/// Characters of an earlier role's words that go into a later prompt.
const CARRIED: usize = 3_000;
/// Characters of a broken proposal that go back with its errors.
const QUOTED: usize = 12_000;
/// How often a prompt is halved for a server that finds it too long.
const HALVINGS: u32 = 3;

/// Nobody waits for more.
struct Cancelled;

/// Does `work`, unless that is or was cancelled.
async fn unless_cancelled<T>(cancel: &CancellationToken, work: impl Future<Output = T>) -> Result<T, Cancelled> {
    tokio::select! {
        biased;
        () = cancel.cancelled() => Err(Cancelled),
        done = work => Ok(done),
    }
}

struct Dialogue<'a, L> {
    input: AgentInput,
    to: &'a mut L,
    cancel: &'a CancellationToken,
    model: String,
    room: usize,
    /// Characters of context in the newest prompt, which may be far fewer than there was room for.
    used: usize,
    halvings: u32,
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
}

/// Runs the pipeline to its end and returns how it went. Never fails: what goes wrong is said, and the
/// planner stands in (`endpoint: None` means at once). Cancelling closes the connection, keeps what had been said as an
/// interrupted utterance, and proposes nothing more. Must run on a tokio runtime with time and I/O enabled.
pub async fn run(
    input: AgentInput,
    endpoint: Option<Endpoint>,
    timeouts: Timeouts,
    to: &mut impl Listener,
    cancel: &CancellationToken,
) -> Outcome {
    let mut dialogue = Dialogue {
        queue: ROLES.iter().rev().filter(|r| r.task == input.task).collect(),
        room: input.room,
        input,
        to,
        cancel,
        model: String::new(),
        used: 0,
        halvings: 0,
        told: BTreeMap::new(),
        planner: None,
        planner_spoke: false,
        because: String::new(),
        outcome: Outcome::default(),
    };
    let cancelled = dialogue.hold(endpoint, timeouts).await.is_err();
    Outcome { cancelled, ..dialogue.outcome }
}

impl<L: Listener> Dialogue<'_, L> {
    async fn hold(&mut self, endpoint: Option<Endpoint>, timeouts: Timeouts) -> Result<(), Cancelled> {
        let to = &mut *self.to;
        let connect = async {
            let Some(endpoint) = endpoint else { return Ok(None) };
            let mut chat = Chat::open(&endpoint, timeouts)?;
            let model = chat.model(&mut async |feed: Feed| to.feed(feed).await).await?;
            Ok::<_, LlmError>(Some((chat, model)))
        };
        let (because, said) = match unless_cancelled(self.cancel, connect).await? {
            Ok(Some((mut chat, model))) => {
                self.model = clean::line(&model, 120);
                while let Some(role) = self.queue.pop() {
                    self.consult(&mut chat, role).await?;
                }
                return Ok(());
            }
            Ok(None) => (
                "no endpoint is set".to_owned(),
                "no endpoint is set (OPENAI_BASE_URL, or :llm); the built-in planner answers".to_owned(),
            ),
            Err(error) => (error.to_string(), error.to_string()),
        };
        self.because = because;
        self.say(AGENTS, &said).await;
        self.give_up(None).await
    }

    /// Asks a role until nothing more is to be asked of it.
    async fn consult(&mut self, chat: &mut Chat, role: &'static Role) -> Result<(), Cancelled> {
        let mut next = Some(self.question(role));
        while let Some(mut turn) = next {
            next = match self.listen(chat, &mut turn).await? {
                Ok(reply) => self.replied(turn, reply).await?,
                Err(error) => self.failed(turn, error).await?,
            };
        }
        Ok(())
    }

    fn question(&mut self, role: &'static Role) -> Turn {
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
        Turn::new(role, messages, None)
    }

    /// What a model says goes to whoever listens as it arrives; in the turn it is kept until that is over.
    async fn listen(&mut self, chat: &mut Chat, turn: &mut Turn) -> Result<Result<Reply, LlmError>, Cancelled> {
        self.to.feed(Feed::Turn { role: turn.role.name.into(), model: self.model.clone() }).await;
        turn.began = Instant::now();
        let (Turn { role, messages, reasoning, text, .. }, to) = (&mut *turn, &mut *self.to);
        let mut on = async |feed: Feed| {
            match &feed {
                Feed::Token { channel: Channel::Reasoning, text: said, .. } => reasoning.push_str(said),
                Feed::Token { channel: Channel::Text, text: said, .. } => text.push_str(said),
                _ => {}
            }
            to.feed(feed).await;
        };
        let answer = unless_cancelled(self.cancel, chat.ask(role.name, messages, &mut on)).await;
        if answer.is_err() {
            self.spoken(turn, 0, true).await;
        }
        answer
    }

    /// The turn is over: what was said becomes durable. Says nothing when nothing was said.
    async fn spoken(&mut self, turn: &Turn, tokens: u64, interrupted: bool) {
        let role = turn.role.name.to_owned();
        let seconds = turn.began.elapsed().as_secs_f64();
        let (mut reasoning, mut text) = (turn.reasoning.clone(), turn.text.clone());
        if let Some((before, after)) = delta::split_orphan_close(&turn.text) {
            reasoning.push_str(before);
            text = after.trim_start().to_owned();
        }
        if !reasoning.is_empty() || !text.is_empty() {
            let prompt = turn.messages.iter().map(|m| format!("[{}]\n{}\n\n", m.role, m.content)).collect::<String>();
            let (round, model) = (self.input.state.round, self.model.clone());
            let (role, prompt) = (role.clone(), prompt.trim_end().to_owned());
            let said = Utterance { round, role, model, reasoning, text, prompt, tokens, seconds, interrupted };
            self.to.event(Event::Said { utterance: Box::new(said) }).await;
        }
        self.to.feed(Feed::TurnEnd { role }).await;
    }

    /// What is to be asked next, if anything.
    async fn replied(&mut self, turn: Turn, reply: Reply) -> Result<Option<Turn>, Cancelled> {
        let role = turn.role;
        self.spoken(&turn, reply.tokens, false).await;
        if reply.cut {
            self.say(role.name, "the answer was cut off for length").await;
        }
        if !role.proposes() {
            self.told.insert(role.name, clean::cut(turn.text.trim(), CARRIED));
            if turn.text.trim().is_empty() && turn.reasoning.trim().is_empty() {
                self.say(role.name, "the model said nothing").await;
            }
            return Ok(None);
        }
        let checked = self.check(&turn, reply.cut);
        match turn.repairing {
            None if checked.errors.is_empty() => self.propose(role, checked).await,
            None => return Ok(Some(self.repair(turn, checked).await)),
            Some(first) => self.settle(role, first, checked).await?,
        }
        Ok(None)
    }

    fn check(&self, turn: &Turn, cut: bool) -> Validated {
        let broken = |e: String| Validated { errors: vec![e], ..Validated::default() };
        let Some(card) = &self.input.state.card else { return broken("no session is open".into()) };
        let space =
            SearchSpace { graph: &card.graph, groups: &card.groups, constraints: &self.input.state.constraints };
        match proposal::find(&turn.text, &turn.reasoning) {
            Ok(object) => validate(&object, turn.role, space),
            Err(e) if cut => broken(format!("{e} (the reply was cut off for length: be briefer)")),
            Err(e) => broken(e.to_string()),
        }
    }

    /// Sends the errors back, once.
    async fn repair(&mut self, turn: Turn, first: Validated) -> Turn {
        let what = counted(first.errors.len(), "error");
        let told = format!("proposal has {what}, asking once for a correction: {}", list(&first.errors));
        self.say(turn.role.name, &told).await;
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
        Turn::new(turn.role, messages, Some(first))
    }

    /// After the repair round: what stands of both answers, or the planner.
    async fn settle(&mut self, role: &'static Role, first: Validated, second: Validated) -> Result<(), Cancelled> {
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
            self.say(role.name, &format!("still broken after one correction: {}", list(&both.errors))).await;
            return self.ask_planner(vec![role]).await;
        }
        if !both.errors.is_empty() {
            let n = counted_as(both.errors.len(), "entry", "entries");
            self.say(role.name, &format!("{n} left out: {}", list(&both.errors))).await;
        }
        self.propose(role, both).await;
        Ok(())
    }

    async fn propose(&mut self, role: &'static Role, checked: Validated) {
        if !checked.remarks.is_empty() {
            self.say(role.name, &list(&checked.remarks)).await;
        }
        if checked.drafts.is_empty() {
            return self.say(role.name, "proposes no change").await;
        }
        let author = Author::Agent { role: role.name.into(), model: self.model.clone() };
        let round = self.input.state.round;
        let drafts = checked.drafts.into_iter();
        let decisions: Vec<Decision> = drafts
            .map(|d| Decision { round, rationale: d.why, ..Decision::new(d.target, d.action, author.clone()) })
            .collect();
        self.remember(role, &decisions);
        self.outcome.by_agents += decisions.len();
        self.to.event(Event::Proposed { decisions }).await;
    }

    fn remember(&mut self, role: &'static Role, decisions: &[Decision]) {
        let lines = decisions.iter().map(|d| context::action_line(&d.target, &d.action) + "\n");
        self.told.insert(role.name, clean::cut(lines.collect::<String>().trim_end(), CARRIED));
    }

    /// What is to be asked next, if anything.
    async fn failed(&mut self, turn: Turn, error: LlmError) -> Result<Option<Turn>, Cancelled> {
        let role = turn.role;
        if error.perhaps_too_long() && self.halvings < HALVINGS && self.room > context::LEAST_ROOM {
            self.halvings += 1;
            self.room = (self.room.min(self.used) / 2).max(context::LEAST_ROOM);
            self.to.feed(Feed::TurnEnd { role: role.name.into() }).await;
            let why = match error.context_too_long() {
                true => "the prompt is too long for this model",
                false => "no answer came, perhaps since the prompt is too long",
            };
            self.say(role.name, &format!("{why}: asking with {} characters", self.room)).await;
            let Some(first) = turn.repairing else { return Ok(Some(self.question(role))) };
            // The second question would be longer still: what stood after the first answer stands.
            let second = Validated { errors: vec![error.to_string()], ..Validated::default() };
            return self.settle(role, first, second).await.map(|()| None);
        }
        self.because = error.to_string();
        self.spoken(&turn, 0, true).await;
        self.say(role.name, &error.to_string()).await;
        if !role.proposes() {
            return if error.hopeless() { self.give_up(None).await.map(|()| None) } else { Ok(None) };
        }
        // A stream that broke off after the whole proposal had arrived is as good as one that ended.
        let checked = self.check(&turn, false);
        match turn.repairing {
            None if checked.errors.is_empty() && !checked.drafts.is_empty() => self.propose(role, checked).await,
            Some(first) if !first.drafts.is_empty() => self.settle(role, first, checked).await?,
            _ if error.hopeless() => self.give_up(Some(role)).await?,
            _ => self.ask_planner(vec![role]).await?,
        }
        Ok(None)
    }

    /// No further role is asked; the planner stands in for all that would have proposed.
    async fn give_up(&mut self, current: Option<&'static Role>) -> Result<(), Cancelled> {
        let rest = std::mem::take(&mut self.queue);
        let roles: Vec<_> = current.into_iter().chain(rest.into_iter().rev()).filter(|r| r.proposes()).collect();
        if roles.is_empty() { Ok(()) } else { self.ask_planner(roles).await }
    }

    async fn ask_planner(&mut self, roles: Vec<&'static Role>) -> Result<(), Cancelled> {
        self.say("planner", &format!("the built-in planner stands in for {}", names(&roles))).await;
        self.outcome.stood_in += roles.len();
        if self.planner.is_none() {
            let ask = self.input.stand_in.clone();
            let answer = unless_cancelled(self.cancel, tokio::task::spawn_blocking(move || ask())).await?;
            self.planner = Some(answer.unwrap_or_else(|e| Err(format!("the planner broke off: {e}"))));
        }
        match self.planner.clone() {
            Some(Ok((decisions, explanation))) => self.stand_in(&roles, decisions, &explanation).await,
            Some(Err(why)) => self.say("planner", &format!("has no proposal either: {why}")).await,
            None => {}
        }
        Ok(())
    }

    async fn stand_in(&mut self, roles: &[&'static Role], decisions: Vec<Decision>, explanation: &str) {
        // The transcript must tell whose proposal this is, also when the planner spoke before.
        let explanation = if self.planner_spoke { "" } else { explanation };
        let because = clean::line(&self.because, 400);
        // Last, where a pane that follows the stream still shows it.
        let text = format!("{}\n\nI stand in for {}: {because}", clean::text(explanation), names(roles));
        self.planner_spoke = true;
        let round = self.input.state.round;
        let said = Utterance {
            round,
            role: "planner".into(),
            model: "built-in".into(),
            text: text.trim().to_owned(),
            ..Utterance::default()
        };
        self.to.event(Event::Said { utterance: Box::new(said) }).await;
        let blank = |d: Decision| Decision { id: DecisionId(0), round, status: Status::Proposed, ..d };
        let own: Vec<Decision> =
            decisions.into_iter().filter(|d| roles.iter().any(|r| r.may(d.target.kind()))).map(blank).collect();
        for role in roles {
            self.remember(role, &own);
        }
        if own.is_empty() {
            return self.say("planner", "has nothing to propose there").await;
        }
        self.outcome.by_planner += own.len();
        self.to.event(Event::Proposed { decisions: own }).await;
    }

    async fn say(&mut self, role: &str, text: &str) {
        self.to.feed(notice(role, text)).await;
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
