//! The loop: wait for input or messages, drain all there are, settle, draw once. No tick: an idle screen does nothing.

use super::app::{App, Effect, Exit, Level};
use super::arrange;
use super::clipboard::{self, Way};
use super::history::{self, History};
use super::pictures::Means;
use super::update::UserInput;
use super::{draw, term};
use crate::config::Settings;
use crate::host::client::{Client, Messages};
use crossterm::event::{Event, EventStream};
use crossterm::{execute, queue, terminal};
use futures::StreamExt;
use ratatui::backend::{Backend, CrosstermBackend};
use ratatui::layout::{Rect, Size};
use ratatui::{Terminal, TerminalOptions, Viewport};
use std::io::{self, BufWriter, Stdout, Write};
use std::mem::ManuallyDrop;
use std::task::Poll;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

/// Why the screen could not be.
#[derive(Debug, thiserror::Error)]
pub enum TuiError {
    #[error("standard output is not a terminal; hint: `paring run --json` works without one")]
    NotATerminal,
    #[error("the terminal could not be set up: {0}; hint: try another TERM")]
    Setup(#[source] io::Error),
    #[error("the terminal could not be written: {0}; hint: the session keeps running, `paring attach` comes back")]
    Write(#[source] io::Error),
}

type Screen = Terminal<CrosstermBackend<BufWriter<Stdout>>>;

/// Columns and rows that are drawn on at most, twice those of the largest displays at their smallest letters. A terminal
/// may say that it has 65,535 of each, and two buffers of that many cells are more than most machines have memory.
const MOST: Size = Size { width: 1000, height: 500 };

/// The part of a terminal of this size that is drawn on.
fn bounded(size: Size) -> Rect {
    Rect::new(0, 0, size.width.min(MOST.width), size.height.min(MOST.height))
}

/// How pictures are drawn on this terminal at its size.
fn means(app: &App) -> Means {
    let (pixels, cells) =
        terminal::window_size().map_or(((0, 0), (0, 0)), |w| ((w.width, w.height), (w.columns, w.rows)));
    Means::of(app.settings.pictures, |name| std::env::var(name).ok(), pixels, cells)
}

/// Milliseconds since the Unix epoch.
fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as i64)
}

/// Shows the session until the engineer leaves or something ends it. The terminal is restored on every way out.
pub async fn run(client: Client, messages: Messages, settings: Settings) -> Result<Exit, TuiError> {
    use std::io::IsTerminal;
    if !io::stdout().is_terminal() {
        return Err(TuiError::NotATerminal);
    }
    let mut signals = Signals::new().map_err(TuiError::Setup)?;
    let guard = term::Guard::new(&mut io::stdout(), settings.mouse).map_err(TuiError::Setup)?;
    let backend = CrosstermBackend::new(BufWriter::with_capacity(1 << 16, io::stdout()));
    // A fixed viewport, since one that follows the terminal takes whatever size it says.
    let area = bounded(backend.size().unwrap_or(Size::new(80, 24)));
    let options = TerminalOptions { viewport: Viewport::Fixed(area) };
    // Never dropped: that would show the cursor, which the guard does, and say on standard error that it could not, with a
    // macro that panics when the terminal that went away was that too.
    let mut screen = ManuallyDrop::new(Terminal::with_options(backend, options).map_err(TuiError::Setup)?);
    let mut app = App::new(settings, (area.width, area.height));
    app.means = means(&app);
    if let Some(path) = arrange::place() {
        app.arranged(arrange::load(&path));
    }
    app.lines = history::place().map(|path| History::load(&path)).unwrap_or_default();
    let ended = Loop { app, client, messages }.turn(&mut screen, &mut signals).await;
    drop(guard);
    match ended {
        Ok(exit) => Ok(exit),
        Err(e) if term::is_gone(&e) => Ok(Exit::TerminalGone),
        Err(e) => Err(TuiError::Write(e)),
    }
}

struct Signals {
    hangup: Signal,
    terminate: Signal,
    interrupt: Signal,
    resume: Signal,
    gone: oneshot::Receiver<()>,
}

impl Signals {
    fn new() -> io::Result<Signals> {
        Ok(Signals {
            hangup: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            resume: signal(SignalKind::from_raw(libc::SIGCONT))?,
            gone: term::gone()?,
        })
    }
}

struct Loop {
    app: App,
    client: Client,
    messages: Messages,
}

impl Loop {
    async fn turn(mut self, screen: &mut Screen, signals: &mut Signals) -> io::Result<Exit> {
        let mut events = EventStream::new();
        let mut host_open = true;
        self.paint(screen)?;
        loop {
            let mut effects = Vec::new();
            tokio::select! {
                biased;
                _ = signals.hangup.recv() => return Ok(Exit::TerminalGone),
                _ = &mut signals.gone => return Ok(Exit::TerminalGone),
                _ = signals.terminate.recv() => return Ok(Exit::Signal(libc::SIGTERM)),
                _ = signals.interrupt.recv() => return Ok(Exit::Signal(libc::SIGINT)),
                _ = signals.resume.recv() => {
                    term::enter(&mut io::stdout(), self.app.settings.mouse)?;
                    self.repaint(screen)?;
                }
                event = events.next() => {
                    self.app.now_ms = now_ms();
                    let mut next = event;
                    loop {
                        match next {
                            Some(Ok(e)) => effects.extend(self.input(e)),
                            Some(Err(e)) if term::is_gone(&e) => return Ok(Exit::TerminalGone),
                            Some(Err(e)) => return Err(e),
                            None => return Ok(Exit::TerminalGone),
                        }
                        // A key is answered at once; only what is already there is drained with it. Polled with this
                        // task's waker: the stream keeps the waker of its first pending poll, and `now_or_never`'s would
                        // leave it deaf to every later key.
                        match futures::poll!(events.next()) {
                            Poll::Ready(more) => next = more,
                            Poll::Pending => break,
                        }
                    }
                }
                message = self.messages.recv(), if host_open => {
                    self.app.now_ms = now_ms();
                    match message {
                        Some(m) => effects.extend(self.app.host(m)),
                        None => {
                            host_open = false;
                            effects.push(Effect::Quit(Exit::HostGone("the host closed the connection".into())));
                        }
                    }
                }
            }
            // Whatever else has arrived meanwhile belongs to the same frame.
            let mut budget = 4096;
            while budget > 0 && host_open {
                let Some(m) = self.messages.try_recv() else { break };
                effects.extend(self.app.host(m));
                budget -= 1;
            }
            let mut redraw = false;
            for e in effects {
                if let Some(exit) = self.effect(e, screen, &mut redraw)? {
                    return Ok(exit);
                }
            }
            if redraw {
                self.repaint(screen)?;
            } else if self.app.dirty {
                self.paint(screen)?;
            }
            // What the view needs besides, such as figures that only the host has, is asked for now and not with the next key.
            for e in self.app.wanted() {
                if let Some(exit) = self.effect(e, screen, &mut redraw)? {
                    return Ok(exit);
                }
            }
        }
    }

    fn input(&mut self, event: Event) -> Vec<Effect> {
        match event {
            Event::Key(k) => self.app.input(UserInput::Key(k)),
            Event::Paste(t) => self.app.input(UserInput::Paste(t)),
            Event::Resize(w, h) => {
                let area = bounded(Size::new(w, h));
                self.app.input(UserInput::Resize(area.width, area.height))
            }
            Event::Mouse(m) => self.app.input(UserInput::Mouse(m)),
            Event::FocusGained | Event::FocusLost => Vec::new(),
        }
    }

    fn effect(&mut self, e: Effect, screen: &mut Screen, redraw: &mut bool) -> io::Result<Option<Exit>> {
        match e {
            Effect::Send(command) => match self.client.post(command.clone()) {
                Ok(id) => self.app.posted(&command, Some(id)),
                Err(e) => {
                    self.app.posted(&command, None);
                    self.app.say(Level::Bad, e.to_string());
                }
            },
            Effect::Yank(text) => {
                let way = Way::of(&|name| std::env::var(name).ok().filter(|v| !v.is_empty()));
                let sent = clipboard::copy(way, &text, screen.backend_mut())?;
                let file = std::env::temp_dir().join(format!("paring-copy-{}.txt", std::process::id()));
                let (level, text) = match (sent, write_private(&file, &text)) {
                    (Some(sent), Ok(())) => (Level::Good, format!("{sent}, and written to {}", file.display())),
                    (None, Ok(())) => {
                        (Level::Good, format!("written to {} alone: screen passes no text on", file.display()))
                    }
                    (Some(sent), Err(e)) => (Level::Warn, format!("{sent}; no file: {e}")),
                    (None, Err(e)) => (Level::Bad, format!("not copied: {e}")),
                };
                self.app.say(level, text);
            }
            Effect::Write(files) => {
                let mut written = Vec::new();
                for (path, text) in files {
                    if let Err(e) = crate::files::write(path.as_ref(), text) {
                        let why = format!("`{path}` could not be written: {e}; hint: try another path");
                        self.app.say(Level::Bad, why);
                        return Ok(None);
                    }
                    written.push(path);
                }
                self.app.say(Level::Good, format!("wrote {}", written.join(" and ")));
            }
            Effect::Remember(line) => {
                // For comfort only: what cannot be kept is gone with the screen.
                if let Some(path) = history::place()
                    && let Err(e) = history::remember(&path, &line)
                {
                    tracing::debug!(path = %path.display(), error = %e, "line not kept");
                }
            }
            Effect::Arrange(shares) => {
                if let Some(path) = arrange::place()
                    && let Err(e) = arrange::keep(&path, shares)
                {
                    self.app.say(Level::Warn, format!("the layout is not kept: `{}`: {e}", path.display()));
                }
            }
            Effect::Suspend => {
                term::suspend(&mut io::stdout(), self.app.settings.mouse)?;
                *redraw = true;
            }
            Effect::Repaint => *redraw = true,
            Effect::Quit(exit) => return Ok(Some(exit)),
        }
        Ok(None)
    }

    fn repaint(&mut self, screen: &mut Screen) -> io::Result<()> {
        let area = bounded(screen.size()?);
        self.app.size = (area.width, area.height);
        self.app.means = means(&self.app);
        // Not `clear`: that asks the terminal where its cursor is and waits for the answer, which the event stream eats.
        screen.resize(area)?;
        self.paint(screen)
    }

    fn paint(&mut self, screen: &mut Screen) -> io::Result<()> {
        let area = bounded(screen.size()?);
        if area != screen.get_frame().area() {
            screen.resize(area)?;
        }
        self.app.dirty = true;
        paint(&mut self.app, screen).map(|_| ())
    }
}

/// Draws one frame if anything changed since the last; says whether it did. Without a change nothing is written.
pub fn paint<W: Write>(app: &mut App, screen: &mut Terminal<CrosstermBackend<W>>) -> io::Result<bool> {
    if !std::mem::take(&mut app.dirty) {
        return Ok(false);
    }
    app.settle();
    app.dirty = false;
    let sync = app.settings.sync_update;
    if sync {
        queue!(screen.backend_mut(), terminal::BeginSynchronizedUpdate)?;
    }
    let drawn = screen.draw(|f| draw::draw(app, f)).map(|_| ());
    if sync {
        execute!(screen.backend_mut(), terminal::EndSynchronizedUpdate)?;
    }
    drawn.map(|()| true)
}

/// Writes a file that only we may read: copied text may hold prompts and paths.
fn write_private(path: &std::path::Path, text: &str) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let _ = std::fs::remove_file(path);
    let mut f = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    f.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_of_any_size_takes_bounded_memory() {
        assert_eq!(bounded(Size::new(65_535, 65_535)), Rect::new(0, 0, MOST.width, MOST.height));
        assert_eq!(bounded(Size::new(200, 60)), Rect::new(0, 0, 200, 60));
        assert_eq!(bounded(Size::new(65_535, 1)), Rect::new(0, 0, MOST.width, 1));
        let cells = MOST.width as usize * MOST.height as usize;
        assert!(2 * cells * size_of::<ratatui::buffer::Cell>() < 100 << 20);
    }
}
