// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Delivery of packets: inside the device, through the bytes of a frame, or out.

use crate::device::Device;
use crate::mem::GuestMemory;
use crate::port::Outgoing;
use verbena_abi::stats::Counter;

impl Device {
    /// Delivers a packet that was sent.
    pub(crate) fn deliver<M: GuestMemory>(&mut self, mem: &M, out: Outgoing) {
        if !self.shared.port.up || !out.local {
            return;
        }
        if self.shared.port.loses() {
            return;
        }
        let now = self.shared.now;
        let qpn = out.packet.dst_qpn;
        let expected = self
            .qps
            .get(qpn)
            .is_some_and(|qp| match (&out.packet.datagram, &qp.env.path) {
                (Some(_), _) => true,
                // A connected queue pair hears its peer only.
                (None, Some(path)) => path.sgid == out.path.dgid && path.dgid == out.path.sgid,
                (None, None) => false,
            });
        if !expected {
            self.shared.counters.add(Counter::RxMalformed, 1);
            return;
        }
        self.with_qp(mem, qpn, |transport, host| {
            transport.receive(host, now, out.packet);
        });
        self.make_ready(qpn);
    }

    /// Whether a frame is for the RDMA engine.
    pub fn wants_frame(&self, _frame: &[u8]) -> bool {
        false
    }

    /// A frame from the uplink.
    pub fn receive_frame<M: GuestMemory>(&mut self, _mem: &M, _frame: &[u8], _now: u64) {}
}
