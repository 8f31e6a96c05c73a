// SPDX-License-Identifier: GPL-2.0

//! How far the device's life has gone: alive, dead, silent, lost.
//!
//! * *Alive*: it works.
//! * *Dead*: something failed, and whoever found out called [`Health::declare_dead`], in any context;
//!   the first one wins and the undertaker starts its work. Commands
//!   fail with `EIO` from then on, but the device may still read and write memory.
//! * *Silent*: a reset was confirmed, or bus mastering was cleared and reads back as cleared. There
//!   is no DMA any more: queues are flushed in software, and memory can be freed.
//! * *Lost*: neither could be had. Queues are flushed in software all the same, because drains wait
//!   without a timeout; but what the device was told of is never freed ([`crate::cmdq::lent`]).
//!
//! Each life goes through them in this order, and ends in one of the last two.

use crate::refusals::Refusals;
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
use rdma::{
    base::{
        sync::{
            Completion,
            IrqLock, //
        },
        work::Wake, //
    },
    new_irq_lock,
    trace, //
};

/// Why the device is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// It said so, with this syndrome.
    Device(u32),
    /// It did not answer a command.
    CommandTimeout,
    /// It is no longer there.
    Gone,
    /// It broke the contract.
    Protocol(&'static str),
    /// The driver is being unbound.
    Unbind,
}

/// How a life ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The device does no DMA any more.
    Silent,
    /// It may do DMA for ever.
    Lost,
}

const ALIVE: u32 = 0;
const DEAD: u32 = 1;
const SILENT: u32 = 2;
const LOST: u32 = 3;

/// How many complaints about the device one life may log.
const COMPLAINTS: u32 = 32;

/// How long to wait at a stretch: less than what the kernel takes for a hung task.
const WAIT_MS: u32 = 5_000;

/// Whether the device lives.
#[pin_data]
pub(crate) struct Health {
    pdev: ARef<pci::Device>,
    stage: Atomic<u32>,
    died: SetOnce<Instant<Monotonic>>,
    /// Completed when the life has ended.
    #[pin]
    ended: Completion,
    logged: Atomic<u32>,
    abandoned: Atomic<usize>,
    /// Messages about what processes asked for.
    #[pin]
    pub(crate) refusals: Refusals,
    #[pin]
    undertaker: IrqLock<Option<Arc<dyn Wake>>>,
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
            refusals <- Refusals::new(),
            undertaker <- new_irq_lock!(None),
        })
    }

    /// Who is to be called on death. With `None` nobody, and nobody is any more.
    pub(crate) fn set_undertaker(&self, undertaker: Option<Arc<dyn Wake>>) {
        let old = core::mem::replace(&mut *self.undertaker.lock(), undertaker);
        // Dropping waits for the work, so not under the lock.
        drop(old);
        if self.is_dead() {
            self.flush();
        }
    }

    /// The device, for messages.
    pub(crate) fn pdev(&self) -> &pci::Device {
        &self.pdev
    }

    /// The device's name: its PCI address.
    pub(crate) fn name(&self) -> &CStr {
        let device: &kernel::device::Device = (*self.pdev).as_ref();
        device.name()
    }

    /// Whether the device is no longer alive: no command is sent.
    #[inline]
    pub(crate) fn is_dead(&self) -> bool {
        self.stage.load(Acquire) != ALIVE
    }

    /// When it died, if it did.
    pub(crate) fn died(&self) -> Option<Instant<Monotonic>> {
        self.died.copy()
    }

    /// Whether the life has ended, silent or lost: queues are flushed in software.
    #[inline]
    pub(crate) fn has_ended(&self) -> bool {
        self.stage.load(Acquire) >= SILENT
    }

    /// The device is dead. Any context.
    pub(crate) fn declare_dead(&self, cause: Cause) {
        if self.stage.cmpxchg(ALIVE, DEAD, Full).is_err() {
            return;
        }
        self.died.populate(Instant::now());
        let (what, syndrome) = match cause {
            Cause::Device(syndrome) => ("fatal", syndrome),
            Cause::CommandTimeout => ("silent", 0),
            Cause::Gone => ("gone", 0),
            Cause::Protocol(what) => (what, 0),
            Cause::Unbind => ("unbound", 0),
        };
        trace::device(self.name(), what, syndrome);
        match cause {
            Cause::Device(syndrome) => {
                dev_err!(
                    self.pdev,
                    "the device reports a fatal error, syndrome {syndrome:#06x}\n"
                )
            }
            Cause::CommandTimeout => {
                dev_err!(self.pdev, "the device does not answer: it is given up\n")
            }
            Cause::Gone => dev_err!(self.pdev, "the device is gone\n"),
            Cause::Protocol(what) => dev_err!(self.pdev, "the device is given up: {what}\n"),
            // Who unbinds silences the device himself.
            Cause::Unbind => return,
        }
        self.flush();
    }

    /// The life ends. Once, by whoever silenced the device or could not.
    pub(crate) fn end(&self, end: End) {
        let stage = match end {
            End::Silent => SILENT,
            End::Lost => LOST,
        };
        self.stage.store(stage, Release);
        self.ended.complete_all();
        if end == End::Lost {
            dev_err!(
                self.pdev,
                "the device can be neither reset nor kept from DMA: what it was given is not freed\n"
            );
        }
    }

    /// Waits until a device that is dead is silent or lost. Process context; at once while it lives.
    pub(crate) fn wait_end(&self) {
        while self.is_dead() && !self.has_ended() {
            let _ = self.ended.wait_ms(WAIT_MS);
        }
    }

    /// Waits for the end of a dead device; whether there is no DMA any more.
    pub(crate) fn wait_silent(&self) -> bool {
        self.wait_end();
        self.stage.load(Acquire) == SILENT
    }

    /// So many bytes that the device was told of will never be freed.
    pub(crate) fn abandoned(&self, bytes: usize) {
        if !self.is_dead() {
            // It was told of them, and nobody has asked it to let go.
            dev_err!(self.pdev, "{bytes} bytes were never taken back\n");
        }
        self.abandoned.fetch_add(bytes, Relaxed);
    }

    /// Bytes that will never be freed.
    pub(crate) fn total_abandoned(&self) -> usize {
        self.abandoned.load(Relaxed)
    }

    /// Lets the undertaker look at the queues (again). Any context.
    pub(crate) fn flush(&self) {
        if let Some(undertaker) = &*self.undertaker.lock() {
            undertaker.wake();
        }
    }

    /// Whether one more complaint about the device may be logged in this life.
    pub(crate) fn may_log(&self) -> bool {
        self.logged.load(Relaxed) < COMPLAINTS && self.logged.fetch_add(1, Relaxed) < COMPLAINTS
    }
}
