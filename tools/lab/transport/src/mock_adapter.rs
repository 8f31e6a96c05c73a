// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The surroundings of two queue pairs: memory regions, rings, completions, events. Both share the
//! memory of one engine, so that packets by reference work.

use super::arena::{Arena, ArenaBuffer, ArenaRegion, EVERY_USE};
use std::collections::BTreeMap;
use verbena_transport::host::*;
use verbena_transport::packet::{Feth, Packet};

/// One of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairSide {
    /// The first end.
    A,
    /// The second end.
    B,
}

impl PairSide {
    /// Returns the other end.
    pub fn peer(self) -> Self {
        match self {
            PairSide::A => PairSide::B,
            PairSide::B => PairSide::A,
        }
    }
}

/// A send work request as posted.
#[derive(Clone, Debug, Default)]
pub struct SendPost {
    /// Header of the WQE.
    pub wqe: DecodedSendWqe,
    /// SGEs of the message.
    pub sges: Vec<Sge>,
    /// Inline data of the message.
    pub inline: Vec<u8>,
    /// Error that the host reports when the WQE is fetched.
    pub malformed: Option<WqeError>,
}

impl SendPost {
    /// Returns a signaled work request.
    pub fn new(wr_id: u64, opcode: WqeOpcode, sges: &[Sge]) -> Self {
        Self {
            wqe: DecodedSendWqe {
                wr_id,
                opcode,
                signaled: true,
                ..DecodedSendWqe::default()
            },
            sges: sges.to_vec(),
            ..Self::default()
        }
    }

    /// Returns a SEND.
    pub fn send(wr_id: u64, sges: &[Sge]) -> Self {
        Self::new(wr_id, WqeOpcode::Send, sges)
    }

    /// Returns an RDMA WRITE to the beginning of a buffer.
    pub fn write(wr_id: u64, sges: &[Sge], to: ArenaBuffer) -> Self {
        Self::new(wr_id, WqeOpcode::RdmaWrite, sges).at(to.addr, to.key)
    }

    /// Returns an RDMA READ from the beginning of a buffer.
    pub fn read(wr_id: u64, sges: &[Sge], from: ArenaBuffer) -> Self {
        Self::new(wr_id, WqeOpcode::RdmaRead, sges).at(from.addr, from.key)
    }

    /// Returns an ATOMIC WRITE to the beginning of a buffer.
    pub fn atomic_write(wr_id: u64, sges: &[Sge], to: ArenaBuffer) -> Self {
        Self::new(wr_id, WqeOpcode::AtomicWrite, sges).at(to.addr, to.key)
    }

    /// Returns a FLUSH of a whole buffer.
    pub fn flush(wr_id: u64, how: Feth, of: ArenaBuffer) -> Self {
        let mut post = Self::new(wr_id, WqeOpcode::Flush, &[]).at(of.addr, of.key);
        post.wqe.flush = (how, of.len);
        post
    }

    /// Sets the remote address and key.
    pub fn at(mut self, addr: u64, rkey: u32) -> Self {
        self.wqe.remote_addr = addr;
        self.wqe.rkey = rkey;
        self
    }

    /// Sets immediate data, and the opcode that carries them.
    pub fn imm(mut self, imm: [u8; 4]) -> Self {
        self.wqe.imm = imm;
        self.wqe.opcode = match self.wqe.opcode {
            WqeOpcode::RdmaWrite => WqeOpcode::RdmaWriteImm,
            _ => WqeOpcode::SendImm,
        };
        self
    }

    /// Clears the request for a completion on success.
    pub fn unsignaled(mut self) -> Self {
        self.wqe.signaled = false;
        self
    }

    /// Sets the fence.
    pub fn fence(mut self) -> Self {
        self.wqe.fence = true;
        self
    }
}

/// A receive work request as posted.
#[derive(Clone, Debug)]
pub struct RecvPost {
    /// Identifier of the work request.
    pub wr_id: u64,
    /// SGEs of the receive.
    pub sges: Vec<Sge>,
    /// Error that the host reports when the receive is taken.
    pub malformed: Option<Syndrome>,
}

/// Rings and queues of one end.
#[derive(Debug, Default)]
pub struct MockQueues {
    /// Protection domain of the end.
    pub pd: u32,
    /// Send queue of the end.
    pub sq: Vec<SendPost>,
    /// Number of send work requests known to be complete.
    pub sends_done: usize,
    /// Receive queue of the end.
    pub rq: Vec<RecvPost>,
    /// Number of receives taken by the queue pair.
    pub taken: usize,
    /// Number of receives completed.
    pub recvs_done: usize,
    /// Reason why no receive can be taken any more.
    pub queue_error: Option<Syndrome>,
    /// Number of completions that still fit into the CQ, which fails on the next; `None` if there
    /// is no limit.
    pub cq_room: Option<usize>,
    /// Completions of both queues.
    pub completions: Vec<WorkCompletion>,
    /// Events of the queue pair.
    pub events: Vec<(EventType, Option<Syndrome>)>,
    /// Keys of the packets that the queue pair has dropped as violations.
    pub violations: Vec<ViolatedKey>,
    /// Packets that the queue pair has sent.
    pub out: Vec<Packet>,
    /// Number of payload bytes that this end has copied.
    pub copied: u64,
}

/// Both ends and all memory.
#[derive(Debug, Default)]
pub struct MockAdapter {
    /// Memory regions of both ends.
    pub arena: Arena,
    /// Ends A and B.
    pub queues: [MockQueues; 2],
    /// The shared receive queues for extended connections, by number. All take their receives from
    /// the target's list.
    pub xrc: BTreeMap<u32, Result<XrcSrq, Syndrome>>,
    /// A valid key for memory that cannot be reached, so that a read by this key fails.
    pub absent: Option<u32>,
    /// Further entries of the P_Key table beside that of the default partition.
    pub pkeys: Vec<u16>,
}

impl MockAdapter {
    /// Returns one end.
    pub fn queues(&mut self, side: PairSide) -> &mut MockQueues {
        &mut self.queues[side as usize]
    }

    /// Returns the host of one end.
    pub fn host(&mut self, side: PairSide) -> MockHost<'_> {
        MockHost {
            adapter: self,
            side,
        }
    }

    /// Registers memory that holds `bytes`.
    pub fn register(&mut self, side: PairSide, access: u32, bytes: Vec<u8>) -> ArenaBuffer {
        let pd = self.queues[side as usize].pd;
        let buffer = self.arena.register(pd, access, bytes.len() as u32);
        self.bytes_mut(buffer).copy_from_slice(&bytes);
        buffer
    }

    /// Registers memory with all access rights that holds `bytes`.
    pub fn buffer(&mut self, side: PairSide, bytes: Vec<u8>) -> ArenaBuffer {
        self.register(side, EVERY_USE, bytes)
    }

    /// Returns the bytes of a buffer.
    pub fn bytes(&self, buffer: ArenaBuffer) -> &[u8] {
        let region = self.arena.regions.get(buffer.key);
        &self.arena.bytes[region.expect("a buffer's region").range()]
    }

    /// Returns the bytes of a buffer for a change.
    pub fn bytes_mut(&mut self, buffer: ArenaBuffer) -> &mut [u8] {
        let range = self.region(buffer).range();
        &mut self.arena.bytes[range]
    }

    /// Returns the region of a buffer.
    pub fn region(&mut self, buffer: ArenaBuffer) -> &mut ArenaRegion {
        let region = self.arena.regions.get_mut(buffer.key);
        region.expect("a buffer's region")
    }

    fn read(&self, source: &CopySource<'_>) -> Result<Vec<u8>, Syndrome> {
        if let CopySource::Gather { sges, .. } = source {
            assert!(
                self.owns_send(sges),
                "a buffer is read of which the work request is complete"
            );
        }
        let mut bytes = Vec::new();
        self.arena.read(source, &mut bytes)?;
        match source {
            CopySource::Region { key, .. } if self.absent == Some(*key) => {
                Err(Syndrome::RkeyBounds)
            }
            _ => Ok(bytes),
        }
    }

    fn write(
        &mut self,
        side: PairSide,
        mut target: CopyTarget<'_>,
        bytes: &[u8],
    ) -> Result<(), Syndrome> {
        if let CopyTarget::Scatter { sges, .. } = target {
            assert!(
                self.owns_send(sges) || self.owns_recv(side, sges),
                "a buffer is written of which the work request is complete"
            );
        }
        self.arena.write(&mut target, bytes)
    }

    fn owns_send(&self, sges: &[Sge]) -> bool {
        self.queues.iter().any(|end| {
            end.sq[end.sends_done..]
                .iter()
                .any(|post| post.sges == sges)
        })
    }

    fn owns_recv(&self, side: PairSide, sges: &[Sge]) -> bool {
        let end = &self.queues[side as usize];
        end.rq[end.recvs_done..end.taken]
            .iter()
            .any(|post| post.sges == sges)
    }
}

/// The host of one end.
#[derive(Debug)]
pub struct MockHost<'a> {
    adapter: &'a mut MockAdapter,
    side: PairSide,
}

impl Host for MockHost<'_> {
    fn fetch_send(
        &mut self,
        index: u32,
        wqe: &mut DecodedSendWqe,
        gather: &mut Gather,
    ) -> Result<(), WqeError> {
        let end = self.adapter.queues(self.side);
        let post = &end.sq[index as usize];
        assert!(gather.sges.is_empty() && gather.inline.is_empty());
        *wqe = post.wqe.clone();
        gather.pd = end.pd;
        gather.sges.extend_from_slice(&post.sges);
        gather.inline.extend_from_slice(&post.inline);
        post.malformed.map_or(Ok(()), Err)
    }

    fn send_wr_id(&mut self, index: u32) -> (u64, WcOpcode) {
        (
            self.adapter.queues(self.side).sq[index as usize].wqe.wr_id,
            WcOpcode::Send,
        )
    }

    fn take_recv(&mut self, wqe: &mut DecodedRecvWqe) -> RecvFetch {
        let end = self.adapter.queues(self.side);
        if let Some(cause) = end.queue_error {
            return RecvFetch::QueueError(cause);
        }
        let Some(post) = end.rq.get(end.taken) else {
            return RecvFetch::Empty;
        };
        assert!(wqe.sges.is_empty());
        wqe.wr_id = post.wr_id;
        wqe.index = end.taken as u32;
        wqe.pd = match wqe.xrc.life {
            0 => end.pd,
            _ => wqe.xrc.pd,
        };
        wqe.sges.extend_from_slice(&post.sges);
        end.taken += 1;
        post.malformed
            .map_or(RecvFetch::Taken, RecvFetch::Malformed)
    }

    fn xrc_srq(&mut self, srqn: u32) -> Result<XrcSrq, Syndrome> {
        let found = self.adapter.xrc.get(&srqn);
        found.copied().unwrap_or(Err(Syndrome::XrcSrq))
    }

    fn recv_credits(&mut self) -> Option<u32> {
        let end = self.adapter.queues(self.side);
        Some((end.rq.len() - end.taken) as u32)
    }

    fn check(&mut self, key: &KeyUse) -> Result<(), Syndrome> {
        assert!(key.length > 0, "an access of zero length needs no key");
        self.adapter.arena.regions.find(key).map(|_| ())
    }

    fn copy(&mut self, target: CopyTarget<'_>, source: CopySource<'_>) -> Result<(), CopyFault> {
        let bytes = self.adapter.read(&source).map_err(CopyFault::Source)?;
        self.adapter.queues(self.side).copied += bytes.len() as u64;
        self.adapter
            .write(self.side, target, &bytes)
            .map_err(CopyFault::Target)
    }

    fn atomic(&mut self, key: &KeyUse, op: AtomicOp) -> Result<u64, Syndrome> {
        let arena = &mut self.adapter.arena;
        Ok(arena.atomic(arena.regions.find(key)?, op))
    }

    fn invalidate(&mut self, key: u32, remote: bool) -> Result<(), Syndrome> {
        self.adapter.arena.regions.invalidate(key, remote)
    }

    /// Validates the region whose key is in the place of the immediate data.
    fn fast_register(&mut self, index: u32) -> Result<(), Syndrome> {
        let imm = self.adapter.queues(self.side).sq[index as usize].wqe.imm;
        let key = u32::from_le_bytes(imm);
        let region = self.adapter.arena.regions.get_mut(key).filter(|r| !r.valid);
        region.ok_or(Syndrome::KeyManagement)?.valid = true;
        Ok(())
    }

    fn complete(&mut self, completion: &WorkCompletion) -> bool {
        let end = self.adapter.queues(self.side);
        let index = completion.wqe_index as usize;
        assert_eq!(
            completion.syndrome.is_none(),
            completion.status == WcStatus::Success
        );
        if completion.is_recv() {
            assert_eq!(
                index, end.recvs_done,
                "receives complete in order, each once"
            );
            assert_eq!(end.rq[index].wr_id, completion.wr_id);
            end.recvs_done += 1;
        } else {
            assert!(
                index >= end.sends_done,
                "sends complete in order, each once"
            );
            assert_eq!(end.sq[index].wqe.wr_id, completion.wr_id);
            if completion.status == WcStatus::WrFlushErr {
                let first = end.sends_done;
                assert!(
                    end.sq[first..index].iter().all(|post| !post.wqe.signaled),
                    "a flush skipped work requests"
                );
            }
            end.sends_done = index + 1;
        }
        match &mut end.cq_room {
            Some(0) => return false,
            Some(room) => *room -= 1,
            None => {}
        }
        end.completions.push(*completion);
        true
    }

    fn event(&mut self, event: EventType, syndrome: Option<Syndrome>) {
        self.adapter
            .queues(self.side)
            .events
            .push((event, syndrome));
    }

    fn has_pkey(&self, pkey: u16) -> bool {
        let further = self.adapter.pkeys.iter().copied();
        let mut table = further.chain([DEFAULT_PKEY]);
        table.any(|entry| pkeys_match(pkey, entry))
    }

    fn on_key_violation(&mut self, key: ViolatedKey, _packet: &Packet) {
        self.adapter.queues(self.side).violations.push(key);
    }

    fn transmit(&mut self, packet: Packet) {
        assert!(packet.psns > 0);
        self.adapter.queues(self.side).out.push(packet);
    }
}

/// Returns the destination of a datagram.
pub fn datagram(qpn: u32, qkey: u32) -> Option<Box<DatagramDest>> {
    Some(Box::new(DatagramDest {
        path: super::pair::path(PairSide::A),
        qpn,
        qkey,
        pkey: None,
    }))
}
