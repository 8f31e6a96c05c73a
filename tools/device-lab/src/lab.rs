// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The device, the program's side of it, and the model: how they are made, and how the device is run.

use crate::memory::{Data, Keys, Region, PAGE, PAGES};
use crate::things::{Cq, Qp, Srq};
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use verbena_abi::cmd::*;
use verbena_abi::cqe::CQE_SIZE;
use verbena_abi::ctx::{access, qp_mask as m, QpAttr, QpState, Translation};
use verbena_abi::doorbell::{Arm, ArmMode, AREA_SIZE};
use verbena_abi::eqe::EventType;
use verbena_device::eq::Event;
use verbena_device::mem::GuestMemory;
use verbena_device::mock::{flat, Driver, GuestWords};
use verbena_device::Config;
use verbena_roce_lab::Rng;

/// Log of the entries of send and receive rings.
pub const LOG_WQ: u8 = 4;
/// Entries of send and receive rings.
pub const WQ: u32 = 1 << LOG_WQ;
/// Log of the stride of send rings.
pub const LOG_SQ_STRIDE: u8 = 8;
/// Log of the stride of receive rings.
pub const LOG_RQ_STRIDE: u8 = 6;
/// Most elements of a send, of a receive, bytes inline.
pub const LIMITS: (u8, u8, u16) = (4, 3, 96);
/// Doorbell areas.
pub const AREAS: usize = 2;
/// Event queues of completions.
pub const COMP_EQS: u32 = 3;
/// Time after which all that can happen has happened: all retries are over.
const SETTLED: u64 = 1_200_000_000;

/// An event that came, and one that the model expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Told {
    /// Number of the event's type.
    pub kind: u8,
    /// Number of the object.
    pub number: u32,
}

/// What an event's coming depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// It has to come.
    Must,
    /// It may come.
    May,
}

/// A run of one seed.
pub struct Lab {
    /// The seed.
    pub seed: u64,
    /// Random numbers.
    pub rng: Rng,
    /// The device, and what brings it up.
    pub d: Driver,
    /// Addresses of the chunks of queue pairs' contexts.
    pub contexts: Vec<u64>,
    /// Addresses of the doorbell areas.
    pub areas: [u64; AREAS],
    /// Writes to the doorbell BAR that are under way, by area.
    pub bells: [Cell<u32>; AREAS],
    /// Address of the data memory, behind its guard page.
    pub heap: u64,
    /// The data memory as the model has it.
    pub data: Data,
    /// The keys.
    pub keys: Keys,
    /// Completion queues.
    pub cqs: Vec<Cq>,
    /// Shared receive queues.
    pub srqs: Vec<Srq>,
    /// Queue pairs.
    pub qps: Vec<Qp>,
    /// Events since the last settling, with the event queue that each came in.
    pub came: Vec<(u32, Event)>,
    /// Events that are due.
    pub due: BTreeMap<Told, Due>,
    /// Memory that nobody writes any more, and what is in it.
    pub graves: Vec<(u64, Vec<u8>)>,
    /// What has happened, as text, where it is wanted.
    pub trace: Option<Vec<String>>,
    /// What was met, with counts.
    pub met: BTreeMap<&'static str, u64>,
    next_wr: u64,
    next_key: u32,
    next_number: u32,
    next_slot: usize,
}

/// Notes a line in the trace, if there is one.
macro_rules! note {
    ($lab:expr, $($what:tt)*) => {
        if let Some(trace) = &mut $lab.trace {
            trace.push(format!($($what)*));
        }
    };
}
pub(crate) use note;

impl Lab {
    /// A device that is up, with its objects.
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let config = Config {
            wire_local: rng.chance(25),
            credits: rng.chance(80),
            seed,
            ..Config::default()
        };
        let mut d = Driver::with(config);
        let mut contexts = vec![d.table(Table::Qpc)];
        contexts.extend((1..4).map(|chunk| d.give_chunk(Table::Qpc, chunk)));
        for eqn in 2..=COMP_EQS {
            d.create_eq(eqn).expect("an event queue");
        }
        let second = d.alloc(AREA_SIZE as u64);
        d.must(&CreateUar {
            uar: 1.into(),
            context: 5.into(),
            addr: second.into(),
            ..Default::default()
        });
        let whole = d.alloc((PAGES + 2) * PAGE);
        let bytes: Vec<u8> = (0..(PAGES + 2) * PAGE).map(|i| (i * 31 + i / 251) as u8).collect();
        d.ram.write(whole, &bytes).expect("data memory");
        let heap = whole + PAGE;
        let graves = vec![
            (whole, bytes[..PAGE as usize].to_vec()),
            (heap + PAGES * PAGE, bytes[((PAGES + 1) * PAGE) as usize..].to_vec()),
        ];
        let areas = [d.area, second];
        let data = Data::new(bytes[PAGE as usize..((PAGES + 1) * PAGE) as usize].to_vec());
        let mut lab = Self {
            seed,
            rng,
            d,
            contexts,
            areas,
            bells: Default::default(),
            heap,
            data,
            keys: Keys::default(),
            cqs: Vec::new(),
            srqs: Vec::new(),
            qps: Vec::new(),
            came: Vec::new(),
            due: BTreeMap::new(),
            graves,
            trace: None,
            met: BTreeMap::new(),
            next_wr: seed << 20,
            next_key: 7,
            next_number: FIRST_QPN + rng_start(seed),
            next_slot: 0,
        };
        lab.furnish();
        lab
    }

    /// Counts something that was met.
    pub fn meet(&mut self, what: &'static str) {
        *self.met.entry(what).or_default() += 1;
    }

    /// Breaks off: a rule is broken.
    pub fn broken(&self, rule: &str) -> ! {
        panic!("seed {}: {rule}", self.seed)
    }

    /// A `wr_id` that no other request has.
    pub fn wr_id(&mut self) -> u64 {
        self.next_wr += 1;
        self.next_wr
    }

    /// A number that no other object has.
    pub fn number(&mut self) -> u32 {
        self.next_number += 1;
        self.next_number
    }

    /// One of two doorbell areas, and a slot in it.
    pub fn place(&mut self) -> (u32, usize) {
        self.next_slot += 1;
        let uar = self.rng.below(AREAS as u64) as u32;
        (uar, self.next_slot % 126)
    }

    /// The words of an area.
    pub fn words(&self, uar: u32) -> GuestWords<'_> {
        GuestWords {
            ram: &self.d.ram,
            base: self.areas[uar as usize],
        }
    }

    /// Writes to the doorbell page of an area, which the device notices a little later.
    pub fn bell(&self, uar: u32) {
        let bell = &self.bells[uar as usize];
        bell.set(bell.get() + 1);
    }

    fn furnish(&mut self) {
        for _ in 0..4 + self.rng.below(4) {
            self.create_region();
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
        let all = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;
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
    pub fn draw_region(&mut self, key: u32) -> (Region, Translation) {
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
            flags: 0,
            iova,
            length,
            page_offset,
            pages: flat_pages,
            valid: true,
        };
        if self.rng.chance(50) {
            return (region, flat(self.heap + first * PAGE));
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
        let table = self.d.alloc(PAGE);
        for (i, page) in region.pages.iter().enumerate() {
            let entry = self.heap + page * PAGE;
            self.d.ram.store64(table + i as u64 * 8, entry).expect("a table");
        }
        let pages = Translation {
            addr: table.into(),
            num_pages: (count as u32).into(),
            log_page_size: 12,
            levels: 1,
            ..Default::default()
        };
        (region, pages)
    }

    /// Registers a region.
    pub fn create_region(&mut self) {
        self.next_key += 1;
        let key = self.next_key << 8 | self.rng.below(256) as u32;
        let (region, pages) = self.draw_region(key);
        self.d.must(&CreateMr {
            key: key.into(),
            pdn: region.pd.into(),
            access: region.rights.into(),
            iova: region.iova.into(),
            length: region.length.into(),
            page_offset: region.page_offset.into(),
            pages,
            ..Default::default()
        });
        self.keys.0.push(region);
    }

    /// Creates a completion queue.
    pub fn create_cq(&mut self) -> Cq {
        // Four of the smallest, so that some overflow.
        let log_size = [3, 4, 5, 6, 7, 7, 7, 7][self.rng.below(8) as usize];
        let ring = self.d.alloc((CQE_SIZE as u64) << log_size);
        let (cqn, place) = (self.number(), self.place());
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
        let (srqn, place, pd) = (self.number(), self.place(), self.pd());
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
        let alive: Vec<usize> = (0..self.cqs.len()).filter(|cq| !self.cqs[*cq].dead).collect();
        let cqs = [(); 2].map(|()| alive[self.rng.below(alive.len() as u64) as usize]);
        let srq = match self.rng.chance(35) && !self.srqs.is_empty() {
            true => Some(self.rng.below(self.srqs.len() as u64) as usize),
            false => None,
        };
        let rings = [LOG_SQ_STRIDE, LOG_RQ_STRIDE].map(|stride| self.d.alloc(1 << (LOG_WQ + stride)));
        let (qpn, place, pd) = (self.number(), self.place(), self.pd());
        let mut flags = 0;
        if srq.is_some() {
            flags |= QP_HAS_SRQ;
        }
        if self.rng.chance(20) {
            flags |= QP_SIGNAL_ALL;
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
            rq: if shared { Translation::default() } else { flat(rings[1]) },
            max_send_sge: LIMITS.0,
            max_recv_sge: if shared { 0 } else { LIMITS.1 },
            max_inline: LIMITS.2.into(),
            ..Default::default()
        });
        Qp {
            qpn,
            kind,
            pd,
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
            let mask = m::STATE | m::PKEY_INDEX | m::PORT | if ud { m::QKEY } else { m::ACCESS_FLAGS };
            self.modify(qpn, mask, init, 0, 0);
            let rtr = QpAttr {
                path_mtu: log_mtu - 7,
                dest_qpn: peer.into(),
                rq_psn: psns[1 - side].into(),
                max_dest_rd_atomic: 4,
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
                max_rd_atomic: 4,
                ..state(QpState::Rts)
            };
            let mask = m::STATE
                | m::SQ_PSN
                | pick(rc, m::TIMEOUT | m::RETRY_CNT | m::RNR_RETRY | m::MAX_QP_RD_ATOMIC);
            self.modify(qpn, mask, rts, 0, 0);
            let qp = &mut self.qps[at];
            (qp.state, qp.connected) = (QpState::Rts, true);
        }
        note!(self, "connect {pair:?} mtu 2^{log_mtu} psns {psns:x?}");
    }

    fn modify(&mut self, qpn: u32, mask: u32, attr: QpAttr, from: u16, to: u16) {
        let av = Driver::path(from, to);
        if let Err(e) = self.d.modify_av(qpn, mask, attr, av) {
            self.broken(&format!("QP {qpn}: a legal MODIFY_QP to state {} is refused: {e:?}", attr.qp_state));
        }
    }

    /// Runs a few slices, no more: the device may stop anywhere.
    pub fn slices(&mut self, count: u64) {
        for _ in 0..count {
            self.slice();
        }
    }

    fn slice(&mut self) -> (bool, Option<u64>) {
        for uar in 0..AREAS {
            if self.bells[uar].replace(0) > 0 {
                self.d.device.ring(uar as u32);
            }
        }
        let next = self.d.device.run_slice(&self.d.ram, self.d.now);
        let raised = self.d.device.take_interrupts();
        for vector in (0..32).filter(|v| raised & (1 << v) != 0) {
            *self.d.interrupts.entry(vector).or_default() += 1;
        }
        (next.busy, next.deadline)
    }

    fn take_events(&mut self) -> bool {
        let before = self.came.len();
        for eqn in 0..=COMP_EQS {
            for event in self.d.events(eqn) {
                note!(self, "  event of EQ {eqn}: {event:?}");
                self.came.push((eqn, event));
            }
        }
        self.came.len() != before
    }

    /// Runs the device until it has nothing to do at this time, all events taken. When it wants to be called next.
    pub fn rest(&mut self) -> Option<u64> {
        for _ in 0..20_000 {
            let (busy, deadline) = self.slice();
            if !busy && !self.take_events() {
                return deadline;
            }
        }
        self.broken("the device does not come to rest")
    }

    /// Lets so much time pass that nothing is left to happen.
    pub fn let_settle(&mut self) {
        let end = self.d.now + SETTLED;
        for _ in 0..20_000 {
            match self.rest() {
                Some(at) if at <= end => self.d.now = self.d.now.max(at),
                _ => {
                    self.d.now = end;
                    self.rest();
                    return;
                }
            }
        }
        self.broken("the timers do not come to rest")
    }

    /// An event has to come, or may.
    pub fn expect(&mut self, kind: EventType, number: u32, due: Due) {
        let told = Told {
            kind: kind as u8,
            number,
        };
        let old = self.due.entry(told).or_insert(due);
        if due == Due::Must {
            *old = due;
        }
    }
}

fn rng_start(seed: u64) -> u32 {
    (seed % 40) as u32
}
