// SPDX-License-Identifier: GPL-2.0 OR MIT

//! For unit tests: memory that the test writes as the device would, and lists of work requests as C builds them.
#![allow(unsafe_code)]

use super::memory::Memory;
use super::object::{Ah, Object};
use super::pabi::*;
use super::wr::{Bind, RecvWr, SendWr};
use crate::errno::Errno;
use core::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};

/// Memory that a test and a queue both see.
pub struct Shared(Memory);

impl Shared {
    pub fn new(length: usize) -> Self {
        Self(Memory::heap(length))
    }

    /// The queue's view. It must not outlive this value.
    pub fn view(&self) -> Memory {
        self.0.alias()
    }

    /// Another handle of the same memory. It must not outlive this value's origin.
    pub fn again(&self) -> Self {
        Self(self.0.alias())
    }

    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let target = self.0.slice_at(offset, bytes.len());
        // SAFETY: `slice_at` has checked the range; nobody reads an entry that was not published.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
    }

    /// Stores an aligned word with release order.
    pub fn publish(&self, offset: usize, value: u32) {
        let target = self.0.slice_at(offset, 4).cast();
        // SAFETY: `slice_at` has checked the range; queues load this word as an atomic too.
        unsafe { AtomicU32::from_ptr(target) }.store(value, Ordering::Release);
    }

    /// Zeroes an entry of whole words as the kernel does that takes its page away: who sees one word zeroed, and looks at the
    /// `last` one afterwards, sees that zeroed too.
    pub fn revoke(&self, offset: usize, length: usize, last: usize) {
        self.publish(offset + last, 0);
        fence(Ordering::Release);
        for word in (0..length).step_by(8) {
            let target = self.0.slice_at(offset + word, 8).cast();
            // SAFETY: `slice_at` has checked the range; queues load these words as atomics too.
            unsafe { AtomicU64::from_ptr(target) }.store(0, Ordering::Relaxed);
        }
    }

    pub fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        let source = self.0.slice_at(offset, length);
        // SAFETY: `slice_at` has checked the range; tests have one thread.
        unsafe { core::slice::from_raw_parts(source, length) }.to_vec()
    }

    pub fn clear(&self) {
        let length = self.0.length();
        self.write(0, &vec![0; length]);
    }
}

/// Attributes that ask for nothing.
pub fn cq_attr() -> ibv_cq_init_attr_ex {
    // SAFETY: integers, and pointers that may be null.
    unsafe { core::mem::zeroed() }
}

/// As above.
pub fn qp_attr() -> ibv_qp_init_attr_ex {
    // SAFETY: integers, and pointers that may be null.
    unsafe { core::mem::zeroed() }
}

pub fn send_wr(sges: &mut [ibv_sge]) -> ibv_send_wr {
    // SAFETY: integers, unions of them, and pointers that may be null.
    let mut wr: ibv_send_wr = unsafe { core::mem::zeroed() };
    wr.sg_list = sges.as_mut_ptr();
    wr.num_sge = sges.len() as i32;
    wr
}

pub fn set_rdma(wr: &mut ibv_send_wr, remote_addr: u64, rkey: u32, imm: u32) {
    wr.wr.rdma.remote_addr = remote_addr;
    wr.wr.rdma.rkey = rkey;
    wr.__bindgen_anon_1.imm_data = imm;
}

pub fn set_atomic(wr: &mut ibv_send_wr, remote_addr: u64, rkey: u32, compare_add: u64, swap: u64) {
    wr.wr.atomic.remote_addr = remote_addr;
    wr.wr.atomic.rkey = rkey;
    wr.wr.atomic.compare_add = compare_add;
    wr.wr.atomic.swap = swap;
}

/// A window of that type, over a region.
pub fn set_bind(wr: &mut ibv_send_wr, bind: Bind, mw_type: ibv_mw_type, imm: u32) {
    // SAFETY: integers, and pointers that may be null.
    let mut mw: Box<ibv_mw> = Box::new(unsafe { core::mem::zeroed() });
    // SAFETY: as above.
    let mut mr: Box<ibv_mr> = Box::new(unsafe { core::mem::zeroed() });
    (mw.type_, mw.rkey, mr.lkey) = (mw_type, bind.key & !0xff, bind.region);
    // They outlive the test, as long as the request may.
    wr.__bindgen_anon_2.bind_mw = ibv_send_wr__bindgen_ty_4__bindgen_ty_1 {
        mw: Box::leak(mw),
        rkey: bind.key,
        bind_info: ibv_mw_bind_info {
            mr: Box::leak(mr),
            addr: bind.addr,
            length: bind.length,
            mw_access_flags: bind.access,
        },
    };
    wr.__bindgen_anon_1.imm_data = imm;
}

/// What `ibv_wr_bind_mw` makes of the bind of [`set_bind`], and the key that the window has then.
pub fn begin_bind(wr: &ibv_send_wr) -> (Option<Bind>, u32) {
    // SAFETY: set by `set_bind`.
    let bind = unsafe { wr.__bindgen_anon_2.bind_mw };
    // SAFETY: as above, which keeps window and region.
    let begun = unsafe { Bind::tagged(bind.mw, bind.rkey, &bind.bind_info) };
    // SAFETY: as above.
    (begun, unsafe { (*bind.mw).rkey })
}

/// Another key for the bind of [`set_bind`].
pub fn set_bind_key(wr: &mut ibv_send_wr, key: u32) {
    wr.__bindgen_anon_2.bind_mw.rkey = key;
}

pub fn set_datagram(wr: &mut ibv_send_wr, ah: *mut ibv_ah, qpn: u32, qkey: u32, imm: u32) {
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = qpn;
    wr.wr.ud.remote_qkey = qkey;
    wr.__bindgen_anon_1.imm_data = imm;
}

pub fn free_ah(ah: *mut ibv_ah) {
    // SAFETY: from a draft of these types, and no work request refers to it any more.
    drop(unsafe { Object::<ibv_ah, Ah>::take(ah) });
}

pub fn recv_wr(wr_id: u64, sges: &mut [ibv_sge]) -> ibv_recv_wr {
    ibv_recv_wr {
        wr_id,
        next: core::ptr::null_mut(),
        sg_list: sges.as_mut_ptr(),
        num_sge: sges.len() as i32,
    }
}

/// Links the requests and posts them; an error comes with the index of the bad one.
pub fn with_sends(
    wrs: &mut [ibv_send_wr],
    post: impl for<'a> FnOnce(SendWr<'a>) -> Result<(), (Errno, SendWr<'a>)>,
) -> Result<(), (Errno, usize)> {
    let base = wrs.as_mut_ptr();
    for (index, wr) in wrs.iter_mut().enumerate().rev().skip(1) {
        // SAFETY: the last one is skipped, so there is a next one.
        wr.next = unsafe { base.add(index + 1) };
    }
    // SAFETY: a valid list, from here to the end of the slice.
    let first = unsafe { SendWr::new(base) }.expect("not null");
    post(first).map_err(|(errno, bad)| {
        // SAFETY: both point into the slice.
        (errno, unsafe { bad.as_ptr().offset_from(base) } as usize)
    })
}

/// The same for receives.
pub fn with_recvs(
    wrs: &mut [ibv_recv_wr],
    post: impl for<'a> FnOnce(RecvWr<'a>) -> Result<(), (Errno, RecvWr<'a>)>,
) -> Result<(), (Errno, usize)> {
    let base = wrs.as_mut_ptr();
    for (index, wr) in wrs.iter_mut().enumerate().rev().skip(1) {
        // SAFETY: the last one is skipped, so there is a next one.
        wr.next = unsafe { base.add(index + 1) };
    }
    // SAFETY: a valid list, from here to the end of the slice.
    let first = unsafe { RecvWr::new(base) }.expect("not null");
    post(first).map_err(|(errno, bad)| {
        // SAFETY: both point into the slice.
        (errno, unsafe { bad.as_ptr().offset_from(base) } as usize)
    })
}
