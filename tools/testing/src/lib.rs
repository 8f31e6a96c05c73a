// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tests that run in a guest against plain libibverbs.
//!
//! Everything here is a user of RDMA, as any program is one: it knows the verbs of
//! `<infiniband/verbs.h>` and nothing of the device behind them (one exception: the hostile
//! program, which scribbles over its own queues and therefore knows the ABI). So the same tests
//! run on any RDMA device, and what they check is what a user of Verbena relies on.
//!
//! How one test runs:
//!
//! 1. [`runner`] finds it in the table of [`tests`] and starts this very program again for it, in
//!    a process group of its own, with a time limit. A test that hangs is killed and has failed;
//!    a test that crashes takes nothing with it.
//! 2. That process opens the device through the safe wrappers of [`ffi`] and builds what it needs
//!    with [`rig`]: connected pairs of queue pairs, completion queues, byte patterns, waiting
//!    with patience instead of timing.
//! 3. The test returns `Ok`, a reason why it failed, or a reason why it does not apply.
//!
//! Names of tests start with the number of the rule they check, as `Documentation/testing.md`
//! lists them: `1.x` work completions, `2.x` immediate errors, `3.x` completion statuses, `4.x`
//! asynchronous events, `5.x` recovery, `6.x` queue pairs, `7.x` memory, `ops.*` operations with
//! every byte compared, `res.*` resources.
//!
//! `unsafe` is only in [`ffi`].
pub mod ffi;
pub mod hostile;
#[macro_use]
mod outcome;
pub mod death;
pub mod failnth;
pub mod many;
pub mod order;
pub mod pattern;
pub mod peer;
pub mod refused;
pub mod rig;
pub mod runner;
pub mod tests;
pub mod unbind;

pub use outcome::{Fail, Test, TestResult};
