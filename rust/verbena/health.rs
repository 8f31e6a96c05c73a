// SPDX-License-Identifier: GPL-2.0

//! Health of the device: alive, dead, silent, lost.
//!
//! * *Alive*: the device works.
//! * *Dead*: something failed, and the code that noticed it called [`Health::declare_dead`], in any
//!   context. The first call counts, and queues the death work unless the driver is being unbound.
//!   Commands fail with `EIO` from then on, but the device may still read and write memory.
//! * *Silent*: a reset was confirmed, or bus mastering was cleared and reads back as cleared. There
//!   is no DMA any more, so queues are flushed in software and memory can be freed.
//! * *Lost*: neither the reset nor clearing bus mastering succeeded. Queues are flushed in software
//!   all the same, because drains wait without a timeout. Memory that the device has the address of
//!   is never freed ([`crate::cmdq::lent`]).
//!
//! Each life goes through these stages in this order, and ends either silent or lost.

use crate::ratelimit::RefusalRatelimit;
use base::{
    new_irq_lock,
    sync::{
        Completion,
        IrqLock, //
    },
    work::Wake, //
};
use kernel::{
    pci,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            Acquire,
            Atomic,
            Full,
            Relaxed,
            Release, //
        },
        Arc,
        SetOnce, //
    },
    time::{
        Instant,
        Monotonic, //
    },
};
use rdma::trace;

/// Reason why the device was declared dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeathCause {
    /// The device reported a fatal error, with this syndrome.
    Device(u32),
    /// The device did not answer a command in time.
    CommandTimeout,
    /// The device is no longer on the bus.
    Removed,
    /// The device broke the contract, in the way that the text says.
    Protocol(&'static str),
    /// The driver is being unbound.
    Unbind,
}

/// Final stage of a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FinalStage {
    /// The device does no DMA any more.
    Silent,
    /// The device may do DMA for ever.
    Lost,
}

const ALIVE: u32 = 0;
const DEAD: u32 = 1;
const SILENT: u32 = 2;
const LOST: u32 = 3;

/// Limit of complaints about the device that are logged in one life.
const MAX_COMPLAINTS: u32 = 32;

/// Longest wait at a time, in milliseconds. It is shorter than the kernel's limit for a hung task.
const WAIT_MS: u32 = 5_000;

/// Health of the device in one life.
#[pin_data]
pub(crate) struct Health {
    pdev: ARef<pci::Device>,
    stage: Atomic<u32>,
    died: SetOnce<Instant<Monotonic>>,
    /// Completion that is signaled when the life has ended.
    #[pin]
    ended: Completion,
    logged: Atomic<u32>,
    abandoned: Atomic<usize>,
    /// Limit for log messages about requests of processes that were refused.
    #[pin]
    pub(crate) ratelimit: RefusalRatelimit,
    #[pin]
    death_work: IrqLock<Option<Arc<dyn Wake>>>,
}

impl Health {
    pub(crate) fn new(pdev: ARef<pci::Device>) -> impl PinInit<Self> {
        pin_init!(Self {
            pdev,
            stage: Atomic::new(ALIVE),
            died: SetOnce::new(),
            ended <- Completion::new(),
            logged: Atomic::new(0),
            abandoned: Atomic::new(0),
            ratelimit <- RefusalRatelimit::new(),
            death_work <- new_irq_lock!(None),
        })
    }

    /// Sets the death work, which is woken when the device dies. `None` removes it and waits until
    /// the former death work has ended.
    pub(crate) fn set_death_work(&self, death_work: Option<Arc<dyn Wake>>) {
        let old = core::mem::replace(&mut *self.death_work.lock(), death_work);
        // Dropping waits for the work, so it happens without the lock.
        drop(old);
        if self.is_dead() {
            self.flush();
        }
    }

    /// Returns the PCI device, for log messages.
    pub(crate) fn pdev(&self) -> &pci::Device {
        &self.pdev
    }

    /// Returns the name of the device, which is its PCI address.
    pub(crate) fn name(&self) -> &CStr {
        let device: &kernel::device::Device = (*self.pdev).as_ref();
        device.name()
    }

    /// True if the device is no longer alive. The driver sends no command then.
    #[inline]
    pub(crate) fn is_dead(&self) -> bool {
        self.stage.load(Acquire) != ALIVE
    }

    /// Returns the time of the device's death, if it is dead.
    pub(crate) fn died(&self) -> Option<Instant<Monotonic>> {
        self.died.copy()
    }

    /// True if the life has ended, silent or lost. Queues are flushed in software then.
    #[inline]
    pub(crate) fn has_ended(&self) -> bool {
        self.stage.load(Acquire) >= SILENT
    }

    /// Declares the device dead, unless it is dead already. Any context.
    pub(crate) fn declare_dead(&self, cause: DeathCause) {
        if self.stage.cmpxchg(ALIVE, DEAD, Full).is_err() {
            return;
        }
        self.died.populate(Instant::now());
        let (what, syndrome) = match cause {
            DeathCause::Device(syndrome) => ("fatal", syndrome),
            DeathCause::CommandTimeout => ("silent", 0),
            DeathCause::Removed => ("gone", 0),
            DeathCause::Protocol(what) => (what, 0),
            DeathCause::Unbind => ("unbound", 0),
        };
        trace::device(self.name(), what, syndrome);
        match cause {
            DeathCause::Device(syndrome) => {
                dev_err!(
                    self.pdev,
                    "the device reports a fatal error, syndrome {syndrome:#06x}\n"
                )
            }
            DeathCause::CommandTimeout => {
                dev_err!(self.pdev, "the device is given up: it does not reply\n")
            }
            DeathCause::Removed => dev_err!(self.pdev, "the device is gone\n"),
            DeathCause::Protocol(what) => dev_err!(self.pdev, "the device is given up: {what}\n"),
            // The code that unbinds the driver silences the device itself.
            DeathCause::Unbind => return,
        }
        self.flush();
    }

    /// Ends the life. The code that silenced the device, or failed to, calls it once.
    pub(crate) fn end(&self, end: FinalStage) {
        let stage = match end {
            FinalStage::Silent => SILENT,
            FinalStage::Lost => LOST,
        };
        self.stage.store(stage, Release);
        self.ended.complete_all();
        if end == FinalStage::Lost {
            dev_err!(
                self.pdev,
                "neither a reset nor the end of bus mastering is confirmed: memory of the device is never freed\n"
            );
        }
    }

    /// Waits until a dead device is silent or lost. Returns at once if the device is alive. Process
    /// context.
    pub(crate) fn wait_end(&self) {
        while self.is_dead() && !self.has_ended() {
            let _ = self.ended.wait_ms(WAIT_MS);
        }
    }

    /// Waits until a dead device is silent or lost. Returns true if the device does no DMA any
    /// more.
    pub(crate) fn wait_silent(&self) -> bool {
        self.wait_end();
        self.stage.load(Acquire) == SILENT
    }

    /// Counts `bytes` of memory that the device has the address of and that will never be freed.
    pub(crate) fn add_abandoned(&self, bytes: usize) {
        if !self.is_dead() {
            // The device has the address, and no command has made the device let go of it.
            dev_err!(
                self.pdev,
                "no command has returned {bytes} bytes from the device: never freed\n"
            );
        }
        self.abandoned.fetch_add(bytes, Relaxed);
    }

    /// Returns the number of bytes that will never be freed.
    pub(crate) fn total_abandoned(&self) -> usize {
        self.abandoned.load(Relaxed)
    }

    /// Queues the death work, which looks at the queues (again). Any context.
    pub(crate) fn flush(&self) {
        if let Some(death_work) = &*self.death_work.lock() {
            death_work.wake();
        }
    }

    /// True if the driver may log one more complaint about the device in this life.
    pub(crate) fn may_log(&self) -> bool {
        self.logged.load(Relaxed) < MAX_COMPLAINTS
            && self.logged.fetch_add(1, Relaxed) < MAX_COMPLAINTS
    }
}
