//! Servers without measure: what never ends is cut off, and a fault in an answer costs no more than itself.

use crate::fake_llm::{Answer, FakeLlm, Step};
use crate::wire::{ask, ask_with, quick, text};
use paring::agent::{Chat, Endpoint, LlmError, Question, Timeouts};
use serde_json::json;
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What the buffers of two sockets and of the client may hold beyond what was read.
const BUFFERS: u64 = 16 << 20;

fn endless(begins: &str, again: &str) -> Answer {
    let again = again.repeat(65_536 / again.len());
    let steps = vec![Step::Raw(begins.as_bytes().to_vec()), Step::Endless(again.into_bytes(), Duration::ZERO)];
    Answer::stream(steps)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_never_end_are_cut_off() {
    let event = "data: {\"choices\":[{\"delta\":{\"content\":\"\"}}]}\n\n";
    for (what, begins, again) in [
        ("empty deltas", "", event),
        ("lines without a blank one", "", "data: {\"choices\":[]}\n"),
        ("one line", "data: ", "yyyyyyyyyyyyyyyy"),
        ("lines that are no JSON", "", "data: {no\n\n"),
        ("lines that are no events", "", "no event\n"),
        ("comments", "", ": still here\n\n"),
        ("white space", "", "  \n\n"),
        ("a body in one piece", "{\"choices\":[", "0,"),
    ] {
        let fake = FakeLlm::start(&["m"], vec![endless(begins, again)]);
        let (reply, heard) = ask_with(&fake, Timeouts { idle: Duration::from_secs(60), ..quick() }).await;
        assert!(matches!(reply, Err(LlmError::Endless { .. })), "{what}: {reply:?}");
        assert_eq!((heard.text.as_str(), fake.asked()), ("", 1), "{what}");
        let served = fake.bytes_until_cut_off();
        assert!(served < (17 << 20) + BUFFERS, "{what}: {served} bytes");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_had_arrived_before_is_kept() {
    let mut answer = endless("", ": still here\n\n");
    answer.steps.insert(0, text("half an answer"));
    let fake = FakeLlm::start(&["m"], vec![answer]);
    let (reply, heard) = ask_with(&fake, quick()).await;
    assert!(matches!(reply, Err(LlmError::Endless { .. })), "{reply:?}");
    assert_eq!(heard.text, "half an answer");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_errors_and_lists_that_never_end_are_cut_off_sooner() {
    let page = endless("<html>a portal", "<p>x</p>");
    let error = Answer { status: 500, ..endless("out of order ", "x ") };
    for (answer, says) in [(page, "a portal"), (error, "out of order")] {
        let fake = FakeLlm::start(&["m"], vec![answer]);
        let (reply, _) = ask_with(&fake, Timeouts { retries: 0, ..quick() }).await;
        let message = reply.unwrap_err().to_string();
        assert!(message.contains(says) && message.len() < 1_000, "{message}");
        let served = fake.bytes_until_cut_off();
        assert!(served < BUFFERS, "{says}: {served} bytes");
    }
    let fake = FakeLlm::with_list(endless("{\"data\":[", "{\"id\":\"m\"},"), vec![]);
    let mut chat = Chat::open(&Endpoint::new(&fake.url, "", None), quick()).unwrap();
    let e = chat.model(&mut async |_| {}).await.unwrap_err();
    assert!(matches!(e, LlmError::Endless { .. }), "{e}");
    assert!(fake.bytes_until_cut_off() < (5 << 20) + BUFFERS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signs_of_life_are_no_answer() {
    let alive = Step::Endless(b": still here\n\n".to_vec(), Duration::from_millis(50));
    let fake = FakeLlm::start(&["m"], vec![Answer::stream(vec![alive])]);
    let (reply, _) = ask_with(&fake, Timeouts { idle: Duration::from_secs(1), ..quick() }).await;
    assert!(matches!(reply, Err(LlmError::Endless { .. })), "{reply:?}");
}

#[tokio::test]
async fn a_very_long_line_is_read_once() {
    // Brackets: each may be the beginning of a tag.
    for what in ["y", "<"] {
        let long = vec![text(&what.repeat(10 << 20)), text("more")];
        let reading = ask(vec![Answer::stream(long)]);
        let (reply, heard, asked) = tokio::time::timeout(Duration::from_secs(50), reading).await.expect("linear");
        assert!(reply.unwrap().cut.is_some());
        assert_eq!((heard.text.len(), asked), (quick().max_chars, 1));
    }
}

/// What is logged on this thread.
#[derive(Clone, Default)]
struct Logged(Arc<Mutex<Vec<u8>>>);

impl Write for Logged {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_bad_line_is_one_line_in_the_log_and_many_are_few() {
    let logged = Logged::default();
    let writer = logged.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).finish();
    let guard = tracing::subscriber::set_default(subscriber);
    let bad =
        |i: usize| Step::Raw(format!("data: bad {i}\u{1b}[2J {}\ndata: sk-secret-key\n\n", "z".repeat(5_000)).into());
    let steps = (0..500).map(bad).chain([text("fine")]).collect();
    let (reply, heard, _) = ask(vec![Answer::stream(steps)]).await;
    drop(guard);
    assert!(reply.is_ok(), "{reply:?}");
    assert_eq!(heard.text, "fine");
    let log = String::from_utf8(logged.0.lock().unwrap().clone()).unwrap();
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(lines.len(), 6, "{log}");
    assert!(lines[0].contains("bad 0[2J") && lines[5].contains("495 more"), "{log}");
    assert!(lines.iter().all(|l| l.len() < 300) && !log.contains("secret"), "{log}");
}

#[tokio::test]
async fn a_byte_that_is_not_utf_8_costs_one_character() {
    let mut bytes = b"data: {\"choices\":[{\"delta\":{\"content\":\"caf\xe9 \"}}]}\n\n".to_vec();
    // Cut within a character that is whole.
    bytes.extend_from_slice(b"data: {\"choices\":[{\"delta\":{\"content\":\"\xe6\xa8");
    let rest = b"\xa1\"}}]}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\" end\"}}]}\n".to_vec();
    let (reply, heard, _) = ask(vec![Answer::stream(vec![Step::Raw(bytes), Step::Raw(rest)])]).await;
    assert!(reply.is_ok(), "{reply:?}");
    assert_eq!(heard.text, "caf\u{fffd} 模 end");
}

#[tokio::test]
async fn compression_is_not_asked_for_and_undone_all_the_same() {
    let plain = "data: {\"choices\":[{\"delta\":{\"content\":\"unpacked\"}}]}\n\ndata: [DONE]\n\n";
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(plain.as_bytes()).unwrap();
    let mut answer = Answer::stream(vec![Step::Raw(gzip.finish().unwrap())]);
    answer.headers.push(("content-encoding", "gzip".into()));
    let mut odd = answer.clone();
    odd.headers[1].1 = "br".into();
    let fake = FakeLlm::start(&["m"], vec![answer, odd]);
    let (reply, heard) = ask_with(&fake, quick()).await;
    assert!(reply.is_ok(), "{reply:?}");
    assert_eq!(heard.text, "unpacked");
    assert!(fake.heads.lock().unwrap()[0].to_lowercase().contains("accept-encoding: identity\r\n"));
    let (reply, _) = ask_with(&fake, quick()).await;
    assert!(reply.unwrap_err().to_string().contains("compressed (`br`)"));
}

#[tokio::test]
async fn a_server_says_when_to_come_back() {
    let busy = |after: &str| {
        let mut answer = Answer::status(429, r#"{"error":{"message":"slow down"}}"#);
        answer.headers.push(("retry-after", after.into()));
        answer
    };
    let past = "Wed, 21 Oct 2015 07:28:00 GMT";
    for (after, says) in [("1", ", in 1 s as the server asks"), (past, "trying again (1 of 2): ")] {
        let (reply, heard, asked) = ask(vec![busy(after), Answer::says("", "ok")]).await;
        assert!(reply.is_ok() && asked == 2, "{reply:?}");
        assert!(heard.notices[0].contains(says), "{:?}", heard.notices);
    }
    // Later than is waited: not asked again too soon, but not at all.
    for after in ["3600", "Fri, 21 Oct 2089 07:28:00 GMT"] {
        let (reply, heard, asked) = ask(vec![busy(after), Answer::says("", "ok")]).await;
        assert!(matches!(reply, Err(LlmError::Api { .. })) && asked == 1, "{reply:?}");
        assert!(heard.notices[0].contains("120 s is the most"), "{:?}", heard.notices);
    }
}

#[tokio::test]
async fn a_stream_without_a_word_says_nothing_about_the_next() {
    let silent = || Answer::stream(vec![]);
    let long = Answer::status(400, r#"{"error":{"message":"the prompt is too long"}}"#);
    let fake = FakeLlm::start(&["m"], vec![silent(), long, Answer::says("", "ok"), silent(), silent()]);
    let mut chat = Chat::open(&Endpoint::new(&fake.url, "", Some("m")), quick()).unwrap();
    let e = chat.ask(Question::of("r", &[]), &mut async |_| {}).await.unwrap_err();
    assert!(e.context_too_long(), "{e}");
    assert!(chat.ask(Question::of("r", &[]), &mut async |_| {}).await.is_ok());
    let e = chat.ask(Question::of("r", &[]), &mut async |_| {}).await.unwrap_err();
    assert!(matches!(e, LlmError::Empty { .. }) && e.perhaps_too_long(), "{e}");
    let streamed: Vec<bool> = fake.requests.lock().unwrap().iter().map(|r| r["stream"] == json!(true)).collect();
    assert_eq!(streamed, [true, false, true, true, false]);
}

#[tokio::test]
async fn events_that_are_called_errors_are() {
    let raw = b"event: error\ndata: {\"message\": \"overloaded\", \"code\": 529}\n\n".to_vec();
    let (reply, _, _) = ask(vec![Answer::stream(vec![Step::Raw(raw)]), Answer::says("", "ok")]).await;
    assert!(reply.is_ok(), "an overload is asked again: {reply:?}");
}
