// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A driver of a few lines: two connected queue pairs of one device over memory files, as two guests would have them.
//!
//! Everything goes through the device's real interface: registers, command slots, doorbell area, rings. The device is
//! called directly ([`Direct`]), or runs in the NIC's own engine thread ([`Threaded`]).

use rustix::fs::{fcntl_add_seals, ftruncate, memfd_create, MemfdFlags, SealFlags};
use std::io;
use std::time::{Duration, Instant};
use verbena_abi::cmd::FIRST_QPN;
use verbena_abi::{regs, wqe, ABI_VERSION};
use verbena_device::memory::GuestMemory;
use verbena_nic::guest_ram::GuestRam;

mod backend;
mod data;
mod ping_pong;
mod setup;

pub use backend::{Backend, Direct, Threaded};

/// The driver's own memory: rings, tables, command slots.
const OWN: u64 = 0;
const OWN_SIZE: u64 = 16 << 20;
/// The buffers of the writing and of the written guest.
pub const SOURCE: u64 = 1 << 40;
pub const TARGET: u64 = 2 << 40;

const PD: u32 = 7;
const UAR: u32 = 1;
const LKEY: u32 = 1 << 8;
const RKEY: u32 = 2 << 8;
const CQN: u32 = 1;
const REQUESTER: u32 = FIRST_QPN;
const RESPONDER: u32 = FIRST_QPN + 1;
/// Only a failure waits so long.
const PATIENCE: Duration = Duration::from_secs(20);

/// What scattered buffers are registered in.
pub const PAGE: u64 = 4096;

/// Where a byte of a scattered buffer is in memory: each pair of pages has changed places, so no run is longer than a page.
pub const fn scattered(offset: u64) -> u64 {
    offset ^ PAGE
}

/// Entries of the send ring and of the CQ.
pub const LOG_DEPTH: u8 = 7;
/// The same as a number.
pub const DEPTH: u32 = 1 << LOG_DEPTH;
const LOG_STRIDE: u8 = wqe::log_sq_stride(false, 1, 0);

/// The addresses of a device: one of two, or the same for both ends.
#[derive(Clone, Copy)]
pub struct Port {
    mac: [u8; 6],
    gid: [u8; 16],
}

impl Port {
    /// Of device `n`.
    pub const fn of(n: u8) -> Self {
        Self {
            mac: [2, 0, 0, 0, 0, n],
            gid: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, n],
        }
    }
}

/// One RDMA WRITE.
#[derive(Clone, Copy)]
pub struct Write {
    /// Offset in the source buffer.
    pub from: u64,
    /// Offset in the target buffer.
    pub to: u64,
    /// Bytes.
    pub length: u32,
}

/// The driver, its memory and the device.
pub struct Driver<B> {
    pub ram: GuestRam,
    backend: B,
    /// Doorbells that had to be rung.
    pub rings: u64,
    free: u64,
    slots: u64,
    token: u32,
    area: u64,
    sq: u64,
    /// The send ring of the responder, which is used for ping-pong only.
    other_sq: u64,
    cq: u64,
    producer: u32,
    consumer: u32,
}

fn memory(ram: &mut GuestRam, backend: &mut impl Backend, addr: u64, len: u64) -> io::Result<()> {
    let fd = memfd_create("verbena-bench", MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&fd, len)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK)?;
    backend.map(addr, len, &fd)?;
    ram.map(addr, len, &fd, 0, true)?;
    // Memory that was never written is one zero page, which is not what is to be measured.
    let block = vec![0x5a; 1 << 20];
    for offset in (0..len).step_by(block.len()) {
        let part = block.len().min((len - offset) as usize);
        ram.write(addr + offset, &block[..part])
            .map_err(unreachable)?;
    }
    Ok(())
}

fn unreachable(_: verbena_device::memory::Unreachable) -> io::Error {
    io::Error::other("the driver's own memory cannot be reached")
}

impl<B: Backend> Driver<B> {
    /// A device with two connected queue pairs and a buffer of `size` bytes at each end. With `scatter` the buffers are
    /// registered in pages of 4 KiB, as a guest's are, else in one piece.
    pub fn new(backend: B, size: u64, scatter: bool) -> io::Result<Self> {
        Self::between(backend, size, scatter, [Port::of(1); 2])
    }

    /// The same where the queue pairs are connected to those of another device, which is made like this one, with the ports the
    /// other way round.
    pub fn between(mut backend: B, size: u64, scatter: bool, ports: [Port; 2]) -> io::Result<Self> {
        let mut ram = GuestRam::new();
        memory(&mut ram, &mut backend, OWN, OWN_SIZE)?;
        memory(&mut ram, &mut backend, SOURCE, size)?;
        memory(&mut ram, &mut backend, TARGET, size)?;
        let mut driver = Self {
            backend,
            rings: 0,
            ram,
            free: 4096,
            slots: 0,
            token: 0,
            area: 0,
            sq: 0,
            other_sq: 0,
            cq: 0,
            producer: 0,
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
            if start.elapsed() > PATIENCE {
                return Err(io::Error::other(
                    "the device does not take the command queue",
                ));
            }
        }
        driver.set_up(size, scatter, ports)?;
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

    /// Two guests of one process, with what the first writes to the second.
    fn two(by_reference: bool) -> (Driver<Threaded>, Driver<Threaded>, Vec<u8>, Vec<Write>) {
        let size = 256u64 << 10;
        let [a, b] = Threaded::start_two(by_reference).unwrap();
        let ports = [Port::of(1), Port::of(2)];
        let a = Driver::between(a, size, true, ports).unwrap();
        let b = Driver::between(b, size, true, [ports[1], ports[0]]).unwrap();
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

    #[test]
    fn writes_arrive_in_the_other_guest_and_in_no_other_place() {
        for by_reference in [true, false] {
            let (mut a, b, data, writes) = two(by_reference);
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
    }

    /// Whatever moment it is: what arrives is what was sent, and the other guest goes on.
    #[test]
    fn a_guest_that_goes_in_the_middle_takes_nobody_with_it() {
        for round in 0..3u32 {
            let (mut a, mut b, data, writes) = two(true);
            let shared = a.backend.0.clone();
            let gone = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_micros(500 + 700 * u64::from(round)));
                match round {
                    0 => shared.reset(),
                    1 => shared.set_bus_master(false),
                    _ => drop(shared.ram_mut().clear()),
                }
            });
            // It ends when nothing completes any more.
            while !gone.is_finished() {
                if a.producer.wrapping_sub(a.consumer) + writes.len() as u32 <= DEPTH {
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

    /// Gaps around the time after which the engine falls asleep: each post is noticed, by polling or by its doorbell.
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
