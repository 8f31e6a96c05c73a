// SPDX-License-Identifier: GPL-2.0

//! Whether the device lives, and what to do when it dies.
//!
//! Whoever finds out that the device is dead calls [`Health::declare_dead`], in any context; the
//! first one wins and the [`Undertaker`](crate::undertaker) starts its work. From then on commands
//! fail with `EIO` and queues are flushed in software.

use crate::undertaker::Undertaker;
use kernel::{
    pci,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            Acquire,
            Atomic,
            Full,
            Relaxed, //
        },
        Arc, //
    },
};
use rdma::{
    new_irq_lock,
    sync::IrqLock,
    work::Work, //
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

/// How many complaints about the device one life may log.
const COMPLAINTS: u32 = 32;

/// Whether the device lives.
#[pin_data]
pub(crate) struct Health {
    pdev: ARef<pci::Device>,
    dead: Atomic<bool>,
    logged: Atomic<u32>,
    #[pin]
    work: IrqLock<Option<Arc<Work<Undertaker>>>>,
}

impl Health {
    pub(crate) fn new(pdev: ARef<pci::Device>) -> impl PinInit<Self> {
        pin_init!(Self {
            pdev,
            dead: Atomic::new(false),
            logged: Atomic::new(0),
            work <- new_irq_lock!(None),
        })
    }

    /// Who is to be called on death. With `None` nobody, and nobody is any more.
    pub(crate) fn set_undertaker(&self, work: Option<Arc<Work<Undertaker>>>) {
        let old = core::mem::replace(&mut *self.work.lock(), work);
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

    /// Whether the device is dead.
    #[inline]
    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Acquire)
    }

    /// The device is dead. Any context.
    pub(crate) fn declare_dead(&self, cause: Cause) {
        if self.dead.xchg(true, Full) {
            return;
        }
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
            Cause::Unbind => {}
        }
        self.flush();
    }

    /// Lets the undertaker look at the queues (again). Any context.
    pub(crate) fn flush(&self) {
        if let Some(work) = &*self.work.lock() {
            work.queue();
        }
    }

    /// Whether one more complaint about the device may be logged in this life.
    pub(crate) fn may_log(&self) -> bool {
        self.logged.load(Relaxed) < COMPLAINTS && self.logged.fetch_add(1, Relaxed) < COMPLAINTS
    }
}
