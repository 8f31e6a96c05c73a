// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A fair queue of ready slots: groups take turns, and the slots of a group share the turns of the
//! group.

use super::NONE;
use crate::prefetch;
use alloc::vec::Vec;

/// Links of a slot in the list of its group.
#[derive(Clone, Copy, Debug)]
struct SlotLinks {
    next: u32,
    prev: u32,
    /// Group whose list the slot is in, or [`NONE`].
    group: u32,
}

/// A group: a list of slots, and the group's link in the ring of groups with slots.
#[derive(Clone, Copy, Debug)]
struct SlotGroup {
    head: u32,
    tail: u32,
    next: u32,
    /// True if the group is in the ring. The list may have become empty since the group was linked.
    listed: bool,
}

const NO_LINK: SlotLinks = SlotLinks {
    next: NONE,
    prev: NONE,
    group: NONE,
};

const NO_GROUP: SlotGroup = SlotGroup {
    head: NONE,
    tail: NONE,
    next: NONE,
    listed: false,
};

/// The queue. The owner numbers slots and groups with small numbers; a slot is in the queue at most
/// once.
#[derive(Debug)]
pub struct ReadyQueue {
    links: Vec<SlotLinks>,
    groups: Vec<SlotGroup>,
    /// First and last group of the ring.
    first: u32,
    last: u32,
    count: u32,
}

impl Default for ReadyQueue {
    fn default() -> Self {
        Self::new()
    }
}

impl ReadyQueue {
    /// Returns an empty queue.
    pub const fn new() -> Self {
        Self {
            links: Vec::new(),
            groups: Vec::new(),
            first: NONE,
            last: NONE,
            count: 0,
        }
    }

    /// Makes room for the slots and groups below these numbers, so that [`ReadyQueue::push`] allocates
    /// nothing for them.
    pub fn reserve(&mut self, slots: u32, groups: u32) {
        if self.links.len() < slots as usize {
            self.links.resize(slots as usize, NO_LINK);
        }
        if self.groups.len() < groups as usize {
            self.groups.resize(groups as usize, NO_GROUP);
        }
    }

    /// Returns the number of slots in the queue.
    pub fn len(&self) -> u32 {
        self.count
    }

    /// True if no slot is in the queue.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// True if the slot is in the queue.
    pub fn contains(&self, slot: u32) -> bool {
        self.link(slot).group != NONE
    }

    fn link(&self, slot: u32) -> SlotLinks {
        self.links.get(slot as usize).copied().unwrap_or(NO_LINK)
    }

    /// Appends a slot to the list of its group. Returns false if the slot is in the queue already;
    /// it then keeps its place.
    pub fn push(&mut self, group: u32, slot: u32) -> bool {
        if group == NONE || slot == NONE || self.contains(slot) {
            return false;
        }
        self.reserve(slot.saturating_add(1), group.saturating_add(1));
        let Some(list) = self.groups.get_mut(group as usize) else {
            return false;
        };
        let tail = list.tail;
        list.tail = slot;
        if tail == NONE {
            list.head = slot;
        }
        let listed = list.listed;
        list.listed = true;
        if let Some(link) = self.links.get_mut(slot as usize) {
            *link = SlotLinks {
                next: NONE,
                prev: tail,
                group,
            };
        }
        if let Some(before) = self.links.get_mut(tail as usize) {
            before.next = slot;
        }
        if !listed {
            self.push_group(group);
        }
        self.count = self.count.saturating_add(1);
        true
    }

    /// Removes a slot from any place of the queue. Returns false if the slot is not in the queue.
    pub fn remove(&mut self, slot: u32) -> bool {
        let link = self.link(slot);
        let Some(list) = self.groups.get_mut(link.group as usize) else {
            return false;
        };
        if list.head == slot {
            list.head = link.next;
        }
        if list.tail == slot {
            list.tail = link.prev;
        }
        if let Some(next) = self.links.get_mut(link.next as usize) {
            next.prev = link.prev;
        }
        if let Some(prev) = self.links.get_mut(link.prev as usize) {
            prev.next = link.next;
        }
        if let Some(own) = self.links.get_mut(slot as usize) {
            *own = NO_LINK;
        }
        self.count = self.count.saturating_sub(1);
        true
    }

    /// Removes and returns the slot that has the next turn; its group goes to the end of the ring.
    pub fn pop(&mut self) -> Option<u32> {
        while self.first != NONE {
            let group = self.first;
            let list = self.groups.get_mut(group as usize)?;
            let slot = list.head;
            self.first = list.next;
            list.next = NONE;
            list.listed = false;
            if self.first == NONE {
                self.last = NONE;
            }
            if slot == NONE {
                continue;
            }
            self.remove(slot);
            let list = self.groups.get_mut(group as usize)?;
            if list.head != NONE {
                list.listed = true;
                self.push_group(group);
            }
            return Some(slot);
        }
        None
    }

    /// Returns the slots that have the next turns, in order, as far as they are known without a
    /// search, so that the caller can prefetch their memory ([`prefetch`](crate::prefetch)).
    #[inline]
    pub fn ahead<const N: usize>(&self) -> [Option<u32>; N] {
        let mut ahead = [None; N];
        let mut group = self.groups.get(self.first as usize);
        let alone = group.is_none_or(|g| g.next == NONE);
        let mut slot = group.map_or(NONE, |g| g.head);
        for place in &mut ahead {
            if slot == NONE {
                break;
            }
            *place = Some(slot);
            slot = if alone {
                self.link(slot).next
            } else {
                group = group.and_then(|g| self.groups.get(g.next as usize));
                group.map_or(NONE, |g| g.head)
            };
        }
        // The next call walks one slot further.
        prefetch::element(&self.links, slot as usize);
        ahead
    }

    fn push_group(&mut self, group: u32) {
        let last = self.last;
        self.last = group;
        match self.groups.get_mut(last as usize) {
            Some(before) => before.next = group,
            None => self.first = group,
        }
    }
}
