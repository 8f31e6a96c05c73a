// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `verbena`: runs commands in virtual machines that have a Verbena RDMA device.
//!
//! [`args`] is the command line, [`progress`] the line that a terminal shows while guests boot. The
//! crate `verbena-vm` does the work.

mod args;
mod progress;

use args::VerbenaArgs;
use clap::Parser;
use progress::ProgressLine;
use std::ffi::OsString;
use std::process::ExitCode;
use verbena_vm::{shell, Launch};

/// Exit status of every failure that is not the command's.
const FAILED: u8 = 125;

fn main() -> ExitCode {
    let args = match VerbenaArgs::try_parse() {
        Ok(args) => args,
        Err(e) => {
            // A closed pipe is no reason for another status.
            let _ = e.print();
            return match e.use_stderr() {
                true => ExitCode::from(FAILED),
                false => ExitCode::SUCCESS,
            };
        }
    };
    match run(args) {
        Ok(status) => ExitCode::from(status),
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::from(FAILED)
        }
    }
}

fn run(args: VerbenaArgs) -> Result<u8, String> {
    let (options, run_directory) = args.into_options()?;
    let run = options.check()?;
    let words = std::env::args_os().map(OsString::into_encoded_bytes);
    let command_line = String::from_utf8_lossy(&shell::join(words)).into_owned();
    let launch = Launch {
        run: &run,
        run_directory: run_directory.as_deref(),
        command_line: &command_line,
    };
    let mut line = ProgressLine::default();
    launch.run(|progress| line.show(&progress))
}
