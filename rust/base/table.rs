// SPDX-License-Identifier: GPL-2.0

//! Tables from numbers to objects, whose references delay the destruction of the objects.
//!
//! C header: [`include/linux/xarray.h`](srctree/include/linux/xarray.h)
//!
//! An interrupt handler gets a QPN or CQN from the device and needs the object. [`Table::get`]
//! finds the object in any context and returns a [`Ref`]. `destroy` calls [`Link::unlink`] after
//! the device has released the number: the object is removed from the table, and the call waits
//! until every [`Ref`] is dropped. An object that is still in a table when its memory is to be
//! freed is removed then, so a table never contains a dangling pointer.

use crate::{
    bindings,
    sync::Completion, //
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
    /// Number of references: one of the table, and one of each [`Ref`].
    refs: Refcount,
    /// Completed when `refs` becomes 0.
    #[pin]
    gone: Completion,
    /// Table and number of the object.
    #[pin]
    place: Mutex<Option<(Arc<Inner>, u32)>>,
}

impl Link {
    /// Returns an initializer of a link that is in no table.
    pub fn new() -> impl PinInit<Self> {
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

    /// Removes the object from its table, if it is in one, and waits until every [`Ref`] is
    /// dropped.
    ///
    /// May sleep. Must not be called by the holder of a [`Ref`].
    pub fn unlink(&self) {
        let mut place = self.place.lock();
        let Some((table, number)) = place.take() else {
            return;
        };
        // SAFETY: By the invariant of `Inner` the array is initialized.
        unsafe { bindings::base_helper_xa_erase(table.xa.get(), number as c_ulong) };
        self.put();
        self.gone.wait();
    }
}

/// An object with a [`Link`].
///
/// # Safety
///
/// `link()` must return the field at `LINK_OFFSET` of the object, and [`Link::unlink`] must be
/// called before the object's memory is freed or used for anything else.
pub unsafe trait Linked: Send + Sync {
    #[doc(hidden)]
    const LINK_OFFSET: usize;

    #[doc(hidden)]
    fn link(&self) -> &Link;
}

/// The array of a table.
///
/// # Invariants
///
/// `xa` is initialized. Each entry is the link of a live object, for which the table has a
/// reference in `refs` that is put only after the entry was erased with the lock of the array held.
#[pin_data(PinnedDrop)]
struct Inner {
    #[pin]
    xa: Opaque<kbindings::xarray>,
}

// SAFETY: An xarray may be used from any thread.
unsafe impl Send for Inner {}
// SAFETY: An xarray has its own lock.
unsafe impl Sync for Inner {}

#[pinned_drop]
impl PinnedDrop for Inner {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: By the type invariant the array is initialized. The `place` of every entry holds
        // a reference to this, so the array has no entries, and the function frees the remaining
        // nodes.
        unsafe { kbindings::xa_destroy(self.xa.get()) };
    }
}

/// A table from numbers to objects.
///
/// # Invariants
///
/// Each entry of `inner` is the [`Link`] at `T::LINK_OFFSET` of an object of type `T`.
///
/// # Examples
///
/// ```
/// use base::table::{
///     Linked,
///     Table, //
/// };
///
/// /// A queue, which the device knows by its number.
/// trait Queue: Linked {
///     fn number(&self) -> u32;
///     fn complete(&self);
/// }
///
/// /// From here on the interrupt handler finds the queue.
/// fn start<Q: Queue>(queues: &Table<Q>, queue: &Q) -> Result {
///     queues.insert(queue.number(), queue)
/// }
///
/// /// The interrupt handler. The queue is not destroyed while `queue` exists.
/// fn handle<Q: Queue>(queues: &Table<Q>, number: u32) {
///     if let Some(queue) = queues.get(number) {
///         queue.complete();
///     }
/// }
///
/// /// After the device has released the number. This waits for the handler.
/// fn destroy<Q: Queue>(queue: &Q) {
///     queue.link().unlink();
/// }
/// ```
pub struct Table<T: Linked> {
    inner: Arc<Inner>,
    _objects: PhantomData<fn(&T)>,
}

impl<T: Linked> Clone for Table<T> {
    fn clone(&self) -> Self {
        // INVARIANT: The array is that of a table of the same type.
        Self {
            inner: self.inner.clone(),
            _objects: PhantomData,
        }
    }
}

impl<T: Linked> Table<T> {
    /// Creates an empty table.
    pub fn new() -> Result<Self> {
        // INVARIANT: The function initializes the array, without entries.
        let inner = Arc::pin_init(
            pin_init!(Inner {
                xa <- Opaque::ffi_init(|slot| {
                    // SAFETY: `slot` is memory for an xarray that will not move.
                    unsafe { bindings::base_helper_xa_init(slot) }
                }),
            }),
            GFP_KERNEL,
        )?;
        // INVARIANT: The array has no entries.
        Ok(Self {
            inner,
            _objects: PhantomData,
        })
    }

    /// Adds `object` as `number`. Returns `EBUSY` if the number is in use or the object is in a
    /// table already.
    pub fn insert(&self, number: u32, object: &T) -> Result {
        let link = object.link();
        let mut place = link.place.lock();
        if place.is_some() {
            return Err(EBUSY);
        }
        link.gone.reinit();
        link.refs.set(1);
        // SAFETY: By the invariant of `Inner` the array is initialized.
        //
        // INVARIANT: The link is that of an object of type `T`, which is unlinked before its memory
        // is freed ([`Linked`]). Its `refs` has one reference of the table.
        to_result(unsafe {
            bindings::base_helper_xa_insert(
                self.inner.xa.get(),
                number as c_ulong,
                core::ptr::from_ref(link).cast_mut().cast(),
            )
        })?;
        *place = Some((self.inner.clone(), number));
        Ok(())
    }

    /// Returns the object with this number. Any context.
    pub fn get(&self, number: u32) -> Option<Ref<'_, T>> {
        let xa = self.inner.xa.get();
        // SAFETY: By the invariant of `Inner` the array is initialized.
        let flags = unsafe { bindings::base_helper_xa_lock_irqsave(xa) };
        // SAFETY: By the invariant of `Inner` the array is initialized. Its lock is held.
        let link = unsafe { kbindings::xa_load(xa, number as c_ulong) };
        let link = NonNull::new(link.cast::<Link>());
        if let Some(link) = link {
            // SAFETY: By the invariant of `Inner` an entry is the link of a live object with a
            // reference of the table, which is put only after the entry was erased with the lock
            // held that this function holds.
            unsafe { link.as_ref() }.refs.inc();
        }
        // SAFETY: This function holds the lock, and `flags` is the value that the lock function
        // returned.
        unsafe { bindings::base_helper_xa_unlock_irqrestore(xa, flags) };
        // INVARIANT: The reference was taken above.
        link.map(|link| Ref {
            // SAFETY: By the invariant of `Table` the link is at that offset of an object of type
            // `T`.
            object: unsafe { link.byte_sub(T::LINK_OFFSET).cast::<T>() },
            _table: PhantomData,
        })
    }

    /// Returns the object with the lowest number that is at least `from`, and that number. Any
    /// context.
    pub fn next(&self, from: u32) -> Option<(u32, Ref<'_, T>)> {
        let xa = self.inner.xa.get();
        let mut number = from as c_ulong;
        // SAFETY: By the invariant of `Inner` the array is initialized.
        let flags = unsafe { bindings::base_helper_xa_lock_irqsave(xa) };
        // SAFETY: By the invariant of `Inner` the array is initialized. Its lock is held.
        let link = unsafe { bindings::base_helper_xa_find(xa, &mut number) };
        let link = NonNull::new(link.cast::<Link>());
        if let Some(link) = link {
            // SAFETY: By the invariant of `Inner` an entry is the link of a live object with a
            // reference of the table, which is put only after the entry was erased with the lock
            // held that this function holds.
            unsafe { link.as_ref() }.refs.inc();
        }
        // SAFETY: This function holds the lock, and `flags` is the value that the lock function
        // returned.
        unsafe { bindings::base_helper_xa_unlock_irqrestore(xa, flags) };
        // INVARIANT: The reference was taken above.
        let object = link.map(|link| Ref {
            // SAFETY: By the invariant of `Table` the link is at that offset of an object of type
            // `T`.
            object: unsafe { link.byte_sub(T::LINK_OFFSET).cast::<T>() },
            _table: PhantomData,
        })?;
        // `insert` takes numbers of type `u32` only.
        Some((u32::try_from(number).ok()?, object))
    }

    /// Calls `f` with each object that is in the table during the whole call.
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

    /// Does the same as [`get`](Self::get), but the result does not borrow the table. This is for
    /// code that needs the object often, without the table's lock. Its holder must drop it before
    /// the object is unlinked, which waits for that.
    pub fn hold(&self, number: u32) -> Option<Held<T>> {
        let object = core::mem::ManuallyDrop::new(self.get(number)?).object;
        // INVARIANT: The reference is that of the `Ref`, which is not dropped.
        Some(Held { object })
    }
}

/// A reference to an object of a table, which cannot be destroyed while the reference exists.
///
/// # Invariants
///
/// `object` is a live object, and this value has one of the references of its [`Link`].
pub struct Ref<'a, T: Linked> {
    object: NonNull<T>,
    _table: PhantomData<&'a Table<T>>,
}

impl<T: Linked> Deref for Ref<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: By the type invariant the object is alive, and `unlink` waits until this
        // reference is put.
        unsafe { self.object.as_ref() }
    }
}

impl<T: Linked> Drop for Ref<'_, T> {
    fn drop(&mut self) {
        self.link().put();
    }
}

/// A [`Ref`] that does not borrow the table: see [`Table::hold`].
///
/// # Invariants
///
/// `object` is a live object, and this value has one of the references of its [`Link`].
pub struct Held<T: Linked> {
    object: NonNull<T>,
}

// SAFETY: By the type invariant this is a counted reference, which may be used and put from any
// thread, to an object that is `Send + Sync`.
unsafe impl<T: Linked> Send for Held<T> {}
// SAFETY: Code with a shared reference gets at most a `&T`, and `T` is `Sync`.
unsafe impl<T: Linked> Sync for Held<T> {}

impl<T: Linked> Deref for Held<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: By the type invariant the object is alive, and `unlink` waits until this
        // reference is put.
        unsafe { self.object.as_ref() }
    }
}

impl<T: Linked> Drop for Held<T> {
    fn drop(&mut self) {
        self.link().put();
    }
}
