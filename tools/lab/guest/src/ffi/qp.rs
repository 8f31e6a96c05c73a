// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Queue pairs, shared receive queues and work requests.
#![allow(unsafe_code)]

use super::bindings::*;
use super::context::{later_methods, EventElement, Pd};
use super::cq::Cq;
use super::sys::Errno;
use super::xrc::Xrcd;
use core::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::Arc;

/// `enum ibv_qp_attr_mask`.
pub mod mask {
    use super::super::bindings::*;

    pub const STATE: u32 = IBV_QP_STATE;
    pub const CUR_STATE: u32 = IBV_QP_CUR_STATE;
    pub const EN_SQD_ASYNC_NOTIFY: u32 = IBV_QP_EN_SQD_ASYNC_NOTIFY;
    pub const ACCESS_FLAGS: u32 = IBV_QP_ACCESS_FLAGS;
    pub const PKEY_INDEX: u32 = IBV_QP_PKEY_INDEX;
    pub const PORT: u32 = IBV_QP_PORT;
    pub const QKEY: u32 = IBV_QP_QKEY;
    pub const AV: u32 = IBV_QP_AV;
    pub const PATH_MTU: u32 = IBV_QP_PATH_MTU;
    pub const TIMEOUT: u32 = IBV_QP_TIMEOUT;
    pub const RETRY_CNT: u32 = IBV_QP_RETRY_CNT;
    pub const RNR_RETRY: u32 = IBV_QP_RNR_RETRY;
    pub const RQ_PSN: u32 = IBV_QP_RQ_PSN;
    pub const MAX_QP_RD_ATOMIC: u32 = IBV_QP_MAX_QP_RD_ATOMIC;
    pub const ALT_PATH: u32 = IBV_QP_ALT_PATH;
    pub const MIN_RNR_TIMER: u32 = IBV_QP_MIN_RNR_TIMER;
    pub const SQ_PSN: u32 = IBV_QP_SQ_PSN;
    pub const MAX_DEST_RD_ATOMIC: u32 = IBV_QP_MAX_DEST_RD_ATOMIC;
    pub const PATH_MIG_STATE: u32 = IBV_QP_PATH_MIG_STATE;
    pub const CAP: u32 = IBV_QP_CAP;
    pub const DEST_QPN: u32 = IBV_QP_DEST_QPN;
}

/// `enum ibv_qp_state`.
pub mod state {
    use super::super::bindings::*;

    pub const RESET: u32 = IBV_QPS_RESET;
    pub const INIT: u32 = IBV_QPS_INIT;
    pub const RTR: u32 = IBV_QPS_RTR;
    pub const RTS: u32 = IBV_QPS_RTS;
    pub const SQD: u32 = IBV_QPS_SQD;
    pub const SQE: u32 = IBV_QPS_SQE;
    pub const ERR: u32 = IBV_QPS_ERR;
    pub const NAMES: [&str; 7] = ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"];
}

/// `enum ibv_wr_opcode`.
pub mod op {
    use super::super::bindings::*;

    pub const WRITE: u32 = IBV_WR_RDMA_WRITE;
    pub const WRITE_IMM: u32 = IBV_WR_RDMA_WRITE_WITH_IMM;
    pub const SEND: u32 = IBV_WR_SEND;
    pub const SEND_IMM: u32 = IBV_WR_SEND_WITH_IMM;
    pub const READ: u32 = IBV_WR_RDMA_READ;
    pub const CMP_SWP: u32 = IBV_WR_ATOMIC_CMP_AND_SWP;
    pub const FETCH_ADD: u32 = IBV_WR_ATOMIC_FETCH_AND_ADD;
    pub const LOCAL_INV: u32 = IBV_WR_LOCAL_INV;
    pub const SEND_INV: u32 = IBV_WR_SEND_WITH_INV;
    pub const FLUSH: u32 = IBV_WR_FLUSH;
    pub const ATOMIC_WRITE: u32 = IBV_WR_ATOMIC_WRITE;
}

/// `enum ibv_send_flags`.
pub mod flag {
    use super::super::bindings::*;

    pub const FENCE: u32 = IBV_SEND_FENCE;
    pub const SIGNALED: u32 = IBV_SEND_SIGNALED;
    pub const SOLICITED: u32 = IBV_SEND_SOLICITED;
    pub const INLINE: u32 = IBV_SEND_INLINE;
}

/// A send work request in owned form.
#[derive(Clone, Default)]
pub struct SendWr {
    pub wr_id: u64,
    pub opcode: u32,
    pub flags: u32,
    pub sges: Vec<ibv_sge>,
    /// Data to send inline. With `Some`, `sges` is not used.
    pub inline: Option<Vec<Vec<u8>>>,
    /// Immediate data in network byte order.
    pub imm: u32,
    pub remote_addr: u64,
    pub rkey: u32,
    /// Compare or add operand, for atomics only.
    pub compare_add: u64,
    pub swap: u64,
    /// Number of the SRQ at the peer, for XRC only.
    pub srqn: u32,
    /// Destination of a datagram, for UD only.
    pub to: Option<UdDestination>,
}

/// The destination of a datagram.
#[derive(Clone)]
pub struct UdDestination {
    pub ah: Arc<Ah>,
    pub qpn: u32,
    pub qkey: u32,
}

impl SendWr {
    /// Creates a signaled request.
    pub fn new(opcode: u32, wr_id: u64, sges: &[ibv_sge]) -> SendWr {
        SendWr {
            wr_id,
            opcode,
            flags: flag::SIGNALED,
            sges: sges.to_vec(),
            ..SendWr::default()
        }
    }

    pub fn remote(mut self, addr: u64, rkey: u32) -> SendWr {
        self.remote_addr = addr;
        self.rkey = rkey;
        self
    }

    pub fn to_srq(mut self, srq: &Srq) -> SendWr {
        self.srqn = srq.number();
        self
    }

    pub fn to(mut self, to: &UdDestination) -> SendWr {
        self.to = Some(to.clone());
        self
    }

    pub fn flags(mut self, flags: u32) -> SendWr {
        self.flags = flags;
        self
    }

    pub fn imm(mut self, imm: u32) -> SendWr {
        self.imm = imm;
        self
    }

    fn remote_part(&self) -> ibv_send_wr__bindgen_ty_2 {
        let &SendWr {
            remote_addr,
            rkey,
            compare_add,
            swap,
            ..
        } = self;
        if let Some(to) = &self.to {
            return ibv_send_wr__bindgen_ty_2 {
                ud: ibv_send_wr__bindgen_ty_2__bindgen_ty_3 {
                    ah: to.ah.raw,
                    remote_qpn: to.qpn,
                    remote_qkey: to.qkey,
                },
            };
        }
        if self.opcode == op::CMP_SWP || self.opcode == op::FETCH_ADD {
            return ibv_send_wr__bindgen_ty_2 {
                atomic: ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
                    remote_addr,
                    compare_add,
                    swap,
                    rkey,
                },
            };
        }
        ibv_send_wr__bindgen_ty_2 {
            rdma: ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey },
        }
    }

    pub fn inline(mut self, pieces: &[&[u8]]) -> SendWr {
        self.inline = Some(pieces.iter().map(|p| p.to_vec()).collect());
        self
    }
}

/// A receive work request in owned form.
#[derive(Clone, Default)]
pub struct RecvWr {
    pub wr_id: u64,
    pub sges: Vec<ibv_sge>,
}

impl RecvWr {
    pub fn new(wr_id: u64, sges: &[ibv_sge]) -> RecvWr {
        RecvWr {
            wr_id,
            sges: sges.to_vec(),
        }
    }
}

/// A refused post: the errno and the request at which the provider stopped. All requests before
/// that request were queued.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PostError {
    pub errno: Errno,
    /// Index of the request that `bad_wr` pointed to, or `None` if it pointed to none of them.
    pub bad_wr: Option<usize>,
}

/// Links receive requests into the list that the verb takes. The list points into `wrs`.
pub(super) fn recv_list(wrs: &[RecvWr]) -> Vec<ibv_recv_wr> {
    let mut list: Vec<ibv_recv_wr> = wrs
        .iter()
        .map(|wr| ibv_recv_wr {
            wr_id: wr.wr_id,
            next: std::ptr::null_mut(),
            sg_list: wr.sges.as_ptr().cast_mut(),
            num_sge: wr.sges.len() as i32,
        })
        .collect();
    let base = list.as_mut_ptr();
    for i in 1..list.len() {
        list[i - 1].next = base.wrapping_add(i);
    }
    list
}

fn index_of<T>(list: &[T], bad: *mut T) -> Option<usize> {
    let off = (bad as usize).checked_sub(list.as_ptr() as usize)?;
    let index = off / std::mem::size_of::<T>();
    (index < list.len()).then_some(index)
}

/// Posts a list by one of the verbs in the context's method table.
///
/// # Safety
///
/// `queue` is a valid queue of the kind that `verb` posts to. `list` is one linked list of
/// requests, whose SGEs and inline data are readable during the call.
unsafe fn post<Q, W>(
    verb: Option<unsafe extern "C" fn(*mut Q, *mut W, *mut *mut W) -> c_int>,
    queue: *mut Q,
    list: &mut [W],
) -> Result<(), PostError> {
    let mut bad = std::ptr::null_mut();
    let verb = verb.ok_or(PostError {
        errno: Errno::EOPNOTSUPP,
        bad_wr: None,
    })?;
    // SAFETY: the caller guarantees the conditions of this function.
    let ret = unsafe { verb(queue, list.as_mut_ptr(), &mut bad) };
    Errno::check(ret).map_err(|errno| PostError {
        errno,
        bad_wr: index_of(list, bad),
    })
}

/// The attributes with which a QP is created.
#[derive(Clone)]
pub struct QpInit {
    pub send_cq: Arc<Cq>,
    pub recv_cq: Arc<Cq>,
    pub srq: Option<Arc<Srq>>,
    pub cap: ibv_qp_cap,
    pub sq_sig_all: bool,
    /// Type of the QP, `enum ibv_qp_type`: 2 RC, 3 UC, 4 UD.
    pub qp_type: u32,
}

/// A queue pair.
pub struct Qp {
    pub(super) raw: *mut ibv_qp,
    /// Capacity that the provider granted.
    pub cap: ibv_qp_cap,
    pub init: QpInit,
    pd: Arc<Pd>,
}

impl Qp {
    pub fn new(pd: &Arc<Pd>, init: &QpInit) -> Result<Qp, Errno> {
        let mut attr = ibv_qp_init_attr {
            qp_context: std::ptr::null_mut(),
            send_cq: init.send_cq.raw(),
            recv_cq: init.recv_cq.raw(),
            srq: init.srq.as_ref().map_or(std::ptr::null_mut(), |s| s.raw),
            cap: init.cap,
            qp_type: init.qp_type,
            sq_sig_all: init.sq_sig_all.into(),
        };
        // SAFETY: all objects are valid, and the result keeps them alive.
        let raw = unsafe { ibv_create_qp(pd.raw(), &mut attr) };
        if raw.is_null() {
            return Err(Errno::last());
        }
        Ok(Qp {
            raw,
            cap: attr.cap,
            init: init.clone(),
            pd: pd.clone(),
        })
    }

    pub fn qpn(&self) -> u32 {
        // SAFETY: the QP is valid while `self` lives; the number does not change.
        unsafe { (*self.raw).qp_num }
    }

    pub fn element(&self) -> EventElement {
        EventElement::of(self.raw.cast())
    }

    pub fn modify(&self, attr: &ibv_qp_attr, mask: u32) -> Result<(), Errno> {
        let mut attr = *attr;
        // SAFETY: the QP and the attributes are valid.
        Errno::check(unsafe { ibv_modify_qp(self.raw, &mut attr, mask as i32) })
    }

    /// Attaches the QP to a multicast group.
    pub fn attach_mcast(&self, group: [u8; 16]) -> Result<(), Errno> {
        self.attach_mcast_by(group, 0)
    }

    /// Attaches the QP with a LID, which RoCE does not use and the core does not check.
    pub fn attach_mcast_by(&self, group: [u8; 16], lid: u16) -> Result<(), Errno> {
        let gid = ibv_gid { raw: group };
        // SAFETY: the QP and the GID are valid.
        Errno::check(unsafe { ibv_attach_mcast(self.raw, &gid, lid) })
    }

    /// Detaches the QP from a multicast group.
    pub fn detach_mcast(&self, group: [u8; 16]) -> Result<(), Errno> {
        self.detach_mcast_by(group, 0)
    }

    /// Detaches the QP with a LID.
    pub fn detach_mcast_by(&self, group: [u8; 16], lid: u16) -> Result<(), Errno> {
        let gid = ibv_gid { raw: group };
        // SAFETY: the QP and the GID are valid.
        Errno::check(unsafe { ibv_detach_mcast(self.raw, &gid, lid) })
    }

    /// Returns the current attributes, and the capacity that the device reports.
    pub fn query(&self) -> Result<(ibv_qp_attr, ibv_qp_cap), Errno> {
        let mut attr = ibv_qp_attr::default();
        let mut init = MaybeUninit::<ibv_qp_init_attr>::zeroed();
        let mask = mask::STATE | mask::CAP | mask::AV | mask::ACCESS_FLAGS;
        // SAFETY: the QP and the out pointers are valid.
        let ret = unsafe { ibv_query_qp(self.raw, &mut attr, mask as i32, init.as_mut_ptr()) };
        Errno::check(ret)?;
        // SAFETY: the structure has only pointers and integers, for all of which zero is valid.
        let init = unsafe { init.assume_init() };
        Ok((attr, init.cap))
    }

    /// Returns the order in which the bytes of an operation's messages arrive, or 0 if no order is
    /// guaranteed. With the flag `RETURN_CAPS` (1) the result is a set of orders.
    pub fn data_in_order(&self, opcode: u32, flags: u32) -> i32 {
        // SAFETY: the QP is valid.
        unsafe { ibv_query_qp_data_in_order(self.raw, opcode, flags) }
    }

    /// Returns the current state.
    pub fn state(&self) -> Result<u32, Errno> {
        Ok(self.query()?.0.qp_state)
    }

    pub fn post_send(&self, wrs: &[SendWr]) -> Result<(), PostError> {
        let mut wrs = wrs.to_vec();
        let mut list: Vec<ibv_send_wr> = Vec::with_capacity(wrs.len());
        for wr in &mut wrs {
            let mut flags = wr.flags;
            if let Some(pieces) = &wr.inline {
                flags |= flag::INLINE;
                wr.sges = pieces
                    .iter()
                    .map(|p| ibv_sge {
                        addr: p.as_ptr() as u64,
                        length: p.len() as u32,
                        lkey: 0,
                    })
                    .collect();
            }
            // Only inline data is read during the call. Without `inline`, only the device reads the
            // addresses, through a key.
            assert!(wr.inline.is_some() || flags & flag::INLINE == 0);
            list.push(ibv_send_wr {
                wr_id: wr.wr_id,
                next: std::ptr::null_mut(),
                sg_list: wr.sges.as_mut_ptr(),
                num_sge: wr.sges.len() as i32,
                opcode: wr.opcode,
                send_flags: flags,
                __bindgen_anon_1: ibv_send_wr__bindgen_ty_1 { imm_data: wr.imm },
                wr: wr.remote_part(),
                qp_type: ibv_send_wr__bindgen_ty_3 {
                    xrc: ibv_send_wr__bindgen_ty_3__bindgen_ty_1 {
                        remote_srqn: wr.srqn,
                    },
                },
                ..ibv_send_wr::default()
            });
        }
        let base = list.as_mut_ptr();
        for i in 1..list.len() {
            list[i - 1].next = base.wrapping_add(i);
        }
        // SAFETY: `list` and `wrs` own the requests until after the call; inline data is read from
        // `wrs` during the call.
        unsafe { self.post_raw(&mut list) }
    }

    /// Posts a list that the caller built.
    ///
    /// # Safety
    ///
    /// `list` is one linked list of requests, whose SGEs, inline data and objects are valid during
    /// the call.
    pub(super) unsafe fn post_raw(&self, list: &mut [ibv_send_wr]) -> Result<(), PostError> {
        // SAFETY: the provider filled the context's method table before it returned the context.
        let verb = unsafe { (*self.pd.ctx.raw()).ops.post_send };
        // SAFETY: the QP is valid; the caller guarantees the rest.
        unsafe { post(verb, self.raw, list) }
    }

    pub fn post_recv(&self, wrs: &[RecvWr]) -> Result<(), PostError> {
        let mut list = recv_list(wrs);
        // SAFETY: as in `post_send`.
        let verb = unsafe { (*self.pd.ctx.raw()).ops.post_recv };
        // SAFETY: as in `post_send`.
        unsafe { post(verb, self.raw, &mut list) }
    }
}

/// A shared receive queue.
pub struct Srq {
    pub(super) raw: *mut ibv_srq,
    pd: Arc<Pd>,
    /// CQ and domain of an SRQ for extended connections.
    _xrc: Option<(Arc<Cq>, Arc<Xrcd>)>,
}

impl Srq {
    pub fn new(pd: &Arc<Pd>, max_wr: u32, max_sge: u32) -> Result<Arc<Srq>, Errno> {
        Srq::with_limit(pd, max_wr, max_sge, 0)
    }

    /// Creates an SRQ with a `srq_limit` in the attributes, which only modifying an SRQ uses.
    pub fn with_limit(
        pd: &Arc<Pd>,
        max_wr: u32,
        max_sge: u32,
        srq_limit: u32,
    ) -> Result<Arc<Srq>, Errno> {
        let mut attr = ibv_srq_init_attr {
            srq_context: std::ptr::null_mut(),
            attr: ibv_srq_attr {
                max_wr,
                max_sge,
                srq_limit,
            },
        };
        // SAFETY: the PD and the attributes are valid.
        let raw = unsafe { ibv_create_srq(pd.raw(), &mut attr) };
        if raw.is_null() {
            return Err(Errno::last());
        }
        Ok(Arc::new(Srq {
            raw,
            pd: pd.clone(),
            _xrc: None,
        }))
    }

    pub(super) fn of_xrc(
        raw: *mut ibv_srq,
        pd: &Arc<Pd>,
        cq: &Arc<Cq>,
        xrcd: &Arc<Xrcd>,
    ) -> Arc<Srq> {
        Arc::new(Srq {
            raw,
            pd: pd.clone(),
            _xrc: Some((cq.clone(), xrcd.clone())),
        })
    }

    pub fn element(&self) -> EventElement {
        EventElement::of(self.raw.cast())
    }

    /// Returns the SRQN. Only an SRQ for extended connections has one.
    ///
    /// # Panics
    ///
    /// Panics if the provider does not have the verb, or if the verb fails.
    pub fn number(&self) -> u32 {
        let methods = later_methods(self.pd.ctx.raw()).expect("a table of later methods");
        // SAFETY: the pointer is the method table of a provider, which does not change any more.
        let op = unsafe { (*methods).get_srq_num }.expect("ibv_get_srq_num");
        let mut number = 0;
        // SAFETY: the SRQ and the out pointer are valid.
        let returned = unsafe { op(self.raw, &mut number) };
        assert_eq!(returned, 0, "ibv_get_srq_num");
        number
    }

    /// Sets the number of receives below which the SRQ raises an event.
    pub fn set_limit(&self, limit: u32) -> Result<(), Errno> {
        self.modify(None, Some(limit))
    }

    /// Changes the maximum number of work requests.
    pub fn resize(&self, max_wr: u32) -> Result<(), Errno> {
        self.modify(Some(max_wr), None)
    }

    /// Modifies the attributes that are `Some`.
    pub fn modify(&self, max_wr: Option<u32>, limit: Option<u32>) -> Result<(), Errno> {
        let mut attr = ibv_srq_attr {
            max_wr: max_wr.unwrap_or_default(),
            srq_limit: limit.unwrap_or_default(),
            ..ibv_srq_attr::default()
        };
        // The bits of `mask` are IBV_SRQ_MAX_WR and IBV_SRQ_LIMIT.
        let mask = c_int::from(max_wr.is_some()) | c_int::from(limit.is_some()) << 1;
        // SAFETY: the SRQ and the attributes are valid.
        Errno::check(unsafe { ibv_modify_srq(self.raw, &mut attr, mask) })
    }

    pub fn query(&self) -> Result<ibv_srq_attr, Errno> {
        let mut attr = ibv_srq_attr::default();
        // SAFETY: the SRQ and the out pointer are valid.
        Errno::check(unsafe { ibv_query_srq(self.raw, &mut attr) })?;
        Ok(attr)
    }

    pub fn post(&self, wrs: &[RecvWr]) -> Result<(), PostError> {
        let mut list = recv_list(wrs);
        // SAFETY: as in `Qp::post_send`.
        let verb = unsafe { (*self.pd.ctx.raw()).ops.post_srq_recv };
        // SAFETY: as in `Qp::post_send`.
        unsafe { post(verb, self.raw, &mut list) }
    }
}

/// An address handle.
pub struct Ah {
    pub(super) raw: *mut ibv_ah,
    _pd: Arc<Pd>,
}

impl Ah {
    pub fn new(pd: &Arc<Pd>, attr: &ibv_ah_attr) -> Result<Ah, Errno> {
        let mut attr = *attr;
        // SAFETY: the PD and the attributes are valid.
        let raw = unsafe { ibv_create_ah(pd.raw(), &mut attr) };
        if raw.is_null() {
            return Err(Errno::last());
        }
        Ok(Ah {
            raw,
            _pd: pd.clone(),
        })
    }
}
