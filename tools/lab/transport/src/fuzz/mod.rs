// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The targets of the fuzzer: a function of bytes for each, which panics on an error.
//!
//! `tools/lab/transport/fuzz` wraps each into a program for libFuzzer (`scripts/fuzz` builds and runs
//! them). The ordinary tests here run each over the committed corpus and over every input that ever
//! crashed it.
//!
//! | target | meaning of the bytes |
//! | --- | --- |
//! | `ethernet`, `ipv4`, `ipv6`, `udp`, `bth` | a header and the bytes after it |
//! | `ext` | a byte that names an extension header, and the header |
//! | `frame` | a byte of repairs (see `frames.rs`), and a frame |
//! | `round_trip` | the same; the parsed frame is emitted and parsed again |
//! | `operations` | a setup of queue pairs, and operations on them (see `operations/`) |

pub mod adapter;
pub mod frames;
pub mod headers;
pub mod operations;

/// A target: a function of bytes.
pub type FuzzTarget = fn(&[u8]);

/// Every target with its name.
pub const TARGETS: [(&str, FuzzTarget); 9] = [
    ("ethernet", headers::ethernet),
    ("ipv4", headers::ipv4),
    ("ipv6", headers::ipv6),
    ("udp", headers::udp),
    ("bth", headers::bth),
    ("ext", headers::ext),
    ("frame", frames::frame),
    ("round_trip", frames::round_trip),
    ("operations", operations::operations),
];

/// Takes values from the front of an input. After the end of the input every value is 0.
#[derive(Clone, Copy, Debug)]
pub struct FuzzInput<'a>(&'a [u8]);

impl<'a> FuzzInput<'a> {
    /// Returns an input with all its bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// True if no byte is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the bytes that are left.
    pub fn rest(&self) -> &'a [u8] {
        self.0
    }

    /// Takes one byte.
    pub fn u8(&mut self) -> u8 {
        match self.0.split_first() {
            Some((byte, rest)) => {
                self.0 = rest;
                *byte
            }
            None => 0,
        }
    }

    /// Takes two bytes.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.u8(), self.u8()])
    }

    /// Takes four bytes.
    pub fn u32(&mut self) -> u32 {
        u32::from(self.u16()) | u32::from(self.u16()) << 16
    }

    /// Takes one byte and returns the element that it selects.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::from(self.u8()) % of.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::{env, fs, println};

    fn unhex(line: &str) -> Vec<u8> {
        assert!(line.len() % 2 == 0 && line.is_ascii(), "{line:?}");
        (0..line.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&line[at..at + 2], 16).unwrap())
            .collect()
    }

    fn each(folder: &str, run: impl Fn(&str, FuzzTarget, &str, Vec<u8>)) {
        let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
        for (name, target) in TARGETS {
            if folder == "corpus" {
                let file = fuzz.join("corpus").join(name).with_extension("hex");
                let lines = fs::read_to_string(file).expect("each target has a corpus");
                assert!(lines.lines().count() > 2);
                for line in lines.lines() {
                    run(name, target, line, unhex(line));
                }
            } else if let Ok(files) = fs::read_dir(fuzz.join(folder).join(name)) {
                for file in files {
                    let path = file.unwrap().path();
                    run(
                        name,
                        target,
                        &path.display().to_string(),
                        fs::read(&path).unwrap(),
                    );
                }
            }
        }
    }

    /// Runs the targets over the inputs in a folder. With `VERBENA_FUZZ_SHOW=1`, prints each input
    /// before it runs, so that the last one printed is the one that fails.
    fn replay(folder: &str) {
        let show = env::var_os("VERBENA_FUZZ_SHOW").is_some();
        each(folder, |name, target, input, bytes| {
            if show {
                println!("{name}: {input}");
            }
            target(&bytes);
        });
    }

    #[test]
    fn corpus_passes() {
        replay("corpus");
    }

    #[test]
    fn inputs_that_crashed_once_pass() {
        replay("crashes");
    }

    #[test]
    fn each_target_has_a_program() {
        let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/fuzz_targets");
        let mut programs: Vec<String> = fs::read_dir(fuzz)
            .unwrap()
            .map(|file| {
                file.unwrap()
                    .path()
                    .file_stem()
                    .unwrap()
                    .to_string_lossy()
                    .into_owned()
            })
            .collect();
        programs.sort();
        // The programs for the NIC's targets are here, but their code is in a laboratory of its
        // own.
        let mut targets: Vec<String> = [
            "hostile_frames",
            "recording",
            "rule_file",
            "subnet",
            "subnet_packets",
        ]
        .map(String::from)
        .into();
        targets.extend(TARGETS.map(|(name, _)| String::from(name)));
        targets.sort();
        assert_eq!(programs, targets);
    }
}
