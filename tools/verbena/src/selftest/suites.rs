// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The suites of `verbena selftest`, and their commands in the guests.

use crate::host::GUEST_COMMAND;
use clap::ValueEnum;
use verbena_vm::shell;

/// A suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Suite {
    /// One guest: verbs, completions, events and errors through libibverbs
    Guest,
    /// One guest: queue pairs and completion queues of the kernel
    Kernel,
    /// Two guests: every byte of messages, pingpong, rping, perftest
    Pair,
}

/// Programs between two guests: some of each kind, and each transport of perftest.
const PROGRAMS: [&str; 16] = [
    "pingpong/rc",
    "pingpong/ud",
    "pingpong/srq",
    "cm/rping",
    "ucmatose",
    "udaddy",
    "send_bw_RC_plain",
    "send_lat_RC_plain",
    "write_bw_RC_plain",
    "write_lat_RC_plain",
    "read_bw_RC_plain",
    "read_lat_RC_plain",
    "atomic_bw_RC_plain",
    "send_lat_UC_plain",
    "send_bw_UD_plain",
    "!rping_200",
];
/// Messages between two guests: those of a usual path MTU, without the longest.
const MESSAGES: [&str; 2] = ["_1024_", "!8388608"];

impl Suite {
    /// All suites, in the order in which they run.
    pub const ALL: [Self; 3] = [Self::Guest, Self::Kernel, Self::Pair];

    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Guest => "guest",
            Self::Kernel => "kernel",
            Self::Pair => "pair",
        }
    }

    /// Returns the lines `N passed, N failed` that the suite prints in all.
    pub fn count_lines(self, nodes: usize, filters: &[String]) -> usize {
        match self {
            Self::Guest | Self::Kernel => 1,
            // With filters, only the programs run.
            Self::Pair if filters.is_empty() => 2 * (nodes - 1),
            Self::Pair => nodes - 1,
        }
    }

    /// Returns the arguments of `verbena run`, except those that all suites have. `filters` choose
    /// tests by their names; without any, all run.
    pub fn arguments(self, nodes: usize, filters: &[String]) -> Vec<String> {
        let command = match self {
            Self::Guest => {
                let filters = filters.iter().flat_map(|filter| ["--filter", filter]);
                format!("verbena-guest-tests {}", words(filters))
            }
            Self::Kernel => String::from("kernel-selftest"),
            Self::Pair => pair_command(nodes, filters),
        };
        let command = format!("{GUEST_COMMAND}; {command}");
        let mut arguments = Vec::new();
        if self == Self::Pair {
            arguments.extend([
                format!("--nodes={nodes}"),
                String::from("--link=one-process"),
            ]);
            for node in 2..=nodes {
                let agent =
                    String::from("python3 /usr/lib/verbena/wire-link --agent >/run/agent.log 2>&1");
                arguments.extend([String::from("--on"), node.to_string(), agent]);
            }
        }
        arguments.extend([String::from("--"), command]);
        arguments
    }
}

/// Returns the command of vm1, which is the client of each other guest in turn. Filters choose among
/// the programs.
fn pair_command(nodes: usize, filters: &[String]) -> String {
    let mut command = String::from("rc=0");
    for node in 2..=nodes {
        let programs = match filters.is_empty() {
            true => words(PROGRAMS),
            false => words(filters),
        };
        if filters.is_empty() {
            command += &format!("; wire-bytes vm{node} {} || rc=1", words(MESSAGES));
        }
        command += &format!("; programs --short --peer vm{node} {programs} || rc=1");
    }
    command + "; exit $rc"
}

fn words<'a, W: AsRef<str> + 'a>(words: impl IntoIterator<Item = W>) -> String {
    let words: Vec<Vec<u8>> = words
        .into_iter()
        .map(|word| word.as_ref().as_bytes().to_vec())
        .collect();
    String::from_utf8_lossy(&shell::join(words)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_other_guest_is_a_peer_once() {
        let arguments = Suite::Pair.arguments(3, &[]);
        let agents = arguments.windows(2).filter(|pair| pair[0] == "--on");
        let nodes: Vec<&str> = agents.map(|pair| pair[1].as_str()).collect();
        assert_eq!(nodes, ["2", "3"]);
        let command = arguments.last().unwrap();
        assert!(
            command.contains("programs --short --peer vm3 pingpong/rc"),
            "{command}"
        );
        assert!(command.contains("'!rping_200' || rc=1"), "{command}");
        assert_eq!(Suite::Pair.count_lines(3, &[]), 4);
        assert_eq!(Suite::Pair.count_lines(3, &[String::from("a")]), 2);
    }

    #[test]
    fn filters_reach_the_program_as_words() {
        let filters = [String::from("ops/"), String::from("a b")];
        let arguments = Suite::Guest.arguments(2, &filters);
        let command = &arguments[1];
        assert!(
            command.ends_with("verbena-guest-tests --filter ops/ --filter 'a b'"),
            "{command}"
        );
    }
}
