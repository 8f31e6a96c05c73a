// SPDX-License-Identifier: GPL-2.0

//! Request and response data of a verb that a process called.
//!
//! The rules are those of `struct ib_udata` (include/rdma/ib_verbs.h): a longer request is fine if
//! its tail is zero, a shorter response buffer truncates, a longer one is zero-filled. A `create`
//! reads its request while it builds the object and responds in `start`; whoever does not read has
//! the request checked for zeroes, whoever does not respond has the response zeroed. So every verb
//! keeps the rules, and the device may promise `uverbs_robust_udata`.

use crate::{
    base::dma::Payer,
    bindings,
    device::Operations,
    ucontext::Ucontext, //
};
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

/// Request and response data.
///
/// # Examples
///
/// ```ignore
/// if let Some(user) = caller.user() {
///     let request: CreateCqReq = user.udata().read()?;
///     // ...
///     user.udata().respond(&CreateCqResp { cqn })?;
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
        Self {
            raw,
            read: Cell::new(false),
            responded: Cell::new(false),
            _life: PhantomData,
        }
    }

    /// Copies the request, once. `EINVAL` if it is shorter than `T`, `EOPNOTSUPP` if what follows
    /// `T` is not zero.
    pub fn read<T: FromBytes>(&self) -> Result<T> {
        self.read_min(size_of::<T>())
    }

    /// As [`read`](Self::read), but a request of `min` bytes is enough: the rest of `T` is zero.
    pub fn read_min<T: FromBytes>(&self, min: usize) -> Result<T> {
        self.read.set(true);
        let mut value = MaybeUninit::<T>::zeroed();
        // SAFETY: `raw` is valid; `value` has room for `size_of::<T>()` bytes.
        to_result(unsafe {
            bindings::_ib_copy_validate_udata_in(
                self.raw.as_ptr(),
                value.as_mut_ptr().cast(),
                size_of::<T>(),
                min.min(size_of::<T>()),
            )
        })?;
        // SAFETY: All bytes are initialized, and any bytes are a `T`.
        Ok(unsafe { value.assume_init() })
    }

    /// Writes the response.
    pub fn respond<T: IntoBytes + Immutable>(&self, value: &T) -> Result {
        self.responded.set(true);
        let bytes = value.as_bytes();
        // SAFETY: `raw` is valid; `bytes` are initialized.
        to_result(unsafe {
            bindings::_ib_respond_udata(self.raw.as_ptr(), bytes.as_ptr().cast(), bytes.len())
        })
    }

    /// Copies `value` to an address that the process has named.
    pub fn write_to<T: IntoBytes + Immutable>(&self, address: u64, value: &T) -> Result {
        let address = UserPtr::from_addr(usize::try_from(address)?);
        let bytes = value.as_bytes();
        UserSlice::new(address, bytes.len())
            .writer()
            .write_slice(bytes)
    }

    /// A request that nobody read must be empty or zero.
    pub fn finish_input(&self) -> Result {
        if self.read.get() {
            return Ok(());
        }
        // SAFETY: `raw` is valid.
        to_result(unsafe { bindings::rdma_helper_udata_in_empty(self.raw.as_ptr()) })
    }

    /// A response that nobody wrote is zero.
    pub(crate) fn finish_output(&self) -> Result {
        if self.responded.get() {
            return Ok(());
        }
        // SAFETY: `raw` is valid.
        to_result(unsafe { bindings::rdma_helper_respond_empty(self.raw.as_ptr()) })
    }
}

/// Who calls a verb; decided once, when the core calls.
pub enum Caller<'a, D: Operations> {
    /// The kernel.
    Kernel,
    /// A process.
    User(User<'a, D>),
}

impl<'a, D: Operations> Caller<'a, D> {
    /// Whether it is the kernel.
    pub fn is_kernel(&self) -> bool {
        matches!(self, Self::Kernel)
    }

    /// The process, if it is one.
    pub fn user(&self) -> Option<&User<'a, D>> {
        match self {
            Self::Kernel => None,
            Self::User(user) => Some(user),
        }
    }

    /// Whose memory is used for what the call makes.
    pub fn payer(&self) -> Payer {
        match self {
            Self::Kernel => Payer::Kernel,
            Self::User(_) => Payer::Process,
        }
    }

    /// [`Udata::finish_input`] of a process.
    pub(crate) fn finish_input(&self) -> Result {
        self.user().map_or(Ok(()), |user| user.udata.finish_input())
    }

    /// [`Udata::finish_output`] of a process.
    pub(crate) fn finish_output(&self) -> Result {
        self.user()
            .map_or(Ok(()), |user| user.udata.finish_output())
    }
}

/// A process that called a verb: the current one, as long as this exists. Being neither `Send` nor
/// `Sync`, it cannot leave the thread.
pub struct User<'a, D: Operations> {
    ctx: &'a Ucontext<D>,
    udata: Udata<'a>,
}

impl<'a, D: Operations> User<'a, D> {
    pub(crate) fn new(ctx: &'a Ucontext<D>, udata: Udata<'a>) -> Self {
        Self { ctx, udata }
    }

    /// Its context.
    pub fn context(&self) -> &'a Ucontext<D> {
        self.ctx
    }

    /// Its request and response data.
    pub fn udata(&self) -> &Udata<'a> {
        &self.udata
    }
}
