// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Answers as tables for people.

use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Fields that are bits or addresses.
const HEXADECIMAL: [&str; 4] = ["syndrome", "key", "access", "iova"];

/// A field's value.
fn text(name: &str, value: &Value) -> String {
    match value {
        Value::Number(n) if HEXADECIMAL.contains(&name) => {
            n.as_u64().map_or(n.to_string(), |n| format!("{n:#x}"))
        }
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
    for (name, value) in object {
        let _ = writeln!(out, "{name:width$}  {}", text(name, value));
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
            let mut row = vec![text("number", &context["number"])];
            row.extend(
                columns[1..]
                    .iter()
                    .map(|name| text(name, &context["fields"][name])),
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
        let value = json!({ "posts": 12, "tx_packets": 3, "cause": null });
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
            { "kind": "qp", "number": 2, "fields": { "state": "ERR", "syndrome": 0x3001 } },
        ]);
        assert_eq!(
            contexts(&value),
            "cq  producer\n1   5\n\nqp  state  syndrome\n17  RTS    -\n2   ERR    0x3001\n"
        );
        assert_eq!(contexts(&json!([])), "");
    }
}
