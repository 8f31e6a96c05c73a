// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The draws of a seed before the run: connections, attributes, links.

use super::coverage::Topic;
use super::event_queue::{LinkConditions, SimEvent};
use super::memory::{RegionOwner, LONGEST};
use super::model::NetworkModel;
use super::qp_model::{ProgramModel, QpModel};
use super::reference_run::ReferenceRun;
use super::work::RecvQueueModel;
use super::SimNetwork;
use crate::link_model::LinkMode;
use crate::Rng;
use verbena_abi::ctx::access;
use verbena_transport::wire::{ipv4_to_gid, Path};
use verbena_transport::{Attr, Budget, Qp, QpConfig, QpState, QpType};

/// The kind of trouble in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Scenario {
    /// Nothing goes wrong.
    Fair = 0,
    /// Links lose, double, delay and corrupt packets, but not until retries run out: every work
    /// request has to succeed.
    Lossy = 1,
    /// Work requests and receives have faults, in all conditions of the links.
    Mistakes = 2,
    /// Drivers change states in the middle, queues die, memory goes away, machines freeze, links
    /// are cut.
    Turmoil = 3,
    /// A stranger forges packets with a correct ICRC. Only safety is checked.
    Hostile = 4,
}

impl Scenario {
    /// All scenarios in the order of their numbers.
    pub const ALL: [Scenario; 5] = [
        Scenario::Fair,
        Scenario::Lossy,
        Scenario::Mistakes,
        Scenario::Turmoil,
        Scenario::Hostile,
    ];

    /// Returns the scenario of a seed.
    pub fn of(seed: u64) -> Scenario {
        match seed % 16 {
            0 => Scenario::Fair,
            1..=5 => Scenario::Lossy,
            6..=9 => Scenario::Mistakes,
            10..=13 => Scenario::Turmoil,
            _ => Scenario::Hostile,
        }
    }
}

fn path(rng: &mut Rng, from: usize, to: usize) -> Path {
    let (mut sgid, mut dgid) = if rng.chance(60) {
        let v4 = |n: usize| ipv4_to_gid([10, 0, (n >> 8) as u8, n as u8]);
        (v4(from), v4(to))
    } else {
        ([0xfe; 16], [0xfe; 16])
    };
    (sgid[15], dgid[15]) = (from as u8, to as u8);
    Path {
        smac: [2, 0, 0, 0, 0, from as u8],
        dmac: [2, 0, 0, 0, 0, to as u8],
        vlan: rng.chance(20).then_some(7),
        sgid,
        dgid,
        udp_sport: 0xc000 + rng.below(0x4000) as u16,
        ..Path::default()
    }
}

/// Draws a first PSN, which is often near the wrap.
pub fn first_psn(rng: &mut Rng) -> u32 {
    if rng.chance(60) {
        (0xff_ffff - rng.below(40) as u32) & 0xff_ffff
    } else {
        rng.below(1 << 24) as u32
    }
}

impl SimNetwork {
    /// Draws everything, and schedules the first action of each actor.
    pub(super) fn plan(&mut self) {
        let mut rng = self.rng.clone();
        let groups = 1 + rng.below(3);
        // Two machines have an SRQ for all their reliable connections.
        for _ in 0..2 {
            self.model.queues.push(RecvQueueModel {
                shared: true,
                ..RecvQueueModel::default()
            });
        }
        for _ in 0..groups {
            match rng.below(100) {
                // Runs whose outcomes are compared have reliable connections only, because the
                // other services do not recover lost packets.
                _ if self.mode.is_some() => self.plan_pair(&mut rng, QpType::Rc),
                0..=64 => self.plan_pair(&mut rng, QpType::Rc),
                65..=82 => self.plan_pair(&mut rng, QpType::Uc),
                _ => self.plan_datagrams(&mut rng),
            }
        }
        self.rng = rng;
        for me in 0..self.model.qps.len() {
            self.connect(me);
            let pace = self.model.qps[me].program.pace_ns;
            let at = self.rng.below(pace);
            self.events.schedule(at, SimEvent::Act(me));
        }
    }

    fn plan_pair(&mut self, rng: &mut Rng, qp_type: QpType) {
        let first = self.model.qps.len();
        let attr = self.draw_attr(rng);
        let psns = [first_psn(rng), first_psn(rng)];
        // One end may be a limited member of its partition.
        let limited = if rng.chance(20) { rng.below(2) } else { 2 };
        let mode = self.draw_mode(rng);
        let conditions = self.draw_conditions(rng, &attr);
        for side in 0..2 {
            let me = first + side;
            let peer = first + 1 - side;
            let mut attr = attr;
            attr.dest_qpn = qpn(peer);
            attr.sq_psn = psns[side];
            attr.rq_psn = psns[1 - side];
            attr.local_peer = mode == LinkMode::Local;
            if limited == side as u64 {
                attr.pkey &= 0x7fff;
            }
            // The two directions of a link may differ.
            let mut conditions = conditions;
            if rng.chance(30) {
                (conditions.loss, conditions.jitter_ns) = (0, 0);
            }
            let path = path(rng, me, peer);
            self.add_qp(rng, qp_type, mode, attr, peer, path, conditions);
        }
        let far = self.model.qps[first].path;
        self.model.qps[first + 1].path = Path {
            sgid: far.dgid,
            dgid: far.sgid,
            ..far
        };
    }

    fn plan_datagrams(&mut self, rng: &mut Rng) {
        let first = self.model.qps.len();
        let count = 2 + rng.below(2) as usize;
        let mut attr = self.draw_attr(rng);
        let mode = self.draw_mode(rng);
        let conditions = self.draw_conditions(rng, &attr);
        for me in first..first + count {
            attr.sq_psn = first_psn(rng);
            attr.local_peer = mode == LinkMode::Local;
            let path = path(rng, me, first);
            self.add_qp(rng, QpType::Ud, mode, attr, me, path, conditions);
            let others: Vec<usize> = (first..first + count)
                .filter(|other| *other != me)
                .collect();
            self.model.qps[me].program.others = others;
        }
    }

    fn draw_mode(&self, rng: &mut Rng) -> LinkMode {
        let drawn = match rng.below(100) {
            0..=39 => LinkMode::Local,
            40..=49 => LinkMode::Split,
            _ => LinkMode::Wire,
        };
        if self.scenario == Scenario::Hostile {
            return LinkMode::Wire;
        }
        self.mode.unwrap_or(drawn)
    }

    fn draw_attr(&self, rng: &mut Rng) -> Attr {
        let mtu = match rng.below(20) {
            0..=8 => 256,
            9..=13 => 512,
            14..=16 => 1024,
            17..=18 => 2048,
            _ => 4096,
        };
        let turmoil = self.scenario == Scenario::Turmoil;
        let mut attr = Attr {
            path_mtu: mtu,
            access_flags: access::REMOTE_WRITE
                | access::REMOTE_READ
                | access::REMOTE_ATOMIC
                | access::FLUSH_GLOBAL,
            qkey: rng.next() as u32 >> 1,
            max_rd_atomic: 1 + rng.below(8) as u8,
            min_rnr_timer: rng.below(32) as u8,
            timeout: 1 + rng.below(12) as u8,
            retry_cnt: 5 + rng.below(3) as u8,
            rnr_retry: 7,
            sqd_notify: rng.chance(50),
            ..Attr::default()
        };
        attr.max_dest_rd_atomic = attr.max_rd_atomic + rng.below(3) as u8;
        if matches!(self.scenario, Scenario::Mistakes | Scenario::Turmoil) && rng.chance(30) {
            attr.max_rd_atomic = 0;
        }
        if self.scenario == Scenario::Mistakes && rng.chance(30) {
            attr.access_flags &= 1 << (1 + rng.below(3));
        }
        if turmoil || self.scenario == Scenario::Fair {
            attr.retry_cnt = rng.below(8) as u8;
        }
        if turmoil && rng.chance(20) || self.scenario == Scenario::Fair && rng.chance(20) {
            attr.timeout = 0;
        }
        if self.scenario == Scenario::Hostile || turmoil && rng.chance(60) {
            let most = if rng.chance(70) { 3 } else { 7 };
            attr.rnr_retry = rng.below(most) as u8;
            // The RNR timer is so short that a late receive costs several RNR NAKs.
            if rng.chance(70) {
                attr.min_rnr_timer = 1 + rng.below(2) as u8;
            }
        }
        attr
    }

    fn draw_conditions(&self, rng: &mut Rng, attr: &Attr) -> LinkConditions {
        let mut conditions = LinkConditions {
            delay_ns: 200 + rng.below(4_000),
            bounded: true,
            ..LinkConditions::default()
        };
        let bad = match self.scenario {
            Scenario::Fair => false,
            Scenario::Lossy => true,
            _ => rng.chance(60),
        };
        if bad && attr.timeout != 0 {
            if rng.chance(75) {
                conditions.loss = 1 + rng.below(20) as u32;
            }
            if rng.chance(50) {
                conditions.duplication = 1 + rng.below(20) as u32;
            }
            if rng.chance(50) {
                conditions.jitter_ns = 1 + rng.below(6_000);
            }
            if rng.chance(40) {
                conditions.corruption = 1 + rng.below(15) as u32;
            }
            if attr.retry_cnt == 7 && conditions.jitter_ns > 0 && rng.chance(30) {
                conditions.straggling = 1 + rng.below(3) as u32;
            }
            conditions.bounded = self.scenario != Scenario::Turmoil || rng.chance(50);
        }
        if rng.chance(40) {
            conditions.marking = 1 + rng.below(60) as u32;
        }
        if self.scenario == Scenario::Hostile {
            conditions.forgery = 2 + rng.below(30) as u32;
        }
        conditions
    }

    #[allow(clippy::too_many_arguments)]
    fn add_qp(
        &mut self,
        rng: &mut Rng,
        qp_type: QpType,
        mode: LinkMode,
        attr: Attr,
        peer: usize,
        path: Path,
        conditions: LinkConditions,
    ) {
        let me = self.model.qps.len();
        let shared = rng.chance(25) && self.mode.is_none();
        let queue = if shared && qp_type == QpType::Rc {
            me % 2
        } else {
            self.model.queues.push(RecvQueueModel {
                shared,
                ..RecvQueueModel::default()
            });
            self.model.queues.len() - 1
        };
        let mut config = QpConfig::new(qpn(me), qp_type, 100 + me as u32);
        config.has_srq = shared;
        draw_config(rng, &attr, &mut config);
        let program = self.draw_program(rng, &attr);
        let service = match qp_type {
            QpType::Rc => 0,
            QpType::Uc => 1,
            _ => 2,
        };
        let lab = &mut self.model;
        lab.coverage
            .count(Topic::Connection, service, (attr.path_mtu >> 8) as u8);
        lab.qps.push(QpModel {
            peer,
            mode,
            queue,
            budget: Budget::new(1 + rng.below(24) as u32, 1 + rng.below(64 << 10)),
            strict: self.scenario != Scenario::Hostile,
            may_exhaust_retries: !conditions.bounded,
            ..QpModel::new(&config, attr, path, program)
        });
        lab.references.push(ReferenceRun::new(&config));
        self.events.links.push(conditions);
        self.qps.push(Qp::new(config));
    }

    /// Draws the actions of the program of a queue pair.
    fn draw_program(&self, rng: &mut Rng, attr: &Attr) -> ProgramModel {
        let (mistakes, turmoil) = match self.scenario {
            Scenario::Mistakes => (2 + rng.below(20) as u32, 0),
            Scenario::Turmoil => (rng.below(8) as u32, 5 + rng.below(25) as u32),
            Scenario::Hostile => (rng.below(6) as u32, rng.below(20) as u32),
            _ => (0, 0),
        };
        let packets = 1 + rng.below(if attr.path_mtu > 1024 { 4 } else { 9 }) as u32;
        ProgramModel {
            left: 3 + rng.below(if attr.path_mtu > 1024 { 5 } else { 9 }) as u32,
            pace_ns: 300 + rng.below(6_000),
            longest: (attr.path_mtu * packets).min(LONGEST),
            faults: mistakes,
            turmoil,
            late: if attr.rnr_retry < 7 && rng.chance(60) {
                70 + rng.below(30) as u32
            } else if rng.chance(50) {
                rng.below(70) as u32
            } else {
                0
            },
            others: Vec::new(),
        }
    }

    /// Moves a QP from RESET to RTS.
    pub(super) fn connect(&mut self, me: usize) {
        let attr = self.model.qps[me].attr;
        self.begin(me);
        self.modify(me, QpState::Init, &attr);
        self.modify(me, QpState::Rtr, &attr);
        self.modify(me, QpState::Rts, &attr);
    }

    /// Starts the end with its PSNs and a new word that its atomics change.
    pub(super) fn begin(&mut self, me: usize) {
        let lab: &mut NetworkModel = &mut self.model;
        lab.qps[me].start();
        let peer = lab.qps[me].peer;
        let pd = lab.qps.get(peer).map_or(0, |peer| peer.pd);
        let all = access::REMOTE_ATOMIC | access::LOCAL_WRITE;
        let region = lab.memory.register(pd, all, 16, RegionOwner::Remote);
        lab.qps[me].word = (region.addr, region.key, 0);
    }
}

/// Draws the properties of a queue pair with these attributes.
fn draw_config(rng: &mut Rng, attr: &Attr, config: &mut QpConfig) {
    // A requester with credits avoids RNR NAKs, so credits are drawn less often if RNR retries
    // are limited.
    config.credits = rng.chance(if attr.rnr_retry < 7 { 25 } else { 70 });
    config.max_msg_size = LONGEST;
    config.window = 1 + rng.below(64) as u32;
    config.wire_window = config.window;
    config.max_outstanding = 1 + rng.below(40) as u32;
    config.super_bytes = attr.path_mtu * (1 + rng.below(16) as u32);
    config.wire_super_packets = (1 + config.window % 8) as u8;
    config.min_timeout_ns = 60_000;
    config.recovers = rng.chance(60);
    config.min_probe_ns = 20_000;
    config.congestion_control = rng.chance(70);
    // Some QPs keep no packets, and some have too little memory to keep all.
    config.reassembly_bytes = match rng.below(4) {
        0 => 0,
        1 => rng.below(4_000) as u32,
        _ => 1 << 20,
    };
}

fn qpn(me: usize) -> u32 {
    0x11 + me as u32 * 0x101
}
