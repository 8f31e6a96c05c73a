// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Asks a NIC over its control socket, or inside a guest over a port whose other end QEMU has connected to that socket.

mod door;

use door::Door;
use serde::de::DeserializeOwned;
use std::io::BufReader;
use std::os::unix::net::UnixStream;
use std::path::Path;
use verbena_control::{Question, Reply, Request};

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
    let failed = |e| format!("the NIC at {}: {e}", socket.display());
    let door = Door::open(socket).map_err(failed)?;
    let line = request.ask(&mut BufReader::new(door)).map_err(failed)?;
    Reply::read(&line)
}

/// Asks for what comes in a stream behind the answer, and waits for it as long as it takes.
///
/// # Errors
///
/// As of [`ask`]; and a port of a guest is no way for a stream, for it stays open when nobody listens any more.
pub fn open<Q: Question>(socket: &Path) -> Result<(Q, BufReader<UnixStream>), String> {
    open_for(socket, Q::REQUEST)
}

/// The same with a request that says more.
///
/// # Errors
///
/// As of [`open`].
pub fn open_for<T: DeserializeOwned>(
    socket: &Path,
    request: Request,
) -> Result<(T, BufReader<UnixStream>), String> {
    let failed = |e| format!("the NIC at {}: {e}", socket.display());
    let Door::Socket(stream) = Door::open(socket).map_err(failed)? else {
        return Err(format!(
            "{} is a port of this guest, which stays open: this needs the NIC's socket on the host",
            socket.display()
        ));
    };
    let mut reader = BufReader::new(stream);
    let line = request.ask(&mut reader).map_err(failed)?;
    let told = Reply::read(&line)?;
    reader.get_ref().set_read_timeout(None).map_err(failed)?;
    Ok((told, reader))
}
