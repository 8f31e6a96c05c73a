// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A TAP device of the host: a bridge, Open vSwitch or VXLAN carries the frames on.
//!
//! The device is made if there is none of that name; then it is for whoever set up the host to take it up and to put it into a
//! bridge, and it goes with the NIC. The kernel takes and gives one frame with a system call.

use super::{tun, Batch, Uplink, MAX_FRAME};
use rustix::fs::{open, Mode, OFlags};
use rustix::io::{read, write, Errno};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// One end.
pub struct Tap(OwnedFd);

impl Tap {
    /// Opens the device of that name.
    ///
    /// # Errors
    ///
    /// There is no /dev/net/tun, or no right to use it, or another program has the device.
    pub fn open(name: &str) -> io::Result<Self> {
        let open = || {
            let mut bytes = [0; tun::NAME];
            let room = bytes.get_mut(..name.len()).ok_or(Errno::NAMETOOLONG)?;
            room.copy_from_slice(name.as_bytes());
            let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = open("/dev/net/tun", flags, Mode::empty())?;
            tun::attach(&file, bytes)?;
            Ok(Self(file))
        };
        open().map_err(|e: Errno| {
            let e = io::Error::from(e);
            io::Error::other(format!("no TAP device {name} by /dev/net/tun: {e}"))
        })
    }
}

impl Uplink for Tap {
    fn send(&self, frames: &[&[u8]]) -> usize {
        let has_left = |frame: &&[u8]| match write(&self.0, frame) {
            Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => false,
            // While the device is down everything is lost.
            _ => true,
        };
        frames.iter().take_while(|frame| has_left(frame)).count()
    }

    fn receive(&self, batch: &mut Batch) {
        batch.fill(|buffer| read(&self.0, buffer).ok());
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn mtu(&self) -> usize {
        MAX_FRAME
    }
}
