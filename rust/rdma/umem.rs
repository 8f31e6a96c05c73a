// SPDX-License-Identifier: GPL-2.0

//! Pinned memory of a process.
//!
//! C headers: [`include/rdma/ib_umem.h`](srctree/include/rdma/ib_umem.h),
//! [`include/rdma/iter.h`](srctree/include/rdma/iter.h)

use crate::{
    bindings,
    device::Operations,
    enums::Access,
    udata::User, //
};
use base::{
    bind::Binding,
    count::leak, //
};
use core::{
    marker::PhantomData,
    ptr::NonNull, //
};
use kernel::{
    device,
    error::from_err_ptr,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        aref::ARef,
        Arc, //
    }, //
};

/// Memory of a process that is pinned and mapped for DMA until this is dropped.
///
/// The drop uses the RDMA device, to which this therefore holds a reference, and the DMA mapping of
/// the PCI device, which must be bound for that. Memory that outlives the binding is leaked.
///
/// # Invariants
///
/// `raw` comes from `ib_umem_get_va()` for the RDMA device `_device`, whose DMA device is the one
/// of `binding`, and is released only when this is dropped.
pub struct Umem {
    raw: NonNull<bindings::ib_umem>,
    binding: Binding,
    _device: ARef<device::Device>,
}

// SAFETY: A umem may be released from any thread.
unsafe impl Send for Umem {}
// SAFETY: Code with a shared reference only reads the umem.
unsafe impl Sync for Umem {}

impl Umem {
    /// Pins memory of the process `user`, which is the current one, so `start` is an address in
    /// `current->mm`.
    pub fn pin<D: Operations>(
        user: &User<'_, D>,
        start: u64,
        length: u64,
        access: Access,
    ) -> Result<Self> {
        // CAST: The access flags are bit flags.
        let access = access.as_raw() as c_int;
        let dev = user.context().device();
        // SAFETY: The device is registered, because a process has called one of its verbs. The
        // function checks the other arguments.
        let raw = from_err_ptr(unsafe {
            bindings::rdma_helper_umem_get_va(dev.as_raw(), start, length, access)
        })?;
        // INVARIANT: The function has pinned the memory for this device, whose binding is
        // `dev.binding()`.
        Ok(Self {
            raw: NonNull::new(raw).ok_or(EINVAL)?,
            binding: dev.binding().clone(),
            _device: dev.as_dev().into(),
        })
    }

    /// Returns the length in bytes.
    pub fn length(&self) -> usize {
        // SAFETY: By the type invariant the umem is not released. The field is constant.
        unsafe { (*self.raw.as_ptr()).length }
    }

    /// True if the device may write to the memory.
    pub fn is_writable(&self) -> bool {
        // SAFETY: By the type invariant the umem is not released. The field is constant.
        unsafe { self.raw.as_ref() }.writable() != 0
    }

    /// True if the memory consists of the same pages as `other`, in the same order.
    pub fn has_pages_of(&self, other: &Self) -> bool {
        // CAST: A `usize` has at most 64 bits.
        let pgsz = PAGE_SIZE as u64;
        self.blocks(pgsz).eq(other.blocks(pgsz))
    }

    /// Never unpins the memory, because a device may still use it.
    pub fn abandon(this: &Arc<Self>) {
        leak(this.clone());
    }

    /// Returns the largest of the page sizes in `pgsz_bitmap` that can describe the memory at
    /// `virt_addr`, or `None` if there is none.
    pub fn find_best_pgsz(&mut self, pgsz_bitmap: u64, virt_addr: u64) -> Option<u64> {
        let bitmap = c_ulong::try_from(pgsz_bitmap).ok()?;
        // SAFETY: By the type invariant the umem is not released. The exclusive reference allows
        // the function to store `virt_addr` in it.
        match unsafe { bindings::ib_umem_find_best_pgsz(self.raw.as_ptr(), bitmap, virt_addr) } {
            0 => None,
            // CAST: An `unsigned long` has at most 64 bits.
            pgsz => Some(pgsz as u64),
        }
    }

    /// Returns the number of pages of size `pgsz`, which must be `PAGE_SIZE` or come from
    /// [`find_best_pgsz`](Self::find_best_pgsz).
    pub fn num_blocks(&self, pgsz: u64) -> usize {
        if !pgsz.is_power_of_two() {
            return 0;
        }
        let Ok(pgsz) = c_ulong::try_from(pgsz) else {
            return 0;
        };
        // SAFETY: By the type invariant the umem is not released. `pgsz` is a power of two.
        unsafe { bindings::rdma_helper_umem_num_blocks(self.raw.as_ptr(), pgsz) }
    }

    /// Returns the DMA addresses of the pages of size `pgsz`, which must be `PAGE_SIZE` or come
    /// from [`find_best_pgsz`](Self::find_best_pgsz).
    pub fn blocks(&self, pgsz: u64) -> Blocks<'_> {
        let mut iter = bindings::ib_block_iter::default();
        if let (true, Ok(pgsz)) = (pgsz.is_power_of_two(), c_ulong::try_from(pgsz)) {
            // SAFETY: By the type invariant the umem is not released. `pgsz` is a power of two.
            unsafe { bindings::rdma_helper_umem_iter_start(&mut iter, self.raw.as_ptr(), pgsz) };
        }
        // INVARIANT: The iterator was started above. An iterator that was not started is at its
        // end.
        Blocks {
            iter,
            _umem: PhantomData,
        }
    }
}

impl Drop for Umem {
    fn drop(&mut self) {
        let released = self.binding.with(|| {
            // SAFETY: By the type invariant `raw` is not released yet. `_device` holds the RDMA
            // device, and `with` keeps the PCI device bound.
            unsafe { bindings::ib_umem_release(self.raw.as_ptr()) }
        });
        if released.is_none() {
            pr_err!(
                "memory of a process was in use when the driver was unbound: it stays pinned\n"
            );
        }
    }
}

/// Iterator over the pages of a [`Umem`]: see [`Umem::blocks`].
///
/// # Invariants
///
/// `iter` is at its end, or iterates over the scatter list of a [`Umem`] that is borrowed for `'a`.
pub struct Blocks<'a> {
    iter: bindings::ib_block_iter,
    _umem: PhantomData<&'a Umem>,
}

impl Iterator for Blocks<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        // SAFETY: By the type invariant the iterator is valid, and the borrow keeps the scatter
        // list alive.
        //
        // INVARIANT: The function moves the iterator to the next page or to its end.
        if !unsafe { bindings::rdma_helper_umem_iter_next(&mut self.iter) } {
            return None;
        }
        // SAFETY: The iterator is at a page, because the last call returned true.
        Some(unsafe { bindings::rdma_helper_umem_iter_addr(&mut self.iter) })
    }
}
