// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A guest memory that records each access.

use crate::memory::{Access, GuestMemory};
use crate::observation::full_recording::ActiveRecording;
use std::cell::{RefCell, RefMut};
use verbena_recorder::full::{crc32, Bytes, FullRecordingWriter, Item};

/// Guest memory with the recording of its accesses.
pub(super) struct RecordingMemory<'a, M> {
    mem: &'a M,
    full: &'a RefCell<ActiveRecording>,
}

impl<'a, M> RecordingMemory<'a, M> {
    pub(super) fn new(mem: &'a M, full: &'a RefCell<ActiveRecording>) -> Self {
        Self { mem, full }
    }

    fn writer(&self) -> RefMut<'_, FullRecordingWriter> {
        RefMut::map(self.full.borrow_mut(), ActiveRecording::writer)
    }
}

impl<M: GuestMemory> GuestMemory for RecordingMemory<'_, M> {
    fn contains(&self, addr: u64, length: u64) -> bool {
        let yes = self.mem.contains(addr, length);
        self.writer().put(&Item::Contains { addr, length, yes });
        yes
    }

    fn read(&self, addr: u64, to: &mut [u8]) -> Access {
        let done = self.mem.read(addr, to);
        self.writer().put(&Item::Read {
            addr,
            length: to.len() as u32,
            bytes: done.is_ok().then_some(Bytes(to)),
        });
        done
    }

    fn write(&self, addr: u64, from: &[u8]) -> Access {
        let done = self.mem.write(addr, from);
        self.writer().put(&Item::Write {
            addr,
            bytes: Bytes(from),
            done: done.is_ok(),
        });
        done
    }

    fn copy_from(&self, to: u64, of: &Self, from: u64, length: usize) -> Access {
        // The sum is taken before the copy, because the two ranges may overlap.
        let mut bytes = vec![0; length];
        let was = of.mem.read(from, &mut bytes).map(|()| crc32(&bytes));
        let done = self.mem.copy_from(to, of.mem, from, length);
        self.writer().put(&Item::Copy {
            to,
            from,
            length: length as u64,
            sum: done.ok().map(|()| was.unwrap_or(0)),
        });
        done
    }

    fn load32(&self, addr: u64) -> Access<u32> {
        let value = self.mem.load32(addr);
        self.writer().load32(addr, value.ok());
        value
    }

    fn store32(&self, addr: u64, value: u32) -> Access {
        let done = self.mem.store32(addr, value);
        self.writer().store32(addr, value, done.is_ok());
        done
    }

    fn load64(&self, addr: u64) -> Access<u64> {
        let value = self.mem.load64(addr);
        self.writer().put(&Item::Load64 {
            addr,
            value: value.ok(),
        });
        value
    }

    fn store64(&self, addr: u64, value: u64) -> Access {
        let done = self.mem.store64(addr, value);
        self.writer().put(&Item::Store64 {
            addr,
            value,
            done: done.is_ok(),
        });
        done
    }

    fn compare_swap64(&self, addr: u64, compare: u64, swap: u64) -> Access<u64> {
        let old = self.mem.compare_swap64(addr, compare, swap);
        self.writer().put(&Item::Swap64 {
            addr,
            compare,
            swap,
            old: old.ok(),
        });
        old
    }

    fn fetch_add64(&self, addr: u64, add: u64) -> Access<u64> {
        let old = self.mem.fetch_add64(addr, add);
        self.writer().put(&Item::Add64 {
            addr,
            add,
            old: old.ok(),
        });
        old
    }

    fn read_payload(&self, addr: u64, to: &mut [u8], place: usize) -> Access {
        let done = self.mem.read_payload(addr, to, place);
        let bytes = done.is_ok().then_some(&*to);
        self.writer().read_payload(addr, to.len(), place, bytes);
        done
    }

    fn begin_payload(&self, bytes: &[u8]) {
        self.writer().put(&Item::Payload {
            length: bytes.len() as u32,
            sum: crc32(bytes),
        });
    }

    fn write_payload(&self, addr: u64, from: &[u8]) -> Access {
        let done = self.mem.write_payload(addr, from);
        self.writer().put(&Item::WritePayload {
            addr,
            length: from.len() as u32,
            done: done.is_ok(),
        });
        done
    }
}
