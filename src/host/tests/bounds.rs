//! What a host does when there is no room, too much text, or no sense in a frame.

use super::*;
use crate::session::{ClientMsg, REASON_BYTES, Record};
use tokio::io::AsyncWriteExt;

#[tokio::test]
async fn a_full_disk_refuses_commands_and_how_a_job_ended_is_written_when_there_is_room() {
    let mut r = Rig::proposed().await;
    r.ok(Command::Approve { ids: ids(&[0]) }).await;
    r.gate(Some(Gate::Compress));
    r.ok(Command::Run).await;
    r.until("the gate", |s| !s.rounds[1].repairs.is_empty()).await;
    r.host.inputs.send(Input::Room { pages: 1 }).await.expect("alive");
    let words = loop {
        match r.client.command(Command::Note { text: "x".to_owned() }).await {
            Ok(()) => {}
            Err(e) => break e.to_string(),
        }
    };
    assert!(words.contains("no space left") && words.contains("hint:"), "{words}");
    // The run ends badly meanwhile: that is owed, and until it is paid the disk is what stands in the way.
    *r.fake.fail.lock().expect("fail") = Some("out of memory; hint: a smaller batch");
    r.gate(None);
    r.idle().await;
    let words = r.refused(Command::Approve { ids: ids(&[1]) }).await;
    assert!(words.contains("no space left"), "{words}");
    r.host.inputs.send(Input::Room { pages: 1_000_000 }).await.expect("alive");
    r.ok(Command::Approve { ids: ids(&[1]) }).await;
    r.until("approved", |s| s.pending().len() == 2).await;
    assert!(r.state.timeline.iter().any(|e| e.text.contains("out of memory")), "{:?}", r.state.timeline);
    *r.fake.fail.lock().expect("fail") = None;
    r.ok(Command::Run).await;
    r.until("verdict", |s| s.phase == Phase::Verdict).await;
    let before = r.state.clone();
    let r = r.restart().await;
    assert_eq!(r.state, before);
}

#[tokio::test]
async fn reasons_have_a_bound() {
    let mut r = Rig::proposed().await;
    let long = "x".repeat(REASON_BYTES + 1);
    let limit = |reason: String| Constraint { target: group("c"), limit: Limit::KeepF32, reason };
    assert!(r.refused(Command::Veto { ids: ids(&[0]), reason: long.clone() }).await.contains("1024 bytes"));
    r.refused(Command::Constrain { constraint: freeze("b", &long) }).await;
    r.refused(Command::Constrain { constraint: limit(long.clone()) }).await;
    r.ok(Command::Veto { ids: ids(&[0]), reason: format!("  {}  ", &long[1..]) }).await;
    r.ok(Command::Approve { ids: ids(&[1]) }).await;
    r.run().await;
    r.refused(Command::RollBack { reason: long }).await;
    r.ok(Command::RollBack { reason: "too slow".to_owned() }).await;
}

/// Journals of versions that had no bound: 40 MB a reason, held five times in what every client gets, fit into no frame.
#[tokio::test]
async fn a_session_with_endless_reasons_opens_and_shows_their_beginnings() {
    let r = Rig::proposed().await;
    r.host.stop("test").await;
    r.host.ended().await;
    let mut journal = Journal::open(r.dir.path()).expect("opens").journal;
    let reason = "ü".repeat(20 << 20);
    let events = vec![
        Event::Vetoed { ids: ids(&[0]), reason: reason.clone() },
        Event::ConstraintSet { constraint: freeze("b", &reason) },
        Event::Vetoed { ids: ids(&[2]), reason },
    ];
    let written: Vec<Record> = journal.append(events, 0).expect("written");
    assert_eq!(written.len(), 3);
    drop(journal);
    let r = r.restart().await;
    assert_eq!((r.status("a"), r.status("c")), (Status::Vetoed, Status::Vetoed));
    let shown = r.state.decision(DecisionId(0)).and_then(|d| d.veto_reason.clone()).expect("a reason");
    assert!(shown.starts_with("üü") && shown.ends_with('…') && shown.len() <= REASON_BYTES);
    let bytes = serde_json::to_vec(&r.state).expect("json").len();
    assert!(bytes < 200 << 10, "{bytes} bytes");
}

#[tokio::test]
async fn a_frame_that_is_none_is_answered_before_the_connection_ends() {
    let r = Rig::new(false, None).await;
    let greet = async || {
        let (reader, mut writer) = r.line();
        let hello = ClientMsg::Hello { protocol: crate::session::PROTOCOL, client: "odd".to_owned(), watch: true };
        wire::Sender::new(&mut writer).send(&hello).await.expect("sent");
        (wire::Receiver::new(reader), writer)
    };
    let too_long = (u32::try_from(wire::MAX_COMMAND).expect("small") + 1).to_be_bytes().to_vec();
    let nonsense = [&8u32.to_be_bytes()[..], b"{\"a\": 1}"].concat();
    let again =
        serde_json::to_vec(&ClientMsg::Hello { protocol: 1, client: String::new(), watch: true }).expect("json");
    let again = [&u32::try_from(again.len()).expect("small").to_be_bytes()[..], &again].concat();
    for (bytes, word) in [(too_long, "larger"), (nonsense.clone(), "not a message"), (again, "greeted already")] {
        let (mut receiver, mut writer) = greet().await;
        writer.write_all(&bytes).await.expect("written");
        loop {
            match receiver.receive::<HostMsg>().await.expect("answered") {
                Some(HostMsg::Refused { message }) => {
                    assert!(message.contains(word) && message.contains("hint:"), "{message}");
                    break;
                }
                Some(_) => {}
                None => panic!("closed without a word: {word}"),
            }
        }
        assert_eq!(receiver.receive::<HostMsg>().await.expect("ends"), None);
    }
    // The same where the greeting should be.
    let (reader, mut writer) = r.line();
    writer.write_all(&nonsense).await.expect("written");
    let answer = wire::Receiver::new(reader).receive::<HostMsg>().await.expect("answered");
    assert!(matches!(answer, Some(HostMsg::Refused { .. })), "{answer:?}");
    r.ok(Command::Note { text: "nobody else was disturbed".to_owned() }).await;
}

#[tokio::test]
async fn what_opening_repaired_is_told_to_whoever_comes() {
    let r = Rig::proposed().await;
    // As a kill leaves the files; then a bad place in the log.
    let dir = tempfile::tempdir().expect("temp dir");
    for name in ["journal-1.db", "journal-1.db-wal"] {
        std::fs::copy(r.dir.path().join(name), dir.path().join(name)).expect("copied");
    }
    let wal = dir.path().join("journal-1.db-wal");
    let mut bytes = std::fs::read(&wal).expect("read");
    let at = bytes.len() - 6000;
    bytes[at] ^= 1;
    std::fs::write(&wal, bytes).expect("written");
    let host = start(dir.path(), &r.fake, false).expect("starts");
    let mut late = Rig::attach(dir, r.fake.clone(), host).await;
    while !late.feed.iter().any(|f| matches!(f, Feed::Log { text, .. } if text.contains("is damaged"))) {
        late.next().await;
    }
    assert!(late.state.seq < r.state.seq);
}
