// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The decoding of work queue entries from a copy of their bytes.

use crate::memory::ring::Ring;
use crate::memory::GuestMemory;
use verbena_abi::wqe;
use verbena_transport::host::{DecodedRecvWqe, Sge, SgeList, Syndrome, WcStatus, WqeError};
use verbena_transport::packet::Feth;
use zerocopy::FromBytes;

/// Largest stride of a ring in bytes.
pub const MAX_STRIDE: usize = 1024;

/// Buffer for the copy of a WQE, which is allocated once. To clear a buffer for each WQE would cost
/// more than the copy.
#[derive(Debug)]
pub struct Wqe(Box<[u8; MAX_STRIDE]>);

impl Default for Wqe {
    fn default() -> Self {
        Self(Box::new([0; MAX_STRIDE]))
    }
}

impl Wqe {
    /// Copies an entry of a ring, once. Returns its length in bytes; none if the entry cannot be
    /// read.
    #[inline]
    pub fn fetch<M: GuestMemory>(&mut self, mem: &M, ring: &Ring, index: u32) -> Option<usize> {
        let length = 1 << ring.log_stride();
        mem.read(ring.entry(index), self.0.get_mut(..length)?)
            .ok()?;
        Some(length)
    }

    /// Returns the first `length` bytes of the copy.
    #[inline]
    pub fn bytes(&self, length: usize) -> &[u8] {
        self.0.get(..length).unwrap_or_default()
    }
}

/// Returns the error of a malformed WQE.
pub fn malformed(cause: Syndrome) -> WqeError {
    WqeError::new(WcStatus::LocQpOpErr, cause)
}

/// Reads a structure at an offset of a copy; none if the copy is too short.
pub fn read_at<T: FromBytes>(bytes: &[u8], offset: usize) -> Option<T> {
    T::read_from_prefix(bytes.get(offset..)?)
        .ok()
        .map(|(value, _)| value)
}

/// Decodes `count` SGEs from a copy. Returns false if the copy is too short.
pub fn decode_sges(bytes: &[u8], offset: usize, count: usize, sges: &mut SgeList) -> bool {
    for i in 0..count {
        let Some(sge) = read_at::<wqe::Sge>(bytes, offset + i * size_of::<wqe::Sge>()) else {
            return false;
        };
        sges.push(Sge {
            addr: sge.addr.get(),
            length: sge.length.get(),
            lkey: sge.lkey.get(),
        });
    }
    true
}

/// Decodes the type of a FLUSH and its length in bytes.
pub fn decode_flush(bytes: &[u8]) -> Result<(Feth, u32), WqeError> {
    let segment: wqe::FlushSegment =
        read_at(bytes, wqe::FLUSH_OFFSET).ok_or(malformed(Syndrome::WqeSgeCount))?;
    let feth = Feth {
        placement: segment.placement,
        level: segment.level,
    };
    if !feth.is_known() {
        return Err(malformed(Syndrome::FlushType));
    }
    Ok((feth, segment.length.get()))
}

/// Decodes a receive WQE from its copy. Returns false if the WQE is malformed; `wr_id` is set even
/// then.
pub fn decode_recv(bytes: &[u8], index: u32, privileged: bool, out: &mut DecodedRecvWqe) -> bool {
    let Some(header) = read_at::<wqe::RecvWqe>(bytes, 0) else {
        return false;
    };
    out.wr_id = header.wr_id.get();
    out.index = index;
    out.privileged = privileged;
    let count = header.num_sge as usize;
    let header = size_of::<wqe::RecvWqe>();
    count <= wqe::MAX_SGE as usize
        && header + count * size_of::<wqe::Sge>() <= bytes.len()
        && decode_sges(bytes, header, count, &mut out.sges)
}
