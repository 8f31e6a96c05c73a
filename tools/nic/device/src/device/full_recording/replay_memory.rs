// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The guest memory of a replay: each access takes the next entry of the recording, which has to be
//! of the same access, and returns the recorded result.

use crate::memory::{Access, GuestMemory, Unreachable};
use std::cell::{RefCell, RefMut};
use std::fmt;
use verbena_recorder::full::{
    crc32, forge, forge_parts, Bytes, FullRecordingError, FullRecordingReader, Item,
    RecordedPayload, WordCache,
};

/// Reason for which a replay has stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplayError {
    /// The device did something else than was recorded.
    Different {
        /// Number of the entry that differs.
        entry: u64,
        /// FlightRecordingPart action, as text.
        expected: String,
        /// Action of the device in the replay, as text.
        found: String,
    },
    /// The file is no recording, or is damaged.
    Bad {
        /// Number of the entry that cannot be read.
        entry: u64,
        /// Error that the reader found there.
        bad: FullRecordingError,
    },
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Different {
                entry,
                expected,
                found,
            } => write!(
                f,
                "entry {entry}: the recording has {expected}, and the replay has {found}"
            ),
            Self::Bad { entry, bad } => write!(f, "entry {entry}: {bad}"),
        }
    }
}

/// Position in the recording, and the state of its decoder.
struct ReplayPosition<'a> {
    reader: FullRecordingReader<'a>,
    ahead: Option<Item<'a>>,
    words: WordCache,
    /// Number of loads of known words that are left of an [`Item::Same`]; the sum of their
    /// addresses so far, and the sum that all of them have to give.
    left: u32,
    sum: u64,
    wanted: u64,
}

/// Guest memory that returns recorded values.
pub(super) struct ReplayMemory<'a>(RefCell<ReplayPosition<'a>>);

/// Leaves the model from any depth, with an unwind that carries the reason.
fn stop(why: ReplayError) -> ! {
    std::panic::resume_unwind(Box::new(why))
}

impl<'a> ReplayPosition<'a> {
    /// Returns the number of the entry that was taken last.
    fn entry(&self) -> u64 {
        let read = self.reader.number() - u64::from(self.ahead.is_some());
        read.saturating_sub(1)
    }

    fn next(&mut self) -> Result<Option<Item<'a>>, ReplayError> {
        if let Some(item) = self.ahead.take() {
            return Ok(Some(item));
        }
        let entry = self.reader.number();
        self.reader
            .next()
            .transpose()
            .map_err(|bad| ReplayError::Bad { entry, bad })
    }

    fn differs(&self, expected: &dyn fmt::Debug, found: impl fmt::Display) -> ReplayError {
        ReplayError::Different {
            entry: self.entry(),
            expected: format!("{expected:x?}"),
            found: found.to_string(),
        }
    }
}

impl<'a> ReplayMemory<'a> {
    pub(super) fn new(reader: FullRecordingReader<'a>) -> Self {
        Self(RefCell::new(ReplayPosition {
            reader,
            ahead: None,
            words: WordCache::default(),
            left: 0,
            sum: 0,
            wanted: 0,
        }))
    }

    /// Takes the next entry, outside of calls of the model. None at the end of the recording.
    pub(super) fn next(&self) -> Result<Option<Item<'a>>, ReplayError> {
        let mut place = self.0.borrow_mut();
        if place.left > 0 {
            let left = place.left;
            return Err(place.differs(&format_args!("{left} more loads"), "the end of the call"));
        }
        place.next()
    }

    /// Returns the number of entries that were taken.
    pub(super) fn count(&self) -> u64 {
        self.0.borrow().reader.number()
    }

    /// Makes the error for an action that differs from the expected entry.
    pub(super) fn differs(&self, expected: &Item<'_>, found: impl fmt::Display) -> ReplayError {
        self.0.borrow().differs(expected, found)
    }

    /// Takes the next entry, for an access that the model makes now.
    fn take(&self, found: impl fmt::Display) -> (Item<'a>, RefMut<'_, ReplayPosition<'a>>) {
        let mut place = self.0.borrow_mut();
        if place.left > 0 {
            let left = place.left;
            stop(place.differs(&format_args!("{left} more loads of words"), found));
        }
        match place.next() {
            Ok(Some(item)) => (item, place),
            Ok(None) => stop(place.differs(&format_args!("its end"), found)),
            Err(why) => stop(why),
        }
    }
}

fn access(done: bool) -> Access {
    done.then_some(()).ok_or(Unreachable)
}

/// Evaluates to the recorded result if the next entry matches the access; otherwise stops the
/// replay.
macro_rules! recorded {
    ($self:ident, $found:expr, $pattern:pat if $same:expr => $value:expr) => {{
        let found = $found;
        let (item, place) = $self.take(&found);
        match item {
            $pattern if $same => $value,
            other => stop(place.differs(&other, found)),
        }
    }};
}

impl GuestMemory for ReplayMemory<'_> {
    fn contains(&self, addr: u64, length: u64) -> bool {
        recorded!(self, format!("a check of {length} bytes at {addr:#x}"),
            Item::Contains { addr: a, length: l, yes } if (a, l) == (addr, length) => yes)
    }

    fn read(&self, addr: u64, to: &mut [u8]) -> Access {
        let bytes = recorded!(self, format!("a read of {} bytes at {addr:#x}", to.len()),
            Item::Read { addr: a, length, bytes } if a == addr && length as usize == to.len() => bytes);
        fill(to, bytes)
    }

    fn write(&self, addr: u64, from: &[u8]) -> Access {
        let (item, place) = self.take(format_args!("a write at {addr:#x}"));
        match item {
            Item::Write {
                addr: a,
                bytes,
                done,
            } if a == addr && bytes.0.len() == from.len() => {
                let pairs = bytes.0.iter().zip(from).enumerate();
                let mut others = pairs.filter(|(_, (then, now))| then != now);
                match others.next() {
                    None => access(done),
                    Some((at, (then, now))) => stop(place.differs(
                        &format_args!(
                            "{then:02x} in byte {at} of {} written at {a:#x}",
                            from.len()
                        ),
                        format_args!("{now:02x}"),
                    )),
                }
            }
            other => stop(place.differs(
                &other,
                format_args!("a write at {addr:#x} of {:?}", Bytes(from)),
            )),
        }
    }

    fn copy_from(&self, to: u64, _: &Self, from: u64, len: usize) -> Access {
        recorded!(self, format!("a copy of {len} bytes from {from:#x} to {to:#x}"),
            Item::Copy { to: t, from: f, length, sum } if (t, f, length) == (to, from, len as u64) => access(sum.is_some()))
    }

    fn load32(&self, addr: u64) -> Access<u32> {
        let found = || format!("a load of 32 bits at {addr:#x}");
        let mut place = self.0.borrow_mut();
        if place.left == 0 {
            let item = match place.next() {
                Ok(item) => item,
                Err(why) => stop(why),
            };
            match item {
                Some(Item::Same { count, sum }) => {
                    (place.left, place.sum, place.wanted) = (count, 0, sum);
                }
                Some(Item::Load32 { addr: a, value }) if a == addr => {
                    place.words.set(addr, value);
                    return value.ok_or(Unreachable);
                }
                Some(other) => stop(place.differs(&other, found())),
                None => stop(place.differs(&format_args!("its end"), found())),
            }
        }
        place.left = place.left.saturating_sub(1);
        place.sum = WordCache::fold_address(place.sum, addr);
        let is_other = place.left == 0 && place.sum != place.wanted;
        match place.words.get(addr) {
            Some(value) if !is_other => Ok(value),
            _ => stop(place.differs(&format_args!("loads at other addresses"), found())),
        }
    }

    fn store32(&self, addr: u64, value: u32) -> Access {
        let done = recorded!(self, format!("a store of {value:#x} in 32 bits at {addr:#x}"),
            Item::Store32 { addr: a, value: v, done } if (a, v) == (addr, value) => done);
        let mut place = self.0.borrow_mut();
        place.words.set(addr, done.then_some(value));
        access(done)
    }

    fn load64(&self, addr: u64) -> Access<u64> {
        recorded!(self, format!("a load of 64 bits at {addr:#x}"),
            Item::Load64 { addr: a, value } if a == addr => value.ok_or(Unreachable))
    }

    fn store64(&self, addr: u64, value: u64) -> Access {
        recorded!(self, format!("a store of {value:#x} in 64 bits at {addr:#x}"),
            Item::Store64 { addr: a, value: v, done } if (a, v) == (addr, value) => access(done))
    }

    fn compare_swap64(&self, addr: u64, compare: u64, swap: u64) -> Access<u64> {
        recorded!(self, format!("a compare and swap of {compare:#x} and {swap:#x} at {addr:#x}"),
            Item::Swap64 { addr: a, compare: c, swap: s, old } if (a, c, s) == (addr, compare, swap) => old.ok_or(Unreachable))
    }

    fn fetch_add64(&self, addr: u64, add: u64) -> Access<u64> {
        recorded!(self, format!("an addition of {add:#x} at {addr:#x}"),
            Item::Add64 { addr: a, add: d, old } if (a, d) == (addr, add) => old.ok_or(Unreachable))
    }

    fn read_payload(&self, addr: u64, to: &mut [u8], place: usize) -> Access {
        let payload = recorded!(self, format!("a read of {} bytes of payload at {addr:#x}", to.len()),
            Item::ReadPayload { addr: a, length, payload } if a == addr && length as usize == to.len() => payload);
        match payload {
            RecordedPayload::Unreachable => Err(Unreachable),
            RecordedPayload::Bytes(bytes) => fill(to, Some(bytes)),
            RecordedPayload::Sum(_, sum) => fill(to, Some(Bytes(&forge(to.len(), sum)))),
            RecordedPayload::Sums(sums) => {
                fill(to, Some(Bytes(&forge_parts(to.len(), place, sums.0))))
            }
        }
    }

    fn begin_payload(&self, bytes: &[u8]) {
        let own = crc32(bytes);
        recorded!(self, format!("{} bytes of payload with the sum {own:#x}", bytes.len()),
            Item::Payload { length, sum } if (length as usize, sum) == (bytes.len(), own) => ());
    }

    fn write_payload(&self, addr: u64, from: &[u8]) -> Access {
        recorded!(self, format!("a write of {} bytes of payload at {addr:#x}", from.len()),
            Item::WritePayload { addr: a, length, done } if a == addr && length as usize == from.len() => access(done))
    }
}

fn fill(to: &mut [u8], bytes: Option<Bytes<'_>>) -> Access {
    let Bytes(bytes) = bytes.ok_or(Unreachable)?;
    // The file may contain a wrong length.
    let count = to.len().min(bytes.len());
    to[..count].copy_from_slice(&bytes[..count]);
    Ok(())
}
