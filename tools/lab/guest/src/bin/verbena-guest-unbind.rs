// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Unbinds the driver under a working process; see `verbena_testing::unbind`.
fn main() -> std::process::ExitCode {
    verbena_testing::unbind::main()
}
