//! One session of the real binary: its home, its host, a client that writes down what it heard, and the figures.

use crate::audit::{Heard, audit};
use crate::pty::Home;
use crate::small;
use paring::host::OpenSpec;
use paring::host::client::{Client, CommandError, Messages};
use paring::session::{Command, HostMsg, Journal, Place, Record, State};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// What a server knows and nobody else may.
pub const KEY: &str = "sk-soak-canary-7f3a91c2d4";
/// What a host may hold beyond its model, bytes.
pub const MEMORY: u64 = 400_000_000;
/// Within this a host that lives answers a command, on a machine with nothing to spare.
pub const PROMPT: Duration = Duration::from_secs(10);
/// Within this a host is there, or says why not.
pub const OPENS: Duration = Duration::from_secs(120);

/// A number from the environment.
pub fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |v| v.parse().unwrap_or_else(|_| panic!("{name}=`{v}` is no number")))
}

/// The seed, for a part of its own.
pub fn rng(part: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(setting("SOAK_SEED", 1).wrapping_mul(1_000).wrapping_add(part))
}

/// Until when a part goes on.
pub fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(setting("SOAK_SECONDS", 300))
}

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("runtime")
}

/// SIGKILL, by number.
pub fn kill(pid: i32) {
    // SAFETY: a plain system call on a process that this test started.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

/// The largest resident set of that process so far, bytes; `None` once it is gone.
pub fn peak(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
}

/// A session and what was heard of it, over all its hosts.
pub struct Rig {
    pub home: Home,
    pub place: Place,
    pub checkpoint: PathBuf,
    pub heard: Heard,
    pub host: Option<Child>,
    /// Largest memory of any host beyond the model, bytes.
    pub beyond: u64,
    /// The longest that a command waited for its answer.
    pub slowest: Duration,
}

/// One connection to a host, and the state folded from what came over it.
pub struct Line {
    pub client: Client,
    pub messages: Messages,
    pub state: State,
}

impl Rig {
    /// A session that is not open yet; `change` says what is other than usual.
    pub fn new(env: &[(&str, &str)], change: impl FnOnce(&Home, OpenSpec) -> OpenSpec) -> Rig {
        let home = Home::new(&[&[("OPENAI_API_KEY", KEY), ("PARING_LOG", "debug")], env].concat());
        let checkpoint = home.path("model.safetensors");
        small::model(&checkpoint, 3);
        let place = Place::at(&home.path("home").join("sessions").join("soak"));
        std::fs::create_dir_all(&place.dir).expect("made");
        change(&home, small::spec(&checkpoint)).save(&place).expect("saved");
        Rig { home, place, checkpoint, heard: Heard::default(), host: None, beyond: 0, slowest: Duration::ZERO }
    }

    /// The host's command, to be started as the caller likes.
    pub fn command(&self) -> std::process::Command {
        let mut command = self.home.command(&["host", self.place.dir.to_str().expect("utf-8")]);
        let append = |path: PathBuf| std::fs::File::options().create(true).append(true).open(path);
        // A folder that nobody may write to has room for no log either.
        let said = append(self.place.log_file()).or_else(|_| append(self.home.path("said"))).expect("a log");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said);
        command
    }

    pub fn start(&mut self) {
        self.host = Some(self.command().spawn().expect("the host starts"));
    }

    pub fn pid(&self) -> u32 {
        self.host.as_ref().expect("a host").id()
    }

    /// The session's socket, in the home's own runtime folder.
    pub fn socket(&self) -> PathBuf {
        let name = self.place.socket().expect("socket");
        self.home.path("run").join("paring").join(name.file_name().expect("named"))
    }

    /// Connects to the host, or says how it ended instead.
    pub async fn connect(&mut self) -> Result<Line, String> {
        let began = Instant::now();
        let socket = self.socket();
        loop {
            let host = self.host.as_mut().expect("a host");
            if let Some(status) = host.try_wait().expect("a child") {
                return Err(format!("the host ended: {status}"));
            }
            if let Ok((client, messages)) = Client::connect(&socket, "soak", false).await {
                let mut line = Line { client, messages, state: State::default() };
                let heard = tokio::time::timeout(OPENS, line.messages.recv()).await;
                match heard.map_err(|_| "no welcome".to_owned())? {
                    Some(message) => self.hear(&mut line.state, &message),
                    None => continue,
                }
                return Ok(line);
            }
            if began.elapsed() > OPENS {
                return Err(format!("nobody answers after {OPENS:?}"));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn hear(&mut self, state: &mut State, message: &HostMsg) {
        self.heard.listen(message);
        match message {
            HostMsg::Welcome { state: s, .. } => *state = (**s).clone(),
            HostMsg::Event { record } => state.apply(record),
            _ => {}
        }
    }

    /// Takes in what has come so far.
    pub fn catch_up(&mut self, line: &mut Line) {
        while let Some(message) = line.messages.try_recv() {
            self.hear(&mut line.state, &message);
        }
    }

    /// Waits for one more message; `false` when there was none in time, or the host is gone.
    pub async fn wait(&mut self, line: &mut Line, most: Duration) -> bool {
        match tokio::time::timeout(most, line.messages.recv()).await {
            Ok(Some(message)) => {
                self.hear(&mut line.state, &message);
                true
            }
            Ok(None) => {
                // Ends come at once: whoever waits in a loop shall not spin.
                tokio::time::sleep(Duration::from_millis(10).min(most)).await;
                false
            }
            Err(_) => false,
        }
    }

    /// Listens until the state is as wanted; `false` when it is not in time.
    pub async fn until(&mut self, line: &mut Line, most: Duration, wanted: impl Fn(&State) -> bool) -> bool {
        let ends = Instant::now() + most;
        self.catch_up(line);
        while !wanted(&line.state) {
            let left = ends.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            self.wait(line, left.min(Duration::from_millis(100))).await;
        }
        true
    }

    /// Sends a command; what is acknowledged is written down. An answer that does not come in time is the end of the test.
    pub async fn send(&mut self, line: &mut Line, command: Command) -> Result<(), CommandError> {
        let began = Instant::now();
        let asked = command.clone();
        let answer = tokio::time::timeout(PROMPT, line.client.command(command)).await;
        let answer = answer.unwrap_or_else(|_| panic!("no answer to {asked:?} within {PROMPT:?}"));
        self.slowest = self.slowest.max(began.elapsed());
        match &answer {
            Ok(()) => self.heard.acknowledged(&asked),
            Err(CommandError::Refused(words)) => assert!(words.contains("hint:"), "{words}"),
            Err(CommandError::Gone) => {}
        }
        self.catch_up(line);
        answer
    }

    /// The host's memory, held against what it may have.
    pub fn weigh(&mut self) {
        let Some(peak) = self.host.as_ref().and_then(|h| peak(h.id())) else { return };
        let model = std::fs::metadata(&self.checkpoint).map_or(0, |m| m.len());
        self.beyond = self.beyond.max(peak.saturating_sub(model));
        assert!(self.beyond < MEMORY, "the host has had {} MB beyond its model", self.beyond / 1_000_000);
    }

    pub fn kill(&mut self) {
        self.weigh();
        let mut host = self.host.take().expect("a host");
        host.kill().expect("killed");
        host.wait().expect("reaped");
    }

    /// The host's end, however it came about; one that does not come in time is the end of the test.
    pub fn ended(&mut self, most: Duration) {
        let mut host = self.host.take().expect("a host");
        let began = Instant::now();
        while host.try_wait().expect("a child").is_none() {
            if began.elapsed() > most {
                kill(host.id() as i32);
                host.wait().expect("reaped");
                panic!("the host does not end within {most:?}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn records(&self) -> Vec<Record> {
        Journal::read(&self.place.dir).expect("the journal is readable")
    }

    /// The journal against what was heard, and against itself.
    pub fn check(&mut self) -> Result<State, String> {
        let records = Journal::read(&self.place.dir).map_err(|e| e.to_string())?;
        self.heard.check(&records)?;
        audit(&records, &self.place.artifacts(), &mut self.heard.loaded)
    }

    /// The key is in no file of this home.
    pub fn no_secret(&self) -> Result<(), String> {
        let mut left = vec![self.home.dir.path().to_owned()];
        while let Some(dir) = left.pop() {
            for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
                let Ok(kind) = entry.file_type() else { continue };
                if kind.is_dir() {
                    left.push(entry.path());
                } else if kind.is_file() {
                    let bytes = std::fs::read(entry.path()).unwrap_or_default();
                    if bytes.windows(KEY.len()).any(|w| w == KEY.as_bytes()) {
                        return Err(format!("the key is in `{}`", entry.path().display()));
                    }
                }
            }
        }
        Ok(())
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(mut host) = self.host.take() {
            // Gone already is as good.
            let _ = host.kill();
            let _ = host.wait();
        }
    }
}
