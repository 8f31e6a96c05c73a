// SPDX-License-Identifier: GPL-2.0

//! Attributes and states of queue pairs.

use super::{
    super::{
        ah,
        Verbena, //
    },
    QpData, //
};
use crate::{
    abi::{
        cmd::{
            ModifyQp,
            QueryQp,
            Quiesced, //
        },
        ctx::{
            access,
            QpAttr as DeviceAttr,
            QpContext, //
        },
        Le16,
        Le32, //
    },
    health::DeathCause, //
};
use base::errno::eopnotsupp;
use kernel::{
    prelude::*,
    sync::atomic::{
        Relaxed,
        Release, //
    }, //
};
use rdma::{
    enums::{
        Access,
        MigState,
        Mtu,
        QpAttrMask,
        QpState, //
    },
    qp::Qp,
    qp_attr::{
        modify_is_ok,
        QpAttr,
        QpInitReply, //
    },
    trace, //
};

impl QpData {
    /// Returns the state that the device has published last, or ERR if the device is dead, because
    /// everything is flushed then. May sleep.
    pub(super) fn current_state(&self) -> QpState {
        let published = self.vdev.tables.read_quickly::<QpContext>(self.qpn());
        let state = match published {
            // The device is writing the context, and may take long if its thread has lost its CPU.
            Err(_) => self.query_state(),
            Ok(context) => context.attr.qp_state,
        };
        if self.vdev.health.is_dead() {
            return QpState::Err;
        }
        QpState::from_raw(state.into()).unwrap_or_else(|| {
            // A kernel user must be able to rely on its queue pair going to ERR.
            self.vdev.health.declare_dead(DeathCause::Protocol(
                "it published an unknown state of a queue pair",
            ));
            QpState::Err
        })
    }

    /// Returns the state that the device replies to a query. A device that does not reply is dead.
    fn query_state(&self) -> u8 {
        let request = QueryQp {
            id: Le32::new(self.qpn()),
            ..Default::default()
        };
        self.vdev
            .exec_destroy(&request)
            .map_or(0, |queried| queried.qp_state)
    }

    /// Executes `modify` with `state_lock` held. If the queue pair is in RESET afterwards, returns the
    /// indexes up to which there may be events of its old life.
    pub(super) fn move_to(
        qp: &Qp<Verbena>,
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Result<Option<Quiesced>> {
        let vdev = &qp.vdev;
        if mask.without(QpAttrMask::STANDARD) != QpAttrMask::empty() {
            return Err(eopnotsupp());
        }
        let actual = qp.current_state();
        let from = if mask.contains(QpAttrMask::CUR_STATE) {
            attr.cur_state()?
        } else {
            actual
        };
        let to = if mask.contains(QpAttrMask::STATE) {
            attr.state()?
        } else {
            from
        };
        let qp_type = qp.qp_type().ok_or(EINVAL)?;
        if from != actual || !modify_is_ok(from, to, qp_type, mask) {
            return Err(EINVAL);
        }
        let moves = mask.contains(QpAttrMask::STATE);
        let is_err_or_reset = matches!(to, QpState::Err | QpState::Reset);
        if is_err_or_reset && !moves {
            // There is no attribute to change in these states, although the core allows it.
            return Err(EINVAL);
        }
        if mask.contains(QpAttrMask::PORT) && attr.port_num() != 1 {
            return Err(EINVAL);
        }
        let mut request = ModifyQp {
            qpn: Le32::new(qp.qpn()),
            mask: Le32::new(mask.as_raw()),
            attr: to_device(attr, mask)?,
            ..Default::default()
        };
        if mask.contains(QpAttrMask::AV) {
            request.av = ah::to_device(&attr.ah(), vdev.is_infiniband())?;
        }
        if moves {
            qp.was_modified.store(true, Release);
        }
        if moves && qp.is_in(QpState::Reset) {
            // A new life begins, which reports LAST_WQE_REACHED anew.
            qp.last_wqe_reached.store(false, Relaxed);
        }
        if moves && to == QpState::Reset {
            // Nothing can be posted from now on. Requests that were posted before end with the old
            // life.
            qp.publish_state(to);
        }
        let quiesced = if is_err_or_reset && !qp.is_of_process() {
            // These moves are always allowed, and kernel users rely on them to get their buffers
            // back.
            vdev.exec_destroy(&request)
        } else {
            Some(vdev.exec_unless_dead(&request)?)
        };
        if moves {
            trace::qp_state(vdev.health.name(), qp.qpn(), from, to);
        }
        if mask.contains(QpAttrMask::QKEY) {
            qp.qkey.store(attr.qkey(), Relaxed);
        }
        if !moves {
            return Ok(None);
        }
        if to != QpState::Reset {
            qp.publish_state(to);
            return Ok(None);
        }
        // No request completes any more.
        Self::clean(qp, quiesced.as_ref(), false);
        qp.send.lock().reset();
        qp.recv.lock().reset();
        qp.slot.clear();
        Ok(quiesced)
    }

    /// Fills in the attributes for `query`.
    pub(super) fn query_attributes(
        qp: &Qp<Verbena>,
        attr: &mut QpAttr,
        init: &mut QpInitReply,
    ) -> Result {
        let vdev = &qp.vdev;
        if !vdev.health.is_dead() {
            vdev.exec_unless_dead(&QueryQp {
                id: Le32::new(qp.qpn()),
                ..Default::default()
            })?;
        }
        let context: QpContext = vdev.tables.read(qp.qpn())?;
        let from = &context.attr;
        let state = qp.current_state();
        attr.set_state(state);
        attr.set_cur_state(state);
        if let Some(mtu) = Mtu::from_raw(from.path_mtu.into()) {
            attr.set_path_mtu(mtu);
        }
        attr.set_path_mig_state(MigState::Migrated);
        attr.set_qkey(from.qkey.get());
        attr.set_rq_psn(context.expected_psn.get());
        attr.set_sq_psn(context.next_psn.get());
        attr.set_dest_qp_num(from.dest_qpn.get());
        attr.set_access(Access::from_raw(from.qp_access_flags.get()));
        attr.set_cap(&qp.cap);
        attr.set_pkey_index(from.pkey_index.get());
        attr.set_en_sqd_async_notify(from.en_sqd_async_notify);
        attr.set_sq_draining(context.sq_draining);
        attr.set_max_rd_atomic(from.max_rd_atomic);
        attr.set_max_dest_rd_atomic(from.max_dest_rd_atomic);
        attr.set_min_rnr_timer(from.min_rnr_timer);
        attr.set_port_num(1);
        attr.set_timeout(from.timeout);
        attr.set_retry_cnt(from.retry_cnt);
        attr.set_rnr_retry(from.rnr_retry);
        if !qp.datagram {
            attr.set_ah(&ah::from_device(&context.av, vdev.is_infiniband()));
        }
        init.set_cap(&qp.cap);
        init.set_sig_type(qp.sig_type);
        Ok(())
    }
}

/// Returns the attributes that `mask` names, in the device's form.
fn to_device(attr: &QpAttr, mask: QpAttrMask) -> Result<DeviceAttr> {
    let mut to = DeviceAttr {
        qkey: Le32::new(attr.qkey()),
        rq_psn: Le32::new(attr.rq_psn() & 0xff_ffff),
        sq_psn: Le32::new(attr.sq_psn() & 0xff_ffff),
        dest_qpn: Le32::new(attr.dest_qp_num() & 0xff_ffff),
        qp_access_flags: Le32::new(attr.access().as_raw() & access::QP_ALL),
        pkey_index: Le16::new(attr.pkey_index()),
        max_rd_atomic: attr.max_rd_atomic(),
        max_dest_rd_atomic: attr.max_dest_rd_atomic(),
        min_rnr_timer: attr.min_rnr_timer(),
        timeout: attr.timeout(),
        retry_cnt: attr.retry_cnt(),
        rnr_retry: attr.rnr_retry(),
        en_sqd_async_notify: attr.en_sqd_async_notify(),
        // CAST: There is one port.
        port_num: attr.port_num() as u8,
        ..Default::default()
    };
    // CAST: The enumerations are small.
    if mask.contains(QpAttrMask::STATE) {
        to.qp_state = attr.state()?.as_raw() as u8;
    }
    if mask.contains(QpAttrMask::CUR_STATE) {
        to.cur_qp_state = attr.cur_state()?.as_raw() as u8;
    }
    if mask.contains(QpAttrMask::PATH_MTU) {
        to.path_mtu = attr.path_mtu()?.as_raw() as u8;
    }
    Ok(to)
}
