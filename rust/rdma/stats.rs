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
use core::{
    marker::PhantomData,
    num::NonZeroU32,
    ptr::null_mut, //
};
use kernel::{
    error::from_result,
    prelude::*,
    sync::atomic::{
        atomic_store,
        Relaxed,
        Release, //
    }, //
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

/// Where the values of counters are told.
///
/// # Invariants
///
/// `stats` is from [`Adapter::alloc`], and nobody else writes its values for `'a`. The core may read them
/// meanwhile (`rdma statistic` does so without the lock), so they are never borrowed.
pub struct Values<'a> {
    stats: *mut bindings::rdma_hw_stats,
    _life: PhantomData<&'a ()>,
}

impl Values<'_> {
    /// # Safety
    ///
    /// `stats` must be from [`Adapter::alloc`], and nobody else may write its values while this lives.
    unsafe fn from_raw(stats: *mut bindings::rdma_hw_stats) -> Self {
        // INVARIANT: The caller vouches for it.
        Self {
            stats,
            _life: PhantomData,
        }
    }

    /// How many there are.
    fn num(&self) -> c_int {
        // SAFETY: It is valid, and the number never changes.
        unsafe { (*self.stats).num_counters }
    }

    /// Tells the values, in order; those without a place are dropped.
    pub fn set(&mut self, values: impl Iterator<Item = u64>) {
        for (index, value) in (0..self.num()).zip(values) {
            // SAFETY: It has that many values, which nobody else writes. Who reads one meanwhile sees the
            // old or the new, as from C.
            // CAST: Not negative.
            unsafe {
                let first = (&raw mut (*self.stats).value).cast::<u64>();
                first.add(index as usize).write_volatile(value);
            }
        }
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
            // SAFETY: A device of ours; `stats` is from `alloc_hw_port_stats`, and whoever writes there has
            // its lock.
            let (dev, mut values) = unsafe { (Device::from_raw(dev), Values::from_raw(stats)) };
            D::port_stats(dev, port, &mut values)?;
            Ok(values.num())
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
            // SAFETY: A counter of a device of ours, locked; a queue pair of the same device.
            let (dev, id, object) = unsafe {
                (
                    Device::<D>::from_raw((*counter).device),
                    NonZeroU32::new((*counter).id),
                    Qp::<D>::from_raw(qp),
                )
            };
            // Of two who bind it at once, each has the lock of its own counter, and has seen that the
            // queue pair had none. Nobody may see a counter whose binding can still fail: the core frees it.
            let _one = object.extra().counter.lock();
            // SAFETY: As above; only with this lock the queue pair gets a counter, or loses it.
            unsafe {
                if !(*qp).counter.is_null() {
                    return Err(EINVAL);
                }
                (*counter).id = D::bind_counter(dev, id, object)?.get();
                atomic_store(&raw mut (*qp).counter, counter, Release);
            }
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Only for the core, which holds the lock of the counter that the queue pair had when it looked.
    unsafe extern "C" fn counter_unbind_qp(qp: *mut bindings::ib_qp, _port: u32) -> c_int {
        from_result(|| {
            // SAFETY: A queue pair of a device of ours.
            let (dev, object) =
                unsafe { (Device::<D>::from_raw((*qp).device), Qp::<D>::from_raw(qp)) };
            let _one = object.extra().counter.lock();
            // SAFETY: As above; its counter, if it still has one: of two who unbind it at once the second
            // has waited for a lock, and finds none. The first has let go of the counter that the core
            // holds for it; an error keeps the core from doing so twice. Who finds a counter that was bound
            // meanwhile ends that: its bind has ended, and the core holds it for the queue pair.
            unsafe {
                let counter = (*qp).counter;
                if counter.is_null() {
                    return Err(EINVAL);
                }
                if let Some(id) = NonZeroU32::new((*counter).id) {
                    D::unbind_counter(dev, id, object);
                }
                atomic_store(&raw mut (*qp).counter, null_mut(), Relaxed);
            }
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Only for the core, which holds the lock of `counter`.
    unsafe extern "C" fn counter_update_stats(counter: *mut bindings::rdma_counter) -> c_int {
        from_result(|| {
            // SAFETY: A counter of a device of ours, with `stats` from `counter_alloc_stats`; whoever
            // writes there has the lock.
            let (dev, id, mut values) = unsafe {
                (
                    Device::<D>::from_raw((*counter).device),
                    NonZeroU32::new((*counter).id),
                    Values::from_raw((*counter).stats),
                )
            };
            D::read_counter(dev, id.ok_or(EINVAL)?, &mut values)?;
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
