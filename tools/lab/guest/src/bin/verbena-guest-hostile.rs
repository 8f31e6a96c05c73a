// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Runs the hostile process; see `verbena_testing::hostile`.
fn main() -> std::process::ExitCode {
    verbena_testing::hostile::main()
}
