// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Recovery from SQE: a send of an unreliable connection fails, and all posted sends are flushed,
//! while receives go on. The flow moves the queue pair back to RTS.
use crate::verbs::{
    arrived, connect, prepare, Device, End, Result, Round, Work, PATIENT, PIECES, UC,
};
use verbena_lab_guest::ffi::qp::{mask, state};
use verbena_lab_guest::ffi::QpAttr;

pub fn run(recovers: bool) -> Result<bool> {
    let device = Device::open()?;
    let from = End::new(&device, UC, PIECES, None)?;
    let to = End::new(&device, UC, PIECES, None)?;
    let mut work = Work::default();
    prepare(&from, &to);
    connect(&device, [&from, &to], PATIENT)?;
    for _ in 0..5 {
        match work.write_rest(&from, &to)? {
            Round::Done => return Ok(arrived(&from, &to) == PIECES),
            Round::Failed(_) if recovers => {
                let attr = QpAttr {
                    cur_qp_state: state::SQE,
                    ..QpAttr::default()
                };
                from.modify(state::RTS, attr, mask::CUR_STATE)?;
            }
            Round::Failed(_) => {}
            Round::Silent => return Ok(false),
        }
    }
    Ok(false)
}
