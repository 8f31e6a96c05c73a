// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Asks a NIC over its control socket, or inside a guest over a port whose other end QEMU has connected to that socket.

mod door;

use door::{Door, PATIENCE};
use serde::de::DeserializeOwned;
use std::io::{self, BufReader, Read, Write};
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
    let door = Door::open(socket).map_err(|e| failed(socket, &e))?;
    read(socket, &mut BufReader::new(door), request)
}

/// What a NIC failed with.
fn failed(socket: &Path, e: &io::Error) -> String {
    let why = match e.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!(" gives no answer for {PATIENCE} s: it is stopped, or hangs")
        }
        _ => format!(": {e}"),
    };
    format!("the NIC at {}{why}", socket.display())
}

/// The answer to a request.
fn read<T: DeserializeOwned>(
    socket: &Path,
    way: &mut BufReader<impl Read + Write>,
    request: Request,
) -> Result<T, String> {
    let line = request.ask(way).map_err(|e| failed(socket, &e))?;
    if !line.ends_with('\n') {
        return Err(format!("the NIC at {} has gone", socket.display()));
    }
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
    let failed = |e: io::Error| failed(socket, &e);
    let Door::Socket(stream) = Door::open(socket).map_err(failed)? else {
        return Err(format!(
            "{} is a port of this guest, which stays open: this needs the NIC's socket on the host",
            socket.display()
        ));
    };
    let mut reader = BufReader::new(stream);
    let told = read(socket, &mut reader, request)?;
    reader.get_ref().set_read_timeout(None).map_err(failed)?;
    Ok((told, reader))
}
