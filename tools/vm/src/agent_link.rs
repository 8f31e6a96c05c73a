// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The link of a session to the agents of a guest: carries the frames of several clients.
//!
//! QEMU connects the port of the agent to a socket of the session. A guest can send anything, so
//! each frame is checked: only kinds that an agent sends pass, and no client has more bytes waiting
//! than its windows allow.

use crate::frames::{Frame, Message, Start, VERSION, WINDOW};
use std::collections::HashMap;
use std::io::{self, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{channel, sync_channel, Receiver, Sender, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most bytes that wait for a client ([`Message::size`]): the windows of both outputs and of the
/// input, if each frame has one byte.
const MOST_WAITING: usize = 3 * WINDOW * 16;
/// Frames that wait for a guest. A client waits when there are more.
const FRAMES_TO_AGENT: usize = 64;

/// The link to the agent of one guest.
#[derive(Clone, Debug)]
pub struct AgentLink(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Where frames for the agent go, once it has said hello.
    agent: Option<SyncSender<Vec<u8>>>,
    clients: HashMap<u32, Client>,
    last_channel: u32,
    /// Why no command can run any more.
    end: Option<String>,
}

#[derive(Debug)]
struct Client {
    frames: Sender<Message>,
    waiting: Arc<AtomicUsize>,
}

impl AgentLink {
    /// Listens on `socket`, to which QEMU will connect.
    ///
    /// # Errors
    ///
    /// The socket cannot be made.
    pub fn listen(socket: &Path) -> Result<Self, String> {
        let _ = std::fs::remove_file(socket);
        let failed = |e: io::Error| format!("{}: {e}", socket.display());
        let listener = UnixListener::bind(socket).map_err(failed)?;
        let link = Self(Arc::default());
        let own = link.clone();
        std::thread::spawn(move || {
            // A guest that boots again connects again.
            for stream in listener.incoming().flatten() {
                own.serve(stream);
            }
        });
        Ok(link)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if the agent answers.
    pub fn answers(&self) -> bool {
        self.lock().agent.is_some()
    }

    /// Ends all commands, and refuses others: the guest has ended for this reason.
    pub fn end(&self, reason: &str) {
        let mut state = self.lock();
        if state.end.is_some() {
            return;
        }
        state.end = Some(String::from(reason));
        state.agent = None;
        for (_, client) in state.clients.drain() {
            client.send(Message::Failed(String::from(reason)));
        }
    }

    /// Asks the agent to shut the guest down. Returns false if it does not answer.
    pub fn shut_down(&self) -> bool {
        let frame = Frame::new(0, Message::Shutdown).encode();
        let state = self.lock();
        let agent = state.agent.as_ref();
        agent.is_some_and(|agent| !matches!(agent.try_send(frame), Err(TrySendError::Full(_))))
    }

    /// Runs a command for a client, until the command has ended or the client is gone.
    ///
    /// # Errors
    ///
    /// The client is gone, or sends no frames.
    pub fn run(&self, start: Start, client: UnixStream) -> io::Result<()> {
        let mut from = client.try_clone()?;
        let (channel, frames, waiting) = self.open(start);
        let writer = std::thread::spawn(move || write_to_client(client, &frames, &waiting));
        let mut ended = Ok(());
        loop {
            match Frame::read(&mut from) {
                Ok(Some(frame)) if is_from_client(&frame.message) => {
                    self.send(channel, frame.message);
                }
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(e) => {
                    ended = Err(e);
                    break;
                }
            }
        }
        let is_running = self.lock().clients.remove(&channel).is_some();
        if is_running {
            self.send(channel, Message::Hangup);
        }
        // The writer ends when its last sender is gone.
        let _ = writer.join();
        ended
    }

    /// Makes a channel for a client, and sends the command.
    fn open(&self, start: Start) -> (u32, Receiver<Message>, Arc<AtomicUsize>) {
        let (sender, frames) = channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let client = Client {
            frames: sender,
            waiting: Arc::clone(&waiting),
        };
        let mut state = self.lock();
        state.last_channel = state.last_channel.wrapping_add(1).max(1);
        let channel = state.last_channel;
        let refusal = match (&state.end, &state.agent) {
            (Some(reason), _) => Some(reason.clone()),
            (None, None) => Some(String::from("the guest does not answer")),
            (None, Some(_)) => None,
        };
        match refusal {
            Some(reason) => client.send(Message::Failed(reason)),
            None => {
                state.clients.insert(channel, client);
                drop(state);
                self.send(channel, Message::Start(start));
            }
        }
        (channel, frames, waiting)
    }

    fn send(&self, channel: u32, message: Message) {
        let agent = self.lock().agent.clone();
        if let Some(agent) = agent {
            // A guest that is gone has ended its clients.
            let _ = agent.send(Frame::new(channel, message).encode());
        }
    }

    /// Reads the frames of an agent until it is gone.
    fn serve(&self, mut stream: UnixStream) {
        let Ok(to) = stream.try_clone() else {
            return;
        };
        let (agent, frames) = sync_channel(FRAMES_TO_AGENT);
        std::thread::spawn(move || write_to_agent(to, &frames));
        while let Ok(Some(Frame { channel, message })) = Frame::read(&mut stream) {
            match message {
                Message::Hello(VERSION) => self.lock().agent = Some(agent.clone()),
                Message::Hello(_) => self.end(
                    "the agent of the guest and this program are of different versions of Verbena",
                ),
                message if is_from_agent(&message) => self.deliver(channel, message),
                _ => break,
            }
        }
        self.lock().agent = None;
        // Otherwise the writer would wait for frames for ever.
        drop(agent);
        let _ = stream.shutdown(std::net::Shutdown::Both);
    }

    fn deliver(&self, channel: u32, message: Message) {
        let mut state = self.lock();
        let Some(client) = state.clients.get(&channel) else {
            return;
        };
        let is_last = matches!(message, Message::Ended(_) | Message::Failed(_));
        let is_too_much = client.waiting.load(Ordering::Relaxed) > MOST_WAITING;
        client.send(match is_too_much {
            true => Message::Failed(String::from("the guest sends more than was asked for")),
            false => message,
        });
        if is_last || is_too_much {
            state.clients.remove(&channel);
        }
    }
}

impl Client {
    fn send(&self, message: Message) {
        self.waiting.fetch_add(message.size(), Ordering::Relaxed);
        // A client that is gone is removed by its own thread.
        let _ = self.frames.send(message);
    }
}

fn is_from_agent(message: &Message) -> bool {
    matches!(
        message,
        Message::Output(..) | Message::InputCredit(_) | Message::Ended(_) | Message::Failed(_)
    )
}

fn is_from_client(message: &Message) -> bool {
    matches!(
        message,
        Message::Input(_)
            | Message::InputEnd
            | Message::OutputCredit(..)
            | Message::OutputClosed(_)
            | Message::Signal(_)
            | Message::Resize(_)
    )
}

fn write_to_agent(mut to: UnixStream, frames: &Receiver<Vec<u8>>) {
    while let Ok(frame) = frames.recv() {
        if to.write_all(&frame).is_err() {
            return;
        }
    }
}

/// Writes frames until the last one, after which the client has to end.
fn write_to_client(mut to: UnixStream, frames: &Receiver<Message>, waiting: &AtomicUsize) {
    while let Ok(message) = frames.recv() {
        waiting.fetch_sub(message.size(), Ordering::Relaxed);
        if Frame::new(0, message).write(&mut to).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Stream;
    use crate::scratch::Scratch;

    /// A link, and the end of its agent.
    fn link(scratch: &Scratch) -> (AgentLink, UnixStream) {
        let socket = scratch.0.join("agent");
        let link = AgentLink::listen(&socket).unwrap();
        let mut agent = UnixStream::connect(&socket).unwrap();
        Frame::new(0, Message::Hello(VERSION))
            .write(&mut agent)
            .unwrap();
        while !link.answers() {
            std::thread::yield_now();
        }
        (link, agent)
    }

    fn start(command: &str) -> Start {
        Start {
            command: String::from(command),
            directory: String::from("/"),
            terminal: None,
        }
    }

    /// Starts a command for a client in a thread. Returns the client's end.
    fn client(link: &AgentLink, command: &str) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (link, start) = (link.clone(), start(command));
        std::thread::spawn(move || link.run(start, theirs));
        ours
    }

    fn next(from: &mut UnixStream) -> Option<(u32, Message)> {
        let frame = Frame::read(from).unwrap()?;
        Some((frame.channel, frame.message))
    }

    #[test]
    fn each_client_gets_the_frames_of_its_command() {
        let scratch = Scratch::new("link-clients");
        let (link, mut agent) = link(&scratch);
        let mut clients = ["a", "b"].map(|command| client(&link, command));
        for _ in &clients {
            let (channel, Message::Start(start)) = next(&mut agent).unwrap() else {
                panic!("no command");
            };
            let text = start.command.into_bytes();
            let output = Message::Output(Stream::Err, text);
            Frame::new(channel, output).write(&mut agent).unwrap();
            Frame::new(channel, Message::Ended(7))
                .write(&mut agent)
                .unwrap();
        }
        for (client, text) in clients.iter_mut().zip(["a", "b"]) {
            let output = Message::Output(Stream::Err, text.as_bytes().to_vec());
            assert_eq!(next(client), Some((0, output)));
            assert_eq!(next(client), Some((0, Message::Ended(7))));
            assert_eq!(next(client), None);
        }
    }

    #[test]
    fn a_client_that_is_gone_hangs_up() {
        let scratch = Scratch::new("link-hangup");
        let (link, mut agent) = link(&scratch);
        let mut client = client(&link, "a");
        Frame::new(0, Message::Signal(2))
            .write(&mut client)
            .unwrap();
        // Only an agent reports an end.
        Frame::new(0, Message::Ended(0)).write(&mut client).unwrap();
        drop(client);
        let messages = [0; 3].map(|_| next(&mut agent).unwrap().1);
        let expected = [
            Message::Start(start("a")),
            Message::Signal(2),
            Message::Hangup,
        ];
        assert_eq!(messages, expected);
    }

    #[test]
    fn the_end_of_a_guest_ends_its_commands() {
        let scratch = Scratch::new("link-end");
        let (link, mut agent) = link(&scratch);
        let mut first = client(&link, "a");
        next(&mut agent).unwrap();
        link.end("vm1 has ended: why");
        let reason = Message::Failed(String::from("vm1 has ended: why"));
        assert_eq!(next(&mut first), Some((0, reason.clone())));
        assert_eq!(next(&mut client(&link, "b")), Some((0, reason)));
        assert!(!link.shut_down());
    }

    #[test]
    fn a_guest_cannot_fill_the_memory_of_the_session() {
        let scratch = Scratch::new("link-flood");
        let (link, mut agent) = link(&scratch);
        let mut client = client(&link, "a");
        let (channel, _) = next(&mut agent).unwrap();
        let output = Message::Output(Stream::Out, vec![0; 1 << 15]);
        let frame = Frame::new(channel, output).encode();
        for _ in 0..2 * MOST_WAITING / (1 << 15) {
            agent.write_all(&frame).unwrap();
        }
        let mut last = None;
        while let Some((_, message)) = next(&mut client) {
            last = Some(message);
        }
        assert!(matches!(last, Some(Message::Failed(text)) if text.contains("more than")));
    }

    #[test]
    fn an_agent_that_sends_other_frames_is_left() {
        let scratch = Scratch::new("link-bad");
        let (link, mut agent) = link(&scratch);
        Frame::new(0, Message::Shutdown).write(&mut agent).unwrap();
        assert_eq!(next(&mut agent), None);
        assert!(!link.answers());
    }
}
