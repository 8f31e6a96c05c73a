// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Context tables: where the context of each number lies, in chunks of memory in any order.

use super::*;
use crate::error::CmdError;
use crate::memory::GuestMemory;
use crate::mock::flat;
use verbena_abi::cmd::*;
use verbena_abi::ctx::*;
use verbena_abi::syndrome::Syndrome;

/// Creates an object whose context is in this table.
fn create(d: &mut Driver, table: Table, number: u32, cq: &CqHandle) -> Result<(), CmdError> {
    let ring = flat(crate::mock::BASE);
    match table {
        Table::Qpc => {
            let mut request = d.qp_request(cq, cq);
            request.qpn = number.into();
            d.cmd(&request).map(|_| ())
        }
        Table::Cqc => {
            let request = CreateCq {
                cqn: number.into(),
                eqn: 1.into(),
                slot: d.slot().into(),
                log_size: 2,
                ring,
                ..Default::default()
            };
            d.cmd(&request).map(|_| ())
        }
        Table::Srqc => {
            let request = CreateSrq {
                srqn: number.into(),
                slot: d.slot().into(),
                log_size: 2,
                log_stride: 6,
                ring,
                ..Default::default()
            };
            d.cmd(&request).map(|_| ())
        }
        Table::Mpt => {
            let request = CreateMr {
                key: (number << 8 | 1).into(),
                pages: ring,
                ..Default::default()
            };
            d.cmd(&request).map(|_| ())
        }
        Table::Eqc => {
            let request = CreateEq {
                eqn: number.into(),
                log_size: 2,
                log_entry_size: 4,
                ring,
                ci_addr: crate::mock::BASE.into(),
                ..Default::default()
            };
            d.cmd(&request).map(|_| ())
        }
    }
}

fn destroy(d: &mut Driver, table: Table, number: u32) {
    macro_rules! destroy {
        ($command:ident $id:expr) => {
            d.cmd(&$command {
                id: $id.into(),
                ..Default::default()
            })
            .map(|_| ())
        };
    }
    let outcome = match table {
        Table::Qpc => destroy!(DestroyQp number),
        Table::Cqc => destroy!(DestroyCq number),
        Table::Srqc => destroy!(DestroySrq number),
        Table::Mpt => destroy!(DestroyMr number << 8),
        Table::Eqc => destroy!(DestroyEq number),
    };
    assert_eq!(outcome, Ok(()));
}

/// Each table with the size of a context in bytes and the limit of the numbers.
const TABLES: [(Table, usize, u32); 5] = [
    (Table::Qpc, 512, 16384),
    (Table::Cqc, 128, 16384),
    (Table::Srqc, 128, 4096),
    (Table::Mpt, 128, 65536),
    (Table::Eqc, 64, 64),
];

#[test]
fn the_context_of_each_number_is_at_its_offset() {
    for (table, size, numbers) in TABLES {
        let mut d = Driver::new();
        let cq = d.create_cq(4);
        let of_chunk = (TABLE_CHUNK_SIZE / size) as u32;
        let last = (numbers - 1) / of_chunk;
        let mut chunks = vec![(0, d.table(table))];
        let without = |d: &mut Driver, number: u32| {
            let e = create(d, table, number, &cq).unwrap_err();
            let expected = (CmdStatus::Invalid, Syndrome::CmdTableSlot);
            assert_eq!((e.status, e.syndrome), expected, "{table:?} {number}");
        };
        if last != 0 {
            // Memory is given in descending order, so that no chunk lies directly after its
            // neighbour. The chunks between the second and the last one get no memory.
            for chunk in [last, 2, 1] {
                let first = chunk * of_chunk;
                without(&mut d, first);
                without(&mut d, first + of_chunk - 1);
                let addr = d.give_chunk(table, chunk);
                chunks.push((chunk, addr));
            }
            without(&mut d, 3 * of_chunk);
            without(&mut d, last * of_chunk - 1);
        }
        for (chunk, addr) in chunks {
            let first = chunk * of_chunk;
            let end = (first + of_chunk).min(numbers);
            for number in [(first + 60).min(end - 2), end - 1] {
                let before = d.bytes(addr, TABLE_CHUNK_SIZE);
                create(&mut d, table, number, &cq).unwrap();
                let after = d.bytes(addr, TABLE_CHUNK_SIZE);
                let at = (number - first) as usize * size;
                let mut expected = before.clone();
                expected[at..at + size].copy_from_slice(&after[at..at + size]);
                assert!(
                    after == expected,
                    "{table:?} {number}: only this context changes"
                );
                let named = u32::from_le_bytes(after[at + 4..at + 8].try_into().unwrap());
                let shift = if table == Table::Mpt { 8 } else { 0 };
                assert_eq!(named >> shift, number, "{table:?}");
                destroy(&mut d, table, number);
                // After the object is destroyed, the device does not access the memory of its
                // context.
                d.ram.write(addr + at as u64, &vec![0xee; size]).unwrap();
                d.pass(100_000_000);
                assert!(d.bytes(addr + at as u64, size) == vec![0xee; size]);
                d.ram.write(addr + at as u64, &vec![0; size]).unwrap();
            }
        }
    }
}

#[test]
fn a_sequence_counter_that_was_left_odd_becomes_even() {
    for (found, first) in [(0u32, 2u32), (1, 4), (6, 8), (7, 10), (u32::MAX - 1, 0)] {
        for (table, size, _) in TABLES {
            let mut d = Driver::new();
            let cq = d.create_cq(4);
            let at = d.table(table) + 50 * size as u64;
            d.ram.store32(at, found).unwrap();
            create(&mut d, table, 50, &cq).unwrap();
            assert_eq!(d.ram.load32(at), Ok(first), "{table:?} {found:#x}");
        }
    }
}

#[test]
fn no_object_is_created_if_its_context_cannot_be_reached() {
    for (table, size, _) in TABLES {
        let mut d = Driver::new();
        let cq = d.create_cq(4);
        d.ram.hide(d.table(table) + 50 * size as u64, 4);
        let e = create(&mut d, table, 50, &cq).unwrap_err();
        let expected = (CmdStatus::BadAddress, Syndrome::CmdTableSlot);
        assert_eq!((e.status, e.syndrome), expected, "{table:?}");
        d.ram.unhide();
        create(&mut d, table, 50, &cq).unwrap();
    }
}

#[test]
fn a_chunk_belongs_to_one_table() {
    // A chunk for one table is not used for another.
    for (table, size, numbers) in TABLES {
        let of_chunk = (TABLE_CHUNK_SIZE / size) as u32;
        if numbers <= of_chunk {
            continue;
        }
        let mut d = Driver::new();
        let cq = d.create_cq(4);
        for (other, size, numbers) in TABLES {
            if other != table && numbers as usize * size > TABLE_CHUNK_SIZE {
                d.give_chunk(other, 1);
            }
        }
        let e = create(&mut d, table, of_chunk, &cq).unwrap_err();
        assert_eq!(e.syndrome, Syndrome::CmdTableSlot, "{table:?}");
    }
    let context = |table| match table {
        Table::Qpc => size_of::<QpContext>(),
        Table::Cqc => size_of::<CqContext>(),
        Table::Srqc => size_of::<SrqContext>(),
        Table::Mpt => size_of::<MemoryEntry>(),
        Table::Eqc => size_of::<EqContext>(),
    };
    assert!(TABLES.iter().all(|t| context(t.0) == t.1));
}
