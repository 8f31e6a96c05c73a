// SPDX-License-Identifier: GPL-2.0

//! The time in which a driver is bound to its PCI device.
//!
//! DMA memory, interrupt vectors and the registration of an RDMA device are made at other times
//! than `probe` too, by verbs and by a recovery work, where no `&Device<Bound>` is at hand. A
//! [`Binding`] is the proof instead: it is revoked when the device is unbound, by a device resource
//! that is released after the driver's data and that waits for whoever uses the device right then.
//! Later uses fail. What still exists then is leaked, with a message, rather than freed through a
//! device that may be somebody else's.

use crate::{
    base::{
        compat,
        share, //
    },
    bindings, //
};
use core::marker::PhantomData;
use kernel::{
    bindings as kbindings,
    device::{
        self,
        Core, //
    },
    devres,
    error::to_result,
    new_condvar,
    new_mutex,
    pci,
    prelude::*,
    sync::{
        aref::ARef,
        Arc,
        CondVar,
        Mutex, //
    }, //
};

struct Users {
    bound: bool,
    count: usize,
}

#[pin_data]
struct State {
    pdev: ARef<pci::Device>,
    #[pin]
    users: Mutex<Users>,
    /// `count` became 0.
    #[pin]
    idle: CondVar,
}

/// See the [module](self).
#[derive(Clone)]
pub struct Binding {
    state: Arc<State>,
}

/// Revokes a binding when the device is unbound.
struct Revoke(Arc<State>);

impl Drop for Revoke {
    fn drop(&mut self) {
        let mut users = self.0.users.lock();
        users.bound = false;
        while users.count != 0 {
            self.0.idle.wait(&mut users);
        }
    }
}

/// A PCI driver whose `probe` gets a [`Binding`] of the device. Like [`pci::Driver`], and registered
/// as [`Adapter<Self>`](Adapter).
pub trait Driver {
    /// What is said of each device that the driver supports.
    type IdInfo: 'static;
    /// The driver's data of a device.
    type Data<'bound>: Send + 'bound;

    /// The devices that the driver supports.
    const ID_TABLE: pci::IdTable<Self::IdInfo>;

    /// A device is bound to the driver, and may use 64 bits of DMA address.
    fn probe<'bound>(
        pdev: &'bound pci::Device<Core<'_>>,
        binding: Binding,
        info: &'bound Self::IdInfo,
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound;
}

/// Makes a [`pci::Driver`] of a [`Driver`].
pub struct Adapter<T: Driver>(PhantomData<T>);

impl<T: Driver> pci::Driver for Adapter<T> {
    type IdInfo = T::IdInfo;
    type Data<'bound> = T::Data<'bound>;

    const ID_TABLE: pci::IdTable<Self::IdInfo> = T::ID_TABLE;

    fn probe<'bound>(
        pdev: &'bound pci::Device<Core<'_>>,
        info: compat::IdInfo<'bound, Self::IdInfo>,
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound {
        pin_init::pin_init_scope(move || {
            // SAFETY: The driver has not seen the device as a bound one yet.
            let binding = unsafe { Binding::new(pdev) }?;
            let info = compat::id_info(info)?;
            Ok::<_, Error>(T::probe(pdev, binding, info))
        })
    }
}

impl Binding {
    /// Also allows 64 bits of DMA address, and segments of up to 2 GiB.
    ///
    /// # Safety
    ///
    /// Nobody may be allocating or mapping memory for the device's DMA meanwhile, as the kernel's
    /// [`dma_set_mask_and_coherent`](kernel::dma::Device::dma_set_mask_and_coherent) has it.
    unsafe fn new(pdev: &pci::Device<Core<'_>>) -> Result<Self> {
        // Whoever has memory of a device has a binding.
        if !share::has_begun() {
            return Err(EINVAL);
        }
        let state = Arc::pin_init(
            pin_init!(State {
                pdev: pdev.into(),
                users <- new_mutex!(Users {
                    bound: true,
                    count: 0,
                }),
                idle <- new_condvar!(),
            }),
            GFP_KERNEL,
        )?;
        let this = Self { state };
        // A device that was reset while no driver was bound: see `base::config`.
        //
        // SAFETY: The device is bound, and no driver uses it yet.
        unsafe {
            if bindings::rdma_helper_pci_bars_lost(this.raw_pci()) {
                bindings::rdma_helper_pci_give_bars(this.raw_pci());
                dev_warn!(pdev, "its addresses were lost and are given back\n");
            }
        }
        // SAFETY: The device is bound; the caller says that nobody uses its DMA.
        to_result(unsafe { bindings::rdma_helper_dma_set_limits(this.dev()) })?;
        devres::register(pdev.as_ref(), Revoke(this.state.clone()), GFP_KERNEL)?;
        Ok(this)
    }

    /// The PCI device.
    pub fn pci(&self) -> &pci::Device {
        &self.state.pdev
    }

    /// The device, for messages.
    pub fn device(&self) -> &device::Device {
        (*self.state.pdev).as_ref()
    }

    /// Enables the device's memory resources until it is unbound.
    pub fn enable(&self) -> Result {
        // SAFETY: The device is bound.
        self.with(|| to_result(unsafe { kbindings::pcim_enable_device(self.raw_pci()) }))
            .ok_or(ENODEV)?
    }

    /// Lets the device do DMA and raise interrupts. Only when a reset has been confirmed, so that it
    /// does nothing that it was asked in an earlier life. `ENODEV` if it is no longer bound.
    pub fn set_master(&self) -> Result {
        // SAFETY: The device is bound.
        self.with(|| unsafe { kbindings::pci_set_master(self.raw_pci()) })
            .ok_or(ENODEV)
    }

    /// Forbids the device DMA and interrupts. Whether it is forbidden for sure: the command register
    /// was read back, and a device that cannot be read gives all ones. May sleep.
    #[must_use]
    pub fn clear_master(&self) -> bool {
        let clear = || {
            let mut command = u16::MAX;
            // SAFETY: The device is bound; 16 bits are written.
            let read = unsafe {
                kbindings::pci_clear_master(self.raw_pci());
                kbindings::pci_read_config_word(
                    self.raw_pci(),
                    // CAST: a small constant.
                    kbindings::PCI_COMMAND as c_int,
                    &mut command,
                )
            };
            // CAST: a bit of 16.
            read == 0 && command & kbindings::PCI_COMMAND_MASTER as u16 == 0
        };
        // When it is no longer bound the core has disabled it.
        self.with(clear).unwrap_or(false)
    }

    pub(crate) fn raw_pci(&self) -> *mut kbindings::pci_dev {
        // `pci::Device` is a transparent wrapper; `as_raw()` is private to `kernel`.
        core::ptr::from_ref::<pci::Device>(&self.state.pdev)
            .cast_mut()
            .cast()
    }

    pub(crate) fn dev(&self) -> *mut kbindings::device {
        // SAFETY: A valid device; only the address of a field is computed.
        unsafe { &raw mut (*self.raw_pci()).dev }
    }

    /// Runs `f` while the device is bound for sure; `None` if it no longer is. May sleep.
    pub(crate) fn with<R>(&self, f: impl FnOnce() -> R) -> Option<R> {
        {
            let mut users = self.state.users.lock();
            if !users.bound {
                return None;
            }
            users.count += 1;
        }
        let result = f();
        let mut users = self.state.users.lock();
        users.count -= 1;
        if users.count == 0 {
            self.state.idle.notify_all();
        }
        Some(result)
    }
}
