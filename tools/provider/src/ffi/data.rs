// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Post, poll and arm, as libibverbs calls them. These functions make no system calls, and wait
//! only for the locks of queues.
#![allow(unsafe_code)]
// The head of `verbs` states the preconditions of all verbs.
#![allow(clippy::missing_safety_doc)]

use super::pabi::*;
use super::queues::{VerbsCq, VerbsQp};
use super::srqs::VerbsSrq;
use super::wr::{RecvWr, SendWr};
use crate::errno::Errno;
use core::ffi::c_int;
use core::mem::offset_of;

// `WorkCompletion::wc_words` relies on this layout of `struct ibv_wc`.
const _: () = {
    assert!(size_of::<ibv_wc>() == 48 && align_of::<ibv_wc>() == 8);
    assert!(offset_of!(ibv_wc, status) == 8 && offset_of!(ibv_wc, opcode) == 12);
    assert!(offset_of!(ibv_wc, vendor_err) == 16 && offset_of!(ibv_wc, byte_len) == 20);
    assert!(offset_of!(ibv_wc, __bindgen_anon_1) == 24 && offset_of!(ibv_wc, qp_num) == 28);
    assert!(offset_of!(ibv_wc, src_qp) == 32 && offset_of!(ibv_wc, wc_flags) == 36);
    assert!(offset_of!(ibv_wc, pkey_index) == 40 && offset_of!(ibv_wc, slid) == 42);
    assert!(offset_of!(ibv_wc, sl) == 44 && offset_of!(ibv_wc, dlid_path_bits) == 45);
};

pub unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: libibverbs passes a CQ of this provider.
    let cq = unsafe { VerbsCq::inner(cq) };
    let most = usize::try_from(count).unwrap_or(0);
    cq.poll(most, |index, completion| {
        let place = wc.wrapping_add(index).cast::<[u64; 6]>();
        // SAFETY: the program passed room for `count` entries, and `index` is below that.
        unsafe { place.write(completion.wc_words()) };
    }) as c_int
}

pub unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: libibverbs passes a CQ of this provider.
    unsafe { VerbsCq::inner(cq) }.arm(solicited_only != 0);
    0
}

/// Refuses a request on a target of extended connections, which has no queue to post to.
#[cold]
fn no_queue<T>(wr: *mut T, bad_wr: *mut *mut T) -> c_int {
    // SAFETY: the program passes a place for the bad request.
    unsafe { bad_wr.write(wr) };
    Errno::INVAL.0
}

pub unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: libibverbs passes a queue pair of this provider.
    let Some(qp) = unsafe { VerbsQp::inner(qp) }.as_ref() else {
        return no_queue(wr, bad_wr);
    };
    // SAFETY: the program passes a valid list.
    let Some(wr) = (unsafe { SendWr::new(wr) }) else {
        return 0;
    };
    match qp.post_send(wr) {
        Ok(()) => 0,
        Err((errno, bad)) => {
            // SAFETY: the program passes a place for the bad request.
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
    let Some(qp) = unsafe { VerbsQp::inner(qp) }.as_ref() else {
        return no_queue(wr, bad_wr);
    };
    // SAFETY: the program passes a valid list.
    let Some(wr) = (unsafe { RecvWr::new(wr) }) else {
        return 0;
    };
    match qp.post_recv(wr) {
        Ok(()) => 0,
        Err((errno, bad)) => {
            // SAFETY: the program passes a place for the bad request.
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
    let srq = unsafe { VerbsSrq::inner(srq) };
    // SAFETY: the program passes a valid list.
    let Some(wr) = (unsafe { RecvWr::new(wr) }) else {
        return 0;
    };
    match srq.queue.post(wr, || true) {
        Ok(()) => 0,
        Err((errno, bad)) => {
            // SAFETY: the program passes a place for the bad request.
            unsafe { bad_wr.write(bad.as_ptr()) };
            errno.0
        }
    }
}
