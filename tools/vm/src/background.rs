// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Starts the session of nodes that stay in the background, and waits until the nodes take commands.
//!
//! Three processes take part. The program that the user runs starts the keeper, which is the same
//! program with the same arguments in a session of its own, without a terminal. The keeper makes the
//! namespaces and holds the locks, and its child is the first process in the namespaces. The child
//! reports to a pipe until the nodes are up, and then lets go of it.

use crate::boot::Progress;
use crate::installation::VARIABLE;
use crate::session::exit_status;
use crate::signals::Signals;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError};
use std::time::Duration;

const KEEPER: &str = "VERBENA_KEEPER";
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Exit status if the keeper ended without a status of its own.
const FAILED: u8 = 125;

/// A line of the pipe.
#[derive(Debug, Serialize, Deserialize)]
enum Report {
    Booting {
        elapsed_ms: u64,
        accelerator: String,
        up: (usize, usize),
    },
    Up,
}

/// True if this process is the keeper.
pub fn is_keeper() -> bool {
    std::env::var_os(KEEPER).is_some()
}

/// Makes this process, the keeper, independent of the terminal, and claims the name for as long as
/// the result lives.
///
/// # Errors
///
/// Other nodes have this name.
pub fn become_keeper(name: &str) -> Result<UnixDatagram, String> {
    // The keeper is no leader of a process group, so it can begin a session.
    nix::unistd::setsid().map_err(|e| format!("cannot begin a session: {e}"))?;
    claim(name)
}

fn claim(name: &str) -> Result<UnixDatagram, String> {
    let user = nix::unistd::geteuid();
    let address = SocketAddr::from_abstract_name(format!("verbena/{user}/{name}"));
    // The kernel frees an abstract address when the process ends, however it ends.
    let bound = address.and_then(|address| UnixDatagram::bind_addr(&address));
    bound.map_err(|e| match e.kind() {
        io::ErrorKind::AddrInUse => format!(
            "nodes named {name:?} run already: end them by `verbena down`, or choose another --name"
        ),
        _ => format!("cannot claim the name {name:?}: {e}"),
    })
}

/// Reports the progress to the program that waits for the nodes, from the first process in the
/// namespaces. With [`Progress::Done`], standard output and standard error become the file `log`.
///
/// # Errors
///
/// Nobody waits any more, or the file cannot be opened.
pub fn report(progress: &Progress, log: &Path) -> io::Result<()> {
    let report = match progress {
        Progress::Booting {
            elapsed,
            accelerator,
            up,
        } => Report::Booting {
            elapsed_ms: elapsed.as_millis() as u64,
            accelerator: accelerator.clone(),
            up: *up,
        },
        Progress::Done => Report::Up,
    };
    let mut line = serde_json::to_vec(&report).map_err(io::Error::other)?;
    line.push(b'\n');
    let mut out = io::stdout().lock();
    out.write_all(&line)?;
    out.flush()?;
    if *progress == Progress::Done {
        let log = std::fs::File::create(log)?;
        nix::unistd::dup2_stdout(&log)?;
        nix::unistd::dup2_stderr(&log)?;
    }
    Ok(())
}

/// Starts the keeper with the installation of this file, and waits until the nodes are up. Returns
/// 0, or the exit status of the keeper, which has printed why.
///
/// # Errors
///
/// The keeper cannot be started.
pub fn start(installation: &Path, mut progress: impl FnMut(Progress)) -> Result<u8, String> {
    let signals = Signals::catch()?;
    let mut words = std::env::args_os();
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0(words.next().unwrap_or_default())
        .args(words)
        .env(KEEPER, "1")
        .env(VARIABLE, installation)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let failed = |e: io::Error| format!("cannot start the session of the nodes: {e}");
    let mut keeper = command.spawn().map_err(failed)?;
    let reports = reports(&mut keeper);
    let errors = keeper.stderr.take().map(|mut from| {
        std::thread::spawn(move || {
            // A reader of standard error that is gone needs no errors.
            let _ = io::copy(&mut from, &mut io::stderr());
        })
    });
    let is_up = wait_until_up(&reports, &keeper, &signals, &mut progress);
    progress(Progress::Done);
    if is_up {
        return Ok(0);
    }
    let status = keeper.wait().map_err(failed)?;
    // A thread that panicked has printed why.
    let _ = errors.map(std::thread::JoinHandle::join);
    Ok(match (signals.received(), exit_status(status)) {
        (Some(signal), _) => 128 + signal as u8,
        (None, 0) => FAILED,
        (None, status) => status,
    })
}

/// Reads the reports in a thread of its own.
fn reports(keeper: &mut Child) -> Receiver<Report> {
    let (sender, reports) = channel();
    if let Some(pipe) = keeper.stdout.take() {
        std::thread::spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                let report = serde_json::from_str(&line);
                if report.is_ok_and(|report| sender.send(report).is_err()) {
                    return;
                }
            }
        });
    }
    reports
}

/// Returns true when the nodes are up, and false when the keeper ends before. Passes signals on.
fn wait_until_up(
    reports: &Receiver<Report>,
    keeper: &Child,
    signals: &Signals,
    progress: &mut impl FnMut(Progress),
) -> bool {
    let mut is_asked_to_end = false;
    loop {
        match reports.recv_timeout(POLL_INTERVAL) {
            Ok(Report::Up) => return !is_asked_to_end,
            Ok(Report::Booting {
                elapsed_ms,
                accelerator,
                up,
            }) => progress(Progress::Booting {
                elapsed: Duration::from_millis(elapsed_ms),
                accelerator,
                up,
            }),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return false,
        }
        if let (Some(signal), false) = (signals.received(), is_asked_to_end) {
            is_asked_to_end = true;
            let _ = kill(Pid::from_raw(keeper.id() as i32), signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_owner_at_a_time() {
        let name = format!("test-{}", std::process::id());
        let owner = claim(&name).unwrap();
        let error = claim(&name).unwrap_err();
        assert!(error.contains("verbena down"), "{error}");
        drop(owner);
        drop(claim(&name).unwrap());
    }
}
