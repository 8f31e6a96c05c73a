// SPDX-License-Identifier: GPL-2.0

//! The two BARs: registers and doorbells. Device specification, "Registers".

use crate::abi::regs;
use kernel::{
    device::Core,
    io::Io,
    pci,
    prelude::*, //
};
use rdma::base::compat::DevresBar;

type RegsBar = DevresBar<{ regs::BAR_REGS_SIZE }>;
type DoorbellBar = DevresBar;

/// What a register reads as when the device is gone.
pub(crate) const GONE: u32 = u32::MAX;

/// The mapped BARs. Accesses after unbind go nowhere.
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
            dev_err!(pdev, "the doorbell BAR has {doorbells_len} bytes\n");
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

    /// Reads a register.
    pub(crate) fn read(&self, offset: usize) -> u32 {
        self.regs
            .try_access()
            .and_then(|bar| bar.try_read32(offset).ok())
            .unwrap_or(GONE)
    }

    /// Writes a register.
    pub(crate) fn write(&self, offset: usize, value: u32) {
        if let Some(bar) = self.regs.try_access() {
            // Cannot fail: the offsets are the contract's own, inside the BAR.
            let _ = bar.try_write32(value, offset);
        }
    }

    /// Rings for a doorbell area. What is written does not matter.
    pub(crate) fn ring(&self, uar: u32) {
        if let Some(bar) = self.doorbells.try_access() {
            // Cannot fail: UARs are below `num_uars`.
            let _ = bar.try_write32(1, uar as usize * regs::DOORBELL_STRIDE);
        }
    }

    /// Number of doorbell pages that the BAR has room for.
    pub(crate) fn num_uars(&self) -> u32 {
        self.num_uars
    }
}
