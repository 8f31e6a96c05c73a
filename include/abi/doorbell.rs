// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Doorbell areas, and the protocol by which posts are noticed. Device specification, "Doorbells".
//!
//! A doorbell area is [`AREA_SIZE`] bytes of guest memory that belong to one context (a process's, or the kernel's) and
//! that the device polls while it is awake. It has slots for [`AREA_SLOTS`] queue pairs (SRQs use the same slots) and
//! as many CQs. **Every word has exactly one side that writes it.** The device also has one trapped page for each area
//! in the doorbell BAR; a write to it is needed only when the device sleeps.
//!
//! | offset | words | writer | meaning |
//! | --- | --- | --- | --- |
//! | [`SLEEP`] | 1 x 32 | device | even: awake; odd: asleep, ring to be noticed |
//! | [`ALIVE`] | 1 x 32 | device | 1 while the device serves the area, see below |
//! | [`RUNG`] | 1 x 32 | guest | the odd sleep word that was rung for last |
//! | [`qp_generation`] | 2 x 32 | guest | counts posts to a group of [`GROUP_SLOTS`] queue pair slots |
//! | [`cq_generation`] | 2 x 32 | guest | counts arms of a group of CQ slots |
//! | [`qp_error`] | 128 x 32 | device | 1 while the queue pair is in ERR: posted receives must be noticed, to be flushed |
//! | [`srq_consumer`] | 128 x 32 | device | SRQ: entries taken; those before it may be written again |
//! | [`cq_served`] | 128 x 32 | device | sequence number of the last arm that was served with an event |
//! | [`sq_producer`] | 128 x 32 | guest | producer index of the send queue |
//! | [`rq_producer`] | 128 x 32 | guest | producer index of the receive queue or SRQ |
//! | [`cq_consumer`] | 128 x 32 | guest | consumer index of the CQ |
//! | [`cq_arm`] | 128 x 64 | guest | arm word, see [`Arm`] |
//!
//! The device's words are in a part of their own, which processes map for reading only. When a context is disassociated
//! the kernel replaces the mappings: read-only ones by the zero page, all writable ones of the process by one common page.
//! So [`ALIVE`] reads 0 from then on, whereas what is read through a writable mapping means nothing any more. After a fatal
//! error the device was stopped before, and the driver, its only heir, has stored 0 in [`ALIVE`]; where a device that works is
//! unbound, the queues that the area's words are about were destroyed before.
//!
//! Posting is [`post_send`]: publish the index, count the generation, full fence, read the sleep word, ring if need be. The
//! device sleeps by [`fall_asleep`] and wakes by [`wake_up`], and must scan the area after either. The fences pair:
//! either the guest sees the odd word and rings, or the device's last scan sees the generation. Both sides run this
//! very code, and a loom model checks it.

/// Size of an area in bytes; its DMA address is aligned to 4096.
pub const AREA_SIZE: usize = 0x2000;
/// Offset of the part that the device writes, and that processes map for reading only; [`PART_SIZE`] bytes.
pub const DEVICE_PART: usize = 0x0000;
/// Offset of the part that the guest writes; [`PART_SIZE`] bytes.
pub const GUEST_PART: usize = 0x1000;
/// Size of either part in bytes.
pub const PART_SIZE: usize = 0x1000;
/// Slots for queue pairs, and slots for CQs, in an area.
pub const AREA_SLOTS: usize = 128;
/// Slots that share a generation counter.
pub const GROUP_SLOTS: usize = 64;
/// Generation counters of each kind in an area.
pub const GROUPS: usize = AREA_SLOTS / GROUP_SLOTS;

/// Offset of the sleep word.
pub const SLEEP: usize = 0x0000;
/// Offset of the alive word.
pub const ALIVE: usize = 0x0004;
/// Offset of the rung word.
pub const RUNG: usize = GUEST_PART;

const QP_GENERATIONS: usize = GUEST_PART + 0x0040;
const CQ_GENERATIONS: usize = GUEST_PART + 0x00c0;
const CQ_CONSUMERS: usize = GUEST_PART + 0x0200;
const CQ_ARMS: usize = GUEST_PART + 0x0400;
const SQ_PRODUCERS: usize = GUEST_PART + 0x0800;
const RQ_PRODUCERS: usize = GUEST_PART + 0x0a00;
const QP_ERRORS: usize = DEVICE_PART + 0x0200;
const CQ_SERVED: usize = DEVICE_PART + 0x0400;
const SRQ_CONSUMERS: usize = DEVICE_PART + 0x0600;
const LINE: usize = 64;

/// Offset of the generation counter of a group of queue pair slots (each on a cache line of its own).
#[inline]
pub const fn qp_generation(group: usize) -> usize {
    QP_GENERATIONS + (group % GROUPS) * LINE
}

/// Offset of the generation counter of a group of CQ slots.
#[inline]
pub const fn cq_generation(group: usize) -> usize {
    CQ_GENERATIONS + (group % GROUPS) * LINE
}

/// Offset of the error word of a queue pair slot.
#[inline]
pub const fn qp_error(slot: usize) -> usize {
    QP_ERRORS + (slot % AREA_SLOTS) * 4
}

/// Offset of the consumer index of an SRQ.
#[inline]
pub const fn srq_consumer(slot: usize) -> usize {
    SRQ_CONSUMERS + (slot % AREA_SLOTS) * 4
}

/// Offset of the served word of a CQ slot.
#[inline]
pub const fn cq_served(slot: usize) -> usize {
    CQ_SERVED + (slot % AREA_SLOTS) * 4
}

/// Offset of the producer index of a send queue.
#[inline]
pub const fn sq_producer(slot: usize) -> usize {
    SQ_PRODUCERS + (slot % AREA_SLOTS) * 4
}

/// Offset of the producer index of a receive queue or SRQ.
#[inline]
pub const fn rq_producer(slot: usize) -> usize {
    RQ_PRODUCERS + (slot % AREA_SLOTS) * 4
}

/// Offset of the consumer index of a CQ.
#[inline]
pub const fn cq_consumer(slot: usize) -> usize {
    CQ_CONSUMERS + (slot % AREA_SLOTS) * 4
}

/// Offset of the arm word of a CQ (64 bits).
#[inline]
pub const fn cq_arm(slot: usize) -> usize {
    CQ_ARMS + (slot % AREA_SLOTS) * 8
}

/// What an arm asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ArmMode {
    /// Nothing: the CQ was never armed.
    None,
    /// The next CQE that is solicited or in error.
    Solicited,
    /// The next CQE.
    Next,
}

/// The arm word: one 64-bit store of the guest, so that the device never sees half of an arm.
///
/// Bits 31:0 consumer index that the program had seen, 61:32 sequence number, 63:62 mode. The device serves each
/// sequence number at most once: it raises an event when a CQE that the mode asks for lies at or beyond both the arm's
/// index and the index of its last notification, and then stores the sequence number in [`cq_served`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arm {
    /// Consumer index that the program had seen.
    pub index: u32,
    /// Sequence number, 30 bits, never 0 in an arm.
    pub seq: u32,
    /// What it asks for.
    pub mode: ArmMode,
}

/// The bits of [`Arm::seq`].
pub const ARM_SEQ_MASK: u32 = 0x3fff_ffff;

impl Arm {
    /// Packs the word.
    #[inline]
    pub const fn pack(self) -> u64 {
        let mode = match self.mode {
            ArmMode::None => 0,
            ArmMode::Solicited => 1,
            ArmMode::Next => 2,
        };
        self.index as u64 | ((self.seq & ARM_SEQ_MASK) as u64) << 32 | mode << 62
    }

    /// Unpacks the word. An unknown mode is taken for [`ArmMode::Next`].
    #[inline]
    pub const fn unpack(word: u64) -> Self {
        Self {
            index: word as u32,
            seq: (word >> 32) as u32 & ARM_SEQ_MASK,
            mode: match word >> 62 {
                0 => ArmMode::None,
                1 => ArmMode::Solicited,
                _ => ArmMode::Next,
            },
        }
    }

    /// The arm that follows this one, when the device has served `served`.
    ///
    /// A solicited arm never weakens a full arm that is still pending (semantics: 1.7).
    #[inline]
    pub const fn next(self, served: u32, index: u32, mode: ArmMode) -> Self {
        let pending = self.seq != served && matches!(self.mode, ArmMode::Next);
        let seq = (self.seq + 1) & ARM_SEQ_MASK;
        Self {
            index,
            seq: if seq == 0 { 1 } else { seq },
            mode: if pending { ArmMode::Next } else { mode },
        }
    }
}

/// The words of an area as one side sees them. Offsets are those above; an implementation bounds-checks them.
///
/// Words are in the machine's order on little-endian machines, which is all that the contract supports today.
pub trait Words {
    /// Relaxed load.
    fn load(&self, offset: usize) -> u32;
    /// Load with acquire order.
    fn load_acquire(&self, offset: usize) -> u32;
    /// Relaxed store.
    fn store(&self, offset: usize, value: u32);
    /// Store with release order.
    fn store_release(&self, offset: usize, value: u32);
    /// Store of 64 bits at once, with release order.
    fn store64_release(&self, offset: usize, value: u64);
    /// Load of 64 bits at once, with acquire order.
    fn load64_acquire(&self, offset: usize) -> u64;
    /// Atomically adds 1; only ever on words that this side alone writes (from several threads).
    fn increment(&self, offset: usize);
    /// Full fence: orders all earlier accesses before all later ones, stores before loads included.
    fn fence(&self);
}

/// Guest: makes sure that the device notices what was stored before, in the group whose counter is at `generation`.
/// `ring` writes to the area's page in the doorbell BAR.
///
/// First ring, then mark: a thread that is preempted or killed between the two must not silence the others.
#[inline]
pub fn notify<W: Words + ?Sized>(words: &W, generation: usize, ring: impl FnOnce()) {
    words.increment(generation);
    words.fence();
    let sleep = words.load(SLEEP);
    if sleep & 1 != 0 && words.load(RUNG) != sleep {
        ring();
        words.store(RUNG, sleep);
    }
}

/// Guest: publishes the producer index of a send queue after its WQEs were written.
#[inline]
pub fn post_send<W: Words + ?Sized>(words: &W, slot: usize, producer: u32, ring: impl FnOnce()) {
    words.store_release(sq_producer(slot), producer);
    notify(words, qp_generation(slot / GROUP_SLOTS), ring);
}

/// Guest: publishes the producer index of a receive queue after its WQEs were written. The device reads it when a
/// packet needs a receive; only a queue pair in ERR has to be noticed, because its receives are to be flushed.
#[inline]
pub fn post_recv<W: Words + ?Sized>(words: &W, slot: usize, producer: u32, ring: impl FnOnce()) {
    words.store_release(rq_producer(slot), producer);
    words.fence();
    if words.load(qp_error(slot)) != 0 {
        notify(words, qp_generation(slot / GROUP_SLOTS), ring);
    }
}

/// Guest: arms a CQ. `last` is the arm before this one.
#[inline]
pub fn arm_cq<W: Words + ?Sized>(
    words: &W,
    slot: usize,
    last: &mut Arm,
    index: u32,
    mode: ArmMode,
    ring: impl FnOnce(),
) {
    *last = last.next(words.load_acquire(cq_served(slot)), index, mode);
    words.store64_release(cq_arm(slot), last.pack());
    notify(words, cq_generation(slot / GROUP_SLOTS), ring);
}

/// Device: declares itself asleep for this area. The caller scans the area once more afterwards, and wakes up if it
/// finds anything.
#[inline]
pub fn fall_asleep<W: Words + ?Sized>(words: &W, sleep: &mut u32) {
    *sleep = sleep.wrapping_add(1) | 1;
    words.store(SLEEP, *sleep);
    words.fence();
}

/// Device: declares itself awake for this area. The caller scans the area afterwards.
#[inline]
pub fn wake_up<W: Words + ?Sized>(words: &W, sleep: &mut u32) {
    *sleep = sleep.wrapping_add(1) & !1;
    words.store(SLEEP, *sleep);
    words.fence();
}

/// The words of an area by name, offset and size, for the layout table.
pub const AREA: &[(&str, usize, usize)] = &[
    ("sleep", SLEEP, 4),
    ("alive", ALIVE, 4),
    ("rung", RUNG, 4),
    ("qp_generation", QP_GENERATIONS, GROUPS * LINE),
    ("cq_generation", CQ_GENERATIONS, GROUPS * LINE),
    ("qp_error", QP_ERRORS, AREA_SLOTS * 4),
    ("cq_served", CQ_SERVED, AREA_SLOTS * 4),
    ("srq_consumer", SRQ_CONSUMERS, AREA_SLOTS * 4),
    ("cq_arm", CQ_ARMS, AREA_SLOTS * 8),
    ("sq_producer", SQ_PRODUCERS, AREA_SLOTS * 4),
    ("rq_producer", RQ_PRODUCERS, AREA_SLOTS * 4),
    ("cq_consumer", CQ_CONSUMERS, AREA_SLOTS * 4),
];

pub(super) fn layouts(structure: &mut super::VisitStruct<'_>, _code: &mut super::VisitCode<'_>) {
    structure("DoorbellArea", AREA_SIZE, AREA);
}
