// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the device holds, for people: contexts and counters, handed out in bounded portions.
//!
//! A device may have a hundred thousand objects. Whoever wants to see them all asks again and again; each answer is plain
//! data, of which the one who asked makes text on a thread of his own. Between two portions the device works on, so each
//! object is shown as it was when its portion was taken.

use crate::device::Device;
use crate::objects::counters::Counters;
use crate::slots::Slots;
use verbena_abi::ctx::{CqContext, EqContext, MemoryEntry, QpContext, SrqContext};
use verbena_abi::stats::NUM_COUNTERS;

/// Numbers of a table that are looked at for one portion: most may be free.
pub(crate) const LOOKS: u32 = 4096;
/// Queue pairs whose counters are added up at once.
const SURVEYED: u32 = 512;

/// Where a listing goes on. The default is its beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    table: u8,
    number: u32,
}

/// A part of a listing.
#[derive(Clone, Debug, Default)]
pub struct Portion {
    /// Contexts, by kind and number.
    pub contexts: Vec<Snapshot>,
    /// Where it goes on, if this is not the end.
    pub next: Option<Cursor>,
}

/// A context, as it would be published, without a look at guest memory.
#[derive(Clone, Debug)]
pub enum Snapshot {
    /// A queue pair's.
    Qp(Box<QpContext>),
    /// A completion queue's.
    Cq(CqContext),
    /// A shared receive queue's.
    Srq(SrqContext),
    /// A memory region's.
    Mr(MemoryEntry),
    /// An event queue's.
    Eq(EqContext),
}

impl Snapshot {
    /// Its number.
    pub fn number(&self) -> u32 {
        match self {
            Self::Qp(c) => c.qpn.get(),
            Self::Cq(c) => c.cqn.get(),
            Self::Srq(c) => c.srqn.get(),
            Self::Mr(c) => crate::objects::mr::index(c.key.get()),
            Self::Eq(c) => c.eqn.get(),
        }
    }
}

/// Adds a table's contexts to a portion that is to have at most `most`. True: that was the table's end.
fn list<T>(
    objects: &Slots<T>,
    number: &mut u32,
    most: usize,
    all: &mut Vec<Snapshot>,
    snapshot: impl Fn(&T) -> Snapshot,
) -> bool {
    let end = number.saturating_add(LOOKS).min(objects.len());
    while *number < end && all.len() < most {
        all.extend(objects.get(*number).map(&snapshot));
        *number += 1;
    }
    *number >= objects.len()
}

/// Counters that are being added up, queue pair by queue pair.
#[derive(Clone, Debug)]
pub(crate) struct Survey {
    /// The queue pair that is next.
    next: u32,
    counters: Counters,
}

impl Survey {
    /// A queue pair goes, whose counters are the device's own from now on: what this survey began with has none of them.
    pub(crate) fn lose(&mut self, qpn: u32, counters: &Counters) {
        if qpn >= self.next {
            self.counters.add_all(counters);
        }
    }
}

impl Device {
    /// At most so many contexts, from a place on.
    pub fn contexts(&self, from: Cursor, most: u32) -> Portion {
        let most = most as usize;
        let mut all = Vec::with_capacity(most);
        let mut at = from;
        let shared = &self.shared;
        loop {
            let n = &mut at.number;
            let done = match at.table {
                0 => list(&self.qps, n, most, &mut all, |qp| {
                    Snapshot::Qp(Box::new(qp.context(qp.env.rq_ci)))
                }),
                1 => list(&shared.cqs, n, most, &mut all, |cq| {
                    Snapshot::Cq(cq.context())
                }),
                2 => list(&shared.srqs, n, most, &mut all, |srq| {
                    Snapshot::Srq(srq.context(srq.ci))
                }),
                3 => list(&shared.mrs, n, most, &mut all, |mr| {
                    Snapshot::Mr(mr.context())
                }),
                4 => list(&shared.eqs, n, most, &mut all, |eq| {
                    Snapshot::Eq(eq.context())
                }),
                _ => {
                    return Portion {
                        contexts: all,
                        next: None,
                    }
                }
            };
            if !done {
                return Portion {
                    contexts: all,
                    next: Some(at),
                };
            }
            at = Cursor {
                table: at.table + 1,
                number: 0,
            };
        }
    }

    /// Begins to add up the counters.
    pub(crate) fn begin_survey(&self) -> Survey {
        Survey {
            next: 0,
            counters: self.shared.counters.clone(),
        }
    }

    /// Goes on adding up; the counters by `stats::Counter`, if that was the last queue pair.
    pub(crate) fn go_on_survey(&self, survey: &mut Survey) -> Option<[u64; NUM_COUNTERS]> {
        let end = survey.next.saturating_add(SURVEYED).min(self.qps.len());
        while survey.next < end {
            if let Some(qp) = self.qps.get(survey.next) {
                survey.counters.add_all(&qp.counters());
            }
            survey.next += 1;
        }
        (survey.next >= self.qps.len()).then(|| survey.counters.all())
    }

    /// Adds up a part of the counters; all of them by `stats::Counter`, once it has come to the end. The next call begins
    /// anew.
    pub fn survey(&mut self) -> Option<[u64; NUM_COUNTERS]> {
        let mut survey = self.survey.take().unwrap_or_else(|| self.begin_survey());
        let stats = self.go_on_survey(&mut survey);
        if stats.is_none() {
            self.survey = Some(survey);
        }
        stats
    }

    /// All counters at once, however long that takes.
    pub fn stats(&self) -> [u64; NUM_COUNTERS] {
        let mut survey = self.begin_survey();
        loop {
            if let Some(stats) = self.go_on_survey(&mut survey) {
                return stats;
            }
        }
    }
}
