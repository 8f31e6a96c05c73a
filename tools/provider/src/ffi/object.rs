// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Objects that C holds by a pointer to their libibverbs part, which the provider's part follows.
//!
//! This file is a safe interface to unsafe code. The libibverbs part belongs to libibverbs and the
//! program, so it is only ever reached through raw pointers here. The provider's part is reached
//! through shared references, so everything in it that changes is in a lock or an atomic.
#![allow(unsafe_code)]

use super::pabi::*;
use crate::use_count::UseGuard;
use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::mem::{size_of, MaybeUninit};
use core::ops::Deref;
use verbena_abi::ctx::AddressVector;

/// Structures of libibverbs that may start out as zeroes.
///
/// # Safety
///
/// A value whose bytes are all 0 is valid.
pub unsafe trait Zeroed {}

// SAFETY: the structure consists of integers, nullable pointers, and arrays and unions of them.
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
// SAFETY: the structure consists of integers and arrays of them, as do the following ones.
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

/// Object in memory: libibverbs' part `V`, then the provider's part `T`.
#[repr(C)]
pub struct VerbsObject<V, T> {
    verbs: UnsafeCell<V>,
    pub inner: T,
}

/// Provider's part of an object that was created on a domain. The domain stays in use as long as
/// this value lives.
pub struct InDomain<T> {
    inner: T,
    _domain: Option<UseGuard>,
}

impl<T> InDomain<T> {
    pub fn new(inner: T, domain: Option<UseGuard>) -> Self {
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

/// Object whose libibverbs part is being filled. This part is at its final address already, because
/// the kernel receives the address and returns it with events.
pub struct ObjectDraft<V, T>(Box<VerbsObject<V, MaybeUninit<T>>>);

impl<V: Zeroed, T> ObjectDraft<V, T> {
    pub fn new() -> Self {
        Self(Box::new(VerbsObject {
            // SAFETY: the trait promises that zeroes are a valid value.
            verbs: UnsafeCell::new(unsafe { core::mem::zeroed() }),
            inner: MaybeUninit::uninit(),
        }))
    }

    /// Returns the libibverbs part.
    pub fn verbs(&mut self) -> *mut V {
        self.0.verbs.get()
    }

    /// Completes the object and transfers its ownership to C.
    pub fn finish(mut self, inner: T) -> *mut V {
        self.0.inner.write(inner);
        Box::into_raw(self.0).cast()
    }
}

impl<V: Zeroed, T> VerbsObject<V, T> {
    /// Returns the provider's part.
    ///
    /// # Safety
    ///
    /// `ptr` points to the beginning of an object from [`ObjectDraft`] with the same types, which
    /// lives during `'a`.
    #[inline(always)]
    pub unsafe fn inner<'a, P>(ptr: *mut P) -> &'a T
    where
        V: 'a,
    {
        // SAFETY: the caller meets the conditions; `repr(C)` puts the libibverbs part first.
        unsafe { &(*ptr.cast::<Self>()).inner }
    }

    /// Takes the ownership of an object back from C, in order to drop the object.
    ///
    /// # Safety
    ///
    /// The conditions of `inner` hold, and nothing refers to the object any more.
    pub unsafe fn take<P>(ptr: *mut P) -> Box<Self> {
        // SAFETY: the caller meets the conditions of this function.
        unsafe { Box::from_raw(ptr.cast()) }
    }
}

/// Provider's part of an address handle: the words that the WQE of a datagram copies.
pub struct Ah {
    /// Words of an address vector. Each request sets its own destination QPN and Q_Key.
    words: [u64; size_of::<AddressVector>() / 8],
    _domain: Option<UseGuard>,
}

impl Ah {
    /// Returns the provider's part for an address vector.
    pub fn new(vector: AddressVector, domain: Option<UseGuard>) -> Self {
        let words: [u64; size_of::<AddressVector>() / 8] = zerocopy::transmute!(vector);
        Self {
            words: words.map(u64::from_le),
            _domain: domain,
        }
    }

    /// Returns the address handle that a pointer of C refers to, or `None` if it is null.
    ///
    /// # Safety
    ///
    /// `ah` is null or an address handle of this provider.
    #[inline(always)]
    pub unsafe fn from_ptr<'a>(ah: *mut ibv_ah) -> Option<&'a Self> {
        if ah.is_null() {
            return None;
        }
        // SAFETY: the caller meets the conditions of this function.
        Some(unsafe { VerbsObject::<ibv_ah, Self>::inner(ah) })
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
    // SAFETY: `__errno_location` has no preconditions.
    let place = unsafe { __errno_location() };
    // SAFETY: glibc returns the address of the thread's own errno.
    unsafe { *place = errno.0 };
}

/// Returns the result of a verb that creates an object: the object, or null with `errno` set.
pub fn or_null<T>(result: Result<*mut T, crate::errno::Errno>) -> *mut T {
    match result {
        Ok(object) => object,
        Err(errno) => {
            set_errno(errno);
            core::ptr::null_mut()
        }
    }
}
