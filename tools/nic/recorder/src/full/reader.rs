// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The reader of a full recording.

use super::forge::sum;
use super::item::Item;
use super::{MAGIC, VERSION};
use std::fmt;

/// Reason why the next item cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bad {
    /// The bytes do not begin with the magic number.
    NoRecording,
    /// The file has this version, which is not [`VERSION`].
    Version(u32),
    /// The bytes end at this offset, in the middle of a piece.
    Short(usize),
    /// The checksum of the piece at this offset does not match.
    Sum(usize),
    /// The item with this number is incomplete, or its kind is not known.
    Item(u64),
    /// The first item is not [`Item::Begin`].
    Begin,
}

impl fmt::Display for Bad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRecording => write!(f, "this is not a full recording of Verbena"),
            Self::Version(n) => write!(
                f,
                "a full recording of version {n}; this program reads version {VERSION}"
            ),
            Self::Short(at) => write!(f, "it ends after {at} bytes, in the middle of a piece"),
            Self::Sum(at) => write!(
                f,
                "the checksum of the piece at byte {at} is wrong: the file is damaged"
            ),
            Self::Item(n) => write!(f, "item {n} is incomplete or has an unknown kind"),
            Self::Begin => write!(f, "its first item does not describe a device"),
        }
    }
}

/// Reads the items of a file in order.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    items: &'a [u8],
    number: u64,
}

impl<'a> Reader<'a> {
    /// Creates a reader for the bytes of a file.
    ///
    /// # Errors
    ///
    /// The bytes are not a full recording, or have another version.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Bad> {
        let head = bytes.strip_prefix(MAGIC).ok_or(Bad::NoRecording)?;
        let version = head.first_chunk().ok_or(Bad::Short(bytes.len()))?;
        match u32::from_le_bytes(*version) {
            VERSION => Ok(Self {
                bytes,
                at: MAGIC.len() + 4,
                items: &[],
                number: 0,
            }),
            other => Err(Bad::Version(other)),
        }
    }

    /// Returns the number of the next item.
    pub fn number(&self) -> u64 {
        self.number
    }

    fn piece(&mut self) -> Result<(), Bad> {
        let short = Bad::Short(self.bytes.len());
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let (head, rest) = rest.split_first_chunk::<8>().ok_or(short.clone())?;
        let [a, b, c, d, e, f, g, h] = *head;
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        let items = rest.get(..length).ok_or(short)?;
        if sum(items) != u32::from_le_bytes([e, f, g, h]) {
            return Err(Bad::Sum(self.at));
        }
        self.at += head.len() + length;
        self.items = items;
        Ok(())
    }

    fn item(&mut self) -> Result<Option<Item<'a>>, Bad> {
        while self.items.is_empty() {
            if self.at >= self.bytes.len() {
                return Ok(None);
            }
            self.piece()?;
        }
        let item = Item::take(&mut self.items).ok_or(Bad::Item(self.number))?;
        self.number += 1;
        Ok(Some(item))
    }
}

/// Yields the items up to the end of the file, or up to and including the first error.
impl<'a> Iterator for Reader<'a> {
    type Item = Result<Item<'a>, Bad>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.item().transpose();
        if let Some(Err(_)) = next {
            (self.at, self.items) = (self.bytes.len(), &[]);
        }
        next
    }
}
