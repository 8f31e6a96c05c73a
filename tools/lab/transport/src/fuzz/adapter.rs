// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The surroundings of the queue pairs that `operations` drives: a [`Host`] that is small and fast.
//! It asserts the guarantees to an owner: each work request completes at most once and in order, no
//! buffer is used for a work request that is not outstanding, and the queue pair makes no call that
//! the interface excludes.

use crate::arena::{Arena, EVERY_USE};
use crate::mock_adapter::RecvPost;
use verbena_transport::host::*;
use verbena_transport::packet::Packet;
use verbena_transport::pool::Pool;

/// Length of a region in bytes.
pub const REGION: u32 = 2048;
/// Number of regions: the first half belongs to the even queue pairs, the rest to the odd ones.
pub const REGIONS: usize = 4;

/// Returns the protection domain of a queue pair.
pub fn pd(node: usize) -> u32 {
    100 + (node & 1) as u32
}

/// A send as posted.
#[derive(Clone, Debug)]
pub struct FuzzSend {
    /// Header of the WQE.
    pub wqe: DecodedSendWqe,
    /// SGEs of the message.
    pub sges: Vec<Sge>,
    /// Inline data of the message.
    pub inline: Vec<u8>,
    /// Error that the host reports when the WQE is fetched.
    pub malformed: Option<WqeError>,
}

/// A ring of receives.
#[derive(Debug, Default)]
pub struct FuzzRecvRing {
    /// Receives that were posted.
    pub posts: Vec<RecvPost>,
    /// Number of receives that were taken.
    pub taken: usize,
    /// True if the ring cannot be read any more.
    pub dead: bool,
}

/// Rings of one queue pair.
#[derive(Debug, Default)]
pub struct FuzzNode {
    /// Sends that were posted.
    pub sends: Vec<FuzzSend>,
    /// Number of sends that the queue pair was informed of.
    pub producer: usize,
    /// Number of sends known to be complete.
    pub done: usize,
    /// Receive ring of the queue pair itself.
    pub recvs: FuzzRecvRing,
    /// True if the queue pair takes receives from the shared ring instead.
    pub has_srq: bool,
    /// Receives that the queue pair has taken and not completed.
    pub held: Vec<(u32, RecvPost)>,
    /// True if the queue pair is in RESET, so that it may neither ask nor report anything.
    pub idle: bool,
    /// Packets that the queue pair has sent.
    pub out: Vec<Packet>,
}

impl FuzzNode {
    /// Clears everything that was posted, as a driver does when it resets a queue pair.
    pub fn clear(&mut self) {
        *self = Self {
            has_srq: self.has_srq,
            idle: true,
            ..Self::default()
        };
    }
}

/// Everything around the queue pairs.
#[derive(Debug)]
pub struct FuzzAdapter {
    /// Memory regions of all queue pairs.
    pub arena: Arena,
    /// Rings of each queue pair.
    pub nodes: Vec<FuzzNode>,
    /// Ring of shared receives.
    pub srq: FuzzRecvRing,
    /// Buffers of copies, if this host has a pool.
    pub pool: Option<Pool>,
    scratch: Vec<u8>,
}

impl FuzzAdapter {
    /// Returns the surroundings of `nodes` queue pairs.
    pub fn new(nodes: usize, has_srq: bool, has_pool: bool) -> Self {
        let node = || FuzzNode {
            has_srq,
            idle: true,
            ..FuzzNode::default()
        };
        let mut arena = Arena::default();
        for index in 0..REGIONS {
            arena.register(pd(index / (REGIONS / 2)), EVERY_USE, REGION);
        }
        Self {
            arena,
            nodes: (0..nodes).map(|_| node()).collect(),
            srq: FuzzRecvRing::default(),
            pool: has_pool.then(Pool::default),
            scratch: Vec::new(),
        }
    }

    /// Restores all rights on a region, for the queue pairs that it belongs to.
    pub fn grant(&mut self, index: usize) {
        let region = &mut self.arena.regions.0[index];
        region.pd = pd(index / (REGIONS / 2));
        (region.access, region.valid) = (EVERY_USE, true);
    }

    /// Returns the host of one queue pair.
    pub fn host(&mut self, node: usize) -> FuzzHost<'_> {
        FuzzHost {
            adapter: self,
            node,
        }
    }

    /// True if a queue pair has a send with these SGEs outstanding.
    fn owns_send(&self, sges: &[Sge]) -> bool {
        self.nodes.iter().any(|node| {
            let outstanding = node.sends.get(node.done..node.producer).unwrap_or(&[]);
            outstanding.iter().any(|send| send.sges == sges)
        })
    }

    fn read(&self, source: &CopySource<'_>, into: &mut Vec<u8>) -> Result<(), Syndrome> {
        if let CopySource::Gather { sges, .. } = source {
            assert!(
                self.owns_send(sges),
                "a buffer is read of which the work request is complete"
            );
        }
        self.arena.read(source, into)
    }

    fn write(
        &mut self,
        node: usize,
        mut target: CopyTarget<'_>,
        bytes: &[u8],
    ) -> Result<(), Syndrome> {
        if let CopyTarget::Scatter { sges, .. } = target {
            let mut held = self.nodes[node].held.iter();
            assert!(
                held.any(|(_, recv)| recv.sges == sges) || self.owns_send(sges),
                "a buffer is written of which the work request is complete"
            );
        }
        self.arena.write(&mut target, bytes)
    }
}

/// The host of one queue pair.
#[derive(Debug)]
pub struct FuzzHost<'a> {
    adapter: &'a mut FuzzAdapter,
    node: usize,
}

impl FuzzHost<'_> {
    fn node(&mut self) -> &mut FuzzNode {
        let node = &mut self.adapter.nodes[self.node];
        assert!(!node.idle, "a queue pair in RESET does something");
        node
    }
}

impl Host for FuzzHost<'_> {
    fn fetch_send(
        &mut self,
        index: u32,
        wqe: &mut DecodedSendWqe,
        gather: &mut Gather,
    ) -> Result<(), WqeError> {
        let pd = pd(self.node);
        let node = self.node();
        assert!(
            (index as usize) < node.producer,
            "a send is decoded that is not posted"
        );
        assert!(gather.sges.is_empty() && gather.inline.is_empty());
        let send = &node.sends[index as usize];
        *wqe = send.wqe.clone();
        gather.pd = pd;
        gather.sges.extend_from_slice(&send.sges);
        gather.inline.extend_from_slice(&send.inline);
        send.malformed.map_or(Ok(()), Err)
    }

    fn send_wr_id(&mut self, index: u32) -> (u64, WcOpcode) {
        let node = self.node();
        assert!(
            (index as usize) < node.producer,
            "a send is flushed that is not posted"
        );
        (node.sends[index as usize].wqe.wr_id, WcOpcode::Send)
    }

    fn take_recv(&mut self, wqe: &mut DecodedRecvWqe) -> RecvFetch {
        let pd = pd(self.node);
        assert!(wqe.sges.is_empty());
        self.node();
        let FuzzAdapter { nodes, srq, .. } = &mut *self.adapter;
        let FuzzNode {
            has_srq,
            recvs,
            held,
            ..
        } = &mut nodes[self.node];
        let ring = if *has_srq { srq } else { recvs };
        if ring.dead {
            return RecvFetch::QueueError(Syndrome::SrqUnreadable);
        }
        let Some(post) = ring.posts.get(ring.taken) else {
            return RecvFetch::Empty;
        };
        wqe.wr_id = post.wr_id;
        wqe.index = ring.taken as u32;
        wqe.pd = pd;
        wqe.sges.extend_from_slice(&post.sges);
        held.push((wqe.index, post.clone()));
        ring.taken += 1;
        post.malformed
            .map_or(RecvFetch::Taken, RecvFetch::Malformed)
    }

    /// Numbers from 220 on have no queue, 200 to 219 are of another domain, and all others name the
    /// shared ring.
    fn xrc_srq(&mut self, srqn: u32) -> Result<XrcSrq, Syndrome> {
        match srqn {
            0..=199 => Ok(XrcSrq {
                srqn,
                life: u64::from(srqn) + 1,
                pd: pd(self.node),
            }),
            200..=219 => Err(Syndrome::XrcDomain),
            _ => Err(Syndrome::XrcSrq),
        }
    }

    fn recv_credits(&mut self) -> Option<u32> {
        let node = self.node();
        let posted = node.recvs.posts.len() - node.recvs.taken;
        (!node.has_srq && !node.recvs.dead).then_some(posted as u32)
    }

    fn check(&mut self, key: &KeyUse) -> Result<(), Syndrome> {
        assert!(key.length > 0, "an access of zero length needs no key");
        self.adapter.arena.regions.find(key).map(|_| ())
    }

    fn copy(&mut self, target: CopyTarget<'_>, source: CopySource<'_>) -> Result<(), CopyFault> {
        let mut bytes = std::mem::take(&mut self.adapter.scratch);
        bytes.clear();
        let mut copied = self
            .adapter
            .read(&source, &mut bytes)
            .map_err(CopyFault::Source);
        if copied.is_ok() {
            copied = self
                .adapter
                .write(self.node, target, &bytes)
                .map_err(CopyFault::Target);
        }
        self.adapter.scratch = bytes;
        copied
    }

    fn atomic(&mut self, key: &KeyUse, op: AtomicOp) -> Result<u64, Syndrome> {
        assert!(key.length == 8 && key.addr % 8 == 0 && key.access == KeyAccess::RemoteAtomic);
        let arena = &mut self.adapter.arena;
        Ok(arena.atomic(arena.regions.find(key)?, op))
    }

    fn invalidate(&mut self, key: u32, remote: bool) -> Result<(), Syndrome> {
        self.adapter.arena.regions.invalidate(key, remote)
    }

    fn fast_register(&mut self, index: u32) -> Result<(), Syndrome> {
        let node = self.node();
        match node.sends[index as usize].wqe.rkey {
            0 => Ok(()),
            _ => Err(Syndrome::KeyManagement),
        }
    }

    fn complete(&mut self, completion: &WorkCompletion) -> bool {
        let is_flush = completion.status == WcStatus::WrFlushErr;
        let node = self.node();
        let index = completion.wqe_index as usize;
        assert_eq!(
            completion.syndrome.is_none(),
            completion.status == WcStatus::Success
        );
        if completion.is_recv() {
            assert!(
                !node.held.is_empty(),
                "a receive completes that was not taken"
            );
            let (taken, recv) = node.held.remove(0);
            assert_eq!(
                taken, completion.wqe_index,
                "receives complete in order, each once"
            );
            assert_eq!(recv.wr_id, completion.wr_id);
        } else {
            assert!(
                (node.done..node.producer).contains(&index),
                "sends complete in order, each once"
            );
            assert_eq!(node.sends[index].wqe.wr_id, completion.wr_id);
            assert!(
                node.sends[node.done..index]
                    .iter()
                    .all(|send| !send.wqe.signaled),
                "a completion that was asked for is missing"
            );
            assert!(
                is_flush
                    || completion.status != WcStatus::Success
                    || node.sends[index].wqe.signaled
            );
            node.done = index + 1;
        }
        true
    }

    fn event(&mut self, _event: EventType, _syndrome: Option<Syndrome>) {
        // Events such as COMM_EST come in live states only; a queue pair in RESET reports nothing.
        self.node();
    }

    fn transmit(&mut self, packet: Packet) {
        assert!(packet.psns > 0 && packet.psn < 1 << 24);
        self.node().out.push(packet);
    }

    fn pool(&mut self) -> Option<&mut Pool> {
        self.adapter.pool.as_mut()
    }
}
