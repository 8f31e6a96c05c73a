// SPDX-License-Identifier: GPL-2.0

//! Request and response data of a verb that a process called.
//!
//! C headers: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h),
//! [`include/rdma/uverbs_ioctl.h`](srctree/include/rdma/uverbs_ioctl.h)
//!
//! The rules are those of `struct ib_udata`: a longer request is accepted if its tail is zero, a
//! shorter response buffer truncates the response, and a longer one is filled with zeroes. A
//! `create` reads its request while it creates the object, and responds in `start`. If a verb does
//! not read its request, this crate checks that the request is zero. If a verb does not respond,
//! this crate zeroes the response. So every verb follows the rules, and the device can set
//! `uverbs_robust_udata`.

use crate::{
    bindings,
    device::Operations,
    ucontext::Ucontext, //
};
use base::dma::Payer;
use core::{
    cell::Cell,
    marker::PhantomData,
    mem::MaybeUninit,
    ptr::NonNull, //
};
use kernel::{
    error::to_result,
    prelude::*,
    uaccess::{
        UserPtr,
        UserSlice, //
    }, //
};
use zerocopy::{
    FromBytes,
    Immutable,
    IntoBytes, //
};

/// Request and response data of a call.
///
/// # Invariants
///
/// `raw` is valid for `'a`.
///
/// # Examples
///
/// ```
/// use rdma::{
///     device::Operations,
///     udata::Caller, //
/// };
///
/// /// Reads the request of a process, and responds with a number of the device.
/// fn answer<D: Operations>(caller: &Caller<'_, D>, number: u32) -> Result {
///     if let Some(user) = caller.user() {
///         let flags: u32 = user.udata().read()?;
///         if flags != 0 {
///             return Err(EINVAL);
///         }
///         user.udata().respond(&number)?;
///     }
///     Ok(())
/// }
/// ```
pub struct Udata<'a> {
    raw: NonNull<bindings::ib_udata>,
    read: Cell<bool>,
    responded: Cell<bool>,
    _life: PhantomData<&'a bindings::ib_udata>,
}

impl Udata<'_> {
    /// # Safety
    ///
    /// `raw` must be valid for the lifetime.
    pub(crate) unsafe fn from_raw(raw: NonNull<bindings::ib_udata>) -> Self {
        // INVARIANT: The caller promises that `raw` is valid.
        Self {
            raw,
            read: Cell::new(false),
            responded: Cell::new(false),
            _life: PhantomData,
        }
    }

    /// Copies the request, once. Returns `EINVAL` if the request is shorter than `T`, and
    /// `EOPNOTSUPP` if the bytes after `T` are not zero.
    pub fn read<T: FromBytes>(&self) -> Result<T> {
        self.read_min(size_of::<T>())
    }

    /// Does the same as [`read`](Self::read), but accepts a request of `min` bytes. The rest of `T`
    /// is zero.
    pub fn read_min<T: FromBytes>(&self, min: usize) -> Result<T> {
        self.read.set(true);
        let mut value = MaybeUninit::<T>::zeroed();
        // SAFETY: By the type invariant `raw` is valid. `value` has room for `size_of::<T>()`
        // bytes.
        to_result(unsafe {
            bindings::_ib_copy_validate_udata_in(
                self.raw.as_ptr(),
                value.as_mut_ptr().cast(),
                size_of::<T>(),
                min.min(size_of::<T>()),
            )
        })?;
        // SAFETY: All bytes are initialized, because they were zeroed first, and any bytes are a
        // `T`.
        Ok(unsafe { value.assume_init() })
    }

    /// Writes the response.
    pub fn respond<T: IntoBytes + Immutable>(&self, value: &T) -> Result {
        self.responded.set(true);
        let bytes = value.as_bytes();
        // SAFETY: By the type invariant `raw` is valid. The function reads `bytes`, which are
        // initialized.
        to_result(unsafe {
            bindings::_ib_respond_udata(self.raw.as_ptr(), bytes.as_ptr().cast(), bytes.len())
        })
    }

    /// Copies `value` to an address in the process.
    pub fn write_to<T: IntoBytes + Immutable>(&self, address: u64, value: &T) -> Result {
        let address = UserPtr::from_addr(usize::try_from(address)?);
        let bytes = value.as_bytes();
        UserSlice::new(address, bytes.len())
            .writer()
            .write_slice(bytes)
    }

    /// Checks that a request that was not read is empty or zero.
    pub fn finish_input(&self) -> Result {
        if self.read.get() {
            return Ok(());
        }
        // SAFETY: By the type invariant `raw` is valid.
        to_result(unsafe { bindings::rdma_helper_udata_in_empty(self.raw.as_ptr()) })
    }

    /// Zeroes a response that was not written.
    pub(crate) fn finish_output(&self) -> Result {
        if self.responded.get() {
            return Ok(());
        }
        // SAFETY: By the type invariant `raw` is valid.
        to_result(unsafe { bindings::rdma_helper_respond_empty(self.raw.as_ptr()) })
    }
}

/// Caller of a verb, which is determined once, when the core calls.
pub enum Caller<'a, D: Operations> {
    /// A kernel user called the verb.
    Kernel,
    /// A process called the verb.
    User(User<'a, D>),
}

impl<'a, D: Operations> Caller<'a, D> {
    /// True if the caller is the kernel.
    pub fn is_kernel(&self) -> bool {
        matches!(self, Self::Kernel)
    }

    /// Returns the process, or `None` if the caller is the kernel.
    pub fn user(&self) -> Option<&User<'a, D>> {
        match self {
            Self::Kernel => None,
            Self::User(user) => Some(user),
        }
    }

    /// Returns the owner that is charged for memory of the call.
    pub fn payer(&self) -> Payer {
        match self {
            Self::Kernel => Payer::Kernel,
            Self::User(_) => Payer::Process,
        }
    }

    /// Calls [`Udata::finish_input`] if the caller is a process.
    pub(crate) fn finish_input(&self) -> Result {
        self.user().map_or(Ok(()), |user| user.udata.finish_input())
    }

    /// Calls [`Udata::finish_output`] if the caller is a process.
    pub(crate) fn finish_output(&self) -> Result {
        self.user()
            .map_or(Ok(()), |user| user.udata.finish_output())
    }
}

/// A process that called a verb, which is the current process as long as this value exists. The
/// type is neither `Send` nor `Sync`, so the value cannot leave the thread.
pub struct User<'a, D: Operations> {
    ctx: &'a Ucontext<D>,
    udata: Udata<'a>,
}

impl<'a, D: Operations> User<'a, D> {
    pub(crate) fn new(ctx: &'a Ucontext<D>, udata: Udata<'a>) -> Self {
        Self { ctx, udata }
    }

    /// Returns the context of the process.
    pub fn context(&self) -> &'a Ucontext<D> {
        self.ctx
    }

    /// Returns the request and response data.
    pub fn udata(&self) -> &Udata<'a> {
        &self.udata
    }
}
