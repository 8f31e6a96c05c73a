// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The sockets at which this process listens. They are bound without harm to other programs, and
//! removed at the end.
//!
//! Beside each socket lies a lock file, `PATH.lock`, which the owner of the socket holds with
//! flock(2). So a NIC can find out if a socket is in use without a connection, which the owner
//! would take for QEMU. Files of a NIC that was killed are replaced; a file that is no socket, or a
//! socket of another program, is left alone. A process removes only files that it has made, and
//! only if they have not been replaced since.

use rustix::fs::{flock, FlockOperation, Mode, OFlags};
use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A socket that this process has bound.
struct BoundSocket {
    path: PathBuf,
    identity: (u64, u64),
    lock_path: PathBuf,
    /// Lock file, which is locked until it is closed.
    lock: File,
}

/// All sockets of this process.
#[derive(Default)]
pub struct BoundSockets(Mutex<Vec<BoundSocket>>);

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// True if the file at a path is this file.
fn is_at(file: (u64, u64), path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|m| identity(&m) == file)
}

/// True if the file at a path is this socket. The inode number of a file that was removed is used
/// again at once, so the file must also be a socket.
fn is_bound_at(socket: (u64, u64), path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
    is_socket && is_at(socket, path)
}

impl BoundSockets {
    fn lock_list(&self) -> MutexGuard<'_, Vec<BoundSocket>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens at `path`, with access for this user's programs only.
    pub fn listen(&self, path: &Path) -> io::Result<UnixListener> {
        self.add(path, |path| UnixListener::bind(path))
    }

    /// Binds a socket for datagrams at `path`, with access for this user's programs only.
    pub fn datagram(&self, path: &Path) -> io::Result<UnixDatagram> {
        self.add(path, |path| UnixDatagram::bind(path))
    }

    fn add<T>(&self, path: &Path, make: impl Fn(&Path) -> io::Result<T>) -> io::Result<T> {
        let explain = |e| io::Error::other(format!("cannot listen at {}: {e}", path.display()));
        // The lock is held for the whole function, so that `remove_all` on another thread comes
        // before or after it.
        let mut sockets = self.lock_list();
        let mut lock_path = path.as_os_str().to_owned();
        lock_path.push(".lock");
        let lock_path = PathBuf::from(lock_path);
        let lock = create_lock(&lock_path).map_err(explain)?;
        let bound = bind(path, make);
        if bound.is_err() {
            let _ = fs::remove_file(&lock_path);
        }
        let (listener, identity) = bound.map_err(explain)?;
        sockets.push(BoundSocket {
            path: path.into(),
            identity,
            lock_path,
            lock,
        });
        Ok(listener)
    }

    /// Removes all sockets and lock files of this process.
    pub fn remove_all(&self) {
        for socket in self.lock_list().drain(..) {
            if is_bound_at(socket.identity, &socket.path) {
                let _ = fs::remove_file(&socket.path);
            }
            // The lock is still held, so a process that has opened the file meanwhile notices after
            // it gets the lock that the file was removed, and creates another.
            let lock = socket.lock.metadata();
            if lock.is_ok_and(|m| is_at(identity(&m), &socket.lock_path)) {
                let _ = fs::remove_file(&socket.lock_path);
            }
        }
    }
}

/// Creates and locks the lock file.
fn create_lock(path: &Path) -> io::Result<File> {
    loop {
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let fd = rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR)?;
        let file = File::from(fd);
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(io::Error::other("another verbena-nic serves it"));
            }
            other => other?,
        }
        let metadata = file.metadata()?;
        if !metadata.is_file() || metadata.len() != 0 {
            let text = format!(
                "{} is not an empty file, so it is no lock file of a NIC: remove it, or choose another path",
                path.display()
            );
            return Err(io::Error::other(text));
        }
        // Another NIC that was ending may have removed the file before it was locked.
        if is_at(identity(&metadata), path) {
            return Ok(file);
        }
    }
}

fn bind<T>(path: &Path, make: impl Fn(&Path) -> io::Result<T>) -> io::Result<(T, (u64, u64))> {
    match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(e),
        Ok(there) if !there.file_type().is_socket() => {
            return Err(io::Error::other(
                "there is a file that is no socket: remove it, or choose another path",
            ));
        }
        Ok(_) if is_served(path) => {
            return Err(io::Error::other("another program serves it"));
        }
        // A NIC that was killed has left the socket.
        Ok(_) => fs::remove_file(path)?,
    }
    let listener = make(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    Ok((listener, identity(&fs::symlink_metadata(path)?)))
}

/// True if a process has a socket bound to this path, according to the kernel's list.
fn is_served(path: &Path) -> bool {
    let Ok(list) = fs::read_to_string("/proc/net/unix") else {
        return false;
    };
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.into());
    let mut bound = list.lines().filter_map(bound_path);
    bound.any(|bound| Path::new(bound) == path || Path::new(bound) == absolute)
}

/// Returns the path in a line of that list, which comes after number, references, protocol, flags,
/// type, state and inode.
fn bound_path(line: &str) -> Option<&str> {
    let mut rest = line;
    for _ in 0..7 {
        rest = rest.trim_start();
        rest = rest.get(rest.find(' ')?..)?;
    }
    Some(rest.trim_start())
}

#[cfg(test)]
#[path = "../tests/daemon/dir.rs"]
pub(crate) mod dir;

#[cfg(test)]
mod tests {
    use super::dir::Dir;
    use super::*;
    use std::io::Write;

    #[test]
    fn a_socket_in_use_is_not_replaced_and_its_owner_gets_no_connection() {
        let dir = Dir::new("sockets-in-use");
        let path = dir.0.join("nic");
        let (first, second) = (BoundSockets::default(), BoundSockets::default());
        let listener = first.listen(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let error = second.listen(&path).unwrap_err().to_string();
        assert!(error.contains("another verbena-nic"), "{error}");
        second.remove_all();
        assert_eq!(dir.list(), ["nic", "nic.lock"]);
        let nobody = listener.accept().unwrap_err();
        assert_eq!(nobody.kind(), io::ErrorKind::WouldBlock);
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        first.remove_all();
        assert!(dir.list().is_empty());
        second.listen(&path).unwrap();
        second.remove_all();
    }

    #[test]
    fn files_and_sockets_of_other_programs_are_not_replaced() {
        let dir = Dir::new("sockets-not-ours");
        let notes = dir.0.join("notes.txt");
        File::create(&notes).unwrap().write_all(b"mine").unwrap();
        let sockets = BoundSockets::default();
        let error = sockets.listen(&notes).unwrap_err().to_string();
        assert!(error.contains("no socket"), "{error}");
        assert_eq!(fs::read(&notes).unwrap(), b"mine");

        let other = dir.0.join("other");
        let _theirs = UnixListener::bind(&other).unwrap();
        let error = sockets.listen(&other).unwrap_err().to_string();
        assert!(error.contains("another program"), "{error}");

        fs::write(dir.0.join("nic.lock"), b"mine too").unwrap();
        assert!(sockets.listen(&dir.0.join("nic")).is_err());
        sockets.remove_all();
        assert_eq!(dir.list(), ["nic.lock", "notes.txt", "other"]);
    }

    #[test]
    fn the_socket_of_a_killed_nic_is_replaced_and_a_file_in_place_of_our_socket_is_kept() {
        let dir = Dir::new("sockets-left");
        let path = dir.0.join("nic");
        drop(UnixListener::bind(&path).unwrap());
        fs::write(dir.0.join("nic.lock"), b"").unwrap();
        let sockets = BoundSockets::default();
        sockets.listen(&path).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, b"somebody else's").unwrap();
        sockets.remove_all();
        assert_eq!(dir.list(), ["nic"]);
    }
}
