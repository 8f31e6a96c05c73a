// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Rules with errors are refused with the line, the field and the reason.

use verbena_protocol::{read_json, read_toml};

/// Returns the error of a rule in line 4 of a file.
fn error(matches: &str, action: &str) -> String {
    let text = format!(
        "version = 1\n\n\n[[rule]]\nname = \"x\"\nmatch = {{ {matches} }}\naction = {action}\n"
    );
    let Err(error) = read_toml(&text) else {
        panic!("accepted: {matches} {action}");
    };
    assert!(error.starts_with("line "), "{error}");
    error
}

#[test]
fn invalid_combinations_are_refused_with_the_reason() {
    let corrupt = |what: &str| format!("{{ corrupt = {{ {what}, icrc = \"right\" }} }}");
    for (matches, action, expected) in [
        ("nth = 0", "\"drop\"", "match.nth: 0 is not valid"),
        (
            "nth = 1, every = 2",
            "\"drop\"",
            "match.every: match.nth is given too",
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
            "match.event: is not possible with on = packet: use on = event",
        ),
        (
            "on = \"event\", vector = 1",
            "\"withhold\"",
            "match.vector: is not possible with on = event: use on = interrupt",
        ),
        (
            "on = \"event\", qp = 1",
            "\"withhold\"",
            "match.qp: is not possible with on = event",
        ),
        (
            "on = \"send\", byte = 1",
            "{ stall_ms = 1 }",
            "match.byte: is not possible with on = send: use on = packet",
        ),
        (
            "on = \"interrupt\"",
            "{ repeat = 1 }",
            "action.repeat: is not possible with on = interrupt: use on = event",
        ),
        (
            "on = \"local\"",
            "\"mark_ecn\"",
            "action.mark_ecn: is not possible with on = local: use on = packet",
        ),
        (
            "on = \"local\", direction = \"in\"",
            "\"drop\"",
            "match.direction: is not possible with on = local: use on = packet",
        ),
        (
            "uplink = 1",
            "\"drop\"",
            "match.uplink: is not possible with on = packet: use on = uplink",
        ),
        (
            "on = \"uplink\", qp = 1",
            "\"drop\"",
            "match.qp: is not possible with on = uplink: use on = packet or local or send or time",
        ),
        (
            "on = \"uplink\"",
            "{ reorder = 1 }",
            "action.reorder: is not possible with on = uplink: use on = packet",
        ),
        (
            "",
            "{ impair = { loss_ppm = 1 } }",
            "action.impair: is not possible with on = packet: use on = uplink",
        ),
        (
            "on = \"uplink\"",
            "{ impair = { jitter_ns = 1 } }",
            "action.impair: jitter: longer than the delay",
        ),
        (
            "",
            "{ misbehave = \"swallow-command=20\" }",
            "action.misbehave: there is no \"swallow-command\": did you mean swallow-commands?",
        ),
        (
            "",
            "{ misbehave = \"stall=x\" }",
            "action.misbehave: \"x\" is neither a 32-bit number",
        ),
        (
            "on = \"event\"",
            "{ misbehave = \"stall\" }",
            "action.misbehave: is not possible with on = event: use on = packet or command or time",
        ),
        (
            "cq = 1",
            "\"drop\"",
            "match.cq: is not possible with on = packet: use on = time",
        ),
        (
            "on = \"time\", after_ms = 1",
            "\"kill_cq\"",
            "action.kill_cq: applies to a CQ, and the match names none: give match.cq",
        ),
        (
            "on = \"time\", after_ms = 1, cq = 1",
            "\"fatal\"",
            "match.cq: only with the action kill_cq",
        ),
        (
            "on = \"time\", after_ms = 1, srq = 1",
            "\"qp_error\"",
            "match.srq: only with the action kill_srq",
        ),
        (
            "on = \"time\", after_ms = 1, srq = 1, qp = 2",
            "\"kill_srq\"",
            "match.srq: match.qp names the SRQ already",
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
            "match.command: is not possible with on = packet: use on = command",
        ),
        (
            "on = \"command\", psn = 1",
            "{ errno = \"ENOMEM\" }",
            "match.psn: is not possible with on = command: use on = packet",
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
            "action.drop: is not possible with on = command: use on = packet",
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
        (
            "on = \"send\"",
            "{ complete = \"SUCCESS\" }",
            "not an error",
        ),
        (
            "on = \"send\"",
            "{ complete = \"WR_FLUSH_ERR\" }",
            "follows another error",
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
        ("", "{ rnr = 32 }", "needs match.opcode|0 to 31"),
        (
            "",
            "{ nak = \"remote access error\" }",
            "needs match.opcode",
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
            "only requests",
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
            "give field or payload",
        ),
        (
            "",
            &corrupt("payload = 1, value = 256"),
            "action.corrupt.value",
        ),
        (
            "opcode = \"Acknowledge\"",
            &corrupt("payload = 1"),
            "has no payload",
        ),
    ] {
        let error = error(matches, action);
        assert!(
            expected.split('|').any(|expected| error.contains(expected)),
            "{matches} {action}: {error}"
        );
        // The file may not have the field. Then the error has the line in which the rule begins.
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
fn unavailable_names_are_refused_by_name() {
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
fn unreadable_files_are_refused_with_the_line() {
    for (text, line, expected) in [
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
        assert!(error.contains(expected), "{text}: {error}");
        assert!(
            error.starts_with(&format!("line {line}: ")),
            "{text}: {error}"
        );
    }
    for (text, line, expected) in [
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
        assert!(error.contains(expected), "{text}: {error}");
        assert!(error.starts_with(&format!("line {line}: ")), "{text}: {error}");
    }
}
