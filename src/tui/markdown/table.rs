//! Tables as aligned columns.

use super::inline::{Look, Rendered};
use crate::config::text::width;
use pulldown_cmark::Alignment;

/// Columns between two columns.
const GAP: usize = 2;

pub(super) struct Table {
    columns: Vec<Alignment>,
    rows: Vec<Vec<Rendered>>,
    row: Vec<Rendered>,
}

impl Table {
    pub fn new(columns: Vec<Alignment>) -> Table {
        Table { columns, rows: Vec::new(), row: Vec::new() }
    }

    pub fn cell(&mut self, mut words: Rendered) {
        words.trim_end();
        self.row.push(words);
    }

    pub fn end_row(&mut self) {
        self.rows.push(std::mem::take(&mut self.row));
    }

    /// Its lines, the heading's underlined; none where they are wider than `room`.
    pub fn lines(mut self, room: usize) -> Option<Vec<Rendered>> {
        let widest = |i: usize| self.rows.iter().filter_map(|r| r.get(i)).map(|c| width(&c.text)).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.columns.len()).map(widest).collect();
        if widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1) > room {
            return None;
        }
        for cell in self.rows.first_mut().into_iter().flatten() {
            cell.looks = vec![(0..cell.text.len(), Look { strong: true, ..Look::default() })];
        }
        let mut out = Vec::with_capacity(self.rows.len() + 1);
        for (n, row) in self.rows.iter().enumerate() {
            let mut line = Rendered::default();
            for (i, (w, alignment)) in widths.iter().zip(&self.columns).enumerate() {
                let none = Rendered::default();
                let cell = row.get(i).unwrap_or(&none);
                let free = w - width(&cell.text).min(*w);
                let lead = match alignment {
                    Alignment::Right => free,
                    Alignment::Center => free / 2,
                    Alignment::Left | Alignment::None => 0,
                };
                let gap = if i > 0 { GAP } else { 0 };
                line.text.push_str(&" ".repeat(gap + lead));
                line.append(cell);
                line.text.push_str(&" ".repeat(free - lead));
            }
            line.text.truncate(line.text.trim_end().len());
            let kept = line.text.len();
            line.looks.iter_mut().for_each(|(r, _)| *r = r.start.min(kept)..r.end.min(kept));
            out.push(line);
            if n == 0 {
                let rule: Vec<String> = widths.iter().map(|w| "─".repeat(*w)).collect();
                out.push(Rendered::marked(rule.join(&" ".repeat(GAP))));
            }
        }
        Some(out)
    }
}
