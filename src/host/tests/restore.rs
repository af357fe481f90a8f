//! Going back to the decisions of an earlier moment, from the command to the journal and through a restart.

use super::*;
use crate::session::KeptPlan;

#[tokio::test]
async fn decisions_go_back_to_an_event_of_the_journal_and_forth_by_one_undo() {
    let mut r = Rig::proposed().await;
    let ids: Vec<DecisionId> = r.state.open().iter().map(|d| d.id).collect();
    let proposed = r.state.seq;
    r.ok(Command::Approve { ids: ids.clone() }).await;
    r.until("approved", |s| s.pending().len() == ids.len()).await;
    let approved = r.state.seq;
    let had = r.state.recipe_actions();
    r.ok(Command::Restore { seq: proposed }).await;
    r.until("back", |s| s.pending().is_empty()).await;
    let kept = r.state.plans.last().map(|p| p.name.clone());
    assert_eq!((r.state.open().len(), kept), (ids.len(), Some(KeptPlan::replaced_by(r.state.seq))));
    r.ok(Command::Undo).await;
    r.until("undone", |s| s.pending().len() == ids.len()).await;
    assert_eq!(r.state.recipe_actions(), had);
    // Where nothing differs that is said, and so is what there is not.
    assert!(r.refused(Command::Restore { seq: approved }).await.contains("as they were"));
    assert!(r.refused(Command::Restore { seq: 0 }).await.contains("no event 0"));
    assert!(r.refused(Command::Restore { seq: r.state.seq + 1 }).await.contains("no event"));
    // A round that waits for its verdict is answered first.
    r.run().await;
    assert!(r.refused(Command::Restore { seq: proposed }).await.contains("verdict"));
    r.ok(Command::RollBack { reason: String::new() }).await;
    r.until("rolled back", |s| s.in_force().is_empty()).await;
    // What was approved before the round is approved again, to be built as it was.
    r.ok(Command::Restore { seq: approved }).await;
    r.until("back", |s| !s.pending().is_empty()).await;
    assert_eq!(r.state.recipe_actions(), had);
    // The journal has it.
    let read = crate::session::Journal::read(r.dir.path()).expect("reads");
    assert_eq!(State::fold(&read).recipe_actions(), had);
}
