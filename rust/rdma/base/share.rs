// SPDX-License-Identifier: GPL-2.0

//! What users share, and how much of it each of them may have.
//!
//! Nobody needs privileges to open an RDMA device, and processes cost nothing; so what is limited is
//! shared by users (real UIDs), not by processes. A [`Supply`] has one rule: *whoever takes something has
//! afterwards no more than what is left for everybody else*. One user gets at most half of the supply,
//! two who are greedy a third each, and so on: however many there are, something is left for who comes next.
//! An eighth of it is out of this account: processes with `CAP_SYS_RESOURCE` may take it, and may have more
//! than their share. The kernel's own use makes what is shared smaller, and is not refused here.
//!
//! [`QueueMemory`] is the share of the memory that processes make the kernel allocate. Of it the first
//! [`FREE`] bytes of a process are free, so that ordinary programs need no RLIMIT_MEMLOCK for their
//! queues; what it takes beyond that is pinned memory (`mm->pinned_vm`) like the memory that it registers, and
//! counts against that limit unless the process has `CAP_IPC_LOCK`.

use crate::{
    base::dma::Payer,
    bindings, //
};
use core::ptr::NonNull;
use kernel::{
    bindings as kbindings,
    new_mutex,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Full,
            Relaxed,
            Release, //
        },
        Arc,
        Mutex, //
    }, //
};

/// Bytes of queues that a process has without RLIMIT_MEMLOCK: as much as that limit is where nobody has
/// set one (`MLOCK_LIMIT` of the kernel).
pub const FREE: usize = 8 << 20;

/// How much each has of something. Who has nothing is not in it.
struct Ledger {
    /// How much all users have.
    of_users: usize,
    /// Sorted by the first number: whose, and how much.
    parts: KVVec<(usize, usize)>,
}

impl Ledger {
    const fn new() -> Self {
        Self {
            of_users: 0,
            parts: KVVec::new(),
        }
    }

    fn find(&self, whose: usize) -> Result<usize, usize> {
        self.parts.binary_search_by_key(&whose, |part| part.0)
    }

    /// How much `whose` has.
    fn part(&self, whose: usize) -> usize {
        self.find(whose)
            .ok()
            .and_then(|at| self.parts.get(at))
            .map_or(0, |part| part.1)
    }

    fn add(&mut self, whose: usize, amount: usize) -> Result {
        match self.find(whose) {
            Ok(at) => {
                if let Some(part) = self.parts.get_mut(at) {
                    part.1 = part.1.saturating_add(amount);
                }
            }
            Err(at) => {
                self.parts.reserve(1, GFP_KERNEL)?;
                self.parts
                    .insert_within_capacity(at, (whose, amount))
                    .map_err(|_| ENOMEM)?;
            }
        }
        Ok(())
    }

    fn remove(&mut self, whose: usize, amount: usize) {
        let Ok(at) = self.find(whose) else { return };
        let left = self.part(whose).saturating_sub(amount);
        if left != 0 {
            if let Some(part) = self.parts.get_mut(at) {
                part.1 = left;
            }
            return;
        }
        // Cannot fail: it was found there.
        let _ = self.parts.remove(at);
        if self.parts.is_empty() {
            // A ledger may be a static, which nobody drops.
            self.parts = KVVec::new();
        }
    }

    /// Takes `amount` of `total` for a user.
    fn take(&mut self, user: usize, amount: usize, total: usize) -> Result {
        let of_users = self.of_users.saturating_add(amount);
        let mine = self.part(user).saturating_add(amount);
        let left = shared(total).saturating_sub(of_users);
        // SAFETY: Asks for a capability of the current task.
        let may_exceed = || unsafe { bindings::rdma_helper_may_exceed() };
        if mine > left && !(of_users <= total && may_exceed()) {
            return Err(ENOMEM);
        }
        self.add(user, amount)?;
        self.of_users = of_users;
        Ok(())
    }

    fn give_back(&mut self, user: usize, amount: usize) {
        self.of_users = self.of_users.saturating_sub(amount);
        self.remove(user, amount);
    }
}

/// What users share of `total`: the rest is for the privileged.
fn shared(total: usize) -> usize {
    total - total / 8
}

/// Whose something is that the current process has the kernel make for `payer`.
fn user_of(payer: Payer) -> Option<usize> {
    (payer != Payer::Kernel).then(|| {
        // SAFETY: No requirement.
        // CAST: 32 bits.
        unsafe { bindings::rdma_helper_current_uid() as usize }
    })
}

/// Says why the current process gets no more. Not always: a process may ask as often as it likes.
fn refuse(what: &CStr) -> Error {
    // SAFETY: A C string, of which nothing is kept.
    unsafe { bindings::rdma_helper_say_refused(what.as_char_ptr()) };
    ENOMEM
}

/// A number of something that users share. See the [module](self).
#[pin_data]
pub struct Supply {
    /// What it is, for messages.
    what: &'static CStr,
    total: usize,
    /// How many of them are the kernel's in any case.
    reserve: usize,
    /// How many the kernel has. It takes no lock: whoever holds that may be waiting for memory, and whoever frees some for
    /// an object of the kernel's.
    of_kernel: Atomic<usize>,
    #[pin]
    ledger: Mutex<Ledger>,
}

impl Supply {
    /// So many of something, whose name in messages is `what`. `reserve` of them are the kernel's in any case.
    pub fn new(what: &'static CStr, total: usize, reserve: usize) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                what,
                total,
                reserve,
                of_kernel: Atomic::new(0),
                ledger <- new_mutex!(Ledger::new()),
            }),
            GFP_KERNEL,
        )
    }

    /// Takes one, for the user of the current process unless it is for the kernel. `ENOMEM` if the user has
    /// its share. May sleep.
    pub fn take(this: &Arc<Self>, payer: Payer) -> Result<Part> {
        let user = user_of(payer);
        match user {
            None => {
                this.of_kernel.fetch_add(1, Relaxed);
            }
            Some(user) => {
                let of_kernel = this.of_kernel.load(Relaxed).max(this.reserve);
                let total = this.total.saturating_sub(of_kernel);
                let taken = this.ledger.lock().take(user, 1, total);
                taken.map_err(|_| refuse(this.what))?;
            }
        }
        Ok(Part {
            supply: this.clone(),
            user,
        })
    }
}

/// One of a [`Supply`], given back when it is dropped.
pub struct Part {
    supply: Arc<Supply>,
    user: Option<usize>,
}

impl Drop for Part {
    fn drop(&mut self) {
        match self.user {
            None => {
                self.supply.of_kernel.fetch_sub(1, Relaxed);
            }
            Some(user) => self.supply.ledger.lock().give_back(user, 1),
        }
    }
}

kernel::sync::global_lock! {
    /// The memory that users have, of all devices.
    // SAFETY: `begin` initializes it before there is a `Binding`, without which no memory is taken.
    unsafe(uninit) static MEMORY: Mutex<Ledger> = Ledger::new();
}

kernel::sync::global_lock! {
    /// The memory that processes have for queues, by the address of their `mm_struct`.
    // SAFETY: As above.
    unsafe(uninit) static QUEUES: Mutex<Ledger> = Ledger::new();
}

/// Whether the locks above are initialized: 0 no, 1 somebody is about to, 2 yes.
static BEGUN: Atomic<u32> = Atomic::new(0);

/// Makes the accounts ready, once for the module.
pub(crate) fn begin() {
    if BEGUN.cmpxchg(0, 1, Full).is_ok() {
        // SAFETY: Once, and nobody has used them yet: see `has_begun`.
        unsafe {
            MEMORY.init();
            QUEUES.init();
        }
        BEGUN.store(2, Release);
    }
}

/// Whether [`begin`] was called.
pub(crate) fn has_begun() -> bool {
    BEGUN.load(Acquire) == 2
}

/// Pages that a process with `bytes` for queues must have pinned.
fn pages_beyond_free(bytes: usize) -> usize {
    bytes.saturating_sub(FREE).div_ceil(PAGE_SIZE)
}

/// Memory for queues of a process, beyond what is free charged to it as pinned.
struct Queues {
    /// Address of the process' `mm_struct`, which exists as long as it is in [`QUEUES`].
    mm: NonNull<kbindings::mm_struct>,
    bytes: usize,
}

// SAFETY: A counter of an `mm_struct` may be changed from any thread.
unsafe impl Send for Queues {}
// SAFETY: As above.
unsafe impl Sync for Queues {}

impl Queues {
    /// `None` in a thread of the kernel's.
    fn take(bytes: usize) -> Result<Option<Self>> {
        // SAFETY: No requirement.
        let Some(mm) = NonNull::new(unsafe { bindings::rdma_helper_current_mm() }) else {
            return Ok(None);
        };
        let whose = mm.as_ptr().addr();
        let mut ledger = QUEUES.lock();
        let before = ledger.part(whose);
        let pages = pages_beyond_free(before + bytes) - pages_beyond_free(before);
        // SAFETY: The current process' own.
        if !unsafe { bindings::rdma_helper_mm_pin(mm.as_ptr(), pages) } {
            return Err(ENOMEM);
        }
        let added = ledger.add(whose, bytes);
        // SAFETY: As above: it is held from its first bytes to its last.
        unsafe {
            if added.is_err() {
                bindings::rdma_helper_mm_unpin(mm.as_ptr(), pages);
            } else if before == 0 {
                bindings::rdma_helper_mm_hold(mm.as_ptr());
            }
        }
        added?;
        Ok(Some(Self { mm, bytes }))
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        let whose = self.mm.as_ptr().addr();
        let mut ledger = QUEUES.lock();
        let before = ledger.part(whose);
        ledger.remove(whose, self.bytes);
        let after = ledger.part(whose);
        drop(ledger);
        let pages = pages_beyond_free(before) - pages_beyond_free(after);
        // SAFETY: Held since its first bytes, and what was pinned for them is so until now. Whoever makes it
        // have bytes again meanwhile is the process itself, and holds it again.
        unsafe {
            bindings::rdma_helper_mm_unpin(self.mm.as_ptr(), pages);
            if after == 0 {
                bindings::rdma_helper_mm_release(self.mm.as_ptr());
            }
        }
    }
}

/// Bytes of the kernel's memory that a process has, given back when it is dropped.
pub(crate) struct QueueMemory {
    user: usize,
    /// 0 when they are nobody's any more.
    bytes: Atomic<usize>,
    _queues: Option<Queues>,
}

impl QueueMemory {
    /// Takes `bytes` for the user of the current process, and if they are for a queue for that process.
    pub(crate) fn take(payer: Payer, bytes: usize) -> Result<Self> {
        let user = user_of(payer).ok_or(EINVAL)?;
        // SAFETY: Only reads.
        let total = unsafe { bindings::rdma_helper_total_ram() } / 4;
        let taken = MEMORY.lock().take(user, bytes, total);
        taken.map_err(|_| refuse(c"the memory for queues and tables"))?;
        // From here on given back by the drop.
        let mut this = Self {
            user,
            bytes: Atomic::new(bytes),
            _queues: None,
        };
        if payer == Payer::Process {
            this._queues = Queues::take(bytes)
                .map_err(|_| refuse(c"memory for queues by RLIMIT_MEMLOCK (ulimit -l)"))?;
        }
        Ok(this)
    }

    /// The memory will never be freed: it counts as nobody's from now on, so that what is left to a lost
    /// device does not make the users' shares smaller.
    pub(crate) fn forgive(&self) {
        let bytes = self.bytes.xchg(0, Relaxed);
        MEMORY.lock().give_back(self.user, bytes);
    }
}

impl Drop for QueueMemory {
    fn drop(&mut self) {
        self.forgive();
    }
}
