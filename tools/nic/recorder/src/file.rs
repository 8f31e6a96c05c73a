// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The file of a recording. Numbers are little-endian.
//!
//! | bytes | contents |
//! | --- | --- |
//! | 8 | `VERBENA` and a line feed |
//! | 4, 4 | [`VERSION`], bytes of an entry |
//! | 8 | number of the first entry |
//! | 8 | time of day, in nanoseconds since 1970, at which the device clock was 0 |
//! | 8 | device clock when the recording was taken |
//! | 6, 2 | MAC address of the port, 0 |
//! | 4 and this length | the reason for the recording, in UTF-8 |
//! | 4, and for each 4 and this length | the rules that entries name, in JSON, by number |
//! | 8, and for each the bytes of an entry | the entries |
//! | 8 | FNV-1a of all bytes before it |

use crate::entry::{Entry, WORDS};
use std::fmt;

/// Version of the file format.
pub const VERSION: u32 = 1;
const MAGIC: &[u8; 8] = b"VERBENA\n";
const ENTRY: usize = WORDS * 8;

/// The contents of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    /// Number of the first entry, which equals the number of earlier entries that were overwritten
    /// or not requested.
    pub first: u64,
    /// Time of day, in nanoseconds since 1970, at which the device clock was 0.
    pub power_on: u64,
    /// Device clock when the recording was taken.
    pub taken: u64,
    /// MAC address of the port.
    pub mac: [u8; 6],
    /// Reason for which the recording was taken.
    pub reason: String,
    /// The rules that entries name, in JSON, by their numbers.
    pub rules: Vec<String>,
    /// The entries, in the order of their numbers.
    pub entries: Vec<Entry>,
}

/// Reason for which bytes are not a valid recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bad {
    /// The bytes do not begin with the magic number.
    NoRecording,
    /// The file has this version, which is not [`VERSION`].
    Version(u32),
    /// The bytes end at this offset, in the middle of the named part.
    Short(usize, &'static str),
    /// The file has this number of bytes after its end.
    Long(usize),
    /// The checksum at the end does not match, so bytes have changed.
    Sum,
    /// The named part has an impossible value.
    Wrong(&'static str),
    /// The entry with this number has a kind that this version does not know.
    Entry(u64),
}

impl fmt::Display for Bad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRecording => write!(f, "this is not a recording of Verbena"),
            Self::Version(n) => write!(
                f,
                "a recording of version {n}; this program reads version {VERSION}"
            ),
            Self::Short(at, what) => write!(f, "it ends after {at} bytes, in the middle of {what}"),
            Self::Long(more) => write!(f, "it has {more} bytes after its end"),
            Self::Sum => write!(f, "its checksum is wrong: the file is damaged"),
            Self::Wrong(what) => write!(f, "{what} has an impossible value"),
            Self::Entry(n) => write!(f, "entry {n} has an unknown kind"),
        }
    }
}

fn sum(bytes: &[u8]) -> u64 {
    let fold = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, fold)
}

/// Reads the bytes of a file from front to back.
struct Rest<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Rest<'a> {
    fn take(&mut self, count: usize, what: &'static str) -> Result<&'a [u8], Bad> {
        let end = self.at.checked_add(count).ok_or(Bad::Wrong(what))?;
        let part = self.bytes.get(self.at..end);
        let part = part.ok_or(Bad::Short(self.bytes.len(), what))?;
        self.at = end;
        Ok(part)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], Bad> {
        let part = self.take(N, what)?;
        part.try_into().map_err(|_| Bad::Wrong(what))
    }

    fn u32(&mut self, what: &'static str) -> Result<u32, Bad> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    fn u64(&mut self, what: &'static str) -> Result<u64, Bad> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    fn text(&mut self, what: &'static str) -> Result<String, Bad> {
        let length = self.u32(what)? as usize;
        let text = self.take(length, what)?;
        String::from_utf8(text.to_vec()).map_err(|_| Bad::Wrong(what))
    }
}

fn put_text(text: &str, to: &mut Vec<u8>) {
    let length = u32::try_from(text.len()).unwrap_or(0);
    to.extend_from_slice(&length.to_le_bytes());
    to.extend_from_slice(text.get(..length as usize).unwrap_or_default().as_bytes());
}

impl Recording {
    /// Returns the contents of the file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut to = Vec::with_capacity(256 + self.entries.len() * ENTRY);
        to.extend_from_slice(MAGIC);
        to.extend_from_slice(&VERSION.to_le_bytes());
        to.extend_from_slice(&(ENTRY as u32).to_le_bytes());
        for number in [self.first, self.power_on, self.taken] {
            to.extend_from_slice(&number.to_le_bytes());
        }
        to.extend_from_slice(&self.mac);
        to.extend_from_slice(&[0; 2]);
        put_text(&self.reason, &mut to);
        to.extend_from_slice(&(self.rules.len() as u32).to_le_bytes());
        self.rules.iter().for_each(|rule| put_text(rule, &mut to));
        to.extend_from_slice(&(self.entries.len() as u64).to_le_bytes());
        for entry in &self.entries {
            for word in entry.pack() {
                to.extend_from_slice(&word.to_le_bytes());
            }
        }
        let sum = sum(&to);
        to.extend_from_slice(&sum.to_le_bytes());
        to
    }

    /// Parses the contents of a file.
    ///
    /// # Errors
    ///
    /// The file is not a recording, is damaged, or is incomplete.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Bad> {
        let mut rest = Rest { bytes, at: 0 };
        if bytes.get(..MAGIC.len()) != Some(&MAGIC[..]) {
            return Err(Bad::NoRecording);
        }
        rest.at = MAGIC.len();
        let version = rest.u32("the head")?;
        if version != VERSION {
            return Err(Bad::Version(version));
        }
        if rest.u32("the head")? as usize != ENTRY {
            return Err(Bad::Wrong("the length of entries"));
        }
        let mut found = Self {
            first: rest.u64("the head")?,
            power_on: rest.u64("the head")?,
            taken: rest.u64("the head")?,
            mac: rest.array("the head")?,
            ..Self::default()
        };
        rest.take(2, "the head")?;
        found.reason = rest.text("the reason")?;
        for _ in 0..rest.u32("the rules")? {
            found.rules.push(rest.text("the rules")?);
        }
        let count = rest.u64("the entries")?;
        // An entry number only ever grows by one, so the upper half of the range is never reached.
        if count
            .checked_add(found.first)
            .is_none_or(|end| end > u64::MAX / 2)
        {
            return Err(Bad::Wrong("the number of entries"));
        }
        for n in 0..count {
            let bytes = rest.take(ENTRY, "the entries")?;
            let mut words = [0; WORDS];
            for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
                *word = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
            }
            let number = found.first.saturating_add(n);
            let entry = Entry::unpack(&words).ok_or(Bad::Entry(number))?;
            found.entries.push(entry);
        }
        let end = rest.at;
        let told = rest.u64("the checksum")?;
        if bytes.len() > rest.at {
            return Err(Bad::Long(bytes.len() - rest.at));
        }
        if bytes.get(..end).map(sum) != Some(told) {
            return Err(Bad::Sum);
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry;

    fn recording() -> Recording {
        let entries = (0..).zip(entry::tests::all());
        Recording {
            first: 7,
            power_on: 1 << 60,
            taken: 99,
            mac: [2, 0, 0, 0, 0, 9],
            reason: String::from("asked for"),
            rules: vec![String::from("{}"), String::new()],
            entries: entries.map(|(time, what)| Entry { time, what }).collect(),
        }
    }

    #[test]
    fn a_recording_survives_its_file() {
        let all = recording();
        assert_eq!(Recording::from_bytes(&all.to_bytes()), Ok(all));
        let none = Recording::default();
        assert_eq!(Recording::from_bytes(&none.to_bytes()), Ok(none));
    }

    #[test]
    fn truncated_extended_and_changed_files_are_refused() {
        let bytes = recording().to_bytes();
        for end in 0..bytes.len() {
            let error = Recording::from_bytes(&bytes[..end]).unwrap_err();
            let is_short = matches!(error, Bad::Short(at, _) if at == end);
            assert!(
                is_short || end < 8 && error == Bad::NoRecording,
                "{end}: {error}"
            );
        }
        let longer = [&bytes[..], &[0]].concat();
        assert_eq!(Recording::from_bytes(&longer), Err(Bad::Long(1)));
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x10;
            let error = Recording::from_bytes(&changed).unwrap_err().to_string();
            assert!(!error.is_empty(), "{at}");
        }
        let mut newer = bytes.clone();
        newer[8] = 2;
        let error = Recording::from_bytes(&newer).unwrap_err().to_string();
        assert_eq!(
            error,
            "a recording of version 2; this program reads version 1"
        );
        let endless = Recording {
            first: u64::MAX,
            ..recording()
        };
        let error = Recording::from_bytes(&endless.to_bytes());
        assert_eq!(error, Err(Bad::Wrong("the number of entries")));
        // A large count does not make the reader allocate memory for all entries.
        let mut endless = recording();
        endless.entries.clear();
        let mut bytes = endless.to_bytes();
        let at = bytes.len() - 16;
        bytes[at..at + 8].copy_from_slice(&(1u64 << 40).to_le_bytes());
        let error = Recording::from_bytes(&bytes).unwrap_err();
        assert!(matches!(error, Bad::Short(_, "the entries")), "{error}");
    }
}
