// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A run from its checked options to its exit status, in both processes of its session.

use crate::background;
use crate::boot::{self, Progress, Temporary};
use crate::guest::Shared;
use crate::guest_files::ShellTerminal;
use crate::installation::{Installation, Source, VARIABLE};
use crate::node_request::VERSION;
use crate::node_session;
use crate::node_set::{describe, name_of_run, now_s, Description};
use crate::options::{Accelerator, Run};
use crate::qemu::Host;
use crate::root::{self, Places};
use crate::run_directory::{writable_runs, RunDirectories};
use crate::session::{self, Inside};
use crate::signals::Signals;
use std::io::IsTerminal;
use std::path::Path;
use std::process::{Command, Stdio};

/// A run that is about to start.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// The checked options.
    pub run: &'a Run,
    /// Directory for the logs, or `None` for a new one.
    pub run_directory: Option<&'a Path>,
    /// The name of guests that stay, or `None` for guests that end with their commands.
    pub name: Option<&'a str>,
    /// The command line that repeats the run, for the last line of a failed run.
    pub command_line: &'a str,
}

impl Launch<'_> {
    /// Boots the guests, runs their commands, and returns the exit status. Prints what was wrong to
    /// standard error. Guests that stay are up when this returns 0. Must be called before the process
    /// has a second thread.
    ///
    /// The run happens in other processes of the same program, which call this function again with
    /// the same arguments. If QEMU is installed on this machine, and not in a root of its own, no
    /// other process is needed for guests that end, and no namespaces.
    ///
    /// # Errors
    ///
    /// The guests could not be started. The text says why, and what to do.
    pub fn run(self, progress: impl FnMut(Progress)) -> Result<u8, String> {
        if let Some(inside) = Inside::of_this_process()? {
            return self.run_inside(&inside, progress);
        }
        match self.name {
            None => {
                let source = make_parts(self.run.accelerator)?;
                self.run_session(&source, progress)
            }
            Some(name) if background::is_keeper() => {
                let _claim = background::become_keeper(name)?;
                // The program that started this one has made the parts.
                let file = std::env::var_os(VARIABLE).unwrap_or_default();
                self.run_session(&Source::File(file.into()), progress)
            }
            Some(_) => {
                let source = make_parts(self.run.accelerator)?;
                background::start(&source.file(), progress)
            }
        }
    }

    /// Makes the directories of the run, and runs the rest, in its own namespaces unless QEMU is
    /// installed on this machine.
    fn run_session(&self, source: &Source, progress: impl FnMut(Progress)) -> Result<u8, String> {
        let installation = Installation::read(&source.file())?;
        let runs = match self.run_directory {
            Some(_) => installation.runs.clone(),
            None => writable_runs(&installation.runs)?,
        };
        let root = &installation.qemu_root;
        let cache = root.parent().unwrap_or(root);
        let directories = RunDirectories::make(&runs, self.run_directory, cache)?;
        let sockets = &directories.sockets;
        let description = Description {
            version: VERSION,
            name: self.name.map_or_else(|| name_of_run(sockets), String::from),
            stays: self.name.is_some(),
            guests: self.run.guests,
            keeper: nix::unistd::getpid().as_raw(),
            since_s: now_s(),
            logs: directories.logs.clone(),
            command_line: String::from(self.command_line),
        };
        describe(sockets, &description)?;
        if !installation.is_in_place() {
            return session::run_again(&directories, (VARIABLE, &source.file()));
        }
        let inside = Inside {
            logs: directories.logs.clone(),
            sockets: directories.sockets.clone(),
        };
        let signals = Signals::catch()?;
        let places = root::link(&installation, self.run, &inside)?;
        let terminal = session::Terminal::save();
        let status = self.boot(&places, &signals, progress);
        terminal.restore();
        status
    }

    fn run_inside(self, inside: &Inside, progress: impl FnMut(Progress)) -> Result<u8, String> {
        let signals = Signals::catch()?;
        let file = std::env::var_os(VARIABLE).unwrap_or_default();
        let installation = Installation::read(Path::new(&file))?;
        let places = root::enter(&installation, self.run, inside)?;
        self.boot(&places, &signals, progress)
    }

    fn boot(
        self,
        places: &Places,
        signals: &Signals,
        mut progress: impl FnMut(Progress),
    ) -> Result<u8, String> {
        let terminal = shell_terminal(self.run.is_shell);
        let host = Host::inspect(self.run.accelerator)?;
        let _temporary = Temporary {
            run: self.run,
            places,
        };
        let shared = Shared {
            run: self.run,
            places,
            host: &host,
            loopback: boot::random_loopback(),
            terminal,
        };
        let outcome = match self.name {
            None => boot::boot(&shared, signals, &mut progress)?,
            Some(_) => {
                let log = places.logs.join("session.log");
                let report = |progress: &Progress| background::report(progress, &log);
                node_session::stay(&shared, signals, report)?
            }
        };
        for line in outcome.errors.iter().chain(&outcome.summary) {
            eprintln!("{line}");
        }
        if !outcome.summary.is_empty() {
            eprintln!("again: {}", self.command_line);
        }
        Ok(outcome.status)
    }
}

/// Finds the installation, and makes what is missing in a checkout.
///
/// # Errors
///
/// This machine does not have the accelerator, there is no installation, or it is not complete.
pub fn make_parts(accelerator: Option<Accelerator>) -> Result<Source, String> {
    // What is refused is refused before anything is built.
    Host::inspect(accelerator)?;
    let source = Source::of_this_program()?;
    build(&source)?;
    Installation::read(&source.file())?;
    Ok(source)
}

/// Makes or updates the parts of a checkout, if root runs this. Prints nothing to a pipe unless the
/// build fails.
fn build(source: &Source) -> Result<(), String> {
    let Some(command) = source.build_command() else {
        return Ok(());
    };
    if !nix::unistd::geteuid().is_root() {
        let file = source.file();
        if file.exists() {
            return Ok(());
        }
        return Err(format!(
            "{} is missing, which names the parts of a guest: let root run `{} installation` first",
            file.display(),
            command[0].display()
        ));
    }
    let is_terminal = std::io::stderr().is_terminal();
    // If this process is killed, the build ends too.
    let mut build = Command::new("setpriv");
    build
        .args(["--pdeathsig", "KILL"])
        .args(&command)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    if is_terminal {
        build.stderr(Stdio::inherit());
    }
    let failed = |e: std::io::Error| format!("{}: {e}", command[0].display());
    let (status, text) = match is_terminal {
        true => (build.status().map_err(failed)?, Vec::new()),
        false => {
            let output = build.output().map_err(failed)?;
            (output.status, output.stderr)
        }
    };
    if status.success() {
        return Ok(());
    }
    Err(format!(
        "{} installation failed{}{}",
        command[0].display(),
        if text.is_empty() {
            ", see above"
        } else {
            ":\n"
        },
        String::from_utf8_lossy(&text).trim_end()
    ))
}

/// Returns the terminal of this process for a shell in a guest. Without a shell it has no size.
fn shell_terminal(is_shell: bool) -> ShellTerminal {
    let text = match is_shell {
        true => Command::new("stty")
            .arg("size")
            .stdin(Stdio::inherit())
            .output(),
        false => Err(std::io::ErrorKind::Unsupported.into()),
    };
    let text = text.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    ShellTerminal {
        kind: std::env::var("TERM").unwrap_or_else(|_| String::from("linux")),
        size: parse_size(text.unwrap_or_default().as_str()).unwrap_or((24, 80)),
    }
}

/// Parses the rows and columns that `stty size` prints. A serial line has none.
fn parse_size(text: &str) -> Option<(u16, u16)> {
    let (rows, columns) = text.trim().split_once(' ')?;
    let size = (rows.parse().ok()?, columns.parse().ok()?);
    (size.0 > 0 && size.1 > 0).then_some(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_without_a_size_has_the_default() {
        assert_eq!(parse_size("50 120\n"), Some((50, 120)));
        assert_eq!(parse_size("0 0\n"), None);
        assert_eq!(parse_size(""), None);
    }
}
