//! Looking for words in panes of text (timeline, report, what agents say), and for the layers that agents speak of.
//!
//! Nothing is filtered: the text moves to the next line that has the words, which are marked where they are seen (`draw/marks`). Not here: the
//! filter of the layer list (`list`).

use super::app::{App, Level, Pane, View};
use super::layout::inside;
use super::list::RowRef;
use crate::config::Act;
use crate::config::text::clean;

/// What is looked for in text.
#[derive(Debug, Clone, Default)]
pub struct Sought {
    pub words: String,
    /// The line where they were found last.
    at: Option<usize>,
}

impl App {
    /// The keys are on a pane of text that can be searched.
    pub(super) fn on_text(&self) -> bool {
        match self.view {
            View::Timeline | View::Report | View::Agents => true,
            View::Review => self.pane == Pane::Agents,
            View::Evaluate | View::Control | View::Plans | View::Inspect | View::Profile => false,
        }
    }

    /// Lines of the text that has the keys, as they are scrolled.
    fn text_rows(&self) -> Vec<String> {
        match self.view {
            View::Timeline => self.state.timeline.iter().rev().map(|e| clean(&e.text).into_owned()).collect(),
            View::Report => super::draw::report_rows(self),
            View::Agents => self.full.lines().map(|l| l.text.clone()).collect(),
            View::Review => self.brief.lines().map(|l| l.text.clone()).collect(),
            View::Evaluate | View::Control | View::Plans | View::Inspect | View::Profile => Vec::new(),
        }
    }

    /// Begins to look for `words` in the text that has the keys.
    pub(super) fn seek(&mut self, words: String) {
        self.sought = Sought { words, at: None };
        if !self.sought.words.is_empty() {
            self.seek_next(true);
        }
    }

    /// Moves to the next line that has the words, or to the one before, round the ends.
    pub(super) fn seek_next(&mut self, forward: bool) {
        let search = self.label(Act::Search);
        if self.sought.words.is_empty() {
            return self.nothing(format!("{search} looks for words in this text"));
        }
        let words = self.sought.words.to_lowercase();
        let rows = self.text_rows();
        let hits: Vec<usize> =
            (rows.iter().enumerate()).filter(|(_, row)| row.to_lowercase().contains(&words)).map(|(i, _)| i).collect();
        let next = match (self.sought.at, forward) {
            (Some(at), true) => hits.iter().position(|i| *i > at).or(Some(0)),
            (Some(at), false) => hits.iter().rposition(|i| *i < at).or(hits.len().checked_sub(1)),
            (None, _) => Some(0),
        };
        let Some((n, line)) = next.and_then(|n| Some((n, *hits.get(n)?))) else {
            let words = clean(&self.sought.words).into_owned();
            return self.say(Level::Warn, format!("no line here has `{words}`; {search} looks for others"));
        };
        self.sought.at = Some(line);
        let l = self.layout();
        let height = |area| inside(area).height as usize;
        match self.view {
            View::Agents => self.full.show(line, height(l.body)),
            View::Review => self.brief.show(line, height(l.agents)),
            View::Timeline => self.past_to(line),
            _ => self.scroll = line.min(super::draw::text_lines(self).saturating_sub(height(l.body))),
        }
        self.nothing(format!("line {} of {} with it", n + 1, hits.len()));
    }

    /// Layers and blocks that the agents spoke of, the last first: up from the end of what is seen of their pane.
    fn mentioned(&self) -> Vec<RowRef> {
        let pane = if self.view == View::Agents { &self.full } else { &self.brief };
        let rows: Vec<&str> = pane.lines().map(|l| l.text.as_str()).collect();
        let seen = rows.len().saturating_sub(pane.back);
        let mut out: Vec<RowRef> = Vec::new();
        for row in rows[..seen].iter().rev() {
            let names: Vec<&str> = names(row).map(|(_, name)| name).collect();
            for row in names.into_iter().rev().filter_map(|name| self.row_called(name)) {
                if !out.contains(&row) {
                    out.push(row);
                }
            }
        }
        out
    }

    /// The row of a layer or a block of exactly that name.
    pub(super) fn row_called(&self, name: &str) -> Option<RowRef> {
        let layer = self.table.index_of(name).map(RowRef::Layer);
        layer.or_else(|| self.table.blocks.iter().position(|b| b.name == name).map(RowRef::Block))
    }

    /// Moves the cursor to the row that agents spoke of last; from there to the one that they spoke of before.
    pub(super) fn go_to_mentioned(&mut self) {
        let all = self.mentioned();
        let here = self.list.current().and_then(|row| all.iter().position(|m| *m == row));
        let n = here.map_or(0, |i| (i + 1) % all.len());
        let Some(row) = all.get(n).copied() else {
            return self.nothing("the agents have named no layer here");
        };
        self.show(View::Review);
        // A folded block is opened, and a filter that hides the row dropped.
        if let RowRef::Layer(i) = row
            && let Some(block) = self.table.layers.get(i).and_then(|l| self.table.blocks.get(l.block?))
        {
            let name = block.name.clone();
            self.list.folded.remove(&name);
        }
        self.refilter();
        if !self.list.shown.contains(&row) {
            self.list.filter.clear();
            self.refilter();
        }
        if let Some(i) = self.list.shown.iter().position(|r| *r == row) {
            self.go(i as isize - self.list.cursor as isize);
        }
        self.nothing(format!("{} of {} rows that the agents named here, the last first", n + 1, all.len()));
    }
}

/// Words of `text` that may be names of layers, each with the byte that it begins at.
pub fn names(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let letter = |c: char| c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '/');
    text.split(move |c| !letter(c))
        .map(move |word| {
            let at = word.as_ptr() as usize - text.as_ptr() as usize;
            let name = word.trim_end_matches(['.', '-', '/']);
            (at, name)
        })
        .filter(|(_, name)| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cut_out_of_sentences() {
        let of: Vec<(usize, &str)> = names("Cut `blocks.0.mlp.fc1` (and layer1.0.conv2).").collect();
        assert_eq!(of, [(0, "Cut"), (5, "blocks.0.mlp.fc1"), (24, "and"), (28, "layer1.0.conv2")]);
        assert_eq!(names("…é blocks.1").collect::<Vec<_>>(), [(3, "é"), (6, "blocks.1")], "in bytes");
        assert_eq!(names("").count() + names("… ( )").count(), 0);
    }
}
