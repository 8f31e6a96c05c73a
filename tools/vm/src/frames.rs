// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The protocol between a program that runs a command in a node and the agent in the guest.
//!
//! Commands share one byte stream, the port `verbena.agent`. Each frame names the command to which
//! it belongs by a channel. Input and outputs have windows of [`WINDOW`] bytes: a sender stops when
//! the receiver has not written that many bytes yet, so that a command whose output nobody reads
//! does not stop the others.

use crate::output::Stream;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};

/// Version of this protocol.
pub const VERSION: u8 = 2;
/// Most bytes after the header of a frame.
pub const MAX_PAYLOAD: usize = 1 << 18;
/// Bytes that may be on the way in one direction of a stream.
pub const WINDOW: usize = 1 << 18;
/// Bytes of data in a frame.
pub const CHUNK: usize = 1 << 15;
const HEADER: usize = 12;

/// A command for a guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// The text for `sh -c`.
    pub command: String,
    /// The working directory.
    pub directory: String,
    /// The terminal of the command, or `None` for pipes.
    pub terminal: Option<TerminalStart>,
}

/// A terminal for a command. All that the command writes is then standard output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalStart {
    /// Its kind, as in `TERM`.
    pub kind: String,
    /// Its size.
    pub size: TerminalSize,
}

/// The size of a terminal in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    /// Lines.
    pub rows: u16,
    /// Characters of a line.
    pub columns: u16,
}

/// The content of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// From the agent, when it begins: its version.
    Hello(u8),
    /// To the agent: begins a command.
    Start(Start),
    /// To the agent: bytes for standard input.
    Input(Vec<u8>),
    /// To the agent: the end of standard input.
    InputEnd,
    /// From the agent: this many bytes of input are written.
    InputCredit(u32),
    /// From the agent: bytes of an output.
    Output(Stream, Vec<u8>),
    /// To the agent: this many bytes of an output are written.
    OutputCredit(Stream, u32),
    /// To the agent: nobody reads this output any more.
    OutputClosed(Stream),
    /// To the agent: a signal for the process group of the command.
    Signal(u8),
    /// To the agent: the terminal has another size.
    Resize(TerminalSize),
    /// To the agent: the client is gone.
    Hangup,
    /// From the agent: the exit status of the command, after all of its output.
    Ended(u8),
    /// To the client: the command cannot run, or cannot run on. The text says why.
    Failed(String),
    /// To the agent: end all commands, and the guest.
    Shutdown,
}

/// A message, with the command to which it belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Number of the command.
    pub channel: u32,
    /// Content.
    pub message: Message,
}

impl Frame {
    /// Returns the frame of a message.
    pub fn new(channel: u32, message: Message) -> Self {
        Self { channel, message }
    }

    /// Returns the bytes of the frame: channel, kind, length (little-endian), payload.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, payload) = self.message.parts();
        let mut bytes = Vec::with_capacity(HEADER + payload.len());
        let length = payload.len().min(MAX_PAYLOAD);
        for field in [self.channel, kind, length as u32] {
            bytes.extend_from_slice(&field.to_le_bytes());
        }
        bytes.extend_from_slice(&payload[..length]);
        bytes
    }

    /// Writes the frame.
    ///
    /// # Errors
    ///
    /// The writer fails.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        to.write_all(&self.encode()).and_then(|()| to.flush())
    }

    /// Reads a frame; `None` at the end.
    ///
    /// # Errors
    ///
    /// The reader fails, ends within a frame, or has bytes that are no frame.
    pub fn read(from: &mut impl Read) -> io::Result<Option<Self>> {
        let mut header = [0; HEADER];
        match from.read(&mut header[..1])? {
            0 => return Ok(None),
            _ => from.read_exact(&mut header[1..])?,
        }
        let field = |n: usize| {
            let bytes = [0, 1, 2, 3].map(|byte| header[4 * n + byte]);
            u32::from_le_bytes(bytes)
        };
        let (channel, kind, length) = (field(0), field(1), field(2) as usize);
        if length > MAX_PAYLOAD {
            return Err(invalid(&format!("a frame of {length} bytes")));
        }
        let mut payload = vec![0; length];
        from.read_exact(&mut payload)?;
        let message = Message::from_parts(kind, payload)
            .ok_or_else(|| invalid(&format!("a frame of kind {kind} with {length} bytes")))?;
        Ok(Some(Self { channel, message }))
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, String::from(what))
}

const HELLO: u32 = 1;
const START: u32 = 2;
const INPUT: u32 = 3;
const INPUT_END: u32 = 4;
const INPUT_CREDIT: u32 = 5;
const OUTPUT: [u32; 2] = [6, 7];
const OUTPUT_CREDIT: [u32; 2] = [8, 9];
const OUTPUT_CLOSED: [u32; 2] = [10, 11];
const SIGNAL: u32 = 12;
const HANGUP: u32 = 13;
const ENDED: u32 = 14;
const FAILED: u32 = 15;
const SHUTDOWN: u32 = 16;
const RESIZE: u32 = 17;
const STREAMS: [Stream; 2] = [Stream::Out, Stream::Err];

impl Message {
    /// Returns the number of bytes that the message counts for while it waits: at least 16.
    pub fn size(&self) -> usize {
        const LEAST: usize = 16;
        match self {
            Self::Input(bytes) | Self::Output(_, bytes) => bytes.len().max(LEAST),
            Self::Failed(text) => text.len().max(LEAST),
            _ => LEAST,
        }
    }

    fn parts(&self) -> (u32, Vec<u8>) {
        let none = Vec::new;
        match self {
            Self::Hello(version) => (HELLO, vec![*version]),
            Self::Start(start) => (START, serde_json::to_vec(start).unwrap_or_default()),
            Self::Input(bytes) => (INPUT, bytes.clone()),
            Self::InputEnd => (INPUT_END, none()),
            Self::InputCredit(bytes) => (INPUT_CREDIT, bytes.to_le_bytes().to_vec()),
            Self::Output(stream, bytes) => (OUTPUT[stream.index()], bytes.clone()),
            Self::OutputCredit(stream, bytes) => {
                let kind = OUTPUT_CREDIT[stream.index()];
                (kind, bytes.to_le_bytes().to_vec())
            }
            Self::OutputClosed(stream) => (OUTPUT_CLOSED[stream.index()], none()),
            Self::Signal(signal) => (SIGNAL, vec![*signal]),
            Self::Resize(size) => {
                let sides = [size.rows, size.columns].map(u16::to_le_bytes);
                (RESIZE, sides.concat())
            }
            Self::Hangup => (HANGUP, none()),
            Self::Ended(status) => (ENDED, vec![*status]),
            Self::Failed(text) => (FAILED, text.clone().into_bytes()),
            Self::Shutdown => (SHUTDOWN, none()),
        }
    }

    fn from_parts(kind: u32, payload: Vec<u8>) -> Option<Self> {
        let byte = || match payload[..] {
            [byte] => Some(byte),
            _ => None,
        };
        let count = || Some(u32::from_le_bytes(payload.as_slice().try_into().ok()?));
        let stream = |kinds: [u32; 2]| {
            let index = kinds.iter().position(|own| *own == kind)?;
            Some(STREAMS[index])
        };
        Some(match kind {
            HELLO => Self::Hello(byte()?),
            START => Self::Start(serde_json::from_slice(&payload).ok()?),
            INPUT => Self::Input(payload),
            INPUT_END if payload.is_empty() => Self::InputEnd,
            INPUT_CREDIT => Self::InputCredit(count()?),
            SIGNAL => Self::Signal(byte()?),
            RESIZE => {
                let [r0, r1, c0, c1] = payload[..].try_into().ok()?;
                Self::Resize(TerminalSize {
                    rows: u16::from_le_bytes([r0, r1]),
                    columns: u16::from_le_bytes([c0, c1]),
                })
            }
            HANGUP if payload.is_empty() => Self::Hangup,
            ENDED => Self::Ended(byte()?),
            FAILED => Self::Failed(String::from_utf8_lossy(&payload).into_owned()),
            SHUTDOWN if payload.is_empty() => Self::Shutdown,
            _ => {
                if let Some(stream) = stream(OUTPUT) {
                    Self::Output(stream, payload)
                } else if let Some(stream) = stream(OUTPUT_CREDIT) {
                    Self::OutputCredit(stream, count()?)
                } else {
                    Self::OutputClosed(stream(OUTPUT_CLOSED).filter(|_| payload.is_empty())?)
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: TerminalSize = TerminalSize {
        rows: 24,
        columns: 300,
    };

    fn all() -> Vec<Message> {
        let start = Start {
            command: String::from("echo 'a b'"),
            directory: String::from("/root"),
            terminal: Some(TerminalStart {
                kind: String::from("xterm"),
                size: SIZE,
            }),
        };
        vec![
            Message::Hello(VERSION),
            Message::Start(start),
            Message::Input(vec![0, 1, 255]),
            Message::InputEnd,
            Message::InputCredit(70_000),
            Message::Output(Stream::Out, b"out".to_vec()),
            Message::Output(Stream::Err, Vec::new()),
            Message::OutputCredit(Stream::Err, 1),
            Message::OutputClosed(Stream::Out),
            Message::Signal(2),
            Message::Resize(SIZE),
            Message::Hangup,
            Message::Ended(255),
            Message::Failed(String::from("why")),
            Message::Shutdown,
        ]
    }

    #[test]
    fn each_message_survives_the_stream() {
        let mut bytes = Vec::new();
        for (channel, message) in (7..).zip(all()) {
            Frame::new(channel, message).write(&mut bytes).unwrap();
        }
        let mut from = bytes.as_slice();
        for (channel, message) in (7..).zip(all()) {
            let read = Frame::read(&mut from).unwrap();
            assert_eq!(read, Some(Frame::new(channel, message)));
        }
        assert_eq!(Frame::read(&mut from).unwrap(), None);
    }

    #[test]
    fn other_bytes_are_refused() {
        let frame = |kind: u32, length: u32, payload: &[u8]| {
            let mut bytes = [0, kind, length].map(u32::to_le_bytes).concat();
            bytes.extend_from_slice(payload);
            Frame::read(&mut bytes.as_slice()).map_err(|e| e.kind())
        };
        let invalid = Err(io::ErrorKind::InvalidData);
        assert_eq!(frame(0, 0, b""), invalid);
        assert_eq!(frame(99, 0, b""), invalid);
        assert_eq!(frame(INPUT, u32::MAX, b""), invalid);
        assert_eq!(frame(ENDED, 2, b"ab"), invalid);
        assert_eq!(frame(RESIZE, 3, b"abc"), invalid);
        assert_eq!(frame(INPUT_CREDIT, 3, b"abc"), invalid);
        assert_eq!(frame(START, 1, b"{"), invalid);
        assert_eq!(frame(OUTPUT_CLOSED[1], 1, b"x"), invalid);
        assert_eq!(frame(INPUT, 4, b"abc"), Err(io::ErrorKind::UnexpectedEof));
        let cut = Frame::read(&mut &b"abc"[..]).unwrap_err();
        assert_eq!(cut.kind(), io::ErrorKind::UnexpectedEof);
    }
}
