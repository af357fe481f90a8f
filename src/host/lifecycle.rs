//! Hosts as processes: running one, starting one detached, finding and stopping them.
//!
//! Invariants: a detached host has its own session and no terminal (hang-ups do not reach it), logs to its session's
//! folder as far as that can be written, and ends cleanly on SIGTERM; whoever asks for a session gets the one host that has
//! it, however many ask at once.

use super::client::{Client, Messages};
use super::engine::Llm;
use super::ledger::Ledger;
use super::log::Log;
use super::spec::OpenSpec;
use super::{Auto, Host, HostError, Settings, compute};
use crate::config::Policy;
use crate::config::{self, Sources};
use crate::plain::Plain;
use crate::plan::{Budget, Outcome};
use crate::session::{Command, Event, Journal, JournalError, Phase, Place, State, is_locked, lock_holder, private};
use anyhow::{Context, bail};
use serde::Serialize;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Before the words that say why a host did not start.
const FATAL: &str = "paring host: ";
/// Most that is read of such words.
const LAST_WORDS: u64 = 64 << 10;
/// Hosts that are started for one who asks, each after another's host that had the session has ended.
const STARTS: usize = 5;
/// How often it is looked whether a host listens.
const LOOK: Duration = Duration::from_millis(25);
/// How long another's host may have the session without listening: what loads a large model does, what only exports or
/// runs without a screen never will.
const SILENT: Duration = Duration::from_secs(180);
/// Exit code of a `host` command that found another host with the session.
pub const IN_USE: u8 = 5;

/// How the `host` command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Served {
    /// To its end.
    Done,
    /// Not at all: another host has the session.
    Elsewhere,
}

/// Runs the host of the session at `place` in this process until it is stopped. The body of the hidden `host` command.
pub fn run_host(place: &Place) -> anyhow::Result<Served> {
    let filter = tracing_subscriber::EnvFilter::try_from_env("PARING_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn,paring=info"));
    // A line that finds no room is lost; without a standard error there is nobody to tell. What the subscriber would say
    // about that goes through a macro that panics when it, too, finds none.
    if let Ok(log) = Log::of_stderr(&place.log_file()) {
        let said = tracing_subscriber::fmt().log_internal_errors(false).with_env_filter(filter).with_ansi(false);
        drop(said.with_writer(Mutex::new(Plain(log))).try_init());
    }
    let result = host_until_stopped(place);
    if let Err(e) = &result {
        let words = format!("{FATAL}{}", format!("{e:#}").replace('\n', " "));
        // For the log, and for whoever started us, who may be gone; the log may have no room.
        drop(writeln!(Plain(std::io::stderr()), "{words}"));
        drop(writeln!(Plain(std::io::stdout()), "{words}").and_then(|()| std::io::stdout().flush()));
    }
    match result {
        Err(e) if matches!(e.downcast_ref(), Some(HostError::Journal(JournalError::Locked { .. }))) => {
            Ok(Served::Elsewhere)
        }
        other => other.map(|()| Served::Done),
    }
}

fn host_until_stopped(place: &Place) -> anyhow::Result<()> {
    // SAFETY: ignoring a signal has no preconditions; a terminal that goes away must not take the host along.
    unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).thread_name("io").enable_all().build()?;
    let user = config::load(&Sources { project: None, ..Sources::of_process(Vec::new()) }).settings;
    let spec = OpenSpec::load(place).map(|spec| {
        let (spec, ignored) = spec.granted(place, &user);
        ignored.iter().for_each(|words| tracing::warn!("{words}"));
        spec
    });
    let host = start(place, spec)?;
    if let Some(words) = &host.recovered {
        tracing::warn!("{words}");
    }
    runtime.block_on(async {
        use tokio::signal::unix::{SignalKind, signal};
        let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let serving = host.serve(place);
        tokio::pin!(serving);
        loop {
            tokio::select! {
                served = &mut serving => return served.map_err(anyhow::Error::from),
                _ = term.recv() => host.stop("the host was asked to end").await,
                _ = int.recv() => host.stop("the host was asked to end").await,
            }
        }
    })
}

/// Starts a host in this process on real compute. A new session needs `spec`.
pub fn start(place: &Place, spec: Option<OpenSpec>) -> Result<Host, HostError> {
    let llm = |s: &OpenSpec| Llm {
        base_url: s.llm_url.clone(),
        model: s.llm_model.clone(),
        roles: s.llm_roles.clone(),
        looks: s.looks,
        limits: s.limits,
    };
    let of = |s: &OpenSpec| (s.auto, llm(s), s.budget, s.rules.clone());
    let usual = || (true, Llm::default(), Budget::default(), Policy::default());
    let (auto, llm, budget, rules) = spec.as_ref().map_or_else(usual, of);
    let settings = Settings {
        auto: Auto { on_open: auto, on_accept: auto, rehearse: auto },
        llm,
        budget,
        rules,
        ledger: Ledger::of(place),
    };
    Host::start(place, settings, |card| compute::open(place, spec, card))
}

/// Starts a host in this process that needs neither the session's model nor its data, for exports.
pub fn start_shelf(place: &Place) -> Result<Host, HostError> {
    Host::start(place, Settings::default(), |card| compute::archive(place, card))
}

/// Whether a host has this session. It may not listen yet.
///
/// A socket that a dead host left is not touched: only who holds the session's lock knows that it is stale, and removes it
/// before it binds its own.
pub fn is_running(place: &Place) -> bool {
    is_locked(&place.dir)
}

/// A host process that was started, and how its end is known.
struct Started {
    child: std::process::Child,
    /// Where its log was when it began.
    log_from: u64,
}

/// Waits until the session's host listens, and starts one as a process of its own where none has the session. Of several
/// who ask at once, one gets to start it and the others wait for the same. `waiting` is called now and then meanwhile.
pub async fn spawn_detached(place: &Place, mut waiting: impl FnMut(Duration)) -> anyhow::Result<()> {
    let socket = place.socket()?;
    place.make().with_context(|| format!("cannot make `{}`", place.dir.display()))?;
    let began = Instant::now();
    let mut starts = 0;
    let mut ours: Option<Started> = None;
    loop {
        if tokio::net::UnixStream::connect(&socket).await.is_ok() {
            if let Some(mut ours) = ours {
                // Reaped here if it ends before this process does.
                std::thread::spawn(move || ours.child.wait());
            }
            return Ok(());
        }
        match &mut ours {
            Some(host) => {
                if let Some(status) = host.child.try_wait()? {
                    // That another host has it is no failure: it is as good.
                    let elsewhere = status.code() == Some(i32::from(IN_USE));
                    if !elsewhere || (starts >= STARTS && !is_locked(&place.dir)) {
                        bail!("{}", last_words(place, host, status));
                    }
                    ours = None;
                }
            }
            // Somebody's host is on its way, or ends just now.
            None if is_locked(&place.dir) => {
                if began.elapsed() > SILENT {
                    bail!(
                        "session `{}` is in use by process {}, which takes no clients; hint: wait for it to end",
                        place.name,
                        lock_holder(&place.dir).map_or_else(|| "unknown".to_owned(), |pid| pid.to_string())
                    );
                }
            }
            None => {
                starts += 1;
                ours = Some(start_process(place)?);
            }
        }
        waiting(began.elapsed());
        tokio::time::sleep(LOOK).await;
    }
}

fn start_process(place: &Place) -> anyhow::Result<Started> {
    let log = private::append(&place.log_file())
        .with_context(|| format!("cannot write `{}`; hint: set PARING_HOME", place.log_file().display()))?;
    let log_from = log.metadata()?.len();
    let mut command = std::process::Command::new(std::env::current_exe()?);
    command.arg("host").arg(&place.dir).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
    // SAFETY: setsid is async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            libc::setsid();
            Ok(())
        });
    }
    let child = command.spawn().context("cannot start the host process")?;
    Ok(Started { child, log_from })
}

/// Why a host that has ended did not start: in its own words, through the pipe, or from its log.
fn last_words(place: &Place, host: &mut Started, status: std::process::ExitStatus) -> String {
    let said = |text: &[u8]| -> Option<String> {
        let text = String::from_utf8_lossy(text);
        text.lines().rev().find_map(|l| l.strip_prefix(FATAL)).map(str::to_owned)
    };
    let mut text = Vec::new();
    if let Some(out) = host.child.stdout.take() {
        drop(out.take(LAST_WORDS).read_to_end(&mut text));
    }
    let logged = || -> Option<String> {
        let mut log = private::open(&place.log_file()).ok()?;
        // Set aside meanwhile, it begins anew.
        let from = if log.metadata().ok()?.len() < host.log_from { 0 } else { host.log_from };
        log.seek(SeekFrom::Start(from)).ok()?;
        let mut text = Vec::new();
        log.take(LAST_WORDS).read_to_end(&mut text).ok()?;
        said(&text)
    };
    said(&text)
        .or_else(logged)
        .unwrap_or_else(|| format!("the host ended with {status}; hint: see `{}`", place.log_file().display()))
}

/// Connects to the session's host, starting it if none runs.
pub async fn attach(
    place: &Place,
    name: &str,
    watch: bool,
    waiting: impl FnMut(Duration),
) -> anyhow::Result<(Client, Messages)> {
    spawn_detached(place, waiting).await?;
    Ok(Client::connect(&place.socket()?, name, watch).await?)
}

/// Ends the session's host: by command, or if it does not answer by SIGTERM. False when none ran.
pub async fn stop(place: &Place) -> anyhow::Result<bool> {
    if !is_running(place) {
        return Ok(false);
    }
    let asked = async {
        let (client, messages) = Client::connect(&place.socket()?, "paring stop", true).await?;
        client.command(Command::TakePen).await?;
        client.command(Command::Stop).await?;
        drop(messages);
        anyhow::Ok(())
    };
    if !matches!(tokio::time::timeout(Duration::from_secs(10), asked).await, Ok(Ok(()))) {
        let pid = lock_holder(&place.dir).context("the host does not answer and its pid is unknown")?;
        // SAFETY: plain system call; the pid is the lock holder's own.
        unsafe { libc::kill(pid, libc::SIGTERM) };
    }
    let began = Instant::now();
    while is_locked(&place.dir) {
        if began.elapsed() > Duration::from_secs(20) {
            bail!("the host of `{}` does not end; hint: see `{}`", place.name, place.log_file().display());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(true)
}

/// One line of `paring ls`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Listed {
    pub name: String,
    pub running: bool,
    pub model: String,
    pub data: String,
    pub round: u32,
    pub phase: Phase,
    pub approved: usize,
    pub applied: usize,
    /// Newest verdict.
    pub outcome: Option<Outcome>,
    pub changed_ms: i64,
    /// Why the journal could not be read.
    pub error: Option<String>,
}

/// What is known of a session without its host.
pub fn list(place: &Place) -> Listed {
    let running = is_running(place);
    let (records, error) = match Journal::read(&place.dir) {
        Ok(records) => (records, None),
        Err(e) => (Vec::new(), Some(e.to_string())),
    };
    let state = State::fold(&records);
    let card = state.card.as_ref();
    Listed {
        name: place.name.clone(),
        running,
        model: card.map(|c| c.model.name.clone()).unwrap_or_default(),
        data: card.map(|c| c.data.name.clone()).unwrap_or_default(),
        round: state.round,
        phase: state.phase,
        approved: state.pending().len(),
        applied: state.in_force().len(),
        outcome: state.rounds.iter().rev().find_map(|r| r.verdict.as_ref()).map(|v| v.outcome),
        changed_ms: records.last().map_or(0, |r| r.at_ms),
        error,
    }
}

/// Whether a journal holds an opened session.
pub fn is_opened(place: &Place) -> bool {
    Journal::read(&place.dir).is_ok_and(|r| r.iter().any(|r| matches!(r.event, Event::Opened { .. })))
}
