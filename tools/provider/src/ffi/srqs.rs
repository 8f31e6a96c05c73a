// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Verbs that create, change and destroy SRQs. The preconditions are those of `verbs`.
#![allow(unsafe_code)]
// The head of `verbs` states the preconditions of all verbs.
#![allow(clippy::missing_safety_doc)]

use super::device::{check, ContextData, DriverMessage};
use super::domains::Pd;
use super::lock::Sharing;
use super::memory::MapAccess;
use super::object::{or_null, InDomain, ObjectDraft, VerbsObject};
use super::pabi::*;
use super::queues::map_ring;
use crate::cq::Cq;
use crate::errno::Errno;
use crate::qp::Srq;
use crate::recv::{RecvConfig, RecvQueue};
use core::ffi::c_int;
use core::mem::{size_of, size_of_val};
use core::ptr::null_mut;
use std::sync::Arc;
use verbena_abi::uverbs::{
    CreateSrqResp, ResizeSrqReq, ResizeSrqResp, RESIZE_MOVE, RESIZE_PREPARE,
};

/// SRQ of this provider as C sees it.
pub type VerbsSrq = VerbsObject<verbs_srq, InDomain<Arc<Srq>>>;

pub unsafe extern "C" fn create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    // SAFETY: see the head of this file.
    or_null(unsafe { new_srq(pd, attr) }).cast()
}

/// # Safety
///
/// The conditions are those of `create_srq`.
unsafe fn new_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> Result<*mut verbs_srq, Errno> {
    // SAFETY: see the head of this file.
    let context = unsafe { (*pd).context };
    // SAFETY: as above.
    let inner = unsafe { ContextData::of(context) };
    // SAFETY: as above.
    let within = unsafe { Pd::of(pd) };
    let domain = within.begin_use();
    // SAFETY: the structure consists of integers, which may be zero.
    let mut request: ibv_create_srq = unsafe { core::mem::zeroed() };
    let mut response = DriverMessage::<ib_uverbs_create_srq_resp, CreateSrqResp>::zeroed();
    let mut srq = ObjectDraft::<verbs_srq, InDomain<Arc<Srq>>>::new();
    // SAFETY: see the head of this file.
    check(unsafe {
        ibv_cmd_create_srq(
            pd,
            srq.verbs().cast(),
            attr,
            &mut request,
            size_of_val(&request),
            &mut response.core,
            size_of_val(&response),
        )
    })?;
    // SAFETY: see the head of this file. The command has stored the actual attributes there.
    let ibv_srq_attr {
        max_wr, max_sge, ..
    } = unsafe { (*attr).attr };
    let driver = &response.driver;
    match make_srq(inner, driver, (max_wr, max_sge), within.sharing(), None) {
        Ok(made) => Ok(srq.finish(InDomain::new(made, domain))),
        Err(errno) => {
            // SAFETY: the kernel has just created the object, and no other code knows it.
            unsafe { ibv_cmd_destroy_srq(srq.verbs().cast()) };
            Err(errno)
        }
    }
}

/// Returns the provider's part of an SRQ that the kernel has created.
pub fn make_srq(
    inner: &ContextData,
    driver: &CreateSrqResp,
    (max_wr, max_sge): (u32, u32),
    sharing: Sharing,
    cq: Option<Arc<Cq>>,
) -> Result<Arc<Srq>, Errno> {
    let area = inner.area(&driver.area)?;
    let ring = map_ring(
        inner,
        driver.ring_offset,
        driver.ring_length,
        driver.log_size,
        driver.log_stride,
        MapAccess::ReadWrite,
    )?;
    let config = RecvConfig {
        max_wr,
        max_sge,
        slot: driver.slot.get().into(),
        shared: true,
        sharing,
    };
    Ok(Arc::new(Srq {
        srqn: driver.srqn.get(),
        queue: RecvQueue::new(ring, area, config),
        cq,
    }))
}

pub unsafe extern "C" fn modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    let mut rest = mask;
    if mask as u32 & IBV_SRQ_MAX_WR != 0 {
        // SAFETY: see the head of this file.
        if let Err(errno) = unsafe { resize_srq(srq, attr, mask) } {
            return errno.0;
        }
        rest &= !(IBV_SRQ_MAX_WR as c_int);
        if rest == 0 {
            return 0;
        }
    }
    // SAFETY: the structure consists of integers, which may be zero.
    let mut request: ibv_modify_srq = unsafe { core::mem::zeroed() };
    // SAFETY: see the head of this file.
    unsafe { ibv_cmd_modify_srq(srq, attr, rest, &mut request, size_of::<ibv_modify_srq>()) }
}

/// Resizes an SRQ, which is the first of the changes that `mask` requests. The kernel makes one
/// change at a time, so this function first refuses a mask whose next change the kernel would
/// refuse.
///
/// # Safety
///
/// The conditions are those of `modify_srq`.
unsafe fn resize_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> Result<(), Errno> {
    let others = mask as u32 & !IBV_SRQ_MAX_WR;
    // SAFETY: see the head of this file.
    let wanted = unsafe { &*attr };
    if others != 0 && !(others == IBV_SRQ_LIMIT && wanted.srq_limit <= wanted.max_wr) {
        return Err(Errno::INVAL);
    }
    // SAFETY: see the head of this file.
    let context = unsafe { (*srq).context };
    // SAFETY: as above.
    let inner = unsafe { ContextData::of(context) };
    let step = |step, response: *mut ResizeSrqResp| {
        let mut request = DriverMessage::<ibv_modify_srq, ResizeSrqReq>::new(ResizeSrqReq {
            step,
            response: (response as u64).into(),
            ..ResizeSrqReq::default()
        });
        let size = size_of_val(&request);
        // SAFETY: see the head of this file. The kernel writes to `response` only if it is not
        // null.
        check(unsafe {
            ibv_cmd_modify_srq(srq, attr, IBV_SRQ_MAX_WR as c_int, &mut request.core, size)
        })
    };
    // SAFETY: see the head of this file.
    let queue = &unsafe { VerbsSrq::inner(srq) }.queue;
    let log_stride = queue.log_stride();
    queue.resize(
        || {
            let mut made = ResizeSrqResp::default();
            step(RESIZE_PREPARE, &mut made)?;
            let (offset, length) = (made.ring_offset, made.ring_length);
            let (log_size, access) = (made.log_size, MapAccess::ReadWrite);
            let ring = map_ring(inner, offset, length, log_size, log_stride, access)?;
            Ok((ring, made.max_wr.get()))
        },
        || step(RESIZE_MOVE, null_mut()),
    )
}

pub unsafe extern "C" fn query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: the structure consists of integers, which may be zero.
    let mut request: ibv_query_srq = unsafe { core::mem::zeroed() };
    // SAFETY: see the head of this file.
    unsafe { ibv_cmd_query_srq(srq, attr, &mut request, size_of::<ibv_query_srq>()) }
}

pub unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    // SAFETY: see the head of this file.
    let srq = unsafe { VerbsSrq::inner(srq) };
    // SAFETY: as above.
    unsafe { number.write(srq.srqn) };
    0
}

pub unsafe extern "C" fn destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: see the head of this file.
    let returned = unsafe { ibv_cmd_destroy_srq(srq) };
    if returned == 0 {
        // SAFETY: the object comes from `new_srq`, and the kernel no longer knows it.
        let object = unsafe { VerbsSrq::take(srq) };
        if let Some(cq) = &object.inner.cq {
            cq.detach_srq(&object.inner);
        }
    }
    returned
}
