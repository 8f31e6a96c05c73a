// SPDX-License-Identifier: GPL-2.0

//! The common part of all verbs objects: creation, use and destruction.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)
//!
//! An object of the core is a C struct. [`Managed<O>`] is that struct followed by the driver's
//! data, for the kind of object that `O` describes ([`Object`]). The file of each kind contains its
//! `Object`, the trait that the driver implements, and the ops that only this kind has. This file
//! contains the rest.
//!
//! # What the core promises
//!
//! The ops of this crate are only in the ops table of devices of `D`, so only the core calls them,
//! and only for these devices. The SAFETY comments of the ops cite the promises of the core
//! (`drivers/infiniband/core`) by these names:
//!
//! - NEW: the op that creates an object gets memory of [`object_size`] bytes that does not move,
//!   with the core's struct zeroed. The core has set the device, the `uobject` (except in address
//!   handles and memory regions), and the objects that this object uses (protection domain,
//!   completion queues, shared receive queue), which live until this object is destroyed. If the op
//!   fails, the core frees the memory, and no other code has seen the object.
//! - STARTED: every other op gets an object whose create op returned 0 and which no op has
//!   destroyed.
//! - LAST: the core calls the destroy op when the object has no users, and frees the memory if the
//!   op returns 0. If the op fails, the object lives on. Objects of kernel users are the exception:
//!   the core frees their memory after a failure too (`ib_free_cq()`, `__ib_alloc_cq()`,
//!   `create_qp()`), so this crate fences them. `ib_free_cq()` calls two ops instead of one, and
//!   between them stops the pollers of the queue and its moderation. For these the object is
//!   STARTED until the second op.
//! - ARGUMENTS: every other pointer is valid during the call. A `udata` is `NULL` or the
//!   `driver_udata` of a `uverbs_attr_bundle`, whose context, if there is one, belongs to the same
//!   device.

mod draft;

pub(crate) use draft::Draft;

use crate::{
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
use base::{
    compat,
    count::{
        Counted,
        Objects, //
    },
    table::{
        Link,
        Linked, //
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
        Atomic, //
    },
    types::Opaque, //
};

/// A kind of object: the types of the core's struct and of the driver's data.
///
/// # Safety
///
/// [`device`](Self::device) and [`is_user`](Self::is_user) must return the values that the core set
/// in the object, must be callable at any time, and the device must be one of `Driver`. A `Raw`
/// must be usable from any thread and begin with the core's struct.
pub unsafe trait Object: Sized {
    /// Driver that implements this kind of object.
    type Driver: Operations;
    /// C struct that the core defines.
    type Raw;
    /// State of this crate in each object.
    type Extra: Extra;
    /// State of the driver in each object.
    type Data: Send + Sync;

    /// Name of the kind, for kernel messages.
    const NAME: &'static str;

    /// Returns the device of the object.
    ///
    /// # Safety
    ///
    /// `raw` must be NEW or STARTED.
    unsafe fn device(raw: *mut Self::Raw) -> *mut bindings::ib_device;

    /// True if the object belongs to a process.
    ///
    /// # Safety
    ///
    /// `raw` must be NEW or STARTED.
    unsafe fn is_user(raw: *mut Self::Raw) -> bool;

    /// Destroys the object. After an error the object lives on.
    fn destroy(object: &Managed<Self>) -> Result;

    /// Frees the memory of a destroyed object, for kinds whose memory the core does not free.
    ///
    /// # Safety
    ///
    /// The contents of `raw` must have been dropped, and the caller must not use `raw` afterwards.
    unsafe fn free(_raw: *mut Self::Raw) {}

    /// Describes the object to `rdma resource`.
    fn fill_res(_object: &Managed<Self>, _entry: &mut ResEntry<'_>) -> Result {
        Ok(())
    }

    /// Passes the raw context of the object to `put`, for `rdma resource -r`.
    fn fill_res_raw(_object: &Managed<Self>, _put: &mut dyn FnMut(&[u8]) -> Result) -> Result {
        Ok(())
    }
}

/// Defines the members of [`Object`] that are the same for every kind. `user as pd` is for kinds
/// for which the core sets only the `uobject` of the protection domain before it calls the create
/// op.
macro_rules! core_members {
    ($raw:ident $(, user as $owner:ident)?) => {
        type Raw = $crate::bindings::$raw;

        unsafe fn device(raw: *mut Self::Raw) -> *mut $crate::bindings::ib_device {
            // SAFETY: `raw` is NEW or STARTED, so the core has set `device`, which never changes.
            unsafe { (*raw).device }
        }

        unsafe fn is_user(raw: *mut Self::Raw) -> bool {
            let owner = raw;
            $(
                // SAFETY: `raw` is NEW or STARTED, so this pointer is set, and names a live object.
                let owner = unsafe { (*owner).$owner };
            )?
            // SAFETY: `owner` is NEW or STARTED, so `uobject` is set, and it never changes.
            unsafe { !(*owner).uobject.is_null() }
        }
    };
}
pub(crate) use core_members;

/// A kind of object that belongs to a protection domain.
///
/// # Safety
///
/// [`pd`](Self::pd) must fulfil the requirements of [`Object`], and return a domain of `Driver`.
pub unsafe trait InPd: Object {
    /// Returns the protection domain of the object.
    ///
    /// # Safety
    ///
    /// `raw` must be NEW or STARTED.
    unsafe fn pd(raw: *mut Self::Raw) -> *mut bindings::ib_pd;
}

/// Defines the member of [`InPd`], which is the same for every kind.
macro_rules! pd_member {
    () => {
        unsafe fn pd(raw: *mut Self::Raw) -> *mut $crate::bindings::ib_pd {
            // SAFETY: `raw` is NEW or STARTED, so `pd` is set.
            unsafe { (*raw).pd }
        }
    };
}
pub(crate) use pd_member;

/// State of this crate in each object of a kind.
pub trait Extra: Sized + Send + Sync {
    /// Returns an initializer of this state.
    fn new() -> impl PinInit<Self>;

    /// Ends all references to the object. Sleeps if there can be references.
    fn fence(&self) {}
}

impl Extra for () {
    fn new() -> impl PinInit<Self> {}
}

/// Extra state of an object that a [`Table`](base::table::Table) can find: its [`Link`], and
/// the extra state `E` of its kind.
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

/// An object of the core together with the driver's data.
///
/// # Invariants
///
/// All fields of an object to which there is a reference are initialized.
#[repr(C)]
pub struct Managed<O: Object> {
    raw: Opaque<O::Raw>,
    _count: Counted<Objects>,
    /// True after the create op can no longer fail, so that the owner has the object or will get
    /// it.
    known: Atomic<bool>,
    extra: O::Extra,
    data: O::Data,
}

// SAFETY: [`Object`] requires that `O::Raw` may be used from any thread. The other fields are
// `Send`.
unsafe impl<O: Object> Send for Managed<O> {}
// SAFETY: Code with a shared reference accesses the core's struct only in ways that are safe
// concurrently, which [`Object`] allows from any thread. The other fields are `Sync`.
unsafe impl<O: Object> Sync for Managed<O> {}

// SAFETY: `link()` returns the field `link` of `extra`, and `LINK_OFFSET` is the sum of the offsets
// of these two. `fence` unlinks the object, and is called before the object's memory is dropped or
// freed.
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
    /// `raw` must be STARTED, or all its fields must be initialized, and it must be alive for `'a`.
    pub(crate) unsafe fn from_raw<'a>(raw: *mut O::Raw) -> &'a Self {
        // SAFETY: The struct is `repr(C)` and begins with the core's struct, so `raw` points to a
        // `Self`. The caller promises that its fields are initialized and that it is alive for
        // `'a`.
        unsafe { &*raw.cast() }
    }

    pub(crate) fn as_raw(&self) -> *mut O::Raw {
        self.raw.get()
    }

    /// Returns the device of an object, which may be under construction.
    ///
    /// # Safety
    ///
    /// `raw` must be NEW or STARTED, and be alive for `'a`.
    pub(crate) unsafe fn device_of<'a>(raw: *mut O::Raw) -> &'a Device<O::Driver> {
        // SAFETY: The caller promises that `raw` is NEW or STARTED.
        let device = unsafe { O::device(raw) };
        // SAFETY: The device is one of `O::Driver` ([`Object`]), and outlives its objects.
        unsafe { Device::from_raw(device) }
    }

    pub(crate) fn extra(&self) -> &O::Extra {
        &self.extra
    }

    /// Returns the device of the object.
    pub fn device(&self) -> &Device<O::Driver> {
        // SAFETY: By the type invariant the object is initialized, so it was NEW.
        unsafe { Self::device_of(self.as_raw()) }
    }

    /// True if the object belongs to a process.
    pub fn is_user(&self) -> bool {
        // SAFETY: By the type invariant the object is initialized, so it was NEW.
        unsafe { O::is_user(self.as_raw()) }
    }

    /// True if the object was created and its owner has it or will get it. The device can report
    /// events of objects for which the create op is still running, or is about to fail.
    pub fn is_known(&self) -> bool {
        self.known.load(Acquire)
    }

    /// Reports an event of this object if the owner has a handler. The context must be one in which
    /// that handler may run: process context for kernel users whose handler sleeps.
    ///
    /// Events of an object that is not [known](Self::is_known) are discarded: the core would link
    /// the event to memory that it frees at once if the create op fails
    /// (`UVERBS_METHOD_CQ_CREATE`).
    ///
    /// # Safety
    ///
    /// `handler` and `context` must be those of the object, and the `element` of `event` must be
    /// this object.
    pub(crate) unsafe fn report(
        &self,
        mut event: bindings::ib_event,
        handler: Option<unsafe extern "C" fn(*mut bindings::ib_event, *mut c_void)>,
        context: *mut c_void,
    ) {
        event.device = self.device().as_raw();
        if let Some(handler) = handler.filter(|_| self.is_known()) {
            // SAFETY: The caller promises that handler and context are those of the object, and the
            // reference keeps the object from being destroyed.
            unsafe { handler(&mut event, context) };
        }
    }

    /// Returns the caller of a verb of the object. The kernel has more privileges than any process,
    /// so a call counts as the kernel's only if it has no sign of a process: neither `udata` nor
    /// `uobject`.
    ///
    /// # Safety
    ///
    /// `raw` must be NEW or STARTED, and ARGUMENTS must hold for `udata`, for `'a`.
    pub(crate) unsafe fn caller<'a>(
        raw: *mut O::Raw,
        udata: *mut bindings::ib_udata,
    ) -> Result<Caller<'a, O::Driver>> {
        // SAFETY: The caller promises that `raw` is NEW or STARTED.
        let of_process = unsafe { O::is_user(raw) };
        let Some(udata) = NonNull::new(udata) else {
            return if of_process {
                Err(EINVAL)
            } else {
                Ok(Caller::Kernel)
            };
        };
        // SAFETY: By ARGUMENTS a `udata` that is not `NULL` is part of a `uverbs_attr_bundle`.
        let ctx = unsafe { bindings::rdma_helper_udata_context(udata.as_ptr()) };
        if ctx.is_null() || !of_process {
            return Err(EINVAL);
        }
        // SAFETY: By ARGUMENTS the context is valid for `'a` and belongs to a device of
        // `O::Driver`.
        let context = unsafe { Ucontext::from_raw(ctx) };
        // SAFETY: By ARGUMENTS `udata` is valid for `'a`.
        let udata = unsafe { Udata::from_raw(udata) };
        Ok(Caller::User(User::new(context, udata)))
    }

    /// Initializes the fields after the core's struct in place.
    ///
    /// # Safety
    ///
    /// `raw` must be NEW until the draft is started or dropped.
    pub(crate) unsafe fn build(
        raw: *mut O::Raw,
        data: impl PinInit<O::Data, Error>,
    ) -> Result<Draft<O>> {
        let this = raw.cast::<Self>();
        // SAFETY: `raw` is NEW, so the memory is large enough for a `Self` (`object_size`). Only
        // the address of a field is computed.
        let slot = unsafe { &raw mut (*this).data };
        // SAFETY: `raw` is NEW, so the memory after the core's struct is unused and does not move.
        unsafe { init_slot(slot, data) }?;
        // SAFETY: `raw` is NEW, so the memory is large enough for a `Self` (`object_size`). Only
        // the address of a field is computed.
        let slot = unsafe { &raw mut (*this).extra };
        // SAFETY: `raw` is NEW, so the memory after the core's struct is unused and does not move.
        let Ok(()) = unsafe { init_slot(slot, O::Extra::new()) };
        // SAFETY: `raw` is NEW, so the memory is large enough for a `Self` (`object_size`). Only
        // the address of a field is computed.
        let slot = unsafe { &raw mut (*this)._count };
        // SAFETY: `raw` is NEW, so the memory after the core's struct is unused.
        unsafe { slot.write(Counted::new()) };
        // SAFETY: `raw` is NEW, so the memory is large enough for a `Self` (`object_size`). Only
        // the address of a field is computed.
        let slot = unsafe { &raw mut (*this).known };
        // SAFETY: `raw` is NEW, so the memory after the core's struct is unused.
        //
        // INVARIANT: This is the last of the fields. The core has zeroed its struct.
        unsafe { slot.write(Atomic::new(false)) };
        // SAFETY: The core zeroed its struct, and the other fields are initialized above. By NEW
        // the memory lives, and no other code uses it, until the create op ends.
        Ok(unsafe { Draft::new(raw) })
    }

    /// Destroys an object that its owner never got.
    ///
    /// # Safety
    ///
    /// All fields of `raw` must be initialized, and the caller must not use the object afterwards.
    unsafe fn undo(raw: *mut O::Raw) {
        // SAFETY: The caller promises that all fields are initialized. They are until `drop_parts`.
        let this = unsafe { Self::from_raw(raw) };
        if O::destroy(this).is_ok() {
            // SAFETY: The caller promises that all fields are initialized and that the object is
            // not used afterwards. The device does not use it either, as `destroy` has succeeded.
            unsafe { Self::drop_parts(raw) };
        } else {
            // The device may still use the memory that it was given, so nothing is dropped.
            this.extra.fence();
            pr_err!(
                "cannot destroy a {} whose creation failed after the device had created it: never freed\n",
                O::NAME
            );
        }
    }

    /// Drops all fields, and frees the memory if the core does not.
    ///
    /// # Safety
    ///
    /// All fields of `raw` must be initialized, and the caller must not use the object afterwards.
    pub(crate) unsafe fn drop_parts(raw: *mut O::Raw) {
        let this = raw.cast::<Self>();
        // SAFETY: The caller promises that all fields are initialized.
        unsafe { Self::from_raw(raw) }.extra.fence();
        // SAFETY: The caller promises that all fields are initialized and that the object is not
        // used afterwards. After `fence` there are no references to it.
        unsafe { core::ptr::drop_in_place(this) };
        // SAFETY: The contents were dropped above, and the caller promises that the object is not
        // used afterwards.
        unsafe { O::free(raw) };
    }

    /// Destroys the object.
    ///
    /// # Safety
    ///
    /// `raw` must be STARTED, and the call must be the LAST.
    pub(crate) unsafe fn destroy(raw: *mut O::Raw) -> Result {
        // SAFETY: The caller promises that `raw` is STARTED. It lives until `drop_parts`.
        let this = unsafe { Self::from_raw(raw) };
        O::destroy(this).inspect_err(|_| {
            if !this.is_user() {
                this.extra.fence();
            }
        })?;
        // SAFETY: `raw` was STARTED, so all fields are initialized. The device has destroyed it,
        // and by LAST it has no users.
        unsafe { Self::drop_parts(raw) };
        Ok(())
    }

    /// Implements the op `destroy_*` or `dealloc_*`.
    ///
    /// # Safety
    ///
    /// Only the core may call this op: `raw` must be STARTED, and the call must be the LAST.
    pub(crate) unsafe extern "C" fn op_destroy(
        raw: *mut O::Raw,
        _udata: *mut bindings::ib_udata,
    ) -> c_int {
        // SAFETY: By the contract of this op `raw` is STARTED, and the call is the LAST.
        from_result(|| unsafe { Self::destroy(raw) }.map(|()| 0))
    }

    /// Implements the op `fill_res_*_entry`.
    ///
    /// # Safety
    ///
    /// Only the core may call this op: `raw` must be STARTED, and ARGUMENTS must hold.
    pub(crate) unsafe extern "C" fn op_fill_res(
        msg: *mut kbindings::sk_buff,
        raw: *mut O::Raw,
    ) -> c_int {
        // SAFETY: By the contract of this op `raw` is STARTED, and it stays alive during the call.
        let this = unsafe { Self::from_raw(raw) };
        // SAFETY: By ARGUMENTS `msg` is under construction, and only the caller uses it.
        unsafe { ResEntry::fill(msg, |entry| O::fill_res(this, entry)) }
    }

    /// Implements the op `fill_res_*_entry_raw`.
    ///
    /// # Safety
    ///
    /// Only the core may call this op: `raw` must be STARTED, and ARGUMENTS must hold.
    pub(crate) unsafe extern "C" fn op_fill_res_raw(
        msg: *mut kbindings::sk_buff,
        raw: *mut O::Raw,
    ) -> c_int {
        // SAFETY: By the contract of this op `raw` is STARTED, and it stays alive during the call.
        let this = unsafe { Self::from_raw(raw) };
        // SAFETY: By ARGUMENTS `msg` is under construction, and only the caller uses it.
        unsafe { ResEntry::fill_raw(msg, |put| O::fill_res_raw(this, put)) }
    }
}

impl<O: InPd> Managed<O> {
    /// Returns the protection domain of the object.
    pub fn pd(&self) -> &Pd<O::Driver> {
        // SAFETY: By the type invariant the object is initialized, so it was NEW.
        unsafe { Self::pd_of(self.as_raw()) }
    }

    /// Returns the protection domain of an object, which may be under construction.
    ///
    /// # Safety
    ///
    /// `raw` must be NEW or STARTED, and be alive for `'a`.
    pub(crate) unsafe fn pd_of<'a>(raw: *mut O::Raw) -> &'a Pd<O::Driver> {
        // SAFETY: The caller promises that `raw` is NEW or STARTED.
        let pd = unsafe { O::pd(raw) };
        // SAFETY: The domain is one of `O::Driver` ([`InPd`]), is STARTED, and outlives the object
        // (NEW).
        unsafe { Pd::from_raw(pd) }
    }
}

impl<O: Object<Extra = InTable<E>>, E: Extra> Managed<O> {
    /// Removes the object from its [`Table`](base::table::Table). See [`Link::unlink`].
    pub fn unlink(&self) {
        self.extra.link.unlink();
    }
}

/// Alignment that `kzalloc()` guarantees, with which the core allocates objects.
const KMALLOC_MINALIGN: usize = 8;

/// Returns the size for `INIT_RDMA_OBJ_SIZE`. Does not compile if the alignment of `T` is too
/// large.
pub(crate) const fn object_size<T>() -> usize {
    assert!(align_of::<T>() <= KMALLOC_MINALIGN);
    size_of::<T>()
}

/// Checks that a verb without request and response data got no request data, and zeroes the
/// response.
///
/// # Safety
///
/// `udata` must be `NULL` or valid.
pub(crate) unsafe fn no_udata(udata: *mut bindings::ib_udata) -> Result {
    if let Some(raw) = NonNull::new(udata) {
        // SAFETY: The caller promises that `udata`, which is not `NULL`, is valid.
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
/// `slot` must point to unused memory for a `T` that does not move.
pub(crate) unsafe fn init_slot<T, E>(slot: *mut T, init: impl PinInit<T, E>) -> Result<(), E> {
    // SAFETY: The caller promises that `slot` is unused memory for a `T` that does not move.
    unsafe { compat::init_at(slot, init) }
}
