// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A driver of a few lines: two connected queue pairs of one device over memory files, as two guests would have them.
//!
//! Everything goes through the device's real interface: registers, command slots, doorbell area, rings. The device is
//! called directly ([`Direct`]), or runs in the NIC's own engine thread ([`Threaded`]).

use rustix::fs::{fcntl_add_seals, ftruncate, memfd_create, MemfdFlags, SealFlags};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{fence, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};
use verbena_abi::cmd::*;
use verbena_abi::cqe::{self, Tail, CQE_SIZE};
use verbena_abi::ctx::{access, qp_mask, AddressVector, QpAttr, QpState, Translation};
use verbena_abi::wqe::{self, send_flags, SendWqe, Sge, WqeOpcode};
use verbena_abi::{doorbell, regs, ABI_VERSION};
use verbena_device::mem::{Access, GuestMemory};
use verbena_device::{Action, Config, Device, Registers};
use verbena_nic::engine::Engine;
use verbena_nic::guest_ram::GuestRam;
use verbena_nic::shared::Shared;
use verbena_nic::uplink::Uplink;

/// The driver's own memory: rings, tables, command slots.
const OWN: u64 = 0;
const OWN_SIZE: u64 = 16 << 20;
/// The buffers of the writing and of the written guest.
pub const SOURCE: u64 = 1 << 40;
pub const TARGET: u64 = 2 << 40;

const PD: u32 = 7;
const UAR: u32 = 1;
const LKEY: u32 = 1 << 8;
const RKEY: u32 = 2 << 8;
const CQN: u32 = 1;
const REQUESTER: u32 = 2;
const RESPONDER: u32 = 3;
/// Only a failure waits so long.
const PATIENCE: Duration = Duration::from_secs(20);
const GID: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1];

/// Entries of the send ring and of the CQ.
pub const LOG_DEPTH: u8 = 7;
/// The same as a number.
pub const DEPTH: u32 = 1 << LOG_DEPTH;
const LOG_STRIDE: u8 = wqe::log_sq_stride(false, 1, 0);

/// One RDMA WRITE.
#[derive(Clone, Copy)]
pub struct Write {
    /// Offset in the source buffer.
    pub from: u64,
    /// Offset in the target buffer.
    pub to: u64,
    /// Bytes.
    pub length: u32,
}

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
        let device = Device::new(Config::default(), registers.clone());
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
pub struct Threaded(Arc<Shared>);

impl Threaded {
    pub fn start() -> io::Result<Self> {
        let shared = Arc::new(Shared::new()?);
        shared.set_bus_master(true);
        std::thread::Builder::new().spawn({
            let shared = shared.clone();
            move || Engine::new(shared.clone(), Config::default(), Uplink::new(shared)).run()
        })?;
        Ok(Self(shared))
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

/// The driver, its memory and the device.
pub struct Driver<B> {
    pub ram: GuestRam,
    backend: B,
    /// Doorbells that had to be rung.
    pub rings: u64,
    free: u64,
    slots: u64,
    token: u32,
    area: u64,
    sq: u64,
    /// The send ring of the responder, which is used for ping-pong only.
    other_sq: u64,
    cq: u64,
    producer: u32,
    consumer: u32,
}

fn memory(ram: &mut GuestRam, backend: &mut impl Backend, addr: u64, len: u64) -> io::Result<()> {
    let fd = memfd_create("verbena-bench", MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&fd, len)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK)?;
    backend.map(addr, len, &fd)?;
    ram.map(addr, len, &fd, 0, true)?;
    // Memory that was never written is one zero page, which is not what is to be measured.
    let block = vec![0x5a; 1 << 20];
    for offset in (0..len).step_by(block.len()) {
        let part = block.len().min((len - offset) as usize);
        ram.write(addr + offset, &block[..part])
            .map_err(unreachable)?;
    }
    Ok(())
}

fn unreachable(_: verbena_device::mem::Unreachable) -> io::Error {
    io::Error::other("the driver's own memory cannot be reached")
}

impl<B: Backend> Driver<B> {
    /// A device with two connected queue pairs and a buffer of `size` bytes at each end. With `scatter` the buffers are
    /// registered in pages of 4 KiB, as a guest's are, else in one piece.
    pub fn new(mut backend: B, size: u64, scatter: bool) -> io::Result<Self> {
        let mut ram = GuestRam::new();
        memory(&mut ram, &mut backend, OWN, OWN_SIZE)?;
        memory(&mut ram, &mut backend, SOURCE, size)?;
        memory(&mut ram, &mut backend, TARGET, size)?;
        let mut driver = Self {
            backend,
            rings: 0,
            ram,
            free: 4096,
            slots: 0,
            token: 0,
            area: 0,
            sq: 0,
            other_sq: 0,
            cq: 0,
            producer: 0,
            consumer: 0,
        };
        driver.slots = driver.alloc(4096)?;
        for (register, value) in [
            (regs::VERSION_SELECT, ABI_VERSION.into()),
            (regs::CMDQ_BASE_LO, driver.slots as u32),
            (regs::CMDQ_BASE_HI, (driver.slots >> 32) as u32),
            (regs::CMDQ_SLOTS, 1),
            (regs::CMDQ_ENABLE, 1),
        ] {
            driver.backend.write(&driver.ram, register, value);
        }
        let start = Instant::now();
        while driver.backend.read(regs::STATUS) != regs::STATUS_READY {
            if start.elapsed() > PATIENCE {
                return Err(io::Error::other(
                    "the device does not take the command queue",
                ));
            }
        }
        driver.set_up(size, scatter)?;
        Ok(driver)
    }

    fn set_up(&mut self, size: u64, scatter: bool) -> io::Result<()> {
        for &table in Table::ALL {
            let addr = self.alloc(TABLE_CHUNK_SIZE as u64)?.into();
            let table = table.to_raw();
            self.command(SetTableChunk {
                table,
                addr,
                ..Default::default()
            })?;
        }
        let ring = self.ring(4096)?;
        let ci_addr = self.alloc(4096)?.into();
        self.command(CreateEq {
            log_size: 8,
            ring,
            ci_addr,
            ..Default::default()
        })?;
        let gid = SetGid {
            valid: 1,
            vlan: NO_VLAN.into(),
            gid: GID,
            ..Default::default()
        };
        self.command(gid)?;
        self.command(SetPort {
            up: 1,
            mtu: 5,
            ..Default::default()
        })?;
        self.area = self.alloc(doorbell::AREA_SIZE as u64)?;
        self.command(CreateUar {
            uar: UAR.into(),
            addr: self.area.into(),
            ..Default::default()
        })?;
        for (key, addr) in [(LKEY, SOURCE), (RKEY, TARGET)] {
            let pages = self.pages(addr, size, scatter)?;
            self.command(CreateMr {
                key: key.into(),
                pdn: PD.into(),
                access: (access::LOCAL_WRITE | access::REMOTE_WRITE).into(),
                iova: addr.into(),
                length: size.into(),
                pages,
                ..Default::default()
            })?;
        }
        self.cq = self.alloc((CQE_SIZE as u64) << LOG_DEPTH)?;
        self.command(CreateCq {
            cqn: CQN.into(),
            uar: UAR.into(),
            log_size: LOG_DEPTH,
            ring: contiguous(self.cq),
            ..Default::default()
        })?;
        for (qpn, slot) in [(REQUESTER, 0), (RESPONDER, 1)] {
            self.create_qp(qpn, slot)?;
        }
        for (qpn, peer) in [(REQUESTER, RESPONDER), (RESPONDER, REQUESTER)] {
            self.connect(qpn, peer)?;
        }
        Ok(())
    }

    fn create_qp(&mut self, qpn: u32, slot: u16) -> io::Result<()> {
        let sq = self.alloc(1 << (LOG_DEPTH + LOG_STRIDE))?;
        if qpn == REQUESTER {
            self.sq = sq;
        } else {
            self.other_sq = sq;
        }
        let rq = self.ring(4096)?;
        self.command(CreateQp {
            qpn: qpn.into(),
            pdn: PD.into(),
            send_cqn: CQN.into(),
            recv_cqn: CQN.into(),
            uar: UAR.into(),
            slot: slot.into(),
            qp_type: QpType::Rc.to_raw(),
            log_sq_size: LOG_DEPTH,
            log_sq_stride: LOG_STRIDE,
            log_rq_size: 4,
            log_rq_stride: wqe::log_rq_stride(1),
            sq: contiguous(sq),
            rq,
            max_send_sge: 1,
            max_recv_sge: 1,
            ..Default::default()
        })?;
        Ok(())
    }

    fn connect(&mut self, qpn: u32, peer: u32) -> io::Result<()> {
        use qp_mask::*;
        let attr = QpAttr {
            path_mtu: 5,
            dest_qpn: peer.into(),
            qp_access_flags: access::REMOTE_WRITE.into(),
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            port_num: 1,
            ..Default::default()
        };
        let rtr = AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER;
        let rts = SQ_PSN | TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC;
        for (state, mask) in [
            (QpState::Init, PKEY_INDEX | PORT | ACCESS_FLAGS),
            (QpState::Rtr, rtr),
            (QpState::Rts, rts),
        ] {
            let av = AddressVector {
                dgid: GID,
                dmac: Config::default().mac,
                hop_limit: 64,
                port_num: 1,
                ..Default::default()
            };
            self.command(ModifyQp {
                qpn: qpn.into(),
                mask: (mask | STATE).into(),
                attr: QpAttr {
                    qp_state: state.to_raw(),
                    ..attr
                },
                av,
                ..Default::default()
            })?;
        }
        Ok(())
    }

    /// Memory of the driver, zeroed and page aligned.
    fn alloc(&mut self, size: u64) -> io::Result<u64> {
        let at = self.free;
        self.free += size.next_multiple_of(4096);
        if self.free > OWN_SIZE {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        self.ram
            .write(at, &vec![0; size as usize])
            .map_err(unreachable)?;
        Ok(at)
    }

    fn ring(&mut self, size: u64) -> io::Result<Translation> {
        Ok(contiguous(self.alloc(size)?))
    }

    fn pages(&mut self, addr: u64, size: u64, scatter: bool) -> io::Result<Translation> {
        const PAGE: u64 = 4096;
        if !scatter {
            return Ok(contiguous(addr));
        }
        let count = size / PAGE;
        let table = self.alloc(count * 8)?;
        for i in 0..count {
            // Every other pair of pages changes places, so no run is longer than a page.
            let page = addr + (i ^ 1) * PAGE;
            self.ram
                .write(table + i * 8, &page.to_le_bytes())
                .map_err(unreachable)?;
        }
        Ok(Translation {
            addr: table.into(),
            num_pages: (count as u32).into(),
            log_page_size: PAGE.ilog2() as u8,
            levels: 1,
            ..Default::default()
        })
    }

    fn command<C: Command>(&mut self, request: C) -> io::Result<()> {
        self.token += 1;
        let header = RequestHeader {
            opcode: C::OPCODE.to_raw().into(),
            token: self.token.into(),
            ..Default::default()
        };
        let reply = self.slots + REQUEST_SIZE as u64;
        let at = self.slots;
        self.ram.write_struct(at, &header).map_err(unreachable)?;
        self.ram
            .write_struct(at + HEADER_SIZE as u64, &request)
            .map_err(unreachable)?;
        self.backend.write(&self.ram, regs::CMDQ_DOORBELL, 0);
        let start = Instant::now();
        let token = reply + std::mem::offset_of!(ReplyHeader, token) as u64;
        while self.ram.load32(token).map_err(unreachable)? != self.token {
            self.backend.work(&self.ram);
            if start.elapsed() > PATIENCE {
                return Err(io::Error::other(format!("{}: no reply", C::OPCODE.name())));
            }
        }
        let done: ReplyHeader = self.ram.read_struct(reply).map_err(unreachable)?;
        if done.status.get() != CmdStatus::Ok.to_raw() {
            return Err(io::Error::other(format!(
                "{}: status {}, syndrome {:#x}",
                C::OPCODE.name(),
                done.status.get(),
                done.syndrome.get()
            )));
        }
        Ok(())
    }

    /// Posts `writes`, each signaled, and runs the device until all have completed.
    pub fn run(&mut self, writes: &[Write]) -> io::Result<()> {
        for chunk in writes.chunks(DEPTH as usize) {
            for write in chunk {
                self.put(write).map_err(unreachable)?;
            }
            self.post().map_err(unreachable)?;
            let until = self.producer;
            let start = Instant::now();
            while self.consumer != until {
                let busy = self.backend.work(&self.ram);
                let polled = self.poll()?;
                if polled == 0 && (!busy || start.elapsed() > PATIENCE) {
                    return Err(io::Error::other(
                        "the device has stopped short of the last write",
                    ));
                }
            }
        }
        Ok(())
    }

    fn put(&mut self, write: &Write) -> Access {
        let header = SendWqe {
            opcode: WqeOpcode::RdmaWrite.to_raw(),
            flags: send_flags::SIGNALED,
            num_sge: 1,
            wr_id: u64::from(self.producer).into(),
            remote_addr: (TARGET + write.to).into(),
            rkey: RKEY.into(),
            ..Default::default()
        };
        let sge = Sge {
            addr: (SOURCE + write.from).into(),
            length: write.length.into(),
            lkey: LKEY.into(),
        };
        let at = self.sq + (u64::from(self.producer % DEPTH) << LOG_STRIDE);
        self.ram.write_struct(at, &header)?;
        self.ram.write_struct(at + wqe::DATA_OFFSET as u64, &sge)?;
        self.producer = self.producer.wrapping_add(1);
        Ok(())
    }

    /// Device specification, section 5; `verbena_abi::doorbell` has it as code for those who map the area.
    fn post(&mut self) -> Access {
        let word = |offset: usize| self.area + offset as u64;
        self.ram
            .store32(word(doorbell::sq_producer(0)), self.producer)?;
        let count = self.ram.load32(word(doorbell::qp_generation(0)))?;
        self.ram
            .store32(word(doorbell::qp_generation(0)), count.wrapping_add(1))?;
        fence(Ordering::SeqCst);
        let sleep = self.ram.load32(word(doorbell::SLEEP))?;
        if sleep & 1 != 0 && self.ram.load32(word(doorbell::RUNG))? != sleep {
            self.backend.ring(UAR);
            self.rings += 1;
            self.ram.store32(word(doorbell::RUNG), sleep)?;
        }
        Ok(())
    }

    fn poll(&mut self) -> io::Result<u32> {
        let mut count = 0;
        loop {
            let at = self.cq + u64::from(self.consumer % DEPTH) * CQE_SIZE as u64;
            let word = self
                .ram
                .load32(at + cqe::TAIL_OFFSET as u64)
                .map_err(unreachable)?;
            let Some(tail) = Tail::unpack(word, self.consumer, LOG_DEPTH) else {
                break;
            };
            if tail.status != 0 {
                return Err(io::Error::other(format!(
                    "a write ended with status {}",
                    tail.status
                )));
            }
            self.consumer = self.consumer.wrapping_add(1);
            count += 1;
        }
        if count != 0 {
            let at = self.area + doorbell::cq_consumer(0) as u64;
            self.ram.store32(at, self.consumer).map_err(unreachable)?;
        }
        Ok(count)
    }
}

/// One of two players: writes a number into the other's memory and waits for the other to do the same.
struct Player<'a> {
    ram: &'a GuestRam,
    shared: &'a Shared,
    area: u64,
    sq: u64,
    slot: usize,
    /// Where this one and the other one keep their numbers, and their keys.
    own: (u64, u32),
    other: (u64, u32),
}

impl Player<'_> {
    fn send(&self, number: u32) -> Access {
        let ram = self.ram;
        ram.store32(self.own.0 + 64, number)?;
        let at = self.sq + (u64::from((number - 1) % DEPTH) << LOG_STRIDE);
        let header = SendWqe {
            opcode: WqeOpcode::RdmaWrite.to_raw(),
            num_sge: 1,
            remote_addr: self.other.0.into(),
            rkey: self.other.1.into(),
            ..Default::default()
        };
        let sge = Sge {
            addr: (self.own.0 + 64).into(),
            length: 4.into(),
            lkey: self.own.1.into(),
        };
        ram.write_struct(at, &header)?;
        ram.write_struct(at + wqe::DATA_OFFSET as u64, &sge)?;
        ram.store32(self.area + doorbell::sq_producer(self.slot) as u64, number)?;
        // Both players count in one group, so this must be atomic.
        ram.fetch_add64(self.area + doorbell::qp_generation(0) as u64, 1)?;
        fence(Ordering::SeqCst);
        let sleep = ram.load32(self.area + doorbell::SLEEP as u64)?;
        if sleep & 1 != 0 && ram.load32(self.area + doorbell::RUNG as u64)? != sleep {
            self.shared.ring(UAR);
            ram.store32(self.area + doorbell::RUNG as u64, sleep)?;
        }
        Ok(())
    }

    fn wait(&self, number: u32) -> Access {
        while self.ram.load32(self.own.0)? != number {
            std::hint::spin_loop();
        }
        Ok(())
    }
}

impl Driver<Threaded> {
    /// Plays ping-pong between two threads that never sleep, as two virtual CPUs would, each of which takes `think` to
    /// answer; returns the round trips in seconds.
    pub fn ping_pong(&mut self, rounds: u32, think: Duration) -> Vec<f64> {
        let side = |sq, slot, own, other| Player {
            ram: &self.ram,
            shared: &self.backend.0,
            area: self.area,
            sq,
            slot,
            own,
            other,
        };
        let (here, there) = ((SOURCE, LKEY), (TARGET, RKEY));
        let ping = side(self.sq, 0, here, there);
        let pong = side(self.other_sq, 1, there, here);
        let pause = || {
            let start = Instant::now();
            while start.elapsed() < think {
                std::hint::spin_loop();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 1..=rounds {
                    let _ = pong.wait(number);
                    pause();
                    let _ = pong.send(number);
                }
            });
            (1..=rounds)
                .map(|number| {
                    let start = Instant::now();
                    let _ = ping.send(number);
                    let _ = ping.wait(number);
                    pause();
                    start.elapsed().as_secs_f64()
                })
                .collect()
        })
    }
}

fn contiguous(addr: u64) -> Translation {
    Translation {
        addr: addr.into(),
        num_pages: 1.into(),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writes_arrive<B: Backend>(backend: B, scatter: bool) {
        let size = 256 << 10;
        let mut driver = Driver::new(backend, size, scatter).unwrap();
        let data: Vec<u8> = (0..size).map(|i| (i * 7 + i / 251) as u8).collect();
        driver.ram.write(SOURCE, &data).unwrap();
        let step = 8 << 10;
        let writes: Vec<_> = (0..size)
            .step_by(step)
            .map(|at| Write {
                from: at,
                to: at,
                length: step as u32,
            })
            .collect();
        for _ in 0..20 {
            driver.run(&writes).unwrap();
        }
        let mut back = vec![0; size as usize];
        driver.ram.read(TARGET, &mut back).unwrap();
        assert!(back == data);
    }

    #[test]
    fn writes_arrive_byte_for_byte() {
        writes_arrive(Direct::new(), false);
        writes_arrive(Direct::new(), true);
        writes_arrive(Threaded::start().unwrap(), true);
    }

    /// Gaps around the time after which the engine falls asleep: each post is noticed, by polling or by its doorbell.
    #[test]
    fn single_posts_with_gaps_are_noticed() {
        let count = std::env::var("VERBENA_POSTS").map_or(300, |n| n.parse().unwrap());
        let mut driver = Driver::new(Threaded::start().unwrap(), 4096, false).unwrap();
        let write = [Write {
            from: 0,
            to: 0,
            length: 8,
        }];
        let mut random: u64 = 1;
        for _ in 0..count {
            random = random
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            std::thread::sleep(Duration::from_micros((random >> 33) % 2000));
            driver.run(&write).unwrap();
        }
        // Some gaps are longer than the engine stays awake.
        assert!(driver.rings > 0);
    }
}
