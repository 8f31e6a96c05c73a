// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Multicast groups.

use super::srq_ud::{datagram, datagram_wqe_by};
use super::Pair;
use crate::config::{MAX_MCAST_GRP, MAX_MCAST_QP_ATTACH};
use crate::device::sched::SLICE_STEPS;
use crate::error::CmdError;
use crate::mock::{Driver, QpHandle, SendWr};
use crate::objects::mcast::{is_group, mac, Groups};
use crate::Config;
use std::rc::Rc;
use verbena_abi::cmd::*;
use verbena_abi::cqe::WcStatus;
use verbena_abi::ctx::{AddressVector, QpState};
use verbena_abi::stats::Counter;
use verbena_abi::wqe::WqeOpcode;
use verbena_transport::wire::bth::MULTICAST_QPN;

/// The IPv4 group 239.129.2.3 as a GID of RoCE v2.
const GROUP: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 129, 2, 3];

fn attach(group: [u8; 16], qpn: u32) -> AttachMcast {
    AttachMcast {
        qpn: qpn.into(),
        port: 1,
        mgid: group,
        ..Default::default()
    }
}

fn detach(group: [u8; 16], qpn: u32) -> DetachMcast {
    DetachMcast {
        qpn: qpn.into(),
        port: 1,
        mgid: group,
        ..Default::default()
    }
}

fn to_group(group: [u8; 16], qpn: u32) -> AddressVector {
    AddressVector {
        dgid: group,
        dmac: mac(&group),
        dest_qpn: qpn.into(),
        qkey: 0x1234.into(),
        pdn: 7.into(),
        ..Driver::path(0, 1)
    }
}

/// Sends 100 bytes from `x` to a group. Returns the `wr_id` of each receive that completes.
fn send(p: &mut Pair, x: &mut QpHandle, av: AddressVector) -> Vec<u64> {
    let (at, key) = p.d.region(4096, 1);
    let wr = SendWr::new(WqeOpcode::Send, 1000, &[(at, 100, key)]);
    p.d.post_raw(x, &datagram_wqe_by(&wr, av));
    let done = p.d.drain(&mut p.cq_a);
    assert!(done.iter().all(|&(_, status)| status == WcStatus::Success));
    let mut received: Vec<_> = done.iter().map(|&(id, _)| id).collect();
    received.retain(|&id| id != 1000);
    assert_eq!(received.len() + 1, done.len(), "the send completes once");
    received
}

fn frames(p: &mut Pair) -> Vec<Rc<Vec<u8>>> {
    std::iter::from_fn(|| p.d.device.next_frame()).collect()
}

/// Returns three datagram queue pairs with four receives each, and the address of their buffers.
/// The `wr_id` of a receive is the index of its queue pair plus ten times its turn.
fn three(config: Config) -> (Pair, [QpHandle; 3], u64) {
    let mut p = Pair::on(Driver::with(config));
    let mut all = [(); 3].map(|()| datagram(&mut p));
    let (at, key) = p.d.region(4096, 3);
    for (id, qp) in all.iter_mut().enumerate() {
        for turn in 0..4 {
            let to = at + id as u64 * 1024;
            p.d.post_recv(qp, 10 * turn + id as u64, &[(to, 200, key)]);
        }
    }
    (p, all, at)
}

#[test]
fn a_datagram_to_a_group_reaches_every_member_and_the_wire() {
    for wire_local in [false, true] {
        let (mut p, mut all, at) = three(Config {
            wire_local,
            ..Config::default()
        });
        p.d.must(&attach(GROUP, all[0].qpn));
        p.d.must(&attach(GROUP, all[2].qpn));
        // The sender is a member too. A second attachment changes nothing.
        p.d.must(&attach(GROUP, all[2].qpn));
        assert_eq!(
            send(&mut p, &mut all[0], to_group(GROUP, MULTICAST_QPN)),
            [0, 2]
        );
        for member in [0, 2] {
            let grh_and_data = p.d.bytes(at + member * 1024 + 20, 120);
            assert_eq!(grh_and_data[12..20], [10, 0, 0, 1, 239, 129, 2, 3]);
            let same = p.d.region(4096, 1).0;
            assert_eq!(grh_and_data[20..], p.d.bytes(same, 100));
        }
        let sent = frames(&mut p);
        assert_eq!(sent.len(), 1);
        assert_eq!(sent[0][..6], [1, 0, 0x5e, 1, 2, 3]);
        // The sender is not a member.
        assert_eq!(
            send(&mut p, &mut all[1], to_group(GROUP, MULTICAST_QPN)),
            [10, 12]
        );
        p.d.must(&detach(GROUP, all[2].qpn));
        assert_eq!(
            send(&mut p, &mut all[1], to_group(GROUP, MULTICAST_QPN)),
            [20]
        );
        p.d.must(&detach(GROUP, all[0].qpn));
        assert_eq!(
            send(&mut p, &mut all[1], to_group(GROUP, MULTICAST_QPN)),
            []
        );
        assert_eq!(frames(&mut p).len(), 3);
    }
}

#[test]
fn addresses_are_reported_once_after_each_change() {
    let (mut p, all, _) = three(Config::default());
    let own = p.d.device.take_addresses().unwrap().gids;
    assert_eq!(p.d.device.take_addresses(), None);
    p.d.set_gid(7, [10, 0, 0, 77]);
    let gids = p.d.device.take_addresses().unwrap().gids;
    assert_eq!(gids.len(), own.len() + 1);
    for member in [true, false] {
        let qpn = all[1].qpn;
        if member {
            p.d.must(&attach(GROUP, qpn));
        } else {
            p.d.must(&DestroyQp {
                id: qpn.into(),
                ..Default::default()
            });
        }
        let groups = p.d.device.take_addresses().unwrap().groups;
        assert_eq!(groups.contains(&GROUP), member);
        assert_eq!(p.d.device.take_addresses(), None);
    }
    p.d.device.reset();
    let none = p.d.device.take_addresses().unwrap();
    assert!(none.gids.is_empty() && none.groups.is_empty());
}

#[test]
fn a_frame_for_a_group_is_accepted_while_the_group_has_a_member() {
    let (mut p, mut all, _) = three(Config::default());
    assert_eq!(
        send(&mut p, &mut all[0], to_group(GROUP, MULTICAST_QPN)),
        []
    );
    let frame = frames(&mut p).remove(0);
    assert!(!p.d.device.wants_frame(&frame));
    p.d.must(&attach(GROUP, all[1].qpn));
    p.d.must(&attach(GROUP, all[2].qpn));
    assert!(p.d.device.wants_frame(&frame));
    let now = p.d.now;
    p.d.device.receive_frame(&p.d.ram, &frame, now);
    let done = p.d.drain(&mut p.cq_a);
    assert_eq!(done, [(1, WcStatus::Success), (2, WcStatus::Success)]);
    // The device does not accept a frame to another MAC address than that of the group.
    let mut other = frame.to_vec();
    other[5] ^= 1;
    assert!(!p.d.device.wants_frame(&other));
    // The device does not accept a frame in a VLAN in which the port has no GID.
    let tag = [0x81, 0, 0, 9];
    let tagged = [&frame[..12], &tag, &frame[12..]].concat();
    assert!(!p.d.device.wants_frame(&tagged));
    p.d.must(&SetGid {
        index: 6.into(),
        valid: 1,
        vlan: 9.into(),
        port: 1,
        gid_type: GID_TYPE_ROCE_V2,
        gid: [0xfe; 16],
        ..Default::default()
    });
    assert!(p.d.device.wants_frame(&tagged));
    // A packet with the GID of a group and the QPN of a single queue pair is not delivered.
    let to_one = to_group(GROUP, all[1].qpn);
    assert_eq!(send(&mut p, &mut all[0], to_one), []);
    let frame = frames(&mut p).remove(0);
    let now = p.d.now;
    p.d.device.receive_frame(&p.d.ram, &frame, now);
    assert_eq!(p.d.drain(&mut p.cq_a), []);
    // A packet with the multicast QPN and the GID of the port is not delivered.
    let own = Driver::path(0, 1).dgid;
    assert_eq!(send(&mut p, &mut all[0], to_group(own, MULTICAST_QPN)), []);
    assert_eq!(frames(&mut p).len(), 0);
}

#[test]
fn members_that_cannot_receive_do_not_affect_the_others() {
    let (mut p, mut all, _) = three(Config::default());
    for qp in &all {
        p.d.must(&attach(GROUP, qp.qpn));
    }
    p.d.move_to(all[1].qpn, QpState::Reset).unwrap();
    assert_eq!(
        send(&mut p, &mut all[0], to_group(GROUP, MULTICAST_QPN)),
        [0, 2]
    );
    // A member in ERR does not affect the others.
    p.d.move_to(all[2].qpn, QpState::Err).unwrap();
    p.d.drain(&mut p.cq_a);
    assert_eq!(
        send(&mut p, &mut all[0], to_group(GROUP, MULTICAST_QPN)),
        [10]
    );
    // A destroyed queue pair leaves the group, so a later one of the same number is no member.
    for qp in [&all[1], &all[2]] {
        let id = qp.qpn.into();
        p.d.must(&DestroyQp {
            id,
            ..Default::default()
        });
    }
    assert_eq!(
        p.d.device.addressing.groups().members(&GROUP).unwrap()[..],
        [all[0].qpn]
    );
    p.d.must(&detach(GROUP, all[0].qpn));
    assert!(p.d.device.addressing.groups().members(&GROUP).is_none());
}

#[test]
fn invalid_attachments_and_detachments_are_refused() {
    let (mut p, all, _) = three(Config::default());
    let (good, rc) = (all[0].qpn, p.a.qpn);
    let unicast = Driver::path(0, 1).dgid;
    let status = |r: Result<Empty, CmdError>| r.unwrap_err().status;
    for (bad, expected) in [
        (attach(GROUP, rc), CmdStatus::Invalid),
        (attach(GROUP, 9999), CmdStatus::NotFound),
        (attach(unicast, good), CmdStatus::Invalid),
        (
            AttachMcast {
                port: 0,
                ..attach(GROUP, good)
            },
            CmdStatus::Invalid,
        ),
        (
            AttachMcast {
                port: 2,
                ..attach(GROUP, good)
            },
            CmdStatus::Invalid,
        ),
        (
            AttachMcast {
                mlid: 0xc000.into(),
                ..attach(GROUP, good)
            },
            CmdStatus::Invalid,
        ),
    ] {
        assert_eq!(status(p.d.cmd(&bad)), expected);
        let back = DetachMcast {
            qpn: bad.qpn,
            mlid: bad.mlid,
            port: bad.port,
            mgid: bad.mgid,
            ..Default::default()
        };
        assert_eq!(status(p.d.cmd(&back)), expected);
    }
    assert_eq!(status(p.d.cmd(&detach(GROUP, good))), CmdStatus::NotFound);
    p.d.must(&attach(GROUP, good));
    assert_eq!(
        status(p.d.cmd(&detach(GROUP, all[1].qpn))),
        CmdStatus::NotFound
    );
    p.d.must(&detach(GROUP, good));
    assert_eq!(status(p.d.cmd(&detach(GROUP, good))), CmdStatus::NotFound);
}

#[test]
fn groups_and_their_members_are_bounded() {
    let mut groups = Groups::default();
    let group = |i: u32| {
        let mut gid = [0xff; 16];
        gid[12..].copy_from_slice(&i.to_be_bytes());
        gid
    };
    for qpn in 0..MAX_MCAST_QP_ATTACH {
        groups.attach(group(0), qpn).unwrap();
    }
    let full = groups.attach(group(0), MAX_MCAST_QP_ATTACH).unwrap_err();
    assert_eq!(full.status, CmdStatus::NoResources);
    groups.attach(group(0), 5).unwrap();
    for i in 1..MAX_MCAST_GRP {
        groups.attach(group(i), 1).unwrap();
    }
    let full = groups.attach(group(MAX_MCAST_GRP), 1).unwrap_err();
    assert_eq!(full.status, CmdStatus::NoResources);
    // A group that has lost its last member makes room for another group.
    groups.detach(&group(7), 1).unwrap();
    groups.attach(group(MAX_MCAST_GRP), 1).unwrap();
    groups.forget(1);
    assert_eq!(groups.members(&group(0)).unwrap().len(), 255);
    assert!(groups.members(&group(9)).is_none());
}

#[test]
fn group_addresses() {
    assert!(is_group(&GROUP));
    assert_eq!(mac(&GROUP), [1, 0, 0x5e, 1, 2, 3]);
    let mut v6 = [0; 16];
    (v6[0], v6[1], v6[13], v6[15]) = (0xff, 0x0e, 0x81, 9);
    assert!(is_group(&v6));
    assert_eq!(mac(&v6), [0x33, 0x33, 0, 0x81, 0, 9]);
    // 240.0.0.0/4 and 223.0.0.0/8 are not multicast, and neither is an IPv6 unicast address that
    // ends like the GID of a group.
    for first in [240, 223] {
        let mut other = GROUP;
        other[12] = first;
        assert!(!is_group(&other));
    }
    let mut other = GROUP;
    other[3] = 1;
    assert!(!is_group(&other));
}

/// A datagram to a group counts as one delivery for each member, because each of them takes as long
/// as the delivery of a packet to one queue pair.
#[test]
fn deliveries_to_a_group_count_for_each_member() {
    const MEMBERS: u32 = 20;
    let mut p = Pair::new();
    let mut sender = datagram(&mut p);
    for _ in 0..MEMBERS {
        let member = datagram(&mut p).qpn;
        p.d.must(&attach(GROUP, member));
    }
    let wr = SendWr::new(WqeOpcode::Send, 1, &[]);
    let wqe = datagram_wqe_by(&wr, to_group(GROUP, MULTICAST_QPN));
    const SENDS: u32 = 16;
    (0..SENDS).for_each(|_| p.d.post_raw(&mut sender, &wqe));
    let heard = |p: &Pair| p.d.device.stats()[Counter::RxMulticastPackets as usize] as u32;
    let mut before = heard(&p);
    while before < SENDS * MEMBERS {
        let next = p.d.device.run_slice(&p.d.ram, p.d.now);
        let now = heard(&p);
        assert!(now - before < SLICE_STEPS + MEMBERS, "{}", now - before);
        assert!(next.busy || now == SENDS * MEMBERS);
        before = now;
    }
}

/// The caller learns how many copies were made of the frames, so that it can count this work.
#[test]
fn copies_of_frames_to_a_group_are_counted() {
    let (mut p, all, _) = three(Config::default());
    p.d.must(&attach(GROUP, all[0].qpn));
    p.d.must(&attach(GROUP, all[2].qpn));
    let (mut other, mut all, _) = three(Config::default());
    send(&mut other, &mut all[0], to_group(GROUP, MULTICAST_QPN));
    let sent = frames(&mut other);
    assert_eq!(sent.len(), 1);
    let twice = || [&sent[0][..]; 2].into_iter();
    let Driver {
        device, ram, now, ..
    } = &mut p.d;
    assert_eq!(device.receive_frames(&*ram, twice(), *now), 4);
    assert_eq!(
        device.receive_frames(&*ram, [&[0u8; 60][..]].into_iter(), *now),
        0
    );
}
