//! Any pane as plain text: what is copied is what is shown, with whole tables.

use super::app::{App, Pane, View};
use super::columns::Column;
use super::list::RowRef;
use super::num;
use super::readings::Readings;
use super::standing::word;
use crate::config::text::{clean, clean_lines};
use crate::session::action_text;
use std::fmt::Write;

impl App {
    /// The text of the pane that has the keys, for copying.
    pub fn pane_text(&self) -> String {
        let mut o = String::new();
        match (self.view, self.pane) {
            (View::Review, Pane::Layers) => {
                let columns = self.columns.shown();
                let headings: Vec<&str> = columns.iter().map(|c| self.columns.heading(*c)).collect();
                let _ = writeln!(o, "layer\t{}", headings.join("\t"));
                let held: Vec<Readings> = columns.iter().map(|c| self.readings(*c)).collect();
                for r in &self.list.shown {
                    let name = match *r {
                        RowRef::Block(b) => self.table.blocks.get(b).map(|b| b.label.clone()),
                        RowRef::Layer(i) => self.table.layers.get(i).map(|l| format!("  {}", clean(&l.name))),
                    };
                    let Some(name) = name else { continue };
                    let told = |(c, held): (&Column, &Readings)| held.of(*r).map_or("-".into(), |v| self.told(*c, v));
                    let figures: Vec<String> = columns.iter().zip(&held).map(told).collect();
                    let _ = writeln!(o, "{name}\t{}", figures.join("\t"));
                }
            }
            (View::Review, Pane::Agents) | (View::Agents, _) => {
                for t in &self.turns {
                    let _ = writeln!(o, "## {} {}", t.role, t.model);
                    for (reasoning, text) in &t.pieces {
                        let _ = writeln!(o, "{}{text}", if *reasoning { "(reasoning) " } else { "" });
                    }
                }
            }
            (View::Review, Pane::Decision) => {
                for s in self.row_shown() {
                    let _ = writeln!(
                        o,
                        "{}: {} ({})",
                        clean(&s.target.to_string()),
                        action_text(&s.action),
                        word(s.standing)
                    );
                    if let Some(d) = s.id.and_then(|id| self.state.decision(id)) {
                        let _ = writeln!(o, "  by {}: {}", clean(&d.author.to_string()), clean_lines(&d.rationale));
                    }
                }
            }
            (View::Timeline, _) => {
                for e in &self.state.timeline {
                    let undone = if e.undone { " (undone)" } else { "" };
                    let _ = writeln!(o, "{}\t{}\t{}{undone}", e.seq, num::clock(e.at_ms), clean(&e.text));
                }
            }
            (View::Control, _) => {
                for line in super::draw::control::lines(self, 120) {
                    let _ = writeln!(o, "{}", line.to_string().trim_end());
                }
            }
            (View::Plans, _) => {
                for line in super::draw::plans::lines(self, 120) {
                    let _ = writeln!(o, "{}", line.to_string().trim_end());
                }
            }
            (View::Inspect, _) => {
                for line in super::draw::inspect::lines(self, 120) {
                    let _ = writeln!(o, "{}", line.to_string().trim_end());
                }
            }
            (View::Profile, _) => {
                for line in super::draw::profile::lines(self, 120) {
                    let _ = writeln!(o, "{}", line.to_string().trim_end());
                }
            }
            (View::Evaluate | View::Report, _) => o = super::report::markdown(self),
        }
        o
    }
}
