// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A peer that sends faster than the device works takes no turns from other queue pairs, and makes
//! no queue grow.

use super::port::{emitted, far, frames};
use crate::mock::{SendWr, MAC};
use verbena_abi::cqe::WcStatus;
use verbena_abi::wqe::WqeOpcode;
use verbena_transport::frame;
use verbena_transport::wire::Path;

#[test]
fn answers_to_a_flood_of_duplicates_take_no_turns_from_others() {
    /// More copies than a slice has steps, received in portions.
    const COPIES: usize = 512;
    const PORTION: usize = 256;
    let (mut there, mut sender, _) = far(0);
    there.post_send(&mut sender, &SendWr::new(WqeOpcode::RdmaWrite, 1, &[]));
    let sent = frame::parse(&frames(&mut there)[0]).unwrap();
    let (mut d, qp, _) = far(0);
    let path = Path {
        dmac: MAC,
        smac: sent.path.dmac,
        sgid: sent.path.dgid,
        dgid: sent.path.sgid,
        ..sent.path
    };
    let packet = verbena_transport::Packet {
        dst_qpn: qp.qpn,
        ..sent.packet
    };
    assert!(packet.ack_req);
    let bytes = emitted(&path, &packet);
    // Two other queue pairs of the same device.
    let mut cq = d.create_cq(6);
    let (mut a, b) = (d.create_qp(&cq, &cq), d.create_qp(&cq, &cq));
    d.connect(&a, &b);
    d.post_send(&mut a, &SendWr::new(WqeOpcode::RdmaWrite, 1, &[]));
    let mut answers = 0;
    for _ in 0..8 {
        for _ in 0..COPIES / PORTION {
            let copies = std::iter::repeat_n(&bytes[..], PORTION);
            d.device.receive_frames(&d.ram, copies, d.now);
        }
        d.device.run_slice(&d.ram, d.now);
        answers += std::iter::from_fn(|| d.device.next_frame()).count();
        assert!(d.device.shared.outgoing.len() < COPIES);
    }
    assert!(answers >= 8 * COPIES);
    assert_eq!(d.drain(&mut cq), [(1, WcStatus::Success)]);
}
