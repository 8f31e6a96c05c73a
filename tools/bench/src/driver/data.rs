// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The data path: posts to the send ring, and polls of the CQ.

use super::{
    unreachable, Backend, Driver, Write, DEPTH, LKEY, LOG_DEPTH, LOG_STRIDE, PATIENCE, RKEY,
    SOURCE, TARGET, UAR,
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
    /// Posts `writes`, each signaled, and runs the device until all have completed.
    pub fn run(&mut self, writes: &[Write]) -> io::Result<()> {
        for chunk in writes.chunks(DEPTH as usize) {
            self.start(chunk).map_err(unreachable)?;
            let until = self.producer;
            let start = Instant::now();
            while self.consumer != until {
                let busy = self.backend.work(&self.ram);
                let polled = self.poll()?;
                if polled == 0 && (!busy || start.elapsed() > PATIENCE) {
                    return Err(io::Error::other(
                        "the device has stopped short of the last write",
                    ));
                }
            }
        }
        Ok(())
    }

    /// Posts `writes`, at most as many as there is room for.
    pub(super) fn start(&mut self, writes: &[Write]) -> Access {
        for write in writes {
            self.put(write)?;
        }
        self.post()
    }

    fn put(&mut self, write: &Write) -> Access {
        let header = SendWqe {
            opcode: WqeOpcode::RdmaWrite.to_raw(),
            flags: send_flags::SIGNALED,
            num_sge: 1,
            wr_id: u64::from(self.producer).into(),
            remote_addr: (TARGET + write.to).into(),
            rkey: RKEY.into(),
            ..Default::default()
        };
        let sge = Sge {
            addr: (SOURCE + write.from).into(),
            length: write.length.into(),
            lkey: LKEY.into(),
        };
        let at = self.sq + (u64::from(self.producer % DEPTH) << LOG_STRIDE);
        let mut entry = [0; wqe::DATA_OFFSET + size_of::<Sge>()];
        entry[..size_of::<SendWqe>()].copy_from_slice(header.as_bytes());
        entry[wqe::DATA_OFFSET..].copy_from_slice(sge.as_bytes());
        self.ram.write(at, &entry)?;
        self.producer = self.producer.wrapping_add(1);
        Ok(())
    }

    /// Device specification, section 5; `verbena_abi::doorbell` has it as code for those who map the area.
    fn post(&mut self) -> Access {
        let word = |offset: usize| self.area + offset as u64;
        self.ram
            .store32(word(doorbell::sq_producer(0)), self.producer)?;
        let count = self.ram.load32(word(doorbell::qp_generation(0)))?;
        self.ram
            .store32(word(doorbell::qp_generation(0)), count.wrapping_add(1))?;
        fence(Ordering::SeqCst);
        let sleep = self.ram.load32(word(doorbell::SLEEP))?;
        if sleep & 1 != 0 && self.ram.load32(word(doorbell::RUNG))? != sleep {
            self.backend.ring(UAR);
            self.rings += 1;
            self.ram.store32(word(doorbell::RUNG), sleep)?;
        }
        Ok(())
    }

    pub(super) fn poll(&mut self) -> io::Result<u32> {
        let mut count = 0;
        loop {
            let at = self.cq + u64::from(self.consumer % DEPTH) * CQE_SIZE as u64;
            let word = self
                .ram
                .load32(at + cqe::TAIL_OFFSET as u64)
                .map_err(unreachable)?;
            let Some(tail) = Tail::unpack(word, self.consumer, LOG_DEPTH) else {
                break;
            };
            if tail.status != 0 {
                return Err(io::Error::other(format!(
                    "a write ended with status {}",
                    tail.status
                )));
            }
            self.consumer = self.consumer.wrapping_add(1);
            count += 1;
        }
        if count != 0 {
            let at = self.area + doorbell::cq_consumer(0) as u64;
            self.ram.store32(at, self.consumer).map_err(unreachable)?;
        }
        Ok(count)
    }
}
