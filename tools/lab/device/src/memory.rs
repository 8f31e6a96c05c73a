// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Data memory of the device and of the model, and the model's table of keys.

use verbena_abi::ctx::{access, mr_flags, MrState, Translation};
use verbena_abi::syndrome::Syndrome;
use verbena_abi::wqe::WqeOpcode;
use verbena_device::config::LOCAL_DMA_LKEY;

/// Size of a page in bytes.
pub const PAGE: u64 = 4096;
/// Size of the largest pages of regions in bytes.
pub const MAX_PAGE: u64 = 4 * PAGE;
/// Number of pages of the data memory. The guard page before it and the one after it belong to no
/// region.
pub const PAGES: u64 = 32;

/// Owner of an access, as the key checks see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Domain {
    /// PD of the QP or of the SRQ.
    pub pd: u32,
    /// True if the QP belongs to the kernel.
    pub privileged: bool,
}

/// Kind of memory access that a key has to allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryAccess {
    /// Read by the QP that owns the key.
    Read,
    /// Write by the QP that owns the key.
    Write,
    /// RDMA READ of the peer.
    RemoteRead,
    /// RDMA WRITE of the peer.
    RemoteWrite,
    /// Atomic operation of the peer.
    RemoteAtomic,
}

impl MemoryAccess {
    /// True if the access uses an lkey.
    pub fn is_local(self) -> bool {
        !self.is_remote()
    }

    fn right(self) -> u32 {
        match self {
            Self::Read => 0,
            Self::Write => access::LOCAL_WRITE,
            Self::RemoteRead => access::REMOTE_READ,
            Self::RemoteWrite => access::REMOTE_WRITE,
            Self::RemoteAtomic => access::REMOTE_ATOMIC,
        }
    }

    /// True if the access uses an rkey.
    fn is_remote(self) -> bool {
        !matches!(self, Self::Read | Self::Write)
    }

    /// Returns the access that an operation makes at the responder.
    pub fn of(opcode: WqeOpcode) -> Option<Self> {
        match opcode {
            WqeOpcode::RdmaWrite | WqeOpcode::RdmaWriteImm => Some(Self::RemoteWrite),
            WqeOpcode::RdmaRead => Some(Self::RemoteRead),
            WqeOpcode::CompareSwap | WqeOpcode::FetchAdd => Some(Self::RemoteAtomic),
            _ => None,
        }
    }

    /// Returns the bit of `qp_access_flags` that the access needs at the responder's QP.
    pub fn qp_right(self) -> u32 {
        self.right()
    }
}

/// Part of the data memory: offset and length in bytes.
pub type Piece = (u64, u64);

/// A memory region of the program.
#[derive(Clone, Debug)]
pub struct RegionModel {
    /// Key of the region: index and tag.
    pub key: u32,
    /// PD of the region.
    pub pd: u32,
    /// `access` flags of the region.
    pub rights: u32,
    /// `mr_flags` of the region.
    pub flags: u32,
    /// Address of the first byte in the region's address space.
    pub iova: u64,
    /// Length of the region in bytes.
    pub length: u64,
    /// Offset of the first byte in the first page.
    pub page_offset: u64,
    /// Numbers of the data memory's pages, in the order of the region.
    pub pages: Vec<u64>,
    /// Number of pages of the translation before `pages`.
    pub skip: u64,
    /// Translation that the device was given for the region.
    pub raw: Translation,
    /// State of the key.
    pub state: MrState,
    /// True while a work request that changes the key is pending. No other request names the key
    /// during that time.
    pub busy: bool,
}

impl RegionModel {
    /// Returns the offset of the first byte in the translation.
    pub fn offset(&self) -> u64 {
        self.skip * PAGE + self.page_offset
    }

    /// True if accesses can use the key.
    pub fn valid(&self) -> bool {
        self.state == MrState::Valid
    }

    /// True if the key was created for fast registration.
    pub fn is_fast(&self) -> bool {
        self.flags & mr_flags::FAST_REG != 0
    }

    /// Returns the pieces of the data memory for a range that lies in the region.
    fn pieces(&self, addr: u64, length: u64) -> Vec<Piece> {
        let mut at = addr - self.iova + self.page_offset;
        let end = at + length;
        let mut out = Vec::new();
        while at < end {
            let to = end.min((at / PAGE + 1) * PAGE);
            out.push((self.pages[(at / PAGE) as usize] * PAGE + at % PAGE, to - at));
            at = to;
        }
        out
    }
}

/// The model's table of keys.
#[derive(Debug, Default)]
pub struct KeyTable {
    /// Regions that exist, in the order of their creation.
    pub all: Vec<RegionModel>,
    /// Address of the data memory.
    pub heap: u64,
}

impl KeyTable {
    /// Looks up an access. Returns its pieces, or all syndromes that may be reported for it. An
    /// access of zero bytes needs no key.
    pub fn resolve(
        &self,
        (addr, length, key): (u64, u32, u32),
        who: Domain,
        want: MemoryAccess,
    ) -> Result<Vec<Piece>, Vec<Syndrome>> {
        use Syndrome::*;
        if length == 0 {
            return Ok(Vec::new());
        }
        let remote = want.is_remote();
        let pick = |local, far| if remote { far } else { local };
        if key == LOCAL_DMA_LKEY && who.privileged && !remote {
            return Ok(vec![(addr - self.heap, length.into())]);
        }
        let Some(region) = self.all.iter().find(|r| r.key == key && r.valid()) else {
            return Err(vec![pick(LkeyUnknown, RkeyUnknown)]);
        };
        let mut wrong = Vec::new();
        if region.pd != who.pd {
            wrong.push(pick(LkeyPd, RkeyPd));
        }
        let kept = region.flags & mr_flags::PRIVILEGED != 0 && !who.privileged && !remote;
        if want.right() & !region.rights != 0 || kept {
            wrong.push(pick(LkeyAccess, RkeyAccess));
        }
        let end = u128::from(addr) + u128::from(length);
        if addr < region.iova || end > u128::from(region.iova) + u128::from(region.length) {
            wrong.push(pick(LkeyBounds, RkeyBounds));
        }
        if wrong.is_empty() {
            Ok(region.pieces(addr, length.into()))
        } else {
            Err(wrong)
        }
    }

    /// Returns the pieces that an access through this data segment can touch. A segment may end
    /// outside of its region; a message that is shorter than the segment can still use the part
    /// inside.
    pub fn reachable_pieces(
        &self,
        (addr, length, key): (u64, u32, u32),
        who: Domain,
        want: MemoryAccess,
    ) -> Vec<Piece> {
        let region = self.all.iter().find(|r| r.key == key);
        let inside = region.and_then(|r| (r.iova + r.length).checked_sub(addr));
        let length = inside.map_or(length, |most| most.min(length.into()) as u32);
        self.resolve((addr, length, key), who, want)
            .unwrap_or_default()
    }

    /// Looks up all data segments of a list. Returns the pieces of all of them, or the syndromes of
    /// the first segment that fails.
    pub fn resolve_all(
        &self,
        sges: &[(u64, u32, u32)],
        who: Domain,
        want: MemoryAccess,
    ) -> Result<Vec<Piece>, Vec<Syndrome>> {
        let mut out = Vec::new();
        for sge in sges {
            out.extend(self.resolve(*sge, who, want)?);
        }
        Ok(out)
    }
}

/// Data memory as the model expects it.
#[derive(Debug)]
pub struct DataMemory {
    bytes: Vec<u8>,
    /// Alternative contents: an operation that was cut short may have written these bytes.
    uncertain: Vec<UncertainWrite>,
}

/// Bytes that the device may or may not have written.
#[derive(Debug)]
struct UncertainWrite {
    at: usize,
    /// New contents of the bytes; `None` if they may have any value.
    new: Option<Vec<u8>>,
    len: usize,
}

impl DataMemory {
    /// Returns the data memory with its initial contents.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self {
            bytes,
            uncertain: Vec::new(),
        }
    }

    /// Returns the bytes of the pieces.
    pub fn gather(&self, pieces: &[Piece]) -> Vec<u8> {
        let mut out = Vec::new();
        for &(at, len) in pieces {
            out.extend_from_slice(&self.bytes[at as usize..(at + len) as usize]);
        }
        out
    }

    /// Writes bytes to the pieces, in order, until either of them ends.
    pub fn scatter(&mut self, pieces: &[Piece], from: &[u8]) {
        let mut rest = from;
        for &(at, len) in pieces {
            let (now, later) = rest.split_at(rest.len().min(len as usize));
            self.bytes[at as usize..at as usize + now.len()].copy_from_slice(now);
            rest = later;
        }
    }

    /// Records that each of these bytes may have been written to the pieces.
    pub fn may_write(&mut self, pieces: &[Piece], from: &[u8]) {
        let mut rest = from;
        for &(at, len) in pieces {
            let (now, later) = rest.split_at(rest.len().min(len as usize));
            self.uncertain.push(UncertainWrite {
                at: at as usize,
                new: Some(now.to_vec()),
                len: now.len(),
            });
            rest = later;
        }
    }

    /// Records that the bytes of the pieces may have any value.
    pub fn may_change(&mut self, pieces: &[Piece]) {
        for &(at, len) in pieces {
            self.uncertain.push(UncertainWrite {
                at: at as usize,
                new: None,
                len: len as usize,
            });
        }
    }

    /// Returns the little-endian 64-bit word that the pieces hold, or 0 if their length is not
    /// eight bytes.
    pub fn word(&self, pieces: &[Piece]) -> u64 {
        let bytes = self.gather(pieces);
        u64::from_le_bytes(bytes.try_into().unwrap_or_default())
    }

    /// Takes over bytes that may have changed from the real memory, then compares everything.
    /// Returns the first offset that differs.
    pub fn compare_with(&mut self, real: &[u8]) -> Option<usize> {
        for doubt in self.uncertain.drain(..) {
            for i in 0..doubt.len {
                let at = doubt.at + i;
                if doubt.new.as_ref().is_none_or(|new| new[i] == real[at]) {
                    self.bytes[at] = real[at];
                }
            }
        }
        if self.bytes == real {
            return None;
        }
        self.bytes.iter().zip(real).position(|(a, b)| a != b)
    }

    /// Returns up to 16 bytes of the model from an offset, for an error message.
    pub fn at(&self, at: usize) -> &[u8] {
        &self.bytes[at..self.bytes.len().min(at + 16)]
    }
}
