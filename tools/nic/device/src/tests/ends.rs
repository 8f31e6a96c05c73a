// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The effects of the destruction and of the reset of a queue pair on its pending work.

use super::*;
use crate::mock::SendWr;
use crate::Config;
use verbena_abi::cmd::*;
use verbena_abi::ctx::QpState;
use verbena_abi::wqe::WqeOpcode;
use verbena_transport::frame;

/// Returns a queue pair in RTS whose peer is queue pair `to` of another machine.
pub(super) fn far(d: &mut Driver, cq: &CqHandle, to: u32) -> QpHandle {
    let qp = d.create_qp(cq, cq);
    d.to_init(qp.qpn).unwrap();
    d.to_rtr(qp.qpn, to, Driver::path(0, 8)).unwrap();
    d.to_rts(qp.qpn).unwrap();
    qp
}

/// Issues DESTROY_QP, or MODIFY_QP to RESET, in command slot 4.
fn begin_end(d: &mut Driver, qpn: u32, reset: bool) {
    if reset {
        d.begin_cmd(4, &Driver::move_request(qpn, QpState::Reset));
    } else {
        let request = DestroyQp {
            id: qpn.into(),
            ..Default::default()
        };
        d.begin_cmd(4, &request);
    }
}

#[test]
fn deadlines_and_turns_end_with_the_queue_pair() {
    for reset in [false, true] {
        let mut d = Driver::new();
        let cq = d.create_cq(6);
        let mut qp = far(&mut d, &cq, 77);
        d.post_send(&mut qp, &SendWr::new(WqeOpcode::RdmaWrite, 1, &[]));
        d.run();
        let next = d.device.run_slice(&d.ram, d.now);
        assert!(next.deadline.is_some(), "an acknowledgement is missing");
        d.device.make_ready(qp.qpn);
        begin_end(&mut d, qp.qpn, reset);
        d.device.execute(&d.ram, 4);
        assert_eq!(d.answer(4).0, CmdStatus::Ok);
        assert_eq!(d.device.turns.deadline(qp.qpn), None);
        assert!(reset || d.device.turns.are_none());
        let next = d.device.run_slice(&d.ram, d.now);
        assert_eq!(next.deadline, None);
        // No retransmission follows.
        while d.device.next_frame().is_some() {}
        d.pass(10_000_000_000);
        assert!(d.device.next_frame().is_none());
    }
}

#[test]
fn packets_to_another_machine_that_were_sent_before_the_end_leave() {
    for reset in [false, true] {
        let mut d = Driver::new();
        let cq = d.create_cq(6);
        // The remote peer of `stays` has the same number as `gone`. The packets of both leave.
        let mut gone = far(&mut d, &cq, 77);
        let mut stays = far(&mut d, &cq, gone.qpn);
        let now = d.now;
        for qp in [&mut gone, &mut stays] {
            d.post_send(qp, &SendWr::new(WqeOpcode::RdmaWrite, 1, &[]));
            assert!(d.device.note_posts(&d.ram, qp.qpn));
            d.device.with_qp(&d.ram, qp.qpn, |transport, host| {
                transport.poll(host, now, &mut verbena_transport::sched::turn())
            });
        }
        assert_eq!(
            d.device.shared.outgoing.len(),
            2,
            "both packets wait for delivery"
        );
        begin_end(&mut d, gone.qpn, reset);
        d.run();
        let sent: Vec<u32> = std::iter::from_fn(|| d.device.next_frame())
            .map(|bytes| frame::parse(&bytes).unwrap().packet.dst_qpn)
            .collect();
        assert_eq!(sent, [77, gone.qpn]);
    }
}

#[test]
fn a_local_peer_is_one_whose_packets_need_no_frames() {
    for (wire_local, to, local) in [
        (false, 1, true),
        (false, 8, false),
        (true, 1, false),
        (true, 8, false),
    ] {
        let mut d = Driver::with(Config {
            wire_local,
            ..Default::default()
        });
        let cq = d.create_cq(6);
        let qp = d.create_qp(&cq, &cq);
        d.to_init(qp.qpn).unwrap();
        d.to_rtr(qp.qpn, 77, Driver::path(0, to)).unwrap();
        let attr = d.device.qps.get(qp.qpn).unwrap().transport.attr();
        assert_eq!(attr.local_peer, local, "{wire_local} {to}");
    }
}
