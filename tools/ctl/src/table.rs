// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Answers as tables for people.

use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;

fn text(value: &Value) -> String {
    match value {
        Value::String(s) => s.clone(),
        Value::Null => String::from("-"),
        other => other.to_string(),
    }
}

/// Names and values, a line each.
pub fn pairs(object: &Value) -> String {
    let mut out = String::new();
    let Some(object) = object.as_object() else {
        return out;
    };
    let width = object.keys().map(String::len).max().unwrap_or(0);
    for (name, value) in object.iter().filter(|(name, _)| *name != "ok") {
        let _ = writeln!(out, "{name:width$}  {}", text(value));
    }
    out
}

/// A table for each kind of context: one line for each object, one column for each field.
pub fn contexts(list: &Value) -> String {
    let mut kinds: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for context in list.as_array().into_iter().flatten() {
        kinds
            .entry(context["kind"].as_str().unwrap_or("?"))
            .or_default()
            .push(context);
    }
    let mut out = String::new();
    for (kind, contexts) in kinds {
        let fields = |c: &Value| c["fields"].as_object().cloned().unwrap_or_default();
        let mut columns = vec![String::from(kind)];
        for name in contexts
            .iter()
            .flat_map(|c| fields(c).into_iter().map(|(name, _)| name))
        {
            if !columns.contains(&name) {
                columns.push(name);
            }
        }
        let mut rows = vec![columns.clone()];
        for context in contexts {
            let mut row = vec![text(&context["number"])];
            row.extend(
                columns[1..]
                    .iter()
                    .map(|name| text(&context["fields"][name])),
            );
            rows.push(row);
        }
        if !out.is_empty() {
            out.push('\n');
        }
        lines(&mut out, &rows);
    }
    out
}

fn lines(out: &mut String, rows: &[Vec<String>]) {
    let widths: Vec<usize> = (0..rows[0].len())
        .map(|i| rows.iter().map(|row| row[i].len()).max().unwrap_or(0))
        .collect();
    for row in rows {
        let mut line = String::new();
        for (cell, &width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell:width$}  ");
        }
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pairs_line_up() {
        let value = json!({ "ok": true, "posts": 12, "tx_packets": 3, "cause": null });
        assert_eq!(
            pairs(&value),
            "cause       -\nposts       12\ntx_packets  3\n"
        );
    }

    #[test]
    fn contexts_have_a_table_for_each_kind() {
        let value = json!([
            { "kind": "qp", "number": 17, "fields": { "state": "RTS" } },
            { "kind": "cq", "number": 1, "fields": { "producer": 5 } },
            { "kind": "qp", "number": 2, "fields": { "state": "ERR", "syndrome": "CqDied" } },
        ]);
        assert_eq!(
            contexts(&value),
            "cq  producer\n1   5\n\nqp  state  syndrome\n17  RTS    -\n2   ERR    CqDied\n"
        );
        assert_eq!(contexts(&json!([])), "");
    }
}
