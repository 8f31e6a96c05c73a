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

/// Asks for what comes in a stream behind the answer, and waits for it as long as it takes.
///
/// # Errors
///
/// As of [`ask`].
pub fn open<Q: Question>(socket: &Path) -> Result<(Q, BufReader<UnixStream>), String> {
    let failed = |e| format!("the NIC at {}: {e}", socket.display());
    let (line, reader) = begin(socket, Q::REQUEST).map_err(failed)?;
    let told = Reply::read(&line)?;
    reader.get_ref().set_read_timeout(None).map_err(failed)?;
    Ok((told, reader))
}

fn exchange(socket: &Path, request: Request) -> io::Result<String> {
    begin(socket, request).map(|(line, _)| line)
}

fn begin(socket: &Path, request: Request) -> io::Result<(String, BufReader<UnixStream>)> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    (&stream).write_all(request.line().as_bytes())?;
    let (mut line, mut reader) = (String::new(), BufReader::new(stream));
    reader.read_line(&mut line)?;
    Ok((line, reader))
}
