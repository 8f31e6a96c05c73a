// SPDX-License-Identifier: GPL-2.0

//! Event queues. Device specification, "Event queues".
//!
//! EQ 0 carries asynchronous events on vector 0, which it shares with the command queue; its entries
//! are handled by a work item, because the owners' handlers may sleep. The other EQs carry
//! completion events, one vector each, handled in the interrupt, or by a work item when somebody
//! waits for them or an interrupt is missing. A verb never handles events itself: consumers'
//! handlers are not called inside verbs.
//!
//! An entry is taken, the consumer index stored, and after a full fence the entry is handled (see
//! [`crate::abi::eqe`] for why in this order).

use crate::{
    abi::{
        cmd::{
            CreateEq,
            DestroyEq,
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
    cmdq::Lender,
    health::Cause,
    hw::Hw,
    lent::{
        Borrowed,
        Lent, //
    },
    ring::Ring,
    verbs::qp::QpData, //
};
use kernel::{
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
    base::{
        dma::{
            Chunk,
            Payer, //
        },
        irq,
        sync::{
            mb,
            IrqLock, //
        },
        work, //
    },
    enums::{
        QpEvent,
        SrqEvent, //
    },
    new_irq_lock, //
};

/// Entries of an event queue. At most one event of each kind is outstanding for an object, and the
/// device keeps what does not fit, so this is a matter of speed only.
const LOG_SIZE: u8 = 10;

/// The memory of an event queue.
struct EventMemory {
    ring: Lent<Ring>,
    consumer: Lent<Arc<Chunk>>,
}

impl EventMemory {
    /// Allocates an event queue's memory and gives it to the device.
    fn create(hw: &Hw, eqn: u32, vector: u16) -> Result<Arc<Self>> {
        let consumer = Arc::new(
            Chunk::alloc(&hw.dma, Payer::Kernel, size_of::<Le32>())?,
            GFP_KERNEL,
        )?;
        let ring = Ring::new(&hw.dma, Payer::Kernel, EQE_SIZE << LOG_SIZE)?;
        let memory = Self {
            ring: Lent::new(ring, &hw.health),
            consumer: Lent::new(consumer, &hw.health),
        };
        let memory = Arc::new(memory, GFP_KERNEL)?;
        hw.tables.ensure::<EqContext>(&hw.cmdq, eqn)?;
        let request = |to: &Lender| CreateEq {
            eqn: Le32::new(eqn),
            vector: Le16::new(vector),
            log_size: LOG_SIZE,
            ring: memory.ring.lend(to).translation(),
            ci_addr: Le64::new(memory.consumer.lend(to).addr()),
            ..Default::default()
        };
        hw.cmdq.give(request, &memory.lent())?;
        Ok(memory)
    }

    /// Takes the event queue back, which nothing uses any more.
    fn destroy(&self, hw: &Hw, eqn: u32) {
        let request = DestroyEq {
            id: Le32::new(eqn),
            ..Default::default()
        };
        hw.cmdq.take_back(&request, &self.lent());
    }

    fn lent(&self) -> [&dyn Borrowed; 2] {
        [&self.ring, &self.consumer]
    }
}

/// How far an event queue has been read.
struct EventRing {
    memory: Arc<EventMemory>,
    ci: u32,
    /// Where it stood when [`stuck`](Self::stuck) looked last, if an entry waited there.
    waiting: Option<u32>,
}

impl EventRing {
    fn new(memory: &Arc<EventMemory>) -> Self {
        Self {
            memory: memory.clone(),
            ci: 0,
            waiting: None,
        }
    }

    /// The next entry, if there is one.
    fn next(&self) -> Option<Eqe> {
        let index = (self.ci & ((1 << LOG_SIZE) - 1)) as usize;
        let (chunk, offset) = self.memory.ring.at(index * EQE_SIZE).ok()?;
        let tail = Le32::from_raw(chunk.load32_acquire(offset + TAIL_OFFSET).ok()?).get();
        if (tail >> 31 != 0) != phase(self.ci, LOG_SIZE) {
            return None;
        }
        chunk.read(offset).ok()
    }

    /// Whether the entry that waits now waited already when this was called last: its interrupt is
    /// missing.
    fn stuck(&mut self) -> bool {
        let waiting = self.next().map(|_| self.ci);
        let before = core::mem::replace(&mut self.waiting, waiting);
        waiting.is_some() && waiting == before
    }

    /// Takes the next entry.
    fn take(&mut self) -> Option<Eqe> {
        let eqe = self.next()?;
        self.ci = self.ci.wrapping_add(1);
        self.memory
            .consumer
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

/// An event queue of completion events.
#[pin_data]
pub(crate) struct CompEq {
    pub(crate) eqn: u32,
    memory: Arc<EventMemory>,
    #[pin]
    ring: IrqLock<EventRing>,
}

impl CompEq {
    pub(crate) fn new(hw: &Hw, eqn: u32, vector: u16) -> Result<Arc<Self>> {
        let memory = EventMemory::create(hw, eqn, vector)?;
        Arc::pin_init(
            try_pin_init!(Self {
                eqn,
                ring <- new_irq_lock!(EventRing::new(&memory)),
                memory,
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Handles what is there. Any context; the lock makes that a CQ's handler runs once at a time.
    fn handle(&self, hw: &Hw) {
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
}

/// The event queue of asynchronous events.
#[pin_data]
pub(crate) struct AsyncEq {
    memory: Arc<EventMemory>,
    #[pin]
    ring: Mutex<EventRing>,
    /// The thread that handles events right now, or 0.
    handler: Atomic<i32>,
}

impl AsyncEq {
    pub(crate) fn new(hw: &Hw) -> Result<Arc<Self>> {
        let memory = EventMemory::create(hw, ASYNC_EQN, 0)?;
        Arc::pin_init(
            try_pin_init!(Self {
                ring <- new_mutex!(EventRing::new(&memory)),
                memory,
                handler: Atomic::new(0),
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Handles what is there; whether there was anything.
    fn handle(&self, hw: &Hw) -> bool {
        let mut ring = self.ring.lock();
        self.handler.store(kernel::current!().pid(), Relaxed);
        let mut any = false;
        for _ in 0..1 << LOG_SIZE {
            let Some(eqe) = ring.take() else {
                self.handler.store(0, Relaxed);
                return any;
            };
            any = true;
            dispatch(hw, &eqe);
        }
        self.handler.store(0, Relaxed);
        // More may be there, for which no interrupt comes.
        hw.health.flush();
        any
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
        QpData::report(&qp, qp_event);
    }
}

/// Handler of vector 0: commands, and the work of the asynchronous events.
pub(crate) struct Vector0(pub(crate) Arc<work::Work<AsyncWork>>, pub(crate) Arc<Hw>);

impl irq::Handler for Vector0 {
    fn handle(&self) {
        self.1.cmdq.interrupt();
        self.0.queue();
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

/// Handler of a completion vector, by interrupt or by work.
pub(crate) struct CompVector {
    pub(crate) hw: Arc<Hw>,
    pub(crate) eq: Arc<CompEq>,
}

impl irq::Handler for CompVector {
    fn handle(&self) {
        self.eq.handle(&self.hw);
    }
}

impl work::Handler for CompVector {
    fn run(&self) {
        self.eq.handle(&self.hw);
    }
}

/// The works that handle events, for those who wait for them.
pub(crate) struct Works {
    pub(crate) asynchronous: Arc<work::Work<AsyncWork>>,
    /// By vector, from 1 on.
    pub(crate) completions: KVec<Arc<work::Work<CompVector>>>,
}

impl Works {
    /// Lets all event queues be looked at.
    pub(crate) fn queue(&self) {
        self.asynchronous.queue();
        for work in &self.completions {
            work.queue();
        }
    }

    /// All asynchronous events below the producer index `pi`, which the device has told, have been
    /// handled when this returns. A handler of such an event need not wait for itself.
    pub(crate) fn drain_async(&self, hw: &Hw, pi: u32) {
        let Some(eq) = hw.async_eq() else { return };
        if eq.handler.load(Relaxed) == kernel::current!().pid() {
            return;
        }
        self.asynchronous.queue();
        self.asynchronous.flush();
        if !eq.ring.lock().passed(pi) {
            hw.health
                .declare_dead(Cause::Protocol("it told of events that are not there"));
        }
    }

    /// The same for the completion events of `eq`.
    pub(crate) fn drain(&self, hw: &Hw, eq: &CompEq, pi: u32) {
        let vector = eq.eqn.wrapping_sub(ASYNC_EQN + 1) as usize;
        if let Some(work) = self.completions.get(vector) {
            work.queue();
            work.flush();
        }
        if !eq.ring.lock().passed(pi) {
            hw.health.declare_dead(Cause::Protocol(
                "it told of completion events that are not there",
            ));
        }
    }
}

/// Looks for entries whose interrupts are missing; whether there are any.
pub(crate) fn stuck(hw: &Hw) -> bool {
    let comp = hw
        .comp_eqs()
        .iter()
        .filter(|eq| eq.ring.lock().stuck())
        .count();
    let asynchronous = hw.async_eq().is_some_and(|eq| {
        // Whoever handles events has the lock: nothing is stuck then.
        eq.ring.try_lock().is_some_and(|mut ring| ring.stuck())
    });
    comp != 0 || asynchronous
}

/// Takes all event queues back from a device that lives. Nothing uses them any more.
pub(crate) fn end(hw: &Hw) {
    for eq in hw.comp_eqs() {
        eq.memory.destroy(hw, eq.eqn);
    }
    if let Some(eq) = hw.async_eq() {
        eq.memory.destroy(hw, ASYNC_EQN);
    }
}
