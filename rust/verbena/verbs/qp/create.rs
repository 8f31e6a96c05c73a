// SPDX-License-Identifier: GPL-2.0

//! Creation of a queue pair: its queues, their memory, and the messages about them to the device
//! and the process.

use super::{
    super::{
        cq,
        wq::WorkQueue,
        Verbena,
        VerbsDevice, //
    },
    QpData,
    Qpn,
    RingMappings, //
};
use crate::{
    abi::{
        cmd::{
            self,
            CreateQp,
            DeviceCaps, //
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
    doorbell::{
        DoorbellSlot,
        SlotKind, //
    },
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

/// Returns the device's type for a queue pair of `qp_type`. Returns `EOPNOTSUPP` if the device or the
/// driver does not offer the type to this caller.
fn device_type(
    vdev: &VerbsDevice,
    qp_type: QpType,
    caller: &Caller<'_, Verbena>,
) -> Result<cmd::QpType> {
    Ok(match qp_type {
        // Only InfiniBand has subnet management.
        QpType::Smi if caller.is_kernel() && vdev.is_infiniband() => cmd::QpType::Smi,
        QpType::Gsi if caller.is_kernel() => cmd::QpType::Gsi,
        QpType::Rc => cmd::QpType::Rc,
        QpType::Uc if vdev.has(cmd::FEATURE_UC) => cmd::QpType::Uc,
        QpType::Ud if vdev.has(cmd::FEATURE_UD) => cmd::QpType::Ud,
        // The driver matches completions of kernel users by queue pair, and so does not offer them
        // XRC.
        QpType::XrcIni if vdev.has(cmd::FEATURE_XRC) && !caller.is_kernel() => cmd::QpType::XrcIni,
        // The core creates the target for all processes that open it, so the target belongs to the
        // kernel.
        QpType::XrcTgt if vdev.has(cmd::FEATURE_XRC) => cmd::QpType::XrcTgt,
        _ => return Err(eopnotsupp()),
    })
}

/// Queues that a queue pair has, and whether their WQEs carry the address of a datagram.
#[derive(Clone, Copy)]
struct QueueKinds {
    datagram: bool,
    /// True if the queue pair has a send queue. An XRC target has none.
    has_sends: bool,
    /// True if the queue pair has a receive queue of its own. Queue pairs with an SRQ and those of
    /// XRC have none.
    has_rq: bool,
}

/// Sizes of the queues of a queue pair.
struct QueueSizes {
    /// Capacities that the user gets, which are at least the requested ones.
    cap: QpCap,
    log_sq_size: u8,
    log_sq_stride: u8,
    log_rq_size: u8,
    log_rq_stride: u8,
}

impl QueueSizes {
    /// Returns `EINVAL` if a requested capacity is above the limit of the device.
    fn new(caps: &DeviceCaps, requested: QpCap, kinds: QueueKinds) -> Result<Self> {
        let QueueKinds {
            datagram,
            has_sends,
            has_rq,
        } = kinds;
        let mut cap = effective_cap(requested, has_sends, has_rq);
        if cap.max_send_sge > caps.max_send_sge.get()
            || cap.max_recv_sge > caps.max_recv_sge.get()
            || cap.max_inline_data > caps.max_inline_data.get()
        {
            return Err(EINVAL);
        }
        let most = caps.max_qp_wr.get();
        let (mut log_sq_size, mut log_sq_stride) = (0, 0);
        if has_sends {
            log_sq_size = log_size(cap.max_send_wr, most)?;
            log_sq_stride = wqe::log_sq_stride(datagram, cap.max_send_sge, cap.max_inline_data);
            cap.max_send_wr = 1 << log_sq_size;
        }
        let (mut log_rq_size, mut log_rq_stride) = (0, 0);
        if has_rq {
            log_rq_size = log_size(cap.max_recv_wr, most)?;
            log_rq_stride = wqe::log_rq_stride(cap.max_recv_sge);
            cap.max_recv_wr = 1 << log_rq_size;
        }
        if log_sq_stride > wqe::LOG_SQ_STRIDE.1 || log_rq_stride > wqe::LOG_RQ_STRIDE.1 {
            return Err(EINVAL);
        }
        if has_sends {
            let room = wqe::inline_room(datagram, log_sq_stride);
            cap.max_inline_data = room.min(caps.max_inline_data.get());
        }
        Ok(Self {
            cap,
            log_sq_size,
            log_sq_stride,
            log_rq_size,
            log_rq_stride,
        })
    }
}

/// Memory of a queue pair: its rings, its doorbell slot, and their mappings into a process.
struct QpMemory {
    sq: Option<Lent<DmaRing>>,
    rq: Option<Lent<DmaRing>>,
    slot: DoorbellSlot,
    mappings: Option<RingMappings>,
}

impl QpMemory {
    fn new(
        vdev: &VerbsDevice,
        sizes: &QueueSizes,
        kinds: QueueKinds,
        caller: &Caller<'_, Verbena>,
    ) -> Result<Self> {
        let ring = |exists: bool, log: u8| {
            if !exists {
                return Ok(None);
            }
            let ring = DmaRing::new(&vdev.dma, caller.payer(), 1usize << log)?;
            Ok::<_, Error>(Some(Lent::new(ring, &vdev.health)))
        };
        let sq = ring(kinds.has_sends, sizes.log_sq_size + sizes.log_sq_stride)?;
        let rq = ring(kinds.has_rq, sizes.log_rq_size + sizes.log_rq_stride)?;
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
        Ok(Self {
            sq,
            rq,
            slot,
            mappings,
        })
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
        let device_type = device_type(&vdev, qp_type, caller)?;
        if attr.create_flags() != 0 {
            return Err(eopnotsupp());
        }
        let special = matches!(qp_type, QpType::Smi | QpType::Gsi);
        let datagram = special || qp_type == QpType::Ud;
        // An XRC target has no queues, and an XRC initiator has no receive queue.
        let has_sends = device_type != cmd::QpType::XrcTgt;
        let has_recvs = !matches!(qp_type, QpType::XrcIni | QpType::XrcTgt);
        let srq = attr.srq().filter(|_| has_recvs);
        let kinds = QueueKinds {
            datagram,
            has_sends,
            // With an SRQ the sizes for receives are ignored (ibv_create_qp(3)).
            has_rq: has_recvs && srq.is_none(),
        };
        let sizes = QueueSizes::new(caps, attr.cap(), kinds)?;
        let number = Qpn::new(&vdev, qp_type, caller.payer())?;
        let QpMemory {
            sq,
            rq,
            slot,
            mappings,
        } = QpMemory::new(&vdev, &sizes, kinds, caller)?;

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
        let cap = sizes.cap;
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
            port: u8::from(special),
            log_sq_size: sizes.log_sq_size,
            log_sq_stride: sizes.log_sq_stride,
            log_rq_size: sizes.log_rq_size,
            log_rq_stride: sizes.log_rq_stride,
            // CAST: The numbers are not above the device's limits, which are below 256 and 65536.
            max_send_sge: cap.max_send_sge as u8,
            max_recv_sge: cap.max_recv_sge as u8,
            max_inline: Le16::new(cap.max_inline_data as u16),
            ..Default::default()
        };
        let sig_type = attr.sig_type();
        let sends_pkey_index = qp_type == QpType::Gsi && vdev.is_infiniband();
        let send = WorkQueue::new(caller.is_kernel(), sizes.log_sq_size)?;
        let recv = WorkQueue::new(caller.is_kernel() && rq.is_some(), sizes.log_rq_size)?;
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
            sends_pkey_index,
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
