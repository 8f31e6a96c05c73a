// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The agent in a guest that stays: runs the commands that [`crate::frames`] brings.
//!
//! A command is the leader of its own process group, with pipes, or on request of its own session with
//! a terminal. Its status is sent once it
//! has ended and what it wrote is sent. Processes that it leaves behind go on; what they still write
//! to its outputs is dropped.

use crate::frames::{Frame, Message, Start, TerminalSize, TerminalStart, CHUNK, VERSION, WINDOW};
use crate::output::Stream;
use crate::session::exit_status;
use crate::window::Window;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::signal::{killpg, Signal};
use nix::sys::wait::{waitid, Id, WaitPidFlag};
use nix::unistd::Pid;
use rustix::pty::{ioctl_tiocgptpeer, openpt, unlockpt, OpenptFlags};
use rustix::termios::{tcsetwinsize, Winsize};
use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Time after which a reader looks again whether the command has ended, in milliseconds.
const POLL_MS: u16 = 100;

/// The commands that run, by their channels.
type Commands = Arc<Mutex<HashMap<u32, Arc<Running>>>>;

/// The stream to the host. A frame is written as a whole.
#[derive(Clone)]
struct Port(Arc<Mutex<File>>);

impl Port {
    fn send(&self, channel: u32, message: Message) {
        // If the host is gone, the guest ends.
        let _ = Frame::new(channel, message).write(&mut *lock(&self.0));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves the host until it shuts the guest down, or is gone.
///
/// # Errors
///
/// The port cannot be used, or the host sends no frames.
pub fn serve(port: File) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("the port of the agent: {e}");
    let mut from = port.try_clone().map_err(failed)?;
    let to = Port(Arc::new(Mutex::new(port)));
    let commands = Commands::default();
    to.send(0, Message::Hello(VERSION));
    while let Some(Frame { channel, message }) = Frame::read(&mut from).map_err(failed)? {
        if message == Message::Shutdown {
            break;
        }
        if let Message::Start(start) = message {
            if let Err(e) = Running::start(&start, channel, &commands, &to) {
                to.send(channel, Message::Failed(e));
            }
            continue;
        }
        // Without the entry, the command has ended meanwhile.
        let running = lock(&commands).get(&channel).cloned();
        if let Some(running) = running {
            running.receive(message);
        }
    }
    for running in lock(&commands).values() {
        running.signal(Signal::SIGTERM);
    }
    Ok(())
}

/// A command that runs.
struct Running {
    group: Pid,
    /// True once the command has ended, and its process group may be another's.
    has_ended: Mutex<bool>,
    is_over: AtomicBool,
    input: Mutex<Option<Sender<Vec<u8>>>>,
    windows: [Window; 2],
    /// The agent's end of the command's terminal, if the command has one and the client is there.
    terminal: Mutex<Option<File>>,
}

/// A process with the agent's ends of its input and outputs.
struct Spawned {
    child: Child,
    input: Option<File>,
    outputs: [Option<File>; 2],
    terminal: Option<File>,
}

impl Running {
    fn start(start: &Start, channel: u32, commands: &Commands, port: &Port) -> Result<(), String> {
        let Spawned {
            child,
            input: pipe,
            outputs,
            terminal,
        } = spawn(start)?;
        let (input, pieces) = std::sync::mpsc::channel();
        let running = Arc::new(Self {
            group: Pid::from_raw(child.id() as i32),
            has_ended: Mutex::new(false),
            is_over: AtomicBool::new(false),
            input: Mutex::new(Some(input)),
            windows: [Window::new(WINDOW), Window::new(WINDOW)],
            terminal: Mutex::new(terminal),
        });
        lock(commands).insert(channel, Arc::clone(&running));
        if let Some(pipe) = pipe {
            let port = port.clone();
            std::thread::spawn(move || write_input(pipe, &pieces, channel, &port));
        }
        let (sent, all_sent) = std::sync::mpsc::channel::<()>();
        for (stream, pipe) in [Stream::Out, Stream::Err].into_iter().zip(outputs) {
            let (running, port, sent) = (Arc::clone(&running), port.clone(), sent.clone());
            std::thread::spawn(move || {
                let send = |bytes| port.send(channel, Message::Output(stream, bytes));
                let rest = pipe.and_then(|pipe| running.send_output(pipe, stream, send));
                drop(sent);
                if let Some(rest) = rest {
                    drain(rest);
                }
            });
        }
        let (commands, port) = (Arc::clone(commands), port.clone());
        std::thread::spawn(move || {
            let status = running.wait(child);
            drop(sent);
            // The readers have dropped their ends when all is sent.
            let _ = all_sent.recv();
            lock(&commands).remove(&channel);
            port.send(channel, Message::Ended(status));
        });
        Ok(())
    }

    fn receive(&self, message: Message) {
        match message {
            Message::Input(bytes) => {
                if let Some(input) = &*lock(&self.input) {
                    // A command that has closed its input ignores the rest.
                    let _ = input.send(bytes);
                }
            }
            Message::InputEnd => *lock(&self.input) = None,
            Message::OutputCredit(stream, bytes) => {
                self.windows[stream.index()].give(bytes as usize);
            }
            Message::OutputClosed(stream) => self.windows[stream.index()].close(),
            Message::Signal(number) => {
                if let Ok(signal) = Signal::try_from(i32::from(number)) {
                    self.signal(signal);
                }
            }
            Message::Resize(size) => {
                if let Some(terminal) = &*lock(&self.terminal) {
                    // A command that has ended needs no size.
                    let _ = tcsetwinsize(terminal, winsize(size));
                }
            }
            Message::Hangup => {
                self.signal(Signal::SIGHUP);
                *lock(&self.input) = None;
                // The kernel hangs a terminal up when the last copy of this end is closed.
                *lock(&self.terminal) = None;
                self.windows.iter().for_each(Window::close);
            }
            _ => {}
        }
    }

    fn signal(&self, signal: Signal) {
        let has_ended = lock(&self.has_ended);
        if !*has_ended {
            let _ = killpg(self.group, signal);
        }
    }

    /// Waits for the end of the command, and returns its exit status.
    fn wait(&self, mut child: Child) -> u8 {
        // The process group belongs to the command until the command is reaped.
        let _ = waitid(
            Id::Pid(self.group),
            WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT,
        );
        let mut has_ended = lock(&self.has_ended);
        *has_ended = true;
        self.is_over.store(true, Ordering::Release);
        child.wait().map_or(255, exit_status)
    }

    /// Sends an output until its end, or until all is sent that a command wrote before it ended.
    /// Returns the pipe if another process still has it.
    fn send_output(
        &self,
        mut pipe: File,
        stream: Stream,
        mut send: impl FnMut(Vec<u8>),
    ) -> Option<File> {
        let window = &self.windows[stream.index()];
        let mut chunk = vec![0; CHUNK];
        loop {
            let room = window.take(CHUNK);
            if room == 0 {
                // Without a reader, the next write of the command fails.
                return None;
            }
            // Read the flag first: what was written before it was set is then read.
            let is_over = self.is_over.load(Ordering::Acquire);
            let mut length = 0;
            if is_readable(&pipe, if is_over { 0 } else { POLL_MS }) {
                length = match pipe.read(&mut chunk[..room]) {
                    Ok(0) | Err(_) => return None,
                    Ok(length) => length,
                };
                send(chunk[..length].to_vec());
            } else if is_over {
                return Some(pipe);
            }
            window.give(room - length);
        }
    }
}

fn is_readable(pipe: &File, patience_ms: u16) -> bool {
    let mut waiting = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
    matches!(poll(&mut waiting, PollTimeout::from(patience_ms)), Ok(1..))
}

fn drain(mut pipe: File) {
    let _ = std::io::copy(&mut pipe, &mut std::io::sink());
}

fn spawn(start: &Start) -> Result<Spawned, String> {
    let directory = Path::new(&start.directory);
    if !directory.is_dir() {
        return Err(format!("the guest has no directory {}", start.directory));
    }
    let failed = |e: std::io::Error| format!("the guest cannot start the command: {e}");
    // The command must not ignore a signal because the program that started this one did.
    let mut command = Command::new("env");
    command
        .arg("--default-signal")
        .current_dir(directory)
        .env("PWD", directory);
    match &start.terminal {
        None => spawn_with_pipes(command, &start.command),
        Some(terminal) => spawn_with_terminal(command, &start.command, terminal),
    }
    .map_err(failed)
}

fn spawn_with_pipes(mut command: Command, text: &str) -> std::io::Result<Spawned> {
    let mut child = command
        .args(["sh", "-c", text])
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let file = |end: OwnedFd| File::from(end);
    Ok(Spawned {
        input: child.stdin.take().map(OwnedFd::from).map(file),
        outputs: [
            child.stdout.take().map(OwnedFd::from).map(file),
            child.stderr.take().map(OwnedFd::from).map(file),
        ],
        child,
        terminal: None,
    })
}

/// Starts a command whose input and outputs are a new terminal, which is also its controlling
/// terminal.
fn spawn_with_terminal(
    mut command: Command,
    text: &str,
    terminal: &TerminalStart,
) -> std::io::Result<Spawned> {
    // Another process with a copy of the agent's end would keep the terminal from hanging up.
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let agent = openpt(flags)?;
    unlockpt(&agent)?;
    let slave = ioctl_tiocgptpeer(&agent, flags)?;
    tcsetwinsize(&agent, winsize(terminal.size))?;
    let agent = File::from(agent);
    // The new process leads no group, so `setsid` makes it the leader of a session and does not fork.
    let child = command
        .args(["setsid", "--ctty", "sh", "-c", text])
        .env("TERM", &terminal.kind)
        .stdin(Stdio::from(slave.try_clone()?))
        .stdout(Stdio::from(slave.try_clone()?))
        .stderr(Stdio::from(slave))
        .spawn()?;
    Ok(Spawned {
        child,
        input: Some(agent.try_clone()?),
        outputs: [Some(agent.try_clone()?), None],
        terminal: Some(agent),
    })
}

fn winsize(size: TerminalSize) -> Winsize {
    Winsize {
        ws_row: size.rows,
        ws_col: size.columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

/// Writes the input of a command, and returns the credits.
fn write_input(mut pipe: impl Write, pieces: &Receiver<Vec<u8>>, channel: u32, port: &Port) {
    let mut is_open = true;
    while let Ok(bytes) = pieces.recv() {
        is_open = is_open && pipe.write_all(&bytes).is_ok();
        port.send(channel, Message::InputCredit(bytes.len() as u32));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    /// A host that talks to an agent in a thread.
    struct Host(File);

    impl Host {
        fn new() -> Self {
            let (host, guest) = UnixStream::pair().unwrap();
            std::thread::spawn(move || serve(File::from(OwnedFd::from(guest))).unwrap());
            let mut host = Self(File::from(OwnedFd::from(host)));
            assert_eq!(host.next(), (0, Message::Hello(VERSION)));
            host
        }

        fn send(&mut self, channel: u32, message: Message) {
            Frame::new(channel, message).write(&mut self.0).unwrap();
        }

        fn start(&mut self, channel: u32, command: &str) {
            let start = Start {
                command: String::from(command),
                directory: String::from("/"),
                terminal: None,
            };
            self.send(channel, Message::Start(start));
        }

        fn start_on_terminal(&mut self, channel: u32, command: &str) {
            let start = Start {
                command: String::from(command),
                directory: String::from("/"),
                terminal: Some(TerminalStart {
                    kind: String::from("xterm"),
                    size: TerminalSize {
                        rows: 30,
                        columns: 90,
                    },
                }),
            };
            self.send(channel, Message::Start(start));
        }

        fn next(&mut self) -> (u32, Message) {
            let frame = Frame::read(&mut self.0).unwrap().unwrap();
            (frame.channel, frame.message)
        }

        /// Reads until a command has ended: its outputs and its status.
        fn finish(&mut self, channel: u32) -> ([Vec<u8>; 2], u8) {
            let mut outputs = [Vec::new(), Vec::new()];
            loop {
                match self.next() {
                    (from, Message::Output(stream, bytes)) if from == channel => {
                        outputs[stream.index()].extend_from_slice(&bytes);
                        self.send(channel, Message::OutputCredit(stream, bytes.len() as u32));
                    }
                    (from, Message::Ended(status)) if from == channel => return (outputs, status),
                    _ => {}
                }
            }
        }
    }

    #[test]
    fn outputs_and_status_of_a_command_are_sent() {
        let mut host = Host::new();
        host.start(1, "pwd; echo err >&2; exit 3");
        assert_eq!(host.finish(1), ([b"/\n".to_vec(), b"err\n".to_vec()], 3));
        host.start(2, "kill -TERM $$");
        assert_eq!(host.finish(2).1, 143);
    }

    #[test]
    fn input_reaches_a_command_and_is_credited() {
        let mut host = Host::new();
        host.start(1, "cat");
        host.send(1, Message::Input(b"text".to_vec()));
        let mut seen = [host.next().1, host.next().1];
        seen.sort_by_key(|message| matches!(message, Message::Output(..)));
        let output = Message::Output(Stream::Out, b"text".to_vec());
        assert_eq!(seen, [Message::InputCredit(4), output]);
        host.send(1, Message::InputEnd);
        assert_eq!(host.finish(1).1, 0);
    }

    #[test]
    fn a_command_without_a_reader_does_not_stop_another() {
        let mut host = Host::new();
        host.start(1, "yes");
        host.start(2, "echo 2");
        assert_eq!(host.finish(2).1, 0);
        host.send(1, Message::OutputClosed(Stream::Out));
        // SIGPIPE.
        assert_eq!(host.finish(1).1, 141);
    }

    #[test]
    fn signals_and_the_end_of_the_client_reach_the_process_group() {
        let mut host = Host::new();
        host.start(1, "trap 'exit 5' INT; echo ready; sleep 1000 & wait");
        assert!(matches!(host.next().1, Message::Output(..)));
        host.send(1, Message::Signal(2));
        assert_eq!(host.finish(1).1, 5);
        host.start(2, "sleep 1000");
        host.send(2, Message::Hangup);
        assert_eq!(host.finish(2).1, 129);
    }

    #[test]
    fn processes_in_the_background_do_not_keep_a_command() {
        let mut host = Host::new();
        host.start(1, "sleep 1000 & echo $!");
        let (outputs, status) = host.finish(1);
        assert_eq!(status, 0);
        let process = String::from_utf8_lossy(&outputs[0]).trim().parse().unwrap();
        nix::sys::signal::kill(Pid::from_raw(process), Signal::SIGKILL).unwrap();
    }

    #[test]
    fn a_command_on_a_terminal_sees_its_size_and_kind() {
        let mut host = Host::new();
        host.start_on_terminal(1, "tty -s && stty size && echo $TERM >&2; exit 4");
        let ([output, errors], status) = host.finish(1);
        assert_eq!(String::from_utf8_lossy(&output), "30 90\r\nxterm\r\n");
        assert_eq!((errors.len(), status), (0, 4));
    }

    #[test]
    fn another_size_and_keys_reach_a_terminal() {
        let mut host = Host::new();
        host.start_on_terminal(
            1,
            "echo ready; read line; echo \"<$line>\"; until [ \"$(stty size)\" = '11 22' ]; do sleep 0.1; done; echo resized; sleep 1000",
        );
        let ready = Message::Output(Stream::Out, b"ready\r\n".to_vec());
        assert_eq!(host.next().1, ready);
        let size = TerminalSize {
            rows: 11,
            columns: 22,
        };
        host.send(1, Message::Resize(size));
        host.send(1, Message::Input(b"keys\r".to_vec()));
        let mut seen = String::new();
        while !(seen.contains("<keys>") && seen.contains("resized")) {
            if let Message::Output(_, bytes) = host.next().1 {
                seen += &String::from_utf8_lossy(&bytes);
            }
        }
        // Ctrl-C is a key, for which the terminal sends SIGINT.
        host.send(1, Message::Input(vec![3]));
        assert_eq!(host.finish(1).1, 130);
    }

    #[test]
    fn a_terminal_hangs_up_with_its_client() {
        let mut host = Host::new();
        host.start_on_terminal(1, "sleep 1000");
        host.send(1, Message::Hangup);
        assert_eq!(host.finish(1).1, 129);
    }

    #[test]
    fn a_missing_directory_is_an_error() {
        let mut host = Host::new();
        let start = Start {
            command: String::from("true"),
            directory: String::from("/no/such"),
            terminal: None,
        };
        host.send(1, Message::Start(start));
        let reason = String::from("the guest has no directory /no/such");
        assert_eq!(host.next(), (1, Message::Failed(reason)));
    }
}
