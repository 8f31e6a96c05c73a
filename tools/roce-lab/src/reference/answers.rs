// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a reliable responder owes its peer, what it may say beside that, and each answer that leaves.

use super::tables::{code_of, near};
use std::collections::BTreeSet;
use verbena_roce::host::AtomicOp;
use verbena_roce::packet::{Aeth, AethSyndrome, Feth, Kind, NakCode, Packet, Payload, Reth};

/// A READ or an atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// READ.
    Read(Reth),
    /// Atomic.
    Atomic {
        /// Key.
        rkey: u32,
        /// Address.
        addr: u64,
        /// Operation.
        op: AtomicOp,
    },
    /// ATOMIC WRITE.
    Write(Reth),
    /// FLUSH.
    Flush(Feth, Reth),
}

/// A READ or an atomic that was executed.
#[derive(Debug)]
struct Stored {
    first: u64,
    end: u64,
    wish: Wish,
    /// What an atomic returns.
    value: Option<u64>,
    /// PSNs that its responses were asked for from.
    asked: Vec<u64>,
}

/// What a responder knows when it answers.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// PSN expected.
    pub expected: u64,
    /// Messages executed.
    pub msn: u64,
    /// Path MTU.
    pub mtu: u32,
    /// Its own RNR timer.
    pub rnr_timer: u8,
    /// Receives posted, with that of the message under way. None: credits are not used.
    pub receives: Option<u64>,
}

/// All of it.
#[derive(Debug, Default)]
pub struct Answers {
    stored: Vec<Stored>,
    /// So many of them are remembered.
    pub keep: usize,
    /// PSNs of responses that are to be sent.
    owed: BTreeSet<u64>,
    /// One after the last PSN that was answered by a response.
    sent_to: u64,
    /// PSNs from there on were asked for again.
    again: Option<u64>,
    /// PSN that would go on with the last response sent.
    next: u64,
    /// An acknowledgement is owed of this PSN.
    ack: Option<u64>,
    /// A NAK for a gap is owed.
    sequence: bool,
    /// RNR NAKs that may be sent, and whether one is owed.
    rnr: (u32, bool),
    /// The last count of receives told was none.
    pub told_none: bool,
    /// The count of receives has to be told.
    pub tell_credits: bool,
}

impl Answers {
    /// Nothing is owed; this PSN is expected.
    pub fn begin(&mut self, expected: u64, keep: usize) {
        *self = Self {
            keep,
            sent_to: expected,
            ..Self::default()
        };
    }

    /// READs and atomics of which not every response was sent.
    pub fn outstanding(&self) -> usize {
        self.stored
            .iter()
            .rev()
            .take_while(|s| s.end > self.sent_to)
            .count()
    }

    /// A READ or an atomic is executed.
    pub fn ask(&mut self, first: u64, count: u64, wish: Wish) {
        self.stored.push(Stored {
            first,
            end: first + count,
            wish,
            value: None,
            asked: vec![first],
        });
        self.owed.extend(first..first + count);
        // What is forgotten need not be repeated any more.
        let gone = self.stored.len().saturating_sub(self.keep);
        if let Some(stored) = gone.checked_sub(1).and_then(|gone| self.stored.get(gone)) {
            let below = stored.end.min(self.sent_to);
            self.owed.retain(|psn| *psn >= below);
        }
    }

    /// What the atomic just executed returns.
    pub fn result(&mut self, value: u64) {
        if let Some(stored) = self.stored.last_mut() {
            stored.value = Some(value);
        }
    }

    /// A READ or atomic comes again. True: it is answered again.
    pub fn ask_again(&mut self, psn: u64, mtu: u32, wish: Wish) -> bool {
        let kept = self.stored.len().saturating_sub(self.keep);
        let found = self.stored[kept..]
            .iter_mut()
            .find(|s| s.first <= psn && psn < s.end);
        let Some(stored) = found else {
            return false;
        };
        let rest = match stored.wish {
            Wish::Read(reth) => {
                let done = (psn - stored.first) * u64::from(mtu);
                Wish::Read(Reth {
                    addr: reth.addr.wrapping_add(done),
                    length: reth.length - done as u32,
                    ..reth
                })
            }
            other => other,
        };
        if rest != wish {
            return false;
        }
        // It is late: the peer has asked for what is behind this PSN, and the answer to that waits.
        let late = stored.asked.last().is_some_and(|last| *last > psn);
        let waits = self.owed.range(psn..stored.end).next().is_some();
        stored.asked.push(psn);
        if !(late && waits) {
            self.owed.extend(psn..stored.end);
        }
        self.again = Some(self.again.map_or(psn, |again| again.min(psn)));
        true
    }

    /// An acknowledgement is asked for.
    pub fn owe_ack(&mut self, psn: u64) {
        self.ack = self.ack.max(Some(psn));
    }

    /// There is a gap before what came.
    pub fn owe_sequence(&mut self) {
        self.sequence = true;
    }

    /// Whether a gap waits to be told.
    pub fn owes_sequence(&self) -> bool {
        self.sequence
    }

    /// There is no receive.
    pub fn owe_rnr(&mut self) {
        self.rnr = (self.rnr.0 + 1, true);
    }

    /// The PSN expected has come.
    pub fn go_on(&mut self) {
        self.sequence = false;
        self.rnr = (0, false);
    }

    /// First PSN whose response was never sent and is owed.
    fn fresh(&self) -> Option<u64> {
        self.owed.range(self.sent_to..).next().copied()
    }

    /// Whether no response of an earlier PSN waits.
    pub fn is_free(&self, psn: u64) -> bool {
        self.fresh().is_none_or(|fresh| fresh >= psn)
    }

    /// It ends: nothing is owed any more.
    pub fn forget(&mut self) {
        self.owed.clear();
        (self.ack, self.sequence, self.rnr) = (None, false, (0, false));
        self.tell_credits = false;
    }

    /// What is owed still.
    pub fn owes(&self) -> Option<String> {
        if let Some(psn) = self.owed.first() {
            return Some(format!("the response of PSN {psn:#x}"));
        }
        if let Some(psn) = self.ack {
            return Some(format!("an acknowledgement of PSN {psn:#x}"));
        }
        if self.sequence {
            return Some("a NAK for a gap".into());
        }
        if self.rnr.1 {
            return Some("an RNR NAK".into());
        }
        self.tell_credits.then(|| "a count of receives".into())
    }

    /// An answer leaves that refuses nothing for good.
    pub fn sends(&mut self, packet: &Packet, now: &Now) {
        let psn = near(now.expected, packet.psn);
        match packet.kind {
            Kind::Ack(aeth) => self.acknowledges(psn, &aeth, now),
            Kind::ReadResponse(aeth) => {
                if let Some(aeth) = aeth {
                    self.is_positive(&aeth, now);
                }
                self.responds(packet, psn, now);
            }
            Kind::AtomicResponse(aeth, value) => {
                self.is_positive(&aeth, now);
                let found = self.stored.iter().find(|s| s.first == psn);
                let stored = found.and_then(|s| s.value);
                assert_eq!(
                    Some(value),
                    stored,
                    "C9-105: an atomic returns its stored result"
                );
                self.takes_turn(psn, psn + 1);
            }
            _ => {}
        }
    }

    /// An acknowledgement that is none of a READ or atomic.
    fn acknowledges(&mut self, psn: u64, aeth: &Aeth, now: &Now) {
        let fresh = self.fresh();
        match aeth.syndrome {
            AethSyndrome::Ack { .. } => {
                self.is_positive(aeth, now);
                let last = fresh.unwrap_or(now.expected).min(now.expected);
                assert_eq!(
                    psn + 1,
                    last,
                    "9.7.5.1: an ACK has the PSN of the last request executed, and passes no response"
                );
                let inside = |s: &&Stored| s.first <= psn && psn + 1 < s.end;
                let inside = self.stored.iter().rev().find(inside);
                assert!(
                    inside.is_none(),
                    "9.7.5.1: an ACK of a READ in part: {inside:?}"
                );
                self.covers(psn + 1);
            }
            AethSyndrome::Rnr { timer } => {
                assert!(
                    self.rnr.0 > 0,
                    "9.7.5.2.8: an RNR NAK, and nothing came in vain"
                );
                assert_eq!(psn, now.expected, "9.7.5.2.8: the PSN of an RNR NAK");
                assert_eq!(timer, now.rnr_timer, "9.7.5.2.8: the timer of an RNR NAK");
                self.rnr = (self.rnr.0 - 1, false);
                self.is_negative(psn, aeth, now);
            }
            AethSyndrome::Nak(NakCode::Sequence) => {
                assert!(
                    self.sequence,
                    "C9-114: a NAK for no gap, or for the same again"
                );
                assert_eq!(psn, now.expected, "9.7.5.2: the PSN of a NAK for a gap");
                self.sequence = false;
                self.is_negative(psn, aeth, now);
            }
            AethSyndrome::Nak(_) => panic!("9.9.3: a NAK, and nothing is refused: {aeth:?}"),
        }
    }

    /// A NAK of this PSN leaves.
    pub fn is_negative(&mut self, psn: u64, aeth: &Aeth, now: &Now) {
        assert!(self.is_free(psn), "9.7.5.1: a NAK passes a response");
        assert_eq!(
            u64::from(aeth.msn),
            now.msn % (1 << 24),
            "9.7.7.1: the MSN of a NAK"
        );
        self.covers(psn);
    }

    /// Everything before this PSN is acknowledged.
    fn covers(&mut self, end: u64) {
        if self.ack.is_some_and(|ack| ack < end) {
            self.ack = None;
        }
    }

    fn is_positive(&mut self, aeth: &Aeth, now: &Now) {
        assert_eq!(
            u64::from(aeth.msn),
            now.msn % (1 << 24),
            "9.7.7.1: the MSN of an answer"
        );
        let due = now.receives.map_or(31, code_of);
        assert_eq!(
            aeth.syndrome,
            AethSyndrome::Ack { credits: due },
            "9.7.7.2: receives are {:?}",
            now.receives
        );
        self.told_none = due == 0;
        self.tell_credits = false;
    }

    /// A READ response.
    fn responds(&mut self, packet: &Packet, psn: u64, now: &Now) {
        let end = psn + u64::from(packet.psns);
        let found = self.stored.iter().find(|s| s.first <= psn && psn < s.end);
        let stored = found.unwrap_or_else(|| panic!("9.7.5.1: a response to no READ: {packet:?}"));
        let reth = match stored.wish {
            Wish::Read(reth) => reth,
            Wish::Write(reth) | Wish::Flush(_, reth) => Reth { length: 0, ..reth },
            Wish::Atomic { .. } => panic!("9.7.5.1: a READ response to an atomic"),
        };
        let mtu = u64::from(now.mtu);
        let done = (psn - stored.first) * mtu;
        let rest = u64::from(reth.length) - done;
        let due = rest.min(u64::from(packet.psns) * mtu);
        assert!(end <= stored.end, "9.7.5.1: more responses than asked for");
        assert_eq!(
            u64::from(packet.payload.len()),
            due,
            "9.7.6.1: the length of a response"
        );
        assert_eq!(
            packet.last,
            end == stored.end,
            "9.4.4: the end of a READ's responses"
        );
        if packet.first {
            assert!(
                stored.asked.contains(&psn),
                "9.4.4: responses begin where nobody asked"
            );
        } else {
            assert_eq!(psn, self.next, "9.4.4: responses go on where they were not");
        }
        if let Payload::Region { key, addr, .. } = packet.payload {
            let from = reth.addr.wrapping_add(done);
            assert_eq!(
                (key, addr),
                (reth.rkey, from),
                "9.4.4: memory that nobody asked for"
            );
        }
        self.takes_turn(psn, end);
        self.next = end;
    }

    /// Responses leave in order, each once for every time it is asked for.
    fn takes_turn(&mut self, psn: u64, end: u64) {
        if psn >= self.sent_to {
            assert_eq!(
                self.fresh(),
                Some(psn),
                "9.7.5.1: a response before an earlier one"
            );
        } else {
            let asked = self.owed.contains(&psn) || self.again.is_some_and(|again| again <= psn);
            assert!(
                asked,
                "9.7.5.1: a response that nobody asked for again: {psn:#x}"
            );
        }
        for psn in psn..end {
            self.owed.remove(&psn);
        }
        self.sent_to = self.sent_to.max(end);
        self.covers(end);
    }
}
