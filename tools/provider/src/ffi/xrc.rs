// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Extended reliable connections: domains, SRQs with a CQ of their own, and targets that several
//! processes have open. The preconditions are those of `verbs`.
#![allow(unsafe_code)]
// The head of `verbs` states the preconditions of all verbs.
#![allow(clippy::missing_safety_doc)]

use super::commands;
use super::device::{check, ContextData, DriverMessage};
use super::domains::Pd;
use super::object::{or_null, InDomain, ObjectDraft, VerbsObject};
use super::options::check_flags;
use super::pabi::*;
use super::queues::{QpMember, VerbsCq};
use super::srqs::make_srq;
use crate::errno::Errno;
use crate::qp::Srq;
use core::ffi::c_int;
use core::mem::{size_of, size_of_val};
use std::sync::Arc;
use verbena_abi::uverbs::CreateSrqResp;

/// XRC domain of this provider as C sees it. All of its state is in the kernel.
type VerbsXrcd = VerbsObject<verbs_xrcd, ()>;

pub unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    // SAFETY: the structure consists of integers, which may be zero.
    let mut request: ibv_open_xrcd = unsafe { core::mem::zeroed() };
    // SAFETY: the structure consists of integers, which may be zero.
    let mut response: ib_uverbs_open_xrcd_resp = unsafe { core::mem::zeroed() };
    let mut xrcd = ObjectDraft::<verbs_xrcd, ()>::new();
    // SAFETY: see the head of `verbs`.
    let result = check(unsafe {
        ibv_cmd_open_xrcd(
            context,
            xrcd.verbs(),
            size_of::<verbs_xrcd>() as c_int,
            attr,
            &mut request,
            size_of_val(&request),
            &mut response,
            size_of_val(&response),
        )
    });
    or_null(result.map(|()| xrcd.finish(()))).cast()
}

pub unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    // SAFETY: see the head of `verbs`.
    let returned = unsafe { ibv_cmd_close_xrcd(xrcd.cast()) };
    if returned == 0 {
        // SAFETY: the object comes from `open_xrcd`, and the kernel no longer knows it.
        drop(unsafe { VerbsXrcd::take(xrcd) });
    }
    returned
}

pub unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    // SAFETY: see the head of `verbs`.
    let attr = unsafe { &mut *attr };
    // SAFETY: as above.
    or_null(unsafe { new_srq(context, attr) }).cast()
}

/// # Safety
///
/// The conditions are those of `create_srq_ex`.
unsafe fn new_srq(
    context: *mut ibv_context,
    attr: &mut ibv_srq_init_attr_ex,
) -> Result<*mut verbs_srq, Errno> {
    // libibverbs creates basic SRQs through the plain call (`create_srq`).
    const NEEDED: u32 = IBV_SRQ_INIT_ATTR_TYPE
        | IBV_SRQ_INIT_ATTR_PD
        | IBV_SRQ_INIT_ATTR_XRCD
        | IBV_SRQ_INIT_ATTR_CQ;
    check_flags(attr.comp_mask, NEEDED)?;
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 || attr.srq_type != IBV_SRQT_XRC {
        return Err(Errno::OPNOTSUPP);
    }
    if attr.comp_mask != NEEDED || attr.pd.is_null() || attr.xrcd.is_null() || attr.cq.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: see the head of `verbs`.
    let inner = unsafe { ContextData::of(context) };
    // SAFETY: as above.
    let within = unsafe { Pd::of(attr.pd) };
    let domain = within.begin_use();
    // SAFETY: as above.
    let cq = Arc::clone(unsafe { VerbsCq::inner(attr.cq) });
    // SAFETY: the structure consists of integers, which may be zero.
    let mut request: ibv_create_xsrq = unsafe { core::mem::zeroed() };
    let mut response = DriverMessage::<ib_uverbs_create_srq_resp, CreateSrqResp>::zeroed();
    let mut srq = ObjectDraft::<verbs_srq, InDomain<Arc<Srq>>>::new();
    // SAFETY: see the head of `verbs`.
    check(unsafe {
        ibv_cmd_create_srq_ex(
            context,
            srq.verbs(),
            attr,
            &mut request,
            size_of_val(&request),
            &mut response.core,
            size_of_val(&response),
        )
    })?;
    let made = make_srq(
        inner,
        &response.driver,
        (attr.attr.max_wr, attr.attr.max_sge),
        within.sharing(),
        Some(Arc::clone(&cq)),
    );
    match made {
        Ok(made) => {
            cq.attach_srq(&made);
            Ok(srq.finish(InDomain::new(made, domain)))
        }
        Err(errno) => {
            // SAFETY: the kernel has just created the object, and no other code knows it.
            unsafe { ibv_cmd_destroy_srq(srq.verbs().cast()) };
            Err(errno)
        }
    }
}

/// Creates a target of extended connections. The target has no queue in this process.
///
/// # Safety
///
/// The conditions are those of `create_qp_ex`.
pub unsafe fn new_target(
    context: *mut ibv_context,
    attr: &mut ibv_qp_init_attr_ex,
) -> Result<*mut verbs_qp, Errno> {
    if attr.comp_mask & IBV_QP_INIT_ATTR_XRCD == 0 || attr.xrcd.is_null() {
        return Err(Errno::INVAL);
    }
    if attr.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0 && attr.send_ops_flags != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    // SAFETY: the structure consists of integers, which may be zero.
    let mut request: ibv_create_qp_ex = unsafe { core::mem::zeroed() };
    // SAFETY: the structure consists of integers, which may be zero.
    let mut response: ib_uverbs_ex_create_qp_resp = unsafe { core::mem::zeroed() };
    let mut qp = ObjectDraft::<verbs_qp, QpMember>::new();
    // SAFETY: see the head of `verbs`.
    check(unsafe {
        commands::create_qp_ex2(
            context,
            qp.verbs(),
            attr,
            &mut request,
            size_of_val(&request),
            &mut response,
            size_of_val(&response),
        )
    })?;
    Ok(qp.finish(InDomain::new(None, None)))
}

/// Opens a target that another process, or this one, has created in the same domain.
pub unsafe extern "C" fn open_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    // SAFETY: the structure consists of integers, which may be zero.
    let mut request: ibv_open_qp = unsafe { core::mem::zeroed() };
    // SAFETY: the structure consists of integers, which may be zero.
    let mut response: ib_uverbs_create_qp_resp = unsafe { core::mem::zeroed() };
    let mut qp = ObjectDraft::<verbs_qp, QpMember>::new();
    // SAFETY: see the head of `verbs`.
    let result = check(unsafe {
        ibv_cmd_open_qp(
            context,
            qp.verbs(),
            size_of::<verbs_qp>() as c_int,
            attr,
            &mut request,
            size_of_val(&request),
            &mut response,
            size_of_val(&response),
        )
    });
    or_null(result.map(|()| qp.finish(InDomain::new(None, None)))).cast()
}
