//! The mouse: what lies under the pointer is what its keys mean there. Whoever holds shift has the terminal's own selection of text, and `mouse = false`
//! leaves the mouse to the terminal altogether.

use super::app::{App, Pane, View};
use super::draw;
use super::layout::{Border, Layout, inside};
use super::list::RowRef;
use super::modal::Modal;
use crate::config::Act;
use crossterm::event::{MouseButton, MouseEvent, MouseEventKind};
use ratatui::layout::{Position, Rect};

/// Lines of one notch of the wheel.
const NOTCH: isize = 3;
/// Two presses within so many milliseconds are one act.
const DOUBLE_MS: i64 = 400;
/// The word of the first tab, where panes are tabs, and its border.
const FIRST_TAB: u16 = 2 + "agents".len() as u16;

/// What the mouse is about.
#[derive(Debug, Clone, Default)]
pub struct Pointer {
    /// The row that was pressed last, at which column, and when.
    last: Option<(i64, u16, RowRef)>,
    /// The column from which a ratio is dragged.
    from: Option<u16>,
    /// The border that is pulled, and whether it moved.
    border: Option<(Border, bool)>,
}

impl App {
    pub(super) fn mouse(&mut self, m: MouseEvent) {
        let at = Position { x: m.column, y: m.row };
        match m.kind {
            MouseEventKind::ScrollDown => self.wheel(at, 1),
            MouseEventKind::ScrollUp => self.wheel(at, -1),
            MouseEventKind::Down(MouseButton::Left) => self.press(at),
            MouseEventKind::Drag(MouseButton::Left) => match self.pointer.border {
                Some((border, _)) if self.view == View::Review => {
                    self.pointer.border = Some((border, true));
                    self.pull_border(border, at);
                }
                _ => self.pull(at.x),
            },
            MouseEventKind::Up(_) => {
                self.pointer.from = None;
                if self.pointer.border.take().is_some_and(|(_, moved)| moved) {
                    self.keep_layout();
                }
            }
            _ => {}
        }
    }

    /// The pane of the review view under the pointer.
    fn pane_at(&self, l: &Layout, at: Position) -> Option<Pane> {
        let tabs = l.tabs && l.card.contains(at);
        match self.view {
            View::Review if l.list.contains(at) => Some(Pane::Layers),
            // The title has both names; below it lies the one that is shown.
            View::Review if tabs && at.y == l.card.y => {
                Some(if at.x <= l.card.x + FIRST_TAB { Pane::Agents } else { Pane::Decision })
            }
            View::Review if tabs && self.pane == Pane::Agents => Some(Pane::Agents),
            View::Review if l.card.contains(at) => Some(Pane::Decision),
            View::Review if l.agents.contains(at) => Some(Pane::Agents),
            _ => None,
        }
    }

    fn wheel(&mut self, at: Position, way: isize) {
        let lines = NOTCH.unsigned_abs();
        match &mut self.modal {
            Some(Modal::Help { scroll }) => {
                *scroll = scroll.saturating_add_signed(way * NOTCH);
                return self.clamp_help();
            }
            Some(Modal::Precisions(p)) => {
                p.at = p.at.saturating_add_signed(way).min(p.formats.len().saturating_sub(1));
                return;
            }
            Some(_) => return,
            None => {}
        }
        match self.pane_at(&self.layout(), at) {
            Some(Pane::Layers) => self.go(way * NOTCH),
            Some(Pane::Agents) => {
                let height = inside(self.layout().agents).height as usize;
                match way < 0 {
                    true => self.brief.up(lines, height),
                    false => self.brief.down(lines),
                }
            }
            Some(Pane::Decision) => {}
            None if self.view == View::Review => {}
            None => (0..lines).for_each(|_| self.act(if way > 0 { Act::Down } else { Act::Up })),
        }
    }

    fn press(&mut self, at: Position) {
        self.list.untouched = false;
        (self.pointer.from, self.pointer.border) = (None, None);
        if self.modal.is_some() {
            return self.nothing("a dialog is open; esc leaves it");
        }
        let l = self.layout();
        if let Some(act) = draw::footer::act_at(self, l.footer, at) {
            self.message = None;
            return self.act(act);
        }
        self.pointer.border = l.border_at(at).filter(|_| self.view == View::Review).map(|border| (border, false));
        let Some(pane) = self.pane_at(&l, at) else { return };
        (self.pane, self.outlook_stale) = (pane, true);
        match pane {
            _ if self.pointer.border.is_some() => {}
            Pane::Layers => self.press_row(l.list, at),
            // The card is of the row's ratio.
            Pane::Decision => self.pointer.from = Some(at.x),
            Pane::Agents => {}
        }
    }

    fn press_row(&mut self, list: Rect, at: Position) {
        let inner = inside(list);
        let line = at.y.checked_sub(inner.y + 1).filter(|_| inner.contains(at));
        let Some(i) = line.map(|line| self.list.offset + line as usize) else { return };
        let Some(row) = self.list.shown.get(i).copied() else { return };
        self.go(i as isize - self.list.cursor as isize);
        // A hand shakes by a column.
        let again =
            |(when, x, old): (i64, u16, RowRef)| old == row && x.abs_diff(at.x) <= 1 && self.now_ms - when <= DOUBLE_MS;
        let twice = self.pointer.last.is_some_and(again);
        self.pointer.last = (!twice).then_some((self.now_ms, at.x, row));
        match row {
            RowRef::Block(_) if twice => self.act(Act::ToggleFold),
            RowRef::Layer(_) if twice => self.act(Act::View8),
            _ if draw::layers::is_plan(self, inner, at.x) => self.pointer.from = Some(at.x),
            _ => {}
        }
    }

    /// Drags the ratio: a column to the right removes a step more.
    fn pull(&mut self, x: u16) {
        let Some(from) = self.pointer.from else { return };
        let steps = isize::from(x as i16) - isize::from(from as i16);
        if steps != 0 && self.view == View::Review {
            self.pointer.from = Some(x);
            self.decide(|app| app.drag(steps));
        }
    }
}
