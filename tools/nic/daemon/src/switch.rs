// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The switch decides on the destinations of frames. It has no access to sockets and clocks;
//! [`network`](crate::network) carries out its decisions.
//!
//! | port | station at the port | frames for the port |
//! | --- | --- | --- |
//! | [`Port::Engine`] | the RDMA function of a VM | RoCE for a MAC address of the VM and a GID that its driver has set, or for a group with a member there |
//! | [`Port::Guest`] | the Ethernet of a VM, where stock rxe may run, or a bridge | all other frames for a MAC address of the VM, for an address learned there, for groups and for unknown addresses |
//! | [`Port::Wire`] | another switch, over an uplink | frames for an address learned there, for groups and for unknown addresses |
//!
//! The switch learns addresses for each VLAN separately, forgets them after [`AGE`], and forwards
//! whether or not a driver is loaded. A frame never returns to the port where it came from, and a
//! VM, which is one station with two ports, does not receive its own frames to groups. Nor does a
//! frame go from one wire to another: switches with several wires are connected in a full mesh, so
//! the stations on the other wire have received it already.
//!
//! # Permitted source addresses
//!
//! The MAC address of a VM's NIC is given with the VM. A VM has other MAC addresses while its
//! driver has a GID set with them ([`Switch::claim`]), which the host's [policy](crate::policy) has
//! to allow. No other station may send with an address of either kind: a frame that does is a
//! forgery, or has passed a loop. A VM sends RDMA with its MAC addresses, and from its Ethernet
//! also with others that the policy allows. It does not send RDMA with a GID that is another VM's
//! in that VLAN, or that the policy does not allow. These make a GID a VM's, the strongest first:
//! the GID is given to the VM (named in its policy, or the link-local address of a MAC address that
//! is given to it); its driver has set the GID, and no other driver had before; software RDMA of
//! its guest (stock rxe) was the first to use it, and used it within [`AGE`]. A GID that was only
//! used, and to which no other station has sent, yields to a driver: the mere use of an address
//! does not keep it. RoCE in fragments and after IP options, which stock rxe would accept too, is
//! sent by no adapter and is refused.
//!
//! In plain Ethernet a guest may have other stations at its port, but may not take an address that
//! was heard on another port within [`HOLD`]. A wire may, because stations move. But an address
//! that has sent RDMA on one wire within [`HOLD`] moves to another wire only with RDMA: a guest can
//! send RDMA only with its own addresses, which the switch at its port has verified. A driver does
//! not get a MAC address that was heard on another guest within [`HOLD`], or on a wire within
//! [`AGE`]. The number of addresses that are learned at a port is bounded ([`GUEST_ADDRESSES`],
//! [`WIRE_ADDRESSES`]): frames to further addresses are flooded.

mod disguise;
mod names;

use crate::policy::Policy;
use disguise::is_disguised;
use names::Names;
use std::collections::{HashMap, HashSet};
use verbena_abi::syndrome::Syndrome;
use verbena_device::objects::mcast;
use verbena_device::{Addresses, Gid as Entry};
use verbena_transport::frame;
use verbena_transport::wire::Path;

type Mac = [u8; 6];
type Gid = [u8; 16];

/// Time that an address is remembered without being heard, in nanoseconds (IEEE 802.1Q 8.8.3).
pub const AGE: u64 = 300_000_000_000;
/// Time in which a guest cannot take over an address that was heard elsewhere, in nanoseconds.
pub const HOLD: u64 = 5_000_000_000;
/// Largest number of addresses that are learned at one guest's port.
pub const GUEST_ADDRESSES: usize = 1024;
/// Largest number of addresses that are learned on a wire.
pub const WIRE_ADDRESSES: usize = 8192;
/// Largest number of GIDs of one guest's software RDMA that are remembered.
pub const GUEST_GIDS: usize = 256;
/// Largest number of VMs in one process.
pub const MAX_VMS: u8 = 16;
/// Largest number of uplinks of one process.
pub const MAX_WIRES: u8 = 8;
/// Shortest interval between two searches of a full table for old entries, in nanoseconds.
const SWEEP: u64 = 1_000_000_000;

/// A port of the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Port {
    /// An uplink, by its number.
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

    /// Returns the index of the count of addresses that are learned at this port.
    fn place(self) -> usize {
        usize::from(match self {
            Port::Wire(wire) => wire % MAX_WIRES,
            Port::Guest(vm) | Port::Engine(vm) => MAX_WIRES + vm % MAX_VMS,
        })
    }

    /// Returns the largest number of addresses that are learned at this port.
    fn room(self) -> usize {
        match self {
            Port::Wire(_) => WIRE_ADDRESSES,
            Port::Guest(_) => GUEST_ADDRESSES,
            // An RDMA function has only given addresses, which are not learned.
            Port::Engine(_) => 0,
        }
    }
}

/// A set of ports of the switch.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Ports(u64);

impl Ports {
    /// True if `port` is in the set.
    pub fn has(self, port: Port) -> bool {
        self.0 & port.bit() != 0
    }

    /// True if the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the uplinks in the set.
    pub fn wires(self) -> impl Iterator<Item = usize> {
        (0..MAX_WIRES)
            .filter(move |w| self.has(Port::Wire(*w)))
            .map(usize::from)
    }

    /// Returns the VMs whose RDMA function is in the set.
    pub fn engines(self) -> impl Iterator<Item = usize> {
        (0..MAX_VMS)
            .filter(move |vm| self.has(Port::Engine(*vm)))
            .map(usize::from)
    }

    /// Returns the VMs whose Ethernet is in the set.
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

/// Counts of frames by the switch's decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Frames that were flooded, because they were for a group or an unknown address.
    pub flooded: u64,
    /// Frames that were not forwarded: their sender used another's address, they are RoCE in a form
    /// that no adapter sends, or they are malformed.
    pub refused: u64,
    /// Frames that were forwarded, but for whose sender's address there was no room.
    pub unlearned: u64,
}

/// Port and time at which an address was heard last.
struct Heard {
    port: Port,
    at: u64,
    /// Time at which the address last sent RDMA there.
    spoke_rdma: Option<u64>,
}

impl Heard {
    /// True if the address may be heard on the port `to` now.
    fn may_move(&self, to: Port, with_rdma: bool, now: u64) -> bool {
        let is_held = |at: u64| now.saturating_sub(at) < HOLD;
        match to.vm() {
            Some(_) => !is_held(self.at),
            None => with_rdma || !self.spoke_rdma.is_some_and(is_held),
        }
    }
}

/// The addresses of an Ethernet header, with its VLAN.
struct Header {
    to: Mac,
    from: Mac,
    vlan: u16,
}

/// True if an address, or a frame by its destination, is a group's (IEEE 802, 8.2: the first bit
/// that is sent).
pub(crate) fn is_group(address: &[u8]) -> bool {
    address.first().is_some_and(|first| first & 1 != 0)
}

impl Header {
    /// Reads the header of a frame. Returns `None` if no station sends such a frame.
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

    /// True if the frame is for the neighbour on the link, and not for stations beyond it (IEEE
    /// 802.1Q 8.6.3).
    fn is_for_link(&self) -> bool {
        self.to[..5] == [1, 0x80, 0xc2, 0, 0] && self.to[5] < 0x10
    }
}

/// The switch, with the addresses that it knows.
#[derive(Default)]
pub struct Switch {
    names: Names,
    /// Multicast groups that have members on each VM's device.
    groups: Vec<HashSet<Gid>>,
    wires: u8,
    heard: HashMap<(u16, Mac), Heard>,
    /// Number of learned addresses of each port.
    learned: [usize; MAX_WIRES as usize + MAX_VMS as usize],
    next_sweep: u64,
    /// Counts of frames by the switch's decision.
    pub tally: Tally,
}

impl Switch {
    /// Returns a switch with `wires` uplinks, and without VMs.
    pub fn new(wires: u8) -> Self {
        Self {
            wires: wires.min(MAX_WIRES),
            ..Self::default()
        }
    }

    /// Adds a VM with the MAC address of its NIC, and any IP address. Returns its number, or `None`
    /// if there are too many VMs, or one has that address.
    pub fn add(&mut self, mac: Mac) -> Option<u8> {
        self.add_with(mac, Policy::default())
    }

    /// Adds a VM as [`add`](Self::add) does, with the policy of the host.
    pub fn add_with(&mut self, mac: Mac, policy: Policy) -> Option<u8> {
        let number = self.names.add(mac, policy)?;
        self.groups.push(HashSet::new());
        Some(number)
    }

    /// Decides if a VM's driver may set an entry of its GID table.
    ///
    /// # Errors
    ///
    /// The cause of the refusal.
    pub fn claim(&mut self, vm: u8, entry: &Entry, now: u64) -> Result<(), Syndrome> {
        let heard = self.heard.get(&(entry.vlan.unwrap_or(0), entry.mac));
        let is_elsewhere = heard.is_some_and(|heard| match heard.port {
            Port::Wire(_) => is_fresh(heard.at, now),
            port => port.vm() != Some(vm) && now.saturating_sub(heard.at) < HOLD,
        });
        self.names.claim(vm, entry, is_elsewhere, now)
    }

    /// Sets the GIDs and groups of a VM's device. Other VMs may have the GIDs that it has dropped.
    pub fn set_addresses(&mut self, vm: u8, addresses: &Addresses) {
        if let Some(groups) = self.groups.get_mut(usize::from(vm)) {
            *groups = addresses.groups.iter().copied().collect();
        }
        self.names.keep(vm, &addresses.gids);
    }

    /// Returns the destinations of a frame that came from a port.
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

    /// Returns the VM whose RDMA function is the destination of another VM's packet, if the sender
    /// may use its addresses: the result of [`Switch::forward`] for the packet's frame. Returns
    /// `None` if the frame itself has to be forwarded.
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

    /// True if a frame's sender may use its addresses. The switch then learns them.
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

    /// True if a station on a wire sends to a VM with a GID that is that VM's own: both have the
    /// same address, by mistake. A connection between them that existed before goes on.
    fn is_twice(&self, from: Port, to: Option<u8>, path: &Path) -> bool {
        let is_its = to.is_some_and(|vm| self.names.comes_from(vm, path));
        matches!(from, Port::Wire(_)) && is_its
    }

    /// Learns the port of an address. Returns false if another port holds the address.
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
            // The address is not where it was heard before.
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

    /// Forgets addresses that were not heard for [`AGE`], at most once in [`SWEEP`].
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

    /// Returns the port where a frame's destination was heard.
    fn known(&self, header: &Header, now: u64) -> Option<Port> {
        let heard = self.heard.get(&(header.vlan, header.to))?;
        is_fresh(heard.at, now).then_some(heard.port)
    }

    /// Returns the ports that receive frames for a group, without those of the sending VM, which is
    /// one station.
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

    /// Returns the wires, and the guests of the VMs for which `among` is true.
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
