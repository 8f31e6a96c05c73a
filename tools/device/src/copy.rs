// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The one copy of the payload, from the sender's guest memory to the receiver's.
//!
//! Both sides are walked as runs of contiguous DMA addresses, as long as they can be; the copy goes over the shorter
//! run of the two each time. Keys are checked here again, for the part of a message that is copied now.

use crate::mem::GuestMemory;
use crate::mr::{self, Mr, Span};
use crate::ring::PageCache;
use crate::slots::Slots;
use verbena_abi::syndrome::Syndrome;
use verbena_roce::host::{Access, CopyFault, KeyUse, Sge, Source, Target};

/// Walks one side.
struct Walk<'a> {
    pd: u32,
    privileged: bool,
    access: Access,
    sges: &'a [Sge],
    /// Bytes to skip before the first.
    skip: u64,
    /// Bytes to walk.
    left: u64,
    /// The region at hand: memory, bytes walked, bytes left of it.
    at: Option<(Span, u64, u64)>,
    /// Page addresses of it that were looked up.
    pages: PageCache,
}

impl Walk<'_> {
    /// The next run of at most `want` bytes.
    fn peek<M: GuestMemory>(
        &mut self,
        mem: &M,
        regions: &Slots<Mr>,
        want: u64,
    ) -> Result<(u64, u64), Syndrome> {
        loop {
            if let Some((span, done, left)) = self.at {
                if left > 0 {
                    return span
                        .run(mem, &mut self.pages, done, want.min(left))
                        .ok_or(mr::unreachable(self.access));
                }
            }
            let (sge, rest) = self.sges.split_first().ok_or(if self.access.is_local() {
                Syndrome::LkeyBounds
            } else {
                Syndrome::RkeyBounds
            })?;
            self.sges = rest;
            let length = u64::from(sge.length);
            if length <= self.skip {
                self.skip -= length;
                continue;
            }
            let part = (length - self.skip).min(self.left);
            let span = mr::resolve(
                regions,
                &KeyUse {
                    pd: self.pd,
                    privileged: self.privileged,
                    key: sge.lkey,
                    addr: sge.addr.wrapping_add(self.skip),
                    length: part,
                    access: self.access,
                },
            )?;
            self.skip = 0;
            self.pages = PageCache::default();
            self.at = Some((span, 0, part));
        }
    }

    fn advance(&mut self, by: u64) {
        self.left -= by;
        if let Some((_, done, left)) = &mut self.at {
            *done += by;
            *left -= by;
        }
    }
}

/// Copies all bytes of `source` to `target`.
pub fn copy<M: GuestMemory>(
    mem: &M,
    regions: &Slots<Mr>,
    target: Target<'_>,
    source: Source<'_>,
) -> Result<(), CopyFault> {
    let region_sge;
    let mut from = match source {
        Source::Bytes(bytes) => return put(mem, regions, target, bytes),
        Source::Gather {
            pd,
            privileged,
            sges,
            offset,
            length,
        } => Walk {
            pd,
            privileged,
            access: Access::LocalRead,
            sges,
            skip: offset.into(),
            left: length.into(),
            at: None,
            pages: PageCache::default(),
        },
        Source::Region {
            pd,
            key,
            addr,
            length,
        } => {
            region_sge = [Sge {
                addr,
                length,
                lkey: key,
            }];
            Walk {
                pd,
                privileged: false,
                access: Access::RemoteRead,
                sges: &region_sge,
                skip: 0,
                left: length.into(),
                at: None,
                pages: PageCache::default(),
            }
        }
    };
    let total = from.left;
    let target_sge;
    let mut to = match target {
        Target::Buffer(buffer) => return get(mem, regions, buffer, from),
        Target::Scatter {
            pd,
            privileged,
            sges,
            offset,
        } => scatter(pd, privileged, sges, offset, total),
        Target::Region { pd, key, addr } => {
            target_sge = region_target(key, addr, total);
            region(pd, &target_sge, total)
        }
    };
    while from.left > 0 {
        let want = from.left;
        let (src, have) = from.peek(mem, regions, want).map_err(CopyFault::Source)?;
        let (dst, room) = to.peek(mem, regions, have).map_err(CopyFault::Target)?;
        if mem.copy(dst, src, room as usize).is_err() {
            return Err(if mem.contains(src, room) {
                CopyFault::Target(mr::unreachable(to.access))
            } else {
                CopyFault::Source(mr::unreachable(from.access))
            });
        }
        from.advance(room);
        to.advance(room);
    }
    Ok(())
}

fn scatter(pd: u32, privileged: bool, sges: &[Sge], offset: u32, total: u64) -> Walk<'_> {
    Walk {
        pd,
        privileged,
        access: Access::LocalWrite,
        sges,
        skip: offset.into(),
        left: total,
        at: None,
        pages: PageCache::default(),
    }
}

fn region_target(key: u32, addr: u64, total: u64) -> [Sge; 1] {
    [Sge {
        addr,
        length: total as u32,
        lkey: key,
    }]
}

fn region(pd: u32, sges: &[Sge; 1], total: u64) -> Walk<'_> {
    Walk {
        pd,
        privileged: false,
        access: Access::RemoteWrite,
        sges,
        skip: 0,
        left: total,
        at: None,
        pages: PageCache::default(),
    }
}

fn put<M: GuestMemory>(
    mem: &M,
    regions: &Slots<Mr>,
    target: Target<'_>,
    mut bytes: &[u8],
) -> Result<(), CopyFault> {
    let total = bytes.len() as u64;
    let sge;
    let mut to = match target {
        Target::Buffer(buffer) => {
            let n = buffer.len().min(bytes.len());
            buffer[..n].copy_from_slice(&bytes[..n]);
            return Ok(());
        }
        Target::Scatter {
            pd,
            privileged,
            sges,
            offset,
        } => scatter(pd, privileged, sges, offset, total),
        Target::Region { pd, key, addr } => {
            sge = region_target(key, addr, total);
            region(pd, &sge, total)
        }
    };
    while !bytes.is_empty() {
        let (dst, room) = to
            .peek(mem, regions, bytes.len() as u64)
            .map_err(CopyFault::Target)?;
        let (now, later) = bytes.split_at(room as usize);
        mem.write(dst, now)
            .map_err(|_| CopyFault::Target(mr::unreachable(to.access)))?;
        to.advance(room);
        bytes = later;
    }
    Ok(())
}

fn get<M: GuestMemory>(
    mem: &M,
    regions: &Slots<Mr>,
    mut buffer: &mut [u8],
    mut from: Walk<'_>,
) -> Result<(), CopyFault> {
    while !buffer.is_empty() && from.left > 0 {
        let want = from.left.min(buffer.len() as u64);
        let (src, have) = from.peek(mem, regions, want).map_err(CopyFault::Source)?;
        let (now, later) = buffer.split_at_mut(have as usize);
        mem.read(src, now)
            .map_err(|_| CopyFault::Source(mr::unreachable(from.access)))?;
        from.advance(have);
        buffer = later;
    }
    Ok(())
}
