// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Eight senders share a link of 10 Gbit/s on a virtual clock: a short form of `scripts/sim
//! --fairness`.

use verbena_lab_transport::fairness::{run, FairnessResult};
use verbena_lab_transport::flows::FlowLoad;
use verbena_transport::host::WqeOpcode;

const SENDERS: usize = 8;
const MS: u64 = 1_000_000;

/// Runs the senders. Each begins 20 ms after the one before it, and half a second is measured after
/// all have begun.
fn share(opcode: WqeOpcode, mark: u64, controls: bool) -> FairnessResult {
    let shape = FlowLoad {
        senders: SENDERS,
        opcode,
        mark,
        ..FlowLoad::default()
    };
    run(&shape, 20 * MS, 500 * MS, controls)
}

#[test]
fn senders_share_a_link_that_marks_and_leave_no_queue() {
    for opcode in [WqeOpcode::RdmaWrite, WqeOpcode::RdmaRead] {
        let free = share(opcode, 0, false);
        let got = share(opcode, 40_000, true);
        let (least, most) = got.spread();
        assert!(least >= 900 && most <= 1100, "{opcode:?}: {:?}", got.shares);
        assert!(got.queue * 5 < free.queue, "{} {}", got.queue, free.queue);
        assert!(got.goodput >= 950, "{opcode:?}: {}", got.goodput);
    }
}

/// Without marks of routers, delay alone keeps the queue short, and every sender gets a share.
#[test]
fn delay_alone_keeps_the_queue_short() {
    for opcode in [WqeOpcode::RdmaWrite, WqeOpcode::RdmaRead] {
        let free = share(opcode, 0, false);
        let got = share(opcode, 0, true);
        let (least, most) = got.spread();
        assert!(least >= 500 && most <= 2000, "{opcode:?}: {:?}", got.shares);
        assert!(got.queue * 4 < free.queue, "{} {}", got.queue, free.queue);
        assert!(got.goodput >= 950, "{opcode:?}: {}", got.goodput);
    }
}
