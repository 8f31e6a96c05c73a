// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The writer of a full recording, which puts items into pieces and hands the pieces to a sink.

use super::forge::{crc32, part_crcs};
use super::item::{Bytes, Item, RecordedPayload};
use super::{FRAME_HEAD_BYTES, FRAME_TAIL_BYTES, MAGIC, SENT_HEAD_BYTES, VERBATIM_BYTES, VERSION};
use std::collections::HashMap;
use std::fmt;

/// Length of a piece in bytes at which the writer hands it over.
const PIECE_BYTES: usize = 256 << 10;
/// Most words whose last value is known. At this limit all of them are forgotten.
const MAX_CACHED_WORDS: usize = 1 << 16;

/// Takes the pieces. An error gives the reason why the sink takes no more pieces.
pub type PieceSink = Box<dyn FnMut(Vec<u8>) -> Result<(), String> + Send>;

/// The last known values of words in guest memory. A recording and its replay know the same values.
#[derive(Debug, Default)]
pub struct WordCache {
    known: HashMap<u64, u32>,
}

impl WordCache {
    /// Returns the last known value at an address.
    pub fn get(&self, addr: u64) -> Option<u32> {
        self.known.get(&addr).copied()
    }

    /// Stores the present value at an address. None means that the address cannot be reached.
    pub fn set(&mut self, addr: u64, value: Option<u32>) {
        if self.known.len() >= MAX_CACHED_WORDS {
            self.known.clear();
        }
        match value {
            Some(value) => self.known.insert(addr, value),
            None => self.known.remove(&addr),
        };
    }

    /// Adds one more address to the sum of the addresses of loads in a row.
    pub fn fold_address(sum: u64, addr: u64) -> u64 {
        (sum.rotate_left(5) ^ addr).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// Puts the bytes of items into a piece of a file.
pub fn encode_piece(items: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(8 + items.len());
    bytes.extend_from_slice(&(items.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&crc32(items).to_le_bytes());
    bytes.extend_from_slice(items);
    bytes
}

/// Returns the item for a sent frame: the headers that each frame has, and the rest by length and
/// sum, because the payload in a replay may be made up.
pub fn sent_item(frame: &[u8]) -> Item<'_> {
    let (head, rest) = frame.split_at(frame.len().min(SENT_HEAD_BYTES));
    Item::Sent {
        head: Bytes(head),
        rest: payload(rest, false),
    }
}

/// Returns the recorded form of payload.
fn payload(bytes: &[u8], verbatim: bool) -> RecordedPayload<'_> {
    match bytes.len() <= VERBATIM_BYTES || verbatim {
        true => RecordedPayload::Bytes(Bytes(bytes)),
        false => RecordedPayload::Sum(bytes.len() as u32, crc32(bytes)),
    }
}

/// The writer of a full recording.
pub struct FullRecordingWriter {
    items: Vec<u8>,
    count: u64,
    words: WordCache,
    run: (u32, u64),
    sink: PieceSink,
    failure: Option<String>,
    verbatim: bool,
}

impl fmt::Debug for FullRecordingWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FullRecordingWriter")
            .field("count", &self.count)
            .field("failure", &self.failure)
            .finish_non_exhaustive()
    }
}

impl FullRecordingWriter {
    /// Starts a recording with the item `begin`.
    pub fn new(mut sink: PieceSink, begin: &Item<'_>) -> Self {
        let head = [&MAGIC[..], &VERSION.to_le_bytes()].concat();
        let failure = sink(head).err();
        let mut writer = Self {
            items: Vec::new(),
            count: 0,
            words: WordCache::default(),
            run: (0, 0),
            sink,
            failure,
            verbatim: false,
        };
        writer.put(begin);
        writer
    }

    /// Returns the number of items so far.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the reason why nothing is recorded any more.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Records payload as it is from now on, because its value will matter.
    pub fn record_payload_verbatim(&mut self) {
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

    /// Records the load of a 32-bit word.
    pub fn load32(&mut self, addr: u64, value: Option<u32>) {
        if value.is_some() && self.words.get(addr) == value && self.run.0 < u32::MAX {
            let (count, sum) = self.run;
            self.run = (count + 1, WordCache::fold_address(sum, addr));
            return;
        }
        self.words.set(addr, value);
        self.put(&Item::Load32 { addr, value });
    }

    /// Records the store of a 32-bit word.
    pub fn store32(&mut self, addr: u64, value: u32, done: bool) {
        self.words.set(addr, done.then_some(value));
        self.put(&Item::Store32 { addr, value, done });
    }

    /// Records a read of payload that begins at `offset` of the message. `bytes` is None if
    /// the payload could not be read.
    pub fn read_payload(&mut self, addr: u64, length: usize, offset: usize, bytes: Option<&[u8]>) {
        let own;
        let payload = match bytes {
            None => RecordedPayload::Unreachable,
            Some(bytes) if bytes.len() <= VERBATIM_BYTES || self.verbatim => {
                RecordedPayload::Bytes(Bytes(bytes))
            }
            Some(bytes) => {
                own = part_crcs(bytes, offset);
                RecordedPayload::Sums(Bytes(&own))
            }
        };
        self.put(&Item::ReadPayload {
            addr,
            length: length as u32,
            payload,
        });
    }

    /// Records a received frame.
    pub fn received_frame(&mut self, frame: &[u8]) {
        let (head, rest) = frame.split_at(frame.len().min(FRAME_HEAD_BYTES));
        let (between, tail) = rest.split_at(rest.len().saturating_sub(FRAME_TAIL_BYTES));
        let between = payload(between, self.verbatim);
        self.put(&Item::Frame {
            head: Bytes(head),
            between,
            tail: Bytes(tail),
        });
    }

    /// Records a sent frame.
    pub fn sent_frame(&mut self, frame: &[u8]) {
        self.put(&sent_item(frame));
    }

    /// Marks the end of a call, where a piece may end.
    pub fn end_call(&mut self) {
        if self.items.len() >= PIECE_BYTES {
            self.flush();
        }
    }

    /// Hands the items so far to the sink, as a piece.
    pub fn flush(&mut self) {
        self.end_run();
        let items = std::mem::take(&mut self.items);
        if items.is_empty() || self.failure.is_some() {
            return;
        }
        self.items.reserve(PIECE_BYTES + PIECE_BYTES / 4);
        if let Err(reason) = (self.sink)(encode_piece(&items)) {
            self.failure = Some(reason);
        }
    }

    /// Ends the recording and returns the number of its items.
    pub fn finish(mut self, reason: &str) -> u64 {
        self.put(&Item::End { reason });
        self.flush();
        self.count
    }
}
