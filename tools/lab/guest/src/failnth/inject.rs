// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Access to `/proc/self/fail-nth`, and running one verb with it.
use crate::ffi::destroy::Destroy;
use crate::ffi::sys::Errno;
use crate::{Fail, TestResult};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

const DEBUGFS: &str = "/sys/kernel/debug";

/// Configures fault injection so that any allocation of a process can fail, including those that
/// may wait for memory, and without messages.
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

/// Returns the address range of the DMA API checker, if the kernel has it. The checker disables
/// itself when one of its own allocations fails, so these must not fail.
fn dma_debug() -> io::Result<Option<(u64, u64)>> {
    let symbols = fs::read_to_string("/proc/kallsyms")?;
    let mut text: Vec<(u64, &str)> = symbols
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let (address, kind, name) = (words.next()?, words.next()?, words.next()?);
            // Symbols of modules come last and have the name of the module as a fourth word.
            let kernel = kind.eq_ignore_ascii_case("t") && words.next().is_none();
            kernel
                .then(|| Some((u64::from_str_radix(address, 16).ok()?, name)))
                .flatten()
        })
        .collect();
    text.sort_unstable();
    // The checker is one source file of the kernel, so its functions are adjacent.
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

/// The kinds of allocations in which failures can be injected.
const POOLS: [&str; 2] = ["failslab", "fail_page_alloc"];

/// Runs `f` while only allocations made by code of this module can fail.
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

/// The failure injection of this thread. `self` in the path is the process, so only its first
/// thread can use an injector.
pub struct Injector(File);

impl Injector {
    pub fn new() -> io::Result<Injector> {
        let options = File::options().read(true).write(true).to_owned();
        options.open("/proc/self/fail-nth").map(Injector)
    }

    /// Runs `f` while its `n`-th allocation fails. The second result is true if `f` reached that
    /// allocation.
    pub fn fail_nth<T>(&mut self, n: u32, f: impl FnOnce() -> T) -> (T, bool) {
        let text = n.to_string();
        let armed = self.0.write_at(text.as_bytes(), 0);
        let result = f();
        // Read the remaining count into a buffer on this stack, because the thread must not
        // allocate while the injection is armed.
        let mut left = [b'0'; 16];
        let read = self.0.read_at(&mut left, 0);
        let disarmed = self.0.write_at(b"0", 0);
        let reached = left[0] == b'0' && left[1] == b'\n';
        assert!(
            armed.is_ok() && read.is_ok() && disarmed.is_ok(),
            "fail-nth: {armed:?} {read:?} {disarmed:?}"
        );
        (result, reached)
    }
}

/// The result of a verb.
pub struct InjectionOutcome {
    /// True if the allocation failed; false if the verb makes fewer allocations.
    pub injected: bool,
    pub error: Option<Errno>,
}

/// One attempt at a verb, in which one of its allocations fails.
pub struct InjectedCall<'a> {
    injector: &'a mut Injector,
    n: u32,
    outcome: Option<InjectionOutcome>,
}

impl InjectedCall<'_> {
    pub fn new(injector: &mut Injector, n: u32) -> InjectedCall<'_> {
        InjectedCall {
            injector,
            n,
            outcome: None,
        }
    }

    pub fn n(&self) -> u32 {
        self.n
    }

    pub fn outcome(self) -> Option<InjectionOutcome> {
        self.outcome
    }

    /// Records the result of a verb that was run in another process.
    pub fn record(&mut self, injected: bool, error: Option<Errno>) {
        self.outcome = Some(InjectionOutcome { injected, error });
    }

    /// Runs the verb, and returns its result if it succeeded.
    pub fn run_verb<T>(&mut self, verb: impl FnOnce() -> Result<T, Errno>) -> Option<T> {
        let (result, injected) = self.injector.fail_nth(self.n, verb);
        let (made, error) = match result {
            Ok(made) => (Some(made), None),
            Err(errno) => (None, Some(errno)),
        };
        self.record(injected, error);
        made
    }

    /// Destroys the object. If that fails, a second attempt must succeed.
    pub fn destroy<T: Destroy>(&mut self, object: T) -> TestResult {
        let mut left = None;
        self.run_verb(|| {
            object.destroy().map_err(|(errno, object)| {
                left = Some(object);
                errno
            })
        });
        let Some(object) = left else { return Ok(()) };
        match object.destroy() {
            Ok(()) => Ok(()),
            Err((errno, object)) => {
                // The device may still use the object's memory, so it is leaked.
                std::mem::forget(object);
                Err(Fail::Failed(format!(
                    "destroyed again after a failure: {errno}"
                )))
            }
        }
    }
}
