// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The table of transitions and their attributes (IBTA 11.2.5.2, tables 91 to 96).

use super::KINDS;
use verbena_abi::cmd::QpType;
use verbena_abi::ctx::{qp_mask::*, QpState};

/// Types, states before and after, required attributes, optional attributes.
type Row = (&'static [QpType], QpState, QpState, u32, u32);

const CONNECTED: &[QpType] = &[QpType::Rc, QpType::Uc];
const DATAGRAM: &[QpType] = &[QpType::Ud, QpType::Gsi];
const RC: &[QpType] = &[QpType::Rc];
const UC: &[QpType] = &[QpType::Uc];
const UD: &[QpType] = &[QpType::Ud];
const GSI: &[QpType] = &[QpType::Gsi];

const ROWS: &[Row] = {
    use QpState::*;
    &[
        (CONNECTED, Reset, Init, PKEY_INDEX | PORT | ACCESS_FLAGS, 0),
        (UD, Reset, Init, PKEY_INDEX | PORT | QKEY, 0),
        // A GSI queue pair gets its port when it is created. The transition may name the port
        // again.
        (GSI, Reset, Init, PKEY_INDEX | QKEY, PORT),
        (CONNECTED, Init, Init, 0, PKEY_INDEX | PORT | ACCESS_FLAGS),
        (DATAGRAM, Init, Init, 0, PKEY_INDEX | PORT | QKEY),
        (
            RC,
            Init,
            Rtr,
            AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER,
            ALT_PATH | ACCESS_FLAGS | PKEY_INDEX,
        ),
        (
            UC,
            Init,
            Rtr,
            AV | PATH_MTU | DEST_QPN | RQ_PSN,
            ALT_PATH | ACCESS_FLAGS | PKEY_INDEX,
        ),
        (DATAGRAM, Init, Rtr, 0, PKEY_INDEX | QKEY),
        (
            RC,
            Rtr,
            Rts,
            SQ_PSN | TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC,
            CUR_STATE | ALT_PATH | ACCESS_FLAGS | MIN_RNR_TIMER | PATH_MIG_STATE,
        ),
        (
            UC,
            Rtr,
            Rts,
            SQ_PSN,
            CUR_STATE | ALT_PATH | ACCESS_FLAGS | PATH_MIG_STATE,
        ),
        (DATAGRAM, Rtr, Rts, SQ_PSN, CUR_STATE | QKEY),
        (
            RC,
            Rts,
            Rts,
            0,
            CUR_STATE | ALT_PATH | ACCESS_FLAGS | MIN_RNR_TIMER | PATH_MIG_STATE,
        ),
        (
            UC,
            Rts,
            Rts,
            0,
            CUR_STATE | ALT_PATH | ACCESS_FLAGS | PATH_MIG_STATE,
        ),
        (DATAGRAM, Rts, Rts, 0, CUR_STATE | QKEY),
        (&KINDS, Rts, Sqd, 0, EN_SQD_ASYNC_NOTIFY),
        (
            RC,
            Sqd,
            Rts,
            0,
            CUR_STATE | ALT_PATH | ACCESS_FLAGS | MIN_RNR_TIMER | PATH_MIG_STATE,
        ),
        (
            UC,
            Sqd,
            Rts,
            0,
            CUR_STATE | ALT_PATH | ACCESS_FLAGS | PATH_MIG_STATE,
        ),
        (DATAGRAM, Sqd, Rts, 0, CUR_STATE | QKEY),
        (
            RC,
            Sqd,
            Sqd,
            0,
            PORT | AV
                | TIMEOUT
                | RETRY_CNT
                | RNR_RETRY
                | MAX_QP_RD_ATOMIC
                | MAX_DEST_RD_ATOMIC
                | ALT_PATH
                | ACCESS_FLAGS
                | PKEY_INDEX
                | MIN_RNR_TIMER
                | PATH_MIG_STATE,
        ),
        (
            UC,
            Sqd,
            Sqd,
            0,
            PORT | AV | ALT_PATH | ACCESS_FLAGS | PKEY_INDEX | PATH_MIG_STATE,
        ),
        (DATAGRAM, Sqd, Sqd, 0, PKEY_INDEX | QKEY),
        (UC, Sqe, Rts, 0, CUR_STATE | ACCESS_FLAGS),
        (DATAGRAM, Sqe, Rts, 0, CUR_STATE | QKEY),
    ]
};

/// Returns the required and the optional attributes of a transition, or None if the transition does
/// not exist.
pub fn row(kind: QpType, from: QpState, to: QpState) -> Option<(u32, u32)> {
    let is = |r: &&Row| r.0.contains(&kind) && (r.1, r.2) == (from, to);
    ROWS.iter().find(is).map(|r| (r.3, r.4))
}
