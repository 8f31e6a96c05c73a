// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Creating objects, drawn by lot, and connecting queue pairs.

use crate::lab::{note, Lab, COMP_EQS, LIMITS, LOG_RQ_STRIDE, LOG_SQ_STRIDE, LOG_WQ, WQ};
use crate::memory::{Domain, Region, PAGE, PAGES};
use crate::things::{Cq, Qp, Srq};
use std::collections::VecDeque;
use verbena_abi::cmd::*;
use verbena_abi::cqe::CQE_SIZE;
use verbena_abi::ctx::{
    access, mr_flags, qp_mask as m, MrState, QpAttr, QpState, Translation, TRANSLATION_LEAF,
};
use verbena_abi::doorbell::{Arm, ArmMode};
use verbena_device::mem::GuestMemory;
use verbena_device::mock::{flat, Driver};

impl Lab {
    /// Creates the objects of a run.
    pub fn furnish(&mut self) {
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

    /// One of the PDs.
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
        // Rights of others to change memory need the right to change it (IBTA 10.6.3.1).
        if rights & (access::REMOTE_WRITE | access::REMOTE_ATOMIC) != 0 {
            rights | access::LOCAL_WRITE
        } else {
            rights
        }
    }

    /// What a region may be: pages in any order, an address of any kind.
    pub fn draw_region(&mut self, key: u32) -> Region {
        let count = 1 + self.rng.below(6);
        let first = self.rng.below(PAGES - count + 1);
        let flat_pages: Vec<u64> = (first..first + count).collect();
        let page_offset = self.rng.below(PAGE - 64) & !7;
        let length = 64 + self.rng.below(count * PAGE - page_offset - 63);
        let iova = match self.rng.below(3) {
            0 => self.heap + first * PAGE + page_offset,
            1 => 0x7000_0000_0000 + (self.rng.below(1 << 20) << 12) + page_offset,
            _ => page_offset,
        };
        let mut region = Region {
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
        for page in &mut region.pages {
            *page = self.rng.below(PAGES);
        }
        region.pages.sort_unstable();
        region.pages.dedup();
        while (region.pages.len() as u64) < count {
            let page = (0..PAGES).find(|p| !region.pages.contains(p)).unwrap_or(0);
            region.pages.push(page);
        }
        if self.rng.chance(50) {
            region.pages.reverse();
        }
        let levels = 1 + self.rng.below(2) as u8;
        // With two levels, often across the end of a table of the last level, behind pages that nobody asks for.
        region.skip = match (levels, self.rng.below(3)) {
            (1, _) | (_, 0) => 0,
            _ => TRANSLATION_LEAF as u64 - self.rng.below(count + 1),
        };
        let leaf = |lab: &mut Self| {
            let table = lab.d.alloc(2 * PAGE);
            // What lies behind it is none of its entries.
            lab.d
                .ram
                .write(table + PAGE, &[0xff; PAGE as usize])
                .expect("a table");
            table
        };
        let leaves = [leaf(self), leaf(self)];
        for (i, page) in region.pages.iter().enumerate() {
            let (entry, at) = (self.heap + page * PAGE, region.skip + i as u64);
            let place = leaves[at as usize / TRANSLATION_LEAF] + at % TRANSLATION_LEAF as u64 * 8;
            self.d.ram.store64(place, entry).expect("a table");
        }
        let mut addr = leaves[0];
        if levels == 2 {
            addr = self.d.alloc(PAGE);
            for (i, leaf) in leaves.into_iter().enumerate() {
                self.d
                    .ram
                    .store64(addr + i as u64 * 8, leaf)
                    .expect("a table");
            }
        }
        region.raw = Translation {
            addr: addr.into(),
            num_pages: ((region.skip + count) as u32).into(),
            log_page_size: 12,
            levels,
            ..Default::default()
        };
        region
    }

    /// Registers a region.
    pub fn create_region(&mut self) {
        self.next_key += 1;
        let key = self.next_key << 8 | self.rng.below(256) as u32;
        let region = self.draw_region(key);
        self.register(region);
    }

    /// Registers a region that was drawn.
    pub fn register(&mut self, region: Region) {
        self.d.must(&CreateMr {
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

    /// Creates a completion queue.
    pub fn create_cq(&mut self) -> Cq {
        // Four of the smallest, so that some overflow.
        let log_size = [3, 4, 5, 6, 7, 7, 7, 7][self.rng.below(8) as usize];
        let ring = self.d.alloc((CQE_SIZE as u64) << log_size);
        let (cqn, place) = (self.number(Table::Cqc), self.place());
        let eqn = 1 + self.rng.below(COMP_EQS.into()) as u32;
        self.d.must(&CreateCq {
            cqn: cqn.into(),
            eqn: eqn.into(),
            uar: place.0.into(),
            slot: (place.1 as u16).into(),
            log_size,
            ring: flat(ring),
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
            dead: false,
        }
    }

    /// Creates a shared receive queue.
    pub fn create_srq(&mut self) {
        let ring = self.d.alloc(1 << (LOG_WQ + LOG_RQ_STRIDE));
        let (srqn, place, pd) = (self.number(Table::Srqc), self.place(), self.pd());
        self.d.must(&CreateSrq {
            srqn: srqn.into(),
            pdn: pd.into(),
            uar: place.0.into(),
            slot: (place.1 as u16).into(),
            log_size: LOG_WQ,
            log_stride: LOG_RQ_STRIDE,
            ring: flat(ring),
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
            starved: false,
            vague: false,
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

    /// Creates a queue pair of a pair.
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
            [LOG_SQ_STRIDE, LOG_RQ_STRIDE].map(|stride| self.d.alloc(1 << (LOG_WQ + stride)));
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
        self.d.must(&CreateQp {
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
            sq: flat(rings[0]),
            rq: if shared {
                Translation::default()
            } else {
                flat(rings[1])
            },
            max_send_sge: LIMITS.0,
            max_recv_sge: if shared { 0 } else { LIMITS.1 },
            max_inline: LIMITS.2.into(),
            ..Default::default()
        });
        Qp {
            qpn,
            kind,
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
            got: Default::default(),
            was: QpState::Reset,
            real: QpState::Reset,
            refused: false,
            comm_est: false,
            cut: false,
            excused: false,
            pushed: false,
            drains: false,
        }
    }

    /// Brings a pair from RESET to RTS.
    pub fn connect(&mut self, first: usize) {
        let log_mtu = 8 + self.rng.below(3) as u8;
        let psns = [(); 2].map(|()| match self.rng.chance(50) {
            true => 0xff_fff0 + self.rng.below(16) as u32,
            false => self.rng.below(1 << 24) as u32,
        });
        let all = access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;
        let pair = [first, self.qps[first].peer];
        let qkey = self.rng.below(1 << 20) as u32;
        // READs and atomics that each accepts, and not more than that its peer asks for.
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
            let (kind, qpn, rnr_retry) = (qp.kind, qp.qpn, qp.rnr_retry);
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
            self.modify(qpn, mask, init, 0, 0);
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
            self.modify(qpn, mask, rtr, side as u16, 1 - side as u16);
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
            self.modify(qpn, mask, rts, 0, 0);
            let qp = &mut self.qps[at];
            (qp.state, qp.connected) = (QpState::Rts, true);
        }
        note!(self, "connect {pair:?} mtu 2^{log_mtu} psns {psns:x?}");
    }

    fn modify(&mut self, qpn: u32, mask: u32, attr: QpAttr, from: u16, to: u16) {
        let av = Driver::path(from, to);
        if let Err(e) = self.d.modify_av(qpn, mask, attr, av) {
            self.broken(&format!(
                "QP {qpn}: a legal MODIFY_QP to state {} is refused: {e:?}",
                attr.qp_state
            ));
        }
    }
}
