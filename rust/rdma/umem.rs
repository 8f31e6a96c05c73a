// SPDX-License-Identifier: GPL-2.0

//! Pinned memory of a process.

use crate::{
    base::{
        bind::Binding,
        count::leak, //
    },
    bindings,
    device::Operations,
    enums::Access,
    udata::User, //
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

/// Memory of a process, pinned and mapped for DMA until dropped.
///
/// Dropping it uses the RDMA device, which it therefore holds, and the DMA mapping of the PCI device,
/// for which that must be bound: what outlives that is leaked.
///
/// # Invariants
///
/// `raw` was pinned for `device`, whose DMA device is the one of `binding`.
pub struct Umem {
    raw: NonNull<bindings::ib_umem>,
    binding: Binding,
    _device: ARef<device::Device>,
}

// SAFETY: A umem may be released from any thread.
unsafe impl Send for Umem {}
// SAFETY: By shared reference it is only read.
unsafe impl Sync for Umem {}

impl Umem {
    /// Pins memory of `user`, whose call this is part of: `current->mm` is the one it names.
    pub fn pin<D: Operations>(
        user: &User<'_, D>,
        start: u64,
        length: u64,
        access: Access,
    ) -> Result<Self> {
        // CAST: Bit flags.
        let access = access.as_raw() as c_int;
        let dev = user.context().device();
        // SAFETY: A registered device, in a verb that a process called; the function checks the rest.
        let raw = from_err_ptr(unsafe {
            bindings::rdma_helper_umem_get_va(dev.as_raw(), start, length, access)
        })?;
        Ok(Self {
            raw: NonNull::new(raw).ok_or(EINVAL)?,
            binding: dev.binding().clone(),
            _device: dev.as_dev().into(),
        })
    }

    /// Length in bytes.
    pub fn length(&self) -> usize {
        // SAFETY: Pinned; the field is constant.
        unsafe { (*self.raw.as_ptr()).length }
    }

    /// Whether the device may write to it.
    pub fn is_writable(&self) -> bool {
        // SAFETY: Pinned; the field is constant.
        unsafe { self.raw.as_ref() }.writable() != 0
    }

    /// Whether it is the same pages as `other`, in the same order.
    pub fn has_pages_of(&self, other: &Self) -> bool {
        // CAST: `usize` has at most 64 bits.
        let pgsz = PAGE_SIZE as u64;
        self.blocks(pgsz).eq(other.blocks(pgsz))
    }

    /// Never unpins the memory: a device may go on using it.
    pub fn abandon(this: &Arc<Self>) {
        leak(this.clone());
    }

    /// The largest of the page sizes in `pgsz_bitmap` that can describe the memory at `virt_addr`.
    /// `None` if there is none.
    pub fn find_best_pgsz(&mut self, pgsz_bitmap: u64, virt_addr: u64) -> Option<u64> {
        let bitmap = c_ulong::try_from(pgsz_bitmap).ok()?;
        // SAFETY: Pinned, and by nobody else used now: the core notes `virt_addr` in it.
        match unsafe { bindings::ib_umem_find_best_pgsz(self.raw.as_ptr(), bitmap, virt_addr) } {
            0 => None,
            // CAST: `unsigned long` has at most 64 bits.
            pgsz => Some(pgsz as u64),
        }
    }

    /// Number of pages of size `pgsz`, which must be `PAGE_SIZE` or from
    /// [`find_best_pgsz`](Self::find_best_pgsz).
    pub fn num_blocks(&self, pgsz: u64) -> usize {
        if !pgsz.is_power_of_two() {
            return 0;
        }
        let Ok(pgsz) = c_ulong::try_from(pgsz) else {
            return 0;
        };
        // SAFETY: Pinned; a power of two.
        unsafe { bindings::rdma_helper_umem_num_blocks(self.raw.as_ptr(), pgsz) }
    }

    /// DMA addresses of the pages of size `pgsz`, which must be `PAGE_SIZE` or from
    /// [`find_best_pgsz`](Self::find_best_pgsz).
    pub fn blocks(&self, pgsz: u64) -> Blocks<'_> {
        let mut iter = bindings::ib_block_iter::default();
        if let (true, Ok(pgsz)) = (pgsz.is_power_of_two(), c_ulong::try_from(pgsz)) {
            // SAFETY: Pinned; a power of two. An iterator that was not started is at its end.
            unsafe { bindings::rdma_helper_umem_iter_start(&mut iter, self.raw.as_ptr(), pgsz) };
        }
        Blocks {
            iter,
            _umem: PhantomData,
        }
    }
}

impl Drop for Umem {
    fn drop(&mut self) {
        let released = self.binding.with(|| {
            // SAFETY: Pinned by `pin`; the RDMA device is held, the PCI device bound.
            unsafe { bindings::ib_umem_release(self.raw.as_ptr()) }
        });
        if released.is_none() {
            pr_err!("pinned memory of a process outlived the driver's binding\n");
        }
    }
}

/// See [`Umem::blocks`].
pub struct Blocks<'a> {
    iter: bindings::ib_block_iter,
    _umem: PhantomData<&'a Umem>,
}

impl Iterator for Blocks<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        // SAFETY: The scatter list lives as long as the umem.
        unsafe {
            bindings::rdma_helper_umem_iter_next(&mut self.iter)
                .then(|| bindings::rdma_helper_umem_iter_addr(&mut self.iter))
        }
    }
}
