// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The only copy of the payload, from the sender's guest memory to the receiver's.
//!
//! Both sides are walked as runs of contiguous DMA addresses, each as long as possible, and each
//! step copies the shorter one of the two runs. The keys are checked again here, for the part of
//! the message that is copied now. The two sides can belong to two guests: then each side has its
//! own memory and its own keys.

use crate::memory::ring::PageCache;
use crate::memory::GuestMemory;
use crate::objects::mr::{self, Mr, Span};
use crate::slots::Slots;
use verbena_abi::syndrome::Syndrome;
use verbena_transport::host::{CopyFault, CopySource, CopyTarget, KeyAccess, KeyUse, Sge};

/// One side of a copy: the memory of a guest, and the regions through which it can be reached.
#[derive(Debug)]
pub struct Side<'a, M> {
    /// Memory of the guest.
    pub mem: &'a M,
    /// Memory regions of the guest's device, by key index.
    pub regions: &'a Slots<Mr>,
}

impl<M> Clone for Side<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for Side<'_, M> {}

/// Page addresses that the walks of a copy have looked up. The struct outlives the copy only to
/// keep its memory allocated.
#[derive(Debug, Default)]
pub struct Lookups {
    pub(crate) source: PageCache,
    pub(crate) target: PageCache,
}

impl Lookups {
    /// Returns the number of elements of regions with gaps that copies have looked up since the
    /// last call.
    #[inline]
    pub fn take_sought(&mut self) -> u64 {
        u64::from(self.source.take_sought()) + u64::from(self.target.take_sought())
    }
}

/// A walk over one side of a copy.
struct Walk<'a> {
    pd: u32,
    owner: u64,
    privileged: bool,
    access: KeyAccess,
    sges: &'a [Sge],
    /// Number of bytes to skip before the walk begins.
    skip: u64,
    /// Number of bytes that are left to walk.
    left: u64,
    /// The present SGE: its memory, the bytes of it that were walked, and the bytes of it that are
    /// left.
    at: Option<(Span<'a>, u64, u64)>,
    /// Page addresses of the present SGE that were looked up.
    pages: &'a mut PageCache,
}

impl<'a> Walk<'a> {
    /// Returns the DMA address of the whole walk if it is one contiguous run, as in most messages.
    #[inline]
    fn whole<M: GuestMemory>(
        &mut self,
        mem: &M,
        regions: &Slots<Mr>,
    ) -> Result<Option<u64>, Syndrome> {
        let [sge] = self.sges else {
            return Ok(None);
        };
        if self.left == 0 || self.skip + self.left > u64::from(sge.length) {
            return Ok(None);
        }
        let span = mr::resolve(regions, &self.use_of(sge, self.left))?;
        self.pages.forget();
        let run = span.run(mem, self.pages, 0, self.left);
        let (addr, length) = run.ok_or(mr::unreachable(self.access))?;
        Ok((length == self.left).then_some(addr))
    }

    /// Returns the use of `length` bytes of an SGE, after the bytes to skip.
    #[inline]
    fn use_of(&self, sge: &Sge, length: u64) -> KeyUse {
        KeyUse {
            pd: self.pd,
            owner: self.owner,
            privileged: self.privileged,
            key: sge.lkey,
            addr: sge.addr.wrapping_add(self.skip),
            length,
            access: self.access,
        }
    }

    /// Returns the next run: its DMA address and its length of at most `want` bytes.
    fn peek<M: GuestMemory>(
        &mut self,
        mem: &M,
        regions: &'a Slots<Mr>,
        want: u64,
    ) -> Result<(u64, u64), Syndrome> {
        loop {
            if let Some((span, done, left)) = self.at {
                if left > 0 {
                    return span
                        .run(mem, self.pages, done, want.min(left))
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
            let span = mr::resolve(regions, &self.use_of(sge, part))?;
            self.skip = 0;
            self.pages.forget();
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

/// Copies all bytes of `source`, which lies on the side of the sender, to `target` on the side of
/// the receiver.
pub fn copy<M: GuestMemory>(
    receiver: Side<'_, M>,
    sender: Side<'_, M>,
    lookups: &mut Lookups,
    target: CopyTarget<'_>,
    source: CopySource<'_>,
) -> Result<(), CopyFault> {
    let region_sge;
    let pages = &mut lookups.target;
    let mut from = match source {
        CopySource::Bytes(bytes) => return put(receiver, pages, target, bytes),
        CopySource::Gather {
            pd,
            privileged,
            sges,
            offset,
            length,
        } => Walk {
            pd,
            owner: 0,
            privileged,
            access: KeyAccess::LocalRead,
            sges,
            skip: offset.into(),
            left: length.into(),
            at: None,
            pages: &mut lookups.source,
        },
        CopySource::Region {
            pd,
            owner,
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
                owner,
                privileged: false,
                access: KeyAccess::RemoteRead,
                sges: &region_sge,
                skip: 0,
                left: length.into(),
                at: None,
                pages: &mut lookups.source,
            }
        }
    };
    let total = from.left;
    let target_sge;
    let mut to = match target {
        CopyTarget::Buffer(buffer) => return get(sender, buffer, from),
        CopyTarget::Scatter {
            pd,
            privileged,
            sges,
            offset,
        } => scatter(pages, pd, privileged, sges, offset, total),
        CopyTarget::Region {
            pd,
            owner,
            key,
            addr,
        } => {
            target_sge = region_target(key, addr, total);
            region(pages, (pd, owner), &target_sge, total)
        }
    };
    if let Some(src) = from
        .whole(sender.mem, sender.regions)
        .map_err(CopyFault::Source)?
    {
        let whole = to.whole(receiver.mem, receiver.regions);
        if let Some(dst) = whole.map_err(CopyFault::Target)? {
            let copied = receiver.mem.copy_from(dst, sender.mem, src, total as usize);
            return copied.map_err(|_| fault(sender.mem, &from, &to, src, total));
        }
    }
    while from.left > 0 {
        let want = from.left;
        let (src, have) = from
            .peek(sender.mem, sender.regions, want)
            .map_err(CopyFault::Source)?;
        let (dst, room) = to
            .peek(receiver.mem, receiver.regions, have)
            .map_err(CopyFault::Target)?;
        let copied = receiver.mem.copy_from(dst, sender.mem, src, room as usize);
        copied.map_err(|_| fault(sender.mem, &from, &to, src, room))?;
        from.advance(room);
        to.advance(room);
    }
    Ok(())
}

/// Returns the fault for a copy of `length` bytes, on the side that could not be reached.
#[cold]
fn fault<M: GuestMemory>(
    sender: &M,
    from: &Walk<'_>,
    to: &Walk<'_>,
    src: u64,
    length: u64,
) -> CopyFault {
    if sender.contains(src, length) {
        CopyFault::Target(mr::unreachable(to.access))
    } else {
        CopyFault::Source(mr::unreachable(from.access))
    }
}

fn scatter<'a>(
    pages: &'a mut PageCache,
    pd: u32,
    privileged: bool,
    sges: &'a [Sge],
    offset: u32,
    total: u64,
) -> Walk<'a> {
    Walk {
        pd,
        owner: 0,
        privileged,
        access: KeyAccess::LocalWrite,
        sges,
        skip: offset.into(),
        left: total,
        at: None,
        pages,
    }
}

fn region_target(key: u32, addr: u64, total: u64) -> [Sge; 1] {
    [Sge {
        addr,
        length: total as u32,
        lkey: key,
    }]
}

fn region<'a>(
    pages: &'a mut PageCache,
    (pd, owner): (u32, u64),
    sges: &'a [Sge; 1],
    total: u64,
) -> Walk<'a> {
    Walk {
        pd,
        owner,
        privileged: false,
        access: KeyAccess::RemoteWrite,
        sges,
        skip: 0,
        left: total,
        at: None,
        pages,
    }
}

fn put<M: GuestMemory>(
    Side { mem, regions }: Side<'_, M>,
    pages: &mut PageCache,
    target: CopyTarget<'_>,
    mut bytes: &[u8],
) -> Result<(), CopyFault> {
    let total = bytes.len() as u64;
    let sge;
    let mut to = match target {
        CopyTarget::Buffer(buffer) => {
            let n = buffer.len().min(bytes.len());
            buffer[..n].copy_from_slice(&bytes[..n]);
            return Ok(());
        }
        CopyTarget::Scatter {
            pd,
            privileged,
            sges,
            offset,
        } => scatter(pages, pd, privileged, sges, offset, total),
        CopyTarget::Region {
            pd,
            owner,
            key,
            addr,
        } => {
            sge = region_target(key, addr, total);
            region(pages, (pd, owner), &sge, total)
        }
    };
    mem.begin_payload(bytes);
    while !bytes.is_empty() {
        let (dst, room) = to
            .peek(mem, regions, bytes.len() as u64)
            .map_err(CopyFault::Target)?;
        let (now, later) = bytes.split_at(room as usize);
        mem.write_payload(dst, now)
            .map_err(|_| CopyFault::Target(mr::unreachable(to.access)))?;
        to.advance(room);
        bytes = later;
    }
    Ok(())
}

fn get<'a, M: GuestMemory>(
    Side { mem, regions }: Side<'a, M>,
    mut buffer: &mut [u8],
    mut from: Walk<'a>,
) -> Result<(), CopyFault> {
    let length = buffer.len();
    while !buffer.is_empty() && from.left > 0 {
        let place = length - buffer.len();
        let want = from.left.min(buffer.len() as u64);
        let (src, have) = from.peek(mem, regions, want).map_err(CopyFault::Source)?;
        let (now, later) = buffer.split_at_mut(have as usize);
        mem.read_payload(src, now, place)
            .map_err(|_| CopyFault::Source(mr::unreachable(from.access)))?;
        from.advance(have);
        buffer = later;
    }
    Ok(())
}
