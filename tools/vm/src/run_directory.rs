// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The directories of a run on the host: one for the logs, which stays, and one for the sockets.
//!
//! A run holds a lock on the file `running` of both while it lives. Other processes, also in other
//! PID namespaces, see by the lock whether the run still lives.

use nix::fcntl::{Flock, FlockArg};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Runs whose logs are kept.
const KEPT_RUNS: usize = 30;
/// The sockets are in /tmp, because the path of a UNIX socket is short.
const SOCKETS: &str = "/tmp";
const PREFIX: &str = "verbena.";
const LOCK: &str = "running";

/// The directories of a run that lives. Dropping it ends the run's claim to them, and removes the
/// sockets.
#[derive(Debug)]
pub struct RunDirectories {
    /// Logs, recordings and captures.
    pub logs: PathBuf,
    /// Sockets.
    pub sockets: PathBuf,
    _locks: [Flock<File>; 2],
    /// Of the directory of the sockets itself. systemd-tmpfiles removes old files of /tmp, except
    /// below a directory that is locked.
    _against_aging: Flock<File>,
}

impl RunDirectories {
    /// Makes the directories of a run: a new one in `runs` for the logs, or `chosen`. Removes the
    /// oldest logs in `runs`, and what runs that were killed have left. The locks name `cache`, which
    /// `make distclean` then keeps.
    ///
    /// # Errors
    ///
    /// A directory cannot be made, or another run that lives has chosen the same.
    pub fn make(runs: &Path, chosen: Option<&Path>, cache: &Path) -> Result<Self, String> {
        remove_dead(Path::new(SOCKETS), |name| name.starts_with(PREFIX), 0);
        let logs = match chosen {
            Some(logs) => {
                std::fs::create_dir_all(logs)
                    .map_err(|e| format!("--run-dir {}: {e}", logs.display()))?;
                std::fs::canonicalize(logs)
                    .map_err(|e| format!("--run-dir {}: {e}", logs.display()))?
            }
            None => new_logs(runs)?,
        };
        let lock_of_logs = lock(&logs)?
            .ok_or_else(|| format!("--run-dir {}: another run uses it", logs.display()))?;
        remove_outputs(&logs);
        let sockets = new_directory(Path::new(SOCKETS), PREFIX)?;
        let lock_of_sockets =
            lock(&sockets)?.ok_or_else(|| format!("another run uses {}", sockets.display()))?;
        let mut locks = [lock_of_logs, lock_of_sockets];
        for lock in &mut locks {
            let written = lock.write_all(format!("{}\n", cache.display()).as_bytes());
            written.map_err(|e| format!("the lock of this run cannot be written: {e}"))?;
        }
        Ok(Self {
            _against_aging: lock_against_aging(&sockets)?,
            logs,
            sockets,
            _locks: locks,
        })
    }
}

impl Drop for RunDirectories {
    fn drop(&mut self) {
        // What cannot be removed now, a later run removes.
        let _ = std::fs::remove_dir_all(&self.sockets);
        let _ = std::fs::remove_file(self.logs.join(LOCK));
    }
}

fn lock_against_aging(directory: &Path) -> Result<Flock<File>, String> {
    let failed = |e: io::Error| format!("{}: {e}", directory.display());
    let opened = File::open(directory).map_err(failed)?;
    Flock::lock(opened, FlockArg::LockExclusiveNonblock).map_err(|(_, e)| failed(e.into()))
}

/// Returns the directory for logs: that of the installation if this user may write there, else one
/// in the user's cache.
pub fn writable_runs(installed: &Path) -> Result<PathBuf, String> {
    let cache = user_cache().map(|cache| cache.join("runs"));
    for runs in [Some(installed.to_owned()), cache].into_iter().flatten() {
        let is_writable = std::fs::create_dir_all(&runs).is_ok()
            && nix::unistd::access(&runs, nix::unistd::AccessFlags::W_OK).is_ok();
        if is_writable {
            return Ok(runs);
        }
    }
    Err(format!(
        "there is no place for the logs of this run: you may not write to {}, and have no cache directory: set HOME, or name one by --run-dir DIR",
        installed.display()
    ))
}

/// Returns the cache of this user, which may not exist.
pub fn user_cache() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    variable("VERBENA_CACHE")
        .map(PathBuf::from)
        .or_else(|| variable("XDG_CACHE_HOME").map(|cache| Path::new(&cache).join("verbena")))
        .or_else(|| variable("HOME").map(|home| Path::new(&home).join(".cache/verbena")))
}

/// Makes a new directory for logs in `runs`, and removes the oldest there.
///
/// # Errors
///
/// The directory cannot be made.
pub fn new_logs(runs: &Path) -> Result<PathBuf, String> {
    remove_dead(runs, |name| name.starts_with("run."), KEPT_RUNS - 1);
    new_directory(runs, "run.")
}

/// Makes a new directory that only this user may enter.
fn new_directory(parent: &Path, prefix: &str) -> Result<PathBuf, String> {
    let template = parent.join(format!("{prefix}XXXXXX"));
    std::fs::create_dir_all(parent)
        .and_then(|()| nix::unistd::mkdtemp(&template).map_err(io::Error::from))
        .map_err(|e| format!("cannot make a directory in {}: {e}", parent.display()))
}

/// Returns the directories of sockets of all runs, also of those that have ended.
pub fn socket_directories() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(SOCKETS).into_iter().flatten().flatten();
    let ours = entries.filter(|entry| {
        entry
            .file_name()
            .as_encoded_bytes()
            .starts_with(PREFIX.as_bytes())
    });
    ours.map(|entry| entry.path()).collect()
}

/// True if a run that lives has the lock of this directory.
pub fn is_locked(directory: &Path) -> bool {
    // A shared lock, so that two processes that ask do not see each other.
    is_held(&directory.join(LOCK), FlockArg::LockSharedNonblock)
}

/// True if a process has an exclusive or a shared lock of this file.
pub fn is_flocked(path: &Path) -> bool {
    is_held(path, FlockArg::LockExclusiveNonblock)
}

fn is_held(path: &Path, asked: FlockArg) -> bool {
    let Ok(file) = File::open(path) else {
        return false;
    };
    let answer = Flock::lock(file, asked);
    matches!(answer, Err((_, nix::errno::Errno::EAGAIN)))
}

/// Locks a directory for this run; `None` if another run that lives has the lock.
pub fn lock(directory: &Path) -> Result<Option<Flock<File>>, String> {
    let path = directory.join(LOCK);
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .map_err(|e| format!("{}: {e}", path.display()))?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, nix::errno::Errno::EAGAIN)) => Ok(None),
        Err((_, e)) => Err(format!("{}: {e}", path.display())),
    }
}

/// Removes the directories in `parent` whose names `is_ours` accepts, except the `kept` newest, and
/// those of runs that live. A directory without a lock file is that of a run that has ended, or of
/// another program: it is removed only if it is not one of the newest.
fn remove_dead(parent: &Path, is_ours: impl Fn(&str) -> bool, kept: usize) {
    let Ok(entries) = std::fs::read_dir(parent) else {
        return;
    };
    let mut found: Vec<(SystemTime, PathBuf)> = entries
        .flatten()
        .filter(|entry| is_ours(&entry.file_name().to_string_lossy()))
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    found.sort();
    let count = found.len().saturating_sub(kept);
    for (_, directory) in found.into_iter().take(count) {
        let has_ended = match directory.join(LOCK).exists() {
            true => matches!(lock(&directory), Ok(Some(_))),
            false => kept > 0,
        };
        if has_ended {
            let _ = std::fs::remove_dir_all(&directory);
        }
    }
}

/// Removes what an earlier run has left in a directory that was chosen again.
fn remove_outputs(logs: &Path) {
    const FILES: [&str; 14] = [
        "stdout",
        "stderr",
        "status",
        "boot.failed",
        "kernel.log",
        "nic.log",
        "nic.failed",
        "qemu.log",
        "rdma.pcapng",
        "death.record",
        "flight.record",
        "flight.pcapng",
        "flight.html",
        "initrd.cpio",
    ];
    for file in FILES {
        let _ = std::fs::remove_file(logs.join(file));
    }
    for directory in ["vm1", "vm2", "vm3", "vm4", "nic", "together"] {
        let _ = std::fs::remove_dir_all(logs.join(directory));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn a_chosen_directory_belongs_to_one_run_and_loses_old_files() {
        let scratch = Scratch::new("chosen");
        let chosen = scratch.0.join("chosen");
        std::fs::create_dir(&chosen).unwrap();
        std::fs::write(chosen.join("status"), "1").unwrap();
        std::fs::write(chosen.join("mine"), "1").unwrap();
        let run = RunDirectories::make(&scratch.0, Some(&chosen), Path::new("/cache")).unwrap();
        assert!(run.sockets.is_dir());
        let named = [&run.sockets, &chosen].map(|d| std::fs::read_to_string(d.join(LOCK)).unwrap());
        assert_eq!(named, ["/cache\n"; 2]);
        assert!(!chosen.join("status").exists() && chosen.join("mine").exists());
        let error =
            RunDirectories::make(&scratch.0, Some(&chosen), Path::new("/cache")).unwrap_err();
        assert!(error.contains("another run"), "{error}");
        let sockets = run.sockets.clone();
        drop(run);
        assert!(!sockets.exists() && !chosen.join(LOCK).exists());
        drop(RunDirectories::make(&scratch.0, Some(&chosen), Path::new("/cache")).unwrap());
    }

    #[test]
    fn the_newest_runs_and_those_that_live_are_kept() {
        let scratch = Scratch::new("newest");
        let names = ["run.1", "run.2", "run.3", "other"];
        for name in names {
            std::fs::create_dir(scratch.0.join(name)).unwrap();
        }
        let living = lock(&scratch.0.join("run.1")).unwrap().unwrap();
        for (age_s, name) in (1..).zip(names.into_iter().rev()) {
            let time = SystemTime::now() - std::time::Duration::from_secs(age_s);
            File::open(scratch.0.join(name))
                .unwrap()
                .set_modified(time)
                .unwrap();
        }
        let left = || names.map(|name| scratch.0.join(name).exists());
        remove_dead(&scratch.0, |name| name.starts_with("run."), 3);
        assert_eq!(left(), [true; 4]);
        remove_dead(&scratch.0, |name| name.starts_with("run."), 1);
        assert_eq!(left(), [true, false, true, true]);
        drop(living);
        // Without a lock file, a directory may be that of another program.
        remove_dead(&scratch.0, |name| name == "other", 0);
        assert!(scratch.0.join("other").exists());
    }
}
