// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Contexts and counters of the device for display, returned in bounded portions.
//!
//! A device may have a hundred thousand objects. A caller that wants all of them calls repeatedly.
//! Each result is plain data, which the caller formats on its own thread. The device works on
//! between two calls, so a portion shows its objects at the time of its own call.

use crate::device::Device;
use crate::observation::counters::Counters;
use crate::slots::Slots;
use verbena_abi::ctx::{CqContext, EqContext, MemoryEntry, QpContext, SrqContext};
use verbena_abi::stats::NUM_COUNTERS;

/// Most numbers of a table that one portion looks at. Most of them may be unused.
pub(crate) const LOOKS: u32 = 4096;
/// Number of QPs whose counters one step of a survey adds.
const SURVEYED: u32 = 512;

/// Position at which a listing continues. The default is the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    table: u8,
    number: u32,
}

/// Part of a listing of contexts.
#[derive(Clone, Debug, Default)]
pub struct Portion {
    /// Contexts of this part, by kind and number.
    pub contexts: Vec<Snapshot>,
    /// Position of the next part, or None at the end.
    pub next: Option<Cursor>,
}

/// A context as the device would publish it, made without access to guest memory.
#[derive(Clone, Debug)]
pub enum Snapshot {
    /// Context of a queue pair.
    Qp(Box<QpContext>),
    /// Context of a completion queue.
    Cq(CqContext),
    /// Context of a shared receive queue.
    Srq(SrqContext),
    /// Entry of a memory region.
    Mr(MemoryEntry),
    /// Context of an event queue.
    Eq(EqContext),
}

impl Snapshot {
    /// Returns the number of the object in its table.
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

/// Adds contexts of a table to a portion, which gets up to `most` contexts. True at the end of the
/// table.
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

/// Sum of the counters, which is computed some QPs at a time.
#[derive(Clone, Debug)]
pub(crate) struct Survey {
    /// Number of the next QP to add.
    next: u32,
    counters: Counters,
}

impl Survey {
    /// Adds the counters of a QP that is destroyed before the survey has reached it. The device
    /// adds them to its own counters only now, after the survey has copied those.
    pub(crate) fn lose(&mut self, qpn: u32, counters: &Counters) {
        if qpn >= self.next {
            self.counters.add_all(counters);
        }
    }
}

impl Device {
    /// Returns up to `most` contexts, beginning at a position.
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

    /// Begins a survey with the counters of the device.
    pub(crate) fn begin_survey(&self) -> Survey {
        Survey {
            next: 0,
            counters: self.shared.observers.counters().clone(),
        }
    }

    /// Adds the counters of the next QPs. Returns the sums, indexed by `stats::Counter`, after the
    /// last QP.
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

    /// Goes on with the survey of the daemon. Returns all counters, indexed by `stats::Counter`,
    /// when the survey is complete. The next call begins a new survey.
    pub fn survey(&mut self) -> Option<[u64; NUM_COUNTERS]> {
        let mut survey = self.survey.take().unwrap_or_else(|| self.begin_survey());
        let stats = self.go_on_survey(&mut survey);
        if stats.is_none() {
            self.survey = Some(survey);
        }
        stats
    }

    /// Returns all counters at once. The time that it takes is not bounded.
    pub fn stats(&self) -> [u64; NUM_COUNTERS] {
        let mut survey = self.begin_survey();
        loop {
            if let Some(stats) = self.go_on_survey(&mut survey) {
                return stats;
            }
        }
    }
}
