// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Keys that work requests change: fast registration, and invalidation by the owner and by the
//! peer.
//!
//! While such a request is pending, no other request names its key. So each access of a request has
//! a known result.

use crate::claims::MemoryClaim;
use crate::memory::{RegionModel, PAGE};
use crate::objects::{DataSegment, PostedRecv, PostedSend, Qp};
use crate::oracle::RequestOutcome;
use crate::simulation::{note, DeviceSimulation};
use std::collections::VecDeque;
use verbena_abi::cmd::{DestroyMr, QpType, Table};
use verbena_abi::cqe::WcStatus;
use verbena_abi::ctx::{
    access, mr_flags, Element as Piece, MemoryEntry, MrState, QpState, Translation,
    TRANSLATION_ELEMENTS,
};
use verbena_abi::syndrome::Syndrome;
use verbena_abi::wqe::{send_flags, FastRegSegment, WqeOpcode};
use verbena_device::memory::GuestMemory;

/// Length of the largest region in bytes.
const MAX_MR_SIZE: u64 = 1 << 47;

impl RegionModel {
    /// Returns the segment of the WQE that registers the region.
    pub fn segment(&self) -> FastRegSegment {
        FastRegSegment {
            key: self.key.into(),
            access: self.rights.into(),
            iova: self.iova.into(),
            length: self.length.into(),
            page_offset: self.offset().into(),
            pages: self.raw,
        }
    }

    /// True if the device accepts a registration with these values.
    fn is_sound(&self) -> bool {
        let room = match self.raw.levels {
            0 | TRANSLATION_ELEMENTS => u64::MAX,
            _ => u64::from(self.raw.num_pages.get()) << self.raw.log_page_size,
        };
        let end = self.offset().checked_add(self.length);
        self.rights & !access::ALL == 0
            && self.iova.checked_add(self.length).is_some()
            && self.length <= MAX_MR_SIZE
            && end.is_some_and(|end| end <= room)
    }
}

impl DeviceSimulation {
    /// Creates a key for fast registration with a new index.
    pub fn create_fast_key(&mut self) {
        self.next_key += 1;
        let key = self.next_key << 8 | self.rng.below(256) as u32;
        self.create_fast_key_of(key);
    }

    /// Creates a key for fast registration with the given index and tag.
    pub fn create_fast_key_of(&mut self, key: u32) {
        let region = RegionModel {
            flags: mr_flags::FAST_REG
                | if self.rng.chance(20) {
                    mr_flags::PRIVILEGED
                } else {
                    0
                },
            state: MrState::Free,
            // The fast registration will set the translation.
            raw: Translation::default(),
            ..self.draw_region(key)
        };
        self.register(region);
    }

    /// Destroys a region.
    pub fn destroy_region(&mut self, at: usize) {
        let region = self.keys.all.remove(at);
        // The device ignores the tag, because a fast registration may have changed it.
        let id = region.key ^ self.rng.below(256) as u32;
        self.driver.must(&DestroyMr {
            id: id.into(),
            ..Default::default()
        });
    }

    /// True if a pending request names the key's index, with any tag.
    pub fn is_key_used(&self, key: u32) -> bool {
        let index = key >> 8;
        let names = |sges: &[DataSegment]| sges.iter().any(|s| s.2 >> 8 == index);
        let sends = |qp: &Qp| {
            qp.sends.iter().any(|s| {
                names(&s.sges) || s.remote.1 >> 8 == index || s.changes_key() == Some(index)
            })
        };
        let recvs = |posted: &VecDeque<PostedRecv>| posted.iter().any(|r| names(&r.sges));
        self.qps.iter().any(|qp| sends(qp) || recvs(&qp.recvs))
            || self.srqs.iter().any(|srq| recvs(&srq.posted))
    }

    /// Clears the `busy` flag of keys that no pending request changes.
    pub fn free_keys(&mut self) {
        let busy: Vec<u32> = self
            .qps
            .iter()
            .flat_map(|qp| qp.sends.iter().filter_map(PostedSend::changes_key))
            .collect();
        for region in &mut self.keys.all {
            region.busy = busy.contains(&(region.key >> 8));
        }
    }

    fn region_of(&self, key: u32) -> Option<&RegionModel> {
        self.keys.all.iter().find(|r| r.key >> 8 == key >> 8)
    }

    /// Draws a request that changes a key.
    pub fn draw_key_change(
        &mut self,
        at: usize,
        claims: &[MemoryClaim],
        faulty: bool,
    ) -> Option<PostedSend> {
        let qp = &self.qps[at];
        let (kind, who, peer) = (qp.kind, qp.pd, qp.peer);
        if kind == QpType::Ud || qp.state != QpState::Rts {
            return None;
        }
        let bad = faulty && self.rng.chance(30);
        let theirs = self.qps[peer].pd.pd;
        let start = self.rng.below(self.keys.all.len() as u64) as usize;
        let count = self.keys.all.len();
        let remote = kind == QpType::Rc && self.rng.chance(35);
        let fits = |r: &RegionModel| {
            let owner = if remote { theirs } else { who.pd };
            bad || r.is_fast() && r.pd == owner && (!remote || r.valid())
        };
        let found = (0..count).map(|i| (start + i) % count).find(|i| {
            let r = &self.keys.all[*i];
            fits(r) && !r.busy && !self.is_key_used(r.key)
        })?;
        let old = self.keys.all[found].clone();
        // A remote invalidation that the receiver rejects fails only at the receiver. Another test
        // covers that case.
        let good = old.is_fast() && old.valid() && old.pd == theirs;
        let (opcode, mut wr) = match remote && good {
            true => {
                let mut wr = self.draw_send(at, claims, false)?;
                if wr.opcode != WqeOpcode::Send && wr.opcode != WqeOpcode::SendImm {
                    return None;
                }
                let names = |s: &DataSegment| s.2 >> 8 == old.key >> 8;
                if wr.sges.iter().any(names) {
                    return None;
                }
                wr.imm = old.key.to_le_bytes();
                (WqeOpcode::SendInv, wr)
            }
            false if !who.privileged && !bad => return None,
            false => {
                let opcode = match old.valid() != (bad && self.rng.chance(50)) {
                    true => WqeOpcode::LocalInv,
                    false => WqeOpcode::FastReg,
                };
                (opcode, self.bare_send(at))
            }
        };
        wr.opcode = opcode;
        if !who.privileged && opcode == WqeOpcode::FastReg {
            wr.malformed = Some(Syndrome::Privilege);
        }
        if opcode == WqeOpcode::LocalInv {
            let tag = u32::from(bad && self.rng.chance(50));
            wr.imm = (old.key ^ tag).to_le_bytes();
        }
        if opcode == WqeOpcode::FastReg {
            let key = (old.key & !0xff) | self.rng.below(256) as u32;
            let mut new = RegionModel {
                pd: old.pd,
                flags: old.flags,
                ..self.draw_region(key)
            };
            if self.rng.chance(40) {
                self.with_gaps(&mut new);
            }
            match self.rng.below(8) {
                0 if bad => new.rights |= 0x40,
                1 if bad => new.iova = u64::MAX - new.length + 1,
                2 if bad => new.page_offset = u64::MAX - new.length - new.skip * PAGE + 1,
                _ => {}
            }
            wr.registers = Some(Box::new(new));
        }
        self.keys.all[found].busy = true;
        self.cover("a request for a key");
        Some(wr)
    }

    /// Translates the region with a list of elements: its pages, split at multiples of eight bytes,
    /// so that no atomic crosses elements.
    fn with_gaps(&mut self, region: &mut RegionModel) {
        // No access reaches the pages before the first one, so the address of their element is
        // arbitrary.
        let mut elements = vec![(0, region.skip * PAGE)];
        for &page in &region.pages {
            let (mut at, end) = (page * PAGE, (page + 1) * PAGE);
            while at < end {
                let length = match self.rng.below(3) {
                    0 => end - at,
                    1 => (8 * self.rng.below(600)).min(end - at),
                    _ => (8 + 8 * self.rng.below(8)).min(end - at),
                };
                elements.push((self.heap + at, length));
                at += length;
                if elements.len() > 300 {
                    elements.push((self.heap + at, end - at));
                    break;
                }
            }
        }
        let list = self.driver.alloc(16 * elements.len() as u64);
        let mut end = 0u64;
        for (i, (addr, length)) in elements.iter().enumerate() {
            end += length;
            let element = Piece {
                addr: (*addr).into(),
                end: end.into(),
            };
            let place = list + 16 * i as u64;
            self.driver
                .ram
                .write_struct(place, &element)
                .expect("a list");
        }
        region.raw = Translation {
            addr: list.into(),
            num_pages: (elements.len() as u32).into(),
            levels: TRANSLATION_ELEMENTS,
            ..Default::default()
        };
        self.cover("a region with gaps");
    }

    /// Returns a signaled request without data.
    fn bare_send(&mut self, at: usize) -> PostedSend {
        let fence = match self.rng.chance(20) {
            true => send_flags::FENCE,
            false => 0,
        };
        PostedSend {
            index: self.qps[at].pi[0],
            wr_id: self.wr_id(),
            opcode: WqeOpcode::LocalInv,
            flags: send_flags::SIGNALED | fence,
            sges: Vec::new(),
            inline: Vec::new(),
            remote: (self.rng.next(), 0),
            imm: [0; 4],
            operands: (0, 0),
            to: (self.qps[at].peer, 0),
            malformed: None,
            path: Default::default(),
            foreign: false,
            registers: None,
            patch: None,
            executed_by_peer: false,
            may_be_executed: false,
        }
    }

    /// Returns the verdict for a request that changes a key of the requester and fails.
    pub fn key_fault(&self, at: usize, wr: &PostedSend) -> Option<RequestOutcome> {
        if wr.executed_by_peer {
            return None;
        }
        let pd = self.qps[at].pd.pd;
        let fits = |r: &&RegionModel| r.is_fast() && r.pd == pd;
        let registers = self.qps[at].pd.privileged;
        let good = match &wr.registers {
            Some(new) => self
                .region_of(new.key)
                .filter(fits)
                .is_some_and(|r| !r.valid() && new.is_sound()),
            None => {
                let key = u32::from_le_bytes(wr.imm);
                // An unprivileged QP may only invalidate memory windows, and the program has none.
                self.region_of(key)
                    .filter(fits)
                    .is_some_and(|r| registers && r.valid() && r.key == key)
            }
        };
        let cause = vec![Syndrome::KeyManagement];
        (!good).then_some(RequestOutcome::RejectedLocally(WcStatus::MwBindErr, cause))
    }

    /// Applies a request that has changed a key.
    pub fn change_key(&mut self, wr: &PostedSend) {
        let index = wr.changes_key();
        let found = self.keys.all.iter_mut().find(|r| Some(r.key >> 8) == index);
        let Some(region) = found else {
            self.fail_rule("a request changes a key that does not exist");
        };
        match &wr.registers {
            Some(new) => *region = (**new).clone(),
            None => region.state = MrState::Invalid,
        }
        self.cover(match wr.opcode {
            WqeOpcode::FastReg => "a fast registration",
            WqeOpcode::LocalInv => "a local invalidation",
            _ => "a remote invalidation",
        });
    }

    /// Compares the contexts of regions. The contexts also show which flushed requests were
    /// executed, and which pending ones: a fast registration does not wait for the messages before
    /// it.
    pub fn compare_keys(&mut self) {
        let waiting = self.qps.iter().flat_map(|qp| qp.sends.iter().cloned());
        let mut open: Vec<PostedSend> = waiting.filter(PostedSend::is_local).collect();
        open.append(&mut self.flushed_requests);
        for wr in open {
            let key = wr.changes_key().filter(|_| !wr.executed_by_peer);
            let Some(region) = key.and_then(|index| self.region_of(index << 8)) else {
                continue;
            };
            let place = self.driver.table(Table::Mpt)
                + u64::from(region.key >> 8) * size_of::<MemoryEntry>() as u64;
            let context: MemoryEntry = self.driver.ram.read_struct(place).expect("a context");
            let (now, was) = (context.state, region.state.to_raw());
            let new = match wr.opcode {
                WqeOpcode::FastReg => MrState::Valid,
                _ => MrState::Invalid,
            };
            if now != was && now == new.to_raw() {
                self.change_key(&wr);
                let sends = self.qps.iter_mut().flat_map(|qp| &mut qp.sends);
                sends
                    .filter(|s| s.wr_id == wr.wr_id)
                    .for_each(|s| s.executed_by_peer = true);
            }
        }
        for at in 0..self.keys.all.len() {
            let region = &self.keys.all[at];
            let index = region.key >> 8;
            let place =
                self.driver.table(Table::Mpt) + u64::from(index) * size_of::<MemoryEntry>() as u64;
            let context: MemoryEntry = self.driver.ram.read_struct(place).expect("a context");
            let expected = MemoryEntry {
                seq: context.seq,
                key: region.key.into(),
                state: region.state.to_raw(),
                pdn: region.pd.into(),
                access: region.rights.into(),
                flags: region.flags.into(),
                iova: region.iova.into(),
                length: region.length.into(),
                page_offset: region.offset().into(),
                pages: region.raw,
                ..Default::default()
            };
            if context != expected || context.seq.get() % 2 != 0 {
                self.fail_rule(&format!(
                    "key {:x}: its context is {context:?}, model {expected:?}",
                    region.key
                ));
            }
        }
        note!(self, "  keys are balanced");
    }
}
