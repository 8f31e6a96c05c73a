// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tests very many connections at the same time; see `verbena_lab_guest::many`.
fn main() -> std::process::ExitCode {
    verbena_lab_guest::many::main()
}
