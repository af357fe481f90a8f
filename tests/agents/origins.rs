//! Where the transport sends anything: to the origin that was named, and over no open network unasked.

use crate::fake_llm::{Answer, FakeLlm};
use crate::wire::quick;
use paring::agent::{ApiKind, Chat, Endpoint, LlmError, Message, Question};

async fn ask(url: &str) -> Result<(), LlmError> {
    let mut chat = Chat::open(&Endpoint::new(url, "sk-secret-key", Some("m")), quick())?;
    let messages = [Message::of("user", "a secret question")];
    chat.model(&mut async |_| {}).await?;
    chat.ask(Question::of("r", &messages), &mut async |_| {}).await.map(drop)
}

fn redirect(status: u16, to: &str) -> Answer {
    Answer { status, headers: vec![("location", to.to_owned())], steps: vec![] }
}

#[tokio::test]
async fn nothing_follows_a_redirect_to_another_origin() {
    for status in [301, 302, 303, 307, 308] {
        let other = FakeLlm::start(&["m"], vec![Answer::says("", "thanks for the key")]);
        let fake = FakeLlm::start(&["m"], vec![redirect(status, &format!("{}/chat/completions", other.url))]);
        let refused = ask(&fake.url).await.unwrap_err();
        assert!(matches!(refused, LlmError::Api { kind: ApiKind::Elsewhere, .. }), "{status}: {refused}");
        assert!(refused.to_string().contains("--llm-url") && refused.hopeless(), "{refused}");
        assert_eq!(fake.asked(), 1, "{status}: it is not asked again");
        assert_eq!((other.asked(), other.keys.lock().unwrap().len()), (0, 0), "{status}: nobody called there");
    }
}

#[tokio::test]
async fn a_redirect_on_the_same_origin_is_followed_a_few_times() {
    let here = |path: &str| redirect(307, path);
    let fake = FakeLlm::start(&["m"], vec![here("/v1/chat/completions/"), Answer::says("", "hi")]);
    ask(&fake.url).await.unwrap();
    assert_eq!((fake.asked(), fake.question(1).as_str()), (2, "a secret question"));
    let circle = FakeLlm::start(&["m"], vec![here("/v1/chat/completions")]);
    let refused = ask(&circle.url).await.unwrap_err();
    assert!(matches!(refused, LlmError::Api { kind: ApiKind::Elsewhere, .. }), "{refused}");
    assert!(circle.asked() < 10, "{}", circle.asked());
}

#[tokio::test]
async fn plain_http_beyond_this_machine_is_refused_before_a_connection() {
    let refused = ask("http://gpu-box.example:8000/v1").await.unwrap_err();
    assert!(matches!(refused, LlmError::Clear { .. }), "{refused}");
}
