// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Asks a NIC over its control socket.

use serde::de::DeserializeOwned;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;
use verbena_control::{Question, Reply, Request};

/// A NIC that is stopped gives no answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Asks the NIC at `socket`.
///
/// # Errors
///
/// There is no NIC, or it says why it gives no answer.
pub fn ask<Q: Question>(socket: &Path) -> Result<Q, String> {
    ask_for(socket, Q::REQUEST)
}

/// The same with a request that says more.
///
/// # Errors
///
/// As of [`ask`].
pub fn ask_for<T: DeserializeOwned>(socket: &Path, request: Request) -> Result<T, String> {
    let line =
        exchange(socket, request).map_err(|e| format!("the NIC at {}: {e}", socket.display()))?;
    Reply::read(&line)
}

fn exchange(socket: &Path, request: Request) -> io::Result<String> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    (&stream).write_all(request.line().as_bytes())?;
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line)?;
    Ok(line)
}
