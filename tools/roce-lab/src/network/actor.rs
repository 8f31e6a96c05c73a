// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Programs and drivers: they post work requests and receives, some of them wrong on purpose, and change states.

use super::air::What;
use super::cover::Topic;
use super::lab::Lab;
use super::memory::{parts, pattern, Owner, LONGEST};
use super::plan::first_psn;
use super::work::{Fault, Op, Recv};
use super::Network;
use crate::Rng;
use verbena_abi::ctx::access;
use verbena_roce::host::{DatagramDest, SendWqe, Sge, Syndrome, WcStatus, WqeError, WqeOpcode};
use verbena_roce::{QpState, QpType};

const BAD_KEY: u32 = 0x00ff_ff77;
/// Where patterns begin: the longest message fits behind it.
const BASES: u64 = (1 << 16) - LONGEST as u64;

impl Network {
    /// An actor does something.
    pub(super) fn act(&mut self, me: usize) {
        let actor = &mut self.lab.ends[me].actor;
        actor.left = actor.left.saturating_sub(1);
        let (left, pace, late, turmoil) = (actor.left, actor.pace, actor.late, actor.turmoil);
        if left == 0 || !self.rng.chance(late) {
            let queue = self.lab.ends[me].queue;
            self.post_receives(queue);
        }
        if self.rng.chance(turmoil) {
            self.stir(me);
        }
        let end = &self.lab.ends[me];
        let takes = matches!(
            end.state,
            QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err
        );
        if takes {
            for _ in 0..1 + self.rng.below(3) {
                self.post_send(me);
            }
            let count = self.lab.ends[me].sq.len() as u32;
            self.qps[me].handle_posts(self.lab.now, count);
        }
        self.mend(me, left);
        self.poll(me);
        if left > 0 {
            let at = self.lab.now + 1 + self.rng.below(2 * pace);
            self.air.at(at, What::Act(me));
        }
    }

    /// What has failed is begun anew, mostly.
    fn mend(&mut self, me: usize, left: u32) {
        let end = &self.lab.ends[me];
        match end.state {
            QpState::Err | QpState::Reset if left > 0 && self.rng.chance(60) => {
                let at = self.lab.now + self.rng.below(20_000);
                self.air.at(at, What::Reconnect(me));
            }
            QpState::Sqe if self.rng.chance(80) => {
                self.lab.cover.count(Topic::Turmoil, 9, 0);
                let attr = self.lab.ends[me].attr;
                self.modify(me, QpState::Rts, &attr);
                let end = &mut self.lab.ends[me];
                end.send_failed = false;
                end.assign = end.sq.len();
            }
            _ => {}
        }
    }

    /// A driver, a machine or a link does what nobody expects.
    fn stir(&mut self, me: usize) {
        let what = self.rng.below(10) as u8;
        let state = self.lab.ends[me].state;
        let (now, peer) = (self.lab.now, self.lab.ends[me].peer);
        let attr = self.lab.ends[me].attr;
        let connected = self.lab.ends[me].qp_type != QpType::Ud;
        let span = self.rng.below(400_000);
        match what {
            0 | 1 if state == QpState::Rts => {
                self.lab.cover.count(Topic::Turmoil, 0, 0);
                self.lab.ends[me].drain = attr.sqd_notify;
                // One may have had its PSNs and been held back by the window.
                let next = self.qps[me].snapshot().next_psn;
                let end = &mut self.lab.ends[me];
                end.may_start = next != (end.hi & 0xff_ffff) as u32;
                self.modify(me, QpState::Sqd, &attr);
                self.air.at(now + span / 8, What::Resume(me));
            }
            2 if state != QpState::Reset => {
                self.lab.cover.count(Topic::Turmoil, 2, 0);
                self.modify(me, QpState::Err, &attr);
            }
            3 if state != QpState::Reset => {
                self.lab.cover.count(Topic::Turmoil, 10, 0);
                self.reset(me);
            }
            4 if !matches!(state, QpState::Reset | QpState::Err) => {
                self.lab.cover.count(Topic::Turmoil, 4, 0);
                self.fail(me, Syndrome::CqDied);
            }
            5 => {
                let queue = self.lab.ends[me].queue;
                if self.lab.queues[queue].shared && self.rng.chance(50) {
                    self.lab.cover.count(Topic::Turmoil, 5, 0);
                    self.lab.queues[queue].dead = true;
                }
            }
            6 | 7 => self.vanish(me),
            8 if connected => {
                self.lab.cover.count(Topic::Turmoil, 7, 0);
                for end in [me, peer] {
                    self.lab.ends[end].alone = true;
                }
                self.air.weather[me].cut_until = now + span;
                if self.rng.chance(50) {
                    self.air.weather[peer].cut_until = now + span;
                }
            }
            9 if connected => {
                self.lab.cover.count(Topic::Turmoil, 8, 0);
                for end in [me, peer] {
                    self.lab.ends[end].alone = true;
                    self.lab.ends[end].disturbed = true;
                }
                self.lab.ends[me].frozen = true;
                self.air.at(now + span, What::Thaw(me));
            }
            _ => {}
        }
    }

    /// Memory of a work request or receive goes away.
    fn vanish(&mut self, me: usize) {
        let end = &self.lab.ends[me];
        self.lab.cover.count(Topic::Turmoil, 6, 0);
        let key = if self.rng.chance(50) && end.done < end.sq.len() {
            let left = (end.sq.len() - end.done) as u64;
            let number = end.sq[end.done + self.rng.below(left) as usize];
            let op = &mut self.lab.ops[number as usize];
            let local = op.sges.first().map(|sge| sge.lkey);
            if op.fault != Fault::None || op.over {
                return;
            }
            op.vanishing = true;
            if op.is_atomic() || self.rng.chance(50) {
                local
            } else {
                Some(op.wqe.rkey)
            }
        } else {
            let queue = &self.lab.queues[end.queue];
            let left = (queue.posts.len() - queue.taken) as u64;
            if left == 0 {
                return;
            }
            let recv = queue.posts[queue.taken + self.rng.below(left) as usize];
            let recv = &mut self.lab.recvs[recv as usize];
            recv.vanishing = true;
            recv.sges.first().map(|sge| sge.lkey)
        };
        if let Some(region) = key.and_then(|key| self.lab.memory.region_mut(key)) {
            region.valid = false;
        }
    }

    /// SQD ends.
    pub(super) fn resume(&mut self, me: usize) {
        if self.lab.ends[me].state == QpState::Sqd {
            self.lab.cover.count(Topic::Turmoil, 1, 0);
            let attr = self.lab.ends[me].attr;
            self.lab.ends[me].drain = false;
            self.modify(me, QpState::Rts, &attr);
            self.poll(me);
        }
    }

    /// A frozen machine goes on.
    pub(super) fn thaw(&mut self, me: usize) {
        if self.lab.ends[me].frozen {
            self.lab.ends[me].frozen = false;
            let end = &mut self.lab.ends[me];
            end.progress_at = self.lab.now.max(end.rnr_until);
            // A timer may have expired before anything was sent again.
            end.rounds += 1;
            end.thawed = true;
            self.poll(me);
        }
    }

    /// To RESET: everything is forgotten without a completion.
    fn reset(&mut self, me: usize) {
        let attr = self.lab.ends[me].attr;
        self.modify(me, QpState::Reset, &attr);
        let lab = &mut self.lab;
        let end = &mut lab.ends[me];
        for op in &end.sq {
            lab.ops[*op as usize].over = true;
        }
        end.done = end.sq.len();
        end.checked = end.done;
        let lost = end.held.take();
        if let Some(recv) = lost {
            lab.recvs[recv as usize].over = true;
        }
        let number = end.queue;
        let queue = &mut lab.queues[number];
        if queue.shared {
            // The one that was taken is lost, and others wait for it.
            queue.owed += u32::from(lost.is_some());
            self.post_receives(number);
        } else {
            for recv in &queue.posts {
                lab.recvs[*recv as usize].over = true;
            }
            queue.posts.clear();
            (queue.taken, queue.owed) = (0, 0);
        }
    }

    /// Both ends of a connection, or one of datagrams, begin a new life.
    pub(super) fn reconnect(&mut self, me: usize) {
        let state = self.lab.ends[me].state;
        if !matches!(state, QpState::Err | QpState::Reset) {
            return;
        }
        self.lab.cover.count(Topic::Turmoil, 3, 0);
        let peer = self.lab.ends[me].peer;
        let psns = [first_psn(&mut self.rng), first_psn(&mut self.rng)];
        let both = if peer == me { &[me][..] } else { &[me, peer] };
        for (side, end) in both.iter().enumerate() {
            self.reset(*end);
            let ours = &mut self.lab.ends[*end];
            ours.forget();
            let qpn = ours.qpn;
            if let Some(tap) = &mut self.tap {
                tap.begins(qpn);
            }
            let ours = &mut self.lab.ends[*end];
            ours.alone = !self.air.weather[*end].bounded;
            ours.frozen = false;
            ours.disturbed = true;
            ours.attr.sq_psn = psns[side];
            ours.attr.rq_psn = psns[1 - side];
            self.air.weather[*end].cut_until = 0;
        }
        for (side, end) in both.iter().enumerate() {
            self.begin(*end);
            let attr = self.lab.ends[*end].attr;
            self.modify(*end, QpState::Init, &attr);
            self.modify(*end, QpState::Rtr, &attr);
            if side == 0 {
                self.modify(*end, QpState::Rts, &attr);
            } else {
                let at = self.lab.now + self.rng.below(5_000);
                let life = self.lab.ends[*end].life;
                self.air.at(at, What::Connected(*end, life));
            }
        }
    }

    /// The second end of a new connection becomes ready to send.
    pub(super) fn connected(&mut self, me: usize, life: u32) {
        let end = &self.lab.ends[me];
        if end.state == QpState::Rtr && end.life == life {
            let attr = end.attr;
            self.modify(me, QpState::Rts, &attr);
            self.poll(me);
        }
    }

    /// Posts the receives that are owed to a queue.
    pub(super) fn post_receives(&mut self, queue: usize) {
        let owed = std::mem::take(&mut self.lab.queues[queue].owed);
        let Some(owner) = self.lab.ends.iter().position(|end| end.queue == queue) else {
            return;
        };
        for _ in 0..owed {
            let (faults, is_ud) = {
                let end = &self.lab.ends[owner];
                (end.actor.faults, end.qp_type == QpType::Ud)
            };
            let ends = &self.lab.ends;
            let senders = ends.iter().filter(|end| ends[end.peer].queue == queue);
            let longest = senders.map(|end| end.actor.longest).max().unwrap_or(0);
            let longest = if is_ud {
                ends[owner].attr.path_mtu
            } else {
                longest
            };
            let room = if is_ud { 40 } else { 0 };
            let number = self.lab.recvs.len() as u32;
            let pd = 100 + owner as u32;
            let fault = match self.rng.below(3) {
                _ if !self.rng.chance(faults / 3) => Fault::None,
                0 => Fault::RecvShort,
                1 => Fault::RecvKey,
                _ => Fault::RecvMalformed,
            };
            let mut capacity = longest.max(1) + room;
            if fault == Fault::RecvShort {
                capacity = self.rng.below(u64::from(capacity)) as u32;
            }
            let owner = Owner::Recv(number);
            let rng = &mut self.rng;
            let mut sges = pieces(&mut self.lab, rng, owner, pd, access::LOCAL_WRITE, capacity);
            if fault == Fault::RecvKey {
                sges.iter_mut().for_each(|sge| sge.lkey = BAD_KEY);
            }
            let queue = &mut self.lab.queues[queue];
            self.lab.recvs.push(Recv {
                wr_id: 1 << 32 | u64::from(number),
                index: queue.posts.len() as u32,
                sges,
                pd,
                capacity,
                fault,
                malformed: (fault == Fault::RecvMalformed).then_some(Syndrome::RecvWqeMalformed),
                over: false,
                vanishing: false,
            });
            queue.posts.push(number);
        }
        if owed > 0 && !self.lab.queues[queue].shared {
            self.tell_receives(owner);
        }
    }

    /// Posts a send.
    fn post_send(&mut self, me: usize) {
        let end = &self.lab.ends[me];
        let (qp_type, mtu, longest) = (end.qp_type, end.attr.path_mtu, end.actor.longest);
        let wrong = self.rng.chance(end.actor.faults);
        let opcode = self.draw_opcode(qp_type);
        let length = self.draw_length(qp_type, mtu, longest);
        let number = self.lab.ops.len() as u32;
        let mut op = Op {
            qp: me,
            length,
            base: self.rng.below(BASES) as u32,
            ..Op::default()
        };
        op.wqe = SendWqe {
            wr_id: u64::from(number) << 8 | 7,
            opcode,
            signaled: self.rng.chance(60),
            solicited: self.rng.chance(20),
            fence: self.rng.chance(10),
            imm: (number ^ 0x1234_5678).to_be_bytes(),
            ..SendWqe::default()
        };
        if op.is_atomic() {
            op.length = 8;
        } else if op.is_silent() {
            op.length = 0;
        }
        self.give_buffers(me, number, &mut op);
        self.aim(me, &mut op);
        self.flaw(me, &mut op, wrong);
        let takes = op.takes_recv() && !op.fault.is_local();
        let to = op.to;
        self.lab.say(me, || {
            format!(
                "posts {:?} of {} bytes, wr_id {:#x}, {:?}",
                op.wqe.opcode, op.length, op.wqe.wr_id, op.fault
            )
        });
        self.lab.ops.push(op);
        self.lab.ends[me].sq.push(number);
        if takes {
            let queue = self.lab.ends[to].queue;
            self.lab.queues[queue].owed += 1;
            let finite = self.lab.ends[me].attr.rnr_retry < 7;
            let prompt = finite && self.rng.chance(40);
            let idle = self
                .lab
                .ends
                .iter()
                .all(|end| end.queue != queue || end.actor.left == 0);
            if idle || prompt {
                self.post_receives(queue);
            }
        }
    }

    fn draw_opcode(&mut self, qp_type: QpType) -> WqeOpcode {
        use WqeOpcode::*;
        let drawn = self.rng.below(100);
        match qp_type {
            QpType::Rc => match drawn {
                0..=15 => Send,
                16..=23 => SendImm,
                24..=28 => SendInv,
                29..=50 => RdmaWrite,
                51..=61 => RdmaWriteImm,
                62..=78 => RdmaRead,
                79..=85 => CompareSwap,
                86..=93 => FetchAdd,
                94..=97 => LocalInv,
                _ => FastReg,
            },
            QpType::Uc => match drawn {
                0..=29 => Send,
                30..=49 => SendImm,
                50..=74 => RdmaWrite,
                75..=94 => RdmaWriteImm,
                95..=97 => LocalInv,
                _ => FastReg,
            },
            _ => {
                if drawn < 60 {
                    Send
                } else {
                    SendImm
                }
            }
        }
    }

    fn draw_length(&mut self, qp_type: QpType, mtu: u32, longest: u32) -> u32 {
        let rng = &mut self.rng;
        let longest = if qp_type == QpType::Ud { mtu } else { longest };
        let length = match rng.below(10) {
            0 => 0,
            1..=3 => 1 + rng.below(64) as u32,
            4..=5 => rng.below(u64::from(mtu) + 1) as u32,
            6 => mtu * (1 + rng.below(4) as u32) - 1 + rng.below(3) as u32,
            _ => rng.below(u64::from(longest) + 1) as u32,
        };
        length.min(longest)
    }

    /// Local buffers, or inline data.
    fn give_buffers(&mut self, me: usize, number: u32, op: &mut Op) {
        let pd = self.lab.ends[me].pd;
        let reads = !op.responds();
        if reads && op.length > 0 && op.length <= 200 && self.rng.chance(30) {
            op.inline = pattern(op.base, 0, op.length).to_vec();
            return;
        }
        let access = if reads { 0 } else { access::LOCAL_WRITE };
        let owner = Owner::Op(number);
        let rng = &mut self.rng;
        op.sges = pieces(&mut self.lab, rng, owner, pd, access, op.length);
        if reads {
            let (memory, base) = (&mut self.lab.memory, op.base);
            parts(&op.sges, 0, op.length, |sge, at| {
                memory.fill(sge.addr, pattern(base, at, sge.length));
            });
        }
    }

    /// Where it goes.
    fn aim(&mut self, me: usize, op: &mut Op) {
        let end = &self.lab.ends[me];
        op.to = end.peer;
        let peer_pd = 100 + end.peer as u32;
        match op.wqe.opcode {
            _ if end.qp_type == QpType::Ud => {
                let others = &end.actor.others;
                op.to = others[self.rng.below(others.len() as u64) as usize];
                let far = &self.lab.ends[op.to];
                let mut path = end.path;
                path.dgid[15] = op.to as u8;
                let own = far.attr.qkey == end.attr.qkey && self.rng.chance(30);
                let qkey = if own { 1 << 31 } else { far.attr.qkey };
                op.wqe.datagram = Some(Box::new(DatagramDest {
                    path,
                    qpn: far.qpn,
                    qkey,
                }));
            }
            WqeOpcode::CompareSwap | WqeOpcode::FetchAdd => {
                (op.wqe.remote_addr, op.wqe.rkey) = (end.word.0, end.word.1);
                op.wqe.compare_add = self.rng.below(3);
                op.wqe.swap = self.rng.below(3);
            }
            WqeOpcode::RdmaRead | WqeOpcode::RdmaWrite | WqeOpcode::RdmaWriteImm => {
                let reads = op.wqe.opcode == WqeOpcode::RdmaRead;
                let right = if reads {
                    access::REMOTE_READ
                } else {
                    access::REMOTE_WRITE | access::LOCAL_WRITE
                };
                let before = self.rng.below(8) as u32;
                let size = op.length + before + self.rng.below(8) as u32;
                let memory = &mut self.lab.memory;
                let region = memory.register(peer_pd, right, size, Owner::Remote);
                let (addr, key) = (region.addr + u64::from(before), region.key);
                if reads {
                    memory.fill(addr, pattern(op.base, 0, op.length));
                }
                (op.wqe.remote_addr, op.wqe.rkey) = (addr, key);
            }
            WqeOpcode::SendInv | WqeOpcode::LocalInv => {
                let pd = if op.is_silent() { end.pd } else { peer_pd };
                let memory = &mut self.lab.memory;
                let key = memory.register(pd, 0, 8, Owner::Remote).key;
                op.wqe.imm = key.to_le_bytes();
            }
            _ => {}
        }
    }

    /// Makes it wrong, on purpose or because the connection does not allow it.
    fn flaw(&mut self, me: usize, op: &mut Op, wrong: bool) {
        let end = &self.lab.ends[me];
        let (qp_type, mtu, reads) = (end.qp_type, end.attr.path_mtu, end.attr.max_rd_atomic);
        let flags = self.lab.ends[end.peer].attr.access_flags;
        if wrong {
            self.spoil(me, op);
        }
        if op.fault.is_local() {
            return;
        }
        if op.responds() && reads == 0 {
            op.fault = Fault::NoReads;
        } else if qp_type != QpType::Ud {
            let needs = match op.wqe.opcode {
                WqeOpcode::RdmaWrite | WqeOpcode::RdmaWriteImm => access::REMOTE_WRITE,
                WqeOpcode::RdmaRead => access::REMOTE_READ,
                WqeOpcode::CompareSwap | WqeOpcode::FetchAdd => access::REMOTE_ATOMIC,
                _ => 0,
            };
            if flags & needs != needs {
                op.fault = Fault::Disabled;
            }
        }
        let _ = mtu;
    }

    fn spoil(&mut self, me: usize, op: &mut Op) {
        let end = &self.lab.ends[me];
        let (qp_type, peer_pd) = (end.qp_type, 100 + end.peer as u32);
        let has_sge = op.sges.iter().any(|sge| sge.length > 0);
        let remote = op.wqe.rkey != 0 && op.length > 0;
        let drawn = match self.rng.below(14) {
            _ if qp_type == QpType::Ud && self.rng.chance(30) => Fault::Qkey,
            0 | 1 => Fault::RkeyUnknown,
            2 => Fault::RkeyBounds,
            3 => Fault::RkeyAccess,
            4 => Fault::RkeyPd,
            5 => Fault::Misaligned,
            6 => Fault::LkeyUnknown,
            7 => Fault::LkeyBounds,
            8 => Fault::TooLong,
            9 => Fault::AtomicLength,
            10 => Fault::Malformed,
            11 => match op.wqe.opcode {
                WqeOpcode::LocalInv => Fault::LocalInvalidate,
                WqeOpcode::SendInv => Fault::RemoteInvalidate,
                _ => Fault::Malformed,
            },
            12 => Fault::Opcode,
            _ if qp_type == QpType::Ud => Fault::OverMtu,
            _ => Fault::Malformed,
        };
        let fits = match drawn {
            Fault::RkeyUnknown | Fault::RkeyBounds | Fault::RkeyPd => remote,
            Fault::RkeyAccess => remote && !op.is_atomic(),
            Fault::Misaligned | Fault::AtomicLength => op.is_atomic(),
            Fault::LkeyUnknown | Fault::LkeyBounds => has_sge,
            Fault::TooLong => !op.is_silent() && !op.is_atomic() && op.inline.is_empty(),
            Fault::Opcode => qp_type != QpType::Rc && op.inline.is_empty(),
            _ => true,
        };
        if !fits {
            return;
        }
        op.fault = drawn;
        let memory = &mut self.lab.memory;
        match drawn {
            Fault::RkeyUnknown => op.wqe.rkey = BAD_KEY,
            Fault::RkeyBounds if op.is_atomic() || self.rng.chance(40) => {
                op.wqe.remote_addr += 0x1_0000;
            }
            // It begins within the region: the first packets alone would be good.
            Fault::RkeyBounds => op.wqe.remote_addr += 8 + self.rng.below(u64::from(op.length)),
            Fault::RkeyPd => {
                let (pd, all) = (peer_pd + 1000, access::ALL);
                let region = memory.register(pd, all, op.length, Owner::Remote);
                (op.wqe.remote_addr, op.wqe.rkey) = (region.addr, region.key);
            }
            Fault::RkeyAccess => {
                let region = memory.register(peer_pd, 0, op.length, Owner::Remote);
                (op.wqe.remote_addr, op.wqe.rkey) = (region.addr, region.key);
            }
            Fault::Misaligned => op.wqe.remote_addr += 4,
            Fault::LkeyUnknown => op.sges.iter_mut().for_each(|sge| sge.lkey = BAD_KEY),
            Fault::LkeyBounds => op.sges.iter_mut().for_each(|sge| sge.addr += 0x1_0000),
            Fault::TooLong => {
                op.length = LONGEST + 1;
                op.sges.push(Sge {
                    length: LONGEST + 1,
                    ..Sge::default()
                });
            }
            Fault::AtomicLength => op.sges.push(Sge {
                length: 1,
                ..Sge::default()
            }),
            Fault::Malformed => {
                op.malformed = Some(WqeError::new(WcStatus::LocQpOpErr, Syndrome::WqeFlags));
            }
            Fault::LocalInvalidate | Fault::RemoteInvalidate => {
                op.wqe.imm = BAD_KEY.to_le_bytes();
            }
            Fault::Opcode => op.wqe.opcode = WqeOpcode::RdmaRead,
            Fault::Qkey => {
                if let Some(dest) = op.wqe.datagram.as_mut() {
                    dest.qkey = dest.qkey & !(1 << 31) ^ 0x55;
                }
            }
            Fault::OverMtu => {
                let length = self.lab.ends[me].attr.path_mtu + 1;
                op.length = length;
                op.inline.clear();
                let pd = self.lab.ends[me].pd;
                let number = self.lab.ops.len() as u32;
                let rng = &mut self.rng;
                op.sges = pieces(&mut self.lab, rng, Owner::Op(number), pd, 0, length);
            }
            _ => {}
        }
    }
}

/// Buffers of `length` bytes altogether, in up to three pieces.
fn pieces(
    lab: &mut Lab,
    rng: &mut Rng,
    owner: Owner,
    pd: u32,
    access: u32,
    length: u32,
) -> Vec<Sge> {
    let mut sges = Vec::new();
    if length == 0 {
        if rng.chance(50) {
            // Of zero length, so no key is needed.
            sges.push(Sge {
                addr: 1,
                length: 0,
                lkey: BAD_KEY,
            });
        }
        return sges;
    }
    let count = 1 + rng.below(3) as u32;
    let mut left = length;
    for piece in 0..count {
        let size = if piece + 1 == count {
            left
        } else {
            rng.below(u64::from(left) + 1) as u32
        };
        left -= size;
        let before = rng.below(6) as u32;
        let region = lab.memory.register(pd, access, size + before + 3, owner);
        sges.push(region.part(before, size));
    }
    sges
}
