//! The table of questions: names, schemas, and what is refused.

use super::*;

#[test]
fn names_are_unlike_and_schemas_are_of_objects() {
    let mut names: Vec<&str> = TOOLS.iter().chain([&ASK]).map(|t| t.name).collect();
    let n = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), n);
    for t in TOOLS.iter().chain([&ASK]) {
        let schema = t.schema();
        assert_eq!(schema["type"], "object", "{}", t.name);
        let properties = schema["properties"].as_object().expect("properties");
        for must in schema["required"].as_array().expect("a list") {
            assert!(properties.contains_key(must.as_str().expect("a name")), "{}", t.name);
        }
    }
}

#[test]
fn arguments_are_checked_by_name_and_kind() {
    let why = |tool: &str, asked: Value| {
        let tool = find(tool).expect("a tool");
        answer(tool, asked.as_object().expect("an object"), &State::default()).expect_err("refused")
    };
    assert!(
        why("layers", json!({ "filtr": "conv" })).contains("`layers` has no argument `filtr`; hint: it takes filter")
    );
    assert!(why("layers", json!({ "sort": "beauty" })).contains("`sort` is not one of ms, macs"));
    assert!(why("layers", json!({ "limit": "many" })).contains("`limit` is not a number"));
    assert!(why("profile", json!({})).contains("needs `name`"));
    assert!(why("profile", json!({ "name": null })).contains("needs `name`"));
    assert!(why("profile", json!({ "name": "x".repeat(3000) })).contains("longer than"));
    assert!(why("forecast", json!({ "decisions": {} })).contains("not a list"));
    assert!(why("compare", json!({ "a": "mine", "b": [] })).contains("not a list of decisions or one of original"));
    assert!(why("plan", json!({ "all": true })).contains("it takes none"));
    // What cannot be answered from what is known says so.
    assert!(why("propose", json!({ "decisions": [] })).contains("request of its own"));
    // Nothing is open, nothing is measured: said, with what to do.
    assert!(why("plan", json!({})).contains("no session is open"));
    assert!(why("layers", json!({})).contains("hint:"));
    assert!(why("ladder", json!({ "layer": "a\u{1b}[31m" })).contains("hint:"));
}
