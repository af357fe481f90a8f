//! Connections, requests and answers: who may ask, where to, how much, and how an answer gets back.
//!
//! Not here: what a body says (`request`), shapes (`reply`), compute (`worker`). Invariants: a body is read within a bound of bytes and of time; a
//! page in somebody's browser cannot ask; an answer whose client goes away is dropped, and the worker sees that.

use super::error::ApiError;
use super::reply::{self, Kind, Shape};
use super::request::{self, Ask, Prompt};
use super::seats::{Busy, Seat};
use super::worker::{Done, Event, Job};
use crate::headless::out::tell;
use crate::headless::template;
use crate::model::{ChatError, ChatTemplate, Tokenizer};
use crate::plain;
use bytes::{Bytes, BytesMut};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::http::uri::Authority;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{self, Receiver};
use tokio::sync::{Semaphore, watch};

/// Bytes of a body, and those that are read of one that has more.
const MAX_BODY: usize = 4 << 20;
const DRAINED: usize = 32 << 20;

/// Time for a request's head (also of the next one of a connection), and for its body.
const HEAD: Duration = Duration::from_secs(60);
const BODY: Duration = Duration::from_secs(30);

/// Seconds after which a full queue may be tried again.
const AGAIN: &str = "2";

/// What a completion has at most where nobody says, as OpenAI's.
const COMPLETION: usize = 16;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A body whose connection is busy until it is sent.
struct Held {
    body: Body,
    _busy: Busy,
}

impl hyper::body::Body for Held {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// What all requests share.
pub struct App {
    pub name: String,
    pub created: u64,
    pub vocabulary: usize,
    pub ends: Vec<u32>,
    pub chat: Option<ChatTemplate>,
    pub tokenizer: Arc<Tokenizer>,
    pub context: usize,
    /// The key's hash: hashes are compared in a time that tells nothing.
    pub key: Option<blake3::Hash>,
    /// Only this machine reaches us.
    pub loopback: bool,
    /// One for each sequence, and for each that waits.
    pub places: Arc<Semaphore>,
    pub jobs: mpsc::Sender<Job>,
    pub metrics: Arc<super::metrics::Metrics>,
}

/// Serves one connection to its end; told to stop, to the end of the answer that is under way.
pub async fn connection(stream: TcpStream, app: Arc<App>, mut stopped: watch::Receiver<bool>, seat: Arc<Seat>) {
    // A token is sent when it is there.
    drop(stream.set_nodelay(true));
    let service = service_fn(|request| {
        let (app, busy) = (Arc::clone(&app), Busy::on(&seat));
        async move {
            let response = answer(app, request).await;
            // Answered is who has the whole answer.
            Ok::<_, Infallible>(response.map(|body| Held { body, _busy: busy }))
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    // What a client does wrong below HTTP, or that it goes away, is nobody's to tell.
    tokio::select! {
        _ = connection.as_mut() => return,
        // Somebody has something to ask, and this one has not.
        () = seat.wanted() => return,
        () = async { drop(stopped.wait_for(|stop| *stop).await) } => connection.as_mut().graceful_shutdown(),
    }
    drop(connection.await);
}

async fn answer(app: Arc<App>, request: Request<Incoming>) -> Response<Body> {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let found = route(&app, request).await;
    // Paths that are not ours are one, so that nobody can make labels.
    let known = if ROUTES.iter().any(|(_, p)| *p == path) { &path } else { "other" };
    let response = found.unwrap_or_else(|e| {
        // A message quotes what was asked; that of a failure of ours does not.
        let param = e.param.as_deref().unwrap_or_default();
        let why = if e.status.is_server_error() { &e.message } else { param };
        let (status, code) = (e.status.as_u16(), e.code.unwrap_or_default());
        tell!("paring: {} {}: {status} {code} {}", plain::name(method.as_str()), plain::name(&path), plain::line(why));
        refused(&e)
    });
    app.metrics.answered(known, response.status().as_u16());
    response
}

/// What there is, and how it is asked for.
const ROUTES: [(Method, &str); 5] = [
    (Method::GET, "/health"),
    (Method::GET, "/metrics"),
    (Method::GET, "/v1/models"),
    (Method::POST, "/v1/chat/completions"),
    (Method::POST, "/v1/completions"),
];

async fn route(app: &Arc<App>, request: Request<Incoming>) -> Result<Response<Body>, ApiError> {
    let path = request.uri().path().to_owned();
    from_here(app, request.headers())?;
    if path != "/health" {
        authorised(app, request.headers())?;
    }
    match (request.method(), path.as_str()) {
        (&Method::GET, "/health") => Ok(json_body(StatusCode::OK, &json!({ "status": "ok" }))),
        (&Method::GET, "/metrics") => Ok(body(StatusCode::OK, super::metrics::CONTENT, app.metrics.text().into())),
        (&Method::GET, "/v1/models") => {
            let all = json!({ "object": "list", "data": [reply::model(&app.name, app.created)] });
            Ok(json_body(StatusCode::OK, &all))
        }
        (&Method::GET, one) if one.starts_with("/v1/models/") => {
            let name = percent_encoding::percent_decode_str(&one["/v1/models/".len()..]).decode_utf8_lossy();
            named(app, &name)?;
            Ok(json_body(StatusCode::OK, &reply::model(&app.name, app.created)))
        }
        (&Method::POST, "/v1/chat/completions") => ask(app, Kind::Chat, request).await,
        (&Method::POST, "/v1/completions") => ask(app, Kind::Text, request).await,
        (method, path) => Err(match ROUTES.iter().find(|(_, p)| *p == path) {
            Some((allowed, _)) => {
                let why = format!("{method} is not what `{path}` is asked with; hint: {allowed}");
                ApiError::new(StatusCode::METHOD_NOT_ALLOWED, Some("method_not_allowed"), why)
            }
            None => {
                let why = format!("there is nothing at `{}`; hint: /v1/chat/completions", plain::name(path));
                ApiError::new(StatusCode::NOT_FOUND, Some("not_found"), why)
            }
        }),
    }
}

/// A name that a foreign page gave to this machine is no way to ask it.
fn from_here(app: &App, headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(host) = headers.get(header::HOST).filter(|_| app.loopback) else { return Ok(()) };
    let authority = host.to_str().ok().and_then(|h| h.parse::<Authority>().ok());
    let name = authority.as_ref().map_or("", |a| a.host().trim_matches(['[', ']']));
    if name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback()) {
        return Ok(());
    }
    let why = "this server is asked as localhost or by its address alone";
    Err(ApiError::new(StatusCode::FORBIDDEN, Some("wrong_host"), why))
}

fn authorised(app: &App, headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(key) = &app.key else { return Ok(()) };
    // The scheme's case is nobody's business (RFC 9110).
    let given = headers.get(header::AUTHORIZATION).and_then(|v| v.as_bytes().split_at_checked(7));
    let given = given.filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"Bearer ")).map(|(_, key)| key);
    match given.map(blake3::hash) {
        Some(given) if given == *key => Ok(()),
        Some(_) => {
            Err(ApiError::new(StatusCode::UNAUTHORIZED, Some("invalid_api_key"), "this is not the server's key"))
        }
        None => {
            let why = "no key was given; hint: the header `Authorization: Bearer KEY`";
            Err(ApiError::new(StatusCode::UNAUTHORIZED, Some("invalid_api_key"), why))
        }
    }
}

/// Is `name` the model that is here?
fn named(app: &App, name: &str) -> Result<(), ApiError> {
    if name == app.name {
        return Ok(());
    }
    let why = format!("there is no model `{}`; hint: `{}`", plain::name(name), app.name);
    let e = ApiError::new(StatusCode::NOT_FOUND, Some("model_not_found"), why);
    Err(ApiError { param: Some("model".into()), ..e })
}

/// The body of a request that says it is JSON: a form of a page in somebody's browser cannot.
async fn read(request: Request<Incoming>) -> Result<Bytes, ApiError> {
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("application/json") {
        let why = "the body is not said to be JSON; hint: the header `Content-Type: application/json`";
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, Some("wrong_content_type"), why));
    }
    match tokio::time::timeout(BODY, whole_body(request.into_body())).await {
        Ok(read) => read,
        Err(_) => {
            let why = format!("the body took more than {} s", BODY.as_secs());
            Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, Some("slow_body"), why))
        }
    }
}

/// A body within its bound. One beyond it is read on for a while and dropped: who is still sending reads no answer.
async fn whole_body(mut body: Incoming) -> Result<Bytes, ApiError> {
    // One that says so beforehand is not waited for.
    let (mut bytes, mut length) = (BytesMut::new(), usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX));
    if length <= DRAINED {
        length = 0;
    }
    while length <= DRAINED
        && let Some(frame) = body.frame().await
    {
        let broken = || ApiError::new(StatusCode::BAD_REQUEST, Some("broken_body"), "the body ends too early");
        let Ok(data) = frame.map_err(|_| broken())?.into_data() else { continue };
        length += data.len();
        match length {
            ..=MAX_BODY => bytes.extend_from_slice(&data),
            n if n > DRAINED => break,
            _ => bytes.clear(),
        }
    }
    if length <= MAX_BODY {
        return Ok(bytes.freeze());
    }
    let why = format!("the body is more than {} MiB", MAX_BODY >> 20);
    Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, Some("body_too_large"), why))
}

/// Reads a request, gives it to the worker, and answers with what that makes of it.
async fn ask(app: &Arc<App>, kind: Kind, request: Request<Incoming>) -> Result<Response<Body>, ApiError> {
    let arrived = Instant::now();
    let asked = request::read(kind, &read(request).await?)?;
    if let Some(name) = &asked.model {
        named(app, name)?;
    }
    let full = || {
        let why = "as many requests wait as may; hint: ask again later";
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, Some("queue_full"), why)
    };
    let place = Arc::clone(&app.places).try_acquire_owned().map_err(|_| full())?;
    let (stream, shape) = (asked.stream, Shape::new(kind, &app.name, asked.usage));
    let Ask { prompt, most, how, stops, .. } = asked;
    let prompt = {
        let app = Arc::clone(app);
        // Templates have a process that is waited for, and long texts take a while to cut.
        let made = tokio::task::spawn_blocking(move || ids(&app, prompt));
        made.await.map_err(|_| ApiError::failed("the prompt could not be made"))??
    };
    let most = room(app, kind, prompt.len(), most)?;
    let (events, said) = mpsc::channel(most + 2);
    let ends = app.ends.clone();
    let job = Job { prompt, most, ends, how, stops, events, arrived, place };
    if app.jobs.send(job).await.is_err() {
        return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, None, "the server is ending"));
    }
    if stream {
        return Ok(streamed(said, shape));
    }
    let (text, done) = whole(said).await?;
    Ok(json_body(StatusCode::OK, &shape.whole(&text, done)))
}

/// The token ids of a prompt.
fn ids(app: &App, prompt: Prompt) -> Result<Vec<u32>, ApiError> {
    let t = &app.tokenizer;
    let ids = match prompt {
        Prompt::Chat(messages) => {
            let Some(chat) = &app.chat else {
                let why = "the model comes without a chat template; hint: /v1/completions";
                return Err(ApiError::of("messages", "no_chat_template", why));
            };
            chat.prompt(t, &messages, |m| template::render(chat, m)).map_err(|e| match e {
                ChatError::Failed { .. } => ApiError::failed(e.to_string()),
                ChatError::Refused { .. } | ChatError::TooLarge { .. } | ChatError::Vocabulary(_) => {
                    ApiError::bad("messages", e.to_string())
                }
            })?
        }
        Prompt::Text(text) => {
            let ids = t.encode(&text).map_err(|e| ApiError::bad("prompt", e.to_string()))?;
            t.first().into_iter().chain(ids).collect()
        }
        Prompt::Ids(ids) => ids,
    };
    let bad = |why: String| Err(ApiError::bad("prompt", format!("the prompt {why}")));
    match ids.iter().find(|id| **id as usize >= app.vocabulary) {
        Some(id) => bad(format!("has the id {id}, beyond the {} of the vocabulary", app.vocabulary)),
        None if ids.is_empty() => bad("is empty".into()),
        None => Ok(ids),
    }
}

/// How many tokens may be written after a prompt of `prompt`.
fn room(app: &App, kind: Kind, prompt: usize, most: Option<usize>) -> Result<usize, ApiError> {
    let context = app.context;
    let left = context.saturating_sub(prompt);
    let asked = match (most, kind) {
        (Some(most), _) => most,
        (None, Kind::Text) => COMPLETION.min(left.max(1)),
        (None, Kind::Chat) => left.max(1),
    };
    if asked <= left {
        return Ok(asked);
    }
    let param = if kind == Kind::Chat { "messages" } else { "prompt" };
    let why = format!(
        "this model's maximum context length is {context} tokens, and {} are asked for: {prompt} of the prompt and {asked} to \
         be written; hint: a shorter prompt, or fewer tokens",
        prompt.saturating_add(asked)
    );
    Err(ApiError::of(param, "context_length_exceeded", why))
}

/// Waits for the whole answer.
async fn whole(mut said: Receiver<Event>) -> Result<(String, Done), ApiError> {
    let mut text = String::new();
    while let Some(event) = said.recv().await {
        match event {
            Event::Text(more) => text.push_str(&more),
            Event::Done(done) => return Ok((text, done)),
            Event::Failed { why, ending } => return Err(broken(why, ending)),
        }
    }
    Err(ApiError::failed("the thread that decodes has ended"))
}

fn broken(why: String, ending: bool) -> ApiError {
    if ending { ApiError::new(StatusCode::SERVICE_UNAVAILABLE, None, why) } else { ApiError::failed(why) }
}

/// The answer as server-sent events, as it comes.
fn streamed(said: Receiver<Event>, shape: Shape) -> Response<Body> {
    let begin = shape.first().map(|first| Ok::<_, Infallible>(Frame::data(reply::event(&first))));
    let events = futures::stream::unfold(Some((said, shape)), async |state| {
        let (mut said, shape) = state?;
        let (bytes, more) = match said.recv().await {
            Some(Event::Text(text)) => (reply::event(&shape.text(&text)), true),
            Some(Event::Done(done)) => {
                let mut last: Vec<u8> =
                    shape.last(done).iter().flat_map(|chunk| reply::event(chunk).to_vec()).collect();
                last.extend_from_slice(reply::END.as_bytes());
                (Bytes::from(last), false)
            }
            Some(Event::Failed { why, ending }) => (reply::event(&broken(why, ending).json()), false),
            None => (reply::event(&ApiError::failed("the thread that decodes has ended").json()), false),
        };
        Some((Ok(Frame::data(bytes)), more.then_some((said, shape))))
    });
    let all = futures::StreamExt::chain(futures::stream::iter(begin), events);
    let mut response = Response::new(StreamBody::new(all).boxed_unsync());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

fn refused(e: &ApiError) -> Response<Body> {
    let mut response = json_body(e.status, &e.json());
    let headers = response.headers_mut();
    match e.status {
        StatusCode::SERVICE_UNAVAILABLE => drop(headers.insert(header::RETRY_AFTER, HeaderValue::from_static(AGAIN))),
        StatusCode::UNAUTHORIZED => drop(headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))),
        StatusCode::METHOD_NOT_ALLOWED => drop(headers.insert(header::ALLOW, HeaderValue::from_static("GET, POST"))),
        // What is left of the body is not read.
        StatusCode::PAYLOAD_TOO_LARGE | StatusCode::REQUEST_TIMEOUT => {
            drop(headers.insert(header::CONNECTION, HeaderValue::from_static("close")));
        }
        _ => {}
    }
    response
}

fn json_body(status: StatusCode, value: &Value) -> Response<Body> {
    body(status, "application/json", value.to_string().into())
}

fn body(status: StatusCode, kind: &'static str, bytes: Bytes) -> Response<Body> {
    let mut response = Response::new(Full::new(bytes).boxed_unsync());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
