// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The process at the other end of an uplink: which one it is, and when it is gone.

use super::*;

/// Of three processes on one Ethernet two are linked, and the third takes the place of one that ends.
#[test]
fn a_link_has_two_ends() {
    let mut joined = Joined::new(3, 1);
    (0..4).for_each(|_| joined.maintain());
    let up = |joined: &Joined| -> Vec<usize> { (0..3).filter(|n| joined.is_up(*n)).collect() };
    let first = up(&joined);
    assert_eq!(first.len(), 2, "{first:?}");
    joined.silent = vec![first[0]];
    (0..12).for_each(|_| joined.maintain());
    let third = (0..3).find(|n| !first.contains(n)).unwrap();
    let up = up(&joined);
    assert!(up.contains(&first[1]) && up.contains(&third), "{up:?}");
}

#[test]
fn a_switch_with_the_same_guid_is_no_peer() {
    let mut joined = Joined::new(2, 1);
    joined.subnets = vec![process(0, 1), process(0, 1)];
    (0..3).for_each(|_| joined.maintain());
    assert_eq!(joined.state(&[1], UPLINKS[0]), port_state::DOWN);
    assert!(joined.subnets[0].take_refused() > 0);
}

/// Processes whose peer is linked to another process find each other.
#[test]
fn of_four_processes_on_one_ethernet_each_has_a_link() {
    let mut joined = Joined::new(4, 1);
    (0..10).for_each(|_| joined.maintain());
    let up: Vec<bool> = (0..4).map(|n| joined.is_up(n)).collect();
    assert_eq!(up, [true; 4]);
}

/// On a busy link hellos may be lost.
#[test]
fn a_peer_that_sends_packets_is_not_silent() {
    let mut joined = Joined::new(2, 1);
    let [uplink, ..] = UPLINKS;
    joined.activate([[255, 1, uplink], [255, uplink, 1]]);
    for _ in 0..10 {
        joined.now += Duration::from_millis(500);
        joined.subnets[1].send(0, &data(1), joined.now);
        let departures = joined.subnets[1].take_departures();
        let packets = departures.iter().map(|(_, frame)| frame);
        let packets = packets.filter(|frame| {
            let parsed = link_frame::parse(frame);
            matches!(parsed, Some((_, link_frame::LinkFrame::Packet { .. })))
        });
        packets.for_each(|frame| joined.receive(0, 0, frame));
        joined.subnets[0].maintain(joined.now);
        joined.subnets[0].take_departures();
    }
    assert!(joined.is_up(0));
}

/// opensm would notice the loss only at its next sweep.
#[test]
fn a_switch_sends_a_trap_when_its_peer_is_gone() {
    let mut joined = Joined::new(2, 1);
    let [uplink, ..] = UPLINKS;
    joined.activate([[255, 1, uplink], [255, uplink, 1]]);
    joined.set_port(&[1], 0, |info| {
        info.set(PortInfo::LID, 3);
        info.set(PortInfo::MASTER_SM_LID, 1);
    });
    joined.received[0].clear();
    joined.silent = vec![1];
    (0..8).for_each(|_| joined.maintain());
    assert!(!joined.is_up(0));
    let packets = joined.received[0].iter();
    let mads = packets.filter_map(|packet| Some(parse_datagram(packet)?.mad));
    let traps = mads.filter(|mad| mad.get(Mad::METHOD) == method::TRAP);
    assert!(traps.count() > 0);
}
