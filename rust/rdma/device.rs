// SPDX-License-Identifier: GPL-2.0

//! RDMA devices.
//!
//! C: `struct ib_device`. A driver's [`Operations`] type is also the data of its device: the core
//! allocates both together, drops the data when the last reference is gone (`dealloc_driver`).
//!
//! Registering makes the device visible, and the core calls the first verbs at once. Unregistering
//! (dropping the [`Registration`]) waits for kernel users to let go, disassociates processes,
//! destroys all their objects, and drops the data; nothing of the device is used afterwards.

use crate::{
    ah::AddressHandle,
    attr::{
        DeviceAttr,
        PortAttr,
        PortImmutable, //
    },
    base::{
        bind::Binding,
        netdev::Netdev,
        netns::{
            Netns,
            NetnsId, //
        }, //
    },
    bindings,
    cq::CompletionQueue,
    enums::LinkLayer,
    gid::Gid,
    mad::{
        Cleared,
        PortCounters, //
    },
    mr::MemoryRegion,
    mw::MemoryWindow,
    object::{
        init_slot,
        object_size, //
    },
    ops::Adapter,
    pd::ProtectionDomain,
    qp::{
        Qp,
        QueuePair, //
    },
    srq::SharedReceiveQueue,
    stats::{
        StatDesc,
        Values, //
    },
    ucontext::UserContext,
    xrcd::XrcDomain, //
};
use core::{
    num::NonZeroU32,
    ptr::NonNull, //
};
use kernel::{
    device,
    error::{
        to_result,
        VTABLE_DEFAULT_ERROR, //
    },
    prelude::*,
    str::CString,
    sync::Mutex,
    types::Opaque, //
};

/// A driver of RDMA devices, and its data of one device.
///
/// The device's calls; those of its objects are in the traits of the associated types. For objects
/// that are not offered: [`Unsupported`](crate::Unsupported).
#[vtable]
pub trait Operations: Sized + Send + Sync + 'static {
    /// Version of the user ABI.
    const ABI_VERSION: u32;

    /// The port's counters. Empty: none.
    const PORT_STATS: &'static [StatDesc] = &[];

    /// Data of contexts of processes.
    type Ucontext: UserContext<Self>;
    /// Data of protection domains.
    type Pd: ProtectionDomain<Self>;
    /// Data of completion queues.
    type Cq: CompletionQueue<Self>;
    /// Data of queue pairs.
    type Qp: QueuePair<Self>;
    /// Data of shared receive queues.
    type Srq: SharedReceiveQueue<Self>;
    /// Data of address handles.
    type Ah: AddressHandle<Self>;
    /// Data of memory regions.
    type Mr: MemoryRegion<Self>;
    /// Data of memory windows.
    type Mw: MemoryWindow<Self>;
    /// Data of XRC domains.
    type Xrcd: XrcDomain<Self>;

    /// Describes the device.
    fn query_device(dev: &Device<Self>, attr: &mut DeviceAttr) -> Result;

    /// Describes a port as it is now.
    fn query_port(dev: &Device<Self>, port: u32, attr: &mut PortAttr) -> Result;

    /// A port's net device went up or down, or has a link or none. Whether consumers may be told at once; if
    /// not, the driver lets the device know first and calls [`DeviceRef::report_port_state`] then. Called
    /// with the RTNL held: nothing may be waited for.
    fn port_event(_dev: &Device<Self>) -> bool {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// What carries a port's packets.
    fn link_layer(dev: &Device<Self>, port: u32) -> LinkLayer;

    /// Describes what of a port never changes.
    fn port_immutable(dev: &Device<Self>, port: u32, imm: &mut PortImmutable) -> Result;

    /// Returns a P_Key.
    fn query_pkey(dev: &Device<Self>, port: u32, index: u16) -> Result<u16>;

    /// A GID was added. May sleep.
    fn add_gid(_dev: &Device<Self>, _gid: &Gid) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// A GID was deleted. May sleep. The core goes on as if it succeeded.
    fn del_gid(_dev: &Device<Self>, _gid: &Gid) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Reads the port's counters into `values`, in the order of [`PORT_STATS`](Self::PORT_STATS), without
    /// what counters of queue pairs have.
    fn port_stats(_dev: &Device<Self>, _port: u32, _values: &mut Values<'_>) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Reads the port's counters for performance management. A driver that has this has the next one too.
    /// May sleep.
    fn port_counters(_dev: &Device<Self>, _port: u32) -> Result<PortCounters> {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// What the port's counters had when they were cleared.
    fn cleared_counters(_dev: &Device<Self>, _port: u32) -> &Mutex<Cleared> {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// From now on a queue pair counts for a counter, or for a new one; returns its number. A driver
    /// that has this has the next three too. May sleep.
    fn bind_counter(
        _dev: &Device<Self>,
        _counter: Option<NonZeroU32>,
        _qp: &Qp<Self>,
    ) -> Result<NonZeroU32> {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// A queue pair does not count for its counter any more. What it did stays there. May sleep.
    fn unbind_counter(_dev: &Device<Self>, _counter: NonZeroU32, _qp: &Qp<Self>) {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Reads a counter into `values`, in the order of [`PORT_STATS`](Self::PORT_STATS). May sleep.
    fn read_counter(_dev: &Device<Self>, _counter: NonZeroU32, _values: &mut Values<'_>) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// A counter goes; the core has kept what [`read_counter`](Self::read_counter) said last.
    fn dealloc_counter(_dev: &Device<Self>, _counter: NonZeroU32) {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// The device's firmware version as text, for `/sys/class/infiniband/*/fw_ver`: three numbers.
    fn fw_version(_dev: &Device<Self>) -> [u16; 3] {
        build_error!(VTABLE_DEFAULT_ERROR)
    }
}

/// An RDMA device with the data of its driver.
///
/// # Invariants
///
/// All fields are initialized.
#[repr(C)]
pub struct Device<D: Operations> {
    raw: Opaque<bindings::ib_device>,
    binding: Binding,
    data: D,
}

// SAFETY: An `ib_device` may be used from any thread; the data is `Send`.
unsafe impl<D: Operations> Send for Device<D> {}
// SAFETY: As above; the data is `Sync`.
unsafe impl<D: Operations> Sync for Device<D> {}

impl<D: Operations> core::ops::Deref for Device<D> {
    type Target = D;

    fn deref(&self) -> &D {
        &self.data
    }
}

impl<D: Operations> Device<D> {
    /// # Safety
    ///
    /// `raw` must be a device of `D`, alive for `'a`.
    pub(crate) unsafe fn from_raw<'a>(raw: *mut bindings::ib_device) -> &'a Self {
        // SAFETY: `repr(C)` with the `ib_device` first; see above.
        unsafe { &*raw.cast() }
    }

    pub(crate) fn as_raw(&self) -> *mut bindings::ib_device {
        self.raw.get()
    }

    /// The time in which it may be used for DMA.
    pub(crate) fn binding(&self) -> &Binding {
        &self.binding
    }

    /// The device, for messages: `dev_info!(dev.as_dev(), ...)`.
    pub fn as_dev(&self) -> &device::Device {
        // SAFETY: The address of a field of the device, which is initialized.
        unsafe { device::Device::from_raw(bindings::rdma_helper_ib_device_dev(self.raw.get())) }
    }

    /// The network namespace that it is in now. May sleep.
    pub fn netns(&self) -> NetnsId {
        // SAFETY: Initialized.
        unsafe { NetnsId::of(self.raw.get()) }
    }

    /// The name that it has now. It may be renamed at any time, whereupon `dev_name()` is freed
    /// (drivers/infiniband/core/device.c, `ib_device_rename`): this is a copy of the core's own.
    pub fn name(&self) -> Result<CString> {
        // SAFETY: A field of the device, initialized. Who renames it may write there: each byte is
        // read once.
        let mut bytes = unsafe { (&raw const (*self.raw.get()).name).read_volatile() };
        if let Some(last) = bytes.last_mut() {
            *last = 0;
        }
        let name = CStr::from_bytes_until_nul(&bytes).map_err(|_| EINVAL)?;
        Ok(CString::try_from(name)?)
    }
}

/// What a device is registered with.
pub struct Settings<'a> {
    /// Node GUID, as on the wire.
    pub node_guid: [u8; 8],
    /// Completion vectors.
    pub num_comp_vectors: u32,
    /// Net device of each port, if it has one. Ports count from 1.
    pub ports: &'a [Option<&'a Netdev>],
    /// The network namespace that it is made in, if that is there still; else the initial one.
    pub netns: Option<NetnsId>,
    /// A key of all DMA addresses; announced with
    /// [`KernelCaps::LOCAL_DMA_LKEY`](crate::attr::KernelCaps::LOCAL_DMA_LKEY).
    pub local_dma_lkey: u32,
}

/// A registered [`Device`]; unregistered when dropped.
///
/// Not to be dropped from a verb, nor with a lock held that a verb takes.
pub struct Registration<D: Operations> {
    dev: NonNull<Device<D>>,
}

// SAFETY: A device may be unregistered from any thread, and `D` is `Send`.
unsafe impl<D: Operations> Send for Registration<D> {}
// SAFETY: `&Registration` gives access to `&Device` at most, and `D` is `Sync`.
unsafe impl<D: Operations> Sync for Registration<D> {}

/// A device name must be harmless as a format: at most one `%d`, at the end.
fn is_harmless(name: &CStr) -> bool {
    let name = name.to_bytes();
    let prefix = name.strip_suffix(b"%d").unwrap_or(name);
    !prefix.is_empty() && !prefix.contains(&b'%')
}

impl<D: Operations> Registration<D> {
    /// Allocates a device, initializes its data and registers it as `name`: one name, or a pattern
    /// like `mlx5_%d` for the first that is free. The PCI device must be bound.
    pub fn new(
        module: &'static ThisModule,
        binding: &Binding,
        name: &CStr,
        settings: &Settings<'_>,
        data: impl PinInit<D, Error>,
    ) -> Result<Self> {
        if !is_harmless(name) {
            return Err(EINVAL);
        }
        let ports = u32::try_from(settings.ports.len())?;
        // Until the device is registered; from then on the core sees to it that it leaves a namespace that goes.
        let netns = Netns::get(settings.netns)?;
        // SAFETY: `Device<D>` is `repr(C)` and starts with `ib_device`; the namespace is held.
        let ibdev = unsafe {
            bindings::rdma_helper_ib_alloc_device(
                const { object_size::<Device<D>>() },
                netns.as_raw(),
            )
        };
        let dev = NonNull::new(ibdev.cast::<Device<D>>()).ok_or(ENOMEM)?;

        // SAFETY: The memory is ours, and does not move.
        unsafe { init_slot(&raw mut (*dev.as_ptr()).data, data) }.inspect_err(|_| {
            // SAFETY: Not registered, and no `dealloc_driver` set yet.
            unsafe { bindings::ib_dealloc_device(ibdev) }
        })?;
        // SAFETY: As above; with this all fields are initialized.
        unsafe { (&raw mut (*dev.as_ptr()).binding).write(binding.clone()) };

        let mut ops = const { Adapter::<D>::OPS };
        ops.owner = module.as_ptr();
        ops.device_group = &raw const bindings::rdma_helper_device_group;
        // Every verb of this crate checks its request and fills its response: see `udata`.
        ops.set_uverbs_robust_udata(1);
        let parent = binding.dev();
        // SAFETY: `ibdev` is not registered, so nobody else uses it; `ops` is copied. The parent and
        // the net device are valid; the core holds its own reference to the latter.
        let prepared = unsafe {
            // CAST: A small constant.
            (*ibdev).node_type = bindings::RDMA_NODE_IB_CA as u8;
            (*ibdev).phys_port_cnt = ports;
            (*ibdev).num_comp_vectors = settings.num_comp_vectors.try_into().unwrap_or(1);
            (*ibdev).local_dma_lkey = settings.local_dma_lkey;
            (*ibdev).node_guid = u64::from_ne_bytes(settings.node_guid);
            bindings::rdma_helper_ib_device_set_parent(ibdev, parent);
            bindings::ib_set_device_ops(ibdev, &ops);
            (1..=ports)
                .zip(settings.ports)
                .try_for_each(|(port, netdev)| {
                    let raw = netdev.map_or(core::ptr::null_mut(), Netdev::as_raw);
                    to_result(bindings::ib_device_set_netdev(ibdev, raw, port))
                })
        };
        prepared
            .and_then(|()| {
                let register = || {
                    // SAFETY: Prepared; the PCI device is bound. The name is a harmless format.
                    to_result(unsafe {
                        bindings::ib_register_device(ibdev, name.as_char_ptr(), parent)
                    })
                };
                binding.with(register).unwrap_or(Err(ENODEV))
            })
            .inspect_err(|_| {
                // SAFETY: Not registered; drops the data through `dealloc_driver`.
                unsafe { bindings::ib_dealloc_device(ibdev) }
            })?;

        Ok(Self { dev })
    }

    /// The device.
    pub fn device(&self) -> &Device<D> {
        // SAFETY: Alive until unregistered.
        unsafe { self.dev.as_ref() }
    }

    /// A reference to it, for longer than it may be registered.
    pub fn device_ref(&self) -> DeviceRef {
        let dev = self.dev.cast();
        // SAFETY: Alive until unregistered.
        unsafe { bindings::rdma_helper_ib_device_get(dev.as_ptr()) };
        DeviceRef { dev }
    }
}

/// A device that may be unregistered by now, held in memory.
pub struct DeviceRef {
    dev: NonNull<bindings::ib_device>,
}

// SAFETY: The core's device may be used from any thread.
unsafe impl Send for DeviceRef {}
// SAFETY: As above.
unsafe impl Sync for DeviceRef {}

impl DeviceRef {
    /// Tells consumers, if that has changed, whether the port of a net device is active; unless the device is
    /// not registered any more. May sleep.
    pub fn report_port_state(&self, netdev: &Netdev) {
        // SAFETY: The device is held in memory, and is kept registered meanwhile; the net device is held.
        unsafe { bindings::rdma_helper_report_port_state(self.dev.as_ptr(), netdev.as_raw()) };
    }
}

impl Drop for DeviceRef {
    fn drop(&mut self) {
        // SAFETY: Held by `device_ref`.
        unsafe { bindings::rdma_helper_ib_device_release(self.dev.as_ptr()) };
    }
}

impl<D: Operations> Drop for Registration<D> {
    fn drop(&mut self) {
        // SAFETY: Registered; with `dealloc_driver` set, the core also deallocates it.
        unsafe { bindings::ib_unregister_device(self.dev.as_ptr().cast()) };
    }
}
