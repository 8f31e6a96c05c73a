// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Forwarding tables that lead packets round over several processes: the limits that each packet
//! takes with it end the loop.

use super::*;
use verbena_fabric::fabric::{COPIES, HOPS};
use verbena_fabric::mad::FIRST_MULTICAST_LID;

/// Two processes that send packets for LID 2 round: there by the first uplink, and back by the
/// second.
fn round() -> Joined {
    let mut joined = Joined::new(2, 2);
    let [one, other, _] = UPLINKS;
    joined.activate([[255, 1, one], [255, one, other]]);
    joined.passed = 0;
    joined
}

#[test]
fn a_loop_of_forwarding_tables_over_processes_ends() {
    let mut joined = round();
    joined.send(&data(2));
    assert!((2..HOPS).contains(&joined.passed), "{}", joined.passed);
}

#[test]
fn a_management_datagram_in_a_loop_over_processes_ends() {
    let mut joined = round();
    let mad = Mad::smp(class::PERFORMANCE, method::GET, 0x12, 1);
    let datagram = Datagram {
        source_qp: 1,
        destination_qp: 1,
        q_key: 0x8001_0000,
        ..Datagram::smp(1, 2, mad)
    };
    joined.send(&emit_datagram(&datagram));
    assert!((2..HOPS).contains(&joined.passed), "{}", joined.passed);
}

#[test]
fn multicast_packets_in_loops_over_processes_end() {
    let mut joined = Joined::new(2, 3);
    let [uplink, ..] = UPLINKS;
    joined.activate([[255, 1, uplink], [255, uplink, 1]]);
    // The ports of all three uplinks, among the ports 32 to 47.
    let mut block = [0; SMP_DATA_LEN];
    block[..2].copy_from_slice(&0b1_1100_u16.to_be_bytes());
    for ports in [&[1][..], &[1, uplink]] {
        let attribute = attribute_id::MULTICAST_FORWARDING_TABLE;
        let answer = joined.ask(method::SET, attribute, 2 << 28, ports, Some(block));
        assert_eq!(answer.unwrap().data()[..2], block[..2]);
    }
    joined.passed = 0;
    joined.send(&data(FIRST_MULTICAST_LID));
    // Without a limit, the number of packets doubles at each switch.
    assert!(
        (64..=COPIES as u32).contains(&joined.passed),
        "{}",
        joined.passed
    );
}
