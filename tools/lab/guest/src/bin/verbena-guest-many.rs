// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tests very many connections at the same time; see `verbena_testing::many`.
fn main() -> std::process::ExitCode {
    verbena_testing::many::main()
}
