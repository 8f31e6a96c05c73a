// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The command lines of the commands for guests that run.

use clap::Args;
use std::path::PathBuf;
use verbena_vm::options::MAX_GUESTS;

/// The nodes that a command is for.
#[derive(Args, Debug)]
pub struct NodesName {
    /// Name of the nodes (`verbena up --name`) [default: default, else the only ones that run]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
}

/// The command line of `verbena exec`.
#[derive(Args, Debug)]
pub struct ExecArgs {
    #[command(flatten)]
    pub nodes: NodesName,
    /// Give the command a terminal, for shells and editors: `verbena exec -t -- bash`
    #[arg(short, long = "tty")]
    pub terminal: bool,
    /// Number or name of the node: 2 or vm2
    #[arg(value_name = "NODE", default_value = "1", value_parser = parse_node)]
    pub node: usize,
    /// The command
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// The command line of `verbena cp`.
#[derive(Args, Debug)]
pub struct CopyArgs {
    #[command(flatten)]
    pub nodes: NodesName,
    /// What to copy: PATH or NODE:PATH
    #[arg(value_name = "SOURCE", value_parser = parse_place)]
    pub source: CopyPlace,
    /// Where to copy it: PATH or NODE:PATH
    #[arg(value_name = "DESTINATION", value_parser = parse_place)]
    pub destination: CopyPlace,
}

/// The command line of `verbena down`.
#[derive(Args, Debug)]
pub struct DownArgs {
    #[command(flatten)]
    pub nodes: NodesName,
    /// End all nodes of this user
    #[arg(long, conflicts_with = "name")]
    pub all: bool,
}

/// The command line of `verbena ps`.
#[derive(Args, Debug)]
pub struct ListArgs {
    /// Print a list of JSON objects
    #[arg(long)]
    pub json: bool,
}

/// A place of `verbena cp`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyPlace {
    /// A path of this machine.
    Here(PathBuf),
    /// A path in a node.
    Node {
        /// Number of the node.
        node: usize,
        /// The path.
        path: String,
    },
}

/// Parses the number or the name of a node.
///
/// # Errors
///
/// There can be no such node.
pub fn parse_node(text: &str) -> Result<usize, String> {
    let number = text.strip_prefix("vm").unwrap_or(text).parse().ok();
    let number = number.filter(|number| (1..=MAX_GUESTS).contains(number));
    number.ok_or_else(|| format!("a node is 1 to {MAX_GUESTS}, or vm1 to vm{MAX_GUESTS}"))
}

fn parse_place(text: &str) -> Result<CopyPlace, String> {
    let Some((node, path)) = text.split_once(':') else {
        return Ok(CopyPlace::Here(text.into()));
    };
    // A colon after a slash is part of a name, as with scp.
    if node.contains('/') {
        return Ok(CopyPlace::Here(text.into()));
    }
    let node = parse_node(node)
        .map_err(|e| format!("{e}; a file of this machine with a colon in its name is ./{text}"))?;
    let path = match path {
        "" => String::from("."),
        path => String::from(path),
    };
    Ok(CopyPlace::Node { node, path })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_a_number_or_a_name() {
        assert_eq!(parse_node("2"), Ok(2));
        assert_eq!(parse_node("vm4"), Ok(4));
        for bad in ["0", "5", "vm", "vm5", "x", "-1"] {
            assert!(parse_node(bad).unwrap_err().contains("vm1 to vm4"), "{bad}");
        }
    }

    #[test]
    fn only_the_name_of_a_node_makes_a_path_remote() {
        let here = |text: &str| CopyPlace::Here(PathBuf::from(text));
        let node = |node, path| {
            let path = String::from(path);
            CopyPlace::Node { node, path }
        };
        let place = |text| parse_place(text).unwrap();
        assert_eq!(place("a/b"), here("a/b"));
        assert_eq!(place("./1:x"), here("./1:x"));
        assert_eq!(place("vm2:/etc/hosts"), node(2, "/etc/hosts"));
        assert_eq!(place("1:a:b"), node(1, "a:b"));
        assert_eq!(place("1:"), node(1, "."));
        let error = parse_place("host:x").unwrap_err();
        assert!(error.ends_with("./host:x"), "{error}");
    }
}
