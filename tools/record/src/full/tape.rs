// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The writer of a full recording: items into pieces, pieces to whoever keeps them.

use super::forge::{sum, sums};
use super::item::{Bytes, Item, Payload};
use super::{FRAME_HEAD, FRAME_TAIL, MAGIC, SENT_HEAD, VERBATIM, VERSION};
use std::collections::HashMap;
use std::fmt;

/// A piece has about so many bytes.
const PIECE: usize = 256 << 10;
/// Words whose last value is known; then they are forgotten.
const KNOWN: usize = 1 << 16;

/// Takes pieces. An error says why it takes no more.
pub type Sink = Box<dyn FnMut(Vec<u8>) -> Result<(), String> + Send>;

/// The words that were loaded and stored last. A recording and its replay know the same.
#[derive(Debug, Default)]
pub struct Words {
    known: HashMap<u64, u32>,
}

impl Words {
    /// What a place had.
    pub fn get(&self, addr: u64) -> Option<u32> {
        self.known.get(&addr).copied()
    }

    /// What it has now. None: it cannot be reached.
    pub fn set(&mut self, addr: u64, value: Option<u32>) {
        if self.known.len() >= KNOWN {
            self.known.clear();
        }
        match value {
            Some(value) => self.known.insert(addr, value),
            None => self.known.remove(&addr),
        };
    }

    /// The sum of the addresses of loads in a row, with one more.
    pub fn follow(sum: u64, addr: u64) -> u64 {
        (sum.rotate_left(5) ^ addr).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// Bytes as a piece of a file.
pub fn piece(items: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(8 + items.len());
    bytes.extend_from_slice(&(items.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&sum(items).to_le_bytes());
    bytes.extend_from_slice(items);
    bytes
}

/// What a frame that leaves is recorded by: the headers that each has, and the rest by length and sum, in which payload may be that of
/// a replay.
pub fn sent(frame: &[u8]) -> Item<'_> {
    let (head, rest) = frame.split_at(frame.len().min(SENT_HEAD));
    Item::Sent {
        head: Bytes(head),
        rest: payload(rest, false),
    }
}

/// What payload is recorded by.
fn payload(bytes: &[u8], verbatim: bool) -> Payload<'_> {
    match bytes.len() <= VERBATIM || verbatim {
        true => Payload::Bytes(Bytes(bytes)),
        false => Payload::Sum(bytes.len() as u32, sum(bytes)),
    }
}

/// The writer.
pub struct Tape {
    items: Vec<u8>,
    count: u64,
    words: Words,
    run: (u32, u64),
    sink: Sink,
    failed: Option<String>,
    verbatim: bool,
}

impl fmt::Debug for Tape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tape")
            .field("count", &self.count)
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

impl Tape {
    /// A recording that begins with this item.
    pub fn new(mut sink: Sink, begin: &Item<'_>) -> Self {
        let head = [&MAGIC[..], &VERSION.to_le_bytes()].concat();
        let failed = sink(head).err();
        let mut tape = Self {
            items: Vec::new(),
            count: 0,
            words: Words::default(),
            run: (0, 0),
            sink,
            failed,
            verbatim: false,
        };
        tape.put(begin);
        tape
    }

    /// How many items there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Why nothing is recorded any more.
    pub fn failed(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    /// From now on payload is recorded as it is: its value will matter.
    pub fn keep_payload(&mut self) {
        self.verbatim = true;
    }

    fn end_run(&mut self) {
        let (count, sum) = std::mem::take(&mut self.run);
        if count > 0 {
            Item::Same { count, sum }.put(&mut self.items);
            self.count += 1;
        }
    }

    /// Writes an item.
    pub fn put(&mut self, item: &Item<'_>) {
        self.end_run();
        item.put(&mut self.items);
        self.count += 1;
    }

    /// A word was loaded.
    pub fn load32(&mut self, addr: u64, value: Option<u32>) {
        if value.is_some() && self.words.get(addr) == value && self.run.0 < u32::MAX {
            let (count, sum) = self.run;
            self.run = (count + 1, Words::follow(sum, addr));
            return;
        }
        self.words.set(addr, value);
        self.put(&Item::Load32 { addr, value });
    }

    /// A word was stored.
    pub fn store32(&mut self, addr: u64, value: u32, done: bool) {
        self.words.set(addr, done.then_some(value));
        self.put(&Item::Store32 { addr, value, done });
    }

    /// A part of payload was read, which begins at this place of it; none: it could not be.
    pub fn read_payload(&mut self, addr: u64, length: usize, place: usize, bytes: Option<&[u8]>) {
        let own;
        let payload = match bytes {
            None => Payload::Unreachable,
            Some(bytes) if bytes.len() <= VERBATIM || self.verbatim => Payload::Bytes(Bytes(bytes)),
            Some(bytes) => {
                own = sums(bytes, place);
                Payload::Sums(Bytes(&own))
            }
        };
        self.put(&Item::ReadPayload {
            addr,
            length: length as u32,
            payload,
        });
    }

    /// A frame has come.
    pub fn frame(&mut self, frame: &[u8]) {
        let (head, rest) = frame.split_at(frame.len().min(FRAME_HEAD));
        let (between, tail) = rest.split_at(rest.len().saturating_sub(FRAME_TAIL));
        let between = payload(between, self.verbatim);
        self.put(&Item::Frame {
            head: Bytes(head),
            between,
            tail: Bytes(tail),
        });
    }

    /// A frame has left.
    pub fn sent(&mut self, frame: &[u8]) {
        self.put(&sent(frame));
    }

    /// A call has ended: pieces end here.
    pub fn pause(&mut self) {
        if self.items.len() >= PIECE {
            self.flush();
        }
    }

    /// Hands over what there is.
    pub fn flush(&mut self) {
        self.end_run();
        let items = std::mem::take(&mut self.items);
        if items.is_empty() || self.failed.is_some() {
            return;
        }
        self.items.reserve(PIECE + PIECE / 4);
        if let Err(reason) = (self.sink)(piece(&items)) {
            self.failed = Some(reason);
        }
    }

    /// Ends the recording. How many items it has.
    pub fn end(mut self, reason: &str) -> u64 {
        self.put(&Item::End { reason });
        self.flush();
        self.count
    }
}
