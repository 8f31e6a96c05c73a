// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Unbinds the driver under a working process; see `verbena_lab_guest::unbind`.
fn main() -> std::process::ExitCode {
    verbena_lab_guest::unbind::main()
}
