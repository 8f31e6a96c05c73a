// SPDX-License-Identifier: GPL-2.0 OR MIT

//! An InfiniBand subnet with a guest that manages it, a guest that may send SMPs and does not know
//! the M_Key, and a guest that must not manage the subnet. All of them send datagrams and data of
//! every kind, and the last two do not change the subnet.

mod mads;
mod manager;

pub use manager::{configuration, lid, Key, GROUP};
use std::collections::HashSet;
use std::sync::OnceLock;
use std::time::Duration;
use verbena_fabric::fabric::HOPS;
use verbena_fabric::mad::attribute::{capability, PortInfo};
use verbena_fabric::mad::performance::PortCountersExtended;
use verbena_fabric::mad::{attribute_id, class, method, Fields, Mad, SMP_DATA_LEN};
use verbena_fabric::node::Node;
use verbena_fabric::{
    Datagram, Fabric, Output, PortEvent, PortId, ProcessMad, RouteHeader, Topology,
};
use verbena_lab_transport::fuzz::FuzzInput;

/// Subnets: a switch; three switches in a triangle; three switches in a line; two adapters.
const TOPOLOGIES: [&str; 4] = [
    "Switch 5 \"s\"\n[1] \"a\"[1]\n[2] \"b\"[1]\n[3] \"c\"[1]\n[4] \"d\"[1]\n
Ca 1 \"a\"\n[1] \"s\"[1]\n
Ca 1 \"b\"\n[1] \"s\"[2]\n
Ca 1 \"c\"\n[1] \"s\"[3]\n
Ca 1 \"d\"\n[1] \"s\"[4]\n",
    "Switch 4 \"s\"\n[1] \"a\"[1]\n[2] \"d\"[1]\n[3] \"t\"[4]\n[4] \"u\"[3]\n
Switch 4 \"t\"\n[1] \"b\"[1]\n[3] \"u\"[4]\n[4] \"s\"[3]\n
Switch 4 \"u\"\n[1] \"c\"[1]\n[2] \"e\"[1]\n[3] \"s\"[4]\n[4] \"t\"[3]\n
Ca 1 \"a\"\n[1] \"s\"[1]\n
Ca 1 \"b\"\n[1] \"t\"[1]\n
Ca 1 \"c\"\n[1] \"u\"[1]\n
Ca 1 \"d\"\n[1] \"s\"[2]\n
Ca 1 \"e\"\n[1] \"u\"[2]\n",
    "Switch 4 \"s\"\n[1] \"a\"[1]\n[4] \"t\"[3]\n
Switch 4 \"t\"\n[1] \"b\"[1]\n[3] \"s\"[4]\n[4] \"u\"[3]\n
Switch 4 \"u\"\n[1] \"c\"[1]\n[3] \"t\"[4]\n
Ca 1 \"a\"\n[1] \"s\"[1]\n
Ca 1 \"b\"\n[1] \"t\"[1]\n
Ca 1 \"c\"\n[1] \"u\"[1]\n",
    "Ca 1 \"a\"\n[1] \"b\"[1]\n
Ca 1 \"b\"\n[1] \"a\"[1]\n",
];
/// M_Keys of the subnets: none; one that also Gets need; one that any Get shows as 0, with a lease
/// of a second.
const KEYS: [Key; 3] = [
    Key {
        value: 0,
        protect: 0,
        lease: 0,
    },
    Key {
        value: 0x1122_3344_5566_7788,
        protect: 2,
        lease: 0,
    },
    Key {
        value: 0x1122_3344_5566_7788,
        protect: 1,
        lease: 1,
    },
];
/// The guest with the subnet manager.
const MANAGER: usize = 0;
/// Most guests of a subnet.
const GUESTS: usize = 3;
/// Datagrams that guests have received, and may answer.
const MOST_HEARD: usize = 8;
/// Most traps that a managed port sends at one time.
const TRAPS_OF_A_PORT: usize = 5;
/// Kinds of events.
const EVENTS: usize = 7;

/// A subnet that was configured, from which each run begins.
pub struct Plan {
    topology: Topology,
    fabric: Fabric,
    key: Key,
    /// The port of each guest's adapter.
    guests: Vec<PortId>,
    /// The directed routes from each guest's adapter to each node.
    routes: Vec<Vec<Option<Vec<u8>>>>,
}

impl Plan {
    fn new(text: &str, key: Key) -> Self {
        let topology = Topology::parse(text).expect("a topology");
        let adapters: Vec<usize> = topology.adapters().take(GUESTS).collect();
        let mut fabric = Fabric::new(&topology);
        adapters
            .iter()
            .for_each(|node| fabric.set_guest(*node, true));
        let guests: Vec<PortId> = adapters
            .iter()
            .map(|node| PortId {
                node: *node,
                port: 1,
            })
            .collect();
        for mad in configuration(&topology, adapters[MANAGER], &adapters, &key) {
            let status =
                ask(&mut fabric, guests[MANAGER], &mad).map(|answer| answer.get(Mad::STATUS));
            assert_eq!(status, Some(0x8000), "{mad:?}");
        }
        fabric.allow_management(adapters[adapters.len() - 1], false);
        Self {
            routes: adapters
                .iter()
                .map(|node| manager::routes(&topology, *node))
                .collect(),
            topology,
            fabric,
            key,
            guests,
        }
    }

    /// Returns the subnet that two bytes select.
    fn select(topology: u8, key: u8) -> &'static Self {
        static ALL: OnceLock<Vec<Plan>> = OnceLock::new();
        let with_keys = |text: &&str| KEYS.map(|key| Plan::new(text, key));
        let all = ALL.get_or_init(|| TOPOLOGIES.iter().flat_map(with_keys).collect());
        let topology = usize::from(topology) % TOPOLOGIES.len();
        &all[topology * KEYS.len() + usize::from(key) % KEYS.len()]
    }

    fn is_keyed(&self) -> bool {
        self.key.value != 0
    }

    /// The guest that must not manage the subnet.
    fn forbidden(&self) -> usize {
        self.guests.len() - 1
    }
}

/// Sends an SMP of a guest, and returns the answer.
fn ask(fabric: &mut Fabric, from: PortId, mad: &Mad) -> Option<Mad> {
    if mad.get(Mad::HOP_COUNT) == 0 {
        return match fabric.process_mad(from, mad, true, Duration::ZERO) {
            ProcessMad::Reply(reply) => Some(*reply),
            _ => None,
        };
    }
    fabric.send(from, Datagram::smp(0xffff, 0xffff, *mad), Duration::ZERO);
    let outputs: Vec<Output> = std::iter::from_fn(|| fabric.next_output()).collect();
    outputs.into_iter().find_map(|output| match output {
        Output::Datagram(to, answer) if to == from => Some(*answer.mad),
        _ => None,
    })
}

/// What came of a step.
struct Effects {
    datagrams: Vec<(PortId, Datagram)>,
    events: Vec<(PortId, PortEvent)>,
    /// Number of links that packets have passed.
    passed: u64,
}

/// The subnet during a run.
pub struct World {
    plan: &'static Plan,
    fabric: Fabric,
    /// The nodes after the last step that had the right to change them.
    before: Option<Vec<Node>>,
    now: Duration,
    heard: Vec<(PortId, Datagram)>,
}

impl World {
    /// Returns a subnet that the first two bytes of the input select.
    pub fn new(input: &mut FuzzInput<'_>) -> Self {
        let plan = Plan::select(input.u8(), input.u8());
        Self {
            fabric: plan.fabric.clone(),
            plan,
            before: None,
            now: Duration::from_secs(1),
            heard: vec![],
        }
    }

    /// Does the step that the next byte of the input selects.
    pub fn step(&mut self, input: &mut FuzzInput<'_>) {
        match input.u8() % 12 {
            0..=4 => self.send(input),
            5 => self.reply(input),
            6 | 7 => self.ask_driver(input),
            8 => self.forward(input),
            9 => self.wait(input),
            10 => self.change_port(input),
            _ => self.spoil_tables(input),
        }
        let due = self.fabric.next_deadline();
        assert!(due.is_none_or(|due| due > self.now), "a trap is late");
    }

    fn guest(&self, input: &mut FuzzInput<'_>) -> usize {
        usize::from(input.u8()) % self.plan.guests.len()
    }

    /// Returns an M_Key for a MAD of a guest. Only the manager knows the right one.
    fn key(&self, input: &mut FuzzInput<'_>, guest: usize) -> u64 {
        let right = self.plan.key.value;
        if guest == MANAGER && input.u8() & 7 != 0 {
            return right;
        }
        let key = input.pick(&[0, right ^ 1, !right, right >> 1, 1]);
        if key == right {
            !right
        } else {
            key
        }
    }

    /// True if a guest's MADs may change the subnet.
    fn may_change(&self, guest: usize) -> bool {
        guest == MANAGER || !self.plan.is_keyed() && guest != self.plan.forbidden()
    }

    /// Returns the number of packets that all ports have sent.
    fn passed(&self) -> u64 {
        let nodes = self.fabric.nodes().iter();
        let ports = nodes.flat_map(|node| node.port_numbers().filter_map(|n| node.port(n)));
        let sent = |port: &verbena_fabric::port::Port| {
            let counters = port.counters().extended();
            counters.get(PortCountersExtended::PORT_XMIT_PKTS)
        };
        ports.map(sent).fold(0, u64::wrapping_add)
    }

    /// Does something with the subnet. Without the right to change the subnet, nothing that a
    /// subnet manager has configured changes, and no driver receives an event.
    fn act<R>(
        &mut self,
        may_change: bool,
        call: impl FnOnce(&mut Fabric, Duration) -> R,
    ) -> (R, Effects) {
        if may_change {
            self.before = None;
        } else if self.before.is_none() {
            self.before = Some(self.fabric.nodes().to_vec());
        }
        let passed = self.passed();
        let result = call(&mut self.fabric, self.now);
        let mut effects = Effects {
            datagrams: vec![],
            events: vec![],
            passed: self.passed().wrapping_sub(passed),
        };
        while let Some(output) = self.fabric.next_output() {
            match output {
                Output::Datagram(to, datagram) => effects.datagrams.push((to, datagram)),
                Output::Event(to, event) => effects.events.push((to, event)),
                Output::Departure(from, ..) => panic!("{from:?} has no link to another subnet"),
            }
        }
        self.check(may_change, &effects);
        (result, effects)
    }

    fn check(&self, may_change: bool, effects: &Effects) {
        let receivers = effects.datagrams.iter().map(|(to, _)| to);
        for to in receivers.chain(effects.events.iter().map(|(to, _)| to)) {
            assert!(self.plan.guests.contains(to), "{to:?} has no guest");
        }
        if may_change {
            assert!(effects.events.len() <= EVENTS * self.plan.guests.len());
            return;
        }
        assert_eq!(effects.events, []);
        let nodes = self.fabric.nodes();
        let before = self.before.as_deref().unwrap_or(nodes);
        for (n, (was, is)) in before.iter().zip(nodes).enumerate() {
            // The end of a lease changes the protect bits.
            if self.plan.key.lease == 0 {
                assert!(is.has_configuration_of(was), "node {n} has changed");
            }
        }
        for port in self.managed() {
            let info = self.fabric.port_info(port).unwrap_or_default();
            assert_eq!(info.get(PortInfo::M_KEY), self.plan.key.value, "{port:?}");
        }
    }

    /// Returns the ports with an M_Key.
    fn managed(&self) -> impl Iterator<Item = PortId> + '_ {
        let nodes = self.fabric.nodes().iter().enumerate();
        nodes
            .filter(|_| self.plan.is_keyed())
            .map(|(node, of)| PortId {
                node,
                port: u8::from(!of.is_switch()),
            })
    }

    /// Keeps datagrams that guests have received. They are traps, and at most one that has come of
    /// the MAD `sent`: the MAD itself or its response.
    fn hear(&mut self, effects: Effects, sent: Option<&Mad>) {
        let most = TRAPS_OF_A_PORT * self.fabric.nodes().len() + 1;
        assert!(effects.datagrams.len() <= most);
        let mut others = 0;
        for (to, datagram) in effects.datagrams {
            let mad = &datagram.mad;
            let is_trap = mad.is_smp()
                && mad.get(Mad::METHOD) == method::TRAP
                && mad.get(Mad::ATTRIBUTE_ID) == attribute_id::NOTICE;
            let is_of = |sent: &Mad| {
                let header = |mad: &Mad| {
                    let transaction = mad.get(Mad::TRANSACTION_ID);
                    (mad.get(Mad::CLASS), transaction, mad.get(Mad::ATTRIBUTE_ID))
                };
                header(sent) == header(mad)
            };
            assert!(
                is_trap || sent.is_some_and(is_of),
                "nobody has sent {mad:?}"
            );
            others += usize::from(!is_trap);
            self.heard.insert(0, (to, datagram));
        }
        assert!(others <= 1, "{others} datagrams came of one");
        self.heard.truncate(MOST_HEARD);
    }

    fn send(&mut self, input: &mut FuzzInput<'_>) {
        let guest = self.guest(input);
        let key = self.key(input, guest);
        let datagram = mads::datagram(input, self.plan, &self.fabric, guest, key);
        self.send_datagram(guest, datagram);
    }

    fn send_datagram(&mut self, guest: usize, datagram: Datagram) {
        let sent = *datagram.mad;
        let is_refused = guest == self.plan.forbidden() && datagram.destination_qp == 0;
        let refused = self.fabric.refused_smps();
        let (from, may_change) = (self.plan.guests[guest], self.may_change(guest));
        let ((), effects) = self.act(may_change, |fabric, now| fabric.send(from, datagram, now));
        let counted = self.fabric.refused_smps() - refused;
        assert_eq!(counted, u64::from(is_refused));
        // A Set of performance management changes the counters by which links are counted.
        if sent.get(Mad::CLASS) != class::PERFORMANCE {
            let traps = (TRAPS_OF_A_PORT * self.fabric.nodes().len()) as u64;
            assert!(effects.passed <= u64::from(HOPS) * (2 + traps));
        }
        self.hear(effects, (!is_refused).then_some(&sent));
    }

    /// A guest answers a datagram that it has received, or represses the trap.
    fn reply(&mut self, input: &mut FuzzInput<'_>) {
        let which = usize::from(input.u8());
        let Some((at, heard)) = self.heard.get(which % MOST_HEARD).cloned() else {
            return;
        };
        let Some(guest) = self.plan.guests.iter().position(|port| *port == at) else {
            return;
        };
        let method = input.pick(&[method::TRAP_REPRESS, method::GET_RESPONSE, method::SET]);
        let key = self.key(input, guest);
        let mut mad = heard.mad.with(Mad::METHOD, method).with(Mad::M_KEY, key);
        mads::keep_key(self.plan, &mut mad);
        let datagram = Datagram {
            source_lid: heard.destination_lid,
            destination_lid: heard.source_lid,
            source_qp: heard.destination_qp,
            destination_qp: heard.source_qp,
            mad: Box::new(mad),
            ..heard
        };
        self.send_datagram(guest, datagram);
    }

    /// A guest's driver has the agents of its own port process a MAD.
    fn ask_driver(&mut self, input: &mut FuzzInput<'_>) {
        let (guest, checks) = (self.guest(input), input.u8() & 1 == 0);
        let (at, key) = (self.plan.guests[guest], self.key(input, guest));
        let mad = mads::mad(input, self.plan, &self.fabric, at.node, key);
        let is_forbidden = guest == self.plan.forbidden();
        let may_change = self.may_change(guest) || !checks && !is_forbidden;
        let process = |fabric: &mut Fabric, now| fabric.process_mad(at, &mad, checks, now);
        let (result, effects) = self.act(may_change, process);
        if let ProcessMad::Reply(reply) = result {
            assert_eq!(reply.get(Mad::METHOD), method::GET_RESPONSE);
            let transaction = reply.get(Mad::TRANSACTION_ID);
            assert_eq!(transaction, mad.get(Mad::TRANSACTION_ID));
            let is_info = mad.is_smp() && mad.get(Mad::ATTRIBUTE_ID) == attribute_id::PORT_INFO;
            if is_info && is_forbidden && !checks && reply.get(Mad::STATUS) & 0x7fff == 0 {
                let shown = PortInfo(reply.data()).get(PortInfo::M_KEY);
                assert_eq!(shown, 0, "the M_Key is shown to a guest without the right");
            }
        }
        self.hear(effects, None);
    }

    /// A guest sends a data packet. It reaches each guest at most once.
    fn forward(&mut self, input: &mut FuzzInput<'_>) {
        let from = self.plan.guests[self.guest(input)];
        let lids = [
            GROUP,
            GROUP,
            lid(0),
            lid(1),
            lid(2),
            lid(3),
            0xffff,
            0xfffe,
            0,
            60,
        ];
        let header = RouteHeader {
            destination_lid: input.pick(&lids),
            sl: input.u8() & 15,
            p_key: input.pick(&[0xffff, 0x7fff, 0x8001]),
            length: u32::from(input.u8()) << 5,
        };
        let (arrivals, effects) = self.act(false, |fabric, _| {
            let mut arrivals = vec![];
            fabric.forward(from, &header, &mut arrivals);
            arrivals
        });
        let receivers: HashSet<PortId> = arrivals.iter().map(|arrival| arrival.port).collect();
        assert_eq!(
            receivers.len(),
            arrivals.len(),
            "a guest has a packet twice"
        );
        assert!(receivers.iter().all(|port| self.plan.guests.contains(port)));
        let most = match header.destination_lid {
            0xc000..=0xfffe => 2 * self.plan.topology.links.len() as u64,
            _ => HOPS.into(),
        };
        assert!(effects.passed <= most, "{} links", effects.passed);
        self.hear(effects, None);
    }

    fn wait(&mut self, input: &mut FuzzInput<'_>) {
        let times = [1, 99, 100, 101, 999, 1001, 2000, 100_000];
        self.now += Duration::from_millis(input.pick(&times));
        let ((), effects) = self.act(false, |fabric, now| fabric.poll(now));
        self.hear(effects, None);
    }

    /// A cable is pulled or plugged, or a guest changes its own port.
    fn change_port(&mut self, input: &mut FuzzInput<'_>) {
        let (guest, how) = (self.guest(input), input.u8());
        let at = self.plan.guests[guest];
        let is_forbidden = guest == self.plan.forbidden();
        let effects = match how % 4 {
            0 | 1 => {
                let links = &self.plan.topology.links;
                let (end, _) = links[usize::from(input.u8()) % links.len()];
                let change = |fabric: &mut Fabric, now| fabric.set_cable(end, how % 4 == 0, now);
                self.act(true, change).1
            }
            2 => {
                let is_sm = how & 4 != 0;
                let (set, clear) = match is_sm {
                    true => (capability::IS_SM, 0),
                    false => (0, capability::IS_SM),
                };
                let change =
                    |fabric: &mut Fabric, now| fabric.set_capabilities(at, set, clear, now);
                let (done, effects) = self.act(!is_forbidden, change);
                assert_eq!(done, !(is_forbidden && is_sm));
                effects
            }
            _ => {
                let text = [how; SMP_DATA_LEN];
                let change = |fabric: &mut Fabric, now| fabric.set_description(at.node, &text, now);
                self.act(true, change).1
            }
        };
        self.hear(effects, None);
    }

    /// The manager writes forwarding tables that may have loops.
    fn spoil_tables(&mut self, input: &mut FuzzInput<'_>) {
        let node = usize::from(input.u8()) % self.plan.topology.nodes.len();
        let attribute = match input.u8() % 2 {
            0 => attribute_id::LINEAR_FORWARDING_TABLE,
            _ => attribute_id::MULTICAST_FORWARDING_TABLE,
        };
        let pattern = [0; 8].map(|_: u8| input.u8());
        let mut data = [0; SMP_DATA_LEN];
        for (byte, drawn) in data.iter_mut().zip(pattern.iter().cycle()) {
            *byte = match attribute {
                attribute_id::LINEAR_FORWARDING_TABLE => drawn % 7,
                _ => *drawn,
            };
        }
        let class = class::SUBNET_DIRECTED_ROUTE;
        let mut mad = Mad::smp(class, method::SET, attribute, 0);
        mad.set(Mad::M_KEY, self.plan.key.value);
        mad.set_initial_path(self.plan.routes[MANAGER][node].as_deref().unwrap_or(&[1]));
        mad.set(Mad::HOP_POINTER, 1);
        mad.set_data(&data);
        self.send_datagram(MANAGER, Datagram::smp(0xffff, 0xffff, mad));
    }
}
