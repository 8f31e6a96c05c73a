// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The guests of this user that run now: those of `verbena up`, which stay, and those of
//! `verbena run` and `verbena shell`.
//!
//! The directory of the sockets of a run has a file that describes its guests. It is valid while the
//! run holds the lock of the directory.

use crate::run_directory::{is_locked, socket_directories};
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The name of nodes that were started without one.
pub const DEFAULT_NAME: &str = "default";
const LONGEST_NAME: usize = 32;
const FILE: &str = "nodes.json";
/// The socket on which nodes that stay take requests.
pub const SOCKET: &str = "session";

/// The description of running guests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// Version of the requests that the session takes.
    pub version: u8,
    /// The name that the user has chosen, or `run-XXXXXX`.
    pub name: String,
    /// True if the guests stay until `verbena down`.
    pub stays: bool,
    /// Number of guests.
    pub guests: usize,
    /// The process that holds the lock.
    pub keeper: i32,
    /// Seconds since 1970 at which the guests were started.
    pub since_s: u64,
    /// Directory of the logs.
    pub logs: PathBuf,
    /// The command line that started them.
    pub command_line: String,
}

/// Guests that run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSet {
    /// What their session has written.
    pub description: Description,
    /// Directory of their sockets.
    pub sockets: PathBuf,
}

impl NodeSet {
    /// Returns the control socket of the NIC of a guest.
    pub fn control(&self, number: usize) -> PathBuf {
        match self.description.guests {
            1 => self.sockets.join("control"),
            _ => self.sockets.join(number.to_string()).join("control"),
        }
    }

    /// True while their session lives.
    pub fn lives(&self) -> bool {
        is_locked(&self.sockets)
    }

    /// Returns the number of seconds since their start.
    pub fn age_s(&self) -> u64 {
        now_s().saturating_sub(self.description.since_s)
    }

    /// Checks that they have a guest of this number.
    ///
    /// # Errors
    ///
    /// They do not.
    pub fn check_number(&self, number: usize) -> Result<(), String> {
        let Description { name, guests, .. } = &self.description;
        match (1..=*guests).contains(&number) {
            true => Ok(()),
            false => Err(format!(
                "there is no node {number}: {name:?} has {}",
                match guests {
                    1 => String::from("the node 1 alone"),
                    _ => format!("the nodes 1 to {guests}"),
                }
            )),
        }
    }
}

/// Returns the time in seconds since 1970.
pub fn now_s() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}

/// Checks a name for nodes: letters, digits, `-`, `_` and `.`.
///
/// # Errors
///
/// The name has other characters, is empty, or is too long.
pub fn check_name(name: &str) -> Result<(), String> {
    let is_valid = (1..=LONGEST_NAME).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        && !name.starts_with("run-");
    match is_valid {
        true => Ok(()),
        false => Err(format!(
            "--name {name:?}: a name has 1 to {LONGEST_NAME} letters, digits, `-`, `_` or `.`, and does not begin with `run-`"
        )),
    }
}

/// Returns the name of the guests of a command, from the directory of their sockets.
pub fn name_of_run(sockets: &Path) -> String {
    let name = sockets.file_name().unwrap_or_default().to_string_lossy();
    format!("run-{}", name.rsplit('.').next().unwrap_or_default())
}

/// Writes the description of guests that are about to start.
///
/// # Errors
///
/// The file cannot be written.
pub fn describe(sockets: &Path, description: &Description) -> Result<(), String> {
    let file = sockets.join(FILE);
    let text = serde_json::to_string_pretty(description).unwrap_or_default();
    // A reader sees the whole file or none.
    let new = sockets.join("nodes.json.new");
    std::fs::write(&new, text)
        .and_then(|()| std::fs::rename(&new, &file))
        .map_err(|e| format!("{}: {e}", file.display()))
}

/// Returns the guests of this user that run, those that stay first, by name.
pub fn running() -> Vec<NodeSet> {
    let mut sets: Vec<NodeSet> = socket_directories()
        .into_iter()
        .filter_map(|sockets| read(&sockets))
        .collect();
    sets.sort_by(|a, b| {
        let key = |set: &NodeSet| (!set.description.stays, set.description.name.clone());
        key(a).cmp(&key(b))
    });
    sets
}

/// Reads a directory of sockets. Another user may have made it, whom nobody has to believe.
fn read(sockets: &Path) -> Option<NodeSet> {
    let owner = std::fs::symlink_metadata(sockets).ok()?;
    if !owner.is_dir() || owner.uid() != geteuid().as_raw() {
        return None;
    }
    let text = std::fs::read(sockets.join(FILE)).ok()?;
    let set = NodeSet {
        description: serde_json::from_slice(&text).ok()?,
        sockets: sockets.to_owned(),
    };
    set.lives().then_some(set)
}

/// Finds running guests by name. Without a name, those of [`DEFAULT_NAME`], else the only ones.
///
/// # Errors
///
/// There are none of this name, or several without a name. The text lists what there is.
pub fn find(name: Option<&str>) -> Result<NodeSet, String> {
    choose(running(), name)
}

fn choose(mut sets: Vec<NodeSet>, name: Option<&str>) -> Result<NodeSet, String> {
    let wanted = name.unwrap_or(DEFAULT_NAME);
    if let Some(found) = sets.iter().position(|set| set.description.name == wanted) {
        return Ok(sets.swap_remove(found));
    }
    if name.is_none() && sets.len() == 1 {
        return Ok(sets.swap_remove(0));
    }
    let names: Vec<String> = sets.into_iter().map(|set| set.description.name).collect();
    let next = match names.as_slice() {
        [] => String::from("no nodes run: start some by `verbena up`"),
        names => format!("choose one by --name: {}", names.join(", ")),
    };
    Err(match name {
        Some(name) => format!("no nodes named {name:?} run; {next}"),
        None => next,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    fn set(name: &str, guests: usize) -> NodeSet {
        NodeSet {
            description: Description {
                version: 1,
                name: String::from(name),
                stays: !name.starts_with("run-"),
                guests,
                keeper: 1,
                since_s: now_s(),
                logs: PathBuf::from("/l"),
                command_line: String::from("verbena up"),
            },
            sockets: PathBuf::from("/tmp/verbena.abc"),
        }
    }

    #[test]
    fn names_are_plain() {
        for good in ["a", "my-nodes_2.x", "x".repeat(32).as_str()] {
            assert_eq!(check_name(good), Ok(()));
        }
        for bad in ["", "a b", "a/b", "ä", "run-1", "x".repeat(33).as_str()] {
            assert!(check_name(bad).unwrap_err().contains("1 to 32"), "{bad}");
        }
        assert_eq!(name_of_run(Path::new("/tmp/verbena.Ab12Cd")), "run-Ab12Cd");
    }

    #[test]
    fn the_default_comes_before_the_only_one() {
        let name = |sets: &[&str], wanted| {
            let sets = sets.iter().map(|name| set(name, 1)).collect();
            choose(sets, wanted).map(|set| set.description.name)
        };
        assert_eq!(name(&["a", "default"], None).unwrap(), "default");
        assert_eq!(name(&["run-a"], None).unwrap(), "run-a");
        assert_eq!(name(&["a", "b"], Some("b")).unwrap(), "b");
        let error = name(&["a", "b"], None).unwrap_err();
        assert_eq!(error, "choose one by --name: a, b");
        let error = name(&["a"], Some("c")).unwrap_err();
        assert_eq!(error, "no nodes named \"c\" run; choose one by --name: a");
        assert!(name(&[], None).unwrap_err().contains("verbena up"));
    }

    #[test]
    fn a_node_has_a_number_and_a_control_socket() {
        let (one, three) = (set("a", 1), set("b", 3));
        assert_eq!(one.control(1), Path::new("/tmp/verbena.abc/control"));
        assert_eq!(three.control(2), Path::new("/tmp/verbena.abc/2/control"));
        assert_eq!(three.check_number(3), Ok(()));
        assert!(three.check_number(4).unwrap_err().ends_with("1 to 3"));
        assert!(one.check_number(0).unwrap_err().contains("1 alone"));
    }

    #[test]
    fn only_guests_whose_session_lives_are_read() {
        let scratch = Scratch::new("node-set");
        let description = set("a", 2).description;
        describe(&scratch.0, &description).unwrap();
        assert_eq!(read(&scratch.0), None);
        let lock = crate::run_directory::lock(&scratch.0).unwrap();
        assert_eq!(read(&scratch.0).unwrap().description, description);
        drop(lock);
        assert_eq!(read(&scratch.0), None);
    }
}
