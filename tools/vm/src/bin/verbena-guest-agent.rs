// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The agent in a guest that stays. `scripts/guest/init` starts it with the device of its port.

use std::fs::OpenOptions;
use std::process::ExitCode;
use verbena_vm::agent;

fn main() -> ExitCode {
    let Some(path) = std::env::args_os().nth(1) else {
        eprintln!("usage: verbena-guest-agent PORT");
        return ExitCode::from(2);
    };
    let opened = OpenOptions::new().read(true).write(true).open(&path);
    let served = match opened {
        Ok(port) => agent::serve(port),
        Err(e) => Err(format!("{}: {e}", path.to_string_lossy())),
    };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("verbena-guest-agent: {e}");
            ExitCode::FAILURE
        }
    }
}
