// SPDX-License-Identifier: GPL-2.0

//! Event queues. Device specification, "Event queues".
//!
//! EQ 0 carries asynchronous events on vector 0, which it shares with the command queue; its entries
//! are handled by a work item, because the owners' handlers may sleep. The other EQs carry
//! completion events, one vector each, handled in the interrupt.
//!
//! An entry is taken, the consumer index stored, and after a full fence the entry is handled (see
//! [`crate::abi::eqe`] for why in this order).

use crate::{
    abi::{
        cmd::{
            CreateEq,
            ASYNC_EQN, //
        },
        cqe::phase,
        ctx::EqContext,
        eqe::{
            Eqe,
            EventType,
            EQE_SIZE,
            TAIL_OFFSET, //
        },
        Le16,
        Le32,
        Le64, //
    },
    health::Cause,
    hw::Hw,
    ring::Ring,
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
};
use rdma::{
    dma::Chunk,
    enums::{
        QpEvent,
        SrqEvent, //
    },
    irq, new_irq_lock,
    sync::{
        mb,
        IrqLock, //
    },
    work,
};

/// Entries of an event queue. At most one event of each kind is outstanding for an object, and the
/// device keeps what does not fit, so this is a matter of speed only.
const LOG_SIZE: u8 = 10;

/// The ring of an event queue, and how far it has been read.
struct EventRing {
    ring: Ring,
    consumer: Chunk,
    ci: u32,
}

impl EventRing {
    fn new(hw: &Hw) -> Result<Self> {
        Ok(Self {
            ring: Ring::new(&hw.dma, EQE_SIZE << LOG_SIZE)?,
            consumer: Chunk::alloc(&hw.dma, size_of::<Le32>())?,
            ci: 0,
        })
    }

    /// Takes the next entry.
    fn take(&mut self) -> Option<Eqe> {
        let index = (self.ci & ((1 << LOG_SIZE) - 1)) as usize;
        let (chunk, offset) = self.ring.at(index * EQE_SIZE).ok()?;
        let tail = Le32::from_raw(chunk.load32_acquire(offset + TAIL_OFFSET).ok()?).get();
        if (tail >> 31 != 0) != phase(self.ci, LOG_SIZE) {
            return None;
        }
        let eqe: Eqe = chunk.read(offset).ok()?;
        self.ci = self.ci.wrapping_add(1);
        self.consumer
            .store32_release(0, Le32::new(self.ci).to_raw())
            .ok()?;
        mb();
        Some(eqe)
    }

    /// Whether all entries below the producer index `pi` have been taken.
    fn passed(&self, pi: u32) -> bool {
        // Free-running indexes: the distance is small, or `pi` is behind.
        self.ci.wrapping_sub(pi) < u32::MAX / 2
    }
}

/// Gives the device an event queue.
fn create(hw: &Hw, ring: &EventRing, eqn: u32, vector: u16) -> Result {
    hw.tables.ensure::<EqContext>(&hw.cmdq, eqn)?;
    hw.cmdq.exec(&CreateEq {
        eqn: Le32::new(eqn),
        vector: Le16::new(vector),
        log_size: LOG_SIZE,
        ring: ring.ring.translation(),
        ci_addr: Le64::new(ring.consumer.dma_addr()),
        ..Default::default()
    })?;
    Ok(())
}

/// An event queue of completion events.
#[pin_data]
pub(crate) struct CompEq {
    pub(crate) eqn: u32,
    #[pin]
    ring: IrqLock<EventRing>,
}

impl CompEq {
    pub(crate) fn new(hw: &Hw, eqn: u32, vector: u16) -> Result<Arc<Self>> {
        let ring = EventRing::new(hw)?;
        create(hw, &ring, eqn, vector)?;
        Arc::pin_init(
            try_pin_init!(Self {
                eqn,
                ring <- new_irq_lock!(ring),
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Handles what is there. Any context; the lock makes that a CQ's handler runs once at a time.
    pub(crate) fn handle(&self, hw: &Hw) {
        let mut ring = self.ring.lock();
        // A device that fills the ring as fast as it is read must not keep us here.
        for _ in 0..1 << LOG_SIZE {
            let Some(eqe) = ring.take() else { return };
            let tail = eqe.tail.get();
            // CAST: the type is the low byte.
            match EventType::from_raw(tail as u8) {
                Some(EventType::Completion) => {
                    if let Some(cq) = hw.cqs.get(eqe.number.get()) {
                        cq.completion_event(&cq);
                    }
                }
                _ => hw.complain("an unknown event on a completion event queue"),
            }
        }
        // More may be there, for which no interrupt comes.
        hw.health.flush();
    }

    /// Handles all entries up to the producer index `pi`, which the device has told.
    pub(crate) fn drain(&self, hw: &Hw, pi: u32) {
        self.handle(hw);
        if !self.ring.lock().passed(pi) {
            hw.health.declare_dead(Cause::Protocol(
                "it told of completion events that are not there",
            ));
        }
    }
}

/// The event queue of asynchronous events.
#[pin_data]
pub(crate) struct AsyncEq {
    #[pin]
    ring: Mutex<EventRing>,
}

impl AsyncEq {
    pub(crate) fn new(hw: &Hw) -> Result<Arc<Self>> {
        let ring = EventRing::new(hw)?;
        create(hw, &ring, ASYNC_EQN, 0)?;
        Arc::pin_init(
            try_pin_init!(Self {
                ring <- new_mutex!(ring),
            }? Error),
            GFP_KERNEL,
        )
    }

    pub(crate) fn handle(&self, hw: &Hw) {
        let mut ring = self.ring.lock();
        for _ in 0..1 << LOG_SIZE {
            let Some(eqe) = ring.take() else { return };
            dispatch(hw, &eqe);
        }
        // More may be there, for which no interrupt comes.
        hw.health.flush();
    }

    /// Handles all entries up to the producer index `pi`, which the device has told.
    pub(crate) fn drain(&self, hw: &Hw, pi: u32) {
        self.handle(hw);
        if !self.ring.lock().passed(pi) {
            hw.health
                .declare_dead(Cause::Protocol("it told of events that are not there"));
        }
    }
}

/// Takes an asynchronous event to its object. An event of an object that is gone is dropped.
fn dispatch(hw: &Hw, eqe: &Eqe) {
    let number = eqe.number.get();
    // CAST: the type is the low byte.
    let Some(event) = EventType::from_raw(eqe.tail.get() as u8) else {
        return hw.complain("an unknown event");
    };
    let qp_event = match event {
        EventType::CqErr => {
            if let Some(cq) = hw.cqs.get(number) {
                cq.error_event();
            }
            return;
        }
        EventType::SrqLimitReached | EventType::SrqErr => {
            if let Some(srq) = hw.srqs.get(number) {
                srq.event(match event {
                    EventType::SrqLimitReached => SrqEvent::LimitReached,
                    _ => SrqEvent::Err,
                });
            }
            return;
        }
        EventType::DeviceFatal => {
            return hw.health.declare_dead(Cause::Device(eqe.syndrome.get()));
        }
        EventType::Completion => return hw.complain("a completion event on the wrong queue"),
        EventType::QpFatal => QpEvent::Fatal,
        EventType::QpReqErr => QpEvent::ReqErr,
        EventType::QpAccessErr => QpEvent::AccessErr,
        EventType::CommEst => QpEvent::CommEst,
        EventType::SqDrained => QpEvent::SqDrained,
        EventType::QpLastWqeReached => QpEvent::LastWqeReached,
    };
    if let Some(qp) = hw.qps.get(number) {
        qp.event(qp_event);
    }
}

/// Handler of vector 0: commands, and the work of the asynchronous events.
pub(crate) struct Vector0 {
    pub(crate) hw: Arc<Hw>,
    pub(crate) events: Arc<work::Work<AsyncWork>>,
}

impl irq::Handler for Vector0 {
    fn handle(&self) {
        self.hw.cmdq.interrupt();
        self.events.queue();
    }
}

/// The work of the asynchronous events.
pub(crate) struct AsyncWork(pub(crate) Arc<Hw>);

impl work::Handler for AsyncWork {
    fn run(&self) {
        if let Some(eq) = self.0.async_eq() {
            eq.handle(&self.0);
        }
    }
}

/// Handler of a completion vector.
pub(crate) struct CompVector {
    pub(crate) hw: Arc<Hw>,
    pub(crate) eq: Arc<CompEq>,
}

impl irq::Handler for CompVector {
    fn handle(&self) {
        self.eq.handle(&self.hw);
    }
}
