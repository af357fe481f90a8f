//! What a line of the command line does once it is entered. What lines there are is in `command_line.rs`.

use super::app::{App, Effect, Level, View};
use super::columns::{Defined, after};
use super::command_line::{CommandLine, Line, parse};
use super::modal::Modal;
use crate::config::Theme;
use crate::config::text::clean;
use crate::control::Asked;
use crate::session::Command;

impl App {
    pub(super) fn open_line(&mut self, text: &str) {
        let line = CommandLine::new(text, &self.known());
        self.modal = Some(Modal::Command(Box::new(line)));
    }

    /// Acts on a line of the command line.
    pub fn line(&mut self, text: &str) {
        let line = match parse(text) {
            Ok(l) => l,
            Err(e) => return self.say(Level::Bad, e),
        };
        match line {
            Line::Empty => {}
            Line::Do(act) => self.act(act),
            Line::Send(command) => self.command(command),
            Line::Commit(command) => self.with_commit(command),
            Line::Colors(level) => {
                self.palette.level = level;
                self.effects.push(Effect::Repaint)
            }
            Line::Filter(words) => {
                self.list.filter = words;
                self.refilter();
            }
            Line::Constrain(limit, reason) => self.constrain(limit, reason),
            Line::Precision(precision) => self.set_precision(precision),
            Line::Select(pattern) => self.select(&pattern),
            Line::Sparsify(sparsity) => self.set_sparsity(sparsity),
            Line::Factors(rank) => self.set_factors(rank),
            Line::Lift(pattern) => self.lift(&pattern),
            Line::Rules(file) => self.bind_rules(&file),
            Line::Llm(endpoint) => {
                let (base_url, model) = endpoint.map_or((None, None), |(url, model)| (Some(url), model));
                let named = model.as_deref().unwrap_or("the endpoint's model");
                let at = base_url.as_deref().map(|u| format!("{named} at {}", crate::mask::address(u)));
                if self.sends(Command::SetLlm { base_url, model }) {
                    let said = at.as_deref().map(|at| format!("agents use {at}"));
                    self.say(Level::Good, said.unwrap_or_else(|| "the built-in planner will propose".to_owned()));
                    // The host says so too, after keys that are typed at once.
                    self.agents = at;
                }
            }
            Line::Control(target) => {
                if target.is_some() {
                    self.show(View::Control);
                }
                self.with_commit(Command::Control { target })
            }
            Line::MacConvention(c) => {
                self.settings.mac_convention = c;
                self.resort()
            }
            Line::Explain(word) => self.explain_word(&word),
            Line::Report(path) => self.write_report(path),
            Line::Column(line) => self.define_column(&line),
            Line::Columns(words) => {
                let words: Vec<&str> = words.split([' ', ',']).filter(|w| !w.is_empty()).collect();
                if let Err(e) = self.columns.pick(&words) {
                    self.say(Level::Bad, e);
                }
            }
            Line::Errors { off } => self.errors(off),
            Line::Layout(words) => self.arrange(&words),
            Line::Pin(words) => self.pin(&words),
            Line::Sort(word) => match self.columns.sort_named(&word) {
                Ok(sort) => {
                    sort.into_iter().for_each(|column| self.columns.show(column));
                    (self.list.sort, self.list.reverse) = (sort, false);
                    self.resort()
                }
                Err(e) => self.say(Level::Bad, e),
            },
            Line::Stop => self.modal = Some(Modal::Stop),
            Line::Theme(name) => {
                let mut diagnostics = Vec::new();
                match Theme::load(&name, self.settings.theme_dir.as_deref(), &mut diagnostics) {
                    Some(theme) => {
                        self.palette.theme = theme.clone();
                        self.settings.theme = theme;
                        self.effects.push(Effect::Repaint)
                    }
                    None => self.say(Level::Bad, diagnostics.first().map(ToString::to_string).unwrap_or_default()),
                }
            }
        }
    }

    fn define_column(&mut self, line: &str) {
        match self.columns.define(line) {
            Ok(Defined::There) => {
                let name = line.split('=').next().unwrap_or_default().trim();
                let others = "columns give way to it where the list is narrow, or it to them; `:columns` picks";
                self.nothing(format!("`{}` is a column now: {others}", clean(name)));
            }
            Ok(Defined::Gone(at)) => {
                self.list.sort = self.list.sort.and_then(|sort| after(sort, at));
                self.nothing("the column is gone");
            }
            Err(e) => self.say(Level::Bad, e),
        }
        self.resort();
    }

    /// The next of what a running controller computes tokens at: as it says, then each level.
    pub(super) fn next_level(&mut self) {
        let Some(now) = self.levels.as_ref().filter(|_| self.decoding) else {
            return self.nothing("no controller runs; `:control` makes one and runs it");
        };
        let asked = match self.level_asked.unwrap_or(now.asked) {
            Asked::Auto => Asked::Pinned(0),
            Asked::Pinned(level) if level + 1 < now.levels.len() => Asked::Pinned(level + 1),
            Asked::Pinned(_) => Asked::Auto,
        };
        if self.sends(Command::Level { asked }) {
            self.level_asked = Some(asked);
        }
    }
}
