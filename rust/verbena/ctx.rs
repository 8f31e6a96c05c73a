// SPDX-License-Identifier: GPL-2.0

//! Context tables. Device specification, "Contexts".
//!
//! The device publishes what each object is in tables in the driver's memory, which grow by chunks
//! as numbers are used. The driver never writes a context; it reads one as a whole, under the
//! context's sequence counter.

use crate::abi::{
    cmd::{
        SetTableChunk,
        Table,
        TABLE_CHUNK_SIZE, //
    },
    ctx::{
        CqContext,
        EqContext,
        MemoryEntry,
        QpContext,
        SrqContext, //
    },
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
    health::Health, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
};
use rdma::{
    base::{
        bind::Binding,
        dma::{
            Chunk,
            Payer, //
        },
        sync::{
            dma_rmb,
            msleep, //
        }, //
    }, //
};
use zerocopy::FromBytes;

/// A type of context.
pub(crate) trait Context: FromBytes + Copy {
    /// Its table.
    const TABLE: Table;

    /// The sequence counter, which is the first word of each context.
    fn seq(&self) -> u32;
}

macro_rules! context {
    ($($type:ident in $table:ident),* $(,)?) => {
        $(impl Context for $type {
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

/// How often a reader tries to get a context between two updates without sleeping, and then with a
/// sleep between: the device's thread may have lost its CPU in the middle of an update.
const QUICK_TRIES: u32 = 100;
const SLOW_TRIES: u32 = 200;
const SLEEP_MS: u32 = 5;

/// The chunks of one table; `None` where no number has been used yet.
type Chunks = KVVec<Option<Lent<Arc<Chunk>>>>;

/// All context tables.
#[pin_data]
pub(crate) struct Tables {
    dma: Binding,
    health: Arc<Health>,
    #[pin]
    chunks: Mutex<[Chunks; Table::ALL.len()]>,
}

impl Tables {
    pub(crate) fn new(dma: &Binding, health: &Arc<Health>) -> impl PinInit<Self> {
        let (dma, health) = (dma.clone(), health.clone());
        pin_init!(Self {
            dma,
            health,
            chunks <- new_mutex!([const { KVVec::new() }; Table::ALL.len()]),
        })
    }

    const fn per_chunk<C: Context>() -> u32 {
        // CAST: at most 2^16.
        (TABLE_CHUNK_SIZE / size_of::<C>()) as u32
    }

    /// Makes sure that the context of `number` has memory. Before the object's CREATE command.
    pub(crate) fn ensure<C: Context>(&self, cmdq: &CommandQueue, number: u32) -> Result {
        let chunk = number / Self::per_chunk::<C>();
        let mut tables = self.chunks.lock();
        // CAST: a small enumeration, see `ALL`.
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

    /// Reads the context of `number` as the device published it last. `EBUSY` if there is no moment
    /// in which it is not being written. May sleep.
    pub(crate) fn read<C: Context>(&self, number: u32) -> Result<C> {
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

    /// As [`read`](Self::read), without a sleep.
    pub(crate) fn read_quickly<C: Context>(&self, number: u32) -> Result<C> {
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
            let before = Le32::from_raw(chunk.load32_acquire(offset)?).get();
            if before % 2 == 0 {
                let context: C = chunk.read(offset)?;
                dma_rmb();
                let after = Le32::from_raw(chunk.load32(offset)?).get();
                if before == after && context.seq() == before {
                    return Ok(context);
                }
            }
            core::hint::spin_loop();
        }
        Err(EBUSY)
    }
}
