// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Recovery from SQE: a send of an unreliable connection fails, and all posted sends are flushed,
//! while receives go on. The flow moves the queue pair back to RTS.
use crate::verbs::{
    connect, count_arrived, prepare, Endpoint, OpenDevice, Result, Transfer, TransferStatus,
    MAX_RETRIES, PIECES, UC,
};
use verbena_lab_guest::ffi::qp::{mask, state};
use verbena_lab_guest::ffi::QpAttr;

pub fn run(recovers: bool) -> Result<bool> {
    let device = OpenDevice::open()?;
    let from = Endpoint::new(&device, UC, PIECES, None)?;
    let to = Endpoint::new(&device, UC, PIECES, None)?;
    let mut transfer = Transfer::default();
    prepare(&from, &to);
    connect(&device, [&from, &to], MAX_RETRIES)?;
    for _ in 0..5 {
        match transfer.write_rest(&from, &to)? {
            TransferStatus::Done => return Ok(count_arrived(&from, &to) == PIECES),
            TransferStatus::Failed(_) if recovers => {
                let attr = QpAttr {
                    cur_qp_state: state::SQE,
                    ..QpAttr::default()
                };
                from.modify(state::RTS, attr, mask::CUR_STATE)?;
            }
            TransferStatus::Failed(_) => {}
            TransferStatus::Silent => return Ok(false),
        }
    }
    Ok(false)
}
