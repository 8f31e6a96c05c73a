// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Doorbell areas: who has which slot, what was seen last.

use verbena_abi::doorbell::{AREA_SLOTS, GROUPS, GROUP_SLOTS};

/// The user of a queue pair slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A queue pair.
    Qp(u32),
    /// A shared receive queue.
    Srq(u32),
}

/// A doorbell area.
#[derive(Debug)]
pub struct Uar {
    /// DMA address.
    pub base: u64,
    /// The sleep word.
    pub sleep: u32,
    /// Whether it is scanned.
    pub awake: bool,
    /// It was rung for since the last scan.
    pub rung: bool,
    /// When something was found in it last.
    pub last_found: u64,
    /// Generation counters as seen last.
    pub qp_seen: [u32; GROUPS],
    /// Generation counters as seen last.
    pub cq_seen: [u32; GROUPS],
    /// As far as they were ever used: most areas are those of small programs.
    qp_slots: Vec<Option<Owner>>,
    cq_slots: Vec<Option<u32>>,
    qp_used: [u64; GROUPS],
    cq_used: [u64; GROUPS],
    users: u32,
}

impl Uar {
    /// An area that nothing uses yet.
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
            cq_used: [0; GROUPS],
            users: 0,
        }
    }

    /// Whether anything uses it.
    pub fn is_used(&self) -> bool {
        self.users != 0
    }

    /// Whether a queue pair slot exists and is free.
    pub fn qp_slot_free(&self, slot: u16) -> bool {
        is_free(&self.qp_slots, slot)
    }

    /// Whether a CQ slot exists and is free.
    pub fn cq_slot_free(&self, slot: u16) -> bool {
        is_free(&self.cq_slots, slot)
    }

    /// Gives a queue pair slot to an owner, or takes it back.
    pub fn set_qp_slot(&mut self, slot: u16, owner: Option<Owner>) {
        let Some(entry) = entry(&mut self.qp_slots, slot) else {
            return;
        };
        self.users = self.users + u32::from(owner.is_some()) - u32::from(entry.is_some());
        *entry = owner;
        let bit = 1u64 << (slot as usize % GROUP_SLOTS);
        let used = &mut self.qp_used[slot as usize / GROUP_SLOTS];
        *used = if matches!(owner, Some(Owner::Qp(_))) {
            *used | bit
        } else {
            *used & !bit
        };
    }

    /// Gives a CQ slot to a CQ, or takes it back.
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

    /// Slots of queue pairs in a group, as bits.
    pub fn qps_in(&self, group: usize) -> u64 {
        self.qp_used[group]
    }

    /// Slots of CQs in a group, as bits.
    pub fn cqs_in(&self, group: usize) -> u64 {
        self.cq_used[group]
    }

    /// The queue pair of a slot.
    pub fn qp_at(&self, slot: usize) -> Option<u32> {
        match self.qp_slots.get(slot)? {
            Some(Owner::Qp(qpn)) => Some(*qpn),
            _ => None,
        }
    }

    /// The CQ of a slot.
    pub fn cq_at(&self, slot: usize) -> Option<u32> {
        *self.cq_slots.get(slot)?
    }
}

fn is_free<T>(slots: &[Option<T>], slot: u16) -> bool {
    let slot = usize::from(slot);
    slot < AREA_SLOTS && slots.get(slot).is_none_or(Option::is_none)
}

/// The entry of a slot, if there is such a slot.
fn entry<T>(slots: &mut Vec<Option<T>>, slot: u16) -> Option<&mut Option<T>> {
    let slot = usize::from(slot);
    if slot >= slots.len() && slot < AREA_SLOTS {
        slots.resize_with(slot + 1, || None);
    }
    slots.get_mut(slot)
}
