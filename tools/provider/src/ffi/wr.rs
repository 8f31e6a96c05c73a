// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Work requests as `ibv_post_*` passes them: lists in C memory, with unions that the opcode
//! selects.
//!
//! This file is a safe interface to unsafe code. The code that makes a [`SendWr`] or [`RecvWr`]
//! vouches for the whole list that begins there, as the callers of the verbs do. The accessors are
//! then safe.
#![allow(unsafe_code)]

use super::memory::RingEntry;
use super::object::Ah;
use super::pabi::{ibv_mw, ibv_mw_bind_info, ibv_recv_wr, ibv_send_wr, ibv_sge, IBV_MW_TYPE_2};
use core::slice;

/// Implements the accessors of both kinds of requests. `$vouched` is the condition that the caller
/// of `new` vouches for.
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
                // SAFETY: the caller meets the conditions of this function.
                unsafe { wr.as_ref() }.map(Self)
            }

            /// Returns the request itself, for `bad_wr`.
            #[inline(always)]
            pub fn as_ptr(self) -> *mut $raw {
                core::ptr::from_ref(self.0).cast_mut()
            }

            /// Returns the next request of the list.
            #[inline(always)]
            pub fn next(self) -> Option<Self> {
                // SAFETY: `new`'s caller vouched for the list.
                unsafe { Self::new(self.0.next) }
            }

            #[inline(always)]
            pub fn wr_id(self) -> u64 {
                self.0.wr_id
            }

            /// Returns the number of SGEs; a negative number becomes a huge one.
            #[inline(always)]
            pub fn num_sge(self) -> u32 {
                self.0.num_sge as u32
            }

            /// Returns the SGEs, or `None` if the request announces some and has no list: the SGEs
            /// of an older WQE in the entry must not pass for those of the request.
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

            /// Copies the SGEs to `offset` of `entry`. Returns false if there is no list, or no
            /// room for it.
            #[inline(always)]
            pub fn copy_sges<const MIN: usize>(self, entry: RingEntry<'_, MIN>, offset: usize) -> bool {
                self.sges().is_some_and(|sges| entry.put_all(offset, sges))
            }
        }
    };
}

/// Operands of the bind of a memory window.
#[derive(Clone, Copy)]
pub struct WindowBind {
    /// New key of the window.
    pub key: u32,
    /// First address of the window in the region.
    pub addr: u64,
    /// Length of the window in bytes.
    pub length: u64,
    /// Key of the region; 0 without a region.
    pub region: u32,
    /// Bits of `enum ibv_access_flags`, which the ABI has too.
    pub access: u32,
}

impl WindowBind {
    /// Returns the bind that a program requests for a window of type 2, or `None` for another
    /// window.
    ///
    /// A program chooses only the tag, the last byte of the key (IBTA 10.6.7.2.2). As with other
    /// adapters, the other bytes of the key that it passes are ignored.
    ///
    /// # Safety
    ///
    /// `mw` is a window of this provider that no other thread changes meanwhile. `info` meets the
    /// conditions of [`Bind::new`].
    pub unsafe fn tagged(mw: *const ibv_mw, tag: u32, info: &ibv_mw_bind_info) -> Option<Self> {
        // SAFETY: the caller meets the conditions of this function.
        let mw = unsafe { mw.as_ref() }?;
        if mw.type_ != IBV_MW_TYPE_2 {
            return None;
        }
        // SAFETY: the caller meets the conditions of this function.
        Some(unsafe { Self::new((mw.rkey & !0xff) | (tag & 0xff), info) })
    }

    /// Returns the bind that a program requests.
    ///
    /// # Safety
    ///
    /// `info` names a region of the process, or none (null).
    pub unsafe fn new(key: u32, info: &ibv_mw_bind_info) -> Self {
        // SAFETY: the caller meets the conditions of this function.
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
    /// `wr` points to a valid list: each entry has `num_sge` SGEs if that is positive, or none
    /// (null), the union member of its opcode is set (that of datagrams, if the queue pair is a
    /// datagram one and the opcode carries a UD address), address handles, windows and regions are
    /// those of this provider, and inline data is readable. Nothing changes the list, nor uses the
    /// windows, during `'a`.
);

impl<'a> SendWr<'a> {
    /// Returns the opcode, of `enum ibv_wr_opcode`.
    #[inline(always)]
    pub fn opcode(self) -> u32 {
        self.0.opcode
    }

    /// Returns the flags, of `enum ibv_send_flags`.
    #[inline(always)]
    pub fn flags(self) -> u32 {
        self.0.send_flags
    }

    /// Returns the immediate data, or the key to invalidate, without a change of byte order.
    #[inline(always)]
    pub fn imm(self) -> u32 {
        // SAFETY: both members are four bytes that may hold anything.
        unsafe { self.0.__bindgen_anon_1.imm_data }
    }

    /// Returns the address and the key at the peer, of an RDMA request.
    #[inline(always)]
    pub fn rdma(self) -> (u64, u32) {
        // SAFETY: the union member consists of integers, which are set for this opcode.
        let rdma = unsafe { self.0.wr.rdma };
        (rdma.remote_addr, rdma.rkey)
    }

    /// Returns address, key, compare or add value and swap value of an atomic operation.
    #[inline(always)]
    pub fn atomic(self) -> (u64, u32, u64, u64) {
        // SAFETY: the union member consists of integers, which are set for this opcode.
        let atomic = unsafe { self.0.wr.atomic };
        (
            atomic.remote_addr,
            atomic.rkey,
            atomic.compare_add,
            atomic.swap,
        )
    }

    /// Returns the bind of a window of type 2 whose request is posted, and gives the window its new
    /// key.
    #[inline(always)]
    pub fn bind(self) -> Option<WindowBind> {
        // SAFETY: the union member consists of integers and pointers, which are set for this
        // opcode.
        let window = unsafe { self.0.__bindgen_anon_2.bind_mw };
        // SAFETY: `new`'s caller vouched for window and region.
        let bind = unsafe { WindowBind::tagged(window.mw, window.rkey, &window.bind_info) }?;
        // SAFETY: the pointer refers to a window, which no other thread uses meanwhile.
        unsafe { (*window.mw).rkey = bind.key };
        Some(bind)
    }

    /// Returns the SRQ at the peer of an extended connection.
    pub fn srqn(self) -> u32 {
        // SAFETY: the union member is an integer, which is set for this type of queue pair.
        unsafe { self.0.qp_type.xrc.remote_srqn }
    }

    /// Returns address handle, QPN and Q_Key of a datagram. The opcode must be one that carries
    /// them.
    #[inline(always)]
    pub fn datagram(self) -> Option<(&'a Ah, u32, u32)> {
        // SAFETY: the union member consists of integers and a pointer, which are set for this type
        // of queue pair and opcode.
        let ud = unsafe { self.0.wr.ud };
        // SAFETY: `new`'s caller vouched for the handle.
        let ah = unsafe { Ah::from_ptr(ud.ah) }?;
        Some((ah, ud.remote_qpn, ud.remote_qkey))
    }

    /// Copies inline data to `offset` of `entry` and returns its length. Returns `None` if there is
    /// no list, the data is longer than `most` bytes, or it does not fit.
    #[inline(always)]
    pub fn copy_inline<const MIN: usize>(
        self,
        entry: RingEntry<'_, MIN>,
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
    /// `wr` points to a valid list: each entry has `num_sge` SGEs if that is positive, or none
    /// (null). Nothing changes the list during the life of this value.
);
