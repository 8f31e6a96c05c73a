// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Extended reliable connections: domains, their SRQs and targets. Initiators are
//! [`Qp`](super::qp::Qp)s of type 9.
#![allow(unsafe_code)]

use super::bindings::*;
use super::context::{later_methods, Context, EventElement, Pd};
use super::cq::Cq;
use super::qp::{recv_list, RecvWr, Srq};
use super::sys::Errno;
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// An XRC domain.
pub struct Xrcd {
    pub(super) raw: *mut ibv_xrcd,
    pub ctx: Arc<Context>,
}

impl Xrcd {
    /// Opens the domain of a file, or without a file a domain private to this process.
    pub fn open(ctx: &Arc<Context>, file: Option<&std::fs::File>) -> Result<Arc<Xrcd>, Errno> {
        let mut attr = ibv_xrcd_init_attr {
            comp_mask: IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
            fd: file.map_or(-1, AsRawFd::as_raw_fd),
            oflags: libc::O_CREAT,
        };
        let methods = later_methods(ctx.raw()).ok_or(Errno::EOPNOTSUPP)?;
        // SAFETY: the pointer is the method table of a provider, which does not change any more.
        let op = unsafe { (*methods).open_xrcd }.ok_or(Errno::EOPNOTSUPP)?;
        // SAFETY: the context and the attributes are valid.
        let raw = unsafe { op(ctx.raw(), &mut attr) };
        if raw.is_null() {
            return Err(Errno::last());
        }
        let ctx = ctx.clone();
        Ok(Arc::new(Xrcd { raw, ctx }))
    }

    /// Creates an SRQ of the domain whose receives complete in `cq`.
    pub fn srq(
        self: &Arc<Self>,
        pd: &Arc<Pd>,
        cq: &Arc<Cq>,
        max_wr: u32,
    ) -> Result<Arc<Srq>, Errno> {
        let mut attr = ibv_srq_init_attr_ex {
            attr: ibv_srq_attr {
                max_wr,
                max_sge: 1,
                srq_limit: 0,
            },
            comp_mask: IBV_SRQ_INIT_ATTR_TYPE
                | IBV_SRQ_INIT_ATTR_PD
                | IBV_SRQ_INIT_ATTR_XRCD
                | IBV_SRQ_INIT_ATTR_CQ,
            srq_type: IBV_SRQT_XRC,
            pd: pd.raw(),
            xrcd: self.raw,
            cq: cq.raw(),
            ..ibv_srq_init_attr_ex::default()
        };
        let methods = later_methods(self.ctx.raw()).ok_or(Errno::EOPNOTSUPP)?;
        // SAFETY: the pointer is the method table of a provider, which does not change any more.
        let op = unsafe { (*methods).create_srq_ex }.ok_or(Errno::EOPNOTSUPP)?;
        // SAFETY: the context and the attributes are valid; the result keeps the objects in them
        // alive.
        let raw = unsafe { op(self.ctx.raw(), &mut attr) };
        if raw.is_null() {
            return Err(Errno::last());
        }
        Ok(Srq::of_xrc(raw, pd, cq, self))
    }

    /// Creates an initiator by `ibv_create_qp_ex` with an SRQ, a receive CQ and a receive capacity,
    /// all of which an initiator ignores, and destroys it. False if the call has changed the SRQ or
    /// the receive CQ in the attributes.
    pub fn initiator_keeps_attributes(
        pd: &Arc<Pd>,
        cq: &Arc<Cq>,
        srq: &Srq,
    ) -> Result<bool, Errno> {
        let other = std::ptr::null_mut();
        let mut attr = ibv_qp_init_attr_ex {
            qp_type: IBV_QPT_XRC_SEND,
            comp_mask: IBV_QP_INIT_ATTR_PD,
            pd: pd.raw(),
            send_cq: cq.raw(),
            recv_cq: other,
            srq: srq.raw,
            ..ibv_qp_init_attr_ex::default()
        };
        (attr.cap.max_send_wr, attr.cap.max_recv_sge) = (1, u32::MAX);
        let methods = later_methods(pd.ctx.raw()).ok_or(Errno::EOPNOTSUPP)?;
        // SAFETY: the pointer is the method table of a provider, which does not change any more.
        let op = unsafe { (*methods).create_qp_ex }.ok_or(Errno::EOPNOTSUPP)?;
        // SAFETY: the context and the attributes are valid and outlive the QP.
        let raw = unsafe { op(pd.ctx.raw(), &mut attr) };
        if raw.is_null() {
            return Err(Errno::last());
        }
        // SAFETY: the QP was just created, and no other code has its address.
        Errno::check(unsafe { ibv_destroy_qp(raw) })?;
        Ok(attr.srq == srq.raw && attr.recv_cq == other)
    }

    /// Creates a target, which is in RESET.
    pub fn target(self: &Arc<Self>) -> Result<XrcTarget, Errno> {
        let mut attr = ibv_qp_init_attr_ex {
            qp_type: IBV_QPT_XRC_RECV,
            comp_mask: IBV_QP_INIT_ATTR_XRCD,
            xrcd: self.raw,
            ..ibv_qp_init_attr_ex::default()
        };
        let methods = later_methods(self.ctx.raw()).ok_or(Errno::EOPNOTSUPP)?;
        // SAFETY: the pointer is the method table of a provider, which does not change any more.
        let op = unsafe { (*methods).create_qp_ex }.ok_or(Errno::EOPNOTSUPP)?;
        // SAFETY: the context and the attributes are valid; the result keeps the domain alive.
        let raw = unsafe { op(self.ctx.raw(), &mut attr) };
        self.own(raw)
    }

    /// Opens a target that another process or context has created.
    pub fn open_target(self: &Arc<Self>, qpn: u32) -> Result<XrcTarget, Errno> {
        let mut attr = ibv_qp_open_attr {
            comp_mask: IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
            qp_num: qpn,
            xrcd: self.raw,
            qp_type: IBV_QPT_XRC_RECV,
            ..ibv_qp_open_attr::default()
        };
        let methods = later_methods(self.ctx.raw()).ok_or(Errno::EOPNOTSUPP)?;
        // SAFETY: the pointer is the method table of a provider, which does not change any more.
        let op = unsafe { (*methods).open_qp }.ok_or(Errno::EOPNOTSUPP)?;
        // SAFETY: the context and the attributes are valid; the result keeps the domain alive.
        let raw = unsafe { op(self.ctx.raw(), &mut attr) };
        self.own(raw)
    }

    fn own(self: &Arc<Self>, raw: *mut ibv_qp) -> Result<XrcTarget, Errno> {
        if raw.is_null() {
            return Err(Errno::last());
        }
        let xrcd = self.clone();
        Ok(XrcTarget { raw, xrcd })
    }
}

/// Calls `ibv_close_xrcd`, which is an inline function of the header and not exported by the
/// library.
///
/// # Safety
///
/// `xrcd` is valid, and is not used any more if this call succeeds.
pub(super) unsafe fn close_xrcd(xrcd: *mut ibv_xrcd) -> i32 {
    // SAFETY: the caller guarantees that `xrcd` is valid.
    let context = unsafe { (*xrcd).context };
    let methods = later_methods(context);
    // SAFETY: the pointer is the method table of a provider, which does not change any more.
    match methods.and_then(|methods| unsafe { (*methods).close_xrcd }) {
        // SAFETY: the caller guarantees that `xrcd` is valid.
        Some(op) => unsafe { op(xrcd) },
        None => Errno::EOPNOTSUPP.0,
    }
}

/// The target of an extended connection.
pub struct XrcTarget {
    pub(super) raw: *mut ibv_qp,
    xrcd: Arc<Xrcd>,
}

impl XrcTarget {
    pub fn qpn(&self) -> u32 {
        // SAFETY: the QP is valid while `self` lives; the number does not change.
        unsafe { (*self.raw).qp_num }
    }

    pub fn element(&self) -> EventElement {
        EventElement::of(self.raw.cast())
    }

    /// Tries to post a receive to the target.
    pub fn post_recv(&self, wr: &RecvWr) -> Result<(), Errno> {
        let mut list = recv_list(std::slice::from_ref(wr));
        let mut bad = std::ptr::null_mut();
        // SAFETY: the provider filled the context's method table before it returned the context.
        let op = unsafe { (*self.xrcd.ctx.raw()).ops.post_recv }.ok_or(Errno::EOPNOTSUPP)?;
        // SAFETY: the QP is valid, and the list is one request without buffers.
        Errno::check(unsafe { op(self.raw, list.as_mut_ptr(), &mut bad) })
    }

    pub fn modify(&self, attr: &ibv_qp_attr, mask: u32) -> Result<(), Errno> {
        let mut attr = *attr;
        // SAFETY: the QP and the attributes are valid.
        Errno::check(unsafe { ibv_modify_qp(self.raw, &mut attr, mask as i32) })
    }
}
