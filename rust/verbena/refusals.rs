// SPDX-License-Identifier: GPL-2.0

//! How often a process may make the log speak of it.
//!
//! What the device refuses is usually the asker's mistake, and a process can ask for nonsense as
//! often as it likes. So it is counted for each process by itself: who has used up his own messages
//! takes nobody else's.

use kernel::prelude::*;
use rdma::{
    base::{
        sync::IrqLock,
        task::current_process, //
    },
    new_irq_lock, //
};

/// How many messages a process may cause.
const MOST: u32 = 8;

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
            }),
        })
    }

    /// Whether one more message may be logged about what the current process asked for.
    pub(crate) fn may_log(&self) -> bool {
        let process = current_process();
        let mut guard = self.askers.lock();
        let askers = &mut *guard;
        let known = askers
            .list
            .iter_mut()
            .flatten()
            .find(|asker| asker.process == process);
        if let Some(asker) = known {
            asker.count = asker.count.saturating_add(1);
            return asker.count <= MOST;
        }
        if let Some(place) = askers.list.get_mut(askers.oldest) {
            *place = Some(Asker { process, count: 1 });
        }
        askers.oldest = (askers.oldest + 1) % REMEMBERED;
        true
    }
}
