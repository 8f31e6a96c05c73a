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
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
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
    /// The kernel's CQs that have lost a completion.
    pub(super) dead_cqs: Atomic<u32>,
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
                dead_cqs: Atomic::new(0),
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
        let Ok(known) = self.known() else { return };
        for cqn in 0..known.ids.cqns.end() {
            if let Some(cq) = self.cqs.get(cqn).filter(|cq| cq.stuck()) {
                self.complain("a completion has no event");
                cq.completion_event(&cq);
            }
        }
    }

    /// Whether software flushes anything.
    pub(crate) fn flushes(&self) -> bool {
        self.health.has_ended() || self.dead_cqs.load(Relaxed) != 0
    }

    /// Calls the handlers of all CQs for which there is something to flush, then of all queue pairs whose
    /// drain waits for an event.
    pub(crate) fn flush(&self) {
        let Ok(known) = self.known() else { return };
        for cqn in 0..known.ids.cqns.end() {
            if let Some(cq) = self.cqs.get(cqn) {
                cq.flush_event(&cq);
            }
        }
        for qpn in 0..known.ids.qpns.end() {
            if let Some(qp) = self.qps.get(qpn) {
                QpData::flush_event(&qp);
            }
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
