// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What Verbena keeps on this machine: logs of runs, roots, guest images, kernel trees, downloads.
//!
//! An entry is in use while a run or a build that may need it lives, or while the installation names
//! it. Only entries whose names Verbena gives are looked at, because the cache may be a directory
//! with other files.

use crate::installation::Installation;
use crate::run_directory::{is_flocked, is_locked, socket_directories};
use serde::Serialize;
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Logs and recordings of a run.
    Runs,
    /// A Debian root: of the toolchain and QEMU, or of a test.
    Roots,
    /// A disk image of guests, with its kernel.
    Images,
    /// A kernel tree.
    Builds,
    /// Packages, crates, sources.
    Downloads,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 5] = [
        Self::Runs,
        Self::Roots,
        Self::Images,
        Self::Builds,
        Self::Downloads,
    ];

    /// Returns what makes an entry again that was removed.
    pub fn made_by(self) -> &'static str {
        match self {
            Self::Runs => "nothing makes these logs again",
            _ => "the next build in a checkout makes or fetches them again",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Runs => "runs",
            Self::Roots => "roots",
            Self::Images => "images",
            Self::Builds => "builds",
            Self::Downloads => "downloads",
        })
    }
}

/// A directory or a file that Verbena keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// What it is.
    pub kind: Kind,
    /// Where it is.
    pub path: PathBuf,
    /// Bytes on the disk.
    pub bytes: u64,
    /// Seconds since 1970 of its last change.
    pub changed_s: i64,
    /// Why it is in use, if it is.
    pub in_use: Option<String>,
}

/// The places where Verbena keeps entries.
#[derive(Clone, Debug)]
pub struct Places {
    /// The directory of roots, images, builds and downloads.
    pub cache: PathBuf,
    /// The directories of the logs of runs.
    pub runs: Vec<PathBuf>,
    /// Files of the installation.
    pub parts: Vec<PathBuf>,
}

impl Places {
    /// Returns the places of this user. `installation` is the one that runs use, if it can be read.
    ///
    /// # Errors
    ///
    /// There is no installation, and the environment names no directory.
    pub fn find(installation: Option<&Installation>) -> Result<Self, String> {
        let own = crate::run_directory::user_cache();
        let of_installation = installation.and_then(|parts| parts.qemu_root.parent());
        let cache = own.clone().or_else(|| of_installation.map(PathBuf::from));
        let cache = cache.ok_or("there is no cache directory: set HOME or VERBENA_CACHE")?;
        let mut runs = vec![cache.join("runs")];
        let mut parts = Vec::new();
        if let Some(installation) = installation {
            runs.push(installation.runs.clone());
            parts = vec![
                installation.qemu_root.clone(),
                installation.kernel.clone(),
                installation.disk.clone(),
                installation.initrd.clone(),
            ];
        }
        Ok(Self { cache, runs, parts })
    }

    /// Returns all entries, by kind and name.
    pub fn entries(&self) -> Vec<Entry> {
        let busy = self.busy();
        let mounts = mounted();
        let mut entries = Vec::new();
        for path in self.runs.iter().flat_map(|runs| children(runs)) {
            if name_of(&path).starts_with("run.") {
                let lives = is_locked(&path).then(|| String::from("the run lives"));
                entries.push(entry(Kind::Runs, path, lives));
            }
        }
        for path in children(&self.cache) {
            let Some(kind) = kind_in_cache(&name_of(&path)) else {
                continue;
            };
            let is_part = self.parts.iter().any(|part| part.starts_with(&path));
            let name = name_of(&path);
            let is_mounted = [' ', '/']
                .iter()
                .any(|after| mounts.contains(&format!("/{name}{after}")));
            let in_use = if is_part {
                Some(String::from("the installation needs it"))
            } else if is_mounted {
                Some(String::from("a process has it mounted"))
            } else {
                busy.clone()
            };
            entries.push(entry(kind, path, in_use));
        }
        entries.sort_by(|a, b| (a.kind, &a.path).cmp(&(b.kind, &b.path)));
        entries
    }

    /// Returns why all of the cache is in use: a build, or guests of any installation with this
    /// cache.
    fn busy(&self) -> Option<String> {
        let locks = children(&self.cache).into_iter();
        let mut locks = locks.filter(|path| name_of(path).starts_with(".lock-"));
        if let Some(lock) = locks.find(|lock| is_flocked(lock)) {
            return Some(format!("a build holds {}", lock.display()));
        }
        let cache = format!("{}\n", self.cache.display());
        let mut runs = socket_directories().into_iter().filter(|run| {
            std::fs::read_to_string(run.join("running")).is_ok_and(|text| text == cache)
        });
        let run = runs.find(|run| is_locked(run))?;
        Some(format!("guests run, with {}", run.display()))
    }
}

/// Removes an entry that is not in use.
///
/// # Errors
///
/// It is in use, or cannot be removed.
pub fn remove(entry: &Entry) -> Result<(), String> {
    let shown = entry.path.display();
    if let Some(why) = &entry.in_use {
        return Err(format!("{shown} is in use: {why}"));
    }
    // Without following symbolic links.
    let removed = match entry.path.symlink_metadata() {
        Ok(found) if found.is_dir() => std::fs::remove_dir_all(&entry.path),
        _ => std::fs::remove_file(&entry.path),
    };
    removed.map_err(|e| format!("{shown}: {e}"))
}

fn children(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

fn name_of(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

/// Returns the kind of an entry of the cache by its name, which the scripts give.
fn kind_in_cache(name: &str) -> Option<Kind> {
    const NAMES: [(Kind, &[&str]); 3] = [
        (
            Kind::Roots,
            &[
                "toolchain-",
                "users-",
                "browser-",
                "suites-",
                "clean-",
                "package-",
                "runtime-",
                "cross-arm64-",
                "instead-of-",
                "mmdebstrap.",
            ],
        ),
        (Kind::Images, &["guest-"]),
        (Kind::Builds, &["linux-", "kernel-", "fabric-"]),
    ];
    if ["apt", "cargo"].contains(&name) || name.contains(".orig.tar.") {
        return Some(Kind::Downloads);
    }
    let has = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    NAMES
        .into_iter()
        .find(|(_, prefixes)| has(prefixes))
        .map(|(kind, _)| kind)
}

fn entry(kind: Kind, path: PathBuf, in_use: Option<String>) -> Entry {
    let changed_s = path.symlink_metadata().map_or(0, |found| found.mtime());
    Entry {
        kind,
        bytes: size(&path),
        path,
        changed_s,
        in_use,
    }
}

/// Returns the bytes on the disk of a file, or of a directory with all files on its file system.
fn size(path: &Path) -> u64 {
    let Ok(top) = path.symlink_metadata() else {
        return 0;
    };
    let mut bytes = top.blocks() * 512;
    let mut directories = vec![path.to_owned()];
    if !top.is_dir() {
        return bytes;
    }
    while let Some(directory) = directories.pop() {
        for child in children(&directory) {
            let Ok(found) = child.symlink_metadata() else {
                continue;
            };
            bytes += found.blocks() * 512;
            if found.is_dir() && found.dev() == top.dev() {
                directories.push(child);
            }
        }
    }
    bytes
}

/// Returns the mounts of all processes that this user may see, in the format of `mountinfo`.
fn mounted() -> String {
    let processes = children(Path::new("/proc")).into_iter();
    let processes = processes.filter(|path| name_of(path).bytes().all(|b| b.is_ascii_digit()));
    let texts = processes.filter_map(|path| std::fs::read_to_string(path.join("mountinfo")).ok());
    texts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    fn places(scratch: &Scratch) -> Places {
        for directory in ["runs/run.a", "runs/other", "guest-1", "guest-2", "mine"] {
            std::fs::create_dir_all(scratch.0.join(directory)).unwrap();
        }
        std::fs::write(scratch.0.join("guest-1/disk"), vec![1; 100_000]).unwrap();
        std::fs::write(scratch.0.join("x.orig.tar.gz"), "x").unwrap();
        Places {
            cache: scratch.0.clone(),
            runs: vec![scratch.0.join("runs")],
            parts: vec![scratch.0.join("guest-2/disk")],
        }
    }

    #[test]
    fn only_known_names_are_listed_with_their_sizes() {
        let scratch = Scratch::new("cache-list");
        let entries = places(&scratch).entries();
        let names: Vec<_> = entries
            .iter()
            .map(|entry| (entry.kind, name_of(&entry.path), entry.in_use.is_some()))
            .collect();
        let expected = [
            (Kind::Runs, "run.a", false),
            (Kind::Images, "guest-1", false),
            (Kind::Images, "guest-2", true),
            (Kind::Downloads, "x.orig.tar.gz", false),
        ];
        let expected = expected.map(|(kind, name, used)| (kind, String::from(name), used));
        assert_eq!(names, expected);
        assert!(entries[1].bytes >= 100_000, "{entries:?}");
    }

    #[test]
    fn what_is_in_use_stays() {
        let scratch = Scratch::new("cache-clean");
        let places = places(&scratch);
        let run = crate::run_directory::lock(&scratch.0.join("runs/run.a")).unwrap();
        let entries = places.entries();
        let error = remove(&entries[0]).unwrap_err();
        assert!(error.ends_with("in use: the run lives"), "{error}");
        drop(run);
        remove(&places.entries()[0]).unwrap();
        assert!(!scratch.0.join("runs/run.a").exists());
        let lock = std::fs::File::create(scratch.0.join(".lock-guest-1")).unwrap();
        let held = nix::fcntl::Flock::lock(lock, nix::fcntl::FlockArg::LockShared).unwrap();
        assert!(remove(&places.entries()[0])
            .unwrap_err()
            .contains(".lock-guest-1"));
        drop(held);
        remove(&places.entries()[0]).unwrap();
        assert!(!scratch.0.join("guest-1").exists());
        let error = remove(&places.entries()[0]).unwrap_err();
        assert!(error.contains("installation"), "{error}");
    }

    #[test]
    fn a_symbolic_link_is_not_followed() {
        let scratch = Scratch::new("cache-link");
        let outside = scratch.0.join("outside");
        std::fs::create_dir_all(outside.join("x")).unwrap();
        let link = scratch.0.join("guest-1");
        std::os::unix::fs::symlink(&outside, &link).unwrap();
        remove(&entry(Kind::Images, link.clone(), None)).unwrap();
        assert!(outside.join("x").exists() && link.symlink_metadata().is_err());
    }
}
