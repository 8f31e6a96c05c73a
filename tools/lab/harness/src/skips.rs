// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The list of the tests that may be skipped: `scripts/lib/skips`.
//!
//! Its lines are `SUITES TEST # why`. SUITES are patterns joined by commas, and TEST is a pattern. In a
//! pattern, `*` stands for any characters.

use std::path::Path;

/// The tests that may be skipped.
#[derive(Clone, Debug, Default)]
pub struct Skips(Vec<(Vec<String>, String)>);

impl Skips {
    /// Reads the list.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or a line is not of this form.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        Self::parse(&text).map_err(|why| format!("{}: {why}", path.display()))
    }

    /// Reads the lines of the list.
    ///
    /// # Errors
    ///
    /// A line does not name suites, a test and a reason.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut listed = Vec::new();
        for (n, line) in text.lines().enumerate() {
            if line.starts_with('#') || line.trim().is_empty() {
                continue;
            }
            let (entry, why) = line.split_once('#').unwrap_or((line, ""));
            let words: Vec<&str> = entry.split_whitespace().collect();
            let ([suites, test], false) = (words.as_slice(), why.trim().is_empty()) else {
                return Err(format!("line {} is not `SUITES TEST # why`: {line}", n + 1));
            };
            let suites = suites.split(',').map(str::to_owned).collect();
            listed.push((suites, (*test).to_owned()));
        }
        Ok(Self(listed))
    }

    /// True if the test of the suite may be skipped.
    pub fn allow(&self, suite: &str, test: &str) -> bool {
        let mut listed = self.0.iter();
        listed.any(|(suites, pattern)| {
            suites.iter().any(|s| matches(s, suite)) && matches(pattern, test)
        })
    }
}

/// True if the pattern describes the whole text. Each `*` takes the first place where what is between it
/// and the next `*` fits, which leaves the most to those behind it.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else {
        return rest.is_empty();
    };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_characters() {
        for (pattern, text) in [
            ("a", "a"),
            ("*", ""),
            ("*::speed", "x::speed"),
            ("test_device.*DM*.*", "test_device.DMTest.test_alloc"),
            ("a*b*b", "abb"),
            ("a*a", "aa"),
        ] {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("a", "ab"),
            ("*::speed", "x::speeds"),
            ("a*a", "a"),
            ("a*b*b", "ab"),
        ] {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
    }

    #[test]
    fn a_line_names_suites_a_test_and_a_reason() {
        let skips = Skips::parse("# head\n\na,b t.* # because\nkernels kernel-* # gone\n").unwrap();
        assert!(
            skips.allow("a", "t.x")
                && skips.allow("b", "t.y")
                && skips.allow("kernels", "kernel-7")
        );
        assert!(!skips.allow("c", "t.x") && !skips.allow("a", "u") && !skips.allow("a,b", "t.x"));
        for wrong in ["a t", "a t #", "a # why", "a t u # why"] {
            assert!(
                Skips::parse(wrong).unwrap_err().contains("line 1"),
                "{wrong}"
            );
        }
    }

    #[test]
    fn the_list_of_the_project_can_be_read() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../scripts/lib/skips");
        let skips = Skips::read(&path).unwrap();
        assert!(skips.allow("pyverbs", "test_flow.FlowTest.test_x"));
        assert!(skips.allow("infiniband-verbs", "test_odp.OdpTest.test_x"));
        assert!(!skips.allow("guest", "test_odp.OdpTest.test_x"));
    }
}
