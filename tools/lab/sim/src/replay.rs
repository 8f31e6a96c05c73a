// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs seeds and catches the rules that they break.

use crate::subject::Subject;
use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::rc::Rc;
use std::sync::Once;
use verbena_capture::Capture;
use verbena_lab_transport::SimNetwork;

thread_local! {
    static CATCHING: Cell<bool> = const { Cell::new(false) };
    static MESSAGE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Installs a panic hook that notes the message of a caught panic instead of printing it.
fn note_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let others = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !CATCHING.get() {
                return others(info);
            }
            let place = info
                .location()
                .map(|at| format!(" ({}:{})", at.file(), at.line()));
            let payload = info.payload();
            let text = payload
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| {
                    payload
                        .downcast_ref::<&str>()
                        .map(|text| String::from(*text))
                })
                .unwrap_or_default();
            let message = text + &place.unwrap_or_default();
            MESSAGE.with(|slot| *slot.borrow_mut() = Some(message));
        }));
    });
}

/// Runs a seed in a subject. The error is the rule that was broken; after an error the subject must
/// not be used again.
pub fn run_caught(subject: &mut impl Subject, seed: u64) -> Result<(), String> {
    catch_panic(|| subject.run(seed))
}

/// Runs one seed of the device, with a trace if asked for.
#[cfg(feature = "device")]
pub fn replay_device(seed: u64, trace: bool) -> Result<(), String> {
    let mut print = |line: &str| println!("{line}");
    catch_panic(|| {
        verbena_lab_device::run(seed, if trace { Some(&mut print) } else { None });
    })
}

fn catch_panic(run: impl FnOnce()) -> Result<(), String> {
    note_panics();
    CATCHING.set(true);
    let result = panic::catch_unwind(AssertUnwindSafe(run));
    CATCHING.set(false);
    result.map(|_| ()).map_err(|_| {
        MESSAGE
            .with(|slot| slot.borrow_mut().take())
            .unwrap_or_default()
    })
}

/// Runs one seed, with a trace and a capture of all packets if asked for.
pub fn replay_network(seed: u64, trace: bool, capture: Option<&Path>) -> Result<(), String> {
    let mut network = SimNetwork::new();
    if trace {
        network.trace(|line| println!("{line}"));
    }
    let Some(path) = capture else {
        return run_caught(&mut network, seed);
    };
    let told = |error| format!("{}: {error}", path.display());
    let capture = Rc::new(RefCell::new(Capture::create(path).map_err(told)?));
    network.tap = Some(Box::new(Rc::clone(&capture)));
    let result = run_caught(&mut network, seed);
    // A capture is most useful for a broken rule, so it is completed in any case.
    drop(network);
    if let Some(capture) = Rc::into_inner(capture) {
        capture.into_inner().finish().map_err(told)?;
    }
    result
}
