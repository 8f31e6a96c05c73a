// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Rules on packets between QPs of the device, of which `verbena-nic --drop` is one.

use super::{rules, table, write};
use verbena_faults::{Rule, RuleSet, RuleTable, LOSS_OPTION, VERSION};

/// Losses of `verbena-nic --drop`, as the NIC drew them before the option was a rule.
fn drawn(seed: u64, percent: u64) -> impl Iterator<Item = bool> {
    let mut dice = seed;
    std::iter::repeat_with(move || {
        dice = dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = dice;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % 100 < percent
    })
}

fn option(seed: u64, percent: u8) -> RuleSet {
    RuleSet {
        version: VERSION,
        seed,
        rule: vec![Rule::of_loss(percent)],
    }
}

#[test]
fn the_option_loses_the_same_packets_as_before_it_was_a_rule() {
    for percent in 1..=100 {
        let mut table = RuleTable::default();
        table.add(&option(7, percent), None, 0, 0).unwrap();
        let mut lose = |n: usize| -> Vec<bool> {
            let packets = (0..n as u32).map(|n| table.on_local_packet(0, &write(100 + n % 16)));
            packets.collect()
        };
        let expected: Vec<bool> = drawn(7, percent.into()).take(500).collect();
        assert_eq!(lose(500), expected, "{percent}");
        // A reset of the device begins the stream and the counts again.
        table.reset();
        let again: Vec<bool> = (0..500)
            .map(|_| table.on_local_packet(0, &write(100)))
            .collect();
        assert_eq!(again, expected, "{percent}");
        let status = &table.statuses()[0];
        let losses = expected.iter().filter(|lost| **lost).count() as u64;
        assert_eq!((status.matched, status.fired), (500, losses));
    }
}

#[test]
fn the_option_written_as_a_file_is_the_same_rule() {
    let file = rules(&format!(
        "[[rule]]\nname = \"{LOSS_OPTION}\"\noptional = true\n\
         match = {{ on = \"local\", probability = 0.05 }}\naction = \"drop\"\n"
    ));
    assert_eq!(file, option(7, 5));
    let mut table = RuleTable::default();
    assert!(!table.has_local());
    table.add(&file, None, 0, 0).unwrap();
    assert!(table.has_local());
    let lost: Vec<bool> = (0..500)
        .map(|_| table.on_local_packet(0, &write(100)))
        .collect();
    assert_eq!(lost, drawn(7, 5).take(500).collect::<Vec<_>>());
}

#[test]
fn a_local_rule_matches_as_a_rule_on_packets_does() {
    for (matches, expected) in [
        ("nth = 3", &[2][..]),
        ("packet_of_message = 2, limit = 2", &[1, 5]),
        ("opcode = \"RDMA WRITE Last\"", &[3, 7, 11, 15]),
        ("qp = 16", &[]),
        ("psn = 104", &[4]),
    ] {
        let mut table = table(&format!("on = \"local\", {matches}"), "\"drop\"");
        let lost = (0..16u32).filter(|n| table.on_local_packet(0, &write(100 + n)));
        assert_eq!(lost.collect::<Vec<_>>(), expected, "{matches}");
        assert!(table.on_packet(0, &write(100)).is_none());
    }
}
