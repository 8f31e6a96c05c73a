// SPDX-License-Identifier: GPL-2.0 OR MIT

//! An InfiniBand subnet without I/O. So far it has the management datagrams (MADs) to the bit, and
//! reads topologies.

#![forbid(unsafe_code)]

pub mod mad;
pub mod topology;

pub use topology::Topology;

/// A port of the subnet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortId {
    /// Index of the node in the topology.
    pub node: usize,
    /// Number of the port: from 1 on, and 0 for the management port of a switch.
    pub port: u8,
}
