//! The precision picker: what is known of the rows that a decision is for in every precision that there is, and which of them is under the cursor.
//!
//! Not here: the figures (`inspect`), drawing (`draw/picker`). Invariant: what cannot be taken is listed with its reason, and not taken.

use super::app::{App, Level};
use super::inspect::Format;
use super::modal::Modal;
use crate::quant::Precision;
use crossterm::event::{KeyCode, KeyEvent};

#[derive(Debug, Clone, Default)]
pub struct Picker {
    /// The rows.
    pub layers: Vec<String>,
    pub formats: Vec<Format>,
    pub at: usize,
}

impl App {
    /// Opens the picker, on the precision that is shown.
    pub(super) fn pick_precision(&mut self) {
        let layers = self.precise(&self.acted());
        if layers.is_empty() {
            return self.nothing("there are no weights to quantize here");
        }
        // An edit in progress counts as decided.
        self.commit();
        let formats = self.all_formats(&layers);
        let at = formats.iter().position(|f| f.shown).unwrap_or(0);
        self.modal = Some(Modal::Precisions(Box::new(Picker { layers, formats, at })));
    }

    fn all_formats(&self, layers: &[String]) -> Vec<Format> {
        let language = self.state.card.as_ref().is_some_and(|c| c.graph.is_language_model());
        let mut all: Vec<Format> = Precision::menu(language).iter().map(|p| self.format(layers, *p)).collect();
        // What can be had comes first.
        all.sort_by_key(|f| f.takes == 0);
        all
    }

    /// Keeps the figures of an open picker true while the session goes on.
    pub(super) fn refresh_picker(&mut self) {
        let Some(Modal::Precisions(p)) = &self.modal else { return };
        let on = p.formats.get(p.at).map(|f| f.precision);
        let formats = self.all_formats(&p.layers);
        if let Some(Modal::Precisions(p)) = &mut self.modal {
            p.at = formats.iter().position(|f| Some(f.precision) == on).unwrap_or(0);
            p.formats = formats;
        }
    }

    /// A key while the picker is open.
    pub(super) fn picker_key(&mut self, k: KeyEvent) {
        let Some(Modal::Precisions(p)) = &mut self.modal else { return };
        let last = p.formats.len().saturating_sub(1);
        match k.code {
            KeyCode::Down | KeyCode::Char('j') => p.at = (p.at + 1).min(last),
            KeyCode::Up | KeyCode::Char('k') => p.at = p.at.saturating_sub(1),
            KeyCode::Home | KeyCode::Char('g') => p.at = 0,
            KeyCode::End | KeyCode::Char('G') => p.at = last,
            KeyCode::Enter => match p.formats.get(p.at).cloned() {
                Some(f) if f.takes > 0 => {
                    self.modal = None;
                    self.set_precision(f.precision);
                    self.commit();
                }
                Some(f) => self.say(Level::Warn, f.why.unwrap_or_else(|| "no row takes it".to_owned())),
                None => self.modal = None,
            },
            _ => self.modal = None,
        }
    }
}
