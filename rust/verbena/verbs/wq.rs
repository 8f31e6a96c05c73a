// SPDX-License-Identifier: GPL-2.0

//! What the driver keeps of a kernel queue pair's queues: the outstanding work requests; and what posting
//! has in common, whatever the queue.
//!
//! The kernel's `wr_id` is a pointer that the core calls, so it is never taken from a completion. It
//! stays here; a completion only names the index, which must lie among the outstanding ones, and
//! each request is handed out at most once.

use crate::{
    abi::{
        wqe::{
            RecvWqe,
            Sge as DeviceSge, //
        },
        Le32,
        Le64, //
    },
    ring::Ring, //
};
use kernel::prelude::*;
use rdma::{
    enums::WcOpcode,
    wr::{
        RecvWr,
        Sges, //
    }, //
};

/// A request that was posted.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    /// What its owner knows it by.
    pub(crate) wr_id: u64,
    /// What it completes as.
    pub(crate) opcode: WcOpcode,
    /// Bytes of its buffers.
    pub(crate) length: u32,
    /// It has a completion in success, too.
    pub(crate) signaled: bool,
}

/// A queue that kernel users post to.
pub(crate) trait Posts {
    /// The place of the next request, if there is room for it.
    fn next(&self) -> Option<u32>;

    /// Adds the request at [`next`](Self::next).
    fn push(&mut self, request: Request);

    /// Producer index.
    fn producer(&self) -> u32;
}

/// Posts requests until one fails. `write` makes the WQE of one, with its place and its index;
/// `publish` gets the producer index, if any was posted.
pub(crate) fn post<W>(
    queue: &mut impl Posts,
    wrs: &mut impl Iterator<Item = W>,
    mut write: impl FnMut(u32, u32, &W) -> Result<Request>,
    publish: impl FnOnce(u32),
) -> Result {
    let before = queue.producer();
    let result = wrs.try_for_each(|wr| {
        let place = queue.next().ok_or(ENOMEM)?;
        queue.push(write(place, queue.producer(), &wr)?);
        Ok(())
    });
    if queue.producer() != before {
        publish(queue.producer());
    }
    result
}

/// Writes a scatter/gather list at `offset`.
pub(crate) fn write_sges(ring: &Ring, mut offset: usize, sges: Sges<'_>) -> Result {
    for sge in sges {
        let (chunk, at) = ring.at(offset)?;
        chunk.write(
            at,
            &DeviceSge {
                addr: Le64::new(sge.addr()),
                length: Le32::new(sge.length()),
                lkey: Le32::new(sge.lkey()),
            },
        )?;
        offset += size_of::<DeviceSge>();
    }
    Ok(())
}

/// Writes the WQE of a receive of at most `max_sge` entries at `offset`. The device gets `wr_id` for
/// its own: that of a kernel user is a pointer, which is nobody else's business.
pub(crate) fn write_recv(
    ring: &Ring,
    offset: usize,
    wr_id: u64,
    max_sge: u32,
    wr: &RecvWr<'_>,
) -> Result<Request> {
    let sges = wr.sges();
    let num_sge = sges.len();
    if num_sge > max_sge as usize {
        return Err(EINVAL);
    }
    let (chunk, at) = ring.at(offset)?;
    write_sges(ring, offset + size_of::<RecvWqe>(), sges)?;
    chunk.write(
        at,
        &RecvWqe {
            wr_id: Le64::new(wr_id),
            // CAST: at most `max_sge`, which the device's own limit bounds.
            num_sge: num_sge as u8,
            ..Default::default()
        },
    )?;
    Ok(Request {
        wr_id: wr.wr_id(),
        opcode: WcOpcode::Recv,
        length: wr.length(),
        signaled: true,
    })
}

/// Fills places that were not used yet.
const NONE: Request = Request {
    wr_id: 0,
    opcode: WcOpcode::Send,
    length: 0,
    signaled: false,
};

/// A send or receive queue.
pub(crate) struct WorkQueue {
    requests: KVVec<Request>,
    producer: u32,
    consumer: u32,
}

impl WorkQueue {
    /// A queue of 2^log_size entries; none of a process' queue, which keeps its own.
    pub(crate) fn new(kernel: bool, log_size: u8) -> Result<Self> {
        let mut requests = KVVec::new();
        if kernel {
            requests.resize(1 << log_size, NONE, GFP_KERNEL)?;
        }
        Ok(Self {
            requests,
            producer: 0,
            consumer: 0,
        })
    }

    fn place(&self, index: u32) -> usize {
        // The size is a power of two, or 0 and then nothing is found.
        index as usize & self.requests.len().wrapping_sub(1)
    }

    fn outstanding(&self) -> u32 {
        self.producer.wrapping_sub(self.consumer)
    }

    /// Takes the request at `index`, and all before it. `None` if it is not outstanding, or if one before
    /// it is still owed a completion.
    pub(crate) fn complete(&mut self, index: u32) -> Option<Request> {
        let before = index.wrapping_sub(self.consumer);
        if before >= self.outstanding() {
            return None;
        }
        let mut passed = (0..before).map(|n| self.place(self.consumer.wrapping_add(n)));
        if passed.any(|place| self.requests.get(place).is_some_and(|r| r.signaled)) {
            return None;
        }
        let request = *self.requests.get(self.place(index))?;
        self.consumer = index.wrapping_add(1);
        Some(request)
    }

    /// Takes the oldest request, to flush it.
    pub(crate) fn flush(&mut self) -> Option<Request> {
        self.complete(self.consumer)
    }

    /// Whether nothing is outstanding.
    pub(crate) fn is_empty(&self) -> bool {
        self.outstanding() == 0
    }

    /// Forgets everything: the queue pair went to RESET.
    pub(crate) fn reset(&mut self) {
        self.producer = 0;
        self.consumer = 0;
    }
}

impl Posts for WorkQueue {
    fn next(&self) -> Option<u32> {
        let has_room = (self.outstanding() as usize) < self.requests.len();
        // CAST: below the number of requests, which is a 32-bit power of two.
        has_room.then(|| self.place(self.producer) as u32)
    }

    fn push(&mut self, request: Request) {
        let place = self.place(self.producer);
        if let Some(slot) = self.requests.get_mut(place) {
            *slot = request;
            self.producer = self.producer.wrapping_add(1);
        }
    }

    fn producer(&self) -> u32 {
        self.producer
    }
}
