// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The control socket's protocol: one JSON object a line each way.

use serde_json::{json, Value};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// A NIC that is stopped gives no answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Asks the NIC at `socket`.
pub fn ask(socket: &Path, command: &str) -> Result<Value, String> {
    let explain = |e: io::Error| format!("the NIC at {}: {e}", socket.display());
    let line = exchange(socket, command).map_err(explain)?;
    let answer: Value = serde_json::from_str(&line).map_err(|e| explain(e.into()))?;
    match answer["ok"] {
        Value::Bool(true) => Ok(answer),
        _ => Err(answer["error"]
            .as_str()
            .unwrap_or("the NIC gave no reason")
            .into()),
    }
}

fn exchange(socket: &Path, command: &str) -> io::Result<String> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    writeln!(&stream, "{}", json!({ "command": command }))?;
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line)?;
    Ok(line)
}
