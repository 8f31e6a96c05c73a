// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Post, poll and arm, as libibverbs calls them. No syscalls here, and nothing that waits but a queue's lock.
#![allow(unsafe_code)]
// Said once, at the head of `verbs`.
#![allow(clippy::missing_safety_doc)]

use super::queues::{CqObject, QpObject, SrqObject};
use super::v34::*;
use super::wr::{RecvWr, SendWr};
use crate::cq::Completion;
use core::ffi::c_int;

/// A completion as C sees it.
#[inline(always)]
pub fn to_wc(from: &Completion) -> ibv_wc {
    ibv_wc {
        wr_id: from.wr_id,
        status: from.status.into(),
        opcode: from.opcode.into(),
        vendor_err: from.vendor_err,
        byte_len: from.byte_len,
        __bindgen_anon_1: ibv_wc__bindgen_ty_1 { imm_data: from.imm },
        qp_num: from.qpn,
        src_qp: from.src_qp,
        wc_flags: from.wc_flags.into(),
        pkey_index: from.pkey_index,
        slid: 0,
        sl: from.sl,
        dlid_path_bits: 0,
    }
}

pub unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: libibverbs passes a CQ of this provider.
    let cq = unsafe { CqObject::inner(cq) };
    let most = usize::try_from(count).unwrap_or(0);
    cq.poll(most, |index, completion| {
        let place = wc.wrapping_add(index);
        // SAFETY: the program passed room for `count` entries, and `index` is below that.
        unsafe { place.write(to_wc(completion)) };
    }) as c_int
}

pub unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: libibverbs passes a CQ of this provider.
    unsafe { CqObject::inner(cq) }.arm(solicited_only != 0);
    0
}

pub unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: libibverbs passes a queue pair of this provider.
    let qp = unsafe { QpObject::inner(qp) };
    // SAFETY: the program passes a valid list.
    let Some(wr) = (unsafe { SendWr::new(wr) }) else {
        return 0;
    };
    match qp.post_send(wr) {
        Ok(()) => 0,
        Err((errno, bad)) => {
            // SAFETY: the program passes a place for it.
            unsafe { bad_wr.write(bad.as_ptr()) };
            errno.0
        }
    }
}

pub unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: libibverbs passes a queue pair of this provider.
    let qp = unsafe { QpObject::inner(qp) };
    // SAFETY: the program passes a valid list.
    let Some(wr) = (unsafe { RecvWr::new(wr) }) else {
        return 0;
    };
    match qp.post_recv(wr) {
        Ok(()) => 0,
        Err((errno, bad)) => {
            // SAFETY: the program passes a place for it.
            unsafe { bad_wr.write(bad.as_ptr()) };
            errno.0
        }
    }
}

pub unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: libibverbs passes an SRQ of this provider.
    let srq = unsafe { SrqObject::inner(srq) };
    // SAFETY: the program passes a valid list.
    let Some(wr) = (unsafe { RecvWr::new(wr) }) else {
        return 0;
    };
    match srq.queue.post(wr) {
        Ok(()) => 0,
        Err((errno, bad)) => {
            // SAFETY: the program passes a place for it.
            unsafe { bad_wr.write(bad.as_ptr()) };
            errno.0
        }
    }
}
