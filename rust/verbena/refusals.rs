// SPDX-License-Identifier: GPL-2.0

//! How often a process may make the log speak of it.
//!
//! What the device refuses is usually the asker's mistake, and a process can ask for nonsense as
//! often as it likes. So it is counted for each process by itself: who has used up his own messages
//! takes nobody else's. But processes cost nothing, so there is a bound for all of them, too.

use kernel::{
    prelude::*,
    time::{
        Delta,
        Instant,
        Monotonic, //
    }, //
};
use rdma::{
    base::{
        sync::IrqLock,
        task::current_process, //
    },
    new_irq_lock, //
};

/// How many messages a process may cause.
const MOST: u32 = 8;

/// How many all of them may cause in a [`WINDOW`].
const MOST_OF_ALL: u32 = 128;

/// See [`MOST_OF_ALL`].
const WINDOW: Delta = Delta::from_secs(10);

/// Processes that are remembered. Who is forgotten has his messages again.
const REMEMBERED: usize = 32;

#[derive(Clone, Copy)]
struct Asker {
    process: i32,
    count: u32,
}

struct Askers {
    list: [Option<Asker>; REMEMBERED],
    oldest: usize,
    /// When the present window began, and messages since then.
    began: Instant<Monotonic>,
    messages: u32,
}

impl Askers {
    /// Whether a process has a message left.
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

/// Counts what was refused.
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

    /// Whether one more message may be logged about what the current process asked for.
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
