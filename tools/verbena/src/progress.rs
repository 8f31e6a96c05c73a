// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The line that a terminal shows while guests boot, or while suites run in them.

use std::io::{self, IsTerminal, Write};
use verbena_vm::Progress;

/// A line on standard error that replaces the one before. Only a terminal shows it.
#[derive(Debug, Default)]
pub struct StatusLine {
    shown: String,
}

impl StatusLine {
    /// Shows a line, or none if the text is empty.
    pub fn show(&mut self, text: &str) {
        if text == self.shown || !io::stderr().is_terminal() {
            return;
        }
        // A terminal that is gone needs no line.
        let _ = io::stderr().write_all(format!("\r\x1b[K{text}").as_bytes());
        self.shown = String::from(text);
    }
}

/// The line about guests that boot, which is removed when they are up.
#[derive(Debug, Default)]
pub struct ProgressLine(StatusLine);

impl ProgressLine {
    /// Shows the progress.
    pub fn show(&mut self, progress: &Progress) {
        self.0.show(&describe(progress));
    }
}

fn describe(progress: &Progress) -> String {
    let Progress::Booting {
        elapsed,
        accelerator,
        up: (up, all),
    } = progress
    else {
        return String::new();
    };
    let what = match all {
        1 => String::from("booting the guest"),
        _ => format!("booting {all} guests, {up} of them are up"),
    };
    format!("{what} ({accelerator}): {} s", elapsed.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_line_changes_once_a_second_and_ends_empty() {
        let booting = |up, milliseconds| {
            describe(&Progress::Booting {
                elapsed: Duration::from_millis(milliseconds),
                accelerator: String::from("tcg"),
                up,
            })
        };
        assert_eq!(booting((0, 1), 1999), "booting the guest (tcg): 1 s");
        assert_eq!(
            booting((1, 2), 0),
            "booting 2 guests, 1 of them are up (tcg): 0 s"
        );
        assert_eq!(describe(&Progress::Done), "");
    }
}
