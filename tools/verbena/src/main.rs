// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `verbena`: runs commands in virtual machines that have a Verbena RDMA device.
//!
//! [`args`] and [`node_args`] are the command line, [`nodes`] the commands for guests that run,
//! [`control`] those for NICs, [`doctor`] and [`cache`] those for the machine. [`selftest`] and
//! [`bench`] run tests and benchmarks in guests ([`guest_run`]), and describe the machine ([`host`]).
//! [`generate`] writes completions and man pages, and [`progress`] the line that a terminal shows
//! while guests boot. The crate `verbena-vm` does the work.

mod args;
mod bench;
mod cache;
mod control;
mod doctor;
mod generate;
mod guest_run;
mod host;
mod node_args;
mod nodes;
mod progress;
mod selftest;

use args::{LaunchTask, Task, VerbenaArgs};
use clap::Parser;
use progress::ProgressLine;
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use verbena_vm::{shell, Launch};

/// Exit status of every failure that is not the command's.
const FAILED: u8 = 125;

fn main() -> ExitCode {
    if let Some(status) = verbena_vm::doctor::probe::of_this_process() {
        return ExitCode::from(status);
    }
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
            // Of nodes that stay, nobody may read the errors any more.
            let _ = writeln!(std::io::stderr(), "error: {e}");
            ExitCode::from(FAILED)
        }
    }
}

fn run(args: VerbenaArgs) -> Result<u8, String> {
    match args.into_task()? {
        Task::Launch(task) => launch(task),
        Task::Exec(args) => nodes::exec(&args),
        Task::Copy(args) => nodes::copy(&args),
        Task::Down(args) => nodes::down(&args),
        Task::List(args) => nodes::list(&args),
        Task::Doctor(args) => doctor::run(&args),
        Task::Selftest(args) => selftest::run(&args),
        Task::Bench(args) => bench::run(&args),
        Task::Cache(args) => cache::run(&args),
        Task::Control(args) => args.run(),
        Task::Generate(directory) => generate::run(&directory),
    }
}

fn launch(task: LaunchTask) -> Result<u8, String> {
    let run = task.options.check()?;
    let words = std::env::args_os().map(OsString::into_encoded_bytes);
    let command_line = String::from_utf8_lossy(&shell::join(words)).into_owned();
    let launch = Launch {
        run: &run,
        run_directory: task.run_directory.as_deref(),
        name: task.name.as_deref(),
        command_line: &command_line,
    };
    let mut line = ProgressLine::default();
    launch.run(|progress| line.show(&progress))
}
