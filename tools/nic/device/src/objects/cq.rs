// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Completion queues: entries, overflow, arms.
//!
//! Room for an entry is a value ([`CqRoom`]), without which no entry can be written. The device has
//! its own copy of the consumer index. If the CQ looks full by this copy, the device reads the index
//! again before it declares an overflow. An overflow is latched: the entries in the CQ stay, no
//! further entry is added, and one event reports the overflow (decision: errors stick).
//!
//! Arms follow semantics 1.7. The device writes the entries, executes a full fence and reads the
//! arm word. The guest stores the arm, executes a full fence and increments the generation that
//! makes the device look again. Therefore no arm is lost.

use crate::memory::ring::Ring;
use crate::memory::tables::ContextSlot;
use crate::memory::{Access, Area, GuestMemory};
use crate::objects::eq::Eq;
use crate::slots::{Held, Ref};
use verbena_abi::cqe::{self, Cqe, Tail};
use verbena_abi::ctx::{CqContext, QueueState};
use verbena_abi::doorbell::{self, Arm, ArmMode, Words};
use verbena_abi::syndrome::Syndrome;
use zerocopy::IntoBytes;

/// Largest distance of the producer index from the last notification, for a CQ that is polled
/// without arms. This distance is more than any CQ has entries, and less than half of the range of
/// an index.
const FAR: u32 = 1 << 30;

/// A completion queue of the device.
#[derive(Debug)]
pub struct Cq {
    /// Number of the CQ.
    pub cqn: u32,
    /// Event queue that gets the completion events of the CQ.
    pub eq: Ref<Eq>,
    /// Number of the doorbell area.
    pub uar: u32,
    /// DMA address of the doorbell area.
    pub area: u64,
    /// Slot of the CQ in the doorbell area.
    pub slot: u16,
    /// Ring of the CQ's entries.
    pub ring: Ring,
    /// Slot in the context table where the context is published.
    pub context_slot: ContextSlot,
    /// Number of send and receive queues that complete into the CQ.
    users: u32,
    /// True if the consumer of the CQ guarantees that there is room, so that the device does not
    /// check for an overflow.
    pub ignore_overrun: bool,
    /// Fault injection: the next entry moves the CQ to ERR.
    pub faulty: bool,
    /// Fault injection: the next entry finds no room.
    pub full: bool,
    /// Cause of the ERR state, if the CQ is in error.
    pub error: Option<Syndrome>,
    /// Index in the event queue of the last completion event; none while that event waits for room.
    pub last_event: Option<u32>,
    /// True if the CQ has new entries and the device has not yet looked at the arm.
    pub written: bool,
    /// Moderation: number of completions after which a collapsed event is raised.
    pub moderation_count: u16,
    /// Moderation: time in microseconds after which a collapsed event is raised.
    pub moderation_period: u16,
    /// Time at which the device noticed the first entry that a collapsed event has yet to report.
    pub collapsed_since: Option<u64>,
    /// Index, as the driver counts, of the first entry of the present ring. All indexes in this
    /// struct count from this entry, but the driver's own indexes (consumer index, arm) do not.
    base: u32,
    pi: u32,
    ci: u32,
    arm: u64,
    served: u32,
    notified: u32,
    /// Index of the last solicited entry since the last notification.
    solicited: Option<u32>,
}

impl Held for Cq {
    fn users(&mut self) -> &mut u32 {
        &mut self.users
    }
}

/// Result of reserving room for an entry and writing it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// The entry was written.
    Yes,
    /// The CQ was in error already, and the entry was dropped.
    Dead,
    /// The CQ has moved to ERR because of this entry.
    Died(Syndrome),
}

impl Cq {
    /// Creates an empty CQ.
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

    /// Reserves room for one entry. Only the reservation can write an entry.
    ///
    /// # Errors
    ///
    /// [`Written::Dead`] if the CQ is in error. [`Written::Died`] if it has no room: this overflow
    /// has moved the CQ to ERR.
    #[inline]
    pub fn reserve<M: GuestMemory>(&mut self, mem: &M) -> Result<CqRoom<'_>, Written> {
        if self.error.is_some() {
            return Err(Written::Dead);
        }
        let size = if self.full { 0 } else { self.ring.size() };
        if self.pi.wrapping_sub(self.ci) >= size && !self.ignore_overrun {
            self.ci = self.read_ci(mem);
            if self.pi.wrapping_sub(self.ci) >= size {
                self.error = Some(Syndrome::CqOverflow);
                return Err(Written::Died(Syndrome::CqOverflow));
            }
        }
        Ok(CqRoom { cq: self })
    }

    /// Moves old marks (last notification, last solicited entry) up to the size of the ring before
    /// the producer index. Indexes wrap, so marks that are too old would look like marks in the
    /// future. The program has already polled the entries that these marks stood for.
    #[cold]
    fn leave_behind(&mut self) {
        self.notified = self.pi.wrapping_sub(self.ring.size());
        let pi = self.pi;
        let size = self.ring.size();
        self.solicited = self.solicited.filter(|s| pi.wrapping_sub(*s) <= size);
    }

    /// Advances the indexes as if `count` entries had been written and polled without an arm.
    #[cfg(test)]
    pub fn pass_by(&mut self, count: u32) {
        let far = self.pi.wrapping_sub(self.notified) > FAR;
        self.pi = self.pi.wrapping_add(count);
        self.ci = self.ci.wrapping_add(count);
        assert!(
            !far && count <= FAR,
            "entries that are written one by one never leave the indexes this far apart"
        );
    }

    fn read_ci<M: GuestMemory>(&self, mem: &M) -> u32 {
        let area = Area::new(mem, self.area);
        let index = area.load_acquire(doorbell::cq_consumer(self.slot as usize));
        index.wrapping_sub(self.base)
    }

    /// Returns the number of entries that the driver has yet to take, by its consumer index. The
    /// result is at most the size of the ring.
    pub fn untaken<M: GuestMemory>(&self, mem: &M) -> u32 {
        self.pi
            .wrapping_sub(self.read_ci(mem))
            .min(self.ring.size())
    }

    /// Returns the number of entries that a pending arm asks for; none if no arm is pending or the
    /// CQ has no such entry.
    ///
    /// The fence orders the write of the entries before the read of the arm.
    pub fn wants_event<M: GuestMemory>(&mut self, mem: &M) -> Option<u32> {
        mem.fence();
        let area = Area::new(mem, self.area);
        self.arm = area.load64_acquire(doorbell::cq_arm(self.slot as usize));
        let arm = Arm::unpack(self.arm);
        if arm.mode == ArmMode::None || arm.seq == self.served {
            return None;
        }
        let index = arm.index.wrapping_sub(self.base);
        // The entries that count begin at the later one of the arm's index and the last notified
        // index. Indexes wrap, and an arm may be pending for as long as no solicited entry comes,
        // so the two are compared by their distance from the producer index.
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

    /// Marks the pending arm as served by an event.
    pub fn serve<M: GuestMemory>(&mut self, mem: &M) {
        self.served = Arm::unpack(self.arm).seq;
        self.notified = self.pi;
        self.solicited = None;
        self.collapsed_since = None;
        Area::new(mem, self.area).store(doorbell::cq_served(self.slot as usize), self.served);
    }

    /// Begins to move the CQ to another ring, whose first entry is the one at the driver's consumer
    /// index.
    pub fn begin_moving<M: GuestMemory>(&self, mem: &M, ring: Ring) -> Move {
        let from = self.read_ci(mem);
        Move {
            ring,
            from,
            next: from,
        }
    }

    /// Moves up to `most` further entries. Returns true after the last entry: then the CQ uses the
    /// other ring. The driver's index of each entry stays the same, so the consumer index and the
    /// arms have the same meaning before and after the move.
    ///
    /// # Errors
    ///
    /// `TooSmall` if the CQ has more entries than the other ring has room for, `Unreachable` if a
    /// ring cannot be read or written. The CQ is unchanged then.
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

    /// Returns the context of the CQ.
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

    /// Publishes the context in the guest's context table.
    pub fn publish<M: GuestMemory>(&mut self, mem: &M) {
        if self.error.is_none() {
            self.ci = self.read_ci(mem);
        }
        let context = self.context();
        self.context_slot.publish(mem, &context);
    }

    /// Publishes an empty context after the CQ was destroyed.
    pub fn publish_free<M: GuestMemory>(&mut self, mem: &M) {
        self.context_slot.publish(mem, &CqContext::default());
    }
}

/// Room that is reserved for one entry of a CQ.
///
/// [`Cq::reserve`] is the only source of this type, and [`CqRoom::push`] consumes it, so an entry
/// without room is an error of the compiler. The reservation borrows its CQ: until it is used or
/// dropped, nobody else can take the room or change the ring. A reservation that is dropped leaves
/// the room to the next one.
#[derive(Debug)]
#[must_use = "the room is given back if no entry is pushed"]
pub struct CqRoom<'a> {
    cq: &'a mut Cq,
}

impl CqRoom<'_> {
    /// Writes the entry to the ring. `solicited` is true for entries that a solicited arm waits for.
    /// A ring that cannot be reached moves the CQ to ERR.
    #[inline]
    pub fn push<M: GuestMemory>(self, mem: &M, body: &Cqe, tail: Tail, solicited: bool) -> Written {
        let Self { cq } = self;
        let index = cq.pi;
        if cq.faulty || Self::write(cq, mem, body, tail).is_err() {
            cq.error = Some(Syndrome::CqUnwritable);
            return Written::Died(Syndrome::CqUnwritable);
        }
        if solicited {
            cq.solicited = Some(index);
        }
        Written::Yes
    }

    fn write<M: GuestMemory>(cq: &mut Cq, mem: &M, body: &Cqe, tail: Tail) -> Access {
        let entry = cq.ring.entry(cq.pi);
        let tail = tail.pack(cq.pi, cq.ring.log_size());
        mem.write(entry, &body.as_bytes()[..cqe::TAIL_OFFSET])?;
        mem.store32(entry + cqe::TAIL_OFFSET as u64, tail)?;
        cq.pi = cq.pi.wrapping_add(1);
        if cq.pi.wrapping_sub(cq.notified) > FAR {
            cq.leave_behind();
        }
        Ok(())
    }
}

/// The state of a CQ's move to another ring.
#[derive(Debug)]
pub struct Move {
    ring: Ring,
    /// Index of the first entry to move, followed by the index of the next one.
    from: u32,
    next: u32,
}

/// Cause for which a CQ was not resized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResizeError {
    /// The CQ has more entries than the new ring has room for.
    TooSmall,
    /// The old or the new ring cannot be reached.
    Unreachable,
}
