// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Memory of the simulated hosts: bytes, and regions of them that are used by key. Special features
//! stay with their users: the model of the bytes, the guards and the owners of regions in
//! `network/memory.rs`, memory that repeats itself in `engine/nic.rs`. The engine also finds the
//! runs of its SGEs itself, because its lists have one SGE and it is measured.

use crate::keys::{self, admit};
use std::ops::Range;
use verbena_abi::ctx::access::{
    FLUSH_GLOBAL, LOCAL_WRITE, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE,
};
use verbena_transport::host::{AtomicOp, CopySource, CopyTarget, KeyAccess, KeyUse, Sge, Syndrome};

/// Access flags for every use of a key by the owner and by peers.
pub const EVERY_USE: u32 = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC | FLUSH_GLOBAL;

/// A memory region.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub struct ArenaRegion {
    /// Key of the region, local and remote.
    pub key: u32,
    /// Protection domain of the region.
    pub pd: u32,
    /// Access flags of `verbena_abi::ctx::access`.
    pub access: u32,
    /// True if the key can be used.
    pub valid: bool,
    /// First address of the region.
    pub addr: u64,
    /// Length of the region in bytes.
    pub length: u64,
    /// Index of the region's first byte in the bytes of all regions.
    pub at: usize,
}

impl ArenaRegion {
    /// Returns the key of region `index`.
    pub fn key(index: usize) -> u32 {
        (index as u32 + 1) << 8 | 0x5a
    }

    /// Returns the first address of region `index`.
    pub fn addr(index: usize) -> u64 {
        (index as u64 + 1) << 32 | 0x40
    }

    /// Returns the place of the region's bytes.
    pub fn range(&self) -> Range<usize> {
        self.at..self.at + self.length as usize
    }
}

/// A buffer that is a memory region of its own.
#[derive(Clone, Copy, Debug)]
pub struct ArenaBuffer {
    /// Key of the buffer's region.
    pub key: u32,
    /// First address of the buffer.
    pub addr: u64,
    /// Length of the buffer in bytes.
    pub len: u32,
}

impl ArenaBuffer {
    /// Returns the whole buffer as an SGE.
    pub fn sge(self) -> Sge {
        self.part(0, self.len)
    }

    /// Returns `length` bytes from `offset` on as an SGE.
    pub fn part(self, offset: u32, length: u32) -> Sge {
        Sge {
            addr: self.addr + u64::from(offset),
            length,
            lkey: self.key,
        }
    }
}

/// Memory regions, in the order of their keys.
#[derive(Clone, Debug, Default)]
pub struct ArenaRegions(pub Vec<ArenaRegion>);

impl ArenaRegions {
    /// Returns the index of the region with this key.
    #[inline]
    pub fn index(&self, key: u32) -> Option<usize> {
        let index = (key >> 8).wrapping_sub(1) as usize;
        (self.0.get(index)?.key == key).then_some(index)
    }

    /// Returns the region with this key.
    #[inline]
    pub fn get(&self, key: u32) -> Option<&ArenaRegion> {
        self.index(key).map(|index| &self.0[index])
    }

    /// Returns the region with this key for a change.
    pub fn get_mut(&mut self, key: u32) -> Option<&mut ArenaRegion> {
        self.index(key).map(|index| &mut self.0[index])
    }

    /// Returns the place at which a use of a key begins, if it is allowed.
    #[inline]
    pub fn find(&self, key: &KeyUse) -> Result<usize, Syndrome> {
        let (region, offset) = admit(key, self.get(key.key))?;
        Ok(region.at + offset)
    }

    /// Calls `run` for each run of bytes that is read, until a run is not allowed. `run` is not
    /// called for a source outside of the regions.
    pub fn source(
        &self,
        source: &CopySource<'_>,
        mut run: impl FnMut(Range<usize>),
    ) -> Result<(), Syndrome> {
        match *source {
            CopySource::Bytes(_) => Ok(()),
            CopySource::Gather {
                pd,
                privileged,
                sges,
                offset,
                length,
            } => self.runs(
                (pd, privileged),
                sges,
                (offset, length),
                KeyAccess::LocalRead,
                run,
            ),
            CopySource::Region {
                pd,
                key,
                addr,
                length,
                ..
            } => {
                run(self.remote((pd, key, addr), length, KeyAccess::RemoteRead)?);
                Ok(())
            }
        }
    }

    /// Calls `run` for each run of bytes to which `length` bytes are written, until a run is not
    /// allowed.
    pub fn target(
        &self,
        target: &CopyTarget<'_>,
        length: u32,
        mut run: impl FnMut(Range<usize>),
    ) -> Result<(), Syndrome> {
        match *target {
            CopyTarget::Buffer(_) => Ok(()),
            CopyTarget::Scatter {
                pd,
                privileged,
                sges,
                offset,
            } => self.runs(
                (pd, privileged),
                sges,
                (offset, length),
                KeyAccess::LocalWrite,
                run,
            ),
            CopyTarget::Region { pd, key, addr, .. } => {
                run(self.remote((pd, key, addr), length, KeyAccess::RemoteWrite)?);
                Ok(())
            }
        }
    }

    fn runs(
        &self,
        (pd, privileged): (u32, bool),
        sges: &[Sge],
        (offset, length): (u32, u32),
        access: KeyAccess,
        mut run: impl FnMut(Range<usize>),
    ) -> Result<(), Syndrome> {
        let mut result = Ok(());
        parts(sges, offset, length, |sge, _| {
            let key = KeyUse {
                pd,
                owner: 0,
                privileged,
                key: sge.lkey,
                addr: sge.addr,
                length: sge.length.into(),
                access,
            };
            if result.is_ok() {
                result = self.find(&key).map(|at| run(at..at + sge.length as usize));
            }
        });
        result
    }

    fn remote(
        &self,
        (pd, key, addr): (u32, u32, u64),
        length: u32,
        access: KeyAccess,
    ) -> Result<Range<usize>, Syndrome> {
        let at = self.find(&KeyUse {
            pd,
            owner: 0,
            privileged: false,
            key,
            addr,
            length: length.into(),
            access,
        })?;
        Ok(at..at + length as usize)
    }

    /// Implements [`verbena_transport::host::Host::invalidate`], for the peer's SEND with invalidate
    /// (`remote`) or for a local invalidate.
    pub fn invalidate(&mut self, key: u32, remote: bool) -> Result<(), Syndrome> {
        let region = self.get_mut(key).filter(|r| r.valid).ok_or(if remote {
            Syndrome::RemoteInvalidate
        } else {
            Syndrome::KeyManagement
        })?;
        region.valid = false;
        Ok(())
    }
}

/// Memory regions and their bytes.
#[derive(Clone, Debug, Default)]
pub struct Arena {
    /// The regions and their keys.
    pub regions: ArenaRegions,
    /// Bytes of all regions.
    pub bytes: Vec<u8>,
}

impl Arena {
    /// Registers `len` bytes of zero after all existing regions.
    pub fn register(&mut self, pd: u32, access: u32, len: u32) -> ArenaBuffer {
        let (index, at) = (self.regions.0.len(), self.bytes.len());
        let (key, addr) = (ArenaRegion::key(index), ArenaRegion::addr(index));
        self.bytes.resize(at + len as usize, 0);
        self.regions.0.push(ArenaRegion {
            key,
            pd,
            access,
            valid: true,
            addr,
            length: len.into(),
            at,
        });
        ArenaBuffer { key, addr, len }
    }

    /// Appends a source to `into`, up to the first run that is not allowed.
    pub fn read(&self, source: &CopySource<'_>, into: &mut Vec<u8>) -> Result<(), Syndrome> {
        if let CopySource::Bytes(bytes) = source {
            into.extend_from_slice(bytes);
        }
        self.regions
            .source(source, |run| into.extend_from_slice(&self.bytes[run]))
    }

    /// Writes `bytes` to a target, up to the first run that is not allowed.
    pub fn write(&mut self, target: &mut CopyTarget<'_>, bytes: &[u8]) -> Result<(), Syndrome> {
        if let CopyTarget::Buffer(buffer) = target {
            buffer.copy_from_slice(bytes);
        }
        let mut rest = bytes;
        self.regions.target(target, bytes.len() as u32, |run| {
            let (part, after) = rest.split_at(run.len());
            self.bytes[run].copy_from_slice(part);
            rest = after;
        })
    }

    /// Executes an atomic on the 8 bytes at a place, and returns the value before.
    #[inline]
    pub fn atomic(&mut self, at: usize, op: AtomicOp) -> u64 {
        let place = &mut self.bytes[at..at + 8];
        let before = u64::from_ne_bytes(std::array::from_fn(|byte| place[byte]));
        place.copy_from_slice(&keys::atomic(op, before).to_ne_bytes());
        before
    }
}

/// Calls `each` for the parts of SGEs in which bytes `offset..offset + length` of their message
/// lie, each with its offset from the first of these bytes.
pub fn parts(sges: &[Sge], mut offset: u32, length: u32, mut each: impl FnMut(Sge, u32)) {
    let mut done = 0;
    for sge in sges {
        if offset >= sge.length {
            offset -= sge.length;
            continue;
        }
        let count = (sge.length - offset).min(length - done);
        if count > 0 {
            let part = Sge {
                addr: sge.addr.wrapping_add(offset.into()),
                length: count,
                ..*sge
            };
            each(part, done);
        }
        done += count;
        offset = 0;
    }
    assert_eq!(done, length, "a copy goes beyond the SGEs");
}
