// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The connection to a NIC.

use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Time to wait for an answer. A NIC that is stopped never answers.
pub const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection to a NIC, by socket or by port.
pub enum NicConnection {
    /// The control socket of the NIC.
    Socket(UnixStream),
    /// A port of a guest: a character device, which the kernel opens for one process at a time.
    Port(File),
}

impl NicConnection {
    /// Opens the socket or port at `path`.
    ///
    /// # Errors
    ///
    /// There is nothing at `path`, or no process listens there.
    pub fn open(path: &Path) -> io::Result<Self> {
        if !fs::metadata(path)?.file_type().is_char_device() {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
            return Ok(Self::Socket(stream));
        }
        let mut port = File::options().read(true).write(true).open(path)?;
        // The port may still hold the answer to an earlier process that did not wait for it.
        while is_readable(&port, PollTimeout::ZERO)? && port.read(&mut [0; 4096])? != 0 {}
        Ok(Self::Port(port))
    }
}

fn poll_timeout() -> PollTimeout {
    PollTimeout::try_from(REPLY_TIMEOUT).unwrap_or(PollTimeout::MAX)
}

fn is_readable(port: &File, timeout: PollTimeout) -> io::Result<bool> {
    let mut fds = [PollFd::new(port.as_fd(), PollFlags::POLLIN)];
    Ok(poll(&mut fds, timeout)? != 0)
}

impl Read for NicConnection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Socket(stream) => stream.read(buffer),
            Self::Port(port) if is_readable(port, poll_timeout())? => port.read(buffer),
            Self::Port(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

impl Write for NicConnection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Socket(stream) => stream.write(bytes),
            Self::Port(port) => port.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
