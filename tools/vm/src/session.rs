// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs this program again as the first process of its own PID namespace, so that no process and no
//! mount outlives a run.
//!
//! The outer process makes the namespaces, passes signals on, waits, and returns the exit status. If
//! the outer process dies, the kernel kills the inner one; if the inner one ends, the kernel kills
//! all other processes in the namespace, and removes the mounts. Root needs no user namespace. Any
//! other user becomes root of a user namespace, without privileges outside.

use crate::run_directory::RunDirectories;
use crate::signals::Signals;
use nix::errno::Errno;
use nix::sched::{unshare, CloneFlags};
use nix::sys::signal::{kill, Signal};
use nix::unistd::{getegid, geteuid, Pid};
use std::io::IsTerminal;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

const LOGS: &str = "VERBENA_RUN_LOGS";
const SOCKETS: &str = "VERBENA_RUN_SOCKETS";
/// Time for the inner process to clean up after a signal.
const PATIENCE: Duration = Duration::from_secs(3);

/// What the inner process knows from the outer one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inside {
    /// Directory for the logs, by its path on the host.
    pub logs: PathBuf,
    /// Directory for the sockets, by its path on the host.
    pub sockets: PathBuf,
}

impl Inside {
    /// Returns the places of the run, if this is the inner process: the first process of a PID
    /// namespace that [`run_again`] has started.
    ///
    /// # Errors
    ///
    /// The kernel cannot be asked to end this process with its parent.
    pub fn of_this_process() -> Result<Option<Self>, String> {
        if nix::unistd::getpid() != Pid::from_raw(1) {
            return Ok(None);
        }
        let (Some(logs), Some(sockets)) = (std::env::var_os(LOGS), std::env::var_os(SOCKETS))
        else {
            return Ok(None);
        };
        nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)
            .map_err(|e| format!("cannot tie this process to its parent: {e}"))?;
        Ok(Some(Self {
            logs: logs.into(),
            sockets: sockets.into(),
        }))
    }
}

/// Makes the namespaces, runs this program with the same arguments and a variable in them, and
/// returns its exit status. Must be called before the process has a second thread.
///
/// # Errors
///
/// The machine allows no namespaces. The text says what to do.
pub fn run_again(directories: &RunDirectories, variable: (&str, &Path)) -> Result<u8, String> {
    let (name, value) = variable;
    let signals = Signals::catch()?;
    make_namespaces()?;
    let terminal = Terminal::save();
    let mut words = std::env::args_os();
    let mut inner = Command::new("/proc/self/exe")
        .arg0(words.next().unwrap_or_default())
        .args(words)
        .env(LOGS, &directories.logs)
        .env(SOCKETS, &directories.sockets)
        .env(name, value)
        .spawn()
        .map_err(|e| format!("cannot start this program in its own namespaces: {e}"))?;
    let status = wait(&mut inner, &signals);
    terminal.restore();
    match signals.received() {
        Some(signal) => Ok(128 + signal as u8),
        None => status.map(exit_status),
    }
}

/// Waits for the inner process. After a signal, the process has [`PATIENCE`] to end.
fn wait(inner: &mut Child, signals: &Signals) -> Result<ExitStatus, String> {
    let mut since = None;
    loop {
        let ended = inner.try_wait();
        if let Some(status) = ended.map_err(|e| format!("cannot wait for the guests: {e}"))? {
            return Ok(status);
        }
        if let (Some(signal), None) = (signals.received(), since) {
            // A terminal sends Ctrl-C to both processes, `kill` only to this one.
            let process = Pid::from_raw(inner.id() as i32);
            let _ = kill(process, signal);
            since = Some(Instant::now());
        }
        if since.is_some_and(|since| since.elapsed() > PATIENCE) {
            let _ = inner.kill();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the exit status that a shell would show.
pub fn exit_status(status: ExitStatus) -> u8 {
    let code = status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    u8::try_from(code).unwrap_or(u8::MAX)
}

/// Makes the namespaces of a run: those of its child processes, and if needed a user namespace.
///
/// # Errors
///
/// The machine allows no namespaces. The last sentence of the text says what to do.
pub fn make_namespaces() -> Result<(), String> {
    let (user, group) = (geteuid(), getegid());
    let plain = match user.is_root() {
        true => unshare(CloneFlags::CLONE_NEWPID),
        false => Err(Errno::EPERM),
    };
    if plain.is_ok() {
        return Ok(());
    }
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWPID).map_err(refusal)?;
    // The kernel demands this order.
    for (file, line) in [
        ("uid_map", format!("0 {user} 1")),
        ("setgroups", String::from("deny")),
        ("gid_map", format!("0 {group} 1")),
    ] {
        let path = format!("/proc/self/{file}");
        match std::fs::write(&path, line) {
            Err(e) if file != "setgroups" => {
                return Err(format!(
                    "cannot write {path} to become root of a user namespace: {e}. {}",
                    next_step()
                ))
            }
            _ => {}
        }
    }
    Ok(())
}

fn refusal(e: Errno) -> String {
    format!(
        "this machine does not allow you to make namespaces, in which the guests run: {e}. {}",
        next_step()
    )
}

/// Returns what the user can do where namespaces are forbidden.
fn next_step() -> String {
    let setting = |name: &str| {
        let path = format!("/proc/sys/{}", name.replace('.', "/"));
        std::fs::read_to_string(path).map(|value| String::from(value.trim()))
    };
    for (name, forbidding, allowing) in [
        ("kernel.unprivileged_userns_clone", "0", "1"),
        ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
        ("user.max_user_namespaces", "0", "10000"),
    ] {
        if setting(name).is_ok_and(|value| value == forbidding) {
            return format!(
                "Let root allow them by `sysctl {name}={allowing}`, or run this command as root"
            );
        }
    }
    String::from(
        "Run this command as root on the machine; in a container, start it with --privileged",
    )
}

/// The settings of the terminal, which QEMU changes for a shell in a guest.
#[derive(Debug)]
pub struct Terminal(Option<nix::sys::termios::Termios>);

impl Terminal {
    /// Remembers the settings of the terminal at standard input, if that is a terminal.
    pub fn save() -> Self {
        let stdin = std::io::stdin();
        Self(match stdin.is_terminal() {
            true => nix::sys::termios::tcgetattr(&stdin).ok(),
            false => None,
        })
    }

    /// Sets the terminal as it was.
    pub fn restore(self) {
        if let Some(settings) = self.0 {
            let stdin = std::io::stdin();
            let now = nix::sys::termios::SetArg::TCSADRAIN;
            // The terminal may be gone.
            let _ = nix::sys::termios::tcsetattr(&stdin, now, &settings);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_status_is_that_of_a_shell() {
        assert_eq!(exit_status(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(exit_status(ExitStatus::from_raw(0)), 0);
        assert_eq!(exit_status(ExitStatus::from_raw(9)), 137);
    }

    #[test]
    fn a_refusal_says_why_and_what_to_do() {
        let text = refusal(Errno::EPERM);
        assert!(text.contains("EPERM") && text.contains("root"), "{text}");
    }

    #[test]
    fn a_process_that_is_not_the_first_is_outside() {
        assert_eq!(Inside::of_this_process(), Ok(None));
    }
}
