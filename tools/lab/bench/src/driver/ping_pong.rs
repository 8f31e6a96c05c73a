// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Ping-pong between two threads, each of which has a queue pair.

use super::{Driver, Threaded, DEPTH, LKEY, LOG_STRIDE, RKEY, SOURCE, TARGET, UAR};
use std::sync::atomic::{fence, Ordering};
use std::time::{Duration, Instant};
use verbena_abi::doorbell;
use verbena_abi::wqe::{self, SendWqe, Sge, WqeOpcode};
use verbena_device::memory::{Access, GuestMemory};
use verbena_nic::guest_ram::GuestRam;
use verbena_nic::vm_state::VmState;

/// One of two players, which writes a number into the memory of the other and waits until the other
/// does the same.
struct Player<'a> {
    ram: &'a GuestRam,
    shared: &'a VmState,
    area: u64,
    sq: u64,
    slot: usize,
    /// Address and key of the memory of this player and of the other player.
    own: (u64, u32),
    other: (u64, u32),
}

impl Player<'_> {
    fn send(&self, number: u32) -> Access {
        let ram = self.ram;
        ram.store32(self.own.0 + 64, number)?;
        let at = self.sq + (u64::from((number - 1) % DEPTH) << LOG_STRIDE);
        let header = SendWqe {
            opcode: WqeOpcode::RdmaWrite.to_raw(),
            num_sge: 1,
            remote_addr: self.other.0.into(),
            rkey: self.other.1.into(),
            ..Default::default()
        };
        let sge = Sge {
            addr: (self.own.0 + 64).into(),
            length: 4.into(),
            lkey: self.own.1.into(),
        };
        ram.write_struct(at, &header)?;
        ram.write_struct(at + wqe::DATA_OFFSET as u64, &sge)?;
        ram.store32(self.area + doorbell::sq_producer(self.slot) as u64, number)?;
        // The slots of both players share the generation counter of one group, so the increment
        // must be atomic.
        ram.fetch_add64(self.area + doorbell::qp_generation(0) as u64, 1)?;
        fence(Ordering::SeqCst);
        let sleep = ram.load32(self.area + doorbell::SLEEP as u64)?;
        if sleep & 1 != 0 && ram.load32(self.area + doorbell::RUNG as u64)? != sleep {
            self.shared.ring_doorbell(UAR);
            ram.store32(self.area + doorbell::RUNG as u64, sleep)?;
        }
        Ok(())
    }

    fn wait(&self, number: u32) -> Access {
        while self.ram.load32(self.own.0)? != number {
            std::hint::spin_loop();
        }
        Ok(())
    }
}

impl Driver<Threaded> {
    /// Plays ping-pong between two threads that never sleep, like two virtual CPUs. Each thread
    /// takes `think` to answer. Returns the round-trip times in seconds.
    pub fn ping_pong(&mut self, rounds: u32, think: Duration) -> Vec<f64> {
        let side = |sq, slot, own, other| Player {
            ram: &self.ram,
            shared: &self.backend.0,
            area: self.queues[0].area,
            sq,
            slot,
            own,
            other,
        };
        let (here, there) = ((SOURCE, LKEY), (TARGET, RKEY));
        let ping = side(self.queues[0].sq, 0, here, there);
        let pong = side(self.queues[1].sq, 1, there, here);
        let pause = || {
            let start = Instant::now();
            while start.elapsed() < think {
                std::hint::spin_loop();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 1..=rounds {
                    let _ = pong.wait(number);
                    pause();
                    let _ = pong.send(number);
                }
            });
            (1..=rounds)
                .map(|number| {
                    let start = Instant::now();
                    let _ = ping.send(number);
                    let _ = ping.wait(number);
                    pause();
                    start.elapsed().as_secs_f64()
                })
                .collect()
        })
    }
}
