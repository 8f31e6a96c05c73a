// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Doorbell areas: the owners of the slots, and the values that the device read last.

use verbena_abi::doorbell::{AREA_SLOTS, GROUPS, GROUP_SLOTS};

/// The owner of a queue pair slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A queue pair with this number.
    Qp(u32),
    /// A shared receive queue with this number.
    Srq(u32),
}

/// A doorbell area of the device.
#[derive(Debug)]
pub struct Uar {
    /// DMA address of the area.
    pub base: u64,
    /// Present value of the sleep word.
    pub sleep: u32,
    /// True while the device scans the area.
    pub awake: bool,
    /// True if the guest has rung for the area since the last scan.
    pub rung: bool,
    /// Time at which a scan last found something in the area.
    pub last_found: u64,
    /// Generation counters of the queue pair groups, as last read.
    pub qp_seen: [u32; GROUPS],
    /// Generation counters of the CQ groups, as last read.
    pub cq_seen: [u32; GROUPS],
    /// Owners of the slots up to the highest one ever used. Most areas belong to small programs, so
    /// the vectors are short.
    qp_slots: Vec<Option<Owner>>,
    cq_slots: Vec<Option<u32>>,
    qp_used: [u64; GROUPS],
    srq_used: [u64; GROUPS],
    cq_used: [u64; GROUPS],
    users: u32,
}

impl Uar {
    /// Creates an area without owners of slots.
    pub fn new(base: u64) -> Self {
        Self {
            base,
            sleep: 0,
            awake: true,
            rung: false,
            last_found: 0,
            qp_seen: [0; GROUPS],
            cq_seen: [0; GROUPS],
            qp_slots: Vec::new(),
            cq_slots: Vec::new(),
            qp_used: [0; GROUPS],
            srq_used: [0; GROUPS],
            cq_used: [0; GROUPS],
            users: 0,
        }
    }

    /// True if a slot of the area has an owner.
    pub fn is_used(&self) -> bool {
        self.users != 0
    }

    /// True if this queue pair slot exists and is free.
    pub fn qp_slot_free(&self, slot: u16) -> bool {
        is_free(&self.qp_slots, slot)
    }

    /// True if this CQ slot exists and is free.
    pub fn cq_slot_free(&self, slot: u16) -> bool {
        is_free(&self.cq_slots, slot)
    }

    /// Sets the owner of a queue pair slot; none frees the slot.
    pub fn set_qp_slot(&mut self, slot: u16, owner: Option<Owner>) {
        let Some(entry) = entry(&mut self.qp_slots, slot) else {
            return;
        };
        self.users = self.users + u32::from(owner.is_some()) - u32::from(entry.is_some());
        *entry = owner;
        let bit = 1u64 << (slot as usize % GROUP_SLOTS);
        let group = slot as usize / GROUP_SLOTS;
        self.qp_used[group] &= !bit;
        self.srq_used[group] &= !bit;
        match owner {
            Some(Owner::Qp(_)) => self.qp_used[group] |= bit,
            Some(Owner::Srq(_)) => self.srq_used[group] |= bit,
            None => {}
        }
    }

    /// Sets the CQ of a CQ slot; none frees the slot.
    pub fn set_cq_slot(&mut self, slot: u16, cqn: Option<u32>) {
        let Some(entry) = entry(&mut self.cq_slots, slot) else {
            return;
        };
        self.users = self.users + u32::from(cqn.is_some()) - u32::from(entry.is_some());
        *entry = cqn;
        let bit = 1u64 << (slot as usize % GROUP_SLOTS);
        let used = &mut self.cq_used[slot as usize / GROUP_SLOTS];
        *used = if cqn.is_some() {
            *used | bit
        } else {
            *used & !bit
        };
    }

    /// Returns a bit mask of the slots in a group that belong to queue pairs.
    pub fn qps_in(&self, group: usize) -> u64 {
        self.qp_used[group]
    }

    /// Returns a bit mask of the slots in a group that belong to SRQs.
    pub fn srqs_in(&self, group: usize) -> u64 {
        self.srq_used[group]
    }

    /// Returns a bit mask of the slots in a group that belong to CQs.
    pub fn cqs_in(&self, group: usize) -> u64 {
        self.cq_used[group]
    }

    /// Returns the number of the queue pair that owns a slot.
    pub fn qp_at(&self, slot: usize) -> Option<u32> {
        match self.qp_slots.get(slot)? {
            Some(Owner::Qp(qpn)) => Some(*qpn),
            _ => None,
        }
    }

    /// Returns the number of the SRQ that owns a slot.
    pub fn srq_at(&self, slot: usize) -> Option<u32> {
        match self.qp_slots.get(slot)? {
            Some(Owner::Srq(srqn)) => Some(*srqn),
            _ => None,
        }
    }

    /// Returns the number of the CQ that owns a slot.
    pub fn cq_at(&self, slot: usize) -> Option<u32> {
        *self.cq_slots.get(slot)?
    }
}

fn is_free<T>(slots: &[Option<T>], slot: u16) -> bool {
    let slot = usize::from(slot);
    slot < AREA_SLOTS && slots.get(slot).is_none_or(Option::is_none)
}

/// Returns the entry of a slot, if the slot exists. The vector grows up to the slot.
fn entry<T>(slots: &mut Vec<Option<T>>, slot: u16) -> Option<&mut Option<T>> {
    let slot = usize::from(slot);
    if slot >= slots.len() && slot < AREA_SLOTS {
        slots.resize_with(slot + 1, || None);
    }
    slots.get_mut(slot)
}
