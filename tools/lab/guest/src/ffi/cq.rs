// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Completion channels and completion queues.
#![allow(unsafe_code)]

use super::bindings::*;
use super::context::{later_methods, Context, EventElement};
use super::sys::{readable, set_nonblocking, Errno};
use core::ffi::c_void;
use std::sync::Arc;

/// A completion channel: the descriptor at which completion events arrive.
pub struct Channel {
    pub(super) raw: *mut ibv_comp_channel,
    _ctx: Arc<Context>,
}

impl Channel {
    pub fn new(ctx: &Arc<Context>) -> Result<Arc<Channel>, Errno> {
        // SAFETY: the context is valid.
        let raw = unsafe { ibv_create_comp_channel(ctx.raw()) };
        if raw.is_null() {
            return Err(Errno::last());
        }
        let channel = Channel {
            raw,
            _ctx: ctx.clone(),
        };
        set_nonblocking(channel.fd());
        Ok(Arc::new(channel))
    }

    pub fn fd(&self) -> i32 {
        // SAFETY: the object is valid while `self` lives; the field never changes.
        unsafe { (*self.raw).fd }
    }

    /// Takes and acknowledges the next event. Returns the CQ's identity, or `None` after `ms`
    /// milliseconds without an event.
    pub fn event(&self, ms: i32) -> Option<EventElement> {
        if !readable(self.fd(), ms) {
            return None;
        }
        let mut cq = std::ptr::null_mut();
        let mut cq_context: *mut c_void = std::ptr::null_mut();
        // SAFETY: the channel and the out pointers are valid.
        let ret = unsafe { ibv_get_cq_event(self.raw, &mut cq, &mut cq_context) };
        if ret != 0 {
            return None;
        }
        // SAFETY: the CQ still exists, because destroying it waits for this acknowledgement.
        unsafe { ibv_ack_cq_events(cq, 1) };
        Some(EventElement::of(cq.cast()))
    }
}

/// A work completion: `struct ibv_wc`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wc {
    pub wr_id: u64,
    pub status: u32,
    pub opcode: u32,
    pub vendor_err: u32,
    pub byte_len: u32,
    /// Immediate data in network byte order, or the key that was invalidated.
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: u32,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

impl From<&ibv_wc> for Wc {
    fn from(wc: &ibv_wc) -> Wc {
        Wc {
            wr_id: wc.wr_id,
            status: wc.status,
            opcode: wc.opcode,
            vendor_err: wc.vendor_err,
            byte_len: wc.byte_len,
            // SAFETY: both members have 32 bits, and `poll` initialized them.
            imm_data: unsafe { wc.__bindgen_anon_1.imm_data },
            qp_num: wc.qp_num,
            src_qp: wc.src_qp,
            wc_flags: wc.wc_flags,
            pkey_index: wc.pkey_index,
            slid: wc.slid,
            sl: wc.sl,
            dlid_path_bits: wc.dlid_path_bits,
        }
    }
}

/// A completion queue.
pub struct Cq {
    pub(super) raw: *mut ibv_cq,
    _channel: Option<Arc<Channel>>,
    ctx: Arc<Context>,
}

impl Cq {
    pub fn new(ctx: &Arc<Context>, cqe: i32) -> Result<Arc<Cq>, Errno> {
        Cq::with_channel(ctx, cqe, None, 0)
    }

    pub fn with_channel(
        ctx: &Arc<Context>,
        cqe: i32,
        channel: Option<&Arc<Channel>>,
        comp_vector: i32,
    ) -> Result<Arc<Cq>, Errno> {
        let raw_channel = channel.map_or(std::ptr::null_mut(), |c| c.raw);
        // SAFETY: the context is valid; the result keeps the channel, if any, alive.
        let raw = unsafe {
            ibv_create_cq(
                ctx.raw(),
                cqe,
                std::ptr::null_mut(),
                raw_channel,
                comp_vector,
            )
        };
        if raw.is_null() {
            return Err(Errno::last());
        }
        Ok(Arc::new(Cq {
            raw,
            _channel: channel.cloned(),
            ctx: ctx.clone(),
        }))
    }

    /// Wraps a CQ that was created by another call than `ibv_create_cq`.
    pub(super) fn from_raw(raw: *mut ibv_cq, ctx: &Arc<Context>) -> Arc<Cq> {
        Arc::new(Cq {
            raw,
            _channel: None,
            ctx: ctx.clone(),
        })
    }

    pub(super) fn raw(&self) -> *mut ibv_cq {
        self.raw
    }

    pub fn element(&self) -> EventElement {
        EventElement::of(self.raw.cast())
    }

    /// Returns the number of entries that the library reports for the CQ.
    pub fn cqe(&self) -> usize {
        // SAFETY: the object is valid while `self` lives.
        let cqe = unsafe { (*self.raw).cqe };
        usize::try_from(cqe).unwrap_or(0)
    }

    /// Calls `ibv_poll_cq` for at most `max` entries. The structures hold a pattern before the
    /// call, which reveals fields that the provider does not fill.
    pub fn poll(&self, max: usize) -> Result<Vec<Wc>, Errno> {
        let poison = ibv_wc {
            wr_id: 0xa5a5_a5a5_a5a5_a5a5,
            status: 0xa5a5,
            opcode: 0xa5a5,
            vendor_err: 0,
            byte_len: 0xa5a5_a5a5,
            qp_num: 0xa5a5_a5a5,
            ..ibv_wc::default()
        };
        let mut wc = vec![poison; max];
        // SAFETY: the provider filled the context's method table before it returned the context.
        let op = unsafe { (*self.ctx.raw()).ops.poll_cq }.ok_or(Errno::EOPNOTSUPP)?;
        // SAFETY: the CQ is valid, and the array has `max` entries.
        let n = unsafe { op(self.raw, max as i32, wc.as_mut_ptr()) };
        let n = usize::try_from(n).map_err(|_| Errno(n.abs()))?;
        assert!(n <= max, "poll_cq({max}) returned {n}");
        Ok(wc[..n].iter().map(Wc::from).collect())
    }

    /// Polls up to four entries without allocating memory, and returns their number.
    pub fn poll_silently(&self) -> u32 {
        let mut wc = [ibv_wc::default(); 4];
        // SAFETY: the provider filled the context's method table before it returned the context.
        let Some(op) = (unsafe { (*self.ctx.raw()).ops.poll_cq }) else {
            return 0;
        };
        // SAFETY: the CQ is valid, and the array has four entries.
        let n = unsafe { op(self.raw, 4, wc.as_mut_ptr()) };
        n.try_into().unwrap_or(0)
    }

    /// Calls `ibv_resize_cq`.
    pub fn resize(&self, cqe: i32) -> Result<(), Errno> {
        // SAFETY: the CQ is valid.
        Errno::check(unsafe { ibv_resize_cq(self.raw, cqe) })
    }

    /// Calls `ibv_modify_cq`, so that events are raised only after `count` completions or `period`
    /// microseconds.
    pub fn moderate(&self, count: u16, period: u16) -> Result<(), Errno> {
        let mut attr = ibv_modify_cq_attr {
            attr_mask: IBV_CQ_ATTR_MODERATE,
            moderate: ibv_moderate_cq {
                cq_count: count,
                cq_period: period,
            },
        };
        let context = later_methods(self.ctx.raw()).ok_or(Errno::EOPNOTSUPP)?;
        // SAFETY: the pointer is the method table of a provider, which does not change any more.
        let op = unsafe { (*context).modify_cq }.ok_or(Errno::EOPNOTSUPP)?;
        // SAFETY: the CQ is valid, and the attributes have a mask.
        Errno::check(unsafe { op(self.raw, &mut attr) })
    }

    /// Calls `ibv_req_notify_cq`.
    pub fn arm(&self, solicited_only: bool) -> Result<(), Errno> {
        // SAFETY: as in `poll`.
        let op = unsafe { (*self.ctx.raw()).ops.req_notify_cq }.ok_or(Errno::EOPNOTSUPP)?;
        // SAFETY: the CQ is valid.
        Errno::check(unsafe { op(self.raw, solicited_only.into()) })
    }

    /// Tries to destroy a CQ that QPs still use, for which the caller expects EBUSY. If the call
    /// succeeds, the CQ does not exist any more and its owner must not use it, so the process ends.
    pub fn expect_busy(&self) -> Result<(), String> {
        // SAFETY: the CQ is valid. If the call succeeds, this process does not access the CQ any
        // more.
        match Errno::check(unsafe { ibv_destroy_cq(self.raw) }) {
            Err(Errno::EBUSY) => Ok(()),
            Err(other) => Err(format!("destroying a CQ in use gave {other}, not EBUSY")),
            Ok(()) => {
                eprintln!("reason: a CQ in use by a QP was destroyed");
                std::process::exit(1);
            }
        }
    }
}
