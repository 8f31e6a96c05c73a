// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The definition of a test and of its possible results.
use crate::ffi::qp::PostError;
use crate::ffi::sys::Errno;
use crate::rig::Rig;
use std::time::Duration;

/// The reason why a test did not pass.
#[derive(Debug)]
pub enum Fail {
    Failed(String),
    /// The device does not offer a feature that the test needs.
    Skipped(String),
}

pub type TestResult = Result<(), Fail>;

/// A test, with its name and its limits.
pub struct GuestTest {
    pub name: &'static str,
    pub run: fn(&Rig) -> TestResult,
    /// Time after which the test counts as hung.
    pub limit: Duration,
    /// The test runs only with `--long` or when `--filter` names it exactly.
    pub long: bool,
    /// The test examines the whole device, so no other test runs at the same time.
    pub alone: bool,
}

impl GuestTest {
    pub const fn new(name: &'static str, run: fn(&Rig) -> TestResult) -> GuestTest {
        GuestTest {
            name,
            run,
            limit: Duration::from_secs(60),
            long: false,
            alone: false,
        }
    }

    pub const fn limit(mut self, seconds: u64) -> GuestTest {
        self.limit = Duration::from_secs(seconds);
        self
    }

    pub const fn alone(mut self) -> GuestTest {
        self.alone = true;
        self
    }

    pub const fn long(mut self) -> GuestTest {
        self.long = true;
        self
    }
}

impl From<String> for Fail {
    fn from(s: String) -> Fail {
        Fail::Failed(s)
    }
}

impl From<&str> for Fail {
    fn from(s: &str) -> Fail {
        Fail::Failed(s.to_owned())
    }
}

impl From<Errno> for Fail {
    fn from(e: Errno) -> Fail {
        Fail::Failed(format!("a verb that must succeed returned {e}"))
    }
}

impl From<PostError> for Fail {
    fn from(e: PostError) -> Fail {
        Fail::Failed(format!(
            "a post that must succeed returned {}, bad_wr {:?}",
            e.errno, e.bad_wr
        ))
    }
}

impl From<std::io::Error> for Fail {
    fn from(e: std::io::Error) -> Fail {
        Fail::Failed(e.to_string())
    }
}

/// Adds to an error the step at which it occurred.
pub trait ErrorContext<T> {
    fn at(self, step: &str) -> Result<T, Fail>;
}

impl<T, E: Into<Fail>> ErrorContext<T> for Result<T, E> {
    fn at(self, step: &str) -> Result<T, Fail> {
        self.map_err(|e| match e.into() {
            Fail::Failed(why) => Fail::Failed(format!("{step}: {why}")),
            skipped => skipped,
        })
    }
}

/// Fails the test with a message unless the condition holds.
#[macro_export]
macro_rules! ensure {
    ($cond:expr, $($arg:tt)+) => {
        if !$cond {
            return Err($crate::Fail::Failed(format!($($arg)+)));
        }
    };
}

/// Fails the test unless both values are equal; the message names the compared value.
#[macro_export]
macro_rules! ensure_eq {
    ($left:expr, $right:expr, $($arg:tt)+) => {{
        let (left, right) = (&$left, &$right);
        if left != right {
            return Err($crate::Fail::Failed(format!(
                "{}: got {:?}, expected {:?}", format_args!($($arg)+), left, right)));
        }
    }};
}
