// SPDX-License-Identifier: GPL-2.0

//! The two BARs: registers and doorbells. Device specification, "Registers".

use crate::abi::regs;
use base::compat::DevresBar;
use kernel::{
    device::Core,
    io::Io,
    pci,
    prelude::*, //
};

type RegsBar = DevresBar<{ regs::BAR_REGS_SIZE }>;
type DoorbellBar = DevresBar;

/// Value of every register read when the device is gone.
pub(crate) const PCI_ERROR_RESPONSE: u32 = u32::MAX;

/// The mapped BARs. After unbind, writes have no effect and reads return [`PCI_ERROR_RESPONSE`].
pub(crate) struct Bars {
    regs: RegsBar,
    doorbells: DoorbellBar,
    num_uars: u32,
}

impl Bars {
    pub(crate) fn new(pdev: &pci::Device<Core<'_>>) -> Result<Self> {
        let doorbells_len = usize::try_from(pdev.resource_len(regs::BAR_DOORBELL)?)?;
        let num_uars = u32::try_from(doorbells_len / regs::DOORBELL_STRIDE)?;
        if num_uars == 0 {
            dev_err!(
                pdev,
                "the doorbell BAR has {doorbells_len} bytes, and a doorbell area needs {}\n",
                regs::DOORBELL_STRIDE
            );
            return Err(ENODEV);
        }
        Ok(Self {
            regs: pdev
                .iomap_region_sized::<{ regs::BAR_REGS_SIZE }>(regs::BAR_REGS, c"verbena regs")?
                .into_devres()?,
            doorbells: pdev
                .iomap_region(regs::BAR_DOORBELL, c"verbena doorbells")?
                .into_devres()?,
            num_uars: num_uars.min(regs::NUM_UARS),
        })
    }

    /// Reads the register at `offset`. Returns [`PCI_ERROR_RESPONSE`] if the device is gone.
    pub(crate) fn read(&self, offset: usize) -> u32 {
        self.regs
            .try_access()
            .and_then(|bar| bar.try_read32(offset).ok())
            .unwrap_or(PCI_ERROR_RESPONSE)
    }

    /// Writes the register at `offset`.
    pub(crate) fn write(&self, offset: usize, value: u32) {
        if let Some(bar) = self.regs.try_access() {
            // The write cannot fail, because the contract's offsets are inside the BAR.
            let _ = bar.try_write32(value, offset);
        }
    }

    /// Rings the doorbell of an area. The value that is written has no meaning.
    pub(crate) fn ring(&self, uar: u32) {
        if let Some(bar) = self.doorbells.try_access() {
            // The write cannot fail, because UARs are below `num_uars`.
            let _ = bar.try_write32(1, uar as usize * regs::DOORBELL_STRIDE);
        }
    }

    /// Returns the number of doorbell pages for which the BAR has room.
    pub(crate) fn num_uars(&self) -> u32 {
        self.num_uars
    }
}
