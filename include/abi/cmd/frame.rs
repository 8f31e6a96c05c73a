// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a slot is made of, and the replies that several commands share.

use super::{Le16, Le32, Le64};

/// Size of a slot in bytes: a request of [`REQUEST_SIZE`], then a reply of [`REPLY_SIZE`].
pub const SLOT_SIZE: usize = 512;
/// Size of a request with its header, in bytes.
pub const REQUEST_SIZE: usize = 256;
/// Size of a reply with its header, in bytes.
pub const REPLY_SIZE: usize = 256;
/// Size of a header in bytes; the payload follows it.
pub const HEADER_SIZE: usize = 16;
/// The most bytes of payload in a request or a reply.
pub const PAYLOAD_SIZE: usize = REQUEST_SIZE - HEADER_SIZE;

layout! {
    /// Begins a request.
    pub struct RequestHeader: 16 {
        /// [`Opcode`].
        0 => opcode: Le16,
        2 => reserved0: Le16,
        /// Never 0, and new for each request of a slot: a late reply cannot be taken for a later one.
        4 => token: Le32,
        8 => reserved1: Le64,
    }
}

layout! {
    /// Begins a reply.
    pub struct ReplyHeader: 16 {
        /// [`CmdStatus`].
        0 => status: Le32,
        /// [`super::super::syndrome::Syndrome`] of a failure, else 0.
        4 => syndrome: Le32,
        8 => reserved: Le32,
        /// The request's token. Written last, with release order: until then the reply is not there.
        12 => token: Le32,
    }
}

layout! {
    /// Nothing: the request or reply of commands that have no payload.
    pub struct Empty: 8 {
        0 => reserved: Le64,
    }
}

layout! {
    /// Names one object by its number (UAR, EQN, CQN, SRQN, QPN or memory key).
    pub struct ObjectId: 8 {
        0 => id: Le32,
        4 => reserved: Le32,
    }
}

layout! {
    /// The reply of commands after which the driver has to drain event queues before it frees a number.
    pub struct Quiesced: 32 {
        /// Producer index of the asynchronous event queue.
        0 => async_pi: Le32,
        /// Producer index of the completion event queue (CQs only).
        4 => comp_pi: Le32,
        /// Receives that the queue pair had taken from its SRQ and that will not complete: 0 or 1 ...
        8 => recv_held: Le32,
        /// ... with its index in the SRQ ...
        12 => recv_index: Le32,
        /// ... and its `wr_id`.
        16 => recv_wr_id: Le64,
        24 => reserved: Le64,
    }
}

layouts! {
    structs: [RequestHeader, ReplyHeader, Empty, ObjectId, Quiesced],
    codes: []
}
