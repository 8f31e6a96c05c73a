// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Regions with gaps: each byte is where the list of elements says, no other memory is reached, and
//! no list delays the device beyond a slice.

use super::errors::outcome;
use super::keys::privileged;
use super::{Dice, Pair};
use crate::config::MAX_GAPS;
use crate::device::sched::{ELEMENT_BYTES, SLICE_BYTES};
use crate::memory::ring::{PageCache, Pages};
use crate::memory::GuestMemory;
use crate::mock::{flat, Driver, Ram, SendWr, WqeBytes, BASE};
use verbena_abi::cmd::*;
use verbena_abi::cqe::WcStatus;
use verbena_abi::ctx::{mr_flags, Element, Translation, TRANSLATION_ELEMENTS};
use verbena_abi::syndrome::Syndrome;
use verbena_abi::wqe::{
    FastRegSegment, WqeOpcode, DATA_OFFSET, DATA_OFFSET_ATOMIC, FAST_REG_OFFSET,
};
use zerocopy::IntoBytes;

/// First address of a region, in the region's own address space.
const IOVA: u64 = 0x7_0001;

/// Returns the translation of a list.
fn list(addr: u64, count: u32) -> Translation {
    Translation {
        addr: addr.into(),
        num_pages: count.into(),
        levels: TRANSLATION_ELEMENTS,
        ..Default::default()
    }
}

/// Writes a list of elements, given as addresses and lengths. Returns its translation.
fn write_list(ram: &Ram, at: u64, elements: &[(u64, u64)]) -> Translation {
    let mut end = 0u64;
    for (i, &(addr, length)) in elements.iter().enumerate() {
        end += length;
        let element = Element {
            addr: addr.into(),
            end: end.into(),
        };
        ram.write_struct(at + 16 * i as u64, &element).unwrap();
    }
    list(at, elements.len() as u32)
}

/// Returns elements of up to `piece` bytes in random order, spread over `bytes` bytes of memory
/// without overlap.
fn scattered(dice: &mut Dice, memory: u64, bytes: u64, piece: u64) -> Vec<(u64, u64)> {
    let (mut at, mut out) = (memory, Vec::new());
    while at < memory + bytes {
        let length = (dice.roll_long(piece + 1)).min(memory + bytes - at);
        out.push((at, length));
        at += length + dice.roll_long(piece);
    }
    for i in (1..out.len()).rev() {
        out.swap(i, dice.roll_long(i as u64 + 1) as usize);
    }
    out.truncate(MAX_GAPS as usize);
    out
}

fn total(elements: &[(u64, u64)]) -> u64 {
    elements.iter().map(|e| e.1).sum()
}

/// Returns the bytes of a region, in order.
fn gathered(d: &Driver, elements: &[(u64, u64)]) -> Vec<u8> {
    let bytes = elements.iter().map(|e| d.bytes(e.0, e.1 as usize));
    bytes.flatten().collect()
}

/// Creates a key for fast registration. Returns it with the work request that registers a list for
/// `length` bytes.
fn registration(p: &mut Pair, pdn: u32, pages: Translation, length: u64) -> (u32, WqeBytes) {
    let key = p.d.number() << 8;
    p.d.must(&CreateMr {
        key: key.into(),
        pdn: pdn.into(),
        flags: mr_flags::FAST_REG.into(),
        ..Default::default()
    });
    (key | 0x33, registers(key | 0x33, pages, length))
}

/// Returns the work request that registers a list for `length` bytes with an existing key.
fn registers(key: u32, pages: Translation, length: u64) -> WqeBytes {
    let segment = FastRegSegment {
        key: key.into(),
        access: 0xf.into(),
        iova: IOVA.into(),
        length: length.into(),
        page_offset: 0.into(),
        pages,
    };
    let mut wr = SendWr::new(WqeOpcode::FastReg, 1, &[]).encode();
    wr[FAST_REG_OFFSET..][..size_of_val(&segment)].copy_from_slice(segment.as_bytes());
    wr
}

/// Registers elements for the second queue pair, with a list in newly allocated memory. Returns the
/// key.
fn register(p: &mut Pair, elements: &[(u64, u64)]) -> u32 {
    let at = p.d.alloc(16 * elements.len() as u64);
    let pages = write_list(&p.d.ram, at, elements);
    let (key, wr) = registration(p, 8, pages, total(elements));
    p.d.post_raw(&mut p.b, &wr);
    assert_eq!(p.d.drain(&mut p.cq_b), [(1, WcStatus::Success)]);
    key
}

#[test]
fn each_byte_is_where_the_list_says() {
    let mut dice = Dice(1);
    let ram = Ram::new(1 << 16);
    for count in [1u32, 2, 3, 15, 16, 17, 31, 32, 33, 100, 511, 512] {
        for piece in [1, 7, 5000, 1 << 33] {
            let mut elements: Vec<(u64, u64)> = (0..count)
                .map(|_| (dice.roll_long(1 << 30) << 8 | 3, dice.roll_long(piece + 1)))
                .collect();
            // The region has at least one byte.
            elements[count as usize / 2].1 += 1;
            let walked = Pages::registered(&write_list(&ram, BASE + 8, &elements), 0).unwrap();
            let bytes = total(&elements);
            let mut cache = PageCache::default();
            for i in 0..400 {
                let edge = total(&elements[..dice.roll(count) as usize]).min(bytes - 1);
                let mut at = match dice.roll(4) {
                    0 => edge,
                    1 => edge.saturating_sub(1),
                    2 => bytes - 1,
                    _ => dice.roll_long(bytes),
                };
                let mut left = (1 + dice.roll_long(9 * piece)).min(bytes - at);
                if i % 5 == 0 {
                    cache.forget();
                }
                while left != 0 {
                    let mut start = 0;
                    let holds = elements.iter().find(|e| {
                        start += e.1;
                        at < start
                    });
                    let (addr, length) = *holds.unwrap();
                    start -= length;
                    let run = length.min(at - start + left) - (at - start);
                    let found = walked.run(&ram, &mut cache, at, left);
                    assert_eq!(found, Some((addr + (at - start), run)), "{at} of {bytes}");
                    (at, left) = (at + run, left - run);
                }
            }
            for beyond in [bytes, bytes + 1, bytes << 1, u64::MAX] {
                assert_eq!(walked.run(&ram, &mut cache, beyond, 8), None);
            }
        }
    }
}

#[test]
fn lists_are_limited_in_count_alignment_and_use() {
    let of = |addr, count| Pages::registered(&list(addr, count), 1 << 40).is_ok();
    assert!(of(8, 1) && of(BASE, MAX_GAPS));
    assert!(!of(BASE, 0) && !of(BASE, MAX_GAPS + 1) && !of(BASE, u32::MAX));
    assert!([1, 2, 4, 7].iter().all(|off| !of(BASE + off, 1)));
    assert!(of(u64::MAX - 23, 1) && !of(u64::MAX - 15, 1) && !of(u64::MAX - 23, 2));
    // Commands register pages only, and a ring has no gaps.
    assert!(Pages::new(&list(BASE, 1), 0).is_err());
    let mut p = Pair::new();
    let at = p.d.alloc(64);
    let mr = CreateMr {
        key: 0x7701.into(),
        pdn: 7.into(),
        length: 8.into(),
        pages: write_list(&p.d.ram, at, &[(at, 64)]),
        ..Default::default()
    };
    assert_eq!(p.d.cmd(&mr).unwrap_err().syndrome, Syndrome::CmdTranslation);
    let mut request = p.d.qp_request(&p.cq_a.clone(), &p.cq_a.clone());
    request.sq = mr.pages;
    let refused = p.d.create_qp_by(&request).unwrap_err();
    assert_eq!(refused.syndrome, Syndrome::CmdTranslation);
    // A work request with an invalid list is refused.
    for (addr, count) in [(at, 0), (at, MAX_GAPS + 1), (at + 4, 1), (u64::MAX - 7, 1)] {
        let mut p = privileged();
        let (_, wr) = registration(&mut p, 7, list(addr, count), 8);
        p.d.post_raw(&mut p.a, &wr);
        assert_eq!(p.d.drain(&mut p.cq_a), [(1, WcStatus::MwBindErr)]);
    }
}

#[test]
fn an_inconsistent_list_reaches_only_its_own_addresses() {
    let ram = Ram::new(1 << 16);
    let walk = |elements: &[(u64, u64)], at: u64| {
        for (i, &(addr, end)) in elements.iter().enumerate() {
            let element = Element {
                addr: addr.into(),
                end: end.into(),
            };
            ram.write_struct(BASE + 16 * i as u64, &element).unwrap();
        }
        let walked = Pages::registered(&list(BASE, elements.len() as u32), 0).unwrap();
        walked.run(&ram, &mut PageCache::default(), at, 100)
    };
    // The largest end, and addresses that would wrap.
    assert_eq!(
        walk(&[(64, u64::MAX)], 1 << 60),
        Some((64 + (1 << 60), 100))
    );
    assert_eq!(walk(&[(64, u64::MAX)], u64::MAX - 1), None);
    assert_eq!(walk(&[(u64::MAX - 8, 1000)], 8), Some((u64::MAX, 100)));
    assert_eq!(walk(&[(u64::MAX - 8, 1000)], 9), None);
    // If the ends do not ascend, the result is in one of the elements, between its end and the end
    // before it.
    assert_eq!(
        walk(&[(64, 100), (4096, 50), (8192, 200)], 120),
        Some((8192 + 70, 80))
    );
    assert_eq!(
        walk(&[(64, 100), (4096, 50), (8192, 200)], 60),
        Some((8192 + 10, 100))
    );
    assert_eq!(walk(&[(64, 0), (4096, 0)], 0), None);
    // Random lists cause no panic and no run that is empty or longer than requested.
    let mut dice = Dice(2);
    let mut found = 0;
    for _ in 0..20_000 {
        let count = 1 + dice.roll(40);
        let elements: Vec<(u64, u64)> = (0..count)
            .map(|_| {
                let near = dice.roll_long(300);
                let end = [near, near << 55, u64::MAX - near][dice.roll(3) as usize];
                (u64::MAX - dice.roll_long(600), end)
            })
            .collect();
        if let Some((_, run)) = walk(&elements, dice.roll_long(300)) {
            assert!(run != 0 && run <= 100);
            found += 1;
        }
    }
    assert!(found > 1000, "{found}");
    // A list that is not in memory, or only partly.
    for addr in [BASE - 16, BASE + (1 << 16) - 8] {
        let walked = Pages::registered(&list(addr, 2), 0).unwrap();
        assert_eq!(walked.run(&ram, &mut PageCache::default(), 0, 1), None);
    }
}

#[test]
fn every_operation_reaches_only_the_elements() {
    let mut dice = Dice(3);
    for round in 0..60u64 {
        let mut p = privileged();
        let memory = p.d.alloc(16 << 10);
        p.d.ram.write(memory, &[0xee; 16 << 10]).unwrap();
        let piece = [3, 40, 700, 5000][round as usize % 4];
        let elements = scattered(&mut dice, memory, 16 << 10, piece);
        let bytes = total(&elements);
        let key = register(&mut p, &elements);
        let (from, lkey) = p.d.region(16 << 10, round as u8);
        let offset = dice.roll_long(bytes);
        let length = (1 + dice.roll_long(bytes)).min(bytes - offset);
        let mut expected = gathered(&p.d, &elements);
        let (near, far) = (
            (from, length as u32, lkey),
            (IOVA + offset, length as u32, key),
        );
        // The peer writes to the region, or a receive does.
        if round % 3 == 0 {
            p.d.post_recv(&mut p.b, 2, &[far]);
            p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::Send, 3, &[near]));
            assert_eq!(p.d.drain(&mut p.cq_b), [(2, WcStatus::Success)]);
        } else {
            let write = SendWr::new(WqeOpcode::RdmaWrite, 3, &[near]).to(far.0, key);
            p.d.post_send(&mut p.a, &write);
        }
        assert_eq!(p.d.drain(&mut p.cq_a), [(3, WcStatus::Success)]);
        let (at, size) = (offset as usize, length as usize);
        expected[at..at + size].copy_from_slice(&p.d.bytes(from, size));
        assert_eq!(gathered(&p.d, &elements), expected, "round {round}");
        // The memory between the elements has not changed.
        let mut between = p.d.bytes(memory, 16 << 10);
        for &(addr, length) in &elements {
            let at = (addr - memory) as usize;
            between[at..at + length as usize].fill(0xee);
        }
        assert!(between.iter().all(|b| *b == 0xee), "round {round}");
        // The peer reads from the region, or a send does.
        let (to, rkey) = p.d.region(16 << 10, 0x55);
        let back = (to, length as u32, rkey);
        if round % 2 == 0 {
            let read = SendWr::new(WqeOpcode::RdmaRead, 4, &[back]).to(far.0, key);
            p.d.post_send(&mut p.a, &read);
            assert_eq!(p.d.drain(&mut p.cq_a), [(4, WcStatus::Success)]);
        } else {
            p.d.post_recv(&mut p.a, 5, &[back]);
            p.d.post_send(&mut p.b, &SendWr::new(WqeOpcode::Send, 4, &[far]));
            assert_eq!(p.d.drain(&mut p.cq_a), [(5, WcStatus::Success)]);
        }
        assert_eq!(p.d.bytes(to, size), expected[at..at + size]);
    }
}

#[test]
fn the_bounds_of_a_region_with_gaps_are_checked() {
    let bounds = Syndrome::RkeyBounds;
    for (offset, length, cause) in [
        (0u64, 300u32, None),
        (299, 1, None),
        (0, 301, Some(bounds)),
        (300, 1, Some(bounds)),
        (u64::MAX, 1, Some(bounds)),
        (300, 0, None),
    ] {
        let mut p = privileged();
        let (memory, lkey) = p.d.region(4096, 1);
        let elements = [(memory + 1, 100), (memory + 1000, 0), (memory + 501, 200)];
        let key = register(&mut p, &elements);
        let to = IOVA.wrapping_add(offset);
        let sge = [(memory + 2048, length, lkey)];
        let write = SendWr::new(WqeOpcode::RdmaWrite, 2, &sge).to(to, key);
        let before = p.d.bytes(memory, 4096);
        p.d.post_send(&mut p.a, &write);
        let expected = cause.map_or(WcStatus::Success, |_| WcStatus::RemAccessErr);
        assert_eq!(p.d.drain(&mut p.cq_a), [(2, expected)], "{offset} {length}");
        if let Some(cause) = cause {
            let syndrome = p.d.query_qp(p.b.qpn).syndrome.get();
            assert_eq!(syndrome, u32::from(cause.to_raw()));
            assert_eq!(p.d.bytes(memory, 4096), before);
        }
    }
    // Bytes beyond the end of the list cannot be reached.
    let mut p = privileged();
    let (memory, lkey) = p.d.region(4096, 1);
    let at = p.d.alloc(64);
    let pages = write_list(&p.d.ram, at, &[(memory, 100)]);
    let (key, wr) = registration(&mut p, 8, pages, 101);
    p.d.post_raw(&mut p.b, &wr);
    assert_eq!(p.d.drain(&mut p.cq_b), [(1, WcStatus::Success)]);
    let write = |offset: u64, length: u32| {
        let sge = [(memory + 2048, length, lkey)];
        SendWr::new(WqeOpcode::RdmaWrite, 2, &sge).to(IOVA + offset, key)
    };
    p.d.post_send(&mut p.a, &write(0, 100));
    assert_eq!(p.d.drain(&mut p.cq_a), [(2, WcStatus::Success)]);
    assert_eq!(
        outcome(&mut p, &write(100, 1).encode()).0,
        WcStatus::RemAccessErr
    );
    let syndrome = p.d.query_qp(p.b.qpn).syndrome.get();
    assert_eq!(syndrome, u32::from(Syndrome::RkeyUnreachable.to_raw()));
}

#[test]
fn a_key_with_gaps_is_valid_until_it_is_invalidated() {
    let mut p = privileged();
    let (memory, lkey) = p.d.region(4096, 1);
    let key = register(&mut p, &[(memory + 3, 5), (memory + 100, 7)]);
    let write =
        |key: u32| SendWr::new(WqeOpcode::RdmaWrite, 2, &[(memory + 2048, 12, lkey)]).to(IOVA, key);
    p.d.post_send(&mut p.a, &write(key));
    assert_eq!(p.d.drain(&mut p.cq_a), [(2, WcStatus::Success)]);
    let mut invalidate = SendWr::new(WqeOpcode::LocalInv, 3, &[]);
    invalidate.imm = key.to_le_bytes();
    p.d.post_send(&mut p.b, &invalidate);
    assert_eq!(p.d.drain(&mut p.cq_b), [(3, WcStatus::Success)]);
    // The same key is registered for pages, with another tag, and the peer invalidates it.
    let again = registers(key ^ 1, flat(memory + 512), 12);
    p.d.post_raw(&mut p.b, &again);
    assert_eq!(p.d.drain(&mut p.cq_b), [(1, WcStatus::Success)]);
    p.d.post_send(&mut p.a, &write(key ^ 1));
    assert_eq!(p.d.drain(&mut p.cq_a), [(2, WcStatus::Success)]);
    assert_eq!(p.d.bytes(memory + 512, 12), p.d.bytes(memory + 2048, 12));
    p.d.post_recv(&mut p.b, 5, &[]);
    let mut send = SendWr::new(WqeOpcode::SendInv, 6, &[]);
    send.imm = (key ^ 1).to_le_bytes();
    p.d.post_send(&mut p.a, &send);
    assert_eq!(p.d.drain(&mut p.cq_a), [(6, WcStatus::Success)]);
    let got = outcome(&mut p, &write(key ^ 1).encode()).0;
    assert_eq!(got, WcStatus::RemAccessErr);
}

#[test]
fn an_atomic_across_elements_is_refused() {
    for (offset, good) in [(7u64, true), (15, false), (23, true)] {
        let mut p = privileged();
        let (memory, lkey) = p.d.region(4096, 1);
        // IOVA + 7 and the address of its byte are aligned to 8 bytes. The word at offset 15 lies
        // in two elements.
        let elements = [(memory + 1, 18), (memory + 101, 5), (memory + 200, 9)];
        let key = register(&mut p, &elements);
        let sge = [(memory + 2048, 8, lkey)];
        let mut add = SendWr::new(WqeOpcode::FetchAdd, 2, &sge)
            .to(IOVA + offset, key)
            .encode();
        add.copy_within(DATA_OFFSET..DATA_OFFSET + 16, DATA_OFFSET_ATOMIC);
        p.d.post_raw(&mut p.a, &add);
        let expected = if good {
            WcStatus::Success
        } else {
            WcStatus::RemAccessErr
        };
        assert_eq!(p.d.drain(&mut p.cq_a), [(2, expected)], "{offset}");
    }
}

#[test]
fn elements_count_as_work_of_a_slice() {
    let mut p = privileged();
    let memory = p.d.alloc(4096);
    let elements: Vec<(u64, u64)> = (0..512).map(|i| (memory + 2 * i, 1)).collect();
    let key = register(&mut p, &elements);
    let (from, lkey) = p.d.region(4096, 1);
    let slices = |p: &mut Pair, to: u64, rkey: u32| {
        for i in 0..12 {
            let write = SendWr::new(WqeOpcode::RdmaWrite, i, &[(from, 512, lkey)]).to(to, rkey);
            p.d.post_send(&mut p.a, &write);
        }
        let mut slices = 1;
        while p.d.device.run_slice(&p.d.ram, p.d.now).busy {
            slices += 1;
        }
        assert_eq!(p.d.drain(&mut p.cq_a).len(), 12);
        slices
    };
    // A slice has no time for more than one of these messages.
    const _: () = assert!(512 * ELEMENT_BYTES > SLICE_BYTES);
    assert!(slices(&mut p, IOVA, key) >= 12);
    let (plain, _) = p.d.region(4096, 1);
    let whole = register(&mut p, &[(plain, 4096)]);
    assert!(slices(&mut p, IOVA, whole) < 4);
}
