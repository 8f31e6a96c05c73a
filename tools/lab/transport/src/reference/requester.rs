// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A reliable requester (IBTA 9.7.3, 9.7.6, 9.9.2): the requests that each response acknowledges,
//! the retry that it costs, and the moments when a request may be sent.

use super::credit_reference::CreditReference;
use super::tables::{near, BASE};
use super::work::ReferenceWork;
use std::ops::RangeInclusive;
use verbena_transport::host::{EventType, WcStatus, WqeOpcode};
use verbena_transport::packet::{Packet, PacketKind};
use verbena_transport::{Attr, QpSnapshot, QpState};

/// The reference's state of a reliable requester.
#[derive(Debug, Default)]
pub struct ReferenceRequester {
    pub(super) attr: Attr,
    /// True if the requester keeps to end-to-end credits.
    pub(super) credits: bool,
    pub(super) min_timeout_ns: u64,
    /// True if the requester may send the oldest packet again alone, and then go on where it was.
    pub(super) recovers: bool,
    /// Bytes of responses ahead of a missing one that the requester keeps.
    pub(super) keep_bytes: u64,
    /// Responses kept ahead of a missing one, by PSN.
    pub(super) kept: Vec<(u64, Packet)>,
    /// State of the QP; `None` stands for RESET.
    pub(super) state: Option<QpState>,
    pub(super) is_unjudged: bool,
    pub(super) works: Vec<ReferenceWork>,
    /// Number of work requests that have PSNs or were executed.
    pub(super) begun: usize,
    /// Oldest PSN that is not acknowledged.
    pub(super) una: u64,
    /// PSN that is sent next.
    pub(super) at: u64,
    /// PSNs at which the requester may go on after a retransmission: the position that it left each
    /// time that it went back.
    pub(super) resume: Vec<u64>,
    /// PSN after the last one that was sent again.
    pub(super) again_to: u64,
    /// PSN after the last one sent.
    pub(super) hi: u64,
    /// True if a request was sent in this call.
    pub(super) sent: bool,
    /// True if the last packet sent asks for an answer.
    pub(super) asks: bool,
    pub(super) retries: u8,
    pub(super) rnr_retries: u8,
    /// Time in ns before which the RNR timer forbids any request.
    pub(super) rnr_until_ns: u64,
    /// End of the wait after an RNR NAK, in ns, that was ended early because the peer, which is on
    /// the same NIC, has reported receives. 0 if there was none since the last progress.
    pub(super) ended_early_ns: u64,
    /// Earliest time in ns at which the ACK timer may have been started.
    pub(super) timer_from_ns: u64,
    /// True if an RNR NAK came and no request was sent since.
    pub(super) waits: bool,
    /// True if a NAK came for a PSN that is about to be sent anyway. The reference leaves open
    /// whether that costs a retry.
    pub(super) again: bool,
    /// PSN to which the requester goes back if that NAK does cost a retry.
    pub(super) goes_to: u64,
    /// PSN of the gap that the requester has already gone back for.
    pub(super) implied: Option<u64>,
    /// PSN of a gap for which the requester may have gone back already, or which may be about to be
    /// sent anyway; the reference leaves that open.
    pub(super) open: Option<u64>,
    /// Work requests of which one has to fail, and the status that it has to fail with.
    pub(super) failure: Option<(RangeInclusive<usize>, WcStatus)>,
    pub(super) limits: CreditReference,
    /// True if SQ_DRAINED is owed after all requests are acknowledged.
    pub(super) drain: bool,
}

impl ReferenceRequester {
    /// Returns a requester in RESET.
    pub fn new(credits: bool, min_timeout: u64, recovers: bool, keep_bytes: u64) -> Self {
        Self {
            credits,
            min_timeout_ns: min_timeout,
            recovers,
            keep_bytes,
            ..Self::default()
        }
    }

    /// Applies the driver's attributes, and starts from the initial PSN on the way to RTR.
    pub fn modify(&mut self, to: QpState, attr: &Attr) {
        match to {
            QpState::Rtr => {
                let psn = BASE + u64::from(attr.sq_psn);
                *self = Self {
                    una: psn,
                    at: psn,
                    hi: psn,
                    retries: attr.retry_cnt,
                    rnr_retries: attr.rnr_retry,
                    ..Self::new(
                        self.credits,
                        self.min_timeout_ns,
                        self.recovers,
                        self.keep_bytes,
                    )
                };
                self.limits.begin(self.credits);
            }
            QpState::Reset => self.works.clear(),
            QpState::Sqd => self.drain = attr.sqd_notify,
            QpState::Rts => self.drain = false,
            _ => {}
        }
        self.attr = *attr;
        self.state = Some(to);
    }

    /// Stops judging the requester until it goes to RTR again.
    pub fn stop_judging(&mut self) {
        self.is_unjudged = true;
    }

    /// Adds a work request that was posted.
    pub fn post(&mut self, work: ReferenceWork) {
        self.works.push(work);
    }

    pub(super) fn runs(&self) -> bool {
        matches!(self.state, Some(QpState::Rts | QpState::Sqd))
    }

    /// True if the requester recovers the oldest packet alone instead of going back for all.
    pub(super) fn recovers_early(&self) -> bool {
        self.recovers && !self.attr.local_peer
    }

    /// Notes the position that the requester leaves when it goes back.
    pub(super) fn leave(&mut self) {
        let una = self.una;
        self.resume.retain(|psn| *psn > una);
        if !self.resume.contains(&self.at) {
            self.resume.push(self.at);
        }
    }

    pub(super) fn work_at(&self, psn: u64) -> Option<usize> {
        let holds = |w: &ReferenceWork| w.first <= psn && psn < w.end;
        self.works[..self.begun].iter().rposition(holds)
    }

    /// Checks a request that leaves at `now` (ns).
    pub fn on_transmit(&mut self, packet: &Packet, now: u64) {
        if self.is_unjudged {
            return;
        }
        assert!(
            self.runs(),
            "reference: 10.3.1: a request in {:?}: {packet:?}",
            self.state
        );
        assert!(
            now >= self.rnr_until_ns,
            "reference: 9.7.5.2.8: a request leaves before the RNR timer ends at {}",
            self.rnr_until_ns
        );
        let psn = near(self.at, packet.psn);
        let resumes = self.recovers_early() && self.resume.contains(&psn);
        assert!(
            psn == self.at || psn == self.una || resumes,
            "reference: 9.7.3: PSN {psn:#x} leaves, not {:#x}, {:#x} or one of {:x?}",
            self.at,
            self.una,
            self.resume
        );
        if psn < self.at {
            self.leave();
        }
        if self.una == self.hi {
            self.timer_from_ns = now;
        }
        if psn == self.hi && self.work_at(psn).is_none() {
            self.begin();
        }
        let hi = self.hi;
        let index = self.work_at(psn).expect("a PSN of no work request");
        let work = &mut self.works[index];
        let kind_fits = match packet.kind {
            PacketKind::Send(_) => work.is_send(),
            PacketKind::Write { .. } => {
                matches!(work.opcode, WqeOpcode::RdmaWrite | WqeOpcode::RdmaWriteImm)
            }
            PacketKind::ReadRequest(_) => work.opcode == WqeOpcode::RdmaRead,
            PacketKind::Atomic { .. } => work.is_atomic(),
            PacketKind::AtomicWrite(_) => work.opcode == WqeOpcode::AtomicWrite,
            PacketKind::Flush(..) => work.opcode == WqeOpcode::Flush,
            _ => false,
        };
        assert!(kind_fits, "reference: 9.7.3: {packet:?} of {work:?}");
        let mut count = u64::from(packet.psns);
        if let PacketKind::ReadRequest(reth) = packet.kind {
            count = u64::from(reth.length.div_ceil(self.attr.path_mtu).max(1));
            work.asked.push((psn, psn + count));
            if psn == hi && psn > work.first {
                // Each part of a READ is a message of its own.
                self.limits.on_transmit(false);
            }
        }
        let work = &self.works[index];
        if work.is_send() && work.trusted && psn == hi && psn > work.first {
            let known = self.una > work.first || self.limits.has_credits();
            assert!(
                known,
                "reference: 9.7.7.2: more than one packet of a SEND without a credit"
            );
        }
        if work.is_send() && work.trusted && psn == work.first && psn == hi {
            assert!(
                count == 1 && packet.ack_req,
                "reference: 9.7.7.2: the first packet of a SEND without a credit goes alone and asks"
            );
        }
        if psn < hi {
            self.again_to = psn + count;
        }
        self.sent = true;
        self.waits = false;
        self.at = psn + count;
        self.hi = hi.max(self.at);
        self.asks = packet.ack_req || work.responds();
    }

    /// Gives PSNs to the next work request, which is sent for the first time.
    fn begin(&mut self) {
        let mut index = self.begun;
        while let Some(work) = self.works.get_mut(index) {
            if !work.is_silent() {
                break;
            }
            assert!(
                work.executed,
                "reference: 10.8.3: what follows is sent before {work:?}"
            );
            (work.first, work.end, work.due) = (self.hi, self.hi, self.hi);
            index += 1;
        }
        let fence = self.works.get(index).is_some_and(|w| w.fence);
        let waits = self.works[..index]
            .iter()
            .any(|w| w.responds() && w.due < w.end);
        assert!(
            !(fence && waits),
            "reference: 10.8.3.3: a fence does not hold"
        );
        let mtu = self.attr.path_mtu;
        let work = &mut self.works[index];
        let count = if work.is_atomic() || work.is_placed() {
            1
        } else {
            work.length.div_ceil(mtu).max(1)
        };
        (work.first, work.due) = (self.hi, self.hi);
        work.end = self.hi + u64::from(count);
        work.trusted = self.limits.on_transmit(work.takes());
        self.begun = index + 1;
    }

    /// Checks the execution of a local invalidate or a fast registration. `valid` is true if the
    /// work request's key can be used for that.
    pub fn on_local_operation(&mut self, opcode: WqeOpcode, valid: bool) {
        if self.is_unjudged {
            return;
        }
        let next = self
            .works
            .iter()
            .position(|w| w.is_silent() && !w.executed && !w.over);
        let Some(index) = next else {
            panic!("reference: {opcode:?}, and none is posted");
        };
        let before = &self.works[..index];
        let back = before
            .iter()
            .all(|w| !w.responds() || w.end > 0 && w.due == w.end || w.over);
        let work = &self.works[index];
        assert_eq!(work.opcode, opcode, "reference: 10.8.3: out of order");
        assert!(
            back || !work.fence,
            "reference: 10.8.3.3: a fence does not hold: {work:?}"
        );
        if opcode == WqeOpcode::LocalInv {
            let done = |w: &ReferenceWork| w.executed || w.over || w.end > 0 && w.end <= self.una;
            let all = self.una == self.hi && before.iter().all(done);
            assert!(
                all,
                "reference: 10.6.5.1: a local invalidate passes what is not done"
            );
        }
        self.works[index].executed = valid;
        if !valid {
            self.failure = Some((index..=index, WcStatus::MwBindErr));
        }
    }

    /// Checks the completion of a work request. `local` is true if a local error explains a
    /// failure.
    pub fn on_completion(&mut self, index: usize, status: WcStatus, local: bool) {
        for work in &mut self.works[..=index] {
            work.over = true;
        }
        if self.is_unjudged || status == WcStatus::WrFlushErr {
            return;
        }
        let work = &self.works[index];
        if status == WcStatus::Success {
            let done = work.executed || work.end > 0 && work.end <= self.una;
            assert!(
                done,
                "reference: 9.7.3: complete before it is acknowledged: {work:?}"
            );
            return;
        }
        match self.failure.take() {
            Some((which, due)) => assert!(
                which.contains(&index) && status == due,
                "reference: 9.9.2: {index} fails as {status:?}, not one of {which:?} as {due:?}"
            ),
            None => {
                let retries = status == WcStatus::RetryExcErr && self.retries == 0;
                assert!(
                    local || retries,
                    "reference: 9.9.2: a send fails as {status:?}, and nothing is wrong: {work:?}"
                );
            }
        }
    }

    /// Compares the engine's state with the reference's after a call.
    pub fn compare(&mut self, snap: &QpSnapshot, events: &[EventType], now: u64) {
        if events.contains(&EventType::SqDrained) {
            self.drain = false;
        }
        self.state = Some(snap.state);
        self.check_kept();
        let sent = std::mem::take(&mut self.sent);
        let again = std::mem::take(&mut self.again);
        if self.is_unjudged || !self.runs() || self.failure.is_some() {
            return;
        }
        let mask = (1 << 24) - 1;
        assert_eq!(
            u64::from(snap.una_psn),
            self.una & mask,
            "reference: 9.7.6.1: the oldest PSN that is not acknowledged (left: the engine)"
        );
        if again && snap.retry_left + 1 == self.retries {
            self.retries = snap.retry_left;
            self.leave();
            self.at = self.at.min(self.goes_to.max(self.una));
        }
        if snap.retry_left + 1 == self.retries && now >= self.timer_from_ns + self.timeout_ns() {
            // The ACK timer has expired.
            self.retries = snap.retry_left;
            self.timer_from_ns = now;
            if !sent {
                self.at = self.una;
            }
        }
        assert_eq!(
            (snap.retry_left, snap.rnr_left),
            (self.retries, self.rnr_retries),
            "reference: 9.7.6: retries and RNR retries left (left: the engine)"
        );
    }

    /// Returns the local ACK timeout in ns (IBTA 9.7.6.1.3), with the minimum that transport.md
    /// describes.
    fn timeout_ns(&self) -> u64 {
        match self.attr.timeout {
            0 => u64::MAX / 2,
            n => (4_096 << n).max(self.min_timeout_ns),
        }
    }

    /// True if the next message may be held back until the peer, which is on the same NIC, reports
    /// a receive for it.
    fn holds_back(&self) -> bool {
        let next = self.works[self.begun..].iter().find(|w| !w.executed);
        let is_local = self.attr.local_peer && self.attr.rnr_retry == 7;
        is_local && self.limits.is_spent() && next.is_some_and(|w| w.takes())
    }

    /// Checks that nothing is owed when the queue pair says that it has nothing more to do now.
    /// `pauses` is true if congestion control holds requests back until a time that the queue pair
    /// reports.
    pub fn check_idle(&mut self, pauses: bool) {
        if self.is_unjudged || !self.runs() {
            return;
        }
        let failure = &self.failure;
        assert!(
            failure.is_none(),
            "reference: nothing is done, and a send is to fail: {failure:?}"
        );
        let begun = &self.works[..self.begun];
        let owed = begun
            .iter()
            .find(|w| w.signaled && !w.over && w.end <= self.una);
        assert!(
            owed.is_none(),
            "reference: 10.7.3.1: a completion is owed: {owed:?}"
        );
        if self.una < self.hi {
            assert!(
                self.at < self.hi || self.asks,
                "reference: 9.7.3: nothing that was sent asks for an acknowledgement"
            );
            return;
        }
        if pauses || self.holds_back() {
            return;
        }
        let half = begun.last().filter(|w| w.end > self.hi);
        assert!(
            half.is_none(),
            "reference: a message is sent in part: {half:?}"
        );
        if self.state == Some(QpState::Rts) {
            let left = self.works[self.begun..].iter().find(|w| !w.executed);
            assert!(
                left.is_none(),
                "reference: nothing is under way, and this is not sent: {left:?}"
            );
        }
        let drained = self.state != Some(QpState::Sqd) || !self.drain;
        assert!(drained, "reference: 10.3.1: SQ_DRAINED is owed");
    }
}
