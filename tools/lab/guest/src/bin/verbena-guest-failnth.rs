// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Makes every allocation of every verb fail once; see `verbena_lab_guest::failnth`.
fn main() -> std::process::ExitCode {
    verbena_lab_guest::failnth::main()
}
