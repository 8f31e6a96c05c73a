// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The owners of MAC addresses and GIDs: addresses are given to a VM, set by its driver, or used by
//! its software RDMA.

use super::{is_fresh, Mac, Port, AGE, GUEST_GIDS, MAX_VMS, SWEEP};
use crate::policy::{link_local, Policy};
use std::collections::{HashMap, HashSet};
use verbena_abi::syndrome::Syndrome;
use verbena_device::Gid as Entry;
use verbena_transport::wire::Path;

type Gid = [u8; 16];

/// An address in a VLAN, whose number is 0 for no VLAN.
type Within<T> = (u16, T);

/// Returns the number of a VLAN, or 0 for none.
fn vlan(id: Option<u16>) -> u16 {
    id.unwrap_or(0)
}

/// The way in which a VM has a GID.
enum Way {
    /// The VM's driver has set the GID, with these MAC addresses.
    Set(Vec<Mac>),
    /// The guest's software RDMA has used the GID: time of its last use, and time at which another
    /// station last sent to it.
    Used { at: u64, heard: Option<u64> },
}

/// The VM that has a GID, and the way in which it has it.
struct Holder {
    vm: u8,
    way: Way,
}

impl Holder {
    fn is_set(&self) -> bool {
        matches!(self.way, Way::Set(_))
    }

    fn is_fresh(&self, now: u64) -> bool {
        match self.way {
            Way::Set(_) => true,
            Way::Used { at, .. } => is_fresh(at, now),
        }
    }

    /// True if another station sends to the GID there: the mere use of an address does not show
    /// that a VM has it.
    fn is_spoken_to(&self, now: u64) -> bool {
        match self.way {
            Way::Set(_) => true,
            Way::Used { heard, .. } => heard.is_some_and(|at| is_fresh(at, now)),
        }
    }
}

/// The owners of all addresses. See the [module](self).
#[derive(Default)]
pub(super) struct Names {
    /// MAC address of each VM's NIC, with the policy of the host.
    vms: Vec<(Mac, Policy)>,
    /// Bits of the VMs to which an address is given; no other VM may have it.
    given_macs: HashMap<Mac, u16>,
    given_gids: HashMap<Gid, u16>,
    /// MAC addresses of GIDs that drivers have set, other than those of their NICs, with their VM.
    macs: HashMap<Within<Mac>, u8>,
    gids: HashMap<Within<Gid>, Holder>,
    /// Number of GIDs that each VM's software RDMA has used.
    used: [usize; MAX_VMS as usize],
    next_sweep: u64,
}

impl Names {
    /// Adds a VM and returns its number, or `None` if there are too many VMs, or one has that
    /// address.
    pub(super) fn add(&mut self, mac: Mac, policy: Policy) -> Option<u8> {
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
    pub(super) fn owner(&self, in_vlan: u16, mac: &Mac) -> Option<u8> {
        let mut own = (0..).zip(&self.vms);
        let own = own.find_map(|(n, (own, _))| (own == mac).then_some(n));
        own.or_else(|| self.macs.get(&(in_vlan, *mac)).copied())
    }

    /// True if a VM may use a MAC address without owner.
    pub(super) fn may_have_mac(&self, vm: u8, mac: &Mac) -> bool {
        let allows = |(_, policy): &(Mac, Policy)| policy.allows_mac(mac);
        self.vms.get(usize::from(vm)).is_some_and(allows) && !is_others(&self.given_macs, mac, vm)
    }

    fn may_have_gid(&self, vm: u8, gid: &Gid, mac: &Mac) -> Result<(), Syndrome> {
        if is_others(&self.given_gids, gid, vm) {
            return Err(Syndrome::GidReserved);
        }
        let allows =
            |(own, policy): &(Mac, Policy)| policy.allows_gid(gid, mac) || *gid == link_local(own);
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
        if let Some(holder) = self.gids.get_mut(&key) {
            if holder.vm != vm && holder.is_fresh(now) {
                let is_given = self.given_gids.contains_key(&gid);
                if holder.is_set() || holder.is_spoken_to(now) && !is_given {
                    return Err(Syndrome::GidInUse);
                }
            }
            if let (true, Way::Set(macs)) = (holder.vm == vm, &mut holder.way) {
                if !macs.contains(&mac) {
                    macs.push(mac);
                }
                self.note_mac(vm, in_vlan, mac);
                return Ok(());
            }
        }
        let way = Way::Set(vec![mac]);
        self.put(key, Holder { vm, way });
        self.note_mac(vm, in_vlan, mac);
        Ok(())
    }

    fn note_mac(&mut self, vm: u8, in_vlan: u16, mac: Mac) {
        if self.owner(in_vlan, &mac).is_none() {
            self.macs.insert((in_vlan, mac), vm);
        }
    }

    fn put(&mut self, key: Within<Gid>, holder: Holder) {
        self.count(&holder, true);
        if let Some(old) = self.gids.insert(key, holder) {
            self.count(&old, false);
        }
    }

    fn count(&mut self, holder: &Holder, is_more: bool) {
        let Some(used) = self.used.get_mut(usize::from(holder.vm)) else {
            return;
        };
        match (holder.is_set(), is_more) {
            (true, _) => {}
            (false, true) => *used += 1,
            (false, false) => *used = used.saturating_sub(1),
        }
    }

    /// Removes the GIDs that a VM's driver has set, except these entries.
    pub(super) fn keep(&mut self, vm: u8, entries: &[Entry]) {
        let kept: HashSet<(Within<Gid>, Mac)> = entries
            .iter()
            .map(|e| ((vlan(e.vlan), e.gid), e.mac))
            .collect();
        self.gids.retain(|key, holder| match &mut holder.way {
            Way::Set(macs) if holder.vm == vm => {
                macs.retain(|mac| kept.contains(&(*key, *mac)));
                !macs.is_empty()
            }
            _ => true,
        });
        let macs: HashSet<Within<Mac>> = entries.iter().map(|e| (vlan(e.vlan), e.mac)).collect();
        self.macs
            .retain(|key, owner| *owner != vm || macs.contains(key));
    }

    /// True if the driver of a VM has set the destination GID of a path.
    pub(super) fn is_set(&self, vm: u8, path: &Path) -> bool {
        let holder = self.gids.get(&(vlan(path.vlan), path.dgid));
        holder.is_some_and(|h| h.vm == vm && h.is_set())
    }

    /// True if a VM has the source GID of a path.
    pub(super) fn comes_from(&self, vm: u8, path: &Path) -> bool {
        let holder = self.gids.get(&(vlan(path.vlan), path.sgid));
        holder.is_some_and(|h| h.vm == vm)
    }

    /// Notes that a station sends to a GID that a VM's software RDMA has used.
    pub(super) fn spoken_to(&mut self, vm: u8, path: &Path, now: u64) {
        if let Some(holder) = self.gids.get_mut(&(vlan(path.vlan), path.dgid)) {
            match &mut holder.way {
                Way::Used { heard, .. } if holder.vm == vm => *heard = Some(now),
                _ => {}
            }
        }
    }

    /// True if a port may send RDMA with the source GID of a path, because the GID has no owner or
    /// is owned by the port's VM. A guest becomes the owner of a GID without one.
    pub(super) fn may_use(&mut self, from: Port, path: &Path, now: u64) -> bool {
        let key = (vlan(path.vlan), path.sgid);
        if let Some(vm) = from.vm() {
            if self.may_have_gid(vm, &path.sgid, &path.smac).is_err() {
                return false;
            }
        }
        if let Some(holder) = self.gids.get_mut(&key) {
            if holder.is_fresh(now) {
                let is_own = from.vm() == Some(holder.vm);
                if let (true, Way::Used { at, .. }) = (is_own, &mut holder.way) {
                    *at = now;
                }
                return is_own;
            }
        }
        if let Port::Guest(vm) = from {
            let is_full = |names: &Self| {
                let used = names.used.get(usize::from(vm));
                used.is_none_or(|count| *count >= GUEST_GIDS)
            };
            if is_full(self) {
                self.sweep(now);
            }
            if !is_full(self) || self.gids.contains_key(&key) {
                let way = Way::Used {
                    at: now,
                    heard: None,
                };
                self.put(key, Holder { vm, way });
            }
        }
        true
    }

    /// Forgets GIDs that were not used for [`AGE`], at most once in [`SWEEP`].
    fn sweep(&mut self, now: u64) {
        if now < self.next_sweep {
            return;
        }
        self.next_sweep = now + SWEEP;
        self.gids.retain(|_, holder| holder.is_fresh(now));
        self.used.fill(0);
        for holder in self.gids.values().filter(|holder| !holder.is_set()) {
            if let Some(used) = self.used.get_mut(usize::from(holder.vm)) {
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
fn is_others<T: Eq + std::hash::Hash>(given: &HashMap<T, u16>, what: &T, vm: u8) -> bool {
    given.get(what).is_some_and(|vms| vms & 1 << vm == 0)
}

const _: () = assert!(AGE > SWEEP && MAX_VMS as u32 <= u16::BITS);
