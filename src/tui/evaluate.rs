//! What view 2 looks into: the round that is selected, which of its panes has the keys, and the items that the round's model answers
//! otherwise, as the host tells them page by page.
//!
//! Not here: texts token by token (`tokens`), drawing (`draw/evaluate`, `draw/changed`, `draw/classes`, `draw/calibration`). Invariant: a page is shown for what it was asked for, and for no
//! other round.

use super::app::{App, Effect};
use super::layout::{self, Class};
use super::pictures::Pictures;
use super::tokens::Reading;
use crate::config::Act;
use crate::eval::robust::BINS;
use crate::plan::{Action, Decision};
use crate::session::{Calibration, Changed, Command, Evaluation, PAGE, Seq, Way, WhatChanged};

/// The panes of view 2 that take keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Part {
    #[default]
    Rounds,
    Classes,
    Changed,
    Calibration,
}

impl Part {
    const ALL: [Part; 4] = [Part::Rounds, Part::Classes, Part::Changed, Part::Calibration];
}

/// See the file's head.
#[derive(Debug, Default)]
pub struct Looking {
    pub part: Part,
    /// The round that is selected; `None`: the newest that was evaluated.
    pub round: Option<u32>,
    pub way: Way,
    /// The selected item, among all that changed that way.
    pub item: usize,
    /// That one alone, as large as there is room for.
    pub large: bool,
    pub changed: Option<Changed>,
    pub pictures: Pictures,
    pub reading: Reading,
    /// The selected bin of confidence; `None`: the one that most of the round's error comes from.
    pub bin: Option<usize>,
    /// What was asked of the host last, and not answered yet.
    asked: Option<WhatChanged>,
    /// The selected round's decisions, and what each alone changes of the metric by scans.
    pub decisions: Vec<(Decision, Option<f64>)>,
    /// The round and the journal's record that they are of.
    decided: Option<(u32, Seq)>,
}

impl App {
    /// Whether what is evaluated has classes.
    pub fn has_classes(&self) -> bool {
        self.state.baseline().is_some_and(|b| !b.metrics.per_class().is_empty())
    }

    /// Evaluations, the original's first.
    pub fn evaluations(&self) -> Vec<&Evaluation> {
        self.state.rounds.iter().filter_map(|r| r.evaluation.as_ref()).collect()
    }

    /// The evaluation that view 2 looks into.
    pub fn looked_at(&self) -> Option<&Evaluation> {
        let all = self.evaluations();
        let selected = self.looking.round.and_then(|round| all.iter().find(|e| e.round == round).copied());
        selected.or_else(|| all.last().copied())
    }

    /// The page that holds the selected item; `None` while the original is selected, or nothing.
    pub fn page(&self) -> Option<WhatChanged> {
        let round = self.looked_at()?.round;
        let from = self.looking.item / PAGE * PAGE;
        (round > 0).then_some(WhatChanged { round, way: self.looking.way, from })
    }

    /// What changed of the round that is looked at, whichever page of it is here.
    pub fn what_changed(&self) -> Option<&Changed> {
        let round = self.page()?.round;
        self.looking.changed.as_ref().filter(|c| c.asked.round == round)
    }

    /// Whether all panes are seen at once.
    fn shows_all(&self) -> bool {
        layout::class(self.size.0, self.size.1) == Class::Wide
    }

    /// The selected round's decisions, worked out when there is another round or record.
    fn decided(&mut self) {
        let round = self.looked_at().map_or(0, |e| e.round);
        if self.looking.decided == Some((round, self.state.seq)) {
            return;
        }
        let ids = self.state.round_at(round).map(|r| r.recipe.as_slice()).unwrap_or_default();
        let decisions = ids.iter().filter_map(|id| self.state.decision(*id)).filter(|d| d.action != Action::Keep);
        let with_change = |d: &Decision| (d.clone(), self.forecasts.scanned(&self.state, std::slice::from_ref(d)));
        let mut decisions: Vec<_> = decisions.map(with_change).collect();
        decisions.sort_by(|(_, a), (_, b)| a.unwrap_or(0.0).total_cmp(&b.unwrap_or(0.0)));
        (self.looking.decisions, self.looking.decided) = (decisions, Some((round, self.state.seq)));
    }

    /// Brings up to date what view 2 shows, and asks for what is missing.
    pub(super) fn look(&mut self) {
        if self.shows_all() {
            self.decided();
        }
        let Some(page) = self.page().filter(|_| self.connected) else { return };
        let here = self.looking.changed.as_ref().is_some_and(|c| c.asked == page);
        if !here && self.looking.asked != Some(page) {
            self.looking.asked = Some(page);
            self.effects.push(Effect::Send(Command::Changed { what: page }));
        }
        if here && (self.shows_all() || self.looking.part == Part::Changed) {
            self.looking.pictures.prepare(self.looking.changed.as_ref());
        }
        self.read();
    }

    /// The host told what changed; another terminal may have asked.
    pub(super) fn heard_changed(&mut self, changed: Changed) {
        let mine = self.page() == Some(changed.asked);
        if self.looking.asked == Some(changed.asked) {
            self.looking.asked = None;
        }
        if mine {
            self.looking.changed = Some(changed);
            self.looking.pictures.clear();
            self.outlook_stale = true;
        }
    }

    /// The view is opened: what could not be told may be there by now.
    pub(super) fn look_again(&mut self) {
        if self.looking.changed.as_ref().is_some_and(|c| c.why.is_some()) {
            self.forget_changed();
        }
    }

    /// Rounds were evaluated anew: what was told of them may be of another model.
    pub(super) fn forget_changed(&mut self) {
        (self.looking.asked, self.looking.changed) = (None, None);
        self.looking.pictures.clear();
        self.looking.reading.forget();
    }

    /// How sure the original and the round that is looked at are; `None` where that is not told.
    pub fn calibration(&self) -> Option<&Calibration> {
        self.what_changed()?.calibration.as_ref()
    }

    /// The bin of confidence that is told exactly; `None` where there are none.
    pub fn shown_bin(&self) -> Option<usize> {
        let of = self.calibration()?;
        let heaviest = of.now.as_ref().or(of.before.as_ref())?.heaviest();
        Some(self.looking.bin.or(heaviest)?.min(BINS - 1))
    }

    /// Items that changed the way that is shown.
    pub fn changed_items(&self) -> usize {
        self.what_changed().map_or(0, |c| if self.looking.way == Way::Lost { c.lost } else { c.gained })
    }

    /// Moves what is selected; `false` where the pane with the keys only scrolls.
    pub(super) fn step_evaluate(&mut self, by: isize) -> bool {
        match self.looking.part {
            Part::Rounds => {
                let all: Vec<u32> = self.evaluations().iter().map(|e| e.round).collect();
                let now = self.looked_at().and_then(|e| all.iter().position(|r| *r == e.round)).unwrap_or(0);
                let Some(&to) = all.get(now.saturating_add_signed(by).min(all.len().saturating_sub(1))) else {
                    return true;
                };
                // The newest stays the newest when another is added.
                self.looking.round = (Some(&to) != all.last()).then_some(to);
                (self.looking.item, self.looking.bin, self.scroll) = (0, None, 0);
            }
            Part::Changed if self.read_by_token().is_some() => drop(self.step_token_line(by)),
            Part::Changed => {
                let last = self.changed_items().saturating_sub(1);
                self.looking.item = self.looking.item.saturating_add_signed(by).min(last);
            }
            Part::Calibration => {
                let Some(bin) = self.shown_bin() else { return true };
                self.looking.bin = Some(bin.saturating_add_signed(by).min(BINS - 1));
            }
            Part::Classes => return false,
        }
        self.outlook_stale = true;
        true
    }

    /// The next of view 2's panes, round and round; a task without classes has none of them.
    pub(super) fn next_part(&mut self, forward: bool) {
        let classes = self.has_classes();
        let parts: Vec<Part> = Part::ALL.into_iter().filter(|p| classes || *p != Part::Classes).collect();
        let at = parts.iter().position(|p| *p == self.looking.part).unwrap_or(0);
        let to = (at + if forward { 1 } else { parts.len() - 1 }) % parts.len();
        self.go_part(parts[to]);
    }

    fn go_part(&mut self, part: Part) {
        (self.looking.part, self.looking.large, self.scroll) = (part, false, 0);
        self.outlook_stale = true;
    }

    /// `enter` in view 2: into the round's items, and into one of them.
    pub(super) fn enter_evaluate(&mut self) {
        match self.looking.part {
            Part::Rounds | Part::Classes | Part::Calibration if self.page().is_none() => {
                let run = self.label(Act::Run);
                self.nothing(format!("the original is what rounds are held against; {run} makes a round"))
            }
            Part::Rounds | Part::Classes | Part::Calibration => self.go_part(Part::Changed),
            Part::Changed if self.changed_items() == 0 => self.nothing("no item to look at"),
            Part::Changed => {
                // What could not be told is asked for again.
                let again = self.looking.reading.again();
                (self.looking.large, self.outlook_stale) = (again || !self.looking.large, true);
            }
        }
    }

    /// `esc` in view 2: one step back; `false` where there is none.
    pub(super) fn leave_evaluate(&mut self) -> bool {
        match (self.looking.part, self.looking.large) {
            (Part::Rounds, _) => return false,
            (_, true) => self.looking.large = false,
            (_, false) => self.go_part(Part::Rounds),
        }
        true
    }

    /// Items that were lost, or those that were gained.
    pub(super) fn other_way(&mut self) {
        if self.page().is_none() {
            let run = self.label(Act::Run);
            return self.nothing(format!("nothing changed yet; {run} makes a round"));
        }
        (self.looking.way, self.looking.item) = (self.looking.way.other(), 0);
        self.go_part(Part::Changed);
    }
}
