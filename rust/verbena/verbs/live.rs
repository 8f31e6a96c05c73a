// SPDX-License-Identifier: GPL-2.0

//! A live device with its objects: what the verbs work on.

use super::{
    qp::QpData,
    Verbena, //
};
use crate::{
    abi::{
        cmd::Quiesced,
        eqe::EventType, //
    },
    doorbell::Areas,
    eq::{
        CompEq,
        Events,
        Listener,
        Object, //
    },
    hw::Hw, //
};
use core::ops::Deref;
use kernel::{
    alloc::flags::GFP_NOWAIT,
    new_mutex,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex, //
    },
};
use rdma::{
    base::table::Table,
    cq::Cq,
    enums::{
        QpEvent,
        SrqEvent, //
    },
    qp::Qp,
    srq::Srq, //
};

/// A live device. See the [module](self).
#[pin_data]
pub(crate) struct Live {
    pub(crate) hw: Arc<Hw>,
    pub(crate) qps: Table<Qp<Verbena>>,
    pub(crate) cqs: Table<Cq<Verbena>>,
    pub(crate) srqs: Table<Srq<Verbena>>,
    /// The kernel's doorbell areas.
    #[pin]
    pub(crate) areas: Areas,
    pub(crate) events: Arc<Events>,
    #[pin]
    pub(super) dead_cqs: DeadCqs,
}

/// The kernel's CQs that have lost a completion.
#[pin_data]
pub(super) struct DeadCqs {
    /// How many there are, for those who ask often.
    count: Atomic<u32>,
    #[pin]
    cqns: Mutex<KVec<u32>>,
    /// There was no memory to list one.
    is_short: Atomic<bool>,
}

impl DeadCqs {
    fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            count: Atomic::new(0),
            cqns <- new_mutex!(KVec::new()),
            is_short: Atomic::new(false),
        })
    }

    /// One more has died. Whoever frees memory may wait for what this is for, so this does not wait for any.
    pub(super) fn add(&self, cqn: u32) {
        if self.cqns.lock().push(cqn, GFP_NOWAIT).is_err() {
            self.is_short.store(true, Relaxed);
        }
        self.count.fetch_add(1, Relaxed);
    }

    /// One of them goes.
    pub(super) fn remove(&self, cqn: u32) {
        self.cqns.lock().retain(|dead| *dead != cqn);
        self.count.fetch_sub(1, Relaxed);
    }

    /// The one with the lowest number from `from` on.
    fn next(&self, from: u32) -> Option<u32> {
        let cqns = self.cqns.lock();
        cqns.iter().copied().filter(|cqn| *cqn >= from).min()
    }
}

impl Deref for Live {
    type Target = Hw;

    fn deref(&self) -> &Hw {
        &self.hw
    }
}

impl Live {
    /// Without objects, and without event queues yet.
    pub(crate) fn new(hw: &Arc<Hw>) -> Result<Arc<Self>> {
        Arc::pin_init(
            try_pin_init!(Self {
                hw: hw.clone(),
                qps: Table::new()?,
                cqs: Table::new()?,
                srqs: Table::new()?,
                areas <- Areas::new(),
                events: Events::new()?,
                dead_cqs <- DeadCqs::new(),
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Waits until the asynchronous events of an object that was quiesced have been handled, or will never be.
    pub(crate) fn drain_events(&self, object: Object, quiesced: &Quiesced) {
        self.events
            .drain_async(self, object, quiesced.async_pi.get());
    }

    /// Waits until the completion events of a CQ of `eq` that was quiesced have been handled.
    pub(crate) fn drain_completions(&self, eq: &CompEq, quiesced: &Quiesced) {
        self.events.drain(self, eq, quiesced.comp_pi.get());
    }

    /// Calls the handlers of kernel users that wait for an entry that is there, since the device has
    /// not.
    pub(crate) fn wake_stuck(&self) {
        self.cqs.for_each(|cq| {
            if cq.stuck() {
                self.complain("a completion has no event");
                cq.completion_event(cq);
            }
        });
    }

    /// Whether software flushes anything.
    pub(crate) fn flushes(&self) -> bool {
        self.health.has_ended() || self.dead_cqs.count.load(Relaxed) != 0
    }

    /// Whether a CQ of the kernel's has completions that nobody has polled, once the life of the device has ended.
    pub(crate) fn owes_flushes(&self) -> bool {
        let mut owes = false;
        self.cqs.for_each(|cq| owes |= cq.owes_flushes(cq));
        owes
    }

    /// Calls the handlers of all CQs for which there is something to flush, then of all queue pairs whose
    /// drain waits for an event. While the device lives that are the dead CQs alone.
    pub(crate) fn flush(&self) {
        if self.health.has_ended() {
            self.cqs.for_each(|cq| cq.flush_event(cq));
            self.qps.for_each(QpData::flush_event);
            return;
        }
        if self.dead_cqs.is_short.load(Relaxed) {
            return self.cqs.for_each(|cq| cq.flush_event(cq));
        }
        let mut from = 0;
        while let Some(cqn) = self.dead_cqs.next(from) {
            if let Some(cq) = self.cqs.get(cqn) {
                cq.flush_event(&cq);
            }
            from = cqn.saturating_add(1);
        }
    }
}

/// An event of an object that is gone is dropped.
impl Listener for Live {
    fn completion(&self, cqn: u32) {
        if let Some(cq) = self.cqs.get(cqn) {
            cq.completion_event(&cq);
        }
    }

    fn event(&self, event: EventType, number: u32) {
        let qp_event = match event {
            EventType::CqErr => {
                if let Some(cq) = self.cqs.get(number) {
                    cq.die(&cq);
                }
                return;
            }
            EventType::SrqLimitReached | EventType::SrqErr => {
                if let Some(srq) = self.srqs.get(number) {
                    srq.event(match event {
                        EventType::SrqLimitReached => SrqEvent::LimitReached,
                        _ => SrqEvent::Err,
                    });
                }
                return;
            }
            // Of no object.
            EventType::Completion | EventType::DeviceFatal => return,
            EventType::QpFatal => QpEvent::Fatal,
            EventType::QpReqErr => QpEvent::ReqErr,
            EventType::QpAccessErr => QpEvent::AccessErr,
            EventType::CommEst => QpEvent::CommEst,
            EventType::SqDrained => QpEvent::SqDrained,
            EventType::QpLastWqeReached => QpEvent::LastWqeReached,
        };
        if let Some(qp) = self.qps.get(number) {
            QpData::report(&qp, qp_event);
        }
    }
}
