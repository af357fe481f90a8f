//! `paring serve`: a language model behind OpenAI's HTTP interface, for programs on this machine.
//!
//! Requests come in through `http`, are read by `request`, become token ids, and wait for `worker`, the one thread that owns the decoder; what it
//! writes goes back in the shapes of `reply`. Not here: what decodes (`exec`), templates (`model::chat`), agents, which are somebody's clients (`agent`).
//! Invariants: compute never runs on the runtime's threads; bodies, queues, connections and waits are bounded; nothing of a request's text is logged; nobody
//! beyond this machine is answered unless the user said so.

mod error;
mod http;
mod metrics;
mod reply;
mod request;
mod seats;
mod stops;
mod worker;

use crate::args::Serve;
use crate::control::Asked;
use crate::exec::{Cancel, CompileOptions, DecodeOptions, KvFormat, most_in_turn};
use crate::headless::out::{self, say, tell};
use crate::headless::{Exit, runtime, setup, template};
use crate::model::{ChatError, ChatMessage};
use crate::plain;
use crate::words::counted;
use anyhow::{Context, Result, bail};
use http::App;
use seats::Seats;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use worker::Worker;

/// Tokens of a sequence where nobody says how many, and where the model's file does not tell what it was made for.
const CONTEXT: (usize, usize) = (8192, 4096);

/// Sequences side by side at most, and requests that wait.
const MOST: (usize, usize) = (64, 4096);

/// Connections at a time. Whoever comes then waits for a silent one to be closed, or for one to end.
const CONNECTIONS: usize = 256;

/// How long answers that are under way may go on when the server is told to end, and how long the last words may then take.
const GRACE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(1));

/// Runs the command until a signal ends it.
///
/// # Errors
/// A model that cannot be served; an address that cannot be listened on; a worker that ended.
pub fn run(args: &Serve) -> Result<Exit> {
    if !(1..=MOST.0).contains(&args.parallel) {
        bail!("--parallel: {} sequences; hint: 1 to {}", args.parallel, MOST.0);
    }
    if args.context == Some(0) {
        bail!("--context: 0 tokens are no context");
    }
    if args.queue > MOST.1 {
        bail!("--queue: {} requests are too many; hint: {} at most", args.queue, MOST.1);
    }
    // An empty key would let nobody in, and tell nobody why.
    let key = args.api_key.as_deref().filter(|key| !key.is_empty());
    let listener = listen(args)?;
    let address = listener.local_addr()?;
    let kv = setup::kv_format(args.kv.as_deref())?;
    let (mut model, tokenizer, spec) =
        setup::language(&args.model, args.tokenizer.as_deref(), &args.on, args.precision.as_deref())?;
    if kv.is_some() {
        KvFormat::undecide(&mut model);
    }
    let chat = setup::chat(spec)?;
    if let Some(chat) = &chat {
        let hello = ChatMessage { role: "user".into(), content: "Hello".into() };
        // One that refuses is asked again by whoever has something to say.
        if let Err(e @ ChatError::Failed { .. }) = template::render(chat, &[hello]) {
            bail!("`{spec}`: {e}");
        }
    }
    let usual = model.info.context.unwrap_or(CONTEXT.1).min(CONTEXT.0);
    let most = most_in_turn(&model.graph).filter(|most| args.context.is_none() && *most < usual);
    let context = args.context.or(most).unwrap_or(usual);
    if let Some(most) = most {
        out::notes(
            [format!("its positions are scaled otherwise in longer texts: contexts are of {most} tokens")].as_slice(),
        );
    }
    let opened = setup::device(&args.on)?;
    let options = CompileOptions::on(&opened).as_stored();
    let levelled =
        setup::levelled((&model, &args.model), args.at.level.as_deref(), args.precision.as_deref(), &options)?;
    let decoder = setup::decoder(
        &levelled.plans,
        &DecodeOptions { sequences: args.parallel, context, kv: kv.unwrap_or_default() },
    )?;
    out::notes(&model.info.notes);
    out::notes(setup::beyond(&model, context).as_slice());
    if chat.is_none() {
        out::complain(&format!("note: `{spec}` comes without a chat template: chats are refused, completions are not"));
    }
    if !address.ip().is_loopback() && key.is_none() {
        out::complain("note: whoever reaches this machine may ask; hint: --api-key");
    }
    let most = decoder.token_bytes() * context as u64 * args.parallel as u64;
    tell!(
        "paring: {} on {}: {} of {}, a cache in {} of up to {:.1} MB",
        plain::line(&name_of(args)),
        opened.words,
        counted(args.parallel, "sequence"),
        counted(context, "token"),
        decoder.kept_in(),
        most as f64 / 1e6
    );

    let metrics = Arc::new(metrics::Metrics::default());
    if let Some((control, asked)) = &levelled.control {
        let levels = control.ladder.levels.len();
        metrics.levels(levels);
        match asked {
            Asked::Auto => tell!("paring: a controller chooses one of {levels} levels for every token"),
            Asked::Pinned(level) => tell!("paring: every token is computed at level {level} of {levels}"),
        }
    }
    let tokenizer = Arc::new(tokenizer);
    let cancel = Cancel::default();
    let (jobs, waiting) = mpsc::channel(args.parallel + args.queue);
    let (ended_tx, ended) = oneshot::channel::<()>();
    let app = Arc::new(App {
        name: name_of(args),
        created: reply::now(),
        vocabulary: model.graph.vocabulary().unwrap_or(0),
        ends: chat.as_ref().map_or_else(|| tokenizer.ends().to_vec(), |c| c.ends(&tokenizer)),
        chat,
        tokenizer: Arc::clone(&tokenizer),
        context,
        key: key.map(|key| blake3::hash(key.as_bytes())),
        loopback: address.ip().is_loopback(),
        places: Arc::new(Semaphore::new(args.parallel + args.queue)),
        jobs,
        metrics: Arc::clone(&metrics),
    });
    let control = levelled.control.map(|(control, asked)| (control.policy, asked));
    let worker = Worker::new((decoder, control), model, tokenizer, metrics, cancel.clone(), args.parallel);
    let worker = std::thread::Builder::new().name("decode".into()).spawn(move || {
        worker.run(waiting);
        drop(ended_tx);
    })?;
    let io = runtime(2)?;
    let served = io.block_on(serve(listener, address, app, ended, cancel.clone()));
    cancel.cancel();
    // With the connections the last who could ask are gone, and the worker with them.
    io.shutdown_timeout(GRACE.1);
    if worker.join().is_err() {
        bail!("the thread that decodes ended in a panic");
    }
    served
}

/// What clients call the model: what the user says, else its file's or folder's name.
fn name_of(args: &Serve) -> String {
    let path = Path::new(&args.model);
    let file = match path.is_dir() {
        true => path.file_name(),
        false => path.file_stem(),
    };
    let file = file.map(|n| plain::stripped(&n.to_string_lossy())).filter(|n| !n.is_empty());
    args.model_name.clone().or(file).unwrap_or_else(|| "model".into())
}

/// Listens where it was told to.
fn listen(args: &Serve) -> Result<std::net::TcpListener> {
    let host = if args.host == "localhost" { "127.0.0.1" } else { args.host.trim_matches(['[', ']']) };
    let Ok(ip) = host.parse::<IpAddr>() else {
        bail!("--host: `{}` is no address; hint: 127.0.0.1, or with --expose 0.0.0.0", plain::name(&args.host));
    };
    if !ip.is_loopback() && !args.expose {
        bail!("--host {ip} lets others than this machine ask; hint: --expose says that this is meant");
    }
    let address = SocketAddr::new(ip, args.port);
    let listener = std::net::TcpListener::bind(address)
        .with_context(|| format!("cannot listen on {address}; hint: another --port, or 0 for any that is free"))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Takes connections until a signal, or until the worker ends; then lets answers end.
async fn serve(
    listener: std::net::TcpListener,
    address: SocketAddr,
    app: Arc<App>,
    mut ended: oneshot::Receiver<()>,
    cancel: Cancel,
) -> Result<Exit> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let mut signals =
        [signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?, signal(SignalKind::hangup())?];
    let (stop, stopped) = watch::channel(false);
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    let (mut seats, mut told) = (Seats::new(), false);
    say!("http://{address}/v1")?;
    out::flush()?;
    loop {
        // Connections that ended are let go of.
        while connections.try_join_next().is_some() {}
        let next = async {
            let accepted = listener.accept().await;
            if room.available_permits() == 0 {
                let silent = seats.clear_one();
                if !std::mem::replace(&mut told, true) {
                    let what = if silent { "silent ones are closed" } else { "others wait" };
                    tell!("paring: {CONNECTIONS} connections are open: {what} for those that come");
                }
            }
            (accepted, Arc::clone(&room).acquire_owned().await)
        };
        tokio::select! {
            (accepted, place) = next => match accepted {
                Ok((stream, _)) => {
                    let (app, stopped, seat) = (Arc::clone(&app), stopped.clone(), seats.take());
                    connections.spawn(async move {
                        http::connection(stream, app, stopped, seat).await;
                        drop(place);
                    });
                }
                // Without descriptors, say; they come back.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            },
            () = any(&mut signals) => break,
            _ = &mut ended => bail!("the thread that decodes has ended"),
        }
    }
    drop(listener);
    tell!("paring: ending; a second signal ends at once");
    stop.send_replace(true);
    let rest = async { while connections.join_next().await.is_some() {} };
    tokio::pin!(rest);
    tokio::select! {
        () = &mut rest => return Ok(Exit::Done),
        () = tokio::time::sleep(GRACE.0) => {}
        () = any(&mut signals) => {}
    }
    cancel.cancel();
    drop(tokio::time::timeout(GRACE.1, rest).await);
    Ok(Exit::Done)
}

/// Waits for any of them.
async fn any(signals: &mut [tokio::signal::unix::Signal; 3]) {
    let [a, b, c] = signals;
    tokio::select! { _ = a.recv() => {}, _ = b.recv() => {}, _ = c.recv() => {} }
}
