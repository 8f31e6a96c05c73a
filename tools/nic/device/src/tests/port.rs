// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The port: the frames that it sends, and those that it accepts.

use crate::config::{Config, KEEP_BYTES, PEER_KEEP_BYTES};
use crate::mock::{CqHandle, Driver, QpHandle, SendWr, MAC};
use std::rc::Rc;
use verbena_abi::cmd::{CmdStatus, SetGid, SetPort, GID_TYPE_ROCE_V2, NO_VLAN};
use verbena_abi::cqe::WcStatus;
use verbena_abi::ctx::{qp_mask as m, AddressVector, QpAttr, QpState};
use verbena_abi::stats::Counter;
use verbena_abi::syndrome::Syndrome;
use verbena_abi::wqe::WqeOpcode;
use verbena_transport::frame;
use verbena_transport::packet::{Aeth, AethSyndrome, NakCode, Packet, PacketKind, Payload};
use verbena_transport::wire::Path;

/// Returns a queue pair in RTS whose peer is on another machine, with this traffic class.
pub(super) fn far(traffic_class: u8) -> (Driver, QpHandle, CqHandle) {
    far_by(Config::default(), traffic_class)
}

fn far_by(config: Config, traffic_class: u8) -> (Driver, QpHandle, CqHandle) {
    let av = AddressVector {
        traffic_class,
        ..Driver::path(0, 8)
    };
    far_at(config, av)
}

fn far_at(config: Config, av: AddressVector) -> (Driver, QpHandle, CqHandle) {
    let mut d = Driver::with(config);
    let cq = d.create_cq(6);
    let qp = d.create_qp(&cq, &cq);
    d.to_init(qp.qpn).unwrap();
    d.to_rtr(qp.qpn, 77, av).unwrap();
    d.to_rts(qp.qpn).unwrap();
    (d, qp, cq)
}

/// Runs the device. Returns the frames that leave.
pub(super) fn frames(d: &mut Driver) -> Vec<Rc<Vec<u8>>> {
    d.run();
    std::iter::from_fn(|| d.device.next_frame()).collect()
}

/// Returns the frame of a packet without payload.
pub(super) fn emitted(path: &Path, packet: &Packet) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::emit::<()>(path, packet, &mut bytes, |_| Ok(())).unwrap();
    bytes
}

/// Sets the GID whose bytes are all 0xfe, in a VLAN or without one.
fn set_own(d: &mut Driver, index: u16, vlan: u16, mac: [u8; 6]) {
    d.must(&SetGid {
        index: index.into(),
        valid: 1,
        port: 1,
        gid_type: GID_TYPE_ROCE_V2,
        gid: [0xfe; 16],
        vlan: vlan.into(),
        mac,
        ..Default::default()
    });
}

#[test]
fn frames_have_the_dscp_and_ect_0() {
    // The ECN bits are those of ECT(0), whatever the address vector has.
    for (class, sent) in [(0xff, 0xfe), (0xb9, 0xba), (0x01, 2), (0x68, 0x6a)] {
        let (mut d, mut qp, _) = far(class);
        d.post_send(&mut qp, &SendWr::new(WqeOpcode::RdmaWrite, 1, &[]));
        let all = frames(&mut d);
        assert_eq!(all.len(), 1);
        assert_eq!(frame::parse(&all[0]).unwrap().path.traffic_class, sent);
    }
}

#[test]
fn without_congestion_control_frames_are_not_ect() {
    let config = Config {
        congestion_control: false,
        ..Config::default()
    };
    let (mut d, mut qp, _) = far_by(config, 0xff);
    d.post_send(&mut qp, &SendWr::new(WqeOpcode::RdmaWrite, 1, &[]));
    let all = frames(&mut d);
    assert_eq!(all.len(), 1);
    assert_eq!(frame::parse(&all[0]).unwrap().path.traffic_class, 0xfc);
}

#[test]
fn an_ignored_congestion_notification_is_counted() {
    let (mut d, mut qp, _) = far(0);
    d.post_send(&mut qp, &SendWr::new(WqeOpcode::RdmaWrite, 1, &[]));
    let sent = frame::parse(&frames(&mut d)[0]).unwrap();
    let path = Path {
        sgid: sent.path.dgid,
        dgid: sent.path.sgid,
        ..sent.path
    };
    let packet = Packet {
        kind: PacketKind::Cnp,
        dst_qpn: qp.qpn,
        payload: Payload::None,
        ..sent.packet
    };
    let cnp = emitted(&path, &packet);
    d.device.receive_frame(&d.ram, &cnp, d.now);
    assert_eq!(d.device.stats()[Counter::RpCnpIgnored as usize], 0);
    // The queue pair does not send any more.
    d.move_to(qp.qpn, QpState::Err).unwrap();
    d.device.receive_frame(&d.ram, &cnp, d.now);
    assert_eq!(d.device.stats()[Counter::RpCnpIgnored as usize], 1);
    assert_eq!(d.device.stats()[Counter::RxMalformed as usize], 0);
}

fn set_mtu(d: &mut Driver, mtu: u8) {
    d.must(&SetPort {
        up: 1,
        mtu,
        port: 1,
        ..Default::default()
    });
}

#[test]
fn a_path_mtu_over_the_ports_is_refused() {
    let mut d = Driver::new();
    let cq = d.create_cq(6);
    let qp = d.create_qp(&cq, &cq);
    d.to_init(qp.qpn).unwrap();
    set_mtu(&mut d, 2);
    // `to_rtr` asks for path MTU 3, which is 1024 bytes.
    let refused = d.to_rtr(qp.qpn, 77, Driver::path(0, 8)).unwrap_err();
    assert_eq!(refused.status, CmdStatus::Invalid);
    assert_eq!(refused.syndrome, Syndrome::CmdAttribute);
    assert_eq!(d.query_qp(qp.qpn).attr.qp_state, QpState::Init.to_raw());
    set_mtu(&mut d, 3);
    d.to_rtr(qp.qpn, 77, Driver::path(0, 8)).unwrap();
    // The port's MTU may shrink below a path MTU in use. Other attributes can still be changed.
    set_mtu(&mut d, 1);
    d.to_rts(qp.qpn).unwrap();
    let attr = QpAttr {
        min_rnr_timer: 9,
        ..Default::default()
    };
    d.modify(qp.qpn, m::MIN_RNR_TIMER, attr).unwrap();
}

#[test]
fn packets_over_the_shrunk_mtu_of_the_port_do_not_leave() {
    let (mut d, mut qp, mut cq) = far(0);
    let (at, key) = d.region(2048, 1);
    let write = |id, length| SendWr::new(WqeOpcode::RdmaWrite, id, &[(at, length, key)]);
    d.post_send(&mut qp, &write(1, 1024));
    assert_eq!(frames(&mut d).len(), 1);
    set_mtu(&mut d, 2);
    d.post_send(&mut qp, &write(2, 1024));
    d.post_send(&mut qp, &write(3, 512));
    let sizes = |all: Vec<Rc<Vec<u8>>>| -> Vec<u32> {
        let size = |bytes: &Rc<Vec<u8>>| frame::parse(bytes).unwrap().packet.payload.len();
        all.iter().map(size).collect()
    };
    assert_eq!(sizes(frames(&mut d)), [512]);
    assert_eq!(d.device.stats()[Counter::TxOverMtu as usize], 1);
    // The effect is that of a wire that drops the packet.
    d.pass(3_000_000_000);
    let done = d.poll(&mut cq).unwrap();
    assert_eq!(done.status(), WcStatus::RetryExcErr);
    let lost = std::iter::from_fn(|| d.device.next_frame()).collect();
    assert!(sizes(lost).into_iter().all(|size| size <= 512));
}

#[test]
fn a_cleared_gid_is_not_local() {
    let mut d = Driver::new();
    let cq = d.create_cq(6);
    let mut qp = d.create_qp(&cq, &cq);
    d.must(&SetGid {
        index: 1.into(),
        port: 1,
        gid_type: GID_TYPE_ROCE_V2,
        ..Default::default()
    });
    d.to_init(qp.qpn).unwrap();
    d.to_rtr(qp.qpn, 77, Driver::path(0, 1)).unwrap();
    d.to_rts(qp.qpn).unwrap();
    d.post_send(&mut qp, &SendWr::new(WqeOpcode::RdmaWrite, 1, &[]));
    assert_eq!(frames(&mut d).len(), 1);
}

#[test]
fn a_connected_queue_pair_accepts_packets_of_its_peer_only() {
    let mut d = Driver::new();
    d.set_gid(2, [10, 0, 0, 3]);
    let mut cq = d.create_cq(6);
    let (mut a, b) = (d.create_qp(&cq, &cq), d.create_qp(&cq, &cq));
    // Each queue pair is the peer of the other, but one sends from another GID than its peer
    // expects.
    for (me, peer, from, to) in [(&a, &b, 2, 1), (&b, &a, 1, 0)] {
        d.to_init(me.qpn).unwrap();
        d.to_rtr(me.qpn, peer.qpn, Driver::path(from, to)).unwrap();
        d.to_rts(me.qpn).unwrap();
    }
    d.post_send(&mut a, &SendWr::new(WqeOpcode::RdmaWrite, 1, &[]));
    d.pass(3_000_000_000);
    let done = d.poll(&mut cq).unwrap();
    assert_eq!(done.status(), WcStatus::RetryExcErr);
    assert_eq!(
        d.query_qp(b.qpn).expected_psn.get(),
        0xff_fffe,
        "no packet was accepted"
    );
}

/// Returns a frame that was sent with an address vector from GID 4, which has this VLAN and MAC
/// address.
fn leaves_by(vlan: u16, mac: [u8; 6], av: AddressVector) -> Rc<Vec<u8>> {
    let mut d = Driver::new();
    set_own(&mut d, 4, vlan, mac);
    let cq = d.create_cq(6);
    let mut qp = d.create_qp(&cq, &cq);
    d.to_init(qp.qpn).unwrap();
    d.to_rtr(qp.qpn, 77, av).unwrap();
    d.to_rts(qp.qpn).unwrap();
    d.post_send(&mut qp, &SendWr::new(WqeOpcode::RdmaWrite, 1, &[]));
    let mut all = frames(&mut d);
    assert_eq!(all.len(), 1);
    all.remove(0)
}

#[test]
fn a_frame_has_the_fields_of_its_address_vector() {
    let mac = [2, 9, 8, 7, 6, 5];
    let av = AddressVector {
        dgid: [0xfd; 16],
        dmac: [2, 1, 1, 1, 1, 7],
        sgid_index: 4.into(),
        flow_label: 0xabc_def0.into(),
        hop_limit: 3,
        // A connection adds ECT(0), so that routers may mark its packets.
        traffic_class: 0x40,
        sl: 5,
        port_num: 1,
        ..Default::default()
    };
    for (vlan, tag) in [(NO_VLAN, None), (123, Some(123))] {
        let path = frame::parse(&leaves_by(vlan, mac, av)).unwrap().path;
        assert_eq!((path.smac, path.dmac), (mac, av.dmac));
        assert_eq!((path.sgid, path.dgid), ([0xfe; 16], av.dgid));
        assert_eq!(
            (path.vlan, path.hop_limit, path.traffic_class),
            (tag, 3, 0x42)
        );
        assert_eq!(path.flow_label, 0xc_def0, "20 bits");
        // The service level is the priority of the VLAN tag, if there is one.
        assert_eq!(path.sl, if tag.is_some() { 5 } else { 0 });
        assert!(path.udp_sport >= 0xc000);
    }
    // Without a hop limit it is 64, as with most hosts.
    let unlimited = AddressVector { hop_limit: 0, ..av };
    let path = frame::parse(&leaves_by(NO_VLAN, mac, unlimited))
        .unwrap()
        .path;
    assert_eq!(path.hop_limit, 64);
}

#[test]
fn frames_need_a_mac_address_and_a_gid_of_the_port() {
    // A frame from a queue pair of another machine to one of this device.
    let (mut there, mut sender, _) = far(0);
    there.post_send(&mut sender, &SendWr::new(WqeOpcode::RdmaWrite, 1, &[]));
    let sent = frames(&mut there).remove(0);
    let mut path = frame::parse(&sent).unwrap().path;
    let (mut d, qp, _) = far(0);
    let expected = |d: &mut Driver| d.query_qp(qp.qpn).expected_psn.get();
    let mac = MAC;
    let mut packet = frame::parse(&sent).unwrap().packet;
    (packet.dst_qpn, packet.psn) = (qp.qpn, 0xff_fffe);
    (path.dmac, path.sgid, path.dgid) = (mac, Driver::path(0, 8).dgid, Driver::path(0, 0).dgid);
    let emit = |path: &Path| emitted(path, &packet);
    let good = emit(&path);
    assert!(d.device.wants_frame(&good));
    let mut other = path;
    other.dmac[5] ^= 1;
    assert!(!d.device.wants_frame(&emit(&other)));
    let mut other = path;
    other.dgid[15] = 99;
    assert!(!d.device.wants_frame(&emit(&other)));
    assert!(!d.device.wants_frame(&good[..20]));
    // A frame with a wrong ICRC is counted and dropped.
    let mut corrupt = good.clone();
    *corrupt.last_mut().unwrap() ^= 1;
    let count = |d: &Driver, counter: Counter| d.device.stats()[counter as usize];
    d.device.receive_frame(&d.ram, &corrupt, d.now);
    assert_eq!(
        (
            count(&d, Counter::RxIcrcEncapsulated),
            count(&d, Counter::RxMalformed)
        ),
        (1, 0)
    );
    d.device.receive_frame(&d.ram, &good[..50], d.now);
    assert_eq!(
        (
            count(&d, Counter::RxIcrcEncapsulated),
            count(&d, Counter::RxMalformed)
        ),
        (1, 1)
    );
    // A packet from another GID than the peer's is dropped.
    let mut other = path;
    other.sgid[15] = 99;
    d.device.receive_frame(&d.ram, &emit(&other), d.now);
    let (malformed, unheard) = (Counter::RxMalformed, Counter::RxNoQp);
    assert_eq!((count(&d, malformed), count(&d, unheard)), (1, 1));
    // A packet with the peer's GID and another MAC address is dropped.
    let mut other = path;
    other.smac[5] ^= 1;
    d.device.receive_frame(&d.ram, &emit(&other), d.now);
    assert_eq!((count(&d, malformed), count(&d, unheard)), (1, 2));
    // A port that is down drops packets.
    d.set_port(false);
    d.device.receive_frame(&d.ram, &good, d.now);
    d.set_port(true);
    assert_eq!(expected(&mut d), 0xff_fffe);
    d.device.receive_frame(&d.ram, &good, d.now);
    assert_eq!(expected(&mut d), 0xff_ffff);
    assert_eq!(count(&d, Counter::RxPackets), 1);
}

#[test]
fn a_peer_behind_routers_with_a_shared_address_may_have_any_source_mac() {
    for (dmac, asymmetric_routes, is_heard) in [
        ([0, 0, 0x5e, 0, 1, 9], false, true),
        ([0, 0, 0x5e, 0, 2, 9], false, true),
        ([0, 0, 0x0c, 0x07, 0xac, 9], false, true),
        ([0, 0, 0x5e, 0, 3, 9], false, false),
        ([0, 0, 0x5e, 0, 3, 9], true, true),
    ] {
        let (mut there, mut sender, _) = far(0);
        there.post_send(&mut sender, &SendWr::new(WqeOpcode::RdmaWrite, 1, &[]));
        let sent = frame::parse(&frames(&mut there)[0]).unwrap();
        let mut d = Driver::with(crate::Config {
            asymmetric_routes,
            ..Default::default()
        });
        let cq = d.create_cq(6);
        let qp = d.create_qp(&cq, &cq);
        let av = AddressVector {
            dmac,
            ..Driver::path(0, 8)
        };
        d.to_init(qp.qpn).unwrap();
        d.to_rtr(qp.qpn, 77, av).unwrap();
        let path = Path {
            dmac: MAC,
            smac: [2, 0, 0, 0, 7, 7],
            sgid: av.dgid,
            dgid: Driver::path(0, 0).dgid,
            ..sent.path
        };
        let packet = Packet {
            dst_qpn: qp.qpn,
            psn: 0xff_fffe,
            ..sent.packet
        };
        let bytes = emitted(&path, &packet);
        d.device.receive_frame(&d.ram, &bytes, d.now);
        let expected = if is_heard { 0xff_ffff } else { 0xff_fffe };
        assert_eq!(d.query_qp(qp.qpn).expected_psn.get(), expected, "{dmac:x?}");
    }
}

#[test]
fn a_peer_stays_the_peer_if_the_port_gets_its_gid() {
    let dmac = [2, 0, 0, 0, 0, 8];
    let there = AddressVector {
        dmac,
        ..Driver::path(0, 8)
    };
    let (mut d, mut qp, _) = far_at(Config::default(), there);
    let write = SendWr::new(WqeOpcode::RdmaWrite, 1, &[]);
    d.post_send(&mut qp, &write);
    assert_eq!(frames(&mut d).len(), 1);
    // By mistake the port gets the GID of the peer, with another MAC address.
    d.set_gid_of(5, [10, 0, 0, 9], [2, 0, 0, 0, 0, 9]);
    d.post_send(&mut qp, &write);
    let sent = frames(&mut d);
    assert_eq!(sent.len(), 1);
    let path = frame::parse(&sent[0]).unwrap().path;
    assert_eq!((path.dgid, path.dmac), (there.dgid, dmac));
}

#[test]
fn a_gid_accepts_frames_in_its_vlan_only() {
    for vlan in [None, Some(123)] {
        let mut d = Driver::new();
        let mac = MAC;
        set_own(&mut d, 4, vlan.unwrap_or(NO_VLAN), mac);
        let to = AddressVector {
            dgid: [0xfd; 16],
            ..Driver::path(4, 8)
        };
        let sent = leaves_by(NO_VLAN, [2; 6], to);
        let there = frame::parse(&sent).unwrap();
        for tag in [None, Some(123), Some(124)] {
            let path = Path {
                dmac: mac,
                dgid: [0xfe; 16],
                sgid: [0xfd; 16],
                vlan: tag,
                ..there.path
            };
            let bytes = emitted(&path, &there.packet);
            assert_eq!(
                d.device.wants_frame(&bytes),
                tag == vlan,
                "{tag:?} {vlan:?}"
            );
        }
    }
}

#[test]
fn a_connection_accepts_frames_in_the_vlan_of_its_path_only() {
    // The same GID without a VLAN and in VLAN 123, as an interface and a VLAN interface above it
    // have it.
    let (mut d, mac) = (Driver::new(), MAC);
    for (index, vlan) in [(4, NO_VLAN), (5, 123)] {
        set_own(&mut d, index, vlan, mac);
    }
    let to = |index| AddressVector {
        dgid: [0xfd; 16],
        ..Driver::path(index, 8)
    };
    let sent = leaves_by(NO_VLAN, [2; 6], to(4));
    let sent = frame::parse(&sent).unwrap();
    let cq = d.create_cq(6);
    for (own, index) in [(None, 4), (Some(123), 5)] {
        let qp = d.create_qp(&cq, &cq);
        let av = to(index);
        d.to_init(qp.qpn).unwrap();
        d.to_rtr(qp.qpn, 77, av).unwrap();
        let mut heard = Vec::new();
        for vlan in [None, Some(123)] {
            let path = Path {
                dmac: mac,
                smac: av.dmac,
                sgid: [0xfd; 16],
                dgid: [0xfe; 16],
                vlan,
                ..sent.path
            };
            let packet = Packet {
                dst_qpn: qp.qpn,
                ..sent.packet.clone()
            };
            let bytes = emitted(&path, &packet);
            let before = d.query_qp(qp.qpn).expected_psn.get();
            d.device.receive_frame(&d.ram, &bytes, d.now);
            if d.query_qp(qp.qpn).expected_psn.get() != before {
                heard.push(vlan);
            }
        }
        assert_eq!(heard, [own]);
    }
}

#[test]
fn exceeded_retries_are_counted_for_naks_and_for_timeouts() {
    // The seven retries are used up by sequence NAKs or by timeouts.
    for naks in [true, false] {
        let (mut d, mut qp, mut cq) = far(0);
        d.post_send(&mut qp, &SendWr::new(WqeOpcode::RdmaWrite, 1, &[]));
        let sent = frames(&mut d).remove(0);
        let there = frame::parse(&sent).unwrap();
        let path = Path {
            dmac: MAC,
            smac: there.path.dmac,
            sgid: there.path.dgid,
            dgid: there.path.sgid,
            ..there.path
        };
        let packet = Packet {
            kind: PacketKind::Ack(Aeth {
                syndrome: AethSyndrome::Nak(NakCode::Sequence),
                msn: 0,
            }),
            dst_qpn: qp.qpn,
            ..there.packet
        };
        let nak = emitted(&path, &packet);
        for _ in 0..8 {
            if naks {
                d.device.receive_frame(&d.ram, &nak, d.now);
                d.run();
            }
        }
        if !naks {
            d.pass(3_000_000_000);
        }
        let done = d.poll(&mut cq).unwrap();
        assert_eq!(done.status(), WcStatus::RetryExcErr);
        let cause = match naks {
            true => Syndrome::SequenceRetryExceeded,
            false => Syndrome::RetryExceeded,
        };
        assert_eq!(done.cqe.vendor_err.get(), u32::from(cause.to_raw()));
        let stats = d.device.stats();
        assert_eq!(stats[Counter::ReqTransportRetriesExceeded as usize], 1);
        assert_eq!(
            stats[Counter::PacketSeqErr as usize],
            if naks { 8 } else { 0 }
        );
    }
}

#[test]
fn out_of_order_packets_are_charged_to_the_account_of_the_peer() {
    let (mut there, mut sender, _) = far(0);
    there.post_send(&mut sender, &SendWr::new(WqeOpcode::RdmaWrite, 1, &[]));
    let sent = frame::parse(&frames(&mut there)[0]).unwrap();
    let (mut d, qp, _) = far(0);
    let peer = Driver::path(0, 8).dgid;
    let path = Path {
        dmac: MAC,
        sgid: peer,
        dgid: Driver::path(0, 0).dgid,
        ..sent.path
    };
    // Both packets are ahead of the gap, and both are kept.
    for psn in [0xff_ffff, 0] {
        let packet = Packet {
            dst_qpn: qp.qpn,
            psn,
            ..sent.packet.clone()
        };
        let bytes = emitted(&path, &packet);
        d.device.receive_frame(&d.ram, &bytes, d.now);
    }
    let kept = &mut d.device.shared.kept;
    let taken = KEEP_BYTES - kept.whole().available();
    assert!(taken > 0);
    assert_eq!(kept.of_peer(&peer).available(), PEER_KEEP_BYTES - taken);
    assert_eq!(kept.of_peer(&[9; 16]).available(), PEER_KEEP_BYTES);
}
