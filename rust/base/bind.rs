// SPDX-License-Identifier: GPL-2.0

//! The period in which a driver is bound to its PCI device.
//!
//! C headers: [`include/linux/pci.h`](srctree/include/linux/pci.h),
//! [`include/linux/dma-mapping.h`](srctree/include/linux/dma-mapping.h)
//!
//! Not only `probe` creates DMA memory, interrupt vectors and the registration of an RDMA device:
//! verbs and a recovery work do so too, and they have no `&Device<Bound>`. A [`Binding`] is their
//! proof that the device is bound. A device resource revokes it when the device is unbound: after
//! the driver's data is released, the resource waits for current users of the device. Later uses
//! fail. Memory and vectors that still exist then are leaked with a message, because another driver
//! may have the device by then.

use crate::{
    bindings,
    compat,
    share, //
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
    /// Notified when `count` becomes 0.
    #[pin]
    idle: CondVar,
}

/// Proof that the device is bound. See the [module](self).
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

/// A PCI driver whose `probe` gets a [`Binding`] of the device. Otherwise it is like a
/// [`pci::Driver`]. It is registered as [`Adapter<Self>`](Adapter).
pub trait Driver {
    /// Information of the driver about each supported device.
    type IdInfo: 'static;
    /// State of the driver in each device.
    type Data<'bound>: Send + 'bound;

    /// Table of the devices that the driver supports.
    const ID_TABLE: pci::IdTable<Self::IdInfo>;

    /// Binds the driver to a device, for which 64 bits of DMA address have been allowed.
    fn probe<'bound>(
        pdev: &'bound pci::Device<Core<'_>>,
        binding: Binding,
        info: &'bound Self::IdInfo,
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound;
}

/// Implements [`pci::Driver`] for a [`Driver`].
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
            // SAFETY: The driver's `probe` has not run yet, so no code allocates or maps DMA memory
            // of the device.
            let binding = unsafe { Binding::new(pdev) }?;
            let info = compat::id_info(info)?;
            Ok::<_, Error>(T::probe(pdev, binding, info))
        })
    }
}

impl Binding {
    /// Creates the binding. Also allows 64 bits of DMA address, and segments of up to 2 GiB.
    ///
    /// # Safety
    ///
    /// No other code may allocate or map memory for the device's DMA during the call: see
    /// [`dma_set_mask_and_coherent`](kernel::dma::Device::dma_set_mask_and_coherent) of the kernel.
    unsafe fn new(pdev: &pci::Device<Core<'_>>) -> Result<Self> {
        // DMA memory is allocated only with a binding, so the accounts of `share` must be
        // initialized before the first binding exists.
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
        // The device may have been reset while no driver was bound: see [`crate::config`].
        //
        // SAFETY: The device is being bound, so it is alive.
        if unsafe { bindings::base_helper_pci_bars_lost(this.raw_pci()) } {
            // SAFETY: The device is being bound, so it is alive, and no driver uses it yet.
            unsafe { bindings::base_helper_pci_give_bars(this.raw_pci()) };
            dev_warn!(
                pdev,
                "the BAR addresses were lost, as after loading a VM snapshot: restored\n"
            );
        }
        // SAFETY: The device is being bound. The caller promises that no other code uses its DMA.
        to_result(unsafe { bindings::base_helper_dma_set_limits(this.dev()) })?;
        devres::register(pdev.as_ref(), Revoke(this.state.clone()), GFP_KERNEL)?;
        Ok(this)
    }

    /// Returns the PCI device.
    pub fn pci(&self) -> &pci::Device {
        &self.state.pdev
    }

    /// Returns the generic device, for messages.
    pub fn device(&self) -> &device::Device {
        (*self.state.pdev).as_ref()
    }

    /// Enables the device's memory resources until it is unbound.
    pub fn enable(&self) -> Result {
        // SAFETY: `with` keeps the device bound during the call.
        self.with(|| to_result(unsafe { kbindings::pcim_enable_device(self.raw_pci()) }))
            .ok_or(ENODEV)?
    }

    /// Allows the device to do DMA and to raise interrupts. Must be called only after a reset was
    /// confirmed, so that the device does not execute requests from before the reset. Returns
    /// `ENODEV` if the device is no longer bound.
    pub fn set_master(&self) -> Result {
        // SAFETY: `with` keeps the device bound during the call.
        self.with(|| unsafe { kbindings::pci_set_master(self.raw_pci()) })
            .ok_or(ENODEV)
    }

    /// Forbids the device to do DMA and to raise interrupts. Returns true only if that is certain
    /// because the command register was read back. A device that cannot be read returns all ones.
    /// May sleep.
    #[must_use]
    pub fn clear_master(&self) -> bool {
        let clear = || {
            let mut command = u16::MAX;
            // SAFETY: `with` keeps the device bound during the call.
            unsafe { kbindings::pci_clear_master(self.raw_pci()) };
            // SAFETY: `with` keeps the device bound during the call. The function writes 16 bits to
            // `command`.
            let read = unsafe {
                kbindings::pci_read_config_word(
                    self.raw_pci(),
                    // CAST: The value is a small constant.
                    kbindings::PCI_COMMAND as c_int,
                    &mut command,
                )
            };
            // CAST: The flag is one of 16 bits.
            read == 0 && command & kbindings::PCI_COMMAND_MASTER as u16 == 0
        };
        // A device that is no longer bound was disabled by the core, but the register was not read.
        self.with(clear).unwrap_or(false)
    }

    /// Returns the C struct of the PCI device, which is valid as long as this binding.
    pub fn raw_pci(&self) -> *mut kbindings::pci_dev {
        // `pci::Device` is a transparent wrapper. Its `as_raw()` is private to `kernel`.
        core::ptr::from_ref::<pci::Device>(&self.state.pdev)
            .cast_mut()
            .cast()
    }

    /// Returns the C struct of the generic device, which is valid as long as this binding.
    pub fn dev(&self) -> *mut kbindings::device {
        // SAFETY: The reference in `state` keeps the device alive, and only the address of a field
        // is computed.
        unsafe { &raw mut (*self.raw_pci()).dev }
    }

    /// Runs `f` while the device is certain to be bound. Returns `None` if it is no longer bound.
    /// May sleep.
    pub fn with<R>(&self, f: impl FnOnce() -> R) -> Option<R> {
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
