// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A slice of the engine's work: commands, doorbell areas (`areas.rs`), timers, QPs in turn,
//! packets.
//!
//! Areas take turns, and the QPs of an area take turns within its turn, so that one context cannot
//! starve another (`verbena_transport::sched`). A packet between QPs of this device is delivered as soon
//! as the call that sent it has returned.
//!
//! # Bounds of a slice
//!
//! The daemon holds the memory map during a slice, and a change of the map has to wait for the end
//! of the slice. Therefore all work whose amount the guest can choose is counted, and the rest is
//! left to the next slice:
//!
//! * Payload: [`SLICE_BYTES`] and one packet, and the datagrams of one more turn if a command stops
//!   a QP (`cmd/long.rs`). Each element of a region with gaps counts as [`ELEMENT_BYTES`] more.
//! * Turns of QPs and deliveries: [`SLICE_STEPS`] and one packet, which counts once for each member
//!   of a multicast group. Calls that receive frames or packets of another device deliver up to
//!   twice as many answers.
//! * Commands: [`SLICE_COMMANDS`], or one of those that look up rings. A long command
//!   (`cmd/long.rs`) goes on in the next slice.
//! * Doorbell areas that are scanned, woken, put to sleep, or checked for silence: [`SLICE_AREAS`]
//!   for each of the four.
//! * Slots of doorbell areas whose counters changed: [`SLICE_LOOKS`] and one area.
//! * Deadlines of QPs and of collapsed events: [`SLICE_DEADLINES`] for each of the two.
//! * Events that had to wait for room: `FLUSHED_EVENTS` in `resources.rs`.
//! * Frames that have not left: from `CROWDED` in `parts/egress.rs` on, only QPs whose peer is in
//!   this device get turns.
//! * QPs that follow a CQ or SRQ into the error state: [`SLICE_FOLLOWED`].

use crate::device::{Device, Next};
use crate::execution::copy::Side;
use crate::execution::host::QpHost;
use crate::execution::resources::SLICE_DEADLINES;
use crate::memory::GuestMemory;
use crate::objects::qp::Qp;
use crate::observation::event::QpEvent;
use verbena_abi::eqe::EventType;
use verbena_abi::syndrome::Syndrome;
use verbena_transport::{sched, QpState};

/// Number of payload bytes after which a slice ends, so that the memory map can change.
pub const SLICE_BYTES: u64 = sched::TURN_BYTES;
/// Number of copied bytes that take at least as long as looking up an element of a region with
/// gaps.
pub(crate) const ELEMENT_BYTES: u64 = 1024;
/// Turns of QPs and deliveries of packets in a slice.
pub(crate) const SLICE_STEPS: u32 = 256;
/// Commands in a slice. A command that looks up a ring counts as this many.
pub(crate) const SLICE_COMMANDS: u32 = 16;
/// Doorbell areas that a slice scans. Areas that are asleep cost nothing.
pub(crate) const SLICE_AREAS: usize = 1024;
/// Slots of doorbell areas that a slice looks at. A scan does not stop in the middle of an area.
pub(crate) const SLICE_LOOKS: u32 = 4096;
/// Budget of a slice for QPs whose CQ or SRQ may be in error. A look at one QP costs 1.
pub(crate) const SLICE_FOLLOWED: u32 = 1024;
/// Cost of moving such a QP to ERR, out of [`SLICE_FOLLOWED`].
pub(crate) const FOLLOW_COST: u32 = 16;

impl Device {
    /// Works for a bounded time. `now` is the device clock in nanoseconds.
    pub fn run_slice<M: GuestMemory>(&mut self, mem: &M, now: u64) -> Next {
        match self.is_recorded() {
            true => self.run_recorded_slice(mem, now),
            false => self.work_for_a_slice(mem, now),
        }
    }

    pub(super) fn work_for_a_slice<M: GuestMemory>(&mut self, mem: &M, now: u64) -> Next {
        self.shared.observers.capture_mut().show_last();
        self.shared.clock.begin(now);
        self.rounds.begin_slice();
        if let Some(until) = self.stalled_until() {
            return Next {
                deadline: Some(until),
                ..Next::default()
            };
        }
        let late = self.run_late(mem);
        let mut busy = self.run_commands(mem);
        let rules = self.run_rules(mem);
        if self.shared.regs().is_fatal() {
            return Next {
                busy: self.commands.are_pending(),
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
        self.shared.observers.capture_mut().show_last();
        let retry = self.shared.flush_events(mem);
        let remind = self.shared.remind_drivers(mem);
        let timer = self.turns.next_deadline();
        let deadline = [moderation, retry, remind, timer, late, rules]
            .into_iter()
            .flatten()
            .min();
        let pending = !self.turns.are_none()
            || !self.shared.outgoing.is_empty()
            || self.commands.are_pending()
            || self.rounds.is_pending();
        Next {
            busy: busy || pending,
            deadline,
            untaken: if pending { 0 } else { untaken },
        }
    }

    /// Adds a QP to the QPs with work.
    pub(crate) fn make_ready(&mut self, qpn: u32) {
        if let Some(qp) = self.qps.get(qpn) {
            self.turns.add(qp.env.create.uar.get(), qpn);
        }
    }

    /// Moves a QP to ERR for a reason that no work request is to blame for.
    pub(crate) fn fail_qp<M: GuestMemory>(&mut self, mem: &M, qpn: u32, cause: Syndrome) {
        let now = self.shared.clock.now();
        self.with_qp(mem, qpn, |transport, host| {
            transport.handle_failure(host, now, Some(EventType::QpFatal), cause);
        });
    }

    /// Calls the transport of a QP with its host, then publishes the changes of the call: the
    /// state, the watch word and the deadline.
    pub(crate) fn with_qp<M: GuestMemory, R>(
        &mut self,
        mem: &M,
        qpn: u32,
        call: impl FnOnce(&mut verbena_transport::Qp, &mut QpHost<'_, M>) -> R,
    ) -> Option<R> {
        self.with_qp_of(mem, None, qpn, call)
    }

    /// As [`Device::with_qp`], for a packet whose payload is in the memory of another guest.
    pub(crate) fn with_qp_of<M: GuestMemory, R>(
        &mut self,
        mem: &M,
        sender: Option<Side<'_, M>>,
        qpn: u32,
        call: impl FnOnce(&mut verbena_transport::Qp, &mut QpHost<'_, M>) -> R,
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
            let changed = QpEvent::StateChanged(&qp.transport);
            self.shared.report_of_qp(&mut qp.env, changed);
            qp.publish(mem);
        }
        let mut looks = changed && state == QpState::Err;
        let short = qp.transport.is_short_of_receives();
        if changed || qp.env.is_watch_outdated(short) {
            looks |= self.publish_watch(mem, &mut qp, short);
        }
        let deadline = qp.transport.next_deadline();
        // A deadline in the future that has not changed is in the wheel already.
        let known = deadline == before && deadline > Some(self.shared.clock.now());
        if let (Some(at), false) = (deadline, known) {
            self.turns.set_deadline(qpn, at);
        }
        self.qps.put(qpn, qp);
        if looks {
            self.make_ready(qpn);
        }
        Some(result)
    }

    /// Publishes whether the device waits for receives of a QP: to flush them, or to tell the peer
    /// of them. True if the QP needs a turn, in which it looks for receives.
    ///
    /// Each word is stored and fenced before that turn: either the turn finds a receive that is
    /// posted meanwhile, or the post sees the word and is announced.
    #[cold]
    fn publish_watch<M: GuestMemory>(&mut self, mem: &M, qp: &mut Qp, short: bool) -> bool {
        let env = &mut qp.env;
        env.short = short;
        let srqn = env.shares_receives_of();
        let in_error = qp.transport.state() == QpState::Err;
        let watched = in_error || short && srqn.is_none();
        let mut begins = false;
        if watched != env.watched {
            env.watch_receives(mem, watched);
            begins = watched;
        }
        let waits_at = srqn.filter(|_| short);
        if waits_at != env.waits_at {
            let qpn = env.qpn();
            let srqs = &mut self.shared.srqs;
            if let Some(srq) = env.waits_at.and_then(|srqn| srqs.get_mut(srqn)) {
                srq.end_wait(mem, qpn);
            }
            if let Some(srq) = waits_at.and_then(|srqn| srqs.get_mut(srqn)) {
                srq.begin_wait(mem, qpn);
                begins = true;
            }
            env.waits_at = waits_at;
        }
        begins
    }

    /// Makes QPs ready whose deadline has passed. True if there were any.
    fn expire<M: GuestMemory>(&mut self, _mem: &M) -> bool {
        let mut any = false;
        for _ in 0..SLICE_DEADLINES {
            let Some(qpn) = self.turns.next_expired(self.shared.clock.now()) else {
                break;
            };
            let due = self.qps.get(qpn).and_then(|q| q.transport.next_deadline());
            match due {
                Some(due) if due > self.shared.clock.now() => self.turns.set_again(qpn, due),
                Some(_) => {
                    any = true;
                    self.make_ready(qpn);
                }
                None => {}
            }
        }
        any
    }

    /// Runs QPs in turn and delivers packets until the slice is used up or no work is left.
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
            if let Some(out) = self.shared.outgoing.pop() {
                let delivered = self.deliver(mem, out);
                copied += delivered.bytes;
                steps += delivered.packets;
                self.may_panic(true);
                worked = true;
                continue;
            }
            let Some(qpn) = self.turns.next() else {
                break;
            };
            steps += 1;
            if self.egress.is_crowded() && self.may_leave(qpn) {
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

    /// Gives a QP an additional turn. There is room for its frames even while other QPs wait for
    /// frames to leave. Its packets are delivered later (`work`).
    pub(crate) fn give_turn<M: GuestMemory>(&mut self, mem: &M, qpn: u32) {
        let is_full = self.egress.is_half_full() && self.may_leave(qpn);
        if !is_full && !self.is_stalled(qpn) {
            self.run_qp(mem, qpn);
        }
    }

    /// True if requests of a QP still wait for delivery, or for another device of the process.
    pub(crate) fn has_requests_of(&self, qpn: u32) -> bool {
        let mut sent = self.shared.outgoing.iter().chain(self.crossing.iter());
        sent.any(|out| out.packet.src_qpn == qpn && out.packet.kind.is_request())
    }

    /// True if packets of a QP may have to leave the device.
    fn may_leave(&self, qpn: u32) -> bool {
        let transport = self.qps.get(qpn).map(|qp| &qp.transport);
        transport.is_some_and(|transport| !transport.attr().local_peer)
    }

    /// Prefetches the memory that the next turns need: with thousands of QPs none of it is in the
    /// cache.
    fn prefetch(&self) {
        let [_, buffers, work, own, far] = self.turns.ahead();
        let qp = |qpn: Option<u32>| self.qps.get(qpn?);
        if let Some(qpn) = far {
            self.qps.prefetch(qpn);
            self.turns.prefetch(qpn);
        }
        if let Some(qp) = qp(own) {
            qp.prefetch();
        }
        if let Some(qp) = qp(work) {
            qp.transport.prefetch_work();
            // The peer, if it is a QP of this device, is needed as well.
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
        let now = self.shared.clock.now();
        // Includes requests that the program has posted since the last look.
        self.note_posts(mem, qpn);
        let more = self.with_qp(mem, qpn, |transport, host| {
            transport.handle_receives_posted(host, now);
            transport.poll(host, now, &mut sched::turn())
        });
        if more == Some(true) {
            self.make_ready(qpn);
        }
    }

    /// Moves the QPs of CQs and SRQs in error to ERR: the QP that met the error at once, the others
    /// within the budget of the slice.
    #[inline]
    pub(crate) fn follow_deaths<M: GuestMemory>(&mut self, mem: &M) {
        if !self.shared.witnesses.are_none() || self.rounds.may_go_on() {
            self.follow_some_deaths(mem);
        }
    }

    #[cold]
    fn follow_some_deaths<M: GuestMemory>(&mut self, mem: &M) {
        while let Some(qpn) = self.shared.witnesses.next() {
            self.follow(mem, qpn);
            self.rounds.begin_round(self.qps.len());
        }
        while let Some(qpn) = self.rounds.next(self.qps.len()) {
            let moved = self.follow(mem, qpn);
            self.rounds.spend(moved);
        }
    }

    /// Moves a QP to ERR if its CQ or SRQ is in error. True if the QP was moved.
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
        } else if srq.is_some_and(|srq| srq.error.is_some()) && !qp.transport.is_refusal_pending() {
            // The QP that met the error may owe READ responses before its NAK, and goes to ERR
            // after them.
            Syndrome::SrqDied
        } else {
            return false;
        };
        self.fail_qp(mem, qpn, cause);
        true
    }
}
