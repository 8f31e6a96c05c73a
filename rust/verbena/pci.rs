// SPDX-License-Identifier: GPL-2.0

//! The PCI driver.

use crate::{
    abi::regs,
    bars::Bars,
    hw::Parts,
    recovery::Recovery, //
};
use kernel::{
    device::Core,
    pci,
    prelude::*,
    sync::Arc, //
};
use rdma::{
    bind::Binding,
    irq::Vectors, //
};

kernel::pci_device_table!(
    PCI_TABLE,
    MODULE_PCI_TABLE,
    <VerbenaPci as pci::Driver>::IdInfo,
    [(
        pci::DeviceId::from_id(
            pci::Vendor::REDHAT_QUMRANET,
            regs::PCI_DEVICE_ID as u32
        ),
        ()
    )]
);

/// The driver's data of a bound device.
pub(crate) struct VerbenaPci {
    recovery: Arc<Recovery>,
}

impl pci::Driver for VerbenaPci {
    type IdInfo = ();
    type Data<'bound> = Self;
    const ID_TABLE: pci::IdTable<Self::IdInfo> = &PCI_TABLE;

    fn probe<'bound>(
        pdev: &'bound pci::Device<Core<'_>>,
        _info: &'bound Self::IdInfo,
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound {
        pdev.enable_device_mem()?;
        pdev.set_master();
        let dma = Binding::new(pdev)?;
        let bars = Arc::new(Bars::new(pdev)?, GFP_KERNEL)?;
        // One for commands and asynchronous events, and at least one for completions.
        let vectors = Vectors::alloc(&dma, 2, regs::NUM_VECTORS)?;
        let recovery = Recovery::start(Parts {
            pdev: pdev.into(),
            dma,
            bars,
            vectors,
        })?;
        Ok(Self { recovery })
    }

    fn unbind<'bound>(_pdev: &'bound pci::Device<Core<'_>>, this: Pin<&Self::Data<'bound>>) {
        this.recovery.end();
    }
}
