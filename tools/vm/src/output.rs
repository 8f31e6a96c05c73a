// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Streams what the commands in the guests print, from the files that QEMU writes.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// One of the two standard outputs of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

impl Stream {
    /// Returns 0 for standard output, 1 for standard error.
    pub fn index(self) -> usize {
        match self {
            Self::Out => 0,
            Self::Err => 1,
        }
    }

    /// Writes bytes to this output at once.
    ///
    /// # Errors
    ///
    /// The reader has closed its pipe, or the file cannot be written.
    pub fn write(self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Out => {
                let mut out = io::stdout().lock();
                out.write_all(bytes).and_then(|()| out.flush())
            }
            Self::Err => io::stderr().lock().write_all(bytes),
        }
    }
}

/// Adds the name of a guest to each line. A line is written as a whole.
#[derive(Debug, Default)]
pub struct LinePrefixer {
    prefix: Vec<u8>,
    rest: Vec<u8>,
}

impl LinePrefixer {
    /// Returns one that adds `prefix`, or one that passes everything on at once if it is empty.
    pub fn new(prefix: &str) -> Self {
        Self {
            prefix: Vec::from(prefix),
            rest: Vec::new(),
        }
    }

    /// Takes bytes, and returns those that can be written now.
    pub fn take(&mut self, bytes: &[u8]) -> Vec<u8> {
        if self.prefix.is_empty() {
            return bytes.to_vec();
        }
        self.rest.extend_from_slice(bytes);
        let whole = self
            .rest
            .iter()
            .rposition(|&byte| byte == b'\n')
            .map_or(0, |end| end + 1);
        let lines: Vec<u8> = self.rest.drain(..whole).collect();
        self.prefixed(&lines)
    }

    /// Returns the last line, if it has no end.
    pub fn finish(&mut self) -> Vec<u8> {
        let rest = std::mem::take(&mut self.rest);
        self.prefixed(&rest)
    }

    fn prefixed(&self, lines: &[u8]) -> Vec<u8> {
        let lines = lines.split_inclusive(|&byte| byte == b'\n');
        lines
            .flat_map(|line| [self.prefix.as_slice(), line].concat())
            .collect()
    }
}

/// The threads that stream the outputs of all guests.
#[derive(Debug, Default)]
pub struct OutputStreams {
    threads: Vec<JoinHandle<()>>,
    has_ended: Arc<AtomicBool>,
    is_reader_gone: Arc<AtomicBool>,
}

impl OutputStreams {
    /// Begins to stream a file that grows.
    ///
    /// # Errors
    ///
    /// The file cannot be opened.
    pub fn add(&mut self, file: &Path, stream: Stream, prefix: &str) -> Result<(), String> {
        let file = File::open(file).map_err(|e| format!("{}: {e}", file.display()))?;
        let prefixer = LinePrefixer::new(prefix);
        let has_ended = Arc::clone(&self.has_ended);
        let is_reader_gone = Arc::clone(&self.is_reader_gone);
        self.threads.push(std::thread::spawn(move || {
            let write = |bytes: &[u8]| stream.write(bytes);
            if copy_while_growing(file, prefixer, &has_ended, write).is_err() {
                is_reader_gone.store(true, Ordering::Relaxed);
            }
        }));
        Ok(())
    }

    /// True if the reader of an output has closed its pipe.
    pub fn is_reader_gone(&self) -> bool {
        self.is_reader_gone.load(Ordering::Relaxed)
    }

    /// Writes the rest of the outputs. No guest may run any more.
    pub fn finish(self) {
        self.has_ended.store(true, Ordering::Release);
        for thread in self.threads {
            // A thread that panicked has printed why.
            let _ = thread.join();
        }
    }
}

/// Copies a file until its end, again and again until `has_ended`.
fn copy_while_growing(
    mut file: impl Read,
    mut prefixer: LinePrefixer,
    has_ended: &AtomicBool,
    mut write: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut chunk = vec![0; 1 << 16];
    loop {
        // Read the flag first: what was written before it was set is then read.
        let is_last = has_ended.load(Ordering::Acquire);
        loop {
            let length = file.read(&mut chunk)?;
            if length == 0 {
                break;
            }
            write(&prefixer.take(&chunk[..length]))?;
        }
        if is_last {
            return write(&prefixer.finish());
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_of_several_guests_has_a_name() {
        let mut prefixer = LinePrefixer::new("vm2| ");
        assert_eq!(prefixer.take(b"one"), b"");
        assert_eq!(prefixer.take(b" line\n\nnext"), b"vm2| one line\nvm2| \n");
        assert_eq!(prefixer.finish(), b"vm2| next");
        assert_eq!(prefixer.finish(), b"");
    }

    #[test]
    fn the_output_of_one_guest_passes_at_once() {
        let mut prefixer = LinePrefixer::new("");
        assert_eq!(prefixer.take(b"par"), b"par");
        assert_eq!(prefixer.finish(), b"");
    }

    #[test]
    fn what_was_written_before_the_end_is_copied() {
        let mut written = Vec::new();
        let prefixer = LinePrefixer::new("a ");
        copy_while_growing(&b"1\n2"[..], prefixer, &AtomicBool::new(true), |bytes| {
            written.extend_from_slice(bytes);
            Ok(())
        })
        .unwrap();
        assert_eq!(written, b"a 1\na 2");
    }

    #[test]
    fn a_closed_pipe_ends_the_copy() {
        let broken = |_: &[u8]| Err(io::Error::from(io::ErrorKind::BrokenPipe));
        let copied = copy_while_growing(
            &b"1"[..],
            LinePrefixer::new(""),
            &AtomicBool::new(false),
            broken,
        );
        assert_eq!(copied.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
