// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Doorbell areas, and the protocol by which the device notices posts. Device specification,
//! "Doorbell areas".
//!
//! A doorbell area is [`AREA_SIZE`] bytes of guest memory that belong to one context of a process
//! or of the kernel. The device polls the area while it is awake for this area. The area has slots
//! for [`AREA_SLOTS`] queue pairs and SRQs, and as many slots for CQs. **Exactly one side writes
//! each word.** The doorbell BAR has one trapped page for each area. The guest writes to this page
//! only if the device is asleep for the area.
//!
//! | offset | words | writer | meaning |
//! | --- | --- | --- | --- |
//! | [`SLEEP`] | 1 x 32 | device | even: awake; odd: asleep, notices posts only after a doorbell |
//! | [`ALIVE`] | 1 x 32 | device | 1 while the device serves the area; see below |
//! | [`RUNG`] | 1 x 32 | guest | the odd sleep word for which the guest has last rung the doorbell |
//! | [`qp_generation`] | 2 x 32 | guest | number of posts to a group of [`GROUP_SLOTS`] queue pair slots |
//! | [`cq_generation`] | 2 x 32 | guest | number of arms of a group of CQ slots |
//! | [`recv_watch`] | 128 x 32 | device | 1 while the device must notice posted receives: to flush them, because the queue pair is in ERR, or because a sender waits for them |
//! | [`srq_consumer`] | 128 x 32 | device | number of entries taken from the SRQ, which the guest may write again |
//! | [`cq_served`] | 128 x 32 | device | sequence number of the last arm that was served by an event |
//! | [`sq_producer`] | 128 x 32 | guest | producer index of the send queue |
//! | [`rq_producer`] | 128 x 32 | guest | producer index of the receive queue or SRQ |
//! | [`cq_consumer`] | 128 x 32 | guest | consumer index of the CQ |
//! | [`cq_arm`] | 128 x 64 | guest | arm word; see [`Arm`] |
//!
//! The words of the device have a part of their own, which processes map for reading only. When a
//! context is disassociated, the kernel replaces the read-only mappings by the zero page, and all
//! writable mappings of the process by one common page. After that, [`ALIVE`] reads as 0, and
//! values read through a writable mapping have no meaning. After a fatal error the driver first
//! stops the device, then stores 0 in [`ALIVE`] itself, then revokes the mappings. If a working
//! device is unbound, the driver destroys the queues of the area before it revokes the mappings.
//!
//! [`post_send`] publishes the producer index, increments the generation, executes a full fence,
//! reads the sleep word, and rings the doorbell if necessary. The device falls asleep with
//! [`fall_asleep`] and wakes up with [`wake_up`], and must scan the area after each of these.
//! Because of the fences, either the guest sees the odd sleep word and rings, or the device sees
//! the generation in its last scan. Both sides run this code, and a loom model checks it.

/// Size of an area in bytes; its DMA address is aligned to 4096.
pub const AREA_SIZE: usize = 0x2000;
/// Offset of the part of [`PART_SIZE`] bytes that the device writes, and that processes map for
/// reading only.
pub const DEVICE_PART: usize = 0x0000;
/// Offset of the part of [`PART_SIZE`] bytes that the guest writes.
pub const GUEST_PART: usize = 0x1000;
/// Size of each of the two parts in bytes.
pub const PART_SIZE: usize = 0x1000;
/// Number of slots for queue pairs and SRQs, and number of slots for CQs, in an area.
pub const AREA_SLOTS: usize = 128;
/// Number of slots that share a generation counter.
pub const GROUP_SLOTS: usize = 64;
/// Number of generation counters of each kind in an area.
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
const RECV_WATCHES: usize = DEVICE_PART + 0x0200;
const CQ_SERVED: usize = DEVICE_PART + 0x0400;
const SRQ_CONSUMERS: usize = DEVICE_PART + 0x0600;
const LINE: usize = 64;

/// Returns the offset of the generation counter of a group of queue pair slots. Each counter has
/// its own cache line.
#[inline]
pub const fn qp_generation(group: usize) -> usize {
    QP_GENERATIONS + (group % GROUPS) * LINE
}

/// Returns the offset of the generation counter of a group of CQ slots.
#[inline]
pub const fn cq_generation(group: usize) -> usize {
    CQ_GENERATIONS + (group % GROUPS) * LINE
}

/// Returns the offset of the watch word of a queue pair or SRQ.
#[inline]
pub const fn recv_watch(slot: usize) -> usize {
    RECV_WATCHES + (slot % AREA_SLOTS) * 4
}

/// Returns the offset of the consumer index of an SRQ.
#[inline]
pub const fn srq_consumer(slot: usize) -> usize {
    SRQ_CONSUMERS + (slot % AREA_SLOTS) * 4
}

/// Returns the offset of the served word of a CQ slot.
#[inline]
pub const fn cq_served(slot: usize) -> usize {
    CQ_SERVED + (slot % AREA_SLOTS) * 4
}

/// Returns the offset of the producer index of a send queue.
#[inline]
pub const fn sq_producer(slot: usize) -> usize {
    SQ_PRODUCERS + (slot % AREA_SLOTS) * 4
}

/// Returns the offset of the producer index of a receive queue or SRQ.
#[inline]
pub const fn rq_producer(slot: usize) -> usize {
    RQ_PRODUCERS + (slot % AREA_SLOTS) * 4
}

/// Returns the offset of the consumer index of a CQ.
#[inline]
pub const fn cq_consumer(slot: usize) -> usize {
    CQ_CONSUMERS + (slot % AREA_SLOTS) * 4
}

/// Returns the offset of the arm word of a CQ, which has 64 bits.
#[inline]
pub const fn cq_arm(slot: usize) -> usize {
    CQ_ARMS + (slot % AREA_SLOTS) * 8
}

/// The CQEs for which an arm requests an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ArmMode {
    /// None: the CQ was never armed.
    None,
    /// The next CQE that is solicited or in error.
    Solicited,
    /// The next CQE.
    Next,
}

/// The arm word. The guest stores it with one access of 64 bits, so that the device never sees half
/// of an arm.
///
/// Bits 31:0 are the consumer index up to which the program has polled, bits 61:32 the sequence
/// number, and bits 63:62 the mode. The device serves each sequence number at most once. It raises
/// an event if the CQ has a CQE that the mode requests, at or after both the arm's index and the
/// producer index of the last notification. Then it stores the sequence number in [`cq_served`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arm {
    /// Consumer index up to which the program has polled.
    pub index: u32,
    /// Sequence number of 30 bits, which is never 0 in an arm.
    pub seq: u32,
    /// The requested CQEs.
    pub mode: ArmMode,
}

/// Mask of the bits of [`Arm::seq`].
pub const ARM_SEQ_MASK: u32 = 0x3fff_ffff;

impl Arm {
    /// Returns the arm word.
    #[inline]
    pub const fn pack(self) -> u64 {
        let mode = match self.mode {
            ArmMode::None => 0,
            ArmMode::Solicited => 1,
            ArmMode::Next => 2,
        };
        self.index as u64 | ((self.seq & ARM_SEQ_MASK) as u64) << 32 | mode << 62
    }

    /// Unpacks an arm word. An unknown mode becomes [`ArmMode::Next`].
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

    /// Returns the arm that follows this one. `served` is the sequence number in [`cq_served`].
    ///
    /// A solicited arm does not weaken a pending arm for the next CQE (IBTA C11-31, C11-32).
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

/// Access of one side to the words of an area. Offsets are those of this module. An implementation
/// checks that they are within the area.
///
/// Words have the byte order of the machine. The contract supports only little-endian machines.
pub trait Words {
    /// Relaxed load.
    fn load(&self, offset: usize) -> u32;
    /// Load with acquire order.
    fn load_acquire(&self, offset: usize) -> u32;
    /// Relaxed store.
    fn store(&self, offset: usize, value: u32);
    /// Store with release order.
    fn store_release(&self, offset: usize, value: u32);
    /// Store of 64 bits with one access, with release order.
    fn store64_release(&self, offset: usize, value: u64);
    /// Load of 64 bits with one access, with acquire order.
    fn load64_acquire(&self, offset: usize) -> u64;
    /// Adds 1 atomically with release order, because several threads of this side may do so. Only
    /// for words that this side writes. Without release order, the device could see the new count
    /// and still load an old producer index or arm, and would not look again.
    fn increment(&self, offset: usize);
    /// Full fence: orders all earlier accesses before all later ones, also earlier stores before
    /// later loads.
    fn fence(&self);
    /// Read fence: orders all earlier loads before all later ones.
    #[inline]
    fn read_fence(&self) {
        self.fence();
    }
}

/// Guest: announces earlier stores to the device, for the group whose generation counter has the
/// offset `generation`. `ring` writes to the page of the area in the doorbell BAR.
///
/// The doorbell is rung before the rung word is stored. Otherwise a thread that is preempted or
/// killed between the two would suppress the doorbells of other threads.
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

/// Guest: publishes the producer index of a send queue. The caller has written the WQEs.
#[inline]
pub fn post_send<W: Words + ?Sized>(words: &W, slot: usize, producer: u32, ring: impl FnOnce()) {
    words.store_release(sq_producer(slot), producer);
    notify(words, qp_generation(slot / GROUP_SLOTS), ring);
}

/// Guest: publishes the producer index of a receive queue. The caller has written the WQEs. The
/// device reads the index when a packet needs a receive. The post is announced only if the watch
/// word is set: the device then has receives to flush, or a sender to tell.
#[inline]
pub fn post_recv<W: Words + ?Sized>(words: &W, slot: usize, producer: u32, ring: impl FnOnce()) {
    words.store_release(rq_producer(slot), producer);
    words.fence();
    if words.load(recv_watch(slot)) != 0 {
        notify(words, qp_generation(slot / GROUP_SLOTS), ring);
    }
}

/// Device: sets or clears the watch word of a queue pair or SRQ. After setting it, the device must
/// look for receives: because of the fences, either the device finds a posted receive, or the guest
/// sees the watch word and announces the receive ([`post_recv`]).
#[inline]
pub fn watch_receives<W: Words + ?Sized>(words: &W, slot: usize, watched: bool) {
    words.store(recv_watch(slot), watched.into());
    words.fence();
}

/// Guest: arms a CQ. `last` is the previous arm, which is replaced by the new one.
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

/// Device: declares itself asleep for this area. After that, the caller must scan the area once
/// more, and wake up if it finds work.
#[inline]
pub fn fall_asleep<W: Words + ?Sized>(words: &W, sleep: &mut u32) {
    *sleep = sleep.wrapping_add(1) | 1;
    words.store(SLEEP, *sleep);
    words.fence();
}

/// Device: declares itself awake for this area. After that, the caller must scan the area.
#[inline]
pub fn wake_up<W: Words + ?Sized>(words: &W, sleep: &mut u32) {
    *sleep = sleep.wrapping_add(1) & !1;
    words.store(SLEEP, *sleep);
    words.fence();
}

/// Name, offset and size in bytes of the words of an area, for the layout table.
pub const AREA: &[(&str, usize, usize)] = &[
    ("sleep", SLEEP, 4),
    ("alive", ALIVE, 4),
    ("rung", RUNG, 4),
    ("qp_generation", QP_GENERATIONS, GROUPS * LINE),
    ("cq_generation", CQ_GENERATIONS, GROUPS * LINE),
    ("recv_watch", RECV_WATCHES, AREA_SLOTS * 4),
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
