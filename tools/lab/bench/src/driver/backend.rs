// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The device under test and its executor: the device model, called directly, or the NIC's engine,
//! in its own thread or whenever the driver waits.

use super::{Link, Port};
use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use verbena_device::{Action, Config, Device, Registers};
use verbena_nic::engine::Engine;
use verbena_nic::guest_ram::GuestRam;
use verbena_nic::vm_state::VmState;

use super::link::Process;

/// Interface to a device and its executor.
pub trait Backend {
    /// Maps memory into the device's address space.
    fn map(&mut self, addr: u64, len: u64, fd: &OwnedFd) -> io::Result<()>;
    /// Writes a register of the device.
    fn write(&mut self, ram: &GuestRam, offset: usize, value: u32);
    /// Reads a register of the device.
    fn read(&self, offset: usize) -> u32;
    /// Rings the doorbell of an area.
    fn ring(&mut self, uar: u32);
    /// Runs the device. Returns false if the device has no work.
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
        // The device model gets the driver's own memory map with each call.
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

/// The NIC's engine in its own thread, as with QEMU.
pub struct Threaded(pub(super) Arc<VmState>);

impl Threaded {
    pub fn start() -> io::Result<Self> {
        let mut all = Self::start_all(vec![Process::new(
            &[Port::of(1).mac],
            &Config::default(),
            vec![],
        )?])?;
        all.pop().ok_or(io::ErrorKind::NotFound.into())
    }

    /// Starts two devices that are joined by the link. Each process of the link has an engine
    /// thread.
    pub fn start_two(link: Link) -> io::Result<[Self; 2]> {
        let all = Self::start_all(link.processes([1, 2].map(|n| Port::of(n).mac))?)?;
        all.try_into().map_err(|_| io::ErrorKind::NotFound.into())
    }

    fn start_all(processes: Vec<Process>) -> io::Result<Vec<Self>> {
        let mut all = vec![];
        for Process { network, vms } in processes {
            all.extend(vms.iter().map(|(shared, _)| Self(shared.clone())));
            std::thread::Builder::new().spawn(move || Engine::new(vms, network).run())?;
        }
        Ok(all)
    }
}

impl Backend for Threaded {
    fn map(&mut self, addr: u64, len: u64, fd: &OwnedFd) -> io::Result<()> {
        self.0.ram_mut().map(addr, len, fd, 0, true)
    }

    fn write(&mut self, _ram: &GuestRam, offset: usize, value: u32) {
        match self.0.regs.write(offset, value) {
            Action::None => {}
            action => self.0.post_action(action),
        }
    }

    fn read(&self, offset: usize) -> u32 {
        self.0.regs.read(offset)
    }

    fn ring(&mut self, uar: u32) {
        self.0.ring_doorbell(uar);
    }

    fn work(&mut self, _ram: &GuestRam) -> bool {
        std::hint::spin_loop();
        true
    }
}

/// The engines of two devices in the driver's own thread. All engines run when the driver waits, so
/// that the scheduler does not influence the measurement.
pub struct Stepped {
    device: Threaded,
    engines: Rc<RefCell<Vec<Engine>>>,
}

impl Stepped {
    /// Creates two devices that are joined by the link.
    pub fn two(link: Link) -> io::Result<[Self; 2]> {
        let processes = link.processes([1, 2].map(|n| Port::of(n).mac))?;
        let vms = processes.iter().flat_map(|process| &process.vms);
        let devices: Vec<_> = vms.map(|(shared, _)| Threaded(shared.clone())).collect();
        let engines = processes.into_iter().map(|p| Engine::new(p.vms, p.network));
        let engines = Rc::new(RefCell::new(engines.collect()));
        let all = devices.into_iter().map(|device| Self {
            device,
            engines: Rc::clone(&engines),
        });
        let all: Vec<_> = all.collect();
        all.try_into().map_err(|_| io::ErrorKind::NotFound.into())
    }
}

impl Backend for Stepped {
    fn map(&mut self, addr: u64, len: u64, fd: &OwnedFd) -> io::Result<()> {
        self.device.map(addr, len, fd)
    }

    fn write(&mut self, ram: &GuestRam, offset: usize, value: u32) {
        self.device.write(ram, offset, value);
    }

    fn read(&self, offset: usize) -> u32 {
        self.device.read(offset)
    }

    fn ring(&mut self, uar: u32) {
        self.device.ring(uar);
    }

    fn work(&mut self, _ram: &GuestRam) -> bool {
        let mut engines = self.engines.borrow_mut();
        for engine in engines.iter_mut() {
            engine.turn();
        }
        // A packet may still be in flight between the engines, so the device counts as busy.
        true
    }
}
