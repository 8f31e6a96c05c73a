// SPDX-License-Identifier: GPL-2.0

//! RDMA devices.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)
//!
//! C: `struct ib_device`. A driver's [`Operations`] type is also the data of its device: the core
//! allocates both together, and drops the data with the last reference (`dealloc_driver`).
//!
//! Registration makes the device visible, and the core calls the first verbs at once.
//! Unregistration (drop of the [`Registration`]) waits until kernel users have released the device,
//! disassociates processes, destroys all their objects, and drops the data. Nothing of the device
//! is used afterwards.

use crate::{
    ah::AddressHandle,
    attr::{
        DeviceAttr,
        PortAttr,
        PortImmutable, //
    },
    bindings,
    cq::CompletionQueue,
    enums::{
        LinkLayer,
        PortEvent, //
    },
    gid::Gid,
    infiniband::{
        InfinibandPort,
        NODE_DESCRIPTION_SIZE, //
    },
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
use base::{
    bind::Binding,
    netdev::Netdev,
    netns::{
        Netns,
        NetnsId, //
    }, //
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
/// The trait contains the ops of the device. Those of its objects are in the traits of the
/// associated types. For objects that the driver does not offer the type is
/// [`Unsupported`](crate::Unsupported).
#[vtable]
pub trait Operations: Sized + Send + Sync + 'static {
    /// Version of the user ABI.
    const ABI_VERSION: u32;

    /// Names of the counters of a port, or an empty slice if it has none.
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
    /// Operations of ports whose link layer is InfiniBand.
    type Infiniband: InfinibandPort<Self>;

    /// Fills in the attributes of the device.
    fn query_device(dev: &Device<Self>, attr: &mut DeviceAttr) -> Result;

    /// Fills in the present attributes of a port.
    fn query_port(dev: &Device<Self>, port: u32, attr: &mut PortAttr) -> Result;

    /// Handles a change of the state or the link of the net device of a port. Returns true if
    /// consumers may be informed at once. Otherwise the driver first informs the device, and then
    /// calls [`DeviceRef::report_port_state`]. Called with the RTNL held, so the driver must not
    /// wait.
    fn port_event(_dev: &Device<Self>) -> bool {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Returns the link layer that carries the packets of a port.
    fn link_layer(dev: &Device<Self>, port: u32) -> LinkLayer;

    /// Fills in the attributes of a port that never change.
    fn port_immutable(dev: &Device<Self>, port: u32, imm: &mut PortImmutable) -> Result;

    /// Returns the P_Key at `index` of the port's table.
    fn query_pkey(dev: &Device<Self>, port: u32, index: u16) -> Result<u16>;

    /// Adds a GID. May sleep.
    fn add_gid(_dev: &Device<Self>, _gid: &Gid) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Deletes a GID. May sleep. The core ignores an error.
    fn del_gid(_dev: &Device<Self>, _gid: &Gid) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Reads the port's counters into `values`, in the order of [`PORT_STATS`](Self::PORT_STATS),
    /// without the counts of counters to which QPs are bound.
    fn port_stats(_dev: &Device<Self>, _port: u32, _values: &mut Values<'_>) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Reads the port's counters for performance management. A driver that implements this must
    /// implement [`cleared_counters`](Self::cleared_counters) too. May sleep.
    fn port_counters(_dev: &Device<Self>, _port: u32) -> Result<PortCounters> {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Returns the values that the port's counters had when they were last cleared.
    fn cleared_counters(_dev: &Device<Self>, _port: u32) -> &Mutex<Cleared> {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Binds a QP to a counter, or to a new counter if `counter` is `None`, and returns its number.
    /// A driver that implements this must implement the next three functions too. May sleep.
    fn bind_counter(
        _dev: &Device<Self>,
        _counter: Option<NonZeroU32>,
        _qp: &Qp<Self>,
    ) -> Result<NonZeroU32> {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Unbinds a QP from its counter, which keeps the counts of the QP. May sleep.
    fn unbind_counter(_dev: &Device<Self>, _counter: NonZeroU32, _qp: &Qp<Self>) {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Reads a counter into `values`, in the order of [`PORT_STATS`](Self::PORT_STATS). May sleep.
    fn read_counter(_dev: &Device<Self>, _counter: NonZeroU32, _values: &mut Values<'_>) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Frees a counter. The core has kept the last result of [`read_counter`](Self::read_counter).
    fn dealloc_counter(_dev: &Device<Self>, _counter: NonZeroU32) {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Returns the three numbers of the firmware version, for `/sys/class/infiniband/*/fw_ver`.
    fn fw_version(_dev: &Device<Self>) -> [u16; 3] {
        build_error!(VTABLE_DEFAULT_ERROR)
    }
}

/// An RDMA device with the data of its driver.
///
/// # Invariants
///
/// All fields of a device to which there is a reference are initialized.
#[repr(C)]
pub struct Device<D: Operations> {
    raw: Opaque<bindings::ib_device>,
    binding: Binding,
    data: D,
}

// SAFETY: The core allows the use of an `ib_device` from any thread. The other fields are `Send`.
unsafe impl<D: Operations> Send for Device<D> {}
// SAFETY: The core allows concurrent use of an `ib_device`. The other fields are `Sync`.
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
    /// `raw` must be a device of `D` whose fields are all initialized, and alive for `'a`.
    pub(crate) unsafe fn from_raw<'a>(raw: *mut bindings::ib_device) -> &'a Self {
        // SAFETY: The struct is `repr(C)` and begins with the `ib_device`, so `raw` points to a
        // `Self`. The caller promises that it is initialized and alive for `'a`.
        unsafe { &*raw.cast() }
    }

    pub(crate) fn as_raw(&self) -> *mut bindings::ib_device {
        self.raw.get()
    }

    /// Returns the binding, which says if the device may still be used for DMA.
    pub(crate) fn binding(&self) -> &Binding {
        &self.binding
    }

    /// Returns the generic device, for messages: `dev_info!(dev.as_dev(), ...)`.
    pub fn as_dev(&self) -> &device::Device {
        // SAFETY: By the type invariant the `ib_device` is initialized, and it is alive.
        let dev = unsafe { bindings::rdma_helper_ib_device_dev(self.raw.get()) };
        // SAFETY: The function returns the address of a field of the `ib_device`, which lives as
        // long as `self`.
        unsafe { device::Device::from_raw(dev) }
    }

    /// Returns the network namespace that the device is in now. If that is being taken down, the
    /// result stands for the initial namespace, to which the device is about to move. May sleep.
    pub fn netns(&self) -> NetnsId {
        // SAFETY: By the type invariant the `ib_device` is initialized, and it is alive.
        NetnsId::from_cookie(unsafe { bindings::rdma_helper_ib_device_netns(self.raw.get()) })
    }

    /// Returns a copy of the core's present name of the device. The name may change at any time,
    /// and then `dev_name()` is freed (drivers/infiniband/core/device.c, `ib_device_rename`), so
    /// this is the only safe way to use it.
    pub fn name(&self) -> Result<CString> {
        // SAFETY: By the type invariant the `ib_device` is alive. Only the address of a field is
        // computed.
        let name = unsafe { &raw const (*self.raw.get()).name };
        // SAFETY: By the type invariant the `ib_device` is initialized. A concurrent rename may
        // write the name, so the read is volatile, and every byte is read once.
        let mut bytes = unsafe { name.read_volatile() };
        if let Some(last) = bytes.last_mut() {
            *last = 0;
        }
        let name = CStr::from_bytes_until_nul(&bytes).map_err(|_| EINVAL)?;
        Ok(CString::try_from(name)?)
    }
}

/// Properties with which a device is registered.
pub struct Settings<'a> {
    /// Node GUID in wire byte order.
    pub node_guid: [u8; 8],
    /// Number of completion vectors.
    pub num_comp_vectors: u32,
    /// Link layer of all ports, which [`Operations::link_layer`] returns, too. With InfiniBand the
    /// device has the ops of [`Operations::Infiniband`].
    pub link_layer: LinkLayer,
    /// Description of the node that the core shows: UTF-8, with zeroes after the text.
    pub node_description: [u8; NODE_DESCRIPTION_SIZE],
    /// Net device of each port, if the port has one. The first is that of port 1.
    pub ports: &'a [Option<&'a Netdev>],
    /// Network namespace in which the device is created. Without it, or if it no longer exists,
    /// that is the initial namespace.
    pub netns: Option<NetnsId>,
    /// Key of all DMA addresses, which is announced with
    /// [`KernelCaps::LOCAL_DMA_LKEY`](crate::attr::KernelCaps::LOCAL_DMA_LKEY).
    pub local_dma_lkey: u32,
}

/// A registered [`Device`], which is unregistered when this is dropped.
///
/// Must not be dropped from a verb, nor with a lock held that a verb takes.
///
/// # Invariants
///
/// `dev` is a registered device of `D` whose fields are all initialized. It is alive until this is
/// dropped.
pub struct Registration<D: Operations> {
    dev: NonNull<Device<D>>,
}

// SAFETY: The core allows unregistration from any thread, and `D` is `Send`.
unsafe impl<D: Operations> Send for Registration<D> {}
// SAFETY: A `&Registration` gives access to no more than a `&Device`, and `Device<D>` is `Sync`.
unsafe impl<D: Operations> Sync for Registration<D> {}

/// True if a device name can be used as a format: it has at most one `%d`, at the end.
fn is_harmless(name: &CStr) -> bool {
    let name = name.to_bytes();
    let prefix = name.strip_suffix(b"%d").unwrap_or(name);
    !prefix.is_empty() && !prefix.contains(&b'%')
}

impl<D: Operations> Registration<D> {
    /// Allocates a device, initializes its data and registers it as `name`: a complete name, or a
    /// pattern like `mlx5_%d` for the first free name. The PCI device must be bound. Returns
    /// `EINVAL` for a device with InfiniBand ports if the driver has no operations for them.
    pub fn new(
        module: &'static ThisModule,
        binding: &Binding,
        name: &CStr,
        settings: &Settings<'_>,
        data: impl PinInit<D, Error>,
    ) -> Result<Self> {
        let is_infiniband = settings.link_layer == LinkLayer::Infiniband;
        if !is_harmless(name) || is_infiniband && !D::Infiniband::SUPPORTED {
            return Err(EINVAL);
        }
        let ports = u32::try_from(settings.ports.len())?;
        // Held until the device is registered. After that the core moves the device out of a
        // namespace that ends.
        let netns = Netns::get(settings.netns)?;
        // SAFETY: `Device<D>` is `repr(C)` and begins with the `ib_device`, and `netns` holds the
        // namespace.
        let ibdev = unsafe {
            bindings::rdma_helper_ib_alloc_device(
                const { object_size::<Device<D>>() },
                netns.as_raw(),
            )
        };
        let dev = NonNull::new(ibdev.cast::<Device<D>>()).ok_or(ENOMEM)?;

        // SAFETY: The core has allocated the memory for a `Device<D>`. Only the address of a field
        // is computed.
        let slot = unsafe { &raw mut (*dev.as_ptr()).data };
        // SAFETY: The memory is not shared yet and does not move.
        unsafe { init_slot(slot, data) }.inspect_err(|_| {
            // SAFETY: The device is not registered, and has no `dealloc_driver` that would drop the
            // data.
            unsafe { bindings::ib_dealloc_device(ibdev) }
        })?;
        // SAFETY: The core has allocated the memory for a `Device<D>`. Only the address of a field
        // is computed.
        let slot = unsafe { &raw mut (*dev.as_ptr()).binding };
        // SAFETY: The memory is valid and not shared yet.
        //
        // INVARIANT: This is the last of the fields.
        unsafe { slot.write(binding.clone()) };

        let mut ops = const { Adapter::<D>::OPS };
        ops.owner = module.as_ptr();
        ops.device_group = &raw const bindings::rdma_helper_device_group;
        // Every verb of this crate checks its request and fills its response: see `udata`.
        ops.set_uverbs_robust_udata(1);
        if is_infiniband {
            Adapter::<D>::fill_infiniband_ops(&mut ops);
        }
        let parent = binding.dev();
        // SAFETY: The core has allocated and initialized the `ib_device`. It is not registered, so
        // no other code uses it while this reference exists.
        let raw = unsafe { &mut *ibdev };
        // CAST: The value is a small constant.
        raw.node_type = bindings::RDMA_NODE_IB_CA as u8;
        raw.phys_port_cnt = ports;
        raw.num_comp_vectors = settings.num_comp_vectors.try_into().unwrap_or(1);
        raw.local_dma_lkey = settings.local_dma_lkey;
        raw.node_guid = u64::from_ne_bytes(settings.node_guid);
        raw.node_desc = settings.node_description.map(|byte| byte as c_char);
        // SAFETY: `ibdev` is not registered, so no other code uses it. `binding` keeps the parent
        // valid, and the core takes its own reference when the device is registered.
        unsafe { bindings::rdma_helper_ib_device_set_parent(ibdev, parent) };
        // SAFETY: `ibdev` is not registered, so no other code uses it. The function copies `ops`.
        unsafe { bindings::ib_set_device_ops(ibdev, &ops) };
        let prepared = (1..=ports)
            .zip(settings.ports)
            .try_for_each(|(port, netdev)| {
                let netdev = netdev.map_or(core::ptr::null_mut(), Netdev::as_raw);
                // SAFETY: `ibdev` is not registered, so no other code uses it. `settings` keeps the
                // net device valid, and the core takes its own reference.
                to_result(unsafe { bindings::ib_device_set_netdev(ibdev, netdev, port) })
            });
        prepared
            .and_then(|()| {
                let register = || {
                    // SAFETY: The device is prepared, `with` keeps the PCI device bound, and the
                    // name has at most one `%d`.
                    to_result(unsafe {
                        bindings::ib_register_device(ibdev, name.as_char_ptr(), parent)
                    })
                };
                binding.with(register).unwrap_or(Err(ENODEV))
            })
            .inspect_err(|_| {
                // SAFETY: The device is not registered. The function drops the data through
                // `dealloc_driver`.
                unsafe { bindings::ib_dealloc_device(ibdev) }
            })?;

        // INVARIANT: The device is registered and initialized, and the core keeps it until it is
        // unregistered.
        Ok(Self { dev })
    }

    /// Returns the registered device.
    pub fn device(&self) -> &Device<D> {
        // SAFETY: By the type invariant the device is initialized, and alive until this
        // registration is dropped.
        unsafe { self.dev.as_ref() }
    }

    /// Returns a reference to the device that remains valid after the device is unregistered.
    pub fn device_ref(&self) -> DeviceRef {
        let dev = self.dev.cast();
        // SAFETY: By the type invariant the device is alive, so a reference to it can be taken.
        unsafe { bindings::rdma_helper_ib_device_get(dev.as_ptr()) };
        // INVARIANT: The reference is the one taken above.
        DeviceRef { dev }
    }
}

/// A reference that keeps the memory of a device, which may have been unregistered.
///
/// # Invariants
///
/// `dev` is an `ib_device` to which this holds a reference of `rdma_helper_ib_device_get()`.
pub struct DeviceRef {
    dev: NonNull<bindings::ib_device>,
}

// SAFETY: The core allows the use and the release of an `ib_device` from any thread.
unsafe impl Send for DeviceRef {}
// SAFETY: The core allows concurrent use of an `ib_device`.
unsafe impl Sync for DeviceRef {}

impl DeviceRef {
    /// Informs consumers of an event of an InfiniBand port. Does nothing if the device is not
    /// registered, or no longer is. The core handles the event later, in a work item. Any context.
    pub fn report_port_event(&self, event: PortEvent, port_num: u32) {
        // SAFETY: By the type invariant the memory of the device is valid, and the function keeps
        // the device registered while it uses it.
        unsafe {
            bindings::rdma_helper_report_port_event(self.dev.as_ptr(), event.as_raw(), port_num)
        };
    }

    /// Informs consumers if the port of a net device has become active or inactive. Does nothing if
    /// the device is no longer registered. May sleep.
    pub fn report_port_state(&self, netdev: &Netdev) {
        // SAFETY: By the type invariant the memory of the device is valid, and the function keeps
        // the device registered while it uses it. `netdev` holds a reference to the net device.
        unsafe { bindings::rdma_helper_report_port_state(self.dev.as_ptr(), netdev.as_raw()) };
    }
}

impl Drop for DeviceRef {
    fn drop(&mut self) {
        // SAFETY: By the type invariant this holds a reference, which is not used afterwards.
        unsafe { bindings::rdma_helper_ib_device_release(self.dev.as_ptr()) };
    }
}

impl<D: Operations> Drop for Registration<D> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the device is registered. As `dealloc_driver` is set, the
        // core also deallocates it. It is not used afterwards.
        unsafe { bindings::ib_unregister_device(self.dev.as_ptr().cast()) };
    }
}
