//! What a role looks up while it answers: which tools it has, its calls one after the other, and their answers on the way back.
//!
//! Not here: what tools answer (`agent::tools`), who has them answer (`agent::run`). Invariants: a role's calls are bounded, a
//! run's rehearsals too; a call never proposes for a role that may not, and `propose` is checked as a fenced block is.

use super::{Call, Cut, Dialogue, Effect, Message, Reply, Role, Spent, Stage, Tool, Turn, clean, delta};
use crate::agent::calls;
use crate::agent::tools::{self, ASK, Does, MEASURE, TOOLS};
use crate::session::{Channel, Feed};
use serde_json::{Value, json};
use std::collections::VecDeque;

/// Characters of one answer that go back, where the prompt has all its room; less where a server found it too long.
const ANSWER: usize = 8_000;
/// Questions to the engineer in one run: they cost attention, of which there is least.
const QUESTIONS: usize = 2;
/// Measurements of the role that asks for those, where it is asked for by its name and nothing else was said.
const MEASUREMENTS: usize = 4;
/// Characters of a call, and of its answer, in the stream.
const SHOWN: usize = 160;

impl Dialogue {
    /// The server of the role's model refused tools.
    pub(super) fn toolless(&self, role: &Role) -> bool {
        self.no_tools.iter().any(|m| m == self.model_of(role))
    }

    /// Whether `role` may look things up.
    fn may_look(&self, role: &Role) -> bool {
        !self.toolless(role) && self.input.looks.calls > 0
    }

    /// All calls of a turn are made.
    fn spent(&self, turn: &Turn) -> bool {
        turn.looked >= self.input.looks.calls
    }

    /// The tools that a turn may still call.
    pub(super) fn offered(&self, turn: &Turn) -> Vec<&'static str> {
        let spent = self.spent(turn);
        if !self.may_look(turn.role) || (spent && turn.told_off) {
            return Vec::new();
        }
        let has = |t: &&Tool| match t.does {
            Does::Proposes => turn.role.proposes(),
            // What is known by now is proposed all the same.
            _ if spent => false,
            Does::Looks => true,
            Does::Rehearses => self.rehearsed < self.input.looks.rehearsals,
            Does::Asks => self.input.asks && self.questions < QUESTIONS,
            Does::Measures => turn.role.measures() && self.measured < self.measurements(),
        };
        TOOLS.iter().chain([&ASK, &MEASURE]).filter(has).map(|t| t.name).collect()
    }

    /// A role that is asked for by its name may do what it is for.
    fn measurements(&self) -> usize {
        match self.input.looks.measurements {
            0 if self.input.only.is_some() => MEASUREMENTS,
            n => n,
        }
    }

    /// What is said of them beforehand.
    pub(super) fn about_tools(&self, role: &'static Role) -> String {
        if self.offered(&Turn::new(role, Vec::new(), None)).is_empty() {
            return String::new();
        }
        let left = self.input.looks.rehearsals.saturating_sub(self.rehearsed);
        let rehearsals = match left {
            0 => String::new(),
            n => format!(
                "`rehearse` builds a plan and tries it on held-back data; it takes the engineer's machine seconds to minutes, and {} left.",
                crate::words::counted_as(n, "is", "are")
            ),
        };
        self.input.prompts.tools(&[("calls", &self.input.looks.calls.to_string()), ("rehearsals", &rehearsals)])
    }

    /// What a reply calls, also where the server took it for words. One that went in circles calls nothing.
    ///
    /// Some models go on calling where no tool is offered. Told once that nothing is left, what they call next is passed over.
    pub(super) fn calls_of(&self, turn: &Turn, reply: &Reply) -> Vec<Call> {
        let offered = !self.offered(turn).is_empty();
        if reply.cut == Some(Cut::Circles) || !self.may_look(turn.role) || (!offered && turn.told_off) {
            return Vec::new();
        }
        match reply.calls.is_empty() {
            true if offered => calls::in_words(&turn.text),
            _ => reply.calls.clone(),
        }
    }

    /// Begins to answer `calls`.
    pub(super) fn look(&mut self, mut turn: Turn, calls: Vec<Call>, spent: Spent) {
        let (reasoning, text) = apart(&turn);
        let content = clean::cut(&text, super::QUOTED);
        turn.messages.push(Message { calls: calls.clone(), ..Message::of("assistant", content) });
        turn.said.reasoning.push_str(&ended(reasoning));
        turn.said.text.push_str(&ended(text));
        (turn.reasoning, turn.text) = (String::new(), String::new());
        turn.said.spent = turn.said.spent.and(spent);
        self.go_on(turn, calls.into());
    }

    /// The next call, or the next question.
    fn go_on(&mut self, mut turn: Turn, mut left: VecDeque<Call>) {
        while let Some(call) = left.front() {
            let shown = clean::line(&format!("→ {} {}", call.name, call.arguments), SHOWN);
            self.show(&mut turn, &shown);
            match self.judge(&turn, call) {
                Ok((tool, asked)) if tool.does == Does::Proposes => {
                    let block = format!("```json\n{}\n```\n", Value::Object(asked));
                    self.out.push(Effect::Feed(token(turn.role, Channel::Text, &block)));
                    turn.text = block;
                    turn.unanswered = left.into_iter().map(|call| call.id).collect();
                    return self.answered(turn, Spent::default(), None);
                }
                Ok((tool, asked)) => {
                    turn.looked += 1;
                    self.rehearsed += usize::from(tool.does == Does::Rehearses);
                    self.questions += usize::from(tool.does == Does::Asks);
                    self.measured += usize::from(tool.does == Does::Measures);
                    self.out.push(Effect::Call { tool: tool.name, asked });
                    self.step = Stage::Looking(turn, left);
                    return;
                }
                Err(why) => {
                    turn.told_off |= self.spent(&turn);
                    turn.looked += 1;
                    let id = left.pop_front().unwrap_or_default().id;
                    self.told(&mut turn, id, Err(why));
                }
            }
        }
        self.put(turn);
    }

    /// Whether a call can be answered, by whom, and with which arguments.
    fn judge(&self, turn: &Turn, call: &Call) -> Result<(&'static Tool, serde_json::Map<String, Value>), String> {
        let offered = self.offered(turn);
        if offered.is_empty() || (self.spent(turn) && call.name.trim() != "propose") {
            return Err("no calls are left; hint: answer now, from what you know".to_owned());
        }
        let Some(tool) = tools::find(call.name.trim()).filter(|t| offered.contains(&t.name)) else {
            return Err(match call.name.trim() {
                "rehearse" => "no rehearsals are left; hint: `forecast` costs nothing".to_owned(),
                "ask_human" => {
                    "no questions are left, or nobody is there to answer; hint: say in your answer what you assumed"
                        .to_owned()
                }
                "measure" => {
                    "no measurements are left, or this role has none; hint: go on with what is known".to_owned()
                }
                "propose" => "this role proposes nothing; hint: answer in words".to_owned(),
                other => format!("no tool `{}`; hint: {}", clean::line(other, 60), offered.join(", ")),
            });
        };
        Ok((tool, call.asked()?))
    }

    /// A tool has answered.
    pub(super) fn called(
        &mut self,
        mut turn: Turn,
        mut left: VecDeque<Call>,
        answer: Result<Value, String>,
        seconds: f64,
    ) {
        turn.said.spent = turn.said.spent.and(Spent::only(seconds));
        self.outcome.spent.seconds += seconds;
        // What was known before took no time of the machine's.
        if answer.as_ref().is_ok_and(|told| told[tools::KNOWN] == true) {
            self.rehearsed = self.rehearsed.saturating_sub(1);
        }
        let id = left.pop_front().unwrap_or_default().id;
        self.told(&mut turn, id, answer);
        self.go_on(turn, left);
    }

    /// An answer on its way to the model, and a line of it to people.
    fn told(&mut self, turn: &mut Turn, id: String, answer: Result<Value, String>) {
        let content = match &answer {
            Ok(value) => value.to_string(),
            Err(why) => json!({ "error": clean::line(why, 1_000) }).to_string(),
        };
        let most = ANSWER.min(self.room / 4);
        let content = match content.chars().count() > most {
            true => {
                format!("{} (cut off here; hint: ask for less, by `filter` or `limit`)", clean::cut(&content, most))
            }
            false => content,
        };
        let shown = match &answer {
            Ok(_) => clean::line(&format!("← {content}"), SHOWN),
            Err(why) => clean::line(&format!("← refused: {why}"), SHOWN),
        };
        self.show(turn, &shown);
        turn.messages.push(Message { answers: id, ..Message::of("tool", content) });
    }

    /// A line in the role's own stream, which is kept with what it says.
    fn show(&mut self, turn: &mut Turn, line: &str) {
        let line = format!("{line}\n");
        self.out.push(Effect::Feed(token(turn.role, Channel::Reasoning, &line)));
        turn.said.reasoning.push_str(&line);
    }
}

fn token(role: &Role, channel: Channel, text: &str) -> Feed {
    Feed::Token { role: role.name.to_owned(), channel, text: text.to_owned() }
}

/// Words that end with their line, if there are any.
fn ended(mut words: String) -> String {
    if !words.is_empty() && !words.ends_with('\n') {
        words.push('\n');
    }
    words
}

/// A reply's reasoning and text, where only the end of the reasoning was marked.
pub(super) fn apart(turn: &Turn) -> (String, String) {
    match delta::split_orphan_close(&turn.text) {
        Some((before, after)) => (format!("{}{before}", turn.reasoning), after.trim_start().to_owned()),
        None => (turn.reasoning.clone(), turn.text.clone()),
    }
}

/// What is wrong with a proposal, on its way back: in words after the model's own, or as the answer to the calls that it came with,
/// each of which strict servers want answered.
pub(super) fn send_back(messages: &mut Vec<Message>, unanswered: Vec<String>, said: String, request: String) {
    if unanswered.is_empty() {
        messages.push(Message::of("assistant", said));
        messages.push(Message::of("user", request));
        return;
    }
    let passed_over = json!({ "error": "the proposal came first" }).to_string();
    for (i, id) in unanswered.into_iter().enumerate() {
        let content = if i == 0 { &request } else { &passed_over };
        messages.push(Message { answers: id, ..Message::of("tool", content.clone()) });
    }
}

/// A message as the transcript keeps it.
pub(super) fn written(m: &Message) -> String {
    let calls: String = m.calls.iter().map(|c| format!("→ {} {}\n", c.name, c.arguments)).collect();
    format!("[{}]\n{}\n{calls}\n", m.role, m.content)
}
