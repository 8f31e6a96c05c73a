// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Judges the kernel log of a guest: oopses, warnings, lockups, leaks.

use crate::boots::{contains, whole_boots};
use regex::bytes::{Regex, RegexSet, RegexSetBuilder};
use std::sync::LazyLock;

/// The patterns, one a line, which `scripts/vm` reads from the same file.
static PATTERNS: LazyLock<RegexSet> = LazyLock::new(|| {
    let lines = include_str!("../../../scripts/lib/kernel-complaints").lines();
    let patterns = RegexSetBuilder::new(lines).unicode(false).build();
    patterns.expect("the patterns are valid")
});

/// Returns the first complaint in a kernel log, with the number of its line among the boots that
/// count. Lines that one of the `excuses` matches are no complaints.
pub fn first_complaint(log: &[u8], excuses: &[&Regex]) -> Option<String> {
    let whole = whole_boots(log);
    let mut lines = whole.log.split(|&byte| byte == b'\n').enumerate();
    let (number, line) = lines.find(|(_, line)| {
        PATTERNS.is_match(line) && !excuses.iter().any(|excuse| excuse.is_match(line))
    })?;
    let text = String::from_utf8_lossy(line);
    let text: String = text.trim_end().chars().take(200).collect();
    Some(format!("{text} (line {} of kernel.log)", number + 1))
}

/// Returns a pattern of the crashes that a test has declared to be bugs of the program
/// (`excuse_crash` in `scripts/guest/perftest.py`).
pub fn excused_crashes(log: &[u8]) -> Option<Regex> {
    let mut crashes = Vec::new();
    for line in log.split(|&byte| byte == b'\n') {
        if !contains(line, b"verbena: the crash of ") {
            continue;
        }
        let line = String::from_utf8_lossy(line);
        let Some((_, rest)) = line.split_once("verbena: the crash of ") else {
            continue;
        };
        let Some((process, _)) = rest.split_once(" is a bug of the program") else {
            continue;
        };
        crashes.push(format!("traps: {} ", regex::escape(process)));
    }
    match crashes.is_empty() {
        true => None,
        false => Regex::new(&crashes.join("|")).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_complaint_is_found() {
        for line in [
            "[ 1.0] WARNING: CPU: 0 PID: 1 at x.c:1",
            "[ 1.0] BUG: KASAN: use-after-free in f",
            "[ 1.0] Oops: int3: 0000 [#1]",
            "[ 1.0] INFO: task x:1 blocked for more than 20 seconds.",
            "[ 1.0] watchdog: BUG: soft lockup - CPU#0 stuck",
            "[ 1.0] kmemleak: 3 objects leaked",
            "[ 1.0] verbena 0000:01:00.0: 2 pages leak",
        ] {
            let log = format!(
                "[    0.000000] Linux version 7\n[ 0.9] Run /init as init process\n{line}\nmore\n"
            );
            let found = first_complaint(log.as_bytes(), &[]);
            assert_eq!(found, Some(format!("{line} (line 3 of kernel.log)")));
        }
        assert_eq!(first_complaint(b"[ 1.0] all is well\n", &[]), None);
        assert_eq!(
            first_complaint(b"\xff\xfe WARNING: x\n", &[]).map(|c| c.contains("line 1")),
            Some(true)
        );
    }

    #[test]
    fn expected_lines_and_boots_that_the_emulator_broke_are_no_complaints() {
        let expected = Regex::new("blocked for").unwrap();
        let log = b"INFO: task x blocked for more than 20\nWARNING: y\n";
        let found = first_complaint(log, &[&expected]).unwrap();
        assert!(found.starts_with("WARNING: y"), "{found}");
        let log = b"[    0.000000] Linux version 7\n[ 1.0] Oops: int3: 0000\n";
        assert_eq!(first_complaint(log, &[]), None);
    }

    #[test]
    fn only_the_named_crash_is_excused() {
        let log = b"[ 1.0] verbena: the crash of ib_send_bw[12] is a bug of the program\n";
        let excused = excused_crashes(log).unwrap();
        assert!(excused.is_match(b"traps: ib_send_bw[12] general protection fault"));
        assert!(!excused.is_match(b"traps: ib_send_bw[13] general protection fault"));
        assert!(excused_crashes(b"[ 1.0] x\n").is_none());
    }
}
