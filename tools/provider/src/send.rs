// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Posting sends: the checks, the WQEs, and one publication for the whole list.
//!
//! The checks here find only immediate errors (the request is wrong in itself). Any other request
//! is accepted, and its error comes back as a completion. A WQE is written with as few wide stores
//! as possible. Words that the operation does not use keep the contents of an earlier entry, and
//! the device ignores them. Reserved words are never written: rings start zeroed.

use crate::builder::WrBuilder;
use crate::errno::Errno;
use crate::ffi::lock::{Lock, Sharing};
use crate::ffi::memory::{DoorbellMapping, MappedRing};
use crate::ffi::pabi::*;
use crate::ffi::wr::SendWr;
use crate::wqe::{WqeHead, WqeWriter, MIN};
use crate::wr_window::WrWindow;
use std::sync::Arc;
use verbena_abi::doorbell::{self, Words};
use verbena_abi::wqe::{self, send_flags, WqeOpcode};

/// Operands that follow the first three words of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WqeForm {
    /// No operands, only data.
    Send,
    /// Remote address and key, then data.
    Write,
    /// Remote address and key. The data flows to the requester, so it cannot be inline.
    Read,
    /// Remote address and key, then the operands of the atomic operation.
    Atomic,
    /// A key to invalidate, without data.
    Key,
    /// A window to bind, without data.
    Bind,
    /// Remote address and key, then 8 bytes that may be inline whatever `max_inline` is.
    Value,
    /// Remote address and key, then length, placement and level of a FLUSH, without data. Only
    /// `ibv_wr_flush` can pass these operands.
    Flush,
    /// An opcode that is unknown and refused.
    Invalid,
}

/// Maps `enum ibv_wr_opcode` to [`WqeOpcode`] and [`WqeForm`].
pub const OPCODES: [(WqeOpcode, WqeForm); 16] = {
    let mut table = [(WqeOpcode::Send, WqeForm::Invalid); 16];
    table[IBV_WR_RDMA_WRITE as usize] = (WqeOpcode::RdmaWrite, WqeForm::Write);
    table[IBV_WR_RDMA_WRITE_WITH_IMM as usize] = (WqeOpcode::RdmaWriteImm, WqeForm::Write);
    table[IBV_WR_SEND as usize] = (WqeOpcode::Send, WqeForm::Send);
    table[IBV_WR_SEND_WITH_IMM as usize] = (WqeOpcode::SendImm, WqeForm::Send);
    table[IBV_WR_RDMA_READ as usize] = (WqeOpcode::RdmaRead, WqeForm::Read);
    table[IBV_WR_ATOMIC_CMP_AND_SWP as usize] = (WqeOpcode::CompareSwap, WqeForm::Atomic);
    table[IBV_WR_ATOMIC_FETCH_AND_ADD as usize] = (WqeOpcode::FetchAdd, WqeForm::Atomic);
    table[IBV_WR_LOCAL_INV as usize] = (WqeOpcode::LocalInv, WqeForm::Key);
    table[IBV_WR_BIND_MW as usize] = (WqeOpcode::BindMw, WqeForm::Bind);
    #[cfg(rdma_core_44)]
    {
        table[IBV_WR_ATOMIC_WRITE as usize] = (WqeOpcode::AtomicWrite, WqeForm::Value);
    }
    #[cfg(rdma_core_45)]
    {
        table[IBV_WR_FLUSH as usize] = (WqeOpcode::Flush, WqeForm::Flush);
    }
    table[IBV_WR_SEND_WITH_INV as usize] = (WqeOpcode::SendInv, WqeForm::Send);
    table
};

/// All flags that a request may have. The values in the ABI are those of `enum ibv_send_flags`.
pub const KNOWN_FLAGS: u32 = {
    assert!(send_flags::FENCE as u32 == IBV_SEND_FENCE);
    assert!(send_flags::SIGNALED as u32 == IBV_SEND_SIGNALED);
    assert!(send_flags::SOLICITED as u32 == IBV_SEND_SOLICITED);
    assert!(send_flags::INLINE as u32 == IBV_SEND_INLINE);
    // Any value above the mask therefore contains an unknown flag.
    assert!((send_flags::ALL + 1).is_power_of_two());
    send_flags::ALL as u32
};

/// Properties of a new send queue.
pub struct SendConfig {
    pub max_wr: u32,
    pub max_sge: u32,
    pub max_inline: u32,
    /// True for UD: each WQE has an address vector.
    pub datagram: bool,
    /// True for XRC: each WQE names an SRQ.
    pub xrc: bool,
    /// True if every send is signaled (`sq_sig_all`).
    pub signal_all: bool,
    /// Threads that may post to the queue.
    pub sharing: Sharing,
    /// Slot of the queue in the doorbell area.
    pub slot: usize,
}

/// A send queue.
pub struct SendQueue {
    pub(crate) area: Arc<DoorbellMapping>,
    pub(crate) config: SendConfig,
    /// True if each WQE names its destination (UD and XRC).
    addressed: bool,
    /// Flags that are or-ed into those of each WQE.
    pub(crate) flags: u32,
    /// Offset of SGEs and inline data in a WQE without atomic operands.
    pub(crate) data: usize,
    window: WrWindow,
    pub(crate) producer: Lock<SendProducer>,
}

/// State of a send queue that its lock protects.
pub struct SendProducer {
    pub(crate) ring: MappedRing<MIN>,
    /// Producer index of the queue, free-running.
    pub index: u32,
    /// Requests of the extended post that are not published yet.
    pub builder: WrBuilder,
}

impl SendQueue {
    pub fn new(ring: MappedRing<MIN>, area: Arc<DoorbellMapping>, config: SendConfig) -> Self {
        let window = WrWindow::new(ring.size(), config.max_wr);
        let sharing = config.sharing;
        Self {
            flags: if config.signal_all {
                send_flags::SIGNALED.into()
            } else {
                0
            },
            addressed: config.datagram || config.xrc,
            data: wqe::data_offset(config.datagram, false),
            area,
            config,
            window,
            producer: Lock::shared_by(
                sharing,
                SendProducer {
                    ring,
                    index: 0,
                    builder: WrBuilder::default(),
                },
            ),
        }
    }

    #[cfg(test)]
    pub fn bytes(&self, index: u32, length: usize) -> Vec<u8> {
        self.producer.lock().ring.bytes(index, 0, length)
    }

    #[cfg(test)]
    pub fn posted(&self) -> u32 {
        self.producer.lock().index
    }

    /// Returns the window of outstanding requests.
    #[inline(always)]
    pub fn window(&self) -> &WrWindow {
        &self.window
    }

    /// Returns the lock itself, for posts that span several calls from C.
    pub fn producer(&self) -> &Lock<SendProducer> {
        &self.producer
    }

    /// Posts a list, if `may` still returns true under the lock.
    ///
    /// # Errors
    ///
    /// Returns the error and the request that caused it. All requests before it were posted; it and
    /// the requests after it were not.
    #[inline(always)]
    pub fn post<'a>(
        &self,
        first: SendWr<'a>,
        may: impl FnOnce() -> bool,
    ) -> Result<(), (Errno, SendWr<'a>)> {
        let mut guard = self.producer.lock();
        if !may() {
            return Err((Errno::INVAL, first));
        }
        let start = guard.index;
        let mut producer = start;
        let alive = self.area.is_alive();
        let mut wr = first;
        let result = loop {
            if !self.window.has_room(producer) {
                break Err((Errno::NOMEM, wr));
            }
            // Posting on a dead device is still accepted: a later poll flushes the request.
            if alive {
                if let Err(errno) = self.write(WqeWriter(guard.ring.entry(producer)), wr) {
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
            self.window.produce(producer);
            if alive {
                self.publish(producer);
            }
        }
        result
    }

    /// Writes a WQE. This function handles the usual case, a connected queue pair with SGEs. The
    /// other cases have a function of their own, which keeps this one short.
    #[inline(always)]
    fn write(&self, wqe: WqeWriter<'_>, wr: SendWr<'_>) -> Result<(), Errno> {
        let Some(&(opcode, form)) = OPCODES.get(wr.opcode() as usize) else {
            return Err(Errno::INVAL);
        };
        let flags = wr.flags() | self.flags;
        let num_sge = wr.num_sge();
        if num_sge > self.config.max_sge || flags > KNOWN_FLAGS {
            return Err(Errno::INVAL);
        }
        let head = WqeHead::new(opcode, flags);
        if form as u8 > WqeForm::Read as u8 || head.is_inline() || self.addressed {
            return self.write_slow(wqe, wr, form, head);
        }
        if form != WqeForm::Send {
            let (remote_addr, rkey) = wr.rdma();
            wqe.set_remote(remote_addr, rkey);
        }
        wqe.set_imm(wr.imm());
        wqe.finish(head.with_sges(num_sge), wr.wr_id());
        wr.copy_sges(wqe.0, wqe::DATA_OFFSET)
            .then_some(())
            .ok_or(Errno::INVAL)
    }

    #[inline(never)]
    fn write_slow(
        &self,
        wqe: WqeWriter<'_>,
        wr: SendWr<'_>,
        form: WqeForm,
        mut head: WqeHead,
    ) -> Result<(), Errno> {
        let mut data = self.data;
        match form {
            WqeForm::Send => {}
            WqeForm::Invalid | WqeForm::Flush => return Err(Errno::INVAL),
            WqeForm::Key => head = head.not_inline(),
            WqeForm::Bind => {
                let bind = wr.bind().ok_or(Errno::INVAL)?;
                head = head.not_inline();
                wqe.set_remote(bind.addr, bind.key);
                // The device refuses this opcode on a datagram queue pair, whose WQE has no room
                // for the segment.
                if !self.config.datagram {
                    wqe.set_bind(bind.length, bind.region, bind.access);
                }
            }
            WqeForm::Write | WqeForm::Read | WqeForm::Value => {
                let (remote_addr, rkey) = wr.rdma();
                wqe.set_remote(remote_addr, rkey);
            }
            WqeForm::Atomic => {
                let (remote_addr, rkey, compare_add, swap) = wr.atomic();
                wqe.set_remote(remote_addr, rkey);
                // The device refuses this opcode on a datagram queue pair, whose WQE has no room
                // for the operands.
                if !self.config.datagram {
                    wqe.set_operands(compare_add, swap);
                    data = wqe::DATA_OFFSET_ATOMIC;
                }
            }
        }
        // Only SENDs carry a UD address. For another opcode, which the device refuses, the program
        // has set another member of the union.
        if self.config.datagram && matches!(wr.opcode(), IBV_WR_SEND | IBV_WR_SEND_WITH_IMM) {
            let (ah, qpn, qkey) = wr.datagram().ok_or(Errno::INVAL)?;
            wqe.set_address(ah, qpn, qkey);
        }
        if head.is_inline() {
            if matches!(form, WqeForm::Read | WqeForm::Atomic) {
                return Err(Errno::INVAL);
            }
            let most = match form {
                WqeForm::Value => self.config.max_inline.max(wqe::ATOMIC_WRITE_SIZE as u32),
                _ => self.config.max_inline,
            };
            let length = wr.copy_inline(wqe.0, data, most).ok_or(Errno::INVAL)?;
            head = head.with_inline(length);
        } else if !matches!(form, WqeForm::Key | WqeForm::Bind) {
            if !wr.copy_sges(wqe.0, data) {
                return Err(Errno::INVAL);
            }
            head = head.with_sges(wr.num_sge());
        }
        wqe.set_imm(wr.imm());
        if self.config.xrc {
            wqe.set_srqn(wr.srqn());
        }
        wqe.finish(head, wr.wr_id());
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn publish(&self, producer: u32) {
        doorbell::post_send(&*self.area, self.config.slot, producer, || self.area.ring());
    }

    /// Takes the oldest outstanding send, in order to flush it in software. The caller holds the
    /// lock of the CQ where the send completes.
    pub fn flush_one(&self) -> Option<u64> {
        self.window.take()
    }

    /// Resets the queue when the queue pair is in RESET. The caller holds the lock of the CQ where
    /// the sends complete.
    pub fn reset(&self) {
        let mut producer = self.producer.lock();
        producer.index = 0;
        self.window.reset();
        if self.area.is_alive() {
            self.area
                .store_release(doorbell::sq_producer(self.config.slot), 0);
        }
    }
}
