// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The configuration of an InfiniBand port by its agents.

use super::Device;
use crate::device::cmd::qp_attr::NO_PKEY;
use crate::memory::GuestMemory;
use crate::objects::infiniband::InfiniBandPort;
use verbena_abi::eqe::EventType;

impl Device {
    /// Sets the configuration of the port. Queue pairs use the P_Keys that their entries of the P_Key
    /// table have now.
    pub fn configure_port(&mut self, configuration: InfiniBandPort) {
        self.shared.port.configure(configuration);
        for qpn in 0..self.qps.len() {
            let Some(qp) = self.qps.get_mut(qpn) else {
                continue;
            };
            let index = qp.env.attr.pkey_index.get();
            let pkey = self.shared.port.pkey(index).unwrap_or(NO_PKEY);
            qp.transport.set_pkey(pkey);
        }
    }

    /// Reports events of the port to the driver.
    pub fn report_port_events<M: GuestMemory>(&mut self, mem: &M, events: &[EventType]) {
        for event in events {
            self.shared.async_event(mem, *event, 0, None);
        }
        self.shared.flush_events(mem);
    }
}
