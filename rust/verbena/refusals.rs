// SPDX-License-Identifier: GPL-2.0

//! Limits for the log messages that processes cause.
//!
//! When the device refuses a request, the process is usually at fault, and a process can send wrong
//! requests as often as it likes. The driver therefore counts messages for each process, so that a
//! process that has used up its own messages takes none from another process. Since processes are
//! cheap, there is also a limit for all of them together.

use base::{
    new_irq_lock,
    sync::IrqLock,
    task::current_process, //
};
use kernel::{
    prelude::*,
    time::{
        Delta,
        Instant,
        Monotonic, //
    }, //
};

/// Limit of messages that one process causes.
const MOST: u32 = 8;

/// Limit of messages that all processes together cause in a [`WINDOW`].
const MOST_OF_ALL: u32 = 128;

/// Length of the window for [`MOST_OF_ALL`].
const WINDOW: Delta = Delta::from_secs(10);

/// Number of processes that are remembered. A process that is forgotten starts counting again.
const REMEMBERED: usize = 32;

#[derive(Clone, Copy)]
struct Asker {
    process: i32,
    count: u32,
}

struct Askers {
    list: [Option<Asker>; REMEMBERED],
    oldest: usize,
    /// Beginning of the present window, since which `messages` counts.
    began: Instant<Monotonic>,
    messages: u32,
}

impl Askers {
    /// Counts a message of the process. Returns true if the process is within its limit.
    fn has_left(&mut self, process: i32) -> bool {
        let known = self
            .list
            .iter_mut()
            .flatten()
            .find(|asker| asker.process == process);
        if let Some(asker) = known {
            asker.count = asker.count.saturating_add(1);
            return asker.count <= MOST;
        }
        if let Some(place) = self.list.get_mut(self.oldest) {
            *place = Some(Asker { process, count: 1 });
        }
        self.oldest = (self.oldest + 1) % REMEMBERED;
        true
    }
}

/// Counters of messages about refused requests.
#[pin_data]
pub(crate) struct Refusals {
    #[pin]
    askers: IrqLock<Askers>,
}

impl Refusals {
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            askers <- new_irq_lock!(Askers {
                list: [None; REMEMBERED],
                oldest: 0,
                began: Instant::now(),
                messages: 0,
            }),
        })
    }

    /// Counts a message about a request of the current process. Returns true if it may be logged.
    pub(crate) fn may_log(&self) -> bool {
        let process = current_process();
        let mut guard = self.askers.lock();
        let askers = &mut *guard;
        if askers.began.elapsed() >= WINDOW {
            askers.began = Instant::now();
            askers.messages = 0;
        }
        if !askers.has_left(process) || askers.messages >= MOST_OF_ALL {
            return false;
        }
        askers.messages += 1;
        true
    }
}
