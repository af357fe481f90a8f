//! A report as one page of HTML: no script, no request, readable by light and in the dark, and on paper.
//!
//! Not here: pictures (`svg`). Invariants: every string is cleaned and escaped on its way in, and the page's policy forbids what would be loaded;
//! tables are those that Markdown has.

use super::document::{Document, Part, Picture, Row, Style, Table, Words};
use super::svg;
use crate::config::text::clean;
use std::fmt::Write;

const STYLE: &str = include_str!("page.css");

/// Nothing is loaded, whatever the page holds.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

pub fn write(d: &Document) -> String {
    let title = escape(&d.title);
    let mut o = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title} – paring</title>\n<style>\n{STYLE}</style>\n</head>\n\
         <body>\n<main>\n<h1>{title}</h1>\n"
    );
    list(&mut o, &d.facts, "facts");
    if d.sections.len() > 1 {
        o.push_str("<nav>");
        for (i, s) in d.sections.iter().enumerate() {
            let _ = write!(o, "<a href=\"#s{i}\">{}</a> ", escape(&s.title));
        }
        o.push_str("</nav>\n");
    }
    for (i, s) in d.sections.iter().enumerate() {
        let _ = writeln!(o, "<section id=\"s{i}\">\n<h2>{}</h2>", escape(&s.title));
        for p in &s.parts {
            match p {
                Part::Words(w) => {
                    let _ = writeln!(o, "<p>{}</p>", words(w));
                }
                Part::List(all) => list(&mut o, all, "notes"),
                Part::Table(t) => table(&mut o, t),
                Part::Pictures(all, said) => {
                    pictures(&mut o, all);
                    if !said.is_empty() {
                        let _ = writeln!(o, "<p>{}</p>", escape(said));
                    }
                }
                Part::Folded(summary, t) => {
                    let _ = writeln!(o, "<details>\n<summary>{}</summary>", escape(summary));
                    table(&mut o, t);
                    o.push_str("</details>\n");
                }
            }
        }
        o.push_str("</section>\n");
    }
    o.push_str("</main>\n</body>\n</html>\n");
    o
}

/// Text that is text in an element and in an attribute.
pub fn escape(s: &str) -> String {
    let mut o = String::with_capacity(s.len());
    for c in clean(s).chars() {
        match c {
            '&' => o.push_str("&amp;"),
            '<' => o.push_str("&lt;"),
            '>' => o.push_str("&gt;"),
            '"' => o.push_str("&quot;"),
            '\'' => o.push_str("&#39;"),
            c => o.push(c),
        }
    }
    o
}

fn words(w: &Words) -> String {
    let part = |(style, s): &(Style, String)| match style {
        Style::Plain => escape(s),
        Style::Code => format!("<code>{}</code>", escape(s)),
        Style::Strong => format!("<strong>{}</strong>", escape(s)),
    };
    w.0.iter().map(part).collect()
}

fn list(o: &mut String, all: &[Words], class: &str) {
    if all.is_empty() {
        return;
    }
    let _ = writeln!(o, "<ul class=\"{class}\">");
    for w in all {
        let _ = writeln!(o, "<li>{}</li>", words(w));
    }
    o.push_str("</ul>\n");
}

/// Characters of a cell that wants a wide column.
const LONG: usize = 50;

/// A column of figures stands to the right.
fn figures(t: &Table, column: usize) -> bool {
    let figure = |c: &str| {
        let word = c.trim_start_matches(['~', '+', '−', '±', '<', '[', '.']);
        c == "—" || c == "gone" || word.chars().next().is_some_and(|c| c.is_ascii_digit())
    };
    let mut told = t.rows.iter().filter_map(|r| r.cells.get(column)).filter(|c| !c.is_empty()).peekable();
    told.peek().is_some() && told.all(|c| figure(c))
}

fn table(o: &mut String, t: &Table) {
    let right: Vec<bool> = (0..t.columns.len()).map(|i| figures(t, i)).collect();
    let long = |i: usize| t.rows.iter().any(|r| r.cells.get(i).is_some_and(|c| c.chars().count() > LONG));
    let long: Vec<bool> = (0..t.columns.len()).map(long).collect();
    let class = |i: usize| match (right.get(i), long.get(i)) {
        (Some(true), _) => " class=\"n\"",
        (_, Some(true)) => " class=\"long\"",
        _ => "",
    };
    o.push_str("<div class=\"wide\"><table>\n<thead><tr>");
    for (i, c) in t.columns.iter().enumerate() {
        let _ = write!(o, "<th{}>{}</th>", class(i), escape(c));
    }
    o.push_str("</tr></thead>\n<tbody>\n");
    for Row { cells, faint } in &t.rows {
        o.push_str(if *faint { "<tr class=\"faint\">" } else { "<tr>" });
        for (i, c) in cells.iter().enumerate() {
            let _ = write!(o, "<td{}>{}</td>", class(i), escape(c));
        }
        o.push_str("</tr>\n");
    }
    o.push_str("</tbody>\n</table></div>\n");
}

fn pictures(o: &mut String, all: &[Picture]) {
    let small = all.iter().all(|p| matches!(p, Picture::Plot(p) if p.small));
    o.push_str(if small { "<div class=\"many\">\n" } else { "<div class=\"few\">\n" });
    let mut told: Vec<String> = Vec::new();
    for p in all {
        let (title, drawn) = match p {
            Picture::Plot(p) => (&p.title, svg::plot(p)),
            Picture::Bars(b) => (&b.title, svg::bars(b)),
        };
        let _ = writeln!(o, "<figure><figcaption>{}</figcaption>\n{drawn}", escape(title));
        if let Picture::Plot(p) = p {
            let keys = p.series.iter().filter(|s| !s.name.is_empty());
            let keys: Vec<String> = keys.map(|s| format!("<li>{}{}</li>", svg::key(s), escape(&s.name))).collect();
            match small {
                // One legend for all of them.
                true => keys.into_iter().for_each(|k| {
                    if !told.contains(&k) {
                        told.push(k);
                    }
                }),
                false => legend(o, &keys),
            }
        }
        o.push_str("</figure>\n");
    }
    o.push_str("</div>\n");
    legend(o, &told);
}

fn legend(o: &mut String, keys: &[String]) {
    if !keys.is_empty() {
        let _ = writeln!(o, "<ul class=\"legend\">{}</ul>", keys.concat());
    }
}
