// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A short run of the laboratory: no seed breaks a rule.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// Seeds that are run with every `cargo test`.
const SEEDS: u64 = 2000;

#[test]
fn no_seed_breaks_a_rule() {
    let next = AtomicU64::new(0);
    let work = || loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= SEEDS {
            return;
        }
        // The panic message names the rule that the seed breaks.
        let ran = std::panic::catch_unwind(|| verbena_lab_device::run(seed, None));
        assert!(ran.is_ok(), "seed {seed} breaks a rule");
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        (1..threads).for_each(|_| drop(scope.spawn(work)));
        work();
    });
}
