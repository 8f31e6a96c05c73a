// SPDX-License-Identifier: GPL-2.0

//! Context tables. Device specification, "Contexts".
//!
//! The device publishes the state of each object in tables in the driver's memory. The tables grow
//! in chunks as numbers are used. The driver never writes a context, and reads each one as a whole,
//! under the context's sequence counter.

use crate::abi::{
    cmd::{
        SetTableChunk,
        Table, //
        TABLE_CHUNK_SIZE,
    },
    ctx::{
        CqContext,
        EqContext,
        MemoryEntry,
        QpContext,
        SrqContext, //
    },
    shared,
    Le32,
    Le64, //
};
use crate::{
    cmdq::{
        lent::{
            Borrowed,
            Lent, //
        },
        CommandQueue,
        Lender, //
    },
    health::Health,
    ring::SharedWords, //
};
use base::{
    bind::Binding,
    dma::{
        Chunk,
        Payer, //
    },
    sync::msleep, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
};
use zerocopy::FromBytes;

/// Context of one type of object.
pub(crate) trait TableContext: FromBytes + Copy {
    /// Table that holds contexts of this type.
    const TABLE: Table;

    /// Returns the sequence counter, which is the first word of each context.
    fn seq(&self) -> u32;
}

macro_rules! context {
    ($($type:ident in $table:ident),* $(,)?) => {
        $(impl TableContext for $type {
            const TABLE: Table = Table::$table;

            fn seq(&self) -> u32 {
                self.seq.get()
            }
        })*
    };
}

context! {
    QpContext in Qpc,
    CqContext in Cqc,
    SrqContext in Srqc,
    MemoryEntry in Mpt,
    EqContext in Eqc,
}

/// Limits for the attempts of a reader to read a context between two updates: first attempts
/// without sleeping, then rounds of such attempts with a sleep before each, because the device's
/// thread may have lost its CPU in the middle of an update.
const QUICK_TRIES: u32 = 100;
const SLOW_TRIES: u32 = 200;
const SLEEP_MS: u32 = 5;

/// The chunks of one table. A chunk is `None` until one of its numbers is used.
type TableChunks = KVVec<Option<Lent<Arc<Chunk>>>>;

/// Context tables of all object types.
#[pin_data]
pub(crate) struct ContextTables {
    dma: Binding,
    health: Arc<Health>,
    #[pin]
    chunks: Mutex<[TableChunks; Table::ALL.len()]>,
}

impl ContextTables {
    pub(crate) fn new(dma: &Binding, health: &Arc<Health>) -> impl PinInit<Self> {
        let (dma, health) = (dma.clone(), health.clone());
        pin_init!(Self {
            dma,
            health,
            chunks <- new_mutex!([const { KVVec::new() }; Table::ALL.len()]),
        })
    }

    const fn per_chunk<C: TableContext>() -> u32 {
        // CAST: The value is at most 2^16.
        (TABLE_CHUNK_SIZE / size_of::<C>()) as u32
    }

    /// Makes sure that the context of `number` has memory. Called before the object's CREATE
    /// command.
    pub(crate) fn ensure<C: TableContext>(&self, cmdq: &CommandQueue, number: u32) -> Result {
        let chunk = number / Self::per_chunk::<C>();
        let mut tables = self.chunks.lock();
        // CAST: The enumeration is small, see `ALL`.
        let table = tables.get_mut(C::TABLE as usize).ok_or(EINVAL)?;
        if table.get(chunk as usize).is_some_and(Option::is_some) {
            return Ok(());
        }
        if table.len() <= chunk as usize {
            let missing = chunk as usize + 1 - table.len();
            for _ in 0..missing {
                table.push(None, GFP_KERNEL)?;
            }
        }
        let memory = Chunk::alloc(&self.dma, Payer::Kernel, TABLE_CHUNK_SIZE)?;
        let memory = Lent::new(Arc::new(memory, GFP_KERNEL)?, &self.health);
        let request = |to: &Lender| SetTableChunk {
            table: C::TABLE.to_raw(),
            chunk: Le32::new(chunk),
            addr: Le64::new(memory.lend(to).addr()),
            ..Default::default()
        };
        cmdq.give(request, &[&memory as &dyn Borrowed])?;
        if let Some(place) = table.get_mut(chunk as usize) {
            *place = Some(memory);
        }
        Ok(())
    }

    /// Reads the most recent context of `number` that the device has published. Returns `EBUSY` if
    /// the device was writing the context at each attempt. May sleep.
    pub(crate) fn read<C: TableContext>(&self, number: u32) -> Result<C> {
        self.read_quickly(number).or_else(|e| {
            if e != EBUSY {
                return Err(e);
            }
            for _ in 0..SLOW_TRIES {
                msleep(SLEEP_MS);
                match self.read_quickly(number) {
                    Err(e) if e == EBUSY => {}
                    result => return result,
                }
            }
            Err(EBUSY)
        })
    }

    /// Reads a context like [`read`](Self::read), but without sleeping.
    pub(crate) fn read_quickly<C: TableContext>(&self, number: u32) -> Result<C> {
        let chunk = {
            let tables = self.chunks.lock();
            tables
                .get(C::TABLE as usize)
                .and_then(|table| table.get((number / Self::per_chunk::<C>()) as usize))
                .and_then(|chunk| Some(Arc::clone(chunk.as_ref()?)))
                .ok_or(ENOENT)?
        };
        let offset = (number % Self::per_chunk::<C>()) as usize * size_of::<C>();
        for _ in 0..QUICK_TRIES {
            let copy = |seq| {
                let context: C = chunk.read(offset)?;
                Ok::<_, Error>((context, context.seq() == seq))
            };
            if let Some(copied) = shared::read_context(&SharedWords::new(&chunk, offset), copy) {
                if let (context, true) = copied? {
                    return Ok(context);
                }
            }
            core::hint::spin_loop();
        }
        Err(EBUSY)
    }
}
