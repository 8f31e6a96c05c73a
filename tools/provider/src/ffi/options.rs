// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks of the options that programs request beyond the plain verbs.

use super::pabi::*;
use crate::errno::Errno;

/// Refuses flags that are not in `known`, with EOPNOTSUPP.
pub fn check_flags(flags: u32, known: u32) -> Result<(), Errno> {
    if flags & !known != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    Ok(())
}

/// Checks that a CQ can have these attributes.
pub fn check_cq(attr: &ibv_cq_init_attr_ex) -> Result<(), Errno> {
    check_flags(
        attr.comp_mask,
        IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD,
    )?;
    // A field that the mask does not name is undefined.
    if attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 {
        // `IBV_CREATE_CQ_ATTR_SINGLE_THREADED` is only a hint: other threads still create and
        // destroy queue pairs on the CQ.
        check_flags(
            attr.flags,
            IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN,
        )?;
    }
    let wanted = u32::try_from(attr.wc_flags).map_err(|_| Errno::OPNOTSUPP)?;
    check_flags(
        wanted,
        IBV_WC_STANDARD_FLAGS
            | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
            | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
    )
}

/// Checks that a queue pair can have these attributes.
pub fn check_qp(attr: &ibv_qp_init_attr_ex) -> Result<(), Errno> {
    check_flags(
        attr.comp_mask,
        IBV_QP_INIT_ATTR_PD
            | IBV_QP_INIT_ATTR_XRCD
            | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
            | IBV_QP_INIT_ATTR_CREATE_FLAGS
            | IBV_QP_INIT_ATTR_MAX_TSO_HEADER,
    )?;
    // A field that the mask names may still request nothing.
    let names = |mask| attr.comp_mask & mask != 0;
    if names(IBV_QP_INIT_ATTR_CREATE_FLAGS) {
        check_flags(attr.create_flags, 0)?;
    }
    if names(IBV_QP_INIT_ATTR_MAX_TSO_HEADER) && attr.max_tso_header != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    Ok(())
}

const DATAGRAM: u32 = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
const UNRELIABLE: u32 = DATAGRAM
    | IBV_QP_EX_WITH_RDMA_WRITE
    | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | IBV_QP_EX_WITH_LOCAL_INV
    | IBV_QP_EX_WITH_BIND_MW;
const RELIABLE: u32 = UNRELIABLE
    | IBV_QP_EX_WITH_RDMA_READ
    | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
    | IBV_QP_EX_WITH_SEND_WITH_INV
    | PLACEMENT;

/// Returns the `ibv_wr_*` operations of a type of queue pair. UC has no operations with a response,
/// and none that invalidates a key of the peer.
fn operations(qp_type: ibv_qp_type) -> Result<u32, Errno> {
    match qp_type {
        IBV_QPT_RC | IBV_QPT_XRC_SEND => Ok(RELIABLE),
        IBV_QPT_UC => Ok(UNRELIABLE),
        IBV_QPT_UD => Ok(DATAGRAM),
        _ => Err(Errno::OPNOTSUPP),
    }
}

/// Operations that few devices have. Older releases of libibverbs have no functions for them.
const PLACEMENT: u32 = {
    #[cfg(rdma_core_45)]
    let operations = IBV_QP_EX_WITH_FLUSH | IBV_QP_EX_WITH_ATOMIC_WRITE;
    #[cfg(all(rdma_core_44, not(rdma_core_45)))]
    let operations = IBV_QP_EX_WITH_ATOMIC_WRITE;
    #[cfg(not(rdma_core_44))]
    let operations = 0;
    operations
};

/// Returns the operations that work on a queue pair for which the program requests `wanted`: all
/// operations of its type, but those of [`PLACEMENT`] only if they are in `wanted`.
pub fn offered(wanted: u64, qp_type: ibv_qp_type) -> Result<u32, Errno> {
    let wanted = u32::try_from(wanted).map_err(|_| Errno::OPNOTSUPP)?;
    let operations = operations(qp_type)?;
    check_flags(wanted, operations)?;
    Ok(operations & (wanted | !PLACEMENT))
}

/// Function that a queue pair has for an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// The function performs the operation.
    Works,
    /// The function makes the requests that were begun fail, so that a program that calls it
    /// without having requested the operation does not crash.
    Refuses,
    /// There is no function. Programs test the pointer to choose between the operation and a
    /// substitute (librpma: `rpma_flush_new`).
    Missing,
}

/// Returns the function for one `operation`, if `offered` is the result of [`offered`].
pub fn function(offered: u32, operation: u32) -> Function {
    match operation {
        _ if offered & operation != 0 => Function::Works,
        _ if PLACEMENT & operation != 0 => Function::Missing,
        _ => Function::Refuses,
    }
}
