// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The recorded items of a device model, and their bytes: a byte for the kind of the item, then its
//! fields. Numbers have seven bits in each byte, the lowest bits first (LEB128). An optional field
//! has a byte before it that says whether the field is present.

use std::fmt;

/// A byte string, whose `Debug` output shows at most its first 48 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Bytes<'a>(pub &'a [u8]);

impl fmt::Debug for Bytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes ", self.0.len())?;
        self.0
            .iter()
            .take(48)
            .try_for_each(|b| write!(f, "{b:02x}"))?;
        f.write_str(if self.0.len() > 48 { "..." } else { "" })
    }
}

/// Payload that the device model read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordedPayload<'a> {
    /// The payload could not be read.
    Unreachable,
    /// The payload as it was.
    Bytes(Bytes<'a>),
    /// The length and the [CRC](super::crc32) of the payload.
    Sum(u32, u32),
    /// The [CRCs of the parts](super::part_crcs) of the payload.
    Sums(Bytes<'a>),
}

/// A value that can be written to a recording and read from it.
pub(super) trait ItemField<'a>: Sized {
    /// Appends the bytes of the value.
    fn put(&self, to: &mut Vec<u8>);
    /// Takes the value from the front. None if bytes are missing or have no valid value.
    fn take(from: &mut &'a [u8]) -> Option<Self>;
}

fn take_bytes<'a>(from: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (some, rest) = from.split_at_checked(count)?;
    *from = rest;
    Some(some)
}

impl ItemField<'_> for u64 {
    fn put(&self, to: &mut Vec<u8>) {
        let mut left = *self;
        while left > 0x7f {
            to.push(left as u8 | 0x80);
            left >>= 7;
        }
        to.push(left as u8);
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        let mut value = 0u64;
        for shift in (0..).step_by(7).take(10) {
            let byte = *take_bytes(from, 1)?.first()?;
            let part = u64::from(byte & 0x7f);
            if shift == 63 && part > 1 {
                return None;
            }
            value |= part << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }
}

macro_rules! small_numbers {
    ($($type:ty),+) => {$(
        impl ItemField<'_> for $type {
            fn put(&self, to: &mut Vec<u8>) {
                u64::from(*self).put(to);
            }

            fn take(from: &mut &[u8]) -> Option<Self> {
                Self::try_from(u64::take(from)?).ok()
            }
        }
    )+};
}
small_numbers!(u8, u16, u32);

impl ItemField<'_> for bool {
    fn put(&self, to: &mut Vec<u8>) {
        to.push((*self).into());
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        match u8::take(from)? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl<'a> ItemField<'a> for Bytes<'a> {
    fn put(&self, to: &mut Vec<u8>) {
        (self.0.len() as u64).put(to);
        to.extend_from_slice(self.0);
    }

    fn take(from: &mut &'a [u8]) -> Option<Self> {
        let length = usize::try_from(u64::take(from)?).ok()?;
        take_bytes(from, length).map(Bytes)
    }
}

impl<'a> ItemField<'a> for &'a str {
    fn put(&self, to: &mut Vec<u8>) {
        Bytes(self.as_bytes()).put(to);
    }

    fn take(from: &mut &'a [u8]) -> Option<Self> {
        std::str::from_utf8(Bytes::take(from)?.0).ok()
    }
}

impl<'a, T: ItemField<'a>> ItemField<'a> for Option<T> {
    fn put(&self, to: &mut Vec<u8>) {
        self.is_some().put(to);
        self.iter().for_each(|value| value.put(to));
    }

    fn take(from: &mut &'a [u8]) -> Option<Self> {
        match bool::take(from)? {
            true => Some(Some(T::take(from)?)),
            false => Some(None),
        }
    }
}

impl<'a> ItemField<'a> for RecordedPayload<'a> {
    fn put(&self, to: &mut Vec<u8>) {
        match self {
            Self::Unreachable => to.push(0),
            Self::Bytes(bytes) => {
                to.push(1);
                bytes.put(to);
            }
            Self::Sum(length, sum) => {
                to.push(2);
                length.put(to);
                sum.put(to);
            }
            Self::Sums(sums) => {
                to.push(3);
                sums.put(to);
            }
        }
    }

    fn take(from: &mut &'a [u8]) -> Option<Self> {
        match u8::take(from)? {
            0 => Some(Self::Unreachable),
            1 => Bytes::take(from).map(Self::Bytes),
            2 => Some(Self::Sum(u32::take(from)?, u32::take(from)?)),
            3 => Bytes::take(from).map(Self::Sums),
            _ => None,
        }
    }
}

macro_rules! items {
    ($($(#[doc = $doc:literal])+ $name:ident = $kind:literal { $($(#[doc = $say:literal])+ $field:ident: $type:ty,)* },)+) => {
        /// An item of a full recording.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Item<'a> {
            $($(#[doc = $doc])+ $name { $($(#[doc = $say])+ $field: $type,)* },)+
        }

        impl<'a> Item<'a> {
            /// Appends the bytes of the item.
            pub fn put(&self, to: &mut Vec<u8>) {
                match self {
                    $(Self::$name { $($field,)* } => {
                        to.push($kind);
                        $($field.put(to);)*
                    })+
                }
            }

            /// Takes an item from the front. None if it is incomplete or its kind is not known.
            pub fn take(from: &mut &'a [u8]) -> Option<Self> {
                match u8::take(from)? {
                    $($kind => Some(Self::$name { $($field: ItemField::take(from)?,)* }),)+
                    _ => None,
                }
            }
        }
    };
}

items! {
    /// The recording begins: the device and its configuration.
    Begin = 1 {
        /// Version of the NIC.
        version: &'a str,
        /// MAC address of the port.
        mac: Bytes<'a>,
        /// Configuration of the device, with a bit for each option.
        flags: u32,
        /// Share of local packets that are dropped, in percent.
        drop_percent: u8,
        /// Seed of all random decisions.
        seed: u64,
        /// Time of day, in nanoseconds since 1970, at which the device clock was 0.
        power_on: u64,
    },
    /// The recording ends here.
    End = 2 {
        /// Reason for which the recording ended.
        reason: &'a str,
    },
    /// Call: the device is reset.
    Reset = 3 {},
    /// Call: the command queue is enabled with the values of the registers.
    Enable = 4 {
        /// True if the driver and the device agreed on a version.
        spoken: bool,
        /// Guest address of the command slots.
        base: u64,
        /// Number of command slots.
        slots: u32,
    },
    /// Call: the doorbell of a command slot was rung.
    Command = 5 {
        /// Number of the command slot.
        slot: u32,
    },
    /// Call: the page of a doorbell area was written.
    Ring = 6 {
        /// Number of the doorbell area.
        uar: u32,
    },
    /// Call: the driver made doorbell writes that were collapsed into one [`Item::Ring`].
    Doorbells = 7 {
        /// Number of writes beyond the first one.
        more: u64,
    },
    /// Call: the device works for a slice.
    Slice = 8 {
        /// Device clock in nanoseconds.
        now: u64,
    },
    /// Call: the device may go to sleep.
    Sleep = 9 {},
    /// Call: frames were received. Their items follow.
    Frames = 10 {
        /// Device clock in nanoseconds.
        now: u64,
        /// Number of frames that follow.
        count: u32,
    },
    /// A received frame: its beginning and end as they are, and the bytes between by length and
    /// sum.
    Frame = 11 {
        /// Bytes at the beginning of the frame.
        head: Bytes<'a>,
        /// Bytes between the beginning and the end.
        between: RecordedPayload<'a>,
        /// Bytes at the end of the frame.
        tail: Bytes<'a>,
    },
    /// Call: rules are added.
    AddRules = 12 {
        /// Device clock in nanoseconds.
        now: u64,
        /// Owner with which the rules are removed.
        owner: Option<u64>,
        /// A file of rules in JSON.
        json: &'a str,
    },
    /// Call: a rule is removed.
    RemoveRule = 13 {
        /// Name of the rule.
        name: &'a str,
    },
    /// Call: the rules of an owner are removed.
    RemoveRulesOf = 14 {
        /// Owner of the rules.
        owner: u64,
    },
    /// Call: all rules are removed.
    ClearRules = 15 {},
    /// Call: the engine has failed.
    Fail = 16 {
        /// Syndrome of the failure.
        syndrome: u16,
    },
    /// Call: the host has decided on an entry of the GID table.
    Decided = 36 {
        /// Status with which the command ends.
        status: u32,
        /// Syndrome with which the command ends.
        syndrome: u16,
    },
    /// Answer to a slice.
    Next = 17 {
        /// True if the device has more to do.
        busy: bool,
        /// Device clock at which the device wants the next call.
        deadline: Option<u64>,
        /// Most completions that the program has yet to poll from one CQ, once all posted work is
        /// done.
        untaken: u32,
    },
    /// Answer: yes or no.
    Told = 18 {
        /// The answer itself.
        yes: bool,
    },
    /// Answer: the model panicked.
    Panicked = 19 {},
    /// Output: interrupt vectors were raised.
    Raised = 20 {
        /// The vectors, with a bit for each.
        vectors: u32,
    },
    /// Output: a frame was sent.
    Sent = 21 {
        /// The first headers of the frame.
        head: Bytes<'a>,
        /// All bytes after the first headers.
        rest: RecordedPayload<'a>,
    },
    /// Memory: the device asks if a range of guest memory exists.
    Contains = 22 {
        /// Guest address of the range.
        addr: u64,
        /// Length of the range in bytes.
        length: u64,
        /// True if the range exists.
        yes: bool,
    },
    /// Memory: a structure is read.
    Read = 23 {
        /// Guest address of the structure.
        addr: u64,
        /// Length of the structure in bytes.
        length: u32,
        /// The bytes of the structure, if it could be read.
        bytes: Option<Bytes<'a>>,
    },
    /// Memory: a structure is written.
    Write = 24 {
        /// Guest address of the structure.
        addr: u64,
        /// The bytes of the structure.
        bytes: Bytes<'a>,
        /// True if it could be written.
        done: bool,
    },
    /// Memory: payload is read.
    ReadPayload = 25 {
        /// Guest address of the payload.
        addr: u64,
        /// Length of the payload in bytes.
        length: u32,
        /// The payload that was read.
        payload: RecordedPayload<'a>,
    },
    /// Memory: payload is about to be written, in parts.
    Payload = 26 {
        /// Length of the payload in bytes.
        length: u32,
        /// Sum of the payload.
        sum: u32,
    },
    /// Memory: a part of the announced payload is written.
    WritePayload = 27 {
        /// Guest address of the part.
        addr: u64,
        /// Length of the part in bytes.
        length: u32,
        /// True if the part could be written.
        done: bool,
    },
    /// Memory: payload is copied within guest memory.
    Copy = 28 {
        /// Guest address of the destination.
        to: u64,
        /// Guest address of the source.
        from: u64,
        /// Length of the copy in bytes.
        length: u64,
        /// Sum of the copied bytes, if they could be copied.
        sum: Option<u32>,
    },
    /// Memory: a 32-bit word is loaded.
    Load32 = 29 {
        /// Guest address of the word.
        addr: u64,
        /// The loaded value, if the word could be read.
        value: Option<u32>,
    },
    /// Memory: words are loaded in a row, each with the value of the last load or store at its
    /// address.
    Same = 30 {
        /// Number of the loads.
        count: u32,
        /// Sum of their addresses in order
        /// ([`WordCache::fold_address`](super::WordCache::fold_address)).
        sum: u64,
    },
    /// Memory: a 32-bit word is stored.
    Store32 = 31 {
        /// Guest address of the word.
        addr: u64,
        /// The value to store.
        value: u32,
        /// True if the word could be stored.
        done: bool,
    },
    /// Memory: a 64-bit word is loaded.
    Load64 = 32 {
        /// Guest address of the word.
        addr: u64,
        /// The loaded value, if the word could be read.
        value: Option<u64>,
    },
    /// Memory: a 64-bit word is stored.
    Store64 = 33 {
        /// Guest address of the word.
        addr: u64,
        /// The value to store.
        value: u64,
        /// True if the word could be stored.
        done: bool,
    },
    /// Memory: a 64-bit word is compared and swapped.
    Swap64 = 34 {
        /// Guest address of the word.
        addr: u64,
        /// Value that the word must have for the swap.
        compare: u64,
        /// Value that the word gets.
        swap: u64,
        /// Value before the operation, if the word could be reached.
        old: Option<u64>,
    },
    /// Memory: a number is added to a 64-bit word.
    Add64 = 35 {
        /// Guest address of the word.
        addr: u64,
        /// The number to add.
        add: u64,
        /// Value before the operation, if the word could be reached.
        old: Option<u64>,
    },
}
