// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `verbenactl`: queries a running NIC through its control socket, and explains error codes without
//! a NIC.

use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;
use verbenactl::{Query, VerbenactlCommand};

/// Query and control a running Verbena NIC, or explain its error codes.
#[derive(Parser, Debug)]
#[command(version)]
struct VerbenactlArgs {
    /// Control socket of the NIC (the PATH of `verbena-nic --control`), or a port of this guest that is connected to it
    #[arg(long, value_name = "PATH", global = true, env = "VERBENA_CONTROL")]
    socket: Option<PathBuf>,

    /// Print the answer as JSON. capture, report, replay and record dump, export, finish and full have no answer
    #[arg(long, global = true)]
    json: bool,

    #[command(subcommand)]
    command: VerbenactlCommand,
}

fn main() -> ExitCode {
    let args = VerbenactlArgs::parse();
    let query = Query {
        socket: args.socket.as_deref(),
        is_json: args.json,
        command: &args.command,
    };
    match verbenactl::run(&query).and_then(|text| verbenactl::print(&text)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("verbenactl: {e}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        VerbenactlArgs::command().debug_assert();
    }
}
