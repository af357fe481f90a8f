//! Hosts as processes: running one, starting one detached, finding and stopping them.
//!
//! Invariants: a detached host has its own session and no terminal (hang-ups do not reach it), logs to its session's
//! folder, and ends cleanly on SIGTERM; a socket without a host behind it is removed by whoever finds it.

use super::client::{Client, Messages};
use super::engine::Llm;
use super::log::Log;
use super::spec::OpenSpec;
use super::{Auto, Host, HostError, Settings, compute};
use crate::config::{self, Sources};
use crate::plain::Plain;
use crate::plan::Outcome;
use crate::session::{Command, Event, Journal, Phase, Place, State, is_locked};
use anyhow::{Context, bail};
use serde::Serialize;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Marks the line of a host's log that says why it did not start.
const FATAL: &str = "paring host: ";

/// Runs the host of the session at `place` in this process until it is stopped. The body of the hidden `host` command.
pub fn run_host(place: &Place) -> anyhow::Result<()> {
    let filter = tracing_subscriber::EnvFilter::try_from_env("PARING_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn,paring=info"));
    // Without a standard error there is nobody to tell.
    if let Ok(log) = Log::of_stderr(&place.log_file()) {
        let log = Mutex::new(Plain(log));
        drop(tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(log).try_init());
    }
    let result = host_until_stopped(place);
    if let Err(e) = &result {
        // The pipe to whoever started us may be gone.
        drop(writeln!(Plain(std::io::stderr()), "{FATAL}{}", format!("{e:#}").replace('\n', " ")));
    }
    result
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
    let auto = spec.as_ref().is_none_or(|s| s.auto);
    let settings = Settings {
        auto: Auto { on_open: auto, on_accept: auto, rehearse: auto },
        llm: Llm {
            base_url: spec.as_ref().and_then(|s| s.llm_url.clone()),
            model: spec.as_ref().and_then(|s| s.llm_model.clone()),
        },
        budget: spec.as_ref().map(|s| s.budget).unwrap_or_default(),
    };
    Host::start(place, settings, |card| compute::open(place, spec, card))
}

/// Whether a host answers for this session; a stale socket is removed.
pub fn is_running(place: &Place) -> bool {
    let running = is_locked(&place.dir);
    if !running && let Ok(socket) = place.socket() {
        drop(std::fs::remove_file(socket));
    }
    running
}

/// Starts the session's host as a process of its own, unless one runs, and waits until it listens. `waiting` is called
/// now and then meanwhile.
pub async fn spawn_detached(place: &Place, mut waiting: impl FnMut(Duration)) -> anyhow::Result<()> {
    let socket = place.socket()?;
    place.make().with_context(|| format!("cannot make `{}`", place.dir.display()))?;
    let log = File::options()
        .create(true)
        .append(true)
        .read(true)
        .mode(0o600)
        .open(place.log_file())
        .with_context(|| format!("cannot write `{}`; hint: set PARING_HOME", place.log_file().display()))?;
    let from = log.metadata()?.len();
    let mut command = std::process::Command::new(std::env::current_exe()?);
    command.arg("host").arg(&place.dir).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    // SAFETY: setsid is async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            libc::setsid();
            Ok(())
        });
    }
    let mut child = command.spawn().context("cannot start the host process")?;
    let began = Instant::now();
    loop {
        if tokio::net::UnixStream::connect(&socket).await.is_ok() {
            // Reaped here if it ends before this process does.
            std::thread::spawn(move || child.wait());
            return Ok(());
        }
        if let Some(status) = child.try_wait()? {
            // Another terminal may have started it at the same moment; then that host is as good.
            if is_locked(&place.dir) {
                tokio::time::sleep(Duration::from_millis(200)).await;
                if tokio::net::UnixStream::connect(&socket).await.is_ok() {
                    return Ok(());
                }
            }
            bail!(
                "{}",
                last_words(place, from).unwrap_or_else(|| format!(
                    "the host ended with {status}; hint: see `{}`",
                    place.log_file().display()
                ))
            );
        }
        waiting(began.elapsed());
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
}

/// Why a host that ended at once did not start, from its log after `from`.
fn last_words(place: &Place, from: u64) -> Option<String> {
    let mut log = File::open(place.log_file()).ok()?;
    // Set aside meanwhile, it begins anew.
    let from = if log.metadata().ok()?.len() < from { 0 } else { from };
    log.seek(SeekFrom::Start(from)).ok()?;
    let mut text = Vec::new();
    log.take(1 << 20).read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text);
    text.lines().rev().find_map(|l| l.strip_prefix(FATAL)).map(str::to_owned)
}

/// Connects to the session's host, starting it if none runs.
pub async fn attach(
    place: &Place,
    name: &str,
    watch: bool,
    waiting: impl FnMut(Duration),
) -> anyhow::Result<(Client, Messages)> {
    if !is_running(place) || tokio::net::UnixStream::connect(place.socket()?).await.is_err() {
        spawn_detached(place, waiting).await?;
    }
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
        let pid = crate::session::lock_holder(&place.dir).context("the host does not answer and its pid is unknown")?;
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
