// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The PCI function as QEMU sees it. It runs on its own thread and answers at once, in
//! any state of the engine, because QEMU blocks a virtual CPU on each answer and gives up when none
//! comes.

use crate::guest_ram;
use crate::pci;
use crate::peer_process;
use crate::vfio_user::{DmaMap, PciDevice, REGION_CONFIG};
use crate::vm_state::{UnreachableRange, VmState};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use verbena_abi::regs;
use verbena_abi::syndrome::Syndrome;
use verbena_device::memory::GuestMemory;
use verbena_device::misbehave::Kind;
use verbena_device::Action;

/// The PCI function of one VM.
pub struct PciFunction {
    shared: Arc<VmState>,
    config: pci::ConfigSpace,
    /// Process ID of QEMU, if it is known.
    qemu: Option<i32>,
    /// Ranges that are surely guest RAM but cannot be used: the device cannot work with such a
    /// range.
    unusable: Vec<(u64, u64)>,
    /// True if a range of `unusable` was logged as an error.
    refused: bool,
    /// True if a reset was requested that will not be done (only where the NIC misbehaves).
    unconfirmed: bool,
}

impl PciFunction {
    /// Returns the function after power-on.
    pub fn new(shared: Arc<VmState>, qemu: Option<i32>) -> Self {
        Self {
            shared,
            config: pci::ConfigSpace::new(),
            qemu,
            unusable: Vec::new(),
            refused: false,
            unconfirmed: false,
        }
    }

    /// Ends the function after QEMU has disconnected: from here on there is no DMA, no interrupt
    /// and no memory of the guest, and the engine resets the device.
    pub fn disconnect(&mut self) {
        self.shared.set_bus_master(false);
        (0..regs::NUM_VECTORS).for_each(|vector| self.shared.set_vector(vector, None));
        let unmapped = self.shared.ram_mut().clear();
        self.shared.unreachable().clear();
        self.shared.begin_reset();
        drop(unmapped);
    }

    fn read_register(&self, offset: usize) -> u32 {
        let value = self.shared.regs.read(offset);
        match offset {
            // Of two resets in a row, the end of the first one is not reported.
            regs::STATUS if self.shared.is_resetting() || self.unconfirmed => {
                value | regs::STATUS_RESETTING
            }
            regs::STATUS if !self.unusable.is_empty() => value | regs::STATUS_FATAL,
            // A reset does not bring lost memory back.
            regs::STATUS if self.shared.ram().is_lost() => value | regs::STATUS_FATAL,
            regs::FATAL_SYNDROME if self.shared.ram().is_lost() => {
                u32::from(Syndrome::EngineFailure.to_raw())
            }
            regs::FATAL_SYNDROME if !self.unusable.is_empty() => {
                u32::from(Syndrome::CmdQueueUnreachable.to_raw())
            }
            regs::VERSION => match self.shared.misbehave.get(Kind::NewestVersion) {
                newest if (value >> 16..=value & 0xffff).contains(&newest) => {
                    value & !0xffff | newest
                }
                _ => value,
            },
            _ => value,
        }
    }

    fn write_register(&mut self, offset: usize, value: u32) {
        if offset == regs::CONTROL {
            if value == regs::CONTROL_RESET {
                self.unconfirmed = self.shared.misbehave.is(Kind::ResetUnconfirmed);
                if !self.unconfirmed {
                    self.shared.begin_reset();
                }
            }
            return;
        }
        match self.shared.regs.write(offset, value) {
            Action::None => {}
            action => self.shared.post_action(action),
        }
    }
}

impl PciFunction {
    /// Writes a word of configuration space that has the device misbehave, if the NIC was built for
    /// tests.
    fn write_misbehaviour(&self, offset: usize, data: &[u8]) {
        let Ok(word) = <[u8; 4]>::try_from(data) else {
            return;
        };
        let value = u32::from_le_bytes(word);
        if self.shared.misbehave.write_config(offset, value) {
            log::info!("misbehaviour: the guest has written {value} at offset {offset:#x}");
            self.shared.request_slice();
        }
    }
}

/// True if a range must be guest RAM: it is writable and holds the start of low, extended or high
/// memory. ROMs and the video memory of an emulated card also come without a file, and need none.
fn is_main_memory(map: &DmaMap) -> bool {
    const STARTS: [u64; 3] = [0, 1 << 20, 1 << 32];
    map.writable
        && STARTS
            .iter()
            .any(|s| s.checked_sub(map.addr).is_some_and(|o| o < map.len))
}

/// Largest size of writable memory that is not taken for RAM, in bytes. A longer range may be a
/// hot-plugged DIMM, or a large BAR of another device.
const MAX_DEVICE_MEMORY_BYTES: u64 = 64 << 20;

impl PciFunction {
    /// True if a large range is adjacent to guest RAM, as that of a second NUMA node is.
    fn is_beside_main_memory(&self, map: &DmaMap) -> bool {
        let end = map.addr.wrapping_add(map.len);
        let touches = |addr: u64, len: u64| addr.wrapping_add(len) == map.addr || addr == end;
        let beside = |addr: Option<u64>| addr.is_some_and(|at| self.shared.ram().contains(at, 1));
        beside(map.addr.checked_sub(1))
            || beside(Some(end))
            || self.unusable.iter().any(|&(addr, len)| touches(addr, len))
    }
}

impl PciDevice for PciFunction {
    fn region_size(&self, region: u32) -> u64 {
        (match region {
            regs::BAR_REGS => regs::BAR_REGS_SIZE,
            regs::BAR_DOORBELL => regs::BAR_DOORBELL_SIZE,
            regs::BAR_MSIX => regs::BAR_MSIX_SIZE,
            REGION_CONFIG => pci::CONFIG_SIZE,
            _ => 0,
        }) as u64
    }

    fn vectors(&self) -> u32 {
        regs::NUM_VECTORS
    }

    fn read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        match region {
            REGION_CONFIG => {
                self.config.read(offset as usize, data);
                if let Some(word) = self.shared.misbehave.read_config(offset as usize) {
                    let count = data.len().min(4);
                    data[..count].copy_from_slice(&word.to_le_bytes()[..count]);
                }
            }
            // Registers are aligned words; any other access reads as 0.
            regs::BAR_REGS if data.len() == 4 && offset % 4 == 0 => {
                data.copy_from_slice(&self.read_register(offset as usize).to_le_bytes());
            }
            regs::BAR_DOORBELL => {
                data.fill(0);
                let clock = self.shared.now().to_le_bytes();
                // An access may have any width; the guest has to combine the parts of the clock if
                // it reads less than the whole.
                let within = offset as usize % regs::DOORBELL_STRIDE;
                for (at, byte) in (within..).zip(data) {
                    let place = at.checked_sub(regs::DOORBELL_CLOCK);
                    *byte = place.and_then(|p| clock.get(p)).copied().unwrap_or(0);
                }
            }
            // QEMU keeps the MSI-X table itself.
            _ => data.fill(0),
        }
        Ok(())
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        match region {
            regs::BAR_DOORBELL => self
                .shared
                .ring_doorbell((offset / regs::DOORBELL_STRIDE as u64) as u32),
            regs::BAR_REGS => {
                if let (Ok(word), true) = (<[u8; 4]>::try_from(data), offset % 4 == 0) {
                    self.write_register(offset as usize, u32::from_le_bytes(word));
                }
            }
            REGION_CONFIG => {
                self.write_misbehaviour(offset as usize, data);
                let mut effects = self.config.write(offset as usize, data);
                let cleared = effects.bus_master == Some(false) && !effects.reset;
                if cleared && self.shared.misbehave.is(Kind::BusMasterStuck) {
                    self.config.set_bus_master();
                    effects.bus_master = None;
                }
                if let Some(on) = effects.bus_master {
                    log::debug!("bus mastering {}", if on { "on" } else { "off" });
                    self.shared.set_bus_master(on);
                }
                if effects.reset {
                    log::debug!("function-level reset");
                    self.unconfirmed = false;
                    self.shared.begin_reset();
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn dma_map(&mut self, map: DmaMap) -> io::Result<()> {
        let (addr, len) = (map.addr, map.len);
        let private = |fd| {
            self.qemu
                .is_some_and(|qemu| peer_process::is_private(qemu, fd))
        };
        let fault = match &map.fd {
            None => "is not shared with the NIC",
            Some(fd) if private(fd) => "is not shared with the NIC",
            // An access after the file was truncated would raise SIGBUS.
            Some(fd) if !guest_ram::cannot_shrink(fd) => "is in a file that can be truncated",
            Some(_) => "",
        };
        let Some(fd) = map.fd.as_ref().filter(|_| fault.is_empty()) else {
            let is_large = map.writable && len > MAX_DEVICE_MEMORY_BYTES;
            if is_main_memory(&map) || is_large && self.is_beside_main_memory(&map) {
                // QEMU offers the same memory again and again while the firmware runs.
                let level = if self.refused {
                    log::Level::Debug
                } else {
                    log::Level::Error
                };
                self.refused = true;
                log::log!(
                    level,
                    "guest RAM at {addr:#x} {fault}, so the device is in a fatal error: start QEMU with \
                     -object memory-backend-memfd,id=m,size=SIZE,share=on -machine memory-backend=m"
                );
                self.unusable.push((addr, len));
            } else if is_large {
                log::error!(
                    "the device cannot reach guest memory: the range of {len:#x} bytes at {addr:#x} {fault}. \
                     If the range is RAM (a hot-plugged DIMM, another NUMA node), work requests with a buffer in it fail: \
                     give it a backend -object memory-backend-memfd,id=ID,size=SIZE,share=on. \
                     If it is a BAR of another device, nothing is wrong"
                );
            } else {
                log::debug!(
                    "ignored, because it is no RAM: {len:#x} bytes at {addr:#x}, which {fault}"
                );
            }
            if is_main_memory(&map) || is_large {
                let mut all = self.shared.unreachable();
                all.retain(|range| (range.addr, range.len) != (addr, len));
                all.push(UnreachableRange {
                    addr,
                    len,
                    why: fault,
                });
            }
            return Ok(());
        };
        log::debug!("QEMU maps {len:#x} bytes of RAM at {addr:#x}");
        let result = self
            .shared
            .ram_mut()
            .map(addr, len, fd, map.offset, map.writable);
        if let Err(e) = &result {
            log::error!("cannot map {len:#x} bytes of guest RAM at {addr:#x}: {e}");
        }
        result
    }

    fn dma_unmap(&mut self, range: Option<(u64, u64)>) -> io::Result<()> {
        // The lock is granted between two slices, so no access is in progress.
        let mut ram = self.shared.ram_mut();
        let Some((addr, len)) = range else {
            let unmapped = ram.clear();
            drop((ram, unmapped));
            self.unusable.clear();
            self.shared.unreachable().clear();
            return Ok(());
        };
        let unmapped = ram.unmap(addr, len)?;
        drop(ram);
        let count = unmapped.count();
        log::debug!("QEMU unmaps {len:#x} bytes at {addr:#x}: {count} ranges of RAM");
        drop(unmapped);
        self.unusable.retain(|r| *r != (addr, len));
        let mut all = self.shared.unreachable();
        all.retain(|range| (range.addr, range.len) != (addr, len));
        Ok(())
    }

    fn set_vector(&mut self, vector: u32, eventfd: Option<OwnedFd>) {
        self.shared.set_vector(vector, eventfd);
    }

    fn reset(&mut self) -> io::Result<()> {
        log::debug!("reset of the PCI function by QEMU");
        self.unconfirmed = false;
        self.config.reset();
        self.shared.set_bus_master(false);
        self.shared.begin_reset();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{fcntl_add_seals, ftruncate, memfd_create, MemfdFlags, SealFlags};

    fn function() -> PciFunction {
        PciFunction::new(Arc::new(VmState::new().unwrap()), None)
    }

    fn register(function: &mut PciFunction, offset: usize) -> u32 {
        let mut data = [0; 4];
        function
            .read(regs::BAR_REGS, offset as u64, &mut data)
            .unwrap();
        u32::from_le_bytes(data)
    }

    fn map(addr: u64, len: u64, writable: bool) -> DmaMap {
        DmaMap {
            addr,
            len,
            offset: 0,
            writable,
            fd: None,
        }
    }

    #[test]
    fn main_memory_that_is_not_shared_is_a_fatal_error_until_it_is_unmapped() {
        let mut function = function();
        function.dma_map(map(0xc_0000, 0x2_0000, false)).unwrap();
        function
            .dma_map(map(0xfd00_0000, 0x100_0000, true))
            .unwrap();
        assert_eq!(register(&mut function, regs::STATUS), 0);
        function.dma_map(map(0, 0xa_0000, true)).unwrap();
        assert_eq!(register(&mut function, regs::STATUS), regs::STATUS_FATAL);
        assert_ne!(register(&mut function, regs::FATAL_SYNDROME), 0);
        function.dma_unmap(Some((0, 0xa_0000))).unwrap();
        assert_eq!(register(&mut function, regs::STATUS), 0);
    }

    #[test]
    fn large_memory_that_is_not_shared_is_listed_wherever_it_is() {
        let mut function = function();
        let fd = memfd_create("ram", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, 4096).unwrap();
        fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        let shared = DmaMap {
            fd: Some(fd),
            ..map(1 << 32, 4096, true)
        };
        function.dma_map(shared).unwrap();
        let unreachable = |function: &PciFunction| -> Vec<(u64, u64)> {
            let all = function.shared.unreachable();
            all.iter().map(|range| (range.addr, range.len)).collect()
        };
        let (far, node, large) = (1 << 40, (1 << 32) + 4096, MAX_DEVICE_MEMORY_BYTES + 4096);
        // Ranges as long as the memory of a graphics card, and read-only ranges, are ignored.
        function
            .dma_map(map(far, MAX_DEVICE_MEMORY_BYTES, true))
            .unwrap();
        function.dma_map(map(far + large, large, false)).unwrap();
        assert_eq!(unreachable(&function), []);
        // A hot-plugged DIMM: the device works with the other memory.
        function.dma_map(map(far, large, true)).unwrap();
        assert_eq!(unreachable(&function), [(far, large)]);
        assert_eq!(register(&mut function, regs::STATUS), 0);
        // A second NUMA node, which begins where the shared memory ends.
        function.dma_map(map(node, large, true)).unwrap();
        assert_eq!(register(&mut function, regs::STATUS), regs::STATUS_FATAL);
        // A third node, which begins where the second ends.
        function.dma_map(map(node + large, large, true)).unwrap();
        assert_eq!(unreachable(&function).len(), 3);
        for addr in [node, node + large] {
            assert_eq!(register(&mut function, regs::STATUS), regs::STATUS_FATAL);
            function.dma_unmap(Some((addr, large))).unwrap();
        }
        assert_eq!(register(&mut function, regs::STATUS), 0);
        assert_eq!(unreachable(&function), [(far, large)]);
        function.dma_unmap(None).unwrap();
        assert_eq!(unreachable(&function), []);
    }

    #[test]
    fn main_memory_in_a_file_that_can_be_truncated_is_a_fatal_error() {
        let mut function = function();
        let fd = memfd_create("ram", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, 4096).unwrap();
        let with = |fd: &OwnedFd| DmaMap {
            fd: Some(fd.try_clone().unwrap()),
            ..map(0, 4096, true)
        };
        function.dma_map(with(&fd)).unwrap();
        assert_eq!(register(&mut function, regs::STATUS), regs::STATUS_FATAL);
        function.dma_unmap(Some((0, 4096))).unwrap();
        fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        function.dma_map(with(&fd)).unwrap();
        assert_eq!(register(&mut function, regs::STATUS), 0);
        // A part of a range cannot be unmapped.
        assert!(function.dma_unmap(Some((0, 2048))).is_err());
        function.dma_unmap(Some((0, 4096))).unwrap();
    }

    #[test]
    fn after_qemu_has_disconnected_nothing_of_its_guest_is_left() {
        let mut function = function();
        let fd = memfd_create("ram", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, 4096).unwrap();
        fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        let shared = DmaMap {
            fd: Some(fd),
            ..map(0, 4096, true)
        };
        function.dma_map(shared).unwrap();
        function.set_vector(
            0,
            Some(memfd_create("vector", MemfdFlags::empty()).unwrap()),
        );
        function.write(REGION_CONFIG, 4, &[6, 0]).unwrap();
        assert!(function.shared.is_gate_open());
        function.disconnect();
        assert!(!function.shared.is_gate_open() && function.shared.is_resetting());
        let ram = function.shared.ram();
        assert_eq!(ram.size(), 0);
        function.shared.raise(&ram, 1);
        let lost = &function.shared.counts.interrupts_lost;
        assert_eq!(lost.load(std::sync::atomic::Ordering::Relaxed), 1);
    }

    #[test]
    fn a_reset_of_the_function_ends_bus_mastering() {
        let mut function = function();
        function.write(REGION_CONFIG, 4, &[6, 0]).unwrap();
        assert!(function.shared.is_gate_open());
        function.reset().unwrap();
        // The gate also stays closed after the engine has done the reset.
        let _ = function.shared.take_mail(0, false);
        function.shared.end_reset();
        assert!(!function.shared.is_resetting() && !function.shared.is_gate_open());
        function.write(REGION_CONFIG, 4, &[6, 0]).unwrap();
        assert!(function.shared.is_gate_open());
    }

    #[test]
    fn accesses_that_are_not_aligned_words_have_no_effect() {
        let mut function = function();
        function
            .write(regs::BAR_REGS, regs::CMDQ_BASE_LO as u64, &[1; 8])
            .unwrap();
        function
            .write(regs::BAR_REGS, regs::CMDQ_BASE_LO as u64 + 1, &[1; 4])
            .unwrap();
        assert_eq!(register(&mut function, regs::CMDQ_BASE_LO), 0);
        let mut wide = [1; 8];
        function.read(regs::BAR_REGS, 0, &mut wide).unwrap();
        assert_eq!(wide, [0; 8]);
    }

    #[test]
    fn writes_reach_the_engine() {
        let mut function = function();
        function
            .write(regs::BAR_DOORBELL, 5 * 0x1_0000 + 8, &[0; 4])
            .unwrap();
        function
            .write(regs::BAR_REGS, regs::CMDQ_DOORBELL as u64, &[3, 0, 0, 0])
            .unwrap();
        function.write(REGION_CONFIG, 4, &[6, 0]).unwrap();
        assert!(function.shared.is_gate_open());
        let mut seen = vec![];
        function.shared.take_doorbells(|uar| seen.push(uar));
        assert_eq!(seen, [5]);
        assert_eq!(
            function.shared.take_mail(0, false).actions,
            [Action::Command(3)]
        );
        function
            .write(regs::BAR_REGS, regs::CONTROL as u64, &[1, 0, 0, 0])
            .unwrap();
        assert!(!function.shared.is_gate_open());
        assert_eq!(
            register(&mut function, regs::STATUS),
            regs::STATUS_RESETTING
        );
    }
}
