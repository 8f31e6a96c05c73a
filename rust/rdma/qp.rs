// SPDX-License-Identifier: GPL-2.0

//! Queue pairs.
//!
//! C: `struct ib_qp`; ops `create_qp`, `modify_qp`, `query_qp`, `destroy_qp`, `post_send`,
//! `post_recv`, `attach_mcast`, `detach_mcast`. `drain_sq` and `drain_rq` are left to the core's generic code.

use crate::{
    base::errno::eopnotsupp,
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

/// A driver's data of a queue pair. See the [crate](crate) for the order of calls.
#[vtable]
pub trait QueuePair<D: Operations>: Sized + Send + Sync {
    /// Builds the data.
    fn create(
        home: &Home<'_, D>,
        attr: &QpInitAttr<'_, D>,
        caller: &Caller<'_, D>,
    ) -> impl PinInit<Self, Error>;

    /// Makes the queue pair known. Must call [`Qp::set_qp_num`], and [`QpInitAttr::set_cap`] with
    /// the real sizes.
    fn start(qp: &Qp<D>, attr: &mut QpInitAttr<'_, D>, caller: &Caller<'_, D>) -> Result;

    /// Modifies the queue pair. Illegal transitions and masks are the driver's to refuse, with
    /// [`modify_is_ok`](crate::qp_attr::modify_is_ok).
    fn modify(qp: &Qp<D>, attr: &QpAttr, mask: QpAttrMask) -> Result;

    /// Tells the attributes; `mask` says which the caller needs at least.
    fn query(qp: &Qp<D>, attr: &mut QpAttr, mask: QpAttrMask, init: &mut QpInitReply) -> Result;

    /// Destroys the queue pair: no event, no entry in a completion queue any more.
    fn destroy(qp: &Qp<D>) -> Result;

    /// Posts work requests until `wrs` is empty or one fails. Any context. When this returns an
    /// error, the last request taken from `wrs` is the bad one.
    fn post_send(qp: &Qp<D>, wrs: &mut SendWrs<'_, D>) -> Result;

    /// As [`post_send`](Self::post_send), for receives.
    fn post_recv(qp: &Qp<D>, wrs: &mut RecvWrs<'_>) -> Result;

    /// Attaches the queue pair to a multicast group: a GID as on the wire, and on InfiniBand a LID.
    fn attach_mcast(_qp: &Qp<D>, _group: &[u8; 16], _lid: u16) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Detaches it again. If it fails, the core does not destroy the queue pair.
    fn detach_mcast(_qp: &Qp<D>, _group: &[u8; 16], _lid: u16) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Describes the queue pair to `rdma resource`.
    fn fill_res(_qp: &Qp<D>, _entry: &mut ResEntry<'_>) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// The queue pair's raw context for `rdma resource -r`.
    fn fill_res_raw(_qp: &Qp<D>, _put: &mut dyn FnMut(&[u8]) -> Result) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }
}

/// A queue pair.
pub type Qp<D> = Managed<QpObject<D>>;

/// The kind of object that a [`Qp`] is.
pub struct QpObject<D>(PhantomData<D>);

// SAFETY: The core sets `device` and `uobject` before `create`.
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

/// What a queue pair has besides the driver's data.
#[pin_data]
pub struct QpExtra {
    /// Held by who binds the queue pair to a counter, or takes it away from one. The core has locked that counter, and another one
    /// may be bound at the same time.
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

/// Where a queue pair is made.
pub enum Home<'a, D: Operations> {
    /// In a protection domain.
    Pd(&'a Pd<D>),
    /// A target of extended connections: in an XRC domain.
    Xrcd(&'a Xrcd<D>),
}

impl<'a, D: Operations> Home<'a, D> {
    /// # Safety
    ///
    /// `pd` and the XRC domain of `attr` must be STARTED or `NULL`, and live for `'a`.
    unsafe fn find(pd: *mut bindings::ib_pd, attr: &QpInitAttr<'_, D>) -> Result<Self> {
        let xrcd = attr.xrcd();
        match attr.qp_type()? {
            // SAFETY: The caller says so.
            QpType::XrcTgt if !xrcd.is_null() => Ok(Self::Xrcd(unsafe { Xrcd::from_raw(xrcd) })),
            QpType::XrcTgt => Err(EINVAL),
            // SAFETY: The caller says so.
            _ if !pd.is_null() => Ok(Self::Pd(unsafe { Pd::from_raw(pd) })),
            _ => Err(eopnotsupp()),
        }
    }

    /// The device.
    pub fn device(&self) -> &Device<D> {
        match self {
            Self::Pd(pd) => pd.device(),
            Self::Xrcd(xrcd) => xrcd.device(),
        }
    }
}

impl<D: Operations> Qp<D> {
    /// Its type.
    pub fn qp_type(&self) -> Option<QpType> {
        // SAFETY: Set by the core before `create`, constant.
        QpType::from_raw(unsafe { (*self.as_raw()).qp_type })
    }

    /// Whether a process posts to it, by itself. The core lets a process post by the kernel to the target of
    /// extended connections, which it takes for nobody's (drivers/infiniband/core/verbs.c, `create_xrc_qp_user`).
    pub fn is_of_process(&self) -> bool {
        self.is_user() || matches!(self.qp_type(), Some(QpType::XrcTgt))
    }

    /// Completion queue of the send queue.
    pub fn send_cq(&self) -> Option<&Cq<D>> {
        // SAFETY: Set by the core before `create`; it outlives the queue pair. The core clears it once, for the
        // target of extended connections, which has had none and is nobody's before `create_xrc_qp_user` ends.
        let cq = unsafe { (*self.as_raw()).send_cq };
        // SAFETY: As above.
        (!cq.is_null()).then(|| unsafe { Cq::from_raw(cq) })
    }

    /// Completion queue of the receive queue.
    pub fn recv_cq(&self) -> Option<&Cq<D>> {
        // SAFETY: As above.
        let cq = unsafe { (*self.as_raw()).recv_cq };
        // SAFETY: As above.
        (!cq.is_null()).then(|| unsafe { Cq::from_raw(cq) })
    }

    /// Shared receive queue.
    pub fn srq(&self) -> Option<&Srq<D>> {
        // SAFETY: As above.
        let srq = unsafe { (*self.as_raw()).srq };
        // SAFETY: As above.
        (!srq.is_null()).then(|| unsafe { Srq::from_raw(srq) })
    }

    /// QPN.
    pub fn qp_num(&self) -> u32 {
        // SAFETY: A plain integer, accessed by volatile accesses on our side.
        unsafe { (&raw const (*self.as_raw()).qp_num).read_volatile() }
    }

    /// Tells the core the QPN.
    pub fn set_qp_num(&self, qpn: u32) {
        // SAFETY: A plain integer, read by the core when `create` has returned.
        unsafe { (&raw mut (*self.as_raw()).qp_num).write_volatile(qpn) };
    }

    /// Reports an event. Process context: the owner's handler may sleep.
    pub fn event(&self, event: QpEvent) {
        let qp = self.as_raw();
        let mut event = bindings::ib_event {
            event: event.as_raw(),
            ..Default::default()
        };
        event.element.qp = ManuallyDrop::new(qp);
        // SAFETY: The queue pair's own, set before `create`.
        unsafe { self.report(event, (*qp).event_handler, (*qp).qp_context) };
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
    /// For the core: NEW, ARGUMENTS.
    unsafe extern "C" fn op_create(
        qp: *mut bindings::ib_qp,
        attr: *mut bindings::ib_qp_init_attr,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: NEW, ARGUMENTS.
            let (caller, mut attr, pd, cqs) = unsafe {
                (
                    Self::caller(qp, udata)?,
                    QpInitAttr::<D>::from_raw(&mut *attr),
                    (*qp).pd,
                    [(*qp).send_cq, (*qp).recv_cq],
                )
            };
            // SAFETY: NEW: STARTED themselves.
            let home = unsafe { Home::find(pd, &attr) }?;
            for cq in cqs {
                if !cq.is_null() {
                    // SAFETY: NEW: STARTED itself.
                    unsafe { Cq::<D>::from_raw(cq) }.set_in_use();
                }
            }
            let data = D::Qp::create(&home, &attr, &caller);
            // SAFETY: NEW.
            unsafe { Self::build(qp, data) }?
                .start(&caller, |qp| D::Qp::start(qp, &mut attr, &caller))?;
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// For the core: STARTED, ARGUMENTS.
    unsafe extern "C" fn op_modify(
        qp: *mut bindings::ib_qp,
        attr: *mut bindings::ib_qp_attr,
        mask: c_int,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: ARGUMENTS.
            unsafe { no_udata(udata) }?;
            // CAST: Bit flags.
            let mask = QpAttrMask::from_raw(mask as u32);
            // SAFETY: ARGUMENTS: what the mask says is initialized.
            let attr = unsafe { QpAttr::masked(attr, mask) };
            // SAFETY: STARTED.
            D::Qp::modify(unsafe { Self::from_raw(qp) }, &attr, mask)?;
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// For the core: STARTED, ARGUMENTS.
    unsafe extern "C" fn op_query(
        qp: *mut bindings::ib_qp,
        attr: *mut bindings::ib_qp_attr,
        mask: c_int,
        init: *mut bindings::ib_qp_init_attr,
    ) -> c_int {
        from_result(|| {
            // CAST: Bit flags.
            let mask = QpAttrMask::from_raw(mask as u32);
            // Some kernel users pass structs that they have not cleared.
            //
            // SAFETY: STARTED; ARGUMENTS: the caller's to fill; all zeroes are valid for both.
            unsafe {
                attr.write_bytes(0, 1);
                init.write_bytes(0, 1);
                (*init).event_handler = (*qp).registered_event_handler;
                (*init).qp_context = (*qp).qp_context;
                (*init).send_cq = (*qp).send_cq;
                (*init).recv_cq = (*qp).recv_cq;
                (*init).srq = (*qp).srq;
                (*init).qp_type = (*qp).qp_type;
            }
            // SAFETY: STARTED; both structs are initialized.
            unsafe {
                D::Qp::query(
                    Self::from_raw(qp),
                    &mut *attr.cast(),
                    mask,
                    &mut *init.cast(),
                )
            }?;
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// For the core: STARTED, ARGUMENTS.
    unsafe extern "C" fn op_attach_mcast(
        qp: *mut bindings::ib_qp,
        group: *mut bindings::ib_gid,
        lid: u16,
    ) -> c_int {
        from_result(|| {
            // SAFETY: STARTED, ARGUMENTS; any 16 bytes are a GID.
            let (qp, group) = unsafe { (Self::from_raw(qp), *(*group).raw) };
            D::Qp::attach_mcast(qp, &group, lid)?;
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// For the core: STARTED, ARGUMENTS.
    unsafe extern "C" fn op_detach_mcast(
        qp: *mut bindings::ib_qp,
        group: *mut bindings::ib_gid,
        lid: u16,
    ) -> c_int {
        from_result(|| {
            // SAFETY: STARTED, ARGUMENTS; any 16 bytes are a GID.
            let (qp, group) = unsafe { (Self::from_raw(qp), *(*group).raw) };
            D::Qp::detach_mcast(qp, &group, lid)?;
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// For the core: STARTED, ARGUMENTS: a list of requests for this queue pair.
    unsafe extern "C" fn op_post_send(
        qp: *mut bindings::ib_qp,
        wr: *const bindings::ib_send_wr,
        bad: *mut *const bindings::ib_send_wr,
    ) -> c_int {
        // SAFETY: STARTED, ARGUMENTS.
        unsafe {
            let qp = Self::from_raw(qp);
            let wrs = SendWrs::new(wr, qp.qp_type());
            post(qp.is_of_process(), wrs, bad, |wrs| {
                D::Qp::post_send(qp, wrs)
            })
        }
    }

    /// # Safety
    ///
    /// For the core: STARTED, ARGUMENTS: a list of requests.
    unsafe extern "C" fn op_post_recv(
        qp: *mut bindings::ib_qp,
        wr: *const bindings::ib_recv_wr,
        bad: *mut *const bindings::ib_recv_wr,
    ) -> c_int {
        // SAFETY: STARTED, ARGUMENTS.
        unsafe {
            let qp = Self::from_raw(qp);
            post(qp.is_of_process(), RecvWrs::new(wr), bad, |wrs| {
                D::Qp::post_recv(qp, wrs)
            })
        }
    }
}
