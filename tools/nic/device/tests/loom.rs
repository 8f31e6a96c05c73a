// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Model of two WRITEs, one after the other, and of a program that polls. In each interleaving, and
//! with each reordering that the memory model allows, a program that sees a part of the end of a
//! WRITE also sees all bytes before that part, and a program that sees a byte of the second WRITE
//! sees all of the first. The code that runs here is `memory/order.rs` itself, over loom's atomics.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p verbena-device --test loom --target-dir
//! build/cargo-loom`. The models without the fence, and with stores that order nothing, have to
//! fail, which shows that the models can find errors.
#![cfg(loom)]

use loom::sync::atomic::{fence, AtomicU8, Ordering};
use loom::thread;
use std::sync::Arc;
use verbena_device::memory::order::{self, Payload, TAIL};

/// Bytes of a message's bulk in the model.
const BULK: usize = 2;
const LENGTH: usize = BULK + TAIL;

/// A message's target: its bulk, and a cell for each store of its end, by offset.
struct Target([AtomicU8; LENGTH]);

/// A copy to a target.
struct Copy {
    to: Arc<Target>,
    fences: bool,
    /// Memory order of the stores of the end.
    end: Ordering,
}

impl Payload for Copy {
    fn fence(&self) {
        if self.fences {
            fence(Ordering::Release);
        }
    }

    fn last(&self, count: usize) -> [u8; TAIL] {
        assert_eq!(count, TAIL);
        [1; TAIL]
    }

    /// Copies in descending order, as `memmove` may.
    fn bulk(&self, count: usize) {
        assert_eq!(count, BULK);
        for cell in self.to.0[..count].iter().rev() {
            cell.store(1, Ordering::Relaxed);
        }
    }

    fn store<const N: usize>(&self, at: usize, bytes: [u8; N]) {
        assert_eq!(bytes, [1; N]);
        self.to.0[at].store(1, self.end);
    }
}

/// Returns the offsets of the stores of the end, for a target at this address.
fn stores(address: usize) -> &'static [usize] {
    match (address + LENGTH) % 8 {
        0 => &[BULK],
        4 => &[BULK, BULK + 4],
        2 => &[BULK, BULK + 2, BULK + 6],
        other => panic!("the models have no address that ends at {other}"),
    }
}

/// Runs two WRITEs to targets at this address. The program looks at one cell of the second target.
/// If that cell is new, the program checks all cells that have to be new then: the cells before it,
/// and the whole first target.
fn two_writes(address: usize, looked_at: usize, fences: bool, end: Ordering) {
    let new = || Arc::new(Target(std::array::from_fn(|_| AtomicU8::new(0))));
    let targets = [new(), new()];
    let device = {
        let targets = targets.clone();
        thread::spawn(move || {
            for to in targets {
                order::copy(&Copy { to, fences, end }, address, LENGTH);
            }
        })
    };
    let [first, second] = &targets;
    if second.0[looked_at].load(Ordering::Acquire) == 1 {
        let seen = |target: &Target, at: usize| target.0[at].load(Ordering::Relaxed) == 1;
        let end = stores(address).iter().copied();
        for at in (0..BULK).chain(end.clone()) {
            assert!(seen(first, at), "the first WRITE's {at} is stale");
        }
        if looked_at >= BULK {
            for at in (0..BULK).chain(end.filter(|&at| at < looked_at)) {
                assert!(seen(second, at), "{at} is stale below {looked_at}");
            }
        }
    }
    device.join().unwrap();
}

/// Addresses for which the end takes one, two and three stores.
const ADDRESSES: [usize; 3] = [6, 2, 0];

#[test]
fn loom_a_poller_sees_writes_in_order() {
    for address in ADDRESSES {
        for &at in [0, 1].iter().chain(stores(address)) {
            loom::model(move || two_writes(address, at, true, Ordering::Release));
        }
    }
}

#[test]
#[should_panic(expected = "is stale below")]
fn loom_needs_the_order_of_the_end() {
    loom::model(|| two_writes(6, BULK, true, Ordering::Relaxed));
}

#[test]
#[should_panic(expected = "is stale below")]
fn loom_needs_the_order_inside_the_end() {
    loom::model(|| two_writes(2, BULK + 4, true, Ordering::Relaxed));
}

#[test]
#[should_panic(expected = "the first WRITE's")]
fn loom_needs_the_fence_between_two_writes() {
    loom::model(|| two_writes(6, 0, false, Ordering::Release));
}
