// SPDX-License-Identifier: GPL-2.0 OR MIT

//! PCI configuration space: one function with three BARs, the PCI Express and the MSI-X capability.
//!
//! QEMU keeps BARs and the MSI-X table itself and shows the guest its own copies. Of the accesses
//! that it passes on, two matter here: writes of the bus master bit, which is the gate of all DMA,
//! and a function-level reset. Device specification, section 1; offsets are those of PCI Local Bus
//! 3.0 section 6.1 and PCI Express base 7.5.

use verbena_abi::regs;

/// Size of an express function's configuration space in bytes; beyond 256 bytes it is empty.
pub const CONFIG_SIZE: usize = 4096;

const COMMAND: usize = 0x04;
const COMMAND_BUS_MASTER: u16 = 1 << 2;
/// Writable bits of the command register: memory space, bus master, parity, SERR, INTx disable.
const COMMAND_WRITABLE: u16 = 0x0546;
const STATUS: usize = 0x06;
const STATUS_CAP_LIST: u16 = 1 << 4;
const BARS: usize = 0x10;
const NUM_BARS: usize = 6;
const BAR_64BIT: u32 = 1 << 2;
const BAR_PREFETCH: u32 = 1 << 3;
const CAP_POINTER: usize = 0x34;

const EXPRESS: usize = 0x40;
const EXPRESS_DEVCTL: usize = EXPRESS + 0x08;
const DEVCTL_FLR: u16 = 1 << 15;
const EXPRESS_LNKCAP: usize = EXPRESS + 0x0c;
const EXPRESS_LNKSTA: usize = EXPRESS + 0x12;
/// Link of 16 lanes at 16 GT/s, in the capability and in the status.
const LINK: u16 = 16 << 4 | 4;
/// All link speeds up to that of [`LINK`].
const LINK_SPEEDS: u32 = 0xf << 1;
const MSIX: usize = 0x80;
const MSIX_CONTROL: usize = MSIX + 2;
/// Writable bits of the MSI-X control: enable and function mask.
const MSIX_WRITABLE: u16 = 0xc000;

/// Effects of a write to configuration space on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConfigEffects {
    /// New state of bus mastering, if the write has changed it.
    pub bus_master: Option<bool>,
    /// True if the write requested a function-level reset.
    pub reset: bool,
}

/// The configuration space of the function.
pub struct ConfigSpace {
    bytes: [u8; CONFIG_SIZE],
    /// Mask of the bits that a write can change.
    writable: [u8; CONFIG_SIZE],
}

impl ConfigSpace {
    /// Returns the configuration space as it is after power-on.
    pub fn new() -> Self {
        let mut config = Self {
            bytes: [0; CONFIG_SIZE],
            writable: [0; CONFIG_SIZE],
        };
        config.put16(0x00, regs::PCI_VENDOR_ID);
        config.put16(0x02, regs::PCI_DEVICE_ID);
        config.allow16(COMMAND, COMMAND_WRITABLE);
        config.put16(STATUS, STATUS_CAP_LIST);
        // The lowest byte is the revision, 1.
        config.put32(0x08, regs::PCI_CLASS << 8 | 1);
        config.writable[0x0c] = 0xff;
        config.put16(0x2c, regs::PCI_VENDOR_ID);
        config.put16(0x2e, regs::PCI_DEVICE_ID);
        config.put_bar(regs::BAR_REGS, regs::BAR_REGS_SIZE, 0);
        config.put_bar(
            regs::BAR_DOORBELL,
            regs::BAR_DOORBELL_SIZE,
            BAR_64BIT | BAR_PREFETCH,
        );
        config.put_bar(regs::BAR_MSIX, regs::BAR_MSIX_SIZE, 0);
        config.bytes[CAP_POINTER] = EXPRESS as u8;

        // PCI Express capability, version 2, endpoint; with a function-level reset and role-based
        // error reporting. The link is that of other adapters with a port of this speed (100 Gb/s).
        // No data uses the link, but programs choose paths by it.
        config.put16(EXPRESS, 0x10 | (MSIX as u16) << 8);
        config.put16(EXPRESS + 0x02, 0x0002);
        config.put32(EXPRESS + 0x04, 1 << 28 | 1 << 15);
        config.allow16(EXPRESS_DEVCTL, 0x7fff);
        config.put32(EXPRESS_LNKCAP, u32::from(LINK));
        config.allow16(EXPRESS + 0x10, 0x0fff);
        config.put16(EXPRESS_LNKSTA, LINK);
        config.put32(EXPRESS + 0x2c, LINK_SPEEDS);
        config.put16(EXPRESS + 0x30, LINK & 0xf);

        config.put16(MSIX, 0x11);
        config.put16(MSIX_CONTROL, regs::NUM_VECTORS as u16 - 1);
        config.allow16(MSIX_CONTROL, MSIX_WRITABLE);
        config.put32(MSIX + 4, regs::BAR_MSIX);
        config.put32(MSIX + 8, regs::MSIX_PBA_OFFSET as u32 | regs::BAR_MSIX);
        config
    }

    /// Reads `out.len()` bytes at `offset`; bytes beyond the end are zero.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        for (i, byte) in out.iter_mut().enumerate() {
            *byte = offset
                .checked_add(i)
                .and_then(|o| self.bytes.get(o))
                .copied()
                .unwrap_or(0);
        }
    }

    /// Writes the writable bits of `data` at `offset`, and returns the effects.
    pub fn write(&mut self, offset: usize, data: &[u8]) -> ConfigEffects {
        let before = self.bus_master();
        let mut reset = false;
        for (i, &new) in data.iter().enumerate() {
            let Some(o) = offset.checked_add(i).filter(|&o| o < CONFIG_SIZE) else {
                break;
            };
            let mask = self.writable[o];
            self.bytes[o] = self.bytes[o] & !mask | new & mask;
            reset |= o == EXPRESS_DEVCTL + 1 && new & (DEVCTL_FLR >> 8) as u8 != 0;
        }
        if reset {
            self.reset();
        }
        let after = self.bus_master();
        ConfigEffects {
            bus_master: (before != after).then_some(after),
            reset,
        }
    }

    /// Sets the writable bits to their state after power-on.
    pub fn reset(&mut self) {
        let writable_before = self.writable;
        *self = Self::new();
        debug_assert!(writable_before == self.writable);
    }

    /// True if the function may access memory and raise interrupts.
    pub fn bus_master(&self) -> bool {
        self.get16(COMMAND) & COMMAND_BUS_MASTER != 0
    }

    /// Sets the bus master bit, for a device that misbehaves and does not let the guest clear it.
    pub fn set_bus_master(&mut self) {
        let command = self.get16(COMMAND);
        self.put16(COMMAND, command | COMMAND_BUS_MASTER);
    }

    fn get16(&self, offset: usize) -> u16 {
        u16::from_le_bytes([self.bytes[offset], self.bytes[offset + 1]])
    }

    fn put16(&mut self, offset: usize, value: u16) {
        self.bytes[offset..offset + 2].copy_from_slice(&value.to_le_bytes());
    }

    fn put32(&mut self, offset: usize, value: u32) {
        self.bytes[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
    }

    fn allow16(&mut self, offset: usize, mask: u16) {
        self.writable[offset..offset + 2].copy_from_slice(&mask.to_le_bytes());
    }

    /// Adds a memory BAR of `size` bytes. Sizing by writing ones works because only the bits above
    /// the size are writable.
    fn put_bar(&mut self, bar: u32, size: usize, flags: u32) {
        let bar = bar as usize;
        assert!(size.is_power_of_two() && bar < NUM_BARS);
        let at = BARS + bar * 4;
        self.put32(at, flags);
        let mask = !(size as u64 - 1);
        self.writable[at..at + 4].copy_from_slice(&(mask as u32).to_le_bytes());
        if flags & BAR_64BIT != 0 {
            self.writable[at + 4..at + 8].copy_from_slice(&((mask >> 32) as u32).to_le_bytes());
        }
    }
}

impl Default for ConfigSpace {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read32(config: &ConfigSpace, offset: usize) -> u32 {
        let mut out = [0; 4];
        config.read(offset, &mut out);
        u32::from_le_bytes(out)
    }

    #[test]
    fn capabilities_are_a_chain() {
        let config = ConfigSpace::new();
        let mut at = read32(&config, CAP_POINTER) as usize & 0xff;
        let mut ids = vec![];
        while at != 0 {
            let word = read32(&config, at);
            ids.push(word as u8);
            at = word as usize >> 8 & 0xff;
        }
        assert_eq!(ids, [0x10, 0x11]);
    }

    #[test]
    fn bars_report_their_size() {
        let mut config = ConfigSpace::new();
        config.write(0x18, &[0xff; 8]);
        let size = u64::from(read32(&config, 0x18) & !0xf) | u64::from(read32(&config, 0x1c)) << 32;
        assert_eq!(size.wrapping_neg(), regs::BAR_DOORBELL_SIZE as u64);
        config.write(0x10, &[0xff; 4]);
        assert_eq!(
            (read32(&config, 0x10) & !0xf).wrapping_neg(),
            regs::BAR_REGS_SIZE as u32
        );
        config.write(0x14, &[0xff; 4]);
        assert_eq!(read32(&config, 0x14), 0);
    }

    #[test]
    fn a_change_of_bus_mastering_is_reported_once() {
        let mut config = ConfigSpace::new();
        assert_eq!(config.write(4, &[6, 0]).bus_master, Some(true));
        assert_eq!(config.write(4, &[6, 4]).bus_master, None);
        assert_eq!(config.write(4, &[2, 4]).bus_master, Some(false));
    }

    #[test]
    fn function_reset_clears_the_command_word() {
        let mut config = ConfigSpace::new();
        config.write(4, &[6, 0]);
        let effects = config.write(EXPRESS_DEVCTL, &[0, 0x80]);
        assert_eq!((effects.reset, effects.bus_master), (true, Some(false)));
    }

    #[test]
    fn the_ids_are_read_only_and_accesses_past_the_end_have_no_effect() {
        let mut config = ConfigSpace::new();
        config.write(0, &[0xff; 4]);
        assert_eq!(read32(&config, 0), 0x10f5_1af4);
        config.write(CONFIG_SIZE - 2, &[1; 8]);
        config.write(usize::MAX, &[1; 8]);
        assert_eq!(read32(&config, CONFIG_SIZE - 2), 0);
        assert_eq!(read32(&config, usize::MAX - 1), 0);
    }
}
