// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Makes every allocation of every verb fail once; see `verbena_testing::failnth`.
fn main() -> std::process::ExitCode {
    verbena_testing::failnth::main()
}
