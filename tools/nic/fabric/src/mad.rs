// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Management datagrams (MADs): the common header, the header of subnet management packets (SMPs),
//! and typed attributes (IBTA 13.4, 14.2, 16.1).

pub mod attribute;
pub mod field;
pub mod notice;
pub mod performance;

use field::block;
pub use field::Fields;

/// Number of bytes of a MAD (IBTA 13.4.2).
pub const MAD_LEN: usize = 256;
/// Number of bytes of an attribute in an SMP (IBTA 14.2.1.1).
pub const SMP_DATA_LEN: usize = 64;
/// Offset of the attribute, in SMPs and in MADs of performance management.
const DATA_AT: usize = 64;
/// Offset of InitialPath in SMPs of a directed route.
const INITIAL_PATH_AT: usize = 128;
/// Offset of ReturnPath in SMPs of a directed route.
const RETURN_PATH_AT: usize = 192;
/// Entries of the paths of a directed route (IBTA 14.2.1.2).
pub const PATH_LEN: usize = 64;

/// The permissive LID: the packet is for the management agent of the port that receives it
/// (IBTA 4.1.3).
pub const PERMISSIVE_LID: u16 = 0xffff;
/// The first multicast LID (IBTA 4.1.3).
pub const FIRST_MULTICAST_LID: u16 = 0xc000;

block! {
    /// A management datagram. The fields from M_KEY on exist only in SMPs, those from HOP_POINTER to
    /// DR_DLID only in SMPs of a directed route.
    Mad[MAD_LEN] {
        BASE_VERSION: u8 = 0, 0, 8;
        CLASS: u8 = 1, 0, 8;
        CLASS_VERSION: u8 = 2, 0, 8;
        /// The method, with the response bit as its most significant bit.
        METHOD: u8 = 3, 0, 8;
        RESPONSE: bool = 3, 0, 1;
        STATUS: u16 = 4, 0, 16;
        /// The D bit: the SMP returns to the node that sent the request.
        DIRECTION: bool = 4, 0, 1;
        HOP_POINTER: u8 = 6, 0, 8;
        HOP_COUNT: u8 = 7, 0, 8;
        TRANSACTION_ID: u64 = 8, 0, 64;
        ATTRIBUTE_ID: u16 = 16, 0, 16;
        ATTRIBUTE_MODIFIER: u32 = 20, 0, 32;
        M_KEY: u64 = 24, 0, 64;
        DR_SLID: u16 = 32, 0, 16;
        DR_DLID: u16 = 34, 0, 16;
    }
}

/// Management classes (IBTA 13.4.4).
pub mod class {
    /// LID-routed subnet management.
    pub const SUBNET_LID_ROUTED: u8 = 0x01;
    /// Directed-route subnet management.
    pub const SUBNET_DIRECTED_ROUTE: u8 = 0x81;
    /// Performance management.
    pub const PERFORMANCE: u8 = 0x04;
}

/// Methods (IBTA 13.4.5).
pub mod method {
    /// Reads an attribute.
    pub const GET: u8 = 0x01;
    /// Writes an attribute.
    pub const SET: u8 = 0x02;
    /// Reports an event to the subnet manager.
    pub const TRAP: u8 = 0x05;
    /// Forwards a trap to a subscriber.
    pub const REPORT: u8 = 0x06;
    /// Acknowledges a trap.
    pub const TRAP_REPRESS: u8 = 0x07;
    /// Answers Get and Set.
    pub const GET_RESPONSE: u8 = 0x81;
}

/// Statuses of responses (IBTA 13.4.7).
pub mod status {
    /// Success.
    pub const OK: u16 = 0;
    /// The version of the class is not supported.
    pub const BAD_VERSION: u16 = 0x04;
    /// The method is not supported.
    pub const UNSUPPORTED_METHOD: u16 = 0x08;
    /// The attribute, or this method with it, is not supported.
    pub const UNSUPPORTED_ATTRIBUTE: u16 = 0x0c;
    /// A field of the attribute or the attribute modifier is invalid.
    pub const INVALID_VALUE: u16 = 0x1c;
}

/// Attributes of subnet management (IBTA 14.2.5) and of performance management (IBTA 16.1).
pub mod attribute_id {
    pub const CLASS_PORT_INFO: u16 = 0x01;
    pub const NOTICE: u16 = 0x02;
    pub const NODE_DESCRIPTION: u16 = 0x10;
    pub const NODE_INFO: u16 = 0x11;
    pub const SWITCH_INFO: u16 = 0x12;
    pub const GUID_INFO: u16 = 0x14;
    pub const PORT_INFO: u16 = 0x15;
    pub const P_KEY_TABLE: u16 = 0x16;
    pub const SL_TO_VL_TABLE: u16 = 0x17;
    pub const VL_ARBITRATION: u16 = 0x18;
    pub const LINEAR_FORWARDING_TABLE: u16 = 0x19;
    pub const MULTICAST_FORWARDING_TABLE: u16 = 0x1b;
    pub const SM_INFO: u16 = 0x20;
    pub const PORT_COUNTERS: u16 = 0x12;
    pub const PORT_COUNTERS_EXTENDED: u16 = 0x1d;
}

impl Mad {
    /// Makes an SMP without data.
    pub fn smp(class: u8, method: u8, attribute: u16, modifier: u32) -> Self {
        let mut mad = Self::default()
            .with(Self::BASE_VERSION, 1)
            .with(Self::CLASS, class)
            .with(Self::CLASS_VERSION, 1)
            .with(Self::METHOD, method)
            .with(Self::ATTRIBUTE_ID, attribute)
            .with(Self::ATTRIBUTE_MODIFIER, modifier);
        if class == class::SUBNET_DIRECTED_ROUTE {
            mad.set(Self::DR_SLID, PERMISSIVE_LID);
            mad.set(Self::DR_DLID, PERMISSIVE_LID);
        }
        mad
    }

    /// Returns true if the MAD is of one of the classes of subnet management, which use QP0 and VL15.
    pub fn is_smp(&self) -> bool {
        let class = self.get(Self::CLASS);
        class == class::SUBNET_LID_ROUTED || class == class::SUBNET_DIRECTED_ROUTE
    }

    /// Returns true if the MAD is an SMP of a directed route.
    pub fn is_directed_route(&self) -> bool {
        self.get(Self::CLASS) == class::SUBNET_DIRECTED_ROUTE
    }

    /// Returns the attribute of an SMP.
    pub fn data(&self) -> [u8; SMP_DATA_LEN] {
        let mut data = [0; SMP_DATA_LEN];
        data.copy_from_slice(&self.0[DATA_AT..DATA_AT + SMP_DATA_LEN]);
        data
    }

    /// Stores the attribute of an SMP.
    pub fn set_data(&mut self, data: &[u8; SMP_DATA_LEN]) {
        self.0[DATA_AT..DATA_AT + SMP_DATA_LEN].copy_from_slice(data);
    }

    /// Returns the data of a MAD of performance management (IBTA 16.1.1).
    pub fn performance_data(&self) -> [u8; MAD_LEN - DATA_AT] {
        let mut data = [0; MAD_LEN - DATA_AT];
        data.copy_from_slice(&self.0[DATA_AT..]);
        data
    }

    /// Stores the data of a MAD of performance management.
    pub fn set_performance_data(&mut self, data: &[u8; MAD_LEN - DATA_AT]) {
        self.0[DATA_AT..].copy_from_slice(data);
    }

    /// Returns an entry of InitialPath: the port by which hop `hop` leaves its node.
    pub fn initial_path(&self, hop: u8) -> u8 {
        self.path_entry(INITIAL_PATH_AT, hop)
    }

    fn path_entry(&self, path: usize, hop: u8) -> u8 {
        let at = path + usize::from(hop) % PATH_LEN;
        self.0.get(at).copied().unwrap_or(0)
    }

    /// Stores the ports of InitialPath from hop 1 on, and the number of hops.
    pub fn set_initial_path(&mut self, ports: &[u8]) {
        for (entry, port) in self.0[INITIAL_PATH_AT + 1..RETURN_PATH_AT]
            .iter_mut()
            .zip(ports)
        {
            *entry = *port;
        }
        self.set(Self::HOP_COUNT, ports.len() as u8);
    }

    /// Returns an entry of ReturnPath: the port by which hop `hop` leaves its node in the other direction.
    pub fn return_path(&self, hop: u8) -> u8 {
        self.path_entry(RETURN_PATH_AT, hop)
    }

    /// Stores an entry of ReturnPath.
    pub fn set_return_path(&mut self, hop: u8, port: u8) {
        let at = RETURN_PATH_AT + usize::from(hop) % PATH_LEN;
        if let Some(entry) = self.0.get_mut(at) {
            *entry = port;
        }
    }

    /// Makes this request its response: method GetResp, a status, and the D bit if the SMP has a
    /// directed route.
    pub fn make_response(&mut self, status: u16) {
        self.set(Self::METHOD, method::GET_RESPONSE);
        self.set(Self::STATUS, status);
        if self.is_directed_route() {
            self.set(Self::DIRECTION, true);
        }
    }
}

/// Returns true if a LID is a multicast LID (IBTA 4.1.3).
pub fn is_multicast(lid: u16) -> bool {
    (FIRST_MULTICAST_LID..PERMISSIVE_LID).contains(&lid)
}

/// Returns true if a LID is a unicast LID (IBTA 4.1.3).
pub fn is_unicast(lid: u16) -> bool {
    lid != 0 && lid < FIRST_MULTICAST_LID
}

/// Returns true if a packet with one P_Key may reach a table entry with the other: the keys are of one
/// partition, and at least one of both is a full member (IBTA 10.9.3).
pub fn p_keys_match(packet: u16, entry: u16) -> bool {
    packet & 0x7fff != 0 && packet & 0x7fff == entry & 0x7fff && (packet | entry) & 0x8000 != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_of_a_directed_route_get() {
        let mut mad = Mad::smp(
            class::SUBNET_DIRECTED_ROUTE,
            method::GET,
            attribute_id::NODE_INFO,
            0,
        );
        mad.set(Mad::TRANSACTION_ID, 0x1234);
        mad.set_initial_path(&[1, 7]);
        let expected = [
            1, 0x81, 1, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0x12, 0x34, 0, 0x11, 0, 0, 0, 0, 0, 0, 0,
            0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff,
        ];
        assert_eq!(mad.0[..36], expected);
        assert_eq!(mad.0[128..131], [0, 1, 7]);
    }

    #[test]
    fn a_response_has_the_direction_bit_only_with_a_directed_route() {
        for (class, expected) in [
            (class::SUBNET_LID_ROUTED, 0x1c),
            (class::SUBNET_DIRECTED_ROUTE, 0x801c),
        ] {
            let mut mad = Mad::smp(class, method::SET, attribute_id::PORT_INFO, 0);
            mad.make_response(status::INVALID_VALUE);
            assert_eq!(
                (mad.get(Mad::STATUS), mad.get(Mad::METHOD)),
                (expected, method::GET_RESPONSE)
            );
        }
    }

    #[test]
    fn limited_members_do_not_reach_each_other() {
        assert!(
            p_keys_match(0x8001, 0x8001)
                && p_keys_match(0x0001, 0x8001)
                && p_keys_match(0x8001, 0x0001)
        );
        assert!(
            !p_keys_match(0x0001, 0x0001)
                && !p_keys_match(0x8001, 0x8002)
                && !p_keys_match(0x8000, 0x8000)
        );
    }
}
