// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures the speed of the NIC's engine alone: RDMA WRITEs through the device model, without a
//! virtual machine.
//!
//! Prints a line of JSON for each test: `{test, size, unit, value, memcpy, ratio}`. `memcpy` is the
//! rate at which one thread copies the same buffers in the same order, page by page if they are
//! scattered. `ratio` is `value / memcpy`. Both are null in tests without a comparison. Each test
//! runs [`ROUNDS`] rounds and prints the medians. The WRITEs and the copies take turns in each
//! round, because other load on the machine slows both.

mod driver;
mod wire;

use clap::Parser;
use driver::{scattered, By, Direct, Driver, Link, Threaded, Write, DEPTH, PAGE, SOURCE, TARGET};
use serde_json::json;
use std::io;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};
use verbena_device::memory::GuestMemory;

const ROUNDS: usize = 7;
/// Duration of each measurement in a round.
const ROUND: Duration = Duration::from_millis(200);
const MESSAGE: u64 = 64 << 10;
/// Buffer size for which both buffers fit into any second-level or last-level cache.
const WITHIN: u64 = 512 << 10;
/// Size of the last-level cache in bytes if the machine does not report it.
const LLC_FALLBACK: u64 = 32 << 20;
/// Largest size of either buffer in bytes.
const BEYOND_MAX: u64 = 256 << 20;

/// Measures the NIC's engine without a virtual machine.
#[derive(Parser)]
#[command(name = "verbena-bench")]
struct Args {
    /// Run only the tests whose names contain one of these words
    tests: Vec<String>,
    /// Number of queue pairs of `wire_many_*`
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=16_000))]
    qps: u32,
    /// Switch off congestion control: the queue pairs keep their largest window on a wire
    #[arg(long)]
    no_congestion_control: bool,
}

/// Name and function of a test.
type Test = (&'static str, Box<dyn Fn(&str) -> io::Result<()>>);

fn main() -> ExitCode {
    let args = Args::parse();
    let beyond = (llc() * 4).clamp(64 << 20, BEYOND_MAX);
    let qps = args.qps;
    let congestion_control = !args.no_congestion_control;
    let link = move |by| Link {
        by,
        congestion_control,
    };
    let tests: [Test; 16] = [
        (
            "engine_write_within_llc",
            Box::new(|name| bandwidth(name, WITHIN, false)),
        ),
        (
            "engine_write_beyond_llc",
            Box::new(move |name| bandwidth(name, beyond, false)),
        ),
        (
            "engine_write_4k_pages",
            Box::new(|name| bandwidth(name, 8 << 20, true)),
        ),
        (
            "engine_write_two_guests",
            Box::new(move |name| wire::threaded(name, link(By::Reference), 5)),
        ),
        (
            "engine_write_two_guests_frames",
            Box::new(move |name| wire::threaded(name, link(By::Frames), 5)),
        ),
        ("engine_write_rate", Box::new(rate)),
        ("engine_write_latency", Box::new(|name| latency(name, 0))),
        (
            "engine_write_latency_crowded",
            Box::new(|name| latency(name, cores())),
        ),
        ("engine_ping_pong", Box::new(ping_pong)),
        (
            "wire_cost_one_process",
            Box::new(move |name| wire::stepped(name, link(By::Reference))),
        ),
        (
            "wire_cost_unix",
            Box::new(move |name| wire::stepped(name, link(By::Unix))),
        ),
        (
            "wire_cost_udp",
            Box::new(move |name| wire::stepped(name, link(By::Udp))),
        ),
        (
            "wire_write_unix",
            Box::new(move |name| wire::threaded(name, link(By::Unix), 3)),
        ),
        (
            "wire_write_udp",
            Box::new(move |name| wire::threaded(name, link(By::Udp), 3)),
        ),
        (
            "wire_many_one_each",
            Box::new(move |name| wire::many(name, link(By::Unix), qps, 1)),
        ),
        (
            "wire_many_16_each",
            Box::new(move |name| wire::many(name, link(By::Unix), qps, 16)),
        ),
    ];
    let wanted = |name: &str| {
        args.tests.is_empty() || args.tests.iter().any(|test| name.contains(test.as_str()))
    };
    let mut chosen = tests.iter().filter(|(name, _)| wanted(name)).peekable();
    if chosen.peek().is_none() {
        let names: Vec<_> = tests.iter().map(|(name, _)| *name).collect();
        eprintln!(
            "verbena-bench: no test has {:?} in its name; the tests are: {}",
            args.tests.join(" or "),
            names.join(", ")
        );
        return ExitCode::from(2);
    }
    match chosen.try_for_each(|(name, test)| test(name)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("verbena-bench: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the size of the last-level cache in bytes.
fn llc() -> u64 {
    let sizes = (0..8).filter_map(|i| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{i}/size");
        let text = std::fs::read_to_string(path).ok()?;
        text.trim().strip_suffix('K')?.parse::<u64>().ok()
    });
    sizes.max().map_or(LLC_FALLBACK, |kib| kib << 10)
}

/// Calls `batch` until [`ROUND`] is over. Returns the sum of its results (bytes or operations) per
/// second.
fn measure(batch: impl FnMut() -> io::Result<u64>) -> io::Result<f64> {
    let start = Instant::now();
    measure_by(|| start.elapsed(), batch)
}

/// Does the same, but measures the time with `clock`.
fn measure_by(
    clock: impl Fn() -> Duration,
    mut batch: impl FnMut() -> io::Result<u64>,
) -> io::Result<f64> {
    let (start, mut total) = (clock(), 0);
    loop {
        total += batch()?;
        let elapsed = clock().saturating_sub(start);
        if elapsed >= ROUND {
            return Ok(total as f64 / elapsed.as_secs_f64());
        }
    }
}

/// Returns the CPU time of this thread, which excludes the time of other threads and processes.
fn busy() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Returns `count` consecutive messages, which start again at the beginning of the buffer after
/// `size` bytes.
fn through(count: u64, size: u64) -> Vec<Write> {
    let places = (0..count).map(|i| i * MESSAGE % size);
    let writes = places.map(|at| Write {
        from: at,
        to: at,
        length: MESSAGE as u32,
    });
    writes.collect()
}

fn bandwidth(name: &str, size: u64, scatter: bool) -> io::Result<()> {
    let mut driver = Driver::new(Direct::new(), size, scatter)?;
    // A batch passes over a small buffer several times, so that it fills the send ring.
    let count = (size / MESSAGE).max(DEPTH.into());
    let bytes = count * MESSAGE;
    let writes = through(count, size);
    let (mut values, mut copies) = (vec![], vec![]);
    for _ in 0..ROUNDS {
        values.push(measure(|| driver.run(&writes).map(|()| bytes))?);
        copies.push(measure(|| {
            let piece = if scatter { PAGE } else { MESSAGE };
            let pieces = writes
                .iter()
                .flat_map(|write| (0..MESSAGE / piece).map(move |i| (write, i * piece)));
            for (write, offset) in pieces {
                let place = |at: u64| if scatter { scattered(at) } else { at };
                let to = TARGET + place(write.to + offset);
                let from = SOURCE + place(write.from + offset);
                let copied = driver.ram.copy_from(to, &driver.ram, from, piece as usize);
                copied.map_err(|_| io::Error::other("a buffer is not in the driver's memory"))?;
            }
            Ok(bytes)
        })?);
    }
    let gib = f64::from(1 << 30);
    let (value, memcpy) = (median(values) / gib, median(copies) / gib);
    print(name, MESSAGE, "GiB/s", value, Some(memcpy));
    Ok(())
}

fn rate(name: &str) -> io::Result<()> {
    let mut driver = Driver::new(Direct::new(), 1 << 20, false)?;
    let writes: Vec<_> = (0..u64::from(DEPTH))
        .map(|i| Write {
            from: i * 64,
            to: i * 64,
            length: 8,
        })
        .collect();
    let mut values = vec![];
    for _ in 0..ROUNDS {
        values.push(measure(|| driver.run(&writes).map(|()| u64::from(DEPTH)))?);
    }
    print(name, 8, "1/s", median(values), None);
    Ok(())
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from)
}

/// Measures the time from post to completion, with the engine in its own thread, while `rivals - 1`
/// other threads (none if `rivals` is 0) keep cores busy, as virtual CPUs do.
fn latency(name: &str, rivals: usize) -> io::Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    let rivals: Vec<_> = (1..rivals)
        .map(|_| {
            let stop = stop.clone();
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        })
        .collect();
    let mut driver = Driver::new(Threaded::start()?, 1 << 20, false)?;
    let write = [Write {
        from: 0,
        to: 0,
        length: 8,
    }];
    let mut times = vec![];
    let start = Instant::now();
    while start.elapsed() < ROUND * ROUNDS as u32 {
        let begin = Instant::now();
        driver.run(&write)?;
        times.push(begin.elapsed().as_secs_f64() * 1e6);
    }
    stop.store(true, Ordering::Relaxed);
    for rival in rivals {
        let _ = rival.join();
    }
    times.sort_by(f64::total_cmp);
    print(name, 8, "us", times[times.len() / 2], None);
    Ok(())
}

/// Measures half a round trip between two threads that never sleep. Together with the engine, the
/// test has more threads than two cores can run.
fn ping_pong(name: &str) -> io::Result<()> {
    let mut driver = Driver::new(Threaded::start()?, 1 << 20, false)?;
    driver
        .ram
        .write(SOURCE, &[0; 128])
        .and(driver.ram.write(TARGET, &[0; 128]))
        .map_err(|_| io::ErrorKind::Other)?;
    let mut times = driver.ping_pong(5_000, Duration::from_micros(3));
    times.sort_by(f64::total_cmp);
    print(name, 4, "us", times[times.len() / 2] * 0.5e6, None);
    Ok(())
}

fn print(test: &str, size: u64, unit: &str, value: f64, memcpy: Option<f64>) {
    let round = |value: f64| (value * 1000.0).round() / 1000.0;
    let line = json!({
        "test": test,
        "size": size,
        "unit": unit,
        "value": round(value),
        "memcpy": memcpy.map(round),
        "ratio": memcpy.map(|memcpy| round(value / memcpy)),
    });
    println!("{line}");
}
