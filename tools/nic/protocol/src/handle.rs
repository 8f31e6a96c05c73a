// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Rules for Rust programs and tests: a handle whose rules are removed when the handle is dropped.
//!
//! ```no_run
//! use verbena_protocol::Nic;
//!
//! let nic = Nic::at("/run/vm/control");
//! let fault = nic.fault(
//!     r#"
//!     version = 1
//!     [[rule]]
//!     name = "third packet"
//!     match = { opcode = "RDMA WRITE", packet_of_message = 3, limit = 1 }
//!     action = "drop"
//!     "#,
//! )?;
//! // Here the program under test does an RDMA WRITE.
//! let rules = fault.end()?;
//! assert_eq!(rules[0].fired, 1);
//! # Ok::<(), String>(())
//! ```

use crate::{read_toml, ControlRequest, ReplyEnvelope, RulesReply};
use serde::de::DeserializeOwned;
use std::io::{self, BufReader};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;
use verbena_faults::{RuleSet, RuleStatus};

/// Time to wait for an answer. A NIC that is stopped never answers.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// A NIC at its control socket. (A guest has a port instead of the socket, and rules cannot be tied
/// to a port.)
#[derive(Clone, Debug)]
pub struct Nic {
    path: PathBuf,
}

/// A connection to a NIC.
#[derive(Debug)]
struct ControlConnection(BufReader<UnixStream>);

impl ControlConnection {
    fn request<T: DeserializeOwned>(&mut self, request: &ControlRequest) -> Result<T, String> {
        let failed = |e: io::Error| format!("the NIC does not answer: {e}");
        let line = request.exchange(&mut self.0).map_err(failed)?;
        if !line.ends_with('\n') {
            return Err(String::from(
                "the NIC closed the connection before it answered",
            ));
        }
        ReplyEnvelope::from_line(&line)
    }
}

impl Nic {
    /// Returns the NIC with this control socket.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    fn connect(&self) -> Result<ControlConnection, String> {
        let open = || {
            let stream = UnixStream::connect(&self.path)?;
            stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
            Ok(ControlConnection(BufReader::new(stream)))
        };
        open().map_err(|e: io::Error| format!("the NIC at {}: {e}", self.path.display()))
    }

    /// Sends a request to the NIC and returns the answer.
    ///
    /// # Errors
    ///
    /// There is no NIC, or the NIC refuses and gives the reason.
    pub fn request<T: DeserializeOwned>(&self, request: &ControlRequest) -> Result<T, String> {
        self.connect()?.request(request)
    }

    /// Returns the rules of the NIC.
    ///
    /// # Errors
    ///
    /// The same as those of [`Nic::request`].
    pub fn rules(&self) -> Result<Vec<RuleStatus>, String> {
        self.request(&ControlRequest::Faults)
            .map(|reply: RulesReply| reply.rules)
    }

    /// Adds the rules of a file in TOML, for the lifetime of the returned handle.
    ///
    /// # Errors
    ///
    /// The file is wrong, or the NIC refuses the rules and adds none of them.
    pub fn fault(&self, file: &str) -> Result<FaultHandle, String> {
        self.fault_of(read_toml(file)?)
    }

    /// Adds rules that are not from a file, as [`Nic::fault`] does.
    ///
    /// # Errors
    ///
    /// The same as those of [`Nic::fault`].
    pub fn fault_of(&self, set: RuleSet) -> Result<FaultHandle, String> {
        let names = set.rule.iter().map(|rule| rule.name.clone()).collect();
        let mut connection = self.connect()?;
        let request = ControlRequest::FaultAdd {
            set,
            while_connected: true,
        };
        let _: RulesReply = connection.request(&request)?;
        Ok(FaultHandle { connection, names })
    }
}

/// Rules that are removed with this handle. They are tied to its connection, so they are removed
/// however the program ends.
#[derive(Debug)]
#[must_use = "the rules are removed when their handle is dropped"]
pub struct FaultHandle {
    connection: ControlConnection,
    names: Vec<String>,
}

impl FaultHandle {
    /// Returns the rules of this handle, with how often each has matched and fired.
    ///
    /// # Errors
    ///
    /// The NIC has closed the connection.
    pub fn rules(&mut self) -> Result<Vec<RuleStatus>, String> {
        let reply: RulesReply = self.connection.request(&ControlRequest::Faults)?;
        let own = |status: &RuleStatus| self.names.contains(&status.rule.name);
        Ok(reply.rules.into_iter().filter(own).collect())
    }

    /// Returns how often the rules have fired in total.
    ///
    /// # Errors
    ///
    /// The same as those of [`FaultHandle::rules`].
    pub fn fired(&mut self) -> Result<u64, String> {
        Ok(self.rules()?.iter().map(|status| status.fired).sum())
    }

    /// Removes the rules and returns their final counts.
    ///
    /// # Errors
    ///
    /// A rule that is not optional has never fired, so the test did not test its subject; also the
    /// errors of [`FaultHandle::rules`].
    pub fn end(mut self) -> Result<Vec<RuleStatus>, String> {
        let rules = self.rules()?;
        let is_idle = |status: &&RuleStatus| status.fired == 0 && !status.rule.optional;
        let names: Vec<&str> = rules
            .iter()
            .filter(is_idle)
            .map(|status| &*status.rule.name)
            .collect();
        if !names.is_empty() {
            return Err(format!("never fired: {}", names.join(", ")));
        }
        Ok(rules)
    }
}

impl Drop for FaultHandle {
    fn drop(&mut self) {
        // The NIC closes the connection after it has removed the rules. A NIC that has ended has no
        // rules.
        let _ = self.connection.0.get_ref().shutdown(Shutdown::Write);
        let _ = io::copy(&mut self.connection.0, &mut io::sink());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, Write};
    use std::os::unix::net::UnixListener;
    use std::thread;

    const FILE: &str = "version = 1\n[[rule]]\nname = \"x\"\naction = \"drop\"\n";

    /// Starts a NIC that answers one client with these lines. Its thread returns the requests.
    fn nic(name: &str, replies: &'static [&'static str]) -> (Nic, thread::JoinHandle<Vec<String>>) {
        let name = format!("verbena-handle-{name}.{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let listener = UnixListener::bind(&path).unwrap();
        let thread = thread::spawn({
            let path = path.clone();
            move || {
                let stream = listener.accept().unwrap().0;
                std::fs::remove_file(path).unwrap();
                let mut replies = replies.iter();
                let lines = BufReader::new(&stream).lines();
                let requests = lines.map(|line| {
                    let answer = replies.next().map_or("", |line| *line);
                    let _ = writeln!(&stream, "{answer}");
                    line.unwrap()
                });
                requests.collect()
            }
        });
        (Nic::at(path), thread)
    }

    const ADDED: &str = r#"{"ok":true,"rules":[]}"#;
    const IDLE: &str = r#"{"ok":true,"rules":[{"name":"x","action":"drop","seed":0,"while_connected":true,"matched":2,"fired":0},{"name":"y","action":"drop","seed":0,"while_connected":false,"matched":7,"fired":7}]}"#;

    #[test]
    fn a_handle_reports_only_its_own_rules() {
        let (nic, thread) = nic("tied", &[ADDED, IDLE, IDLE]);
        let mut fault = nic.fault(FILE).unwrap();
        let rules = fault.rules().unwrap();
        assert_eq!((rules.len(), rules[0].matched), (1, 2));
        assert_eq!(fault.end().unwrap_err(), "never fired: x");
        let requests = thread.join().unwrap();
        assert_eq!(requests.len(), 3);
        assert!(
            requests[0].contains("\"while_connected\":true"),
            "{}",
            requests[0]
        );
    }

    #[test]
    fn refused_rules_have_no_handle() {
        let (nic, thread) = nic("refused", &[r#"{"ok":false,"error":"no"}"#]);
        assert_eq!(nic.fault(FILE).unwrap_err(), "no");
        thread.join().unwrap();
        let wrong = nic.fault("version = 2").unwrap_err();
        assert!(wrong.starts_with("line 1: "), "{wrong}");
        assert!(nic.fault(FILE).unwrap_err().starts_with("the NIC at "));
    }
}
