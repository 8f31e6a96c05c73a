// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Finds the boots in a kernel log that the emulator broke. They are repeated, and do not count.
//!
//! `scripts/lib/boots.awk`, which `scripts/vm` uses, has the same rule and its reason: before
//! `/init` runs, TCG may execute an int3 that the kernel has removed from its code long ago.

/// The kernel log of a guest, as far as it counts.
#[derive(Debug, PartialEq, Eq)]
pub struct WholeBoots {
    /// The log without the boots that the emulator broke.
    pub log: Vec<u8>,
    /// True if the last boot is broken.
    pub is_last_broken: bool,
}

/// Splits a kernel log into boots, and drops those that the emulator broke.
pub fn whole_boots(log: &[u8]) -> WholeBoots {
    let mut whole = WholeBoots {
        log: Vec::new(),
        is_last_broken: false,
    };
    let (mut begin, mut at, mut is_init) = (0, 0, false);
    for line in log.split_inclusive(|&byte| byte == b'\n') {
        if is_first_line(line) {
            if !whole.is_last_broken {
                whole.log.extend_from_slice(&log[begin..at]);
            }
            (begin, is_init, whole.is_last_broken) = (at, false, false);
        }
        is_init |= contains(line, b"init as init process") && contains(line, b"Run ");
        whole.is_last_broken |= !is_init && contains(line, b"Oops: int3: ");
        at += line.len();
    }
    if !whole.is_last_broken {
        whole.log.extend_from_slice(&log[begin..]);
    }
    whole
}

/// True for the first line of a boot: `[    0.000000] Linux version `.
fn is_first_line(line: &[u8]) -> bool {
    let Some(time_end) = line.iter().position(|&byte| byte == b']') else {
        return false;
    };
    let (time, rest) = line.split_at(time_end);
    time.first() == Some(&b'[')
        && time[1..].iter().all(|byte| b" 0.".contains(byte))
        && rest.starts_with(b"] Linux version ")
}

/// True if `line` has the text `part`.
pub fn contains(line: &[u8], part: &[u8]) -> bool {
    line.windows(part.len()).any(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "[    0.000000] Linux version 7.2\n";
    const INIT: &str = "[    2.1] Run /init as init process\n";
    const INT3: &str = "[    1.0] Oops: int3: 0000 [#1] SMP\n";

    fn whole(log: &str) -> (String, bool) {
        let whole = whole_boots(log.as_bytes());
        (String::from_utf8(whole.log).unwrap(), whole.is_last_broken)
    }

    #[test]
    fn a_boot_that_the_emulator_broke_is_dropped() {
        let good = format!("{FIRST}{INIT}up\n");
        let broken = format!("{FIRST}{INT3}");
        assert_eq!(whole(&good), (good.clone(), false));
        assert_eq!(whole(&broken), (String::new(), true));
        assert_eq!(whole(&format!("{broken}{good}")), (good.clone(), false));
        assert_eq!(whole(&format!("{good}{broken}")), (good, true));
    }

    #[test]
    fn an_int3_after_init_counts() {
        let log = format!("{FIRST}{INIT}{INT3}");
        assert_eq!(whole(&log), (log.clone(), false));
        // A log that begins in the middle of a boot.
        assert_eq!(whole("x\n"), (String::from("x\n"), false));
        assert_eq!(whole(""), (String::new(), false));
    }
}
