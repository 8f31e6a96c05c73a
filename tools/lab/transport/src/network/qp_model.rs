// SPDX-License-Identifier: GPL-2.0 OR MIT

//! One end of a connection as the model knows it. The model counts PSNs in 64 bits, so that they do
//! not wrap.

use super::super::link_model::LinkMode;
use super::cnp_model::CnpModel;
use std::collections::VecDeque;
use verbena_transport::host::EventType;
use verbena_transport::packet::Packet;
use verbena_transport::qp::QpType;
use verbena_transport::wire::Path;
use verbena_transport::{Attr, Budget, Counters, QpConfig, QpState};

/// Start of the model's PSNs, so that there are PSNs before the first one.
pub const PSN_BASE: u64 = 1 << 40;

/// Returns the 64-bit PSN of `psn` that is nearest to another.
pub fn nearest_psn(near: u64, psn: u32) -> u64 {
    let ahead = psn.wrapping_sub(near as u32) & 0xff_ffff;
    if ahead < 1 << 23 {
        near + u64::from(ahead)
    } else {
        near + u64::from(ahead) - (1 << 24)
    }
}

/// A READ or atomic that was executed and is to be answered.
#[derive(Clone, Copy, Debug)]
pub struct PendingAnswer {
    /// First PSN of the request.
    pub first: u64,
    /// PSN after the last one of the request.
    pub end: u64,
    /// First PSN that is not answered yet.
    pub sent: u64,
}

/// The actions that are left to the actor of an end.
#[derive(Debug, Default)]
pub struct ProgramModel {
    /// Number of times that the actor still acts.
    pub left: u32,
    /// Average time between two actions in nanoseconds.
    pub pace_ns: u64,
    /// Length of the longest message in bytes.
    pub longest: u32,
    /// Percentage of work requests with a fault.
    pub faults: u32,
    /// Percentage of actions that change states and the like.
    pub turmoil: u32,
    /// Percentage of receives that come late.
    pub late: u32,
    /// Datagrams: ends that can be addressed.
    pub others: Vec<usize>,
}

/// One end of a connection.
#[derive(Debug)]
pub struct QpModel {
    /// Transport service of the queue pair.
    pub qp_type: QpType,
    /// Queue pair number on the wire.
    pub qpn: u32,
    /// Protection domain of the queue pair.
    pub pd: u32,
    /// Index of the other end, for connected services.
    pub peer: usize,
    /// Mode in which the end's packets travel.
    pub mode: LinkMode,
    /// Path of the end's frames.
    pub path: Path,
    /// Index of the end's receive queue.
    pub queue: usize,
    /// Budget of one call of poll.
    pub budget: Budget,
    /// Window in packets.
    pub window: u32,
    /// Minimum of the ACK timeout in nanoseconds.
    pub min_timeout_ns: u64,
    /// True if on a wire the end sends the oldest packet alone again, instead of going back for
    /// all.
    pub recovers: bool,
    /// Shortest time in ns before the end does so.
    pub min_probe_ns: u64,
    /// CNPs that answer marked packets.
    pub cnps: CnpModel,
    /// Attributes of the current connection.
    pub attr: Attr,
    /// True if the model knows exactly the events to come. If false, only safety is checked.
    pub strict: bool,
    /// Number of resets of the end.
    pub life: u32,
    /// True if the end's machine is frozen: it neither acts nor receives.
    pub frozen: bool,
    /// State after the last call.
    pub state: QpState,
    /// Program that acts on this end.
    pub program: ProgramModel,

    /// True if the QP has been in RTS.
    pub started: bool,
    /// Number of sends that were checked to have left.
    pub checked: usize,
    /// True if a send has failed since the last reset.
    pub failed_before: bool,
    /// True if the end has had a reason other than its timer to go back since it last went back: a
    /// packet from the peer, or a fault of its memory.
    pub has_retry_cause: bool,
    /// True if the end was frozen since the last progress, so that timers expire when it goes on.
    pub thawed: bool,
    /// True if something has happened since poll was called.
    pub is_disturbed_in_poll: bool,
    /// True if one more send may start in SQD.
    pub may_start: bool,
    /// Work requests of the send queue.
    pub sq: Vec<u32>,
    /// Number of sends that are complete.
    pub done: usize,
    /// Index of the next work request that will appear on the wire.
    pub assign: usize,
    /// PSN after the highest one sent.
    pub sent_psn: u64,
    /// PSN after the last request sent.
    pub next_psn: u64,
    /// PSN at which the end goes on after a retransmission.
    pub resume: u64,
    /// PSN after the last packet that was sent again.
    pub again_to: u64,
    /// True if the timer alone made the end go back.
    pub is_probe: bool,
    /// PSN that the peer asked for, which may be sent a second time, and the time in ns up to which
    /// it may.
    pub second_retransmit: Option<(u64, u64)>,
    /// Oldest PSN that is not acknowledged.
    pub una_psn: u64,
    /// Number of READs and atomics sent that have not come back.
    pub reads: u32,
    /// Time in ns before which the RNR timer forbids any request.
    pub rnr_until_ns: u64,
    /// End of the wait after an RNR NAK, in ns, that a local peer has ended early by a report of
    /// receives; 0 if there was none since the last progress.
    pub rnr_ended_early_ns: u64,
    /// True if an RNR NAK came and no request was sent since.
    pub is_rnr_waiting: bool,
    /// Number of RNR NAKs since the last progress.
    pub rnr_seen: u32,
    /// Number of times that the end went back since the last progress.
    pub go_backs: u32,
    /// Time in ns of the last progress.
    pub progress_ns: u64,
    /// True if a send failed, so that all after it flush.
    pub send_failed: bool,
    /// True if the peer may be unable to answer, so that retries may run out.
    pub may_exhaust_retries: bool,
    /// True if a packet was lost, doubled, delayed or refused since the start.
    pub disturbed: bool,
    /// The word at the peer that the end's atomics change: address, key, value.
    pub word: (u64, u32, u64),

    /// PSN that the responder expects.
    pub expected: u64,
    /// Number of messages executed.
    pub msn: u64,
    /// READs and atomics to be answered.
    pub pending: VecDeque<PendingAnswer>,
    /// PSN after the highest one answered.
    pub answered: u64,
    /// Lowest PSN of the duplicates that may be answered again.
    pub again: Option<u64>,
    /// PSN that was expected when a packet ahead of it came.
    pub gap: Option<u64>,
    /// PSN of the last NAK for a gap.
    pub gap_nak: Option<u64>,
    /// PSN of the last NAK that reports that its sender's memory is gone.
    pub fault_nak: Option<u64>,
    /// Receive that is taken and not complete.
    pub held: Option<u32>,
    /// UC: the message in progress and its bytes so far.
    pub message: Option<(u32, u32)>,
    /// UC: PSN after the last packet.
    pub next: u64,

    /// Packets that the queue pair has sent in this call.
    pub out: Vec<Packet>,
    /// Events of this call.
    pub events: Vec<EventType>,
    /// True if COMM_EST was reported.
    pub comm_est: bool,
    /// True if SQ_DRAINED is due.
    pub drain: bool,
    /// True if QP_LAST_WQE_REACHED is due.
    pub last_wqe: bool,
    /// Number of errors of the responder that an event or a receive has reported.
    pub blamed: u32,
    /// Number of completions in error of this call, without flushes.
    pub failures: u32,
    /// Number of flushed completions of this call.
    pub flushes: u32,
    /// Number of receives completed in this call.
    pub received: u32,
    /// Expected values of the counters.
    pub expected_counters: Counters,
    /// Digests of the completions of the send and the receive queue.
    pub digest: [u64; 2],
    /// Time in ns for which the end's timer is set.
    pub timer_ns: Option<u64>,
}

impl QpModel {
    /// Returns a queue pair in RESET that has never worked. The caller sets its peer, mode, receive
    /// queue and budget.
    pub fn new(config: &QpConfig, attr: Attr, path: Path, program: ProgramModel) -> Self {
        Self {
            qp_type: config.qp_type,
            qpn: config.qpn,
            pd: config.pd,
            path,
            window: config.window,
            min_timeout_ns: config.min_timeout_ns,
            recovers: config.recovers,
            min_probe_ns: config.min_probe_ns,
            cnps: CnpModel::new(config.congestion_control),
            attr,
            life: 0,
            frozen: false,
            state: QpState::Reset,
            program,
            started: false,
            is_disturbed_in_poll: false,
            thawed: false,
            has_retry_cause: false,
            checked: 0,
            failed_before: false,
            may_start: true,
            sq: Vec::new(),
            done: 0,
            assign: 0,
            sent_psn: 0,
            next_psn: 0,
            resume: 0,
            again_to: 0,
            is_probe: false,
            second_retransmit: None,
            una_psn: 0,
            reads: 0,
            rnr_until_ns: 0,
            rnr_ended_early_ns: 0,
            rnr_seen: 0,
            is_rnr_waiting: false,
            go_backs: 0,
            progress_ns: 0,
            send_failed: false,
            disturbed: false,
            word: (0, 0, 0),
            expected: 0,
            msn: 0,
            pending: VecDeque::new(),
            answered: 0,
            again: None,
            gap: None,
            gap_nak: None,
            fault_nak: None,
            held: None,
            message: None,
            next: 0,
            out: Vec::new(),
            events: Vec::new(),
            comm_est: false,
            drain: false,
            last_wqe: false,
            blamed: 0,
            failures: 0,
            flushes: 0,
            received: 0,
            expected_counters: Counters::default(),
            digest: [0; 2],
            timer_ns: None,
            peer: 0,
            mode: LinkMode::Local,
            queue: 0,
            budget: Budget::new(1, 1),
            strict: true,
            may_exhaust_retries: false,
        }
    }

    /// True if the QP processes requests.
    pub fn processes_requests(&self) -> bool {
        matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd) && !self.frozen
    }

    /// Clears the state of the current connection.
    pub fn reset(&mut self) {
        self.life += 1;
        self.started = false;
        self.thawed = false;
        self.has_retry_cause = false;
        self.checked = 0;
        self.failed_before = false;
        self.sq.clear();
        self.done = 0;
        self.assign = 0;
        self.reads = 0;
        self.rnr_until_ns = 0;
        self.rnr_ended_early_ns = 0;
        self.rnr_seen = 0;
        self.is_rnr_waiting = false;
        self.go_backs = 0;
        self.send_failed = false;
        self.may_exhaust_retries = false;
        self.msn = 0;
        self.pending.clear();
        self.again = None;
        (self.gap, self.gap_nak, self.fault_nak) = (None, None, None);
        self.held = None;
        self.message = None;
        self.comm_est = false;
        self.drain = false;
        self.last_wqe = false;
        self.blamed = 0;
        self.timer_ns = None;
    }

    /// Starts a connection with the current attributes.
    pub fn start(&mut self) {
        let first = PSN_BASE + u64::from(self.attr.sq_psn);
        (self.sent_psn, self.next_psn, self.una_psn) = (first, first, first);
        (self.resume, self.again_to) = (first, first);
        (self.is_probe, self.second_retransmit) = (false, None);
        let expected = PSN_BASE + u64::from(self.attr.rq_psn);
        (self.expected, self.next, self.answered) = (expected, expected, expected);
    }

    /// Returns the most responses that one READ request asks for: half a window, and between local
    /// peers all.
    pub fn read_part(&self) -> u32 {
        if self.attr.local_peer {
            u32::MAX
        } else {
            (self.window / 2).max(1)
        }
    }

    /// Returns the fewest responses that one READ request asks for. With marks or growing round
    /// trips the window is smaller, but a request for each response would fill the path too.
    pub fn least_part(&self) -> u32 {
        let most = self.read_part();
        if self.cnps.controls && self.recovers_early() {
            most.min(8)
        } else {
            most
        }
    }

    /// True if the end sends the oldest packet alone again, instead of going back for all.
    pub fn recovers_early(&self) -> bool {
        self.recovers && !self.attr.local_peer
    }

    /// Returns the local ACK timeout in nanoseconds, if there is one.
    pub fn timeout_ns(&self) -> Option<u64> {
        verbena_transport::qp::timers::ack_timeout_ns(self.attr.timeout)
            .map(|t| t.max(self.min_timeout_ns))
    }
}
