// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `/proc/self/fail-nth`, and one verb under it.
use crate::ffi::destroy::Destroy;
use crate::ffi::sys::Errno;
use crate::{Fail, TestResult};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

const DEBUGFS: &str = "/sys/kernel/debug";

/// Lets any allocation of a process fail, those that could wait for memory too, and quietly.
pub fn enable() -> io::Result<()> {
    for (what, value) in [
        ("failslab/ignore-gfp-wait", "N"),
        ("failslab/verbose", "0"),
        ("fail_page_alloc/ignore-gfp-wait", "N"),
        ("fail_page_alloc/min-order", "0"),
        ("fail_page_alloc/verbose", "0"),
    ] {
        fs::write(format!("{DEBUGFS}/{what}"), value)
            .map_err(|e| io::Error::new(e.kind(), format!("{what}: {e}")))?;
    }
    if let Some((start, end)) = dma_debug()? {
        for what in POOLS {
            fs::write(format!("{DEBUGFS}/{what}/reject-end"), format!("{end:#x}"))?;
            fs::write(
                format!("{DEBUGFS}/{what}/reject-start"),
                format!("{start:#x}"),
            )?;
        }
    }
    Ok(())
}

/// Where the checker of the DMA API is in memory, if the kernel has it. It switches itself off when
/// an allocation of its own fails, so those shall not.
fn dma_debug() -> io::Result<Option<(u64, u64)>> {
    let symbols = fs::read_to_string("/proc/kallsyms")?;
    let mut text: Vec<(u64, &str)> = symbols
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let (address, kind, name) = (words.next()?, words.next()?, words.next()?);
            // Modules come last, and name themselves.
            let kernel = kind.eq_ignore_ascii_case("t") && words.next().is_none();
            kernel
                .then(|| Some((u64::from_str_radix(address, 16).ok()?, name)))
                .flatten()
        })
        .collect();
    text.sort_unstable();
    // They are one file of the kernel, so they lie beside each other.
    let end = |(_, name): &(u64, &str)| *name == "_etext";
    let text = text.split(end).next().unwrap_or_default();
    let of_it =
        |(_, name): &(u64, &str)| name.starts_with("debug_dma_") || *name == "add_dma_entry";
    let first = text.iter().position(of_it);
    let last = text.iter().rposition(of_it);
    Ok(first.zip(last).and_then(|(first, last)| {
        let behind = text.get(last + 1)?;
        Some((text[first].0, behind.0))
    }))
}

/// What may fail at once.
const POOLS: [&str; 2] = ["failslab", "fail_page_alloc"];

/// Runs `f` while only those allocations can fail that are made on behalf of this module.
pub fn only_of<T>(module: &str, f: impl FnOnce() -> T) -> io::Result<T> {
    let modules = fs::read_to_string("/proc/modules")?;
    let place = modules.lines().find_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let [name, size, _, _, _, address, ..] = words[..] else {
            return None;
        };
        let start = u64::from_str_radix(address.strip_prefix("0x")?, 16).ok()?;
        (name == module).then_some((start, start + size.parse::<u64>().ok()?))
    });
    let (start, end) = place.ok_or(io::ErrorKind::NotFound)?;
    let require = |start: u64, end: u64| {
        POOLS.iter().try_for_each(|pool| {
            fs::write(
                format!("{DEBUGFS}/{pool}/require-start"),
                format!("{start:#x}"),
            )?;
            fs::write(format!("{DEBUGFS}/{pool}/require-end"), format!("{end:#x}"))
        })
    };
    require(start, end)?;
    let result = f();
    require(0, u64::MAX)?;
    Ok(result)
}

/// This thread's failures. `self` in the path is the process, so only its first thread may have one.
pub struct Injector(File);

impl Injector {
    pub fn new() -> io::Result<Injector> {
        let options = File::options().read(true).write(true).to_owned();
        options.open("/proc/self/fail-nth").map(Injector)
    }

    /// Runs `f` with its `n`-th allocation failing; tells whether that was met.
    pub fn around<T>(&mut self, n: u32, f: impl FnOnce() -> T) -> (T, bool) {
        let text = n.to_string();
        let armed = self.0.write_at(text.as_bytes(), 0);
        let result = f();
        // What is left to count; in a buffer of this stack, since from here on nothing may allocate.
        let mut left = [b'0'; 16];
        let read = self.0.read_at(&mut left, 0);
        let disarmed = self.0.write_at(b"0", 0);
        let met = left[0] == b'0' && left[1] == b'\n';
        assert!(
            armed.is_ok() && read.is_ok() && disarmed.is_ok(),
            "fail-nth: {armed:?} {read:?} {disarmed:?}"
        );
        (result, met)
    }
}

/// How a verb ended.
pub struct Outcome {
    /// Whether the allocation failed: else the verb has fewer of them.
    pub fired: bool,
    pub error: Option<Errno>,
}

/// One try of a verb, with one of its allocations failing.
pub struct Shot<'a> {
    injector: &'a mut Injector,
    n: u32,
    outcome: Option<Outcome>,
}

impl Shot<'_> {
    pub fn new(injector: &mut Injector, n: u32) -> Shot<'_> {
        Shot {
            injector,
            n,
            outcome: None,
        }
    }

    pub fn n(&self) -> u32 {
        self.n
    }

    pub fn outcome(self) -> Option<Outcome> {
        self.outcome
    }

    /// Notes how the verb ended, for one that is tried elsewhere.
    pub fn ended(&mut self, fired: bool, error: Option<Errno>) {
        self.outcome = Some(Outcome { fired, error });
    }

    /// Runs the verb; what it made, if it did.
    pub fn fire<T>(&mut self, verb: impl FnOnce() -> Result<T, Errno>) -> Option<T> {
        let (result, fired) = self.injector.around(self.n, verb);
        let (made, error) = match result {
            Ok(made) => (Some(made), None),
            Err(errno) => (None, Some(errno)),
        };
        self.ended(fired, error);
        made
    }

    /// Destroys; where that fails it must succeed right after.
    pub fn destroy<T: Destroy>(&mut self, object: T) -> TestResult {
        let mut left = None;
        self.fire(|| {
            object.destroy().map_err(|(errno, object)| {
                left = Some(object);
                errno
            })
        });
        let Some(object) = left else { return Ok(()) };
        match object.destroy() {
            Ok(()) => Ok(()),
            Err((errno, object)) => {
                // Its memory is not known to be free of users.
                std::mem::forget(object);
                Err(Fail::Failed(format!(
                    "destroyed again after a failure: {errno}"
                )))
            }
        }
    }
}
