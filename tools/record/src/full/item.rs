// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What is recorded of a device model, and its bytes: a byte that says which, then its fields. Numbers have seven bits a byte, the lowest
//! first (LEB128), what may be missing has a byte before it.

use std::fmt;

/// Some bytes. They are told by the first of them.
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

/// Payload that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload<'a> {
    /// It could not be read.
    Unreachable,
    /// As it was.
    Bytes(Bytes<'a>),
    /// By length and [sum](super::sum).
    Sum(u32, u32),
    /// By the [sums of its parts](super::sums).
    Sums(Bytes<'a>),
}

/// Something that has bytes.
pub(super) trait Field<'a>: Sized {
    /// Appends them.
    fn put(&self, to: &mut Vec<u8>);
    /// Takes them from the front. None: there are too few, or they cannot be.
    fn take(from: &mut &'a [u8]) -> Option<Self>;
}

fn take_some<'a>(from: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (some, rest) = from.split_at_checked(count)?;
    *from = rest;
    Some(some)
}

impl Field<'_> for u64 {
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
            let byte = *take_some(from, 1)?.first()?;
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

macro_rules! small {
    ($($type:ty),+) => {$(
        impl Field<'_> for $type {
            fn put(&self, to: &mut Vec<u8>) {
                u64::from(*self).put(to);
            }

            fn take(from: &mut &[u8]) -> Option<Self> {
                Self::try_from(u64::take(from)?).ok()
            }
        }
    )+};
}
small!(u8, u16, u32);

impl Field<'_> for bool {
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

impl<'a> Field<'a> for Bytes<'a> {
    fn put(&self, to: &mut Vec<u8>) {
        (self.0.len() as u64).put(to);
        to.extend_from_slice(self.0);
    }

    fn take(from: &mut &'a [u8]) -> Option<Self> {
        let length = usize::try_from(u64::take(from)?).ok()?;
        take_some(from, length).map(Bytes)
    }
}

impl<'a> Field<'a> for &'a str {
    fn put(&self, to: &mut Vec<u8>) {
        Bytes(self.as_bytes()).put(to);
    }

    fn take(from: &mut &'a [u8]) -> Option<Self> {
        std::str::from_utf8(Bytes::take(from)?.0).ok()
    }
}

impl<'a, T: Field<'a>> Field<'a> for Option<T> {
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

impl<'a> Field<'a> for Payload<'a> {
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
        /// What is recorded.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Item<'a> {
            $($(#[doc = $doc])+ $name { $($(#[doc = $say])+ $field: $type,)* },)+
        }

        impl<'a> Item<'a> {
            /// Appends its bytes.
            pub fn put(&self, to: &mut Vec<u8>) {
                match self {
                    $(Self::$name { $($field,)* } => {
                        to.push($kind);
                        $($field.put(to);)*
                    })+
                }
            }

            /// Takes one from the front. None: there is no whole one, or of no kind that is known.
            pub fn take(from: &mut &'a [u8]) -> Option<Self> {
                match u8::take(from)? {
                    $($kind => Some(Self::$name { $($field: Field::take(from)?,)* }),)+
                    _ => None,
                }
            }
        }
    };
}

items! {
    /// Of which device, and how it was started.
    Begin = 1 {
        /// Version of the NIC.
        version: &'a str,
        /// MAC address of the port.
        mac: Bytes<'a>,
        /// What it was told to do, a bit each.
        flags: u32,
        /// Percent of the local packets that are lost.
        drop_percent: u8,
        /// Seed of all chance.
        seed: u64,
        /// Time of day, in nanoseconds since 1970, at which the device clock was 0.
        power_on: u64,
    },
    /// Nothing more was recorded.
    End = 2 {
        /// Why.
        reason: &'a str,
    },
    /// Called: the device is reset.
    Reset = 3 {},
    /// Called: the command queue begins, as the registers have it.
    Enable = 4 {
        /// The version is spoken.
        spoken: bool,
        /// Address of the slots.
        base: u64,
        /// How many.
        slots: u32,
    },
    /// Called: a command slot was rung.
    Command = 5 {
        /// Its number.
        slot: u32,
    },
    /// Called: the page of a doorbell area was written.
    Ring = 6 {
        /// The area.
        uar: u32,
    },
    /// Called: more such writes than areas.
    Doorbells = 7 {
        /// How many.
        more: u64,
    },
    /// Called: a slice of work.
    Slice = 8 {
        /// The device clock.
        now: u64,
    },
    /// Called: it may fall asleep.
    Sleep = 9 {},
    /// Called: frames have come. They follow.
    Frames = 10 {
        /// The device clock.
        now: u64,
        /// How many.
        count: u32,
    },
    /// A frame that has come: its beginning and end as they are, what is between by length and sum.
    Frame = 11 {
        /// See above.
        head: Bytes<'a>,
        /// See above.
        between: Payload<'a>,
        /// See above.
        tail: Bytes<'a>,
    },
    /// Called: rules are added.
    AddRules = 12 {
        /// The device clock.
        now: u64,
        /// With whom they go.
        owner: Option<u64>,
        /// A file of rules, as JSON.
        json: &'a str,
    },
    /// Called: a rule is removed.
    RemoveRule = 13 {
        /// Its name.
        name: &'a str,
    },
    /// Called: rules are removed.
    RemoveRulesOf = 14 {
        /// Whose.
        owner: u64,
    },
    /// Called: all rules are removed.
    ClearRules = 15 {},
    /// Called: the engine has failed.
    Fail = 16 {
        /// The cause.
        syndrome: u16,
    },
    /// Called: the host has decided on an entry of the GID table.
    Decided = 36 {
        /// How the command ends.
        status: u32,
        /// Why.
        syndrome: u16,
    },
    /// Answer to a slice.
    Next = 17 {
        /// There is more to do.
        busy: bool,
        /// When it wants to be called.
        deadline: Option<u64>,
        /// Completions that are not taken.
        untaken: u32,
    },
    /// Answer: yes or no.
    Told = 18 {
        /// Which.
        yes: bool,
    },
    /// Answer: the model panicked.
    Panicked = 19 {},
    /// Done: vectors were raised.
    Raised = 20 {
        /// A bit each.
        vectors: u32,
    },
    /// Done: a frame left.
    Sent = 21 {
        /// Its first headers.
        head: Bytes<'a>,
        /// All behind them.
        rest: Payload<'a>,
    },
    /// Memory: whether a range is there.
    Contains = 22 {
        /// Where.
        addr: u64,
        /// Bytes.
        length: u64,
        /// Whether.
        yes: bool,
    },
    /// Memory: a structure is read.
    Read = 23 {
        /// Where.
        addr: u64,
        /// How long it was to be.
        length: u32,
        /// Its bytes, if it could be read.
        bytes: Option<Bytes<'a>>,
    },
    /// Memory: a structure is written.
    Write = 24 {
        /// Where.
        addr: u64,
        /// Its bytes.
        bytes: Bytes<'a>,
        /// Whether it could be.
        done: bool,
    },
    /// Memory: payload is read.
    ReadPayload = 25 {
        /// Where.
        addr: u64,
        /// How long.
        length: u32,
        /// What.
        payload: Payload<'a>,
    },
    /// Memory: payload is about to be written, in parts.
    Payload = 26 {
        /// How long.
        length: u32,
        /// Its sum.
        sum: u32,
    },
    /// Memory: such a part.
    WritePayload = 27 {
        /// Where.
        addr: u64,
        /// How long.
        length: u32,
        /// Whether it could be.
        done: bool,
    },
    /// Memory: payload is copied from place to place.
    Copy = 28 {
        /// Where to.
        to: u64,
        /// Where from.
        from: u64,
        /// Bytes.
        length: u64,
        /// The sum of what was there, if it could be copied.
        sum: Option<u32>,
    },
    /// Memory: a word is loaded.
    Load32 = 29 {
        /// Where.
        addr: u64,
        /// What.
        value: Option<u32>,
    },
    /// Memory: so many words are loaded, each with the value that the place had when it was loaded or stored last.
    Same = 30 {
        /// How many.
        count: u32,
        /// Of their addresses, in order.
        sum: u64,
    },
    /// Memory: a word is stored.
    Store32 = 31 {
        /// Where.
        addr: u64,
        /// What.
        value: u32,
        /// Whether it could be.
        done: bool,
    },
    /// Memory: a word is loaded.
    Load64 = 32 {
        /// Where.
        addr: u64,
        /// What.
        value: Option<u64>,
    },
    /// Memory: a word is stored.
    Store64 = 33 {
        /// Where.
        addr: u64,
        /// What.
        value: u64,
        /// Whether it could be.
        done: bool,
    },
    /// Memory: a word is compared and swapped.
    Swap64 = 34 {
        /// Where.
        addr: u64,
        /// What it has to be.
        compare: u64,
        /// What it becomes.
        swap: u64,
        /// What it was.
        old: Option<u64>,
    },
    /// Memory: a word is added to.
    Add64 = 35 {
        /// Where.
        addr: u64,
        /// How much.
        add: u64,
        /// What it was.
        old: Option<u64>,
    },
}
