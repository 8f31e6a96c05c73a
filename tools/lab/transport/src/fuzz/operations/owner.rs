// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The operations of the owner of queue pairs: it changes states, attributes and regions, destroys
//! queue pairs and begins anew.

use super::FuzzRun;
use crate::fuzz::adapter::REGIONS;
use crate::fuzz::FuzzInput;
use verbena_abi::ctx::access;
use verbena_transport::host::{EventType, Syndrome};
use verbena_transport::{Qp, QpState};

const STATES: [QpState; 8] = [
    QpState::Rts,
    QpState::Sqd,
    QpState::Rts,
    QpState::Reset,
    QpState::Init,
    QpState::Rtr,
    QpState::Sqe,
    QpState::Err,
];

impl FuzzRun {
    /// Moves a queue pair to any state, with any attributes.
    pub(super) fn change_state(&mut self, node: usize, input: &mut FuzzInput<'_>) {
        let (to, fields) = (input.pick(&STATES), input.u8());
        let mut attr = *self.qps[node].attr();
        if self.qps[node].state() == QpState::Reset || self.qps[node].state() == QpState::Init {
            attr = self.attr(node);
        }
        let has = |bit: u8| fields & bit != 0;
        if has(1) {
            attr.access_flags = u32::from(input.u8()) & access::ALL;
        }
        if has(2) {
            (attr.max_rd_atomic, attr.max_dest_rd_atomic) = (input.u8(), input.u8());
        }
        if has(4) {
            (attr.min_rnr_timer, attr.timeout) = (input.u8(), input.u8());
        }
        if has(8) {
            (attr.retry_cnt, attr.rnr_retry) = (input.u8(), input.u8());
        }
        if has(0x10) {
            (attr.qkey, attr.pkey) = (input.u32(), input.u16());
        }
        if has(0x20) {
            attr.sqd_notify = !attr.sqd_notify;
        }
        // The owner may let any attributes through. These belong to one transition only, but
        // nothing may depend on that.
        if has(0x40) {
            (attr.sq_psn, attr.rq_psn, attr.dest_qpn) = (input.u32(), input.u32(), input.u32());
        }
        if has(0x80) {
            attr.path_mtu = input.pick(&[256, 512, 1024, 2048, 4096, 0, 1500]);
        }
        let _ = self.modify(node, to, &attr);
    }

    /// Reports a failure outside of the queue pair.
    pub(super) fn fail(&mut self, node: usize, input: &mut FuzzInput<'_>) {
        let event = (input.u8() & 1 != 0).then_some(EventType::QpFatal);
        self.qps[node].handle_failure(
            &mut self.adapter.host(node),
            self.now,
            event,
            Syndrome::CqDied,
        );
        self.carry(node);
    }

    /// Takes away the key or the rights of a region, or restores them.
    pub(super) fn change_region(&mut self, input: &mut FuzzInput<'_>) {
        let what = input.u8();
        let index = usize::from(what & 7) % REGIONS;
        let region = &mut self.adapter.arena.regions.0[index];
        match what >> 3 & 7 {
            0..=2 => region.valid = false,
            3 => region.access = u32::from(input.u8()) & access::ALL,
            4 => region.pd ^= 1,
            _ => self.adapter.grant(index),
        }
    }

    /// Resets and connects a queue pair without informing its peer.
    pub(super) fn revive(&mut self, node: usize) {
        let attr = self.attr(node);
        let reset = self.modify(node, QpState::Reset, &attr);
        assert_eq!(reset, Ok(()));
        self.connect(node);
    }

    /// Destroys a queue pair and puts another in its place.
    pub(super) fn replace(&mut self, node: usize) {
        self.qps[node] = Qp::new(self.qps[node].config().clone());
        self.adapter.nodes[node].clear();
        self.connect(node);
    }

    /// Makes the receive rings unreadable.
    pub(super) fn kill_ring(&mut self, node: usize, input: &mut FuzzInput<'_>) {
        if input.u8() & 7 == 0 {
            self.adapter.srq.dead = true;
            self.adapter.nodes[node].recvs.dead = true;
        }
    }
}
