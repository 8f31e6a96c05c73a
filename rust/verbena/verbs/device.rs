// SPDX-License-Identifier: GPL-2.0

//! The device in one life, with its objects, on which the verbs operate.

use super::{
    port_events::PortEvents,
    qp::QpData,
    Verbena, //
};
use crate::{
    abi::{
        cmd::Quiesced,
        eqe::EventType, //
    },
    doorbell::DoorbellAreas,
    eq::{
        AffiliatedObject,
        CompEq,
        EventQueues,
        Listener, //
    },
    hw::Hw, //
};
use base::table::Table;
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
    cq::Cq,
    enums::{
        QpEvent,
        SrqEvent, //
    },
    qp::Qp,
    srq::Srq, //
};

/// A device and its objects, for one life. See the [module](self).
#[pin_data]
pub(crate) struct VerbsDevice {
    pub(crate) hw: Arc<Hw>,
    pub(crate) qps: Table<Qp<Verbena>>,
    pub(crate) cqs: Table<Cq<Verbena>>,
    pub(crate) srqs: Table<Srq<Verbena>>,
    /// Doorbell areas of kernel users.
    #[pin]
    pub(crate) areas: DoorbellAreas,
    pub(crate) events: Arc<EventQueues>,
    #[pin]
    pub(super) failed_cqs: FailedCqs,
    /// Events of an InfiniBand port.
    #[pin]
    pub(crate) port_events: PortEvents,
}

/// CQs of kernel users that have lost a completion.
#[pin_data]
pub(super) struct FailedCqs {
    /// Number of CQs in error, which can be read without the lock.
    count: Atomic<u32>,
    #[pin]
    cqns: Mutex<KVec<u32>>,
    /// True if there was no memory to list a CQ in `cqns`.
    is_incomplete: Atomic<bool>,
}

impl FailedCqs {
    fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            count: Atomic::new(0),
            cqns <- new_mutex!(KVec::new()),
            is_incomplete: Atomic::new(false),
        })
    }

    /// Adds a CQ in error. The function does not wait for memory, because the thread that
    /// frees memory may wait for completions that are flushed by means of this list.
    pub(super) fn add(&self, cqn: u32) {
        if self.cqns.lock().push(cqn, GFP_NOWAIT).is_err() {
            self.is_incomplete.store(true, Relaxed);
        }
        self.count.fetch_add(1, Relaxed);
    }

    /// Removes a CQ, which is destroyed.
    pub(super) fn remove(&self, cqn: u32) {
        self.cqns.lock().retain(|dead| *dead != cqn);
        self.count.fetch_sub(1, Relaxed);
    }

    /// Returns the lowest number in the list from `from` on.
    fn next(&self, from: u32) -> Option<u32> {
        let cqns = self.cqns.lock();
        cqns.iter().copied().filter(|cqn| *cqn >= from).min()
    }
}

impl Deref for VerbsDevice {
    type Target = Hw;

    fn deref(&self) -> &Hw {
        &self.hw
    }
}

impl VerbsDevice {
    /// Returns a device without objects and event queues.
    pub(crate) fn new(hw: &Arc<Hw>) -> Result<Arc<Self>> {
        Arc::pin_init(
            try_pin_init!(Self {
                hw: hw.clone(),
                qps: Table::new()?,
                cqs: Table::new()?,
                srqs: Table::new()?,
                areas <- DoorbellAreas::new(),
                events: EventQueues::new()?,
                failed_cqs <- FailedCqs::new(),
                port_events <- PortEvents::new(),
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Waits until the asynchronous events of a quiesced object have been handled or dropped.
    pub(crate) fn drain_events(&self, object: AffiliatedObject, quiesced: &Quiesced) {
        self.events
            .drain_async(self, object, quiesced.async_pi.get());
    }

    /// Waits until the completion events of a quiesced CQ of `eq` have been handled.
    pub(crate) fn drain_completions(&self, eq: &CompEq, quiesced: &Quiesced) {
        self.events.drain(self, eq, quiesced.comp_pi.get());
    }

    /// Calls the handlers of kernel users that wait for an entry that is there but that the device
    /// has not reported.
    pub(crate) fn notify_missed(&self) {
        self.cqs.for_each(|cq| {
            if cq.has_missed_event() {
                self.complain("it raised no event for a completion");
                cq.completion_event(cq);
            }
        });
    }

    /// True if there may be requests that the driver flushes in software.
    pub(crate) fn is_flushing(&self) -> bool {
        self.health.has_ended() || self.failed_cqs.count.load(Relaxed) != 0
    }

    /// True if a kernel user's CQ has completions to poll.
    pub(crate) fn has_unpolled_completions(&self) -> bool {
        let mut any = false;
        self.cqs
            .for_each(|cq| any |= cq.has_unpolled_completions(cq));
        any
    }

    /// Handles an event of the port. The net device of an Ethernet port has such events, and not the
    /// device.
    fn port_event(&self, event: EventType) {
        if self.is_infiniband() {
            self.port_events.report(event);
        } else {
            self.complain("an unknown asynchronous event");
        }
    }

    /// Calls the handlers of all CQs that have requests to flush, and then of all queue pairs whose
    /// drain waits for an event. While the device is alive, only CQs in error have requests to
    /// flush.
    pub(crate) fn flush(&self) {
        if self.health.has_ended() {
            self.cqs.for_each(|cq| cq.flush_event(cq));
            self.qps.for_each(QpData::flush_event);
            return;
        }
        if self.failed_cqs.is_incomplete.load(Relaxed) {
            return self.cqs.for_each(|cq| cq.flush_event(cq));
        }
        let mut from = 0;
        while let Some(cqn) = self.failed_cqs.next(from) {
            if let Some(cq) = self.cqs.get(cqn) {
                cq.flush_event(&cq);
            }
            from = cqn.saturating_add(1);
        }
    }
}

/// Listener that drops the events of objects that no longer exist.
impl Listener for VerbsDevice {
    fn completion(&self, cqn: u32) {
        if let Some(cq) = self.cqs.get(cqn) {
            cq.completion_event(&cq);
        }
    }

    fn event(&self, event: EventType, number: u32) {
        let qp_event = match event {
            EventType::CqErr => {
                if let Some(cq) = self.cqs.get(number) {
                    cq.on_error(&cq);
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
            // These events concern no object.
            EventType::Completion | EventType::DeviceFatal => return,
            EventType::PortActive
            | EventType::PortErr
            | EventType::LidChange
            | EventType::PkeyChange
            | EventType::SmChange
            | EventType::ClientReregister
            | EventType::GidChange => return self.port_event(event),
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
