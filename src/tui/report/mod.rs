//! The session as a report: one document, which Markdown and HTML are two ways to write down.
//!
//! Not here: what the screen shows of it (`draw/text`), copying of panes (`yank`). Invariant: both hold the same tables, since both are written from
//! the same [`document::Document`].

mod document;
mod figures;
mod html;
mod markdown;
mod measured;
mod sections;
mod svg;

use super::app::{App, Effect};
use crate::config::Settings;
use crate::session::{Round, State};
use document::{Document, Section, Words};

/// What a report is written as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Markdown,
    /// One file that needs nothing else, and no script.
    Html,
}

impl Form {
    /// By what the file is called; Markdown unless it says otherwise.
    pub fn of(path: &str) -> Form {
        let ending = path.rsplit('.').next().unwrap_or_default().to_ascii_lowercase();
        if ["html", "htm"].contains(&ending.as_str()) { Form::Html } else { Form::Markdown }
    }
}

/// The report of what `app` shows.
pub fn report(app: &App, form: Form) -> String {
    let document = document(app, form);
    match form {
        Form::Markdown => markdown::write(&document),
        Form::Html => html::write(&document),
    }
}

/// The report of a stored session.
pub fn of_state(state: State, settings: Settings, form: Form) -> String {
    report(&super::picture::still(state, settings, (120, 40)), form)
}

/// As [`report`] in Markdown.
pub fn markdown(app: &App) -> String {
    report(app, Form::Markdown)
}

impl App {
    /// Writes the report to a file in the form that its name asks for; without a name in both, beside each other.
    pub(super) fn write_report(&mut self, path: String) {
        let paths = if path.is_empty() {
            vec!["paring-report.md".to_owned(), "paring-report.html".to_owned()]
        } else {
            vec![path]
        };
        let written = |path: String| {
            let text = report(self, Form::of(&path));
            (path, text)
        };
        let files = paths.into_iter().map(written).collect();
        self.effects.push(Effect::Write(files));
    }
}

/// What is to be written; pictures and what is folded away, which a screen would work out at every frame, only where there is a place for them.
fn document(app: &App, form: Form) -> Document {
    let s = &app.state;
    let Some(card) = &s.card else {
        return Document { title: "paring".to_owned(), facts: vec![Words::from("no session yet")], sections: vec![] };
    };
    let page = form == Form::Html;
    let (table, told) = sections::rounds(app);
    let rounds = Section::new("Rounds").table(table).list(told);
    let rounds = if page { rounds.pictures(figures::rounds(app), figures::ROUNDS) } else { rounds };
    let healing = |r: &Round| {
        let section = sections::healing(r)?;
        Some(if page { section.pictures(figures::healing(r), "") } else { section })
    };
    let mut all = vec![measured::in_force(app), rounds];
    all.extend(measured::forecasts(app));
    all.extend(measured::classes(app));
    all.extend(sections::decisions(app));
    all.extend(measured::constraints(app));
    all.extend(sections::repairs(app));
    all.extend(s.rounds.iter().filter_map(healing));
    all.extend(sections::controller(app));
    all.extend(sections::layers(app));
    if page {
        all.extend(figures::sensitivity(app));
        all.extend(figures::ladders(app));
    }
    all.push(measured::how(app));
    if page {
        all.extend(measured::timeline(app));
    }
    let sections = all.into_iter().filter(|s| !s.parts.is_empty()).collect();
    Document { title: card.model.name.clone(), facts: sections::facts(app, card), sections }
}
