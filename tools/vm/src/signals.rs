// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The signals that end a run.

use nix::sys::signal::Signal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

/// Flags that the signals set. The handlers do not survive `exec`, so children have the default.
#[derive(Clone, Debug)]
pub struct Signals([(Signal, Arc<AtomicBool>); 3]);

impl Signals {
    /// Catches SIGINT, SIGTERM and SIGHUP from now on. Those that nohup(1) or a shell makes this
    /// process ignore stay ignored.
    ///
    /// # Errors
    ///
    /// The kernel refuses a handler.
    pub fn catch() -> Result<Self, String> {
        let signals = Self(
            [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]
                .map(|signal| (signal, Arc::new(AtomicBool::new(false)))),
        );
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        for (signal, flag) in &signals.0 {
            if is_ignored(*signal, &status) {
                continue;
            }
            signal_hook::flag::register(*signal as i32, Arc::clone(flag))
                .map_err(|e| format!("cannot catch {signal}: {e}"))?;
        }
        Ok(signals)
    }

    /// Returns a signal that has arrived.
    pub fn received(&self) -> Option<Signal> {
        let mut flags = self.0.iter();
        let (signal, _) = flags.find(|(_, flag)| flag.load(Ordering::Relaxed))?;
        Some(*signal)
    }

    /// Returns a signal that has arrived, once.
    pub fn take(&self) -> Option<Signal> {
        let mut flags = self.0.iter();
        let (signal, _) = flags.find(|(_, flag)| flag.swap(false, Ordering::Relaxed))?;
        Some(*signal)
    }
}

/// True if the process with this `/proc/PID/status` ignores the signal.
fn is_ignored(signal: Signal, status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.unwrap_or(0) >> (signal as u32 - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_known() {
        let status = "Name:\tx\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000000001\n";
        assert!(is_ignored(Signal::SIGHUP, status));
        assert!(!is_ignored(Signal::SIGINT, status));
        assert!(is_ignored(Signal::SIGTERM, "SigIgn:\t0000000000004000"));
        assert!(!is_ignored(Signal::SIGTERM, ""));
    }

    #[test]
    fn a_signal_is_received() {
        let signals = Signals::catch().unwrap();
        assert_eq!(signals.received(), None);
        let own = nix::unistd::getpid();
        nix::sys::signal::kill(own, Signal::SIGTERM).unwrap();
        while signals.received().is_none() {
            std::thread::yield_now();
        }
        assert_eq!(signals.received(), Some(Signal::SIGTERM));
        assert_eq!(signals.take(), Some(Signal::SIGTERM));
        assert_eq!((signals.take(), signals.received()), (None, None));
    }
}
