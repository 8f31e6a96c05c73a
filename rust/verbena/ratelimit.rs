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
const MAX_PER_PROCESS: u32 = 8;

/// Limit of messages that all processes together cause in a [`WINDOW`].
const MAX_TOTAL: u32 = 128;

/// Length of the window for [`MAX_TOTAL`].
const WINDOW: Delta = Delta::from_secs(10);

/// Number of processes that are remembered. A process that is forgotten starts counting again.
const TRACKED_PROCESSES: usize = 32;

#[derive(Clone, Copy)]
struct ProcessMessages {
    process: i32,
    count: u32,
}

struct RatelimitState {
    list: [Option<ProcessMessages>; TRACKED_PROCESSES],
    oldest: usize,
    /// Beginning of the present window, since which `messages` counts.
    began: Instant<Monotonic>,
    messages: u32,
}

impl RatelimitState {
    /// Counts a message of the process. Returns true if the process is within its limit.
    fn count_message(&mut self, process: i32) -> bool {
        let entry = self
            .list
            .iter_mut()
            .flatten()
            .find(|entry| entry.process == process);
        if let Some(entry) = entry {
            entry.count = entry.count.saturating_add(1);
            return entry.count <= MAX_PER_PROCESS;
        }
        if let Some(slot) = self.list.get_mut(self.oldest) {
            *slot = Some(ProcessMessages { process, count: 1 });
        }
        self.oldest = (self.oldest + 1) % TRACKED_PROCESSES;
        true
    }
}

/// Counters of messages about refused requests.
#[pin_data]
pub(crate) struct RefusalRatelimit {
    #[pin]
    state: IrqLock<RatelimitState>,
}

impl RefusalRatelimit {
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            state <- new_irq_lock!(RatelimitState {
                list: [None; TRACKED_PROCESSES],
                oldest: 0,
                began: Instant::now(),
                messages: 0,
            }),
        })
    }

    /// Counts a message about a request of the current process. Returns true if it may be logged.
    pub(crate) fn may_log(&self) -> bool {
        let process = current_process();
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if state.began.elapsed() >= WINDOW {
            state.began = Instant::now();
            state.messages = 0;
        }
        if !state.count_message(process) || state.messages >= MAX_TOTAL {
            return false;
        }
        state.messages += 1;
        true
    }
}
