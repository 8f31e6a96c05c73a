// SPDX-License-Identifier: GPL-2.0

//! Outstanding work requests of a kernel queue pair, and the part of posting that all queues share.
//!
//! A kernel user's `wr_id` is a pointer that the core calls, so the driver never takes it from a
//! completion. The driver stores it here. A completion only names the index, which must be that of
//! an outstanding request, and each request is returned at most once.

use crate::{
    abi::{
        wqe::{
            RecvWqe,
            Sge as DeviceSge, //
        },
        Le32,
        Le64, //
    },
    ring::DmaRing, //
};
use kernel::prelude::*;
use rdma::{
    enums::WcOpcode,
    wr::{
        RecvWr,
        Sges, //
    }, //
};

/// A side of a queue pair: send or receive.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum QueueSide {
    /// The send queue.
    Send,
    /// The receive queue.
    Recv,
}

/// A work request that was posted.
#[derive(Clone, Copy)]
pub(crate) struct PostedRequest {
    /// Identifier by which the user knows the request.
    pub(crate) wr_id: u64,
    /// Opcode of the request's completion.
    pub(crate) opcode: WcOpcode,
    /// Length of the request's buffers in bytes.
    pub(crate) length: u32,
    /// True if the request has a completion in success, too.
    pub(crate) signaled: bool,
}

/// A queue to which kernel users post.
pub(crate) trait PostQueue {
    /// Returns the place of the next request, if there is room for it.
    fn next(&self) -> Option<u32>;

    /// Adds the request in the place that [`next`](Self::next) returns.
    fn push(&mut self, request: PostedRequest);

    /// Returns the producer index of the queue.
    fn producer(&self) -> u32;
}

/// Posts requests until one fails. `write` writes the WQE of a request, with its place and its
/// index. `publish` gets the producer index, if any request was posted.
pub(crate) fn post<W>(
    queue: &mut impl PostQueue,
    wrs: &mut impl Iterator<Item = W>,
    mut write: impl FnMut(u32, u32, &W) -> Result<PostedRequest>,
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

/// Writes a scatter/gather list at `offset` of the ring.
pub(crate) fn write_sges(ring: &DmaRing, mut offset: usize, sges: Sges<'_>) -> Result {
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

/// Writes the WQE of a receive with up to `max_sge` entries at `offset`. Returns `EINVAL` if the
/// receive has more. The device gets `wr_id` instead of the kernel user's, which is a pointer and
/// not for the device.
pub(crate) fn write_recv(
    ring: &DmaRing,
    offset: usize,
    wr_id: u64,
    max_sge: u32,
    wr: &RecvWr<'_>,
) -> Result<PostedRequest> {
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
            // CAST: The number is at most `max_sge`, which the device's own limit bounds.
            num_sge: num_sge as u8,
            ..Default::default()
        },
    )?;
    Ok(PostedRequest {
        wr_id: wr.wr_id(),
        opcode: WcOpcode::Recv,
        length: wr.length(),
        signaled: true,
    })
}

/// Content of places that were not used yet.
const EMPTY: PostedRequest = PostedRequest {
    wr_id: 0,
    opcode: WcOpcode::Send,
    length: 0,
    signaled: false,
};

/// Outstanding requests of a send or receive queue.
pub(crate) struct WorkQueue {
    requests: KVVec<PostedRequest>,
    producer: u32,
    consumer: u32,
}

impl WorkQueue {
    /// Returns a queue of 2^log_size entries, or an empty one for a process, which keeps its own.
    pub(crate) fn new(kernel: bool, log_size: u8) -> Result<Self> {
        let mut requests = KVVec::new();
        if kernel {
            requests.resize(1 << log_size, EMPTY, GFP_KERNEL)?;
        }
        Ok(Self {
            requests,
            producer: 0,
            consumer: 0,
        })
    }

    fn place(&self, index: u32) -> usize {
        // The size is a power of two, or 0. If it is 0, there is nothing at any place.
        index as usize & self.requests.len().wrapping_sub(1)
    }

    fn outstanding(&self) -> u32 {
        self.producer.wrapping_sub(self.consumer)
    }

    /// Takes the request at `index`, and all requests before it. Returns `None` if it is not
    /// outstanding, or if a request before it is still owed a completion.
    pub(crate) fn complete(&mut self, index: u32) -> Option<PostedRequest> {
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
    pub(crate) fn flush(&mut self) -> Option<PostedRequest> {
        self.complete(self.consumer)
    }

    /// True if no request is outstanding.
    pub(crate) fn is_empty(&self) -> bool {
        self.outstanding() == 0
    }

    /// Removes all requests, after the queue pair has moved to RESET.
    pub(crate) fn reset(&mut self) {
        self.producer = 0;
        self.consumer = 0;
    }
}

impl PostQueue for WorkQueue {
    fn next(&self) -> Option<u32> {
        let has_room = (self.outstanding() as usize) < self.requests.len();
        // CAST: The place is below the number of requests, which is a 32-bit power of two.
        has_room.then(|| self.place(self.producer) as u32)
    }

    fn push(&mut self, request: PostedRequest) {
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
