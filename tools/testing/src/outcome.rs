// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a test is and how it can end.
use crate::ffi::qp::PostError;
use crate::ffi::sys::Errno;
use crate::rig::Rig;

/// Why a test did not pass.
#[derive(Debug)]
pub enum Fail {
    Failed(String),
    /// The device does not offer what the test needs.
    Skipped(String),
}

pub type TestResult = Result<(), Fail>;

/// One test.
pub struct Test {
    pub name: &'static str,
    pub run: fn(&Rig) -> TestResult,
    /// Seconds until it counts as hung.
    pub limit: u64,
    /// Runs only with `--long` or when `--filter` names it exactly.
    pub long: bool,
    /// Looks at the whole device, so no other test runs beside it.
    pub alone: bool,
}

impl Test {
    pub const fn new(name: &'static str, run: fn(&Rig) -> TestResult) -> Test {
        Test {
            name,
            run,
            limit: 60,
            long: false,
            alone: false,
        }
    }

    pub const fn limit(mut self, seconds: u64) -> Test {
        self.limit = seconds;
        self
    }

    pub const fn alone(mut self) -> Test {
        self.alone = true;
        self
    }

    pub const fn long(mut self) -> Test {
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

/// Names the step at which an error came up.
pub trait Context<T> {
    fn at(self, step: &str) -> Result<T, Fail>;
}

impl<T, E: Into<Fail>> Context<T> for Result<T, E> {
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

/// Fails the test unless both are equal; the message says what was compared.
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
