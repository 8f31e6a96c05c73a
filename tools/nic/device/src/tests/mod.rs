// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests of the device's rules, which the fake driver (`mock`) runs without a guest.

mod access;
mod again;
mod areas;
mod capture;
mod chunks;
mod claims;
mod command_slots;
mod completions;
mod contexts;
mod counters;
mod cq_model;
mod cqs;
mod credits;
mod crossing;
mod data;
mod ends;
mod eqs;
mod errors;
mod events;
mod fault_effects;
mod fault_hooks;
mod faults;
mod fields;
mod figures;
mod floods;
mod full_recording;
mod gaps;
mod hostile_guest;
mod infiniband;
mod injected;
mod key_uses;
mod key_violations;
mod keys;
mod lives;
mod load;
mod losses;
mod many_areas;
mod mcast;
mod misbehaving;
mod objects;
mod once;
mod port;
mod recording;
mod refusals;
mod sges;
mod slices;
mod spec_commands;
mod spec_port;
mod srq_ud;
mod srqs;
mod stops;
mod transitions;
mod translations;
mod vanish;
mod watched;
mod windows;
mod work_queues;
mod wqes;
mod xrc;

use crate::mock::{CqHandle, Driver, QpHandle, SrqHandle};
use verbena_abi::cmd::QP_HAS_SRQ;

/// Random number generator with a seed.
struct Dice(u64);

impl Dice {
    /// Returns a number below `sides`.
    fn roll(&mut self, sides: u32) -> u32 {
        self.roll_long(sides.into()) as u32
    }

    /// Returns a number below `sides`, of at most 31 bits.
    fn roll_long(&mut self, sides: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % sides
    }
}

/// Two connected queue pairs, each with a CQ for both its queues.
struct Pair {
    d: Driver,
    a: QpHandle,
    b: QpHandle,
    cq_a: CqHandle,
    cq_b: CqHandle,
}

impl Pair {
    fn new() -> Self {
        Self::on(Driver::new())
    }

    fn on(mut d: Driver) -> Self {
        let (cq_a, cq_b) = (d.create_cq(6), d.create_cq(6));
        let a = d.create_qp(&cq_a, &cq_a);
        let b = d.create_qp(&cq_b, &cq_b);
        d.connect(&a, &b);
        Self {
            d,
            a,
            b,
            cq_a,
            cq_b,
        }
    }

    /// Replaces the second queue pair by one that takes its receives from a new SRQ. The new queue
    /// pair is not connected.
    fn share(&mut self) -> SrqHandle {
        let srq = self.d.create_srq();
        let mut request = self.d.qp_request(&self.cq_b.clone(), &self.cq_b.clone());
        request.flags = QP_HAS_SRQ;
        request.srqn = srq.srqn.into();
        self.b = self.d.create_qp_by(&request).unwrap();
        srq
    }
}

#[cfg(feature = "hostile")]
mod hostile {
    use super::Pair;
    use crate::mock::{Driver, SendWr};
    use crate::Config;
    use verbena_abi::wqe::WqeOpcode;

    #[test]
    fn a_hostile_device_gives_wrong_completions_and_replies() {
        let mut p = Pair::on(Driver::with(Config::default()));
        p.d.device.shared.hostile = crate::hostile::Hostile::new(Some(3));
        let (mut wrong_cqes, mut wrong_replies) = (0, 0);
        for i in 0..2000u64 {
            let wr = SendWr::new(WqeOpcode::RdmaWrite, i, &[]);
            p.d.post_send(&mut p.a, &wr);
            p.d.run();
            let mut done = vec![];
            while let Some(d) = p.d.poll(&mut p.cq_a) {
                done.push(d);
            }
            let right = done.len() == 1
                && done[0].cqe.wr_id.get() == i
                && done[0].cqe.qpn.get() == p.a.qpn
                && done[0].tail.status == 0;
            wrong_cqes += u32::from(!right);
            let reply =
                p.d.query_stats(None, verbena_abi::stats::NUM_COUNTERS as u32);
            wrong_replies += u32::from(reply.is_err());
        }
        assert!(wrong_cqes > 10 && wrong_replies > 10);
    }
}
