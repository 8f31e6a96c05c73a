// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The device clock, and extended CQs, whose completions have timestamps of that clock.
#![allow(unsafe_code)]

use super::bindings::*;
use super::context::{later_methods, Context};
use super::cq::Cq;
use super::sys::Errno;
use std::sync::Arc;

pub use super::bindings::{
    IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN as IGNORE_OVERRUN, IBV_VALUES_MASK_RAW_CLOCK as RAW_CLOCK,
};

/// Reads the values in `mask` by `ibv_query_rt_values_ex`, and returns the raw clock.
pub fn query(ctx: &Arc<Context>, mask: u32) -> Result<u64, Errno> {
    let mut values = ibv_values_ex {
        comp_mask: mask,
        ..ibv_values_ex::default()
    };
    let methods = later_methods(ctx.raw()).ok_or(Errno::EOPNOTSUPP)?;
    // SAFETY: the pointer is the method table of a provider, which does not change any more.
    let op = unsafe { (*methods).query_rt_values }.ok_or(Errno::EOPNOTSUPP)?;
    // SAFETY: the context is valid, and so is the structure that the provider fills.
    match unsafe { op(ctx.raw(), &mut values) } {
        0 => Ok(values.raw_clock.tv_nsec as u64),
        errno => Err(Errno(errno)),
    }
}

/// A completion of an extended poll.
#[derive(Clone, Copy, Debug)]
pub struct TimestampedWc {
    pub wr_id: u64,
    pub status: u32,
    /// Timestamp by the device clock.
    pub timestamp: u64,
    /// Timestamp by the system clock.
    pub wall_clock: u64,
}

/// Creates an extended CQ with timestamps of both clocks.
pub fn cq(ctx: &Arc<Context>, cqe: u32, flags: u32) -> Result<Arc<Cq>, Errno> {
    let mut attr = ibv_cq_init_attr_ex {
        cqe,
        wc_flags: (IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
            | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)
            .into(),
        comp_mask: IBV_CQ_INIT_ATTR_MASK_FLAGS,
        flags,
        ..ibv_cq_init_attr_ex::default()
    };
    let methods = later_methods(ctx.raw()).ok_or(Errno::EOPNOTSUPP)?;
    // SAFETY: the pointer is the method table of a provider, which does not change any more.
    let op = unsafe { (*methods).create_cq_ex }.ok_or(Errno::EOPNOTSUPP)?;
    // SAFETY: the context and the attributes are valid.
    let raw = unsafe { op(ctx.raw(), &mut attr) };
    if raw.is_null() {
        return Err(Errno::last());
    }
    Ok(Cq::from_raw(raw.cast(), ctx))
}

/// Takes all completions of an extended CQ in one poll.
pub fn drain(cq: &Cq) -> Result<Vec<TimestampedWc>, Errno> {
    const ENOENT: i32 = 2;
    let raw: *mut ibv_cq_ex = cq.raw().cast();
    // SAFETY: `cq` above made the object, which is alive while `cq` is.
    let ops = unsafe { &*raw };
    let (Some(start), Some(next), Some(end), Some(time), Some(wall)) = (
        ops.start_poll,
        ops.next_poll,
        ops.end_poll,
        ops.read_completion_ts,
        ops.read_completion_wallclock_ns,
    ) else {
        return Err(Errno::EOPNOTSUPP);
    };
    let mut attr = ibv_poll_cq_attr::default();
    let mut all = Vec::new();
    // SAFETY: the object is an extended CQ.
    let mut returned = unsafe { start(raw, &mut attr) };
    if returned == ENOENT {
        return Ok(all);
    }
    while returned == 0 {
        // SAFETY: a poll is in progress, so these fields are those of the current completion.
        let &ibv_cq_ex { wr_id, status, .. } = unsafe { &*raw };
        // SAFETY: a poll is in progress.
        let timestamp = unsafe { time(raw) };
        // SAFETY: a poll is in progress.
        let wall_clock = unsafe { wall(raw) };
        all.push(TimestampedWc {
            wr_id,
            status,
            timestamp,
            wall_clock,
        });
        // SAFETY: a poll is in progress.
        returned = unsafe { next(raw) };
    }
    // SAFETY: the start of the poll succeeded.
    unsafe { end(raw) };
    match returned {
        ENOENT => Ok(all),
        errno => Err(Errno(errno)),
    }
}
