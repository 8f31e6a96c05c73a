// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The configuration of an InfiniBand port by its agents.

use super::Device;
use crate::device::cmd::qp_attr::NO_PKEY;
use crate::memory::GuestMemory;
use crate::objects::infiniband::InfiniBandPort;
use crate::observation::key_violations::KeyViolations;
use verbena_abi::eqe::EventType;

impl Device {
    /// Sets the configuration of the port. Queue pairs use the P_Keys that their entries of the P_Key
    /// table have now.
    pub fn configure_port(&mut self, configuration: InfiniBandPort) {
        let known = self.shared.port.as_infiniband();
        // The counters of the port change often, its P_Keys seldom.
        let has_known_pkeys = known.is_some_and(|known| known.pkeys == configuration.pkeys);
        self.shared.port.configure(configuration);
        if has_known_pkeys {
            return;
        }
        for qpn in 0..self.qps.len() {
            let Some(qp) = self.qps.get_mut(qpn) else {
                continue;
            };
            let index = qp.env.attr.pkey_index.get();
            let pkey = self.shared.port.pkey(index).unwrap_or(NO_PKEY);
            qp.transport.set_pkey(pkey);
        }
    }

    /// Takes the violations of P_Keys and Q_Keys at the queue pairs since the last call, at most one
    /// entry for each kind of key. The caller reports them to the agents of the port.
    pub fn take_key_violations(&mut self) -> impl Iterator<Item = KeyViolations> {
        self.shared.observers.take_key_violations()
    }

    /// Reports events of the port to the driver.
    pub fn report_port_events<M: GuestMemory>(&mut self, mem: &M, events: &[EventType]) {
        for event in events {
            self.shared.async_event(mem, *event, 0, None);
        }
        self.shared.flush_events(mem);
    }
}
