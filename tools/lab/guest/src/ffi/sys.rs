// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Wrappers of operating system calls: memory shared with a device, waiting, killing.
#![allow(unsafe_code)]

use core::ffi::c_int;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicU8, AtomicUsize, Ordering};

/// A positive errno, as verbs return it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub c_int);

impl Errno {
    pub const EACCES: Errno = Errno(libc::EACCES);
    pub const EAGAIN: Errno = Errno(libc::EAGAIN);
    pub const EBUSY: Errno = Errno(libc::EBUSY);
    pub const EFAULT: Errno = Errno(libc::EFAULT);
    pub const EINVAL: Errno = Errno(libc::EINVAL);
    pub const EIO: Errno = Errno(libc::EIO);
    pub const ENODEV: Errno = Errno(libc::ENODEV);
    pub const ENOMEM: Errno = Errno(libc::ENOMEM);
    pub const EOPNOTSUPP: Errno = Errno(libc::EOPNOTSUPP);

    /// Returns the calling thread's errno.
    pub fn last() -> Errno {
        Errno(io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }

    /// Converts the return value of a verb that returns 0, a positive errno, or -1 with errno set.
    pub(super) fn check(ret: c_int) -> Result<(), Errno> {
        match ret {
            0 => Ok(()),
            -1 => Err(Errno::last()),
            n => Err(Errno(n.abs())),
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.0 {
            libc::EPERM => "EPERM",
            libc::ENOENT => "ENOENT",
            libc::EIO => "EIO",
            libc::EAGAIN => "EAGAIN",
            libc::ENOMEM => "ENOMEM",
            libc::EACCES => "EACCES",
            libc::EFAULT => "EFAULT",
            libc::EBUSY => "EBUSY",
            libc::ENODEV => "ENODEV",
            libc::EINVAL => "EINVAL",
            libc::ENOSPC => "ENOSPC",
            libc::ENOSYS => "ENOSYS",
            libc::EOPNOTSUPP => "EOPNOTSUPP",
            libc::EMSGSIZE => "EMSGSIZE",
            n => return write!(f, "errno {n}"),
        };
        f.write_str(name)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

static DROP_FAILURES: AtomicUsize = AtomicUsize::new(0);

/// Counts and reports an object that could not be destroyed while it was dropped.
pub(super) fn note_drop(what: &str, result: Result<(), Errno>) {
    if let Err(errno) = result {
        eprintln!("note: destroying a {what} failed: {errno}");
        DROP_FAILURES.fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns the number of objects that could not be destroyed in this process so far.
pub fn drop_failures() -> usize {
    DROP_FAILURES.load(Ordering::Relaxed)
}

/// Anonymous memory that a device may read and write at any time. No reference into this memory
/// ever exists: data is copied in and out.
pub struct Buf {
    addr: *mut u8,
    len: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and every access goes through the
// copies below, which tolerate concurrent writers (bytes, no invariants).
unsafe impl Send for Buf {}
// SAFETY: as above.
unsafe impl Sync for Buf {}

impl Buf {
    /// Creates a zeroed, page-aligned mapping.
    pub fn new(len: usize) -> Result<Buf, Errno> {
        Buf::mapped(std::ptr::null_mut(), len.max(1), 0)
    }

    /// Creates a zeroed mapping of huge pages of 2 MiB; `len` is a multiple of 2 MiB.
    pub fn huge(len: usize) -> Result<Buf, Errno> {
        let flags = libc::MAP_HUGETLB | libc::MAP_HUGE_2MB;
        Buf::mapped(std::ptr::null_mut(), len, flags)
    }

    fn mapped(at: *mut libc::c_void, len: usize, flags: i32) -> Result<Buf, Errno> {
        // SAFETY: the mapping is anonymous, and its address is either chosen by the kernel or that
        // of an existing mapping that a value of this type owns.
        let addr = unsafe {
            libc::mmap(
                at,
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
                -1,
                0,
            )
        };
        if addr == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        Ok(Buf {
            addr: addr.cast(),
            len,
        })
    }

    pub fn addr(&self) -> u64 {
        self.addr as u64
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn as_ptr(&self) -> *mut u8 {
        self.addr
    }

    /// Replaces the memory by fresh zeroed memory at the same address; the old pages are freed.
    pub fn replace(&self) -> Result<(), Errno> {
        let fresh = Buf::mapped(self.addr.cast(), self.len, libc::MAP_FIXED)?;
        // `self` owns the new mapping from here on.
        std::mem::forget(fresh);
        Ok(())
    }

    /// Removes all access rights, so that the memory cannot be pinned any more.
    pub fn forbid(&self) {
        self.forbid_from(0);
    }

    /// Removes all access rights from page-aligned offset `off` to the end of the memory.
    pub fn forbid_from(&self, off: usize) {
        self.check(off, 0);
        // SAFETY: the range was just checked to lie in the mapping.
        let from = unsafe { self.addr.add(off) };
        // SAFETY: the mapping is owned by this value. A later access to the range ends the process
        // by a signal.
        unsafe { libc::mprotect(from.cast(), self.len - off, libc::PROT_NONE) };
    }

    fn check(&self, off: usize, len: usize) {
        assert!(
            off <= self.len && len <= self.len - off,
            "outside of the buffer"
        );
    }

    pub fn write(&self, off: usize, data: &[u8]) {
        self.check(off, data.len());
        // SAFETY: the range was just checked to lie in the mapping.
        let to = unsafe { self.addr.add(off) };
        // SAFETY: `to` is valid for the checked length and no reference to the mapping exists.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) };
    }

    pub fn read(&self, off: usize, len: usize) -> Vec<u8> {
        self.check(off, len);
        let mut out = vec![0; len];
        // SAFETY: the range was just checked to lie in the mapping.
        let from = unsafe { self.addr.add(off) };
        // SAFETY: `from` is valid for the checked length, `out` is fresh memory of that length.
        unsafe { std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), len) };
        out
    }

    pub fn fill(&self, off: usize, len: usize, byte: u8) {
        self.check(off, len);
        // SAFETY: the range was just checked to lie in the mapping.
        let to = unsafe { self.addr.add(off) };
        // SAFETY: `to` is valid for the checked length and no reference to the mapping exists.
        unsafe { std::ptr::write_bytes(to, byte, len) };
    }

    /// Loads a byte that the device may write concurrently. Everything that the device wrote before
    /// that byte is visible afterwards.
    pub fn load(&self, off: usize) -> u8 {
        self.check(off, 1);
        // SAFETY: the offset was just checked to lie in the mapping.
        let at = unsafe { self.addr.add(off) };
        // SAFETY: the byte is valid; only atomics have references to it, and only those of this
        // call.
        unsafe { AtomicU8::from_ptr(at) }.load(Ordering::Acquire)
    }

    /// Counts the bytes of a range that differ from `value`, beginning at the end of the range.
    pub fn count_others(&self, off: usize, len: usize, value: u8) -> usize {
        self.check(off, len);
        let (mut at, mut count) = (off + len, 0);
        while at > off {
            if at % 8 == 0 && at - off >= 8 {
                at -= 8;
                // SAFETY: the range was just checked to lie in the mapping, which begins at a page
                // boundary.
                let word = unsafe { self.addr.add(at) };
                // SAFETY: the word is valid and aligned, and only atomics have references to it.
                let word = unsafe { AtomicU64::from_ptr(word.cast()) }.load(Ordering::Relaxed);
                if word != u64::from_ne_bytes([value; 8]) {
                    count += word.to_ne_bytes().iter().filter(|&&b| b != value).count();
                }
            } else {
                at -= 1;
                count += usize::from(self.load(at) != value);
            }
        }
        count
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        // SAFETY: this is exactly the mapping that `mapped` made; every owner of a registration of
        // it holds an `Arc` to this value.
        unsafe { libc::munmap(self.addr.cast(), self.len) };
    }
}

/// Waits until `fd` is readable. Returns false if `fd` is not readable after `ms` milliseconds.
pub fn readable(fd: c_int, ms: i32) -> bool {
    let mut p = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: `p` is one valid pollfd.
    let n = unsafe { libc::poll(&mut p, 1, ms) };
    n > 0 && p.revents & (libc::POLLIN | libc::POLLERR | libc::POLLHUP) != 0
}

/// Makes the C library keep freed memory, so that later allocations make no system calls.
pub fn keep_freed_memory() {
    const ENOUGH: c_int = 64 << 20;
    for option in [
        libc::M_TRIM_THRESHOLD,
        libc::M_TOP_PAD,
        libc::M_MMAP_THRESHOLD,
    ] {
        // SAFETY: the call has no pointers.
        unsafe { libc::mallopt(option, ENOUGH) };
    }
    drop(vec![1u8; 16 << 20]);
}

/// Runs `f`, then ends the thread. During `f` the kernel silently ends the thread for any system
/// call except read and write.
pub fn without_calls(f: impl FnOnce()) {
    // SAFETY: the call has no pointers and restricts only this thread.
    unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT) };
    f();
    // SAFETY: no other thread waits for this thread, and its stack remains mapped. The system calls
    // with which the C library would end the thread are forbidden.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
}

/// Makes reads from `fd` return EAGAIN instead of waiting.
pub(super) fn set_nonblocking(fd: c_int) {
    // SAFETY: F_GETFL has no pointer argument.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    // SAFETY: F_SETFL has no pointer argument.
    unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) };
}

/// Kills a process group that this program started.
pub fn kill_group(pgid: u32) {
    let Ok(pgid) = libc::pid_t::try_from(pgid) else {
        return;
    };
    if pgid > 1 {
        // SAFETY: the call has no pointers; a negative pid means the process group.
        unsafe { libc::kill(-pgid, libc::SIGKILL) };
    }
}

/// A range of this process that is mapped from a device file, as found in `/proc/self/maps`.
#[derive(Clone, Debug)]
pub struct DeviceMapping {
    start: usize,
    len: usize,
    /// Offset in the device file, which identifies the purpose of the range.
    pub offset: u64,
    pub readable: bool,
    pub writable: bool,
}

impl DeviceMapping {
    /// Returns all mappings of files whose path contains `name`, in address order.
    pub fn find(name: &str) -> Vec<DeviceMapping> {
        let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else {
            return Vec::new();
        };
        maps.lines()
            .filter_map(|line| {
                let mut words = line.split_whitespace();
                let (range, prot) = (words.next()?, words.next()?);
                let offset = u64::from_str_radix(words.next()?, 16).ok()?;
                let path = words.nth(2)?;
                let (start, end) = range.split_once('-')?;
                let start = usize::from_str_radix(start, 16).ok()?;
                let end = usize::from_str_radix(end, 16).ok()?;
                path.contains(name).then_some(DeviceMapping {
                    start,
                    len: end - start,
                    offset,
                    readable: prot.as_bytes().first() == Some(&b'r'),
                    writable: prot.as_bytes().get(1) == Some(&b'w'),
                })
            })
            .collect()
    }

    /// Unmaps the range. A later access to it, above all by the provider, raises SIGSEGV.
    pub(super) fn unmap(self) {
        // SAFETY: the mapping is one of a device's file, in which no Rust object lives; the only
        // caller ends the process next.
        unsafe { libc::munmap(self.start as *mut libc::c_void, self.len) };
    }

    /// Tries to make a read-only mapping writable and returns the error of mprotect(2). If the
    /// right is granted, the mapping is made read-only again.
    pub fn make_writable(&self) -> Result<(), Errno> {
        let protect = |prot| {
            // SAFETY: the mapping is one of a device's file and stays readable; no Rust object
            // lives in it.
            match unsafe { libc::mprotect(self.start as *mut libc::c_void, self.len, prot) } {
                0 => Ok(()),
                _ => Err(Errno::last()),
            }
        };
        protect(libc::PROT_READ | libc::PROT_WRITE)?;
        protect(libc::PROT_READ)
    }

    /// Returns the start address, which distinguishes this mapping from others.
    pub fn start(&self) -> usize {
        self.start
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn at<T>(&self, off: usize) -> *mut T {
        let size = std::mem::size_of::<T>();
        assert!(off % size == 0 && off < self.len && self.len - off >= size);
        (self.start + off) as *mut T
    }

    /// Loads 32 bits by one aligned access.
    pub fn read32(&self, off: usize) -> u32 {
        // SAFETY: `at` checked bounds and alignment; `find` returns mappings of this process, and
        // the caller keeps the context of the mapping open.
        unsafe { self.at::<u32>(off).read_volatile() }
    }

    /// Stores 32 bits by one aligned access.
    pub fn write32(&self, off: usize, value: u32) {
        assert!(self.writable);
        // SAFETY: as in `read32`. The hostile tests examine how the device and the provider handle
        // the value; no Rust object lies inside a device mapping.
        unsafe { self.at::<u32>(off).write_volatile(value) }
    }

    /// Loads 64 bits by one aligned access.
    pub fn read64(&self, off: usize) -> u64 {
        // SAFETY: as in `read32`.
        unsafe { self.at::<u64>(off).read_volatile() }
    }

    /// Stores 64 bits by one aligned access.
    pub fn write64(&self, off: usize, value: u64) {
        assert!(self.writable);
        // SAFETY: as in `write32`.
        unsafe { self.at::<u64>(off).write_volatile(value) }
    }
}

/// A copy of this process made by fork(). The copy shares every page until one of the two processes
/// writes to it. The copy only waits, and ends when this value is dropped.
pub struct ForkedChild {
    pid: libc::pid_t,
    gate: c_int,
}

impl ForkedChild {
    pub fn new() -> Result<ForkedChild, Errno> {
        let mut ends = [0; 2];
        // SAFETY: `ends` has room for the two descriptors.
        Errno::check(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) })?;
        let [wait, gate] = ends;
        // SAFETY: the copy calls only close, read and _exit, which need no lock of another thread.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let mut byte = 0u8;
            // SAFETY: the descriptor is the copy's own.
            unsafe { libc::close(gate) };
            // SAFETY: `byte` has room for the one byte.
            unsafe { libc::read(wait, (&raw mut byte).cast(), 1) };
            // SAFETY: the copy has no values left to drop.
            unsafe { libc::_exit(0) }
        }
        let forked = Errno::check(pid.min(0));
        // SAFETY: only the copy uses this end.
        unsafe { libc::close(wait) };
        if forked.is_err() {
            // SAFETY: without a copy, no other code uses this end.
            unsafe { libc::close(gate) };
        }
        forked.map(|()| ForkedChild { pid, gate })
    }
}

impl Drop for ForkedChild {
    fn drop(&mut self) {
        // SAFETY: this value owns the descriptor; the copy ends when it is closed.
        unsafe { libc::close(self.gate) };
        // SAFETY: the process is a child of this process, and no other code waits for it.
        unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) };
    }
}
