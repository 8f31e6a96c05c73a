// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Rules on packets between QPs of the device: `verbena-nic --drop` and others.

use super::fault_hooks::on_both;
use super::Pair;
use crate::mock::Driver;
use crate::Config;
use verbena_abi::cqe::WcStatus::{RetryExcErr, Success};
use verbena_faults::{Action, Match, Rule, RuleHook, LOSS_OPTION};
use verbena_recorder::{EntryKind, FlightEntry, LOST};

/// A pair whose device was started with `--drop`.
fn lossy(percent: u8) -> Pair {
    Pair::on(Driver::with(Config {
        wire_local: true,
        drop_percent: percent,
        record: 1 << 14,
        ..Config::default()
    }))
}

#[test]
fn the_option_is_listed_counted_and_removed_as_a_rule() {
    let mut p = lossy(20);
    assert_eq!(p.write().0, Success);
    let told = p.d.device.rules();
    assert_eq!(told[0].rule, Rule::of_loss(20));
    assert!(told[0].matched > told[0].fired && told[0].fired > 0);
    assert!(p.d.device.remove_rule(LOSS_OPTION));
    assert!(p.d.device.shared.faults.is_none());
    // A reset does not bring the rule back.
    p.d.device.reset();
    assert!(p.d.device.rules().is_empty());
}

#[test]
fn the_option_stays_over_resets_and_is_cleared_with_the_others() {
    let mut p = lossy(100);
    assert_eq!(p.write().0, RetryExcErr);
    p.d.device.reset();
    assert_eq!(p.d.device.rules().len(), 1);
    p.d.device.clear_rules();
    assert!(p.d.device.rules().is_empty());
}

#[test]
fn a_rule_loses_a_packet_on_its_way_after_the_rules_of_both_queue_pairs() {
    let third = |on| Match {
        on,
        opcode: vec![String::from("RDMA WRITE")],
        packet_of_message: Some(3),
        limit: Some(1),
        ..Match::default()
    };
    on_both(|mut p| {
        p.d.device.begin_flight_recording(1 << 14, p.d.now);
        p.rule(third(RuleHook::Local), Action::Drop);
        p.rule_named("y", third(RuleHook::Packet), Action::Drop);
        assert_eq!(p.write().0, Success);
        let fired: Vec<u64> = p.d.device.rules().iter().map(|told| told.fired).collect();
        // The retransmission of the packet that rule y lost is lost, too.
        assert_eq!(fired, [1, 1]);
        let recorded = p.d.device.flight_recording(0, usize::MAX).unwrap();
        let whats = recorded
            .entries
            .iter()
            .map(|w| FlightEntry::unpack(w).unwrap().kind);
        let mut firings = Vec::new();
        for what in whats {
            match what {
                EntryKind::Fired { rule, on, .. } => firings.push((rule, on)),
                EntryKind::Passed { flags, .. } => assert_eq!(flags & LOST, 0),
                _ => {}
            }
        }
        // The recording has the firing as one on a packet.
        assert_eq!(firings, [(1, RuleHook::Packet), (0, RuleHook::Packet)]);
    });
}
