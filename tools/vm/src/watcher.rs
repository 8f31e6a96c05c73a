// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Watches a guest over QEMU's monitor (QMP): finds guests that do not boot, and guests that QEMU
//! has paused after an error.
//!
//! `scripts/lib/watch.py`, which `scripts/vm` uses, has the same rules.

use crate::boots::contains;
use crate::options::Accelerator;
use serde_json::{json, Value};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The guest's `init` writes this into the kernel log.
const UP: &[u8] = b"verbena: the guest is up";
const QUERY_INTERVAL: Duration = Duration::from_secs(1);

/// What the watcher knows of a guest that boots.
#[derive(Debug)]
struct BootProgress {
    log: PathBuf,
    /// Length of the log when this boot began.
    begin: u64,
    length: u64,
    /// Time of the last change of the log.
    since: Instant,
    is_up: bool,
}

impl BootProgress {
    /// Reads what is new in the log.
    fn look(&mut self, now: Instant) -> io::Result<()> {
        let length = std::fs::metadata(&self.log)?.len();
        if length != self.length {
            (self.length, self.since) = (length, now);
            let log = std::fs::read(&self.log)?;
            let begin = usize::try_from(self.begin).unwrap_or(usize::MAX);
            self.is_up = contains(log.get(begin..).unwrap_or_default(), UP);
        }
        Ok(())
    }
}

/// Watches one start of QEMU.
#[derive(Debug)]
pub struct Watcher {
    socket: PathBuf,
    accelerator: Accelerator,
    silence: Duration,
    boot: BootProgress,
    connection: Option<Connection>,
    monitor: Monitor,
    asked: Instant,
}

impl Watcher {
    /// Begins to watch a guest whose QEMU is about to start.
    pub fn new(socket: PathBuf, log: &Path, silence_s: u64, accelerator: Accelerator) -> Self {
        let (now, length) = (
            Instant::now(),
            std::fs::metadata(log).map_or(0, |m| m.len()),
        );
        Self {
            socket,
            accelerator,
            silence: Duration::from_secs(silence_s),
            boot: BootProgress {
                log: log.to_owned(),
                begin: length,
                length,
                since: now,
                is_up: false,
            },
            connection: None,
            monitor: Monitor::default(),
            asked: now,
        }
    }

    /// True once the guest has reported that it is up.
    pub fn is_up(&self) -> bool {
        self.boot.is_up
    }

    /// Looks at the guest. Returns the reason if the guest has to be ended.
    pub fn look(&mut self, now: Instant) -> Option<String> {
        // What cannot be read now is read the next time.
        let _ = self.boot.look(now);
        self.talk();
        if let Some(reason) = self.monitor.failure(self.accelerator) {
            return Some(reason);
        }
        let is_silent = now.duration_since(self.boot.since) > self.silence;
        if !self.boot.is_up && is_silent {
            return Some(silence_text(
                self.silence.as_secs(),
                self.monitor.status.as_deref(),
                self.accelerator,
            ));
        }
        let wants = self.monitor.has_stopped || !self.boot.is_up;
        if wants && now.duration_since(self.asked) >= QUERY_INTERVAL {
            self.asked = now;
            self.monitor.has_stopped = false;
            self.send("query-status");
        }
        None
    }

    /// Reads QEMU's messages. Connects first, if QEMU has opened its socket.
    fn talk(&mut self) {
        if self.connection.is_none() {
            let Ok(connection) = Connection::open(&self.socket) else {
                return;
            };
            self.connection = Some(connection);
            self.send("qmp_capabilities");
            self.send("query-status");
        }
        if let Some(connection) = &mut self.connection {
            for line in connection.lines() {
                self.monitor.receive(&line);
            }
        }
    }

    fn send(&mut self, command: &str) {
        if let Some(connection) = &mut self.connection {
            let line = format!("{}\n", json!({ "execute": command }));
            // If QEMU has ended, nobody has to be watched.
            let _ = connection.stream.write_all(line.as_bytes());
        }
    }
}

fn help(accelerator: Accelerator) -> &'static str {
    match accelerator {
        Accelerator::Kvm => ". If KVM does not work on this machine, use --accel tcg",
        Accelerator::Tcg => "",
    }
}

fn silence_text(silence_s: u64, status: Option<&str>, accelerator: Accelerator) -> String {
    let paused = match status {
        None | Some("running") => String::new(),
        Some(status) => format!("; QEMU has paused it ({status})"),
    };
    format!(
        "the guest does not boot: its kernel has printed nothing for {silence_s} s{paused}{}",
        help(accelerator)
    )
}

/// The state of a guest as QEMU reports it.
#[derive(Debug, Default)]
struct Monitor {
    /// The last answer to `query-status`.
    status: Option<String>,
    /// QEMU has reported that the guest has stopped.
    has_stopped: bool,
}

impl Monitor {
    /// Takes a line of QEMU's.
    fn receive(&mut self, line: &[u8]) {
        let Ok(message) = serde_json::from_slice::<Value>(line) else {
            return;
        };
        if let Some(status) = message["return"]["status"].as_str() {
            self.status = Some(String::from(status));
        }
        self.has_stopped |= message["event"] == "STOP";
    }

    /// Returns the reason if QEMU has paused the guest by itself (`RunState` in QEMU's
    /// `qapi/run-state.json`). A guest that somebody stopped by the monitor is left alone.
    fn failure(&self, accelerator: Accelerator) -> Option<String> {
        Some(match self.status.as_deref()? {
            "internal-error" => format!(
                "QEMU has paused the guest after an internal error of the accelerator {accelerator}{}",
                help(accelerator)
            ),
            "io-error" => String::from(
                "QEMU has paused the guest because its disk cannot be written: is the file system of /tmp or /var/tmp full?",
            ),
            "guest-panicked" => String::from("the guest's kernel panicked, and QEMU has paused it"),
            _ => return None,
        })
    }
}

/// A connection to QEMU's monitor.
#[derive(Debug)]
struct Connection {
    stream: UnixStream,
    rest: Vec<u8>,
}

impl Connection {
    fn open(socket: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            rest: Vec::new(),
        })
    }

    /// Returns the complete lines that have arrived.
    fn lines(&mut self) -> Vec<Vec<u8>> {
        let mut chunk = [0; 4096];
        while let Ok(length @ 1..) = self.stream.read(&mut chunk) {
            self.rest.extend_from_slice(&chunk[..length]);
        }
        let mut lines = Vec::new();
        while let Some(end) = self.rest.iter().position(|&byte| byte == b'\n') {
            lines.push(self.rest.drain(..=end).collect());
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use std::os::unix::net::UnixListener;

    /// Returns a directory with the kernel log of a guest that has booted before.
    fn booted_before(name: &str) -> Scratch {
        let scratch = Scratch::new(name);
        let log = "an earlier boot\nverbena: the guest is up\n";
        std::fs::write(scratch.0.join("log"), log).unwrap();
        scratch
    }

    fn watcher(scratch: &Scratch, silence_s: u64) -> Watcher {
        Watcher::new(
            scratch.0.join("watch"),
            &scratch.0.join("log"),
            silence_s,
            Accelerator::Tcg,
        )
    }

    fn print(scratch: &Scratch, text: &str) {
        let log = scratch.0.join("log");
        let old = std::fs::read_to_string(&log).unwrap();
        std::fs::write(&log, old + text).unwrap();
    }

    #[test]
    fn a_guest_is_up_when_this_boot_says_so() {
        let scratch = booted_before("up");
        let mut watcher = watcher(&scratch, 60);
        let now = Instant::now();
        assert_eq!(watcher.look(now), None);
        assert!(!watcher.is_up());
        print(&scratch, "[ 1.0] verbena: the guest is up\n");
        assert_eq!(watcher.look(now), None);
        assert!(watcher.is_up());
        // Silence ends only a guest that boots.
        assert_eq!(watcher.look(now + Duration::from_secs(61)), None);
    }

    #[test]
    fn a_silent_boot_is_ended_and_each_line_extends_its_time() {
        let scratch = booted_before("silent");
        let mut watcher = watcher(&scratch, 60);
        let begin = Instant::now();
        let after = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!(watcher.look(after(59)), None);
        print(&scratch, "a line\n");
        assert_eq!(watcher.look(after(59)), None);
        assert_eq!(watcher.look(after(118)), None);
        let reason = watcher.look(after(120)).unwrap();
        assert!(reason.ends_with("has printed nothing for 60 s"), "{reason}");
    }

    #[test]
    fn qemu_is_asked_and_its_errors_end_the_guest() {
        let scratch = booted_before("qmp");
        let listener = UnixListener::bind(scratch.0.join("watch")).unwrap();
        let mut watcher = watcher(&scratch, 60);
        let now = Instant::now();
        assert_eq!(watcher.look(now), None);
        let (mut qemu, _) = listener.accept().unwrap();
        let expected = "{\"execute\":\"qmp_capabilities\"}\n{\"execute\":\"query-status\"}\n";
        let mut asked = vec![0; expected.len()];
        qemu.read_exact(&mut asked).unwrap();
        assert_eq!(String::from_utf8(asked).unwrap(), expected);
        qemu.write_all(b"{\"QMP\": {}}\r\n{\"return\": {}}\r\n{\"return\": {\"status\": \"running\"}}\r\n{\"event\": ")
            .unwrap();
        assert_eq!(watcher.look(now), None);
        assert_eq!(watcher.monitor.status.as_deref(), Some("running"));
        qemu.write_all(b"\"STOP\"}\r\n{\"return\": {\"status\": \"io-error\"}}\r\n")
            .unwrap();
        let reason = watcher.look(now).unwrap();
        assert!(reason.contains("cannot be written"), "{reason}");
        assert!(watcher.monitor.has_stopped);
    }

    #[test]
    fn only_states_of_an_error_count() {
        let failure = |status: &str, accelerator| {
            let mut monitor = Monitor::default();
            monitor.receive(json!({"return": {"status": status}}).to_string().as_bytes());
            monitor.failure(accelerator)
        };
        for status in ["running", "paused", "shutdown"] {
            assert_eq!(failure(status, Accelerator::Tcg), None);
        }
        let reason = failure("internal-error", Accelerator::Kvm).unwrap();
        assert!(reason.ends_with("use --accel tcg"), "{reason}");
        assert!(failure("guest-panicked", Accelerator::Tcg).is_some());
        let paused = silence_text(60, Some("paused"), Accelerator::Tcg);
        assert!(paused.ends_with("QEMU has paused it (paused)"), "{paused}");
    }
}
