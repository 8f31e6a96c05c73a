// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Pages of guest RAM that the host cannot give: the module that confines the handler of SIGBUS.
//!
//! A page may be lost after it was mapped: the host's memory has failed there (hwpoison), or the
//! pool of huge pages is empty. An access then raises SIGBUS, which would end the process and all
//! of its VMs. The handler finds the mapping that the address lies in, replaces the whole mapping
//! with anonymous memory, and marks the VM that it belongs to. The access is repeated and reads
//! zeros. Because the memory is not the guest's any more, the device of that VM is in a fatal error
//! from then on ([`GuestRam`](super::GuestRam)'s `is_lost`), while the other VMs go on. A SIGBUS at
//! any other address ends the process, as without the handler.
//!
//! A signal handler may do little: this one loads and stores atomics, and makes system calls (mmap,
//! sigaction, kill). Its table is never freed, and has no lock for readers.
#![allow(unsafe_code)]

use nix::libc::{c_int, c_void, siginfo_t};
use nix::sys::signal::{raise, sigaction, SaFlags, SigAction, SigHandler, SigSet, Signal};
use rustix::mm::{mmap_anonymous, MapFlags, ProtFlags};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, Once, OnceLock, PoisonError};

/// Number of slots in one block of the table.
const SLOTS: usize = 256;

/// An entry of the table: a mapping of guest RAM, or none.
struct MappingSlot {
    /// Host address of the mapping, or 0 if the entry is free.
    start: AtomicUsize,
    /// Length of the mapping in bytes.
    size: AtomicUsize,
    /// Flag that is set when a page is lost. The flag is never freed.
    lost: AtomicPtr<AtomicBool>,
}

/// A block of the table, with a link to the next block.
struct SlotBlock {
    slots: [MappingSlot; SLOTS],
    next: OnceLock<&'static SlotBlock>,
}

impl SlotBlock {
    const fn new() -> Self {
        Self {
            slots: [const {
                MappingSlot {
                    start: AtomicUsize::new(0),
                    size: AtomicUsize::new(0),
                    lost: AtomicPtr::new(ptr::null_mut()),
                }
            }; SLOTS],
            next: OnceLock::new(),
        }
    }
}

static TABLE: SlotBlock = SlotBlock::new();

/// Free entries of all blocks of the table.
static FREE: Mutex<Vec<&'static MappingSlot>> = Mutex::new(Vec::new());

fn blocks() -> impl Iterator<Item = &'static SlotBlock> {
    std::iter::successors(Some(&TABLE), |block| block.next.get().copied())
}

/// A mapping that the handler knows until this is dropped.
pub(super) struct WatchedMapping(&'static MappingSlot);

impl WatchedMapping {
    /// Registers a mapping of `size` bytes from `start` on, a page of the host, with the handler.
    /// The mapping belongs to the caller alone until this is dropped.
    pub(super) fn new(start: usize, size: usize, lost: &'static AtomicBool) -> Self {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(install);
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = match free.pop() {
            Some(slot) => slot,
            None => {
                let mut block: &'static SlotBlock = &TABLE;
                let is_used = !block.slots[0].lost.load(Ordering::Relaxed).is_null();
                if is_used {
                    block = Box::leak(Box::new(SlotBlock::new()));
                    if let Some(last) = blocks().last() {
                        let _ = last.next.set(block);
                    }
                }
                free.extend(&block.slots[1..]);
                &block.slots[0]
            }
        };
        let lost: *const AtomicBool = lost;
        slot.lost.store(lost.cast_mut(), Ordering::Relaxed);
        slot.size.store(size, Ordering::Relaxed);
        slot.start.store(start, Ordering::Release);
        Self(slot)
    }
}

impl Drop for WatchedMapping {
    fn drop(&mut self) {
        self.0.start.store(0, Ordering::SeqCst);
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        free.push(self.0);
    }
}

fn install() {
    let flags = SaFlags::SA_SIGINFO | SaFlags::SA_ONSTACK | SaFlags::SA_RESTART;
    let action = SigAction::new(SigHandler::SigAction(handle), flags, SigSet::empty());
    // SAFETY: The handler does only what a handler may do: atomics and system calls.
    if let Err(e) = unsafe { sigaction(Signal::SIGBUS, &action) } {
        log::warn!(
            "no handler for SIGBUS, so the loss of a page of guest RAM would end this process: {e}"
        );
    }
}

extern "C" fn handle(_signal: c_int, info: *mut siginfo_t, _context: *mut c_void) {
    // SAFETY: The kernel passes a pointer that is valid for the time of the call.
    let info = unsafe { &*info };
    // SAFETY: Each SIGBUS that the kernel raises has an address; a SIGBUS that a process sends has
    // no positive code, and its address is not used.
    let address = unsafe { info.si_addr() } as usize;
    if info.si_code > 0 && replace(address) {
        return;
    }
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: The default action installs no handler. SIGBUS is blocked until this handler returns,
    // and then ends the process.
    let _ = unsafe { sigaction(Signal::SIGBUS, &default) };
    let _ = raise(Signal::SIGBUS);
}

/// Replaces the mapping that holds this address with anonymous memory. Returns false if there is no
/// such mapping, or no memory.
fn replace(address: usize) -> bool {
    let mut slots = blocks().flat_map(|block| &block.slots);
    let Some((start, size, lost)) = slots.find_map(|slot| {
        let start = slot.start.load(Ordering::Acquire);
        let (size, lost) = (
            slot.size.load(Ordering::Relaxed),
            slot.lost.load(Ordering::Relaxed),
        );
        // Another thread may be changing the entry, which then is not the mapping that this thread
        // accesses.
        let is_whole = start != 0 && slot.start.load(Ordering::SeqCst) == start;
        let is_it = is_whole && address.checked_sub(start).is_some_and(|at| at < size);
        is_it.then_some((start, size, lost))
    }) else {
        return false;
    };
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    // SAFETY: The range is a mapping that a region owns, which lives as long as the access that is
    // in progress; there are no references into it, and its length stays.
    let mapped = unsafe { mmap_anonymous(start as *mut c_void, size, prot, flags) };
    if mapped.is_err() {
        return false;
    }
    // SAFETY: The pointer is not null where the start is not 0, and the flag is never freed.
    unsafe { &*lost }.store(true, Ordering::Release);
    true
}

#[cfg(test)]
mod tests {
    use super::super::tests::memfd;
    use super::super::*;
    use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    const PAGE: u64 = 4096;

    /// Returns memory in a file, and a function that truncates the file to a number of pages. The
    /// NIC refuses such files; an access beyond the end raises SIGBUS, like an access to a page
    /// that the host has lost.
    fn loses(pages: u64) -> (GuestRam, impl Fn(u64)) {
        let fd = memfd_create("lost", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, pages * PAGE).unwrap();
        let mut ram = GuestRam::new();
        let region = RamRegion::map_unsealed(0, pages * PAGE, &fd, 0, true, ram.lost).unwrap();
        ram.regions.push(region);
        (ram, move |pages| ftruncate(&fd, pages * PAGE).unwrap())
    }

    #[test]
    fn a_lost_page_affects_its_own_vm_alone() {
        let (ram, shorten) = loses(4);
        let mut other = GuestRam::new();
        other.map(0, 4 * PAGE, memfd(4 * PAGE), 0, true).unwrap();
        ram.store64(8, 7).unwrap();
        other.store64(8, 9).unwrap();
        shorten(2);
        // The pages that the host still has can be read.
        assert_eq!((ram.load64(8), ram.is_lost()), (Ok(7), false));
        // A copy from the lost page to another VM fails.
        assert_eq!(other.copy_from(PAGE, &ram, 3 * PAGE, 100), Err(Unreachable));
        assert!(ram.is_lost() && !other.is_lost());
        // Anonymous memory has replaced the VM's mapping, and takes its writes.
        ram.store64(8, 1).unwrap();
        ram.write(3 * PAGE, &[1; 64]).unwrap();
        assert_eq!((other.load64(8), other.is_lost()), (Ok(9), false));
        // After new memory is mapped, the VM works again.
        let mut ram = ram;
        drop(ram.clear());
        assert!(!ram.is_lost());
        ram.map(0, PAGE, memfd(PAGE), 0, true).unwrap();
        assert_eq!((ram.load64(8), ram.is_lost()), (Ok(0), false));
    }

    #[test]
    fn the_process_survives_a_lost_page_in_each_kind_of_access() {
        type AccessFn = fn(&GuestRam, &GuestRam);
        let accesses: [AccessFn; 7] = [
            |ram, _| {
                let _ = ram.load32(PAGE);
            },
            |ram, _| {
                let _ = ram.store64(PAGE, 1);
            },
            |ram, _| {
                let _ = ram.fetch_add64(PAGE, 1);
            },
            |ram, _| {
                let _ = ram.read(PAGE - 100, &mut [0; 200]);
            },
            |ram, _| {
                let _ = ram.write(PAGE, &[1; 3000]);
            },
            |ram, _| {
                let _ = ram.write_payload(PAGE - 3, &[1; 30]);
            },
            |ram, other| {
                let _ = ram.copy_from(PAGE, other, 0, 4096);
            },
        ];
        let mut other = GuestRam::new();
        other.map(0, 4 * PAGE, memfd(4 * PAGE), 0, true).unwrap();
        // These are more mappings than one block of the table has slots for.
        let mut all: Vec<_> = (0..super::SLOTS as u64 + 7).map(|_| loses(2)).collect();
        let lost = all.split_off(super::SLOTS);
        for ((ram, shorten), access) in lost.iter().zip(accesses) {
            shorten(1);
            access(ram, &other);
            assert!(ram.is_lost());
        }
        assert!(all.iter().all(|(ram, _)| !ram.is_lost()) && !other.is_lost());
    }

    #[test]
    fn a_fault_elsewhere_ends_the_process() {
        const ELSEWHERE: &str = "VERBENA_FAULT_ELSEWHERE";
        if let Ok(how) = std::env::var(ELSEWHERE) {
            let (ram, _) = loses(1);
            assert_eq!(ram.load64(0), Ok(0));
            if how == "sent" {
                let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGBUS);
                return;
            }
            let fd = memfd_create("elsewhere", MemfdFlags::CLOEXEC).unwrap();
            ftruncate(&fd, PAGE).unwrap();
            let prot = ProtFlags::READ | ProtFlags::WRITE;
            let (mapping, _) = HostMapping::new(&fd, 0, PAGE, PAGE, prot).unwrap();
            ftruncate(&fd, 0).unwrap();
            // SAFETY: The mapping is valid for reads of a byte. The access raises SIGBUS, which is
            // to end this process.
            let byte = unsafe { mapping.start.as_ptr().read_volatile() };
            println!("{byte}");
            return;
        }
        for how in ["sent", "accessed"] {
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args(["--exact", "--nocapture"]);
            child.arg("guest_ram::sigbus::tests::a_fault_elsewhere_ends_the_process");
            let ended = child.env(ELSEWHERE, how).output().unwrap();
            assert_eq!(ended.status.signal(), Some(7), "{how}: {ended:?}");
        }
    }
}
