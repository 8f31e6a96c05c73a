// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The switch: where a frame goes. It knows neither sockets nor time; [`network`](crate::network) does what it says.
//!
//! | port | who is behind it | how a frame gets there |
//! | --- | --- | --- |
//! | [`Port::Engine`] | the RDMA function of a VM | RoCE for a MAC address of the VM's and a GID that its driver has set, or for a group with a member there |
//! | [`Port::Guest`] | the Ethernet of a VM, where stock rxe may run, or a bridge | all else for a MAC address of the VM's, for an address learned there, for groups and for the unknown |
//! | [`Port::Wire`] | another switch, behind an uplink | what is for an address learned there, for groups and for the unknown |
//!
//! It learns addresses for each VLAN apart, forgets them after [`AGE`], and forwards whether or not a driver is loaded. A frame never
//! goes back to the port where it came from, and a VM, which is one station with two ports, does not hear its own groups. Nor does
//! a frame go from one wire to another: switches with several wires are joined each with each, and whoever is behind the other
//! wire has it already.
//!
//! # Who may say what
//!
//! The MAC address of a VM's NIC is given with the VM. Others it has as long as its driver has set a GID with them ([`Switch::claim`]), for
//! which the host's [policy](crate::policy) is asked. With either nobody else speaks: what comes from elsewhere is a forgery, or went
//! round a loop. A VM speaks RDMA with its MAC addresses, and from its Ethernet with others that the policy lets it have. It speaks RDMA
//! with no GID that is another VM's in that VLAN, or that the policy does not let it have. A GID is a VM's in this order: it is
//! given to it (named in its policy, or the link-local address of a MAC address that is given to it); its driver has set it, and no other
//! had before; software RDMA of its guest (stock rxe) has used it first and within [`AGE`]. What was only used, and nobody else has spoken to, gives
//! way to a driver: saying that one has an address does not keep it. RoCE in fragments and behind IP options, which stock rxe would also
//! take, nobody sends and nobody may.
//!
//! In plain Ethernet a guest may have
//! others behind it, but not take an address that was heard on another port within [`HOLD`]; the wire may, because stations move. But an
//! address that has spoken RDMA on one wire within [`HOLD`] moves to another only with RDMA: what a guest sends of that has its own address,
//! which the switch that it is behind has seen to. A driver does not get a MAC address that was heard on another guest within [`HOLD`], or on a
//! wire within [`AGE`].
//! What a port has others learn is bounded ([`GUEST_ADDRESSES`], [`WIRE_ADDRESSES`]): beyond that, frames to them are flooded.

mod disguise;
mod names;

use crate::policy::Policy;
use disguise::is_disguised;
use names::Names;
use std::collections::{HashMap, HashSet};
use verbena_abi::syndrome::Syndrome;
use verbena_device::objects::mcast;
use verbena_device::{Addresses, Gid as Entry};
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
    names: Names,
    /// The multicast groups that have members on each VM's device.
    groups: Vec<HashSet<Gid>>,
    wires: u8,
    heard: HashMap<(u16, Mac), Heard>,
    /// How many of those there are of each port.
    learned: [usize; MAX_WIRES as usize + MAX_VMS as usize],
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

    /// Adds a VM with the MAC address of its NIC, and any IP address. None: there are too many, or one has that address.
    pub fn add(&mut self, mac: Mac) -> Option<u8> {
        self.add_with(mac, Policy::default())
    }

    /// The same with what the host lets it have.
    pub fn add_with(&mut self, mac: Mac, policy: Policy) -> Option<u8> {
        let number = self.names.add(mac, policy)?;
        self.groups.push(HashSet::new());
        Some(number)
    }

    /// A VM's driver wants to set an entry of its GID table.
    ///
    /// # Errors
    ///
    /// It does not get it: why.
    pub fn claim(&mut self, vm: u8, entry: &Entry, now: u64) -> Result<(), Syndrome> {
        let heard = self.heard.get(&(entry.vlan.unwrap_or(0), entry.mac));
        let is_elsewhere = heard.is_some_and(|heard| match heard.port {
            Port::Wire(_) => is_fresh(heard.at, now),
            port => port.vm() != Some(vm) && now.saturating_sub(heard.at) < HOLD,
        });
        self.names.claim(vm, entry, is_elsewhere, now)
    }

    /// A VM's device answers to other GIDs and groups from now on. What it has let go of others may have.
    pub fn set_addresses(&mut self, vm: u8, addresses: &Addresses) {
        if let Some(groups) = self.groups.get_mut(usize::from(vm)) {
            *groups = addresses.groups.iter().copied().collect();
        }
        self.names.keep(vm, &addresses.gids);
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
        let vlan = path.vlan.unwrap_or(0);
        let vm = self.names.owner(vlan, &path.dmac);
        let vm = vm.filter(|vm| *vm != from && self.names.is_set(*vm, path))?;
        let is_own = self.names.owner(vlan, &path.smac) == Some(from);
        (is_own && self.names.may_use(Port::Engine(from), path, now)).then_some(vm)
    }

    fn owner(&self, header: &Header, mac: &Mac) -> Option<u8> {
        self.names.owner(header.vlan, mac)
    }

    /// Whether a frame's sender may speak with its addresses, which are learned.
    fn may_say(&mut self, from: Port, header: &Header, roce: Option<&Path>, now: u64) -> bool {
        let owner = self.owner(header, &header.from);
        if owner.is_some() && owner != from.vm() {
            return false;
        }
        if let Some(path) = roce {
            let may_have = match from {
                Port::Wire(_) => true,
                Port::Engine(_) => owner.is_some(),
                Port::Guest(vm) => owner.is_some() || self.names.may_have_mac(vm, &header.from),
            };
            if !may_have {
                return false;
            }
            let to = self.owner(header, &header.to);
            if !self.names.may_use(from, path, now) && !self.is_twice(from, to, path) {
                return false;
            }
        }
        owner.is_some() || self.learn(from, header, roce.is_some(), now)
    }

    /// Whether a GID with which somebody behind a wire speaks to a VM is that VM's own: two have the same address, by mistake. To
    /// whom it was connected before, it stays so.
    fn is_twice(&self, from: Port, to: Option<u8>, path: &Path) -> bool {
        let is_its = to.is_some_and(|vm| self.names.comes_from(vm, path));
        matches!(from, Port::Wire(_)) && is_its
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
        let owner = self.owner(header, &header.to);
        if let (Some(vm), Some(path)) = (owner, roce) {
            if self.names.is_set(vm, path) {
                return Port::Engine(vm).into();
            }
        }
        let to = owner.map(Port::Guest).or_else(|| self.known(header, now));
        if let (Some(vm), Some(path)) = (to.and_then(Port::vm), roce) {
            if from.vm() != Some(vm) {
                self.names.spoken_to(vm, path, now);
            }
        }
        match to {
            Some(to) => to.into(),
            None => self.everyone(|_| true),
        }
    }

    /// Where the station that a frame is for was heard.
    fn known(&self, header: &Header, now: u64) -> Option<Port> {
        let heard = self.heard.get(&(header.vlan, header.to))?;
        is_fresh(heard.at, now).then_some(heard.port)
    }

    /// All who hear a group: not the VM that speaks, which is one station.
    fn group(&mut self, from: Port, header: &Header, roce: Option<&Path>) -> Ports {
        let mut to = self.everyone(|vm| from.vm() != Some(vm));
        let Some(path) = roce.filter(|p| header.to == mcast::mac(&p.dgid)) else {
            return to;
        };
        for (number, groups) in (0..).zip(&self.groups) {
            if from.vm() != Some(number) && groups.contains(&path.dgid) {
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
        for vm in self.names.vms() {
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
