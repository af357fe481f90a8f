//! Keys and passwords that a server echoes, or that an address holds: nothing that leaves the agents' room shows them.

use crate::dialogue::Ran;
use crate::fake_llm::{Answer, FakeLlm, Step, delta, pieces};
use crate::session;
use crate::wire::{Heard, ask, ask_with, quick};
use paring::agent::{AgentInput, Chat, Endpoint, Question, run};
use paring::session::{Ask, Feed};
use serde_json::json;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

const KEY: &str = "sk-secret-key";

fn shows(words: &str, heard: &Heard) -> bool {
    format!("{words} {heard:?}").contains("secret")
}

#[tokio::test]
async fn echoes_of_the_key_in_errors_are_masked_before_they_are_cut() {
    let echo = format!("{} bad key {KEY}", "x".repeat(380));
    for answer in [
        Answer::status(401, &json!({"error": {"message": echo}}).to_string()),
        Answer::status(401, &format!("<html>bad key {KEY}</html>")),
        Answer::status(200, &format!("<html>bad key {KEY}</html>")),
        Answer::status(200, &format!("bad key {KEY}\n")),
        Answer::stream(vec![Step::Event(json!({"error": {"message": echo, "code": 401}}).to_string())]),
        Answer::stream(vec![Step::Event(json!({"error": {(KEY): {"detail": KEY}}}).to_string())]),
        // As JSON may spell it.
        Answer::stream(vec![Step::Event("{\"error\": \"bad \\u0073k-secret-key\"}".into())]),
    ] {
        let (reply, heard, _) = ask(vec![answer]).await;
        let message = reply.unwrap_err().to_string();
        assert!(message.contains("bad") || message.contains('…'), "{message}");
        assert!(!shows(&message, &heard), "{message} {heard:?}");
    }
}

#[tokio::test]
async fn the_key_in_an_answer_is_masked_however_it_is_cut() {
    let said = format!("The key is {KEY}, as you know: {KEY}");
    let whole = json!({"choices": [{"message": {"content": said, "reasoning": said}}]}).to_string();
    let mixed: Vec<Step> =
        pieces(&said).iter().flat_map(|p| [delta(json!({"reasoning": p})), delta(json!({"content": p}))]).collect();
    for answer in [Answer::says(&said, &said), Answer::status(200, &whole), Answer::stream(mixed)] {
        let (reply, heard, _) = ask(vec![answer]).await;
        assert!(reply.is_ok());
        assert_eq!(
            (heard.text.as_str(), heard.reasoning.as_str()),
            ("The key is …, as you know: …", heard.text.as_str())
        );
    }
    // What only looked like the key's beginning is not lost.
    let (_, heard, _) = ask(vec![Answer::says("", "a task: sk-s")]).await;
    assert_eq!(heard.text, "a task: sk-s");
}

#[tokio::test]
async fn lists_of_models_are_masked_and_their_names_still_work() {
    let fake = FakeLlm::with_list(Answer::status(200, &format!("no list for {KEY}")), vec![]);
    let mut chat = Chat::open(&Endpoint::new(&fake.url, KEY, None), quick()).unwrap();
    let e = chat.model(&mut async |_| {}).await.unwrap_err().to_string();
    assert!(e.contains("no list for …") && !e.contains("secret"), "{e}");

    let name = format!("m-{KEY}-1");
    let fake = FakeLlm::start(&[name.as_str()], vec![Answer::says("", &format!("I am {name}"))]);
    let stand_in = Arc::new(|| Ok((vec![], "planned".to_owned())));
    let input = AgentInput::new(Ask::Propose, Arc::new(session::state()), stand_in);
    let mut ran = Ran::default();
    let endpoint = Endpoint::new(&fake.url, KEY, None);
    run(input, Some(endpoint), quick(), &mut ran, &CancellationToken::new()).await;
    assert!(!format!("{ran:?}").contains("secret"));
    assert!(ran.feeds.iter().any(|f| matches!(f, Feed::Turn { model, .. } if model == "m-…-1")));
    assert_eq!(fake.requests.lock().unwrap()[0]["model"], json!(name));
}

#[tokio::test]
async fn secrets_in_an_address_are_sent_and_not_shown() {
    let echo = "me:secret-password bWU6c2VjcmV0LXBhc3N3b3Jk secret-query";
    let script = vec![Answer::status(500, echo), Answer::says("", echo)];
    let fake = FakeLlm::start(&["m"], script);
    let with = fake.url.replace("http://", "http://me:secret-password@");
    let mut chat = Chat::open(&Endpoint::new(&format!("{with}?api-key=secret-query"), "", None), quick()).unwrap();
    let mut heard = Vec::new();
    let name = chat.model(&mut async |line| heard.push(format!("{line:?}"))).await.unwrap();
    let reply = chat.ask(Question::of("r", &[]), &mut async |feed| heard.push(format!("{feed:?}"))).await;
    assert!(reply.is_ok() && name == "m", "{reply:?}");
    let heard = heard.concat();
    assert!(
        !heard.contains("secret") && heard.contains("http://…@127.0.0.1") && heard.contains("?api-key=…"),
        "{heard}"
    );
    for (i, path) in ["GET /v1/models?", "POST /v1/chat/completions?", "POST /v1/chat/completions?"].iter().enumerate()
    {
        let head = fake.heads.lock().unwrap()[i].clone();
        assert!(head.starts_with(&format!("{path}api-key=secret-query ")), "{head}");
    }
    assert_eq!(fake.keys.lock().unwrap()[1], "Basic bWU6c2VjcmV0LXBhc3N3b3Jk");
    let gone = Endpoint::new("http://me:secret-password@127.0.0.1:1/v1?key=secret-query", KEY, Some("m"));
    let e = Chat::open(&gone, quick())
        .unwrap()
        .ask(Question::of("r", &[]), &mut async |_| {})
        .await
        .unwrap_err()
        .to_string();
    assert!(e.contains("http://…@127.0.0.1:1/v1?key=…") && !e.contains("secret"), "{e}");
    let bad = Chat::open(&Endpoint::new("http://me:secret-password@[/v1", KEY, None), quick());
    assert!(!bad.err().unwrap().to_string().contains("secret"));
}

#[tokio::test]
async fn retries_do_not_tell_either() {
    let fake = FakeLlm::start(&["m"], vec![Answer::status(503, &format!("busy {KEY}")), Answer::says("", "ok")]);
    let (_, heard) = ask_with(&fake, quick()).await;
    assert!(heard.notices[0].contains("busy …") && !shows("", &heard), "{heard:?}");
}
