// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Thread domains, and parent domains, which join a thread domain with a protection domain. A
//! parent domain is a [`Pd`].
#![allow(unsafe_code)]

use super::bindings::*;
use super::context::{later_methods, Context, Pd};
use super::cq::Cq;
use super::sys::Errno;
use std::sync::Arc;

/// A thread domain.
pub struct Td {
    pub(super) raw: *mut ibv_td,
    ctx: Arc<Context>,
}

impl Td {
    pub fn new(ctx: &Arc<Context>) -> Result<Arc<Td>, Errno> {
        let methods = later_methods(ctx.raw()).ok_or(Errno::EOPNOTSUPP)?;
        // SAFETY: the pointer is the method table of a provider, which does not change any more.
        let op = unsafe { (*methods).alloc_td }.ok_or(Errno::EOPNOTSUPP)?;
        let mut attr = ibv_td_init_attr { comp_mask: 0 };
        // SAFETY: the context and the attributes are valid.
        let raw = unsafe { op(ctx.raw(), &mut attr) };
        if raw.is_null() {
            return Err(Errno::last());
        }
        let ctx = ctx.clone();
        Ok(Arc::new(Td { raw, ctx }))
    }

    /// Creates a parent domain, which joins this thread domain with a protection domain.
    pub fn parent(self: &Arc<Self>, pd: &Arc<Pd>) -> Result<Arc<Pd>, Errno> {
        let methods = later_methods(self.ctx.raw()).ok_or(Errno::EOPNOTSUPP)?;
        // SAFETY: the pointer is the method table of a provider, which does not change any more.
        let op = unsafe { (*methods).alloc_parent_domain }.ok_or(Errno::EOPNOTSUPP)?;
        let mut attr = ibv_parent_domain_init_attr {
            pd: pd.raw(),
            td: self.raw,
            comp_mask: 0,
            alloc: None,
            free: None,
            pd_context: std::ptr::null_mut(),
        };
        // SAFETY: the context and the attributes are valid; the result keeps the objects in them
        // alive.
        let raw = unsafe { op(self.ctx.raw(), &mut attr) };
        if raw.is_null() {
            return Err(Errno::last());
        }
        Ok(Arc::new(Pd {
            raw,
            ctx: self.ctx.clone(),
            _stands_on: Some((pd.clone(), self.clone())),
        }))
    }

    /// Tries to free the thread domain, for which the caller expects EBUSY because a parent domain
    /// uses it. If the call succeeds, the process ends.
    pub fn expect_busy(&self) -> Result<(), String> {
        // SAFETY: the thread domain is valid. If the call succeeds, this process does not access it
        // any more.
        busy(unsafe { dealloc_td(self.raw) }, "a thread domain")
    }
}

impl Pd {
    /// Tries to free the domain, for which the caller expects EBUSY because the domain is in use.
    /// If the call succeeds, the process ends.
    pub fn expect_busy(&self) -> Result<(), String> {
        // SAFETY: the domain is valid. If the call succeeds, this process does not access it any
        // more.
        busy(unsafe { ibv_dealloc_pd(self.raw) }, "a domain")
    }
}

fn busy(returned: i32, what: &str) -> Result<(), String> {
    match Errno::check(returned) {
        Err(Errno::EBUSY) => Ok(()),
        Err(other) => Err(format!("freeing {what} in use gave {other}, not EBUSY")),
        Ok(()) => {
            eprintln!("reason: {what} in use was freed");
            std::process::exit(1);
        }
    }
}

/// Creates a CQ on a parent domain, which cannot be freed before the CQ.
pub fn cq(parent: &Arc<Pd>, cqe: u32) -> Result<Arc<Cq>, Errno> {
    let mut attr = ibv_cq_init_attr_ex {
        cqe,
        comp_mask: IBV_CQ_INIT_ATTR_MASK_PD,
        parent_domain: parent.raw(),
        ..ibv_cq_init_attr_ex::default()
    };
    let methods = later_methods(parent.ctx.raw()).ok_or(Errno::EOPNOTSUPP)?;
    // SAFETY: the pointer is the method table of a provider, which does not change any more.
    let op = unsafe { (*methods).create_cq_ex }.ok_or(Errno::EOPNOTSUPP)?;
    // SAFETY: the context and the attributes are valid.
    let raw = unsafe { op(parent.ctx.raw(), &mut attr) };
    if raw.is_null() {
        return Err(Errno::last());
    }
    Ok(Cq::from_raw(raw.cast(), &parent.ctx))
}

/// Calls `ibv_dealloc_td`, which is an inline function of the header and not exported by the
/// library.
///
/// # Safety
///
/// `td` is valid, and is not used any more if this call succeeds.
pub(super) unsafe fn dealloc_td(td: *mut ibv_td) -> i32 {
    // SAFETY: a valid object has a valid context.
    let context = unsafe { (*td).context };
    let Some(methods) = later_methods(context) else {
        return libc::EOPNOTSUPP;
    };
    // SAFETY: the pointer is the method table of a provider, which does not change any more.
    match unsafe { (*methods).dealloc_td } {
        // SAFETY: the caller guarantees that `td` is valid.
        Some(op) => unsafe { op(td) },
        None => libc::EOPNOTSUPP,
    }
}
