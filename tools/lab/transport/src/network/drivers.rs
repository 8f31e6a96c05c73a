// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Drivers, machines and links: states change in the middle of work, memory goes away, failed
//! connections begin anew.

use super::coverage::Topic;
use super::event_queue::SimEvent;
use super::plan::first_psn;
use super::work::PlannedFault;
use super::SimNetwork;
use verbena_transport::host::Syndrome;
use verbena_transport::{QpState, QpType};

impl SimNetwork {
    /// Starts a failed end anew in most cases.
    pub(super) fn recover(&mut self, me: usize, left: u32) {
        let end = &self.model.qps[me];
        match end.state {
            QpState::Err | QpState::Reset if left > 0 && self.rng.chance(60) => {
                let at = self.model.now_ns + self.rng.below(20_000);
                self.events.schedule(at, SimEvent::Reconnect(me));
            }
            QpState::Sqe if self.rng.chance(80) => {
                self.model.coverage.count(Topic::Turmoil, 9, 0);
                let attr = self.model.qps[me].attr;
                self.modify(me, QpState::Rts, &attr);
                let end = &mut self.model.qps[me];
                end.send_failed = false;
                end.assign = end.sq.len();
            }
            _ => {}
        }
    }

    /// Lets a driver, a machine or a link do something unexpected.
    pub(super) fn disturb(&mut self, me: usize) {
        let what = self.rng.below(10) as u8;
        let state = self.model.qps[me].state;
        let (now, peer) = (self.model.now_ns, self.model.qps[me].peer);
        let attr = self.model.qps[me].attr;
        let connected = self.model.qps[me].qp_type != QpType::Ud;
        let span = self.rng.below(400_000);
        match what {
            0 | 1 if state == QpState::Rts => {
                self.model.coverage.count(Topic::Turmoil, 0, 0);
                self.model.qps[me].drain = attr.sqd_notify;
                // A send may have been given its PSNs and been held back by the window.
                let next = self.qps[me].snapshot().next_psn;
                let end = &mut self.model.qps[me];
                end.may_start = next != (end.sent_psn & 0xff_ffff) as u32;
                self.modify(me, QpState::Sqd, &attr);
                self.events.schedule(now + span / 8, SimEvent::Resume(me));
            }
            2 if state != QpState::Reset => {
                self.model.coverage.count(Topic::Turmoil, 2, 0);
                self.modify(me, QpState::Err, &attr);
            }
            3 if state != QpState::Reset => {
                self.model.coverage.count(Topic::Turmoil, 10, 0);
                self.reset(me);
            }
            4 if !matches!(state, QpState::Reset | QpState::Err) => {
                self.model.coverage.count(Topic::Turmoil, 4, 0);
                self.fail(me, Syndrome::CqDied);
            }
            5 => {
                let queue = self.model.qps[me].queue;
                if self.model.queues[queue].shared && self.rng.chance(50) {
                    self.model.coverage.count(Topic::Turmoil, 5, 0);
                    self.model.queues[queue].is_failed = true;
                }
            }
            6 | 7 => self.invalidate_memory(me),
            8 if connected => {
                self.model.coverage.count(Topic::Turmoil, 7, 0);
                for end in [me, peer] {
                    self.model.qps[end].may_exhaust_retries = true;
                }
                self.events.links[me].cut_until_ns = now + span;
                if self.rng.chance(50) {
                    self.events.links[peer].cut_until_ns = now + span;
                }
            }
            9 if connected => {
                self.model.coverage.count(Topic::Turmoil, 8, 0);
                for end in [me, peer] {
                    self.model.qps[end].may_exhaust_retries = true;
                    self.model.qps[end].disturbed = true;
                }
                self.model.qps[me].frozen = true;
                self.events.schedule(now + span, SimEvent::Thaw(me));
            }
            _ => {}
        }
    }

    /// Invalidates memory of a work request or receive.
    fn invalidate_memory(&mut self, me: usize) {
        let end = &self.model.qps[me];
        self.model.coverage.count(Topic::Turmoil, 6, 0);
        let key = if self.rng.chance(50) && end.done < end.sq.len() {
            let left = (end.sq.len() - end.done) as u64;
            let number = end.sq[end.done + self.rng.below(left) as usize];
            let op = &mut self.model.ops[number as usize];
            let local = op.sges.first().map(|sge| sge.lkey);
            if op.fault != PlannedFault::None || op.is_complete {
                return;
            }
            op.vanishing = true;
            if op.is_atomic() || self.rng.chance(50) {
                local
            } else {
                Some(op.wqe.rkey)
            }
        } else {
            let queue = &self.model.queues[end.queue];
            let left = (queue.posts.len() - queue.taken) as u64;
            if left == 0 {
                return;
            }
            let recv = queue.posts[queue.taken + self.rng.below(left) as usize];
            let recv = &mut self.model.recvs[recv as usize];
            recv.vanishing = true;
            recv.sges.first().map(|sge| sge.lkey)
        };
        if let Some(region) = key.and_then(|key| self.model.memory.arena.regions.get_mut(key)) {
            region.valid = false;
        }
    }

    /// Moves a QP out of SQD.
    pub(super) fn resume(&mut self, me: usize) {
        if self.model.qps[me].state == QpState::Sqd {
            self.model.coverage.count(Topic::Turmoil, 1, 0);
            let attr = self.model.qps[me].attr;
            self.model.qps[me].drain = false;
            self.modify(me, QpState::Rts, &attr);
            self.poll(me);
        }
    }

    /// Lets a frozen machine go on.
    pub(super) fn unfreeze(&mut self, me: usize) {
        if self.model.qps[me].frozen {
            self.model.qps[me].frozen = false;
            let end = &mut self.model.qps[me];
            end.progress_ns = self.model.now_ns.max(end.rnr_until_ns);
            // A timer may have expired before a request was sent again.
            end.go_backs += 1;
            end.thawed = true;
            self.poll(me);
        }
    }

    /// Moves a QP to RESET, which drops all work without a completion.
    fn reset(&mut self, me: usize) {
        let attr = self.model.qps[me].attr;
        self.modify(me, QpState::Reset, &attr);
        let lab = &mut self.model;
        let end = &mut lab.qps[me];
        for op in &end.sq {
            lab.ops[*op as usize].is_complete = true;
        }
        end.done = end.sq.len();
        end.checked = end.done;
        let lost = end.held.take();
        if let Some(recv) = lost {
            lab.recvs[recv as usize].is_complete = true;
        }
        let number = end.queue;
        let queue = &mut lab.queues[number];
        if queue.shared {
            // The receive that was taken is lost, and a message needs another in its place.
            queue.owed += u32::from(lost.is_some());
            self.post_receives(number);
        } else {
            for recv in &queue.posts {
                lab.recvs[*recv as usize].is_complete = true;
            }
            queue.posts.clear();
            (queue.taken, queue.owed) = (0, 0);
        }
    }

    /// Resets and connects both ends of a connection, or one end of datagrams.
    pub(super) fn reconnect(&mut self, me: usize) {
        let state = self.model.qps[me].state;
        if !matches!(state, QpState::Err | QpState::Reset) {
            return;
        }
        self.model.coverage.count(Topic::Turmoil, 3, 0);
        let peer = self.model.qps[me].peer;
        let psns = [first_psn(&mut self.rng), first_psn(&mut self.rng)];
        let both = if peer == me { &[me][..] } else { &[me, peer] };
        for (side, end) in both.iter().enumerate() {
            self.reset(*end);
            let ours = &mut self.model.qps[*end];
            ours.reset();
            let qpn = ours.qpn;
            if let Some(tap) = &mut self.tap {
                tap.on_connect(qpn);
            }
            let ours = &mut self.model.qps[*end];
            ours.may_exhaust_retries = !self.events.links[*end].bounded;
            ours.frozen = false;
            ours.disturbed = true;
            ours.attr.sq_psn = psns[side];
            ours.attr.rq_psn = psns[1 - side];
            self.events.links[*end].cut_until_ns = 0;
        }
        for (side, end) in both.iter().enumerate() {
            self.begin(*end);
            let attr = self.model.qps[*end].attr;
            self.modify(*end, QpState::Init, &attr);
            self.modify(*end, QpState::Rtr, &attr);
            if side == 0 {
                self.modify(*end, QpState::Rts, &attr);
            } else {
                let at = self.model.now_ns + self.rng.below(5_000);
                let life = self.model.qps[*end].life;
                self.events.schedule(at, SimEvent::Connected(*end, life));
            }
        }
    }

    /// Makes the second end of a new connection ready to send.
    pub(super) fn connected(&mut self, me: usize, life: u32) {
        let end = &self.model.qps[me];
        if end.state == QpState::Rtr && end.life == life {
            let attr = end.attr;
            self.modify(me, QpState::Rts, &attr);
            self.poll(me);
        }
    }
}
