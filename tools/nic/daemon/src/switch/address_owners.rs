// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The owners of MAC addresses and GIDs: addresses are given to a VM, set by its driver, or used by
//! its software RDMA.

use super::{is_fresh, SwitchPort, AGE_NS, GUEST_GIDS, MAX_VMS, SWEEP_INTERVAL_NS};
use crate::policy::{link_local, MacAddress, Policy, RawGid};
use std::collections::{HashMap, HashSet};
use verbena_abi::syndrome::Syndrome;
use verbena_device::Gid as Entry;
use verbena_transport::wire::Path;

/// An address in a VLAN, whose number is 0 for no VLAN.
type InVlan<T> = (u16, T);

/// Returns the number of a VLAN, or 0 for none.
fn vlan(id: Option<u16>) -> u16 {
    id.unwrap_or(0)
}

/// The way in which a VM has a GID.
enum GidUse {
    /// The VM's driver has set the GID, with these MAC addresses.
    Set(Vec<MacAddress>),
    /// The guest's software RDMA has used the GID: time of its last use, and time at which another
    /// station last sent to it.
    Used {
        last_use_ns: u64,
        last_received_ns: Option<u64>,
    },
}

/// The VM that has a GID, and the way in which it has it.
struct GidOwner {
    vm: u8,
    gid_use: GidUse,
}

impl GidOwner {
    fn is_set(&self) -> bool {
        matches!(self.gid_use, GidUse::Set(_))
    }

    fn is_fresh(&self, now: u64) -> bool {
        match self.gid_use {
            GidUse::Set(_) => true,
            GidUse::Used { last_use_ns, .. } => is_fresh(last_use_ns, now),
        }
    }

    /// True if another station sends to the GID there: the mere use of an address does not show
    /// that a VM has it.
    fn has_traffic(&self, now: u64) -> bool {
        match self.gid_use {
            GidUse::Set(_) => true,
            GidUse::Used {
                last_received_ns, ..
            } => last_received_ns.is_some_and(|at| is_fresh(at, now)),
        }
    }
}

/// The owners of all addresses. See the [module](self).
#[derive(Default)]
pub(super) struct AddressOwners {
    /// MAC address of each VM's NIC, with the policy of the host.
    vms: Vec<(MacAddress, Policy)>,
    /// Bits of the VMs to which an address is given; no other VM may have it.
    given_macs: HashMap<MacAddress, u16>,
    given_gids: HashMap<RawGid, u16>,
    /// MAC addresses of GIDs that drivers have set, other than those of their NICs, with their VM.
    macs: HashMap<InVlan<MacAddress>, u8>,
    gids: HashMap<InVlan<RawGid>, GidOwner>,
    /// Number of GIDs that each VM's software RDMA has used.
    used: [usize; MAX_VMS as usize],
    next_sweep_ns: u64,
}

impl AddressOwners {
    /// Adds a VM and returns its number, or `None` if there are too many VMs, or one has that
    /// address.
    pub(super) fn add(&mut self, mac: MacAddress, policy: Policy) -> Option<u8> {
        let number = u8::try_from(self.vms.len()).ok()?;
        if number >= MAX_VMS || self.vms.iter().any(|(other, _)| *other == mac) {
            return None;
        }
        let bit = 1 << number;
        for given in policy.macs().iter().chain([&mac]) {
            *self.given_macs.entry(*given).or_default() |= bit;
            *self.given_gids.entry(link_local(given)).or_default() |= bit;
        }
        for gid in policy.gids() {
            *self.given_gids.entry(gid).or_default() |= bit;
        }
        self.vms.push((mac, policy));
        Some(number)
    }

    /// Returns the numbers of all VMs.
    pub(super) fn vms(&self) -> std::ops::Range<u8> {
        0..self.vms.len() as u8
    }

    /// Returns the VM that owns a MAC address: the address is its NIC's, or its driver has set a
    /// GID with it.
    pub(super) fn owner(&self, in_vlan: u16, mac: &MacAddress) -> Option<u8> {
        let mut own = (0..).zip(&self.vms);
        let own = own.find_map(|(n, (own, _))| (own == mac).then_some(n));
        own.or_else(|| self.macs.get(&(in_vlan, *mac)).copied())
    }

    /// True if a VM may use a MAC address without owner.
    pub(super) fn may_have_mac(&self, vm: u8, mac: &MacAddress) -> bool {
        let allows = |(_, policy): &(MacAddress, Policy)| policy.allows_mac(mac);
        self.vms.get(usize::from(vm)).is_some_and(allows) && !is_others(&self.given_macs, mac, vm)
    }

    fn may_have_gid(&self, vm: u8, gid: &RawGid, mac: &MacAddress) -> Result<(), Syndrome> {
        if is_others(&self.given_gids, gid, vm) {
            return Err(Syndrome::GidReserved);
        }
        let allows = |(own, policy): &(MacAddress, Policy)| {
            policy.allows_gid(gid, mac) || *gid == link_local(own)
        };
        match self.vms.get(usize::from(vm)).is_some_and(allows) {
            true => Ok(()),
            false => Err(Syndrome::GidNotAllowed),
        }
    }

    /// Sets an entry for a VM's driver, if the VM may have it. `is_elsewhere` is true if another
    /// station has sent with its MAC address recently.
    pub(super) fn claim(
        &mut self,
        vm: u8,
        entry: &Entry,
        is_elsewhere: bool,
        now: u64,
    ) -> Result<(), Syndrome> {
        let Entry { gid, mac, .. } = *entry;
        let in_vlan = vlan(entry.vlan);
        let owner = self.owner(in_vlan, &mac);
        match owner {
            Some(owner) if owner == vm => {}
            None if !self.may_have_mac(vm, &mac) => {
                return Err(match is_others(&self.given_macs, &mac, vm) {
                    true => Syndrome::GidMacInUse,
                    false => Syndrome::GidMacNotAllowed,
                });
            }
            None if !is_elsewhere => {}
            _ => return Err(Syndrome::GidMacInUse),
        }
        self.may_have_gid(vm, &gid, &mac)?;
        let key = (in_vlan, gid);
        if let Some(gid_owner) = self.gids.get_mut(&key) {
            if gid_owner.vm != vm && gid_owner.is_fresh(now) {
                let is_given = self.given_gids.contains_key(&gid);
                if gid_owner.is_set() || gid_owner.has_traffic(now) && !is_given {
                    return Err(Syndrome::GidInUse);
                }
            }
            if let (true, GidUse::Set(macs)) = (gid_owner.vm == vm, &mut gid_owner.gid_use) {
                if !macs.contains(&mac) {
                    macs.push(mac);
                }
                self.add_mac(vm, in_vlan, mac);
                return Ok(());
            }
        }
        let gid_use = GidUse::Set(vec![mac]);
        self.put(key, GidOwner { vm, gid_use });
        self.add_mac(vm, in_vlan, mac);
        Ok(())
    }

    fn add_mac(&mut self, vm: u8, in_vlan: u16, mac: MacAddress) {
        if self.owner(in_vlan, &mac).is_none() {
            self.macs.insert((in_vlan, mac), vm);
        }
    }

    fn put(&mut self, key: InVlan<RawGid>, gid_owner: GidOwner) {
        self.count(&gid_owner, true);
        if let Some(old) = self.gids.insert(key, gid_owner) {
            self.count(&old, false);
        }
    }

    fn count(&mut self, gid_owner: &GidOwner, is_more: bool) {
        let Some(used) = self.used.get_mut(usize::from(gid_owner.vm)) else {
            return;
        };
        match (gid_owner.is_set(), is_more) {
            (true, _) => {}
            (false, true) => *used += 1,
            (false, false) => *used = used.saturating_sub(1),
        }
    }

    /// Removes the GIDs that a VM's driver has set, except these entries.
    pub(super) fn retain_entries(&mut self, vm: u8, entries: &[Entry]) {
        let set_entries: HashSet<(InVlan<RawGid>, MacAddress)> = entries
            .iter()
            .map(|e| ((vlan(e.vlan), e.gid), e.mac))
            .collect();
        self.gids
            .retain(|key, gid_owner| match &mut gid_owner.gid_use {
                GidUse::Set(macs) if gid_owner.vm == vm => {
                    macs.retain(|mac| set_entries.contains(&(*key, *mac)));
                    !macs.is_empty()
                }
                _ => true,
            });
        let macs: HashSet<InVlan<MacAddress>> =
            entries.iter().map(|e| (vlan(e.vlan), e.mac)).collect();
        self.macs
            .retain(|key, owner| *owner != vm || macs.contains(key));
    }

    /// True if the driver of a VM has set the destination GID of a path.
    pub(super) fn is_set(&self, vm: u8, path: &Path) -> bool {
        let gid_owner = self.gids.get(&(vlan(path.vlan), path.dgid));
        gid_owner.is_some_and(|h| h.vm == vm && h.is_set())
    }

    /// True if a VM has the source GID of a path.
    pub(super) fn has_source(&self, vm: u8, path: &Path) -> bool {
        let gid_owner = self.gids.get(&(vlan(path.vlan), path.sgid));
        gid_owner.is_some_and(|h| h.vm == vm)
    }

    /// Notes that a station sends to a GID that a VM's software RDMA has used.
    pub(super) fn on_frame_to(&mut self, vm: u8, path: &Path, now: u64) {
        if let Some(gid_owner) = self.gids.get_mut(&(vlan(path.vlan), path.dgid)) {
            match &mut gid_owner.gid_use {
                GidUse::Used {
                    last_received_ns, ..
                } if gid_owner.vm == vm => *last_received_ns = Some(now),
                _ => {}
            }
        }
    }

    /// True if a port may send RDMA with the source GID of a path, because the GID has no owner or
    /// is owned by the port's VM. A guest becomes the owner of a GID without one.
    pub(super) fn may_use(&mut self, from: SwitchPort, path: &Path, now: u64) -> bool {
        let key = (vlan(path.vlan), path.sgid);
        if let Some(vm) = from.vm() {
            if self.may_have_gid(vm, &path.sgid, &path.smac).is_err() {
                return false;
            }
        }
        if let Some(gid_owner) = self.gids.get_mut(&key) {
            if gid_owner.is_fresh(now) {
                let is_own = from.vm() == Some(gid_owner.vm);
                if let (true, GidUse::Used { last_use_ns, .. }) = (is_own, &mut gid_owner.gid_use) {
                    *last_use_ns = now;
                }
                return is_own;
            }
        }
        if let SwitchPort::Guest(vm) = from {
            let is_full = |names: &Self| {
                let used = names.used.get(usize::from(vm));
                used.is_none_or(|count| *count >= GUEST_GIDS)
            };
            if is_full(self) {
                self.sweep(now);
            }
            if !is_full(self) || self.gids.contains_key(&key) {
                let gid_use = GidUse::Used {
                    last_use_ns: now,
                    last_received_ns: None,
                };
                self.put(key, GidOwner { vm, gid_use });
            }
        }
        true
    }

    /// Forgets GIDs that were not used for [`AGE_NS`], at most once in [`SWEEP_INTERVAL_NS`].
    fn sweep(&mut self, now: u64) {
        if now < self.next_sweep_ns {
            return;
        }
        self.next_sweep_ns = now + SWEEP_INTERVAL_NS;
        self.gids.retain(|_, gid_owner| gid_owner.is_fresh(now));
        self.used.fill(0);
        for gid_owner in self.gids.values().filter(|gid_owner| !gid_owner.is_set()) {
            if let Some(used) = self.used.get_mut(usize::from(gid_owner.vm)) {
                *used += 1;
            }
        }
    }

    /// Returns the number of known GIDs, and for each VM the count of used GIDs and their actual
    /// number.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, Vec<usize>, Vec<usize>) {
        let of = |vm| {
            let used = self.gids.values().filter(|h| h.vm == vm && !h.is_set());
            used.count()
        };
        (
            self.gids.len(),
            self.used.to_vec(),
            (0..MAX_VMS).map(of).collect(),
        )
    }
}

/// True if an address is given to other VMs and not to this one.
fn is_others<T: Eq + std::hash::Hash>(given: &HashMap<T, u16>, address: &T, vm: u8) -> bool {
    given.get(address).is_some_and(|vms| vms & 1 << vm == 0)
}

const _: () = assert!(AGE_NS > SWEEP_INTERVAL_NS && MAX_VMS as u32 <= u16::BITS);
