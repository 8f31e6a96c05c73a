// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A full recording: all that a device model is told and reads, and all that it does, in order, from a reset on. With it the model
//! can be driven again without a VM.
//!
//! | file | what |
//! | --- | --- |
//! | `item.rs` | what is recorded, and its bytes |
//! | `tape.rs` | the writer: items into pieces of a file |
//! | `reader.rs` | the reader, which refuses what is none |
//! | `forge.rs` | payload that stands for what was recorded by length and sum |
//!
//! # The file
//!
//! Numbers are little-endian.
//!
//! | bytes | what |
//! | --- | --- |
//! | 8 | `VERBFULL` |
//! | 4 | [`VERSION`] |
//! | 4, 4, and so many | a piece: its length, its CRC-32, whole items. The first item of all is [`Item::Begin`], the last [`Item::End`] |

mod forge;
mod item;
mod reader;
mod tape;

pub use forge::{forge, forge_parts, sum, sums};
pub use item::{Bytes, Item, Payload};
pub use reader::{Bad, Reader};
pub use tape::{piece, sent, Sink, Tape, Words};

/// Version of the format.
pub const VERSION: u32 = 1;
/// Why one ends that its client has ended, as was meant: any other reason cuts it short.
pub const ASKED: &str = "the one who asked for it has ended it";
/// What a file begins with.
pub(crate) const MAGIC: &[u8; 8] = b"VERBFULL";
/// Payload of at most so many bytes is recorded as it is: its value may matter, as that of an atomic write does.
pub const VERBATIM: usize = 64;
/// So much of the beginning of a frame is recorded as it is: all headers are within it ...
pub const FRAME_HEAD: usize = 128;
/// ... and so much of its end: padding and ICRC.
pub const FRAME_TAIL: usize = 8;
/// So much of one that leaves: Ethernet, IPv4, UDP and BTH, the least that each has in front of its payload.
pub const SENT_HEAD: usize = 54;
