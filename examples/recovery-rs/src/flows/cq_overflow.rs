// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Recovery from a CQ in error: the CQ has no room for a completion, its queue pairs are in ERR,
//! and their further completions are lost. The flow creates the queue pair and the CQ again, with a
//! larger CQ.
use crate::verbs::{
    connect, count_arrived, prepare, Endpoint, OpenDevice, Result, Transfer, TransferStatus,
    MAX_RETRIES, PIECES, RC,
};
use std::time::Duration;
use verbena_lab_guest::ffi::context::EventType;

pub fn run(recovers: bool) -> Result<bool> {
    let device = OpenDevice::open()?;
    let mut cqe = PIECES;
    let mut from = Endpoint::new(&device, RC, cqe, None)?;
    let to = Endpoint::new(&device, RC, PIECES, None)?;
    loop {
        prepare(&from, &to);
        connect(&device, [&from, &to], MAX_RETRIES)?;
        // After the CQ error, the program cannot know which work was done, so it does all of it
        // again.
        if Transfer::default().write_rest(&from, &to)? == TransferStatus::Done {
            return Ok(count_arrived(&from, &to) == PIECES);
        }
        // `wait_for_event` acknowledges the event. A CQ with an unacknowledged event cannot be
        // destroyed.
        let is_dead = device.wait_for_event(EventType::CQ_ERR, Duration::ZERO);
        if !recovers || !is_dead || cqe > 4 * PIECES {
            return Ok(false);
        }
        cqe *= 2;
        println!("IBV_EVENT_CQ_ERR: the new CQ has {cqe} entries");
        // The queue pair is destroyed first, and then its CQ.
        drop(from);
        from = Endpoint::new(&device, RC, cqe, None)?;
    }
}
