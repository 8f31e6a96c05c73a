// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The commands of `verbenactl` for the NIC of a node.
//!
//! `verbenactl` defines the commands. Each gets the options that choose the node.

use crate::node_args::parse_node;
use clap::error::Error;
use clap::{ArgMatches, Args, Command, FromArgMatches, Subcommand};
use std::io::Write;
use verbena_vm::node_set;
use verbenactl::{Query, VerbenactlCommand};

/// Exit status of `verbenactl` if the NIC refuses, or cannot be asked.
const FAILED: u8 = 1;

/// A command for a NIC, and the node that has it.
#[derive(Debug)]
pub struct ControlArgs {
    options: ControlOptions,
    command: VerbenactlCommand,
}

/// The options that each command has in addition.
#[derive(Args, Debug)]
#[command(next_help_heading = "Node")]
struct ControlOptions {
    /// Number or name of the node: 2 or vm2
    #[arg(long = "node", id = "control_node", value_name = "NODE", default_value = "1", value_parser = parse_node, global = true)]
    node: usize,
    /// Name of the nodes (`verbena ps` lists them) [default: default, else the only ones that run]
    #[arg(long = "name", id = "control_name", value_name = "NAME", global = true)]
    name: Option<String>,
    /// Print the answer as JSON
    #[arg(long = "json", id = "control_json", global = true)]
    json: bool,
}

impl Subcommand for ControlArgs {
    fn augment_subcommands(command: Command) -> Command {
        let ours: Vec<String> = names(&VerbenactlCommand::augment_subcommands(Command::new("")));
        let command = VerbenactlCommand::augment_subcommands(command);
        ours.into_iter().fold(command, |command, name| {
            command.mut_subcommand(name, ControlOptions::augment_args)
        })
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        VerbenactlCommand::has_subcommand(name)
    }
}

fn names(command: &Command) -> Vec<String> {
    let names = command.get_subcommands().map(Command::get_name);
    names.map(String::from).collect()
}

impl FromArgMatches for ControlArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let command = VerbenactlCommand::from_arg_matches(matches)?;
        // A global option is known to each command above the one after which it stands.
        let (_, own) = matches
            .subcommand()
            .ok_or_else(|| Error::new(clap::error::ErrorKind::MissingSubcommand))?;
        let options = ControlOptions::from_arg_matches(own)?;
        Ok(Self { options, command })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl ControlArgs {
    /// Runs the command, prints its answer, and returns the exit status.
    ///
    /// # Errors
    ///
    /// The command needs a NIC, and the node does not run.
    pub fn run(&self) -> Result<u8, String> {
        let socket = match self.command.needs_nic() {
            true => {
                let set = node_set::find(self.options.name.as_deref())?;
                set.check_number(self.options.node)?;
                Some(set.control(self.options.node))
            }
            false => None,
        };
        let query = Query {
            socket: socket.as_deref(),
            is_json: self.options.json,
            command: &self.command,
        };
        match verbenactl::run(&query).and_then(|text| verbenactl::print(&text)) {
            Ok(()) => Ok(0),
            Err(e) => {
                // A reader that is gone needs no error.
                let _ = writeln!(std::io::stderr(), "error: {e}");
                Ok(FAILED)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser, Debug)]
    struct TestArgs {
        #[command(subcommand)]
        control: ControlArgs,
    }

    fn parse(line: &str) -> ControlArgs {
        let words = std::iter::once("verbena").chain(line.split(' '));
        TestArgs::try_parse_from(words).unwrap().control
    }

    #[test]
    fn each_command_can_choose_a_node() {
        let options = |line| parse(line).options;
        assert_eq!(options("stats").node, 1);
        assert_eq!(options("stats --node 2").node, 2);
        assert_eq!(options("fault list --node vm3").node, 3);
        assert_eq!(options("fault --node vm3 list").node, 3);
        let remove = parse("fault remove rule --name set --json");
        assert_eq!(remove.options.name.as_deref(), Some("set"));
        assert!(remove.options.json);
        assert!(matches!(remove.command, VerbenactlCommand::Fault(_)));
        assert!(ControlArgs::has_subcommand("qp") && !ControlArgs::has_subcommand("run"));
    }
}
