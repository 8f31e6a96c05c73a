// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Subnets of several processes, which are joined by uplinks.

mod loops;
mod peers;

use super::*;
use crate::subnet::link_frame;
use verbena_fabric::mad::attribute::SwitchInfo;
use verbena_fabric::Fabric;

/// MAC addresses of the first guest of each process.
const MACS: [[u8; 6]; 4] = [
    [0x52, 0x54, 0, 0, 0, 1],
    [0x52, 0x54, 0, 0, 0, 2],
    [0x52, 0x54, 0, 0, 0, 3],
    [0x52, 0x54, 0, 0, 0, 4],
];
/// Ports of the default switch that have the first three uplinks.
const UPLINKS: [u8; 3] = [36, 35, 34];

/// A process with one guest and this number of uplinks.
fn process(number: usize, uplinks: usize) -> Subnet {
    let guid = u64::from_be_bytes(verbena_device::config::node_guid(MACS[number]));
    let topology = Topology::parse(&default_topology(&[guid])).unwrap();
    let mut subnet = Subnet::new(&topology, 1).unwrap();
    subnet
        .add_uplinks(&topology, uplinks, MACS[number])
        .unwrap();
    subnet
}

/// Processes whose uplinks with the same number are one Ethernet, and the time.
struct Joined {
    subnets: Vec<Subnet>,
    /// Processes that neither send nor receive.
    silent: Vec<usize>,
    now: Duration,
    /// Number of frames that passed the uplinks.
    passed: u32,
    /// Packets that reached the guest of each process.
    received: Vec<Vec<Vec<u8>>>,
}

impl Joined {
    fn new(processes: usize, uplinks: usize) -> Self {
        let mut joined = Self {
            subnets: (0..processes).map(|n| process(n, uplinks)).collect(),
            silent: vec![],
            now: Duration::ZERO,
            passed: 0,
            received: vec![vec![]; processes],
        };
        joined.maintain();
        joined
    }

    /// Half a second passes.
    fn maintain(&mut self) {
        self.now += Duration::from_millis(500);
        for subnet in &mut self.subnets {
            subnet.maintain(self.now);
        }
        self.take_deliveries();
        self.exchange();
    }

    /// Passes frames on until there are no more.
    fn exchange(&mut self) {
        loop {
            let mut frames = vec![];
            for (n, subnet) in self.subnets.iter_mut().enumerate() {
                let departures = subnet.take_departures();
                frames.extend(
                    departures
                        .into_iter()
                        .map(|(uplink, frame)| (n, uplink, frame)),
                );
            }
            if frames.is_empty() {
                return;
            }
            for (from, uplink, frame) in frames {
                self.passed += 1;
                assert!(self.passed < 20_000, "the frames have no end");
                for to in (0..self.subnets.len()).filter(|to| *to != from) {
                    if ![from, to].iter().any(|n| self.silent.contains(n)) {
                        self.receive(to, uplink, &frame);
                    }
                }
            }
        }
    }

    fn receive(&mut self, to: usize, uplink: usize, frame: &[u8]) {
        let (vms, packet) = self.subnets[to].receive(uplink, frame, self.now);
        let packets = vms.iter().map(|_| packet.to_vec());
        self.received[to].extend(packets);
        self.take_deliveries();
    }

    fn take_deliveries(&mut self) {
        for (subnet, received) in self.subnets.iter_mut().zip(&mut self.received) {
            while let Some((_, delivery)) = subnet.next_delivery() {
                if let Delivery::Packet(packet) = delivery {
                    received.push(packet);
                }
            }
        }
    }

    /// Sends a packet of the guest of process 0.
    fn send(&mut self, packet: &[u8]) {
        self.subnets[0].send(0, packet, self.now);
        self.take_deliveries();
        self.exchange();
    }

    /// True if the link over the first uplink of a process is up.
    fn is_up(&self, process: usize) -> bool {
        let subnet = &self.subnets[process];
        let info = subnet.fabric.port_info(subnet.uplinks[0].port()).unwrap();
        info.get(PortInfo::PORT_STATE) != port_state::DOWN
    }

    /// Sends an SMP of the guest of process 0, and returns the response.
    fn ask(
        &mut self,
        method: u8,
        attribute: u16,
        modifier: u32,
        ports: &[u8],
        data: Option<[u8; SMP_DATA_LEN]>,
    ) -> Option<Mad> {
        self.received[0].clear();
        self.send(&directed_to(method, attribute, modifier, ports, data));
        let responses = self.received[0]
            .iter()
            .filter_map(|packet| parse_datagram(packet));
        let mut mads = responses.map(|datagram| *datagram.mad);
        mads.find(|mad| {
            mad.get(Mad::METHOD) == method::GET_RESPONSE && mad.get(Mad::ATTRIBUTE_ID) == attribute
        })
    }

    fn node_guid(&mut self, ports: &[u8]) -> Option<u64> {
        let answer = self.ask(method::GET, attribute_id::NODE_INFO, 0, ports, None)?;
        Some(NodeInfo(answer.data()).get(NodeInfo::NODE_GUID))
    }

    fn port_info(&mut self, ports: &[u8], port: u8) -> PortInfo {
        let modifier = port.into();
        let answer = self.ask(method::GET, attribute_id::PORT_INFO, modifier, ports, None);
        PortInfo(answer.unwrap().data())
    }

    fn state(&mut self, ports: &[u8], port: u8) -> u8 {
        self.port_info(ports, port).get(PortInfo::PORT_STATE)
    }

    /// Changes PortInfo of a port.
    fn set_port(&mut self, ports: &[u8], port: u8, change: impl FnOnce(&mut PortInfo)) {
        let mut info = self.port_info(ports, port);
        for field in [
            PortInfo::PORT_STATE,
            PortInfo::PORT_PHYSICAL_STATE,
            PortInfo::LINK_WIDTH_ENABLED,
            PortInfo::LINK_SPEED_ENABLED,
        ] {
            info.set(field, 0);
        }
        change(&mut info);
        let modifier = port.into();
        let data = Some(info.0);
        self.ask(method::SET, attribute_id::PORT_INFO, modifier, ports, data);
    }

    /// Activates the ports of a path from the guest of process 0 to that of process 1, gives the
    /// guests the LIDs 1 and 2, and has each switch send packets for LID n by port `routes[n]`.
    fn activate(&mut self, routes: [[u8; 3]; 2]) {
        let [uplink, ..] = UPLINKS;
        let switches = [&[1u8][..], &[1, uplink]];
        for (ports, routes) in switches.into_iter().zip(routes) {
            let info = SwitchInfo::default().with(SwitchInfo::LINEAR_FDB_TOP, 2);
            self.ask(
                method::SET,
                attribute_id::SWITCH_INFO,
                0,
                ports,
                Some(info.0),
            );
            let mut block = [255; SMP_DATA_LEN];
            block[..3].copy_from_slice(&routes);
            let attribute = attribute_id::LINEAR_FORWARDING_TABLE;
            self.ask(method::SET, attribute, 0, ports, Some(block));
        }
        for state in [0, port_state::ARMED, port_state::ACTIVE] {
            for (ports, lid) in [(&[1, 1][..], 1), (&[1, uplink, 1], 2)] {
                self.set_port(ports, 1, |info| {
                    info.set(PortInfo::LID, lid);
                    info.set(PortInfo::PORT_STATE, state);
                });
            }
            for ports in switches {
                for port in [1].into_iter().chain(UPLINKS) {
                    if self.state(ports, port) != port_state::DOWN {
                        self.set_port(ports, port, |info| info.set(PortInfo::PORT_STATE, state));
                    }
                }
            }
        }
    }
}

/// Returns a packet of data from LID 1.
fn data(dlid: u16) -> Vec<u8> {
    let path = Path {
        local_route: Some(LocalRoute {
            slid: 1,
            dlid,
            has_grh: false,
        }),
        ..Path::default()
    };
    let packet = Packet {
        transport: Transport::Rc,
        kind: PacketKind::Send(SendTail::None),
        first: true,
        last: true,
        solicited: false,
        ack_req: false,
        pkey: 0xffff,
        dst_qpn: 77,
        src_qpn: 78,
        psn: 5,
        psns: 1,
        srqn: 0,
        marked: false,
        datagram: None,
        payload: Payload::from_bytes(b"payload of a packet"),
    };
    let mut bytes = vec![];
    let filled: Result<(), ()> = frame::emit(&path, &packet, &mut bytes, |room| {
        room.copy_from_slice(b"payload of a packet");
        Ok(())
    });
    filled.unwrap();
    bytes
}

#[test]
fn directed_routes_cross_the_link_of_two_processes() {
    let mut joined = Joined::new(2, 1);
    let [uplink, ..] = UPLINKS;
    let guids = [
        &[1u8][..],
        &[1, uplink],
        &[1, uplink, 1],
        &[1, uplink, uplink],
    ]
    .map(|ports| joined.node_guid(ports));
    let adapter = u64::from_be_bytes(verbena_device::config::node_guid(MACS[1]));
    let expected = [
        Some(0x5652_5054_0000_0001),
        Some(0x5652_5054_0000_0002),
        Some(adapter),
        Some(0x5652_5054_0000_0001),
    ];
    assert_eq!(guids, expected);
}

#[test]
fn data_goes_by_lid_to_the_guest_of_another_process() {
    let mut joined = Joined::new(2, 1);
    let [uplink, ..] = UPLINKS;
    joined.activate([[255, 1, uplink], [255, uplink, 1]]);
    joined.received[1].clear();
    joined.send(&data(2));
    assert_eq!(joined.received[1], [data(2)]);
    // The link carries no packet after a subnet manager has taken a port down.
    joined.set_port(&[1], uplink, |info| {
        info.set(PortInfo::PORT_STATE, port_state::DOWN)
    });
    joined.received[1].clear();
    joined.send(&data(2));
    assert_eq!(joined.received[1], [[0; 0]; 0]);
}

#[test]
fn a_link_goes_and_comes_with_its_peer_and_is_reported() {
    let mut joined = Joined::new(2, 1);
    let [uplink, ..] = UPLINKS;
    let switch_info = |joined: &mut Joined| {
        let answer = joined.ask(method::GET, attribute_id::SWITCH_INFO, 0, &[1], None);
        SwitchInfo(answer.unwrap().data())
    };
    let take_change = |joined: &mut Joined| {
        let info = switch_info(joined);
        let changed = info.get(SwitchInfo::PORT_STATE_CHANGE);
        joined.ask(
            method::SET,
            attribute_id::SWITCH_INFO,
            0,
            &[1],
            Some(info.0),
        );
        changed
    };
    take_change(&mut joined);
    for _ in 0..3 {
        assert_eq!(joined.state(&[1], uplink), port_state::INIT);
        joined.silent = vec![1];
        (0..8).for_each(|_| joined.maintain());
        assert_eq!(joined.state(&[1], uplink), port_state::DOWN);
        assert!(take_change(&mut joined) && !take_change(&mut joined));
        joined.silent = vec![];
        joined.maintain();
        assert!(take_change(&mut joined));
    }
    // Another process in its place: the link trains again.
    joined.activate([[255, 1, uplink], [255, uplink, 1]]);
    assert_eq!(joined.state(&[1], uplink), port_state::ACTIVE);
    take_change(&mut joined);
    joined.subnets[1] = process(1, 1);
    joined.maintain();
    joined.maintain();
    assert_eq!(joined.state(&[1], uplink), port_state::INIT);
    assert!(take_change(&mut joined));
}

#[test]
fn a_set_of_one_end_changes_both() {
    let mut joined = Joined::new(2, 1);
    let [uplink, ..] = UPLINKS;
    let both = |joined: &mut Joined| {
        [0, 1].map(|n: usize| {
            let port = joined.subnets[n].uplinks[0].port();
            let info = joined.subnets[n].fabric.port_info(port).unwrap();
            info.get(PortInfo::PORT_STATE)
        })
    };
    joined.activate([[255, 1, uplink], [255, uplink, 1]]);
    assert_eq!(both(&mut joined), [port_state::ACTIVE; 2]);
    joined.set_port(&[1], uplink, |info| {
        info.set(PortInfo::PORT_STATE, port_state::DOWN)
    });
    assert_eq!(both(&mut joined), [port_state::INIT; 2]);
    let disabled = verbena_fabric::mad::attribute::physical_state::DISABLED;
    joined.set_port(&[1], uplink, |info| {
        info.set(PortInfo::PORT_STATE, port_state::DOWN);
        info.set(PortInfo::PORT_PHYSICAL_STATE, disabled);
    });
    assert_eq!(both(&mut joined), [port_state::DOWN; 2]);
    let polling = verbena_fabric::mad::attribute::physical_state::POLLING;
    joined.set_port(&[1], uplink, |info| {
        info.set(PortInfo::PORT_STATE, port_state::DOWN);
        info.set(PortInfo::PORT_PHYSICAL_STATE, polling);
    });
    assert_eq!(both(&mut joined), [port_state::INIT; 2]);
}

#[test]
fn frames_of_other_processes_and_malformed_frames_are_refused_and_counted() {
    let mut joined = Joined::new(2, 1);
    let [uplink, ..] = UPLINKS;
    joined.activate([[255, 1, uplink], [255, uplink, 1]]);
    joined.subnets[0].take_refused();
    joined.send(&data(2));
    // The frame of a packet to the guest of process 0.
    joined.subnets[1].send(0, &data(1), joined.now);
    let frame = joined.subnets[1].take_departures().pop_front().unwrap().1;
    joined.received[0].clear();
    joined.receive(0, 0, &frame);
    assert_eq!(joined.received[0], [data(1)]);
    let mut refused = 0;
    // Each byte is changed. The destination address, the byte without contents and the limits may
    // have any value.
    for at in (6..frame.len()).filter(|at| ![12, 13].contains(at) && !(16..20).contains(at)) {
        let mut changed = frame.clone();
        changed[at] ^= 0x40;
        joined.receive(0, 0, &changed);
        refused += 1;
        assert_eq!(joined.subnets[0].take_refused(), 1, "{at}");
    }
    assert_eq!((joined.received[0].len(), refused > 50), (1, true));
    for length in 14..frame.len() {
        joined.receive(0, 0, &frame[..length]);
        assert_eq!(joined.subnets[0].take_refused(), 1, "{length}");
    }
    // There is no such uplink.
    joined.receive(0, 7, &frame);
    assert_eq!(joined.received[0].len(), 1);
}

#[test]
fn a_topology_file_may_name_the_ports_of_uplinks() {
    let add = |text: &str, count| {
        let topology = Topology::parse(text).unwrap();
        let mut subnet = Subnet::new(&topology, 0).unwrap();
        let added = subnet.add_uplinks(&topology, count, MACS[0]);
        let ports = subnet.uplinks.iter().map(|link| link.port());
        added.map(|()| ports.map(|port| (port.node, port.port)).collect::<Vec<_>>())
    };
    let two = "Switch 3 \"a\"\n[1] \"b\"[2]\n\nSwitch 2 \"b\"\n[1] \"uplink1\"\n[2] \"a\"[1]\n";
    assert_eq!(add(two, 3), Ok(vec![(1, 1), (0, 3), (0, 2)]));
    // The first uplink leaves the last port to the second.
    let last = "Switch 3 \"a\"\n[3] \"uplink2\"\n";
    assert_eq!(add(last, 2), Ok(vec![(0, 2), (0, 3)]));
    let error = add(two, 4).unwrap_err();
    assert!(error.contains("no port for uplink 4"), "{error}");
    let error = add(two, 0).unwrap_err();
    assert!(error.contains("there are 0 uplinks"), "{error}");
    let error = add("Ca 1 \"a\"\n", 1).unwrap_err();
    assert!(error.contains("no port for uplink 1"), "{error}");
}

#[test]
fn the_source_addresses_of_uplinks_differ_from_those_of_guests() {
    let mut all: Vec<[u8; 6]> = MACS.to_vec();
    for mac in MACS {
        all.extend((1..=8).map(|number| crate::subnet::uplinks::uplink_mac(mac, number)));
    }
    let count = all.len();
    assert!(all[MACS.len()..].iter().all(|mac| mac[0] & 3 == 2));
    all.sort();
    all.dedup();
    assert_eq!(all.len(), count);
}

/// The fabric and the codec see any bytes that an uplink can deliver.
#[test]
fn random_frames_of_an_uplink_do_no_harm() {
    let mut joined = Joined::new(2, 1);
    let _: &Fabric = &joined.subnets[0].fabric;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..5000 {
        let length = (next() % 400) as usize;
        let mut frame: Vec<u8> = (0..length).map(|_| next() as u8).collect();
        let head = [0x88, 0xb5, 1, 1 + (next() & 1) as u8];
        if let Some(place) = frame.get_mut(12..16) {
            place.copy_from_slice(&head);
        }
        if link_frame::is_link_frame(&frame) {
            joined.receive(0, 0, &frame);
        }
    }
    joined.maintain();
    let _ = joined.node_guid(&[1, UPLINKS[0]]);
}
