// SPDX-License-Identifier: GPL-2.0

//! Counters of a port (`rdma statistic show`, `/sys/class/infiniband/*/ports/*/hw_counters`), and
//! of QPs that an administrator has bound to a counter of their own (`rdma statistic qp`).
//!
//! C: `struct rdma_hw_stats`, `struct rdma_counter`. While a QP is bound to a counter, the core
//! adds the values of that counter to those that the driver returns for the port, so the driver
//! leaves them out there.

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

/// Name and properties of a counter.
///
/// # Invariants
///
/// The pointers of the C struct are to constants that live for ever, or `NULL`.
#[repr(transparent)]
pub struct StatDesc(bindings::rdma_stat_desc);

// SAFETY: The struct is never written after its creation, and by the type invariant its pointers
// are to constants or `NULL`.
unsafe impl Sync for StatDesc {}
// SAFETY: By the type invariant the pointers are to constants or `NULL`, which any thread may read.
unsafe impl Send for StatDesc {}

impl StatDesc {
    /// Returns the description of a counter called `name`.
    // The kernel's `as_char_ptr()` is not `const`, so this uses a cast that does the same.
    #[expect(clippy::disallowed_methods)]
    pub const fn new(name: &'static CStr) -> Self {
        // INVARIANT: `name` is `'static`, and the other pointer is `NULL`.
        Self(bindings::rdma_stat_desc {
            name: name.as_ptr().cast(),
            flags: 0,
            priv_: core::ptr::null(),
        })
    }
}

/// The buffer for the values of counters.
///
/// # Invariants
///
/// `stats` comes from [`Adapter::alloc`], and no other code writes its values for `'a`. The core
/// may read them at the same time (`rdma statistic` does so without the lock), so they are never
/// borrowed.
pub struct Values<'a> {
    stats: *mut bindings::rdma_hw_stats,
    _life: PhantomData<&'a ()>,
}

impl Values<'_> {
    /// # Safety
    ///
    /// `stats` must come from [`Adapter::alloc`], and no other code may write its values while this
    /// value lives.
    unsafe fn from_raw(stats: *mut bindings::rdma_hw_stats) -> Self {
        // INVARIANT: The caller promises both.
        Self {
            stats,
            _life: PhantomData,
        }
    }

    /// Returns the number of values.
    fn num(&self) -> c_int {
        // SAFETY: By the type invariant `stats` is valid, and the number of its counters never
        // changes.
        unsafe { (*self.stats).num_counters }
    }

    /// Writes the values in order. Values for which there is no room are dropped.
    pub fn set(&mut self, values: impl Iterator<Item = u64>) {
        for (index, value) in (0..self.num()).zip(values) {
            // SAFETY: By the type invariant `stats` has `num_counters` values, which no other code
            // writes, and `index` is below that. A concurrent reader sees the old or the new value,
            // as with C code.
            // CAST: The index is not negative.
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
        // SAFETY: `StatDesc` is a transparent wrapper of the C struct. The slice is a constant with
        // `num` elements, and so are the names (type invariant).
        unsafe {
            bindings::rdma_alloc_hw_stats_struct(
                D::PORT_STATS.as_ptr().cast(),
                num,
                // CAST: The value is a small constant.
                bindings::RDMA_HW_STATS_DEFAULT_LIFESPAN as c_ulong,
            )
        }
    }

    /// # Safety
    ///
    /// Only the core may call this op.
    unsafe extern "C" fn alloc_hw_port_stats(
        _dev: *mut bindings::ib_device,
        _port: u32,
    ) -> *mut bindings::rdma_hw_stats {
        Self::alloc()
    }

    /// # Safety
    ///
    /// Only the core may call this op, with a device of `D` and with the lock of `stats` held.
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
            // SAFETY: By the contract of this op `dev` is a device of `D`. `stats` comes from
            // `alloc_hw_port_stats`, and the core holds its lock, which every writer of its values
            // must hold.
            let (dev, mut values) = unsafe { (Device::from_raw(dev), Values::from_raw(stats)) };
            D::port_stats(dev, port, &mut values)?;
            Ok(values.num())
        })
    }

    /// # Safety
    ///
    /// Only the core may call this op.
    unsafe extern "C" fn counter_init(_counter: *mut bindings::rdma_counter) {}

    /// # Safety
    ///
    /// Only the core may call this op.
    unsafe extern "C" fn counter_alloc_stats(
        _counter: *mut bindings::rdma_counter,
    ) -> *mut bindings::rdma_hw_stats {
        Self::alloc()
    }

    /// # Safety
    ///
    /// Only the core may call this op, with a counter and a QP of the same device of `D` and with
    /// the lock of `counter` held.
    unsafe extern "C" fn counter_bind_qp(
        counter: *mut bindings::rdma_counter,
        qp: *mut bindings::ib_qp,
        _port: u32,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the contract of this op both are of the same device of `D` and alive
            // during the call, and the lock of `counter` protects `id`.
            let (dev, id, object) = unsafe {
                (
                    Device::<D>::from_raw((*counter).device),
                    NonZeroU32::new((*counter).id),
                    Qp::<D>::from_raw(qp),
                )
            };
            // If two callers bind the QP at the same time, each holds the lock of its own counter
            // and has seen that the QP had none. With this lock only one of them succeeds. The
            // counter of the QP is set last, because no other code may see a counter whose bind can
            // still fail: the core frees it then.
            let _one = object.extra().counter.lock();
            // SAFETY: Both objects are alive during the call. The QP's counter changes only with
            // this mutex held, and `id` only with the lock of `counter` held. The core may read the
            // former without it, so the store is atomic.
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
    /// Only the core may call this op, with a QP of a device of `D` and with the lock held of the
    /// counter that the QP had when the core read it.
    unsafe extern "C" fn counter_unbind_qp(qp: *mut bindings::ib_qp, _port: u32) -> c_int {
        from_result(|| {
            // SAFETY: By the contract of this op `qp` is a QP of a device of `D` and alive during
            // the call.
            let (dev, object) =
                unsafe { (Device::<D>::from_raw((*qp).device), Qp::<D>::from_raw(qp)) };
            let _one = object.extra().counter.lock();
            // SAFETY: `qp` is alive, and its counter changes only with this mutex held. If two
            // callers unbind the QP at the same time, the second finds no counter here, and its
            // error keeps the core, unless it destroys the QP, from releasing the QP's reference to
            // the counter a second time. If the QP was bound to another counter in the meantime,
            // that bind has ended, and the counter lives as the core holds a reference for the QP.
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
    /// Only the core may call this op, with a counter of a device of `D` and with the lock of
    /// `counter` held.
    unsafe extern "C" fn counter_update_stats(counter: *mut bindings::rdma_counter) -> c_int {
        from_result(|| {
            // SAFETY: By the contract of this op `counter` is of a device of `D`. Its `stats` come
            // from `counter_alloc_stats`, and the core holds the lock that every writer of the
            // values must hold.
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
    /// Only the core may call this op, with a counter of a device of `D` to which no QP is bound
    /// any more.
    unsafe extern "C" fn counter_dealloc(counter: *mut bindings::rdma_counter) -> c_int {
        // SAFETY: By the contract of this op `counter` is of a device of `D` and alive during the
        // call.
        let (dev, id) = unsafe { (Device::<D>::from_raw((*counter).device), (*counter).id) };
        if let Some(id) = NonZeroU32::new(id) {
            D::dealloc_counter(dev, id);
        }
        0
    }
}
