// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The handling of responses by a reliable requester (IBTA 9.7.6, 9.9.2): the requests that each
//! acknowledges, and the retry that it costs.

use super::requester::ReferenceRequester;
use super::tables::{near, rnr_ns, status_of};
use super::work::ReferenceWork;
use super::{belongs, is_possible};
use verbena_transport::host::{WcStatus, WqeOpcode};
use verbena_transport::packet::{Aeth, AethSyndrome, NakCode, Packet, PacketKind, Transport};

impl ReferenceRequester {
    /// Advances the oldest unacknowledged PSN. Progress restores all retries, and ends the wait for
    /// a receive.
    fn progress(&mut self, una: u64, now: u64) {
        if una > self.una {
            self.una = una;
            if self.recovers_early() && una == self.again_to {
                // Nothing after the retransmitted packets has been acknowledged, so the packet at
                // this PSN may be about to be sent again too.
                self.open = Some(una);
            }
            self.at = self.at.max(una);
            self.retries = self.attr.retry_cnt;
            self.rnr_retries = self.attr.rnr_retry;
            (self.rnr_until_ns, self.ended_early_ns) = (0, 0);
            self.waits = false;
            let works = &self.works[..self.begun];
            let taken = works.iter().filter(|w| w.takes() && w.end <= una);
            self.limits.on_receives_found(taken.count() as u64);
            self.timer_from_ns = now;
        }
    }

    /// Acknowledges all requests before a PSN, except that only responses acknowledge READs and
    /// atomics. Returns true if no response is missing.
    fn acknowledge(&mut self, end: u64, now: u64) -> bool {
        let missing = self.missing(end);
        let to = missing.unwrap_or(end);
        let whole = missing.is_none();
        self.progress(to, now);
        // The requester goes back once for each gap, and not for a packet that is about to be sent
        // anyway.
        if whole || self.implied == Some(self.una) {
            return whole;
        }
        let further = self.resume.iter().any(|psn| *psn > self.una);
        let waits = self.recovers_early() && self.at <= self.una && further;
        if self.open == Some(self.una) || waits {
            (self.open, self.again) = (Some(self.una), true);
            self.goes_to = self.una;
        } else if self.at > self.una {
            self.implied = Some(self.una);
            self.go_back(self.una);
        }
        whole
    }

    /// Returns the first PSN before `end` whose response has not come.
    pub(super) fn missing(&self, end: u64) -> Option<u64> {
        let begun = &self.works[..self.begun];
        let found = begun
            .iter()
            .find(|w| w.responds() && w.due < w.end.min(end));
        found.map(|w| w.due)
    }

    /// Sends lost requests again, which costs a retry unless they are about to be sent anyway.
    fn go_back(&mut self, psn: u64) {
        if self.at <= psn || self.open == Some(psn) {
            self.again = true;
            self.goes_to = psn;
            return;
        }
        if self.retries == 0 {
            self.fail(psn, WcStatus::RetryExcErr);
            return;
        }
        self.retries -= 1;
        self.leave();
        self.at = psn;
    }

    fn fail(&mut self, psn: u64, status: WcStatus) {
        let index = self.work_at(psn).expect("within what was sent");
        self.failure = Some((index..=index, status));
    }

    /// Judges a response that is handed in. `stores` takes a work request, an offset and a length,
    /// and returns true if those bytes can be put into the work request's buffer; `readable` is
    /// true if the response's payload can be read.
    pub fn on_response(
        &mut self,
        packet: &Packet,
        now: u64,
        readable: bool,
        stores: &dyn Fn(usize, u64, u64) -> bool,
    ) {
        if self.is_unjudged {
            return;
        }
        if !packet.payload.is_alive() {
            // The response was lost between local peers. The reference leaves open whether it shows
            // that an earlier response was lost too, and whether its loss is noticed at once.
            let psn = near(self.una, packet.psn);
            if self.runs() && self.una <= psn && psn < self.hi && self.missing(psn).is_some() {
                self.acknowledge(psn, now);
            }
            self.again = true;
            return;
        }
        if !is_possible(packet) || !readable {
            self.is_unjudged = true;
            return;
        }
        if !belongs(packet, Transport::Rc, self.attr.pkey) || !self.runs() || self.failure.is_some()
        {
            return;
        }
        let psn = near(self.una, packet.psn);
        match packet.kind {
            PacketKind::Ack(aeth) => self.on_ack(psn, &aeth, now),
            PacketKind::ReadResponse(aeth) => {
                for single in packet.clone().split(self.attr.path_mtu) {
                    self.on_single_response(&single, aeth, now, stores);
                }
            }
            PacketKind::AtomicResponse(aeth, _) => {
                self.on_single_response(packet, Some(aeth), now, stores)
            }
            _ => {}
        }
    }

    /// Ends the wait after an RNR NAK if a peer on the same NIC reports that it has receives.
    fn hear_of_receives(&mut self, aeth: &Aeth) {
        let has_some = matches!(aeth.syndrome, AethSyndrome::Ack { credits } if credits != 0);
        if self.attr.local_peer && has_some && self.waits {
            self.ended_early_ns = self.rnr_until_ns;
            self.rnr_until_ns = 0;
            self.waits = false;
        }
    }

    fn on_ack(&mut self, psn: u64, aeth: &Aeth, now: u64) {
        if psn + 1 == self.una {
            self.limits.on_aeth(aeth);
            self.hear_of_receives(aeth);
        }
        if psn < self.una || psn >= self.hi {
            return;
        }
        match aeth.syndrome {
            AethSyndrome::Ack { .. } => {
                self.limits.on_aeth(aeth);
                self.hear_of_receives(aeth);
                self.acknowledge(psn + 1, now);
            }
            AethSyndrome::Rnr { timer } => {
                self.limits.on_counts(aeth.msn, 0);
                let whole = self.acknowledge(psn, now);
                // A copy of the RNR NAK for which the requester is waiting is not counted.
                if !whole || self.waits {
                    return;
                }
                let ended_early = std::mem::take(&mut self.ended_early_ns);
                let goes_on = ended_early > now;
                if self.attr.rnr_retry < 7 && !goes_on {
                    if self.rnr_retries == 0 {
                        self.fail(psn, WcStatus::RnrRetryExcErr);
                        return;
                    }
                    self.rnr_retries -= 1;
                }
                self.waits = true;
                self.leave();
                self.at = psn;
                self.rnr_until_ns = match goes_on {
                    true => ended_early,
                    false => now + rnr_ns(timer),
                };
            }
            AethSyndrome::Nak(NakCode::SourceFault) => self.is_unjudged = true,
            AethSyndrome::Nak(code) => {
                self.limits.on_counts(aeth.msn, 0);
                if !self.acknowledge(psn, now) {
                    return;
                }
                match status_of(code) {
                    None => self.go_back(psn),
                    Some(status) => self.fail(psn, status),
                }
            }
        }
    }

    /// Judges one response of a READ or atomic.
    pub(super) fn on_single_response(
        &mut self,
        packet: &Packet,
        aeth: Option<Aeth>,
        now: u64,
        stores: &dyn Fn(usize, u64, u64) -> bool,
    ) {
        let psn = near(self.una, packet.psn);
        if self.failure.is_some() || psn < self.una || psn >= self.hi {
            return;
        }
        if let Some(aeth) = aeth {
            if matches!(aeth.syndrome, AethSyndrome::Ack { .. }) {
                self.limits.on_aeth(&aeth);
            }
        }
        let oldest = self.work_at(self.una);
        let whole = self.acknowledge(psn, now);
        let index = self.work_at(psn).expect("within what was sent");
        let work = &self.works[index];
        let bad = aeth.is_some_and(|aeth| !matches!(aeth.syndrome, AethSyndrome::Ack { .. }));
        let fits = match packet.kind {
            PacketKind::AtomicResponse(..) => work.is_atomic(),
            _ if work.is_placed() => packet.first && packet.last && packet.payload.is_empty(),
            _ => work.opcode == WqeOpcode::RdmaRead && self.fits(work, packet, psn),
        };
        if bad || !fits {
            // The reference leaves open whether a bad response acknowledges anything, which of two
            // faults counts, and whether an ONLY may take the place of a LAST.
            let begins = work.asked.iter().any(|(first, _)| *first == psn);
            self.is_unjudged |= !whole || packet.first && !begins;
            self.failure = Some((oldest.unwrap_or(index)..=index, WcStatus::BadRespErr));
            return;
        }
        if !whole {
            self.buffer_response(packet, psn);
            return;
        }
        let (offset, length) = if work.is_atomic() {
            (0, 8)
        } else {
            let mtu = u64::from(self.attr.path_mtu);
            ((psn - work.first) * mtu, u64::from(packet.payload.len()))
        };
        if length > 0 && !stores(index, offset, length) {
            self.fail(psn, WcStatus::LocProtErr);
            return;
        }
        self.works[index].due = psn + 1;
        self.progress(psn + 1, now);
    }

    /// True if a READ response has the place and the length that its request asks for.
    fn fits(&self, work: &ReferenceWork, packet: &Packet, psn: u64) -> bool {
        let mtu = u64::from(self.attr.path_mtu);
        let rest = u64::from(work.length) - (psn - work.first) * mtu;
        let asked = || {
            work.asked
                .iter()
                .filter(|(first, end)| *first <= psn && psn < *end)
        };
        let begins = asked().any(|(first, _)| *first == psn);
        let goes_on = asked().any(|(first, _)| *first < psn);
        let ends = asked().any(|(_, end)| *end == psn + 1);
        let place = if packet.first { begins } else { goes_on };
        place && packet.last == ends && u64::from(packet.payload.len()) == rest.min(mtu)
    }
}
