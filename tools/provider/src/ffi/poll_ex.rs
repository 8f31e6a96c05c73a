// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The extended poll: `ibv_start_poll`, `ibv_next_poll`, `ibv_end_poll` and the readers of the
//! current completion.
//!
//! The CQ's lock is held from a successful start to the end. `status` and `wr_id` are members of
//! C's structure; functions read the rest.
#![allow(unsafe_code)]
// The head of `verbs` states the preconditions of all verbs.
#![allow(clippy::missing_safety_doc)]

use super::device::ContextData;
use super::lock::Guard;
use super::object::or_null;
use super::options::check_cq;
use super::pabi::*;
use super::queues::{new_cq, VerbsCq};
use crate::cq::{CqState, WorkCompletion};
use crate::errno::Errno;
use core::ffi::c_int;
use core::mem::ManuallyDrop;

const ENOENT: c_int = 2;

pub unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: see the head of `verbs`.
    let attr = unsafe { &*attr };
    // SAFETY: as above.
    or_null(unsafe { create(context, attr) })
}

/// # Safety
///
/// The conditions are those of `create_cq_ex`.
unsafe fn create(
    context: *mut ibv_context,
    attr: &ibv_cq_init_attr_ex,
) -> Result<*mut ibv_cq_ex, Errno> {
    check_cq(attr)?;
    // SAFETY: the caller meets the same preconditions.
    let cq = unsafe { new_cq(context, attr) }?.cast::<ibv_cq_ex>();
    // SAFETY: the CQ was just created, and no other code knows it.
    let ex = unsafe { &mut *cq };
    ex.start_poll = Some(start_poll);
    ex.next_poll = Some(next_poll);
    ex.end_poll = Some(end_poll);
    ex.read_opcode = Some(read_opcode);
    ex.read_vendor_err = Some(read_vendor_err);
    ex.read_wc_flags = Some(read_wc_flags);
    ex.read_byte_len = Some(read_byte_len);
    ex.read_imm_data = Some(read_imm_data);
    ex.read_qp_num = Some(read_qp_num);
    ex.read_src_qp = Some(read_src_qp);
    ex.read_slid = Some(read_slid);
    ex.read_sl = Some(read_sl);
    ex.read_dlid_path_bits = Some(read_dlid_path_bits);
    ex.read_completion_ts = Some(read_completion_ts);
    ex.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
    Ok(cq)
}

/// Stores the next completion for the program. Returns false if there is none.
///
/// # Safety
///
/// `cq` is a CQ of this provider.
#[inline(always)]
unsafe fn store_next(cq: *mut ibv_cq_ex, state: &mut CqState) -> bool {
    // SAFETY: the caller meets the conditions of this function.
    let Some(completion) = unsafe { VerbsCq::inner(cq) }.next(state) else {
        return false;
    };
    // SAFETY: the program may only read these members.
    unsafe { (*cq).wr_id = completion.wr_id };
    // SAFETY: as above.
    unsafe { (*cq).status = completion.status().into() };
    state.current = completion;
    true
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the program passes attributes.
    if unsafe { (*attr).comp_mask } != 0 {
        return Errno::INVAL.0;
    }
    // SAFETY: see the head of `verbs`.
    let mut guard = unsafe { VerbsCq::inner(cq) }.state().lock_long();
    // SAFETY: see the head of `verbs`.
    if !unsafe { store_next(cq, &mut guard) } {
        return ENOENT;
    }
    core::mem::forget(guard);
    0
}

/// Returns a guard of the lock that `start_poll` took. The guard does not release the lock when it
/// is dropped.
///
/// # Safety
///
/// The program is between a successful start and the end of a poll.
#[inline(always)]
unsafe fn resume_guard<'a>(cq: *mut ibv_cq_ex) -> ManuallyDrop<Guard<'a, CqState>> {
    // SAFETY: the caller meets the conditions of this function.
    let lock = unsafe { VerbsCq::inner(cq) }.state();
    // SAFETY: the caller meets the conditions of this function.
    ManuallyDrop::new(unsafe { lock.resume() })
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the program calls this function between start and end.
    let mut guard = unsafe { resume_guard(cq) };
    // SAFETY: see the head of `verbs`.
    if unsafe { store_next(cq, &mut guard) } {
        0
    } else {
        ENOENT
    }
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: the program calls this function after a successful start. The entries of all
    // completions that were shown are free already.
    drop(ManuallyDrop::into_inner(unsafe { resume_guard(cq) }));
}

/// # Safety
///
/// The conditions are those of `resume_guard`.
#[inline(always)]
unsafe fn current(cq: *mut ibv_cq_ex) -> WorkCompletion {
    // SAFETY: the caller meets the conditions of this function.
    unsafe { resume_guard(cq) }.current
}

macro_rules! readers {
    ($($name:ident -> $type:ty: $value:expr;)*) => {$(
        unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $type {
            let value: fn(WorkCompletion) -> $type = $value;
            // SAFETY: the program calls this function between start and end.
            value(unsafe { current(cq) })
        }
    )*};
}

readers! {
    read_opcode -> ibv_wc_opcode: |one| one.opcode().into();
    read_vendor_err -> u32: |one| one.vendor_err();
    read_wc_flags -> u32: |one| one.wc_flags().into();
    read_byte_len -> u32: |one| one.byte_len();
    read_imm_data -> __be32: |one| one.imm();
    read_qp_num -> u32: |one| one.qpn();
    read_src_qp -> u32: |one| one.src_qp();
    read_slid -> u32: |one| one.slid().into();
    read_sl -> u8: |one| one.sl();
    read_dlid_path_bits -> u8: |one| one.dlid_path_bits();
    read_completion_ts -> u64: |one| one.timestamp;
}

unsafe extern "C" fn read_completion_wallclock_ns(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: the program calls this function between start and end.
    let timestamp = unsafe { current(cq) }.timestamp;
    // SAFETY: see the head of `verbs`.
    let context = unsafe { (*cq).context };
    // SAFETY: as above.
    unsafe { ContextData::of(context) }.wall_clock(timestamp)
}
