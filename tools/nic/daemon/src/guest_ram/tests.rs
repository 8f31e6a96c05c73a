// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Mapping, unmapping and accesses of guest memory.

use super::*;
use rustix::fs::{fcntl_add_seals, ftruncate, memfd_create, MemfdFlags};
use std::os::fd::OwnedFd;

const PAGE: u64 = 4096;

pub(super) fn memfd(len: u64) -> OwnedFd {
    sealed(MemfdFlags::empty(), len).unwrap()
}

/// Returns a file as QEMU passes it, or `None` if the host has no such pages.
fn sealed(flags: MemfdFlags, len: u64) -> Option<OwnedFd> {
    let flags = flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = memfd_create("ram", flags).ok()?;
    ftruncate(&fd, len).unwrap();
    fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
    Some(fd)
}

/// Returns memory with two adjacent regions, a hole, and a read-only region.
fn ram() -> GuestRam {
    let mut ram = GuestRam::new();
    let fd = memfd(4 * PAGE);
    ram.map(0x2000, PAGE, &fd, PAGE, true).unwrap();
    ram.map(0x1000, PAGE, &fd, 0, true).unwrap();
    ram.map(0x8000, PAGE, &fd, 2 * PAGE, false).unwrap();
    ram
}

#[test]
fn accesses_cross_regions_and_stop_at_holes() {
    let ram = ram();
    let data: Vec<u8> = (0..=255).collect();
    ram.write(0x1f80, &data).unwrap();
    let mut back = [0; 256];
    ram.read(0x1f80, &mut back).unwrap();
    assert_eq!(back[..], data[..]);
    ram.copy_from(0x1000, &ram, 0x1f80, 256).unwrap();
    ram.read(0x1000, &mut back).unwrap();
    assert_eq!(back[..], data[..]);
    assert_eq!(ram.read(0x2f80, &mut back), Err(Unreachable));
    assert_eq!(ram.read(0xfff, &mut back), Err(Unreachable));
    assert_eq!(ram.copy_from(0x2f80, &ram, 0x1000, 256), Err(Unreachable));
    assert_eq!(ram.read(u64::MAX - 3, &mut back), Err(Unreachable));
    assert!(ram.contains(0x1000, 2 * PAGE) && !ram.contains(0x1000, 2 * PAGE + 1));
    assert!(!ram.contains(u64::MAX, 2) && ram.contains(u64::MAX, 0));
}

#[test]
fn read_only_memory_is_not_written() {
    let ram = ram();
    assert_eq!(ram.load32(0x8000), Ok(0));
    assert_eq!(ram.store32(0x8000, 1), Err(Unreachable));
    assert_eq!(ram.write(0x8000, &[1]), Err(Unreachable));
    assert_eq!(ram.copy_from(0x8000, &ram, 0x1000, 8), Err(Unreachable));
    assert_eq!(ram.copy_from(0x1000, &ram, 0x8000, 8), Ok(()));
}

#[test]
fn words_are_aligned_and_in_bounds() {
    let ram = ram();
    ram.store64(0x1ff8, 0x0102_0304_0506_0708).unwrap();
    assert_eq!(ram.load32(0x1ffc), Ok(0x0102_0304));
    assert_eq!(ram.load32(0x1ffe), Err(Unreachable));
    assert_eq!(ram.load64(0x1ffc), Err(Unreachable));
    assert_eq!(ram.load32(0x3000), Err(Unreachable));
    assert_eq!(ram.fetch_add64(0x1000, 5), Ok(0));
    assert_eq!(ram.compare_swap64(0x1000, 4, 9), Ok(5));
    assert_eq!(ram.compare_swap64(0x1000, 5, 9), Ok(5));
    assert_eq!(ram.load64(0x1000), Ok(9));
}

#[test]
fn unmapping_removes_the_regions_inside_the_range() {
    let mut ram = ram();
    assert_eq!(ram.load32(0x2000), Ok(0));
    assert_eq!(ram.unmap(0x2000, PAGE).unwrap().count(), 1);
    assert_eq!(ram.load32(0x2000), Err(Unreachable));
    assert_eq!(ram.load32(0x1000), Ok(0));
    assert_eq!(ram.unmap(0, u64::MAX).unwrap().count(), 2);
    assert_eq!((ram.size(), ram.load32(0x1000)), (0, Err(Unreachable)));
}

#[test]
fn a_part_of_a_region_cannot_be_unmapped() {
    let mut ram = ram();
    for (addr, len) in [
        (0x2000, PAGE / 2),
        (0x2800, PAGE),
        (0x2800, 8),
        (0x1800, 2 * PAGE),
        (0, 0x1001),
    ] {
        assert!(ram.unmap(addr, len).is_err(), "{addr:#x}+{len:#x}");
    }
    // Ranges without a region, and empty ranges, unmap nothing.
    for (addr, len) in [(0, 0x1000), (0x3000, PAGE), (0x1000, 0), (0x1800, 0)] {
        assert_eq!(
            ram.unmap(addr, len).unwrap().count(),
            0,
            "{addr:#x}+{len:#x}"
        );
    }
    assert_eq!(ram.size(), 3 * PAGE);
    assert_eq!(ram.unmap(0x1000, 2 * PAGE).unwrap().count(), 2);
}

#[test]
fn a_file_that_can_become_shorter_is_refused() {
    let fd = memfd_create("ram", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, PAGE).unwrap();
    let mut ram = GuestRam::new();
    assert!(ram.map(0, PAGE, &fd, 0, true).is_err());
    fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
    ram.map(0, PAGE, &fd, 0, true).unwrap();
    assert!(ftruncate(&fd, 0).is_err());
    assert_eq!(ram.load64(PAGE - 8), Ok(0));
}

#[test]
fn bad_ranges_are_refused() {
    let mut ram = ram();
    let fd = memfd(PAGE);
    for (addr, len, offset) in [
        (0x1000, PAGE, 0),
        (0x0, 2 * PAGE, 0),
        (0x0, 16 * PAGE, 0),
        (0x1800, PAGE, 0),
        (0x4000, 0, 0),
        (0x4000, 2 * PAGE, 0),
        (0x4000, PAGE, PAGE),
        (0x4000, PAGE, u64::MAX - PAGE + 1),
        (u64::MAX - PAGE + 2, PAGE, 0),
    ] {
        assert!(
            ram.map(addr, len, &fd, offset, true).is_err(),
            "{addr:#x}+{len:#x}"
        );
    }
    ram.map(u64::MAX - PAGE + 1, PAGE, &fd, 0, true).unwrap();
    ram.write(u64::MAX - 7, &[7; 8]).unwrap();
    assert_eq!(ram.load64(u64::MAX - 7), Ok(0x0707_0707_0707_0707));
}

/// Maps a file with pages of `page` bytes in the parts into which QEMU divides the RAM of a PC.
/// Returns false if the host has no such pages.
fn divided(flags: MemfdFlags, page: u64) -> bool {
    let Some(fd) = sealed(flags, 2 * page) else {
        return false;
    };
    let mut whole = GuestRam::new();
    if whole.map(0, 2 * page, &fd, 0, true).is_err() {
        return false;
    }
    let (low, high) = (0xa_0000, 0xc_0000);
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    let (part, before) = HostMapping::new(&fd, high, page, page, prot).unwrap();
    assert_eq!((part.size as u64, before as u64), (2 * page, high));
    let mut ram = GuestRam::new();
    ram.map(0, low, &fd, 0, true).unwrap();
    let rest = 2 * page - high;
    ram.map(high, rest, &fd, high, true).unwrap();
    for addr in [0, low - 8, high, page - 8, page, 2 * page - 8] {
        ram.store64(addr, !addr).unwrap();
        assert_eq!(whole.load64(addr), Ok(!addr), "{addr:#x}");
    }
    for addr in [low, high - 8, 2 * page] {
        assert_eq!(ram.load64(addr), Err(Unreachable), "{addr:#x}");
    }
    assert_eq!(ram.unmap(0, 2 * page).unwrap().count(), 2);
    true
}

#[test]
fn huge_pages_are_mapped_as_a_whole() {
    const HUGE: u64 = 2 << 20;
    assert!(divided(MemfdFlags::empty(), HUGE));
    // This part shows something only on hosts that have huge pages.
    divided(MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB, HUGE);
}

#[test]
fn the_number_of_regions_is_limited_to_the_announced_maximum() {
    let (mut ram, fd) = (GuestRam::new(), memfd(2 * PAGE));
    let addr = |i: usize| i as u64 * 4 * PAGE;
    for i in 0..MAX_REGIONS {
        ram.map(addr(i), PAGE, &fd, i as u64 % 2 * PAGE, true)
            .unwrap();
    }
    for i in [0, 1, 1024, MAX_REGIONS - 1] {
        ram.store64(addr(i) + 8, i as u64).unwrap();
        assert_eq!(ram.load64(addr(i) + 8), Ok(i as u64));
        assert_eq!(ram.load64(addr(i) + PAGE), Err(Unreachable));
    }
    let more = ram.map(addr(MAX_REGIONS), PAGE, &fd, 0, true);
    assert!(more
        .unwrap_err()
        .to_string()
        .contains("too many DMA ranges"));
    assert_eq!(ram.unmap(addr(7), PAGE).unwrap().count(), 1);
    ram.map(addr(MAX_REGIONS), PAGE, &fd, 0, true).unwrap();
}

#[test]
fn copies_may_overlap() {
    let ram = ram();
    ram.write(0x1000, &[1, 2, 3, 4, 5, 6]).unwrap();
    ram.copy_from(0x1002, &ram, 0x1000, 6).unwrap();
    let mut back = [0; 8];
    ram.read(0x1000, &mut back).unwrap();
    assert_eq!(back, [1, 2, 1, 2, 3, 4, 5, 6]);
}
