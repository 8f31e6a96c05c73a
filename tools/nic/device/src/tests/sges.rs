// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Gathered and scattered data over regions of every kind of translation, compared with a plain
//! copy.

use super::{Dice, Pair};
use crate::memory::ring::Ring;
use crate::memory::GuestMemory;
use crate::mock::{flat, Driver, SendWr, BASE};
use crate::Config;
use verbena_abi::cmd::CreateMr;
use verbena_abi::cqe::WcStatus;
use verbena_abi::ctx::Translation;
use verbena_abi::wqe::WqeOpcode;

const PAGE: u64 = 4096;
/// Pages of a region: more than the device looks up at once.
const PAGES: u64 = 40;
/// Bytes of a region, which neither begins nor ends with a page.
const LENGTH: u64 = PAGES * PAGE - 700;
const FIRST: u64 = 123;

/// A region, and the addresses of its pages.
#[derive(Clone)]
struct Region {
    iova: u64,
    key: u32,
    pages: Vec<u64>,
}

impl Region {
    /// Registers a region whose translation has `levels` levels. Unless the region is contiguous,
    /// its pages come in runs of up to three.
    fn new(d: &mut Driver, dice: &mut Dice, levels: u8) -> Self {
        let base = d.alloc(PAGES * PAGE);
        let mut pages: Vec<u64> = (0..PAGES).map(|i| base + i * PAGE).collect();
        if levels != 0 {
            let mut runs: Vec<Vec<u64>> = vec![];
            while !pages.is_empty() {
                let count = 1 + dice.roll_long(3.min(pages.len() as u64)) as usize;
                let run = pages.drain(..count).collect();
                let at = dice.roll_long(runs.len() as u64 + 1) as usize;
                runs.insert(at, run);
            }
            pages = runs.concat();
        }
        // With two levels the region begins shortly before the end of the first leaf table, and the
        // second leaf table does not follow the first one in memory.
        let skipped = if levels == 2 { 500 } else { 0 };
        let table = match levels {
            0 => base,
            1 => {
                let table = d.alloc(PAGES * 8);
                put(d, table, &pages);
                table
            }
            _ => {
                let (second, first, top) = (d.alloc(PAGE), d.alloc(PAGE), d.alloc(16));
                put(d, top, &[first, second]);
                put(d, first + skipped * 8, &pages[..12]);
                put(d, second, &pages[12..]);
                table_end(d, second + (PAGES - 12) * 8);
                top
            }
        };
        let key = d.number() << 8 | 5;
        let iova = (0x5000_0000_0000 | u64::from(key) << 20) + dice.roll_long(5000);
        d.must(&CreateMr {
            key: key.into(),
            pdn: 7.into(),
            access: 0xf.into(),
            iova: iova.into(),
            length: LENGTH.into(),
            page_offset: (skipped * PAGE + FIRST).into(),
            pages: Translation {
                addr: table.into(),
                num_pages: (if levels == 0 {
                    1
                } else {
                    (skipped + PAGES) as u32
                })
                .into(),
                log_page_size: 12,
                levels,
                ..Default::default()
            },
            ..Default::default()
        });
        Self { iova, key, pages }
    }

    /// Returns all bytes of the region.
    fn bytes(&self, d: &Driver) -> Vec<u8> {
        let all = self.pages.iter().map(|page| d.bytes(*page, PAGE as usize));
        let all = all.collect::<Vec<_>>().concat();
        all[FIRST as usize..][..LENGTH as usize].to_vec()
    }

    /// Writes random bytes to all pages of the region.
    fn fill(&self, d: &Driver, dice: &mut Dice) {
        for page in &self.pages {
            let bytes: Vec<u8> = (0..PAGE).map(|_| dice.roll_long(256) as u8).collect();
            d.ram.write(*page, &bytes).unwrap();
        }
    }
}

fn put(d: &Driver, at: u64, words: &[u64]) {
    for (i, word) in words.iter().enumerate() {
        d.ram.store64(at + i as u64 * 8, *word).unwrap();
    }
}

/// Writes two entries after a table that are no page addresses.
fn table_end(d: &Driver, at: u64) {
    put(d, at, &[0xfff, 0xfff]);
}

/// Returns up to `most` SGEs for `length` bytes of a region from `offset` on. Empty SGEs may be
/// among them, whose keys are invalid.
fn cut(
    dice: &mut Dice,
    region: &Region,
    offset: u64,
    length: u64,
    most: u64,
) -> Vec<(u64, u32, u32)> {
    let count = 1 + dice.roll_long(most);
    let mut ends: Vec<u64> = (1..count)
        .map(|_| match dice.roll_long(3) {
            0 => 0,
            1 => length,
            _ => dice.roll_long(length + 1),
        })
        .collect();
    ends.push(length);
    ends.sort_unstable();
    let mut at = 0;
    let mut sges = vec![];
    for end in ends {
        let (addr, key) = if end == at {
            (dice.roll_long(1 << 40), 0xbad)
        } else {
            (region.iova + offset + at, region.key)
        };
        sges.push((addr, (end - at) as u32, key));
        at = end;
    }
    sges
}

fn length(dice: &mut Dice) -> u64 {
    match dice.roll_long(4) {
        0 => dice.roll_long(40),
        1 => dice.roll_long(5000),
        2 => dice.roll_long(LENGTH),
        _ => LENGTH,
    }
}

fn play(config: Config, seed: u64, rounds: u32) {
    let mut dice = Dice(seed);
    let mut p = Pair::on(Driver::with(config));
    p.d.watch = u32::MAX;
    let regions: Vec<Region> = (0..8)
        .map(|i| Region::new(&mut p.d, &mut dice, [0, 1, 2, 1][i % 4]))
        .collect();
    for region in &regions {
        region.fill(&p.d, &mut dice);
    }
    for round in 0..rounds {
        let source = &regions[dice.roll_long(4) as usize];
        let target = &regions[4 + dice.roll_long(4) as usize];
        let count = length(&mut dice);
        let from = dice.roll_long(LENGTH - count + 1);
        let to = dice.roll_long(LENGTH - count + 1);
        let mut expected = target.bytes(&p.d);
        let bytes = source.bytes(&p.d)[from as usize..][..count as usize].to_vec();
        expected[to as usize..][..count as usize].copy_from_slice(&bytes);
        let wr = match dice.roll_long(3) {
            0 => {
                let sges = cut(&mut dice, source, from, count, 4);
                SendWr::new(WqeOpcode::RdmaWrite, 1, &sges).to(target.iova + to, target.key)
            }
            1 => {
                let sges = cut(&mut dice, target, to, count, 4);
                SendWr::new(WqeOpcode::RdmaRead, 1, &sges).to(source.iova + from, source.key)
            }
            _ => {
                // The receive may have more room than the message needs.
                let more = dice.roll_long(LENGTH - to - count + 1);
                let sges = cut(&mut dice, target, to, count + more, 3);
                p.d.post_recv(&mut p.b, 2, &sges);
                let sges = cut(&mut dice, source, from, count, 4);
                SendWr::new(WqeOpcode::Send, 1, &sges)
            }
        };
        p.d.post_send(&mut p.a, &wr);
        p.d.pass(1_000_000);
        let what = format!("seed {seed}, round {round}: {wr:x?}");
        assert_eq!(p.d.drain(&mut p.cq_a), [(1, WcStatus::Success)], "{what}");
        p.d.drain(&mut p.cq_b);
        assert!(target.bytes(&p.d) == expected, "{what}");
    }
}

#[test]
fn by_reference() {
    for seed in 0..4 {
        play(Config::default(), seed, 40);
    }
}

#[test]
fn through_frames() {
    let config = || Config {
        wire_local: true,
        ..Config::default()
    };
    for seed in 10..12 {
        play(config(), seed, 25);
    }
}

#[test]
fn a_table_is_not_read_beyond_its_end() {
    // The last page address lies at the end of all memory.
    let mut p = Pair::new();
    let (other, good) = p.d.region(8192, 1);
    let data = p.d.alloc(4 * PAGE);
    let end = BASE + (32 << 20);
    let pages: Vec<u64> = [0, 2, 1, 3].map(|i| data + i * PAGE).to_vec();
    put(&p.d, end - 32, &pages);
    let top = p.d.alloc(8);
    // With two levels the table is the end of a leaf table, from its 509th entry on.
    put(&p.d, top, &[end - PAGE]);
    for (levels, addr, skipped) in [(1, end - 32, 0), (2, top, 508)] {
        let key = 0x6600 + u32::from(levels);
        p.d.must(&CreateMr {
            key: key.into(),
            pdn: 7.into(),
            access: 0xf.into(),
            length: (4 * PAGE).into(),
            page_offset: (skipped * PAGE).into(),
            pages: Translation {
                addr: addr.into(),
                num_pages: (skipped as u32 + 4).into(),
                log_page_size: 12,
                levels,
                ..Default::default()
            },
            ..Default::default()
        });
        let from = 3 * PAGE - 100;
        let wr = SendWr::new(WqeOpcode::RdmaWrite, 1, &[(from, 4196, key)]).to(other, good);
        p.d.post_send(&mut p.a, &wr);
        assert_eq!(p.d.drain(&mut p.cq_a), [(1, WcStatus::Success)], "{levels}");
        p.d.must(&verbena_abi::cmd::DestroyMr {
            id: key.into(),
            ..Default::default()
        });
    }
}

#[test]
fn entries_of_a_ring_lie_in_its_pages_in_order() {
    let mut d = Driver::new();
    let data = d.alloc(8 * PAGE);
    let pages: Vec<u64> = [5, 1, 2, 7, 0, 3, 6, 4].map(|i| data + i * PAGE).to_vec();
    let table = d.alloc(64);
    put(&d, table, &pages);
    for (log_size, log_stride) in [(3, 12), (9, 6), (5, 10), (0, 6), (6, 6), (7, 6)] {
        let raw = Translation {
            addr: table.into(),
            num_pages: 8.into(),
            log_page_size: 12,
            levels: 1,
            ..Default::default()
        };
        let ring = Ring::new(&d.ram, &raw, log_size, log_stride).unwrap();
        let whole = Ring::new(&d.ram, &flat(data), log_size, log_stride).unwrap();
        let size = 1u32 << log_size;
        assert_eq!((ring.size(), whole.size()), (size, size));
        for index in (0..2 * size).chain([u32::MAX, u32::MAX - size, 1 << 31]) {
            let at = u64::from(index % size) << log_stride;
            let there = pages[(at / PAGE) as usize] + at % PAGE;
            assert_eq!(ring.entry(index), there, "{log_size} {log_stride} {index}");
            assert_eq!(whole.entry(index), data + at);
        }
    }
}

#[test]
fn only_the_written_part_of_a_receive_has_to_be_valid() {
    // The SGE of the first receive goes beyond its region, and the second SGE of the second receive
    // has an invalid key. Messages that do not reach these bytes succeed.
    for (length, good) in [(1, true), (50, true), (51, false), (100, false)] {
        for wire_local in [false, true] {
            let config = Config {
                wire_local,
                ..Config::default()
            };
            let mut p = Pair::on(Driver::with(config));
            let (from, key) = p.d.region(4096, 1);
            let to = p.d.alloc(4096);
            p.d.create_mr(0x6601, to, 50, 1).unwrap();
            p.d.post_recv(&mut p.b, 2, &[(to, 100, 0x6601)]);
            p.d.post_recv(&mut p.b, 3, &[(to, 50, 0x6601), (to, 50, 0x6602)]);
            for _ in 0..2 {
                let wr = SendWr::new(WqeOpcode::Send, 1, &[(from, length, key)]);
                p.d.post_send(&mut p.a, &wr);
                p.d.run();
                let (sent, received) = if good {
                    (WcStatus::Success, WcStatus::Success)
                } else {
                    (WcStatus::RemOpErr, WcStatus::LocProtErr)
                };
                assert_eq!(p.d.poll(&mut p.cq_a).unwrap().status(), sent, "{length}");
                assert_eq!(p.d.poll(&mut p.cq_b).unwrap().status(), received);
                if !good {
                    break;
                }
                assert_eq!(
                    p.d.bytes(to, length as usize),
                    p.d.bytes(from, length as usize)
                );
            }
            assert_eq!(p.d.bytes(to + 50, 50), [0; 50]);
        }
    }
}
