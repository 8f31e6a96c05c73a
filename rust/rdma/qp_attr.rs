// SPDX-License-Identifier: GPL-2.0

//! Attributes of QPs: those requested for a new QP, those that `modify_qp` sets, and those that
//! `query_qp` returns.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use crate::{
    ah::AhAttr,
    bindings,
    cq::Cq,
    device::Operations,
    enums::{
        Access,
        MigState,
        Mtu,
        QpAttrMask,
        QpState,
        QpType,
        SigType, //
    },
    srq::Srq, //
};
use core::marker::PhantomData;
use kernel::prelude::*;

/// Sizes of a queue pair.
#[derive(Clone, Copy, Default)]
pub struct QpCap {
    /// Number of work requests in the send queue.
    pub max_send_wr: u32,
    /// Number of work requests in the receive queue.
    pub max_recv_wr: u32,
    /// Number of scatter/gather entries of a send.
    pub max_send_sge: u32,
    /// Number of scatter/gather entries of a receive.
    pub max_recv_sge: u32,
    /// Number of bytes of inline data.
    pub max_inline_data: u32,
    /// Number of contexts that `rdma_rw` needs.
    pub max_rdma_ctxs: u32,
}

impl QpCap {
    fn from_raw(raw: &bindings::ib_qp_cap) -> Self {
        Self {
            max_send_wr: raw.max_send_wr,
            max_recv_wr: raw.max_recv_wr,
            max_send_sge: raw.max_send_sge,
            max_recv_sge: raw.max_recv_sge,
            max_inline_data: raw.max_inline_data,
            max_rdma_ctxs: raw.max_rdma_ctxs,
        }
    }

    fn write(&self, raw: &mut bindings::ib_qp_cap) {
        raw.max_send_wr = self.max_send_wr;
        raw.max_recv_wr = self.max_recv_wr;
        raw.max_send_sge = self.max_send_sge;
        raw.max_recv_sge = self.max_recv_sge;
        raw.max_inline_data = self.max_inline_data;
    }
}

/// Attributes that are requested for a new QP.
///
/// # Invariants
///
/// The completion queues and the SRQ of `raw` are `NULL`, or STARTED objects of a device of `D`,
/// and live for `'a`.
pub struct QpInitAttr<'a, D: Operations> {
    raw: &'a mut bindings::ib_qp_init_attr,
    _driver: PhantomData<fn(&D)>,
}

impl<'a, D: Operations> QpInitAttr<'a, D> {
    /// # Safety
    ///
    /// The completion queues and the SRQ of `raw` must be `NULL`, or STARTED objects of a device of
    /// `D`, and live for `'a`.
    pub(crate) unsafe fn from_raw(raw: &'a mut bindings::ib_qp_init_attr) -> Self {
        // INVARIANT: The caller promises this.
        Self {
            raw,
            _driver: PhantomData,
        }
    }

    /// Returns the type, or `EINVAL` if it is unknown.
    pub fn qp_type(&self) -> Result<QpType> {
        QpType::from_raw(self.raw.qp_type).ok_or(EINVAL)
    }

    /// Returns which sends complete with a CQE.
    pub fn sig_type(&self) -> SigType {
        SigType::from_raw(self.raw.sq_sig_type).unwrap_or(SigType::ReqWr)
    }

    /// Returns the flags of `enum ib_qp_create_flags`.
    pub fn create_flags(&self) -> u32 {
        self.raw.create_flags
    }

    /// Returns the requested sizes.
    pub fn cap(&self) -> QpCap {
        QpCap::from_raw(&self.raw.cap)
    }

    /// Sets the actual sizes of the QP.
    pub fn set_cap(&mut self, cap: &QpCap) {
        cap.write(&mut self.raw.cap);
    }

    /// Returns the port of QP0 or QP1.
    pub fn port_num(&self) -> u32 {
        self.raw.port_num
    }

    /// Returns the QPN to send from, with `IB_QP_CREATE_SOURCE_QPN`.
    pub fn source_qpn(&self) -> u32 {
        self.raw.source_qpn
    }

    /// Returns the completion queue of the send queue.
    pub fn send_cq(&self) -> Option<&Cq<D>> {
        // SAFETY: By the type invariant the queue is STARTED, is of a device of `D`, and lives for
        // `'a`.
        (!self.raw.send_cq.is_null()).then(|| unsafe { Cq::from_raw(self.raw.send_cq) })
    }

    /// Returns the completion queue of the receive queue.
    pub fn recv_cq(&self) -> Option<&Cq<D>> {
        // SAFETY: By the type invariant the queue is STARTED, is of a device of `D`, and lives for
        // `'a`.
        (!self.raw.recv_cq.is_null()).then(|| unsafe { Cq::from_raw(self.raw.recv_cq) })
    }

    /// Returns the domain of an XRC target QP, or `NULL`.
    pub(crate) fn xrcd(&self) -> *mut bindings::ib_xrcd {
        self.raw.xrcd
    }

    /// Returns the SRQ of the QP.
    pub fn srq(&self) -> Option<&Srq<D>> {
        // SAFETY: By the type invariant the SRQ is STARTED, is of a device of `D`, and lives for
        // `'a`.
        (!self.raw.srq.is_null()).then(|| unsafe { Srq::from_raw(self.raw.srq) })
    }
}

/// Attributes of the creation of a QP that `query_qp` returns.
#[repr(transparent)]
pub struct QpInitReply(bindings::ib_qp_init_attr);

impl QpInitReply {
    pub(crate) fn from_mut(raw: &mut bindings::ib_qp_init_attr) -> &mut Self {
        // SAFETY: `Self` is a transparent wrapper of the C struct, and `raw` is not used while the
        // result borrows it.
        unsafe { &mut *core::ptr::from_mut(raw).cast() }
    }

    /// Sets the sizes of the QP.
    pub fn set_cap(&mut self, cap: &QpCap) {
        cap.write(&mut self.0.cap);
    }

    /// Sets which sends complete with a CQE.
    pub fn set_sig_type(&mut self, sig_type: SigType) {
        self.0.sq_sig_type = sig_type.as_raw();
    }
}

/// Attributes of a QP. A [`QpAttrMask`] says which of them are valid, and the others are zero.
#[repr(transparent)]
pub struct QpAttr(bindings::ib_qp_attr);

macro_rules! plain {
    ($($(#[$m:meta])* $get:ident, $set:ident: $t:ty),* $(,)?) => {
        $(
            $(#[$m])*
            pub fn $get(&self) -> $t {
                self.0.$get
            }

            $(#[$m])*
            pub fn $set(&mut self, value: $t) {
                self.0.$get = value;
            }
        )*
    };
}

impl QpAttr {
    plain! {
        /// Q_Key of the QP.
        qkey, set_qkey: u32,
        /// First PSN of the receive side.
        rq_psn, set_rq_psn: u32,
        /// First PSN of the send side.
        sq_psn, set_sq_psn: u32,
        /// QPN of the peer.
        dest_qp_num, set_dest_qp_num: u32,
        /// Index of the P_Key.
        pkey_index, set_pkey_index: u16,
        /// 1 if an event is to report that the send queue is drained.
        en_sqd_async_notify, set_en_sqd_async_notify: u8,
        /// 1 while the send queue is draining.
        sq_draining, set_sq_draining: u8,
        /// Number of outstanding READs and atomics as requester.
        max_rd_atomic, set_max_rd_atomic: u8,
        /// Number of outstanding READs and atomics as responder.
        max_dest_rd_atomic, set_max_dest_rd_atomic: u8,
        /// Code of the RNR timer.
        min_rnr_timer, set_min_rnr_timer: u8,
        /// Port of the QP.
        port_num, set_port_num: u32,
        /// Code of the ACK timeout.
        timeout, set_timeout: u8,
        /// Number of retries after a timeout.
        retry_cnt, set_retry_cnt: u8,
        /// Number of retries after an RNR NAK, of which 7 stands for infinity.
        rnr_retry, set_rnr_retry: u8,
        /// Rate limit of the sends.
        rate_limit, set_rate_limit: u32,
    }

    /// Copies the attributes that `mask` names. The caller need not have initialized the others.
    ///
    /// # Safety
    ///
    /// `from` must be valid, and the attributes that `mask` names must be initialized.
    pub(crate) unsafe fn masked(from: *const bindings::ib_qp_attr, mask: QpAttrMask) -> Self {
        let mut to = bindings::ib_qp_attr::default();
        macro_rules! copy {
            ($($bit:ident: $($field:ident),+;)*) => {
                $(
                    if mask.contains(QpAttrMask::$bit) {
                        $(
                            // SAFETY: The caller promises that `from` is valid. Only the address
                            // of a field is computed.
                            let field = unsafe { &raw const (*from).$field };
                            // SAFETY: The caller promises that `mask` names only initialized
                            // attributes, which are plain data.
                            to.$field = unsafe { field.read() };
                        )+
                    }
                )*
            };
        }
        copy! {
            STATE: qp_state;
            CUR_STATE: cur_qp_state;
            EN_SQD_ASYNC_NOTIFY: en_sqd_async_notify;
            ACCESS_FLAGS: qp_access_flags;
            PKEY_INDEX: pkey_index;
            PORT: port_num;
            QKEY: qkey;
            AV: ah_attr;
            PATH_MTU: path_mtu;
            TIMEOUT: timeout;
            RETRY_CNT: retry_cnt;
            RNR_RETRY: rnr_retry;
            RQ_PSN: rq_psn;
            MAX_QP_RD_ATOMIC: max_rd_atomic;
            ALT_PATH: alt_ah_attr, alt_pkey_index, alt_port_num, alt_timeout;
            MIN_RNR_TIMER: min_rnr_timer;
            SQ_PSN: sq_psn;
            MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
            PATH_MIG_STATE: path_mig_state;
            CAP: cap;
            DEST_QPN: dest_qp_num;
            RATE_LIMIT: rate_limit;
        }
        Self(to)
    }

    /// Returns the state to which the QP is to move.
    pub fn state(&self) -> Result<QpState> {
        QpState::from_raw(self.0.qp_state).ok_or(EINVAL)
    }

    /// Sets the state of the QP.
    pub fn set_state(&mut self, state: QpState) {
        self.0.qp_state = state.as_raw();
    }

    /// Returns the present state of the QP according to the caller.
    pub fn cur_state(&self) -> Result<QpState> {
        QpState::from_raw(self.0.cur_qp_state).ok_or(EINVAL)
    }

    /// Sets the present state of the QP.
    pub fn set_cur_state(&mut self, state: QpState) {
        self.0.cur_qp_state = state.as_raw();
    }

    /// Returns the path MTU.
    pub fn path_mtu(&self) -> Result<Mtu> {
        Mtu::from_raw(self.0.path_mtu).ok_or(EINVAL)
    }

    /// Sets the path MTU.
    pub fn set_path_mtu(&mut self, mtu: Mtu) {
        self.0.path_mtu = mtu.as_raw();
    }

    /// Returns the path migration state.
    pub fn path_mig_state(&self) -> Result<MigState> {
        MigState::from_raw(self.0.path_mig_state).ok_or(EINVAL)
    }

    /// Sets the path migration state.
    pub fn set_path_mig_state(&mut self, state: MigState) {
        self.0.path_mig_state = state.as_raw();
    }

    /// Returns the operations that the peer may use.
    pub fn access(&self) -> Access {
        // CAST: The access flags are bit flags.
        Access::from_raw(self.0.qp_access_flags as u32)
    }

    /// Sets the operations that the peer may use.
    pub fn set_access(&mut self, access: Access) {
        // CAST: The access flags are bit flags.
        self.0.qp_access_flags = access.as_raw() as i32;
    }

    /// Returns the requested sizes.
    pub fn cap(&self) -> QpCap {
        QpCap::from_raw(&self.0.cap)
    }

    /// Sets the sizes of the QP.
    pub fn set_cap(&mut self, cap: &QpCap) {
        cap.write(&mut self.0.cap);
    }

    /// Returns the address vector of the peer.
    pub fn ah(&self) -> AhAttr {
        // SAFETY: The address vector is zero or a copy of the caller's. The core holds a reference
        // to its GID attribute, if there is one, during the call.
        unsafe { AhAttr::from_raw(&self.0.ah_attr) }
    }

    /// Sets the address vector of the peer.
    pub fn set_ah(&mut self, ah: &AhAttr) {
        ah.write(&mut self.0.ah_attr);
    }
}

/// True if the state machine of the specification (IBTA 10.3.1, with the core's table) allows the
/// transition with these attributes: all required attributes, and no attribute that is not allowed.
///
/// # Examples
///
/// ```
/// use rdma::{
///     enums::{
///         QpAttrMask,
///         QpState,
///         QpType, //
///     },
///     qp_attr::modify_is_ok, //
/// };
///
/// let (reset, init) = (QpState::Reset, QpState::Init);
/// let mask = QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::QKEY;
/// assert!(modify_is_ok(reset, init, QpType::Ud, mask));
/// // A UD QP needs a Q_Key.
/// let mask = mask.without(QpAttrMask::QKEY);
/// assert!(!modify_is_ok(reset, init, QpType::Ud, mask));
/// ```
pub fn modify_is_ok(from: QpState, to: QpState, qp_type: QpType, mask: QpAttrMask) -> bool {
    // The core's table has no column for this type.
    if qp_type == QpType::Driver {
        return false;
    }
    // SAFETY: The function only reads its table, which has entries for all of these values.
    unsafe {
        bindings::ib_modify_qp_is_ok(from.as_raw(), to.as_raw(), qp_type.as_raw(), mask.as_raw())
    }
}
