// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Recovery from a fatal device error: all posted requests are flushed, and objects can only be
//! destroyed. The flow closes the device, and opens it again when its driver has recovered it.
use crate::verbs::{
    connect, count_arrived, prepare, Endpoint, OpenDevice, Result, Transfer, TransferStatus,
    MAX_RETRIES, PIECES, RC,
};
use std::thread::sleep;
use std::time::Duration;
use verbena_lab_guest::ffi::context::EventType;

/// Number of attempts to open the device. The driver needs some seconds to recover it.
const TRIES: usize = 300;

fn reopen() -> Result<OpenDevice> {
    for _ in 0..TRIES {
        if let Ok(device) = OpenDevice::open() {
            return Ok(device);
        }
        sleep(Duration::from_millis(100));
    }
    Err("the device cannot be opened again within 30 s".into())
}

pub fn run(recovers: bool) -> Result<bool> {
    let mut device = OpenDevice::open()?;
    for life in 0.. {
        let from = Endpoint::new(&device, RC, PIECES, None)?;
        let to = Endpoint::new(&device, RC, PIECES, None)?;
        prepare(&from, &to);
        connect(&device, [&from, &to], MAX_RETRIES)?;
        let mut round = Transfer::default().write_rest(&from, &to)?;
        if round == TransferStatus::Done {
            return Ok(count_arrived(&from, &to) == PIECES);
        }
        if !recovers {
            println!("flushed: both ends reconnect");
            connect(&device, [&from, &to], MAX_RETRIES)?;
            round = Transfer::default().write_rest(&from, &to)?;
            return Ok(round == TransferStatus::Done && count_arrived(&from, &to) == PIECES);
        }
        if life > 0 || !device.wait_for_event(EventType::DEVICE_FATAL, Duration::from_secs(5)) {
            return Ok(false);
        }
        println!("IBV_EVENT_DEVICE_FATAL: the device is opened again");
        // All objects of the device are destroyed before the device is opened again.
        drop((from, to, device));
        device = reopen()?;
    }
    Ok(false)
}
