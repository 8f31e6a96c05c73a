// SPDX-License-Identifier: GPL-2.0

//! The net device whose addresses a RoCE port uses.

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

/// A net device, held.
pub struct Netdev {
    raw: NonNull<kbindings::net_device>,
}

// SAFETY: A net device may be used from any thread.
unsafe impl Send for Netdev {}
// SAFETY: As above.
unsafe impl Sync for Netdev {}

/// State of a net device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetdevInfo {
    /// Its MAC.
    pub mac: [u8; 6],
    /// Its MTU.
    pub mtu: u32,
    /// It is up.
    pub running: bool,
    /// It has a link.
    pub carrier: bool,
}

impl NetdevInfo {
    /// It is up and has a link: packets go both ways.
    pub fn is_up(&self) -> bool {
        self.running && self.carrier
    }
}

impl Netdev {
    /// The net device with that MAC, in whatever network namespace. May sleep.
    ///
    /// It is held until this is dropped, and cannot go away meanwhile: drop this when it wants to
    /// ([`Change::Unregister`]). It may move between namespaces.
    pub fn by_mac(mac: &[u8; 6]) -> Option<Self> {
        // SAFETY: Six bytes are read.
        let raw = unsafe { bindings::rdma_helper_netdev_by_mac(mac.as_ptr()) };
        Some(Self {
            raw: NonNull::new(raw)?,
        })
    }

    pub(crate) fn as_raw(&self) -> *mut kbindings::net_device {
        self.raw.as_ptr()
    }

    /// Whether the net device is being unregistered, or is not registered yet. Any context.
    pub fn is_leaving(&self) -> bool {
        // SAFETY: The device is held.
        unsafe { bindings::rdma_helper_netdev_is_leaving(self.raw.as_ptr()) }
    }

    /// Its state now. Any context.
    pub fn info(&self) -> NetdevInfo {
        let mut info = NetdevInfo {
            mac: [0; 6],
            mtu: 0,
            running: false,
            carrier: false,
        };
        // SAFETY: The device is held; six bytes are written, and the rest.
        unsafe {
            bindings::rdma_helper_netdev_info(
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
        // SAFETY: Held by `by_mac`.
        unsafe { bindings::rdma_helper_netdev_put(self.raw.as_ptr()) };
    }
}

/// What happened to a net device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Up, down, carrier.
    State,
    /// MTU.
    Mtu,
    /// MAC.
    Address,
    /// It goes away. That it moves to another network namespace is told as [`State`](Self::State): the
    /// kernel takes it down there.
    Unregister,
    /// A net device with the MAC address that is looked for is there ([`Notifier::of_mac`]). May be told more
    /// than once.
    There,
}

/// Is told of changes.
pub trait Handler: Send + Sync + 'static {
    /// Called with the RTNL held, so nothing may be waited for that needs it: queue a
    /// [`Work`](crate::base::work::Work).
    fn changed(&self, change: Change);
}

/// Whose changes are told.
enum Whose {
    /// Those of the net device at that address, which is only compared.
    Netdev(usize),
    /// That a net device is there that [`Netdev::by_mac`] finds.
    Mac([u8; 6]),
}

impl Whose {
    /// What is told of an event of the notifier chain.
    ///
    /// # Safety
    ///
    /// `netdev` must be that of the event.
    unsafe fn change(&self, event: c_uint, netdev: *mut kbindings::net_device) -> Option<Change> {
        match self {
            Self::Netdev(address) if netdev as usize == *address => match event {
                bindings::netdev_cmd_NETDEV_UP
                | bindings::netdev_cmd_NETDEV_DOWN
                | bindings::netdev_cmd_NETDEV_CHANGE => Some(Change::State),
                bindings::netdev_cmd_NETDEV_CHANGEMTU => Some(Change::Mtu),
                bindings::netdev_cmd_NETDEV_CHANGEADDR => Some(Change::Address),
                // One that moves is unregistered in one namespace and registered in the next.
                bindings::netdev_cmd_NETDEV_UNREGISTER => {
                    // SAFETY: The net device is that of the event.
                    unsafe { bindings::rdma_helper_netdev_is_leaving(netdev) }
                        .then_some(Change::Unregister)
                }
                _ => None,
            },
            Self::Netdev(_) => None,
            // SAFETY: The net device is that of the event; six bytes are read.
            Self::Mac(mac) => unsafe {
                bindings::rdma_helper_netdev_has_mac(netdev, mac.as_ptr()).then_some(Change::There)
            },
        }
    }
}

#[repr(C)]
struct Inner<H: Handler> {
    block: Opaque<kbindings::notifier_block>,
    whose: Whose,
    /// Unregistering tells of every device that it goes away, which is not so.
    ending: Atomic<bool>,
    handler: Arc<H>,
}

/// Tells a handler of changes of one net device, in whatever network namespace it is, until dropped.
pub struct Notifier<H: Handler> {
    inner: Pin<KBox<Inner<H>>>,
}

// SAFETY: A notifier may be unregistered from any thread.
unsafe impl<H: Handler> Send for Notifier<H> {}
// SAFETY: By shared reference there is nothing to do with it.
unsafe impl<H: Handler> Sync for Notifier<H> {}

impl<H: Handler> Notifier<H> {
    /// Starts to tell of a net device. `handler` is told of [`Change::State`] before this returns if the device is up. Must be
    /// called, and dropped, without the RTNL.
    pub fn new(netdev: &Netdev, handler: Arc<H>) -> Result<Self> {
        Self::of(Whose::Netdev(netdev.as_raw() as usize), handler)
    }

    /// Tells when there is a net device with that MAC: of one that is there already before this returns. Must
    /// be called, and dropped, without the RTNL.
    pub fn of_mac(mac: [u8; 6], handler: Arc<H>) -> Result<Self> {
        Self::of(Whose::Mac(mac), handler)
    }

    fn of(whose: Whose, handler: Arc<H>) -> Result<Self> {
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
        // SAFETY: The block lives until it is unregistered.
        to_result(unsafe { bindings::register_netdevice_notifier(inner.block.get()) })?;
        Ok(Self { inner })
    }

    /// # Safety
    ///
    /// Only for the notifier chain.
    unsafe extern "C" fn call(
        block: *mut kbindings::notifier_block,
        event: c_ulong,
        info: *mut c_void,
    ) -> c_int {
        // SAFETY: The block is in an `Inner`, which lives until it is unregistered.
        let inner = unsafe { &*container_of!(Opaque::cast_from(block), Inner<H>, block) };
        if !inner.ending.load(Relaxed) {
            let event = c_uint::try_from(event).unwrap_or(0);
            // SAFETY: What the chain passes.
            let change = unsafe {
                let netdev = bindings::rdma_helper_notifier_netdev(info);
                inner.whose.change(event, netdev)
            };
            if let Some(change) = change {
                inner.handler.changed(change);
            }
        }
        // NOTIFY_DONE.
        0
    }
}

impl<H: Handler> Drop for Notifier<H> {
    fn drop(&mut self) {
        self.inner.ending.store(true, Relaxed);
        // SAFETY: Registered. Afterwards the chain does not call it any more. The result says only
        // whether it was registered.
        unsafe { bindings::unregister_netdevice_notifier(self.inner.block.get()) };
    }
}
