// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The parts of an engine beside the transports: memory, regions, rings, a completion queue, and
//! the host that works on them.

use super::load::{EngineLoad, GIANT};
use crate::arena::{Arena, EVERY_USE};
use crate::keys::admit;
use crate::pair::path;
use crate::PairSide;
use std::collections::VecDeque;
use verbena_transport::host::*;
use verbena_transport::packet::Packet;
use verbena_transport::pool::Pool;
use verbena_transport::prefetch;
use verbena_transport::QpType;

/// Protection domain of all queue pairs and regions.
pub(super) const PD: u32 = 7;
/// Q_Key of all datagrams.
pub(super) const QKEY: u32 = 0x1234;
/// Alignment in bytes to which the length of a buffer is rounded up.
const LINE: usize = 64;
/// Bytes of memory behind the buffers of a giant message, which repeat themselves.
const GIANT_MEMORY: usize = 256 << 10;

/// A send WQE as it lies in a ring.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub(super) struct EngineWqe {
    pub(super) wr_id: u64,
    pub(super) remote_addr: u64,
    pub(super) rkey: u32,
    pub(super) signaled: bool,
    pub(super) sge: Sge,
}

/// A completion as it lies in the completion queue.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(32))]
pub(super) struct EngineCqe {
    wr_id: u64,
    pub(super) qp: u32,
    byte_len: u32,
    pub(super) status: u8,
    pub(super) recv: bool,
}

/// The state of a queue pair outside of the transport.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EngineQueues {
    pub(super) posted: u32,
    recvs_taken: u32,
    /// Number of turns at the time of the last post.
    pub(super) posted_at: u64,
}

/// Everything but the transports.
#[derive(Debug)]
pub(super) struct EngineNic {
    pub(super) load: EngineLoad,
    /// Memory, in which region n belongs to queue pair n.
    pub(super) arena: Arena,
    /// Send rings of all queue pairs, one after the other.
    pub(super) sq: Vec<EngineWqe>,
    pub(super) queues: Vec<EngineQueues>,
    pub(super) cq: Vec<EngineCqe>,
    pub(super) cq_produced: u32,
    pub(super) cq_consumed: u32,
    pub(super) outgoing: VecDeque<Packet>,
    pub(super) pool: Pool,
    pub(super) received: u64,
    pub(super) events: u64,
}

/// The surroundings of one queue pair.
pub(super) struct EngineHost<'a> {
    pub(super) nic: &'a mut EngineNic,
    pub(super) end: u32,
}

impl EngineNic {
    /// Returns the surroundings of all queue pairs of such an engine.
    pub(super) fn new(shape: EngineLoad) -> Self {
        let count = 2 * shape.pairs;
        let half = Self::half(&shape);
        let mut arena = Arena::default();
        for _ in 0..count {
            arena.register(PD, EVERY_USE, 2 * half as u32);
        }
        if shape.giant {
            for region in &mut arena.regions.0[..2] {
                (region.at, region.length) = (arena.bytes.len(), 2 * u64::from(GIANT));
                arena.bytes.resize(region.at + GIANT_MEMORY, 0);
            }
        }
        arena.bytes.fill(1);
        let completions = (count * (shape.depth + 1)).next_power_of_two().max(1024);
        Self {
            load: shape,
            arena,
            sq: vec![EngineWqe::default(); (count * shape.depth) as usize],
            queues: vec![EngineQueues::default(); count as usize],
            cq: vec![EngineCqe::default(); completions as usize],
            cq_produced: 0,
            cq_consumed: 0,
            outgoing: VecDeque::new(),
            pool: Pool::default(),
            received: 0,
            events: 0,
        }
    }

    /// Returns the bytes of half a region, which include room for the GRH of a datagram.
    pub(super) fn half(shape: &EngineLoad) -> usize {
        (shape.size as usize + 40).next_multiple_of(LINE)
    }

    /// Prefetches the next WQE, the regions and the buffers of both ends.
    pub(super) fn prefetch(&self, end: u32) {
        let shape = &self.load;
        let half = Self::half(shape);
        let posted = self.queues.get(end as usize).map_or(0, |e| e.posted);
        let wqe = end * shape.depth + posted % shape.depth;
        prefetch::element(&self.sq, wqe as usize);
        prefetch::element(&self.arena.regions.0, end as usize);
        prefetch::element(&self.arena.regions.0, end as usize ^ 1);
        prefetch::element(&self.arena.bytes, 2 * end as usize * half);
        prefetch::element(&self.arena.bytes, (2 * (end as usize ^ 1) + 1) * half);
    }

    /// Returns the place in memory at which a use of a key begins.
    fn resolve(&self, key: &KeyUse) -> Result<usize, Syndrome> {
        let (region, mut offset) = admit(key, self.arena.regions.get(key.key))?;
        // The region belongs to a giant message.
        if region.length > GIANT.into() {
            offset %= GIANT_MEMORY;
        }
        Ok(region.at + offset)
    }

    /// Returns the place of a part of one SGE; all lists here have one SGE.
    fn resolve_sge(
        &self,
        pd: u32,
        sges: &[Sge],
        offset: u32,
        length: u32,
        access: KeyAccess,
    ) -> Result<usize, Syndrome> {
        let sge = sges.first().copied().unwrap_or_default();
        if offset > sge.length || length > sge.length - offset {
            return Err(Syndrome::LkeyBounds);
        }
        self.resolve(&KeyUse {
            pd,
            owner: 0,
            privileged: false,
            key: sge.lkey,
            addr: sge.addr.wrapping_add(u64::from(offset)),
            length: length.into(),
            access,
        })
    }

    /// Returns the place of a target in memory.
    fn target(&self, target: &CopyTarget<'_>, length: u32) -> Result<usize, Syndrome> {
        match *target {
            CopyTarget::Scatter {
                pd, sges, offset, ..
            } => self.resolve_sge(pd, sges, offset, length, KeyAccess::LocalWrite),
            CopyTarget::Region { pd, key, addr, .. } => self.resolve(&KeyUse {
                pd,
                owner: 0,
                privileged: false,
                key,
                addr,
                length: length.into(),
                access: KeyAccess::RemoteWrite,
            }),
            CopyTarget::Buffer(_) => Err(Syndrome::LkeyUnknown),
        }
    }

    /// Implements [`Host::copy`].
    pub(super) fn copy(
        &mut self,
        target: CopyTarget<'_>,
        source: CopySource<'_>,
    ) -> Result<(), CopyFault> {
        let (from, length) = match source {
            CopySource::Bytes(bytes) => {
                if let CopyTarget::Buffer(buffer) = target {
                    buffer.copy_from_slice(bytes);
                    return Ok(());
                }
                let to = self
                    .target(&target, bytes.len() as u32)
                    .map_err(CopyFault::Target)?;
                self.arena.bytes[to..to + bytes.len()].copy_from_slice(bytes);
                return Ok(());
            }
            CopySource::Gather {
                pd,
                sges,
                offset,
                length,
                ..
            } => (
                self.resolve_sge(pd, sges, offset, length, KeyAccess::LocalRead),
                length,
            ),
            CopySource::Region {
                pd,
                key,
                addr,
                length,
                ..
            } => {
                let key = KeyUse {
                    pd,
                    owner: 0,
                    privileged: false,
                    key,
                    addr,
                    length: length.into(),
                    access: KeyAccess::RemoteRead,
                };
                (self.resolve(&key), length)
            }
        };
        let (from, count) = (from.map_err(CopyFault::Source)?, length as usize);
        if let CopyTarget::Buffer(buffer) = target {
            buffer.copy_from_slice(&self.arena.bytes[from..from + count]);
            return Ok(());
        }
        let to = self.target(&target, length).map_err(CopyFault::Target)?;
        copy_apart(&mut self.arena.bytes, to, from, count);
        Ok(())
    }
}

/// Copies between two places of the memory that do not overlap.
pub(super) fn copy_apart(memory: &mut [u8], to: usize, from: usize, count: usize) {
    if from < to {
        let (low, high) = memory.split_at_mut(to);
        high[..count].copy_from_slice(&low[from..from + count]);
    } else {
        let (low, high) = memory.split_at_mut(from);
        low[to..to + count].copy_from_slice(&high[..count]);
    }
}

impl Host for EngineHost<'_> {
    fn fetch_send(
        &mut self,
        index: u32,
        out: &mut DecodedSendWqe,
        gather: &mut Gather,
    ) -> Result<(), WqeError> {
        let shape = &self.nic.load;
        let at = self.end * shape.depth + index % shape.depth;
        let wqe = self.nic.sq[at as usize];
        out.wr_id = wqe.wr_id;
        out.opcode = shape.opcode;
        out.signaled = wqe.signaled;
        out.remote_addr = wqe.remote_addr;
        out.rkey = wqe.rkey;
        out.compare_add = 1;
        gather.pd = PD;
        if shape.inline {
            let from = self.nic.arena.regions.0[self.end as usize].at;
            let bytes = &self.nic.arena.bytes[from..from + shape.size as usize];
            gather.inline.extend_from_slice(bytes);
        } else {
            gather.sges.push(wqe.sge);
        }
        if shape.qp_type == QpType::Ud {
            out.set_datagram(DatagramDest {
                path: path(PairSide::A),
                qpn: self.end ^ 1,
                qkey: QKEY,
                pkey: None,
            });
        }
        Ok(())
    }

    fn send_wr_id(&mut self, index: u32) -> (u64, WcOpcode) {
        (index.into(), WcOpcode::Send)
    }

    fn take_recv(&mut self, wqe: &mut DecodedRecvWqe) -> RecvFetch {
        // The program always has a receive posted.
        let end = &mut self.nic.queues[self.end as usize];
        wqe.index = end.recvs_taken;
        wqe.wr_id = end.recvs_taken.into();
        wqe.pd = PD;
        end.recvs_taken = end.recvs_taken.wrapping_add(1);
        let region = &self.nic.arena.regions.0[self.end as usize];
        let half = region.length / 2;
        wqe.sges.push(Sge {
            addr: region.addr + half,
            length: half as u32,
            lkey: region.key,
        });
        RecvFetch::Taken
    }

    fn recv_credits(&mut self) -> Option<u32> {
        Some(1 << 15)
    }

    fn check(&mut self, key: &KeyUse) -> Result<(), Syndrome> {
        self.nic.resolve(key).map(|_| ())
    }

    fn copy(&mut self, target: CopyTarget<'_>, source: CopySource<'_>) -> Result<(), CopyFault> {
        self.nic.copy(target, source)
    }

    fn atomic(&mut self, key: &KeyUse, op: AtomicOp) -> Result<u64, Syndrome> {
        let at = self.nic.resolve(key)?;
        Ok(self.nic.arena.atomic(at, op))
    }

    fn invalidate(&mut self, _key: u32, _remote: bool) -> Result<(), Syndrome> {
        Err(Syndrome::KeyManagement)
    }

    fn fast_register(&mut self, _index: u32) -> Result<(), Syndrome> {
        Err(Syndrome::KeyManagement)
    }

    fn complete(&mut self, completion: &WorkCompletion) -> bool {
        let nic = &mut *self.nic;
        let recv = completion.is_recv();
        let at = nic.cq_produced as usize & (nic.cq.len() - 1);
        nic.cq[at] = EngineCqe {
            wr_id: completion.wr_id,
            qp: self.end,
            byte_len: completion.byte_len,
            status: completion.status.to_raw(),
            recv,
        };
        nic.cq_produced = nic.cq_produced.wrapping_add(1);
        nic.received += u64::from(recv);
        true
    }

    fn event(&mut self, _event: EventType, _syndrome: Option<Syndrome>) {
        self.nic.events += 1;
    }

    fn transmit(&mut self, packet: Packet) {
        self.nic.outgoing.push_back(packet);
    }

    fn pool(&mut self) -> Option<&mut Pool> {
        Some(&mut self.nic.pool)
    }
}
