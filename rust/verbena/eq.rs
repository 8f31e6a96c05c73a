// SPDX-License-Identifier: GPL-2.0

//! Event queues. Device specification, "Event queues".
//!
//! EQ 0 carries asynchronous events on vector 0, which it shares with the command queue. A work
//! item handles its entries, because the owners' handlers may sleep. The other EQs carry completion
//! events, on one vector each. The interrupt handler handles them, or a work item does when a
//! thread waits for them or an interrupt is missing. A verb never handles events itself, so that
//! consumers' handlers are not called inside verbs.
//!
//! The driver takes an entry, stores the consumer index, and handles the entry after a full fence
//! (see [`crate::abi::eqe`] for the reason for this order).

mod async_eq;

pub(crate) use self::async_eq::AffiliatedObject;

use self::async_eq::{
    AsyncEq,
    AsyncWork, //
};
use crate::{
    abi::{
        cmd::{
            CreateEq,
            DestroyEq,
            EqKind, //
            ASYNC_EQN,
        },
        ctx::EqContext,
        eqe::{
            Eqe,
            EventType,
            EQE_SIZE,
            LOG_EQE_SIZE, //
        },
        shared,
        Le16,
        Le32,
        Le64, //
    },
    cmdq::{
        lent::{
            Borrowed,
            Lent, //
        },
        Lender, //
    },
    health::DeathCause,
    hw::{
        DeviceResources,
        Hw, //
    },
    ring::{
        DmaRing,
        SharedWords, //
    }, //
};
use base::{
    dma::{
        Chunk,
        Payer, //
    },
    irq,
    new_irq_lock,
    new_work,
    sync::{
        msleep,
        IrqLock, //
    },
    work, //
};
use kernel::{
    fmt, new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex,
        SetOnce, //
    },
};

/// Logarithm of the number of entries of an event queue. At most one event of each kind is
/// outstanding for an object, and the device keeps events that do not fit, so the number only
/// affects speed.
const LOG_SIZE: u8 = 10;

/// Limit of completion events that are handled at a time with interrupts off.
const BUDGET: u32 = 128;

/// Limit of completion vectors that the driver uses.
const MAX_COMP_VECTORS: u32 = 31;

/// Receiver of the events of objects.
pub(crate) trait Listener: Send + Sync {
    /// Handles a notification of a CQ. Any context.
    fn completion(&self, cqn: u32);

    /// Handles an asynchronous event of the object with this number. May sleep.
    fn event(&self, event: EventType, number: u32);
}

/// Memory of an event queue: ring and consumer index.
struct EventMemory {
    ring: Lent<DmaRing>,
    consumer: Lent<Arc<Chunk>>,
}

impl EventMemory {
    /// Allocates the memory of an event queue.
    fn new(hw: &Hw) -> Result<Arc<Self>> {
        let consumer = Arc::new(
            Chunk::alloc(&hw.dma, Payer::Kernel, size_of::<Le32>())?,
            GFP_KERNEL,
        )?;
        let ring = DmaRing::new(&hw.dma, Payer::Kernel, EQE_SIZE << LOG_SIZE)?;
        let memory = Self {
            ring: Lent::new(ring, &hw.health),
            consumer: Lent::new(consumer, &hw.health),
        };
        Ok(Arc::new(memory, GFP_KERNEL)?)
    }

    /// Creates the event queue, by which the memory goes to the device. After this call nothing may
    /// fail before [`EventQueues::end`] can find the queue.
    fn create(&self, hw: &Hw, eqn: u32, vector: u16) -> Result {
        hw.tables.ensure::<EqContext>(&hw.cmdq, eqn)?;
        let request = |to: &Lender| CreateEq {
            eqn: Le32::new(eqn),
            vector: Le16::new(vector),
            log_size: LOG_SIZE,
            ring: self.ring.lend(to).translation(),
            ci_addr: Le64::new(self.consumer.lend(to).addr()),
            kind: EqKind::Event.to_raw(),
            log_entry_size: LOG_EQE_SIZE,
            ..Default::default()
        };
        hw.cmdq.give(request, &self.lent())?;
        Ok(())
    }

    /// Destroys the event queue, and takes its memory back, if the device has it. The queue must be
    /// unused.
    fn destroy(&self, hw: &Hw, eqn: u32) {
        if self.ring.loan().is_none() {
            return;
        }
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

/// Read position of an event queue.
struct EventRing {
    memory: Arc<EventMemory>,
    ci: u32,
    /// Value of `ci` when [`has_missed_interrupt`](Self::has_missed_interrupt) was called last, if
    /// an entry waited there.
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

    /// Returns the next entry, if there is one.
    fn next(&self) -> Option<Eqe> {
        let index = (self.ci & ((1 << LOG_SIZE) - 1)) as usize;
        let (chunk, offset) = self.memory.ring.at(index * EQE_SIZE).ok()?;
        let entry = SharedWords::new(chunk, offset);
        shared::read_event(&entry, self.ci, LOG_SIZE, || chunk.read(offset).ok())?
    }

    /// True if the entry that waits now already waited at the previous call. Its interrupt is
    /// missing then.
    fn has_missed_interrupt(&mut self) -> bool {
        let waiting = self.next().map(|_| self.ci);
        let before = core::mem::replace(&mut self.waiting, waiting);
        waiting.is_some() && waiting == before
    }

    /// Takes the next entry, and publishes the consumer index.
    fn take(&mut self) -> Option<Eqe> {
        let eqe = self.next()?;
        self.ci = self.ci.wrapping_add(1);
        shared::consume_event(&SharedWords::new(&self.memory.consumer, 0), self.ci);
        Some(eqe)
    }

    /// Returns the number of entries that were taken, and true if another is there.
    fn progress(&self) -> (u32, bool) {
        (self.ci, self.next().is_some())
    }

    /// Returns the state of the entries below the producer index `pi`.
    fn progress_to(&self, pi: u32) -> EventProgress {
        // The indexes run freely. The difference is small if `ci` has reached `pi`, and wraps if it
        // has not.
        if self.ci.wrapping_sub(pi) < u32::MAX / 2 {
            EventProgress::All
        } else if self.next().is_some() {
            EventProgress::Some
        } else {
            EventProgress::Nothing
        }
    }
}

/// State of the entries below a producer index.
enum EventProgress {
    /// All entries were taken. A completion event was also handled, because the thread that takes
    /// it holds the lock until then.
    All,
    /// The next entry is there, and no thread has taken it yet.
    Some,
    /// The next entry is not there.
    Nothing,
}

/// Waits until all entries below a producer index that the device has reported have been handled.
/// The device writes the entries before it reports the index, so an entry that is missing never
/// comes.
///
/// `work` has the entries handled, but may return too early. While an interrupt handler is about to
/// queue the same work, `work` can neither queue it nor wait for it.
fn drain(hw: &Hw, progress_to: impl Fn() -> EventProgress, work: impl Fn()) {
    loop {
        match progress_to() {
            EventProgress::All => return,
            EventProgress::Some if hw.health.is_dead() => return,
            EventProgress::Some => work(),
            EventProgress::Nothing => {
                return hw.health.declare_dead(DeathCause::Protocol(
                    "it reported events that it has not written",
                ));
            }
        }
        if !matches!(progress_to(), EventProgress::All) {
            msleep(1);
        }
    }
}

/// Event queue for completion events.
#[pin_data]
pub(crate) struct CompEq {
    pub(crate) eqn: u32,
    memory: Arc<EventMemory>,
    #[pin]
    ring: IrqLock<EventRing>,
}

impl CompEq {
    fn new(hw: &Hw, eqn: u32) -> Result<Arc<Self>> {
        let memory = EventMemory::new(hw)?;
        Arc::pin_init(
            try_pin_init!(Self {
                eqn,
                ring <- new_irq_lock!(EventRing::new(&memory)),
                memory,
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Handles up to [`BUDGET`] entries. Returns true if there may be more. Any context. The lock
    /// makes sure that a CQ's handler runs once at a time.
    fn handle_some(&self, hw: &Hw, to: &dyn Listener) -> bool {
        let mut ring = self.ring.lock();
        for _ in 0..BUDGET {
            let Some(eqe) = ring.take() else { return false };
            let tail = eqe.tail.get();
            // CAST: The type is the low byte.
            match EventType::from_raw(tail as u8) {
                Some(EventType::Completion) => to.completion(eqe.number.get()),
                _ => hw.complain("an unknown event in an event queue for completions"),
            }
        }
        true
    }

    /// Handles entries in the interrupt handler. A work item handles the rest, for which no
    /// interrupt comes.
    fn handle(&self, hw: &Hw, to: &dyn Listener) {
        if self.handle_some(hw, to) {
            hw.health.flush();
        }
    }

    /// Handles all entries, with interrupts on in between. The number of rounds is limited, so that
    /// a device that fills the ring as fast as it is read does not keep the thread here for ever.
    fn handle_all(&self, hw: &Hw, to: &dyn Listener) {
        for _ in 0..(1 << LOG_SIZE) / BUDGET {
            if !self.handle_some(hw, to) {
                return;
            }
        }
        hw.health.flush();
    }
}

/// Handler of vector 0. It handles replies to commands, and queues the work of asynchronous events.
struct AsyncVector {
    hw: Arc<Hw>,
    work: Arc<work::Work<AsyncWork>>,
}

impl irq::Handler for AsyncVector {
    fn handle(&self) {
        self.hw.cmdq.interrupt();
        self.work.queue();
    }
}

/// Handler of a completion vector, called by interrupt or by work item.
struct CompVector {
    hw: Arc<Hw>,
    eq: Arc<CompEq>,
    to: Arc<dyn Listener>,
}

impl irq::Handler for CompVector {
    fn handle(&self) {
        self.eq.handle(&self.hw, &*self.to);
    }
}

impl work::Handler for CompVector {
    fn run(&self) {
        self.eq.handle_all(&self.hw, &*self.to);
    }
}

/// Work items that handle events for threads that wait for them.
struct EventWorks {
    asynchronous: Arc<work::Work<AsyncWork>>,
    /// Work items of the completion vectors, from vector 1 on.
    completions: KVec<Arc<work::Work<CompVector>>>,
}

/// All event queues of a device, and their work items.
#[pin_data]
pub(crate) struct EventQueues {
    asynchronous: SetOnce<Arc<AsyncEq>>,
    completions: SetOnce<KVec<Arc<CompEq>>>,
    #[pin]
    works: Mutex<Option<Arc<EventWorks>>>,
}

impl EventQueues {
    /// Returns an object without event queues.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                asynchronous: SetOnce::new(),
                completions: SetOnce::new(),
                works <- new_mutex!(None),
            }),
            GFP_KERNEL,
        )
    }

    /// Writes the number of entries taken from each queue, and whether another waits, for debugfs.
    pub(crate) fn show(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |eqn: u32, kind: &str, (taken, waits): (u32, bool)| {
            writeln!(to, "eqn {eqn}, {kind}, taken {taken}, waiting {waits}")
        };
        if let Some(eq) = self.asynchronous.as_ref() {
            line(ASYNC_EQN, "asynchronous", eq.progress())?;
        }
        for eq in self.comp_eqs() {
            let progress = eq.ring.lock().progress();
            line(eq.eqn, "completions", progress)?;
        }
        Ok(())
    }

    /// Requests vector 0, without which the command queue has no interrupt. Returns the work item
    /// for asynchronous events.
    pub(crate) fn prepare(
        self: &Arc<Self>,
        hw: &Arc<Hw>,
        resources: &DeviceResources,
        to: &Arc<dyn Listener>,
    ) -> Result<Arc<work::Work<AsyncWork>>> {
        let events = AsyncWork {
            hw: hw.clone(),
            events: self.clone(),
            to: to.clone(),
        };
        let work = Arc::new(
            new_work!(Arc::new(events, GFP_KERNEL)?, &resources.events)?,
            GFP_KERNEL,
        )?;
        let handler = AsyncVector {
            hw: hw.clone(),
            work: work.clone(),
        };
        hw.add_irq(resources, 0, Arc::new(handler, GFP_KERNEL)?)?;
        Ok(work)
    }

    /// Creates the event queues, and requests the vectors of completions.
    pub(crate) fn start(
        &self,
        hw: &Arc<Hw>,
        resources: &DeviceResources,
        asynchronous: Arc<work::Work<AsyncWork>>,
        to: &Arc<dyn Listener>,
    ) -> Result {
        let eq = AsyncEq::new(hw)?;
        self.asynchronous.populate(eq.clone());
        eq.memory.create(hw, ASYNC_EQN, 0)?;
        let caps = hw.caps()?;
        let count = caps
            .num_comp_vectors
            .get()
            .min(resources.vectors.count().saturating_sub(1))
            .min(caps.max_eq.get().saturating_sub(1))
            .min(MAX_COMP_VECTORS);
        let mut eqs = KVec::with_capacity(count as usize, GFP_KERNEL)?;
        let mut completions = KVec::with_capacity(count as usize, GFP_KERNEL)?;
        for vector in 1..=count {
            let eq = CompEq::new(hw, ASYNC_EQN + vector)?;
            let handler = CompVector {
                hw: hw.clone(),
                eq: eq.clone(),
                to: to.clone(),
            };
            let handler = Arc::new(handler, GFP_KERNEL)?;
            hw.add_irq(resources, vector, handler.clone())?;
            let work = new_work!(handler, &resources.events)?;
            completions.push(Arc::new(work, GFP_KERNEL)?, GFP_KERNEL)?;
            eqs.push(eq, GFP_KERNEL)?;
        }
        if eqs.is_empty() {
            dev_err!(
                hw.pdev,
                "the device has no interrupt vector for completion events\n"
            );
            return Err(ENODEV);
        }
        let works = EventWorks {
            asynchronous,
            completions,
        };
        *self.works.lock() = Some(Arc::new(works, GFP_KERNEL)?);
        self.completions.populate(eqs);
        for (vector, eq) in (1..).zip(self.comp_eqs()) {
            eq.memory.create(hw, eq.eqn, vector)?;
        }
        Ok(())
    }

    /// Returns the completion event queues.
    pub(crate) fn comp_eqs(&self) -> &[Arc<CompEq>] {
        self.completions.as_ref().map_or(&[], |eqs| eqs)
    }

    /// Returns the work items, between [`start`](Self::start) and [`stop`](Self::stop).
    fn works(&self) -> Option<Arc<EventWorks>> {
        self.works.lock().clone()
    }

    /// Queues the work items of all event queues.
    pub(crate) fn queue_all(&self) {
        if let Some(works) = self.works() {
            works.asynchronous.queue();
            for work in &works.completions {
                work.queue();
            }
        }
    }

    /// Waits until no asynchronous event of `object` below the producer index `pi`, which the
    /// device has reported, is being handled or will be. See [`AsyncEq::drain`].
    pub(crate) fn drain_async(&self, hw: &Hw, object: AffiliatedObject, pi: u32) {
        if let (Some(eq), Some(works)) = (self.asynchronous.as_ref(), self.works()) {
            eq.drain(hw, object, pi, || {
                works.asynchronous.queue();
            });
        }
    }

    /// Waits until all completion events of `eq` below `pi` have been handled.
    pub(crate) fn drain(&self, hw: &Hw, eq: &CompEq, pi: u32) {
        let Some(works) = self.works() else { return };
        let vector = eq.eqn.wrapping_sub(ASYNC_EQN + 1) as usize;
        drain(
            hw,
            || eq.ring.lock().progress_to(pi),
            || {
                if let Some(work) = works.completions.get(vector) {
                    work.queue();
                    work.flush();
                }
            },
        );
    }

    /// True if an event queue has an entry whose interrupt is missing.
    pub(crate) fn has_missed_interrupt(&self) -> bool {
        let comp = self
            .comp_eqs()
            .iter()
            .filter(|eq| eq.ring.lock().has_missed_interrupt())
            .count();
        comp != 0
            || self
                .asynchronous
                .as_ref()
                .is_some_and(|eq| eq.has_missed_interrupt())
    }

    /// Takes all event queues back from a device that is alive. They must be unused.
    pub(crate) fn end(&self, hw: &Hw) {
        for eq in self.comp_eqs() {
            eq.memory.destroy(hw, eq.eqn);
        }
        if let Some(eq) = self.asynchronous.as_ref() {
            eq.memory.destroy(hw, ASYNC_EQN);
        }
    }

    /// Waits for the work items, which hold references to the device, and drops them. The listener
    /// is not called any more after that.
    pub(crate) fn stop(&self) {
        let works = self.works.lock().take();
        drop(works);
    }
}
