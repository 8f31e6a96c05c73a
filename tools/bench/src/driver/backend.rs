// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A device and what runs it: the device model, called directly, or the NIC's engine in a thread of its own.

use super::Port;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use verbena_device::misbehave::Misbehaviour;
use verbena_device::{Action, Config, Device, Registers};
use verbena_nic::common::Common;
use verbena_nic::engine::Engine;
use verbena_nic::guest_ram::GuestRam;
use verbena_nic::network::Network;
use verbena_nic::shared::Shared;

/// A device and what runs it.
pub trait Backend {
    /// Gives it memory.
    fn map(&mut self, addr: u64, len: u64, fd: &OwnedFd) -> io::Result<()>;
    /// A register is written.
    fn write(&mut self, ram: &GuestRam, offset: usize, value: u32);
    /// A register is read.
    fn read(&self, offset: usize) -> u32;
    /// The doorbell of an area is rung.
    fn ring(&mut self, uar: u32);
    /// Lets it work. False: it has nothing to do.
    fn work(&mut self, ram: &GuestRam) -> bool;
}

/// The device model, called directly.
pub struct Direct {
    device: Device,
    registers: Arc<Registers>,
    now: u64,
}

impl Direct {
    pub fn new() -> Self {
        let registers = Arc::<Registers>::default();
        let config = Config {
            mac: Port::of(1).mac,
            ..Config::default()
        };
        let device = Device::new(config, registers.clone());
        Self {
            device,
            registers,
            now: 0,
        }
    }
}

impl Backend for Direct {
    fn map(&mut self, _addr: u64, _len: u64, _fd: &OwnedFd) -> io::Result<()> {
        // It uses the driver's own map.
        Ok(())
    }

    fn write(&mut self, ram: &GuestRam, offset: usize, value: u32) {
        match self.registers.write(offset, value) {
            Action::None => {}
            Action::Reset => self.device.reset(),
            Action::EnableCmdq => self.device.enable_cmdq(ram),
            Action::Command(slot) => self.device.command(slot),
        }
    }

    fn read(&self, offset: usize) -> u32 {
        self.registers.read(offset)
    }

    fn ring(&mut self, uar: u32) {
        self.device.ring(uar);
    }

    fn work(&mut self, ram: &GuestRam) -> bool {
        self.now += 1000;
        let next = self.device.run_slice(ram, self.now);
        self.device.take_interrupts();
        next.busy
    }
}

/// The NIC's engine in a thread of its own, as behind QEMU.
pub struct Threaded(pub(super) Arc<Shared>);

impl Threaded {
    pub fn start() -> io::Result<Self> {
        let [only] = Self::start_all(false)?;
        Ok(only)
    }

    /// Two in one process; packets between them go by reference or as frames.
    pub fn start_two(by_reference: bool) -> io::Result<[Self; 2]> {
        Self::start_all(by_reference)
    }

    fn start_all<const N: usize>(neighbours: bool) -> io::Result<[Self; N]> {
        let common = Arc::new(Common::new()?);
        let all: [_; N] = std::array::from_fn(|n| {
            let shared = Shared::beside(&common, Misbehaviour::default());
            shared.set_bus_master(true);
            (Arc::new(shared), Port::of(n as u8 + 1).mac)
        });
        let vms = all.clone();
        std::thread::Builder::new().spawn(move || {
            let network = Arc::new(Network::new(&common, &vms, vec![]));
            let vms = vms.into_iter().map(|(shared, mac)| {
                let config = Config {
                    mac,
                    neighbours,
                    ..Config::default()
                };
                (shared, config)
            });
            Engine::new(vms.collect(), network).run();
        })?;
        Ok(all.map(|(shared, _)| Self(shared)))
    }
}

impl Backend for Threaded {
    fn map(&mut self, addr: u64, len: u64, fd: &OwnedFd) -> io::Result<()> {
        self.0.ram_mut().map(addr, len, fd, 0, true)
    }

    fn write(&mut self, _ram: &GuestRam, offset: usize, value: u32) {
        match self.0.regs.write(offset, value) {
            Action::None => {}
            action => self.0.act(action),
        }
    }

    fn read(&self, offset: usize) -> u32 {
        self.0.regs.read(offset)
    }

    fn ring(&mut self, uar: u32) {
        self.0.ring(uar);
    }

    fn work(&mut self, _ram: &GuestRam) -> bool {
        std::hint::spin_loop();
        true
    }
}
