// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The functions of libibverbs that got an argument within the supported releases. Here they have
//! the arguments of all releases. The provider has no use for the new arguments: each is a pointer
//! that may be null.
//!
//! `build.rs` sets `rdma_core_N` if the bindings are those of rdma-core vN or newer. In v54, the
//! number of the private ABI did not change, but an older libibverbs ignores the argument.
#![allow(unsafe_code)]
// The head of `verbs` states the preconditions of all verbs.
#![allow(clippy::missing_safety_doc)]

use super::pabi::*;
use core::ffi::c_int;
#[cfg(rdma_core_54)]
use core::ptr::null_mut;

/// Calls `ibv_cmd_get_context`. From v57 on it can use a file that another process has opened.
pub unsafe fn get_context(
    context: *mut verbs_context,
    command: *mut ibv_get_context,
    command_size: usize,
    response: *mut ib_uverbs_get_context_resp,
    response_size: usize,
) -> c_int {
    // SAFETY: the caller vouches for the arguments.
    unsafe {
        #[cfg(rdma_core_57)]
        {
            ibv_cmd_get_context(
                context,
                command,
                command_size,
                null_mut(),
                response,
                response_size,
            )
        }
        #[cfg(not(rdma_core_57))]
        {
            ibv_cmd_get_context(context, command, command_size, response, response_size)
        }
    }
}

/// Calls `ibv_cmd_reg_dmabuf_mr`. From v54 on it passes on attributes of the driver.
pub unsafe fn reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
    mr: *mut verbs_mr,
) -> c_int {
    // SAFETY: the caller vouches for the arguments.
    unsafe {
        #[cfg(rdma_core_54)]
        {
            ibv_cmd_reg_dmabuf_mr(pd, offset, length, iova, fd, access, mr, null_mut())
        }
        #[cfg(not(rdma_core_54))]
        {
            ibv_cmd_reg_dmabuf_mr(pd, offset, length, iova, fd, access, mr)
        }
    }
}

/// Calls `ibv_cmd_create_cq_ex`. From v59 on it passes on attributes of the driver.
#[allow(clippy::too_many_arguments)] // those of the function that it calls
pub unsafe fn create_cq_ex(
    context: *mut ibv_context,
    attr: *const ibv_cq_init_attr_ex,
    cq: *mut verbs_cq,
    command: *mut ibv_create_cq_ex,
    command_size: usize,
    response: *mut ib_uverbs_ex_create_cq_resp,
    response_size: usize,
    flags: u32,
) -> c_int {
    // SAFETY: the caller vouches for the arguments.
    unsafe {
        #[cfg(rdma_core_59)]
        {
            let driver = null_mut();
            ibv_cmd_create_cq_ex(
                context,
                attr,
                driver,
                cq,
                command,
                command_size,
                response,
                response_size,
                flags,
            )
        }
        #[cfg(not(rdma_core_59))]
        {
            ibv_cmd_create_cq_ex(
                context,
                attr,
                cq,
                command,
                command_size,
                response,
                response_size,
                flags,
            )
        }
    }
}

/// Calls `ibv_cmd_create_qp_ex2`. From v64 on it passes on attributes of the driver.
pub unsafe fn create_qp_ex2(
    context: *mut ibv_context,
    qp: *mut verbs_qp,
    attr: *mut ibv_qp_init_attr_ex,
    command: *mut ibv_create_qp_ex,
    command_size: usize,
    response: *mut ib_uverbs_ex_create_qp_resp,
    response_size: usize,
) -> c_int {
    // SAFETY: the caller vouches for the arguments.
    unsafe {
        #[cfg(rdma_core_64)]
        {
            let driver = null_mut();
            ibv_cmd_create_qp_ex2(
                context,
                qp,
                attr,
                command,
                command_size,
                response,
                response_size,
                driver,
            )
        }
        #[cfg(not(rdma_core_64))]
        {
            ibv_cmd_create_qp_ex2(
                context,
                qp,
                attr,
                command,
                command_size,
                response,
                response_size,
            )
        }
    }
}
