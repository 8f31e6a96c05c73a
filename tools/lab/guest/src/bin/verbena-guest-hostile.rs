// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Runs the hostile process; see `verbena_lab_guest::hostile`.
fn main() -> std::process::ExitCode {
    verbena_lab_guest::hostile::main()
}
