// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The switch, with frames and without sockets.

mod aging;

use super::*;
use crate::policy::{link_local, GidRule, OtherMacs};
use SwitchPort::{Engine, Guest};

mod claims;

const A: MacAddress = [2, 0, 0, 0, 0, 0xa];
const B: MacAddress = [2, 0, 0, 0, 0, 0xb];
/// A station on an uplink.
const X: MacAddress = [2, 0, 0, 0, 0, 0x99];
/// A station that is bridged to a guest's port.
const NESTED: MacAddress = [2, 0, 0, 0, 1, 1];
const ALL: MacAddress = [0xff; 6];
const SECOND_NS: u64 = 1_000_000_000;
const WIRE: SwitchPort = SwitchPort::Wire(0);

fn ip(last: u8) -> RawGid {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last]
}

/// Returns a frame without RoCE.
fn plain(from: MacAddress, to: MacAddress) -> Vec<u8> {
    let mut frame = [&to[..], &from, &[0x88, 0xb5]].concat();
    frame.resize(60, 0);
    frame
}

fn tagged(from: MacAddress, to: MacAddress, vlan: u16) -> Vec<u8> {
    let mut frame = plain(from, to);
    frame.splice(12..12, [0x81, 0, (vlan >> 8) as u8, vlan as u8]);
    frame
}

/// Returns a frame with the fields of RoCE over IPv4 that the switch reads.
fn roce(from: (MacAddress, RawGid), to: (MacAddress, RawGid)) -> Vec<u8> {
    let mut frame = plain(from.0, to.0);
    frame[12..14].copy_from_slice(&[8, 0]);
    let ip = &mut frame[14..34];
    ip[..10].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17]);
    ip[12..16].copy_from_slice(&from.1[12..]);
    ip[16..].copy_from_slice(&to.1[12..]);
    finish_ipv4(&mut frame, 20);
    frame[36..38].copy_from_slice(&4791u16.to_be_bytes());
    frame
}

/// Returns an entry of a GID table, without a VLAN.
fn entry(mac: MacAddress, gid: RawGid) -> Entry {
    let vlan = None;
    Entry { gid, mac, vlan }
}

/// Replaces the GIDs of a driver by these entries, in the order in which the engine does it.
/// Returns the GIDs that the switch refuses.
fn set(s: &mut Switch, vm: u8, entries: &[Entry], now: u64) -> Vec<(RawGid, Syndrome)> {
    // The driver first clears the entries that it does not set any more.
    let keep = |gids| Addresses {
        gids,
        groups: vec![],
    };
    s.set_addresses(vm, &keep(entries.to_vec()));
    let mut own = vec![];
    let mut refused = vec![];
    for entry in entries {
        match s.claim(vm, entry, now) {
            Ok(()) => own.push(*entry),
            Err(cause) => refused.push((entry.gid, cause)),
        }
    }
    s.set_addresses(vm, &keep(own));
    refused
}

/// Like [`set`], with the MAC address of the VM's NIC.
fn set_own(s: &mut Switch, vm: u8, gids: &[RawGid]) -> Vec<(RawGid, Syndrome)> {
    let mac = [A, B][usize::from(vm)];
    let entries: Vec<_> = gids.iter().map(|gid| entry(mac, *gid)).collect();
    set(s, vm, &entries, 0)
}

fn join(s: &mut Switch, vm: u8, gid: RawGid, group: RawGid) {
    let addresses = Addresses {
        gids: vec![entry([A, B][usize::from(vm)], gid)],
        groups: vec![group],
    };
    s.set_addresses(vm, &addresses);
}

/// Returns a switch with an uplink and two VMs, whose drivers have set one GID each.
fn switch() -> Switch {
    switch_with(Policy::default(), Policy::default())
}

/// Like [`switch`], with policies.
fn switch_with(of_a: Policy, of_b: Policy) -> Switch {
    let mut switch = Switch::new(1);
    assert_eq!(switch.add_with(A, of_a), Some(0));
    assert_eq!(switch.add_with(B, of_b), Some(1));
    assert_eq!(set_own(&mut switch, 0, &[ip(1)]), []);
    assert_eq!(set_own(&mut switch, 1, &[ip(2)]), []);
    switch
}

fn any() -> Policy {
    Policy::new(OtherMacs::Any, None, None)
}

fn ports(ports: &[SwitchPort]) -> PortSet {
    let mut set = PortSet::default();
    ports.iter().for_each(|p| set.add(*p));
    set
}

/// Sets the length and the checksum of an IPv4 header of `length` bytes.
fn finish_ipv4(frame: &mut [u8], length: usize) {
    let total = (frame.len() - 14) as u16;
    let ip = &mut frame[14..14 + length];
    ip[2..4].copy_from_slice(&total.to_be_bytes());
    ip[10..12].fill(0);
    let words = ip.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1]));
    let sum = words.sum::<u32>();
    let sum = !((sum >> 16) + (sum & 0xffff)) as u16;
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
}

#[test]
fn roce_with_the_gid_of_another_guest_is_refused_in_any_form() {
    let mut s = switch();
    let forged = roce((A, ip(2)), (X, ip(9)));
    let own = roce((A, ip(1)), (X, ip(9)));
    assert!(s.forward(Guest(0), &forged, 0).is_empty());
    assert!(!s.forward(Guest(0), &own, 0).is_empty());
    let v6 = |next: u8, more: &[u8], ports: [u8; 2]| {
        let mut frame = [&X[..], &A, &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, next, 64]].concat();
        frame.resize(14 + 40, 0);
        frame.extend(more);
        frame.extend([0, 0, ports[0], ports[1], 0, 8, 0, 0]);
        let length = (frame.len() - 54) as u16;
        frame[18..20].copy_from_slice(&length.to_be_bytes());
        frame
    };
    let port = 4791u16.to_be_bytes();
    let options = {
        let mut frame = forged.clone();
        frame.splice(34..34, [1, 1, 1, 0]);
        frame[14] = 0x46;
        finish_ipv4(&mut frame, 24);
        frame
    };
    let fragment = |flags: [u8; 2]| {
        let mut frame = forged.clone();
        frame[20..22].copy_from_slice(&flags);
        finish_ipv4(&mut frame, 20);
        frame
    };
    let tagged = |mut frame: Vec<u8>, tags: usize| {
        for _ in 0..tags {
            frame.splice(12..12, [0x81, 0, 0, 5]);
        }
        frame
    };
    let last = [17, 0, 1, 4, 0, 0, 0, 0];
    let other = [0, 0, 1, 4, 0, 0, 0, 0];
    for (name, frame) in [
        ("options", options.clone()),
        ("options, in a VLAN", tagged(options, 1)),
        ("first of fragments", fragment([0x20, 0])),
        ("a service tag", {
            let mut frame = tagged(forged.clone(), 1);
            frame[12..16].copy_from_slice(&[0x88, 0xa8, 0, 0]);
            frame
        }),
        ("an address that stands for IPv4", {
            let mut frame = v6(17, &[], port);
            frame[22..38].copy_from_slice(&ip(2));
            frame
        }),
        ("two tags", tagged(forged.clone(), 2)),
        ("many tags", tagged(forged.clone(), 30)),
        ("destination options", v6(60, &last, port)),
        (
            "hop by hop, then routing",
            v6(0, &[&[43][..], &other[1..], &last].concat(), port),
        ),
        (
            "first of fragments, IPv6",
            v6(44, &[17, 0, 0, 1, 0, 0, 0, 1], port),
        ),
        ("many headers", v6(0, &other.repeat(30), port)),
    ] {
        let refused = s.counters.refused;
        assert!(s.forward(Guest(0), &frame, 0).is_empty(), "{name}");
        assert_eq!(s.counters.refused, refused + 1, "{name}");
    }
    for (name, frame) in [
        ("a later fragment", fragment([0, 5])),
        ("another port", v6(60, &last, [0, 53])),
        (
            "a later fragment, IPv6",
            v6(44, &[17, 0, 0, 9, 0, 0, 0, 1], port),
        ),
        ("cut", v6(60, &last, port)[..57].to_vec()),
    ] {
        assert!(!s.forward(Guest(0), &frame, 0).is_empty(), "{name}");
    }
}

#[test]
fn frames_for_unknown_addresses_are_flooded_and_others_are_not() {
    let mut s = switch();
    let to = s.forward(Guest(0), &plain(A, X), 0);
    assert_eq!(to, ports(&[WIRE, Guest(1)]));
    s.forward(WIRE, &plain(X, ALL), 1);
    assert_eq!(s.forward(Guest(0), &plain(A, X), 2), ports(&[WIRE]));
    assert_eq!(s.forward(Guest(1), &plain(B, A), 2), ports(&[Guest(0)]));
    assert_eq!(s.forward(WIRE, &plain(X, B), 2), ports(&[Guest(1)]));
    assert_eq!(s.counters.flooded, 2);
}

#[test]
fn a_frame_never_returns_to_the_port_where_it_came_from() {
    let mut s = switch();
    s.forward(WIRE, &plain(X, ALL), 0);
    let y = [2, 0, 0, 0, 0, 0x98];
    assert!(s.forward(WIRE, &plain(y, X), 0).is_empty());
    assert_eq!(
        s.forward(WIRE, &plain(y, ALL), 0),
        ports(&[Guest(0), Guest(1)])
    );
    assert!(s.forward(Guest(0), &plain(A, A), 0).is_empty());
    let own = roce((A, ip(1)), (A, ip(1)));
    assert!(s.forward(Engine(0), &own, 0).is_empty());
    let mut alone = Switch::new(0);
    alone.add(A);
    assert!(alone.forward(Guest(0), &plain(A, ALL), 0).is_empty());
}

#[test]
fn frames_are_not_forwarded_from_one_uplink_to_another() {
    let mut s = Switch::new(3);
    s.add(A);
    let wires = [0, 1, 2].map(SwitchPort::Wire);
    assert_eq!(s.forward(Guest(0), &plain(A, ALL), 0), ports(&wires));
    assert_eq!(s.forward(wires[1], &plain(X, ALL), 0), ports(&[Guest(0)]));
    assert!(s.forward(wires[2], &plain(NESTED, X), 0).is_empty());
    assert_eq!(s.forward(Guest(0), &plain(A, X), 0), ports(&[wires[1]]));
    assert_eq!(
        s.forward(Guest(0), &plain(A, ALL), 0)
            .wires()
            .sum::<usize>(),
        3
    );
}

#[test]
fn a_frame_that_returns_through_a_loop_is_refused() {
    let mut s = switch();
    for frame in [plain(A, ALL), plain(A, X), roce((A, ip(1)), (X, ip(9)))] {
        assert!(!s.forward(Guest(0), &frame, 0).is_empty());
        assert!(s.forward(WIRE, &frame, 1).is_empty());
    }
    assert_eq!(s.counters.refused, 3);
    // The address has not moved to the uplink.
    assert_eq!(s.forward(WIRE, &plain(X, A), 2), ports(&[Guest(0)]));
}

#[test]
fn roce_for_a_gid_of_the_driver_goes_to_the_engine_and_other_roce_to_the_guest() {
    let mut s = switch();
    let frame = roce((X, ip(9)), (A, ip(1)));
    assert_eq!(s.forward(WIRE, &frame, 0), ports(&[Engine(0)]));
    assert_eq!(
        s.forward(Engine(1), &roce((B, ip(2)), (A, ip(1))), 0),
        ports(&[Engine(0)])
    );
    // Stock rxe in the guest uses an address that the driver has not set.
    let other = roce((X, ip(9)), (A, ip(77)));
    assert_eq!(s.forward(WIRE, &other, 0), ports(&[Guest(0)]));
    // Another VM's GID at this MAC address.
    let wrong = roce((X, ip(9)), (A, ip(2)));
    assert_eq!(s.forward(WIRE, &wrong, 0), ports(&[Guest(0)]));
    // The driver is unloaded.
    set_own(&mut s, 0, &[]);
    assert_eq!(s.forward(WIRE, &frame, 0), ports(&[Guest(0)]));
    assert_eq!(s.forward(WIRE, &plain(X, A), 0), ports(&[Guest(0)]));
}

#[test]
fn a_packet_by_reference_goes_where_its_frame_would() {
    let mut crossed = 0;
    let ends = [A, B, X, NESTED].map(|mac| [1, 2, 9, 50].map(|last| (mac, ip(last))));
    let ends = ends.concat();
    for (from, to) in ends.iter().flat_map(|a| ends.iter().map(move |b| (*a, *b))) {
        for vm in 0..2 {
            // The GID that stock rxe uses belongs to its VM, for frames and for packets by
            // reference.
            let new = || {
                let mut s = switch();
                s.forward(Guest(1), &roce((B, ip(50)), (X, ip(9))), 0);
                s
            };
            let frame = roce(from, to);
            let path = frame::peek(&frame).unwrap();
            let framed = new().forward(Engine(vm), &frame, 0);
            let by_reference = new().engine_for(vm, &path, 0);
            let other = 1 - vm;
            assert_eq!(
                by_reference == Some(other),
                framed == ports(&[Engine(other)])
            );
            assert_ne!(by_reference, Some(vm));
            crossed += u32::from(by_reference.is_some());
        }
    }
    // Each VM may send from its MAC address with each GID that no other VM has, and reaches only
    // the GID of the other VM's driver by reference.
    assert_eq!(crossed, 5);
    let mut s = switch();
    let path = frame::peek(&roce((A, ip(1)), (B, ip(2)))).unwrap();
    assert_eq!(s.engine_for(0, &path, 0), Some(1));
    set_own(&mut s, 1, &[]);
    assert_eq!(s.engine_for(0, &path, 0), None);
}

#[test]
fn groups_reach_guests_and_the_engines_that_have_members() {
    let mut s = switch();
    let group = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3];
    let to = (mcast::mac(&group), group);
    let frame = roce((X, ip(9)), to);
    assert_eq!(s.forward(WIRE, &frame, 0), ports(&[Guest(0), Guest(1)]));
    join(&mut s, 0, ip(1), group);
    join(&mut s, 1, ip(2), group);
    assert_eq!(
        s.forward(WIRE, &frame, 0),
        ports(&[Guest(0), Guest(1), Engine(0), Engine(1)])
    );
    // A frame does not return to its VM: the device itself delivers it to its own members.
    for from in [Guest(0), Engine(0)] {
        assert_eq!(
            s.forward(from, &roce((A, ip(1)), to), 0),
            ports(&[WIRE, Guest(1), Engine(1)])
        );
    }
    // A frame with the GID of the group and the MAC address of another group.
    let mut other = frame;
    other[5] ^= 1;
    assert_eq!(s.forward(WIRE, &other, 0), ports(&[Guest(0), Guest(1)]));
}

#[test]
fn rdma_is_sent_only_with_the_senders_own_addresses() {
    let mut s = switch();
    let to = (X, ip(9));
    let refused = |s: &mut Switch, from, sender: (MacAddress, RawGid)| {
        s.forward(from, &roce(sender, to), 0).is_empty()
    };
    for own in [Engine(0), Guest(0)] {
        assert!(!refused(&mut s, own, (A, ip(1))), "{own:?}");
        // Stock rxe may use an address that no other guest has.
        assert!(!refused(&mut s, own, (A, ip(50))), "{own:?}");
        assert!(refused(&mut s, own, (A, ip(2))), "{own:?}");
        assert!(refused(&mut s, own, (B, ip(1))), "{own:?}");
        assert!(refused(&mut s, own, (NESTED, ip(1))), "{own:?}");
    }
    // A GID that rxe uses belongs to its VM: other VMs and stations on the uplink may not use it.
    assert!(refused(&mut s, Guest(1), (B, ip(50))));
    assert!(s
        .forward(WIRE, &roce((X, ip(50)), (B, ip(2))), 0)
        .is_empty());
    assert!(s.forward(WIRE, &roce((X, ip(1)), (B, ip(2))), 0).is_empty());
    // The GID is free after no frame has used it for `AGE_NS`.
    let late = roce((B, ip(50)), to);
    assert!(!s.forward(Guest(1), &late, AGE_NS).is_empty());
}

#[test]
fn a_gid_belongs_to_the_driver_that_set_it_first_until_it_is_cleared() {
    let mut s = switch();
    let in_use = [(ip(1), Syndrome::GidInUse)];
    assert_eq!(set_own(&mut s, 1, &[ip(1), ip(2)]), in_use);
    let frame = roce((X, ip(9)), (B, ip(1)));
    assert_eq!(s.forward(WIRE, &frame, 0), ports(&[Guest(1)]));
    set_own(&mut s, 0, &[]);
    // The GID is free now. The second driver does not have it before it sets it again.
    assert_eq!(s.forward(WIRE, &frame, 0), ports(&[Guest(1)]));
    assert_eq!(set_own(&mut s, 1, &[ip(1), ip(2)]), []);
    assert_eq!(s.forward(WIRE, &frame, 0), ports(&[Engine(1)]));
}

#[test]
fn a_guest_may_have_bridged_addresses_but_no_address_in_use() {
    let mut s = switch();
    s.forward(Guest(0), &plain(NESTED, ALL), 0);
    assert_eq!(s.forward(WIRE, &plain(X, NESTED), 0), ports(&[Guest(0)]));
    // A guest never gets the address of another VM, and not within `HOLD_NS` that of a station that
    // was heard elsewhere.
    assert!(s.forward(Guest(0), &plain(B, ALL), 0).is_empty());
    assert!(s.forward(Guest(0), &plain(X, ALL), 1).is_empty());
    assert!(s
        .forward(Guest(1), &plain(NESTED, ALL), HOLD_NS - 1)
        .is_empty());
    assert_eq!(s.forward(Guest(1), &plain(B, X), 2), ports(&[WIRE]));
    // After that the address moves to the guest, and back to the uplink at once.
    assert!(!s.forward(Guest(0), &plain(X, ALL), HOLD_NS).is_empty());
    assert_eq!(
        s.forward(Guest(1), &plain(B, X), HOLD_NS),
        ports(&[Guest(0)])
    );
    s.forward(WIRE, &plain(X, ALL), HOLD_NS + 1);
    assert_eq!(
        s.forward(Guest(1), &plain(B, X), HOLD_NS + 1),
        ports(&[WIRE])
    );
}

#[test]
fn a_peer_with_the_gid_of_a_guest_reaches_that_guest_alone() {
    let mut s = switch();
    let twice = roce((X, ip(1)), (A, ip(1)));
    assert_eq!(s.forward(WIRE, &twice, 0), ports(&[Engine(0)]));
    for to in [(B, ip(2)), (ALL, ip(2)), (NESTED, ip(9))] {
        let frame = roce((X, ip(1)), to);
        assert!(s.forward(WIRE, &frame, 0).is_empty());
    }
    // A VM of the same process may not do this.
    let beside = roce((B, ip(1)), (A, ip(1)));
    assert!(s.forward(Guest(1), &beside, 0).is_empty());
    assert!(s.forward(Engine(1), &beside, 0).is_empty());
}

#[test]
fn an_address_that_sends_rdma_on_an_uplink_moves_with_rdma_only() {
    let mut s = Switch::new(2);
    s.add(A);
    let wires = [0, 1].map(SwitchPort::Wire);
    let speaks = roce((X, ip(9)), (A, ip(1)));
    let is_at = |s: &mut Switch, now| s.forward(Guest(0), &plain(A, X), now);
    assert!(!s.forward(wires[0], &speaks, 0).is_empty());
    // A frame without RDMA, as of ARP, does not end the hold.
    s.forward(wires[0], &plain(X, ALL), 1);
    for borrowed in [plain(X, A), plain(X, ALL)] {
        assert!(s.forward(wires[1], &borrowed, HOLD_NS - 1).is_empty());
    }
    assert_eq!(s.counters.refused, 2);
    assert_eq!(is_at(&mut s, HOLD_NS - 1), ports(&[wires[0]]));
    // Frames without RDMA are forwarded as before, and do not extend the hold.
    s.forward(wires[0], &plain(X, A), HOLD_NS - 1);
    // A station that moves continues its RDMA connections, so its address moves.
    s.forward(wires[1], &speaks, HOLD_NS - 1);
    assert_eq!(is_at(&mut s, HOLD_NS - 1), ports(&[wires[1]]));
    s.forward(wires[0], &plain(X, ALL), 2 * HOLD_NS - 1);
    assert_eq!(is_at(&mut s, 2 * HOLD_NS - 1), ports(&[wires[0]]));
}

#[test]
fn an_address_is_forgotten_after_no_frame_has_come_from_it_for_a_time() {
    let mut s = switch();
    s.forward(WIRE, &plain(X, ALL), 0);
    assert_eq!(
        s.forward(Guest(0), &plain(A, X), AGE_NS - 1),
        ports(&[WIRE])
    );
    let flooded = ports(&[WIRE, Guest(1)]);
    assert_eq!(s.forward(Guest(0), &plain(A, X), AGE_NS), flooded);
}

#[test]
fn vlans_have_addresses_of_their_own() {
    let mut s = switch();
    s.forward(WIRE, &tagged(NESTED, ALL, 7), 0);
    s.forward(Guest(0), &tagged(NESTED, ALL, 8), 0);
    assert_eq!(
        s.forward(Guest(1), &tagged(B, NESTED, 7), 0),
        ports(&[WIRE])
    );
    assert_eq!(
        s.forward(Guest(1), &tagged(B, NESTED, 8), 0),
        ports(&[Guest(0)])
    );
}

#[test]
fn a_flood_of_addresses_takes_no_room_from_others() {
    let mut s = switch();
    let nth = |n: u32| {
        let [a, b, c, d] = n.to_be_bytes();
        [4, 0, a, b, c, d]
    };
    s.forward(WIRE, &plain(X, ALL), 0);
    for n in 0..3 * GUEST_ADDRESSES as u32 {
        let to = s.forward(Guest(0), &plain(nth(n), ALL), SECOND_NS + u64::from(n));
        assert_eq!(to, ports(&[WIRE, Guest(1)]));
    }
    assert_eq!(s.counters.unlearned, 2 * GUEST_ADDRESSES as u64);
    assert!(s.locations.len() <= GUEST_ADDRESSES + 1);
    // New addresses of others are learned, and known ones stay.
    s.forward(Guest(1), &plain(NESTED, ALL), SECOND_NS);
    assert_eq!(
        s.forward(WIRE, &plain(X, NESTED), SECOND_NS),
        ports(&[Guest(1)])
    );
    assert_eq!(s.forward(Guest(1), &plain(B, X), SECOND_NS), ports(&[WIRE]));
    // An address that moves to a port without room is forgotten.
    let moved = SECOND_NS + HOLD_NS;
    s.forward(Guest(0), &plain(X, ALL), moved);
    assert_eq!(
        s.forward(Guest(1), &plain(B, X), moved),
        ports(&[WIRE, Guest(0)])
    );
    // After the addresses have aged, there is room again.
    let later = AGE_NS + 2 * SECOND_NS;
    s.forward(Guest(0), &plain(nth(u32::MAX), ALL), later);
    assert_eq!(
        s.forward(WIRE, &plain(X, nth(u32::MAX)), later),
        ports(&[Guest(0)])
    );
    assert!(s.locations.len() < 4);
    assert_eq!(s.learned.iter().sum::<usize>(), s.locations.len());
}

#[test]
fn a_flood_of_gids_takes_none_from_others() {
    let mut s = switch();
    for n in 0..4 * GUEST_GIDS as u32 {
        let mut gid = ip(0);
        gid[12..].copy_from_slice(&(n + (11 << 24)).to_be_bytes());
        s.forward(Guest(0), &roce((A, gid), (X, ip(9))), 0);
    }
    let (all, counted, real) = s.owners.counts();
    assert!(all <= GUEST_GIDS + 2);
    assert_eq!((counted[0], &counted), (GUEST_GIDS, &real));
    let frame = roce((X, ip(9)), (B, ip(2)));
    assert_eq!(s.forward(WIRE, &frame, 0), ports(&[Engine(1)]));
}

#[test]
fn invalid_frames_and_frames_for_the_link_alone_are_not_forwarded() {
    let mut s = switch();
    let link = [1, 0x80, 0xc2, 0, 0, 0xe];
    for frame in [
        vec![],
        vec![2; 13],
        plain([0; 6], ALL),
        plain(ALL, X),
        plain([3, 0, 0, 0, 0, 1], X),
        plain(A, link),
    ] {
        assert!(s.forward(Guest(0), &frame, 0).is_empty(), "{frame:02x?}");
    }
    // No bytes cause a panic.
    let mut dice = 1u32;
    for length in 0..4000 {
        let bytes = (0..length % 90).map(|_| {
            dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (dice >> 24) as u8
        });
        let mut frame: Vec<u8> = bytes.collect();
        if let Some(kind) = frame.get_mut(12..14) {
            kind.copy_from_slice(&[[8, 0], [0x86, 0xdd], [0x81, 0]][length % 3]);
        }
        for from in [WIRE, Guest(0), Engine(1)] {
            let to = s.forward(from, &frame, 0);
            assert!(!to.has(from));
        }
    }
}

#[test]
fn the_number_of_vms_is_limited_and_each_has_its_own_address() {
    let mut s = Switch::new(0);
    for n in 0..MAX_VMS {
        assert_eq!(s.add([2, 0, 0, 0, 9, n]), Some(n));
        assert_eq!(s.add([2, 0, 0, 0, 9, n]), None);
    }
    assert_eq!(s.add(X), None);
    let to = s.forward(Guest(3), &plain([2, 0, 0, 0, 9, 3], ALL), 0);
    assert!((0..MAX_VMS).all(|vm| to.has(Guest(vm)) == (vm != 3)));
    assert!((0..MAX_VMS).all(|vm| !to.has(Engine(vm))) && !to.has(WIRE));
}
