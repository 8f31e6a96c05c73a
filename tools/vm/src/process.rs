// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The processes of a run: the NIC and QEMU.

use crate::session::exit_status;
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Time for the NIC to open its sockets.
const START_PATIENCE: Duration = Duration::from_secs(10);
/// Time for the NIC of a single guest to end after its QEMU.
const OWN_END_PATIENCE: Duration = Duration::from_millis(500);
/// Time for the NIC to end after SIGTERM.
const TERM_PATIENCE: Duration = Duration::from_secs(3);

/// Returns a command with the environment of the Debian root, whose outputs go to the end of a file.
///
/// # Errors
///
/// The file cannot be opened.
pub fn command(program: impl Into<OsString>, log: &Path) -> Result<Command, String> {
    let log = open_log(log)?;
    let log_of_errors = log
        .try_clone()
        .map_err(|e| format!("cannot share a log: {e}"))?;
    let program = program.into();
    // The first process of a PID namespace takes all others with it when it ends. Any other process
    // asks the kernel to end its children with it.
    let mut command = match nix::unistd::getpid() == Pid::from_raw(1) {
        true => Command::new(program),
        false => {
            let mut command = Command::new("setpriv");
            command.args(["--pdeathsig", "KILL", "--"]).arg(program);
            command
        }
    };
    command
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("LC_ALL", "C.UTF-8")
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(log_of_errors);
    Ok(command)
}

fn open_log(log: &Path) -> Result<File, String> {
    let opened = OpenOptions::new().create(true).append(true).open(log);
    opened.map_err(|e| format!("{}: {e}", log.display()))
}

/// Waits for a process for a limited time. Returns its exit status if it has ended.
fn wait_for(child: &mut Child, patience: Duration) -> Option<u8> {
    let since = Instant::now();
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(exit_status(status));
        }
        if since.elapsed() >= patience {
            return None;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// A NIC process, which serves one guest or several.
#[derive(Debug)]
pub struct NicProcess {
    child: Child,
    log: PathBuf,
}

impl NicProcess {
    /// Starts the NIC, and waits until it has opened `sockets`.
    ///
    /// # Errors
    ///
    /// The NIC cannot be started, ends, or does not open its sockets in time.
    pub fn start(
        program: &Path,
        arguments: &[OsString],
        sockets: &[PathBuf],
        log: &Path,
    ) -> Result<Self, String> {
        for socket in sockets {
            // Left by the NIC of a boot that is repeated.
            let _ = std::fs::remove_file(socket);
        }
        let child = command(program, log)?
            .args(arguments)
            .env("RUST_BACKTRACE", "1")
            // Ctrl-C is for the run, which then ends the NIC.
            .process_group(0)
            .spawn()
            .map_err(|e| format!("the NIC cannot be started: {e}"))?;
        let mut nic = Self {
            child,
            log: log.to_owned(),
        };
        let since = Instant::now();
        while !sockets.iter().all(|socket| socket.exists()) {
            if let Some(code) = wait_for(&mut nic.child, POLL_INTERVAL) {
                return Err(format!("the NIC exited with {code} at start"));
            }
            if since.elapsed() > START_PATIENCE {
                nic.kill();
                return Err(format!(
                    "the NIC did not open its sockets within {} s",
                    START_PATIENCE.as_secs()
                ));
            }
        }
        Ok(nic)
    }

    /// Returns how the NIC has ended, although nobody asked it to.
    pub fn trouble(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok().flatten()?;
        let log = std::fs::read(&self.log).unwrap_or_default();
        let code = exit_status(status);
        let judged = judge_end(&String::from_utf8_lossy(&log), Some(code), false);
        Some(judged.unwrap_or_else(|| format!("exited with {code}")))
    }

    /// Kills the NIC, whose QEMU has ended, because the guest boots again.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Ends the NIC after its guests. Returns what was wrong with its end.
    pub fn end(mut self) -> Option<String> {
        let mut is_asked = false;
        let mut code = wait_for(&mut self.child, OWN_END_PATIENCE);
        if code.is_none() {
            is_asked = true;
            let process = Pid::from_raw(self.child.id() as i32);
            let _ = kill(process, Signal::SIGTERM);
            code = wait_for(&mut self.child, TERM_PATIENCE);
        }
        if code.is_none() {
            self.kill();
        }
        let log = std::fs::read(&self.log).unwrap_or_default();
        judge_end(&String::from_utf8_lossy(&log), code, is_asked)
    }
}

/// Judges the end of a NIC: its log, its exit status (`None` if it had to be killed), and whether it
/// was asked to end.
fn judge_end(log: &str, code: Option<u8>, is_asked: bool) -> Option<String> {
    const BY_SIGTERM: u8 = 143;
    let mut lines = log.lines();
    if let Some(line) = lines.find(|line| line.contains("panicked at")) {
        let more = lines.next().unwrap_or_default();
        return Some(format!("panicked: {line} {more}"));
    }
    match code {
        Some(0) => None,
        Some(BY_SIGTERM) if is_asked => None,
        Some(code) => Some(format!("exited with {code}")),
        None => Some(format!(
            "did not end within {} s of SIGTERM",
            TERM_PATIENCE.as_secs()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn the_end_of_a_nic_is_judged() {
        assert_eq!(judge_end("", Some(0), false), None);
        assert_eq!(judge_end("", Some(143), true), None);
        assert_eq!(judge_end("", Some(143), false).unwrap(), "exited with 143");
        assert_eq!(judge_end("", Some(1), true).unwrap(), "exited with 1");
        assert_eq!(
            judge_end("", None, true).unwrap(),
            "did not end within 3 s of SIGTERM"
        );
        let log = "start\nthread 'engine' panicked at x.rs:1:\nindex out of bounds\nmore\n";
        let panicked = "panicked: thread 'engine' panicked at x.rs:1: index out of bounds";
        assert_eq!(judge_end(log, Some(0), true).unwrap(), panicked);
    }

    /// Starts a shell script in place of the NIC.
    fn start(scratch: &Scratch, script: &str) -> Result<NicProcess, String> {
        let arguments = ["-c", script].map(OsString::from);
        let socket = scratch.0.join("socket");
        NicProcess::start(
            Path::new("sh"),
            &arguments,
            &[socket],
            &scratch.0.join("log"),
        )
    }

    #[test]
    fn a_nic_that_ends_at_start_is_an_error() {
        let scratch = Scratch::new("nic-start");
        let error = start(&scratch, "echo why; exit 7").unwrap_err();
        assert_eq!(error, "the NIC exited with 7 at start");
        let log = std::fs::read_to_string(scratch.0.join("log")).unwrap();
        assert_eq!(log, "why\n");
    }

    #[test]
    fn a_nic_is_ready_with_its_sockets_and_ends_by_sigterm() {
        let scratch = Scratch::new("nic-end");
        std::fs::write(scratch.0.join("socket"), "of an earlier boot").unwrap();
        let socket = scratch.0.join("socket").display().to_string();
        let mut nic = start(&scratch, &format!("touch {socket}; exec sleep 1000")).unwrap();
        assert_eq!(std::fs::read(&socket).unwrap(), b"");
        assert_eq!(nic.trouble(), None);
        assert_eq!(nic.end(), None);
    }

    #[test]
    fn a_nic_that_ends_by_itself_is_noticed() {
        let scratch = Scratch::new("nic-trouble");
        let socket = scratch.0.join("socket").display().to_string();
        let mut nic = start(&scratch, &format!("touch {socket}; exec sleep 1000")).unwrap();
        let _ = nic.child.kill();
        let mut trouble = None;
        while trouble.is_none() {
            trouble = nic.trouble();
        }
        assert_eq!(trouble.unwrap(), "exited with 137");
    }
}
