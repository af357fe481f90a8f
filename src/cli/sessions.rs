//! Subcommands about sessions: open, attach, list, stop, log, export.

use super::kept;
use crate::args;
use crate::config::Settings;
use crate::files;
use crate::headless::out::{self, say, tell};
use crate::headless::{Exit, print_json, runtime};
use crate::host::client::{Client, Messages};
use crate::host::{Aside, Exported, JobError, OpenSpec, lifecycle};
use crate::model::formats::format as export_format;
use crate::session::{Command, Event, HostMsg, Journal, Place, State, describe};
use crate::tui::moment;
use crate::tui::report::{Form, of_state};
use anyhow::{Context, bail};
use std::io::IsTerminal;
use std::path::Path;
use std::time::Duration;

/// Says on standard error that a host is starting, once that takes a moment.
fn waiting(what: &str) -> impl FnMut(Duration) + '_ {
    let mut said = false;
    move |elapsed| {
        if elapsed > Duration::from_millis(700) && !said {
            said = true;
            tell!("starting {what} …");
        }
    }
}

/// Opens a session, or attaches to it if it was opened before with the same model and data.
pub fn open(spec: OpenSpec, name: Option<&str>, detach: bool, settings: Settings) -> anyhow::Result<Exit> {
    if !detach {
        seen()?;
    }
    let place = Place::named(&name.map_or_else(|| spec.suggested_name(), str::to_owned))?;
    let known = lifecycle::is_opened(&place) || lifecycle::is_running(&place);
    if known {
        kept::check(&place, &spec, &settings)?;
    } else {
        place
            .make()
            .and_then(|()| spec.save(&place))
            .with_context(|| format!("cannot write in `{}`; hint: set PARING_HOME", place.dir.display()))?;
    }
    if detach {
        runtime(2)?.block_on(async { lifecycle::spawn_detached(&place, waiting(&place.name)).await })?;
        if !known {
            // Somebody else may have opened the name for something else at the same moment.
            kept::check(&place, &spec, &settings)?;
        }
        say!("{}", place.name)?;
        return Ok(Exit::Done);
    }
    show(&place, false, settings)
}

/// Attaches to a session, by name or to the one that changed last.
pub fn attach(name: Option<&str>, watch: bool, settings: Settings) -> anyhow::Result<Exit> {
    show(&named_or_newest(name)?, watch, settings)
}

/// Serves a session, by name or the one that changed last, to another program.
pub fn mcp(asked: &args::Mcp) -> anyhow::Result<Exit> {
    let place = named_or_newest(asked.name.as_deref())?;
    let args::Mcp { calls, rehearsals, wait, .. } = *asked;
    crate::mcp::run(place, crate::mcp::Limits { calls, rehearsals, rehearsal: Duration::from_secs(wait) })?;
    Ok(Exit::Done)
}

fn named_or_newest(name: Option<&str>) -> anyhow::Result<Place> {
    match name {
        Some(name) => named(name),
        None => Place::all()?
            .into_iter()
            .filter(lifecycle::is_opened)
            .max_by_key(|p| lifecycle::list(p).changed_ms)
            .context("there is no session yet; hint: `paring` opens the demo, `paring open MODEL --data D` a model"),
    }
}

/// A session that exists: by name, or the folder of one.
fn named(name: &str) -> anyhow::Result<Place> {
    let place = if name.contains('/') { Place::at(&std::path::absolute(name)?) } else { Place::named(name)? };
    if !lifecycle::is_opened(&place) {
        // What is wrong with its journal says more than that there is no session.
        Journal::read(&place.dir)?;
        if lifecycle::is_running(&place) {
            bail!(
                "session `{name}` is being opened; hint: wait a moment, `{}` tells how it goes",
                place.log_file().display()
            );
        }
        if place.dir.is_dir() {
            bail!(
                "session `{name}` was never opened, its journal is empty; hint: `paring open MODEL --data D --name NAME`"
            );
        }
        let known: Vec<String> = Place::all()?.into_iter().filter(lifecycle::is_opened).map(|p| p.name).collect();
        let hint = crate::config::nearest(name, known.iter().map(String::as_str))
            .map_or_else(|| "`paring ls` lists sessions".to_owned(), |near| format!("did you mean `{near}`?"));
        bail!("no session `{name}`; hint: {hint}");
    }
    Ok(place)
}

/// Whether there is a terminal to show a session on.
fn seen() -> anyhow::Result<()> {
    if !std::io::stdout().is_terminal() {
        bail!(
            "standard output is not a terminal; hint: `--detach` opens without a screen, `paring run` works without one"
        );
    }
    Ok(())
}

fn show(place: &Place, watch: bool, settings: Settings) -> anyhow::Result<Exit> {
    seen()?;
    let runtime = runtime(2)?;
    let exit = runtime.block_on(async {
        let (client, messages) = lifecycle::attach(place, &client_name(), watch, waiting(&place.name)).await?;
        anyhow::Ok(crate::tui::run(client, messages, settings).await?)
    })?;
    // A reader that still waits for a key must not keep us.
    runtime.shutdown_timeout(Duration::from_millis(200));
    farewell(place, &exit)
}

fn farewell(place: &Place, exit: &crate::tui::Exit) -> anyhow::Result<Exit> {
    use crate::tui::Exit as Left;
    match exit {
        Left::Detached => tell!("session `{}` goes on; `paring attach {0}` comes back", place.name),
        Left::HostGone(reason) if reason.starts_with("stopped") => {
            tell!("session `{}` is stopped; `paring attach {0}` comes back to it", place.name)
        }
        Left::HostGone(reason) => {
            bail!(
                "the host of `{}` ended: {reason}; hint: `paring attach {0}` starts it again where it was",
                place.name
            )
        }
        Left::Signal(_) => return Ok(Exit::Cancelled),
        Left::TerminalGone => out::give_up(),
    }
    Ok(Exit::Done)
}

/// How others see this client: who and where.
fn client_name() -> String {
    let get = |name: &str| std::env::var(name).ok().filter(|v| !v.is_empty());
    let user = get("USER").unwrap_or_else(|| "you".to_owned());
    let from = get("SSH_CLIENT").and_then(|s| s.split(' ').next().map(str::to_owned));
    let name = match from {
        Some(host) => format!("{user} from {host}"),
        None => format!("{user}, process {}", std::process::id()),
    };
    crate::plain::stripped(&name).chars().take(60).collect()
}

pub fn ls(json: bool) -> anyhow::Result<Exit> {
    let mut all: Vec<lifecycle::Listed> = Place::all()?.iter().map(lifecycle::list).collect();
    // What could not be opened left a folder with its host's log, and is no session.
    all.retain(|s| s.running || s.changed_ms > 0 || s.error.is_some());
    if json {
        print_json(&all)?;
        return Ok(Exit::Done);
    }
    if all.is_empty() {
        tell!("no sessions; `paring` opens the demo, `paring open MODEL --data D` a model");
        return Ok(Exit::Done);
    }
    let row = |[session, host, model, data, round, phase, approved, applied]: [&str; 8]| {
        say!("{session:<24} {host:<8} {model:<22} {data:<16} {round:>5} {phase:<9} {approved:>8} {applied:>8}")
    };
    row(["session", "host", "model", "data", "round", "phase", "approved", "applied"])?;
    for s in all {
        let host = if s.running { "running" } else { "-" };
        let [round, approved, applied] = [s.round as usize, s.approved, s.applied].map(|n| n.to_string());
        row([&s.name, host, &s.model, &s.data, &round, s.phase.label(), &approved, &applied])?;
        if let Some(e) = s.error {
            tell!("  {e}");
        }
    }
    Ok(Exit::Done)
}

pub fn stop(name: &str) -> anyhow::Result<Exit> {
    let place = named(name)?;
    if runtime(2)?.block_on(lifecycle::stop(&place))? {
        tell!("stopped `{}`", place.name);
    } else {
        tell!("`{}` was not running", place.name);
    }
    Ok(Exit::Done)
}

pub fn log(name: &str, json: bool) -> anyhow::Result<Exit> {
    let place = named(name)?;
    let mut state = State::default();
    for record in Journal::read(&place.dir)? {
        if json {
            say!("{}", crate::plain::json(&serde_json::to_string(&record)?))?;
        } else {
            if let Some(text) = describe(&state, &record.event) {
                say!("{:>5} {} {}", record.seq, moment(record.at_ms), crate::config::text::clean(&text))?;
            }
            state.apply(&record);
        }
        if out::closed() {
            break;
        }
    }
    Ok(Exit::Done)
}

/// A session as its journal has it.
fn stored(place: &Place) -> anyhow::Result<State> {
    let mut state = State::default();
    Journal::read(&place.dir)?.iter().for_each(|r| state.apply(r));
    Ok(state)
}

/// Writes a session's report into files (`-`: standard output), or as Markdown on standard output.
pub fn report(
    name: Option<&str>,
    html: Option<&Path>,
    markdown: Option<&Path>,
    settings: &Settings,
) -> anyhow::Result<Exit> {
    let state = stored(&named_or_newest(name)?)?;
    let data = |path: Option<&Path>| path == Some(Path::new("-"));
    if data(html) && data(markdown) {
        bail!("two reports do not go into one standard output; hint: give one of them a file");
    }
    let files = [(html, Form::Html), (markdown, Form::Markdown)];
    let mut written = false;
    for (path, form) in files.into_iter().filter_map(|(path, form)| Some((path?, form))) {
        let text = of_state(state.clone(), settings.clone(), form);
        if data(Some(path)) {
            out::data(format_args!("{text}"))?;
            written = true;
            continue;
        }
        files::write(path, text)
            .with_context(|| format!("cannot write `{}`; hint: try another path", path.display()))?;
        // What is told of one file must not stand in the other.
        if !data(html) && !data(markdown) {
            say!("{}", path.display())?;
        }
        written = true;
    }
    if !written {
        out::data(format_args!("{}", of_state(state, settings.clone(), Form::Markdown)))?;
    }
    Ok(Exit::Done)
}

/// Draws a stored session's screen into an SVG file, as a terminal of that size would show it after `keys`.
pub fn screenshot(name: &str, size: &str, out: &Path, keys: &str, mut settings: Settings) -> anyhow::Result<Exit> {
    let place = named(name)?;
    let size = size.split_once('x').and_then(|(w, h)| Some((w.parse::<u16>().ok()?, h.parse::<u16>().ok()?)));
    let Some(size) = size.filter(|(w, h)| (1..=500).contains(w) && (1..=300).contains(h)) else {
        bail!("the size is not WIDTHxHEIGHT; hint: for example 120x40");
    };
    let keys: Vec<crate::config::Key> = keys
        .split_whitespace()
        .map(|k| {
            crate::config::Key::parse(k)
                .with_context(|| format!("`{k}` is not a key; hint: such as j, enter or ctrl-l"))
        })
        .collect::<anyhow::Result<_>>()?;
    // What this terminal shows says nothing about a picture; what was asked for does.
    if !settings.origins.contains_key("screen.colors") {
        settings.colors = crate::config::ColorLevel::True;
    }
    let state = stored(&place)?;
    // What only a host knows is answered as it would, by the model and data themselves.
    let card = state.card.clone();
    let mut engine = None;
    let mut told = |state: &State, command: &Command| {
        let aside = Aside::of(command)?;
        let engine = engine.get_or_insert_with(|| crate::host::compute::open(&place, None, card.as_ref()));
        let work = engine.as_ref().map_err(|why| JobError::Failed(why.clone())).and_then(|e| e.work());
        Some(aside.told(work, state))
    };
    let picture = crate::tui::picture::session(state, settings, size, &keys, &mut told);
    files::write(out, picture).with_context(|| format!("cannot write `{}`; hint: try another path", out.display()))?;
    Ok(Exit::Done)
}

pub fn export(name: &str, out: Option<&Path>, format: &str, json: bool) -> anyhow::Result<Exit> {
    let place = named(name)?;
    let format =
        export_format(format, &out.map(|p| p.to_string_lossy()).unwrap_or_default()).map_err(anyhow::Error::msg)?;
    let usual = if crate::model::formats::FOLDERS.contains(&format) {
        place.name.clone()
    } else {
        format!("{}.{format}", place.name)
    };
    let out = std::path::absolute(out.unwrap_or(Path::new(&usual)))?;
    // The host would follow a link to an open file of a process to one of its own.
    crate::headless::convert::ready(&out, format)?;
    let path = out.display().to_string();
    runtime(2)?.block_on(async {
        let was_running = lifecycle::is_running(&place);
        // Nobody has it open: what it holds needs neither the original nor the data, which may be gone.
        if !was_running && let Ok(host) = lifecycle::start_shelf(&place) {
            let (client, mut messages) = host.connect("paring export", false).await?;
            let exported = export_over(&client, &mut messages, path, format.to_owned()).await;
            host.stop("the export is done").await;
            host.ended().await;
            return said(exported?, json);
        }
        let (client, mut messages) = lifecycle::attach(&place, "paring export", false, waiting(&place.name)).await?;
        client.command(Command::TakePen).await?;
        let exported = export_over(&client, &mut messages, path, format.to_owned()).await;
        if !was_running {
            client.command(Command::Stop).await?;
        }
        said(exported?, json)
    })
}

fn said(e: Exported, json: bool) -> anyhow::Result<Exit> {
    out::notes(&e.notes);
    if json {
        let Exported { path, format, hash, bytes, notes } = e;
        say!(
            "{}",
            serde_json::json!({ "path": path, "format": format, "hash": hash, "bytes": bytes, "notes": notes })
        )?;
    } else {
        say!("{}", e.path)?;
    }
    Ok(Exit::Done)
}

/// Exports and waits for the file.
pub(crate) async fn export_over(
    client: &Client,
    messages: &mut Messages,
    path: String,
    format: String,
) -> anyhow::Result<Exported> {
    client.command(Command::Export { path, format }).await?;
    while let Some(message) = messages.recv().await {
        if let HostMsg::Event { record } = message {
            match record.event {
                Event::Exported { path, format, hash, bytes, notes } => {
                    return Ok(Exported { path, format, hash, bytes, notes });
                }
                Event::Failed { message, .. } => bail!(message),
                Event::Cancelled { .. } => return Err(crate::headless::Cancelled.into()),
                _ => {}
            }
        }
    }
    bail!("the host ended before the file was written; hint: `paring log` says why")
}
