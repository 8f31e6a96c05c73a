// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Access to the queues of this process without the provider: finding the queues, and one episode
//! of forged data.
use super::{forge, SyndromeCounts};
use crate::ffi::cq::Cq;
use crate::ffi::mr::{access, Mr};
use crate::ffi::qp::{op, RecvWr, SendWr};
use crate::ffi::sys::DeviceMapping;
use crate::outcome::ErrorContext as _;
use crate::pattern::PatternRng;
use crate::rig::{self, PairOpts, QpEndpoint, Rig};
use crate::Fail;
use std::mem::offset_of;
use std::sync::atomic::{fence, Ordering};
use std::time::{Duration, Instant};
use verbena_abi::cqe::Cqe;
use verbena_abi::doorbell as db;
use verbena_abi::wqe::{RecvWqe, SendWqe};

const DEVICE_FILE: &str = "/dev/infiniband/uverbs";

/// Returns the offset of a word in the mapping of the guest's part of the doorbell area.
fn word(area_offset: usize) -> usize {
    area_offset - db::GUEST_PART
}

/// Returns the mappings that did not exist before.
fn new_since(before: &[DeviceMapping]) -> Vec<DeviceMapping> {
    let mut now = DeviceMapping::find(DEVICE_FILE);
    now.retain(|m| before.iter().all(|b| b.start() != m.start()));
    now
}

/// A ring of entries, with the free-running index of the next entry to forge.
struct ForgedRing {
    map: DeviceMapping,
    stride: usize,
    size: usize,
    next: u32,
}

impl ForgedRing {
    /// Finds the ring in which the provider wrote two consecutive requests with the ids `first` and
    /// `first + 1`. `id_at` is the offset of the id in an entry.
    fn find(maps: &[DeviceMapping], first: u64, id_at: usize, entries: u32) -> Option<ForgedRing> {
        let at = |map: &DeviceMapping, id: u64| {
            (id_at..map.len() - 7)
                .step_by(8)
                .find(|&off| map.read64(off) == id)
        };
        maps.iter()
            .filter(|m| m.readable && m.writable)
            .find_map(|map| {
                let (a, b) = (at(map, first)?, at(map, first + 1)?);
                let stride = b.checked_sub(a)?;
                let size = (entries as usize).next_power_of_two();
                (stride >= 16 && stride.is_power_of_two() && stride * size <= map.len()).then(
                    || ForgedRing {
                        map: map.clone(),
                        stride,
                        size,
                        next: 2,
                    },
                )
            })
    }

    fn put(&mut self, entry: &forge::ForgedWqe) {
        let base = (self.next as usize % self.size) * self.stride;
        for (i, chunk) in entry.0.chunks_exact(4).enumerate() {
            let value = u32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]);
            self.map.write32(base + i * 4, value);
        }
        self.next = self.next.wrapping_add(1);
    }
}

/// The doorbell area of this process: the part that the guest writes, and the doorbell page in the
/// BAR.
pub struct AreaMapping {
    guest: DeviceMapping,
    bell: DeviceMapping,
}

impl AreaMapping {
    /// Finds the doorbell area in a context that has no queues yet, because rings could be mistaken
    /// for the area.
    pub fn find() -> Option<AreaMapping> {
        let maps = DeviceMapping::find(DEVICE_FILE);
        // The guest's part begins where the device's read-only part ends; the doorbell page is
        // apart.
        let follows_device_part = |m: &DeviceMapping| {
            let mut device = maps.iter().filter(|m| !m.writable);
            device.any(|d| d.start() + d.len() == m.start())
        };
        let mut pages = maps
            .iter()
            .filter(|m| m.writable && m.len() == db::PART_SIZE);
        let guest = pages.clone().find(|&m| follows_device_part(m))?.clone();
        let bell = pages.find(|&m| !follows_device_part(m))?.clone();
        Some(AreaMapping { guest, bell })
    }

    fn producers(&self, base: fn(usize) -> usize) -> Vec<u32> {
        (0..db::AREA_SLOTS)
            .map(|s| self.guest.read32(word(base(s))))
            .collect()
    }

    /// Stores a producer index and rings the doorbell.
    fn publish(&self, at: usize, slot: usize, index: u32) {
        fence(Ordering::Release);
        self.guest.write32(word(at), index);
        self.notify(db::qp_generation(slot / db::GROUP_SLOTS));
    }

    fn notify(&self, generation: usize) {
        let at = word(generation);
        self.guest
            .write32(at, self.guest.read32(at).wrapping_add(1));
        fence(Ordering::SeqCst);
        self.bell.write32(0, 0);
    }
}

/// Returns the slot whose producer index changed.
fn changed_slot(before: &[u32], after: &[u32]) -> Option<usize> {
    before.iter().zip(after).position(|(a, b)| a != b)
}

/// Counts the syndromes in a completion ring, whatever the device wrote there. Returns true if
/// there were any.
fn count_syndromes(maps: &[DeviceMapping], counts: &mut SyndromeCounts) -> bool {
    let mut any = false;
    for map in maps.iter().filter(|m| m.readable && !m.writable) {
        for entry in (0..map.len()).step_by(size_of::<Cqe>()) {
            let cause = map.read32(entry + offset_of!(Cqe, vendor_err));
            if cause != 0 {
                *counts.entry(cause).or_default() += 1;
                any = true;
            }
        }
    }
    any
}

/// The queues of a QP, as the process finds them without the provider.
struct ForgedQueues {
    sq: ForgedRing,
    rq: ForgedRing,
    /// Slots of the queues in the doorbell area.
    send_slot: usize,
    recv_slot: usize,
}

impl ForgedQueues {
    /// Finds the queues of `a` among `maps`. Two valid requests in each queue, whose ids begin at
    /// `tag`, reveal the addresses of the queues.
    fn find(
        area: &AreaMapping,
        maps: &[DeviceMapping],
        a: &QpEndpoint,
        b: &QpEndpoint,
        tag: u64,
    ) -> Result<Self, Fail> {
        let recvs = area.producers(db::rq_producer);
        let sge = a.mr.sge(0, 4096);
        a.qp.post_recv(&[RecvWr::new(tag, &[sge]), RecvWr::new(tag + 1, &[sge])])?;
        let recv_slot = changed_slot(&recvs, &area.producers(db::rq_producer));
        let sends = area.producers(db::sq_producer);
        let write = SendWr::new(op::WRITE, tag, &[a.mr.sge(0, 8)]).remote(b.mr.at(0), b.mr.rkey());
        a.qp.post_send(&[
            write.clone(),
            SendWr {
                wr_id: tag + 1,
                ..write
            },
        ])?;
        let send_slot = changed_slot(&sends, &area.producers(db::sq_producer));
        let (Some(send_slot), Some(recv_slot)) = (send_slot, recv_slot) else {
            return Err("no producer index moved in the doorbell area".into());
        };
        let sq = ForgedRing::find(maps, tag, offset_of!(SendWqe, wr_id), a.qp.cap.max_send_wr);
        let rq = ForgedRing::find(maps, tag, offset_of!(RecvWqe, wr_id), a.qp.cap.max_recv_wr);
        let (Some(sq), Some(rq)) = (sq, rq) else {
            return Err(format!("the rings are not among the mappings: {maps:?}").into());
        };
        Ok(Self {
            sq,
            rq,
            send_slot,
            recv_slot,
        })
    }

    /// Forges receives. Returns their number.
    fn forge_receives(
        &mut self,
        area: &AreaMapping,
        rng: &mut PatternRng,
        targets: &forge::ForgeTargets<'_>,
        tag: u64,
    ) -> u64 {
        for i in 0..4 {
            let wqe = forge::recv(rng, self.rq.stride, targets, tag + 100 + i);
            self.rq.put(&wqe);
        }
        let slot = self.recv_slot;
        area.publish(db::rq_producer(slot), slot, self.rq.next);
        4
    }

    /// Forges sends, sometimes with a wrong producer index. Returns their number.
    fn forge_sends(
        &mut self,
        area: &AreaMapping,
        rng: &mut PatternRng,
        targets: &forge::ForgeTargets<'_>,
        tag: u64,
    ) -> u64 {
        let count = 1 + rng.below(6);
        for i in 0..count {
            let wqe = forge::send(rng, self.sq.stride, targets, tag + 200 + i);
            self.sq.put(&wqe);
        }
        let index = match rng.below(16) {
            0 => self.sq.next.wrapping_add(rng.next_u64() as u32),
            1 => self.sq.next.wrapping_sub(3),
            _ => self.sq.next,
        };
        area.publish(db::sq_producer(self.send_slot), self.send_slot, index);
        count
    }
}

/// Posts receives to the peer, some of them too small or with an unknown key. In one third of the
/// episodes the peer has no receives.
fn post_receives_of_peer(b: &QpEndpoint, rng: &mut PatternRng) -> Result<(), Fail> {
    if rng.below(3) == 0 {
        return Ok(());
    }
    let small = if rng.below(4) == 0 { 8 } else { 4096 };
    let bad = crate::ffi::Sge {
        lkey: 0xdead_beef,
        ..b.mr.sge(0, 64)
    };
    let sge = if rng.below(5) == 0 {
        bad
    } else {
        b.mr.sge(8192, small)
    };
    b.qp.post_recv(&vec![RecvWr::new(1, &[sge]); 8])?;
    Ok(())
}

/// Waits for a moment and counts the syndromes in the CQs of both ends.
fn collect_syndromes(
    cq_maps: &[DeviceMapping],
    b: &QpEndpoint,
    counts: &mut SyndromeCounts,
) -> Result<(), Fail> {
    // Give the device time: an error is likely, but some forged entries are harmless.
    let until = Instant::now() + Duration::from_millis(40);
    while Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
        let mut probe = SyndromeCounts::new();
        if count_syndromes(cq_maps, &mut probe) {
            break;
        }
    }
    count_syndromes(cq_maps, counts);
    for cq in [&b.scq, &b.rcq] {
        for w in cq.poll(64).at("polling the peer's CQ")? {
            if w.vendor_err != 0 {
                *counts.entry(w.vendor_err).or_default() += 1;
            }
        }
    }
    Ok(())
}

/// Creates a connected pair of QPs, forges entries and words for one of them, and counts the
/// syndromes. Returns the number of forged entries.
pub fn episode(
    rig: &Rig,
    area: &AreaMapping,
    rng: &mut PatternRng,
    counts: &mut SyndromeCounts,
) -> Result<u64, Fail> {
    let opts = PairOpts::default()
        .with(|o| o.cap.max_inline_data = 32)
        .conn(|c| {
            (c.timeout, c.retry_cnt, c.rnr_retry, c.min_rnr_timer) = (12, 1, 1, 1);
        });
    let before = DeviceMapping::find(DEVICE_FILE);
    let (scq, rcq) = (Cq::new(&rig.ctx, 64)?, Cq::new(&rig.ctx, 64)?);
    let cq_maps = new_since(&before);
    let before = DeviceMapping::find(DEVICE_FILE);
    let a = rig.end_on(&opts, scq, rcq)?;
    let maps = new_since(&before);
    let b = rig.end(&opts)?;
    rig::connect(&a.qp, rig.gid, b.qp.qpn(), &opts.conn_a).at("connecting")?;
    rig::connect(&b.qp, rig.gid, a.qp.qpn(), &opts.conn_b).at("connecting")?;
    let tag = 0x7e57_0000_0000_0000 | rng.below(1 << 40) << 4;
    let mut queues = ForgedQueues::find(area, &maps, &a, &b, tag)?;

    let other_pd = rig.ctx.alloc_pd()?;
    let read_only = Mr::new(&rig.pd, 4096, access::NONE)?;
    let foreign = Mr::new(&other_pd, 4096, access::ALL)?;
    let targets = forge::ForgeTargets {
        mr: &a.mr,
        remote: (b.mr.at(0), b.mr.rkey()),
        read_only: &read_only,
        foreign: &foreign,
    };
    // Receives are forged first, so that the peer's SENDs arrive in forged entries.
    let mut forged = queues.forge_receives(area, rng, &targets, tag);
    post_receives_of_peer(&b, rng)?;
    let by_recv = rng.below(3) == 0;
    if by_recv {
        for _ in 0..4 {
            let wr = SendWr::new(op::SEND, 2, &[b.mr.sge(0, 64)]);
            let _ = b.qp.post_send(&[wr]);
        }
    } else {
        forged += queues.forge_sends(area, rng, &targets, tag);
    }
    if rng.below(4) == 0 {
        corrupt_words(area, rng);
    }
    collect_syndromes(&cq_maps, &b, counts)?;
    Ok(forged)
}

/// Overwrites arm words, consumer and producer indexes and the rung word of random slots, and
/// increments two generation words.
fn corrupt_words(area: &AreaMapping, rng: &mut PatternRng) {
    for _ in 0..1 + rng.below(8) {
        let slot = rng.below(16) as usize;
        match rng.below(5) {
            0 => area.guest.write64(word(db::cq_arm(slot)), rng.next_u64()),
            1 => area
                .guest
                .write32(word(db::cq_consumer(slot)), rng.next_u64() as u32),
            2 => area
                .guest
                .write32(word(db::rq_producer(slot)), rng.next_u64() as u32),
            3 => area.guest.write32(word(db::RUNG), rng.next_u64() as u32),
            _ => area
                .guest
                .write32(word(db::sq_producer(slot)), rng.next_u64() as u32),
        }
    }
    area.notify(db::cq_generation(0));
    area.notify(db::qp_generation(0));
}
