// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Actions of programs, drawn at random.

use crate::claims::MemoryClaim;
use crate::memory::{Domain, MemoryAccess, RegionModel, PAGE, PAGES};
use crate::objects::{DataSegment, PostedRecv, PostedSend};
use crate::simulation::{note, DeviceSimulation, LIMITS, WQ};
use crate::unreliable::PORT_MTU;
use verbena_abi::cmd::QpType;
use verbena_abi::ctx::QpState;
use verbena_abi::doorbell::ArmMode;
use verbena_abi::syndrome::Syndrome;
use verbena_abi::wqe::{send_flags, WqeOpcode};
use verbena_device::config::LOCAL_DMA_LKEY;

/// Deliberate defect of a request's key or range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyFault {
    /// The key does not exist, or its tag is another one.
    Unknown,
    /// The key belongs to another PD.
    Pd,
    /// The range ends outside of the region.
    Bounds,
    /// The region does not allow the access.
    Access,
}

impl DeviceSimulation {
    /// Draws a length of any order of magnitude, up to `most` bytes.
    fn length(&mut self, most: u32) -> u32 {
        let drawn = match self.rng.below(10) {
            0 => 0,
            1..=4 => 1 + self.rng.below(64),
            5..=7 => 1 + self.rng.below(1024),
            _ => match self.rng.below(12) {
                0 => 1 + self.rng.below(40_000),
                _ => 1 + self.rng.below(5000),
            },
        };
        (drawn as u32).min(most)
    }

    /// Draws a range of a region that allows the access, or one with the given defect.
    fn range(
        &mut self,
        who: Domain,
        want: MemoryAccess,
        length: u32,
        fault: Option<KeyFault>,
        align: u64,
    ) -> DataSegment {
        let right = |lab: &Self, i: usize| {
            let r = &lab.keys.all[i];
            r.valid() && !r.busy && r.pd == who.pd && r.length >= u64::from(length) + align
        };
        let fits = |lab: &Self, i: usize| {
            let r = &lab.keys.all[i];
            lab.keys.resolve((r.iova, 1, r.key), who, want).is_ok()
        };
        let count = self.keys.all.len();
        let right_now = |r: &RegionModel| r.valid() && !r.busy;
        let start = self.rng.below(count as u64) as usize;
        let order = (0..count).map(|i| (start + i) % count);
        let found = match fault {
            None => order.clone().find(|i| right(self, *i) && fits(self, *i)),
            Some(KeyFault::Access) => order.clone().find(|i| right(self, *i) && !fits(self, *i)),
            Some(KeyFault::Pd) => order
                .clone()
                .find(|i| self.keys.all[*i].pd != who.pd && right_now(&self.keys.all[*i])),
            Some(KeyFault::Bounds) => order.clone().find(|i| right_now(&self.keys.all[*i])),
            _ => order.clone().find(|i| !self.keys.all[*i].busy),
        };
        let raw = who.privileged && want.is_local() && fault.is_none() && self.rng.chance(25);
        if raw {
            let addr = self.heap + self.rng.below(PAGES * PAGE - u64::from(length) + 1);
            return (addr, length, LOCAL_DMA_LKEY);
        }
        let Some(found) = found else {
            // No region fits. An access of zero bytes needs no key.
            return (self.rng.next(), 0, self.rng.next() as u32);
        };
        let (iova, len, key) = {
            let r = &self.keys.all[found];
            (r.iova, r.length, r.key)
        };
        match fault {
            Some(KeyFault::Unknown) if !self.keys.all[found].valid() => (iova, length.max(1), key),
            // The key for DMA addresses is invalid for an unprivileged QP and for every peer.
            Some(KeyFault::Unknown)
                if self.rng.chance(20) && !(who.privileged && want.is_local()) =>
            {
                (self.heap, length.max(1), LOCAL_DMA_LKEY)
            }
            Some(KeyFault::Unknown) => (iova, length.max(1), key ^ (1 << self.rng.below(8))),
            Some(KeyFault::Bounds) => match self.rng.below(4) {
                0 => (iova + len, length.max(1), key),
                3 if u64::from(length) < len => (iova + len - u64::from(length), length + 1, key),
                1 => (iova.wrapping_sub(1), length.max(1), key),
                _ => (u64::MAX - 2, length.max(1), key),
            },
            _ => {
                let slack = len.saturating_sub(length.into());
                // The range often starts at the start of the region, or ends at its end.
                let mut addr = iova
                    + match self.rng.below(6) {
                        0 => 0,
                        1 => slack,
                        _ => self.rng.below(slack + 1),
                    };
                if align > 1 {
                    addr = (addr + align - 1) & !(align - 1);
                    if addr + 8 > iova + len {
                        addr -= align;
                    }
                }
                (addr, length.min(len as u32), key)
            }
        }
    }

    fn fault(&mut self, wanted: bool) -> Option<KeyFault> {
        if !wanted {
            return None;
        }
        Some(
            [
                KeyFault::Unknown,
                KeyFault::Pd,
                KeyFault::Bounds,
                KeyFault::Access,
            ][self.rng.below(4) as usize],
        )
    }

    /// Returns the number of bytes that the receive for the next message of a QP has room for. For
    /// an SRQ this is the smallest of the posted receives, and 200 if no receive is posted.
    fn room_ahead(&self, at: usize) -> u32 {
        let qp = &self.qps[at];
        let peer = &self.qps[qp.peer];
        if let Some(srq) = peer.srq {
            return self.srqs[srq]
                .posted
                .iter()
                .map(PostedRecv::room)
                .min()
                .unwrap_or(200);
        }
        let before = qp
            .sends
            .iter()
            .filter(|s| s.takes_receive() && !s.executed_by_peer)
            .count();
        peer.recvs.get(before).map_or(200, PostedRecv::room)
    }

    /// Draws a send. Returns `None` if each range that was drawn clashes with the claims of other
    /// requests.
    pub fn draw_send(
        &mut self,
        at: usize,
        claims: &[MemoryClaim],
        faulty: bool,
    ) -> Option<PostedSend> {
        use WqeOpcode::*;
        let (kind, pd) = (self.qps[at].kind, self.qps[at].pd);
        let peer = self.qps[at].peer;
        let opcode = match (kind, self.rng.below(10)) {
            (QpType::Ud, 0..=4) | (_, 0 | 1) => Send,
            (QpType::Ud, _) | (_, 2) => SendImm,
            (_, 3 | 4) => RdmaWrite,
            (_, 5) => RdmaWriteImm,
            (QpType::Uc, _) => RdmaWrite,
            (_, 6 | 7) => RdmaRead,
            (_, 8) => CompareSwap,
            _ => FetchAdd,
        };
        let atomic = matches!(opcode, CompareSwap | FetchAdd);
        let bad = faulty && self.rng.chance(30);
        let (bad_local, bad_remote, malformed, mis) = match (bad, self.rng.below(8)) {
            (true, 0..=2) => (true, false, false, false),
            (true, 3..=5) => (false, true, false, false),
            (true, 6) => (false, false, true, false),
            (true, _) => (false, false, false, true),
            _ => (false, false, false, false),
        };
        let takes = matches!(opcode, Send | SendImm | RdmaWriteImm);
        let most = match takes && opcode != RdmaWriteImm {
            true if mis => 5000,
            true if kind == QpType::Ud => {
                self.room_ahead(at)
                    .saturating_sub(40)
                    .min(if mis { 5000 } else { PORT_MTU })
            }
            true => self.room_ahead(at),
            false => 40_000,
        };
        let total = if atomic { 8 } else { self.length(most) };
        let fetches = atomic || opcode == RdmaRead;
        let want = if fetches {
            MemoryAccess::Write
        } else {
            MemoryAccess::Read
        };
        let mut flags = 0;
        if self.rng.chance(65) || atomic {
            flags |= send_flags::SIGNALED;
        }
        if self.rng.chance(20) {
            flags |= send_flags::FENCE;
        }
        if self.rng.chance(30) {
            flags |= send_flags::SOLICITED;
        }
        let mut wr = crate::objects::PostedSend {
            index: self.qps[at].pi[0],
            wr_id: self.wr_id(),
            opcode,
            flags,
            sges: Vec::new(),
            inline: Vec::new(),
            remote: (self.rng.next(), self.rng.next() as u32),
            imm: (self.rng.next() as u32).to_le_bytes(),
            operands: (self.rng.next(), self.rng.next()),
            to: (peer, self.qps[at].qkey),
            malformed: None,
            path: Default::default(),
            foreign: false,
            registers: None,
            patch: None,
            executed_by_peer: false,
            may_be_executed: false,
        };
        if kind == QpType::Ud {
            wr.path = self.draw_path(self.qps[at].ends);
            if bad && self.rng.chance(30) {
                wr.to.1 ^= 1 << self.rng.below(32);
            }
        }
        for _ in 0..6 {
            wr.sges.clear();
            wr.inline.clear();
            if !fetches
                && !bad_local
                && total > 0
                && total <= LIMITS.2.into()
                && self.rng.chance(25)
            {
                wr.inline = (0..total).map(|_| self.rng.next() as u8).collect();
            } else {
                let count = if atomic || total == 0 {
                    self.rng.below(2).max(atomic.into())
                } else {
                    1 + self.rng.below(LIMITS.0.into())
                };
                let mut left = total;
                for i in 0..count {
                    let part = if i + 1 == count {
                        left
                    } else {
                        self.rng.below(u64::from(left) + 1) as u32
                    };
                    let fault = self.fault(bad_local && i + 1 == count);
                    let sge = self.range(pd, want, part, fault, 1);
                    left = left.saturating_sub(sge.1);
                    wr.sges.push(sge);
                }
            }
            if let Some(want) = MemoryAccess::of(opcode) {
                let fault = self.fault(bad_remote);
                let align = if atomic { 8 } else { 1 };
                let length = wr.length();
                let (addr, len, key) = self.range(self.qps[peer].pd, want, length, fault, align);
                wr.remote = (addr, key);
                if atomic && mis {
                    wr.remote.0 |= 1 + self.rng.below(7);
                }
                if len < length && !bad_remote {
                    continue;
                }
                let far = (wr.remote.0, length, key);
                if mis && self.keys.resolve(far, self.qps[peer].pd, want).is_err() {
                    continue;
                }
            }
            if atomic && wr.length() != 8 {
                continue;
            }
            if malformed {
                self.make_malformed(at, &mut wr);
            }
            let own = self.claims_of(at, &wr);
            if self.is_unclaimed(claims, &own) {
                if opcode == CompareSwap && self.rng.chance(60) {
                    let (addr, key) = wr.remote;
                    if let Ok(pieces) = self.keys.resolve(
                        (addr, 8, key),
                        self.qps[peer].pd,
                        MemoryAccess::RemoteAtomic,
                    ) {
                        wr.operands.0 = self.data.word(&pieces);
                    }
                }
                return Some(wr);
            }
        }
        None
    }

    /// Makes a send malformed.
    fn make_malformed(&mut self, at: usize, wr: &mut PostedSend) {
        (wr.patch, wr.foreign) = (None, false);
        wr.path.sgid_index = self.qps[at].ends[0].into();
        let inline = !wr.inline.is_empty();
        let (patch, why) = match self.rng.below(9) {
            // The three cases of inline data: it is longer than the QP's limit, it comes with data
            // segments, or the opcode sends no data.
            4 | 5 if inline => ((4, LIMITS.2 as u8 + 1), Syndrome::WqeInline),
            6 if inline => ((2, 1), Syndrome::WqeInline),
            4..=7 if wr.opcode == WqeOpcode::RdmaRead => {
                ((1, wr.flags | send_flags::INLINE), Syndrome::WqeInline)
            }
            4 | 5 if self.qps[at].kind == QpType::Ud => {
                let foreign = self.rng.chance(50);
                // The address handle belongs to another PD, or names a GID that is not set.
                wr.foreign = foreign;
                if !foreign {
                    wr.path.sgid_index = 9.into();
                }
                wr.malformed = Some(match foreign {
                    true => Syndrome::AddressHandlePd,
                    false => Syndrome::AddressHandleGid,
                });
                return;
            }
            6 if self.qps[at].kind == QpType::Ud => (
                (0, WqeOpcode::RdmaWrite.to_raw()),
                Syndrome::WqeOpcodeTransport,
            ),
            6 if self.qps[at].kind == QpType::Uc => (
                (0, WqeOpcode::SendInv.to_raw()),
                Syndrome::WqeOpcodeTransport,
            ),
            0 => ((0, 200), Syndrome::WqeOpcodeUnknown),
            1 => ((1, wr.flags | 0x40), Syndrome::WqeFlags),
            2 if wr.inline.is_empty() => ((2, LIMITS.0 + 1), Syndrome::WqeSgeCount),
            _ if self.qps[at].kind != QpType::Rc => (
                (0, WqeOpcode::RdmaRead.to_raw()),
                Syndrome::WqeOpcodeTransport,
            ),
            _ => ((0, 200), Syndrome::WqeOpcodeUnknown),
        };
        wr.patch = Some(patch);
        wr.malformed = Some(why);
    }

    /// Draws a receive for a QP or an SRQ of this domain.
    pub fn draw_recv(
        &mut self,
        pd: Domain,
        index: u32,
        claims: &[MemoryClaim],
        faulty: bool,
        shared: bool,
    ) -> Option<PostedRecv> {
        let bad = faulty && self.rng.chance(15);
        // A malformed receive would put the whole SRQ in error.
        let malformed = bad && !shared && self.rng.chance(20);
        for _ in 0..6 {
            let count = if self.rng.chance(5) {
                0
            } else {
                1 + self.rng.below(LIMITS.1.into())
            };
            let mut sges = Vec::new();
            for i in 0..count {
                let length = self
                    .length(20_000)
                    .max(if self.rng.chance(60) { 600 } else { 0 });
                let fault = self.fault(bad && !malformed && i == 0);
                sges.push(self.range(pd, MemoryAccess::Write, length, fault, 1));
            }
            let wr = PostedRecv {
                index,
                wr_id: self.wr_id(),
                sges,
                malformed,
            };
            if self.is_unclaimed(claims, &self.claims_of_recv(&wr, pd)) {
                return Some(wr);
            }
        }
        None
    }

    /// Runs one step of the program: consumes completions, arms CQs, posts requests.
    pub fn run_program(&mut self) {
        for cq in 0..self.cqs.len() {
            match self.rng.below(10) {
                0 | 1 => {}
                2 | 3 => {
                    let some = self.rng.below(6) as usize;
                    self.consume(cq, some);
                }
                _ => self.consume(cq, usize::MAX),
            }
            if self.rng.chance(40) {
                let mode = if self.rng.chance(40) {
                    ArmMode::Solicited
                } else {
                    ArmMode::Next
                };
                self.arm(cq, mode);
                if self.rng.chance(10) {
                    self.arm(cq, ArmMode::Solicited);
                }
            }
        }
        if self.rng.chance(15) {
            self.change_region();
        }
        for cq in 0..self.cqs.len() {
            if self.rng.chance(5) {
                self.resize_cq(cq);
            }
            if self.rng.chance(3) {
                self.moderate(cq);
            }
        }
        for srq in 0..self.srqs.len() {
            if self.rng.chance(20) {
                self.arm_limit(srq);
            }
        }
        if self.rng.chance(10) {
            let asleep = self.driver.device.fall_asleep(&self.driver.ram);
            note!(self, "fall asleep: {asleep}");
        }
        let faulty = self.rng.chance(12);
        self.free_keys();
        let mut claims = self.claims();
        for srq in 0..self.srqs.len() {
            for _ in 0..self.rng.below(8) {
                let s = &self.srqs[srq];
                if s.pi - s.taken >= WQ || s.posted.len() >= WQ as usize {
                    break;
                }
                let (pd, pi) = (s.domain(false), s.pi);
                if let Some(wr) = self.draw_recv(pd, pi, &claims, faulty, true) {
                    claims.extend(self.claims_of_recv(&wr, pd));
                    self.post_srq(srq, wr);
                }
            }
        }
        for at in 0..self.qps.len() {
            let qp = &self.qps[at];
            if qp.srq.is_some() || qp.state == QpState::Reset {
                continue;
            }
            for _ in 0..self.rng.below(8) {
                let qp = &self.qps[at];
                if qp.recvs.len() >= WQ as usize {
                    break;
                }
                let (pd, pi) = (qp.pd, qp.pi[1]);
                if let Some(wr) = self.draw_recv(pd, pi, &claims, faulty, false) {
                    claims.extend(self.claims_of_recv(&wr, pd));
                    self.post_recv(at, wr);
                }
            }
        }
        for at in 0..self.qps.len() {
            let qp = &self.qps[at];
            // Usually only one QP of a pair has sends pending, because then the model can predict
            // all outcomes.
            let turn =
                self.rng.chance(50) && (self.rng.chance(15) || self.qps[qp.peer].sends.is_empty());
            if !turn || !self.may_send(at) {
                continue;
            }
            for _ in 0..1 + self.rng.below(6) {
                let qp = &self.qps[at];
                if qp.pi[0].wrapping_sub(qp.sq_free) as i32 >= 0 {
                    break;
                }
                let drawn = match self.rng.chance(10) {
                    true => self.draw_key_change(at, &claims, faulty),
                    false => self.draw_send(at, &claims, faulty),
                };
                if let Some(wr) = drawn {
                    claims.extend(self.claims_of(at, &wr));
                    self.write_send(at, wr);
                    if self.rng.chance(40) {
                        self.publish_sends(at);
                        let some = self.rng.below(3);
                        self.slices(some);
                    }
                }
            }
            self.publish_sends(at);
            let some = self.rng.below(3);
            self.slices(some);
        }
    }

    fn may_send(&self, at: usize) -> bool {
        matches!(
            self.qps[at].state,
            QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err
        )
    }
}
