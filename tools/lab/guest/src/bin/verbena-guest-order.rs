// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tests the order of the bytes of WRITEs between two guests; see `verbena_lab_guest::order`.
fn main() -> std::process::ExitCode {
    verbena_lab_guest::order::main()
}
