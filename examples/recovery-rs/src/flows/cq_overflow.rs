// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A CQ in error: it has no room for a completion, its queue pairs are in ERR, and what would complete there completes nowhere. All of it is made
//! anew, with a larger CQ.
use crate::verbs::{
    arrived, connect, prepare, Device, End, Result, Round, Work, PATIENT, PIECES, RC,
};
use std::time::Duration;
use verbena_testing::ffi::context::EventType;

pub fn run(recovers: bool) -> Result<bool> {
    let device = Device::open()?;
    let mut cqe = PIECES;
    let mut from = End::new(&device, RC, cqe, None)?;
    let to = End::new(&device, RC, PIECES, None)?;
    loop {
        prepare(&from, &to);
        connect(&device, [&from, &to], PATIENT)?;
        // Which work was done when the CQ died is not known, so that all of it is done again.
        if Work::default().write_rest(&from, &to)? == Round::Done {
            return Ok(arrived(&from, &to) == PIECES);
        }
        // The event is acknowledged when this returns: a CQ with an event that is not cannot be destroyed.
        let is_dead = device.event_came(EventType::CQ_ERR, Duration::ZERO);
        if !recovers || !is_dead || cqe > 4 * PIECES {
            return Ok(false);
        }
        cqe *= 2;
        println!("IBV_EVENT_CQ_ERR: a CQ of {cqe} entries");
        // First its queue pair, then its CQ.
        drop(from);
        from = End::new(&device, RC, cqe, None)?;
    }
}
