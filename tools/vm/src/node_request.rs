// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What clients ask the session of nodes that stay: a line of JSON each way. After the reply to
//! [`Request::Run`], both sides send [`crate::frames`].

use crate::frames::TerminalStart;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};

/// Version of the requests, the replies and the description of nodes.
pub const VERSION: u8 = 2;
/// Most bytes of a request or a reply.
const LONGEST: usize = 1 << 18;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Run a command in a node.
    Run {
        /// Number of the node, from 1.
        node: usize,
        /// Text for `sh -c`.
        command: String,
        /// The client's directory. The command runs there if the nodes have it, else in `/root`.
        directory: String,
        /// The terminal of the command, or `None` for pipes.
        terminal: Option<TerminalStart>,
    },
    /// Report the state of each node.
    Status,
    /// End all nodes. The reply comes when they have ended.
    Down,
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The command begins.
    Running {
        /// What the user should know about the node.
        warning: Option<String>,
    },
    /// The state of each node.
    Status(Vec<NodeStatus>),
    /// The nodes have ended.
    Down {
        /// 0, or 125 if something was wrong.
        status: u8,
        /// What was wrong.
        lines: Vec<String>,
    },
    /// The request cannot be done.
    Refused(String),
}

/// The state of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// What the node does.
    pub state: NodeState,
    /// What is wrong with it: why it has ended, or how its NIC has ended.
    pub trouble: Option<String>,
}

/// What a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    /// The guest boots.
    Booting,
    /// The guest takes commands.
    Up,
    /// The guest has ended.
    Ended,
}

/// Writes a request or a reply.
///
/// # Errors
///
/// The writer fails.
pub fn write_line(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message).map_err(io::Error::other)?;
    line.push(b'\n');
    to.write_all(&line).and_then(|()| to.flush())
}

/// Reads a request or a reply, and not a byte after it.
///
/// # Errors
///
/// The reader fails, or the line is of another kind.
pub fn read_line<M: DeserializeOwned>(from: &mut impl Read) -> io::Result<M> {
    let mut line = Vec::new();
    let mut byte = [0];
    loop {
        from.read_exact(&mut byte)?;
        if byte == *b"\n" {
            return serde_json::from_slice(&line).map_err(io::Error::from);
        }
        if line.len() == LONGEST {
            let text = format!("a line of more than {LONGEST} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        line.push(byte[0]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_ends_where_the_frames_begin() {
        let request = Request::Run {
            node: 2,
            command: String::from("echo\n"),
            directory: String::from("/root"),
            terminal: None,
        };
        let mut bytes = Vec::new();
        write_line(&mut bytes, &request).unwrap();
        bytes.extend_from_slice(b"frames");
        let mut from = bytes.as_slice();
        assert_eq!(read_line::<Request>(&mut from).unwrap(), request);
        assert_eq!(from, b"frames");
    }

    #[test]
    fn other_lines_are_refused() {
        let kind = |bytes: &[u8]| read_line::<Request>(&mut &*bytes).unwrap_err().kind();
        assert_eq!(kind(b"{}\n"), io::ErrorKind::InvalidData);
        assert_eq!(kind(b"\"Down\""), io::ErrorKind::UnexpectedEof);
        assert_eq!(kind(&vec![b' '; LONGEST + 2]), io::ErrorKind::InvalidData);
    }
}
