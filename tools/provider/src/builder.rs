// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Posting sends in pieces: the work of `ibv_wr_*` between start and complete.
//!
//! Requests are written into the ring after the producer index, which moves only when all of them
//! are complete. An abort, or an error in any request, therefore posts nothing. The first error is
//! kept and returned at the end.

use crate::errno::Errno;
use crate::ffi::lock::Guard;
use crate::ffi::object::Ah;
use crate::ffi::wr::WindowBind;
use crate::send::{SendProducer, SendQueue, WqeForm, KNOWN_FLAGS, OPCODES};
use crate::wqe::{WqeHead, WqeWriter};
use verbena_abi::wqe::{self, send_flags};

/// Requests of one `ibv_wr_start`.
#[derive(Clone, Copy, Default)]
pub struct WrBuilder {
    /// Index of the first request.
    first: u32,
    /// Index of the request that is being written.
    index: u32,
    /// True while a request is being written.
    open: bool,
    device_alive: bool,
    /// True if the request lacks the address of a datagram, or the SRQ of an extended connection.
    lacks_address: bool,
    error: Option<Errno>,
    form: Option<WqeForm>,
    wr_id: u64,
    /// First word of the request's WQE.
    head: WqeHead,
    /// Offset of the request's next SGE in the WQE.
    data: usize,
}

impl WrBuilder {
    /// Records an error, unless an earlier one is recorded.
    #[cold]
    fn fail(&mut self, errno: Errno) {
        self.error = self.error.or(Some(errno));
    }
}

/// Operands of a request besides its opcode.
#[derive(Clone, Copy)]
pub enum Operands {
    None,
    /// Immediate data, or a key to invalidate at the peer or locally.
    Imm(u32),
    /// Key and address at the peer.
    Remote(u32, u64),
    RemoteImm(u32, u64, u32),
    /// Key and address at the peer, the value to compare or add, the value to swap in.
    Atomic(u32, u64, u64, u64),
    /// Key and address at the peer, and the 8 bytes to write.
    Value(u32, u64, [u8; 8]),
    /// Key and address at the peer, and the length in bytes, placement and level of a FLUSH.
    Flush(u32, u64, usize, u8, u8),
    /// Bind of a window of type 2; `None` if the window is of another type.
    Bind(Option<WindowBind>),
}

impl SendProducer {
    /// Returns the WQE of the request that is being written. Returns `None` if there is no such
    /// request, the device is dead or an error is recorded.
    #[inline(always)]
    fn current(&self) -> Option<WqeWriter<'_>> {
        let builder = &self.builder;
        (builder.open && builder.device_alive && builder.error.is_none())
            .then(|| WqeWriter(self.ring.entry(builder.index)))
    }
}

impl SendQueue {
    /// Implements `ibv_wr_start`. The lock is kept until `commit` or an abort. Nothing is posted
    /// unless `may` returns true under the lock.
    pub fn start(&self, may: impl FnOnce() -> bool) -> Guard<'_, SendProducer> {
        let mut guard = self.producer.lock_long();
        guard.builder = WrBuilder {
            first: guard.index,
            index: guard.index,
            device_alive: self.area.is_alive(),
            error: (!may()).then_some(Errno::INVAL),
            ..WrBuilder::default()
        };
        guard
    }

    /// Implements `ibv_wr_complete`: publishes the requests since `start`, or returns the first
    /// error.
    pub fn commit(&self, mut guard: Guard<'_, SendProducer>) -> Result<(), Errno> {
        self.close(&mut guard);
        if let Some(errno) = guard.builder.error {
            return Err(errno);
        }
        if guard.index != guard.builder.first {
            // A process with one thread posts lists without taking the lock, and this one has
            // posted a list since the start.
            return Err(Errno::INVAL);
        }
        if guard.builder.index != guard.index {
            guard.index = guard.builder.index;
            self.window().produce(guard.index);
            if guard.builder.device_alive {
                self.publish(guard.index);
            }
        }
        Ok(())
    }

    /// Begins a request with an opcode of `enum ibv_wr_opcode`.
    #[inline(always)]
    pub fn begin(
        &self,
        producer: &mut SendProducer,
        opcode: u32,
        wr_id: u64,
        flags: u32,
        operands: Operands,
    ) {
        self.close(producer);
        let builder = &mut producer.builder;
        if builder.error.is_some() {
            return;
        }
        let Some(&(opcode, form)) = OPCODES.get(opcode as usize) else {
            return builder.fail(Errno::INVAL);
        };
        if flags > KNOWN_FLAGS {
            return builder.fail(Errno::INVAL);
        }
        if !self.window().has_room(builder.index) {
            return builder.fail(Errno::NOMEM);
        }
        builder.open = true;
        // Requests that invalidate or bind local keys are not sent to the peer, so they need no
        // SRQ.
        let is_local = matches!(form, WqeForm::Key | WqeForm::Bind);
        builder.lacks_address = self.config.datagram || self.config.xrc && !is_local;
        builder.form = Some(form);
        builder.wr_id = wr_id;
        // Data is inline if it comes through the functions for inline data. The flag is ignored.
        let inline = u32::from(send_flags::INLINE);
        builder.head = WqeHead::new(opcode, (flags | self.flags) & !inline);
        builder.data = self.data;
        if matches!(operands, Operands::Atomic(..)) && !self.config.datagram {
            builder.data = wqe::DATA_OFFSET_ATOMIC;
        }
        let Some(wqe) = producer.current() else {
            return;
        };
        match operands {
            Operands::None => {}
            Operands::Imm(imm) => wqe.set_imm(imm),
            Operands::Remote(rkey, addr) => wqe.set_remote(addr, rkey),
            Operands::RemoteImm(rkey, addr, imm) => {
                wqe.set_imm(imm);
                wqe.set_remote(addr, rkey);
            }
            Operands::Atomic(rkey, addr, compare_add, swap) => {
                wqe.set_remote(addr, rkey);
                if !self.config.datagram {
                    wqe.set_operands(compare_add, swap);
                }
            }
            Operands::Value(rkey, addr, value) => {
                wqe.set_remote(addr, rkey);
                wqe.set_value(value);
                producer.builder.head = producer.builder.head.with_inline(value.len() as u32);
            }
            Operands::Flush(rkey, addr, length, placement, level) => match u32::try_from(length) {
                Ok(length) => {
                    wqe.set_remote(addr, rkey);
                    wqe.set_flush(length, placement, level);
                }
                Err(_) => producer.builder.fail(Errno::INVAL),
            },
            Operands::Bind(Some(bind)) => {
                wqe.set_remote(bind.addr, bind.key);
                wqe.set_bind(bind.length, bind.region, bind.access);
            }
            Operands::Bind(None) => producer.builder.fail(Errno::INVAL),
        }
    }

    /// Refuses a request of a kind that this queue pair does not offer.
    pub fn refuse(&self, producer: &mut SendProducer) {
        self.close(producer);
        producer.builder.fail(Errno::INVAL);
    }

    /// Sets the address of a datagram.
    pub fn set_address(&self, producer: &mut SendProducer, ah: &Ah, qpn: u32, qkey: u32) {
        if self.config.datagram {
            if let Some(wqe) = producer.current() {
                wqe.set_address(ah, qpn, qkey);
            }
            producer.builder.lacks_address = false;
        }
    }

    /// Sets the SRQ at the peer of an extended connection.
    pub fn set_srqn(&self, producer: &mut SendProducer, srqn: u32) {
        if self.config.xrc {
            if let Some(wqe) = producer.current() {
                wqe.set_srqn(srqn);
            }
            producer.builder.lacks_address = false;
        }
    }

    /// Adds an SGE to the request.
    #[inline(always)]
    pub fn add_sge(&self, producer: &mut SendProducer, addr: u64, length: u32, lkey: u32) {
        match producer.builder.form {
            // A FLUSH has no local data, though the manual page of `ibv_wr_post` lists this setter
            // for it.
            Some(WqeForm::Flush) => return,
            Some(WqeForm::Key | WqeForm::Bind | WqeForm::Value) => {
                return producer.builder.fail(Errno::INVAL)
            }
            _ if producer.builder.head.sges() >= self.config.max_sge => {
                return producer.builder.fail(Errno::INVAL);
            }
            _ => {}
        }
        if let Some(wqe) = producer.current() {
            if !wqe.set_sge(producer.builder.data, addr, length, lkey) {
                return producer.builder.fail(Errno::INVAL);
            }
            producer.builder.data += size_of::<wqe::Sge>();
        }
        producer.builder.head = producer.builder.head.plus_sge();
    }

    /// Adds inline data to the request.
    ///
    /// `copy` writes the data at the offset that it receives, and returns false if the data does
    /// not fit.
    pub fn add_inline(
        &self,
        producer: &mut SendProducer,
        length: usize,
        copy: impl FnOnce(WqeWriter<'_>, usize) -> bool,
    ) {
        let builder = &producer.builder;
        let before = builder.head.inline_length();
        let fits = length <= (self.config.max_inline as usize).saturating_sub(before);
        if !fits
            || matches!(
                builder.form,
                Some(
                    WqeForm::Read
                        | WqeForm::Atomic
                        | WqeForm::Key
                        | WqeForm::Bind
                        | WqeForm::Value
                        | WqeForm::Flush
                )
            )
        {
            return producer.builder.fail(Errno::INVAL);
        }
        let at = builder.data + before;
        if let Some(wqe) = producer.current() {
            if !copy(wqe, at) {
                return producer.builder.fail(Errno::INVAL);
            }
        }
        // The sum is at most 512 bytes.
        producer.builder.head = producer.builder.head.with_inline(length as u32);
    }

    /// Ends the request that is being written, if there is one: no later call adds to it.
    #[inline(always)]
    fn close(&self, producer: &mut SendProducer) {
        if producer.builder.open && producer.builder.error.is_none() {
            if producer.builder.lacks_address {
                // The WQE would keep the address of an older request in the same entry.
                producer.builder.fail(Errno::INVAL);
            } else {
                if let Some(wqe) = producer.current() {
                    wqe.finish(producer.builder.head, producer.builder.wr_id);
                }
                let builder = &mut producer.builder;
                self.window().remember(builder.index, builder.wr_id);
                builder.index = builder.index.wrapping_add(1);
            }
        }
        producer.builder.open = false;
    }
}
