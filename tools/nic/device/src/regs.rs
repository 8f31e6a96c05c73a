// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The registers of BAR 0, shared by the engine and the front, which answers the guest's reads at
//! once.
//!
//! No function waits: a write that needs the engine returns an [`Action`], which the front sends to
//! the engine.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use verbena_abi::regs::*;
use verbena_abi::syndrome::Syndrome;
use verbena_abi::{ABI_VERSION, ABI_VERSION_MIN};

/// The work of the engine after a register write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The write needs no work of the engine.
    None,
    /// Reset the device ([`CONTROL_RESET`]). [`STATUS_RESETTING`] is set already.
    Reset,
    /// Start the command queue with the written address and size.
    EnableCmdq,
    /// Execute the request in the command slot with this number.
    Command(u32),
}

/// The registers of a device.
#[derive(Debug, Default)]
pub struct Registers {
    status: AtomicU32,
    version_select: AtomicU32,
    fatal: AtomicU32,
    base_lo: AtomicU32,
    base_hi: AtomicU32,
    slots: AtomicU32,
    heartbeat: AtomicU32,
}

impl Registers {
    /// Returns the value of a register. Unknown offsets read as 0.
    pub fn read(&self, offset: usize) -> u32 {
        match offset {
            MAGIC => MAGIC_VALUE,
            VERSION => u32::from(ABI_VERSION_MIN) << 16 | u32::from(ABI_VERSION),
            STATUS => self.status.load(SeqCst),
            VERSION_SELECT => self.version_select.load(SeqCst),
            VECTORS => NUM_VECTORS,
            FATAL_SYNDROME => self.fatal.load(SeqCst),
            CMDQ_BASE_LO => self.base_lo.load(SeqCst),
            CMDQ_BASE_HI => self.base_hi.load(SeqCst),
            CMDQ_SLOTS => self.slots.load(SeqCst),
            HEARTBEAT => self.heartbeat.load(SeqCst),
            _ => 0,
        }
    }

    /// Writes a register and returns the work for the engine. Writes to unknown offsets are
    /// ignored.
    pub fn write(&self, offset: usize, value: u32) -> Action {
        match offset {
            CONTROL if value == CONTROL_RESET => {
                self.status.fetch_or(STATUS_RESETTING, SeqCst);
                return Action::Reset;
            }
            VERSION_SELECT => self.version_select.store(value, SeqCst),
            CMDQ_BASE_LO => self.base_lo.store(value, SeqCst),
            CMDQ_BASE_HI => self.base_hi.store(value, SeqCst),
            CMDQ_SLOTS => self.slots.store(value, SeqCst),
            CMDQ_ENABLE if value == 1 => return Action::EnableCmdq,
            CMDQ_DOORBELL => return Action::Command(value),
            _ => {}
        }
        Action::None
    }

    /// Returns the address and the number of the command slots, as the driver wrote them.
    pub fn cmdq(&self) -> (u64, u32) {
        let base =
            u64::from(self.base_hi.load(SeqCst)) << 32 | u64::from(self.base_lo.load(SeqCst));
        (base, self.slots.load(SeqCst))
    }

    /// True if the driver selected a version that has
    /// [`CmdStatus::Denied`](verbena_abi::cmd::CmdStatus::Denied).
    pub(crate) fn knows_denied(&self) -> bool {
        self.version_select.load(SeqCst) >= 12
    }

    /// True if the driver selected a version that the device supports.
    pub fn version_ok(&self) -> bool {
        let chosen = self.version_select.load(SeqCst);
        (u32::from(ABI_VERSION_MIN)..=u32::from(ABI_VERSION)).contains(&chosen)
    }

    /// Sets the status to ready: the command queue runs.
    pub fn set_ready(&self) {
        self.status.fetch_or(STATUS_READY, SeqCst);
    }

    /// Makes the device fatal up to the next reset. The syndrome of the first cause stays.
    pub fn set_fatal(&self, cause: Syndrome) {
        let raw = u32::from(cause.to_raw());
        let _ = self.fatal.compare_exchange(0, raw, SeqCst, SeqCst);
        self.status.fetch_or(STATUS_FATAL, SeqCst);
    }

    /// True if the device is fatal.
    pub fn is_fatal(&self) -> bool {
        self.status.load(SeqCst) & STATUS_FATAL != 0
    }

    /// Returns the registers to their state after power-on. [`STATUS`] becomes 0 last, because the
    /// driver waits for that.
    pub fn reset(&self) {
        self.version_select.store(0, SeqCst);
        self.base_lo.store(0, SeqCst);
        self.base_hi.store(0, SeqCst);
        self.slots.store(0, SeqCst);
        self.fatal.store(0, SeqCst);
        self.status.store(0, SeqCst);
    }

    /// Increments the heartbeat, which shows that the engine is alive.
    pub fn beat(&self) {
        self.heartbeat.fetch_add(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_shows_resetting_until_the_engine_has_reset_the_device() {
        let regs = Registers::default();
        regs.set_fatal(Syndrome::EngineFailure);
        assert_eq!(regs.write(CONTROL, CONTROL_RESET), Action::Reset);
        assert_ne!(regs.read(STATUS) & STATUS_RESETTING, 0);
        regs.reset();
        assert_eq!(regs.read(STATUS), 0);
        assert_eq!(regs.read(FATAL_SYNDROME), 0);
    }

    #[test]
    fn each_register_is_read_and_written_as_specified() {
        let regs = Registers::default();
        let written = [VERSION_SELECT, CMDQ_BASE_LO, CMDQ_BASE_HI, CMDQ_SLOTS];
        for (i, &at) in written.iter().enumerate() {
            assert_eq!(regs.write(at, 100 + i as u32), Action::None);
        }
        for (i, &at) in written.iter().enumerate() {
            assert_eq!(regs.read(at), 100 + i as u32);
        }
        assert_eq!(regs.cmdq(), (102 << 32 | 101, 103));
        let version = u32::from(ABI_VERSION_MIN) << 16 | u32::from(ABI_VERSION);
        for (at, value) in [
            (MAGIC, 0x4e42_5256),
            (VERSION, version),
            (VECTORS, 32),
            (STATUS, 0),
            (HEARTBEAT, 0),
        ] {
            assert_eq!(regs.write(at, 77), Action::None);
            assert_eq!(regs.read(at), value, "read only");
        }
        assert_eq!(regs.read(0x1000), 0);
        assert_eq!(regs.write(CONTROL, 2), Action::None);
        assert_eq!(regs.write(CMDQ_ENABLE, 0), Action::None);
        assert_eq!(regs.write(CMDQ_ENABLE, 2), Action::None);
        assert_eq!(regs.write(CMDQ_ENABLE, 1), Action::EnableCmdq);
        assert_eq!(regs.write(CMDQ_DOORBELL, 9), Action::Command(9));
        assert_eq!(regs.read(STATUS), 0);
        regs.set_ready();
        regs.beat();
        assert_eq!(
            (regs.read(STATUS), regs.read(HEARTBEAT), regs.is_fatal()),
            (STATUS_READY, 1, false)
        );
        regs.set_fatal(Syndrome::EngineFailure);
        assert_eq!(
            (regs.read(STATUS), regs.is_fatal()),
            (STATUS_READY | STATUS_FATAL, true)
        );
        regs.reset();
        for at in [
            VERSION_SELECT,
            CMDQ_BASE_LO,
            CMDQ_BASE_HI,
            CMDQ_SLOTS,
            STATUS,
            FATAL_SYNDROME,
        ] {
            assert_eq!(regs.read(at), 0);
        }
        // A reset does not set the heartbeat back, so a driver that waits for a change sees one.
        assert_eq!(regs.read(HEARTBEAT), 1);
    }

    #[test]
    fn versions_below_and_above_are_not_supported() {
        let regs = Registers::default();
        let (min, max) = (u32::from(ABI_VERSION_MIN), u32::from(ABI_VERSION));
        for (version, spoken) in [
            (min, true),
            (max, true),
            (min - 1, false),
            (max + 1, false),
            (max | 1 << 16, false),
        ] {
            regs.write(VERSION_SELECT, version);
            assert_eq!(regs.version_ok(), spoken, "{version:#x}");
        }
    }

    #[test]
    fn the_first_fatal_cause_stays() {
        let regs = Registers::default();
        regs.set_fatal(Syndrome::EqUnwritable);
        regs.set_fatal(Syndrome::EngineFailure);
        assert_eq!(
            regs.read(FATAL_SYNDROME),
            u32::from(Syndrome::EqUnwritable.to_raw())
        );
    }
}
