// SPDX-License-Identifier: GPL-2.0 OR MIT

//! One end of a connection as the model knows it. PSNs are counted in 64 bits here, so that nothing wraps.

use super::super::link::Mode;
use super::congestion::Cnps;
use std::collections::VecDeque;
use verbena_roce::host::EventType;
use verbena_roce::packet::Packet;
use verbena_roce::qp::QpType;
use verbena_roce::wire::Path;
use verbena_roce::{Attr, Budget, Counters, QpState};

/// PSNs of the model begin here, so that some lie before the first.
pub const PSN_BASE: u64 = 1 << 40;

/// The PSN of 64 bits that `psn` is when it is near to another.
pub fn extend(near: u64, psn: u32) -> u64 {
    let ahead = psn.wrapping_sub(near as u32) & 0xff_ffff;
    if ahead < 1 << 23 {
        near + u64::from(ahead)
    } else {
        near + u64::from(ahead) - (1 << 24)
    }
}

/// READ or atomic that was executed and is to be answered.
#[derive(Clone, Copy, Debug)]
pub struct Pending {
    /// First PSN.
    pub first: u64,
    /// One after the last PSN.
    pub end: u64,
    /// First PSN that was not answered yet.
    pub sent: u64,
}

/// What the actor of an end may still do.
#[derive(Debug, Default)]
pub struct Actor {
    /// Times it acts.
    pub left: u32,
    /// Nanoseconds between two actions, on average.
    pub pace: u64,
    /// Longest message.
    pub longest: u32,
    /// Work requests with a fault, of 100.
    pub faults: u32,
    /// Changes of state and the like, of 100.
    pub turmoil: u32,
    /// Receives that come late, of 100.
    pub late: u32,
    /// Datagrams: who can be written to.
    pub others: Vec<usize>,
}

/// One end.
#[derive(Debug)]
pub struct End {
    /// Transport service.
    pub qp_type: QpType,
    /// Number on the wire.
    pub qpn: u32,
    /// Protection domain.
    pub pd: u32,
    /// The other end, of connected services.
    pub peer: usize,
    /// How its packets travel.
    pub mode: Mode,
    /// The way of its frames.
    pub path: Path,
    /// Its receive queue.
    pub queue: usize,
    /// What one call of poll may do.
    pub budget: Budget,
    /// Window in packets.
    pub window: u32,
    /// The ACK timer is not shorter.
    pub min_timeout: u64,
    /// Behind a wire it recovers by itself: it goes back by one packet.
    pub recovers: bool,
    /// Then it does so after this time at the earliest.
    pub min_probe: u64,
    /// What it says of what is marked.
    pub cnps: Cnps,
    /// Attributes of its present life.
    pub attr: Attr,
    /// The model knows exactly what has to happen. False: only what is safe counts.
    pub strict: bool,
    /// Counts resets.
    pub life: u32,
    /// The machine it is in does nothing and hears nothing.
    pub frozen: bool,
    /// State after the last call.
    pub state: QpState,
    /// What it does by itself.
    pub actor: Actor,

    /// It was in RTS.
    pub started: bool,
    /// Sends of which it was checked that they have left.
    pub checked: usize,
    /// A send has failed in this life.
    pub failed_before: bool,
    /// Something came from the peer, or its memory faulted, since it last went back.
    pub sign: bool,
    /// It was frozen since the last progress: timers expire when it goes on.
    pub thawed: bool,
    /// Something has happened since poll was called.
    pub upset: bool,
    /// One more may start in SQD.
    pub may_start: bool,
    /// Send queue.
    pub sq: Vec<u32>,
    /// Sends that are complete.
    pub done: usize,
    /// Index of the next work request to see on the wire.
    pub assign: usize,
    /// One after the highest PSN sent.
    pub hi: u64,
    /// One after the last request sent.
    pub at: u64,
    /// Where it goes on after it has sent something again.
    pub resume: u64,
    /// One after the last packet that was sent again.
    pub again_to: u64,
    /// Time alone has made it go back.
    pub is_probe: bool,
    /// The peer asked for this PSN: it may be sent a second time, until then.
    pub twice: Option<(u64, u64)>,
    /// Oldest PSN that is not acknowledged.
    pub una: u64,
    /// READs and atomics sent that have not come back.
    pub reads: u32,
    /// Nothing may be sent until then.
    pub rnr_until: u64,
    /// An RNR NAK came and nothing was sent since.
    pub waits: bool,
    /// RNR NAKs since the last progress.
    pub rnr_seen: u32,
    /// Times that it went back since the last progress.
    pub rounds: u32,
    /// When it made progress.
    pub progress_at: u64,
    /// A send failed: what follows flushes.
    pub send_failed: bool,
    /// The peer may be unable to answer: retries may run out.
    pub alone: bool,
    /// Something was lost, doubled, delayed or refused since the start.
    pub disturbed: bool,
    /// The word at the peer that its atomics change: address, key, value.
    pub word: (u64, u32, u64),

    /// PSN expected.
    pub expected: u64,
    /// Messages executed.
    pub msn: u64,
    /// READs and atomics to answer.
    pub pending: VecDeque<Pending>,
    /// One after the highest PSN answered.
    pub answered: u64,
    /// Lowest PSN of the duplicates that may be answered again.
    pub again: Option<u64>,
    /// The PSN expected when a packet came that was ahead of it.
    pub gap: Option<u64>,
    /// PSN of the last NAK for a gap.
    pub gap_nak: Option<u64>,
    /// PSN of the last NAK that told that its sender's memory is gone.
    pub fault_nak: Option<u64>,
    /// Receive taken and not complete.
    pub held: Option<u32>,
    /// UC: the message under way and its bytes so far.
    pub message: Option<(u32, u32)>,
    /// UC: PSN after the last packet.
    pub next: u64,

    /// Packets to send.
    pub out: Vec<Packet>,
    /// Events of this call.
    pub events: Vec<EventType>,
    /// COMM_EST was reported.
    pub comm_est: bool,
    /// SQ_DRAINED is to come.
    pub drain: bool,
    /// QP_LAST_WQE_REACHED is to come.
    pub last_wqe: bool,
    /// Errors of the responder that were reported, by an event or a receive.
    pub blamed: u32,
    /// Completions of this call: in error, flushed.
    pub failures: u32,
    /// Completions that were flushes, of this call.
    pub flushes: u32,
    /// Receives completed in this call.
    pub received: u32,
    /// What the counters have to say.
    pub books: Counters,
    /// Completions of the send and the receive queue, as numbers.
    pub digest: [u64; 2],
    /// When its timer is set.
    pub timer: Option<u64>,
}

impl End {
    /// Whether requests are processed.
    pub fn hears(&self) -> bool {
        matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd) && !self.frozen
    }

    /// Forgets a life.
    pub fn forget(&mut self) {
        self.life += 1;
        self.started = false;
        self.thawed = false;
        self.sign = false;
        self.checked = 0;
        self.failed_before = false;
        self.sq.clear();
        self.done = 0;
        self.assign = 0;
        self.reads = 0;
        self.rnr_until = 0;
        self.rnr_seen = 0;
        self.waits = false;
        self.rounds = 0;
        self.send_failed = false;
        self.alone = false;
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
        self.timer = None;
    }

    /// Begins a life with these attributes.
    pub fn begin(&mut self) {
        let first = PSN_BASE + u64::from(self.attr.sq_psn);
        (self.hi, self.at, self.una) = (first, first, first);
        (self.resume, self.again_to) = (first, first);
        (self.is_probe, self.twice) = (false, None);
        let expected = PSN_BASE + u64::from(self.attr.rq_psn);
        (self.expected, self.next, self.answered) = (expected, expected, expected);
    }

    /// Responses that one READ request asks for: half a window, and between local peers all.
    pub fn read_part(&self) -> u32 {
        if self.attr.local_peer {
            u32::MAX
        } else {
            (self.window / 2).max(1)
        }
    }

    /// And the fewest: where routers mark or trips grow, the window is smaller, but a request for each response would fill the
    /// path too.
    pub fn least_part(&self) -> u32 {
        let most = self.read_part();
        if self.cnps.controls && self.is_modern() {
            most.min(8)
        } else {
            most
        }
    }

    /// Whether it recovers by itself.
    pub fn is_modern(&self) -> bool {
        self.recovers && !self.attr.local_peer
    }

    /// The local ACK timeout, if there is one.
    pub fn timeout(&self) -> Option<u64> {
        verbena_roce::qp::timers::ack_timeout_ns(self.attr.timeout).map(|t| t.max(self.min_timeout))
    }
}
