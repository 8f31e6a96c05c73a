// SPDX-License-Identifier: GPL-2.0

//! Tables from numbers to objects, whose references fence destruction.
//!
//! An interrupt handler gets a QPN or CQN from the device and needs the object. [`Table::get`] finds
//! it in any context and returns a [`Ref`]; [`Link::unlink`], called by `destroy` when the device has
//! let go of the number, takes the object out and waits until every [`Ref`] is gone. An object
//! that is still in a table when its memory is to be freed is taken out then, so a table never
//! holds a dangling pointer.

use crate::{
    base::sync::Completion,
    bindings, //
};
use core::{
    marker::PhantomData,
    ops::Deref,
    ptr::NonNull, //
};
use kernel::{
    bindings as kbindings,
    error::to_result,
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex,
        Refcount, //
    },
    types::Opaque, //
};

/// The part of an object that a table needs.
#[pin_data]
pub struct Link {
    /// One for the table, one for each [`Ref`].
    refs: Refcount,
    /// Completed when `refs` is 0.
    #[pin]
    gone: Completion,
    /// Where the object is.
    #[pin]
    place: Mutex<Option<(Arc<Inner>, u32)>>,
}

impl Link {
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            refs: Refcount::new(0),
            gone <- Completion::new(),
            place <- new_mutex!(None),
        })
    }

    fn put(&self) {
        if self.refs.dec_and_test() {
            self.gone.complete_all();
        }
    }

    /// Takes the object out of its table, if it is in one, and waits until no [`Ref`] is left.
    ///
    /// May sleep; must not be called by the holder of a [`Ref`].
    pub fn unlink(&self) {
        let mut place = self.place.lock();
        let Some((table, number)) = place.take() else {
            return;
        };
        // SAFETY: The array is initialized.
        unsafe { bindings::rdma_helper_xa_erase(table.xa.get(), number as c_ulong) };
        self.put();
        self.gone.wait();
    }
}

/// An object with a [`Link`].
///
/// # Safety
///
/// `link()` returns the field at `LINK_OFFSET` of the object, and [`Link::unlink`] is called before
/// the object's memory is used for anything else.
pub unsafe trait Linked: Send + Sync {
    #[doc(hidden)]
    const LINK_OFFSET: usize;

    #[doc(hidden)]
    fn link(&self) -> &Link;
}

#[pin_data(PinnedDrop)]
struct Inner {
    #[pin]
    xa: Opaque<kbindings::xarray>,
}

// SAFETY: An xarray has a lock of its own.
unsafe impl Send for Inner {}
// SAFETY: As above.
unsafe impl Sync for Inner {}

#[pinned_drop]
impl PinnedDrop for Inner {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: Initialized; every entry holds a reference to this, so it is empty, and this
        // frees what is left of its nodes.
        unsafe { kbindings::xa_destroy(self.xa.get()) };
    }
}

/// A table from numbers to objects.
///
/// # Examples
///
/// ```ignore
/// // In `start`: from here on the interrupt handler finds it.
/// hw.cqs.insert(cq.cqn(), cq)?;
///
/// // In the interrupt handler. The queue is not destroyed while `cq` is there.
/// if let Some(cq) = hw.cqs.get(cqn) {
///     cq.complete();
/// }
///
/// // In `destroy`, when the device has let go of the number: waits for the handler.
/// cq.unlink();
/// ```
pub struct Table<T: Linked> {
    inner: Arc<Inner>,
    _objects: PhantomData<fn(&T)>,
}

impl<T: Linked> Clone for Table<T> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            _objects: PhantomData,
        }
    }
}

impl<T: Linked> Table<T> {
    /// An empty table.
    pub fn new() -> Result<Self> {
        let inner = Arc::pin_init(
            pin_init!(Inner {
                xa <- Opaque::ffi_init(|slot| {
                    // SAFETY: `slot` is memory for an xarray that will not move.
                    unsafe { bindings::rdma_helper_xa_init(slot) }
                }),
            }),
            GFP_KERNEL,
        )?;
        Ok(Self {
            inner,
            _objects: PhantomData,
        })
    }

    /// Makes `object` known as `number`. `EBUSY` if the number is taken or the object known already.
    pub fn insert(&self, number: u32, object: &T) -> Result {
        let link = object.link();
        let mut place = link.place.lock();
        if place.is_some() {
            return Err(EBUSY);
        }
        link.gone.reinit();
        link.refs.set(1);
        // SAFETY: The array is initialized. The object is unlinked before its memory is freed.
        to_result(unsafe {
            bindings::rdma_helper_xa_insert(
                self.inner.xa.get(),
                number as c_ulong,
                core::ptr::from_ref(link).cast_mut().cast(),
            )
        })?;
        *place = Some((self.inner.clone(), number));
        Ok(())
    }

    /// The object known as `number`. Any context.
    pub fn get(&self, number: u32) -> Option<Ref<'_, T>> {
        let xa = self.inner.xa.get();
        // SAFETY: The array is initialized.
        let flags = unsafe { bindings::rdma_helper_xa_lock_irqsave(xa) };
        // SAFETY: As above.
        let link = unsafe { kbindings::xa_load(xa, number as c_ulong) };
        let link = NonNull::new(link.cast::<Link>());
        if let Some(link) = link {
            // SAFETY: What is in the array is the link of a live object, with a reference of the
            // table's own that is put only after the entry was erased under the lock we hold.
            unsafe { link.as_ref() }.refs.inc();
        }
        // SAFETY: We hold the lock.
        unsafe { bindings::rdma_helper_xa_unlock_irqrestore(xa, flags) };
        link.map(|link| Ref {
            // SAFETY: The link is at that offset in an object of type `T`.
            object: unsafe { link.byte_sub(T::LINK_OFFSET).cast::<T>() },
            _table: PhantomData,
        })
    }

    /// The object with the lowest number from `from` on, and that number. Any context.
    pub fn next(&self, from: u32) -> Option<(u32, Ref<'_, T>)> {
        let xa = self.inner.xa.get();
        let mut number = from as c_ulong;
        // SAFETY: The array is initialized.
        let flags = unsafe { bindings::rdma_helper_xa_lock_irqsave(xa) };
        // SAFETY: As above.
        let link = unsafe { bindings::rdma_helper_xa_find(xa, &mut number) };
        let link = NonNull::new(link.cast::<Link>());
        if let Some(link) = link {
            // SAFETY: As in `get`.
            unsafe { link.as_ref() }.refs.inc();
        }
        // SAFETY: We hold the lock.
        unsafe { bindings::rdma_helper_xa_unlock_irqrestore(xa, flags) };
        let object = link.map(|link| Ref {
            // SAFETY: As in `get`.
            object: unsafe { link.byte_sub(T::LINK_OFFSET).cast::<T>() },
            _table: PhantomData,
        })?;
        // Numbers are `u32` where they are put in.
        Some((u32::try_from(number).ok()?, object))
    }

    /// Calls `f` with each object that is there all the time.
    pub fn for_each(&self, mut f: impl FnMut(&T)) {
        let mut from = 0;
        while let Some((number, object)) = self.next(from) {
            f(&object);
            drop(object);
            let Some(after) = number.checked_add(1) else {
                return;
            };
            from = after;
        }
    }

    /// [`get`](Self::get), to be kept: for somebody who needs the object often, and without the table's lock.
    /// Whoever keeps it lets go before the object is unlinked, which waits for it.
    pub fn hold(&self, number: u32) -> Option<Held<T>> {
        let object = core::mem::ManuallyDrop::new(self.get(number)?).object;
        Some(Held { object })
    }
}

/// A reference to an object of a table. The object cannot be destroyed while it exists.
pub struct Ref<'a, T: Linked> {
    object: NonNull<T>,
    _table: PhantomData<&'a Table<T>>,
}

impl<T: Linked> Deref for Ref<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: The object lives as long as we hold a reference.
        unsafe { self.object.as_ref() }
    }
}

impl<T: Linked> Drop for Ref<'_, T> {
    fn drop(&mut self) {
        self.link().put();
    }
}

/// A [`Ref`] that is kept: see [`Table::hold`].
pub struct Held<T: Linked> {
    object: NonNull<T>,
}

// SAFETY: A counted reference to an object that may be used, and put, from any thread.
unsafe impl<T: Linked> Send for Held<T> {}
// SAFETY: As above.
unsafe impl<T: Linked> Sync for Held<T> {}

impl<T: Linked> Deref for Held<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: The object lives as long as we hold a reference.
        unsafe { self.object.as_ref() }
    }
}

impl<T: Linked> Drop for Held<T> {
    fn drop(&mut self) {
        self.link().put();
    }
}
