// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The data path: posts to send rings, and polls of the CQ.

use super::{
    unreachable, Backend, Driver, Write, DEPTH, LKEY, LOG_STRIDE, PATIENCE, RKEY, SOURCE, TARGET,
};
use std::io;
use std::sync::atomic::{fence, Ordering};
use std::time::Instant;
use verbena_abi::cqe::{self, Tail, CQE_SIZE};
use verbena_abi::doorbell;
use verbena_abi::wqe::{self, send_flags, SendWqe, Sge, WqeOpcode};
use verbena_device::memory::{Access, GuestMemory};
use zerocopy::IntoBytes;

impl<B: Backend> Driver<B> {
    /// Posts signaled `writes` on the first queue pair, and runs the device until all of them have
    /// completed.
    pub fn run(&mut self, writes: &[Write]) -> io::Result<()> {
        for chunk in writes.chunks(DEPTH as usize) {
            self.start(chunk).map_err(unreachable)?;
            self.finish()?;
        }
        Ok(())
    }

    /// Posts `count` writes of `length` bytes on each queue pair, and runs the device until all of
    /// them have completed.
    pub fn run_each(&mut self, count: u32, length: u32) -> io::Result<()> {
        for queue in 0..self.queues.len() {
            let at = queue as u64 * u64::from(length) % self.shape.size;
            let write = Write {
                from: at,
                to: at,
                length,
            };
            self.start_on(queue, (0..count).map(|_| write))
                .map_err(unreachable)?;
        }
        self.finish()
    }

    /// Runs the device until all writes have completed.
    fn finish(&mut self) -> io::Result<()> {
        let start = Instant::now();
        while self.consumer != self.posted {
            let busy = self.backend.work(&self.ram);
            let polled = self.poll()?;
            if polled == 0 && (!busy || start.elapsed() > PATIENCE) {
                let left = self.posted.wrapping_sub(self.consumer);
                return Err(io::Error::other(format!(
                    "the device has not completed the last {left} writes"
                )));
            }
        }
        Ok(())
    }

    /// Posts `writes` on the first queue pair. The send ring must have room for all of them.
    pub(super) fn start(&mut self, writes: &[Write]) -> Access {
        self.start_on(0, writes.iter().copied())
    }

    fn start_on(&mut self, queue: usize, writes: impl Iterator<Item = Write>) -> Access {
        for write in writes {
            self.put(queue, &write)?;
        }
        self.post(queue)
    }

    fn put(&mut self, queue: usize, write: &Write) -> Access {
        let log_depth = self.shape.log_depth;
        let queue = &mut self.queues[queue];
        let header = SendWqe {
            opcode: WqeOpcode::RdmaWrite.to_raw(),
            flags: send_flags::SIGNALED,
            num_sge: 1,
            wr_id: u64::from(queue.producer).into(),
            remote_addr: (TARGET + write.to).into(),
            rkey: RKEY.into(),
            ..Default::default()
        };
        let sge = Sge {
            addr: (SOURCE + write.from).into(),
            length: write.length.into(),
            lkey: LKEY.into(),
        };
        let place = queue.producer % (1 << log_depth);
        let at = queue.sq + (u64::from(place) << LOG_STRIDE);
        let mut entry = [0; wqe::DATA_OFFSET + size_of::<Sge>()];
        entry[..size_of::<SendWqe>()].copy_from_slice(header.as_bytes());
        entry[wqe::DATA_OFFSET..].copy_from_slice(sge.as_bytes());
        self.ram.write(at, &entry)?;
        queue.producer = queue.producer.wrapping_add(1);
        self.posted = self.posted.wrapping_add(1);
        Ok(())
    }

    /// Publishes the producer index and rings the doorbell if necessary (device specification,
    /// section 5). `verbena_abi::doorbell` implements the same for drivers that map the area.
    fn post(&mut self, queue: usize) -> Access {
        let queue = &self.queues[queue];
        let word = |offset: usize| queue.area + offset as u64;
        let generation = word(doorbell::qp_generation(queue.slot / doorbell::GROUP_SLOTS));
        self.ram
            .store32(word(doorbell::sq_producer(queue.slot)), queue.producer)?;
        let count = self.ram.load32(generation)?;
        self.ram.store32(generation, count.wrapping_add(1))?;
        fence(Ordering::SeqCst);
        let sleep = self.ram.load32(word(doorbell::SLEEP))?;
        if sleep & 1 != 0 && self.ram.load32(word(doorbell::RUNG))? != sleep {
            self.backend.ring(queue.uar);
            self.rings += 1;
            self.ram.store32(word(doorbell::RUNG), sleep)?;
        }
        Ok(())
    }

    pub(super) fn poll(&mut self) -> io::Result<u32> {
        let mut count = 0;
        let log_cq = self.shape.log_cq();
        loop {
            let place = self.consumer % (1 << log_cq);
            let at = self.cq + u64::from(place) * CQE_SIZE as u64;
            let word = self
                .ram
                .load32(at + cqe::TAIL_OFFSET as u64)
                .map_err(unreachable)?;
            let Some(tail) = Tail::unpack(word, self.consumer, log_cq) else {
                break;
            };
            if tail.status != 0 {
                return Err(io::Error::other(format!(
                    "a write has completed with status {}",
                    tail.status
                )));
            }
            self.consumer = self.consumer.wrapping_add(1);
            count += 1;
        }
        if count != 0 {
            let at = self.queues[0].area + doorbell::cq_consumer(0) as u64;
            self.ram.store32(at, self.consumer).map_err(unreachable)?;
        }
        Ok(count)
    }
}
