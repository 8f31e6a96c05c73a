// SPDX-License-Identifier: GPL-2.0

//! Queue pairs.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)
//!
//! C: `struct ib_qp`; ops `create_qp`, `modify_qp`, `query_qp`, `destroy_qp`, `post_send`,
//! `post_recv`, `attach_mcast`, `detach_mcast`. The generic code of the core implements `drain_sq`
//! and `drain_rq`.

use crate::{
    bindings,
    cq::Cq,
    device::{
        Device,
        Operations, //
    },
    enums::{
        QpAttrMask,
        QpEvent,
        QpType, //
    },
    field::{
        read_field,
        write_field, //
    },
    object::{
        core_members,
        no_udata,
        object_size,
        Extra,
        InTable,
        Managed,
        Object, //
    },
    pd::Pd,
    qp_attr::{
        QpAttr,
        QpInitAttr,
        QpInitReply, //
    },
    restrack::ResEntry,
    srq::Srq,
    udata::Caller,
    wr::{
        post,
        RecvWrs,
        SendWrs, //
    },
    xrcd::Xrcd, //
};
use base::errno::eopnotsupp;
use core::{
    marker::PhantomData,
    mem::ManuallyDrop, //
};
use kernel::{
    error::{
        from_result,
        VTABLE_DEFAULT_ERROR, //
    },
    new_mutex,
    prelude::*,
    sync::Mutex, //
};

/// A driver's data of a QP. See the [crate](crate) for the order of calls.
#[vtable]
pub trait QueuePair<D: Operations>: Sized + Send + Sync {
    /// Returns an initializer of the data.
    fn create(
        home: &Home<'_, D>,
        attr: &QpInitAttr<'_, D>,
        caller: &Caller<'_, D>,
    ) -> impl PinInit<Self, Error>;

    /// Creates the QP in the device. Must call [`Qp::set_qp_num`], and [`QpInitAttr::set_cap`] with
    /// the actual sizes.
    fn start(qp: &Qp<D>, attr: &mut QpInitAttr<'_, D>, caller: &Caller<'_, D>) -> Result;

    /// Modifies the QP. The driver has to refuse illegal transitions and masks, with
    /// [`modify_is_ok`](crate::qp_attr::modify_is_ok).
    fn modify(qp: &Qp<D>, attr: &QpAttr, mask: QpAttrMask) -> Result;

    /// Fills in the attributes. `mask` names those that the caller needs at least.
    fn query(qp: &Qp<D>, attr: &mut QpAttr, mask: QpAttrMask, init: &mut QpInitReply) -> Result;

    /// Destroys the QP. Afterwards there are no events and no new entries in completion queues.
    fn destroy(qp: &Qp<D>) -> Result;

    /// Posts work requests until `wrs` is empty or a request fails. Called in any context. After an
    /// error the last request taken from `wrs` is the bad one.
    fn post_send(qp: &Qp<D>, wrs: &mut SendWrs<'_, D>) -> Result;

    /// Posts receive work requests, with the contract of [`post_send`](Self::post_send).
    fn post_recv(qp: &Qp<D>, wrs: &mut RecvWrs<'_>) -> Result;

    /// Attaches the QP to a multicast group: a GID in wire byte order, and on InfiniBand a LID.
    fn attach_mcast(_qp: &Qp<D>, _group: &[u8; 16], _lid: u16) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Detaches the QP from a multicast group. If this fails, the core does not destroy the QP.
    fn detach_mcast(_qp: &Qp<D>, _group: &[u8; 16], _lid: u16) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Describes the QP to `rdma resource`.
    fn fill_res(_qp: &Qp<D>, _entry: &mut ResEntry<'_>) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Passes the raw context of the QP to `put`, for `rdma resource -r`.
    fn fill_res_raw(_qp: &Qp<D>, _put: &mut dyn FnMut(&[u8]) -> Result) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }
}

/// A QP with the driver's data.
pub type Qp<D> = Managed<QpObject<D>>;

/// The kind of object that a [`Qp`] is.
pub struct QpObject<D>(PhantomData<D>);

// SAFETY: By NEW the core sets `device` and `uobject` before it calls `create`, and the device is
// one of `D`. The core uses an `ib_qp` from any thread.
unsafe impl<D: Operations> Object for QpObject<D> {
    type Driver = D;
    type Extra = InTable<QpExtra>;
    type Data = D::Qp;

    const NAME: &'static str = "queue pair";

    core_members!(ib_qp);

    fn destroy(qp: &Qp<D>) -> Result {
        D::Qp::destroy(qp)
    }

    fn fill_res(qp: &Qp<D>, entry: &mut ResEntry<'_>) -> Result {
        D::Qp::fill_res(qp, entry)
    }

    fn fill_res_raw(qp: &Qp<D>, put: &mut dyn FnMut(&[u8]) -> Result) -> Result {
        D::Qp::fill_res_raw(qp, put)
    }
}

/// State of this crate in each QP.
#[pin_data]
pub struct QpExtra {
    /// Held while the QP is bound to a counter or unbound from it. The core locks only that
    /// counter, so without this mutex the QP could be bound to another counter at the same time.
    #[pin]
    pub(crate) counter: Mutex<()>,
}

impl Extra for QpExtra {
    fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            counter <- new_mutex!(()),
        })
    }
}

/// The object in which a QP is created.
pub enum Home<'a, D: Operations> {
    /// Protection domain of an ordinary QP.
    Pd(&'a Pd<D>),
    /// XRC domain of an XRC target QP.
    Xrcd(&'a Xrcd<D>),
}

impl<'a, D: Operations> Home<'a, D> {
    /// # Safety
    ///
    /// `pd` and the XRC domain of `attr` must be STARTED or `NULL`, and alive for `'a`.
    unsafe fn find(pd: *mut bindings::ib_pd, attr: &QpInitAttr<'_, D>) -> Result<Self> {
        let xrcd = attr.xrcd();
        match attr.qp_type()? {
            // SAFETY: The caller promises that `xrcd`, which is not `NULL`, is STARTED and alive
            // for `'a`.
            QpType::XrcTgt if !xrcd.is_null() => Ok(Self::Xrcd(unsafe { Xrcd::from_raw(xrcd) })),
            QpType::XrcTgt => Err(EINVAL),
            // SAFETY: The caller promises that `pd`, which is not `NULL`, is STARTED and alive for
            // `'a`.
            _ if !pd.is_null() => Ok(Self::Pd(unsafe { Pd::from_raw(pd) })),
            _ => Err(eopnotsupp()),
        }
    }

    /// Returns the device of the domain.
    pub fn device(&self) -> &Device<D> {
        match self {
            Self::Pd(pd) => pd.device(),
            Self::Xrcd(xrcd) => xrcd.device(),
        }
    }
}

impl<D: Operations> Qp<D> {
    /// Returns the type of the QP.
    pub fn qp_type(&self) -> Option<QpType> {
        // SAFETY: The object is alive. The core sets `qp_type` before `create`, and it is constant.
        QpType::from_raw(unsafe { (*self.as_raw()).qp_type })
    }

    /// True if only a process may post to the QP, which it does without the kernel. XRC targets
    /// count too: the core takes them for kernel QPs (drivers/infiniband/core/verbs.c,
    /// `create_xrc_qp_user`) and would let a process post to them through the kernel.
    pub fn is_of_process(&self) -> bool {
        self.is_user() || matches!(self.qp_type(), Some(QpType::XrcTgt))
    }

    /// Returns the completion queue of the send queue.
    pub fn send_cq(&self) -> Option<&Cq<D>> {
        // SAFETY: The object is alive, and the core sets the pointer before `create`. The core
        // clears it once, for an XRC target, for which it was `NULL` before and which no user has
        // until `create_xrc_qp_user` ends.
        let cq = unsafe { (*self.as_raw()).send_cq };
        // SAFETY: The completion queue is STARTED and outlives the QP (NEW).
        (!cq.is_null()).then(|| unsafe { Cq::from_raw(cq) })
    }

    /// Returns the completion queue of the receive queue.
    pub fn recv_cq(&self) -> Option<&Cq<D>> {
        // SAFETY: The object is alive, and the core sets the pointer before `create`. See
        // `send_cq`.
        let cq = unsafe { (*self.as_raw()).recv_cq };
        // SAFETY: The completion queue is STARTED and outlives the QP (NEW).
        (!cq.is_null()).then(|| unsafe { Cq::from_raw(cq) })
    }

    /// Returns the SRQ of the QP.
    pub fn srq(&self) -> Option<&Srq<D>> {
        // SAFETY: The object is alive, and the core sets the pointer before `create`. See
        // `send_cq`.
        let srq = unsafe { (*self.as_raw()).srq };
        // SAFETY: The SRQ is STARTED and outlives the QP (NEW).
        (!srq.is_null()).then(|| unsafe { Srq::from_raw(srq) })
    }

    /// Returns the QPN of the QP.
    pub fn qp_num(&self) -> u32 {
        read_field!(self, qp_num)
    }

    /// Sets the QPN in the core's struct.
    pub fn set_qp_num(&self, qpn: u32) {
        // The core reads the number only after `create` has returned.
        write_field!(self, qp_num, qpn);
    }

    /// Reports an event. Must be called in process context, as the handler of the owner may sleep.
    pub fn event(&self, event: QpEvent) {
        let qp = self.as_raw();
        let mut event = bindings::ib_event {
            event: event.as_raw(),
            ..Default::default()
        };
        event.element.qp = ManuallyDrop::new(qp);
        // For an XRC target the core replaces handler and context once (`create_xrc_qp_user`),
        // while the QP is in RESET and has no user. A device that reports no event of a QP in RESET
        // does not race with that.
        //
        // SAFETY: The reference keeps the QP alive, and the core set the handler before `create`.
        let handler = unsafe { (*qp).event_handler };
        // SAFETY: The reference keeps the QP alive, and the core set the context before `create`.
        let context = unsafe { (*qp).qp_context };
        // SAFETY: The handler and the context are those of this QP, and the event names this QP.
        unsafe { self.report(event, handler, context) };
    }

    pub(crate) const fn fill_ops(ops: &mut bindings::ib_device_ops) {
        ops.size_ib_qp = object_size::<Self>();
        ops.create_qp = Some(Self::op_create);
        ops.modify_qp = Some(Self::op_modify);
        ops.query_qp = Some(Self::op_query);
        ops.destroy_qp = Some(Self::op_destroy);
        ops.post_send = Some(Self::op_post_send);
        ops.post_recv = Some(Self::op_post_recv);
        if <D::Qp as QueuePair<D>>::HAS_ATTACH_MCAST {
            ops.attach_mcast = Some(Self::op_attach_mcast);
        }
        if <D::Qp as QueuePair<D>>::HAS_DETACH_MCAST {
            ops.detach_mcast = Some(Self::op_detach_mcast);
        }
        if <D::Qp as QueuePair<D>>::HAS_FILL_RES {
            ops.fill_res_qp_entry = Some(Self::op_fill_res);
        }
        if <D::Qp as QueuePair<D>>::HAS_FILL_RES_RAW {
            ops.fill_res_qp_entry_raw = Some(Self::op_fill_res_raw);
        }
    }

    /// # Safety
    ///
    /// Only the core may call this op: `qp` must be NEW, and ARGUMENTS must hold.
    unsafe extern "C" fn op_create(
        qp: *mut bindings::ib_qp,
        attr: *mut bindings::ib_qp_init_attr,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the contract of this op `qp` is NEW, and ARGUMENTS holds for `udata`.
            let caller = unsafe { Self::caller(qp, udata) }?;
            // SAFETY: By ARGUMENTS `attr` is valid during the call, and is the caller's alone.
            let attr = unsafe { &mut *attr };
            // SAFETY: By NEW and ARGUMENTS the objects that `attr` names are `NULL` or STARTED, are
            // of the same device, and live until the QP is destroyed.
            let mut attr = unsafe { QpInitAttr::<D>::from_raw(attr) };
            // SAFETY: By the contract of this op `qp` is NEW, so that this pointer is set.
            let pd = unsafe { (*qp).pd };
            // SAFETY: By the contract of this op `qp` is NEW, so that this pointer is set.
            let send_cq = unsafe { (*qp).send_cq };
            // SAFETY: By the contract of this op `qp` is NEW, so that this pointer is set.
            let recv_cq = unsafe { (*qp).recv_cq };
            // SAFETY: By NEW and ARGUMENTS the domains are `NULL` or STARTED, and live until the QP
            // is destroyed.
            let home = unsafe { Home::find(pd, &attr) }?;
            for cq in [send_cq, recv_cq] {
                if !cq.is_null() {
                    // SAFETY: By NEW the queue is STARTED, and it outlives the QP.
                    unsafe { Cq::<D>::from_raw(cq) }.set_in_use();
                }
            }
            let data = D::Qp::create(&home, &attr, &caller);
            // SAFETY: By the contract of this op `qp` is NEW, and stays so until the draft is
            // started or dropped.
            unsafe { Self::build(qp, data) }?
                .start(&caller, |qp| D::Qp::start(qp, &mut attr, &caller))?;
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Only the core may call this op: `qp` must be STARTED, and ARGUMENTS must hold.
    unsafe extern "C" fn op_modify(
        qp: *mut bindings::ib_qp,
        attr: *mut bindings::ib_qp_attr,
        mask: c_int,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By ARGUMENTS `udata` is `NULL` or valid.
            unsafe { no_udata(udata) }?;
            // CAST: The mask consists of bit flags.
            let mask = QpAttrMask::from_raw(mask as u32);
            // SAFETY: By ARGUMENTS `attr` is valid, and the attributes that the mask names are
            // initialized.
            let attr = unsafe { QpAttr::masked(attr, mask) };
            // SAFETY: By the contract of this op `qp` is STARTED, and it stays alive during the
            // call.
            D::Qp::modify(unsafe { Self::from_raw(qp) }, &attr, mask)?;
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Only the core may call this op: `qp` must be STARTED, and ARGUMENTS must hold.
    unsafe extern "C" fn op_query(
        qp: *mut bindings::ib_qp,
        attr: *mut bindings::ib_qp_attr,
        mask: c_int,
        init: *mut bindings::ib_qp_init_attr,
    ) -> c_int {
        from_result(|| {
            // CAST: The mask consists of bit flags.
            let mask = QpAttrMask::from_raw(mask as u32);
            // Some kernel users pass structs that they have not cleared.
            //
            // SAFETY: By ARGUMENTS `attr` is valid for writes, and all zeroes are a valid value of
            // it.
            unsafe { attr.write_bytes(0, 1) };
            // SAFETY: By ARGUMENTS `init` is valid for writes, and all zeroes are a valid value of
            // it.
            unsafe { init.write_bytes(0, 1) };
            // SAFETY: By ARGUMENTS `attr` is the caller's alone, and it is initialized above.
            // `QpAttr` is `repr(transparent)`.
            let attr = unsafe { &mut *attr.cast() };
            // SAFETY: By ARGUMENTS `init` is the caller's alone, and it is initialized above.
            let init = unsafe { &mut *init };
            // SAFETY: By the contract of this op `qp` is STARTED, so the core has set this field.
            init.event_handler = unsafe { (*qp).registered_event_handler };
            // SAFETY: By the contract of this op `qp` is STARTED, so the core has set this field.
            init.qp_context = unsafe { (*qp).qp_context };
            // SAFETY: By the contract of this op `qp` is STARTED, so the core has set this field.
            init.send_cq = unsafe { (*qp).send_cq };
            // SAFETY: By the contract of this op `qp` is STARTED, so the core has set this field.
            init.recv_cq = unsafe { (*qp).recv_cq };
            // SAFETY: By the contract of this op `qp` is STARTED, so the core has set this field.
            init.srq = unsafe { (*qp).srq };
            // SAFETY: By the contract of this op `qp` is STARTED, so the core has set this field.
            init.qp_type = unsafe { (*qp).qp_type };
            // SAFETY: By the contract of this op `qp` is STARTED, and it stays alive during the
            // call.
            let qp = unsafe { Self::from_raw(qp) };
            D::Qp::query(qp, attr, mask, QpInitReply::from_mut(init))?;
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Only the core may call this op: `qp` must be STARTED, and ARGUMENTS must hold.
    unsafe extern "C" fn op_attach_mcast(
        qp: *mut bindings::ib_qp,
        group: *mut bindings::ib_gid,
        lid: u16,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the contract of this op `qp` is STARTED, and it stays alive during the
            // call.
            let qp = unsafe { Self::from_raw(qp) };
            // SAFETY: By ARGUMENTS `group` is valid during the call.
            let group = unsafe { &*group };
            // SAFETY: Any 16 bytes are a GID.
            let group = unsafe { *group.raw };
            D::Qp::attach_mcast(qp, &group, lid)?;
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Only the core may call this op: `qp` must be STARTED, and ARGUMENTS must hold.
    unsafe extern "C" fn op_detach_mcast(
        qp: *mut bindings::ib_qp,
        group: *mut bindings::ib_gid,
        lid: u16,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the contract of this op `qp` is STARTED, and it stays alive during the
            // call.
            let qp = unsafe { Self::from_raw(qp) };
            // SAFETY: By ARGUMENTS `group` is valid during the call.
            let group = unsafe { &*group };
            // SAFETY: Any 16 bytes are a GID.
            let group = unsafe { *group.raw };
            D::Qp::detach_mcast(qp, &group, lid)?;
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Only the core may call this op: `qp` must be STARTED, and ARGUMENTS must hold, with `wr` a
    /// list of requests for this QP.
    unsafe extern "C" fn op_post_send(
        qp: *mut bindings::ib_qp,
        wr: *const bindings::ib_send_wr,
        bad: *mut *const bindings::ib_send_wr,
    ) -> c_int {
        // SAFETY: By the contract of this op `qp` is STARTED, and it stays alive during the call.
        let qp = unsafe { Self::from_raw(qp) };
        // SAFETY: By ARGUMENTS `wr` is a list of requests for this QP, valid during the call.
        let wrs = unsafe { SendWrs::new(wr, qp.qp_type()) };
        let of_process = qp.is_of_process();
        // SAFETY: By ARGUMENTS `bad` is valid for writes.
        unsafe { post(of_process, wrs, bad, |wrs| D::Qp::post_send(qp, wrs)) }
    }

    /// # Safety
    ///
    /// Only the core may call this op: `qp` must be STARTED, and ARGUMENTS must hold, with `wr` a
    /// list of receive requests.
    unsafe extern "C" fn op_post_recv(
        qp: *mut bindings::ib_qp,
        wr: *const bindings::ib_recv_wr,
        bad: *mut *const bindings::ib_recv_wr,
    ) -> c_int {
        // SAFETY: By the contract of this op `qp` is STARTED, and it stays alive during the call.
        let qp = unsafe { Self::from_raw(qp) };
        // SAFETY: By ARGUMENTS `wr` is a list of receive requests, valid during the call.
        let wrs = unsafe { RecvWrs::new(wr) };
        let of_process = qp.is_of_process();
        // SAFETY: By ARGUMENTS `bad` is valid for writes.
        unsafe { post(of_process, wrs, bad, |wrs| D::Qp::post_recv(qp, wrs)) }
    }
}
