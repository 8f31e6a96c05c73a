// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Formats answers as tables for people.

use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Names of fields that hold bits or addresses.
const HEXADECIMAL: [&str; 4] = ["syndrome", "key", "access", "iova"];

/// Formats the value of a field.
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

/// Formats names and values, with one line for each.
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

/// Formats counters, with one line for each; with `nonzero` only the counters that are not zero.
pub fn counters(object: &Value, nonzero: bool) -> String {
    let mut counters = object.as_object().cloned().unwrap_or_default();
    if nonzero {
        counters.retain(|_, value| value.as_u64() != Some(0));
    }
    match counters.is_empty() {
        true => String::from("all counters are 0\n"),
        false => pairs(&counters.into()),
    }
}

/// Formats a table for each kind of context: one line for each object, one column for each field.
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
    if out.is_empty() {
        out.push_str("there is no such object\n");
    }
    out
}

/// Formats the port: its state, its addresses, its refused addresses, its groups, its counters.
pub fn port(reply: &Value) -> String {
    let port = &reply["port"];
    let mut out = pairs(&without_fields(
        port,
        &["gids", "refused", "unreachable_ram", "groups", "counters"],
    ));
    if let Some(gids) = list(&port["gids"], &["index", "gid", "mac", "vlan"]) {
        let _ = write!(out, "\n{gids}");
    }
    let refused = ["gid", "mac", "vlan", "times", "rule", "why"];
    if let Some(refused) = list(&port["refused"], &refused) {
        let _ = write!(out, "\nGIDs that were refused:\n{refused}");
    }
    if let Some(ranges) = list(&port["unreachable_ram"], &["address", "bytes", "why"]) {
        let _ = write!(
            out,
            "\nmemory of the guest that the NIC cannot reach:\n{ranges}"
        );
    }
    let groups: Vec<Value> = port["groups"].as_array().map_or(vec![], |groups| {
        let named = groups.iter().map(|group| {
            let mut named = group.clone();
            named["qpns"] = Value::String(member_qpns(group));
            named
        });
        named.collect()
    });
    if let Some(groups) = list(&groups.into(), &["gid", "members", "qpns"]) {
        let _ = write!(out, "\n{groups}");
    }
    let _ = write!(out, "\n{}", pairs(&port["counters"]));
    out
}

/// Lists the members of a group, as far as the answer names them.
fn member_qpns(group: &Value) -> String {
    let first = group["first"].as_array().map_or(&[][..], Vec::as_slice);
    let mut all: Vec<String> = first.iter().map(Value::to_string).collect();
    if group["members"].as_u64() > Some(first.len() as u64) {
        all.push(String::from("..."));
    }
    all.join(" ")
}

/// Formats a QP: its fields, then its counters; with `nonzero` only the counters that are not zero.
pub fn queue_pair(qp: &Value, nonzero: bool) -> String {
    let fields = pairs(&without_fields(qp, &["counters"]));
    format!("{fields}\n{}", counters(&qp["counters"], nonzero))
}

/// Columns of peers that are counters.
const PEER_COUNTERS: [&str; 11] = [
    "tx_packets",
    "rx_packets",
    "tx_bytes",
    "rx_bytes",
    "retransmits",
    "spurious_retransmits",
    "probes",
    "local_ack_timeout_err",
    "packet_seq_err",
    "out_of_sequence",
    "kept",
];

/// Formats the peers, with one line for each and the counters that describe the path to the peer.
pub fn peers(reply: &Value) -> String {
    let mut columns = vec!["gid", "qps", "in_error", "in_flight", "round_trip_ns"];
    columns.extend(PEER_COUNTERS);
    let peers = reply["peers"].as_array().map_or(&[][..], Vec::as_slice);
    let rows: Vec<Value> = peers
        .iter()
        .map(|peer| {
            let mut row = peer.clone();
            for name in PEER_COUNTERS {
                row[name] = peer["counters"][name].clone();
            }
            row
        })
        .collect();
    let none = || String::from("there is no queue pair\n");
    let mut out = list(&rows.into(), &columns).unwrap_or_else(none);
    if let Some(more @ 1..) = reply["left_out"].as_u64() {
        let _ = writeln!(out, "\n{more} queue pairs of other peers are not shown");
    }
    out
}

/// Columns of uplinks: the impairment, and the effects on frames.
const UPLINK_FIELDS: [(&str, [&str; 8]); 2] = [
    (
        "impairment",
        [
            "loss_ppm",
            "duplicate_ppm",
            "corrupt_ppm",
            "reorder_ppm",
            "delay_ns",
            "jitter_ns",
            "rate_bps",
            "seed",
        ],
    ),
    (
        "toll",
        [
            "frames",
            "lost",
            "duplicated",
            "corrupted",
            "reordered",
            "overflowed",
            "waiting",
            "",
        ],
    ),
];

/// Formats the uplinks, each with its impairment and the effects on frames since then.
pub fn impairments(reply: &Value) -> String {
    let mut out = String::new();
    for uplink in reply["uplinks"].as_array().into_iter().flatten() {
        if !out.is_empty() {
            out.push('\n');
        }
        let number = &uplink["uplink"];
        if uplink["impairment"].is_null() {
            let _ = writeln!(out, "uplink {number}: no impairment");
            continue;
        }
        let _ = writeln!(out, "uplink {number}:");
        for (group, names) in UPLINK_FIELDS {
            let fields = &uplink[group];
            let present = names.iter().filter(|name| !fields[**name].is_null());
            let present: Vec<&str> = present.copied().collect();
            let one = Value::from(vec![fields.clone()]);
            out.push_str(&list(&one, &present).unwrap_or_default());
        }
    }
    if out.is_empty() {
        out.push_str("the NIC has no uplink\n");
    }
    out
}

/// Returns an object without some of its fields.
fn without_fields(object: &Value, names: &[&str]) -> Value {
    let mut rest = object.as_object().cloned().unwrap_or_default();
    rest.retain(|name, _| !names.contains(&name.as_str()));
    rest.into()
}

/// Formats a table of some fields of each object of a list. None if the list is empty.
pub fn list(objects: &Value, columns: &[&str]) -> Option<String> {
    let mut rows: Vec<Vec<String>> = vec![columns.iter().copied().map(String::from).collect()];
    let objects = objects.as_array().map_or(&[][..], Vec::as_slice);
    for object in objects {
        let row = columns.iter().map(|name| text(name, &object[name]));
        rows.push(row.collect());
    }
    let mut out = String::new();
    lines(&mut out, &rows);
    (!objects.is_empty()).then_some(out)
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
    fn the_port_has_its_state_then_tables_then_counters() {
        let value = json!({ "port": {
            "link_up": true, "mtu": 1024,
            "gids": [{ "index": 1, "gid": "::ffff:10.0.0.1", "mac": "02:00:00:00:00:01", "vlan": null }],
            "refused": [{ "gid": "fd00::9", "mac": "02:00:00:00:00:02", "vlan": 5, "times": 2, "rule": "GidInUse", "why": "It is." }],
            "groups": [{ "gid": "ff02::1", "members": 3, "first": [5, 6] }],
            "counters": { "tx_packets": 3 },
        }});
        assert_eq!(
            port(&value),
            "link_up  true\nmtu      1024\n\n\
             index  gid              mac                vlan\n\
             1      ::ffff:10.0.0.1  02:00:00:00:00:01  -\n\n\
             GIDs that were refused:\n\
             gid      mac                vlan  times  rule      why\n\
             fd00::9  02:00:00:00:00:02  5     2      GidInUse  It is.\n\n\
             gid      members  qpns\nff02::1  3        5 6 ...\n\n\
             tx_packets  3\n"
        );
        let bare = json!({ "port": { "mtu": 256, "gids": [], "groups": [], "counters": {} } });
        assert_eq!(port(&bare), "mtu  256\n\n");
        let out_of_reach = json!({ "port": { "mtu": 256, "gids": [], "groups": [], "counters": {},
            "unreachable_ram": [{ "address": "0x100000000", "bytes": 4096, "why": "is not shared with the NIC" }] } });
        assert_eq!(
            port(&out_of_reach),
            "mtu  256\n\nmemory of the guest that the NIC cannot reach:\n\
             address      bytes  why\n0x100000000  4096   is not shared with the NIC\n\n"
        );
    }

    #[test]
    fn a_queue_pair_has_its_fields_then_its_counters() {
        let value =
            json!({ "number": 17, "round_trip_ns": null, "counters": { "kept": 1, "probes": 20 } });
        assert_eq!(
            queue_pair(&value, false),
            "number         17\nround_trip_ns  -\n\nkept    1\nprobes  20\n"
        );
        let value = json!({ "number": 0, "counters": { "kept": 0, "probes": 20 } });
        assert_eq!(queue_pair(&value, true), "number  0\n\nprobes  20\n");
        let idle = json!({ "kept": 0 });
        assert_eq!(counters(&idle, true), "all counters are 0\n");
    }

    #[test]
    fn each_peer_has_a_line_and_omitted_queue_pairs_are_counted() {
        let value = json!({
            "peers": [{ "gid": null, "qps": 2, "in_error": 0, "in_flight": 0, "round_trip_ns": null,
                        "counters": { "tx_packets": 7 } }],
            "left_out": 3,
        });
        let text = peers(&value);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("gid  qps  in_error  in_flight  round_trip_ns  tx_packets"));
        assert!(lines[1].starts_with("-    2    0         0          -              7 "));
        assert_eq!(lines[3], "3 queue pairs of other peers are not shown");
        let none = json!({ "peers": [], "left_out": 0 });
        assert_eq!(peers(&none), "there is no queue pair\n");
    }

    #[test]
    fn uplinks_have_their_impairments_and_the_effects_on_frames() {
        let value = json!({ "uplinks": [
            { "uplink": 0, "impairment": null, "toll": null },
            { "uplink": 1, "impairment": { "loss_ppm": 10_000, "seed": 1 }, "toll": { "frames": 200, "lost": 3 } },
        ]});
        assert_eq!(
            impairments(&value),
            "uplink 0: no impairment\n\nuplink 1:\nloss_ppm  seed\n10000     1\nframes  lost\n200     3\n"
        );
        assert_eq!(
            impairments(&json!({ "uplinks": [] })),
            "the NIC has no uplink\n"
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
        assert_eq!(contexts(&json!([])), "there is no such object\n");
    }
}
