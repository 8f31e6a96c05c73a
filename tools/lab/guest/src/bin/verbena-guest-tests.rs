// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Runs the guest test suite; see the library.
fn main() -> std::process::ExitCode {
    verbena_lab_guest::runner::main()
}
