//! The real binary in a pseudo-terminal, its screen read back through a terminal emulator.
#![allow(dead_code)]

use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};
use serde_json::Value;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The longest that anything may take on a busy machine; reaching it is a failure that prints the screen.
pub const LONG: Duration = Duration::from_secs(600);

/// A home of its own for sessions, sockets and settings; ends the sessions' hosts when dropped.
pub struct Home {
    pub dir: tempfile::TempDir,
    env: Vec<(String, String)>,
}

impl Home {
    pub fn new(env: &[(&str, &str)]) -> Home {
        let dir = tempfile::tempdir().expect("temporary folder");
        for sub in ["home", "run", "config"] {
            std::fs::create_dir(dir.path().join(sub)).expect("folder");
        }
        let at = |sub: &str| dir.path().join(sub).display().to_string();
        let mut all = vec![
            ("PARING_HOME".to_owned(), at("home")),
            ("HOME".to_owned(), at("home")),
            ("XDG_RUNTIME_DIR".to_owned(), at("run")),
            ("XDG_CONFIG_HOME".to_owned(), at("config")),
            ("TERM".to_owned(), "xterm-256color".to_owned()),
            ("COLORTERM".to_owned(), "truecolor".to_owned()),
            ("LANG".to_owned(), "C.UTF-8".to_owned()),
            // What is tested here is not how well latency is known.
            ("PARING_PATIENCE".to_owned(), "0.1".to_owned()),
        ];
        all.extend(env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())));
        Home { dir, env: all }
    }

    /// Sets a variable for what is started from now on.
    pub fn set(&mut self, name: &str, value: &str) {
        self.env.retain(|(n, _)| n != name);
        self.env.push((name.to_owned(), value.to_owned()));
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Variables of the developer's own that must not reach the program under test.
    const UNSET: [&'static str; 9] = [
        "OPENAI_BASE_URL",
        "OPENAI_API_KEY",
        "PARING_LLM_MODEL",
        "PARING_LLM_TRUSTED",
        "PARING_BUDGET",
        "PARING_THEME",
        "PARING_COLORS",
        "PARING_ASCII",
        "NO_COLOR",
    ];

    /// What a program of this home finds in its environment.
    pub fn variables(&self) -> impl Iterator<Item = (&str, &str)> {
        self.env.iter().map(|(k, v)| (k.as_str(), v.as_str()))
    }

    /// Runs a subcommand without a terminal.
    pub fn run(&self, args: &[&str]) -> std::process::Output {
        self.command(args).output().expect("the binary runs")
    }

    /// A subcommand, to be run as the caller likes.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut c = Command::new(binary());
        c.args(args).current_dir(self.dir.path());
        for name in Home::UNSET {
            c.env_remove(name);
        }
        c.envs(self.env.iter().map(|(k, v)| (k, v)));
        c
    }

    /// As [`Home::run`], with its standard output as JSON.
    pub fn json(&self, args: &[&str]) -> Value {
        let out = self.run(args);
        let (text, err) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert!(out.status.success(), "{args:?}: {:?}\n{text}\n{err}", out.status);
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{args:?}: {e}\n{text}\n{err}"))
    }

    /// The session's events, oldest first.
    pub fn events(&self, session: &str) -> Vec<Value> {
        let out = self.run(&["log", session, "--json"]);
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let records: Vec<Value> = match serde_json::from_str::<Value>(&text) {
            Ok(Value::Array(a)) => a,
            _ => text.lines().map(|l| serde_json::from_str(l).expect("a JSON line")).collect(),
        };
        records.into_iter().map(|r| r["event"].clone()).collect()
    }

    /// The events of one kind.
    pub fn events_of(&self, session: &str, kind: &str) -> Vec<Value> {
        self.events(session).into_iter().filter(|e| e["event"] == kind).collect()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let list = self.run(&["ls", "--json"]);
        let sessions: Value = serde_json::from_slice(&list.stdout).unwrap_or(Value::Null);
        for s in sessions.as_array().into_iter().flatten() {
            if let Some(name) = s["name"].as_str() {
                self.run(&["stop", name]);
            }
        }
    }
}

fn binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_paring"))
}

/// The program on a terminal.
pub struct Term {
    screen: Arc<Mutex<vt100::Parser>>,
    keys: Arc<Mutex<Box<dyn Write + Send>>>,
    child: Box<dyn Child + Send + Sync>,
    _pty: Box<dyn MasterPty + Send>,
}

impl Term {
    pub fn start(home: &Home, args: &[&str], columns: u16, rows: u16) -> Term {
        let size = PtySize { rows, cols: columns, pixel_width: 0, pixel_height: 0 };
        let pair = native_pty_system().openpty(size).expect("a pseudo-terminal");
        let mut c = CommandBuilder::new(binary());
        c.args(args);
        c.cwd(home.dir.path());
        for name in Home::UNSET {
            c.env_remove(name);
        }
        for (k, v) in &home.env {
            c.env(k, v);
        }
        let child = pair.slave.spawn_command(c).expect("the binary starts");
        drop(pair.slave);
        let mut out = pair.master.try_clone_reader().expect("reader");
        let keys = Arc::new(Mutex::new(pair.master.take_writer().expect("writer")));
        let screen = Arc::new(Mutex::new(vt100::Parser::new(rows, columns, 0)));
        let (sink, answers) = (screen.clone(), keys.clone());
        std::thread::spawn(move || {
            let mut buf = [0; 8192];
            // An error means that the program has closed its side.
            while let Ok(n @ 1..) = out.read(&mut buf) {
                let at = {
                    let mut parser = lock(&sink);
                    parser.process(&buf[..n]);
                    parser.screen().cursor_position()
                };
                // As every terminal does when it is asked for the cursor.
                if buf[..n].windows(4).any(|w| w == b"\x1b[6n") {
                    let mut keys = answers.lock().unwrap_or_else(PoisonError::into_inner);
                    let _ = write!(keys, "\x1b[{};{}R", at.0 + 1, at.1 + 1).and_then(|()| keys.flush());
                }
            }
        });
        Term { screen, keys, child, _pty: pair.master }
    }

    /// The screen's text.
    pub fn text(&self) -> String {
        lock(&self.screen).screen().contents()
    }

    /// Waits until the screen satisfies `ok`; fails with the screen after `within`.
    pub fn wait_for(&self, what: &str, within: Duration, ok: impl Fn(&str) -> bool) -> String {
        let began = Instant::now();
        loop {
            let text = self.text();
            if ok(&text) {
                return text;
            }
            assert!(began.elapsed() < within, "waited {within:?} for {what}; the screen shows:\n{text}");
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    /// Waits until the screen shows `needle`.
    pub fn wait(&self, needle: &str) -> String {
        self.wait_for(&format!("`{needle}`"), LONG, |t| t.contains(needle))
    }

    /// Types characters or control sequences as they are.
    pub fn press(&mut self, keys: &str) {
        let mut to = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        to.write_all(keys.as_bytes()).and_then(|()| to.flush()).expect("keys");
    }

    /// Ends the session's host by command, and with it the program.
    pub fn stop(&mut self) {
        self.press(":stop\r");
        self.wait("sure?");
        self.press("y");
        assert_eq!(self.end(), 0);
    }

    /// SIGKILL, at once: the program gets no chance to tidy up.
    pub fn kill(&mut self) {
        let pid = self.child.process_id().expect("a child") as i32;
        // SAFETY: a plain system call on our own child, which has not been reaped.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        self.child.wait().expect("reaped");
    }

    /// Waits for the program to end and returns its exit code.
    pub fn end(&mut self) -> u32 {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("child") {
                return status.exit_code();
            }
            assert!(began.elapsed() < LONG, "the program does not end; the screen shows:\n{}", self.text());
            std::thread::sleep(Duration::from_millis(30));
        }
    }
}

impl Drop for Term {
    fn drop(&mut self) {
        // Already gone is as good.
        let _ = self.child.kill();
    }
}

/// `review 3/7` in the header: settled and all.
pub fn review(screen: &str) -> Option<(usize, usize)> {
    let rest = screen.split("review ").nth(1)?;
    let (a, b) = rest.split(|c: char| !(c.is_ascii_digit() || c == '/')).next()?.split_once('/')?;
    Some((a.parse().ok()?, b.parse().ok()?))
}

fn lock(m: &Mutex<vt100::Parser>) -> MutexGuard<'_, vt100::Parser> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}
