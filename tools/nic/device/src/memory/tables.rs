// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The context tables in guest memory, and the publication of a context there.
//!
//! The device is the only writer of a context slot. A reader takes a copy, and repeats the copy if
//! the sequence counter was odd or has changed meanwhile (device specification, "Contexts").

use crate::config;
use crate::error::{bad, CmdError};
use crate::memory::{Area, GuestMemory};
use crate::misbehave::{Kind, Misbehaviour};
use std::mem::size_of;
use verbena_abi::cmd::{CmdStatus, SetTableChunk, Table, TABLE_CHUNK_SIZE};
use verbena_abi::ctx::{CqContext, EqContext, MemoryEntry, QpContext, SrqContext};
use verbena_abi::shared;
use verbena_abi::syndrome::Syndrome;
use zerocopy::{Immutable, IntoBytes};

/// The chunks of guest memory of each context table.
#[derive(Debug, Default)]
pub struct Tables {
    chunks: [Vec<Option<u64>>; 5],
    misbehave: Misbehaviour,
}

/// The slot where a context is published, with its sequence counter.
#[derive(Debug)]
pub struct ContextSlot {
    addr: u64,
    seq: u32,
    misbehave: Misbehaviour,
}

const fn shape(table: Table) -> (usize, u32) {
    match table {
        Table::Qpc => (size_of::<QpContext>(), config::MAX_QP),
        Table::Cqc => (size_of::<CqContext>(), config::MAX_CQ),
        Table::Srqc => (size_of::<SrqContext>(), config::MAX_SRQ),
        Table::Mpt => (size_of::<MemoryEntry>(), config::MAX_MR),
        Table::Eqc => (size_of::<EqContext>(), config::MAX_EQ),
    }
}

impl Tables {
    /// Creates context tables without memory.
    pub fn new(misbehave: Misbehaviour) -> Self {
        Self {
            misbehave,
            ..Self::default()
        }
    }

    /// Adds a chunk of guest memory to a context table.
    pub fn set_chunk<M: GuestMemory>(
        &mut self,
        mem: &M,
        request: &SetTableChunk,
    ) -> Result<(), CmdError> {
        let table =
            Table::from_raw(request.table).ok_or(bad(CmdStatus::Invalid, Syndrome::CmdNumber))?;
        let (size, limit) = shape(table);
        let chunk = request.chunk.get() as usize;
        if chunk >= (limit as usize * size).div_ceil(TABLE_CHUNK_SIZE) {
            return Err(bad(CmdStatus::Invalid, Syndrome::CmdNumber));
        }
        let addr = request.addr.get();
        if addr % 4096 != 0 {
            return Err(bad(CmdStatus::Invalid, Syndrome::CmdTranslation));
        }
        if !mem.contains(addr, TABLE_CHUNK_SIZE as u64) {
            return Err(bad(CmdStatus::BadAddress, Syndrome::CmdTranslation));
        }
        let chunks = &mut self.chunks[table.to_raw() as usize];
        if chunk >= chunks.len() {
            chunks.resize(chunk + 1, None);
        }
        if chunks[chunk].is_some() {
            return Err(bad(CmdStatus::Exists, Syndrome::CmdInUse));
        }
        chunks[chunk] = Some(addr);
        Ok(())
    }

    /// Returns the context slot of an object by its number. Fails if the table has no chunk for the
    /// number.
    pub fn slot<M: GuestMemory>(
        &self,
        mem: &M,
        table: Table,
        number: u32,
    ) -> Result<ContextSlot, CmdError> {
        let none = bad(CmdStatus::Invalid, Syndrome::CmdTableSlot);
        let per_chunk = TABLE_CHUNK_SIZE / shape(table).0;
        let chunks = &self.chunks[table.to_raw() as usize];
        let chunk = chunks
            .get(number as usize / per_chunk)
            .copied()
            .flatten()
            .ok_or(none)?;
        let addr = chunk + (number as usize % per_chunk * shape(table).0) as u64;
        // The counter continues from the value of the slot's previous object, so that a slow reader
        // notices the change.
        let seq = mem
            .load32(addr)
            .map_err(|_| bad(CmdStatus::BadAddress, Syndrome::CmdTableSlot))?;
        Ok(ContextSlot {
            addr,
            seq: seq.wrapping_add(1) & !1,
            misbehave: self.misbehave.clone(),
        })
    }
}

impl ContextSlot {
    /// Publishes a context. The first word of the context is the sequence counter.
    pub fn publish<M: GuestMemory, T: IntoBytes + Immutable>(&mut self, mem: &M, context: &T) {
        let bytes = context.as_bytes();
        shared::write_context(&Area::new(mem, self.addr), &mut self.seq, || {
            let _ = mem.write(self.addr + 4, bytes.get(4..).unwrap_or(&[]));
            self.misbehave.sleep_us(Kind::SeqSleep);
        });
    }
}
