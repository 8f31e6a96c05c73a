// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs the test suites and collects their results: the program of `scripts/test`.
//!
//! The suites are a typed [`table`]: each has needs, a limit and steps ([`suite`], [`step`], [`guests`]).
//! [`run`] makes the needs ([`needs`]), runs the suites side by side, and ends a suite with all of its
//! processes if it exceeds its limit ([`processes`]). Each step writes one record for each test
//! ([`records`]). [`libtest`] writes those of Rust's tests.
//! Programs that do not yet write records are judged by their text, in [`text`] alone.
//! [`verdict`] makes results of records, text and exit statuses, and compares skipped tests with the
//! list of those that may be skipped ([`skips`]). The [`results`] go to `results.json` and `junit.xml`
//! ([`junit`]) in the directory of the run's logs ([`files`]).

pub mod console;
pub mod files;
pub mod guests;
pub mod junit;
pub mod libtest;
pub mod needs;
pub mod options;
pub mod processes;
pub mod records;
pub mod results;
pub mod run;
pub mod skips;
pub mod step;
pub mod suite;
pub mod table;
pub mod text;
pub mod verdict;
