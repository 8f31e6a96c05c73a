// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Memory of the simulated network, twice: the bytes that the engine writes, and the bytes that the model says are
//! there. Regions lie in one arena with guards between them, so that a byte that strays is found by a comparison.

use crate::keys::{admit, Grant};
use std::ops::Range;
use verbena_roce::host::{KeyUse, Sge, Syndrome};

/// Bytes between two regions that belong to nobody.
const GUARD: usize = 24;
const GUARD_BYTE: u8 = 0xa5;
const PATTERN_BYTES: usize = 1 << 16;
/// Longest message whose bytes a pattern can give.
pub const LONGEST: u32 = 1 << 15;

/// Bytes without a period. A message is a part of it, from a place of its own.
static PATTERN: [u8; PATTERN_BYTES] = {
    let mut bytes = [0; PATTERN_BYTES];
    let (mut i, mut x) = (0, 0x1234_5678_9abc_def1_u64);
    while i < PATTERN_BYTES {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        bytes[i] = (x >> 32) as u8;
        i += 1;
    }
    bytes
};

/// `length` bytes of the message that begins at `base`, from `offset` on.
pub fn pattern(base: u32, offset: u32, length: u32) -> &'static [u8] {
    let from = (base + offset) as usize;
    &PATTERN[from..from + length as usize]
}

/// Whose memory a region is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The local buffers of a send work request.
    Op(u32),
    /// The buffers of a receive.
    Recv(u32),
    /// What peers access.
    Remote,
}

/// A memory region.
#[derive(Clone, Debug)]
pub struct Region {
    /// Local and remote key.
    pub key: u32,
    /// Protection domain.
    pub pd: u32,
    /// First address.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// `verbena_abi::ctx::access`.
    pub access: u32,
    /// The key can be used.
    pub valid: bool,
    /// Whose it is.
    pub owner: Owner,
    at: usize,
}

impl Region {
    /// A part of it as an SGE.
    pub fn part(&self, offset: u32, length: u32) -> Sge {
        Sge {
            addr: self.addr + u64::from(offset),
            length,
            lkey: self.key,
        }
    }
}

/// All memory.
#[derive(Debug, Default)]
pub struct Memory {
    bytes: Vec<u8>,
    model: Vec<u8>,
    regions: Vec<Region>,
}

impl Memory {
    /// Forgets everything, but keeps the space.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.model.clear();
        self.regions.clear();
    }

    /// Registers `len` bytes of zero.
    pub fn register(&mut self, pd: u32, access: u32, len: u32, owner: Owner) -> &Region {
        let number = self.regions.len() as u64 + 1;
        self.guard();
        let at = self.bytes.len();
        for arena in [&mut self.bytes, &mut self.model] {
            arena.resize(at + len as usize, 0);
        }
        self.regions.push(Region {
            key: (number as u32) << 8 | 0x5a,
            pd,
            addr: number << 32 | 0x40,
            len,
            access,
            valid: true,
            owner,
            at,
        });
        &self.regions[number as usize - 1]
    }

    fn guard(&mut self) {
        for arena in [&mut self.bytes, &mut self.model] {
            arena.resize(arena.len() + GUARD, GUARD_BYTE);
        }
    }

    /// The region of a key.
    pub fn region(&self, key: u32) -> Option<&Region> {
        let index = (key >> 8).checked_sub(1)?;
        self.regions.get(index as usize).filter(|r| r.key == key)
    }

    /// The region of a key, to be changed.
    pub fn region_mut(&mut self, key: u32) -> Option<&mut Region> {
        let index = (key >> 8).checked_sub(1)?;
        self.regions
            .get_mut(index as usize)
            .filter(|r| r.key == key)
    }

    /// The region that contains an address.
    pub fn region_at(&self, addr: u64) -> Option<&Region> {
        let index = (addr >> 32).checked_sub(1)?;
        self.regions.get(index as usize)
    }

    /// The place of a use of a key, if it is allowed.
    pub fn find(&self, use_: &KeyUse) -> Result<usize, Syndrome> {
        let region = self.region(use_.key).filter(|r| r.valid);
        let grant = region.map(|r| Grant {
            pd: r.pd,
            access: r.access,
            addr: r.addr,
            length: r.len.into(),
        });
        let offset = admit(use_, grant)?;
        Ok(region.map_or(0, |r| r.at) + offset as usize)
    }

    /// The place of an address, whatever its key may do.
    fn place(&self, addr: u64, length: u32) -> Range<usize> {
        let region = self.region_at(addr).expect("the model's own addresses");
        let offset = addr.wrapping_sub(region.addr);
        assert!(
            offset + u64::from(length) <= u64::from(region.len),
            "a write beyond the end of the region that was asked for"
        );
        let from = region.at + offset as usize;
        from..from + length as usize
    }

    /// The bytes.
    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.bytes[range]
    }

    /// The bytes, to be written by the engine.
    pub fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        &mut self.bytes[range]
    }

    /// What the program has in its memory before anything happens.
    pub fn fill(&mut self, addr: u64, bytes: &[u8]) {
        let range = self.place(addr, bytes.len() as u32);
        self.bytes[range.clone()].copy_from_slice(bytes);
        self.model[range].copy_from_slice(bytes);
    }

    /// What the model says is there from now on.
    pub fn expect(&mut self, addr: u64, bytes: &[u8]) {
        let range = self.place(addr, bytes.len() as u32);
        self.model[range].copy_from_slice(bytes);
    }

    /// The model has no opinion of these bytes.
    pub fn accept(&mut self, range: Range<usize>) {
        self.model[range.clone()].copy_from_slice(&self.bytes[range]);
    }

    /// Compares a place with the model.
    pub fn check(&self, range: Range<usize>, what: &str) {
        assert!(
            self.bytes[range.clone()] == self.model[range.clone()],
            "wrong bytes: {what} at {range:?}"
        );
    }

    /// Compares the whole region with the model, and its guards.
    pub fn check_region(&self, key: u32, what: &str) {
        if let Some(region) = self.region(key) {
            let to = region.at + region.len as usize + GUARD;
            self.check(region.at - GUARD..to.min(self.bytes.len()), what);
        }
    }

    /// Compares all memory with the model.
    pub fn check_all(&self) {
        if self.bytes == self.model {
            return;
        }
        let at = (0..self.bytes.len())
            .find(|at| self.bytes[*at] != self.model[*at])
            .unwrap_or(0);
        let region = self.regions.iter().rev().find(|r| r.at <= at);
        panic!(
            "memory differs from the model at {at}, in or behind {region:x?}: {:#x}, not {:#x}",
            self.bytes[at], self.model[at]
        );
    }

    /// A number that tells the contents of all memory.
    pub fn digest(&self) -> u64 {
        let mut digest = 0xcbf2_9ce4_8422_2325_u64;
        for chunk in self.bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            digest = (digest ^ u64::from_le_bytes(word)).wrapping_mul(0x100_0000_01b3);
            digest ^= digest >> 29;
        }
        digest
    }
}

/// The parts of SGEs that bytes `offset..offset + length` of their message lie in: each with its offset from the first of
/// these bytes.
pub fn parts(sges: &[Sge], mut offset: u64, length: u32, mut each: impl FnMut(Sge, u32)) {
    let mut done = 0;
    for sge in sges {
        let size = u64::from(sge.length);
        if offset >= size {
            offset -= size;
            continue;
        }
        let count = (size - offset).min(u64::from(length - done)) as u32;
        if count > 0 {
            let part = Sge {
                addr: sge.addr + offset,
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
