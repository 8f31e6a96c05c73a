// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What programs ask for beyond the plain verbs: whether it is offered.

use super::pabi::*;
use crate::errno::Errno;

/// Refuses flags that are not in `known`.
pub fn check_flags(flags: u32, known: u32) -> Result<(), Errno> {
    if flags & !known != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    Ok(())
}

/// Whether a CQ can be as these attributes want it.
pub fn check_cq(attr: &ibv_cq_init_attr_ex) -> Result<(), Errno> {
    check_flags(
        attr.comp_mask,
        IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD,
    )?;
    // A field that the mask does not name is whatever was on the program's stack.
    if attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 {
        // That one thread only polls it is no more than a hint: queue pairs of others come and go.
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

/// Whether a queue pair can be as these attributes want it.
pub fn check_qp(attr: &ibv_qp_init_attr_ex) -> Result<(), Errno> {
    check_flags(
        attr.comp_mask,
        IBV_QP_INIT_ATTR_PD
            | IBV_QP_INIT_ATTR_XRCD
            | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
            | IBV_QP_INIT_ATTR_CREATE_FLAGS
            | IBV_QP_INIT_ATTR_MAX_TSO_HEADER,
    )?;
    // What the mask names may still ask for nothing.
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
    | IBV_QP_EX_WITH_FLUSH
    | IBV_QP_EX_WITH_ATOMIC_WRITE;

/// The `ibv_wr_*` operations that a type of queue pair has: of UC neither answers nor keys for the peer to invalidate.
fn operations(qp_type: ibv_qp_type) -> Result<u32, Errno> {
    match qp_type {
        IBV_QPT_RC | IBV_QPT_XRC_SEND => Ok(RELIABLE),
        IBV_QPT_UC => Ok(UNRELIABLE),
        IBV_QPT_UD => Ok(DATAGRAM),
        _ => Err(Errno::OPNOTSUPP),
    }
}

/// The operations that few devices have.
const PLACEMENT: u32 = IBV_QP_EX_WITH_FLUSH | IBV_QP_EX_WITH_ATOMIC_WRITE;

/// The operations that work on a queue pair of which a program wants these: all that its type has, but of [`PLACEMENT`]
/// those alone that are wanted.
pub fn offered(wanted: u64, qp_type: ibv_qp_type) -> Result<u32, Errno> {
    let wanted = u32::try_from(wanted).map_err(|_| Errno::OPNOTSUPP)?;
    let operations = operations(qp_type)?;
    check_flags(wanted, operations)?;
    Ok(operations & (wanted | !PLACEMENT))
}

/// What a queue pair has in the place of the function of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// It does it.
    Works,
    /// It makes the requests that were begun fail, so that a program that was not to call it does not die.
    Refuses,
    /// None: programs look there to know whether they may do without (librpma: `rpma_flush_new`).
    Missing,
}

/// That of one `operation`, if these are [`offered`].
pub fn function(offered: u32, operation: u32) -> Function {
    match operation {
        _ if offered & operation != 0 => Function::Works,
        _ if PLACEMENT & operation != 0 => Function::Missing,
        _ => Function::Refuses,
    }
}
