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
//! | 6, 1, 1 | MAC address of the port, its link layer (0: Ethernet, 1: InfiniBand), 0 |
//! | 4 and this length | the reason for the recording, in UTF-8 |
//! | 4, and for each 4 and this length | the rules that entries name, in JSON, by number |
//! | 8, and for each the bytes of an entry | the entries |
//! | 8 | FNV-1a of all bytes before it |

use crate::entry::{FlightEntry, ENTRY_WORDS};
use std::fmt;

/// Version of the file format.
pub const VERSION: u32 = 1;
const MAGIC: &[u8; 8] = b"VERBENA\n";
/// Link layers in a file. Recordings of versions without InfiniBand ports have 0 there.
const ETHERNET: u8 = 0;
const INFINIBAND: u8 = 1;
const ENTRY_BYTES: usize = ENTRY_WORDS * 8;

/// The contents of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlightRecording {
    /// Number of the first entry, which equals the number of earlier entries that were overwritten
    /// or not requested.
    pub first: u64,
    /// Time of day, in nanoseconds since 1970, at which the device clock was 0.
    pub power_on_ns: u64,
    /// Device clock when the recording was taken.
    pub taken_ns: u64,
    /// MAC address of the port.
    pub mac: [u8; 6],
    /// True if the link layer of the port is InfiniBand.
    pub is_infiniband: bool,
    /// Reason for which the recording was taken.
    pub reason: String,
    /// The rules that entries name, in JSON, by their numbers.
    pub rules: Vec<String>,
    /// The entries, in the order of their numbers.
    pub entries: Vec<FlightEntry>,
}

/// Reason for which bytes are not a valid recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlightRecordingError {
    /// The bytes do not begin with the magic number.
    NotARecording,
    /// The file has this version, which is not [`VERSION`].
    Version(u32),
    /// The bytes end at this offset, in the middle of the named part.
    Truncated(usize, &'static str),
    /// The file has this number of bytes after its end.
    TrailingBytes(usize),
    /// The checksum at the end does not match, so bytes have changed.
    Checksum,
    /// The named part has an impossible value.
    InvalidValue(&'static str),
    /// The entry with this number has a kind that this version does not know.
    UnknownEntry(u64),
}

impl fmt::Display for FlightRecordingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotARecording => write!(f, "this is not a recording of Verbena"),
            Self::Version(n) => write!(
                f,
                "a recording of version {n}; this program reads version {VERSION}"
            ),
            Self::Truncated(at, part) => {
                write!(f, "it ends after {at} bytes, in the middle of {part}")
            }
            Self::TrailingBytes(more) => write!(f, "it has {more} bytes after its end"),
            Self::Checksum => write!(f, "its checksum is wrong: the file is damaged"),
            Self::InvalidValue(part) => write!(f, "{part} has an impossible value"),
            Self::UnknownEntry(n) => write!(f, "entry {n} has an unknown kind"),
        }
    }
}

fn fnv1a(bytes: &[u8]) -> u64 {
    let fold = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, fold)
}

/// Reads the bytes of a file from front to back.
struct ByteReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> ByteReader<'a> {
    fn take(&mut self, count: usize, part: &'static str) -> Result<&'a [u8], FlightRecordingError> {
        let end = self
            .at
            .checked_add(count)
            .ok_or(FlightRecordingError::InvalidValue(part))?;
        let taken = self.bytes.get(self.at..end);
        let taken = taken.ok_or(FlightRecordingError::Truncated(self.bytes.len(), part))?;
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(
        &mut self,
        part: &'static str,
    ) -> Result<[u8; N], FlightRecordingError> {
        let taken = self.take(N, part)?;
        taken
            .try_into()
            .map_err(|_| FlightRecordingError::InvalidValue(part))
    }

    fn u32(&mut self, part: &'static str) -> Result<u32, FlightRecordingError> {
        Ok(u32::from_le_bytes(self.array(part)?))
    }

    fn u64(&mut self, part: &'static str) -> Result<u64, FlightRecordingError> {
        Ok(u64::from_le_bytes(self.array(part)?))
    }

    fn text(&mut self, part: &'static str) -> Result<String, FlightRecordingError> {
        let length = self.u32(part)? as usize;
        let text = self.take(length, part)?;
        String::from_utf8(text.to_vec()).map_err(|_| FlightRecordingError::InvalidValue(part))
    }
}

fn put_text(text: &str, to: &mut Vec<u8>) {
    let length = u32::try_from(text.len()).unwrap_or(0);
    to.extend_from_slice(&length.to_le_bytes());
    to.extend_from_slice(text.get(..length as usize).unwrap_or_default().as_bytes());
}

impl FlightRecording {
    /// Returns the contents of the file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut to = Vec::with_capacity(256 + self.entries.len() * ENTRY_BYTES);
        to.extend_from_slice(MAGIC);
        to.extend_from_slice(&VERSION.to_le_bytes());
        to.extend_from_slice(&(ENTRY_BYTES as u32).to_le_bytes());
        for number in [self.first, self.power_on_ns, self.taken_ns] {
            to.extend_from_slice(&number.to_le_bytes());
        }
        to.extend_from_slice(&self.mac);
        let link_layer = match self.is_infiniband {
            true => INFINIBAND,
            false => ETHERNET,
        };
        to.extend_from_slice(&[link_layer, 0]);
        put_text(&self.reason, &mut to);
        to.extend_from_slice(&(self.rules.len() as u32).to_le_bytes());
        self.rules.iter().for_each(|rule| put_text(rule, &mut to));
        to.extend_from_slice(&(self.entries.len() as u64).to_le_bytes());
        for entry in &self.entries {
            for word in entry.pack() {
                to.extend_from_slice(&word.to_le_bytes());
            }
        }
        let checksum = fnv1a(&to);
        to.extend_from_slice(&checksum.to_le_bytes());
        to
    }

    /// Parses the contents of a file.
    ///
    /// # Errors
    ///
    /// The file is not a recording, is damaged, or is incomplete.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FlightRecordingError> {
        let mut reader = ByteReader { bytes, at: 0 };
        if bytes.get(..MAGIC.len()) != Some(&MAGIC[..]) {
            return Err(FlightRecordingError::NotARecording);
        }
        reader.at = MAGIC.len();
        let version = reader.u32("the head")?;
        if version != VERSION {
            return Err(FlightRecordingError::Version(version));
        }
        if reader.u32("the head")? as usize != ENTRY_BYTES {
            return Err(FlightRecordingError::InvalidValue("the length of entries"));
        }
        let mut recording = Self {
            first: reader.u64("the head")?,
            power_on_ns: reader.u64("the head")?,
            taken_ns: reader.u64("the head")?,
            mac: reader.array("the head")?,
            ..Self::default()
        };
        recording.is_infiniband = match reader.array("the head")? {
            [ETHERNET, _] => false,
            [INFINIBAND, _] => true,
            _ => return Err(FlightRecordingError::InvalidValue("the link layer")),
        };
        recording.reason = reader.text("the reason")?;
        for _ in 0..reader.u32("the rules")? {
            recording.rules.push(reader.text("the rules")?);
        }
        let count = reader.u64("the entries")?;
        // An entry number only ever grows by one, so the upper half of the range is never reached.
        if count
            .checked_add(recording.first)
            .is_none_or(|end| end > u64::MAX / 2)
        {
            return Err(FlightRecordingError::InvalidValue("the number of entries"));
        }
        for n in 0..count {
            let bytes = reader.take(ENTRY_BYTES, "the entries")?;
            let mut words = [0; ENTRY_WORDS];
            for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
                *word = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
            }
            let number = recording.first.saturating_add(n);
            let entry =
                FlightEntry::unpack(&words).ok_or(FlightRecordingError::UnknownEntry(number))?;
            recording.entries.push(entry);
        }
        let end = reader.at;
        let checksum = reader.u64("the checksum")?;
        if bytes.len() > reader.at {
            return Err(FlightRecordingError::TrailingBytes(bytes.len() - reader.at));
        }
        if bytes.get(..end).map(fnv1a) != Some(checksum) {
            return Err(FlightRecordingError::Checksum);
        }
        Ok(recording)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry;

    fn recording() -> FlightRecording {
        let entries = (0..).zip(entry::tests::entries_of_each_kind());
        FlightRecording {
            first: 7,
            power_on_ns: 1 << 60,
            taken_ns: 99,
            mac: [2, 0, 0, 0, 0, 9],
            is_infiniband: true,
            reason: String::from("asked for"),
            rules: vec![String::from("{}"), String::new()],
            entries: entries
                .map(|(time_ns, kind)| FlightEntry { time_ns, kind })
                .collect(),
        }
    }

    #[test]
    fn a_recording_is_read_back_from_its_file_unchanged() {
        let all = recording();
        assert_eq!(FlightRecording::from_bytes(&all.to_bytes()), Ok(all));
        let none = FlightRecording::default();
        assert_eq!(FlightRecording::from_bytes(&none.to_bytes()), Ok(none));
    }

    #[test]
    fn truncated_extended_and_changed_files_are_refused() {
        let bytes = recording().to_bytes();
        for end in 0..bytes.len() {
            let error = FlightRecording::from_bytes(&bytes[..end]).unwrap_err();
            let is_short = matches!(error, FlightRecordingError::Truncated(at, _) if at == end);
            assert!(
                is_short || end < 8 && error == FlightRecordingError::NotARecording,
                "{end}: {error}"
            );
        }
        let longer = [&bytes[..], &[0]].concat();
        assert_eq!(
            FlightRecording::from_bytes(&longer),
            Err(FlightRecordingError::TrailingBytes(1))
        );
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x10;
            let error = FlightRecording::from_bytes(&changed)
                .unwrap_err()
                .to_string();
            assert!(!error.is_empty(), "{at}");
        }
        let mut newer = bytes.clone();
        newer[8] = 2;
        let error = FlightRecording::from_bytes(&newer).unwrap_err().to_string();
        assert_eq!(
            error,
            "a recording of version 2; this program reads version 1"
        );
        let endless = FlightRecording {
            first: u64::MAX,
            ..recording()
        };
        let error = FlightRecording::from_bytes(&endless.to_bytes());
        assert_eq!(
            error,
            Err(FlightRecordingError::InvalidValue("the number of entries"))
        );
        // A large count does not make the reader allocate memory for all entries.
        let mut endless = recording();
        endless.entries.clear();
        let mut bytes = endless.to_bytes();
        let at = bytes.len() - 16;
        bytes[at..at + 8].copy_from_slice(&(1u64 << 40).to_le_bytes());
        let error = FlightRecording::from_bytes(&bytes).unwrap_err();
        assert!(
            matches!(error, FlightRecordingError::Truncated(_, "the entries")),
            "{error}"
        );
    }
}
