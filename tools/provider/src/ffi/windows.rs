// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Memory windows. The preconditions are those of `verbs`. Windows of type 1 are bound here,
//! windows of type 2 by work requests of the program.
#![allow(unsafe_code)]
// The head of `verbs` states the preconditions of all verbs.
#![allow(clippy::missing_safety_doc)]

use super::device::check;
use super::domains::Pd;
use super::object::{or_null, InDomain, ObjectDraft, VerbsObject};
use super::pabi::*;
use super::queues::VerbsQp;
use super::wr::WindowBind;
use crate::builder::Operands;
use crate::errno::Errno;
use core::ffi::c_int;
use core::mem::size_of_val;

/// Provider's part of a memory window: only the domain that the window is in.
type Mw = InDomain<()>;

pub unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, mw_type: ibv_mw_type) -> *mut ibv_mw {
    // SAFETY: the structure consists of integers, which may be zero.
    let mut request: ibv_alloc_mw = unsafe { core::mem::zeroed() };
    // SAFETY: the structure consists of integers, which may be zero.
    let mut response: ib_uverbs_alloc_mw_resp = unsafe { core::mem::zeroed() };
    let mut mw = ObjectDraft::<ibv_mw, Mw>::new();
    // SAFETY: see the head of this file.
    let domain = unsafe { Pd::of(pd) }.begin_use();
    // SAFETY: see the head of this file.
    let result = check(unsafe {
        ibv_cmd_alloc_mw(
            pd,
            mw_type,
            mw.verbs(),
            &mut request,
            size_of_val(&request),
            &mut response,
            size_of_val(&response),
        )
    });
    or_null(result.map(|()| mw.finish(Mw::new((), domain))))
}

pub unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: see the head of this file.
    let returned = unsafe { ibv_cmd_dealloc_mw(mw) };
    if returned == 0 {
        // SAFETY: the object comes from `alloc_mw`, and the kernel no longer knows it.
        drop(unsafe { VerbsObject::<ibv_mw, Mw>::take(mw) });
    }
    returned
}

/// Binds a window of type 1, which `ibv_bind_mw` has checked.
pub unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    bind: *mut ibv_mw_bind,
) -> c_int {
    // SAFETY: see the head of this file.
    let bind = unsafe { &*bind };
    let info = &bind.bind_info;
    // Without a region there is no range to bind to. A window of type 1 cannot be zero-based: its
    // addresses are those of the region.
    if (info.mr.is_null() && (info.addr != 0 || info.length != 0))
        || info.mw_access_flags & IBV_ACCESS_ZERO_BASED != 0
    {
        return Errno::INVAL.0;
    }
    // SAFETY: see the head of this file.
    let old = unsafe { (*mw).rkey };
    let key = next_key(old);
    // SAFETY: see the head of this file.
    let wanted = unsafe { WindowBind::new(key, info) };
    // SAFETY: see the head of this file.
    let Some(qp) = unsafe { VerbsQp::inner(qp) }.as_ref() else {
        return Errno::INVAL.0;
    };
    let mut guard = qp.sends.start(|| qp.may_send());
    let operands = Operands::Bind(Some(wanted));
    qp.sends.begin(
        &mut guard,
        IBV_WR_BIND_MW,
        bind.wr_id,
        bind.send_flags,
        operands,
    );
    if let Err(errno) = qp.sends.commit(guard) {
        return errno.0;
    }
    // SAFETY: see the head of this file.
    unsafe { (*mw).rkey = key };
    0
}

/// Returns the key of the window with the next tag, as `ibv_inc_rkey()` does.
fn next_key(key: u32) -> u32 {
    (key & !0xff) | (key.wrapping_add(1) & 0xff)
}
