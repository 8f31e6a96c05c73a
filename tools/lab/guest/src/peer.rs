// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The second process of a test that needs two: the same program in a role, which exchanges lines
//! with the test over pipes. The peer stays in the process group of the test, so it is killed with
//! a hung test.
use crate::rig::{self, Rig};
use crate::{Fail, TestResult};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A running peer, which is killed when this value is dropped.
pub struct PeerProcess {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl PeerProcess {
    pub fn start(role: &str) -> Result<PeerProcess, Fail> {
        PeerProcess::start_as(role, None)
    }

    /// Starts the peer as another user.
    pub fn start_as(role: &str, uid: Option<u32>) -> Result<PeerProcess, Fail> {
        let env = rig::env();
        let mut command = Command::new("/proc/self/exe");
        if let Some(uid) = uid {
            command.uid(uid).gid(uid);
        }
        let mut child = command
            .args(["--peer", role, "--device", &env.device])
            .args(["--gid", &env.gid_index.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let to = child.stdin.take();
        let from = child.stdout.take().ok_or("the peer has no output")?;
        Ok(PeerProcess {
            child,
            to,
            from: BufReader::new(from),
        })
    }

    pub fn send_line(&mut self, line: &str) -> TestResult {
        let to = self.to.as_mut().ok_or("the peer's input is closed")?;
        writeln!(to, "{line}")?;
        to.flush()?;
        Ok(())
    }

    pub fn read_line(&mut self) -> Result<String, Fail> {
        let mut line = String::new();
        if self.from.read_line(&mut line)? == 0 {
            return Err("the peer process ended early".into());
        }
        Ok(line.trim_end().to_owned())
    }

    /// Receives a line of numbers.
    pub fn read_numbers(&mut self) -> Result<Vec<u64>, Fail> {
        parse_numbers(&self.read_line()?)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills the peer without a shutdown: the kernel destroys its QPs.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Closes the peer's input, waits for the peer to end and returns its result.
    pub fn finish(mut self) -> TestResult {
        self.to = None;
        let mut rest = String::new();
        while self.from.read_line(&mut rest)? > 0 {}
        let status = self.child.wait()?;
        if status.success() {
            return Ok(());
        }
        Err(format!("the peer process failed ({status}): {}", rest.trim()).into())
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Splits a line into numbers.
pub fn parse_numbers(line: &str) -> Result<Vec<u64>, Fail> {
    line.split_whitespace()
        .map(|w| {
            w.parse()
                .map_err(|_| Fail::Failed(format!("not a number from the peer: {line}")))
        })
        .collect()
}

/// The connection to the parent, in the peer's process.
pub struct ParentProcess {
    from: std::io::StdinLock<'static>,
}

impl ParentProcess {
    pub fn send_line(&self, line: &str) -> TestResult {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{line}")?;
        out.flush()?;
        Ok(())
    }

    /// Returns the next line, or `None` if the parent has closed the pipe.
    pub fn read_line(&mut self) -> Result<Option<String>, Fail> {
        let mut line = String::new();
        let n = self.from.read_line(&mut line)?;
        Ok((n > 0).then(|| line.trim_end().to_owned()))
    }
}

/// A role: a name and the function that the process runs.
pub struct PeerRole {
    pub name: &'static str,
    pub run: fn(&Rig, &mut ParentProcess) -> TestResult,
}

/// Runs a role in this process.
pub fn run_role(role: &str) -> TestResult {
    let role = crate::tests::ROLES
        .iter()
        .flat_map(|r| r.iter())
        .find(|r| r.name == role)
        .ok_or_else(|| Fail::Failed(format!("no role {role}")))?;
    let rig = Rig::new()?;
    let mut parent = ParentProcess {
        from: std::io::stdin().lock(),
    };
    (role.run)(&rig, &mut parent)
}
