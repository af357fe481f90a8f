//! Lines above the panes that stay as long as they are true: what failed, what waits for the engineer, what figures rest on.
//!
//! Not here: what passes (`App::say`), drawing (`draw`).

use super::app::{App, Level};
use crate::config::Act;
use crate::config::text::clean;

impl App {
    /// Warnings that stay as long as they are true.
    pub fn banners(&self) -> Vec<(Level, String)> {
        let mut out = Vec::new();
        if let Some(f) = &self.state.failure {
            out.push((Level::Bad, format!("failed: {}", clean(f))));
        }
        if let Some(question) = &self.question {
            out.push((Level::Warn, format!("{} answers the agents: {}", self.label(Act::Note), clean(question))));
        }
        if let Some(s) = self.state.suggested.last() {
            let (words, more) = (clean(&s.words), self.state.suggested.len() - 1);
            let more = if more > 0 { format!(" (and {more} before)") } else { String::new() };
            let n = crate::words::counted(s.constraints.len(), "target");
            out.push((
                Level::Warn,
                format!("read in your note: {words}, {n}{more}; `:bind` makes it yours, `:bind off` lets it go"),
            ));
        }
        let newest = self.state.evaluation().and_then(|e| Some((e.round, crate::session::part(e)?)));
        if let Some((round, part)) = newest {
            out.push((Level::Warn, format!("round {round}: {part}; `:evaluate-all` looks at the others")));
        }
        if let Some(card) = &self.state.card {
            let mut warn = |text: String| out.push((Level::Warn, text));
            if card.calib_is_eval {
                let item = card.metric().item;
                warn(format!("calibration {item}s are evaluation {item}s: accuracy figures are flattered"));
            }
            if let Some(text) = self.state.baseline().and_then(|e| e.metrics.guess_warning()) {
                warn(text);
            }
            if card.model.preprocess.assumed() && !self.notes_hidden {
                let key = self.label(Act::Cancel);
                warn(format!("preprocessing is assumed (family default): --mean, --std; {key} hides this"));
            }
        }
        out
    }
}
