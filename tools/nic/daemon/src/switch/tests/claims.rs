// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The assignment of MAC addresses and GIDs to guests.

use super::*;

/// The MAC address of a macvlan device, or one that a guest has given its net device.
const M: MacAddress = [2, 0, 0, 0, 2, 1];

fn ips(list: &str) -> Policy {
    let rule = GidRule::of_ips(list).unwrap();
    Policy::new(OtherMacs::Any, Some(&rule), None)
}

#[test]
fn the_gids_of_a_driver_are_reached_by_each_of_its_mac_addresses_and_by_no_others() {
    let mut s = switch_with(any(), Policy::default());
    let entries = [entry(A, ip(1)), entry(M, ip(51))];
    assert_eq!(set(&mut s, 0, &entries, 0), []);
    let far = (X, ip(9));
    for own in [(A, ip(1)), (M, ip(51)), (M, ip(1)), (A, ip(51))] {
        // A peer may have learned the MAC address of another net device of the host.
        assert_eq!(
            s.forward(WIRE, &roce(far, own), 0),
            ports(&[Engine(0)]),
            "{own:x?}"
        );
        assert_eq!(s.forward(Engine(0), &roce(own, far), 0), ports(&[WIRE]));
        let path = frame::peek(&roce((B, ip(2)), own)).unwrap();
        assert_eq!(s.engine_for(1, &path, 0), Some(0));
        let back = frame::peek(&roce(own, (B, ip(2)))).unwrap();
        assert_eq!(s.engine_for(0, &back, 0), Some(1));
        assert!(s.forward(WIRE, &roce(own, far), 0).is_empty());
        assert!(s.forward(Engine(1), &roce(own, far), 0).is_empty());
    }
    // Frames without RDMA may also use the MAC address only from the same VM.
    assert_eq!(s.forward(WIRE, &plain(X, M), 0), ports(&[Guest(0)]));
    assert!(!s.forward(Guest(0), &plain(M, X), 0).is_empty());
    for other in [Guest(1), WIRE] {
        assert!(s.forward(other, &plain(M, X), 0).is_empty());
    }
    // The entry is cleared, so the MAC address does not belong to the VM any more.
    assert_eq!(set(&mut s, 0, &entries[..1], 0), []);
    assert!(s.forward(Engine(0), &roce((M, ip(51)), far), 0).is_empty());
    assert!(!s.forward(Guest(1), &plain(M, X), 0).is_empty());
}

#[test]
fn guests_may_have_the_same_mac_address_and_gid_in_different_vlans() {
    let mut s = switch_with(any(), any());
    let within = |vlan| Entry {
        vlan: Some(vlan),
        ..entry(M, ip(51))
    };
    assert_eq!(s.claim(0, &within(5), 0), Ok(()));
    // Another guest may have both in another VLAN, and neither of them in the same VLAN.
    assert_eq!(s.claim(1, &within(6), 0), Ok(()));
    assert_eq!(s.claim(1, &within(5), 0), Err(Syndrome::GidMacInUse));
    let same = Entry {
        mac: B,
        ..within(5)
    };
    assert_eq!(s.claim(1, &same, 0), Err(Syndrome::GidInUse));
    assert_eq!(s.forward(WIRE, &tagged(X, M, 5), 0), ports(&[Guest(0)]));
    assert_eq!(s.forward(WIRE, &tagged(X, M, 6), 0), ports(&[Guest(1)]));
}

#[test]
fn by_default_a_guest_may_use_only_the_mac_address_of_its_nic() {
    let mut s = switch();
    let not_allowed = [(ip(51), Syndrome::GidMacNotAllowed)];
    assert_eq!(set(&mut s, 0, &[entry(M, ip(51))], 0), not_allowed);
    assert!(s
        .forward(Engine(0), &roce((M, ip(51)), (X, ip(9))), 0)
        .is_empty());
    // Software RDMA of the guest may not use another MAC address either.
    assert!(s
        .forward(Guest(0), &roce((M, ip(51)), (X, ip(9))), 0)
        .is_empty());
    let listed = Policy::new(OtherMacs::Listed(vec![M]), None, None);
    let mut s = switch_with(listed, any());
    assert_eq!(set(&mut s, 0, &[entry(M, ip(51))], 0), []);
    assert_eq!(
        s.claim(0, &entry(NESTED, ip(52)), 0),
        Err(Syndrome::GidMacNotAllowed)
    );
    assert!(!s
        .forward(Guest(0), &roce((M, ip(51)), (X, ip(9))), 0)
        .is_empty());
}

#[test]
fn a_mac_address_that_software_rdma_uses_is_learned_and_held() {
    let mut s = switch_with(any(), any());
    let far = (X, ip(9));
    assert!(!s.forward(Guest(0), &roce((M, ip(51)), far), 0).is_empty());
    // Frames for the address reach the guest, and another guest cannot take it at once.
    let back = roce(far, (M, ip(51)));
    assert_eq!(s.forward(WIRE, &back, 1), ports(&[Guest(0)]));
    assert!(s.forward(Guest(1), &roce((M, ip(52)), far), 2).is_empty());
    assert!(s.forward(Guest(1), &roce((A, ip(52)), far), 2).is_empty());
}

#[test]
fn a_mac_address_in_use_or_reserved_is_refused() {
    let mut s = switch_with(any(), any());
    let claim = |s: &mut Switch, mac, now| s.claim(0, &entry(mac, ip(51)), now);
    let in_use = Err(Syndrome::GidMacInUse);
    // In use are the address of the other VM's NIC, of a station on the uplink, and of a station
    // that is bridged to the other guest.
    assert_eq!(claim(&mut s, B, 0), in_use);
    s.forward(WIRE, &plain(X, ALL), 0);
    s.forward(Guest(1), &plain(NESTED, ALL), 0);
    assert_eq!(claim(&mut s, X, AGE_NS - 1), in_use);
    assert_eq!(claim(&mut s, NESTED, HOLD_NS - 1), in_use);
    assert_eq!(claim(&mut s, NESTED, HOLD_NS), Ok(()));
    assert_eq!(claim(&mut s, X, AGE_NS), Ok(()));
    // A guest may claim an address that it uses itself, on a bridge or a macvlan device.
    s.forward(Guest(0), &plain(M, ALL), 0);
    assert_eq!(claim(&mut s, M, 1), Ok(()));
    // The other driver may not have an address that one driver has set.
    assert_eq!(s.claim(1, &entry(M, ip(52)), 2), in_use);
    // An address that the options of one guest name is refused to a guest that may have any.
    let listed = Policy::new(OtherMacs::Listed(vec![M]), None, None);
    let mut s = switch_with(any(), listed);
    assert_eq!(claim(&mut s, M, 0), in_use);
    assert_eq!(s.claim(1, &entry(M, ip(51)), 0), Ok(()));
}

#[test]
fn the_link_local_address_of_a_nic_is_reserved_for_its_guest() {
    let mut s = switch_with(any(), any());
    let reserved = Err(Syndrome::GidReserved);
    for mac in [B, M] {
        assert_eq!(s.claim(1, &entry(mac, link_local(&A)), 0), reserved);
    }
    let stolen = |port: SwitchPort, mac: MacAddress| {
        let mut frame = [&X[..], &mac, &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, 17, 64]].concat();
        frame.extend(link_local(&A));
        frame.extend(link_local(&X));
        frame.extend([0xc0, 0]);
        frame.extend(4791u16.to_be_bytes());
        frame.extend([0, 8, 0, 0]);
        let path = frame::peek(&frame).unwrap();
        assert_eq!(path.sgid, link_local(&A));
        (port, frame)
    };
    for (port, frame) in [stolen(Guest(1), B), stolen(Engine(1), B)] {
        assert!(s.forward(port, &frame, 0).is_empty(), "{port:?}");
    }
    assert_eq!(s.claim(0, &entry(A, link_local(&A)), 0), Ok(()));
    let (port, frame) = stolen(Engine(0), A);
    assert!(!s.forward(port, &frame, 0).is_empty());
    // The guest has this address although its list does not contain it.
    let mut s = switch_with(ips("10.0.0.1"), ips("10.0.0.2"));
    assert_eq!(s.claim(0, &entry(A, link_local(&A)), 0), Ok(()));
}

#[test]
fn a_gid_that_a_guest_only_sends_with_is_free_for_a_driver() {
    let mut s = switch();
    let says = roce((B, ip(7)), (X, ip(9)));
    for minute in 0..60 {
        assert!(!s
            .forward(Guest(1), &says, minute * 60 * SECOND_NS)
            .is_empty());
    }
    let now = 3540 * SECOND_NS;
    // Frames that the guest sends to itself do not count.
    let itself = roce((B, ip(2)), (B, ip(7)));
    assert_eq!(s.forward(Engine(1), &itself, now), ports(&[Guest(1)]));
    assert_eq!(s.claim(0, &entry(A, ip(7)), now), Ok(()));
    assert!(s.forward(Guest(1), &says, now).is_empty());
    assert_eq!(
        s.forward(WIRE, &roce((X, ip(9)), (A, ip(7))), now),
        ports(&[Engine(0)])
    );
    let (_, counted, real) = s.owners.counts();
    assert_eq!(counted, real);
}

#[test]
fn stock_rxe_that_gets_frames_keeps_its_gid() {
    let mut s = switch();
    let says = roce((B, ip(7)), (X, ip(9)));
    let answer = roce((X, ip(9)), (B, ip(7)));
    s.forward(Guest(1), &says, 0);
    assert_eq!(s.forward(WIRE, &answer, 1), ports(&[Guest(1)]));
    let in_use = Err(Syndrome::GidInUse);
    assert_eq!(s.claim(0, &entry(A, ip(7)), 2), in_use);
    // The GID is free after rxe has been silent for `AGE_NS`, and if the options of another guest
    // name it.
    assert_eq!(s.claim(0, &entry(A, ip(7)), AGE_NS), Ok(()));
    let mut s = switch_with(ips("10.0.0.1,10.0.0.7"), ips("10.0.0.0/24"));
    assert!(s.forward(Guest(1), &says, 0).is_empty());
    assert_eq!(s.claim(0, &entry(A, ip(7)), 0), Ok(()));
}

#[test]
fn a_guest_may_use_only_the_ip_addresses_of_its_options() {
    let mut s = switch_with(ips("10.0.0.1,10.0.0.5"), ips("10.0.0.0/24"));
    let claim = |s: &mut Switch, vm: u8, last| {
        let mac = [A, B][usize::from(vm)];
        s.claim(vm, &entry(mac, ip(last)), 0)
    };
    assert_eq!(claim(&mut s, 0, 6), Err(Syndrome::GidNotAllowed));
    assert_eq!(claim(&mut s, 1, 5), Err(Syndrome::GidReserved));
    assert_eq!(claim(&mut s, 0, 5), Ok(()));
    assert_eq!(claim(&mut s, 1, 6), Ok(()));
    let far = (X, ip(9));
    for port in [Guest(0), Engine(0)] {
        assert!(s.forward(port, &roce((A, ip(77)), far), 0).is_empty());
    }
    let outside = roce(
        (B, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, 0, 1]),
        far,
    );
    assert!(s.forward(Guest(1), &outside, 0).is_empty());
    assert!(!s.forward(Guest(1), &roce((B, ip(77)), far), 0).is_empty());
}

#[test]
fn counts_of_used_gids_are_right_after_any_operations() {
    let mut s = switch_with(any(), any());
    let mut dice = 1u32;
    let mut roll = |n: u32| {
        dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (dice >> 16) % n
    };
    let mut now = 0;
    for _ in 0..20_000 {
        now += u64::from(roll(3)) * SECOND_NS;
        let vm = roll(2) as u8;
        let mac = [A, B][usize::from(vm)];
        let gid = ip(roll(40) as u8);
        match roll(6) {
            0 => drop(s.claim(vm, &entry(mac, gid), now)),
            1 => {
                let left = (0..roll(4)).map(|_| entry(mac, ip(roll(40) as u8)));
                drop(set(&mut s, vm, &left.collect::<Vec<_>>(), now));
            }
            2 => drop(s.forward(WIRE, &roce((X, ip(99)), (mac, gid)), now)),
            _ => drop(s.forward(Guest(vm), &roce((mac, gid), (X, ip(99))), now)),
        }
        let (_, counted, real) = s.owners.counts();
        assert_eq!(counted, real);
    }
}
