// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A small driver: connected queue pairs of one device or of two devices, over memory files as
//! guests have them.
//!
//! The driver uses only the interface of the device: registers, command slots, doorbell areas and
//! rings. It calls the device directly ([`Direct`]), or the device runs in the NIC's own engine, in
//! a thread ([`Threaded`]) or in the driver's thread ([`Stepped`]).

use rustix::fs::{fcntl_add_seals, ftruncate, memfd_create, MemfdFlags, SealFlags};
use std::io;
use std::time::{Duration, Instant};
use verbena_abi::{regs, wqe, ABI_VERSION};
use verbena_device::memory::GuestMemory;
use verbena_nic::guest_ram::GuestRam;

mod backend;
mod data;
mod link;
mod ping_pong;
mod setup;

pub use backend::{Backend, Direct, Stepped, Threaded};
pub use link::{By, Link};

/// The driver's own memory: its address, the size for rings, tables and command slots, and the
/// additional size for each queue pair.
const OWN: u64 = 0;
const OWN_SIZE: u64 = 16 << 20;
const QUEUE_SIZE: u64 = 8 << 10;
/// Addresses of the source buffer and of the target buffer.
pub const SOURCE: u64 = 1 << 40;
pub const TARGET: u64 = 2 << 40;

const PD: u32 = 7;
const UAR: u32 = 1;
const LKEY: u32 = 1 << 8;
const RKEY: u32 = 2 << 8;
const CQN: u32 = 1;
/// Time after which a wait has failed.
const PATIENCE: Duration = Duration::from_secs(20);

/// Page size of scattered buffers in bytes.
pub const PAGE: u64 = 4096;

/// Returns the memory offset for an offset of a scattered buffer. The two pages of each pair are
/// swapped, so no contiguous run is longer than a page.
pub const fn scattered(offset: u64) -> u64 {
    offset ^ PAGE
}

/// log2 of the number of entries of the default send ring, and of the smallest CQ.
pub const LOG_DEPTH: u8 = 7;
/// Number of entries of the default send ring.
pub const DEPTH: u32 = 1 << LOG_DEPTH;
const LOG_STRIDE: u8 = wqe::log_sq_stride(false, 1, 0);

/// MAC address and GID of one end of the connections.
#[derive(Clone, Copy)]
pub struct Port {
    mac: [u8; 6],
    gid: [u8; 16],
}

impl Port {
    /// Returns the addresses of device `n`.
    pub const fn of(n: u8) -> Self {
        Self {
            mac: [2, 0, 0, 0, 0, n],
            gid: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, n],
        }
    }
}

/// Parameters of the objects that a driver creates.
#[derive(Clone, Copy)]
pub struct Shape {
    /// Size of each buffer in bytes.
    pub size: u64,
    /// True if the buffers are registered in pages of 4 KiB, like those of a guest. False if they
    /// are registered as one contiguous range.
    pub scatter: bool,
    /// Path MTU as `enum ib_mtu`.
    pub mtu: u8,
    /// Number of queue pairs.
    pub queues: u32,
    /// log2 of the number of entries of each send ring.
    pub log_depth: u8,
}

impl Shape {
    /// Returns the parameters for two queue pairs with the largest path MTU.
    pub const fn new(size: u64, scatter: bool) -> Self {
        Self {
            size,
            scatter,
            mtu: 5,
            queues: 2,
            log_depth: LOG_DEPTH,
        }
    }

    /// Returns log2 of the number of CQ entries. The CQ has room for the entries of all send rings.
    fn log_cq(&self) -> u8 {
        let all = self.queues.next_power_of_two().ilog2() as u8 + self.log_depth;
        all.max(LOG_DEPTH)
    }
}

/// A queue pair of the driver.
struct Queue {
    /// Address of the send ring, and producer index.
    sq: u64,
    producer: u32,
    /// Number and address of the doorbell area, and the slot in it.
    uar: u32,
    area: u64,
    slot: usize,
}

/// Source, target and length of an RDMA WRITE.
#[derive(Clone, Copy)]
pub struct Write {
    /// Offset in the source buffer.
    pub from: u64,
    /// Offset in the target buffer.
    pub to: u64,
    /// Length in bytes.
    pub length: u32,
}

/// The driver, its memory and the device.
pub struct Driver<B> {
    pub ram: GuestRam,
    backend: B,
    /// Number of doorbells that had to be rung.
    pub rings: u64,
    free: u64,
    slots: u64,
    token: u32,
    shape: Shape,
    queues: Vec<Queue>,
    cq: u64,
    /// Number of writes that were posted, and of those that have completed, on all queue pairs.
    posted: u32,
    consumer: u32,
}

fn memory(ram: &mut GuestRam, backend: &mut impl Backend, addr: u64, len: u64) -> io::Result<()> {
    let fd = memfd_create("verbena-bench", MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&fd, len)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK)?;
    backend.map(addr, len, &fd)?;
    ram.map(addr, len, &fd, 0, true)?;
    // Memory that was never written reads as a single zero page, and the benchmark has to measure
    // copies of distinct pages.
    let block = vec![0x5a; 1 << 20];
    for offset in (0..len).step_by(block.len()) {
        let part = block.len().min((len - offset) as usize);
        ram.write(addr + offset, &block[..part])
            .map_err(unreachable)?;
    }
    Ok(())
}

fn unreachable(_: verbena_device::memory::Unreachable) -> io::Error {
    io::Error::other("an address is not in the driver's memory")
}

impl<B: Backend> Driver<B> {
    /// Creates a device with two queue pairs that are connected to each other, and a source and a
    /// target buffer of `size` bytes. [`Shape::scatter`] describes `scatter`.
    pub fn new(backend: B, size: u64, scatter: bool) -> io::Result<Self> {
        Self::between(backend, Shape::new(size, scatter), [Port::of(1); 2])
    }

    /// Creates a device whose queue pairs are connected to those with the same numbers on another
    /// device. The other device is created with the same shape and with the ports in reverse order.
    pub fn between(mut backend: B, shape: Shape, ports: [Port; 2]) -> io::Result<Self> {
        let mut ram = GuestRam::new();
        let own = OWN_SIZE + u64::from(shape.queues) * QUEUE_SIZE;
        memory(&mut ram, &mut backend, OWN, own)?;
        memory(&mut ram, &mut backend, SOURCE, shape.size)?;
        memory(&mut ram, &mut backend, TARGET, shape.size)?;
        let mut driver = Self {
            backend,
            rings: 0,
            ram,
            free: 4096,
            slots: 0,
            token: 0,
            shape,
            queues: vec![],
            cq: 0,
            posted: 0,
            consumer: 0,
        };
        driver.slots = driver.alloc(4096)?;
        for (register, value) in [
            (regs::VERSION_SELECT, ABI_VERSION.into()),
            (regs::CMDQ_BASE_LO, driver.slots as u32),
            (regs::CMDQ_BASE_HI, (driver.slots >> 32) as u32),
            (regs::CMDQ_SLOTS, 1),
            (regs::CMDQ_ENABLE, 1),
        ] {
            driver.backend.write(&driver.ram, register, value);
        }
        let start = Instant::now();
        while driver.backend.read(regs::STATUS) != regs::STATUS_READY {
            driver.backend.work(&driver.ram);
            if start.elapsed() > PATIENCE {
                return Err(io::Error::other(format!(
                    "the device has not enabled the command queue within {PATIENCE:?}: status {:#x}",
                    driver.backend.read(regs::STATUS)
                )));
            }
        }
        driver.set_up(ports)?;
        Ok(driver)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writes_arrive<B: Backend>(backend: B, scatter: bool) {
        let size = 256 << 10;
        let mut driver = Driver::new(backend, size, scatter).unwrap();
        let data: Vec<u8> = (0..size).map(|i| (i * 7 + i / 251) as u8).collect();
        driver.ram.write(SOURCE, &data).unwrap();
        let step = 8 << 10;
        let writes: Vec<_> = (0..size)
            .step_by(step)
            .map(|at| Write {
                from: at,
                to: at,
                length: step as u32,
            })
            .collect();
        for _ in 0..20 {
            driver.run(&writes).unwrap();
        }
        let mut back = vec![0; size as usize];
        driver.ram.read(TARGET, &mut back).unwrap();
        assert!(back == data);
    }

    #[test]
    fn writes_arrive_byte_for_byte() {
        writes_arrive(Direct::new(), false);
        writes_arrive(Direct::new(), true);
        writes_arrive(Threaded::start().unwrap(), true);
    }

    /// Returns two guests, and data and WRITEs from the first to the second.
    fn two<B: Backend>([a, b]: [B; 2]) -> (Driver<B>, Driver<B>, Vec<u8>, Vec<Write>) {
        let size = 256u64 << 10;
        let ports = [Port::of(1), Port::of(2)];
        let shape = Shape::new(size, true);
        let a = Driver::between(a, shape, ports).unwrap();
        let b = Driver::between(b, shape, [ports[1], ports[0]]).unwrap();
        let data: Vec<u8> = (0..size).map(|i| (i * 7 + i / 251) as u8).collect();
        a.ram.write(SOURCE, &data).unwrap();
        let at = |at| Write {
            from: at,
            to: at,
            length: 32 << 10,
        };
        let writes = (0..size).step_by(32 << 10).map(at).collect();
        (a, b, data, writes)
    }

    fn writes_arrive_in_the_other<B: Backend>(ends: [B; 2]) {
        let (mut a, b, data, writes) = two(ends);
        for _ in 0..20 {
            a.run(&writes).unwrap();
        }
        let read = |ram: &GuestRam, at| {
            let mut bytes = vec![0; data.len()];
            ram.read(at, &mut bytes).unwrap();
            bytes
        };
        assert!(read(&b.ram, TARGET) == data);
        for (ram, at) in [(&a.ram, TARGET), (&b.ram, SOURCE)] {
            assert!(read(ram, at).iter().all(|byte| *byte == 0x5a));
        }
    }

    #[test]
    fn writes_arrive_in_the_other_guest_and_in_no_other_place() {
        for link in Link::all() {
            writes_arrive_in_the_other(Threaded::start_two(link).unwrap());
            writes_arrive_in_the_other(Stepped::two(link).unwrap());
        }
    }

    #[test]
    fn the_writes_of_many_queue_pairs_complete() {
        let shape = Shape {
            queues: 300,
            log_depth: 2,
            ..Shape::new(64 << 10, false)
        };
        let [a, b] = Stepped::two(By::Unix.into()).unwrap();
        let ports = [Port::of(1), Port::of(2)];
        let mut a = Driver::between(a, shape, ports).unwrap();
        let _b = Driver::between(b, shape, [ports[1], ports[0]]).unwrap();
        for count in [1, 4, 3] {
            a.run_each(count, 8).unwrap();
        }
        assert_eq!(a.consumer, 300 * 8);
        assert!(a.queues.iter().all(|queue| queue.producer == 8));
    }

    /// The sending guest is reset, or loses bus mastering or its memory, at some moment. All bytes
    /// that arrive are bytes that were sent, and the other guest continues.
    #[test]
    fn the_end_of_a_guest_in_the_middle_of_writes_does_not_affect_its_peer() {
        for round in 0..3u32 {
            let (mut a, mut b, data, writes) =
                two(Threaded::start_two(By::Reference.into()).unwrap());
            let shared = a.backend.0.clone();
            let gone = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_micros(500 + 700 * u64::from(round)));
                match round {
                    0 => shared.begin_reset(),
                    1 => shared.set_bus_master(false),
                    _ => drop(shared.ram_mut().clear()),
                }
            });
            // After the end of the guest, nothing completes any more.
            while !gone.is_finished() {
                if a.posted.wrapping_sub(a.consumer) + writes.len() as u32 <= DEPTH {
                    a.start(&writes).unwrap();
                }
                if a.poll().is_err() {
                    break;
                }
            }
            gone.join().unwrap();
            b.command(verbena_abi::cmd::QueryDevice::default()).unwrap();
            let mut bytes = vec![0; data.len()];
            b.ram.read(TARGET, &mut bytes).unwrap();
            let is_good = |(now, sent): (&u8, &u8)| *now == 0x5a || now == sent;
            assert!(bytes.iter().zip(&data).all(is_good), "round {round}");
        }
    }

    /// The gaps between posts are close to the time after which the engine sleeps. The engine
    /// notices each post, by polling or by its doorbell.
    #[test]
    fn single_posts_with_gaps_are_noticed() {
        let count = std::env::var("VERBENA_POSTS").map_or(300, |n| n.parse().unwrap());
        let mut driver = Driver::new(Threaded::start().unwrap(), 4096, false).unwrap();
        let write = [Write {
            from: 0,
            to: 0,
            length: 8,
        }];
        let mut random: u64 = 1;
        for _ in 0..count {
            random = random
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            std::thread::sleep(Duration::from_micros((random >> 33) % 2000));
            driver.run(&write).unwrap();
        }
        // Some gaps are longer than the engine stays awake.
        assert!(driver.rings > 0);
    }
}
