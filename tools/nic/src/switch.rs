// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The switch: where a frame goes. It knows neither sockets nor time; [`network`](crate::network) does what it says.
//!
//! | port | who is behind it | how a frame gets there |
//! | --- | --- | --- |
//! | [`Port::Engine`] | the RDMA function of a VM | RoCE for the VM's MAC address and a GID that its driver has set, or for a group with a member there |
//! | [`Port::Guest`] | the Ethernet of a VM, where stock rxe may run, or a bridge | all else for the VM's MAC address, for an address learned there, for groups and for the unknown |
//! | [`Port::Wire`] | another switch, behind an uplink | what is for an address learned there, for groups and for the unknown |
//!
//! It learns addresses for each VLAN apart, forgets them after [`AGE`], and forwards whether or not a driver is loaded. A frame never
//! goes back to the port where it came from, and a VM, which is one station with two ports, does not hear its own groups. Nor does
//! a frame go from one wire to another: switches with several wires are joined each with each, and whoever is behind the other
//! wire has it already.
//!
//! # Who may say what
//!
//! The MAC address of a VM is given with the VM, so nobody else speaks with it: what comes from elsewhere is a forgery, or went round a
//! loop. A VM speaks RDMA with no other MAC address, and with no GID that is another VM's here: its driver has set it first, or it
//! was used first and within [`AGE`]. That holds for stock rxe in a guest as well, which would also take RoCE in fragments and behind IP
//! options: nobody sends that, and nobody may. In plain Ethernet a guest may have
//! others behind it, but not take an address that was heard on another port within [`HOLD`]; the wire may, because stations move. But an
//! address that has spoken RDMA on one wire within [`HOLD`] moves to another only with RDMA: what a guest sends of that has its own address,
//! which the switch that it is behind has seen to.
//! What a port has others learn is bounded ([`GUEST_ADDRESSES`], [`WIRE_ADDRESSES`]): beyond that, frames to them are flooded.

mod disguise;

use disguise::is_disguised;
use std::collections::{HashMap, HashSet};
use verbena_device::objects::mcast;
use verbena_device::Addresses;
use verbena_roce::wire::{frame, Path};

type Mac = [u8; 6];
type Gid = [u8; 16];

/// So many nanoseconds an address is remembered that is not heard (IEEE 802.1Q 8.8.3).
pub const AGE: u64 = 300_000_000_000;
/// So long a guest cannot take over an address that was heard elsewhere.
pub const HOLD: u64 = 5_000_000_000;
/// Addresses that are learned behind one guest.
pub const GUEST_ADDRESSES: usize = 1024;
/// Addresses that are learned on a wire.
pub const WIRE_ADDRESSES: usize = 8192;
/// GIDs that are remembered of one guest's software RDMA.
pub const GUEST_GIDS: usize = 256;
/// VMs in one process.
pub const MAX_VMS: u8 = 16;
/// Uplinks of one process.
pub const MAX_WIRES: u8 = 8;
/// A full table is looked through for what is too old this often, in nanoseconds.
const SWEEP: u64 = 1_000_000_000;

/// A port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Port {
    /// An uplink.
    Wire(u8),
    /// The Ethernet of a VM.
    Guest(u8),
    /// The RDMA function of a VM.
    Engine(u8),
}

impl Port {
    fn bit(self) -> u64 {
        1 << match self {
            Port::Wire(wire) => wire % MAX_WIRES,
            Port::Guest(vm) => MAX_WIRES + vm % MAX_VMS,
            Port::Engine(vm) => MAX_WIRES + MAX_VMS + vm % MAX_VMS,
        }
    }

    fn vm(self) -> Option<u8> {
        match self {
            Port::Wire(_) => None,
            Port::Guest(vm) | Port::Engine(vm) => Some(vm),
        }
    }

    /// Where what is learned there is counted.
    fn place(self) -> usize {
        usize::from(match self {
            Port::Wire(wire) => wire % MAX_WIRES,
            Port::Guest(vm) | Port::Engine(vm) => MAX_WIRES + vm % MAX_VMS,
        })
    }

    /// How many addresses are learned there.
    fn room(self) -> usize {
        match self {
            Port::Wire(_) => WIRE_ADDRESSES,
            Port::Guest(_) => GUEST_ADDRESSES,
            // It has the one that was given.
            Port::Engine(_) => 0,
        }
    }
}

/// A set of ports.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Ports(u64);

impl Ports {
    /// Whether a port is among them.
    pub fn has(self, port: Port) -> bool {
        self.0 & port.bit() != 0
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The uplinks among them.
    pub fn wires(self) -> impl Iterator<Item = usize> {
        (0..MAX_WIRES)
            .filter(move |w| self.has(Port::Wire(*w)))
            .map(usize::from)
    }

    /// The VMs whose RDMA function is among them.
    pub fn engines(self) -> impl Iterator<Item = usize> {
        (0..MAX_VMS)
            .filter(move |vm| self.has(Port::Engine(*vm)))
            .map(usize::from)
    }

    /// The VMs whose Ethernet is among them.
    pub fn guests(self) -> impl Iterator<Item = usize> {
        (0..MAX_VMS)
            .filter(move |vm| self.has(Port::Guest(*vm)))
            .map(usize::from)
    }

    fn add(&mut self, port: Port) {
        self.0 |= port.bit();
    }

    fn remove(&mut self, port: Port) {
        self.0 &= !port.bit();
    }
}

impl From<Port> for Ports {
    fn from(port: Port) -> Self {
        Self(port.bit())
    }
}

impl std::fmt::Debug for Ports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let vms = (0..MAX_VMS).flat_map(|vm| [Port::Guest(vm), Port::Engine(vm)]);
        let all = (0..MAX_WIRES).map(Port::Wire).chain(vms);
        f.debug_set().entries(all.filter(|p| self.has(*p))).finish()
    }
}

/// What became of frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// For a group, or for an address that was not known.
    pub flooded: u64,
    /// Not forwarded: their sender spoke in another's name, they are RoCE in a form that no adapter sends, or no frames.
    pub refused: u64,
    /// Forwarded, but the address of their sender found no room.
    pub unlearned: u64,
}

/// A VM.
struct Vm {
    mac: Mac,
    /// What its device answers to.
    addresses: Addresses,
    groups: HashSet<Gid>,
}

/// Where an address was heard last, and when.
struct Heard {
    port: Port,
    at: u64,
    /// When it spoke RDMA there last.
    spoke_rdma: Option<u64>,
}

impl Heard {
    /// Whether it may be heard on another port now.
    fn may_move(&self, to: Port, with_rdma: bool, now: u64) -> bool {
        let is_held = |at: u64| now.saturating_sub(at) < HOLD;
        match to.vm() {
            Some(_) => !is_held(self.at),
            None => with_rdma || !self.spoke_rdma.is_some_and(is_held),
        }
    }
}

/// Whose a GID is.
struct Holder {
    vm: u8,
    /// When it was used last; none: its driver has set it.
    used: Option<u64>,
}

/// The Ethernet header.
struct Header {
    to: Mac,
    from: Mac,
    vlan: u16,
}

/// Whether an address, or a frame by its destination, is a group's (IEEE 802, 8.2: the first bit that leaves).
pub(crate) fn is_group(address: &[u8]) -> bool {
    address.first().is_some_and(|first| first & 1 != 0)
}

impl Header {
    /// None: no frame that a station sends.
    fn read(frame: &[u8]) -> Option<Self> {
        let (to, rest) = frame.split_first_chunk()?;
        let (from, rest) = rest.split_first_chunk::<6>()?;
        let (kind, rest) = rest.split_first_chunk::<2>()?;
        let vlan = match (u16::from_be_bytes(*kind), rest.first_chunk::<2>()) {
            (0x8100, Some(tag)) => u16::from_be_bytes(*tag) & 0xfff,
            _ => 0,
        };
        let is_station = !is_group(from) && *from != [0; 6];
        is_station.then_some(Self {
            to: *to,
            from: *from,
            vlan,
        })
    }

    fn is_to_group(&self) -> bool {
        is_group(&self.to)
    }

    /// What is between two neighbours of a link, and not for those behind (IEEE 802.1Q 8.6.3).
    fn is_for_link(&self) -> bool {
        self.to[..5] == [1, 0x80, 0xc2, 0, 0] && self.to[5] < 0x10
    }
}

/// The switch.
#[derive(Default)]
pub struct Switch {
    vms: Vec<Vm>,
    wires: u8,
    heard: HashMap<(u16, Mac), Heard>,
    /// How many of those there are of each port.
    learned: [usize; MAX_WIRES as usize + MAX_VMS as usize],
    gids: HashMap<Gid, Holder>,
    next_sweep: u64,
    /// What became of frames.
    pub tally: Tally,
}

impl Switch {
    /// A switch with so many uplinks, and without VMs.
    pub fn new(wires: u8) -> Self {
        Self {
            wires: wires.min(MAX_WIRES),
            ..Self::default()
        }
    }

    /// Adds a VM with its MAC address. None: there are too many, or one has that address.
    pub fn add(&mut self, mac: Mac) -> Option<u8> {
        let number = u8::try_from(self.vms.len()).ok()?;
        if number >= MAX_VMS || self.owner(&mac).is_some() {
            return None;
        }
        self.vms.push(Vm {
            mac,
            addresses: Addresses::default(),
            groups: HashSet::new(),
        });
        Some(number)
    }

    /// A VM's device answers to other GIDs and groups from now on. Returns a GID that it does not get, because it is another's.
    pub fn set_addresses(&mut self, vm: u8, addresses: Addresses, now: u64) -> Option<Gid> {
        let it = self.vms.get_mut(usize::from(vm))?;
        it.groups = addresses.groups.iter().copied().collect();
        it.addresses = addresses;
        self.gids
            .retain(|_, h| h.vm != vm && h.used.is_none_or(|at| is_fresh(at, now)));
        // What it has let go may be another's turn.
        let mut denied = None;
        for (number, it) in (0..).zip(&self.vms) {
            for gid in &it.addresses.gids {
                let holder = Holder {
                    vm: number,
                    used: None,
                };
                let held = self.gids.entry(*gid).or_insert(holder);
                if held.vm == number {
                    held.used = None;
                } else if number == vm {
                    denied = Some(*gid);
                }
            }
        }
        denied
    }

    /// Where a frame goes that came from a port.
    pub fn forward(&mut self, from: Port, frame: &[u8], now: u64) -> Ports {
        let roce = frame::peek(frame);
        let header = Header::read(frame)
            .filter(|_| roce.is_some() || !is_disguised(frame))
            .filter(|h| self.may_say(from, h, roce.as_ref(), now));
        let Some(header) = header else {
            self.tally.refused += 1;
            return Ports::default();
        };
        let mut to = self.destinations(from, &header, roce.as_ref(), now);
        if matches!(from, Port::Wire(_)) {
            (0..self.wires).for_each(|wire| to.remove(Port::Wire(wire)));
        }
        to.remove(from);
        to
    }

    /// The VM whose RDMA function a packet of another's is for, if it may say what it says: what [`Switch::forward`] would find for
    /// its frame. None: its frame is to be seen to.
    pub fn engine_for(&mut self, from: u8, path: &Path, now: u64) -> Option<u8> {
        let vm = self.owner(&path.dmac).filter(|vm| *vm != from)?;
        let is_engine = |holder: &&Holder| holder.vm == vm && holder.used.is_none();
        self.gids.get(&path.dgid).filter(is_engine)?;
        let is_own = self.owner(&path.smac) == Some(from);
        (is_own && self.may_use(Port::Engine(from), &path.sgid, now)).then_some(vm)
    }

    fn owner(&self, mac: &Mac) -> Option<u8> {
        (0..)
            .zip(&self.vms)
            .find_map(|(n, vm)| (vm.mac == *mac).then_some(n))
    }

    /// Whether a frame's sender may speak with its addresses, which are learned.
    fn may_say(&mut self, from: Port, header: &Header, roce: Option<&Path>, now: u64) -> bool {
        let owner = self.owner(&header.from);
        if owner.is_some() && owner != from.vm() {
            return false;
        }
        if let Some(path) = roce {
            if from.vm() != owner {
                return false;
            }
            let to = self.owner(&header.to);
            if !self.may_use(from, &path.sgid, now) && !self.is_twice(from, to, &path.sgid) {
                return false;
            }
        }
        owner.is_some() || self.learn(from, header, roce.is_some(), now)
    }

    /// Whether a GID with which somebody behind a wire speaks to a VM is that VM's own: two have the same address, by mistake. To
    /// whom it was connected before, it stays so.
    fn is_twice(&self, from: Port, to: Option<u8>, gid: &Gid) -> bool {
        let holder = self.gids.get(gid).map(|holder| holder.vm);
        matches!(from, Port::Wire(_)) && to.is_some() && holder == to
    }

    /// Whether a port may speak RDMA with a GID: it is nobody's, or its VM's.
    fn may_use(&mut self, from: Port, gid: &Gid, now: u64) -> bool {
        if let Some(holder) = self.gids.get_mut(gid) {
            if holder.used.is_none_or(|at| is_fresh(at, now)) {
                if from.vm() == Some(holder.vm) {
                    holder.used = holder.used.map(|_| now);
                }
                return from.vm() == Some(holder.vm);
            }
        }
        if let Port::Guest(vm) = from {
            let used = Some(now);
            let count = self.gids.values().filter(|h| h.vm == vm).count();
            if count >= GUEST_GIDS {
                self.sweep(now);
            }
            if count < GUEST_GIDS || self.gids.contains_key(gid) {
                self.gids.insert(*gid, Holder { vm, used });
            }
        }
        true
    }

    /// Remembers where an address is. False: it is somebody's elsewhere.
    fn learn(&mut self, from: Port, header: &Header, with_rdma: bool, now: u64) -> bool {
        let place = from.place();
        let key = (header.vlan, header.from);
        let spoke_rdma = with_rdma.then_some(now);
        if let Some(heard) = self.heard.get_mut(&key) {
            if heard.port == from {
                heard.at = now;
                heard.spoke_rdma = spoke_rdma.or(heard.spoke_rdma);
                return true;
            }
            if !heard.may_move(from, with_rdma, now) {
                return false;
            }
        }
        if self.learned[place] >= from.room() {
            self.sweep(now);
        }
        if self.learned[place] >= from.room() {
            self.tally.unlearned += 1;
            // It is not where it was heard before.
            if let Some(old) = self.heard.remove(&key) {
                self.learned[old.port.place()] -= 1;
            }
            return true;
        }
        let heard = Heard {
            port: from,
            at: now,
            spoke_rdma,
        };
        if let Some(old) = self.heard.insert(key, heard) {
            self.learned[old.port.place()] -= 1;
        }
        self.learned[place] += 1;
        true
    }

    /// Forgets what was not heard for long, but does not look for that all the time.
    fn sweep(&mut self, now: u64) {
        if now < self.next_sweep {
            return;
        }
        self.next_sweep = now + SWEEP;
        self.gids
            .retain(|_, h| h.used.is_none_or(|at| is_fresh(at, now)));
        self.heard.retain(|_, heard| is_fresh(heard.at, now));
        self.learned.fill(0);
        for heard in self.heard.values() {
            self.learned[heard.port.place()] += 1;
        }
    }

    fn destinations(
        &mut self,
        from: Port,
        header: &Header,
        roce: Option<&Path>,
        now: u64,
    ) -> Ports {
        if header.is_for_link() {
            return Ports::default();
        }
        if header.is_to_group() {
            return self.group(from, header, roce);
        }
        if let Some(vm) = self.owner(&header.to) {
            let holder = roce.and_then(|path| self.gids.get(&path.dgid));
            let is_engine = holder.is_some_and(|h| h.vm == vm && h.used.is_none());
            return if is_engine {
                Port::Engine(vm).into()
            } else {
                Port::Guest(vm).into()
            };
        }
        match self.heard.get(&(header.vlan, header.to)) {
            Some(heard) if is_fresh(heard.at, now) => heard.port.into(),
            _ => self.everyone(|_| true),
        }
    }

    /// All who hear a group: not the VM that speaks, which is one station.
    fn group(&mut self, from: Port, header: &Header, roce: Option<&Path>) -> Ports {
        let mut to = self.everyone(|vm| from.vm() != Some(vm));
        let Some(path) = roce.filter(|p| header.to == mcast::mac(&p.dgid)) else {
            return to;
        };
        for (number, vm) in (0..).zip(&self.vms) {
            if from.vm() != Some(number) && vm.groups.contains(&path.dgid) {
                to.add(Port::Engine(number));
            }
        }
        to
    }

    /// The wires and the guests of some VMs.
    fn everyone(&mut self, among: impl Fn(u8) -> bool) -> Ports {
        self.tally.flooded += 1;
        let mut to = Ports::default();
        (0..self.wires).for_each(|wire| to.add(Port::Wire(wire)));
        for (vm, _) in (0..).zip(&self.vms) {
            if among(vm) {
                to.add(Port::Guest(vm));
            }
        }
        to
    }
}

fn is_fresh(at: u64, now: u64) -> bool {
    now.saturating_sub(at) < AGE
}

#[cfg(test)]
mod tests;
