// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The port: what leaves by it and what comes in.

use crate::mock::{CqHandle, Driver, QpHandle, SendWr};
use std::rc::Rc;
use verbena_abi::stats::Counter;
use verbena_abi::wqe::WqeOpcode;
use verbena_roce::packet::{Aeth, AethSyndrome, Kind, Packet, Payload, Transport};
use verbena_roce::wire::{frame, icrc, ipv4_to_gid, opcode, Path};

/// A queue pair in RTS whose peer is at another machine, with this traffic class.
fn far(traffic_class: u8) -> (Driver, QpHandle, CqHandle) {
    let mut d = Driver::new();
    let cq = d.create_cq(6);
    let qp = d.create_qp(&cq, &cq);
    let mut av = Driver::path(0, 8);
    av.traffic_class = traffic_class;
    d.to_init(qp.qpn).unwrap();
    d.to_rtr(qp.qpn, 77, av).unwrap();
    d.to_rts(qp.qpn).unwrap();
    (d, qp, cq)
}

/// The frames that leave.
fn frames(d: &mut Driver) -> Vec<Rc<Vec<u8>>> {
    d.run();
    std::iter::from_fn(|| d.device.next_frame()).collect()
}

#[test]
fn the_dscp_leaves_and_the_ecn_bits_do_not() {
    for (class, sent) in [(0xff, 0xfc), (0xb9, 0xb8), (0x01, 0), (0x68, 0x68)] {
        let (mut d, mut qp, _) = far(class);
        d.post_send(&mut qp, &SendWr::new(WqeOpcode::RdmaWrite, 1, &[]));
        let all = frames(&mut d);
        assert_eq!(all.len(), 1);
        assert_eq!(frame::parse(&all[0]).unwrap().path.traffic_class, sent);
    }
}

#[test]
fn a_congestion_notification_is_counted_as_one() {
    let (mut d, qp, _) = far(0);
    // 16 reserved bytes behind the BTH.
    let packet = Packet {
        transport: Transport::Rc,
        kind: Kind::Ack(Aeth {
            syndrome: AethSyndrome::Ack { credits: 0 },
            msn: 0,
        }),
        first: true,
        last: true,
        solicited: false,
        ack_req: false,
        pkey: 0xffff,
        dst_qpn: qp.qpn,
        src_qpn: 0,
        psn: 0,
        psns: 1,
        datagram: None,
        payload: Payload::from_bytes(&[0; 12]),
    };
    let path = Path {
        sgid: ipv4_to_gid([10, 0, 0, 9]),
        dgid: ipv4_to_gid([10, 0, 0, 1]),
        ..Path::default()
    };
    let mut bytes = Vec::new();
    let filled: Result<(), ()> = frame::emit(&path, &packet, &mut bytes, |room| {
        room.fill(0);
        Ok(())
    });
    filled.unwrap();
    let end = bytes.len() - icrc::LEN;
    bytes[end - opcode::CNP_PAYLOAD..end].fill(0);
    bytes[14 + 20 + 8] = opcode::CNP;
    let crc = icrc::compute(&bytes[14..end]);
    bytes[end..].copy_from_slice(&crc);
    d.device.receive_frame(&d.ram, &bytes, d.now);
    assert_eq!(d.device.own_counters().rx_cnps, 1);
    assert_eq!(d.device.stats()[Counter::RxMalformed as usize], 0);
}
