//! Arbitrary bytes from a server: nothing panics, nothing hostile gets through, nothing is lost.

use crate::{role, session};
use paring::agent::validate::{SearchSpace, validate};
use paring::agent::{LlmError, clean, proposal};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<f64>().prop_map(|f| json!(f)),
        any::<i64>().prop_map(Value::from),
        prop_oneof![
            Just("prune".to_owned()),
            Just("precision".to_owned()),
            Just("int8".to_owned()),
            Just("layer1.0.conv1".to_owned()),
            Just("layer1.0".to_owned()),
            Just("*".to_owned()),
            Just("**.*é*".to_owned()),
            ".*",
        ]
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        let key = prop_oneof![
            Just("target".to_owned()),
            Just("action".to_owned()),
            Just("ratio".to_owned()),
            Just("precision".to_owned()),
            Just("why".to_owned()),
            Just("decisions".to_owned()),
            Just("error".to_owned()),
            Just("message".to_owned()),
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key, inner), 0..5).prop_map(|kv| Value::Object(kv.into_iter().collect())),
        ]
    })
}

fn harmless(s: &str) -> bool {
    !s.chars().any(|c| c != '\n' && c.is_control())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn text_of_any_kind_is_read_without_panic(text in "(\\PC|[`~{}\\[\\]\",:\n\u{1b}]|```json\n|decisions){0,60}", reasoning in ".*") {
        let _ = proposal::find(&text, &reasoning);
        prop_assert!(harmless(&clean::text(&text)));
        prop_assert!(clean::line(&text, 40).chars().count() <= 40);
    }

    #[test]
    fn entries_of_any_kind_yield_only_what_can_stand(entries in prop::collection::vec(value(), 0..12)) {
        let state = session::state();
        let card = state.card.as_ref().unwrap();
        let space = SearchSpace { graph: &card.graph, groups: &card.groups, constraints: &[], refused: &[] };
        let object = Map::from_iter([("decisions".to_owned(), Value::from(entries))]);
        for role in [role("pruning"), role("quantization")] {
            let v = validate(&object, role, space);
            for d in &v.drafts {
                let again = paring::plan::check(&d.action, &d.target, &card.groups, &card.graph, &[]);
                prop_assert_eq!(again.as_ref(), Ok(&d.action));
                prop_assert!(harmless(&d.why));
            }
            prop_assert!(v.errors.iter().chain(&v.remarks).all(|e| harmless(e)));
        }
    }

    #[test]
    fn error_bodies_of_any_kind_give_a_bounded_line(body in value(), text in ".*", status in 400u16..600) {
        for body in [body.to_string(), text] {
            let e = LlmError::from_body("u", status, &body).to_string();
            prop_assert!(harmless(&e) && e.chars().count() < 700 && e.contains("hint: "), "{}", e);
        }
    }
}
