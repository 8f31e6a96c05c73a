// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A TAP device of the host: a bridge, Open vSwitch or VXLAN forwards the frames.
//!
//! The device is created if there is none of that name. The host's administrator then has to set it
//! up and to put it into a bridge, and it is removed when the NIC ends. The kernel accepts and
//! returns one frame a system call. A deleted device is like a cable that is unplugged, until there
//! is a device of that name again.

use super::{tun, Batch, Uplink, MAX_FRAME};
use nix::net::if_::if_nametoindex;
use rustix::fs::{open, Mode, OFlags};
use rustix::io::{read, write, Errno};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// An uplink over a TAP device.
pub struct TapDevice {
    file: OwnedFd,
    name: String,
    /// True if the device was deleted: the file has nothing to read, and poll reports an error each
    /// time.
    is_deleted: AtomicBool,
}

impl TapDevice {
    /// Opens the device of that name.
    ///
    /// # Errors
    ///
    /// There is no /dev/net/tun, the process has no right to use it, or another program has the
    /// device.
    pub fn open(name: &str) -> io::Result<Self> {
        let attached = Self::open_unattached(name).and_then(|tap| tap.attach().map(|()| tap));
        attached.map_err(|e| {
            let e = io::Error::from(e);
            io::Error::other(format!(
                "cannot attach to TAP device {name} by /dev/net/tun: {e}"
            ))
        })
    }

    /// Returns a file that is not attached to a device yet.
    fn open_unattached(name: &str) -> Result<Self, Errno> {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(Self {
            file: open("/dev/net/tun", flags, Mode::empty())?,
            name: name.into(),
            is_deleted: AtomicBool::new(false),
        })
    }

    fn attach(&self) -> Result<(), Errno> {
        let mut bytes = [0; tun::IFNAMSIZ];
        let room = bytes.get_mut(..self.name.len());
        room.ok_or(Errno::NAMETOOLONG)?
            .copy_from_slice(self.name.as_bytes());
        tun::attach(&self.file, bytes)
    }

    /// Notes whether a result means that the device was deleted, and returns the result.
    fn note_deletion<T>(&self, result: Result<T, Errno>) -> Result<T, Errno> {
        if matches!(result, Err(Errno::BADFD)) && !self.is_deleted.swap(true, Ordering::Relaxed) {
            log::warn!("uplink: TAP device {} was deleted", self.name);
        }
        result
    }
}

impl Uplink for TapDevice {
    fn send(&self, frames: &[&[u8]]) -> usize {
        let has_left = |frame: &&[u8]| match self.note_deletion(write(&self.file, frame)) {
            Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => false,
            // While the device is down all frames are lost.
            _ => true,
        };
        frames.iter().take_while(|frame| has_left(frame)).count()
    }

    fn receive(&self, batch: &mut Batch) {
        batch.fill(|buffer| self.note_deletion(read(&self.file, buffer)).ok());
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        let is_there = !self.is_deleted.load(Ordering::Relaxed);
        is_there.then(|| self.file.as_fd())
    }

    fn mtu(&self) -> usize {
        MAX_FRAME
    }

    fn maintain(&self) {
        // The device was deleted on purpose, so the NIC does not create it again.
        if !self.is_deleted.load(Ordering::Relaxed) || if_nametoindex(self.name.as_str()).is_err() {
            return;
        }
        match self.attach() {
            // EXIST means that the file is attached: an earlier call had failed just before that.
            Ok(()) | Err(Errno::EXIST) => {
                log::info!("uplink: TAP device {} exists again", self.name);
                self.is_deleted.store(false, Ordering::Relaxed);
            }
            Err(e) => log::debug!("uplink: TAP device {}: {e}", self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deleted_device_is_not_polled() {
        // A file that is not attached behaves like the file of a deleted device.
        let Ok(tap) = TapDevice::open_unattached("verbena-none") else {
            eprintln!("no /dev/net/tun here");
            return;
        };
        assert!(tap.descriptor().is_some());
        let mut batch = Batch::default();
        tap.receive(&mut batch);
        assert_eq!(batch.frames().count(), 0);
        assert!(tap.descriptor().is_none());
        // Frames are lost until there is a device of that name.
        tap.maintain();
        assert!(tap.descriptor().is_none());
        assert_eq!(tap.send(&[&[0; 60], &[0; 60]]), 2);
    }
}
