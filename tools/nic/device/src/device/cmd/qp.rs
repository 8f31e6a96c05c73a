// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Commands that create, modify, query and destroy QPs.

use super::qp_attr;
use super::*;
use crate::config;
use crate::memory::ring::Ring;
use crate::objects::qp::{Env, Qp};
use crate::objects::uar::Owner;
use crate::observation::counters::Counters;
use crate::observation::event::QpEvent;
use std::rc::Rc;
use verbena_abi::ctx::{qp_mask, QpContext};
use verbena_abi::eqe::EventType;
use verbena_abi::wqe::{self, LOG_RQ_STRIDE, LOG_SQ_STRIDE};
use verbena_transport::host::XrcSrq;
use verbena_transport::QpState;

/// Types of the events that a QP can have.
const QP_EVENTS: [EventType; 6] = [
    EventType::QpFatal,
    EventType::QpReqErr,
    EventType::QpAccessErr,
    EventType::CommEst,
    EventType::SqDrained,
    EventType::QpLastWqeReached,
];

fn check_ring(log_size: u8, log_stride: u8, strides: (u8, u8)) -> Result<(), CmdError> {
    let entries = 1u64 << log_size.min(63);
    if entries > config::MAX_WR.into() || !(strides.0..=strides.1).contains(&log_stride) {
        return Err(SIZE);
    }
    Ok(())
}

/// Returns whether a QP has a send queue, and whether it has receives, of its own or of an SRQ.
/// Fields that describe a queue that does not exist have to be 0, and so has the XRC domain of any
/// QP but an XRC target.
fn sides(qp_type: QpType, request: &CreateQp) -> Result<(bool, bool), CmdError> {
    let sides = match qp_type {
        QpType::XrcIni => (true, false),
        QpType::XrcTgt => (false, false),
        _ => (true, true),
    };
    let is_target = qp_type == QpType::XrcTgt;
    let no_sends = request.send_cqn.get() == 0
        && request.pdn.get() == 0
        && request.flags & QP_SIGNAL_ALL == 0
        && (
            request.log_sq_size,
            request.max_send_sge,
            request.max_inline.get(),
        ) == (0, 0, 0);
    let no_receives = (request.recv_cqn.get(), request.srqn.get()) == (0, 0)
        && request.flags & QP_HAS_SRQ == 0
        && (request.log_rq_size, request.max_recv_sge) == (0, 0);
    let wrong = !sides.0 && !no_sends
        || !sides.1 && !no_receives
        || is_target != (request.xrcdn.get() != 0);
    if wrong {
        return Err(ATTRIBUTE);
    }
    Ok(sides)
}

/// Type and queues of a QP that a valid request describes.
struct QpShape {
    qp_type: QpType,
    /// True if the QP has a send ring.
    has_sq: bool,
    /// True if the QP has a receive ring.
    has_rq: bool,
    /// CQ of the sends.
    send_cqn: Option<u32>,
    /// CQ of the receives.
    recv_cqn: Option<u32>,
    /// SRQ of the receives.
    srqn: Option<u32>,
}

/// Checks the fields of a request that can be checked without the objects that the request names.
fn shape(request: &CreateQp) -> Result<QpShape, CmdError> {
    let unsupported = bad(CmdStatus::Unsupported, Syndrome::CmdAttribute);
    let qp_type = QpType::from_raw(request.qp_type).ok_or(unsupported)?;
    let qpn = request.qpn.get();
    let (port, is_numbered) = match qp_type {
        QpType::Gsi | QpType::Smi => (1..=config::NUM_PORTS, qpn == u32::from(qp_type.to_raw())),
        _ => (0..=0, qpn >= FIRST_QPN),
    };
    if !is_numbered || !port.contains(&request.port) {
        return Err(NUMBER);
    }
    if request.create_flags.get() != 0 {
        return Err(unsupported);
    }
    if request.flags & !(QP_PRIVILEGED | QP_SIGNAL_ALL | QP_HAS_SRQ) != 0 {
        return Err(ATTRIBUTE);
    }
    let (has_sq, receives) = sides(qp_type, request)?;
    let has_srq = request.flags & QP_HAS_SRQ != 0;
    let has_rq = receives && !has_srq;
    if has_sq {
        check_ring(request.log_sq_size, request.log_sq_stride, LOG_SQ_STRIDE)?;
    }
    if has_rq {
        check_ring(request.log_rq_size, request.log_rq_stride, LOG_RQ_STRIDE)?;
    }
    let most_sges = u32::from(request.max_send_sge.max(request.max_recv_sge));
    if most_sges > wqe::MAX_SGE || u32::from(request.max_inline.get()) > wqe::MAX_INLINE {
        return Err(SIZE);
    }
    Ok(QpShape {
        qp_type,
        has_sq,
        has_rq,
        send_cqn: has_sq.then_some(request.send_cqn.get()),
        recv_cqn: receives.then_some(request.recv_cqn.get()),
        srqn: has_srq.then_some(request.srqn.get()),
    })
}

impl Device {
    pub(super) fn create_qp<M: GuestMemory>(
        &mut self,
        mem: &M,
        request: &CreateQp,
    ) -> Result<(), CmdError> {
        let qpn = request.qpn.get();
        if !self.qps.in_range(qpn) {
            return Err(NUMBER);
        }
        let is_smi = request.qp_type == QpType::Smi.to_raw();
        if is_smi && self.shared.port.as_infiniband().is_none() {
            return Err(bad(CmdStatus::Unsupported, Syndrome::CmdAttribute));
        }
        let shape = shape(request)?;
        if self.qps.get(qpn).is_some() {
            return Err(IN_USE);
        }
        self.check_queues(shape.send_cqn.into_iter().chain(shape.recv_cqn))?;
        shape.srqn.map_or(Ok(()), |srqn| self.check_srq(srqn))?;
        let (number, slot) = (request.uar.get(), request.slot.get());
        let uar = self.shared.uars.get(number).ok_or(NO_OBJECT)?;
        if !uar.qp_slot_free(slot) {
            return Err(IN_USE);
        }
        let area = uar.base;
        let context_slot = self.shared.tables.slot(mem, Table::Qpc, qpn)?;
        let sq = if shape.has_sq {
            Ring::new(mem, &request.sq, request.log_sq_size, request.log_sq_stride)?
        } else {
            Ring::none()
        };
        let rq = if shape.has_rq {
            let (size, stride) = (request.log_rq_size, request.log_rq_stride);
            Some(Ring::new(mem, &request.rq, size, stride)?)
        } else {
            None
        };
        // All checks have passed, so nothing fails from here on.
        let owner = self.shared.created.next_qp();
        let transport = self.new_transport(request, &shape, owner);
        let mut qp = Box::new(Qp {
            env: Env {
                create: *request,
                send_cq: shape.send_cqn.and_then(|cqn| self.shared.cqs.hold(cqn)),
                recv_cq: shape.recv_cqn.and_then(|cqn| self.shared.cqs.hold(cqn)),
                srq: shape.srqn.and_then(|srqn| self.shared.srqs.hold(srqn)),
                qp_type: shape.qp_type,
                area,
                sq,
                rq,
                sq_pi: 0,
                rq_ci: 0,
                rq_pi: 0,
                lost: None,
                attr: Default::default(),
                av: Default::default(),
                path: None,
                xrc: XrcSrq::default(),
                counters: Counters::default(),
                shown: QpState::Reset,
                short: false,
                watched: false,
                waits_at: None,
                owner,
                context_slot,
            },
            transport,
        });
        qp.env.watch_receives(mem, false);
        self.shared.report_of_qp(&mut qp.env, QpEvent::Created);
        qp.publish(mem);
        self.qps.put(qpn, qp);
        if let Some(uar) = self.shared.uars.get_mut(number) {
            uar.set_qp_slot(slot, Some(Owner::Qp(qpn)));
        }
        Ok(())
    }

    /// Creates the state machine of a QP. No other QP has or ever had the same `owner`.
    fn new_transport(
        &self,
        request: &CreateQp,
        shape: &QpShape,
        owner: u64,
    ) -> verbena_transport::Qp {
        let config = self.shared.config();
        let (qpn, pdn) = (request.qpn.get(), request.pdn.get());
        verbena_transport::Qp::new(verbena_transport::QpConfig {
            has_srq: shape.srqn.is_some() || shape.qp_type == QpType::XrcTgt,
            owner,
            max_msg_size: config::MAX_MSG,
            credits: config.credits,
            congestion_control: config.congestion_control,
            wire_super_packets: config::WIRE_SUPER_PACKETS,
            reassembly_quota: Some(self.shared.kept.whole()),
            ..verbena_transport::QpConfig::new(qpn, shape.qp_type, pdn)
        })
    }

    pub(super) fn destroy_qp<M: GuestMemory>(
        &mut self,
        mem: &M,
        request: &DestroyQp,
    ) -> Result<Quiesced, CmdError> {
        let qpn = request.id.get();
        let mut qp = self.qps.take(qpn).ok_or(NO_OBJECT)?;
        let counters = qp.counters();
        self.forget_qp(qpn);
        if let Some(faults) = &mut self.shared.faults {
            faults.table.on_qp_destroyed(qpn);
        }
        self.addressing.forget(qpn);
        self.turns.forget(qpn);
        self.shared.report_of_qp(
            &mut qp.env,
            QpEvent::Destroyed {
                counters: &counters,
            },
        );
        if let Some(survey) = &mut self.survey {
            survey.lose(qpn, &counters);
        }
        let env = &mut qp.env;
        let held = env.take_held(&qp.transport);
        env.watch_receives(mem, false);
        if let Some(srq) = env.waits_at.and_then(|srqn| self.shared.srqs.get_mut(srqn)) {
            srq.end_wait(mem, qpn);
        }
        env.context_slot.publish(mem, &QpContext::default());
        if let Some(uar) = self.shared.uars.get_mut(env.create.uar.get()) {
            uar.set_qp_slot(env.create.slot.get(), None);
        }
        // Dropping the transport drops all its references to buffers.
        let Qp { transport, env } = *qp;
        drop(transport);
        for cq in [env.send_cq, env.recv_cq].into_iter().flatten() {
            self.shared.cqs.release(cq);
        }
        if let Some(srq) = env.srq {
            self.shared.srqs.release(srq);
        }
        Ok(self.let_go(held))
    }

    /// Returns the reply to a command that ends the life of a QP. `held` is the receive of an SRQ
    /// that the QP had taken and will not complete.
    fn let_go(&self, held: Option<(u32, u64)>) -> Quiesced {
        let (index, wr_id) = held.unwrap_or_default();
        Quiesced {
            recv_held: u32::from(held.is_some()).into(),
            recv_index: index.into(),
            recv_wr_id: wr_id.into(),
            ..self.quiesced(None)
        }
    }

    /// Checks that CQs exist and are not in error. Only the destruction of a CQ ends its error.
    pub(super) fn check_queues(&self, cqns: impl IntoIterator<Item = u32>) -> Result<(), CmdError> {
        for cqn in cqns {
            if self.shared.cqs.get(cqn).ok_or(NO_OBJECT)?.error.is_some() {
                return Err(bad(CmdStatus::Invalid, Syndrome::CqDied));
            }
        }
        Ok(())
    }

    /// Checks that an SRQ exists and is not in error.
    fn check_srq(&self, srqn: u32) -> Result<(), CmdError> {
        let srq = self.shared.srqs.get(srqn).ok_or(NO_OBJECT)?;
        if srq.error.is_some() {
            return Err(bad(CmdStatus::Invalid, Syndrome::SrqDied));
        }
        Ok(())
    }

    /// Drops packets to a QP, and its events, when its life ends. Packets that the QP has sent stay
    /// queued: the peer needs the acknowledgements, and payload by reference becomes invalid with
    /// the transport. The rules forget its PSNs, which have another meaning in the next life.
    fn forget_qp(&mut self, qpn: u32) {
        self.shared.outgoing.forget_local_to(qpn);
        self.shared.forget_events(ASYNC_EQN, qpn, &QP_EVENTS);
        if let Some(faults) = &mut self.shared.faults {
            faults.forget_qp(qpn);
        }
    }

    pub(super) fn modify_qp<M: GuestMemory>(
        &mut self,
        mem: &M,
        request: &ModifyQp,
    ) -> Result<Quiesced, CmdError> {
        let qpn = request.qpn.get();
        let qp = self.qps.get(qpn).ok_or(NO_OBJECT)?;
        let from = qp.transport.state();
        let to = qp_attr::check(qp.env.qp_type, from, request)?;
        if !matches!(to, QpState::Reset | QpState::Err) {
            let cqs = [&qp.env.send_cq, &qp.env.recv_cq].into_iter().flatten();
            self.check_queues(cqs.map(|cq| cq.number()))?;
            if let Some(srqn) = qp.env.srqn() {
                self.check_srq(srqn)?;
            }
        }
        let mask = request.mask.get();
        // Larger packets would never leave the port (IBTA 11.2.5.2: the path's MTU is at most the
        // port's).
        if mask & qp_mask::PATH_MTU != 0 && request.attr.path_mtu > self.shared.port.mtu {
            return Err(ATTRIBUTE);
        }
        let index = request.attr.pkey_index.get();
        if mask & qp_mask::PKEY_INDEX != 0 && !self.shared.port.has_pkey_index(index) {
            return Err(ATTRIBUTE);
        }
        let (mut attr, mut av, mut path) = (qp.env.attr, qp.env.av, qp.env.path.clone());
        if to == QpState::Reset {
            (attr, av, path) = Default::default();
        } else if to != QpState::Err {
            attr = qp_attr::merge(&attr, mask, &request.attr);
            // Each move to SQD requests the event anew, and the event stays owed until the QP
            // leaves SQD.
            let asked = mask & qp_mask::EN_SQD_ASYNC_NOTIFY != 0;
            if !asked && (from, to) != (QpState::Sqd, QpState::Sqd) {
                attr.en_sqd_async_notify = 0;
            }
            if mask & qp_mask::AV != 0 {
                av = request.av;
                let found = self.shared.port.path(&av, qpn, attr.dest_qpn.get());
                path = Some(Rc::new(found.ok_or(ATTRIBUTE)?));
            }
        }
        let local = !self.shared.config().wire_local
            && path
                .as_ref()
                .is_some_and(|path| self.shared.port.is_local(path, attr.dest_qpn.get()));
        let wanted = if to == QpState::Reset {
            Default::default()
        } else {
            // UD QPs use the MTU of the port. A connected QP has no MTU before RTR.
            let mut shown = attr;
            if shown.path_mtu == 0 || mask & qp_mask::PATH_MTU == 0 && path.is_none() {
                shown.path_mtu = self.shared.port.mtu;
            }
            let index = shown.pkey_index.get();
            let pkey = self.shared.port.pkey(index).unwrap_or(qp_attr::NO_PKEY);
            qp_attr::to_transport(&shown, pkey, local)
        };
        if to == QpState::Reset {
            self.forget_qp(qpn);
            self.turns.cancel_deadline(qpn);
        }
        let peer = path.as_ref().filter(|_| mask & qp_mask::AV != 0);
        let account = peer.map(|path| self.shared.kept.of_peer(&path.dgid));
        let now = self.shared.clock.now();
        let outcome = self.with_qp(mem, qpn, |transport, host| {
            let held = match to {
                QpState::Reset => host.env.take_held(transport),
                _ => None,
            };
            transport.handle_modify(host, now, to, &wanted)?;
            if let Some(account) = account {
                transport.set_reassembly_quota(account);
            }
            let env = &mut *host.env;
            (env.attr, env.av, env.path) = (attr, av, path);
            if to == QpState::Reset {
                (env.sq_pi, env.rq_ci, env.rq_pi) = (0, 0, 0);
            }
            Ok(held)
        });
        let held = match outcome {
            Some(Ok(held)) => held,
            Some(Err(syndrome)) => return Err(bad(CmdStatus::Invalid, syndrome)),
            None => return Err(NO_OBJECT),
        };
        if let Some(qp) = self.qps.get_mut(qpn) {
            qp.publish(mem);
        }
        // Requests that were posted before the state allowed them may run now or have to be
        // flushed, or the send queue has drained already.
        self.look_at_posts(mem, qpn);
        self.make_ready(qpn);
        Ok(self.let_go(held))
    }

    pub(super) fn query_qp<M: GuestMemory>(
        &mut self,
        mem: &M,
        request: &QueryQp,
    ) -> Result<QueriedQp, CmdError> {
        let qp = self.qps.get_mut(request.id.get()).ok_or(NO_OBJECT)?;
        qp.publish(mem);
        Ok(QueriedQp {
            qp_state: qp.transport.state().to_raw(),
            ..Default::default()
        })
    }
}
