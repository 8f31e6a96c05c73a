// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A queue pair in ERR: a WRITE fails, and what is behind it is flushed. Through RESET to RTS again.
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
        // It returns when each work request has its completion: nothing is under way any more.
        match work.write_rest(&from, &to)? {
            Round::Done => break,
            Round::Failed(_) if recovers => connect(&device, [&from, &to], PATIENCE)?,
            // Posted again, they are flushed again.
            Round::Failed(_) => {}
            Round::Silent => return Ok(false),
        }
    }
    println!("{} pieces are there", arrived(&from, &to));
    Ok(arrived(&from, &to) == PIECES)
}
