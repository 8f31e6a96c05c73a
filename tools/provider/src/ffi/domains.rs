// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Protection domains, thread domains, and parent domains, which join one of each. The
//! preconditions are those of `verbs`.
//!
//! Thread domains and parent domains exist in the process only. A parent domain stands for its
//! protection domain everywhere. The objects that are created on it are counted here, as the kernel
//! counts the objects on a protection domain. Posting to queue pairs and SRQs on a parent domain
//! with a thread domain takes no lock. CQs keep their locks: queue pairs of other threads are
//! created and destroyed there, which the program need not know.
#![allow(unsafe_code)]
// The head of `verbs` states the preconditions of all verbs.
#![allow(clippy::missing_safety_doc)]

use super::device::{check, DriverMessage};
use super::lock::Sharing;
use super::object::{or_null, ObjectDraft, VerbsObject};
use super::options::check_flags;
use super::pabi::*;
use crate::errno::Errno;
use crate::use_count::{UseCount, UseGuard};
use core::ffi::c_int;
use core::mem::size_of_val;
use verbena_abi::uverbs::AllocPdResp;

/// The provider's part of a protection domain.
pub struct Pd {
    users: UseCount,
    /// Uses of the protection domain and the optional thread domain that a parent domain joins;
    /// `None` for a protection domain.
    stands_on: Option<(UseGuard, Option<UseGuard>)>,
}

impl Pd {
    /// Counts an object that is created on this domain, so that a parent domain is not freed before
    /// it. Returns `None` for a protection domain, whose objects the kernel counts.
    pub fn begin_use(&self) -> Option<UseGuard> {
        self.stands_on.is_some().then(|| self.users.begin())
    }

    /// Returns the threads that may post to the objects on this domain.
    pub fn sharing(&self) -> Sharing {
        match self.stands_on {
            // SAFETY: the program has put the object into a thread domain, and so has promised
            // this.
            Some((_, Some(_))) => unsafe { Sharing::promised() },
            _ => Sharing::THREADS,
        }
    }

    /// Returns the provider's part of a protection domain of C.
    ///
    /// # Safety
    ///
    /// `pd` is a protection or parent domain of this provider.
    pub unsafe fn of<'a>(pd: *mut ibv_pd) -> &'a Self {
        // SAFETY: the caller meets the conditions of this function.
        unsafe { VerbsObject::<ibv_pd, Self>::inner(pd) }
    }
}

/// The provider's part of a thread domain.
struct Td {
    users: UseCount,
}

pub unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: the structure consists of integers, which may be zero.
    let mut request: ibv_alloc_pd = unsafe { core::mem::zeroed() };
    let mut response = DriverMessage::<ib_uverbs_alloc_pd_resp, AllocPdResp>::zeroed();
    let mut pd = ObjectDraft::<ibv_pd, Pd>::new();
    // SAFETY: see the head of `verbs`.
    let result = check(unsafe {
        ibv_cmd_alloc_pd(
            context,
            pd.verbs(),
            &mut request,
            size_of_val(&request),
            &mut response.core,
            size_of_val(&response),
        )
    });
    or_null(result.map(|()| {
        pd.finish(Pd {
            users: UseCount::default(),
            stands_on: None,
        })
    }))
}

pub unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: see the head of `verbs`.
    let inner = unsafe { Pd::of(pd) };
    if inner.users.is_in_use() {
        return Errno::BUSY.0;
    }
    if inner.stands_on.is_none() {
        // SAFETY: see the head of `verbs`.
        let returned = unsafe { ibv_cmd_dealloc_pd(pd) };
        if returned != 0 {
            return returned;
        }
    }
    // SAFETY: the object comes from `alloc_pd` or `alloc_parent_domain`, and the kernel no longer
    // knows it.
    drop(unsafe { VerbsObject::<ibv_pd, Pd>::take(pd) });
    0
}

/// Imports a protection domain. The kernel checks the handle only when the domain is used.
pub unsafe extern "C" fn import_pd(context: *mut ibv_context, handle: u32) -> *mut ibv_pd {
    let mut pd = ObjectDraft::<ibv_pd, Pd>::new();
    // SAFETY: the object was just allocated.
    let verbs = unsafe { &mut *pd.verbs() };
    verbs.context = context;
    verbs.handle = handle;
    pd.finish(Pd {
        users: UseCount::default(),
        stands_on: None,
    })
}

/// Frees the object of an imported domain in this process. The domain itself stays.
pub unsafe extern "C" fn unimport_pd(pd: *mut ibv_pd) {
    // SAFETY: the object comes from `import_pd`.
    drop(unsafe { VerbsObject::<ibv_pd, Pd>::take(pd) });
}

pub unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    // SAFETY: see the head of `verbs`.
    let known = check_flags(unsafe { (*attr).comp_mask }, 0);
    or_null(known.map(|()| {
        let mut td = ObjectDraft::<ibv_td, Td>::new();
        // SAFETY: the object was just allocated.
        unsafe { (*td.verbs()).context = context };
        td.finish(Td {
            users: UseCount::default(),
        })
    }))
}

pub unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    // SAFETY: see the head of `verbs`.
    let inner = unsafe { VerbsObject::<ibv_td, Td>::inner(td) };
    if inner.users.is_in_use() {
        return Errno::BUSY.0;
    }
    // SAFETY: the object comes from `alloc_td`.
    drop(unsafe { VerbsObject::<ibv_td, Td>::take(td) });
    0
}

pub unsafe extern "C" fn alloc_parent_domain(
    _context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    // SAFETY: see the head of `verbs`.
    let attr = unsafe { &*attr };
    // SAFETY: as above.
    or_null(unsafe { new_parent_domain(attr) })
}

/// # Safety
///
/// The conditions are those of `alloc_parent_domain`.
unsafe fn new_parent_domain(attr: &ibv_parent_domain_init_attr) -> Result<*mut ibv_pd, Errno> {
    // Queues are in memory of the kernel module, so the program's allocators have nothing to
    // allocate.
    check_flags(
        attr.comp_mask,
        IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT | IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS,
    )?;
    if attr.pd.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: see the head of `verbs`.
    let inner = unsafe { Pd::of(attr.pd) };
    if inner.stands_on.is_some() {
        // A parent domain joins a protection domain, not another parent domain.
        return Err(Errno::INVAL);
    }
    let td = if attr.td.is_null() {
        None
    } else {
        // SAFETY: see the head of `verbs`.
        let td = unsafe { VerbsObject::<ibv_td, Td>::inner(attr.td) };
        Some(td.users.begin())
    };
    let mut parent = ObjectDraft::<ibv_pd, Pd>::new();
    // SAFETY: see the head of `verbs`.
    let contained = unsafe { &*attr.pd };
    // SAFETY: the object was just allocated.
    let verbs = unsafe { &mut *parent.verbs() };
    verbs.context = contained.context;
    verbs.handle = contained.handle;
    Ok(parent.finish(Pd {
        users: UseCount::default(),
        stands_on: Some((inner.users.begin(), td)),
    }))
}
