// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The terminal of a program that runs a command in a node: raw while the command runs, so that each
//! key reaches the terminal that the command has in the guest.

use crate::frames::{TerminalSize, TerminalStart};
use nix::sys::termios::{cfmakeraw, tcgetattr, tcsetattr, SetArg, Termios};
use std::io::{self, IsTerminal};

/// Size of a terminal that has none, as a serial line.
const DEFAULT_SIZE: TerminalSize = TerminalSize {
    rows: 24,
    columns: 80,
};

/// The terminal at standard input, in raw mode until this is dropped.
#[derive(Debug)]
pub struct RawTerminal(Termios);

impl RawTerminal {
    /// Sets the terminal to raw mode.
    ///
    /// # Errors
    ///
    /// Standard input or standard output is no terminal.
    pub fn enter() -> Result<Self, String> {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return Err(String::from(
                "-t needs a terminal at standard input and standard output: leave out -t",
            ));
        }
        let failed = |e: nix::errno::Errno| format!("the terminal cannot be set to raw mode: {e}");
        let before = tcgetattr(io::stdin()).map_err(failed)?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        tcsetattr(io::stdin(), SetArg::TCSADRAIN, &raw).map_err(failed)?;
        Ok(Self(before))
    }

    /// Describes the terminal to a guest.
    pub fn describe(&self) -> TerminalStart {
        TerminalStart {
            kind: std::env::var("TERM").unwrap_or_else(|_| String::from("linux")),
            size: size(),
        }
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // The terminal may be gone.
        let _ = tcsetattr(io::stdin(), SetArg::TCSADRAIN, &self.0);
    }
}

/// Returns the present size of the terminal at standard input.
pub fn size() -> TerminalSize {
    match rustix::termios::tcgetwinsize(io::stdin()) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => TerminalSize {
            rows: size.ws_row,
            columns: size.ws_col,
        },
        _ => DEFAULT_SIZE,
    }
}
