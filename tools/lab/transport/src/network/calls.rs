// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The calls of a queue pair, and the conditions that must hold after each.

use super::cnp_model::is_cnp;
use super::coverage::Topic;
use super::event_queue::SimEvent;
use super::model::QpCall;
use super::qp_model::nearest_psn;
use super::work::PlannedFault;
use super::SimNetwork;
use verbena_transport::host::{EventType, Syndrome};
use verbena_transport::packet::{AethSyndrome, Packet, PacketKind};
use verbena_transport::qp::timers::rnr_delay_ns;
use verbena_transport::{Attr, Budget, QpState, QpType};

/// True if the packet parsed from a frame equals the packet that the frame was made of.
pub fn same_packet(a: &Packet, b: &Packet) -> bool {
    let qkey = |p: &Packet| p.datagram.as_ref().map(|d| d.qkey);
    let tail = |p: &Packet| p.kind;
    a.transport == b.transport
        && tail(a) == tail(b)
        && (a.first, a.last, a.solicited, a.ack_req) == (b.first, b.last, b.solicited, b.ack_req)
        && (a.pkey, a.dst_qpn, a.psn, a.psns) == (b.pkey, b.dst_qpn, b.psn, b.psns)
        && a.payload.len() == b.payload.len()
        && qkey(a) == qkey(b)
}

impl SimNetwork {
    /// Hands a packet to a queue pair.
    pub(super) fn deliver(&mut self, me: usize, packet: Packet, op: Option<u32>) {
        let lab = &mut self.model;
        lab.trace(me, || {
            format!("receives {}", super::observer::describe(&packet))
        });
        let end = &mut lab.qps[me];
        end.expected_counters.rx_packets += u64::from(packet.psns);
        end.expected_counters.rx_bytes += u64::from(packet.payload.len());
        let alive = packet.payload.is_alive();
        if !alive {
            lab.coverage.count(Topic::Link, 7, 0);
        }
        let end = &lab.qps[me];
        let count = u64::from(packet.psns);
        let mut due = None;
        let call = if packet.kind.is_request() {
            let near = match end.qp_type {
                QpType::Rc => end.expected,
                _ => end.next,
            };
            let first = nearest_psn(near, packet.psn);
            if alive {
                due = self.expect_request(me, &packet, first, op);
            }
            let end = first + count;
            QpCall::Request { first, end, op }
        } else {
            let last = nearest_psn(end.una_psn, packet.psn) + count;
            // An ACK does not make the requester go back, unless a READ or atomic before it should
            // have been answered.
            let ack = match packet.kind {
                PacketKind::Ack(aeth) => matches!(aeth.syndrome, AethSyndrome::Ack { .. }),
                kind => kind == PacketKind::Cnp,
            };
            let end = &mut self.model.qps[me];
            end.has_retry_cause |= !ack || end.reads > 0;
            QpCall::Response { end: last }
        };
        self.model.call = call;
        let rnr = match packet.kind {
            PacketKind::Ack(aeth) => match aeth.syndrome {
                AethSyndrome::Rnr { timer } => Some((packet.psn, timer)),
                _ => None,
            },
            _ => None,
        };
        self.model.hear_of_receives(me, &packet);
        let una = self.model.qps[me].una_psn;
        let last = packet.last;
        let now = self.model.now_ns;
        if !is_cnp(&packet) {
            self.model.reference_packet(me, &packet);
        }
        self.model.expect_cnp(me, &packet);
        self.qps[me].handle_packet(&mut self.model.host(me), now, packet);
        self.check_unreliable_message(me, op, last, due);
        self.check_call(me, false);
        if let Some((psn, timer)) = rnr {
            self.record_rnr(me, una, psn, timer);
        }
        self.carry(me);
        self.model.check_cnp_sent(me);
        if self.machine_rng.chance(80) {
            self.poll(me);
        } else {
            let at = now + self.machine_rng.below(400);
            self.events.schedule(at, SimEvent::Poll(me));
        }
    }

    /// Updates the model for a request before it is handled. Returns the byte up to which an
    /// unreliable responder has to have executed the message.
    fn expect_request(
        &mut self,
        me: usize,
        packet: &Packet,
        first: u64,
        op: Option<u32>,
    ) -> Option<u32> {
        let lab = &mut self.model;
        let end = &mut lab.qps[me];
        if !end.strict {
            return None;
        }
        let queue = &lab.queues[end.queue];
        // On an SRQ, the beginning of a message aborts the message before it together with its
        // receive.
        let aborts = queue.shared && end.qp_type == QpType::Uc && packet.first;
        let held = end.held.filter(|_| !aborts);
        let ready = held.or(queue.posts.get(queue.taken).copied());
        let ready = ready.filter(|_| !queue.is_failed);
        let hears = end.processes_requests() || end.state == QpState::Sqe;
        match end.qp_type {
            QpType::Rc => {
                if first < end.expected {
                    let low = end.again.unwrap_or(first).min(first);
                    end.again = Some(low);
                    // The peer asks again for all answers from this PSN on.
                    let responds =
                        !matches!(packet.kind, PacketKind::Send(_) | PacketKind::Write { .. });
                    if responds {
                        while end.pending.back().is_some_and(|p| p.end > first) {
                            end.pending.pop_back();
                        }
                    } else if first + u64::from(packet.psns) > end.expected {
                        // A super-packet that begins with duplicates and goes on with new packets
                        // contains the expected packet too.
                        (end.gap, end.gap_nak) = (None, None);
                    }
                } else if first == end.expected {
                    (end.gap, end.gap_nak) = (None, None);
                } else if end.processes_requests() {
                    end.gap = Some(end.expected);
                }
                None
            }
            QpType::Uc => {
                let op = op.filter(|_| hears)?;
                if packet.first {
                    end.message = Some((op, 0));
                } else if first != end.next || end.message.is_none_or(|(ours, _)| ours != op) {
                    end.message = None;
                }
                end.next = first + u64::from(packet.psns);
                let op = &lab.ops[op as usize];
                let mtu = end.attr.path_mtu;
                let whole = end.message.is_some_and(|(_, done)| {
                    u64::from(done) == (first - op.first) * u64::from(mtu)
                });
                let fine = |recv: u32| {
                    let recv = &lab.recvs[recv as usize];
                    recv.fault == PlannedFault::None
                        && !recv.vanishing
                        && recv.capacity >= op.length
                };
                let room = !op.takes_recv() || ready.is_some_and(fine);
                let fine = whole && room && op.fault == PlannedFault::None && !op.vanishing;
                let begin = (first - op.first) as u32 * mtu;
                fine.then_some(begin + packet.payload.len())
            }
            _ => {
                let op = op.filter(|_| hears)?;
                end.next = first + 1;
                let op = &lab.ops[op as usize];
                let fine = |recv: u32| {
                    let recv = &lab.recvs[recv as usize];
                    let room = recv.capacity >= op.length + 40;
                    recv.fault == PlannedFault::None && !recv.vanishing && room
                };
                let fine =
                    ready.is_some_and(fine) && op.fault == PlannedFault::None && !op.vanishing;
                fine.then_some(op.length)
            }
        }
    }

    /// Checks that an unreliable message without a fault was executed.
    fn check_unreliable_message(
        &mut self,
        me: usize,
        op: Option<u32>,
        last: bool,
        due: Option<u32>,
    ) {
        let end = &mut self.model.qps[me];
        let Some(op) = op.filter(|_| end.strict && end.qp_type != QpType::Rc) else {
            return;
        };
        let ours = &self.model.ops[op as usize];
        if due.is_some() && last {
            assert_eq!(
                end.received,
                u32::from(ours.takes_recv()),
                "a valid message was not executed: {ours:?}"
            );
        }
        if due.is_some() && end.qp_type == QpType::Uc {
            let done = end.message.map(|(_, done)| done);
            assert_eq!(done, due, "a part of a message was not executed: {ours:?}");
        }
        if last {
            end.message = None;
        }
    }

    /// Notes that an RNR NAK for the oldest work request makes its sender wait.
    fn record_rnr(&mut self, me: usize, una: u64, psn: u32, timer: u8) {
        let now = self.model.now_ns;
        let end = &mut self.model.qps[me];
        if !end.strict
            || end.una_psn != nearest_psn(end.una_psn, psn)
            || end.una_psn >= end.sent_psn
        {
            return;
        }
        if !matches!(end.state, QpState::Rts | QpState::Sqd) {
            return;
        }
        if end.is_rnr_waiting {
            // This is a copy of the RNR NAK for which the sender is waiting.
            return;
        }
        end.is_rnr_waiting = true;
        let ended_early = std::mem::take(&mut end.rnr_ended_early_ns);
        if ended_early > now {
            // The wait goes on that the report of receives has ended, and costs no retry.
            end.rnr_until_ns = ended_early;
            return;
        }
        end.rnr_seen = if end.una_psn == una {
            end.rnr_seen + 1
        } else {
            1
        };
        end.rnr_until_ns = now + rnr_delay_ns(timer);
        end.progress_ns = end.rnr_until_ns;
        assert!(
            end.attr.rnr_retry == 7 || end.rnr_seen <= u32::from(end.attr.rnr_retry),
            "RNR NAK {} of {} is not the last",
            end.rnr_seen,
            end.attr.rnr_retry
        );
    }

    /// Polls a queue pair until it has nothing more to do.
    pub(super) fn poll(&mut self, me: usize) {
        if self.model.qps[me].frozen {
            return;
        }
        for _ in 0..20_000 {
            let end = &self.model.qps[me];
            let mut budget: Budget = end.budget;
            let now = self.model.now_ns;
            self.model.call = QpCall::NoPacket;
            let more = self.qps[me].poll(&mut self.model.host(me), now, &mut budget);
            self.check_call(me, false);
            self.carry(me);
            self.check_left(me);
            let upset = std::mem::take(&mut self.model.qps[me].is_disturbed_in_poll);
            if !more && !upset {
                self.check_idle(me);
                return;
            }
            if self.machine_rng.chance(10) {
                let at = now + self.machine_rng.below(300);
                self.events.schedule(at, SimEvent::Poll(me));
                return;
            }
        }
        panic!("poll always has more to do");
    }

    /// Checks that sends which an unreliable service reports as complete have left.
    fn check_left(&mut self, me: usize) {
        let end = &mut self.model.qps[me];
        if !end.strict || end.qp_type == QpType::Rc || end.failed_before {
            end.checked = end.done;
            return;
        }
        while end.checked < end.done {
            let op = &self.model.ops[end.sq[end.checked] as usize];
            let over_mtu = end.qp_type == QpType::Ud && op.length > end.attr.path_mtu;
            let left = op.psns > 0 && end.sent_psn >= op.end();
            assert!(
                left || over_mtu || op.is_silent() || end.send_failed,
                "complete, but not sent: {op:?}"
            );
            end.checked += 1;
        }
    }

    /// Checks a queue pair that has nothing more to do now.
    fn check_idle(&mut self, me: usize) {
        let (now, end) = (self.model.now_ns, &mut self.model.qps[me]);
        end.again = None;
        let deadline = self.qps[me].next_deadline();
        // If no request is outstanding, the QP can only wait for the end of a pause.
        let pauses = end.cnps.controls && end.recovers_early() && deadline.is_some();
        self.model.reference_idle(me, pauses);
        let end = &mut self.model.qps[me];
        if let Some(at) = deadline {
            assert!(at > now, "a deadline has passed and nothing happened");
            if end.timer_ns.is_none_or(|timer| timer > at) {
                end.timer_ns = Some(at);
                self.events.schedule(at, SimEvent::Timer(me));
            }
        }
        let end = &self.model.qps[me];
        if end.qp_type == QpType::Rc && end.strict && end.processes_requests() {
            // IBTA 9.7.5.2: each gap is reported once, and none is left to the peer's timer.
            assert!(
                end.gap.is_none_or(|gap| gap != end.expected
                    || end.gap_nak == Some(gap)
                    || end.fault_nak == Some(gap)),
                "a gap at {:#x} is not reported",
                end.expected
            );
        }
        let waits = end.sent_psn > end.una_psn && matches!(end.state, QpState::Rts | QpState::Sqd);
        if end.qp_type == QpType::Rc && waits && end.strict {
            if let Some(timeout) = end.timeout_ns() {
                assert!(
                    deadline.is_some(),
                    "no deadline: the queue pair waits for ever"
                );
                // IBTA 9.7.6: the timer expires within four times its value.
                let tries = u64::from(end.attr.retry_cnt) + 1;
                let bound = end.progress_ns + tries * 4 * timeout + 1_000_000;
                assert!(
                    now <= bound,
                    "nothing has happened since {}",
                    end.progress_ns
                );
            }
        }
    }

    /// Handles a deadline that passes.
    pub(super) fn expire(&mut self, me: usize) {
        let end = &mut self.model.qps[me];
        if end.timer_ns.is_some_and(|timer| timer <= self.model.now_ns) {
            end.timer_ns = None;
        }
        self.poll(me);
    }

    /// Moves a queue pair to a state.
    pub(super) fn modify(&mut self, me: usize, to: QpState, attr: &Attr) {
        self.model.trace(me, || format!("is moved to {to:?}"));
        self.model.call = QpCall::NoPacket;
        let now = self.model.now_ns;
        self.reference_modify(me, to, attr);
        let result = self.qps[me].handle_modify(&mut self.model.host(me), now, to, attr);
        assert_eq!(result, Ok(()), "to {to:?}");
        self.check_call(me, true);
        self.carry(me);
    }

    /// Informs a queue pair that receives were posted.
    pub(super) fn notify_receives_posted(&mut self, me: usize) {
        if self.model.qps[me].frozen {
            return;
        }
        self.model.call = QpCall::NoPacket;
        let now = self.model.now_ns;
        self.reference_receives_posted(me);
        self.qps[me].handle_receives_posted(&mut self.model.host(me), now);
        self.check_call(me, false);
        self.carry(me);
    }

    /// Informs a queue pair that one of its queues died.
    pub(super) fn fail(&mut self, me: usize, cause: Syndrome) {
        self.model.trace(me, || format!("fails: {cause:?}"));
        self.model.call = QpCall::NoPacket;
        let event = Some(EventType::QpFatal);
        let now = self.model.now_ns;
        self.reference_failure(me);
        self.qps[me].handle_failure(&mut self.model.host(me), now, event, cause);
        self.check_call(me, true);
        self.carry(me);
    }

    /// Informs a queue pair that the payload of a packet that it sent cannot be read any more, because
    /// its memory region was destroyed or changed.
    pub(super) fn source_fault(&mut self, me: usize, packet: &Packet, cause: Syndrome) {
        self.model
            .trace(me, || format!("memory is gone: {cause:?}"));
        self.model.call = QpCall::NoPacket;
        let now = self.model.now_ns;
        self.reference_source_fault(me, packet);
        self.qps[me].handle_source_fault(&mut self.model.host(me), now, packet, cause);
        self.check_call(me, false);
        self.model.qps[me].is_disturbed_in_poll = true;
        self.model.qps[me].has_retry_cause = true;
        let at = self.model.now_ns;
        self.events.schedule(at, SimEvent::Poll(me));
    }

    /// Checks the conditions that must hold after each call. `asked` is true if the driver
    /// requested a change of state.
    fn check_call(&mut self, me: usize, asked: bool) {
        self.model.compare_reference(me, &self.qps[me]);
        let snap = self.qps[me].snapshot();
        let lab = &mut self.model;
        let before = lab.qps[me].state;
        lab.qps[me].state = snap.state;
        lab.qps[me].started |= snap.state == QpState::Rts;
        if before != snap.state {
            lab.trace(me, || format!("was in {before:?}"));
        }
        let end = &lab.qps[me];
        let live = !matches!(snap.state, QpState::Reset | QpState::Init);
        let same_life = lab.qps[end.peer].life == end.life;
        if end.strict && end.qp_type == QpType::Rc && live && same_life {
            let expected = nearest_psn(end.expected, snap.expected_psn);
            if expected != end.expected {
                self.model.check_executed(me, expected);
            }
            let end = &self.model.qps[me];
            assert_eq!(
                snap.msn,
                (end.msn & 0xff_ffff) as u32,
                "the number of messages is wrong"
            );
            let una = nearest_psn(end.una_psn, snap.una_psn);
            if una != end.una_psn && end.started {
                self.check_progress(me, una);
            }
        } else if end.strict && end.qp_type == QpType::Uc && live {
            let una = nearest_psn(end.una_psn, snap.una_psn);
            lab.qps[me].una_psn = una;
        }
        self.check_change(me, before, asked);
        let lab = &mut self.model;
        let end = &mut lab.qps[me];
        end.failed_before |= end.send_failed;
        end.received = 0;
        end.failures = 0;
        end.flushes = 0;
        end.events.clear();
        lab.call = QpCall::NoPacket;
    }

    /// Advances the oldest unacknowledged PSN, and checks that the requester may do so.
    fn check_progress(&mut self, me: usize, una: u64) {
        let lab = &mut self.model;
        let end = &lab.qps[me];
        let mut expected = lab.qps[end.peer].expected;
        if let Some(op) = lab.op_at(me, expected) {
            // The packets of a super-packet before the one for which the receive has no room count
            // as executed.
            let op = &lab.ops[op as usize];
            expected = expected.max(op.first + u64::from(op.done / end.attr.path_mtu));
        }
        assert!(
            end.una_psn < una && una <= end.sent_psn && una <= expected,
            "{una:#x} counts as acknowledged, after {:#x}; the peer expects {expected:#x}",
            end.una_psn
        );
        if let Some(op) = lab.op_at(me, una) {
            let op = &lab.ops[op as usize];
            let due = (una - op.first) * u64::from(end.attr.path_mtu);
            assert!(
                !op.awaits_response() || u64::from(op.received) == due,
                "more of a READ counts as done than has arrived: {op:?}"
            );
        }
        let (now, mut psn, mut back) = (lab.now_ns, end.una_psn, 0);
        while psn < una {
            let op = lab.op_at(me, psn).expect("acknowledged, but never sent");
            let op = &lab.ops[op as usize];
            psn = op.message_at(psn).1;
            if op.awaits_response() && psn <= una {
                let whole = psn < op.end() || op.received == op.response_length();
                assert!(whole, "complete before all data arrived: {op:?}");
                back += 1;
            }
        }
        let end = &mut lab.qps[me];
        end.reads -= back;
        end.una_psn = una;
        // An acknowledgement that goes no further than the retransmission shows that the packets
        // after it are missing.
        end.has_retry_cause |= end.recovers_early() && una == end.again_to;
        end.is_probe = false;
        end.second_retransmit = None;
        end.go_backs = 0;
        end.rnr_seen = 0;
        // Progress ends the wait for a receive.
        end.rnr_until_ns = 0;
        end.rnr_ended_early_ns = 0;
        end.is_rnr_waiting = false;
        end.thawed = false;
        end.progress_ns = now;
    }

    /// Checks that the state was allowed to change, and that events and flushes agree with it.
    fn check_change(&mut self, me: usize, before: QpState, asked: bool) {
        let lab = &mut self.model;
        let half = lab.op_at(me, lab.qps[me].sent_psn).is_some();
        let end = &mut lab.qps[me];
        let state = end.state;
        assert!(
            end.flushes == 0
                || matches!(state, QpState::Err | QpState::Sqe)
                || before == QpState::Sqe,
            "flushed in {state:?}"
        );
        let mut errors = 0;
        for event in &end.events {
            match event {
                EventType::CommEst => {
                    assert!(
                        !end.comm_est && before == QpState::Rtr,
                        "COMM_EST in {before:?}"
                    );
                    end.comm_est = true;
                }
                EventType::SqDrained => {
                    assert!(
                        end.drain && state == QpState::Sqd,
                        "SQ_DRAINED in {state:?}"
                    );
                    let all = end.sent_psn == end.una_psn && !half || end.qp_type != QpType::Rc;
                    assert!(all || !end.strict, "SQ_DRAINED too early");
                    end.drain = false;
                }
                EventType::QpLastWqeReached => {
                    let shared = lab.queues[end.queue].shared;
                    assert!(shared && state == QpState::Err && end.last_wqe);
                    assert!(end.held.is_none(), "the last WQE is not complete");
                    end.last_wqe = false;
                }
                EventType::QpReqErr | EventType::QpAccessErr | EventType::QpFatal => errors += 1,
                _ => panic!("an event that queue pairs do not have: {event:?}"),
            }
        }
        end.blamed += errors;
        assert!(
            end.blamed <= 1 || !end.strict || end.qp_type != QpType::Rc,
            "two errors"
        );
        if before == state {
            return;
        }
        match state {
            QpState::Err => {
                let dead = lab.queues[end.queue].is_failed;
                assert!(
                    asked || errors > 0 || end.failures > 0 || dead,
                    "to ERR without a reason"
                );
                end.last_wqe = true;
                end.rnr_until_ns = 0;
            }
            QpState::Sqe => {
                assert!(
                    end.qp_type != QpType::Rc && end.failures > 0,
                    "to SQE without a reason"
                );
            }
            _ => assert!(asked, "from {before:?} to {state:?} without a cause"),
        }
        let (hears, peer, is_ud) = (
            end.processes_requests(),
            end.peer,
            end.qp_type == QpType::Ud,
        );
        end.disturbed |= !hears;
        if !hears && !is_ud {
            lab.qps[peer].may_exhaust_retries = true;
            lab.qps[peer].disturbed = true;
        }
    }
}
