// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A step of a suite: a command, and the way in which the command reports its results.

use crate::guests::Guests;
use crate::libtest;
use crate::suite::Form;

/// This program, below the directory of outputs.
const HARNESS: &str = "cargo/release/verbena-harness";
/// The target of Rust's tests.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// What a step runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// Guests, by `scripts/vm`.
    Guests(Guests),
    /// A script of `scripts/`: its name and its arguments.
    Script(Vec<String>),
    /// A command in the toolchain root.
    InRoot(Vec<String>),
    /// `cargo test` in the toolchain root, with these arguments.
    CargoTest(Vec<String>),
    /// A command on the host.
    Host(Vec<String>),
    /// Nothing, because the step cannot run. The step fails for this reason.
    Impossible(String),
}

/// How a program that writes no records reports the number of its tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counts {
    /// The last line `N passed, N failed` has the numbers of all tests.
    Last,
    /// Each such line has the numbers of some tests.
    Each,
}

/// How a step reports its results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reports {
    /// By records ([`crate::records`]).
    Records,
    /// By lines for readers ([`crate::text`]). Programs that do this are to write records one day.
    Text(Counts),
    /// By the exit status: the whole step is one test of this name.
    Status(&'static str),
    /// Not at all: the step prepares those behind it.
    Nothing,
}

/// An exit status by which a step says that its test cannot run here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkipStatus {
    pub status: i32,
    pub test: &'static str,
    pub reason: &'static str,
}

/// A step of a suite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub program: Program,
    pub reports: Reports,
    /// More variables of the environment.
    pub environment: Vec<(&'static str, String)>,
    /// A name for this step among those of the suite.
    pub title: Option<String>,
    /// The steps behind this one run even if this one fails.
    pub goes_on: bool,
    pub skip: Option<SkipStatus>,
}

impl Step {
    fn new(program: Program, reports: Reports) -> Self {
        Self {
            program,
            reports,
            environment: Vec::new(),
            title: None,
            goes_on: false,
            skip: None,
        }
    }

    /// Guests whose programs write records.
    pub fn guests(guests: Guests) -> Self {
        Self::new(Program::Guests(guests), Reports::Records)
    }

    /// A script of `scripts/`, with arguments. Empty arguments are left out.
    pub fn script<S: AsRef<str>>(words: impl IntoIterator<Item = S>) -> Self {
        let program = Program::Script(owned(words));
        Self::new(program, Reports::Text(Counts::Last))
    }

    /// A command in the toolchain root.
    pub fn in_root<S: AsRef<str>>(words: impl IntoIterator<Item = S>) -> Self {
        let program = Program::InRoot(owned(words));
        Self::new(program, Reports::Text(Counts::Last))
    }

    /// `cargo test` in the toolchain root.
    pub fn cargo_test<S: AsRef<str>>(words: impl IntoIterator<Item = S>) -> Self {
        let program = Program::CargoTest(owned(words));
        Self::new(program, Reports::Records)
    }

    /// The documentation's tests of `cargo test --doc`, which rustdoc runs by itself.
    pub fn doc_tests<S: AsRef<str>>(words: impl IntoIterator<Item = S>) -> Self {
        Self::in_root([owned(["cargo", "test", "--doc"]), owned(words)].concat())
    }

    /// A command on the host.
    pub fn host<S: AsRef<str>>(words: impl IntoIterator<Item = S>) -> Self {
        let program = Program::Host(owned(words));
        Self::new(program, Reports::Text(Counts::Last))
    }

    /// A step that fails for this reason.
    pub fn impossible(why: &str) -> Self {
        Self::new(Program::Impossible(why.to_owned()), Reports::Nothing)
    }

    /// The step's results are records.
    pub fn records(mut self) -> Self {
        self.reports = Reports::Records;
        self
    }

    /// The step's results are text, whose lines `N passed, N failed` all count.
    pub fn each(mut self) -> Self {
        self.reports = Reports::Text(Counts::Each);
        self
    }

    /// The whole step is one test.
    pub fn single(mut self, test: &'static str) -> Self {
        self.reports = Reports::Status(test);
        self
    }

    /// The step only prepares those behind it.
    pub fn prepares(mut self) -> Self {
        self.reports = Reports::Nothing;
        self
    }

    pub fn env(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    pub fn titled(mut self, title: impl Into<String>) -> Self {
        self.title = Some(title.into());
        self
    }

    pub fn goes_on(mut self) -> Self {
        self.goes_on = true;
        self
    }

    /// With this exit status the step's test was skipped, and those behind it do not run.
    pub fn skips_with(mut self, status: i32, test: &'static str, reason: &'static str) -> Self {
        let skip = SkipStatus {
            status,
            test,
            reason,
        };
        self.skip = Some(skip);
        self
    }

    /// Returns the command line, or the reason why there is none.
    ///
    /// # Errors
    ///
    /// The step is one that cannot run.
    pub fn command_line(&self, form: &Form) -> Result<Vec<String>, String> {
        let scripts = |name: &str| form.top.join("scripts").join(name).display().to_string();
        // The root takes no flags of the compiler from outside, so they are set inside.
        let mut environment: Vec<String> = self
            .environment
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        if !environment.is_empty() {
            environment.insert(0, "env".to_owned());
        }
        let in_root = |words: &[String]| [&[scripts("in-root")], &environment[..], words].concat();
        match &self.program {
            Program::Guests(guests) => {
                Ok([vec![scripts("vm")], guests.arguments(form.kernel)].concat())
            }
            Program::Script(words) => Ok([&[scripts(&words[0])], &words[1..]].concat()),
            Program::InRoot(words) => Ok(in_root(words)),
            Program::CargoTest(words) => {
                let runner = [form.built(HARNESS), libtest::COMMAND.to_owned()];
                let config = format!("--config=target.{TARGET}.runner={runner:?}");
                let cargo = ["cargo".to_owned(), "test".to_owned(), config];
                Ok(in_root(&[&cargo, words.as_slice()].concat()))
            }
            Program::Host(words) => Ok(words.clone()),
            Program::Impossible(why) => Err(why.clone()),
        }
    }
}

fn owned<S: AsRef<str>>(words: impl IntoIterator<Item = S>) -> Vec<String> {
    let words = words.into_iter().map(|word| word.as_ref().to_owned());
    words.filter(|word| !word.is_empty()).collect()
}
