// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The extended post: `ibv_wr_*`. The send queue's lock is held from start to complete or abort.
#![allow(unsafe_code)]
// The head of `verbs` states the preconditions of all verbs.
#![allow(clippy::missing_safety_doc)]

use super::lock::Guard;
use super::object::Ah;
use super::options::{function, Function};
use super::pabi::*;
use super::queues::VerbsQp;
use super::wr::WindowBind;
use crate::builder::Operands;
use crate::qp::Qp;
use crate::send::SendProducer;
use core::ffi::{c_int, c_void};
use core::mem::ManuallyDrop;
use core::slice;

/// Sets the functions of a new queue pair: for the operations that are `offered` their own, and for
/// the other operations the result of [`function`].
///
/// # Safety
///
/// `qp` was just created, and no other code knows it.
pub unsafe fn set_functions(qp: *mut verbs_qp, offered: u32) {
    // SAFETY: the caller meets the conditions of this function.
    unsafe { (*qp).comp_mask |= VERBS_QP_EX };
    // SAFETY: the caller meets the conditions; the members of the union begin with the same fields.
    let ex = unsafe { &mut *qp.cast::<ibv_qp_ex>() };
    ex.wr_start = Some(start);
    ex.wr_complete = Some(complete);
    ex.wr_abort = Some(abort);
    set_requests(ex, offered);
    ex.wr_set_ud_addr = Some(set_ud_addr);
    ex.wr_set_xrc_srqn = Some(set_xrc_srqn);
    ex.wr_set_sge = Some(set_sge);
    ex.wr_set_sge_list = Some(set_sge_list);
    ex.wr_set_inline_data = Some(set_inline_data);
    ex.wr_set_inline_data_list = Some(set_inline_data_list);
}

/// Returns the provider's part of a queue pair that has these functions.
///
/// # Safety
///
/// See the head of `verbs`.
#[inline(always)]
unsafe fn sender<'a>(qp: *mut ibv_qp_ex) -> &'a Qp {
    // SAFETY: the caller meets the conditions of this function.
    match unsafe { VerbsQp::inner(qp) }.as_ref() {
        Some(qp) => qp,
        // A target of extended connections has none of these functions, so the program cannot call
        // them.
        None => std::process::abort(),
    }
}

unsafe extern "C" fn start(qp: *mut ibv_qp_ex) {
    // SAFETY: see the head of `verbs`.
    let qp = unsafe { sender(qp) };
    core::mem::forget(qp.sends.start(|| qp.may_send()));
}

/// Returns a guard of the lock that `start` took. The guard does not release the lock when it is
/// dropped.
///
/// # Safety
///
/// The program is between start and complete or abort.
#[inline(always)]
unsafe fn resume_guard<'a>(qp: *mut ibv_qp_ex) -> (&'a Qp, ManuallyDrop<Guard<'a, SendProducer>>) {
    // SAFETY: the caller meets the conditions of this function.
    let qp = unsafe { sender(qp) };
    // SAFETY: the caller meets the conditions of this function.
    let guard = unsafe { qp.sends.producer().resume() };
    (qp, ManuallyDrop::new(guard))
}

unsafe extern "C" fn complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the program calls this function after start.
    let (qp, guard) = unsafe { resume_guard(qp) };
    match qp.sends.commit(ManuallyDrop::into_inner(guard)) {
        Ok(()) => 0,
        Err(errno) => errno.0,
    }
}

unsafe extern "C" fn abort(qp: *mut ibv_qp_ex) {
    // SAFETY: the program calls this function after start. The producer index has not moved.
    let (_, guard) = unsafe { resume_guard(qp) };
    drop(ManuallyDrop::into_inner(guard));
}

/// # Safety
///
/// The program is between start and complete or abort.
#[inline(always)]
unsafe fn begin(ex: *mut ibv_qp_ex, opcode: u32, operands: Operands) {
    // SAFETY: the program sets `wr_id` before it begins a request.
    let wr_id = unsafe { (*ex).wr_id };
    // SAFETY: as above.
    let flags = unsafe { (*ex).wr_flags };
    // SAFETY: the caller meets the conditions of this function.
    let (qp, mut guard) = unsafe { resume_guard(ex) };
    qp.sends.begin(&mut guard, opcode, wr_id, flags, operands);
}

/// Returns the bind of a window of type 2. The window keeps its present key, because the request
/// may not be posted in the end; the program has chosen the new key.
///
/// # Safety
///
/// `mw` is a window of this provider that no other thread changes meanwhile. `info` is readable,
/// and names a region of this provider or none.
unsafe fn window(mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info) -> Option<WindowBind> {
    // SAFETY: the caller meets the conditions of this function.
    let info = unsafe { &*info };
    // SAFETY: as above.
    unsafe { WindowBind::tagged(mw, rkey, info) }
}

macro_rules! requests {
    ($($(#[$when:meta])* $field:ident = $name:ident($($arg:ident: $type:ty),*): $operation:expr, $opcode:expr, $operands:expr;)*) => {
        $(
            $(#[$when])*
            unsafe extern "C" fn $name(qp: *mut ibv_qp_ex $(, $arg: $type)*) {
                let operands = $operands;
                // SAFETY: the program calls this function between start and complete.
                unsafe { begin(qp, $opcode, operands) };
            }
        )*

        fn set_requests(ex: &mut ibv_qp_ex, offered: u32) {
            $(
                $(#[$when])*
                {
                    unsafe extern "C" fn $field(ex: *mut ibv_qp_ex $(, _: $type)*) {
                        // SAFETY: the program calls this function between start and complete.
                        let (qp, mut guard) = unsafe { resume_guard(ex) };
                        qp.sends.refuse(&mut guard);
                    }
                    ex.$field = match function(offered, $operation) {
                        Function::Works => Some($name),
                        Function::Refuses => Some($field),
                        Function::Missing => None,
                    };
                }
            )*
        }
    };
}

requests! {
    wr_send = send(): IBV_QP_EX_WITH_SEND, IBV_WR_SEND, Operands::None;
    wr_send_imm = send_imm(imm: __be32): IBV_QP_EX_WITH_SEND_WITH_IMM, IBV_WR_SEND_WITH_IMM, Operands::Imm(imm);
    wr_send_inv = send_inv(rkey: u32): IBV_QP_EX_WITH_SEND_WITH_INV, IBV_WR_SEND_WITH_INV, Operands::Imm(rkey);
    wr_local_inv = local_inv(rkey: u32): IBV_QP_EX_WITH_LOCAL_INV, IBV_WR_LOCAL_INV, Operands::Imm(rkey);
    wr_bind_mw = bind_mw(mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info):
        IBV_QP_EX_WITH_BIND_MW, IBV_WR_BIND_MW,
        // SAFETY: the program passes a window and a description of the range to bind it to.
        Operands::Bind(unsafe { window(mw, rkey, info) });
    wr_rdma_write = rdma_write(rkey: u32, addr: u64):
        IBV_QP_EX_WITH_RDMA_WRITE, IBV_WR_RDMA_WRITE, Operands::Remote(rkey, addr);
    wr_rdma_write_imm = rdma_write_imm(rkey: u32, addr: u64, imm: __be32):
        IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_WRITE_WITH_IMM, Operands::RemoteImm(rkey, addr, imm);
    wr_rdma_read = rdma_read(rkey: u32, addr: u64):
        IBV_QP_EX_WITH_RDMA_READ, IBV_WR_RDMA_READ, Operands::Remote(rkey, addr);
    wr_atomic_cmp_swp = atomic_cmp_swp(rkey: u32, addr: u64, compare: u64, swap: u64):
        IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_CMP_AND_SWP, Operands::Atomic(rkey, addr, compare, swap);
    wr_atomic_fetch_add = atomic_fetch_add(rkey: u32, addr: u64, add: u64):
        IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_FETCH_AND_ADD, Operands::Atomic(rkey, addr, add, 0);
    #[cfg(rdma_core_44)]
    wr_atomic_write = atomic_write(rkey: u32, addr: u64, value: *const c_void):
        IBV_QP_EX_WITH_ATOMIC_WRITE, IBV_WR_ATOMIC_WRITE,
        // SAFETY: the program passes 8 readable bytes.
        Operands::Value(rkey, addr, unsafe { value.cast::<[u8; 8]>().read_unaligned() });
    #[cfg(rdma_core_45)]
    wr_flush = flush(rkey: u32, addr: u64, length: usize, placement: u8, level: u8):
        IBV_QP_EX_WITH_FLUSH, IBV_WR_FLUSH, Operands::Flush(rkey, addr, length, placement, level);
}

unsafe extern "C" fn set_ud_addr(ex: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: the program calls this function between start and complete.
    let (qp, mut guard) = unsafe { resume_guard(ex) };
    // SAFETY: see the head of `verbs`.
    if let Some(ah) = unsafe { Ah::from_ptr(ah) } {
        qp.sends.set_address(&mut guard, ah, qpn, qkey);
    }
}

unsafe extern "C" fn set_xrc_srqn(ex: *mut ibv_qp_ex, srqn: u32) {
    // SAFETY: the program calls this function between start and complete.
    let (qp, mut guard) = unsafe { resume_guard(ex) };
    qp.sends.set_srqn(&mut guard, srqn);
}

unsafe extern "C" fn set_sge(ex: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: the program calls this function between start and complete.
    let (qp, mut guard) = unsafe { resume_guard(ex) };
    qp.sends.add_sge(&mut guard, addr, length, lkey);
}

unsafe extern "C" fn set_sge_list(ex: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    if count == 0 {
        return;
    }
    // SAFETY: the program calls this function between start and complete.
    let (qp, mut guard) = unsafe { resume_guard(ex) };
    // SAFETY: the program passes a list of `count` elements.
    for sge in unsafe { slice::from_raw_parts(list, count) } {
        qp.sends.add_sge(&mut guard, sge.addr, sge.length, sge.lkey);
    }
}

/// # Safety
///
/// `addr` has `length` readable bytes.
unsafe fn add_inline(qp: &Qp, producer: &mut SendProducer, addr: *const c_void, length: usize) {
    qp.sends.add_inline(producer, length, |wqe, offset| {
        // SAFETY: the caller meets the conditions of this function.
        unsafe { wqe.0.copy_in(offset, addr.cast(), length) }
    });
}

unsafe extern "C" fn set_inline_data(ex: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: the program calls this function between start and complete.
    let (qp, mut guard) = unsafe { resume_guard(ex) };
    // SAFETY: the program passes readable data.
    unsafe { add_inline(qp, &mut guard, addr, length) };
}

unsafe extern "C" fn set_inline_data_list(
    ex: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    if count == 0 {
        return;
    }
    // SAFETY: the program calls this function between start and complete.
    let (qp, mut guard) = unsafe { resume_guard(ex) };
    // SAFETY: the program passes a list of `count` elements.
    for part in unsafe { slice::from_raw_parts(list, count) } {
        // SAFETY: the program passes readable data.
        unsafe { add_inline(qp, &mut guard, part.addr, part.length) };
    }
}
