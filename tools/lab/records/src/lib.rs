// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Writes the records of test results by which a test program reports to the test harness
//! (`tools/lab/harness/src/records.rs` has the format).
//!
//! The harness names a file by the variable [`FILE`]. In a guest the file is a port to the host.
//! Without the variable nothing is written.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The variable that names the file of records. A program that starts test programs whose results it
/// reports itself removes the variable from their environment.
pub const FILE: &str = "VERBENA_RESULTS";
/// The number of characters of a name or a reason.
const LONGEST_TEXT: usize = 1000;
/// A port can be opened by one process at a time.
const TRIES: u32 = 200;
const BUSY_INTERVAL: Duration = Duration::from_millis(20);

/// The verdict on a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Passed,
    Failed,
    Skipped,
}

impl Verdict {
    fn name(self) -> &'static str {
        match self {
            Verdict::Passed => "passed",
            Verdict::Failed => "failed",
            Verdict::Skipped => "skipped",
        }
    }
}

/// The records of a program, from its begin to its end.
#[derive(Debug)]
pub struct Records {
    file: Option<PathBuf>,
    /// The fields that name this program.
    program: String,
    tests: usize,
}

impl Records {
    /// The program begins.
    pub fn begin(program: &str) -> Self {
        let file = std::env::var_os(FILE).map(PathBuf::from);
        Self::begin_in(file, program)
    }

    /// The program begins, with records in this file, or none.
    pub fn begin_in(file: Option<PathBuf>, program: &str) -> Self {
        let file = file.filter(|file| !file.as_os_str().is_empty());
        let program = format!(
            "\"program\":{},\"process\":{},\"where\":{}",
            quoted(program),
            std::process::id(),
            quoted(&file.as_deref().map(place_of).unwrap_or_default())
        );
        let records = Self {
            file,
            program,
            tests: 0,
        };
        records.write("\"event\":\"begin\"");
        records
    }

    /// A test has ended. `reason` says why it failed or was skipped.
    pub fn test(&mut self, name: &str, verdict: Verdict, reason: &str, took: Option<Duration>) {
        self.tests += 1;
        let seconds = took.map(|took| format!(",\"seconds\":{:.3}", took.as_secs_f64()));
        self.write(&format!(
            "\"event\":\"test\",\"name\":{},\"verdict\":\"{}\",\"reason\":{}{}",
            quoted(name),
            verdict.name(),
            quoted(reason),
            seconds.unwrap_or_default()
        ));
    }

    /// The program ends. Without this record the harness counts the program as failed.
    pub fn end(self) {
        self.write(&format!("\"event\":\"end\",\"tests\":{}", self.tests));
    }

    /// Appends a line. A record that is lost is a failure, which the harness finds by the number of tests.
    fn write(&self, fields: &str) {
        let Some(file) = &self.file else { return };
        let line = format!("{{{fields},{}}}\n", self.program);
        if let Err(why) = append(file, line.as_bytes()) {
            eprintln!(
                "cannot write a record of a result to {}: {why}",
                file.display()
            );
        }
    }
}

/// Appends a line by a single write, because other programs may write to the same file.
fn append(file: &Path, line: &[u8]) -> std::io::Result<()> {
    let mut tries = 0;
    loop {
        match OpenOptions::new().append(true).create(true).open(file) {
            Ok(mut file) => return file.write_all(line),
            Err(e) if e.kind() == ErrorKind::ResourceBusy && tries < TRIES => tries += 1,
            Err(e) => return Err(e),
        }
        std::thread::sleep(BUSY_INTERVAL);
    }
}

/// Returns the name of the guest if the file is a port of a guest.
fn place_of(file: &Path) -> String {
    let is_port = std::fs::metadata(file).is_ok_and(|about| about.file_type().is_char_device());
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname");
    match name {
        Ok(name) if is_port => name.trim().to_owned(),
        _ => String::new(),
    }
}

/// Returns a text, shortened, as a string of JSON.
fn quoted(text: &str) -> String {
    let mut json = String::from("\"");
    for c in text.chars().take(LONGEST_TEXT) {
        match c {
            '"' | '\\' => json.extend(['\\', c]),
            '\n' => json.push_str("\\n"),
            c if c.is_control() => json.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => json.push(c),
        }
    }
    json.push('"');
    json
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_quoted() {
        assert_eq!(quoted("a \"b\"\n\\\u{1b}é"), r#""a \"b\"\n\\\u001bé""#);
        assert_eq!(quoted(&"x".repeat(2000)).len(), LONGEST_TEXT + 2);
    }

    #[test]
    fn records_are_appended_to_the_file() {
        let file = std::env::temp_dir().join(format!("verbena-records-{}", std::process::id()));
        std::fs::write(&file, "first\n").unwrap();
        let mut records = Records::begin_in(Some(file.clone()), "p");
        records.test(
            "a",
            Verdict::Failed,
            "why",
            Some(Duration::from_millis(1500)),
        );
        records.end();
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        let own = format!(
            "\"program\":\"p\",\"process\":{},\"where\":\"\"}}",
            std::process::id()
        );
        let expected = [
            "first".to_owned(),
            format!("{{\"event\":\"begin\",{own}"),
            format!("{{\"event\":\"test\",\"name\":\"a\",\"verdict\":\"failed\",\"reason\":\"why\",\"seconds\":1.500,{own}"),
            format!("{{\"event\":\"end\",\"tests\":1,{own}"),
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn without_a_file_nothing_is_written() {
        let mut records = Records::begin_in(None, "p");
        records.test("a", Verdict::Passed, "", None);
        records.end();
        Records::begin_in(Some(PathBuf::new()), "p").end();
    }
}
