// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Work requests as `ibv_post_*` passes them: lists in C memory, with unions that the opcode selects.
//!
//! A wall. Whoever makes a [`SendWr`] or [`RecvWr`] vouches for the whole list behind it, as the verbs' callers do; then
//! the accessors are safe.
#![allow(unsafe_code)]

use super::memory::Entry;
use super::object::Ah;
use super::pabi::{ibv_mw, ibv_mw_bind_info, ibv_recv_wr, ibv_send_wr, ibv_sge, IBV_MW_TYPE_2};
use core::slice;

/// What both kinds of requests have, with what the caller of `new` vouches for.
macro_rules! request {
    ($request:ident of $raw:ident, $(#[doc = $vouched:literal])+) => {
        impl<'a> $request<'a> {
            /// Takes the head of a list.
            ///
            /// # Safety
            ///
            $(#[doc = $vouched])+
            #[inline(always)]
            pub unsafe fn new(wr: *const $raw) -> Option<Self> {
                // SAFETY: the caller vouches for it.
                unsafe { wr.as_ref() }.map(Self)
            }

            /// The request itself, for `bad_wr`.
            #[inline(always)]
            pub fn as_ptr(self) -> *mut $raw {
                core::ptr::from_ref(self.0).cast_mut()
            }

            /// The next one of the list.
            #[inline(always)]
            pub fn next(self) -> Option<Self> {
                // SAFETY: `new`'s caller vouched for the list.
                unsafe { Self::new(self.0.next) }
            }

            #[inline(always)]
            pub fn wr_id(self) -> u64 {
                self.0.wr_id
            }

            /// Number of SGEs; a negative one is huge.
            #[inline(always)]
            pub fn num_sge(self) -> u32 {
                self.0.num_sge as u32
            }

            /// The SGEs; nothing if some are announced and there is no list. What an older WQE left must not pass for them.
            #[inline(always)]
            fn sges(self) -> Option<&'a [ibv_sge]> {
                let (list, count) = (self.0.sg_list, self.0.num_sge);
                if count <= 0 {
                    return Some(&[]);
                }
                if list.is_null() {
                    return None;
                }
                // SAFETY: `new`'s caller vouched for `count` SGEs that do not change.
                Some(unsafe { slice::from_raw_parts(list, count as usize) })
            }

            /// Copies the SGEs to `offset` of `entry`; false if there is no list, or no room for it.
            #[inline(always)]
            pub fn copy_sges<const MIN: usize>(self, entry: Entry<'_, MIN>, offset: usize) -> bool {
                self.sges().is_some_and(|sges| entry.put_all(offset, sges))
            }
        }
    };
}

/// What a bind of a memory window asks for.
#[derive(Clone, Copy)]
pub struct Bind {
    /// The window's key to be.
    pub key: u32,
    /// First address in the region.
    pub addr: u64,
    /// Bytes.
    pub length: u64,
    /// The region's key; 0 without one.
    pub region: u32,
    /// `enum ibv_access_flags`, which are the contract's.
    pub access: u32,
}

impl Bind {
    /// Takes what a program asks for of a window of type 2, or nothing of another.
    ///
    /// A program chooses the tag alone, the last byte of the key (IBTA 10.6.7.2.2); what it gives of the rest is not looked at,
    /// as with other adapters.
    ///
    /// # Safety
    ///
    /// `mw` is a window of this provider that no other thread changes meanwhile; the rest as for [`Bind::new`].
    pub unsafe fn tagged(mw: *const ibv_mw, tag: u32, info: &ibv_mw_bind_info) -> Option<Self> {
        // SAFETY: the caller vouches for it.
        let mw = unsafe { mw.as_ref() }?;
        if mw.type_ != IBV_MW_TYPE_2 {
            return None;
        }
        // SAFETY: the caller vouches for it.
        Some(unsafe { Self::new((mw.rkey & !0xff) | (tag & 0xff), info) })
    }

    /// Takes what a program asks for.
    ///
    /// # Safety
    ///
    /// `info` names a region of the process, or none (null).
    pub unsafe fn new(key: u32, info: &ibv_mw_bind_info) -> Self {
        // SAFETY: the caller vouches for it.
        let region = unsafe { info.mr.as_ref() };
        Self {
            key,
            addr: info.addr,
            length: info.length,
            region: region.map_or(0, |mr| mr.lkey),
            access: info.mw_access_flags,
        }
    }
}

/// A send work request.
#[derive(Clone, Copy)]
pub struct SendWr<'a>(&'a ibv_send_wr);

request!(
    SendWr of ibv_send_wr,
    /// `wr` points to a valid list: each entry has `num_sge` SGEs if that is positive, or none (null), the union member of its
    /// opcode is set (that of datagrams, if the queue pair is theirs and the opcode too), address handles, windows and regions
    /// are this provider's, and inline data is readable. Nothing changes it, nor uses the windows, during `'a`.
);

impl<'a> SendWr<'a> {
    /// `enum ibv_wr_opcode`.
    #[inline(always)]
    pub fn opcode(self) -> u32 {
        self.0.opcode
    }

    /// `enum ibv_send_flags`.
    #[inline(always)]
    pub fn flags(self) -> u32 {
        self.0.send_flags
    }

    /// Immediate data or the key to invalidate, as it lies in memory.
    #[inline(always)]
    pub fn imm(self) -> u32 {
        // SAFETY: both members are four bytes that may hold anything.
        unsafe { self.0.__bindgen_anon_1.imm_data }
    }

    /// Address and key at the peer, of RDMA.
    #[inline(always)]
    pub fn rdma(self) -> (u64, u32) {
        // SAFETY: plain integers, set for this opcode.
        let rdma = unsafe { self.0.wr.rdma };
        (rdma.remote_addr, rdma.rkey)
    }

    /// Address, key, compare or add, swap, of atomics.
    #[inline(always)]
    pub fn atomic(self) -> (u64, u32, u64, u64) {
        // SAFETY: plain integers, set for this opcode.
        let atomic = unsafe { self.0.wr.atomic };
        (
            atomic.remote_addr,
            atomic.rkey,
            atomic.compare_add,
            atomic.swap,
        )
    }

    /// What a bind that is posted asks for, of a window of type 2, which has the new key from then on.
    #[inline(always)]
    pub fn bind(self) -> Option<Bind> {
        // SAFETY: plain integers and pointers, set for this opcode.
        let window = unsafe { self.0.__bindgen_anon_2.bind_mw };
        // SAFETY: `new`'s caller vouched for window and region.
        let bind = unsafe { Bind::tagged(window.mw, window.rkey, &window.bind_info) }?;
        // SAFETY: a window, which no other thread uses meanwhile.
        unsafe { (*window.mw).rkey = bind.key };
        Some(bind)
    }

    /// The SRQ at the peer, of extended connections.
    pub fn srqn(self) -> u32 {
        // SAFETY: a plain integer, set for this type of queue pair.
        unsafe { self.0.qp_type.xrc.remote_srqn }
    }

    /// Address handle, QPN and Q_Key, of datagrams: of requests with an opcode that they have.
    #[inline(always)]
    pub fn datagram(self) -> Option<(&'a Ah, u32, u32)> {
        // SAFETY: plain integers and a pointer, set for this type of queue pair and opcode.
        let ud = unsafe { self.0.wr.ud };
        // SAFETY: `new`'s caller vouched for the handle.
        let ah = unsafe { Ah::from_ptr(ud.ah) }?;
        Some((ah, ud.remote_qpn, ud.remote_qkey))
    }

    /// Copies inline data to `offset` of `entry`: its length, or nothing if there is no list or it is longer than `most`.
    #[inline(always)]
    pub fn copy_inline<const MIN: usize>(
        self,
        entry: Entry<'_, MIN>,
        offset: usize,
        most: u32,
    ) -> Option<u32> {
        let mut total = 0u32;
        for sge in self.sges()? {
            if sge.length > most - total {
                return None;
            }
            let at = offset + total as usize;
            // SAFETY: `new`'s caller vouched that inline data is readable.
            if !unsafe { entry.copy_in(at, sge.addr as *const u8, sge.length as usize) } {
                return None;
            }
            total += sge.length;
        }
        Some(total)
    }
}

/// A receive work request.
#[derive(Clone, Copy)]
pub struct RecvWr<'a>(&'a ibv_recv_wr);

request!(
    RecvWr of ibv_recv_wr,
    /// `wr` points to a valid list: each entry has `num_sge` SGEs if that is positive, or none (null). Nothing changes it as
    /// long as this value lives.
);
