//! The transport against everything that servers really send.

use crate::fake_llm::{Answer, FakeLlm, Step, delta, finish};
use paring::agent::{Chat, Cut, Endpoint, LlmError, Message, Question, Reply, Timeouts};
use paring::session::{Channel, Feed};
use serde_json::json;
use std::time::Duration;

pub fn quick() -> Timeouts {
    Timeouts {
        connect: Duration::from_secs(5),
        idle: Duration::from_millis(1500),
        retries: 2,
        pause: Duration::from_millis(10),
        max_chars: 20_000,
    }
}

#[derive(Default, Debug)]
pub struct Heard {
    pub reasoning: String,
    pub text: String,
    pub notices: Vec<String>,
}

pub async fn ask_with(fake: &FakeLlm, timeouts: Timeouts) -> (Result<Reply, LlmError>, Heard) {
    let mut chat = Chat::open(&Endpoint::new(&fake.url, "sk-secret-key", Some("m")), timeouts).unwrap();
    let mut heard = Heard::default();
    let messages = [Message::of("system", "S"), Message::of("user", "U")];
    let reply = chat
        .ask(Question::of("r", &messages), &mut async |f| match f {
            Feed::Token { channel: Channel::Reasoning, text, .. } => heard.reasoning.push_str(&text),
            Feed::Token { channel: Channel::Text, text, .. } => heard.text.push_str(&text),
            other => heard.notices.extend(if let Feed::Log { text, .. } = other { Some(text) } else { None }),
        })
        .await;
    (reply, heard)
}

pub async fn ask(script: Vec<Answer>) -> (Result<Reply, LlmError>, Heard, usize) {
    let fake = FakeLlm::start(&["m"], script);
    let (reply, heard) = ask_with(&fake, quick()).await;
    (reply, heard, fake.asked())
}

pub fn text(t: &str) -> Step {
    delta(json!({ "content": t }))
}

#[tokio::test]
async fn reasoning_and_text_arrive_apart_with_the_servers_count() {
    let fake = FakeLlm::start(&["m"], vec![Answer::says("think hard", "answer é 模型")]);
    let (reply, heard) = ask_with(&fake, quick()).await;
    assert_eq!(reply, Ok(Reply { tokens: 42, counted: true, ..Reply::default() }));
    assert_eq!((heard.reasoning.as_str(), heard.text.as_str()), ("think hard", "answer é 模型"));
    assert_eq!(*fake.keys.lock().unwrap(), ["Bearer sk-secret-key"]);
    let sent = fake.requests.lock().unwrap()[0].clone();
    assert_eq!(sent["stream"], json!(true));
    assert_eq!(sent["messages"][0], json!({"role": "system", "content": "S"}));
}

#[tokio::test]
async fn odd_chunks_do_not_stop_a_stream() {
    let (reply, heard, _) = ask(vec![Answer::stream(vec![
        Step::Raw(b": keep-alive comment\n\n".to_vec()),
        Step::Event(json!({"choices": [], "prompt_filter_results": []}).to_string()),
        Step::Event("{not json".into()),
        delta(json!({"role": "model", "content": null})),
        delta(json!({"content": [{"type": "text", "text": "a"}, {"type": "thinking", "thinking": "t"}]})),
        delta(json!({"reasoning": "r", "content": ""})),
        delta(json!({"tool_calls": [{"type": "", "function": {"arguments": {}}}]})),
        Step::Event(json!({"choices": [{"delta": {"content": "b"}, "finish_reason": ""}], "created": 1.5}).to_string()),
        finish("abort"),
        finish("eos"),
        Step::Event(json!({"service_tier": "on_demand", "choices": [{"delta": {"content": "c"}}], "usage": {"completion_tokens": 9}}).to_string()),
    ])])
    .await;
    assert_eq!(reply, Ok(Reply { tokens: 9, counted: true, ..Reply::default() }));
    assert_eq!((heard.text.as_str(), heard.reasoning.as_str()), ("abc", "tr"));
}

#[tokio::test]
async fn think_tags_and_control_characters() {
    let (_, heard, _) = ask(vec![Answer::says("", "<think>\nhm\u{1b}[2J</think>out\u{7}\u{202e}")]).await;
    assert_eq!((heard.reasoning.as_str(), heard.text.as_str()), ("\nhm[2J", "out"));
}

#[tokio::test]
async fn an_error_in_the_stream_keeps_what_had_arrived_and_is_not_retried() {
    let error = json!({"error": {"code": 500, "message": "CUDA out of memory"}}).to_string();
    let (reply, heard, asked) = ask(vec![Answer::stream(vec![text("half"), Step::Event(error)])]).await;
    let message = reply.unwrap_err().to_string();
    assert!(message.contains("500: CUDA out of memory; hint:"), "{message}");
    assert_eq!((heard.text.as_str(), asked), ("half", 1));
}

#[tokio::test]
async fn a_hang_up_in_the_stream_is_an_error_that_keeps_what_had_arrived() {
    let (reply, heard, asked) = ask(vec![Answer::stream(vec![text("half"), Step::Drop])]).await;
    assert!(matches!(reply, Err(LlmError::Broken { .. })), "{reply:?}");
    assert_eq!((heard.text.as_str(), asked), ("half", 1));
}

#[tokio::test]
async fn before_the_first_token_errors_are_retried_and_said() {
    let error = json!({"error": "busy"}).to_string();
    let (reply, heard, asked) = ask(vec![
        Answer::status(503, "loading"),
        Answer::stream(vec![Step::Event(error.clone()), Step::Event("[DONE]".into())]),
        Answer::says("", "ok"),
    ])
    .await;
    // A chunk error without a status is not known to be temporary.
    assert!(reply.unwrap_err().to_string().contains("busy"));
    assert_eq!(asked, 2);
    assert!(heard.notices[0].contains("trying again (1 of 2)") && heard.notices[0].contains("loading"));
    let (reply, _, asked) =
        ask(vec![Answer::status(429, r#"{"error":{"message":"slow down","code":429}}"#), Answer::says("", "ok")]).await;
    assert!(reply.is_ok());
    assert_eq!(asked, 2);
}

#[tokio::test]
async fn error_bodies_of_every_shape_reach_the_user_and_permanent_ones_are_not_repeated() {
    for (status, body, says) in [
        (404, r#"{"error":{"message":"The model `m` does not exist","code":404}}"#, "The model `m` does not exist"),
        (400, r#"{"error":"'json_object' is not supported"}"#, "'json_object' is not supported"),
        (
            429,
            r#"{"error":{"message":"no credit","type":"insufficient_quota","code":"insufficient_quota"}}"#,
            "no credit",
        ),
        (401, r#"{"detail":"bad key sk-secret-key"}"#, "bad key …"),
        (403, "<html><h1>Forbidden</h1></html>", "Forbidden"),
    ] {
        let (reply, _, asked) = ask(vec![Answer::status(status, body)]).await;
        let message = reply.unwrap_err().to_string();
        assert!(
            message.contains(says) && message.contains("hint: ") && message.contains(&status.to_string()),
            "{message}"
        );
        assert!(!message.contains("sk-secret"), "{message}");
        assert_eq!(asked, 1, "{body}");
    }
}

#[tokio::test]
async fn silence_times_out_but_slow_streams_do_not() {
    let short = Timeouts { idle: Duration::from_secs(1), ..quick() };
    let fake = FakeLlm::start(&["m"], vec![Answer::stream(vec![text("a"), Step::Hang])]);
    let (reply, heard) = ask_with(&fake, short).await;
    assert!(matches!(reply, Err(LlmError::Silent { .. })), "{reply:?}");
    assert_eq!(heard.text, "a");
    // Longer in all than the idle timeout, never silent for as long.
    let mut steps = Vec::new();
    for _ in 0..8 {
        steps.extend([text("x"), Step::Sleep(Duration::from_millis(200))]);
    }
    let fake = FakeLlm::start(&["m"], vec![Answer::stream(steps)]);
    let (reply, heard) = ask_with(&fake, short).await;
    assert!(reply.is_ok(), "{reply:?}");
    assert_eq!(heard.text, "xxxxxxxx");
}

#[tokio::test]
async fn a_flood_is_cut_off() {
    let steps = (0..200).map(|i| text(&format!("{i:04}").repeat(250))).collect();
    let (reply, heard, _) = ask(vec![Answer::stream(steps)]).await;
    assert_eq!(reply.unwrap().cut, Some(Cut::Length));
    assert_eq!(heard.text.len(), quick().max_chars);
}

#[tokio::test]
async fn an_answer_that_goes_in_circles_is_cut_off_long_before_its_end() {
    let steps = (0..2000).map(|_| text("I look at the table again. ")).collect();
    let (reply, heard, _) = ask(vec![Answer::stream(steps)]).await;
    assert_eq!(reply.unwrap().cut, Some(Cut::Circles));
    assert!((2048..4096).contains(&heard.text.len()), "{}", heard.text.len());
}

#[tokio::test]
async fn servers_that_refuse_fields_are_asked_without_them() {
    let refuse = r#"{"detail":[{"msg":"Extra inputs are not permitted: stream_options"}]}"#;
    let system = r#"{"object":"error","message":"System role not supported","code":400}"#;
    let fake =
        FakeLlm::start(&["m"], vec![Answer::status(422, refuse), Answer::status(400, system), Answer::says("", "ok")]);
    let (reply, heard) = ask_with(&fake, quick()).await;
    assert!(reply.is_ok(), "{reply:?}");
    assert_eq!(heard.notices.len(), 2);
    let last = fake.requests.lock().unwrap()[2].clone();
    assert!(last.get("stream_options").is_none());
    assert_eq!(last["messages"], json!([{"role": "user", "content": "S\n\nU"}]));
}

#[tokio::test]
async fn an_answer_in_one_piece_is_as_good() {
    let whole =
        json!({"choices": [{"message": {"content": "all", "reasoning": "r"}}], "usage": {"completion_tokens": 5}});
    let (reply, heard, asked) = ask(vec![Answer::status(200, &whole.to_string())]).await;
    assert_eq!(reply, Ok(Reply { tokens: 5, counted: true, ..Reply::default() }));
    assert_eq!((heard.text.as_str(), heard.reasoning.as_str(), asked), ("all", "r", 1));
    let (reply, _, asked) = ask(vec![Answer::status(200, "<html>a portal</html>")]).await;
    let message = reply.unwrap_err().to_string();
    assert!(message.contains("portal") && message.contains("/v1"), "{message}");
    assert_eq!(asked, 1);
    // Where streaming is refused by name, later questions are asked in one piece.
    let refuse = r#"{"error":{"message":"`stream` is not supported"}}"#;
    let fake = FakeLlm::start(&["m"], vec![Answer::status(400, refuse), Answer::status(200, &whole.to_string())]);
    let (reply, heard) = ask_with(&fake, quick()).await;
    assert!(reply.is_ok() && heard.text == "all", "{reply:?}");
    assert_eq!(fake.requests.lock().unwrap()[1]["stream"], json!(false));
}

#[tokio::test]
async fn an_unreachable_endpoint_is_named() {
    let gone = FakeLlm::start(&[], vec![]).url.replace("/v1", "");
    let mut chat = Chat::open(&Endpoint::new("http://127.0.0.1:1/v1", "", Some("m")), quick()).unwrap();
    let e = chat.ask(Question::of("r", &[]), &mut async |_| {}).await.unwrap_err();
    assert!(matches!(e, LlmError::Connect { .. }), "{e:?}");
    assert!(e.to_string().contains("127.0.0.1:1/v1"), "{e} {gone}");
    assert!(matches!(Chat::open(&Endpoint::new("http://x/v1", "a\nb", None), quick()), Err(LlmError::Key)));
}

#[tokio::test]
async fn without_a_name_the_first_model_is_used_and_said() {
    let fake = FakeLlm::start(&["text-embedding-3", "qwen3", "other"], vec![Answer::says("", "hi")]);
    let mut chat = Chat::open(&Endpoint::new(&fake.url, "", None), quick()).unwrap();
    let mut said = Vec::new();
    assert_eq!(chat.model(&mut async |s| said.push(format!("{s:?}"))).await.unwrap(), "qwen3");
    assert!(said[0].contains("`qwen3`, the first of 3"), "{said:?}");
    // No key, no header.
    assert_eq!(*fake.keys.lock().unwrap(), [""]);
    let none = FakeLlm::start(&[], vec![]);
    let mut chat = Chat::open(&Endpoint::new(&none.url, "", None), quick()).unwrap();
    assert!(matches!(chat.model(&mut async |_| {}).await, Err(LlmError::NoModel { .. })));
}

#[tokio::test]
async fn dropping_the_request_closes_the_connection() {
    let fake = FakeLlm::start(&["m"], vec![Answer::stream(vec![text("a"), Step::Hang])]);
    {
        let ask = ask_with(&fake, Timeouts { idle: Duration::from_secs(60), ..quick() });
        let _ = tokio::time::timeout(Duration::from_millis(300), ask).await;
    }
    let gone = || fake.hung_up.load(std::sync::atomic::Ordering::Relaxed) == 1;
    for _ in 0..200 {
        if gone() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(gone(), "the server still holds the connection");
}
