//! View 4's cursor: which event it is on, which one is seen first, and going back to the decisions that stood after it.
//!
//! Both are kept by number, so that nothing moves while events arrive. Not here: drawing (`draw/text`), what comes back (`host/commands/restore`).

use super::app::{App, View};
use super::draw;
use super::layout::inside;
use crate::config::Act;
use crate::session::{Command, Seq, TimelineEntry};

/// Events by their number; none: the newest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Past {
    at: Option<Seq>,
    top: Option<Seq>,
}

impl App {
    /// The place of an event among the timeline's, the newest first.
    fn place(&self, seq: Option<Seq>) -> usize {
        let all = &self.state.timeline;
        let after = seq.map_or(0, |seq| all.len() - all.partition_point(|e| e.seq <= seq));
        after.min(all.len().saturating_sub(1))
    }

    /// Places of the event under the cursor and of the first that is seen.
    pub fn past_places(&self) -> (usize, usize) {
        (self.place(self.past.at), self.place(self.past.top))
    }

    /// The event under the cursor.
    pub fn past_event(&self) -> Option<&TimelineEntry> {
        self.state.timeline.iter().rev().nth(self.place(self.past.at))
    }

    /// Moves the cursor by events, towards older ones where `by` is positive.
    pub(super) fn step_past(&mut self, by: isize) {
        self.past_to(self.place(self.past.at).saturating_add_signed(by));
    }

    /// Moves the cursor to the event at a place, and what is seen with it.
    pub(super) fn past_to(&mut self, place: usize) {
        let all = &self.state.timeline;
        let Some(last) = all.len().checked_sub(1) else { return };
        let (at, mut top) = (place.min(last), self.place(self.past.top));
        let area = inside(self.layout().body);
        // As many events as are seen above the cursor's last line.
        let (mut room, mut highest) = (usize::from(area.height), at);
        for i in (0..=at).rev() {
            let height = draw::event_lines(self, &all[last - i], area.width).len();
            if height > room {
                break;
            }
            (room, highest) = (room - height, i);
        }
        top = top.clamp(highest, at);
        let seq = |place: usize| (place > 0).then(|| all[last - place].seq);
        self.past = Past { at: seq(at), top: seq(top) };
    }

    /// Goes back to the decisions that stood after the event under the cursor.
    pub(super) fn restore(&mut self) {
        debug_assert!(self.view == View::Timeline);
        let Some(seq) = self.past_event().map(|e| e.seq) else {
            return self.nothing("nothing has happened yet: there is nothing to go back to");
        };
        if !self.reviewable() {
            let [accept, back, stop] = [Act::Accept, Act::RollBack, Act::Interrupt].map(|act| self.label(act));
            return self.nothing(match self.state.phase {
                crate::session::Phase::Verdict => {
                    format!(
                        "the round waits: {accept} accepts it, {back} rolls it back; then decisions can be brought back"
                    )
                }
                _ => format!("a run is under way; {stop} interrupts it, or wait: then decisions can be brought back"),
            });
        }
        self.with_commit(Command::Restore { seq });
    }
}
