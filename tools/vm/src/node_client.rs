// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Asks the session of nodes that stay: for their states, for their end, and to run commands.

use crate::frames::{Frame, Message, CHUNK, WINDOW};
use crate::node_request::{read_line, write_line, NodeStatus, Reply, Request, VERSION};
use crate::node_set::{NodeSet, SOCKET};
use crate::output::Stream;
use crate::signals::Signals;
use crate::terminal::{self, RawTerminal};
use crate::window::Window;
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Time for a session to report its nodes.
const STATUS_PATIENCE: Duration = Duration::from_secs(5);
/// Time for a session to end its nodes.
const DOWN_PATIENCE: Duration = Duration::from_secs(40);
/// Time for the processes of a session to end after its nodes.
const END_PATIENCE: Duration = Duration::from_secs(10);
/// Time for the keeper to remove its sockets.
const REMOVE_PATIENCE: Duration = Duration::from_secs(1);
/// Ctrl-C as often as this ends a client whose command ignores it.
const MOST_INTERRUPTS: u32 = 3;
const INTERRUPTED: u8 = 130;

impl NodeSet {
    fn connect(&self) -> Result<UnixStream, String> {
        let name = &self.description.name;
        if !self.description.stays {
            return Err(format!(
                "{name} is a run, which ends with its command: only nodes of `verbena up` take commands"
            ));
        }
        if self.description.version != VERSION {
            return Err(format!(
                "the nodes {name:?} were started by another version of Verbena: end them by `verbena down --name {name}`, and start them again"
            ));
        }
        UnixStream::connect(self.sockets.join(SOCKET)).map_err(|e| match e.kind() {
            // The socket is made after the directory.
            io::ErrorKind::NotFound => format!("the nodes {name:?} are about to start or to end"),
            _ => format!("the session of the nodes {name:?} does not answer: {e}"),
        })
    }

    fn ask(&self, request: &Request, patience: Duration) -> Result<Reply, String> {
        let mut stream = self.connect()?;
        let asked = stream
            .set_read_timeout(Some(patience))
            .and_then(|()| write_line(&mut stream, request))
            .and_then(|()| read_line(&mut stream));
        asked.map_err(|e| {
            let name = &self.description.name;
            format!("the session of the nodes {name:?} does not answer: {e}")
        })
    }

    /// Returns the state of each node.
    ///
    /// # Errors
    ///
    /// These are no nodes that stay, or their session does not answer.
    pub fn states(&self) -> Result<Vec<NodeStatus>, String> {
        match self.ask(&Request::Status, STATUS_PATIENCE)? {
            Reply::Status(states) => Ok(states),
            other => Err(unexpected(&other)),
        }
    }

    /// Ends the nodes. Returns 0, or 125 and what was wrong with them. When this returns, their
    /// processes, mounts and sockets are gone.
    ///
    /// # Errors
    ///
    /// These are no nodes that stay, or their processes do not end.
    pub fn down(&self) -> Result<(u8, Vec<String>), String> {
        if !self.description.stays {
            self.connect()?;
        }
        let reply = self.ask(&Request::Down, DOWN_PATIENCE);
        let outcome = match reply {
            Ok(Reply::Down { status, lines }) => (status, lines),
            Ok(other) => (125, vec![format!("error: {}", unexpected(&other))]),
            Err(e) => {
                self.signal_keeper(Signal::SIGTERM);
                (125, vec![format!("error: {e}: the nodes were killed")])
            }
        };
        if !self.wait_for_end() {
            self.signal_keeper(Signal::SIGKILL);
            if !self.wait_for_end() {
                return Err(format!(
                    "the process {} of the nodes does not end",
                    self.description.keeper
                ));
            }
        }
        // A keeper that was killed has left its sockets; another may still be removing them.
        let since = Instant::now();
        while self.sockets.exists() && since.elapsed() < REMOVE_PATIENCE {
            std::thread::sleep(POLL_INTERVAL);
        }
        match std::fs::remove_dir_all(&self.sockets) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(format!("{} cannot be removed: {e}", self.sockets.display()))
            }
            _ => Ok(outcome),
        }
    }

    fn signal_keeper(&self, signal: Signal) {
        // While the lock is held, the keeper lives, and no other process has its number.
        if self.lives() {
            let _ = kill(Pid::from_raw(self.description.keeper), signal);
        }
    }

    fn wait_for_end(&self) -> bool {
        let since = Instant::now();
        while self.lives() {
            if since.elapsed() > END_PATIENCE {
                return false;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        true
    }
}

fn unexpected(reply: &Reply) -> String {
    match reply {
        Reply::Refused(reason) => reason.clone(),
        reply => format!("the session sent an unexpected reply: {reply:?}"),
    }
}

/// A command for a node.
#[derive(Debug)]
pub struct NodeCommand<'a> {
    /// The nodes.
    pub set: &'a NodeSet,
    /// Number of the node, from 1.
    pub node: usize,
    /// Text for `sh -c`.
    pub command: &'a str,
    /// Directory of the client. The command runs there if the node has it, else in `/root`.
    pub directory: &'a str,
    /// The terminal of the client, if the command has a terminal.
    pub terminal: Option<&'a RawTerminal>,
}

impl NodeCommand<'_> {
    /// Runs the command, and returns its exit status. It reads `input`. `output` writes what it
    /// prints; after an error the command gets SIGPIPE at its next write. `signals` that arrive reach
    /// the process group of the command. `warn` is called with what is wrong with the node.
    ///
    /// # Errors
    ///
    /// The node cannot run the command, or has ended.
    pub fn run(
        &self,
        input: Option<Box<dyn Read + Send>>,
        mut output: impl FnMut(Stream, &[u8]) -> io::Result<()>,
        signals: Option<Signals>,
        warn: impl FnOnce(&str),
    ) -> Result<u8, String> {
        self.set.check_number(self.node)?;
        let mut stream = self.set.connect()?;
        let request = Request::Run {
            node: self.node,
            command: String::from(self.command),
            directory: String::from(self.directory),
            terminal: self.terminal.map(RawTerminal::describe),
        };
        let lost = |e: io::Error| format!("the session of the nodes has ended: {e}");
        write_line(&mut stream, &request).map_err(lost)?;
        match read_line(&mut stream).map_err(lost)? {
            Reply::Running { warning: None } => {}
            Reply::Running { warning: Some(why) } => warn(&why),
            other => return Err(unexpected(&other)),
        }
        let sender = ToNode(Arc::new(Mutex::new(stream.try_clone().map_err(lost)?)));
        let window = Arc::new(Window::new(WINDOW));
        send_input(input, sender.clone(), Arc::clone(&window));
        if self.terminal.is_some() {
            send_sizes(sender.clone());
        }
        let has_given_up = Arc::new(AtomicBool::new(false));
        if let Some(signals) = signals {
            send_signals(signals, sender.clone(), Arc::clone(&has_given_up));
        }
        let mut is_closed = [false; 2];
        loop {
            let frame = Frame::read(&mut stream);
            if has_given_up.load(Ordering::Acquire) {
                return Ok(INTERRUPTED);
            }
            match frame.map_err(lost)?.map(|frame| frame.message) {
                Some(Message::Output(to, _)) if is_closed[to.index()] => {}
                Some(Message::Output(to, bytes)) => match output(to, &bytes) {
                    Ok(()) => sender.send(Message::OutputCredit(to, bytes.len() as u32)),
                    Err(_) => {
                        is_closed[to.index()] = true;
                        sender.send(Message::OutputClosed(to));
                    }
                },
                Some(Message::InputCredit(bytes)) => window.give(bytes as usize),
                Some(Message::Ended(status)) => return Ok(status),
                Some(Message::Failed(reason)) => return Err(reason),
                Some(_) => {}
                None => return Err(String::from("the session of the nodes has ended")),
            }
        }
    }
}

/// The stream to the session. A frame is written as a whole.
#[derive(Clone)]
struct ToNode(Arc<Mutex<UnixStream>>);

impl ToNode {
    fn send(&self, message: Message) {
        let mut stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The reader notices a session that is gone.
        let _ = Frame::new(0, message).write(&mut *stream);
    }
}

fn send_input(input: Option<Box<dyn Read + Send>>, sender: ToNode, window: Arc<Window>) {
    let Some(mut input) = input else {
        return sender.send(Message::InputEnd);
    };
    std::thread::spawn(move || {
        let mut chunk = vec![0; CHUNK];
        loop {
            let room = window.take(CHUNK);
            match input.read(&mut chunk[..room]) {
                Ok(length @ 1..) => {
                    window.give(room - length);
                    sender.send(Message::Input(chunk[..length].to_vec()));
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => window.give(room),
                _ => return sender.send(Message::InputEnd),
            }
        }
    });
}

/// Sends the size of the terminal when it changes.
fn send_sizes(sender: ToNode) {
    std::thread::spawn(move || {
        let mut sent = terminal::size();
        // The first size may have changed since the command was requested.
        sender.send(Message::Resize(sent));
        loop {
            std::thread::sleep(POLL_INTERVAL);
            let now = terminal::size();
            if now != sent {
                sender.send(Message::Resize(now));
                sent = now;
            }
        }
    });
}

fn send_signals(signals: Signals, sender: ToNode, has_given_up: Arc<AtomicBool>) {
    std::thread::spawn(move || {
        let mut interrupts = 0;
        loop {
            std::thread::sleep(POLL_INTERVAL);
            let Some(signal) = signals.take() else {
                continue;
            };
            sender.send(Message::Signal(signal as u8));
            interrupts += u32::from(signal == Signal::SIGINT);
            if interrupts == MOST_INTERRUPTS {
                has_given_up.store(true, Ordering::Release);
                let stream = sender.0.lock().unwrap_or_else(PoisonError::into_inner);
                let _ = stream.shutdown(std::net::Shutdown::Both);
                return;
            }
        }
    });
}
