// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Slots with their headers, and replies that several commands share.

use super::{Le16, Le32, Le64};

/// Size of a slot in bytes: a request of [`REQUEST_SIZE`], then a reply of [`REPLY_SIZE`].
pub const SLOT_SIZE: usize = 512;
/// Size of a request with its header, in bytes.
pub const REQUEST_SIZE: usize = 256;
/// Size of a reply with its header, in bytes.
pub const REPLY_SIZE: usize = 256;
/// Size of a header in bytes; the payload follows it.
pub const HEADER_SIZE: usize = 16;
/// Largest payload of a request or reply in bytes.
pub const PAYLOAD_SIZE: usize = REQUEST_SIZE - HEADER_SIZE;

layout! {
    /// Header of a request.
    pub struct RequestHeader: 16 {
        /// [`Opcode`].
        0 => opcode: Le16,
        2 => reserved0: Le16,
        /// Never 0, and different from the token in the slot's reply, so that an old reply does not
        /// look like a new one.
        4 => token: Le32,
        8 => reserved1: Le64,
    }
}

layout! {
    /// Header of a reply.
    pub struct ReplyHeader: 16 {
        /// [`CmdStatus`].
        0 => status: Le32,
        /// [`super::super::syndrome::Syndrome`] of a failure, else 0.
        4 => syndrome: Le32,
        8 => reserved: Le32,
        /// Token of the request. The device writes it last, with release order. Until then there is
        /// no reply.
        12 => token: Le32,
    }
}

layout! {
    /// Payload of requests or replies without content.
    pub struct Empty: 8 {
        0 => reserved: Le64,
    }
}

layout! {
    /// Number of one object (UAR, EQN, CQN, SRQN, QPN or memory key).
    pub struct ObjectId: 8 {
        0 => id: Le32,
        4 => reserved: Le32,
    }
}

layout! {
    /// Reply of commands after which the driver has to handle the events up to these indexes before
    /// it gives the object's number to another object.
    pub struct Quiesced: 32 {
        /// Producer index of the asynchronous event queue.
        0 => async_pi: Le32,
        /// Producer index of the completion event queue (CQs only).
        4 => comp_pi: Le32,
        /// Number of receives, 0 or 1, that the queue pair has taken from its SRQ and that will not
        /// complete.
        8 => recv_held: Le32,
        /// Index of this receive in the SRQ.
        12 => recv_index: Le32,
        /// `wr_id` of this receive.
        16 => recv_wr_id: Le64,
        24 => reserved: Le64,
    }
}

layouts! {
    structs: [RequestHeader, ReplyHeader, Empty, ObjectId, Quiesced],
    codes: []
}
