//! The dialog behind `K`: what the row, the column that it is sorted by and the words on the screen mean.
//!
//! Here: what it holds and how typing changes that. Not here: the words (`glossary`), drawing (`draw/explain`). Invariant: what is on the screen is read off
//! the screen as it was drawn.

use super::app::{App, Level, View};
use super::columns::Column;
use super::draw;
use super::glossary::{self, Word};
use super::list::RowRef;
use super::modal::{LINE_BYTES, Modal};
use super::num;
use crate::config::columns::{OwnColumn, variables};
use crate::config::suggestion;
use crate::config::text::clean;
use crate::words::counted;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

/// What the dialog holds.
#[derive(Debug, Clone, Default)]
pub struct Explain {
    /// Of the row under the cursor: what, and how it was measured.
    pub about: Vec<(String, String)>,
    /// Words on the screen, by their places in the glossary.
    pub seen: Vec<usize>,
    /// What was typed.
    pub filter: String,
    pub scroll: usize,
}

/// Words with what they have in common.
pub struct Section {
    pub title: &'static str,
    pub words: Vec<Word>,
}

impl Explain {
    pub fn key(&mut self, k: KeyEvent) {
        match k.code {
            KeyCode::Down => self.scroll += 1,
            KeyCode::Up => self.scroll = self.scroll.saturating_sub(1),
            KeyCode::PageDown => self.scroll += 10,
            KeyCode::PageUp => self.scroll = self.scroll.saturating_sub(10),
            KeyCode::Home => self.scroll = 0,
            KeyCode::End => self.scroll = usize::MAX / 2,
            KeyCode::Backspace => {
                self.filter.pop();
                self.scroll = 0;
            }
            KeyCode::Char(c) if !k.modifiers.contains(KeyModifiers::CONTROL) && self.filter.len() < LINE_BYTES => {
                self.filter.push(c);
                self.scroll = 0;
            }
            _ => {}
        }
    }

    /// Takes what was pasted, which is safe text; what goes beyond the bound is left out, and that is said.
    pub fn paste(&mut self, text: &str) -> Option<String> {
        let room = LINE_BYTES.saturating_sub(self.filter.len());
        let end = (0..=room.min(text.len())).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0);
        self.filter.push_str(&text[..end]);
        self.scroll = 0;
        let rest = text.len() - end;
        (rest > 0).then(|| format!("{rest} bytes of the paste were left out"))
    }

    /// The words that are told: those on the screen, then the others; of what was typed those that are called so, then those that speak of it.
    pub fn sections(&self) -> Vec<Section> {
        let typed = self.filter.trim().to_lowercase();
        let all: Vec<Word> = glossary::words().collect();
        let (first, second): (Vec<_>, Vec<_>) = match typed.as_str() {
            "" => (0..all.len()).partition(|i| self.seen.contains(i)),
            _ => {
                let named = |i: &usize| all[*i].is(&typed) || all[*i].term.to_lowercase().contains(&typed);
                let (named, rest): (Vec<_>, Vec<_>) = (0..all.len()).partition(named);
                (named, rest.into_iter().filter(|i| all[*i].says.to_lowercase().contains(&typed)).collect())
            }
        };
        let of = |places: Vec<usize>| -> Vec<Word> { places.into_iter().map(|i| all[i]).collect() };
        let titles = if typed.is_empty() { ["on this screen", "other words"] } else { ["called so", "speaking of it"] };
        let mut words = [of(first), of(second)];
        if let Some(exact) = words[0].iter().position(|w| w.is(&typed)) {
            words[0][..=exact].rotate_right(1);
        }
        titles
            .into_iter()
            .zip(words)
            .map(|(title, words)| Section { title, words })
            .filter(|s| !s.words.is_empty())
            .collect()
    }
}

/// A column that the user wrote: its expression, and the units of what stands in it.
fn about_own(own: &OwnColumn) -> (String, String) {
    let needs = own.expression.needs();
    let units = variables().filter(|v| needs.iter().any(|n| n == v.name)).map(|v| format!("{} in {}", v.name, v.unit));
    let units: Vec<String> = units.collect();
    let with = if units.is_empty() { String::new() } else { format!(", with {}", units.join("; ")) };
    let says = format!(
        "a column of your own: {}{with}. Empty where one of these is not known, or it comes to no number.",
        own.expression
    );
    (own.name.clone(), says)
}

impl App {
    /// Opens the dialog, at `word` where one is asked for.
    pub(super) fn explain(&mut self, word: &str) {
        let area = Rect::new(0, 0, self.size.0, self.size.1);
        let mut buf = Buffer::empty(area);
        draw::draw_on(self, area, &mut buf);
        let line = |y: u16| (0..area.width).map(|x| buf[(x, y)].symbol()).collect::<String>();
        let lines: Vec<String> = (0..area.height).map(line).collect();
        let about = if word.is_empty() { self.about_the_row() } else { Vec::new() };
        let explain = Explain { about, seen: glossary::on(&lines), filter: word.to_owned(), scroll: 0 };
        self.modal = Some(Modal::Explain(Box::new(explain)));
    }

    /// `:explain WORD`: a column of the user's own, or a word of the glossary.
    pub(super) fn explain_word(&mut self, word: &str) {
        if let Some(own) = self.columns.own().iter().find(|o| o.name == word) {
            let about = vec![about_own(own)];
            let explain = Explain { about, ..Explain::default() };
            self.modal = Some(Modal::Explain(Box::new(explain)));
            return;
        }
        match glossary::find(word) {
            Some(word) => self.explain(word.term),
            None => {
                let own = self.columns.own().iter().map(|o| o.name.as_str());
                let hint = suggestion(word, glossary::words().map(|w| w.term).chain(own));
                self.say(Level::Bad, format!("no word `{word}` in the glossary; hint: {hint}"));
            }
        }
    }

    pub(super) fn clamp_explained(&mut self) {
        let inner = super::layout::inside(self.layout().body);
        let Some(Modal::Explain(e)) = &self.modal else { return };
        let most = draw::explain::lines(&self.palette, e, usize::from(inner.width)).len();
        let most = most.saturating_sub(usize::from(inner.height));
        if let Some(Modal::Explain(e)) = &mut self.modal {
            e.scroll = e.scroll.min(most);
        }
    }

    /// What is to be said of the row under the cursor and of the column that the list is sorted by, where the view has them.
    fn about_the_row(&self) -> Vec<(String, String)> {
        if !matches!(self.view, View::Review | View::Inspect | View::Profile) {
            return Vec::new();
        }
        let mut out = Vec::new();
        if self.view == View::Review
            && let Some(Column::Figure(figure)) = self.list.sort
            && let Some(word) = glossary::find(figure.heading())
        {
            out.push((format!("sorted by {}", figure.heading()), word.says.to_owned()));
        }
        if self.view == View::Review {
            let own = self.columns.shown().into_iter().filter_map(|column| match column {
                Column::Own(i) => self.columns.own().get(i),
                Column::Figure(_) => None,
            });
            out.extend(own.map(about_own));
        }
        let block = match self.list.current() {
            Some(RowRef::Block(b)) if self.view != View::Profile => self.table.blocks.get(b),
            _ => None,
        };
        if let Some(block) = block {
            let words = format!(
                "a block of {}: times, bytes, MACs and params are their sums, sens the largest of theirs.",
                counted(block.layers.len(), "row")
            );
            out.push((block.label.clone(), words));
        } else if let Some(layer) = self.pointed() {
            out.push((clean(&layer.name).into_owned(), self.measured_how(layer)));
        }
        out
    }

    fn measured_how(&self, layer: &super::table::Layer) -> String {
        let round = self.table.of_round.unwrap_or(0);
        let profile = if self.tokens { self.state.decoding_of(round) } else { self.state.profile_of(round) };
        let mut said = vec![clean(&layer.kind).into_owned()];
        match (&layer.row, profile) {
            (Some(row), Some(profile)) => {
                let of = if round == 0 { "the original".to_owned() } else { format!("round {round}'s model") };
                said.push(format!("measured on {of}, {}", clean(&profile.device)));
                said.push(format!(
                    "p50 {} ms: the median of {} of a batch of {}, {} ms as observed, times {:.3} to be a part of the whole model's {} ms",
                    num::ms(profile.ms(row)),
                    counted(row.latency.n, "run"),
                    profile.batch,
                    num::ms(row.latency.p50),
                    profile.scale(),
                    num::ms(profile.whole.p50)
                ));
                said.push(format!("it ran as {} in {}", clean(&row.kernel), row.precision.label()));
                if !row.fused.is_empty() {
                    said.push(format!("with {} fused into it", clean(&row.fused.join(", "))));
                }
                if let Some(why) = profile.doubt_of(row) {
                    said.push(format!("in doubt: {why}"));
                }
            }
            _ => said.push("not measured yet: MACs, params and bytes are counted from the graph".to_owned()),
        }
        if let Some(sampled) = profile.and_then(|p| p.sampled) {
            said.push(format!(
                "{} of {} blocks were measured, the others stand for their twins",
                sampled.measured, sampled.blocks
            ));
        }
        format!("{}.", said.join("; "))
    }
}
