// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads files of rules. An error names the line, the field and the reason.

use crate::strict::StrictJson;
use serde::de::DeserializeOwned;
use serde_json::{json, Value};
use verbena_faults::{most_similar_name, not_available, Action, Match, Rule, RuleSet};

/// Largest number of brackets, braces and dots that a rule in a file can have.
const MAX_NESTING: usize = 200;
/// Length of the longest error, in characters, because an error may quote a long text.
const MAX_ERROR_CHARS: usize = 1000;

/// Reads rules from a file in TOML, or in JSON if it begins with a brace.
///
/// # Errors
///
/// The text names a line and the error there.
pub fn read_rules(file: &[u8]) -> Result<RuleSet, String> {
    let text = std::str::from_utf8(file).map_err(|e| {
        let before = file.iter().take(e.valid_up_to());
        let line = 1 + before.filter(|byte| **byte == b'\n').count();
        format!("line {line}: is not UTF-8")
    })?;
    if text.trim_start().starts_with('{') {
        read_json(text)
    } else {
        read_toml(text)
    }
}

/// Reads rules in TOML.
///
/// # Errors
///
/// The text names a line and the error there.
pub fn read_toml(text: &str) -> Result<RuleSet, String> {
    let value = check_nesting(text).and_then(|()| {
        let value = basic_toml::from_str(text);
        value.map_err(|e: basic_toml::Error| move_line_first(&e.to_string()))
    });
    value
        .and_then(|value| parse_rules(value, &RuleLines::new(text, "[[rule]]")))
        .map_err(|error| truncated(suggest_name(error)))
}

/// Reads rules in JSON.
///
/// # Errors
///
/// The text names a line and the error there.
pub fn read_json(text: &str) -> Result<RuleSet, String> {
    let value = serde_json::from_str(text);
    let value = value.map_err(|e: serde_json::Error| move_line_first(&e.to_string()));
    value
        .and_then(|StrictJson(value)| parse_rules(value, &RuleLines::new(text, "\"name\"")))
        .map_err(|error| truncated(suggest_name(error)))
}

/// Replaces the list of all names in an error about an unknown field or action with the nearest
/// name. The words of serde are ``unknown field `nht`, expected one of `name`, `nth` ``.
fn suggest_name(error: String) -> String {
    let Some((head, expected)) = error.split_once("`, expected one of ") else {
        return error;
    };
    let Some((before, word)) = head.rsplit_once('`') else {
        return error;
    };
    if !before.ends_with("unknown field ") && !before.ends_with("unknown variant ") {
        return error;
    }
    // Every second piece is a name.
    match most_similar_name(word, expected.split('`').skip(1).step_by(2)) {
        Some(name) => format!("{head}`: did you mean {name}?"),
        None => error,
    }
}

fn truncated(mut error: String) -> String {
    if let Some((end, _)) = error.char_indices().nth(MAX_ERROR_CHARS) {
        error.truncate(end);
        // The cut is not in the middle of a name, unless a single quoted text is too long.
        if let Some(end) = error.rfind(", ").filter(|at| at * 2 > error.len()) {
            error.truncate(end + 1);
        }
        error.push_str(" ...");
    }
    error
}

/// Refuses a text that is nested too deeply for the stack, because the TOML parser recurses at each
/// level.
///
/// The count starts again at a line `[[rule]]`, which cannot be part of a value. Strings of several
/// lines are refused because such a line could be within a string.
fn check_nesting(text: &str) -> Result<(), String> {
    let mut levels = 0;
    for (n, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.contains("\"\"\"") || line.contains("'''") {
            return Err(format!(
                "line {}: a string of several lines (three quotes) is not allowed",
                n + 1
            ));
        }
        if line.starts_with('#') {
            continue;
        }
        if line
            .split('#')
            .next()
            .is_some_and(|line| line.trim() == "[[rule]]")
        {
            levels = 0;
        }
        levels += line.matches(['[', '{', '.']).count();
        if levels > MAX_NESTING {
            return Err(format!(
                "line {}: a rule has more than {MAX_NESTING} brackets, braces and dots",
                n + 1
            ));
        }
    }
    Ok(())
}

/// Rewrites `why at line 3 column 7` to `line 3: why`.
fn move_line_first(error: &str) -> String {
    let Some((why, place)) = error.rsplit_once(" at line ") else {
        return format!("line 1: {error}");
    };
    let digits = place.split(|c: char| !c.is_ascii_digit()).next();
    format!("line {}: {why}", digits.unwrap_or("1"))
}

/// The positions of rules in a text.
struct RuleLines<'a> {
    lines: Vec<&'a str>,
    /// Index of the first line of each rule.
    heads: Vec<usize>,
}

impl<'a> RuleLines<'a> {
    fn new(text: &'a str, head: &str) -> Self {
        let lines: Vec<&str> = text.lines().collect();
        let heads = lines.iter().enumerate();
        let heads = heads.flat_map(|(n, line)| line.match_indices(head).map(move |_| n));
        Self {
            heads: heads.collect(),
            lines,
        }
    }

    /// Returns the number of the line with a field of a rule, or of the line where the rule begins.
    fn of(&self, rule: Option<usize>, field: &str) -> usize {
        let begin = rule.and_then(|n| self.heads.get(n)).copied();
        let end = rule.and_then(|n| self.heads.get(n + 1)).copied();
        let key = field.rsplit('.').next().unwrap_or(field);
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let has = |line: &&str| line.split(|c| !is_word(c)).any(|word| word == key);
        let first = begin.unwrap_or(0);
        let count = end.unwrap_or(self.lines.len()).saturating_sub(first).max(1);
        let found = self.lines.iter().skip(first).take(count).position(has);
        1 + first + found.unwrap_or(0)
    }
}

fn parse_rules(mut value: Value, lines: &RuleLines<'_>) -> Result<RuleSet, String> {
    let rules = value.get_mut("rule").map(Value::take);
    let mut set = value;
    if let (Some(_), Some(fields)) = (&rules, set.as_object_mut()) {
        fields.remove("rule");
    }
    let at =
        |rule, (field, why): (String, String)| format!("line {}: {why}", lines.of(rule, &field));
    check_fields::<RuleSet>("", &set, &json!({ "version": 1 })).map_err(|e| at(None, e))?;
    let mut set: RuleSet = serde_json::from_value(set).map_err(|e| format!("line 1: {e}"))?;
    let rules = match rules {
        None => Vec::new(),
        Some(Value::Array(rules)) => rules,
        Some(_) => {
            return Err(format!(
                "line {}: rule: is not a list of rules",
                lines.of(None, "rule")
            ))
        }
    };
    for (n, value) in rules.into_iter().enumerate() {
        let name = value.get("name").and_then(Value::as_str).unwrap_or("?");
        let named =
            |(field, why): (String, String)| at(Some(n), (field, format!("rule {name:?}: {why}")));
        check_rule_fields(&value).map_err(named)?;
        let rule = serde_json::from_value(value.clone());
        set.rule
            .push(rule.map_err(|e| named((String::new(), e.to_string())))?);
    }
    set.check().map_err(|(rule, why)| {
        let field = rule
            .and_then(|n| set.rule.get(n))
            .and_then(|rule| rule.check().err());
        at(
            rule,
            (field.map_or("name", |wrong| wrong.field).into(), why),
        )
    })?;
    Ok(set)
}

/// Checks the parts of a rule one by one, so that an error names its field.
fn check_rule_fields(rule: &Value) -> Result<(), (String, String)> {
    for part in ["match", "action"] {
        let keys: Vec<&str> = match rule.get(part) {
            Some(Value::Object(fields)) => fields.keys().map(String::as_str).collect(),
            Some(Value::String(name)) => vec![name],
            _ => Vec::new(),
        };
        for key in keys {
            if let Some(why) = not_available(key) {
                let field = format!("{part}.{key}");
                return Err((field.clone(), format!("{field}: not available: {why}")));
            }
        }
    }
    if let Some(matches) = rule.get("match") {
        check_fields::<Match>("match.", matches, &json!({}))?;
    }
    if let Some(action) = rule.get("action") {
        let read = serde_json::from_value::<Action>(action.clone());
        read.map_err(|e| (String::from("action"), format!("action: {e}")))?;
    }
    check_fields::<Rule>("", rule, &json!({ "name": "x", "action": "drop" }))
}

/// Parses each field of an object on its own, together with the required fields in `rest`.
fn check_fields<T: DeserializeOwned>(
    path: &str,
    object: &Value,
    rest: &Value,
) -> Result<(), (String, String)> {
    let fields = object.as_object();
    for (key, value) in fields.into_iter().flatten() {
        // A number that JSON does not have, such as `nan` in TOML, becomes null.
        if value.is_null() {
            return Err((key.clone(), format!("{path}{key}: has no value")));
        }
        let mut alone = rest.clone();
        if let Some(alone) = alone.as_object_mut() {
            alone.insert(key.clone(), value.clone());
        }
        let read = serde_json::from_value::<T>(alone);
        read.map_err(|e| (key.clone(), format!("{path}{key}: {e}")))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(rule: &str) -> String {
        read_toml(&format!("version = 1\n[[rule]]\nname = \"x\"\n{rule}")).unwrap_err()
    }

    #[test]
    fn the_nearest_name_is_suggested() {
        for (rule, expected) in [
            (
                "match = { nht = 1 }\naction = \"drop\"",
                "did you mean nth?",
            ),
            (
                "match = { opcode = \"RDMA WRTE\" }\naction = \"drop\"",
                "did you mean RDMA WRITE?",
            ),
            ("action = \"dorp\"", "did you mean drop?"),
            ("acton = \"drop\"", "did you mean action?"),
        ] {
            let error = refused(rule);
            assert!(error.contains(expected), "{rule}: {error}");
        }
    }

    #[test]
    fn a_long_error_is_cut_after_a_name() {
        let long = "x".repeat(600);
        let error = refused(&format!(
            "match = {{ opcode = \"{long}\" }}\naction = \"drop\""
        ));
        assert!(error.ends_with(", ..."), "{error}");
        assert!(error.chars().count() <= MAX_ERROR_CHARS + 4);
    }
}
