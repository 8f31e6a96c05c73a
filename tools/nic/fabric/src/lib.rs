// SPDX-License-Identifier: GPL-2.0 OR MIT

//! An InfiniBand subnet without I/O: channel adapters, switches and links, with the management agents
//! that a subnet manager configures.
//!
//! The crate has no socket, no thread and no clock. The caller passes the time to each call, and
//! knows the guests: the crate only knows which adapters have a guest. The subnet manager
//! is a program in a guest, for example opensm.
//!
//! # One request of the subnet manager
//!
//! 1. The subnet manager sends a subnet management packet (SMP) by QP0 of its adapter, and the caller
//!    passes the datagram to [`Fabric::send`].
//! 2. `fabric/datagrams.rs` moves the SMP from port to port: `agent/smi.rs` has the rules of
//!    directed routes; a LID-routed SMP follows the linear forwarding tables.
//! 3. At its destination, the subnet management agent (`agent/sma.rs`) checks the M_Key, and reads or
//!    writes an attribute. A Set may change a link (`fabric/links.rs`). The response returns by the same route.
//! 4. The caller takes the response from [`Fabric::next_output`], and delivers it to the guest. If an
//!    adapter of a guest was configured, the caller also takes the events for its driver there.
//!
//! # Source files
//!
//! | file | contents |
//! | --- | --- |
//! | `mad.rs`, `mad/` | management datagrams (MADs) and their attributes, to the bit |
//! | `topology.rs`, `topology/` | the topology file: which nodes there are, and which ports are linked |
//! | `counters.rs` | the counters of a port |
//! | `port.rs`, `port/set.rs` | the state of a port, and the rules of Set(PortInfo) |
//! | `forwarding.rs` | the forwarding tables of a switch |
//! | `traps.rs` | traps that wait for their TrapRepress |
//! | `node.rs` | adapters and switches |
//! | `agent.rs`, `agent/` | the agents of a node: SMA, PMA, M_Key, directed routes |
//! | `fabric.rs`, `fabric/` | the whole subnet: forwarding of datagrams and data, links, events, violations of keys |
//!
//! # Links to other fabrics
//!
//! A port of a switch may have a link whose far end is in another fabric
//! ([`Fabric::open_remote_link`]). The caller moves packets over the link, and says when the far end
//! comes and goes. Each packet takes its limits with it, so the bounds hold over all fabrics.
//!
//! # Bounds
//!
//! No input makes the crate loop or grow without limit:
//!
//! * A packet passes at most [`fabric::HOPS`] links. Switches make at most [`fabric::COPIES`] copies of
//!   a multicast packet, which passes each link at most once in each direction, so it reaches no
//!   adapter twice.
//! * An agent makes at most one datagram of a request, and none of a response.
//! * A port has at most one trap of each kind pending, and sends at most ten traps of a kind in a
//!   second.
//!
//! # Guests that must not manage the subnet
//!
//! The adapter of such a guest drops all SMPs of the guest, also responses. The agents of the adapter
//! answer every request to it, and only a subnet manager has SMInfo to answer, so a response of the
//! guest would be a forged one. The agents answer the Gets of the driver, and drop the driver's other SMPs, because a
//! Set of the own LID, P_Keys or link state changes what the other nodes see. [`Fabric::refused_smps`]
//! counts both. As with adapters of hardware, every node with the Q_Key of QP1 and a common
//! partition may read and set the counters of performance management.
//!
//! # Parts that are missing
//!
//! * Routers, enhanced port 0 of switches, and alias GUIDs.
//! * Links other than 4x QDR with an MTU of 4096 bytes and eight data VLs. A subnet manager may lower these.
//! * Default ports for multicast packets without members: such packets are discarded.
//! * The transition of a port from Armed to Active by the first data packet (IBTA 7.2.7): the subnet
//!   manager sends the Set.
//! * PortSamplesControl of performance management, and traps other than 128, 144 and 256
//!   to 258.

#![forbid(unsafe_code)]
// No input, be it a datagram, a topology file or a time, may make the crate panic.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::unreachable,
        clippy::todo,
        clippy::indexing_slicing,
        clippy::string_slice
    )
)]

pub mod agent;
pub mod counters;
pub mod fabric;
pub mod forwarding;
pub mod mad;
pub mod node;
pub mod port;
pub mod topology;
pub mod traps;

pub use fabric::{
    Arrival, Datagram, Fabric, KeyViolation, KeyViolations, LocalEnd, Output, PacketLimits,
    PortEvent, ProcessMad, RouteHeader, ViolatedKey,
};
pub use port::RemoteEnd;
pub use topology::Topology;

/// Time since a moment that the caller chooses and never changes.
pub type Time = std::time::Duration;

/// A port of the subnet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortId {
    /// Index of the node in the topology.
    pub node: usize,
    /// Number of the port: from 1 on, and 0 for the management port of a switch.
    pub port: u8,
}
