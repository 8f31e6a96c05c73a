// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Creation of objects with random parameters, and connection of QPs.

use crate::memory::{Domain, RegionModel, PAGE, PAGES};
use crate::objects::{Cq, Qp, RingMemory, Srq};
use crate::simulation::{
    note, DeviceSimulation, COMP_EQS, LIMITS, LOG_RQ_STRIDE, LOG_SQ_STRIDE, LOG_WQ, WQ,
};
use std::collections::VecDeque;
use verbena_abi::cmd::*;
use verbena_abi::cqe::CQE_SIZE;
use verbena_abi::ctx::{
    access, mr_flags, qp_mask as m, AddressVector, MrState, QpAttr, QpState, Translation,
    TRANSLATION_LEAF,
};
use verbena_abi::doorbell::{Arm, ArmMode};
use verbena_device::memory::GuestMemory;
use verbena_device::mock::flat;

impl DeviceSimulation {
    /// Creates the objects of a run.
    pub fn create_objects(&mut self) {
        for _ in 0..4 + self.rng.below(4) {
            self.create_region();
        }
        for _ in 0..self.rng.below(4) {
            self.create_fast_key();
        }
        for _ in 0..2 + self.rng.below(3) {
            let cq = self.create_cq();
            self.cqs.push(cq);
        }
        for _ in 0..self.rng.below(3) {
            self.create_srq();
        }
        for _ in 0..1 + self.rng.below(3) {
            self.create_pair();
        }
    }

    /// Draws the PD of an object.
    pub fn pd(&mut self) -> u32 {
        if self.rng.chance(80) {
            7
        } else {
            9
        }
    }

    fn rights(&mut self) -> u32 {
        let all = access::LOCAL_WRITE
            | access::REMOTE_WRITE
            | access::REMOTE_READ
            | access::REMOTE_ATOMIC;
        if self.rng.chance(75) {
            return all;
        }
        let rights = self.rng.below(16) as u32;
        // Remote write and remote atomic access require local write access (IBTA 10.6.3.1).
        if rights & (access::REMOTE_WRITE | access::REMOTE_ATOMIC) != 0 {
            rights | access::LOCAL_WRITE
        } else {
            rights
        }
    }

    /// Draws a valid region: pages in any order, and an address that is that of the memory, a
    /// distant one, or one below [`PAGE`].
    pub fn draw_region(&mut self, key: u32) -> RegionModel {
        // Pages of the region have 4, 8, or 16 KiB; those of the model have 4 KiB.
        let log_page_size = [12, 12, 13, 14][self.rng.below(4) as usize];
        let unit = 1 << (log_page_size - 12);
        let most = [6, 6, 6, 12][self.rng.below(4) as usize];
        let count = (1 + self.rng.below(most)).next_multiple_of(unit);
        let first = self.rng.below(PAGES - count + 1);
        let flat_pages: Vec<u64> = (first..first + count).collect();
        let page_offset = self.rng.below(PAGE - 64) & !7;
        let length = 64 + self.rng.below(count * PAGE - page_offset - 63);
        let iova = match self.rng.below(3) {
            0 => self.heap + first * PAGE + page_offset,
            1 => 0x7000_0000_0000 + (self.rng.below(1 << 20) << 12) + page_offset,
            _ => page_offset,
        };
        let mut region = RegionModel {
            key,
            pd: self.pd(),
            rights: self.rights(),
            flags: if self.rng.chance(15) {
                mr_flags::PRIVILEGED
            } else {
                0
            },
            iova,
            length,
            page_offset,
            pages: flat_pages,
            skip: 0,
            raw: flat(self.heap + first * PAGE),
            state: MrState::Valid,
            busy: false,
        };
        if self.rng.chance(50) {
            return region;
        }
        let count = count / unit;
        let mut places: Vec<u64> = (0..count).map(|_| self.rng.below(PAGES / unit)).collect();
        places.sort_unstable();
        places.dedup();
        while (places.len() as u64) < count {
            let place = (0..PAGES / unit).find(|p| !places.contains(p));
            places.push(place.unwrap_or(0));
        }
        if self.rng.chance(50) {
            places.reverse();
        }
        region.pages = places
            .iter()
            .flat_map(|place| place * unit..(place + 1) * unit)
            .collect();
        let levels = 1 + self.rng.below(2) as u8;
        // With two levels, the region often crosses from one leaf table to the next. The pages
        // before the region are never accessed.
        let skip = match (levels, self.rng.below(3)) {
            (1, _) | (_, 0) => 0,
            _ => TRANSLATION_LEAF as u64 - self.rng.below(count + 1),
        };
        region.skip = skip * unit;
        let leaf = |lab: &mut Self| {
            let table = lab.driver.alloc(2 * PAGE);
            // The page after the table has invalid entries, which catch a device that reads beyond
            // the end of the table.
            lab.driver
                .ram
                .write(table + PAGE, &[0xff; PAGE as usize])
                .expect("a table");
            table
        };
        let leaves = [leaf(self), leaf(self)];
        for (i, place) in places.iter().enumerate() {
            let (entry, at) = (self.heap + place * unit * PAGE, skip + i as u64);
            let place = leaves[at as usize / TRANSLATION_LEAF] + at % TRANSLATION_LEAF as u64 * 8;
            self.driver.ram.store64(place, entry).expect("a table");
        }
        let mut addr = leaves[0];
        if levels == 2 {
            addr = self.driver.alloc(PAGE);
            for (i, leaf) in leaves.into_iter().enumerate() {
                self.driver
                    .ram
                    .store64(addr + i as u64 * 8, leaf)
                    .expect("a table");
            }
        }
        region.raw = Translation {
            addr: addr.into(),
            num_pages: ((skip + count) as u32).into(),
            log_page_size,
            levels,
            ..Default::default()
        };
        region
    }

    /// Draws a region and registers it with a new key.
    pub fn create_region(&mut self) {
        self.next_key += 1;
        let key = self.next_key << 8 | self.rng.below(256) as u32;
        let region = self.draw_region(key);
        self.register(region);
    }

    /// Registers the given region and adds it to the model.
    pub fn register(&mut self, region: RegionModel) {
        self.driver.must(&CreateMr {
            key: region.key.into(),
            pdn: region.pd.into(),
            access: region.rights.into(),
            flags: region.flags.into(),
            iova: region.iova.into(),
            length: region.length.into(),
            page_offset: region.offset().into(),
            pages: region.raw,
        });
        self.keys.all.push(region);
    }

    /// Allocates the memory of a ring: contiguous, or pages that are not.
    pub fn draw_ring(&mut self, len: usize) -> RingMemory {
        let levels = self.rng.below(3) as u8;
        if levels == 0 {
            let at = self.driver.alloc(len as u64);
            return RingMemory {
                pages: vec![at],
                raw: flat(at),
                len,
            };
        }
        let count = (len as u64).div_ceil(PAGE);
        let mut pages: Vec<u64> = (0..count).map(|_| self.driver.alloc(PAGE)).collect();
        pages.reverse();
        let mut addr = self.driver.alloc(PAGE);
        for (i, page) in pages.iter().enumerate() {
            self.driver
                .ram
                .store64(addr + i as u64 * 8, *page)
                .expect("a table");
        }
        if levels == 2 {
            let leaf = std::mem::replace(&mut addr, self.driver.alloc(PAGE));
            self.driver.ram.store64(addr, leaf).expect("a table");
        }
        let raw = Translation {
            addr: addr.into(),
            num_pages: (count as u32 + self.rng.below(2) as u32).into(),
            log_page_size: 12,
            levels,
            ..Default::default()
        };
        RingMemory { pages, raw, len }
    }

    /// Creates a CQ whose size is drawn.
    pub fn create_cq(&mut self) -> Cq {
        // Half of the CQs are smaller than the others, so that some overflow.
        let log_size = [3, 4, 5, 6, 7, 7, 7, 7][self.rng.below(8) as usize];
        let ring = self.draw_ring(CQE_SIZE << log_size);
        let (cqn, place) = (self.number(Table::Cqc), self.place());
        let eqn = 1 + self.rng.below(COMP_EQS.into()) as u32;
        let moderation = self.draw_moderation();
        self.driver.must(&CreateCq {
            cqn: cqn.into(),
            eqn: eqn.into(),
            uar: place.0.into(),
            slot: (place.1 as u16).into(),
            log_size,
            ring: ring.raw,
            moderation_count: moderation.0.into(),
            moderation_period: moderation.1.into(),
            ..Default::default()
        });
        Cq {
            cqn,
            eqn,
            place,
            ring,
            log_size,
            base: 0,
            ci: 0,
            seen: 0,
            waiting: VecDeque::new(),
            solicited: Vec::new(),
            arm: Arm {
                index: 0,
                seq: 0,
                mode: ArmMode::None,
            },
            served: 0,
            notified: 0,
            moderation,
            dead: false,
        }
    }

    /// Draws the moderation of a CQ: completions and microseconds. Most CQs have no moderation.
    pub fn draw_moderation(&mut self) -> (u16, u16) {
        match self.rng.below(5) {
            0 => (self.rng.below(9) as u16, 1 + self.rng.below(300) as u16),
            1 => (self.rng.below(9) as u16, 0),
            _ => (0, 0),
        }
    }

    /// Creates an SRQ and adds it to the model.
    pub fn create_srq(&mut self) {
        let ring = self.draw_ring(1 << (LOG_WQ + LOG_RQ_STRIDE));
        let (srqn, place, pd) = (self.number(Table::Srqc), self.place(), self.pd());
        self.driver.must(&CreateSrq {
            srqn: srqn.into(),
            pdn: pd.into(),
            uar: place.0.into(),
            slot: (place.1 as u16).into(),
            log_size: LOG_WQ,
            log_stride: LOG_RQ_STRIDE,
            ring: ring.raw,
            ..Default::default()
        });
        self.srqs.push(Srq {
            srqn,
            pd,
            place,
            ring,
            pi: 0,
            posted: VecDeque::new(),
            limit: 0,
            taken: 0,
            found_empty: false,
            is_uncertain: false,
        });
    }

    fn create_pair(&mut self) {
        let kind = match self.rng.below(10) {
            0 | 1 => QpType::Uc,
            2 => QpType::Ud,
            _ => QpType::Rc,
        };
        let first = self.qps.len();
        for peer in [first + 1, first] {
            let qp = self.create_qp(kind, peer);
            self.qps.push(qp);
        }
        self.connect(first);
    }

    /// Creates a QP whose peer has the index `peer`.
    pub fn create_qp(&mut self, kind: QpType, peer: usize) -> Qp {
        let alive: Vec<usize> = (0..self.cqs.len())
            .filter(|cq| !self.cqs[*cq].dead)
            .collect();
        let cqs = [(); 2].map(|()| alive[self.rng.below(alive.len() as u64) as usize]);
        let srq = match self.rng.chance(35) && !self.srqs.is_empty() {
            true => Some(self.rng.below(self.srqs.len() as u64) as usize),
            false => None,
        };
        let rings =
            [LOG_SQ_STRIDE, LOG_RQ_STRIDE].map(|stride| self.draw_ring(1 << (LOG_WQ + stride)));
        let (qpn, place, pd) = (self.number(Table::Qpc), self.place(), self.pd());
        let mut flags = 0;
        if srq.is_some() {
            flags |= QP_HAS_SRQ;
        }
        if self.rng.chance(20) {
            flags |= QP_SIGNAL_ALL;
        }
        let privileged = self.rng.chance(30);
        if privileged {
            flags |= QP_PRIVILEGED;
        }
        let shared = srq.is_some();
        let create = CreateQp {
            qpn: qpn.into(),
            pdn: pd.into(),
            send_cqn: self.cqs[cqs[0]].cqn.into(),
            recv_cqn: self.cqs[cqs[1]].cqn.into(),
            srqn: srq.map_or(0, |s| self.srqs[s].srqn).into(),
            uar: place.0.into(),
            slot: (place.1 as u16).into(),
            qp_type: kind.to_raw(),
            flags,
            log_sq_size: LOG_WQ,
            log_sq_stride: LOG_SQ_STRIDE,
            log_rq_size: if shared { 0 } else { LOG_WQ },
            log_rq_stride: if shared { 0 } else { LOG_RQ_STRIDE },
            sq: rings[0].raw,
            rq: if shared {
                Translation::default()
            } else {
                rings[1].raw
            },
            max_send_sge: LIMITS.0,
            max_recv_sge: if shared { 0 } else { LIMITS.1 },
            max_inline: LIMITS.2.into(),
            ..Default::default()
        };
        self.driver.must(&create);
        Qp {
            qpn,
            kind,
            create,
            attr: QpAttr::default(),
            av: AddressVector::default(),
            ends: [0; 2],
            pd: Domain { pd, privileged },
            flags,
            cqs,
            srq,
            place,
            rings,
            pi: [0; 2],
            sq_free: WQ,
            state: QpState::Reset,
            peer,
            connected: false,
            rights: 0,
            rnr_retry: 7,
            log_mtu: 10,
            qkey: 0,
            sends: VecDeque::new(),
            recvs: VecDeque::new(),
            completions: Default::default(),
            state_before: QpState::Reset,
            device_state: QpState::Reset,
            refused: false,
            comm_est: false,
            was_flushed: false,
            has_failing_request: false,
            moved_to_err: false,
            drain_event_pending: false,
        }
    }

    /// Moves both QPs of a pair from RESET to RTS.
    pub fn connect(&mut self, first: usize) {
        let log_mtu = 8 + self.rng.below(3) as u8;
        let psns = [(); 2].map(|()| match self.rng.chance(50) {
            true => 0xff_fff0 + self.rng.below(16) as u32,
            false => self.rng.below(1 << 24) as u32,
        });
        let all = access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;
        let pair = [first, self.qps[first].peer];
        let qkey = self.rng.below(1 << 20) as u32;
        let [one, other] = self.draw_ends();
        // Number of READs and atomics that each QP accepts. Its peer has at most that number
        // outstanding.
        let accepts = [(); 2].map(|()| [1, 2, 4, 16][self.rng.below(4) as usize]);
        for (side, at) in pair.into_iter().enumerate() {
            let rights = match self.rng.chance(80) {
                true => all,
                false => self.rng.next() as u32 & all,
            };
            let qp = &mut self.qps[at];
            (qp.rights, qp.log_mtu, qp.qkey) = (rights, log_mtu, qkey);
            qp.rnr_retry = [7, 7, 0, 2][self.rng.below(4) as usize];
            qp.refused = false;
            qp.ends = if side == 0 {
                [one, other]
            } else {
                [other, one]
            };
            let (kind, rnr_retry) = (qp.kind, qp.rnr_retry);
            let peer = self.qps[pair[1 - side]].qpn;
            let state = |s: QpState| QpAttr {
                qp_state: s.to_raw(),
                ..Default::default()
            };
            let (rc, ud) = (kind == QpType::Rc, kind == QpType::Ud);
            let pick = |yes, bits| if yes { bits } else { 0 };
            let init = QpAttr {
                port_num: 1,
                qp_access_flags: rights.into(),
                qkey: qkey.into(),
                ..state(QpState::Init)
            };
            let mask =
                m::STATE | m::PKEY_INDEX | m::PORT | if ud { m::QKEY } else { m::ACCESS_FLAGS };
            self.modify(at, mask, init);
            let rtr = QpAttr {
                path_mtu: log_mtu - 7,
                dest_qpn: peer.into(),
                rq_psn: psns[1 - side].into(),
                max_dest_rd_atomic: accepts[side],
                min_rnr_timer: 24,
                ..state(QpState::Rtr)
            };
            let mask = m::STATE
                | pick(!ud, m::AV | m::PATH_MTU | m::DEST_QPN | m::RQ_PSN)
                | pick(rc, m::MAX_DEST_RD_ATOMIC | m::MIN_RNR_TIMER);
            self.modify(at, mask, rtr);
            let rts = QpAttr {
                sq_psn: psns[side].into(),
                timeout: 10,
                retry_cnt: 3,
                rnr_retry,
                max_rd_atomic: 1 + self.rng.below(accepts[1 - side].into()) as u8,
                ..state(QpState::Rts)
            };
            let mask = m::STATE
                | m::SQ_PSN
                | pick(
                    rc,
                    m::TIMEOUT | m::RETRY_CNT | m::RNR_RETRY | m::MAX_QP_RD_ATOMIC,
                );
            self.modify(at, mask, rts);
            let qp = &mut self.qps[at];
            qp.attr = QpAttr {
                qkey: if ud { qkey.into() } else { 0.into() },
                qp_access_flags: if ud { 0.into() } else { rights.into() },
                port_num: 1,
                sq_psn: rts.sq_psn,
                ..QpAttr::default()
            };
            if !ud {
                (qp.attr.path_mtu, qp.attr.dest_qpn) = (rtr.path_mtu, rtr.dest_qpn);
                qp.attr.rq_psn = rtr.rq_psn;
            }
            if rc {
                qp.attr.max_dest_rd_atomic = rtr.max_dest_rd_atomic;
                qp.attr.min_rnr_timer = rtr.min_rnr_timer;
                (qp.attr.timeout, qp.attr.retry_cnt) = (rts.timeout, rts.retry_cnt);
                qp.attr.rnr_retry = rts.rnr_retry;
                qp.attr.max_rd_atomic = rts.max_rd_atomic;
            }
            (qp.state, qp.connected) = (QpState::Rts, true);
        }
        note!(self, "connect {pair:?} mtu 2^{log_mtu} psns {psns:x?}");
    }

    fn modify(&mut self, at: usize, mask: u32, attr: QpAttr) {
        let av = self.draw_path(self.qps[at].ends);
        let qpn = self.qps[at].qpn;
        if mask & m::AV != 0 {
            self.qps[at].av = av;
        }
        if let Err(e) = self.driver.modify_av(qpn, mask, attr, av) {
            self.fail_rule(&format!(
                "QP {qpn}: a legal MODIFY_QP to state {} is refused: {e:?}",
                attr.qp_state
            ));
        }
    }
}
