// SPDX-License-Identifier: GPL-2.0

//! Resources that users share, and the limits of each user's share.
//!
//! C headers: [`include/linux/capability.h`](srctree/include/linux/capability.h),
//! [`include/linux/sched/mm.h`](srctree/include/linux/sched/mm.h)
//!
//! Every process can open an RDMA device without privileges, and processes cost nothing, so the
//! resources are shared by users (real UIDs), not by processes. A [`Supply`] has one rule: *after a
//! user takes a unit, the user has no more than is left for all others*. One user gets at most half
//! of the supply, two users that take all they can get a third each, and so on: there is always
//! something left for the next user. An eighth of the supply does not take part: only processes
//! with `CAP_SYS_RESOURCE` may take it, and these may exceed the share of their user. The kernel's
//! own use reduces the shared amount, and is not refused here.
//!
//! [`QueueMemory`] is the share of the memory that processes make the kernel allocate. The first
//! [`FREE`] bytes of a process are free, so that ordinary programs need no RLIMIT_MEMLOCK for their
//! queues. Memory beyond that is pinned memory (`mm->pinned_vm`) like the memory that the process
//! registers, and counts against that limit unless the process has `CAP_IPC_LOCK`.

use crate::{
    bindings,
    dma::Payer, //
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

/// Bytes of queues that a process may have without RLIMIT_MEMLOCK: the default of that limit
/// (`MLOCK_LIMIT` of the kernel).
pub const FREE: usize = 8 << 20;

/// Amounts that each holder has of a resource. A holder without any is not in the ledger.
struct Ledger {
    /// Sum of the amounts of all users.
    of_users: usize,
    /// Holders and their amounts, sorted by holder.
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

    /// Returns the amount that `whose` has.
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
        // The index comes from `find`, so this cannot fail.
        let _ = self.parts.remove(at);
        if self.parts.is_empty() {
            // A ledger may be a static, which is never dropped.
            self.parts = KVVec::new();
        }
    }

    /// Takes `amount` of `total` for a user, or returns `ENOMEM` if that exceeds the user's share.
    fn take(&mut self, user: usize, amount: usize, total: usize) -> Result {
        let of_users = self.of_users.saturating_add(amount);
        let mine = self.part(user).saturating_add(amount);
        let left = shared(total).saturating_sub(of_users);
        // SAFETY: The function only checks a capability of the current task.
        let may_exceed = || unsafe { bindings::base_helper_may_exceed() };
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

/// Returns the part of `total` that users share. The rest is for privileged processes.
fn shared(total: usize) -> usize {
    total - total / 8
}

/// Returns the user that is charged for an allocation of the current process for `payer`.
fn user_of(payer: Payer) -> Option<usize> {
    (payer != Payer::Kernel).then(|| {
        // SAFETY: The function has no requirements.
        // CAST: A UID has 32 bits.
        unsafe { bindings::base_helper_current_uid() as usize }
    })
}

/// Logs that the current process gets no more. The log is rate-limited, because a process may ask
/// as often as it likes.
fn refuse(what: &CStr) -> Error {
    // SAFETY: `what` is a C string, of which the function keeps no pointer.
    unsafe { bindings::base_helper_say_refused(what.as_char_ptr()) };
    ENOMEM
}

/// A limited number of units that users share. See the [module](self).
///
/// # Examples
///
/// ```
/// use base::{
///     dma::Payer,
///     share::Supply, //
/// };
///
/// // 1000 queues, of which the kernel always gets ten.
/// let queues = Supply::new(c"queues", 1000, 10)?;
/// let part = Supply::take(&queues, Payer::Kernel)?;
/// // The queue is free again for any user.
/// drop(part);
/// # Ok::<(), Error>(())
/// ```
#[pin_data]
pub struct Supply {
    /// Name of the resource, for messages.
    what: &'static CStr,
    total: usize,
    /// Number of units that are reserved for the kernel.
    reserve: usize,
    /// Number of units that the kernel has. This is an atomic outside of the lock, because a holder
    /// of the lock may wait for memory, and freeing memory may wait for an object of the kernel.
    of_kernel: Atomic<usize>,
    #[pin]
    ledger: Mutex<Ledger>,
}

impl Supply {
    /// Creates a supply of `total` units, whose name in messages is `what`. `reserve` of them are
    /// reserved for the kernel.
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

    /// Takes one unit, for the user of the current process or for the kernel. Returns `ENOMEM` if
    /// the user has used up its share. May sleep.
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

/// One unit of a [`Supply`], which is returned when this is dropped.
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
    /// Memory that users have, of all devices.
    // SAFETY: `begin` initializes the lock before there is a `Binding`, without which no memory is
    // taken.
    unsafe(uninit) static MEMORY: Mutex<Ledger> = Ledger::new();
}

kernel::sync::global_lock! {
    /// Memory that processes have for queues, by the address of their `mm_struct`.
    // SAFETY: `begin` initializes the lock before there is a `Binding`, without which no memory is
    // taken.
    unsafe(uninit) static QUEUES: Mutex<Ledger> = Ledger::new();
}

/// State of the initialization of the locks above: 0 not started, 1 in progress, 2 done.
static BEGUN: Atomic<u32> = Atomic::new(0);

/// Initializes the accounts. Calls after the first have no effect.
pub(crate) fn begin() {
    if BEGUN.cmpxchg(0, 1, Full).is_ok() {
        // SAFETY: The exchange succeeds only once, and no code uses the lock before `has_begun`
        // returns true.
        unsafe { MEMORY.init() };
        // SAFETY: The exchange succeeds only once, and no code uses the lock before `has_begun`
        // returns true.
        unsafe { QUEUES.init() };
        BEGUN.store(2, Release);
    }
}

/// True if [`begin`] has initialized the accounts.
pub(crate) fn has_begun() -> bool {
    BEGUN.load(Acquire) == 2
}

/// Returns the number of pages that a process with `bytes` of queues must have pinned.
fn pages_beyond_free(bytes: usize) -> usize {
    bytes.saturating_sub(FREE).div_ceil(PAGE_SIZE)
}

/// Memory for queues of a process. The part beyond the free amount is charged to the process as
/// pinned.
///
/// # Invariants
///
/// `QUEUES` counts `bytes` for `mm`, and the pages for them beyond the free amount are pinned. The
/// `mm_struct` is held as long as `QUEUES` counts bytes for it.
struct Queues {
    /// Address of the `mm_struct` of the process, which is held as long as it is in [`QUEUES`].
    mm: NonNull<kbindings::mm_struct>,
    bytes: usize,
}

// SAFETY: The counter of an `mm_struct` may be changed, and its hold released, from any thread.
unsafe impl Send for Queues {}
// SAFETY: Code with a shared reference does not access the `mm_struct`.
unsafe impl Sync for Queues {}

impl Queues {
    /// Takes `bytes` for the current process. Returns `None` in a kernel thread.
    fn take(bytes: usize) -> Result<Option<Self>> {
        // SAFETY: The function has no requirements.
        let Some(mm) = NonNull::new(unsafe { bindings::base_helper_current_mm() }) else {
            return Ok(None);
        };
        let whose = mm.as_ptr().addr();
        let mut ledger = QUEUES.lock();
        let before = ledger.part(whose);
        let pages = pages_beyond_free(before + bytes) - pages_beyond_free(before);
        // SAFETY: `mm` belongs to the current process, so it is alive.
        if !unsafe { bindings::base_helper_mm_pin(mm.as_ptr(), pages) } {
            return Err(ENOMEM);
        }
        let added = ledger.add(whose, bytes);
        if added.is_err() {
            // SAFETY: `mm` belongs to the current process, so it is alive. The pages were pinned
            // above.
            unsafe { bindings::base_helper_mm_unpin(mm.as_ptr(), pages) };
        } else if before == 0 {
            // SAFETY: `mm` belongs to the current process, so it is alive. It is held from its
            // first bytes in the ledger to its last.
            unsafe { bindings::base_helper_mm_hold(mm.as_ptr()) };
        }
        added?;
        // INVARIANT: The ledger counts `bytes` for `mm`, which is held, and the pages for them are
        // pinned.
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
        // SAFETY: By the type invariant the `mm_struct` is held and `pages` were pinned for the
        // removed bytes.
        unsafe { bindings::base_helper_mm_unpin(self.mm.as_ptr(), pages) };
        if after == 0 {
            // SAFETY: By the type invariant the `mm_struct` was held for the removed bytes. If the
            // process takes bytes again in the meantime, it also holds its `mm_struct` again.
            unsafe { bindings::base_helper_mm_release(self.mm.as_ptr()) };
        }
    }
}

/// Bytes of kernel memory that are charged to a user and process, and returned when this is
/// dropped.
pub(crate) struct QueueMemory {
    user: usize,
    /// Number of bytes, or 0 after they are not charged any more.
    bytes: Atomic<usize>,
    _queues: Option<Queues>,
}

impl QueueMemory {
    /// Takes `bytes` for the user of the current process and, if they are for a queue, for that
    /// process.
    pub(crate) fn take(payer: Payer, bytes: usize) -> Result<Self> {
        let user = user_of(payer).ok_or(EINVAL)?;
        // SAFETY: The function only reads.
        let total = unsafe { bindings::base_helper_total_ram() } / 4;
        let taken = MEMORY.lock().take(user, bytes, total);
        taken.map_err(|_| refuse(c"memory for queues and tables"))?;
        // The drop of `this` returns the bytes if an error follows.
        let mut this = Self {
            user,
            bytes: Atomic::new(bytes),
            _queues: None,
        };
        if payer == Payer::Process {
            this._queues = Queues::take(bytes)
                .map_err(|_| refuse(c"memory for queues (RLIMIT_MEMLOCK, ulimit -l)"))?;
        }
        Ok(this)
    }

    /// Ends the charge for memory that will never be freed, so that memory that is left to a lost
    /// device does not reduce the shares of the users.
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
