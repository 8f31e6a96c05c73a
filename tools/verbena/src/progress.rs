// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The line that a terminal shows while guests boot.

use std::io::{self, IsTerminal, Write};
use verbena_vm::Progress;

/// A line on standard error, which is removed when the guests are up.
#[derive(Debug, Default)]
pub struct ProgressLine {
    shown: String,
}

impl ProgressLine {
    /// Shows the progress, if standard error is a terminal.
    pub fn show(&mut self, progress: &Progress) {
        let text = describe(progress);
        if text == self.shown || !io::stderr().is_terminal() {
            return;
        }
        // A terminal that is gone needs no line.
        let _ = io::stderr().write_all(format!("\r\x1b[K{text}").as_bytes());
        self.shown = text;
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
