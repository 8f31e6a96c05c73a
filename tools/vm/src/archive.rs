// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Writes archives in the format `newc` of cpio, which the kernel unpacks into its first root.
//!
//! The format is that of Documentation/driver-api/early-userspace/buffer-format.rst of the kernel.

use std::collections::BTreeSet;
use std::path::Path;

const DIRECTORY: u32 = 0o040_755;
const FILE: u32 = 0o100_000;
const LAST: &str = "TRAILER!!!";

/// An archive in memory. All entries belong to root.
#[derive(Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    entries: u32,
    directories: BTreeSet<String>,
}

impl Archive {
    /// Adds a file with its permissions, after the directories above it.
    ///
    /// # Panics
    ///
    /// The file has 4 GiB or more, for which the format has no room.
    pub fn add_file(&mut self, path: &str, permissions: u32, contents: &[u8]) {
        let above: Vec<&Path> = Path::new(path).ancestors().skip(1).collect();
        for directory in above.into_iter().rev() {
            let name = directory.to_string_lossy().into_owned();
            if !name.is_empty() && self.directories.insert(name.clone()) {
                self.add(&name, DIRECTORY, &[]);
            }
        }
        self.add(path, FILE | permissions, contents);
    }

    /// Returns the complete archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.add(LAST, 0, &[]);
        self.bytes
    }

    fn add(&mut self, name: &str, mode: u32, contents: &[u8]) {
        self.entries += 1;
        let length = |bytes: usize| u32::try_from(bytes).expect("entries are shorter than 4 GiB");
        let links = if mode == DIRECTORY { 2 } else { 1 };
        let fields = [
            self.entries, // inode
            mode,
            0, // owner
            0, // group
            links,
            0, // time
            length(contents.len()),
            0, // device of the file
            0,
            0, // number of a device file
            0,
            length(name.len() + 1),
            0, // no checksum
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes
                .extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(contents);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads an archive: the name, mode and contents of each entry.
    fn read(mut bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let mut entries = Vec::new();
        while !bytes.is_empty() {
            assert_eq!(&bytes[..6], b"070701");
            let field = |n: usize| {
                let digits = std::str::from_utf8(&bytes[6 + 8 * n..14 + 8 * n]).unwrap();
                u32::from_str_radix(digits, 16).unwrap()
            };
            let (mode, size, name) = (field(1), field(6) as usize, field(11) as usize);
            let begin = (110 + name).next_multiple_of(4);
            let text = String::from_utf8(bytes[110..110 + name - 1].to_vec()).unwrap();
            assert_eq!(bytes[110 + name - 1], 0);
            entries.push((text, mode, bytes[begin..begin + size].to_vec()));
            bytes = &bytes[(begin + size).next_multiple_of(4)..];
        }
        entries
    }

    #[test]
    fn directories_come_once_and_before_their_files() {
        let mut archive = Archive::default();
        archive.add_file("a/b/file", 0o644, b"contents");
        archive.add_file("a/b/run", 0o755, b"");
        let entry =
            |name: &str, mode, contents: &[u8]| (String::from(name), mode, contents.to_vec());
        let expected = [
            entry("a", 0o040_755, b""),
            entry("a/b", 0o040_755, b""),
            entry("a/b/file", 0o100_644, b"contents"),
            entry("a/b/run", 0o100_755, b""),
            entry(LAST, 0, b""),
        ];
        assert_eq!(read(&archive.finish()), expected);
    }

    #[test]
    fn names_and_contents_of_any_length_are_aligned() {
        for length in 1..9 {
            let mut archive = Archive::default();
            archive.add_file(&"n".repeat(length), 0o600, "x".repeat(length).as_bytes());
            let bytes = archive.finish();
            assert_eq!(bytes.len() % 4, 0);
            assert_eq!(read(&bytes)[0].2.len(), length);
        }
    }
}
