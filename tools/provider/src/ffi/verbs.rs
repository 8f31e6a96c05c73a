// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Verbs on device, port, memory regions and address handles.
//!
//! libibverbs calls every function with the arguments that the program passed to the public verb:
//! objects are of this provider and alive, and structures are readable or writable as the man pages
//! say. That is the precondition of all these functions.
#![allow(unsafe_code)]
// The head of this file states the preconditions for all functions.
#![allow(clippy::missing_safety_doc)]

use super::address::address_vector;
use super::commands;
use super::device::{check, ContextData, DriverMessage};
use super::domains::Pd;
use super::object::{or_null, Ah, ObjectDraft, VerbsObject};
use super::pabi::*;
use crate::errno::Errno;
use crate::use_count::UseGuard;
use core::ffi::{c_char, c_int, c_void};
use core::mem::{size_of, size_of_val};
use std::sync::{Mutex, PoisonError};
use verbena_abi::regs;
use verbena_abi::uverbs::CreateAhResp;

/// Provider's part of a memory region: only the domain that the region is in, which can be changed.
struct Mr(Mutex<Option<UseGuard>>);

impl Mr {
    fn new(domain: Option<UseGuard>) -> Self {
        Self(Mutex::new(domain))
    }

    fn change_domain(&self, domain: Option<UseGuard>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = domain;
    }
}

pub unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    attr_size: usize,
) -> c_int {
    // SAFETY: the structure consists of integers, which may be zero.
    let mut response: ib_uverbs_ex_query_device_resp = unsafe { core::mem::zeroed() };
    let mut size = size_of_val(&response);
    // SAFETY: see the head of this file.
    let returned = unsafe {
        ibv_cmd_query_device_any(context, input, attr, attr_size, &mut response, &mut size)
    };
    if returned != 0 {
        return returned;
    }
    // Major, minor and patch, 16 bits each.
    let [major, minor, patch] = [32, 16, 0].map(|shift| (response.base.fw_ver >> shift) as u16);
    let text = format!("{major}.{minor}.{patch}");
    // SAFETY: libibverbs has filled the structure; `orig_attr` is always there.
    let target = unsafe { &mut (*attr).orig_attr.fw_ver };
    for (to, from) in target
        .iter_mut()
        .zip(text.bytes().chain(core::iter::once(0)))
    {
        *to = from as c_char;
    }
    0
}

pub unsafe extern "C" fn query_rt_values(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    // SAFETY: see the head of this file.
    let values = unsafe { &mut *values };
    if values.comp_mask & !IBV_VALUES_MASK_RAW_CLOCK != 0 {
        return Errno::INVAL.0;
    }
    if values.comp_mask != 0 {
        // SAFETY: see the head of this file.
        match unsafe { ContextData::of(context) }.clock() {
            // As in other providers, the member for nanoseconds holds the whole raw value.
            Ok(clock) => (values.raw_clock.tv_sec, values.raw_clock.tv_nsec) = (0, clock as i64),
            Err(errno) => return errno.0,
        }
    }
    0
}

pub unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: the structure consists of integers, which may be zero.
    let mut request: ibv_query_port = unsafe { core::mem::zeroed() };
    // SAFETY: see the head of this file.
    unsafe {
        ibv_cmd_query_port(
            context,
            port,
            attr,
            &mut request,
            size_of::<ibv_query_port>(),
        )
    }
}

pub unsafe extern "C" fn async_event(context: *mut ibv_context, event: *mut ibv_async_event) {
    // SAFETY: see the head of this file.
    let event = unsafe { &*event };
    if event.event_type == IBV_EVENT_DEVICE_FATAL {
        // SAFETY: see the head of this file.
        unsafe { ContextData::of(context) }.mark_dead();
    }
}

pub unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the structure consists of integers, which may be zero.
    let mut request: ibv_reg_mr = unsafe { core::mem::zeroed() };
    // SAFETY: the structure consists of integers, which may be zero.
    let mut response: ib_uverbs_reg_mr_resp = unsafe { core::mem::zeroed() };
    let mut mr = ObjectDraft::<verbs_mr, Mr>::new();
    // SAFETY: see the head of this file.
    let domain = unsafe { Pd::of(pd) }.begin_use();
    // SAFETY: see the head of this file.
    let result = check(unsafe {
        ibv_cmd_reg_mr(
            pd,
            addr,
            length,
            iova,
            access,
            mr.verbs(),
            &mut request,
            size_of_val(&request),
            &mut response,
            size_of_val(&response),
        )
    });
    or_null(result.map(|()| mr.finish(Mr::new(domain)).cast()))
}

pub unsafe extern "C" fn reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    let mut mr = ObjectDraft::<verbs_mr, Mr>::new();
    // SAFETY: see the head of this file.
    let domain = unsafe { Pd::of(pd) }.begin_use();
    // SAFETY: see the head of this file.
    let result =
        unsafe { commands::reg_dmabuf_mr(pd, offset, length, iova, fd, access, mr.verbs()) };
    or_null(check(result).map(|()| mr.finish(Mr::new(domain)).cast()))
}

pub unsafe extern "C" fn rereg_mr(
    mr: *mut verbs_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    // SAFETY: the structure consists of integers, which may be zero.
    let mut request: ibv_rereg_mr = unsafe { core::mem::zeroed() };
    // SAFETY: the structure consists of integers, which may be zero.
    let mut response: ib_uverbs_rereg_mr_resp = unsafe { core::mem::zeroed() };
    let other_domain = flags as u32 & IBV_REREG_MR_CHANGE_PD != 0;
    if other_domain && pd.is_null() {
        return Errno::INVAL.0;
    }
    let domain = if other_domain {
        // SAFETY: see the head of this file.
        unsafe { Pd::of(pd) }.begin_use()
    } else {
        None
    };
    // SAFETY: see the head of this file.
    let returned = unsafe {
        ibv_cmd_rereg_mr(
            mr,
            flags as u32,
            addr,
            length,
            addr as u64,
            access,
            pd,
            &mut request,
            size_of_val(&request),
            &mut response,
            size_of_val(&response),
        )
    };
    if returned == 0 && other_domain {
        // SAFETY: the object comes from `reg_mr`.
        unsafe { VerbsObject::<verbs_mr, Mr>::inner(mr) }.change_domain(domain);
    }
    returned
}

pub unsafe extern "C" fn dereg_mr(mr: *mut verbs_mr) -> c_int {
    // SAFETY: see the head of this file.
    let returned = unsafe { ibv_cmd_dereg_mr(mr) };
    if returned == 0 {
        // SAFETY: the object comes from `reg_mr`, and the kernel no longer knows it.
        drop(unsafe { VerbsObject::<verbs_mr, Mr>::take(mr) });
    }
    returned
}

pub unsafe extern "C" fn import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
    let mut mr = ObjectDraft::<verbs_mr, Mr>::new();
    // SAFETY: see the head of this file.
    let domain = unsafe { Pd::of(pd) }.begin_use();
    // SAFETY: see the head of this file.
    let result = check(unsafe { ibv_cmd_query_mr(pd, mr.verbs(), handle) });
    or_null(result.map(|()| mr.finish(Mr::new(domain)).cast()))
}

/// Frees the object of an imported region in this process. The region itself stays.
pub unsafe extern "C" fn unimport_mr(mr: *mut ibv_mr) {
    // SAFETY: the object comes from `import_mr`.
    drop(unsafe { VerbsObject::<verbs_mr, Mr>::take(mr) });
}

pub unsafe extern "C" fn create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: see the head of this file.
    or_null(unsafe { new_ah(pd, attr) })
}

/// # Safety
///
/// The conditions are those of `create_ah`.
unsafe fn new_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> Result<*mut ibv_ah, Errno> {
    let mut response = DriverMessage::<ib_uverbs_create_ah_resp, CreateAhResp>::zeroed();
    let mut ah = ObjectDraft::<ibv_ah, Ah>::new();
    // SAFETY: see the head of this file.
    check(unsafe {
        ibv_cmd_create_ah(
            pd,
            ah.verbs(),
            attr,
            &mut response.core,
            size_of_val(&response),
        )
    })?;
    // SAFETY: see the head of this file.
    let domain = unsafe { Pd::of(pd) };
    // SAFETY: see the head of this file.
    let vector = address_vector(unsafe { &*attr }, &response.driver);
    Ok(ah.finish(Ah::new(vector, domain.begin_use())))
}

pub unsafe extern "C" fn destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: see the head of this file.
    let returned = unsafe { ibv_cmd_destroy_ah(ah) };
    if returned == 0 {
        // SAFETY: the object comes from `create_ah`, and the kernel no longer knows it.
        drop(unsafe { VerbsObject::<ibv_ah, Ah>::take(ah) });
    }
    returned
}

/// Returns the options of connection establishment beyond the specification (ECE): the vendor ID of
/// this device, with no options.
pub unsafe extern "C" fn query_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: see the head of this file.
    unsafe {
        ece.write(ibv_ece {
            vendor_id: regs::PCI_VENDOR_ID.into(),
            options: 0,
            comp_mask: 0,
        })
    };
    0
}

/// Accepts the ECE options of a peer if they have the vendor ID of this device. The man page
/// requires the provider to reduce them to the options that it knows, which are none.
pub unsafe extern "C" fn set_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: see the head of this file.
    let &mut ibv_ece {
        vendor_id,
        comp_mask,
        ..
    } = unsafe { &mut *ece };
    if comp_mask != 0 || vendor_id != regs::PCI_VENDOR_ID.into() {
        return Errno::INVAL.0;
    }
    0
}
