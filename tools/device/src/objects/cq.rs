// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Completion queues: entries, overflow, arms.
//!
//! A CQ is full by the device's own account of the consumer index, which is read again before an overflow is declared.
//! An overflow is latched: the entries that are there stay, none is added, one event tells (decision: errors stick).
//!
//! Arms follow semantics 1.7: entries are written, then a full fence, then the arm word is read; the guest stores the
//! arm, then a full fence, then counts the generation that makes the device look again. So no arm is lost.

use crate::memory::ring::Ring;
use crate::memory::tables::ContextSlot;
use crate::memory::{Access, Area, GuestMemory};
use crate::objects::eq::Eq;
use crate::slots::{Held, Ref};
use std::sync::atomic::{fence, Ordering};
use verbena_abi::cqe::{self, Cqe, Tail};
use verbena_abi::ctx::{CqContext, QueueState};
use verbena_abi::doorbell::{self, Arm, ArmMode, Words};
use verbena_abi::syndrome::Syndrome;
use zerocopy::IntoBytes;

/// A CQ that is polled without arms does not leave its last notification further behind: more than any CQ has entries, and less than
/// half of what an index can tell apart.
const FAR: u32 = 1 << 30;

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    /// Its number.
    pub cqn: u32,
    /// Event queue of its completion events.
    pub eq: Ref<Eq>,
    /// Doorbell area ...
    pub uar: u32,
    /// ... its DMA address ...
    pub area: u64,
    /// ... and the slot in it.
    pub slot: u16,
    /// Entries.
    pub ring: Ring,
    /// Where the context is.
    pub context_slot: ContextSlot,
    /// Queues of queue pairs that use it.
    users: u32,
    /// Whoever polls sees to it that there is room.
    pub ignore_overrun: bool,
    /// The next entry is to bring it to ERR.
    pub faulty: bool,
    /// The next entry is to find no room.
    pub full: bool,
    /// What brought it to ERR.
    pub error: Option<Syndrome>,
    /// Index of its last completion event's entry; none while that event waits for room.
    pub last_event: Option<u32>,
    /// It has entries whose arm has not been looked at.
    pub written: bool,
    /// Collapse events until so many completions ...
    pub moderation_count: u16,
    /// ... or for so many microseconds.
    pub moderation_period: u16,
    /// When the first entry came that a collapsed event is to tell of, as far as the device has noticed.
    pub collapsed_since: Option<u64>,
    /// The driver's index of the present ring's first entry. All indexes here count from it; those that are the
    /// driver's (consumer index, arm) do not.
    base: u32,
    pi: u32,
    ci: u32,
    arm: u64,
    served: u32,
    notified: u32,
    /// Index of the last solicited entry since then.
    solicited: Option<u32>,
}

impl Held for Cq {
    fn users(&mut self) -> &mut u32 {
        &mut self.users
    }
}

/// What writing an entry came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// It is there.
    Yes,
    /// The CQ was in error already.
    Dead,
    /// The CQ is in error now.
    Died(Syndrome),
}

impl Cq {
    /// An empty CQ.
    pub fn new(
        cqn: u32,
        eq: Ref<Eq>,
        (uar, area, slot): (u32, u64, u16),
        ring: Ring,
        context_slot: ContextSlot,
    ) -> Self {
        Self {
            cqn,
            eq,
            uar,
            area,
            slot,
            ring,
            context_slot,
            users: 0,
            ignore_overrun: false,
            faulty: false,
            full: false,
            error: None,
            last_event: None,
            written: false,
            moderation_count: 0,
            moderation_period: 0,
            collapsed_since: None,
            base: 0,
            pi: 0,
            ci: 0,
            arm: 0,
            served: 0,
            notified: 0,
            solicited: None,
        }
    }

    /// Writes an entry.
    pub fn write<M: GuestMemory>(
        &mut self,
        mem: &M,
        body: &Cqe,
        tail: Tail,
        solicited: bool,
    ) -> Written {
        if self.error.is_some() {
            return Written::Dead;
        }
        let size = if self.full { 0 } else { self.ring.size() };
        if self.pi.wrapping_sub(self.ci) >= size && !self.ignore_overrun {
            self.ci = self.read_ci(mem);
            if self.pi.wrapping_sub(self.ci) >= size {
                self.error = Some(Syndrome::CqOverflow);
                return Written::Died(Syndrome::CqOverflow);
            }
        }
        let index = self.pi;
        if self.faulty || self.write_entry(mem, body, tail).is_err() {
            self.error = Some(Syndrome::CqUnwritable);
            return Written::Died(Syndrome::CqUnwritable);
        }
        if solicited {
            self.solicited = Some(index);
        }
        Written::Yes
    }

    fn write_entry<M: GuestMemory>(&mut self, mem: &M, body: &Cqe, tail: Tail) -> Access {
        let entry = self.ring.entry(self.pi);
        let tail = tail.pack(self.pi, self.ring.log_size());
        mem.write(entry, &body.as_bytes()[..cqe::TAIL_OFFSET])?;
        mem.store32(entry + cqe::TAIL_OFFSET as u64, tail)?;
        self.pi = self.pi.wrapping_add(1);
        if self.pi.wrapping_sub(self.notified) > FAR {
            self.leave_behind();
        }
        Ok(())
    }

    /// Marks of long ago would look like some of the future: indexes wrap. The entries there were polled before these came.
    #[cold]
    fn leave_behind(&mut self) {
        self.notified = self.pi.wrapping_sub(self.ring.size());
        let pi = self.pi;
        let size = self.ring.size();
        self.solicited = self.solicited.filter(|s| pi.wrapping_sub(*s) <= size);
    }

    /// As if so many entries had come and been polled, without an arm.
    #[cfg(test)]
    pub fn pass_by(&mut self, count: u32) {
        let far = self.pi.wrapping_sub(self.notified) > FAR;
        self.pi = self.pi.wrapping_add(count);
        self.ci = self.ci.wrapping_add(count);
        assert!(
            !far && count <= FAR,
            "one after the other would have been noticed"
        );
    }

    fn read_ci<M: GuestMemory>(&self, mem: &M) -> u32 {
        let area = Area::new(mem, self.area);
        let index = area.load_acquire(doorbell::cq_consumer(self.slot as usize));
        index.wrapping_sub(self.base)
    }

    /// Entries that the driver has yet to take, as its consumer index says: never more than there are places.
    pub fn untaken<M: GuestMemory>(&self, mem: &M) -> u32 {
        self.pi
            .wrapping_sub(self.read_ci(mem))
            .min(self.ring.size())
    }

    /// Whether an arm waits that asks for an entry which is there; the number of such entries.
    ///
    /// The fence stands between the entry that was written and the arm that is read.
    pub fn wants_event<M: GuestMemory>(&mut self, mem: &M) -> Option<u32> {
        fence(Ordering::SeqCst);
        let area = Area::new(mem, self.area);
        self.arm = area.load64_acquire(doorbell::cq_arm(self.slot as usize));
        let arm = Arm::unpack(self.arm);
        if arm.mode == ArmMode::None || arm.seq == self.served {
            return None;
        }
        let index = arm.index.wrapping_sub(self.base);
        // The entries that count are those from the later of the two on. Indexes wrap, and an arm may wait for as long as nothing
        // solicited comes: which is later is told from what both are behind of.
        let behind = |of: u32| self.pi.wrapping_sub(of);
        let from = if behind(index) <= behind(self.notified) {
            index
        } else {
            self.notified
        };
        let until = match arm.mode {
            ArmMode::Solicited => self.solicited?.wrapping_add(1),
            _ => self.pi,
        };
        let count = until.wrapping_sub(from);
        ((count as i32) > 0).then_some(count)
    }

    /// Marks the arm as served by an event.
    pub fn serve<M: GuestMemory>(&mut self, mem: &M) {
        self.served = Arm::unpack(self.arm).seq;
        self.notified = self.pi;
        self.solicited = None;
        self.collapsed_since = None;
        Area::new(mem, self.area).store(doorbell::cq_served(self.slot as usize), self.served);
    }

    /// Begins to move to another ring, which starts with the entry at the driver's consumer index.
    pub fn begin_moving<M: GuestMemory>(&self, mem: &M, ring: Ring) -> Move {
        let from = self.read_ci(mem);
        Move {
            ring,
            from,
            next: from,
        }
    }

    /// Moves at most `most` entries on. True: all are there, and the other ring is this CQ's from now on. The entries keep
    /// their indexes, so what the driver says by them (consumer index, arms) means the same before and after.
    ///
    /// It fails if there are more entries than the other ring has; then nothing has changed.
    pub fn go_on_moving<M: GuestMemory>(
        &mut self,
        mem: &M,
        entries: &mut Move,
        most: u32,
    ) -> Result<bool, ResizeError> {
        let Move { ring, from, next } = entries;
        let count = self.pi.wrapping_sub(*from);
        if count > self.ring.size() || count > ring.size() {
            return Err(ResizeError::TooSmall);
        }
        for _ in 0..most {
            if *next == self.pi {
                break;
            }
            let mut entry: Cqe = mem
                .read_struct(self.ring.entry(*next))
                .map_err(|_| ResizeError::Unreachable)?;
            let tail = Tail::unpack(entry.tail.get(), *next, self.ring.log_size())
                .ok_or(ResizeError::Unreachable)?;
            let to = next.wrapping_sub(*from);
            entry.tail = tail.pack(to, ring.log_size()).into();
            mem.write_struct(ring.entry(to), &entry)
                .map_err(|_| ResizeError::Unreachable)?;
            *next = next.wrapping_add(1);
        }
        if *next != self.pi {
            return Ok(false);
        }
        self.base = self.base.wrapping_add(*from);
        self.notified = self.notified.wrapping_sub(*from);
        self.solicited = self.solicited.map(|s| s.wrapping_sub(*from));
        self.pi = count;
        self.ci = 0;
        std::mem::swap(&mut self.ring, ring);
        Ok(true)
    }

    /// The context.
    pub fn context(&self) -> CqContext {
        CqContext {
            cqn: self.cqn.into(),
            state: if self.error.is_some() {
                QueueState::Err
            } else {
                QueueState::Ok
            }
            .to_raw(),
            log_size: self.ring.log_size(),
            slot: self.slot.into(),
            syndrome: self.error.map_or(0, |s| u32::from(s.to_raw())).into(),
            uar: self.uar.into(),
            eqn: self.eq.number().into(),
            producer_index: self.base.wrapping_add(self.pi).into(),
            consumer_index: self.base.wrapping_add(self.ci).into(),
            arm: self.arm.into(),
            notified_index: self.base.wrapping_add(self.notified).into(),
            served_seq: self.served.into(),
            ring: self.ring.raw,
            moderation_count: self.moderation_count.into(),
            moderation_period: self.moderation_period.into(),
            users: self.users.into(),
            ..Default::default()
        }
    }

    /// Publishes the context.
    pub fn publish<M: GuestMemory>(&mut self, mem: &M) {
        if self.error.is_none() {
            self.ci = self.read_ci(mem);
        }
        let context = self.context();
        self.context_slot.publish(mem, &context);
    }

    /// Publishes that the CQ is gone.
    pub fn publish_free<M: GuestMemory>(&mut self, mem: &M) {
        self.context_slot.publish(mem, &CqContext::default());
    }
}

/// A CQ on its way to another ring.
#[derive(Debug)]
pub struct Move {
    ring: Ring,
    /// The first entry that is moved, and the next.
    from: u32,
    next: u32,
}

/// Why a CQ was not moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResizeError {
    /// More entries wait than the new ring has.
    TooSmall,
    /// A ring cannot be reached.
    Unreachable,
}
