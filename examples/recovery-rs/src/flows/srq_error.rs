// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Recovery from an SRQ in error: a queue pair that uses the SRQ is in ERR, and its receives get no
//! completions. The flow creates both again.
use crate::verbs::{
    connect, count_arrived, prepare, Endpoint, OpenDevice, Result, RetryLimits, Transfer,
    TransferStatus, VerbError, PIECES, RC,
};
use std::sync::Arc;
use std::time::Duration;
use verbena_lab_guest::ffi::context::EventType;
use verbena_lab_guest::ffi::destroy::Destroy;
use verbena_lab_guest::ffi::qp::Srq;

const RETRY_LIMITS: RetryLimits = RetryLimits {
    timeout: 14,
    retry_cnt: 3,
    rnr_retry: 7,
};

fn create_on_srq(device: &OpenDevice) -> Result<(Arc<Srq>, Endpoint)> {
    let srq = Srq::new(&device.pd, PIECES as u32, 1).or_refused("create an SRQ")?;
    let end = Endpoint::new(device, RC, PIECES, Some(&srq))?;
    Ok((srq, end))
}

fn send_all(from: &Endpoint, to: &Endpoint, srq: &Srq) -> Result<TransferStatus> {
    for piece in 0..PIECES {
        srq.post(&[to.receive(piece)])
            .or_refused("post a receive")?;
        from.send(piece)?;
    }
    Transfer::default().wait(from, PIECES)
}

pub fn run(recovers: bool) -> Result<bool> {
    let device = OpenDevice::open()?;
    let from = Endpoint::new(&device, RC, PIECES, None)?;
    let (mut srq, mut to) = create_on_srq(&device)?;
    prepare(&from, &to);
    connect(&device, [&from, &to], RETRY_LIMITS)?;
    let mut round = send_all(&from, &to, &srq)?;
    if matches!(round, TransferStatus::Failed(_)) {
        let is_dead = device.wait_for_event(EventType::SRQ_ERR, Duration::from_secs(1));
        if recovers && is_dead {
            println!("IBV_EVENT_SRQ_ERR: queue pair and SRQ are created again");
            // An SRQ cannot be destroyed while a queue pair uses it.
            drop(to);
            srq.destroy()
                .map_err(|(errno, _)| errno)
                .or_refused("destroy the SRQ")?;
            (srq, to) = create_on_srq(&device)?;
            prepare(&from, &to);
        }
        connect(&device, [&from, &to], RETRY_LIMITS)?;
        round = send_all(&from, &to, &srq)?;
    }
    Ok(round == TransferStatus::Done && count_arrived(&from, &to) == PIECES)
}
