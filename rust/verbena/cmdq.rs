// SPDX-License-Identifier: GPL-2.0

//! The command queue. Device specification, "Commands".
//!
//! [`exec`](CommandQueue::exec) takes a free slot, writes the request, rings, and sleeps until the
//! interrupt handler has seen the reply's token. Up to [`SLOTS`] commands are outstanding. A command
//! that is not answered in time ends in `EIO` and the device is declared dead: its slot stays taken
//! for the rest of this life, since the device may still write to it.

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
    health::{
        Cause,
        Health, //
    },
};
use core::mem::offset_of;
use kernel::{
    new_condvar, new_mutex,
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
};
use rdma::{
    bind::Binding,
    dma::Chunk,
    errno::eopnotsupp,
    sync::Completion, //
};
use zerocopy::{
    FromZeros,
    IntoBytes, //
};

/// Slots: a mask of them fits in a word.
const SLOTS: u32 = 32;

/// How long a command may take. Shorter than what the kernel takes for a hung task.
const TIMEOUT_MS: u32 = 10_000;

/// What the driver keeps of a slot.
#[pin_data]
struct Slot {
    /// Token of the command that waits here, or 0.
    token: Atomic<u32>,
    #[pin]
    done: Completion,
}

struct Free {
    slots: u32,
    last_token: u32,
}

/// The command queue.
#[pin_data]
pub(crate) struct CommandQueue {
    bars: Arc<Bars>,
    health: Arc<Health>,
    memory: Chunk,
    slots: KVec<Pin<KBox<Slot>>>,
    #[pin]
    free: Mutex<Free>,
    #[pin]
    freed: CondVar,
}

impl CommandQueue {
    pub(crate) fn new(
        dma: &Binding,
        bars: Arc<Bars>,
        health: Arc<Health>,
    ) -> impl PinInit<Self, Error> {
        let dma = dma.clone();
        pin_init::pin_init_scope(move || {
            let memory = Chunk::alloc(&dma, SLOT_SIZE * SLOTS as usize)?;
            let mut slots = KVec::with_capacity(SLOTS as usize, GFP_KERNEL)?;
            for _ in 0..SLOTS {
                let slot = KBox::pin_init::<Error>(
                    try_pin_init!(Slot {
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
                free <- new_mutex!(Free { slots: u32::MAX >> (32 - SLOTS), last_token: 0 }),
                freed <- new_condvar!(),
            }? Error))
        })
    }

    /// DMA address of the slots and their number, for the registers.
    pub(crate) fn place(&self) -> (u64, u32) {
        (self.memory.dma_addr(), SLOTS)
    }

    /// Executes a command. Process context.
    pub(crate) fn exec<C: Command>(&self, request: &C) -> Result<C::Reply> {
        let (index, token) = self.take_slot()?;
        let result = self.exec_in(index, token, C::OPCODE, request.as_bytes());
        let reply = match result {
            Ok(()) => self.read_reply::<C>(index),
            Err(e) => Err(e),
        };
        if !self.health.is_dead() {
            self.free.lock().slots |= 1 << index;
            self.freed.notify_one();
        }
        reply
    }

    /// Handles vector 0: wakes those whose reply is there. Any context.
    pub(crate) fn interrupt(&self) {
        for (index, slot) in (0u32..).zip(self.slots.iter()) {
            let token = slot.token.load(Acquire);
            if token != 0 && self.reply_token(index) == token {
                slot.done.complete();
            }
        }
    }

    /// Wakes everybody: the device is dead. Any context.
    pub(crate) fn abort(&self) {
        for slot in self.slots.iter() {
            slot.done.complete();
        }
        self.freed.notify_all();
    }

    fn take_slot(&self) -> Result<(u32, u32)> {
        let mut free = self.free.lock();
        loop {
            if self.health.is_dead() {
                return Err(EIO);
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
        // Out of bounds is impossible; 0 is no token.
        Le32::from_raw(self.memory.load32_acquire(offset).unwrap_or(0)).get()
    }

    /// Writes the request, and waits for the reply.
    fn exec_in(&self, index: u32, token: u32, opcode: Opcode, request: &[u8]) -> Result {
        let slot = self.slots.get(index as usize).ok_or(EIO)?;
        let header = RequestHeader {
            opcode: Le16::new(opcode.to_raw()),
            token: Le32::new(token),
            ..Default::default()
        };
        let offset = Self::request_offset(index);
        // Nothing of the slot's former request stays behind this one.
        let mut bytes = [0u8; REQUEST_SIZE];
        let (head, tail) = bytes.split_at_mut(HEADER_SIZE);
        head.copy_from_slice(header.as_bytes());
        tail.get_mut(..request.len())
            .ok_or(EINVAL)?
            .copy_from_slice(request);
        self.memory.write_bytes(offset, &bytes)?;

        slot.done.reinit();
        slot.token.store(token, Release);
        // The MMIO write orders the request before it.
        self.bars.write(regs::CMDQ_DOORBELL, index);

        let result = self.wait(slot, index, token, opcode);
        slot.token.store(0, Relaxed);
        result
    }

    fn wait(&self, slot: &Slot, index: u32, token: u32, opcode: Opcode) -> Result {
        loop {
            let in_time = slot.done.wait_ms(TIMEOUT_MS);
            // A late interrupt for the slot's former command may have woken us: look.
            if self.reply_token(index) == token {
                return Ok(());
            }
            if self.health.is_dead() {
                return Err(EIO);
            }
            if !in_time {
                dev_err!(self.health.pdev(), "command {} timed out\n", opcode.name());
                self.health
                    .declare_dead(if self.bars.read(regs::STATUS) == crate::bars::GONE {
                        Cause::Gone
                    } else {
                        Cause::CommandTimeout
                    });
                return Err(EIO);
            }
        }
    }

    /// What the device replied; the token has been seen.
    fn read_reply<C: Command>(&self, index: u32) -> Result<C::Reply> {
        let offset = Self::reply_offset(index);
        let header: ReplyHeader = self.memory.read(offset)?;
        let syndrome = header.syndrome.get();
        match CmdStatus::from_raw(header.status.get()) {
            Some(CmdStatus::Ok) => {
                let mut reply = C::Reply::new_zeroed();
                self.memory
                    .read_bytes(offset + HEADER_SIZE, reply.as_mut_bytes())?;
                Ok(reply)
            }
            Some(status) => {
                let error = match status {
                    CmdStatus::Busy => EBUSY,
                    CmdStatus::Exists => EEXIST,
                    CmdStatus::NoResources => ENOMEM,
                    CmdStatus::Unsupported => eopnotsupp(),
                    CmdStatus::BadAddress => EFAULT,
                    CmdStatus::Fatal => {
                        self.health.declare_dead(Cause::Device(syndrome));
                        EIO
                    }
                    _ => EINVAL,
                };
                if self.health.may_log() {
                    dev_info!(
                        self.health.pdev(),
                        "command {} failed: {}, syndrome {:#06x}\n",
                        C::OPCODE.name(),
                        status.name(),
                        syndrome
                    );
                }
                Err(error)
            }
            None => {
                if self.health.may_log() {
                    dev_err!(
                        self.health.pdev(),
                        "command {}: malformed reply\n",
                        C::OPCODE.name()
                    );
                }
                Err(EIO)
            }
        }
    }
}
