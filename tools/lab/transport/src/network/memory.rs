// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Memory of the simulated network, twice: the bytes that the engine writes, and the bytes that the
//! model expects. Regions lie in one arena with guards between them, so that a comparison finds a
//! stray byte.

use crate::arena::{Arena, ArenaBuffer};
use std::ops::Range;
use verbena_transport::host::{CopySource, CopyTarget, Sge};

/// Number of guard bytes between two regions.
const GUARD: usize = 24;
const GUARD_BYTE: u8 = 0xa5;
const PATTERN_BYTES: usize = 1 << 16;
/// Longest message in bytes for which the pattern is long enough.
pub const LONGEST: u32 = 1 << 15;

/// Bytes without a period. A message is a part of the pattern, from a place of its own.
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

/// Returns `length` bytes of the message that begins at `base`, from `offset` on.
pub fn pattern(base: u32, offset: u32, length: u32) -> &'static [u8] {
    let from = (base + offset) as usize;
    &PATTERN[from..from + length as usize]
}

/// The owner of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionOwner {
    /// The local buffers of a send work request.
    Op(u32),
    /// The buffers of a receive.
    Recv(u32),
    /// Memory that peers access.
    Remote,
}

/// All memory of the simulation.
#[derive(Debug, Default)]
pub struct MemoryModel {
    /// The bytes that the engine writes.
    pub arena: Arena,
    model: Vec<u8>,
    owners: Vec<RegionOwner>,
}

impl MemoryModel {
    /// Removes all regions, but keeps the allocations.
    pub fn clear(&mut self) {
        self.arena.bytes.clear();
        self.arena.regions.0.clear();
        self.model.clear();
        self.owners.clear();
    }

    /// Registers `len` bytes of zero.
    pub fn register(&mut self, pd: u32, access: u32, len: u32, owner: RegionOwner) -> ArenaBuffer {
        let guarded = self.model.len() + GUARD;
        for bytes in [&mut self.arena.bytes, &mut self.model] {
            bytes.resize(guarded, GUARD_BYTE);
        }
        self.model.resize(guarded + len as usize, 0);
        self.owners.push(owner);
        self.arena.register(pd, access, len)
    }

    /// True if a region has this key and the key can be used.
    pub fn is_valid(&self, key: u32) -> bool {
        let region = self.arena.regions.get(key);
        region.is_some_and(|region| region.valid)
    }

    /// True if all of a source can be read.
    pub fn reads(&self, source: &CopySource<'_>) -> bool {
        self.arena.regions.source(source, |_| ()).is_ok()
    }

    /// True if `length` bytes from `offset` on can be stored to SGEs.
    pub fn stores(&self, pd: u32, sges: &[Sge], offset: u64, length: u64) -> bool {
        let target = CopyTarget::Scatter {
            pd,
            privileged: false,
            sges,
            offset: offset as u32,
        };
        let allowed = self.arena.regions.target(&target, length as u32, |_| ());
        allowed.is_ok()
    }

    /// Returns the owner of a key's region.
    pub fn owner(&self, key: u32) -> Option<RegionOwner> {
        let index = self.arena.regions.index(key)?;
        self.owners.get(index).copied()
    }

    /// Returns the place of an address, whatever its key allows.
    fn place(&self, addr: u64, length: u32) -> Range<usize> {
        let index = (addr >> 32).wrapping_sub(1) as usize;
        let region = self.arena.regions.0.get(index);
        let region = region.expect("the model's own addresses");
        let offset = addr.wrapping_sub(region.addr);
        assert!(
            offset + u64::from(length) <= region.length,
            "a write beyond the end of the region that was asked for"
        );
        let from = region.at + offset as usize;
        from..from + length as usize
    }

    /// Writes the bytes that a program has in its memory before the run.
    pub fn fill(&mut self, addr: u64, bytes: &[u8]) {
        let range = self.place(addr, bytes.len() as u32);
        self.arena.bytes[range.clone()].copy_from_slice(bytes);
        self.model[range].copy_from_slice(bytes);
    }

    /// Enters the bytes that the model expects from now on.
    pub fn expect(&mut self, addr: u64, bytes: &[u8]) {
        let range = self.place(addr, bytes.len() as u32);
        self.model[range].copy_from_slice(bytes);
    }

    /// Takes the engine's bytes into the model, where the model does not know them.
    pub fn accept(&mut self, range: Range<usize>) {
        self.model[range.clone()].copy_from_slice(&self.arena.bytes[range]);
    }

    /// Compares a place with the model.
    pub fn check(&self, range: Range<usize>, what: &str) {
        assert!(
            self.arena.bytes[range.clone()] == self.model[range.clone()],
            "wrong bytes: {what} at {range:?}"
        );
    }

    /// Compares a whole region and its guards with the model.
    pub fn check_region(&self, key: u32, what: &str) {
        if let Some(region) = self.arena.regions.get(key) {
            let Range { start, end } = region.range();
            self.check(
                start - GUARD..(end + GUARD).min(self.arena.bytes.len()),
                what,
            );
        }
    }

    /// Compares all memory with the model.
    pub fn check_all(&self) {
        if self.arena.bytes == self.model {
            return;
        }
        let at = (0..self.arena.bytes.len())
            .find(|at| self.arena.bytes[*at] != self.model[*at])
            .unwrap_or(0);
        let region = self.arena.regions.0.iter().rev().find(|r| r.at <= at);
        panic!(
            "memory differs from the model at {at}, in or behind {region:x?}: {:#x}, not {:#x}",
            self.arena.bytes[at], self.model[at]
        );
    }

    /// Returns a digest of all memory.
    pub fn digest(&self) -> u64 {
        let mut digest = 0xcbf2_9ce4_8422_2325_u64;
        for chunk in self.arena.bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            digest = (digest ^ u64::from_le_bytes(word)).wrapping_mul(0x100_0000_01b3);
            digest ^= digest >> 29;
        }
        digest
    }
}
