// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Posting sends: checks, the WQE, one publication for the whole list.
//!
//! What is checked here is what semantics calls an immediate error; everything else is accepted and comes back as a
//! completion. A WQE is written with as few wide stores as it needs: words that the operation does not use keep what an
//! earlier entry left there, the device ignores them. Reserved words are never written: rings start zeroed.

use crate::builder::Build;
use crate::errno::Errno;
use crate::ffi::lock::Lock;
use crate::ffi::memory::{Area, Entry, Ring};
use crate::ffi::object::Ah;
use crate::ffi::wr::SendWr;
use crate::window::Window;
use std::sync::Arc;
use verbena_abi::doorbell::{self, Words};
use verbena_abi::wqe::{self, send_flags, WqeOpcode};

/// Smallest stride of a send ring.
pub const MIN: usize = 1 << wqe::LOG_SQ_STRIDE.0;

/// What follows the header's first three words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Nothing but data.
    Send,
    /// Remote address and key.
    Write,
    /// The same; data flows the other way, so nothing can be inline.
    Read,
    /// The same, and operands.
    Atomic,
    /// A key to invalidate, no data.
    Key,
    /// Unknown: refused.
    Invalid,
}

/// `enum ibv_wr_opcode` to [`WqeOpcode`] and [`Form`].
pub const OPCODES: [(WqeOpcode, Form); 16] = {
    let mut table = [(WqeOpcode::Send, Form::Invalid); 16];
    table[0] = (WqeOpcode::RdmaWrite, Form::Write);
    table[1] = (WqeOpcode::RdmaWriteImm, Form::Write);
    table[2] = (WqeOpcode::Send, Form::Send);
    table[3] = (WqeOpcode::SendImm, Form::Send);
    table[4] = (WqeOpcode::RdmaRead, Form::Read);
    table[5] = (WqeOpcode::CompareSwap, Form::Atomic);
    table[6] = (WqeOpcode::FetchAdd, Form::Atomic);
    table[7] = (WqeOpcode::LocalInv, Form::Key);
    table[9] = (WqeOpcode::SendInv, Form::Send);
    table
};

/// What a send queue is made with.
pub struct SendConfig {
    pub max_wr: u32,
    pub max_sge: u32,
    pub max_inline: u32,
    /// UD: each WQE has an address vector.
    pub datagram: bool,
    /// `sq_sig_all`.
    pub signal_all: bool,
    /// Slot in the doorbell area.
    pub slot: usize,
}

/// A send queue.
pub struct SendQueue {
    pub(crate) ring: Ring<MIN>,
    pub(crate) area: Arc<Area>,
    pub(crate) config: SendConfig,
    /// Or-ed into each WQE's flags.
    pub(crate) flags: u32,
    /// Where SGEs and inline data begin.
    pub(crate) data: usize,
    window: Window,
    pub(crate) producer: Lock<Producer>,
}

/// What the poster changes.
pub struct Producer {
    /// The producer index.
    pub index: u32,
    /// Requests that are being written piece by piece.
    pub build: Build,
}

impl SendQueue {
    pub fn new(ring: Ring<MIN>, area: Arc<Area>, config: SendConfig) -> Self {
        let window = Window::new(ring.size(), config.max_wr);
        Self {
            flags: if config.signal_all {
                send_flags::SIGNALED.into()
            } else {
                0
            },
            data: wqe::data_offset(config.datagram, false),
            ring,
            area,
            config,
            window,
            producer: Lock::new(Producer {
                index: 0,
                build: Build::default(),
            }),
        }
    }

    #[cfg(test)]
    pub fn ring(&self) -> &Ring<MIN> {
        &self.ring
    }

    #[cfg(test)]
    pub fn posted(&self) -> u32 {
        self.producer.lock().index
    }

    /// What is outstanding.
    #[inline(always)]
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// The lock, for posts that span several calls from C.
    pub fn producer(&self) -> &Lock<Producer> {
        &self.producer
    }

    /// Posts a list. On an error, the request that caused it: nothing was posted from there on, all before it was.
    #[inline(always)]
    pub fn post<'a>(&self, first: SendWr<'a>) -> Result<(), (Errno, SendWr<'a>)> {
        let mut guard = self.producer.lock();
        let start = guard.index;
        let mut producer = start;
        let alive = self.area.alive();
        let mut wr = first;
        let result = loop {
            if !self.window.has_room(producer) {
                break Err((Errno::NOMEM, wr));
            }
            // On a dead device posting stays accepted: its flush is the poll's business.
            if alive {
                if let Err(errno) = self.write(producer, wr) {
                    break Err((errno, wr));
                }
            }
            self.window.remember(producer, wr.wr_id());
            producer = producer.wrapping_add(1);
            match wr.next() {
                Some(next) => wr = next,
                None => break Ok(()),
            }
        };
        if producer != start {
            guard.index = producer;
            if alive {
                self.publish(producer);
            }
        }
        result
    }

    /// Writes a WQE. The usual ones, of connected queue pairs with SGEs, are written here; a function of its own for the
    /// others keeps this one short.
    #[inline(always)]
    fn write(&self, index: u32, wr: SendWr<'_>) -> Result<(), Errno> {
        let Some(&(opcode, form)) = OPCODES.get(wr.opcode() as usize) else {
            return Err(Errno::INVAL);
        };
        let flags = (wr.flags() | self.flags) & u32::from(send_flags::ALL);
        let entry = self.ring.entry(index);
        let num_sge = wr.num_sge();
        if num_sge > self.config.max_sge {
            return Err(Errno::INVAL);
        }
        let head = u64::from(opcode.to_raw()) | u64::from(flags) << 8;
        if form as u8 > Form::Read as u8
            || flags & u32::from(send_flags::INLINE) != 0
            || self.config.datagram
        {
            return self.write_unusual(entry, wr, form, head);
        }
        if form != Form::Send {
            let (remote_addr, rkey) = wr.rdma();
            entry.put::<24>(remote_addr);
            entry.put::<32>(rkey.into());
        }
        entry.put::<16>(wr.imm().into());
        entry.put::<8>(wr.wr_id());
        entry.put::<0>(head | u64::from(num_sge) << 16);
        wr.copy_sges(entry, wqe::DATA_OFFSET)
            .then_some(())
            .ok_or(Errno::INVAL)
    }

    #[inline(never)]
    fn write_unusual(
        &self,
        entry: Entry<'_, MIN>,
        wr: SendWr<'_>,
        form: Form,
        mut head: u64,
    ) -> Result<(), Errno> {
        let mut data = self.data;
        let mut inline = head & u64::from(send_flags::INLINE) << 8 != 0;
        match form {
            Form::Send => {}
            Form::Invalid => return Err(Errno::INVAL),
            Form::Key => {
                head &= !(u64::from(send_flags::INLINE) << 8);
                inline = false;
            }
            Form::Write | Form::Read => {
                let (remote_addr, rkey) = wr.rdma();
                entry.put::<24>(remote_addr);
                entry.put::<32>(rkey.into());
            }
            Form::Atomic => {
                let (remote_addr, rkey, compare_add, swap) = wr.atomic();
                entry.put::<24>(remote_addr);
                entry.put::<32>(rkey.into());
                // On a datagram queue pair this is an error that the device reports; there is no place for operands.
                if !self.config.datagram {
                    entry.put_pair(wqe::DATA_OFFSET, compare_add, swap);
                    data = wqe::DATA_OFFSET_ATOMIC;
                }
            }
        }
        if self.config.datagram {
            let (ah, qpn, qkey) = wr.datagram().ok_or(Errno::INVAL)?;
            put_address(entry, ah, qpn, qkey);
        }
        if inline {
            if matches!(form, Form::Read | Form::Atomic) {
                return Err(Errno::INVAL);
            }
            let length = wr
                .copy_inline(entry, data, self.config.max_inline)
                .ok_or(Errno::INVAL)?;
            head |= u64::from(length) << 32;
        } else if form != Form::Key {
            if !wr.copy_sges(entry, data) {
                return Err(Errno::INVAL);
            }
            head |= u64::from(wr.num_sge()) << 16;
        }
        entry.put::<16>(wr.imm().into());
        entry.put::<8>(wr.wr_id());
        entry.put::<0>(head);
        Ok(())
    }

    /// Takes the oldest outstanding send, to flush it in software.
    pub fn flush_one(&self) -> Option<u64> {
        let producer = self.producer.lock().index;
        self.window.take(producer)
    }

    /// Back to the beginning, when the queue pair is in RESET.
    pub fn reset(&self) {
        let mut producer = self.producer.lock();
        producer.index = 0;
        self.window.reset();
        if self.area.alive() {
            self.area
                .store_release(doorbell::sq_producer(self.config.slot), 0);
        }
    }
}

/// Writes the address vector of a datagram.
#[inline(always)]
pub fn put_address(entry: Entry<'_, MIN>, ah: &Ah, qpn: u32, qkey: u32) {
    let [dgid_high, dgid_low, macs, flow, pdn] = *ah.words();
    let destination = u64::from(qpn) | u64::from(qkey) << 32;
    entry.put_pair(wqe::DATA_OFFSET, dgid_high, dgid_low);
    entry.put_pair(wqe::DATA_OFFSET + 16, macs, flow);
    entry.put_pair(wqe::DATA_OFFSET + 32, destination, pdn);
}
