// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Data memory twice: as the device left it, and as the model says. And the model's table of keys.

use verbena_abi::ctx::{access, mr_flags, MrState, Translation};
use verbena_abi::syndrome::Syndrome;
use verbena_abi::wqe::WqeOpcode;
use verbena_device::config::LOCAL_DMA_LKEY;

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// Bytes of the largest pages that regions have.
pub const MAX_PAGE: u64 = 4 * PAGE;
/// Pages of the data memory that programs work in. A page before it and one behind it belong to nobody.
pub const PAGES: u64 = 32;

/// Who uses keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Domain {
    /// The PD.
    pub pd: u32,
    /// It is the kernel's own.
    pub privileged: bool,
}

/// What an access wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Reads by the owner.
    Read,
    /// Writes by the owner.
    Write,
    /// RDMA READ by the peer.
    RemoteRead,
    /// RDMA WRITE by the peer.
    RemoteWrite,
    /// An atomic by the peer.
    RemoteAtomic,
}

impl Want {
    /// Whether the owner asks.
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

    /// Whether a peer asks.
    fn is_remote(self) -> bool {
        !matches!(self, Self::Read | Self::Write)
    }

    /// What the responder's access has to be for an operation.
    pub fn of(opcode: WqeOpcode) -> Option<Self> {
        match opcode {
            WqeOpcode::RdmaWrite | WqeOpcode::RdmaWriteImm => Some(Self::RemoteWrite),
            WqeOpcode::RdmaRead => Some(Self::RemoteRead),
            WqeOpcode::CompareSwap | WqeOpcode::FetchAdd => Some(Self::RemoteAtomic),
            _ => None,
        }
    }

    /// The right of the queue pair that it needs.
    pub fn qp_right(self) -> u32 {
        self.right()
    }
}

/// A piece of the data memory: offset and length.
pub type Piece = (u64, u64);

/// A memory region.
#[derive(Clone, Debug)]
pub struct Region {
    /// Its key.
    pub key: u32,
    /// Its PD.
    pub pd: u32,
    /// `access`.
    pub rights: u32,
    /// `mr_flags`.
    pub flags: u32,
    /// Address of the first byte.
    pub iova: u64,
    /// Bytes.
    pub length: u64,
    /// Of the first byte in the first page.
    pub page_offset: u64,
    /// The pages of the data memory, in order.
    pub pages: Vec<u64>,
    /// Pages of its translation before those.
    pub skip: u64,
    /// Its translation as the device was told.
    pub raw: Translation,
    /// Whether the key can be used.
    pub state: MrState,
    /// A work request that changes it is under way: until that is over, no other names it.
    pub busy: bool,
}

impl Region {
    /// Offset of the first byte in its translation.
    pub fn offset(&self) -> u64 {
        self.skip * PAGE + self.page_offset
    }

    /// Whether the key can be used.
    pub fn valid(&self) -> bool {
        self.state == MrState::Valid
    }

    /// Whether it is a key for fast registration.
    pub fn is_fast(&self) -> bool {
        self.flags & mr_flags::FAST_REG != 0
    }

    /// Where the bytes of a range lie that is inside of the region.
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

/// The keys.
#[derive(Debug, Default)]
pub struct Keys {
    /// Those that were created.
    pub all: Vec<Region>,
    /// Address of the data memory.
    pub heap: u64,
}

impl Keys {
    /// Looks an access up: its pieces, or all that is wrong with it. An access of no bytes needs no key.
    pub fn look_up(
        &self,
        (addr, length, key): (u64, u32, u32),
        who: Domain,
        want: Want,
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

    /// What an element may lead to at all: what a message needs may end before the element does, which ends beyond its region.
    pub fn reach(
        &self,
        (addr, length, key): (u64, u32, u32),
        who: Domain,
        want: Want,
    ) -> Vec<Piece> {
        let region = self.all.iter().find(|r| r.key == key);
        let inside = region.and_then(|r| (r.iova + r.length).checked_sub(addr));
        let length = inside.map_or(length, |most| most.min(length.into()) as u32);
        self.look_up((addr, length, key), who, want)
            .unwrap_or_default()
    }

    /// Looks all elements of a list up: the pieces of all, or what is wrong with the first that is.
    pub fn look_up_all(
        &self,
        sges: &[(u64, u32, u32)],
        who: Domain,
        want: Want,
    ) -> Result<Vec<Piece>, Vec<Syndrome>> {
        let mut out = Vec::new();
        for sge in sges {
            out.extend(self.look_up(*sge, who, want)?);
        }
        Ok(out)
    }
}

/// Data memory as the model has it.
#[derive(Debug)]
pub struct Data {
    bytes: Vec<u8>,
    /// What a byte may be instead: an operation that was cut short may have got so far.
    doubt: Vec<Doubt>,
}

/// Bytes of which it is not known whether they were written.
#[derive(Debug)]
struct Doubt {
    at: usize,
    /// What they would be then; `None`: anything.
    new: Option<Vec<u8>>,
    len: usize,
}

impl Data {
    /// As memory is at the start.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self {
            bytes,
            doubt: Vec::new(),
        }
    }

    /// Gathers the bytes of pieces.
    pub fn gather(&self, pieces: &[Piece]) -> Vec<u8> {
        let mut out = Vec::new();
        for &(at, len) in pieces {
            out.extend_from_slice(&self.bytes[at as usize..(at + len) as usize]);
        }
        out
    }

    /// Scatters bytes over pieces, as far as they go.
    pub fn scatter(&mut self, pieces: &[Piece], from: &[u8]) {
        let mut rest = from;
        for &(at, len) in pieces {
            let (now, later) = rest.split_at(rest.len().min(len as usize));
            self.bytes[at as usize..at as usize + now.len()].copy_from_slice(now);
            rest = later;
        }
    }

    /// Notes that bytes may have been scattered over pieces, each of them or not.
    pub fn perhaps(&mut self, pieces: &[Piece], from: &[u8]) {
        let mut rest = from;
        for &(at, len) in pieces {
            let (now, later) = rest.split_at(rest.len().min(len as usize));
            self.doubt.push(Doubt {
                at: at as usize,
                new: Some(now.to_vec()),
                len: now.len(),
            });
            rest = later;
        }
    }

    /// Notes that the bytes of pieces may be anything.
    pub fn anything(&mut self, pieces: &[Piece]) {
        for &(at, len) in pieces {
            self.doubt.push(Doubt {
                at: at as usize,
                new: None,
                len: len as usize,
            });
        }
    }

    /// The 64-bit word at the first of pieces.
    pub fn word(&self, pieces: &[Piece]) -> u64 {
        let bytes = self.gather(pieces);
        u64::from_le_bytes(bytes.try_into().unwrap_or_default())
    }

    /// Takes what may have changed from memory as it is, then compares everything. The first offset that differs.
    pub fn settle(&mut self, real: &[u8]) -> Option<usize> {
        for doubt in self.doubt.drain(..) {
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

    /// Some bytes as the model has them.
    pub fn at(&self, at: usize) -> &[u8] {
        &self.bytes[at..self.bytes.len().min(at + 16)]
    }
}
