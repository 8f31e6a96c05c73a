// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The reader of a full recording.

use super::forge::crc32;
use super::item::Item;
use super::{MAGIC, VERSION};
use std::fmt;

/// Reason why the next item cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FullRecordingError {
    /// The bytes do not begin with the magic number.
    NotARecording,
    /// The file has this version, which is not [`VERSION`].
    Version(u32),
    /// The bytes end at this offset, in the middle of a piece.
    Truncated(usize),
    /// The checksum of the piece at this offset does not match.
    Checksum(usize),
    /// The item with this number is incomplete, or its kind is not known.
    InvalidItem(u64),
    /// The first item is not [`Item::Begin`].
    NoBegin,
}

impl fmt::Display for FullRecordingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotARecording => write!(f, "this is not a full recording of Verbena"),
            Self::Version(n) => write!(
                f,
                "a full recording of version {n}; this program reads version {VERSION}"
            ),
            Self::Truncated(at) => write!(f, "it ends after {at} bytes, in the middle of a piece"),
            Self::Checksum(at) => write!(
                f,
                "the checksum of the piece at byte {at} is wrong: the file is damaged"
            ),
            Self::InvalidItem(n) => write!(f, "item {n} is incomplete or has an unknown kind"),
            Self::NoBegin => write!(f, "its first item does not describe a device"),
        }
    }
}

/// Reads the items of a file in order.
#[derive(Clone, Debug)]
pub struct FullRecordingReader<'a> {
    bytes: &'a [u8],
    at: usize,
    items: &'a [u8],
    number: u64,
}

impl<'a> FullRecordingReader<'a> {
    /// Creates a reader for the bytes of a file.
    ///
    /// # Errors
    ///
    /// The bytes are not a full recording, or have another version.
    pub fn new(bytes: &'a [u8]) -> Result<Self, FullRecordingError> {
        let head = bytes
            .strip_prefix(MAGIC)
            .ok_or(FullRecordingError::NotARecording)?;
        let version = head
            .first_chunk()
            .ok_or(FullRecordingError::Truncated(bytes.len()))?;
        match u32::from_le_bytes(*version) {
            VERSION => Ok(Self {
                bytes,
                at: MAGIC.len() + 4,
                items: &[],
                number: 0,
            }),
            other => Err(FullRecordingError::Version(other)),
        }
    }

    /// Returns the number of the next item.
    pub fn number(&self) -> u64 {
        self.number
    }

    fn next_piece(&mut self) -> Result<(), FullRecordingError> {
        let short = FullRecordingError::Truncated(self.bytes.len());
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let (head, rest) = rest.split_first_chunk::<8>().ok_or(short.clone())?;
        let [a, b, c, d, e, f, g, h] = *head;
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        let items = rest.get(..length).ok_or(short)?;
        if crc32(items) != u32::from_le_bytes([e, f, g, h]) {
            return Err(FullRecordingError::Checksum(self.at));
        }
        self.at += head.len() + length;
        self.items = items;
        Ok(())
    }

    fn next_item(&mut self) -> Result<Option<Item<'a>>, FullRecordingError> {
        while self.items.is_empty() {
            if self.at >= self.bytes.len() {
                return Ok(None);
            }
            self.next_piece()?;
        }
        let item =
            Item::take(&mut self.items).ok_or(FullRecordingError::InvalidItem(self.number))?;
        self.number += 1;
        Ok(Some(item))
    }
}

/// Yields the items up to the end of the file, or up to and including the first error.
impl<'a> Iterator for FullRecordingReader<'a> {
    type Item = Result<Item<'a>, FullRecordingError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.next_item().transpose();
        if let Some(Err(_)) = next {
            (self.at, self.items) = (self.bytes.len(), &[]);
        }
        next
    }
}
