// SPDX-License-Identifier: GPL-2.0

//! Creation of a queue pair: its queues, their memory, and the messages about them to the device
//! and the process.

use super::{
    super::{
        cq,
        wq::WorkQueue,
        Verbena, //
    },
    QpData,
    Qpn,
    RingMappings, //
};
use crate::{
    abi::{
        cmd::{
            self,
            CreateQp, //
        },
        uverbs::CreateQpResp,
        wqe,
        Le16,
        Le32,
        Le64, //
    },
    cmdq::{
        lent::Lent,
        Lender, //
    },
    doorbell::SlotKind,
    ring::{
        entries,
        DmaRing, //
    }, //
};
use base::{
    errno::eopnotsupp,
    new_irq_lock, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::atomic::Atomic, //
};
use rdma::{
    enums::{
        QpState,
        QpType,
        SigType, //
    },
    mmap::Protection,
    qp::Home,
    qp_attr::{
        QpCap,
        QpInitAttr, //
    },
    udata::{
        Caller,
        User, //
    }, //
};

fn log_size(wanted: u32, most: u32) -> Result<u8> {
    // CAST: The logarithm of a 32-bit number is small.
    Ok(entries(wanted.max(1), most)?.trailing_zeros() as u8)
}

/// Returns the requested sizes of the queues that exist. Each of them has room for at least one
/// element of a scatter/gather list.
fn effective_cap(cap: QpCap, has_sends: bool, has_rq: bool) -> QpCap {
    let (sends, recvs) = (u32::from(has_sends), u32::from(has_rq));
    QpCap {
        max_send_wr: cap.max_send_wr * sends,
        max_send_sge: cap.max_send_sge.max(1) * sends,
        max_inline_data: cap.max_inline_data * sends,
        max_recv_wr: cap.max_recv_wr * recvs,
        max_recv_sge: cap.max_recv_sge.max(1) * recvs,
        max_rdma_ctxs: 0,
    }
}

impl QpData {
    pub(super) fn new(
        home: &Home<'_, Verbena>,
        attr: &QpInitAttr<'_, Verbena>,
        caller: &Caller<'_, Verbena>,
    ) -> Result<impl PinInit<Self, Error>> {
        let vdev = home.device().vdev.clone();
        let caps = &vdev.info()?.caps;
        let qp_type = attr.qp_type()?;
        let device_type = match qp_type {
            QpType::Gsi if caller.is_kernel() => cmd::QpType::Gsi,
            QpType::Rc => cmd::QpType::Rc,
            QpType::Uc if vdev.has(cmd::FEATURE_UC) => cmd::QpType::Uc,
            QpType::Ud if vdev.has(cmd::FEATURE_UD) => cmd::QpType::Ud,
            // The driver matches completions of kernel users by queue pair, and so does not offer
            // them XRC.
            QpType::XrcIni if vdev.has(cmd::FEATURE_XRC) && !caller.is_kernel() => {
                cmd::QpType::XrcIni
            }
            // The core creates the target for all processes that open it, so the target belongs to
            // the kernel.
            QpType::XrcTgt if vdev.has(cmd::FEATURE_XRC) => cmd::QpType::XrcTgt,
            _ => return Err(eopnotsupp()),
        };
        if attr.create_flags() != 0 {
            return Err(eopnotsupp());
        }
        let datagram = matches!(qp_type, QpType::Gsi | QpType::Ud);
        // An XRC target has no queues, and an XRC initiator has no receive queue.
        let has_sends = device_type != cmd::QpType::XrcTgt;
        let has_recvs = !matches!(qp_type, QpType::XrcIni | QpType::XrcTgt);
        let srq = attr.srq().filter(|_| has_recvs);
        // With an SRQ the sizes for receives are ignored (ibv_create_qp(3)).
        let has_rq = has_recvs && srq.is_none();
        let mut wanted = effective_cap(attr.cap(), has_sends, has_rq);
        if wanted.max_send_sge > caps.max_send_sge.get()
            || wanted.max_recv_sge > caps.max_recv_sge.get()
            || wanted.max_inline_data > caps.max_inline_data.get()
        {
            return Err(EINVAL);
        }
        let most = caps.max_qp_wr.get();
        let (log_sq_size, log_sq_stride) = if has_sends {
            (
                log_size(wanted.max_send_wr, most)?,
                wqe::log_sq_stride(datagram, wanted.max_send_sge, wanted.max_inline_data),
            )
        } else {
            (0, 0)
        };
        let (log_rq_size, log_rq_stride) = if has_rq {
            (
                log_size(wanted.max_recv_wr, most)?,
                wqe::log_rq_stride(wanted.max_recv_sge),
            )
        } else {
            (0, 0)
        };
        if log_sq_stride > wqe::LOG_SQ_STRIDE.1 || log_rq_stride > wqe::LOG_RQ_STRIDE.1 {
            return Err(EINVAL);
        }
        if has_sends {
            let room = wqe::inline_room(datagram, log_sq_stride);
            wanted.max_inline_data = room.min(caps.max_inline_data.get());
        }

        let number = Qpn::new(&vdev, qp_type, caller.payer())?;
        let ring = |log| {
            let ring = DmaRing::new(&vdev.dma, caller.payer(), 1usize << log)?;
            Ok::<_, Error>(Lent::new(ring, &vdev.health))
        };
        let sq = match has_sends {
            true => Some(ring(log_sq_size + log_sq_stride)?),
            false => None,
        };
        let rq = match has_rq {
            true => Some(ring(log_rq_size + log_rq_stride)?),
            false => None,
        };
        let (slot, mappings) = match (caller, &sq) {
            // An XRC target may outlive the process that created it, and nothing is posted to it.
            (Caller::Kernel, _) | (_, None) => {
                (vdev.areas.take(&vdev.hw, None, SlotKind::Qp)?, None)
            }
            (Caller::User(user), Some(sq)) => {
                let context = user.context();
                let mappings = RingMappings {
                    sq: sq.map(context.mmap(), Protection::ReadWrite)?,
                    rq: match &rq {
                        Some(rq) => Some(rq.map(context.mmap(), Protection::ReadWrite)?),
                        None => None,
                    },
                };
                let slot = context
                    .areas
                    .take(&vdev.hw, Some(context.mmap()), SlotKind::Qp)?;
                (slot, Some(mappings))
            }
        };
        slot.clear();

        let mut flags = 0;
        // An XRC target is not privileged, because it acts for the processes that post the
        // receives.
        if caller.is_kernel() && has_sends {
            flags |= cmd::QP_PRIVILEGED;
        }
        if attr.sig_type() == SigType::AllWr && has_sends {
            flags |= cmd::QP_SIGNAL_ALL;
        }
        if srq.is_some() {
            flags |= cmd::QP_HAS_SRQ;
        }
        let (pdn, xrcdn) = match home {
            Home::Pd(pd) => (pd.pdn, 0),
            Home::Xrcd(xrcd) => (0, xrcd.xrcdn),
        };
        let cqn = |has, cq| if has { cq::number(cq) } else { Ok(0) };
        let request = CreateQp {
            qpn: Le32::new(number.qpn),
            pdn: Le32::new(pdn),
            xrcdn: Le32::new(xrcdn),
            send_cqn: Le32::new(cqn(has_sends, attr.send_cq())?),
            recv_cqn: Le32::new(cqn(has_recvs, attr.recv_cq())?),
            srqn: Le32::new(srq.map_or(0, |srq| srq.srqn())),
            uar: Le32::new(slot.uar()),
            slot: Le16::new(slot.index()),
            qp_type: device_type.to_raw(),
            flags,
            port: u8::from(device_type == cmd::QpType::Gsi),
            log_sq_size,
            log_sq_stride,
            log_rq_size,
            log_rq_stride,
            // CAST: The numbers are not above the device's limits, which are below 256 and 65536.
            max_send_sge: wanted.max_send_sge as u8,
            max_recv_sge: wanted.max_recv_sge as u8,
            max_inline: Le16::new(wanted.max_inline_data as u16),
            ..Default::default()
        };
        let cap = QpCap {
            max_send_wr: if has_sends { 1 << log_sq_size } else { 0 },
            max_recv_wr: if rq.is_some() { 1 << log_rq_size } else { 0 },
            max_send_sge: wanted.max_send_sge,
            max_recv_sge: wanted.max_recv_sge,
            max_inline_data: wanted.max_inline_data,
            max_rdma_ctxs: 0,
        };
        let sig_type = attr.sig_type();
        let send = WorkQueue::new(caller.is_kernel(), log_sq_size)?;
        let recv = WorkQueue::new(caller.is_kernel() && rq.is_some(), log_rq_size)?;
        Ok(try_pin_init!(Self {
            vdev,
            number,
            sq,
            rq,
            slot,
            mappings,
            request,
            cap,
            sig_type,
            datagram,
            state_lock <- new_mutex!(()),
            state: Atomic::new(QpState::Reset.as_raw()),
            was_modified: Atomic::new(false),
            cq_failed: Atomic::new(false),
            groups <- new_mutex!(KVec::new()),
            last_wqe_reached: Atomic::new(false),
            qkey: Atomic::new(0),
            send <- new_irq_lock!(send),
            recv <- new_irq_lock!(recv),
        }? Error))
    }

    pub(super) fn command(&self, to: &Lender) -> CreateQp {
        CreateQp {
            sq: self
                .sq
                .as_ref()
                .map(|sq| sq.lend(to).translation())
                .unwrap_or_default(),
            rq: self
                .rq
                .as_ref()
                .map(|rq| rq.lend(to).translation())
                .unwrap_or_default(),
            ..self.request
        }
    }

    pub(super) fn respond(&self, user: &User<'_, Verbena>) -> Result {
        let Some(mappings) = &self.mappings else {
            return Ok(());
        };
        let (rq_offset, rq_length) = match (&mappings.rq, &self.rq) {
            (Some(entry), Some(ring)) => (entry.offset(), ring.len() as u64),
            _ => (0, 0),
        };
        user.udata().respond(&CreateQpResp {
            qpn: Le32::new(self.qpn()),
            slot: Le16::new(self.slot.index()),
            log_sq_size: self.request.log_sq_size,
            log_sq_stride: self.request.log_sq_stride,
            log_rq_size: self.request.log_rq_size,
            log_rq_stride: self.request.log_rq_stride,
            area: self.slot.info(),
            sq_offset: Le64::new(mappings.sq.offset()),
            sq_length: Le64::new(self.sq.as_ref().map_or(0, |sq| sq.len() as u64)),
            rq_offset: Le64::new(rq_offset),
            rq_length: Le64::new(rq_length),
            ..Default::default()
        })
    }
}
