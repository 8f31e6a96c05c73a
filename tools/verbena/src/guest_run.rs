// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs guests for other commands of this program: starts `verbena run`, and reads what it prints.

use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};
use verbena_vm::installation::VARIABLE;
use verbena_vm::session::exit_status;
use verbena_vm::signals::Signals;

/// Time between two calls of the caller while the guests print nothing.
const TICK: Duration = Duration::from_millis(200);

/// Guests that are about to run.
#[derive(Debug)]
pub struct GuestRun<'a> {
    /// The file of the installation.
    pub installation: &'a Path,
    /// The directory for the logs.
    pub logs: &'a Path,
    /// The arguments of `verbena run`.
    pub arguments: Vec<OsString>,
}

/// What the guests have done.
#[derive(Clone, Copy, Debug)]
pub enum GuestEvent<'a> {
    /// A line of their standard output.
    Output(&'a str),
    /// A line of their standard error, or of `verbena run`.
    Error(&'a str),
    /// Some time has passed.
    Tick,
}

/// How the guests have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestRunEnd {
    /// By themselves, with this exit status.
    Ended(u8),
    /// By a signal to this process.
    Interrupted(Signal),
}

enum Line {
    Output(String),
    Error(String),
}

impl GuestRun<'_> {
    /// Boots the guests, and calls `see` for each line that they print and a few times a second.
    ///
    /// # Errors
    ///
    /// This program cannot be started again.
    pub fn run(
        &self,
        signals: &Signals,
        mut see: impl FnMut(GuestEvent<'_>),
    ) -> Result<GuestRunEnd, String> {
        // If this process is killed, the guests notice that nobody reads their output.
        let mut child = Command::new("/proc/self/exe")
            .arg0(std::env::args_os().next().unwrap_or_default())
            .arg("run")
            .arg("--run-dir")
            .arg(self.logs)
            .args(&self.arguments)
            .env(VARIABLE, self.installation)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| format!("cannot start `verbena run`: {e}"))?;
        let lines = read_both(&mut child);
        let interrupted = pass_on(&child, &lines, signals, &mut see);
        let status = child
            .wait()
            .map_err(|e| format!("cannot wait for `verbena run`: {e}"))?;
        Ok(match interrupted {
            Some(signal) => GuestRunEnd::Interrupted(signal),
            None => GuestRunEnd::Ended(exit_status(status)),
        })
    }
}

/// Returns a line without the name of the guest that has printed it.
pub fn without_guest(line: &str) -> &str {
    match line.split_once("| ") {
        Some((guest, rest)) if guest.len() == 3 && guest.starts_with("vm") => rest,
        _ => line,
    }
}

/// Calls `see` until the outputs have ended. Returns the signal that has ended the guests.
fn pass_on(
    child: &Child,
    lines: &Receiver<Line>,
    signals: &Signals,
    see: &mut impl FnMut(GuestEvent<'_>),
) -> Option<Signal> {
    let (mut interrupted, mut last_tick) = (None, Instant::now());
    loop {
        match lines.recv_timeout(TICK) {
            Ok(Line::Output(line)) => see(GuestEvent::Output(&line)),
            Ok(Line::Error(line)) => see(GuestEvent::Error(&line)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return interrupted,
        }
        if last_tick.elapsed() >= TICK {
            see(GuestEvent::Tick);
            last_tick = Instant::now();
        }
        if let Some(signal) = signals.take() {
            // A terminal sends Ctrl-C to both processes, `kill` only to this one.
            let _ = kill(Pid::from_raw(child.id() as i32), signal);
            interrupted = interrupted.or(Some(signal));
        }
    }
}

fn read_both(child: &mut Child) -> Receiver<Line> {
    let (sender, lines) = channel();
    if let Some(output) = child.stdout.take() {
        read_lines(output, sender.clone(), Line::Output);
    }
    if let Some(errors) = child.stderr.take() {
        read_lines(errors, sender, Line::Error);
    }
    lines
}

/// Sends each line. Bytes that are not UTF-8 are replaced.
fn read_lines(from: impl Read + Send + 'static, to: Sender<Line>, kind: fn(String) -> Line) {
    std::thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        while matches!(from.read_until(b'\n', &mut line), Ok(1..)) {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            if to.send(kind(text)).is_err() {
                return;
            }
            line.clear();
        }
    });
}
