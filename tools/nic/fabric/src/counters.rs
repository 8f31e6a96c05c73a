// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The counters of a port: PortCounters, which stop at their largest value, and
//! PortCountersExtended (IBTA 16.1.3.5, 16.1.4).

use crate::mad::field::Field;
use crate::mad::performance::{PortCounters, PortCountersExtended};
use crate::mad::Fields;

/// The counters of PortCounters in the order of their bits in CounterSelect. PortXmitWait, whose
/// bit is in CounterSelect2, is the last.
const BASIC: [Field<PortCounters, u64>; 17] = [
    PortCounters::SYMBOL_ERROR_COUNTER,
    PortCounters::LINK_ERROR_RECOVERY_COUNTER,
    PortCounters::LINK_DOWNED_COUNTER,
    PortCounters::PORT_RCV_ERRORS,
    PortCounters::PORT_RCV_REMOTE_PHYSICAL_ERRORS,
    PortCounters::PORT_RCV_SWITCH_RELAY_ERRORS,
    PortCounters::PORT_XMIT_DISCARDS,
    PortCounters::PORT_XMIT_CONSTRAINT_ERRORS,
    PortCounters::PORT_RCV_CONSTRAINT_ERRORS,
    PortCounters::LOCAL_LINK_INTEGRITY_ERRORS,
    PortCounters::EXCESSIVE_BUFFER_OVERRUN_ERRORS,
    PortCounters::VL15_DROPPED,
    PortCounters::PORT_XMIT_DATA,
    PortCounters::PORT_RCV_DATA,
    PortCounters::PORT_XMIT_PKTS,
    PortCounters::PORT_RCV_PKTS,
    PortCounters::PORT_XMIT_WAIT,
];

/// The counters of PortCountersExtended in the order of their bits in CounterSelect.
const EXTENDED: [Field<PortCountersExtended, u64>; 8] = [
    PortCountersExtended::PORT_XMIT_DATA,
    PortCountersExtended::PORT_RCV_DATA,
    PortCountersExtended::PORT_XMIT_PKTS,
    PortCountersExtended::PORT_RCV_PKTS,
    PortCountersExtended::PORT_UNICAST_XMIT_PKTS,
    PortCountersExtended::PORT_UNICAST_RCV_PKTS,
    PortCountersExtended::PORT_MULTICAST_XMIT_PKTS,
    PortCountersExtended::PORT_MULTICAST_RCV_PKTS,
];

/// A cause for which a port discards a packet, or an event of its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortError {
    /// The link went down.
    LinkDowned,
    /// The forwarding tables or the map from SL to VL have no port for the packet.
    SwitchRelay,
    /// The packet could not leave by its port.
    XmitDiscard,
    /// The P_Key is not in the table of the port by which the packet would leave.
    XmitConstraint,
    /// The P_Key is not in the table of the port by which the packet came.
    RcvConstraint,
    /// The packet that came over the link is malformed, or its VCRC is wrong.
    Rcv,
}

/// The counters of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    basic: PortCounters,
    extended: PortCountersExtended,
}

impl Counters {
    /// Counts an error.
    pub fn count_error(&mut self, error: PortError) {
        let field = match error {
            PortError::LinkDowned => PortCounters::LINK_DOWNED_COUNTER,
            PortError::SwitchRelay => PortCounters::PORT_RCV_SWITCH_RELAY_ERRORS,
            PortError::XmitDiscard => PortCounters::PORT_XMIT_DISCARDS,
            PortError::XmitConstraint => PortCounters::PORT_XMIT_CONSTRAINT_ERRORS,
            PortError::RcvConstraint => PortCounters::PORT_RCV_CONSTRAINT_ERRORS,
            PortError::Rcv => PortCounters::PORT_RCV_ERRORS,
        };
        self.add(field, 1);
    }

    /// Counts a packet of `length` bytes that left by the port.
    pub fn count_sent(&mut self, length: u32, is_multicast: bool) {
        let words = u64::from(length / 4);
        self.add(PortCounters::PORT_XMIT_DATA, words);
        self.add(PortCounters::PORT_XMIT_PKTS, 1);
        self.add_extended(PortCountersExtended::PORT_XMIT_DATA, words);
        self.add_extended(PortCountersExtended::PORT_XMIT_PKTS, 1);
        let kind = match is_multicast {
            true => PortCountersExtended::PORT_MULTICAST_XMIT_PKTS,
            false => PortCountersExtended::PORT_UNICAST_XMIT_PKTS,
        };
        self.add_extended(kind, 1);
    }

    /// Counts a packet of `length` bytes that came by the port.
    pub fn count_received(&mut self, length: u32, is_multicast: bool) {
        let words = u64::from(length / 4);
        self.add(PortCounters::PORT_RCV_DATA, words);
        self.add(PortCounters::PORT_RCV_PKTS, 1);
        self.add_extended(PortCountersExtended::PORT_RCV_DATA, words);
        self.add_extended(PortCountersExtended::PORT_RCV_PKTS, 1);
        let kind = match is_multicast {
            true => PortCountersExtended::PORT_MULTICAST_RCV_PKTS,
            false => PortCountersExtended::PORT_UNICAST_RCV_PKTS,
        };
        self.add_extended(kind, 1);
    }

    /// Returns the attribute PortCounters, without its selection.
    pub fn basic(&self) -> &PortCounters {
        &self.basic
    }

    /// Returns the attribute PortCountersExtended, without its selection.
    pub fn extended(&self) -> &PortCountersExtended {
        &self.extended
    }

    /// Stores the selected counters of an attribute.
    pub fn set_basic(&mut self, values: &PortCounters) {
        let selected = u32::from(values.get(PortCounters::COUNTER_SELECT))
            | u32::from(values.get(PortCounters::COUNTER_SELECT_2) & 1) << 16;
        for (bit, field) in BASIC.iter().enumerate() {
            if selected >> bit & 1 != 0 {
                self.basic.copy(*field, values);
            }
        }
    }

    /// Stores the selected counters of an attribute.
    pub fn set_extended(&mut self, values: &PortCountersExtended) {
        let selected = values.get(PortCountersExtended::COUNTER_SELECT);
        for (bit, field) in EXTENDED.iter().enumerate() {
            if selected >> bit & 1 != 0 {
                self.extended.copy(*field, values);
            }
        }
    }

    /// Adds the counters of another port, for PortSelect 255.
    pub fn add_port(&mut self, other: &Counters) {
        for field in BASIC {
            self.add(field, other.basic.get(field));
        }
        for field in EXTENDED {
            self.add_extended(field, other.extended.get(field));
        }
    }

    fn add(&mut self, field: Field<PortCounters, u64>, amount: u64) {
        let sum = self.basic.get(field).saturating_add(amount);
        self.basic.set(field, sum.min(field.max()));
    }

    fn add_extended(&mut self, field: Field<PortCountersExtended, u64>, amount: u64) {
        let sum = self.extended.get(field).wrapping_add(amount);
        self.extended.set(field, sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_counters_stop_at_their_largest_value() {
        let mut counters = Counters::default();
        for _ in 0..300 {
            counters.count_error(PortError::LinkDowned);
            counters.count_error(PortError::SwitchRelay);
        }
        assert_eq!(counters.basic().get(PortCounters::LINK_DOWNED_COUNTER), 255);
        assert_eq!(
            counters
                .basic()
                .get(PortCounters::PORT_RCV_SWITCH_RELAY_ERRORS),
            300
        );
    }

    #[test]
    fn a_set_changes_only_selected_counters() {
        let mut counters = Counters::default();
        counters.count_sent(288, false);
        counters.count_received(288, true);
        counters.set_basic(&PortCounters::default().with(PortCounters::COUNTER_SELECT, 1 << 12));
        counters.set_extended(
            &PortCountersExtended::default().with(PortCountersExtended::COUNTER_SELECT, 1 << 7),
        );
        assert_eq!(counters.basic().get(PortCounters::PORT_XMIT_DATA), 0);
        assert_eq!(counters.basic().get(PortCounters::PORT_RCV_DATA), 72);
        assert_eq!(
            counters
                .extended()
                .get(PortCountersExtended::PORT_MULTICAST_RCV_PKTS),
            0
        );
        assert_eq!(
            counters.extended().get(PortCountersExtended::PORT_RCV_PKTS),
            1
        );
    }
}
