// SPDX-License-Identifier: GPL-2.0

//! Net devices: finding one by its MAC address, its state, and its changes.
//!
//! C header: [`include/linux/netdevice.h`](srctree/include/linux/netdevice.h)

use crate::bindings;
use core::ptr::NonNull;
use kernel::{
    bindings as kbindings,
    container_of,
    error::to_result,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
    types::Opaque, //
};

/// A reference to a net device.
///
/// # Invariants
///
/// `raw` is a net device to which this holds a reference of `dev_hold()`.
pub struct Netdev {
    raw: NonNull<kbindings::net_device>,
}

// SAFETY: A net device may be used, and its reference released, from any thread.
unsafe impl Send for Netdev {}
// SAFETY: The functions called here allow concurrent use of a net device.
unsafe impl Sync for Netdev {}

/// State of a net device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetdevInfo {
    /// MAC address of the net device.
    pub mac: [u8; 6],
    /// MTU of the net device in bytes.
    pub mtu: u32,
    /// True if the net device is up.
    pub running: bool,
    /// True if the net device has a link.
    pub carrier: bool,
}

impl NetdevInfo {
    /// True if the net device is up and has a link, so that packets can be sent and received.
    pub fn is_up(&self) -> bool {
        self.running && self.carrier
    }
}

impl Netdev {
    /// Returns the net device with this MAC address, in any network namespace. May sleep.
    ///
    /// The net device cannot be freed until this reference is dropped, so the owner must drop it
    /// when the net device is unregistered ([`Change::Unregister`]). The net device may move
    /// between namespaces.
    pub fn by_mac(mac: &[u8; 6]) -> Option<Self> {
        // SAFETY: The function reads six bytes.
        let raw = unsafe { bindings::base_helper_netdev_by_mac(mac.as_ptr()) };
        // INVARIANT: The function has taken a reference to the net device that it returns.
        Some(Self {
            raw: NonNull::new(raw)?,
        })
    }

    /// Returns the C struct, which is valid as long as this reference.
    pub fn as_raw(&self) -> *mut kbindings::net_device {
        self.raw.as_ptr()
    }

    /// True if the net device is being unregistered or is not registered yet. Any context.
    pub fn is_leaving(&self) -> bool {
        // SAFETY: By the type invariant this holds a reference to the net device.
        unsafe { bindings::base_helper_netdev_is_leaving(self.raw.as_ptr()) }
    }

    /// Returns the present state. Any context.
    pub fn info(&self) -> NetdevInfo {
        let mut info = NetdevInfo {
            mac: [0; 6],
            mtu: 0,
            running: false,
            carrier: false,
        };
        // SAFETY: By the type invariant this holds a reference to the net device. The function
        // writes six bytes of the MAC address and the other members.
        unsafe {
            bindings::base_helper_netdev_info(
                self.raw.as_ptr(),
                info.mac.as_mut_ptr(),
                &mut info.mtu,
                &mut info.running,
                &mut info.carrier,
            )
        };
        info
    }
}

impl PartialEq for Netdev {
    fn eq(&self, other: &Self) -> bool {
        self.raw == other.raw
    }
}

impl Drop for Netdev {
    fn drop(&mut self) {
        // SAFETY: By the type invariant this holds a reference to the net device, which is not used
        // afterwards.
        unsafe { bindings::base_helper_netdev_put(self.raw.as_ptr()) };
    }
}

/// A change of a net device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The net device went up or down, or its link changed.
    State,
    /// The MTU of the net device changed.
    Mtu,
    /// The MAC address of the net device changed.
    Address,
    /// The net device is being unregistered. A move to another network namespace is reported as
    /// [`State`](Self::State) instead, because the kernel takes the net device down for it.
    Unregister,
    /// A net device with the wanted MAC address exists ([`Notifier::of_mac`]). This may be reported
    /// more than once.
    There,
}

/// A handler of changes of net devices.
pub trait Handler: Send + Sync + 'static {
    /// Handles a change. Called with the RTNL held, so the handler must not wait for code that
    /// needs it, and queues a [`Work`](crate::work::Work) instead.
    fn changed(&self, change: Change);
}

/// The net device whose changes are reported.
enum Whose {
    /// The net device at this address, which is only compared.
    Netdev(usize),
    /// Any net device that [`Netdev::by_mac`] finds for this MAC address.
    Mac([u8; 6]),
}

impl Whose {
    /// Returns the change to report for an event of the notifier chain.
    ///
    /// # Safety
    ///
    /// `netdev` must be the net device of the event, and be alive during the call.
    unsafe fn change(&self, event: c_uint, netdev: *mut kbindings::net_device) -> Option<Change> {
        match self {
            Self::Netdev(address) if netdev as usize == *address => match event {
                bindings::netdev_cmd_NETDEV_UP
                | bindings::netdev_cmd_NETDEV_DOWN
                | bindings::netdev_cmd_NETDEV_CHANGE => Some(Change::State),
                bindings::netdev_cmd_NETDEV_CHANGEMTU => Some(Change::Mtu),
                bindings::netdev_cmd_NETDEV_CHANGEADDR => Some(Change::Address),
                // A net device that moves is unregistered in one namespace and registered in the
                // next.
                bindings::netdev_cmd_NETDEV_UNREGISTER => {
                    // SAFETY: The caller promises that the net device is alive.
                    unsafe { bindings::base_helper_netdev_is_leaving(netdev) }
                        .then_some(Change::Unregister)
                }
                _ => None,
            },
            Self::Netdev(_) => None,
            // SAFETY: The caller promises that the net device is alive. The function reads six
            // bytes of the address.
            Self::Mac(mac) => unsafe {
                bindings::base_helper_netdev_has_mac(netdev, mac.as_ptr()).then_some(Change::There)
            },
        }
    }
}

/// A notifier block in memory that does not move.
///
/// # Invariants
///
/// The function of `block` is [`Notifier::call`].
#[repr(C)]
struct Inner<H: Handler> {
    block: Opaque<kbindings::notifier_block>,
    whose: Whose,
    /// True while the notifier is being unregistered. The chain then reports every net device as
    /// unregistered, which is wrong.
    ending: Atomic<bool>,
    handler: Arc<H>,
}

/// Reports changes of one net device to a handler, in any network namespace, until it is dropped.
///
/// # Invariants
///
/// The block of `inner` is registered until this is dropped.
pub struct Notifier<H: Handler> {
    inner: Pin<KBox<Inner<H>>>,
}

// SAFETY: A notifier may be unregistered from any thread, and the handler is `Send + Sync`.
unsafe impl<H: Handler> Send for Notifier<H> {}
// SAFETY: Code with a shared reference cannot access the fields.
unsafe impl<H: Handler> Sync for Notifier<H> {}

impl<H: Handler> Notifier<H> {
    /// Starts to report changes of a net device. If the device is up, `handler` gets a
    /// [`Change::State`] before this returns. Must be called, and the result dropped, without the
    /// RTNL held.
    pub fn new(netdev: &Netdev, handler: Arc<H>) -> Result<Self> {
        Self::of(Whose::Netdev(netdev.as_raw() as usize), handler)
    }

    /// Starts to report net devices with this MAC address. An existing one is reported before this
    /// returns. Must be called, and the result dropped, without the RTNL held.
    pub fn of_mac(mac: [u8; 6], handler: Arc<H>) -> Result<Self> {
        Self::of(Whose::Mac(mac), handler)
    }

    fn of(whose: Whose, handler: Arc<H>) -> Result<Self> {
        // INVARIANT: The function of the block is `call`.
        let inner = KBox::pin(
            Inner {
                block: Opaque::new(kbindings::notifier_block {
                    notifier_call: Some(Self::call),
                    next: core::ptr::null_mut(),
                    priority: 0,
                }),
                whose,
                ending: Atomic::new(false),
                handler,
            },
            GFP_KERNEL,
        )?;
        // SAFETY: The block is pinned in `inner`, which lives until `drop` has unregistered it.
        to_result(unsafe { bindings::register_netdevice_notifier(inner.block.get()) })?;
        // INVARIANT: The block was registered above.
        Ok(Self { inner })
    }

    /// # Safety
    ///
    /// Only the notifier chain may call this, with the block of an `Inner<H>`.
    unsafe extern "C" fn call(
        block: *mut kbindings::notifier_block,
        event: c_ulong,
        info: *mut c_void,
    ) -> c_int {
        // The macro of the kernel contains more than one unsafe operation.
        //
        // SAFETY: By the contract of this function the block is in an `Inner<H>`.
        #[allow(clippy::multiple_unsafe_ops_per_block)]
        let inner = unsafe { container_of!(Opaque::cast_from(block), Inner<H>, block) };
        // SAFETY: The `Inner<H>` lives until the block is unregistered, which waits for this call.
        let inner = unsafe { &*inner };
        if !inner.ending.load(Relaxed) {
            let event = c_uint::try_from(event).unwrap_or(0);
            // SAFETY: `info` is the argument that the chain passes for net devices.
            let netdev = unsafe { bindings::base_helper_notifier_netdev(info) };
            // SAFETY: The net device of the event is alive during the call.
            let change = unsafe { inner.whose.change(event, netdev) };
            if let Some(change) = change {
                inner.handler.changed(change);
            }
        }
        // The value is NOTIFY_DONE.
        0
    }
}

impl<H: Handler> Drop for Notifier<H> {
    fn drop(&mut self) {
        self.inner.ending.store(true, Relaxed);
        // SAFETY: By the type invariant the block is registered. After this the chain does not call
        // it any more. The error would only say that the block was not registered.
        unsafe { bindings::unregister_netdevice_notifier(self.inner.block.get()) };
    }
}
