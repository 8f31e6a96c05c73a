// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A slice of the engine's work: commands, doorbell areas (`areas.rs`), timers, queue pairs in turn, packets.
//!
//! Areas take turns, and the queue pairs of an area take turns within its turn, so that one context cannot starve
//! another (`verbena_roce::sched`). A packet between local queue pairs is delivered as soon as the call that sent it has returned.
//!
//! # What bounds a slice
//!
//! The daemon holds the memory map during a slice, and whoever wants to change the map waits. So all that a guest can
//! make long is counted, and what is left over is the next slice's:
//!
//! | work | bound |
//! | --- | --- |
//! | payload | [`SLICE_BYTES`] and a packet, and datagrams of a turn more if a command stops a queue pair (`cmd/long.rs`); an element of a region with gaps counts as [`ELEMENT_BYTES`] more |
//! | turns of queue pairs, deliveries | [`SLICE_STEPS`] and a packet, which may be for as many as a multicast group has members; twice as many where frames, or a neighbour's packets, are taken, for their answers |
//! | commands | [`SLICE_COMMANDS`], one of those that look up rings; a long one (`cmd/long.rs`) goes on in the next slice |
//! | doorbell areas that are scanned, woken, put to sleep, or asked how long they were silent | [`SLICE_AREAS`] each |
//! | slots of doorbell areas whose counters changed | [`SLICE_LOOKS`] and an area |
//! | deadlines of queue pairs and of collapsed events | [`SLICE_DEADLINES`] each |
//! | events that had to wait for room | `shared.rs`, `FLUSHED_EVENTS` |
//! | frames that have not left | [`CROWDED`]: then only queue pairs of the device's own get turns |
//! | queue pairs that follow a CQ or SRQ that died | [`SLICE_FOLLOWED`] |

use crate::device::{Device, Next, MAX_FRAMES};
use crate::execution::copy::Side;
use crate::execution::host::QpHost;
use crate::execution::shared::SLICE_DEADLINES;
use crate::memory::GuestMemory;
use crate::objects::qp::Qp;
use verbena_abi::eqe::EventType;
use verbena_abi::syndrome::Syndrome;
use verbena_roce::{sched, QpState};

/// Bytes that a slice may copy before the memory map may change.
pub const SLICE_BYTES: u64 = sched::TURN_BYTES;
/// Looking up an element of a region with gaps takes as long as copying so many bytes, or less.
pub(crate) const ELEMENT_BYTES: u64 = 1024;
/// Calls of queue pairs and deliveries of packets in a slice.
pub(crate) const SLICE_STEPS: u32 = 256;
/// Commands in a slice. What looks up a ring counts as this many.
pub(crate) const SLICE_COMMANDS: u32 = 16;
/// Doorbell areas that a slice scans. Those that are asleep cost nothing.
pub(crate) const SLICE_AREAS: usize = 1024;
/// Slots of doorbell areas that a slice looks at; it does not stop inside of an area.
pub(crate) const SLICE_LOOKS: u32 = 4096;
/// With so many frames that have not left, queue pairs that would make more wait: a sender is as fast as its wire. There is
/// room for what the turns of a slice make on top of them.
const CROWDED: usize = MAX_FRAMES / 4;
/// What a slice spends on queue pairs whose CQ or SRQ may have died: 1 to look at one ...
pub(crate) const SLICE_FOLLOWED: u32 = 1024;
/// ... and so much to move it to ERR.
pub(crate) const FOLLOW_COST: u32 = 16;

impl Device {
    /// Works for a bounded time.
    pub fn run_slice<M: GuestMemory>(&mut self, mem: &M, now: u64) -> Next {
        match self.boundary.is_taped() {
            true => self.taped_slice(mem, now),
            false => self.work_for_a_slice(mem, now),
        }
    }

    pub(super) fn work_for_a_slice<M: GuestMemory>(&mut self, mem: &M, now: u64) -> Next {
        self.shared.show_last();
        self.shared.now = now;
        self.follow_budget = SLICE_FOLLOWED;
        if let Some(until) = self.rests() {
            return Next {
                deadline: Some(until),
                ..Next::default()
            };
        }
        let late = self.run_late(mem);
        let mut busy = self.run_commands(mem);
        let rules = self.run_rules(mem);
        if self.shared.regs.is_fatal() {
            return Next {
                busy: !self.commands.is_empty() || self.running.is_some(),
                ..Next::default()
            };
        }
        busy |= self.wake_rung(mem);
        busy |= self.scan_awake(mem);
        self.let_silent_sleep(mem);
        busy |= self.expire(mem);
        let moderation = self.shared.run_moderation(mem);
        busy |= self.work(mem);
        let untaken = self.shared.notify_written(mem);
        self.shared.show_last();
        let retry = self.shared.flush_events(mem);
        let remind = self.shared.remind_drivers(mem);
        let timer = self.timers.next_deadline();
        let deadline = [moderation, retry, remind, timer, late, rules]
            .into_iter()
            .flatten()
            .min();
        let pending = !self.ready.is_empty()
            || !self.shared.outgoing.is_empty()
            || !self.commands.is_empty()
            || self.running.is_some()
            || self.may_follow != 0;
        Next {
            busy: busy || pending,
            deadline,
            untaken: if pending { 0 } else { untaken },
        }
    }

    /// Puts a queue pair among those with work.
    pub(crate) fn make_ready(&mut self, qpn: u32) {
        if let Some(qp) = self.qps.get(qpn) {
            self.ready.push(qp.env.create.uar.get(), qpn);
        }
    }

    /// Moves a queue pair to ERR for no work request's fault.
    pub(crate) fn fail_qp<M: GuestMemory>(&mut self, mem: &M, qpn: u32, cause: Syndrome) {
        let now = self.shared.now;
        self.with_qp(mem, qpn, |transport, host| {
            transport.handle_failure(host, now, Some(EventType::QpFatal), cause);
        });
    }

    /// Calls a queue pair's transport with its surroundings, then sees to what the call changed.
    pub(crate) fn with_qp<M: GuestMemory, R>(
        &mut self,
        mem: &M,
        qpn: u32,
        call: impl FnOnce(&mut verbena_roce::Qp, &mut QpHost<'_, M>) -> R,
    ) -> Option<R> {
        self.with_qp_of(mem, None, qpn, call)
    }

    /// The same for a packet of which the payload lies with another guest.
    pub(crate) fn with_qp_of<M: GuestMemory, R>(
        &mut self,
        mem: &M,
        sender: Option<Side<'_, M>>,
        qpn: u32,
        call: impl FnOnce(&mut verbena_roce::Qp, &mut QpHost<'_, M>) -> R,
    ) -> Option<R> {
        let mut qp = self.qps.take(qpn)?;
        let Qp { transport, env } = &mut *qp;
        let before = transport.next_deadline();
        let result = call(
            transport,
            &mut QpHost {
                mem,
                shared: &mut self.shared,
                env,
                sender,
            },
        );
        let state = qp.transport.state();
        let changed = state != qp.env.shown;
        if changed {
            self.shared.note_state(&qp);
            qp.publish(mem);
            // Stored and fenced before the next flush looks at the receive ring: a receive posted meanwhile either
            // is seen by that flush, or its post sees this word and rings.
            qp.env.show_error(mem, state == QpState::Err);
        }
        let deadline = qp.transport.next_deadline();
        // One that is to come and has not changed is in the wheel already.
        let known = deadline == before && deadline > Some(self.shared.now);
        if let (Some(at), false) = (deadline, known) {
            // A deadline that has moved on is found to be later when the old one passes: most never do.
            if self.timers.deadline(qpn).is_none_or(|set| at < set) {
                self.timers.set(qpn, at);
            }
        }
        self.qps.put(qpn, qp);
        if changed && state == QpState::Err {
            self.make_ready(qpn);
        }
        Some(result)
    }

    /// Wakes the queue pairs whose deadline has passed.
    fn expire<M: GuestMemory>(&mut self, _mem: &M) -> bool {
        let mut any = false;
        for _ in 0..SLICE_DEADLINES {
            let Some(qpn) = self.timers.pop(self.shared.now) else {
                break;
            };
            let due = self.qps.get(qpn).and_then(|q| q.transport.next_deadline());
            match due {
                Some(due) if due > self.shared.now => self.timers.set(qpn, due),
                Some(_) => {
                    any = true;
                    self.make_ready(qpn);
                }
                None => {}
            }
        }
        any
    }

    /// Runs queue pairs in turn and delivers packets until the slice is used up or there is nothing left.
    fn work<M: GuestMemory>(&mut self, mem: &M) -> bool {
        let mut copied = 0;
        let mut worked = false;
        let mut held = Vec::new();
        self.may_panic(false);
        let mut steps = 0;
        while steps < SLICE_STEPS {
            self.follow_deaths(mem);
            copied += self.shared.lookups.take_sought() * ELEMENT_BYTES;
            if copied >= SLICE_BYTES {
                break;
            }
            if let Some(out) = self.shared.outgoing.pop_front() {
                let delivered = self.deliver(mem, out);
                copied += delivered.bytes;
                steps += delivered.packets;
                self.may_panic(true);
                worked = true;
                continue;
            }
            let Some(qpn) = self.ready.pop() else {
                break;
            };
            steps += 1;
            if self.frames.len() >= CROWDED && self.may_leave(qpn) {
                held.push(qpn);
                continue;
            }
            if self.is_stalled(qpn) {
                continue;
            }
            self.prefetch();
            self.run_qp(mem, qpn);
            self.may_panic(true);
            worked = true;
        }
        held.into_iter().for_each(|qpn| self.make_ready(qpn));
        self.follow_deaths(mem);
        worked
    }

    /// Gives a queue pair a turn out of turn, for which there is room also while others wait for frames to leave. What it sends
    /// is delivered later (`work`).
    pub(crate) fn give_turn<M: GuestMemory>(&mut self, mem: &M, qpn: u32) {
        let is_full = self.frames.len() >= MAX_FRAMES / 2 && self.may_leave(qpn);
        if !is_full && !self.is_stalled(qpn) {
            self.run_qp(mem, qpn);
        }
    }

    /// Whether requests of a queue pair are still to be delivered, or to be taken by a neighbour.
    pub(crate) fn has_requests_of(&self, qpn: u32) -> bool {
        let mut sent = self.shared.outgoing.iter().chain(&self.crossing);
        sent.any(|out| out.packet.src_qpn == qpn && out.packet.kind.is_request())
    }

    /// Whether a queue pair's packets may have to leave the device.
    fn may_leave(&self, qpn: u32) -> bool {
        let transport = self.qps.get(qpn).map(|qp| &qp.transport);
        transport.is_some_and(|transport| !transport.attr().local_peer)
    }

    /// Has memory fetched that the next turns need: with thousands of queue pairs none of it is near.
    fn prefetch(&self) {
        let [_, buffers, work, own, far] = self.ready.ahead();
        let qp = |qpn: Option<u32>| self.qps.get(qpn?);
        if let Some(qpn) = far {
            self.qps.prefetch(qpn);
            self.timers.prefetch(qpn);
        }
        if let Some(qp) = qp(own) {
            qp.prefetch();
        }
        if let Some(qp) = qp(work) {
            qp.transport.prefetch_work();
            // The peer, if it is one of the device's own.
            let peer = qp.transport.attr();
            if let (true, Some(peer)) = (peer.local_peer, self.qps.get(peer.dest_qpn)) {
                peer.prefetch();
            }
        }
        if let Some(qp) = qp(buffers) {
            qp.transport.prefetch_buffers();
        }
    }

    fn run_qp<M: GuestMemory>(&mut self, mem: &M, qpn: u32) {
        let now = self.shared.now;
        // What a program has posted since it was noticed is taken along.
        self.note_posts(mem, qpn);
        let more = self.with_qp(mem, qpn, |transport, host| {
            transport.handle_receives_posted(host, now);
            transport.poll(host, now, &mut sched::turn())
        });
        if more == Some(true) {
            self.make_ready(qpn);
        }
    }

    /// Queue pairs follow the CQs and SRQs that died: the one that found out at once, the others as the slice has time.
    #[inline]
    pub(crate) fn follow_deaths<M: GuestMemory>(&mut self, mem: &M) {
        if !self.shared.witnesses.is_empty() || self.may_follow != 0 && self.follow_budget != 0 {
            self.follow_some_deaths(mem);
        }
    }

    #[cold]
    fn follow_some_deaths<M: GuestMemory>(&mut self, mem: &M) {
        while let Some(qpn) = self.shared.witnesses.pop() {
            self.follow(mem, qpn);
            // All round once more: those that were passed already may have lost theirs now.
            self.may_follow = self.qps.len();
        }
        while self.may_follow != 0 && self.follow_budget != 0 {
            self.may_follow -= 1;
            if self.follow_next >= self.qps.len() {
                self.follow_next = 0;
            }
            let qpn = self.follow_next;
            self.follow_next += 1;
            let cost = if self.follow(mem, qpn) {
                FOLLOW_COST
            } else {
                1
            };
            self.follow_budget = self.follow_budget.saturating_sub(cost);
        }
    }

    /// Moves a queue pair to ERR if one of its queues has died. True: it did.
    fn follow<M: GuestMemory>(&mut self, mem: &M, qpn: u32) -> bool {
        let Some(qp) = self.qps.get(qpn) else {
            return false;
        };
        if matches!(qp.transport.state(), QpState::Reset | QpState::Err) {
            return false;
        }
        let env = &qp.env;
        let cq_died = |cqn: u32| {
            self.shared
                .cqs
                .get(cqn)
                .is_some_and(|cq| cq.error.is_some())
        };
        let srq = env.srqn().and_then(|srqn| self.shared.srqs.get(srqn));
        let cause = if env.has_cq(cq_died) {
            Syndrome::CqDied
        } else if srq.is_some_and(|srq| srq.error.is_some()) && !qp.transport.is_ending() {
            // One that found out may owe READ responses before its NAK: it ends by itself behind them.
            Syndrome::SrqDied
        } else {
            return false;
        };
        self.fail_qp(mem, qpn, cause);
        true
    }
}
