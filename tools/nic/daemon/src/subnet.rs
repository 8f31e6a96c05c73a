// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The InfiniBand subnet of the process: the guests' adapters, and the switches and further adapters
//! of the topology file.
//!
//! The packets of a device arrive here as bytes from the LRH to the VCRC. Those to QP0 and QP1 are
//! management datagrams, which pass the agents of the subnet (`tools/nic/fabric`). All others go to
//! the adapters that the forwarding tables name. A subnet manager in a guest fills the tables.
//!
//! A port of a switch may have a link to the switch of another process, over an uplink
//! (`subnet/uplinks.rs`).

mod key_violations;
pub mod link_frame;
mod uplink_link;
mod uplinks;

use crate::policy::mac_text;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;
use uplink_link::UplinkLink;
use verbena_abi::cmd::PortAttr;
use verbena_abi::eqe::EventType;
use verbena_device::{AgentReply, AgentRequest, Crossing, InfiniBandPort};
use verbena_fabric::mad::attribute::PortInfo;
use verbena_fabric::mad::{Fields, Mad};
use verbena_fabric::{
    Arrival, Datagram, Fabric, Output, PacketLimits, PortEvent, PortId, ProcessMad, RouteHeader,
    Topology,
};
use verbena_transport::frame;
use verbena_transport::packet::{
    DatagramHeaders, Packet, PacketKind, Payload, SendTail, Transport,
};
use verbena_transport::wire::{bth, grh, lrh, vcrc, LocalRoute, Path};

/// Highest QPN of management datagrams: that of the GSI.
const GSI_QPN: u32 = 1;
/// The port of each guest's adapter.
const GUEST_PORT: u8 = 1;
/// Ports of the switch of a subnet without a topology file.
const DEFAULT_SWITCH_PORTS: u8 = 36;
/// Largest message in bytes, as QUERY_PORT reports it.
const MAX_MESSAGE: u32 = 1 << 31;

/// A packet or an event for a guest's device.
#[derive(Debug, PartialEq, Eq)]
pub enum Delivery {
    /// A packet from its LRH to its VCRC.
    Packet(Vec<u8>),
    /// A change of the port, with events for the driver. [`Subnet::port`] has the configuration. Some
    /// changes have no event, for example that of the state from DOWN to INIT.
    Change(Vec<EventType>),
}

/// What becomes of a packet that may go to another guest by reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandOver {
    /// The device of this VM receives the packet.
    Device(u8),
    /// The packet goes on as bytes: to the agents, to an uplink, or nowhere.
    Frames,
    /// A switch or a port has discarded the packet.
    Lost,
}

/// The subnet with the adapters of the guests.
pub struct Subnet {
    fabric: Fabric,
    /// Node of each guest's adapter, by the number of the VM.
    nodes: Vec<usize>,
    /// Port GUID of each guest's adapter.
    port_guids: Vec<u64>,
    /// Configuration of the port of each guest's adapter, as last delivered.
    known_ports: Vec<Option<InfiniBandPort>>,
    /// Packets and changes that wait for the caller, each with the number of the VM.
    deliveries: VecDeque<(u8, Delivery)>,
    /// The links to other processes, by the numbers of their uplinks.
    uplinks: Vec<UplinkLink>,
    /// Frames for uplinks that wait for the caller, each with the number of the uplink.
    departures: VecDeque<(usize, Vec<u8>)>,
    /// Frames of uplinks that were refused.
    refused_frames: u64,
    /// Number of refused packets that [`Subnet::take_refused`] has returned.
    reported_refused: u64,
}

/// Returns the GUID of the switch of a subnet without a topology file. It has the bytes of the first
/// guest's GUID (EUI-64) that come from a MAC address, so the switches of two processes differ.
fn default_switch_guid(first: u64) -> u64 {
    let [a, b, c, _, _, d, e, f] = first.to_be_bytes();
    u64::from_be_bytes([b'V', b'R', a, b, c, d, e, f])
}

/// Returns the MAC address of which [`verbena_device::config::node_guid`] has made a GUID.
fn mac_of(guid: u64) -> [u8; 6] {
    let [a, b, c, _, _, d, e, f] = guid.to_be_bytes();
    [a ^ 2, b, c, d, e, f]
}

/// Returns the topology of a subnet without a topology file: one switch, and an adapter for each
/// guest with the GUID that is given for it. The descriptions have the MAC addresses of the guests,
/// and the switch has that of the first one, so that they differ between processes.
pub fn default_topology(guids: &[u64]) -> String {
    let first = guids.first().copied().unwrap_or_default();
    let mac = |guid| mac_text(&mac_of(guid));
    let mut text = format!("switchguid={:#x}\n", default_switch_guid(first));
    let described = mac(first);
    text += &format!("Switch {DEFAULT_SWITCH_PORTS} \"switch\" # \"switch {described}\"\n");
    for n in 1..=guids.len() {
        text += &format!("[{n}] \"guest{n}\"[1]\n");
    }
    for (n, guid) in (1..).zip(guids) {
        let described = mac(*guid);
        text += &format!("\ncaguid={guid:#x}\nCa 1 \"guest{n}\" # \"guest{n} {described}\"\n");
        text += &format!("[1] \"switch\"[{n}]\n");
    }
    text
}

impl Subnet {
    /// Creates a subnet in which the guests have the first adapters of the topology.
    ///
    /// # Errors
    ///
    /// The topology has fewer adapters than there are guests, or an adapter of a guest has several
    /// ports.
    pub fn new(topology: &Topology, guests: usize) -> Result<Self, String> {
        let nodes: Vec<usize> = topology.adapters().take(guests).collect();
        if nodes.len() < guests {
            return Err(format!(
                "the topology has {} adapters for {guests} guests (--socket): add adapters to the file",
                nodes.len()
            ));
        }
        let specs = nodes.iter().filter_map(|node| topology.nodes.get(*node));
        if let Some(spec) = specs.clone().find(|spec| spec.ports != 1) {
            return Err(format!(
                "the adapter {:?} has {} ports: the adapter of a guest has one",
                spec.name, spec.ports
            ));
        }
        let port_guids = specs
            .map(|spec| spec.identity.guid.wrapping_add(1))
            .collect();
        let mut fabric = Fabric::new(topology);
        for node in &nodes {
            fabric.set_guest(*node, true);
        }
        let mut subnet = Self {
            fabric,
            nodes,
            port_guids,
            known_ports: Vec::new(),
            deliveries: VecDeque::new(),
            uplinks: Vec::new(),
            departures: VecDeque::new(),
            refused_frames: 0,
            reported_refused: 0,
        };
        subnet.known_ports = (0..guests).map(|vm| subnet.port(vm as u8)).collect();
        Ok(subnet)
    }

    /// Returns the GUID of the node of a guest's adapter, in network order.
    pub fn node_guid(&self, vm: u8) -> Option<[u8; 8]> {
        let guid = self.port_guids.get(usize::from(vm))?;
        Some(guid.wrapping_sub(1).to_be_bytes())
    }

    /// Forbids a guest to manage the subnet: its port refuses IsSM, and its SMPs are dropped and
    /// counted.
    pub fn forbid_management(&mut self, vm: u8) {
        if let Some(id) = self.port_id(vm) {
            self.fabric.allow_management(id.node, false);
        }
    }

    /// Returns the number of packets that were refused since the last call: SMPs of guests that must
    /// not manage the subnet, and frames of uplinks that are malformed or do not come from the peer.
    pub fn take_refused(&mut self) -> u64 {
        let all = self
            .fabric
            .refused_smps()
            .saturating_add(self.refused_frames);
        all.saturating_sub(std::mem::replace(&mut self.reported_refused, all))
    }

    fn port_id(&self, vm: u8) -> Option<PortId> {
        let node = *self.nodes.get(usize::from(vm))?;
        Some(PortId {
            node,
            port: GUEST_PORT,
        })
    }

    fn vm_of(&self, port: PortId) -> Option<u8> {
        let vm = self.nodes.iter().position(|node| *node == port.node)?;
        u8::try_from(vm).ok()
    }

    /// Returns the configuration of the port of a guest's adapter.
    pub fn port(&self, vm: u8) -> Option<InfiniBandPort> {
        let id = self.port_id(vm)?;
        let info = self.fabric.port_info(id)?;
        let pkeys = self.fabric.p_keys(id)?;
        let guid = self.port_guids.get(usize::from(vm))?;
        let mut gid = [0; 16];
        let (prefix, interface) = gid.split_at_mut(8);
        prefix.copy_from_slice(&info.get(PortInfo::GID_PREFIX).to_be_bytes());
        interface.copy_from_slice(&guid.to_be_bytes());
        Some(InfiniBandPort {
            attributes: port_attributes(&info, pkeys.len()),
            gids: vec![gid],
            pkeys: pkeys.to_vec(),
        })
    }

    /// Forwards a packet of a guest's device.
    pub fn send(&mut self, vm: u8, bytes: &[u8], now: Duration) {
        let Some(from) = self.port_id(vm) else {
            return;
        };
        let Some(header) = parse_route(bytes) else {
            return;
        };
        if header.dest_qpn > GSI_QPN {
            let mut arrivals = Vec::new();
            self.fabric.forward(from, &header.route, &mut arrivals);
            for vm in self.arrive(arrivals, bytes) {
                self.deliveries
                    .push_back((vm, Delivery::Packet(bytes.to_vec())));
            }
        } else if let Some(datagram) = parse_datagram(bytes) {
            self.fabric.send(from, datagram, now);
            self.take_outputs();
        }
    }

    /// Forwards a packet of a guest's device that may go to another guest by reference.
    pub fn hand_over(&mut self, vm: u8, packet: &Crossing) -> HandOver {
        let route = packet.path().and_then(|path| path.local_route);
        let (Some(from), Some(route)) = (self.port_id(vm), route) else {
            return HandOver::Lost;
        };
        let destination = self.fabric.destination(from, route.dlid);
        let Some(to) = destination.filter(|_| packet.dest_qpn() > GSI_QPN) else {
            return HandOver::Frames;
        };
        let mut arrivals = Vec::new();
        for length in packet.packet_lengths() {
            let header = RouteHeader {
                destination_lid: route.dlid,
                sl: packet.path().map_or(0, |path| path.sl),
                p_key: packet.pkey(),
                length,
            };
            self.fabric.forward(from, &header, &mut arrivals);
        }
        // The packets of one message have one route, so that all of them arrive or none.
        let arrived = arrivals.iter().any(|arrival| arrival.port == to);
        match self.vm_of(to).filter(|_| arrived) {
            Some(vm) => HandOver::Device(vm),
            None => HandOver::Lost,
        }
    }

    /// Returns the guests at whose ports a packet arrived, and sends it over the links to other
    /// processes by which it leaves.
    fn arrive(&mut self, arrivals: Vec<Arrival>, bytes: &[u8]) -> Vec<u8> {
        let mut vms = Vec::new();
        for arrival in arrivals {
            match self.vm_of(arrival.port) {
                Some(vm) => vms.push(vm),
                None => self.depart(arrival.port, arrival.limits, bytes),
            }
        }
        vms
    }

    /// Answers a request of a guest's driver to the agents of its port.
    pub fn answer(&mut self, vm: u8, request: &AgentRequest, now: Duration) -> AgentReply {
        let Some(port) = self.port_id(vm) else {
            return AgentReply::Refused;
        };
        let reply = match request {
            AgentRequest::Mad { mad, checks_m_key } => {
                let mad = Mad(**mad);
                match self.fabric.process_mad(port, &mad, *checks_m_key, now) {
                    ProcessMad::Pass => AgentReply::NotForAgents,
                    ProcessMad::Consumed => AgentReply::Consumed,
                    ProcessMad::Reply(mad) => AgentReply::Response(Box::new(mad.0)),
                }
            }
            AgentRequest::SetCapabilities { set, clear } => {
                match self.fabric.set_capabilities(port, *set, *clear, now) {
                    true => AgentReply::Done,
                    false => AgentReply::Refused,
                }
            }
            AgentRequest::SetDescription(text) => {
                self.fabric.set_description(port.node, text, now);
                AgentReply::Done
            }
        };
        self.take_outputs();
        reply
    }

    /// Sends the datagrams that are due.
    pub fn poll(&mut self, now: Duration) {
        self.fabric.poll(now);
        self.take_outputs();
    }

    /// Returns the time of the next call of [`Subnet::poll`].
    pub fn next_deadline(&self) -> Option<Duration> {
        self.fabric.next_deadline()
    }

    /// Takes the next packet or event for a guest's device. The caller takes all of them after each
    /// call.
    pub fn next_delivery(&mut self) -> Option<(u8, Delivery)> {
        self.deliveries.pop_front()
    }

    fn take_outputs(&mut self) {
        let mut events: BTreeMap<u8, Vec<EventType>> = BTreeMap::new();
        while let Some(output) = self.fabric.next_output() {
            match output {
                Output::Datagram(port, datagram) => {
                    if let Some(vm) = self.vm_of(port) {
                        let packet = Delivery::Packet(emit_datagram(&datagram));
                        self.deliveries.push_back((vm, packet));
                    }
                }
                Output::Event(port, event) => {
                    if let Some(vm) = self.vm_of(port) {
                        events.entry(vm).or_default().push(event_type(event));
                    }
                }
                Output::Departure(port, datagram, links) => {
                    let limits = PacketLimits {
                        links,
                        ..PacketLimits::FULL
                    };
                    self.depart(port, limits, &emit_datagram(&datagram));
                }
            }
        }
        self.deliver_changes(&mut events);
        self.say_hello(false);
    }
}

impl Subnet {
    /// Delivers the ports that have changed since the last call, with their events.
    fn deliver_changes(&mut self, events: &mut BTreeMap<u8, Vec<EventType>>) {
        for vm in 0..self.nodes.len() as u8 {
            let port = self.port(vm);
            let events = events.remove(&vm).unwrap_or_default();
            let Some(known) = self.known_ports.get_mut(usize::from(vm)) else {
                continue;
            };
            if *known != port || !events.is_empty() {
                *known = port;
                self.deliveries.push_back((vm, Delivery::Change(events)));
            }
        }
    }
}

fn event_type(event: PortEvent) -> EventType {
    match event {
        PortEvent::PKeyChange => EventType::PkeyChange,
        PortEvent::GidChange => EventType::GidChange,
        PortEvent::LidChange => EventType::LidChange,
        PortEvent::SmChange => EventType::SmChange,
        PortEvent::PortActive => EventType::PortActive,
        PortEvent::PortErr => EventType::PortErr,
        PortEvent::ClientReregister => EventType::ClientReregister,
    }
}

/// Returns the attributes of a port as `ib_query_port` reports them.
fn port_attributes(info: &PortInfo, pkeys: usize) -> PortAttr {
    PortAttr {
        state: info.get(PortInfo::PORT_STATE),
        phys_state: info.get(PortInfo::PORT_PHYSICAL_STATE),
        max_mtu: info.get(PortInfo::MTU_CAP),
        active_mtu: info.get(PortInfo::NEIGHBOR_MTU),
        lid: u32::from(info.get(PortInfo::LID)).into(),
        sm_lid: u32::from(info.get(PortInfo::MASTER_SM_LID)).into(),
        lmc: info.get(PortInfo::LMC),
        sm_sl: info.get(PortInfo::MASTER_SM_SL),
        max_vl_num: info.get(PortInfo::VL_CAP),
        active_width: info.get(PortInfo::LINK_WIDTH_ACTIVE),
        active_speed: u16::from(info.get(PortInfo::LINK_SPEED_ACTIVE)).into(),
        subnet_timeout: info.get(PortInfo::SUBNET_TIMEOUT),
        port_cap_flags: info.get(PortInfo::CAPABILITY_MASK).into(),
        pkey_tbl_len: (pkeys as u16).into(),
        gid_tbl_len: 1.into(),
        max_msg_sz: MAX_MESSAGE.into(),
        bad_pkey_cntr: u32::from(info.get(PortInfo::P_KEY_VIOLATIONS)).into(),
        qkey_viol_cntr: u32::from(info.get(PortInfo::Q_KEY_VIOLATIONS)).into(),
        ..PortAttr::default()
    }
}

/// The fields of a packet that decide where it goes.
struct PacketRoute {
    route: RouteHeader,
    dest_qpn: u32,
}

/// Returns the route of a packet; none for a packet that is malformed before the end of its BTH.
fn parse_route(bytes: &[u8]) -> Option<PacketRoute> {
    let path = frame::peek_infiniband(bytes)?;
    let route = path.local_route?;
    let bth_at = lrh::LEN + if route.has_grh { grh::LEN } else { 0 };
    let bth = bth::View::new(bytes.get(bth_at..)?).ok()?;
    Some(PacketRoute {
        route: RouteHeader {
            destination_lid: route.dlid,
            sl: path.sl,
            p_key: bth.pkey(),
            length: bytes.len().saturating_sub(vcrc::LEN) as u32,
        },
        dest_qpn: bth.dest_qpn(),
    })
}

/// Returns the management datagram in a packet; none if the packet has none.
pub fn parse_datagram(bytes: &[u8]) -> Option<Datagram> {
    let frame = frame::parse_infiniband(bytes).ok()?;
    let (packet, route) = (frame.packet, frame.path.local_route?);
    let headers = packet.datagram.as_deref()?;
    let Payload::Bytes {
        bytes,
        offset,
        length,
    } = &packet.payload
    else {
        return None;
    };
    let end = offset.checked_add(*length)? as usize;
    let mad: [u8; 256] = bytes.get(*offset as usize..end)?.try_into().ok()?;
    Some(Datagram {
        source_lid: route.slid,
        destination_lid: route.dlid,
        sl: frame.path.sl,
        source_qp: packet.src_qpn,
        destination_qp: packet.dst_qpn,
        p_key: packet.pkey,
        q_key: headers.qkey,
        grh: route.has_grh.then_some(headers.grh),
        mad: Box::new(Mad(mad)),
    })
}

/// Returns the packet of a management datagram.
pub fn emit_datagram(datagram: &Datagram) -> Vec<u8> {
    let mut path = Path {
        sl: datagram.sl,
        local_route: Some(LocalRoute {
            slid: datagram.source_lid,
            dlid: datagram.destination_lid,
            has_grh: datagram.grh.is_some(),
        }),
        ..Path::default()
    };
    if let Some(grh) = &datagram.grh {
        let [first, second, third, fourth, _, _, _, hop_limit, ..] = *grh;
        let word = u32::from_be_bytes([first, second, third, fourth]);
        path.traffic_class = (word >> 20) as u8;
        path.flow_label = word & 0xf_ffff;
        path.hop_limit = hop_limit;
        path.sgid.copy_from_slice(&grh[8..24]);
        path.dgid.copy_from_slice(&grh[24..40]);
    }
    let mad = datagram.mad.0;
    let packet = Packet {
        transport: Transport::Ud,
        kind: PacketKind::Send(SendTail::None),
        first: true,
        last: true,
        solicited: false,
        ack_req: false,
        pkey: datagram.p_key,
        dst_qpn: datagram.destination_qp,
        src_qpn: datagram.source_qp,
        psn: 0,
        psns: 1,
        srqn: 0,
        marked: false,
        datagram: Some(Rc::new(DatagramHeaders {
            path,
            qkey: datagram.q_key,
            ..DatagramHeaders::default()
        })),
        payload: Payload::from_bytes(&mad),
    };
    let mut bytes = Vec::new();
    let filled: Result<(), std::convert::Infallible> =
        frame::emit(&path, &packet, &mut bytes, |room| {
            room.copy_from_slice(&mad);
            Ok(())
        });
    let Ok(()) = filled;
    bytes
}

#[cfg(test)]
pub(crate) mod tests;
