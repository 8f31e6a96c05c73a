// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The fake driver: bring-up of the device, commands and events.

use super::ram::{GuestWords, Ram, BASE};
use crate::error::CmdError;
use crate::memory::GuestMemory;
use crate::objects::eq::Event;
use crate::{Config, Device, Registers};
use std::cell::Cell;
use std::collections::HashMap;
use std::fmt::{Debug, Write};
use std::sync::Arc;
use verbena_abi::cmd::*;
use verbena_abi::cqe::phase;
use verbena_abi::ctx::Translation;
use verbena_abi::eqe::{Eqe, EventType, EQE_SIZE, LOG_EQE_SIZE};
use verbena_abi::syndrome::Syndrome;
use verbena_abi::{doorbell, regs};
use zerocopy::{FromBytes, IntoBytes};

/// Logarithm of the number of entries of an event queue.
pub const LOG_EQ: u8 = 4;

/// The fake driver and its device.
#[derive(Debug)]
pub struct Driver {
    /// Memory of the fake guest.
    pub ram: Ram,
    /// Device that the driver drives.
    pub device: Device,
    /// Registers of BAR 0.
    pub regs: Arc<Registers>,
    /// Time of the device clock in nanoseconds.
    pub now: u64,
    /// DMA address of doorbell area 0.
    pub area: u64,
    /// Number of writes to the doorbell BAR since the last run.
    pub rings: Cell<u32>,
    /// Number of interrupts taken, by vector.
    pub interrupts: HashMap<u32, u32>,
    /// Number of slices that the last command took.
    pub slices: u32,
    /// Logarithm of the number of entries of the event queues that are created next.
    pub log_eq: u8,
    /// One of this number of commands is checked to change nothing if it fails.
    pub watch: u32,
    eqs: HashMap<u32, EqView>,
    tables: HashMap<Table, u64>,
    free: u64,
    cmdq: u64,
    token: u32,
    numbers: u32,
    slots: u16,
    freed: Vec<u16>,
    /// Answer of the host about entries of the GID table, if the device asks: the syndrome of a
    /// refusal, or none to accept them.
    pub denies: Option<Syndrome>,
}

#[derive(Clone, Copy, Debug)]
struct EqView {
    ring: u64,
    ci_addr: u64,
    ci: u32,
    log_size: u8,
}

/// MAC address of the net device, with which the driver sets its GIDs.
pub const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// Returns the first differences of two descriptions as text.
fn differences(one: &str, other: &str) -> String {
    let pairs = one.split(", ").zip(other.split(", "));
    let changed = pairs.filter(|(a, b)| a != b);
    let changed = changed.map(|(a, b)| format!("{a} to {b}"));
    changed.take(9).collect::<Vec<_>>().join("; ")
}

impl Driver {
    /// Creates a device that is up: area 0, event queues 0 and 1, GID 0 (10.0.0.1) and GID 1
    /// (10.0.0.2), port up.
    pub fn new() -> Self {
        Self::with(Config::default())
    }

    /// Creates a device that is up, with this configuration.
    pub fn with(config: Config) -> Self {
        let mut driver = Self::cold(config);
        driver.bring_up();
        driver
    }

    /// Creates a device in its state after power-on.
    pub fn cold(config: Config) -> Self {
        let regs = Arc::new(Registers::default());
        Self {
            ram: Ram::new(32 << 20),
            device: Device::new(config, regs.clone()),
            regs,
            now: 1_000_000,
            area: 0,
            rings: Cell::new(0),
            interrupts: HashMap::new(),
            slices: 0,
            log_eq: LOG_EQ,
            watch: 1,
            eqs: HashMap::new(),
            tables: HashMap::new(),
            free: BASE,
            cmdq: 0,
            token: 0,
            numbers: FIRST_QPN,
            slots: 0,
            freed: Vec::new(),
            denies: None,
        }
    }

    /// Gives the device memory for one chunk of a context table. Returns the chunk's DMA address.
    pub fn give_chunk(&mut self, table: Table, chunk: u32) -> u64 {
        let addr = self.alloc(TABLE_CHUNK_SIZE as u64);
        self.must(&SetTableChunk {
            table: table.to_raw(),
            chunk: chunk.into(),
            addr: addr.into(),
            ..Default::default()
        });
        addr
    }

    /// Gives the device memory for the contexts `C` of all numbers below `count`. The device
    /// already has the first chunk.
    pub fn room_for<C>(&mut self, table: Table, count: u32) {
        let chunks = (count as usize * size_of::<C>()).div_ceil(TABLE_CHUNK_SIZE);
        for chunk in 1..chunks as u32 {
            self.give_chunk(table, chunk);
        }
    }

    /// Brings the device up as a driver's probe does.
    pub fn bring_up(&mut self) {
        self.cmdq = self.alloc(4096);
        self.regs
            .write(regs::VERSION_SELECT, verbena_abi::ABI_VERSION.into());
        self.regs.write(regs::CMDQ_BASE_LO, self.cmdq as u32);
        self.regs
            .write(regs::CMDQ_BASE_HI, (self.cmdq >> 32) as u32);
        self.regs.write(regs::CMDQ_SLOTS, 8);
        self.regs.write(regs::CMDQ_ENABLE, 1);
        self.device.enable_cmdq(&self.ram);
        assert_eq!(self.regs.read(regs::STATUS), regs::STATUS_READY);
        for table in Table::ALL {
            let addr = self.give_chunk(*table, 0);
            self.tables.insert(*table, addr);
        }
        self.area = self.alloc(doorbell::AREA_SIZE as u64);
        self.must(&CreateUar {
            addr: self.area.into(),
            ..Default::default()
        });
        for eqn in 0..2 {
            self.create_eq(eqn).unwrap();
        }
        // The agents of an InfiniBand port configure it.
        if self.device_config().link_layer == LinkLayer::Ethernet {
            for index in 0..2u16 {
                self.set_gid(index, [10, 0, 0, 1 + index as u8]);
            }
            self.set_port(true);
        }
    }

    /// Allocates zeroed memory, aligned to a page.
    pub fn alloc(&mut self, bytes: u64) -> u64 {
        let at = self.free;
        self.free += bytes.next_multiple_of(4096);
        assert!(
            self.ram.contains(at, bytes),
            "the memory of the test is used up"
        );
        at
    }

    /// Returns the DMA address of the first chunk of a context table.
    pub fn table(&self, table: Table) -> u64 {
        self.tables.get(&table).copied().unwrap_or(0)
    }

    /// Issues a command and returns its reply.
    pub fn cmd<C: Command>(&mut self, request: &C) -> Result<C::Reply, CmdError> {
        self.raw_cmd(C::OPCODE.to_raw(), request.as_bytes())
            .map(|reply| C::Reply::read_from_prefix(&reply).unwrap().0)
    }

    /// Issues a command with any bytes as its request, and returns the bytes of the reply.
    pub fn raw_cmd(&mut self, opcode: u16, payload: &[u8]) -> Result<Vec<u8>, CmdError> {
        let before = (self.token % self.watch == 0).then(|| self.objects());
        // The check takes too long with thousands of objects.
        if before.as_ref().is_some_and(|words| words.len() > 60_000) {
            self.watch = u32::MAX;
        }
        self.begin_raw(0, opcode, payload);
        self.slices = 0;
        while !self.is_answered(0) {
            let next = self.device.run_slice(&self.ram, self.now);
            self.slices += 1;
            if self.device.next_claim().is_some() {
                self.device.decide_claim(&self.ram, self.denies);
            }
            assert!(
                next.busy || self.is_answered(0),
                "the device has no work, and has not replied to command {opcode:#x}"
            );
        }
        let (status, syndrome) = self.answer(0);
        if status != CmdStatus::Ok {
            let syndrome = Syndrome::from_raw(syndrome).unwrap();
            if let Some(before) = before {
                let changed = differences(&before, &self.objects());
                assert!(
                    changed.is_empty(),
                    "command {opcode:#x} failed, and has changed {changed}"
                );
            }
            return Err(CmdError { status, syndrome });
        }
        let at = self.cmdq + REQUEST_SIZE as u64;
        let mut out = vec![0; PAYLOAD_SIZE];
        self.ram.read(at + HEADER_SIZE as u64, &mut out).unwrap();
        Ok(out)
    }

    /// Returns a text of all objects that commands create and change.
    pub fn objects(&self) -> String {
        let (device, shared) = (&self.device, &self.device.shared);
        let mut words = String::new();
        let objects: [&dyn Debug; 8] = [
            &device.qps,
            &shared.tables,
            &shared.uars,
            &shared.eqs,
            &shared.cqs,
            &shared.srqs,
            &shared.mrs,
            &shared.port,
        ];
        for object in objects {
            let _ = writeln!(words, "{object:x?}");
        }
        words
    }

    fn slot_at(&self, slot: u32) -> u64 {
        self.cmdq + u64::from(slot) * SLOT_SIZE as u64
    }

    /// Returns the number of commands that were issued.
    pub fn commands(&self) -> u32 {
        self.token
    }

    /// Returns the configuration with which the device was started.
    pub fn device_config(&self) -> &Config {
        self.device.shared.config()
    }

    /// Writes a command to a slot and rings the doorbell for the slot.
    pub fn begin_cmd<C: Command>(&mut self, slot: u32, request: &C) {
        self.begin_raw(slot, C::OPCODE.to_raw(), request.as_bytes());
    }

    fn begin_raw(&mut self, slot: u32, opcode: u16, payload: &[u8]) {
        self.token += 1;
        let mut bytes = [0; REQUEST_SIZE];
        let header = RequestHeader {
            opcode: opcode.into(),
            token: self.token.into(),
            ..Default::default()
        };
        bytes[..HEADER_SIZE].copy_from_slice(header.as_bytes());
        bytes[HEADER_SIZE..HEADER_SIZE + payload.len()].copy_from_slice(payload);
        self.ram.write(self.slot_at(slot), &bytes).unwrap();
        self.device.command(slot);
    }

    /// True if the request in a slot has its reply.
    pub fn is_answered(&self, slot: u32) -> bool {
        let at = self.slot_at(slot);
        let request: RequestHeader = self.ram.read_struct(at).unwrap();
        let reply: ReplyHeader = self.ram.read_struct(at + REQUEST_SIZE as u64).unwrap();
        reply.token.get() == request.token.get()
    }

    /// Returns status and syndrome of the reply in a slot.
    pub fn answer(&self, slot: u32) -> (CmdStatus, u16) {
        let at = self.slot_at(slot) + REQUEST_SIZE as u64;
        let reply: ReplyHeader = self.ram.read_struct(at).unwrap();
        let status = CmdStatus::from_raw(reply.status.get()).unwrap();
        (status, reply.syndrome.get() as u16)
    }

    /// Issues a command that has to succeed.
    pub fn must<C: Command>(&mut self, request: &C) -> C::Reply {
        match self.cmd(request) {
            Ok(reply) => reply,
            Err(e) => panic!("{:?}: {e:?}", C::OPCODE),
        }
    }

    /// Issues QUERY_STATS for the port, or for the queue pair `qpn`, with room for `room` counters.
    pub fn query_stats(&mut self, qpn: Option<u32>, room: u32) -> Result<Vec<u64>, CmdError> {
        let addr = self.alloc(u64::from(room) * 8);
        let kind = match qpn {
            Some(_) => StatsKind::Qp,
            None => StatsKind::Port,
        };
        let told = self.cmd(&QueryStats {
            kind: kind.to_raw(),
            port: u8::from(qpn.is_none()),
            id: qpn.unwrap_or(0).into(),
            addr: addr.into(),
            count: room.into(),
            ..Default::default()
        })?;
        let words = self.bytes(addr, told.count.get() as usize * 8);
        let counter = |word: &[u8]| u64::from_le_bytes(word.try_into().unwrap());
        Ok(words.chunks_exact(8).map(counter).collect())
    }

    /// Returns a number that no object has.
    pub fn number(&mut self) -> u32 {
        self.numbers += 1;
        self.numbers
    }

    /// Returns a doorbell slot that no object has.
    pub fn slot(&mut self) -> u16 {
        if let Some(slot) = self.freed.pop() {
            return slot;
        }
        self.slots += 1;
        self.slots - 1
    }

    /// Frees a doorbell slot and clears its words for the next user.
    pub fn free_slot(&mut self, slot: u16) {
        use doorbell::Words;
        let at = slot as usize;
        let words = self.words();
        words.store(doorbell::sq_producer(at), 0);
        words.store(doorbell::rq_producer(at), 0);
        words.store(doorbell::cq_consumer(at), 0);
        words.store64_release(doorbell::cq_arm(at), 0);
        self.freed.push(slot);
    }

    /// Creates an event queue on the vector with the same number.
    pub fn create_eq(&mut self, eqn: u32) -> Result<(), CmdError> {
        let ring = self.alloc((EQE_SIZE as u64) << self.log_eq);
        let ci_addr = self.alloc(4);
        self.cmd(&CreateEq {
            eqn: eqn.into(),
            vector: (eqn as u16).into(),
            log_size: self.log_eq,
            log_entry_size: LOG_EQE_SIZE,
            ring: flat(ring),
            ci_addr: ci_addr.into(),
            ..Default::default()
        })?;
        let view = EqView {
            ring,
            ci_addr,
            ci: 0,
            log_size: self.log_eq,
        };
        self.eqs.insert(eqn, view);
        Ok(())
    }

    /// Returns the addresses of an event queue's ring and of its consumer index.
    pub fn eq_memory(&self, eqn: u32) -> (u64, u64) {
        self.eqs
            .get(&eqn)
            .map_or((0, 0), |view| (view.ring, view.ci_addr))
    }

    /// Returns the address of the command slots.
    pub fn cmdq_memory(&self) -> u64 {
        self.cmdq
    }

    /// Sets a GID of the net device [`MAC`].
    pub fn set_gid(&mut self, index: u16, ip: [u8; 4]) {
        self.set_gid_of(index, ip, MAC);
    }

    /// Sets a GID of a net device with this MAC address.
    pub fn set_gid_of(&mut self, index: u16, ip: [u8; 4], mac: [u8; 6]) {
        self.must(&SetGid {
            index: index.into(),
            valid: 1,
            vlan: NO_VLAN.into(),
            mac,
            gid: gid(ip),
            port: 1,
            gid_type: GID_TYPE_ROCE_V2,
            ..Default::default()
        });
    }

    /// Sets the state of the netdev.
    pub fn set_port(&mut self, up: bool) {
        self.must(&SetPort {
            up: up.into(),
            mtu: 3,
            port: 1,
            ..Default::default()
        });
    }

    /// Returns doorbell area 0.
    pub fn words(&self) -> GuestWords<'_> {
        GuestWords {
            ram: &self.ram,
            base: self.area,
        }
    }

    /// Runs the device until it has nothing to do at the present time. Panics if that takes too
    /// many slices.
    pub fn run(&mut self) {
        for _ in 0..100_000 {
            let next = self.device.run_slice(&self.ram, self.now);
            self.take_interrupts();
            if self.rings.replace(0) > 0 {
                self.device.ring(0);
                continue;
            }
            if !next.busy {
                return;
            }
        }
        panic!("the device still has work after 100000 slices");
    }

    /// Advances the clock by `nanoseconds`, and runs the device at each of its deadlines.
    pub fn pass(&mut self, nanoseconds: u64) {
        let end = self.now + nanoseconds;
        for _ in 0..100_000 {
            self.run();
            let next = self.device.run_slice(&self.ram, self.now);
            self.take_interrupts();
            match next.deadline {
                Some(at) if at <= end => self.now = self.now.max(at),
                _ => {
                    self.now = end;
                    self.run();
                    return;
                }
            }
        }
        panic!("the device still has a deadline to meet after 100000 slices");
    }

    fn take_interrupts(&mut self) {
        let raised = self.device.take_interrupts();
        for vector in (0..32).filter(|v| raised & (1 << v) != 0) {
            *self.interrupts.entry(vector).or_default() += 1;
        }
    }

    /// Takes all new events of a queue.
    pub fn events(&mut self, eqn: u32) -> Vec<Event> {
        std::iter::from_fn(|| self.event(eqn)).collect()
    }

    /// Takes the next event of a queue, if there is one.
    pub fn event(&mut self, eqn: u32) -> Option<Event> {
        let event = self.next_event(eqn)?;
        let view = self.eqs.get_mut(&eqn)?;
        view.ci += 1;
        self.ram.store32(view.ci_addr, view.ci).unwrap();
        Some(event)
    }

    /// Returns the next event of a queue without taking it.
    pub fn next_event(&self, eqn: u32) -> Option<Event> {
        let view = self.eqs.get(&eqn)?;
        let at = view.ring + u64::from(view.ci % (1 << view.log_size)) * EQE_SIZE as u64;
        let entry: Eqe = self.ram.read_struct(at).unwrap();
        let tail = entry.tail.get();
        let kind = EventType::from_raw(tail as u8)?;
        if (tail >> 31 != 0) != phase(view.ci, view.log_size) {
            return None;
        }
        Some(Event {
            kind,
            number: entry.number.get(),
            syndrome: entry.syndrome.get(),
        })
    }
}

impl Default for Driver {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the translation of contiguous memory.
pub fn flat(addr: u64) -> Translation {
    Translation {
        addr: addr.into(),
        num_pages: 1.into(),
        ..Default::default()
    }
}

/// Returns the GID of an IPv4 address.
pub fn gid(ip: [u8; 4]) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[10..12].fill(0xff);
    gid[12..].copy_from_slice(&ip);
    gid
}
