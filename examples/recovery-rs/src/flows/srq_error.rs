// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Recovery from an SRQ in error: a queue pair that uses the SRQ is in ERR, and its receives get no
//! completions. The flow creates both again.
use crate::verbs::{
    arrived, connect, prepare, Device, End, Patience, Refused, Result, Round, Work, PIECES, RC,
};
use std::sync::Arc;
use std::time::Duration;
use verbena_lab_guest::ffi::context::EventType;
use verbena_lab_guest::ffi::destroy::Destroy;
use verbena_lab_guest::ffi::qp::Srq;

const PATIENCE: Patience = Patience {
    timeout: 14,
    retry_cnt: 3,
    rnr_retry: 7,
};

fn on_srq(device: &Device) -> Result<(Arc<Srq>, End)> {
    let srq = Srq::new(&device.pd, PIECES as u32, 1).to("create an SRQ")?;
    let end = End::new(device, RC, PIECES, Some(&srq))?;
    Ok((srq, end))
}

fn send_all(from: &End, to: &End, srq: &Srq) -> Result<Round> {
    for piece in 0..PIECES {
        srq.post(&[to.receive(piece)]).to("post a receive")?;
        from.send(piece)?;
    }
    Work::default().wait(from, PIECES)
}

pub fn run(recovers: bool) -> Result<bool> {
    let device = Device::open()?;
    let from = End::new(&device, RC, PIECES, None)?;
    let (mut srq, mut to) = on_srq(&device)?;
    prepare(&from, &to);
    connect(&device, [&from, &to], PATIENCE)?;
    let mut round = send_all(&from, &to, &srq)?;
    if matches!(round, Round::Failed(_)) {
        let is_dead = device.event_came(EventType::SRQ_ERR, Duration::from_secs(1));
        if recovers && is_dead {
            println!("IBV_EVENT_SRQ_ERR: queue pair and SRQ are created again");
            // An SRQ cannot be destroyed while a queue pair uses it.
            drop(to);
            srq.destroy()
                .map_err(|(errno, _)| errno)
                .to("destroy the SRQ")?;
            (srq, to) = on_srq(&device)?;
            prepare(&from, &to);
        }
        connect(&device, [&from, &to], PATIENCE)?;
        round = send_all(&from, &to, &srq)?;
    }
    Ok(round == Round::Done && arrived(&from, &to) == PIECES)
}
