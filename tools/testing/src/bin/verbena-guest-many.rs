// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Very many connections; see `verbena_testing::many`.
fn main() -> std::process::ExitCode {
    verbena_testing::many::main()
}
