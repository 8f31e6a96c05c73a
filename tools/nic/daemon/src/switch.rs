// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The switch decides on the destinations of frames. It has no access to sockets and clocks;
//! [`network`](crate::network) carries out its decisions.
//!
//! | port | station at the port | frames for the port |
//! | --- | --- | --- |
//! | [`SwitchPort::Engine`] | the RDMA function of a VM | RoCE for a MAC address of the VM and a GID that its driver has set, or for a group with a member there |
//! | [`SwitchPort::Guest`] | the Ethernet of a VM, where stock rxe may run, or a bridge | all other frames for a MAC address of the VM, for an address learned there, for groups and for unknown addresses |
//! | [`SwitchPort::Wire`] | another switch, over an uplink | frames for an address learned there, for groups and for unknown addresses |
//!
//! The switch learns addresses for each VLAN separately, forgets them after [`AGE_NS`], and
//! forwards whether or not a driver is loaded. A frame never returns to the port where it came
//! from, and a VM, which is one station with two ports, does not receive its own frames to groups.
//! Nor does a frame go from one wire to another: switches with several wires are connected in a
//! full mesh, so the stations on the other wire have received it already.
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
//! its guest (stock rxe) was the first to use it, and used it within [`AGE_NS`]. A GID that was
//! only used, and to which no other station has sent, yields to a driver: the mere use of an
//! address does not keep it. RoCE in fragments and after IP options, which stock rxe would accept
//! too, is sent by no adapter and is refused.
//!
//! In plain Ethernet a guest may have other stations at its port, but may not take an address that
//! was heard on another port within [`HOLD_NS`]. A wire may, because stations move. But an address
//! that has sent RDMA on one wire within [`HOLD_NS`] moves to another wire only with RDMA: a guest
//! can send RDMA only with its own addresses, which the switch at its port has verified. A driver
//! does not get a MAC address that was heard on another guest within [`HOLD_NS`], or on a wire
//! within [`AGE_NS`]. The number of addresses that are learned at a port is bounded
//! ([`GUEST_ADDRESSES`], [`WIRE_ADDRESSES`]): frames to further addresses are flooded.

mod address_owners;
mod disguised_roce;

use crate::policy::{MacAddress, Policy, RawGid};
use address_owners::AddressOwners;
use disguised_roce::is_disguised_roce;
use std::collections::{HashMap, HashSet};
use verbena_abi::syndrome::Syndrome;
use verbena_device::objects::mcast;
use verbena_device::{Addresses, Gid as Entry};
use verbena_transport::frame;
use verbena_transport::wire::Path;

/// Time that an address is remembered without being heard, in nanoseconds (IEEE 802.1Q 8.8.3).
pub const AGE_NS: u64 = 300_000_000_000;
/// Time in which a guest cannot take over an address that was heard elsewhere, in nanoseconds.
pub const HOLD_NS: u64 = 5_000_000_000;
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
const SWEEP_INTERVAL_NS: u64 = 1_000_000_000;

/// A port of the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SwitchPort {
    /// An uplink, by its number.
    Wire(u8),
    /// The Ethernet of a VM.
    Guest(u8),
    /// The RDMA function of a VM.
    Engine(u8),
}

impl SwitchPort {
    fn bit(self) -> u64 {
        1 << match self {
            SwitchPort::Wire(wire) => wire % MAX_WIRES,
            SwitchPort::Guest(vm) => MAX_WIRES + vm % MAX_VMS,
            SwitchPort::Engine(vm) => MAX_WIRES + MAX_VMS + vm % MAX_VMS,
        }
    }

    fn vm(self) -> Option<u8> {
        match self {
            SwitchPort::Wire(_) => None,
            SwitchPort::Guest(vm) | SwitchPort::Engine(vm) => Some(vm),
        }
    }

    /// Returns the index of the count of addresses that are learned at this port.
    fn index(self) -> usize {
        usize::from(match self {
            SwitchPort::Wire(wire) => wire % MAX_WIRES,
            SwitchPort::Guest(vm) | SwitchPort::Engine(vm) => MAX_WIRES + vm % MAX_VMS,
        })
    }

    /// Returns the largest number of addresses that are learned at this port.
    fn max_addresses(self) -> usize {
        match self {
            SwitchPort::Wire(_) => WIRE_ADDRESSES,
            SwitchPort::Guest(_) => GUEST_ADDRESSES,
            // An RDMA function has only given addresses, which are not learned.
            SwitchPort::Engine(_) => 0,
        }
    }
}

/// A set of ports of the switch.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct PortSet(u64);

impl PortSet {
    /// True if `port` is in the set.
    pub fn has(self, port: SwitchPort) -> bool {
        self.0 & port.bit() != 0
    }

    /// True if the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the uplinks in the set.
    pub fn wires(self) -> impl Iterator<Item = usize> {
        (0..MAX_WIRES)
            .filter(move |w| self.has(SwitchPort::Wire(*w)))
            .map(usize::from)
    }

    /// Returns the VMs whose RDMA function is in the set.
    pub fn engines(self) -> impl Iterator<Item = usize> {
        (0..MAX_VMS)
            .filter(move |vm| self.has(SwitchPort::Engine(*vm)))
            .map(usize::from)
    }

    /// Returns the VMs whose Ethernet is in the set.
    pub fn guests(self) -> impl Iterator<Item = usize> {
        (0..MAX_VMS)
            .filter(move |vm| self.has(SwitchPort::Guest(*vm)))
            .map(usize::from)
    }

    fn add(&mut self, port: SwitchPort) {
        self.0 |= port.bit();
    }

    fn remove(&mut self, port: SwitchPort) {
        self.0 &= !port.bit();
    }
}

impl FromIterator<SwitchPort> for PortSet {
    fn from_iter<I: IntoIterator<Item = SwitchPort>>(ports: I) -> Self {
        let mut set = Self::default();
        ports.into_iter().for_each(|port| set.add(port));
        set
    }
}

impl From<SwitchPort> for PortSet {
    fn from(port: SwitchPort) -> Self {
        Self(port.bit())
    }
}

impl std::fmt::Debug for PortSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let vms = (0..MAX_VMS).flat_map(|vm| [SwitchPort::Guest(vm), SwitchPort::Engine(vm)]);
        let all = (0..MAX_WIRES).map(SwitchPort::Wire).chain(vms);
        f.debug_set().entries(all.filter(|p| self.has(*p))).finish()
    }
}

/// Counts of frames by the switch's decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitchCounters {
    /// Frames that were flooded, because they were for a group or an unknown address.
    pub flooded: u64,
    /// Frames that were not forwarded: their sender used another's address, they are RoCE in a form
    /// that no adapter sends, or they are malformed.
    pub refused: u64,
    /// Frames that were forwarded, but for whose sender's address there was no room.
    pub unlearned: u64,
}

/// Port and time at which an address was heard last.
struct AddressLocation {
    port: SwitchPort,
    last_heard_ns: u64,
    /// Time at which the address last sent RDMA there.
    last_rdma_ns: Option<u64>,
}

impl AddressLocation {
    /// True if the address may be heard on the port `to` now.
    fn may_move(&self, to: SwitchPort, with_rdma: bool, now: u64) -> bool {
        let is_held = |at: u64| now.saturating_sub(at) < HOLD_NS;
        match to.vm() {
            Some(_) => !is_held(self.last_heard_ns),
            None => with_rdma || !self.last_rdma_ns.is_some_and(is_held),
        }
    }
}

/// The addresses of an Ethernet header, with its VLAN.
struct EthernetHeader {
    to: MacAddress,
    from: MacAddress,
    vlan: u16,
}

/// True if an address is a group's (IEEE 802, 8.2: the first bit that is sent).
fn is_group(address: &[u8]) -> bool {
    address.first().is_some_and(|first| first & 1 != 0)
}

impl EthernetHeader {
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
    owners: AddressOwners,
    /// Multicast groups that have members on each VM's device.
    groups: Vec<HashSet<RawGid>>,
    wires: u8,
    locations: HashMap<(u16, MacAddress), AddressLocation>,
    /// Number of learned addresses of each port.
    learned: [usize; MAX_WIRES as usize + MAX_VMS as usize],
    next_sweep_ns: u64,
    /// Counts of frames by the switch's decision.
    pub counters: SwitchCounters,
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
    pub fn add(&mut self, mac: MacAddress) -> Option<u8> {
        self.add_with(mac, Policy::default())
    }

    /// Adds a VM as [`add`](Self::add) does, with the policy of the host.
    pub fn add_with(&mut self, mac: MacAddress, policy: Policy) -> Option<u8> {
        let number = self.owners.add(mac, policy)?;
        self.groups.push(HashSet::new());
        Some(number)
    }

    /// Decides if a VM's driver may set an entry of its GID table.
    ///
    /// # Errors
    ///
    /// The cause of the refusal.
    pub fn claim(&mut self, vm: u8, entry: &Entry, now: u64) -> Result<(), Syndrome> {
        let location = self.locations.get(&(entry.vlan.unwrap_or(0), entry.mac));
        let is_elsewhere = location.is_some_and(|location| match location.port {
            SwitchPort::Wire(_) => is_fresh(location.last_heard_ns, now),
            port => port.vm() != Some(vm) && now.saturating_sub(location.last_heard_ns) < HOLD_NS,
        });
        self.owners.claim(vm, entry, is_elsewhere, now)
    }

    /// Sets the GIDs and groups of a VM's device. Other VMs may have the GIDs that it has dropped.
    pub fn set_addresses(&mut self, vm: u8, addresses: &Addresses) {
        if let Some(groups) = self.groups.get_mut(usize::from(vm)) {
            *groups = addresses.groups.iter().copied().collect();
        }
        self.owners.retain_entries(vm, &addresses.gids);
    }

    /// Returns the destinations of a frame that came from a port.
    pub fn forward(&mut self, from: SwitchPort, frame: &[u8], now: u64) -> PortSet {
        let roce = frame::peek(frame);
        let header = EthernetHeader::read(frame)
            .filter(|_| roce.is_some() || !is_disguised_roce(frame))
            .filter(|h| self.may_send(from, h, roce.as_ref(), now));
        let Some(header) = header else {
            self.counters.refused += 1;
            return PortSet::default();
        };
        let mut to = self.destinations(from, &header, roce.as_ref(), now);
        if matches!(from, SwitchPort::Wire(_)) {
            (0..self.wires).for_each(|wire| to.remove(SwitchPort::Wire(wire)));
        }
        to.remove(from);
        to
    }

    /// Returns the VM whose RDMA function is the destination of another VM's packet, if the sender
    /// may use its addresses: the result of [`Switch::forward`] for the packet's frame. Returns
    /// `None` if the frame itself has to be forwarded.
    pub fn engine_for(&mut self, from: u8, path: &Path, now: u64) -> Option<u8> {
        let vlan = path.vlan.unwrap_or(0);
        let vm = self.owners.owner(vlan, &path.dmac);
        let vm = vm.filter(|vm| *vm != from && self.owners.is_set(*vm, path))?;
        let is_own = self.owners.owner(vlan, &path.smac) == Some(from);
        (is_own && self.owners.may_use(SwitchPort::Engine(from), path, now)).then_some(vm)
    }

    fn owner(&self, header: &EthernetHeader, mac: &MacAddress) -> Option<u8> {
        self.owners.owner(header.vlan, mac)
    }

    /// True if a frame's sender may use its addresses. The switch then learns them.
    fn may_send(
        &mut self,
        from: SwitchPort,
        header: &EthernetHeader,
        roce: Option<&Path>,
        now: u64,
    ) -> bool {
        let owner = self.owner(header, &header.from);
        if owner.is_some() && owner != from.vm() {
            return false;
        }
        if let Some(path) = roce {
            let may_have = match from {
                SwitchPort::Wire(_) => true,
                SwitchPort::Engine(_) => owner.is_some(),
                SwitchPort::Guest(vm) => {
                    owner.is_some() || self.owners.may_have_mac(vm, &header.from)
                }
            };
            if !may_have {
                return false;
            }
            let to = self.owner(header, &header.to);
            if !self.owners.may_use(from, path, now) && !self.is_duplicate_gid(from, to, path) {
                return false;
            }
        }
        owner.is_some() || self.learn(from, header, roce.is_some(), now)
    }

    /// True if a station on a wire sends to a VM with a GID that is that VM's own: both have the
    /// same address, by mistake. A connection between them that existed before goes on.
    fn is_duplicate_gid(&self, from: SwitchPort, to: Option<u8>, path: &Path) -> bool {
        let is_its = to.is_some_and(|vm| self.owners.has_source(vm, path));
        matches!(from, SwitchPort::Wire(_)) && is_its
    }

    /// Learns the port of an address. Returns false if another port holds the address.
    fn learn(
        &mut self,
        from: SwitchPort,
        header: &EthernetHeader,
        with_rdma: bool,
        now: u64,
    ) -> bool {
        let index = from.index();
        let key = (header.vlan, header.from);
        let last_rdma_ns = with_rdma.then_some(now);
        if let Some(location) = self.locations.get_mut(&key) {
            if location.port == from {
                location.last_heard_ns = now;
                location.last_rdma_ns = last_rdma_ns.or(location.last_rdma_ns);
                return true;
            }
            if !location.may_move(from, with_rdma, now) {
                return false;
            }
        }
        if self.learned[index] >= from.max_addresses() {
            self.sweep(now);
        }
        if self.learned[index] >= from.max_addresses() {
            self.counters.unlearned += 1;
            // The address is not where it was heard before.
            if let Some(old) = self.locations.remove(&key) {
                self.learned[old.port.index()] -= 1;
            }
            return true;
        }
        let location = AddressLocation {
            port: from,
            last_heard_ns: now,
            last_rdma_ns,
        };
        if let Some(old) = self.locations.insert(key, location) {
            self.learned[old.port.index()] -= 1;
        }
        self.learned[index] += 1;
        true
    }

    /// Forgets addresses that were not heard for [`AGE_NS`], at most once in [`SWEEP_INTERVAL_NS`].
    fn sweep(&mut self, now: u64) {
        if now < self.next_sweep_ns {
            return;
        }
        self.next_sweep_ns = now + SWEEP_INTERVAL_NS;
        self.locations
            .retain(|_, location| is_fresh(location.last_heard_ns, now));
        self.learned.fill(0);
        for location in self.locations.values() {
            self.learned[location.port.index()] += 1;
        }
    }

    fn destinations(
        &mut self,
        from: SwitchPort,
        header: &EthernetHeader,
        roce: Option<&Path>,
        now: u64,
    ) -> PortSet {
        if header.is_for_link() {
            return PortSet::default();
        }
        if header.is_to_group() {
            return self.group_ports(from, header, roce);
        }
        let owner = self.owner(header, &header.to);
        if let (Some(vm), Some(path)) = (owner, roce) {
            if self.owners.is_set(vm, path) {
                return SwitchPort::Engine(vm).into();
            }
        }
        let to = owner
            .map(SwitchPort::Guest)
            .or_else(|| self.learned_port(header, now));
        if let (Some(vm), Some(path)) = (to.and_then(SwitchPort::vm), roce) {
            if from.vm() != Some(vm) {
                self.owners.on_frame_to(vm, path, now);
            }
        }
        match to {
            Some(to) => to.into(),
            None => self.flood(|_| true),
        }
    }

    /// Returns the port where a frame's destination was heard.
    fn learned_port(&self, header: &EthernetHeader, now: u64) -> Option<SwitchPort> {
        let location = self.locations.get(&(header.vlan, header.to))?;
        is_fresh(location.last_heard_ns, now).then_some(location.port)
    }

    /// Returns the ports that receive frames for a group, without those of the sending VM, which is
    /// one station.
    fn group_ports(
        &mut self,
        from: SwitchPort,
        header: &EthernetHeader,
        roce: Option<&Path>,
    ) -> PortSet {
        let mut to = self.flood(|vm| from.vm() != Some(vm));
        let Some(path) = roce.filter(|p| header.to == mcast::mac(&p.dgid)) else {
            return to;
        };
        for (number, groups) in (0..).zip(&self.groups) {
            if from.vm() != Some(number) && groups.contains(&path.dgid) {
                to.add(SwitchPort::Engine(number));
            }
        }
        to
    }

    /// Returns the wires, and the guests of the VMs for which `among` is true.
    fn flood(&mut self, among: impl Fn(u8) -> bool) -> PortSet {
        self.counters.flooded += 1;
        let mut to = PortSet::default();
        (0..self.wires).for_each(|wire| to.add(SwitchPort::Wire(wire)));
        for vm in self.owners.vms() {
            if among(vm) {
                to.add(SwitchPort::Guest(vm));
            }
        }
        to
    }
}

fn is_fresh(at: u64, now: u64) -> bool {
    now.saturating_sub(at) < AGE_NS
}

#[cfg(test)]
mod tests;
