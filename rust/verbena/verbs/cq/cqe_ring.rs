// SPDX-License-Identifier: GPL-2.0

//! The ring of a completion queue. Device specification, "Completion queues".

use super::{
    Verbena,
    VerbsDevice, //
};
use crate::{
    abi::{
        cqe::{
            Cqe,
            Tail,
            CQE_SIZE,
            TAIL_OFFSET,
            WC_OPCODE_RECV, //
        },
        shared,
        uverbs::ResizeCqResp,
        Le32,
        Le64, //
    },
    cmdq::lent::Lent,
    ring::{
        self,
        DmaRing,
        SharedWords, //
    }, //
};
use base::dma::{
    Chunk,
    Payer, //
};
use kernel::prelude::*;
use rdma::{
    mmap::{
        Entry,
        Protection, //
    },
    udata::User, //
};

/// The ring of a completion queue.
pub(super) struct CqeRing {
    pub(super) log_size: u8,
    pub(super) ring: Lent<DmaRing>,
    /// Mapping of the ring into a process.
    mapping: Option<Entry>,
}

impl CqeRing {
    /// Allocates a zeroed ring for at least `cqe` entries.
    fn new(vdev: &VerbsDevice, cqe: u32, payer: Payer) -> Result<Self> {
        let most = vdev.info()?.caps.max_cqe.get();
        let count = ring::entries(cqe, most)?;
        let ring = DmaRing::new(&vdev.dma, payer, (count as usize) * CQE_SIZE)?;
        Ok(Self {
            // CAST: The logarithm of a 32-bit number is small.
            log_size: count.trailing_zeros() as u8,
            ring: Lent::new(ring, &vdev.health),
            mapping: None,
        })
    }

    pub(super) fn for_kernel(vdev: &VerbsDevice, cqe: u32) -> Result<Self> {
        Self::new(vdev, cqe, Payer::Kernel)
    }

    /// Allocates a ring that a process maps, for reading.
    pub(super) fn for_process(
        vdev: &VerbsDevice,
        cqe: u32,
        user: &User<'_, Verbena>,
    ) -> Result<Self> {
        let mut entries = Self::new(vdev, cqe, Payer::Process)?;
        let mmap = user.context().mmap();
        entries.mapping = Some(entries.ring.map(mmap, Protection::ReadOnly)?);
        Ok(entries)
    }

    /// Returns the number of entries that the ring holds.
    pub(super) fn count(&self) -> u32 {
        1 << self.log_size
    }

    /// Returns the offset at which a process maps the ring.
    pub(super) fn offset(&self) -> u64 {
        self.mapping.as_ref().map_or(0, Entry::offset)
    }

    /// Returns the response to a process that resizes its queue.
    pub(super) fn resized(&self) -> ResizeCqResp {
        ResizeCqResp {
            ring_offset: Le64::new(self.offset()),
            ring_length: Le64::new(self.ring.len() as u64),
            log_size: self.log_size,
            ..Default::default()
        }
    }

    fn place(&self, index: u32) -> Result<(&Chunk, usize)> {
        let place = (index & (self.count() - 1)) as usize;
        self.ring.at(place * CQE_SIZE)
    }

    /// True if there is an entry with this index.
    pub(super) fn has(&self, index: u32) -> bool {
        self.place(index).is_ok_and(|(chunk, offset)| {
            let unpack = |tail| Tail::unpack(tail, index, self.log_size);
            let words = SharedWords::new(chunk, offset);
            shared::read_entry(&words, TAIL_OFFSET, unpack, |_| ()).is_some()
        })
    }

    /// Returns the entry with this index, if it is there.
    pub(super) fn take(&self, index: u32) -> Result<Option<(Cqe, Tail)>> {
        let (chunk, offset) = self.place(index)?;
        let words = SharedWords::new(chunk, offset);
        let unpack = |tail| Tail::unpack(tail, index, self.log_size);
        shared::read_entry(&words, TAIL_OFFSET, unpack, |tail| {
            chunk.read(offset).map(|cqe| (cqe, tail))
        })
        .transpose()
    }

    /// Returns the content of the place of this index, whether it is an entry or not.
    pub(super) fn read(&self, index: u32) -> Result<Cqe> {
        let (chunk, offset) = self.place(index)?;
        chunk.read(offset)
    }

    /// Writes the entry from index `from` as that of index `to`, with the phase that belongs there.
    /// Between the consumer and the producer index the driver owns the ring.
    pub(super) fn move_to(&self, cqe: &Cqe, from: u32, to: u32) -> Result {
        let tail = Tail::unpack(cqe.tail.get(), from, self.log_size).ok_or(EINVAL)?;
        let mut cqe = *cqe;
        cqe.tail = Le32::new(tail.pack(to, self.log_size));
        let (chunk, offset) = self.place(to)?;
        chunk.write(offset, &cqe)
    }

    /// True if the entry with this index is that of a receive.
    pub(super) fn is_receive(&self, cqe: &Cqe, index: u32) -> bool {
        Tail::unpack(cqe.tail.get(), index, self.log_size)
            .is_some_and(|tail| tail.opcode & WC_OPCODE_RECV != 0)
    }
}
