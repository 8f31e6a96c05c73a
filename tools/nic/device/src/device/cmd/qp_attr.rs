// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Attributes that a transition must and may set (IBTA 11.2.5.2, as in `ib_modify_qp_is_ok`), their
//! ranges, and their form for the transport.

use super::{bad, CmdError, ATTRIBUTE};
use crate::config::MAX_RD_ATOMIC;
use verbena_abi::cmd::{CmdStatus, ModifyQp, QpType};
use verbena_abi::ctx::{access, qp_mask as m, QpAttr};
use verbena_abi::syndrome::Syndrome;
use verbena_transport::{Attr, QpState};

/// The P_Key of a queue pair whose entry of the P_Key table is not valid: it matches none.
pub const NO_PKEY: u16 = 0;

/// Error of a transition that does not exist.
const TRANSITION: CmdError = bad(CmdStatus::Invalid, Syndrome::CmdTransition);

/// Returns the attributes that a transition must have, and those that it may have. None if there is
/// no such transition.
fn masks(qp_type: QpType, from: QpState, to: QpState) -> Option<(u32, u32)> {
    use QpState::*;
    let special = matches!(qp_type, QpType::Gsi | QpType::Smi);
    let connected = !special && qp_type != QpType::Ud;
    // The two sides of a reliable connection. Each end of an XRC connection has only one of them.
    let requester = matches!(qp_type, QpType::Rc | QpType::XrcIni);
    let responder = matches!(qp_type, QpType::Rc | QpType::XrcTgt);
    let reliable = requester || responder;
    // Attributes that identify the service. A special QP is bound to its port from its creation.
    let (key, init) = match qp_type {
        QpType::Rc | QpType::Uc | QpType::XrcIni | QpType::XrcTgt => {
            (m::ACCESS_FLAGS, m::PKEY_INDEX | m::PORT | m::ACCESS_FLAGS)
        }
        QpType::Ud => (m::QKEY, m::PKEY_INDEX | m::PORT | m::QKEY),
        QpType::Gsi | QpType::Smi => (m::QKEY, m::PKEY_INDEX | m::QKEY),
    };
    let running = if connected {
        m::CUR_STATE | m::ACCESS_FLAGS | m::ALT_PATH | m::PATH_MIG_STATE
    } else {
        m::CUR_STATE | m::QKEY
    };
    let only = |is: bool, bits: u32| if is { bits } else { 0 };
    let timers = only(reliable, m::TIMEOUT)
        | only(requester, m::RETRY_CNT | m::RNR_RETRY | m::MAX_QP_RD_ATOMIC);
    let rnr = only(responder, m::MIN_RNR_TIMER);
    let reads = only(responder, m::MAX_DEST_RD_ATOMIC);
    Some(match (from, to) {
        (_, Reset | Err) => (0, 0),
        (Reset, Init) => (init, if special { m::PORT } else { 0 }),
        (Init, Init) => (0, m::PKEY_INDEX | m::PORT | key),
        (Init, Rtr) if connected => (
            m::AV | m::PATH_MTU | m::DEST_QPN | m::RQ_PSN | reads | rnr,
            m::ALT_PATH | m::ACCESS_FLAGS | m::PKEY_INDEX,
        ),
        (Init, Rtr) => (0, m::PKEY_INDEX | m::QKEY),
        (Rtr, Rts) => (m::SQ_PSN | timers, running | rnr),
        (Rts, Rts) => (0, running | rnr),
        (Rts, Sqd) => (0, m::EN_SQD_ASYNC_NOTIFY),
        (Sqd, Rts) => (0, running | rnr),
        (Sqd, Sqd) if connected => (
            0,
            m::PORT
                | m::AV
                | m::ALT_PATH
                | m::ACCESS_FLAGS
                | m::PKEY_INDEX
                | m::PATH_MIG_STATE
                | timers
                | reads
                | rnr,
        ),
        (Sqd, Sqd) => (0, m::PKEY_INDEX | m::QKEY),
        (Sqe, Rts) if !reliable => (
            0,
            m::CUR_STATE | if connected { m::ACCESS_FLAGS } else { m::QKEY },
        ),
        _ => return None,
    })
}

/// Checks a request against the present state. Returns the state after the transition.
pub fn check(qp_type: QpType, now: QpState, request: &ModifyQp) -> Result<QpState, CmdError> {
    let mask = request.mask.get();
    let attr = &request.attr;
    if mask & m::CUR_STATE != 0 && attr.cur_qp_state != now.to_raw() {
        return Err(TRANSITION);
    }
    let to = if mask & m::STATE != 0 {
        QpState::from_raw(attr.qp_state).ok_or(ATTRIBUTE)?
    } else {
        now
    };
    // A change of attributes alone is a transition of the state to itself.
    if mask & m::STATE == 0
        && matches!(
            now,
            QpState::Reset | QpState::Err | QpState::Rtr | QpState::Sqe
        )
    {
        return Err(TRANSITION);
    }
    let (must, may) = masks(qp_type, now, to).ok_or(TRANSITION)?;
    if matches!(to, QpState::Reset | QpState::Err) {
        // These transitions take no other attribute.
        return if mask == m::STATE {
            Ok(to)
        } else {
            Err(ATTRIBUTE)
        };
    }
    if mask & m::ALT_PATH != 0 {
        return Err(bad(CmdStatus::Unsupported, Syndrome::CmdAttribute));
    }
    // The rate limit is only advice, so other transitions take it too.
    let known = must | may | m::STATE | m::RATE_LIMIT;
    if mask & must != must || mask & !known != 0 {
        return Err(ATTRIBUTE);
    }
    check_ranges(mask, attr)?;
    Ok(to)
}

fn check_ranges(mask: u32, attr: &QpAttr) -> Result<(), CmdError> {
    let has = |bit: u32| mask & bit != 0;
    let rd_limit = MAX_RD_ATOMIC as u8;
    let wrong = (has(m::PORT) && attr.port_num != 1)
        || (has(m::ACCESS_FLAGS) && attr.qp_access_flags.get() & !access::QP_ALL != 0)
        || (has(m::PATH_MTU) && !(1..=5).contains(&attr.path_mtu))
        || (has(m::MAX_QP_RD_ATOMIC) && attr.max_rd_atomic > rd_limit)
        || (has(m::MAX_DEST_RD_ATOMIC) && attr.max_dest_rd_atomic > rd_limit)
        || (has(m::MIN_RNR_TIMER) && attr.min_rnr_timer > 31)
        || (has(m::TIMEOUT) && attr.timeout > 31)
        || (has(m::RETRY_CNT) && attr.retry_cnt > 7)
        || (has(m::RNR_RETRY) && attr.rnr_retry > 7)
        || (has(m::DEST_QPN) && attr.dest_qpn.get() >= 1 << 24)
        || (has(m::RQ_PSN) && attr.rq_psn.get() >= 1 << 24)
        || (has(m::SQ_PSN) && attr.sq_psn.get() >= 1 << 24);
    if wrong {
        return Err(ATTRIBUTE);
    }
    Ok(())
}

/// Returns the attributes after a request: those in its mask have the new values, the others the
/// old.
pub fn merge(old: &QpAttr, mask: u32, new: &QpAttr) -> QpAttr {
    let mut out = *old;
    macro_rules! take {
        ($($bit:ident => $field:ident),* $(,)?) => {
            $( if mask & m::$bit != 0 { out.$field = new.$field; } )*
        };
    }
    take!(
        ACCESS_FLAGS => qp_access_flags,
        PKEY_INDEX => pkey_index,
        PORT => port_num,
        QKEY => qkey,
        PATH_MTU => path_mtu,
        TIMEOUT => timeout,
        RETRY_CNT => retry_cnt,
        RNR_RETRY => rnr_retry,
        RQ_PSN => rq_psn,
        MAX_QP_RD_ATOMIC => max_rd_atomic,
        MIN_RNR_TIMER => min_rnr_timer,
        SQ_PSN => sq_psn,
        MAX_DEST_RD_ATOMIC => max_dest_rd_atomic,
        DEST_QPN => dest_qpn,
        RATE_LIMIT => rate_limit,
        EN_SQD_ASYNC_NOTIFY => en_sqd_async_notify,
    );
    out
}

/// Returns the attributes in the form that the transport takes.
pub fn to_transport(attr: &QpAttr, pkey: u16, local_peer: bool) -> Attr {
    Attr {
        path_mtu: 128 << attr.path_mtu.clamp(1, 5),
        dest_qpn: attr.dest_qpn.get(),
        sq_psn: attr.sq_psn.get(),
        rq_psn: attr.rq_psn.get(),
        access_flags: attr.qp_access_flags.get(),
        qkey: attr.qkey.get(),
        pkey,
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        sqd_notify: attr.en_sqd_async_notify != 0,
        local_peer,
    }
}
