// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The root directory in which QEMU and the NIC run: the installation's Debian root with what they
//! need of the host, each at a place that no path of the host can hide.

use crate::installation::Installation;
use crate::options::Run;
use crate::session::Inside;
use nix::mount::{mount, MsFlags};
use nix::sched::{unshare, CloneFlags};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The directory of everything that is not of the Debian root.
const OURS: &str = "/verbena";
/// Directories of the Debian root that the new root gets from elsewhere, or does not need.
const NOT_TAKEN: [&str; 11] = [
    "boot",
    "dev",
    "home",
    "kernel-debs",
    "media",
    "mnt",
    "proc",
    "root",
    "run",
    "sys",
    "tmp",
];

/// The files of a run, by their paths in the new root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// Directory of the logs.
    pub logs: PathBuf,
    /// Directory of the sockets.
    pub sockets: PathBuf,
    /// The guests' kernel.
    pub kernel: PathBuf,
    /// The guests' disk image.
    pub disk: PathBuf,
    /// The archive that all guests unpack.
    pub initrd: PathBuf,
    /// The program `verbena-nic`.
    pub nic: PathBuf,
    /// The program `verbenactl`.
    pub verbenactl: PathBuf,
    /// The shared directories, in the order of the options.
    pub shares: Vec<PathBuf>,
    /// Directory of the logs by its path on the host, for messages.
    pub logs_on_host: PathBuf,
}

impl Places {
    /// Returns the places in the root that [`enter`] makes for `shares` shared directories.
    pub fn new(logs_on_host: PathBuf, shares: usize) -> Self {
        Self::below(Path::new(OURS), logs_on_host, shares)
    }

    fn below(directory: &Path, logs_on_host: PathBuf, shares: usize) -> Self {
        let place = |name: &str| directory.join(name);
        Self {
            logs: place("logs"),
            sockets: place("sockets"),
            kernel: place("kernel"),
            disk: place("disk"),
            initrd: place("initrd"),
            nic: place("verbena-nic"),
            verbenactl: place("verbenactl"),
            shares: (0..shares).map(|n| place(&format!("share{n}"))).collect(),
            logs_on_host,
        }
    }

    /// Returns each file of the host, except the sockets, with its place.
    fn of_host<'a>(
        &'a self,
        installation: &'a Installation,
        run: &'a Run,
        inside: &'a Inside,
    ) -> Vec<(&'a PathBuf, &'a PathBuf)> {
        let mut files = vec![
            (&inside.logs, &self.logs),
            (&installation.kernel, &self.kernel),
            (&installation.disk, &self.disk),
            (&installation.initrd, &self.initrd),
            (&installation.nic, &self.nic),
            (&installation.verbenactl, &self.verbenactl),
        ];
        files.extend(run.shares.iter().zip(&self.shares));
        files
    }

    /// Returns the path on the host of a file among the logs.
    pub fn on_host(&self, file: &Path) -> PathBuf {
        match file.strip_prefix(&self.logs) {
            Ok(rest) if rest.as_os_str().is_empty() => self.logs_on_host.clone(),
            Ok(rest) => self.logs_on_host.join(rest),
            Err(_) => file.to_owned(),
        }
    }
}

/// Makes the new root in a mount namespace of its own, and changes into it. Must be called before
/// the process has a second thread.
///
/// # Errors
///
/// A directory or file cannot be mounted.
pub fn enter(installation: &Installation, run: &Run, inside: &Inside) -> Result<Places, String> {
    unshare(CloneFlags::CLONE_NEWNS).map_err(|e| format!("cannot make a mount namespace: {e}"))?;
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
        .map_err(|e| format!("cannot make the mounts of this run private: {e}"))?;
    let root = inside.sockets.join("root");
    std::fs::create_dir_all(&root).map_err(|e| format!("{}: {e}", root.display()))?;
    mount(
        Some("tmpfs"),
        &root,
        Some("tmpfs"),
        MsFlags::empty(),
        Some("mode=755"),
    )
    .map_err(|e| format!("cannot mount a tmpfs at {}: {e}", root.display()))?;
    take_debian(&installation.qemu_root, &root)?;
    // QEMU keeps what a guest writes to its disk in /var/tmp.
    for host in ["/dev", "/sys", "/tmp", "/var/tmp"].map(Path::new) {
        bind(host, &below(&root, host), MsFlags::MS_REC)?;
    }
    let proc = root.join("proc");
    std::fs::create_dir_all(&proc).map_err(|e| format!("{}: {e}", proc.display()))?;
    mount(Some("proc"), &proc, Some("proc"), MsFlags::empty(), none).map_err(|e| {
        format!("cannot mount /proc for the guests' processes: {e}. In a container whose /proc is masked, start it with --privileged, or with --security-opt unmask=ALL")
    })?;
    let places = Places::new(inside.logs.clone(), run.shares.len());
    for (from, to) in places.of_host(installation, run, inside) {
        bind(from, &below(&root, to), MsFlags::MS_REC)?;
    }
    // Without the new root, which is mounted in this directory.
    bind(
        &inside.sockets,
        &below(&root, &places.sockets),
        MsFlags::empty(),
    )?;
    std::os::unix::fs::chroot(&root)
        .and_then(|()| std::env::set_current_dir("/"))
        .map_err(|e| {
            format!(
                "cannot change the root directory to {}: {e}",
                root.display()
            )
        })?;
    Ok(places)
}

/// Makes the places for QEMU and a NIC that run in the root of this process: symbolic links, because
/// QEMU's arguments cannot have every path of a host.
///
/// # Errors
///
/// A link cannot be made.
pub fn link(installation: &Installation, run: &Run, inside: &Inside) -> Result<Places, String> {
    let directory = inside.sockets.join("places");
    let mut places = Places::below(&directory, inside.logs.clone(), run.shares.len());
    places.sockets.clone_from(&inside.sockets);
    let failed = |e: std::io::Error| format!("{}: {e}", directory.display());
    std::fs::create_dir(&directory).map_err(failed)?;
    for (from, to) in places.of_host(installation, run, inside) {
        symlink(from, to).map_err(failed)?;
    }
    Ok(places)
}

/// Returns the path below `root` of an absolute path.
fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Binds the directories of a Debian root, and repeats its symbolic links.
fn take_debian(debian: &Path, root: &Path) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("{}: {e}", debian.display());
    for entry in std::fs::read_dir(debian).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let (name, kind) = (entry.file_name(), entry.file_type().map_err(failed)?);
        let is_taken = !NOT_TAKEN.iter().any(|own| name == *own);
        if kind.is_symlink() {
            let target = std::fs::read_link(entry.path()).map_err(failed)?;
            symlink(target, root.join(&name)).map_err(failed)?;
        } else if kind.is_dir() && is_taken {
            bind(&entry.path(), &root.join(&name), MsFlags::MS_REC)?;
        }
    }
    Ok(())
}

/// Binds a directory or a file to a place that is made if it is missing. `MS_REC` binds the mounts
/// below it too, which a user namespace demands for mounts of the host.
fn bind(from: &Path, to: &Path, depth: MsFlags) -> Result<(), String> {
    let failed =
        |e: std::io::Error| format!("cannot mount {} at {}: {e}", from.display(), to.display());
    if !to.exists() {
        if from.is_dir() {
            std::fs::create_dir_all(to).map_err(failed)?;
        } else {
            let parent = to.parent().unwrap_or(to);
            std::fs::create_dir_all(parent)
                .and_then(|()| std::fs::File::create(to))
                .map_err(failed)?;
        }
    }
    let none: Option<&str> = None;
    mount(Some(from), to, none, MsFlags::MS_BIND | depth, none).map_err(|e| failed(e.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::RunOptions;
    use crate::scratch::Scratch;

    #[test]
    fn logs_have_a_path_on_the_host() {
        let places = Places::new(PathBuf::from("/home/a/run.1"), 2);
        let on_host = |path: &str| places.on_host(Path::new(path));
        assert_eq!(
            on_host("/verbena/logs/vm1/kernel.log"),
            Path::new("/home/a/run.1/vm1/kernel.log")
        );
        assert_eq!(on_host("/verbena/logs"), Path::new("/home/a/run.1"));
        assert_eq!(on_host("/etc"), Path::new("/etc"));
        assert_eq!(places.shares[1], Path::new("/verbena/share1"));
    }

    #[test]
    fn in_place_each_path_of_the_host_has_a_link_without_commas() {
        let scratch = Scratch::new("places");
        let share = scratch.0.join("a,b");
        std::fs::create_dir(&share).unwrap();
        let options = RunOptions {
            shares: vec![share.clone()],
            ..RunOptions::default()
        };
        let run = options.check().unwrap();
        let file = |name: &str| scratch.0.join(name);
        let installation = Installation {
            qemu_root: PathBuf::from("/"),
            kernel: file("k"),
            disk: file("d"),
            initrd: file("i"),
            nic: file("n"),
            verbenactl: file("v"),
            runs: file("r"),
        };
        let inside = Inside {
            logs: share.clone(),
            sockets: scratch.0.clone(),
        };
        let places = link(&installation, &run, &inside).unwrap();
        let target = |place: &Path| std::fs::read_link(place).unwrap();
        assert_eq!(target(&places.shares[0]), share);
        assert_eq!(target(&places.disk), installation.disk);
        assert_eq!(target(&places.nic), installation.nic);
        assert_eq!(places.sockets, inside.sockets);
        assert_eq!(
            places.on_host(&places.logs.join("vm1/kernel.log")),
            share.join("vm1/kernel.log")
        );
        assert!(link(&installation, &run, &inside).is_err());
    }

    #[test]
    fn absolute_paths_stay_below_the_root() {
        assert_eq!(
            below(Path::new("/r"), Path::new("/a/b")),
            Path::new("/r/a/b")
        );
    }
}
