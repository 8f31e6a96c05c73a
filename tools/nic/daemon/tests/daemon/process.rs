// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The NIC as a process: its sockets, its end by signals, and its files after the end.

use crate::client::Client;
use crate::dir::Dir;
use rustix::fs::{mknodat, open, FileType, Mode, OFlags, CWD};
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use verbena_recorder::full::{FullRecordingReader, Item};
use verbena_recorder::FlightRecording;

/// A running NIC, which is killed at the end of the test.
pub struct NicProcess {
    child: Child,
    log: BufReader<std::process::ChildStderr>,
}

impl Drop for NicProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl NicProcess {
    /// Starts a NIC with three sockets in a directory.
    pub fn start(dir: &Path) -> Self {
        Self::start_with(dir, &[("", &[])])
    }

    /// Starts a NIC with three sockets for each VM. An element of `vms` has the suffix of the names
    /// of these sockets, and further arguments.
    pub fn start_with(dir: &Path, vms: &[(&str, &[&str])]) -> Self {
        // The NIC does not handle signals that it was started to ignore, and a background job is
        // started to ignore SIGINT.
        let mut command = Command::new("env");
        command
            .arg("--default-signal=HUP,INT,QUIT,TERM")
            .arg(env!("CARGO_BIN_EXE_verbena-nic"))
            .stderr(Stdio::piped());
        for (end, more) in vms {
            for (argument, name) in [
                ("--socket", "nic"),
                ("--netdev-socket", "net"),
                ("--control", "control"),
            ] {
                command.arg(argument).arg(dir.join(format!("{name}{end}")));
            }
            command.args(*more);
        }
        let mut child = command.spawn().unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        Self { child, log }
    }

    /// Waits until the NIC has logged that it listens.
    pub fn listening(mut self) -> Self {
        self.wait_for_log("listens at");
        self
    }

    /// Waits for a line of the log that contains `text`.
    pub fn wait_for_log(&mut self, text: &str) {
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            let length = self.log.read_line(&mut line).unwrap();
            assert_ne!(length, 0, "the NIC has ended without the message {text:?}");
        }
    }

    /// Waits for the end. Returns the exit status and the rest of the log.
    pub fn end(mut self) -> (std::process::ExitStatus, String) {
        let mut said = String::new();
        self.log.read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap(), said)
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status();
        assert!(sent.unwrap().success());
    }
}

const ALL: [&str; 6] = [
    "control",
    "control.lock",
    "net",
    "net.lock",
    "nic",
    "nic.lock",
];

#[test]
fn a_second_nic_at_the_same_sockets_fails_and_the_first_goes_on() {
    let dir = Dir::new("process-second");
    let first = NicProcess::start(&dir.0).listening();
    assert_eq!(dir.list(), ALL);
    for name in ["nic", "net", "control"] {
        let mode = fs::metadata(dir.0.join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let (status, said) = NicProcess::start(&dir.0).end();
    assert_eq!(status.code(), Some(1));
    assert!(said.contains("another verbena-nic serves it"), "{said}");
    assert_eq!(dir.list(), ALL);
    // The first NIC still waits for QEMU, and serves it. A second client is refused at once.
    let qemu = UnixStream::connect(dir.0.join("nic")).unwrap();
    let mut first = first;
    first.wait_for_log("QEMU is connected");
    let late = UnixStream::connect(dir.0.join("nic")).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::ConnectionRefused);
    drop(qemu);
    let (status, said) = first.end();
    assert!(status.success(), "{said}");
    assert!(dir.list().is_empty());
}

#[test]
fn a_signal_ends_the_nic_and_its_sockets_are_removed() {
    let dir = Dir::new("process-signals");
    for (name, number) in [("TERM", 15), ("INT", 2), ("HUP", 1)] {
        let nic = NicProcess::start(&dir.0).listening();
        assert_eq!(dir.list(), ALL);
        let served = (name == "INT").then(|| UnixStream::connect(dir.0.join("nic")));
        nic.signal(name);
        assert_eq!(nic.end().0.signal(), Some(number), "{name}");
        assert!(dir.list().is_empty(), "{name}: {:?}", dir.list());
        drop(served);
    }
}

#[test]
fn a_signal_completes_a_full_recording() {
    let dir = Dir::new("process-record");
    let file = dir.0.join("full");
    let more = ["--record-full", file.to_str().unwrap()];
    let nic = NicProcess::start_with(&dir.0, &[("", &more)]).listening();
    let qemu = UnixStream::connect(dir.0.join("nic")).unwrap();
    let client = crate::run(Client::over(qemu));
    nic.signal("TERM");
    let (status, said) = nic.end();
    assert_eq!(status.signal(), Some(15), "{said}");
    drop(client);
    let bytes = fs::read(&file).unwrap();
    let last = FullRecordingReader::new(&bytes).unwrap().last();
    let reason = "the NIC ends";
    assert_eq!(last, Some(Ok(Item::End { reason })));
}

#[test]
fn the_recorded_entries_are_written_when_the_nic_ends() {
    let dir = Dir::new("process-flight");
    let file = dir.0.join("flight");
    for (is_on, by_signal) in [(true, true), (true, false), (false, true)] {
        let more = ["--record-end", file.to_str().unwrap(), "--record", "1024"];
        let more = if is_on { &more[..] } else { &more[..2] };
        let nic = NicProcess::start_with(&dir.0, &[("", more)]).listening();
        let qemu = UnixStream::connect(dir.0.join("nic")).unwrap();
        let mut client = Some(crate::run(Client::over(qemu)));
        if by_signal {
            nic.signal("TERM");
        } else {
            client = None;
        }
        let (status, said) = nic.end();
        drop(client);
        assert_eq!(status.signal(), by_signal.then_some(15), "{said}");
        assert_eq!(file.exists(), is_on, "{said}");
        if is_on {
            let recording = FlightRecording::from_bytes(&fs::read(&file).unwrap()).unwrap();
            assert_eq!(recording.reason, "the NIC ended");
            fs::remove_file(&file).unwrap();
        }
    }
}

#[test]
fn a_full_recording_into_a_full_pipe_does_not_keep_the_nic_running() {
    let dir = Dir::new("process-stuck");
    let file = dir.0.join("full");
    mknodat(CWD, &file, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let pipe = open(&file, OFlags::RDWR | OFlags::NONBLOCK, Mode::empty()).unwrap();
    while rustix::io::write(&pipe, &[0; 4096]).is_ok() {}
    let more = ["--record-full", file.to_str().unwrap()];
    let mut nic = NicProcess::start_with(&dir.0, &[("", &more)]).listening();
    nic.signal("TERM");
    let late = Instant::now() + Duration::from_secs(10);
    while nic.child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < late, "the NIC is still running");
        thread::sleep(Duration::from_millis(20));
    }
    let (status, said) = nic.end();
    assert_eq!(status.signal(), Some(15), "{said}");
    let warning = format!("the full recording is incomplete: {}", file.display());
    assert!(said.contains(&warning), "{said}");
}

#[test]
fn the_files_of_a_killed_nic_do_not_stop_the_next_one() {
    let dir = Dir::new("process-killed");
    let nic = NicProcess::start(&dir.0).listening();
    nic.signal("KILL");
    assert_eq!(nic.end().0.signal(), Some(9));
    assert_eq!(dir.list(), ALL);
    let nic = NicProcess::start(&dir.0).listening();
    nic.signal("TERM");
    nic.end();
    assert!(dir.list().is_empty());
}

#[test]
fn a_file_that_is_no_socket_is_not_replaced() {
    let dir = Dir::new("process-file");
    for name in ["nic", "net", "control"] {
        fs::write(dir.0.join(name), b"notes").unwrap();
        let (status, said) = NicProcess::start(&dir.0).end();
        assert_eq!(status.code(), Some(1));
        assert!(said.contains("no socket"), "{said}");
        assert_eq!(dir.list(), [name]);
        assert_eq!(fs::read(dir.0.join(name)).unwrap(), b"notes");
        fs::remove_file(dir.0.join(name)).unwrap();
    }
}
