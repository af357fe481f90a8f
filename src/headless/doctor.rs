//! `paring doctor`: what of this terminal, machine and configuration will work, before a session is opened on it.
//!
//! Not here: whether kernels compute what they should (`selftest`). Invariants: it changes nothing but a file of its own that it removes again;
//! the endpoint's key is never shown; what cannot be known is said to be so.

use super::out::say;
use super::{Exit, print_json, setup};
use crate::agent::{Chat, Endpoint, Timeouts};
use crate::config::{ColorLevel, Loaded, PictureKind};
use crate::exec::device;
use crate::session::place;
use anyhow::Result;
use ratatui_image::picker::cap_parser::QueryStdioOptions;
use ratatui_image::picker::{Picker, ProtocolType};
use serde_json::json;
use std::io::IsTerminal;
use std::time::Duration;

/// How one thing stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Health {
    Good,
    /// It works, with less.
    Weak,
    Bad,
}

impl Health {
    fn word(self) -> &'static str {
        match self {
            Health::Good => "ok",
            Health::Weak => "weak",
            Health::Bad => "bad",
        }
    }
}

struct Finding {
    what: &'static str,
    health: Health,
    said: String,
}

fn found(what: &'static str, health: Health, said: impl Into<String>) -> Finding {
    Finding { what, health, said: said.into() }
}

/// The least that the screen is made for, columns and rows.
const LEAST: (u16, u16) = (80, 24);
/// Below this little is left for models, bytes.
const ROOM: u64 = 2 << 30;
/// Longest wait for the terminal.
const ASKED: Duration = Duration::from_millis(1500);
/// Longest wait for the endpoint.
const ANSWERS: Duration = Duration::from_secs(8);

/// Looks at everything; fails where something is broken that a session needs.
pub fn run(loaded: &Loaded, json: bool) -> Result<Exit> {
    let env = |name: &str| std::env::var(name).ok().filter(|v| !v.is_empty());
    let mut all = vec![terminal(&env), colours(&env), text(&env), pictures(&env, loaded.settings.pictures)];
    all.extend(inside(&env));
    all.extend(configuration(loaded));
    all.extend([state(), sockets(), computes(&loaded.settings.device), memory(), endpoint(loaded)]);
    if json {
        let row = |f: &Finding| json!({ "what": f.what, "health": f.health.word(), "said": f.said });
        print_json(&all.iter().map(row).collect::<Vec<_>>())?;
    } else {
        for f in &all {
            say!("{:<5} {:<14} {}", f.health.word(), f.what, crate::config::text::clean(&f.said))?;
        }
    }
    Ok(if all.iter().any(|f| f.health == Health::Bad) { Exit::Failed } else { Exit::Done })
}

type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

fn terminal(env: Env<'_>) -> Finding {
    let term = env("TERM").unwrap_or_else(|| "none".to_owned());
    match crossterm::terminal::size() {
        Err(_) => {
            found("terminal", Health::Weak, format!("none here ({term}); hint: `open` needs one, `run` does not"))
        }
        Ok((w, h)) if w < LEAST.0 || h < LEAST.1 => found(
            "terminal",
            Health::Weak,
            format!("{term}, {w}x{h}; hint: the screen is made for {}x{} and more", LEAST.0, LEAST.1),
        ),
        Ok((w, h)) => found("terminal", Health::Good, format!("{term}, {w}x{h}")),
    }
}

fn colours(env: Env<'_>) -> Finding {
    match ColorLevel::detect(env) {
        ColorLevel::True => found("colours", Health::Good, "24 bits"),
        ColorLevel::Ansi256 => {
            found("colours", Health::Good, "256; hint: COLORTERM=truecolor where the terminal has more")
        }
        ColorLevel::Ansi16 => {
            found("colours", Health::Weak, "16: heat is told by glyphs as well; hint: COLORTERM=truecolor")
        }
        ColorLevel::None => {
            found("colours", Health::Weak, "none (NO_COLOR or TERM says so): everything is told by glyphs")
        }
    }
}

fn text(env: Env<'_>) -> Finding {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(|n| env(n)).unwrap_or_default();
    let utf8 = locale.to_lowercase().replace('-', "").contains("utf8");
    match utf8 {
        true => found("text", Health::Good, locale),
        false => found(
            "text",
            Health::Weak,
            format!("`{locale}` is no UTF-8 locale; hint: LANG=C.UTF-8, or `ascii = true` under [screen]"),
        ),
    }
}

/// Asks the terminal what pictures it can show: here nobody reads keys that a late answer could be taken for.
fn pictures(env: Env<'_>, set: PictureKind) -> Finding {
    let used = if set == PictureKind::Auto { PictureKind::of(env) } else { set };
    if !(std::io::stdin().is_terminal() && std::io::stdout().is_terminal()) {
        return found("pictures", Health::Good, format!("{}, as no terminal is here that could be asked", used.word()));
    }
    let options = QueryStdioOptions { timeout: ASKED, ..QueryStdioOptions::default() };
    let best = match Picker::from_query_stdio_with_options(options).map(|p| p.protocol_type()) {
        Ok(ProtocolType::Kitty) => PictureKind::Kitty,
        Ok(ProtocolType::Iterm2) => PictureKind::Iterm2,
        Ok(ProtocolType::Sixel) => PictureKind::Sixel,
        Ok(ProtocolType::Halfblocks) | Err(_) => PictureKind::Blocks,
    };
    match used {
        used if used == best => found("pictures", Health::Good, used.word()),
        PictureKind::Blocks => {
            let text =
                format!("blocks, and the terminal says {0}; hint: `pictures = \"{0}\"` under [screen]", best.word());
            found("pictures", Health::Weak, text)
        }
        used => {
            let text = format!(
                "{}, which the terminal does not say it can ({}); hint: `pictures = \"{1}\"` under [screen]",
                used.word(),
                best.word()
            );
            found("pictures", Health::Weak, text)
        }
    }
}

/// What stands between the program and the terminal.
fn inside(env: Env<'_>) -> Vec<Finding> {
    let mut out = Vec::new();
    if env("TMUX").is_some() {
        out.push(found(
            "tmux",
            Health::Good,
            "`y` copies into its buffer, and to the clipboard where the terminal behind it takes OSC 52",
        ));
    }
    if env("STY").is_some() {
        out.push(found("screen", Health::Weak, "GNU screen passes no OSC 52 on: `y` writes its file alone"));
    }
    if env("MOSH_CONNECTION").is_some() {
        out.push(found("mosh", Health::Weak, "mosh before 1.4 passes neither 24-bit colours nor OSC 52 on"));
    }
    if env("SSH_CONNECTION").is_some() {
        out.push(found("ssh", Health::Good, "sessions go on when it breaks: `paring attach` comes back"));
    }
    out
}

fn configuration(loaded: &Loaded) -> Vec<Finding> {
    let wrong = loaded.diagnostics.iter().map(|d| found("configuration", Health::Bad, d.to_string()));
    let ignored = loaded.ignored.iter().map(|d| found("configuration", Health::Weak, d.to_string()));
    let mut out: Vec<Finding> = wrong.chain(ignored).collect();
    if out.is_empty() {
        let dir = crate::config::config_dir(&crate::config::process_env);
        let at = dir.map_or("no folder for it".to_owned(), |d| d.display().to_string());
        out.push(found("configuration", Health::Good, format!("sound ({at})")));
    }
    out
}

/// Whether sessions can be kept, and how much room there is.
fn state() -> Finding {
    let bad = |why: String| found("sessions", Health::Bad, why);
    let home = match place::home() {
        Ok(home) => home,
        Err(e) => return bad(e.to_string()),
    };
    let at = home.display();
    let probe = home.join(format!(".doctor-{}", std::process::id()));
    let written = std::fs::create_dir_all(&home).and_then(|()| std::fs::write(&probe, b"x"));
    drop(std::fs::remove_file(&probe));
    if let Err(e) = written {
        return bad(format!("`{at}` cannot be written: {e}; hint: PARING_HOME names another folder"));
    }
    match free(&home) {
        Some(bytes) if bytes < ROOM => found(
            "sessions",
            Health::Weak,
            format!("`{at}`, {:.1} GB free; hint: models of rounds are kept there", bytes as f64 / 1e9),
        ),
        Some(bytes) => found("sessions", Health::Good, format!("`{at}`, {:.1} GB free", bytes as f64 / 1e9)),
        None => found("sessions", Health::Good, format!("`{at}`")),
    }
}

/// Bytes that are free where `dir` lies.
fn free(dir: &std::path::Path) -> Option<u64> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(dir.as_os_str().as_bytes()).ok()?;
    // SAFETY: all zeros is a value of this plain struct.
    let mut of: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends in a zero byte and the struct is ours.
    let done = unsafe { libc::statvfs(path.as_ptr(), &raw mut of) };
    (done == 0).then(|| of.f_bavail.saturating_mul(of.f_frsize))
}

fn sockets() -> Finding {
    match place::runtime() {
        Ok(dir) => found("sockets", Health::Good, dir.display().to_string()),
        Err(e) => found("sockets", Health::Bad, e.to_string()),
    }
}

fn computes(wanted: &str) -> Finding {
    match device::open(wanted) {
        Ok(opened) => match opened.note {
            None => found("device", Health::Good, opened.words),
            Some(note) => found("device", Health::Weak, format!("{}; {note}", opened.words)),
        },
        Err(e) => found("device", Health::Bad, e.to_string()),
    }
}

fn memory() -> Finding {
    let (free, all) = setup::memory();
    let health = if free < ROOM { Health::Weak } else { Health::Good };
    found("memory", health, format!("{:.1} of {:.1} GB available", free as f64 / 1e9, all as f64 / 1e9))
}

/// Whether agents would be answered.
fn endpoint(loaded: &Loaded) -> Finding {
    let settings = &loaded.settings;
    let Some(endpoint) = Endpoint::from_env(settings.llm_url.as_deref(), settings.llm_model.as_deref()) else {
        return found("agents", Health::Good, "no endpoint is set: the built-in planner proposes");
    };
    let at = endpoint.to_string();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(runtime) = runtime else { return found("agents", Health::Weak, format!("{at}: not asked")) };
    let timeouts = Timeouts { idle: ANSWERS, retries: 0, ..Timeouts::default() };
    let asked = runtime.block_on(async {
        let mut chat = Chat::open(&Endpoint { model: None, ..endpoint.clone() }, timeouts)?;
        chat.model(&mut async |_| {}).await
    });
    match (asked, &endpoint.model) {
        (Ok(_), Some(_)) => found("agents", Health::Good, format!("{at} answers")),
        (Ok(first), None) => found("agents", Health::Good, format!("{at} answers; its first model is `{first}`")),
        (Err(e), _) => found("agents", Health::Weak, format!("{e}; until then the built-in planner proposes")),
    }
}
