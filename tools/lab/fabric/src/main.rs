// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `verbena-fabric-server`: serves the subnet of a topology file to programs of other projects, such as
//! opensm and infiniband-diags. They run unchanged on a host without an RDMA device: `LD_PRELOAD` of
//! ibsim's umad2sim connects their user-MAD interface to this program instead of to a kernel.
//!
//! Each program is attached to port 1 of the adapter that the environment variable SIM_HOST names.
//! Commands come from the standard input, one a line: `cable NODE PORT on` and `cable NODE PORT off`.

mod protocol;
mod server;
mod subnet;

use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;
use subnet::Subnet;
use verbena_fabric::Topology;

/// Serves an emulated InfiniBand subnet by the sockets of ibsim.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The topology, in the format that ibnetdiscover prints.
    topology: PathBuf,
    /// The name of the sockets, which the clients take from IBSIM_SOCKNAME.
    #[arg(long, default_value = "sim")]
    socket_name: String,
    /// Print the events of adapters to which programs are attached.
    #[arg(long)]
    events: bool,
}

fn run(arguments: &Arguments) -> Result<(), String> {
    let name = arguments.topology.display();
    let text = std::fs::read_to_string(&arguments.topology)
        .map_err(|error| format!("cannot read {name}: {error}"))?;
    let topology = Topology::parse(&text).map_err(|error| format!("{name}: {error}"))?;
    let subnet = Subnet::new(topology, server::PROGRAMS);
    server::Server::new(&arguments.socket_name, subnet, arguments.events)
        .and_then(|mut server| server.run())
        .map_err(|error| {
            format!(
                "cannot serve the sockets of {}: {error}",
                arguments.socket_name
            )
        })
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
