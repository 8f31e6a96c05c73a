// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Compares the published schema with the types: both have the same fields and actions.

use serde_json::{json, Value};
use verbena_faults::RuleSet;

const SCHEMA: &str = include_str!("../../../../../Documentation/faults.schema.json");

fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    keys.sort_unstable();
    keys
}

/// True if the types accept an action.
fn takes(action: &Value) -> bool {
    let set = json!({ "version": 1, "rule": [{ "name": "x", "action": action }] });
    serde_json::from_value::<RuleSet>(set).is_ok()
}

#[test]
fn fields_are_those_of_the_types() {
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    // The error about an unknown field lists all known fields.
    let known = |set: Value| -> Vec<String> {
        let error = serde_json::from_value::<RuleSet>(set)
            .unwrap_err()
            .to_string();
        let (_, list) = error.split_once("expected").unwrap();
        let quoted = list.split('`').skip(1).step_by(2).map(String::from);
        let mut all: Vec<String> = quoted.collect();
        all.sort_unstable();
        all
    };
    let of = |rule: Value| json!({ "version": 1, "rule": [rule] });
    assert_eq!(keys(&schema["properties"]), known(json!({ "?": 1 })));
    let defs = &schema["$defs"];
    assert_eq!(
        keys(&defs["rule"]["properties"]),
        known(of(json!({ "?": 1 })))
    );
    let in_match = of(json!({ "match": { "?": 1 } }));
    assert_eq!(keys(&defs["match"]["properties"]), known(in_match));
    let in_corrupt = of(json!({ "action": { "corrupt": { "?": 1 } } }));
    assert_eq!(keys(&defs["corrupt"]["properties"]), known(in_corrupt));
    let in_impair = of(json!({ "action": { "impair": { "?": 1 } } }));
    assert_eq!(keys(&defs["impair"]["properties"]), known(in_impair));
    let mut actions: Vec<String> = Vec::new();
    for way in defs["action"]["oneOf"].as_array().unwrap() {
        match way["enum"].as_array() {
            Some(names) => {
                assert!(names.iter().all(takes), "{names:?}");
                actions.extend(names.iter().map(|name| name.as_str().unwrap().to_owned()));
            }
            None => actions.extend(
                keys(&way["properties"])
                    .iter()
                    .map(|key| String::from(*key)),
            ),
        }
    }
    actions.sort_unstable();
    assert_eq!(actions, known(of(json!({ "action": "?" }))));
}
