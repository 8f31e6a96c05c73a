// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tests that run in a guest against plain libibverbs.
//!
//! This crate is a user of RDMA like any other program: it uses the verbs of `<infiniband/verbs.h>`
//! and knows nothing of the device that implements them. The only exception is the hostile program,
//! which overwrites its own queues and therefore knows the ABI. So the same tests run on any RDMA
//! device, and they check the behaviour that users of Verbena rely on.
//!
//! The steps of one test are:
//!
//! 1. [`runner`] finds the test in the table of [`tests`] and starts this program again for it, in
//!    a process group of its own, with a time limit. A test that hangs is killed and counts as
//!    failed; a test that crashes does not affect the others.
//! 2. The new process opens the device through the safe wrappers of [`ffi`] and builds the objects
//!    that the test needs with [`rig`]: connected pairs of QPs, CQs, byte patterns, and waits that
//!    end on a condition and have generous limits.
//! 3. The test returns `Ok`, the reason why it failed, or the reason why it does not apply.
//!
//! The name of a test begins with the number of the rule that it checks, as listed in
//! `Documentation/testing.md`: `1.x` work completions, `2.x` immediate errors, `3.x` completion
//! statuses, `4.x` asynchronous events, `5.x` recovery, `6.x` queue pairs, `7.x` memory, `ops.*`
//! operations with every byte compared, `res.*` resources.
//!
//! Only [`ffi`] contains `unsafe` code.
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

pub use outcome::{Fail, GuestTest, TestResult};
