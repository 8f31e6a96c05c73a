// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Partitions (IBTA 10.9): the P_Keys of the packets that a queue pair accepts.

use super::responder::Responder;
use super::{Core, Qp, QpType};
use crate::host::{pkeys_match, Host, ViolatedKey};
use crate::packet::Packet;

impl Core {
    /// True if the P_Key of a packet matches that of the queue pair, or if the queue pair also
    /// accepts other P_Keys. Packets of other partitions are dropped.
    #[inline]
    pub(crate) fn is_in_partition<H: Host>(&self, host: &H, pkey: u16) -> bool {
        pkeys_match(pkey, self.attr.pkey) || self.accepts_other_pkey(host, pkey)
    }

    /// QP0 checks no P_Key (IBTA 10.9.8), and QP1 accepts each P_Key that matches an entry of the
    /// port's table (IBTA 10.9.3).
    #[inline(never)]
    fn accepts_other_pkey<H: Host>(&self, host: &H, pkey: u16) -> bool {
        match self.config.qp_type {
            QpType::Smi => true,
            QpType::Gsi => host.has_pkey(pkey),
            _ => false,
        }
    }

    /// Drops a packet of another partition, and reports the violation.
    #[cold]
    pub(crate) fn drop_for_pkey<H: Host>(&mut self, host: &mut H, packet: &Packet) {
        self.counters.dropped_pkey += 1;
        if Responder::is_receiving(self.state) {
            host.on_key_violation(ViolatedKey::PKey, packet);
        }
    }
}

impl Qp {
    /// Sets the P_Key that the queue pair sends and receives with, because its entry of the P_Key
    /// table has changed.
    pub fn set_pkey(&mut self, pkey: u16) {
        self.core.attr.pkey = pkey;
    }
}
