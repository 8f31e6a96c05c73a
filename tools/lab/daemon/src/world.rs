// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The switch, the VMs and the uplinks, and the rules that hold for any frame of a stranger.

use crate::end::{path, End, FAR, GROUP, IPS, MACS, MESSAGES, OTHER, ROOM};
use crate::frames;
use std::collections::{HashSet, VecDeque};
use verbena_abi::ctx::QpState;
use verbena_abi::wqe::WqeOpcode;
use verbena_device::mock::{gid, SendWr};
use verbena_device::objects::mcast;
use verbena_device::{Addresses, Crossing, Gid};
use verbena_lab_transport::fuzz::FuzzInput;
use verbena_nic::policy::{OtherMacs, Policy};
use verbena_nic::switch::{PortSet, Switch, SwitchPort};
use verbena_transport::frame;
use verbena_transport::wire::Path;

/// Ports from which strangers send frames.
const STRANGERS: [SwitchPort; 4] = [
    SwitchPort::Guest(2),
    SwitchPort::Engine(2),
    SwitchPort::Wire(0),
    SwitchPort::Wire(1),
];

/// The switch with two honest VMs, a hostile VM and two uplinks.
pub struct World {
    switch: Switch,
    ends: [End; 2],
    now: u64,
    /// Number of messages that were posted.
    posted: usize,
    /// Number of completions of each honest VM.
    completed: [usize; 2],
    /// Number of receives that were posted; each of them has to complete.
    receives: usize,
    /// True if a frame with the addresses of the station at the first uplink came from an uplink or
    /// was forwarded.
    far_spoke: bool,
    /// MAC addresses from which strangers have sent frames.
    heard: HashSet<[u8; 6]>,
    /// GIDs that the third VM's driver has set.
    claimed: Vec<Gid>,
    /// State and PSNs of the QPs that are connected to that station, at the start.
    far_was: [(u8, u32, u32); 2],
    /// QPNs of the honest VMs' QPs, and some others.
    qpns: Vec<u32>,
}

impl World {
    /// Returns a world in which the honest VMs have connected QPs. The first byte of the input
    /// decides if packets between them are passed by reference or as frames.
    pub fn new(input: &mut FuzzInput<'_>) -> Self {
        let by_reference = input.u8() & 1 == 0;
        let mut ends = [0, 1].map(|n| End::new(n, by_reference));
        let numbers = [0, 1].map(|n: usize| (ends[n].rc.qpn, ends[n].uc.qpn));
        for (n, end) in ends.iter_mut().enumerate() {
            let (peer, to) = (numbers[1 - n], path(MACS[1 - n], IPS[1 - n]));
            end.connect(numbers[n].0, peer.0, to, false);
            end.connect(numbers[n].1, peer.1, to, true);
            end.connect(end.far.qpn, FAR.2, path(FAR.0, FAR.1), false);
            // The far station does not answer this WRITE, so the QP has a request outstanding.
            let wr = SendWr::new(
                WqeOpcode::RdmaWrite,
                99,
                &[(end.memory.0, 64, end.memory.1)],
            );
            end.d.post_send(&mut end.far, &wr.to(0x1000, 5));
            end.d.run();
        }
        let mut qpns = vec![1, 0xff_ffff, 0x1234];
        for end in &ends {
            qpns.extend([&end.rc, &end.uc, &end.far, &end.ud].map(|qp| qp.qpn));
        }
        let far_was = [0, 1].map(|n: usize| ends[n].look(ends[n].far.qpn));
        let mut switch = Switch::new(2);
        let any = || Policy::new(OtherMacs::Any, None, None);
        for (mac, policy) in MACS
            .into_iter()
            .zip([Policy::default(), Policy::default(), any()])
        {
            assert!(switch.add_with(mac, policy).is_some());
        }
        let mut world = Self {
            switch,
            ends,
            now: 1_000_000,
            posted: 0,
            completed: [0; 2],
            receives: 0,
            far_spoke: false,
            heard: HashSet::new(),
            claimed: vec![],
            far_was,
            qpns,
        };
        world.work();
        world
    }

    /// Does the step that the next byte of the input selects.
    pub fn step(&mut self, input: &mut FuzzInput<'_>) {
        match input.u8() % 8 {
            0 => self.post(),
            1 => self.work(),
            2 => self.claim(input),
            _ => {
                let from = input.pick(&STRANGERS);
                let frame = frames::next(input, &self.qpns);
                self.hear(from, &frame);
            }
        }
    }

    /// Posts the next message between the honest VMs.
    fn post(&mut self) {
        if self.posted >= MESSAGES {
            return;
        }
        let at = (self.posted * ROOM) as u64;
        let id = self.posted as u64;
        let [a, b] = &mut self.ends;
        let (here, there) = (a.memory, b.memory);
        let sges = [(here.0 + at, ROOM as u32, here.1)];
        let to = |opcode| SendWr::new(opcode, id, &sges).to(there.0 + at, there.1);
        match self.posted % 4 {
            0 => a.d.post_send(&mut a.rc, &to(WqeOpcode::RdmaWrite)),
            1 => {
                b.d.post_recv(&mut b.rc, id, &[(there.0 + at, ROOM as u32, there.1)]);
                self.receives += 1;
                a.d.post_send(&mut a.rc, &SendWr::new(WqeOpcode::Send, id, &sges));
            }
            2 => a.d.post_send(&mut a.rc, &to(WqeOpcode::RdmaRead)),
            _ => a.d.post_send(&mut a.uc, &to(WqeOpcode::RdmaWrite)),
        }
        self.posted += 1;
    }

    /// Lets the third VM's driver set GIDs, each with a MAC address that the input chooses. The
    /// switch has to accept a GID unless it belongs to another station.
    fn claim(&mut self, input: &mut FuzzInput<'_>) {
        let wanted = [IPS[2], IPS[0], IPS[1], FAR.1];
        let macs = [MACS[2], OTHER, FAR.0, MACS[0], MACS[1]];
        let number = input.u8() % 4;
        let entries: Vec<_> = (0..number)
            .map(|_| Gid {
                gid: gid(input.pick(&wanted)),
                mac: input.pick(&macs),
                vlan: input.pick(&[None, None, Some(5)]),
            })
            .collect();
        // A driver clears the old GIDs that are not among the new ones, and then sets the new ones.
        let groups = vec![gid(GROUP)];
        self.claimed.retain(|own| entries.contains(own));
        let gids = self.claimed.clone();
        self.switch.set_addresses(2, &Addresses { gids, groups });
        for entry in entries {
            let refused = self.switch.claim(2, &entry, self.now).err();
            let is_gid = [gid(IPS[0]), gid(IPS[1])].contains(&entry.gid) && entry.vlan.is_none();
            let is_mac = MACS[..2].contains(&entry.mac);
            // The switch refuses a MAC address that it has recently seen at another port.
            let is_heard = self.heard.contains(&entry.mac);
            match refused {
                None => {
                    assert!(!is_gid && !is_mac, "{entry:x?} belongs to another VM");
                    self.claimed.push(entry);
                }
                Some(cause) => {
                    assert!(is_gid || is_mac || is_heard, "{entry:x?}: {cause:?}");
                }
            }
        }
    }

    /// Runs both devices and exchanges their packets until no packet is left.
    fn work(&mut self) {
        self.now += 1000;
        loop {
            let mut moved = false;
            for n in 0..2 {
                let d = &mut self.ends[n].d;
                d.now = d.now.max(self.now);
                d.run();
                if let Some(addresses) = d.device.take_addresses() {
                    for own in &addresses.gids {
                        assert_eq!(self.switch.claim(n as u8, own, self.now), Ok(()));
                    }
                    self.switch.set_addresses(n as u8, &addresses);
                }
                moved |= self.depart(n);
            }
            if !moved {
                break;
            }
        }
        for n in 0..2 {
            self.completed[n] += self.ends[n].completed();
        }
    }

    /// Takes the packets and frames that a device has sent to the destinations that the switch
    /// selects. Returns true if there were any.
    fn depart(&mut self, from: usize) -> bool {
        let mut moved = false;
        while let Some(packet) = self.ends[from].d.device.next_crossing() {
            moved = true;
            let to = packet.path().and_then(|path| {
                let to = self.switch.engine_for(from as u8, path, self.now);
                let is_peers = path.dgid == gid(IPS[1 - from]);
                // The third VM may have claimed the GID of the station at the first uplink.
                let is_thirds = |own: &Gid| own.gid == path.dgid && own.vlan == path.vlan;
                let is_thirds = to == Some(2) && self.claimed.iter().any(is_thirds);
                let is_right = is_thirds || to == is_peers.then_some(1 - from as u8);
                assert!(is_right, "{path:x?} to {to:?}");
                to
            });
            match to {
                // The third VM has no device in this test.
                Some(2) => {}
                Some(_) => self.cross(from, packet),
                None => {
                    let d = &mut self.ends[from].d;
                    d.device.make_frames(&d.ram, packet);
                }
            }
        }
        while let Some(frame) = self.ends[from].d.device.next_frame() {
            moved = true;
            let to = self
                .switch
                .forward(SwitchPort::Engine(from as u8), &frame, self.now);
            assert!(!to.is_empty() || frame[..6] == MACS[from], "{to:?}");
            self.deliver(to, &frame);
        }
        moved
    }

    fn cross(&mut self, from: usize, packet: Crossing) {
        let [a, b] = &mut self.ends;
        let (from, to) = if from == 0 { (a, b) } else { (b, a) };
        let mut packets = VecDeque::from([packet]);
        let sender = from.d.device.side(&from.d.ram);
        let next = || packets.pop_front();
        to.d.device
            .receive_crossing(&to.d.ram, sender, to.d.now, next);
    }

    /// Delivers a frame in the same way as the engine (`tools/nic/daemon/src/engine/vm.rs`).
    fn deliver(&mut self, to: PortSet, frame: &[u8]) {
        for vm in to.engines().filter(|vm| *vm < 2) {
            let d = &mut self.ends[vm].d;
            if d.device.wants_frame(frame) {
                d.device.receive_frame(&d.ram, frame, d.now);
            }
        }
    }

    /// Sends a frame of a stranger, and checks its destinations.
    fn hear(&mut self, from: SwitchPort, frame: &[u8]) {
        let before = self.switch.counters;
        let to = self.switch.forward(from, frame, self.now);
        let path = frame::peek(frame);
        self.check(from, frame, path.as_ref(), to);
        let after = self.switch.counters;
        assert!(to.is_empty() || after.refused == before.refused);
        let is_far = |path: Path| path.smac == FAR.0 && path.sgid == gid(FAR.1);
        // The third VM may have claimed both addresses, and then it acts as that station.
        let is_far = path.is_some_and(is_far);
        self.far_spoke |= is_far && (matches!(from, SwitchPort::Wire(_)) || !to.is_empty());
        if let Some(mac) = frame.get(6..12).and_then(|mac| mac.try_into().ok()) {
            self.heard.insert(mac);
        }
        self.deliver(to, frame);
    }

    /// Checks the rules for the destinations of a frame.
    fn check(&self, from: SwitchPort, frame: &[u8], path: Option<&Path>, to: PortSet) {
        assert!(!to.has(from), "the frame returns to its port");
        let vm = match from {
            SwitchPort::Wire(_) => None,
            SwitchPort::Guest(vm) | SwitchPort::Engine(vm) => Some(usize::from(vm)),
        };
        if vm.is_none() {
            assert!(to.wires().next().is_none(), "from uplink to uplink");
        }
        if to.is_empty() {
            return;
        }
        for (n, mac) in MACS.iter().enumerate() {
            let is_own = vm == Some(n);
            assert!(
                frame[6..12] != *mac || is_own,
                "with the MAC address of {n}"
            );
        }
        assert!(to.engines().next().is_none() || path.is_some(), "no RoCE");
        let Some(path) = path else {
            return;
        };
        for (n, ip) in IPS.iter().enumerate().take(2) {
            // A frame from an uplink may have the GID of the VM to which it goes as its source: the switch
            // admits a station with the same GID by mistake.
            let is_twice = vm.is_none() && path.dmac == MACS[n];
            let is_own = vm == Some(n) || is_twice;
            // Both honest VMs have their GIDs outside of VLANs. In a VLAN, another station may have
            // the same address.
            let is_its = path.sgid == gid(*ip) && path.vlan.unwrap_or(0) == 0;
            assert!(!is_its || is_own, "with the GID of {n}");
        }
        if let Some(vm) = vm {
            // The third VM may use any address that belongs to no other VM. The loops above have
            // checked the addresses of the others.
            let is_own = path.smac == MACS[vm] || vm == 2;
            assert!(is_own, "RDMA with another address");
        }
        let group = gid(GROUP);
        let is_group = path.dgid == group && path.dmac == mcast::mac(&group);
        for engine in to.engines() {
            let has_mac = |own: &Gid| own.mac == path.dmac && own.vlan == path.vlan;
            let is_claimed = engine == 2 && self.claimed.iter().any(has_mac);
            let is_own = path.dmac == MACS[engine] || is_claimed;
            let is_own = is_own && self.has_gid(engine, &path.dgid);
            assert!(is_own || is_group, "not for the engine of {engine}");
        }
    }

    fn has_gid(&self, vm: usize, of: &[u8; 16]) -> bool {
        let [a, b, c, last] = IPS[vm];
        let own = [gid(IPS[vm]), gid([a, b, c, last + 20])];
        // The third VM may have any GID.
        vm == 2 || own.contains(of)
    }

    /// Posts the remaining messages, and checks that all requests have completed, that every byte
    /// is right, and that no frame of a stranger has affected a QP.
    pub fn finish(mut self) {
        if !self.far_spoke {
            for (n, was) in self.far_was.into_iter().enumerate() {
                let qpn = self.ends[n].far.qpn;
                assert_eq!(self.ends[n].look(qpn), was, "QP of {n} to the far peer");
            }
        }
        while self.posted < MESSAGES {
            self.post();
        }
        for _ in 0..20 {
            self.work();
            self.now += 100_000;
        }
        assert_eq!(self.completed, [MESSAGES, self.receives]);
        let pattern = |seed: u8, n: usize| -> Vec<u8> {
            let bytes = (0..MESSAGES * ROOM).map(|i| (i as u8).wrapping_mul(31) ^ seed);
            bytes.skip(n * ROOM).take(ROOM).collect()
        };
        for n in 0..MESSAGES {
            // A READ takes data from the second VM to the first, and the other operations from the
            // first to the second.
            let seed = if n % 4 == 2 { 2 } else { 1 };
            for (vm, end) in self.ends.iter().enumerate() {
                let at = end.memory.0 + (n * ROOM) as u64;
                let got = end.d.bytes(at, ROOM);
                assert_eq!(got, pattern(seed, n), "message {n} at VM {vm}");
            }
        }
        for end in &mut self.ends {
            for qpn in [end.rc.qpn, end.uc.qpn] {
                assert_eq!(end.look(qpn).0, QpState::Rts.to_raw());
            }
        }
    }
}
