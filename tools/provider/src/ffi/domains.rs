// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Protection domains, thread domains, and parent domains, which join one of each. The preconditions are those of
//! `verbs`. The latter two exist in the process only: a parent domain stands for its protection domain everywhere, and
//! what is created on it is counted here, as the kernel counts what is created on a protection domain. Queue pairs and SRQs on
//! a parent domain with a thread domain are posted to without a lock. CQs keep theirs: queue pairs of other threads come and go
//! there, which the program need not know of.
#![allow(unsafe_code)]
// Said once, at the head of `verbs`.
#![allow(clippy::missing_safety_doc)]

use super::asked::check_flags;
use super::device::{check, Message};
use super::lock::Sharing;
use super::object::{or_null, Draft, Object};
use super::pabi::*;
use crate::errno::Errno;
use crate::users::{Use, Users};
use core::ffi::c_int;
use core::mem::size_of_val;
use verbena_abi::uverbs::AllocPdResp;

/// The provider's part of a protection domain.
pub struct Pd {
    users: Users,
    /// A parent domain's: it stands on a protection domain and maybe on a thread domain.
    stands_on: Option<(Use, Option<Use>)>,
}

impl Pd {
    /// Something is created on this domain: what keeps a parent domain from being freed. Of a protection domain the kernel
    /// knows.
    pub fn begin_use(&self) -> Option<Use> {
        self.stands_on.is_some().then(|| self.users.begin())
    }

    /// Who may post to what is created on this domain.
    pub fn sharing(&self) -> Sharing {
        match self.stands_on {
            // SAFETY: the program has put it into a thread domain, which says so.
            Some((_, Some(_))) => unsafe { Sharing::promised() },
            _ => Sharing::THREADS,
        }
    }

    /// The provider's part of what C calls a protection domain.
    ///
    /// # Safety
    ///
    /// `pd` is a protection or parent domain of this provider.
    pub unsafe fn of<'a>(pd: *mut ibv_pd) -> &'a Self {
        // SAFETY: the caller vouches for it.
        unsafe { Object::<ibv_pd, Self>::inner(pd) }
    }
}

/// The provider's part of a thread domain.
struct Td {
    users: Users,
}

pub unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: integers.
    let mut request: ibv_alloc_pd = unsafe { core::mem::zeroed() };
    let mut response = Message::<ib_uverbs_alloc_pd_resp, AllocPdResp>::zeroed();
    let mut pd = Draft::<ibv_pd, Pd>::new();
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
            users: Users::default(),
            stands_on: None,
        })
    }))
}

pub unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: see the head of `verbs`.
    let inner = unsafe { Pd::of(pd) };
    if inner.users.any() {
        return Errno::BUSY.0;
    }
    if inner.stands_on.is_none() {
        // SAFETY: see the head of `verbs`.
        let returned = unsafe { ibv_cmd_dealloc_pd(pd) };
        if returned != 0 {
            return returned;
        }
    }
    // SAFETY: from `alloc_pd` or `alloc_parent_domain`, and gone for the kernel.
    drop(unsafe { Object::<ibv_pd, Pd>::take(pd) });
    0
}

/// Whether there is such a domain the kernel says when it is used.
pub unsafe extern "C" fn import_pd(context: *mut ibv_context, handle: u32) -> *mut ibv_pd {
    let mut pd = Draft::<ibv_pd, Pd>::new();
    // SAFETY: just allocated.
    let verbs = unsafe { &mut *pd.verbs() };
    verbs.context = context;
    verbs.handle = handle;
    pd.finish(Pd {
        users: Users::default(),
        stands_on: None,
    })
}

/// The domain stays; only this process' view of it goes.
pub unsafe extern "C" fn unimport_pd(pd: *mut ibv_pd) {
    // SAFETY: from `import_pd`.
    drop(unsafe { Object::<ibv_pd, Pd>::take(pd) });
}

pub unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    // SAFETY: see the head of `verbs`.
    let known = check_flags(unsafe { (*attr).comp_mask }, 0);
    or_null(known.map(|()| {
        let mut td = Draft::<ibv_td, Td>::new();
        // SAFETY: just allocated.
        unsafe { (*td.verbs()).context = context };
        td.finish(Td {
            users: Users::default(),
        })
    }))
}

pub unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    // SAFETY: see the head of `verbs`.
    let inner = unsafe { Object::<ibv_td, Td>::inner(td) };
    if inner.users.any() {
        return Errno::BUSY.0;
    }
    // SAFETY: from `alloc_td`.
    drop(unsafe { Object::<ibv_td, Td>::take(td) });
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
/// As `alloc_parent_domain`.
unsafe fn new_parent_domain(attr: &ibv_parent_domain_init_attr) -> Result<*mut ibv_pd, Errno> {
    // Queues lie in memory of the kernel module, so there is nothing that the program's allocators would be asked for.
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
        // It joins a protection domain, not another of its kind.
        return Err(Errno::INVAL);
    }
    let td = if attr.td.is_null() {
        None
    } else {
        // SAFETY: see the head of `verbs`.
        let td = unsafe { Object::<ibv_td, Td>::inner(attr.td) };
        Some(td.users.begin())
    };
    let mut parent = Draft::<ibv_pd, Pd>::new();
    // SAFETY: see the head of `verbs`.
    let contained = unsafe { &*attr.pd };
    // SAFETY: just allocated.
    let verbs = unsafe { &mut *parent.verbs() };
    verbs.context = contained.context;
    verbs.handle = contained.handle;
    Ok(parent.finish(Pd {
        users: Users::default(),
        stands_on: Some((inner.users.begin(), td)),
    }))
}
