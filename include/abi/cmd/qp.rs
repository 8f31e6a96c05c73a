// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Queue pairs.

use super::super::ctx::{AddressVector, QpAttr, Translation};
use super::{Command, Empty, Le16, Le32, Le64, Opcode, Quiesced, PAYLOAD_SIZE};

codes! {
    /// Types of queue pairs, with the numbers of `enum ib_qp_type`.
    pub enum QpType: u8 {
        /// General services interface (QPN 1).
        Gsi = 1,
        /// Reliable connection.
        Rc = 2,
        /// Unreliable connection.
        Uc = 3,
        /// Unreliable datagram.
        Ud = 4,
        /// Extended reliable connection, the side that sends.
        XrcIni = 9,
        /// Extended reliable connection, the side that receives.
        XrcTgt = 10,
    }
}

/// QPNs below this are reserved, but for those of the special queue pairs, which are their [`QpType`].
pub const FIRST_QPN: u32 = 8;

/// [`CreateQp::flags`]: the queue pair may use the local DMA key, fast registration and local invalidate. Only for the
/// kernel's own.
pub const QP_PRIVILEGED: u8 = 1 << 0;
/// [`CreateQp::flags`]: every send completes with a CQE, signaled or not.
pub const QP_SIGNAL_ALL: u8 = 1 << 1;
/// [`CreateQp::flags`]: receives come from [`CreateQp::srqn`].
pub const QP_HAS_SRQ: u8 = 1 << 2;

layout! {
    /// Creates a queue pair in RESET.
    pub struct CreateQp: 96 {
        0 => qpn: Le32,
        4 => pdn: Le32,
        8 => send_cqn: Le32,
        12 => recv_cqn: Le32,
        16 => srqn: Le32,
        /// Doorbell area, and slot in it, of the producer indexes and the error word.
        20 => uar: Le32,
        24 => slot: Le16,
        /// [`QpType`].
        26 => qp_type: u8,
        /// `QP_*`.
        27 => flags: u8,
        /// The send ring has 2^log entries of 2^stride bytes.
        28 => log_sq_size: u8,
        29 => log_sq_stride: u8,
        /// The receive ring likewise; with [`QP_HAS_SRQ`] there is none.
        30 => log_rq_size: u8,
        31 => log_rq_stride: u8,
        32 => sq: Translation,
        48 => rq: Translation,
        /// Most SGEs of a send WQE, most of a receive WQE, most bytes inline.
        64 => max_send_sge: u8,
        65 => max_recv_sge: u8,
        66 => max_inline: Le16,
        /// Targets of extended connections: their domain; else 0. They have neither PD, CQs, SRQ nor send queue, and their
        /// initiators no receive queue: what would describe these is 0.
        68 => xrcdn: Le32,
        /// `enum ib_qp_create_flags`; the device accepts those that it announces.
        72 => create_flags: Le32,
        /// Port of a special queue pair; else 0.
        76 => port: u8,
        77 => reserved0: [u8; 3],
        80 => reserved1: [Le64; 2],
    }
}
command!(CreateQp, CreateQp, Empty);
object_command!(
    /// Quiesces and destroys a queue pair: no DMA, no CQE and no event of it after the reply.
    DestroyQp, DestroyQp, Quiesced
);
layout! {
    /// What QUERY_QP replies, besides publishing the context: a reader of the context may find it half written for as
    /// long as the device's thread has no CPU.
    pub struct QueriedQp: 8 {
        /// [`super::super::ctx::QpAttr`]'s `qp_state`.
        0 => qp_state: u8,
        1 => reserved: [u8; 7],
    }
}
object_command!(
    /// Publishes a queue pair's context.
    QueryQp, QueryQp, QueriedQp
);

layout! {
    /// Changes state or attributes of a queue pair. What `mask` does not name stays as it is.
    pub struct ModifyQp: 192 {
        0 => qpn: Le32,
        /// `enum ib_qp_attr_mask`, with the kernel's bits.
        4 => mask: Le32,
        8 => attr: QpAttr,
        88 => reserved: Le64,
        96 => av: AddressVector,
        /// Alternate path.
        144 => alt_av: AddressVector,
    }
}
command!(ModifyQp, ModifyQp, Quiesced);

layouts! {
    structs: [CreateQp, DestroyQp, QueryQp, QueriedQp, ModifyQp],
    codes: [QpType]
}
