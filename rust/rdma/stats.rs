// SPDX-License-Identifier: GPL-2.0

//! Counters of a port (`rdma statistic show`, `/sys/class/infiniband/*/ports/*/hw_counters`), and
//! of QPs that an administrator has bound to a counter of their own (`rdma statistic qp`).
//!
//! C headers: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h),
//! [`include/rdma/rdma_counter.h`](srctree/include/rdma/rdma_counter.h)
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
        // SAFETY: By the type invariant `stats` is valid. Only the address of a field is computed.
        let first = unsafe { &raw mut (*self.stats).value }.cast::<u64>();
        for (index, value) in (0..self.num()).zip(values) {
            // SAFETY: By the type invariant `stats` has `num_counters` values, and `index` is below
            // that.
            // CAST: The index is not negative.
            let place = unsafe { first.add(index as usize) };
            // SAFETY: By the type invariant no other code writes the values. A concurrent reader
            // sees the old or the new value, as with C code.
            unsafe { place.write_volatile(value) };
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

    /// Returns the device of a counter, and the number of the counter in the device if it has one.
    ///
    /// # Safety
    ///
    /// `counter` must be of a device of `D`, be alive for `'a`, and its `id` must not change during
    /// the call.
    unsafe fn counter_of<'a>(
        counter: *mut bindings::rdma_counter,
    ) -> (&'a Device<D>, Option<NonZeroU32>) {
        // SAFETY: The caller promises that `counter` is alive. The core never changes its device.
        let dev = unsafe { (*counter).device };
        // SAFETY: The caller promises that the device is one of `D`. It outlives its counters.
        let dev = unsafe { Device::from_raw(dev) };
        // SAFETY: The caller promises that `counter` is alive, and that `id` does not change.
        let id = unsafe { (*counter).id };
        (dev, NonZeroU32::new(id))
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
            // SAFETY: By the contract of this op `dev` is a device of `D`, alive during the call.
            let dev = unsafe { Device::from_raw(dev) };
            // SAFETY: `stats` comes from `alloc_hw_port_stats`, and the core holds its lock, which
            // every writer of its values must hold.
            let mut values = unsafe { Values::from_raw(stats) };
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
            // SAFETY: By the contract of this op `counter` is of a device of `D`, alive during the
            // call, and its lock is held.
            let (dev, id) = unsafe { Self::counter_of(counter) };
            // SAFETY: By the contract of this op `qp` is a QP of that device, alive during the
            // call.
            let object = unsafe { Qp::<D>::from_raw(qp) };
            // If two callers bind the QP at the same time, each holds the lock of its own counter
            // and has seen that the QP had none. With this lock only one of them succeeds. The
            // counter of the QP is set last, because no other code may see a counter whose bind can
            // still fail: the core frees it then.
            let _one = object.extra().counter.lock();
            // SAFETY: `qp` is alive during the call, and its counter changes only with this mutex
            // held.
            if !unsafe { (*qp).counter }.is_null() {
                return Err(EINVAL);
            }
            let id = D::bind_counter(dev, id, object)?.get();
            // SAFETY: `counter` is alive during the call, and `id` changes only with its lock held.
            unsafe { (*counter).id = id };
            // SAFETY: `qp` is alive during the call. Only the address of a field is computed.
            let place = unsafe { &raw mut (*qp).counter };
            // SAFETY: The field is valid, and changes only with this mutex held. The core may read
            // it without the mutex, so the store is atomic.
            unsafe { atomic_store(place, counter, Release) };
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Only the core may call this op, with a QP of a device of `D` and with the lock held of the
    /// counter that the QP had when the core read it.
    unsafe extern "C" fn counter_unbind_qp(qp: *mut bindings::ib_qp, _port: u32) -> c_int {
        from_result(|| {
            // SAFETY: By the contract of this op `qp` is a QP of a device of `D`, alive during the
            // call.
            let object = unsafe { Qp::<D>::from_raw(qp) };
            let _one = object.extra().counter.lock();
            // If two callers unbind the QP at the same time, the second finds no counter here, and
            // its error keeps the core, unless it destroys the QP, from releasing the QP's
            // reference to the counter a second time. If the QP was bound to another counter in the
            // meantime, that bind has ended.
            //
            // SAFETY: `qp` is alive during the call, and its counter changes only with this mutex
            // held.
            let counter = unsafe { (*qp).counter };
            if counter.is_null() {
                return Err(EINVAL);
            }
            // SAFETY: The counter lives as long as a QP is bound to it, because the core holds a
            // reference for the QP.
            let id = unsafe { (*counter).id };
            if let Some(id) = NonZeroU32::new(id) {
                D::unbind_counter(object.device(), id, object);
            }
            // SAFETY: `qp` is alive during the call. Only the address of a field is computed.
            let place = unsafe { &raw mut (*qp).counter };
            // SAFETY: The field is valid, and changes only with this mutex held. The core may read
            // it without the mutex, so the store is atomic.
            unsafe { atomic_store(place, null_mut(), Relaxed) };
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Only the core may call this op, with a counter of a device of `D` and with the lock of
    /// `counter` held.
    unsafe extern "C" fn counter_update_stats(counter: *mut bindings::rdma_counter) -> c_int {
        from_result(|| {
            // SAFETY: By the contract of this op `counter` is of a device of `D`, alive during the
            // call, and its lock is held.
            let (dev, id) = unsafe { Self::counter_of(counter) };
            // SAFETY: By the contract of this op `counter` is alive during the call.
            let stats = unsafe { (*counter).stats };
            // SAFETY: `stats` comes from `counter_alloc_stats`, and the core holds the lock that
            // every writer of the values must hold.
            let mut values = unsafe { Values::from_raw(stats) };
            D::read_counter(dev, id.ok_or(EINVAL)?, &mut values)?;
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Only the core may call this op, with a counter of a device of `D` to which no QP is bound
    /// any more.
    unsafe extern "C" fn counter_dealloc(counter: *mut bindings::rdma_counter) -> c_int {
        // SAFETY: By the contract of this op `counter` is of a device of `D`, alive during the
        // call, and no other code uses it any more.
        let (dev, id) = unsafe { Self::counter_of(counter) };
        if let Some(id) = id {
            D::dealloc_counter(dev, id);
        }
        0
    }
}
