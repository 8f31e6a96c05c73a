// SPDX-License-Identifier: GPL-2.0

//! What the objects of the verbs have in common: how they are made, used and destroyed.
//!
//! An object of the core is a C struct. Behind it this crate keeps what is the driver's:
//! [`Managed<O>`] is both, for the kind of object that `O` describes ([`Object`]). A file of this
//! crate about one kind has its `Object`, the trait of the driver's data, and the ops that only this
//! kind has; everything else is here.
//!
//! # What the core promises
//!
//! The ops of this crate are in the table of devices of `D` only, so only the core calls them, and
//! only for these devices. The SAFETY comments of the ops cite its promises (`drivers/infiniband/core`)
//! by these names:
//!
//! - NEW: an op that creates gets memory of [`object_size`] bytes that does not move, the core's struct
//!   zeroed. Set in it are the device, the `uobject` (but of address handles and memory regions), and the
//!   objects that this one is made of (protection domain, completion queues, shared receive queue), which
//!   stay until it is destroyed. If the op fails, the core frees the memory and nobody has seen the object.
//! - STARTED: any other op gets an object whose op that creates returned 0, and that no op destroyed.
//! - LAST: the op that destroys is called when nobody uses the object, and if it returns 0 the core
//!   frees the memory. If it fails the object lives on, but for objects of the kernel's, whose memory is
//!   freed all the same (`ib_free_cq()`, `__ib_alloc_cq()`, `create_qp()`): so those are fenced.
//!   `ib_free_cq()` calls two ops instead, between which it ends what polls the queue, and what modifies it: to those ops the
//!   object is STARTED until the second.
//! - ARGUMENTS: every other pointer is valid for the call, and a `udata` is `NULL` or the `driver_udata`
//!   of an `uverbs_attr_bundle` whose context, if it has one, is one of the same device.

use crate::{
    base::{
        compat,
        count::{
            Counted,
            Objects, //
        },
        table::{
            Link,
            Linked, //
        }, //
    },
    bindings,
    device::{
        Device,
        Operations, //
    },
    pd::Pd,
    restrack::ResEntry,
    ucontext::Ucontext,
    udata::{
        Caller,
        Udata,
        User, //
    }, //
};
use core::{
    mem::offset_of,
    ops::Deref,
    ptr::NonNull, //
};
use kernel::{
    bindings as kbindings,
    error::from_result,
    prelude::*,
    sync::atomic::{
        Acquire,
        Atomic,
        Release, //
    },
    types::Opaque, //
};

/// A kind of object: what the core and a driver have in one.
///
/// # Safety
///
/// [`device`](Self::device) and [`is_user`](Self::is_user) tell what the core set in the object, and
/// may be called at any time; the device is one of `Driver`. A `Raw` may be used from any thread, and
/// begins with the core's struct.
pub unsafe trait Object: Sized {
    /// The driver.
    type Driver: Operations;
    /// The core's struct.
    type Raw;
    /// What this crate keeps with each.
    type Extra: Extra;
    /// The driver's data.
    type Data: Send + Sync;

    /// What it is, for messages.
    const NAME: &'static str;

    /// Its device.
    ///
    /// # Safety
    ///
    /// `raw` must be NEW or STARTED.
    unsafe fn device(raw: *mut Self::Raw) -> *mut bindings::ib_device;

    /// Whether it belongs to a process.
    ///
    /// # Safety
    ///
    /// `raw` must be NEW or STARTED.
    unsafe fn is_user(raw: *mut Self::Raw) -> bool;

    /// Destroys it. On failure it lives on.
    fn destroy(object: &Managed<Self>) -> Result;

    /// Frees the memory of one that is gone, if it is not the core's.
    ///
    /// # Safety
    ///
    /// Nobody uses `raw` afterwards; what was in it was dropped.
    unsafe fn free(_raw: *mut Self::Raw) {}

    /// Describes it to `rdma resource`.
    fn fill_res(_object: &Managed<Self>, _entry: &mut ResEntry<'_>) -> Result {
        Ok(())
    }

    /// Its raw context for `rdma resource -r`.
    fn fill_res_raw(_object: &Managed<Self>, _put: &mut dyn FnMut(&[u8]) -> Result) -> Result {
        Ok(())
    }
}

/// The part of an [`Object`] that every kind has in the same way. `user as pd`: when it is made, the core
/// has set the `uobject` of its protection domain, but not its own.
macro_rules! core_members {
    ($raw:ident $(, user as $owner:ident)?) => {
        type Raw = $crate::bindings::$raw;

        unsafe fn device(raw: *mut Self::Raw) -> *mut $crate::bindings::ib_device {
            // SAFETY: NEW or STARTED: set, and constant.
            unsafe { (*raw).device }
        }

        unsafe fn is_user(raw: *mut Self::Raw) -> bool {
            let owner = raw;
            $(
                // SAFETY: NEW or STARTED: set, and constant.
                let owner = unsafe { (*owner).$owner };
            )?
            // SAFETY: NEW or STARTED: set, and constant.
            unsafe { !(*owner).uobject.is_null() }
        }
    };
}
pub(crate) use core_members;

/// A kind of object that is made in a protection domain.
///
/// # Safety
///
/// As [`Object`], for [`pd`](Self::pd), which is one of `Driver`.
pub unsafe trait InPd: Object {
    /// Its protection domain.
    ///
    /// # Safety
    ///
    /// `raw` must be NEW or STARTED.
    unsafe fn pd(raw: *mut Self::Raw) -> *mut bindings::ib_pd;
}

/// The member of [`InPd`], which every kind has in the same way.
macro_rules! pd_member {
    () => {
        unsafe fn pd(raw: *mut Self::Raw) -> *mut $crate::bindings::ib_pd {
            // SAFETY: NEW or STARTED: set, and constant.
            unsafe { (*raw).pd }
        }
    };
}
pub(crate) use pd_member;

/// What this crate keeps with each object of a kind.
pub trait Extra: Sized + Send + Sync {
    /// Builds it.
    fn new() -> impl PinInit<Self>;

    /// Ends all references to the object. May sleep, if there can be any.
    fn fence(&self) {}
}

impl Extra for () {
    fn new() -> impl PinInit<Self> {}
}

/// What is kept with each object of a kind that a [`Table`](crate::base::table::Table) can find, and what else is kept with it.
#[pin_data]
pub struct InTable<E> {
    #[pin]
    link: Link,
    #[pin]
    own: E,
}

impl<E: Extra> Extra for InTable<E> {
    fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            link <- Link::new(),
            own <- E::new(),
        })
    }

    fn fence(&self) {
        self.link.unlink();
        self.own.fence();
    }
}

impl<E> Deref for InTable<E> {
    type Target = E;

    fn deref(&self) -> &E {
        &self.own
    }
}

/// An object of the core with the driver's data.
///
/// # Invariants
///
/// Where there is a reference to one, all fields are initialized.
#[repr(C)]
pub struct Managed<O: Object> {
    raw: Opaque<O::Raw>,
    _count: Counted<Objects>,
    /// Whoever asked for it has it, or will: it was made, and cannot fail any more.
    known: Atomic<bool>,
    extra: O::Extra,
    data: O::Data,
}

// SAFETY: The core's struct may be used from any thread; everything else is `Send`.
unsafe impl<O: Object> Send for Managed<O> {}
// SAFETY: By shared reference only what is safe to do concurrently is done with the core's struct;
// everything else is `Sync`.
unsafe impl<O: Object> Sync for Managed<O> {}

// SAFETY: The link is at that offset of `extra`; `drop_parts` fences before it drops.
unsafe impl<O: Object<Extra = InTable<E>>, E: Extra> Linked for Managed<O> {
    const LINK_OFFSET: usize = offset_of!(Self, extra) + offset_of!(InTable<E>, link);

    fn link(&self) -> &Link {
        &self.extra.link
    }
}

impl<O: Object> Deref for Managed<O> {
    type Target = O::Data;

    fn deref(&self) -> &O::Data {
        &self.data
    }
}

impl<O: Object> Managed<O> {
    /// # Safety
    ///
    /// `raw` must be STARTED, or be just being started, and alive for `'a`.
    pub(crate) unsafe fn from_raw<'a>(raw: *mut O::Raw) -> &'a Self {
        // SAFETY: `repr(C)` with the core's struct first; see above.
        unsafe { &*raw.cast() }
    }

    pub(crate) fn as_raw(&self) -> *mut O::Raw {
        self.raw.get()
    }

    pub(crate) fn extra(&self) -> &O::Extra {
        &self.extra
    }

    /// Its device.
    pub fn device(&self) -> &Device<O::Driver> {
        // SAFETY: STARTED; the device outlives its objects.
        unsafe { Device::from_raw(O::device(self.as_raw())) }
    }

    /// Whether it belongs to a process.
    pub fn is_user(&self) -> bool {
        // SAFETY: STARTED.
        unsafe { O::is_user(self.as_raw()) }
    }

    /// Whether the object was made, and will be its owner's. A device may tell of one that is still being
    /// made, or that it is about to refuse.
    pub fn is_known(&self) -> bool {
        self.known.load(Acquire)
    }

    /// Reports an event of this object, if somebody listens. Where the owner's handler may be called:
    /// process context for kernel users that sleep there.
    ///
    /// Of one that is not [known](Self::is_known) nothing is reported: the core links the event to what
    /// it frees at once if the object comes to nothing (`UVERBS_METHOD_CQ_CREATE`).
    ///
    /// # Safety
    ///
    /// `handler` and `context` must be those that the object was made with, and `event` name it.
    pub(crate) unsafe fn report(
        &self,
        mut event: bindings::ib_event,
        handler: Option<unsafe extern "C" fn(*mut bindings::ib_event, *mut c_void)>,
        context: *mut c_void,
    ) {
        event.device = self.device().as_raw();
        if let Some(handler) = handler.filter(|_| self.is_known()) {
            // SAFETY: Set before the object was made, and constant; the object is not destroyed while
            // we have a reference.
            unsafe { handler(&mut event, context) };
        }
    }

    /// Who calls a verb of the object. The kernel is more privileged than any process, so only a call
    /// without any sign of a process is the kernel's: no request data, and no `uobject`.
    ///
    /// # Safety
    ///
    /// `raw` must be NEW or STARTED, `udata` as ARGUMENTS has it, for `'a`.
    pub(crate) unsafe fn caller<'a>(
        raw: *mut O::Raw,
        udata: *mut bindings::ib_udata,
    ) -> Result<Caller<'a, O::Driver>> {
        // SAFETY: NEW or STARTED.
        let of_process = unsafe { O::is_user(raw) };
        let Some(udata) = NonNull::new(udata) else {
            return if of_process {
                Err(EINVAL)
            } else {
                Ok(Caller::Kernel)
            };
        };
        // SAFETY: ARGUMENTS: `udata` is in a bundle.
        let ctx = unsafe { bindings::rdma_helper_udata_context(udata.as_ptr()) };
        if ctx.is_null() || !of_process {
            return Err(EINVAL);
        }
        // SAFETY: ARGUMENTS: the context is one of our device.
        unsafe {
            Ok(Caller::User(User::new(
                Ucontext::from_raw(ctx),
                Udata::from_raw(udata),
            )))
        }
    }

    /// Builds the parts of an object that are ours, in place.
    ///
    /// # Safety
    ///
    /// `raw` must be NEW, until the draft is started or dropped.
    pub(crate) unsafe fn build(
        raw: *mut O::Raw,
        data: impl PinInit<O::Data, Error>,
    ) -> Result<Draft<O>> {
        let this = raw.cast::<Self>();
        // SAFETY: NEW: the memory behind the core's struct is ours, and does not move.
        unsafe {
            init_slot(&raw mut (*this).data, data)?;
            let Ok(()) = init_slot(&raw mut (*this).extra, O::Extra::new());
            (&raw mut (*this)._count).write(Counted::new());
            (&raw mut (*this).known).write(Atomic::new(false));
        }
        Ok(Draft(raw))
    }

    /// Destroys an object that its owner never got to know.
    ///
    /// # Safety
    ///
    /// All fields must be initialized; nobody uses the object afterwards.
    unsafe fn undo(raw: *mut O::Raw) {
        // SAFETY: Initialized.
        let this = unsafe { Self::from_raw(raw) };
        if O::destroy(this).is_ok() {
            // SAFETY: Destroyed.
            unsafe { Self::drop_parts(raw) };
        } else {
            // The device may still use what it was given, so that must stay: nothing is dropped.
            this.extra.fence();
            pr_err!("cannot destroy a {} whose response failed\n", O::NAME);
        }
    }

    /// Drops everything but the core's struct, and frees the memory if it is ours.
    ///
    /// # Safety
    ///
    /// All fields must be initialized; nobody uses the object afterwards.
    pub(crate) unsafe fn drop_parts(raw: *mut O::Raw) {
        let this = raw.cast::<Self>();
        // SAFETY: Initialized. There are no references any more when `fence` returns.
        unsafe {
            (*this).extra.fence();
            core::ptr::drop_in_place(this);
            O::free(raw);
        }
    }

    /// Destroys the object.
    ///
    /// # Safety
    ///
    /// `raw` must be STARTED, the call the LAST.
    pub(crate) unsafe fn destroy(raw: *mut O::Raw) -> Result {
        // SAFETY: STARTED.
        let this = unsafe { Self::from_raw(raw) };
        O::destroy(this).inspect_err(|_| {
            if !this.is_user() {
                this.extra.fence();
            }
        })?;
        // SAFETY: Destroyed; LAST.
        unsafe { Self::drop_parts(raw) };
        Ok(())
    }

    /// The op `destroy_*` or `dealloc_*`.
    ///
    /// # Safety
    ///
    /// For the core: STARTED, LAST.
    pub(crate) unsafe extern "C" fn op_destroy(
        raw: *mut O::Raw,
        _udata: *mut bindings::ib_udata,
    ) -> c_int {
        // SAFETY: STARTED, LAST.
        from_result(|| unsafe { Self::destroy(raw) }.map(|()| 0))
    }

    /// The op `fill_res_*_entry`.
    ///
    /// # Safety
    ///
    /// For the core: STARTED, ARGUMENTS.
    pub(crate) unsafe extern "C" fn op_fill_res(
        msg: *mut kbindings::sk_buff,
        raw: *mut O::Raw,
    ) -> c_int {
        // SAFETY: STARTED; `msg` is under construction.
        unsafe { ResEntry::fill(msg, |entry| O::fill_res(Self::from_raw(raw), entry)) }
    }

    /// The op `fill_res_*_entry_raw`.
    ///
    /// # Safety
    ///
    /// For the core: STARTED, ARGUMENTS.
    pub(crate) unsafe extern "C" fn op_fill_res_raw(
        msg: *mut kbindings::sk_buff,
        raw: *mut O::Raw,
    ) -> c_int {
        // SAFETY: STARTED; `msg` is under construction.
        unsafe { ResEntry::fill_raw(msg, |put| O::fill_res_raw(Self::from_raw(raw), put)) }
    }
}

/// An object that is built, and that nobody knows.
///
/// # Invariants
///
/// All fields are initialized.
pub(crate) struct Draft<O: Object>(*mut O::Raw);

impl<O: Object> Draft<O> {
    /// Lets `start` make the object known, and finishes the response. After an error nothing is left
    /// of it, or, if it could then not be destroyed, what the device was given.
    pub(crate) fn start(
        self,
        caller: &Caller<'_, O::Driver>,
        start: impl FnOnce(&Managed<O>) -> Result,
    ) -> Result {
        caller.finish_input()?;
        // SAFETY: By the invariant.
        start(unsafe { Managed::from_raw(self.0) })?;
        match caller.finish_output() {
            Ok(()) => self.know(),
            Err(e) => {
                // SAFETY: By the invariant; its owner never gets to know the object.
                unsafe { Managed::<O>::undo(core::mem::ManuallyDrop::new(self).0) };
                return Err(e);
            }
        }
        Ok(())
    }

    /// The same, with the response first: for what has none of the driver's, and what may be in use, and
    /// not to be destroyed, as soon as it is known. After an error nothing is left of it.
    pub(crate) fn start_answered(
        self,
        caller: &Caller<'_, O::Driver>,
        start: impl FnOnce(&Managed<O>) -> Result,
    ) -> Result {
        caller.finish_input()?;
        caller.finish_output()?;
        // SAFETY: By the invariant.
        start(unsafe { Managed::from_raw(self.0) })?;
        self.know();
        Ok(())
    }

    /// Makes it its owner's: nothing can fail any more.
    fn know(self) {
        let raw = core::mem::ManuallyDrop::new(self).0;
        // SAFETY: By the invariant; it lives until this op has returned.
        unsafe { Managed::<O>::from_raw(raw) }
            .known
            .store(true, Release);
    }
}

impl<O: Object> Drop for Draft<O> {
    fn drop(&mut self) {
        // SAFETY: By the invariant; nobody knows the object.
        unsafe { Managed::<O>::drop_parts(self.0) };
    }
}

impl<O: InPd> Managed<O> {
    /// Its protection domain.
    pub fn pd(&self) -> &Pd<O::Driver> {
        // SAFETY: STARTED; it outlives the object.
        unsafe { Pd::from_raw(O::pd(self.as_raw())) }
    }
}

impl<O: Object<Extra = InTable<E>>, E: Extra> Managed<O> {
    /// Takes it out of its [`Table`](crate::base::table::Table). See [`Link::unlink`].
    pub fn unlink(&self) {
        self.extra.link.unlink();
    }
}

/// The core allocates objects with `kzalloc()`, which aligns no better than this.
const KMALLOC_MINALIGN: usize = 8;

/// Size of an object for `INIT_RDMA_OBJ_SIZE`; fails to compile if the core cannot align it.
pub(crate) const fn object_size<T>() -> usize {
    assert!(align_of::<T>() <= KMALLOC_MINALIGN);
    size_of::<T>()
}

/// Refuses request data, and zeroes the response, of a verb that has none.
///
/// # Safety
///
/// `udata` must be `NULL` or valid.
pub(crate) unsafe fn no_udata(udata: *mut bindings::ib_udata) -> Result {
    if let Some(raw) = NonNull::new(udata) {
        // SAFETY: The caller says that it is valid.
        let udata = unsafe { Udata::from_raw(raw) };
        udata.finish_input()?;
        udata.finish_output()?;
    }
    Ok(())
}

/// Runs `init` on memory of the core.
///
/// # Safety
///
/// `slot` must be memory for a `T` that does not move, not in use.
pub(crate) unsafe fn init_slot<T, E>(slot: *mut T, init: impl PinInit<T, E>) -> Result<(), E> {
    // SAFETY: See above.
    unsafe { compat::init_at(slot, init) }
}
