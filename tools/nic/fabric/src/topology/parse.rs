// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads topology files. The format is that of `ibnetdiscover` and ibsim: lines `name=value` with the
//! GUIDs and numbers of the next node, a header line for each node, and a line for each linked port.
//!
//! ```text
//! vendid=0x2c9
//! switchguid=0x200001
//! Switch 8 "S1"  # "first switch" base port 0 lid 0 lmc 0
//! [1]    "H1"[1] # "first adapter" lid 0 4xQDR
//! ```
//!
//! A port of a switch may be linked to `"uplink1"`, `"uplink2"` and so on, which are no nodes of the
//! file: the links go to other subnets.
//!
//! Where a node has no GUID, the file gives the same GUIDs as with ibsim. Each link is written at
//! both of its ends. All links have a width of 4x and the speed QDR.

use super::{Identity, NodeKind, NodeSpec, Topology, TopologyError};
use crate::PortId;
use std::collections::HashMap;

/// The first GUIDs that ibsim gives to adapters and switches without one.
const FIRST_GUIDS: (u64, u64) = (0x10_0000, 0x20_0000);
/// The most ports of a node: 255 is no port in a forwarding table.
const MOST_PORTS: u64 = 254;
/// The most bytes of a NodeDescription (IBTA 14.2.5.2).
const LONGEST_DESCRIPTION: usize = 64;

/// One end of a link, as a line describes it.
struct End {
    line: usize,
    port: PortId,
    peer: String,
    peer_port: u8,
}

/// The contents of the lines so far.
struct Reader {
    topology: Topology,
    ends: Vec<End>,
    /// Node of each name.
    names: HashMap<String, usize>,
    /// Line that gave each GUID of a node.
    guids: HashMap<u64, usize>,
    /// The node whose ports follow.
    current: Option<usize>,
    vendor_id: u32,
    device_id: u16,
    system_image_guid: Option<u64>,
    next_adapter_guid: u64,
    next_switch_guid: u64,
}

/// Reads a topology file.
pub fn parse(text: &str) -> Result<Topology, TopologyError> {
    let mut reader = Reader {
        topology: Topology::default(),
        ends: Vec::new(),
        names: HashMap::new(),
        guids: HashMap::new(),
        current: None,
        vendor_id: 0,
        device_id: 0,
        system_image_guid: None,
        next_adapter_guid: FIRST_GUIDS.0,
        next_switch_guid: FIRST_GUIDS.1,
    };
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        reader
            .line(number, line.trim())
            .map_err(|cause| TopologyError {
                line: number,
                cause,
            })?;
    }
    reader.link()?;
    Ok(reader.topology)
}

impl Reader {
    fn line(&mut self, number: usize, line: &str) -> Result<(), String> {
        let keyword: String = line.chars().take_while(char::is_ascii_alphabetic).collect();
        match (line.chars().next(), keyword.as_str()) {
            (Some('#'), _) => Ok(()),
            (None, _) => {
                self.current = None;
                Ok(())
            }
            (Some('['), _) => self.port(number, line),
            (_, "Switch") => self.node(number, NodeKind::Switch, line),
            (_, "Ca" | "Hca") => self.node(number, NodeKind::Adapter, line),
            (_, "Rt") => Err("routers are not supported: only Switch, Ca and Hca are".into()),
            _ => self.assign(line),
        }
    }

    /// A line `name=value`.
    fn assign(&mut self, line: &str) -> Result<(), String> {
        let Some((name, value)) = line.split_once('=') else {
            return Err(format!(
                "`{line}` is none of: a comment (#), name=value, a node (Switch, Ca, Hca), a port ([1] \"NODE\"[1])"
            ));
        };
        let value = value.split(['(', '#']).next().unwrap_or("").trim();
        let number =
            number(value).ok_or_else(|| format!("`{value}` is not a number, as {name} needs"))?;
        let out_of_range = || format!("{name} is {value}, which is out of range");
        match name.trim() {
            "vendid" if number < 1 << 24 => self.vendor_id = number as u32,
            "devid" => self.device_id = u16::try_from(number).map_err(|_| out_of_range())?,
            "sysimgguid" => self.system_image_guid = Some(number),
            "switchguid" if number != 0 => self.next_switch_guid = number,
            "caguid" | "hcaguids" if number != 0 => self.next_adapter_guid = number,
            "width" if number == 2 || number == 3 => {}
            "speed" if number == 7 => {}
            "width" | "speed" => {
                return Err(format!(
                    "{name} is {value}: every link has width 2 (4x) and speed 7 (QDR)"
                ))
            }
            "vendid" | "switchguid" | "caguid" | "hcaguids" => return Err(out_of_range()),
            other => {
                return Err(format!(
                "{other} is not one of vendid, devid, sysimgguid, switchguid, caguid, width, speed"
            ))
            }
        }
        Ok(())
    }

    /// The header line of a node.
    fn node(&mut self, line_number: usize, kind: NodeKind, line: &str) -> Result<(), String> {
        let (head, comment) = line.split_once('#').unwrap_or((line, ""));
        let (name, _) =
            quoted(head).ok_or("the name of the node is missing: write TYPE PORTS \"NAME\"")?;
        let ports = head
            .split_whitespace()
            .nth(1)
            .and_then(number)
            .filter(|n| (1..=MOST_PORTS).contains(n));
        let ports = ports.ok_or_else(|| {
            format!("the number of ports of {name} is missing, or not between 1 and {MOST_PORTS}")
        })?;
        let description = describe(comment).unwrap_or_else(|| name.to_string());
        if description.len() > LONGEST_DESCRIPTION {
            return Err(format!(
                "the description of {name} has {} bytes, {LONGEST_DESCRIPTION} are allowed",
                description.len()
            ));
        }
        let index = self.topology.nodes.len();
        if self.names.insert(name.to_string(), index).is_some() {
            return Err(format!("there is another node of the name {name}"));
        }
        let guid = self.take_guid(line_number, kind, ports)?;
        let identity = Identity {
            description,
            guid,
            system_image_guid: self.system_image_guid.take().unwrap_or(guid),
            vendor_id: std::mem::take(&mut self.vendor_id),
            device_id: self.device_id,
        };
        self.topology.nodes.push(NodeSpec {
            name: name.to_string(),
            kind,
            ports: ports as u8,
            identity,
        });
        self.current = Some(index);
        Ok(())
    }

    /// Returns the GUID of the next node. An adapter also needs a GUID for each port.
    fn take_guid(&mut self, line: usize, kind: NodeKind, ports: u64) -> Result<u64, String> {
        let (next, count) = match kind {
            NodeKind::Adapter => (&mut self.next_adapter_guid, ports + 1),
            NodeKind::Switch => (&mut self.next_switch_guid, 1),
        };
        let guid = *next;
        *next = next.wrapping_add(count);
        for one in (0..count).map(|n| guid.wrapping_add(n)) {
            if let Some(other) = self.guids.insert(one, line) {
                return Err(format!(
                    "the GUID {one:#x} belongs to the node in line {other} already"
                ));
            }
        }
        Ok(guid)
    }

    /// The line of a linked port.
    fn port(&mut self, line_number: usize, line: &str) -> Result<(), String> {
        let node = self.current.ok_or(
            "a port needs a line with its node before, without an empty line between them",
        )?;
        let line = line.split_once('#').map_or(line, |(head, _)| head);
        let (head, tail) = line
            .split_once('"')
            .ok_or("the name of the peer is missing: write [PORT] \"NODE\"[PORT]")?;
        let port = in_brackets(head)
            .ok_or("the number of the port is missing: write [PORT] \"NODE\"[PORT]")?;
        let (peer, rest) = tail
            .split_once('"')
            .ok_or("the name of the peer has no closing quote")?;
        let peer_port = match rest.trim_start().starts_with('[') {
            true => in_brackets(rest).ok_or("the number of the peer's port is not a number")?,
            false => 1,
        };
        let spec = self
            .topology
            .nodes
            .get(node)
            .ok_or("the node does not exist")?;
        if port == 0 || port > u64::from(spec.ports) {
            return Err(format!(
                "{} has the ports 1 to {}, but not {port}",
                spec.name, spec.ports
            ));
        }
        let peer_port =
            u8::try_from(peer_port).map_err(|_| format!("no node has a port {peer_port}"))?;
        let port = PortId {
            node,
            port: port as u8,
        };
        if let Some(other) = self.ends.iter().find(|end| end.port == port) {
            return Err(format!(
                "port {} of {} is already linked in line {}",
                port.port, spec.name, other.line
            ));
        }
        self.ends.push(End {
            line: line_number,
            port,
            peer: peer.to_string(),
            peer_port,
        });
        Ok(())
    }

    /// Joins the ends of links.
    fn link(&mut self) -> Result<(), TopologyError> {
        let places: HashMap<PortId, &End> = self.ends.iter().map(|end| (end.port, end)).collect();
        for end in &self.ends {
            let error = |cause| TopologyError {
                line: end.line,
                cause,
            };
            let name = |port: PortId| {
                self.topology
                    .nodes
                    .get(port.node)
                    .map_or("", |node| node.name.as_str())
            };
            let Some(&node) = self.names.get(&end.peer) else {
                let number = self.uplink_number(end).map_err(error)?;
                self.topology.uplinks.push((number, end.port));
                continue;
            };
            let peer = PortId {
                node,
                port: end.peer_port,
            };
            if peer == end.port {
                return Err(error(format!(
                    "port {} of {} is linked to itself",
                    peer.port, end.peer
                )));
            }
            let back = places
                .get(&peer)
                .filter(|other| self.names.get(&other.peer) == Some(&end.port.node));
            if back.is_none_or(|other| other.peer_port != end.port.port) {
                return Err(error(format!(
                    "{} has no line [{}] \"{}\"[{}]: each link is written at both ends",
                    end.peer,
                    peer.port,
                    name(end.port),
                    end.port.port
                )));
            }
            if end.port < peer {
                self.topology.links.push((end.port, peer));
            }
        }
        Ok(())
    }
}

impl Reader {
    /// Returns the number of the uplink to which a port is linked, if the peer is no node of the file.
    fn uplink_number(&self, end: &End) -> Result<usize, String> {
        let number = end.peer.strip_prefix("uplink");
        let number = number.and_then(|number| number.parse().ok());
        let Some(number) = number.filter(|number| *number > 0) else {
            return Err(format!("there is no node {}", end.peer));
        };
        let node = self.topology.nodes.get(end.port.node);
        if node.is_none_or(|node| node.kind != NodeKind::Switch) {
            return Err(format!(
                "{} is linked to an adapter: it needs a switch",
                end.peer
            ));
        }
        match self.topology.uplinks.iter().any(|(n, _)| *n == number) {
            true => Err(format!("another port is linked to {} already", end.peer)),
            false => Ok(number),
        }
    }
}

/// Reads a decimal number, or a hexadecimal one with 0x.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Reads the number in the first pair of brackets.
fn in_brackets(text: &str) -> Option<u64> {
    let (_, tail) = text.split_once('[')?;
    number(tail.split_once(']')?.0.trim())
}

/// Returns the text between the first two quotes, and the text after them.
fn quoted(text: &str) -> Option<(&str, &str)> {
    text.split_once('"')?.1.split_once('"')
}

/// Returns the description in the comment of a node's header line.
fn describe(comment: &str) -> Option<String> {
    let text = comment.trim();
    let text = match text.strip_prefix('"') {
        Some(rest) => rest.split('"').next()?,
        None => [" enhanced port ", " base port ", " lid ", " lmc "]
            .iter()
            .fold(text, |text, end| text.split(end).next().unwrap_or(text)),
    };
    (!text.is_empty()).then(|| text.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "\
# Topology file: generated on Mon Nov 30 2026
vendid=0x2c9
devid=0xbd36
sysimgguid=0x900
switchguid=0x200a(200a)
Switch\t8 \"S-200a\"\t\t# \"first switch\" base port 0 lid 2 lmc 0
[3]\t\"H-1\"[2](100b) \t\t# \"first adapter\" lid 1 4xQDR

caguid=0x1009
Ca\t2 \"H-1\"\t\t# \"first adapter\"
[2](100b) \t\"S-200a\"[3]\t\t# lid 1 lmc 0 \"first switch\" lid 2 4xQDR

Hca 1 \"H-2\"
";

    #[test]
    fn reads_what_ibnetdiscover_prints() {
        let topology = Topology::parse(TWO).unwrap();
        let [switch, first, second] = &topology.nodes[..] else {
            panic!("{topology:?}")
        };
        assert_eq!(
            (switch.kind, switch.ports, switch.identity.guid),
            (NodeKind::Switch, 8, 0x200a)
        );
        assert_eq!(
            (switch.identity.vendor_id, switch.identity.device_id),
            (0x2c9, 0xbd36)
        );
        assert_eq!(
            (
                switch.identity.system_image_guid,
                first.identity.system_image_guid
            ),
            (0x900, 0x1009)
        );
        assert_eq!(first.identity.description, "first adapter");
        assert_eq!(
            (second.identity.description.as_str(), second.identity.guid),
            ("H-2", 0x100c)
        );
        let link = (PortId { node: 0, port: 3 }, PortId { node: 1, port: 2 });
        assert_eq!(topology.links, [link]);
        assert_eq!(topology.find("first switch"), Some(0));
        assert_eq!(topology.adapters().collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn ports_of_switches_may_be_linked_to_uplinks() {
        let topology =
            Topology::parse("Switch 3 \"a\"\n[3] \"uplink2\"[1]\n[1] \"uplink1\"").unwrap();
        let port = |port| PortId { node: 0, port };
        assert_eq!(topology.uplinks, [(2, port(3)), (1, port(1))]);
        assert_eq!(topology.links, []);
        // A node of the file may have such a name.
        let text = "Switch 1 \"uplink1\"\n[1] \"b\"\n\nCa 1 \"b\"\n[1] \"uplink1\"\n";
        assert_eq!(Topology::parse(text).unwrap().uplinks, []);
    }

    #[test]
    fn errors_name_the_line_and_the_cause() {
        let errors = [
            ("Switch 8 \"a\"\n[9] \"a\"[1]", "line 2: a has the ports 1 to 8, but not 9"),
            ("Switch 8 \"a\"\n[1] \"b\"[1]", "line 2: there is no node b"),
            ("Switch 8 \"a\"\n[1] \"b\"[2]\n\nCa 2 \"b\"\n", "line 2: b has no line [2] \"a\"[1]: each link is written at both ends"),
            ("Switch 8 \"a\"\n[1] \"a\"[1]", "line 2: port 1 of a is linked to itself"),
            ("Switch 8 \"a\"\n[1] \"a\"[2]\n[1] \"a\"[2]", "line 3: port 1 of a is already linked in line 2"),
            ("Ca 1 \"a\"\n\nCa 1 \"a\"", "line 3: there is another node of the name a"),
            ("caguid=5\nCa 1 \"a\"\ncaguid=6\nCa 1 \"b\"", "line 4: the GUID 0x6 belongs to the node in line 2 already"),
            ("\n[1] \"a\"[2]", "line 2: a port needs a line with its node before, without an empty line between them"),
            ("Ca 1 \"a\"\n[1] \"uplink1\"", "line 2: uplink1 is linked to an adapter: it needs a switch"),
            ("Switch 2 \"a\"\n[1] \"uplink0\"", "line 2: there is no node uplink0"),
            ("Switch 2 \"a\"\n[1] \"uplink2\"\n[2] \"uplink2\"", "line 3: another port is linked to uplink2 already"),
            ("Switch 255 \"a\"", "line 1: the number of ports of a is missing, or not between 1 and 254"),
            ("Switch 8", "line 1: the name of the node is missing: write TYPE PORTS \"NAME\""),
            ("vendid=0x1000000", "line 1: vendid is 0x1000000, which is out of range"),
            ("speed=1", "line 1: speed is 1: every link has width 2 (4x) and speed 7 (QDR)"),
            ("Rt 2 \"r\"", "line 1: routers are not supported: only Switch, Ca and Hca are"),
        ];
        for (text, expected) in errors {
            assert_eq!(
                Topology::parse(text).unwrap_err().to_string(),
                expected,
                "{text}"
            );
        }
    }
}
