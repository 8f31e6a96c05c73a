// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The surroundings of two queue pairs: memory regions, rings, completions, events. One engine's worth of memory, so
//! that packets by reference work.

use super::keys::{self, admit, Grant};
use verbena_abi::ctx::access;
use verbena_roce::host::*;
use verbena_roce::packet::Packet;

/// One of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The first.
    A,
    /// The second.
    B,
}

impl Side {
    /// The other end.
    pub fn peer(self) -> Self {
        match self {
            Side::A => Side::B,
            Side::B => Side::A,
        }
    }
}

/// A memory region with its memory.
#[derive(Clone, Debug)]
pub struct Region {
    /// Key, local and remote.
    pub key: u32,
    /// Protection domain.
    pub pd: u32,
    /// First address.
    pub addr: u64,
    /// `verbena_abi::ctx::access`.
    pub access: u32,
    /// The memory.
    pub bytes: Vec<u8>,
    /// The key can be used.
    pub valid: bool,
    /// The key can be used, and the memory cannot be reached: what is asked of it fails when it is read for a peer.
    pub absent: bool,
}

/// A buffer that is a memory region of its own.
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    /// Its key.
    pub key: u32,
    /// Its first address.
    pub addr: u64,
    /// Its length.
    pub len: u32,
}

impl Buffer {
    /// All of it as an SGE.
    pub fn sge(self) -> Sge {
        Sge {
            addr: self.addr,
            length: self.len,
            lkey: self.key,
        }
    }

    /// `length` bytes from `offset` on.
    pub fn part(self, offset: u32, length: u32) -> Sge {
        Sge {
            addr: self.addr + u64::from(offset),
            length,
            lkey: self.key,
        }
    }
}

/// A send work request as posted.
#[derive(Clone, Debug, Default)]
pub struct Post {
    /// Header.
    pub wqe: SendWqe,
    /// SGEs.
    pub sges: Vec<Sge>,
    /// Inline data.
    pub inline: Vec<u8>,
    /// What the host finds wrong with it.
    pub malformed: Option<WqeError>,
}

impl Post {
    /// A signaled work request.
    pub fn new(wr_id: u64, opcode: WqeOpcode, sges: &[Sge]) -> Self {
        Self {
            wqe: SendWqe {
                wr_id,
                opcode,
                signaled: true,
                ..SendWqe::default()
            },
            sges: sges.to_vec(),
            ..Self::default()
        }
    }

    /// SEND.
    pub fn send(wr_id: u64, sges: &[Sge]) -> Self {
        Self::new(wr_id, WqeOpcode::Send, sges)
    }

    /// RDMA WRITE to the beginning of a buffer.
    pub fn write(wr_id: u64, sges: &[Sge], to: Buffer) -> Self {
        Self::new(wr_id, WqeOpcode::RdmaWrite, sges).at(to.addr, to.key)
    }

    /// RDMA READ from the beginning of a buffer.
    pub fn read(wr_id: u64, sges: &[Sge], from: Buffer) -> Self {
        Self::new(wr_id, WqeOpcode::RdmaRead, sges).at(from.addr, from.key)
    }

    /// With a remote address and key.
    pub fn at(mut self, addr: u64, rkey: u32) -> Self {
        self.wqe.remote_addr = addr;
        self.wqe.rkey = rkey;
        self
    }

    /// With immediate data.
    pub fn imm(mut self, imm: [u8; 4]) -> Self {
        self.wqe.imm = imm;
        self.wqe.opcode = match self.wqe.opcode {
            WqeOpcode::RdmaWrite => WqeOpcode::RdmaWriteImm,
            _ => WqeOpcode::SendImm,
        };
        self
    }

    /// Without a completion on success.
    pub fn unsignaled(mut self) -> Self {
        self.wqe.signaled = false;
        self
    }

    /// With the fence.
    pub fn fence(mut self) -> Self {
        self.wqe.fence = true;
        self
    }
}

/// A receive work request as posted.
#[derive(Clone, Debug)]
pub struct RecvPost {
    /// `wr_id`.
    pub wr_id: u64,
    /// SGEs.
    pub sges: Vec<Sge>,
    /// What the host finds wrong with it.
    pub malformed: Option<Syndrome>,
}

/// Rings and queues of one end.
#[derive(Debug, Default)]
pub struct End {
    /// Protection domain.
    pub pd: u32,
    /// Send queue.
    pub sq: Vec<Post>,
    /// Send work requests known to be complete.
    pub sends_done: usize,
    /// Receive queue.
    pub rq: Vec<RecvPost>,
    /// Receives taken by the queue pair.
    pub taken: usize,
    /// Receives completed.
    pub recvs_done: usize,
    /// Why no receive can be taken any more.
    pub dead: Option<Syndrome>,
    /// Completions of both queues.
    pub completions: Vec<Completion>,
    /// Events.
    pub events: Vec<(EventType, Option<Syndrome>)>,
    /// Packets to send.
    pub out: Vec<Packet>,
    /// Payload bytes that were copied in by this end.
    pub copied: u64,
}

/// Both ends and all memory.
#[derive(Debug, Default)]
pub struct World {
    /// Memory regions.
    pub regions: Vec<Region>,
    /// Ends A and B.
    pub ends: [End; 2],
}

impl World {
    /// One end.
    pub fn end(&mut self, side: Side) -> &mut End {
        &mut self.ends[side as usize]
    }

    /// The host of one end.
    pub fn host(&mut self, side: Side) -> MockHost<'_> {
        MockHost { world: self, side }
    }

    /// Registers memory that holds `bytes`.
    pub fn register(&mut self, side: Side, access: u32, bytes: Vec<u8>) -> Buffer {
        let number = self.regions.len() as u64 + 1;
        let key = (number as u32) << 8 | 0x5a;
        let addr = number << 32 | 0x40;
        let len = bytes.len() as u32;
        let pd = self.ends[side as usize].pd;
        self.regions.push(Region {
            key,
            pd,
            addr,
            access,
            bytes,
            valid: true,
            absent: false,
        });
        Buffer { key, addr, len }
    }

    /// Memory that everybody may use.
    pub fn buffer(&mut self, side: Side, bytes: Vec<u8>) -> Buffer {
        let all = access::LOCAL_WRITE
            | access::REMOTE_WRITE
            | access::REMOTE_READ
            | access::REMOTE_ATOMIC;
        self.register(side, all, bytes)
    }

    /// What a buffer holds.
    pub fn bytes(&self, buffer: Buffer) -> &[u8] {
        &self.regions[(buffer.key >> 8) as usize - 1].bytes
    }

    /// The region of a key.
    pub fn region(&mut self, buffer: Buffer) -> &mut Region {
        &mut self.regions[(buffer.key >> 8) as usize - 1]
    }

    fn find(&mut self, use_: &KeyUse) -> Result<(&mut Region, usize), Syndrome> {
        // A region's key tells its place.
        let place = (use_.key >> 8).wrapping_sub(1) as usize;
        let region = self.regions.get(place);
        let grant = region
            .filter(|r| r.key == use_.key && r.valid)
            .map(|r| Grant {
                pd: r.pd,
                access: r.access,
                addr: r.addr,
                length: r.bytes.len() as u64,
            });
        let offset = admit(use_, grant)?;
        Ok((&mut self.regions[place], offset as usize))
    }

    /// The parts of SGEs that `offset..offset + length` covers.
    fn parts(sges: &[Sge], mut offset: u64, mut length: u64) -> Vec<(Sge, u64)> {
        let mut parts = Vec::new();
        for sge in sges {
            let size = u64::from(sge.length);
            if offset >= size {
                offset -= size;
                continue;
            }
            let count = (size - offset).min(length);
            if count > 0 {
                parts.push((
                    Sge {
                        addr: sge.addr + offset,
                        ..*sge
                    },
                    count,
                ));
            }
            length -= count;
            offset = 0;
        }
        assert_eq!(length, 0, "a copy goes beyond the SGEs");
        parts
    }

    fn read(&mut self, source: Source<'_>) -> Result<Vec<u8>, Syndrome> {
        match source {
            Source::Bytes(bytes) => Ok(bytes.to_vec()),
            Source::Gather {
                pd,
                privileged,
                sges,
                offset,
                length,
            } => {
                assert!(
                    self.owns_send(sges),
                    "a buffer is read of which the work request is complete"
                );
                let mut bytes = Vec::new();
                for (sge, count) in Self::parts(sges, u64::from(offset), u64::from(length)) {
                    let access = Access::LocalRead;
                    let key = KeyUse {
                        pd,
                        privileged,
                        key: sge.lkey,
                        addr: sge.addr,
                        length: count,
                        access,
                    };
                    let (region, at) = self.find(&key)?;
                    bytes.extend_from_slice(&region.bytes[at..at + count as usize]);
                }
                Ok(bytes)
            }
            Source::Region {
                pd,
                key,
                addr,
                length,
            } => {
                let length = u64::from(length);
                let key = KeyUse {
                    pd,
                    privileged: false,
                    key,
                    addr,
                    length,
                    access: Access::RemoteRead,
                };
                let (region, at) = self.find(&key)?;
                if region.absent {
                    return Err(Syndrome::RkeyBounds);
                }
                Ok(region.bytes[at..at + length as usize].to_vec())
            }
        }
    }

    fn write(&mut self, side: Side, target: Target<'_>, bytes: &[u8]) -> Result<(), Syndrome> {
        match target {
            Target::Buffer(buffer) => buffer.copy_from_slice(bytes),
            Target::Scatter {
                pd,
                privileged,
                sges,
                offset,
            } => {
                assert!(
                    self.owns_send(sges) || self.owns_recv(side, sges),
                    "a buffer is written of which the work request is complete"
                );
                let mut rest = bytes;
                for (sge, count) in Self::parts(sges, u64::from(offset), bytes.len() as u64) {
                    let access = Access::LocalWrite;
                    let key = KeyUse {
                        pd,
                        privileged,
                        key: sge.lkey,
                        addr: sge.addr,
                        length: count,
                        access,
                    };
                    let (region, at) = self.find(&key)?;
                    let (part, after) = rest.split_at(count as usize);
                    region.bytes[at..at + part.len()].copy_from_slice(part);
                    rest = after;
                }
            }
            Target::Region { pd, key, addr } => {
                let length = bytes.len() as u64;
                let key = KeyUse {
                    pd,
                    privileged: false,
                    key,
                    addr,
                    length,
                    access: Access::RemoteWrite,
                };
                let (region, at) = self.find(&key)?;
                region.bytes[at..at + bytes.len()].copy_from_slice(bytes);
            }
        }
        Ok(())
    }

    fn owns_send(&self, sges: &[Sge]) -> bool {
        self.ends.iter().any(|end| {
            end.sq[end.sends_done..]
                .iter()
                .any(|post| post.sges == sges)
        })
    }

    fn owns_recv(&self, side: Side, sges: &[Sge]) -> bool {
        let end = &self.ends[side as usize];
        end.rq[end.recvs_done..end.taken]
            .iter()
            .any(|post| post.sges == sges)
    }
}

/// The host of one end.
#[derive(Debug)]
pub struct MockHost<'a> {
    world: &'a mut World,
    side: Side,
}

impl Host for MockHost<'_> {
    fn fetch_send(
        &mut self,
        index: u32,
        wqe: &mut SendWqe,
        gather: &mut Gather,
    ) -> Result<(), WqeError> {
        let end = self.world.end(self.side);
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
            self.world.end(self.side).sq[index as usize].wqe.wr_id,
            WcOpcode::Send,
        )
    }

    fn take_recv(&mut self, wqe: &mut RecvWqe) -> Take {
        let end = self.world.end(self.side);
        if let Some(cause) = end.dead {
            return Take::Dead(cause);
        }
        let Some(post) = end.rq.get(end.taken) else {
            return Take::Empty;
        };
        assert!(wqe.sges.is_empty());
        wqe.wr_id = post.wr_id;
        wqe.index = end.taken as u32;
        wqe.pd = end.pd;
        wqe.sges.extend_from_slice(&post.sges);
        end.taken += 1;
        post.malformed.map_or(Take::Taken, Take::Malformed)
    }

    fn recv_credits(&mut self) -> Option<u32> {
        let end = self.world.end(self.side);
        Some((end.rq.len() - end.taken) as u32)
    }

    fn check(&mut self, key: &KeyUse) -> Result<(), Syndrome> {
        assert!(key.length > 0, "an access of zero length needs no key");
        self.world.find(key).map(|_| ())
    }

    fn copy(&mut self, target: Target<'_>, source: Source<'_>) -> Result<(), CopyFault> {
        let bytes = self.world.read(source).map_err(CopyFault::Source)?;
        self.world.end(self.side).copied += bytes.len() as u64;
        self.world
            .write(self.side, target, &bytes)
            .map_err(CopyFault::Target)
    }

    fn atomic(&mut self, key: &KeyUse, op: AtomicOp) -> Result<u64, Syndrome> {
        let (region, at) = self.world.find(key)?;
        let place: &mut [u8; 8] = (&mut region.bytes[at..at + 8]).try_into().unwrap();
        let before = u64::from_ne_bytes(*place);
        let after = keys::atomic(op, before);
        *place = after.to_ne_bytes();
        Ok(before)
    }

    fn invalidate(&mut self, key: u32, remote: bool) -> Result<(), Syndrome> {
        let failure = if remote {
            Syndrome::RemoteInvalidate
        } else {
            Syndrome::KeyManagement
        };
        let region = self
            .world
            .regions
            .iter_mut()
            .find(|r| r.key == key && r.valid)
            .ok_or(failure)?;
        region.valid = false;
        Ok(())
    }

    /// Makes the region whose key stands in the place of immediate data valid.
    fn fast_register(&mut self, index: u32) -> Result<(), Syndrome> {
        let imm = self.world.end(self.side).sq[index as usize].wqe.imm;
        let key = u32::from_le_bytes(imm);
        let mut regions = self.world.regions.iter_mut();
        let region = regions.find(|r| r.key == key && !r.valid);
        region.ok_or(Syndrome::KeyManagement)?.valid = true;
        Ok(())
    }

    fn complete(&mut self, completion: &Completion) {
        let end = self.world.end(self.side);
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
        end.completions.push(*completion);
    }

    fn event(&mut self, event: EventType, syndrome: Option<Syndrome>) {
        self.world.end(self.side).events.push((event, syndrome));
    }

    fn transmit(&mut self, packet: Packet) {
        assert!(packet.psns > 0);
        self.world.end(self.side).out.push(packet);
    }
}

/// A datagram's destination.
pub fn datagram(qpn: u32, qkey: u32) -> Option<Box<DatagramDest>> {
    Some(Box::new(DatagramDest {
        path: super::pair::path(Side::A),
        qpn,
        qkey,
    }))
}
