// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Takes the requests of clients for nodes that stay.

use crate::agent_link::AgentLink;
use crate::frames::Start;
use crate::node_request::{read_line, write_line, NodeState, NodeStatus, Reply, Request};
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where a command runs if the nodes have not the client's directory.
const HOME: &str = "/root";

/// The server of a session, which its threads share.
#[derive(Clone, Debug)]
pub struct NodeServer(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    links: Vec<AgentLink>,
    shares: Vec<PathBuf>,
    states: Mutex<Vec<NodeStatus>>,
    /// The clients that wait for the end of the nodes.
    waiting: Mutex<Vec<UnixStream>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl NodeServer {
    /// Takes requests on `socket` for the nodes with these agents, which have the host's directories
    /// `shares`.
    ///
    /// # Errors
    ///
    /// The socket cannot be made.
    pub fn listen(
        socket: &Path,
        links: Vec<AgentLink>,
        shares: Vec<PathBuf>,
    ) -> Result<Self, String> {
        let listener =
            UnixListener::bind(socket).map_err(|e| format!("{}: {e}", socket.display()))?;
        let booting = NodeStatus {
            state: NodeState::Booting,
            trouble: None,
        };
        let server = Self(Arc::new(Shared {
            states: Mutex::new(vec![booting; links.len()]),
            links,
            shares,
            waiting: Mutex::new(Vec::new()),
        }));
        let own = server.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let own = own.clone();
                // A client that is gone, or sends no request, needs no answer.
                std::thread::spawn(move || own.serve(client));
            }
        });
        Ok(server)
    }

    /// Returns the link to the agent of a node.
    pub fn link(&self, number: usize) -> &AgentLink {
        &self.0.links[number - 1]
    }

    /// Replaces the states of all nodes.
    pub fn set_states(&self, states: Vec<NodeStatus>) {
        *lock(&self.0.states) = states;
    }

    /// True once a client has asked for the end.
    pub fn is_end_wanted(&self) -> bool {
        !lock(&self.0.waiting).is_empty()
    }

    /// Tells the clients that wait for the end how it was.
    pub fn finish(&self, status: u8, lines: &[String]) {
        let reply = Reply::Down {
            status,
            lines: lines.to_vec(),
        };
        for mut client in lock(&self.0.waiting).drain(..) {
            let _ = write_line(&mut client, &reply);
        }
    }

    fn serve(&self, mut client: UnixStream) -> io::Result<()> {
        match read_line(&mut client)? {
            Request::Status => {
                let states = lock(&self.0.states).clone();
                write_line(&mut client, &Reply::Status(states))
            }
            Request::Down => {
                lock(&self.0.waiting).push(client);
                Ok(())
            }
            Request::Run {
                node,
                command,
                directory,
                terminal,
            } => {
                let start = Start {
                    command,
                    directory: directory_in_node(&directory, &self.0.shares),
                    terminal,
                };
                self.run(node, start, client)
            }
        }
    }

    fn run(&self, node: usize, start: Start, mut client: UnixStream) -> io::Result<()> {
        let state = match node {
            0 => None,
            _ => lock(&self.0.states).get(node - 1).cloned(),
        };
        let reply = match &state {
            None => Reply::Refused(format!("there is no node {node}")),
            Some(NodeStatus {
                state: NodeState::Ended,
                trouble,
            }) => Reply::Refused(format!(
                "vm{node} has ended: {}",
                trouble.as_deref().unwrap_or("it was switched off")
            )),
            Some(NodeStatus {
                state: NodeState::Booting,
                ..
            }) => Reply::Refused(format!("vm{node} is still booting")),
            Some(status) => Reply::Running {
                warning: status
                    .trouble
                    .as_ref()
                    .map(|why| format!("vm{node}: {why}")),
            },
        };
        write_line(&mut client, &reply)?;
        if !matches!(reply, Reply::Running { .. }) {
            return Ok(());
        }
        self.link(node).run(start, client)
    }
}

/// Returns the directory of a command: that of the client, if the nodes have it.
fn directory_in_node(directory: &str, shares: &[PathBuf]) -> String {
    let path = Path::new(directory);
    let has_it = shares.iter().any(|share| path.starts_with(share));
    String::from(if has_it { directory } else { HOME })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_runs_in_the_directory_of_the_client_if_the_node_has_it() {
        let shares = ["/home/a", "/srv"].map(PathBuf::from);
        assert_eq!(directory_in_node("/home/a/b", &shares), "/home/a/b");
        assert_eq!(directory_in_node("/srv", &shares), "/srv");
        assert_eq!(directory_in_node("/home/ab", &shares), "/root");
        assert_eq!(directory_in_node("/home", &shares), "/root");
        assert_eq!(directory_in_node("", &[]), "/root");
    }
}
