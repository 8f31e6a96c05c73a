// SPDX-License-Identifier: GPL-2.0

//! Counts of live objects, so that a leak shows when the module is unloaded.
//!
//! C header: [`include/linux/kmemleak.h`](srctree/include/linux/kmemleak.h)
//!
//! Every verbs object, DMA chunk and mapping contains a [`Counted`]. When the module is
//! unloaded, [`check`] reports if any of them still exist.

use crate::{
    bindings,
    share, //
};
use core::{
    marker::PhantomData,
    mem::ManuallyDrop, //
};
use kernel::{
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    },
};

/// Number of live verbs objects.
static OBJECTS: Atomic<i64> = Atomic::new(0);
/// Number of live chunks of DMA memory.
static CHUNKS: Atomic<i64> = Atomic::new(0);
/// Number of live mmap entries.
static MAPPINGS: Atomic<i64> = Atomic::new(0);

/// A kind of counted objects.
pub trait Kind {
    #[doc(hidden)]
    fn counter() -> &'static Atomic<i64>;
}

/// The kind of all verbs objects.
pub struct Objects;
/// The kind of all chunks of DMA memory.
pub struct Chunks;
/// The kind of all mmap entries.
pub struct Mappings;

impl Kind for Objects {
    fn counter() -> &'static Atomic<i64> {
        &OBJECTS
    }
}

impl Kind for Chunks {
    fn counter() -> &'static Atomic<i64> {
        &CHUNKS
    }
}

impl Kind for Mappings {
    fn counter() -> &'static Atomic<i64> {
        &MAPPINGS
    }
}

/// Counts one live object of kind `K`.
pub struct Counted<K: Kind>(PhantomData<K>);

impl<K: Kind> Counted<K> {
    /// Increments the count of the kind.
    pub fn new() -> Self {
        K::counter().fetch_add(1, Relaxed);
        Self(PhantomData)
    }

    /// Decrements the count for an object that is leaked on purpose.
    pub(crate) fn forgive() {
        K::counter().fetch_sub(1, Relaxed);
    }
}

impl<K: Kind> Default for Counted<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Kind> Drop for Counted<K> {
    fn drop(&mut self) {
        K::counter().fetch_sub(1, Relaxed);
    }
}

/// Leaks `value` on purpose. The kernel's memory leak detector is informed of that, and still
/// follows the references of the value.
pub fn leak<T>(value: T) {
    match KBox::new(ManuallyDrop::new(value), GFP_KERNEL) {
        // SAFETY: The box is an allocation of its own, which is never freed.
        Ok(kept) => unsafe { bindings::base_helper_not_leak(KBox::into_raw(kept).cast()) },
        // Without the box the leak detector reports the memory too.
        Err(_) => {
            pr_warn!("no memory: kmemleak may report memory that is never freed on purpose\n")
        }
    }
}

/// Returns the numbers of live objects, DMA chunks and mmap entries.
pub fn live() -> (i64, i64, i64) {
    (
        OBJECTS.load(Relaxed),
        CHUNKS.load(Relaxed),
        MAPPINGS.load(Relaxed),
    )
}

/// Runs [`check`] when dropped. This has to be the last field of the module's type, and to be
/// created before the others.
pub struct CheckAtExit(());

impl CheckAtExit {
    /// Creates the check, and initializes the accounts of users' shares.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        share::begin();
        Self(())
    }
}

impl Drop for CheckAtExit {
    fn drop(&mut self) {
        check();
    }
}

/// Warns at the end of the module if anything is alive. Returns true if nothing is.
pub fn check() -> bool {
    let (objects, chunks, mappings) = live();
    let clean = objects == 0 && chunks == 0 && mappings == 0;
    if !clean {
        pr_warn!("leak: {objects} objects, {chunks} DMA chunks, {mappings} mmap entries alive\n");
        // Makes a test run fail, because a leak is a defect of this module, never of its user.
        kernel::warn_on!(true);
    }
    clean
}
