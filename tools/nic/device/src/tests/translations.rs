// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Translations: each byte of a region or a ring is where its tables say, in contiguous memory, in one table and in a table of
//! tables, with pages of all sizes.

use super::*;
use crate::memory::ring::{PageCache, Pages, Ring};
use crate::memory::GuestMemory;
use crate::mock::{flat, Ram, SendWr, BASE};
use verbena_abi::cmd::*;
use verbena_abi::cqe::WcStatus;
use verbena_abi::ctx::{QpState, Translation};
use verbena_abi::syndrome::Syndrome;
use verbena_abi::wqe::WqeOpcode;

/// Random number generator (splitmix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }
}

/// Writes the tables of the given pages, each below the one before it, so that no leaf table is
/// followed by the next one and nothing follows the first. `end` moves down to the last table.
fn tables(ram: &Ram, end: &mut u64, pages: &[u64], log_page: u8, levels: u8) -> Translation {
    let mut table = |entries: &[u64]| {
        *end -= entries.len() as u64 * 8;
        for (i, entry) in entries.iter().enumerate() {
            ram.store64(*end + i as u64 * 8, *entry).unwrap();
        }
        *end
    };
    let addr = match levels {
        0 => pages[0],
        1 => table(pages),
        _ => {
            let leaves: Vec<u64> = pages.chunks(512).map(&mut table).collect();
            table(&leaves)
        }
    };
    Translation {
        addr: addr.into(),
        num_pages: if levels == 0 { 1 } else { pages.len() as u32 }.into(),
        log_page_size: log_page,
        levels,
        ..Default::default()
    }
}

#[test]
fn each_byte_is_where_the_tables_say() {
    let mut dice = Dice(1);
    let ram = Ram::new(1 << 20);
    for (log_page, levels, count) in [
        (12, 1, 1u32),
        (12, 1, 2000),
        (13, 1, 33),
        (16, 1, 600),
        (30, 1, 70),
        (12, 2, 1),
        (12, 2, 512),
        (12, 2, 513),
        (12, 2, 3000),
        (21, 2, 1100),
        (30, 2, 515),
    ] {
        // Pages at random addresses. Often the next page is contiguous, and sometimes it lies
        // before the last one.
        let mut next = 1u64 << 44;
        let mut pages = vec![];
        for _ in 0..count {
            match dice.roll(8) {
                0 => next = (dice.roll(1 << 30) + 1) << log_page,
                1 => next -= 2 << log_page,
                _ => {}
            }
            pages.push(next);
            next += 1 << log_page;
        }
        let mut end = BASE + (1 << 20);
        let raw = tables(&ram, &mut end, &pages, log_page, levels);
        let bytes = u64::from(count) << log_page;
        let walked = Pages::new(&raw, bytes).unwrap();
        let mut cache = PageCache::default();
        for i in 0..4000 {
            // Positions at the ends of pages and of leaf tables, and random positions.
            let page = match dice.roll(3) {
                0 => dice.roll(u64::from(count)),
                1 => (512 * dice.roll(7)).min(u64::from(count) - 1),
                _ => u64::from(count) - 1,
            };
            let inside = match dice.roll(4) {
                0 => 0,
                1 => (1 << log_page) - 1,
                _ => dice.roll(1 << log_page),
            };
            let (mut at, mut left) = (page << log_page | inside, 1 + dice.roll(9 << log_page));
            left = left.min(bytes - at);
            if i % 5 == 0 {
                cache.forget();
            }
            while left != 0 {
                let (addr, run) = walked.run(&ram, &mut cache, at, left).expect("memory");
                assert!(run != 0 && run <= left);
                // All of the run lies in the pages of the tables.
                let mut seen = 0;
                while seen < run {
                    let (page, inside) = ((at + seen) >> log_page, (at + seen) % (1 << log_page));
                    assert_eq!(addr + seen, pages[page as usize] + inside);
                    seen += (1 << log_page) - inside;
                }
                // The run is as long as possible.
                if run < left {
                    let page = ((at + run) >> log_page) as usize;
                    assert!((at + run) % (1 << log_page) == 0 && pages[page] != addr + run);
                }
                (at, left) = (at + run, left - run);
            }
        }
        // Positions after the last page have no address.
        for beyond in [bytes, bytes + 1, bytes << 1, u64::MAX - 8] {
            cache.forget();
            assert_eq!(walked.run(&ram, &mut cache, beyond, 8), None);
        }
        let (_, run) = walked.run(&ram, &mut cache, bytes - 1, 8).expect("a byte");
        assert_eq!(run, 1);
        assert!(Pages::new(&raw, bytes + 1).is_err());
    }
}

#[test]
fn a_page_that_is_not_aligned_to_its_size_cannot_be_reached() {
    let ram = Ram::new(1 << 20);
    for log_page in [12, 16] {
        for levels in [1, 2] {
            let mut end = BASE + (1 << 20);
            let pages = [1u64 << 32, (2 << 32) + (1 << (log_page - 1)), 3 << 32];
            let raw = tables(&ram, &mut end, &pages, log_page, levels);
            let walked = Pages::new(&raw, 3 << log_page).unwrap();
            let mut cache = PageCache::default();
            let mut at = |page: u64| walked.run(&ram, &mut cache, page << log_page, 8);
            assert_eq!((at(0), at(1)), (Some((1 << 32, 8)), None));
            assert_eq!(at(2), Some((3 << 32, 8)));
        }
    }
    // A key with such a page cannot be used.
    let mut p = Pair::new();
    let (from, lkey) = p.d.region(4096, 1);
    let table = p.d.alloc(4096);
    p.d.ram.store64(table, from + 64).unwrap();
    let key = 0x5011;
    let mr = CreateMr {
        key: key.into(),
        pdn: 7.into(),
        access: 0xf.into(),
        length: 4096.into(),
        pages: Translation {
            addr: table.into(),
            num_pages: 1.into(),
            log_page_size: 12,
            levels: 1,
            ..Default::default()
        },
        ..Default::default()
    };
    p.d.must(&mr);
    let write = SendWr::new(WqeOpcode::RdmaWrite, 1, &[(from, 8, lkey)]).to(0, key);
    p.d.post_send(&mut p.a, &write);
    assert_eq!(p.d.drain(&mut p.cq_a), [(1, WcStatus::RemAccessErr)]);
    let cause = p.d.query_qp(p.b.qpn).syndrome.get();
    assert_eq!(cause, u32::from(Syndrome::RkeyUnreachable.to_raw()));
}

#[test]
fn a_ring_keeps_the_pages_that_its_tables_named() {
    for (log_page, levels, log_size, log_stride) in [
        (12, 1, 0, 6),
        (12, 1, 6, 6),
        (12, 1, 7, 6),
        (12, 1, 11, 10),
        (12, 2, 14, 6),
        (12, 2, 15, 7),
        (16, 1, 11, 10),
        (16, 2, 3, 5),
        (12, 0, 10, 6),
    ] {
        let ram = Ram::new(8 << 20);
        let size: u64 = 1 << (log_size + log_stride);
        let count = if levels == 0 {
            1
        } else {
            size.div_ceil(1 << log_page)
        };
        let aligned = (BASE + 0xffff) & !0xffff;
        let page = |i: u64| aligned + (count - 1 - i) * (1 << log_page);
        // The tables have more pages than the ring needs. The device ignores the others.
        let mut pages: Vec<u64> = (0..count).map(page).collect();
        if levels != 0 {
            pages.extend([1, 2, 3]);
        }
        let mut end = BASE + (8 << 20);
        let raw = tables(&ram, &mut end, &pages, log_page, levels);
        let ring = Ring::new(&ram, &raw, log_size, log_stride).unwrap();
        assert_eq!((ring.size(), ring.raw), (1 << log_size, raw));
        assert_eq!((ring.log_size(), ring.log_stride()), (log_size, log_stride));
        // The ring does not need its tables any more.
        ram.hide(end, BASE + (8 << 20) - end);
        for index in [0, 1, 63, 64, (1 << log_size) - 1, 1 << log_size, u32::MAX] {
            let offset = u64::from(index) % (1 << log_size) << log_stride;
            let expected = if levels == 0 {
                pages[0] + offset
            } else {
                pages[(offset >> log_page) as usize] + offset % (1 << log_page)
            };
            assert_eq!(ring.entry(index), expected, "{index} of 2^{log_size}");
        }
        ram.unhide();
        // A ring is refused if one of its pages is not in memory or not aligned.
        for bad in [0, count / 2, count - 1] {
            if levels == 0 {
                continue;
            }
            for addr in [BASE - (1 << log_page), page(bad) + 64] {
                let mut pages = pages.clone();
                pages[bad as usize] = addr;
                let mut end = BASE + (8 << 20);
                let raw = tables(&ram, &mut end, &pages, log_page, levels);
                let e = Ring::new(&ram, &raw, log_size, log_stride).unwrap_err();
                let expected = (CmdStatus::BadAddress, Syndrome::CmdTranslation);
                assert_eq!((e.status, e.syndrome), expected, "{addr:#x}");
            }
        }
        // A ring with too few pages is refused.
        if levels != 0 {
            let few = Translation {
                num_pages: (count as u32 - 1).into(),
                ..raw
            };
            let e = Ring::new(&ram, &few, log_size, log_stride).unwrap_err();
            assert_eq!(e.status, CmdStatus::Invalid);
        }
    }
}

#[test]
fn all_of_a_ring_has_to_be_in_memory() {
    let ram = Ram::new(1 << 20);
    let end = BASE + (1 << 20);
    let of = |addr: u64| {
        Ring::new(&ram, &flat(addr), 4, 6)
            .map(|_| ())
            .map_err(|e| e.status)
    };
    assert_eq!(of(end - 1024), Ok(()));
    assert_eq!(of(end - 1024 + 64), Err(CmdStatus::BadAddress));
    assert_eq!(of(BASE), Ok(()));
    assert_eq!(of(BASE - 64), Err(CmdStatus::BadAddress));
    for off in [1, 4, 8, 32, 63] {
        assert_eq!(of(BASE + off), Err(CmdStatus::Invalid), "{off}");
    }
    // A page may be larger than the ring. Only the ring has to be in memory.
    let ram = Ram::new((1 << 20) + 1024);
    let page = BASE + (1 << 20);
    let raw = tables(&ram, &mut { page }, &[page], 20, 1);
    let fits = |log_size: u8| Ring::new(&ram, &raw, log_size, 6).is_ok();
    assert_eq!([3, 4, 5].map(fits), [true, true, false]);
}

#[test]
fn queues_of_scattered_pages_work_without_their_tables() {
    for (log_page, levels) in [(12, 1), (12, 2), (13, 1)] {
        let mut p = Pair::new();
        let size = 1u64 << log_page;
        // The pages of a ring are in descending order. With the large strides, 16 entries use all
        // of them.
        let scattered = |d: &mut Driver, bytes: u64| {
            let count = bytes.div_ceil(size);
            let memory = (d.alloc((count + 1) * size) + size - 1) & !(size - 1);
            let pages: Vec<u64> = (0..count).rev().map(|i| memory + i * size).collect();
            let mut end = d.alloc(8192) + 8192;
            let first = end - 4096;
            let raw = tables(&d.ram, &mut end, &pages, log_page, levels);
            (raw, pages, first)
        };
        let mut request = p.d.qp_request(&p.cq_a.clone(), &p.cq_a.clone());
        (request.log_sq_stride, request.log_rq_stride) = (10, 10);
        let (sq, sends, tables_of_sq) = scattered(&mut p.d, 16 << 10);
        let (rq, recvs, tables_of_rq) = scattered(&mut p.d, 16 << 10);
        (request.sq, request.rq) = (sq, rq);
        let a = p.d.create_qp_by(&request).unwrap();
        for table in [tables_of_sq, tables_of_rq] {
            p.d.ram.write(table, &[0xee; 4096]).unwrap();
        }
        p.b = p.d.create_qp(&p.cq_b, &p.cq_b);
        p.d.connect(&a, &p.b);
        let place = |pages: &[u64], i: u64| {
            let offset = i % 16 * 1024;
            pages[(offset / size) as usize] + offset % size
        };
        for i in 0..40u64 {
            let wr = SendWr::new(WqeOpcode::RdmaWrite, 100 + i, &[]).encode();
            p.d.ram.write(place(&sends, i), &wr).unwrap();
            let id = (200 + i).to_le_bytes();
            p.d.ram.write(place(&recvs, i), &id).unwrap();
            let words = p.d.words();
            use verbena_abi::doorbell;
            doorbell::post_recv(&words, a.slot.into(), i as u32 + 1, || {});
            doorbell::post_send(&words, a.slot.into(), i as u32 + 1, || {});
            p.d.post_send(&mut p.b, &SendWr::new(WqeOpcode::Send, i, &[]));
            let mut done = p.d.drain(&mut p.cq_a);
            done.sort_by_key(|d| d.0);
            let ok = WcStatus::Success;
            assert_eq!(done, [(100 + i, ok), (200 + i, ok)], "{log_page} {levels}");
            p.d.drain(&mut p.cq_b);
        }
        let state = p.d.query_qp(a.qpn).attr.qp_state;
        assert_eq!(state, QpState::Rts.to_raw());
    }
}
