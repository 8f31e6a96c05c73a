// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The command line.

use crate::suite::{Kernel, Runs, Suite};
use clap::Parser;
use std::fmt::Write as _;

/// Runs test suites, and ends with one line `N passed, N failed`.
///
/// Without names: every suite that the table marks `test`. With names, only the named suites run,
/// whatever their marks. A suite fails if one of its tests fails, if it has no test, or if it skips a
/// test that scripts/lib/skips does not list. Each run has its own directory of logs in build/log, with
/// the results in results.json and junit.xml.
#[derive(Clone, Debug, Default, Parser)]
#[command(name = "scripts/test", disable_version_flag = true)]
pub struct Options {
    /// The suites that are marked `debug`, in full, on the debug kernel
    #[arg(long)]
    pub debug: bool,
    /// All suites in full, also those that are marked `long`
    #[arg(long)]
    pub long: bool,
    /// Number of suites in parallel [default: half the number of processors, at least two, if there is
    /// enough memory]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub jobs: Option<u16>,
    /// Print the table
    #[arg(long)]
    pub list: bool,
    /// Print the table as Markdown, for Documentation/testing.md
    #[arg(long)]
    pub markdown: bool,
    /// Only these suites
    #[arg(value_name = "SUITE")]
    pub suites: Vec<String>,
}

impl Options {
    /// Returns the kernel of the guests.
    pub fn kernel(&self) -> Kernel {
        if self.debug {
            Kernel::Debug
        } else {
            Kernel::Stock
        }
    }

    /// Returns the suites to run. Named suites run in the order in which they are named.
    ///
    /// # Errors
    ///
    /// There is no suite of a name.
    pub fn select(&self, table: &[Suite]) -> Result<Vec<Suite>, String> {
        if self.suites.is_empty() {
            let marked = |suite: &&Suite| {
                suite.runs.contains(if self.debug {
                    &Runs::Debug
                } else {
                    &Runs::Test
                }) || self.long && suite.runs.contains(&Runs::Long)
            };
            return Ok(table.iter().filter(marked).cloned().collect());
        }
        let named = |name: &String| {
            let found = table.iter().find(|suite| suite.name == name).cloned();
            found.ok_or_else(|| {
                let names: Vec<&str> = table.iter().map(|suite| suite.name).collect();
                format!("no suite is called {name}: {}", names.join(" "))
            })
        };
        let mut chosen: Vec<Suite> = Vec::new();
        for suite in self.suites.iter().map(named) {
            let suite = suite?;
            // A suite runs once, because two runs of it would share a log.
            if chosen.iter().all(|other| other.name != suite.name) {
                chosen.push(suite);
            }
        }
        Ok(chosen)
    }
}

/// Returns the table for a terminal: name, runs, needs, what the suite tests.
pub fn list(table: &[Suite]) -> String {
    let mut text = String::new();
    for suite in table {
        let runs = joined(suite.runs.iter().map(|runs| runs.name()), "-", ",");
        let needs = joined(suite.needs.iter().map(|need| need.name()), "-", ",");
        let _ = writeln!(
            text,
            "{:<20} {runs:<11} {needs:<12} {}",
            suite.name, suite.about
        );
    }
    text
}

/// Returns the table as Markdown. The page says what the names of the runs mean.
pub fn markdown(table: &[Suite]) -> String {
    let mut text = "| suite | runs | what it tests |\n| --- | --- | --- |\n".to_owned();
    for suite in table {
        let runs = joined(suite.runs.iter().map(|runs| runs.name()), "by name", ", ");
        let runs = match runs.as_str() {
            marks if marks.starts_with("test") => format!("make {marks}"),
            "long" => "make test-long".to_owned(),
            marks => marks.to_owned(),
        };
        let _ = writeln!(
            text,
            "| `{}` | {runs} | {} |",
            suite.name,
            suite.about.replace('|', "\\|")
        );
    }
    text
}

fn joined<'a>(words: impl Iterator<Item = &'a str>, none: &str, between: &str) -> String {
    let words: Vec<&str> = words.collect();
    match words.is_empty() {
        true => none.to_owned(),
        false => words.join(between),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::suites;

    fn chosen(words: &[&str]) -> Result<Vec<&'static str>, String> {
        let options =
            Options::try_parse_from([&["test"], words].concat()).map_err(|e| e.to_string())?;
        let suites = options.select(&suites())?;
        Ok(suites.iter().map(|suite| suite.name).collect())
    }

    #[test]
    fn marks_select_suites() {
        let (test, long, debug) = (chosen(&[]), chosen(&["--long"]), chosen(&["--debug"]));
        let (test, long, debug) = (test.unwrap(), long.unwrap(), debug.unwrap());
        assert!(test.contains(&"unit") && !test.contains(&"kernels") && !test.contains(&"rxe"));
        assert!(test.iter().all(|name| long.contains(name)) && long.contains(&"kernels"));
        assert!(debug.contains(&"failnth") && debug.contains(&"guest") && !debug.contains(&"unit"));
    }

    #[test]
    fn names_select_suites_whatever_their_marks() {
        assert_eq!(chosen(&["rxe", "unit", "rxe"]).unwrap(), ["rxe", "unit"]);
        assert!(chosen(&["nosuch"])
            .unwrap_err()
            .starts_with("no suite is called nosuch: style "));
    }

    #[test]
    fn jobs_is_a_number() {
        assert!(chosen(&["--jobs", "2"]).is_ok());
        for wrong in ["0", "x", "-1"] {
            assert!(chosen(&["--jobs", wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn tables_have_a_line_for_each_suite() {
        let table = suites();
        assert_eq!(list(&table).lines().count(), table.len());
        assert_eq!(markdown(&table).lines().count(), table.len() + 2);
        assert!(markdown(&table).contains("| `rxe` | by name | "));
        assert!(markdown(&table).contains("| `users` | make test, debug | "));
    }
}
