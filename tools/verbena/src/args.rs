// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The command line.

use crate::bench::BenchArgs;
use crate::cache::CacheArgs;
use crate::control::ControlArgs;
use crate::doctor::DoctorArgs;
use crate::node_args::{CopyArgs, DownArgs, ExecArgs, ListArgs};
use crate::selftest::SelftestArgs;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use verbena_vm::node_set::{check_name, DEFAULT_NAME};
use verbena_vm::options::MAX_GUESTS;
use verbena_vm::{shell, Accelerator, LinkKind, LinkLayer, RunOptions};

/// Run commands in virtual machines that have a Verbena RDMA device.
#[derive(Parser, Debug)]
#[command(version)]
pub struct VerbenaArgs {
    #[command(subcommand)]
    command: VerbenaCommand,
}

#[derive(Subcommand, Debug)]
enum VerbenaCommand {
    /// Boot guests, run a command in them as root, and exit with its status
    ///
    /// The current directory is mounted in each guest at the same path, writable, and is the working
    /// directory of the command. A command of one word is for the shell of the guest; of a command of
    /// several words, the first is the program. The command (with several guests that of vm1) reads
    /// the standard input of `verbena`, unless that is a terminal. In the guest, $VERBENA_GID is the
    /// index of the RoCE v2 GID of verbena0. With several guests, vmK has the address 10.0.0.K;
    /// $PEER is vm2 in vm1, and vm1 in the others; $DEVICE and $GID are the RDMA device and the index
    /// of its GID; `barrier NAME` returns when all guests have called it.
    ///
    /// Exit status: that of the command; 124 after a timeout; 125 after any other failure, and if the
    /// kernel log has an oops or a warning, or the NIC failed. With several guests the greatest.
    Run {
        #[command(flatten)]
        options: GuestOptions,

        /// The command of guest K, or with `all` of each guest without its own. A guest without a
        /// command stays until the others have ended
        #[arg(long, num_args = 2, value_names = ["K", "COMMAND"])]
        on: Vec<String>,

        /// The command of vm1
        #[arg(last = true, value_name = "COMMAND")]
        command: Vec<String>,
    },
    /// Boot guests, with a shell in vm1. Ctrl-A x ends a guest that hangs
    Shell {
        #[command(flatten)]
        options: GuestOptions,
    },
    /// Boot nodes: guests that stay until `verbena down`, and return when they take commands
    ///
    /// `verbena exec 2 -- COMMAND` runs a command in vm2, `verbena cp` copies files, `verbena ps`
    /// lists the nodes. The nodes have the current directory as in `verbena run`. They survive the
    /// terminal.
    Up {
        /// Name of these nodes, for several sets of nodes at a time
        #[arg(long, value_name = "NAME", default_value = DEFAULT_NAME)]
        name: String,
        #[command(flatten)]
        options: GuestOptions,
    },
    /// Run a command in a node of `verbena up`, as root, and exit with its status
    ///
    /// The command runs in the current directory if the node has it, else in /root. A command of one
    /// word is for the shell of the node; of a command of several words, the first is the program.
    /// The command reads the standard input of `verbena`, unless that is a terminal. Ctrl-C reaches
    /// the command. Several commands can run at a time.
    ///
    /// Exit status: that of the command, 128 plus the number of a signal that ended it, 125 after any
    /// other failure.
    Exec(ExecArgs),
    /// Copy a file or a directory to or from a node
    ///
    /// SOURCE and DESTINATION are paths of this machine, or NODE:PATH, as in vm1:/etc/hosts or
    /// 2:results. If DESTINATION is a directory, the copy has the name of SOURCE in it. A relative
    /// path in a node begins at /root. `./1:x` is a file of this machine.
    Cp(CopyArgs),
    /// End nodes
    ///
    /// Exit status: 125 if something was wrong with the nodes while they ran, as with `verbena run`.
    Down(DownArgs),
    /// List the guests that run: nodes of `verbena up`, and those of `verbena run`
    Ps(ListArgs),
    /// Say what guests lack on this machine, what that costs, and how to get it
    ///
    /// Builds nothing, and changes nothing. Exit status: 0 if `verbena run` will work, else 1.
    Doctor(DoctorArgs),
    /// Run the short test suites in guests, and say what failed in a form that can be posted
    ///
    /// On a terminal a line shows the progress. At a failure the output ends with a block that has the
    /// versions, the machine, the failing tests and the place of their logs.
    ///
    /// Exit status: 0 if all tests passed, 1 if a test failed or a suite did not end, 125 after any
    /// other failure.
    Selftest(SelftestArgs),
    /// Measure Verbena and rxe by perftest in guests, and write a page that can be posted
    ///
    /// The devices alternate in the same guests: in one guest, and from guest to guest. The page has
    /// medians, spreads, ratios to rxe, pictures, the versions, the machine, and all results as JSON.
    /// It is one file without references. All tests take about half an hour, --short some minutes.
    ///
    /// Exit status: 0 if all figures are there, 1 if some are missing, 125 after any other failure.
    Bench(BenchArgs),
    /// List or remove what Verbena keeps on this machine
    Cache(CacheArgs),
    #[command(flatten)]
    Control(ControlArgs),
    /// Write shell completions and man pages into a directory
    #[command(hide = true)]
    Generate {
        /// The directory
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
}

/// What `verbena` has to do.
#[derive(Debug)]
pub enum Task {
    /// Boot guests.
    Launch(LaunchTask),
    /// Run a command in a node.
    Exec(ExecArgs),
    /// Copy files.
    Copy(CopyArgs),
    /// End nodes.
    Down(DownArgs),
    /// List guests.
    List(ListArgs),
    /// Examine the machine.
    Doctor(DoctorArgs),
    /// Run the test suites in guests.
    Selftest(SelftestArgs),
    /// Measure Verbena and rxe.
    Bench(BenchArgs),
    /// List or clean what Verbena keeps.
    Cache(CacheArgs),
    /// Query or control the NIC of a node.
    Control(Box<ControlArgs>),
    /// Write completions and man pages into this directory.
    Generate(PathBuf),
}

/// Guests to boot.
#[derive(Debug)]
pub struct LaunchTask {
    /// The options, to be checked.
    pub options: RunOptions,
    /// The directory for logs, if one was chosen.
    pub run_directory: Option<PathBuf>,
    /// The name of guests that stay.
    pub name: Option<String>,
}

/// Options of the commands that boot guests.
#[derive(Args, Debug)]
struct GuestOptions {
    /// Number of guests on one network, vm1 to vmN
    #[arg(long, value_name = "N", default_value_t = 1)]
    nodes: usize,
    /// What vm2 and up have instead of Verbena
    #[arg(long, value_name = "KIND")]
    peer: Option<PeerKind>,
    /// Add the kernel's soft RoCE, rxe0, to each guest, on a network of its own: $RXE_GID is the index of
    /// its GID, vmK has the address 10.1.0.K there. For one guest or two
    #[arg(long)]
    rxe: bool,
    /// Link between the NICs of the guests [default: unix; one-process with --link-layer ib]
    #[arg(long, value_name = "KIND")]
    link: Option<LinkName>,
    /// Link layer of the RDMA ports
    #[arg(long, value_name = "LAYER", default_value = "ethernet")]
    link_layer: LayerName,
    /// Another directory that is mounted in each guest at the same path, writable. May be repeated
    #[arg(long, value_name = "DIR")]
    share: Vec<PathBuf>,
    /// Virtual CPUs of each guest
    #[arg(long, value_name = "N", default_value_t = 2)]
    cpus: u32,
    /// Memory of each guest in MB
    #[arg(long, value_name = "MB", default_value_t = 2048)]
    mem: u32,
    /// MTU of the guests' Ethernet in bytes [default: 1500]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1280..=9216))]
    mtu: Option<u32>,
    /// What executes the guests' instructions [default: kvm where it works, else tcg]
    #[arg(long, value_name = "KIND")]
    accel: Option<AcceleratorName>,
    /// End the guests S seconds after power-on, and exit with 124
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..))]
    timeout: Option<u64>,
    /// End a guest that prints nothing for S seconds while it boots
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    silence: u64,
    /// More arguments for the guests' kernel, split at blanks. May be repeated
    #[arg(long, value_name = "ARGS", allow_hyphen_values = true)]
    kernel_args: Vec<String>,
    /// More arguments for the NIC (verbena-nic), split at blanks. May be repeated
    #[arg(long, value_name = "ARGS", allow_hyphen_values = true)]
    nic_args: Vec<String>,
    /// Capture all RDMA packets for Wireshark, as rdma.pcapng beside the logs
    #[arg(long)]
    capture: bool,
    /// Switch the flight recorder off, which explains errors after they have happened
    #[arg(long)]
    no_record: bool,
    /// Lines of the guests' kernel logs that are no failure: a regular expression
    #[arg(long, value_name = "REGEX")]
    expected: Option<String>,
    /// Directory for the logs [default: a new one, which the last lines of a failed run name]
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PeerKind {
    /// The kernel's soft RoCE, rxe0
    Rxe,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LinkName {
    /// Datagram sockets
    Unix,
    /// Tunnels over the loopback network
    Udp,
    /// One NIC process for all guests
    OneProcess,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LayerName {
    /// RoCE v2
    Ethernet,
    /// InfiniBand ports, with opensm in vm1
    Ib,
}

/// What executes the guests' instructions.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum AcceleratorName {
    /// QEMU's emulator
    Tcg,
    /// Hardware virtualisation
    Kvm,
}

impl VerbenaArgs {
    /// Returns what there is to do.
    ///
    /// # Errors
    ///
    /// Commands are missing or given twice, a directory does not exist, or a name is not plain.
    pub fn into_task(self) -> Result<Task, String> {
        let here = || {
            std::env::current_dir()
                .map_err(|e| format!("the current directory cannot be used: {e}"))
        };
        let task = match self.command {
            VerbenaCommand::Run {
                options,
                on,
                command,
            } => {
                let commands = commands(options.nodes, &on, &command)?;
                options
                    .into_task(&here()?)?
                    .with(|run| run.commands = commands)
            }
            VerbenaCommand::Shell { options } => {
                if !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
                    return Err(String::from(
                        "verbena shell needs a terminal: use `verbena run -- COMMAND`",
                    ));
                }
                options.into_task(&here()?)?.with(|run| run.is_shell = true)
            }
            VerbenaCommand::Up { name, options } => {
                check_name(&name)?;
                let task = options.into_task(&here()?)?;
                LaunchTask {
                    name: Some(name),
                    ..task.with(|run| run.stays = true)
                }
            }
            VerbenaCommand::Exec(exec) => return Ok(Task::Exec(exec)),
            VerbenaCommand::Cp(copy) => return Ok(Task::Copy(copy)),
            VerbenaCommand::Down(down) => return Ok(Task::Down(down)),
            VerbenaCommand::Ps(list) => return Ok(Task::List(list)),
            VerbenaCommand::Doctor(doctor) => return Ok(Task::Doctor(doctor)),
            VerbenaCommand::Selftest(args) => return Ok(Task::Selftest(args)),
            VerbenaCommand::Bench(args) => return Ok(Task::Bench(args)),
            VerbenaCommand::Cache(cache) => return Ok(Task::Cache(cache)),
            VerbenaCommand::Control(control) => return Ok(Task::Control(Box::new(control))),
            VerbenaCommand::Generate { directory } => return Ok(Task::Generate(directory)),
        };
        Ok(Task::Launch(task))
    }
}

impl LaunchTask {
    fn with(mut self, change: impl FnOnce(&mut RunOptions)) -> Self {
        change(&mut self.options);
        self
    }
}

impl AcceleratorName {
    /// Returns the accelerator of this name.
    pub fn kind(self) -> Accelerator {
        match self {
            Self::Tcg => Accelerator::Tcg,
            Self::Kvm => Accelerator::Kvm,
        }
    }
}

impl GuestOptions {
    fn into_task(self, here: &Path) -> Result<LaunchTask, String> {
        let mut shares = vec![here.to_owned()];
        for share in &self.share {
            let path = std::fs::canonicalize(share)
                .map_err(|e| format!("--share {}: {e}", share.display()))?;
            if !path.is_dir() {
                return Err(format!("--share {}: this is no directory", share.display()));
            }
            shares.push(path);
        }
        let split = |lists: &[String]| {
            let words = lists.iter().flat_map(|list| list.split_ascii_whitespace());
            words.map(String::from).collect()
        };
        let options = RunOptions {
            guests: self.nodes,
            commands: Vec::new(),
            is_shell: false,
            stays: false,
            shares,
            directory: Some(here.to_owned()),
            link: self.link.map(|link| match link {
                LinkName::Unix => LinkKind::Unix,
                LinkName::Udp => LinkKind::Udp,
                LinkName::OneProcess => LinkKind::OneProcess,
            }),
            link_layer: match self.link_layer {
                LayerName::Ethernet => LinkLayer::Ethernet,
                LayerName::Ib => LinkLayer::InfiniBand,
            },
            is_peer_rxe: self.peer.is_some(),
            has_rxe: self.rxe,
            mtu: self.mtu,
            cpus: self.cpus,
            memory_mb: self.mem,
            accelerator: self.accel.map(AcceleratorName::kind),
            kernel_args: split(&self.kernel_args),
            nic_args: split(&self.nic_args),
            is_recorded: !self.no_record,
            is_captured: self.capture,
            timeout_s: self.timeout,
            silence_s: self.silence,
            expected: self.expected,
        };
        Ok(LaunchTask {
            options,
            run_directory: self.run_dir,
            name: None,
        })
    }
}

/// Returns the command of each guest.
fn commands(
    guests: usize,
    on: &[String],
    command: &[String],
) -> Result<Vec<Option<String>>, String> {
    // The check of the options refuses a wrong number of guests.
    let guests = guests.clamp(1, MAX_GUESTS);
    let mut commands: Vec<Option<String>> = vec![None; guests];
    let mut of_all = None;
    for pair in on.chunks_exact(2) {
        let (who, text) = (pair[0].as_str(), &pair[1]);
        if who == "all" {
            of_all = Some(text.clone());
            continue;
        }
        let number = who
            .parse()
            .ok()
            .filter(|number| (1..=MAX_GUESTS).contains(number));
        let number: usize =
            number.ok_or_else(|| format!("--on is 1 to {MAX_GUESTS} or all, not {who:?}"))?;
        if commands.len() < number {
            commands.resize(number, None);
        }
        if commands[number - 1].replace(text.clone()).is_some() {
            return Err(format!(
                "--on {number}: vm{number} has two commands, and may have one"
            ));
        }
    }
    let first = (!command.is_empty()).then(|| command_text(command));
    if let (Some(own), Some(_)) = (commands.first_mut(), &first) {
        if own.is_some() {
            return Err(String::from(
                "vm1 has two commands: that of --on 1, and that after --",
            ));
        }
        *own = first;
    }
    for own in commands.iter_mut().take(guests) {
        *own = own.take().or_else(|| of_all.clone());
    }
    if commands.iter().all(Option::is_none) {
        return Err(String::from(
            "there is no command: add `-- COMMAND`, or use `verbena shell` for a shell",
        ));
    }
    Ok(commands)
}

/// Returns the text for a shell of a command of one word or several.
pub fn command_text(words: &[String]) -> String {
    match words {
        [text] => text.clone(),
        words => String::from_utf8_lossy(&shell::join(words)).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        VerbenaArgs::command().debug_assert();
    }

    fn parse(line: &[&str]) -> Result<RunOptions, String> {
        launch("run", line).map(|task| task.options)
    }

    fn launch(command: &str, line: &[&str]) -> Result<LaunchTask, String> {
        let words = ["verbena", command].into_iter().chain(line.iter().copied());
        let args = VerbenaArgs::try_parse_from(words).map_err(|e| e.to_string())?;
        match args.into_task()? {
            Task::Launch(task) => Ok(task),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn nodes_that_stay_have_a_name_and_no_command() {
        let task = launch("up", &["--nodes", "2"]).unwrap();
        assert_eq!(task.name.as_deref(), Some("default"));
        assert!(task.options.stays && task.options.check().unwrap().guests == 2);
        let error = launch("up", &["--name", "a/b"]).unwrap_err();
        assert!(error.starts_with("--name \"a/b\": "), "{error}");
        assert!(launch("up", &["--", "true"]).is_err());
        assert_eq!(launch("run", &["--", "true"]).unwrap().name, None);
    }

    #[test]
    fn a_command_of_several_words_keeps_them() {
        let command = |line: &[&str]| parse(line).unwrap().commands[0].clone().unwrap();
        assert_eq!(command(&["--", "ls *.c | wc -l"]), "ls *.c | wc -l");
        assert_eq!(
            command(&["--", "ls", "-l", "a b", "$HOME"]),
            "ls -l 'a b' '$HOME'"
        );
    }

    #[test]
    fn each_guest_has_at_most_one_command() {
        let commands = |line: &[&str]| parse(line).map(|options| options.commands);
        let text = |text: &str| Some(String::from(text));
        let all = commands(&["--nodes", "3", "--on", "all", "a", "--on", "2", "b"]).unwrap();
        assert_eq!(all, [text("a"), text("b"), text("a")]);
        let first = commands(&["--nodes", "2", "--on", "2", "b", "--", "c"]).unwrap();
        assert_eq!(first, [text("c"), text("b")]);
        let error = commands(&["--on", "1", "a", "--", "b"]).unwrap_err();
        assert!(error.starts_with("vm1 has two commands"), "{error}");
        let error = commands(&["--on", "1", "a", "--on", "1", "b"]).unwrap_err();
        assert!(error.contains("two commands"), "{error}");
        let error = commands(&["--on", "x", "a"]).unwrap_err();
        assert!(error.contains("not \"x\""), "{error}");
        let error = commands(&[]).unwrap_err();
        assert!(error.contains("verbena shell"), "{error}");
        // The check of the options refuses a guest that does not exist.
        let options = parse(&["--on", "2", "a"]).unwrap();
        assert!(options.check().unwrap_err().contains("--nodes 2"));
    }

    #[test]
    fn the_current_directory_is_shared_and_others_must_exist() {
        let here = std::env::current_dir().unwrap();
        let options = parse(&["--share", ".", "--", "true"]).unwrap();
        assert_eq!(options.shares, [here.clone(), here.clone()]);
        assert_eq!(options.directory, Some(here));
        let error = parse(&["--share", "/no/such", "--", "true"]).unwrap_err();
        assert!(error.starts_with("--share /no/such: "), "{error}");
        let error = parse(&["--share", "Cargo.toml", "--", "true"]).unwrap_err();
        assert!(error.ends_with("no directory"), "{error}");
    }

    #[test]
    fn names_of_options_and_values_are_checked() {
        let error = parse(&["--nodez", "2", "--", "true"]).unwrap_err();
        assert!(error.contains("--nodes"), "{error}");
        let error = parse(&["--link", "tap", "--", "true"]).unwrap_err();
        assert!(
            error.contains("'tap'") && error.contains("one-process"),
            "{error}"
        );
        for bad in [
            ["--timeout", "0"],
            ["--mtu", "100"],
            ["--peer", "x"],
            ["--cpus", "-1"],
        ] {
            assert!(parse(&[bad[0], bad[1], "--", "true"]).is_err(), "{bad:?}");
        }
        let options = parse(&["--kernel-args", "a b", "--kernel-args", "c", "--", "x"]).unwrap();
        assert_eq!(options.kernel_args, ["a", "b", "c"]);
        let options = parse(&["--nic-args", "--wire-local --drop 5", "--", "x"]).unwrap();
        assert_eq!(options.nic_args, ["--wire-local", "--drop", "5"]);
        let options = parse(&["--link-layer", "ib", "--no-record", "--", "x"]).unwrap();
        assert_eq!(options.link_layer, LinkLayer::InfiniBand);
        assert!(!options.is_recorded);
    }
}
