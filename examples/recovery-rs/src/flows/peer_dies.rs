// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Recovery from ERR: a WRITE fails, and the requests after it are flushed. The flow moves the
//! queue pairs through RESET to RTS again.
use crate::verbs::{
    connect, count_arrived, prepare, Endpoint, OpenDevice, Result, RetryLimits, Transfer,
    TransferStatus, PIECES, RC,
};

const RETRY_LIMITS: RetryLimits = RetryLimits {
    timeout: 14,
    retry_cnt: 3,
    rnr_retry: 7,
};

pub fn run(recovers: bool) -> Result<bool> {
    let device = OpenDevice::open()?;
    let [from, to] = [0; 2].map(|_| Endpoint::new(&device, RC, PIECES, None));
    let (from, to) = (from?, to?);
    let mut transfer = Transfer::default();
    prepare(&from, &to);
    connect(&device, [&from, &to], RETRY_LIMITS)?;
    for _ in 0..10 {
        // `write_rest` returns when each work request has its completion, so no request is pending
        // then.
        match transfer.write_rest(&from, &to)? {
            TransferStatus::Done => break,
            TransferStatus::Failed(_) if recovers => connect(&device, [&from, &to], RETRY_LIMITS)?,
            // Without recovery, the requests of the next round are flushed again.
            TransferStatus::Failed(_) => {}
            TransferStatus::Silent => return Ok(false),
        }
    }
    println!(
        "{} of {PIECES} pieces have arrived",
        count_arrived(&from, &to)
    );
    Ok(count_arrived(&from, &to) == PIECES)
}
