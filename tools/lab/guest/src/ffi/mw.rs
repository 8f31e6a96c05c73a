// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Memory windows.
#![allow(unsafe_code)]

use super::bindings::*;
use super::context::Pd;
use super::mr::Mr;
use super::qp::{flag, PostError, Qp};
use super::sys::Errno;
use std::sync::Arc;

/// `enum ibv_mw_type`.
pub mod mw_type {
    use super::super::bindings::*;

    pub const TYPE_1: u32 = IBV_MW_TYPE_1;
    pub const TYPE_2: u32 = IBV_MW_TYPE_2;
}

/// A memory window.
pub struct Mw {
    pub(super) raw: *mut ibv_mw,
    pd: Arc<Pd>,
}

impl Mw {
    /// Calls `ibv_alloc_mw`, with any number as the type.
    pub fn new(pd: &Arc<Pd>, mw_type: u32) -> Result<Mw, Errno> {
        // SAFETY: the pointer is the method table of a provider, which does not change any more.
        let op = unsafe { (*pd.ctx.raw()).ops.alloc_mw }.ok_or(Errno::EOPNOTSUPP)?;
        // SAFETY: the domain is valid.
        let raw = unsafe { op(pd.raw(), mw_type) };
        if raw.is_null() {
            return Err(Errno::last());
        }
        Ok(Mw {
            raw,
            pd: pd.clone(),
        })
    }

    pub fn rkey(&self) -> u32 {
        // SAFETY: `raw` is valid while `self` lives.
        unsafe { (*self.raw).rkey }
    }
}

/// The part of a region to which a window is to be bound.
#[derive(Clone, Copy)]
pub struct MwBind<'a> {
    pub mr: Option<&'a Mr>,
    pub addr: u64,
    pub length: u64,
    pub access: u32,
}

impl MwBind<'_> {
    pub(super) fn info(&self) -> ibv_mw_bind_info {
        ibv_mw_bind_info {
            mr: self.mr.map_or(std::ptr::null_mut(), |mr| mr.raw),
            addr: self.addr,
            length: self.length,
            mw_access_flags: self.access,
        }
    }
}

/// Calls `ibv_dealloc_mw`, which is an inline function of the header and not exported by the
/// library.
///
/// # Safety
///
/// `mw` is valid, and is not used any more if this call succeeds.
pub(super) unsafe fn dealloc_mw(mw: *mut ibv_mw) -> i32 {
    // SAFETY: the caller guarantees that `mw` is valid.
    let context = unsafe { (*mw).context };
    // SAFETY: the context is that of a window that exists.
    match unsafe { (*context).ops.dealloc_mw } {
        // SAFETY: as above.
        Some(op) => unsafe { op(mw) },
        None => Errno::EOPNOTSUPP.0,
    }
}

impl Qp {
    /// Posts a bind that gives the window the key `rkey`.
    pub fn bind(&self, wr_id: u64, mw: &Mw, rkey: u32, to: MwBind<'_>) -> Result<(), PostError> {
        let mut wr = ibv_send_wr {
            wr_id,
            opcode: IBV_WR_BIND_MW,
            send_flags: flag::SIGNALED,
            __bindgen_anon_2: ibv_send_wr__bindgen_ty_4 {
                bind_mw: ibv_send_wr__bindgen_ty_4__bindgen_ty_1 {
                    mw: mw.raw,
                    rkey,
                    bind_info: to.info(),
                },
            },
            ..ibv_send_wr::default()
        };
        // SAFETY: the list is one request without SGEs; window and region are alive.
        unsafe { self.post_raw(std::slice::from_mut(&mut wr)) }
    }

    /// Calls `ibv_bind_mw`, in which the provider chooses the key.
    pub fn bind_1(&self, wr_id: u64, mw: &Mw, to: MwBind<'_>) -> Result<(), Errno> {
        let mut bind = ibv_mw_bind {
            wr_id,
            send_flags: flag::SIGNALED,
            bind_info: to.info(),
        };
        // SAFETY: the pointer is the method table of a provider, which does not change any more.
        let op = unsafe { (*mw.pd.ctx.raw()).ops.bind_mw }.ok_or(Errno::EOPNOTSUPP)?;
        // SAFETY: the objects are valid.
        Errno::check(unsafe { op(self.raw, mw.raw, &mut bind) })
    }
}
