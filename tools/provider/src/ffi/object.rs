// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Objects that C holds by a pointer to their libibverbs part, with the provider's part behind it.
//!
//! A wall. The libibverbs part belongs to libibverbs and the program: here it is only ever reached through raw pointers.
//! The provider's part is reached through shared references, so it keeps what changes behind locks or atomics.
#![allow(unsafe_code)]

use super::pabi::*;
use crate::users::Use;
use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::mem::{size_of, MaybeUninit};
use core::ops::Deref;
use verbena_abi::ctx::AddressVector;

/// Structures of libibverbs that may start out as zeroes.
///
/// # Safety
///
/// All bytes 0 is a valid value.
pub unsafe trait Zeroed {}

// SAFETY: integers, nullable pointers, and arrays and unions of them.
unsafe impl Zeroed for ibv_pd {}
// SAFETY: as above.
unsafe impl Zeroed for ibv_td {}
// SAFETY: as above.
unsafe impl Zeroed for ibv_ah {}
// SAFETY: as above.
unsafe impl Zeroed for ibv_mw {}
// SAFETY: as above.
unsafe impl Zeroed for verbs_mr {}
// SAFETY: as above.
unsafe impl Zeroed for verbs_cq {}
// SAFETY: as above.
unsafe impl Zeroed for verbs_qp {}
// SAFETY: as above.
unsafe impl Zeroed for verbs_srq {}
// SAFETY: as above.
unsafe impl Zeroed for verbs_xrcd {}
// SAFETY: integers and arrays of them, as are the following.
unsafe impl Zeroed for ibv_get_context {}
// SAFETY: as above.
unsafe impl Zeroed for ib_uverbs_get_context_resp {}
// SAFETY: as above.
unsafe impl Zeroed for ib_uverbs_alloc_pd_resp {}
// SAFETY: as above.
unsafe impl Zeroed for ib_uverbs_create_ah_resp {}
// SAFETY: as above.
unsafe impl Zeroed for ib_uverbs_ex_create_cq_resp {}
// SAFETY: as above.
unsafe impl Zeroed for ibv_modify_srq {}
// SAFETY: as above.
unsafe impl Zeroed for ibv_resize_cq {}
// SAFETY: as above.
unsafe impl Zeroed for ib_uverbs_resize_cq_resp {}
// SAFETY: as above.
unsafe impl Zeroed for ib_uverbs_create_srq_resp {}
// SAFETY: as above.
unsafe impl Zeroed for ib_uverbs_ex_create_qp_resp {}

/// libibverbs' part `V`, then the provider's part `T`.
#[repr(C)]
pub struct Object<V, T> {
    verbs: UnsafeCell<V>,
    pub inner: T,
}

/// What was created on a domain, which stays in use as long as this value lives.
pub struct InDomain<T> {
    inner: T,
    _domain: Option<Use>,
}

impl<T> InDomain<T> {
    pub fn new(inner: T, domain: Option<Use>) -> Self {
        Self {
            inner,
            _domain: domain,
        }
    }
}

impl<T> Deref for InDomain<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.inner
    }
}

/// An object whose libibverbs part is being filled: at the address where it will stay, because the kernel is told that
/// address, and events bring it back.
pub struct Draft<V, T>(Box<Object<V, MaybeUninit<T>>>);

impl<V: Zeroed, T> Draft<V, T> {
    pub fn new() -> Self {
        Self(Box::new(Object {
            // SAFETY: the trait's promise.
            verbs: UnsafeCell::new(unsafe { core::mem::zeroed() }),
            inner: MaybeUninit::uninit(),
        }))
    }

    /// The libibverbs part.
    pub fn verbs(&mut self) -> *mut V {
        self.0.verbs.get()
    }

    /// Completes the object and gives it away to C.
    pub fn finish(mut self, inner: T) -> *mut V {
        self.0.inner.write(inner);
        Box::into_raw(self.0).cast()
    }
}

impl<V: Zeroed, T> Object<V, T> {
    /// The provider's part.
    ///
    /// # Safety
    ///
    /// `ptr` points to the beginning of an object from [`Draft`] with the same types, which lives during `'a`.
    #[inline(always)]
    pub unsafe fn inner<'a, P>(ptr: *mut P) -> &'a T
    where
        V: 'a,
    {
        // SAFETY: the caller vouches for it; `repr(C)` puts the libibverbs part first.
        unsafe { &(*ptr.cast::<Self>()).inner }
    }

    /// Takes an object back from C, to drop it.
    ///
    /// # Safety
    ///
    /// As `inner`, and nothing refers to the object any more.
    pub unsafe fn take<P>(ptr: *mut P) -> Box<Self> {
        // SAFETY: the caller vouches for it.
        unsafe { Box::from_raw(ptr.cast()) }
    }
}

/// The provider's part of an address handle: what a datagram's WQE takes over.
pub struct Ah {
    /// The words of an address vector; destination QPN and Q_Key are each request's.
    words: [u64; size_of::<AddressVector>() / 8],
    _domain: Option<Use>,
}

impl Ah {
    /// Keeps an address vector.
    pub fn new(vector: AddressVector, domain: Option<Use>) -> Self {
        let words: [u64; size_of::<AddressVector>() / 8] = zerocopy::transmute!(vector);
        Self {
            words: words.map(u64::from_le),
            _domain: domain,
        }
    }

    /// The address handle behind C's pointer.
    ///
    /// # Safety
    ///
    /// `ah` is null or an address handle of this provider.
    #[inline(always)]
    pub unsafe fn from_ptr<'a>(ah: *mut ibv_ah) -> Option<&'a Self> {
        if ah.is_null() {
            return None;
        }
        // SAFETY: the caller vouches for it.
        Some(unsafe { Object::<ibv_ah, Self>::inner(ah) })
    }

    #[inline(always)]
    pub fn words(&self) -> &[u64; size_of::<AddressVector>() / 8] {
        &self.words
    }
}

extern "C" {
    fn __errno_location() -> *mut c_int;
}

/// Sets `errno`.
pub fn set_errno(errno: crate::errno::Errno) {
    // SAFETY: no preconditions.
    let place = unsafe { __errno_location() };
    // SAFETY: glibc returns the address of the thread's own errno.
    unsafe { *place = errno.0 };
}

/// What a verb that creates returns: the object, or null with `errno`.
pub fn or_null<T>(result: Result<*mut T, crate::errno::Errno>) -> *mut T {
    match result {
        Ok(object) => object,
        Err(errno) => {
            set_errno(errno);
            core::ptr::null_mut()
        }
    }
}
