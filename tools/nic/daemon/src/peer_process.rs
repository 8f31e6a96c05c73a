// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks that guest RAM is really shared with QEMU.
//!
//! With `share=off` a file-backed memory backend still has a file, which QEMU sends, but maps
//! privately: the guest's writes never reach the file, and the NIC would wait for ever for a guest
//! that it cannot see. QEMU's memory map shows the kind of mapping.

use nix::sys::socket::{getsockopt, sockopt, UnixCredentials};
use rustix::fd::AsFd;
use std::os::unix::net::UnixStream;

fn credentials(stream: &UnixStream) -> Option<UnixCredentials> {
    getsockopt(stream, sockopt::PeerCredentials).ok()
}

/// Returns the process at the other end of a socket. A process in another PID namespace has the
/// number 0 here, for which this returns `None`.
pub fn peer(stream: &UnixStream) -> Option<i32> {
    credentials(stream).and_then(|c| process(c.pid()))
}

fn process(number: i32) -> Option<i32> {
    (number > 0).then_some(number)
}

/// True if the other end of a socket is root or the user who runs this process.
pub fn is_trusted(stream: &UnixStream) -> bool {
    let own = rustix::process::geteuid().as_raw();
    credentials(stream).is_some_and(|c| c.uid() == 0 || c.uid() == own)
}

/// True if `process` has a private mapping of the file and no shared one; false if that cannot be
/// found out.
pub fn is_private(process: i32, file: impl AsFd) -> bool {
    let Ok(stat) = rustix::fs::fstat(file) else {
        return false;
    };
    let Ok(maps) = std::fs::read_to_string(format!("/proc/{process}/maps")) else {
        return false;
    };
    let (major, minor) = (
        rustix::fs::major(stat.st_dev),
        rustix::fs::minor(stat.st_dev),
    );
    let device = format!("{major:02x}:{minor:02x}");
    let inode = stat.st_ino.to_string();
    let mut private = false;
    for line in maps.lines() {
        // Address range, permissions, offset, device, inode, path.
        let mut fields = line.split_ascii_whitespace().skip(1);
        let Some(permissions) = fields.next() else {
            continue;
        };
        if fields.nth(1) != Some(&device) || fields.next() != Some(&inode) {
            continue;
        }
        if permissions.ends_with('s') {
            return false;
        }
        private = true;
    }
    private
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest_ram::GuestRam;
    use rustix::fs::{fcntl_add_seals, ftruncate, memfd_create, MemfdFlags, SealFlags};

    #[test]
    fn a_shared_mapping_is_not_private() {
        let fd = memfd_create("ram", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, 4096).unwrap();
        fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        let me = std::process::id() as i32;
        assert!(!is_private(me, &fd));
        let mut ram = GuestRam::new();
        ram.map(0, 4096, &fd, 0, true).unwrap();
        assert!(!is_private(me, &fd));
    }

    #[test]
    fn a_private_mapping_is_found() {
        // The program's own file is mapped privately into this process.
        let me = std::process::id() as i32;
        let program = std::fs::File::open("/proc/self/exe").unwrap();
        let listed = std::fs::read_to_string("/proc/self/maps").unwrap();
        let inode = rustix::fs::fstat(&program).unwrap().st_ino.to_string();
        // Some file systems show other inode numbers in the map than stat returns: `is_private`
        // cannot work there.
        if listed.split_ascii_whitespace().any(|field| field == inode) {
            assert!(is_private(me, &program));
        }
    }

    #[test]
    fn the_peer_of_a_pair_is_this_process() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        assert_eq!(peer(&ours), Some(std::process::id() as i32));
        assert!(is_trusted(&ours));
        // The number of a process in another PID namespace is 0.
        assert_eq!((process(0), process(7)), (None, Some(7)));
    }
}
