// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Recovery from a fatal device error: all posted requests are flushed, and objects can only be
//! destroyed. The flow closes the device, and opens it again when its driver has recovered it.
use crate::verbs::{
    arrived, connect, prepare, Device, End, Result, Round, Work, PATIENT, PIECES, RC,
};
use std::thread::sleep;
use std::time::Duration;
use verbena_lab_guest::ffi::context::EventType;

/// Number of attempts to open the device. The driver needs some seconds to recover it.
const TRIES: usize = 300;

fn again() -> Result<Device> {
    for _ in 0..TRIES {
        if let Ok(device) = Device::open() {
            return Ok(device);
        }
        sleep(Duration::from_millis(100));
    }
    Err("the device cannot be opened again within 30 s".into())
}

pub fn run(recovers: bool) -> Result<bool> {
    let mut device = Device::open()?;
    for life in 0.. {
        let from = End::new(&device, RC, PIECES, None)?;
        let to = End::new(&device, RC, PIECES, None)?;
        prepare(&from, &to);
        connect(&device, [&from, &to], PATIENT)?;
        let mut round = Work::default().write_rest(&from, &to)?;
        if round == Round::Done {
            return Ok(arrived(&from, &to) == PIECES);
        }
        if !recovers {
            println!("flushed: both ends reconnect");
            connect(&device, [&from, &to], PATIENT)?;
            round = Work::default().write_rest(&from, &to)?;
            return Ok(round == Round::Done && arrived(&from, &to) == PIECES);
        }
        if life > 0 || !device.event_came(EventType::DEVICE_FATAL, Duration::from_secs(5)) {
            return Ok(false);
        }
        println!("IBV_EVENT_DEVICE_FATAL: the device is opened again");
        // All objects of the device are destroyed before the device is opened again.
        drop((from, to, device));
        device = again()?;
    }
    Ok(false)
}
