// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Queries a NIC over its control socket, or inside a guest over a port that QEMU has connected to
//! that socket.

mod door;

use door::{Door, PATIENCE};
use serde::de::DeserializeOwned;
use std::io::{self, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use verbena_protocol::{ControlRequest, QueryReply, ReplyEnvelope};

/// Sends the request of `Q` to the NIC at `socket` and returns the answer.
///
/// # Errors
///
/// There is no NIC, or the NIC refuses and gives the reason.
pub fn ask<Q: QueryReply>(socket: &Path) -> Result<Q, String> {
    ask_for(socket, Q::REQUEST)
}

/// Sends a request to the NIC at `socket` and returns the answer.
///
/// # Errors
///
/// The same as those of [`ask`].
pub fn ask_for<T: DeserializeOwned>(socket: &Path, request: ControlRequest) -> Result<T, String> {
    let door = Door::open(socket).map_err(|e| failed(socket, &e))?;
    read(socket, &mut BufReader::new(door), request)
}

/// Returns the text for a failed connection to a NIC.
fn failed(socket: &Path, e: &io::Error) -> String {
    let why = match e.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!(" has not answered for {PATIENCE} s: it is stopped or hangs")
        }
        _ => format!(": {e}"),
    };
    format!("the NIC at {}{why}", socket.display())
}

/// Sends a request and returns its answer.
fn read<T: DeserializeOwned>(
    socket: &Path,
    way: &mut BufReader<impl Read + Write>,
    request: ControlRequest,
) -> Result<T, String> {
    let line = request.exchange(way).map_err(|e| failed(socket, &e))?;
    if !line.ends_with('\n') {
        return Err(format!(
            "the NIC at {} closed the connection before it answered: its log may name the reason",
            socket.display()
        ));
    }
    ReplyEnvelope::read(&line)
}

/// Sends the request of `Q` and keeps the connection for the stream that follows the answer. Reads
/// of the stream have no timeout.
///
/// # Errors
///
/// The same as those of [`ask`], and `socket` is a port of a guest. Such a port stays open when its
/// user is gone, so it cannot carry a stream.
pub fn open<Q: QueryReply>(socket: &Path) -> Result<(Q, BufReader<UnixStream>), String> {
    open_for(socket, Q::REQUEST)
}

/// Sends a request and keeps the connection, as [`open`] does.
///
/// # Errors
///
/// The same as those of [`open`].
pub fn open_for<T: DeserializeOwned>(
    socket: &Path,
    request: ControlRequest,
) -> Result<(T, BufReader<UnixStream>), String> {
    let failed = |e: io::Error| failed(socket, &e);
    let Door::Socket(stream) = Door::open(socket).map_err(failed)? else {
        return Err(format!(
            "{} is a port of this guest, and this command needs the NIC's control socket on the host",
            socket.display()
        ));
    };
    let mut reader = BufReader::new(stream);
    let told = read(socket, &mut reader, request)?;
    reader.get_ref().set_read_timeout(None).map_err(failed)?;
    Ok((told, reader))
}
