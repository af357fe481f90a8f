//! Arguments, validated settings and the subcommands' entry points. What a command does lives in `host`, `headless` and
//! `tui`.
//!
//! Invariants: standard output carries data only; every failure says what failed and what to do; the exit codes are
//! those of [`Exit`].

mod kept;
mod panics;
mod sessions;

use crate::agent::Endpoint;
use crate::args::{Cli, Cmd, Demo, Images, On, Rank, Screen};
use crate::config::{self, Settings, Sources};
use crate::headless::out::{self, tell};
use crate::headless::{self, Exit};
use crate::host::{OpenSpec, lifecycle};
use crate::session::{Opening, Place};
use anyhow::{Result, bail};
use clap::Parser;

/// The command line or a settings file says something that cannot be.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// Runs the program: parses the command line, dispatches, and prints an error with its causes on standard error.
pub fn main() -> Exit {
    panics::install();
    // SAFETY: ignoring a signal has no preconditions. A file that may not grow is then an error of the write, as a full disk
    // is, instead of the end of whoever writes.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            if e.use_stderr() {
                // It quotes what was typed, which a shell may have taken from the names of files.
                out::words(format_args!("{}", e.render()));
                return Exit::Usage;
            }
            return match e.print() {
                Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
                    tell!("paring: standard output cannot be written: {e}");
                    Exit::Failed
                }
                _ => Exit::Done,
            };
        }
    };
    match dispatch(cli).and_then(|exit| Ok(out::flush().map(|()| exit)?)) {
        Ok(exit) => exit,
        Err(e) if e.is::<headless::Cancelled>() => {
            tell!("paring: cancelled");
            Exit::Cancelled
        }
        Err(e) => {
            out::complain(&format!("{e:#}"));
            if e.is::<UsageError>() { Exit::Usage } else { Exit::Failed }
        }
    }
}

fn dispatch(cli: Cli) -> Result<Exit> {
    let screen = cli.screen;
    let Some(command) = cli.command else {
        let settings = settings(&screen, None, Session::default())?;
        reachable(&settings)?;
        return sessions::open(demo_spec(&settings), None, false, settings);
    };
    match command {
        Cmd::Open(o) => {
            let asked = Session {
                budget: o.budget.as_deref(),
                seed: o.seed,
                url: o.llm_url.as_deref(),
                llm: o.llm_model.as_deref(),
                ..Session::default()
            };
            let settings = settings(&screen, Some(&o.on), asked)?;
            reachable(&settings)?;
            let data = o.data.clone().unwrap_or_default();
            let spec = OpenSpec { data, ..spec_of(&o.model, &o.images, &o.rank, &o.on, &settings)? };
            sessions::open(complete(spec)?, o.name.as_deref(), o.detach, settings)
        }
        Cmd::Attach { name, watch } => {
            let settings = settings(&screen, None, Session::default())?;
            sessions::attach(name.as_deref(), watch, settings)
        }
        Cmd::Ls { json } => sessions::ls(json),
        Cmd::Stop { name } => sessions::stop(&name),
        Cmd::Log { name, json } => sessions::log(&name, json),
        Cmd::Profile(mut p) => {
            let asked = Session { macs: p.macs.as_deref(), ..Session::default() };
            let settings = settings(&screen, Some(&p.on), asked)?;
            p.on = settled(p.on, &settings);
            headless::profile::run(&p, settings.mac_convention, settings.patience)
        }
        Cmd::Eval(mut e) => {
            let asked = Session { calibration: e.calibration.as_deref(), ..Session::default() };
            let settings = settings(&screen, Some(&e.on), asked)?;
            e.on = settled(e.on, &settings);
            headless::eval::run(&e, settings.calibration)
        }
        Cmd::Convert(mut c) => {
            let asked = Session { calibration: c.calibration.as_deref(), ..Session::default() };
            let settings = settings(&screen, Some(&c.on), asked)?;
            c.on = settled(c.on, &settings);
            headless::convert::run(&c, settings.calibration)
        }
        Cmd::Selftest(s) => {
            let on = On { device: s.device.clone(), threads: s.threads, ..On::default() };
            let settings = settings(&screen, Some(&on), Session::default())?;
            headless::selftest::run(&settled(on, &settings), s.json)
        }
        Cmd::Run(r) => {
            let asked = Session {
                budget: r.budget.as_deref(),
                seed: r.seed,
                calibration: r.calibration.as_deref(),
                url: r.llm_url.as_deref(),
                llm: r.llm_model.as_deref(),
                ..Session::default()
            };
            let settings = settings(&screen, Some(&r.on), asked)?;
            reachable(&settings)?;
            let data = r.data.clone().unwrap_or_default();
            let spec = spec_of(&r.model, &r.images, &r.rank, &r.on, &settings)?;
            let how = Opening { blind: true, ..spec.how };
            let spec = OpenSpec { how, data, auto: false, ..spec };
            let wanted = headless::run::Wanted {
                policy: headless::policy::Policy::load(&r.policy).map_err(UsageError)?,
                rounds: r.rounds.max(1),
                out: std::path::absolute(&r.out)?,
                precision: r.precision.as_deref().map(headless::setup::precision).transpose()?,
                sparsity: r.sparsity.as_deref().map(str::parse).transpose().map_err(UsageError)?,
                agents: r.llm_model.is_some() || r.llm_url.is_some(),
            };
            headless::run::run(complete(spec)?, &wanted, r.json)
        }
        Cmd::Export { name, out, format, json } => sessions::export(&name, out.as_deref(), &format, json),
        Cmd::Demo { what: Demo::Train { kind, seed, out } } => headless::demo::train(&kind, seed, &out),
        Cmd::Demo { what: Demo::Images { split, count, out } } => headless::demo::images(&split, count, &out),
        Cmd::Screenshot { name, size, out, keys } => {
            let settings = settings(&screen, None, Session::default())?;
            sessions::screenshot(&name, &size, &out, &keys, settings)
        }
        Cmd::Host { dir } => Ok(match lifecycle::run_host(&Place::at(&dir))? {
            lifecycle::Served::Done => Exit::Done,
            lifecycle::Served::Elsewhere => Exit::InUse,
        }),
    }
}

/// What a command asks for besides, where it has a flag for that.
#[derive(Default)]
struct Session<'a> {
    macs: Option<&'a str>,
    budget: Option<&'a str>,
    seed: Option<u64>,
    calibration: Option<&'a str>,
    url: Option<&'a str>,
    llm: Option<&'a str>,
}

/// Flags as the topmost layer of settings.
fn flags(screen: &Screen, on: Option<&On>, session: Session<'_>) -> Vec<(String, String)> {
    let mut out = Vec::new();
    let mut set = |key: &str, value: Option<String>| out.extend(value.map(|v| (key.to_owned(), v)));
    set("screen.theme", screen.theme.clone());
    set("screen.colors", screen.colors.clone());
    set("screen.ascii", screen.ascii.then(|| "true".to_owned()));
    set("session.device", on.and_then(|o| o.device.clone()));
    set("session.tf32", on.is_some_and(|o| o.tf32).then(|| "true".to_owned()));
    set("session.threads", on.and_then(|o| o.threads).map(|n| n.to_string()));
    set("session.batch", on.and_then(|o| o.batch).map(|n| n.to_string()));
    set("session.seed", session.seed.map(|n| n.to_string()));
    set("session.calibration", session.calibration.map(str::to_owned));
    set("session.budget", session.budget.map(str::to_owned));
    set("llm.base_url", session.url.map(str::to_owned));
    set("llm.model", session.llm.map(str::to_owned));
    set("screen.mac_convention", session.macs.map(str::to_owned));
    out
}

/// All layers of settings; whatever is wrong in any of them is told, all at once.
fn settings(screen: &Screen, on: Option<&On>, session: Session<'_>) -> Result<Settings> {
    let loaded = config::load(&Sources::of_process(flags(screen, on, session)));
    for ignored in &loaded.ignored {
        out::complain(&ignored.to_string());
    }
    if loaded.diagnostics.is_empty() {
        return Ok(loaded.settings);
    }
    let mut all: Vec<String> = loaded.diagnostics.iter().map(ToString::to_string).collect();
    let last = all.pop().unwrap_or_default();
    all.iter().for_each(|d| out::complain(d));
    Err(UsageError(last).into())
}

/// What the layers of settings say of device, threads and batch, where `on` was the topmost of them.
fn settled(on: On, settings: &Settings) -> On {
    let given = |n: usize| (n > 0).then_some(n);
    On {
        device: Some(settings.device.clone()),
        tf32: settings.tf32,
        threads: given(settings.threads),
        batch: given(settings.batch),
        ..on
    }
}

/// An endpoint to which nothing would be sent is refused before a session is opened with it.
fn reachable(settings: &Settings) -> Result<()> {
    let Some(url) = &settings.llm_url else { return Ok(()) };
    let endpoint = Endpoint::new(url, "", None).trusting(&settings.llm_trusted);
    Ok(endpoint.check().map_err(|e| UsageError(e.to_string()))?)
}

/// What flags and settings say of a session on `model`; data is the caller's to fill in.
fn spec_of(model: &str, images: &Images, rank: &Rank, on: &On, settings: &Settings) -> Result<OpenSpec> {
    let set = set(OpenSpec::demo("vit"), settings);
    let how = Opening {
        model: model.to_owned(),
        arch: on.arch.as_deref().map(str::parse).transpose().map_err(UsageError)?,
        image: on.image_size,
        heads: on.heads,
        calib_is_eval: images.calib_is_eval,
        importance: rank.importance.as_deref().map(str::parse).transpose().map_err(UsageError)?.unwrap_or_default(),
        ..set.how
    };
    Ok(OpenSpec {
        how,
        mean: on.mean.as_deref().map(headless::setup::triple).transpose()?,
        std: on.std.as_deref().map(headless::setup::triple).transpose()?,
        calib: images.calib.clone(),
        calib_limit: images.calib_limit,
        limit: images.limit,
        ..set
    })
}

fn demo_spec(settings: &Settings) -> OpenSpec {
    let demo = OpenSpec::demo("vit");
    let budget = if settings.budget == crate::plan::Budget::default() { demo.budget } else { settings.budget };
    OpenSpec { budget, ..set(demo, settings) }
}

/// `spec` with all that settings say.
fn set(spec: OpenSpec, settings: &Settings) -> OpenSpec {
    let (tf32, threads, batch) = (settings.tf32, settings.threads, settings.batch);
    OpenSpec {
        how: Opening { device: settings.device.clone(), tf32, threads, batch, ..spec.how },
        budget: settings.budget,
        patience: settings.patience,
        seed: settings.seed,
        calibration: settings.calibration,
        llm_url: settings.llm_url.clone(),
        llm_model: settings.llm_model.clone(),
        ..spec
    }
}

/// Data of a bundled model may be left out; of others it must be given.
fn complete(mut spec: OpenSpec) -> Result<OpenSpec> {
    let demo = spec.how.model.starts_with("demo:");
    if spec.data.is_empty() {
        if !demo {
            bail!(UsageError(headless::setup::NO_DATA.to_owned()));
        }
        spec.data = "synthetic:eval".to_owned();
    }
    if spec.calib.is_none() && !spec.how.calib_is_eval && spec.data == "synthetic:eval" {
        spec.calib = Some("synthetic:calib".to_owned());
    }
    Ok(spec.absolute())
}
