//! The terminal: one way in, one way back, whatever ends us.
//!
//! Invariants: [`restore`] may run any number of times, from a panic or a signal, and never panics; a write error is
//! reported, not unwrapped.

use crossterm::{cursor, event, execute, queue, style, terminal};
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;

/// Whether the terminal is ours now.
static OWNED: AtomicBool = AtomicBool::new(false);

/// How long a screen without its terminal has to end in its own way. The session is another process's.
const GRACE: Duration = Duration::from_secs(2);

/// Asks for presses, drags and the wheel of the mouse (modes 1000 and 1002), with positions in decimal (1006). Not for every move, as crossterm does:
/// that would be sent through a slow line for nothing.
const MOUSE: &str = "\x1b[?1000h\x1b[?1002h\x1b[?1006h";

/// Takes the terminal: raw mode, alternate screen, bracketed paste, and the `mouse` where it is wanted.
pub fn enter(out: &mut impl Write, mouse: bool) -> io::Result<()> {
    terminal::enable_raw_mode()?;
    OWNED.store(true, Ordering::SeqCst);
    execute!(out, terminal::EnterAlternateScreen, event::EnableBracketedPaste, cursor::Hide)?;
    execute!(out, style::Print(if mouse { MOUSE } else { "" }))
}

/// Gives the terminal back as it was. Errors are of no use to anyone here: the terminal may be gone.
pub fn restore() {
    if !OWNED.swap(false, Ordering::SeqCst) {
        return;
    }
    let mut out = io::stdout();
    let _ = queue!(
        out,
        terminal::EndSynchronizedUpdate,
        style::ResetColor,
        // Whether it was taken or not.
        event::DisableMouseCapture,
        event::DisableBracketedPaste,
        terminal::LeaveAlternateScreen,
        cursor::Show
    );
    let _ = out.flush();
    let _ = terminal::disable_raw_mode();
}

/// Restores the terminal when dropped, and before a panic's message is printed.
pub struct Guard(());

impl Guard {
    pub fn new(out: &mut impl Write, mouse: bool) -> io::Result<Guard> {
        static HOOK: std::sync::Once = std::sync::Once::new();
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                restore();
                before(info);
            }));
        });
        let guard = Guard(());
        enter(out, mouse)?;
        Ok(guard)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        restore();
    }
}

/// Stops this process as Ctrl-Z does, and comes back when it is continued.
pub fn suspend(out: &mut impl Write, mouse: bool) -> io::Result<()> {
    restore();
    // SAFETY: raising a signal in our own process group has no memory effects.
    unsafe {
        libc::kill(0, libc::SIGTSTP);
    }
    enter(out, mouse)
}

/// Tells once the terminal of standard output has gone away. A signal says so only to some processes (not under `nohup`),
/// and reading says it to nobody: crossterm takes the end of its input for no input yet and reads again, for ever. It may
/// do so on the thread that would hear of this, so the process ends by itself when nobody acts on it in time.
pub fn gone() -> io::Result<oneshot::Receiver<()>> {
    let (tell, told) = oneshot::channel();
    std::thread::Builder::new().name("terminal".to_owned()).spawn(move || {
        let mut out = libc::pollfd { fd: libc::STDOUT_FILENO, events: 0, revents: 0 };
        // SAFETY: fills in one structure, which outlives the call.
        while unsafe { libc::poll(&mut out, 1, -1) } < 0 {
            std::thread::sleep(GRACE);
        }
        let _ = tell.send(());
        std::thread::sleep(GRACE);
        std::process::exit(0);
    })?;
    Ok(told)
}

/// Whether an error means that the terminal is gone for good.
pub fn is_gone(e: &io::Error) -> bool {
    let gone = [libc::EIO, libc::ENXIO, libc::EBADF, libc::ENOTTY, libc::ENODEV];
    e.kind() == io::ErrorKind::BrokenPipe
        || e.kind() == io::ErrorKind::UnexpectedEof
        || e.raw_os_error().is_some_and(|n| gone.contains(&n))
}
