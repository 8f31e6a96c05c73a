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
    /// The ports of switches that are linked to `"uplinkN"`, a switch outside of the file, each with
    /// the number N.
    pub uplinks: Vec<(usize, PortId)>,
}

/// A mistake in a topology file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyError {
    /// The line, counted from 1.
    pub line: usize,
    /// The wrong value, and the rule that it breaks.
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

    /// Returns the switches with their indexes, in the order of the file.
    pub fn switches(&self) -> impl Iterator<Item = (usize, &NodeSpec)> {
        let nodes = self.nodes.iter().enumerate();
        nodes.filter(|(_, node)| node.kind == NodeKind::Switch)
    }

    /// Returns the adapters for a number of guests: the first ones of the file.
    pub fn first_adapters(&self, count: usize) -> Result<Vec<usize>, String> {
        let places: Vec<usize> = self.adapters().take(count).collect();
        if places.len() < count {
            let has = places.len();
            return Err(format!(
                "the topology has {has} adapters, and {count} guests need one each: add adapters to the file"
            ));
        }
        Ok(places)
    }

    /// Returns the adapters for guests by their names or descriptions.
    pub fn named_adapters(&self, names: &[&str]) -> Result<Vec<usize>, String> {
        let mut places = Vec::new();
        for name in names {
            let place = self.find(name).ok_or_else(|| {
                format!("the topology has no node {name}: name a node of the file")
            })?;
            if !self.adapters().any(|adapter| adapter == place) {
                return Err(format!("{name} is a switch: a guest needs an adapter"));
            }
            if places.contains(&place) {
                return Err(format!(
                    "{name} is named twice: each guest needs an adapter of its own"
                ));
            }
            places.push(place);
        }
        Ok(places)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_have_adapters_of_their_own() {
        let text = "Switch 1 \"s\"\nCa 1 \"a\" # \"first\"\nCa 1 \"b\"\n";
        let topology = Topology::parse(text).unwrap();
        assert_eq!(topology.first_adapters(2), Ok(vec![1, 2]));
        assert_eq!(topology.named_adapters(&["b", "first"]), Ok(vec![2, 1]));
        let error = topology.first_adapters(3).unwrap_err();
        assert!(
            error.starts_with("the topology has 2 adapters, and 3 guests"),
            "{error}"
        );
        for (names, expected) in [
            (
                &["x"][..],
                "the topology has no node x: name a node of the file",
            ),
            (&["s"], "s is a switch: a guest needs an adapter"),
            (
                &["a", "first"],
                "first is named twice: each guest needs an adapter of its own",
            ),
        ] {
            assert_eq!(topology.named_adapters(names), Err(expected.into()));
        }
    }
}
