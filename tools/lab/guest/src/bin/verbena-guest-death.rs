// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Makes the device fail under a working process; see `verbena_lab_guest::death`.
fn main() -> std::process::ExitCode {
    verbena_lab_guest::death::main()
}
