// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The GID table and the MTU of the port, and their use by paths.

use super::*;
use crate::device::parts::egress::MAX_FRAMES;
use crate::mock::{gid, SendWr, MAC};
use crate::Config;
use verbena_abi::cmd::*;
use verbena_abi::cqe::WcStatus;
use verbena_abi::ctx::{qp_mask as m, AddressVector, QpAttr, QpState};
use verbena_abi::stats::Counter;
use verbena_abi::wqe::WqeOpcode;
use verbena_transport::frame;
use verbena_transport::wire::Path;

fn set(d: &mut Driver, index: u16, valid: u8, address: [u8; 16]) {
    d.must(&SetGid {
        index: index.into(),
        valid,
        vlan: NO_VLAN.into(),
        mac: [2, 0, 0, 0, 0, 1],
        gid: address,
        port: 1,
        gid_type: GID_TYPE_ROCE_V2,
        ..Default::default()
    });
}

/// Returns a queue pair in RTS with a path from a GID of the port to this GID, of another machine
/// or of the port.
fn from_to(d: &mut Driver, cq: &CqHandle, from: u16, to: [u8; 16]) -> QpHandle {
    let qp = d.create_qp(cq, cq);
    let mut av = Driver::path(from, 0);
    av.dgid = to;
    d.to_init(qp.qpn).unwrap();
    d.to_rtr(qp.qpn, 77, av).unwrap();
    d.to_rts(qp.qpn).unwrap();
    qp
}

/// Posts a WRITE. Returns true if its packet leaves the device.
fn leaves(d: &mut Driver, qp: &mut QpHandle) -> bool {
    d.post_send(qp, &SendWr::new(WqeOpcode::RdmaWrite, 1, &[]));
    d.run();
    let count = std::iter::from_fn(|| d.device.next_frame()).count();
    assert!(count <= 1);
    count == 1
}

#[test]
fn a_gid_is_local_while_an_entry_has_it() {
    let mut d = Driver::new();
    let cq = d.create_cq(6);
    let twice = gid([10, 0, 0, 77]);
    let mut qp = from_to(&mut d, &cq, 0, twice);
    assert!(leaves(&mut d, &mut qp), "no entry has the GID");
    // The GID is set in the first free entry and in the last one, which are not adjacent.
    set(&mut d, 2, 1, twice);
    set(&mut d, 255, 1, twice);
    set(&mut d, 3, 1, gid([10, 0, 0, 78]));
    assert!(!leaves(&mut d, &mut qp));
    set(&mut d, 2, 0, twice);
    assert!(!leaves(&mut d, &mut qp), "the last entry still has the GID");
    // Another GID replaces it.
    set(&mut d, 255, 1, gid([10, 0, 0, 79]));
    assert!(leaves(&mut d, &mut qp));
    set(&mut d, 3, 1, twice);
    assert!(!leaves(&mut d, &mut qp));
}

#[test]
fn a_path_needs_a_source_gid_that_is_set() {
    let mut d = Driver::new();
    let cq = d.create_cq(6);
    let there = gid([10, 0, 0, 9]);
    let qp = d.create_qp(&cq, &cq);
    d.to_init(qp.qpn).unwrap();
    for (index, valid) in [(2, false), (255, false), (256, false), (0xffff, false)] {
        let mut av = Driver::path(index, 0);
        av.dgid = there;
        assert_eq!(d.to_rtr(qp.qpn, 77, av).is_ok(), valid, "{index}");
    }
    set(&mut d, 255, 1, gid([10, 0, 0, 200]));
    let mut qp = from_to(&mut d, &cq, 255, there);
    d.post_send(&mut qp, &SendWr::new(WqeOpcode::RdmaWrite, 1, &[]));
    d.run();
    let sent = frame::parse(&d.device.next_frame().unwrap()).unwrap();
    assert_eq!(sent.path.sgid, gid([10, 0, 0, 200]));
    // The path was looked up already, so a change of the entry does not affect it.
    set(&mut d, 255, 0, [0; 16]);
    assert!(leaves(&mut d, &mut qp));
}

#[test]
fn source_ports_differ_between_queue_pairs_and_stay_the_same() {
    let mut d = Driver::new();
    let cq = d.create_cq(6);
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..20 {
        let mut qp = from_to(&mut d, &cq, 0, gid([10, 0, 0, 9]));
        let mut ports = vec![];
        for _ in 0..2 {
            d.post_send(&mut qp, &SendWr::new(WqeOpcode::RdmaWrite, 1, &[]));
            d.run();
            let bytes = d.device.next_frame().unwrap();
            ports.push(frame::parse(&bytes).unwrap().path.udp_sport);
        }
        assert!(ports[0] == ports[1] && ports[0] >= 0xc000);
        seen.insert(ports[0]);
    }
    assert_eq!(seen.len(), 20);
}

fn set_mtu(d: &mut Driver, up: u8, mtu: u8) {
    d.must(&SetPort {
        up,
        mtu,
        port: 1,
        ..Default::default()
    });
}

#[test]
fn a_payload_may_be_as_long_as_the_ports_mtu() {
    for mtu in 1..=5u8 {
        let mut d = Driver::new();
        set_mtu(&mut d, 1, 5);
        let cq = d.create_cq(6);
        let (at, key) = d.region(8192, 1);
        let most = 128u32 << mtu;
        for (length, passes) in [(most, true), (most + 4, mtu == 5), (most - 1, true)] {
            set_mtu(&mut d, 1, 5);
            let qp = d.create_qp(&cq, &cq);
            d.to_init(qp.qpn).unwrap();
            let attr = QpAttr {
                qp_state: QpState::Rtr.to_raw(),
                path_mtu: 5,
                dest_qpn: 77.into(),
                ..Default::default()
            };
            let mask = m::STATE
                | m::AV
                | m::PATH_MTU
                | m::DEST_QPN
                | m::RQ_PSN
                | m::MAX_DEST_RD_ATOMIC
                | m::MIN_RNR_TIMER;
            d.modify_av(qp.qpn, mask, attr, Driver::path(0, 8)).unwrap();
            d.to_rts(qp.qpn).unwrap();
            set_mtu(&mut d, 1, mtu);
            let before = d.device.stats()[Counter::TxOverMtu as usize];
            let mut qp = qp;
            let write = SendWr::new(WqeOpcode::RdmaWrite, 1, &[(at, length, key)]);
            d.post_send(&mut qp, &write);
            d.run();
            let sent = std::iter::from_fn(|| d.device.next_frame()).count();
            // With the largest MTU, a longer message is two packets.
            let expected = if length > 4096 {
                2
            } else {
                usize::from(passes)
            };
            assert_eq!(sent, expected, "{length} of MTU {mtu}");
            let over = d.device.stats()[Counter::TxOverMtu as usize] - before;
            assert_eq!(over, u64::from(!passes));
        }
    }
}

#[test]
fn a_smaller_mtu_of_the_port_does_not_affect_local_packets() {
    for wire_local in [false, true] {
        let mut p = Pair::on(Driver::with(Config {
            wire_local,
            ..Default::default()
        }));
        let (at, key) = p.d.region(8192, 1);
        set_mtu(&mut p.d, 1, 1);
        let wr = SendWr::new(WqeOpcode::RdmaWrite, 1, &[(at, 4096, key)]).to(at + 4096, key);
        p.d.post_send(&mut p.a, &wr);
        assert_eq!(p.d.drain(&mut p.cq_a), [(1, WcStatus::Success)]);
        assert_eq!(p.d.device.stats()[Counter::TxOverMtu as usize], 0);
    }
}

#[test]
fn a_path_mtu_is_at_most_the_ports() {
    for port in 1..=5u8 {
        for path in 0..=6u8 {
            let mut d = Driver::new();
            set_mtu(&mut d, 1, port);
            let cq = d.create_cq(4);
            let qp = d.create_qp(&cq, &cq);
            d.to_init(qp.qpn).unwrap();
            let attr = QpAttr {
                qp_state: QpState::Rtr.to_raw(),
                path_mtu: path,
                ..Default::default()
            };
            let mask = m::STATE
                | m::AV
                | m::PATH_MTU
                | m::DEST_QPN
                | m::RQ_PSN
                | m::MAX_DEST_RD_ATOMIC
                | m::MIN_RNR_TIMER;
            let told = d.modify_av(qp.qpn, mask, attr, Driver::path(0, 1));
            let expected = (1..=port).contains(&path);
            assert_eq!(told.is_ok(), expected, "{path} of {port}");
        }
    }
}

#[test]
fn a_port_that_is_down_loses_packets() {
    let mut d = Driver::new();
    let cq = d.create_cq(6);
    let mut qp = from_to(&mut d, &cq, 0, gid([10, 0, 0, 9]));
    set_mtu(&mut d, 0, 3);
    assert!(!leaves(&mut d, &mut qp));
    // The lost packet does not leave when the port is up again, but only as a retransmission.
    set_mtu(&mut d, 1, 3);
    d.run();
    assert!(d.device.next_frame().is_none());
    d.pass(1_000_000_000);
    assert!(d.device.next_frame().is_some());
}

#[test]
fn a_new_path_set_in_sqd_is_used() {
    let mut d = Driver::new();
    let cq = d.create_cq(6);
    let mut qp = from_to(&mut d, &cq, 0, gid([10, 0, 0, 9]));
    let local = |d: &Driver, qpn: u32| {
        let qp = d.device.qps.get(qpn).unwrap();
        qp.transport.attr().local_peer
    };
    assert!(!local(&d, qp.qpn));
    d.move_to(qp.qpn, QpState::Sqd).unwrap();
    // To a GID of the port, so that packets do not leave.
    d.modify_av(qp.qpn, m::AV, QpAttr::default(), Driver::path(1, 0))
        .unwrap();
    assert!(local(&d, qp.qpn));
    assert_eq!(d.query_qp(qp.qpn).av, Driver::path(1, 0));
    d.move_to(qp.qpn, QpState::Rts).unwrap();
    assert!(local(&d, qp.qpn), "the new path stays");
    assert!(!leaves(&mut d, &mut qp));
    d.move_to(qp.qpn, QpState::Reset).unwrap();
    assert!(!local(&d, qp.qpn));
}

#[test]
fn fields_for_infiniband_and_path_migration_are_ignored() {
    let mut d = Driver::new();
    let cq = d.create_cq(6);
    let mut seen = vec![];
    for garbage in [0u8, 0xff] {
        let mut qp = d.create_qp(&cq, &cq);
        d.to_init(qp.qpn).unwrap();
        let mut av = Driver::path(0, 8);
        (av.dlid, av.static_rate) = (u16::from_le_bytes([garbage; 2]).into(), garbage);
        av.path_bits = garbage;
        let mut request = ModifyQp {
            qpn: qp.qpn.into(),
            mask: (m::STATE
                | m::AV
                | m::PATH_MTU
                | m::DEST_QPN
                | m::RQ_PSN
                | m::MAX_DEST_RD_ATOMIC
                | m::MIN_RNR_TIMER)
                .into(),
            attr: QpAttr {
                qp_state: QpState::Rtr.to_raw(),
                path_mtu: 3,
                dest_qpn: 77.into(),
                path_mig_state: garbage,
                alt_pkey_index: u16::from_le_bytes([garbage; 2]).into(),
                alt_port_num: garbage,
                alt_timeout: garbage,
                ..Default::default()
            },
            av,
            ..Default::default()
        };
        zerocopy::IntoBytes::as_mut_bytes(&mut request.alt_av).fill(garbage);
        d.must(&request);
        d.to_rts(qp.qpn).unwrap();
        d.post_send(&mut qp, &SendWr::new(WqeOpcode::RdmaWrite, 1, &[]));
        d.run();
        let mut sent = frame::parse(&d.device.next_frame().unwrap()).unwrap().path;
        // The source port differs between queue pairs.
        sent.udp_sport = 0;
        seen.push(sent);
        let attr = d.query_qp(qp.qpn).attr;
        assert_eq!((attr.alt_port_num, attr.alt_timeout), (0, 0));
    }
    assert_eq!(seen[0], seen[1]);
}

#[test]
fn a_local_packet_has_to_match_the_gids_of_both_paths() {
    // One side has another source or destination GID than its peer expects. Both are GIDs of the
    // port.
    for (a, b) in [((2, 1), (1, 0)), ((0, 2), (1, 0))] {
        let mut d = Driver::new();
        d.set_gid(2, [10, 0, 0, 3]);
        let mut cq = d.create_cq(6);
        let (mut x, y) = (d.create_qp(&cq, &cq), d.create_qp(&cq, &cq));
        for (me, peer, (from, to)) in [(&x, &y, a), (&y, &x, b)] {
            d.to_init(me.qpn).unwrap();
            d.to_rtr(me.qpn, peer.qpn, Driver::path(from, to)).unwrap();
            d.to_rts(me.qpn).unwrap();
        }
        d.post_send(&mut x, &SendWr::new(WqeOpcode::RdmaWrite, 1, &[]));
        d.pass(3_000_000_000);
        assert_eq!(d.drain(&mut cq), [(1, WcStatus::RetryExcErr)], "{a:?}");
        assert_eq!(d.query_qp(y.qpn).expected_psn.get(), 0xff_fffe);
    }
}

#[test]
fn a_sender_waits_for_its_wire_and_delays_no_other() {
    let mut p = Pair::on(Driver::new());
    let cq = p.d.create_cq(6);
    let mut far = from_to(&mut p.d, &cq, 0, gid([10, 0, 0, 9]));
    let waiting = MAX_FRAMES / 2;
    p.d.device.egress.fill(waiting);
    let write = SendWr::new(WqeOpcode::RdmaWrite, 1, &[]);
    p.d.post_send(&mut far, &write);
    p.d.post_send(&mut p.a, &write);
    for _ in 0..3 {
        let next = p.d.device.run_slice(&p.d.ram, p.d.now);
        assert!(next.busy, "the remote sender has work");
    }
    assert_eq!(p.d.device.egress.len(), waiting);
    assert!(
        p.d.poll(&mut p.cq_a).is_some(),
        "the local packet does not wait"
    );
    // The waiting frames have left.
    p.d.device.egress.fill(0);
    p.d.run();
    assert_eq!(p.d.device.egress.len(), 1);
}

#[test]
fn frames_beyond_the_limit_are_dropped_and_counted() {
    let mut d = Driver::new();
    let cq = d.create_cq(6);
    let mut qp = from_to(&mut d, &cq, 0, gid([10, 0, 0, 9]));
    d.device.egress.fill(MAX_FRAMES - 1);
    let now = d.now;
    for _ in 0..3 {
        d.post_send(&mut qp, &SendWr::new(WqeOpcode::RdmaWrite, 1, &[]));
        // The packet is sent outside of a turn, as an answer that must not wait.
        assert!(d.device.note_posts(&d.ram, qp.qpn));
        d.device.with_qp(&d.ram, qp.qpn, |transport, host| {
            transport.poll(host, now, &mut verbena_transport::sched::turn())
        });
        d.device.run_slice(&d.ram, now);
        assert_eq!(d.device.egress.len(), MAX_FRAMES);
    }
    // The first frame had room.
    assert_eq!(d.device.take_frames_lost(), 2);
    assert_eq!(d.device.take_frames_lost(), 0);
}

#[test]
fn a_received_frame_completes_and_notifies_at_once() {
    use verbena_abi::doorbell::ArmMode;
    let mut there = Driver::new();
    let cq = there.create_cq(6);
    let mut sender = from_to(&mut there, &cq, 0, gid([10, 0, 0, 9]));
    there.post_send(&mut sender, &SendWr::new(WqeOpcode::Send, 1, &[]));
    there.run();
    let sent = frame::parse(&there.device.next_frame().unwrap()).unwrap();
    let mut d = Driver::new();
    let mut cq = d.create_cq(6);
    let mut qp = from_to(&mut d, &cq, 0, gid([10, 0, 0, 9]));
    d.post_recv(&mut qp, 5, &[]);
    d.arm(&mut cq, ArmMode::Next);
    d.run();
    let mut packet = sent.packet;
    (packet.dst_qpn, packet.psn) = (qp.qpn, 0xff_fffe);
    let path = Path {
        dmac: MAC,
        sgid: gid([10, 0, 0, 9]),
        dgid: gid([10, 0, 0, 1]),
        ..sent.path
    };
    let mut bytes = Vec::new();
    frame::emit::<()>(&path, &packet, &mut bytes, |_| Ok(())).unwrap();
    let later = d.now + 12_345;
    d.device.receive_frame(&d.ram, &bytes, later);
    let event = d.next_event(1).expect("the arm is served");
    assert_eq!(event.number, cq.cqn);
    let done = d.poll(&mut cq).unwrap();
    assert_eq!((done.cqe.wr_id.get(), done.cqe.timestamp.get()), (5, later));
}

#[test]
fn frames_of_a_batch_are_received_except_foreign_and_malformed_ones() {
    use verbena_transport::packet::{PacketKind, Payload, SendTail, Transport};
    let mut p = Pair::new();
    let far = gid([10, 0, 0, 9]);
    let mut qp = from_to(&mut p.d, &p.cq_a, 0, far);
    let dst_qpn = qp.qpn;
    let frame = |psn: u32, dgid| {
        let path = Path {
            dmac: MAC,
            smac: Driver::path(0, 0).dmac,
            sgid: far,
            dgid,
            ..Path::default()
        };
        let packet = verbena_transport::Packet {
            transport: Transport::Rc,
            kind: PacketKind::Send(SendTail::None),
            first: true,
            last: true,
            solicited: false,
            ack_req: false,
            pkey: 0xffff,
            dst_qpn,
            src_qpn: 0,
            psn,
            psns: 1,
            srqn: 0,
            marked: false,
            datagram: None,
            payload: Payload::None,
        };
        let mut bytes = Vec::new();
        frame::emit::<()>(&path, &packet, &mut bytes, |_| Ok(())).unwrap();
        bytes
    };
    let (own, other) = (gid([10, 0, 0, 1]), gid([10, 0, 0, 77]));
    let frames = [
        frame(0xff_fffe, own),
        frame(0xff_ffff, other),
        frame(0xff_ffff, own),
        vec![0; 20],
        frame(0, own),
    ];
    for number in 0..3 {
        p.d.post_recv(&mut qp, number, &[]);
    }
    let now = p.d.now;
    let all = || frames.iter().map(Vec::as_slice);
    p.d.device.receive_frames(&p.d.ram, all(), now);
    let done: Vec<_> =
        p.d.drain(&mut p.cq_a)
            .into_iter()
            .map(|(id, _)| id)
            .collect();
    assert_eq!(done, [0, 1, 2]);
    assert_eq!(p.d.query_qp(qp.qpn).expected_psn.get(), 1);
    // A device in the fatal state ignores frames.
    p.d.device
        .shared
        .regs()
        .set_fatal(verbena_abi::syndrome::Syndrome::EngineFailure);
    p.d.device
        .receive_frames(&p.d.ram, [&frame(1, own)[..]].into_iter(), now);
    assert_eq!(
        p.d.device
            .qps
            .get(qp.qpn)
            .unwrap()
            .transport
            .snapshot()
            .expected_psn,
        1
    );
}

#[test]
fn the_source_port_depends_on_the_qpn() {
    let p = Pair::new();
    let port = |qpn| {
        let path = p.d.device.shared.port.path(&Driver::path(0, 1), qpn, 0);
        path.unwrap().udp_sport
    };
    // All bits of the QPN count, and the port is a dynamic one (0xc000 or above).
    for qpn in [0, 1, 0x3fff, 0x4000, 0x8001, 0xff_ffff, 0x1234] {
        let folded = (qpn & 0x3fff) ^ (qpn >> 14 & 0x3fff);
        assert_eq!(u32::from(port(qpn)), 0xc000 | folded, "{qpn:#x}");
    }
}

#[test]
fn the_source_port_follows_the_flow_label() {
    let p = Pair::new();
    // As the kernel's rdma_flow_label_to_udp_sport computes it: the low 14 bits, XORed with the 6
    // bits above them.
    for (label, port) in [
        (1u32, 0xc001u16),
        (0x3fff, 0xffff),
        (0x4000, 0xc001),
        (0x4001, 0xc000),
        (0xf_ffff, 0xffc0),
        (0xc_def0, 0xdec3),
        // Bits above the 20 bits of a flow label are ignored.
        (0xf0_0001, 0xc001),
    ] {
        let av = AddressVector {
            flow_label: label.into(),
            ..Driver::path(0, 1)
        };
        for qpn in [2, 0xabcdef] {
            let path = p.d.device.shared.port.path(&av, qpn, 0).unwrap();
            assert_eq!(path.udp_sport, port, "{label:#x}");
        }
    }
}
