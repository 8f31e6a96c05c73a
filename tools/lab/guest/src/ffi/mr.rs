// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Memory regions.
#![allow(unsafe_code)]

use super::bindings::*;
use super::context::Pd;
use super::sys::{Buf, Errno};
use std::sync::{Arc, Mutex, PoisonError};

/// `enum ibv_access_flags`.
pub mod access {
    use super::super::bindings::*;

    pub const NONE: u32 = 0;
    pub const LOCAL_WRITE: u32 = IBV_ACCESS_LOCAL_WRITE;
    pub const REMOTE_WRITE: u32 = IBV_ACCESS_REMOTE_WRITE;
    pub const REMOTE_READ: u32 = IBV_ACCESS_REMOTE_READ;
    pub const REMOTE_ATOMIC: u32 = IBV_ACCESS_REMOTE_ATOMIC;
    pub const MW_BIND: u32 = IBV_ACCESS_MW_BIND;
    pub const FLUSH_GLOBAL: u32 = IBV_ACCESS_FLUSH_GLOBAL;
    pub const FLUSH_PERSISTENT: u32 = IBV_ACCESS_FLUSH_PERSISTENT;
    pub const ZERO_BASED: u32 = IBV_ACCESS_ZERO_BASED;
    pub const HUGETLB: u32 = IBV_ACCESS_HUGETLB;
    pub const RELAXED_ORDERING: u32 = IBV_ACCESS_RELAXED_ORDERING;
    /// Access rights of an ordinary test buffer and QP.
    pub const ALL: u32 = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ;
}

/// A registered buffer. The buffer outlives the registration.
pub struct Mr {
    pub(super) raw: *mut ibv_mr,
    pub buf: Arc<Buf>,
    /// The objects that the region consists of now. The lock serializes `ibv_rereg_mr`, which must
    /// not run twice at the same time for one region.
    references: Mutex<MrReferences>,
}

/// The objects that a region consists of, kept alive as long as the region lives.
struct MrReferences {
    _pd: Arc<Pd>,
    _buf: Arc<Buf>,
}

/// Registers memory by writing the command (`IB_USER_VERBS_CMD_REG_MR`) to the device file, with a
/// response address that the kernel cannot write to.
pub fn register_with_bad_response(pd: &Pd, buf: &Buf) -> Result<(), Errno> {
    const REG_MR: u32 = 9;
    /// An address that is not mapped.
    const NOWHERE: u64 = 16;
    // SAFETY: the context is valid while `pd` lives; the field never changes.
    let fd = unsafe { (*pd.ctx.raw()).cmd_fd };
    // SAFETY: as above.
    let handle = unsafe { (*pd.raw()).handle };
    let mut request = Vec::new();
    request.extend(REG_MR.to_ne_bytes());
    // The lengths of request and response, in words. The driver's part of the response follows the
    // core's three words.
    request.extend(12u16.to_ne_bytes());
    request.extend(5u16.to_ne_bytes());
    for word in [NOWHERE, buf.addr(), buf.len() as u64, buf.addr()] {
        request.extend(word.to_ne_bytes());
    }
    request.extend(handle.to_ne_bytes());
    request.extend(access::ALL.to_ne_bytes());
    // SAFETY: the kernel reads the request, whose length is given.
    let written = unsafe { libc::write(fd, request.as_ptr().cast(), request.len()) };
    match written {
        -1 => Err(Errno::last()),
        _ => Ok(()),
    }
}

impl Mr {
    /// Registers a new zeroed buffer.
    pub fn new(pd: &Arc<Pd>, len: usize, access: u32) -> Result<Mr, Errno> {
        Mr::of(pd, &Arc::new(Buf::new(len)?), 0, len, access)
    }

    /// Registers a part of `buf`.
    pub fn of(
        pd: &Arc<Pd>,
        buf: &Arc<Buf>,
        off: usize,
        len: usize,
        access: u32,
    ) -> Result<Mr, Errno> {
        assert!(off <= buf.len() && len <= buf.len() - off);
        let addr = buf.as_ptr().wrapping_add(off);
        let raw = if access & access::RELAXED_ORDERING != 0 {
            // SAFETY: the range lies in a live mapping, which the `Arc` in the result keeps alive.
            unsafe { ibv_reg_mr_iova2(pd.raw(), addr.cast(), len, addr as u64, access) }
        } else {
            let access = access as i32;
            // SAFETY: as above.
            unsafe { ibv_reg_mr(pd.raw(), addr.cast(), len, access) }
        };
        Mr::made(raw, pd, buf)
    }

    /// Registers all of `buf` at `iova`, the address by which work requests refer to the buffer.
    pub fn at_iova(pd: &Arc<Pd>, buf: &Arc<Buf>, iova: u64, access: u32) -> Result<Mr, Errno> {
        let addr = buf.as_ptr().cast();
        // SAFETY: the mapping is live, and the `Arc` in the result keeps it alive.
        let raw = unsafe { ibv_reg_mr_iova2(pd.raw(), addr, buf.len(), iova, access) };
        Mr::made(raw, pd, buf)
    }

    fn made(raw: *mut ibv_mr, pd: &Arc<Pd>, buf: &Arc<Buf>) -> Result<Mr, Errno> {
        if raw.is_null() {
            return Err(Errno::last());
        }
        Ok(Mr {
            raw,
            buf: buf.clone(),
            references: Mutex::new(MrReferences {
                _pd: pd.clone(),
                _buf: buf.clone(),
            }),
        })
    }

    /// Calls `ibv_rereg_mr`; a property that is `None` does not change. `self.buf` remains the
    /// original buffer.
    pub fn change(
        &self,
        buf: Option<&Arc<Buf>>,
        pd: Option<&Arc<Pd>>,
        access: Option<u32>,
    ) -> Result<(), Errno> {
        let mut references = self
            .references
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let flags = buf.map_or(0, |_| IBV_REREG_MR_CHANGE_TRANSLATION)
            | pd.map_or(0, |_| IBV_REREG_MR_CHANGE_PD)
            | access.map_or(0, |_| IBV_REREG_MR_CHANGE_ACCESS);
        let (addr, len) = buf.map_or((std::ptr::null_mut(), 0), |b| (b.as_ptr(), b.len()));
        let raw_pd = pd.map_or(std::ptr::null_mut(), |pd| pd.raw());
        let access = access.unwrap_or(0) as i32;
        // SAFETY: the region is valid; buffer and domain are alive, and `references` keeps them
        // alive if the call succeeds.
        let ret = unsafe { ibv_rereg_mr(self.raw, flags as i32, raw_pd, addr.cast(), len, access) };
        if ret != 0 {
            return Err(Errno::last());
        }
        *references = MrReferences {
            _pd: pd.unwrap_or(&references._pd).clone(),
            _buf: buf.unwrap_or(&references._buf).clone(),
        };
        Ok(())
    }

    pub fn lkey(&self) -> u32 {
        // SAFETY: `raw` is valid while `self` lives; keys do not change.
        unsafe { (*self.raw).lkey }
    }

    pub fn rkey(&self) -> u32 {
        // SAFETY: as in `lkey`.
        unsafe { (*self.raw).rkey }
    }

    /// Returns the address of a byte of the buffer.
    pub fn at(&self, off: usize) -> u64 {
        self.buf.addr() + off as u64
    }

    /// Returns an SGE over a part of the buffer, without a check of its bounds: the device has to
    /// refuse an invalid SGE.
    pub fn sge(&self, off: usize, len: usize) -> ibv_sge {
        ibv_sge {
            addr: self.at(off),
            length: len as u32,
            lkey: self.lkey(),
        }
    }
}
