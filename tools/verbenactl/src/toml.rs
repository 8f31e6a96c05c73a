// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Writes files of rules in the form in which people write them: each match and each action on a
//! line. TOML has no number above `i64::MAX`, so a file with such a number is written as JSON.

use serde_json::Value;
use std::fmt::Write as _;
use verbena_faults::RuleSet;

/// Formats a string. The escapes of JSON are valid in TOML too.
fn text(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// Formats a value on one line.
fn inline(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let fields = fields.iter().map(|(k, v)| format!("{k} = {}", inline(v)));
            format!("{{ {} }}", fields.collect::<Vec<_>>().join(", "))
        }
        Value::Array(values) if values.len() == 1 => inline(&values[0]),
        Value::Array(values) => {
            let values: Vec<String> = values.iter().map(inline).collect();
            format!("[{}]", values.join(", "))
        }
        Value::String(string) => text(string),
        other => other.to_string(),
    }
}

/// True if a value contains a number that TOML cannot hold.
fn is_beyond(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.values().any(is_beyond),
        Value::Array(values) => values.iter().any(is_beyond),
        Value::Number(number) => number.as_u64().is_some_and(|n| i64::try_from(n).is_err()),
        _ => false,
    }
}

/// Returns the file for some rules.
///
/// # Errors
///
/// A rule cannot be written to a file.
pub fn rules(set: &RuleSet) -> Result<String, String> {
    let value = serde_json::to_value(set).map_err(|e| e.to_string())?;
    if is_beyond(&value) {
        let json = serde_json::to_string_pretty(set).map_err(|e| e.to_string())?;
        return Ok(json + "\n");
    }
    let mut out = format!("version = {}\nseed = {}\n", set.version, set.seed);
    for rule in &set.rule {
        let value = serde_json::to_value(rule).map_err(|e| e.to_string())?;
        let _ = write!(out, "\n[[rule]]\n");
        for key in ["name", "optional", "match", "action"] {
            if let Some(value) = value.get(key) {
                let _ = writeln!(out, "{key} = {}", inline(value));
            }
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbena_protocol::{read_rules, read_toml};

    #[test]
    fn written_rules_are_read_back_unchanged() {
        let file = "version = 1\nseed = 7\n\n[[rule]]\nname = \"a \\\"b\\\" \\\\ ä\"\noptional = true\nmatch = { direction = \"in\", nth = 3, opcode = [\"SEND\", \"RDMA WRITE\"] }\naction = { corrupt = { field = \"rkey\", value = 5, icrc = \"right\" } }\n\n[[rule]]\nname = \"x\"\nmatch = { on = \"time\", after_ms = 5 }\naction = \"fatal\"\n";
        let set = read_toml(file).unwrap();
        assert_eq!(read_toml(&rules(&set).unwrap()).unwrap(), set);
        let mut seeded = set.clone();
        seeded.seed = u64::MAX;
        let json = r#"{"version":1,"rule":[{"name":"x","match":{"opcode":"RDMA WRITE Only"},"action":{"corrupt":{"field":"va","value":18446612682070032384,"icrc":"right"}}}]}"#;
        let high = read_rules(json.as_bytes()).unwrap();
        for set in [seeded, high] {
            let file = rules(&set).unwrap();
            assert_eq!(read_rules(file.as_bytes()).unwrap(), set, "{file}");
        }
    }
}
