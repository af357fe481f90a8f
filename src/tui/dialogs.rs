//! Keys while something is asked: prompts, the command line, lists over the screen. What they look like is in `modal.rs`.

use super::app::{App, Effect, Level};
use super::complete::Known;
use super::layout;
use super::modal::{Ask, Modal, Prompt};
use crate::session::Command;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

impl App {
    pub(super) fn modal_key(&mut self, k: KeyEvent) {
        let Some(modal) = &mut self.modal else { return };
        let ctrl = k.modifiers.contains(KeyModifiers::CONTROL);
        let leave = k.code == KeyCode::Esc || (ctrl && k.code == KeyCode::Char('c'));
        match modal {
            Modal::Help { scroll } => {
                match k.code {
                    KeyCode::Down | KeyCode::Char('j') => *scroll += 1,
                    KeyCode::Up | KeyCode::Char('k') => *scroll = scroll.saturating_sub(1),
                    KeyCode::PageDown | KeyCode::Char(' ') => *scroll += 10,
                    KeyCode::PageUp => *scroll = scroll.saturating_sub(10),
                    KeyCode::Home | KeyCode::Char('g') => *scroll = 0,
                    KeyCode::End | KeyCode::Char('G') => *scroll = usize::MAX / 2,
                    _ => self.modal = None,
                }
                self.clamp_help();
            }
            Modal::Precisions(_) => self.picker_key(k),
            Modal::Explain(_) if leave || k.code == KeyCode::Enter => self.modal = None,
            Modal::Explain(e) => {
                e.key(k);
                self.clamp_explained();
            }
            Modal::Stop => {
                self.modal = None;
                match k.code {
                    KeyCode::Char('y' | 'Y') | KeyCode::Enter => self.command(Command::Stop),
                    _ => self.nothing("left as it was"),
                }
            }
            Modal::Prompt(p) => {
                if leave {
                    if let Ask::Search(before) = &p.ask {
                        self.list.filter = before.clone();
                        self.refilter();
                    }
                    self.modal = None;
                    return;
                }
                if k.code == KeyCode::Enter {
                    let p = p.clone();
                    self.modal = None;
                    return self.answer(*p);
                }
                if matches!(k.code, KeyCode::Char(_)) && !ctrl && !p.has_room() {
                    self.say(Level::Warn, "no room for more");
                } else {
                    p.area.input(k);
                }
                self.live_search();
            }
            Modal::Command(_) if leave => self.modal = None,
            Modal::Command(_) => self.line_key(k),
        }
    }

    /// A key while a line is typed.
    fn line_key(&mut self, k: KeyEvent) {
        let known = self.known();
        let Some(Modal::Command(c)) = &mut self.modal else { return };
        let search = k.modifiers.contains(KeyModifiers::CONTROL) && k.code == KeyCode::Char('r');
        match k.code {
            KeyCode::Enter => {
                let text = c.text();
                self.modal = None;
                if self.lines.add(&text) {
                    self.effects.push(Effect::Remember(text.clone()));
                }
                self.line(&text);
            }
            _ if search => {
                let found = c.search(&self.lines, &known);
                let words = c.sought.clone().unwrap_or_else(|| c.text());
                if !found {
                    self.nothing(format!("no earlier line has `{words}`"));
                }
            }
            KeyCode::Tab => c.cycle(true),
            KeyCode::BackTab => c.cycle(false),
            KeyCode::Up | KeyCode::Down => c.walk(k.code == KeyCode::Up, &self.lines, &known),
            KeyCode::Backspace if c.text().is_empty() => self.modal = None,
            _ => {
                c.area.input(k);
                c.typed(&known);
            }
        }
    }

    /// What the command line completes.
    pub(super) fn known(&self) -> Known {
        let (layers, blocks) = (self.table.layers.iter(), self.table.blocks.iter());
        let rows = layers.map(|l| &l.name).chain(blocks.map(|b| &b.name));
        // Hostile names are typed by nobody.
        let rows = rows.filter(|n| !n.chars().any(crate::plain::hostile)).cloned().collect();
        let language = self.state.card.as_ref().is_some_and(|c| c.graph.is_language_model());
        let own = self.columns.own().iter().map(|o| o.name.clone()).collect();
        Known { themes: self.settings.theme_dir.clone(), rows, language, own, rounds: self.pinnable() }
    }

    pub(super) fn live_search(&mut self) {
        let text = match &self.modal {
            Some(Modal::Prompt(p)) if matches!(p.ask, Ask::Search(_)) => p.text(),
            _ => return,
        };
        self.list.filter = text;
        self.refilter();
    }

    pub(super) fn clamp_help(&mut self) {
        let lines = super::draw::help::lines(self, layout::inside(self.layout().body).width.into()).len();
        let height = layout::inside(self.layout().body).height as usize;
        if let Some(Modal::Help { scroll }) = &mut self.modal {
            *scroll = (*scroll).min(lines.saturating_sub(height));
        }
    }

    fn answer(&mut self, p: Prompt) {
        let text = p.text();
        match p.ask {
            Ask::Veto(ids) => self.command(Command::Veto { ids, reason: text }),
            Ask::VetoAll(targets) => self.command(Command::VetoAll { targets, reason: text }),
            Ask::Note if text.is_empty() => {}
            Ask::Note => self.command(Command::Note { text }),
            Ask::RollBack => self.command(Command::RollBack { reason: text }),
            Ask::Search(_) => self.last_words = text,
            Ask::Seek => self.seek(text),
            Ask::Edit(targets) => self.edited(&targets, &text),
        }
    }

    /// Opens a prompt on what is there now, selected: typing replaces it.
    pub(super) fn prompt_over(&mut self, ask: Ask, title: impl Into<String>, hint: impl Into<String>, text: &str) {
        let mut prompt = Prompt::new(ask, title, hint, text);
        prompt.area.select_all();
        self.modal = Some(Modal::Prompt(Box::new(prompt)));
    }

    /// Opens a prompt that begins with `text`.
    pub(super) fn prompt(&mut self, ask: Ask, title: impl Into<String>, hint: impl Into<String>, text: &str) {
        self.modal = Some(Modal::Prompt(Box::new(Prompt::new(ask, title, hint, text))));
    }
}
