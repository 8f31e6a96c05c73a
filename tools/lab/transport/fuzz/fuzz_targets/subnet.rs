// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The target of this name in `verbena_lab_daemon`, as a program for libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| verbena_lab_daemon::subnet(bytes));
