// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Between two devices: of one process, or of two that are joined by the NIC's own uplinks.
//!
//! `stepped` tests have everything in one thread and by its own clock, so they tell what a byte costs both ends together; with
//! `threaded` ones each engine has a thread, as in NICs.

use crate::driver::{scattered, Backend, Driver, Link, Port, Shape, Stepped, Threaded, DEPTH};
use crate::driver::{PAGE, SOURCE, TARGET};
use crate::{busy, measure_by, median, print, through, MESSAGE, ROUNDS, WITHIN};
use std::io;
use std::time::{Duration, Instant};
use verbena_device::memory::GuestMemory;

/// The path MTU of Ethernet's 1500 bytes, as `enum ib_mtu`.
const ETHERNET: u8 = 3;
/// What single queue pairs have outstanding beside many: as much as keeps a wire busy.
const SINGLE: u32 = 64;

/// Two drivers with devices that are made alike.
fn pair<B: Backend>([a, b]: [B; 2], shape: Shape) -> io::Result<[Driver<B>; 2]> {
    let ports = [Port::of(1), Port::of(2)];
    Ok([
        Driver::between(a, shape, ports)?,
        Driver::between(b, shape, [ports[1], ports[0]])?,
    ])
}

/// WRITEs of 64 KiB, with an engine's thread for each process.
pub fn threaded(name: &str, link: Link, mtu: u8) -> io::Result<()> {
    let start = Instant::now();
    bandwidth(name, Threaded::start_two(link)?, mtu, || start.elapsed())
}

/// The same in one thread, over Ethernet's path MTU.
pub fn stepped(name: &str, link: Link) -> io::Result<()> {
    bandwidth(name, Stepped::two(link)?, ETHERNET, busy)
}

fn bandwidth<B: Backend>(
    name: &str,
    ends: [B; 2],
    mtu: u8,
    clock: impl Fn() -> Duration,
) -> io::Result<()> {
    let shape = Shape {
        mtu,
        ..Shape::new(WITHIN, true)
    };
    let [mut a, b] = pair(ends, shape)?;
    let writes = through(DEPTH.into(), WITHIN);
    let (mut values, mut copies) = (vec![], vec![]);
    for _ in 0..ROUNDS {
        let bytes = MESSAGE * u64::from(DEPTH);
        values.push(measure_by(&clock, || a.run(&writes).map(|()| bytes))?);
        copies.push(measure_by(&clock, || {
            for at in (0..WITHIN).step_by(PAGE as usize).map(scattered) {
                let copied = b
                    .ram
                    .copy_from(TARGET + at, &a.ram, SOURCE + at, PAGE as usize);
                copied.map_err(|_| io::Error::other("a buffer cannot be reached"))?;
            }
            Ok(WITHIN)
        })?);
    }
    let gib = f64::from(1 << 30);
    let (value, memcpy) = (median(values) / gib, median(copies) / gib);
    print(name, MESSAGE, "GiB/s", value, Some(memcpy));
    Ok(())
}

/// WRITEs of 8 bytes: those of so many queue pairs, each with so many outstanding, beside those of one that has
/// [`SINGLE`] outstanding, or `depth` if that is more. In place of `memcpy` stands the single one's rate.
pub fn many(name: &str, link: Link, qps: u32, depth: u32) -> io::Result<()> {
    let shape = |queues, log_depth| Shape {
        mtu: ETHERNET,
        queues,
        log_depth,
        ..Shape::new(WITHIN, false)
    };
    let outstanding = SINGLE.max(depth);
    let single = shape(1, outstanding.ilog2() as u8);
    let [mut one, _its_peer] = pair(Stepped::two(link)?, single)?;
    let [mut all, _their_peers] = pair(Stepped::two(link)?, shape(qps, depth.ilog2() as u8))?;
    let (mut values, mut singles) = (vec![], vec![]);
    for _ in 0..ROUNDS {
        let count = u64::from(qps) * u64::from(depth);
        values.push(measure_by(busy, || all.run_each(depth, 8).map(|()| count))?);
        singles.push(measure_by(busy, || {
            let run = one.run_each(outstanding, 8);
            run.map(|()| outstanding.into())
        })?);
    }
    print(name, 8, "1/s", median(values), Some(median(singles)));
    Ok(())
}
