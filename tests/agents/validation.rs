//! Every way in which a proposal can be wrong, and what becomes of the rest of it.

use crate::{role, session};
use paring::agent::proposal;
use paring::agent::validate::{MAX_DECISIONS, SearchSpace, Validated, validate};
use paring::plan::{Constraint, Limit};
use paring::prune::{Action, Target};
use paring::quant::Precision;
use paring::session::{Role, State};

fn check_in(state: &State, role: &Role, json: &str) -> Validated {
    let card = state.card.as_ref().unwrap();
    let space = SearchSpace { graph: &card.graph, groups: &card.groups, constraints: &state.constraints, refused: &[] };
    validate(&proposal::find(json, "").unwrap(), role, space)
}

fn check(role: &Role, decisions: &str) -> Validated {
    check_in(&session::state(), role, &format!("{{\"decisions\":[{decisions}],\"summary\":\"s\\u001b[0m\"}}"))
}

fn group(name: &str) -> Target {
    Target::Group(name.into())
}

#[test]
fn a_precision_that_the_device_refuses_is_answered_with_why() {
    let state = session::state();
    let card = state.card.as_ref().unwrap();
    let refused = [(Precision::W4, "w4 has no GPU kernel; hint: int8 has".to_owned())];
    let space = SearchSpace { graph: &card.graph, groups: &card.groups, constraints: &[], refused: &refused };
    let of = |precision: &str| {
        let json = format!(
            r#"{{"decisions":[{{"target":"conv1","action":"precision","precision":"{precision}"}}],"summary":""}}"#
        );
        validate(&proposal::find(&json, "").unwrap(), role("quantization"), space)
    };
    assert_eq!((of("int8").drafts.len(), of("int8").errors.len()), (1, 0));
    let w4 = of("w4");
    assert!(w4.drafts.is_empty() && w4.errors[0].contains("`conv1`: w4 has no GPU kernel"), "{w4:?}");
}

#[test]
fn good_entries_become_checked_decisions() {
    let v = check(
        role("pruning"),
        r#"{"target":"layer1.0.conv1","action":"prune","ratio":0.26,"why":"flat \u001b[31m\u202e"},
           {"target":"group layer2.0.conv1","action":"Prune","ratio":"50%"},
           {"target":"layer1.1.conv1","action":"keep","why":"sensitive"}"#,
    );
    assert_eq!(v.errors, Vec::<String>::new());
    assert_eq!(v.drafts.len(), 3);
    assert_eq!(v.drafts[0].target, group("layer1.0.conv1"));
    assert_eq!(v.drafts[0].action, Action::Prune { ratio: 0.25, kept: vec![] });
    assert_eq!(v.drafts[0].why, "flat [31m");
    assert_eq!(v.drafts[1].action, Action::Prune { ratio: 0.5, kept: vec![] });
    assert_eq!(v.drafts[2].action, Action::Keep);
    assert_eq!(v.summary, "s[0m");
}

#[test]
fn every_error_names_its_entry_and_spares_the_others() {
    let good = r#"{"target":"layer1.0.conv1","action":"prune","ratio":0.25}"#;
    for (bad, says) in [
        (r#"{"target":"layer1.0.conv9","action":"prune","ratio":0.25}"#, "the nearest is `layer1.0.conv"),
        (r#"{"target":"layer2.0.conv1","action":"prune","ratio":null}"#, "not a number"),
        (r#"{"target":"layer2.0.conv1","action":"prune","ratio":NaN}"#, "not a number"),
        (r#"{"target":"layer2.0.conv1","action":"prune"}"#, "missing"),
        (r#"{"target":"layer2.0.conv1","action":"prune","ratio":-0.5}"#, "out of range"),
        (r#"{"target":"layer2.0.conv1","action":"prune","ratio":37.5}"#, "out of range"),
        (r#"{"target":"layer2.0.conv1","action":"prune","ratio":1e308}"#, "out of range"),
        (r#"{"target":"layer2.0.conv1","action":"prune","ratio":1.0}"#, "out of range"),
        (r#"{"target":"layer2.0.conv1","action":"explode","ratio":0.5}"#, "unknown action `explode`"),
        (r#"{"target":"layer2.0.conv1","ratio":0.5}"#, "has no `action`"),
        (r#"{"target":"layer2.0.conv1","action":["prune"]}"#, "has no `action`"),
        (r#"{"target":"layer9.9","action":"remove_block"}"#, "no block is named `layer9.9`"),
        (r#"{"target":"layer2.0","action":"remove_block"}"#, "cannot be removed"),
        (r#"{"action":"prune","ratio":0.5}"#, "no `target`"),
        (r#"{"target":7,"action":"prune","ratio":0.5}"#, "no `target`"),
        (r#"{"target":"zzz.*","action":"prune","ratio":0.5}"#, "matches nothing"),
        (r#""just text""#, "not an object"),
        (r#"{"target":"layer1.0.conv1","action":"prune","ratio":0.5}"#, "already decided, differently, in decision 1"),
    ] {
        let v = check(role("pruning"), &format!("{good},{bad}"));
        assert_eq!(v.errors.len(), 1, "{bad}: {:?}", v.errors);
        assert!(v.errors[0].starts_with("decision 2: ") && v.errors[0].contains(says), "{bad}: {:?}", v.errors);
        assert_eq!(v.drafts.len(), 1, "{bad}");
    }
}

#[test]
fn constraints_bind_in_code() {
    let mut state = session::state();
    let limit = |target, limit| Constraint { target, limit, reason: "mine".into() };
    state.constraints = vec![
        limit(group("layer1.0.conv1"), Limit::Freeze),
        limit(group("layer2.0.conv1"), Limit::MaxRatio { ratio: 0.25 }),
        limit(Target::Layer("linear".into()), Limit::KeepF32),
    ];
    let all = r#"{"decisions":[
        {"target":"layer1.0.conv1","action":"prune","ratio":0.5},
        {"target":"layer2.0.conv1","action":"prune","ratio":0.5},
        {"target":"layer*","action":"prune","ratio":0.125}]}"#;
    let v = check_in(&state, role("pruning"), all);
    assert_eq!(v.errors.len(), 1);
    assert!(v.errors[0].contains("frozen") && v.errors[0].contains("mine"), "{:?}", v.errors);
    assert!(v.drafts.iter().all(|d| d.target != group("layer1.0.conv1")));
    let second = v.drafts.iter().find(|d| d.target == group("layer2.0.conv1")).unwrap();
    assert_eq!(second.action, Action::Prune { ratio: 0.25, kept: vec![] });
    assert!(v.remarks.iter().any(|r| r.contains("asked to remove 0.5")), "{:?}", v.remarks);
    let linear = r#"{"decisions":[{"target":"linear","action":"precision","precision":"int8"}]}"#;
    let v = check_in(&state, role("quantization"), linear);
    assert!(v.drafts.is_empty() && v.errors[0].contains("must stay f32"), "{:?}", v.errors);
}

#[test]
fn precisions_by_layer_block_and_pattern() {
    let v = check(
        role("quantization"),
        r#"{"target":"*","action":"precision","precision":"int8","why":"all"},
           {"target":"layer1.0","action":"quantize","precision":"int8"},
           {"target":"conv1","action":"precision","precision":"fp32","why":"first"},
           {"target":"linear","action":"precision","precision":"fp6"},
           {"target":"layer1.0.conv1","action":"prune","ratio":0.5}"#,
    );
    assert_eq!(v.errors.len(), 1);
    assert!(v.errors[0].contains("no precision `fp6`"), "{:?}", v.errors);
    assert!(v.remarks.iter().any(|r| r.contains("another role")), "{:?}", v.remarks);
    let of = |name: &str| v.drafts.iter().find(|d| d.target == Target::Layer(name.into())).map(|d| d.action.clone());
    assert_eq!(of("conv1"), Some(Action::Precision { precision: Precision::F32 }));
    assert_eq!(of("layer3.2.conv2"), Some(Action::Precision { precision: Precision::Int8 }));
    assert_eq!(of("linear"), Some(Action::Precision { precision: Precision::Int8 }));
    // 19 convolutions and the classifier, once each.
    assert_eq!(v.drafts.len(), 20);
}

#[test]
fn lengths_and_counts_are_bounded() {
    let long = "x".repeat(100_000);
    let v = check(
        role("pruning"),
        &format!(
            r#"{{"target":"layer1.0.conv1","action":"prune","ratio":0.25,"why":"{long}"}},{{"target":"{long}","action":"prune","ratio":0.5}}"#
        ),
    );
    assert!(v.drafts[0].why.chars().count() <= 280);
    assert!(v.errors[0].chars().count() <= 400, "{}", v.errors[0].len());
    let many = vec![r#"{"target":"nope","action":"prune","ratio":0.5}"#; 3_000].join(",");
    let v = check(role("pruning"), &many);
    assert!(v.errors.len() <= 21 && v.errors.last().unwrap().contains("more of the kind"));
    let same = vec![r#"{"target":"layer*","action":"prune","ratio":0.5}"#; 500].join(",");
    assert!(check(role("pruning"), &same).drafts.len() <= MAX_DECISIONS);
}
