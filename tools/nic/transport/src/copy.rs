// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Source, target and failure of a copy, which the host of a queue pair makes.

use crate::sges::Sge;
use verbena_abi::syndrome::Syndrome;

/// Source of a copy.
#[derive(Clone, Copy, Debug)]
pub enum CopySource<'a> {
    /// Bytes of a frame or a WQE.
    Bytes(&'a [u8]),
    /// A part of the bytes that SGEs describe (access:
    /// [`KeyAccess::LocalRead`](crate::host::KeyAccess::LocalRead)).
    Gather {
        /// Protection domain of the SGEs.
        pd: u32,
        /// True if the reserved DMA key is allowed.
        privileged: bool,
        /// All SGEs of the message.
        sges: &'a [Sge],
        /// First byte, counted over all SGEs.
        offset: u32,
        /// Number of bytes to copy.
        length: u32,
    },
    /// A part of the memory region that a READ requested (access:
    /// [`KeyAccess::RemoteRead`](crate::host::KeyAccess::RemoteRead)).
    Region {
        /// Protection domain of the responder.
        pd: u32,
        /// User of the key, as in [`KeyUse::owner`](crate::host::KeyUse::owner).
        owner: u64,
        /// R_Key of the READ request.
        key: u32,
        /// First address of the part.
        addr: u64,
        /// Number of bytes to copy.
        length: u32,
    },
}

/// Target of a copy.
#[derive(Debug)]
pub enum CopyTarget<'a> {
    /// A buffer of the engine, of exactly the size of the source.
    Buffer(&'a mut [u8]),
    /// A part of the bytes that SGEs describe, of the size of the source (access:
    /// [`KeyAccess::LocalWrite`](crate::host::KeyAccess::LocalWrite)).
    Scatter {
        /// Protection domain of the SGEs.
        pd: u32,
        /// True if the reserved DMA key is allowed.
        privileged: bool,
        /// All SGEs of the message.
        sges: &'a [Sge],
        /// First byte, counted over all SGEs.
        offset: u32,
    },
    /// A part of the memory region that a WRITE names (access:
    /// [`KeyAccess::RemoteWrite`](crate::host::KeyAccess::RemoteWrite)).
    Region {
        /// Protection domain of the responder.
        pd: u32,
        /// User of the key, as in [`KeyUse::owner`](crate::host::KeyUse::owner).
        owner: u64,
        /// R_Key of the WRITE.
        key: u32,
        /// First address of the part.
        addr: u64,
    },
}

/// Failed side of a copy, and the cause. Bytes before the failure may have been copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyFault {
    /// The source could not be read.
    Source(Syndrome),
    /// The target could not be written.
    Target(Syndrome),
}

/// Returns bytes `offset..offset + length`, or fewer if `bytes` ends before.
pub(crate) fn part(bytes: &[u8], offset: u32, length: u32) -> &[u8] {
    let rest = bytes.get(offset as usize..).unwrap_or(&[]);
    rest.get(..length as usize).unwrap_or(rest)
}
