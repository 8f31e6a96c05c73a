// SPDX-License-Identifier: GPL-2.0

//! The command queue. Device specification, "Commands".
//!
//! [`exec`](CommandQueue::exec) takes a free slot, writes the request, rings the doorbell, and
//! sleeps until the interrupt handler has seen the reply's token. Up to [`SLOTS`] commands are
//! outstanding. If the device does not answer a command in time, the command fails with
//! [`CommandError::Dead`] and the driver declares the device dead. The slot stays taken for the
//! rest of this life, since the device may still write to it.
//!
//! [`give`](CommandQueue::give) gives memory to the device together with the command that names it,
//! and [`take_back`](CommandQueue::take_back) takes it back. [`exec_with`](CommandQueue::exec_with)
//! lends memory for the duration of one command. Only this module makes a [`ReleaseProof`], from a
//! reply.

pub(crate) mod lent;

use crate::{
    abi::{
        cmd::{
            CmdStatus,
            Command,
            Opcode,
            ReplyHeader,
            RequestHeader,
            HEADER_SIZE,
            REQUEST_SIZE,
            SLOT_SIZE, //
        },
        regs,
        Le16,
        Le32, //
    },
    bars::Bars,
    cmdq::lent::{
        Borrowed,
        Lent, //
    },
    health::{
        DeathCause,
        Health, //
    }, //
};
use base::{
    bind::Binding,
    dma::{
        Chunk,
        Payer, //
    },
    errno::eopnotsupp,
    sync::Completion, //
};
use core::mem::offset_of;
use kernel::{
    fmt,
    new_condvar,
    new_mutex,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        Arc,
        CondVar,
        Mutex, //
    },
    time::{
        Delta,
        Instant,
        Monotonic, //
    }, //
};
use rdma::trace;
use zerocopy::{
    FromZeros,
    IntoBytes, //
};

/// Number of command slots. A bit mask of all slots fits into a `u32`.
const SLOTS: u32 = 32;

/// Time limit of a command. It is shorter than the kernel's limit for a hung task.
const TIMEOUT: Delta = Delta::from_millis(10_000);

/// Interval at which a waiting command checks for its reply, in case the interrupt is missing. Also
/// the time after which the interrupt of a reply counts as missing.
const REPLY_POLL_MS: u32 = 200;

/// Proof that the device has let go of an object, or has never taken it.
pub(crate) struct ReleaseProof(());

/// Permission to lend memory to a command that is being made and is executed next.
pub(crate) struct Lender(());

/// Reason why a command has no reply.
pub(crate) enum CommandError {
    /// The device refused the command, with this syndrome. A failed command has changed nothing.
    Refused(Error, ReleaseProof, u32),
    /// The device is dead. The driver does not know which part of the command the device executed.
    Dead,
}

impl From<CommandError> for Error {
    fn from(failure: CommandError) -> Self {
        match failure {
            CommandError::Refused(e, ..) => e,
            CommandError::Dead => EIO,
        }
    }
}

/// State that the driver keeps for a slot.
#[pin_data]
struct CommandSlot {
    /// Token of the command that waits in this slot, or 0.
    token: Atomic<u32>,
    #[pin]
    done: Completion,
}

struct FreeSlots {
    slots: u32,
    last_token: u32,
}

/// Command queue of one life of the device.
#[pin_data]
pub(crate) struct CommandQueue {
    bars: Arc<Bars>,
    health: Arc<Health>,
    memory: Lent<Arc<Chunk>>,
    slots: KVec<Pin<KBox<CommandSlot>>>,
    #[pin]
    free: Mutex<FreeSlots>,
    #[pin]
    freed: CondVar,
    /// Number of replies that were found before their interrupt was handled.
    early: Atomic<u32>,
    /// Number of replies whose interrupt was missing.
    unannounced: Atomic<u32>,
    /// 1 from a missing interrupt to the next interrupt, else 0.
    is_silent: Atomic<u32>,
}

impl CommandQueue {
    pub(crate) fn new(
        dma: &Binding,
        bars: Arc<Bars>,
        health: Arc<Health>,
    ) -> impl PinInit<Self, Error> {
        let dma = dma.clone();
        pin_init::pin_init_scope(move || {
            let memory = Chunk::alloc(&dma, Payer::Kernel, SLOT_SIZE * SLOTS as usize)?;
            let memory = Lent::new(Arc::new(memory, GFP_KERNEL)?, &health);
            let mut slots = KVec::with_capacity(SLOTS as usize, GFP_KERNEL)?;
            for _ in 0..SLOTS {
                let slot = KBox::pin_init::<Error>(
                    try_pin_init!(CommandSlot {
                        token: Atomic::new(0),
                        done <- Completion::new(),
                    }? Error),
                    GFP_KERNEL,
                )?;
                slots.push(slot, GFP_KERNEL)?;
            }
            Ok::<_, Error>(try_pin_init!(Self {
                bars,
                health,
                memory,
                slots,
                free <- new_mutex!(FreeSlots { slots: u32::MAX >> (32 - SLOTS), last_token: 0 }),
                freed <- new_condvar!(),
                early: Atomic::new(0),
                unannounced: Atomic::new(0),
                is_silent: Atomic::new(0),
            }? Error))
        })
    }

    /// Returns the DMA address of the slots and their number, for the device's registers.
    pub(crate) fn slot_memory(&self) -> (u64, u32) {
        (self.memory.lend(&Lender(())).addr(), SLOTS)
    }

    /// Executes a command and returns its reply. Process context.
    pub(crate) fn exec<C: Command>(&self, request: &C) -> Result<C::Reply, CommandError> {
        self.exec_at(self.take_slot()?, request)
    }

    /// Executes a command in the slot that was taken for it, and frees the slot unless the device
    /// is dead.
    fn exec_at<C: Command>(
        &self,
        (index, token): (u32, u32),
        request: &C,
    ) -> Result<C::Reply, CommandError> {
        let begin = Instant::<Monotonic>::now();
        let answered = self.exec_in(index, token, C::OPCODE, request.as_bytes());
        let reply = answered.map(|()| self.read_reply::<C>(index));
        let error = match &reply {
            Ok(Ok(_)) => 0,
            Ok(Err(CommandError::Refused(error, ..))) => error.to_errno(),
            Ok(Err(CommandError::Dead)) | Err(_) => EIO.to_errno(),
        };
        trace::command(self.health.name(), C::OPCODE.name(), error, begin.elapsed());
        let reply = reply?;
        if !self.health.is_dead() {
            self.free.lock().slots |= 1 << index;
            self.freed.notify_one();
        }
        reply
    }

    /// Executes a command that gives `memory` to the device. If the device refuses, the driver has
    /// the memory back at once. `request` makes the command and lends the memory for it. It is not
    /// called if the device is dead, because a dead device keeps the memory that was lent to it.
    pub(crate) fn give<C: Command>(
        &self,
        request: impl FnOnce(&Lender) -> C,
        memory: &[&dyn Borrowed],
    ) -> Result<C::Reply> {
        let slot = self.take_slot()?;
        self.exec_at(slot, &request(&Lender(())))
            .map_err(|failure| {
                if let CommandError::Refused(_, proof, _) = &failure {
                    memory.iter().for_each(|lent| lent.returned(proof));
                }
                failure.into()
            })
    }

    /// Executes a command for whose duration the device has `memory`. The memory comes back with
    /// the reply. `request` makes the command and lends the memory for it.
    pub(crate) fn exec_with<C: Command>(
        &self,
        request: impl FnOnce(&Lender) -> C,
        memory: &[&dyn Borrowed],
    ) -> Result<C::Reply> {
        let reply = self.give(request, memory)?;
        memory
            .iter()
            .for_each(|lent| lent.returned(&ReleaseProof(())));
        Ok(reply)
    }

    /// Executes a command that gives `memory` to the device in place of `old`, which comes back. If
    /// the device refuses, `memory` comes back instead.
    pub(crate) fn exchange<C: Command>(
        &self,
        request: impl FnOnce(&Lender) -> C,
        memory: &[&dyn Borrowed],
        old: &[&dyn Borrowed],
    ) -> Result<C::Reply> {
        let reply = self.give(request, memory)?;
        old.iter().for_each(|lent| lent.returned(&ReleaseProof(())));
        Ok(reply)
    }

    /// Executes a command by which `memory` comes back. Returns `None` if the device is dead. The
    /// life has then ended, and [`Lent`] decides whether the memory can be freed.
    ///
    /// The command cannot fail otherwise. The driver takes back only memory that is unused, so a
    /// device that refuses breaks the contract and is declared dead.
    pub(crate) fn take_back<C: Command>(
        &self,
        request: &C,
        memory: &[&dyn Borrowed],
    ) -> Option<C::Reply> {
        match self.exec(request) {
            Ok(reply) => {
                let proof = ReleaseProof(());
                memory.iter().for_each(|lent| lent.returned(&proof));
                return Some(reply);
            }
            Err(CommandError::Refused(..)) => self
                .health
                .declare_dead(DeathCause::Protocol("it refused to destroy an object")),
            Err(CommandError::Dead) => {}
        }
        self.health.wait_end();
        None
    }

    /// Executes a command like [`take_back`](Self::take_back), for memory that may still be in use.
    /// Returns `EBUSY`, and takes nothing back, if the device reports that the memory is in use and
    /// `is_known` confirms that it may be.
    pub(crate) fn take_back_unused<C: Command>(
        &self,
        request: &C,
        memory: &[&dyn Borrowed],
        is_known: impl FnOnce() -> bool,
    ) -> Result {
        match self.exec(request) {
            Ok(_) => memory
                .iter()
                .for_each(|lent| lent.returned(&ReleaseProof(()))),
            Err(CommandError::Refused(e, ..)) if e == EBUSY && is_known() => return Err(e),
            Err(CommandError::Refused(..)) => {
                self.health
                    .declare_dead(DeathCause::Protocol("it refused to destroy an object"));
                self.health.wait_end();
            }
            Err(CommandError::Dead) => self.health.wait_end(),
        }
        Ok(())
    }

    /// Writes the state of the slots and the outstanding commands, for debugfs.
    pub(crate) fn show(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (free, last) = {
            let free = self.free.lock();
            (free.slots, free.last_token)
        };
        writeln!(
            to,
            "slots {SLOTS}, free {}, commands so far {last}",
            free.count_ones()
        )?;
        writeln!(
            to,
            "replies found before their interrupt {}, without one {}",
            self.early.load(Relaxed),
            self.unannounced.load(Relaxed)
        )?;
        for (index, slot) in (0u32..).zip(self.slots.iter()) {
            let token = slot.token.load(Acquire);
            if token == 0 {
                continue;
            }
            let offset = Self::request_offset(index);
            let header = self.memory.read::<RequestHeader>(offset);
            let opcode = header.ok().and_then(|h| Opcode::from_raw(h.opcode.get()));
            let name = opcode.map_or("?", |opcode| opcode.name());
            let answered = self.reply_token(index) == token;
            writeln!(
                to,
                "slot {index}, token {token}, {name}, answered {answered}"
            )?;
        }
        Ok(())
    }

    /// Handles an interrupt of vector 0: wakes the callers whose replies have arrived. Returns true
    /// if there was a reply. Any context.
    pub(crate) fn interrupt(&self) -> bool {
        let mut any = false;
        for (index, slot) in (0u32..).zip(self.slots.iter()) {
            let token = slot.token.load(Acquire);
            if token != 0 && self.reply_token(index) == token {
                slot.done.complete();
                any = true;
            }
        }
        any
    }

    /// Wakes all callers after the device has died. Process context.
    pub(crate) fn abort(&self) {
        for slot in self.slots.iter() {
            slot.done.complete();
        }
        // The lock makes sure that a caller of `take_slot` that saw a living device already sleeps.
        let _free = self.free.lock();
        self.freed.notify_all();
    }

    fn take_slot(&self) -> Result<(u32, u32), CommandError> {
        let mut free = self.free.lock();
        loop {
            if self.health.is_dead() {
                return Err(CommandError::Dead);
            }
            if free.slots != 0 {
                break;
            }
            self.freed.wait(&mut free);
        }
        let index = free.slots.trailing_zeros();
        free.slots &= !(1 << index);
        free.last_token = free.last_token.wrapping_add(1).max(1);
        Ok((index, free.last_token))
    }

    fn request_offset(index: u32) -> usize {
        index as usize * SLOT_SIZE
    }

    fn reply_offset(index: u32) -> usize {
        Self::request_offset(index) + REQUEST_SIZE
    }

    fn reply_token(&self, index: u32) -> u32 {
        let offset = Self::reply_offset(index) + offset_of!(ReplyHeader, token);
        // The offset is never out of bounds, and 0 is not a token.
        Le32::from_raw(self.memory.load32_acquire(offset).unwrap_or(0)).get()
    }

    /// Writes the request into the slot and waits for the reply.
    fn exec_in(
        &self,
        index: u32,
        token: u32,
        opcode: Opcode,
        request: &[u8],
    ) -> Result<(), CommandError> {
        let header = RequestHeader {
            opcode: Le16::new(opcode.to_raw()),
            token: Le32::new(token),
            ..Default::default()
        };
        // The payload after this request is cleared, so that nothing of the slot's former request
        // remains.
        let mut bytes = [0u8; REQUEST_SIZE];
        let (head, tail) = bytes.split_at_mut(HEADER_SIZE);
        head.copy_from_slice(header.as_bytes());
        let (Some(slot), Some(payload)) = (
            self.slots.get(index as usize),
            tail.get_mut(..request.len()),
        ) else {
            return Err(self.contract_violation("a request does not fit into its command slot"));
        };
        payload.copy_from_slice(request);
        if self
            .memory
            .write_bytes(Self::request_offset(index), &bytes)
            .is_err()
        {
            return Err(self.contract_violation("a command slot does not exist"));
        }

        slot.done.reinit();
        slot.token.store(token, Release);
        // The MMIO write orders the writes of the request before itself.
        self.bars.write(regs::CMDQ_DOORBELL, index);

        let result = self.wait(slot, index, token, opcode);
        slot.token.store(0, Relaxed);
        result
    }

    /// Declares the device dead because of a condition that the sizes in the contract rule out.
    fn contract_violation(&self, what: &'static str) -> CommandError {
        self.health.declare_dead(DeathCause::Protocol(what));
        CommandError::Dead
    }

    fn wait(
        &self,
        slot: &CommandSlot,
        index: u32,
        token: u32,
        opcode: Opcode,
    ) -> Result<(), CommandError> {
        let begin = Instant::<Monotonic>::now();
        loop {
            let late = begin.elapsed() >= TIMEOUT;
            let woken = slot.done.wait_ms(REPLY_POLL_MS);
            // A late interrupt for the slot's former command may have woken this thread, so the
            // token decides.
            if self.reply_token(index) == token {
                if woken {
                    self.is_silent.store(0, Relaxed);
                } else {
                    self.await_interrupt(slot, opcode);
                }
                return Ok(());
            }
            if self.health.is_dead() {
                return Err(CommandError::Dead);
            }
            if late {
                break;
            }
            if !woken {
                self.check_status();
            }
        }
        if !self.health.is_dead() {
            dev_err!(self.health.pdev(), "command {} timed out\n", opcode.name());
            self.health.declare_dead(DeathCause::CommandTimeout);
        }
        Err(CommandError::Dead)
    }

    /// Waits for the interrupt of a reply that is there, and complains if it is missing.
    ///
    /// The reply may have been written just before the thread looked. On a busy host, QEMU then has
    /// not delivered its interrupt yet, and the device has done nothing wrong. While no interrupt
    /// arrives at all, the wait would only delay each command.
    fn await_interrupt(&self, slot: &CommandSlot, opcode: Opcode) {
        if self.is_silent.load(Relaxed) == 0 && slot.done.wait_ms(REPLY_POLL_MS) {
            self.early.fetch_add(1, Relaxed);
            return;
        }
        self.is_silent.store(1, Relaxed);
        self.unannounced.fetch_add(1, Relaxed);
        if self.health.may_log() {
            dev_warn!(
                self.health.pdev(),
                "the device replied to command {}, but raised no interrupt within {} ms\n",
                opcode.name(),
                REPLY_POLL_MS
            );
        }
    }

    /// Reads the status register, and declares the device dead if it reports a fatal error, is
    /// gone, or was reset.
    pub(crate) fn check_status(&self) {
        match self.bars.read(regs::STATUS) {
            crate::bars::PCI_ERROR_RESPONSE => self.health.declare_dead(DeathCause::Removed),
            status if status & regs::STATUS_FATAL != 0 => self
                .health
                .declare_dead(DeathCause::Device(self.bars.read(regs::FATAL_SYNDROME))),
            // The device is ready from the beginning of a life. Only a reset clears this bit.
            status if status & regs::STATUS_READY == 0 => self
                .health
                .declare_dead(DeathCause::Protocol("it was reset, and not by this driver")),
            _ => {}
        }
    }

    /// Reads the reply of the device, whose token has been seen.
    fn read_reply<C: Command>(&self, index: u32) -> Result<C::Reply, CommandError> {
        let offset = Self::reply_offset(index);
        let mut reply = C::Reply::new_zeroed();
        let (Ok(header), Ok(())) = (
            self.memory.read::<ReplyHeader>(offset),
            self.memory
                .read_bytes(offset + HEADER_SIZE, reply.as_mut_bytes()),
        ) else {
            return Err(self.contract_violation("a reply does not fit into its command slot"));
        };
        let syndrome = header.syndrome.get();
        let error = match CmdStatus::from_raw(header.status.get()) {
            Some(CmdStatus::Ok) => return Ok(reply),
            Some(CmdStatus::Fatal) => {
                self.health.declare_dead(DeathCause::Device(syndrome));
                return Err(CommandError::Dead);
            }
            Some(CmdStatus::Busy) => EBUSY,
            Some(CmdStatus::Exists) => EEXIST,
            Some(CmdStatus::NoResources) => ENOMEM,
            Some(CmdStatus::Unsupported) => eopnotsupp(),
            Some(CmdStatus::BadAddress) => EFAULT,
            Some(CmdStatus::Denied) => EACCES,
            Some(_) => EINVAL,
            // The driver does not know whether the device executed the command.
            None => {
                return Err(
                    self.contract_violation("it replied to a command with an unknown status")
                )
            }
        };
        if self.health.ratelimit.may_log() {
            dev_info!(
                self.health.pdev(),
                "command {} failed: {}, syndrome {:#06x}\n",
                C::OPCODE.name(),
                CmdStatus::from_raw(header.status.get()).map_or("?", |status| status.name()),
                syndrome
            );
        }
        Err(CommandError::Refused(error, ReleaseProof(()), syndrome))
    }
}
