//! Controllers: who may ask for one, what is kept of it, which level it computes, how it ends.

use super::*;
use crate::control::Asked;

async fn on_a_language_model() -> Rig {
    let r = Rig::proposed().await;
    *r.fake.controls.lock().expect("controls") = true;
    r
}

/// Reads messages until a controller's figures are as wanted.
async fn figures(r: &mut Rig, wanted: impl Fn(Asked, u64) -> bool) {
    loop {
        if let HostMsg::Feed { feed: Feed::Levels(f) } = r.next().await
            && wanted(f.asked, f.tokens)
        {
            return;
        }
    }
}

#[tokio::test]
async fn it_is_made_once_runs_at_the_level_that_is_asked_for_and_stops_without_a_word() {
    let mut r = on_a_language_model().await;
    r.ok(Command::Control { target: Some(0.8) }).await;
    figures(&mut r, |asked, _| asked == Asked::Auto).await;
    let made = r.state.control.clone().expect("durable before it runs");
    assert_eq!((made.target, made.levels.len()), (0.8, 2));
    r.ok(Command::Level { asked: Asked::Pinned(1) }).await;
    figures(&mut r, |asked, _| asked == Asked::Pinned(1)).await;
    let words = r.refused(Command::Level { asked: Asked::Pinned(2) }).await;
    assert!(words.contains("no level 2; hint: 0 to 1"), "{words}");
    let words = r.refused(Command::Run).await;
    assert!(words.contains("`controller` is running"), "{words}");
    // Whoever comes later sees it at work.
    let (_, mut other) = r.host.connect("other", true).await.expect("connects");
    assert!(matches!(other.recv().await, Some(HostMsg::Welcome { state, .. }) if state.control.is_some()));
    while !matches!(other.recv().await, Some(HostMsg::Feed { feed: Feed::Levels(_) })) {}
    r.ok(Command::Control { target: None }).await;
    r.idle().await;
    assert!(!r.state.timeline.iter().any(|t| t.text.contains("cancelled")), "{:?}", r.state.timeline);
    // Again: as it says, without being made anew.
    let seq = r.state.seq;
    r.ok(Command::Control { target: Some(0.8) }).await;
    figures(&mut r, |asked, tokens| asked == Asked::Auto && tokens > 1).await;
    assert_eq!(r.state.seq, seq);
    r.ok(Command::Cancel).await;
    r.idle().await;
    // The original has no other way into a file.
    let words = r.refused(Command::Export { path: "x.onnx".into(), format: String::new() }).await;
    assert!(words.contains("`:export FILE.safetensors`"), "{words}");
    r.ok(Command::Export { path: "x.safetensors".into(), format: String::new() }).await;
    r.until("an export", |s| s.exports.len() == 1).await;
}

#[tokio::test]
async fn it_is_refused_with_reasons_and_cancelled_while_it_is_made() {
    let mut r = Rig::proposed().await;
    let on = |target| Command::Control { target: Some(target) };
    assert!(r.refused(on(0.8)).await.contains("no language model"));
    *r.fake.controls.lock().expect("controls") = true;
    for bad in [0.0, 1.0, -1.0, f64::MAX] {
        assert!(r.refused(on(bad)).await.contains("no share of the whole network's time"));
    }
    for nothing in [Command::Control { target: None }, Command::Level { asked: Asked::Auto }] {
        assert!(r.refused(nothing).await.contains("no controller runs"));
    }
    r.gate(Some(Gate::Control));
    r.ok(on(0.8)).await;
    assert!(r.refused(on(0.7)).await.contains("`controller` is running"));
    let words = r.refused(Command::Level { asked: Asked::Pinned(0) }).await;
    assert!(words.contains("no levels yet"), "{words}");
    r.ok(Command::Control { target: None }).await;
    r.idle().await;
    assert!(r.state.control.is_none());
    assert!(r.state.timeline.last().is_some_and(|t| t.text == "controller cancelled"), "{:?}", r.state.timeline.last());
}
