// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A full recording: all inputs and outputs of a device model, in order, beginning with a reset. A
//! replay drives the model with it again, without a VM.
//!
//! | file | contents |
//! | --- | --- |
//! | `item.rs` | the recorded items, and their bytes |
//! | `writer.rs` | the writer, which puts items into pieces of a file |
//! | `reader.rs` | the reader, which refuses other files |
//! | `forge.rs` | made-up payload with the recorded length and checksum |
//!
//! # The file
//!
//! Numbers are little-endian.
//!
//! | bytes | contents |
//! | --- | --- |
//! | 8 | `VERBFULL` |
//! | 4 | [`VERSION`] |
//! | 4, 4, and this length | a piece: its length, its CRC-32, whole items |
//!
//! The first item of a file is [`Item::Begin`], the last one [`Item::End`].

mod forge;
mod item;
mod reader;
mod writer;

pub use forge::{crc32, forge, forge_parts, part_crcs};
pub use item::{Bytes, Item, RecordedPayload};
pub use reader::{FullRecordingError, FullRecordingReader};
pub use writer::{encode_piece, sent_item, FullRecordingWriter, PieceSink, WordCache};

/// Version of the file format.
pub const VERSION: u32 = 1;
/// Reason of [`Item::End`] if the client ended the recording on purpose. Any other reason means
/// that the recording was cut short.
pub const END_REQUESTED: &str = "the one who asked for it has ended it";
/// Magic bytes at the beginning of a file.
pub(crate) const MAGIC: &[u8; 8] = b"VERBFULL";
/// Most bytes of a payload that is recorded as it is: its value may matter, as that of an atomic
/// write does.
pub const VERBATIM_BYTES: usize = 64;
/// Bytes at the beginning of a received frame that are recorded as they are, so that they cover all
/// headers.
pub const FRAME_HEAD_BYTES: usize = 128;
/// Bytes at the end of a received frame that are recorded as they are: padding and ICRC.
pub const FRAME_TAIL_BYTES: usize = 8;
/// Bytes at the beginning of a sent frame that are recorded as they are: Ethernet, IPv4, UDP and
/// BTH, the shortest headers that a frame has before its payload.
pub const SENT_HEAD_BYTES: usize = 54;
