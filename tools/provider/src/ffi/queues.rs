// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Verbs that create, change and destroy CQs and queue pairs. The preconditions are those of
//! `verbs`.
#![allow(unsafe_code)]
// The head of `verbs` states the preconditions of all verbs.
#![allow(clippy::missing_safety_doc)]

use super::device::{check, ContextData, DriverMessage};
use super::domains::Pd;
use super::memory::{MapAccess, MappedMemory, MappedRing};
use super::object::{or_null, InDomain, ObjectDraft, VerbsObject};
use super::options::{check_qp, offered};
use super::pabi::*;
use super::srqs::VerbsSrq;
use super::{commands, post_ex, xrc};
use crate::cq::{self, Cq};
use crate::errno::Errno;
use crate::qp::{Qp, ReceiveSource};
use crate::recv::{RecvConfig, RecvQueue};
use crate::send::{SendConfig, SendQueue};
use core::ffi::c_int;
use core::mem::{size_of, size_of_val};
use core::ptr::null_mut;
use std::sync::Arc;
use verbena_abi::ctx::QpState;
use verbena_abi::uverbs::{CreateCqResp, CreateQpResp};
use verbena_abi::uverbs::{ResizeCqReq, ResizeCqResp, RESIZE_MOVE, RESIZE_PREPARE};
use verbena_abi::{wqe, Le64};

/// CQ of this provider as C sees it.
pub type VerbsCq = VerbsObject<verbs_cq, InDomain<Arc<Cq>>>;
/// Queue pair of this provider as C sees it.
pub type VerbsQp = VerbsObject<verbs_qp, QpMember>;
/// Provider's part of a queue pair. A target of extended connections has none.
pub type QpMember = InDomain<Option<Arc<Qp>>>;
/// Maps the ring of a queue that the kernel has created.
pub fn map_ring<const MIN: usize>(
    context: &ContextData,
    offset: Le64,
    length: Le64,
    log_size: u8,
    log_stride: u8,
    protection: MapAccess,
) -> Result<MappedRing<MIN>, Errno> {
    let length = usize::try_from(length.get()).map_err(|_| Errno::IO)?;
    let memory = MappedMemory::map(context.fd(), offset.get(), length, protection)?;
    MappedRing::new(memory, log_size, log_stride).ok_or(Errno::IO)
}

pub unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    // SAFETY: the structure consists of integers and pointers, which may be zero and null.
    let mut attr: ibv_cq_init_attr_ex = unsafe { core::mem::zeroed() };
    attr.cqe = cqe as u32;
    attr.channel = channel;
    attr.comp_vector = comp_vector as u32;
    // SAFETY: see the head of this file.
    or_null(unsafe { new_cq(context, &attr) }).cast()
}

/// Creates a CQ with the attributes of the program, which the caller has checked.
///
/// # Safety
///
/// The conditions are those of `create_cq`.
pub unsafe fn new_cq(
    context: *mut ibv_context,
    attr: &ibv_cq_init_attr_ex,
) -> Result<*mut verbs_cq, Errno> {
    if attr.cqe == 0 || attr.cqe > i32::MAX as u32 {
        return Err(Errno::INVAL);
    }
    let domain = if attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD == 0 {
        None
    } else if attr.parent_domain.is_null() {
        return Err(Errno::INVAL);
    } else {
        // SAFETY: see the head of this file. A CQ accepts a parent domain and no other kind of
        // domain.
        let domain = unsafe { Pd::of(attr.parent_domain) }.begin_use();
        Some(domain.ok_or(Errno::INVAL)?)
    };
    // SAFETY: see the head of this file.
    let inner = unsafe { ContextData::of(context) };
    // SAFETY: the structure consists of integers, which may be zero.
    let mut request: ibv_create_cq_ex = unsafe { core::mem::zeroed() };
    let mut response = DriverMessage::<ib_uverbs_ex_create_cq_resp, CreateCqResp>::zeroed();
    let mut cq = ObjectDraft::<verbs_cq, InDomain<Arc<Cq>>>::new();
    // SAFETY: see the head of this file.
    check(unsafe {
        commands::create_cq_ex(
            context,
            attr,
            cq.verbs(),
            &mut request,
            size_of_val(&request),
            &mut response.core,
            size_of_val(&response),
            0,
        )
    })?;
    let driver = &response.driver;
    let made = inner.area(&driver.area).and_then(|area| {
        let (offset, length) = (driver.ring_offset, driver.ring_length);
        let ring = map_ring(
            inner,
            offset,
            length,
            driver.log_size,
            cq::LOG_STRIDE,
            MapAccess::Read,
        )?;
        Ok(Arc::new(Cq::new(
            ring,
            driver.log_size,
            area,
            driver.slot.get().into(),
        )))
    });
    match made {
        Ok(made) => Ok(cq.finish(InDomain::new(made, domain))),
        Err(errno) => {
            // SAFETY: the kernel has just created the object, and no other code knows it.
            unsafe { ibv_cmd_destroy_cq(cq.verbs().cast()) };
            Err(errno)
        }
    }
}

pub unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: see the head of this file.
    let returned = unsafe { ibv_cmd_destroy_cq(cq) };
    if returned == 0 {
        // SAFETY: the object comes from `new_cq`, and the kernel no longer knows it.
        drop(unsafe { VerbsCq::take(cq) });
    }
    returned
}

pub unsafe extern "C" fn resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: see the head of this file.
    match unsafe { move_cq(cq, cqe) } {
        Ok(()) => 0,
        Err(errno) => errno.0,
    }
}

/// # Safety
///
/// The conditions are those of `resize_cq`.
unsafe fn move_cq(cq: *mut ibv_cq, cqe: c_int) -> Result<(), Errno> {
    if cqe <= 0 {
        return Err(Errno::INVAL);
    }
    // SAFETY: see the head of this file.
    let context = unsafe { (*cq).context };
    // SAFETY: as above.
    let inner = unsafe { ContextData::of(context) };
    let step = |step| {
        let mut request = DriverMessage::<ibv_resize_cq, ResizeCqReq>::new(ResizeCqReq {
            step,
            ..ResizeCqReq::default()
        });
        let mut response = DriverMessage::<ib_uverbs_resize_cq_resp, ResizeCqResp>::zeroed();
        // SAFETY: see the head of this file.
        check(unsafe {
            ibv_cmd_resize_cq(
                cq,
                cqe,
                &mut request.core,
                size_of_val(&request),
                &mut response.core,
                size_of_val(&response),
            )
        })?;
        Ok(response.driver)
    };
    // SAFETY: see the head of this file.
    let queue = unsafe { VerbsCq::inner(cq) };
    queue.resize(
        || {
            let made = step(RESIZE_PREPARE)?;
            let (offset, length) = (made.ring_offset, made.ring_length);
            let ring = map_ring(
                inner,
                offset,
                length,
                made.log_size,
                cq::LOG_STRIDE,
                MapAccess::Read,
            )?;
            Ok((ring, made.log_size))
        },
        || step(RESIZE_MOVE).map(|_| ()),
    )
}

pub unsafe extern "C" fn modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    // SAFETY: the structure consists of integers, which may be zero.
    let mut request: ibv_modify_cq = unsafe { core::mem::zeroed() };
    // SAFETY: see the head of this file.
    unsafe { ibv_cmd_modify_cq(cq, attr, &mut request, size_of::<ibv_modify_cq>()) }
}

pub unsafe extern "C" fn create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: see the head of this file.
    let init_attr = unsafe { &mut *attr };
    // SAFETY: the structure consists of integers and pointers, which may be zero and null.
    let mut extended: ibv_qp_init_attr_ex = unsafe { core::mem::zeroed() };
    extended.qp_context = init_attr.qp_context;
    extended.send_cq = init_attr.send_cq;
    extended.recv_cq = init_attr.recv_cq;
    extended.srq = init_attr.srq;
    extended.cap = init_attr.cap;
    extended.qp_type = init_attr.qp_type;
    extended.sq_sig_all = init_attr.sq_sig_all;
    extended.comp_mask = IBV_QP_INIT_ATTR_PD;
    extended.pd = pd;
    // SAFETY: see the head of this file.
    let context = unsafe { (*pd).context };
    // SAFETY: as above.
    or_null(unsafe { new_qp(context, extended, &mut init_attr.cap) }).cast()
}

pub unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: see the head of this file.
    let init_attr = unsafe { &mut *attr };
    // SAFETY: as above.
    or_null(unsafe { new_qp(context, *init_attr, &mut init_attr.cap) }).cast()
}

/// Creates a queue pair from a copy of the attributes, and stores its actual capacities in `cap`.
///
/// # Safety
///
/// The conditions are those of `create_qp_ex`.
unsafe fn new_qp(
    context: *mut ibv_context,
    mut attr: ibv_qp_init_attr_ex,
    cap: &mut ibv_qp_cap,
) -> Result<*mut verbs_qp, Errno> {
    let attr = &mut attr;
    check_qp(attr)?;
    if attr.qp_type == IBV_QPT_XRC_RECV {
        // SAFETY: see the head of this file.
        return unsafe { xrc::new_target(context, attr) }.inspect(|_| *cap = attr.cap);
    }
    let datagram = attr.qp_type == IBV_QPT_UD;
    let extended = attr.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
    let wanted = if extended { attr.send_ops_flags } else { 0 };
    let offered = offered(wanted, attr.qp_type)?;
    let pd = if attr.comp_mask & IBV_QP_INIT_ATTR_PD != 0 {
        attr.pd
    } else {
        null_mut()
    };
    if attr.qp_type == IBV_QPT_XRC_SEND {
        // An initiator has no receive queue, and the attributes of one may be undefined.
        (attr.recv_cq, attr.srq) = (attr.send_cq, null_mut());
        (attr.cap.max_recv_wr, attr.cap.max_recv_sge) = (0, 0);
    }
    if attr.send_cq.is_null() || attr.recv_cq.is_null() || pd.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: see the head of this file.
    let domain = unsafe { Pd::of(pd) }.begin_use();
    // SAFETY: see the head of this file.
    let inner = unsafe { ContextData::of(context) };
    // SAFETY: see the head of this file.
    let send_cq = Arc::clone(unsafe { VerbsCq::inner(attr.send_cq) });
    // SAFETY: see the head of this file.
    let recv_cq = Arc::clone(unsafe { VerbsCq::inner(attr.recv_cq) });
    // SAFETY: the structure consists of integers, which may be zero.
    let mut request: ibv_create_qp_ex = unsafe { core::mem::zeroed() };
    let mut response = DriverMessage::<ib_uverbs_ex_create_qp_resp, CreateQpResp>::zeroed();
    let mut qp = ObjectDraft::<verbs_qp, QpMember>::new();
    // SAFETY: see the head of this file.
    check(unsafe {
        commands::create_qp_ex2(
            context,
            qp.verbs(),
            attr,
            &mut request,
            size_of_val(&request),
            &mut response.core,
            size_of_val(&response),
        )
    })?;
    // SAFETY: see the head of this file.
    let made = unsafe { make_qp(inner, attr, &response.driver, datagram, send_cq, recv_cq) };
    match made {
        Ok(made) => {
            *cap = attr.cap;
            made.attach();
            if extended {
                // SAFETY: the queue pair was just created.
                unsafe { post_ex::set_functions(qp.verbs(), offered) };
            }
            Ok(qp.finish(InDomain::new(Some(made), domain)))
        }
        Err(errno) => {
            // SAFETY: the kernel has just created the object, and no other code knows it.
            unsafe { ibv_cmd_destroy_qp(qp.verbs().cast()) };
            Err(errno)
        }
    }
}

/// # Safety
///
/// The conditions are those of `create_qp_ex`.
unsafe fn make_qp(
    inner: &ContextData,
    attr: &ibv_qp_init_attr_ex,
    driver: &CreateQpResp,
    datagram: bool,
    send_cq: Arc<Cq>,
    recv_cq: Arc<Cq>,
) -> Result<Arc<Qp>, Errno> {
    let area = inner.area(&driver.area)?;
    // SAFETY: see the head of this file.
    let sharing = unsafe { Pd::of(attr.pd) }.sharing();
    let slot = driver.slot.get().into();
    let ring = map_ring(
        inner,
        driver.sq_offset,
        driver.sq_length,
        driver.log_sq_size,
        driver.log_sq_stride,
        MapAccess::ReadWrite,
    )?;
    let sends = SendQueue::new(
        ring,
        area.clone(),
        SendConfig {
            max_wr: attr.cap.max_send_wr,
            max_sge: attr.cap.max_send_sge.min(wqe::MAX_SGE),
            max_inline: attr.cap.max_inline_data.min(wqe::MAX_INLINE),
            datagram,
            xrc: attr.qp_type == IBV_QPT_XRC_SEND,
            signal_all: attr.sq_sig_all != 0,
            sharing,
            slot,
        },
    );
    let receives = if !attr.srq.is_null() {
        // SAFETY: see the head of this file.
        ReceiveSource::Shared(Arc::clone(unsafe { VerbsSrq::inner(attr.srq) }))
    } else if driver.rq_length.get() != 0 {
        let ring = map_ring(
            inner,
            driver.rq_offset,
            driver.rq_length,
            driver.log_rq_size,
            driver.log_rq_stride,
            MapAccess::ReadWrite,
        )?;
        let config = RecvConfig {
            max_wr: attr.cap.max_recv_wr,
            max_sge: attr.cap.max_recv_sge.min(wqe::MAX_SGE),
            slot,
            shared: false,
            sharing,
        };
        ReceiveSource::Own(RecvQueue::new(ring, area, config))
    } else {
        ReceiveSource::None
    };
    let qpn = driver.qpn.get();
    Ok(Arc::new(Qp::new(qpn, sends, receives, send_cq, recv_cq)))
}

pub unsafe extern "C" fn modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: the structure consists of integers, which may be zero.
    let mut request: ibv_modify_qp = unsafe { core::mem::zeroed() };
    // SAFETY: see the head of this file.
    let returned =
        unsafe { ibv_cmd_modify_qp(qp, attr, mask, &mut request, size_of::<ibv_modify_qp>()) };
    if returned == 0 && mask as u32 & IBV_QP_STATE != 0 {
        // SAFETY: see the head of this file.
        let state = unsafe { (*attr).qp_state };
        // SAFETY: see the head of this file.
        let Some(qp) = unsafe { VerbsQp::inner(qp) }.as_ref() else {
            return 0;
        };
        match u8::try_from(state).ok().and_then(QpState::from_raw) {
            Some(QpState::Reset) => qp.reset(),
            Some(state) => qp.set_state(state),
            None => {}
        }
    }
    returned
}

pub unsafe extern "C" fn query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
    init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the structure consists of integers, which may be zero.
    let mut request: ibv_query_qp = unsafe { core::mem::zeroed() };
    // SAFETY: see the head of this file.
    unsafe {
        ibv_cmd_query_qp(
            qp,
            attr,
            mask,
            init_attr,
            &mut request,
            size_of::<ibv_query_qp>(),
        )
    }
}

pub unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: see the head of this file.
    let returned = unsafe { ibv_cmd_destroy_qp(qp) };
    if returned == 0 {
        // SAFETY: the object comes from `new_qp`, and the kernel no longer knows it.
        let object = unsafe { VerbsQp::take(qp) };
        if let Some(qp) = object.inner.as_ref() {
            qp.detach();
        }
    }
    returned
}
