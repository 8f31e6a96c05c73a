// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Posting sends piece by piece: what `ibv_wr_*` does between start and complete.
//!
//! Requests are written into the ring behind the producer index, which moves only when all of them are complete, so that
//! an abort, or an error anywhere, posts nothing. The first error is kept and returned at the end.

use crate::errno::Errno;
use crate::ffi::lock::Guard;
use crate::ffi::memory::Entry;
use crate::ffi::object::Ah;
use crate::send::{Form, Producer, SendQueue, MIN, OPCODES};
use verbena_abi::doorbell;
use verbena_abi::wqe::{self, send_flags};

/// The requests of one `ibv_wr_start`.
#[derive(Clone, Copy, Default)]
pub struct Build {
    /// Index of the request that is being written.
    index: u32,
    /// Whether there is one.
    open: bool,
    alive: bool,
    error: Option<Errno>,
    form: Option<Form>,
    wr_id: u64,
    /// The first word of its WQE.
    head: u64,
    /// Where its next SGE goes.
    data: usize,
}

impl SendQueue {
    /// `ibv_wr_start`. The lock is kept until `commit` or an abort.
    pub fn start(&self, error: Option<Errno>) -> Guard<'_, Producer> {
        let mut guard = self.producer.lock_long();
        guard.build = Build {
            index: guard.index,
            alive: self.area.alive(),
            error,
            ..Build::default()
        };
        guard
    }

    /// `ibv_wr_complete`.
    pub fn commit(&self, mut guard: Guard<'_, Producer>) -> Result<(), Errno> {
        self.close(&mut guard.build);
        if let Some(errno) = guard.build.error {
            return Err(errno);
        }
        if guard.build.index != guard.index {
            guard.index = guard.build.index;
            if guard.build.alive {
                self.publish(guard.index);
            }
        }
        Ok(())
    }

    /// Begins a request with an opcode of `enum ibv_wr_opcode`.
    #[inline(always)]
    pub fn begin<'a>(
        &'a self,
        build: &mut Build,
        opcode: u32,
        wr_id: u64,
        flags: u32,
    ) -> Option<Entry<'a, MIN>> {
        self.close(build);
        if build.error.is_some() {
            return None;
        }
        let Some(&(opcode, form)) = OPCODES.get(opcode as usize) else {
            build.error = Some(Errno::INVAL);
            return None;
        };
        if !self.window().has_room(build.index) {
            build.error = Some(Errno::NOMEM);
            return None;
        }
        let known = u32::from(send_flags::ALL & !send_flags::INLINE);
        build.open = true;
        build.form = Some(form);
        build.wr_id = wr_id;
        build.head = u64::from(opcode.to_raw()) | u64::from((flags | self.flags) & known) << 8;
        build.data = self.data;
        build.alive.then(|| self.ring.entry(build.index))
    }

    /// The remote address and key of the request.
    #[inline(always)]
    pub fn set_remote(&self, entry: Entry<'_, MIN>, rkey: u32, remote_addr: u64) {
        entry.put::<24>(remote_addr);
        entry.put::<32>(rkey.into());
    }

    /// The operands of an atomic.
    pub fn set_operands(
        &self,
        build: &mut Build,
        entry: Entry<'_, MIN>,
        compare_add: u64,
        swap: u64,
    ) {
        if !self.config.datagram {
            entry.put_pair(wqe::DATA_OFFSET, compare_add, swap);
            build.data = wqe::DATA_OFFSET_ATOMIC;
        }
    }

    /// The entry of the request that is being written, if it can still be posted.
    #[inline(always)]
    fn current(&self, build: &Build) -> Option<Entry<'_, MIN>> {
        (build.open && build.alive && build.error.is_none()).then(|| self.ring.entry(build.index))
    }

    /// The address of a datagram.
    pub fn set_address(&self, build: &Build, ah: &Ah, qpn: u32, qkey: u32) {
        if let (Some(entry), true) = (self.current(build), self.config.datagram) {
            crate::send::put_address(entry, ah, qpn, qkey);
        }
    }

    /// An SGE more.
    #[inline(always)]
    pub fn add_sge(&self, build: &mut Build, addr: u64, length: u32, lkey: u32) {
        if (build.head >> 16) as u8 as u32 >= self.config.max_sge {
            build.error = build.error.or(Some(Errno::INVAL));
            return;
        }
        if let Some(entry) = self.current(build) {
            entry.put_pair(build.data, addr, u64::from(length) | u64::from(lkey) << 32);
            build.data += 16;
        }
        build.head += 1 << 16;
    }

    /// More inline data.
    ///
    /// `copy` writes it at the offset that it is told, and says whether it fits.
    pub fn add_inline(
        &self,
        build: &mut Build,
        length: usize,
        copy: impl FnOnce(Entry<'_, MIN>, usize) -> bool,
    ) {
        let before = (build.head >> 32) as usize;
        let fits = length <= (self.config.max_inline as usize).saturating_sub(before);
        if !fits || matches!(build.form, Some(Form::Read | Form::Atomic | Form::Key)) {
            build.error = build.error.or(Some(Errno::INVAL));
            return;
        }
        if let Some(entry) = self.current(build) {
            if !copy(entry, build.data + before) {
                build.error = Some(Errno::INVAL);
                return;
            }
        }
        build.head |= u64::from(send_flags::INLINE) << 8;
        build.head += (length as u64) << 32;
    }

    /// The request is complete as far as it can be seen from here.
    #[inline(always)]
    fn close(&self, build: &mut Build) {
        if build.open && build.error.is_none() {
            if build.alive {
                let entry = self.ring.entry(build.index);
                entry.put::<8>(build.wr_id);
                entry.put::<0>(build.head);
            }
            self.window().remember(build.index, build.wr_id);
            build.index = build.index.wrapping_add(1);
        }
        build.open = false;
    }

    #[inline(always)]
    pub fn publish(&self, producer: u32) {
        doorbell::post_send(&*self.area, self.config.slot, producer, || self.area.ring());
    }
}
