//! A report as Markdown: all but its pictures and what is folded away.
//!
//! Invariant: what a file or an agent wrote stays text: no cell ends early, no tag begins.

use super::document::{Document, Part, Style, Table, Words};
use crate::config::text::clean;
use std::fmt::Write;

pub fn write(d: &Document) -> String {
    let mut o = format!("# {}\n", text(&d.title));
    list(&mut o, &d.facts);
    let told = |p: &Part| !matches!(p, Part::Pictures(..) | Part::Folded(..));
    for s in d.sections.iter().filter(|s| s.parts.iter().any(told)) {
        let _ = write!(o, "\n## {}\n", text(&s.title));
        for p in &s.parts {
            match p {
                Part::Words(w) => {
                    let _ = write!(o, "\n{}\n", words(w));
                }
                Part::List(all) => list(&mut o, all),
                Part::Table(t) => table(&mut o, t),
                Part::Pictures(..) | Part::Folded(..) => {}
            }
        }
    }
    o
}

fn list(o: &mut String, all: &[Words]) {
    if !all.is_empty() {
        o.push('\n');
    }
    for w in all {
        let _ = writeln!(o, "- {}", words(w));
    }
}

fn table(o: &mut String, t: &Table) {
    let line = |o: &mut String, cells: &[String]| {
        let _ = writeln!(o, "| {} |", cells.iter().map(|c| text(c)).collect::<Vec<_>>().join(" | "));
    };
    o.push('\n');
    line(o, &t.columns);
    line(o, &vec!["---".to_owned(); t.columns.len()]);
    t.rows.iter().for_each(|r| line(o, &r.cells));
}

fn words(w: &Words) -> String {
    let part = |(style, s): &(Style, String)| match style {
        Style::Plain => text(s),
        Style::Code => format!("`{}`", clean(s).replace('`', "'").replace('|', "\\|")),
        Style::Strong => format!("**{}**", text(s)),
    };
    w.0.iter().map(part).collect()
}

/// One line in which nothing is a cell's border or begins a tag.
fn text(s: &str) -> String {
    let s = clean(s);
    let mut o = String::with_capacity(s.len());
    let mut rest = s.chars().peekable();
    while let Some(c) = rest.next() {
        let tag = c == '<' && rest.peek().is_some_and(|n| n.is_ascii_alphabetic() || matches!(n, '/' | '!' | '?'));
        if c == '|' || tag {
            o.push('\\');
        }
        o.push(c);
    }
    o
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_cell_ends_early_and_no_tag_begins() {
        assert_eq!(text("a|b <img src=x> </b> <.01 x<y a < b"), "a\\|b \\<img src=x> \\</b> <.01 x\\<y a < b");
        assert_eq!(words(&Words::from("is ").code("a`b").and(", ").strong("so")), "is `a'b`, **so**");
    }
}
