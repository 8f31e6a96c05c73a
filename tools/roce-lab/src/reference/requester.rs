// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A reliable requester (IBTA 9.7.3, 9.7.6, 9.9.2): what each response acknowledges, which retry it costs, and when what may be
//! sent.

use super::limits::Limits;
use super::tables::{near, BASE};
use super::work::Work;
use std::ops::RangeInclusive;
use verbena_roce::host::{EventType, WcStatus, WqeOpcode};
use verbena_roce::packet::{Kind, Packet};
use verbena_roce::{Attr, QpState, Snapshot};

/// A reliable requester.
#[derive(Debug, Default)]
pub struct Requester {
    pub(super) attr: Attr,
    /// It keeps to credits.
    pub(super) credits: bool,
    pub(super) min_timeout: u64,
    /// It may send the oldest packet again alone, and go on where it was.
    pub(super) recovers: bool,
    /// Bytes that it keeps of responses that come ahead of one that is missing.
    pub(super) keep_bytes: u64,
    /// Those, by PSN.
    pub(super) kept: Vec<(u64, Packet)>,
    /// None: in RESET.
    pub(super) state: Option<QpState>,
    pub(super) loose: bool,
    pub(super) works: Vec<Work>,
    /// Work requests that have PSNs, or were executed.
    pub(super) begun: usize,
    /// Oldest PSN that is not acknowledged.
    pub(super) una: u64,
    /// PSN that is sent next.
    pub(super) at: u64,
    /// PSNs where it may go on when what it has sent again is sent: where it was each time that it went back.
    pub(super) resume: Vec<u64>,
    /// One after the last PSN that was sent again.
    pub(super) again_to: u64,
    /// One after the last PSN sent.
    pub(super) hi: u64,
    /// Something was sent in this call.
    pub(super) sent: bool,
    /// The last packet sent asks for an answer.
    pub(super) asks: bool,
    pub(super) retries: u8,
    pub(super) rnr_retries: u8,
    /// Nothing is sent before.
    pub(super) rnr_until: u64,
    /// The ACK timer was started then, or later.
    pub(super) timer_from: u64,
    /// An RNR NAK came, and nothing was sent since.
    pub(super) waits: bool,
    /// A NAK came for what is about to be sent anyway. Whether that is a retry is left open.
    pub(super) again: bool,
    /// Where it goes back to if it is one.
    pub(super) goes_to: u64,
    /// The gap at this PSN was asked for.
    pub(super) implied: Option<u64>,
    /// What is missing there may have been asked for, or be about to be sent anyway: that is left open.
    pub(super) open: Option<u64>,
    /// One of these work requests has to fail, and how.
    pub(super) failure: Option<(RangeInclusive<usize>, WcStatus)>,
    pub(super) limits: Limits,
    /// SQ_DRAINED is owed when all has come back.
    pub(super) drain: bool,
}

impl Requester {
    /// In RESET.
    pub fn new(credits: bool, min_timeout: u64, recovers: bool, keep_bytes: u64) -> Self {
        Self {
            credits,
            min_timeout,
            recovers,
            keep_bytes,
            ..Self::default()
        }
    }

    /// The driver gives it attributes, and a new life on the way to RTR.
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
                        self.min_timeout,
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

    /// Something happens that it has no opinion of.
    pub fn loosen(&mut self) {
        self.loose = true;
    }

    /// A work request is posted.
    pub fn post(&mut self, work: Work) {
        self.works.push(work);
    }

    pub(super) fn runs(&self) -> bool {
        matches!(self.state, Some(QpState::Rts | QpState::Sqd))
    }

    /// Whether it goes back by one packet.
    pub(super) fn is_modern(&self) -> bool {
        self.recovers && !self.attr.local_peer
    }

    /// It goes back from where it is.
    pub(super) fn leave(&mut self) {
        let una = self.una;
        self.resume.retain(|psn| *psn > una);
        if !self.resume.contains(&self.at) {
            self.resume.push(self.at);
        }
    }

    pub(super) fn work_at(&self, psn: u64) -> Option<usize> {
        let holds = |w: &Work| w.first <= psn && psn < w.end;
        self.works[..self.begun].iter().rposition(holds)
    }

    /// A request leaves.
    pub fn sends(&mut self, packet: &Packet, now: u64) {
        if self.loose {
            return;
        }
        assert!(
            self.runs(),
            "reference: 10.3.1: a request in {:?}: {packet:?}",
            self.state
        );
        assert!(
            now >= self.rnr_until,
            "reference: 9.7.5.2.8: a request leaves before the RNR timer ends at {}",
            self.rnr_until
        );
        let psn = near(self.at, packet.psn);
        let resumes = self.is_modern() && self.resume.contains(&psn);
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
            self.timer_from = now;
        }
        if psn == self.hi && self.work_at(psn).is_none() {
            self.begin();
        }
        let hi = self.hi;
        let index = self.work_at(psn).expect("a PSN of no work request");
        let work = &mut self.works[index];
        let kind_fits = match packet.kind {
            Kind::Send(_) => work.is_send(),
            Kind::Write { .. } => {
                matches!(work.opcode, WqeOpcode::RdmaWrite | WqeOpcode::RdmaWriteImm)
            }
            Kind::ReadRequest(_) => work.opcode == WqeOpcode::RdmaRead,
            Kind::Atomic { .. } => work.is_atomic(),
            Kind::AtomicWrite(_) => work.opcode == WqeOpcode::AtomicWrite,
            Kind::Flush(..) => work.opcode == WqeOpcode::Flush,
            _ => false,
        };
        assert!(kind_fits, "reference: 9.7.3: {packet:?} of {work:?}");
        let mut count = u64::from(packet.psns);
        if let Kind::ReadRequest(reth) = packet.kind {
            count = u64::from(reth.length.div_ceil(self.attr.path_mtu).max(1));
            work.asked.push((psn, psn + count));
            if psn == hi && psn > work.first {
                // Each part of a READ is a message.
                self.limits.sends(false);
            }
        }
        let work = &self.works[index];
        if work.is_send() && work.trusted && psn == hi && psn > work.first {
            let known = self.una > work.first || self.limits.are_kept();
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

    /// The next work request is sent for the first time.
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
        work.trusted = self.limits.sends(work.takes());
        self.begun = index + 1;
    }

    /// A local invalidate or a fast registration is executed; `valid`: its key can be used for that.
    pub fn executes(&mut self, opcode: WqeOpcode, valid: bool) {
        if self.loose {
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
            let done = |w: &Work| w.executed || w.over || w.end > 0 && w.end <= self.una;
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

    /// A work request completes.
    pub fn completes(&mut self, index: usize, status: WcStatus, local: bool) {
        for work in &mut self.works[..=index] {
            work.over = true;
        }
        if self.loose || status == WcStatus::WrFlushErr {
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

    /// Compares the engine with this after a call.
    pub fn compare(&mut self, snap: &Snapshot, events: &[EventType], now: u64) {
        if events.contains(&EventType::SqDrained) {
            self.drain = false;
        }
        self.state = Some(snap.state);
        self.check_kept();
        let sent = std::mem::take(&mut self.sent);
        let again = std::mem::take(&mut self.again);
        if self.loose || !self.runs() || self.failure.is_some() {
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
        if snap.retry_left + 1 == self.retries && now >= self.timer_from + self.timeout() {
            // The timer has expired.
            self.retries = snap.retry_left;
            self.timer_from = now;
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

    /// The local ACK timer in nanoseconds (IBTA 9.7.6.1.3), with the floor that transport.md tells of.
    fn timeout(&self) -> u64 {
        match self.attr.timeout {
            0 => u64::MAX / 2,
            n => (4_096 << n).max(self.min_timeout),
        }
    }

    /// The queue pair has nothing more to do now. `pauses`: lest there be more than the path takes, until a time that it tells.
    pub fn rests(&mut self, pauses: bool) {
        if self.loose || !self.runs() {
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
        if pauses {
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
