// SPDX-License-Identifier: GPL-2.0

//! Queue pairs: their data and their life. The module `create` creates them, `attr` handles
//! attributes and states, `groups` multicast groups, and `post` the work requests of kernel users.

mod attr;
mod create;
mod groups;
mod post;

use super::{
    cq,
    wq::{
        PostedRequest,
        QueueSide,
        WorkQueue, //
    },
    Verbena,
    VerbsDevice, //
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
    doorbell::DoorbellSlot,
    eq::AffiliatedObject,
    ring::DmaRing, //
};
use base::{
    dma::Payer,
    errno::eopnotsupp,
    share::{
        Part,
        Supply, //
    },
    sync::IrqLock, //
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

/// QPNs of the subnet management interface (SMI) and the general services interface (GSI).
const SMI_QPN: u32 = cmd::QpType::Smi as u32;
const GSI_QPN: u32 = cmd::QpType::Gsi as u32;

/// A QPN, which is freed when it is dropped.
struct Qpn {
    vdev: Arc<VerbsDevice>,
    qpn: u32,
    _part: Option<Part>,
    /// Share in the XRC targets, for a queue pair that is one.
    _target: Option<Part>,
}

impl Qpn {
    fn new(vdev: &Arc<VerbsDevice>, qp_type: QpType, payer: Payer) -> Result<Self> {
        let ids = &vdev.info()?.ids;
        // The kernel creates an XRC target, but for the current process, which pays for it.
        let (payer, target) = match qp_type {
            QpType::XrcTgt => {
                let payer = Payer::Process;
                (payer, Some(Supply::take(&ids.targets, payer)?))
            }
            _ => (payer, None),
        };
        let (qpn, part) = match qp_type {
            QpType::Smi => (SMI_QPN, None),
            QpType::Gsi => (GSI_QPN, None),
            _ => {
                let (qpn, part) = ids.qpns.alloc(payer)?;
                (qpn, Some(part))
            }
        };
        Ok(Self {
            vdev: vdev.clone(),
            qpn,
            _part: part,
            _target: target,
        })
    }
}

impl Drop for Qpn {
    fn drop(&mut self) {
        if !matches!(self.qpn, SMI_QPN | GSI_QPN) {
            if let Ok(info) = self.vdev.info() {
                info.ids.qpns.free(self.qpn);
            }
        }
    }
}

/// Mappings of the rings into a process.
struct RingMappings {
    sq: Entry,
    rq: Option<Entry>,
}

/// Driver's data of a queue pair.
#[pin_data]
pub(crate) struct QpData {
    vdev: Arc<VerbsDevice>,
    number: Qpn,
    /// Ring of the send queue. An XRC target has none.
    sq: Option<Lent<DmaRing>>,
    /// Ring of the receive queue. Queue pairs with an SRQ and those of XRC have none.
    rq: Option<Lent<DmaRing>>,
    slot: DoorbellSlot,
    mappings: Option<RingMappings>,
    request: CreateQp,
    cap: QpCap,
    sig_type: SigType,
    datagram: bool,
    /// True if each send names the index of its P_Key, as those of the GSI on InfiniBand do.
    sends_pkey_index: bool,
    /// Held while the queue pair moves from state to state. It is not held while the driver waits
    /// for events, whose handlers may move the queue pair, too.
    #[pin]
    state_lock: Mutex<()>,
    /// State in which the verbs left the queue pair. The device's own state may be ERR by now. The
    /// state is written with both queues locked. So a thread that holds the lock of one queue and
    /// may post in the present state does so before the next move.
    state: Atomic<u32>,
    /// True if a verb has moved the queue pair from state to state.
    was_modified: Atomic<bool>,
    /// True if one of its CQs has lost a completion. The driver flushes the requests that complete
    /// there.
    cq_failed: Atomic<bool>,
    #[pin]
    groups: Mutex<KVec<groups::McastGroup>>,
    /// True if LAST_WQE_REACHED was reported since the queue pair left RESET.
    last_wqe_reached: Atomic<bool>,
    qkey: Atomic<u32>,
    #[pin]
    send: IrqLock<WorkQueue>,
    #[pin]
    recv: IrqLock<WorkQueue>,
}

impl QpData {
    /// Returns the number of the queue pair (QPN).
    pub(crate) fn qpn(&self) -> u32 {
        self.number.qpn
    }

    /// True if the queue pair receives datagrams.
    pub(crate) fn is_datagram(&self) -> bool {
        self.datagram
    }

    fn queue(&self, side: QueueSide) -> &IrqLock<WorkQueue> {
        match side {
            QueueSide::Send => &self.send,
            QueueSide::Recv => &self.recv,
        }
    }

    /// Takes the request at `index`, which has completed.
    pub(crate) fn complete(&self, side: QueueSide, index: u32) -> Option<PostedRequest> {
        self.queue(side).lock().complete(index)
    }

    /// Takes the oldest request, to flush it. Before the `end` of the device's life this is
    /// possible only in ERR, where the device is done with the request's memory.
    pub(crate) fn flush_one(&self, side: QueueSide, end: bool) -> Option<PostedRequest> {
        let mut queue = self.queue(side).lock();
        (end || self.has_failed()).then(|| queue.flush()).flatten()
    }

    /// True if a request is outstanding on this side.
    pub(crate) fn has_outstanding(&self, side: QueueSide) -> bool {
        !self.queue(side).lock().is_empty()
    }

    fn lent(&self) -> [&dyn Borrowed; 2] {
        [&self.sq, &self.rq]
    }

    /// Returns the present context. The device publishes one on request and when the state changes.
    /// The context of a dead device is the last one that it published.
    fn context(&self) -> Result<QpContext> {
        let _ = self.vdev.cmdq.exec(&QueryQp {
            id: Le32::new(self.qpn()),
            ..Default::default()
        });
        self.vdev.tables.read(self.qpn())
    }

    /// Notes that one of the queue pair's CQs is in error.
    pub(crate) fn note_cq_failure(&self) {
        self.cq_failed.store(true, Relaxed);
    }

    /// True if the driver flushes requests of this queue pair, on one side or both.
    fn is_flushing(&self) -> bool {
        self.vdev.health.has_ended() || self.cq_failed.load(Relaxed)
    }

    /// True if the verbs have moved the queue pair to ERR.
    pub(crate) fn has_failed(&self) -> bool {
        self.is_in(QpState::Err)
    }

    fn verbs_state(&self) -> u32 {
        self.state.load(Relaxed)
    }

    fn is_in(&self, state: QpState) -> bool {
        self.verbs_state() == state.as_raw()
    }

    /// Sets the state to which the verbs have moved the queue pair. The functions that post read
    /// the state under the same locks.
    fn publish_state(&self, state: QpState) {
        let _send = self.send.lock();
        let _recv = self.recv.lock();
        self.state.store(state.as_raw(), Relaxed);
    }

    /// Removes completions of a queue pair for which no more come. A receive that the queue pair
    /// had taken from its SRQ and will not complete is returned to the SRQ.
    fn clean(qp: &Qp<Verbena>, quiesced: Option<&Quiesced>, destroy: bool) {
        if qp.is_user() {
            return;
        }
        cq::clean(qp, destroy);
        let held = quiesced.filter(|quiesced| quiesced.recv_held.get() != 0);
        if let (Some(srq), Some(quiesced)) = (qp.srq(), held) {
            if srq.complete(quiesced.recv_wr_id.get()).is_none() {
                qp.vdev
                    .distrust("a queue pair held a receive that is not outstanding in the SRQ");
            }
        }
    }

    /// Reports an event of the queue pair, from the device or from
    /// [`flush_event`](Self::flush_event). May sleep.
    pub(crate) fn report(qp: &Qp<Verbena>, event: QpEvent) {
        // A queue pair that was never moved has no events. The core may still be creating an XRC
        // target (`create_xrc_qp_user()`), and cannot handle an event of it yet.
        if !qp.was_modified.load(Acquire) {
            return qp
                .vdev
                .complain("an event of a queue pair that was never modified");
        }
        // A user that waits for this event waits once, and may count the events.
        let is_repeated = event == QpEvent::LastWqeReached && qp.last_wqe_reached.xchg(true, Full);
        if !is_repeated {
            qp.event(event);
        }
    }

    /// After the end of the device's life, reports LAST_WQE_REACHED for a kernel queue pair on an
    /// SRQ, if the device has not done so, because a drain waits for it. May sleep.
    pub(crate) fn flush_event(qp: &Qp<Verbena>) {
        let has_ended = qp.vdev.health.has_ended();
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
        let vdev = &qp.vdev;
        vdev.tables.ensure::<QpContext>(&vdev.cmdq, qp.qpn())?;
        vdev.qps.insert(qp.qpn(), qp)?;
        qp.set_qp_num(qp.qpn());
        vdev.cmdq.give(|to| qp.command(to), &qp.lent())?;
        attr.set_cap(&qp.cap);
        let finish = || {
            if !qp.is_user() {
                for (cq, side) in [
                    (qp.send_cq(), QueueSide::Send),
                    (qp.recv_cq(), QueueSide::Recv),
                ] {
                    if let Some(cq) = cq {
                        cq.attach(qp.qpn(), side)?;
                    }
                }
            }
            caller.user().map_or(Ok(()), |user| qp.respond(user))
        };
        finish().inspect_err(|_| {
            let _ = Self::destroy(qp);
        })
    }

    fn modify(qp: &Qp<Verbena>, attr: &QpAttr, mask: QpAttrMask) -> Result {
        // Programs see a new MTU of the net device at once. If the command fails, the device is
        // dead, which `move_to` reports.
        if let Some(port) = qp.device().ethernet() {
            let _ = port.report_state();
        }
        let quiesced = {
            let _moving = qp.state_lock.lock();
            Self::move_to(qp, attr, mask)?
        };
        if let Some(quiesced) = quiesced {
            qp.vdev
                .drain_events(AffiliatedObject::Qp(qp.qpn()), &quiesced);
        }
        if qp.is_flushing() {
            qp.vdev.health.flush();
        }
        Ok(())
    }

    fn query(
        qp: &Qp<Verbena>,
        attr: &mut QpAttr,
        _mask: QpAttrMask,
        init: &mut QpInitReply,
    ) -> Result {
        Self::query_attributes(qp, attr, init)
    }

    fn destroy(qp: &Qp<Verbena>) -> Result {
        let vdev = &qp.vdev;
        let request = DestroyQp {
            id: Le32::new(qp.qpn()),
            ..Default::default()
        };
        let quiesced = vdev.cmdq.take_back(&request, &qp.lent());
        Self::clean(qp, quiesced.as_ref(), true);
        if let Some(quiesced) = &quiesced {
            vdev.drain_events(AffiliatedObject::Qp(qp.qpn()), quiesced);
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

    fn attach_mcast(qp: &Qp<Verbena>, group: &[u8; 16], lid: u16) -> Result {
        if !qp.vdev.has(cmd::FEATURE_MCAST) {
            return Err(eopnotsupp());
        }
        qp.join(group, lid)
    }

    fn detach_mcast(qp: &Qp<Verbena>, group: &[u8; 16], lid: u16) -> Result {
        qp.leave(group, lid)
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
