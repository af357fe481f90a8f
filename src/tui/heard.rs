//! How the host's messages change the screen: greetings, events of the journal, the feed. What the screen holds is in `app.rs`.
//!
//! Invariant: what is durable comes from `State` alone, which folds the events.

use super::app::{App, Effect, Exit, Level};
use super::stream::Turn;
use super::working::Working;
use crate::config::Act;
use crate::config::text::clean;
use crate::plan::Outcome;
use crate::session::{Event, Feed, HostMsg, KeptPlan, Phase, QUESTION, Record, State, Utterance};

impl App {
    /// Takes one message from the host. Call [`App::settle`] once after a batch of them.
    pub fn host(&mut self, msg: HostMsg) -> Vec<Effect> {
        self.dirty = true;
        match msg {
            HostMsg::Welcome { state, you, pen, .. } => self.welcome(*state, you, pen),
            HostMsg::Refused { message: reason } | HostMsg::Bye { reason } => {
                self.effects.push(Effect::Quit(Exit::HostGone(clean(&reason).into_owned())));
            }
            HostMsg::Event { record } => self.event(&record),
            HostMsg::Feed { feed } => self.feed(feed),
            HostMsg::Reply { id, result } => self.reply(id, result),
            HostMsg::Pen { holder, holder_name } => {
                let had = self.has_pen();
                self.pen = holder;
                self.pen_name = clean(&holder_name).into_owned();
                if had && !self.has_pen() {
                    let take = self.label(Act::TakePen);
                    self.say(Level::Warn, format!("{} took the pen; {take} takes it back", self.pen_name));
                } else if !had && self.has_pen() {
                    self.say(Level::Good, "you have the pen");
                }
            }
        }
        std::mem::take(&mut self.effects)
    }

    fn welcome(&mut self, state: State, you: u64, pen: Option<u64>) {
        self.connected = true;
        (self.you, self.pen) = (you, pen);
        self.turns = state.utterances.iter().map(Turn::of).collect();
        self.state = state;
        self.jobs.clear();
        // The host tells next what runs, if anything does.
        (self.running, self.machine) = (false, None);
        (self.levels, self.decoding, self.level_asked) = (None, false, None);
        (self.healing, self.pulse) = (None, None);
        // What was sent is in this state, or was never taken.
        self.forget_changed();
        self.sent.clear();
        self.approve_next.clear();
        (self.table_stale, self.outlook_stale, self.records_stale) = (true, true, true);
        if let Some(note) = self.state.card.as_ref().and_then(|c| c.device_note.clone()) {
            self.say(Level::Warn, note);
        }
    }

    fn event(&mut self, record: &Record) {
        let undoable = |s: &State| (s.decisions.clone(), s.constraints.clone(), s.budget);
        let turns = matches!(record.event, Event::Undone | Event::Redone);
        let before = turns.then(|| undoable(&self.state));
        self.state.apply(record);
        let idle = before.is_some_and(|b| b == undoable(&self.state));
        (self.outlook_stale, self.records_stale) = (true, true);
        if record.event.ends_a_stage() {
            self.jobs.clear();
            self.working = Working::default();
        }
        if matches!(record.event, Event::Evaluated { .. }) {
            self.forget_changed();
        }
        match &record.event {
            Event::Opened { .. }
            | Event::Profiled { .. }
            | Event::Remeasured { .. }
            | Event::Paired { .. }
            | Event::LaddersMeasured { .. }
            | Event::Applied { .. }
            | Event::Evaluated { .. }
            | Event::Tried { .. }
            | Event::RoundAccepted { .. }
            | Event::RolledBack { .. } => self.table_stale = true,
            Event::Sensed { curves, .. } => {
                self.table_stale = true;
                curves.last().into_iter().for_each(|c| self.sensed(c));
            }
            Event::Repaired { step, .. } => self.repaired(step),
            // What its layers do is known for good.
            Event::Healed { .. } => (self.pulse, self.table_stale) = (None, true),
            Event::Proposed { decisions } => {
                let own = decisions.iter().filter(|d| d.by_person());
                let ids = own.filter_map(|d| self.landed(&d.target, &d.action)).collect();
                self.approve_landed(ids);
            }
            Event::Edited { id, action, .. } => {
                if let Some(target) = self.state.decision(*id).map(|d| d.target.clone()) {
                    let ids = self.landed(&target, action).into_iter().collect();
                    self.approve_landed(ids);
                }
            }
            Event::PassedOver { proposals } => {
                let more = match proposals.len() {
                    0 | 1 => String::new(),
                    n => format!("; {} more gave way", n - 1),
                };
                if let Some(p) = proposals.first() {
                    self.say(Level::Warn, format!("{}{more}", crate::session::passed_over(p)));
                }
            }
            Event::Said { utterance } => {
                if utterance.role == QUESTION {
                    self.question = Some(utterance.text.clone());
                }
                self.said(utterance);
            }
            Event::Exported { path, format, bytes, notes, .. } => {
                let size = if *bytes > 0 { format!(", {}", crate::words::bytes(*bytes)) } else { String::new() };
                let (level, more) = match &notes[..] {
                    [] => (Level::Good, String::new()),
                    [one] => (Level::Warn, format!("; {one}")),
                    [first, rest @ ..] => (Level::Warn, format!("; {first}; {} more in `paring log`", rest.len())),
                };
                self.say(level, format!("exported {format} to {path}{size}{more}"));
            }
            Event::Failed { what, message } => {
                (self.running, self.decoding) = (false, false);
                self.say(Level::Bad, format!("{what} failed: {message}"));
            }
            Event::Cancelled { what } => {
                (self.running, self.decoding) = (false, false);
                let stands = if self.state.phase == Phase::Verdict { "; the verdict stands" } else { "" };
                self.say(Level::Warn, format!("{what} cancelled{stands}"));
            }
            Event::Undone => self.turned("undone", self.state.redo.last().map(|p| p.text.clone()), idle),
            Event::Redone => self.turned("redone", self.state.undo.last().map(|p| p.text.clone()), idle),
            Event::VerdictGiven { verdict, round } => {
                let (c, b) = (self.label(Act::Accept), self.label(Act::RollBack));
                let (level, why) = match verdict.outcome {
                    Outcome::Accept => (Level::Good, ""),
                    Outcome::Reject => (Level::Bad, ""),
                    Outcome::Undecided => (Level::Warn, ": the interval holds the floor"),
                };
                let word = verdict.label();
                let part = self.state.round_at(*round).and_then(|r| crate::session::part(r.evaluation.as_ref()?));
                let why = part.map_or(why.to_owned(), |part| format!(", {part}"));
                self.say(level, format!("round {round} is {word}{why}; {c} accepts it, {b} rolls it back"));
            }
            Event::Controlled { control } => {
                self.levels = None;
                let levels = crate::words::counted(control.levels.len(), "level");
                let c = self.label(Act::NextLevel);
                self.say(Level::Good, format!("{levels} and a controller; {c} switches, `:control off` stops"));
            }
            Event::PatienceSet { .. } => {
                let words = crate::session::describe(&self.state, &record.event).unwrap_or_default();
                self.say(Level::Good, words);
            }
            Event::Restored { to, .. } => {
                let [undo, plans] = [Act::Undo, Act::View7].map(|act| self.label(act));
                let name = KeptPlan::replaced_by(record.seq);
                let kept = match self.state.plans.iter().any(|p| p.name == name) {
                    true => format!(", what they were is kept as `{name}` ({plans})"),
                    false => String::new(),
                };
                self.say(Level::Good, format!("decisions are as after event {to}; {undo} undoes it{kept}"));
            }
            Event::PlanKept { plan } => {
                let text = format!("the plan is kept as {}; {} compares", plan.name, self.label(Act::View7));
                self.say(Level::Good, text);
            }
            Event::Noted { .. } => {
                self.question = None;
                self.say(Level::Good, "noted; it goes into the next prompt");
            }
            // What else there is to tell of an event stands in the timeline.
            Event::RecipeSet { .. }
            | Event::Resolved { .. }
            | Event::PhaseEntered { .. }
            | Event::Approved { .. }
            | Event::Vetoed { .. }
            | Event::Reopened { .. }
            | Event::ConstraintSet { .. }
            | Event::ConstraintLifted { .. }
            | Event::ConstraintsSet { .. }
            | Event::ConstraintsLifted { .. }
            | Event::Suggested { .. }
            | Event::SuggestionsDropped
            | Event::BudgetSet { .. }
            | Event::HealingSet { .. }
            | Event::HealingBegun { .. }
            | Event::Claimed { .. }
            | Event::Rivalled { .. }
            | Event::Recalled { .. }
            | Event::Built { .. }
            | Event::RunStarted { .. } => {}
        }
    }

    /// Says what an undo or redo did; what it meant may have given way to newer proposals meanwhile.
    fn turned(&mut self, word: &str, what: Option<String>, idle: bool) {
        let but = if idle { "; nothing changed by it, what is there is newer" } else { "" };
        self.say(Level::Info, format!("{word}: {}{but}", what.unwrap_or_default()));
    }

    fn said(&mut self, u: &Utterance) {
        let role = clean(&u.role);
        match self.turns.iter_mut().rev().find(|t| !t.kept && t.role == role) {
            Some(t) => t.keep(u),
            None => self.turns.push(Turn::of(u)),
        }
        let extra = self.turns.len().saturating_sub(200);
        self.turns.drain(..extra);
    }

    fn feed(&mut self, feed: Feed) {
        match feed {
            Feed::Turn { role, model } => {
                // Whoever speaks has what was computed before.
                (self.running, self.jobs) = (true, Vec::new());
                self.turns.push(Turn::begin(&role, &model, self.now_ms));
            }
            Feed::Token { role, channel, text } => {
                let now = self.now_ms;
                let name = clean(&role).into_owned();
                if !self.turns.iter().any(|t| t.live && t.role == name) {
                    self.turns.push(Turn::begin(&role, "", now));
                }
                if let Some(t) = self.turns.iter_mut().rev().find(|t| t.live && t.role == name) {
                    t.push(channel, &text, now);
                }
            }
            Feed::TurnEnd { role } => {
                let name = clean(&role).into_owned();
                self.turns.iter_mut().filter(|t| t.role == name).for_each(Turn::end);
            }
            // A job goes through stages one after the other, each with a name of its own: a new one ends the last, whose
            // final figures may have been dropped on the way.
            Feed::Progress(p) => {
                self.works_at(&p.label);
                (self.running, self.jobs) = (true, vec![p]);
            }
            Feed::JobEnd { .. } => {
                self.question = None;
                (self.running, self.jobs, self.machine) = (false, Vec::new(), None);
                (self.working, self.outlook_stale) = (Working::default(), true);
                (self.decoding, self.level_asked, self.healing) = (false, None, None);
                self.turns.iter_mut().for_each(Turn::end);
                let beat = self.pulse.take().is_some();
                if self.table.settle_live() || beat {
                    self.table_stale = true;
                }
            }
            Feed::Live { runs, rows } => {
                self.table.live(runs, &rows);
                self.list.order_held = true;
            }
            Feed::Levels(figures) => {
                (self.running, self.decoding) = (true, true);
                self.jobs.clear();
                self.level_asked = self.level_asked.filter(|asked| *asked != figures.asked);
                self.levels = Some(*figures);
            }
            Feed::Healing { step, loss, course } => {
                self.running = true;
                self.healing = Some((step, loss, *course));
            }
            Feed::Pulse { step, layers } => {
                self.running = true;
                self.table.pulse(&layers);
                self.list.order_held = true;
                self.pulse = Some((step, layers));
            }
            Feed::Machine(now) => {
                self.profiled.vitals.push(self.now_ms, now.clone(), &self.jobs);
                self.machine = Some(now);
            }
            Feed::Units { group, scores } => {
                self.units.insert(group, scores);
                self.outlook_stale = true;
            }
            Feed::Rounding { layer, errors } => {
                self.rounding.insert(layer, errors);
                self.outlook_stale = true;
                self.next_error();
            }
            Feed::Activations { layer, found } => {
                self.flows.known.insert(layer, *found);
                self.outlook_stale = true;
            }
            Feed::Changed(changed) => self.heard_changed(*changed),
            Feed::Tokens(told) => self.heard_tokens(*told),
            Feed::Agents { at, turns, limits } => {
                (self.agents, self.asked_turns, self.asked_limits) = (at, turns, limits);
            }
            Feed::Log { level, text } => {
                let level = match level.to_ascii_lowercase().as_str() {
                    "warn" | "error" => Level::Warn,
                    _ => Level::Info,
                };
                // What the verdict asks stays until it is answered or a key is pressed; what goes on meanwhile is no news beside it.
                let asked = self.state.phase == Phase::Verdict && self.message.is_some();
                if level != Level::Info || !asked {
                    self.say(level, text);
                }
            }
        }
    }
}
