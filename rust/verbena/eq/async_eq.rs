// SPDX-License-Identifier: GPL-2.0

//! The event queue of asynchronous events, and the wait until those of an object have been handled.
//!
//! A handler may sleep, and may wait for a thread that destroys another object. The lock is
//! therefore not held while a handler runs, and a thread that destroys an object waits for the
//! handlers of that object alone. If the handler of another object does not return, entries of the
//! destroyed object that come after it are dropped.

use super::{
    EventMemory,
    EventProgress,
    EventQueues,
    EventRing,
    Listener,
    LOG_SIZE, //
};
use crate::{
    abi::eqe::{
        Eqe,
        EventType, //
    },
    health::DeathCause,
    hw::Hw,
    ring::before, //
};
use base::{
    sync::msleep,
    work, //
};
use kernel::{
    alloc::flags::GFP_NOWAIT,
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
    time::{
        Delta,
        Instant,
        Monotonic, //
    }, //
};
use rdma::trace;

/// Longest time that the destruction of an object waits for the handler of another object, which
/// delays the events of the first.
const HANDLER_TIMEOUT: Delta = Delta::from_millis(200);

/// Object that an asynchronous event concerns.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum AffiliatedObject {
    /// A queue pair, by its QPN.
    Qp(u32),
    /// A completion queue, by its CQN.
    Cq(u32),
    /// A shared receive queue, by its SRQN.
    Srq(u32),
}

impl AffiliatedObject {
    fn of(event: EventType, number: u32) -> Option<Self> {
        match event {
            EventType::Completion
            | EventType::DeviceFatal
            | EventType::PortActive
            | EventType::PortErr
            | EventType::LidChange
            | EventType::PkeyChange
            | EventType::SmChange
            | EventType::ClientReregister
            | EventType::GidChange => None,
            EventType::CqErr => Some(Self::Cq(number)),
            EventType::SrqLimitReached | EventType::SrqErr => Some(Self::Srq(number)),
            EventType::QpFatal
            | EventType::QpReqErr
            | EventType::QpAccessErr
            | EventType::CommEst
            | EventType::SqDrained
            | EventType::QpLastWqeReached => Some(Self::Qp(number)),
        }
    }
}

/// An object that was destroyed, or was reset. Its entries below the producer index `pi` are
/// dropped.
struct RetiredObject {
    object: AffiliatedObject,
    pi: u32,
}

/// The event that is being handled.
#[derive(Clone, Copy)]
struct RunningEvent {
    object: Option<AffiliatedObject>,
    /// Thread that runs the handler.
    thread: i32,
    since: Instant<Monotonic>,
}

struct AsyncEqState {
    ring: EventRing,
    running: Option<RunningEvent>,
    retired: KVec<RetiredObject>,
}

/// Event queue for asynchronous events.
#[pin_data]
pub(super) struct AsyncEq {
    pub(super) memory: Arc<EventMemory>,
    #[pin]
    state: Mutex<AsyncEqState>,
}

impl AsyncEq {
    pub(super) fn new(hw: &Hw) -> Result<Arc<Self>> {
        let memory = EventMemory::new(hw)?;
        Arc::pin_init(
            try_pin_init!(Self {
                state <- new_mutex!(AsyncEqState {
                    ring: EventRing::new(&memory),
                    running: None,
                    retired: KVec::new(),
                }),
                memory,
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Takes the next entry and marks it as being handled. Returns `None` if there is no entry, and
    /// `Some(None)` if the entry was dropped because its object has departed.
    fn take(&self) -> Option<Option<Eqe>> {
        let mut state = self.state.lock();
        let index = state.ring.ci;
        let eqe = state.ring.take()?;
        // CAST: The type is the low byte.
        let event = EventType::from_raw(eqe.tail.get() as u8);
        let object = event.and_then(|event| AffiliatedObject::of(event, eqe.number.get()));
        let is_retired =
            |retired: &RetiredObject| Some(retired.object) == object && before(index, retired.pi);
        let dropped = state.retired.iter().any(is_retired);
        let ci = state.ring.ci;
        state.retired.retain(|retired| before(ci, retired.pi));
        if dropped {
            return Some(None);
        }
        state.running = Some(RunningEvent {
            object,
            thread: kernel::current!().pid(),
            since: Instant::now(),
        });
        Some(Some(eqe))
    }

    /// Handles all entries. Only the work item calls this, so one thread does at a time.
    fn handle(&self, hw: &Hw, to: &dyn Listener) {
        for _ in 0..1 << LOG_SIZE {
            match self.take() {
                None => return,
                Some(None) => {}
                Some(Some(eqe)) => {
                    dispatch(hw, to, &eqe);
                    self.state.lock().running = None;
                }
            }
        }
        // More entries may be there, for which no interrupt comes.
        hw.health.flush();
    }

    /// Waits until no event of `object` below the producer index `pi`, which the device has
    /// reported, is being handled or will be. `work` lets a thread handle the entries.
    ///
    /// The events are handled before this returns, unless a handler of another object, which comes
    /// before them, takes longer than [`HANDLER_TIMEOUT`] or is the caller. The events are dropped
    /// then. In either case the next object with the same number gets none of them.
    pub(super) fn drain(&self, hw: &Hw, object: AffiliatedObject, pi: u32, work: impl Fn()) {
        loop {
            {
                let mut guard = self.state.lock();
                let state = &mut *guard;
                let own = state
                    .running
                    .is_some_and(|running| running.object == Some(object));
                let progress_to = state.ring.progress_to(pi);
                // Events of a dead device are not waited for.
                let is_over = matches!(progress_to, EventProgress::All) || hw.health.is_dead();
                if is_over && !own {
                    return;
                }
                if matches!(progress_to, EventProgress::Nothing) {
                    drop(guard);
                    return hw.health.declare_dead(DeathCause::Protocol(
                        "it reported events that it has not written",
                    ));
                }
                if let Some(running) = state.running {
                    let is_me = running.thread == kernel::current!().pid();
                    let is_stuck = !own && running.since.elapsed() >= HANDLER_TIMEOUT;
                    let retired = RetiredObject { object, pi };
                    if (is_me || is_stuck) && state.retired.push(retired, GFP_NOWAIT).is_ok() {
                        return;
                    }
                    // If no memory is free at once, the loop tries again. It does not wait for
                    // memory, because the thread that frees some may wait for this one. A handler
                    // must not wait for itself.
                    if is_me {
                        return;
                    }
                }
            }
            work();
            msleep(1);
        }
    }

    /// True if an entry that waits already waited at the previous call, and no handler runs. Its
    /// interrupt is missing then.
    pub(super) fn has_missed_interrupt(&self) -> bool {
        let mut state = self.state.lock();
        state.ring.has_missed_interrupt() && state.running.is_none()
    }

    /// Returns the number of entries that were taken, and true if another is there.
    pub(super) fn progress(&self) -> (u32, bool) {
        self.state.lock().ring.progress()
    }
}

/// Delivers an asynchronous event to its object.
fn dispatch(hw: &Hw, to: &dyn Listener, eqe: &Eqe) {
    // CAST: The type is the low byte.
    let kind = EventType::from_raw(eqe.tail.get() as u8);
    let name = kind.map_or("?", |kind| kind.verbs_name());
    let (number, syndrome) = (eqe.number.get(), eqe.syndrome.get());
    trace::event(hw.health.name(), name, number, syndrome);
    match kind {
        None => hw.complain("an unknown asynchronous event"),
        Some(EventType::Completion) => {
            hw.complain("a completion event in the event queue for asynchronous events")
        }
        Some(EventType::DeviceFatal) => {
            hw.health.declare_dead(DeathCause::Device(syndrome));
        }
        Some(event) => to.event(event, number),
    }
}

/// Work that handles asynchronous events.
pub(crate) struct AsyncWork {
    pub(super) hw: Arc<Hw>,
    pub(super) events: Arc<EventQueues>,
    pub(super) to: Arc<dyn Listener>,
}

impl work::Handler for AsyncWork {
    fn run(&self) {
        if let Some(eq) = self.events.asynchronous.as_ref() {
            eq.handle(&self.hw, &*self.to);
        }
    }
}
