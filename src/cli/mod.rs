//! Arguments, validated settings and the subcommands' entry points. What a command does lives in `host`, `headless` and
//! `tui`.
//!
//! Invariants: standard output carries data only; every failure says what failed and what to do; the exit codes are
//! those of [`Exit`].

mod kept;
mod panics;
mod sessions;

use crate::agent::Endpoint;
use crate::args::{Cli, Cmd, Demo, Images, On, Rank, Screen, Windows};
use crate::config::{self, Settings, Sources};
use crate::headless::out::{self, tell};
use crate::headless::{self, Exit, UsageError};
use crate::host::{OpenSpec, lifecycle};
use crate::serve;
use crate::session::{Opening, Place};
use anyhow::{Result, bail};
use clap::{CommandFactory, Parser};

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
        let settings = settings(&screen, None, [])?;
        reachable(&settings)?;
        return sessions::open(demo_spec(&settings), None, false, settings);
    };
    match command {
        Cmd::Open(o) => {
            let asked = session_flags(o.seed, None, o.budget, o.llm_url, o.llm_model);
            let settings = settings(&screen, Some(&o.on), asked)?;
            reachable(&settings)?;
            let data = o.data.clone().unwrap_or_default();
            let rules = o.constraints.as_deref().map(crate::config::Policy::of_file).transpose().map_err(UsageError)?;
            let rules = rules.unwrap_or_default();
            let spec = OpenSpec { data, rules, ..spec_of(&o.model, &o.images, &o.text, &o.rank, &o.on, &settings)? };
            sessions::open(complete(spec)?, o.name.as_deref(), o.detach, settings)
        }
        Cmd::Attach { name, watch } => sessions::attach(name.as_deref(), watch, settings(&screen, None, [])?),
        Cmd::Mcp(m) => sessions::mcp(&m),
        Cmd::Ls { json } => sessions::ls(json),
        Cmd::Stop { name } => sessions::stop(&name),
        Cmd::Log { name, json } => sessions::log(&name, json),
        Cmd::Report { name, html, markdown } => {
            let settings = settings(&screen, None, [])?;
            sessions::report(name.as_deref(), html.as_deref(), markdown.as_deref(), &settings)
        }
        Cmd::Doctor { json } => {
            let loaded = config::load(&Sources::of_process(flags(&screen, None, [])));
            headless::doctor::run(&loaded, json)
        }
        Cmd::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "paring", &mut text);
            out::data(format_args!("{}", String::from_utf8_lossy(&text)))?;
            Ok(Exit::Done)
        }
        Cmd::Man { dir } => {
            let at =
                |e: std::io::Error| anyhow::anyhow!("`{}`: {e}; hint: a folder that you can write to", dir.display());
            std::fs::create_dir_all(&dir).map_err(at)?;
            clap_mangen::generate_to(Cli::command(), &dir).map_err(at)?;
            Ok(Exit::Done)
        }
        Cmd::Profile(mut p) => {
            let settings = computing(&screen, &mut p.on, [("screen.mac_convention", p.macs.clone())])?;
            headless::profile::run(&p, settings.mac_convention, settings.patience)
        }
        Cmd::Eval(mut e) => {
            let settings = computing(&screen, &mut e.on, [("session.calibration", e.calibration.clone())])?;
            headless::eval::run(&e, settings.calibration)
        }
        Cmd::Robust(mut r) => {
            let settings = computing(&screen, &mut r.on, [("session.calibration", r.calibration.clone())])?;
            headless::robust::run(&r, settings.calibration)
        }
        Cmd::Generate(mut g) => {
            computing(&screen, &mut g.on, [])?;
            headless::generate::run(&g)
        }
        Cmd::Serve(mut s) => {
            computing(&screen, &mut s.on, [])?;
            serve::run(&s)
        }
        Cmd::Control(mut c) => {
            computing(&screen, &mut c.on, [])?;
            headless::control::run(&c)
        }
        Cmd::Heal(mut h) => {
            computing(&screen, &mut h.on, [])?;
            headless::heal::run(&h)
        }
        Cmd::Convert(mut c) => {
            let settings = computing(&screen, &mut c.on, [("session.calibration", c.calibration.clone())])?;
            headless::convert::run(&c, settings.calibration)
        }
        Cmd::Imatrix(mut i) => {
            computing(&screen, &mut i.on, [])?;
            headless::imatrix::run(&i)
        }
        Cmd::Selftest(s) => {
            let mut on = On { device: s.device, threads: s.threads, ..On::default() };
            computing(&screen, &mut on, [])?;
            headless::selftest::run(&on, s.json)
        }
        Cmd::Run(r) => {
            let agents = r.llm_model.is_some() || r.llm_url.is_some();
            let asked = session_flags(r.seed, r.calibration, r.budget, r.llm_url, r.llm_model);
            let settings = settings(&screen, Some(&r.on), asked)?;
            reachable(&settings)?;
            if r.until_clear && settings.budget.drop.is_none() {
                bail!(UsageError("--until-clear goes by the budget's drop; hint: `--budget …,drop=1`".to_owned()));
            }
            let data = r.data.clone().unwrap_or_default();
            let spec = spec_of(&r.model, &r.images, &r.text, &r.rank, &r.on, &settings)?;
            let how = Opening { blind: true, ..spec.how };
            let spec = OpenSpec { how, data, auto: false, ..spec };
            let wanted = headless::run::Wanted {
                policy: crate::config::Policy::load(&r.policy).map_err(UsageError)?,
                rounds: r.rounds.max(1),
                out: std::path::absolute(&r.out)?,
                precision: r.precision.as_deref().map(headless::setup::precision).transpose()?,
                sparsity: r.sparsity.as_deref().map(str::parse).transpose().map_err(UsageError)?,
                factors: r.factors.as_deref().map(str::parse).transpose().map_err(UsageError)?,
                heal: r.heal.as_deref().map(str::parse).transpose().map_err(UsageError)?,
                agents,
                complete: r.complete,
                search: r.search,
                until_clear: r.until_clear,
            };
            headless::run::run(complete(spec)?, &wanted, r.json)
        }
        Cmd::Ledger { json } => headless::ledger::run(json),
        Cmd::BenchAgents(b) => headless::bench_agents::run(&b),
        Cmd::Export { name, out, format, json } => sessions::export(&name, out.as_deref(), &format, json),
        Cmd::Demo { what: Demo::Train { kind, seed, out } } => headless::demo::train(&kind, seed, &out),
        Cmd::Demo { what: Demo::Images { split, count, out } } => headless::demo::images(&split, count, &out),
        Cmd::Demo { what: Demo::Stories { split, count, out } } => headless::demo::stories(&split, count, &out),
        Cmd::Screenshot { name, size, out, keys } => {
            sessions::screenshot(&name, &size, &out, &keys, settings(&screen, None, [])?)
        }
        Cmd::Template => headless::template::process(),
        Cmd::Host { dir } => Ok(match lifecycle::run_host(&Place::at(&dir))? {
            lifecycle::Served::Done => Exit::Done,
            lifecycle::Served::Elsewhere => Exit::InUse,
        }),
    }
}

/// A setting by its key, as a flag gives it where it is given.
type Flag = (&'static str, Word);
type Word = Option<String>;

/// What a command asks of a session that it opens.
fn session_flags(seed: Option<u64>, ranges: Word, budget: Word, url: Word, llm: Word) -> [Flag; 5] {
    let (seed, ranges) = (("session.seed", seed.map(|n| n.to_string())), ("session.calibration", ranges));
    [seed, ranges, ("session.budget", budget), ("llm.base_url", url), ("llm.model", llm)]
}

/// Flags as the topmost layer of settings; `more` are those of one command alone.
fn flags(screen: &Screen, on: Option<&On>, more: impl IntoIterator<Item = Flag>) -> Vec<(String, String)> {
    let all = [
        ("screen.theme", screen.theme.clone()),
        ("screen.colors", screen.colors.clone()),
        ("screen.ascii", screen.ascii.then(|| "true".to_owned())),
        ("session.device", on.and_then(|o| o.device.clone())),
        ("session.tf32", on.is_some_and(|o| o.tf32).then(|| "true".to_owned())),
        ("session.threads", on.and_then(|o| o.threads).map(|n| n.to_string())),
        ("session.batch", on.and_then(|o| o.batch).map(|n| n.to_string())),
    ];
    all.into_iter().chain(more).filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
}

/// All layers of settings; whatever is wrong in any of them is told, all at once.
fn settings(screen: &Screen, on: Option<&On>, more: impl IntoIterator<Item = Flag>) -> Result<Settings> {
    let loaded = config::load(&Sources::of_process(flags(screen, on, more)));
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

/// The settings of a command that computes at once; what they say of device, threads and batch is in `on` from here on.
fn computing(screen: &Screen, on: &mut On, more: impl IntoIterator<Item = Flag>) -> Result<Settings> {
    let settings = settings(screen, Some(on), more)?;
    let given = |n: usize| (n > 0).then_some(n);
    (on.device, on.tf32) = (Some(settings.device.clone()), settings.tf32);
    (on.threads, on.batch) = (given(settings.threads), given(settings.batch));
    Ok(settings)
}

/// An endpoint to which nothing would be sent is refused before a session is opened with it.
fn reachable(settings: &Settings) -> Result<()> {
    let Some(url) = &settings.llm_url else { return Ok(()) };
    let endpoint = Endpoint::new(url, "", None).trusting(&settings.llm_trusted);
    Ok(endpoint.check().map_err(|e| UsageError(e.to_string()))?)
}

/// What flags and settings say of a session on `model`; data is the caller's to fill in.
fn spec_of(
    model: &str,
    images: &Images,
    text: &Windows,
    rank: &Rank,
    on: &On,
    settings: &Settings,
) -> Result<OpenSpec> {
    let set = set(OpenSpec::demo("vit"), settings);
    let how = Opening {
        model: model.to_owned(),
        arch: on.arch.as_deref().map(str::parse).transpose().map_err(UsageError)?,
        image: on.image_size,
        heads: on.heads,
        window: text.window,
        tokenizer: text.tokenizer.clone(),
        targets: headless::setup::targets(&text.targets).map_err(UsageError)?,
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
        llm_roles: settings.llm_roles.clone(),
        looks: settings.looks,
        limits: settings.limits,
        ..spec
    }
}

/// Data of a bundled model may be left out; of others it must be given.
fn complete(mut spec: OpenSpec) -> Result<OpenSpec> {
    let demo = headless::setup::is_demo(&spec.how.model);
    if spec.data.is_empty() {
        if !demo {
            // A word that is no file is meant for one that is bundled.
            let word = spec.how.model.as_str();
            let bundled = ["demo", "cnn", "vit", "lm"].contains(&word) && !std::path::Path::new(word).exists();
            if bundled {
                bail!(UsageError(format!("no file `{word}`; hint: bundled are demo:vit, demo:cnn and demo:lm")));
            }
            bail!(UsageError(headless::setup::NO_DATA.to_owned()));
        }
        spec.data = "synthetic:eval".to_owned();
    }
    if spec.calib.is_none() && !spec.how.calib_is_eval && spec.data == "synthetic:eval" {
        spec.calib = Some("synthetic:calib".to_owned());
    }
    Ok(spec.absolute())
}
