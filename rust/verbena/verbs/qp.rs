// SPDX-License-Identifier: GPL-2.0

//! Queue pairs: what they are made of, and their life. How one is made is in `create`,
//! attributes and states are in `attr`, multicast groups in `groups`, work requests of kernel users in
//! `post`.

mod attr;
mod create;
mod groups;
mod post;

use super::{
    cq,
    wq::{
        Request,
        WorkQueue, //
    },
    Live,
    Verbena, //
};
use crate::{
    abi::{
        cmd::{
            self,
            CreateQp,
            DestroyQp,
            QueryQp,
            Quiesced, //
        },
        ctx::QpContext,
        Le32, //
    },
    cmdq::lent::{
        Borrowed,
        Lent, //
    },
    doorbell::Slot,
    eq::Object,
    ring::Ring, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Full,
            Relaxed, //
        },
        Arc,
        Mutex, //
    },
};
use rdma::{
    base::{
        dma::Payer,
        errno::eopnotsupp,
        share::{
            Part,
            Supply, //
        },
        sync::IrqLock, //
    },
    enums::{
        QpAttrMask,
        QpEvent,
        QpState,
        QpType,
        SigType, //
    },
    mmap::Entry,
    qp::{
        Home,
        Qp,
        QueuePair, //
    },
    qp_attr::{
        QpAttr,
        QpCap,
        QpInitAttr,
        QpInitReply, //
    },
    restrack::ResEntry,
    udata::Caller,
    wr::{
        RecvWrs,
        SendWrs, //
    }, //
};
use zerocopy::IntoBytes;

/// A side of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    /// The send queue.
    Send,
    /// The receive queue.
    Recv,
}

/// The QPN of the general services interface.
const GSI_QPN: u32 = cmd::QpType::Gsi as u32;

/// A QPN, given back when dropped.
struct Number {
    live: Arc<Live>,
    qpn: u32,
    _part: Option<Part>,
    /// Of a target of extended connections.
    _target: Option<Part>,
}

impl Number {
    fn new(live: &Arc<Live>, qp_type: QpType, payer: Payer) -> Result<Self> {
        let ids = &live.known()?.ids;
        // The kernel makes a target, but for the current process.
        let (payer, target) = match qp_type {
            QpType::XrcTgt => {
                let payer = Payer::Process;
                (payer, Some(Supply::take(&ids.targets, payer)?))
            }
            _ => (payer, None),
        };
        let (qpn, part) = match qp_type {
            QpType::Gsi => (GSI_QPN, None),
            _ => {
                let (qpn, part) = ids.qpns.alloc(payer)?;
                (qpn, Some(part))
            }
        };
        Ok(Self {
            live: live.clone(),
            qpn,
            _part: part,
            _target: target,
        })
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        if self.qpn != GSI_QPN {
            if let Ok(known) = self.live.known() {
                known.ids.qpns.free(self.qpn);
            }
        }
    }
}

/// How a process maps the rings.
struct Mappings {
    sq: Entry,
    rq: Option<Entry>,
}

/// Data of a queue pair.
#[pin_data]
pub(crate) struct QpData {
    live: Arc<Live>,
    number: Number,
    /// None of a target of extended connections.
    sq: Option<Lent<Ring>>,
    /// None when receives come from an SRQ, or are not its own.
    rq: Option<Lent<Ring>>,
    slot: Slot,
    mappings: Option<Mappings>,
    request: CreateQp,
    cap: QpCap,
    sig_type: SigType,
    datagram: bool,
    /// One move from state to state at a time. Not held while events are waited for, whose handlers
    /// may move the queue pair too.
    #[pin]
    moving: Mutex<()>,
    /// The state as the verbs left it; the device's own may be ERR by now. Written with both queues
    /// locked, so that who has locked one of them and may post there does so before the next move.
    state: Atomic<u32>,
    /// Somebody has moved it from state to state.
    moved: Atomic<bool>,
    /// What completes in one of its CQs, software flushes.
    lossy: Atomic<bool>,
    #[pin]
    groups: Mutex<KVec<groups::Group>>,
    /// LAST_WQE_REACHED was reported since the queue pair left RESET.
    last_wqe_reached: Atomic<bool>,
    qkey: Atomic<u32>,
    #[pin]
    send: IrqLock<WorkQueue>,
    #[pin]
    recv: IrqLock<WorkQueue>,
}

impl QpData {
    /// QPN.
    pub(crate) fn qpn(&self) -> u32 {
        self.number.qpn
    }

    /// Whether receives are datagrams.
    pub(crate) fn is_datagram(&self) -> bool {
        self.datagram
    }

    fn queue(&self, side: Side) -> &IrqLock<WorkQueue> {
        match side {
            Side::Send => &self.send,
            Side::Recv => &self.recv,
        }
    }

    /// Takes the request at `index`.
    pub(crate) fn complete(&self, side: Side, index: u32) -> Option<Request> {
        self.queue(side).lock().complete(index)
    }

    /// Takes the oldest request, to flush it. Before the `end` of the device only in ERR, where it is done
    /// with the request's memory.
    pub(crate) fn flush_one(&self, side: Side, end: bool) -> Option<Request> {
        let mut queue = self.queue(side).lock();
        (end || self.has_failed()).then(|| queue.flush()).flatten()
    }

    /// Whether a request is outstanding.
    pub(crate) fn has_outstanding(&self, side: Side) -> bool {
        !self.queue(side).lock().is_empty()
    }

    fn lent(&self) -> [&dyn Borrowed; 2] {
        [&self.sq, &self.rq]
    }

    /// The context as it is now: the device publishes one when it is asked, and when its state changes. Of a dead
    /// device it is the last one.
    fn context(&self) -> Result<QpContext> {
        let _ = self.live.cmdq.exec(&QueryQp {
            id: Le32::new(self.qpn()),
            ..Default::default()
        });
        self.live.tables.read(self.qpn())
    }

    /// One of its CQs has died.
    pub(crate) fn note_lossy(&self) {
        self.lossy.store(true, Relaxed);
    }

    /// Whether software flushes what is outstanding, or some of it.
    fn flushes(&self) -> bool {
        self.live.health.has_ended() || self.lossy.load(Relaxed)
    }

    /// Whether the verbs have moved it to ERR.
    pub(crate) fn has_failed(&self) -> bool {
        self.is_in(QpState::Err)
    }

    fn verbs_state(&self) -> u32 {
        self.state.load(Relaxed)
    }

    fn is_in(&self, state: QpState) -> bool {
        self.verbs_state() == state.as_raw()
    }

    /// The verbs have moved the queue pair. Who posts has looked at the state under the same locks.
    fn publish_state(&self, state: QpState) {
        let _send = self.send.lock();
        let _recv = self.recv.lock();
        self.state.store(state.as_raw(), Relaxed);
    }

    /// Nothing of the queue pair completes any more: takes what has completed out of the way. What it
    /// had taken from its SRQ and will not complete is the SRQ's again.
    fn clean(qp: &Qp<Verbena>, quiesced: Option<&Quiesced>, destroy: bool) {
        if qp.is_user() {
            return;
        }
        cq::clean(qp, destroy);
        let held = quiesced.filter(|quiesced| quiesced.recv_held.get() != 0);
        if let (Some(srq), Some(quiesced)) = (qp.srq(), held) {
            if srq.complete(quiesced.recv_wr_id.get()).is_none() {
                qp.live
                    .distrust("a queue pair held a receive that is not outstanding");
            }
        }
    }

    /// The device reports an event of the queue pair, or [`flush_event`](Self::flush_event) does.
    /// May sleep.
    pub(crate) fn report(qp: &Qp<Verbena>, event: QpEvent) {
        // Until then there is none, and the core, which may still be making a target of extended
        // connections (`create_xrc_qp_user()`), cannot take one.
        if !qp.moved.load(Acquire) {
            return qp
                .live
                .complain("an event of a queue pair that was never used");
        }
        // Who waits for it does not wait twice, and may count.
        let again = event == QpEvent::LastWqeReached && qp.last_wqe_reached.xchg(true, Full);
        if !again {
            qp.event(event);
        }
    }

    /// The device is dead, or not trusted any more: what a queue pair in ERR has taken from its SRQ is
    /// reported to be all, if the device has not done so. A drain waits for it. May sleep.
    pub(crate) fn flush_event(qp: &Qp<Verbena>) {
        let has_ended = qp.live.health.has_ended();
        if has_ended && !qp.is_user() && qp.srq().is_some() && !qp.is_in(QpState::Reset) {
            Self::report(qp, QpEvent::LastWqeReached);
        }
    }
}

#[vtable]
impl QueuePair<Verbena> for QpData {
    fn create(
        home: &Home<'_, Verbena>,
        attr: &QpInitAttr<'_, Verbena>,
        caller: &Caller<'_, Verbena>,
    ) -> impl PinInit<Self, Error> {
        pin_init::pin_init_scope(move || Self::new(home, attr, caller))
    }

    fn start(
        qp: &Qp<Verbena>,
        attr: &mut QpInitAttr<'_, Verbena>,
        caller: &Caller<'_, Verbena>,
    ) -> Result {
        let live = &qp.live;
        live.tables.ensure::<QpContext>(&live.cmdq, qp.qpn())?;
        live.qps.insert(qp.qpn(), qp)?;
        qp.set_qp_num(qp.qpn());
        live.cmdq.give(|to| qp.command(to), &qp.lent())?;
        attr.set_cap(&qp.cap);
        let known = || {
            if !qp.is_user() {
                for (cq, side) in [(qp.send_cq(), Side::Send), (qp.recv_cq(), Side::Recv)] {
                    if let Some(cq) = cq {
                        cq.attach(qp.qpn(), side)?;
                    }
                }
            }
            caller.user().map_or(Ok(()), |user| qp.respond(user))
        };
        known().inspect_err(|_| {
            let _ = Self::destroy(qp);
        })
    }

    fn modify(qp: &Qp<Verbena>, attr: &QpAttr, mask: QpAttrMask) -> Result {
        // Programs see a new MTU of the net device at once. If it cannot be told, the device is dead, and
        // says so below.
        let _ = qp.device().port.tell();
        let quiesced = {
            let _moving = qp.moving.lock();
            Self::move_to(qp, attr, mask)?
        };
        if let Some(quiesced) = quiesced {
            qp.live.drain_events(Object::Qp(qp.qpn()), &quiesced);
        }
        if qp.flushes() {
            qp.live.health.flush();
        }
        Ok(())
    }

    fn query(
        qp: &Qp<Verbena>,
        attr: &mut QpAttr,
        _mask: QpAttrMask,
        init: &mut QpInitReply,
    ) -> Result {
        Self::tell(qp, attr, init)
    }

    fn destroy(qp: &Qp<Verbena>) -> Result {
        let live = &qp.live;
        let request = DestroyQp {
            id: Le32::new(qp.qpn()),
            ..Default::default()
        };
        let quiesced = live.cmdq.take_back(&request, &qp.lent());
        Self::clean(qp, quiesced.as_ref(), true);
        if let Some(quiesced) = &quiesced {
            live.drain_events(Object::Qp(qp.qpn()), quiesced);
        }
        qp.unlink();
        Ok(())
    }

    fn post_send(qp: &Qp<Verbena>, wrs: &mut SendWrs<'_, Verbena>) -> Result {
        qp.post_sends(wrs)
    }

    fn post_recv(qp: &Qp<Verbena>, wrs: &mut RecvWrs<'_>) -> Result {
        qp.post_recvs(wrs)
    }

    fn attach_mcast(qp: &Qp<Verbena>, group: &[u8; 16], _lid: u16) -> Result {
        if !qp.live.has(cmd::FEATURE_MCAST) {
            return Err(eopnotsupp());
        }
        qp.join(group)
    }

    fn detach_mcast(qp: &Qp<Verbena>, group: &[u8; 16], _lid: u16) -> Result {
        qp.leave(group)
    }

    fn fill_res(qp: &Qp<Verbena>, entry: &mut ResEntry<'_>) -> Result {
        let context = qp.context()?;
        entry.put_u32(c"send_cqn", context.send_cqn.get())?;
        entry.put_u32(c"recv_cqn", context.recv_cqn.get())?;
        entry.put_u32(c"sq_pi", context.sq_pi.get())?;
        entry.put_u32(c"sq_ci", context.sq_ci.get())?;
        entry.put_u32(c"rq_pi", context.rq_pi.get())?;
        entry.put_u32(c"rq_ci", context.rq_ci.get())?;
        entry.put_u32_hex(c"syndrome", context.syndrome.get())
    }

    fn fill_res_raw(qp: &Qp<Verbena>, put: &mut dyn FnMut(&[u8]) -> Result) -> Result {
        put(qp.context()?.as_bytes())
    }
}
