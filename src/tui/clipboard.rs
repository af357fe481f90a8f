//! Where a copied text goes: the terminal's clipboard (OSC 52), or tmux's, which by default takes no OSC 52 from what runs in it.

use std::io::{self, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What can take a text, by what stands between the program and the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The terminal is asked (OSC 52); whether it does it, it does not say.
    Terminal,
    /// tmux's own command, which asks the terminal behind as well.
    Tmux,
    /// GNU screen passes nothing on.
    Nowhere,
}

impl Way {
    pub fn of(env: &dyn Fn(&str) -> Option<String>) -> Way {
        match (env("TMUX"), env("STY")) {
            (Some(_), _) => Way::Tmux,
            (None, Some(_)) => Way::Nowhere,
            (None, None) => Way::Terminal,
        }
    }
}

/// Copies `text` by a way, or by what is left of it; in words where it went, or nothing where it went nowhere.
///
/// # Errors
/// Those of writing to the terminal.
pub fn copy(way: Way, text: &str, terminal: &mut impl Write) -> io::Result<Option<&'static str>> {
    match way {
        Way::Nowhere => return Ok(None),
        // -w is of tmux 3.2.
        Way::Tmux if fed(&["load-buffer", "-w", "-"], text) => {
            return Ok(Some("in tmux's buffer, sent on to the terminal's clipboard"));
        }
        Way::Tmux if fed(&["load-buffer", "-"], text) => return Ok(Some("in tmux's buffer")),
        Way::Tmux | Way::Terminal => {}
    }
    terminal.write_all(osc52(text).as_bytes())?;
    terminal.flush()?;
    Ok(Some("sent to the terminal for its clipboard"))
}

/// The OSC 52 sequence that asks the terminal to put `text` on the clipboard.
fn osc52(text: &str) -> String {
    use base64::Engine;
    format!("\x1b]52;c;{}\x07", base64::engine::general_purpose::STANDARD.encode(text))
}

/// How long tmux may take: it is on this machine, and the screen waits.
const PATIENCE: Duration = Duration::from_millis(500);

/// Whether tmux took `text`.
fn fed(args: &[&str], text: &str) -> bool {
    let quiet = || Stdio::null();
    let started = Command::new("tmux").args(args).stdin(Stdio::piped()).stdout(quiet()).stderr(quiet()).spawn();
    let Ok(mut tmux) = started else { return false };
    let (input, text) = (tmux.stdin.take(), text.to_owned());
    // Its pipe may be full before it reads: what is written waits on a thread of its own.
    std::thread::spawn(move || input.map(|mut input| input.write_all(text.as_bytes())));
    ended_well(&mut tmux)
}

fn ended_well(child: &mut Child) -> bool {
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        match child.try_wait() {
            Ok(Some(status)) => return status.success(),
            Ok(None) => std::thread::sleep(Duration::from_millis(2)),
            Err(_) => return false,
        }
    }
    // What hangs is ended, and not waited for any longer than that takes.
    let _ = child.kill().and_then(|()| child.wait());
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_of_what_stands_between_decides() {
        let way = |set: &[&str]| Way::of(&|name| set.contains(&name).then(|| "x".to_owned()));
        assert_eq!(way(&[]), Way::Terminal);
        assert_eq!(way(&["SSH_CONNECTION", "MOSH_CONNECTION"]), Way::Terminal);
        assert_eq!(way(&["TMUX"]), Way::Tmux);
        assert_eq!(way(&["STY"]), Way::Nowhere);
        // Variables of an outer screen reach a tmux within it.
        assert_eq!(way(&["TMUX", "STY"]), Way::Tmux);
    }

    #[test]
    fn a_terminal_is_asked_in_base64_and_screen_is_not() {
        let mut out = Vec::new();
        assert!(copy(Way::Terminal, "a\x1b]52;c;x\x07", &mut out).unwrap().is_some());
        assert_eq!(out, b"\x1b]52;c;YRtdNTI7Yzt4Bw==\x07", "what is copied cannot end the sequence");
        out.clear();
        assert_eq!(copy(Way::Nowhere, "a", &mut out).unwrap(), None);
        assert!(out.is_empty());
    }
}
