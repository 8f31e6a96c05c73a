// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Queries a running NIC through its control socket, and explains error codes without a NIC: the
//! commands of `verbenactl`, which `verbena` has too.
//!
//! [`client`] implements the protocol, [`table`] formats answers for people. With `--json` the
//! answer of the NIC is printed as it is.

mod capture;
mod client;
mod explain;
mod fault;
mod finish;
mod impair;
mod record;
mod replay;
mod table;
mod toml;
mod why;

use clap::{Args as Arguments, Subcommand};
use serde::Serialize;
use serde_json::Value;
use std::io::{self, IsTerminal, Write};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;
use verbena_protocol::{
    ContextFields, ContextsReply, ControlRequest, ImpairmentsReply, PeersReply, PortReply, QpReply,
    StatsReply, StatusReply,
};

/// A command for a NIC.
#[derive(Debug)]
pub struct Query<'a> {
    /// The control socket, or a port that is connected to it.
    pub socket: Option<&'a Path>,
    /// True if the answer is printed as JSON.
    pub is_json: bool,
    /// The command.
    pub command: &'a VerbenactlCommand,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub enum VerbenactlCommand {
    /// Print the counters of the port since the last reset of the device, and those of the NIC process since its start
    Stats {
        #[command(flatten)]
        options: CounterOptions,
    },
    /// Print the existing queue pairs, completion queues, shared receive queues, memory regions and event queues
    Contexts {
        /// Only objects of this kind
        #[arg(long, value_parser = ContextFields::KINDS)]
        kind: Option<String>,
        /// Only objects with this number, in decimal or 0x...
        #[arg(long, value_name = "N", value_parser = parse_number)]
        number: Option<u32>,
    },
    /// Print whether the device runs, or the cause of its fatal error
    Status,
    /// Print the link, MTU, addresses, multicast groups and counters of the port
    #[command(alias = "ports")]
    Port,
    /// Print the peers of queue pairs: number of queue pairs, round trips, sums of counters
    Peers,
    /// Set the impairments of frames that leave by the uplinks: loss, delay, ... Without options, print them
    Impair(impair::ImpairOptions),
    /// Control the rules that inject faults into packets, sends, commands and the device (Documentation/faults.md)
    #[command(subcommand)]
    Fault(fault::FaultCommand),
    /// Capture the RDMA packets of the port as pcapng: verbenactl capture - | wireshark -k -i -
    Capture {
        /// Take the packets from this recording of the flight recorder (`record dump`), without payload; needs no NIC
        #[arg(long, value_name = "RECORDING")]
        recording: Option<PathBuf>,
        /// File to write, or - for standard output. An interrupt ends the capture
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Control the flight recorder, which keeps the last actions of the device (Documentation/recording.md)
    #[command(subcommand)]
    Record(record::RecordCommand),
    /// Print one queue pair: its peer, window, round trip and counters
    Qp {
        /// Number of the queue pair, in decimal or 0x...
        #[arg(value_name = "QPN", value_parser = parse_number)]
        number: u32,
        #[command(flatten)]
        options: CounterOptions,
    },
    /// Print all errors in order, also those of destroyed queue pairs, or the cause of the state of one queue pair, and what to do
    Why {
        /// Read the recording in this file instead of that of the NIC
        #[arg(long, value_name = "RECORDING")]
        file: Option<PathBuf>,
        /// Number of the queue pair, in decimal or 0x...; without it all errors are printed
        #[arg(value_name = "QPN", value_parser = parse_number)]
        number: Option<u32>,
    },
    /// Write an HTML page of a recording: errors with their causes, packets, PSNs, states of queue pairs; needs no NIC
    Report {
        /// Recording that `record dump` has written
        #[arg(value_name = "RECORDING")]
        file: PathBuf,
        /// File for the page
        #[arg(short, long, value_name = "FILE", default_value = "report.html")]
        output: PathBuf,
    },
    /// Run the device model with the inputs of a full recording, and report the first difference; needs no NIC
    Replay {
        /// Full recording that `record full` or `verbena-nic --record-full` has written
        #[arg(value_name = "RECORDING")]
        file: PathBuf,
        /// Also write a recording of the flight recorder, for `why` and `report`
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Explain a status, an event, a `vendor_err` or an errno of a verb: meaning, likely causes, what to do; needs no NIC
    Explain {
        /// 12, IBV_WC_RETRY_EXC_ERR, QP_FATAL, 0x401, LkeyUnknown; a verb and its errno: ibv_create_qp EINVAL; `all` lists every code
        #[arg(value_name = "CODE", required = true, num_args = 1.., allow_negative_numbers = true)]
        code: Vec<String>,
    },
}

/// Options of the commands that print counters.
#[derive(Arguments, Clone, Copy, Debug)]
pub struct CounterOptions {
    /// Leave out counters that are zero
    #[arg(long)]
    nonzero: bool,
    /// Print again every SECONDS seconds (--watch=5; 1 without a number), until an interrupt
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "1",
        value_parser = |text: &str| parse_whole(text, 1..=86_400))]
    watch: Option<u64>,
}

impl CounterOptions {
    /// Prints the result of `text`, once or at the interval of `--watch`. The loop ends when the
    /// reader of standard output closes its pipe.
    ///
    /// # Errors
    ///
    /// `text` fails, or its text cannot be written.
    fn print_repeatedly(self, text: impl Fn() -> Result<String, String>) -> Result<String, String> {
        let Some(seconds) = self.watch else {
            return text();
        };
        let mut out = io::stdout();
        let clear = match out.is_terminal() {
            true => "\x1b[H\x1b[2J",
            false => "",
        };
        loop {
            let text = format!("{clear}{}\n", text()?);
            match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
                Err(e) if e.kind() == io::ErrorKind::BrokenPipe => return Ok(String::new()),
                Err(e) => return Err(format!("cannot write to standard output: {e}")),
                Ok(()) => std::thread::sleep(Duration::from_secs(seconds)),
            }
        }
    }
}

/// Parses a whole number within bounds.
fn parse_whole(text: &str, bounds: RangeInclusive<u64>) -> Result<u64, String> {
    let number = text.parse().ok().filter(|n| bounds.contains(n));
    number.ok_or_else(|| {
        let least = bounds.start();
        match *bounds.end() {
            u64::MAX => format!("{text:?} is not a whole number of {least} or more"),
            most => format!("{text:?} is not a whole number from {least} to {most}"),
        }
    })
}

/// Parses a number in decimal or hexadecimal.
fn parse_number(text: &str) -> Result<u32, String> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let number = digits.map_or_else(|| text.parse(), |hex| u32::from_str_radix(hex, 16));
    number.map_err(|_| format!("{text:?} is not a 32-bit number such as 17 or 0x11"))
}

/// Writes a text to standard output.
///
/// # Errors
///
/// The text cannot be written. A reader that closes its pipe early is not an error.
pub fn print(text: &str) -> Result<(), String> {
    let mut out = io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(format!("cannot write to standard output: {e}"))
        }
        _ => Ok(()),
    }
}

impl VerbenactlCommand {
    /// True if the answer of the command is available as JSON.
    fn has_answer(&self) -> bool {
        match self {
            Self::Capture { .. } | Self::Report { .. } | Self::Replay { .. } => false,
            Self::Record(record) => record.has_answer(),
            _ => true,
        }
    }

    /// True if the command asks a NIC, and so needs a control socket.
    pub fn needs_nic(&self) -> bool {
        match self {
            Self::Explain { .. } | Self::Replay { .. } | Self::Report { .. } => false,
            Self::Capture { recording, .. } => recording.is_none(),
            Self::Why { file, .. } => file.is_none(),
            Self::Record(record) => record.needs_nic(),
            _ => true,
        }
    }
}

/// Does what a command says, and returns the text for standard output.
///
/// # Errors
///
/// The command needs a socket and has none, the NIC cannot be asked, or a file cannot be used.
pub fn run(args: &Query<'_>) -> Result<String, String> {
    if args.is_json && !args.command.has_answer() {
        return Err(String::from(
            "--json prints the answer, and capture, report, replay and record dump, export, finish and full have none: leave it out",
        ));
    }
    if let VerbenactlCommand::Explain { code } = args.command {
        return explain::run(code, args.is_json);
    }
    match args.command {
        VerbenactlCommand::Why { file, number } => {
            let history = why::load_history(args.socket, file.as_deref())?;
            return match number {
                Some(number) => why::explain_qp(&history, *number, args.is_json),
                None => Ok(why::explain_errors(&history, args.is_json)),
            };
        }
        VerbenactlCommand::Replay { file, output } => return replay::run(file, output.as_deref()),
        VerbenactlCommand::Report { file, output } => return why::report(file, output),
        VerbenactlCommand::Capture {
            recording: Some(recording),
            file,
        } => return capture::write_recording(&why::load_history(None, Some(recording))?, file),
        VerbenactlCommand::Record(record::RecordCommand::Export { file }) => {
            return why::export(file)
        }
        VerbenactlCommand::Record(record::RecordCommand::Finish { file, status, time }) => {
            return finish::run(file, *status, *time);
        }
        _ => {}
    }
    let socket = args
        .socket
        .ok_or("no control socket: name that of the NIC by --socket PATH or VERBENA_CONTROL")?;
    if let VerbenactlCommand::Capture { file, .. } = args.command {
        let summary = capture::run(socket, file)?;
        eprintln!("verbenactl: {summary}");
        return Ok(String::new());
    }
    if let VerbenactlCommand::Record(record::RecordCommand::Full { file }) = args.command {
        return replay::record_full(socket, file);
    }
    match args.command {
        VerbenactlCommand::Stats { options } => options.print_repeatedly(|| {
            format_reply(args, &client::query::<StatsReply>(socket)?, |reply| {
                table::counters(&reply["stats"], options.nonzero)
            })
        }),
        VerbenactlCommand::Contexts { kind, number } => {
            let mut contexts: ContextsReply = client::query(socket)?;
            retain_contexts(&mut contexts, kind.as_deref(), *number);
            format_reply(args, &contexts, |reply| table::contexts(&reply["contexts"]))
        }
        VerbenactlCommand::Port => {
            format_reply(args, &client::query::<PortReply>(socket)?, table::port)
        }
        VerbenactlCommand::Peers => {
            format_reply(args, &client::query::<PeersReply>(socket)?, table::peers)
        }
        VerbenactlCommand::Impair(options) => {
            let reply: ImpairmentsReply = client::request(socket, options.request()?)?;
            format_reply(args, &reply, table::impairments)
        }
        VerbenactlCommand::Fault(command) => {
            let show = |reply: &_| format_reply(args, reply, fault::formatter(command));
            fault::run(socket, command, args.is_json, show)
        }
        VerbenactlCommand::Record(command) => record::run(socket, command, |reply| {
            format_reply(args, reply, record::table)
        }),
        VerbenactlCommand::Qp { number, options } => options.print_repeatedly(|| {
            let reply: QpReply = client::request(socket, ControlRequest::Qp { number: *number })?;
            format_reply(args, &reply, |reply| {
                table::queue_pair(&reply["qp"], options.nonzero)
            })
        }),
        _ => format_reply(args, &client::query::<StatusReply>(socket)?, table::pairs),
    }
}

/// Formats an answer, as JSON or for people.
fn format_reply(
    args: &Query<'_>,
    answer: &impl Serialize,
    table: impl FnOnce(&Value) -> String,
) -> Result<String, String> {
    let value = serde_json::to_value(answer).map_err(|e| e.to_string())?;
    Ok(if args.is_json {
        format!("{value:#}\n")
    } else {
        table(&value)
    })
}

/// Drops the contexts that were not requested.
fn retain_contexts(answer: &mut ContextsReply, kind: Option<&str>, number: Option<u32>) {
    answer.contexts.retain(|c| {
        kind.is_none_or(|kind| c.fields.kind() == kind) && number.is_none_or(|n| c.number == n)
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};
    use verbena_protocol::{Cq, ObjectContext, Qp};

    #[derive(Parser, Debug)]
    struct VerbenactlArgs {
        #[command(subcommand)]
        command: VerbenactlCommand,
    }

    #[test]
    fn commands_that_read_files_need_no_nic() {
        let needs_nic = |line: &str| {
            let words = std::iter::once("verbenactl").chain(line.split(' '));
            VerbenactlArgs::parse_from(words).command.needs_nic()
        };
        for line in [
            "why",
            "why 17",
            "capture x",
            "record dump x",
            "stats",
            "fault list",
        ] {
            assert!(needs_nic(line), "{line}");
        }
        for line in [
            "why --file x",
            "capture --recording x y",
            "report x",
            "replay x",
            "record export x",
            "explain 12",
        ] {
            assert!(!needs_nic(line), "{line}");
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        VerbenactlArgs::command().debug_assert();
    }

    #[test]
    fn the_interval_of_watch_and_other_numbers_have_bounds() {
        let watch = |line: &str| {
            let args =
                VerbenactlArgs::try_parse_from(line.split(' ')).map_err(|e| e.to_string())?;
            match args.command {
                VerbenactlCommand::Stats { options } | VerbenactlCommand::Qp { options, .. } => {
                    Ok(options.watch)
                }
                _ => Err(String::from("another command")),
            }
        };
        assert_eq!(watch("verbenactl stats"), Ok(None));
        assert_eq!(watch("verbenactl stats --nonzero --watch"), Ok(Some(1)));
        assert_eq!(watch("verbenactl qp --watch=5 17"), Ok(Some(5)));
        for bad in ["0", "x", "-1", "18446744073709551616"] {
            let error = watch(&format!("verbenactl stats --watch={bad}")).unwrap_err();
            assert!(
                error.contains("is not a whole number from 1 to 86400"),
                "{error}"
            );
        }
        let error = watch("verbenactl record on x").unwrap_err();
        assert!(
            error.contains("\"x\" is not a whole number of 1"),
            "{error}"
        );
        let error = watch("verbenactl impair --loss 1 --seed x").unwrap_err();
        assert!(
            error.contains("\"x\" is not a whole number of 0"),
            "{error}"
        );
    }

    #[test]
    fn arguments_without_a_meaning_are_refused() {
        for line in ["contexts --kind pd", "contexts --number x"] {
            let words = std::iter::once("verbenactl").chain(line.split(' '));
            assert!(VerbenactlArgs::try_parse_from(words).is_err(), "{line}");
        }
        for line in ["report x", "record full x", "capture x"] {
            let words = std::iter::once("verbenactl").chain(line.split(' '));
            let query = Query {
                socket: None,
                is_json: true,
                command: &VerbenactlArgs::parse_from(words).command,
            };
            let error = run(&query).unwrap_err();
            assert!(error.starts_with("--json"), "{line}: {error}");
        }
        let all = [
            ContextFields::Qp(Default::default()),
            ContextFields::Cq(Default::default()),
            ContextFields::Srq(Default::default()),
            ContextFields::Mr(Default::default()),
            ContextFields::Eq(Default::default()),
        ];
        assert_eq!(
            all.each_ref().map(ContextFields::kind),
            ContextFields::KINDS
        );
    }

    #[test]
    fn numbers_are_decimal_or_hexadecimal() {
        assert_eq!((parse_number("17"), parse_number("0x11")), (Ok(17), Ok(17)));
        for bad in ["", "0x", "-1", "x", "4294967296"] {
            assert!(
                parse_number(bad).unwrap_err().contains("17 or 0x11"),
                "{bad}"
            );
        }
        let args = VerbenactlArgs::parse_from(["verbenactl", "qp", "0x11"]);
        assert!(matches!(
            args.command,
            VerbenactlCommand::Qp { number: 17, .. }
        ));
        assert!(VerbenactlArgs::try_parse_from(["verbenactl", "qp"]).is_err());
        let args = VerbenactlArgs::parse_from(["verbenactl", "explain", "ibv_create_qp", "-22"]);
        assert!(matches!(args.command, VerbenactlCommand::Explain { code } if code.len() == 2));
        let args = VerbenactlArgs::parse_from(["verbenactl", "ports"]);
        assert!(matches!(args.command, VerbenactlCommand::Port));
    }

    #[test]
    fn contexts_are_selected_by_kind_and_number() {
        let qp = |number| ObjectContext {
            number,
            fields: ContextFields::Qp(Qp::default()),
        };
        let cq = ObjectContext {
            number: 2,
            fields: ContextFields::Cq(Cq::default()),
        };
        let all = ContextsReply {
            contexts: vec![qp(2), qp(3), cq],
        };
        let mut answer = all.clone();
        retain_contexts(&mut answer, Some("qp"), None);
        assert_eq!(answer.contexts, [qp(2), qp(3)]);
        let mut answer = all;
        retain_contexts(&mut answer, Some("qp"), Some(3));
        assert_eq!(answer.contexts, [qp(3)]);
    }
}
