// SPDX-License-Identifier: GPL-2.0

//! Counters of a port (`rdma statistic show`, `/sys/class/infiniband/*/ports/*/hw_counters`), and of
//! the queue pairs that somebody has asked to be counted apart (`rdma statistic qp`).
//!
//! C: `struct rdma_hw_stats`, `struct rdma_counter`. What a queue pair counts while it is bound to a
//! counter, the core adds to what the driver says of the port: the driver leaves it out there.

use crate::{
    bindings,
    device::{
        Device,
        Operations, //
    },
    ops::Adapter,
    qp::Qp, //
};
use core::num::NonZeroU32;
use kernel::{
    error::from_result,
    prelude::*, //
};

/// Name of a counter.
#[repr(transparent)]
pub struct StatDesc(bindings::rdma_stat_desc);

// SAFETY: Constant; the pointers are to constants, or `NULL`.
unsafe impl Sync for StatDesc {}
// SAFETY: As above.
unsafe impl Send for StatDesc {}

impl StatDesc {
    /// A counter called `name`.
    // The kernel's `as_char_ptr()` is not `const`; the cast does the same.
    #[expect(clippy::disallowed_methods)]
    pub const fn new(name: &'static CStr) -> Self {
        Self(bindings::rdma_stat_desc {
            name: name.as_ptr().cast(),
            flags: 0,
            priv_: core::ptr::null(),
        })
    }
}

/// The values of counters.
///
/// # Safety
///
/// `stats` must be from [`alloc`], and nobody else's for `'a`.
unsafe fn values<'a>(stats: *mut bindings::rdma_hw_stats) -> Result<(&'a mut [u64], c_int)> {
    // SAFETY: It has that many values.
    unsafe {
        let num = (*stats).num_counters;
        let values = (&raw mut (*stats).value).cast::<u64>();
        let len = usize::try_from(num)?;
        Ok((core::slice::from_raw_parts_mut(values, len), num))
    }
}

impl<D: Operations> Adapter<D> {
    pub(crate) const fn fill_stats_ops(ops: &mut bindings::ib_device_ops) {
        if D::HAS_PORT_STATS {
            ops.alloc_hw_port_stats = Some(Self::alloc_hw_port_stats);
            ops.get_hw_stats = Some(Self::get_hw_stats);
        }
        if D::HAS_BIND_COUNTER {
            ops.size_rdma_counter = size_of::<bindings::rdma_counter>();
            ops.counter_init = Some(Self::counter_init);
            ops.counter_alloc_stats = Some(Self::counter_alloc_stats);
            ops.counter_bind_qp = Some(Self::counter_bind_qp);
            ops.counter_unbind_qp = Some(Self::counter_unbind_qp);
            ops.counter_update_stats = Some(Self::counter_update_stats);
            ops.counter_dealloc = Some(Self::counter_dealloc);
        }
        if D::HAS_PORT_COUNTERS {
            ops.process_mad = Some(Self::process_mad);
        }
    }

    fn alloc() -> *mut bindings::rdma_hw_stats {
        let Ok(num) = c_int::try_from(D::PORT_STATS.len()) else {
            return core::ptr::null_mut();
        };
        // SAFETY: `StatDesc` is transparent, and the names are constants.
        unsafe {
            bindings::rdma_alloc_hw_stats_struct(
                D::PORT_STATS.as_ptr().cast(),
                num,
                // CAST: A small constant.
                bindings::RDMA_HW_STATS_DEFAULT_LIFESPAN as c_ulong,
            )
        }
    }

    /// # Safety
    ///
    /// Only for the core.
    unsafe extern "C" fn alloc_hw_port_stats(
        _dev: *mut bindings::ib_device,
        _port: u32,
    ) -> *mut bindings::rdma_hw_stats {
        Self::alloc()
    }

    /// # Safety
    ///
    /// Only for the core, which holds the lock of `stats`.
    unsafe extern "C" fn get_hw_stats(
        dev: *mut bindings::ib_device,
        stats: *mut bindings::rdma_hw_stats,
        port: u32,
        _index: c_int,
    ) -> c_int {
        from_result(|| {
            if port == 0 {
                return Err(EINVAL);
            }
            // SAFETY: A device of ours; `stats` is from `alloc_hw_port_stats`, and locked.
            let (dev, (values, num)) = unsafe { (Device::from_raw(dev), values(stats)?) };
            D::port_stats(dev, port, values)?;
            Ok(num)
        })
    }

    /// # Safety
    ///
    /// Only for the core.
    unsafe extern "C" fn counter_init(_counter: *mut bindings::rdma_counter) {}

    /// # Safety
    ///
    /// Only for the core.
    unsafe extern "C" fn counter_alloc_stats(
        _counter: *mut bindings::rdma_counter,
    ) -> *mut bindings::rdma_hw_stats {
        Self::alloc()
    }

    /// # Safety
    ///
    /// Only for the core, which holds the lock of `counter`.
    unsafe extern "C" fn counter_bind_qp(
        counter: *mut bindings::rdma_counter,
        qp: *mut bindings::ib_qp,
        _port: u32,
    ) -> c_int {
        from_result(|| {
            // SAFETY: A counter of a device of ours, locked; a queue pair of the same device, whose
            // `counter` is ours to set with that lock.
            unsafe {
                let dev = Device::<D>::from_raw((*counter).device);
                let id = NonZeroU32::new((*counter).id);
                (*counter).id = D::bind_counter(dev, id, Qp::from_raw(qp))?.get();
                (*qp).counter = counter;
            }
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Only for the core, which holds the lock of the counter that the queue pair had when it looked.
    unsafe extern "C" fn counter_unbind_qp(qp: *mut bindings::ib_qp, _port: u32) -> c_int {
        from_result(|| {
            // SAFETY: A queue pair of a device of ours, and its counter, if it still has one: of two
            // who unbind it at once the second has waited for the lock, and finds none. The first has
            // let go of the counter that the core holds for it; an error keeps the core from doing so
            // twice.
            unsafe {
                let counter = (*qp).counter;
                if counter.is_null() {
                    return Err(EINVAL);
                }
                let dev = Device::<D>::from_raw((*qp).device);
                if let Some(id) = NonZeroU32::new((*counter).id) {
                    D::unbind_counter(dev, id, Qp::from_raw(qp));
                }
                (*qp).counter = core::ptr::null_mut();
            }
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Only for the core, which holds the lock of `counter`.
    unsafe extern "C" fn counter_update_stats(counter: *mut bindings::rdma_counter) -> c_int {
        from_result(|| {
            // SAFETY: A counter of a device of ours, with `stats` from `counter_alloc_stats`, which
            // the lock protects.
            let (dev, id, (values, _)) = unsafe {
                (
                    Device::<D>::from_raw((*counter).device),
                    NonZeroU32::new((*counter).id),
                    values((*counter).stats)?,
                )
            };
            D::read_counter(dev, id.ok_or(EINVAL)?, values)?;
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Only for the core; the counter has no queue pairs any more.
    unsafe extern "C" fn counter_dealloc(counter: *mut bindings::rdma_counter) -> c_int {
        // SAFETY: A counter of a device of ours.
        let (dev, id) = unsafe { (Device::<D>::from_raw((*counter).device), (*counter).id) };
        if let Some(id) = NonZeroU32::new(id) {
            D::dealloc_counter(dev, id);
        }
        0
    }
}
