// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Recovery from ERR: a WRITE fails, and the requests after it are flushed. The flow moves the
//! queue pairs through RESET to RTS again.
use crate::verbs::{
    arrived, connect, prepare, Device, End, Patience, Result, Round, Work, PIECES, RC,
};

const PATIENCE: Patience = Patience {
    timeout: 14,
    retry_cnt: 3,
    rnr_retry: 7,
};

pub fn run(recovers: bool) -> Result<bool> {
    let device = Device::open()?;
    let [from, to] = [0; 2].map(|_| End::new(&device, RC, PIECES, None));
    let (from, to) = (from?, to?);
    let mut work = Work::default();
    prepare(&from, &to);
    connect(&device, [&from, &to], PATIENCE)?;
    for _ in 0..10 {
        // `write_rest` returns when each work request has its completion, so no request is pending
        // then.
        match work.write_rest(&from, &to)? {
            Round::Done => break,
            Round::Failed(_) if recovers => connect(&device, [&from, &to], PATIENCE)?,
            // Without recovery, the requests of the next round are flushed again.
            Round::Failed(_) => {}
            Round::Silent => return Ok(false),
        }
    }
    println!("{} of {PIECES} pieces have arrived", arrived(&from, &to));
    Ok(arrived(&from, &to) == PIECES)
}
