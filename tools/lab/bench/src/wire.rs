// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests between two devices of one process, or of two processes that are joined by the NIC's own
//! uplinks.
//!
//! `stepped` tests run everything in one thread and measure the CPU time of that thread, so they
//! show the cost of a byte at both ends together. In `threaded` tests each engine has its own
//! thread, as in real NICs.

use crate::driver::{scattered, Backend, Driver, Link, Port, Shape, Stepped, Threaded, DEPTH};
use crate::driver::{PAGE, SOURCE, TARGET};
use crate::{busy, measure_by, median, print, through, MESSAGE, ROUNDS, WITHIN};
use std::io;
use std::time::{Duration, Instant};
use verbena_device::memory::GuestMemory;

/// Path MTU that fits into Ethernet's 1500 bytes, as `enum ib_mtu`.
const ETHERNET: u8 = 3;
/// Number of outstanding WRITEs of the single queue pair that is compared with many. This number
/// keeps a wire busy.
const SINGLE: u32 = 64;

/// Creates two drivers whose devices have the same shape.
fn pair<B: Backend>([a, b]: [B; 2], shape: Shape) -> io::Result<[Driver<B>; 2]> {
    let ports = [Port::of(1), Port::of(2)];
    Ok([
        Driver::between(a, shape, ports)?,
        Driver::between(b, shape, [ports[1], ports[0]])?,
    ])
}

/// Measures WRITEs of 64 KiB, with one engine thread for each process.
pub fn threaded(name: &str, link: Link, mtu: u8) -> io::Result<()> {
    let start = Instant::now();
    bandwidth(name, Threaded::start_two(link)?, mtu, || start.elapsed())
}

/// Measures WRITEs of 64 KiB in one thread, with Ethernet's path MTU.
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
                copied.map_err(|_| io::Error::other("a buffer is not in the driver's memory"))?;
            }
            Ok(WITHIN)
        })?);
    }
    let gib = f64::from(1 << 30);
    let (value, memcpy) = (median(values) / gib, median(copies) / gib);
    print(name, MESSAGE, "GiB/s", value, Some(memcpy));
    Ok(())
}

/// Measures WRITEs of 8 bytes on `qps` queue pairs, each with `depth` outstanding. Also measures
/// them on one queue pair with [`SINGLE`] outstanding, or with `depth` if that is more. The field
/// `memcpy` contains the rate of the single queue pair.
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
