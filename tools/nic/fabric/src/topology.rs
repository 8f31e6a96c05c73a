// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The topology of a subnet: its nodes, and the links between their ports. `topology/parse.rs` reads
//! topologies from the format that `ibnetdiscover` prints and ibsim reads.

mod parse;

use crate::PortId;
use std::fmt;

/// A channel adapter or a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// A channel adapter.
    Adapter,
    /// A switch.
    Switch,
}

/// The names and numbers of a node that no subnet manager changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// NodeDescription without trailing zeros.
    pub description: String,
    /// GUID of the node. The GUID of port n of an adapter is that of the node plus n.
    pub guid: u64,
    /// GUID of the system of which the node is a part.
    pub system_image_guid: u64,
    /// NodeInfo:VendorID, 24 bits.
    pub vendor_id: u32,
    /// NodeInfo:DeviceID.
    pub device_id: u16,
}

/// A node of a topology.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSpec {
    /// The name of the node in the file.
    pub name: String,
    pub kind: NodeKind,
    /// Number of ports, without port 0 of a switch.
    pub ports: u8,
    pub identity: Identity,
}

/// The nodes and links of a subnet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    pub nodes: Vec<NodeSpec>,
    /// The two ends of each link.
    pub links: Vec<(PortId, PortId)>,
}

/// A mistake in a topology file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyError {
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong, and which rule it breaks.
    pub cause: String,
}

impl fmt::Display for TopologyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.cause)
    }
}

impl std::error::Error for TopologyError {}

impl Topology {
    /// Reads a topology file.
    pub fn parse(text: &str) -> Result<Self, TopologyError> {
        parse::parse(text)
    }

    /// Returns the index of the node with a name or a description.
    pub fn find(&self, name: &str) -> Option<usize> {
        let named = self.nodes.iter().position(|node| node.name == name);
        named.or_else(|| {
            self.nodes
                .iter()
                .position(|node| node.identity.description == name)
        })
    }

    /// Returns the indexes of the adapters in the order of the file.
    pub fn adapters(&self) -> impl Iterator<Item = usize> + '_ {
        let is_adapter = |node: &NodeSpec| node.kind == NodeKind::Adapter;
        self.nodes
            .iter()
            .enumerate()
            .filter(move |(_, node)| is_adapter(node))
            .map(|(index, _)| index)
    }
}
