// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `verbena cache`: lists and removes what Verbena keeps.

use crate::nodes::{age, print, table, warn};
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;
use verbena_vm::cache::{remove, Entry, Kind, Places};
use verbena_vm::installation::{Installation, Source, VARIABLE};
use verbena_vm::node_set::now_s;

/// The command line of `verbena cache`.
#[derive(Args, Debug)]
pub struct CacheArgs {
    #[command(subcommand)]
    command: CacheCommand,
}

#[derive(Subcommand, Debug)]
enum CacheCommand {
    /// List all entries: kind, size, time since the last change, why they are in use
    List {
        /// Print a list of JSON objects
        #[arg(long)]
        json: bool,
    },
    /// Remove all entries of these kinds that are not in use
    Clean {
        /// What to remove
        #[arg(value_name = "KIND", required = true)]
        kinds: Vec<KindName>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum KindName {
    /// Logs and recordings of runs
    Runs,
    /// Debian roots: of the toolchain and QEMU, and of tests
    Roots,
    /// Disk images of guests
    Images,
    /// Kernel trees
    Builds,
    /// Packages, crates and sources
    Downloads,
    /// All of these
    All,
}

impl KindName {
    fn has(self, kind: Kind) -> bool {
        match self {
            Self::All => true,
            Self::Runs => kind == Kind::Runs,
            Self::Roots => kind == Kind::Roots,
            Self::Images => kind == Kind::Images,
            Self::Builds => kind == Kind::Builds,
            Self::Downloads => kind == Kind::Downloads,
        }
    }
}

/// Lists or removes entries, and returns the exit status.
///
/// # Errors
///
/// There is no cache, or an entry cannot be removed.
pub fn run(args: &CacheArgs) -> Result<u8, String> {
    let entries = Places::find(installation().as_ref())?.entries();
    match &args.command {
        CacheCommand::List { json: true } => print(&format!("{:#}\n", serde_json::json!(entries)))?,
        CacheCommand::List { json: false } => print(&describe(&entries))?,
        CacheCommand::Clean { kinds } => {
            let chosen = entries
                .iter()
                .filter(|entry| kinds.iter().any(|name| name.has(entry.kind)));
            clean(chosen)?;
        }
    }
    Ok(0)
}

/// Returns the installation that runs use, if there is one.
fn installation() -> Option<Installation> {
    let program = std::env::current_exe().ok()?;
    let source = Source::find(std::env::var_os(VARIABLE).map(PathBuf::from), &program).ok()?;
    Installation::read(&source.file()).ok()
}

fn clean<'a>(chosen: impl Iterator<Item = &'a Entry>) -> Result<(), String> {
    let (mut bytes, mut failures) = (0, Vec::new());
    for entry in chosen {
        if let Some(why) = &entry.in_use {
            warn(&format!("{} stays: {why}", entry.path.display()));
            continue;
        }
        match remove(entry) {
            Ok(()) => bytes += entry.bytes,
            Err(e) => failures.push(e),
        }
    }
    print(&format!("removed {}\n", size(bytes)))?;
    match failures.is_empty() {
        true => Ok(()),
        false => Err(failures.join("; ")),
    }
}

fn describe(entries: &[Entry]) -> String {
    let mut lines = vec![["KIND", "SIZE", "CHANGED", "PATH", "IN USE"].map(String::from)];
    for entry in entries {
        let changed_s = u64::try_from(entry.changed_s).unwrap_or(0);
        lines.push([
            entry.kind.to_string(),
            size(entry.bytes),
            age(now_s().saturating_sub(changed_s)),
            entry.path.display().to_string(),
            entry.in_use.clone().unwrap_or_default(),
        ]);
    }
    let mut text = table(&lines);
    for kind in Kind::ALL {
        let sum = entries
            .iter()
            .filter(|e| e.kind == kind)
            .map(|e| e.bytes)
            .sum();
        text += &format!("{kind}: {}; {}\n", size(sum), kind.made_by());
    }
    text
}

fn size(bytes: u64) -> String {
    const MB: u64 = 1 << 20;
    match bytes {
        0..MB => format!("{} KB", bytes.div_ceil(1024)),
        _ => format!("{} MB", bytes.div_ceil(MB)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_a_sum() {
        let entry = |kind, bytes, in_use: Option<&str>| Entry {
            kind,
            path: PathBuf::from("/c/x"),
            bytes,
            changed_s: i64::MAX,
            in_use: in_use.map(String::from),
        };
        let text = describe(&[
            entry(Kind::Runs, 1000, None),
            entry(Kind::Images, 3 << 20, Some("the installation needs it")),
        ]);
        assert!(
            text.starts_with("KIND    SIZE  CHANGED  PATH  IN USE\nruns    1 KB  0 s      /c/x\n"),
            "{text}"
        );
        assert!(text.contains("\nimages: 3 MB; the next build"), "{text}");
        assert!(text.contains("\nroots: 0 KB; "), "{text}");
    }

    #[test]
    fn all_means_each_kind() {
        for kind in Kind::ALL {
            let names = KindName::value_variants().iter();
            assert_eq!(names.filter(|name| name.has(kind)).count(), 2);
        }
    }
}
