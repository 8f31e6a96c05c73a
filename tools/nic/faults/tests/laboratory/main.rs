// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests of rules as users write them, and of their effects on a device.

use verbena_abi::cmd::{CmdStatus, Opcode};
use verbena_abi::cqe::WcStatus;
use verbena_abi::eqe::EventType;
use verbena_abi::syndrome::Syndrome;
use verbena_abi::wqe::WqeOpcode;
use verbena_faults::{
    ActionTarget, Direction, Effect, PacketAtHook, QpIdentity, Rule, RuleSet, RuleTable, Sequence,
};
use verbena_protocol::{read_json, read_toml};

mod alter;
mod hostile;
mod inject;
mod loss;
mod refused;
mod schema;

fn rules(text: &str) -> RuleSet {
    read_toml(&format!("version = 1\nseed = 7\n{text}")).unwrap()
}

/// Returns the rule `x` with a match and an action.
fn rule(matches: &str, action: &str) -> RuleSet {
    rules(&format!(
        "[[rule]]\nname = \"x\"\nmatch = {{ {matches} }}\naction = {action}\n"
    ))
}

fn table(matches: &str, action: &str) -> RuleTable {
    let mut table = RuleTable::default();
    table.add(&rule(matches, action), None, 0, 10).unwrap();
    table
}

/// Returns a packet of WRITEs of four packets each, from a queue pair whose first PSN is 100.
fn write(psn: u32) -> PacketAtHook {
    let place = (psn - 100) % 4;
    PacketAtHook {
        direction: Direction::Out,
        qp: QpIdentity {
            qpn: 17,
            created: 12,
            peer: 18,
        },
        opcode: [0x06, 0x07, 0x07, 0x08][place as usize],
        psn,
        first_psn: 100,
        sequence: Some(Sequence::Requests),
        first: place == 0,
        last: place == 3,
        psns: 1,
        mtu: 1024,
        bytes: if place == 3 { 100 } else { 1024 },
    }
}

/// Passes the first 16 packets of these WRITEs, and returns those on which a rule fires, counted
/// from 0.
fn fired(table: &mut RuleTable) -> Vec<u32> {
    let fires = |psn: &u32| table.on_packet(0, &write(100 + psn)).is_some();
    (0..16).filter(fires).collect()
}

#[test]
fn responses_to_the_peer_do_not_count_as_messages() {
    let mut table = table("packet_of_message = 3", "\"drop\"");
    // Acknowledgements and READ responses, which have PSNs of the peer.
    for (opcode, sequence) in [(0x11, None), (0x10, Some(Sequence::Responses))] {
        for psn in 100..103 {
            let answer = PacketAtHook {
                opcode,
                sequence,
                first: true,
                last: true,
                ..write(psn)
            };
            assert!(table.on_packet(0, &answer).is_none());
        }
    }
    assert_eq!(fired(&mut table), [2, 6, 10, 14]);
}

#[test]
fn a_rule_fires_on_each_match() {
    for (matches, expected) in [
        (
            "",
            &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15][..],
        ),
        ("nth = 3", &[2]),
        ("every = 5", &[4, 9, 14]),
        ("limit = 2", &[0, 1]),
        ("every = 5, limit = 2", &[4, 9]),
        ("psn = 104", &[4]),
        ("packet = 6", &[5]),
        ("packet_of_message = 3", &[2, 6, 10, 14]),
        ("message = 2", &[4, 5, 6, 7]),
        ("byte = 0", &[0, 4, 8, 12]),
        ("byte = 1023, message = 1", &[0]),
        ("byte = 1024, message = 2", &[5]),
        ("byte = 3171", &[3, 7, 11, 15]),
        ("byte = 3172", &[]),
        ("message = 2, packet_of_message = 4", &[7]),
        ("opcode = \"RDMA WRITE First\"", &[0, 4, 8, 12]),
        (
            "opcode = [\"RDMA WRITE First\", \"RDMA WRITE Last\"]",
            &[0, 3, 4, 7, 8, 11, 12, 15],
        ),
        ("opcode = \"rdma write\", nth = 2", &[1]),
        ("opcode = \"RDMA WRITE\", packet = 2", &[1]),
        ("opcode = \"SEND\"", &[]),
        ("opcode = \"CNP\"", &[]),
        ("direction = \"in\"", &[]),
        ("qp = 17, nth = 1", &[0]),
        ("qp = 16", &[]),
        ("peer_qp = 18, nth = 1", &[0]),
        ("peer_qp = 17", &[]),
        // Ten queue pairs existed before the rule.
        ("qp_created = 2, nth = 1", &[0]),
        ("qp_created = 1", &[]),
        ("after_ms = 1", &[]),
    ] {
        assert_eq!(
            fired(&mut table(matches, "\"drop\"")),
            expected,
            "{matches}"
        );
    }
}

#[test]
fn random_firings_depend_only_on_the_seed_and_the_rule() {
    let set = rule("probability = 0.3", "\"drop\"");
    let alone = fired(&mut table("probability = 0.3", "\"drop\""));
    assert!(!alone.is_empty() && alone.len() < 16);
    let mut table = RuleTable::default();
    let mut other = set.clone();
    other.rule[0].name = String::from("y");
    other.rule[0].matches.limit = Some(1);
    table.add(&other, None, 0, 0).unwrap();
    table.add(&set, None, 0, 0).unwrap();
    // The first rule fires once, and the random numbers of the second stay the same.
    let both = fired(&mut table);
    assert!(alone.iter().all(|psn| both.contains(psn)));
    let seeds = (0..20).map(|seed| {
        let mut table = RuleTable::default();
        table
            .add(
                &RuleSet {
                    seed,
                    ..set.clone()
                },
                None,
                0,
                0,
            )
            .unwrap();
        fired(&mut table)
    });
    let mut seeds: Vec<_> = seeds.collect();
    seeds.dedup();
    assert!(seeds.len() > 10);
}

#[test]
fn a_retransmission_keeps_its_message_number() {
    let mut table = table("packet_of_message = 3, message = 1", "\"drop\"");
    assert_eq!(fired(&mut table), [2]);
    assert_eq!(fired(&mut table), [2]);
    let status = &table.statuses()[0];
    assert_eq!((status.matched, status.fired), (2, 2));
}

#[test]
fn only_the_first_rule_fires_and_all_count_the_match() {
    let mut table = RuleTable::default();
    let mut set = rule("nth = 3", "\"drop\"");
    let second = Rule {
        name: String::from("second"),
        ..rule("every = 3", "{ delay_us = 5 }").rule.remove(0)
    };
    set.rule.push(second);
    table.add(&set, None, 0, 0).unwrap();
    let effects: Vec<_> = (0..6)
        .map(|n| table.on_packet(0, &write(100 + n)))
        .collect();
    assert_eq!(effects[2], Some(Effect::Drop));
    assert_eq!(effects[5], Some(Effect::Delay(5000)));
    let counts: Vec<_> = table
        .statuses()
        .iter()
        .map(|status| (status.matched, status.fired))
        .collect();
    assert_eq!(counts, [(6, 1), (6, 1)]);
}

#[test]
fn a_rule_with_while_waits_for_another_rule() {
    let mut table = RuleTable::default();
    let set = rules(
        "[[rule]]\nname = \"first\"\nmatch = { nth = 2 }\naction = \"mark_ecn\"\n\
         [[rule]]\nname = \"then\"\nmatch = { while = \"first\", limit = 3 }\naction = \"drop\"\n",
    );
    table.add(&set, None, 0, 0).unwrap();
    assert_eq!(fired(&mut table), [1, 2, 3, 4]);
    assert!(table.remove("first") && !table.remove("first"));
    let error = table
        .add(&rule("while = \"first\"", "\"drop\""), None, 0, 0)
        .unwrap_err();
    assert!(
        error.contains("no other rule is called \"first\""),
        "{error}"
    );
}

#[test]
fn rules_are_added_all_or_none_and_go_with_their_owner() {
    let mut table = RuleTable::default();
    let set = rule("", "\"drop\"");
    table.add(&set, Some(5), 0, 0).unwrap();
    let mut more = set.clone();
    more.rule[0].name = String::from("y");
    more.rule.push(set.rule[0].clone());
    assert!(table
        .add(&more, None, 0, 0)
        .unwrap_err()
        .contains("already"));
    assert_eq!(table.statuses().len(), 1);
    more.rule.pop();
    table.add(&more, None, 0, 0).unwrap();
    table.remove_of_owner(5);
    assert_eq!(table.statuses()[0].rule.name, "y");
    assert!(!table.statuses()[0].while_connected);
    table.clear();
    assert!(table.is_empty() && fired(&mut table).is_empty());
}

#[test]
fn sends_commands_and_times_have_hooks_of_their_own() {
    let qp = write(100).qp;
    let mut sends = table(
        "on = \"send\", opcode = \"RDMA_READ\", nth = 2",
        "{ complete = \"GENERAL_ERR\" }",
    );
    let read = WqeOpcode::RdmaRead.to_raw();
    assert_eq!(sends.on_send(0, &qp, WqeOpcode::Send.to_raw()), None);
    assert_eq!(sends.on_send(0, &qp, read), None);
    assert_eq!(
        sends.on_send(0, &qp, read),
        Some(Effect::Complete(WcStatus::GeneralErr, Syndrome::Injected))
    );
    assert!(fired(&mut sends).is_empty());

    let mut commands = table(
        "on = \"command\", command = \"CREATE_QP\"",
        "{ errno = \"ENOMEM\" }",
    );
    assert_eq!(commands.on_command(0, Opcode::CreateCq.to_raw()), None);
    let fails = Some(Effect::Fail(CmdStatus::NoResources));
    assert_eq!(commands.on_command(0, Opcode::CreateQp.to_raw()), fails);

    let mut moments = table(
        "on = \"time\", after_ms = 3, qp_created = 2",
        "\"qp_error\"",
    );
    assert_eq!(
        (moments.next_due(), moments.take_due(2_999_999)),
        (Some(3_000_000), None)
    );
    assert_eq!(
        moments.take_due(3_000_000),
        Some(Effect::QpError(ActionTarget {
            qp: None,
            created: Some(12)
        }))
    );
    assert_eq!(
        (moments.next_due(), moments.take_due(9_000_000)),
        (None, None)
    );
}

#[test]
fn events_and_interrupts_have_hooks_of_their_own() {
    let mut events = table(
        "on = \"event\", event = \"CQ_ERR\", nth = 2",
        "{ repeat = 3 }",
    );
    assert_eq!(events.on_event(0, EventType::QpFatal.to_raw()), None);
    let kind = EventType::CqErr.to_raw();
    let effects: Vec<_> = (0..3).map(|_| events.on_event(0, kind)).collect();
    assert_eq!(effects, [None, Some(Effect::Repeat(3)), None]);
    let mut vectors = table("on = \"interrupt\", vector = 2", "\"withhold\"");
    assert_eq!(vectors.on_interrupt(0, 1), None);
    assert_eq!(vectors.on_interrupt(0, 2), Some(Effect::Withhold));
}

#[test]
fn a_lasting_effect_ends_with_its_rule() {
    let mut table = table("nth = 1", "\"port_down\"");
    let Some(Effect::PortDown(None, id)) = table.on_packet(0, &write(100)) else {
        panic!("the rule does not stop the port");
    };
    assert!(table.has(id) && table.remove("x") && !table.has(id));
    table.add(&rule("", "\"port_down\""), None, 0, 0).unwrap();
    assert!(!table.has(id), "another rule of the same name");
}

#[test]
fn a_status_may_have_another_cause() {
    let mut table = table(
        "on = \"send\"",
        "{ complete = { status = \"RETRY_EXC_ERR\", vendor_err = 0xc01 } }",
    );
    let qp = write(100).qp;
    let effect = Effect::Complete(WcStatus::RetryExcErr, Syndrome::RetryExceeded);
    assert_eq!(table.on_send(0, &qp, 0), Some(effect));
}

#[test]
fn packet_rules_apply_only_to_named_queue_pairs() {
    let qp = write(100).qp;
    let table = table("qp = 17", "\"drop\"");
    assert!(
        table.has_packet_rules_for(Direction::Out, &qp)
            && !table.has_packet_rules_for(Direction::In, &qp)
    );
    assert!(!table.has_packet_rules_for(Direction::Out, &QpIdentity { qpn: 16, ..qp }));
}

#[test]
fn both_formats_give_the_same_rules() {
    let set = rule(
        "opcode = \"RDMA WRITE\", nth = 3",
        "{ corrupt = { payload = 0, icrc = \"wrong\" } }",
    );
    let json = serde_json::to_string(&set).unwrap();
    assert_eq!(read_json(&json).unwrap(), set);
}
