// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What makes no sense is refused, with its line, its field and the reason.

use verbena_control::{read_json, read_toml};

/// What is wrong with a rule in line 4 of a file.
fn error(matches: &str, action: &str) -> String {
    let text = format!(
        "version = 1\n\n\n[[rule]]\nname = \"x\"\nmatch = {{ {matches} }}\naction = {action}\n"
    );
    let Err(error) = read_toml(&text) else {
        panic!("taken: {matches} {action}");
    };
    assert!(error.starts_with("line "), "{error}");
    error
}

#[test]
fn what_cannot_be_combined_is_refused_with_the_reason() {
    let corrupt = |what: &str| format!("{{ corrupt = {{ {what}, icrc = \"right\" }} }}");
    for (matches, action, told) in [
        ("nth = 0", "\"drop\"", "match.nth: counts from 1"),
        (
            "nth = 1, every = 2",
            "\"drop\"",
            "match.every: says how often, as match.nth does",
        ),
        ("nth = 1, limit = 2", "\"drop\"", "match.limit"),
        (
            "on = \"event\", event = \"CQ_ER\"",
            "\"withhold\"",
            "IBV_EVENT_CQ_ERR",
        ),
        (
            "event = \"CQ_ERR\"",
            "\"drop\"",
            "match.event: only with on = event",
        ),
        (
            "on = \"event\", vector = 1",
            "\"withhold\"",
            "match.vector: only with on = interrupt",
        ),
        (
            "on = \"event\", qp = 1",
            "\"withhold\"",
            "match.qp: only with",
        ),
        (
            "on = \"send\", byte = 1",
            "{ stall_ms = 1 }",
            "match.byte: only with on = packet",
        ),
        (
            "on = \"interrupt\"",
            "{ repeat = 1 }",
            "action.repeat: happens only to on = event",
        ),
        ("on = \"event\"", "{ repeat = 17 }", "1 to 16"),
        (
            "on = \"event\"",
            "\"port_down\"",
            "packet or command or time",
        ),
        (
            "on = \"command\"",
            "{ cq_overflow = \"send\" }",
            "packet or time",
        ),
        (
            "on = \"time\", after_ms = 1",
            "\"kill_srq\"",
            "give match.qp",
        ),
        (
            "on = \"time\", after_ms = 1",
            "{ stall_ms = 1 }",
            "give match.qp",
        ),
        ("", "{ stall_ms = 0 }", "1 to 60000"),
        ("", "{ port_down_ms = 60001 }", "1 to 60000"),
        ("", "{ stall_device_ms = 60001 }", "1 to 60000"),
        (
            "on = \"send\"",
            "{ complete = { status = \"GENERAL_ERR\", vendor_err = 2 } }",
            "action.complete.vendor_err",
        ),
        (
            "on = \"send\"",
            "{ complete = { status = \"GENERAL_ERR\" } }",
            "a status, or status and vendor_err",
        ),
        ("probability = 0.0", "\"drop\"", "above 0"),
        (
            "probability = nan",
            "\"drop\"",
            "match.probability: has no value",
        ),
        ("probability = 1.1", "\"drop\"", "at most 1"),
        ("qp = 1, qp_created = 1", "\"drop\"", "match.qp_created"),
        ("psn = 1, packet = 1", "\"drop\"", "match.packet"),
        ("psn = 16777216", "\"drop\"", "24 bits"),
        (
            "opcode = \"RDMA WRIT\"",
            "\"drop\"",
            "did you mean RDMA WRITE?",
        ),
        (
            "command = \"CREATE_QP\"",
            "\"drop\"",
            "match.command: only with on = command",
        ),
        (
            "on = \"command\", psn = 1",
            "{ errno = \"ENOMEM\" }",
            "match.psn: only with on = packet",
        ),
        (
            "on = \"command\", command = \"CREATE\"",
            "{ errno = \"ENOMEM\" }",
            "CREATE_QP",
        ),
        ("on = \"command\"", "{ errno = \"EPERM\" }", "ENOMEM"),
        (
            "on = \"command\"",
            "\"drop\"",
            "action.drop: happens only to on = packet",
        ),
        (
            "on = \"send\", opcode = \"WRITE\"",
            "{ complete = \"GENERAL_ERR\" }",
            "RDMA_WRITE",
        ),
        (
            "on = \"send\"",
            "{ complete = \"GENERAL\" }",
            "IBV_WC_GENERAL_ERR",
        ),
        ("on = \"send\"", "{ complete = \"SUCCESS\" }", "no fault"),
        (
            "on = \"send\"",
            "{ complete = \"WR_FLUSH_ERR\" }",
            "flushing",
        ),
        (
            "on = \"send\", opcode = \"LOCAL_INV\"",
            "{ complete = \"GENERAL_ERR\" }",
            "match.opcode",
        ),
        ("", "{ complete = \"GENERAL_ERR\" }", "on = send"),
        ("on = \"time\"", "\"fatal\"", "match.after_ms"),
        (
            "on = \"time\", after_ms = 1",
            "\"qp_error\"",
            "give match.qp",
        ),
        (
            "on = \"time\", after_ms = 1, nth = 2",
            "\"fatal\"",
            "match.nth",
        ),
        ("", "{ delay_us = 0 }", "action.delay_us"),
        ("", "{ duplicate = 17 }", "1 to 16"),
        ("", "{ rnr = 32 }", "match.opcode has to say|5 bits"),
        (
            "",
            "{ nak = \"remote access error\" }",
            "match.opcode has to say",
        ),
        (
            "opcode = \"SEND\"",
            "{ nak = \"invalid request\" }",
            "direction = \"in\"",
        ),
        (
            "opcode = \"SEND\", direction = \"in\"",
            "{ nak = \"no\" }",
            "PSN sequence error",
        ),
        (
            "opcode = [\"SEND\", \"Acknowledge\"], direction = \"in\"",
            "{ rnr = 3 }",
            "requests only",
        ),
        (
            "opcode = \"SEND\"",
            &corrupt("field = \"rkey\""),
            "that have the field rkey",
        ),
        ("", &corrupt("field = \"rkey\""), "has to name packets"),
        ("", &corrupt("field = \"psn\", value = 16777216"), "24 bits"),
        (
            "",
            &corrupt("field = \"psn\", payload = 1"),
            "field, or payload",
        ),
        (
            "",
            &corrupt("payload = 1, value = 256"),
            "action.corrupt.value",
        ),
        (
            "opcode = \"Acknowledge\"",
            &corrupt("payload = 1"),
            "has none",
        ),
    ] {
        let error = error(matches, action);
        assert!(
            told.split('|').any(|told| error.contains(told)),
            "{matches} {action}: {error}"
        );
        // Its field may not be there at all: then it is the line in which the rule begins.
        let has = |lines: &[u32]| {
            let begins = |line: &u32| error.starts_with(&format!("line {line}: rule \"x\": "));
            lines.iter().any(begins)
        };
        assert!(
            has(if error.contains("\": action") {
                &[7]
            } else {
                &[4, 6]
            }),
            "{error}"
        );
    }
}

#[test]
fn what_is_not_there_yet_is_refused_by_name() {
    for (matches, action) in [
        ("pid = 1", "\"drop\""),
        ("guest = 1", "\"drop\""),
        ("", "{ mtu = 1024 }"),
        ("", "\"gid_change\""),
    ] {
        let error = error(matches, action);
        assert!(error.contains("not available: "), "{error}");
    }
}

#[test]
fn what_cannot_be_read_is_told_with_its_line() {
    for (text, line, told) in [
        ("version = 2", 1, "version"),
        ("seed = 1", 1, "version"),
        ("version = 1\nsede = 1", 2, "sede"),
        (
            "version = 1\n[[rule]]\nname = 3\naction = \"drop\"",
            3,
            "string",
        ),
        ("version = 1\n[[rule]]\nname = \"x\"", 2, "action"),
        (
            "version = 1\n[[rule]]\nname = \"x\"\naction = \"dorp\"",
            4,
            "dorp",
        ),
        (
            "version = 1\n[[rule]]\nname = \"x\"\naction = \"drop\"\n[rule.match]\nnht = 1",
            6,
            "nht",
        ),
        ("version = 1\n[[rule]\n", 2, ""),
        (
            "version = 1\n[[rule]]\nname = \"\"\naction = \"drop\"",
            3,
            "name",
        ),
    ] {
        let error = read_toml(text).map(drop).unwrap_err();
        assert!(error.contains(told), "{text}: {error}");
        assert!(
            error.starts_with(&format!("line {line}: ")),
            "{text}: {error}"
        );
    }
    for (text, line, told) in [
        ("", 1, "EOF"),
        ("{\"version\": 1,\n\"sede\": 1}", 2, "sede"),
        ("{\"version\": 1,\n\"rule\": [\n{\"name\": \"x\",\n\"action\": \"dorp\"}]}", 4, "dorp"),
        (
            "{\"version\": 1,\n\"rule\": [\n{\"name\": \"x\", \"action\": \"drop\", \"match\": {\"nth\": 0}}]}",
            3,
            "match.nth",
        ),
    ] {
        let error = read_json(text).map(drop).unwrap_err();
        assert!(error.contains(told), "{text}: {error}");
        assert!(error.starts_with(&format!("line {line}: ")), "{text}: {error}");
    }
}
