// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Writes shell completions and man pages, which packages install.

use crate::args::VerbenaArgs;
use clap::CommandFactory;
use clap_complete::Shell;
use std::path::Path;

/// Writes the files into a directory: completions for bash, fish and zsh, and a man page for each
/// command that is not hidden.
///
/// # Errors
///
/// A file cannot be written.
pub fn run(directory: &Path) -> Result<u8, String> {
    let failed = |e: std::io::Error| format!("{}: {e}", directory.display());
    std::fs::create_dir_all(directory).map_err(failed)?;
    let command = VerbenaArgs::command();
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        let mut command = command.clone();
        clap_complete::generate_to(shell, &mut command, "verbena", directory).map_err(failed)?;
    }
    clap_mangen::generate_to(command, directory).map_err(failed)?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Command;

    /// Returns the names of the man pages of a command and of those below it.
    fn pages(command: &Command, above: &str) -> Vec<String> {
        let name = format!("{above}{}", command.get_name());
        let shown = |command: &&Command| !command.is_hide_set() && command.get_name() != "help";
        let below = command.get_subcommands().filter(shown);
        let below = below.flat_map(|command| pages(command, &format!("{name}-")));
        let mut all = vec![format!("{name}.1")];
        all.extend(below);
        all
    }

    #[test]
    fn each_command_has_a_page_and_completions() {
        let directory = std::env::temp_dir().join(format!("verbena-pages-{}", std::process::id()));
        assert_eq!(run(&directory), Ok(0));
        let read = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap();
        let command = VerbenaArgs::command();
        let pages = pages(&command, "");
        for expected in [
            "verbena-run.1",
            "verbena-exec.1",
            "verbena-fault-add.1",
            "verbena-cache-clean.1",
        ] {
            assert!(pages.iter().any(|page| page == expected), "{pages:?}");
        }
        for page in &pages {
            let text = read(page);
            // A command without a sentence about it has none after its name.
            let name = text
                .lines()
                .skip_while(|line| *line != ".SH NAME")
                .nth(1)
                .unwrap();
            assert!(name.contains(r" \- ") && name.len() > 20, "{page}: {name}");
        }
        let completions = ["verbena.bash", "verbena.fish", "_verbena"].map(read);
        for subcommand in command.get_subcommands().filter(|c| !c.is_hide_set()) {
            for text in &completions {
                assert!(
                    text.contains(subcommand.get_name()),
                    "{}",
                    subcommand.get_name()
                );
            }
        }
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn the_documentation_names_each_command() {
        let page = include_str!("../../../Documentation/verbena.md");
        for command in VerbenaArgs::command().get_subcommands() {
            let name = command.get_name();
            assert!(page.contains(&format!("verbena {name}")), "{name}");
        }
    }
}
