// SPDX-License-Identifier: GPL-2.0

//! Counts of what is alive, so that a leak shows at unload.
//!
//! Every object, DMA chunk and mapping of this crate carries a [`Counted`]. When the module goes,
//! [`check`] tells whether all are gone.

use crate::{
    base::share,
    bindings, //
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

/// Live objects of the verbs.
static OBJECTS: Atomic<i64> = Atomic::new(0);
/// Live chunks of DMA memory.
static CHUNKS: Atomic<i64> = Atomic::new(0);
/// Live mmap entries.
static MAPPINGS: Atomic<i64> = Atomic::new(0);

/// What is counted.
pub trait Kind {
    #[doc(hidden)]
    fn counter() -> &'static Atomic<i64>;
}

/// Objects of the verbs.
pub struct Objects;
/// Chunks of DMA memory.
pub struct Chunks;
/// mmap entries.
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

/// One live thing of kind `K`.
pub struct Counted<K: Kind>(PhantomData<K>);

impl<K: Kind> Counted<K> {
    /// Counts one.
    pub fn new() -> Self {
        K::counter().fetch_add(1, Relaxed);
        Self(PhantomData)
    }

    /// One that is alive will never go, on purpose.
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

/// Never drops `value`, on purpose: the kernel's memory leak detector is told so, and finds by it what it
/// refers to.
pub(crate) fn leak<T>(value: T) {
    match KBox::new(ManuallyDrop::new(value), GFP_KERNEL) {
        // SAFETY: Allocated by itself, and never freed.
        Ok(kept) => unsafe { bindings::rdma_helper_not_leak(KBox::into_raw(kept).cast()) },
        // Then it is reported as well.
        Err(_) => pr_warn!("no memory to say what is left on purpose\n"),
    }
}

/// What is alive now: objects, DMA chunks, mmap entries.
pub fn live() -> (i64, i64, i64) {
    (
        OBJECTS.load(Relaxed),
        CHUNKS.load(Relaxed),
        MAPPINGS.load(Relaxed),
    )
}

/// Runs [`check`] when it is dropped: the last field of the module's type, and made before its others.
pub struct CheckAtExit(());

impl CheckAtExit {
    /// Begins to count, users' shares too.
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

/// For the end of the module: warns if anything is alive. Returns whether all is gone.
pub fn check() -> bool {
    let (objects, chunks, mappings) = live();
    let clean = objects == 0 && chunks == 0 && mappings == 0;
    if !clean {
        pr_warn!("leak: {objects} objects, {chunks} DMA chunks, {mappings} mmap entries alive\n");
        // Makes a test run fail: a leak is a defect of this module, never of its user.
        kernel::warn_on!(true);
    }
    clean
}
