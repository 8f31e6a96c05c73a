// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Queries a NIC over its control socket, or inside a guest over a port that QEMU has connected to
//! that socket.

mod connection;

use connection::{NicConnection, REPLY_TIMEOUT};
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
pub fn query<Q: QueryReply>(socket: &Path) -> Result<Q, String> {
    request(socket, Q::REQUEST)
}

/// Sends a request to the NIC at `socket` and returns the answer.
///
/// # Errors
///
/// The same as those of [`query`].
pub fn request<T: DeserializeOwned>(socket: &Path, request: ControlRequest) -> Result<T, String> {
    let connection = NicConnection::open(socket).map_err(|e| connection_error(socket, &e))?;
    exchange(socket, &mut BufReader::new(connection), request)
}

/// Returns the text for a failed connection to a NIC.
fn connection_error(socket: &Path, e: &io::Error) -> String {
    let why = match e.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!(
                " has not answered for {} s: it is stopped or hangs",
                REPLY_TIMEOUT.as_secs()
            )
        }
        _ => format!(": {e}"),
    };
    format!("the NIC at {}{why}", socket.display())
}

/// Sends a request and returns its answer.
fn exchange<T: DeserializeOwned>(
    socket: &Path,
    connection: &mut BufReader<impl Read + Write>,
    request: ControlRequest,
) -> Result<T, String> {
    let line = request
        .exchange(connection)
        .map_err(|e| connection_error(socket, &e))?;
    if !line.ends_with('\n') {
        return Err(format!(
            "the NIC at {} closed the connection before it answered: its log may name the reason",
            socket.display()
        ));
    }
    ReplyEnvelope::from_line(&line)
}

/// Sends the request of `Q` and keeps the connection for the stream that follows the answer. Reads
/// of the stream have no timeout.
///
/// # Errors
///
/// The same as those of [`query`], and `socket` is a port of a guest. Such a port stays open when
/// its user is gone, so it cannot carry a stream.
pub fn query_stream<Q: QueryReply>(socket: &Path) -> Result<(Q, BufReader<UnixStream>), String> {
    request_stream(socket, Q::REQUEST)
}

/// Sends a request and keeps the connection, as [`query_stream`] does.
///
/// # Errors
///
/// The same as those of [`query_stream`].
pub fn request_stream<T: DeserializeOwned>(
    socket: &Path,
    request: ControlRequest,
) -> Result<(T, BufReader<UnixStream>), String> {
    let failed = |e: io::Error| connection_error(socket, &e);
    let NicConnection::Socket(stream) = NicConnection::open(socket).map_err(failed)? else {
        return Err(format!(
            "{} is a port of this guest, and this command needs the NIC's control socket on the host",
            socket.display()
        ));
    };
    let mut reader = BufReader::new(stream);
    let reply = exchange(socket, &mut reader, request)?;
    reader.get_ref().set_read_timeout(None).map_err(failed)?;
    Ok((reply, reader))
}
