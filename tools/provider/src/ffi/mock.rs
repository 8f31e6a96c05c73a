// SPDX-License-Identifier: GPL-2.0 OR MIT

//! For unit tests: memory that the test writes in the place of the device, and lists of work
//! requests as C programs build them.
#![allow(unsafe_code)]

use super::memory::MappedMemory;
use super::object::{Ah, VerbsObject};
use super::pabi::*;
use super::wr::{RecvWr, SendWr, WindowBind};
use crate::errno::Errno;
use core::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};

/// Memory that a test shares with a queue.
pub struct MockMemory(MappedMemory);

impl MockMemory {
    pub fn new(length: usize) -> Self {
        Self(MappedMemory::heap(length))
    }

    /// Returns a view for the queue. The view must not outlive this value.
    pub fn view(&self) -> MappedMemory {
        self.0.alias()
    }

    /// Returns another handle of the same memory, which must not outlive the first handle.
    pub fn alias(&self) -> Self {
        Self(self.0.alias())
    }

    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let target = self.0.slice_at(offset, bytes.len());
        // SAFETY: `slice_at` has checked the range, and no queue reads an entry before it is
        // published.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
    }

    /// Stores an aligned word with release order.
    pub fn publish(&self, offset: usize, value: u32) {
        let target = self.0.slice_at(offset, 4).cast();
        // SAFETY: `slice_at` has checked the range; queues load this word as an atomic too.
        unsafe { AtomicU32::from_ptr(target) }.store(value, Ordering::Release);
    }

    /// Zeroes an entry, as the kernel does when it replaces the page. If a reader sees that any
    /// word is zero and then reads the word at `last`, that word is zero too. `length` is a
    /// multiple of 8.
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
        // SAFETY: `slice_at` has checked the range, and callers do not write to it meanwhile.
        unsafe { core::slice::from_raw_parts(source, length) }.to_vec()
    }

    pub fn clear(&self) {
        let length = self.0.length();
        self.write(0, &vec![0; length]);
    }
}

/// Returns attributes of a CQ whose fields are all 0.
pub fn cq_attr() -> ibv_cq_init_attr_ex {
    // SAFETY: the fields are integers, and pointers that may be null.
    unsafe { core::mem::zeroed() }
}

/// Returns attributes of a queue pair whose fields are all 0.
pub fn qp_attr() -> ibv_qp_init_attr_ex {
    // SAFETY: the fields are integers, and pointers that may be null.
    unsafe { core::mem::zeroed() }
}

pub fn send_wr(sges: &mut [ibv_sge]) -> ibv_send_wr {
    // SAFETY: the fields are integers, unions of integers, and pointers that may be null.
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

/// Makes `wr` a bind of a window of type `mw_type` to a region.
pub fn set_bind(wr: &mut ibv_send_wr, bind: WindowBind, mw_type: ibv_mw_type, imm: u32) {
    // SAFETY: the fields are integers, and pointers that may be null.
    let mut mw: Box<ibv_mw> = Box::new(unsafe { core::mem::zeroed() });
    // SAFETY: the fields are integers, and pointers that may be null.
    let mut mr: Box<ibv_mr> = Box::new(unsafe { core::mem::zeroed() });
    (mw.type_, mw.rkey, mr.lkey) = (mw_type, bind.key & !0xff, bind.region);
    // Window and region are leaked, because the request may live until the end of the test.
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

/// Begins the bind that [`set_bind`] has set, like `ibv_wr_bind_mw`. Returns the bind, and the key
/// that the window has afterwards.
pub fn begin_bind(wr: &ibv_send_wr) -> (Option<WindowBind>, u32) {
    // SAFETY: `set_bind` has set this member of the union.
    let bind = unsafe { wr.__bindgen_anon_2.bind_mw };
    // SAFETY: `set_bind` has set the pointers, and has leaked window and region.
    let begun = unsafe { WindowBind::tagged(bind.mw, bind.rkey, &bind.bind_info) };
    // SAFETY: `set_bind` has set the pointer, and has leaked the window.
    (begun, unsafe { (*bind.mw).rkey })
}

/// Changes the key of the bind that [`set_bind`] has set.
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
    // SAFETY: the handle is from a draft of these types, and no work request uses it any more.
    drop(unsafe { VerbsObject::<ibv_ah, Ah>::take(ah) });
}

pub fn recv_wr(wr_id: u64, sges: &mut [ibv_sge]) -> ibv_recv_wr {
    ibv_recv_wr {
        wr_id,
        next: core::ptr::null_mut(),
        sg_list: sges.as_mut_ptr(),
        num_sge: sges.len() as i32,
    }
}

/// Links the requests and posts them. An error contains the index of the bad request.
pub fn with_sends(
    wrs: &mut [ibv_send_wr],
    post: impl for<'a> FnOnce(SendWr<'a>) -> Result<(), (Errno, SendWr<'a>)>,
) -> Result<(), (Errno, usize)> {
    let base = wrs.as_mut_ptr();
    for (index, wr) in wrs.iter_mut().enumerate().rev().skip(1) {
        // SAFETY: the last request is skipped, so the slice has a next one.
        wr.next = unsafe { base.add(index + 1) };
    }
    // SAFETY: the requests are a valid list, and the last one has no next.
    let first = unsafe { SendWr::new(base) }.expect("not null");
    post(first).map_err(|(errno, bad)| {
        // SAFETY: both point into the slice.
        (errno, unsafe { bad.as_ptr().offset_from(base) } as usize)
    })
}

/// Like [`with_sends`], for receives.
pub fn with_recvs(
    wrs: &mut [ibv_recv_wr],
    post: impl for<'a> FnOnce(RecvWr<'a>) -> Result<(), (Errno, RecvWr<'a>)>,
) -> Result<(), (Errno, usize)> {
    let base = wrs.as_mut_ptr();
    for (index, wr) in wrs.iter_mut().enumerate().rev().skip(1) {
        // SAFETY: the last request is skipped, so the slice has a next one.
        wr.next = unsafe { base.add(index + 1) };
    }
    // SAFETY: the requests are a valid list, and the last one has no next.
    let first = unsafe { RecvWr::new(base) }.expect("not null");
    post(first).map_err(|(errno, bad)| {
        // SAFETY: both point into the slice.
        (errno, unsafe { bad.as_ptr().offset_from(base) } as usize)
    })
}
