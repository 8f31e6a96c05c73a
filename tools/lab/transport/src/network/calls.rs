// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The calls of a queue pair, and the conditions that must hold after each.

use super::air::What;
use super::congestion::is_cnp;
use super::cover::Topic;
use super::end::extend;
use super::lab::Call;
use super::work::Fault;
use super::Network;
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

impl Network {
    /// Hands a packet to a queue pair.
    pub(super) fn deliver(&mut self, me: usize, packet: Packet, op: Option<u32>) {
        let lab = &mut self.lab;
        lab.say(me, || {
            format!("receives {}", super::observer::describe(&packet))
        });
        let end = &mut lab.ends[me];
        end.books.rx_packets += u64::from(packet.psns);
        end.books.rx_bytes += u64::from(packet.payload.len());
        let alive = packet.payload.is_alive();
        if !alive {
            lab.cover.count(Topic::Weather, 7, 0);
        }
        let end = &lab.ends[me];
        let count = u64::from(packet.psns);
        let mut due = None;
        let call = if packet.kind.is_request() {
            let near = match end.qp_type {
                QpType::Rc => end.expected,
                _ => end.next,
            };
            let first = extend(near, packet.psn);
            if alive {
                due = self.expect_request(me, &packet, first, op);
            }
            let end = first + count;
            Call::Request { first, end, op }
        } else {
            let last = extend(end.una, packet.psn) + count;
            // An ACK does not make the requester go back, unless a READ or atomic before it should
            // have been answered.
            let ack = match packet.kind {
                PacketKind::Ack(aeth) => matches!(aeth.syndrome, AethSyndrome::Ack { .. }),
                kind => kind == PacketKind::Cnp,
            };
            let end = &mut self.lab.ends[me];
            end.sign |= !ack || end.reads > 0;
            Call::Response { end: last }
        };
        self.lab.call = call;
        let rnr = match packet.kind {
            PacketKind::Ack(aeth) => match aeth.syndrome {
                AethSyndrome::Rnr { timer } => Some((packet.psn, timer)),
                _ => None,
            },
            _ => None,
        };
        let una = self.lab.ends[me].una;
        let last = packet.last;
        let now = self.lab.now;
        if !is_cnp(&packet) {
            self.lab.beside_hands(me, &packet);
        }
        self.lab.expect_cnp(me, &packet);
        self.qps[me].handle_packet(&mut self.lab.host(me), now, packet);
        self.after_request(me, op, last, due);
        self.after(me, false);
        if let Some((psn, timer)) = rnr {
            self.after_rnr(me, una, psn, timer);
        }
        self.carry(me);
        self.lab.after_marked(me);
        if self.whim.chance(80) {
            self.poll(me);
        } else {
            let at = now + self.whim.below(400);
            self.air.at(at, What::Poll(me));
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
        let lab = &mut self.lab;
        let end = &mut lab.ends[me];
        if !end.strict {
            return None;
        }
        let queue = &lab.queues[end.queue];
        // On an SRQ, the beginning of a message aborts the message before it together with its
        // receive.
        let aborts = queue.shared && end.qp_type == QpType::Uc && packet.first;
        let held = end.held.filter(|_| !aborts);
        let ready = held.or(queue.posts.get(queue.taken).copied());
        let ready = ready.filter(|_| !queue.dead);
        let hears = end.hears() || end.state == QpState::Sqe;
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
                } else if end.hears() {
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
                    recv.fault == Fault::None && !recv.vanishing && recv.capacity >= op.length
                };
                let room = !op.takes_recv() || ready.is_some_and(fine);
                let fine = whole && room && op.fault == Fault::None && !op.vanishing;
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
                    recv.fault == Fault::None && !recv.vanishing && room
                };
                let fine = ready.is_some_and(fine) && op.fault == Fault::None && !op.vanishing;
                fine.then_some(op.length)
            }
        }
    }

    /// Checks that an unreliable message without a fault was executed.
    fn after_request(&mut self, me: usize, op: Option<u32>, last: bool, due: Option<u32>) {
        let end = &mut self.lab.ends[me];
        let Some(op) = op.filter(|_| end.strict && end.qp_type != QpType::Rc) else {
            return;
        };
        let ours = &self.lab.ops[op as usize];
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
    fn after_rnr(&mut self, me: usize, una: u64, psn: u32, timer: u8) {
        let now = self.lab.now;
        let end = &mut self.lab.ends[me];
        if !end.strict || end.una != extend(end.una, psn) || end.una >= end.hi {
            return;
        }
        if !matches!(end.state, QpState::Rts | QpState::Sqd) {
            return;
        }
        if end.waits {
            // This is a copy of the RNR NAK for which the sender is waiting.
            return;
        }
        end.waits = true;
        end.rnr_seen = if end.una == una { end.rnr_seen + 1 } else { 1 };
        end.rnr_until = now + rnr_delay_ns(timer);
        end.progress_at = end.rnr_until;
        assert!(
            end.attr.rnr_retry == 7 || end.rnr_seen <= u32::from(end.attr.rnr_retry),
            "RNR NAK {} of {} is not the last",
            end.rnr_seen,
            end.attr.rnr_retry
        );
    }

    /// Polls a queue pair until it has nothing more to do.
    pub(super) fn poll(&mut self, me: usize) {
        if self.lab.ends[me].frozen {
            return;
        }
        for _ in 0..20_000 {
            let end = &self.lab.ends[me];
            let mut budget: Budget = end.budget;
            let now = self.lab.now;
            self.lab.call = Call::Own;
            let more = self.qps[me].poll(&mut self.lab.host(me), now, &mut budget);
            self.after(me, false);
            self.carry(me);
            self.check_left(me);
            let upset = std::mem::take(&mut self.lab.ends[me].upset);
            if !more && !upset {
                self.rest(me);
                return;
            }
            if self.whim.chance(10) {
                let at = now + self.whim.below(300);
                self.air.at(at, What::Poll(me));
                return;
            }
        }
        panic!("poll always has more to do");
    }

    /// Checks that sends which an unreliable service reports as complete have left.
    fn check_left(&mut self, me: usize) {
        let end = &mut self.lab.ends[me];
        if !end.strict || end.qp_type == QpType::Rc || end.failed_before {
            end.checked = end.done;
            return;
        }
        while end.checked < end.done {
            let op = &self.lab.ops[end.sq[end.checked] as usize];
            let over_mtu = end.qp_type == QpType::Ud && op.length > end.attr.path_mtu;
            let left = op.psns > 0 && end.hi >= op.end();
            assert!(
                left || over_mtu || op.is_silent() || end.send_failed,
                "complete, but not sent: {op:?}"
            );
            end.checked += 1;
        }
    }

    /// Checks a queue pair that has nothing more to do now.
    fn rest(&mut self, me: usize) {
        let (now, end) = (self.lab.now, &mut self.lab.ends[me]);
        end.again = None;
        let deadline = self.qps[me].next_deadline();
        // If no request is outstanding, the QP can only wait for the end of a pause.
        let pauses = end.cnps.controls && end.is_modern() && deadline.is_some();
        self.lab.beside_rests(me, pauses);
        let end = &mut self.lab.ends[me];
        if let Some(at) = deadline {
            assert!(at > now, "a deadline has passed and nothing happened");
            if end.timer.is_none_or(|timer| timer > at) {
                end.timer = Some(at);
                self.air.at(at, What::Timer(me));
            }
        }
        let end = &self.lab.ends[me];
        if end.qp_type == QpType::Rc && end.strict && end.hears() {
            // IBTA 9.7.5.2: each gap is reported once, and none is left to the peer's timer.
            assert!(
                end.gap.is_none_or(|gap| gap != end.expected
                    || end.gap_nak == Some(gap)
                    || end.fault_nak == Some(gap)),
                "a gap at {:#x} is not reported",
                end.expected
            );
        }
        let waits = end.hi > end.una && matches!(end.state, QpState::Rts | QpState::Sqd);
        if end.qp_type == QpType::Rc && waits && end.strict {
            if let Some(timeout) = end.timeout() {
                assert!(
                    deadline.is_some(),
                    "no deadline: the queue pair waits for ever"
                );
                // IBTA 9.7.6: the timer expires within four times its value.
                let tries = u64::from(end.attr.retry_cnt) + 1;
                let bound = end.progress_at + tries * 4 * timeout + 1_000_000;
                assert!(
                    now <= bound,
                    "nothing has happened since {}",
                    end.progress_at
                );
            }
        }
    }

    /// Handles a deadline that passes.
    pub(super) fn expire(&mut self, me: usize) {
        let end = &mut self.lab.ends[me];
        if end.timer.is_some_and(|timer| timer <= self.lab.now) {
            end.timer = None;
        }
        self.poll(me);
    }

    /// Moves a queue pair to a state.
    pub(super) fn modify(&mut self, me: usize, to: QpState, attr: &Attr) {
        self.lab.say(me, || format!("is moved to {to:?}"));
        self.lab.call = Call::Own;
        let now = self.lab.now;
        self.beside_modifies(me, to, attr);
        let result = self.qps[me].handle_modify(&mut self.lab.host(me), now, to, attr);
        assert_eq!(result, Ok(()), "to {to:?}");
        self.after(me, true);
        self.carry(me);
    }

    /// Informs a queue pair that receives were posted.
    pub(super) fn tell_receives(&mut self, me: usize) {
        if self.lab.ends[me].frozen {
            return;
        }
        self.lab.call = Call::Own;
        let now = self.lab.now;
        self.beside_posts_receives(me);
        self.qps[me].handle_receives_posted(&mut self.lab.host(me), now);
        self.after(me, false);
        self.carry(me);
    }

    /// Informs a queue pair that one of its queues died.
    pub(super) fn fail(&mut self, me: usize, cause: Syndrome) {
        self.lab.say(me, || format!("fails: {cause:?}"));
        self.lab.call = Call::Own;
        let event = Some(EventType::QpFatal);
        let now = self.lab.now;
        self.beside_fails(me);
        self.qps[me].handle_failure(&mut self.lab.host(me), now, event, cause);
        self.after(me, true);
        self.carry(me);
    }

    /// Informs a queue pair that the memory of a packet is gone.
    pub(super) fn source_fault(&mut self, me: usize, packet: &Packet, cause: Syndrome) {
        self.lab.say(me, || format!("memory is gone: {cause:?}"));
        self.lab.call = Call::Own;
        let now = self.lab.now;
        self.beside_loses(me, packet);
        self.qps[me].handle_source_fault(&mut self.lab.host(me), now, packet, cause);
        self.after(me, false);
        self.lab.ends[me].upset = true;
        self.lab.ends[me].sign = true;
        let at = self.lab.now;
        self.air.at(at, What::Poll(me));
    }

    /// Checks the conditions that must hold after each call. `asked` is true if the driver
    /// requested a change of state.
    fn after(&mut self, me: usize, asked: bool) {
        self.lab.beside_compares(me, &self.qps[me]);
        let snap = self.qps[me].snapshot();
        let lab = &mut self.lab;
        let before = lab.ends[me].state;
        lab.ends[me].state = snap.state;
        lab.ends[me].started |= snap.state == QpState::Rts;
        if before != snap.state {
            lab.say(me, || format!("was in {before:?}"));
        }
        let end = &lab.ends[me];
        let live = !matches!(snap.state, QpState::Reset | QpState::Init);
        let same_life = lab.ends[end.peer].life == end.life;
        if end.strict && end.qp_type == QpType::Rc && live && same_life {
            let expected = extend(end.expected, snap.expected_psn);
            if expected != end.expected {
                self.lab.after_execution(me, expected);
            }
            let end = &self.lab.ends[me];
            assert_eq!(
                snap.msn,
                (end.msn & 0xff_ffff) as u32,
                "the number of messages is wrong"
            );
            let una = extend(end.una, snap.una_psn);
            if una != end.una && end.started {
                self.after_progress(me, una);
            }
        } else if end.strict && end.qp_type == QpType::Uc && live {
            let una = extend(end.una, snap.una_psn);
            lab.ends[me].una = una;
        }
        self.check_change(me, before, asked);
        let lab = &mut self.lab;
        let end = &mut lab.ends[me];
        end.failed_before |= end.send_failed;
        end.received = 0;
        end.failures = 0;
        end.flushes = 0;
        end.events.clear();
        lab.call = Call::Own;
    }

    /// Advances the oldest unacknowledged PSN, and checks that the requester may do so.
    fn after_progress(&mut self, me: usize, una: u64) {
        let lab = &mut self.lab;
        let end = &lab.ends[me];
        let mut expected = lab.ends[end.peer].expected;
        if let Some(op) = lab.op_at(me, expected) {
            // The packets of a super-packet before the one for which the receive has no room count
            // as executed.
            let op = &lab.ops[op as usize];
            expected = expected.max(op.first + u64::from(op.done / end.attr.path_mtu));
        }
        assert!(
            end.una < una && una <= end.hi && una <= expected,
            "{una:#x} counts as acknowledged, after {:#x}; the peer expects {expected:#x}",
            end.una
        );
        if let Some(op) = lab.op_at(me, una) {
            let op = &lab.ops[op as usize];
            let due = (una - op.first) * u64::from(end.attr.path_mtu);
            assert!(
                !op.responds() || u64::from(op.got) == due,
                "more of a READ counts as done than has arrived: {op:?}"
            );
        }
        let (now, mut psn, mut back) = (lab.now, end.una, 0);
        while psn < una {
            let op = lab.op_at(me, psn).expect("acknowledged, but never sent");
            let op = &lab.ops[op as usize];
            psn = op.message_at(psn).1;
            if op.responds() && psn <= una {
                let whole = psn < op.end() || op.got == op.returns();
                assert!(whole, "complete before all data arrived: {op:?}");
                back += 1;
            }
        }
        let end = &mut lab.ends[me];
        end.reads -= back;
        end.una = una;
        // An acknowledgement that goes no further than the retransmission shows that the packets
        // after it are missing.
        end.sign |= end.is_modern() && una == end.again_to;
        end.is_probe = false;
        end.twice = None;
        end.rounds = 0;
        end.rnr_seen = 0;
        // Progress ends the wait for a receive.
        end.rnr_until = 0;
        end.waits = false;
        end.thawed = false;
        end.progress_at = now;
    }

    /// Checks that the state was allowed to change, and that events and flushes agree with it.
    fn check_change(&mut self, me: usize, before: QpState, asked: bool) {
        let lab = &mut self.lab;
        let half = lab.op_at(me, lab.ends[me].hi).is_some();
        let end = &mut lab.ends[me];
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
                    let all = end.hi == end.una && !half || end.qp_type != QpType::Rc;
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
                let dead = lab.queues[end.queue].dead;
                assert!(
                    asked || errors > 0 || end.failures > 0 || dead,
                    "to ERR without a reason"
                );
                end.last_wqe = true;
                end.rnr_until = 0;
            }
            QpState::Sqe => {
                assert!(
                    end.qp_type != QpType::Rc && end.failures > 0,
                    "to SQE without a reason"
                );
            }
            _ => assert!(asked, "from {before:?} to {state:?} without a cause"),
        }
        let (hears, peer, is_ud) = (end.hears(), end.peer, end.qp_type == QpType::Ud);
        end.disturbed |= !hears;
        if !hears && !is_ud {
            lab.ends[peer].alone = true;
            lab.ends[peer].disturbed = true;
        }
    }
}
