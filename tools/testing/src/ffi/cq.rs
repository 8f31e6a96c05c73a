// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Completion channels and completion queues.
#![allow(unsafe_code)]

use super::bindings::*;
use super::context::{Context, Element};
use super::sys::{note_drop, readable, set_nonblocking, Errno};
use core::ffi::c_void;
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// A completion channel: the descriptor that completion events arrive at.
pub struct Channel {
    pub(super) raw: *mut ibv_comp_channel,
    ctx: Arc<Context>,
}

// SAFETY: libibverbs objects may be used from any thread.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Channel {
    pub fn new(ctx: &Arc<Context>) -> Result<Arc<Channel>, Errno> {
        // SAFETY: a valid context.
        let raw = unsafe { ibv_create_comp_channel(ctx.raw()) };
        if raw.is_null() {
            return Err(Errno::last());
        }
        let channel = Channel {
            raw,
            ctx: ctx.clone(),
        };
        set_nonblocking(channel.fd());
        Ok(Arc::new(channel))
    }

    pub fn fd(&self) -> i32 {
        // SAFETY: valid while `self` lives; the field never changes.
        unsafe { (*self.raw).fd }
    }

    /// Takes and acknowledges the next event; returns the CQ's identity, or `None` after `ms`
    /// milliseconds without an event.
    pub fn event(&self, ms: i32) -> Option<Element> {
        if !readable(self.fd(), ms) {
            return None;
        }
        let mut cq = std::ptr::null_mut();
        let mut cq_context: *mut c_void = std::ptr::null_mut();
        // SAFETY: a valid channel and out pointers.
        let ret = unsafe { ibv_get_cq_event(self.raw, &mut cq, &mut cq_context) };
        if ret != 0 {
            return None;
        }
        // SAFETY: the CQ cannot be gone: destroying it waits for this acknowledgement.
        unsafe { ibv_ack_cq_events(cq, 1) };
        Some(Element::of(cq.cast()))
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if self.raw.is_null() {
            return;
        }
        // SAFETY: CQs hold an `Arc` to their channel, so none is left.
        let code = unsafe { ibv_destroy_comp_channel(self.raw) };
        note_drop("channel", Errno::check(code));
        let _ = &self.ctx;
    }
}

/// A completion queue.
pub struct Cq {
    pub(super) raw: *mut ibv_cq,
    channel: Option<Arc<Channel>>,
    ctx: Arc<Context>,
}

// SAFETY: libibverbs objects may be used from any thread.
unsafe impl Send for Cq {}
// SAFETY: as above; polling locks.
unsafe impl Sync for Cq {}

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
        // SAFETY: a valid context; the channel, if any, is kept alive by the result.
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
            channel: channel.cloned(),
            ctx: ctx.clone(),
        }))
    }

    pub(super) fn raw(&self) -> *mut ibv_cq {
        self.raw
    }

    pub fn element(&self) -> Element {
        Element::of(self.raw.cast())
    }

    /// The number of entries that the library says the CQ has.
    pub fn cqe(&self) -> usize {
        // SAFETY: valid while `self` lives.
        let cqe = unsafe { (*self.raw).cqe };
        usize::try_from(cqe).unwrap_or(0)
    }

    /// `ibv_poll_cq` for at most `max` entries. The structures are filled with a pattern before,
    /// so a field that the provider forgets is seen.
    pub fn poll(&self, max: usize) -> Result<Vec<ibv_wc>, Errno> {
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
        // SAFETY: the context's method table is filled by the provider before it is handed out.
        let op = unsafe { (*self.ctx.raw()).ops.poll_cq }.ok_or(Errno::EOPNOTSUPP)?;
        // SAFETY: a valid CQ and an array of `max` entries.
        let n = unsafe { op(self.raw, max as i32, wc.as_mut_ptr()) };
        let n = usize::try_from(n).map_err(|_| Errno(n.abs()))?;
        assert!(n <= max, "poll_cq({max}) returned {n}");
        wc.truncate(n);
        Ok(wc)
    }

    /// `ibv_req_notify_cq`.
    pub fn arm(&self, solicited_only: bool) -> Result<(), Errno> {
        // SAFETY: as in `poll`.
        let op = unsafe { (*self.ctx.raw()).ops.req_notify_cq }.ok_or(Errno::EOPNOTSUPP)?;
        // SAFETY: a valid CQ.
        Errno::check(unsafe { op(self.raw, solicited_only.into()) })
    }

    /// Tries to destroy a CQ that others still use: the caller expects EBUSY. On success the
    /// object is gone for good, so its owner must not be used again: the process ends.
    pub fn expect_busy(&self) -> Result<(), String> {
        // SAFETY: a valid CQ. If the call succeeds nothing of this process touches it any more.
        match Errno::check(unsafe { ibv_destroy_cq(self.raw) }) {
            Err(Errno::EBUSY) => Ok(()),
            Err(other) => Err(format!("destroying a CQ in use gave {other}, not EBUSY")),
            Ok(()) => {
                eprintln!("reason: a CQ in use by a QP was destroyed");
                std::process::exit(1);
            }
        }
    }

    /// Destroys now and returns the result; on failure the object is leaked.
    pub fn destroy(self: Arc<Self>) -> Result<(), Errno> {
        let cq = Arc::try_unwrap(self).map_err(|_| Errno::EBUSY)?;
        let mut cq = ManuallyDrop::new(cq);
        // SAFETY: the only owner; `ManuallyDrop` prevents a second destroy.
        Errno::check(unsafe { ibv_destroy_cq(cq.raw) })?;
        drop(cq.channel.take());
        // SAFETY: read once, and `cq` is never dropped or used again.
        drop(unsafe { std::ptr::read(&cq.ctx) });
        Ok(())
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        if self.raw.is_null() {
            return;
        }
        // SAFETY: QPs hold an `Arc` to their CQs, so none is left.
        let ret = unsafe { ibv_destroy_cq(self.raw) };
        note_drop("CQ", Errno::check(ret));
    }
}
