//! From keys to effects: dispatch through the keymap, dialogs first. Deciding is in `decide.rs`.

use super::app::{App, Effect, Exit, Level, Pane, Shown, View};
use super::decide::{approvable, closed, vetoable};
use super::layout::{self, list_rows};
use super::list::RowRef;
use super::modal::{Ask, LINE_BYTES, Modal, paste};
use super::timeline::Past;
use crate::config::{Act, Key};
use crate::plan::{Action, Status};
use crate::session::{Command, Proposer, USUAL_TURNS};
use crossterm::event::{KeyEvent, KeyEventKind, MouseEvent};

/// How far a key moves what it moves.
#[derive(Debug, Clone, Copy)]
enum Stride {
    Line,
    Page,
    All,
}

impl Stride {
    /// In lines where `height` are seen, a page leaving one of them.
    fn lines(self, height: usize) -> usize {
        match self {
            Stride::Line => 1,
            Stride::Page => height.saturating_sub(1),
            Stride::All => usize::MAX / 4,
        }
    }
}

/// What a terminal sends.
#[derive(Debug, Clone, PartialEq)]
pub enum UserInput {
    Key(KeyEvent),
    Paste(String),
    Resize(u16, u16),
    Mouse(MouseEvent),
}

impl App {
    /// Takes one input. Call [`App::settle`] once after a batch of them.
    pub fn input(&mut self, input: UserInput) -> Vec<Effect> {
        self.dirty = true;
        match input {
            UserInput::Resize(w, h) => {
                self.size = (w, h);
                self.effects.push(Effect::Repaint);
            }
            UserInput::Key(k) if k.kind == KeyEventKind::Release => {}
            UserInput::Key(k) => self.key(k),
            UserInput::Paste(text) => {
                let text = crate::config::text::clean(&text).into_owned();
                let known = self.known();
                let left_out = match &mut self.modal {
                    Some(Modal::Prompt(p)) => p.paste(&text),
                    Some(Modal::Command(c)) => {
                        let left_out = paste(&mut c.area, &text, LINE_BYTES);
                        c.typed(&known);
                        left_out
                    }
                    Some(Modal::Explain(e)) => e.paste(&text),
                    Some(Modal::Stop | Modal::Help { .. } | Modal::Precisions(_)) | None => None,
                };
                if let Some(words) = left_out {
                    self.say(Level::Warn, words);
                }
                self.live_search();
            }
            UserInput::Mouse(m) => self.mouse(m),
        }
        std::mem::take(&mut self.effects)
    }

    fn key(&mut self, k: KeyEvent) {
        self.list.untouched = false;
        if self.modal.is_some() {
            return self.modal_key(k);
        }
        match self.settings.keymap.act(Key::of(&k)) {
            Some(act) => {
                self.message = None;
                self.act(act)
            }
            None => {
                self.nothing(format!("no meaning for `{}` here; {} lists the keys", Key::of(&k), self.label(Act::Help)))
            }
        }
    }

    pub(super) fn refilter(&mut self) {
        let rows = list_rows(&self.layout());
        self.list.show(&self.table, rows);
        self.outlook_stale = true;
    }

    /// Sends a command, or says why not.
    pub(super) fn command(&mut self, command: Command) {
        self.sends(command);
    }

    /// The same; whether it went.
    pub(super) fn sends(&mut self, command: Command) -> bool {
        let may = (matches!(command, Command::TakePen) && self.connected) || self.may_write();
        if may {
            self.effects.push(Effect::Send(command));
        }
        may
    }

    /// Whether this terminal may command; says so when not.
    pub(super) fn may_write(&mut self) -> bool {
        if !self.connected {
            self.say(Level::Bad, "no host yet");
        } else if !self.has_pen() {
            self.drafts.clear();
            self.say(Level::Warn, format!("you are watching; {} takes the pen", self.label(Act::TakePen)));
        } else {
            return true;
        }
        false
    }

    /// Does what a key asks for.
    pub fn act(&mut self, act: Act) {
        match act {
            Act::Down => self.step(Stride::Line, 1),
            Act::Up => self.step(Stride::Line, -1),
            Act::PageDown => self.step(Stride::Page, 1),
            Act::PageUp => self.step(Stride::Page, -1),
            Act::Top => self.step(Stride::All, -1),
            Act::Bottom => self.step(Stride::All, 1),
            Act::NextPane | Act::PrevPane => self.next_pane(act == Act::NextPane),
            Act::ToggleFold | Act::Unfold | Act::Fold => self.fold(act),
            Act::FoldAll if self.list.current().is_none() => {}
            Act::FoldAll => {
                if self.list.folded.is_empty() {
                    self.list.folded = self.table.blocks.iter().map(|b| b.name.clone()).collect();
                } else {
                    self.list.folded.clear();
                }
                self.refolded()
            }
            Act::Sort => {
                (self.list.sort, self.list.reverse) = (self.columns.next_sort(self.list.sort), false);
                self.resort()
            }
            Act::SortReverse => {
                self.list.reverse = !self.list.reverse;
                self.resort()
            }
            Act::Tokens => {
                // Figures that there are none of would leave the table empty.
                let known = self.state.decoding_of(0).is_some();
                (self.tokens, self.table_stale) = (!self.tokens && known, true);
                if !known {
                    self.nothing(
                        "what one token takes is measured of language models only, and of this nothing yet is",
                    );
                }
            }
            Act::Columns => self.columns.next(),
            Act::NextLayout => self.next_layout(),
            Act::Grow => self.grow(1),
            Act::Shrink => self.grow(-1),
            Act::Flat => {
                self.list.flat = !self.list.flat;
                self.resort()
            }
            Act::Search if self.on_text() => {
                let words = self.sought.words.clone();
                self.prompt_over(
                    Ask::Seek,
                    "find",
                    "words in this text; enter goes to the first line with them",
                    &words,
                )
            }
            Act::NextMatch | Act::PrevMatch if self.on_text() => self.seek_next(act == Act::NextMatch),
            Act::NextName => self.go_to_mentioned(),
            Act::Search => {
                let before = self.list.filter.clone();
                let hint = "words of a name or kind; enter keeps the filter, esc drops it";
                self.view = View::Review;
                self.prompt(Ask::Search(before.clone()), "filter", hint, &before)
            }
            Act::NextMatch | Act::PrevMatch => {
                let words =
                    if self.list.filter.is_empty() { self.last_words.clone() } else { self.list.filter.clone() };
                let rows = list_rows(&self.layout());
                if words.is_empty() {
                    self.nothing(format!("nothing was searched for yet; {} searches", self.label(Act::Search)));
                } else if !self.list.find(&self.table, &words, act == Act::NextMatch, rows) {
                    self.say(Level::Info, format!("no match for `{words}`; {} searches", self.label(Act::Search)));
                }
                self.outlook_stale = true;
            }
            Act::Approve => self.decide(App::approve),
            Act::Veto => self.decide(App::veto),
            Act::Reopen => self.decide(App::reopen),
            Act::Edit => self.decide(App::edit),
            Act::RatioUp => self.decide(|app| app.drag(1)),
            Act::RatioDown => self.decide(|app| app.drag(-1)),
            Act::RatioUpFast => self.decide(|app| app.drag(4)),
            Act::RatioDownFast => self.decide(|app| app.drag(-4)),
            Act::Precision => self.decide(App::next_precision),
            Act::Precisions => self.decide(App::pick_precision),
            Act::RemoveBlock => self.decide(App::remove_block),
            Act::Confirm if self.view == View::Evaluate => self.enter_evaluate(),
            Act::Confirm if self.view == View::Profile => self.open_row(),
            Act::Confirm if self.view == View::Timeline => self.restore(),
            Act::Select => self.select_range(),
            Act::Mark => self.mark(),
            Act::Confirm => self.confirm(),
            Act::ApproveBlock => self.decide(App::approve_block),
            Act::ApproveAll => self.decide(App::approve_shown),
            Act::Note => self.prompt(Ask::Note, "note to the agents", "goes into the next prompt", ""),
            Act::Undo => self.undo(),
            Act::Redo => self.command(Command::Redo),
            Act::Profile => self.with_commit(Command::Profile),
            Act::Measure => match self.pointed().map(|l| l.name.clone()) {
                Some(layer) => self.with_commit(Command::Measure { layer }),
                None => {
                    let all = self.label(Act::Profile);
                    self.nothing(format!("move to a layer to measure it; {all} measures all of them"))
                }
            },
            Act::Sense => self.with_commit(Command::Sense),
            Act::Propose => {
                let by = if self.agents.is_some() { Proposer::Agents } else { Proposer::Planner };
                self.with_commit(Command::Propose { by })
            }
            Act::Mode => {
                let turns = if self.asked_turns > 1 { 1 } else { USUAL_TURNS };
                self.command(Command::SetTurns { turns })
            }
            Act::ProposePlanner => self.with_commit(Command::Propose { by: Proposer::Planner }),
            Act::Bisect => self.with_commit(Command::Bisect),
            Act::Run => self.run(),
            Act::Accept => self.command(Command::Accept),
            Act::RollBack => {
                let round = self.state.model_round();
                if round == 0 {
                    return self.nothing("no round to roll back: the original model is in force");
                }
                self.prompt(Ask::RollBack, format!("roll back round {round}"), "why? (kept in the journal)", "")
            }
            Act::Export => self.open_line("export "),
            Act::Interrupt if !self.busy() => {
                let q = self.label(Act::Detach);
                self.nothing(format!("nothing is running; {q} detaches, :stop ends the session's host"))
            }
            Act::Interrupt => self.command(Command::Cancel),
            Act::NextLevel => self.next_level(),
            Act::TakePen => self.command(Command::TakePen),
            Act::Detach => {
                self.commit();
                self.effects.push(Effect::Quit(Exit::Detached));
            }
            Act::View1 => self.show(View::Review),
            Act::View2 => self.show(View::Evaluate),
            Act::View3 => self.show(View::Agents),
            Act::View4 => self.show(View::Timeline),
            Act::View5 => self.show(View::Report),
            Act::View6 => self.show(View::Control),
            Act::View7 => self.show(View::Plans),
            Act::View8 => self.show(View::Inspect),
            Act::View9 => self.show_profile(),
            Act::NextPlan => self.next_plan(),
            Act::TakeRow | Act::TakeBlock | Act::TakeAll => self.take(act),
            Act::OtherWay if self.view != View::Evaluate => {
                let key = self.label(Act::View2);
                self.nothing(format!("of what a round changed, in view {key}"))
            }
            Act::OtherWay => self.other_way(),
            Act::Fork => self.open_line("fork "),
            Act::Follow => {
                let s = if self.view == View::Agents { &mut self.full } else { &mut self.brief };
                s.follow = !s.follow;
                let follow = s.follow;
                self.nothing(if follow { "following the stream" } else { "holding still" })
            }
            Act::Yank => self.effects.push(Effect::Yank(self.pane_text())),
            Act::Command => self.open_line(""),
            Act::Help => self.modal = Some(Modal::Help { scroll: 0 }),
            Act::Explain => self.explain(""),
            Act::Cancel => {
                if self.drop_drafts() {
                    self.nothing("edit dropped");
                } else if self.unselect() {
                    self.nothing("nothing is selected any more");
                } else if self.on_text() && !std::mem::take(&mut self.sought).words.is_empty() {
                    self.nothing("nothing is looked for any more");
                } else if !self.list.filter.is_empty() {
                    self.list.filter.clear();
                    self.refilter();
                } else if self.view == View::Evaluate && self.leave_evaluate() {
                    // One step back in it.
                } else if self.view != View::Review {
                    self.view = View::Review;
                } else {
                    self.pane = Pane::Layers;
                    self.notes_hidden = true;
                }
                self.outlook_stale = true;
            }
            Act::Redraw => self.effects.push(Effect::Repaint),
            Act::Suspend => self.effects.push(Effect::Suspend),
        }
    }

    pub(super) fn show(&mut self, view: View) {
        if self.view != view {
            (self.scroll, self.past) = (0, Past::default());
            self.look_again();
        }
        self.view = view;
        self.outlook_stale = true;
    }

    /// Scrolls the text that has the keys, moves along the card's lines, or moves the cursor; down with `way` 1, up with -1.
    fn step(&mut self, step: Stride, way: isize) {
        if self.view == View::Plans {
            let height = layout::inside(self.layout().body).height as usize;
            return self.step_plans(way * step.lines(height) as isize);
        }
        if self.view == View::Evaluate && self.step_evaluate(way * step.lines(8).min(1 << 20) as isize) {
            return;
        }
        let rows = way * step.lines(layout::inside(self.layout().body).height as usize) as isize;
        if self.view == View::Timeline {
            return self.step_past(rows);
        }
        if self.view == View::Profile && self.step_page(rows, matches!(step, Stride::Page)) {
            return;
        }
        if self.view != View::Review || self.pane == Pane::Agents {
            self.scroll_text(step, way);
            return;
        }
        let rows = way * step.lines(list_rows(&self.layout())).max(1) as isize;
        if self.pane == Pane::Decision && rows.abs() == 1 {
            let last = self.row_shown().len().saturating_sub(1);
            self.card = self.card.saturating_add_signed(rows).min(last);
            self.outlook_stale = true;
            return;
        }
        self.go(rows)
    }

    /// Moves the cursor; an edit in progress on the row that is left is kept.
    pub(super) fn go(&mut self, by: isize) {
        let before = self.list.current();
        let rows = list_rows(&self.layout());
        self.list.step(by, rows);
        if self.list.current() != before {
            self.card = 0;
            self.outlook_stale = true;
            self.commit();
        }
    }

    fn next_pane(&mut self, forward: bool) {
        if self.view == View::Evaluate {
            return self.next_part(forward);
        }
        if self.view == View::Profile {
            return self.turn_page(forward);
        }
        if self.view != View::Review {
            let i = View::ALL.iter().position(|v| *v == self.view).unwrap_or(0);
            let n = View::ALL.len();
            return self.show(View::ALL[(i + if forward { 1 } else { n - 1 }) % n]);
        }
        self.pane = match (self.pane, forward) {
            (Pane::Layers, true) | (Pane::Decision, false) => Pane::Agents,
            (Pane::Agents, true) | (Pane::Layers, false) => Pane::Decision,
            (Pane::Decision, true) | (Pane::Agents, false) => Pane::Layers,
        };
        self.outlook_stale = true;
    }

    /// Folds or unfolds the row's block, as the key asks.
    fn fold(&mut self, act: Act) {
        let way = if act == Act::Fold { -1 } else { 1 };
        if self.view == View::Evaluate && act != Act::ToggleFold && self.step_token(way) {
            return;
        }
        let block = if self.list.flat { None } else { self.row_block() };
        let Some(name) = block.map(|b| b.name.clone()) else { return };
        match (act, self.list.folded.contains(&name)) {
            (Act::Unfold, false) => {
                if let Some(RowRef::Block(_)) = self.list.current() {
                    self.go(1);
                }
                return;
            }
            (Act::Fold, _) | (_, false) => drop(self.list.folded.insert(name)),
            (_, true) => drop(self.list.folded.remove(&name)),
        }
        self.refolded()
    }

    /// Lists the rows again; an edit in progress on a row that is left is kept.
    fn refolded(&mut self) {
        let before = self.list.current();
        self.refilter();
        if self.list.current() != before {
            self.commit();
        }
    }

    pub(super) fn resort(&mut self) {
        let rows = list_rows(&self.layout());
        let held = self.list.sort.map(|column| self.readings(column)).unwrap_or_default();
        self.list.resort(&self.table, &held, rows);
    }

    fn scroll_text(&mut self, step: Stride, way: isize) {
        let l = self.layout();
        let stream = match self.view {
            View::Review => Some((&mut self.brief, l.agents)),
            View::Agents => Some((&mut self.full, l.body)),
            View::Evaluate | View::Timeline | View::Report | View::Control => None,
            View::Plans | View::Inspect | View::Profile => None,
        };
        if let Some((stream, area)) = stream {
            let height = layout::inside(area).height as usize;
            return match way < 0 {
                true => stream.up(step.lines(height), height),
                false => stream.down(step.lines(height)),
            };
        }
        let height = layout::inside(l.body).height as usize;
        let most = super::draw::text_lines(self).saturating_sub(height);
        self.scroll = self.scroll.saturating_add_signed(way * step.lines(height) as isize).min(most);
    }

    /// Keeps the edit in progress, then sends `command`.
    pub(super) fn with_commit(&mut self, command: Command) {
        self.commit();
        self.command(command);
    }

    fn run(&mut self) {
        let (approve, drop) = (self.label(Act::Approve), self.label(Act::Cancel));
        if !self.drafts.is_empty() || !self.sent.is_empty() {
            // It would have to be approved first, and may be refused: a run must not go on without it unasked.
            let text = format!("an edit is not approved yet; {approve} approves it, {drop} drops it");
            return self.say(Level::Warn, text);
        }
        if self.state.changes() == 0 {
            return self.say(Level::Warn, format!("nothing is approved; {approve} approves the row's proposal"));
        }
        let edits = self.state.open().iter().filter(|d| d.status == Status::Edited).count();
        if edits > 0 && self.has_pen() && self.run_without != Some(self.state.seq) {
            self.run_without = Some(self.state.seq);
            let what = crate::words::counted_as(edits, "edit is", "edits are");
            let text =
                format!("{what} not approved: {} again runs without, {approve} approves the row", self.label(Act::Run));
            return self.say(Level::Warn, text);
        }
        self.command(Command::Run)
    }

    /// Says why nothing happens.
    pub(super) fn nothing(&mut self, why: impl Into<String>) {
        self.say(Level::Info, why);
    }

    /// Decisions may be worked on: no run is under way or waits for its verdict.
    pub fn reviewable(&self) -> bool {
        use crate::session::Phase;
        matches!(self.state.phase, Phase::Profile | Phase::Reason | Phase::Review)
    }

    /// Whether a key does something here and now, for the footer.
    pub fn can(&self, act: Act) -> bool {
        let review = self.view == View::Review && self.reviewable();
        let any = |f: fn(&Shown) -> bool| review && self.chosen().iter().any(f);
        match act {
            Act::Approve => any(approvable),
            Act::Veto => any(vetoable),
            Act::Reopen => any(closed),
            Act::Edit | Act::RatioDown | Act::RatioUp | Act::RatioDownFast | Act::RatioUpFast => {
                review && !self.groups_of(&self.acted()).is_empty()
            }
            Act::Precision | Act::Precisions => review && !self.precise(&self.acted()).is_empty(),
            Act::Select | Act::Mark => self.view == View::Review && !self.list.shown.is_empty(),
            Act::RemoveBlock => review && self.row_block().is_some_and(|b| b.removable),
            Act::ApproveBlock => review && self.row_block().is_some(),
            Act::ApproveAll => review && !self.state.open().is_empty(),
            Act::Undo => !self.drafts.is_empty() || (self.reviewable() && !self.state.undo.is_empty()),
            Act::Redo => self.reviewable() && !self.state.redo.is_empty(),
            Act::Run => !self.busy() && self.reviewable() && self.state.changes() > 0,
            Act::Accept | Act::RollBack => self.state.phase == crate::session::Phase::Verdict,
            Act::Export => self.state.control.is_some() || self.state.rounds.iter().any(|r| r.artifact.is_some()),
            Act::NextLevel => self.decoding,
            Act::TakeRow | Act::TakeBlock | Act::TakeAll => {
                let differ = self.plans.beside.as_ref().is_some_and(|b| !b.rows.is_empty());
                self.view == View::Plans && differ && self.reviewable()
            }
            Act::NextPlan => self.view == View::Plans,
            Act::Mode => self.agents.is_some(),
            Act::Fork => self.state.shown_actions().iter().any(|(_, a)| *a != Action::Keep),
            Act::Interrupt => self.busy(),
            Act::TakePen => self.connected && !self.has_pen(),
            Act::Confirm => {
                let into = self.view == View::Profile || (self.view == View::Evaluate && self.page().is_some());
                let back = self.view == View::Timeline && self.reviewable();
                into || back || (review && !self.drafts.is_empty())
            }
            Act::OtherWay => self.view == View::Evaluate && self.page().is_some(),
            Act::ToggleFold => self.view == View::Review && self.row_block().is_some(),
            Act::Cancel => {
                let picked = !self.drafts.is_empty() || !self.selection.is_empty();
                picked || !self.list.filter.is_empty() || self.view != View::Review
            }
            Act::Follow => self.view == View::Agents || (self.view == View::Review && self.pane == Pane::Agents),
            Act::NextMatch | Act::PrevMatch if self.on_text() => !self.sought.words.is_empty(),
            Act::NextMatch | Act::PrevMatch => {
                self.view == View::Review && (!self.last_words.is_empty() || !self.list.filter.is_empty())
            }
            Act::NextName => !self.turns.is_empty() && (self.view == View::Agents || self.view == View::Review),
            Act::Tokens => self.view == View::Review && self.state.decoding_of(0).is_some(),
            Act::Search => self.view == View::Review || self.on_text(),
            Act::Sort | Act::SortReverse | Act::Columns | Act::Flat | Act::FoldAll => self.view == View::Review,
            Act::NextLayout | Act::Grow | Act::Shrink => self.view == View::Review && !self.layout().tabs,
            Act::Measure => {
                !self.busy() && self.reviewable() && self.pointed().is_some_and(|l| l.fig.p50.is_some() && !l.gone)
            }
            Act::Bisect => {
                !self.busy()
                    && self.reviewable()
                    && self.state.shown_actions().iter().filter(|(_, a)| *a != Action::Keep).count() > 1
            }
            Act::Propose | Act::ProposePlanner | Act::Profile | Act::Sense => {
                !self.busy() && self.state.card.is_some() && self.reviewable()
            }
            // Moving about, looking and leaving.
            Act::Down
            | Act::Up
            | Act::PageDown
            | Act::PageUp
            | Act::Top
            | Act::Bottom
            | Act::NextPane
            | Act::PrevPane
            | Act::Unfold
            | Act::Fold
            | Act::Note
            | Act::Detach
            | Act::View1
            | Act::View2
            | Act::View3
            | Act::View4
            | Act::View5
            | Act::View6
            | Act::View7
            | Act::View8
            | Act::View9
            | Act::Yank
            | Act::Command
            | Act::Explain
            | Act::Help
            | Act::Redraw
            | Act::Suspend => true,
        }
    }
}
