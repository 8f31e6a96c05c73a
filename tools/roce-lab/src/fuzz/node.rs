// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The surroundings of the queue pairs that `operations` drives: a [`Host`] that is small, fast, and asserts what an
//! owner may rely on: each work request completes at most once and in order, no buffer is used for one that is not
//! outstanding, and nothing is asked for that the interface excludes.

use crate::keys::{self, admit, Grant};
use verbena_abi::ctx::access;
use verbena_roce::host::*;
use verbena_roce::packet::Packet;
use verbena_roce::pool::Pool;

/// Bytes of a region.
pub const REGION: u64 = 2048;
/// Regions: the first half belongs to the even queue pairs, the rest to the odd ones.
pub const REGIONS: usize = 4;

/// A memory region.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// Protection domain.
    pub pd: u32,
    /// `verbena_abi::ctx::access`.
    pub access: u32,
    /// The key can be used.
    pub valid: bool,
}

impl Region {
    /// Key of region `index`.
    pub fn key(index: usize) -> u32 {
        (index as u32 + 1) << 8 | 0x5a
    }

    /// Its first address.
    pub fn addr(index: usize) -> u64 {
        (index as u64 + 1) << 32 | 0x40
    }

    /// Everything allowed, for the queue pairs that it belongs to.
    pub fn new(index: usize) -> Self {
        Self {
            pd: pd(index / (REGIONS / 2)),
            access: access::LOCAL_WRITE
                | access::REMOTE_WRITE
                | access::REMOTE_READ
                | access::REMOTE_ATOMIC,
            valid: true,
        }
    }
}

/// Protection domain of a queue pair.
pub fn pd(node: usize) -> u32 {
    100 + (node & 1) as u32
}

/// A send as posted.
#[derive(Clone, Debug)]
pub struct Send {
    /// Header.
    pub wqe: SendWqe,
    /// SGEs.
    pub sges: Vec<Sge>,
    /// Inline data.
    pub inline: Vec<u8>,
    /// What is wrong with it.
    pub malformed: Option<WqeError>,
}

/// A receive as posted.
#[derive(Clone, Debug)]
pub struct Recv {
    /// `wr_id`.
    pub wr_id: u64,
    /// SGEs.
    pub sges: Vec<Sge>,
    /// What is wrong with it.
    pub malformed: Option<Syndrome>,
}

/// A ring of receives.
#[derive(Debug, Default)]
pub struct RecvRing {
    /// What was posted.
    pub posts: Vec<Recv>,
    /// How many were taken.
    pub taken: usize,
    /// It cannot be read any more.
    pub dead: bool,
}

/// Rings of one queue pair.
#[derive(Debug, Default)]
pub struct Node {
    /// Sends posted.
    pub sends: Vec<Send>,
    /// How many the queue pair was told of.
    pub producer: usize,
    /// Sends known to be complete.
    pub done: usize,
    /// Its own receives.
    pub recvs: RecvRing,
    /// Takes receives of the shared ring instead.
    pub has_srq: bool,
    /// Receives that it has taken and not completed.
    pub held: Vec<(u32, Recv)>,
    /// It is in RESET, so nothing may be asked or reported.
    pub idle: bool,
    /// Packets to send.
    pub out: Vec<Packet>,
}

impl Node {
    /// As a driver does when it resets a queue pair: everything posted is forgotten.
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
pub struct World {
    /// Memory regions.
    pub regions: [Region; REGIONS],
    /// Their bytes.
    pub memory: Vec<u8>,
    /// One for each queue pair.
    pub nodes: Vec<Node>,
    /// Shared receives.
    pub srq: RecvRing,
    /// Buffers of copies, if this host has a pool.
    pub pool: Option<Pool>,
    scratch: Vec<u8>,
}

impl World {
    /// For so many queue pairs.
    pub fn new(nodes: usize, has_srq: bool, has_pool: bool) -> Self {
        let node = || Node {
            has_srq,
            idle: true,
            ..Node::default()
        };
        Self {
            regions: std::array::from_fn(Region::new),
            memory: vec![0; REGIONS * REGION as usize],
            nodes: (0..nodes).map(|_| node()).collect(),
            srq: RecvRing::default(),
            pool: has_pool.then(Pool::default),
            scratch: Vec::new(),
        }
    }

    /// The host of one queue pair.
    pub fn host(&mut self, node: usize) -> NodeHost<'_> {
        NodeHost { world: self, node }
    }

    /// Where the bytes of a use are in the memory, if it is allowed.
    fn find(&self, key: &KeyUse) -> Result<usize, Syndrome> {
        let index = ((key.key >> 8) as usize).wrapping_sub(1);
        let region = self.regions.get(index);
        let grant = region
            .filter(|r| r.valid && key.key == Region::key(index))
            .map(|r| Grant {
                pd: r.pd,
                access: r.access,
                addr: Region::addr(index),
                length: REGION,
            });
        let offset = admit(key, grant)?;
        Ok(index * REGION as usize + offset as usize)
    }

    /// Whether some queue pair has such a send outstanding.
    fn owns_send(&self, sges: &[Sge]) -> bool {
        self.nodes.iter().any(|node| {
            let outstanding = node.sends.get(node.done..node.producer).unwrap_or(&[]);
            outstanding.iter().any(|send| send.sges == sges)
        })
    }

    /// Calls `part` for each run of bytes within `offset..offset + length` of SGEs, with its place in the memory, until
    /// one is not allowed.
    fn walk(
        &self,
        pd: u32,
        sges: &[Sge],
        access: Access,
        range: (u32, u64),
        mut part: impl FnMut(usize, usize),
    ) -> Result<(), Syndrome> {
        let (mut offset, mut length) = (u64::from(range.0), range.1);
        for sge in sges {
            let size = u64::from(sge.length);
            if offset >= size {
                offset -= size;
                continue;
            }
            let count = (size - offset).min(length);
            if count > 0 {
                let at = self.find(&KeyUse {
                    pd,
                    privileged: false,
                    key: sge.lkey,
                    addr: sge.addr.wrapping_add(offset),
                    length: count,
                    access,
                })?;
                part(at, count as usize);
            }
            length -= count;
            offset = 0;
        }
        assert_eq!(length, 0, "a copy goes beyond the SGEs");
        Ok(())
    }

    fn read(&self, source: Source<'_>, into: &mut Vec<u8>) -> Result<(), Syndrome> {
        match source {
            Source::Bytes(bytes) => into.extend_from_slice(bytes),
            Source::Gather {
                pd,
                sges,
                offset,
                length,
                ..
            } => {
                assert!(
                    self.owns_send(sges),
                    "a buffer is read of which the work request is complete"
                );
                let range = (offset, u64::from(length));
                self.walk(pd, sges, Access::LocalRead, range, |at, count| {
                    into.extend_from_slice(&self.memory[at..at + count]);
                })?;
            }
            Source::Region {
                pd,
                key,
                addr,
                length,
            } => {
                let at = self.find(&KeyUse {
                    pd,
                    privileged: false,
                    key,
                    addr,
                    length: u64::from(length),
                    access: Access::RemoteRead,
                })?;
                into.extend_from_slice(&self.memory[at..at + length as usize]);
            }
        }
        Ok(())
    }

    fn write(&mut self, node: usize, target: Target<'_>, bytes: &[u8]) -> Result<(), Syndrome> {
        match target {
            Target::Buffer(buffer) => buffer.copy_from_slice(bytes),
            Target::Scatter {
                pd, sges, offset, ..
            } => {
                let holds = self.nodes[node]
                    .held
                    .iter()
                    .any(|(_, recv)| recv.sges == sges);
                assert!(
                    holds || self.owns_send(sges),
                    "a buffer is written of which the work request is complete"
                );
                let mut places: [(usize, usize); 4] = [(0, 0); 4];
                let mut count = 0;
                let range = (offset, bytes.len() as u64);
                let walked = self.walk(pd, sges, Access::LocalWrite, range, |at, length| {
                    places[count] = (at, length);
                    count += 1;
                });
                let mut rest = bytes;
                for (at, length) in &places[..count] {
                    let (part, after) = rest.split_at(*length);
                    self.memory[*at..*at + *length].copy_from_slice(part);
                    rest = after;
                }
                walked?;
            }
            Target::Region { pd, key, addr } => {
                let at = self.find(&KeyUse {
                    pd,
                    privileged: false,
                    key,
                    addr,
                    length: bytes.len() as u64,
                    access: Access::RemoteWrite,
                })?;
                self.memory[at..at + bytes.len()].copy_from_slice(bytes);
            }
        }
        Ok(())
    }
}

/// The host of one queue pair.
#[derive(Debug)]
pub struct NodeHost<'a> {
    world: &'a mut World,
    node: usize,
}

impl NodeHost<'_> {
    fn node(&mut self) -> &mut Node {
        let node = &mut self.world.nodes[self.node];
        assert!(!node.idle, "a queue pair in RESET does something");
        node
    }
}

impl Host for NodeHost<'_> {
    fn fetch_send(
        &mut self,
        index: u32,
        wqe: &mut SendWqe,
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

    fn take_recv(&mut self, wqe: &mut RecvWqe) -> Take {
        let pd = pd(self.node);
        assert!(wqe.sges.is_empty());
        self.node();
        let World { nodes, srq, .. } = &mut *self.world;
        let Node {
            has_srq,
            recvs,
            held,
            ..
        } = &mut nodes[self.node];
        let ring = if *has_srq { srq } else { recvs };
        if ring.dead {
            return Take::Dead(Syndrome::SrqUnreadable);
        }
        let Some(post) = ring.posts.get(ring.taken) else {
            return Take::Empty;
        };
        wqe.wr_id = post.wr_id;
        wqe.index = ring.taken as u32;
        wqe.pd = pd;
        wqe.sges.extend_from_slice(&post.sges);
        held.push((wqe.index, post.clone()));
        ring.taken += 1;
        post.malformed.map_or(Take::Taken, Take::Malformed)
    }

    fn recv_credits(&mut self) -> Option<u32> {
        let node = self.node();
        let posted = node.recvs.posts.len() - node.recvs.taken;
        (!node.has_srq && !node.recvs.dead).then_some(posted as u32)
    }

    fn check(&mut self, key: &KeyUse) -> Result<(), Syndrome> {
        assert!(key.length > 0, "an access of zero length needs no key");
        self.world.find(key).map(|_| ())
    }

    fn copy(&mut self, target: Target<'_>, source: Source<'_>) -> Result<(), CopyFault> {
        let mut bytes = std::mem::take(&mut self.world.scratch);
        bytes.clear();
        let mut copied = self
            .world
            .read(source, &mut bytes)
            .map_err(CopyFault::Source);
        if copied.is_ok() {
            copied = self
                .world
                .write(self.node, target, &bytes)
                .map_err(CopyFault::Target);
        }
        self.world.scratch = bytes;
        copied
    }

    fn atomic(&mut self, key: &KeyUse, op: AtomicOp) -> Result<u64, Syndrome> {
        assert!(key.length == 8 && key.addr % 8 == 0 && key.access == Access::RemoteAtomic);
        let at = self.world.find(key)?;
        let place = &mut self.world.memory[at..at + 8];
        let before = u64::from_ne_bytes(std::array::from_fn(|byte| place[byte]));
        let after = keys::atomic(op, before);
        place.copy_from_slice(&after.to_ne_bytes());
        Ok(before)
    }

    fn invalidate(&mut self, key: u32, remote: bool) -> Result<(), Syndrome> {
        let failure = if remote {
            Syndrome::RemoteInvalidate
        } else {
            Syndrome::KeyManagement
        };
        let index = ((key >> 8) as usize).wrapping_sub(1);
        let region = self.world.regions.get_mut(index).ok_or(failure)?;
        if !region.valid {
            return Err(failure);
        }
        region.valid = false;
        Ok(())
    }

    fn fast_register(&mut self, index: u32) -> Result<(), Syndrome> {
        let node = self.node();
        match node.sends[index as usize].wqe.rkey {
            0 => Ok(()),
            _ => Err(Syndrome::KeyManagement),
        }
    }

    fn complete(&mut self, completion: &Completion) {
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
    }

    fn event(&mut self, _event: EventType, _syndrome: Option<Syndrome>) {
        // COMM_EST and others come in states that are live; a queue pair in RESET reports nothing.
        self.node();
    }

    fn transmit(&mut self, packet: Packet) {
        assert!(packet.psns > 0 && packet.psn < 1 << 24);
        self.node().out.push(packet);
    }

    fn pool(&mut self) -> Option<&mut Pool> {
        self.world.pool.as_mut()
    }
}
