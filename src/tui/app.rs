//! The screen's own state, and what is read of it. How the host's messages change it is in `heard.rs`, how keys do in `update.rs`.
//!
//! Everything here is plain data: [`App::host`](super::heard) and [`App::input`](super::update) return [`Effect`]s, drawing only
//! reads. Invariant: what is durable comes from `State` alone; the screen never guesses that a command succeeded.

use super::columns::Columns;
use super::evaluate::Looking;
use super::history::History;
use super::inspect::Inspected;
pub use super::layout::View;
use super::layout::{self, Layout, Shares};
use super::list::{List, RowRef};
use super::modal::Modal;
use super::mouse::Pointer;
use super::outlook::{Expected, Measured};
use super::palette::Palette;
use super::pictures::Means;
use super::pin::Pin;
use super::plans::Plans;
use super::profile::{Page, Profiled};
use super::seek::Sought;
use super::select::Selection;
use super::stream::{Scroll, Turn};
use super::table::Table;
use super::timeline::Past;
use super::working::Working;
use crate::config::text::clean;
use crate::config::{Act, Settings};
use crate::control::{Asked, Figures};
use crate::plan::{Action, Author, Decision, DecisionId, Forecast, Status, Target};
use crate::prune::Group;
use crate::quant::Precision;
use crate::session::{Command, Machine, Phase, Progress, Standing, State};
use crate::train::{Course, LayerPulse};
use ratatui::layout::Rect;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// What the runtime is asked to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    Send(Command),
    /// Copy to the clipboard (OSC 52) and to a file.
    Yank(String),
    /// Write texts to paths.
    Write(Vec<(String, String)>),
    /// Add a line to those that were entered before.
    Remember(String),
    /// Keep how the review's panes share the screen.
    Arrange(Shares),
    Suspend,
    Repaint,
    Quit(Exit),
}

/// Why the screen ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exit {
    /// The engineer left; the session keeps running.
    Detached,
    /// The host said goodbye, with its reason.
    HostGone(String),
    /// The terminal went away (hang-up, write error).
    TerminalGone,
    /// A signal asked us to end.
    Signal(i32),
}

/// The pane of the review view that has the keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Pane {
    #[default]
    Layers,
    Agents,
    Decision,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    Info,
    Good,
    Warn,
    Bad,
}

/// An edit that is not sent yet.
#[derive(Debug, Clone, PartialEq)]
pub struct Draft {
    pub target: Target,
    pub action: Action,
}

/// An edit that was sent and is not durable yet.
#[derive(Debug, Clone, PartialEq)]
pub struct Sent {
    pub draft: Draft,
    /// The command's id, once it is on its way: the reply to it, and to no other, settles this edit.
    pub reply: Option<u64>,
}

/// A target as a row shows it.
#[derive(Debug, Clone)]
pub struct Shown {
    pub target: Target,
    /// The decision that is shown: open, else approved, else in force, else the newest.
    pub id: Option<DecisionId>,
    pub standing: Standing,
    /// What would run here once what is open is approved; [`Action::Keep`] where that is the original.
    pub action: Action,
    /// Being edited here, not yet durable.
    pub drafting: bool,
}

impl Shown {
    /// There is something to tell about the target.
    pub fn decided(&self) -> bool {
        self.drafting || self.standing != Standing::Free
    }

    /// Waits for the engineer.
    pub fn open(&self) -> bool {
        matches!(self.standing, Standing::Proposed | Standing::Edited)
    }
}

#[derive(Default)]
pub struct App {
    pub settings: Settings,
    pub palette: Palette,
    pub state: State,
    pub you: u64,
    pub pen: Option<u64>,
    pub pen_name: String,
    /// A host has welcomed us.
    pub connected: bool,
    pub view: View,
    pub pane: Pane,
    pub table: Table,
    pub list: List,
    pub turns: Vec<Turn>,
    pub brief: Scroll,
    pub full: Scroll,
    /// Scroll of evaluate, timeline and report.
    pub scroll: usize,
    /// The stage of long work that is under way; at most one, since a host runs one job at a time.
    pub jobs: Vec<Progress>,
    /// The rows that it is at.
    pub working: Working,
    /// The host has told of a job and not yet of its end.
    pub running: bool,
    /// What the host's machine does; nothing while no job runs.
    pub machine: Option<Machine>,
    /// How the controller does, or did when it was stopped.
    pub levels: Option<Figures>,
    /// How a healing goes: its step, the loss of that, and its looks.
    pub healing: Option<(u32, f64, Course)>,
    /// What layers' weights and gradients do in it, after which step.
    pub pulse: Option<(u32, Arc<[LayerPulse]>)>,
    /// It is at work.
    pub decoding: bool,
    /// The level that was asked for and is not computed yet.
    pub level_asked: Option<Asked>,
    /// Notes that stay until they are put away were put away.
    pub notes_hidden: bool,
    /// Whom the host asks to propose, in its words; without one the planner.
    pub agents: Option<String>,
    /// What the agents asked and nobody has answered yet.
    pub question: Option<String>,
    /// How often agents are asked by themselves; one: they propose, and wait.
    pub asked_turns: usize,
    /// How much units of groups matter, as view 8 asked; empty where that is not known.
    pub units: BTreeMap<String, Vec<f32>>,
    /// The group that it asked for last.
    pub asked_units: Option<String>,
    /// How far weights are off in each precision, by layer, as view 8 asked; and the layer that it asked for last.
    pub rounding: BTreeMap<String, Vec<(Precision, f32)>>,
    pub asked_rounding: Option<String>,
    /// What flows into layers, as view 8 asked, and the layer that it asked for last.
    pub flows: super::inspect::Flows,
    /// Layers whose errors are still to be asked for, one after the other.
    pub(super) errors_due: VecDeque<String>,
    /// What a proposal of theirs may take, in words.
    pub asked_limits: String,
    pub modal: Option<Modal>,
    pub message: Option<(Level, String)>,
    /// Edits in progress; all of them are kept or dropped together.
    pub drafts: Vec<Draft>,
    /// The newest event when they were begun.
    pub(super) drafted_at: u64,
    pub selection: Selection,
    /// Edits sent and not yet answered, so that the row does not flicker back.
    pub sent: Vec<Sent>,
    /// A run without edits that are not approved was warned of when the session was here.
    pub run_without: Option<u64>,
    /// Approve these once the engineer's own decision on them is durable.
    pub approve_next: Vec<Target>,
    /// Selected line of the decision card.
    pub card: usize,
    pub last_words: String,
    pub pointer: Pointer,
    /// Words that are looked for in text.
    pub sought: Sought,
    /// Lines of the command line that were entered before.
    pub lines: History,
    pub measured: Option<Measured>,
    pub expected: Option<Expected>,
    /// The same plan without the decision under the cursor.
    pub expected_without: Option<Expected>,
    /// What the card's decision (or a block's decisions together) would do alone.
    pub expected_own: Option<Forecast>,
    /// The part of each block's bytes that goes by the plan that is shown.
    pub block_sums: Vec<Option<f64>>,
    /// What those are sums of.
    pub(super) block_rows: super::forecast::Rows,
    /// A warning about the card's decision: a cut that makes the model slower.
    pub slower: Option<String>,
    pub size: (u16, u16),
    pub now_ms: i64,
    /// Something changed since the last frame.
    pub dirty: bool,
    /// What the runtime is asked to do, until it takes it.
    pub(super) effects: Vec<Effect>,
    pub(super) forecasts: super::forecast::Forecasts,
    pub columns: Columns,
    /// What rows are held against.
    pub(super) pinned: Option<Pin>,
    pub shares: Shares,
    /// Figures are of one token after a context, not of a window.
    pub tokens: bool,
    pub plans: Plans,
    /// What view 2 looks into.
    pub looking: Looking,
    /// How pictures are drawn.
    pub means: Means,
    /// What view 8 tells, while it is shown; nothing where no layer is under the cursor.
    pub inspected: Option<Inspected>,
    /// Where the cursor of the timeline is.
    pub past: Past,
    /// What view 9 holds.
    pub profiled: Profiled,
    pub(super) table_stale: bool,
    pub(super) outlook_stale: bool,
    /// What is known of agents whose decisions there are, in words: looked up for every card that is drawn, and plans are hashed for it.
    pub(super) records: BTreeMap<String, String>,
    pub(super) records_stale: bool,
}

impl App {
    pub fn new(settings: Settings, size: (u16, u16)) -> App {
        let palette = Palette { theme: settings.theme.clone(), level: settings.colors, ascii: settings.ascii };
        let columns = Columns::new(&settings.columns, &settings.own_columns);
        App {
            palette,
            // What is no column was told when settings were read.
            list: List::new(columns.sort_named(&settings.sort).ok().flatten()),
            columns,
            settings,
            brief: Scroll::new(false),
            full: Scroll::new(true),
            size,
            dirty: true,
            tokens: false,
            table_stale: true,
            outlook_stale: true,
            ..App::default()
        }
    }

    /// What drawing turned out to need.
    pub fn wanted(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Brings derived data up to date; call once after a batch of input and messages, before drawing.
    pub fn settle(&mut self) {
        let l = self.layout();
        let rows = layout::list_rows(&l);
        if std::mem::take(&mut self.table_stale) {
            self.table = Table::build(&self.state, self.tokens);
            if let Some((_, layers)) = &self.pulse {
                self.table.pulse(layers);
            }
            self.forecasts.rebuild(&self.state);
            self.repin();
            self.resort();
            self.outlook_stale = true;
        }
        self.list.clamp(rows);
        // Where it is not seen it stays as it is: to wrap all of it at another width and back would be the dearest thing that a key does.
        if !l.agents.is_empty() {
            self.brief.update(&self.turns, layout::inside(l.agents).width as usize);
        }
        if self.view == View::Agents {
            self.full.update(&self.turns, layout::inside(l.body).width as usize);
        }
        if std::mem::take(&mut self.outlook_stale) {
            self.measured = Measured::of(&self.state);
            self.forecast();
            self.refresh_picker();
            match self.view {
                View::Plans => self.compare_plans(),
                View::Inspect => self.inspect(),
                View::Evaluate => self.look(),
                View::Profile if self.profiled.page == Page::Memory => self.remember(),
                _ => {}
            }
        }
        if std::mem::take(&mut self.records_stale) {
            self.records = self.state.agents_records();
        }
        let cards = self.row_shown().len();
        self.card = self.card.min(cards.saturating_sub(1));
    }

    /// The areas as drawing will see them.
    pub fn layout(&self) -> Layout {
        layout::layout(Rect::new(0, 0, self.size.0, self.size.1), self.view, self.banners().len() as u16, self.shares)
    }

    pub fn say(&mut self, level: Level, text: impl Into<String>) {
        self.message = Some((level, clean(&text.into()).into_owned()));
        self.dirty = true;
    }

    /// The key of an action, as it is shown.
    pub(super) fn label(&self, act: Act) -> String {
        self.settings.keymap.label(act)
    }

    pub fn has_pen(&self) -> bool {
        self.connected && self.pen == Some(self.you)
    }

    pub fn groups(&self) -> &[Group] {
        self.state.card.as_ref().map_or(&[], |c| c.groups.as_slice())
    }

    pub fn group(&self, id: &str) -> Option<&Group> {
        self.groups().iter().find(|g| g.id == id)
    }

    /// What counts for `target` now: the draft, else what was sent, else what the session says.
    pub fn shown(&self, target: &Target) -> Shown {
        let here = self.state.planned(target);
        let sent = self.sent.iter().rev().map(|s| &s.draft);
        let local = self.drafts.iter().chain(sent).find(|x| x.target == *target);
        let action = match local {
            Some(draft) => draft.action.clone(),
            None => here.open.or_else(|| here.runs()).map_or(Action::Keep, |d| d.action.clone()),
        };
        let id = here.shown().map(|d| d.id);
        Shown { target: target.clone(), id, standing: here.standing(), action, drafting: local.is_some() }
    }

    /// Everything that can be decided on a row.
    pub fn targets_of(&self, row: RowRef) -> Vec<Target> {
        match row {
            RowRef::Layer(i) => {
                self.table.layers.get(i).map(|l| self.table.targets(l, self.groups())).unwrap_or_default()
            }
            RowRef::Block(b) => {
                let block = self.table.blocks.get(b);
                block.filter(|b| b.removable).map(|b| Target::Block(b.name.clone())).into_iter().collect()
            }
        }
    }

    /// Precisions to choose from for a layer: those that its rows take.
    pub fn precisions(&self, layer: &str) -> Vec<Precision> {
        let graph = self.state.card.as_ref().map(|c| &c.graph);
        let op = graph.and_then(|g| Some(&g.node(g.by_name(layer)?).op));
        let all = Precision::menu(graph.is_some_and(|g| g.is_language_model())).iter().copied();
        all.filter(|p| op.is_none_or(|op| p.unfit(op).is_none())).collect()
    }

    /// What the decision card lists for the row under the cursor.
    pub fn row_shown(&self) -> Vec<Shown> {
        let Some(row) = self.list.current() else { return Vec::new() };
        let mut out: Vec<Shown> = self.targets_of(row).iter().map(|t| self.shown(t)).collect();
        // A layer whose weights get zeros, or in a block that shall go, says so.
        if let Some(l) = self.row_layer() {
            let block = l.block.and_then(|b| self.table.blocks.get(b)).map(|b| Target::Block(b.name.clone()));
            let more = std::iter::once(Target::Weights(l.name.clone())).chain(block);
            out.extend(more.map(|t| self.shown(&t)).filter(Shown::decided));
        }
        out
    }

    /// The decision that the card shows in full: the selected one, or else the first that has a proposal.
    pub fn focused(&self) -> Option<Shown> {
        let all = self.row_shown();
        if self.pane == Pane::Decision {
            return all.into_iter().nth(self.card);
        }
        let first = all.iter().position(|s| s.drafting).or_else(|| all.iter().position(Shown::decided));
        all.into_iter().nth(first.unwrap_or(0))
    }

    /// All targets of the layers of a block, and its own.
    pub fn targets_in_block(&self, block: usize) -> Vec<Target> {
        let mut out = self.targets_of(RowRef::Block(block));
        for &i in self.table.blocks.get(block).map_or(&[][..], |b| &b.layers) {
            let Some(l) = self.table.layers.get(i) else { continue };
            for t in self.table.targets(l, self.groups()) {
                if (l.leads || !matches!(t, Target::Group(_))) && !out.contains(&t) {
                    out.push(t);
                }
            }
        }
        out
    }

    /// The plan whose forecast the screen shows: what the next run would build if everything open were approved, with the
    /// edits that are not durable yet in place. On the targets of `without` what is open does not count, and where
    /// nothing is, what runs does not either.
    pub fn plan(&self, without: &[Target]) -> Vec<Decision> {
        let mut out: Vec<Decision> = self.state.if_approved().into_iter().cloned().collect();
        for draft in self.sent.iter().map(|s| &s.draft).chain(&self.drafts) {
            match out.iter_mut().find(|d| d.target == draft.target) {
                Some(d) => d.action = draft.action.clone(),
                None => out.push(self.fresh(&draft.target, draft.action.clone())),
            }
        }
        self.take_out(&mut out, without);
        out
    }

    /// Leaves out of a plan what is open on `targets`, as [`App::plan`] does.
    fn take_out(&self, out: &mut Vec<Decision>, targets: &[Target]) {
        for target in targets {
            let shown = self.shown(target);
            let stays = self.state.planned(target).runs().filter(|_| shown.open() || shown.drafting);
            out.retain(|d| d.target != *target);
            out.extend(stays.cloned());
        }
    }

    /// Whether the plan that is shown counts on approvals that were not given.
    pub fn plan_is_open(&self) -> bool {
        !self.drafts.is_empty() || !self.sent.is_empty() || !self.state.open().is_empty()
    }

    /// Which plan's forecast is shown, in words.
    pub fn plan_words(&self) -> String {
        match (self.plan_is_open(), self.state.phase) {
            (true, _) if self.state.heal.is_some() => "all, before healing".into(),
            (true, _) => "if all approved".into(),
            (false, Phase::Evaluate | Phase::Verdict) => format!("as in round {}", self.state.round),
            (false, _) if self.state.heal.is_some() => "before healing".into(),
            (false, _) => format!("as {} runs it", self.label(Act::Run)),
        }
    }

    /// The same in a word.
    pub fn plan_word(&self) -> String {
        if self.plan_is_open() { "~all".into() } else { format!("~{}", self.label(Act::Run)) }
    }

    /// The plan that is shown is another than the model that was measured.
    pub fn plan_differs(&self) -> bool {
        self.plan_is_open() || self.state.changes() > 0
    }

    /// A decision of the engineer's that exists only to be forecast.
    pub fn fresh(&self, target: &Target, action: Action) -> Decision {
        let own = Decision::new(target.clone(), action, Author::Human);
        Decision { id: DecisionId(u64::MAX), round: self.state.round, status: Status::Edited, ..own }
    }

    fn forecast(&mut self) {
        let plan = self.plan(&[]);
        self.expected = (!plan.is_empty()).then(|| self.forecasts.plan(&self.state, &plan));
        self.sum_blocks(&plan);
        let focus = self.focus_targets();
        self.expected_without = (!focus.is_empty()).then(|| {
            let mut rest = plan.clone();
            self.take_out(&mut rest, &focus);
            self.forecasts.plan(&self.state, &rest)
        });
        // What the row under the cursor stands for, alone.
        let mine: Vec<Decision> = match self.focused() {
            Some(s) if s.decided() => match s.action {
                // Nothing would run here.
                Action::Keep if !s.drafting && !s.open() => Vec::new(),
                action => {
                    let known = s.id.and_then(|id| self.state.decision(id)).filter(|d| d.action == action);
                    vec![known.cloned().unwrap_or_else(|| self.fresh(&s.target, action))]
                }
            },
            _ => plan.into_iter().filter(|d| focus.contains(&d.target)).collect(),
        };
        self.expected_own = if mine.is_empty() { None } else { self.forecasts.together(&self.state, &mine) };
        self.slower = match &mine[..] {
            [one] => self.forecasts.slower(&self.state, one),
            _ => None,
        };
    }

    /// The targets that the decision card is about.
    fn focus_targets(&self) -> Vec<Target> {
        match (self.list.current(), self.focused()) {
            (_, Some(s)) if s.decided() => vec![s.target],
            (Some(RowRef::Block(b)), _) => self.targets_in_block(b),
            (_, Some(s)) => vec![s.target],
            _ => Vec::new(),
        }
    }

    /// Agents are speaking.
    pub fn speaking(&self) -> bool {
        self.turns.iter().any(|t| t.live)
    }

    /// The host is at work: by what it tells, and by what the state says.
    pub fn busy(&self) -> bool {
        let working = matches!(self.state.phase, Phase::Reason | Phase::Compress | Phase::Evaluate);
        self.speaking() || self.running || working
    }
}
