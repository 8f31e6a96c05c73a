// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Drivers, machines and links: states change in the middle of work, memory goes away, failed
//! connections begin anew.

use super::air::What;
use super::cover::Topic;
use super::plan::first_psn;
use super::work::Fault;
use super::Network;
use verbena_transport::host::Syndrome;
use verbena_transport::{QpState, QpType};

impl Network {
    /// Starts a failed end anew in most cases.
    pub(super) fn mend(&mut self, me: usize, left: u32) {
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

    /// Lets a driver, a machine or a link do something unexpected.
    pub(super) fn stir(&mut self, me: usize) {
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
                // A send may have been given its PSNs and been held back by the window.
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

    /// Invalidates memory of a work request or receive.
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
        if let Some(region) = key.and_then(|key| self.lab.memory.arena.regions.get_mut(key)) {
            region.valid = false;
        }
    }

    /// Moves a QP out of SQD.
    pub(super) fn resume(&mut self, me: usize) {
        if self.lab.ends[me].state == QpState::Sqd {
            self.lab.cover.count(Topic::Turmoil, 1, 0);
            let attr = self.lab.ends[me].attr;
            self.lab.ends[me].drain = false;
            self.modify(me, QpState::Rts, &attr);
            self.poll(me);
        }
    }

    /// Lets a frozen machine go on.
    pub(super) fn thaw(&mut self, me: usize) {
        if self.lab.ends[me].frozen {
            self.lab.ends[me].frozen = false;
            let end = &mut self.lab.ends[me];
            end.progress_at = self.lab.now.max(end.rnr_until);
            // A timer may have expired before a request was sent again.
            end.rounds += 1;
            end.thawed = true;
            self.poll(me);
        }
    }

    /// Moves a QP to RESET, which drops all work without a completion.
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
            // The receive that was taken is lost, and a message needs another in its place.
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

    /// Resets and connects both ends of a connection, or one end of datagrams.
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

    /// Makes the second end of a new connection ready to send.
    pub(super) fn connected(&mut self, me: usize, life: u32) {
        let end = &self.lab.ends[me];
        if end.state == QpState::Rtr && end.life == life {
            let attr = end.attr;
            self.modify(me, QpState::Rts, &attr);
            self.poll(me);
        }
    }
}
